//! The visible content of a directory, entry by entry, at any depth that Linux can name, with a bounded number of
//! descriptors.

use std::os::fd::{AsFd, OwnedFd};
use std::vec::IntoIter;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::entry::Place;
use super::filter::{Cause, Filter, Presence, Standing};
use super::{CopyError, SourceTree, child, tried};
use crate::rootfs::{FileKind, Follow, GuestPath, Metadata, Rootfs, metadata_at};

/// How many directories on the way down keep their descriptors; those further down are opened again on the way back.
pub(super) const OPEN_LEVELS: usize = 64;

/// Who is shown a directory's content, in the order of names, each directory in front of what is in it. A directory that
/// is not copied itself is shown only when something in it is.
pub(super) trait Visitor {
    /// A directory. All that comes before it is left is in it.
    fn enter(&mut self, directory: &Place<'_>, metadata: &Metadata) -> Result<(), CopyError>;

    /// Anything else.
    fn file(&mut self, file: &Place<'_>, metadata: &Metadata) -> Result<(), CopyError>;

    /// The end of the directory that was entered last.
    fn leave(&mut self, directory: &Place<'_>, metadata: &Metadata, role: Role) -> Result<(), CopyError>;
}

/// Why a directory is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// It is to be copied.
    Copied,
    /// The instruction asks only for something in it.
    OnTheWay,
}

/// Shows `visitor` what `filter` lets through of the directory `top`, a real path; not that directory itself.
pub(super) fn walk(
    from: &SourceTree<'_>,
    filter: &Filter<'_>,
    top: &GuestPath,
    visitor: &mut dyn Visitor,
) -> Result<(), CopyError> {
    let mut walk = Walk { from, filter, visitor, levels: Vec::new() };
    let directory = from.root.open_path(top, Follow::No).map_err(CopyError::Source)?;
    walk.descend(top.clone(), None, filter.top(top), directory)?;
    while let Some(level) = walk.levels.last_mut() {
        match level.entries.next() {
            Some((name, kind)) => walk.entry(&name, kind)?,
            None => walk.ascend()?,
        }
    }
    Ok(())
}

struct Walk<'w, 'a> {
    from: &'w SourceTree<'a>,
    filter: &'w Filter<'a>,
    visitor: &'w mut dyn Visitor,
    levels: Vec<Level>,
}

/// A directory on the way down.
struct Level {
    path: GuestPath,
    /// None for the top.
    metadata: Option<(Metadata, Role)>,
    standing: Standing,
    entries: IntoIter<(Vec<u8>, FileKind)>,
    state: State,
    open: Option<OwnedFd>,
}

/// Whether the directory was shown.
#[derive(Clone, Copy, PartialEq)]
enum State {
    Awaited,
    Shown,
}

impl Walk<'_, '_> {
    /// Shows one entry of the last level, or makes it the last level.
    fn entry(&mut self, name: &[u8], kind: FileKind) -> Result<(), CopyError> {
        let from = self.from;
        let Some(level) = self.levels.last_mut() else { return Ok(()) };
        let path = child(&level.path, name)?;
        // Before anything else is asked about it: most of a large tree may be left out.
        let (presence, standing) = self.filter.look(&path, kind, level.standing);
        if presence == Presence::Absent {
            return Ok(());
        }
        let directory = opened(&mut level.open, from.root, &level.path).map_err(CopyError::Source)?;
        let metadata = match metadata_at(directory.as_fd(), name) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(CopyError::Changed { path });
            }
            result => from.root.reveal(&path, tried(result, "read metadata of", &path)?),
        };
        if (metadata.kind == FileKind::Directory) != (kind == FileKind::Directory) {
            return Err(CopyError::Changed { path });
        }
        if kind == FileKind::Directory {
            let directory = match open_directory(directory, name) {
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                    return Err(CopyError::Changed { path });
                }
                result => tried(result, "open", &path)?,
            };
            let role = match presence {
                Presence::OnTheWay(Cause::NotAsked) => Role::OnTheWay,
                _ => Role::Copied,
            };
            self.descend(path, Some((metadata, role)), standing, directory)?;
            return if presence == Presence::Copied { self.show_directories() } else { Ok(()) };
        }
        self.show_directories()?;
        let Some(level) = self.levels.last_mut() else { return Ok(()) };
        let directory = opened(&mut level.open, from.root, &level.path).map_err(CopyError::Source)?;
        self.visitor.file(&Place { directory, name, path: &path }, &metadata)
    }

    /// Makes `path`, which is open as `directory`, the last level.
    fn descend(
        &mut self,
        path: GuestPath,
        metadata: Option<(Metadata, Role)>,
        standing: Standing,
        directory: OwnedFd,
    ) -> Result<(), CopyError> {
        let entries = match self.filter.only_entry(&path, standing) {
            Some(name) => match metadata_at(directory.as_fd(), name) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
                result => vec![(name.to_vec(), tried(result, "read metadata of", &path)?.kind)],
            },
            None => {
                let again = tried(directory.try_clone(), "open", &path)?;
                Rootfs::from_fd(again).read_dir(&GuestPath::root()).map_err(CopyError::Source)?
            }
        };
        if self.levels.len() > OPEN_LEVELS
            && let Some(above) = self.levels.last_mut()
        {
            above.open = None;
        }
        let state = if metadata.is_some() { State::Awaited } else { State::Shown };
        let entries = entries.into_iter();
        self.levels.push(Level { path, metadata, standing, entries, state, open: Some(directory) });
        Ok(())
    }

    /// Shows all levels that wait for it.
    fn show_directories(&mut self) -> Result<(), CopyError> {
        let first =
            self.levels.iter().rposition(|level| level.state == State::Shown).map_or(0, |last| last + 1);
        for index in first..self.levels.len() {
            let (above, below) = self.levels.split_at_mut(index);
            let (Some(parent), Some(level)) = (above.last_mut(), below.first_mut()) else { continue };
            let Some((metadata, _)) = &level.metadata else { continue };
            let directory =
                opened(&mut parent.open, self.from.root, &parent.path).map_err(CopyError::Source)?;
            let name = level.path.file_name().unwrap_or_default();
            self.visitor.enter(&Place { directory, name, path: &level.path }, metadata)?;
            level.state = State::Shown;
            if index > OPEN_LEVELS {
                parent.open = None;
            }
        }
        Ok(())
    }

    /// Ends the last level.
    fn ascend(&mut self) -> Result<(), CopyError> {
        let Some(level) = self.levels.pop() else { return Ok(()) };
        let (Some((metadata, role)), Some(parent), State::Shown) =
            (level.metadata, self.levels.last_mut(), level.state)
        else {
            return Ok(());
        };
        let directory = opened(&mut parent.open, self.from.root, &parent.path).map_err(CopyError::Source)?;
        let name = level.path.file_name().unwrap_or_default();
        self.visitor.leave(&Place { directory, name, path: &level.path }, &metadata, role)
    }
}

/// Opens the directory `name` of `above` as a place; a link there is not followed.
pub(super) fn open_directory(above: &OwnedFd, name: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(above, name, flags, Mode::empty())
}

/// The descriptor of `path`, opened if it is not.
pub(super) fn opened<'s>(
    slot: &'s mut Option<OwnedFd>,
    root: &Rootfs,
    path: &GuestPath,
) -> Result<&'s OwnedFd, crate::rootfs::RootfsError> {
    match slot {
        Some(open) => Ok(open),
        None => Ok(slot.insert(root.open_path(path, Follow::No)?)),
    }
}
