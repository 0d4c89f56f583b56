//! Steps in a root directory of their own, where mounts are not allowed.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::thread::CapabilitySet;

use super::child::{Step, during};
use super::furnish::Furnished;
use super::running::{self, Command};
use super::wire::Confinement;
use super::{Cancel, Exit, Process, Sandbox, SandboxError, Stream, launch};
use crate::limit::Limit;
use crate::rootfs::Rootfs;

/// What a step may do: without CAP_SYS_CHROOT, by which it could leave its root, and which the builder keeps, so that no
/// step may trace it.
pub(super) const CAPABILITIES: CapabilitySet = launch::CAPABILITIES.difference(CapabilitySet::SYS_CHROOT);

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
}

impl Chroot {
    /// `program` as for [`super::Isolated::new`]; `aside` is a directory out of the reach of steps for what they must not
    /// see meanwhile.
    #[must_use]
    pub fn new(program: impl Into<PathBuf>, aside: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), aside: aside.into(), names: NAMES }
    }

    /// With another limit of names of files with several, as in [`crate::rootfs::TreeCopy`].
    #[must_use]
    pub fn within(self, names: Limit) -> Self {
        Self { names, ..self }
    }

    /// Puts what `process` is to find into `root`.
    fn furnish(&self, root: &Rootfs, process: &Process, cancel: &Cancel) -> Result<Furnished, SandboxError> {
        let mut furnished = Furnished::new(root, &self.aside)?;
        furnished.provide_files(&process.resolv_conf, &with_own_name(&process.hosts))?;
        furnished.cover_kernel_directories(&process.scripts)?;
        furnished.put_mounts(&process.mounts, self.names, cancel)?;
        Ok(furnished)
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
        let furnished = self.furnish(root, process, cancel)?;
        // The supervisor needs to know no secrets, and no more descriptors than that of the root.
        let process = &Process { mounts: Vec::new(), scripts: Vec::new(), ..process.clone() };
        let result = Command { program: &self.program, confinement: Confinement::Chroot, process }
            .run(root, output, cancel);
        let removed = furnished.remove();
        let exit = result?;
        removed?;
        Ok(exit)
    }
}

/// The hosts of a step that has the host name of the machine: that must lead somewhere, too.
pub(super) fn with_own_name(hosts: &[u8]) -> Vec<u8> {
    let system = rustix::system::uname();
    let name = system.nodename().to_bytes();
    let mut hosts = hosts.to_vec();
    let is_known = hosts.split(u8::is_ascii_whitespace).any(|word| word == name);
    if !is_known && !name.is_empty() && name.iter().all(u8::is_ascii_graphic) {
        hosts.extend_from_slice(&[b"127.0.0.1\t", name, b"\n"].concat());
    }
    hosts
}

/// Makes `root` the root of this process.
pub(super) fn enter(root: OwnedFd) -> Step<()> {
    during(rustix::process::fchdir(&root), "enter the root")?;
    during(rustix::process::chroot("."), "change the root")
}
