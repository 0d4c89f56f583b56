//! The content of a directory, at any depth that Linux can name, with a bounded number of descriptors.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::vec::IntoIter;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::entry::{self, Place};
use super::{Copier, CopyError, child, tried};
use crate::rootfs::{FileKind, Follow, GuestPath, Metadata, Rootfs, metadata_at};

/// How many directories on the way down keep their descriptors; those further down are opened again on the way back.
const OPEN_LEVELS: usize = 64;

/// Merges the content of the directory `source` into the directory `target`; both are real paths. Metadata of the two is
/// left alone, that of all directories below is taken over.
pub(super) fn copy(copier: &mut Copier<'_>, source: &GuestPath, target: &GuestPath) -> Result<(), CopyError> {
    let mut walk = Walk { copier, levels: Vec::new(), links: BTreeMap::new() };
    let directory = walk.copier.request.from.root.open_path(source, Follow::No).map_err(CopyError::Source)?;
    walk.enter(source.clone(), target.clone(), None, directory)?;
    while let Some(level) = walk.levels.last_mut() {
        match level.entries.next() {
            Some((name, _)) => walk.entry(&name)?,
            None => walk.leave()?,
        }
    }
    Ok(())
}

struct Walk<'c, 'a> {
    copier: &'c mut Copier<'a>,
    levels: Vec<Level>,
    /// Where files with several names were copied to, by device and inode.
    links: BTreeMap<((u32, u32), u64), GuestPath>,
}

/// A directory that is being copied.
struct Level {
    source: GuestPath,
    target: GuestPath,
    /// What the target is to have; none for the top, whose metadata is not taken over.
    metadata: Option<Metadata>,
    entries: IntoIter<(Vec<u8>, FileKind)>,
    state: State,
    open: Open,
}

/// Whether the target is there. A directory that is ignored is made only when something in it is not.
#[derive(Clone, Copy, PartialEq)]
enum State {
    Awaited,
    Made,
}

struct Open {
    source: Option<OwnedFd>,
    target: Option<OwnedFd>,
}

