//! Running a plan: its stages, one after the other, into an image.

use std::cell::{Cell, OnceCell};
use std::collections::{BTreeMap, BTreeSet};

use super::bases::{Bases, Purpose};
use super::context_view::ContextViews;
use super::error::{BuildError, BuildErrorKind};
use super::finished::finished;
use super::key;
use super::progress::Event;
use super::recall::Count;
use super::services::{ServiceError, Services};
use super::step::{CopyFrom, Plan, PlannedStep, StageBase, StagePlan};
use crate::cache::{CacheKey, RememberedLayer};
use crate::context::Context;
use crate::image::digest::Digest;
use crate::image::manifest::{Image, Origin};
use crate::sandbox::emulation;
use crate::store::unpacked::Chain;

/// A stage that has been built.
#[derive(Clone)]
pub(super) struct Done {
    pub(super) image: Image,
    pub(super) files: Files,
    /// Where the rows begin that this build has added to the history.
    pub(super) first_row: usize,
    /// What steps on it depend on; none where nobody can say, and so nothing is remembered.
    pub(super) key: Option<CacheKey>,
    /// The layers above those of the base image, as far as all of them have keys.
    pub(super) made: Vec<RememberedLayer>,
}

/// A stage's files, unpacked only when somebody wants them.
#[derive(Clone)]
pub(super) enum Files {
    /// Those of the image's layers, wherever these are.
    OfImage,
    /// These.
    Chain(Chain),
}

impl Done {
    /// A stage on `image`, to which no step has been added yet.
    pub(super) fn on(image: Image, files: Files, services: &Services<'_>) -> Self {
        let first_row = image.config().history.len();
        let key = Some(key::start(&image, services.restriction.as_deref()));
        Self { image, files, first_row, key, made: Vec::new() }
    }
}

/// Builds what `plan` says; gives the image, whose own layers are in the store.
///
/// # Errors
/// [`BuildError`] with the lines of the instruction that failed.
pub fn execute(plan: &Plan, services: &Services<'_>) -> Result<Image, BuildError> {
    // Whether a layer that is remembered is still what it was shows only when somebody wants its files. What is damaged
    // is removed then, so everything is found again but that; it cannot happen more often than there are layers.
    let mut layers: usize = plan.stages.iter().map(|stage| stage.steps.len()).sum();
    loop {
        let mut executor = Executor::new(plan, services);
        match executor.image() {
            Err(_) if executor.lost.get() && layers > 0 && !services.cancel.is_cancelled() => {
                layers -= 1;
                let note = "a layer of a remembered result is damaged: the build begins again without it";
                services.progress.tell(&Event::Note(note));
            }
            result => return result,
        }
    }
}

/// For each stage the position of the last one that stands on it or reads its files. The result is used at the end.
fn last_uses(plan: &Plan) -> Vec<usize> {
    let mut last: Vec<usize> = (0..plan.stages.len()).collect();
    for (position, stage) in plan.stages.iter().enumerate() {
        if let StageBase::Stage(below) = stage.base {
            last[below] = position;
        }
        for step in &stage.steps {
            for from in step.step.reads() {
                if let CopyFrom::Stage(other) = from {
                    last[*other] = position;
                }
            }
        }
    }
    if let Some(result) = last.last_mut() {
        *result = plan.stages.len();
    }
    last
}

pub(super) struct Executor<'a> {
    pub(super) plan: &'a Plan,
    pub(super) services: &'a Services<'a>,
    /// For each stage the position of the last one that uses it.
    last_uses: Vec<usize>,
    /// The images that are still needed.
    bases: Bases,
    /// Which stage is being built.
    position: usize,
    /// The stages that are still needed, by position.
    pub(super) done: BTreeMap<usize, Done>,
    /// This machine, looked at when the first RUN wants to know.
    pub(super) machine: OnceCell<(emulation::Host, emulation::Registrations)>,
    /// Whether the faults of a qemu handler were told: once is enough.
    pub(super) warned: Cell<bool>,
    /// How many steps were found, and how many done.
    pub(super) count: Count,
    /// Layers of remembered results of which was told that they are lost.
    pub(super) told: BTreeSet<Digest>,
    /// Whether files could not be had because a remembered layer is lost.
    lost: Cell<bool>,
    /// The build context as mounts show it.
    context: ContextViews<'a>,
    /// The named contexts of the plan as mounts show them.
    named: Vec<ContextViews<'a>>,
}

