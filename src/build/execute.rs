//! Running a plan: each stage's steps on its files, each step's changes into a layer.

use std::cell::{Cell, OnceCell};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::time::Instant;

use super::add::{AddError, add};
use super::bases::Bases;
use super::clock::{Clock, rfc3339};
use super::copy::{CopyError, CopyRequest, CopySource, OwnerPolicy, SourceTree, copy};
use super::error::{BuildError, BuildErrorKind};
use super::progress::{Event, Place};
use super::services::{ServiceError, Services};
use super::step::{
    Archives, CopyFrom, CopyStep, Plan, PlannedStep, RunStep, StageBase, StagePlan, Step, WorkdirStep,
};
use crate::image::config::History;
use crate::image::descriptor::{Descriptor, media_type};
use crate::image::manifest::{Image, Layer, Origin};
use crate::image::platform::Platform;
use crate::layer;
use crate::rootfs::{
    Owner, ResolvedUser, Rootfs, Timestamp, UserError, numeric_chown, resolve_chown, resolve_user,
    set_times_at,
};
use crate::sandbox::emulation::{self, Emulation};
use crate::sandbox::{Cancel, Exit, HOSTNAME, Presentation, Process, SandboxError, Script};
use crate::snapshot::{Recording, View};
use crate::store::unpacked::Chain;

/// What every RUN finds in `/etc/hosts`, as under BuildKit.
const HOSTS: &str = "127.0.0.1\tlocalhost buildkitsandbox\n::1\tlocalhost ip6-localhost ip6-loopback\n";

/// The comment of every history row that a Dockerfile makes; tools look for BuildKit's.
const COMMENT: &str = "buildkit.dockerfile.v0";

/// A stage that has been built.
#[derive(Clone)]
struct Done {
    image: Image,
    files: Files,
    /// Where the rows begin that this build has added to the history.
    first_row: usize,
}

/// Whether a step finds anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Below {
    /// The stage stands on `scratch` and has no step before this one.
    Nothing,
    /// It has files, if only those of an empty layer.
    Files,
}

/// A stage's files, unpacked only when somebody wants them.
#[derive(Clone)]
enum Files {
    /// Those of the image's layers, wherever these are.
    OfImage,
    /// These.
    Chain(Chain),
}

/// Builds what `plan` says; gives the image, whose own layers are in the store.
///
/// # Errors
/// [`BuildError`] with the lines of the instruction that failed.
pub fn execute(plan: &Plan, services: &Services<'_>) -> Result<Image, BuildError> {
    let mut executor = Executor {
        plan,
        services,
        last_uses: last_uses(plan),
        bases: Bases::of(plan),
        position: 0,
        done: BTreeMap::new(),
        machine: OnceCell::new(),
        warned: Cell::new(false),
    };
    for (position, stage) in plan.stages.iter().enumerate() {
        executor.position = position;
        let done = executor.stage(position, stage)?;
        executor.done.insert(position, done);
        executor.bases.leave(position);
        // What nobody uses any more is let go: long chains of stages would else hold a history for each.
        let Executor { done, last_uses, .. } = &mut executor;
        done.retain(|other, _| last_uses[*other] > position);
    }
    let (Some((_, done)), Some(stage)) = (executor.done.pop_last(), plan.result()) else {
        return Err(BuildError::at(None, BuildErrorKind::Invalid("there is no stage to build".to_owned())));
    };
    Ok(finished(plan, stage, done))
}

/// For each stage the position of the last one that stands on it or copies from it. The result is used at the end.
fn last_uses(plan: &Plan) -> Vec<usize> {
    let mut last: Vec<usize> = (0..plan.stages.len()).collect();
    for (position, stage) in plan.stages.iter().enumerate() {
        if let StageBase::Stage(below) = stage.base {
            last[below] = position;
        }
        for step in &stage.steps {
            if let Step::Copy(CopyStep { from: CopyFrom::Stage(other), .. }) = &step.step {
                last[*other] = position;
            }
        }
    }
    if let Some(result) = last.last_mut() {
        *result = plan.stages.len();
    }
    last
}

