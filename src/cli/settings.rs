//! Arguments and environment, turned into values; the only reader of the environment.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::num::NonZeroUsize;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::Access;

use super::args::{BuildArgs, PlatformArgs, RegistryArgs, ShownArgs};
use super::contexts::{self, GivenFiles};
use super::failure::Failure;
use super::isolation;
use super::limits::Limits;
use super::outputs::{Outputs, check_not_private};
use super::progress::{Mode, Verbosity};
use super::run_settings::{self, Allowed};
use super::secrets;
use super::snapshotter::{self, Preference, word};
use super::ssh;
use crate::build::PlanRequest;
use crate::build::clock::Clock;
use crate::build::network::{HostNetwork, Networks};
use crate::build::services::Reuse;
use crate::build::step::Layering;
use crate::context::{GitOptions, UrlSource};
use crate::dockerfile::Network;
use crate::http::{self, Pem, Proxies};
use crate::image::matching::{Asked, MatchMode};
use crate::image::platform::{Platform, PlatformFields, Requested, check_written};
use crate::registry::{ClientOptions, ConfigFile, Helpers, Insecure};
use crate::sandbox::emulation::{self, OWN_PLACE};
use crate::sandbox::probe::Hints;
use crate::snapshot::native::Comparison;
use crate::transfer::Pull;

/// Where kaniko looks for its context, and what its users' pods mount.
const DEFAULT_CONTEXT: &str = "/workspace";

/// The store of root, and of who has no home: where pods mount a volume for it.
pub(super) const ROOT_STORE: &str = "/var/lib/builder";

/// The largest file of settings that is read, in bytes.
const LARGEST_FILE: u64 = 8 << 20;

/// What the process was started with.
pub(super) struct Environment(BTreeMap<OsString, OsString>);

impl Environment {
    /// One with these variables alone.
    #[cfg(test)]
    pub(super) fn of(pairs: &[(&str, &str)]) -> Self {
        Self(pairs.iter().map(|(name, value)| (name.into(), value.into())).collect())
    }

    /// Reads it; called once.
    pub(super) fn read() -> Self {
        #[expect(clippy::disallowed_methods, reason = "the one place where the environment is read")]
        Self(std::env::vars_os().collect())
    }

    /// A variable, be it empty.
    pub(super) fn value(&self, name: &str) -> Option<&OsStr> {
        self.0.get(OsStr::new(name)).map(OsString::as_os_str)
    }

    /// A variable that is set to something.
    fn get(&self, name: &str) -> Option<&OsStr> {
        self.value(name).filter(|value| !value.is_empty())
    }

    pub(super) fn text(&self, name: &str) -> Option<String> {
        self.get(name).map(|value| value.to_string_lossy().into_owned())
    }

    /// Whether the user wants no colour (no-color.org).
    pub(super) fn forbids_colour(&self) -> bool {
        self.get("NO_COLOR").is_some() || self.get("TERM") == Some(OsStr::new("dumb"))
    }

    /// What it says of what is around this process.
    pub(super) fn hints(&self) -> Hints {
        let is_set = |name| self.get(name).is_some();
        Hints { kubernetes: is_set("KUBERNETES_SERVICE_HOST"), container: is_set("container") }
    }

    /// A variable in its upper or lower-case spelling.
    fn either(&self, name: &str) -> Option<String> {
        self.text(name).or_else(|| self.text(&name.to_ascii_lowercase()))
    }
}

/// Everything that a build is told.
pub(super) struct Settings {
    /// What to build, for the first platform.
    pub(super) request: PlanRequest,
    /// All platforms.
    pub(super) platforms: Platforms,
    /// The directory of the build context; none where there is only a Dockerfile.
    pub(super) context: Option<PathBuf>,
    /// Whether anybody named that directory.
    pub(super) context_given: Given,
    /// Where the files of named contexts are, by number.
    pub(super) context_files: BTreeMap<usize, GivenFiles>,
    /// The Dockerfile.
    pub(super) dockerfile: GivenDockerfile,
    /// What comes out.
    pub(super) outputs: Outputs,
    /// The store.
    pub(super) store: PathBuf,
    /// How steps are kept apart.
    pub(super) isolation: isolation::Preference,
    /// Where emulators are.
    pub(super) emulators: emulation::Places,
    /// What the environment says of what is around.
    pub(super) hints: Hints,
    /// How the files of stages are kept.
    pub(super) snapshotter: Preference,
    /// What is looked at after a step, where that is not only what it wrote; none if the user has not said.
    pub(super) comparison: Option<Comparison>,
    /// Whether results of earlier builds are used.
    pub(super) reuse: Reuse,
    /// Where bases are looked for.
    pub(super) pull: Pull,
    /// How many stages are built at once.
    pub(super) jobs: NonZeroUsize,
    /// How registries are spoken to.
    pub(super) client: ClientOptions,
    /// How git is run.
    pub(super) git: GitOptions,
    /// What `--mount=type=secret` may ask for.
    pub(super) secrets: Vec<secrets::GivenSecret>,
    /// What `--mount=type=ssh` may ask for.
    pub(super) agents: Vec<ssh::GivenAgent>,
    /// How much there may be of what is read and written.
    pub(super) limits: Limits,
    /// How much to say.
    pub(super) verbosity: Verbosity,
    /// How progress is shown.
    pub(super) progress: Mode,
    /// What to warn about before anything else.
    pub(super) warnings: Vec<String>,
    /// Who says what time it is.
    pub(super) epoch: EpochFrom,
}

