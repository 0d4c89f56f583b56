//! OCI image layouts (OCI image-spec `image-layout.md`): a directory that holds images.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use serde::Deserialize;

use super::blobs::BlobStore;
use super::catalog::REF_NAME;
use super::choice::LayoutImage;
use super::export::{DOCKER_MANIFEST, Export, ExportError, Plan, Readers};
use super::lock::{self, Sharing};
use super::staged::{self, Parents, StagedDir};
use crate::image::config::parse_config_at_cost;
use crate::image::descriptor::{Descriptor, media_type};
use crate::image::digest::{Digest, Mismatch, VerifyingReader};
use crate::image::document::{Document, DocumentError, DocumentLimits, Kind, parse, too_long};
use crate::image::index::{Index, parse_index};
use crate::image::manifest::parse_manifest;
use crate::image::matching::is_attestation;
use crate::image::shown;
use crate::limit::Limit;

/// The annotations that name an entry.
const NAMES: [&str; 2] = [REF_NAME, "io.containerd.image.name"];

/// Names that a message lists.
const MOST_LISTED: usize = 20;

/// The most bytes of the file `oci-layout`.
const LAYOUT_FILE_LIMIT: u64 = 4096;

/// Writes images into the directory `dest`; `created` is the time for the index, RFC 3339.
///
/// A layout that is there already is replaced: it stays valid until its `index.json` is exchanged, and what the new one
/// does not need is removed then. A directory that is not there appears whole.
///
/// # Errors
/// [`ExportError`]; `dest` is then as it was before. A directory that holds something else is refused.
pub fn write(
    dest: &Path,
    readers: Readers,
    exports: &[Export<'_>],
    blobs: &BlobStore,
    created: &str,
    cancelled: &(dyn Fn() -> bool + Sync),
) -> Result<(), ExportError> {
    let plan = Plan::new(readers, exports, blobs, created, cancelled)?;
    if occupied(dest)? {
        let _lock = lock(dest)?;
        let stage = StagedDir::within(dest, OsStr::new(".layout.")).map_err(io_error("write to", dest))?;
        fill(&plan, stage.path())?;
        exchange(&plan, stage.path(), dest)?;
        remove_others(&plan, dest)
    } else {
        let parent = staged::parent(dest);
        let parents = Parents::of(dest).map_err(io_error("make", parent))?;
        let stage = StagedDir::beside(dest).map_err(io_error("write to", parent))?;
        fill(&plan, stage.path())?;
        stage.publish(dest).map_err(io_error("make", dest))?;
        parents.keep();
        Ok(())
    }
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ExportError {
    move |source| ExportError::Io { action, path: path.to_owned(), source }
}

/// Looks whether something is in the way of a layout at `dest`.
///
/// # Errors
/// [`ExportError::NotALayout`], or `dest` cannot be read.
pub fn check(dest: &Path) -> Result<(), ExportError> {
    occupied(dest).map(|_| ())
}

/// Whether `path`, below a layout, is part of it.
#[must_use]
pub fn is_own(path: &Path) -> bool {
    ["blobs", "index.json", "oci-layout", DOCKER_MANIFEST].iter().any(|own| path.starts_with(own))
}

/// Whether `dest` is there, and may be written to: it is empty or a layout.
fn occupied(dest: &Path) -> Result<bool, ExportError> {
    match fs::metadata(dest) {
        Ok(metadata) if metadata.is_dir() => {}
        Ok(_) => return Err(ExportError::NotALayout(dest.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(io_error("read", dest)(error)),
    }
    let mut empty = true;
    for entry in fs::read_dir(dest).map_err(io_error("read", dest))? {
        let name = entry.map_err(io_error("read", dest))?.file_name();
        empty &= name == "lost+found" || staged::is_staged(&name);
    }
    let layout = empty || Directory::open(dest).and_then(|dir| dir.check_version()).is_ok();
    if layout { Ok(true) } else { Err(ExportError::NotALayout(dest.to_owned())) }
}

/// Waits until nobody else writes to `dest`; without locks nobody else is taken to.
fn lock(dest: &Path) -> Result<File, ExportError> {
    let dir = File::open(dest).map_err(io_error("open", dest))?;
    match lock::wait(&dir, Sharing::Alone) {
        Err(error) if !lock::is_lacking(&error) => Err(io_error("lock", dest)(error)),
        _ => Ok(dir),
    }
}

/// Writes a complete layout into the empty directory `dir`.
fn fill(plan: &Plan<'_>, dir: &Path) -> Result<(), ExportError> {
    fs::create_dir(dir.join("blobs")).map_err(io_error("make", dir))?;
    for (digest, piece) in &plan.blobs {
        let path = blob_path(dir, digest);
        let parent = staged::parent(&path);
        fs::create_dir_all(parent).map_err(io_error("make", parent))?;
        let mut file = create(&path)?;
        plan.write(digest, piece, &mut file).map_err(|failure| failure.at(&path))?;
        file.sync_all().map_err(io_error("write", &path))?;
    }
    for (name, bytes) in plan.documents() {
        let path = dir.join(name);
        let mut file = create(&path)?;
        file.write_all(bytes).and_then(|()| file.sync_all()).map_err(io_error("write", &path))?;
    }
    Ok(())
}

fn create(path: &Path) -> Result<File, ExportError> {
    OpenOptions::new().write(true).create_new(true).open(path).map_err(io_error("make", path))
}

fn blob_path(dir: &Path, digest: &Digest) -> PathBuf {
    dir.join("blobs").join(digest.algorithm().name()).join(digest.hex())
}

/// Moves a complete layout to `dest`, file by file: `dest` may be a mount point, which cannot be renamed. The index
/// comes last: before, the old images are there, and after, the new ones.
fn exchange(plan: &Plan<'_>, stage: &Path, dest: &Path) -> Result<(), ExportError> {
    for digest in plan.blobs.keys() {
        let path = blob_path(dest, digest);
        let parent = staged::parent(&path);
        for dir in [dest.join("blobs").as_path(), parent] {
            if fs::symlink_metadata(dir).is_ok_and(|found| found.is_symlink()) {
                return Err(ExportError::NotALayout(dir.to_owned()));
            }
        }
        fs::create_dir_all(parent).map_err(io_error("make", parent))?;
        fs::rename(blob_path(stage, digest), &path).map_err(io_error("write", &path))?;
    }
    let documents = plan.documents();
    for (name, _) in &documents {
        let path = dest.join(name);
        fs::rename(stage.join(name), &path).map_err(io_error("write", &path))?;
    }
    // One that is there is about the images before.
    let path = dest.join(DOCKER_MANIFEST);
    if !documents.iter().any(|(name, _)| *name == DOCKER_MANIFEST) {
        fs::remove_file(&path).or_else(staged::absent).map_err(io_error("remove", &path))?;
    }
    staged::sync_dir(dest).map_err(io_error("write", dest))
}

/// Removes blobs that the images do not need, and nothing else.
fn remove_others(plan: &Plan<'_>, dest: &Path) -> Result<(), ExportError> {
    for algorithm in ["sha256", "sha512"] {
        let dir = dest.join("blobs").join(algorithm);
        let entries = match fs::read_dir(&dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other.map_err(io_error("read", &dir))?,
        };
        for entry in entries {
            let name = entry.map_err(io_error("read", &dir))?.file_name();
            let digest = name.to_str().and_then(|hex| format!("{algorithm}:{hex}").parse::<Digest>().ok());
            if digest.is_some_and(|digest| !plan.blobs.contains_key(&digest)) {
                let path = dir.join(&name);
                fs::remove_file(&path).or_else(staged::absent).map_err(io_error("remove", &path))?;
            }
        }
    }
    Ok(())
}

fn no_layout(path: &Path, name: &str, source: &io::Error) -> String {
    let path = path.display();
    match source.kind() {
        io::ErrorKind::NotFound if name == "." => format!("there is no directory `{path}`"),
        io::ErrorKind::NotADirectory if name == "." => {
            format!("`{path}` is not a directory, and an OCI layout is one")
        }
        _ => format!("`{path}` is not an OCI layout: cannot read `{name}`"),
    }
}

/// What is wrong with a layout.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// There is no layout.
    #[error("{}", no_layout(path, name, source))]
    NotALayout {
        /// The directory.
        path: PathBuf,
        /// The file that cannot be read.
        name: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A layout of another kind.
    #[error("`{}` has image layout version `{version}`, expected `1.0.0`", path.display())]
    Version {
        /// The directory.
        path: PathBuf,
        /// What is written.
        version: String,
    },
    /// A document is not what it should be.
    #[error("{name} of the layout is not valid")]
    Document {
        /// Which.
        name: String,
        /// What is wrong.
        #[source]
        source: DocumentError,
    },
    /// A blob cannot be read.
    #[error("cannot read blob {digest} of the layout")]
    Blob {
        /// Which.
        digest: Digest,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A blob that is read as a whole is too large for that.
    #[error("{digest} is {size} bytes long, more than the limit of {value}; {limit}", value = limit.value)]
    TooLarge {
        /// Which.
        digest: Digest,
        /// Its size.
        size: u64,
        /// The most.
        limit: Limit,
    },
    /// A manifest has another number of layers than its config.
    #[error("manifest {digest} has {layers} layers, its config has {diff_ids} diff ids")]
    Layers {
        /// The manifest.
        digest: Digest,
        /// Its layers.
        layers: usize,
        /// Those of its config.
        diff_ids: usize,
    },
    /// Indexes in indexes in indexes.
    #[error("indexes are nested more than {value} deep; {0}", value = .0.value)]
    Depth(Limit),
    /// There is no image of that name.
    #[error("no image of the layout is named `{name}`: it has {available}")]
    NoSuchName {
        /// What was looked for.
        name: String,
        /// What there is.
        available: String,
    },
    /// There is no image of that digest.
    #[error("no image of the layout has the digest `{digest}`: it has {available}")]
    NoSuchDigest {
        /// What was looked for.
        digest: Digest,
        /// What there is.
        available: String,
    },
    /// There is none, or more than one.
    #[error("the layout has {0} images, choose one by its name")]
    NotOne(usize),
}

/// A directory from outside, through one handle: no link leads out of it.
#[derive(Debug)]
struct Directory {
    handle: OwnedFd,
    path: PathBuf,
}

impl Directory {
    fn open(path: &Path) -> Result<Self, LayoutError> {
        let handle =
            rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        match handle {
            Ok(handle) => Ok(Self { handle, path: path.to_owned() }),
            Err(error) => Err(LayoutError::NotALayout {
                path: path.to_owned(),
                name: ".".to_owned(),
                source: error.into(),
            }),
        }
    }

    /// Opens a regular file; a FIFO is not waited for.
    fn file(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let file = File::from(rustix::fs::openat2(&self.handle, name, flags, Mode::empty(), resolve)?);
        if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("not a regular file")) }
    }

    /// The file `name`; none if it is longer than `limit` bytes.
    fn small_file(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>, LayoutError> {
        let read = || {
            let mut bytes = Vec::new();
            self.file(name)?.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
            Ok(Some(bytes).filter(|bytes| bytes.len() as u64 <= limit))
        };
        read().map_err(|source| self.no_layout(name, source))
    }

    fn no_layout(&self, name: &str, source: io::Error) -> LayoutError {
        LayoutError::NotALayout { path: self.path.clone(), name: name.to_owned(), source }
    }

    fn check_version(&self) -> Result<(), LayoutError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct LayoutFile {
            image_layout_version: String,
        }
        const NAME: &str = "oci-layout";
        let too_large = || self.no_layout(NAME, io::ErrorKind::FileTooLarge.into());
        let bytes = self.small_file(NAME, LAYOUT_FILE_LIMIT)?.ok_or_else(too_large)?;
        let file: LayoutFile =
            serde_json::from_slice(&bytes).map_err(|source| self.no_layout(NAME, source.into()))?;
        if file.image_layout_version.starts_with("1.") {
            return Ok(());
        }
        Err(LayoutError::Version { path: self.path.clone(), version: shown(&file.image_layout_version) })
    }
}

/// A layout that is open for reading. Everything that is read from it is verified.
#[derive(Debug)]
pub struct Layout {
    directory: Directory,
    index: Index,
    limits: DocumentLimits,
}

impl Layout {
    /// Opens a layout and reads its index. Documents in it may be as large as `limits` say.
    ///
    /// # Errors
    /// [`LayoutError`] when there is none, or none that this program understands.
    pub fn open(path: &Path, limits: &DocumentLimits) -> Result<Self, LayoutError> {
        const NAME: &str = "index.json";
        let directory = Directory::open(path)?;
        directory.check_version()?;
        let invalid = |source| LayoutError::Document { name: format!("`{NAME}`"), source };
        let bytes = directory.small_file(NAME, limits.index.value)?;
        let bytes = bytes.ok_or_else(|| invalid(too_long(Kind::Index, limits)))?;
        let index = parse_index(&bytes, Some(media_type::OCI_INDEX), limits).map_err(invalid)?;
        Ok(Self { directory, index, limits: *limits })
    }

    /// The images and indexes, in order.
    #[must_use]
    pub fn entries(&self) -> &[Descriptor] {
        &self.index.manifests
    }

    /// The entry with a name: its tag or its complete name. Without one, the only entry, whatever its names.
    ///
    /// # Errors
    /// [`LayoutError::NoSuchName`] and [`LayoutError::NotOne`].
    pub fn find(&self, name: Option<&str>) -> Result<&Descriptor, LayoutError> {
        let entries = self.named(name)?;
        let different: BTreeSet<_> = entries.iter().map(|entry| &entry.digest).collect();
        match entries.first() {
            Some(first) if name.is_some() || different.len() == 1 => Ok(first),
            _ => Err(LayoutError::NotOne(different.len())),
        }
    }

    /// All entries with a name: their tag, their complete name or their digest; without one, all there are.
    ///
    /// # Errors
    /// [`LayoutError::NoSuchName`].
    pub(super) fn named(&self, name: Option<&str>) -> Result<Vec<&Descriptor>, LayoutError> {
        let Some(name) = name else { return Ok(self.entries().iter().collect()) };
        let has_name = |entry: &&Descriptor| {
            NAMES.into_iter().any(|key| entry.annotation(key) == Some(name))
                || entry.digest.to_string() == name
        };
        let entries: Vec<&Descriptor> = self.entries().iter().filter(has_name).collect();
        if entries.is_empty() {
            if let Ok(digest) = name.parse() {
                return Err(LayoutError::NoSuchDigest { digest, available: self.listed_digests() });
            }
            let available = self.listed_names();
            return Err(LayoutError::NoSuchName { name: shown(name), available });
        }
        Ok(entries)
    }

    /// The digests of the images, as a message lists them.
    fn listed_digests(&self) -> String {
        let listed: Vec<String> =
            self.entries().iter().take(10).map(|entry| format!("`{}`", entry.digest)).collect();
        match self.entries().len() - listed.len() {
            0 if listed.is_empty() => "none".to_owned(),
            0 => listed.join(", "),
            more => format!("{} and {more} more", listed.join(", ")),
        }
    }

    /// The names of the images, as a message lists them.
    pub(super) fn listed_names(&self) -> String {
        let names: BTreeSet<&str> = self.entries().iter().filter_map(Self::name_of).collect();
        let mut listed: Vec<String> =
            names.iter().take(MOST_LISTED).map(|name| format!("`{}`", shown(name))).collect();
        match names.len() {
            0 => "none with a name".to_owned(),
            count => {
                listed.extend((count > MOST_LISTED).then(|| "more".to_owned()));
                listed.join(", ")
            }
        }
    }

    /// The name of an entry.
    pub(super) fn name_of(entry: &Descriptor) -> Option<&str> {
        NAMES.into_iter().find_map(|key| entry.annotation(key))
    }

    /// How large documents may be.
    pub(super) fn limits(&self) -> &DocumentLimits {
        &self.limits
    }

    /// An index like the layout's own, with these entries.
    pub(super) fn index_of(&self, manifests: Vec<Descriptor>) -> Index {
        Index { manifests, ..self.index.clone() }
    }

    /// The index that `entry` points to.
    ///
    /// # Errors
    /// [`LayoutError`] when it cannot be read, or is none.
    pub(super) fn index(&self, entry: &Descriptor) -> Result<Index, LayoutError> {
        let bytes = self.read(entry, self.limits.index)?;
        parse_index(&bytes, Some(&entry.media_type), &self.limits)
            .map_err(|source| invalid(&entry.digest, source))
    }

    /// The image that `entry` points to: its manifest and its config, which agree.
    ///
    /// # Errors
    /// [`LayoutError`] when one of them cannot be read, or is none.
    pub(super) fn image(&self, entry: &Descriptor) -> Result<LayoutImage, LayoutError> {
        let limits = &self.limits;
        let manifest = parse_manifest(&self.read(entry, limits.manifest)?, Some(&entry.media_type), limits)
            .map_err(|source| invalid(&entry.digest, source))?;
        let (config, cost) = parse_config_at_cost(&self.read(&manifest.config, limits.config)?, limits)
            .map_err(|source| invalid(&manifest.config.digest, source))?;
        let (layers, diff_ids) = (manifest.layers.len(), config.rootfs.diff_ids.len());
        if layers != diff_ids {
            return Err(LayoutError::Layers { digest: entry.digest.clone(), layers, diff_ids });
        }
        Ok(LayoutImage { manifest, digest: entry.digest.clone(), config, cost, notes: Vec::new() })
    }

    /// Opens a blob. What is read from it is not verified.
    ///
    /// # Errors
    /// When it is not there, or no regular file.
    pub fn open_blob(&self, digest: &Digest) -> io::Result<File> {
        self.directory.file(&format!("blobs/{}/{}", digest.algorithm().name(), digest.hex()))
    }

    /// Opens a blob; reading it ends with an error when it is not what it should be.
    ///
    /// # Errors
    /// [`LayoutError::Blob`] when it is not there or of another size.
    pub fn reader(&self, blob: &Descriptor) -> Result<VerifyingReader<File>, LayoutError> {
        let open = || {
            let file = self.open_blob(&blob.digest)?;
            let actual = file.metadata()?.len();
            if actual == blob.size {
                return Ok(VerifyingReader::new(file, blob.digest.clone(), blob.size));
            }
            Err(io::Error::other(Mismatch::Size { expected: blob.digest.clone(), size: blob.size, actual }))
        };
        open().map_err(|source| LayoutError::Blob { digest: blob.digest.clone(), source })
    }

    /// Reads a whole blob of at most `limit` bytes.
    ///
    /// # Errors
    /// [`LayoutError::TooLarge`] and [`LayoutError::Blob`].
    pub fn read(&self, blob: &Descriptor, limit: Limit) -> Result<Vec<u8>, LayoutError> {
        if limit.is_exceeded_by(blob.size) {
            return Err(LayoutError::TooLarge { digest: blob.digest.clone(), size: blob.size, limit });
        }
        // What a descriptor has inline has been compared with its digest when the document around it was read.
        if let Ok(Some(bytes)) = blob.inline_data() {
            return Ok(bytes);
        }
        let mut bytes = Vec::new();
        let read = self.reader(blob)?.read_to_end(&mut bytes);
        read.map_err(|source| LayoutError::Blob { digest: blob.digest.clone(), source })?;
        Ok(bytes)
    }

    /// Reads everything that the index leads to. Layers are compared with their digests; what they unpack to is not.
    ///
    /// # Errors
    /// [`LayoutError`] for the first thing that is wrong.
    pub fn verify(&self) -> Result<(), LayoutError> {
        let mut seen = BTreeSet::new();
        let mut open: Vec<(Descriptor, u64)> = self.entries().iter().rev().map(|e| (e.clone(), 0)).collect();
        while let Some((entry, depth)) = open.pop() {
            if !seen.insert(entry.digest.clone()) {
                continue;
            }
            let document =
                media_type::is_manifest(&entry.media_type) || media_type::is_index(&entry.media_type);
            if !document || is_attestation(&entry) {
                self.pass(&entry)?;
                continue;
            }
            let limits = &self.limits;
            let bytes = self.read(&entry, limits.of(Kind::ManifestOrIndex))?;
            let document = parse(&bytes, Some(&entry.media_type), limits);
            match document.map_err(|source| invalid(&entry.digest, source))? {
                Document::Index(_) if limits.nesting.value <= depth => {
                    return Err(LayoutError::Depth(limits.nesting));
                }
                Document::Index(index) => {
                    open.extend(index.manifests.into_iter().rev().map(|e| (e, depth + 1)))
                }
                Document::Manifest(_) => {
                    for layer in self
                        .image(&entry)?
                        .manifest
                        .layers
                        .iter()
                        .filter(|layer| seen.insert(layer.digest.clone()))
                    {
                        self.pass(layer)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads a blob of any size for nothing but its digest.
    fn pass(&self, blob: &Descriptor) -> Result<(), LayoutError> {
        let copied = io::copy(&mut self.reader(blob)?, &mut io::sink());
        copied.map(|_| ()).map_err(|source| LayoutError::Blob { digest: blob.digest.clone(), source })
    }
}

fn invalid(digest: &Digest, source: DocumentError) -> LayoutError {
    LayoutError::Document { name: digest.to_string(), source }
}

#[cfg(test)]
mod tests {
    use super::super::export::Content;
    use super::super::export::tests::{image, index, layer};
    use super::super::{LAYOUT_FILE, Store, StoreError};
    use super::*;
    use crate::image::manifest::EncodedImage;
    use crate::image::reference::Reference;

    const CREATED: &str = "2024-01-01T00:00:00Z";

    struct Ground {
        dir: tempfile::TempDir,
        store: Store,
    }

    impl Ground {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let store = Store::open(&dir.path().join("store")).unwrap();
            Self { dir, store }
        }

        fn write(&self, dest: &Path, image: &EncodedImage, name: &str) -> Result<(), ExportError> {
            let names: [Reference; 1] = [name.parse().unwrap()];
            write(
                dest,
                Readers::Oci,
                &[Export::new(Content::Image(image), &names)],
                self.store.blobs(),
                CREATED,
                &|| false,
            )
        }

        /// The files of a directory in the test's own one, sorted.
        fn files(&self, name: &str) -> Vec<String> {
            let top = self.dir.path().join(name);
            let mut open = vec![top.clone()];
            let mut files = Vec::new();
            while let Some(dir) = open.pop() {
                for entry in fs::read_dir(dir).unwrap() {
                    let path = entry.unwrap().path();
                    if path.is_dir() { open.push(path) } else { files.push(path) }
                }
            }
            let mut names: Vec<_> =
                files.iter().map(|f| f.strip_prefix(&top).unwrap().to_str().unwrap().to_owned()).collect();
            names.sort();
            names
        }
    }

    #[test]
    fn a_layout_holds_an_image_and_nothing_else() {
        let ground = Ground::new();
        let image = image(&ground.store, "v7", &["a", "b", "a"]);
        let dest = ground.dir.path().join("out/layout");
        ground.write(&dest, &image, "x:1").unwrap();
        let layout = Layout::open(&dest, &DocumentLimits::default()).unwrap();
        layout.verify().unwrap();
        assert_eq!(layout.find(Some("1")).unwrap().digest, image.manifest.digest);
        assert_eq!(layout.find(Some("docker.io/library/x:1")).unwrap(), layout.find(None).unwrap());
        assert!(matches!(layout.find(Some("2")), Err(LayoutError::NoSuchName { .. })));
        let other = Digest::of(b"other").to_string();
        let said = layout.find(Some(&other)).unwrap_err().to_string();
        let there = &image.manifest.digest;
        assert_eq!(said, format!("no image of the layout has the digest `{other}`: it has `{there}`"));
        let said = |path: &Path| Layout::open(path, &DocumentLimits::default()).unwrap_err().to_string();
        let (missing, file) = (dest.join("missing"), dest.join("oci-layout"));
        assert_eq!(said(&missing), format!("there is no directory `{}`", missing.display()));
        assert!(said(&file).contains("is not a directory"), "{}", said(&file));
        let mut expected: Vec<_> = [&image.config.digest, &image.manifest.digest]
            .into_iter()
            .chain([&layer(&ground.store, "a").blob.digest, &layer(&ground.store, "b").blob.digest])
            .map(|digest| format!("layout/blobs/sha256/{}", digest.hex()))
            .collect();
        expected.extend(["layout/index.json".to_owned(), "layout/oci-layout".to_owned()]);
        expected.sort();
        assert_eq!(ground.files("out"), expected);
    }

    #[test]
    fn a_layout_is_replaced_and_what_it_no_longer_needs_is_removed() {
        let ground = Ground::new();
        let dest = ground.dir.path().join("layout");
        fs::create_dir(&dest).unwrap();
        ground.write(&dest, &image(&ground.store, "v7", &["a", "b"]), "x:1").unwrap();
        fs::write(dest.join("notes"), "mine").unwrap();
        let images = [image(&ground.store, "v5", &["a"]), image(&ground.store, "v7", &["c"])];
        let index = index(&images);
        let content = Content::Index { index: &index, images: &images };
        write(&dest, Readers::Oci, &[Export::new(content, &[])], ground.store.blobs(), CREATED, &|| false)
            .unwrap();
        let layout = Layout::open(&dest, &DocumentLimits::default()).unwrap();
        layout.verify().unwrap();
        assert_eq!(layout.find(None).unwrap().digest, index.digest);
        // An index, two images with their configs, two layers.
        assert_eq!(ground.files("layout").len(), 7 + 3);
        assert_eq!(fs::read_to_string(dest.join("notes")).unwrap(), "mine");
    }

    #[test]
    fn what_is_no_layout_is_not_overwritten() {
        let ground = Ground::new();
        let image = image(&ground.store, "v7", &["a"]);
        let dest = ground.dir.path().join("home");
        fs::create_dir(&dest).unwrap();
        fs::write(dest.join("letter"), "dear").unwrap();
        let error = ground.write(&dest, &image, "x").unwrap_err().to_string();
        assert!(error.ends_with("exists and is not an OCI layout; it is left as it is"), "{error}");
        assert_eq!(ground.files("home"), ["letter"]);
        assert!(matches!(ground.write(&dest.join("letter"), &image, "x"), Err(ExportError::NotALayout(_))));
    }

    #[test]
    fn a_failure_leaves_nothing_behind() {
        let ground = Ground::new();
        let old = image(&ground.store, "v7", &["a"]);
        ground.write(&ground.dir.path().join("layout"), &old, "x").unwrap();
        let before = ground.files("layout");
        let new = image(&ground.store, "v7", &["a", "b"]);
        let damaged = layer(&ground.store, "b").blob;
        let path = ground.store.root().join("blobs/sha256").join(damaged.digest.hex());
        for (number, name) in ["layout", "new/layout"].into_iter().enumerate() {
            // Replaced, not written to: it is read-only for others than root.
            fs::remove_file(&path).unwrap();
            fs::write(&path, vec![u8::try_from(number).unwrap(); usize::try_from(damaged.size).unwrap()])
                .unwrap();
            let error = ground.write(&ground.dir.path().join(name), &new, "x").unwrap_err();
            assert!(matches!(error, ExportError::Store(StoreError::Corrupt(_))), "{error:?}");
            layer(&ground.store, "b");
        }
        assert_eq!(ground.files("layout"), before);
        assert!(!ground.dir.path().join("new").exists());
        Layout::open(&ground.dir.path().join("layout"), &DocumentLimits::default())
            .unwrap()
            .verify()
            .unwrap();
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "makes the traps")]
    fn damage_is_found_and_no_link_is_followed() {
        let ground = Ground::new();
        let image = image(&ground.store, "v7", &["a"]);
        let dest = ground.dir.path().join("layout");
        let blob = dest.join("blobs/sha256").join(layer(&ground.store, "a").blob.digest.hex());
        let verify = || Layout::open(&dest, &DocumentLimits::default()).and_then(|layout| layout.verify());
        let fresh = || {
            ground.write(&dest, &image, "x").unwrap();
            verify().unwrap();
        };
        fresh();
        let bytes = fs::read(&blob).unwrap();
        let mut changed = bytes.clone();
        changed[20] ^= 1;
        for wrong in [&bytes[..9], &changed, &[]] {
            fs::write(&blob, wrong).unwrap();
            assert!(matches!(verify(), Err(LayoutError::Blob { .. })));
        }
        fresh();
        fs::rename(&blob, dest.join("elsewhere")).unwrap();
        std::os::unix::fs::symlink("../../elsewhere", &blob).unwrap();
        assert!(matches!(verify(), Err(LayoutError::Blob { .. })));
        fresh();
        fs::remove_file(&blob).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &blob, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert!(matches!(verify(), Err(LayoutError::Blob { .. })));
        fresh();
        fs::write(dest.join("oci-layout"), r#"{"imageLayoutVersion":"2.0.0"}"#).unwrap();
        assert!(matches!(verify(), Err(LayoutError::Version { .. })));
        fs::write(dest.join("oci-layout"), LAYOUT_FILE).unwrap();
        fs::write(dest.join("index.json"), "{").unwrap();
        assert!(matches!(verify(), Err(LayoutError::Document { .. })));
        fs::write(dest.join("index.json"), vec![b' '; 5 << 20]).unwrap();
        let error = verify().unwrap_err();
        assert!(matches!(&error, LayoutError::Document { .. }), "{error:?}");
    }
}
