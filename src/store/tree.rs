//! All files of a stage in one plain directory, for where overlayfs cannot be mounted.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{MountAttrFlags, OpenTreeFlags};

use super::index::{Index, IndexError, Refreshed, Seen, Trust};
use super::tree_copy;
use super::unpack::discard;
use super::workspace::{Workspace, WorkspaceError};
use crate::rootfs::visit::jobs;
use crate::rootfs::{GuestPath, Rootfs, Timestamp, set_mode_at, set_times_at};
use crate::sys::{self, MountReach};

/// Why a tree could not be made or looked through.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// The workspace could not be used.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    /// The directory could not be used.
    #[error("cannot use the directory `{path}`")]
    Directory {
        /// Which.
        path: PathBuf,
        /// Why not.
        #[source]
        cause: io::Error,
    },
    /// An entry could not be copied.
    #[error("cannot copy `{path}`")]
    Copy {
        /// Its path in the tree.
        path: GuestPath,
        /// Why not.
        #[source]
        cause: io::Error,
    },
    /// The tree could not be looked through.
    #[error(transparent)]
    Index(#[from] IndexError),
}

/// What may be done in a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Everything.
    Write,
    /// Only reading, if the kernel can be asked for that.
    Read,
}

/// A directory of the workspace with all files of a stage, and what is known of them. The directory is gone with the value.
#[derive(Debug)]
pub struct Tree {
    directory: PathBuf,
    index: Index,
    workspace: Arc<Workspace>,
}

impl Tree {
    /// An empty one. Its root is what overlayfs shows without layers: 0755, of root, from 1970.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn empty(workspace: &Arc<Workspace>) -> Result<Self, TreeError> {
        let mut tree = Self::new(workspace)?;
        tree.describe(&Seen::default())?;
        Ok(tree)
    }

    /// An empty one of which nothing is known yet: [`Tree::describe`] comes when it is filled.
    pub(super) fn new(workspace: &Arc<Workspace>) -> Result<Self, TreeError> {
        let directory = workspace.directory("tree")?;
        let tree = Self { directory, index: Index::default(), workspace: Arc::clone(workspace) };
        let root = tree.root()?;
        set_mode_at(root.as_fd(), b".", 0o755)
            .and_then(|()| set_times_at(root.as_fd(), b".", Timestamp::default()))
            .map_err(|cause| tree.failed(cause))?;
        Ok(tree)
    }

    /// One with what `fill` makes in its directory.
    #[cfg(test)]
    pub(crate) fn filled(workspace: &Arc<Workspace>, fill: impl FnOnce(&std::path::Path)) -> Self {
        let mut tree = Self::new(workspace).unwrap();
        fill(&tree.directory);
        tree.describe(&Seen::default()).unwrap();
        tree
    }

    /// Notes what is there now; `seen` knows what files in it hold.
    pub(super) fn describe(&mut self, seen: &Seen) -> Result<(), TreeError> {
        self.index = Index::of(self.root()?.as_fd(), seen, jobs())?;
        Ok(())
    }

    /// The directory, to be used by paths inside it.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn root(&self) -> Result<Rootfs, TreeError> {
        Rootfs::open(&self.directory).map_err(|cause| self.failed(cause))
    }

    /// The root of a detached mount of the directory (`O_PATH`), for move_mount(2). Where mounts are not allowed it is the
    /// directory itself.
    ///
    /// # Errors
    /// When the directory cannot be opened.
    pub fn mount(&self, access: Access) -> Result<OwnedFd, TreeError> {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let Ok(mount) = rustix::mount::open_tree(CWD, &self.directory, flags) else { return self.open() };
        if access == Access::Write {
            return Ok(mount);
        }
        // Before Linux 5.12 a mount cannot be changed before it is somewhere; that nobody writes is then up to us.
        let restricted = sys::restrict_mount(&mount, MountAttrFlags::MOUNT_ATTR_RDONLY, MountReach::One);
        if restricted.is_ok() { Ok(mount) } else { self.open() }
    }

    fn open(&self) -> Result<OwnedFd, TreeError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(&self.directory, flags, Mode::empty()).map_err(|cause| self.failed(cause.into()))
    }

    /// What is known of the files.
    #[must_use]
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Finds out what changed since the last time, and notes how everything is now. Nothing may write to the tree
    /// meanwhile.
    ///
    /// # Errors
    /// When the tree cannot be looked through, or holds what no layer can. The index is lost then.
    pub fn refresh(&mut self, trust: Trust) -> Result<Refreshed, TreeError> {
        let root = self.root()?;
        let (index, refreshed) = std::mem::take(&mut self.index).refresh(root.as_fd(), trust, jobs())?;
        self.index = index;
        Ok(refreshed)
    }

    /// A second tree with equal files, none of which is a file of this one.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn copy(&self) -> Result<Self, TreeError> {
        let mut tree = Self::new(&self.workspace)?;
        let (from, to) = (self.root()?, tree.root()?);
        tree_copy::copy(&from, &to, jobs(), &|| false)?;
        tree.index = self.index.of_copy(to.as_fd(), jobs())?;
        Ok(tree)
    }

    fn failed(&self, cause: io::Error) -> TreeError {
        TreeError::Directory { path: self.directory.clone(), cause }
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        discard(&self.directory);
    }
}
