//! Results that are remembered in the store, with their layers.

use std::fs::{File, OpenOptions};
use std::ops::ControlFlow;
use std::path::PathBuf;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::{CacheError, CacheKey, LayerCache, Remembered, RememberedLayer, Turn};
use crate::image::descriptor::Descriptor;
use crate::image::digest::DiffId;
use crate::image::manifest::{Layer, Origin};
use crate::store::Store;
use crate::store::blobs::BlobStore;
use crate::store::lock::means_lacking;
use crate::store::records::Records;
use crate::sys;

/// The version of what records hold; others are as good as none.
const VERSION: u32 = 1;

/// The cache of one store. The builds that use the store share it.
#[derive(Debug)]
pub struct Local {
    contents: Records,
    results: Records,
    blobs: BlobStore,
    /// Every key has a byte of this file.
    lock: PathBuf,
}

/// What a definition stood for.
#[derive(Debug, Serialize, Deserialize)]
struct ContentRecord {
    version: u32,
    definition: CacheKey,
    content: CacheKey,
}

/// A result.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResultRecord {
    version: u32,
    key: CacheKey,
    content: CacheKey,
    created: String,
    layers: Vec<LayerRecord>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct LayerRecord {
    key: CacheKey,
    diff_id: DiffId,
    blob: Descriptor,
    created: String,
}

impl From<RememberedLayer> for LayerRecord {
    fn from(made: RememberedLayer) -> Self {
        let RememberedLayer { key, layer, created } = made;
        Self { key, diff_id: layer.diff_id, blob: layer.blob, created }
    }
}

impl From<LayerRecord> for RememberedLayer {
    fn from(record: LayerRecord) -> Self {
        let LayerRecord { key, diff_id, blob, created } = record;
        Self { key, layer: Layer { blob, diff_id, origin: Origin::Stored }, created }
    }
}

impl Local {
    /// The cache of `store`.
    #[must_use]
    pub fn new(store: &Store) -> Self {
        Self {
            contents: store.records("contents"),
            results: store.records("results"),
            blobs: store.blobs().clone(),
            lock: store.root().join("cache/lock"),
        }
    }

    fn open_lock(&self) -> std::io::Result<File> {
        if let Some(directory) = self.lock.parent() {
            std::fs::create_dir_all(directory)?;
        }
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&self.lock)
    }
}

/// The byte of the lock file that stands for `key`. That others may have it too only makes somebody wait.
fn offset(key: &CacheKey) -> u64 {
    u64::from_str_radix(&key.digest().hex()[..15], 16).unwrap_or(0)
}

/// Reads a record. What is whole and yet not understood was written by another version.
fn read<T: for<'de> Deserialize<'de>>(
    records: &Records,
    key: &CacheKey,
    version_of: impl Fn(&T) -> u32,
    key_of: impl Fn(&T) -> &CacheKey,
) -> Result<Option<T>, CacheError> {
    let Some(bytes) = records.get(key.digest())? else { return Ok(None) };
    let record: Option<T> =
        serde_json::from_slice(&bytes).ok().filter(|record| version_of(record) == VERSION);
    match record {
        // A file that was given another name, for instance.
        Some(record) if key_of(&record) != key => Err(records.remove_damaged(key.digest()).into()),
        record => Ok(record),
    }
}

fn write<T: Serialize>(records: &Records, key: &CacheKey, record: &T) -> Result<(), CacheError> {
    // Nothing in a record can fail to become JSON.
    let bytes = serde_json::to_vec(record).unwrap_or_default();
    Ok(records.put(key.digest(), &bytes)?)
}

impl LayerCache for Local {
    fn content(&self, definition: &CacheKey) -> Result<Option<CacheKey>, CacheError> {
        let record: Option<ContentRecord> = read(
            &self.contents,
            definition,
            |record: &ContentRecord| record.version,
            |record| &record.definition,
        )?;
        Ok(record.map(|record| record.content))
    }

    fn set_content(&self, definition: &CacheKey, content: &CacheKey) -> Result<(), CacheError> {
        let record =
            ContentRecord { version: VERSION, definition: definition.clone(), content: content.clone() };
        write(&self.contents, definition, &record)
    }

    fn lookup(&self, key: &CacheKey) -> Result<Option<Remembered>, CacheError> {
        let record: Option<ResultRecord> =
            read(&self.results, key, |record: &ResultRecord| record.version, |record| &record.key)?;
        let Some(ResultRecord { content, created, layers, .. }) = record else { return Ok(None) };
        if let Some(lost) = layers.iter().find(|layer| !self.blobs.contains(&layer.blob)) {
            return Err(CacheError::LostLayer(lost.blob.digest.clone()));
        }
        Ok(Some(Remembered {
            content,
            created,
            layers: layers.into_iter().map(RememberedLayer::from).collect(),
        }))
    }

    fn insert(&self, key: &CacheKey, result: &Remembered) -> Result<(), CacheError> {
        let Remembered { content, created, layers } = result.clone();
        let layers = layers.into_iter().map(LayerRecord::from).collect();
        write(
            &self.results,
            key,
            &ResultRecord { version: VERSION, key: key.clone(), content, created, layers },
        )
    }

