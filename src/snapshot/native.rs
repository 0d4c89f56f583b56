//! Recording without a mount: a step works in a plain directory, which is compared with its index afterwards.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock};

use crate::layer::Limits;
use crate::rootfs::{Rootfs, Timestamp};
use crate::store::index::{Refreshed, Trust};
use crate::store::ticks::{MappedWrites, Ticks};
use crate::store::tree::{Access, Tree};
use crate::store::unpacked::Chain;
use crate::store::workspace::Workspace;

use super::{Recorded, Recording, SnapshotError, Snapshotter, View};

/// What is looked at after a step. Neither misses a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// The metadata of all entries, and the content of those whose metadata say that they were touched: the kernel sets
    /// the time of the last change (`ctime`), and no program can choose it.
    Metadata,
    /// The content of all entries, for file systems whose metadata are not believed.
    Content,
}

/// Whether the files of a step are in a mount of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mounts {
    /// Where the kernel allows it: read-only for who only reads.
    Own,
    /// Never: whoever runs the step moves entries between its root and other directories of the workspace.
    None,
}

/// Steps in directories of a workspace.
#[derive(Debug)]
pub struct NativeSnapshotter {
    workspace: Arc<Workspace>,
    comparison: Comparison,
    limits: Limits,
    mounts: Mounts,
    ticks: OnceLock<Ticks>,
    /// What is believed wrongly, for the tests of the tests.
    #[cfg(test)]
    pub(super) fault: Option<Trust>,
}

impl NativeSnapshotter {
    /// Steps of the build that `workspace` belongs to. Of `limits` those count that are about names of hard links and
    /// about overrides.
    #[must_use]
    pub fn new(workspace: Arc<Workspace>, comparison: Comparison, limits: Limits) -> Self {
        Self {
            workspace,
            comparison,
            limits,
            mounts: Mounts::Own,
            ticks: OnceLock::new(),
            #[cfg(test)]
            fault: None,
        }
    }

    /// With or without mounts; with them, unless somebody says otherwise.
    #[must_use]
    pub fn with(self, mounts: Mounts) -> Self {
        Self { mounts, ..self }
    }

    fn ticks(&self) -> Result<&Ticks, SnapshotError> {
        if let Some(ticks) = self.ticks.get() {
            return Ok(ticks);
        }
        // Two threads may look; what they see is the same.
        let ticks = Ticks::observe(&self.workspace)?;
        Ok(self.ticks.get_or_init(|| ticks))
    }

    /// The files of `tree`.
    fn root(&self, tree: &Tree, access: Access) -> Result<Rootfs, SnapshotError> {
        let root = Rootfs::from_fd(match self.mounts {
            Mounts::Own => tree.mount(access)?,
            Mounts::None => tree.open()?,
        });
        let overrides = Arc::clone(tree.overrides());
        Ok(match access {
            Access::Write => root.holding(overrides, self.limits.overrides),
            Access::Read => root.showing(overrides),
        })
    }

    /// When a step begins that begins now, by the clock of the file system: later than all changes of `tree` before it.
    fn now(&self, tree: &Tree) -> Result<Timestamp, SnapshotError> {
        self.ticks()?.past(tree.index().newest()).map_err(SnapshotError::Clock)
    }

    /// What can be believed of a tree after a step that begins at `began`.
    fn trust(&self, began: Timestamp) -> Result<Trust, SnapshotError> {
        #[cfg(test)]
        if let Some(fault) = self.fault {
            return Ok(fault);
        }
        if self.comparison == Comparison::Content
            || self.ticks()?.notices_mapped_writes() == MappedWrites::Unnoticed
        {
            return Ok(Trust::Nothing);
        }
        Ok(Trust::UnchangedSince(began))
    }
}

impl Snapshotter for NativeSnapshotter {
    fn begin(&self, on: Chain) -> Result<Box<dyn Recording>, SnapshotError> {
        let tree = match on {
            Chain::Layers(layers) if layers.is_empty() => Tree::empty(&self.workspace)?,
            Chain::Layers(_) => return Err(SnapshotError::Foreign),
            // Whoever needs the files further has kept them.
            Chain::Tree(tree) => match Arc::try_unwrap(tree) {
                Ok(tree) => tree,
                Err(shared) => shared.copy(self.limits.names)?,
            },
        };
        let root = self.root(&tree, Access::Write)?;
        // Last: what changes from here on is found.
        let began = self.now(&tree)?;
        let trust = self.trust(began)?;
        Ok(Box::new(NativeRecording { root, tree, trust, began }))
    }

    fn view(&self, on: &Chain) -> Result<View, SnapshotError> {
        let tree = match on {
            Chain::Layers(layers) if layers.is_empty() => Arc::new(Tree::empty(&self.workspace)?),
            Chain::Layers(_) => return Err(SnapshotError::Foreign),
            Chain::Tree(tree) => Arc::clone(tree),
        };
        Ok(View { root: self.root(&tree, Access::Read)?, _tree: Some(tree) })
    }
}

struct NativeRecording {
    root: Rootfs,
    tree: Tree,
    trust: Trust,
    began: Timestamp,
}

impl Recording for NativeRecording {
    fn root(&self) -> &Rootfs {
        &self.root
    }

    fn mount(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    fn finish(self: Box<Self>) -> Result<Recorded, SnapshotError> {
        let Self { root, mut tree, trust, began } = *self;
        let learned = root.take_learned();
        drop(root);
        let Refreshed { changes, visited, opened } = tree.refresh(trust, learned, began)?;
        let files = tree.root()?;
        Ok(Recorded { changes: changes.finish(), files, chain: tree.into(), visited, opened })
    }
}
