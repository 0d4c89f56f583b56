//! Which ways to keep a step apart work here, found by trying.
//!
//! What a process may do follows from capabilities, filters of system calls, security modules, limits and hidden parts of
//! /proc, of which none can be asked and each may differ from pod to pod. So each way is tried, as a build would use it, in
//! a child of this process: the namespaces are entered and a step is begun whose command does not exist. That nothing but
//! the command is missing says that everything before it works.

mod explain;
mod place;

use std::os::fd::AsFd as _;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;
use serde::{Deserialize, Serialize};

pub use place::{Hints, Place, is_own_image};

use super::allowed::Filter;
use super::in_place::{self, InPlaceError};
use super::mount_table::forbids_execution;
use super::own::{self, Identity, Own, OwnError, Wish};
use super::refusal::{Act, Attempt, Explanation, Facts, Refusal};
use super::{Cancel, Chroot, Isolated, ProcView, Process, Sandbox, SandboxError, StartProblem, Strategy};
use crate::children;
use crate::rootfs::{Rootfs, remove_tree};
use crate::sys;

/// The command that is not there.
const COMMAND: &[u8] = b"/builder-tries-whether-steps-work";

/// The name of the empty root.
const ROOT: &str = "root";

/// How a strategy works here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Working {
    /// What a step is in.
    pub way: Way,
    /// Whose filter of system calls a step is under.
    pub filter: Filter,
    /// The user namespace of the build.
    pub identity: Identity,
    /// The users and groups that there are, as ranges.
    pub ids: [String; 2],
    /// Why there are fewer than there could be.
    pub shortage: Option<String>,
}

/// What a step is in, as far as that is the same for several strategies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Way {
    /// Namespaces of its own, with this /proc.
    Namespaces(ProcView),
    /// A root directory of its own.
    Chroot,
    /// The root of the container.
    InPlace,
}

impl Way {
    /// Whether the build mounts anything, for a step or for the files of a stage.
    #[must_use]
    pub fn mounts(self) -> bool {
        match self {
            Self::Namespaces(_) => true,
            Self::Chroot | Self::InPlace => false,
        }
    }

    /// Which `/proc` a step has, if it has one.
    #[must_use]
    pub fn proc(self) -> Option<ProcView> {
        match self {
            Self::Namespaces(proc) => Some(proc),
            Self::InPlace => Some(ProcView::Shared),
            Self::Chroot => None,
        }
    }

    /// Whose filter of system calls a step is under, if this process starts it.
    fn filter(self) -> Filter {
        match self {
            Self::Namespaces(_) => Filter::inside(),
            Self::Chroot | Self::InPlace => Filter::beside_others(),
        }
    }
}

/// What is in the way of a strategy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Obstacle {
    /// This version has no such thing yet.
    Unfinished,
    /// The process is not root.
    NotRoot {
        /// Who it is.
        uid: u32,
    },
    /// The process lacks CAP_SYS_ADMIN.
    NoAdministrator,
    /// The process is root, without what makes root what it is.
    Powerless,
    /// The root that it would use is that of a machine.
    NoContainer,
    /// No program on the file system of the steps can be executed.
    NoExecution,
    /// The kernel refused something that a step needs.
    Refused {
        /// What was tried.
        attempt: Attempt,
        /// What the kernel said.
        errno: i32,
    },
    /// Something else.
    Other {
        /// What.
        message: String,
    },
}

/// How much is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Care {
    /// Everything.
    Full,
    /// Not what is sure to work, once the namespaces are there, where no filter, security module or user namespace is
    /// around this process: a step. A build that need not run any shall not pay for one.
    Usual,
}

/// Where strategies are tried.
#[derive(Debug, Clone, Copy)]
pub struct Ground<'a> {
    /// What calls [`super::child_main`], as for [`Isolated::new`].
    pub program: &'a Path,
    /// An empty directory on the file system on which steps will work.
    pub directory: &'a Path,
    /// What is around this process.
    pub place: Place,
}

