//! Layers unpacked into one directory each, kept for later builds and ready to be stacked by overlayfs.
//!
//! Layers are unpacked side by side, each as if it were alone. Then, from the bottom up, each is settled with those
//! below it, so that the stack shows what applying one layer after the other to one directory gives: what a layer leaves
//! open (directories without an entry of their own) is taken from below; where a layer reaches through what is below
//! (links in its paths, hard links to files it does not hold), it is applied anew, to a mount of the layers below.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::image::descriptor::Descriptor;
use crate::image::digest::{ChainId, DiffId, Digest};
use crate::layer::zstd::LargeWindows;
use crate::layer::{Applied, Marks, Recipient, Whiteouts, copy_metadata};
use crate::rootfs::{
    Caller, GuestPath, IdMap, Overrides, OverridesError, Rootfs, Timestamp, metadata_of, set_times_at,
};

pub use super::chain::{Chain, ChainError, Layers, Likeness, UnpackedLayer};
use super::lock::{self, Sharing};
use super::mount::{self, Upper};
use super::overrides::written;
use super::settle::{self, RootEntry, Settled};
pub use super::unpack::{Progress, Unpack, UnpackError};
use super::unpack::{Source, discard, failed, make_directory, open};
use super::workspace::Workspace;

/// The version of the layout of a layer's directory. Each has directories of its own: a program of another version may be
/// building with what it has unpacked there.
const VERSION: u32 = 2;
const METADATA: &str = "layer.json";
const METADATA_LIMIT: u64 = 1 << 16;
/// The file for what the entries in `root` are beyond what the disk shows; there is none if the disk shows all.
const OVERRIDES: &str = "overrides";
const ROOT: &str = UnpackedLayer::ROOT;

/// What is known of a layer that was unpacked: `layer.json` beside its `root`. A directory with this file is complete.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    diff_id: DiffId,
    blob: Digest,
    /// How many lines about entries are in `overrides`.
    overrides: usize,
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
    /// One for all layers: the memory of a build must not grow with how many it unpacks at once.
    windows: LargeWindows,
}

