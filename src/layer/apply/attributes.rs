//! Giving a file the metadata of its entry.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::{Owners, Rules, io_error};
use crate::layer::EntryError;
use crate::layer::tar::{Entry, EntryKind};
use crate::rootfs::{Attribute, DirectoryEntry, Escaped, Owner, Rootfs, Timestamp, Xattrs};

/// What the file system or the kernel refused to do for one entry. A layer with attributes that mean nothing here is still
/// usable; what is lost is reported.
#[derive(Default)]
pub(super) struct Refused {
    /// The owner, and why.
    pub(super) owner: Option<(Owner, Errno)>,
    /// The mode with the set-user-ID or set-group-ID bits that were left out for it.
    pub(super) set_id: Option<u32>,
    /// Attributes, and why.
    pub(super) xattrs: Vec<(Vec<u8>, Errno)>,
}

impl Refused {
    /// Takes the outcome of setting an owner.
    fn owner(&mut self, owner: Owner, owners: Owners, result: io::Result<()>) -> Result<(), EntryError> {
        let Err(error) = result else { return Ok(()) };
        match Errno::from_io_error(&error) {
            // The second where a user namespace has no such owner, or the file system none at all.
            Some(reason @ (Errno::PERM | Errno::INVAL | Errno::OPNOTSUPP)) if owners != Owners::Required => {
                self.owner = Some((owner, reason));
                Ok(())
            }
            _ => io_error(Err(error), "set the owner"),
        }
    }

    /// The mode that a file may have after [`Refused::owner`].
    fn mode(&mut self, mode: u32, owners: Owners) -> u32 {
        const SET_ID: u32 = 0o6000;
        let foreign = self.owner.is_some() || owners == Owners::Mapped;
        if foreign && mode & SET_ID != 0 {
            self.set_id = Some(mode);
            return mode & !SET_ID;
        }
        mode
    }

    fn xattrs(&mut self, to: &DirectoryEntry<'_>, xattrs: &Xattrs) -> Result<(), EntryError> {
        for (key, value) in xattrs {
            match to.set_xattr(key, value) {
                Err(error)
                    if matches!(Errno::from_io_error(&error), Some(Errno::OPNOTSUPP | Errno::PERM)) =>
                {
                    self.xattrs.push((key.clone(), Errno::from_io_error(&error).unwrap_or(Errno::PERM)));
                }
                result => result.map_err(|source| EntryError::Attribute {
                    key: Escaped::new(key),
                    size: value.len(),
                    source,
                })?,
            }
        }
        Ok(())
    }
}

/// Sets what an entry of the archive says about one of the tree, but with `mode`: the owner first, as that clears setuid
/// bits and capabilities, then the attributes, as long as the mode allows it, the times last.
pub(super) fn set_metadata(
    to: &DirectoryEntry<'_>,
    entry: &Entry,
    mode: u32,
    rules: &Rules,
) -> Result<Refused, EntryError> {
    let owner = rules.owner.unwrap_or(entry.owner);
    let mut refused = Refused::default();
    refused.owner(owner, rules.owners, to.set_owner(owner))?;
    refused.xattrs(to, &entry.xattrs)?;
    if entry.kind != EntryKind::Symlink {
        // On directories these bits give nobody any rights.
        let mode = if entry.kind == EntryKind::Directory { mode } else { refused.mode(mode, rules.owners) };
        io_error(to.set_mode(mode), "set the mode")?;
    }
    io_error(to.set_times(entry.mtime), "set the times")?;
    Ok(refused)
}

fn open_directory(at: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, EntryError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    io_error(rustix::fs::openat(at, name, flags, Mode::empty()), "open the directory")
}

/// Gives a directory `mode`, everything else of an entry, and no other attributes.
pub(super) fn set_directory_metadata(
    root: &Rootfs,
    at: BorrowedFd<'_>,
    name: &[u8],
    entry: &Entry,
    mode: u32,
    rules: &Rules,
) -> Result<Refused, EntryError> {
    let directory = open_directory(at, name)?;
    let to = root.entry(&at, name).opened(&directory);
    clear_xattrs(&to, &entry.xattrs)?;
    set_metadata(&to, entry, mode, rules)
}

/// Takes away the attributes of an image that are not in `kept`.
fn clear_xattrs(directory: &DirectoryEntry<'_>, kept: &Xattrs) -> Result<(), EntryError> {
    for key in io_error(directory.xattrs(), "read the extended attributes")?.into_keys() {
        if Attribute::of(&key) == Attribute::Image && !kept.contains_key(&key) {
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
    owners: Owners,
) -> Result<(), EntryError> {
    let directory = open_directory(at, name)?;
    let to = root.entry(&at, name).opened(&directory);
    clear_xattrs(&to, &Xattrs::new())?;
    // What is root's for want of an entry is nothing that a layer asked for.
    Refused::default().owner(owner, owners, to.set_owner(owner))?;
    io_error(to.set_mode(0o755), "set the mode")?;
    io_error(to.set_times(Timestamp::default()), "set the times")
}
