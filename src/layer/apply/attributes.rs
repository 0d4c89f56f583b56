//! Giving a file the metadata of its entry.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use super::io_error;
use crate::layer::EntryError;
use crate::layer::tar::Entry;
use crate::rootfs::{Owner, Timestamp, Xattrs, remove_xattr_at, set_times_at, set_xattr_at, xattrs_at};

/// Attributes that the file system or the kernel refused, with the reason. A layer with attributes that mean nothing
/// here is still usable; what is lost is reported.
pub(super) type Refused = Vec<(Vec<u8>, Errno)>;

fn set_xattrs(xattrs: &Xattrs, set: impl Fn(&[u8], &[u8]) -> io::Result<()>) -> Result<Refused, EntryError> {
    let mut refused = Vec::new();
    for (key, value) in xattrs {
        match set(key, value) {
            Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::OPNOTSUPP | Errno::PERM)) => {
                refused.push((key.clone(), Errno::from_io_error(&error).unwrap_or(Errno::PERM)));
            }
            result => io_error(result, "set an extended attribute")?,
        }
    }
    Ok(refused)
}

pub(super) fn set_xattrs_at(at: BorrowedFd<'_>, name: &[u8], xattrs: &Xattrs) -> Result<Refused, EntryError> {
    set_xattrs(xattrs, |key, value| set_xattr_at(at, name, key, value))
}

/// Sets what an entry says about an open file or directory: the owner first, as that clears setuid bits and
/// capabilities, the times last.
pub(super) fn set_metadata_of(file: &OwnedFd, entry: &Entry, owner: Owner) -> Result<Refused, EntryError> {
    let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
    io_error(rustix::fs::fchown(file, Some(uid), Some(gid)), "set the owner")?;
    io_error(rustix::fs::fchmod(file, Mode::from_raw_mode(entry.mode)), "set the mode")?;
    let refused = set_xattrs(&entry.xattrs, |key, value| {
        Ok(rustix::fs::fsetxattr(file, key, value, XattrFlags::empty())?)
    })?;
    let time = Timespec { tv_sec: entry.mtime.seconds, tv_nsec: entry.mtime.nanoseconds.into() };
    let times = Timestamps { last_access: time, last_modification: time };
    io_error(rustix::fs::futimens(file, &times), "set the times")?;
    Ok(refused)
}

fn open_directory(at: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, EntryError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    io_error(rustix::fs::openat(at, name, flags, Mode::empty()), "open the directory")
}

/// Gives a directory the metadata of an entry and no other attributes.
pub(super) fn set_directory_metadata(
    at: BorrowedFd<'_>,
    name: &[u8],
    entry: &Entry,
    owner: Option<Owner>,
) -> Result<Refused, EntryError> {
    let directory = open_directory(at, name)?;
    clear_xattrs(&directory, &entry.xattrs)?;
    set_metadata_of(&directory, entry, owner.unwrap_or(entry.owner))
}

/// Takes away the attributes that are not in `kept`, except those of overlayfs and of security modules.
fn clear_xattrs(directory: &OwnedFd, kept: &Xattrs) -> Result<(), EntryError> {
    for key in io_error(xattrs_at(directory.as_fd(), b"."), "read the extended attributes")?.into_keys() {
        let ours = !key.starts_with(b"trusted.overlay.")
            && !key.starts_with(b"user.overlay.")
            && (!key.starts_with(b"security.") || key == b"security.capability");
        if ours && !kept.contains_key(&key) {
            io_error(remove_xattr_at(directory.as_fd(), b".", &key), "remove an extended attribute")?;
        }
    }
    Ok(())
}

/// Makes an existing directory what one without an entry is: 0755, of `owner`, from 1970.
pub(super) fn reset_directory(at: BorrowedFd<'_>, name: &[u8], owner: Owner) -> Result<(), EntryError> {
    let directory = open_directory(at, name)?;
    clear_xattrs(&directory, &Xattrs::new())?;
    let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
    io_error(rustix::fs::fchown(&directory, Some(uid), Some(gid)), "set the owner")?;
    io_error(rustix::fs::fchmod(&directory, Mode::from_raw_mode(0o755)), "set the mode")?;
    io_error(set_times_at(directory.as_fd(), b".", Timestamp::default()), "set the times")
}