    fn turn(
        &self,
        key: &CacheKey,
        wait: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Option<Turn>, CacheError> {
        let file = self.open_lock().map_err(CacheError::Turn)?;
        loop {
            match sys::try_lock_byte(&file, offset(key)) {
                Ok(true) => return Ok(Some(Turn { _lock: file })),
                Ok(false) => {
                    if wait().is_break() {
                        return Ok(None);
                    }
                }
                // Some file systems have the locks of flock(2), which a store needs, and not these. Then two builds may do
                // the same at once.
                Err(error) if Errno::from_io_error(&error).is_some_and(means_lacking) => {
                    return Ok(Some(Turn { _lock: file }));
                }
                Err(error) => return Err(CacheError::Turn(error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::super::KeyHasher;
    use super::*;
    use crate::image::descriptor::media_type;
    use crate::image::digest::Digest;

    fn key(text: &str) -> CacheKey {
        KeyHasher::new(text).finish()
    }

    fn store() -> (tempfile::TempDir, Store) {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        (directory, store)
    }

    fn result(store: &Store, bytes: &[u8]) -> Remembered {
        let digest = store.blobs().put(bytes).unwrap();
        let blob = Descriptor::new(media_type::OCI_LAYER_GZIP, digest, bytes.len() as u64);
        let layer = Layer { blob, diff_id: DiffId(Digest::of(b"tar")), origin: Origin::Stored };
        let created = "2026-01-01T00:00:00Z".to_owned();
        let layers = vec![RememberedLayer { key: key("a"), layer, created: created.clone() }];
        Remembered { layers, created, content: key("content") }
    }

    #[test]
    fn what_one_build_inserts_every_other_finds() {
        let (_directory, store) = store();
        let cache = Local::new(&store);
        let result = result(&store, b"layer");
        assert_eq!(cache.lookup(&key("a")).unwrap(), None);
        cache.insert(&key("a"), &result).unwrap();
        let other = Local::new(&store);
        assert_eq!(other.lookup(&key("a")).unwrap(), Some(result.clone()));
        let time = Remembered { layers: Vec::new(), ..result };
        cache.insert(&key("a"), &time).unwrap();
        assert_eq!(other.lookup(&key("a")).unwrap(), Some(time));
        assert_eq!(other.content(&key("a")).unwrap(), None);
        cache.set_content(&key("a"), &key("b")).unwrap();
        assert_eq!(other.content(&key("a")).unwrap(), Some(key("b")));
    }

    #[test]
    fn a_result_without_its_layer_is_an_error_not_a_miss() {
        let (_directory, store) = store();
        let cache = Local::new(&store);
        let result = result(&store, b"layer");
        cache.insert(&key("a"), &result).unwrap();
        let blob = store.root().join("blobs/sha256").join(result.layers[0].layer.blob.digest.hex());
        std::fs::remove_file(&blob).unwrap();
        for bytes in [None, Some("lay")] {
            if let Some(bytes) = bytes {
                std::fs::write(&blob, bytes).unwrap();
            }
            assert!(matches!(cache.lookup(&key("a")), Err(CacheError::LostLayer(_))), "{bytes:?}");
        }
    }

    #[test]
    fn a_damaged_or_misplaced_record_is_removed_and_one_of_another_version_ignored() {
        let (_directory, store) = store();
        let cache = Local::new(&store);
        cache.insert(&key("a"), &result(&store, b"layer")).unwrap();
        let records = store.root().join("cache/results");
        let [a, b] = [key("a"), key("b")].map(|key| records.join(key.to_string()));
        std::fs::rename(&a, &b).unwrap();
        let error = cache.lookup(&key("b")).unwrap_err().to_string();
        assert!(error.contains("was damaged; it has been removed") && !b.exists(), "{error}");
        assert_eq!(cache.lookup(&key("b")).unwrap(), None);

        let newer = ContentRecord { version: VERSION + 1, definition: key("a"), content: key("b") };
        write(&cache.contents, &key("a"), &newer).unwrap();
        write(&cache.results, &key("a"), &newer).unwrap();
        assert_eq!(cache.content(&key("a")).unwrap(), None);
        assert_eq!(cache.lookup(&key("a")).unwrap(), None);
    }

    #[test]
    fn one_at_a_time_works_on_a_key_and_waiting_can_be_ended() {
        let (_directory, store) = store();
        let cache = Local::new(&store);
        let never = &mut || -> ControlFlow<()> { panic!("nobody else works on it") };
        let first = cache.turn(&key("a"), never).unwrap();
        assert!(first.is_some());
        cache.turn(&key("b"), never).unwrap().unwrap();
        let mut asked = 0;
        let mut twice = || {
            asked += 1;
            if asked < 2 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        assert!(cache.turn(&key("a"), &mut twice).unwrap().is_none());
        assert_eq!(asked, 2);
        drop(first);
        cache.turn(&key("a"), never).unwrap().unwrap();
    }

    #[test]
    fn many_who_want_the_same_work_one_after_the_other() {
        let (_directory, store) = store();
        let working = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let cache = Local::new(&store);
                    let mut wait = || {
                        std::thread::yield_now();
                        ControlFlow::Continue(())
                    };
                    let _turn = cache.turn(&key("a"), &mut wait).unwrap().unwrap();
                    assert_eq!(working.fetch_add(1, Ordering::SeqCst), 0);
                    working.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
    }
}
