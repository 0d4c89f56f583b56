//! The builder's side of a step in namespaces of its own.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::emulation::OwnHandlers;
use super::furnish::FurnishError;
use super::provided::make_kernel_directories;
use super::running::{self, Command};
use super::stubs::Stubs;
use super::wire::Confinement;
use super::{Cancel, Exit, Process, Sandbox, SandboxError, Stream, View};
use crate::rootfs::Rootfs;

/// Which /proc a step in namespaces has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProcView {
    /// One of its own: it sees only its own processes, numbered from 1.
    Own,
    /// The builder's, where parts of that are hidden, as in containers, and the kernel allows no new one in a user
    /// namespace. The step is in the builder's pid namespace then, so that numbers mean the same everywhere.
    Shared,
}

/// Runs steps in their own mount, ipc, uts and control group namespaces, and in a pid namespace with [`ProcView::Own`],
/// on the network of the machine. Needs CAP_SYS_ADMIN in the user namespace that this process is in: see [`super::own`].
#[derive(Debug, Clone)]
pub struct Isolated {
    program: PathBuf,
    proc: ProcView,
}

impl Isolated {
    /// `program` is what calls [`super::child_main`] when its first argument is [`super::CHILD_ARGUMENT`]: usually
    /// `/proc/self/exe`.
    #[must_use]
    pub fn new(program: impl Into<PathBuf>, proc: ProcView) -> Self {
        Self { program: program.into(), proc }
    }
}

impl Sandbox for Isolated {
    fn run(
        &self,
        root: &Rootfs,
        process: &Process,
        output: &mut dyn FnMut(Stream, &[u8]),
        cancel: &Cancel,
    ) -> Result<Exit, SandboxError> {
        running::check(process, cancel)?;
        make_kernel_directories(root)?;
        let mut stubs = Stubs::make(root, &process.mounts)?;
        let confinement = Confinement::Namespaces { proc: self.proc };
        let result = Command { program: &self.program, confinement, process }.run(root, output, cancel);
        let removed = stubs.remove();
        let exit = result?;
        removed.map_err(FurnishError::Restore)?;
        Ok(exit)
    }

    fn own_handlers(&self) -> OwnHandlers {
        OwnHandlers::of_kernel()
    }

    fn view(&self) -> Result<View, SandboxError> {
        Ok(match self.proc {
            ProcView::Own => View::Own,
            ProcView::Shared => View::SharedProcesses,
        })
    }
}
