//! Steps in a root directory of their own, where mounts are not allowed.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::thread::CapabilitySet;

use super::child::{Step, during};
use super::running::{self, Command};
use super::wire::Confinement;
use super::{Cancel, Exit, Process, Sandbox, SandboxError, Stream, launch};
use crate::rootfs::Rootfs;

/// What a step may do: without CAP_SYS_CHROOT, by which it could leave its root, and which the builder keeps, so that no
/// step may trace it.
pub(super) const CAPABILITIES: CapabilitySet = launch::CAPABILITIES.difference(CapabilitySet::SYS_CHROOT);

/// Runs steps in a root directory of their own, with a small /dev, and without /proc.
#[derive(Debug, Clone)]
pub struct Chroot {
    program: PathBuf,
}

impl Chroot {
    /// `program` as for [`super::Isolated::new`].
    #[must_use]
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into() }
    }
}

impl Sandbox for Chroot {
    fn run(
        &self,
        root: &Rootfs,
        process: &Process,
        output: &mut dyn FnMut(Stream, &[u8]),
        cancel: &Cancel,
    ) -> Result<Exit, SandboxError> {
        running::check(process, cancel)?;
        Command { program: &self.program, confinement: Confinement::Chroot, process }
            .run(root, output, cancel)
    }
}

/// Makes `root` the root of this process.
pub(super) fn enter(root: OwnedFd) -> Step<()> {
    during(rustix::process::fchdir(&root), "enter the root")?;
    during(rustix::process::chroot("."), "change the root")
}
