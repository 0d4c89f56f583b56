//! What of a stage is known from earlier builds, and what this build leaves for later ones.
//!
//! A result that is remembered has all layers from the base image up to it, so that finding one step finds those in front
//! of it as well, even where these were forgotten. It is taken only on top of the very files it was made on: steps that
//! were run anew have other files than before, although they depend on the same things.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::clock::{Clock, rfc3339};
use super::copy::Fingerprint;
use super::error::{BuildError, BuildErrorKind};
use super::execute::{Done, Executor, locked};
use super::key::{self, Around, Elsewhere, step_keys};
use super::progress::{Event, Place};
use super::selection::Selection;
use super::services::Reuse;
use super::stage::{Nothing, StageRun, content_of, is_workdir};
use super::stages::stages_read;
use super::step::{CopyFrom, Layering, Onto, StagePlan, Step};
use crate::cache::{CacheError, CacheKey, Remembered, RememberedLayer, Turn};
use crate::image::digest::{ChainId, DiffId, Digest};
use crate::image::manifest::Layer;
use crate::sandbox::View;
use crate::text::chained;

/// How many layers of a build came from where.
#[derive(Debug, Default)]
pub(super) struct Count {
    /// They were remembered.
    found: AtomicUsize,
    /// This build made them.
    done: AtomicUsize,
}

impl Count {
    pub(super) fn add_found(&self) {
        self.found.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn add_done(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }
}

/// The key of steps that are done together.
pub(super) struct GroupKey {
    own: CacheKey,
    /// What the steps take from the build context.
    taken: Vec<Taken>,
    /// The group that was to be done next when the context was looked at.
    next: usize,
    /// The key of the last step with `--link`, as it would be on nothing.
    linked: Option<CacheKey>,
}

impl GroupKey {
    /// The key of the last step with `--link`, as it would be on nothing.
    pub(super) fn linked(&self) -> Option<&CacheKey> {
        self.linked.as_ref()
    }
}

/// What a step takes from the build context.
struct Taken {
    /// The step, by position in the stage.
    position: usize,
    /// Which of its selections.
    selection: usize,
    fingerprint: Fingerprint,
}

/// What is known of a group.
pub(super) enum Recalled {
    /// Its result, and perhaps those of groups behind it.
    Found(TakenOver),
    /// Nothing: it is to be done.
    Open(Work),
}

/// Results that are remembered.
pub(super) struct TakenOver {
    /// The group behind the last that was found.
    pub(super) end: usize,
    /// The layers of the groups up to there, as far as they have one.
    pub(super) layers: Vec<RememberedLayer>,
    /// What the next step depends on.
    pub(super) content: CacheKey,
}

/// The right and the duty to do a group.
pub(super) struct Work {
    /// What the result depends on; none where nobody can say.
    key: Option<CacheKey>,
    /// Others who want the same wait until it is dropped.
    _turn: Option<Turn>,
}

/// Whether files of stages and images may be looked at for a key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Files {
    /// They are fetched and unpacked where they are needed.
    Needed,
    /// Only what is known of them counts.
    Untouched,
}