struct Executor<'a> {
    plan: &'a Plan,
    services: &'a Services<'a>,
    /// For each stage the position of the last one that uses it.
    last_uses: Vec<usize>,
    /// The images that are still needed.
    bases: Bases,
    /// Which stage is being built.
    position: usize,
    /// The stages that are still needed, by position.
    done: BTreeMap<usize, Done>,
    /// This machine, looked at when the first RUN wants to know.
    machine: OnceCell<(emulation::Host, emulation::Registrations)>,
    /// Whether the faults of a qemu handler were told: once is enough.
    warned: Cell<bool>,
}

impl Executor<'_> {
    /// What the stage at `position` begins with: `below`, handed over for good where nobody else uses that.
    fn stage_below(&mut self, below: usize, position: usize, stage: &StagePlan) -> Done {
        let copies = |step: &PlannedStep| matches!(&step.step, Step::Copy(CopyStep { from: CopyFrom::Stage(other), .. }) if *other == below);
        if self.last_uses[below] == position
            && !stage.steps.iter().any(copies)
            && let Some(done) = self.done.remove(&below)
        {
            return done;
        }
        self.done[&below].clone()
    }

    fn stage(&mut self, position: usize, stage: &StagePlan) -> Result<Done, BuildError> {
        let place = |number| Place {
            stage: (self.plan.stages.len() > 1).then(|| stage.name.clone()),
            number,
            total: stage.steps.len() + 1,
        };
        self.tell_base(stage, &place(1));
        let needs_files = stage.steps.iter().any(|step| step.step.makes_layer());
        let mut done = match &stage.base {
            StageBase::Scratch => {
                Done { image: Image::scratch(), files: Files::Chain(Chain::empty()), first_row: 0 }
            }
            StageBase::Stage(below) => self.stage_below(*below, position, stage),
            StageBase::Image(base) => {
                let first_row = base.image.config().history.len();
                Done { image: base.image.clone(), files: Files::OfImage, first_row }
            }
        };
        if needs_files {
            self.bring_files(stage, &place(1), &mut done)
                .map_err(|kind| BuildError::at(Some(stage.span), kind))?;
        }
        for (number, step) in stage.steps.iter().enumerate() {
            let place = place(number + 2);
            self.stop_if_cancelled().map_err(|kind| BuildError::at(Some(step.span), kind))?;
            self.services.progress.tell(&Event::Started { place: &place, instruction: &step.instruction });
            let layer = self.step(stage, step, &place, &mut done)?;
            let created = layer.as_ref().map(|_| rfc3339(self.plan.clock.now()));
            if let Some(row) = history_row(step, created) {
                done.image.append(row, layer);
            }
        }
        Ok(done)
    }

    fn tell_base(&self, stage: &StagePlan, place: &Place) {
        let progress = self.services.progress;
        let StageBase::Image(base) = &stage.base else {
            progress.tell(&Event::Started { place, instruction: &stage.instruction });
            return;
        };
        let platform = Platform::from(base.config());
        let text = format!("{} ({platform}, sha256:{})", stage.instruction, base.digest.short());
        progress.tell(&Event::Started { place, instruction: &text });
        progress.tell(&Event::Detail(&format!("{} is {}", base.reference, base.digest)));
    }

    fn stop_if_cancelled(&self) -> Result<(), BuildErrorKind> {
        if self.services.cancel.is_cancelled() { Err(BuildErrorKind::Cancelled) } else { Ok(()) }
    }

    /// Does one step; gives its layer if it makes one.
    fn step(
        &mut self,
        stage: &StagePlan,
        step: &PlannedStep,
        place: &Place,
        done: &mut Done,
    ) -> Result<Option<Layer>, BuildError> {
        if !step.step.makes_layer() {
            return Ok(None);
        }
        let at = |kind: BuildErrorKind| BuildError::at(Some(step.span), kind);
        let began = Instant::now();
        let chain = self.take_chain(done, stage).map_err(at)?;
        let below = if chain.is_empty() { Below::Nothing } else { Below::Files };
        let recording = self.services.snapshotter.begin(chain).map_err(|error| at(error.into()))?;
        match &step.step {
            Step::Config => {}
            Step::Workdir(workdir) => {
                make_workdir(workdir, recording.root(), self.plan.clock.now()).map_err(at)?
            }
            Step::Copy(copy) => self.copy(copy, stage, below, recording.root()).map_err(at)?,
            Step::Run(run) => self.run(run, stage, place, recording.as_ref()).map_err(at)?,
        }
        let (layer, chain) = self.layer(recording).map_err(at)?;
        self.services.progress.tell(&Event::Finished {
            place,
            elapsed: began.elapsed(),
            layer: Some(layer.blob.size),
        });
        done.files = Files::Chain(chain);
        Ok(Some(layer))
    }

    /// Fetches and unpacks the base where that has not been done, as a part of FROM.
    fn bring_files(&self, stage: &StagePlan, place: &Place, done: &mut Done) -> Result<(), BuildErrorKind> {
        if matches!(done.files, Files::Chain(_)) {
            return Ok(());
        }
        self.stop_if_cancelled()?;
        let began = Instant::now();
        done.files = Files::Chain(self.chain(done, stage)?);
        self.services.progress.tell(&Event::Finished { place, elapsed: began.elapsed(), layer: None });
        Ok(())
    }

    /// The unpacked layers of `done`, which a step is to work on: `done` has none until the step's are put there.
    fn take_chain(&self, done: &mut Done, stage: &StagePlan) -> Result<Chain, BuildErrorKind> {
        match std::mem::replace(&mut done.files, Files::OfImage) {
            Files::Chain(chain) => Ok(chain),
            Files::OfImage => self.unpack(&done.image, &stage.base.shown(&self.plan.stages)),
        }
    }

    /// The unpacked layers of `done`.
    fn chain(&self, done: &Done, stage: &StagePlan) -> Result<Chain, BuildErrorKind> {
        match &done.files {
            Files::Chain(chain) => Ok(chain.clone()),
            Files::OfImage => self.unpack(&done.image, &stage.base.shown(&self.plan.stages)),
        }
    }

    fn unpack(&self, image: &Image, reference: &str) -> Result<Chain, BuildErrorKind> {
        let failed = |source: ServiceError| BuildErrorKind::Image { reference: reference.to_owned(), source };
        self.bases.get(image, self.position, || self.services.source.unpack(image)).map_err(failed)
    }

    /// Ends the recording and stores its changes as a layer.
    fn layer(&self, recording: Box<dyn Recording>) -> Result<(Layer, Chain), BuildErrorKind> {
        let recorded = recording.finish()?;
        let mut writer = self.services.blobs.writer()?;
        let mut out = Cancellable { inner: &mut writer, cancel: self.services.cancel };
        let written = layer::write(&recorded.changes, &recorded.files, &mut out)?;
        self.stop_if_cancelled()?;
        let (digest, size) = writer.finish()?;
        let blob = Descriptor::new(media_type::OCI_LAYER_GZIP, digest, size);
        let layer = Layer { blob, diff_id: written.diff_id, origin: Origin::Stored };
        Ok((layer, recorded.chain))
    }

    fn copy(
        &self,
        step: &CopyStep,
        stage: &StagePlan,
        below: Below,
        onto: &Rootfs,
    ) -> Result<(), BuildErrorKind> {
        let view = self.view(&step.from, stage)?;
        let context = self.services.context;
        let from = match &view {
            Some(view) => SourceTree { root: view.root(), ignore: None, owner: OwnerPolicy::Keep },
            None => {
                SourceTree { root: context.root(), ignore: Some(context.ignore()), owner: OwnerPolicy::Root }
            }
        };
        let chown = step.chown.as_deref().map(|text| chown(onto, text, below)).transpose()?;
        let paths = step.sources.iter().map(|path| CopySource::Path(path));
        let inline = step.inline.iter().map(|(name, content)| CopySource::Inline { name, content });
        let request = CopyRequest {
            sources: paths.chain(inline).collect(),
            from,
            destination: &step.destination,
            workdir: &step.workdir,
            chown,
            chmod: step.chmod,
        };
        let now = self.plan.clock.now();
        match step.archives {
            Archives::Keep => {
                copy(&request, onto, now).map(|_| ()).map_err(|error| self.not_copied(step, error))
            }
            Archives::Extract => {
                let added =
                    add(&request, onto, now, &layer::Limits::default()).map_err(|error| match error {
                        AddError::Copy(error) => self.not_copied(step, error),
                        error => error.into(),
                    })?;
                for skipped in &added.skipped {
                    self.services
                        .progress
                        .tell(&Event::Note(&format!("ADD leaves out `{}`: {}", skipped.path, skipped.what)));
                }
                Ok(())
            }
        }
    }

    /// Says where a source was looked for.
    fn not_copied(&self, step: &CopyStep, error: CopyError) -> BuildErrorKind {
        let CopyError::NotFound { written, excluded, near, .. } = error else { return error.into() };
        let place = match &step.from {
            CopyFrom::Context => "the build context".to_owned(),
            CopyFrom::Scratch => "`scratch`, which is empty".to_owned(),
            CopyFrom::Stage(position) => format!("stage `{}`", self.plan.stages[*position].name),
            CopyFrom::Image(position) => {
                format!("image `{}`", self.plan.images[*position].reference.familiar())
            }
        };
        BuildErrorKind::Source { keyword: step.kind.keyword(), written, place, excluded, near }
    }

    /// The tree that COPY reads, unless it is the build context.
    fn view(&self, from: &CopyFrom, stage: &StagePlan) -> Result<Option<View>, BuildErrorKind> {
        let chain = match from {
            CopyFrom::Context => return Ok(None),
            CopyFrom::Scratch => Chain::empty(),
            CopyFrom::Stage(position) => self.chain(&self.done[position], &self.plan.stages[*position])?,
            CopyFrom::Image(position) => {
                let base = &self.plan.images[*position];
                let note =
                    format!("[{}] copying from {}@{}", stage.name, base.reference.familiar(), base.digest);
                self.services.progress.tell(&Event::Detail(&note));
                self.unpack(&base.image, &base.reference.to_string())?
            }
        };
        Ok(Some(self.services.snapshotter.view(&chain)?))
    }

    fn run(
        &self,
        step: &RunStep,
        stage: &StagePlan,
        place: &Place,
        recording: &dyn Recording,
    ) -> Result<(), BuildErrorKind> {
        let root = recording.root();
        let presentation = self.presentation(&stage.platform)?;
        let user = resolve_user(root, &step.user)?;
        root.create_dirs(&step.workdir, 0o755, user.owner)?;
        let process = process(step, user, presentation, self.services.resolv_conf.clone());
        let progress = self.services.progress;
        let mut output = |stream, bytes: &[u8]| progress.tell(&Event::Output { place, stream, bytes });
        let result = self.services.sandbox.run(root, &process, &mut output, self.services.cancel);
        progress.tell(&Event::OutputEnded { place });
        match result {
            Ok(Exit::Code(0)) => Ok(()),
            Ok(exit) => Err(BuildErrorKind::Process { command: step.shown.clone(), exit }),
            Err(SandboxError::Cancelled { .. }) => Err(BuildErrorKind::Cancelled),
            Err(error) => Err(error.into()),
        }
    }

    /// How programs for `platform` run here.
    fn presentation(&self, platform: &Platform) -> Result<Presentation, BuildErrorKind> {
        let look = || (emulation::Host::current(), emulation::Registrations::current());
        let (host, registrations) = self.machine.get_or_init(look);
        match emulation::availability(
            &platform.architecture,
            platform.variant.as_deref(),
            host,
            registrations,
        ) {
            Emulation::Native(presentation) => Ok(presentation),
            Emulation::Handler(handler) => {
                let note = format!("programs for {platform} run under {}", handler.interpreter);
                self.services.progress.tell(&Event::Detail(&note));
                if !self.warned.replace(true) {
                    for warning in handler.warnings() {
                        let event = Event::Warning { rule: "Emulation", span: None, detail: &warning };
                        self.services.progress.tell(&event);
                    }
                }
                Ok(Presentation::Native)
            }
            // The list of handlers is hidden here: only trying tells.
            Emulation::Unknown => Ok(Presentation::Native),
            Emulation::Missing(missing) => {
                Err(BuildErrorKind::Emulation { reason: missing.to_string(), fix: missing.hint() })
            }
        }
    }
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

