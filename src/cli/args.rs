//! The command line as it is typed.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::LazyLock;

use clap::{ArgAction, Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::dockerfile::{parse_bool, suggest};

/// The whole command line.
#[derive(Debug, Parser)]
#[command(
    name = "builder",
    about = "Builds container images without a daemon, for the CPU you name",
    version,
    disable_help_subcommand = true,
    subcommand_required = true,
    after_help = "The flags of build, plan and check: builder build --help",
    override_usage = "builder [build] [FLAGS] [CONTEXT]\n       builder plan [FLAGS] [CONTEXT]\n       builder check [FLAGS] [CONTEXT]\n       builder image extract [FLAGS] LAYOUT DIR\n       builder pull [FLAGS] NAME\n       builder manifest push from-spec [FLAGS] FILE\n       builder manifest push from-args [FLAGS]\n       builder manifest inspect [FLAGS] NAME\n       builder doctor [FLAGS]"
)]
pub(super) struct CommandLine {
    #[command(subcommand)]
    pub(super) command: Command,
}

/// What to do; without a word it is `build`.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Build an image and push or write it (the default)
    Build(Box<BuildArgs>),
    /// Print what a build would give as JSON, without running anything
    Plan(Box<BuildArgs>),
    /// Look for what is allowed in a Dockerfile, but probably a mistake; nothing is run
    Check(Box<CheckArgs>),
    /// Commands about images
    Image(ImageArgs),
    /// Pull the image for a platform into the store
    Pull(Box<PullArgs>),
    /// Commands about indexes of images, as manifest-tool has them
    Manifest(ManifestArgs),
    /// Say how a RUN can be kept apart here, what is in the way of better, and what is emulated
    Doctor(DoctorArgs),
    /// Print the version
    Version,
}

/// The flags of `doctor`.
#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// How to print it: text or json
    #[arg(long, short = 'o', value_name = "FORMAT", default_value = "text")]
    pub(super) output: String,

    /// Directory for blobs and unpacked layers, as for a build; it is not made [env: BUILDER_STORE] [default:
    /// /var/lib/builder]
    #[arg(long, value_name = "DIR")]
    pub(super) store: Option<PathBuf>,

    /// Directory with static programs of qemu, as for a build [env: BUILDER_EMULATOR_DIR]
    #[arg(long, value_name = "DIR")]
    pub(super) emulator_dir: Option<PathBuf>,

    /// Platform to look at besides the usual ones (repeatable); an architecture alone will do
    #[arg(long, visible_aliases = ["platform", "arch"], alias = "architecture", value_name = "OS/ARCH[/VARIANT]")]
    pub(super) custom_platform: Vec<String>,
}

/// `builder image`.
#[derive(Debug, Args)]
#[command(disable_help_subcommand = true, arg_required_else_help = true)]
pub(super) struct ImageArgs {
    #[command(subcommand)]
    pub(super) command: ImageCommand,
}

/// What to do with images.
#[derive(Debug, Subcommand)]
pub(super) enum ImageCommand {
    /// Extract the root file system of an image in an OCI layout into a new directory
    Extract(Box<ExtractArgs>),
}

/// The flags of `image extract`.
#[derive(Debug, Args)]
pub(super) struct ExtractArgs {
    /// OCI layout directory, with the image's name if there are several: PATH, PATH:NAME or oci:PATH:NAME
    #[arg(value_name = "LAYOUT")]
    pub(super) layout: OsString,

    /// Directory to make; it must not exist, or be empty
    #[arg(value_name = "DIR")]
    pub(super) directory: PathBuf,

    /// Name of the image in the layout, if there are several
    #[arg(long = "ref", value_name = "NAME")]
    pub(super) name: Option<String>,

    /// Platform to choose where there are several, for instance linux/arm/v7, or an architecture alone [default: this
    /// machine's]
    #[arg(long, visible_aliases = ["platform", "arch"], alias = "architecture", value_name = "OS/ARCH[/VARIANT]")]
    pub(super) custom_platform: Option<String>,

    /// How layers become one tree: native applies one after the other, overlayfs has the kernel merge them
    #[arg(long, value_name = "NAME", default_value = "native")]
    pub(super) snapshotter: String,

    /// A limit on what is read or written, for instance layer-bytes=200GiB (repeatable); `builder help limits` lists them
    /// [env: BUILDER_LIMITS=NAME=VALUE,…]
    #[arg(long, value_name = "NAME=VALUE")]
    pub(super) limit: Vec<String>,

