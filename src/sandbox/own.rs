//! Namespaces of the builder's own, where it may mount and give files owners, whoever started it.
//!
//! Root with CAP_SYS_ADMIN has all that already. Everybody else gets a user namespace (user_namespaces(7)) in which they
//! are root: over what belonged to them before, and over the ids that `/etc/subuid` and `/etc/subgid` give them.
//! newuidmap(1) writes the map of such a namespace, and must do so from outside of it:
//!
//! ```text
//! builder ── fork ──> helper, outside
//!    │ unshare(2)       │
//!    ├───── go ────────>│ newgidmap, newuidmap
//!    │<──── report ─────┘ ends
//!    └ maps its own id alone where the helper has mapped nothing
//! ```

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, getpid};
use rustix::thread::{CapabilitySet, UnshareFlags};
use serde::{Deserialize, Serialize};

use super::allowed::{GIVING, NEEDED};
use super::child::{Step, during};
use super::probe::Place;
use super::refusal::{self, Act, Attempt, Facts, Refusal, Remedy};
use super::subordinate::Subordinate;
use crate::children::Asked;
use crate::rootfs::{IdMap, Owner};
use crate::sys;

/// Which ids to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// All that can be had.
    All,
    /// Only the caller's own, so that everything that is made belongs to the caller. Where no namespace is needed, this
    /// changes nothing.
    Single,
}

/// What was obtained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Identity {
    /// The user namespace that the process was started in: it is root there.
    Initial,
    /// A user namespace with many ids.
    Ranges,
    /// A user namespace with one user: the caller, as 0.
    Single,
}

/// The user namespace that this process is in.
#[derive(Debug, Clone)]
pub struct Own {
    /// What was obtained.
    pub identity: Identity,
    /// Which ids there are.
    pub ids: IdMap,
    /// Why there are fewer ids than was wished for.
    pub shortage: Option<Shortage>,
    /// What was tried and what came of it, for whoever looks for a fault; one line.
    pub detail: String,
}

/// Why there are fewer ids than was wished for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortage {
    users: String,
    groups: String,
    reason: Reason,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Reason {
    /// Root lacks these, with which it could map all that it has itself.
    Capabilities(CapabilitySet),
    /// Nobody gives the user any, in words for who has a machine.
    Words(String),
}

impl Shortage {
    /// Which there are and how to get more, in one line of the words of `place`.
    #[must_use]
    pub fn at(&self, place: Place) -> String {
        format!(
            "only users {} and groups {} can be used here, steps that need others fail: {}",
            self.users,
            self.groups,
            self.remedy(place)
        )
    }

    /// How to get more, in the words of `place`.
    #[must_use]
    pub fn remedy(&self, place: Place) -> String {
        match (&self.reason, place) {
            (Reason::Capabilities(lacking), _) => {
                let explanation = Refusal::lacking(*lacking).at(place);
                let remedy = explanation.remedy().map(|remedy| format!(": {remedy}")).unwrap_or_default();
                format!("{}{remedy}", explanation.cause)
            }
            // There are neither newuidmap nor files that give anybody ids.
            (Reason::Words(_), Place::Pod) => {
                let root = Refusal::new("").and(Remedy::Root).at(place).remedy().unwrap_or_default();
                format!("{root} give it all ids (with spec.hostUsers: false none of the node's)")
            }
            (Reason::Words(words), _) => words.clone(),
        }
    }
}

