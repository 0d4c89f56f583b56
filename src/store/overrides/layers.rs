//! Layers that are stacked: the overrides of the lower ones that are still seen through the upper one, and its own.
//!
//! The upper layer is a directory as overlayfs keeps it: whiteouts are character devices 0:0, and an opaque directory
//! hides what lower layers have in it (kernel documentation: `filesystems/overlayfs.rst`).

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::OFlags;

use super::moved::{self, Missing};
use super::{ATTRIBUTES, at, changed, keeps_its_group, shown};
use crate::layer::Marks;
use crate::rootfs::visit::open_exact;
use crate::rootfs::{
    Caller, FileKind, GuestPath, Learned, Metadata, Override, Overrides, Rootfs, RootfsError, metadata_at,
    xattr_at,
};

/// The overrides of `lower` with a layer on top that was unpacked into `upper` and says of all its entries itself what
/// they are: `own`.
///
/// # Errors
/// When `upper` cannot be read.
pub(in crate::store) fn stacked(
    lower: &Arc<Overrides>,
    upper: &Rootfs,
    own: Arc<Overrides>,
    marks: Marks,
) -> Result<Arc<Overrides>, RootfsError> {
    if lower.is_empty() {
        return Ok(own);
    }
    let mut sight = Sight::new(upper, marks);
    let mut changes = Learned::new();
    for (path, _) in lower.iter() {
        if sight.of(path)? != Seen::Below {
            changes.insert(path.clone(), None);
        }
    }
    changes.extend(own.iter().map(|(path, held)| (path.clone(), Some(held.clone()))));
    Ok(changed(lower, changes))
}

/// What overrides hold after something wrote to an overlay.
#[derive(Debug)]
pub struct Written {
    /// Those of the whole tree.
    pub all: Arc<Overrides>,
    /// Which of `all` are about entries of the upper directory.
    own: Vec<GuestPath>,
}

impl Written {
    /// Those of the upper directory alone.
    #[must_use]
    pub fn own(&self) -> Overrides {
        let own = self.own.iter();
        own.filter_map(|path| Some((path.clone(), self.all.get(path)?.clone()))).collect()
    }
}

/// The overrides of an overlay after something wrote to it: of the tree `lower`, what is left of `overrides`, and what
/// was `learned` while this program itself made entries. `upper` is the overlay's upper directory, `lower` shows what is
/// below that as the disk does.
///
/// An override of an entry that was copied up goes with it, also where it was renamed, as far as that can be seen; one of
/// an entry that was made anew does not:
///
/// | entry in the upper directory | is the lower one, copied up, if |
/// |---|---|
/// | directory | it is not opaque |
/// | file | overlayfs marked it (`origin`), or its mode shows that somebody kept what it was; see `keeps_its_group` |
/// | file that had several names below | kind, mode and owner are as before: overlayfs marks no such file |
/// | placeholder of a device | it is still one |
/// | symbolic link | it has the same target |
/// | FIFO | always |
///
/// Programs that replace a file by a new one which they give the same owner and mode see, and keep, no more than what the
/// disk shows. Of a renamed directory overlayfs makes a copy, whose entries are new.
///
/// # Errors
/// When either tree cannot be read.
pub fn written(
    overrides: &Arc<Overrides>,
    learned: Learned,
    upper: &Rootfs,
    lower: &Rootfs,
    marks: Marks,
) -> Result<Written, RootfsError> {
    let caller = Caller::current();
    let mut sight = Sight::new(upper, marks);
    let mut changes = Learned::new();
    let mut own = Vec::new();
    let mut missing = Vec::new();
    // Files that a step may have given further names.
    let mut linked = BTreeMap::new();
    for (path, held) in overrides.iter().filter(|(path, _)| !learned.contains_key(*path)) {
        match sight.of(path)? {
            Seen::Below => {}
            Seen::Nowhere => {
                changes.insert(path.clone(), None);
                missing.push(path);
            }
            Seen::Above(now) => {
                let kept = held.is_of(&now) && is_the_same(path, held, &now, &Trees { upper, lower, marks })?;
                if !kept {
                    missing.push(path);
                }
                let kept = if kept { held.settled(&now, &caller) } else { None };
                if let Some(kept) = &kept {
                    own.push(path.clone());
                    if now.links > 1 && now.kind != FileKind::Directory {
                        linked.insert(now.inode, kept.clone());
                    }
                }
                if kept.as_ref() != Some(held) {
                    changes.insert(path.clone(), kept);
                }
            }
        }
    }
    let mut missing = Missing::of(&missing, overrides, lower)?;
    let is_known = |path: &GuestPath| learned.contains_key(path) || own.binary_search(path).is_ok();
    for (path, held) in moved::find(&mut missing, &linked, &is_known, &Trees { upper, lower, marks })? {
        changes.insert(path.clone(), Some(held));
        own.push(path);
    }
    own.extend(learned.iter().filter(|(_, held)| held.is_some()).map(|(path, _)| path.clone()));
    changes.extend(learned);
    Ok(Written { all: changed(overrides, changes), own })
}