impl Unpacked {
    /// Opens the layers in the directory `all` that processes with the user and group ids `ids` unpacked, or will.
    /// Directories are made if they are missing. Workspaces must be in the same file system.
    ///
    /// Another user namespace would see other owners, an overlay that reads other marks no opaque directories, and another
    /// version another layout: each kind has a directory of its own, which all processes of that kind share.
    ///
    /// # Errors
    /// [`UnpackError::Directory`].
    pub fn open(all: &Path, ids: &IdMap) -> Result<Self, UnpackError> {
        let directory = all.join(kind(ids, Marks::usual(), &Caller::current()));
        std::fs::create_dir_all(&directory).map_err(|cause| failed(&directory, cause))?;
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
        let boot = boot.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        Ok(Self { directory, boot, unpacked: AtomicU64::new(0), windows: LargeWindows::default() })
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
        let ids = ids(layers);
        let found: Vec<Option<UnpackedLayer>> = ids
            .iter()
            .zip(layers)
            .map(|(id, (diff_id, _))| self.find(id, diff_id))
            .collect::<Result<_, UnpackError>>()?;
        let missing: Vec<usize> = (0..layers.len()).filter(|position| found[*position].is_none()).collect();
        let mut alone = unpack_each(&missing, layers, unpack, &self.windows)?.into_iter();
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
                    let source = Source { diff_id, blob, unpack, windows: &self.windows };
                    self.add(&ids[position], &chain, alone, &source)?
                }
            };
            chain = chain.with(layer).map_err(|error| match error {
                ChainError::Open { path, cause } => UnpackError::Directory { path, cause },
                ChainError::Entry(cause) => UnpackError::Settle { blob: blob.digest.clone(), cause },
            })?;
        }
        Ok(chain)
    }

    /// Keeps the topmost layer of `chain` for other builds, where it is what unpacking the last of `layers` would give; its
    /// `blob` holds it. Gives the chain with that layer where it is then: the old place is gone. Where it cannot be kept,
    /// none.
    ///
    /// # Errors
    /// [`UnpackError`]; then `chain` is as it was.
    pub fn adopt(
        &self,
        layers: &[(DiffId, Descriptor)],
        chain: &Layers,
        workspace: &Workspace,
    ) -> Result<Option<Layers>, UnpackError> {
        let (Some((top, below)), Some((diff_id, blob))) = (chain.layers().split_last(), layers.last()) else {
            return Ok(None);
        };
        let Some(directory) = top.root_dir().parent() else { return Ok(None) };
        if top.likeness() == Likeness::Other
            || top.chain().is_some()
            || chain.layers().len() != layers.len()
            || !directory.starts_with(workspace.path())
        {
            return Ok(None);
        }
        let Some(id) = ids(layers).pop() else { return Ok(None) };
        // No layer has a time for the root, so it is that of the root below.
        let root = open(top.root_dir())?;
        let below_root = below.last().map(|layer| open(layer.root_dir())).transpose()?;
        let mtime = match &below_root {
            Some(below) => metadata_of(below).map_err(|cause| failed(top.root_dir(), cause))?.mtime,
            None => Timestamp::default(),
        };
        set_times_at(root.as_fd(), b".", mtime).map_err(|cause| failed(top.root_dir(), cause))?;
        let metadata = Metadata {
            diff_id: diff_id.clone(),
            blob: blob.digest.clone(),
            overrides: top.overrides().len(),
            boot: self.boot.clone(),
        };
        save(top.overrides(), directory)?;
        self.publish(&id, directory, &metadata, workspace)?;
        let place = self.place(&id).join(ROOT);
        // What its files are, the chain knows.
        Ok(Some(chain.with_top(UnpackedLayer::kept(id, &place, Overrides::default()))))
    }

    fn place(&self, id: &ChainId) -> PathBuf {
        self.directory.join(id.digest().hex())
    }

    /// The layer, if it is complete and certainly on disk or in memory.
    ///
    /// # Errors
    /// When that cannot be told: what cannot be read for lack of descriptors, say, may be a layer that others build on.
    fn find(&self, id: &ChainId, diff_id: &DiffId) -> Result<Option<UnpackedLayer>, UnpackError> {
        let place = self.place(id);
        let Some(text) = read_if_there(&place.join(METADATA))? else { return Ok(None) };
        // What does not parse was damaged when the machine stopped, as whatever has its name is whole.
        let Ok(metadata) = serde_json::from_slice::<Metadata>(&text) else { return Ok(None) };
        let kept = metadata.boot.is_none() || metadata.boot == self.boot;
        if metadata.diff_id != *diff_id || !kept {
            return Ok(None);
        }
        let overrides = match metadata.overrides {
            0 => Some(Overrides::default()),
            _ => read_overrides(&place.join(OVERRIDES))?,
        };
        let complete = overrides.filter(|overrides| overrides.len() == metadata.overrides);
        Ok(complete.map(|overrides| UnpackedLayer::kept(id.clone(), &place.join(ROOT), overrides)))
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
        let Unsettled { directory, applied, overrides } = match source.settle(alone, &lower)? {
            Some(settled) => settled,
            None => source.unpack_onto(below, &lower)?,
        };
        let metadata = Metadata {
            diff_id: source.diff_id.clone(),
            blob: source.blob.digest.clone(),
            overrides: overrides.len(),
            boot: self.boot.clone(),
        };
        save(&overrides, &directory)?;
        self.publish(id, &directory, &metadata, source.unpack.workspace)?;
        self.unpacked.fetch_add(1, Ordering::Relaxed);
        (source.unpack.progress)(Progress::Finished(source.blob, &applied));
        Ok(UnpackedLayer::kept(id.clone(), &self.place(id).join(ROOT), overrides))
    }

    /// Gives a complete layer its name, by which others find it. Who comes second discards its own, which is equal.
    fn publish(
        &self,
        id: &ChainId,
        directory: &Path,
        metadata: &Metadata,
        workspace: &Workspace,
    ) -> Result<(), UnpackError> {
        let text = serde_json::to_vec(metadata).map_err(|error| failed(directory, error.into()))?;
        let file = directory.join(METADATA);
        std::fs::write(&file, text).map_err(|cause| failed(&file, cause))?;
        if self.boot.is_none() {
            let opened = File::open(&file).map_err(|cause| failed(&file, cause))?;
            rustix::fs::syncfs(opened).map_err(|cause| failed(&file, cause.into()))?;
        }
        let discarded = self.exchange(id, directory, metadata, workspace)?;
        // Without the lock: others need not wait until a large tree is gone.
        if let Some(discarded) = discarded {
            discard(&discarded);
        }
        Ok(())
    }

    /// Puts `directory` where the layer belongs, unless it is there already; gives what is not needed any more.
    fn exchange(
        &self,
        id: &ChainId,
        directory: &Path,
        metadata: &Metadata,
        workspace: &Workspace,
    ) -> Result<Option<PathBuf>, UnpackError> {
        let place = self.place(id);
        // One at a time: what another build has just put there, and works on, must not be taken for the old one.
        let _turn = self.lock()?;
        if self.find(id, &metadata.diff_id)?.is_some() {
            return Ok(Some(directory.to_owned()));
        }
        // From before the machine was started, or damaged then: nobody works on it.
        let old = workspace.directory("old")?.join(ROOT);
        let old = match rustix::fs::rename(&place, &old) {
            Ok(()) => Some(old),
            Err(Errno::NOENT) => None,
            Err(cause) => return Err(failed(&place, cause.into())),
        };
        rustix::fs::rename(directory, &place).map_err(|cause| failed(&place, cause.into()))?;
        Ok(old)
    }

    /// Waits for its turn to change what layers there are; the turn ends with the value.
    fn lock(&self) -> Result<File, UnpackError> {
        let directory = File::open(&self.directory).map_err(|cause| failed(&self.directory, cause))?;
        lock::wait(&directory, Sharing::Alone).map_err(|cause| failed(&self.directory, cause))?;
        Ok(directory)
    }
}

