//! One entry other than a directory, with all its metadata.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use super::content::{self, ContentError};
use super::{Copier, CopyError, tried};
use crate::rootfs::{
    FileKind, GuestPath, Metadata, Owner, Timestamp, Xattrs, metadata_at, metadata_of, set_mode_at,
    set_owner_at, set_times_at, set_xattr_at, xattrs_at, xattrs_of,
};

/// An entry by its directory and name: no link is followed.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) directory: &'a OwnedFd,
    pub(super) name: &'a [u8],
    /// For messages.
    pub(super) path: &'a GuestPath,
}

impl Place<'_> {
    fn at(&self) -> (BorrowedFd<'_>, &[u8]) {
        (self.directory.as_fd(), self.name)
    }

    /// The metadata of what is there.
    pub(super) fn metadata(&self) -> Result<Option<Metadata>, CopyError> {
        match metadata_at(self.directory.as_fd(), self.name) {
            Ok(metadata) => Ok(Some(metadata)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => tried(Err(error), "read metadata of", self.path),
        }
    }
}

/// What an entry is to have.
#[derive(Debug, Clone)]
pub(super) struct Attributes {
    pub(super) owner: Owner,
    /// None for symbolic links, which have none.
    pub(super) mode: Option<u32>,
    pub(super) mtime: Timestamp,
    pub(super) xattrs: Xattrs,
}

/// Gives `to` its attributes, in the order in which none undoes another.
pub(super) fn set_attributes(to: &Place<'_>, attributes: &Attributes) -> Result<(), CopyError> {
    let (directory, name) = to.at();
    tried(set_owner_at(directory, name, attributes.owner), "set the owner of", to.path)?;
    for (key, value) in &attributes.xattrs {
        stored(set_xattr_at(directory, name, key, value), to.path)?;
    }
    // An access control list changes the mode.
    if let Some(mode) = attributes.mode {
        tried(set_mode_at(directory, name, mode), "set the mode of", to.path)?;
    }
    tried(set_times_at(directory, name, attributes.mtime), "set the times of", to.path)
}

/// Extended attributes are set as far as possible: file systems and kernels differ in what they store (BuildKit ignores
/// these as well). Where there is only no room for them, they must not be lost.
fn stored(result: io::Result<()>, path: &GuestPath) -> Result<(), CopyError> {
    match result.as_ref().map_err(Errno::from_io_error) {
        Err(Some(Errno::NOSPC | Errno::DQUOT | Errno::IO | Errno::NOMEM)) => {
            tried(result, "set an extended attribute of", path)
        }
        _ => Ok(()),
    }
}

/// Gives an open file its attributes, in the same order.
fn set_attributes_of(file: &File, attributes: &Attributes, path: &GuestPath) -> Result<(), CopyError> {
    let (uid, gid) = (Uid::from_raw(attributes.owner.uid), Gid::from_raw(attributes.owner.gid));
    tried(rustix::fs::fchown(file, Some(uid), Some(gid)), "set the owner of", path)?;
    for (key, value) in &attributes.xattrs {
        let set = rustix::fs::fsetxattr(file, key.as_slice(), value, XattrFlags::empty());
        stored(set.map_err(io::Error::from), path)?;
    }
    if let Some(mode) = attributes.mode {
        tried(rustix::fs::fchmod(file, Mode::from_raw_mode(mode)), "set the mode of", path)?;
    }
    let Timestamp { seconds, nanoseconds } = attributes.mtime;
    let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() };
    let times = Timestamps { last_access: time, last_modification: time };
    tried(rustix::fs::futimens(file, &times), "set the times of", path)
}

/// What a copy of `from` gets.
pub(super) fn attributes_of(copier: &Copier<'_>, from: &Place<'_>, metadata: &Metadata) -> Attributes {
    let (directory, name) = from.at();
    attributes(copier, metadata, xattrs_at(directory, name).unwrap_or_default())
}

fn attributes(copier: &Copier<'_>, metadata: &Metadata, mut xattrs: Xattrs) -> Attributes {
    xattrs.retain(|key, _| travels(key));
    let mode = (metadata.kind != FileKind::Symlink).then(|| copier.request.chmod.unwrap_or(metadata.mode));
    Attributes { owner: copier.owner_for(metadata.owner), mode, mtime: metadata.mtime, xattrs }
}

/// Whether an extended attribute belongs to a file rather than to the system it is on: labels of security modules and
/// the marks of overlayfs do not.
pub(super) fn travels(key: &[u8]) -> bool {
    key == b"security.capability"
        || ![&b"security."[..], b"trusted.", b"user.overlay."].iter().any(|prefix| key.starts_with(prefix))
}

