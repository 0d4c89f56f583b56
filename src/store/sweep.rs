//! Removing what builds left that were killed together with their janitor.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::lock;
use super::workspace::{HIDDEN_PREFIX, LOCK, PREFIX, WorkspaceError, lock_of, remove};

/// How many workspaces in `temporary` are of builds that are no more.
///
/// # Errors
/// [`WorkspaceError::Sweep`] when the directory cannot be read.
pub fn dead(temporary: &Path) -> Result<usize, WorkspaceError> {
    let found = workspaces(temporary)?;
    Ok(found
        .iter()
        .filter(|path| matches!(lock_of_dead(path), Ok(lock) if lock.is_some() || path.exists()))
        .count())
}

/// Removes the workspaces in `temporary` whose builds are no more. Those of living builds are left alone; so is what
/// cannot be removed, for instance because it belongs to another user. Returns how many were removed.
///
/// # Errors
/// [`WorkspaceError::Sweep`] when the directory cannot be read.
pub fn sweep(temporary: &Path) -> Result<usize, WorkspaceError> {
    Ok(workspaces(temporary)?.iter().filter(|path| sweep_one(path)).count())
}

/// The workspaces in `temporary`, living or dead.
fn workspaces(temporary: &Path) -> Result<BTreeSet<PathBuf>, WorkspaceError> {
    let failed = |cause| WorkspaceError::Sweep { path: temporary.to_owned(), cause };
    let entries = match std::fs::read_dir(temporary) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut found = BTreeSet::new();
    for entry in entries {
        let name = entry.map_err(failed)?.file_name();
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else { continue };
        found.insert(temporary.join(name.strip_suffix(LOCK).unwrap_or(name)));
    }
    Ok(found)
}

/// The lock of the workspace `path` if its build is no more; none inside if there is no lock.
///
/// # Errors
/// When the build lives, or nobody can tell.
fn lock_of_dead(path: &Path) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // The lock is made before the directory and removed after it: a directory without one is dead.
    let lock = match rustix::fs::open(lock_of(path), flags, Mode::empty()) {
        Ok(lock) => lock,
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    if lock::take(&lock)? { Ok(Some(lock)) } else { Err(io::ErrorKind::WouldBlock.into()) }
}

/// [`sweep`] for workspaces that were made by [`create_hidden`](super::workspace::Workspace::create_hidden). What cannot
/// be read or removed stays.
pub fn sweep_hidden(directory: &Path) {
    let is_workspace = |name: &str| {
        let number = name.strip_prefix(HIDDEN_PREFIX).map(|rest| rest.strip_suffix(LOCK).unwrap_or(rest));
        number.is_some_and(|number| number.len() == 16 && number.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if let Some(name) = name.to_str().filter(|name| is_workspace(name)) {
            sweep_one(&directory.join(name.strip_suffix(LOCK).unwrap_or(name)));
        }
    }
}

/// Whether the workspace `path` was dead and is gone now.
fn sweep_one(path: &Path) -> bool {
    let Ok(lock) = lock_of_dead(path) else { return false };
    let existed = rustix::fs::statat(rustix::fs::CWD, path, AtFlags::SYMLINK_NOFOLLOW).is_ok();
    if remove(path).is_err() {
        return false;
    }
    if lock.is_some() {
        let _ = rustix::fs::unlink(lock_of(path));
    }
    existed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::workspace::Workspace;

    #[test]
    fn a_sweep_takes_the_dead_and_leaves_the_living_and_the_strangers() {
        let temporary = tempfile::tempdir().unwrap();
        let alive = Workspace::create(temporary.path(), None).unwrap();
        for dead in ["build-0000000000000001", "build-0000000000000002"] {
            std::fs::create_dir_all(temporary.path().join(dead).join("a/b")).unwrap();
        }
        std::fs::write(temporary.path().join("build-0000000000000002.lock"), "").unwrap();
        std::fs::write(temporary.path().join("build-0000000000000003.lock"), "").unwrap();
        std::fs::write(temporary.path().join("other"), "").unwrap();
        assert_eq!(dead(temporary.path()).unwrap(), 3);
        assert_eq!(sweep(temporary.path()).unwrap(), 2);
        assert_eq!(dead(temporary.path()).unwrap(), 0);
        assert!(alive.path().is_dir() && temporary.path().join("other").exists());
        assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 3);
        assert_eq!(sweep(&temporary.path().join("missing")).unwrap(), 0);
    }

    #[test]
    fn hidden_workspaces_are_swept_and_nothing_that_looks_like_one() {
        let home = tempfile::tempdir().unwrap();
        let alive = Workspace::create_hidden(home.path(), None).unwrap();
        let others = [".builder-extract-1", ".builder-extract-000000000000000g", "build-0000000000000001"];
        for name in others.into_iter().chain([".builder-extract-0000000000000001"]) {
            std::fs::create_dir_all(home.path().join(name).join("a")).unwrap();
        }
        sweep_hidden(home.path());
        assert!(alive.path().is_dir() && others.iter().all(|name| home.path().join(name).is_dir()));
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 5);
        sweep_hidden(&home.path().join("missing"));
    }
}
