//! Giving a file the metadata of its entry.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::io_error;
use crate::layer::EntryError;
use crate::layer::tar::Entry;
use crate::rootfs::{DirectoryEntry, Owner, Rootfs, Timestamp, Xattrs};

/// Attributes that the file system or the kernel refused, with the reason. A layer with attributes that mean nothing
/// here is still usable; what is lost is reported.
pub(super) type Refused = Vec<(Vec<u8>, Errno)>;

pub(super) fn set_xattrs(to: &DirectoryEntry<'_>, xattrs: &Xattrs) -> Result<Refused, EntryError> {
    let mut refused = Vec::new();
    for (key, value) in xattrs {
        match to.set_xattr(key, value) {
            Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::OPNOTSUPP | Errno::PERM)) => {
                refused.push((key.clone(), Errno::from_io_error(&error).unwrap_or(Errno::PERM)));
            }
            result => io_error(result, "set an extended attribute")?,
        }
    }
    Ok(refused)
}

/// Sets what an entry of the archive says about one of the tree, which is no link: the owner first, as that clears setuid
/// bits and capabilities, the times last.
pub(super) fn set_metadata(
    to: &DirectoryEntry<'_>,
    entry: &Entry,
    owner: Owner,
) -> Result<Refused, EntryError> {
    io_error(to.set_owner(owner), "set the owner")?;
    io_error(to.set_mode(entry.mode), "set the mode")?;
    let refused = set_xattrs(to, &entry.xattrs)?;
    io_error(to.set_times(entry.mtime), "set the times")?;
    Ok(refused)
}

fn open_directory(at: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, EntryError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    io_error(rustix::fs::openat(at, name, flags, Mode::empty()), "open the directory")
}

/// Gives a directory the metadata of an entry and no other attributes.
pub(super) fn set_directory_metadata(
    root: &Rootfs,
    at: BorrowedFd<'_>,
    name: &[u8],
    entry: &Entry,
    owner: Option<Owner>,
) -> Result<Refused, EntryError> {
    let directory = open_directory(at, name)?;
    let to = root.entry(&at, name).opened(&directory);
    clear_xattrs(&to, &entry.xattrs)?;
    set_metadata(&to, entry, owner.unwrap_or(entry.owner))
}

/// Takes away the attributes that are not in `kept`, except those of overlayfs and of security modules.
fn clear_xattrs(directory: &DirectoryEntry<'_>, kept: &Xattrs) -> Result<(), EntryError> {
    for key in io_error(directory.xattrs(), "read the extended attributes")?.into_keys() {
        let ours = !key.starts_with(b"trusted.overlay.")
            && !key.starts_with(b"user.overlay.")
            && (!key.starts_with(b"security.") || key == b"security.capability");
        if ours && !kept.contains_key(&key) {
            io_error(directory.remove_xattr(&key), "remove an extended attribute")?;
        }
    }
    Ok(())
}

/// Makes an existing directory what one without an entry is: 0755, of `owner`, from 1970.
pub(super) fn reset_directory(
    root: &Rootfs,
    at: BorrowedFd<'_>,
    name: &[u8],
    owner: Owner,
) -> Result<(), EntryError> {
    let directory = open_directory(at, name)?;
    let to = root.entry(&at, name).opened(&directory);
    clear_xattrs(&to, &Xattrs::new())?;
    io_error(to.set_owner(owner), "set the owner")?;
    io_error(to.set_mode(0o755), "set the mode")?;
    io_error(to.set_times(Timestamp::default()), "set the times")
}
