//! What a step can do to its supervisor where it can reach that, seen from the builder.

use std::os::fd::OwnedFd;
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use super::processes::{Process, State};

/// How often it is looked whether a process has ended that nothing tells of.
const PAUSE: Duration = Duration::from_millis(10);

/// What was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing that would keep it from its work.
    Well,
    /// Whoever has stopped it does so again and again.
    Lost,
}

/// Whether a supervisor was stopped. One that stays so would keep a build waiting for ever, also when its step is over.
#[derive(Debug, Default)]
pub(super) struct Stops {
    /// It was found so when it was looked at last.
    was_stopped: bool,
}

impl Stops {
    /// Looks at `supervisor`, a child that was not waited for, from time to time. One that is stopped is continued: it may
    /// have been somebody who meant all processes of the container. Found so again, it is lost.
    pub(super) fn look(&mut self, supervisor: Pid) -> Found {
        let is_stopped = Process::with_state(supervisor).is_some_and(|(_, state)| state == State::Stopped);
        let was_stopped = std::mem::replace(&mut self.was_stopped, is_stopped);
        match (was_stopped, is_stopped) {
            (_, false) => Found::Well,
            (false, true) => {
                let _ = kill_process(supervisor, Signal::CONT);
                Found::Well
            }
            (true, true) => Found::Lost,
        }
    }
}

/// Whether `child` ends within `patience`.
pub(super) fn ends_within(child: &mut Child, patience: Duration) -> bool {
    let handle = pidfd_open(Pid::from_child(child), PidfdFlags::empty());
    ends(child, handle.ok().as_ref(), patience)
}

/// The same with a handle of it, where there are any (a filter of system calls, a kernel before 5.3, no descriptors).
fn ends(child: &mut Child, handle: Option<&OwnedFd>, patience: Duration) -> bool {
    let began = Instant::now();
    loop {
        // Who cannot be waited for is gone.
        if !matches!(child.try_wait(), Ok(None)) {
            return true;
        }
        let left = patience.saturating_sub(began.elapsed());
        if left.is_zero() {
            return false;
        }
        match handle {
            Some(handle) => {
                // A signal may end it early.
                let _ = poll(&mut [PollFd::new(handle, PollFlags::IN)], Some(&timespec(left)));
            }
            None => std::thread::sleep(PAUSE.min(left)),
        }
    }
}

/// For the kernel.
pub(super) fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs().cast_signed(), tv_nsec: duration.subsec_nanos().into() }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::process::{WaitId, WaitIdOptions, waitid};

    use super::*;

    fn child() -> Child {
        Command::new("/bin/sleep").arg("1000.046875").spawn().unwrap()
    }

    fn signal(child: &Child, signal: Signal, until: WaitIdOptions) {
        let id = Pid::from_child(child);
        kill_process(id, signal).unwrap();
        waitid(WaitId::Pid(id), until | WaitIdOptions::NOWAIT).unwrap();
    }

    #[test]
    fn one_that_is_stopped_is_continued_once_and_then_lost() {
        let mut child = child();
        let id = Pid::from_child(&child);
        let mut stops = Stops::default();
        let is_stopped = || Process::with_state(id).unwrap().1 == State::Stopped;
        assert_eq!(stops.look(id), Found::Well);
        for _ in 0..2 {
            signal(&child, Signal::STOP, WaitIdOptions::STOPPED);
            assert!(is_stopped());
            assert_eq!(stops.look(id), Found::Well);
            assert!(!is_stopped(), "it goes on");
            // Once it was seen at work, it has another chance.
            assert_eq!(stops.look(id), Found::Well);
        }
        signal(&child, Signal::STOP, WaitIdOptions::STOPPED);
        assert_eq!(stops.look(id), Found::Well);
        signal(&child, Signal::STOP, WaitIdOptions::STOPPED);
        assert_eq!(stops.look(id), Found::Lost);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn nobody_is_waited_for_longer_than_patience_lasts_with_a_handle_or_without() {
        const LONG: Duration = Duration::from_secs(3600);
        for has_handle in [true, false] {
            let mut child = child();
            let handle = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
            let handle = has_handle.then_some(&handle);
            signal(&child, Signal::STOP, WaitIdOptions::STOPPED);
            assert!(!ends(&mut child, handle, Duration::ZERO), "{handle:?}");
            assert!(!ends(&mut child, handle, Duration::from_millis(20)), "{handle:?}");
            kill_process(Pid::from_child(&child), Signal::KILL).unwrap();
            assert!(ends(&mut child, handle, LONG), "{handle:?}");
            assert!(ends(&mut child, handle, Duration::ZERO), "{handle:?}: it has ended");
        }
    }
}
