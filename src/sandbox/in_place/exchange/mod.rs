//! The container's root and the tree of a stage change places for the time of a step.
//!
//! Entries are renamed, from directory to directory, never copied by us: an image's files come back as the very files they
//! were. A directory that holds something that stays (a mount, a file of the builder) stays too, and its entries are
//! exchanged one by one; while a step runs, its own metadata are those that the image has for it.
//!
//! ```text
//!                    the container's root        builder's own: aside/        tree of the stage
//!   apart            container's files           -                            image's files
//!   exchanged        image's files               container's files            what has no place in the root
//! ```
//!
//! A step is run by an image, as root of the container. Afterwards nothing is believed of paths: all directories are held
//! open and found to be where they were, or put there.

mod back;
mod directory;

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

use self::directory::{Directory, InTree, Moved};
use super::claim::{ASIDE, Claim};
use super::error::InPlaceError;
use super::face::Face;
use super::fixed::Fixed;
use super::identity::same_mount;
use super::journal::{Entry, Journal};
use super::moving::{act, go_on};
use super::way::Way;
use crate::rootfs::remove::enter;
use crate::rootfs::visit::{Names, open_exact};
use crate::rootfs::{GuestPath, Rootfs};
use crate::sandbox::Cancel;
use crate::sandbox::indispensable::Indispensable;

/// Files that have changed places, until this ends.
pub(super) struct Exchange<'a> {
    claim: &'a Claim,
    /// Each after the one that holds it; the root is the first.
    directories: Vec<Directory>,
    anchors: Vec<Anchor>,
    /// None where somebody else has begun it.
    way: Option<Way>,
    /// None when there is nothing to be undone.
    journal: Option<Journal<'a>>,
    indispensable: Indispensable,
}

/// Something that stays: a mount, or what the builder needs.
struct Anchor {
    path: GuestPath,
    /// The position of the directory that holds it.
    parent: usize,
    held: OwnedFd,
}

const READ: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

impl<'a> Exchange<'a> {
    /// Exchanges the container's root for `tree`, but for what `fixed` says. When this fails, all is as it was; so it is
    /// soon after `cancel`.
    pub(super) fn begin(
        claim: &'a Claim,
        fixed: &Fixed,
        tree: &Rootfs,
        cancel: &Cancel,
    ) -> Result<Self, InPlaceError> {
        if !same_mount(claim.directory(), tree.as_fd()) {
            return Err(InPlaceError::Elsewhere { trees: claim.trees() });
        }
        let mut exchange = Self::nothing(claim, Some(Way::find(claim, tree.as_fd())?));
        for path in fixed.directories() {
            exchange.open(path, fixed, tree)?;
        }
        for path in fixed.iter() {
            exchange.hold(path)?;
        }
        match exchange.forth(cancel) {
            Ok(()) => Ok(exchange),
            // What keeps the container's files away is worse than what kept the image's.
            Err(error) => Err(exchange.end().err().unwrap_or(error)),
        }
    }

    /// An exchange that somebody else has begun, and written down; what a step did is not kept.
    pub(super) fn found(
        claim: &'a Claim,
        journal: Journal<'a>,
        entries: Vec<Entry>,
    ) -> Result<Self, InPlaceError> {
        let mut exchange = Self::nothing(claim, None);
        for entry in entries {
            exchange.find_again(entry)?;
        }
        exchange.journal = Some(journal);
        Ok(exchange)
    }

    fn nothing(claim: &'a Claim, way: Option<Way>) -> Self {
        let (directories, anchors, indispensable) = (Vec::new(), Vec::new(), Indispensable::new());
        Self { claim, directories, anchors, way, journal: None, indispensable }
    }

    /// Lets this process end while `body` runs: only for as long as a supervisor is there that takes over.
    pub(super) fn spared<T>(&mut self, body: impl FnOnce() -> T) -> T {
        self.indispensable.spared(body)
    }

    /// Ends it: everything goes back, what the step made to the tree. Goes on as far as possible, whatever fails.
    ///
    /// # Errors
    /// [`InPlaceError::Damaged`] if the step has laid hands on what is not the image's, else the first failure.
    pub(super) fn end(mut self) -> Result<(), InPlaceError> {
        self.back()
    }

    /// Leaves everything where it is, and this process free to end: the next builder ends it.
    pub(super) fn abandon(mut self) {
        self.journal = None;
    }

    fn open(&mut self, path: GuestPath, fixed: &Fixed, tree: &Rootfs) -> Result<(), InPlaceError> {
        let here = open_exact(self.claim.directory(), &path, READ).map_err(failed("open", &path))?;
        let face = Face::of(&here).map_err(failed("read metadata of", &path))?;
        let parent = self.position_of_parent(&path);
        let name = path.file_name().unwrap_or(b".");
        let in_tree = match parent.map(|parent| &self.directories[parent].tree) {
            None => InTree::of(tree.as_fd(), b"."),
            Some(above) => InTree::below(above, name),
        };
        let tree = in_tree.map_err(failed("look in the image for", &path))?;
        let shown = match &tree {
            InTree::Directory(tree) => Some(Face::of(tree).map_err(failed("read metadata of", &path))?),
            // As the one that a step would make.
            InTree::Absent => Some(Face::plain(face.mtime)),
            InTree::Covered => None,
        };
        let entry = Entry::new(path, fixed.iter(), face);
        let (aside, moved, is_shown) = (None, Vec::new(), false);
        self.directories.push(Directory { entry, parent, here, aside, moved, tree, shown, is_shown });
        Ok(())
    }

