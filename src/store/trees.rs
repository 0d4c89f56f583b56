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
use super::unpack::{Progress, Source, Unpack, UnpackError};
use super::workspace::Workspace;
use crate::image::descriptor::Descriptor;
use crate::image::digest::{DiffId, Digest};
use crate::layer::Whiteouts;
use crate::layer::zstd::LargeWindows;

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
                let open_blob = |digest: &Digest| {
                    if fetchers == 0 { (unpack.open_blob)(digest) } else { ahead.take(position) }
                };
                let unpack = Unpack { open_blob: &open_blob, ..*unpack };
                let source = Source { diff_id, blob, unpack: &unpack, windows: &windows };
                let root =
                    tree.directory()?.with_overrides(Arc::clone(tree.overrides()), unpack.limits.overrides);
                let applied = source.apply_observed(&root, Whiteouts::Remove, &mut seen)?;
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
    open: &'a (dyn Fn(&Digest) -> io::Result<File> + Sync),
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
        Self { layers, open: unpack.open_blob, most, state: Mutex::default(), news: Condvar::new() }
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
            let opened = (self.open)(&self.layers[position].1.digest);
            state = self.lock();
            state.opened.insert(position, opened);
            self.news.notify_all();
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

/// Ends what fetches ahead.
struct End<'a>(&'a Ahead<'a>);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.news.notify_all();
    }
}
