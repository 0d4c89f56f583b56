//! Layers unpacked into one directory each, kept for later builds and ready to be stacked by overlayfs.
//!
//! Layers are unpacked side by side, each as if it were alone. Then, from the bottom up, each is settled with those
//! below it, so that the stack shows what applying one layer after the other to one directory gives: what a layer leaves
//! open (directories without an entry of their own) is taken from below; where a layer reaches through what is below
//! (links in its paths, hard links to files it does not hold), it is applied anew, to a mount of the layers below.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::fs::FlockOperation;
use rustix::io::{Errno, retry_on_intr};
use serde::{Deserialize, Serialize};

use crate::image::descriptor::Descriptor;
use crate::image::digest::{ChainId, DiffId, Digest};
use crate::layer::{Applied, LayerError, Whiteouts};
use crate::rootfs::{GuestPath, Rootfs, Timestamp, metadata_of, set_times_at};

pub use super::chain::{Chain, Layers, UnpackedLayer};
use super::mount::{self, Upper};
use super::settle::{self, RootEntry, Settled};
pub use super::unpack::{Progress, Unpack, UnpackError};
use super::unpack::{Source, discard, failed, make_directory, open};
use super::workspace::Workspace;

/// The version of the layout of a layer's directory; others are unpacked anew.
const VERSION: u32 = 1;
const METADATA: &str = "layer.json";
const METADATA_LIMIT: u64 = 1 << 16;
const ROOT: &str = "root";

/// What is known of a layer that was unpacked: `layer.json` beside its `root`. A directory with this file is complete.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    version: u32,
    diff_id: DiffId,
    blob: Digest,
    entries: u64,
    bytes: u64,
    /// Since which start of the machine; none if the files were written out to disk. Waiting for the disk with every
    /// layer would cost more than unpacking it, so what was not certainly on disk when the machine stopped is unpacked
    /// anew.
    boot: Option<String>,
}

/// The unpacked layers of a store. Several processes may use it at once.
#[derive(Debug)]
pub struct Unpacked {
    directory: PathBuf,
    boot: Option<String>,
    unpacked: AtomicU64,
}

impl Unpacked {
    /// Opens the directory, which is made if it is missing. Workspaces must be in the same file system.
    ///
    /// # Errors
    /// [`UnpackError::Directory`].
    pub fn open(directory: PathBuf) -> Result<Self, UnpackError> {
        std::fs::create_dir_all(&directory).map_err(|cause| failed(&directory, cause))?;
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
        let boot = boot.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        Ok(Self { directory, boot, unpacked: AtomicU64::new(0) })
    }

    /// How many layers this value has unpacked.
    #[must_use]
    pub fn unpacked_layers(&self) -> u64 {
        self.unpacked.load(Ordering::Relaxed)
    }

    /// The layers (bottom first) as directories. What the store has not yet is unpacked: digest and diff id are verified,
    /// and nothing incomplete is ever found by others.
    ///
    /// # Errors
    /// [`UnpackError`]; of several, that of the lowest layer.
    pub fn chain(&self, layers: &[(DiffId, Descriptor)], unpack: &Unpack<'_>) -> Result<Layers, UnpackError> {
        let mut ids: Vec<ChainId> = Vec::with_capacity(layers.len());
        for (diff_id, _) in layers {
            ids.push(ids.last().map_or_else(|| ChainId::base(diff_id), |below| below.with(diff_id)));
        }
        let found: Vec<Option<UnpackedLayer>> =
            ids.iter().zip(layers).map(|(id, (diff_id, _))| self.find(id, diff_id)).collect();
        let missing: Vec<usize> = (0..layers.len()).filter(|position| found[*position].is_none()).collect();
        let mut alone = unpack_each(&missing, layers, unpack)?.into_iter();
        let mut chain = Layers::empty();
        for (position, found) in found.into_iter().enumerate() {
            let (diff_id, blob) = &layers[position];
            let layer = match found {
                Some(layer) => {
                    (unpack.progress)(Progress::Found(blob));
                    layer
                }
                None => {
                    let Some(alone) = alone.next() else { return Err(UnpackError::Cancelled) };
                    let source = Source { diff_id, blob, unpack };
                    self.add(&ids[position], &chain, alone, &source)?
                }
            };
            chain = chain.with(layer);
        }
        Ok(chain)
    }

