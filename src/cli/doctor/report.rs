//! What `builder doctor` found out, in the form that its JSON has: docs/isolation.md lists the fields.

use serde::Serialize;

use crate::sandbox::own::Identity;
use crate::sandbox::probe::{Explanation, Place, Working};
use crate::sandbox::{ProcView, Strategy};

/// Everything.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// `pod`, `container` or `machine`.
    pub(super) place: &'static str,
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
    pub(super) taken: Option<&'static str>,
    /// Whether a build without RUN works.
    pub(super) files: bool,
    /// Whether the system calls of a RUN are filtered.
    pub(super) seccomp: bool,
    /// All of them, strongest first.
    pub(super) strategies: Vec<Tried>,
}

/// A strategy that was tried.
#[derive(Debug, Serialize)]
pub(super) struct Tried {
    pub(super) name: &'static str,
    pub(super) works: bool,
    /// Whether a build takes it without being told.
    pub(super) unasked: bool,
    /// How it works, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) details: Option<Details>,
    /// Why it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cause: Option<String>,
    /// What in the pod's manifest would change that.
    pub(super) changes: Vec<String>,
    /// What else would.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) advice: Option<String>,
}

/// How a strategy works.
#[derive(Debug, Serialize)]
pub(super) struct Details {
    /// Which /proc a step has: `own`, `shared` or `none`.
    pub(super) proc: &'static str,
    /// Whether the build makes a user namespace: `none`, `ranges` or `single`.
    pub(super) user_namespace: &'static str,
    /// The users that there are, as ranges.
    pub(super) users: String,
    /// The groups that there are.
    pub(super) groups: String,
    /// Why these are fewer than they could be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) shortage: Option<String>,
}

/// Where layers are kept.
#[derive(Debug, Serialize)]
pub(super) struct Store {
    pub(super) path: String,
    pub(super) exists: bool,
    /// The type of its file system, as the kernel calls it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) file_system: Option<String>,
    /// What a build takes that is not told otherwise: `overlayfs` or `native`; nothing where there can be no store.
    pub(super) snapshotter: Option<&'static str>,
    /// Whether it is mounted noexec, which overlayfs does not mind and `native` does.
    pub(super) noexec: bool,
    /// Why not overlayfs, or why there can be no store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cause: Option<String>,
    /// What to do about that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) advice: Option<String>,
}

/// How programs for a platform run here.
#[derive(Debug, Serialize)]
pub(super) struct Platform {
    pub(super) platform: String,
    /// `native`, `predecessor`, `handler`, `unknown` or `missing`.
    pub(super) how: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) handler: Option<Handler>,
    /// What goes wrong with the handler.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) warnings: Vec<String>,
    /// Why they do not run, or why nobody knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cause: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) advice: Option<String>,
}

/// A handler of binfmt_misc.
#[derive(Debug, Serialize)]
pub(super) struct Handler {
    pub(super) name: String,
    pub(super) interpreter: String,
    pub(super) flags: String,
}

/// The word for a place.
pub(super) fn place(place: Place) -> &'static str {
    match place {
        Place::Pod => "pod",
        Place::Container => "container",
        Place::Machine => "machine",
    }
}

impl Tried {
    /// One that works.
    pub(super) fn working(strategy: Strategy, unasked: bool, working: Working) -> Self {
        let [users, groups] = working.ids;
        let details = Details {
            proc: match working.proc {
                Some(ProcView::Own) => "own",
                Some(ProcView::Shared) => "shared",
                None if strategy == Strategy::InPlace => "shared",
                None => "none",
            },
            user_namespace: match working.identity {
                Identity::Initial => "none",
                Identity::Ranges => "ranges",
                Identity::Single => "single",
            },
            users,
            groups,
            shortage: working.shortage,
        };
        Self { works: true, details: Some(details), ..Self::new(strategy, unasked) }
    }

    /// One that does not.
    pub(super) fn refused(strategy: Strategy, unasked: bool, explanation: Explanation) -> Self {
        let Explanation { cause, changes, advice } = explanation;
        Self { cause: Some(cause), changes, advice, ..Self::new(strategy, unasked) }
    }

    fn new(strategy: Strategy, unasked: bool) -> Self {
        let name = strategy.name();
        Self { name, works: false, unasked, details: None, cause: None, changes: Vec::new(), advice: None }
    }
}
