//! Recording with overlayfs: what a step writes is in the mount's upper directory.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;

use crate::layer::{Change, Marks, Recipient, copy_metadata};
use crate::limit::Limit;
use crate::rootfs::{GuestPath, Overrides, Owner, Rootfs, RootfsError};
use crate::store::mount::{self, Upper};
use crate::store::overrides;
use crate::store::unpacked::{Chain, Layers, Likeness, UnpackedLayer};
use crate::store::workspace::Workspace;

use super::upper::{self, Found};
use super::{Recorded, Recording, SnapshotError, Snapshotter, View};

/// Steps on overlay mounts whose upper directories are in a workspace.
#[derive(Debug)]
pub struct OverlaySnapshotter {
    workspace: Arc<Workspace>,
    limit: Limit,
    /// How the kernel marks opaque directories here.
    pub(super) marks: Marks,
}

impl OverlaySnapshotter {
    /// Steps of the build that `workspace` belongs to. `limit` is that of the overrides of one step.
    #[must_use]
    pub fn new(workspace: Arc<Workspace>, limit: Limit) -> Self {
        Self { workspace, limit, marks: Marks::usual() }
    }
}

impl OverlaySnapshotter {
    /// Finds out whether overlayfs works with the workspace: with layers above, with removed names and with directories
    /// made anew. Some file systems take the mount and fail then.
    ///
    /// # Errors
    /// What does not work.
    pub fn try_out(&self) -> Result<(), SnapshotError> {
        let lower = self.workspace.directory("try")?;
        let path = |name: &[u8]| GuestPath::root().child(name);
        let (file, directory) = (path(b"file"), path(b"directory"));
        let base = Rootfs::open(&lower).map_err(|cause| prepare(&lower, cause))?;
        let make = |root: &Rootfs| {
            root.open_file(&file, OFlags::CREATE | OFlags::WRONLY, 0o600)?;
            root.create_dirs(&directory, 0o700, Owner::ROOT).map(drop)
        };
        let layer = UnpackedLayer::temporary(&lower, Likeness::Other, Overrides::default());
        let unfit = |source: RootfsError| SnapshotError::Unfit { path: lower.clone(), source };
        make(&base).map_err(unfit)?;
        let chain = Layers::empty().with_overrides(layer, Arc::default());
        let recording = self.begin(chain.into())?;
        let change = |root: &Rootfs| {
            root.remove(&file)?;
            root.remove(&directory)?;
            root.create_dirs(&directory, 0o711, Owner::ROOT).map(drop)
        };
        change(recording.root()).map_err(unfit)?;
        let changes = recording.finish()?.changes;
        let expected = [Change::Put(directory.clone()), Change::Remove(file.clone())];
        if changes.iter().eq(expected) { Ok(()) } else { Err(SnapshotError::Forgetful { path: lower }) }
    }
}

impl Snapshotter for OverlaySnapshotter {
    fn begin(&self, on: Chain) -> Result<Box<dyn Recording>, SnapshotError> {
        let lower = self.view(&on)?;
        let Chain::Layers(on) = on else { return Err(SnapshotError::Foreign) };
        let directory = self.workspace.scratch("step")?;
        // Alone in a directory, as the store has layers: it may become one.
        let layer = self.workspace.scratch("layer")?;
        let files = layer.directory(UnpackedLayer::ROOT)?;
        let [work, scratch] = ["work", "scratch"].map(|name| directory.directory(name));
        let (work, scratch) = (work?, scratch?);
        // The mount's root is the upper directory itself, with the metadata that has.
        let inherited = Rootfs::open(&files)
            .and_then(|upper| copy_metadata(lower.root(), &upper, &GuestPath::root(), Recipient::Owner));
        inherited.map_err(|cause| prepare(&files, cause))?;
        let upper = Upper { files: &files, work: &work };
        let root = Rootfs::from_fd(mount::overlay(&on.root_dirs(), Some(upper), &scratch)?)
            .with_overrides(Arc::clone(on.overrides()), self.limit);
        let workspace = Arc::clone(&self.workspace);
        let (own, marks) = ([layer.keep(), directory.keep()], self.marks);
        Ok(Box::new(OverlayRecording { root, lower, below: on, files, marks, own, workspace }))
    }

    fn view(&self, on: &Chain) -> Result<View, SnapshotError> {
        let Chain::Layers(on) = on else { return Err(SnapshotError::Foreign) };
        let scratch = self.workspace.directory("view")?;
        let root = Rootfs::from_fd(mount::overlay(&on.root_dirs(), None, &scratch)?);
        Ok(View { root: root.with_overrides(Arc::clone(on.overrides()), self.limit), _tree: None })
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
    /// The directory of what is written, and that of what the mount needs.
    own: [PathBuf; 2],
    workspace: Arc<Workspace>,
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
        let learned = self.root.take_learned();
        drop(self.root);
        let (lower, marks) = (self.lower.root(), self.marks);
        let files = Rootfs::open(&self.files).map_err(|cause| prepare(&self.files, cause))?;
        let written = overrides::written(self.below.overrides(), learned, &files, lower, marks)?;
        let files = files.with_overrides(Arc::clone(&written.all), Overrides::LIMIT);
        let Found { changes, visited, opened, likeness } = upper::changes(&files, lower, marks)?;
        // Where the root is not what the layers say, its copy in this layer is not either.
        let mut below = self.below.layers().iter().map(UnpackedLayer::likeness);
        let likeness = if below.all(|one| one == Likeness::Equal) { likeness } else { Likeness::Other };
        let layer = UnpackedLayer::temporary(&self.files, likeness, written.own());
        let chain = self.below.with_overrides(layer, written.all).into();
        Ok(Recorded { changes, files, chain, visited, opened })
    }

    fn discard(self: Box<Self>) {
        drop((self.root, self.lower));
        self.own.iter().for_each(|directory| self.workspace.remove(directory));
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Ground, Kind};
    use super::*;
    use crate::store::testing::can_mount;

    /// What a step did last, and whether what it wrote is what its layer unpacks to.
    const STEPS: [(&str, Likeness); 7] = [
        ("mkdir e; echo > e/f; mkfifo q", Likeness::Equal),
        ("rm -r d; mkdir d; touch .", Likeness::Equal),
        ("chmod 755 d; echo > d/f", Likeness::Equal),
        (
            "perl -MIO::Socket::UNIX -e 'IO::Socket::UNIX->new(Local => \"d/s\", Listen => 1)'",
            Likeness::Other,
        ),
        ("chmod 700 .", Likeness::Other),
        ("chown 5:5 .", Likeness::Other),
        ("chmod 755 .; touch d", Likeness::Equal),
    ];

    #[test]
    fn what_no_layer_has_is_not_for_later_builds() {
        if !can_mount() {
            return;
        }
        let ground = Ground::new(Kind::Overlay);
        let base = ground.base("mkdir d; echo > d/f; mkfifo p");
        for (script, expected) in STEPS {
            let Chain::Layers(layers) = ground.step(base.clone(), script).unwrap().chain else { panic!() };
            assert_eq!(layers.layers()[1].likeness(), expected, "{script}");
            // What stands on it has the root of it.
            let Chain::Layers(layers) = ground.step(layers.into(), "echo > g").unwrap().chain else {
                panic!()
            };
            assert_eq!(layers.layers()[2].likeness(), expected, "{script}");
        }
    }
}