impl Executor<'_> {
    /// Looks for what is known of the group `next`; waits for other builds that work on it. `place` is where it is shown.
    pub(super) fn recall(
        &self,
        run: &mut StageRun<'_>,
        next: usize,
        place: &Place,
    ) -> Result<Recalled, BuildError> {
        let Some(parent) = run.done.key.clone() else {
            return Ok(Recalled::Open(Work { key: None, _turn: None }));
        };
        self.forget_changed_context(run, next);
        let Some(own) = self.group_key(run, next, next, &parent, Files::Needed)? else {
            return Ok(Recalled::Open(Work { key: None, _turn: None }));
        };
        if self.reuse(run.stage) == Reuse::No {
            return Ok(Recalled::Open(Work { key: Some(own), _turn: None }));
        }
        if let Some(found) = self.search(run, next, &parent) {
            return Ok(Recalled::Found(found));
        }
        let span = run.stage.steps[run.last(next)].span;
        let (turn, waited) = self.turn(&own, place).map_err(|kind| BuildError::at(Some(span), kind))?;
        // Whoever had the turn before may have done this, and more.
        if waited {
            run.without_result.retain(|_, nothing| *nothing != Nothing::Missed);
        } else if run.without_result.get(&own) == Some(&Nothing::Missed) {
            run.without_result.remove(&own);
        }
        match self.search(run, next, &parent) {
            Some(found) => Ok(Recalled::Found(found)),
            None => Ok(Recalled::Open(Work { key: Some(own), _turn: turn })),
        }
    }

    /// Whether results of earlier builds are used for `stage`.
    pub(super) fn reuse(&self, stage: &StagePlan) -> Reuse {
        match self.services.reuse {
            Reuse::No => Reuse::No,
            Reuse::Yes => stage.reuse,
        }
    }

    /// Keys that were made when earlier steps were to be done hold no longer if the build context was changed since.
    fn forget_changed_context(&self, run: &mut StageRun<'_>, next: usize) {
        let Some(key) = run.keys.get(&next).filter(|key| key.next != next) else { return };
        if key.taken.iter().any(|taken| !self.is_still(taken, run.stage)) {
            run.keys.retain(|group, _| *group < next);
        }
    }

    /// Whether what was taken from the build context is as it was.
    fn is_still(&self, taken: &Taken, stage: &StagePlan) -> bool {
        let selections = Selection::all(&stage.steps[taken.position].step);
        let selection = selections.get(taken.selection);
        selection.is_some_and(|selection| self.context_still_is(selection, &taken.fingerprint))
    }

    /// The key of a group on top of steps with the content key `parent`; none where that cannot be known without files
    /// that are not to be touched.
    fn group_key(
        &self,
        run: &mut StageRun<'_>,
        next: usize,
        group: usize,
        parent: &CacheKey,
        files: Files,
    ) -> Result<Option<CacheKey>, BuildError> {
        if let Some(known) = run.keys.get(&group) {
            return Ok(Some(known.own.clone()));
        }
        let stage = run.stage;
        let mut own = parent.clone();
        let mut taken = Vec::new();
        let mut linked = None;
        for position in run.groups[group].clone() {
            let step = &stage.steps[position];
            let on_nothing = matches!(&step.step, Step::Copy(copy) if copy.onto == Onto::Nothing);
            let below = if on_nothing { &self.key_of_nothing() } else { &own };
            let key = self.key_of(below, position, stage, files, &mut taken);
            match key.map_err(|kind| BuildError::at(Some(step.span), kind))? {
                Some(alone) if on_nothing => {
                    own = key::on_top(&own, &alone);
                    linked = Some(alone);
                }
                Some(key) => own = key,
                None => return Ok(None),
            }
        }
        if self.plan.layering == Layering::OncePerStage {
            own = key::together(&own);
        }
        run.keys.insert(group, GroupKey { own: own.clone(), taken, next, linked });
        Ok(Some(own))
    }

    /// The content key of a step on top of one with the key `parent`. What it takes from stages and images is known by the
    /// step's definition, or found by looking at the files; what it takes from the build context is added to `taken`.
    fn key_of(
        &self,
        parent: &CacheKey,
        position: usize,
        stage: &StagePlan,
        files: Files,
        taken: &mut Vec<Taken>,
    ) -> Result<Option<CacheKey>, BuildErrorKind> {
        let step = &stage.steps[position].step;
        let with_remotes;
        let parent = match step {
            Step::Copy(copy) if !copy.remotes.is_empty() => {
                // Somebody has to be asked, and that is not done before it is the step's turn.
                if files == Files::Untouched {
                    return Ok(None);
                }
                with_remotes = self.with_remotes(parent, copy)?;
                &with_remotes
            }
            _ => parent,
        };
        let selections = Selection::all(step);
        let trees: Vec<Option<ChainId>> =
            selections.iter().map(|selection| self.tree_of(selection.from())).collect::<Result<_, _>>()?;
        let mut contents: Vec<Option<Digest>> = vec![None; selections.len()];
        for (number, selection) in selections.iter().enumerate() {
            if self.context_of(selection.from()).is_some() {
                let fingerprint = self.fingerprint(selection, stage)?;
                contents[number] = Some(fingerprint.content.clone());
                if let Selection::Mount { from, source } = selection {
                    let seed = ((*from).clone(), (*source).clone());
                    locked(&self.seeds).insert(seed, fingerprint.content.clone());
                }
                taken.push(Taken { position, selection: number, fingerprint });
            }
        }
        let view = match (step, self.services.sandbox) {
            (Step::Run(_), Some(sandbox)) => sandbox.view()?,
            // It counts for no other, and without a sandbox there is no RUN.
            _ => View::Own,
        };
        let cpu = self.cpu_of(step, stage);
        let of = |contents: &[Option<Digest>]| {
            let known = contents.iter().zip(&trees).map(|(content, tree)| match content {
                Some(content) => Elsewhere::Content(content),
                None => Elsewhere::Tree(tree.as_ref()),
            });
            let known: Vec<Elsewhere<'_>> = known.collect();
            let files = match (step, &known[..]) {
                (_, []) => Elsewhere::Nothing,
                (Step::Copy(_), [one, ..]) => *one,
                (_, all) => Elsewhere::Mounts(all),
            };
            step_keys(parent, step, &stage.platform, Around { view: &view, cpu }, &files)
        };
        let keys = of(&contents);
        if keys.content.is_some() {
            return Ok(keys.content);
        }
        if self.reuse(stage) == Reuse::Yes {
            match self.services.cache.content(&keys.definition) {
                Ok(Some(content)) => return Ok(Some(content)),
                Ok(None) => {}
                Err(error) => self.tell_problem(&error),
            }
        }
        if files == Files::Untouched {
            return Ok(None);
        }
        for (selection, content) in selections.iter().zip(&mut contents) {
            if content.is_none() {
                *content = Some(self.fingerprint(selection, stage)?.content);
            }
        }
        let content = of(&contents).definition;
        if let Err(error) = self.services.cache.set_content(&keys.definition, &content) {
            self.tell_problem(&error);
        }
        Ok(Some(content))
    }

    /// The tree that a step selects files in.
    pub(super) fn tree_of(&self, from: &CopyFrom) -> Result<Option<ChainId>, BuildErrorKind> {
        match from {
            CopyFrom::Context | CopyFrom::Named(_) | CopyFrom::Scratch => Ok(None),
            // It is built: it was waited for.
            CopyFrom::Stage(position) => self
                .stages
                .look(*position, |done| key::tree(done.image.layers()))
                .ok_or(BuildErrorKind::Cancelled),
            CopyFrom::Image(position) => Ok(key::tree(self.plan.images[*position].image.layers())),
        }
    }

    /// Looks for results of the group `next` and those behind it; what reaches furthest is taken.
    fn search(&self, run: &mut StageRun<'_>, next: usize, parent: &CacheKey) -> Option<TakenOver> {
        let mut ahead = Ahead::default();
        let mut parent = parent.clone();
        for group in next..run.groups.len() {
            if !run.changes_files(group) {
                continue;
            }
            // The files of a stage that is still being built are not known.
            let reads = run.steps(group).iter().flat_map(|step| stages_read(step.step.reads()));
            if !self.stages.are_built(reads) {
                break;
            }
            // What is wrong with a step that comes later is told when it is its turn.
            let own = self.group_key(run, next, group, &parent, Files::Untouched);
            let Ok(Some(own)) = own else { break };
            ahead.groups.push((group, own.clone()));
            parent = own;
            if is_workdir(run.steps(group)) {
                let Some(result) = self.lookup(run, &parent) else { break };
                ahead.workdirs.insert(parent, result.clone());
                parent = result.content;
            }
        }
        for position in (0..ahead.groups.len()).rev() {
            let (group, own) = &ahead.groups[position];
            let Some(result) = self.lookup(run, own) else { continue };
            if let Some(layers) = ahead.layers(position, &result.layers, &run.done) {
                return Some(TakenOver { end: group + 1, layers, content: result.content });
            }
            let note =
                format!("the result of `{}` was made on other files", run.steps(*group)[0].instruction);
            self.services.progress.tell(&Event::Detail(&note));
            run.without_result.insert(own.clone(), Nothing::Missed);
        }
        None
    }

    /// The result for `key`, asked for once.
    fn lookup(&self, run: &mut StageRun<'_>, key: &CacheKey) -> Option<Remembered> {
        if run.without_result.contains_key(key) {
            return None;
        }
        let nothing = match self.services.cache.lookup(key) {
            Ok(Some(result)) => return Some(result),
            Ok(None) => Nothing::Missed,
            Err(error) => {
                self.tell_problem(&error);
                if matches!(error, CacheError::LostLayer(_)) {
                    Nothing::Incomplete
                } else {
                    Nothing::Unusable
                }
            }
        };
        run.without_result.insert(key.clone(), nothing);
        None
    }

    /// Waits for the turn to do what `key` stands for; says whether there was something to wait for.
    fn turn(&self, key: &CacheKey, place: &Place) -> Result<(Option<Turn>, bool), BuildErrorKind> {
        let mut waited = false;
        let mut wait = || {
            if !waited {
                waited = true;
                self.services.progress.tell(&Event::Waiting { place });
            }
            self.pass_a_moment()
        };
        match self.services.cache.turn(key, &mut wait) {
            Ok(Some(turn)) => Ok((Some(turn), waited)),
            Ok(None) => Err(BuildErrorKind::Cancelled),
            Err(error) => {
                self.tell(&error);
                Ok((None, waited))
            }
        }
    }

    /// Remembers what became of a group, for the steps on it and for later builds; says whether these will find it.
    pub(super) fn remember(
        &self,
        run: &mut StageRun<'_>,
        group: usize,
        work: Work,
        layer: &Layer,
        created: &str,
    ) -> bool {
        let (Some(own), Some(parent)) = (work.key.clone(), run.done.key.take()) else { return false };
        if self.may_be_under_other_cpu(run.stage) {
            return false;
        }
        let taken = run.keys.get(&group).map(|key| key.taken.as_slice()).unwrap_or_default();
        if let Some(changed) = taken.iter().find(|taken| !self.is_still(taken, run.stage)) {
            let step = &run.stage.steps[changed.position];
            let detail = format!(
                "the build context was changed while `{}` read it: neither this step nor those on it are remembered",
                step.instruction
            );
            let event = Event::Warning { rule: "cache", span: Some(step.span), detail: &detail };
            self.services.progress.tell(&event);
            return false;
        }
        let content = content_of(run.steps(group), &parent, &own, layer);
        let created = created.to_owned();
        run.done.made.push(RememberedLayer {
            key: own.clone(),
            layer: layer.clone(),
            created: created.clone(),
        });
        run.done.key = Some(content.clone());
        let result = Remembered { content, created, layers: run.done.made.clone() };
        match self.services.cache.insert(&own, &result) {
            Ok(()) => true,
            Err(error) => {
                self.tell_problem(&error);
                false
            }
        }
    }

    /// The time of an image without layers of this build: that of the first build of the same.
    pub(super) fn time_without_layers(&self, stage: &StagePlan, start: Option<&CacheKey>) -> String {
        let now = rfc3339(self.plan.clock.now());
        let (Some(start), Clock::Machine) = (start, self.plan.clock) else { return now };
        let (stages, _) = self.plan.descent(stage);
        let key = key::time(start, stages.iter().rev().flat_map(|stage| &stage.steps));
        if self.reuse(stage) == Reuse::Yes {
            match self.services.cache.lookup(&key) {
                Ok(Some(result)) => return result.created,
                Ok(None) => {}
                Err(error) => self.tell_problem(&error),
            }
        }
        let result = Remembered { content: key.clone(), created: now.clone(), layers: Vec::new() };
        if let Err(error) = self.services.cache.insert(&key, &result) {
            self.tell_problem(&error);
        }
        now
    }

    /// Tells what is wrong with the cache; that a layer is lost only once.
    pub(super) fn tell_problem(&self, error: &CacheError) {
        match error {
            CacheError::LostLayer(digest) if !locked(&self.told).insert(digest.clone()) => {}
            _ => self.tell(error),
        }
    }

    fn tell(&self, error: &CacheError) {
        let detail = chained(error);
        let event = match error {
            CacheError::LostLayer(_) => Event::Note(&detail),
            _ => Event::Warning { rule: "cache", span: None, detail: &detail },
        };
        self.services.progress.tell(&event);
    }

    pub(super) fn tell_count(&self) {
        let [found, done] = [&self.count.found, &self.count.done].map(|count| count.load(Ordering::Relaxed));
        let text = format!("layers: {found} remembered, {done} made");
        self.services.progress.tell(&Event::Detail(&text));
    }
}

