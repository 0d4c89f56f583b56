//! Making a layer that was unpacked alone equal to one that was applied to the layers below it.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::layer::Applied;
use crate::rootfs::{
    FileKind, Follow, GuestPath, Metadata, Rootfs, RootfsError, metadata_at, metadata_of, set_times_at,
    xattr_at,
};

use super::mount::{Marks, copy_metadata};

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

/// Settles the layer `root`, which was unpacked alone, with the tree `lower` of the layers below it.
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
    let mut inheriting = Vec::new();
    for path in &applied.implied {
        match find(lower, path)?.map(|metadata| metadata.kind) {
            None if applied.only_whiteouts.binary_search(path).is_ok() => return Ok(Settled::ReachesBelow),
            None => {}
            Some(FileKind::Directory) => inheriting.push(path),
            Some(_) => return Ok(Settled::ReachesBelow),
        }
    }
    for path in &applied.hidden {
        if applied.only_whiteouts.binary_search(path).is_ok()
            || find(lower, path)?.is_some_and(|metadata| metadata.kind != FileKind::Directory)
        {
            return Ok(Settled::ReachesBelow);
        }
    }
    for path in inheriting {
        let replaced = find(root, path)?.is_none_or(|metadata| metadata.kind != FileKind::Directory);
        if !replaced && applied.own_entry_later.binary_search(path).is_err() {
            at(copy_metadata(lower, root, path), "set the metadata of", path)?;
        }
    }
    if entry == RootEntry::Missing {
        at(copy_metadata(lower, root, &GuestPath::root()), "set the metadata of", &GuestPath::root())?;
    }
    if applied.whiteouts > 0 {
        remove_idle_whiteouts(root, lower)?;
    }
    Ok(Settled::Done)
}

fn at<T>(result: io::Result<T>, action: &'static str, path: &GuestPath) -> Result<T, RootfsError> {
    result.map_err(|source| RootfsError::Io { action, path: path.clone(), source })
}

/// What `tree` has at `path`, if no component before the last is a link.
fn find(tree: &Rootfs, path: &GuestPath) -> Result<Option<Metadata>, RootfsError> {
    let name = if path.is_root() { b"." } else { path.relative() };
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    match rustix::fs::openat2(tree, name, flags, Mode::empty(), resolve) {
        Ok(found) => at(metadata_of(found), "read metadata of", path).map(Some),
        // A link above it: this layer has a directory in its place, or it would be among the implied ones too.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(error) => at(Err(error.into()), "find", path),
    }
}

/// Removes the whiteouts that hide nothing. Overlayfs looks for whiteouts only where it merges directories: in others it
/// lists them, and then finds nothing under the name it listed.
fn remove_idle_whiteouts(root: &Rootfs, lower: &Rootfs) -> Result<(), RootfsError> {
    let opaque = Marks::usual().opaque();
    let mut pending = vec![(GuestPath::root(), true)];
    while let Some((path, merged)) = pending.pop() {
        let directory = root.open_path(&path, Follow::No)?;
        let mtime = at(metadata_of(&directory), "read metadata of", &path)?.mtime;
        let mut removed = false;
        for (name, kind) in root.read_dir(&path)? {
            let child = path.child(&name);
            let below = if merged { lower.metadata(&child, Follow::No)? } else { None };
            match kind {
                FileKind::Directory => {
                    let mark = at(xattr_at(directory.as_fd(), &name, opaque), "read attributes of", &child)?;
                    let is_merged =
                        below.is_some_and(|below| below.kind == FileKind::Directory) && mark.is_none();
                    pending.push((child, is_merged));
                }
                FileKind::CharDevice if below.is_none() => {
                    let found = at(metadata_at(directory.as_fd(), &name), "read metadata of", &child)?;
                    if found.is_overlay_whiteout() {
                        let gone = rustix::fs::unlinkat(&directory, name.as_slice(), AtFlags::empty());
                        at(gone.map_err(io::Error::from), "remove the whiteout", &child)?;
                        removed = true;
                    }
                }
                _ => {}
            }
        }
        if removed {
            at(set_times_at(directory.as_fd(), b".", mtime), "set the times of", &path)?;
        }
    }
    Ok(())
}
