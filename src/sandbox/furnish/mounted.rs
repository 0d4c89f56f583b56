//! What a process asks to have mounted, where nothing can be mounted: copies, files and empty directories.
//!
//! The differences: what could not be written to can be, and is discarded; what would be in memory is on disk; a limit of
//! size does not hold.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::FileType;

use super::aside::new_directory;
use super::{FurnishError, Furnished, during, make_directory, make_file};
use crate::limit::Limit;
use crate::rootfs::visit::jobs;
use crate::rootfs::{CopyTreeError, Follow, GuestPath, Rootfs, TreeCopy};
use crate::sandbox::mount::{Bind, Content, PointKind, SecretFile, Writes};
use crate::sandbox::{Cancel, Mount, SandboxError, attach};

impl Furnished {
    /// Puts what stands for `mounts` in their places, one after the other, each where the ones before let its path lead.
    /// `names` is as in [`TreeCopy`].
    pub(in crate::sandbox) fn put_mounts(
        &mut self,
        mounts: &[Mount],
        names: Limit,
        cancel: &Cancel,
    ) -> Result<(), SandboxError> {
        mounts.iter().try_for_each(|mount| self.put(mount, names, cancel))
    }

    fn put(&mut self, mount: &Mount, names: Limit, cancel: &Cancel) -> Result<(), SandboxError> {
        let target = &mount.target;
        let failed = |source| FurnishError::Prepare { path: target.clone(), source };
        let refused = |problem: attach::Problem| SandboxError::MountTarget {
            path: target.clone(),
            problem: problem.to_string(),
        };
        let point = mount.point()?;
        let place = self.root.resolve(target).map_err(failed)?;
        attach::check_place(&place).map_err(refused)?;
        let origin = self.make_missing(&place, point).map_err(failed)?;
        let covered = self.root.open_path(&place, Follow::No).map_err(failed)?;
        let stat = during(rustix::fs::fstat(&covered), format!("find `{place}`"))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        attach::check_kind(point, kind).map_err(refused)?;
        let made = match &mount.content {
            Content::Bind(Bind { kept_at: Some(kept_at), writes: Writes::Allowed, source, .. }) => {
                self.move_here(source, kept_at, (point, target), names, cancel)?
            }
            Content::Bind(bind) => self.copy_of(&bind.source, (point, target), names, cancel)?,
            Content::Tmpfs { .. } => {
                let made = self.aside.new_name();
                let mode = stat.st_mode & 0o7777;
                let result = make_directory(self.aside.as_fd(), made.as_bytes(), mode);
                during(result, format!("make an empty directory for `{target}`"))?;
                made
            }
            Content::Secret(secret) => self.secret(secret, target)?,
        };
        during(self.cover(&place, &made, origin), format!("put what is to be mounted at `{target}` there"))
    }

    fn secret(&mut self, secret: &SecretFile, target: &GuestPath) -> Result<String, SandboxError> {
        let made = self.aside.new_name();
        let content = secret.value.bytes();
        let result = make_file(&self.aside, made.as_bytes(), secret.owner, secret.mode, content);
        let file = during(result, format!("write what is to be mounted at `{target}`"))?;
        self.secrets.add(file, target, content.len());
        Ok(made)
    }

    /// Copies what is to be mounted at the path into the directory aside; gives its name there.
    pub(super) fn copy_of(
        &mut self,
        source: &OwnedFd,
        (point, target): (PointKind, &GuestPath),
        names: Limit,
        cancel: &Cancel,
    ) -> Result<String, SandboxError> {
        let made = self.aside.new_name();
        match copy(source, (point, target), (self.aside.as_fd(), &made), names, cancel) {
            Ok(()) => Ok(made),
            // Whatever it was then: the copy has been stopped.
            Err(source) => Err(match cancel.reason() {
                Some(reason) => SandboxError::Cancelled { reason: reason.to_owned() },
                None => FurnishError::Copy { path: target.clone(), source }.into(),
            }),
        }
    }
}

/// Copies `source`, which is at `path`, to the new entry `name` of `directory`.
pub(super) fn copy(
    source: &OwnedFd,
    (point, path): (PointKind, &GuestPath),
    (directory, name): (BorrowedFd<'_>, &str),
    names: Limit,
    cancel: &Cancel,
) -> Result<(), CopyTreeError> {
    let cancelled = || cancel.is_cancelled();
    let copy = TreeCopy { names, cancelled: &cancelled, jobs: jobs() };
    let failed = |source| CopyTreeError::Io { action: "copy", path: path.clone(), source };
    match point {
        PointKind::Directory { .. } => {
            let to = Rootfs::from_fd(new_directory(directory, name).map_err(failed)?);
            let from = Rootfs::from_fd(source.try_clone().map_err(failed)?);
            copy.copy(&from, &to)
        }
        PointKind::File => copy.copy_entry(source.as_fd(), directory, name.as_bytes()).map_err(failed),
    }
}
