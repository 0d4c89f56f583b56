//! Indexes: several images under one name (OCI image-spec `image-index.md`, Docker manifest list).

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::descriptor::{Descriptor, media_type};
use super::document::{self, Document, DocumentError, DocumentLimits};
use super::encoding::TypeNames;
use crate::limit::Limit;

/// The most entries of an index, those of nested ones included.
pub const MOST_IMAGES: usize = 10_000;

/// The most indexes that are fetched for one.
pub const MOST_NESTED: usize = 32;

/// An index as it is stored. Unknown fields are kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[serde(expecting = "an object")]
pub struct Index {
    /// Always 2.
    pub schema_version: u32,
    /// What this document is; absent in some OCI indexes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// The images, in order of preference where several fit.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub manifests: Vec<Descriptor>,
    /// Free text by key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<String, String>>,
    /// Everything else, as it was read.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl Index {
    /// An index of `manifests`.
    #[must_use]
    pub fn new(types: TypeNames, manifests: Vec<Descriptor>, annotations: BTreeMap<String, String>) -> Self {
        Self {
            schema_version: 2,
            media_type: Some(types.index().to_owned()),
            manifests,
            annotations: (!annotations.is_empty()).then_some(annotations),
            other: Map::new(),
        }
    }
}

/// Some writers put `null` for an empty list.
pub(super) fn null_is_empty<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    Ok(Option::<Vec<T>>::deserialize(deserializer)?.unwrap_or_default())
}

/// Reads an index. `declared` is its media type as the descriptor or the registry has it.
///
/// # Errors
/// [`DocumentError`] for everything that is not clearly an index.
pub fn parse_index(
    bytes: &[u8],
    declared: Option<&str>,
    limits: &DocumentLimits,
) -> Result<Index, DocumentError> {
    match document::parse(bytes, declared, limits)? {
        Document::Index(index) => Ok(index),
        Document::Manifest(_) => Err(DocumentError::Other { found: "a manifest", expected: "an index" }),
    }
}

/// Why the images of an index cannot be listed.
#[derive(Debug, thiserror::Error)]
pub enum FlattenError<E: std::error::Error + 'static> {
    /// Indexes in indexes in indexes.
    #[error("indexes are nested more than {value} deep; {0}", value = .0.value)]
    Depth(Limit),
    /// Too many indexes.
    #[error("more than {MOST_NESTED} indexes are nested in one")]
    Indexes,
    /// Too many images.
    #[error("the index and those in it have more than {MOST_IMAGES} entries")]
    Images,
    /// A nested index could not be had.
    #[error(transparent)]
    Fetch(#[from] E),
}

/// The images of `index`, where nested indexes are replaced by their entries, in order; `nesting` says how deep they may
/// lie.
///
/// # Errors
/// [`FlattenError`]; what `fetch` fails with included.
pub fn flatten<E: std::error::Error + 'static>(
    index: Index,
    nesting: Limit,
    fetch: &mut dyn FnMut(&Descriptor) -> Result<Index, E>,
) -> Result<Vec<Descriptor>, FlattenError<E>> {
    let mut images = Vec::new();
    let mut fetched = 0;
    let mut open = vec![index.manifests.into_iter()];
    while let Some(entries) = open.last_mut() {
        let Some(entry) = entries.next() else {
            open.pop();
            continue;
        };
        if !media_type::is_index(&entry.media_type) {
            images.push(entry);
            if images.len() > MOST_IMAGES {
                return Err(FlattenError::Images);
            }
            continue;
        }
        fetched += 1;
        if nesting.is_exceeded_by(open.len() as u64) {
            return Err(FlattenError::Depth(nesting));
        }
        if fetched > MOST_NESTED {
            return Err(FlattenError::Indexes);
        }
        open.push(fetch(&entry)?.manifests.into_iter());
    }
    Ok(images)
}

#[cfg(test)]
mod tests {
    use super::super::digest::Digest;
    use super::*;

    fn index(entries: &[(&str, &str)]) -> Index {
        let entry = |(kind, name): &(&str, &str)| Descriptor::new(kind, Digest::of(name.as_bytes()), 1);
        Index {
            schema_version: 2,
            media_type: None,
            manifests: entries.iter().map(entry).collect(),
            annotations: None,
            other: Map::new(),
        }
    }

    #[test]
    fn nested_indexes_are_replaced_by_their_entries() {
        use media_type::{DOCKER_LIST, OCI_INDEX, OCI_MANIFEST};
        let root = index(&[(OCI_MANIFEST, "a"), (OCI_INDEX, "inner"), (OCI_MANIFEST, "d")]);
        let mut fetch = |entry: &Descriptor| {
            if entry.digest == Digest::of(b"inner") {
                Ok::<_, std::io::Error>(index(&[(OCI_MANIFEST, "b"), (DOCKER_LIST, "innermost")]))
            } else {
                Ok(index(&[(OCI_MANIFEST, "c")]))
            }
        };
        let digests: Vec<_> = flatten(root, DocumentLimits::NESTING, &mut fetch)
            .unwrap()
            .into_iter()
            .map(|entry| entry.digest)
            .collect();
        assert_eq!(digests, ["a", "b", "c", "d"].map(|name| Digest::of(name.as_bytes())));
    }

    #[test]
    fn endless_indexes_end() {
        let nested = || index(&[(media_type::OCI_INDEX, "x")]);
        let mut fetch = |_: &Descriptor| Ok::<_, std::io::Error>(nested());
        assert!(matches!(
            flatten(nested(), DocumentLimits::NESTING, &mut fetch),
            Err(FlattenError::Depth(_))
        ));
        let wide = index(&vec![(media_type::OCI_INDEX, "x"); 33]);
        let mut fetch = |_: &Descriptor| Ok::<_, std::io::Error>(index(&[]));
        assert!(matches!(flatten(wide, DocumentLimits::NESTING, &mut fetch), Err(FlattenError::Indexes)));
        let large = || index(&vec![(media_type::OCI_MANIFEST, "x"); 6000]);
        let two = index(&[(media_type::OCI_INDEX, "x"), (media_type::OCI_INDEX, "y")]);
        let mut fetch = |_: &Descriptor| Ok::<_, std::io::Error>(large());
        assert!(matches!(flatten(two, DocumentLimits::NESTING, &mut fetch), Err(FlattenError::Images)));
    }
}
