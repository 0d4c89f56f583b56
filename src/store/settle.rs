//! Making a layer that was unpacked alone equal to one that was applied to the layers below it.

use std::os::fd::AsFd;

use crate::layer::{Applied, Recipient, apply::remove_whiteouts, copy_metadata};
use crate::rootfs::{FileKind, GuestPath, Rootfs, RootfsError, at, keeping_mtime, remove_tree};

/// Whether a layer says what its root is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RootEntry {
    /// It does.
    Present,
    /// The root stays as the layers below have it.
    Missing,
}

/// What became of the attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Settled {
    /// The layer can be stacked.
    Done,
    /// What the layer means depends on what is below it; it must be applied anew to that.
    ReachesBelow,
}

/// Settles the layer `root`, which was unpacked alone, with the tree `lower` of the layers below it, as [`Applied`]
/// says. Nothing has been changed if the layer reaches below.
///
/// # Errors
/// When either cannot be read, or the layer not be changed.
pub(super) fn settle(
    root: &Rootfs,
    applied: &Applied,
    lower: &Rootfs,
    entry: RootEntry,
) -> Result<Settled, RootfsError> {
    if applied.opaque_root || !applied.missing_links.is_empty() {
        return Ok(Settled::ReachesBelow);
    }
    let kind_in = |tree: &Rootfs, path| Ok(tree.exact_metadata(path)?.map(|metadata| metadata.kind));
    let mut inheriting = Vec::new();
    for path in &applied.implied {
        match kind_in(lower, path)? {
            None => {}
            Some(FileKind::Directory) => inheriting.push(path),
            Some(_) => return Ok(Settled::ReachesBelow),
        }
    }
    // An earlier entry of the layer would have gone through a link there.
    for path in &applied.hidden {
        if kind_in(lower, path)?.is_some_and(|kind| kind != FileKind::Directory) {
            return Ok(Settled::ReachesBelow);
        }
    }
    // Children come after their parents: from the back, what is removed is empty but for whiteouts.
    for path in applied.only_whiteouts.iter().rev() {
        if inheriting.binary_search(&path).is_err() {
            remove(root, path)?;
        }
    }
    for path in &applied.with_whiteouts {
        let merged = kind_in(lower, path)? == Some(FileKind::Directory);
        if !merged && kind_in(root, path)? == Some(FileKind::Directory) {
            remove_whiteouts(root, path)?;
        }
    }
    for path in inheriting {
        // Later entries may have put something else there.
        let is_there = kind_in(root, path)? == Some(FileKind::Directory);
        if is_there && applied.own_entry_later.binary_search(path).is_err() {
            at(copy_metadata(lower, root, path, Recipient::Owner), "set the metadata of", path)?;
        }
    }
    if entry == RootEntry::Missing {
        let path = GuestPath::root();
        at(copy_metadata(lower, root, &path, Recipient::Owner), "set the metadata of", &path)?;
    }
    Ok(Settled::Done)
}

/// Removes an entry without a trace in the directory it is in.
pub(super) fn remove(root: &Rootfs, path: &GuestPath) -> Result<(), RootfsError> {
    let (parent, name) = root.parent(path)?;
    at(keeping_mtime(&parent, || remove_tree(parent.as_fd(), &name)), "remove", path)
}
