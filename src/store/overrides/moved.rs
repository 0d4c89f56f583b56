//! Files that a step on an overlay renamed, or gave further names.
//!
//! Of a renamed file overlayfs keeps that it comes from a lower layer, but not from where. Inside a user namespace the
//! mark `origin` of a file is empty, and elsewhere it names a number, not a path. So a file with that mark at a place where
//! no lower layer has one is compared with the lower files that are gone: renaming changes neither content nor mode, owner
//! and modification time.

use std::collections::BTreeMap;
use std::fs::File;

use rustix::fs::OFlags;

use super::super::index::{ContentHash, content_of};
use super::layers::{Trees, is_copied_up};
use super::{ATTRIBUTES, Found, at, each_entry, shown};
use crate::rootfs::content;
use crate::rootfs::{
    FileKind, GuestPath, Metadata, Override, Overrides, Owner, Rootfs, RootfsError, Timestamp,
};

/// What renaming leaves as it is, as far as the disk shows it.
type Likeness = (u64, Timestamp, u32, Owner);

fn likeness(file: &Metadata) -> Likeness {
    (file.size, file.mtime, file.mode, file.owner)
}

/// Files with overrides that are at their place no more.
pub(super) struct Missing<'a> {
    by_likeness: BTreeMap<Likeness, Alike<'a>>,
    buffer: Vec<u8>,
    /// How often the content of a file was read.
    read: u64,
}

/// Missing files that look the same: an image may have thousands, and a step rename them all.
#[derive(Default)]
struct Alike<'a> {
    files: Vec<(&'a GuestPath, &'a Override)>,
    /// By what is in a file, what it holds, unless files with that content hold different things. None as long as nobody
    /// has asked: then each file is read once.
    by_content: Option<BTreeMap<ContentHash, Option<&'a Override>>>,
}

impl<'a> Missing<'a> {
    /// Those among `paths` that overlayfs would mark.
    pub(super) fn of(
        paths: &[&'a GuestPath],
        overrides: &'a Overrides,
        lower: &Rootfs,
    ) -> Result<Self, RootfsError> {
        let mut by_likeness: BTreeMap<_, Alike<'_>> = BTreeMap::new();
        for path in paths {
            // An override of what had been gone before tells nothing.
            if let (Some(held), Some(before)) = (overrides.get(path), shown(lower, path)?)
                && before.kind == FileKind::File
                && before.links == 1
                && held.is_of(&before)
            {
                by_likeness.entry(likeness(&before)).or_default().files.push((*path, held));
            }
        }
        Ok(Self { by_likeness, buffer: Vec::new(), read: 0 })
    }

    /// Whether no file is missing that looks like `file`.
    fn is_empty_of(&self, file: &Metadata) -> bool {
        !self.by_likeness.contains_key(&likeness(file))
    }

    /// The override that all missing files have that look like `file`, which is at `path`, and have its content.
    fn origin_of(
        &mut self,
        path: &GuestPath,
        file: &Metadata,
        trees: &Trees<'_>,
    ) -> Result<Option<&'a Override>, RootfsError> {
        let Some(alike) = self.by_likeness.get_mut(&likeness(file)) else { return Ok(None) };
        self.buffer.resize(1 << 16, 0);
        let mut hash = |tree: &Rootfs, path: &GuestPath| {
            self.read += 1;
            at(content_of(&open(tree, path)?, file.size, &mut self.buffer), "read", path)
        };
        let by_content = match &mut alike.by_content {
            Some(by_content) => by_content,
            none => {
                let mut by_content = BTreeMap::new();
                for (path, held) in &alike.files {
                    let known = by_content.entry(hash(trees.lower, path)?).or_insert(Some(*held));
                    *known = known.filter(|known| known == held);
                }
                none.insert(by_content)
            }
        };
        Ok(by_content.get(&hash(trees.upper, path)?).copied().flatten())
    }
}

