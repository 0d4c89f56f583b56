//! The changes that the upper directory of an overlay stands for.
//!
//! Only the upper directory is walked, and of the lower tree what has the same name; in opaque directories also what the
//! lower tree had there. What counts as a change is said in [`crate::layer::changes`]. Every file that was copied up and
//! looks the same is read.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

use crate::layer::changes::{
    Collector, RootFacts, check_name, child_of, is_recordable, looks_the_same, of_image,
};
use crate::layer::{Changeset, Marks};
use crate::rootfs::content;
use crate::rootfs::visit::{Names, open_exact};
use crate::rootfs::{FileKind, GuestPath, Metadata, Rootfs, Xattrs, metadata_at, xattrs_at};
use crate::store::unpacked::Likeness;

use super::SnapshotError;

/// What the lower tree has where the upper one has a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Below {
    /// No directory: everything is new.
    Nothing,
    /// A directory whose entries are still there unless the upper directory says otherwise.
    Merged,
    /// A directory whose entries are gone unless the upper directory has them.
    Hidden,
}

/// What was found in an upper directory, and how much was looked at for it.
#[derive(Debug)]
pub(super) struct Found {
    /// The changes.
    pub(super) changes: Changeset,
    /// How many entries were looked at.
    pub(super) visited: u64,
    /// How many files were read.
    pub(super) opened: u64,
    /// Whether a layer with these changes unpacks to what the directory holds.
    pub(super) likeness: Likeness,
}

/// The changes in `upper`, the upper directory of an overlay over the tree `lower`. Nothing may write to either meanwhile.
pub(super) fn changes(upper: &Rootfs, lower: &Rootfs, marks: Marks) -> Result<Found, SnapshotError> {
    let mut walk = Walk::new(upper, lower, marks);
    let root = GuestPath::root();
    let below = walk.root(&root)?;
    walk.pending.push((root, below));
    // One directory at a time, by its path: neither descriptors nor recursion grow with the depth.
    while let Some((path, below)) = walk.pending.pop() {
        walk.directory(&path, below)?;
    }
    let Walk { changes, visited, opened, likeness, .. } = walk;
    Ok(Found { changes: changes.finish(), visited, opened, likeness })
}

struct Walk<'a> {
    upper: &'a Rootfs,
    lower: &'a Rootfs,
    marks: Marks,
    pending: Vec<(GuestPath, Below)>,
    changes: Collector,
    visited: u64,
    opened: u64,
    likeness: Likeness,
}

/// An entry of an open directory of either tree.
struct Place<'a> {
    tree: &'a Rootfs,
    directory: &'a OwnedFd,
    name: &'a [u8],
}

impl<'a> Walk<'a> {
    fn new(upper: &'a Rootfs, lower: &'a Rootfs, marks: Marks) -> Self {
        Self {
            upper,
            lower,
            marks,
            pending: Vec::new(),
            changes: Collector::default(),
            visited: 0,
            opened: 0,
            likeness: Likeness::Equal,
        }
    }

    fn root(&mut self, path: &GuestPath) -> Result<Below, SnapshotError> {
        let read = |tree: &Rootfs| {
            let mut xattrs = xattrs_at(tree.as_fd(), b".")?;
            tree.reveal_xattrs(path, &mut xattrs);
            Ok((tree.reveal(path, metadata_at(tree.as_fd(), b".")?), xattrs))
        };
        let (new, new_xattrs) = read(self.upper).map_err(compare(path))?;
        let (old, old_xattrs) = read(self.lower).map_err(compare(path))?;
        let attributes = |xattrs| of_image(xattrs).collect::<Vec<_>>();
        if RootFacts::new(&new, attributes(&new_xattrs)) != RootFacts::new(&old, attributes(&old_xattrs)) {
            self.changes.put(path.clone());
            // No layer has an entry for it.
            self.likeness = Likeness::Other;
        }
        self.below(path, &new_xattrs, Below::Merged)
    }

    /// How the directory `path`, over one of the lower tree, relates to that: `parent` does for all below it.
    fn below(&self, path: &GuestPath, xattrs: &Xattrs, parent: Below) -> Result<Below, SnapshotError> {
        let redirect = [self.marks.prefix(), b"redirect"].concat();
        if xattrs.contains_key(&redirect) {
            return Err(SnapshotError::Redirected { path: path.clone() });
        }
        let opaque = xattrs.get(self.marks.opaque()).is_some_and(|value| value == b"y");
        Ok(if opaque { Below::Hidden } else { parent })
    }