/// Where `SOURCE_DATE_EPOCH` is from, if it is a build argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EpochFrom {
    /// `--build-arg`.
    Flag,
    /// The environment.
    Environment,
}

/// The variable.
const EPOCH: &str = "SOURCE_DATE_EPOCH";

/// Where the Dockerfile is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum GivenDockerfile {
    /// Where it usually is.
    Usual,
    /// In this file.
    File(PathBuf),
    /// On standard input.
    StandardInput,
    /// At a URL.
    Url(UrlSource),
}

impl GivenDockerfile {
    /// The file that was named.
    pub(super) fn file(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            Self::Usual | Self::StandardInput | Self::Url(_) => None,
        }
    }
}

/// Whether something was given, or is the default.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Given {
    /// It was.
    Yes,
    /// It is the default.
    No,
}

/// Whether an image is to come out.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// `builder build`
    Build,
    /// `builder plan`: destinations are not needed.
    Plan,
}

impl Settings {
    /// Checks everything that can be checked without looking at the context.
    pub(super) fn resolve(
        args: &BuildArgs,
        environment: &Environment,
        purpose: Purpose,
    ) -> Result<Self, Failure> {
        let verbosity = verbosity(&args.shown)?;
        let mut warnings = Vec::new();
        let host = host_platform();
        let (platforms, asked) = platforms(&args.platform, &host, &mut warnings)?;
        let mode = match_mode(&args.platform)?;
        let normalised = platforms.normalised();
        let outputs = Outputs::resolve(args, &normalised, purpose, &mut warnings)?;
        let (build_args, epoch) = build_args(&args.build_arg, environment)?;
        let allowed = Allowed::parse(&args.allow)?;
        let snapshotter = snapshotter_preference(args.snapshotter.as_deref(), environment)?;
        let mut contexts = contexts::parse(&args.build_context, &host)?;
        warnings.append(&mut contexts.warnings);
        let (context, dockerfile) = sources(args)?;
        let mut client = client(&args.registry, environment)?;
        client.insecure.registries.extend(outputs.insecure.iter().cloned());
        let agents = ssh::parse(&args.ssh, environment)?;
        let settings = Self {
            request: PlanRequest {
                build_args,
                target: args.target.clone().filter(|target| !target.is_empty()),
                contexts: contexts.names,
                labels: labels(&args.label)?,
                platform: platforms.first().clone(),
                asked,
                mode,
                host,
                layering: if args.single_snapshot { Layering::OncePerStage } else { Layering::EachStep },
                most_layers: snapshotter.most_layers(),
                networks: networks(args, &allowed)?,
                run: run_settings::parse(args, &allowed)?,
                no_cache: no_cache_filter(args)?,
                clock: if args.reproducible { Clock::Fixed(0) } else { Clock::Machine },
                plans: NonZeroUsize::MIN.saturating_add(platforms.others.len()),
            },
            platforms,
            context,
            context_given: match (&args.context, &args.positional_context) {
                (None, None) => Given::No,
                _ => Given::Yes,
            },
            context_files: contexts.files,
            dockerfile,
            outputs,
            store: store(args.store.as_deref(), environment)?,
            isolation: isolation_preference(args.isolation.as_deref(), environment)?,
            emulators: emulators(args.emulator_dir.as_deref(), environment)?,
            hints: environment.hints(),
            snapshotter,
            comparison: args.snapshot_mode.as_deref().map(snapshotter::comparison).transpose()?,
            reuse: if args.no_cache { Reuse::No } else { Reuse::Yes },
            pull: if args.pull { Pull::Always } else { Pull::Missing },
            jobs: jobs(args.jobs)?,
            git: git(environment, &client, &agents)?,
            client,
            secrets: secrets::parse(&args.secret, environment, &mut warnings)?,
            agents,
            limits: limits(&args.shown, environment)?,
            verbosity,
            progress: progress(&args.shown, environment)?,
            warnings,
            epoch,
        };
        let given = std::iter::once(("--store", settings.store.as_path()));
        let context = settings.context.as_deref().map(|path| ("--context", path));
        let dockerfile = settings.dockerfile.file().map(|path| ("--dockerfile", path));
        let contexts = settings.context_files.values().filter_map(GivenFiles::directory);
        let contexts = contexts.map(|directory| ("--build-context", directory));
        check_not_private(
            given.chain(context).chain(contexts).chain(dockerfile).chain(settings.outputs.paths()),
        )?;
        Ok(settings)
    }
}

