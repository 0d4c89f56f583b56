//! What a step leaves when its supervisor is killed, where no pid namespace ends it.
//!
//! Such a step may send signals to its supervisor, and to the builder: they are the same user to the kernel. So the builder
//! is a subreaper, too. It adopts what a killed supervisor leaves, and ends it.

use std::io;
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, getpid, kill_process, pidfd_open,
    set_child_subreaper, waitid, waitpid,
};

use super::descendants::{self, PATIENCE, PAUSE, Process};
use super::wire::Left;

/// How long a supervisor may take to end its step before it is ended itself: a step may have stopped it.
const LONGEST_END: Timespec = Timespec { tv_sec: 3, tv_nsec: 0 };

/// Which children this process has besides orphans of steps. Children belong to the process, whoever in it starts them.
static CHILDREN: Mutex<Children> = Mutex::new(Children { supervisors: Vec::new(), older: None });

struct Children {
    /// Those that have not been waited for.
    supervisors: Vec<Pid>,
    /// What there was when this process began to adopt orphans: the janitor, and what belongs to others if this is
    /// process 1 of a container.
    older: Option<Vec<Process>>,
}

impl Children {
    /// The children of this process that come from steps: all that `all` has, but those that are known, and those of the
    /// builder's own session. A step has another, and nobody can enter one from elsewhere.
    fn orphans(&self, all: &[Process]) -> Vec<Pid> {
        let this = getpid();
        let session = all.iter().find(|process| process.id == this).map(|process| process.session);
        let known = |child: &Process| {
            self.supervisors.contains(&child.id)
                || self.older.as_ref().is_some_and(|older| older.contains(child))
        };
        let orphans = of_this_process(all).filter(|child| Some(child.session) != session && !known(child));
        orphans.map(|child| child.id).collect()
    }
}

fn children() -> MutexGuard<'static, Children> {
    // What it guards is a set of numbers, true at any moment.
    CHILDREN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A supervisor, with what it may leave if it is killed.
pub(super) struct Supervisor {
    process: Child,
    left: Left,
}

impl Supervisor {
    /// Starts it.
    pub(super) fn start(command: &mut Command, left: Left) -> io::Result<Self> {
        // Until its number is noted, nobody may look for orphans.
        let mut children = children();
        if left == Left::Descendants && children.older.is_none() {
            let older = of_this_process(&Process::all()?).copied().collect();
            set_child_subreaper(Some(getpid()))?;
            children.older = Some(older);
        }
        let process = command.spawn()?;
        children.supervisors.push(Pid::from_child(&process));
        Ok(Self { process, left })
    }

    /// Waits until it has ended, and all of its step with it. It must have been told to end.
    ///
    /// # Errors
    /// `ETIMEDOUT` when what it left starts processes faster than they are ended, and those of reading /proc.
    pub(super) fn end(&mut self) -> io::Result<()> {
        let id = Pid::from_child(&self.process);
        if self.left == Left::Descendants
            && let Ok(handle) = pidfd_open(id, PidfdFlags::empty())
            && poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&LONGEST_END)) == Ok(0)
        {
            let _ = self.process.kill();
        }
        // Its number is taken until it was waited for.
        while let Err(Errno::INTR) = waitid(WaitId::Pid(id), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {}
        let status = {
            let mut children = children();
            children.supervisors.retain(|supervisor| *supervisor != id);
            self.process.wait()
        };
        match self.left {
            Left::Descendants if !status.is_ok_and(|status| status.success()) => end_all(),
            _ => Ok(()),
        }
    }
}

/// Ends the orphans of steps, and what they have started, and waits until none is left.
fn end_all() -> io::Result<()> {
    let began = Instant::now();
    loop {
        // Held meanwhile, so that no new supervisor is taken for an orphan.
        let children = children();
        let all = Process::all()?;
        let orphans: Vec<Pid> = children.orphans(&all);
        if orphans.is_empty() {
            return Ok(());
        }
        for orphan in orphans {
            for process in descendants::below(orphan, &all).into_iter().chain([orphan]) {
                // It may be gone already.
                let _ = kill_process(process, Signal::KILL);
            }
            let _ = waitpid(Some(orphan), WaitOptions::NOHANG);
        }
        drop(children);
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