    fn directory(&mut self, path: &GuestPath, below: Below) -> Result<(), SnapshotError> {
        let open = |tree: &Rootfs| open_exact(tree.as_fd(), path, OFlags::DIRECTORY).map_err(compare(path));
        let upper = open(self.upper)?;
        let lower = match below {
            Below::Nothing => None,
            _ => Some(open(self.lower)?),
        };
        let names = Names::in_directory(upper.as_fd()).map_err(compare(path))?;
        for name in names.iter() {
            let child = child_of(path, name)?;
            let lower = lower.as_ref().map(|directory| Place { tree: self.lower, directory, name });
            self.entry(child, &Place { tree: self.upper, directory: &upper, name }, lower, below)?;
        }
        if let Some(lower) = lower.filter(|_| below == Below::Hidden) {
            for name in Names::in_directory(lower.as_fd()).map_err(compare(path))?.iter() {
                self.visited += 1;
                if names.contain(name) {
                    continue;
                }
                let child = child_of(path, name)?;
                let old = Place { tree: self.lower, directory: &lower, name }
                    .metadata()
                    .map_err(compare(&child))?;
                if is_recordable(&old) {
                    self.changes.remove(child);
                }
            }
        }
        Ok(())
    }

    fn entry(
        &mut self,
        path: GuestPath,
        upper: &Place<'_>,
        lower: Option<Place<'_>>,
        below: Below,
    ) -> Result<(), SnapshotError> {
        self.visited += 1;
        let new = upper.metadata().map_err(compare(&path))?;
        let old = match lower.as_ref().map(Place::metadata) {
            None => None,
            Some(Err(error)) if error.kind() == io::ErrorKind::NotFound => None,
            Some(result) => Some(result.map_err(compare(&path))?).filter(is_recordable),
        };
        // Whiteouts, and what a layer cannot hold: at most the lower entry is gone.
        if new.kind == FileKind::Socket {
            self.likeness = Likeness::Other;
        }
        if !is_recordable(&new) {
            if old.is_some() {
                self.changes.remove(path);
            }
            return Ok(());
        }
        let new = self.upper.reveal(&path, new);
        let lower = lower.zip(old.map(|old| self.lower.reveal(&path, old)));
        if new.kind == FileKind::Directory {
            return self.subdirectory(path, upper, &new, lower, below);
        }
        check_name(&path)?;
        let old_inode = lower.as_ref().map(|(_, old)| old.inode);
        let same = match &lower {
            Some((lower, old)) => self.same(&path, (upper, &new), (lower, old)).map_err(compare(&path))?,
            None => false,
        };
        if new.links > 1 {
            self.changes.linked(new.inode, path, old_inode.filter(|_| same));
        } else if !same {
            self.changes.put(path);
        }
        Ok(())
    }

    fn subdirectory(
        &mut self,
        path: GuestPath,
        upper: &Place<'_>,
        new: &Metadata,
        lower: Option<(Place<'_>, Metadata)>,
        parent: Below,
    ) -> Result<(), SnapshotError> {
        let below = match lower.filter(|(_, old)| old.kind == FileKind::Directory) {
            None => {
                check_name(&path)?;
                self.changes.put(path.clone());
                Below::Nothing
            }
            Some((lower, old)) => {
                let xattrs = upper.xattrs(&path).map_err(compare(&path))?;
                let below = self.below(&path, &xattrs, parent)?;
                if !looks_the_same(new, &old)
                    || !of_image(&xattrs).eq(of_image(&lower.xattrs(&path).map_err(compare(&path))?))
                {
                    check_name(&path)?;
                    self.changes.put(path.clone());
                }
                below
            }
        };
        self.pending.push((path, below));
        Ok(())
    }

    /// Whether an entry that is no directory is what it was, though it was copied up: opening it for writing, or setting
    /// what was set already, does that.
    fn same(
        &mut self,
        path: &GuestPath,
        (upper, new): (&Place<'_>, &Metadata),
        (lower, old): (&Place<'_>, &Metadata),
    ) -> io::Result<bool> {
        if !looks_the_same(new, old) || !of_image(&upper.xattrs(path)?).eq(of_image(&lower.xattrs(path)?)) {
            return Ok(false);
        }
        match new.kind {
            FileKind::Symlink => Ok(upper.target()? == lower.target()?),
            FileKind::File if new.size > 0 => {
                self.opened += 1;
                content::same(&upper.open()?, &lower.open()?)
            }
            _ => Ok(true),
        }
    }
}

impl Place<'_> {
    /// What the disk shows.
    fn metadata(&self) -> io::Result<Metadata> {
        metadata_at(self.directory.as_fd(), self.name)
    }

    /// All attributes of the entry, whose path is `path`.
    fn xattrs(&self, path: &GuestPath) -> io::Result<Xattrs> {
        let mut xattrs = xattrs_at(self.directory.as_fd(), self.name)?;
        self.tree.reveal_xattrs(path, &mut xattrs);
        Ok(xattrs)
    }

    fn target(&self) -> io::Result<Vec<u8>> {
        Ok(rustix::fs::readlinkat(self.directory, self.name, Vec::new())?.into_bytes())
    }

    fn open(&self) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(self.directory, self.name, flags, Mode::empty())?.into())
    }
}

fn compare(path: &GuestPath) -> impl FnOnce(io::Error) -> SnapshotError {
    let path = path.clone();
    move |cause| SnapshotError::Compare { path, cause }
}
