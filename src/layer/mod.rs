//! Changesets as tar archives (OCI image-spec `layer.md`): read, applied to a tree, and written.

pub mod apply;
#[cfg(test)]
#[path = "../../integration/hostile_layers/archive.rs"]
mod archive;
pub mod changes;
pub mod compression;
pub mod compressor;
pub mod convert;
pub mod form;
pub mod gzip;
#[cfg(test)]
#[path = "../../integration/hostile_layers/cases/mod.rs"]
mod hostile_cases;
#[cfg(test)]
mod hostile_tests;
pub mod inherit;
mod marks;
mod packed;
pub mod pax;
mod sparse;
pub mod tar;
mod tar_writer;
#[cfg(test)]
pub(crate) mod test_support;
pub mod write;
mod xz;
pub mod zstd;
pub mod zstd_writer;

use std::io;

use crate::limit::Limit;
use crate::rootfs::{Escaped, GuestPath, GuestPathError, Overrides, RootfsError};

pub use apply::{
    Application, Applied, Climbing, Loss, LossKind, Losses, Made, Observer, Owners, Restricted, Rules,
    Whiteouts, remove_whiteouts,
};
pub use changes::Changeset;
pub use compression::{Formats, decompress, decompress_beside};
pub use inherit::{Recipient, copy_metadata};
pub use marks::Marks;
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

/// How much a layer may hold. What is reached is in the error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Entries, whiteouts and directories without an entry of their own included.
    pub entries: Limit,
    /// Bytes of the uncompressed archive, and bytes of all files, holes included.
    pub bytes: Limit,
    /// Bytes of the path names in [`Applied`], the only memory that grows with a layer.
    pub names: Limit,
    /// Bytes of what the disk cannot hold of the files of a layer or step, beyond 200 an entry
    /// ([`Rootfs::holding`](crate::rootfs::Rootfs::holding)).
    pub overrides: Limit,
    /// Bytes of one extension of an entry: PAX records, a long name, a sparse map.
    pub extension: Limit,
    /// Bytes that a decompressor has to remember: the window of zstd, the dictionary of xz.
    pub window: Limit,
    /// Bytes of the files of a layer that is written, holes included.
    pub written: Limit,
}

impl Limits {
    /// 10 million.
    pub const ENTRIES: Limit = Limit::new("layer-entries", 10_000_000);
    /// 64 GiB.
    pub const BYTES: Limit = Limit::new("layer-bytes", 64 << 30);
    /// 64 MiB.
    pub const NAMES: Limit = Limit::new("layer-names", 64 << 20);
    /// 1 MiB.
    pub const EXTENSION: Limit = Limit::new("tar-extension", 1 << 20);
    /// 128 MiB: what `zstd --long` uses. RFC 8878 asks readers for 8 MiB at least.
    pub const WINDOW: Limit = Limit::new("zstd-window", 128 << 20);
    /// 64 GiB.
    pub const WRITTEN: Limit = Limit::new("new-layer-bytes", 64 << 30);
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            entries: Self::ENTRIES,
            bytes: Self::BYTES,
            names: Self::NAMES,
            overrides: Overrides::LIMIT,
            extension: Self::EXTENSION,
            window: Self::WINDOW,
            written: Self::WRITTEN,
        }
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
    ///
    /// What is wrong with it by itself, what it has too much of, or what fails here for a reason that has nothing to do with
    /// where a path leads, would be the same there, and everything would have been decompressed and written twice.
    #[must_use]
    pub fn depends_on_lower_layers(&self) -> bool {
        let Self::Entry { problem, .. } = self else { return false };
        match problem {
            EntryError::LinkToNothing(_)
            | EntryError::LinkToDirectory(_)
            | EntryError::LinkToItself
            | EntryError::NotADirectory(_) => true,
            // What is remembered are the directories and links that only lower layers can settle.
            EntryError::Names(_) => true,
            EntryError::Rootfs(RootfsError::Io { source, .. }) => {
                use rustix::io::Errno;
                let way = [Errno::LOOP, Errno::NAMETOOLONG, Errno::NOTDIR, Errno::NOENT];
                Errno::from_io_error(source).is_some_and(|errno| way.contains(&errno))
            }
            EntryError::Name(_)
            | EntryError::Target(_)
            | EntryError::Root
            | EntryError::Whiteout
            | EntryError::OverlayAttribute(_)
            | EntryError::Entries(_)
            | EntryError::Bytes(_)
            | EntryError::Io { .. }
            | EntryError::Attribute { .. }
            | EntryError::Tar(_)
            | EntryError::Rootfs(_) => false,
        }
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
    #[error("more than {value} entries; {0}", value = .0.value)]
    Entries(Limit),
    /// Too many bytes.
    #[error("the files hold more than {value} bytes; {0}", value = .0.value)]
    Bytes(Limit),
    /// Too much to remember.
    #[error(
        "more than {value} bytes of names of implied directories and of hard links into lower layers; {0}",
        value = .0.value
    )]
    Names(Limit),
    /// A system call failed.
    #[error("cannot {action}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// An extended attribute that the file system or the kernel refuses.
    #[error("cannot set the extended attribute `{key}` ({size} bytes)")]
    Attribute {
        /// Its name.
        key: Escaped,
        /// Bytes of its value.
        size: usize,
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
    /// With it, the files of the layer are too large.
    #[error("the files of the layer hold more than {value} bytes; {0}", value = .0.value)]
    TooLarge(Limit),
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
