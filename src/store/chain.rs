//! The files of a stage: layers to be stacked, or one directory.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::tree::Tree;
use crate::image::digest::ChainId;
use crate::layer::Marks;
use crate::rootfs::{Overrides, Rootfs, RootfsError};

use super::overrides::stacked;

/// Why a layer cannot be put on others.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    /// Its directory cannot be opened.
    #[error("cannot open `{path}`")]
    Open {
        /// Which.
        path: PathBuf,
        /// Why not.
        #[source]
        cause: io::Error,
    },
    /// An entry cannot be read.
    #[error(transparent)]
    Entry(#[from] RootfsError),
}

/// A layer as a directory that overlayfs can stack on the layers below it. Nothing in it ever changes.
#[derive(Debug, Clone)]
pub struct UnpackedLayer {
    chain: Option<ChainId>,
    root: Arc<Path>,
    /// What the files are beyond what the disk shows. Of a layer in a chain, which knows that of all its layers, empty
    /// unless the layer is temporary.
    overrides: Arc<Overrides>,
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
    pub fn temporary(root: &Path, likeness: Likeness, overrides: Overrides) -> Self {
        Self { chain: None, root: root.into(), overrides: Arc::new(overrides), likeness }
    }

    /// A layer that the store keeps, in the directory `root`.
    pub(super) fn kept(chain: ChainId, root: &Path, overrides: Overrides) -> Self {
        Self {
            chain: Some(chain),
            root: root.into(),
            overrides: Arc::new(overrides),
            likeness: Likeness::Equal,
        }
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

    /// What the files of a temporary layer are beyond what the disk shows.
    #[must_use]
    pub fn overrides(&self) -> &Overrides {
        &self.overrides
    }

    /// The directory with the layer's files, whiteouts as character devices 0:0.
    #[must_use]
    pub fn root_dir(&self) -> &Path {
        &self.root
    }
}

/// Layers that are stacked, bottom first.
#[derive(Debug, Clone, Default)]
pub struct Layers {
    layers: Vec<UnpackedLayer>,
    /// What the files of the stack are beyond what the disk shows.
    overrides: Arc<Overrides>,
}

impl Layers {
    /// No layers: an empty root.
    #[must_use]
    pub fn empty() -> Self {
        Self::default()
    }

    /// These layers with one more layer on top, which knows all of its own entries.
    ///
    /// # Errors
    /// When the layer cannot be read: it must be where the disk does not hold all of the layers below.
    pub fn with(&self, mut layer: UnpackedLayer) -> Result<Self, ChainError> {
        let own = std::mem::take(&mut layer.overrides);
        if self.overrides.is_empty() {
            return Ok(self.with_overrides(layer, own));
        }
        let failed = |cause| ChainError::Open { path: layer.root_dir().to_owned(), cause };
        let files = Rootfs::open(layer.root_dir()).map_err(failed)?;
        let overrides = stacked(&self.overrides, &files, own, Marks::usual())?;
        Ok(self.with_overrides(layer, overrides))
    }

    /// These layers with one more layer on top; `overrides` are those of the whole stack.
    #[must_use]
    pub fn with_overrides(&self, layer: UnpackedLayer, overrides: Arc<Overrides>) -> Self {
        Self { layers: self.layers.iter().cloned().chain([layer]).collect(), overrides }
    }

    /// What the files of the stack are beyond what the disk shows.
    #[must_use]
    pub fn overrides(&self) -> &Arc<Overrides> {
        &self.overrides
    }

    /// These layers with the topmost one in another place.
    #[must_use]
    pub fn with_top(&self, top: UnpackedLayer) -> Self {
        let below = &self.layers[..self.layers.len().saturating_sub(1)];
        let layers = below.iter().cloned().chain([top]).collect();
        Self { layers, overrides: Arc::clone(&self.overrides) }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// The layers, bottom first.
    #[must_use]
    pub fn layers(&self) -> &[UnpackedLayer] {
        &self.layers
    }

    /// The directories of the layers, bottom first.
    #[must_use]
    pub fn root_dirs(&self) -> Vec<&Path> {
        self.layers.iter().map(UnpackedLayer::root_dir).collect()
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