    /// How much to say: trace, debug, info, warn, error, fatal or panic
    #[arg(long, short = 'v', value_name = "LEVEL", default_value = "info")]
    pub(super) verbosity: String,
}

/// `builder manifest`.
#[derive(Debug, Args)]
#[command(disable_help_subcommand = true, arg_required_else_help = true)]
pub(super) struct ManifestArgs {
    #[command(subcommand)]
    pub(super) command: ManifestCommand,
}

/// What to do with indexes.
#[derive(Debug, Subcommand)]
pub(super) enum ManifestCommand {
    /// Make an index of images that registries have, and push it
    Push(ManifestPushArgs),
    /// Print what a registry has under a name
    Inspect(Box<InspectArgs>),
}

/// The flags of `manifest push`.
#[derive(Debug, Args)]
#[command(disable_help_subcommand = true, arg_required_else_help = true)]
pub(super) struct ManifestPushArgs {
    /// What to make: docker, a manifest list, or oci, an index
    #[arg(long = "type", value_name = "TYPE", default_value = "docker", global = true)]
    pub(super) kind: String,

    #[command(subcommand)]
    pub(super) command: ManifestPushCommand,
}

/// What says what to push.
#[derive(Debug, Subcommand)]
pub(super) enum ManifestPushCommand {
    /// Of what a YAML file names
    FromSpec(Box<FromSpecArgs>),
    /// Of one image for each platform, whose names a template makes
    FromArgs(Box<FromArgsArgs>),
}

/// The flags of `manifest push from-spec`.
#[derive(Debug, Args)]
pub(super) struct FromSpecArgs {
    /// YAML file with the keys image, tags, annotations and manifests; - for standard input
    #[arg(value_name = "FILE")]
    pub(super) file: PathBuf,

    #[command(flatten)]
    pub(super) common: CombineArgs,
}

/// The flags of `manifest push from-args`.
#[derive(Debug, Args)]
pub(super) struct FromArgsArgs {
    /// Platforms that the index is to have
    #[arg(long, value_name = "OS/ARCH[/VARIANT],…", value_delimiter = ',', required = true)]
    pub(super) platforms: Vec<String>,

    /// Names of the images: the first OS, ARCH and VARIANT in it are replaced by those of each platform
    #[arg(long, value_name = "TEMPLATE")]
    pub(super) template: String,

    /// Name of the index
    #[arg(long, value_name = "NAME")]
    pub(super) target: String,

    /// Further tags of the index
    #[arg(long, value_name = "TAG,…", value_delimiter = ',')]
    pub(super) tags: Vec<String>,

    /// Annotations of the index, which --type oci can have
    #[arg(long, value_name = "KEY=VALUE,…", value_delimiter = ',')]
    pub(super) annotations: Vec<String>,

    #[command(flatten)]
    pub(super) common: CombineArgs,
}

/// The flags that both ways of `manifest push` have.
#[derive(Debug, Args)]
pub(super) struct CombineArgs {
    /// Leave out images that are not there, with a warning
    #[arg(long)]
    pub(super) ignore_missing: bool,

    #[command(flatten)]
    pub(super) registry: RegistryArgs,

    /// Directory for blobs on their way from one registry to another [env: BUILDER_STORE] [default: /var/lib/builder]
    #[arg(long, value_name = "DIR")]
    pub(super) store: Option<PathBuf>,

    #[command(flatten)]
    pub(super) shown: ShownArgs,
}

/// The flags of `manifest inspect`.
#[derive(Debug, Args)]
pub(super) struct InspectArgs {
    /// Name with tag or digest
    #[arg(value_name = "NAME")]
    pub(super) name: String,

    /// Print JSON: an index byte by byte as the registry has it, the manifest of an image with name, digest and platform
    #[arg(long)]
    pub(super) raw: bool,

    /// With --raw: the config of an image itself in the place of its descriptor
    #[arg(long)]
    pub(super) expand_config: bool,

    #[command(flatten)]
    pub(super) registry: RegistryArgs,

    #[command(flatten)]
    pub(super) shown: ShownArgs,
}

/// The flags of `pull`.
#[derive(Debug, Args)]
pub(super) struct PullArgs {
    /// Name of the image
    #[arg(value_name = "NAME")]
    pub(super) name: String,

    #[command(flatten)]
    pub(super) platform: PlatformArgs,

    #[command(flatten)]
    pub(super) registry: RegistryArgs,

    /// Directory for blobs and names of images [env: BUILDER_STORE] [default: /var/lib/builder]
    #[arg(long, value_name = "DIR")]
    pub(super) store: Option<PathBuf>,