impl Ground<'_> {
    /// Tries `strategy` in a child. To be called before there is any other thread.
    ///
    /// # Errors
    /// What is in the way.
    pub fn attempt(&self, strategy: Strategy, care: Care) -> Result<Working, Obstacle> {
        let uid = rustix::process::geteuid().as_raw();
        match strategy {
            Strategy::SecondContainer => Err(Obstacle::Unfinished),
            Strategy::InPlace if self.place == Place::Machine => Err(Obstacle::NoContainer),
            Strategy::MountNamespace | Strategy::Chroot | Strategy::InPlace if uid != 0 => {
                Err(Obstacle::NotRoot { uid })
            }
            Strategy::MountNamespace if !own::may_mount() => Err(Obstacle::NoAdministrator),
            Strategy::MountNamespace | Strategy::Chroot | Strategy::InPlace
                if !own::has_what_root_needs() =>
            {
                Err(Obstacle::Powerless)
            }
            Strategy::Chroot if forbids_execution(self.directory) => Err(Obstacle::NoExecution),
            Strategy::InPlace => told(|| try_root(self.program, self.place)),
            Strategy::MountNamespace | Strategy::UserNamespace | Strategy::Chroot => {
                self.in_child(strategy, care)
            }
        }
    }

    /// What `obstacle` means, which is in the way of `strategy`.
    #[must_use]
    pub fn explain(&self, strategy: Strategy, obstacle: &Obstacle) -> Explanation {
        explain::explain(strategy, obstacle, &Facts::read()).at(self.place)
    }

    fn in_child(&self, strategy: Strategy, care: Care) -> Result<Working, Obstacle> {
        let root = self.directory.join(ROOT);
        let made = rustix::fs::mkdir(&root, Mode::from_raw_mode(0o755));
        made.map_err(refused("make a directory"))?;
        let result = told(|| self.as_a_build_would(strategy, care, &root));
        // What cannot be removed goes with the directory.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let _ = rustix::fs::open(self.directory, flags, Mode::empty())
            .map(|directory| remove_tree(directory.as_fd(), ROOT.as_bytes()));
        result
    }

    fn as_a_build_would(&self, strategy: Strategy, care: Care, root: &Path) -> Result<Working, Obstacle> {
        let clear = care == Care::Usual && self.place == Place::Machine && Facts::read().are_clear();
        let own = match strategy {
            Strategy::UserNamespace => own::enter_user_namespace(Wish::All),
            _ => own::stay(),
        };
        let own = own.map_err(|error| obstacle_of(&error))?;
        if strategy == Strategy::Chroot {
            try_step(&Chroot::new(self.program, self.directory), root)?;
            return Ok(working(own, Way::Chroot, self.place));
        }
        sys::enter_private_mounts().map_err(|error| obstacle_of(&OwnError::of_mounts(&error)))?;
        if clear {
            return Ok(working(own, Way::Namespaces(ProcView::Own), self.place));
        }
        let try_with = |proc| try_step(&Isolated::new(self.program, proc), root).map(|()| proc);
        let proc = try_with(ProcView::Own)
            .or_else(|first| try_with(ProcView::Shared).map_err(|second| first.or(second)))?;
        Ok(working(own, Way::Namespaces(proc), self.place))
    }
}

impl Obstacle {
    /// Which of two explains why there can be no step: this one, met with a /proc of its own, or the one met with that of the
    /// container. Almost always this; but a new /proc is refused in most containers, which by itself is in nobody's way.
    fn or(self, shared: Self) -> Self {
        match self {
            Self::Refused { attempt: Attempt { act: Act::NewProc, .. }, .. } => shared,
            own => own,
        }
    }
}

/// What a child has found.
fn told(body: impl FnOnce() -> Result<Working, Obstacle>) -> Result<Working, Obstacle> {
    let other = |message| Err(Obstacle::Other { message });
    match children::ask(body) {
        Ok(told) => told.unwrap_or_else(|| other("the process that tried it was killed".to_owned())),
        Err(error) => other(format!("cannot start a process: {error}")),
    }
}

/// What becomes of an answer of the kernel to `attempt`.
fn refused(attempt: impl Into<Attempt>) -> impl FnOnce(Errno) -> Obstacle {
    let attempt = attempt.into();
    move |error| Obstacle::Refused { attempt, errno: error.raw_os_error() }
}

