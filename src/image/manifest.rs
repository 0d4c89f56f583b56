//! Images as values: config, layers and history that agree with each other.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::config::{History, ImageConfig};
use super::descriptor::{Descriptor, media_type};
use super::digest::DiffId;
use super::json::{self, Encoded};
use super::reference::Reference;

/// A manifest as it is stored (OCI image-spec `manifest.md`). Unknown fields are kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// Always 2.
    pub schema_version: u32,
    /// What this document is; absent in some OCI manifests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// Where the config is.
    pub config: Descriptor,
    /// Bottom layer first.
    #[serde(default, deserialize_with = "super::index::null_is_empty")]
    pub layers: Vec<Descriptor>,
    /// Free text by key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<String, String>>,
    /// Everything else, as it was read.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// From where a layer's bytes can be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The local store has them.
    Stored,
    /// A registry has them in this repository.
    Registry(Reference),
}

/// One layer of an image.
#[derive(Debug, Clone, PartialEq)]
pub struct Layer {
    /// The stored bytes.
    pub blob: Descriptor,
    /// The digest of the uncompressed tar.
    pub diff_id: DiffId,
    /// Where the stored bytes can be had.
    pub origin: Origin,
}

/// Why layers, diff ids and history of an image do not fit together.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The config names another number of layers than the manifest.
    #[error("manifest has {layers} layers, its config has {diff_ids} diff ids")]
    Layers {
        /// Layers in the manifest.
        layers: usize,
        /// Diff ids in the config.
        diff_ids: usize,
    },
    /// `rootfs.type` is something else.
    #[error("`rootfs.type` is `{0}`, expected `layers`")]
    RootfsType(String),
    /// A config or manifest could not be written as JSON.
    #[error("cannot encode the image")]
    Encode(#[from] serde_json::Error),
}

/// An image: a config and its layers. Layers, diff ids and the rows of the history that made one are always equal in
/// number, because [`Image::append`] is the only way to add either.
#[derive(Debug, Clone, PartialEq)]
pub struct Image {
    config: ImageConfig,
    layers: Vec<Layer>,
    /// Goes into the manifest.
    pub annotations: BTreeMap<String, String>,
}

impl Image {
    /// An image without layers, for nothing in particular yet.
    #[must_use]
    pub fn scratch() -> Self {
        Self { config: ImageConfig::default(), layers: Vec::new(), annotations: BTreeMap::new() }
    }

    /// An image as it came from elsewhere. History rows that are missing are added, surplus ones are marked as empty
    /// (BuildKit does both).
    ///
    /// # Errors
    /// [`ImageError`] when layers and diff ids do not correspond.
    pub fn from_parts(mut config: ImageConfig, layers: Vec<Layer>) -> Result<Self, ImageError> {
        if config.rootfs.kind != "layers" {
            return Err(ImageError::RootfsType(config.rootfs.kind));
        }
        if config.rootfs.diff_ids.len() != layers.len() {
            return Err(ImageError::Layers { layers: layers.len(), diff_ids: config.rootfs.diff_ids.len() });
        }
        let mut rows = 0;
        for row in &mut config.history {
            row.empty_layer |= rows == layers.len();
            rows += usize::from(!row.empty_layer);
        }
        for _ in rows..layers.len() {
            config.history.push(History {
                comment: Some("buildkit.exporter.image.v0".to_owned()),
                ..History::default()
            });
        }
        Ok(Self { config, layers, annotations: BTreeMap::new() })
    }

    /// The config. Its `rootfs` and `history` agree with [`Image::layers`].
    #[must_use]
    pub fn config(&self) -> &ImageConfig {
        &self.config
    }

    /// Changes the config. Diff ids and history are put back afterwards: they follow the layers alone.
    pub fn edit(&mut self, change: impl FnOnce(&mut ImageConfig)) {
        let rootfs = self.config.rootfs.clone();
        let history = std::mem::take(&mut self.config.history);
        change(&mut self.config);
        self.config.rootfs = rootfs;
        self.config.history = history;
    }

    /// The layers, bottom first.
    #[must_use]
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// Adds a history row and, where the instruction made one, a layer.
    pub fn append(&mut self, row: History, layer: Option<Layer>) {
        self.config.history.push(History { empty_layer: layer.is_none(), ..row });
        if let Some(layer) = layer {
            self.config.rootfs.diff_ids.push(layer.diff_id.clone());
            self.layers.push(layer);
        }
    }

    /// Sets the time of the whole image and of its history rows from `first` on.
    pub fn set_created(&mut self, first: usize, created: impl Fn(usize, &History) -> Option<String>) {
        for (position, row) in self.config.history.iter_mut().enumerate().skip(first) {
            row.created = created(position, row);
        }
        self.config.created = self.config.history.iter().rev().find_map(|row| row.created.clone());
    }

    /// Config and manifest as they are pushed: OCI media types throughout.
    ///
    /// # Errors
    /// When the config holds something that cannot be JSON.
    pub fn encode(&self) -> Result<EncodedImage, ImageError> {
        let config = json::encode(&self.config)?;
        let manifest = Manifest {
            schema_version: 2,
            media_type: Some(media_type::OCI_MANIFEST.to_owned()),
            config: Descriptor::new(media_type::OCI_CONFIG, config.digest.clone(), config.bytes.len() as u64),
            layers: self.layers.iter().map(|layer| as_oci(&layer.blob)).collect(),
            annotations: (!self.annotations.is_empty()).then(|| self.annotations.clone()),
            other: Map::new(),
        };
        Ok(EncodedImage { manifest: json::encode(&manifest)?, config })
    }
}

/// An image's two documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedImage {
    /// The config's bytes.
    pub config: Encoded,
    /// The manifest's bytes.
    pub manifest: Encoded,
}

/// Bases of Docker's types keep their layer bytes; only the name of the type changes with the manifest.
fn as_oci(blob: &Descriptor) -> Descriptor {
    let media_type = match blob.media_type.as_str() {
        media_type::DOCKER_LAYER_GZIP => media_type::OCI_LAYER_GZIP,
        "application/vnd.docker.image.rootfs.diff.tar" => media_type::OCI_LAYER,
        "application/vnd.docker.image.rootfs.diff.tar.zstd" => media_type::OCI_LAYER_ZSTD,
        other => other,
    };
    Descriptor { media_type: media_type.to_owned(), ..blob.clone() }
}
