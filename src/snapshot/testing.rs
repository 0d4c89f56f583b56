//! Steps on both kinds of trees, for the tests of this module: what is expected of one is expected of the other.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::mount::{MoveMountFlags, UnmountFlags};

use crate::layer::test_support::apply;
use crate::layer::{Change, Changeset, Formats, Limits, Marks, Whiteouts, decompress, write};
use crate::rootfs::{Overrides, Rootfs};
use crate::store::testing::{dump, links, run, settle_times};
use crate::store::tree::Tree;
use crate::store::unpacked::{Chain, Layers, Likeness, UnpackedLayer};
use crate::store::workspace::Workspace;

use super::native::Comparison;
use super::{NativeSnapshotter, OverlaySnapshotter, Recorded, SnapshotError, Snapshotter};

/// How files are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Overlay,
    Native,
    /// With content compared.
    NativeFull,
}

impl Kind {
    pub(super) fn snapshotter(self, workspace: Arc<Workspace>) -> Box<dyn Snapshotter> {
        let limits = Limits::default();
        match self {
            Self::Overlay => Box::new(OverlaySnapshotter::new(workspace, limits.overrides)),
            Self::Native => Box::new(NativeSnapshotter::new(workspace, Comparison::Metadata, limits)),
            Self::NativeFull => Box::new(NativeSnapshotter::new(workspace, Comparison::Content, limits)),
        }
    }
}

pub(super) const KINDS: [Kind; 3] = [Kind::Overlay, Kind::Native, Kind::NativeFull];

pub(super) struct Ground {
    pub(super) kind: Kind,
    pub(super) directory: tempfile::TempDir,
    pub(super) workspace: Arc<Workspace>,
    pub(super) snapshotter: Box<dyn Snapshotter>,
}

impl Ground {
    pub(super) fn new(kind: Kind) -> Self {
        Self::with(kind, |workspace| kind.snapshotter(workspace))
    }

    pub(super) fn with(kind: Kind, snapshotter: impl FnOnce(Arc<Workspace>) -> Box<dyn Snapshotter>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let workspace = Arc::new(Workspace::create(&directory.path().join("tmp"), None).unwrap());
        let snapshotter = snapshotter(Arc::clone(&workspace));
        Self { kind, directory, workspace, snapshotter }
    }

    /// A base that `script` made, all of it from the same second.
    pub(super) fn base(&self, script: &str) -> Chain {
        self.filled(|directory| {
            run(directory, script);
            settle_times(directory);
        })
    }

    /// A base that `fill` made, as one layer or as a tree.
    pub(super) fn filled(&self, fill: impl FnOnce(&Path)) -> Chain {
        if self.kind != Kind::Overlay {
            return Tree::filled(&self.workspace, fill).into();
        }
        let base = self.workspace.directory("base").unwrap();
        crate::rootfs::set_mode_at(
            Rootfs::open(&base).as_ref().map(std::os::fd::AsFd::as_fd).unwrap(),
            b".",
            0o755,
        )
        .unwrap();
        fill(&base);
        let layer = UnpackedLayer::temporary(&base, Likeness::Equal, Overrides::default());
        Layers::empty().with(layer).unwrap().into()
    }

    /// The same files, which nobody else holds.
    pub(super) fn second(&self, chain: &Chain) -> Chain {
        match chain {
            Chain::Layers(_) => chain.clone(),
            Chain::Tree(tree) => tree.copy(Limits::NAMES).unwrap().into(),
        }
    }