/// The identity of each layer with those below it.
fn ids(layers: &[(DiffId, Descriptor)]) -> Vec<ChainId> {
    let mut ids: Vec<ChainId> = Vec::with_capacity(layers.len());
    for (diff_id, _) in layers {
        ids.push(ids.last().map_or_else(|| ChainId::base(diff_id), |below| below.with(diff_id)));
    }
    ids
}

/// The content of a small file; none if there is no such file.
fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>, UnpackError> {
    let mut text = Vec::new();
    match File::open(path).and_then(|file| file.take(METADATA_LIMIT).read_to_end(&mut text)) {
        Ok(_) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(failed(path, cause)),
    }
}

/// The overrides in a file; none if it is not there or damaged.
fn read_overrides(path: &Path) -> Result<Option<Overrides>, UnpackError> {
    let read = || {
        let file = File::open(path)?;
        // No line is longer than the file: it is of this program's making, and its content is to be in memory anyway.
        let length = file.metadata()?.len();
        Overrides::read(&mut BufReader::new(file).take(length))
    };
    match read() {
        Ok(overrides) => Ok(Some(overrides)),
        Err(OverridesError::Io(error)) if error.kind() != io::ErrorKind::NotFound => Err(failed(path, error)),
        Err(_) => Ok(None),
    }
}

/// The name of the directory for layers of a kind: `all.trusted.v2` for root, `0-1000-1_1-100000-65536.user.v2` for an
/// ordinary user with subordinate ids, `all.user.as-1000-1000.v2` for one who is in no namespace and has nothing but files
/// of its own. A very long one is its digest instead.
fn kind(ids: &IdMap, marks: Marks, caller: &Caller) -> String {
    short(format!("{}.{}{}.v{VERSION}", ids.name(), marks.name(), caller.name()))
}

