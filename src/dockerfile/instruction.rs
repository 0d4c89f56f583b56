//! The instructions of a Dockerfile as they are written: nothing is expanded, nothing is resolved.

use super::Text;
use super::duration::Duration;
use super::heredoc::Heredoc;
use super::mount::{Device, MountOption};

/// One instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Instruction {
    /// `FROM`; the first instruction of a stage.
    From(From),
    /// `RUN`
    Run(Box<Run>),
    /// `COPY`
    Copy(Box<Transfer>),
    /// `ADD`
    Add(Box<Transfer>),
    /// `ENV`
    Env(Assignments),
    /// `ARG`: names, with or without a default. Names are never expanded.
    Arg(Vec<(Text, Option<Text>)>),
    /// `LABEL`
    Label(Assignments),
    /// `WORKDIR`: the rest of the line.
    Workdir(Text),
    /// `USER`: the rest of the line.
    User(Text),
    /// `EXPOSE`: words, sorted. Each is expanded, then split, then read by [`super::parse_ports`].
    Expose(Vec<Text>),
    /// `VOLUME`: paths, none of them empty.
    Volume(Vec<Text>),
    /// `CMD`
    Cmd(Command),
    /// `ENTRYPOINT`
    Entrypoint(Command),
    /// `SHELL`: at least one word.
    Shell(Vec<Text>),
    /// `STOPSIGNAL`: the rest of the line; see [`super::signal_number`].
    StopSignal(Text),
    /// `HEALTHCHECK`
    Healthcheck(HealthCheck),
    /// `ONBUILD`: the instruction as written with its here-documents, as the image config keeps it; see
    /// [`super::parse_trigger`].
    Onbuild(Text),
    /// `MAINTAINER`: the rest of the line.
    Maintainer(Text),
}

impl Instruction {
    /// The keyword, in upper case.
    #[must_use]
    pub const fn keyword(&self) -> &'static str {
        match self {
            Self::From(_) => "FROM",
            Self::Run(_) => "RUN",
            Self::Copy(_) => "COPY",
            Self::Add(_) => "ADD",
            Self::Env(_) => "ENV",
            Self::Arg(_) => "ARG",
            Self::Label(_) => "LABEL",
            Self::Workdir(_) => "WORKDIR",
            Self::User(_) => "USER",
            Self::Expose(_) => "EXPOSE",
            Self::Volume(_) => "VOLUME",
            Self::Cmd(_) => "CMD",
            Self::Entrypoint(_) => "ENTRYPOINT",
            Self::Shell(_) => "SHELL",
            Self::StopSignal(_) => "STOPSIGNAL",
            Self::Healthcheck(_) => "HEALTHCHECK",
            Self::Onbuild(_) => "ONBUILD",
            Self::Maintainer(_) => "MAINTAINER",
        }
    }
}

/// `FROM [--platform=…] image [AS name]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct From {
    /// The image, stage or context; global arguments expand.
    pub image: Text,
    /// `--platform`; global and automatic arguments expand.
    pub platform: Option<Text>,
    /// The name of the stage in lower case, which is how it is looked up.
    pub name: Option<String>,
}

/// A command line, of RUN, CMD, ENTRYPOINT or HEALTHCHECK CMD.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// A text for the shell; empty if nothing was written.
    Shell(Text),
    /// A JSON list, which may be empty.
    Exec(Vec<Text>),
}

/// `RUN`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// The command, here-documents left out; [`Run::action`] has them put together.
    pub command: Command,
    /// The here-documents, in order.
    pub heredocs: Vec<Heredoc>,
    /// `--mount`, in order.
    pub mounts: Vec<MountOption>,
    /// `--network`.
    pub network: Network,
    /// `--security`.
    pub security: Security,
    /// `--device`, in order.
    pub devices: Vec<Device>,
}

/// What a RUN executes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunAction {
    /// This text, by the shell.
    Shell(Text),
    /// These arguments.
    Exec(Vec<Text>),
    /// The file `/dev/pipes/NAME` (mode 0755, `content`), by the shell.
    Script {
        /// The name of the here-document.
        name: Text,
        /// What the file holds; it begins with `#!`.
        content: Text,
    },
}

