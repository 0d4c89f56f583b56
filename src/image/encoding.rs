//! In which form the documents of an image are written: whose types they name, and how layers are called in them.

use super::descriptor::{Descriptor, FORM, media_type};

/// Whose media types a manifest, its config and its layers have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TypeNames {
    /// Those of the OCI image specification.
    #[default]
    Oci,
    /// Docker's, version 2 schema 2.
    Docker,
}

impl TypeNames {
    /// The type of a manifest.
    #[must_use]
    pub fn manifest(self) -> &'static str {
        match self {
            Self::Oci => media_type::OCI_MANIFEST,
            Self::Docker => media_type::DOCKER_MANIFEST,
        }
    }

    /// The type of an index.
    #[must_use]
    pub fn index(self) -> &'static str {
        match self {
            Self::Oci => media_type::OCI_INDEX,
            Self::Docker => media_type::DOCKER_LIST,
        }
    }

    /// The type of a config.
    #[must_use]
    pub fn config(self) -> &'static str {
        match self {
            Self::Oci => media_type::OCI_CONFIG,
            Self::Docker => media_type::DOCKER_CONFIG,
        }
    }
}

/// What becomes of layers that registries were not to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ForeignLayers {
    /// They become ordinary ones, as BuildKit has it: they are pushed, and nothing points elsewhere.
    #[default]
    Ordinary,
    /// They stay what they are, and keep their URLs.
    Kept,
}

/// How an image is written as documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Encoding {
    /// Whose types.
    pub types: TypeNames,
    /// What becomes of foreign layers.
    pub foreign: ForeignLayers,
}

/// Where a layer's bytes may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Distribution {
    Everywhere,
    Elsewhere,
}

const DOCKER_FOREIGN_LAYER: &str = "application/vnd.docker.image.rootfs.foreign.diff.tar";

impl Encoding {
    /// How `blob` is called in a manifest. Its bytes stay what they are; only the name of the type changes with the
    /// manifest. A type that is not known stays. What the store notes for itself is left out.
    pub(super) fn layer(self, blob: &Descriptor) -> Descriptor {
        let mut annotations = blob.annotations.clone();
        if annotations.as_mut().is_some_and(|known| known.remove(FORM).is_some() && known.is_empty()) {
            annotations = None;
        }
        let blob = Descriptor { annotations, ..blob.clone() };
        let Some((distribution, suffix)) = apart(&blob.media_type) else { return blob };
        let distribution = match self.foreign {
            ForeignLayers::Ordinary => Distribution::Everywhere,
            ForeignLayers::Kept => distribution,
        };
        let (stem, separator) = match (self.types, distribution) {
            (TypeNames::Oci, Distribution::Everywhere) => (media_type::OCI_LAYER, "+"),
            (TypeNames::Oci, Distribution::Elsewhere) => (media_type::OCI_FOREIGN_LAYER, "+"),
            (TypeNames::Docker, Distribution::Everywhere) => (media_type::DOCKER_LAYER, "."),
            (TypeNames::Docker, Distribution::Elsewhere) => (DOCKER_FOREIGN_LAYER, "."),
        };
        let separator = if suffix.is_empty() { "" } else { separator };
        let mut other = blob.other.clone();
        if distribution == Distribution::Everywhere {
            other.remove("urls");
        }
        Descriptor { media_type: format!("{stem}{separator}{suffix}"), other, ..blob }
    }
}

/// Takes the type of a layer apart; the second is the word for its compression.
fn apart(name: &str) -> Option<(Distribution, &str)> {
    let stems = [
        (media_type::OCI_LAYER, '+', Distribution::Everywhere),
        (media_type::OCI_FOREIGN_LAYER, '+', Distribution::Elsewhere),
        (media_type::DOCKER_LAYER, '.', Distribution::Everywhere),
        (DOCKER_FOREIGN_LAYER, '.', Distribution::Elsewhere),
    ];
    stems.into_iter().find_map(|(stem, separator, distribution)| {
        let suffix = name.strip_prefix(stem)?;
        match suffix {
            "" => Some((distribution, "")),
            _ => Some((distribution, suffix.strip_prefix(separator)?)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::digest::Digest;
    use super::*;

    #[test]
    fn a_layer_is_called_after_its_manifest() {
        let (oci, docker) = (TypeNames::Oci, TypeNames::Docker);
        let foreign = "application/vnd.oci.image.layer.nondistributable.v1.tar+zstd";
        let docker_foreign = "application/vnd.docker.image.rootfs.foreign.diff.tar.zstd";
        for (name, types, kept, expected) in [
            (media_type::DOCKER_LAYER_GZIP, oci, false, media_type::OCI_LAYER_GZIP),
            (media_type::OCI_LAYER_GZIP, docker, false, media_type::DOCKER_LAYER_GZIP),
            (media_type::OCI_LAYER, docker, true, media_type::DOCKER_LAYER),
            (media_type::DOCKER_LAYER_ZSTD, oci, true, media_type::OCI_LAYER_ZSTD),
            (media_type::OCI_LAYER_ZSTD, docker, false, media_type::DOCKER_LAYER_ZSTD),
            (foreign, docker, false, media_type::DOCKER_LAYER_ZSTD),
            (foreign, docker, true, docker_foreign),
            (docker_foreign, oci, true, foreign),
            (docker_foreign, oci, false, media_type::OCI_LAYER_ZSTD),
            ("application/x-other", docker, false, "application/x-other"),
        ] {
            let mut blob = Descriptor::new(name, Digest::of(b"blob"), 4);
            blob.other.insert("urls".to_owned(), vec!["http://elsewhere/"].into());
            let encoding =
                Encoding { types, foreign: if kept { ForeignLayers::Kept } else { ForeignLayers::Ordinary } };
            let found = encoding.layer(&blob);
            assert_eq!(found.media_type, expected, "{name}");
            let stays_foreign = kept && (name == foreign || name == docker_foreign);
            let is_known = expected != name;
            assert_eq!(found.other.contains_key("urls"), stays_foreign || !is_known, "{name}");
        }
    }
}
