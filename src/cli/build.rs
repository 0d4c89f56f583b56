//! `builder build` and `builder plan`.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use super::advice::Trouble;
use super::failure::{Excerpt, Failure};
use super::own::{self, Entered};
use super::progress::{Colour, Lines};
use super::secrets;
use super::settings::{Given, Settings};
use super::snapshotter::{self, Kept};
use super::stop::Stop;
use super::sweep::Sweep;
use crate::build::clock::{Clock, rfc3339};
use crate::build::progress::{Event, Progress};
use crate::build::step::StageBase;
use crate::build::{self, BuildError, BuildErrorKind, Plan, Services};
use crate::cache::Local;
use crate::context::{Context, FoundDockerfile};
use crate::dockerfile::{self, Dockerfile, Span};
use crate::image::manifest::{EncodedImage, Image};
use crate::image::reference::Reference;
use crate::layer::Marks;
use crate::registry::{Client, ClientError, ClientOptions, Notice, TransferError};
use crate::rootfs::IdMap;
use crate::sandbox::own::Wish;
use crate::sandbox::{Exit, Isolated, SandboxError, Secret, StartProblem};
use crate::snapshot::Snapshotter;
use crate::store::export::{Content, Export, ExportError};
use crate::store::mount::MAX_LAYERS;
use crate::store::workspace::Workspace;
use crate::store::{Store, StoreError, archive, layout};
use crate::transfer::{ImageProblem, Images, Unpacking};

/// What runs the command line of a RUN, unless SHELL names something else.
const DEFAULT_SHELL: &[u8] = b"/bin/sh";

/// What both commands begin with.
struct Opened {
    context: Context,
    found: FoundDockerfile,
    file: Dockerfile,
}

/// Prints what a build would give.
pub(super) fn plan(settings: &Settings, colour: Colour) -> Result<(), Failure> {
    let progress = Arc::new(Lines::to_stderr(settings.verbosity, colour));
    let opened = open(settings, &*progress)?;
    let store = open_store(settings, &progress)?;
    let client = client(settings, &progress)?;
    let images = Images {
        client: &client,
        store: &store,
        progress: &*progress,
        limits: settings.limits.documents,
        unpacking: None,
    };
    let plan = make_plan(&opened, settings, &images)?;
    warn_of_arguments(&plan, &*progress);
    let document: Value = build::preview::document(&plan);
    let text = serde_json::to_string_pretty(&document).map_err(|error| Failure::from_error(&error))?;
    super::print(&format!("{text}\n"))
}

/// Builds, writes and pushes.
pub(super) fn build(settings: &Settings, colour: Colour) -> Result<(), Failure> {
    let progress = Arc::new(Lines::to_stderr(settings.verbosity, colour));
    let mut opened = open(settings, &*progress)?;
    let secrets = secrets::read(&settings.secrets)?;
    let entered = own::enter(Wish::All, &*progress)?;
    opened.context.reopen().map_err(|error| Failure::from_error(&error))?;
    let stop = Stop::new()?;
    let result = Build { settings, progress: &progress, opened, secrets, entered, stop: &stop }.run();
    stop.judge(result)
}

struct Build<'a> {
    settings: &'a Settings,
    progress: &'a Arc<Lines<std::io::Stderr>>,
    opened: Opened,
    secrets: BTreeMap<String, Secret>,
    entered: Entered,
    stop: &'a Stop,
}