impl Run {
    /// What is executed, with here-documents put in their places.
    ///
    /// A command that is nothing but one here-document is its body, as a script file if it begins with `#!`. Otherwise the
    /// command and all bodies go to the shell, which knows here-documents.
    #[must_use]
    pub fn action(&self) -> RunAction {
        let text = match &self.command {
            Command::Exec(words) => return RunAction::Exec(words.clone()),
            Command::Shell(text) => text,
        };
        let Some(first) = self.heredocs.first() else { return RunAction::Shell(text.clone()) };
        if Heredoc::is_only(text) {
            let content = first.content();
            if content.starts_with(b"#!") {
                return RunAction::Script { name: first.name.clone(), content };
            }
            return RunAction::Shell(content);
        }
        let mut whole = text.as_bytes().to_vec();
        for heredoc in &self.heredocs {
            whole.push(b'\n');
            whole.extend_from_slice(&heredoc.body);
            whole.extend_from_slice(&heredoc.name);
        }
        RunAction::Shell(whole.into())
    }
}

/// `--network` of RUN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// `default`, or not given.
    Default,
    /// `none`: only a loopback interface.
    None,
    /// `host`: the network of the host.
    Host,
}

/// `--security` of RUN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Security {
    /// `sandbox`, or not given.
    Sandbox,
    /// `insecure`: all capabilities.
    Insecure,
}

/// `COPY` or `ADD`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transfer {
    /// The sources, in order and at least one. Paths expand.
    pub sources: Vec<Source>,
    /// The destination; expands.
    pub destination: Text,
    /// `--from` (COPY); does not expand.
    pub from: Option<Text>,
    /// `--chown`; expands.
    pub chown: Option<Text>,
    /// `--chmod`; expands, then [`super::Mode::parse`].
    pub chmod: Option<Text>,
    /// `--link`
    pub link: bool,
    /// `--parents` (COPY)
    pub parents: bool,
    /// `--exclude`, in order; do not expand.
    pub exclude: Vec<Text>,
    /// `--checksum` (ADD); expands.
    pub checksum: Option<Text>,
    /// `--keep-git-dir` (ADD), if given.
    pub keep_git_dir: Option<bool>,
    /// `--unpack` (ADD), if given.
    pub unpack: Option<bool>,
}

/// A source of COPY or ADD.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A path, pattern or URL.
    Path(Text),
    /// A file that the Dockerfile itself holds.
    Heredoc(Heredoc),
}

impl Transfer {
    /// The sources that are paths. They are copied before the here-documents.
    pub fn paths(&self) -> impl Iterator<Item = &Text> {
        self.sources.iter().filter_map(|source| match source {
            Source::Path(path) => Some(path),
            Source::Heredoc(_) => None,
        })
    }

    /// The sources that are here-documents.
    pub fn heredocs(&self) -> impl Iterator<Item = &Heredoc> {
        self.sources.iter().filter_map(|source| match source {
            Source::Path(_) => None,
            Source::Heredoc(heredoc) => Some(heredoc),
        })
    }
}

/// Which of the two instructions a [`Transfer`] is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TransferKind {
    /// `COPY`
    Copy,
    /// `ADD`
    Add,
}

impl TransferKind {
    /// The keyword, in upper case.
    #[must_use]
    pub const fn keyword(self) -> &'static str {
        match self {
            Self::Copy => "COPY",
            Self::Add => "ADD",
        }
    }
}

/// Names and values of ENV or LABEL; both expand, and quotes are removed then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignments {
    /// At least one pair; no name is empty as written.
    pub pairs: Vec<(Text, Text)>,
    /// How they are written.
    pub syntax: PairSyntax,
}

/// How a name and its value are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PairSyntax {
    /// `name=value name=value`
    Equals,
    /// `name value`, one pair.
    Legacy,
}

/// `HEALTHCHECK`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HealthCheck {
    /// `NONE`
    None,
    /// `CMD …`
    Check(Health),
}

/// `HEALTHCHECK CMD`; a duration of 0 and 0 retries mean what the base image says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// The command.
    pub command: Command,
    /// `--interval`
    pub interval: Duration,
    /// `--timeout`
    pub timeout: Duration,
    /// `--start-period`
    pub start_period: Duration,
    /// `--start-interval`
    pub start_interval: Duration,
    /// `--retries`
    pub retries: u32,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            command: Command::Exec(Vec::new()),
            interval: Duration::default(),
            timeout: Duration::default(),
            start_period: Duration::default(),
            start_interval: Duration::default(),
            retries: 0,
        }
    }
}

impl HealthCheck {
    /// The `Test` of an image config: `["NONE"]`, `["CMD", …]` or `["CMD-SHELL", text]`.
    #[must_use]
    pub fn test(&self) -> Vec<Text> {
        match self {
            Self::None => vec!["NONE".into()],
            Self::Check(Health { command: Command::Shell(text), .. }) => {
                vec!["CMD-SHELL".into(), text.clone()]
            }
            Self::Check(Health { command: Command::Exec(words), .. }) => {
                std::iter::once("CMD".into()).chain(words.iter().cloned()).collect()
            }
        }
    }
}
