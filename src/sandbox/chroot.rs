//! Steps in a root directory of their own, where mounts are not allowed.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::OnceLock;

use super::child::{Step, during};
use super::devices::Rules;
use super::furnish::{Home, KernelDirectories};
use super::refusal::Act;
use super::running::{self, Command};
use super::wire::Confinement;
use super::{Cancel, Exit, Process, Sandbox, SandboxError, Stream, View};
use crate::limit::Limit;
use crate::rootfs::Rootfs;

/// The most bytes of names that are remembered while a tree with hard links is copied, unless somebody says otherwise.
pub(super) const NAMES: Limit = Limit::new("layer-names", 64 << 20);

/// Runs steps in a root directory of their own, with a small /dev, and without /proc. Nothing is mounted: what a step
/// finds besides the image is put into its root before, and taken away afterwards.
///
/// The root must be a plain directory on the same file system as the directory aside, and in the same mount.
#[derive(Debug, Clone)]
pub struct Chroot {
    program: PathBuf,
    aside: PathBuf,
    names: Limit,
    /// Found out before the first step.
    devices: OnceLock<Rules>,
}

impl Chroot {
    /// `program` as for [`super::Isolated::new`]; `aside` is a directory out of the reach of steps for what they must not
    /// see meanwhile.
    #[must_use]
    pub fn new(program: impl Into<PathBuf>, aside: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), aside: aside.into(), names: NAMES, devices: OnceLock::new() }
    }

    /// With another limit of names of files with several, as in [`crate::rootfs::TreeCopy`].
    #[must_use]
    pub fn within(self, names: Limit) -> Self {
        Self { names, ..self }
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
        let home = Home { root, aside: &self.aside, kernel: KernelDirectories::Covered, names: self.names };
        let devices = *self.devices.get_or_init(|| Rules::find(&self.aside));
        let furnished = home.furnish(process, cancel)?;
        devices.check(root, None)?;
        let command = Command {
            program: &self.program,
            confinement: Confinement::Chroot { devices },
            process: &process.without_files(),
        };
        let result = command.run(root, output, cancel);
        if matches!(result, Err(SandboxError::Survivors(_))) {
            // A process that is in a directory while that is moved out of its root can go up from there, to the root of
            // the container.
            furnished.leave();
            return result;
        }
        let removed = furnished.remove();
        let exit = result?;
        removed?;
        Ok(exit)
    }

    fn view(&self) -> Result<View, SandboxError> {
        Ok(View::WithoutMounts)
    }
}

/// Makes `root` the root of this process.
pub(super) fn enter(root: OwnedFd) -> Step<()> {
    during(rustix::process::fchdir(&root), "enter the root")?;
    during(rustix::process::chroot("."), Act::ChangeRoot.named("change the root"))
}