/// This machine.
pub(super) fn host_platform() -> Platform {
    let cpuinfo = || std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    Platform::host(std::env::consts::OS, std::env::consts::ARCH, cpuinfo).normalise()
}

/// How much to say.
pub(super) fn verbosity(args: &ShownArgs) -> Result<Verbosity, Failure> {
    args.verbosity.parse().map_err(|message: String| Failure::new(message).of_flag("--verbosity"))
}

/// How much there may be of what is read and written.
pub(super) fn limits(args: &ShownArgs, environment: &Environment) -> Result<Limits, Failure> {
    Limits::resolve(environment.text("BUILDER_LIMITS").as_deref(), &args.limit)
}

/// `--platform-match`.
pub(super) fn match_mode(args: &PlatformArgs) -> Result<MatchMode, Failure> {
    args.platform_match.parse().map_err(|error| Failure::from_error(&error).of_flag("--platform-match"))
}

/// The platforms that are asked for, in lists, or one in parts.
pub(super) fn platforms(
    args: &PlatformArgs,
    host: &Platform,
    warnings: &mut Vec<String>,
) -> Result<(Platforms, Asked), Failure> {
    if !args.custom_platform_deprecated.is_empty() {
        warnings.push("--customPlatform is deprecated, use --custom-platform".to_owned());
    }
    // kaniko lets the old spelling win where both are given.
    let given = [&args.custom_platform_deprecated, &args.custom_platform];
    let mut texts = given.into_iter().find(|given| !given.is_empty()).into_iter().flatten();
    let parts = [("--os", &args.os), ("--arch", &args.arch), ("--variant", &args.variant)];
    let part = parts.iter().find(|(_, value)| value.is_some());
    let first = match (texts.next(), part) {
        (None, None) => {
            let host = Requested { asked: host.clone(), normalised: host.clone() };
            return Ok((Platforms { first: host, others: Vec::new() }, Asked::ByDefault));
        }
        (None, Some(_)) => {
            let first = platform_of_parts(parts, host)?;
            return Ok((Platforms { first, others: Vec::new() }, Asked::Explicitly));
        }
        (Some(text), Some((flag, _))) => {
            let message = format!("--custom-platform {text} names the platform already");
            return Err(Failure::new(message).of_flag(flag).hint("give the platform as one, or in parts"));
        }
        (Some(first), None) => first,
    };
    let mut listed = first.split(',').chain(texts.flat_map(|text| text.split(',')));
    let mut read = |text: &str| -> Result<Requested, Failure> {
        let requested = requested_platform(text.trim_ascii(), host)?;
        // Docker takes it, and on `scratch` nobody would notice.
        if let Err(error) = check_written(&PlatformFields::from(&requested.normalised)) {
            warnings.push(format!("--custom-platform {}: {error}", text.trim_ascii()));
        }
        Ok(requested)
    };
    let first = read(listed.next().unwrap_or_default())?;
    let mut platforms = Platforms { first, others: Vec::new() };
    for text in listed {
        let requested = read(text)?;
        // As for docker, what is named twice is built once.
        if platforms.iter().all(|known| known.normalised != requested.normalised) {
            platforms.others.push(requested);
        }
        if platforms.others.len() >= MOST_PLATFORMS {
            let message = format!("images for more than {MOST_PLATFORMS} platforms cannot be built at once");
            return Err(Failure::new(message).of_flag("--custom-platform"));
        }
    }
    Ok((platforms, Asked::Explicitly))
}

/// The platform of `--os`, `--arch` and `--variant`. What is not there is this machine's; a variant belongs to the
/// architecture that is named, or else to this machine's.
fn platform_of_parts(parts: [(&str, &Option<String>); 3], host: &Platform) -> Result<Requested, Failure> {
    for (flag, value) in parts {
        let Some(value) = value else { continue };
        if value.is_empty() || value.contains(['/', ',', ':']) {
            let message = format!("`{}` is no part of a platform", crate::image::shown(value));
            return Err(Failure::new(message)
                .of_flag(flag)
                .hint("for instance --os linux --arch arm --variant v7"));
        }
    }
    let [os, architecture, variant] = parts.map(|(_, value)| value.as_deref());
    if let (None, Some(variant)) = (architecture, variant) {
        let fields = PlatformFields {
            architecture: host.architecture.clone(),
            variant: Some(variant.to_lowercase()),
            ..PlatformFields::default()
        };
        check_written(&fields).map_err(|error| {
            let hint = "name its architecture, too, for instance --arch arm --variant v7";
            Failure::from_error(&error).of_flag("--variant").hint(hint)
        })?;
    }
    let (os, architecture) = (os.unwrap_or(&host.os), architecture);
    let text = match (architecture, variant) {
        (Some(architecture), Some(variant)) => format!("{os}/{architecture}/{variant}"),
        (Some(architecture), None) => format!("{os}/{architecture}"),
        (None, Some(variant)) => format!("{os}/{}/{variant}", host.architecture),
        // What plain `arm` means anyway is not written.
        (None, None) => match host.variant.as_deref().filter(|variant| *variant != "v7") {
            Some(variant) => format!("{os}/{}/{variant}", host.architecture),
            None => format!("{os}/{}", host.architecture),
        },
    };
    let flags: Vec<&str> = parts.iter().filter(|(_, value)| value.is_some()).map(|(flag, _)| *flag).collect();
    Requested::parse(&text, host).map_err(|error| {
        Failure::from_error(&error)
            .of_flag(&flags.join(" "))
            .hint("for instance --os linux --arch arm --variant v7")
    })
}

