//! A checkout, made the same whoever made it: modes, times, and nothing that git left in it.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};

use super::directories::{each_directory, each_entry};
use super::{Exceeded, GitError};
use crate::context::git_source::GitDirectory;
use crate::limit::Limit;
use crate::rootfs::{
    FileKind, GuestPath, Rootfs, RootfsError, Timestamp, metadata_at, remove_tree, set_mode_at, set_times_at,
};

/// What is to become of the files.
pub(super) struct Finish<'a> {
    /// Whether `.git` is kept, at the top and in submodules. git checks out nothing by that name.
    pub(super) git_directory: Option<GitDirectory>,
    /// The time that all get, in seconds since 1970.
    pub(super) modified: Option<i64>,
    /// How many files and directories there may be.
    pub(super) entries: Limit,
    /// Whether to stop.
    pub(super) stopped: &'a dyn Fn() -> bool,
}

/// Goes through the checkout in `root`.
pub(super) fn finish(root: &Rootfs, finish: &Finish<'_>) -> Result<(), GitError> {
    let mut entries = 0;
    let top = root.directory(&GuestPath::root())?;
    each_directory(top.as_fd(), &mut |path, directory, below| {
        if (finish.stopped)() {
            return Err(GitError::Cancelled);
        }
        let tried = |result: io::Result<()>, path: GuestPath| {
            result.map_err(|source| RootfsError::Io { action: "set the mode and time of", path, source })
        };
        each_entry(directory, path, |name, kind| {
            entries += 1;
            if finish.entries.is_exceeded_by(entries) {
                return Err(GitError::Exceeded(Exceeded::Entries(finish.entries)));
            }
            let descends = kind == FileKind::Directory && name != b".git";
            let done = if descends { below.push(name) } else { finish.entry(directory, name, kind) };
            Ok(tried(done, path.child(name))?)
        })?;
        // Only now: what was removed from it has changed its time.
        let done = set_mode_at(directory, b".", 0o755);
        let done = done.and_then(|()| finish.set_time(directory, b"."));
        Ok(tried(done, path.clone())?)
    })
}

impl Finish<'_> {
    /// What is no directory, or git's own.
    fn entry(&self, directory: BorrowedFd<'_>, name: &[u8], kind: FileKind) -> io::Result<()> {
        if name == b".git" {
            return match self.git_directory {
                Some(GitDirectory::Keep) => Ok(()),
                _ => remove_tree(directory, name),
            };
        }
        if kind == FileKind::File {
            let mode = metadata_at(directory, name)?.mode;
            let wanted = if mode & 0o100 == 0 { 0o644 } else { 0o755 };
            if mode != wanted {
                set_mode_at(directory, name, wanted)?;
            }
        }
        self.set_time(directory, name)
    }

    fn set_time(&self, directory: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
        let Some(seconds) = self.modified else { return Ok(()) };
        set_times_at(directory, name, Timestamp { seconds, nanoseconds: 0 })
    }
}
