//! Images between registries and the store: bases to build on, and destinations to push to; files from elsewhere.

pub mod combine;
pub mod remote;

mod changed;
mod forms;
mod layouts;
mod named;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

pub use named::{Pull, Unhelped};

use named::Stored;

use crate::build;
use crate::build::named_contexts::LayoutImageName;
use crate::build::progress::{Event, Transfer, Way};
use crate::build::services::{Base, ImageSource, ServiceError, Wanted};
use crate::image::config::{ImageConfig, parse_config_at_cost};
use crate::image::descriptor::{Descriptor, media_type};
use crate::image::digest::{DiffId, Digest, Mismatch, VerifyingReader};
use crate::image::document::{self, DocumentError, DocumentLimits, MOST_LAYERS};
use crate::image::index::{flatten, parse_index};
use crate::image::json::Encoded;
use crate::image::manifest::{EncodedImage, Image, Layer, Manifest, Origin, parse_manifest};
use crate::image::matching::{self, Single, Unfit};
use crate::image::platform::{Platform, PlatformFields};
use crate::image::reference::Reference;
use crate::layer::{Limits, Owners};
use crate::limit::Limit;
use crate::registry::{BlobSource, Client, Fetched, Uploaded, in_parallel};
use crate::sandbox::Cancel;
use crate::store::blobs::BlobWriter;
use crate::store::mount::MAX_LAYERS;
use crate::store::trees::Trees;
use crate::store::unpacked::{Chain, Progress, Unpack, UnpackError, Unpacked};
use crate::store::workspace::Workspace;
use crate::store::{Store, StoreError};

/// Blobs that are fetched or sent at once.
const JOBS: usize = 4;

/// Why an image can't be built on.
#[derive(Debug, thiserror::Error)]
pub enum ImageProblem {
    /// No entry of the index will do.
    #[error("there is no image for `{wanted}`: it has {available}")]
    NoPlatform {
        /// What was looked for.
        wanted: Platform,
        /// What there is.
        available: String,
    },
    /// The only image there is will not do.
    #[error("it {0}")]
    Unfit(Unfit),
    /// More than can be stacked.
    #[error("it has {layers} layers, and there can be no more than {most} here")]
    Layers {
        /// How many it has.
        layers: usize,
        /// The most there can be.
        most: usize,
    },
    /// The document is neither manifest nor index.
    #[error("`{0}` is not the type of an image")]
    MediaType(String),
}

/// A nested index that could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read an index within the index")]
struct Nested(#[source] ServiceError);

/// Registries, with the store in front of them.
pub struct Images<'a> {
    /// The registries.
    pub client: &'a Client,
    /// What has been fetched or built.
    pub store: &'a Store,
    /// Who is told.
    pub progress: &'a dyn build::progress::Progress,
    /// How large documents may be.
    pub limits: DocumentLimits,
    /// Where bases are looked for.
    pub pull: Pull,
    /// What unpacking needs; planning does none.
    pub unpacking: Option<Unpacking<'a>>,
    /// What names meant when they were asked for first: for all platforms of a build they mean the same.
    pub asked: Asked,
}

/// Documents that names of registries stand for, and what the plans of a build hold of documents.
#[derive(Debug, Default)]
pub struct Asked {
    /// Digests and media types.
    names: Mutex<BTreeMap<Reference, (Digest, String)>>,
    /// What the configs of bases cost so far, over all stages and platforms.
    held: AtomicU64,
    /// What the build is for, normalised: a name stands for one index for all of them.
    platforms: Vec<Platform>,
}

impl Asked {
    /// In a build for these platforms, normalised.
    #[must_use]
    pub fn for_platforms(platforms: Vec<Platform>) -> Self {
        Self { platforms, ..Self::default() }
    }

    /// The base that a build takes: its config is held for as long as the build goes on.
    fn take(&self, candidate: Candidate, limit: Limit) -> Result<Base, DocumentError> {
        let Candidate { base, cost } = candidate;
        let size = self.held.fetch_add(cost, Ordering::Relaxed).saturating_add(cost);
        if limit.is_exceeded_by(size) {
            return Err(DocumentError::Together { size, limit });
        }
        Ok(base)
    }
}

