//! What counts as a change, and how changes become a changeset.
//!
//! What counts is what BuildKit's overlay differ and continuity's `fs.Changes` take for a change, and beyond it: all
//! extended attributes rather than `security.capability` alone, modification times of directories, and the content of
//! every file that may have been written to and looks the same.

use std::collections::{BTreeMap, BTreeSet};

use super::Change;
use super::apply::WHITEOUT_PREFIX;
use super::packed::{Mark, Packed};
use crate::rootfs::guest_path::MAX_PATH;
use crate::rootfs::{Attribute, FileKind, GuestPath, Metadata, Owner, Xattrs};

/// A change that no layer can hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unrecordable {
    /// A path that no system call takes.
    #[error("the path `{parent}/{}` is longer than {MAX_PATH} bytes", name.escape_ascii())]
    PathTooLong {
        /// Its directory.
        parent: GuestPath,
        /// Its last component.
        name: Vec<u8>,
    },
    /// A name that means something else in a layer (OCI image-spec `layer.md`, Whiteouts).
    #[error(
        "the step made or changed `{path}`, but layers mark removed files by names that begin with `.wh.`"
    )]
    WhiteoutName {
        /// The path.
        path: GuestPath,
    },
}

/// The entry `name` of the directory `parent`.
///
/// # Errors
/// [`Unrecordable::PathTooLong`].
pub fn child_of(parent: &GuestPath, name: &[u8]) -> Result<GuestPath, Unrecordable> {
    if parent.as_bytes().len() + 1 + name.len() > MAX_PATH {
        return Err(Unrecordable::PathTooLong { parent: parent.clone(), name: name.to_vec() });
    }
    Ok(parent.child(name))
}

/// Whether an entry for `path` would be taken for a removed name. Further up in a path the prefix means nothing, so a base
/// may well have files in such a directory.
#[must_use]
pub fn is_reserved(path: &GuestPath) -> bool {
    path.file_name().is_some_and(|name| name.starts_with(WHITEOUT_PREFIX))
}

/// Refuses the names that layers have another use for.
///
/// # Errors
/// [`Unrecordable::WhiteoutName`].
pub fn check_name(path: &GuestPath) -> Result<(), Unrecordable> {
    if is_reserved(path) { Err(Unrecordable::WhiteoutName { path: path.clone() }) } else { Ok(()) }
}

/// Whether a layer can hold the entry at all. What it cannot counts as nothing: sockets, of which archives know nothing,
/// and the character device 0:0, which is a removed name to overlayfs and to everything that makes layers from its
/// directories.
#[must_use]
pub fn is_recordable(metadata: &Metadata) -> bool {
    metadata.kind != FileKind::Socket && !metadata.is_overlay_whiteout()
}

/// Whether two entries look the same, attributes and content aside.
#[must_use]
pub fn looks_the_same(new: &Metadata, old: &Metadata) -> bool {
    let facts = |of: &Metadata| (of.kind, of.mode, of.owner, of.mtime, of.rdev);
    // What the size of a directory means depends on the file system.
    facts(new) == facts(old) && (new.kind == FileKind::Directory || new.size == old.size)
}

/// What makes the root a change of its own when it differs: its modification time does after nearly every step, and layers
/// usually leave the root out.
#[derive(Debug, PartialEq, Eq)]
pub struct RootFacts<A> {
    /// Its permission bits.
    pub mode: u32,
    /// Its owner.
    pub owner: Owner,
    /// Its attributes that are part of an image ([`of_image`]), or what stands for them.
    pub attributes: A,
}

impl<A> RootFacts<A> {
    /// Those of `metadata`, with `attributes`.
    #[must_use]
    pub fn new(metadata: &Metadata, attributes: A) -> Self {
        Self { mode: metadata.mode, owner: metadata.owner, attributes }
    }
}

/// The attributes that are part of an image.
pub fn of_image(xattrs: &Xattrs) -> impl Iterator<Item = (&Vec<u8>, &Vec<u8>)> {
    xattrs.iter().filter(|(key, _)| Attribute::of(key) == Attribute::Image)
}

/// What the names of a file have in common.
#[derive(Debug, Clone, Copy)]
struct LinkedNames {
    /// Which file had the first of them before, if it looks the same.
    first: Option<u64>,
    /// Whether it is the same with all the others.
    alike: bool,
}

impl LinkedNames {
    /// A layer says that names are one file by holding them all. So when one name of a file is put, all are, even those
    /// that look as before: a file of the lower tree that got another name, for instance, and its old name is put as
    /// well. Names that look as before are a change too when they were not one file before.
    fn are_unchanged(self) -> bool {
        self.first.is_some() && self.alike
    }
}

/// Changes as they are found, in any order.
#[derive(Debug, Default)]
pub struct Collector {
    paths: Packed,
    /// Of all that is in memory, only this and the paths grow with the files.
    files: BTreeMap<u64, LinkedNames>,
}

impl Collector {
    /// The path is new or other.
    pub fn put(&mut self, path: GuestPath) {
        self.paths.push(path, Mark::Put);
    }

