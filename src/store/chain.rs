//! The files of a stage: layers to be stacked, or one directory.

use std::path::Path;
use std::sync::Arc;

use super::tree::Tree;
use crate::image::digest::ChainId;

/// A layer as a directory that overlayfs can stack on the layers below it. Nothing in it ever changes.
#[derive(Debug, Clone)]
pub struct UnpackedLayer {
    chain: Option<ChainId>,
    root: Arc<Path>,
}

impl UnpackedLayer {
    /// A layer that is not kept: what a step wrote, in a directory that is gone with the build's workspace.
    #[must_use]
    pub fn temporary(root: &Path) -> Self {
        Self { chain: None, root: root.into() }
    }

    /// A layer that the store keeps, in the directory `root`.
    pub(super) fn kept(chain: ChainId, root: &Path) -> Self {
        Self { chain: Some(chain), root: root.into() }
    }

    /// The layer with all that are below it; none for what a step of this build wrote.
    #[must_use]
    pub fn chain(&self) -> Option<&ChainId> {
        self.chain.as_ref()
    }

    /// The directory with the layer's files, whiteouts as character devices 0:0.
    #[must_use]
    pub fn root_dir(&self) -> &Path {
        &self.root
    }
}

/// Layers that are stacked, bottom first.
#[derive(Debug, Clone, Default)]
pub struct Layers(Vec<UnpackedLayer>);

impl Layers {
    /// No layers: an empty root.
    #[must_use]
    pub fn empty() -> Self {
        Self::default()
    }

    /// These layers with one more on top.
    #[must_use]
    pub fn with(&self, layer: UnpackedLayer) -> Self {
        Self(self.0.iter().cloned().chain([layer]).collect())
    }

    /// Whether there are none.
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

/// The files of a stage, however they are kept.
#[derive(Debug, Clone)]
pub enum Chain {
    /// As layers, for overlayfs.
    Layers(Layers),
    /// In one directory.
    Tree(Arc<Tree>),
}

impl Chain {
    /// No files: an empty root.
    #[must_use]
    pub fn empty() -> Self {
        Self::Layers(Layers::empty())
    }

    /// Whether nothing was ever put there; a layer without files counts as something.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Layers(layers) => layers.is_empty(),
            Self::Tree(_) => false,
        }
    }
}

impl From<Layers> for Chain {
    fn from(layers: Layers) -> Self {
        Self::Layers(layers)
    }
}

impl From<Tree> for Chain {
    fn from(tree: Tree) -> Self {
        Self::Tree(Arc::new(tree))
    }
}