/// The most platforms of a build. Each has a plan of its own.
const MOST_PLATFORMS: usize = 32;

/// What a build is for: at least one platform, each once.
#[derive(Debug, Clone)]
pub(super) struct Platforms {
    first: Requested,
    others: Vec<Requested>,
}

impl Platforms {
    /// The only one, where there is to be one.
    pub(super) fn only(&self) -> Result<&Requested, Failure> {
        if self.others.is_empty() {
            return Ok(&self.first);
        }
        let listed: Vec<String> = self.iter().map(|platform| platform.normalised.to_string()).collect();
        let message = format!("{} are several platforms, and one image is wanted", listed.join(", "));
        Err(Failure::new(message).of_flag("--custom-platform").hint("name one of them"))
    }

    /// As they are compared.
    pub(super) fn normalised(&self) -> Vec<Platform> {
        self.iter().map(|platform| platform.normalised.clone()).collect()
    }

    pub(super) fn first(&self) -> &Requested {
        &self.first
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Requested> {
        std::iter::once(&self.first).chain(&self.others)
    }
}

/// Reads one platform of `--custom-platform`.
pub(super) fn requested_platform(text: &str, host: &Platform) -> Result<Requested, Failure> {
    if text.is_empty() {
        return Err(Failure::new("a platform is empty")
            .of_flag("--custom-platform")
            .hint("for instance linux/arm/v7"));
    }
    Requested::parse(text, host).map_err(|error| {
        let failure = Failure::from_error(&error).of_flag("--custom-platform");
        if error.has_advice() { failure } else { failure.hint("for instance linux/arm/v7") }
    })
}

/// The most stages that are built at once: each takes memory, several threads and processes.
const MOST_JOBS: NonZeroUsize = NonZeroUsize::new(64).unwrap();

/// How many stages are built at once, where `given` of them are asked for. A CPU that the container may not use does not count.
fn jobs(given: Option<usize>) -> Result<NonZeroUsize, Failure> {
    match given.map(NonZeroUsize::new) {
        Some(Some(jobs)) if jobs > MOST_JOBS => {
            let message = format!("{jobs} stages cannot be built at once, at most {MOST_JOBS} can");
            Err(Failure::new(message).of_flag("--jobs").hint("0 takes as many as there can be"))
        }
        Some(Some(jobs)) => Ok(jobs),
        Some(None) => Ok(MOST_JOBS),
        None => Ok(std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN).min(MOST_JOBS)),
    }
}

/// The build context and the Dockerfile. As for docker, `-` alone is a Dockerfile on standard input, and nothing else.
fn sources(args: &BuildArgs) -> Result<(Option<PathBuf>, GivenDockerfile), Failure> {
    let dockerfile = dockerfile(args)?;
    let given = args.context.as_ref().or(args.positional_context.as_ref());
    if given.is_none_or(|given| given != "-") {
        return Ok((Some(context(given)?), dockerfile));
    }
    match dockerfile {
        GivenDockerfile::Usual => Ok((None, GivenDockerfile::StandardInput)),
        GivenDockerfile::StandardInput => {
            Err(Failure::new("standard input cannot be both the build context and the Dockerfile")
                .hint("name a directory as the context, or leave --dockerfile out to have an empty one"))
        }
        GivenDockerfile::File(_) | GivenDockerfile::Url(_) => Err(Failure::new(
            "the context `-` is a Dockerfile on standard input, and --dockerfile names another",
        )
        .hint("archives as contexts are not supported yet: unpack it and name the directory")),
    }
}

fn context(given: Option<&OsString>) -> Result<PathBuf, Failure> {
    let Some(given) = given else { return Ok(PathBuf::from(DEFAULT_CONTEXT)) };
    let text = given.to_string_lossy();
    if let Some(directory) = text.strip_prefix("dir://") {
        return Ok(PathBuf::from(directory));
    }
    match text.split_once("://") {
        Some((scheme, _)) => {
            Err(Failure::new(format!("a build context from `{scheme}://` is not supported yet"))
                .hint("fetch it first and pass the directory with --context"))
        }
        None => Ok(PathBuf::from(given)),
    }
}