    /// The path is gone, or is something now that no layer can hold.
    pub fn remove(&mut self, path: GuestPath) {
        self.paths.push(path, Mark::Remove);
    }

    /// The path is one of several names of the file `inode`. If it looks as before, `unchanged` is the number of the file
    /// that had the name then.
    pub fn linked(&mut self, inode: u64, path: GuestPath, unchanged: Option<u64>) {
        self.paths.push(path, Mark::Linked(inode));
        self.merge(inode, LinkedNames { first: unchanged, alike: true });
    }

    fn merge(&mut self, inode: u64, names: LinkedNames) {
        let known = self.files.entry(inode).or_insert(names);
        known.alike &= names.alike && known.first == names.first;
    }

    /// Adds what another has found.
    pub fn absorb(&mut self, other: Self) {
        self.paths.absorb(other.paths);
        for (inode, names) in other.files {
            self.merge(inode, names);
        }
    }

    /// All of it, with the directories above.
    #[must_use]
    pub fn finish(self) -> Changeset {
        let Self { mut paths, files } = self;
        paths.close();
        let unchanged = files.into_iter().filter(|(_, names)| names.are_unchanged());
        Changeset { paths, unchanged: unchanged.map(|(inode, _)| inode).collect(), parents: Parents::Added }
    }
}

/// All differences.
#[derive(Debug, Clone, Default)]
pub struct Changeset {
    paths: Packed,
    /// Files with several names that are no change.
    unchanged: BTreeSet<u64>,
    parents: Parents,
}

/// Whether directories above a change are part of the changes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Parents {
    /// As far as they are changes of their own.
    #[default]
    AsGiven,
    /// All of them that a layer can have an entry for. What is put below others makes do with what the base has.
    Added,
}

impl Changeset {
    /// The changes in the order of their paths; a directory comes before what is below it.
    pub fn iter(&self) -> impl Iterator<Item = Change> {
        let is_change = |(_, mark): &(GuestPath, Mark)| !matches!(mark, Mark::Linked(inode) if self.unchanged.contains(inode));
        let mut before = GuestPath::root();
        self.paths.iter().filter(is_change).flat_map(move |(path, mark)| {
            let mut changes = match self.parents {
                Parents::Added => directories_between(&before, &path),
                Parents::AsGiven => Vec::new(),
            };
            before = path.clone();
            changes.push(if mark == Mark::Remove { Change::Remove(path) } else { Change::Put(path) });
            changes
        })
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }
}

/// The directories above `path` that are neither `before`, the path that comes before it, nor above that.
fn directories_between(before: &GuestPath, path: &GuestPath) -> Vec<Change> {
    let mut missing = Vec::new();
    let mut above = path.parent();
    while let Some(directory) = above.filter(|directory| !before.starts_with(directory)) {
        if !is_reserved(&directory) {
            missing.push(Change::Put(directory.clone()));
        }
        above = directory.parent();
    }
    missing.reverse();
    missing
}

impl FromIterator<Change> for Changeset {
    /// These changes and no others.
    fn from_iter<T: IntoIterator<Item = Change>>(changes: T) -> Self {
        let mut paths = Packed::default();
        for change in changes {
            match change {
                Change::Put(path) => paths.push(path, Mark::Put),
                Change::Remove(path) => paths.push(path, Mark::Remove),
            }
        }
        paths.close();
        Self { paths, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> GuestPath {
        GuestPath::clamp(text.as_bytes()).unwrap()
    }

    fn text(changes: &Changeset) -> String {
        let line = |change: Change| match change {
            Change::Put(path) => format!("+{path} "),
            Change::Remove(path) => format!("-{path} "),
        };
        changes.iter().map(line).collect()
    }

    #[test]
    fn names_of_one_file_are_put_together_or_not_at_all() {
        // Inode now, name, and the inode that had the name before if it looks the same.
        type Row<'a> = (u64, &'a str, Option<u64>);
        let cases: [(&str, &[Row<'_>], &str); 5] = [
            ("nothing else", &[(1, "a", Some(1)), (1, "b", Some(1))], ""),
            ("another file with the same names", &[(9, "a", Some(1)), (9, "b", Some(1))], ""),
            ("one more name", &[(1, "a", Some(1)), (1, "b", None)], "+/a +/b "),
            ("two files made one", &[(1, "a", Some(1)), (1, "b", Some(2))], "+/a +/b "),
            ("two groups", &[(1, "a", Some(1)), (2, "b", None), (1, "c", Some(1))], "+/b "),
        ];
        for (what, rows, expected) in cases {
            let mut all = Collector::default();
            for (inode, name, unchanged) in rows {
                let mut one = Collector::default();
                one.linked(*inode, path(name), *unchanged);
                all.absorb(one);
            }
            assert_eq!(text(&all.finish()), expected, "{what}");
        }
    }

    #[test]
    fn directories_above_a_change_are_part_of_it() {
        let mut changes = Collector::default();
        changes.remove(path("/b/c/d"));
        changes.put(path("/b/c"));
        changes.put(path("/a"));
        assert_eq!(text(&changes.finish()), "+/a +/b +/b/c -/b/c/d ");
    }
}
