//! A container's root for tests: an overlay on the disk, in a mount namespace of the thread.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, MountPropagationFlags};

use crate::sys;

/// An overlay with one lower layer. Its mount ends with the thread.
pub(super) struct Overlay(tempfile::TempDir);

impl Overlay {
    /// Mounts one whose lower layer `fill` has filled; none, and a word about it, where that is not allowed.
    pub(super) fn mount(fill: impl FnOnce(&Path)) -> Option<Self> {
        // Not below /tmp: that may be an overlay itself, or in memory.
        let overlay = Self(tempfile::tempdir_in("/var/tmp").unwrap());
        for name in ["lower", "upper", "work", "root"] {
            fs::create_dir(overlay.0.path().join(name)).unwrap();
        }
        fill(&overlay.0.path().join("lower"));
        overlay
            .try_mount()
            .inspect_err(|error| eprintln!("skipped: no overlay can be mounted: {error}"))
            .ok()?;
        Some(overlay)
    }

    fn try_mount(&self) -> std::io::Result<()> {
        sys::enter_private_mounts()?;
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        rustix::mount::mount_change("/", private)?;
        let top = self.0.path().display();
        let options = format!("lowerdir={top}/lower,upperdir={top}/upper,workdir={top}/work");
        let options = std::ffi::CString::new(options)?;
        Ok(rustix::mount::mount("overlay", self.root(), "overlay", MountFlags::empty(), Some(&*options))?)
    }

    /// Where it is mounted.
    pub(super) fn root(&self) -> PathBuf {
        self.0.path().join("root")
    }

    /// The names at the top of what was changed or copied.
    pub(super) fn changed(&self) -> Vec<std::ffi::OsString> {
        let upper = fs::read_dir(self.0.path().join("upper")).unwrap();
        let mut names: Vec<_> = upper.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    }

    /// Lets files in it be changed, or not, as in a container with a read-only root.
    pub(super) fn allow(&self, writing: Writing) {
        let read_only = match writing {
            Writing::Yes => MountFlags::empty(),
            Writing::No => MountFlags::RDONLY,
        };
        rustix::mount::mount_remount(self.root(), MountFlags::BIND | read_only, c"").unwrap();
    }

    /// Mounts an empty file system in memory at `place` of the root.
    pub(super) fn mount_in(&self, place: &str) {
        rustix::mount::mount("tmpfs", self.root().join(place), "tmpfs", MountFlags::empty(), None).unwrap();
    }

    /// Mounts the file `source` at the file `place` of the root.
    pub(super) fn bind_file(&self, source: &Path, place: &str) {
        rustix::mount::mount_bind(source, self.root().join(place)).unwrap();
    }
}

/// Whether files can be changed.
#[derive(Debug, Clone, Copy)]
pub(super) enum Writing {
    Yes,
    No,
}