fn dockerfile(args: &BuildArgs) -> Result<GivenDockerfile, Failure> {
    let Some(path) = &args.dockerfile else { return Ok(GivenDockerfile::Usual) };
    let text = path.to_string_lossy();
    if let Some(url) = UrlSource::parse(&text) {
        return Ok(GivenDockerfile::Url(url));
    }
    match text.as_ref() {
        "-" | "/dev/stdin" => Ok(GivenDockerfile::StandardInput),
        _ => Ok(GivenDockerfile::File(path.clone())),
    }
}

fn build_args(
    given: &[String],
    environment: &Environment,
) -> Result<(BTreeMap<String, String>, EpochFrom), Failure> {
    let mut values = BTreeMap::new();
    for argument in given {
        if argument.is_empty() || argument.starts_with('=') {
            return Err(Failure::new(format!("`{argument}` has no name: expected `NAME=VALUE` or `NAME`"))
                .of_flag("--build-arg"));
        }
        match argument.split_once('=') {
            Some((name, value)) => {
                values.insert(name.to_owned(), value.to_owned());
            }
            // As docker does: a variable that is not set is not given either.
            None => {
                if let Some(value) = environment.value(argument) {
                    values.insert(argument.clone(), value.to_string_lossy().into_owned());
                }
            }
        }
    }
    let is_named = |argument: &String| argument.strip_prefix(EPOCH).is_some_and(|rest| rest.starts_with('='));
    let from = if given.iter().any(is_named) { EpochFrom::Flag } else { EpochFrom::Environment };
    // As docker's client does.
    if let Some(epoch) = environment.text(EPOCH) {
        values.entry(EPOCH.to_owned()).or_insert(epoch);
    }
    Ok((values, from))
}

fn labels(given: &[String]) -> Result<Vec<(String, String)>, Failure> {
    given
        .iter()
        .map(|label| match label.split_once('=') {
            Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
            _ => {
                Err(Failure::new(format!("`{label}` is not a label, expected `name=value`"))
                    .of_flag("--label"))
            }
        })
        .collect()
}

/// `--no-cache-filter`. As for docker, it is one or the other.
fn no_cache_filter(args: &BuildArgs) -> Result<BTreeSet<String>, Failure> {
    let failed = |message| Err(Failure::new(message).of_flag("--no-cache-filter"));
    if args.no_cache && !args.no_cache_filter.is_empty() {
        return failed("it says nothing beside --no-cache, which runs every step of all stages");
    }
    if args.no_cache_filter.iter().any(String::is_empty) {
        return failed("the name of a stage is empty");
    }
    Ok(args.no_cache_filter.iter().cloned().collect())
}

/// `--network`, with what is `allowed` besides. As with docker, who asks for the host's network has allowed it.
fn networks(args: &BuildArgs, allowed: &Allowed) -> Result<Networks, Failure> {
    let modes = [("default", Network::Default), ("none", Network::None), ("host", Network::Host)];
    let unnamed = word("--network", "network mode", &args.network, &modes)?;
    let host = if unnamed == Network::Host { HostNetwork::Allowed } else { allowed.host };
    Ok(Networks { unnamed, host })
}

/// `--snapshotter`, or what the environment says.
pub(super) fn snapshotter_preference(
    flag: Option<&str>,
    environment: &Environment,
) -> Result<Preference, Failure> {
    let named = named(("--snapshotter", flag), "BUILDER_SNAPSHOTTER", environment);
    named.map_or(Ok(Preference::Auto), |(source, text)| Preference::parse(source, &text))
}

/// `--isolation`, or what the environment says.
pub(super) fn isolation_preference(
    flag: Option<&str>,
    environment: &Environment,
) -> Result<isolation::Preference, Failure> {
    let named = named((isolation::FLAG, flag), "BUILDER_ISOLATION", environment);
    named
        .map_or(Ok(isolation::Preference::Auto), |(source, text)| isolation::Preference::parse(source, &text))
}

/// Where emulators are: in `--emulator-dir` or what the environment says, else where builder's own image has them, and in
/// the directories of programs.
pub(super) fn emulators(
    flag: Option<&Path>,
    environment: &Environment,
) -> Result<emulation::Places, Failure> {
    let variable = "BUILDER_EMULATOR_DIR";
    let named = match flag {
        Some(path) => Some(("--emulator-dir", path.to_owned())),
        None => environment.get(variable).map(|path| (variable, path.into())),
    };
    if let Some((source, path)) = &named
        && !path.is_dir()
    {
        return Err(Failure::new(format!("`{}` is no directory", path.display())).of_flag(source));
    }
    let path = environment.get("PATH").unwrap_or_default();
    let programs = std::env::split_paths(path).filter(|directory| directory.is_absolute());
    Ok(emulation::Places {
        named: named.map(|(_, path)| path),
        usual: std::iter::once(OWN_PLACE.into()).chain(programs).collect(),
    })
}

