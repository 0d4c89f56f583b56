//! `builder build` and `builder plan`.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use super::advice::advice_for_store;
use super::contexts;
use super::failed_step::FailedStep;
use super::failure::Failure;
use super::hints::{build_failure, service_failure};
use super::isolation::{self, Grounds, Isolation};
use super::open_files;
use super::outputs::{Publishing, check_outputs};
use super::own::{self, Entered};
use super::progress::{Colour, Display};
use super::secrets;
use super::settings::Settings;
use super::snapshotter::{self, Kept};
use super::sources::{Places, Written};
use super::ssh;
use super::stop::{AtOnce, Stop};
use super::sweep::Sweep;
use crate::build::progress::{Event, Progress};
use crate::build::step::{StageBase, StagePlan};
use crate::build::{self, BuildErrorKind, Plan, Services};
use crate::cache::Local;
use crate::children::reap_orphans;
use crate::context::{Context, FoundDockerfile, Git, IgnoreRules};
use crate::dockerfile::Warning;
use crate::image::document::DocumentLimits;
use crate::image::manifest::Image;
use crate::image::platform::Platform;
use crate::layer::Marks;
use crate::registry::{Client, ClientError, ClientOptions, Notice};
use crate::rootfs::IdMap;
use crate::sandbox::emulation::Emulators;
use crate::sandbox::{Agent, ResourceLimit, SandboxError, Secret, Strategy};
use crate::snapshot::Snapshotter;
use crate::store::Store;
use crate::store::cache_mounts::CacheMounts;
use crate::store::workspace::Workspace;
use crate::transfer::remote::{Known, Remotes};
use crate::transfer::{Asked, Images, Unpacking};

/// Prints what a build would give.
pub(super) fn plan(settings: &Settings, colour: Colour, at_once: &AtOnce) -> Result<(), Failure> {
    let progress =
        Arc::new(Display::to_stderr(settings.progress.without_motion(), settings.verbosity, colour)?);
    warn_of_flags(settings, &*progress);
    let mut places = Places::open(settings)?;
    let written = places.read(settings, &*progress)?;
    let store = open_store(&settings.store, &progress)?;
    let client = client(&settings.client, settings.limits.documents, &progress)?;
    let stop = Stop::new(at_once)?;
    watch(&stop, &client)?;
    let written = written.map_or_else(|| places.fetch(settings, client.http(), &*progress), Ok);
    stop.judge(written.and_then(|written| {
        let sources = Sources { written: &written, ignore: &places.ignore() };
        print_plan(settings, &progress, &sources, &store, &client)
    }))
}

fn print_plan(
    settings: &Settings,
    progress: &Arc<Display>,
    sources: &Sources<'_>,
    store: &Store,
    client: &Client,
) -> Result<(), Failure> {
    let images = Images {
        client,
        store,
        progress: &**progress,
        limits: settings.limits.documents,
        pull: settings.pull,
        unpacking: None,
        asked: Asked::for_platforms(settings.platforms.normalised()),
    };
    let plans = make_plans(sources, settings, &images)?;
    if let Some(plan) = plans.first() {
        warn_of_arguments(plan, &**progress);
    }
    super::print_with(|out| build::preview::write(&plans, out))
}

/// Builds, writes and pushes.
pub(super) fn build(settings: &Settings, colour: Colour, at_once: &AtOnce) -> Result<(), Failure> {
    let began = Instant::now();
    let progress = Arc::new(Display::to_stderr(settings.progress, settings.verbosity, colour)?);
    warn_of_flags(settings, &*progress);
    let mut places = Places::open(settings)?;
    let written = places.read(settings, &*progress)?;
    let open_files = open_files::raise();
    let secrets = secrets::read(&settings.secrets)?;
    let agents = ssh::open(&settings.agents)?;
    check_machine()?;
    let store = open_store(&settings.store, &progress)?;
    let isolation = at_once.after(|| Isolation::of_build(settings, &store))?;
    progress.tell(&Event::Detail(&isolation.summary()));
    if let Some(unfiltered) = isolation.unfiltered() {
        progress.tell(&Event::Detail(unfiltered));
    }
    // Who is forked for that does not speak for itself of a signal that all get.
    let entered = at_once.after(|| own::enter_for(&isolation, &*progress))?;
    places.reopen(settings)?;
    let stop = Stop::new(at_once)?;
    let build = Build {
        settings,
        began,
        progress: &progress,
        secrets,
        agents,
        open_files,
        isolation,
        entered,
        stop: &stop,
    };
    let result = build.run(&store, places, written);
    progress.end();
    stop.judge(result)
}

