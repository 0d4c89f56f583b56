//! What can go wrong with what a step finds in its root besides the image.

use crate::rootfs::{CopyTreeError, GuestPath, RootfsError};

/// Why a root could not be prepared for a step, or be given back its own files.
#[derive(Debug, thiserror::Error)]
pub enum FurnishError {
    /// The image has something else where the kernel's file systems belong.
    #[error("`{path}` in the image is a {found}: nothing can be mounted there")]
    MountPoint {
        /// `/proc`, `/sys`, `/dev`, `/etc/hosts` or `/etc/resolv.conf`.
        path: String,
        /// What is there.
        found: &'static str,
    },
    /// What is needed to mount something, an empty file for instance, could not be made.
    #[error("cannot prepare `{path}` in the image")]
    Prepare {
        /// Where something was to be mounted.
        path: GuestPath,
        /// Why.
        #[source]
        source: RootfsError,
    },
    /// What cannot be mounted could not be copied either.
    #[error("cannot copy what is to be mounted at `{path}`")]
    Copy {
        /// Where it was to be.
        path: GuestPath,
        /// Why not.
        #[source]
        source: CopyTreeError,
    },
    /// What is kept elsewhere, and was copied for the step, could not be copied back.
    #[error("cannot keep what the step has written to `{path}`")]
    Return {
        /// Where it was.
        path: GuestPath,
        /// Why not.
        #[source]
        source: CopyTreeError,
    },
    /// What was made for mounts, or put in their place, could not be taken away.
    #[error("cannot take away what was there for this step only")]
    Restore(#[source] RootfsError),
}
