//! Indexes of images that registries have: what is known of them there, and their way to the index's repository.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::{Images, JOBS, Nested};
use crate::build::services::ServiceError;
use crate::image::assemble::{Entry, Tally, completed, contradict};
use crate::image::config::parse_platform;
use crate::image::descriptor::{Descriptor, media_type};
use crate::image::digest::Digest;
use crate::image::document::{Document, DocumentError, DocumentLimits, Payload, parse_payload};
use crate::image::index::{flatten, parse_index};
use crate::image::json::Encoded;
use crate::image::manifest::{Manifest, Origin};
use crate::image::matching::is_attestation;
use crate::image::platform::{Platform, PlatformFields, WordError, check_words};
use crate::image::reference::Reference;
use crate::image::shown;
use crate::registry::{Client, Fetched, TransferError, in_parallel};

/// Something in an index that cannot be in another one.
#[derive(Debug, thiserror::Error)]
#[error("{digest} in the index is `{media_type}`: neither an image nor an attestation")]
struct Unknown {
    digest: Digest,
    media_type: String,
}

/// At most so many images of an index are warned of one by one.
const MOST_NOTES: usize = 20;

/// An image of an index, and what its config says that it is for.
type Labelled = (Descriptor, PlatformFields);

/// A platform that cannot be passed on, and whose it is.
#[derive(Debug, thiserror::Error)]
#[error("the platform of {digest} cannot go into the index")]
pub struct BadPlatform {
    digest: Digest,
    #[source]
    source: WordError,
}

/// The most bytes of documents that are kept to be looked at again.
const MOST_KEPT: u64 = 16 << 20;

/// What is found out once for each key: whoever asks for the same meanwhile waits.
#[derive(Debug)]
pub struct Once<K, T>(Mutex<BTreeMap<K, Arc<Mutex<Option<T>>>>>);

impl<K, T> Default for Once<K, T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Ord, T: Clone> Once<K, T> {
    /// What is known of `key`, or else what `ask` says, which is known from then on if it is to be `kept`.
    ///
    /// # Errors
    /// Those of `ask`; then nothing is known.
    pub fn get<E>(
        &self,
        key: K,
        ask: impl FnOnce() -> Result<T, E>,
        kept: impl FnOnce(&T) -> bool,
    ) -> Result<T, E> {
        let slot = Arc::clone(self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default());
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &*slot {
            return Ok(known.clone());
        }
        let found = ask()?;
        *slot = kept(&found).then(|| found.clone());
        Ok(found)
    }
}

/// What an entry of an index in some repository says to point to.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    repository: String,
    digest: Digest,
    size: u64,
    media_type: String,
}

impl Place {
    /// What `entry` points to, in the repository of `image`.
    #[must_use]
    pub fn of(image: &Reference, entry: &Descriptor) -> Self {
        let Descriptor { digest, size, media_type, .. } = entry;
        Self { repository: image.name(), digest: digest.clone(), size: *size, media_type: media_type.clone() }
    }
}

/// What was asked of registries. An index may name one image thousands of times.
#[derive(Debug, Default)]
pub struct Known {
    documents: Once<Place, Fetched>,
    /// What configs say; nothing where one cannot be had or read.
    platforms: Once<Place, Option<PlatformFields>>,
    /// Bytes of the documents.
    kept: AtomicU64,
}

impl Known {
    /// The document that `entry` points to, in the repository of `image`.
    fn document(
        &self,
        image: &Reference,
        entry: &Descriptor,
        ask: impl FnOnce() -> Result<Fetched, ServiceError>,
    ) -> Result<Fetched, ServiceError> {
        let has_room = |fetched: &Fetched| {
            let bytes = fetched.bytes.len() as u64;
            let with_it = |kept: u64| kept.checked_add(bytes).filter(|kept| *kept <= MOST_KEPT);
            // What has no room takes none.
            self.kept.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with_it).is_ok()
        };
        self.documents.get(Place::of(image, entry), ask, has_room)
    }
}

/// Registries, to ask about images.
#[derive(Clone, Copy)]
pub struct Sources<'a> {
    /// The registries.
    pub client: &'a Client,
    /// How large documents may be.
    pub limits: DocumentLimits,
    /// What they have said.
    pub known: &'a Known,
    /// What all that was found so far makes.
    pub tally: &'a Tally,
}

/// What a name stands for.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// The images, with their platforms.
    pub images: Vec<Entry>,
    /// What belongs to them: where it is from an index, its attestations.
    pub attestations: Vec<Descriptor>,
    /// What the user ought to know.
    pub notes: Vec<String>,
}