/// What is planned.
struct Sources<'a> {
    written: &'a Written,
    ignore: &'a IgnoreRules,
}

/// The Dockerfile, and where COPY, ADD and mounts read.
struct Input<'a> {
    found: &'a FoundDockerfile,
    context: &'a Context,
    named: &'a [Context],
    remotes: &'a Remotes<'a>,
}

struct Build<'a> {
    settings: &'a Settings,
    began: Instant,
    progress: &'a Arc<Display>,
    secrets: BTreeMap<String, Secret>,
    agents: BTreeMap<String, Agent>,
    open_files: Option<ResourceLimit>,
    isolation: Isolation,
    entered: Entered,
    stop: &'a Stop,
}

impl Build<'_> {
    /// Builds what is `written`, or else what is to be fetched.
    fn run(self, store: &Store, mut places: Places, written: Option<Written>) -> Result<(), Failure> {
        let settings = self.settings;
        places.hide_outputs(settings)?;
        let sweep = Sweep::begin(store, &**self.progress)?;
        let client = client(&settings.client, settings.limits.documents, self.progress)?;
        watch(self.stop, &client)?;
        let grounds = Grounds::prepare(&self.isolation, store, &self.entered.janitor)?;
        let fetch = || places.fetch(settings, client.http(), &**self.progress);
        let written = written.map_or_else(fetch, Ok)?;
        self.run_in(&grounds, store, &client, places, &written)
            .map_err(|failure| failure.advised(store.root()))?;
        sweep.finish(&self.stop.cancel);
        Ok(())
    }

    /// Builds with temporary files at `grounds`.
    fn run_in(
        &self,
        grounds: &Grounds,
        store: &Store,
        client: &Client,
        mut places: Places,
        written: &Written,
    ) -> Result<(), Failure> {
        let settings = self.settings;
        let workspace = &grounds.workspace;
        let progress: &dyn Progress = &**self.progress;
        let Kept { snapshotter, unpacker } = snapshotter::choose(
            settings,
            &self.isolation,
            store,
            workspace,
            &self.entered.own.ids,
            progress,
        )?;
        let unpacking = Unpacking { unpacker, workspace, limits: settings.limits.layers };
        let images = Images {
            client,
            store,
            progress,
            limits: settings.limits.documents,
            pull: settings.pull,
            unpacking: Some(unpacking),
            asked: Asked::for_platforms(settings.platforms.normalised()),
        };
        let found = &written.found;
        check_outputs(settings, found)?;
        for (flag, destination) in settings.outputs.destinations() {
            client.check_push(destination).map_err(|error| service_failure(&error).of_flag(flag))?;
        }
        let plans = make_plans(&Sources { written, ignore: &places.ignore() }, settings, &images)?;
        let mut plan = build::joined(plans).map_err(|error| build_failure(&error, found, settings))?;
        let steps = plan.stages.iter().map(StagePlan::shown_steps).sum();
        let platforms: Vec<&Platform> = plan.targets.iter().map(|target| &target.platform).collect();
        progress.tell(&Event::Planned { platforms: &platforms, steps });
        warn(&plan, progress);
        self.isolation.check(&plan, found)?;
        if isolation::runs(&plan) {
            if let Some(line) = self.isolation.line() {
                progress.tell(&Event::Note(&line));
            }
            if let Some(warning) = grounds.warning(settings)? {
                progress.tell(&Event::Warning { rule: "isolation", span: None, detail: &warning });
            }
            for (span, detail) in grounds.hidden(&plan, found, settings)? {
                progress.tell(&Event::Warning { rule: "isolation", span: Some(span), detail: &detail });
            }
            let chosen = self.isolation.chosen();
            if let Some(warning) = secrets::warning(&plan, &self.secrets, chosen, workspace.path()) {
                progress.tell(&Event::Warning { rule: "secret", span: None, detail: &warning });
            }
        }
        let remotes = self.remotes(&images, workspace);
        plan.clock = contexts::clock(&plan, settings, &remotes, &self.stop.cancel)?;
        let named = contexts::used(&plan, &mut places.named, settings, &remotes, &self.stop.cancel)?;
        let (empty, _scratch);
        let context = match &places.context {
            Some(context) => context,
            None => {
                (empty, _scratch) = contexts::empty(workspace)?;
                &empty
            }
        };
        let input = Input { found, context, named: &named, remotes: &remotes };
        let built = self.execute(&plan, &images, &*snapshotter, grounds, &input)?;
        let (clock, cancel) = (plan.clock, &self.stop.cancel);
        Publishing { settings, images: &images, snapshotter: &*snapshotter, built: &built, clock, cancel }
            .run()?;
        remind_of_checks(&plan.warnings, progress);
        let elapsed = self.began.elapsed();
        progress.tell(&Event::Complete { platforms: &platforms, steps, elapsed });
        Ok(())
    }

    /// How many stages are built at once. While a step runs in place, the container's root is an image's, and nobody but the
    /// step may believe what is there.
    fn jobs(&self) -> NonZeroUsize {
        match self.isolation.strategy() {
            Some(Strategy::InPlace) => NonZeroUsize::MIN,
            _ => self.settings.jobs,
        }
    }

    /// What is fetched for ADD and named contexts, with what it takes.
    fn remotes<'a>(&'a self, images: &Images<'a>, workspace: &'a Workspace) -> Remotes<'a> {
        Remotes {
            client: images.client.http(),
            git: Git::new(self.settings.git.clone()),
            store: images.store,
            workspace,
            secrets: &self.secrets,
            limit: self.settings.limits.download,
            git_limits: self.settings.limits.git,
            progress: images.progress,
            known: Known::default(),
        }
    }

    fn execute(
        &self,
        plan: &Plan,
        images: &Images<'_>,
        snapshotter: &dyn Snapshotter,
        grounds: &Grounds,
        input: &Input<'_>,
    ) -> Result<Vec<Image>, Failure> {
        let sandbox = grounds.sandbox(self.settings);
        let emulators = Emulators::new(self.settings.emulators.clone());
        let services = Services {
            source: images,
            workspace: &grounds.workspace,
            snapshotter,
            sandbox: sandbox.as_deref(),
            emulators: &emulators,
            blobs: images.store.blobs(),
            form: self.settings.outputs.written_form(plan.clock),
            cache: &Local::new(images.store),
            reuse: self.settings.reuse,
            jobs: self.jobs(),
            restriction: restriction(&self.entered.own.ids),
            context: input.context,
            contexts: input.named,
            remote: input.remotes,
            progress: images.progress,
            cancel: &self.stop.cancel,
            secrets: self.secrets.clone(),
            agents: self.agents.clone(),
            cache_mounts: &CacheMounts::new(images.store, &self.entered.own.ids),
            limits: self.settings.limits.of_build(),
            // RUN shares the machine's network, so the machine's name servers are the right ones.
            open_files: self.open_files,
            resolv_conf: std::fs::read("/etc/resolv.conf").unwrap_or_default(),
        };
        build::execute(plan, &services).map_err(|error| {
            let mut failure = build_failure(&error, input.found, self.settings);
            let hint = || match &error.kind {
                BuildErrorKind::Process { command, platform, exit, clues, .. } => {
                    let step = FailedStep { command, platform, exit: *exit, clues: *clues };
                    step.hint(&self.entered.own, self.isolation.way(), self.isolation.place())
                }
                BuildErrorKind::Sandbox(error @ SandboxError::UnknownId { .. }) => {
                    let shortage = self.entered.own.shortage.as_ref();
                    let place = self.isolation.place();
                    shortage.map(|shortage| shortage.remedy(place)).or_else(|| self.isolation.remedy(error))
                }
                BuildErrorKind::Sandbox(error) => self.isolation.remedy(error),
                _ => None,
            };
            failure.hint = failure.hint.or_else(hint);
            failure
        })
    }
}