impl Build<'_> {
    fn run(mut self) -> Result<(), Failure> {
        let settings = self.settings;
        let store = open_store(settings, self.progress)?;
        check_machine()?;
        hide_outputs(&mut self.opened.context, settings)?;
        let sweep = Sweep::begin(&store, self.progress)?;
        let workspace = Workspace::create(&store.temporary(), Some(&self.entered.janitor))
            .map_err(|error| Failure::from_error(&error).advised(store.root()))?;
        self.run_in(&Arc::new(workspace), &store).map_err(|failure| failure.advised(store.root()))?;
        sweep.finish(&self.stop.cancel);
        Ok(())
    }

    /// Builds with `workspace` for temporary files.
    fn run_in(&self, workspace: &Arc<Workspace>, store: &Store) -> Result<(), Failure> {
        let settings = self.settings;
        let client = client(settings, self.progress)?;
        let waiting = client.clone();
        self.stop.watch(move || waiting.cancel())?;
        let progress: &dyn Progress = &**self.progress;
        let Kept { snapshotter, unpacker } =
            snapshotter::choose(settings, store, workspace, &self.entered.own.ids, progress)?;
        let unpacking =
            Unpacking { unpacker, workspace, cancel: &self.stop.cancel, limits: settings.limits.layers };
        let images = Images {
            client: &client,
            store,
            progress,
            limits: settings.limits.documents,
            unpacking: Some(unpacking),
        };
        check_outputs(settings, &self.opened.found)?;
        for destination in &settings.push {
            client
                .check_push(destination)
                .map_err(|error| service_failure(&error).of_flag("--destination"))?;
        }
        let plan = make_plan(&self.opened, settings, &images)?;
        warn(&plan, progress);
        let image = self.execute(&plan, &images, &*snapshotter, workspace)?;
        publish(settings, &images, &image, plan.clock)
    }

    fn execute(
        &self,
        plan: &Plan,
        images: &Images<'_>,
        snapshotter: &dyn Snapshotter,
        workspace: &Workspace,
    ) -> Result<Image, Failure> {
        let services = Services {
            source: images,
            workspace,
            snapshotter,
            // Not the program's path: an upgrade meanwhile would put another program there.
            sandbox: &Isolated::new("/proc/self/exe"),
            blobs: images.store.blobs(),
            cache: &Local::new(images.store),
            reuse: self.settings.reuse,
            restriction: restriction(&self.entered.own.ids),
            context: &self.opened.context,
            progress: images.progress,
            cancel: &self.stop.cancel,
            secrets: self.secrets.clone(),
            limits: self.settings.limits.of_build(),
            // RUN shares the machine's network, so the machine's name servers are the right ones.
            resolv_conf: std::fs::read("/etc/resolv.conf").unwrap_or_default(),
        };
        build::execute(plan, &services).map_err(|error| {
            let mut failure = build_failure(&error, &self.opened.found);
            if matches!(error.kind, BuildErrorKind::Process { .. }) {
                failure.hint = failure.hint.or_else(|| own::hint_for_failed_step(&self.entered.own));
            }
            failure
        })
    }
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
fn open_store(settings: &Settings, progress: &Arc<Lines<std::io::Stderr>>) -> Result<Store, Failure> {
    let store =
        Store::open(&settings.store).map_err(|error| Failure::from_error(&error).advised(&settings.store))?;
    for warning in store.warnings() {
        progress.tell(&Event::Warning { rule: "store", span: None, detail: warning });
    }
    Ok(store)
}

fn open(settings: &Settings, progress: &dyn Progress) -> Result<Opened, Failure> {
    for warning in &settings.warnings {
        progress.tell(&Event::Warning { rule: "flag", span: None, detail: warning });
    }
    let mut context = Context::open_dir(&settings.context)
        .map(|context| context.within(settings.limits.context))
        .map_err(|error| Failure::from_error(&error).of_flag("--context"))
        .map_err(|failure| match settings.context_given {
            Given::Yes => failure,
            Given::No => failure.hint("name the directory to build: `builder -t NAME DIRECTORY`"),
        })?;
    let found = context.read_dockerfile(settings.dockerfile.as_deref()).map_err(|error| {
        let failure = Failure::from_error(&error);
        if settings.dockerfile.is_some() { failure.of_flag("--dockerfile") } else { failure }
    })?;
    context.read_ignore_rules(Some(&found)).map_err(|error| Failure::from_error(&error))?;
    let file = dockerfile::parse_within(&found.content, settings.limits.context.dockerfile)
        .map_err(|error| build_failure(&error.into(), &found))?;
    Ok(Opened { context, found, file })
}

