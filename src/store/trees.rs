//! Images unpacked into one plain directory each, for where overlayfs cannot be mounted.
//!
//! The layers of an image are applied one after the other, straight from their blobs; nothing of that is kept for later
//! builds. While one is applied, the blobs of the next are fetched.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::chain::Chain;
use super::index::Seen;
use super::tree::Tree;
use super::unpack::{OpenBlob, Progress, Source, Unpack, UnpackError};
use super::workspace::Workspace;
use crate::image::descriptor::Descriptor;
use crate::image::digest::{DiffId, Digest};
use crate::layer::zstd::LargeWindows;
use crate::layer::{Application, Whiteouts};

/// Unpacks images into directories of one build's workspace.
#[derive(Debug)]
pub struct Trees {
    workspace: Arc<Workspace>,
    unpacked: AtomicU64,
}

impl Trees {
    /// For the build that `workspace` belongs to.
    #[must_use]
    pub fn new(workspace: Arc<Workspace>) -> Self {
        Self { workspace, unpacked: AtomicU64::new(0) }
    }

    /// How many layers this value has unpacked.
    #[must_use]
    pub fn unpacked_layers(&self) -> u64 {
        self.unpacked.load(Ordering::Relaxed)
    }

    /// The layers (bottom first) as one new tree. Digests and diff ids are verified.
    ///
    /// # Errors
    /// [`UnpackError`]
    pub fn chain(&self, layers: &[(DiffId, Descriptor)], unpack: &Unpack<'_>) -> Result<Chain, UnpackError> {
        if layers.is_empty() {
            return Ok(Chain::empty());
        }
        let mut tree = Tree::new(&self.workspace)?;
        let mut seen = Seen::default();
        let ahead = Ahead::new(layers, unpack);
        let windows = LargeWindows::default();
        std::thread::scope(|scope| {
            // Whatever way this ends, nobody must wait for the next layer.
            let _end = End(&ahead);
            // Where there may be no more threads, blobs are fetched when they are needed.
            let start = || std::thread::Builder::new().spawn_scoped(scope, || ahead.fetch()).is_ok();
            let fetchers = (0..unpack.jobs.clamp(1, layers.len())).filter(|_| start()).count();
            for (position, (diff_id, blob)) in layers.iter().enumerate() {
                (unpack.progress)(Progress::Started(blob));
                let open_blob = |digest: &Digest, unwanted: &(dyn Fn() -> bool + Sync)| {
                    if fetchers == 0 { (unpack.open_blob)(digest, unwanted) } else { ahead.take(position) }
                };
                let unpack = Unpack { open_blob: &open_blob, ..*unpack };
                let source = Source { diff_id, blob, unpack: &unpack, windows: &windows };
                let root = source.holding(tree.directory()?, Arc::clone(tree.overrides()));
                let application =
                    Application { observer: Some(&mut seen), ..source.application(Whiteouts::Remove) };
                let applied = source.apply(application, &root)?;
                let learned = root.take_learned();
                drop(root);
                tree.learn(learned);
                self.unpacked.fetch_add(1, Ordering::Relaxed);
                (unpack.progress)(Progress::Finished(blob, &applied));
            }
            Ok::<(), UnpackError>(())
        })?;
        seen.settle();
        tree.describe(&seen)?;
        Ok(tree.into())
    }
}

/// Blobs that are opened, and fetched for that, before they are needed.
struct Ahead<'a> {
    layers: &'a [(DiffId, Descriptor)],
    open: &'a OpenBlob<'a>,
    cancelled: &'a (dyn Fn() -> bool + Sync),
    /// So many are open and not yet taken, at most.
    most: usize,
    state: Mutex<State>,
    news: Condvar,
}

#[derive(Default)]
struct State {
    next: usize,
    taken: usize,
    opened: BTreeMap<usize, io::Result<File>>,
    ended: bool,
}

