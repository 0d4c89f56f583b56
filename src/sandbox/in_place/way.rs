//! The way to the tree of a stage: that a step leads nobody elsewhere who goes it later.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::claim::Claim;
use super::error::InPlaceError;
use super::identity::{bring_home, is_at};
use super::troubles::Troubles;
use crate::rootfs::metadata_of;

/// The directories from the builder's own to the tree of a stage.
#[derive(Debug)]
pub(super) struct Way(Vec<Level>);

/// A directory in the one before.
#[derive(Debug)]
struct Level {
    name: Vec<u8>,
    held: OwnedFd,
}

impl Way {
    /// That from the builder's own directory to `tree`.
    ///
    /// # Errors
    /// [`InPlaceError::Elsewhere`] if it is not below [`Claim::trees`].
    pub(super) fn find(claim: &Claim, tree: BorrowedFd<'_>) -> Result<Self, InPlaceError> {
        let elsewhere = || InPlaceError::Elsewhere { trees: claim.trees() };
        let failed = |source| InPlaceError::Private {
            action: "find the files of the stage in",
            path: claim.trees(),
            source,
        };
        let trees = claim.open_trees().map_err(failed)?;
        let [top, place] = [trees.as_fd(), tree].map(|directory| path_of(directory).map_err(failed));
        let (top, place) = (top?, place?);
        let below = place.strip_prefix(&top).map_err(|_| elsewhere())?;
        let mut way = Self(vec![Level { name: Claim::TREES.as_bytes().to_vec(), held: trees }]);
        for component in below.components() {
            let Component::Normal(name) = component else { return Err(elsewhere()) };
            way.go(name.as_bytes()).map_err(failed)?;
        }
        let end = way.0.last().filter(|_| way.0.len() > 1).map(|level| metadata_of(&level.held));
        match end.transpose().map_err(failed)?.zip(metadata_of(tree).ok()) {
            Some((found, tree)) if found.same_file(&tree) => Ok(way),
            _ => Err(elsewhere()),
        }
    }

    fn go(&mut self, name: &[u8]) -> io::Result<()> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if let Some(Level { held, .. }) = self.0.last() {
            let held = rustix::fs::openat(held, name, flags, Mode::empty())?;
            self.0.push(Level { name: name.to_vec(), held });
        }
        Ok(())
    }

    /// Puts back what a step has moved of it, and takes away what is in its place. Gives whether it leads to the tree now.
    pub(super) fn find_again(&self, claim: &Claim, troubles: &mut Troubles<'_>) -> bool {
        let mut above = claim.private();
        let mut leads_there = true;
        for Level { name, held } in &self.0 {
            if !is_at(held.as_fd(), above, name) {
                troubles.damaged(&Claim::private_path());
                troubles.displace(above, name, &Claim::private_path().child(name));
                leads_there &= bring_home(held.as_fd(), above, name).is_ok();
            }
            above = held.as_fd();
        }
        leads_there
    }
}

/// Where an open directory is.
fn path_of(directory: BorrowedFd<'_>) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/self/fd/{}", directory.as_raw_fd()))
}