    #[command(flatten)]
    pub(super) shown: ShownArgs,
}

/// Which platform, and how near an image's must be.
#[derive(Debug, Args)]
pub(super) struct PlatformArgs {
    /// Platform, for instance linux/arm/v7 [default: this machine's]
    #[arg(long, visible_alias = "platform", value_name = "OS/ARCH[/VARIANT]")]
    pub(super) custom_platform: Vec<String>,

    /// Deprecated spelling of --custom-platform
    #[arg(long = "customPlatform", value_name = "OS/ARCH[/VARIANT][,…]", hide = true)]
    pub(super) custom_platform_deprecated: Vec<String>,

    /// Operating system, in place of --custom-platform [default: this machine's]
    #[arg(long, value_name = "OS")]
    pub(super) os: Option<String>,

    /// Architecture, in place of --custom-platform [default: this machine's]
    #[arg(long, visible_alias = "architecture", value_name = "ARCH")]
    pub(super) arch: Option<String>,

    /// Variant of the architecture, in place of --custom-platform
    #[arg(long, value_name = "VARIANT")]
    pub(super) variant: Option<String>,

    /// How near the image's platform must be: exact, compatible, loose or none
    #[arg(long, value_name = "MODE", default_value = "compatible")]
    pub(super) platform_match: String,
}

/// How registries are spoken to.
#[derive(Debug, Args)]
pub(super) struct RegistryArgs {
    /// Talk plain HTTP with registries, whatever is read or written
    #[arg(long)]
    pub(super) insecure: bool,

    /// Talk plain HTTP with registries for what is read
    #[arg(long)]
    pub(super) insecure_pull: bool,

    /// Registry to talk plain HTTP with (repeatable); those on this machine's loopback always are
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(super) insecure_registry: Vec<String>,
}

/// How much may be read, and what is shown meanwhile.
#[derive(Debug, Args)]
pub(super) struct ShownArgs {
    /// A limit on what is read or written, for instance layer-bytes=200GiB (repeatable); `builder help limits` lists them
    /// [env: BUILDER_LIMITS=NAME=VALUE,…]
    #[arg(long, value_name = "NAME=VALUE")]
    pub(super) limit: Vec<String>,

    /// How much to say: trace, debug, info, warn, error, fatal or panic
    #[arg(long, short = 'v', value_name = "LEVEL", default_value = "info")]
    pub(super) verbosity: String,

    /// How progress is shown: auto (tty on a terminal, else plain), plain, tty, quiet or rawjson [env:
    /// BUILDKIT_PROGRESS] [default: auto]
    #[arg(long, value_name = "MODE")]
    pub(super) progress: Option<String>,

    /// Show nothing but the digest and errors: --progress quiet
    #[arg(long, short = 'q')]
    pub(super) quiet: bool,
}

/// The flags of `check`.
#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// How to print what is found: text or json [default: text]
    #[arg(long, value_name = "FORMAT")]
    pub(super) format: Option<String>,

    /// Those of a build.
    #[command(flatten)]
    pub(super) build: BuildArgs,
}

/// The flags of `build` and `plan`.
#[derive(Debug, Args)]
#[command(
    mut_arg("custom_platform", of_several),
    mut_arg("insecure", |flag| flag.help("Push over plain HTTP")),
    mut_arg("insecure_pull", |flag| flag.help("Pull over plain HTTP"))
)]
pub(super) struct BuildArgs {
    /// Directory that COPY and ADD read [default: /workspace]
    #[arg(long, short = 'c', value_name = "DIR", conflicts_with = "positional_context")]
    pub(super) context: Option<OsString>,

    /// Directory that COPY and ADD read, as docker spells --context
    #[arg(value_name = "CONTEXT")]
    pub(super) positional_context: Option<OsString>,

    /// Dockerfile, relative to the current directory or to the context; a URL, or - for standard input [default: Dockerfile]
    #[arg(long, short = 'f', visible_alias = "file", value_name = "FILE")]
    pub(super) dockerfile: Option<PathBuf>,

    /// What the Dockerfile finds under a name, in place of any stage or image called so: NAME=DIR, NAME=GIT-OR-HTTP-URL,
    /// `NAME=docker-image://IMAGE`, `NAME=oci-layout://DIR[:TAG][@DIGEST]` or `NAME=target:STAGE` (repeatable)
    #[arg(long, value_name = "NAME=VALUE")]
    pub(super) build_context: Vec<OsString>,

    /// Name to push the image to (repeatable)
    #[arg(long, short = 'd', visible_short_alias = 't', visible_alias = "tag", value_name = "NAME")]
    pub(super) destination: Vec<String>,

