//! One process inside a root file system, cut off from the machine.
//!
//! ```text
//! builder (threads) ── socket: order and root in, reports out ──> supervisor ── fork ──> process 1 of a pid namespace
//!        <──────────────── pipes: standard output and error ───────────────────────────  own mounts, then the command
//! ```
//!
//! The supervisor is this program again, started with [`CHILD_ARGUMENT`]: a process with threads can neither fork safely
//! nor make a pid namespace its own. It ends process 1, and with it everything in the namespace, when the builder asks
//! for it, ends or is killed: each closes the socket. So nothing is left of a step, however the builder went.

mod agent;
mod allowed;
mod attach;
mod cancel;
mod child;
mod chroot;
mod descendants;
mod devices;
pub mod emulation;
mod failed_step;
mod furnish;
pub mod in_place;
mod indispensable;
mod launch;
mod loss;
mod mount;
pub mod mount_table;
mod mounts;
mod namespaces;
mod network;
mod old_root;
mod orphans;
pub mod own;
pub mod probe;
mod processes;
mod provided;
mod refusal;
mod resource;
mod running;
mod seccomp;
mod strategy;
mod stubs;
mod subordinate;
mod supervisor;
mod view;
mod wire;

use std::io;

use emulation::{Emulator, OwnHandlers};
use rustix::io::Errno;

pub use agent::{Agent, Forwarding};
pub use allowed::Filter;
pub use cancel::Cancel;
pub use child::{CHILD_ARGUMENT, child_main};
pub use chroot::Chroot;
pub use furnish::FurnishError;
pub use in_place::InPlace;
pub use indispensable::exit_when_dispensable;
pub use launch::StartProblem;
pub use loss::Loss;
pub use mount::{Bind, Content, KeptAt, Mount, Rights, Secret, SecretFile, Writes};
pub use namespaces::{Isolated, ProcView};
pub use processes::Survivors;
pub use refusal::{Act, Attempt, Explanation, Refusal};
pub use resource::ResourceLimit;
pub use seccomp::can_filter_system_calls;
pub use strategy::Strategy;
pub use view::View;

use crate::rootfs::{Escaped, GuestPath, Owner, ResolvedUser, Rootfs, RootfsError};

/// The host name that processes see, as under BuildKit.
pub const HOSTNAME: &str = "buildkitsandbox";

/// The most mounts of a process: each may take two descriptors, and the kernel passes no more than 253 at once.
pub const MAX_MOUNTS: usize = 100;

/// What to run. Nothing comes from the builder's own environment.
#[derive(Debug, Clone)]
pub struct Process {
    /// The program and its arguments. A program without a slash is looked for in the `PATH` of `env`.
    pub args: Vec<Vec<u8>>,
    /// The environment, in order.
    pub env: Vec<(Vec<u8>, Vec<u8>)>,
    /// Variables that are secrets; none of `env` has their names.
    pub secret_env: Vec<(Vec<u8>, Secret)>,
    /// The working directory, which must exist.
    pub cwd: GuestPath,
    /// User and groups.
    pub user: ResolvedUser,
    /// The host name, usually [`HOSTNAME`].
    pub hostname: String,
    /// What `/etc/hosts` holds meanwhile.
    pub hosts: Vec<u8>,
    /// What `/etc/resolv.conf` holds meanwhile.
    pub resolv_conf: Vec<u8>,
    /// Files at `/dev/pipes`.
    pub scripts: Vec<Script>,
    /// What is mounted besides, in order: at most [`MAX_MOUNTS`].
    pub mounts: Vec<Mount>,
    /// How the kernel presents the machine.
    pub presentation: Presentation,
    /// What runs its programs.
    pub runner: Runner,
    /// Its network.
    pub network: Network,
    /// What it may do.
    pub security: Security,
    /// Bytes that `/dev/shm` may hold; 64 MiB without it. Where nothing can be mounted it has no limit.
    pub shm_size: Option<u64>,
    /// Its limits, besides those of the builder.
    pub limits: Vec<ResourceLimit>,
}

/// What a process may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Security {
    /// What Docker's default capabilities and system calls allow.
    Confined,
    /// What the builder itself may do: all of its capabilities and system calls, and all of `/proc` and `/sys`. Only in
    /// namespaces.
    Unconfined,
}

/// The network of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// That of the builder.
    Shared,
    /// A loopback interface of its own and nothing else. Sockets that have a name in the file system lead to where they
    /// are all the same.
    None,
}

impl Process {
    /// A command of root's with nothing around it.
    fn bare(args: Vec<Vec<u8>>) -> Self {
        Self {
            args,
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
            runner: Runner::Processor,
            network: Network::Shared,
            security: Security::Confined,
            shm_size: None,
            limits: Vec::new(),
        }
    }

    /// The same for a supervisor in whose root scripts and mounts are already: it needs neither their content nor their
    /// descriptors.
    fn without_files(&self) -> Self {
        Self { scripts: Vec::new(), mounts: Vec::new(), ..self.clone() }
    }
}

/// A read-only file `/dev/pipes/NAME` with mode 0755.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script {
    /// The name, one path component.
    pub name: Vec<u8>,
    /// The content.
    pub content: Vec<u8>,
}

