//! What a step leaves when its supervisor is killed, where no pid namespace ends it.
//!
//! Such a step may send signals to its supervisor, and to the builder: they are the same user to the kernel. So the builder
//! is a subreaper, too. It adopts what a killed supervisor leaves, and ends it.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, waitpid};

use super::descendants::{self, PATIENCE, PAUSE, Process};
use crate::children;

/// The children that this process had when it began to adopt orphans: the janitor, and what belongs to others if this is
/// process 1 of a container. Static, as what it describes: a process has one set of children.
static OLDER: Mutex<Option<Vec<Process>>> = Mutex::new(None);

/// Makes this process the parent of orphans, for good.
///
/// # Errors
/// Those of reading /proc.
pub(super) fn adopt() -> io::Result<()> {
    let mut older = OLDER.lock().unwrap_or_else(PoisonError::into_inner);
    if older.is_none() {
        let all = Process::all()?;
        *older = Some(of_this_process(&all).copied().collect());
        set_child_subreaper(Some(getpid()))?;
    }
    Ok(())
}

/// Ends the orphans of steps, and what they have started, and waits until none is left.
///
/// # Errors
/// `ETIMEDOUT` when they start others faster than they are ended, and those of reading /proc.
pub(super) fn end_all() -> io::Result<()> {
    let older = OLDER.lock().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or_default();
    let began = Instant::now();
    loop {
        // Nothing is started meanwhile that would be taken for an orphan.
        let left = children::with_awaited(|is_awaited| {
            let all = Process::all()?;
            let orphans = orphans(&all, &older, is_awaited);
            for orphan in &orphans {
                for process in descendants::below(*orphan, &all).into_iter().chain([*orphan]) {
                    // It may be gone already.
                    let _ = kill_process(process, Signal::KILL);
                }
                let _ = waitpid(Some(*orphan), WaitOptions::NOHANG);
            }
            Ok::<_, io::Error>(!orphans.is_empty())
        })?;
        if !left {
            return Ok(());
        }
        if began.elapsed() > PATIENCE {
            return Err(Errno::TIMEDOUT.into());
        }
        std::thread::sleep(PAUSE);
    }
}

fn of_this_process(all: &[Process]) -> impl Iterator<Item = &Process> {
    let this = getpid();
    all.iter().filter(move |process| process.parent == Some(this))
}

/// The children of this process that come from steps: whom nobody waits for, and who were not there before.
fn orphans(all: &[Process], older: &[Process], is_awaited: impl Fn(Pid) -> bool) -> Vec<Pid> {
    let new = of_this_process(all).filter(|child| !is_awaited(child.id) && !older.contains(child));
    new.map(|child| child.id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orphans_of_steps_are_the_children_that_nobody_knows() {
        let pid = |number| Pid::from_raw(number).unwrap();
        let this = getpid();
        let child = |id, started| Process { id: pid(id), parent: Some(this), started };
        let below = |id, parent| Process { id: pid(id), parent: Some(pid(parent)), started: 9 };
        let (janitor, supervisor, orphan) = (child(100_001, 1), child(100_002, 2), child(100_003, 3));
        let other = Process { parent: None, ..child(100_004, 1) };
        let all = [janitor, supervisor, orphan, other, below(100_005, 100_002), below(100_006, 100_003)];
        let is_awaited = |id| id == supervisor.id;
        assert_eq!(orphans(&all, &[janitor], is_awaited), [orphan.id]);
        // A number that is used again is somebody else's.
        assert_eq!(orphans(&all, &[child(100_001, 0)], is_awaited), [janitor.id, orphan.id]);
        assert_eq!(orphans(&all, &[janitor, orphan], is_awaited), []);
    }
}
