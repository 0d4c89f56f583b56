//! Giving a file the metadata of its entry.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use super::{Owners, Rules, io_error};
use crate::layer::EntryError;
use crate::layer::tar::{Entry, EntryKind};
use crate::rootfs::{
    Owner, Timestamp, Xattrs, remove_xattr_at, set_mode_at, set_owner_at, set_times_at, set_xattr_at,
    xattrs_at,
};

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
    fn owner(
        &mut self,
        owner: Owner,
        owners: Owners,
        result: Result<(), impl Into<io::Error>>,
    ) -> Result<(), EntryError> {
        let Err(error) = result else { return Ok(()) };
        let error = error.into();
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

    fn xattrs(
        &mut self,
        xattrs: &Xattrs,
        set: impl Fn(&[u8], &[u8]) -> io::Result<()>,
    ) -> Result<(), EntryError> {
        for (key, value) in xattrs {
            match set(key, value) {
                Err(error)
                    if matches!(Errno::from_io_error(&error), Some(Errno::OPNOTSUPP | Errno::PERM)) =>
                {
                    self.xattrs.push((key.clone(), Errno::from_io_error(&error).unwrap_or(Errno::PERM)));
                }
                result => io_error(result, "set an extended attribute")?,
            }
        }
        Ok(())
    }
}

/// Sets what an entry says about the link, device or FIFO `name` of `at`.
pub(super) fn set_metadata_at(
    at: BorrowedFd<'_>,
    name: &[u8],
    entry: &Entry,
    rules: &Rules,
) -> Result<Refused, EntryError> {
    let owner = rules.owner.unwrap_or(entry.owner);
    let mut refused = Refused::default();
    refused.owner(owner, rules.owners, set_owner_at(at, name, owner))?;
    refused.xattrs(&entry.xattrs, |key, value| set_xattr_at(at, name, key, value))?;
    if entry.kind != EntryKind::Symlink {
        let mode = refused.mode(entry.mode, rules.owners);
        io_error(set_mode_at(at, name, mode), "set the mode")?;
    }
    io_error(set_times_at(at, name, entry.mtime), "set the times")?;
    Ok(refused)
}

/// Sets what an entry says about an open file or directory: the owner first, as that clears setuid bits and
/// capabilities, then the attributes, as long as the mode allows it, the times last.
pub(super) fn set_metadata_of(
    file: &OwnedFd,
    entry: &Entry,
    mode: u32,
    rules: &Rules,
) -> Result<Refused, EntryError> {
    let owner = rules.owner.unwrap_or(entry.owner);
    let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
    let mut refused = Refused::default();
    refused.owner(owner, rules.owners, rustix::fs::fchown(file, Some(uid), Some(gid)))?;
    refused.xattrs(&entry.xattrs, |key, value| {
        Ok(rustix::fs::fsetxattr(file, key, value, XattrFlags::empty())?)
    })?;
    // On directories these bits give nobody any rights.
    let mode = if entry.kind == EntryKind::Directory { mode } else { refused.mode(mode, rules.owners) };
    io_error(rustix::fs::fchmod(file, Mode::from_raw_mode(mode)), "set the mode")?;
    let time = Timespec { tv_sec: entry.mtime.seconds, tv_nsec: entry.mtime.nanoseconds.into() };
    let times = Timestamps { last_access: time, last_modification: time };
    io_error(rustix::fs::futimens(file, &times), "set the times")?;
    Ok(refused)
}

fn open_directory(at: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, EntryError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    io_error(rustix::fs::openat(at, name, flags, Mode::empty()), "open the directory")
}

/// Gives a directory `mode`, everything else of an entry, and no other attributes.
pub(super) fn set_directory_metadata(
    at: BorrowedFd<'_>,
    name: &[u8],
    entry: &Entry,
    mode: u32,
    rules: &Rules,
) -> Result<Refused, EntryError> {
    let directory = open_directory(at, name)?;
    clear_xattrs(&directory, &entry.xattrs)?;
    set_metadata_of(&directory, entry, mode, rules)
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
pub(super) fn reset_directory(
    at: BorrowedFd<'_>,
    name: &[u8],
    owner: Owner,
    owners: Owners,
) -> Result<(), EntryError> {
    let directory = open_directory(at, name)?;
    clear_xattrs(&directory, &Xattrs::new())?;
    let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
    // What is root's for want of an entry is nothing that a layer asked for.
    Refused::default().owner(owner, owners, rustix::fs::fchown(&directory, Some(uid), Some(gid)))?;
    io_error(rustix::fs::fchmod(&directory, Mode::from_raw_mode(0o755)), "set the mode")?;
    io_error(set_times_at(directory.as_fd(), b".", Timestamp::default()), "set the times")
}