/// The owner that `--chown` names. Where there are no files at all there is nothing to look a name up in.
fn chown(root: &Rootfs, text: &str, below: Below) -> Result<Owner, BuildErrorKind> {
    if below == Below::Nothing && numeric_chown(text)?.is_none() {
        let message = format!(
            "--chown={text} is a name, and this stage has no files to look it up in: invalid user index: -1"
        );
        return Err(BuildErrorKind::Invalid(message));
    }
    Ok(resolve_chown(root, text)?)
}

/// Missing directories belong to USER; one that the image doesn't know is taken for root. What is made, and the
/// directory it is made in, has the time `now`.
fn make_workdir(step: &WorkdirStep, root: &Rootfs, now: Timestamp) -> Result<(), BuildErrorKind> {
    let owner = match resolve_user(root, &step.user) {
        Ok(user) => user.owner,
        Err(UserError::NoUser(_) | UserError::NoGroup(_)) => Owner::ROOT,
        Err(error) => return Err(error.into()),
    };
    let made = root.create_dirs(&step.path, 0o755, owner)?;
    for path in made.iter().rev() {
        let (directory, name) = root.parent(path)?;
        set_times_at(directory.as_fd(), &name, now).map_err(BuildErrorKind::StepFiles)?;
        set_times_at(directory.as_fd(), b".", now).map_err(BuildErrorKind::StepFiles)?;
    }
    Ok(())
}

