//! One stage: its steps, found or done, each as a layer on those below it.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::ops::Range;
use std::time::Instant;

use super::bases::Purpose;
use super::clock::{Clock, rfc3339};
use super::error::{BuildError, BuildErrorKind};
use super::execute::{Done, Executor, Files};
use super::finished::history_row;
use super::key;
use super::linked::linked;
use super::perform::Below;
use super::progress::{Event, Place};
use super::recall::{GroupKey, Recalled, TakenOver, Work};
use super::stages::stages_read;
use super::step::{PlannedStep, StageBase, StagePlan, Step};
use crate::cache::CacheKey;
use crate::image::descriptor::Descriptor;
use crate::image::manifest::{Image, Layer, Origin};
use crate::image::platform::Platform;
use crate::layer;
use crate::sandbox::Cancel;
use crate::snapshot::Recording;
use crate::store::unpacked::Chain;
use crate::text::chained;

/// A stage that is being built.
pub(super) struct StageRun<'s> {
    pub(super) stage: &'s StagePlan,
    /// The steps that are done together, by position.
    pub(super) groups: Vec<Range<usize>>,
    pub(super) done: Done,
    /// The keys of groups that have been looked at, by position in `groups`.
    pub(super) keys: BTreeMap<usize, GroupKey>,
    /// Keys that have been asked for and gave nothing.
    pub(super) without_result: BTreeMap<CacheKey, Nothing>,
    /// How people are told of it.
    name: Option<String>,
    /// How many layers the base image has.
    base_layers: usize,
}

/// Why a key gives no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Nothing {
    /// There was none when somebody looked.
    Missed,
    /// It could not be read.
    Unusable,
    /// A layer of it is lost; a step may make the very same one again.
    Incomplete,
}

impl StageRun<'_> {
    /// Where the step at `position` is, FROM being the first.
    pub(super) fn place(&self, position: Option<usize>) -> Place {
        Place {
            stage: self.name.clone(),
            index: self.stage.position,
            number: position.map_or(1, |position| position + 2),
            total: self.stage.shown_steps(),
        }
    }

    /// The steps of a group.
    pub(super) fn steps(&self, group: usize) -> &[PlannedStep] {
        &self.stage.steps[self.groups[group].clone()]
    }

    /// Whether the steps of a group change files. If so, the last of them does.
    pub(super) fn changes_files(&self, group: usize) -> bool {
        self.steps(group).iter().any(|step| step.step.changes_files())
    }

    /// The last step of a group, by position in the stage.
    pub(super) fn last(&self, group: usize) -> usize {
        self.groups[group].end.saturating_sub(1)
    }
}

