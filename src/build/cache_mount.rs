//! Caches of one RUN: taken, made where they are new, and shown.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;

use super::bases::Purpose;
use super::copy::{OwnerPolicy, SourceTree, find};
use super::error::BuildErrorKind;
use super::execute::{Executor, locked};
use super::mount::{CacheStep, Made};
use super::mounted::writes;
use super::progress::{Event, Place};
use super::selection::Selection;
use super::step::{CopyFrom, StagePlan};
use crate::cache::CacheKey;
use crate::dockerfile::{Access, Sharing};
use crate::rootfs::visit::jobs;
use crate::rootfs::{Follow, GuestPath, Rootfs, RootfsError, TreeCopy, set_mode_at, set_owner_at};
use crate::sandbox::{Bind, Content, KeptAt, Mount, Rights};
use crate::snapshot::View;
use crate::store::cache_mounts::{CacheMount, Turn};

/// What is known of a cache that a step wants.
struct Wanted<'a> {
    step: &'a CacheStep,
    key: CacheKey,
}

impl Executor<'_> {
    /// Takes the caches that one step has mounted; those of one name once. Waits for others who use them.
    ///
    /// # Errors
    /// When the store cannot be written to, what a new cache begins with is not there, or the build is cancelled.
    pub(super) fn cache_mounts<'s>(
        &self,
        steps: impl Iterator<Item = &'s CacheStep>,
        stage: &StagePlan,
        place: &Place,
    ) -> Result<Vec<Mount>, BuildErrorKind> {
        let wanted: Vec<Wanted<'_>> = steps
            .map(|step| {
                let seed = step.seed.as_ref().map(|from| self.seed_name(step, from, stage)).transpose()?;
                Ok(Wanted { step, key: step.identity(seed.as_deref()) })
            })
            .collect::<Result<_, BuildErrorKind>>()?;
        // In the same order in every step: who waits for one has none that the other waits for.
        let mut by_key: BTreeMap<&CacheKey, Vec<&CacheStep>> = BTreeMap::new();
        for cache in &wanted {
            by_key.entry(&cache.key).or_default().push(cache.step);
        }
        let mut taken = BTreeMap::new();
        for (key, steps) in by_key {
            taken.insert(key, self.take_cache(key, &steps, stage, place)?);
        }
        wanted.iter().map(|cache| shown(cache.step, &taken[&cache.key])).collect()
    }

    /// What tells the files apart that caches begin with: those of a context by what they are, for its name says nothing of
    /// that; those of stages and images by the whole tree.
    fn seed_name(
        &self,
        step: &CacheStep,
        from: &CopyFrom,
        stage: &StagePlan,
    ) -> Result<String, BuildErrorKind> {
        if self.context_of(from).is_some() {
            let known = locked(&self.seeds).get(&(from.clone(), step.source.clone())).cloned();
            let content = match known {
                Some(content) => content,
                // The step has no key.
                None => {
                    let selection = Selection::Mount { from, source: &step.source };
                    self.fingerprint(&selection, stage)?.content
                }
            };
            return Ok(format!("files {content}"));
        }
        Ok(self.tree_of(from)?.map_or_else(String::new, |tree| tree.digest().to_string()))
    }

    fn take_cache(
        &self,
        key: &CacheKey,
        steps: &[&CacheStep],
        stage: &StagePlan,
        place: &Place,
    ) -> Result<CacheMount, BuildErrorKind> {
        let (Some(first), Some(sandbox)) = (steps.first(), self.services.sandbox) else {
            return Err(BuildErrorKind::NoSandbox);
        };
        // Of several ways in one step the strictest.
        let turn = steps.iter().fold(Turn::Shared, |turn, step| match (step.sharing, turn) {
            (Sharing::Locked, _) | (Sharing::Shared, Turn::Alone) => Turn::Alone,
            (Sharing::Private, Turn::Alone) => Turn::Alone,
            (Sharing::Private, _) => Turn::Free,
            (Sharing::Shared, turn) => turn,
        });
        // It cannot be in two places.
        let turn = if sandbox.mounts() || turn != Turn::Shared { turn } else { Turn::Alone };
        let (services, mut told) = (self.services, false);
        let mut wait = || {
            if !told {
                told = true;
                services.progress.tell(&Event::WaitingForCache { place, id: &first.id });
            }
            self.pass_a_moment()
        };
        let mut fill = |root: &Rootfs| self.fill_cache(first, stage, root);
        let taken = services.cache_mounts.take(key.digest(), turn, &mut wait, &mut fill)?;
        taken.ok_or(BuildErrorKind::Cancelled)
    }

    /// Makes a new cache what it begins as.
    fn fill_cache(&self, step: &CacheStep, stage: &StagePlan, new: &Rootfs) -> Result<(), BuildErrorKind> {
        match &step.seed {
            None => {}
            Some(seed) => match self.views_of(seed) {
                Some(views) => {
                    let from = self.source_tree(seed, None)?;
                    let path = found(&from, step).map_err(|error| self.not_mounted(seed, error))?;
                    let shown = views.show(&path, Access::ReadOnly)?;
                    self.copy_seed(&shown.source, new)?;
                }
                None => {
                    let chain = self.chain_read(seed, stage, Purpose::Step)?;
                    let view: View = self.services.snapshotter.view(&chain)?;
                    let from = SourceTree { root: view.root(), ignore: None, owner: OwnerPolicy::Keep };
                    let path = found(&from, step).map_err(|error| self.not_mounted(seed, error))?;
                    self.copy_seed(&view.root().open_path(&path, Follow::No)?, new)?;
                }
            },
        }
        if let Some(made) = step.made {
            let id = || step.id.clone();
            give(new, made).map_err(|source| BuildErrorKind::CacheOwner { id: id(), made, source })?;
        }
        Ok(())
    }

    fn copy_seed(&self, seed: &impl AsFd, new: &Rootfs) -> Result<(), BuildErrorKind> {
        let cancelled = || self.cancel.is_cancelled();
        let names = self.services.limits.layers.names;
        let from = seed.as_fd().try_clone_to_owned().map_err(BuildErrorKind::StepFiles)?;
        let copy = TreeCopy { names, cancelled: &cancelled, jobs: jobs() };
        let copied = copy.copy(&Rootfs::from_fd(from), new);
        self.stop_if_cancelled()?;
        copied.map_err(BuildErrorKind::Seed)
    }
}