fn process(step: &RunStep, user: ResolvedUser, presentation: Presentation, resolv_conf: Vec<u8>) -> Process {
    let mut env: Vec<(Vec<u8>, Vec<u8>)> = step
        .env
        .iter()
        .map(|(name, value)| (name.clone().into_bytes(), value.clone().into_bytes()))
        .collect();
    if !step.env.iter().any(|(name, _)| name == "HOME") {
        env.push((b"HOME".to_vec(), user.home.clone()));
    }
    let scripts =
        step.script.iter().map(|(name, content)| Script { name: name.to_vec(), content: content.to_vec() });
    Process {
        args: step.args.clone(),
        env,
        cwd: step.workdir.clone(),
        user,
        hostname: HOSTNAME.to_owned(),
        hosts: HOSTS.as_bytes().to_vec(),
        resolv_conf,
        scripts: scripts.collect(),
        presentation,
    }
}

/// The image with its final config, annotations and times.
fn finished(plan: &Plan, stage: &StagePlan, done: Done) -> Image {
    let Done { mut image, first_row, .. } = done;
    image.edit(|config| describe(config, stage, plan));
    image.annotations = annotations(plan, stage);
    fill_times(&mut image, first_row, plan.clock);
    image
}

/// Puts everything that planning has found out into `config`.
pub(super) fn describe(config: &mut crate::image::config::ImageConfig, stage: &StagePlan, plan: &Plan) {
    config.config = stage.config.clone();
    config.config.labels.extend(plan.labels.iter().cloned());
    config.author.clone_from(&stage.author);
    config.architecture.clone_from(&plan.platform.architecture);
    config.os.clone_from(&plan.platform.os);
    config.variant.clone_from(&plan.platform.variant);
    config.os_version.clone_from(&plan.platform.os_version);
    config.os_features = Some(plan.platform.os_features.clone()).filter(|features| !features.is_empty());
}