/// What unpacking needs.
pub struct Unpacking<'a> {
    /// What becomes of layers.
    pub unpacker: Unpacker,
    /// Where layers are until they are complete.
    pub workspace: &'a Workspace,
    /// How much a layer may hold.
    pub limits: Limits,
}

/// How the layers of an image become files.
#[derive(Debug)]
pub enum Unpacker {
    /// Each becomes a directory of the store; overlayfs stacks them.
    Layers(Unpacked),
    /// All become one directory.
    Trees(Trees),
}

impl Unpacker {
    /// The most layers that an image can have, with those that a build adds.
    #[must_use]
    pub fn most_layers(&self) -> usize {
        match self {
            Self::Layers(_) => MAX_LAYERS,
            Self::Trees(_) => MOST_LAYERS,
        }
    }

    fn chain(&self, layers: &[(DiffId, Descriptor)], unpack: &Unpack<'_>) -> Result<Chain, UnpackError> {
        match self {
            Self::Layers(unpacked) => unpacked.chain(layers, unpack).map(Chain::from),
            Self::Trees(trees) => trees.chain(layers, unpack),
        }
    }
}

/// Takes what is received until nobody wants it any more.
struct WhileWanted<'a> {
    writer: BlobWriter,
    unwanted: &'a dyn Fn() -> bool,
    /// Which tells how much there is.
    transfer: Option<&'a Transfer<'a>>,
}

impl Write for WhileWanted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if (self.unwanted)() {
            return Err(io::Error::other("nobody wants it any more"));
        }
        let written = self.writer.write(bytes)?;
        if let Some(transfer) = self.transfer {
            transfer.add(written as u64);
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

/// A blob that tells how much of it was read.
struct Told<'a, R> {
    blob: R,
    transfer: &'a Transfer<'a>,
}

impl<R: Read> Read for Told<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.blob.read(buffer)?;
        self.transfer.add(read as u64);
        Ok(read)
    }
}

impl<R: Seek> Seek for Told<'_, R> {
    fn seek(&mut self, place: SeekFrom) -> io::Result<u64> {
        let place = self.blob.seek(place)?;
        self.transfer.set(place);
        Ok(place)
    }
}

/// The layers of an image that are being unpacked, as far as they have been read. What remains when this goes was given up.
struct LayersRead<'a> {
    progress: &'a dyn build::progress::Progress,
    store: &'a Path,
    image: &'a Image,
    under_way: Mutex<BTreeMap<Digest, Transfer<'a>>>,
}

impl LayersRead<'_> {
    /// `bytes` more of `blob` have been read; at its end, none.
    fn add(&self, blob: &Descriptor, bytes: u64) {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        if bytes == 0 {
            under_way.remove(&blob.digest).into_iter().for_each(Transfer::done);
            return;
        }
        let begin = || {
            let layer = self.image.layers().iter().find(|layer| layer.blob.digest == blob.digest);
            let image = match layer.map(|layer| &layer.origin) {
                Some(Origin::Registry(reference)) => reference.familiar(),
                Some(Origin::Layout(path)) if path != self.store => path.display().to_string(),
                Some(Origin::Layout(_) | Origin::Stored) | None => String::new(),
            };
            Transfer::begin(self.progress, Way::Unpack, blob.digest.to_string(), image, Some(blob.size))
        };
        under_way.entry(blob.digest.clone()).or_insert_with(begin).add(bytes);
    }
}

/// A manifest with its config.
struct Documents {
    manifest: Manifest,
    digest: Digest,
    config: ImageConfig,
    /// Of the config, in [`DocumentLimits::bases`].
    cost: u64,
}

/// A base that was found, but not taken yet.
struct Candidate {
    base: Base,
    /// What its config takes of [`DocumentLimits::bases`].
    cost: u64,
}