    fn place(&self, id: &ChainId) -> PathBuf {
        self.directory.join(id.digest().hex())
    }

    /// The layer, if it is complete and certainly on disk or in memory.
    fn find(&self, id: &ChainId, diff_id: &DiffId) -> Option<UnpackedLayer> {
        let place = self.place(id);
        let mut text = Vec::new();
        File::open(place.join(METADATA)).ok()?.take(METADATA_LIMIT).read_to_end(&mut text).ok()?;
        let metadata: Metadata = serde_json::from_slice(&text).ok()?;
        let kept = metadata.boot.is_none() || metadata.boot == self.boot;
        let known = metadata.version == VERSION && metadata.diff_id == *diff_id && kept;
        known.then(|| UnpackedLayer::kept(id.clone(), &place.join(ROOT)))
    }

    /// Settles a layer that was unpacked alone and puts it into the store.
    fn add(
        &self,
        id: &ChainId,
        below: &Layers,
        alone: Alone,
        source: &Source<'_>,
    ) -> Result<UnpackedLayer, UnpackError> {
        let lower = view(below, source.unpack.workspace)?;
        let (directory, applied) = match source.settle(alone, &lower)? {
            Some(settled) => settled,
            None => source.apply_onto(below, &lower)?,
        };
        let metadata = Metadata {
            version: VERSION,
            diff_id: source.diff_id.clone(),
            blob: source.blob.digest.clone(),
            entries: applied.entries,
            bytes: applied.bytes,
            boot: self.boot.clone(),
        };
        self.publish(id, &directory, &metadata, source)?;
        self.unpacked.fetch_add(1, Ordering::Relaxed);
        (source.unpack.progress)(Progress::Finished(source.blob, &applied));
        Ok(UnpackedLayer::kept(id.clone(), &self.place(id).join(ROOT)))
    }

    /// Gives a complete layer its name, by which others find it. Who comes second discards its own, which is equal.
    fn publish(
        &self,
        id: &ChainId,
        directory: &Path,
        metadata: &Metadata,
        source: &Source<'_>,
    ) -> Result<(), UnpackError> {
        let text = serde_json::to_vec(metadata).map_err(|error| failed(directory, error.into()))?;
        let file = directory.join(METADATA);
        std::fs::write(&file, text).map_err(|cause| failed(&file, cause))?;
        if self.boot.is_none() {
            let opened = File::open(&file).map_err(|cause| failed(&file, cause))?;
            rustix::fs::syncfs(opened).map_err(|cause| failed(&file, cause.into()))?;
        }
        let place = self.place(id);
        // One at a time: what another build has just put there, and works on, must not be taken for the old one.
        let _turn = self.lock()?;
        if self.find(id, source.diff_id).is_some() {
            discard(directory);
            return Ok(());
        }
        // Of another version, or from before the machine was started: nobody works on it.
        let old = source.unpack.workspace.directory("old")?.join(ROOT);
        match rustix::fs::rename(&place, &old) {
            Ok(()) => discard(&old),
            Err(Errno::NOENT) => {}
            Err(cause) => return Err(failed(&place, cause.into())),
        }
        rustix::fs::rename(directory, &place).map_err(|cause| failed(&place, cause.into()))
    }

    /// Waits for its turn to change what layers there are; the turn ends with the value.
    fn lock(&self) -> Result<File, UnpackError> {
        let directory = File::open(&self.directory).map_err(|cause| failed(&self.directory, cause))?;
        retry_on_intr(|| rustix::fs::flock(&directory, FlockOperation::LockExclusive))
            .map_err(|cause| failed(&self.directory, cause.into()))?;
        Ok(directory)
    }
}

