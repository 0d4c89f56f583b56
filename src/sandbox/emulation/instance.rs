//! Handlers of binfmt_misc that hold in one user namespace only (Linux 6.7): those of the machine stay as they are, and are
//! not seen in there.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use super::emulator::{Emulator, MARK};
use super::{Trial, header_of, trial};
use crate::children::Asked;
use crate::sandbox::own::{self, Wish};
use crate::sys;

/// How much of a program handlers look at.
const MAGIC: usize = 20;

/// `F`: the emulator is the file that is opened here, not one of the image. `O`: it gets the program as a descriptor, so
/// that one which may only be executed runs. `C`: a program that runs as another user does so. `P`: the program learns the
/// name that it was called by.
const FLAGS: &str = "FOCP";

/// Mounts the list of handlers, visible to nobody. In the initial user namespace it is that of the machine, else one of this
/// namespace. Takes CAP_SYS_ADMIN in the namespace that this process' mounts belong to.
pub(super) fn mount() -> rustix::io::Result<OwnedFd> {
    let context = fsopen("binfmt_misc", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}

/// Makes `emulators` the handlers of the user namespace that this process, and its mounts, are in. They hold as long as
/// somebody keeps what this returns open. Takes a /proc.
pub(in crate::sandbox) fn register(emulators: &[Emulator]) -> io::Result<OwnedFd> {
    if own::is_in_initial_user_namespace()? {
        return Err(io::Error::other("the handlers there are those of the machine"));
    }
    let mount = mount()?;
    for emulator in emulators {
        let file = rustix::fs::openat(&mount, "register", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        let line = line(emulator).ok_or(io::ErrorKind::Unsupported)?;
        // One write makes one handler.
        File::from(file).write_all(&line)?;
    }
    Ok(mount)
}

/// What is written to register `emulator`.
fn line(emulator: &Emulator) -> Option<Vec<u8>> {
    let magic = header_of(emulator.architecture)?;
    let mut mask = [0xff; MAGIC];
    // For which system a program was made, and by which version of its rules. Then an executable program, at a fixed place
    // or at any.
    let big = magic[5] == 2;
    for (index, bits) in [(7, 0), (8, 0), (if big { 17 } else { 16 }, 0xfe)] {
        mask[index] = bits;
    }
    debug_assert!(magic[MARK.0] == 0 && mask[MARK.0] == 0xff, "a marked emulator is no program for itself");
    let hexadecimal =
        |bytes: &[u8]| bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect::<String>().into_bytes();
    let path = format!("/proc/self/fd/{}", emulator.file.as_raw_fd());
    let fields: [&[u8]; 8] = [
        b"",
        emulator.architecture.as_bytes(),
        b"M",
        b"",
        &hexadecimal(&magic[..MAGIC]),
        &hexadecimal(&mask),
        path.as_bytes(),
        FLAGS.as_bytes(),
    ];
    Some(fields.join(&b':'))
}

/// Whether `emulator` runs programs as a handler of a user namespace of its own, found by starting one. To be called while
/// this process has one thread.
///
/// # Errors
/// Why not.
pub fn try_as_own_handler(emulator: &Emulator) -> Result<(), String> {
    let architecture = emulator.architecture;
    let child = emulator.file.try_clone().and_then(|file| {
        Asked::start([file], move |[file]| {
            own::enter_user_namespace(Wish::Single).map_err(|error| error.to_string())?;
            sys::enter_private_mounts().map_err(|error| format!("cannot make a mount namespace: {error}"))?;
            let emulator = Emulator { architecture, file: Arc::new(file) };
            let handlers = register(&[emulator]).map_err(|error| explain(&error))?;
            let result = match trial::try_out(architecture) {
                Ok(Trial::Started) => Ok(()),
                Ok(Trial::Unreachable | Trial::Refused) => Err("the kernel does not start it".to_owned()),
                Err(error) => Err(error.to_string()),
            };
            drop(handlers);
            result
        })
    });
    match child {
        Ok(mut child) => {
            child.answer().unwrap_or_else(|| Err("the process that tried it was killed".to_owned()))
        }
        Err(error) => Err(format!("cannot start a process: {error}")),
    }
}

/// What it means that [`register`] failed.
fn explain(error: &io::Error) -> String {
    format!("cannot register handlers in a user namespace: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::emulation::{ARCHITECTURES, Handler};

    fn emulator(architecture: &'static str) -> Emulator {
        Emulator { architecture, file: Arc::new(File::open("/dev/null").unwrap().into()) }
    }

    /// What binfmt_misc lists of what was registered.
    fn handler(line: &[u8]) -> Handler {
        let line = String::from_utf8(line.to_vec()).unwrap();
        let fields: Vec<&str> = line.split(':').collect();
        let [_, name, "M", "", magic, mask, interpreter, flags] = fields[..] else { panic!("{line}") };
        let (magic, mask) = (magic.replace("\\x", ""), mask.replace("\\x", ""));
        let text = format!(
            "enabled\ninterpreter {interpreter}\nflags: {flags}\noffset 0\nmagic {magic}\nmask {mask}\n"
        );
        Handler::parse(name, &text).unwrap()
    }

    #[test]
    fn each_handler_takes_the_programs_of_its_architecture_and_no_others() {
        for one in &ARCHITECTURES {
            let handler = handler(&line(&emulator(one.name)).unwrap());
            assert!(handler.warnings().is_empty(), "{handler:?}");
            for other in &ARCHITECTURES {
                let mut head = header_of(other.name).unwrap();
                // Of GNU/Linux, and position-independent.
                head[7] = 3;
                head[if head[5] == 2 { 17 } else { 16 }] = 3;
                assert_eq!(handler.matches(&head), one.name == other.name, "{} {}", one.name, other.name);
                head[MARK.0] = MARK.1;
                assert!(!handler.matches(&head), "{}: what is marked is no program", other.name);
            }
        }
    }

    #[test]
    fn a_registration_is_no_longer_than_the_kernel_takes() {
        for known in &ARCHITECTURES {
            assert!(line(&emulator(known.name)).unwrap().len() < 1920);
        }
    }
}
