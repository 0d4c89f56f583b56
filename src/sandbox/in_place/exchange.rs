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

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

use super::claim::{ASIDE, Claim};
use super::error::InPlaceError;
use super::face::Face;
use super::fixed::Fixed;
use super::identity::{Identity, bring_home, is_at, same_mount};
use super::journal::{self, Entry, Phase};
use super::moving::{act, move_entry, move_lower};
use super::troubles::Troubles;
use crate::rootfs::remove::enter;
use crate::rootfs::visit::{Names, open_exact};
use crate::rootfs::{FileKind, GuestPath, Rootfs, metadata_at, remove_tree};

/// Files that have changed places, until this ends.
pub(super) struct Exchange<'a> {
    claim: &'a Claim,
    /// Each after the one that holds it; the root is the first.
    directories: Vec<Directory>,
    anchors: Vec<Anchor>,
    /// None when there is nothing to be undone.
    phase: Option<Phase>,
}

/// A directory that stays, and whose entries are exchanged.
struct Directory {
    entry: Entry,
    /// The position of the one that holds it.
    parent: Option<usize>,
    /// In the container's root.
    here: OwnedFd,
    /// Where the container's entries are meanwhile; none before any is.
    aside: Option<OwnedFd>,
    moved: Vec<Moved>,
    tree: InTree,
    /// What the tree's directory is, if there is one, until a step may have made it something else.
    shown: Option<Face>,
    /// Whether it is shown in the root.
    is_shown: bool,
}

/// What a tree has in the place of a directory that stays.
enum InTree {
    /// A directory.
    Directory(OwnedFd),
    /// Nothing, yet: it is made when a step puts something there.
    Absent,
    /// A file or a link, there or above: what a step puts there is not the image's.
    Covered,
}

/// An entry of the container that is aside.
struct Moved {
    name: Vec<u8>,
    /// None if nobody knows.
    identity: Option<Identity>,
}

/// Something that stays: a mount, or what the builder needs.
struct Anchor {
    path: GuestPath,
    /// The position of the directory that holds it.
    parent: usize,
    held: OwnedFd,
}

impl<'a> Exchange<'a> {
    /// Exchanges the container's root for `tree`, but for what `fixed` says. When this fails, all is as it was.
    pub(super) fn begin(claim: &'a Claim, fixed: &Fixed, tree: &Rootfs) -> Result<Self, InPlaceError> {
        if !same_mount(claim.directory(), tree.as_fd()) {
            return Err(InPlaceError::OtherMount { trees: claim.trees() });
        }
        let mut exchange = Self { claim, directories: Vec::new(), anchors: Vec::new(), phase: None };
        for path in fixed.directories() {
            exchange.open(path, fixed, tree)?;
        }
        for path in fixed.iter() {
            exchange.hold(path)?;
        }
        match exchange.forth() {
            Ok(()) => Ok(exchange),
            // What keeps the container's files away is worse than what kept the image's.
            Err(error) => Err(exchange.end().err().unwrap_or(error)),
        }
    }

    /// An exchange that somebody else has begun, and written down; what a step did is not kept.
    pub(super) fn found(claim: &'a Claim, phase: Phase, entries: Vec<Entry>) -> Result<Self, InPlaceError> {
        let mut exchange = Self { claim, directories: Vec::new(), anchors: Vec::new(), phase: None };
        for entry in entries {
            exchange.find_again(entry)?;
        }
        exchange.phase = Some(phase);
        Ok(exchange)
    }