impl ImageSource for Images<'_> {
    fn resolve(&self, reference: &Reference, wanted: &Wanted) -> Result<Base, ServiceError> {
        Ok(self.asked.take(self.find(reference, wanted)?, self.limits.bases)?)
    }

    fn resolve_in_layout(
        &self,
        layout: &LayoutImageName,
        reference: &Reference,
        wanted: &Wanted,
    ) -> Result<Base, ServiceError> {
        Ok(self.asked.take(self.in_layout(layout, reference, wanted)?, self.limits.bases)?)
    }

    fn unpack(&self, image: &Image, cancel: &Cancel) -> Result<Chain, ServiceError> {
        let unpacking = self.unpacking.as_ref().ok_or("nothing is unpacked while planning")?;
        let (layers, most) = (image.layers().len(), unpacking.unpacker.most_layers());
        if layers > most {
            return Err(ImageProblem::Layers { layers, most }.into());
        }
        for layer in image.layers() {
            self.check_size(&layer.blob)?;
        }
        let layers = stacked(image);
        let open = |digest: &Digest, unwanted: &(dyn Fn() -> bool + Sync)| {
            let layer = image.layers().iter().find(|layer| &layer.blob.digest == digest);
            if let Some(layer) = layer {
                self.fetch(&layer.blob, &layer.origin, unwanted).map_err(io::Error::other)?;
            }
            self.open(digest)
        };
        let read = LayersRead {
            progress: self.progress,
            store: self.store.root(),
            image,
            under_way: Mutex::default(),
        };
        let progress = |progress: Progress<'_>| match progress {
            Progress::Found(blob) => self.tell(&format!("{} is unpacked already", blob.digest)),
            // It may wait for its bytes, which tell of themselves.
            Progress::Started(_) => {}
            Progress::Read(blob, bytes) => read.add(blob, bytes),
            Progress::Finished(blob, applied) => {
                self.tell(&format!("unpacked {}: {} entries", blob.digest, applied.entries));
                for sentence in applied.losses.sentences() {
                    self.progress.tell(&Event::Note(&format!("layer {}: {sentence}", blob.digest)));
                }
            }
        };
        let unpack = Unpack {
            open_blob: &open,
            workspace: unpacking.workspace,
            progress: &progress,
            cancelled: &|| cancel.is_cancelled(),
            jobs: JOBS,
            limits: &unpacking.limits,
            owners: Owners::Required,
        };
        match unpacking.unpacker.chain(&layers, &unpack) {
            // A blob that was damaged in the store is fetched once more.
            Err(error) if self.was_damaged(image, &error) => {
                Ok(unpacking.unpacker.chain(&layers, &unpack)?)
            }
            result => Ok(result?),
        }
    }

    fn give_up(&self) {
        self.client.cancel();
    }

    fn keep(&self, image: &Image, chain: &Chain) -> Result<Chain, ServiceError> {
        let Some(Unpacking { unpacker: Unpacker::Layers(unpacked), workspace, .. }) = &self.unpacking else {
            return Ok(chain.clone());
        };
        let Chain::Layers(layers) = chain else { return Ok(chain.clone()) };
        let kept = unpacked.adopt(&stacked(image), layers, workspace)?;
        Ok(kept.map_or_else(|| chain.clone(), Chain::Layers))
    }
}

/// An image that is in the store now.
#[derive(Debug, Clone, PartialEq)]
pub struct Pulled {
    /// Its manifest, with what its config says it is for.
    pub manifest: Descriptor,
    /// The same as a platform.
    pub platform: Platform,
    /// What the user ought to know.
    pub notes: Vec<String>,
    /// What it is for, where that is another platform than the wanted one and it was taken all the same.
    pub foreign: Option<Platform>,
}

/// What an image is for, where it says so and that is another machine than the wanted one.
fn of_other_machine(config: &ImageConfig, wanted: &Wanted) -> Option<Platform> {
    let found = Platform::from(config).normalise();
    let is_known = !found.os.is_empty() && !found.architecture.is_empty();
    (is_known && !found.same_machine(&wanted.platform)).then_some(found)
}

/// Diff ids and blobs of an image's layers, bottom first.
fn stacked(image: &Image) -> Vec<(DiffId, Descriptor)> {
    image.layers().iter().map(|layer| (layer.diff_id.clone(), layer.blob.clone())).collect()
}