impl<'a> Ahead<'a> {
    fn new(layers: &'a [(DiffId, Descriptor)], unpack: &Unpack<'a>) -> Self {
        let most = unpack.jobs.max(1) + 1;
        Self {
            layers,
            open: unpack.open_blob,
            cancelled: unpack.cancelled,
            most,
            state: Mutex::default(),
            news: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One thread's work.
    fn fetch(&self) {
        let mut state = self.lock();
        loop {
            if state.ended || state.next == self.layers.len() {
                return;
            }
            if state.next >= state.taken + self.most {
                state = self.news.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let position = state.next;
            state.next += 1;
            drop(state);
            let mut opening = Opening { ahead: self, position, opened: None };
            let unwanted = || self.lock().ended || (self.cancelled)();
            opening.opened = Some((self.open)(&self.layers[position].1.digest, &unwanted));
            drop(opening);
            state = self.lock();
        }
    }

    /// Waits for the blob at `position`.
    fn take(&self, position: usize) -> io::Result<File> {
        let mut state = self.lock();
        loop {
            if let Some(opened) = state.opened.remove(&position) {
                state.taken = position + 1;
                self.news.notify_all();
                return opened;
            }
            state = self.news.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A blob that is being opened. Whoever waits for it hears how that ended, whatever way it did.
struct Opening<'a> {
    ahead: &'a Ahead<'a>,
    position: usize,
    opened: Option<io::Result<File>>,
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        let opened = self.opened.take();
        let opened = opened.unwrap_or_else(|| Err(io::Error::other("the thread that opens it panicked")));
        self.ahead.lock().opened.insert(self.position, opened);
        self.ahead.news.notify_all();
    }
}

/// Ends what fetches ahead.
struct End<'a>(&'a Ahead<'a>);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.news.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize};

    use proptest::prelude::*;

    use crate::image::descriptor::media_type;
    use crate::layer::{Limits, Owners};
    use crate::rootfs::Rootfs;
    use crate::store::index::{Index, Trust};
    use crate::store::layer_laws::{Entry, Ground, archive, entries, stack};
    use crate::store::testing::{can_mount, dump, links};
    use crate::store::tree::Access;

    use super::*;

    fn workspace(ground: &Ground) -> Arc<Workspace> {
        Arc::new(Workspace::create(&ground.directory.path().join("trees"), None).unwrap())
    }

    fn layers(ground: &Ground, texts: &[&str]) -> Vec<(DiffId, Descriptor)> {
        texts.iter().map(|text| ground.add(&archive(&entries(text)))).collect()
    }

    fn tree(chain: Chain) -> Arc<Tree> {
        let Chain::Tree(tree) = chain else { panic!("{chain:?}") };
        tree
    }

    fn content(tree: &Tree) -> Rootfs {
        Rootfs::from_fd(tree.mount(Access::Read).unwrap())
    }

    /// What `workspace` holds.
    fn count(workspace: &Workspace) -> usize {
        std::fs::read_dir(workspace.path()).unwrap().count()
    }

    #[test]
    fn random_stacks_give_what_bottom_up_application_gives_and_an_index_that_is_true() {
        if !can_mount() {
            return;
        }
        // PROPTEST_CASES asks for more.
        let cases = ProptestConfig::default().cases / 4;
        let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
        let ground = Mutex::new(Ground::new());
        proptest!(config, |(stack in stack())| {
            let ground = ground.lock().unwrap();
            let layers: Vec<_> = stack.iter().map(|entries: &Vec<Entry>| ground.add(&archive(entries))).collect();
            let workspace = workspace(&ground);
            let (plain, chain) = (ground.plain(&layers), ground.tree(&layers, &workspace));
            prop_assert_eq!(plain.is_ok(), chain.is_ok());
            if let (Ok(plain), Ok(chain)) = (plain, chain) {
                let tree = tree(chain);
                prop_assert_eq!(dump(&content(&tree)), dump(&plain));
                prop_assert_eq!(links(&content(&tree)), links(&plain));
                // What was seen while the layers were applied is what is there.
                let files = content(&tree);
                let index: Index = tree.index().clone();
                let (_, refreshed) = index.refresh(&files, Trust::Nothing, 1).unwrap();
                prop_assert!(refreshed.changes.finish().is_empty());
            }
        });
    }

    #[test]
    fn each_blob_is_opened_once_and_not_too_early() {
        let ground = Ground::new();
        let layers = layers(&ground, &["a/ a/x", "a/y", "a/.wh.x", "a/ b", "c", "d", "e", "f"]);
        let workspace = workspace(&ground);
        let (opened, applied, most) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        let open_blob = |digest: &Digest, _: &(dyn Fn() -> bool + Sync)| {
            let ahead = opened.fetch_add(1, Ordering::SeqCst) - applied.load(Ordering::SeqCst);
            most.fetch_max(ahead, Ordering::SeqCst);
            File::open(ground.blob(digest))
        };
        let progress = |news: Progress<'_>| {
            if let Progress::Finished(..) = news {
                applied.fetch_add(1, Ordering::SeqCst);
            }
        };
        let limits = Limits::default();
        let unpack = Unpack {
            open_blob: &open_blob,
            workspace: &workspace,
            progress: &progress,
            cancelled: &|| false,
            jobs: 2,
            limits: &limits,
            owners: Owners::Required,
        };
        let trees = Trees::new(Arc::clone(&workspace));
        let tree = tree(trees.chain(&layers, &unpack).unwrap());
        let read = |count: &AtomicUsize| count.load(Ordering::SeqCst);
        assert_eq!((read(&opened), read(&applied)), (8, 8));
        assert_eq!(trees.unpacked_layers(), 8);
        assert!(read(&most) <= 4, "{most:?}");
        let names = content(&tree).read_dir(&crate::rootfs::GuestPath::root()).unwrap();
        assert_eq!(names.iter().map(|(name, _)| name[0]).collect::<Vec<_>>(), b"abcdef");
        assert!(trees.chain(&[], &unpack).unwrap().is_empty());
    }

    #[test]
    fn a_wrong_layer_is_an_error_and_leaves_nothing() {
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
            let workspace = workspace(&ground);
            std::fs::write(ground.blob(&digest), bytes).unwrap();
            let first = ground.add(&archive(&entries("first")));
            let error = ground.tree(&[first, layer], &workspace).unwrap_err();
            assert!(error.to_string().contains(message), "{what}: {error}");
            assert!(error.unreadable().is_some(), "{what}");
            assert_eq!(count(&workspace), 0, "{what}");
        }
    }

    #[test]
    fn a_blob_that_cannot_be_had_ends_it_whatever_is_fetched_beside() {
        let ground = Ground::new();
        let layers = layers(&ground, &["a", "b", "c", "d", "e"]);
        for missing in 0..layers.len() {
            let workspace = workspace(&ground);
            let path = ground.blob(&layers[missing].1.digest);
            let bytes = std::fs::read(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            let error = ground.tree(&layers, &workspace).unwrap_err();
            let expected = &layers[missing].1.digest;
            assert!(matches!(&error, UnpackError::Open { blob, .. } if blob == expected), "{error}");
            assert_eq!(count(&workspace), 0);
            std::fs::write(&path, bytes).unwrap();
        }
    }

    /// Unpacks `layers` with two threads that open blobs by `open_blob`.
    fn opened_by(
        ground: &Ground,
        layers: &[(DiffId, Descriptor)],
        workspace: &Arc<Workspace>,
        open_blob: &OpenBlob<'_>,
    ) -> Result<Chain, UnpackError> {
        let trees = Trees::new(Arc::clone(workspace));
        ground.unpacking(|unpack| trees.chain(layers, &Unpack { open_blob, workspace, ..*unpack }))
    }

    #[test]
    fn what_is_fetched_beside_a_wrong_layer_is_not_waited_for() {
        let ground = Ground::new();
        let layers = layers(&ground, &["a", "b"]);
        let began = std::time::Instant::now();
        let told = AtomicBool::new(false);
        let open_blob = |digest: &Digest, unwanted: &(dyn Fn() -> bool + Sync)| {
            if *digest == layers[0].1.digest {
                return Err(io::ErrorKind::NotFound.into());
            }
            while !unwanted() && began.elapsed().as_secs() < 20 {
                std::thread::yield_now();
            }
            told.store(unwanted(), Ordering::SeqCst);
            Err(io::ErrorKind::TimedOut.into())
        };
        let error = opened_by(&ground, &layers, &workspace(&ground), &open_blob).unwrap_err();
        assert!(matches!(&error, UnpackError::Open { blob, .. } if *blob == layers[0].1.digest), "{error}");
        // If it was begun at all.
        assert!(told.load(Ordering::SeqCst) || began.elapsed().as_secs() < 20);
    }

    #[test]
    fn a_panic_while_a_blob_is_opened_is_waited_for_by_nobody() {
        let ground = Ground::new();
        let layers = layers(&ground, &["a", "b"]);
        let workspace = workspace(&ground);
        let open_blob = |_: &Digest, _: &(dyn Fn() -> bool + Sync)| panic!("on purpose");
        let unpack = || drop(opened_by(&ground, &layers, &workspace, &open_blob));
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(unpack)).expect_err("a panic");
    }

    #[test]
    fn a_build_that_was_stopped_stops_unpacking() {
        let ground = Ground::new();
        let layers = layers(&ground, &["a", "b", "c"]);
        let workspace = workspace(&ground);
        let stop = AtomicBool::new(false);
        let progress = |news: Progress<'_>| {
            stop.fetch_or(matches!(news, Progress::Finished(..)), Ordering::SeqCst);
        };
        let limits = Limits::default();
        let unpack = Unpack {
            open_blob: &|digest, _| File::open(ground.blob(digest)),
            workspace: &workspace,
            progress: &progress,
            cancelled: &|| stop.load(Ordering::SeqCst),
            jobs: 2,
            limits: &limits,
            owners: Owners::Required,
        };
        let trees = Trees::new(Arc::clone(&workspace));
        assert!(matches!(trees.chain(&layers, &unpack), Err(UnpackError::Cancelled)));
        assert_eq!((trees.unpacked_layers(), count(&workspace)), (1, 0));
    }
}
