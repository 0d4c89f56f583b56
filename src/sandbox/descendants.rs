//! Ends what a process has started, where no pid namespace does that.
//!
//! Processes may leave their group, their session and their parent; they stay descendants of the nearest subreaper above
//! them (`PR_SET_CHILD_SUBREAPER` of prctl(2)).

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, wait};

/// How long descendants may go on starting others while they are ended.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// How long to wait for processes that were ended, before they are looked for again.
pub(super) const PAUSE: Duration = Duration::from_millis(1);

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
        for process in below(getpid(), &Process::all()?) {
            // It may be gone already.
            let _ = kill_process(process, Signal::KILL);
        }
        if began.elapsed() > PATIENCE {
            return Err(Errno::TIMEDOUT.into());
        }
        std::thread::sleep(PAUSE);
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Children {
    None,
    Some,
}

/// Takes leave of all children that have ended; says whether there are others.
fn reap() -> Children {
    loop {
        // Of any group: waitpid(None, ..) would ask only for those of this process' own.
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return Children::Some,
            Err(_) => return Children::None,
        }
    }
}

/// What /proc tells of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) id: Pid,
    /// None of one whose parent is not in this pid namespace.
    pub(super) parent: Option<Pid>,
    /// When it was started, in ticks of the machine: with this, no two processes have the same number.
    pub(super) started: u64,
}

impl Process {
    /// All that exist now.
    pub(super) fn all() -> io::Result<Vec<Self>> {
        let mut all = Vec::new();
        for entry in fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(id) = name.to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw) else {
                continue;
            };
            // Ended since.
            let Ok(stat) = fs::read(format!("/proc/{id}/stat")) else { continue };
            all.extend(Self::of_stat(id, &stat));
        }
        Ok(all)
    }

    /// Reads a `stat` file of proc(5): the numbers stand behind the name, which may hold anything.
    fn of_stat(id: Pid, stat: &[u8]) -> Option<Self> {
        let end = stat.iter().rposition(|byte| *byte == b')')?;
        let rest = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let parent = Pid::from_raw(fields.get(1)?.parse().ok()?);
        let started = fields.get(19)?.parse().ok()?;
        Some(Self { id, parent, started })
    }
}

/// All descendants of `ancestor` among `processes`.
pub(super) fn below(ancestor: Pid, processes: &[Process]) -> Vec<Pid> {
    let mut found = vec![ancestor];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(
            processes.iter().filter(|process| process.parent == Some(parent)).map(|process| process.id),
        );
        next += 1;
    }
    found.remove(0);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_found_behind_any_name() {
        let rest = "0 -1 4194560 102 0 0 0 0 0 0 0 20 0 1 0 4242 2457600 238";
        let pid = |number| Pid::from_raw(number);
        let cases = [
            (format!("7 (sh) S 3 7 6 {rest}"), Some((pid(3), 4242))),
            (format!("7 (a) b) S 9 (x) R 4 7 6 {rest}"), Some((pid(4), 4242))),
            (format!("7 (init) S 0 1 0 {rest}"), Some((None, 4242))),
            ("7 (sh) S 3 7 6 7 0".to_owned(), None),
            ("7 (sh".to_owned(), None),
            (String::new(), None),
        ];
        for (stat, expected) in cases {
            let found = Process::of_stat(Pid::INIT, stat.as_bytes());
            assert_eq!(found.map(|process| (process.parent, process.started)), expected, "{stat}");
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
        let all = Process::all().unwrap();
        let found = below(getpid(), &all);
        let shell = Pid::from_raw(child.id().cast_signed()).unwrap();
        assert!(found.contains(&shell));
        let below = below(shell, &all);
        assert_eq!(below.len(), 1);
        assert!(found.contains(&below[0]));
        kill_process(below[0], Signal::KILL).unwrap();
        child.wait().unwrap();
    }
}