    fn hold(&mut self, path: &GuestPath) -> Result<(), InPlaceError> {
        let (Some(parent), Some(name)) = (self.position_of_parent(path), path.file_name()) else {
            return Ok(());
        };
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let held = rustix::fs::openat(&self.directories[parent].here, name, flags, Mode::empty());
        let held = held.map_err(|error| failed("find", path)(error.into()))?;
        self.anchors.push(Anchor { path: path.clone(), parent, held });
        Ok(())
    }

    /// The position of the directory that holds `path`: it was opened before.
    fn position_of_parent(&self, path: &GuestPath) -> Option<usize> {
        let parent = path.parent()?;
        self.directories.iter().position(|directory| directory.entry.path == parent)
    }

    fn forth(&mut self, cancel: &Cancel) -> Result<(), InPlaceError> {
        // Before anything is written down.
        go_on(cancel).map_err(failed("begin with", &GuestPath::root()))?;
        let entries = self.directories.iter().map(|directory| &directory.entry);
        let journal = Journal::begin(self.claim.private(), entries).map_err(self.claim.journal_failed())?;
        self.journal = Some(journal);
        for position in 0..self.directories.len() {
            let aside = self.make_aside(position)?;
            self.directories[position].put_aside(aside, self.claim.private(), cancel)?;
        }
        let turned = self.journal.as_mut().map_or(Ok(()), Journal::turn);
        turned.map_err(self.claim.journal_failed())?;
        for directory in &mut self.directories {
            directory.bring_in(cancel)?;
        }
        Ok(())
    }

    /// Makes the directory for what of a directory is to be aside, in that of the one that holds it.
    fn make_aside(&self, position: usize) -> Result<OwnedFd, InPlaceError> {
        let Directory { entry, parent, .. } = &self.directories[position];
        let Some(parent) = *parent else { return self.claim.make(ASIDE) };
        let above = self.directories[parent].aside.as_ref();
        let made = above.ok_or_else(|| io::ErrorKind::NotFound.into()).and_then(|above| {
            let name = entry.path.file_name().unwrap_or(b".");
            act(|| rustix::fs::mkdirat(above, name, Mode::RWXU))?;
            Ok(enter(above.as_fd(), name)?)
        });
        made.map_err(failed("put aside", &entry.path))
    }

    /// Opens a directory that a journal names, or makes it anew.
    fn find_again(&mut self, entry: Entry) -> Result<(), InPlaceError> {
        let failed = |action| failed(action, &entry.path);
        let name = entry.path.file_name().unwrap_or(b".").to_vec();
        let parent = self.position_of_parent(&entry.path);
        let (here, aside) = match parent {
            None if !entry.path.is_root() => return Err(failed("find")(io::ErrorKind::InvalidData.into())),
            None => {
                let here = open_exact(self.claim.directory(), &GuestPath::root(), READ);
                (here.map_err(failed("open"))?, enter(self.claim.private(), ASIDE.as_bytes()).ok())
            }
            Some(parent) => {
                let Directory { here, aside, .. } = &self.directories[parent];
                let opened = enter(here.as_fd(), &name).or_else(|_| {
                    rustix::fs::mkdirat(here, name.as_slice(), Mode::RWXU)?;
                    enter(here.as_fd(), &name)
                });
                let below = aside.as_ref().and_then(|aside| enter(aside.as_fd(), &name).ok());
                (opened.map_err(|error| failed("open")(error.into()))?, below)
            }
        };
        let names = aside.as_ref().map(|aside| Names::in_directory(aside.as_fd())).transpose();
        let names = names.map_err(failed("list what is aside of"))?.unwrap_or_default();
        let moved = names.iter().filter(|name| !entry.keeps(name));
        let moved = moved.map(|name| Moved { name: name.to_vec(), identity: None }).collect();
        let (tree, shown, is_shown) = (InTree::Covered, None, false);
        self.directories.push(Directory { entry, parent, here, aside, moved, tree, shown, is_shown });
        Ok(())
    }
}

impl Drop for Exchange<'_> {
    fn drop(&mut self) {
        // For the ways out that tell another failure.
        let _ = self.back();
    }
}

/// Names what was tried with `path`.
pub(super) fn failed(action: &'static str, path: &GuestPath) -> impl FnOnce(io::Error) -> InPlaceError {
    let path = path.clone();
    move |source| InPlaceError::Io { action, path, source }
}
