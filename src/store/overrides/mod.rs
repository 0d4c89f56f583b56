//! What becomes of overrides when layers are stacked and steps write to a tree.
//!
//! A step knows nothing of them: what its programs see, change, move and remove is what the disk shows. Afterwards each
//! override has to find its entry again, or goes.

mod directory;
mod layers;
mod moved;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::rootfs::visit::{Names, open_exact};
use crate::rootfs::{
    FileKind, GuestPath, Learned, Metadata, Overrides, Rootfs, RootfsError, at, metadata_at,
};

pub(super) use directory::after_step;
pub(super) use layers::stacked;
pub use layers::{Written, written};

/// `overrides` with `changes`: the same value if there are none.
fn changed(overrides: &Arc<Overrides>, changes: Learned) -> Arc<Overrides> {
    if changes.is_empty() {
        Arc::clone(overrides)
    } else {
        Arc::new(Overrides::clone(overrides).with(changes))
    }
}

/// Whether a file that replaced another one of the same mode was certainly given that mode, and with it, as far as the disk
/// shows them, the owner: a mode that gives its group more than everybody, or is set-id. Such a mode is of no use to
/// the group of root, and no file has it by itself. It is how `useradd` and others replace `/etc/shadow`.
fn keeps_its_group(mode: u32) -> bool {
    let (group, others) = ((mode >> 3) & 0o7, mode & 0o7);
    group & !others != 0 || mode & 0o6000 != 0
}

/// An entry as the disk shows it.
struct Found<'a> {
    path: GuestPath,
    directory: &'a OwnedFd,
    name: &'a [u8],
    metadata: Metadata,
}

/// Shows `visit` all that is in `tree`, its root left out.
fn each_entry(
    tree: &Rootfs,
    visit: &mut dyn FnMut(&Found<'_>) -> Result<(), RootfsError>,
) -> Result<(), RootfsError> {
    let mut pending = vec![GuestPath::root()];
    while let Some(parent) = pending.pop() {
        let directory =
            at(open_exact(tree.as_fd(), &parent, OFlags::RDONLY | OFlags::DIRECTORY), "open", &parent)?;
        for name in at(Names::in_directory(directory.as_fd()), "list", &parent)?.iter() {
            let path = parent.child(name);
            let metadata = at(metadata_at(directory.as_fd(), name), "read metadata of", &path)?;
            let is_directory = metadata.kind == FileKind::Directory;
            let found = Found { path, directory: &directory, name, metadata };
            visit(&found)?;
            if is_directory {
                pending.push(found.path);
            }
        }
    }
    Ok(())
}

/// Looks at one path after the other; those in one directory need that to be found only once.
struct Look<'a> {
    tree: &'a Rootfs,
    last: Option<(GuestPath, io::Result<OwnedFd>)>,
}

impl<'a> Look<'a> {
    fn new(tree: &'a Rootfs) -> Self {
        Self { tree, last: None }
    }

    /// Calls `look` with the directory of `path`, no component of which may be a link, and the name in it; the root is
    /// `.` in itself. None if nothing is there.
    fn at<T>(
        &mut self,
        path: &GuestPath,
        look: impl FnOnce(BorrowedFd<'_>, &[u8]) -> io::Result<T>,
    ) -> Result<Option<T>, RootfsError> {
        let parent = path.parent().unwrap_or_else(GuestPath::root);
        if self.last.as_ref().is_none_or(|(last, _)| *last != parent) {
            let directory = open_exact(self.tree.as_fd(), &parent, OFlags::PATH | OFlags::DIRECTORY);
            self.last = Some((parent, directory));
        }
        let looked = match &self.last {
            Some((_, Ok(directory))) => look(directory.as_fd(), path.file_name().unwrap_or(b".")),
            Some((_, Err(error))) => Err(io::Error::from_raw_os_error(error.raw_os_error().unwrap_or(0))),
            None => Err(Errno::NOENT.into()),
        };
        match looked.as_ref().map_err(Errno::from_io_error) {
            // No such path, or it leads through something else than directories.
            Err(Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP)) => Ok(None),
            _ => at(looked, "read metadata of", path).map(Some),
        }
    }
}

/// What the disk shows at exactly `path`; none if there is nothing.
fn shown(tree: &Rootfs, path: &GuestPath) -> Result<Option<Metadata>, RootfsError> {
    Look::new(tree).at(path, metadata_at)
}

/// What reading an extended attribute is called in errors.
const ATTRIBUTES: &str = "read extended attributes of";