impl Executor<'_> {
    pub(super) fn stage(&self, position: usize, stage: &StagePlan) -> Result<Done, BuildError> {
        let done = match &stage.base {
            StageBase::Scratch => Done::on(Image::scratch(), Files::Chain(Chain::empty()), self.services),
            // It is built: this stage would not have begun else.
            StageBase::Stage(_) => self
                .stages
                .below(position)
                .ok_or_else(|| BuildError::at(Some(stage.span), BuildErrorKind::Cancelled))?,
            StageBase::Image(base) => Done::on(base.image.clone(), Files::OfImage, self.services),
            // As in BuildKit, nothing on it is remembered. What is copied as a file is compared without times and
            // without the modes of directories, which is not enough for what a whole root file system is.
            StageBase::Files(_) => {
                Done { key: None, ..Done::on(Image::scratch(), Files::Chain(Chain::empty()), self.services) }
            }
        };
        let base_layers = done.image.layers().len();
        let mut run = StageRun {
            stage,
            groups: stage.groups(self.plan.layering),
            done,
            keys: BTreeMap::new(),
            without_result: BTreeMap::new(),
            name: self.plan.name_of(stage),
            base_layers,
        };
        self.tell_base(&run);
        let mut next = 0;
        while next < run.groups.len() {
            next = self.groups_from(&mut run, next)?;
        }
        Ok(run.done)
    }

    fn tell_base(&self, run: &StageRun<'_>) {
        let progress = self.services.progress;
        let (stage, place) = (run.stage, &run.place(None));
        let StageBase::Image(base) = &stage.base else {
            progress.tell(&Event::Applied { place, instruction: &stage.instruction });
            return;
        };
        let platform = Platform::from(base.config()).shown();
        // What variables have made of the name is seen nowhere else.
        let name = if stage.instruction.contains('$') {
            format!("{}, ", base.reference.familiar())
        } else {
            String::new()
        };
        let text = format!("{} ({name}{platform}, sha256:{})", stage.instruction, base.digest.short());
        progress.tell(&Event::Applied { place, instruction: &text });
        progress.tell(&Event::Detail(&format!("{} is {}", base.reference, base.digest)));
    }

    /// Finds or does the group `next`, and with it as many of the following ones as are found; gives the one after those.
    fn groups_from(&self, run: &mut StageRun<'_>, next: usize) -> Result<usize, BuildError> {
        self.stop_if_cancelled()
            .map_err(|kind| BuildError::at(run.steps(next).first().map(|step| step.span), kind))?;
        if !run.changes_files(next) {
            self.tell_steps(run, next, Telling::Applied);
            append_rows(run, next, None, None);
            return Ok(next + 1);
        }
        self.wait_for_others(run, next)?;
        let place = run.place(Some(run.last(next)));
        match self.recall(run, next, &place)? {
            Recalled::Found(found) => Ok(self.take_over(run, next, found)),
            Recalled::Open(work) => {
                self.make(run, next, work)?;
                run.without_result.retain(|_, nothing| *nothing != Nothing::Incomplete);
                Ok(next + 1)
            }
        }
    }

    /// Waits for the stages whose files the steps of a group read.
    fn wait_for_others(&self, run: &StageRun<'_>, group: usize) -> Result<(), BuildError> {
        for step in run.steps(group) {
            self.stages
                .wait_for(stages_read(step.step.reads()))
                .map_err(|kind| BuildError::at(Some(step.span), kind))?;
        }
        Ok(())
    }

    fn tell_steps(&self, run: &StageRun<'_>, group: usize, telling: Telling) {
        for (position, step) in run.groups[group].clone().zip(run.steps(group)) {
            let (place, instruction) = (&run.place(Some(position)), step.instruction.as_str());
            let event = match telling {
                Telling::Found if step.step.changes_files() => Event::Found { place, instruction },
                Telling::Found | Telling::Applied => Event::Applied { place, instruction },
            };
            self.services.progress.tell(&event);
        }
    }

    /// Takes over the results of the groups from `next` on. Their files are had when somebody wants them.
    fn take_over(&self, run: &mut StageRun<'_>, next: usize, found: TakenOver) -> usize {
        let TakenOver { end, layers, content } = found;
        let mut layers = layers.into_iter();
        for group in next..end {
            if !run.changes_files(group) {
                self.tell_steps(run, group, Telling::Applied);
                append_rows(run, group, None, None);
                continue;
            }
            self.tell_steps(run, group, Telling::Found);
            let Some(made) = layers.next() else { continue };
            self.count.add_found();
            let created = self.shown_time(&made.created);
            append_rows(run, group, Some(made.layer.clone()), Some(created));
            run.done.made.push(made);
        }
        run.done.key = Some(content);
        run.done.files = Files::OfImage;
        end
    }

    /// The time that the row of a layer shows that was made at the time `made`.
    pub(super) fn shown_time(&self, made: &str) -> String {
        match self.plan.clock {
            Clock::Machine => made.to_owned(),
            Clock::Fixed(_) => rfc3339(self.plan.clock.now()),
        }
    }

    /// Does the steps of a group in one tree, and makes a layer of what they changed.
    fn make(&self, run: &mut StageRun<'_>, group: usize, work: Work) -> Result<(), BuildError> {
        let stage = run.stage;
        if let Some((position, copy)) = linked(&stage.steps[run.groups[group].clone()]) {
            let position = run.groups[group].start + position;
            return self.link(run, group, work, copy, position);
        }
        self.count.add_done();
        self.bring_files(run).map_err(|kind| BuildError::at(Some(run.stage.span), kind))?;
        let last = run.last(group);
        let at_last = |kind: BuildErrorKind| BuildError::at(Some(stage.steps[last].span), kind);
        let mut began = Instant::now();
        let chain = self.take_chain(run).map_err(at_last)?;
        let mut below = if chain.is_empty() { Below::Nothing } else { Below::Files };
        let recording = self.services.snapshotter.begin(chain).map_err(|error| at_last(error.into()))?;
        for position in run.groups[group].clone() {
            let (step, place) = (&stage.steps[position], run.place(Some(position)));
            let at = |kind| BuildError::at(Some(step.span), kind);
            self.stop_if_cancelled().map_err(at)?;
            let instruction = step.instruction.as_str();
            if !step.step.changes_files() {
                self.services.progress.tell(&Event::Applied { place: &place, instruction });
                continue;
            }
            self.services.progress.tell(&Event::Started { place: &place, instruction });
            began = Instant::now();
            if let Err(kind) = self.perform(&step.step, stage, &place, below, recording.as_ref()) {
                if !matches!(kind, BuildErrorKind::Cancelled) {
                    let error = kind.to_string();
                    let failed = Event::Failed { place: &place, elapsed: began.elapsed(), error: &error };
                    self.services.progress.tell(&failed);
                }
                return Err(at(kind));
            }
            below = Below::Files;
            if position < last {
                let done = Event::Finished { place: &place, elapsed: began.elapsed(), layer: None };
                self.services.progress.tell(&done);
            }
        }
        let (layer, chain) = self.layer(recording).map_err(at_last)?;
        let place = run.place(Some(last));
        let size = Some(layer.blob.size);
        self.services.progress.tell(&Event::Finished {
            place: &place,
            elapsed: began.elapsed(),
            layer: size,
        });
        // What is remembered is when it really was: another build may have another epoch, or none.
        let made = rfc3339(Clock::Machine.now());
        let kept = self.remember(run, group, work, &layer, &made);
        append_rows(run, group, Some(layer), Some(self.shown_time(&made)));
        run.done.files = Files::Chain(if kept { self.keep(&run.done.image, chain) } else { chain });
        Ok(())
    }

    /// Fetches and unpacks what the stage has so far, where that has not been done.
    fn bring_files(&self, run: &mut StageRun<'_>) -> Result<(), BuildErrorKind> {
        if matches!(run.done.files, Files::Chain(_)) {
            return Ok(());
        }
        self.stop_if_cancelled()?;
        let began = Instant::now();
        self.services.progress.tell(&Event::Unpacking { place: &run.place(None) });
        let base = run.stage.base.shown(&self.plan.stages);
        run.done.files = Files::Chain(self.unpack(&run.done.image, &base, run.stage, Purpose::Step)?);
        let elapsed = began.elapsed();
        // As long as there is nothing else, it is a part of FROM.
        if run.done.image.layers().len() == run.base_layers {
            let place = &run.place(None);
            self.services.progress.tell(&Event::Finished { place, elapsed, layer: None });
        } else {
            let note = format!("[{}] has its files after {:.1} s", run.stage.name, elapsed.as_secs_f64());
            self.services.progress.tell(&Event::Detail(&note));
        }
        Ok(())
    }

    /// The unpacked layers of the stage, which a step is to work on: it has none until the step's are put there.
    fn take_chain(&self, run: &mut StageRun<'_>) -> Result<Chain, BuildErrorKind> {
        match std::mem::replace(&mut run.done.files, Files::OfImage) {
            Files::Chain(chain) => Ok(chain),
            Files::OfImage => {
                let base = run.stage.base.shown(&self.plan.stages);
                self.unpack(&run.done.image, &base, run.stage, Purpose::Step)
            }
        }
    }

    /// Ends the recording and stores its changes as a layer.
    pub(super) fn layer(&self, recording: Box<dyn Recording>) -> Result<(Layer, Chain), BuildErrorKind> {
        let recorded = recording.finish()?;
        let mut writer = self.services.blobs.writer()?;
        let mut out = Cancellable { inner: &mut writer, cancel: &self.cancel };
        let (form, bytes) = (self.services.form, self.services.limits.layers.written);
        let options = layer::WriteOptions { form, bytes, ..layer::WriteOptions::default() };
        let written = layer::write_with(&recorded.changes, &recorded.files, &mut out, &options)?;
        self.stop_if_cancelled()?;
        let (digest, size) = writer.finish()?;
        let blob = form.noted_at(Descriptor::new(form.compression().media_type(), digest, size));
        let layer = Layer { blob, diff_id: written.diff_id, origin: Origin::Stored };
        Ok((layer, recorded.chain))
    }

    /// Keeps what a step wrote for later builds; that they would have to unpack it again is no reason to fail.
    pub(super) fn keep(&self, image: &Image, chain: Chain) -> Chain {
        match self.services.source.keep(image, &chain) {
            Ok(kept) => kept,
            Err(error) => {
                let detail =
                    format!("the files of a step are not kept for later builds: {}", chained(&*error));
                self.services.progress.tell(&Event::Warning { rule: "cache", span: None, detail: &detail });
                chain
            }
        }
    }
}