impl Sources<'_> {
    /// What `image`, which has been `fetched`, brings into an index. `wanted` is what that is to say of its platform; what is
    /// missing there comes from the image. Of an index all images are taken; if it has several, each is what it was there.
    ///
    /// # Errors
    /// When a manifest or config cannot be had or is none.
    pub fn find(
        &self,
        image: &Reference,
        wanted: &PlatformFields,
        fetched: &Fetched,
    ) -> Result<Found, ServiceError> {
        let (own, attestations) = if media_type::is_index(&fetched.media_type) {
            self.in_index(image, fetched)?
        } else {
            self.tally.add(1)?;
            let size = fetched.bytes.len() as u64;
            let descriptor = Descriptor::new(&fetched.media_type, fetched.digest.clone(), size);
            let platform = self.platform(image, fetched)?;
            let descriptor = Descriptor { platform: Some(platform.clone()), ..descriptor };
            (vec![(descriptor, platform)], Vec::new())
        };
        let mut notes = Vec::new();
        let (source, several): (Arc<str>, _) = (image.familiar().into(), own.len() > 1);
        if several && *wanted != PlatformFields::default() {
            notes.push(format!(
                "`{source}` is an index of {} images, which keep their platforms: that of the specification has no effect",
                own.len()
            ));
        }
        let mut contradictions = 0;
        let entry = |(descriptor, config): (Descriptor, PlatformFields)| {
            let own = descriptor.platform.clone().unwrap_or_default();
            let platform = if several { own.clone() } else { completed(wanted, &own) };
            // An index may be wrong about its images.
            let said = [&config, &own].into_iter().find(|said| contradict(&platform, said));
            contradictions += usize::from(said.is_some());
            if let Some(said) = said.filter(|_| contradictions <= MOST_NOTES) {
                let which = if several { format!("{} of ", descriptor.digest) } else { String::new() };
                notes.push(format!(
                    "{which}`{source}` says of itself that it is for {}, and goes into the index for {}",
                    Platform::from(said).shown(),
                    Platform::from(&platform).shown()
                ));
            }
            Entry {
                descriptor: Descriptor { platform: Some(platform), ..descriptor },
                source: Arc::clone(&source),
            }
        };
        let images: Vec<Entry> = own.into_iter().map(entry).collect();
        for Entry { descriptor, .. } in &images {
            let checked = descriptor.platform.as_ref().map_or(Ok(()), check_words);
            checked.map_err(|source| BadPlatform { digest: descriptor.digest.clone(), source })?;
        }
        if contradictions > MOST_NOTES {
            notes.push(format!(
                "{} more images of `{source}` say of themselves that they are for other platforms",
                contradictions - MOST_NOTES
            ));
        }
        Ok(Found { images, attestations, notes })
    }

    /// Images and attestations of an index, those of indexes in it included.
    fn in_index(
        &self,
        image: &Reference,
        fetched: &Fetched,
    ) -> Result<(Vec<Labelled>, Vec<Descriptor>), ServiceError> {
        let index = parse_index(&fetched.bytes, Some(&fetched.media_type), &self.limits)?;
        let mut nested = |entry: &Descriptor| {
            let ask = || Ok(self.client.manifest_of(image, entry)?);
            let fetched = self.known.document(image, entry, ask).map_err(Nested)?;
            let parsed = parse_index(&fetched.bytes, Some(&entry.media_type), &self.limits);
            parsed.map_err(|error| Nested(error.into()))
        };
        let entries = flatten(index, self.limits.nesting, &mut nested)?;
        self.tally.add(entries.len())?;
        let (attestations, images): (Vec<_>, Vec<_>) = entries.into_iter().partition(is_attestation);
        if let Some(entry) = images.iter().find(|entry| !media_type::is_manifest(&entry.media_type)) {
            let (digest, media_type) = (entry.digest.clone(), shown(&entry.media_type));
            return Err(Unknown { digest, media_type }.into());
        }
        let images = in_parallel(&images, JOBS, |entry| self.labelled(image, entry))?;
        Ok((images, attestations))
    }

    /// An entry of an index with all that is known of its platform. Where its label says all, an image that is not there or
    /// cannot be read contradicts nothing.
    fn labelled(&self, image: &Reference, entry: &Descriptor) -> Result<Labelled, ServiceError> {
        let label = entry.platform.clone().unwrap_or_default();
        let is_complete = !label.os.is_empty() && !label.architecture.is_empty() && label.variant.is_some();
        let ask = || {
            let ask = || Ok(self.client.document_of(image, entry, Payload::Anything)?);
            self.platform(image, &self.known.document(image, entry, ask)?)
        };
        let ask_or_none = || match ask() {
            Ok(platform) => Ok(Some(platform)),
            Err(error) if is_unknown(&error) => Ok(None),
            Err(error) => Err::<_, ServiceError>(error),
        };
        let config = match self.known.platforms.get(Place::of(image, entry), ask_or_none, |_| true)? {
            Some(config) => config,
            None if is_complete => PlatformFields::default(),
            None => ask()?,
        };
        let platform = if is_complete { label } else { completed(&label, &config) };
        Ok((Descriptor { platform: Some(platform), ..entry.clone() }, config))
    }

    /// What the config of an image says; nothing where it has none that could say it.
    fn platform(&self, image: &Reference, fetched: &Fetched) -> Result<PlatformFields, ServiceError> {
        let config = parse_anything(fetched, &self.limits)?.config;
        if !media_type::is_config(&config.media_type) {
            return Ok(PlatformFields::default());
        }
        let bytes = self.client.small_blob(image, &config, self.limits.config)?;
        Ok(parse_platform(&bytes, &self.limits)?)
    }
}

