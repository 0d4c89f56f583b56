//! What a layout or archive is to hold: images with their names, and the blobs that they need.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::PathBuf;

use serde::Serialize;

use super::blobs::BlobStore;
use super::catalog::REF_NAME;
use super::{LAYOUT_FILE, StoreError};
use crate::image::config::parse_config;
use crate::image::descriptor::{Descriptor, media_type};
use crate::image::digest::Digest;
use crate::image::document::{DocumentError, DocumentLimits};
use crate::image::encoding::TypeNames;
use crate::image::index::{Index, parse_index};
use crate::image::json::{self, Encoded};
use crate::image::manifest::{EncodedImage, parse_manifest};
use crate::image::platform::{Platform, PlatformFields};
use crate::image::reference::Reference;

/// The annotation with the time of an image.
pub const CREATED: &str = "org.opencontainers.image.created";

/// For whom a layout or archive is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readers {
    /// Those of OCI layouts.
    Oci,
    /// `docker load` as well.
    Docker,
}

/// An image, or several in an index, with the names that it is to have.
#[derive(Debug, Clone, Copy)]
pub struct Export<'a> {
    /// What.
    pub content: Content<'a>,
    /// Under which names; none is possible.
    pub names: &'a [Reference],
    /// What else the index of the layout says of it.
    pub annotations: &'a BTreeMap<String, String>,
}

impl<'a> Export<'a> {
    /// One of which nothing else is said.
    #[must_use]
    pub fn new(content: Content<'a>, names: &'a [Reference]) -> Self {
        Self { content, names, annotations: const { &BTreeMap::new() } }
    }
}

/// One image or several. Their layers come from the store.
#[derive(Debug, Clone, Copy)]
pub enum Content<'a> {
    /// One image.
    Image(&'a EncodedImage),
    /// Several platforms.
    Index {
        /// The index.
        index: &'a Encoded,
        /// The images that it lists.
        images: &'a [EncodedImage],
    },
}

/// Why a layout or archive cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// A blob cannot be had from the store.
    #[error("the image is not complete")]
    Store(#[from] StoreError),
    /// What is to be exported is no image.
    #[error("what is to be written is not an image")]
    Document(#[from] DocumentError),
    /// The index could not be written as JSON.
    #[error("cannot encode the index of the layout")]
    Encode(#[from] serde_json::Error),
    /// The index lists an image that was not given.
    #[error("the index lists {0}, which is not among its images")]
    Incomplete(Digest),
    /// `docker load` knows single images only.
    #[error("docker exporter does not currently support exporting manifest lists; write an OCI layout")]
    IndexInArchive,
    /// Something else is in the way.
    #[error("`{}` exists and is not an OCI layout; it is left as it is", .0.display())]
    NotALayout(PathBuf),
    /// Something else is in the way.
    #[error("`{}` is a directory, expected the name of a file", .0.display())]
    Directory(PathBuf),
    /// What the system refuses.
    #[error("cannot {action} `{}`", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Nobody takes what is written, or what takes it is full.
    #[error("cannot write to standard output")]
    StandardOutput(#[source] io::Error),
    /// It was stopped.
    #[error("writing was stopped")]
    Cancelled,
}

/// From where the bytes of a blob come.
pub(super) enum Piece<'a> {
    Bytes(&'a [u8]),
    Stored(Box<Descriptor>),
}

impl Piece<'_> {
    pub(super) fn size(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Stored(blob) => blob.size,
        }
    }
}

/// One image among what is exported.
pub(super) struct Member {
    pub(super) config: Digest,
    pub(super) layers: Vec<Digest>,
    pub(super) names: Vec<Reference>,
}

/// Everything that is to be written, in the order of its name.
pub(super) struct Plan<'a> {
    pub(super) blobs: BTreeMap<Digest, Piece<'a>>,
    pub(super) index: Encoded,
    /// The images that are not in an index.
    pub(super) members: Vec<Member>,
    /// For `docker load`.
    manifest: Option<Encoded>,
    store: &'a BlobStore,
    /// Says whether to stop; asked often.
    cancelled: &'a (dyn Fn() -> bool + Sync),
}