impl<'a> Executor<'a> {
    fn new(plan: &'a Plan, services: &'a Services<'a>) -> Self {
        Self {
            plan,
            services,
            last_uses: last_uses(plan),
            bases: Bases::of(plan),
            position: 0,
            done: BTreeMap::new(),
            machine: OnceCell::new(),
            warned: Cell::new(false),
            count: Count::default(),
            told: BTreeSet::new(),
            lost: Cell::new(false),
            context: ContextViews::new(services.context, services.workspace),
            named: services
                .contexts
                .iter()
                .map(|context| ContextViews::new(context, services.workspace))
                .collect(),
        }
    }

    fn image(&mut self) -> Result<Image, BuildError> {
        for (position, stage) in self.plan.stages.iter().enumerate() {
            self.position = position;
            let done = self.stage(position, stage)?;
            self.done.insert(position, done);
            self.bases.leave(position);
            // What nobody uses any more is let go: long chains of stages would else hold a history for each.
            let Executor { done, last_uses, .. } = self;
            done.retain(|other, _| last_uses[*other] > position);
        }
        let (Some((_, done)), Some(stage)) = (self.done.pop_last(), self.plan.result()) else {
            let kind = BuildErrorKind::Invalid("there is no stage to build".to_owned());
            return Err(BuildError::at(None, kind));
        };
        self.tell_count();
        let Done { image, first_row, key, .. } = done;
        Ok(finished(self.plan, stage, image, first_row, || self.time_without_layers(stage, key.as_ref())))
    }

    /// What the stage at `position` begins with: `below`, handed over for good where nobody else uses that.
    pub(super) fn stage_below(&mut self, below: usize, position: usize, stage: &StagePlan) -> Done {
        let reads = |step: &PlannedStep| step.step.reads().any(|from| *from == CopyFrom::Stage(below));
        if self.last_uses[below] == position
            && !stage.steps.iter().any(reads)
            && let Some(done) = self.done.remove(&below)
        {
            return done;
        }
        self.done[&below].clone()
    }

    /// The context whose files `from` means, as mounts show it; none where it means a stage or an image.
    pub(super) fn views_of(&self, from: &CopyFrom) -> Option<&ContextViews<'a>> {
        match from {
            CopyFrom::Context => Some(&self.context),
            CopyFrom::Named(position) => self.named.get(*position),
            CopyFrom::Scratch | CopyFrom::Stage(_) | CopyFrom::Image(_) => None,
        }
    }

    /// The context whose files `from` means; none where it means a stage or an image.
    pub(super) fn context_of(&self, from: &CopyFrom) -> Option<&'a Context> {
        self.views_of(from).map(ContextViews::context)
    }

    pub(super) fn stop_if_cancelled(&self) -> Result<(), BuildErrorKind> {
        if self.services.cancel.is_cancelled() { Err(BuildErrorKind::Cancelled) } else { Ok(()) }
    }

    /// The unpacked layers of the stage at `position`, which is done.
    pub(super) fn chain_of(&mut self, position: usize, purpose: Purpose) -> Result<Chain, BuildErrorKind> {
        let done = &self.done[&position];
        let chain = match &done.files {
            Files::Chain(chain) => return Ok(chain.clone()),
            Files::OfImage => {
                let base = self.plan.stages[position].base.shown(&self.plan.stages);
                self.unpack(&done.image, &base, purpose)?
            }
        };
        if let Some(done) = self.done.get_mut(&position) {
            done.files = Files::Chain(chain.clone());
        }
        Ok(chain)
    }

    /// Fetches and unpacks what of `image` has not been. `reference` is the base it stands on.
    pub(super) fn unpack(
        &self,
        image: &Image,
        reference: &str,
        purpose: Purpose,
    ) -> Result<Chain, BuildErrorKind> {
        let unpack = || self.services.source.unpack(image);
        self.bases.get(image, self.position, purpose, unpack).map_err(|source: ServiceError| {
            // What is damaged in the store is removed when it is read.
            let is_lost = |layer: &crate::image::manifest::Layer| {
                layer.origin == Origin::Stored && !self.services.blobs.contains(&layer.blob)
            };
            self.lost.set(image.layers().iter().any(is_lost));
            BuildErrorKind::Image { reference: reference.to_owned(), source }
        })
    }
}
