//! What git takes while it runs: room on the disk and time, looked at now and then, so that neither has no end.

use std::cell::RefCell;
use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};

use super::directories::Room;
use super::{Exceeded, GitError, GitLimits, writing};

/// How long it takes at least from one look at the disk to the next.
const PAUSE: Duration = Duration::from_secs(1);

/// Looking takes at most this part of the time: a tree of a million files takes a second to be counted.
const PART: u32 = 20;

/// Who looks.
pub(super) struct Watch<'a> {
    /// What is counted.
    directory: &'a Path,
    limits: GitLimits,
    /// Whether somebody wants it to stop.
    stopped: &'a dyn Fn() -> bool,
    began: Instant,
}

/// What was seen of one program.
struct Seen {
    room: Room,
    printed: u64,
    /// When something was new.
    news: Instant,
    /// When the disk is looked at again.
    next: Instant,
    /// Why it is to be stopped.
    verdict: Option<GitError>,
}

impl<'a> Watch<'a> {
    /// Begins to count the time.
    pub(super) fn begin(directory: &'a Path, limits: GitLimits, stopped: &'a dyn Fn() -> bool) -> Self {
        Self { directory, limits, stopped, began: Instant::now() }
    }

    /// Calls `run` with what it asks whether to stop, with the number of bytes that were printed. It gives none when it has
    /// stopped.
    ///
    /// # Errors
    /// Why it has stopped.
    pub(super) fn over<T>(
        &self,
        run: impl FnOnce(&dyn Fn(u64) -> bool) -> io::Result<Option<T>>,
    ) -> Result<T, GitError> {
        let now = Instant::now();
        let seen = RefCell::new(Seen {
            room: Room::default(),
            printed: 0,
            news: now,
            next: now + PAUSE,
            verdict: None,
        });
        let result = run(&|printed| {
            let mut seen = seen.borrow_mut();
            let verdict = self.look(&mut seen, printed);
            seen.verdict = verdict.err();
            seen.verdict.is_some()
        });
        match result.map_err(GitError::Run)? {
            Some(done) => Ok(done),
            None => Err(seen.into_inner().verdict.unwrap_or(GitError::Cancelled)),
        }
    }

    /// Whether it may go on.
    fn look(&self, seen: &mut Seen, printed: u64) -> Result<(), GitError> {
        if (self.stopped)() {
            return Err(GitError::Cancelled);
        }
        let now = Instant::now();
        if (now - self.began).as_secs() >= self.limits.seconds.value {
            return Err(GitError::Exceeded(Exceeded::Seconds(self.limits.seconds)));
        }
        if now < seen.next {
            return Ok(());
        }
        let room = self.room()?;
        let end = Instant::now();
        seen.next = end + PAUSE.max((end - now) * PART);
        if (room, printed) != (seen.room, seen.printed) {
            (seen.room, seen.printed, seen.news) = (room, printed, end);
        }
        if (end - seen.news).as_secs() >= self.limits.idle.value {
            return Err(GitError::Exceeded(Exceeded::Idle(self.limits.idle)));
        }
        Ok(())
    }

    /// How much room is taken.
    ///
    /// # Errors
    /// When that is too much.
    pub(super) fn room(&self) -> Result<Room, GitError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::open(self.directory, flags, Mode::empty());
        let directory = opened.map_err(|error| writing(self.directory)(error.into()))?;
        let GitLimits { bytes, entries, .. } = self.limits;
        let room = Room::below(directory.as_fd(), &|room| {
            bytes.is_exceeded_by(room.bytes) || entries.is_exceeded_by(room.entries) || (self.stopped)()
        })?;
        if bytes.is_exceeded_by(room.bytes) {
            return Err(GitError::Exceeded(Exceeded::Bytes(bytes)));
        }
        if entries.is_exceeded_by(room.entries) {
            return Err(GitError::Exceeded(Exceeded::Entries(entries)));
        }
        Ok(room)
    }
}