fn view(chain: &Layers, workspace: &Workspace) -> Result<Rootfs, UnpackError> {
    Ok(Rootfs::from_fd(mount::overlay(&chain.root_dirs(), None, &workspace.directory("view")?)?))
}

/// A layer that was unpacked as if it were the only one.
struct Alone {
    directory: PathBuf,
    /// None if an entry was wrong, which may be right when something is below it: a link may lead there, for instance.
    applied: Option<Applied>,
}

/// Unpacks the layers at the positions `missing`, several at once; the results are in that order.
fn unpack_each(
    missing: &[usize],
    layers: &[(DiffId, Descriptor)],
    unpack: &Unpack<'_>,
) -> Result<Vec<Alone>, UnpackError> {
    let stop = AtomicBool::new(false);
    let stopped = || stop.load(Ordering::Relaxed) || (unpack.cancelled)();
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, Result<Alone, UnpackError>)>> = Mutex::default();
    let work = || {
        while let Some(position) = missing.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (diff_id, blob) = &layers[*position];
            let unpack = Unpack { cancelled: &stopped, ..*unpack };
            let result = Source { diff_id, blob, unpack: &unpack }.apply_alone();
            if result.is_err() {
                stop.store(true, Ordering::Relaxed);
            }
            results.lock().unwrap_or_else(PoisonError::into_inner).push((*position, result));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..unpack.jobs.min(missing.len()) {
            scope.spawn(work);
        }
        work();
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(position, _)| *position);
    // Whoever failed stopped the others: their errors say nothing.
    let is_cause = |(_, result): &(usize, Result<_, UnpackError>)| {
        result.as_ref().is_err_and(|error| !matches!(error, UnpackError::Cancelled))
    };
    if let Some(cause) = results.iter().position(is_cause) {
        results.swap(0, cause);
    }
    results.into_iter().map(|(_, result)| result).collect()
}

/// The modification time of the root of a layer until an entry says another: one that no archive is likely to have.
const UNTOUCHED: Timestamp = Timestamp { seconds: -1, nanoseconds: 999_999_999 };

/// Whether the layer whose root this is has an entry for the root.
fn root_entry(root: &Rootfs) -> Result<RootEntry, UnpackError> {
    let metadata = metadata_of(root).map_err(|cause| failed(Path::new(ROOT), cause))?;
    Ok(if metadata.mtime == UNTOUCHED { RootEntry::Missing } else { RootEntry::Present })
}

