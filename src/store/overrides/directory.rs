//! A step that worked in a plain directory.
//!
//! Here an entry is known by its number, and by when it was made: a number may be used again, but a time never comes
//! again. Where the file system does not say when, the number alone has to do.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::{Found, Look, at, changed, each_entry, keeps_its_group};
use crate::rootfs::{
    Caller, FileKind, GuestPath, Learned, Metadata, Override, Overrides, Rootfs, RootfsError, Timestamp,
    birth_at, metadata_at,
};
use crate::store::index::Index;

/// The overrides of the tree `root` after a step that began at `began`: what is left of `overrides`, and what was
/// `learned` while this program itself made entries. `before` knows the tree as it was then; `root` shows what the disk
/// does.
///
/// An override stays with its file, wherever that is now and whatever names it has got. A file that replaced another one
/// gets the override of that if its mode shows that somebody wanted to keep what it was ([`keeps_its_group`]), and a
/// placeholder of a device is that device, whoever made it.
///
/// # Errors
/// When the tree cannot be read.
pub(in crate::store) fn after_step(
    overrides: &Arc<Overrides>,
    learned: Learned,
    root: &Rootfs,
    before: &Index,
    began: Timestamp,
) -> Result<Arc<Overrides>, RootfsError> {
    let caller = Caller::current();
    let mut look = Look::new(root);
    let mut changes = Learned::new();
    // By number: files that may have other names now.
    let mut wanted: BTreeMap<u64, &Override> = BTreeMap::new();
    let mut replaced = Vec::new();
    let known = |path: &GuestPath| learned.contains_key(path);
    for (path, held) in overrides.iter().filter(|(path, _)| !known(path)) {
        let now = look.at(path, |directory, name| {
            Ok((metadata_at(directory, name)?, is_older(directory, name, began)?))
        })?;
        let inode = before.inode(path);
        let is_it = now.as_ref().is_some_and(|(now, older)| *older && inode == Some(now.inode));
        let (kept, linked) = match now {
            Some((now, _)) if is_it && held.is_of(&now) => {
                (held.settled(&now, &caller), now.links > 1 && now.kind != FileKind::Directory)
            }
            Some((now, _)) => {
                replaced.push((path, held, now));
                (None, false)
            }
            None => (None, false),
        };
        if let Some(inode) = inode.filter(|_| !is_it || linked) {
            wanted.insert(inode, held);
        }
        if kept.as_ref() != Some(held) {
            changes.insert(path.clone(), kept);
        }
    }
    if !wanted.is_empty() {
        each_entry(root, &mut |Found { path, directory, name, metadata }| {
            let is_named = changes.get(path).map_or_else(|| overrides.get(path).is_some(), Option::is_some);
            if let Some(held) = wanted.get(&metadata.inode)
                && !is_named
                && !known(path)
                && held.is_of(metadata)
                && at(is_older(directory.as_fd(), name, began), "read metadata of", path)?
                && let Some(held) = held.settled(metadata, &caller)
            {
                changes.insert(path.clone(), Some(held));
            }
            Ok(())
        })?;
    }
    for (path, held, now) in replaced {
        let is_open = changes.get(path).is_some_and(Option::is_none);
        if is_open && held.is_of(&now) && takes_over(held, &now) {
            changes.insert(path.clone(), held.settled(&now, &caller));
        }
    }
    changes.extend(learned);
    Ok(changed(overrides, changes))
}

/// Whether an entry was made before `time`, as far as can be known.
fn is_older(directory: BorrowedFd<'_>, name: &[u8], time: Timestamp) -> io::Result<bool> {
    Ok(birth_at(directory, name)?.is_none_or(|birth| birth < time))
}

/// Whether a new entry is to be what the one that `held` is about was.
fn takes_over(held: &Override, now: &Metadata) -> bool {
    held.is_device() || (now.kind == FileKind::File && held.fits(now) && keeps_its_group(now.mode))
}
