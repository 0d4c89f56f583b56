//! Which file something is, whatever it is called and wherever it has been moved.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};

use super::moving::act;
use crate::rootfs::visit::Names;
use crate::rootfs::{FileId, FileKind, Timestamp, birth_at, metadata_at, metadata_of};

/// Which file it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Identity {
    file: FileId,
    kind: FileKind,
    /// Overlays of several file systems number directories anew when they forget them; this stays.
    birth: Option<Timestamp>,
}

impl Identity {
    pub(super) fn of(directory: BorrowedFd<'_>, name: &[u8]) -> io::Result<Self> {
        let metadata = metadata_at(directory, name)?;
        Ok(Self { file: metadata.file(), kind: metadata.kind, birth: birth_at(directory, name)? })
    }

    /// When it was made, where the file system knows.
    pub(super) fn birth(&self) -> Option<Timestamp> {
        self.birth
    }

    /// Whether it is a directory.
    pub(super) fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// Whether it is the same and no other, be it that the number of one that was removed has been given again: for a search
    /// among many, some of which were made in the same tick of the clock.
    pub(super) fn is_exactly(&self, other: &Self) -> bool {
        self.kind == other.kind && self.file == other.file && self.birth == other.birth
    }

    /// Whether it is the same as it was in its place, as far as can be told.
    pub(super) fn is_that_of(&self, other: &Self) -> bool {
        self.kind == other.kind
            && (self.file == other.file || (self.birth.is_some() && self.birth == other.birth))
    }
}

/// The time as file systems note it: with the grain of the kernel's ticks.
pub(super) fn now() -> Timestamp {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    Timestamp { seconds: time.tv_sec, nanoseconds: u32::try_from(time.tv_nsec).unwrap_or_default() }
}

/// Whether the entry `name` of `parent` is what is open as `file`.
pub(in crate::sandbox) fn is_at(file: BorrowedFd<'_>, parent: BorrowedFd<'_>, name: &[u8]) -> bool {
    match (metadata_of(file), metadata_at(parent, name)) {
        (Ok(one), Ok(other)) => one.same_file(&other) && one.kind == other.kind,
        _ => false,
    }
}

/// Moves the open directory `directory` from wherever it is to `name` in `parent`.
pub(in crate::sandbox) fn bring_home(
    directory: BorrowedFd<'_>,
    parent: BorrowedFd<'_>,
    name: &[u8],
) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let above = rustix::fs::openat(directory, "..", flags, Mode::empty())?;
    for found in Names::in_directory(above.as_fd())?.iter() {
        if is_at(directory, above.as_fd(), found) {
            return act(|| rustix::fs::renameat(&above, found, parent, name));
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

/// Whether both are in the same mount; assumed if the kernel does not say.
pub(super) fn same_mount(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> bool {
    let mount = |file: BorrowedFd<'_>| {
        let stat = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).ok()?;
        (stat.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(stat.stx_mnt_id)
    };
    mount(one).zip(mount(other)).is_none_or(|(one, other)| one == other)
}
