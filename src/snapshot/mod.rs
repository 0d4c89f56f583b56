//! What a step changed in the files of its stage.

pub mod overlay;
#[cfg(test)]
mod override_tests;
mod upper;

use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use crate::layer::Changeset;
use crate::rootfs::{GuestPath, Rootfs, RootfsError};
use crate::store::mount::MountError;
use crate::store::unpacked::Chain;
use crate::store::workspace::WorkspaceError;

pub use crate::store::mount::enter_private_mounts;
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
}

/// The files of a chain of layers, read-only. The mount is gone with this value.
#[derive(Debug)]
pub struct View {
    root: Rootfs,
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
    /// Where the content and the metadata of what `changes` puts are read.
    pub files: Rootfs,
    /// The step's tree. What the step wrote is gone with the workspace.
    pub chain: Chain,
    /// How many entries were looked at.
    pub visited: u64,
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
    /// An entry could not be read.
    #[error("cannot find out whether `{path}` changed")]
    Compare {
        /// Its path in the tree.
        path: GuestPath,
        /// Why not.
        #[source]
        cause: io::Error,
    },
    /// A path that no layer can hold.
    #[error("the path `{parent}/{}` is longer than 4096 bytes", name.escape_ascii())]
    PathTooLong {
        /// Its directory.
        parent: GuestPath,
        /// Its last component.
        name: Vec<u8>,
    },
    /// A name that means something else in a layer (OCI image-spec `layer.md`, Whiteouts).
    #[error("the step made `{path}`, but layers mark removed files by names that begin with `.wh.`")]
    WhiteoutName {
        /// The path.
        path: GuestPath,
    },
    /// The kernel renamed a directory by reference, which the mount's options forbid.
    #[error("the overlay moved `{path}` by reference although `redirect_dir` is off")]
    Redirected {
        /// The directory.
        path: GuestPath,
    },
}
