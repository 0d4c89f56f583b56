//! Giving a directory the metadata that it has in another tree, as a layer's directories have them from the layers below.

use std::io;
use std::os::fd::AsFd;

use rustix::io::Errno;

use super::changes::of_image;
use crate::rootfs::{
    GuestPath, Owner, Rootfs, metadata_of, set_mode_at, set_owner_at, set_times_at, set_xattr_at, xattrs_at,
};

/// For whom metadata are copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recipient {
    /// Whoever owns the directory there: all of it is copied, or it is an error.
    Owner,
    /// Root, whoever owns the directory there, which may be a user that this process cannot name. Attributes that are
    /// refused here (an access control list may name such users as well) are left out, as COPY does it.
    Root,
}

/// Gives the directory `path` of `to` the owner, unless root is to have it, mode, attributes and modification time that it
/// has in `from`, on disk and beyond. No component of the path may be a link in either.
///
/// # Errors
/// When either has no such directory, or its metadata cannot be read or set.
pub fn copy_metadata(from: &Rootfs, to: &Rootfs, path: &GuestPath, recipient: Recipient) -> io::Result<()> {
    let open = |tree: &Rootfs| {
        let directory = tree.exact_directory(path).map_err(io::Error::other)?;
        directory.ok_or_else(|| io::Error::from(Errno::NOENT))
    };
    let (model, directory) = (open(from)?, open(to)?);
    let metadata = metadata_of(&model)?;
    let owner = match recipient {
        Recipient::Owner => metadata.owner,
        Recipient::Root => Owner::ROOT,
    };
    set_owner_at(directory.as_fd(), b".", owner)?;
    set_mode_at(directory.as_fd(), b".", metadata.mode)?;
    for (key, value) in of_image(&xattrs_at(model.as_fd(), b".")?) {
        match set_xattr_at(directory.as_fd(), b".", key, value) {
            Err(error) if recipient == Recipient::Root && is_refusal(&error) => {}
            result => result?,
        }
    }
    if recipient == Recipient::Owner {
        to.set_override(path.clone(), from.override_of(path))?;
    }
    set_times_at(directory.as_fd(), b".", metadata.mtime)
}

/// Whether an attribute is one that this process or file system cannot set, rather than one for which there is no room.
fn is_refusal(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::PERM | Errno::ACCESS | Errno::INVAL | Errno::OPNOTSUPP))
}
