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
use super::{Cancel, Exit, Process, Sandbox, SandboxError, Strategy, Stream, View};
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
        running::check_confined(process, Strategy::Chroot)?;
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
        let removed = furnished.remove(self.names, cancel);
        let exit = result?;
        removed?;
        Ok(exit)
    }

    fn mounts(&self) -> bool {
        false
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::rootfs::{GuestPath, Owner};
    use crate::sandbox::{Content, Mount, Secret, SecretFile, Survivors};
    use crate::store::testing::can_make_devices;

    #[test]
    fn what_would_not_end_keeps_its_files_but_for_secrets() {
        if !can_make_devices() {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let [root, aside] = ["root", "aside"].map(|name| directory.path().join(name));
        for path in [&root.join("dev"), &aside] {
            fs::create_dir_all(path).unwrap();
        }
        fs::write(root.join("dev/of-the-image"), "").unwrap();
        let value = Secret::new(b"hidden");
        let file = SecretFile { value, mode: 0o400, owner: Owner::ROOT };
        let target = GuestPath::clamp(b"/secret").unwrap();
        let mounts = vec![Mount { target, content: Content::Secret(file) }];
        let process = Process { mounts, ..Process::bare(vec![b"/bin/sh".to_vec()]) };
        running::PLANTED.set(Some(Survivors::of(Vec::new())));
        let tree = Rootfs::open(&root).unwrap();
        let chroot = Chroot::new("/missing", &aside);
        let error = chroot.run(&tree, &process, &mut |_, _| {}, &Cancel::new().unwrap()).unwrap_err();
        assert!(matches!(error, SandboxError::Survivors(_)), "{error}");
        assert!(error.to_string().ends_with("nothing runs beside them in this builder"), "{error}");
        assert_eq!(fs::read(root.join("secret")).unwrap(), b"");
        // As the step sees it, and the image's is still aside.
        assert!(root.join("dev/null").exists() && !root.join("dev/of-the-image").exists());
    }
}