    #[command(flatten)]
    pub(super) platform: PlatformArgs,

    /// Value for an ARG; without `=VALUE` it is taken from the environment (repeatable)
    #[arg(long, value_name = "NAME[=VALUE]")]
    pub(super) build_arg: Vec<String>,

    /// Secret for RUN --mount=type=secret, from a file or a variable (repeatable)
    #[arg(long, value_name = "id=ID[,src=FILE|,env=NAME]")]
    pub(super) secret: Vec<String>,

    /// SSH agent for RUN --mount=type=ssh: the socket that is named, else that of SSH_AUTH_SOCK (repeatable)
    #[arg(long, value_name = "default|ID[=SOCKET]")]
    pub(super) ssh: Vec<String>,

    /// Network of each RUN that names none: default is this machine's, none only a loopback interface, host needs no
    /// --allow then
    #[arg(long, value_name = "MODE", default_value = "default")]
    pub(super) network: String,

    /// Line of /etc/hosts for every RUN (repeatable)
    #[arg(long, value_name = "NAME:IP")]
    pub(super) add_host: Vec<String>,

    /// Size of /dev/shm for every RUN, with k, m or g [default: 64m]
    #[arg(long, value_name = "BYTES")]
    pub(super) shm_size: Option<String>,

    /// Limit of the processes of every RUN, for instance nofile=1024:4096 (repeatable)
    #[arg(long, value_name = "TYPE=SOFT[:HARD]")]
    pub(super) ulimit: Vec<String>,

    /// What a Dockerfile may ask for besides: network.host is RUN --network=host, security.insecure is RUN
    /// --security=insecure (repeatable)
    #[arg(long, value_name = "NAME")]
    pub(super) allow: Vec<String>,

    /// Look for probable mistakes in the Dockerfile instead of building, as `builder check` does
    #[arg(long)]
    pub(super) check: bool,

    /// What to do with the Dockerfile: build or check, as docker spells it
    #[arg(long, value_name = "METHOD[,format=FORMAT]", default_value = "build")]
    pub(super) call: String,

    /// Stage to build [default: the last]
    #[arg(long, value_name = "STAGE")]
    pub(super) target: Option<String>,

    /// Label to put on the image (repeatable)
    #[arg(long, value_name = "NAME=VALUE")]
    pub(super) label: Vec<String>,

    /// Run every step, whatever is remembered of earlier builds
    #[arg(long)]
    pub(super) no_cache: bool,

    /// Run every step of these stages, whatever is remembered of earlier builds (repeatable)
    #[arg(long, value_name = "STAGE[,STAGE]", value_delimiter = ',')]
    pub(super) no_cache_filter: Vec<String>,

    /// Ask the registry for every base, even where the store has an image of that name
    #[arg(long)]
    pub(super) pull: bool,

    /// How many stages are built at once, at most 64, which is what 0 means [default: as many as there are CPUs]
    #[arg(long, value_name = "NUMBER")]
    pub(super) jobs: Option<usize>,

    /// Put the changes of all steps of a stage into one layer
    #[arg(long, alias = "singleSnapshot")]
    pub(super) single_snapshot: bool,

    /// What comes out and where, for instance type=oci,dest=image.tar (repeatable); DIR alone is the root file system as a
    /// directory, - the same as a tar archive to standard output. Then --tag only names the image, unless there is --push
    #[arg(long, short = 'o', value_name = "DIR|type=TYPE,KEY=VALUE")]
    pub(super) output: Vec<String>,

    /// Push the image under its names, which needs to be said where there is --output
    #[arg(long)]
    pub(super) push: bool,

    /// Refused: there is no daemon to load the image into
    #[arg(long, hide = true)]
    pub(super) load: bool,

    /// Whose media types manifest, config and layers have: oci or docker [default: oci]
    #[arg(long, value_name = "FORMAT")]
    pub(super) image_format: Option<String>,

    /// Annotation of the image's manifest, or of its descriptor (repeatable)
    #[arg(long, value_name = "[PLACE:]KEY=VALUE")]
    pub(super) annotation: Vec<String>,

    /// Attestations, which are not supported yet: only what has disabled=true is taken
    #[arg(long, value_name = "type=TYPE,disabled=true", hide = true)]
    pub(super) attest: Vec<String>,

    /// Provenance, which is not supported yet: only false is taken
    #[arg(long, value_name = "false", hide = true)]
    pub(super) provenance: Option<String>,

