//! Steps in the root of the container that the builder runs in.
//!
//! Where a container may neither mount nor change its root, a step can only run in the root that is there. For its time the
//! files of the stage and those of the container change places (see `exchange`); before and after, the container is what
//! it was, whatever becomes of the build. What stays is what cannot be moved (mounts) and what the builder needs; a step
//! can see and change all of that: nothing keeps it off.

mod claim;
mod devices;
mod error;
mod exchange;
mod face;
#[cfg(test)]
mod fault;
mod fixed;
mod identity;
mod journal;
mod kept;
mod living;
mod moving;
#[cfg(test)]
mod overlay_test;
mod own_root;
mod scripts;
#[cfg(test)]
mod tests;
mod trial;
mod troubles;
mod way;

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};

pub use claim::{Claim, PRIVATE_DIRECTORY};
pub(super) use claim::{leave_to_next, take_over};
pub use error::InPlaceError;
pub(super) use identity::{bring_home, is_at};
pub use kept::kept_in_place;
pub use own_root::{ForeignRoot, OwnRootError, Repaired, find_foreign_root};
pub(super) use trial::try_in;

use self::devices::Devices;
use super::devices::Rules;
use super::furnish::{Home, KernelDirectories};
use super::provided::is_of_kernel;
use super::running::{self, Command};
use super::wire::Confinement;
use super::{Cancel, Exit, Process, Sandbox, SandboxError, Strategy, Stream, View, chroot};
use crate::limit::Limit;
use crate::rootfs::{GuestPath, Rootfs};
use exchange::Exchange;
use fixed::{Fixed, Needed};
use scripts::Scripts;

/// Runs steps in the root of the container that the builder runs in.
#[derive(Debug)]
pub struct InPlace<'a> {
    program: PathBuf,
    claim: &'a Claim,
    protected: Vec<GuestPath>,
    names: Limit,
    /// Found out before the first step.
    devices: OnceLock<Rules>,
    /// There is one root.
    turn: Mutex<()>,
}

impl<'a> InPlace<'a> {
    /// `program` as for [`super::Isolated::new`]; it must not need files of the root, such as a dynamic loader, since those
    /// may be an image's. `protected` are the files and directories, as paths in the container's root, that the builder
    /// needs or the user gave it: they stay where they are, if they are there. The trees of stages must be in
    /// [`Claim::trees`].
    #[must_use]
    pub fn new(program: impl Into<PathBuf>, claim: &'a Claim, protected: &[GuestPath]) -> Self {
        let protected = protected.iter().cloned().chain([Claim::private_path()]).collect();
        let devices = OnceLock::new();
        Self {
            program: program.into(),
            claim,
            protected,
            names: chroot::NAMES,
            devices,
            turn: Mutex::new(()),
        }
    }

    /// With another limit of names of files with several, as in [`crate::rootfs::TreeCopy`].
    #[must_use]
    pub fn within(self, names: Limit) -> Self {
        Self { names, ..self }
    }

    /// What steps can see and change of this container besides their image: mounts and protected files, but for the
    /// kernel's and those of name resolution.
    ///
    /// # Errors
    /// When it cannot be found out what is mounted.
    pub fn seen_by_steps(&self) -> Result<Vec<GuestPath>, InPlaceError> {
        let mut seen = Fixed::find(self.claim.root(), &self.protected)?.telling();
        seen.retain(|path| *path != Claim::private_path());
        Ok(seen)
    }

    /// The path that stays, and is or holds `path`, so that a step sees what the container has there; none for what is the
    /// kernel's.
    ///
    /// # Errors
    /// When it cannot be found out what is mounted.
    pub fn hiding(&self, path: &GuestPath) -> Result<Option<GuestPath>, InPlaceError> {
        let fixed = Fixed::find(self.claim.root(), &self.protected)?;
        Ok(fixed.holder_of(path).filter(|holder| !is_of_kernel(holder)).cloned())
    }

