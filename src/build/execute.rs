//! Running a plan: its stages, side by side where none needs the other, into an image.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use super::bases::{Bases, Purpose};
use super::context_view::ContextViews;
use super::error::{BuildError, BuildErrorKind};
use super::finished::finished;
use super::key;
use super::progress::Event;
use super::recall::Count;
use super::services::{ServiceError, Services};
use super::stages::{Ended, Stages};
use super::step::{CopyFrom, Plan, StagePlan, Target};
use crate::cache::{CacheKey, RememberedLayer};
use crate::context::Context;
use crate::image::digest::Digest;
use crate::image::manifest::{Image, Origin};
use crate::rootfs::GuestPath;
use crate::sandbox::{Cancel, emulation};
use crate::store::unpacked::Chain;

/// As many stages may have begun and wait for others, besides those that are built at once.
const WAITING: usize = 16;

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

/// Builds what `plan` says; gives the images in the order of its targets, their own layers being in the store.
///
/// # Errors
/// [`BuildError`] with the lines of the instruction that failed.
pub fn execute(plan: &Plan, services: &Services<'_>) -> Result<Vec<Image>, BuildError> {
    // Whether a layer that is remembered is still what it was shows only when somebody wants its files. What is damaged
    // is removed then, so everything is found again but that; it cannot happen more often than there are layers.
    let mut layers: usize = plan.stages.iter().map(|stage| stage.steps.len()).sum();
    loop {
        let executor = Executor::new(plan, services)?;
        match executor.images() {
            Err(Failure::LostLayer(_)) if layers > 0 && !services.cancel.is_cancelled() => {
                layers -= 1;
                let note = "a layer of a remembered result is damaged: the build begins again without it";
                services.progress.tell(&Event::Note(note));
            }
            Err(Failure::LostLayer(error) | Failure::Other(error)) => return Err(*error),
            Ok(images) => return Ok(images),
        }
    }
}

/// How often somebody who waits for another stage or build looks whether it is done.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Why there is no image.
enum Failure {
    /// A remembered layer is not what it was.
    LostLayer(Box<BuildError>),
    /// Anything else.
    Other(Box<BuildError>),
}

pub(super) struct Executor<'a> {
    pub(super) plan: &'a Plan,
    pub(super) services: &'a Services<'a>,
    /// When to stop: when the build is told to, or a stage has failed.
    pub(super) cancel: Cancel,
    pub(super) stages: Stages,
    /// The images that are still needed.
    bases: Bases,
    /// This machine, looked at when the first RUN wants to know.
    pub(super) host: OnceLock<(emulation::Host, emulation::Registrations)>,
    /// What was told of handlers for other processors, and of the CPU that steps find.
    pub(super) told_of_emulation: Mutex<BTreeSet<String>>,
    /// Whether no step can have a handler of its own, as one has found out.
    pub(super) handlerless: AtomicBool,
    /// How many steps were found, and how many done.
    pub(super) count: Count,
    /// Layers of remembered results of which was told that they are lost.
    pub(super) told: Mutex<BTreeSet<Digest>>,
    /// The stages, by position, whose files could not be had because a remembered layer is lost.
    lost: Mutex<BTreeSet<usize>>,
    /// The build context as mounts show it.
    context: ContextViews<'a>,
    /// The named contexts of the plan as mounts show them.
    named: Vec<ContextViews<'a>>,
    /// What files of build contexts that caches begin with were when a step's key was made. The cache goes by that, too:
    /// they are read once, and stand for the same in both.
    pub(super) seeds: Mutex<BTreeMap<(CopyFrom, GuestPath), Digest>>,
    /// Held by a RUN that could see those of other stages.
    pub(super) alone: Mutex<()>,
}

impl<'a> Executor<'a> {
    fn new(plan: &'a Plan, services: &'a Services<'a>) -> Result<Self, BuildError> {
        let cancel = services.cancel.below();
        Ok(Self {
            plan,
            services,
            cancel: cancel.map_err(|error| BuildError::at(None, BuildErrorKind::Begin(error)))?,
            stages: Stages::of(plan, services.jobs.get()),
            bases: Bases::of(plan),
            host: OnceLock::new(),
            told_of_emulation: Mutex::default(),
            handlerless: AtomicBool::new(false),
            count: Count::default(),
            told: Mutex::default(),
            lost: Mutex::default(),
            context: ContextViews::new(services.context, services.workspace),
            named: services
                .contexts
                .iter()
                .map(|context| ContextViews::new(context, services.workspace))
                .collect(),
            seeds: Mutex::default(),
            alone: Mutex::default(),
        })
    }