/// What is told of steps.
#[derive(Clone, Copy)]
enum Telling {
    Applied,
    Found,
}

/// Adds the rows of a group's steps; the last one has the layer.
pub(super) fn append_rows(
    run: &mut StageRun<'_>,
    group: usize,
    mut layer: Option<Layer>,
    mut created: Option<String>,
) {
    let last = run.last(group);
    for position in run.groups[group].clone() {
        let is_last = position == last;
        let time = if is_last { created.take() } else { None };
        if let Some(row) = history_row(&run.stage.steps[position], time) {
            run.done.image.append(row, if is_last { layer.take() } else { None });
        }
    }
}

/// Whether `steps` are one WORKDIR, which may find its directory there already.
pub(super) fn is_workdir(steps: &[PlannedStep]) -> bool {
    matches!(steps, [PlannedStep { step: Step::Workdir(_), .. }])
}

/// What depends on steps with the key `own` when they made `layer` on top of `parent`.
pub(super) fn content_of(
    steps: &[PlannedStep],
    parent: &CacheKey,
    own: &CacheKey,
    layer: &Layer,
) -> CacheKey {
    // A directory that was there already is no reason to do anything anew.
    if is_workdir(steps) && layer.diff_id == key::empty_layer() { parent.clone() } else { own.clone() }
}

/// Fails as soon as the build is told to stop: the writers of large files need not know of that.
struct Cancellable<'a, W> {
    inner: W,
    cancel: &'a Cancel,
}

impl<W: Write> Write for Cancellable<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.cancel.is_cancelled() {
            return Err(io::Error::other("interrupted"));
        }
        self.inner.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
