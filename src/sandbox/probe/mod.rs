//! Which ways to keep a step apart work here, found by trying.
//!
//! What a process may do follows from capabilities, filters of system calls, security modules, limits and hidden parts of
//! /proc, of which none can be asked and each may differ from pod to pod. So each way is tried, as a build would use it, in
//! a child of this process: the namespaces are entered and a step is begun whose command does not exist. That nothing but
//! the command is missing says that everything before it works.

mod explain;
mod place;

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, StatVfsMountFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use explain::Explanation;
pub use place::{Hints, OWN_IMAGE, Place, is_own_image};

use super::in_place::{self, InPlaceError};
use super::own::{self, Identity, Own, OwnError, Part, Wish};
use super::refusal::Facts;
use super::{
    Cancel, Chroot, HOSTNAME, Isolated, Network, Presentation, ProcView, Process, Sandbox, SandboxError,
    StartProblem, Strategy,
};
use crate::children;
use crate::rootfs::{GuestPath, Owner, ResolvedUser, Rootfs, remove_tree};
use crate::sys;

/// The command that is not there.
const COMMAND: &[u8] = b"/builder-tries-whether-steps-work";

/// The name of the empty root.
const ROOT: &str = "root";

/// The most that is read of a report, in bytes.
const LONGEST_REPORT: u64 = 1 << 16;

/// How a strategy works here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Working {
    /// Which /proc steps have, where they have one.
    pub proc: Option<ProcView>,
    /// The user namespace of the build.
    pub identity: Identity,
    /// The users and groups that there are, as ranges.
    pub ids: [String; 2],
    /// Why there are fewer than there could be.
    pub shortage: Option<String>,
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
    /// The kernel refused a namespace.
    Namespace {
        /// What was tried.
        part: Part,
        /// What the kernel said.
        errno: i32,
    },
    /// The kernel refused something that a step needs.
    Step {
        /// What was tried, for instance `mount /proc`.
        step: String,
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
            Strategy::MountNamespace | Strategy::Chroot | Strategy::InPlace if !own::may_give_files() => {
                Err(Obstacle::Powerless)
            }
            Strategy::Chroot if is_mounted_without_execution(self.directory) => Err(Obstacle::NoExecution),
            Strategy::InPlace => told(|| try_root(self.program)),
            Strategy::MountNamespace | Strategy::UserNamespace | Strategy::Chroot => {
                self.in_child(strategy, care)
            }
        }
    }

    /// What `obstacle` means, which is in the way of `strategy`.
    #[must_use]
    pub fn explain(&self, strategy: Strategy, obstacle: &Obstacle) -> Explanation {
        explain::explain(strategy, obstacle, self.place, &Facts::read())
    }

    fn in_child(&self, strategy: Strategy, care: Care) -> Result<Working, Obstacle> {
        let root = self.directory.join(ROOT);
        let made = rustix::fs::mkdir(&root, Mode::from_raw_mode(0o755));
        made.map_err(|error| Obstacle::Step {
            step: "make a directory".to_owned(),
            errno: error.raw_os_error(),
        })?;
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
            return Ok(working(own, None));
        }
        sys::enter_private_mounts().map_err(|error| obstacle_of(&OwnError::of_mounts(&error)))?;
        if clear {
            return Ok(working(own, Some(ProcView::Own)));
        }
        let try_with = |proc| {
            try_step(&Isolated::new(self.program, proc), root).map(|()| working(own.clone(), Some(proc)))
        };
        try_with(ProcView::Own).or_else(|_| try_with(ProcView::Shared))
    }
}

/// What a child has found.
fn told(body: impl FnOnce() -> Result<Working, Obstacle>) -> Result<Working, Obstacle> {
    let other = |message| Err(Obstacle::Other { message });
    match told_by_child(body) {
        Ok(told) => told.unwrap_or_else(|| other("the process that tried it was killed".to_owned())),
        Err(error) => other(format!("cannot start a process: {error}")),
    }
}

fn working(own: Own, proc: Option<ProcView>) -> Working {
    let ids = [own.ids.users().to_string(), own.ids.groups().to_string()];
    Working { proc, identity: own.identity, ids, shortage: own.shortage }
}