    /// Runs a step on `chain` the way a sandbox does: in the mount, moved to where it has a path. Also compares the
    /// tree the step saw with the one that its layer gives.
    pub(super) fn step(&self, chain: Chain, script: &str) -> Result<Recorded, SnapshotError> {
        let before = self.second(&chain);
        let recording = self.snapshotter.begin(chain)?;
        self.run_in(recording.mount(), script);
        let tree = (dump_without_time_of_root(recording.root()), links(recording.root()));
        let recorded = recording.finish()?;
        let view = self.snapshotter.view(&recorded.chain)?;
        let shown = (dump_without_time_of_root(view.root()), links(view.root()));
        if self.kind == Kind::Overlay && Marks::usual() == Marks::User {
            // In a user namespace overlayfs cannot note where a file was copied up from. Once they are no longer in the
            // kernel's cache, the name that a lower layer has and one that was linked to it seem to be two files.
            assert_eq!(shown.0, tree.0, "{script}");
            let one_file =
                |names: &[String]| shown.1.iter().any(|all| names.iter().all(|name| all.contains(name)));
            assert!(tree.1.iter().all(|names| one_file(names)), "{script}: {:?} {:?}", tree.1, shown.1);
        } else {
            assert_eq!(shown, tree, "{script}");
        }
        self.check_layer(before, &recorded, view.root()).unwrap();
        Ok(recorded)
    }

    /// `apply(write(diff(a, b)), a) == b`, save for what layers leave out: sockets and the root itself.
    pub(super) fn check_layer(
        &self,
        before: Chain,
        recorded: &Recorded,
        after: &Rootfs,
    ) -> Result<(), String> {
        let mut blob = Vec::new();
        write(&recorded.changes, &recorded.files, &mut blob).unwrap();
        let copy = self.snapshotter.begin(before).unwrap();
        let limits = Limits::default();
        let mut archive = decompress(&blob[..], Formats::Layer, &limits).unwrap();
        apply(&mut archive, copy.root(), Whiteouts::Remove, &limits).unwrap();
        let kept = |tree: &Rootfs| {
            let text = dump(tree);
            let kept = text.lines().skip(1).filter(|line| !line.contains(" Socket "));
            kept.map(str::to_owned).collect::<Vec<_>>()
        };
        let (actual, expected) = (kept(copy.root()), kept(after));
        if actual != expected {
            return Err(format!(
                "the layer gives another tree:\n{}\nthe step:\n{}",
                actual.join("\n"),
                expected.join("\n")
            ));
        }
        // A file that was copied up loses its other names, but that alone is no change.
        let copied = links(copy.root());
        for names in links(after) {
            if !copied.iter().any(|one| names.iter().all(|name| one.contains(name))) {
                return Err(format!("{names:?} are one file, but in the layer's tree there are {copied:?}"));
            }
        }
        Ok(())
    }

    /// Runs a step without a look at the trees, which may be large.
    pub(super) fn step_unseen(&self, chain: Chain, script: &str) -> Result<Recorded, SnapshotError> {
        let recording = self.snapshotter.begin(chain)?;
        self.run_in(recording.mount(), script);
        recording.finish()
    }

    /// Moves the mount to a place and runs the script there.
    pub(super) fn run_in(&self, mount: BorrowedFd<'_>, script: &str) {
        self.at_place(mount, |place| run(place, script));
    }

    /// Moves the mount to a place for the time of `work`.
    pub(super) fn at_place<T>(&self, mount: BorrowedFd<'_>, work: impl FnOnce(&Path) -> T) -> T {
        let place = self.directory.path().join("place");
        std::fs::create_dir_all(&place).unwrap();
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        rustix::mount::move_mount(mount, "", rustix::fs::CWD, &place, flags).unwrap();
        let result = work(&place);
        rustix::mount::unmount(&place, UnmountFlags::DETACH).unwrap();
        result
    }
}

/// Everything but the time of the root, which no layer has unless something else of the root has changed.
pub(super) fn dump_without_time_of_root(tree: &Rootfs) -> String {
    let text = dump(tree);
    let (root, rest) = text.split_once('\n').unwrap_or((&text, ""));
    let facts: Vec<&str> =
        root.split(' ').enumerate().filter(|(at, _)| *at != 4).map(|(_, word)| word).collect();
    format!("{}\n{rest}", facts.join(" "))
}

/// The changes in order, `+` what is put and `-` what is removed.
pub(super) fn text(changes: &Changeset) -> Vec<String> {
    let line = |change: Change| match change {
        Change::Put(path) => format!("+{path}"),
        Change::Remove(path) => format!("-{path}"),
    };
    changes.iter().map(line).collect()
}