    /// Bill of materials, which is not supported yet: only false is taken
    #[arg(long, value_name = "false", hide = true)]
    pub(super) sbom: Option<String>,

    /// Build without pushing
    #[arg(long)]
    pub(super) no_push: bool,

    /// Write the image to an OCI layout directory
    #[arg(long, value_name = "DIR")]
    pub(super) oci_layout_path: Option<PathBuf>,

    /// Write the image to an archive that `docker load` reads
    #[arg(long, visible_alias = "tarPath", value_name = "FILE")]
    pub(super) tar_path: Option<PathBuf>,

    /// How new layers are compressed: gzip, zstd or uncompressed [default: gzip]
    #[arg(long, value_name = "NAME")]
    pub(super) compression: Option<String>,

    /// Effort of the compression: 0 to 9 for gzip, 0 to 22 for zstd [default: 6 for gzip, 3 for zstd]
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true)]
    pub(super) compression_level: Option<String>,

    /// Same image from same input: every time in what is new is SOURCE_DATE_EPOCH, or 1970 where that is not set
    #[arg(long)]
    pub(super) reproducible: bool,

    /// Write the image's digest, for several platforms that of the index, to a file
    #[arg(long, value_name = "FILE")]
    pub(super) digest_file: Option<PathBuf>,

    /// Write the image's id to a file: the digest of its config; for several platforms the digest of the index, which has
    /// none
    #[arg(long, value_name = "FILE")]
    pub(super) iidfile: Option<PathBuf>,

    /// Write digests, names and descriptor of the image to a file, as JSON with BuildKit's keys
    #[arg(long, value_name = "FILE")]
    pub(super) metadata_file: Option<PathBuf>,

    /// Write each name of the image with its digest to a file
    #[arg(long, value_name = "FILE")]
    pub(super) image_name_with_digest_file: Option<PathBuf>,

    /// Write each name of the image with its tag and digest to a file
    #[arg(long, value_name = "FILE")]
    pub(super) image_name_tag_with_digest_file: Option<PathBuf>,

    #[command(flatten)]
    pub(super) registry: RegistryArgs,

    /// How a RUN is kept apart: mount-namespace, user-namespace, chroot or in-place, strongest first; auto takes the first
    /// that works here [env: BUILDER_ISOLATION] [default: auto]
    #[arg(long, value_name = "NAME")]
    pub(super) isolation: Option<String>,

    /// Directory with static programs of qemu (qemu-arm-static and the like), to be taken rather than the machine's
    /// handlers; without it those in /kaniko/qemu and PATH are taken where the handlers do not do as well [env:
    /// BUILDER_EMULATOR_DIR]
    #[arg(long, value_name = "DIR")]
    pub(super) emulator_dir: Option<PathBuf>,

    /// How the files of stages are kept: overlayfs stacks layers, native copies them into plain directories, auto tries
    /// the first [env: BUILDER_SNAPSHOTTER] [default: auto]
    #[arg(long, value_name = "NAME")]
    pub(super) snapshotter: Option<String>,

    /// With native, what is looked at after a step: full reads every file; redo and time read those that may have changed,
    /// which misses nothing either [default: redo]
    #[arg(long, alias = "snapshotMode", value_name = "MODE")]
    pub(super) snapshot_mode: Option<String>,

    /// Directory for blobs and unpacked layers [env: BUILDER_STORE] [default: /var/lib/builder]
    #[arg(long, value_name = "DIR")]
    pub(super) store: Option<PathBuf>,

    #[command(flatten)]
    pub(super) shown: ShownArgs,
}

/// `--custom-platform` where it may name several.
fn of_several(flag: clap::Arg) -> clap::Arg {
    flag.value_name("OS/ARCH[/VARIANT][,…]").help(
        "Platform, for instance linux/arm/v7 [default: this machine's]; images for several, in a list or repeated, become one \
         index",
    )
}

/// The words that Go's flags have for true and false.
fn boolean(text: &str) -> Result<bool, String> {
    parse_bool(text).ok_or_else(|| "expected true or false".to_owned())
}

/// The command line as clap knows it.
fn known() -> &'static clap::Command {
    static KNOWN: LazyLock<clap::Command> = LazyLock::new(|| with_booleans(CommandLine::command()));
    &KNOWN
}

/// Has every flag that is there or not take a value, too, but only behind an equals sign.
fn with_booleans(command: clap::Command) -> clap::Command {
    command
        .mut_args(|argument| match argument.get_action() {
            ArgAction::SetTrue => argument
                .action(ArgAction::Set)
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true")
                .default_value("false")
                .value_name("BOOL")
                .value_parser(boolean),
            _ => argument,
        })
        .mut_subcommands(with_booleans)
}

