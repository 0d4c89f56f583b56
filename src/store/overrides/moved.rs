//! Files that a step on an overlay renamed, or gave further names.
//!
//! Of a renamed file overlayfs keeps that it comes from a lower layer, but not from where. Inside a user namespace the mark `origin` of a file is empty, and elsewhere it names a number, not a path. So a file
//! with that mark at a place where no lower layer has one is compared with the lower files that are gone: renaming
//! changes neither content nor mode, owner and modification time.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};

use rustix::fs::OFlags;

use super::layers::{Trees, is_copied_up};
use super::{Found, at, each_entry, shown};
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
    by_likeness: BTreeMap<Likeness, Vec<(&'a GuestPath, &'a Override)>>,
}

impl<'a> Missing<'a> {
    /// Those among `paths` that overlayfs would mark.
    pub(super) fn of(
        paths: &[&'a GuestPath],
        overrides: &'a Overrides,
        lower: &Rootfs,
    ) -> Result<Self, RootfsError> {
        let mut by_likeness: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for path in paths {
            // An override of what had been gone before tells nothing.
            if let (Some(held), Some(before)) = (overrides.get(path), shown(lower, path)?)
                && before.kind == FileKind::File
                && before.links == 1
                && held.is_of(&before)
            {
                by_likeness.entry(likeness(&before)).or_default().push((*path, held));
            }
        }
        Ok(Self { by_likeness })
    }
}

/// Finds where `missing` files are now, and other names for the files in `linked`, by number. Paths that are `known` need
/// not be looked at, but for what they hold may come from elsewhere.
pub(super) fn find(
    missing: &Missing<'_>,
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
            && let Some(candidates) = missing.by_likeness.get(&likeness(metadata))
            && at(is_copied_up(*directory, name, trees.marks), path)?
            && !is_in_place(path, metadata, trees)?
            && let Some(held) = origin_of(path, candidates, trees)?
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

/// The override that all candidates with the content of `path` have.
fn origin_of<'a>(
    path: &GuestPath,
    candidates: &[(&GuestPath, &'a Override)],
    trees: &Trees<'_>,
) -> Result<Option<&'a Override>, RootfsError> {
    let mut origin: Option<&Override> = None;
    for (candidate, held) in candidates {
        if origin == Some(*held) || !same_content(trees.upper, path, trees.lower, candidate)? {
            continue;
        }
        if origin.is_some() {
            return Ok(None);
        }
        origin = Some(held);
    }
    Ok(origin)
}

fn same_content(
    upper: &Rootfs,
    new: &GuestPath,
    lower: &Rootfs,
    old: &GuestPath,
) -> Result<bool, RootfsError> {
    let open = |tree: &Rootfs, path| Ok(File::from(tree.open_file(path, OFlags::NOFOLLOW, 0)?));
    let (mut new_file, mut old_file) = (open(upper, new)?, open(lower, old)?);
    let (mut left, mut right) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        let count = at(read_full(&mut new_file, &mut left), new)?;
        if at(read_full(&mut old_file, &mut right), old)? != count || left[..count] != right[..count] {
            return Ok(false);
        }
        if count < left.len() {
            return Ok(true);
        }
    }
}

/// Reads until `buffer` is full or the file ends.
fn read_full(file: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
