//! The way back: whatever a step has done and whatever fails, the container gets what is its own.

use std::os::fd::AsFd;

use rustix::fs::Mode;

use super::directory::{Directory, Home, InTree};
use super::{Anchor, Exchange, failed};
use crate::rootfs::remove::enter;
use crate::rootfs::remove_tree;
use crate::rootfs::visit::Names;
use crate::sandbox::in_place::claim::{ASIDE, Claim};
use crate::sandbox::in_place::error::InPlaceError;
use crate::sandbox::in_place::identity::{bring_home, is_at};
use crate::sandbox::in_place::journal::Phase;
use crate::sandbox::in_place::moving::act;
use crate::sandbox::in_place::troubles::Troubles;

impl Exchange<'_> {
    /// Moves everything back, if that has not been done.
    pub(super) fn back(&mut self) -> Result<(), InPlaceError> {
        let Some(mut journal) = self.journal.take() else { return Ok(()) };
        let (phase, private) = (journal.phase(), self.claim.private());
        let mut troubles = Troubles::new(self.claim);
        for path in std::mem::take(&mut self.damaged) {
            troubles.damaged(&path);
        }
        // A step may have put something there to be followed, or what it has taken; a dead builder, what belongs nowhere.
        match &self.own {
            Some(_) => troubles.begin_anew(),
            None => troubles.clear(),
        }
        if phase == Phase::Exchanged {
            self.find_places(&mut troubles);
            if let Some(own) = &self.own {
                self.restore(own, &mut troubles);
            }
            self.take_out(&mut troubles);
            if let Err(error) = journal.turn() {
                troubles.damaged_or(error, &Claim::private_path(), self.claim.journal_failed());
                let entries = self.directories.iter().map(|directory| &directory.entry);
                troubles.note(journal.rewrite(entries).map_err(self.claim.journal_failed()));
            }
        }
        let mut home = Home::All;
        for directory in &self.directories {
            if directory.put_back(phase, &mut troubles) == Home::NotAll {
                home = Home::NotAll;
            }
        }
        if home == Home::All {
            let gone = act(|| remove_tree(private, ASIDE.as_bytes()))
                .map_err(failed("remove", &Claim::private_path().child(ASIDE.as_bytes())));
            // What is still aside is told by the journal.
            troubles.note(gone.and_then(|()| journal.end().map_err(self.claim.journal_failed())));
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
        let Directory { entry, parent, tree: InTree::Directory(tree), .. } = &self.directories[position]
        else {
            return;
        };
        let name = entry.path.file_name().unwrap_or(b".");
        let is_there = match parent.map(|parent| &self.directories[parent].tree) {
            None => self.way.as_ref().is_some_and(|way| way.find_again(self.claim, troubles)),
            Some(InTree::Directory(above)) => is_at(tree.as_fd(), above.as_fd(), name),
            Some(InTree::Absent | InTree::Covered) => false,
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
            let Some(parent) = self.directories[position].parent else { return Ok(()) };
            // Directories come after those that hold them.
            let (before, from_here) = self.directories.split_at_mut(position);
            let (Some(InTree::Directory(above)), Some(directory)) =
                (before.get(parent).map(|parent| &parent.tree), from_here.first_mut())
            else {
                return Ok(());
            };
            directory.make_in_tree(above.as_fd())?;
        }
        Ok(())
    }
}
