//! Descriptors: how one document points to another (OCI image-spec `descriptor.md`).

use std::collections::BTreeMap;

use base64::Engine as _;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::digest::{Digest, Mismatch, Verifier};
use super::platform::{self, PlatformFields};

/// Media types of OCI and of Docker's schema 2.
pub mod media_type {
    /// OCI image manifest.
    pub const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
    /// OCI image index.
    pub const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
    /// OCI image config.
    pub const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
    /// OCI layer, uncompressed.
    pub const OCI_LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
    /// OCI layer, gzip.
    pub const OCI_LAYER_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
    /// OCI layer, zstd.
    pub const OCI_LAYER_ZSTD: &str = "application/vnd.oci.image.layer.v1.tar+zstd";
    /// Docker image manifest, version 2 schema 2.
    pub const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
    /// Docker manifest list.
    pub const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
    /// Docker image config.
    pub const DOCKER_CONFIG: &str = "application/vnd.docker.container.image.v1+json";
    /// Docker layer, gzip.
    pub const DOCKER_LAYER_GZIP: &str = "application/vnd.docker.image.rootfs.diff.tar.gzip";

    /// Docker layer, uncompressed.
    pub const DOCKER_LAYER: &str = "application/vnd.docker.image.rootfs.diff.tar";
    /// Docker layer, zstd.
    pub const DOCKER_LAYER_ZSTD: &str = "application/vnd.docker.image.rootfs.diff.tar.zstd";
    /// Docker layer that registries were not to have, gzip.
    pub const DOCKER_FOREIGN_LAYER_GZIP: &str = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip";
    /// OCI layer that registries were not to have, uncompressed; `+gzip` and `+zstd` exist.
    pub const OCI_FOREIGN_LAYER: &str = "application/vnd.oci.image.layer.nondistributable.v1.tar";

    /// Whether `name` is a layer of a file system.
    #[must_use]
    pub fn is_layer(name: &str) -> bool {
        matches!(
            name,
            OCI_LAYER
                | OCI_LAYER_GZIP
                | OCI_LAYER_ZSTD
                | DOCKER_LAYER
                | DOCKER_LAYER_GZIP
                | DOCKER_LAYER_ZSTD
                | DOCKER_FOREIGN_LAYER_GZIP
                | "application/vnd.docker.image.rootfs.foreign.diff.tar"
                | OCI_FOREIGN_LAYER
                | "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip"
                | "application/vnd.oci.image.layer.nondistributable.v1.tar+zstd"
        )
    }

    /// Whether `name` is a layer that registries were not to have.
    #[must_use]
    pub fn is_foreign_layer(name: &str) -> bool {
        name.starts_with("application/vnd.docker.image.rootfs.foreign.diff.tar")
            || name.starts_with(OCI_FOREIGN_LAYER)
    }

    /// Whether `name` is the config of an image. Old registries forgot the type of configs.
    #[must_use]
    pub fn is_config(name: &str) -> bool {
        matches!(name, OCI_CONFIG | DOCKER_CONFIG | "application/octet-stream")
    }

    /// Whether `name` is a manifest of one image.
    #[must_use]
    pub fn is_manifest(name: &str) -> bool {
        name == OCI_MANIFEST || name == DOCKER_MANIFEST
    }

    /// Whether `name` is an index of several images.
    #[must_use]
    pub fn is_index(name: &str) -> bool {
        name == OCI_INDEX || name == DOCKER_LIST
    }
}

/// The annotation that says in which form builder has written a layer. It is for the store alone: manifests are without it.
pub const FORM: &str = "io.builder.layer-form";

/// A descriptor that cannot be right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DescriptorError {
    /// No file is that large.
    #[error("size {size} of {digest} is out of range")]
    Size {
        /// Of which blob.
        digest: Digest,
        /// What is written.
        size: u64,
    },
    /// `data` is not base64 text.
    #[error("inline data of {0} is not base64")]
    Data(Digest),
    /// `data` is something else.
    #[error("inline data differs from what is described")]
    OtherData(#[from] Mismatch),
}

/// A pointer to stored bytes. Unknown fields are kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[serde(expecting = "an object")]
pub struct Descriptor {
    /// What the bytes are.
    pub media_type: String,
    /// Their digest.
    pub digest: Digest,
    /// Their number.
    pub size: u64,
    /// For which platform they are, in an index.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "platform::object_or_null")]
    pub platform: Option<PlatformFields>,
    /// Free text by key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<String, String>>,
    /// Everything else, as it was read.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl Descriptor {
    /// A descriptor without platform or annotations.
    #[must_use]
    pub fn new(media_type: &str, digest: Digest, size: u64) -> Self {
        Self {
            media_type: media_type.to_owned(),
            digest,
            size,
            platform: None,
            annotations: None,
            other: Map::new(),
        }
    }

    /// The bytes themselves, where the descriptor has them inline (`data`).
    ///
    /// # Errors
    /// [`DescriptorError`] when they are not the described ones.
    pub fn inline_data(&self) -> Result<Option<Vec<u8>>, DescriptorError> {
        let Some(data) = self.other.get("data").filter(|data| !data.is_null()) else { return Ok(None) };
        let invalid = || DescriptorError::Data(self.digest.clone());
        let text = data.as_str().ok_or_else(invalid)?;
        let bytes = base64::engine::general_purpose::STANDARD.decode(text).map_err(|_| invalid())?;
        let mut verifier = Verifier::new(self.digest.clone(), self.size);
        verifier.update(&bytes)?;
        verifier.finish()?;
        Ok(Some(bytes))
    }

    /// Checks what the types do not: that the size is possible and that inline data is the described bytes.
    ///
    /// # Errors
    /// [`DescriptorError`].
    pub fn check(&self) -> Result<(), DescriptorError> {
        if i64::try_from(self.size).is_err() {
            return Err(DescriptorError::Size { digest: self.digest.clone(), size: self.size });
        }
        self.inline_data().map(|_| ())
    }

    /// The annotation `key`, if there.
    #[must_use]
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.as_ref()?.get(key).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inline_data_must_be_the_described_bytes() {
        let check = |data: Value, size| {
            let mut descriptor = Descriptor::new(media_type::OCI_CONFIG, Digest::of(b"{}"), size);
            descriptor.other.insert("data".to_owned(), data);
            descriptor.check().and_then(|()| descriptor.inline_data())
        };
        assert_eq!(check("e30=".into(), 2), Ok(Some(b"{}".to_vec())));
        assert_eq!(check(Value::Null, 2), Ok(None));
        for (data, size) in
            [("e30=".into(), 3), ("W10=".into(), 2), ("e30".into(), 2), (1.into(), 2), (Value::Null, 1 << 63)]
        {
            assert!(check(data.clone(), size).is_err(), "{data} {size}");
        }
    }

    #[test]
    fn sizes_are_whole_numbers() {
        let digest = Digest::of(b"");
        for size in ["-1", "1.0", "\"1\"", "null", "18446744073709551616", "1e3"] {
            let text = format!(r#"{{"mediaType":"x","digest":"{digest}","size":{size}}}"#);
            assert!(serde_json::from_str::<Descriptor>(&text).is_err(), "{size}");
        }
        let text = format!(r#"{{"mediaType":"x","digest":"{digest}"}}"#);
        assert!(serde_json::from_str::<Descriptor>(&text).is_err());
    }
}
