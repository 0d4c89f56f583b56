//! Ends what a process has started, where no pid namespace does that.
//!
//! Processes may leave their group, their session and their parent; they stay descendants of the nearest subreaper above
//! them (`PR_SET_CHILD_SUBREAPER` of prctl(2)), and they keep their root directory unless they may change it.

use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, kill_process, pidfd_open, pidfd_send_signal,
    set_child_subreaper, waitpid,
};

use crate::rootfs::{Metadata, metadata_of};

/// How long descendants may go on starting others while they are ended.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long to wait for processes that were ended, before they are looked for again.
const PAUSE: Duration = Duration::from_millis(1);

/// Ends all descendants of this process and waits until none is left. It must be their subreaper, and have one thread.
///
/// # Errors
/// `ETIMEDOUT` when they start others faster than they are ended, and those of reading /proc.
pub(super) fn end_all() -> io::Result<()> {
    let began = Instant::now();
    loop {
        if reap() == Children::None {
            return Ok(());
        }
        for process in of(getpid())? {
            // It may be gone already.
            let _ = kill_process(process, Signal::KILL);
        }
        if began.elapsed() > PATIENCE {
            return Err(Errno::TIMEDOUT.into());
        }
        std::thread::sleep(PAUSE);
    }
}

/// Ends the processes whose root directory is `root`, as far as they can be seen: for what is left of a step that has killed
/// its supervisor. Whether they have ended is only waited for, for a while: they are somebody else's children.
pub(super) fn end_all_in(root: BorrowedFd<'_>) {
    let Ok(root) = metadata_of(root) else { return };
    // Never everybody, whatever a caller has got wrong.
    if !root_of(getpid()).is_ok_and(|own| !own.same_file(&root)) {
        return;
    }
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        let Ok(processes) = all() else { return };
        let mut found = false;
        for process in processes {
            // In this order: the number may be used again, the descriptor stands for this one process.
            let Ok(handle) = pidfd_open(process, PidfdFlags::empty()) else { continue };
            if root_of(process).is_ok_and(|of| of.same_file(&root)) {
                found |= pidfd_send_signal(&handle, Signal::KILL).is_ok();
            }
        }
        if !found {
            return;
        }
        std::thread::sleep(PAUSE);
    }
}

/// Processes that become descendants of this one from some moment on, though their parents end: for a step whose root tells
/// nothing of it, should it kill its supervisor. Nothing else may be started meanwhile.
pub(super) struct Newcomers {
    known: Vec<Pid>,
}

impl Newcomers {
    /// From now on. This process adopts orphans, and goes on to.
    pub(super) fn expect() -> Self {
        // Where it may not, the supervisor is what there is to end them.
        let _ = set_child_subreaper(Some(getpid()));
        Self { known: of(getpid()).unwrap_or_default() }
    }

    /// Ends them, as far as that is to be had within a while.
    pub(super) fn end(self) {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            let Ok(now) = of(getpid()) else { return };
            let mut found = false;
            for process in now.into_iter().filter(|process| !self.known.contains(process)) {
                let Ok(handle) = pidfd_open(process, PidfdFlags::empty()) else { continue };
                // One that has ended already takes every signal; nobody may have reaped it yet.
                found |= is_alive(process) && pidfd_send_signal(&handle, Signal::KILL).is_ok();
            }
            if !found {
                return;
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// Whether a process has not ended yet.
fn is_alive(process: Pid) -> bool {
    let stat = fs::read(format!("/proc/{process}/stat")).unwrap_or_default();
    let end = stat.iter().rposition(|byte| *byte == b')');
    let state = end.and_then(|end| stat.get(end + 2));
    !matches!(state, None | Some(b'Z' | b'X'))
}

/// Of a process that has ended and is not reaped yet there is none.
fn root_of(process: Pid) -> io::Result<Metadata> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let path = format!("/proc/{}/root", process.as_raw_nonzero());
    metadata_of(rustix::fs::open(path, flags, Mode::empty())?)
}

#[derive(Debug, PartialEq, Eq)]
enum Children {
    None,
    Some,
}

/// Takes leave of all children that have ended; says whether there are others.
fn reap() -> Children {
    loop {
        match waitpid(None, WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return Children::Some,
            Err(_) => return Children::None,
        }
    }
}

/// All processes that exist now.
fn all() -> io::Result<Vec<Pid>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        found.extend(name.to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw));
    }
    Ok(found)
}

/// All descendants of `ancestor` that exist now.
fn of(ancestor: Pid) -> io::Result<Vec<Pid>> {
    let mut parents: Vec<(Pid, Pid)> = Vec::new();
    for process in all()? {
        // Ended since.
        let Ok(stat) = fs::read(format!("/proc/{process}/stat")) else { continue };
        if let Some(parent) = parent_of(&stat) {
            parents.push((process, parent));
        }
    }
    let mut found = vec![ancestor];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(process, _)| *process));
        next += 1;
    }
    found.remove(0);
    Ok(found)
}

/// The parent that a `stat` file of proc(5) names: the second number behind the name, which may hold anything.
fn parent_of(stat: &[u8]) -> Option<Pid> {
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
    rest.split_ascii_whitespace().nth(1)?.parse().ok().and_then(Pid::from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_is_found_behind_any_name() {
        let cases: [(&[u8], Option<i32>); 5] = [
            (b"7 (sh) S 3 7 7 0", Some(3)),
            (b"7 (a) b) S 9 (x) R 4 7", Some(4)),
            (b"1 (init) S 0 1 1", None),
            (b"7 (sh", None),
            (b"", None),
        ];
        for (stat, parent) in cases {
            assert_eq!(
                parent_of(stat).map(|pid| pid.as_raw_nonzero().get()),
                parent,
                "{}",
                stat.escape_ascii()
            );
        }
    }

    #[test]
    fn children_of_children_are_descendants() {
        let mut child = std::process::Command::new("/bin/sh")
            .args(["-c", "sleep 1000.03125 & echo ready; wait"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line)
            .unwrap();
        let found = of(getpid()).unwrap();
        let shell = Pid::from_raw(child.id().cast_signed()).unwrap();
        assert!(found.contains(&shell));
        let below = of(shell).unwrap();
        assert_eq!(below.len(), 1);
        assert!(found.contains(&below[0]));
        kill_process(below[0], Signal::KILL).unwrap();
        child.wait().unwrap();
    }
}
