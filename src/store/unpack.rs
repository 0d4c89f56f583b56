//! One layer's blob, applied to a tree and verified on the way.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::Mode;

use super::mount::MountError;
use super::tree::TreeError;
use super::workspace::{self, Workspace, WorkspaceError};
use crate::image::descriptor::Descriptor;
use crate::image::digest::{DiffId, Digest, Hashing, VerifyingReader};
use crate::layer::zstd::{LargeWindows, Side};
use crate::layer::{self, Application, Applied, LayerError, Limits, Owners, Rules, Whiteouts};
use crate::rootfs::{Overrides, Rootfs, RootfsError};

/// Why layers could not be unpacked.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The layer's blob cannot be opened.
    #[error("cannot open the layer {blob}")]
    Open {
        /// Its digest.
        blob: Digest,
        /// Why not.
        #[source]
        cause: io::Error,
    },
    /// The layer's content cannot be applied.
    #[error("cannot unpack the layer {blob}")]
    Layer {
        /// Its digest.
        blob: Digest,
        /// Why not.
        #[source]
        cause: LayerError,
    },
    /// The layer's bytes are not those of the blob, or not compressed as they should be.
    #[error("cannot read the layer {blob}")]
    Read {
        /// Its digest.
        blob: Digest,
        /// What came instead.
        #[source]
        cause: io::Error,
    },
    /// The archive in the blob is another than the image's config says.
    #[error("the layer {blob} unpacks to {actual}, but the image's config says {expected}")]
    DiffId {
        /// The digest of the blob.
        blob: Digest,
        /// The diff id in the config.
        expected: DiffId,
        /// That of the archive.
        actual: DiffId,
    },
    /// The layers below could not be seen as one tree.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The workspace could not be used.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    /// A layer and those below it could not be settled.
    #[error("cannot settle the layer {blob} with those below it")]
    Settle {
        /// The digest of the upper one.
        blob: Digest,
        /// Why not.
        #[source]
        cause: RootfsError,
    },
    /// A directory of the store could not be made, read or put in its place.
    #[error("cannot use `{path}`")]
    Directory {
        /// Which.
        path: PathBuf,
        /// Why not.
        #[source]
        cause: io::Error,
    },
    /// The directory that takes the files could not be used.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// The build was stopped.
    #[error("unpacking was stopped")]
    Cancelled,
}

impl UnpackError {
    /// The layer whose content could not be read or applied, if that is what went wrong.
    #[must_use]
    pub fn unreadable(&self) -> Option<&Digest> {
        match self {
            Self::Layer { blob, .. } | Self::Read { blob, .. } | Self::DiffId { blob, .. } => Some(blob),
            _ => None,
        }
    }
}

/// News about unpacking.
#[derive(Debug, Clone, Copy)]
pub enum Progress<'a> {
    /// The layer was unpacked before.
    Found(&'a Descriptor),
    /// The layer is being unpacked.
    Started(&'a Descriptor),
    /// So many bytes more of the stored layer have been read; at its end, none.
    Read(&'a Descriptor, u64),
    /// The layer is in the store.
    Finished(&'a Descriptor, &'a Applied),
}

/// Opens a blob, which may have to be fetched for that, unless the second argument says, asked often, that nobody wants it
/// any more.
pub type OpenBlob<'a> = dyn Fn(&Digest, &(dyn Fn() -> bool + Sync)) -> io::Result<File> + Sync + 'a;

/// What unpacking needs.
#[derive(Clone, Copy)]
pub struct Unpack<'a> {
    /// Opens the stored bytes of a layer. They need not have been verified.
    pub open_blob: &'a OpenBlob<'a>,
    /// Where layers are until they are complete.
    pub workspace: &'a Workspace,
    /// Hears how it goes; from several threads.
    pub progress: &'a (dyn Fn(Progress<'_>) + Sync),
    /// Says whether to stop; asked often, from several threads.
    pub cancelled: &'a (dyn Fn() -> bool + Sync),
    /// How many layers are unpacked at once; at least one is.
    pub jobs: usize,
    /// What a layer may hold.
    pub limits: &'a Limits,
    /// What becomes of owners that cannot be given to files. Those that are required are kept beside the files
    /// ([`Rootfs::holding`]), as is all else that the disk cannot hold; else both are lost, and reported.
    pub owners: Owners,
}

