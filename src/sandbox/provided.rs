//! What every step finds in its root besides the image, however it is kept apart: which directories, files, devices and
//! scripts these are, and how they are made.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use super::furnish::FurnishError;
use super::refusal::Attempt;
use super::wire::Report;
use super::{SandboxError, Script};
use crate::rootfs::{Follow, GuestPath, Owner, Rootfs, RootfsError, set_mode_at, set_owner_at};

/// The directories of the root that the kernel's file systems are mounted on.
pub(super) const KERNEL: [&str; 3] = ["proc", "sys", "dev"];

/// The files that are provided from outside, by their path in the image.
pub(super) const PROVIDED: [&str; 2] = ["etc/resolv.conf", "etc/hosts"];

/// The files that container runtimes mount in every container.
pub(super) const OF_RUNTIMES: [&str; 3] = [PROVIDED[0], PROVIDED[1], "etc/hostname"];

/// Names in /dev with major and minor number.
pub(super) const DEVICES: [(&str, u32, u32); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];

/// Links in /dev, and where they lead.
pub(super) const LINKS: [(&str, &str); 6] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("core", "/proc/kcore"),
    ("ptmx", "pts/ptmx"),
];

/// A path of the lists as one of the root.
pub(super) fn in_root(path: &str) -> GuestPath {
    GuestPath::root().child(path.as_bytes())
}

/// Whether `path` is one of the kernel's directories, or below one.
pub(super) fn is_of_kernel(path: &GuestPath) -> bool {
    KERNEL.iter().any(|name| path.starts_with(&in_root(name)))
}

/// Something that could not be made.
pub(super) struct Failed {
    /// What was tried.
    step: Attempt,
    /// What the kernel said.
    source: io::Error,
}

/// For the supervisor.
impl From<Failed> for Report {
    fn from(Failed { step, source }: Failed) -> Self {
        Self::Setup { step, errno: source.raw_os_error().unwrap_or(Errno::IO.raw_os_error()) }
    }
}

/// For the builder.
impl From<Failed> for SandboxError {
    fn from(Failed { step, source }: Failed) -> Self {
        Self::Setup { step, source }
    }
}

fn during<T>(result: Result<T, impl Into<io::Error>>, step: impl Into<Attempt>) -> Result<T, Failed> {
    result.map_err(|error| Failed { step: step.into(), source: error.into() })
}

/// Makes [`KERNEL`] in `root` where they are missing; they stay, as under BuildKit. For the builder, before anything covers
/// a part of the root.
pub(super) fn make_kernel_directories(root: &Rootfs) -> Result<(), SandboxError> {
    for name in KERNEL {
        let step = || format!("prepare `/{name}`");
        match rustix::fs::mkdirat(root.as_fd(), name, Mode::RWXU) {
            Ok(()) => {
                let finished = set_owner_at(root.as_fd(), name.as_bytes(), Owner::ROOT)
                    .and_then(|()| set_mode_at(root.as_fd(), name.as_bytes(), 0o755));
                during(finished, step())?;
            }
            Err(Errno::EXIST) => {}
            Err(error) => during(Err(error), step())?,
        }
        let kind = during(kind_at(root, &in_root(name)), step())?;
        if kind != FileType::Directory {
            return Err(taken(name, kind).into());
        }
    }
    Ok(())
}

/// Whether one of [`PROVIDED`], which leads to `place`, can be covered by a file.
pub(super) fn check_file(root: &Rootfs, path: &str, place: &GuestPath) -> Result<(), SandboxError> {
    match during(kind_at(root, place), format!("find `/{path}`"))? {
        FileType::Directory => Err(taken(path, FileType::Directory).into()),
        _ => Ok(()),
    }
}

fn taken(path: &str, kind: FileType) -> FurnishError {
    FurnishError::MountPoint { path: format!("/{path}"), found: describe(kind) }
}

/// What is at `place`, which leads over no link.
fn kind_at(root: &Rootfs, place: &GuestPath) -> io::Result<FileType> {
    let target = root.open_path(place, Follow::No).map_err(cause)?;
    Ok(FileType::from_raw_mode(rustix::fs::fstat(target)?.st_mode))
}

/// What the kernel said.
pub(super) fn cause(error: RootfsError) -> io::Error {
    match error {
        RootfsError::Io { source, .. } => source,
        other => io::Error::other(other),
    }
}

fn describe(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symbolic link",
        FileType::Fifo => "named pipe",
        FileType::Socket => "socket",
        FileType::CharacterDevice | FileType::BlockDevice => "device",
        FileType::Unknown => "thing of unknown kind",
    }
}

/// Puts `scripts` into `directory`, as a step finds them at `/dev/pipes`.
pub(super) fn write_scripts(directory: &OwnedFd, scripts: &[Script]) -> Result<(), Failed> {
    for script in scripts {
        let step = || format!("write `{}`", script.path());
        let name = during(script.file_name(), step())?;
        during(make_file(directory, name, Owner::ROOT, 0o755, &script.content), step())?;
    }
    Ok(())
}

/// Makes a file, and returns it open for writing. Until all of it is there, nobody but root can read it.
pub(super) fn make_file(
    directory: impl AsFd,
    name: &[u8],
    owner: Owner,
    mode: u32,
    content: &[u8],
) -> io::Result<OwnedFd> {
    let file = new_file(directory, name, 0o600)?;
    write_all(&file, content)?;
    rustix::fs::fchown(&file, Some(Uid::from_raw(owner.uid)), Some(Gid::from_raw(owner.gid)))?;
    // Whatever the umask is; and after the owner, since changing that takes setuid bits away.
    rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
    Ok(file)
}

/// Makes an empty file, and returns it open for writing. The umask takes bits of `mode` away.
pub(super) fn new_file(directory: impl AsFd, name: &[u8], mode: u32) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(directory, name, flags, Mode::from_raw_mode(mode))
}

pub(super) fn write_all(file: &OwnedFd, mut bytes: &[u8]) -> rustix::io::Result<()> {
    while !bytes.is_empty() {
        bytes = &bytes[rustix::io::write(file, bytes)?..];
    }
    Ok(())
}