/// A name that can be that of a file: itself, or its digest if it is too long for that.
pub(super) fn short(name: String) -> String {
    const LONGEST: usize = 200;
    if name.len() > LONGEST { Digest::of(name.as_bytes()).hex().to_owned() } else { name }
}

fn view(chain: &Layers, workspace: &Workspace) -> Result<Rootfs, UnpackError> {
    let root = Rootfs::from_fd(mount::overlay(&chain.root_dirs(), None, &workspace.directory("view")?)?);
    Ok(root.showing(Arc::clone(chain.overrides())))
}

/// Writes `overrides` into the directory of their layer.
fn save(overrides: &Overrides, directory: &Path) -> Result<(), UnpackError> {
    if overrides.is_empty() {
        return Ok(());
    }
    let path = directory.join(OVERRIDES);
    let write = || {
        let mut file = BufWriter::new(File::create(&path)?);
        overrides.write(&mut file)?;
        file.flush()
    };
    write().map_err(|cause| failed(&path, cause))
}

/// A layer in a directory of the workspace.
struct Unsettled {
    directory: PathBuf,
    applied: Applied,
    /// What its entries are beyond what the disk shows.
    overrides: Overrides,
}

/// A layer that was unpacked as if it were the only one.
enum Alone {
    /// All of it could be unpacked.
    Whole(Box<Unsettled>),
    /// An entry was wrong that may be right when something is below it: a link may lead there, for instance.
    Wrong(PathBuf),
}

