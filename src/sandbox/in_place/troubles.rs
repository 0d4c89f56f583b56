//! What goes wrong while everything is put back, which goes on all the same.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::RenameFlags;

use super::claim::{Claim, KEPT, LEFT};
use super::error::InPlaceError;
use super::exchange::failed;
use super::moving::act;
use crate::rootfs::{GuestPath, metadata_at, remove_tree};

/// How many names are tried for what is to be out of the way.
const ATTEMPTS: u32 = 1000;

/// The first failure, and what a step has laid hands on.
pub(super) struct Troubles<'a> {
    claim: &'a Claim,
    first: Option<InPlaceError>,
    damaged: Vec<GuestPath>,
    /// Where things go that belong nowhere, and how many there are.
    left: Option<OwnedFd>,
    count: u64,
    /// Whether something is in [`KEPT`] that was not.
    kept: bool,
}

impl<'a> Troubles<'a> {
    pub(super) fn new(claim: &'a Claim) -> Self {
        Self { claim, first: None, damaged: Vec::new(), left: None, count: 0, kept: false }
    }

    /// Keeps a failure, if it is the first.
    pub(super) fn note(&mut self, result: Result<(), InPlaceError>) {
        self.value(result);
    }

    /// The value, unless it is a failure.
    pub(super) fn value<T>(&mut self, result: Result<T, InPlaceError>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.first.get_or_insert(error);
                None
            }
        }
    }

    /// A step has removed, moved or replaced `path`.
    pub(super) fn damaged(&mut self, path: &GuestPath) {
        if !self.damaged.contains(path) {
            self.damaged.push(path.clone());
        }
    }

    /// `error` means that a step has taken `path` away, or else is a failure.
    pub(super) fn damaged_or(
        &mut self,
        error: io::Error,
        path: &GuestPath,
        failure: impl FnOnce(io::Error) -> InPlaceError,
    ) {
        match error.kind() {
            io::ErrorKind::NotFound => self.damaged(path),
            _ => self.note(Err(failure(error))),
        }
    }

    /// Takes the entry `name` of `directory` away, which nobody wants: it is at `path`.
    pub(super) fn displace(&mut self, directory: BorrowedFd<'_>, name: &[u8], path: &GuestPath) {
        if metadata_at(directory, name).is_err() {
            return;
        }
        if self.left.is_none() {
            let made = self.claim.make(LEFT);
            self.left = self.value(made);
        }
        let Some(left) = self.left.as_ref().map(AsFd::as_fd) else { return };
        self.count += 1;
        let number = self.count.to_string();
        // At once, for the container has to wait only until it is out of the way; else by removing it where it is.
        let moved = act(|| rustix::fs::renameat(directory, name, left, number.as_str()))
            .or_else(|_| act(|| remove_tree(directory, name)));
        self.note(moved.map_err(failed("take away", path)));
    }

    /// Takes the entry `name` of `directory`, which is `path`, to where no build removes anything: it may be the container's.
    pub(super) fn keep(&mut self, directory: BorrowedFd<'_>, name: &[u8], path: &GuestPath) {
        let kept = self.claim.keep(directory, name);
        self.kept |= kept.is_ok();
        self.note(kept.map_err(failed("keep", path)));
    }

    /// Makes room for what will be taken away: what has the name of its place belongs nowhere, but is not looked at yet.
    pub(super) fn begin_anew(&mut self) {
        let private = self.claim.private();
        for number in 0..ATTEMPTS {
            let name = format!("{LEFT}-{number}");
            let flags = RenameFlags::NOREPLACE;
            match act(|| rustix::fs::renameat_with(private, LEFT, private, name.as_str(), flags)) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => return,
                Ok(()) => return,
                Err(_) => break,
            }
        }
        self.clear();
    }

    /// Removes what was taken away.
    pub(super) fn clear(&mut self) {
        let path = Claim::private_path().child(LEFT.as_bytes());
        let removed = act(|| remove_tree(self.claim.private(), LEFT.as_bytes()));
        self.note(removed.map_err(failed("remove", &path)));
    }

    /// Removes what was taken away, and tells.
    pub(super) fn end(mut self) -> Result<(), InPlaceError> {
        if self.left.take().is_some() {
            self.clear();
        }
        if self.damaged.is_empty() {
            return self.first.map_or(Ok(()), Err);
        }
        let kept = self.kept.then(|| Claim::private_path().child(KEPT.as_bytes()));
        Err(InPlaceError::Damaged { paths: self.damaged, kept })
    }
}
