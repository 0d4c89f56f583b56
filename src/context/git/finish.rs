//! A checkout, made the same whoever made it: modes, times, and nothing that git left in it.

use std::os::fd::AsFd as _;

use super::GitError;
use crate::context::git_source::GitDirectory;
use crate::rootfs::{
    FileKind, GuestPath, Rootfs, RootfsError, Timestamp, metadata_at, remove_tree, set_mode_at, set_times_at,
};

/// What is to become of the files.
pub(super) struct Finish<'a> {
    /// Whether `.git` is kept, at the top and in submodules. git checks out nothing by that name.
    pub(super) git_directory: Option<GitDirectory>,
    /// The time that all get, in seconds since 1970.
    pub(super) modified: Option<i64>,
    /// Whether to stop.
    pub(super) stopped: &'a dyn Fn() -> bool,
}

/// Goes through the checkout in `root`.
pub(super) fn finish(root: &Rootfs, finish: &Finish<'_>) -> Result<(), GitError> {
    let mut waiting = vec![GuestPath::root()];
    while let Some(path) = waiting.pop() {
        if (finish.stopped)() {
            return Err(GitError::Cancelled);
        }
        let directory = root.directory(&path)?;
        let tried = |result: std::io::Result<()>, path: GuestPath| {
            result.map_err(|source| RootfsError::Io { action: "set the mode and time of", path, source })
        };
        for (name, kind) in root.read_dir(&path)? {
            let child = path.child(&name);
            if name == b".git" {
                if finish.git_directory != Some(GitDirectory::Keep) {
                    tried(remove_tree(directory.as_fd(), &name), child)?;
                }
                continue;
            }
            match kind {
                FileKind::Directory => {
                    waiting.push(child);
                    continue;
                }
                FileKind::File => {
                    let adapted = metadata_at(directory.as_fd(), &name).and_then(|metadata| {
                        let wanted = if metadata.mode & 0o100 == 0 { 0o644 } else { 0o755 };
                        if metadata.mode == wanted {
                            return Ok(());
                        }
                        set_mode_at(directory.as_fd(), &name, wanted)
                    });
                    tried(adapted, child.clone())?;
                }
                _ => {}
            }
            if let Some(time) = finish.time() {
                tried(set_times_at(directory.as_fd(), &name, time), child)?;
            }
        }
        tried(set_mode_at(directory.as_fd(), b".", 0o755), path.clone())?;
        if let Some(time) = finish.time() {
            tried(set_times_at(directory.as_fd(), b".", time), path)?;
        }
    }
    Ok(())
}

impl Finish<'_> {
    fn time(&self) -> Option<Timestamp> {
        self.modified.map(|seconds| Timestamp { seconds, nanoseconds: 0 })
    }
}
