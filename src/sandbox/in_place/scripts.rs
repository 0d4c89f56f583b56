//! Scripts of a step in the container's own /dev.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::claim::Claim;
use super::error::InPlaceError;
use super::exchange::failed;
use crate::rootfs::remove::enter;
use crate::rootfs::{FileKind, GuestPath, metadata_at, remove_tree, set_mode_at};
use crate::sandbox::provided::write_scripts;
use crate::sandbox::{SandboxError, Script};

/// Where they are, as for all steps.
const DIRECTORY: &str = "pipes";

/// A directory of scripts that is there until this ends.
pub(super) struct Scripts {
    /// The container's /dev; none where there is nothing to be removed.
    dev: Option<OwnedFd>,
}

impl Scripts {
    /// Makes the directory with `scripts` in it, if there are any. What another builder left there is replaced.
    pub(super) fn make(claim: &Claim, scripts: &[Script]) -> Result<Self, SandboxError> {
        if scripts.is_empty() {
            return Ok(Self { dev: None });
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dev = rustix::fs::openat(claim.directory(), "dev", flags, Mode::empty())
            .map_err(|error| failed("open", &path_of_dev())(error.into()))?;
        let directory = new_directory(dev.as_fd()).map_err(failed("make", &path()))?;
        // From here on dropping it removes what has been made.
        let made = Self { dev: Some(dev) };
        write_scripts(&directory, scripts)?;
        set_mode_at(directory.as_fd(), b".", 0o755).map_err(failed("make", &path()))?;
        Ok(made)
    }

    /// Removes the directory, whatever is in it.
    pub(super) fn remove(&mut self) -> Result<(), InPlaceError> {
        let removed = self.dev.take().map_or(Ok(()), |dev| remove_tree(dev.as_fd(), DIRECTORY.as_bytes()));
        removed.map_err(failed("remove", &path()))
    }
}

impl Drop for Scripts {
    fn drop(&mut self) {
        let _ = self.remove();
    }
}

fn path_of_dev() -> GuestPath {
    GuestPath::root().child(b"dev")
}

fn path() -> GuestPath {
    path_of_dev().child(DIRECTORY.as_bytes())
}

fn new_directory(dev: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    match rustix::fs::mkdirat(dev, DIRECTORY, Mode::RWXU) {
        // Of a builder that was killed. Nobody else has such a directory in /dev.
        Err(Errno::EXIST) if metadata_at(dev, DIRECTORY.as_bytes())?.kind == FileKind::Directory => {
            remove_tree(dev, DIRECTORY.as_bytes())?;
            rustix::fs::mkdirat(dev, DIRECTORY, Mode::RWXU)?;
        }
        result => result?,
    }
    Ok(enter(dev, DIRECTORY.as_bytes())?)
}
