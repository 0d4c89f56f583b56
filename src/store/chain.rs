//! Unpacked layers, and stacks of them.

use std::path::Path;
use std::sync::Arc;

use crate::image::digest::ChainId;

/// A layer as a directory that overlayfs can stack on the layers below it. Nothing in it ever changes.
#[derive(Debug, Clone)]
pub struct UnpackedLayer {
    chain: Option<ChainId>,
    root: Arc<Path>,
    likeness: Likeness,
}

/// Whether the directory of a layer is what unpacking the layer would give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Likeness {
    /// It is, but for the time of the root, which no layer has.
    Equal,
    /// It also has what no layer can hold.
    Other,
}

impl UnpackedLayer {
    /// The name of the directory with a layer's files, in the directory of the layer.
    pub const ROOT: &str = "root";

    /// A layer that is not kept: what a step wrote, in a directory that is gone with the build's workspace.
    #[must_use]
    pub fn temporary(root: &Path, likeness: Likeness) -> Self {
        Self { chain: None, root: root.into(), likeness }
    }

    /// A layer that the store keeps, in the directory `root`.
    pub(super) fn kept(chain: ChainId, root: &Path) -> Self {
        Self { chain: Some(chain), root: root.into(), likeness: Likeness::Equal }
    }

    /// The layer with all that are below it; none for what a step of this build wrote.
    #[must_use]
    pub fn chain(&self) -> Option<&ChainId> {
        self.chain.as_ref()
    }

    /// Whether it is what unpacking it would give.
    #[must_use]
    pub fn likeness(&self) -> Likeness {
        self.likeness
    }

    /// The directory with the layer's files, whiteouts as character devices 0:0.
    #[must_use]
    pub fn root_dir(&self) -> &Path {
        &self.root
    }
}

/// Layers that are stacked, bottom first.
#[derive(Debug, Clone, Default)]
pub struct Chain(Vec<UnpackedLayer>);

impl Chain {
    /// No layers: an empty root.
    #[must_use]
    pub fn empty() -> Self {
        Self::default()
    }

    /// This chain with one more layer on top.
    #[must_use]
    pub fn with(&self, layer: UnpackedLayer) -> Self {
        Self(self.0.iter().cloned().chain([layer]).collect())
    }

    /// The layers but the topmost, and that; none of an empty chain.
    #[must_use]
    pub fn split_top(&self) -> Option<(Self, &UnpackedLayer)> {
        let (top, below) = self.0.split_last()?;
        Some((Self(below.to_vec()), top))
    }

    /// Whether there are no layers.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The layers, bottom first.
    #[must_use]
    pub fn layers(&self) -> &[UnpackedLayer] {
        &self.0
    }

    /// The directories of the layers, bottom first.
    #[must_use]
    pub fn root_dirs(&self) -> Vec<&Path> {
        self.0.iter().map(UnpackedLayer::root_dir).collect()
    }
}
