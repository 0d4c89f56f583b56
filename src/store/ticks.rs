//! What the file system writes down about changes: at which time, and whether at all.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::time::{ClockId, clock_gettime};

use super::workspace::{Workspace, WorkspaceError};
use crate::rootfs::{Timestamp, metadata_of};
use crate::sys;

/// The longest tick of a kernel is a hundredth of a second. File systems that count whole seconds are not waited for.
const PATIENCE: Duration = Duration::from_millis(30);

/// Whether writing to a file through a mapping (mmap(2)) leaves a trace in its metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MappedWrites {
    /// It does.
    Noticed,
    /// It does not, if the page was read first. So it is in tmpfs and in what lies on one: pages are not protected
    /// against writing, and nobody hears of it.
    Unnoticed,
}

/// The clock that the file system of a workspace goes by.
#[derive(Debug)]
pub struct Ticks {
    file: OwnedFd,
    mapped_writes: MappedWrites,
}

impl Ticks {
    /// Looks how the file system of `workspace` behaves, which takes a tick of its clock.
    ///
    /// # Errors
    /// When two files cannot be made and used there.
    pub fn observe(workspace: &Workspace) -> Result<Self, WorkspaceError> {
        let directory = workspace.directory("ticks")?;
        let observed = || {
            let make = |name: &str| {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
                rustix::fs::open(directory.join(name), flags, Mode::RUSR | Mode::WUSR)
            };
            let mut ticks = Self { file: make("now")?, mapped_writes: MappedWrites::Noticed };
            ticks.mapped_writes = ticks.mapped_writes(&make("mapped")?)?;
            Ok(ticks)
        };
        observed().map_err(|cause| WorkspaceError::Create { path: directory.clone(), cause })
    }

    fn mapped_writes(&self, file: &OwnedFd) -> io::Result<MappedWrites> {
        rustix::io::write(file, b"x")?;
        let before = metadata_of(file)?.ctime;
        let result = sys::write_mapped(file, || self.past(before).map(drop));
        match result {
            Ok(()) if metadata_of(file)?.ctime == before => Ok(MappedWrites::Unnoticed),
            Ok(()) => Ok(MappedWrites::Noticed),
            // No mappings, no writes through them.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) => {
                Ok(MappedWrites::Noticed)
            }
            Err(error) => Err(error),
        }
    }

    /// What was found.
    #[must_use]
    pub fn notices_mapped_writes(&self) -> MappedWrites {
        self.mapped_writes
    }

    /// The time that a change would get now.
    fn now(&self) -> io::Result<Timestamp> {
        // Setting the mode that a file has is a change.
        rustix::fs::fchmod(&self.file, Mode::RUSR | Mode::WUSR)?;
        Ok(metadata_of(&self.file)?.ctime)
    }

    /// A time that no change from now on comes before: later than `newest`, if the clock gets there within a few ticks,
    /// which it usually has long done.
    ///
    /// # Errors
    /// Those of fchmod(2) and statx(2).
    pub fn past(&self, newest: Timestamp) -> io::Result<Timestamp> {
        let began = Instant::now();
        loop {
            let now = self.now()?;
            if now > newest || began.elapsed() > PATIENCE {
                return Ok(now);
            }
            // No sleep: it would take longer than the rest of the tick.
            let tick = || {
                let time = clock_gettime(ClockId::MonotonicCoarse);
                (time.tv_sec, time.tv_nsec)
            };
            let current = tick();
            while tick() == current && began.elapsed() <= PATIENCE {
                std::thread::yield_now();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_moves_past_the_latest_change() {
        let temporary = tempfile::tempdir().unwrap();
        let workspace = Workspace::create(temporary.path(), None).unwrap();
        let ticks = Ticks::observe(&workspace).unwrap();
        for name in 0..20 {
            let file = workspace.path().join(name.to_string());
            std::fs::write(&file, "").unwrap();
            let file = std::fs::File::open(file).unwrap();
            let newest = metadata_of(&file).unwrap().ctime;
            let past = ticks.past(newest).unwrap();
            assert!(past > newest);
            // What is changed now cannot be mistaken for unchanged.
            rustix::fs::fchmod(&file, Mode::RUSR).unwrap();
            assert!(metadata_of(&file).unwrap().ctime >= past);
        }
    }

    #[test]
    fn a_clock_that_is_behind_is_not_waited_for() {
        let temporary = tempfile::tempdir().unwrap();
        let workspace = Workspace::create(temporary.path(), None).unwrap();
        let ticks = Ticks::observe(&workspace).unwrap();
        let future = Timestamp { seconds: i64::MAX, nanoseconds: 0 };
        assert!(ticks.past(future).unwrap() < future);
    }

    #[test]
    fn a_file_system_in_memory_does_not_notice_mapped_writes() {
        let Ok(temporary) = tempfile::tempdir_in("/dev/shm") else {
            eprintln!("skipped: no /dev/shm");
            return;
        };
        let workspace = Workspace::create(temporary.path(), None).unwrap();
        // `TMPFS_MAGIC` of linux/magic.h.
        if rustix::fs::statfs(workspace.path()).unwrap().f_type != 0x0102_1994 {
            eprintln!("skipped: /dev/shm is no tmpfs");
            return;
        }
        let ticks = Ticks::observe(&workspace).unwrap();
        assert_eq!(ticks.notices_mapped_writes(), MappedWrites::Unnoticed);
    }
}