/// Where a layer's content comes from.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) diff_id: &'a DiffId,
    pub(super) blob: &'a Descriptor,
    pub(super) unpack: &'a Unpack<'a>,
    pub(super) windows: &'a LargeWindows,
}

impl Source<'_> {
    /// How the layer is applied, unless the caller changes it.
    pub(super) fn application(&self, whiteouts: Whiteouts) -> Application<'_> {
        let rules = Rules { owners: self.unpack.owners, ..Rules::layer(whiteouts) };
        Application::new(rules, self.unpack.limits)
    }

    /// `root` as a tree that keeps what the disk cannot hold, if anybody wants it.
    pub(super) fn holding(&self, root: Rootfs, overrides: Arc<Overrides>) -> Rootfs {
        match self.unpack.owners {
            Owners::Required => root.holding(overrides, self.unpack.limits.overrides),
            Owners::Possible | Owners::Mapped => root,
        }
    }

    /// Opens the blob and applies it to `onto`. Digest, size and diff id have been verified when this succeeds; until then
    /// the tree may hold anything.
    pub(super) fn apply(&self, application: Application<'_>, onto: &Rootfs) -> Result<Applied, UnpackError> {
        let result = self.verified(application, onto);
        // Whatever it is that failed then, it says nothing about the layer.
        if result.is_err() && (self.unpack.cancelled)() { Err(UnpackError::Cancelled) } else { result }
    }

    fn verified(&self, application: Application<'_>, onto: &Rootfs) -> Result<Applied, UnpackError> {
        let blob = &self.blob.digest;
        let read = |cause| UnpackError::Read { blob: blob.clone(), cause };
        let file = (self.unpack.open_blob)(blob, self.unpack.cancelled);
        let file = file.map_err(|cause| UnpackError::Open { blob: blob.clone(), cause })?;
        let stopping = Stopping { file, source: *self };
        let mut stored = VerifyingReader::new(stopping, blob.clone(), self.blob.size);
        let side = Side { windows: self.windows, cancelled: self.unpack.cancelled };
        let archive = layer::decompress_beside(&mut stored, layer::Formats::Layer, self.unpack.limits, side)
            .map_err(read)?;
        let mut archive = Hashing::new(archive, self.diff_id.0.algorithm());
        let applied = application
            .run(&mut archive, onto)
            .map_err(|cause| UnpackError::Layer { blob: blob.clone(), cause })?;
        let actual = DiffId(archive.finish().0);
        // Only the end of the blob tells whether it was the right one.
        io::copy(&mut stored, &mut io::sink()).map_err(read)?;
        if actual != *self.diff_id {
            let expected = self.diff_id.clone();
            return Err(UnpackError::DiffId { blob: blob.clone(), expected, actual });
        }
        Ok(applied)
    }
}

/// Makes a directory that may become the root of a tree: mode 0755 whatever the umask.
pub(super) fn make_directory(path: &Path) -> Result<(), UnpackError> {
    let made = rustix::fs::mkdir(path, Mode::RWXU)
        .and_then(|()| rustix::fs::chmod(path, Mode::from_raw_mode(0o755)));
    made.map_err(|cause| failed(path, cause.into()))
}

/// A layer's file, which tells how much of it was read and ends with an error when the build is stopped.
struct Stopping<'a> {
    file: File,
    source: Source<'a>,
}

impl Read for Stopping<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Source { unpack, blob, .. } = self.source;
        if (unpack.cancelled)() {
            return Err(io::Error::other("the build was stopped"));
        }
        let read = self.file.read(buffer)?;
        (unpack.progress)(Progress::Read(blob, read as u64));
        Ok(read)
    }
}

pub(super) fn failed(path: &Path, cause: io::Error) -> UnpackError {
    UnpackError::Directory { path: path.to_owned(), cause }
}

pub(super) fn open(path: &Path) -> Result<Rootfs, UnpackError> {
    Rootfs::open(path).map_err(|cause| failed(path, cause))
}

/// Removes what is not needed any more. What stays is gone with the workspace.
pub(super) fn discard(directory: &Path) {
    let _ = workspace::remove(directory);
}