/// What a flag or else a variable has been given, with the name of the one that was.
fn named(
    (flag, given): (&'static str, Option<&str>),
    variable: &'static str,
    environment: &Environment,
) -> Option<(&'static str, String)> {
    let given = given.map(|text| (flag, text.to_owned()));
    given.or_else(|| environment.text(variable).map(|text| (variable, text)))
}

/// The store: the one that was `given`, that of the environment, or the usual one.
pub(super) fn store(given: Option<&Path>, environment: &Environment) -> Result<PathBuf, Failure> {
    if let Some(path) = given {
        return absolute(path);
    }
    if let Some(path) = environment.get("BUILDER_STORE") {
        return absolute(Path::new(path));
    }
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from(ROOT_STORE));
    }
    store_of_user(environment, |path| {
        path.is_dir() && rustix::fs::access(path, Access::WRITE_OK | Access::EXEC_OK).is_ok()
    })
}

/// The store of an ordinary user, who can write to the directories for which `is_writable` says so.
fn store_of_user(environment: &Environment, is_writable: impl Fn(&Path) -> bool) -> Result<PathBuf, Failure> {
    let directory = |name: &str| environment.get(name).map(PathBuf::from).filter(|path| path.is_absolute());
    // The XDG base directory specification wants relative paths to be ignored.
    let data = directory("XDG_DATA_HOME");
    // Containers say `/` of users that no passwd file knows.
    let home = directory("HOME").filter(|home| home.parent().is_some());
    match data.or_else(|| home.map(|home| home.join(".local/share"))) {
        Some(directory) => Ok(directory.join("builder")),
        None if is_writable(Path::new(ROOT_STORE)) => Ok(PathBuf::from(ROOT_STORE)),
        None => {
            let message =
                "there is no place for the store: neither XDG_DATA_HOME nor HOME names a directory for it";
            let hint = format!("name a directory with --store; in a pod, mount a volume at `{ROOT_STORE}`");
            Err(Failure::new(message).hint(hint))
        }
    }
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path)
        .map_err(|error| Failure::new(format!("`{}` is not a usable path: {error}", path.display())))
}

/// The `git` of this machine, which is told of proxies and certificates what our own requests are, and of the agent that
/// RUN may have, too.
fn git(
    environment: &Environment,
    client: &ClientOptions,
    agents: &[ssh::GivenAgent],
) -> Result<GitOptions, Failure> {
    let known_hosts = environment.get("HOME").map(|home| Path::new(home).join(".ssh/known_hosts"));
    // It is run in another directory.
    let agent = ssh::default_socket(agents).map(absolute).transpose()?;
    Ok(GitOptions {
        path: client.helpers.path.clone(),
        proxies: client.http.proxies.clone(),
        certificates: client.http.certificates.clone(),
        agent,
        known_hosts: known_hosts.filter(|path| path.is_file()),
    })
}

pub(super) fn client(args: &RegistryArgs, environment: &Environment) -> Result<ClientOptions, Failure> {
    let http = http::Options {
        certificates: certificates(environment)?,
        proxies: Proxies {
            http: environment.either("HTTP_PROXY"),
            https: environment.either("HTTPS_PROXY"),
            none: environment.either("NO_PROXY").unwrap_or_default(),
        },
        ..http::Options::default()
    };
    Ok(ClientOptions {
        http,
        insecure: Insecure {
            registries: args
                .insecure_registry
                .iter()
                .map(|host| registry_name(host))
                .collect::<BTreeSet<_>>(),
            pull: args.insecure_pull,
            push: args.insecure,
        },
        credentials: docker_config(environment)?,
        helpers: Helpers {
            path: environment
                .get("PATH")
                .map(|path| std::env::split_paths(path).collect())
                .unwrap_or_default(),
            // They are programs of the machine and find their own settings in its environment.
            environment: environment.0.clone().into_iter().collect(),
            ..Helpers::default()
        },
        ..ClientOptions::default()
    })
}

/// A registry as people write it: with or without a scheme or a slash at the end.
fn registry_name(text: &str) -> String {
    let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://")).unwrap_or(text);
    host.trim_end_matches('/').to_owned()
}

/// `SSL_CERT_FILE` and the files of `SSL_CERT_DIR`, on top of the roots that are compiled in.
fn certificates(environment: &Environment) -> Result<Vec<Pem>, Failure> {
    let mut found = Vec::new();
    if let Some(file) = environment.get("SSL_CERT_FILE") {
        found
            .extend(read_setting("SSL_CERT_FILE", Path::new(file))?.map(|bytes| pem(Path::new(file), bytes)));
    }
    for directory in environment.get("SSL_CERT_DIR").iter().flat_map(|list| std::env::split_paths(list)) {
        let Ok(entries) = std::fs::read_dir(&directory) else { continue };
        let mut paths: Vec<PathBuf> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths.iter().filter(|path| path.is_file()) {
            let Some(bytes) = read_setting("SSL_CERT_DIR", path)? else { continue };
            if bytes.windows(22).any(|window| window == b"-----BEGIN CERTIFICATE") {
                found.push(pem(path, bytes));
            }
        }
    }
    Ok(found)
}