/// The groups whose keys are known, from the next one on.
#[derive(Default)]
struct Ahead {
    groups: Vec<(usize, CacheKey)>,
    /// What is remembered of those that are a WORKDIR.
    workdirs: BTreeMap<CacheKey, Remembered>,
}

impl Ahead {
    /// The layers of the groups up to the one at `position`, out of those of its result, if they fit on what is `done`.
    ///
    /// Layers that change nothing do not count: a WORKDIR may have been added or taken away.
    fn layers(
        &self,
        position: usize,
        result: &[RememberedLayer],
        done: &Done,
    ) -> Option<Vec<RememberedLayer>> {
        let groups = &self.groups[..=position];
        let is_ahead = |made: &RememberedLayer| groups.iter().any(|(_, key)| *key == made.key);
        let begin = result.iter().position(is_ahead)?;
        let (below, above) = result.split_at(begin);
        if !changing(below).eq(changing(&done.made)) {
            return None;
        }
        if above.iter().any(|made| !is_ahead(made) && !is_empty(made)) {
            return None;
        }
        let layer_of = |(_, key): &(usize, CacheKey)| {
            let known = above.iter().find(|made| made.key == *key);
            let workdir = || self.workdirs.get(key)?.layers.last().filter(|made| is_empty(made));
            known.or_else(workdir).cloned()
        };
        groups.iter().map(layer_of).collect()
    }
}

fn is_empty(made: &RememberedLayer) -> bool {
    made.layer.diff_id == key::empty_layer()
}

fn changing(layers: &[RememberedLayer]) -> impl Iterator<Item = &DiffId> {
    layers.iter().filter(|made| !is_empty(made)).map(|made| &made.layer.diff_id)
}