/// Has signals stop what waits for a registry, too; and orphans find a parent that looks after them.
pub(super) fn watch(stop: &Stop, client: &Arc<Client>) -> Result<(), Failure> {
    let waiting = client.clone();
    stop.watch(move || waiting.cancel())?;
    reap_orphans();
    Ok(())
}

/// What files cannot have here; none where they can have everything.
fn restriction(ids: &IdMap) -> Option<String> {
    let marks = Marks::usual();
    let all = ids.is_whole() && marks == Marks::Trusted;
    (!all).then(|| format!("users {}, groups {}, {} attributes", ids.users(), ids.groups(), marks.name()))
}

/// What every step would fail for is said before there is one.
fn check_machine() -> Result<(), Failure> {
    if Path::new("/proc/self/fd").exists() {
        return Ok(());
    }
    Err(Failure::new("/proc is not mounted: builds need it").hint("mount -t proc proc /proc"))
}

/// Opens the store and tells what was wrong with it.
pub(super) fn open_store(path: &Path, progress: &Arc<Display>) -> Result<Store, Failure> {
    let store = Store::open(path).map_err(|error| {
        let failure = Failure::from_error(&error);
        match advice_for_store(&error, path) {
            Some(advice) => failure.hint(advice),
            None => failure.advised(path),
        }
    })?;
    for warning in store.warnings() {
        progress.tell(&Event::Warning { rule: "store", span: None, detail: warning });
    }
    Ok(store)
}

