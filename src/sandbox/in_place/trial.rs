//! Whether steps can run in place here, found out without moving anything that is the container's.
//!
//! An exchange with an empty tree would move all of a container's files and, where they are of an overlay's lower layers,
//! copy them: it would take seconds, and somebody could come in between. So the way is tried in two parts. That entries can
//! be made in the root, moved out of it and back, is shown with an empty directory of our own. That everything else works,
//! from the claim on the root to the supervisor that starts a command, is shown in a root of our own on the same file
//! system, which is exchanged for an empty tree as `/` would be. What is not shown is that what the container has in its
//! own directories can be moved or copied; for its root, whose files they are, nothing is in the way of that but room.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Mode};

use super::InPlace;
use super::claim::{Claim, TRIAL, TRIAL_IN_ROOT};
use super::error::InPlaceError;
use super::exchange::failed;
use crate::rootfs::{GuestPath, keeping_mtime, remove_tree};
use crate::sandbox::indispensable::Indispensable;

/// The root of our own, in the directory [`TRIAL`].
const ROOT: &str = "root";
/// What is there besides.
const ENTRY: &str = "entry";
const TREE: &str = "tree";

/// Has `step` begin a step, in the empty tree whose path it gets, with a sandbox like that for the container's root `root`.
/// Leaves nothing behind there, neither a file nor another time of the directory. `program` is for [`InPlace::new`].
///
/// # Errors
/// What is in the way before there is a sandbox; also another builder that has the root.
pub(in crate::sandbox) fn try_in<T>(
    root: &Path,
    program: &Path,
    step: impl FnOnce(&InPlace<'_>, &Path) -> T,
) -> Result<T, InPlaceError> {
    let claim = Claim::take(root, &|| {})?;
    let result = move_out_and_in(&claim).and_then(|()| {
        let trial = claim.make(TRIAL)?;
        let path = claim.path_of(TRIAL).join(ROOT);
        let make = |directory: BorrowedFd<'_>, name: &str| {
            let made = rustix::fs::mkdirat(directory, name, Mode::RWXU);
            made.map_err(|error| failed("make", &Claim::private_path().child(name.as_bytes()))(error.into()))
        };
        make(trial.as_fd(), ROOT)?;
        let own = Claim::take(&path, &|| {})?;
        make(own.directory(), ENTRY)?;
        make(own.make(Claim::TREES)?.as_fd(), TREE)?;
        Ok(step(&InPlace::new(program, &own, &[]), &own.trees().join(TREE)))
    });
    // What cannot be removed now is for the next claim.
    let _ = remove_tree(claim.private(), TRIAL.as_bytes());
    result
}

/// Moves an entry of the builder's own directory into the root and back.
fn move_out_and_in(claim: &Claim) -> Result<(), InPlaceError> {
    let _moments = Indispensable::new();
    let (private, root) = (claim.private(), claim.directory());
    let moved = keeping_mtime(root, || {
        rustix::fs::mkdirat(private, TRIAL_IN_ROOT, Mode::RWXU)?;
        let there_and_back = rustix::fs::renameat(private, TRIAL_IN_ROOT, root, TRIAL_IN_ROOT)
            .and_then(|()| rustix::fs::renameat(root, TRIAL_IN_ROOT, private, TRIAL_IN_ROOT));
        let _ = rustix::fs::unlinkat(private, TRIAL_IN_ROOT, AtFlags::REMOVEDIR);
        Ok::<_, io::Error>(there_and_back?)
    });
    moved.map_err(failed("rename", &GuestPath::root().child(TRIAL_IN_ROOT.as_bytes())))
}
