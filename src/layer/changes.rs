//! What counts as a change, and how changes become a changeset.
//!
//! What counts is what BuildKit's overlay differ and continuity's `fs.Changes` take for a change, and beyond it: all
//! extended attributes rather than `security.capability` alone, modification times of directories, and the content of
//! every file that may have been written to and looks the same.

use std::collections::{BTreeMap, BTreeSet};

use super::apply::WHITEOUT_PREFIX;
use super::{Change, Changeset, is_overlay_attribute};
use crate::rootfs::guest_path::MAX_PATH;
use crate::rootfs::{FileKind, GuestPath, Metadata, Xattrs, belongs_to_the_file};

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
    #[error("the step made `{path}`, but layers mark removed files by names that begin with `.wh.`")]
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

/// Refuses the names that layers have another use for.
///
/// # Errors
/// [`Unrecordable::WhiteoutName`].
pub fn check_name(path: &GuestPath) -> Result<(), Unrecordable> {
    let reserved = path.file_name().is_some_and(|name| name.starts_with(WHITEOUT_PREFIX));
    if reserved { Err(Unrecordable::WhiteoutName { path: path.clone() }) } else { Ok(()) }
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

/// Whether an attribute is part of an image: the machine's are not, nor overlayfs' own.
#[must_use]
pub fn is_of_image(key: &[u8]) -> bool {
    belongs_to_the_file(key) && !is_overlay_attribute(key)
}

/// The attributes that are part of an image.
pub fn of_image(xattrs: &Xattrs) -> impl Iterator<Item = (&Vec<u8>, &Vec<u8>)> {
    xattrs.iter().filter(|(key, _)| is_of_image(key))
}

/// One name of a file with several.
#[derive(Debug)]
struct Linked {
    path: GuestPath,
    /// Which file had this name before, if it looks the same.
    unchanged: Option<u64>,
}

/// Changes as they are found, in any order.
#[derive(Debug, Default)]
pub struct Collector {
    /// One list, sorted in the end: of all that is in memory, only this grows with every file.
    changes: Vec<Change>,
    links: BTreeMap<u64, Vec<Linked>>,
}

impl Collector {
    /// The path is new or other.
    pub fn put(&mut self, path: GuestPath) {
        self.changes.push(Change::Put(path));
    }

    /// The path is gone, or is something now that no layer can hold.
    pub fn remove(&mut self, path: GuestPath) {
        self.changes.push(Change::Remove(path));
    }

    /// The path is one of several names of the file `inode`. If it looks as before, `unchanged` is the number of the file
    /// that had the name then.
    pub fn linked(&mut self, inode: u64, path: GuestPath, unchanged: Option<u64>) {
        self.links.entry(inode).or_default().push(Linked { path, unchanged });
    }

    /// All paths that are new or other, those with several names among them whether they are or not.
    pub fn put_paths(&self) -> impl Iterator<Item = &GuestPath> {
        let put = self.changes.iter().filter_map(|change| match change {
            Change::Put(path) => Some(path),
            Change::Remove(_) => None,
        });
        put.chain(self.links.values().flatten().map(|linked| &linked.path))
    }

    /// Adds what another has found.
    pub fn absorb(&mut self, other: Self) {
        if self.changes.is_empty() {
            self.changes = other.changes;
        } else {
            self.changes.extend(other.changes);
        }
        for (inode, mut linked) in other.links {
            self.links.entry(inode).or_default().append(&mut linked);
        }
    }

    /// All of it, with the directories above.
    #[must_use]
    pub fn finish(mut self) -> Changeset {
        self.settle_links();
        self.add_parents();
        Changeset(self.changes)
    }

    /// A layer says that names are one file by holding them all. So when one name of a file is put, all are, even those
    /// that look as before: a file of the lower tree that got another name, for instance, and its old name is put as
    /// well. Names that look as before are a change too when they were not one file before.
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
        // A path may be other for more than one reason.
        self.changes.dedup();
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

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> GuestPath {
        GuestPath::clamp(text.as_bytes()).unwrap()
    }

    fn text(changes: &Changeset) -> String {
        let line = |change: &Change| match change {
            Change::Put(path) => format!("+{path} "),
            Change::Remove(path) => format!("-{path} "),
        };
        changes.0.iter().map(line).collect()
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
