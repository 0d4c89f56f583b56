//! What lives of a step that would not end, written down for the next builder in the container.
//!
//! Its locks are those of the builder and the supervisor, which end before it. So their numbers are beside the journal: as
//! long as one is there, no file may be moved, or a process that is in one could be led astray. Those that start others
//! faster than they are ended are beyond that: when the next builder comes, others have their place.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::sandbox::Survivors;

/// The file, in the builder's own directory.
const LIVING: &str = "living";

/// The most that is read of it, in bytes; more processes than fit there are in no container.
const LARGEST: u64 = 1 << 20;

/// Writes them down in `private`.
pub(super) fn write(private: BorrowedFd<'_>, survivors: &Survivors) -> io::Result<()> {
    // Not what a step may have put there, be it a link.
    remove(private)?;
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(private, LIVING, flags, Mode::RUSR | Mode::WUSR)?;
    File::from(file).write_all(survivors.encode().as_bytes())
}

/// Those that were written down in `private` and live, if there are any.
pub(super) fn read(private: BorrowedFd<'_>) -> io::Result<Option<Survivors>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(private, LIVING, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut text = Vec::new();
    File::from(file).take(LARGEST).read_to_end(&mut text)?;
    Ok(Survivors::left_of(&String::from_utf8_lossy(&text)))
}

/// Forgets them: they have ended.
pub(super) fn remove(private: BorrowedFd<'_>) -> io::Result<()> {
    match rustix::fs::unlinkat(private, LIVING, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
