//! Locks on whole files, which end with their holder however that ends.
//!
//! A store needs them: without them nobody can tell a living build from a dead one, so a store on a file system that has
//! none is refused when it is opened. Outputs go to wherever the user wants them, and do without.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::FlockOperation;
use rustix::io::{Errno, retry_on_intr};

/// The file system has no locks.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the file system has no locks (flock(2): {0})")]
struct Lacking(Errno);

/// Who may hold a lock at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sharing {
    /// All who share it.
    Shared,
    /// Nobody else.
    Alone,
}

/// Waits for the lock on `file`, which is held until the last descriptor of that opening is closed.
///
/// # Errors
/// One that [`is_lacking`] knows where the file system has no locks, else those of flock(2).
pub(super) fn wait(file: impl AsFd, sharing: Sharing) -> io::Result<()> {
    let operation = match sharing {
        Sharing::Shared => FlockOperation::LockShared,
        Sharing::Alone => FlockOperation::LockExclusive,
    };
    retry_on_intr(|| rustix::fs::flock(&file, operation)).map_err(told)
}

/// Takes the lock on `file` for itself alone, if nobody has it; says whether it has it now.
///
/// # Errors
/// As [`wait`].
pub(super) fn take(file: impl AsFd) -> io::Result<bool> {
    try_take(file, Sharing::Alone)
}

/// Takes the lock on `file` if nobody has it who does not share it; says whether it has it now. One that it has already
/// becomes another one, which is not done at once: for a moment there is none.
///
/// # Errors
/// As [`wait`].
pub(super) fn try_take(file: impl AsFd, sharing: Sharing) -> io::Result<bool> {
    let operation = match sharing {
        Sharing::Shared => FlockOperation::NonBlockingLockShared,
        Sharing::Alone => FlockOperation::NonBlockingLockExclusive,
    };
    match retry_on_intr(|| rustix::fs::flock(&file, operation)) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(told(error)),
    }
}

/// Lets go of the lock on `file`.
///
/// # Errors
/// As [`wait`].
pub(super) fn release(file: impl AsFd) -> io::Result<()> {
    retry_on_intr(|| rustix::fs::flock(&file, FlockOperation::NonBlockingUnlock)).map_err(told)
}

/// Whether the error is that the file system has no locks.
pub(super) fn is_lacking(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Lacking>())
}

/// Whether a file system that has no locks, of whichever kind was asked for, says so with `errno`.
pub(crate) fn means_lacking(errno: Errno) -> bool {
    matches!(errno, Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL)
}

fn told(error: Errno) -> io::Error {
    if means_lacking(error) {
        io::Error::new(io::ErrorKind::Unsupported, Lacking(error))
    } else {
        error.into()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::store::testing::without_locks;

    #[test]
    fn a_lock_is_taken_once_and_ends_with_its_holder() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = || File::open(file.path()).unwrap();
        let first = open();
        assert!(take(&first).unwrap());
        assert!(!take(open()).unwrap());
        drop(first);
        let (one, other) = (open(), open());
        wait(&one, Sharing::Shared).unwrap();
        wait(&other, Sharing::Shared).unwrap();
        assert!(!take(open()).unwrap());
    }

    #[test]
    fn that_there_are_no_locks_is_told_apart_from_other_errors() {
        let file = tempfile::tempfile().unwrap();
        without_locks(|| {
            for error in [take(&file).unwrap_err(), wait(&file, Sharing::Shared).unwrap_err()] {
                assert!(is_lacking(&error), "{error}");
                assert!(error.to_string().contains("has no locks"), "{error}");
            }
        });
        let path = rustix::fs::open("/", rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
        assert!(!is_lacking(&take(&path).unwrap_err()));
    }
}