/// Reads the command line `arguments`, the program's name first.
pub(super) fn parse(arguments: &[OsString]) -> Result<CommandLine, clap::Error> {
    let mut known = known().clone();
    let matches = known.try_get_matches_from_mut(arguments)?;
    CommandLine::from_arg_matches(&matches).map_err(|error| error.format(&mut known))
}

/// The command that a command line is about.
pub(super) struct Called {
    /// Its words, for instance `manifest push from-spec`.
    pub(super) words: String,
    flags: Vec<clap::Arg>,
    placed: Placed,
}

/// Who wrote the command of a command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Placed {
    /// Who called.
    Written,
    /// Nobody: it is a build.
    Added,
}

impl Called {
    /// As far as `arguments` name it.
    pub(super) fn by(arguments: &[OsString], placed: Placed) -> Self {
        let (mut command, mut words, mut above) = (known(), Vec::new(), Vec::new());
        for word in arguments.iter().skip(1).filter_map(|word| word.to_str()) {
            let Some(next) = command.find_subcommand(word) else { continue };
            words.push(next.get_name().to_owned());
            above.extend(command.get_arguments().filter(|flag| flag.is_global_set()).cloned());
            command = next;
        }
        above.extend(command.get_arguments().cloned());
        Self { words: words.join(" "), flags: above, placed }
    }

    /// The command that stands where a build, which nobody wrote, may have a context: behind flags.
    pub(super) fn behind_flags(&self, arguments: &[OsString]) -> Option<String> {
        if self.placed == Placed::Written {
            return None;
        }
        let known = known();
        let mut words = arguments.iter().skip(2).map(|word| word.to_str().unwrap_or_default());
        let mut command = words.find_map(|word| known.find_subcommand(word))?;
        let mut name = command.get_name().to_owned();
        for word in words {
            let Some(next) = command.find_subcommand(word) else { break };
            name = format!("{name} {}", next.get_name());
            command = next;
        }
        Some(name)
    }

    /// The flag that somebody may have meant who wrote `flag`, with its dashes.
    pub(super) fn near(&self, flag: &str) -> Option<String> {
        let name = flag.strip_prefix("--")?.split('=').next()?;
        let names: Vec<&str> = self
            .flags
            .iter()
            .flat_map(|argument| argument.get_long_and_visible_aliases().unwrap_or_default())
            .collect();
        suggest(name, &names).map(|near| format!("--{near}"))
    }

    /// The first long flag among `arguments` that has one dash, as the programs of Go may have it.
    pub(super) fn one_dash(&self, arguments: &[OsString]) -> Option<OneDash> {
        let is_long = |name: &str| {
            self.flags.iter().any(|argument| {
                argument.get_long() == Some(name)
                    || argument.get_all_aliases().is_some_and(|aliases| aliases.contains(&name))
            })
        };
        let words = arguments.iter().skip(1).map_while(|word| word.to_str().filter(|word| *word != "--"));
        words.into_iter().find_map(|word| {
            let name = word.strip_prefix('-')?.split('=').next()?;
            let mut letters = name.chars();
            let first = letters.next().filter(|first| *first != '-')?;
            if letters.as_str().is_empty() || !is_long(name) {
                return None;
            }
            let is_short = self.flags.iter().any(|argument| {
                argument.get_short_and_visible_aliases().is_some_and(|shorts| shorts.contains(&first))
                    && argument.get_num_args().is_none_or(|values| values.min_values() > 0)
            });
            let rest = word.get(1 + first.len_utf8()..).filter(|_| is_short).unwrap_or_default();
            let rest = (!rest.is_empty()).then(|| (first, rest.to_owned()));
            Some(OneDash { written: format!("-{name}"), rest })
        })
    }
}

/// A long flag with one dash, which would be taken for a short one and its value: as it was written, with what it means.
pub(super) struct OneDash {
    /// Without its value.
    pub(super) written: String,
    /// What would be taken for the value of the short flag, if there is such a flag.
    pub(super) rest: Option<(char, String)>,
}

/// Whether the list of limits is asked for, which belongs to several commands.
pub(super) fn asks_for_limits(arguments: &[OsString]) -> bool {
    arguments.get(1..).is_some_and(|words| words == ["help", "limits"])
}

