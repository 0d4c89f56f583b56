//! Recording with overlayfs: what a step writes is in the mount's upper directory.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::Mode;

use crate::rootfs::{GuestPath, Rootfs};
use crate::store::mount::{self, Marks, Upper};
use crate::store::unpacked::{Chain, Layers, UnpackedLayer};
use crate::store::workspace::Workspace;

use super::{Recorded, Recording, SnapshotError, Snapshotter, View, upper};

/// Steps on overlay mounts whose upper directories are in a workspace.
#[derive(Debug)]
pub struct OverlaySnapshotter {
    workspace: Arc<Workspace>,
    /// How the kernel marks opaque directories here.
    pub(super) marks: Marks,
}

impl OverlaySnapshotter {
    /// Steps of the build that `workspace` belongs to.
    #[must_use]
    pub fn new(workspace: Arc<Workspace>) -> Self {
        Self { workspace, marks: Marks::usual() }
    }
}

impl Snapshotter for OverlaySnapshotter {
    fn begin(&self, on: Chain) -> Result<Box<dyn Recording>, SnapshotError> {
        let lower = self.view(&on)?;
        let Chain::Layers(on) = on else { return Err(SnapshotError::Foreign) };
        let directory = self.workspace.directory("step")?;
        let [files, work, scratch] = ["files", "work", "scratch"].map(|name| directory.join(name));
        for path in [&files, &work, &scratch] {
            rustix::fs::mkdir(path, Mode::RWXU).map_err(|cause| prepare(path, cause.into()))?;
        }
        // The mount's root is the upper directory itself, with the metadata that has.
        let inherited = Rootfs::open(&files)
            .and_then(|upper| mount::copy_metadata(lower.root(), &upper, &GuestPath::root()));
        inherited.map_err(|cause| prepare(&files, cause))?;
        let upper = Upper { files: &files, work: &work };
        let root = Rootfs::from_fd(mount::overlay(&on.root_dirs(), Some(upper), &scratch)?);
        let workspace = Arc::clone(&self.workspace);
        let marks = self.marks;
        Ok(Box::new(OverlayRecording { root, lower, below: on, files, marks, _workspace: workspace }))
    }

    fn view(&self, on: &Chain) -> Result<View, SnapshotError> {
        let Chain::Layers(on) = on else { return Err(SnapshotError::Foreign) };
        let scratch = self.workspace.directory("view")?;
        Ok(View { root: Rootfs::from_fd(mount::overlay(&on.root_dirs(), None, &scratch)?), _tree: None })
    }
}

fn prepare(path: &Path, cause: io::Error) -> SnapshotError {
    SnapshotError::Prepare { path: path.to_owned(), cause }
}

struct OverlayRecording {
    root: Rootfs,
    lower: View,
    /// The layers of `lower`.
    below: Layers,
    files: PathBuf,
    marks: Marks,
    /// The directories of the mount are in it.
    _workspace: Arc<Workspace>,
}

impl Recording for OverlayRecording {
    fn root(&self) -> &Rootfs {
        &self.root
    }

    fn mount(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    fn finish(self: Box<Self>) -> Result<Recorded, SnapshotError> {
        // Nothing is written out to disk: the upper directory has it all in memory, for this process too.
        drop(self.root);
        let written = Rootfs::open(&self.files).map_err(|cause| prepare(&self.files, cause))?;
        let upper::Found { changes, visited, opened } =
            upper::changes(written.as_fd(), self.lower.root().as_fd(), self.marks)?;
        let chain = self.below.with(UnpackedLayer::temporary(&self.files));
        Ok(Recorded { changes, files: written, chain: chain.into(), visited, opened })
    }
}
