//! All files of a stage in one plain directory, for where overlayfs cannot be mounted.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountAttrFlags, OpenTreeFlags};

use super::index::{Index, IndexError, Refreshed, Seen, Trust};
use super::overrides::after_step;
use super::unpack::discard;
use super::workspace::{Workspace, WorkspaceError};
use crate::limit::Limit;
use crate::rootfs::visit::jobs;
use crate::rootfs::{
    CopyTreeError, Learned, Overrides, Rootfs, RootfsError, Timestamp, TreeCopy, set_mode_at, set_times_at,
};
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
    /// The files of another stage or image could not be copied.
    #[error("cannot copy the files of another stage or image")]
    Copy(#[from] CopyTreeError),
    /// The tree could not be looked through.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// What the disk does not hold of the files could not be found out.
    #[error("cannot find out what became of files that belong to others or are devices")]
    Overrides(#[from] RootfsError),
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
///
/// It is held open, and its path is only for its end: a step that can reach the workspace may put something else there.
#[derive(Debug)]
pub struct Tree {
    path: PathBuf,
    /// `O_PATH`.
    directory: OwnedFd,
    index: Index,
    /// What the files are beyond what the disk shows.
    overrides: Arc<Overrides>,
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
        let path = workspace.directory("tree")?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::open(&path, flags, Mode::empty());
        let directory =
            opened.map_err(|cause| TreeError::Directory { path: path.clone(), cause: cause.into() })?;
        let (index, overrides, workspace) = (Index::default(), Arc::default(), Arc::clone(workspace));
        let tree = Self { path, directory, index, overrides, workspace };
        set_mode_at(tree.directory.as_fd(), b".", 0o755)
            .and_then(|()| set_times_at(tree.directory.as_fd(), b".", Timestamp::default()))
            .map_err(|cause| tree.failed(cause))?;
        Ok(tree)
    }

    /// One with what `fill` makes in its directory.
    #[cfg(test)]
    pub(crate) fn filled(workspace: &Arc<Workspace>, fill: impl FnOnce(&std::path::Path)) -> Self {
        let mut tree = Self::new(workspace).unwrap();
        fill(&tree.path);
        tree.describe(&Seen::default()).unwrap();
        tree
    }

    /// Notes what is there now; `seen` knows what files in it hold.
    pub(super) fn describe(&mut self, seen: &Seen) -> Result<(), TreeError> {
        self.index = Index::of(&self.root()?, seen, jobs())?;
        Ok(())
    }

    /// The files, to be read.
    ///
    /// # Errors
    /// When this process can have no more descriptors.
    pub fn root(&self) -> Result<Rootfs, TreeError> {
        Ok(self.directory()?.showing(Arc::clone(&self.overrides)))
    }

    /// The directory as the disk has it, to be used by paths inside it.
    pub(super) fn directory(&self) -> Result<Rootfs, TreeError> {
        Ok(Rootfs::from_fd(self.open()?))
    }

    /// What the files are beyond what the disk shows.
    #[must_use]
    pub fn overrides(&self) -> &Arc<Overrides> {
        &self.overrides
    }

    /// Adds what was learned while files were made.
    pub(super) fn learn(&mut self, learned: Learned) {
        let known = std::mem::take(&mut self.overrides);
        self.overrides = Arc::new(Arc::unwrap_or_clone(known).with(learned));
    }

    /// The root of a detached mount of the directory (`O_PATH`), for move_mount(2). Where mounts are not allowed it is the
    /// directory itself.
    ///
    /// # Errors
    /// When this process can have no more descriptors.
    pub fn mount(&self, access: Access) -> Result<OwnedFd, TreeError> {
        let flags =
            OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
        let Ok(mount) = rustix::mount::open_tree(&self.directory, "", flags) else { return self.open() };
        if access == Access::Write {
            return Ok(mount);
        }
        // Before Linux 5.12 a mount cannot be changed before it is somewhere; that nobody writes is then up to us.
        let restricted = sys::restrict_mount(&mount, MountAttrFlags::MOUNT_ATTR_RDONLY, MountReach::One);
        if restricted.is_ok() { Ok(mount) } else { self.open() }
    }

    /// The directory (`O_PATH`).
    ///
    /// # Errors
    /// When this process can have no more descriptors.
    pub fn open(&self) -> Result<OwnedFd, TreeError> {
        self.directory.try_clone().map_err(|cause| self.failed(cause))
    }

    /// What is known of the files.
    #[must_use]
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Finds out what changed in the step that began at `began`, and notes how everything is now; `learned` is what is
    /// known of it beyond what the disk shows. Nothing may write to the tree meanwhile.
    ///
    /// # Errors
    /// When the tree cannot be looked through, or holds what no layer can. The index is lost then.
    pub fn refresh(
        &mut self,
        trust: Trust,
        learned: Learned,
        began: Timestamp,
    ) -> Result<Refreshed, TreeError> {
        let directory = self.directory()?;
        self.overrides = after_step(&self.overrides, learned, &directory, &self.index, began)?;
        let (index, refreshed) = std::mem::take(&mut self.index).refresh(&self.root()?, trust, jobs())?;
        self.index = index;
        Ok(refreshed)
    }

    /// A second tree with equal files, none of which is a file of this one. `names` is the limit of names of files with
    /// several.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn copy(&self, names: Limit) -> Result<Self, TreeError> {
        let mut tree = Self::new(&self.workspace)?;
        let copy = TreeCopy { names, cancelled: &|| false, jobs: jobs() };
        copy.copy(&self.directory()?, &tree.directory()?)?;
        tree.overrides = Arc::clone(&self.overrides);
        tree.index = self.index.of_copy(&tree.root()?, jobs())?;
        Ok(tree)
    }

    fn failed(&self, cause: io::Error) -> TreeError {
        TreeError::Directory { path: self.path.clone(), cause }
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        discard(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::limit::Limit;
    use crate::rootfs::GuestPath;

    /// What a step can do that reaches the workspace.
    #[test]
    fn what_is_put_in_the_place_of_a_tree_is_not_taken_for_it() {
        let temporary = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("file"), "outside").unwrap();
        let workspace = Arc::new(Workspace::create(temporary.path(), None).unwrap());
        let mut tree = Tree::filled(&workspace, |path| fs::write(path.join("own"), "tree").unwrap());
        let moved = temporary.path().join("moved");
        fs::rename(&tree.path, &moved).unwrap();
        rustix::fs::symlink(outside.path(), &tree.path).unwrap();
        let names = |root: &Rootfs| {
            ["own", "file"].map(|name| {
                let path = GuestPath::root().child(name.as_bytes());
                root.exact_metadata(&path).unwrap().is_some()
            })
        };
        let opened = Rootfs::from_fd(tree.open().unwrap());
        let mount = Rootfs::from_fd(tree.mount(Access::Write).unwrap());
        for root in [opened, mount, tree.root().unwrap(), tree.directory().unwrap()] {
            assert_eq!(names(&root), [true, false]);
        }
        tree.refresh(Trust::Nothing, Learned::default(), Timestamp::default()).unwrap();
        let known = ["own", "file"]
            .map(|name| tree.index().inode(&GuestPath::root().child(name.as_bytes())).is_some());
        assert_eq!(known, [true, false]);
        let copy = tree.copy(Limit::new("names", 100)).unwrap();
        assert_eq!(names(&copy.root().unwrap()), [true, false]);
        drop((tree, copy));
        assert_eq!(fs::read(outside.path().join("file")).unwrap(), b"outside");
        assert!(moved.join("own").exists(), "only the link went");
    }
}
