//! What `builder doctor` found out, in the form that its JSON has: docs/isolation.md lists the fields.

use serde::Serialize;

use crate::cli::isolation::Choice;
use crate::sandbox::own::Identity;
use crate::sandbox::probe::{Place, Working};
use crate::sandbox::{Explanation, Filter, ProcView, Strategy};

/// Everything.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) place: Place,
    /// The user that the process runs as.
    pub(super) user: u32,
    pub(super) isolation: Isolation,
    pub(super) store: Store,
    pub(super) platforms: Vec<Platform>,
}

/// How steps can be kept apart.
#[derive(Debug, Serialize)]
pub(super) struct Isolation {
    /// What a build takes that is not told otherwise.
    pub(super) selected: Option<Strategy>,
    /// Whether a build without RUN works.
    pub(super) files: bool,
    /// All of them, strongest first.
    pub(super) strategies: Vec<Tried>,
}

/// A strategy that was tried.
#[derive(Debug, Serialize)]
pub(super) struct Tried {
    pub(super) name: Strategy,
    pub(super) works: bool,
    /// Whether a build takes it without being told.
    pub(super) automatic: bool,
    /// How it works, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) details: Option<Details>,
    /// Why it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cause: Option<String>,
    /// What in the pod's manifest would change that.
    pub(super) manifest: Vec<String>,
    /// What else would.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) advice: Option<String>,
}

/// How a strategy works.
#[derive(Debug, Serialize)]
pub(super) struct Details {
    pub(super) proc: Proc,
    /// Whose filter of system calls a step is under.
    pub(super) seccomp: Filter,
    pub(super) user_namespace: UserNamespace,
    /// The users that there are, as ranges.
    pub(super) users: String,
    /// The groups that there are.
    pub(super) groups: String,
    /// Why there are not more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) shortage: Option<String>,
}

/// Which /proc a step has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Proc {
    /// One of its own.
    Own,
    /// That of the container.
    Shared,
    None,
}

/// Whether the build makes a user namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum UserNamespace {
    None,
    /// One with many users.
    Ranges,
    /// One with a single user.
    Single,
}

/// The place where images and temporary files are kept.
#[derive(Debug, Serialize)]
pub(super) struct Store {
    pub(super) path: String,
    /// Whether there is one already.
    pub(super) exists: bool,
    /// The type of its file system, as the kernel calls it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) file_system: Option<String>,
    /// What a build takes that is not told otherwise; none where there can be no store.
    pub(super) snapshotter: Option<Snapshotter>,
    /// Whether it is mounted noexec, which overlayfs does not mind and `native` does.
    pub(super) noexec: bool,
    /// Why not overlayfs, or why there can be no store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cause: Option<String>,
    /// What to do about that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) advice: Option<String>,
}

/// How the files of stages are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Snapshotter {
    Overlayfs,
    Native,
}

/// How programs for a platform run here.
#[derive(Debug, Serialize)]
pub(super) struct Platform {
    pub(super) platform: String,
    /// Whether somebody asked for it: what nobody asked for is told in one line, if it does not work.
    #[serde(skip)]
    pub(super) asked: bool,
    pub(super) how: How,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) handler: Option<Handler>,
    /// What a step has a handler of its own for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) emulator: Option<Emulator>,
    /// What goes wrong with the handler.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) warnings: Vec<String>,
    /// Why they do not run, or why nobody knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cause: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) advice: Option<String>,
}

/// By what programs for a platform run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum How {
    /// The processor itself.
    Native,
    /// The same, as its own 32-bit predecessor.
    Predecessor,
    /// A handler of binfmt_misc.
    Handler,
    /// A handler that the step alone has.
    Own,
    /// Nothing.
    Missing,
    /// Nobody knows.
    Unknown,
}

/// A handler of binfmt_misc.
#[derive(Debug, Serialize)]
pub(super) struct Handler {
    pub(super) name: String,
    pub(super) interpreter: String,
    pub(super) flags: String,
}

/// An emulator that builder has found.
#[derive(Debug, Serialize)]
pub(super) struct Emulator {
    pub(super) path: String,
    /// The CPU that it plays, unless that is its own choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cpu: Option<&'static str>,
}

impl Tried {
    /// What came of trying `strategy`.
    pub(super) fn new(strategy: Strategy, result: Result<Working, Explanation>) -> Self {
        let mut tried = Self {
            name: strategy,
            works: result.is_ok(),
            automatic: Choice::of(strategy) == Choice::Automatic,
            details: None,
            cause: None,
            manifest: Vec::new(),
            advice: None,
        };
        match result {
            Ok(working) => tried.details = Some(working.into()),
            Err(explanation) => {
                tried.cause = Some(explanation.cause);
                tried.manifest = explanation.manifest;
                tried.advice = explanation.advice;
            }
        }
        tried
    }
}

impl From<Working> for Details {
    fn from(working: Working) -> Self {
        let [users, groups] = working.ids;
        Self {
            proc: match working.way.proc() {
                Some(ProcView::Own) => Proc::Own,
                Some(ProcView::Shared) => Proc::Shared,
                None => Proc::None,
            },
            seccomp: working.filter,
            user_namespace: match working.identity {
                Identity::Initial => UserNamespace::None,
                Identity::Ranges => UserNamespace::Ranges,
                Identity::Single => UserNamespace::Single,
            },
            users,
            groups,
            shortage: working.shortage,
        }
    }
}