/// Whether an image is not there, or is none that can be read, and not merely out of reach.
fn is_unknown(error: &ServiceError) -> bool {
    let of_transfer = |error: &TransferError| error.is_not_found() || error.is_about_content();
    error.is::<DocumentError>() || error.downcast_ref().is_some_and(of_transfer)
}

/// Reads a manifest of whatever.
///
/// # Errors
/// [`DocumentError`] when it is none.
pub fn parse_anything(fetched: &Fetched, limits: &DocumentLimits) -> Result<Manifest, DocumentError> {
    match parse_payload(&fetched.bytes, Some(&fetched.media_type), limits, Payload::Anything)? {
        Document::Manifest(manifest) => Ok(*manifest),
        Document::Index(_) => Err(DocumentError::Other { found: "an index", expected: "a manifest" }),
    }
}

impl Images<'_> {
    /// Brings what `entry` of the repository of `from` points to into the repository of `to`: all blobs, which the registry
    /// takes from the other repository if it has both, and the manifest, byte by byte what it was.
    ///
    /// # Errors
    /// When something cannot be had or sent.
    pub fn bring(
        &self,
        entry: &Descriptor,
        from: &Reference,
        to: &Reference,
        known: &Known,
    ) -> Result<(), ServiceError> {
        let ask = || Ok(self.client.document_of(from, entry, Payload::Anything)?);
        let fetched = known.document(from, entry, ask)?;
        let Manifest { config, layers, .. } = parse_anything(&fetched, &self.limits)?;
        let (mut blobs, mut seen) = (Vec::new(), BTreeSet::new());
        for blob in std::iter::once(config).chain(layers) {
            // What has an address of its own need not be in registries.
            let is_elsewhere =
                media_type::is_foreign_layer(&blob.media_type) && blob.other.contains_key("urls");
            if !is_elsewhere && seen.insert(blob.digest.clone()) {
                blobs.push(blob);
            }
        }
        let origin = Origin::Registry(from.clone());
        in_parallel(&blobs, JOBS, |blob| self.upload_blob(blob, &origin, to))?;
        let Fetched { media_type, digest, bytes } = fetched;
        let name = to.with_digest(digest.clone()).without_tag();
        Ok(self.client.put_manifest(&name, &media_type, &Encoded { bytes, digest })?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_by_many_at_once_is_asked_once_unless_there_is_no_room() {
        let once: Once<u32, u32> = Once::default();
        let asked = AtomicU64::new(0);
        let get = |key: u32, kept: bool| {
            let ask = || {
                asked.fetch_add(1, Ordering::Relaxed);
                Ok::<_, ()>(key + 1)
            };
            once.get(key, ask, |_| kept).unwrap()
        };
        let keys: Vec<u32> = (0..100).map(|number| number % 2).collect();
        let found = in_parallel(&keys, 8, |key| Ok::<_, ()>(get(*key, true))).unwrap();
        assert_eq!(found, keys.iter().map(|key| key + 1).collect::<Vec<_>>());
        assert_eq!(asked.load(Ordering::Relaxed), 2);
        assert_eq!((get(7, false), get(7, false), asked.load(Ordering::Relaxed)), (8, 8, 4));
        assert_eq!(once.get(9, || Err("no"), |_| true), Err("no"));
        assert_eq!(once.get(9, || Ok::<_, ()>(1), |_| true), Ok(1));
    }
    #[test]
    fn a_document_that_has_no_room_takes_none_from_smaller_ones() {
        let known = Known::default();
        let image: Reference = "r.example/a:1".parse().unwrap();
        let asked = AtomicU64::new(0);
        let get = |megabytes: u64| {
            let digest = Digest::of(&megabytes.to_le_bytes());
            let entry = Descriptor::new(media_type::OCI_MANIFEST, digest.clone(), megabytes);
            let ask = || {
                asked.fetch_add(1, Ordering::Relaxed);
                let bytes = vec![0; usize::try_from(megabytes << 20).unwrap()];
                Ok(Fetched { media_type: media_type::OCI_MANIFEST.to_owned(), digest, bytes })
            };
            known.document(&image, &entry, ask).unwrap();
            asked.load(Ordering::Relaxed)
        };
        assert_eq!([get(10), get(10)], [1, 1]);
        assert_eq!([get(7), get(7)], [2, 3], "no room");
        assert_eq!([get(6), get(6)], [4, 4]);
    }
}