impl Walk<'_, '_> {
    /// Copies one entry of the last level, or makes it the last level.
    fn entry(&mut self, name: &[u8]) -> Result<(), CopyError> {
        let from = self.copier.request.from;
        let Some(level) = self.levels.last_mut() else { return Ok(()) };
        let (source, target) = (child(&level.source, name)?, child(&level.target, name)?);
        let directory =
            opened(&mut level.open.source, from.root, &level.source).map_err(CopyError::Source)?;
        let metadata = match metadata_at(directory.as_fd(), name) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(CopyError::Changed { path: source });
            }
            result => from.root.reveal(&source, tried(result, "read metadata of", &source)?),
        };
        let is_directory = metadata.kind == FileKind::Directory;
        let excluded = from.ignore.is_some_and(|rules| rules.excludes(source.relative()));
        let may_hold = || from.ignore.is_none_or(|rules| rules.may_include_below(source.relative()));
        if excluded && !(is_directory && may_hold()) {
            return Ok(());
        }
        if is_directory {
            let directory = match open_directory(directory, name) {
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                    return Err(CopyError::Changed { path: source });
                }
                result => tried(result, "open", &source)?,
            };
            self.enter(source, target, Some(metadata), directory)?;
            return if excluded { Ok(()) } else { self.make_directories() };
        }
        self.make_directories()?;
        self.file(name, &source, &metadata, &target)
    }

    /// Makes `source`, which is open as `directory`, the last level.
    fn enter(
        &mut self,
        source: GuestPath,
        target: GuestPath,
        metadata: Option<Metadata>,
        directory: OwnedFd,
    ) -> Result<(), CopyError> {
        let again = tried(directory.try_clone(), "open", &source)?;
        let listed = Rootfs::from_fd(again).read_dir(&GuestPath::root());
        let entries = listed.map_err(CopyError::Source)?.into_iter();
        if self.levels.len() > OPEN_LEVELS
            && let Some(above) = self.levels.last_mut()
        {
            above.open.source = None;
        }
        let state = if metadata.is_some() { State::Awaited } else { State::Made };
        let open = Open { source: Some(directory), target: None };
        self.levels.push(Level { source, target, metadata, entries, state, open });
        Ok(())
    }

    fn file(
        &mut self,
        name: &[u8],
        source: &GuestPath,
        metadata: &Metadata,
        target: &GuestPath,
    ) -> Result<(), CopyError> {
        let Some(level) = self.levels.last_mut() else { return Ok(()) };
        let from = opened(&mut level.open.source, self.copier.request.from.root, &level.source)
            .map_err(CopyError::Source)?;
        let to = opened(&mut level.open.target, self.copier.onto, &level.target)
            .map_err(CopyError::Destination)?;
        let from = Place { directory: from, name, path: source };
        let to = Place { directory: to, name, path: target };
        if metadata.kind == FileKind::File && metadata.links > 1 {
            let file = (metadata.device, metadata.inode);
            if let Some(first) = self.links.get(&file) {
                return link(self.copier, first, metadata, &to);
            }
            self.links.insert(file, target.clone());
        }
        entry::copy(self.copier, &from, metadata, &to)
    }

    /// Makes the targets of all levels that wait for it.
    fn make_directories(&mut self) -> Result<(), CopyError> {
        let first =
            self.levels.iter().rposition(|level| level.state == State::Made).map_or(0, |last| last + 1);
        for index in first..self.levels.len() {
            let (above, below) = self.levels.split_at_mut(index);
            let (Some(parent), Some(level)) = (above.last_mut(), below.first_mut()) else { continue };
            let directory = opened(&mut parent.open.target, self.copier.onto, &parent.target)
                .map_err(CopyError::Destination)?;
            let name = level.target.file_name().unwrap_or_default();
            let to = Place { directory, name, path: &level.target };
            match to.metadata()? {
                None => tried(to.entry(self.copier.onto).make_directory(), "make directory", to.path)?,
                Some(metadata) if metadata.kind == FileKind::Directory => {}
                Some(_) => return Err(CopyError::CannotCopyToNonDirectory { path: level.target.clone() }),
            }
            level.open.target = Some(tried(open_directory(directory, name), "open", to.path)?);
            level.state = State::Made;
            if index > OPEN_LEVELS {
                parent.open.target = None;
            }
        }
        Ok(())
    }

    /// Ends the last level: its target has all entries, so its own metadata holds from now on.
    fn leave(&mut self) -> Result<(), CopyError> {
        let Some(level) = self.levels.pop() else { return Ok(()) };
        let (Some(metadata), Some(parent), State::Made) =
            (level.metadata, self.levels.last_mut(), level.state)
        else {
            return Ok(());
        };
        let root = self.copier.request.from.root;
        let from = opened(&mut parent.open.source, root, &parent.source).map_err(CopyError::Source)?;
        let to = opened(&mut parent.open.target, self.copier.onto, &parent.target)
            .map_err(CopyError::Destination)?;
        let from = Place {
            directory: from,
            name: level.source.file_name().unwrap_or_default(),
            path: &level.source,
        };
        let to =
            Place { directory: to, name: level.target.file_name().unwrap_or_default(), path: &level.target };
        let attributes = entry::attributes_of(self.copier, &from, &metadata);
        entry::set_attributes(&to.entry(self.copier.onto), &attributes, to.path)
    }
}

/// Another name for a file of this tree that was copied already.
fn link(
    copier: &mut Copier<'_>,
    first: &GuestPath,
    metadata: &Metadata,
    to: &Place<'_>,
) -> Result<(), CopyError> {
    entry::make_room(to)?;
    let (directory, name) = copier.onto.parent(first).map_err(CopyError::Destination)?;
    let first = copier.onto.entry(&directory, &name);
    tried(to.entry(copier.onto).make_link(&first), "link", to.path)?;
    copier.done.files += 1;
    copier.done.bytes += metadata.size;
    Ok(())
}

fn open_directory(above: &OwnedFd, name: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(above, name, flags, Mode::empty())
}

/// The descriptor of `path`, opened if it is not.
fn opened<'s>(
    slot: &'s mut Option<OwnedFd>,
    root: &Rootfs,
    path: &GuestPath,
) -> Result<&'s OwnedFd, crate::rootfs::RootfsError> {
    match slot {
        Some(open) => Ok(open),
        None => Ok(slot.insert(root.open_path(path, Follow::No)?)),
    }
}
