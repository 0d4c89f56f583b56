//! The small /dev of a step where nothing can be mounted: six devices, and what else programs look for.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
#[cfg(test)]
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, makedev};

use super::aside::Aside;
use super::{during, finish, make_directory};
use crate::rootfs::Owner;
use crate::sandbox::provided::{DEVICES, LINKS, write_scripts};
use crate::sandbox::{Act, SandboxError, Script};

/// The directories in it that are file systems of their own where something can be mounted, and their modes.
const DIRECTORIES: [(&str, u32); 3] = [("pts", 0o755), ("shm", 0o1777), ("mqueue", 0o1777)];

/// Makes one in `aside` and returns its name there.
pub(super) fn make(aside: &mut Aside, scripts: &[Script]) -> Result<String, SandboxError> {
    let made = aside.new_name();
    let dev = during(aside.directory(&made), "make `/dev`")?;
    for (name, major, minor) in DEVICES {
        let step = || format!("make `/dev/{name}`");
        let mode = Mode::RUSR | Mode::WUSR;
        let device = rustix::fs::mknodat(&dev, name, FileType::CharacterDevice, mode, makedev(major, minor));
        during(device, Act::MakeDevice.named(step()))?;
        during(finish(dev.as_fd(), name.as_bytes(), Owner::ROOT, 0o666), step())?;
    }
    during(try_device(&dev), Act::OpenDevice.named("open `/dev/null`"))?;
    for (name, to) in LINKS {
        during(rustix::fs::symlinkat(to, &dev, name), format!("make `/dev/{name}`"))?;
    }
    for (name, mode) in DIRECTORIES {
        during(make_directory(dev.as_fd(), name.as_bytes(), mode), format!("make `/dev/{name}`"))?;
    }
    if !scripts.is_empty() {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let pipes = make_directory(dev.as_fd(), b"pipes", 0o755)
            .and_then(|()| Ok(rustix::fs::openat(&dev, "pipes", flags, Mode::empty())?));
        write_scripts(&during(pipes, "make `/dev/pipes`")?, scripts)?;
    }
    during(finish(aside.as_fd(), made.as_bytes(), Owner::ROOT, 0o755), "make `/dev`")?;
    Ok(made)
}

/// Whether devices in `dev` can be used: EACCES on a file system that is mounted with `nodev`.
fn try_device(dev: &OwnedFd) -> io::Result<()> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dev, "null", flags, Mode::empty())?;
    Ok(())
}

/// Makes a small /dev in `directory`, and leaves nothing of it.
#[cfg(test)]
pub(super) fn try_devices(directory: &Path) -> Result<(), SandboxError> {
    let mut aside = during(Aside::new(directory), format!("use the directory `{}`", directory.display()))?;
    make(&mut aside, &[]).map(|_| ())
}