fn pem(path: &Path, bytes: Vec<u8>) -> Pem {
    Pem { origin: path.display().to_string(), bytes }
}

/// Docker's `config.json`: in `DOCKER_CONFIG`, else in `~/.docker`.
fn docker_config(environment: &Environment) -> Result<Option<ConfigFile>, Failure> {
    let home = environment.get("HOME").map(|home| Path::new(home).join(".docker"));
    let Some(directory) = environment.get("DOCKER_CONFIG").map(PathBuf::from).or(home) else {
        return Ok(None);
    };
    let path = directory.join("config.json");
    let bytes = read_setting("DOCKER_CONFIG", &path)?;
    Ok(bytes.map(|bytes| ConfigFile { path: path.display().to_string(), bytes }))
}

/// How progress is shown: the flag comes before the variable.
pub(super) fn progress(args: &ShownArgs, environment: &Environment) -> Result<Mode, Failure> {
    if args.quiet {
        let other = args.progress.as_deref().filter(|mode| !matches!(*mode, "quiet" | "auto"));
        return match other {
            None => Ok(Mode::Quiet),
            Some(mode) => {
                Err(Failure::new(format!("it is --progress quiet, and there is --progress {mode}"))
                    .of_flag("--quiet")
                    .hint("leave out one of them"))
            }
        };
    }
    let variable = environment.text("BUILDKIT_PROGRESS");
    let given = args.progress.as_deref().map(|text| ("--progress", text));
    let given = given.or_else(|| variable.as_deref().map(|text| ("BUILDKIT_PROGRESS", text)));
    let parsed =
        given.map(|(name, text)| text.parse().map_err(|error: String| Failure::new(error).of_flag(name)));
    let mode = parsed.unwrap_or(Ok(Mode::Auto))?;
    // It can draw nothing anew.
    let is_dumb = environment.text("TERM").as_deref() == Some("dumb");
    Ok(if is_dumb { mode.without_motion() } else { mode })
}

