//! Steps in the root of the container that the builder runs in.

use std::path::PathBuf;

use super::running::{self, Command};
use super::wire::Confinement;
use super::{Cancel, Exit, Process, Sandbox, SandboxError, Stream};
use crate::rootfs::Rootfs;

/// Runs steps in the root of the container that the builder runs in.
#[derive(Debug, Clone)]
pub struct InPlace {
    program: PathBuf,
}

impl InPlace {
    /// `program` as for [`super::Isolated::new`].
    #[must_use]
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into() }
    }
}

impl Sandbox for InPlace {
    fn run(
        &self,
        root: &Rootfs,
        process: &Process,
        output: &mut dyn FnMut(Stream, &[u8]),
        cancel: &Cancel,
    ) -> Result<Exit, SandboxError> {
        running::check(process, cancel)?;
        Command { program: &self.program, confinement: Confinement::InPlace, process }
            .run(root, output, cancel)
    }
}