impl Script {
    /// Where it is, for messages.
    fn path(&self) -> String {
        format!("/dev/pipes/{}", Escaped::new(&self.name))
    }

    /// Its name in `/dev/pipes`; `EINVAL` for one that would lead elsewhere.
    fn file_name(&self) -> Result<&[u8], Errno> {
        let name = self.name.as_slice();
        let leads_elsewhere = matches!(name, b"" | b"." | b"..") || name.contains(&b'/');
        if leads_elsewhere { Err(Errno::INVAL) } else { Ok(name) }
    }
}

/// How the kernel presents the machine to a process (personality(2)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presentation {
    /// As what it is.
    Native,
    /// As its 32-bit predecessor: `uname -m` prints `i686` on x86-64 and `armv8l` on arm64.
    ThirtyTwoBit,
}

/// What runs programs.
#[derive(Debug, Clone)]
pub enum Runner {
    /// The processor.
    Processor,
    /// A handler of the machine, for programs of another processor.
    Handler,
    /// This one in its place, only where [`Sandbox::own_handlers`] says that it can be.
    Own(Emulator),
}

/// Which stream a chunk of output came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Error,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// By itself, with this code.
    Code(u8),
    /// By this signal.
    Signal(i32),
}

/// A way to run processes.
pub trait Sandbox: Sync {
    /// Runs `process` in `root` to its end and hands on its output in chunks of at most 64 KiB, as they come; a slow
    /// `output` slows the process down. When this returns, no process of the step is left.
    ///
    /// # Errors
    /// When the process could not be started, or was cancelled. A process that ran and failed is an [`Exit`].
    fn run(
        &self,
        root: &Rootfs,
        process: &Process,
        output: &mut dyn FnMut(Stream, &[u8]),
        cancel: &Cancel,
    ) -> Result<Exit, SandboxError>;

    /// Whether mounts are mounted. Else what is kept elsewhere ([`KeptAt`]) is moved to the process and back, and nobody else may use
    /// it meanwhile.
    fn mounts(&self) -> bool {
        true
    }

    /// Whether a process can have a handler of binfmt_misc of its own.
    fn own_handlers(&self) -> OwnHandlers {
        OwnHandlers::NoNamespace
    }

    /// What processes find around them now.
    ///
    /// # Errors
    /// When that cannot be found out.
    fn view(&self) -> Result<View, SandboxError>;
}

/// Why a process did not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// This program could not be started again.
    #[error("cannot start the process that holds the sandbox")]
    Spawn(#[source] io::Error),
    /// The socket or a pipe failed.
    #[error("cannot talk to the process that holds the sandbox")]
    Connection(#[source] io::Error),
    /// The supervisor ended without saying how the step did.
    #[error("the process that holds the sandbox was killed{}", .0)]
    Lost(Loss),
    /// Processes of a step, this one or one before, are still there. Nothing was moved that they could be in: of what was
    /// put there for the step only secrets are emptied, and in place the root is still an image's. Whoever gets this may
    /// remove the files of the step, but must rename none.
    #[error(
        "cannot end the step: {0}; restart the container, or end them: nothing runs beside them in this builder"
    )]
    Survivors(Survivors),
    /// The kernel refused part of the isolation.
    #[error("cannot {step} for the sandbox")]
    Setup {
        /// What was tried.
        step: Attempt,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The process is to run as somebody who does not exist in this user namespace.
    #[error("the process needs {kind} {id}, but this user namespace has only {kind}s {available}")]
    UnknownId {
        /// `user` or `group`.
        kind: &'static str,
        /// The number.
        id: u32,
        /// Which there are.
        available: String,
        /// Where the caller gets others.
        file: &'static str,
    },
    /// The root could not be prepared, or be given back its own files.
    #[error(transparent)]
    Furnish(#[from] FurnishError),
    /// The image has a device, and a step could open it.
    #[error(
        "`{path}` is a device, in the image or in a cache, and nothing here keeps a step from opening it: neither a mount (as with \
         --isolation=mount-namespace) nor the rules for devices that containers usually have"
    )]
    Device {
        /// Where it is.
        path: GuestPath,
    },
    /// It could not be found out whether the image has devices.
    #[error("cannot look for devices in the image")]
    Search(#[source] RootfsError),
    /// Nothing can be mounted there.
    #[error("cannot mount at `{path}`: {problem}")]
    MountTarget {
        /// As it was asked for.
        path: GuestPath,
        /// Why not.
        problem: String,
    },
    /// The process is to do what no step may do beside others.
    #[error(
        "RUN --security=insecure takes namespaces: with --isolation={0} all that keeps a step off other processes, and out of \
         their files, is what it may not do"
    )]
    Unconfined(Strategy),
    /// The working directory could not be entered.
    #[error("cannot enter the working directory `{path}`")]
    WorkingDirectory {
        /// The directory.
        path: GuestPath,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The step could not run in the container's root, or has damaged it.
    #[error(transparent)]
    InPlace(#[from] in_place::InPlaceError),
    /// The command could not be started.
    #[error(transparent)]
    Start(#[from] StartProblem),
    /// The build was cancelled.
    #[error("cancelled: {reason}")]
    Cancelled {
        /// What [`Cancel::cancel`] was told.
        reason: String,
    },
}