/// A file of settings; `None` if it isn't there.
fn read_setting(variable: &str, path: &Path) -> Result<Option<Vec<u8>>, Failure> {
    use std::io::{ErrorKind, Read as _};
    let failed = |error: &std::io::Error| {
        Failure::new(format!("cannot read `{}` ({variable}): {error}", path.display()))
    };
    // Opening a FIFO would wait for somebody who writes to it.
    if std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_fifo()) {
        return Err(Failure::new(format!("cannot read `{}` ({variable}): it is a FIFO", path.display())));
    }
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(failed(&error)),
    };
    let mut bytes = Vec::new();
    file.take(LARGEST_FILE).read_to_end(&mut bytes).map_err(|error| failed(&error))?;
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::tests::args_of_build;

    #[test]
    fn a_build_argument_without_value_is_the_environment_s_or_none() {
        let environment = Environment::of(&[("A", "1"), ("E", "")]);
        let given = ["A", "B", "C=x=y", "E"].map(str::to_owned);
        let (values, _) = build_args(&given, &environment).unwrap();
        let values: Vec<(&str, &str)> =
            values.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(values, [("A", "1"), ("C", "x=y"), ("E", "")]);
    }

    #[test]
    fn who_has_no_home_has_the_store_that_pods_mount() {
        for (data, home, writable, expected) in [
            ("/d", "/h", true, Some("/d/builder")),
            ("d", "/h", true, Some("/h/.local/share/builder")),
            ("", "/h", true, Some("/h/.local/share/builder")),
            ("/", "/", true, Some("/builder")),
            ("", "/", true, Some("/var/lib/builder")),
            ("", "//", true, Some("/var/lib/builder")),
            ("d", "h", true, Some("/var/lib/builder")),
            ("", "", true, Some("/var/lib/builder")),
            ("", "/", false, None),
            ("", "", false, None),
        ] {
            let environment = Environment::of(&[("XDG_DATA_HOME", data), ("HOME", home)]);
            let asked = |path: &Path| {
                assert_eq!(path, Path::new("/var/lib/builder"));
                writable
            };
            let store = store_of_user(&environment, asked).ok();
            assert_eq!(store.as_deref(), expected.map(Path::new), "{data} {home}");
        }
    }

    #[test]
    fn nothing_is_given_where_a_container_s_files_are_kept() {
        let check = |path: &str| check_not_private([("--store", Path::new(path))]);
        for path in ["/.builder-in-place", "/.builder-in-place/store", "/tmp/../.builder-in-place/x/y"] {
            let error = check(path).unwrap_err();
            let told = format!("--store: `{path}` is in `/.builder-in-place`");
            assert_eq!(error.message, told);
        }
        for path in ["/", "/.builder-in-place-2/x", "/data/.builder-in-place"] {
            assert!(check(path).is_ok(), "{path}");
        }
    }

    #[test]
    fn a_platform_in_parts_takes_the_rest_from_this_machine() {
        let amd64 = Platform::new("linux", "amd64", None);
        let v6 = Platform::new("linux", "arm", Some("v6"));
        for (host, parts, expected) in [
            (&amd64, ["linux", "arm", "v7"], "linux/arm/v7"),
            (&amd64, ["", "arm", "v5"], "linux/arm/v5"),
            (&amd64, ["", "arm64", ""], "linux/arm64"),
            (&amd64, ["", "", "v3"], "linux/amd64/v3"),
            (&amd64, ["windows", "", ""], "windows/amd64"),
            (&amd64, ["windows(10.0.20348)", "", ""], "windows(10.0.20348)/amd64"),
            (&v6, ["linux", "", ""], "linux/arm/v6"),
            (&v6, ["", "amd64", ""], "linux/amd64"),
            (&v6, ["", "arm", ""], "linux/arm/v7"),
        ] {
            let [os, arch, variant] = parts.map(|part| (!part.is_empty()).then(|| part.to_owned()));
            let parts = [("--os", &os), ("--arch", &arch), ("--variant", &variant)];
            let platform = platform_of_parts(parts, host).expect(expected);
            assert_eq!(platform.to_string(), expected, "{parts:?}");
        }
        let (none, variant) = (None, Some("v7".to_owned()));
        let parts = [("--os", &none), ("--arch", &none), ("--variant", &variant)];
        let refused = platform_of_parts(parts, &amd64).unwrap_err();
        assert_eq!(refused.message, "--variant: `v7` is not a variant of amd64: there are v1 to v4");
        assert!(refused.hint.unwrap().contains("--arch arm --variant v7"));
    }

    #[test]
    fn platforms_come_in_lists_and_one_by_one_and_each_counts_once() {
        let read = |flags: &[&str]| -> Result<String, String> {
            let args = args_of_build(flags);
            let host = Platform::new("linux", "amd64", None);
            let read = platforms(&args.platform, &host, &mut Vec::new());
            let (platforms, asked) = read.map_err(|failure| failure.message)?;
            let listed: Vec<String> = platforms.iter().map(|one| one.normalised.to_string()).collect();
            Ok(format!("{asked:?} {}", listed.join(" ")))
        };
        for (flags, expected) in [
            (&[][..], "ByDefault linux/amd64"),
            (&["--platform=arm64,linux/arm"], "Explicitly linux/arm64 linux/arm/v7"),
            (
                &["--custom-platform=linux/arm64", "--custom-platform=linux/arm64/v8,linux/386"],
                "Explicitly linux/arm64 linux/386",
            ),
            (&["--custom-platform=arm64", "--customPlatform=arm,386"], "Explicitly linux/arm/v7 linux/386"),
            (&["--platform=linux/arm64, linux/386"], "Explicitly linux/arm64 linux/386"),
        ] {
            assert_eq!(read(flags).as_deref(), Ok(expected), "{flags:?}");
        }
        for wrong in ["", ",", "linux/arm64,", "linux/arm 64", "nonsense,linux/386"] {
            let error = read(&["--platform", wrong]).unwrap_err();
            assert!(error.starts_with("--custom-platform: "), "{wrong}: {error}");
        }
        let many: Vec<String> = (0..40).map(|number| format!("linux/arm64/v8.{number}")).collect();
        assert!(read(&["--platform", &many.join(",")]).unwrap_err().contains("more than 32"));
    }

    #[test]
    fn misspelt_platforms_are_told_of() {
        let args = args_of_build(&["--platform=linux/amd46,linux/arm/v7,linux/arm/v9,linux/arm64/v8.2"]);
        let mut warnings = Vec::new();
        platforms(&args.platform, &Platform::new("linux", "amd64", None), &mut warnings).unwrap();
        let [one, two] = &warnings[..] else { panic!("{warnings:?}") };
        assert!(one.starts_with("--custom-platform linux/amd46: `amd46` is not an architecture"), "{one}");
        assert!(two.starts_with("--custom-platform linux/arm/v9: `v9` is not a variant of arm"), "{two}");
    }

    #[test]
    fn registries_may_be_written_as_urls() {
        for text in ["r.example:5000", "http://r.example:5000/", "https://r.example:5000"] {
            assert_eq!(registry_name(text), "r.example:5000");
        }
    }

    #[test]
    fn who_set_a_variable_is_not_told_of_a_flag() {
        let environment = Environment::of(&[("BUILDER_ISOLATION", "x"), ("BUILDER_SNAPSHOTTER", "y")]);
        let message = |failure: Failure| failure.message;
        let isolation = |flag| isolation_preference(flag, &environment).map_err(message).unwrap_err();
        assert_eq!(isolation(None), "BUILDER_ISOLATION: `x` is no way to keep steps apart");
        assert_eq!(isolation(Some("z")), "--isolation: `z` is no way to keep steps apart");
        let snapshotter = snapshotter_preference(None, &environment).map_err(message).unwrap_err();
        assert_eq!(snapshotter, "BUILDER_SNAPSHOTTER: `y` is no snapshotter");
    }
}
