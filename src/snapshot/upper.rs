//! The changes that the upper directory of an overlay stands for.
//!
//! Only the upper directory is walked, and of the lower tree what has the same name; in opaque directories also what the
//! lower tree had there. What counts as a change is what BuildKit's overlay differ and continuity's `fs.Changes` take
//! for one, and beyond it: all extended attributes rather than `security.capability` alone, modification times of
//! directories, and the content of every file that was copied up and looks the same.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Dir, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::layer::{Change, Changeset, Marks, is_overlay_attribute};
use crate::rootfs::{FileKind, GuestPath, Metadata, Rootfs, Xattrs, metadata_at, xattrs_at};
use crate::store::unpacked::Likeness;

use super::SnapshotError;

/// Longest path of an entry, as in [`GuestPath::parse`].
const LONGEST_PATH: usize = 4096;

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

/// What was found in an upper directory.
#[derive(Debug)]
pub(super) struct Found {
    /// The changes.
    pub(super) changes: Changeset,
    /// How many entries were looked at.
    pub(super) visited: u64,
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
    walk.settle_links();
    walk.add_parents();
    Ok(Found { changes: Changeset(walk.changes), visited: walk.visited, likeness: walk.likeness })
}

struct Walk<'a> {
    upper: &'a Rootfs,
    lower: &'a Rootfs,
    marks: Marks,
    pending: Vec<(GuestPath, Below)>,
    /// One list, sorted in the end: of all that is in memory, only this grows with every file.
    changes: Vec<Change>,
    links: BTreeMap<u64, Vec<Linked>>,
    visited: u64,
    likeness: Likeness,
}

