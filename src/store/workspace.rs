//! The temporary directory of one build, which goes with the build however that ends.
//!
//! Three things remove a workspace: dropping it; the [`Janitor`], a process that outlives a killed builder by a moment;
//! and [`sweep`](super::sweep) at the next start, should the janitor have been killed as well.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::rand::GetRandomFlags;

use super::janitor::Janitor;
use super::lock;
use crate::rootfs::remove_tree;

/// Workspaces are `build-` and sixteen hexadecimal digits; beside each lies its lock, with this ending.
pub(super) const PREFIX: &str = "build-";
/// What takes the place of that where others have files as well.
pub(super) const HIDDEN_PREFIX: &str = ".builder-extract-";
pub(super) const LOCK: &str = ".lock";

/// Why a workspace could not be made or used.
#[derive(Debug, thiserror::Error)]
pub enum WorkspaceError {
    /// A directory or lock in the store's temporary directory could not be made.
    #[error("cannot make the temporary directory `{path}`")]
    Create {
        /// Which.
        path: PathBuf,
        /// Why not.
        #[source]
        cause: io::Error,
    },
    /// The file system has no locks: nobody could tell a living workspace from a dead one.
    #[error("cannot lock `{path}`, to tell this process's temporary files from those of dead ones")]
    Lock {
        /// The lock file.
        path: PathBuf,
        /// Why not.
        #[source]
        cause: io::Error,
    },
    /// What dead builds left could not be looked at.
    #[error("cannot clear the temporary directory `{path}`")]
    Sweep {
        /// The store's temporary directory.
        path: PathBuf,
        /// Why not.
        #[source]
        cause: io::Error,
    },
    /// The process that cleans up could not be started.
    #[error("cannot start the process that removes temporary files after a crash")]
    Janitor(#[source] io::Error),
}

/// A directory below the store's temporary directory that belongs to one build. Everything in it is removed when the
/// value is dropped.
#[derive(Debug)]
pub struct Workspace {
    path: PathBuf,
    /// Held as long as the build lives; the kernel lets go of it however the process ends.
    _lock: OwnedFd,
    janitor: Option<Janitor>,
    next: AtomicU64,
}

impl Workspace {
    /// Makes a new workspace in `temporary`, which is made too if it is missing. `janitor`, if there is one, removes it
    /// should this process be killed.
    ///
    /// # Errors
    /// [`WorkspaceError::Create`] or [`WorkspaceError::Lock`].
    pub fn create(temporary: &Path, janitor: Option<&Janitor>) -> Result<Self, WorkspaceError> {
        let failed = |cause| WorkspaceError::Create { path: temporary.to_owned(), cause };
        std::fs::create_dir_all(temporary).map_err(failed)?;
        Self::create_as(PREFIX, temporary, janitor)
    }

    /// Makes a new workspace in `directory`, which is somebody's own, under a hidden name.
    ///
    /// # Errors
    /// [`WorkspaceError::Create`] or [`WorkspaceError::Lock`].
    pub fn create_hidden(directory: &Path, janitor: Option<&Janitor>) -> Result<Self, WorkspaceError> {
        Self::create_as(HIDDEN_PREFIX, directory, janitor)
    }

    fn create_as(prefix: &str, directory: &Path, janitor: Option<&Janitor>) -> Result<Self, WorkspaceError> {
        let failed = |path: &Path, cause| WorkspaceError::Create { path: path.to_owned(), cause };
        // The janitor's current directory is another.
        let directory = std::path::absolute(directory).map_err(|e| failed(directory, e))?;
        loop {
            let number = random().map_err(|e| failed(&directory, e))?;
            let path = directory.join(format!("{prefix}{number:016x}"));
            let Some(lock) = take_new_lock(&lock_of(&path))? else { continue };
            if let Some(janitor) = janitor {
                janitor.tell(b'+', &path);
            }
            let workspace = Self { path, _lock: lock, janitor: janitor.cloned(), next: AtomicU64::new(0) };
            rustix::fs::mkdir(&workspace.path, Mode::RWXU).map_err(|e| failed(&workspace.path, e.into()))?;
            inherit_nothing(&workspace.path).map_err(|e| failed(&workspace.path, e.into()))?;
            return Ok(workspace);
        }
    }

    /// Where it is, absolutely.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a new empty directory (mode 0700) in it, called `purpose` and a number.
    ///
    /// # Errors
    /// [`WorkspaceError::Create`].
    pub fn directory(&self, purpose: &str) -> Result<PathBuf, WorkspaceError> {
        let path = self.path.join(format!("{purpose}-{}", self.next.fetch_add(1, Ordering::Relaxed)));
        match rustix::fs::mkdir(&path, Mode::RWXU) {
            Ok(()) => Ok(path),
            Err(cause) => Err(WorkspaceError::Create { path, cause: cause.into() }),
        }
    }

    /// Removes a directory of it before its time. What cannot be removed now goes with the workspace.
    pub fn remove(&self, directory: &Path) {
        if directory.starts_with(&self.path) && directory != self.path {
            let _ = remove(directory);
        }
    }