pub(super) fn warn_of_flags(settings: &Settings, progress: &dyn Progress) {
    for warning in &settings.warnings {
        progress.tell(&Event::Warning { rule: "flag", span: None, detail: warning });
    }
}

/// A client that tells of waits and of odd answers.
pub(super) fn client(
    options: &ClientOptions,
    limits: DocumentLimits,
    progress: &Arc<Display>,
) -> Result<Arc<Client>, Failure> {
    let progress = Arc::clone(progress);
    let notice: Notice = Arc::new(move |text: &str| progress.tell(&Event::Note(text)));
    let options = ClientOptions { notice: Some(notice), limits, ..options.clone() };
    Client::new(options).map(Arc::new).map_err(|error: ClientError| Failure::from_error(&error))
}

/// A plan for each platform.
fn make_plans(sources: &Sources<'_>, settings: &Settings, images: &Images<'_>) -> Result<Vec<Plan>, Failure> {
    let mut request = settings.request.clone();
    if let Some(unpacking) = &images.unpacking {
        request.most_layers = unpacking.unpacker.most_layers();
    }
    let Written { found, file } = sources.written;
    let ignore = sources.ignore;
    let several = settings.platforms.iter().count() > 1;
    let (mut plans, mut told) = (Vec::new(), BTreeSet::new());
    for platform in settings.platforms.iter() {
        let mut warnings = Vec::new();
        request.platform = platform.clone();
        let plan = build::plan_noting(file, &request, ignore, images, &mut warnings);
        let plan = plan.map_err(|mut error| {
            tell_checks(&warnings, images.progress);
            error.platform = several.then(|| platform.normalised.to_string().into());
            build_failure(&error, found, settings)
        })?;
        let bases = plan.stages.iter().filter_map(|stage| match &stage.base {
            StageBase::Image(base) => Some(base),
            StageBase::Scratch | StageBase::Stage(_) | StageBase::Files(_) => None,
        });
        for note in bases.chain(&plan.images).flat_map(|base| &base.notes) {
            // Several stages, and platforms, may have one base.
            if told.insert(note.clone()) {
                images.progress.tell(&Event::Note(note));
            }
        }
        plans.push(plan);
    }
    Ok(plans)
}

fn warn(plan: &Plan, progress: &dyn Progress) {
    tell_checks(&plan.warnings, progress);
    warn_of_arguments(plan, progress);
    for name in &plan.unknown_stages {
        let detail = format!("`{name}` has no effect: the Dockerfile has no such stage");
        progress.tell(&Event::Warning { rule: "--no-cache-filter", span: None, detail: &detail });
    }
}

/// At most this many findings of build checks are told before a build.
const MOST_FINDINGS: usize = 50;

/// Tells what build checks found. A log that is about something else is not filled with it.
pub(super) fn tell_checks(warnings: &[Warning], progress: &dyn Progress) {
    for warning in warnings.iter().take(MOST_FINDINGS) {
        progress.tell(&Event::Check(warning));
    }
    if let Some(more) = warnings.len().checked_sub(MOST_FINDINGS).filter(|more| *more > 0) {
        progress.tell(&Event::Note(&format!("… and {more} more: `builder check` shows them all")));
    }
}

/// Reminds of them at the end, where they may be far above.
fn remind_of_checks(warnings: &[Warning], progress: &dyn Progress) {
    let found = match warnings.len() {
        0 => return,
        1 => "1 warning found".to_owned(),
        count => format!("{count} warnings found"),
    };
    progress
        .tell(&Event::Note(&format!("{found} by build checks, see above; `builder check` shows the lines")));
}

fn warn_of_arguments(plan: &Plan, progress: &dyn Progress) {
    for name in &plan.unused_args {
        let detail = format!("`{name}` has no effect: the Dockerfile declares no such ARG");
        progress.tell(&Event::Warning { rule: "--build-arg", span: None, detail: &detail });
    }
}