/// One name of a file with several.
struct Linked {
    path: GuestPath,
    /// Which file the lower tree has under this name, if it looks the same.
    unchanged: Option<u64>,
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
            changes: Vec::new(),
            links: BTreeMap::new(),
            visited: 0,
            likeness: Likeness::Equal,
        }
    }

    /// The root is a change of its own only if its owner, mode or attributes differ: its modification time does after
    /// nearly every step, and layers usually leave the root out.
    fn root(&mut self, path: &GuestPath) -> Result<Below, SnapshotError> {
        let read = |tree: &Rootfs| {
            let mut xattrs = xattrs_at(tree.as_fd(), b".")?;
            tree.reveal_xattrs(path, &mut xattrs);
            Ok((tree.reveal(path, metadata_at(tree.as_fd(), b".")?), xattrs))
        };
        let (new, new_xattrs) = read(self.upper).map_err(compare(path))?;
        let (old, old_xattrs) = read(self.lower).map_err(compare(path))?;
        let same =
            (new.mode, new.owner) == (old.mode, old.owner) && of_image(&new_xattrs).eq(of_image(&old_xattrs));
        if !same {
            self.changes.push(Change::Put(path.clone()));
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
        let upper = open(self.upper, path, OFlags::DIRECTORY).map_err(compare(path))?;
        let lower = match below {
            Below::Nothing => None,
            _ => Some(open(self.lower, path, OFlags::DIRECTORY).map_err(compare(path))?),
        };
        let names = names_in(&upper).map_err(compare(path))?;
        for name in &names {
            let child = child_of(path, name)?;
            let lower = lower.as_ref().map(|directory| Place { tree: self.lower, directory, name });
            self.entry(child, &Place { tree: self.upper, directory: &upper, name }, lower, below)?;
        }
        if let Some(lower) = lower.filter(|_| below == Below::Hidden) {
            for name in names_in(&lower).map_err(compare(path))? {
                self.visited += 1;
                if names.binary_search(&name).is_err() {
                    self.changes.push(Change::Remove(child_of(path, &name)?));
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
            Some(result) => Some(result.map_err(compare(&path))?),
        };
        // Whiteouts, and what a layer cannot hold: at most the lower entry is gone.
        if new.kind == FileKind::Socket {
            self.likeness = Likeness::Other;
        }
        if new.is_overlay_whiteout() || new.kind == FileKind::Socket {
            if old.is_some() {
                self.changes.push(Change::Remove(path));
            }
            return Ok(());
        }
        if upper.name.starts_with(b".wh.") {
            return Err(SnapshotError::WhiteoutName { path });
        }
        let new = self.upper.reveal(&path, new);
        let lower = lower.zip(old.map(|old| self.lower.reveal(&path, old)));
        if new.kind == FileKind::Directory {
            return self.subdirectory(path, upper, &new, lower, below);
        }
        let old_inode = lower.as_ref().map(|(_, old)| old.inode);
        let same = match &lower {
            Some((lower, old)) => same(&path, (upper, &new), (lower, old)).map_err(compare(&path))?,
            None => false,
        };
        if new.links > 1 {
            let unchanged = old_inode.filter(|_| same);
            self.links.entry(new.inode).or_default().push(Linked { path, unchanged });
        } else if !same {
            self.changes.push(Change::Put(path));
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
                self.changes.push(Change::Put(path.clone()));
                Below::Nothing
            }
            Some((lower, old)) => {
                let xattrs = upper.xattrs(&path).map_err(compare(&path))?;
                let below = self.below(&path, &xattrs, parent)?;
                if !same_metadata(new, &old)
                    || !of_image(&xattrs).eq(of_image(&lower.xattrs(&path).map_err(compare(&path))?))
                {
                    self.changes.push(Change::Put(path.clone()));
                }
                below
            }
        };
        self.pending.push((path, below));
        Ok(())
    }

    /// A layer says that names are one file by holding them all. So when one name of a file is put, all are, even those
    /// that look as before: a file of the lower tree that got another name, for instance, was copied up, and its old
    /// name is put as well. Names that look as before are a change too when they were not one file before.
    fn settle_links(&mut self) {
        for group in std::mem::take(&mut self.links).into_values() {
            let first = group[0].unchanged;
            if first.is_none() || group.iter().any(|linked| linked.unchanged != first) {
                self.changes.extend(group.into_iter().map(|linked| Change::Put(linked.path)));
            }
        }
    }

    /// Sorts the changes and adds the directories above them.
    fn add_parents(&mut self) {
        let by_path = |a: &Change, b: &Change| a.path().cmp(b.path());
        self.changes.sort_unstable_by(by_path);
        let mut parents: BTreeSet<GuestPath> = BTreeSet::new();
        for change in &self.changes {
            let mut parent = change.path().parent();
            while let Some(path) = parent.filter(|path| !path.is_root() && !parents.contains(path)) {
                parent = path.parent();
                parents.insert(path);
            }
        }
        let known = self.changes.len();
        for path in parents {
            if self.changes[..known].binary_search_by(|change| change.path().cmp(&path)).is_err() {
                self.changes.push(Change::Put(path));
            }
        }
        self.changes.sort_unstable_by(by_path);
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

fn child_of(parent: &GuestPath, name: &[u8]) -> Result<GuestPath, SnapshotError> {
    if parent.as_bytes().len() + 1 + name.len() > LONGEST_PATH {
        return Err(SnapshotError::PathTooLong { parent: parent.clone(), name: name.to_vec() });
    }
    Ok(parent.child(name))
}

/// Opens `path` of `tree`, no component of which may be a link.
fn open(tree: &Rootfs, path: &GuestPath, flags: OFlags) -> io::Result<OwnedFd> {
    let name = if path.is_root() { b"." } else { path.relative() };
    let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    loop {
        match rustix::fs::openat2(tree, name, flags, Mode::empty(), resolve) {
            Err(Errno::INTR | Errno::AGAIN) => {}
            result => return Ok(result?),
        }
    }
}

/// The names in `directory`, sorted.
fn names_in(directory: &OwnedFd) -> io::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(name.to_vec());
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// The attributes that are part of an image. Security labels are the host's, and overlayfs has its own.
fn of_image(xattrs: &Xattrs) -> impl Iterator<Item = (&Vec<u8>, &Vec<u8>)> {
    let hosts: [&[u8]; 4] = [b"security.selinux", b"security.ima", b"security.evm", b"security.apparmor"];
    xattrs.iter().filter(move |(key, _)| !is_overlay_attribute(key) && !hosts.contains(&key.as_slice()))
}

fn same_metadata(new: &Metadata, old: &Metadata) -> bool {
    let facts = |of: &Metadata| (of.kind, of.mode, of.owner, of.mtime, of.rdev);
    // What the size of a directory means depends on the file system.
    facts(new) == facts(old) && (new.kind == FileKind::Directory || new.size == old.size)
}

/// Whether an entry that is no directory is what it was, though it was copied up: opening it for writing, or setting
/// what was set already, does that.
fn same(
    path: &GuestPath,
    (upper, new): (&Place<'_>, &Metadata),
    (lower, old): (&Place<'_>, &Metadata),
) -> io::Result<bool> {
    if !same_metadata(new, old) || !of_image(&upper.xattrs(path)?).eq(of_image(&lower.xattrs(path)?)) {
        return Ok(false);
    }
    match new.kind {
        FileKind::Symlink => Ok(upper.target()? == lower.target()?),
        FileKind::File if new.size > 0 => same_content(upper.open()?, lower.open()?),
        _ => Ok(true),
    }
}

fn same_content(mut new: File, mut old: File) -> io::Result<bool> {
    let (mut left, mut right) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        let count = new.read(&mut left)?;
        if count == 0 {
            return Ok(old.read(&mut right)? == 0);
        }
        match old.read_exact(&mut right[..count]) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            result => result?,
        }
        if left[..count] != right[..count] {
            return Ok(false);
        }
    }
}