impl Source<'_> {
    /// Unpacks the layer into a new directory.
    fn apply_alone(&self) -> Result<Alone, UnpackError> {
        (self.unpack.progress)(Progress::Started(self.blob));
        let directory = self.unpack.workspace.directory("layer")?;
        let path = directory.join(ROOT);
        make_directory(&path)?;
        let root = open(&path)?;
        set_times_at(root.as_fd(), b".", UNTOUCHED).map_err(|cause| failed(&path, cause))?;
        match self.apply(&root, Whiteouts::Overlay) {
            Ok(applied) => Ok(Alone { directory, applied: Some(applied) }),
            Err(UnpackError::Layer { cause: LayerError::Entry { .. }, .. }) => {
                Ok(Alone { directory, applied: None })
            }
            Err(error) => Err(error),
        }
    }

    /// Settles a layer with those below it; none if it must be applied anew.
    fn settle(&self, alone: Alone, lower: &Rootfs) -> Result<Option<(PathBuf, Applied)>, UnpackError> {
        let Alone { directory, applied } = alone;
        let applied = match applied {
            None => None,
            Some(applied) => {
                let root = open(&directory.join(ROOT))?;
                let settled = settle::settle(&root, &applied, lower, root_entry(&root)?);
                let settled =
                    settled.map_err(|cause| UnpackError::Settle { blob: self.blob.digest.clone(), cause })?;
                Some(applied).filter(|_| settled == Settled::Done)
            }
        };
        if applied.is_none() {
            discard(&directory);
        }
        Ok(applied.map(|applied| (directory, applied)))
    }

    /// Applies the layer to a mount of the layers below it; the mount's upper directory is the layer.
    fn apply_onto(&self, below: &Layers, lower: &Rootfs) -> Result<(PathBuf, Applied), UnpackError> {
        let directory = self.unpack.workspace.directory("layer")?;
        let scratch = self.unpack.workspace.directory("scratch")?;
        let (files, work) = (directory.join(ROOT), scratch.join("work"));
        make_directory(&files)?;
        make_directory(&work)?;
        mount::copy_metadata(lower, &open(&files)?, &GuestPath::root())
            .map_err(|cause| failed(&files, cause))?;
        let upper = Upper { files: &files, work: &work };
        let root = Rootfs::from_fd(mount::overlay(&below.root_dirs(), Some(upper), &scratch)?);
        let applied = self.apply(&root, Whiteouts::Remove)?;
        Ok((directory, applied))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::image::descriptor::media_type;
    use crate::layer::Limits;
    use crate::store::layer_laws::{Ground, archive, entries};
    use crate::store::testing::can_mount;

    use super::*;

    /// Unpacks, and counts how often each blob was opened.
    fn counted(
        ground: &Ground,
        layers: &[(DiffId, Descriptor)],
    ) -> (Result<Layers, UnpackError>, BTreeMap<String, u32>) {
        let opened = Mutex::new(BTreeMap::new());
        let open_blob = |digest: &Digest| {
            *opened.lock().unwrap().entry(digest.hex().to_owned()).or_default() += 1;
            File::open(ground.blob(digest))
        };
        let unpack = Unpack {
            open_blob: &open_blob,
            workspace: &ground.workspace,
            progress: &|_| (),
            cancelled: &|| false,
            jobs: 3,
            limits: &Limits::default(),
        };
        let chain = ground.unpacked.chain(layers, &unpack);
        (chain, opened.into_inner().unwrap())
    }

    fn stack(ground: &Ground, texts: &[&str]) -> Vec<(DiffId, Descriptor)> {
        texts.iter().map(|text| ground.add(&archive(&entries(text)))).collect()
    }

    #[test]
    fn every_layer_is_unpacked_once_for_all_builds() {
        if !can_mount() {
            return;
        }
        let ground = Ground::new();
        let layers = stack(&ground, &["a/ a/x", "a/y b/.wh.c z=a/x", "a/ a/.wh.x", "z"]);
        let (chain, opened) = counted(&ground, &layers[..3]);
        assert_eq!(chain.unwrap().layers().len(), 3);
        assert_eq!(ground.unpacked.unpacked_layers(), 3);
        let times: Vec<u32> =
            layers.iter().map(|(_, blob)| opened.get(blob.digest.hex()).copied().unwrap_or(0)).collect();
        // The second layer reaches below: it has a link to a file that it does not hold.
        assert_eq!(times, [1, 2, 1, 0]);
        let (chain, opened) = counted(&ground, &layers);
        assert_eq!((chain.unwrap().layers().len(), opened.len()), (4, 1));
        let other = Unpacked::open(ground.directory.path().join("unpacked")).unwrap();
        for (position, (diff_id, _)) in layers.iter().enumerate() {
            let ids = layers[1..=position]
                .iter()
                .fold(ChainId::base(&layers[0].0), |id, (diff_id, _)| id.with(diff_id));
            assert!(other.find(&ids, diff_id).is_some());
        }
        assert_eq!(other.unpacked_layers(), 0);
    }

    #[test]
    fn builds_that_unpack_the_same_layers_at_once_agree() {
        if !can_mount() {
            return;
        }
        let ground = Ground::new();
        let layers = stack(&ground, &["a/ a/x", "a/ a/y l->a", "l/z"]);
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..8).map(|_| scope.spawn(|| counted(&ground, &layers).0.unwrap())).collect();
            for thread in threads {
                for layer in thread.join().unwrap().layers() {
                    assert!(layer.root_dir().is_dir());
                }
            }
        });
        assert_eq!(std::fs::read_dir(ground.directory.path().join("unpacked")).unwrap().count(), 3);
    }

    #[test]
    fn a_wrong_layer_is_an_error_and_leaves_nothing() {
        if !can_mount() {
            return;
        }
        let good = archive(&entries("a/ a/x"));
        let digest = Digest::of(&good);
        let layer = |diff_id: &[u8], size| {
            (DiffId(Digest::of(diff_id)), Descriptor::new(media_type::OCI_LAYER, digest.clone(), size))
        };
        let size = good.len() as u64;
        let mut flipped = good.clone();
        flipped[600] ^= 1;
        type Case<'a> = (&'a str, (DiffId, Descriptor), &'a [u8], &'a str);
        let cases: [Case<'_>; 6] = [
            ("other bytes", layer(&good, size), &flipped, "cannot"),
            ("fewer bytes", layer(&good, size), &good[..1024], "cannot"),
            ("a wrong size", layer(&good, size - 1), &good, "cannot"),
            ("a wrong diff id", layer(b"other", size), &good, "but the image's config says"),
            ("no archive", layer(b"", 7), b"rubbish", "cannot"),
            ("bytes after the archive", layer(&good, size + 1), &[&good[..], b"x"].concat(), "cannot"),
        ];
        for (what, layer, bytes, message) in cases {
            let ground = Ground::new();
            std::fs::write(ground.blob(&digest), bytes).unwrap();
            let error = ground.chain(std::slice::from_ref(&layer)).unwrap_err();
            assert!(error.to_string().contains(message), "{what}: {error}");
            assert_eq!(
                std::fs::read_dir(ground.directory.path().join("unpacked")).unwrap().count(),
                0,
                "{what}"
            );
        }
        let ground = Ground::new();
        let layers = stack(&ground, &["a", "b", "c"]);
        std::fs::remove_file(ground.blob(&layers[1].1.digest)).unwrap();
        let error = ground.chain(&layers).unwrap_err();
        assert!(matches!(&error, UnpackError::Open { blob, .. } if *blob == layers[1].1.digest), "{error}");
    }

    #[test]
    fn a_build_that_was_stopped_stops_unpacking() {
        if !can_mount() {
            return;
        }
        let ground = Ground::new();
        let layers = stack(&ground, &["a", "b"]);
        let asked = AtomicUsize::new(0);
        let unpack = Unpack {
            open_blob: &|digest| File::open(ground.blob(digest)),
            workspace: &ground.workspace,
            progress: &|_| (),
            cancelled: &|| asked.fetch_add(1, Ordering::Relaxed) > 1,
            jobs: 1,
            limits: &Limits::default(),
        };
        assert!(matches!(ground.unpacked.chain(&layers, &unpack), Err(UnpackError::Cancelled)));
    }

    #[test]
    fn layers_that_may_be_damaged_or_are_of_another_version_are_unpacked_anew() {
        if !can_mount() {
            return;
        }
        let ground = Ground::new();
        let layers = stack(&ground, &["a"]);
        let chain = ground.chain(&layers).unwrap();
        let root = chain.layers()[0].root_dir().to_owned();
        let file = root.parent().unwrap().join(METADATA);
        let text = std::fs::read_to_string(&file).unwrap();
        let boot = ground.unpacked.boot.clone().unwrap();
        for damaged in
            [text.replace(&boot, "another"), text.replace("\"version\":1", "\"version\":2"), "{".to_owned()]
        {
            assert_ne!(damaged, text);
            std::fs::write(&file, damaged).unwrap();
            std::fs::write(root.join("damage"), "").unwrap();
            ground.chain(&layers).unwrap();
            assert!(root.join("a").exists() && !root.join("damage").exists());
            assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
        }
        std::fs::write(&file, text.replace(&format!("\"{boot}\""), "null")).unwrap();
        let before = ground.unpacked.unpacked_layers();
        ground.chain(&layers).unwrap();
        assert_eq!(ground.unpacked.unpacked_layers(), before);
    }
}