/// Puts the word `build` where it was left out: in front of a flag, or of a word that can only be a context (`.`, `..`, `-`,
/// or something with a `/`). Any other first word is a command.
pub(super) fn with_command(arguments: Vec<OsString>) -> (Vec<OsString>, Placed) {
    let Some(first) = arguments.get(1).map(|word| word.to_string_lossy().into_owned()) else {
        return (arguments, Placed::Written);
    };
    let asks_for_help = matches!(first.as_str(), "-h" | "--help" | "--version" | "-V");
    let is_context = matches!(first.as_str(), "." | ".." | "-") || first.contains('/');
    let is_flag = first.starts_with('-') && first != "-";
    if first == "help" {
        // As other programs have it: `help build` is `build --help`.
        let words = arguments.iter().enumerate().filter(|(at, word)| *at == 0 || *word != "help");
        let words = words.map(|(_, word)| word.clone()).chain([OsString::from("--help")]);
        return (words.collect(), Placed::Written);
    }
    if known().find_subcommand(&first).is_some() || asks_for_help || !(is_context || is_flag) {
        return (arguments, Placed::Written);
    }
    let mut arguments = arguments;
    arguments.insert(1, "build".into());
    (arguments, Placed::Added)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn arguments(words: &[&str]) -> Vec<OsString> {
        std::iter::once("builder").chain(words.iter().copied()).map(OsString::from).collect()
    }

    fn line(words: &[&str]) -> Result<CommandLine, clap::Error> {
        parse(&arguments(words))
    }

    /// What `builder build` is told with these flags.
    pub(in crate::cli) fn args_of_build(flags: &[&str]) -> Box<BuildArgs> {
        match line(&[&["build"], flags].concat()).unwrap().command {
            Command::Build(args) => args,
            _ => panic!("{flags:?}"),
        }
    }

    /// What `builder image extract` is told with these flags and places.
    pub(in crate::cli) fn args_of_extract(words: &[&str]) -> Box<ExtractArgs> {
        match line(&[&["image", "extract"], words].concat()).unwrap().command {
            Command::Image(ImageArgs { command: ImageCommand::Extract(args) }) => args,
            _ => panic!("{words:?}"),
        }
    }

    fn command_of(words: &[&str]) -> Option<String> {
        with_command(arguments(words)).0.get(1).map(|word| word.to_string_lossy().into_owned())
    }

    #[test]
    fn a_context_or_a_flag_in_first_place_means_build() {
        for (words, command) in [
            (&["."][..], "build"),
            (&["./x"], "build"),
            (&["help"], "--help"),
            (&["help", "plan"], "plan"),
            (&["help", "help"], "--help"),
            (&[".."], "build"),
            (&["-"], "build"),
            (&["https://example.org/x.git"], "build"),
            (&["--context", "."], "build"),
            (&["-t", "x", "."], "build"),
            (&["plan", "."], "plan"),
            (&["frobnicate"], "frobnicate"),
            (&["--help"], "--help"),
        ] {
            assert_eq!(command_of(words).as_deref(), Some(command), "{words:?}");
        }
    }

    fn help(command: &str) -> String {
        let mut known = known().clone();
        let command = command
            .split(' ')
            .fold(&mut known, |above, word| above.find_subcommand_mut(word).expect("a command"));
        command.render_long_help().to_string()
    }

    #[test]
    fn insecure_is_for_what_a_command_does() {
        for (command, text) in [
            ("build", "Push over plain HTTP"),
            ("check", "Push over plain HTTP"),
            ("pull", "whatever is read or written"),
            ("manifest inspect", "whatever is read or written"),
            ("manifest push from-args", "whatever is read or written"),
        ] {
            assert!(help(command).contains(text), "{command}");
        }
    }

    #[test]
    fn only_what_can_take_several_platforms_offers_that() {
        for (command, several) in [("build", true), ("check", true), ("pull", false)] {
            let help = help(command);
            assert_eq!(help.contains("OS/ARCH[/VARIANT][,…]"), several, "{help}");
            assert_eq!(help.contains("become one"), several, "{help}");
        }
    }

    #[test]
    fn help_is_short_about_limits_and_says_where_they_are() {
        for command in ["build", "check", "pull", "image extract", "manifest inspect"] {
            let help = help(command);
            let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(help.contains("builder help limits") && !help.contains("layer-entries"), "{help}");
        }
        let asked = |words: &[&str]| asks_for_limits(&words.iter().map(OsString::from).collect::<Vec<_>>());
        assert!(asked(&["builder", "help", "limits"]) && !asked(&["builder", "help", "build"]));
        assert!(!asked(&["builder", "limits"]) && !asked(&["builder"]));
    }

    #[test]
    fn kaniko_s_and_docker_s_spellings_are_one_flag() {
        for words in [
            ["build", "--destination", "a/b:1", "--custom-platform", "linux/arm/v7"],
            ["build", "-d", "a/b:1", "--platform", "linux/arm/v7"],
            ["build", "-t", "a/b:1", "--platform", "linux/arm/v7"],
            ["build", "--tag", "a/b:1", "--custom-platform", "linux/arm/v7"],
        ] {
            let line = line(&words).unwrap();
            let Command::Build(args) = line.command else { panic!("not a build") };
            assert_eq!(args.destination, ["a/b:1"]);
            assert_eq!(args.platform.custom_platform, ["linux/arm/v7"]);
        }
    }

    #[test]
    fn booleans_take_a_value_only_behind_an_equals_sign() {
        let no_push = |words: &[&str]| {
            let line = line(&[&["build"], words].concat()).unwrap();
            let Command::Build(args) = line.command else { panic!("not a build") };
            args.no_push
        };
        assert!(no_push(&["--no-push"]));
        assert!(no_push(&["--no-push", "."]));
        assert!(!no_push(&["--no-push=false"]));
        assert!(!no_push(&[]));
    }

    #[test]
    fn every_boolean_takes_the_words_of_go() {
        let quiet = |word: &str| {
            let line = line(&["build", word, "."]).ok()?;
            let Command::Build(args) = line.command else { panic!("not a build") };
            Some(args.shown.quiet)
        };
        for (word, value) in [
            ("-q", Some(true)),
            ("--quiet", Some(true)),
            ("--quiet=true", Some(true)),
            ("--quiet=T", Some(true)),
            ("--quiet=1", Some(true)),
            ("--quiet=false", Some(false)),
            ("-q=false", Some(false)),
            ("--quiet=0", Some(false)),
            ("--quiet=no", None),
            ("--quiet=", None),
        ] {
            assert_eq!(quiet(word), value, "{word}");
        }
        assert!(line(&["manifest", "inspect", "--raw=true", "a/b:1"]).is_ok());
        assert!(line(&["manifest", "push", "from-spec", "--ignore-missing=false", "-"]).is_ok());
    }

    #[test]
    fn a_flag_that_there_is_not_is_likened_to_those_of_its_command() {
        for (words, flag, words_of_command, near) in [
            (&["build", "."][..], "--destinatoin=x", "build", Some("--destination")),
            (&["manifest", "push", "from-args"], "--templat", "manifest push from-args", Some("--template")),
            (&["manifest", "push", "from-args"], "--typ", "manifest push from-args", Some("--type")),
            (
                &["manifest", "push", "--typ", "oci", "from-spec"],
                "--typ",
                "manifest push from-spec",
                Some("--type"),
            ),
            (&["image", "extract"], "--snapshoter", "image extract", Some("--snapshotter")),
            (&["doctor"], "--destination", "doctor", None),
        ] {
            let called = Called::by(&arguments(words), Placed::Written);
            assert_eq!(called.words, words_of_command);
            assert_eq!(called.near(flag).as_deref(), near, "{words:?} {flag}");
        }
    }

    #[test]
    fn a_long_flag_with_one_dash_is_not_a_short_one_with_a_value() {
        for (words, command, found) in [
            (&["build", "-destination", "x"][..], "build", Some(("-destination", Some(('d', "estination"))))),
            (&["-context=."], "build", Some(("-context", Some(('c', "ontext=."))))),
            (&["build", "-tarPath=x"], "build", Some(("-tarPath", Some(('t', "arPath=x"))))),
            (&["build", "-singleSnapshot"], "build", Some(("-singleSnapshot", None))),
            (&["build", "-quiet"], "build", Some(("-quiet", None))),
            (&["check", "-format=json"], "check", Some(("-format", Some(('f', "ormat=json"))))),
            (&["image", "extract", "-ref", "x"], "image extract", Some(("-ref", None))),
            (&["build", "-tx", "-fDockerfile", "-c.", "-o-", "-q", "--context=.", "-"], "build", None),
            (&["build", "--", "-context"], "build", None),
            (&["doctor", "-destination"], "doctor", None),
        ] {
            let (arguments, placed) = with_command(arguments(words));
            let called = Called::by(&arguments, placed);
            assert_eq!(called.words, command);
            let told = called.one_dash(&arguments);
            let told = told.as_ref().map(|OneDash { written, rest }| {
                (written.as_str(), rest.as_ref().map(|(short, rest)| (*short, rest.as_str())))
            });
            assert_eq!(told, found, "{words:?}");
        }
    }
}