    fn open(&mut self, path: GuestPath, fixed: &Fixed, tree: &Rootfs) -> Result<(), InPlaceError> {
        let failed = failed("open", &path);
        let here = open_exact(self.claim.directory(), &path, READ).map_err(failed)?;
        let face = Face::of(&here).map_err(self::failed("read metadata of", &path))?;
        let below = fixed.iter().filter(|point| point.starts_with(&path));
        let mut stay: Vec<Vec<u8>> = below
            .filter_map(|point| point.components().nth(path.components().count()).map(<[u8]>::to_vec))
            .collect();
        stay.dedup();
        let parent = self.position_of_parent(&path);
        let name = path.file_name().unwrap_or(b".");
        let in_tree = match parent.map(|parent| &self.directories[parent].tree) {
            None => InTree::of(tree.as_fd(), b"."),
            Some(InTree::Directory(parent)) => InTree::of(parent.as_fd(), name),
            Some(InTree::Absent) => Ok(InTree::Absent),
            Some(InTree::Covered) => Ok(InTree::Covered),
        };
        let tree = in_tree.map_err(self::failed("look in the image for", &path))?;
        let shown = match &tree {
            InTree::Directory(tree) => Some(Face::of(tree).map_err(self::failed("read metadata of", &path))?),
            // As the one that a step would make.
            InTree::Absent => Some(Face::plain(face.mtime)),
            InTree::Covered => None,
        };
        let entry = Entry { path, stay, face };
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

    fn forth(&mut self) -> Result<(), InPlaceError> {
        let private = self.claim.private();
        self.write_journal().map_err(self.claim.journal_failed())?;
        self.phase = Some(Phase::Apart);
        for position in 0..self.directories.len() {
            self.put_aside(position)?;
        }
        journal::turn(private, Phase::Exchanged).map_err(self.claim.journal_failed())?;
        self.phase = Some(Phase::Exchanged);
        for directory in &mut self.directories {
            directory.bring_in()?;
        }
        Ok(())
    }

    fn write_journal(&self) -> io::Result<()> {
        let entries = self.directories.iter().map(|directory| &directory.entry);
        journal::begin(self.claim.private(), entries)
    }

    /// Moves the container's entries of a directory aside.
    fn put_aside(&mut self, position: usize) -> Result<(), InPlaceError> {
        let aside = match self.directories[position].parent {
            None => self.claim.make(ASIDE)?,
            Some(parent) => {
                let Directory { entry, .. } = &self.directories[position];
                let above = self.directories[parent].aside.as_ref();
                let made = above.ok_or_else(|| io::ErrorKind::NotFound.into()).and_then(|above| {
                    let name = entry.path.file_name().unwrap_or(b".");
                    act(|| rustix::fs::mkdirat(above, name, Mode::RWXU))?;
                    Ok(enter(above.as_fd(), name)?)
                });
                made.map_err(failed("put aside", &entry.path))?
            }
        };
        let Directory { entry, here, moved, .. } = &mut self.directories[position];
        for name in Names::in_directory(here.as_fd()).map_err(failed("list", &entry.path))?.iter() {
            if entry.keeps(name) {
                continue;
            }
            let done = move_lower(here.as_fd(), name, aside.as_fd(), self.claim.private());
            // Also what was moved in part.
            moved.push(Moved { name: name.to_vec(), identity: Identity::of(aside.as_fd(), name).ok() });
            if let Err(error) = done {
                let path = entry.path.child(name);
                self.directories[position].aside = Some(aside);
                return Err(failed("put aside", &path)(error));
            }
        }
        self.directories[position].aside = Some(aside);
        Ok(())
    }

    /// Ends it: everything goes back, what the step made to the tree. Goes on as far as possible, whatever fails.
    ///
    /// # Errors
    /// [`InPlaceError::Damaged`] if the step has laid hands on what is not the image's, else the first failure.
    pub(super) fn end(mut self) -> Result<(), InPlaceError> {
        self.back()
    }

    fn back(&mut self) -> Result<(), InPlaceError> {
        let Some(phase) = self.phase.take() else { return Ok(()) };
        let private = self.claim.private();
        let mut troubles = Troubles::new(self.claim);
        // A step may have put something there to be followed.
        troubles.clear();
        if phase == Phase::Exchanged {
            self.find_places(&mut troubles);
            self.take_out(&mut troubles);
            if let Err(error) = journal::turn(private, Phase::Apart) {
                // Perhaps the step has taken it away. Whoever would read it now would take the container's files for the
                // image's.
                troubles.damaged_or(error, &Claim::private_path(), self.claim.journal_failed());
                let anew = self.write_journal().and_then(|()| journal::withdraw(private, Phase::Exchanged));
                troubles.note(anew.map_err(self.claim.journal_failed()));
            }
        }
        let home = self.put_back(phase, &mut troubles);
        if home == Home::All {
            let gone = act(|| remove_tree(private, ASIDE.as_bytes()))
                .map_err(failed("remove", &Claim::private_path().child(ASIDE.as_bytes())));
            // What is still aside is told by the journal.
            troubles.note(gone.and_then(|()| journal::end(private).map_err(self.claim.journal_failed())));
        }
        troubles.end()
    }

    /// Finds out whether everything that stays is in its place, and puts there what is not.
    fn find_places(&mut self, troubles: &mut Troubles<'_>) {
        for position in 1..self.directories.len() {
            let Directory { entry, parent: Some(parent), here, .. } = &self.directories[position] else {
                continue;
            };
            let (above, name) =
                (self.directories[*parent].here.as_fd(), entry.path.file_name().unwrap_or(b"."));
            if is_at(here.as_fd(), above, name) {
                continue;
            }
            troubles.damaged(&entry.path);
            troubles.displace(above, name, &entry.path);
            let found = bring_home(here.as_fd(), above, name).or_else(|_| {
                // It was removed. What belongs in it is aside.
                act(|| rustix::fs::mkdirat(above, name, Mode::RWXU))
            });
            let found = found.and_then(|()| Ok(enter(above, name)?));
            match found.map_err(failed("bring back", &entry.path)) {
                Ok(here) => self.directories[position].here = here,
                Err(error) => troubles.note(Err(error)),
            }
        }
        for Anchor { path, parent, held } in &self.anchors {
            let (above, name) = (self.directories[*parent].here.as_fd(), path.file_name().unwrap_or(b"."));
            if !is_at(held.as_fd(), above, name) {
                troubles.damaged(path);
                troubles.displace(above, name, path);
                // Files cannot be found again; that they are gone is said already.
                let _ = bring_home(held.as_fd(), above, name);
            }
        }
    }

    /// Moves what is in the root, and does not stay there, into the tree.
    fn take_out(&mut self, troubles: &mut Troubles<'_>) {
        let mut faces = Vec::new();
        for position in 0..self.directories.len() {
            self.distrust_tree(position, troubles);
            let Directory { entry, here, .. } = &self.directories[position];
            let face = troubles.value(self.directories[position].face()).flatten();
            let names = Names::in_directory(here.as_fd()).map_err(failed("list", &entry.path));
            let names = troubles.value(names).unwrap_or_default();
            let leaving: Vec<&[u8]> = names.iter().filter(|name| !entry.keeps(name)).collect();
            let shown = self.directories[position].shown.as_ref();
            let is_other =
                face.as_ref().zip(shown).is_some_and(|(face, shown)| face.differs_beyond_time(shown));
            if !leaving.is_empty() || is_other {
                let made = self.make_in_tree(position);
                troubles.note(made);
            }
            self.directories[position].take_out(&leaving, troubles);
            faces.push(face);
        }
        // Last: moving entries changes the times of directories.
        for (directory, face) in self.directories.iter().zip(faces) {
            if let (InTree::Directory(tree), Some(face)) = (&directory.tree, face) {
                let given = act(|| face.give_to(tree.as_fd()));
                troubles.note(given.map_err(failed("set metadata of", &directory.entry.path)));
            }
        }
    }

    /// Forgets the directory of the tree if the step has put something else in its place.
    fn distrust_tree(&mut self, position: usize, troubles: &mut Troubles<'_>) {
        let Directory { entry, parent: Some(parent), tree: InTree::Directory(tree), .. } =
            &self.directories[position]
        else {
            return;
        };
        let name = entry.path.file_name().unwrap_or(b".");
        let is_there = match &self.directories[*parent].tree {
            InTree::Directory(above) => is_at(tree.as_fd(), above.as_fd(), name),
            InTree::Absent | InTree::Covered => false,
        };
        if !is_there {
            troubles.damaged(&Claim::private_path());
            self.directories[position].tree = InTree::Covered;
        }
    }

    /// Makes the directory in the tree if there is none, and those above it.
    fn make_in_tree(&mut self, position: usize) -> Result<(), InPlaceError> {
        let mut missing = Vec::new();
        let mut next = Some(position);
        while let Some(position) = next.filter(|next| matches!(self.directories[*next].tree, InTree::Absent))
        {
            missing.push(position);
            next = self.directories[position].parent;
        }
        while let Some(position) = missing.pop() {
            let Directory { entry, parent, .. } = &self.directories[position];
            let Some(InTree::Directory(above)) = parent.map(|parent| &self.directories[parent].tree) else {
                return Ok(());
            };
            let name = entry.path.file_name().unwrap_or(b".");
            let made = act(|| rustix::fs::mkdirat(above, name, Mode::RWXU)).and_then(|()| {
                let directory = enter(above.as_fd(), name)?;
                Face::plain(entry.face.mtime).give_to(directory.as_fd())?;
                Ok(directory)
            });
            let made = made.map_err(failed("make in the image", &entry.path))?;
            self.directories[position].tree = InTree::Directory(made);
        }
        Ok(())
    }

    /// Moves the container's entries back to where they were.
    fn put_back(&mut self, before: Phase, troubles: &mut Troubles<'_>) -> Home {
        let mut home = Home::All;
        for Directory { entry, here, aside, moved, .. } in &self.directories {
            for Moved { name, identity } in moved {
                let Some(aside) = aside.as_ref().map(AsFd::as_fd) else { continue };
                let path = entry.path.child(name);
                let now = Identity::of(aside, name);
                if let (Err(_), None) = (&now, identity) {
                    // It had not been moved at all.
                    continue;
                }
                let is_ours = identity.is_none_or(|was| now.as_ref().is_ok_and(|now| was.is_that_of(now)));
                if !is_ours {
                    troubles.damaged(&path);
                }
                // What a step has put in its place may be its content, changed.
                if now.is_err() {
                    continue;
                }
                // After a step, what is still there is nobody's. Before one, it is the rest of a directory that was to
                // be moved.
                if before == Phase::Exchanged && metadata_at(here.as_fd(), name).is_ok() {
                    troubles.displace(here.as_fd(), name, &path);
                }
                if let Err(error) = move_entry(aside, name, here.as_fd()) {
                    home = Home::NotAll;
                    troubles.note(Err(failed("bring back", &path)(error)));
                }
            }
            if let Err(error) = act(|| entry.face.give_to(here.as_fd())) {
                home = Home::NotAll;
                troubles.note(Err(failed("set metadata of", &entry.path)(error)));
            }
        }
        home
    }

    /// Opens a directory that a journal names, or makes it anew.
    fn find_again(&mut self, mut entry: Entry) -> Result<(), InPlaceError> {
        entry.stay.sort_unstable();
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

/// How much of what was aside is where and as it was, as far as it was to be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Home {
    All,
    NotAll,
}

impl Directory {
    /// Moves the entries `leaving` into the tree, and away what has no place there.
    fn take_out(&self, leaving: &[&[u8]], troubles: &mut Troubles<'_>) {
        for name in leaving {
            let path = self.entry.path.child(name);
            if let InTree::Directory(tree) = &self.tree {
                match move_entry(self.here.as_fd(), name, tree.as_fd()) {
                    Ok(()) => continue,
                    Err(error) => troubles.note(Err(failed("bring out", &path)(error))),
                }
            }
            troubles.displace(self.here.as_fd(), name, &path);
        }
    }

    /// Moves the image's entries into the root, and shows its metadata.
    fn bring_in(&mut self) -> Result<(), InPlaceError> {
        let Self { entry, here, tree, .. } = self;
        if let InTree::Directory(tree) = tree {
            for name in Names::in_directory(tree.as_fd()).map_err(failed("list", &entry.path))?.iter() {
                if !entry.keeps(name) {
                    move_entry(tree.as_fd(), name, here.as_fd())
                        .map_err(failed("bring in", &entry.path.child(name)))?;
                }
            }
        }
        if let Some(face) = &self.shown {
            act(|| face.give_to(here.as_fd())).map_err(failed("set metadata of", &entry.path))?;
            self.is_shown = true;
        }
        Ok(())
    }

    /// What the image's directory is to be now.
    fn face(&self) -> Result<Option<Face>, InPlaceError> {
        if !self.is_shown {
            return Ok(self.shown.clone());
        }
        Face::of(&self.here).map(Some).map_err(failed("read metadata of", &self.entry.path))
    }
}

impl Entry {
    /// Whether the entry `name` of this directory stays.
    fn keeps(&self, name: &[u8]) -> bool {
        self.stay.binary_search_by(|stays| stays.as_slice().cmp(name)).is_ok()
    }
}

impl InTree {
    fn of(parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<Self> {
        match metadata_at(parent, name) {
            Ok(metadata) if metadata.kind == FileKind::Directory => Ok(Self::Directory(enter(parent, name)?)),
            Ok(_) => Ok(Self::Covered),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::Absent),
            Err(error) => Err(error),
        }
    }
}

const READ: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

/// Names what was tried with `path`.
pub(super) fn failed(action: &'static str, path: &GuestPath) -> impl FnOnce(io::Error) -> InPlaceError {
    let path = path.clone();
    move |source| InPlaceError::Io { action, path, source }
}