    /// Whether the step uses what the container hides from it.
    fn check(&self, fixed: &Fixed, root: &Rootfs, process: &Process) -> Result<(), SandboxError> {
        let used = std::iter::once(&process.cwd).chain(process.mounts.iter().map(|mount| &mount.target));
        for path in used {
            // What is wrong with the path is said by whoever uses it.
            let Ok(place) = root.resolve(path) else { continue };
            let holder = fixed.holder_of(&place).filter(|holder| !is_of_kernel(holder));
            if let Some(holder) = holder {
                return Err(InPlaceError::Covered { path: path.clone(), fixed: holder.clone() }.into());
            }
        }
        Ok(())
    }
}

impl Sandbox for InPlace<'_> {
    fn run(
        &self,
        root: &Rootfs,
        process: &Process,
        output: &mut dyn FnMut(Stream, &[u8]),
        cancel: &Cancel,
    ) -> Result<Exit, SandboxError> {
        running::check(process, cancel)?;
        running::check_confined(process, Strategy::InPlace)?;
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let fixed = Fixed::find(self.claim.root(), &self.protected)?;
        self.check(&fixed, root, process)?;
        let dev = devices::open()?;
        let entries = Devices::of(dev.as_fd());
        entries.check()?;
        let needed = Needed::find(self.claim.root(), &fixed, &self.protected);
        let step = self.claim.begin_step()?;
        let furniture = self.claim.furniture()?;
        let aside = &*furniture.path();
        let home = Home { root, aside, kernel: KernelDirectories::Plain, names: self.names };
        let devices = *self.devices.get_or_init(|| Rules::find(aside));
        let furnished = home.furnish(process, cancel)?;
        // The step will see another /dev.
        devices.check(root, Some(b"dev"))?;
        let mut scripts = Scripts::make(self.claim, &process.scripts)?;
        let mut exchange = match Exchange::begin(self.claim, &fixed, root, cancel) {
            Err(error) if error.is_interruption() => {
                running::check(process, cancel)?;
                return Err(error.into());
            }
            exchange => exchange?,
        };
        let command = Command {
            program: &self.program,
            confinement: Confinement::InPlace { devices },
            process: &process.without_files(),
        };
        // While there is output, there is a supervisor; it may take for ever to get rid of it.
        let mut output = |stream, bytes: &[u8]| exchange.spared(|| output(stream, bytes));
        // Where a root would be, of which there is no other, goes what says that the step is not over.
        let result = command.run(step.as_fd(), &mut output, cancel);
        if let Err(SandboxError::Survivors(survivors)) = &result {
            // Whatever is moved now could be led astray. The journal has it all: a restarted container has another root,
            // and in this one the next builder puts everything back, once they have ended.
            self.claim.leave_to_next(survivors);
            exchange.abandon();
            furnished.leave();
            std::mem::forget(scripts);
            return result;
        }
        // Nobody else takes them away, nor does a runtime.
        let mut damaged = entries.changed(&Devices::of(dev.as_fd()));
        damaged.extend(needed.gone(self.claim.root()));
        exchange.damaged(damaged);
        exchange.end()?;
        let scripts = scripts.remove();
        let furnished = furnished.remove(self.names, cancel);
        let exit = result?;
        scripts?;
        furnished?;
        Ok(exit)
    }

    fn mounts(&self) -> bool {
        false
    }

    fn view(&self) -> Result<View, SandboxError> {
        // What is protected besides belongs to the build: where the context is does not matter.
        Ok(View::Container { mounts: Fixed::find(self.claim.root(), &[])?.telling() })
    }
}

/// What to tell the user of `seen`, what steps can see and change of the container.
#[must_use]
pub fn warning(seen: &[GuestPath]) -> String {
    const SHOWN: usize = 8;
    let what = match seen {
        [] => "no files of this container but those of the kernel".to_owned(),
        _ => {
            let names: Vec<String> = seen.iter().take(SHOWN).map(|path| format!("`{path}`")).collect();
            let more = seen.len().saturating_sub(SHOWN);
            let more = if more == 0 { String::new() } else { format!(" and {more} more") };
            format!("{}{more} of this container", names.join(", "))
        }
    };
    format!(
        "RUN is not kept apart from this container (--isolation=in-place): it can read, change and delete {what}, which is not part of the image; in \
         `/{PRIVATE_DIRECTORY}` are the container's other files meanwhile, and other stages"
    )
}