/// Why there is no namespace.
#[derive(Debug, thiserror::Error)]
pub enum OwnError {
    /// The kernel refuses one.
    #[error("cannot {attempt}, which a build needs: {}", refusal.cause)]
    Refused {
        /// What was tried.
        attempt: Attempt,
        /// What the kernel said.
        errno: Errno,
        /// What that means here.
        refusal: Box<Refusal>,
    },
    /// The process that maps ids could not be started.
    #[error("cannot start the process that maps user ids")]
    Helper(#[source] io::Error),
    /// /proc does not tell which ids there are.
    #[error("cannot read which ids this process has: builds need /proc")]
    Unknown(#[source] io::Error),
}

/// What to do where there can be no other process.
const HELPER: &str =
    "raise the limit of processes (`ulimit -u`, or `pids` of the container), or give it more memory";

impl OwnError {
    /// What to do about it, in the words of `place`.
    #[must_use]
    pub fn remedy(&self, place: Place) -> Option<String> {
        match self {
            Self::Refused { refusal, .. } => refusal.at(place).remedy(),
            Self::Unknown(_) => Some("as root: mount -t proc proc /proc".to_owned()),
            Self::Helper(_) => Some(HELPER.to_owned()),
        }
    }

    /// It was `attempt` that failed, with `error`, by the `facts` from before anything was changed.
    fn refused(attempt: Attempt, error: &io::Error, facts: &Facts) -> Self {
        let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
        let refusal = Box::new(refusal::explain(&attempt, errno, facts));
        Self::Refused { attempt, errno, refusal }
    }

    /// What it means that [`crate::sys::enter_private_mounts`] failed after [`enter`].
    #[must_use]
    pub fn of_mounts(error: &io::Error) -> Self {
        Self::refused(Act::MountNamespace.named("make a mount namespace"), error, &Facts::read())
    }
}

/// What this process may do.
pub(super) fn capabilities() -> CapabilitySet {
    rustix::thread::capabilities(None).map(|sets| sets.effective).unwrap_or(CapabilitySet::empty())
}

/// The number of the initial user namespace's file (`PROC_USER_INIT_INO` in linux/proc_ns.h), the same on every machine.
const INITIAL_USER_NAMESPACE: u64 = 0xEFFF_FFFD;

/// Whether this process is in the machine's own user namespace. Its ids do not tell: one that root makes in a container may
/// have all of them, too.
pub(super) fn is_in_initial_user_namespace() -> io::Result<bool> {
    Ok(rustix::fs::stat("/proc/self/ns/user")?.st_ino == INITIAL_USER_NAMESPACE)
}

/// Whether this process may mount where it is, as root with CAP_SYS_ADMIN.
#[must_use]
pub fn may_mount() -> bool {
    rustix::process::geteuid().is_root() && capabilities().contains(CapabilitySet::SYS_ADMIN)
}

/// Whether this process may give files to others, and change what belongs to them, as root usually may.
#[must_use]
pub fn may_give_files() -> bool {
    rustix::process::geteuid().is_root() && capabilities().contains(GIVING)
}

/// Whether this process may do what builder and a step cannot do without as root: give files to others, and become one of
/// them.
pub(super) fn has_what_root_needs() -> bool {
    rustix::process::geteuid().is_root() && capabilities().contains(NEEDED)
}

/// Moves this process into a user namespace of its own, unless it may mount where it is. For the rest see
/// [`enter_user_namespace`].
///
/// # Errors
/// [`OwnError`].
pub fn enter(wish: Wish) -> Result<Own, OwnError> {
    if may_mount() { stay() } else { enter_user_namespace(wish) }
}

/// What this process has where it is.
///
/// # Errors
/// [`OwnError::Unknown`].
pub fn stay() -> Result<Own, OwnError> {
    let ids = IdMap::of_this_process().map_err(OwnError::Unknown)?;
    let detail =
        format!("no user namespace of its own; there are users {} and groups {}", ids.users(), ids.groups());
    Ok(Own { identity: Identity::Initial, ids, shortage: None, detail })
}

/// Moves this process into a user namespace of its own, whatever it may do already. To be called before there is any other
/// thread, and before [`crate::sys::enter_private_mounts`], which may fail without this. Descriptors, directory and the
/// supplementary groups by which the caller may read files stay.
///
/// # Errors
/// [`OwnError`]; the process is as it was, or in a namespace without ids, and should end.
pub fn enter_user_namespace(wish: Wish) -> Result<Own, OwnError> {
    let before = IdMap::of_this_process().map_err(OwnError::Unknown)?;
    let capabilities = capabilities();
    let caller = Owner { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() };
    let (writer, lacking) = match wish {
        Wish::Single => (None, None),
        Wish::All => match Writer::of(caller, &before, capabilities) {
            Ok(writer) => (Some(writer), None),
            Err(lacking) => (None, Some(lacking)),
        },
    };
    let helper = writer.map(Helper::start).transpose().map_err(OwnError::Helper)?;
    sys::unshare(UnshareFlags::NEWUSER).map_err(|error| {
        OwnError::refused(Act::UserNamespace.named("make a user namespace"), &error, &Facts::read())
    })?;
    let problem = helper.and_then(Helper::map).map(Reason::Words).or(lacking);
    let read = || IdMap::of_this_process().map_err(OwnError::Unknown);
    map_own(caller, &read()?).map_err(|(attempt, error)| {
        // In there everybody may do everything, and who is not mapped is nobody.
        let facts = Facts { uid: caller.uid, capabilities, ..Facts::read() };
        OwnError::refused(attempt, &error, &facts)
    })?;
    let ids = read()?;
    let identity = if ids.is_single() { Identity::Single } else { Identity::Ranges };
    let detail = format!("in a user namespace with users {} and groups {}", ids.users(), ids.groups());
    Ok(match problem {
        None => Own { identity, ids, shortage: None, detail },
        Some(reason) => {
            let detail = match &reason {
                Reason::Capabilities(lacking) => format!("{detail}; {}", Refusal::lacking(*lacking).cause),
                Reason::Words(words) => format!("{detail}; {}", words.replace('\n', "; ")),
            };
            let reason = match reason {
                Reason::Words(words) => Reason::Words(words.lines().next().unwrap_or_default().to_owned()),
                capabilities => capabilities,
            };
            let [users, groups] = [ids.users().to_string(), ids.groups().to_string()];
            Own { identity, ids, shortage: Some(Shortage { users, groups, reason }), detail }
        }
    })
}

/// Who writes the map of a namespace with many ids.
enum Writer {
    /// A process that may take any id there is (root in a container without CAP_SYS_ADMIN) gives the namespace all that
    /// it has itself.
    Caller { users: String, groups: String },
    /// newuidmap and newgidmap.
    Programs(Subordinate),
}

impl Writer {
    fn of(caller: Owner, ids: &IdMap, capabilities: CapabilitySet) -> Result<Self, Reason> {
        let lacking = (CapabilitySet::SETUID | CapabilitySet::SETGID).difference(capabilities);
        if caller == Owner::ROOT && lacking.is_empty() {
            return Ok(Self::Caller { users: ids.users().identity(), groups: ids.groups().identity() });
        }
        Subordinate::of(caller).map(Self::Programs).map_err(|problem| match caller.uid {
            0 if !lacking.is_empty() => Reason::Capabilities(lacking),
            _ => Reason::Words(problem.to_string()),
        })
    }

    fn write(&self, process: Pid) -> Result<(), String> {
        let process = process.as_raw_nonzero().get();
        match self {
            Self::Programs(subordinate) => subordinate.map(process),
            Self::Caller { users, groups } => {
                for (name, map) in [("gid_map", groups), ("uid_map", users)] {
                    // One write: a second is refused.
                    std::fs::write(format!("/proc/{process}/{name}"), map)
                        .map_err(|error| format!("cannot write {name}: {error}"))?;
                }
                Ok(())
            }
        }
    }
}

/// A user namespace inside the one that this process is in, with the same ids, which is yet to be entered.
///
/// A step that sees processes of others in /proc is kept off them by it: to trace a process, or to read its memory,
/// environment and descriptors and go through its root and directories, takes CAP_SYS_PTRACE in the namespace of that
/// process when it is another (ptrace(2), "Ptrace access mode checking"). All capabilities of the step count in its own.
pub(super) struct Inner(Helper);

impl Inner {
    /// Starts the process that will map the ids. It has the root that this process has now, with its /proc.
    pub(super) fn prepare() -> Step<Self> {
        let ids = during(IdMap::of_this_process(), "read which ids there are")?;
        let writer = Writer::Caller { users: ids.users().identity(), groups: ids.groups().identity() };
        during(Helper::start(writer), "start the process that maps ids").map(Self)
    }

    /// Moves this process into the namespace, where it has all capabilities.
    pub(super) fn enter(self) -> Step<()> {
        self.enter_with(UnshareFlags::empty())
    }

    /// The same, with a copy of the mounts that belongs to the namespace, so that it may mount.
    pub(super) fn enter_with_mounts(self) -> Step<()> {
        self.enter_with(UnshareFlags::NEWNS)
    }

    fn enter_with(self, others: UnshareFlags) -> Step<()> {
        during(sys::unshare(UnshareFlags::NEWUSER | others), "make a user namespace of its own")?;
        match self.0.map() {
            None => Ok(()),
            // Mapping many takes CAP_SETUID, CAP_SETGID and, since Linux 5.12, CAP_SETFCAP outside.
            Some(problem) => {
                during(Err(Errno::PERM), format!("map ids in a user namespace of its own: {problem}"))
            }
        }
    }
}

/// A process that stays outside, to map ids from there. Dropped early, it ends: in this order, which closes the pipe first.
struct Helper {
    go: OwnedFd,
    child: Asked<Result<(), String>>,
}

impl Helper {
    fn start(writer: Writer) -> io::Result<Self> {
        let target = getpid();
        let (waiting, go) = pipe_with(PipeFlags::CLOEXEC)?;
        let child = Asked::start([waiting], move |[waiting]| {
            // Of signals that are ignored, its children would inherit that.
            sys::reset_signals();
            match rustix::io::read(&waiting, &mut [0]) {
                Ok(1) => writer.write(target),
                // The end of the pipe without a word: there is no namespace to map.
                _ => Ok(()),
            }
        })?;
        Ok(Self { go, child })
    }

    /// Lets it map ids; what went wrong, if something did.
    fn map(self) -> Option<String> {
        let Self { go, mut child } = self;
        if let Err(error) = rustix::io::write(go, b"g") {
            return Some(format!("the process that maps user ids was lost: {error}"));
        }
        match child.answer() {
            Some(result) => result.err(),
            None => Some("the process that maps user ids was lost".to_owned()),
        }
    }
}

/// Maps the caller's own user and group as 0, each where there is no map yet.
fn map_own(caller: Owner, ids: &IdMap) -> Result<(), (Attempt, io::Error)> {
    let write = |path: &str, text: &str| {
        std::fs::write(path, text).map_err(|error| (Act::MapIds.named(format!("write `{path}`")), error))
    };
    if ids.groups().are_none() {
        // Without privileges a group may be mapped only by who gives up setgroups(2), which could else be used to get
        // rid of a group that denies something (CVE-2014-8989).
        match write("/proc/self/setgroups", "deny") {
            Err((_, error)) if error.kind() == io::ErrorKind::NotFound => {}
            result => result?,
        }
        write("/proc/self/gid_map", &format!("0 {} 1", caller.gid))?;
    }
    if ids.users().are_none() {
        write("/proc/self/uid_map", &format!("0 {} 1", caller.uid))?;
    }
    Ok(())
}