/// What the build itself writes must not be part of its context.
fn hide_outputs(context: &mut Context, settings: &Settings) -> Result<(), Failure> {
    for path in std::iter::once(settings.store.as_path()).chain(settings.outputs().map(|(_, path)| path)) {
        context.exclude(path).map_err(|error| Failure::from_error(&error))?;
    }
    Ok(())
}

/// A client that tells of waits and of odd answers.
fn client(settings: &Settings, progress: &Arc<Lines<std::io::Stderr>>) -> Result<Arc<Client>, Failure> {
    let progress = Arc::clone(progress);
    let notice: Notice = Arc::new(move |text: &str| progress.tell(&Event::Note(text)));
    let options =
        ClientOptions { notice: Some(notice), limits: settings.limits.documents, ..settings.client.clone() };
    Client::new(options).map(Arc::new).map_err(|error: ClientError| Failure::from_error(&error))
}

fn make_plan(opened: &Opened, settings: &Settings, images: &Images<'_>) -> Result<Plan, Failure> {
    let mut request = settings.request.clone();
    if let Some(unpacking) = &images.unpacking {
        request.most_layers = unpacking.unpacker.most_layers();
    }
    let plan = build::plan(&opened.file, &request, opened.context.ignore(), images)
        .map_err(|error| build_failure(&error, &opened.found))?;
    let bases = plan.stages.iter().filter_map(|stage| match &stage.base {
        StageBase::Image(base) => Some(&**base),
        StageBase::Scratch | StageBase::Stage(_) => None,
    });
    for note in bases.chain(&plan.images).flat_map(|base| &base.notes) {
        images.progress.tell(&Event::Note(note));
    }
    Ok(plan)
}

fn warn(plan: &Plan, progress: &dyn Progress) {
    for warning in &plan.warnings {
        progress.tell(&Event::Warning {
            rule: warning.rule.name(),
            span: Some(Span::line(warning.line)),
            detail: &warning.detail,
        });
    }
    warn_of_arguments(plan, progress);
}

fn warn_of_arguments(plan: &Plan, progress: &dyn Progress) {
    for name in &plan.unused_args {
        let detail = format!("`{name}` has no effect: the Dockerfile declares no such ARG");
        progress.tell(&Event::Warning { rule: "--build-arg", span: None, detail: &detail });
    }
}

/// Writes and pushes the image, then says its digest.
fn publish(settings: &Settings, images: &Images<'_>, image: &Image, clock: Clock) -> Result<(), Failure> {
    let progress = images.progress;
    let encoded = &image.encode().map_err(|error| Failure::from_error(&error))?;
    images.keep(encoded).map_err(|error| Failure::from_error(&error))?;
    if settings.layout.is_some() || settings.archive.is_some() {
        images.complete(image, encoded).map_err(|error| service_failure(&*error))?;
    }
    let created = image.config().created.clone().unwrap_or_else(|| rfc3339(clock.now()));
    let exports = [Export { content: Content::Image(encoded), names: &settings.names }];
    let blobs = images.store.blobs();
    if let Some(path) = &settings.layout {
        twice_if_damaged(images, image, encoded, || layout::write(path, &exports, blobs, &created))
            .map_err(|failure| failure.of_flag("--oci-layout-path"))?;
        progress.tell(&Event::Note(&format!("wrote the OCI layout {}", path.display())));
    }
    if let Some(path) = &settings.archive {
        twice_if_damaged(images, image, encoded, || archive::write(path, &exports, blobs, &created))
            .map_err(|failure| failure.of_flag("--tar-path"))?;
        progress.tell(&Event::Note(&format!("wrote the archive {}", path.display())));
    }
    push(images, image, encoded, &settings.push, progress)?;
    let digest = &encoded.manifest.digest;
    if let Some(path) = &settings.digest_file {
        write_digest(path, &digest.to_string())?;
    }
    super::print(&format!("{digest}\n"))
}