/// Both sides of an overlay.
pub(super) struct Trees<'a> {
    pub(super) upper: &'a Rootfs,
    pub(super) lower: &'a Rootfs,
    pub(super) marks: Marks,
}

/// Whether the entry at `path` of the upper directory, which is as `now`, is the lower one that `held` is about.
fn is_the_same(
    path: &GuestPath,
    held: &Override,
    now: &Metadata,
    trees: &Trees<'_>,
) -> Result<bool, RootfsError> {
    match now.kind {
        FileKind::Symlink => Ok(trees.upper.read_link(path)? == trees.lower.read_link(path)?),
        FileKind::File if !held.is_device() => {
            let (directory, name) = trees.upper.parent(path)?;
            if at(is_copied_up(&directory, &name, trees.marks), ATTRIBUTES, path)? {
                return Ok(true);
            }
            let before = shown(trees.lower, path)?;
            let several = before.is_some_and(|before| before.links > 1);
            Ok(held.fits(now) && (several || keeps_its_group(now.mode)))
        }
        _ => Ok(true),
    }
}

/// Whether overlayfs copied the file `name` up, or moved it: it notes from where, which no new file has.
pub(super) fn is_copied_up(directory: &impl AsFd, name: &[u8], marks: Marks) -> io::Result<bool> {
    let key = [marks.prefix(), b"origin"].concat();
    Ok(xattr_at(directory.as_fd(), name, &key)?.is_some())
}

/// What is seen at a path of a lower layer.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    /// What the lower layer has.
    Below,
    /// Nothing, or what the upper layer has instead of the lower one's.
    Nowhere,
    /// What the upper layer has where the lower layer's would be seen without; of a directory, that it is merged with.
    Above(Metadata),
}

/// How the upper layer treats what is in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Directory {
    /// It has no such directory.
    Absent,
    /// What it does not have itself is seen.
    Merged,
    /// Nothing of the lower layers is seen.
    Hidden,
}

/// Looks at paths of lower layers through an upper one, one after the other in their order: what is known of the
/// directories above is not asked again.
struct Sight<'a> {
    upper: &'a Rootfs,
    marks: Marks,
    /// The directories on the way to the last path, from the root.
    above: Vec<(GuestPath, Directory)>,
    /// The last of them that was opened.
    open: Option<(GuestPath, OwnedFd)>,
}

impl<'a> Sight<'a> {
    fn new(upper: &'a Rootfs, marks: Marks) -> Self {
        Self { upper, marks, above: vec![(GuestPath::root(), Directory::Merged)], open: None }
    }

    fn of(&mut self, path: &GuestPath) -> Result<Seen, RootfsError> {
        let Some((parent, name)) = path.parent().zip(path.file_name()) else {
            return Ok(Seen::Above(at(metadata_at(self.upper.as_fd(), b"."), "read metadata of", path)?));
        };
        match self.directory(&parent)? {
            Directory::Absent => Ok(Seen::Below),
            Directory::Hidden => Ok(Seen::Nowhere),
            Directory::Merged => self.entry(path, &parent, name),
        }
    }

    /// What the upper layer does with the entries of `path`.
    fn directory(&mut self, path: &GuestPath) -> Result<Directory, RootfsError> {
        self.above
            .truncate(self.above.iter().take_while(|(above, _)| path.starts_with(above)).count().max(1));
        let known = self.above.last().map_or_else(GuestPath::root, |(above, _)| above.clone());
        let more = path.components().skip(known.components().count());
        let mut current = known;
        let mut state = self.above.last().map_or(Directory::Merged, |(_, state)| *state);
        for name in more.map(<[u8]>::to_vec).collect::<Vec<_>>() {
            let next = current.child(&name);
            if state == Directory::Merged {
                state = match self.entry(&next, &current, &name)? {
                    Seen::Below => Directory::Absent,
                    Seen::Above(metadata) if metadata.kind == FileKind::Directory => Directory::Merged,
                    Seen::Above(_) | Seen::Nowhere => Directory::Hidden,
                };
            }
            self.above.push((next.clone(), state));
            current = next;
        }
        Ok(state)
    }

    /// What is seen at `path`, the entry `name` of the merged directory `parent`.
    fn entry(&mut self, path: &GuestPath, parent: &GuestPath, name: &[u8]) -> Result<Seen, RootfsError> {
        let directory = match self.open.take() {
            Some((open, directory)) if open == *parent => directory,
            _ => {
                at(open_exact(self.upper.as_fd(), parent, OFlags::PATH | OFlags::DIRECTORY), "open", parent)?
            }
        };
        let seen = match metadata_at(directory.as_fd(), name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Seen::Below,
            Err(error) => at(Err(error), "read metadata of", path)?,
            Ok(metadata) if metadata.is_overlay_whiteout() => Seen::Nowhere,
            Ok(metadata) if metadata.kind == FileKind::Directory => {
                let opaque = at(xattr_at(directory.as_fd(), name, self.marks.opaque()), ATTRIBUTES, path)?;
                if opaque.is_some_and(|value| value == b"y") { Seen::Nowhere } else { Seen::Above(metadata) }
            }
            Ok(metadata) => Seen::Above(metadata),
        };
        self.open = Some((parent.clone(), directory));
        Ok(seen)
    }
}