/// Owner first: changing that takes set-id bits away.
fn give(directory: &Rootfs, made: Made) -> std::io::Result<()> {
    set_owner_at(directory.as_fd(), b".", made.owner)?;
    set_mode_at(directory.as_fd(), b".", made.mode)
}

/// The real path of what a cache begins with.
fn found(from: &SourceTree<'_>, step: &CacheStep) -> Result<GuestPath, super::copy::CopyError> {
    find(from, &step.source).map(|(path, _)| path)
}

/// The cache at its target. What is shown of it is looked up inside, by descriptor: another step that uses it may change
/// names meanwhile (CVE-2024-23651).
fn shown(step: &CacheStep, cache: &CacheMount) -> Result<Mount, BuildErrorKind> {
    let root = cache.root();
    let inside = if step.seed.is_some() { GuestPath::root() } else { root.resolve(&step.source)? };
    let source = root.open_path(&inside, Follow::No).map_err(|error| match error {
        RootfsError::Io { ref source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            BuildErrorKind::NotInCache { path: step.source.clone(), id: step.id.clone() }
        }
        error => error.into(),
    })?;
    let kept_at = if inside.is_root() {
        let directory = cache.home().try_clone().map_err(BuildErrorKind::StepFiles)?;
        KeptAt { directory, name: CacheMount::NAME.as_bytes().to_vec() }
    } else {
        let (directory, name) = root.parent(&inside)?;
        KeptAt { directory, name }
    };
    let bind = Bind {
        // A supervisor that outlives this process holds the cache as long as its step.
        tree: Arc::clone(cache.lock()),
        source: Arc::new(source),
        kept_at: Some(Arc::new(kept_at)),
        writes: writes(step.access),
        rights: Rights::Honoured,
    };
    Ok(Mount { target: step.target.clone(), content: Content::Bind(bind) })
}