fn annotations(plan: &Plan, stage: &StagePlan) -> BTreeMap<String, String> {
    let mut annotations = BTreeMap::from([("io.builder.platform".to_owned(), plan.platform.to_string())]);
    if let (_, Some(base)) = plan.descent(stage) {
        annotations.insert("org.opencontainers.image.base.name".to_owned(), base.reference.to_string());
        annotations.insert("org.opencontainers.image.base.digest".to_owned(), base.digest.to_string());
    }
    annotations
}

/// The row that `step` leaves in the history, if it leaves one.
pub(super) fn history_row(step: &PlannedStep, created: Option<String>) -> Option<History> {
    let created_by = Some(step.created_by.clone()?);
    Some(History { created, created_by, comment: Some(COMMENT.to_owned()), ..History::default() })
}

/// Rows that made no layer have the time of the layer before them, or of the first one of this build.
fn fill_times(image: &mut Image, first_row: usize, clock: Clock) {
    let rows = &image.config().history[first_row..];
    let mut current = rows.iter().find_map(|row| row.created.clone()).unwrap_or_else(|| rfc3339(clock.now()));
    let mut times = Vec::with_capacity(rows.len());
    for row in rows {
        if let Some(created) = &row.created {
            current.clone_from(created);
        }
        times.push(current.clone());
    }
    image.set_created(first_row, |position, _| times.get(position - first_row).cloned());
}