    /// Makes a new empty directory like [`Workspace::directory`], for a shorter time.
    ///
    /// # Errors
    /// [`WorkspaceError::Create`].
    pub fn scratch(&self, purpose: &str) -> Result<Scratch, WorkspaceError> {
        Ok(Scratch { path: self.directory(purpose)? })
    }
}

/// A directory of a workspace that is removed with this value. What cannot be removed then goes with the workspace.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Where it is, absolutely.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes an empty directory (mode 0700) in it.
    ///
    /// # Errors
    /// [`WorkspaceError::Create`].
    pub fn directory(&self, name: &str) -> Result<PathBuf, WorkspaceError> {
        let path = self.path.join(name);
        match rustix::fs::mkdir(&path, Mode::RWXU) {
            Ok(()) => Ok(path),
            Err(cause) => Err(WorkspaceError::Create { path, cause: cause.into() }),
        }
    }

    /// Leaves it to the workspace; gives the path.
    pub fn keep(mut self) -> PathBuf {
        std::mem::take(&mut self.path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = remove(&self.path);
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        // What cannot be removed now is tried again by the janitor and by the next sweep: the lock file tells.
        if remove(&self.path).is_ok() {
            let _ = rustix::fs::unlink(lock_of(&self.path));
            if let Some(janitor) = &self.janitor {
                janitor.tell(b'-', &self.path);
            }
        }
    }
}

/// Takes away the access control lists that a new directory has from the one it is in (acl(5)): all trees are made below
/// it, and would get entries that no layer and no step has asked for.
pub(super) fn inherit_nothing(directory: &Path) -> rustix::io::Result<()> {
    for key in [c"system.posix_acl_default", c"system.posix_acl_access"] {
        match rustix::fs::lremovexattr(directory, key) {
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

pub(super) fn lock_of(workspace: &Path) -> PathBuf {
    let mut path = workspace.as_os_str().to_owned();
    path.push(LOCK);
    path.into()
}

fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Makes and locks a lock file; none if the name is taken or a sweep took the file before it was locked.
fn take_new_lock(path: &Path) -> Result<Option<OwnedFd>, WorkspaceError> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    let lock = match rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR) {
        Ok(lock) => lock,
        Err(Errno::EXIST) => return Ok(None),
        Err(cause) => return Err(WorkspaceError::Create { path: path.to_owned(), cause: cause.into() }),
    };
    match lock::take(&lock) {
        Ok(true) => {}
        Ok(false) => return Ok(None),
        Err(cause) => {
            let _ = rustix::fs::unlink(path);
            return Err(WorkspaceError::Lock { path: path.to_owned(), cause });
        }
    }
    let links = rustix::fs::fstat(&lock).map_or(0, |stat| stat.st_nlink);
    Ok((links > 0).then_some(lock))
}

/// Removes the directory `path`, whatever a build left there.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match rustix::fs::open(parent, flags, Mode::empty()) {
        Ok(parent) => remove_tree(parent.as_fd(), name.as_bytes()),
        Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workspace_and_all_in_it_go_when_dropped() {
        let temporary = tempfile::tempdir().unwrap();
        let workspace = Workspace::create(&temporary.path().join("tmp"), None).unwrap();
        let first = workspace.directory("layer").unwrap();
        let second = workspace.directory("layer").unwrap();
        assert_ne!(first, second);
        std::fs::write(first.join("file"), "x").unwrap();
        let (kept, gone) = (workspace.scratch("short").unwrap(), workspace.scratch("short").unwrap());
        let paths = [kept.path().to_owned(), gone.path().to_owned()];
        gone.directory("a").unwrap();
        let kept = kept.keep();
        drop(gone);
        assert_eq!(paths.map(|path| path.exists()), [true, false]);
        workspace.remove(&kept);
        assert!(!kept.exists());
        workspace.remove(workspace.path());
        workspace.remove(temporary.path());
        assert_eq!(std::fs::read_dir(temporary.path().join("tmp")).unwrap().count(), 2);
        drop(workspace);
        assert_eq!(std::fs::read_dir(temporary.path().join("tmp")).unwrap().count(), 0);
    }

    #[test]
    fn a_workspace_inherits_no_access_control_list() {
        let temporary = tempfile::tempdir().unwrap();
        let list = crate::store::testing::access_list(5);
        let set = rustix::fs::lsetxattr(
            temporary.path(),
            "system.posix_acl_default",
            &list,
            rustix::fs::XattrFlags::empty(),
        );
        if set.is_err() {
            eprintln!("skipped: this file system has no ACLs");
            return;
        }
        let workspace = Workspace::create(temporary.path(), None).unwrap();
        let file = workspace.directory("step").unwrap().join("file");
        std::fs::write(&file, "").unwrap();
        for path in [workspace.path(), &file] {
            let names = rustix::fs::llistxattr(path, &mut [0; 1024][..]).unwrap();
            assert_eq!(names, 0, "{}", path.display());
        }
    }
}
