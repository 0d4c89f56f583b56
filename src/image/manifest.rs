//! Images as values: config, layers and history that agree with each other.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::config::{History, ImageConfig};
use super::descriptor::Descriptor;
use super::digest::DiffId;
use super::document::{self, Document, DocumentError, DocumentLimits};
use super::encoding::{Encoding, TypeNames};
use super::json::{self, Encoded};
use super::reference::Reference;

/// A manifest as it is stored (OCI image-spec `manifest.md`). Unknown fields are kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[serde(expecting = "an object")]
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

/// Reads the manifest of an image. `declared` is its media type as the descriptor or the registry has it.
///
/// # Errors
/// [`DocumentError`] for everything that is not clearly the manifest of an image.
pub fn parse_manifest(
    bytes: &[u8],
    declared: Option<&str>,
    limits: &DocumentLimits,
) -> Result<Manifest, DocumentError> {
    match document::parse(bytes, declared, limits)? {
        Document::Manifest(manifest) => Ok(*manifest),
        Document::Index(_) => Err(DocumentError::Other { found: "an index", expected: "a manifest" }),
    }
}

/// From where a layer's bytes can be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The local store has them.
    Stored,
    /// A registry has them in this repository.
    Registry(Reference),
    /// The OCI layout in this directory has them.
    Layout(PathBuf),
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
    /// How many layers and history rows came from elsewhere.
    base: (usize, usize),
    /// Goes into the manifest.
    pub annotations: BTreeMap<String, String>,
}

impl Image {
    /// An image without layers, for nothing in particular yet.
    #[must_use]
    pub fn scratch() -> Self {
        Self {
            config: ImageConfig::default(),
            layers: Vec::new(),
            base: (0, 0),
            annotations: BTreeMap::new(),
        }
    }

    /// An image as it came from elsewhere, to be built on. History rows that are missing are added, surplus ones are
    /// marked as empty (BuildKit does both); what Docker noted about its container is dropped.
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
        config.drop_legacy();
        let mut rows = 0;
        for row in &mut config.history {
            row.empty_layer |= rows == layers.len();
            rows += usize::from(!row.empty_layer);
        }
        for _ in rows..layers.len() {
            // umoci 0.4 does not survive rows without a time.
            let created = config.created.clone();
            let comment = Some("buildkit.exporter.image.v0".to_owned());
            config.history.push(History { created, comment, ..History::default() });
        }
        let base = (layers.len(), config.history.len());
        Ok(Self { config, layers, base, annotations: BTreeMap::new() })
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

    /// How many of the layers, from the bottom on, the image came with; the others were added.
    #[must_use]
    pub fn base_layers(&self) -> usize {
        self.base.0
    }

    /// How many of the history rows, from the first on, the image came with.
    #[must_use]
    pub fn base_rows(&self) -> usize {
        self.base.1
    }

    /// Puts `layer` in the place of the one at `position`, if there is one. It must hold the same files.
    pub fn replace_layer(&mut self, position: usize, layer: Layer) {
        let place = self.layers.get_mut(position).zip(self.config.rootfs.diff_ids.get_mut(position));
        if let Some((old, diff_id)) = place {
            diff_id.clone_from(&layer.diff_id);
            *old = layer;
        }
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

    /// Config and manifest with OCI's media types.
    ///
    /// # Errors
    /// When the config holds something that cannot be JSON.
    pub fn encode(&self) -> Result<EncodedImage, ImageError> {
        self.encode_as(Encoding::default())
    }

    /// Config and manifest as `encoding` says.
    ///
    /// # Errors
    /// When the config holds something that cannot be JSON.
    pub fn encode_as(&self, encoding: Encoding) -> Result<EncodedImage, ImageError> {
        let config = json::encode(&self.config)?;
        let size = config.bytes.len() as u64;
        let manifest = Manifest {
            schema_version: 2,
            media_type: Some(encoding.types.manifest().to_owned()),
            config: Descriptor::new(encoding.types.config(), config.digest.clone(), size),
            layers: self.layers.iter().map(|layer| encoding.layer(&layer.blob)).collect(),
            annotations: (!self.annotations.is_empty()).then(|| self.annotations.clone()),
            other: Map::new(),
        };
        Ok(EncodedImage { manifest: json::encode(&manifest)?, config, types: encoding.types })
    }
}

/// An image's two documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedImage {
    /// The config's bytes.
    pub config: Encoded,
    /// The manifest's bytes.
    pub manifest: Encoded,
    /// Whose types they have.
    pub types: TypeNames,
}