/// Writes an output; when that finds a damaged layer, once more after that was fetched again.
fn twice_if_damaged(
    images: &Images<'_>,
    image: &Image,
    encoded: &EncodedImage,
    write: impl Fn() -> Result<(), ExportError>,
) -> Result<(), Failure> {
    let written = match write() {
        Err(ExportError::Store(StoreError::Corrupt(mismatch))) => {
            images.complete(image, encoded).map_err(|error| service_failure(&*error))?;
            match write() {
                // One of this build's own, which nobody else has.
                Err(ExportError::Store(StoreError::Missing(_))) => Err(StoreError::Corrupt(mismatch).into()),
                again => again,
            }
        }
        once => once,
    };
    written.map_err(|error| Failure::from_error(&error))
}

/// Every destination has all blobs before the first tag is moved: where one can't be had, all tags stay as they were.
fn push(
    images: &Images<'_>,
    image: &Image,
    encoded: &EncodedImage,
    destinations: &[Reference],
    progress: &dyn Progress,
) -> Result<(), Failure> {
    for destination in destinations {
        progress.tell(&Event::Note(&format!("pushing {}", destination.familiar())));
        images
            .upload(image, encoded, destination)
            .map_err(|error| service_failure(&*error).of_flag("--destination"))?;
    }
    for destination in destinations {
        images
            .name(encoded, destination)
            .map_err(|error| service_failure(&*error).of_flag("--destination"))?;
        let name = destination.familiar();
        progress.tell(&Event::Note(&format!("pushed {name}@{}", encoded.manifest.digest)));
    }
    Ok(())
}

/// What would be in the way of an output is found before anything is built.
fn check_outputs(settings: &Settings, found: &FoundDockerfile) -> Result<(), Failure> {
    if let Some(path) = &settings.layout {
        layout::check(path).map_err(|error| Failure::from_error(&error).of_flag("--oci-layout-path"))?;
    }
    for (flag, path) in [("--tar-path", &settings.archive), ("--digest-file", &settings.digest_file)] {
        if let Some(path) = path.as_ref().filter(|path| path.is_dir()) {
            let message = format!("`{}` is a directory, expected the name of a file", path.display());
            return Err(Failure::new(message).of_flag(flag));
        }
    }
    if let Some(path) = &settings.digest_file {
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let existing = absolute.ancestors().skip(1).find(|directory| directory.exists());
        if let Some(file) = existing.filter(|directory| !directory.is_dir()) {
            let message =
                format!("`{}` cannot be made: `{}` is not a directory", path.display(), file.display());
            return Err(Failure::new(message).of_flag("--digest-file"));
        }
    }
    let mut taken = vec![(real(&found.path), "the Dockerfile")];
    let store = real(&settings.store);
    for (flag, path) in settings.outputs() {
        let place = real(path);
        if place.starts_with(&store) {
            let message = format!("`{}` is in the store", path.display());
            return Err(Failure::new(message)
                .of_flag(flag)
                .hint("write it somewhere else: the store is builder's own"));
        }
        if let Some((_, other)) = taken.iter().find(|(known, _)| *known == place) {
            let message = format!("`{}` would overwrite {other}", path.display());
            return Err(Failure::new(message).of_flag(flag));
        }
        taken.push((place, flag));
    }
    Ok(())
}

/// Where `path` really is; what of it does not exist yet is taken as it stands.
fn real(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for ancestor in absolute.ancestors() {
        #[expect(
            clippy::disallowed_methods,
            reason = "paths of the user's flags, to be compared and not to be opened"
        )]
        let real = std::fs::canonicalize(ancestor);
        if let (Ok(real), Ok(rest)) = (real, absolute.strip_prefix(ancestor)) {
            return if rest.as_os_str().is_empty() { real } else { real.join(rest) };
        }
    }
    absolute
}

/// Makes the directory for the digest file.
fn make_parent(path: &Path) -> Result<(), Failure> {
    let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) else { return Ok(()) };
    std::fs::create_dir_all(parent).map_err(|error| {
        Failure::new(format!("cannot make the directory `{}`: {error}", parent.display()))
            .of_flag("--digest-file")
    })
}