/// An image in `manifest.json`.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    config: String,
    /// `null` where there is none, as Docker writes it.
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

impl From<&Member> for Entry {
    fn from(member: &Member) -> Self {
        let mut tags: Vec<_> = member.names.iter().filter(|name| name.tag().is_some()).collect();
        tags.sort();
        tags.dedup();
        // A name for `docker load` has no digest.
        let tags: Vec<_> = tags.into_iter().map(|name| name.without_digest().familiar()).collect();
        Self {
            config: blob_name(&member.config),
            repo_tags: (!tags.is_empty()).then_some(tags),
            layers: member.layers.iter().map(blob_name).collect(),
        }
    }
}

/// The name of `manifest.json`.
pub(super) const DOCKER_MANIFEST: &str = "manifest.json";

/// Where a blob is in a layout.
pub(super) fn blob_name(digest: &Digest) -> String {
    format!("blobs/{}/{}", digest.algorithm().name(), digest.hex())
}

impl<'a> Plan<'a> {
    /// Looks at everything before anything is written. `created` is the time for the index, RFC 3339.
    pub(super) fn new(
        readers: Readers,
        exports: &[Export<'a>],
        store: &'a BlobStore,
        created: &str,
        cancelled: &'a (dyn Fn() -> bool + Sync),
    ) -> Result<Self, ExportError> {
        let has_index = exports.iter().any(|export| matches!(export.content, Content::Index { .. }));
        if readers == Readers::Docker && has_index {
            return Err(ExportError::IndexInArchive);
        }
        let index = Encoded::from_bytes(Vec::new());
        let (blobs, members) = (BTreeMap::new(), Vec::new());
        let mut plan = Self { blobs, index, members, manifest: None, store, cancelled };
        let mut roots = Vec::new();
        for export in exports {
            let root = match export.content {
                Content::Image(image) => {
                    let (root, mut member) = plan.add_image(image)?;
                    member.names = export.names.to_vec();
                    plan.members.push(member);
                    root
                }
                Content::Index { index, images } => plan.add_index(index, images)?,
            };
            roots.extend(named(&root, export, created));
        }
        plan.index = json::encode(&Index::new(TypeNames::Oci, roots, BTreeMap::new()))?;
        if readers == Readers::Docker {
            let entries: Vec<Entry> = plan.members.iter().map(Entry::from).collect();
            plan.manifest = Some(json::encode(&entries)?);
        }
        Ok(plan)
    }

    /// The documents that are no blobs: that which makes the others count comes last.
    pub(super) fn documents(&self) -> Vec<(&'static str, &[u8])> {
        let manifest = self.manifest.as_ref().map(|manifest| (DOCKER_MANIFEST, &manifest.bytes[..]));
        let index = ("index.json", &self.index.bytes[..]);
        [("oci-layout", LAYOUT_FILE)].into_iter().chain(manifest).chain([index]).collect()
    }

    fn add_image(&mut self, image: &'a EncodedImage) -> Result<(Descriptor, Member), ExportError> {
        let manifest = parse_manifest(&image.manifest.bytes, None, &DocumentLimits::OWN)?;
        let config = parse_config(&image.config.bytes, &DocumentLimits::OWN)?;
        for layer in &manifest.layers {
            if !self.store.contains(layer) {
                return Err(StoreError::Missing(layer.digest.clone()).into());
            }
            self.blobs.insert(layer.digest.clone(), Piece::Stored(Box::new(layer.clone())));
        }
        for document in [&image.config, &image.manifest] {
            self.blobs.insert(document.digest.clone(), Piece::Bytes(&document.bytes));
        }
        let kind = manifest.media_type.as_deref().unwrap_or(media_type::OCI_MANIFEST);
        let mut root = describe(kind, &image.manifest);
        let platform = Platform::from(&config);
        root.platform = (!platform.os.is_empty()).then(|| PlatformFields::from(&platform));
        let layers = manifest.layers.into_iter().map(|layer| layer.digest).collect();
        Ok((root, Member { config: image.config.digest.clone(), layers, names: Vec::new() }))
    }

    fn add_index(
        &mut self,
        encoded: &'a Encoded,
        images: &'a [EncodedImage],
    ) -> Result<Descriptor, ExportError> {
        let index = parse_index(&encoded.bytes, None, &DocumentLimits::OWN)?;
        let given: BTreeSet<_> = images.iter().map(|image| &image.manifest.digest).collect();
        if let Some(absent) = index.manifests.iter().find(|entry| !given.contains(&entry.digest)) {
            return Err(ExportError::Incomplete(absent.digest.clone()));
        }
        for image in images {
            self.add_image(image)?;
        }
        self.blobs.insert(encoded.digest.clone(), Piece::Bytes(&encoded.bytes));
        Ok(describe(index.media_type.as_deref().unwrap_or(media_type::OCI_INDEX), encoded))
    }

    /// Writes the bytes of a blob; a blob that was damaged in the store is an error, and removed there.
    pub(super) fn write(
        &self,
        digest: &Digest,
        piece: &Piece<'_>,
        out: &mut dyn Write,
    ) -> Result<(), Failure> {
        match piece {
            Piece::Bytes(bytes) => out.write_all(bytes).map_err(Failure::Write),
            Piece::Stored(blob) => {
                let mut reader = self.store.reader(blob).map_err(Failure::Store)?;
                let mut buffer = vec![0; 1 << 16];
                loop {
                    if (self.cancelled)() {
                        return Err(Failure::Cancelled);
                    }
                    match io::Read::read(&mut reader, &mut buffer) {
                        Ok(0) => return Ok(()),
                        Ok(count) => out.write_all(&buffer[..count]).map_err(Failure::Write)?,
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        Err(error) => return Err(Failure::Store(self.store.read_error(digest, error))),
                    }
                }
            }
        }
    }
}

/// Which side failed while copying.
pub(super) enum Failure {
    Store(StoreError),
    Write(io::Error),
    Cancelled,
}

impl Failure {
    pub(super) fn at(self, path: &std::path::Path) -> ExportError {
        match self {
            Self::Store(error) => error.into(),
            Self::Write(source) => ExportError::Io { action: "write", path: path.to_owned(), source },
            Self::Cancelled => ExportError::Cancelled,
        }
    }
}

fn describe(kind: &str, document: &Encoded) -> Descriptor {
    Descriptor::new(kind, document.digest.clone(), document.bytes.len() as u64)
}

/// The descriptors of an image in the index of a layout: one for each name, annotated as BuildKit does.
fn named(root: &Descriptor, export: &Export<'_>, created: &str) -> Vec<Descriptor> {
    let names = export.names;
    let annotated = |name: Option<&Reference>| {
        let mut annotations = export.annotations.clone();
        annotations.entry(CREATED.to_owned()).or_insert_with(|| created.to_owned());
        if let Some(name) = name {
            annotations.insert("io.containerd.image.name".to_owned(), name.to_string());
            if let Some(tag) = name.tag() {
                annotations.insert(REF_NAME.to_owned(), tag.to_owned());
            }
        }
        Descriptor { annotations: Some(annotations), ..root.clone() }
    };
    if names.is_empty() {
        return vec![annotated(None)];
    }
    let mut seen = BTreeSet::new();
    names.iter().filter(|name| seen.insert(*name)).map(|name| annotated(Some(name))).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::Store;
    use super::*;
    use crate::image::config::History;
    use crate::image::digest::DiffId;
    use crate::image::manifest::{Image, Layer, Origin};

    /// A layer with one file, gzip: in the store, and as it goes into an image.
    pub(in super::super) fn layer(store: &Store, name: &str) -> Layer {
        let mut tar = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_ustar();
        header.set_mode(0o644);
        header.set_size(5);
        header.set_cksum();
        tar.append_data(&mut header, name, &b"hello"[..]).unwrap();
        let tar = tar.into_inner().unwrap();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        gzip.write_all(&tar).unwrap();
        let bytes = gzip.finish().unwrap();
        let digest = store.blobs().put(&bytes).unwrap();
        let blob = Descriptor::new(media_type::OCI_LAYER_GZIP, digest, bytes.len() as u64);
        Layer { blob, diff_id: DiffId(Digest::of(&tar)), origin: Origin::Stored }
    }

    /// A tiny image.
    pub(in super::super) fn image(store: &Store, variant: &str, layers: &[&str]) -> EncodedImage {
        let mut image = Image::scratch();
        image.edit(|config| {
            config.os = "linux".to_owned();
            config.architecture = "arm".to_owned();
            config.variant = Some(variant.to_owned());
            config.created = Some("2024-01-01T00:00:00Z".to_owned());
            config.config.cmd = Some(vec!["/a".to_owned()]);
        });
        for name in layers {
            let row = History { created_by: Some(format!("COPY {name} /")), ..History::default() };
            image.append(row, Some(layer(store, name)));
        }
        image.encode().unwrap()
    }

    /// An index of images.
    pub(in super::super) fn index(images: &[EncodedImage]) -> Encoded {
        let entry = |image: &EncodedImage| {
            let mut entry = describe(media_type::OCI_MANIFEST, &image.manifest);
            let config = parse_config(&image.config.bytes, &DocumentLimits::OWN).unwrap();
            entry.platform = Some(PlatformFields::from(&Platform::from(&config)));
            entry
        };
        json::encode(&Index::new(TypeNames::Oci, images.iter().map(entry).collect(), BTreeMap::new()))
            .unwrap()
    }

    #[test]
    fn every_name_gets_a_descriptor_as_buildkit_writes_it() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let image = image(&store, "v7", &["a"]);
        let pinned = format!("y@{}", image.config.digest);
        let names = ["x:1", "localhost:5000/x", "x:1", &pinned].map(|name| name.parse().unwrap());
        let export = Export::new(Content::Image(&image), &names);
        let plan =
            Plan::new(Readers::Oci, &[export], store.blobs(), "2024-01-01T00:00:00Z", &|| false).unwrap();
        let index = parse_index(&plan.index.bytes, None, &DocumentLimits::OWN).unwrap();
        let rows: Vec<_> = index
            .manifests
            .iter()
            .map(|entry| (entry.annotation("io.containerd.image.name").unwrap(), entry.annotation(REF_NAME)))
            .collect();
        let pinned = format!("docker.io/library/{pinned}");
        assert_eq!(
            rows,
            [
                ("docker.io/library/x:1", Some("1")),
                ("localhost:5000/x:latest", Some("latest")),
                (pinned.as_str(), None)
            ]
        );
        let entry = &index.manifests[0];
        assert_eq!(Platform::from(entry.platform.as_ref().unwrap()).to_string(), "linux/arm/v7");
        assert_eq!(entry.annotation("org.opencontainers.image.created"), Some("2024-01-01T00:00:00Z"));
    }

    #[test]
    fn what_is_missing_is_noticed_before_anything_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let images = [image(&store, "v5", &["a"]), image(&store, "v7", &["a", "b"])];
        let index = index(&images);
        let plan = |images| {
            let content = Content::Index { index: &index, images };
            Plan::new(Readers::Oci, &[Export::new(content, &[])], store.blobs(), "", &|| false)
                .map(|plan| plan.blobs.len())
        };
        assert_eq!(plan(&images).unwrap(), 1 + 2 * 2 + 2);
        assert!(matches!(plan(&images[..1]), Err(ExportError::Incomplete(_))));
        store.blobs().remove(&layer(&store, "b").blob.digest).unwrap();
        assert!(matches!(plan(&images), Err(ExportError::Store(StoreError::Missing(_)))));
    }
}
