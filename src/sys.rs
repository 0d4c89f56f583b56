//! Raw system calls that no crate wraps; the only `unsafe`.
#![expect(unsafe_code, reason = "this is the one place for it")]

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

/// Runs `body` in a process of its own that is no child of this one: it is the child of init (or of the nearest
/// subreaper), in a session of its own, works in `/`, and ends when `body` returns. It holds the descriptors `keep`,
/// which are closed here, and no others: 0, 1 and 2 are /dev/null, so nobody waits for it at the end of a pipe. Only
/// the calling thread exists there: call this while there is no other.
///
/// # Errors
/// Those of fork(2), and a first child that was killed before it could fork.
pub fn fork_detached<const N: usize>(keep: [OwnedFd; N], body: impl FnOnce([OwnedFd; N])) -> io::Result<()> {
    // SAFETY: fork has no preconditions. What the child may do is limited only when other threads exist; the C
    // library keeps its allocator usable even then.
    let first = unsafe { libc::fork() };
    if first < 0 {
        return Err(io::Error::last_os_error());
    }
    if first == 0 {
        // SAFETY: both take no pointers.
        let second = unsafe {
            libc::setsid();
            libc::fork()
        };
        if second == 0 {
            keep_only(&keep);
            body(keep);
        }
        let code =
            if second < 0 { io::Error::last_os_error().raw_os_error().unwrap_or(libc::EAGAIN) } else { 0 };
        // SAFETY: ends this process at once: nothing of the parent's (buffers, exit handlers) may run twice.
        unsafe { libc::_exit(code) }
    }
    match wait_for(first)? {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

/// Closes every descriptor but `keep`, opens /dev/null as 0, 1 and 2 and goes to `/`. Only for a process that was just
/// forked, whose owners of all those descriptors will never run.
fn keep_only(keep: &[OwnedFd]) {
    let mut kept: Vec<u32> = keep.iter().map(|fd| fd.as_raw_fd().cast_unsigned()).collect();
    kept.sort_unstable();
    let mut first = 0;
    for fd in kept {
        if first < fd {
            close_range(first, fd - 1);
        }
        first = fd + 1;
    }
    close_range(first, u32::MAX);
    // SAFETY: the paths are NUL-terminated. New descriptors take the lowest free numbers.
    unsafe {
        while (0..2).contains(&libc::open(c"/dev/null".as_ptr(), libc::O_RDWR)) {}
        libc::chdir(c"/".as_ptr());
    }
}

fn close_range(first: u32, last: u32) {
    // SAFETY: takes no pointers; nobody in this process uses the descriptors any more.
    if unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } == 0 {
        return;
    }
    // Before Linux 5.9. Descriptors beyond what is usual stay open; they keep nobody waiting for us.
    for fd in first..=last.min(65_536) {
        // SAFETY: as above.
        unsafe { libc::close(fd.cast_signed()) };
    }
}

/// The exit code of the child `process`, once it has ended.
fn wait_for(process: libc::pid_t) -> io::Result<i32> {
    let mut status = 0;
    loop {
        // SAFETY: `status` is valid for writing.
        if unsafe { libc::waitpid(process, &raw mut status, 0) } == process {
            break;
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            // Whoever started us ignores SIGCHLD: the kernel reaps, and the code is lost.
            Some(libc::ECHILD) => return Ok(0),
            _ => return Err(error),
        }
    }
    if libc::WIFEXITED(status) { Ok(libc::WEXITSTATUS(status)) } else { Ok(libc::EINTR) }
}

/// Ignores the signals by which terminals, shells and supervisors end or stop a process.
pub fn ignore_ending_signals() {
    for signal in [
        libc::SIGINT,
        libc::SIGTERM,
        libc::SIGHUP,
        libc::SIGQUIT,
        libc::SIGPIPE,
        libc::SIGTSTP,
        libc::SIGTTIN,
        libc::SIGTTOU,
    ] {
        // SAFETY: SIG_IGN is no handler, so no code runs in signal context.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Gives the calling thread, and what it starts from now on, a mount namespace of its own.
///
/// # Errors
/// Those of unshare(2).
pub fn unshare_mounts() -> io::Result<()> {
    // SAFETY: CLONE_NEWNS does not touch the table of descriptors.
    Ok(unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }?)
}

/// Gives the calling thread a current directory of its own.
///
/// # Errors
/// Those of unshare(2).
pub fn unshare_current_directory() -> io::Result<()> {
    // SAFETY: CLONE_FS does not touch the table of descriptors.
    Ok(unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FS) }?)
}