#[cfg(test)]
mod tests {
    use super::super::descriptor::media_type;
    use super::super::digest::Digest;
    use super::*;

    fn layer(kind: &str) -> Layer {
        let blob = Descriptor::new(kind, Digest::of(b"blob"), 4);
        Layer { blob, diff_id: DiffId(Digest::of(b"tar")), origin: Origin::Stored }
    }

    fn config(rows: &[bool]) -> ImageConfig {
        let history =
            rows.iter().map(|empty| History { empty_layer: *empty, ..History::default() }).collect();
        ImageConfig { history, ..ImageConfig::default() }
    }

    #[test]
    fn history_is_made_to_fit_the_layers() {
        for (rows, layers, expected) in [
            (&[][..], 2, &[false, false][..]),
            (&[true, false], 2, &[true, false, false]),
            (&[false, false, true], 1, &[false, true, true]),
            (&[false], 0, &[true]),
        ] {
            let mut config = config(rows);
            config.rootfs.diff_ids = vec![DiffId(Digest::of(b"tar")); layers];
            let image = Image::from_parts(config, vec![layer(media_type::OCI_LAYER_GZIP); layers]).unwrap();
            let empty: Vec<_> = image.config().history.iter().map(|row| row.empty_layer).collect();
            assert_eq!(empty, expected);
        }
        assert!(Image::from_parts(config(&[]), vec![layer(media_type::OCI_LAYER)]).is_err());
    }

    #[test]
    fn built_images_have_oci_types_only() {
        let mut image = Image::scratch();
        for kind in
            [media_type::DOCKER_LAYER_GZIP, media_type::DOCKER_LAYER, media_type::DOCKER_FOREIGN_LAYER_GZIP]
        {
            let mut layer = layer(kind);
            layer.blob.other.insert("urls".to_owned(), vec!["http://elsewhere/"].into());
            image.append(History::default(), Some(layer));
        }
        image.append(
            History::default(),
            Some(layer("application/vnd.oci.image.layer.nondistributable.v1.tar+zstd")),
        );
        let encoded = image.encode().unwrap();
        let manifest = parse_manifest(
            &encoded.manifest.bytes,
            Some(media_type::OCI_MANIFEST),
            &DocumentLimits::default(),
        )
        .unwrap();
        let kinds: Vec<_> = manifest.layers.iter().map(|layer| layer.media_type.as_str()).collect();
        let gzip = media_type::OCI_LAYER_GZIP;
        assert_eq!(kinds, [gzip, media_type::OCI_LAYER, gzip, media_type::OCI_LAYER_ZSTD]);
        assert!(manifest.layers.iter().all(|layer| layer.other.is_empty()));
        assert_eq!(manifest.config.digest, encoded.config.digest);
    }

    #[test]
    fn editing_a_config_leaves_layers_and_history_alone() {
        let mut image = Image::scratch();
        image.append(History::default(), Some(layer(media_type::OCI_LAYER)));
        image.edit(|config| {
            config.history.clear();
            config.rootfs.diff_ids.clear();
            config.os = "linux".to_owned();
        });
        assert_eq!((image.config().history.len(), image.config().rootfs.diff_ids.len()), (1, 1));
        assert_eq!(image.config().os, "linux");
    }
}