/// Unpacks the layers at the positions `missing`, several at once; the results are in that order.
fn unpack_each(
    missing: &[usize],
    layers: &[(DiffId, Descriptor)],
    unpack: &Unpack<'_>,
    windows: &LargeWindows,
) -> Result<Vec<Alone>, UnpackError> {
    let stop = AtomicBool::new(false);
    let stopped = || stop.load(Ordering::Relaxed) || (unpack.cancelled)();
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, Result<Alone, UnpackError>)>> = Mutex::default();
    let work = || {
        while let Some(position) = missing.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (diff_id, blob) = &layers[*position];
            let unpack = Unpack { cancelled: &stopped, ..*unpack };
            if stopped() {
                // Not even asked for.
                let cancelled = Err(UnpackError::Cancelled);
                results.lock().unwrap_or_else(PoisonError::into_inner).push((*position, cancelled));
                return;
            }
            let result = Source { diff_id, blob, unpack: &unpack, windows }.unpack_alone();
            if result.is_err() {
                stop.store(true, Ordering::Relaxed);
            }
            results.lock().unwrap_or_else(PoisonError::into_inner).push((*position, result));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..unpack.jobs.min(missing.len()) {
            // Where there may be no more threads, those that there are do it all.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
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
    fn unpack_alone(&self) -> Result<Alone, UnpackError> {
        (self.unpack.progress)(Progress::Started(self.blob));
        let directory = self.unpack.workspace.directory("layer")?;
        let path = directory.join(ROOT);
        make_directory(&path)?;
        let root = self.holding(open(&path)?, Arc::default());
        set_times_at(root.as_fd(), b".", UNTOUCHED).map_err(|cause| failed(&path, cause))?;
        match self.apply(self.application(Whiteouts::Overlay), &root) {
            Ok(applied) => {
                let overrides = Overrides::default().with(root.take_learned());
                Ok(Alone::Whole(Box::new(Unsettled { directory, applied, overrides })))
            }
            Err(UnpackError::Layer { cause, .. }) if cause.depends_on_lower_layers() => {
                Ok(Alone::Wrong(directory))
            }
            Err(error) => Err(error),
        }
    }

    /// Settles a layer with those below it; none if it must be applied anew.
    fn settle(&self, alone: Alone, lower: &Rootfs) -> Result<Option<Unsettled>, UnpackError> {
        let Unsettled { directory, applied, overrides } = match alone {
            Alone::Whole(layer) => *layer,
            Alone::Wrong(directory) => {
                discard(&directory);
                return Ok(None);
            }
        };
        let overrides = Arc::new(overrides);
        let root = self.holding(open(&directory.join(ROOT))?, Arc::clone(&overrides));
        let settled = settle::settle(&root, &applied, lower, root_entry(&root)?)
            .map_err(|cause| UnpackError::Settle { blob: self.blob.digest.clone(), cause })?;
        let learned = root.take_learned();
        drop(root);
        if settled == Settled::ReachesBelow {
            discard(&directory);
            return Ok(None);
        }
        let overrides = Arc::unwrap_or_clone(overrides).with(learned);
        Ok(Some(Unsettled { directory, applied, overrides }))
    }

    /// Applies the layer to a mount of the layers below it; the mount's upper directory is the layer.
    fn unpack_onto(&self, below: &Layers, lower: &Rootfs) -> Result<Unsettled, UnpackError> {
        let directory = self.unpack.workspace.directory("layer")?;
        let scratch = self.unpack.workspace.directory("scratch")?;
        let (files, work) = (directory.join(ROOT), scratch.join("work"));
        make_directory(&files)?;
        make_directory(&work)?;
        copy_metadata(lower, &open(&files)?, &GuestPath::root(), Recipient::Owner)
            .map_err(|cause| failed(&files, cause))?;
        let upper = Upper { files: &files, work: &work };
        let root = Rootfs::from_fd(mount::overlay(&below.root_dirs(), Some(upper), &scratch)?);
        let root = self.holding(root, Arc::clone(below.overrides()));
        let applied = self.apply(self.application(Whiteouts::Remove), &root)?;
        let learned = root.take_learned();
        drop(root);
        let written = written(below.overrides(), learned, &open(&files)?, lower, Marks::usual())
            .map_err(|cause| UnpackError::Settle { blob: self.blob.digest.clone(), cause })?;
        Ok(Unsettled { directory, applied, overrides: written.own() })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::image::descriptor::media_type;
    use crate::layer::{Limits, Owners};
    use crate::rootfs::testing::inside;
    use crate::store::layer_laws::{Ground, archive, entries};
    use crate::store::testing::can_mount;

    use super::*;

    /// Unpacks, and counts how often each blob was opened.
    fn counted(
        ground: &Ground,
        layers: &[(DiffId, Descriptor)],
    ) -> (Result<Layers, UnpackError>, BTreeMap<String, u32>) {
        let opened = Mutex::new(BTreeMap::new());
        let open_blob = |digest: &Digest, _: &(dyn Fn() -> bool + Sync)| {
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
            owners: Owners::Required,
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
        let other =
            Unpacked::open(&ground.directory.path().join("unpacked"), &IdMap::of_this_process().unwrap())
                .unwrap();
        for (position, (diff_id, _)) in layers.iter().enumerate() {
            let ids = layers[1..=position]
                .iter()
                .fold(ChainId::base(&layers[0].0), |id, (diff_id, _)| id.with(diff_id));
            assert!(other.find(&ids, diff_id).unwrap().is_some());
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
        assert_eq!(std::fs::read_dir(&ground.unpacked.directory).unwrap().count(), 3);
    }

    #[test]
    fn what_a_step_wrote_is_kept_as_if_it_had_been_unpacked() {
        if !can_mount() {
            return;
        }
        let ground = Ground::new();
        let layers = stack(&ground, &["a/ a/x", "a/ a/y"]);
        let below = ground.chain(&layers[..1]).unwrap();
        let written = |likeness| {
            let directory = ground.workspace.directory("layer").unwrap();
            std::fs::create_dir_all(directory.join(ROOT).join("a")).unwrap();
            std::fs::write(directory.join(ROOT).join("a/y"), "y").unwrap();
            let layer = UnpackedLayer::temporary(
                &directory.join(ROOT),
                likeness,
                crate::rootfs::Overrides::default(),
            );
            (below.with(layer).unwrap(), directory)
        };
        let adopt = |chain: &Layers, layers| ground.unpacked.adopt(layers, chain, &ground.workspace).unwrap();
        // What no layer holds is not for others; nor is what is kept already, or has other layers below it.
        let (other, directory) = written(Likeness::Other);
        assert!(adopt(&other, &layers).is_none() && directory.is_dir());
        let (chain, directory) = written(Likeness::Equal);
        assert!(adopt(&chain, &layers[1..]).is_none() && adopt(&Layers::empty(), &layers).is_none());
        assert!(adopt(&below, &layers[..1]).is_none() && directory.is_dir());

        let adopted = adopt(&chain, &layers).unwrap();
        let top = &adopted.layers()[1];
        assert!(!directory.exists() && top.root_dir().join("a/y").is_file());
        assert_eq!(top.chain(), Some(&ChainId::base(&layers[0].0).with(&layers[1].0)));
        let time = |layer: &UnpackedLayer| metadata_of(open(layer.root_dir()).unwrap()).unwrap().mtime;
        assert_eq!(time(top), time(&below.layers()[0]));
        let (found, opened) = counted(&ground, &layers);
        assert_eq!((found.unwrap().root_dirs(), opened.len()), (adopted.root_dirs(), 0));

        // Another build was faster: its files are as good.
        let (late, directory) = written(Likeness::Equal);
        assert_eq!(adopt(&late, &layers).unwrap().root_dirs(), adopted.root_dirs());
        assert!(!directory.exists());
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
            assert_eq!(std::fs::read_dir(&ground.unpacked.directory).unwrap().count(), 0, "{what}");
        }
        let ground = Ground::new();
        let layers = stack(&ground, &["a", "b", "c"]);
        std::fs::remove_file(ground.blob(&layers[1].1.digest)).unwrap();
        let error = ground.chain(&layers).unwrap_err();
        assert!(matches!(&error, UnpackError::Open { blob, .. } if *blob == layers[1].1.digest), "{error}");
    }

    #[test]
    fn only_a_layer_that_lower_ones_may_mend_is_read_twice() {
        if !can_mount() {
            return;
        }
        use crate::layer::test_support::{dir, end, file, hard_link, pax, symlink};
        let long = vec![b'x'; 2 << 20];
        let cases: [(&str, Vec<u8>, u32); 6] = [
            ("a link to what is below", [symlink("l", "below"), hard_link("x", "l/file")].concat(), 2),
            ("a way through a file", [file("f", b""), file("f/x", b"")].concat(), 2),
            ("a name above the root", file("../x", b""), 1),
            ("a whiteout of nothing", file(".wh.", b""), 1),
            (
                "an attribute of overlayfs",
                [pax(&[("SCHILY.xattr.trusted.overlay.opaque", b"y")]), dir("d")].concat(),
                1,
            ),
            ("too large an extension", [pax(&[("SCHILY.xattr.user.a", &long)]), file("f", b"")].concat(), 1),
        ];
        for (what, content, times) in cases {
            let ground = Ground::new();
            let below = ground.add(&archive(&entries("below/ below/file")));
            let layer = ground.add(&[content, end()].concat());
            let (_, opened) = counted(&ground, &[below, layer.clone()]);
            assert_eq!(opened[layer.1.digest.hex()], times, "{what}");
        }
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
            open_blob: &|digest, _| File::open(ground.blob(digest)),
            workspace: &ground.workspace,
            progress: &|_| (),
            cancelled: &|| asked.fetch_add(1, Ordering::Relaxed) > 1,
            jobs: 1,
            limits: &Limits::default(),
            owners: Owners::Required,
        };
        assert!(matches!(ground.unpacked.chain(&layers, &unpack), Err(UnpackError::Cancelled)));
    }

    #[test]
    fn layers_of_other_ids_marks_or_versions_have_their_own_directory() {
        let extent = |inside, outside, count| crate::rootfs::Extent { inside, outside, count };
        let root = Caller::root();
        let whole = IdMap::new(vec![extent(0, 0, u32::MAX)], vec![extent(0, 0, u32::MAX)]);
        let ranges = vec![extent(0, 1000, 1), extent(1, 100_000, 65_536)];
        let user = IdMap::new(ranges.clone(), ranges);
        assert_eq!(kind(&whole, Marks::Trusted, &root), "all.trusted.v2");
        assert_eq!(kind(&whole, Marks::User, &root), "all.user.v2");
        assert_eq!(kind(&user, Marks::User, &root), "0-1000-1_1-100000-65536.user.v2");
        let many: Vec<_> = (0..100).map(|id| extent(id, 2 * id, 1)).collect();
        assert_eq!(kind(&IdMap::new(many, vec![]), Marks::User, &root).len(), 64);
    }

    /// A layer that was unpacked: itself, its root and what is noted of it.
    fn unpacked_one(ground: &Ground) -> (Vec<(DiffId, Descriptor)>, PathBuf, PathBuf) {
        let layers = stack(ground, &["a"]);
        let chain = ground.chain(&layers).unwrap();
        let root = chain.layers()[0].root_dir().to_owned();
        let file = root.parent().unwrap().join(METADATA);
        (layers, root, file)
    }

    #[test]
    fn layers_that_may_be_damaged_are_unpacked_anew() {
        if !can_mount() {
            return;
        }
        let ground = Ground::new();
        let (layers, root, file) = unpacked_one(&ground);
        let text = std::fs::read_to_string(&file).unwrap();
        let boot = ground.unpacked.boot.clone().unwrap();
        for damaged in [text.replace(&boot, "another"), "{".to_owned()] {
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

    #[test]
    fn a_layer_that_cannot_be_read_now_is_not_replaced() {
        if !can_mount() {
            return;
        }
        let ground = Ground::new();
        let (layers, root, file) = unpacked_one(&ground);
        // Reading a directory is an error for root, too.
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        std::fs::write(root.join("in use"), "").unwrap();
        let error = ground.chain(&layers).unwrap_err();
        assert!(matches!(&error, UnpackError::Directory { path, .. } if *path == file), "{error}");
        assert!(root.join("in use").exists());
    }

    #[test]
    fn what_the_disk_does_not_hold_is_kept_beside_the_layer_for_later_builds() {
        if !inside!(SingleId) || !can_mount() {
            return;
        }
        let ground = Ground::new();
        // Directories of the second user; one of the second layer has them from the first.
        let layers = stack(&ground, &["a/ a/b/ a/x", "a/b/y", "z", "a/.wh.b"]);
        let chains: Vec<Layers> = (1..=4).map(|count| ground.chain(&layers[..count]).unwrap()).collect();
        let counts: Vec<usize> = chains.iter().map(|chain| chain.overrides().len()).collect();
        assert_eq!(counts, [2, 2, 2, 1]);
        assert!(
            Arc::ptr_eq(chains[1].overrides(), chains[2].overrides()) || chains[1].overrides().len() == 2
        );
        let file = |layer: usize| chains[3].layers()[layer].root_dir().parent().unwrap().join(OVERRIDES);
        assert!(file(0).exists() && file(1).exists() && !file(2).exists());
        let text = std::fs::read_to_string(file(0)).unwrap();
        assert!(text.starts_with("overrides 1\n/a d 700 0:0 700 1:2\n"), "{text}");
        let unpacked = ground.unpacked.unpacked_layers();
        for damaged in [&text[..text.len() - 2], "overrides 1\nend 0\n", "", "-"] {
            match damaged {
                "-" => std::fs::remove_file(file(0)).unwrap(),
                _ => std::fs::write(file(0), damaged).unwrap(),
            }
            assert_eq!(ground.chain(&layers).unwrap().overrides(), chains[3].overrides(), "{damaged}");
            assert_eq!(std::fs::read_to_string(file(0)).unwrap(), text);
        }
        assert_eq!(ground.unpacked.unpacked_layers(), unpacked + 4);
    }
}
