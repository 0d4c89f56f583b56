//! Changesets as tar archives (OCI image-spec `layer.md`): read, applied to a tree, and written.

pub mod apply;
pub mod changes;
pub mod compression;
pub mod gzip;
#[cfg(test)]
mod hostile_tests;
pub mod pax;
pub mod tar;
#[cfg(test)]
mod test_support;
pub mod write;

use std::io;

use crate::rootfs::{Escaped, GuestPath, GuestPathError, RootfsError};

pub use apply::{
    Applied, Made, Names, Observer, Rules, Skipped, Whiteouts, apply, apply_observed, apply_with,
    remove_whiteouts,
};
pub use compression::{Formats, decompress};
pub use tar::TarError;
pub use write::{WriteOptions, Written, write, write_with};

/// One difference between a tree and the layers below it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// The path is new or other: everything about it is taken from the tree.
    Put(GuestPath),
    /// The path is gone.
    Remove(GuestPath),
}

impl Change {
    /// The path that differs.
    #[must_use]
    pub fn path(&self) -> &GuestPath {
        match self {
            Self::Put(path) | Self::Remove(path) => path,
        }
    }
}

/// All differences, sorted by path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changeset(pub Vec<Change>);

/// How much a layer may hold. What is reached is in the error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Entries, whiteouts included.
    pub entries: u64,
    /// Bytes of the uncompressed archive, and bytes of all files, holes included.
    pub bytes: u64,
    /// Bytes of the path names in [`Applied`], the only memory that grows with a layer.
    pub reported: u64,
}

impl Default for Limits {
    /// 10 million entries, 64 GiB, 64 MiB.
    fn default() -> Self {
        Self { entries: 10_000_000, bytes: 64 << 30, reported: 64 << 20 }
    }
}

/// Why a layer could not be applied or written.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    /// The archive cannot be read.
    #[error(transparent)]
    Tar(#[from] TarError),
    /// One entry cannot be applied.
    #[error("entry `{name}`")]
    Entry {
        /// The name as it stands in the archive.
        name: Escaped,
        /// What is wrong with it.
        #[source]
        problem: EntryError,
    },
    /// The tree cannot be read or changed.
    #[error(transparent)]
    Rootfs(#[from] RootfsError),
    /// A file of a changeset cannot be written into a layer.
    #[error("`{path}` cannot be part of a layer")]
    Unwritable {
        /// The file.
        path: GuestPath,
        /// Why not.
        #[source]
        problem: WriteProblem,
    },
    /// The layer cannot be compressed or stored.
    #[error("cannot write the layer")]
    Output(#[source] io::Error),
}

impl LayerError {
    /// Whether a layer that cannot be unpacked alone might still be applied to the layers below it.
    #[must_use]
    pub fn depends_on_lower_layers(&self) -> bool {
        let Self::Entry { problem, .. } = self else { return false };
        matches!(problem, EntryError::LinkToNothing(_) | EntryError::NotADirectory(_))
    }
}

/// What is wrong with an entry.
#[derive(Debug, thiserror::Error)]
pub enum EntryError {
    /// Its name.
    #[error("the name is not allowed")]
    Name(#[source] GuestPathError),
    /// The target of a hard link.
    #[error("the link target is not allowed")]
    Target(#[source] GuestPathError),
    /// The root is replaced by something else than a directory.
    #[error("the root is a directory and stays one")]
    Root,
    /// A whiteout of no name, or of `.` or `..`.
    #[error("a whiteout names nothing that could be removed")]
    Whiteout,
    /// A directory whose name is reserved for whiteouts.
    #[error("names that begin with `.wh.` are reserved for whiteouts")]
    Reserved,
    /// Something on the way is no directory.
    #[error("`{0}` is not a directory")]
    NotADirectory(GuestPath),
    /// A hard link to itself.
    #[error("a hard link to itself")]
    LinkToItself,
    /// A hard link to a directory.
    #[error("a hard link to the directory `{0}`")]
    LinkToDirectory(GuestPath),
    /// A hard link to nothing.
    #[error("a hard link to `{0}`, which does not exist")]
    LinkToNothing(GuestPath),
    /// An attribute that would steer overlayfs.
    #[error("the extended attribute `{0}` is reserved for overlayfs")]
    OverlayAttribute(Escaped),
    /// Too many entries.
    #[error("more than {0} entries")]
    Entries(u64),
    /// Too many bytes.
    #[error("the files hold more than {0} bytes")]
    Bytes(u64),
    /// Too much to remember.
    #[error(
        "more than {0} bytes of names of implied directories, hard links into lower layers and skipped attributes"
    )]
    Reported(u64),
    /// A system call failed.
    #[error("cannot {action}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The content cannot be read.
    #[error(transparent)]
    Tar(#[from] TarError),
    /// The tree cannot be read or changed.
    #[error(transparent)]
    Rootfs(#[from] RootfsError),
}

/// Why a file cannot be part of a layer.
#[derive(Debug, thiserror::Error)]
pub enum WriteProblem {
    /// It would be read as a whiteout.
    #[error("names that begin with `.wh.` are reserved for whiteouts")]
    Reserved,
    /// It is not in the tree.
    #[error("it does not exist")]
    Missing,
    /// It became longer or shorter, or another file.
    #[error("it changed while it was being read")]
    Changed,
    /// PAX cannot name the attribute.
    #[error("the extended attribute `{0}` has `=` in its name")]
    Attribute(Escaped),
    /// A system call failed.
    #[error("cannot {action}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
}