fn working(own: Own, way: Way, place: Place) -> Working {
    let ids = [own.ids.users().to_string(), own.ids.groups().to_string()];
    Working {
        way,
        filter: way.filter(),
        identity: own.identity,
        ids,
        shortage: own.shortage.map(|shortage| shortage.at(place)),
    }
}

/// Why a step that is kept apart by `strategy` cannot have a network of its own, as far as the capabilities of this process,
/// which has not entered any namespace of users, tell.
#[must_use]
pub fn network_refusal(strategy: Strategy, place: Place) -> Option<Explanation> {
    let facts = Facts::read();
    let lacks = !facts.capabilities.contains(CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN);
    (lacks && strategy != Strategy::UserNamespace).then(|| {
        let attempt = Act::NetworkNamespace.named("make a network namespace");
        explain::explain_step(strategy, &attempt, Errno::PERM, &facts).at(place)
    })
}

/// What it means that a step which is kept apart by `strategy` failed in `attempt` with `errno`.
pub(super) fn explain_step(strategy: Strategy, attempt: &Attempt, errno: Errno) -> Refusal {
    explain::explain_step(strategy, attempt, errno, &Facts::read())
}

fn obstacle_of(error: &OwnError) -> Obstacle {
    match error {
        OwnError::Refused { attempt, errno, .. } => refused(attempt.clone())(*errno),
        OwnError::Helper(_) | OwnError::Unknown(_) => Obstacle::Other { message: error.to_string() },
    }
}

/// Begins a step in the empty directory `root` whose command is not there.
fn try_step(sandbox: &dyn Sandbox, root: &Path) -> Result<(), Obstacle> {
    let other = |message: String| Obstacle::Other { message };
    let cancel = Cancel::new().map_err(|error| other(error.to_string()))?;
    // Opened here: it must be a place of this mount namespace.
    let root = Rootfs::open(root).map_err(|error| other(error.to_string()))?;
    let process = Process::bare(vec![COMMAND.to_vec()]);
    match sandbox.run(&root, &process, &mut |_, _| {}, &cancel) {
        Err(SandboxError::Start(StartProblem::Missing { .. })) => Ok(()),
        Err(SandboxError::Setup { step, source }) => {
            Err(refused(step)(Errno::from_io_error(&source).unwrap_or(Errno::IO)))
        }
        Err(error) => {
            let source = std::error::Error::source(&error).map(|source| format!(": {source}"));
            Err(other(format!("{error}{}", source.unwrap_or_default())))
        }
        Ok(_) => Err(other("a command that does not exist ran".to_owned())),
    }
}

/// Whether a step can run in the root of this container: see [`in_place::try_in`].
fn try_root(program: &Path, place: Place) -> Result<Working, Obstacle> {
    let own = own::stay().map_err(|error| obstacle_of(&error))?;
    in_place::try_in(Path::new("/"), program, |sandbox, root| try_step(sandbox, root))
        .map_err(obstacle_in_root)??;
    Ok(working(own, Way::InPlace, place))
}

fn obstacle_in_root(error: InPlaceError) -> Obstacle {
    let (attempt, source) = match error {
        InPlaceError::Private { source, .. } => {
            (Act::WriteRoot.named("write to the root of the container"), source)
        }
        InPlaceError::Io { source, .. } => ("rename in the root of the container".into(), source),
        error => return Obstacle::Other { message: error.to_string() },
    };
    refused(attempt)(Errno::from_io_error(&source).unwrap_or(Errno::IO))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_explains_unless_it_is_that_of_a_new_proc() {
        let met = |attempt: Attempt| refused(attempt)(Errno::PERM);
        let root = || met(Act::LeaveRoot.named("change the root"));
        assert_eq!(root().or(met("bind `/proc`".into())), root());
        assert_eq!(met(Act::NewProc.named("mount `/proc`")).or(root()), root());
        let other = || Obstacle::Other { message: "killed".to_owned() };
        assert_eq!(other().or(root()), other());
    }
}