fn obstacle_of(error: &OwnError) -> Obstacle {
    match error {
        OwnError::Refused { part, errno, .. } => {
            Obstacle::Namespace { part: *part, errno: errno.raw_os_error() }
        }
        OwnError::Map { source, .. } => {
            let errno = Errno::from_io_error(source).unwrap_or(Errno::IO);
            Obstacle::Namespace { part: Part::Map, errno: errno.raw_os_error() }
        }
        OwnError::Helper(_) | OwnError::Unknown(_) => Obstacle::Other { message: error.to_string() },
    }
}

/// Begins a step in the empty directory `root` whose command is not there.
fn try_step(sandbox: &dyn Sandbox, root: &Path) -> Result<(), Obstacle> {
    let other = |message: String| Obstacle::Other { message };
    let cancel = Cancel::new().map_err(|error| other(error.to_string()))?;
    // Opened here: it must be a place of this mount namespace.
    let root = Rootfs::open(root).map_err(|error| other(error.to_string()))?;
    let process = Process {
        args: vec![COMMAND.to_vec()],
        env: Vec::new(),
        secret_env: Vec::new(),
        cwd: GuestPath::root(),
        user: ResolvedUser { owner: Owner::ROOT, groups: Vec::new(), home: b"/".to_vec() },
        hostname: HOSTNAME.to_owned(),
        hosts: Vec::new(),
        resolv_conf: Vec::new(),
        scripts: Vec::new(),
        mounts: Vec::new(),
        presentation: Presentation::Native,
        network: Network::Shared,
    };
    match sandbox.run(&root, &process, &mut |_, _| {}, &cancel) {
        Err(SandboxError::Start(StartProblem::Missing { .. })) => Ok(()),
        Err(SandboxError::Setup { step, source }) => {
            Err(Obstacle::Step { step, errno: source.raw_os_error().unwrap_or(Errno::IO.raw_os_error()) })
        }
        Err(SandboxError::NoDevices { .. }) => {
            Err(Obstacle::Step { step: "open `/dev/null`".to_owned(), errno: Errno::ACCESS.raw_os_error() })
        }
        Err(error) => {
            let source = std::error::Error::source(&error).map(|source| format!(": {source}"));
            Err(other(format!("{error}{}", source.unwrap_or_default())))
        }
        Ok(_) => Err(other("a command that does not exist ran".to_owned())),
    }
}

/// Whether programs in `directory` cannot be executed. An overlay above it would not mind.
#[must_use]
pub fn is_mounted_without_execution(directory: &Path) -> bool {
    rustix::fs::statvfs(directory).is_ok_and(|mount| mount.f_flag.contains(StatVfsMountFlags::NOEXEC))
}

/// Whether a step can run in the root of this container: see [`in_place::try_in`].
fn try_root(program: &Path) -> Result<Working, Obstacle> {
    let own = own::stay().map_err(|error| obstacle_of(&error))?;
    in_place::try_in(Path::new("/"), program, |sandbox, root| try_step(sandbox, root))
        .map_err(obstacle_in_root)??;
    Ok(working(own, None))
}

fn obstacle_in_root(error: InPlaceError) -> Obstacle {
    let (step, source) = match error {
        InPlaceError::Private { source, .. } => ("write to the root of the container", source),
        InPlaceError::Io { source, .. } => ("rename in the root of the container", source),
        error => return Obstacle::Other { message: error.to_string() },
    };
    Obstacle::Step { step: step.to_owned(), errno: source.raw_os_error().unwrap_or(Errno::IO.raw_os_error()) }
}

/// Runs `body` in a child, which has a copy of everything but descriptors, and gives what it gives; none when it was
/// killed before. To be called before there is any other thread.
///
/// # Errors
/// When no child can be started.
pub fn told_by_child<T: Serialize + DeserializeOwned>(body: impl FnOnce() -> T) -> io::Result<Option<T>> {
    let (report, reporting) = pipe_with(PipeFlags::CLOEXEC)?;
    let tell = |[reporting]: [OwnedFd; 1]| {
        let text = serde_json::to_vec(&body()).unwrap_or_default();
        let mut left = &text[..];
        while let Ok(length @ 1..) = rustix::io::write(&reporting, left) {
            left = left.get(length..).unwrap_or_default();
        }
    };
    let child = sys::fork_helper([reporting], tell)?;
    let mut text = Vec::new();
    let _ = File::from(report).take(LONGEST_REPORT).read_to_end(&mut text);
    children::wait_for_end(child);
    Ok(serde_json::from_slice(&text).ok())
}
