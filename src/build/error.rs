//! Why a build ended, and at which lines.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use super::add::AddError;
use super::clues::Clues;
use super::context_view::ViewError;
use super::copy::{CopyError, Excluded};
use super::mount::Made;
use super::services::ServiceError;
use crate::context::GitSourceError;
use crate::dockerfile::{ExpandError, ModeError, MountError, ParseError, PortError, SignalError, Span};
use crate::image::manifest::ImageError;
use crate::image::platform::{Platform, PlatformError};
use crate::image::reference::ReferenceError;
use crate::layer::LayerError;
use crate::rootfs::{CopyTreeError, Escaped, GuestPath, GuestPathError, RootfsError, UserError};
use crate::sandbox::{Exit, SandboxError};
use crate::snapshot::SnapshotError;
use crate::store::StoreError;
use crate::store::room::Free;
use crate::store::workspace::WorkspaceError;

/// A failure with its place in the Dockerfile.
#[derive(Debug)]
pub struct BuildError {
    /// The lines of the instruction, where one is to blame.
    pub span: Option<Span>,
    /// Where the build is for several platforms: what the stage is for, as people are told.
    pub platform: Option<Arc<str>>,
    /// What went wrong.
    pub kind: BuildErrorKind,
}

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum BuildErrorKind {
    /// The Dockerfile is not one.
    #[error(transparent)]
    Parse(#[from] ParseError),
    /// Variables.
    #[error(transparent)]
    Expand(#[from] ExpandError),
    /// `# syntax=` names another language.
    #[error("the frontend `{0}` is not known: only the language of `docker/dockerfile` is")]
    Frontend(String),
    /// An instruction that cannot be what it says.
    #[error("{0}")]
    Invalid(String),
    /// More layers than files can be kept as.
    #[error("this would be layer {number} of the image, and there can be no more than {most} here")]
    TooManyLayers {
        /// Which it would be, from 1.
        number: usize,
        /// The most there can be.
        most: usize,
    },
    /// `--target` names no stage.
    #[error("target stage `{name}` could not be found; the Dockerfile has {available}")]
    Target {
        /// As given.
        name: String,
        /// The stages there are.
        available: String,
    },
    /// A named build context stands for a stage that is not there.
    #[error(
        "the build context `{name}` is the stage `{stage}`, which could not be found; the Dockerfile has {available}"
    )]
    ContextStage {
        /// The name of the context.
        name: String,
        /// That of the stage.
        stage: String,
        /// The stages there are.
        available: String,
    },
    /// An image name.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// A platform.
    #[error(transparent)]
    Platform(#[from] PlatformError),
    /// `--chmod`.
    #[error(transparent)]
    Mode(#[from] ModeError),
    /// `SOURCE_DATE_EPOCH`, as a build argument or as the default of an ARG.
    #[error("invalid SOURCE_DATE_EPOCH: {0}")]
    Epoch(String),
    /// A stage whose time was to be the epoch.
    #[error(
        "SOURCE_DATE_EPOCH stage does not meet source-only requirements: `{0}` must be FROM scratch, with one ADD of one \
         URL or git repository and ARGs at most"
    )]
    EpochStage(String),
    /// `--mount`.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// EXPOSE.
    #[error(transparent)]
    Port(#[from] PortError),
    /// STOPSIGNAL.
    #[error(transparent)]
    Signal(#[from] SignalError),
    /// A path.
    #[error(transparent)]
    Path(#[from] GuestPathError),
    /// A base image, or its layers.
    #[error("cannot use the image `{reference}`{clue}")]
    Image {
        /// Which.
        reference: String,
        /// What the Dockerfile says of it, to be appended: a stage with a similar name; else empty.
        clue: String,
        /// Why not.
        #[source]
        source: ServiceError,
    },
    /// A source of COPY, ADD or a mount that is not there.
    #[error("{}", missing_source(keyword, written, place, near.as_ref()))]
    Source {
        /// Which instruction.
        keyword: &'static str,
        /// The source as written.
        written: Escaped,
        /// Where it was looked for.
        place: String,
        /// The rule that hides it, if it exists.
        #[source]
        excluded: Option<Box<Excluded>>,
        /// A name in the same directory that resembles it.
        near: Option<Escaped>,
    },
    /// COPY.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// ADD.
    #[error(transparent)]
    Add(#[from] AddError),
    /// The name of a git repository.
    #[error(transparent)]
    GitSource(#[from] GitSourceError),
    /// A source of ADD that is elsewhere.
    #[error("cannot fetch `{remote}`")]
    Remote {
        /// Which, without credentials.
        remote: String,
        /// Why not.
        #[source]
        source: ServiceError,
    },
    /// USER or `--chown`.
    #[error(transparent)]
    User(#[from] UserError),
    /// A file of the image that is built.
    #[error(transparent)]
    Rootfs(#[from] RootfsError),
    /// A part of the build context that RUN mounts.
    #[error(transparent)]
    ContextView(#[from] ViewError),
    /// What a new cache begins with.
    #[error("cannot copy what a new cache begins with")]
    Seed(#[source] CopyTreeError),
    /// Whose a new cache is to be.
    #[error("cannot give the new cache `{id}` to {}:{} with mode {:o}", made.owner.uid, made.owner.gid, made.mode)]
    CacheOwner {
        /// Which cache.
        id: String,
        /// Owner and mode.
        made: Made,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// A part of a cache that is not there. BuildKit's words, and where it was looked for.
    #[error("\"{path}\": not found in the cache `{id}`; a `from` can say what a new cache begins with")]
    NotInCache {
        /// Which part.
        path: GuestPath,
        /// Which cache.
        id: String,
    },
    /// A secret that a step must have. BuildKit's words.
    #[error("secret {0}: not found")]
    SecretMissing(String),
    /// An agent that a step must have. BuildKit's words.
    #[error("no SSH key \"{0}\" forwarded from the client; give one with `--ssh {id}`", id = agent_id(.0))]
    AgentMissing(String),
    /// A step could not be let to an agent.
    #[error("cannot forward the SSH agent `{id}`")]
    Agent {
        /// Which.
        id: String,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// The build's temporary files.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    /// Build checks that are not passed, and are to be, by name: BuildKit's words.
    #[error("lint violation found for rules: {}", .0.join(", "))]
    Checks(Vec<&'static str>),
    /// A step names the network of the host. BuildKit's words.
    #[error("network.host is not allowed")]
    HostNetwork,
    /// A step asks for a device. BuildKit's words.
    #[error("`RUN --device={0}` is not supported: steps get no devices of the machine")]
    Device(String),
    /// A step wants to do what builder may do. BuildKit's words.
    #[error("security.insecure is not allowed")]
    InsecureRefused,
    /// The changes of a step.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The directory that a step wrote to.
    #[error("cannot open the files of the step")]
    StepFiles(#[source] std::io::Error),
    /// A layer could not be written.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The image's documents.
    #[error(transparent)]
    Encode(#[from] ImageError),
    /// A process could not be started.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// There is a RUN, and no way to run it.
    #[error("a RUN cannot be kept apart from the builder here")]
    NoSandbox,
    /// A process could be started and failed.
    #[error("process `{command}` did not complete successfully: {}", ended(*exit))]
    Process {
        /// The command line.
        command: String,
        /// What it was built for.
        platform: Platform,
        /// How it ended.
        exit: Exit,
        /// What the disk with its files had left then.
        free: Option<Free>,
        /// What its output spoke of.
        clues: Clues,
    },
    /// A RUN for another CPU without anything that could run it.
    #[error("{reason}")]
    Emulation {
        /// What cannot run where, and what is missing.
        reason: String,
        /// What to do.
        fix: String,
    },
    /// The kernel gives no more descriptors, for instance.
    #[error("cannot begin to build")]
    Begin(#[source] std::io::Error),
    /// The build was told to stop.
    #[error("interrupted")]
    Cancelled,
}

/// How `RUN --mount` is called where a source is missing.
pub(super) const MOUNT: &str = "RUN --mount";

fn missing_source(keyword: &str, written: &Escaped, place: &str, near: Option<&Escaped>) -> String {
    let near = suggestion(near);
    match keyword {
        // BuildKit's words, and where it was looked for.
        MOUNT => format!("\"{written}\": not found: the source of {MOUNT} is not in {place}{near}"),
        _ => format!("{keyword} source `{written}` is not in {place}{near}"),
    }
}

fn suggestion(near: Option<&Escaped>) -> String {
    near.map(|near| format!(" (did you mean `{near}`?)")).unwrap_or_default()
}

/// What `--ssh` calls it.
fn agent_id(id: &str) -> &str {
    if id.is_empty() { "default" } else { id }
}

fn ended(exit: Exit) -> String {
    match exit {
        Exit::Code(code) => format!("exit code: {code}"),
        Exit::Signal(signal) => format!("killed by signal {signal}"),
    }
}

impl BuildError {
    /// A failure of the instruction at `span`.
    pub fn at(span: Option<Span>, kind: impl Into<BuildErrorKind>) -> Self {
        Self { span, platform: None, kind: kind.into() }
    }
}

impl From<ParseError> for BuildError {
    fn from(error: ParseError) -> Self {
        Self { span: Some(error.span), platform: None, kind: error.into() }
    }
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.platform {
            Some(platform) => write!(f, "{platform}: {}", self.kind),
            None => self.kind.fmt(f),
        }
    }
}

impl Error for BuildError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.kind.source()
    }
}