/// An image to build on, of which a build finds nothing that none may have.
fn based(
    reference: &Reference,
    documents: Documents,
    origin: Origin,
    mut notes: Vec<String>,
    foreign: Option<Platform>,
) -> Result<Candidate, ServiceError> {
    let Documents { manifest, digest, mut config, cost } = documents;
    config.drop_legacy();
    for entry in config.drop_invalid_env() {
        notes.push(format!(
            "{} has `{entry}` in its environment, which is no `name=value`: left out",
            reference.familiar()
        ));
    }
    let diff_ids = config.rootfs.diff_ids.iter().cloned();
    let layers = manifest
        .layers
        .into_iter()
        .zip(diff_ids)
        .map(|(blob, diff_id)| Layer { blob, diff_id, origin: origin.clone() })
        .collect();
    let image = Image::from_parts(config, layers)?;
    Ok(Candidate { base: Base { image, reference: reference.clone(), digest, notes, foreign }, cost })
}

impl Images<'_> {
    fn tell(&self, text: &str) {
        self.progress.tell(&Event::Detail(text));
    }

    /// The image that `reference` stands for, in the store or in its registry.
    fn find(&self, reference: &Reference, wanted: &Wanted) -> Result<Candidate, ServiceError> {
        match self.in_store(reference, wanted)? {
            Stored::Base(candidate) => Ok(*candidate),
            Stored::Nothing => self.in_registry(reference, wanted),
            Stored::Others(others) => self
                .in_registry(reference, wanted)
                .map_err(|source| Unhelped { others, wanted: wanted.platform.clone(), source }.into()),
            Stored::Partly(candidate) => match self.in_registry(reference, wanted) {
                // Then the other platforms get no other image from it either.
                Err(error)
                    if error
                        .downcast_ref()
                        .is_some_and(crate::registry::TransferError::is_nothing_for_us) =>
                {
                    let (name, why) = (reference.familiar(), crate::text::chained(&*error));
                    let note = format!("FROM {name}: that of the store is taken: {why}");
                    self.progress.tell(&Event::Note(&note));
                    Ok(*candidate)
                }
                found => found,
            },
        }
    }

    /// The image that the registry has under the name `reference`.
    fn in_registry(&self, reference: &Reference, wanted: &Wanted) -> Result<Candidate, ServiceError> {
        let fetched = self.manifest(reference)?;
        let mut notes = Vec::new();
        let (documents, foreign) = if media_type::is_index(&fetched.media_type) {
            let documents = self.in_index(reference, wanted, &fetched, &mut notes)?;
            // With `--platform-match=none`.
            let foreign = of_other_machine(&documents.config, wanted);
            (documents, foreign)
        } else if media_type::is_manifest(&fetched.media_type) {
            let documents = self.documents(reference, &fetched)?;
            let foreign = judge_single(reference, wanted, &documents.config, &mut notes)?;
            (documents, foreign)
        } else {
            return Err(ImageProblem::MediaType(fetched.media_type).into());
        };
        based(reference, documents, Origin::Registry(reference.clone()), notes, foreign)
    }

    /// A descriptor that lies about a blob must fail whether the blob is in the store already or not. A blob that is
    /// damaged itself says nothing about its descriptor: it is removed here, and fetched again when it is needed.
    fn check_size(&self, blob: &Descriptor) -> Result<(), ServiceError> {
        let Ok(file) = self.store.blobs().open(&blob.digest) else { return Ok(()) };
        let actual = file.metadata()?.len();
        if actual == blob.size {
            return Ok(());
        }
        match self.store.blobs().check(&Descriptor { size: actual, ..blob.clone() }) {
            Err(error) if error.is_absent() => return Ok(()),
            checked => checked?,
        }
        Err(Mismatch::Size { expected: blob.digest.clone(), size: blob.size, actual }.into())
    }

    /// The document that `reference` names. One that is named by its digest is asked for only once.
    fn manifest(&self, reference: &Reference) -> Result<Fetched, ServiceError> {
        if let Some(digest) = reference.digest()
            && let Some(bytes) = self.stored_document(digest)?
        {
            let media_type = document::parse(&bytes, None, &self.limits)?.media_type().to_owned();
            return Ok(Fetched { media_type, digest: digest.clone(), bytes });
        }
        let known = || self.asked.names.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known().get(reference).cloned();
        if let Some((digest, media_type)) = before
            && let Some(bytes) = self.stored_document(&digest)?
        {
            return Ok(Fetched { media_type, digest, bytes });
        }
        let fetched = self.client.manifest(reference)?;
        self.store.blobs().put(&fetched.bytes)?;
        known().insert(reference.clone(), (fetched.digest.clone(), fetched.media_type.clone()));
        Ok(fetched)
    }

    /// The document that an entry of an index points to.
    fn manifest_of(&self, reference: &Reference, entry: &Descriptor) -> Result<Fetched, ServiceError> {
        if let Some(bytes) =
            self.stored_document(&entry.digest)?.filter(|bytes| bytes.len() as u64 == entry.size)
        {
            return Ok(Fetched { media_type: entry.media_type.clone(), digest: entry.digest.clone(), bytes });
        }
        let fetched = self.client.manifest_of(reference, entry)?;
        self.store.blobs().put(&fetched.bytes)?;
        Ok(fetched)
    }

    /// A small document of the store, verified.
    fn stored_document(&self, digest: &Digest) -> Result<Option<Vec<u8>>, ServiceError> {
        let Ok(file) = self.store.blobs().open(digest) else { return Ok(None) };
        let size = file.metadata()?.len();
        if document::check_size(document::Kind::Config, size, &self.limits).is_err() {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        let intact =
            io::Read::read_to_end(&mut VerifyingReader::new(file, digest.clone(), size), &mut bytes).is_ok();
        Ok(intact.then_some(bytes))
    }

    fn in_index(
        &self,
        reference: &Reference,
        wanted: &Wanted,
        fetched: &Fetched,
        notes: &mut Vec<String>,
    ) -> Result<Documents, ServiceError> {
        let index = parse_index(&fetched.bytes, Some(&fetched.media_type), &self.limits)?;
        let mut nested = |entry: &Descriptor| -> Result<_, Nested> {
            let fetched = self.manifest_of(reference, entry).map_err(Nested)?;
            let parsed = parse_index(&fetched.bytes, Some(&entry.media_type), &self.limits);
            parsed.map_err(|error| Nested(error.into()))
        };
        let entries = flatten(index, self.limits.nesting, &mut nested)?;
        let mut config_of = |entry: &Descriptor| -> Result<Platform, ServiceError> {
            Ok(Platform::from(&self.entry(reference, entry)?.config))
        };
        let choice = matching::choose(&wanted.platform, &entries, wanted.mode, &mut config_of)?;
        let Some(choice) = choice else {
            return Err(ImageProblem::NoPlatform {
                wanted: wanted.platform.clone(),
                available: matching::available(&entries),
            }
            .into());
        };
        let entry = &entries[choice.position];
        if !choice.exact {
            notes.push(format!(
                "{}: {} not in index, using {} ({})",
                reference.familiar(),
                wanted.platform,
                choice.platform,
                entry.digest
            ));
        }
        self.entry(reference, entry)
    }

    fn entry(&self, reference: &Reference, entry: &Descriptor) -> Result<Documents, ServiceError> {
        let fetched = self.manifest_of(reference, entry)?;
        self.documents(reference, &fetched)
    }

    fn documents(&self, reference: &Reference, fetched: &Fetched) -> Result<Documents, ServiceError> {
        let manifest = parse_manifest(&fetched.bytes, Some(&fetched.media_type), &self.limits)?;
        let stored = self.stored_document(&manifest.config.digest)?;
        let bytes = match stored.filter(|bytes| bytes.len() as u64 == manifest.config.size) {
            Some(bytes) => bytes,
            None => {
                let bytes = self.client.small_blob(reference, &manifest.config, self.limits.config)?;
                self.store.blobs().put(&bytes)?;
                bytes
            }
        };
        let (config, cost) = parse_config_at_cost(&bytes, &self.limits)?;
        if config.rootfs.diff_ids.len() != manifest.layers.len() {
            return Err(crate::image::manifest::ImageError::Layers {
                layers: manifest.layers.len(),
                diff_ids: config.rootfs.diff_ids.len(),
            }
            .into());
        }
        Ok(Documents { manifest, digest: fetched.digest.clone(), config, cost })
    }

    /// Whether unpacking failed because of a damaged blob; that is gone now.
    fn was_damaged(&self, image: &Image, error: &UnpackError) -> bool {
        let layer = image.layers().iter().find(|layer| Some(&layer.blob.digest) == error.unreadable());
        layer.is_some_and(|layer| self.store.blobs().check(&layer.blob).is_err_and(|error| error.is_absent()))
    }

    /// What is wrong with a blob that is not what it should be; it is gone then.
    fn damage(&self, blob: &Descriptor) -> Option<StoreError> {
        self.store.blobs().check(blob).err().filter(|error| matches!(error, StoreError::Corrupt(_)))
    }

    /// Brings a blob into the store.
    fn fetch(
        &self,
        blob: &Descriptor,
        origin: &Origin,
        unwanted: &dyn Fn() -> bool,
    ) -> Result<(), ServiceError> {
        match origin {
            Origin::Registry(reference) if !self.store.blobs().contains(blob) => {
                self.fetch_blob(reference, blob, unwanted)
            }
            Origin::Layout(path) if !self.store.blobs().contains(blob) => {
                self.copy_blob(path, blob, unwanted)
            }
            _ => Ok(()),
        }
    }

    fn fetch_blob(
        &self,
        reference: &Reference,
        blob: &Descriptor,
        unwanted: &dyn Fn() -> bool,
    ) -> Result<(), ServiceError> {
        let (name, image) = (blob.digest.to_string(), reference.familiar().to_string());
        let transfer = Transfer::begin(self.progress, Way::Pull, name, image, Some(blob.size));
        let open = || {
            // Another try begins anew.
            transfer.set(0);
            let writer = self.store.blobs().writer().map_err(io::Error::other)?;
            Ok(WhileWanted { writer, unwanted, transfer: Some(&transfer) })
        };
        let writer = self.client.blob(reference, blob, open)?.writer;
        writer.commit(&blob.digest, blob.size)?;
        transfer.done();
        Ok(())
    }

    /// Brings the image that `reference` has for a platform into the store, with its documents.
    ///
    /// # Errors
    /// When there is none, or something of it cannot be had.
    pub fn pull(
        &self,
        reference: &Reference,
        wanted: &Wanted,
        cancel: &Cancel,
    ) -> Result<Pulled, ServiceError> {
        let Base { image, digest, notes, mut foreign, .. } = self.find(reference, wanted)?.base;
        let platform = Platform::from(image.config());
        if foreign.is_some() {
            // An index may be wrong about its images: then this one is judged as if it stood alone.
            foreign = match matching::accept_single(&wanted.platform, &platform, wanted.asked, wanted.mode)
                .map_err(ImageProblem::Unfit)?
            {
                Single::Fits | Single::WillDo(_) => None,
                Single::Keep(found) | Single::Unchecked(found) => Some(found),
            };
        }
        let unwanted = || cancel.is_cancelled();
        in_parallel(image.layers(), JOBS, |layer| {
            self.check_size(&layer.blob)?;
            self.fetch(&layer.blob, &layer.origin, &unwanted)
        })?;
        let bytes = self.stored_document(&digest)?.ok_or_else(|| StoreError::Missing(digest.clone()))?;
        let media_type = document::parse(&bytes, None, &self.limits)?.media_type().to_owned();
        let manifest = Descriptor {
            platform: (!platform.os.is_empty()).then(|| PlatformFields::from(&platform)),
            ..Descriptor::new(&media_type, digest, bytes.len() as u64)
        };
        Ok(Pulled { manifest, platform, notes, foreign })
    }

    /// Brings everything that `image` consists of to `destination`, but the manifest.
    ///
    /// # Errors
    /// When a layer cannot be had or sent.
    pub fn upload(
        &self,
        image: &Image,
        encoded: &EncodedImage,
        destination: &Reference,
    ) -> Result<(), ServiceError> {
        in_parallel(image.layers(), JOBS, |layer| self.upload_blob(&layer.blob, &layer.origin, destination))?;
        let config = Descriptor::new(
            encoded.types.config(),
            encoded.config.digest.clone(),
            encoded.config.bytes.len() as u64,
        );
        let open = || Ok(Box::new(self.open(&config.digest)?) as Box<dyn BlobSource>);
        self.client.upload(destination, &config, &open, None)?;
        Ok(())
    }

    /// Gives what was uploaded its name, with its manifest or index: only now the tag is moved.
    ///
    /// # Errors
    /// When the registry does not take the document.
    pub fn name(
        &self,
        document: &Encoded,
        media_type: &str,
        destination: &Reference,
    ) -> Result<(), ServiceError> {
        Ok(self.client.put_manifest(destination, media_type, document)?)
    }

    /// A blob that is at the destination, or that it can take from another repository, is never fetched.
    fn upload_blob(
        &self,
        blob: &Descriptor,
        origin: &Origin,
        destination: &Reference,
    ) -> Result<(), ServiceError> {
        let mount_from = match origin {
            Origin::Registry(reference) if reference.registry() == destination.registry() => Some(reference),
            _ => None,
        };
        // Of what is at the destination already, nothing is told.
        let transfer = OnceLock::new();
        let open = || {
            self.fetch(blob, origin, &|| false).map_err(io::Error::other)?;
            let file = self.open(&blob.digest)?;
            let (name, image) = (blob.digest.to_string(), destination.familiar().to_string());
            let begin = || Transfer::begin(self.progress, Way::Push, name, image, Some(blob.size));
            let transfer = transfer.get_or_init(begin);
            // What was sent before this try is sent anew.
            transfer.set(0);
            Ok(Box::new(Told { blob: file, transfer }) as Box<dyn BlobSource + '_>)
        };
        let upload = || self.client.upload(destination, blob, &open, mount_from);
        // Registries refuse bytes that are not what they are called.
        let sent = upload().or_else(|error| match self.damage(blob) {
            // It is fetched once more.
            Some(_) if *origin != Origin::Stored => Ok(upload()?),
            // The next build makes it again.
            Some(damage) => Err(ServiceError::from(damage)),
            None => Err(error.into()),
        });
        let sent = sent?;
        if let Some(transfer) = transfer.into_inner() {
            transfer.done();
        }
        let how = match sent {
            Uploaded::Existed => "was there",
            Uploaded::Mounted => "mounted",
            Uploaded::Sent => "sent",
        };
        self.tell(&format!("{} {how}", blob.digest));
        Ok(())
    }

    fn open(&self, digest: &Digest) -> io::Result<File> {
        self.store.blobs().open(digest).map_err(io::Error::other)
    }

    /// Brings all layers and documents of `image` into the store, for writing it elsewhere.
    ///
    /// # Errors
    /// When a layer cannot be fetched or stored.
    pub fn complete(&self, image: &Image, encoded: &EncodedImage) -> Result<(), ServiceError> {
        in_parallel(image.layers(), JOBS, |layer| self.fetch(&layer.blob, &layer.origin, &|| false))?;
        self.keep(encoded)?;
        Ok(())
    }

    /// Puts the documents of an image into the store.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub fn keep(&self, encoded: &EncodedImage) -> Result<(), StoreError> {
        let put = |document: &Encoded| self.store.blobs().put(&document.bytes);
        put(&encoded.config)?;
        put(&encoded.manifest)?;
        Ok(())
    }
}

/// Judges a base that is no index; gives its platform where it is taken although it is another one.
fn judge_single(
    reference: &Reference,
    wanted: &Wanted,
    config: &ImageConfig,
    notes: &mut Vec<String>,
) -> Result<Option<Platform>, ImageProblem> {
    let single =
        matching::accept_single(&wanted.platform, &Platform::from(config), wanted.asked, wanted.mode);
    match single.map_err(ImageProblem::Unfit)? {
        Single::Fits => Ok(None),
        Single::WillDo(found) => {
            notes.push(format!(
                "{}: it is for {found}, which {} runs",
                reference.familiar(),
                wanted.platform
            ));
            Ok(None)
        }
        Single::Keep(found) => {
            notes.push(format!(
                "{}: it is for {found} alone, and taken as that; --custom-platform names another platform",
                reference.familiar()
            ));
            Ok(Some(found))
        }
        Single::Unchecked(found) => Ok(Some(found)),
    }
}