/// Copies `from`, which has `metadata` and is no directory, to `to`. What was there is replaced, not written to: other
/// names of it keep their content.
pub(super) fn copy(
    copier: &mut Copier<'_>,
    from: &Place<'_>,
    metadata: &Metadata,
    to: &Place<'_>,
) -> Result<(), CopyError> {
    if metadata.kind == FileKind::File {
        copier.done.bytes += copy_file(copier, from, to)?;
        copier.done.files += 1;
        return Ok(());
    }
    make_room(to)?;
    match metadata.kind {
        FileKind::Symlink => {
            let target =
                tried(rustix::fs::readlinkat(from.directory, from.name, Vec::new()), "read link", from.path)?;
            tried(rustix::fs::symlinkat(&target, to.directory, to.name), "make link", to.path)?;
        }
        FileKind::Fifo => make_node(to, FileType::Fifo, 0)?,
        FileKind::CharDevice => make_node(to, FileType::CharacterDevice, metadata.rdev)?,
        FileKind::BlockDevice => make_node(to, FileType::BlockDevice, metadata.rdev)?,
        // A socket without a process is nothing; BuildKit leaves an empty file.
        FileKind::File | FileKind::Socket => drop(create(to)?),
        FileKind::Directory => return Err(CopyError::CannotCopyToNonDirectory { path: to.path.clone() }),
    }
    set_attributes(to, &attributes_of(copier, from, metadata))?;
    copier.done.files += 1;
    Ok(())
}

/// Makes `to` a file that holds `content`.
pub(super) fn write(copier: &mut Copier<'_>, content: &[u8], to: &Place<'_>) -> Result<(), CopyError> {
    tried(create(to)?.write_all(content), "write", to.path)?;
    let owner = copier.request.chown.unwrap_or(Owner::ROOT);
    let mode = Some(copier.request.chmod.unwrap_or(0o644));
    set_attributes(to, &Attributes { owner, mode, mtime: copier.now, xattrs: Xattrs::new() })?;
    copier.done.files += 1;
    copier.done.bytes += content.len() as u64;
    Ok(())
}

/// Takes away what is at `to`, unless it is a directory.
pub(super) fn make_room(to: &Place<'_>) -> Result<(), CopyError> {
    match to.metadata()? {
        None => Ok(()),
        Some(metadata) if metadata.kind == FileKind::Directory => {
            Err(CopyError::CannotReplaceDirectoryWithFile { path: to.path.clone() })
        }
        Some(_) => tried(rustix::fs::unlinkat(to.directory, to.name, AtFlags::empty()), "remove", to.path),
    }
}

/// Makes an empty file in place of what is there.
fn create(to: &Place<'_>) -> Result<File, CopyError> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || rustix::fs::openat(to.directory, to.name, flags, Mode::RUSR | Mode::WUSR);
    let file = match open() {
        Err(Errno::EXIST) => {
            make_room(to)?;
            open()
        }
        result => result,
    };
    tried(file, "make", to.path).map(File::from)
}

pub(super) fn make_node(to: &Place<'_>, file_type: FileType, device: u64) -> Result<(), CopyError> {
    let made = rustix::fs::mknodat(to.directory, to.name, file_type, Mode::RUSR | Mode::WUSR, device);
    tried(made, "make", to.path)
}

/// Copies a file; returns its size.
fn copy_file(copier: &mut Copier<'_>, from: &Place<'_>, to: &Place<'_>) -> Result<u64, CopyError> {
    let changed = || CopyError::Changed { path: from.path.clone() };
    // By now it may be something else: a FIFO must not make us wait, a link must not lead elsewhere.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let source = match rustix::fs::openat(from.directory, from.name, flags, Mode::empty()) {
        Err(Errno::LOOP | Errno::NOENT | Errno::NXIO | Errno::NODEV) => return Err(changed()),
        result => File::from(tried(result, "open", from.path)?),
    };
    let metadata = tried(metadata_of(&source), "read metadata of", from.path)?;
    if metadata.kind != FileKind::File {
        return Err(changed());
    }
    let target = create(to)?;
    match content::copy(&source, &metadata, &target, &mut copier.buffer) {
        Ok(()) => {}
        Err(ContentError::Changed) => return Err(changed()),
        Err(ContentError::Read(error)) => return tried(Err(error), "read", from.path),
        Err(ContentError::Write(error)) => return tried(Err(error), "write", to.path),
    }
    let attributes = attributes(copier, &metadata, xattrs_of(&source).unwrap_or_default());
    set_attributes_of(&target, &attributes, to.path)?;
    Ok(metadata.size)
}
