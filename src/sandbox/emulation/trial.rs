//! Whether the kernel has a handler for programs of another processor, found by starting one where the list of handlers
//! cannot be read, as in most containers.

use std::ffi::CString;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};

use rustix::io::{Errno, FdFlags, fcntl_setfd};

use super::emulator::Memory;
use super::header_of;
use crate::children::Asked;
use crate::sys;

/// The kernel looks at so many bytes of a program (`BINPRM_BUF_SIZE`).
const HEAD: usize = 256;

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trial {
    /// An emulator was started.
    Started,
    /// There is a handler, whose emulator is not there: it lacks flag F.
    Unreachable,
    /// No handler is there.
    Refused,
}

/// Starts a program for `architecture`, in Go's words, that has nothing but a header: an emulator ends at once because of
/// that. To be called while this process has one thread.
///
/// # Errors
/// When it cannot be tried: for an architecture without a known form of programs, and where the kernel refuses otherwise.
pub fn try_out(architecture: &str) -> io::Result<Trial> {
    let header = header_of(architecture).ok_or(io::ErrorKind::Unsupported)?;
    let program = program(&header)?;
    let path = CString::new(format!("/proc/self/fd/{}", program.as_raw_fd()))?;
    let arguments = [c"builder-tries-emulation".to_owned()];
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    // Not what the standard library does to start a program: its C library takes whatever the kernel cannot execute for a
    // script of the shell.
    let mut child = Asked::start([program, null.into()], |[program, null]| {
        let quiet = rustix::stdio::dup2_stdin(&null)
            .and_then(|()| rustix::stdio::dup2_stdout(&null))
            .and_then(|()| rustix::stdio::dup2_stderr(&null));
        let error = match quiet {
            Ok(()) => sys::execve(&path, &arguments, &[]),
            Err(error) => error.into(),
        };
        drop(program);
        error.raw_os_error().unwrap_or(Errno::IO.raw_os_error())
    })?;
    let refusal = child.answer();
    // That it was started is all there is to know.
    child.kill();
    drop(child);
    let Some(errno) = refusal else { return Ok(Trial::Started) };
    match Errno::from_raw_os_error(errno) {
        Errno::NOEXEC => Ok(Trial::Refused),
        Errno::NOENT => Ok(Trial::Unreachable),
        errno => Err(errno.into()),
    }
}

/// A file in memory that begins so. It is not closed when the program is executed, since an emulator opens it by its path.
fn program(header: &[u8]) -> io::Result<OwnedFd> {
    let mut memory = Memory::new("tries-emulation")?;
    let mut head = [0; HEAD];
    head[..header.len()].copy_from_slice(header);
    memory.0.write_all(&head)?;
    let file = memory.seal()?;
    fcntl_setfd(&file, FdFlags::empty())?;
    Ok(file)
}