/// The digest alone, without a line feed, as kaniko writes it. A file that is there is
/// written to, not replaced: in Kubernetes it may be the mount `/dev/termination-log`.
fn write_digest(path: &Path, digest: &str) -> Result<(), Failure> {
    make_parent(path)?;
    let is_new = !path.exists();
    overwrite(path, digest.as_bytes()).map_err(|source| {
        if is_new {
            // An empty file would be taken for a digest.
            let _ = std::fs::remove_file(path);
        }
        let error = ExportError::Io { action: "write", path: path.to_owned(), source };
        Failure::from_error(&error).of_flag("--digest-file")
    })
}

/// Writes a small file over what is there, cutting that off last: a full disk does not take what was there before.
fn overwrite(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
    file.write_all(content)?;
    // A pipe or terminal has no end.
    if file.metadata()?.is_file() { file.set_len(content.len() as u64) } else { Ok(()) }
}

/// Adds the lines of the Dockerfile and what to do.
fn build_failure(error: &BuildError, found: &FoundDockerfile) -> Failure {
    let mut failure = Failure::from_error(error);
    failure.excerpt =
        error.span.map(|span| Excerpt::of(&found.path.display().to_string(), &found.content, span));
    match &error.kind {
        BuildErrorKind::Process { exit, free, .. } => {
            failure.code = match exit {
                Exit::Code(code) => *code,
                Exit::Signal(_) => 255,
            };
            failure.trouble = Some(Trouble::Step(*free));
        }
        BuildErrorKind::Epoch(_) => {
            failure = failure.hint("give seconds since 1970 as one number");
            if error.span.is_none() {
                failure = failure.of_flag("--build-arg");
            }
        }
        BuildErrorKind::TooManyLayers { most, .. } => {
            failure.hint = hint_for_layers(*most).map(str::to_owned);
        }
        BuildErrorKind::Target { .. } => failure = failure.of_flag("--target"),
        BuildErrorKind::SecretMissing(id) => {
            failure = failure
                .hint(format!("pass it with `--secret id={id},src=FILE` or `--secret id={id},env=NAME`"));
        }
        BuildErrorKind::Sandbox(SandboxError::Start(StartProblem::Missing { program }))
            if program == DEFAULT_SHELL =>
        {
            failure.hint = Some(
                "RUN and a command line needs a shell: take a base that has one, or write RUN [\"program\", \"argument\"]"
                    .to_owned(),
            );
        }
        BuildErrorKind::Emulation { fix, .. } => failure.hint = Some(fix.clone()),
        BuildErrorKind::Image { source, .. } => failure.hint = hint_of(&**source).or(failure.hint),
        BuildErrorKind::Source { written, place, excluded, .. } => {
            failure.hint = source_hint(&written.to_string(), place, excluded.as_deref());
        }
        _ => {}
    }
    failure
}

fn source_hint(written: &str, place: &str, excluded: Option<&build::copy::Excluded>) -> Option<String> {
    match excluded {
        Some(rule) => {
            Some(format!("add `!{written}` at the end of `{}` to have it in the context", rule.file))
        }
        None if place == "the build context" => {
            Some("sources are relative to the build context, not to the Dockerfile".to_owned())
        }
        None => None,
    }
}

fn hint_of(error: &(dyn std::error::Error + Send + Sync + 'static)) -> Option<String> {
    if let Some(transfer) = error.downcast_ref::<TransferError>() {
        return transfer.hint();
    }
    if let Some(problem) = error.downcast_ref::<ImageProblem>() {
        return image_hint(problem).map(str::to_owned);
    }
    None
}

fn hint_for_layers(most: usize) -> Option<&'static str> {
    (most == MAX_LAYERS).then_some("overlayfs stacks no more than that; --snapshotter=native takes more")
}

fn image_hint(problem: &ImageProblem) -> Option<&'static str> {
    match problem {
        ImageProblem::NoPlatform { .. } => {
            Some("name one of these with --custom-platform, or see --platform-match")
        }
        ImageProblem::Unfit(_) => {
            Some("take another base, another --custom-platform, or --platform-match=none")
        }
        ImageProblem::Layers { most, .. } => hint_for_layers(*most),
        ImageProblem::MediaType(_) => None,
    }
}

fn service_failure(error: &(dyn std::error::Error + Send + Sync + 'static)) -> Failure {
    let failure = Failure::from_error(error);
    match hint_of(error) {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}
