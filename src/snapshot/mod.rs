//! What a step changed in the files of its stage.

pub mod native;
pub mod overlay;
#[cfg(test)]
mod override_tests;
mod upper;

#[cfg(test)]
mod cases;
#[cfg(test)]
mod scripts;
#[cfg(test)]
mod testing;

use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;

use crate::layer::Changeset;
use crate::layer::changes::Unrecordable;
use crate::rootfs::{GuestPath, Rootfs, RootfsError};
use crate::store::index::IndexError;
use crate::store::mount::MountError;
use crate::store::tree::{Tree, TreeError};
use crate::store::unpacked::Chain;
use crate::store::workspace::WorkspaceError;

pub use native::NativeSnapshotter;
pub use overlay::OverlaySnapshotter;

/// Gives steps a tree to write to, and says afterwards what they wrote.
pub trait Snapshotter: Sync {
    /// Begins a step on the files of `on`. Who needs these further keeps a copy of the chain: without one, the step may
    /// work on the files themselves.
    ///
    /// # Errors
    /// When the tree cannot be mounted.
    fn begin(&self, on: Chain) -> Result<Box<dyn Recording>, SnapshotError>;

    /// The files of `on`, to read.
    ///
    /// # Errors
    /// When the tree cannot be mounted.
    fn view(&self, on: &Chain) -> Result<View, SnapshotError>;
}

/// A tree whose changes are recorded.
pub trait Recording: Send {
    /// The tree. Handles made from it must be dropped before [`Recording::finish`].
    fn root(&self) -> &Rootfs;

    /// The root of a detached mount (`O_PATH`) that move_mount(2) can put into a mount namespace, once.
    fn mount(&self) -> BorrowedFd<'_>;

    /// Ends the step. Nothing may write to the tree any more. Without an error, the changes are complete.
    ///
    /// # Errors
    /// When the changes cannot be found out, or cannot be part of a layer.
    fn finish(self: Box<Self>) -> Result<Recorded, SnapshotError>;

    /// Ends the step and removes what it wrote. What is merely dropped may stay until the workspace goes: whoever looks
    /// for the reason of a failure, a full disk for instance, finds things as the step left them.
    fn discard(self: Box<Self>) {}
}

/// The files of a stage, to read. The mount is gone with this value.
#[derive(Debug)]
pub struct View {
    root: Rootfs,
    /// Nobody removes or changes the tree as long as it is looked at.
    _tree: Option<Arc<Tree>>,
}

impl View {
    /// The tree.
    #[must_use]
    pub fn root(&self) -> &Rootfs {
        &self.root
    }
}

/// What a step changed.
#[derive(Debug)]
pub struct Recorded {
    /// What is new, other or gone, sorted by path; empty when the step changed nothing. The directories above a change
    /// are part of it, changed or not: who unpacks the layer alone must not have to guess their owner and mode.
    /// Sockets are never part of it.
    pub changes: Changeset,
    /// Where the content and the metadata of what `changes` puts are read. The next step may change it.
    pub files: Rootfs,
    /// The step's tree. What the step wrote is gone with the workspace, at the latest.
    pub chain: Chain,
    /// How many entries were looked at.
    pub visited: u64,
    /// How many files were read for that.
    pub opened: u64,
}

/// Why a step could not be recorded.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The layers could not be mounted.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The workspace could not be used.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    /// A directory with the files could not be used.
    #[error(transparent)]
    Tree(TreeError),
    /// Layers for who has directories, or a directory for who has layers.
    #[error("the files of this stage are kept in another way than its steps need them")]
    Foreign,
    /// The clock of the file system could not be read.
    #[error("cannot find out which time the file system of the store has")]
    Clock(#[source] io::Error),
    /// The directory that takes the step's files could not be prepared.
    #[error("cannot prepare the directory `{path}`")]
    Prepare {
        /// Which.
        path: PathBuf,
        /// Why not.
        #[source]
        cause: io::Error,
    },
    /// What the disk does not hold of the step's files could not be found out.
    #[error("cannot find out what became of files that belong to others or are devices")]
    Overrides(#[from] RootfsError),
    /// Overlayfs can be mounted and does not work.
    #[error("overlayfs does not work on the file system of `{path}`")]
    Unfit {
        /// A directory there.
        path: PathBuf,
        /// What failed.
        #[source]
        source: RootfsError,
    },
    /// Overlayfs works, and what was done with it is not to be found afterwards.
    #[error("overlayfs does not keep what is removed on the file system of `{path}`")]
    Forgetful {
        /// A directory there.
        path: PathBuf,
    },
    /// An entry could not be read.
    #[error("cannot find out whether `{path}` changed")]
    Compare {
        /// Its path in the tree.
        path: GuestPath,
        /// Why not.
        #[source]
        cause: io::Error,
    },
    /// A change that no layer can hold.
    #[error(transparent)]
    Unrecordable(#[from] Unrecordable),
    /// The kernel renamed a directory by reference, which the mount's options forbid.
    #[error("the overlay moved `{path}` by reference although `redirect_dir` is off")]
    Redirected {
        /// The directory.
        path: GuestPath,
    },
}

impl From<TreeError> for SnapshotError {
    fn from(error: TreeError) -> Self {
        match error {
            TreeError::Index(IndexError::Unrecordable(change)) => Self::Unrecordable(change),
            TreeError::Index(IndexError::Read { path, cause }) => Self::Compare { path, cause },
            TreeError::Workspace(error) => Self::Workspace(error),
            TreeError::Overrides(error) => Self::Overrides(error),
            error => Self::Tree(error),
        }
    }
}