/// Finds where `missing` files are now, and other names for the files in `linked`, by number. Paths that are `known` need
/// not be looked at, but for what they hold may come from elsewhere.
pub(super) fn find(
    missing: &mut Missing<'_>,
    linked: &BTreeMap<u64, Override>,
    is_known: &dyn Fn(&GuestPath) -> bool,
    trees: &Trees<'_>,
) -> Result<Vec<(GuestPath, Override)>, RootfsError> {
    let mut found = Vec::new();
    if missing.by_likeness.is_empty() && linked.is_empty() {
        return Ok(found);
    }
    each_entry(trees.upper, &mut |entry| {
        let Found { path, directory, name, metadata } = entry;
        if metadata.links > 1
            && let Some(held) = linked.get(&metadata.inode)
            && !is_known(path)
        {
            found.push((path.clone(), held.clone()));
        } else if metadata.kind == FileKind::File
            && !missing.is_empty_of(metadata)
            && at(is_copied_up(*directory, name, trees.marks), ATTRIBUTES, path)?
            && !is_in_place(path, metadata, trees)?
            && let Some(held) = missing.origin_of(path, metadata, trees)?
        {
            found.push((path.clone(), held.clone()));
        }
        Ok(())
    })?;
    Ok(found)
}

/// Whether the lower layers have the file at `path`, which is as `now`, there too, so that it need not come from elsewhere.
fn is_in_place(path: &GuestPath, now: &Metadata, trees: &Trees<'_>) -> Result<bool, RootfsError> {
    match shown(trees.lower, path)? {
        Some(before) if before.kind == FileKind::File && likeness(&before) == likeness(now) => {
            same_content(trees.upper, path, trees.lower, path)
        }
        _ => Ok(false),
    }
}

fn same_content(
    upper: &Rootfs,
    new: &GuestPath,
    lower: &Rootfs,
    old: &GuestPath,
) -> Result<bool, RootfsError> {
    at(content::same(&open(upper, new)?, &open(lower, old)?), "compare the content of", new)
}

fn open(tree: &Rootfs, path: &GuestPath) -> Result<File, RootfsError> {
    Ok(File::from(tree.open_file(path, OFlags::NOFOLLOW, 0)?))
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use crate::layer::Marks;
    use crate::store::testing::settle_times;

    use super::*;

    #[test]
    fn each_file_is_read_once_however_many_are_renamed() {
        const FILES: usize = 50;
        let temporary = tempfile::tempdir().unwrap();
        let write = |name: String, content: usize| {
            let path = temporary.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, format!("{content:04}")).unwrap();
            path
        };
        let mut text = String::from("overrides 1\n");
        for number in 0..FILES {
            write(format!("lower/old-{number:02}"), number);
            writeln!(text, "/old-{number:02} f 644 0:0 644 {}:0", number + 1).unwrap();
        }
        // Two that nobody can tell apart, and hold different things.
        for number in 0..2 {
            write(format!("lower/twin-{number}"), FILES);
            writeln!(text, "/twin-{number} f 644 0:0 644 {}:0", number + 1).unwrap();
        }
        writeln!(text, "end {}", FILES + 2).unwrap();
        for number in 0..=FILES {
            let path = write(format!("upper/new-{number:02}"), FILES - number);
            let flags = rustix::fs::XattrFlags::empty();
            if rustix::fs::lsetxattr(&path, "user.overlay.origin", b"", flags).is_err() {
                return eprintln!("skipped: this file system stores no extended attributes");
            }
        }
        settle_times(temporary.path());
        let open = |name: &str| Rootfs::open(&temporary.path().join(name)).unwrap();
        let (upper, lower) = (open("upper"), open("lower"));
        let overrides = Overrides::read(&mut text.as_bytes()).unwrap();
        let paths: Vec<&GuestPath> = overrides.iter().map(|(path, _)| path).collect();
        let mut missing = Missing::of(&paths, &overrides, &lower).unwrap();
        let trees = Trees { upper: &upper, lower: &lower, marks: Marks::User };
        let mut found = find(&mut missing, &BTreeMap::new(), &|_| false, &trees).unwrap();
        found.sort_by(|(one, _), (other, _)| one.cmp(other));
        assert_eq!(found.len(), FILES);
        let path = |text: String| GuestPath::clamp(text.as_bytes()).unwrap();
        for (number, (new, held)) in (1..).zip(&found) {
            assert_eq!(*new, path(format!("/new-{number:02}")));
            let old = path(format!("/old-{:02}", FILES - number));
            assert_eq!(Some(held), overrides.get(&old), "{new}");
        }
        assert_eq!(missing.read, 2 * FILES as u64 + 3);
    }
}