    fn images(&self) -> Result<Vec<Image>, Failure> {
        // One alone never waits: it builds the stages in their order.
        let waiting = if self.services.jobs.get() == 1 { 0 } else { WAITING };
        let threads = (self.services.jobs.get() + waiting).min(self.plan.stages.len());
        std::thread::scope(|scope| {
            for _ in 1..threads {
                let thread = std::thread::Builder::new().name("builder-stage".to_owned());
                // Those that there are do the work.
                if thread.spawn_scoped(scope, || self.build_stages()).is_err() {
                    break;
                }
            }
            self.build_stages();
        });
        if let Some((position, mut error)) = self.stages.take_failure() {
            let is_lost = locked(&self.lost).contains(&position);
            error.platform = self.plan.stages[position].label.clone();
            let failure = if is_lost { Failure::LostLayer } else { Failure::Other };
            return Err(failure(Box::new(error)));
        }
        self.tell_count();
        let image = |target: &Target| {
            let Done { image, first_row, key, .. } = self.stages.result(target.stage)?;
            let time = || self.time_without_layers(self.plan.result(target), key.as_ref());
            Some(finished(self.plan, target, image, first_row, time))
        };
        let images: Option<Vec<Image>> = self.plan.targets.iter().map(image).collect();
        images.filter(|images| !images.is_empty()).ok_or_else(|| {
            let kind = BuildErrorKind::Invalid("there is no stage to build".to_owned());
            Failure::Other(Box::new(BuildError::at(None, kind)))
        })
    }

    /// The life of a thread: builds stages as long as there are any.
    fn build_stages(&self) {
        while let Some(begun) = self.stages.next() {
            let position = begun.position();
            let stage = &self.plan.stages[position];
            let result = self.stage(position, stage);
            self.bases.leave(position);
            // Before the others are stopped: what fails in them because of that is not the reason.
            match begun.end(result) {
                Ended::Well => {}
                Ended::FirstToFail => self.stop_others(position),
                Ended::AfterAnother if self.services.cancel.is_cancelled() => {}
                Ended::AfterAnother => {
                    let name = self.plan.name_of(stage).unwrap_or_else(|| stage.name.clone());
                    let note = format!("[{name}] stopped: another stage has failed");
                    self.services.progress.tell(&Event::Note(&note));
                }
            }
        }
    }

    /// The stage at position `failed` has failed: nothing else is of use any more.
    fn stop_others(&self, failed: usize) {
        self.cancel.cancel("another stage has failed");
        // After a lost layer the build begins again.
        if !locked(&self.lost).contains(&failed) {
            self.services.source.give_up();
        }
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

    /// Passes a moment in which somebody waits for others; the waiting is over when the build is to stop.
    pub(super) fn pass_a_moment(&self) -> ControlFlow<()> {
        // That it is interrupted does no harm: the switch is looked at.
        let _ = poll(&mut [PollFd::new(&self.cancel, PollFlags::IN)], Some(&PATIENCE));
        if self.cancel.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    pub(super) fn stop_if_cancelled(&self) -> Result<(), BuildErrorKind> {
        if self.cancel.is_cancelled() { Err(BuildErrorKind::Cancelled) } else { Ok(()) }
    }

    /// The unpacked layers of the stage at `position`, which is built, for a step of `reader`.
    pub(super) fn chain_of(
        &self,
        position: usize,
        reader: &StagePlan,
        purpose: Purpose,
    ) -> Result<Chain, BuildErrorKind> {
        let base = || self.plan.stages[position].base.shown(&self.plan.stages);
        self.stages.chain(position, |image| self.unpack(image, &base(), reader, purpose))
    }

    /// Fetches and unpacks what of `image` has not been, for `reader`. `reference` is the base it stands on.
    pub(super) fn unpack(
        &self,
        image: &Image,
        reference: &str,
        reader: &StagePlan,
        purpose: Purpose,
    ) -> Result<Chain, BuildErrorKind> {
        let unpack = || self.services.source.unpack(image, &self.cancel);
        self.bases.get(image, reader.position, purpose, unpack).map_err(|source: ServiceError| {
            if let Err(cancelled) = self.stop_if_cancelled() {
                return cancelled;
            }
            // What is damaged in the store is removed when it is read.
            let is_lost = |layer: &crate::image::manifest::Layer| {
                layer.origin == Origin::Stored && !self.services.blobs.contains(&layer.blob)
            };
            if image.layers().iter().any(is_lost) {
                locked(&self.lost).insert(reader.position);
            }
            BuildErrorKind::Image { reference: reference.to_owned(), clue: String::new(), source }
        })
    }
}

/// What is in `mutex`. No thread leaves it half changed.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
