//! The processes that there are, as /proc tells, and how one is ended and no other.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, getpid, kill_process, pidfd_open,
    pidfd_send_signal, waitid, waitpid,
};

use crate::rootfs::Escaped;

/// How long processes may go on starting others while they are ended.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// How long to look out for the end of a killed process without a pause. Most need less; and who is faster than this
/// process would be more so if it slept.
const ALERT: Duration = Duration::from_millis(2);

/// How long to wait for processes that were ended, before they are looked for again.
const PAUSE: Duration = Duration::from_millis(1);

/// Asks whether a child has ended, and leaves everything as it is.
const LOOK: WaitIdOptions = WaitIdOptions::EXITED.union(WaitIdOptions::NOHANG).union(WaitIdOptions::NOWAIT);

/// What /proc tells of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) id: Pid,
    /// None of one whose parent is not in this pid namespace.
    pub(super) parent: Option<Pid>,
    /// When it was started, in ticks of the machine: with this, no two processes have the same number.
    pub(super) started: u64,
}

/// What a process does, as far as anybody here asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// It was stopped by a signal.
    Stopped,
    /// It has ended, and nobody has waited for it.
    Ended,
    /// It runs, or waits for something.
    Other,
}

impl Process {
    /// All that exist now, those that have ended and were not waited for among them.
    pub(super) fn all() -> io::Result<Vec<Self>> {
        let mut all = Vec::new();
        for entry in fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(id) = name.to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw) else {
                continue;
            };
            all.extend(Self::of(id));
        }
        Ok(all)
    }

    /// The one that has this number now.
    pub(super) fn of(id: Pid) -> Option<Self> {
        Some(Self::with_state(id)?.0)
    }

    /// The same, and what it does.
    pub(super) fn with_state(id: Pid) -> Option<(Self, State)> {
        Self::of_stat(id, &fs::read(format!("/proc/{id}/stat")).ok()?)
    }

    /// Whether it has not ended, even if nobody has waited for it.
    fn lives(self) -> bool {
        Self::with_state(self.id)
            .is_some_and(|(now, state)| now.started == self.started && state != State::Ended)
    }

    /// Its number, and its name as long as it has one.
    fn named(self) -> String {
        let name = fs::read(format!("/proc/{}/comm", self.id)).unwrap_or_default();
        format!("{} (`{}`)", self.id, Escaped::new(name.trim_ascii_end()))
    }

    /// Reads a `stat` file of proc(5): the numbers stand behind the name, which may hold anything.
    fn of_stat(id: Pid, stat: &[u8]) -> Option<(Self, State)> {
        let end = stat.iter().rposition(|byte| *byte == b')')?;
        let rest = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let parent = Pid::from_raw(fields.get(1)?.parse().ok()?);
        let started = fields.get(19)?.parse().ok()?;
        let state = match *fields.first()? {
            "T" => State::Stopped,
            "Z" | "X" | "x" => State::Ended,
            _ => State::Other,
        };
        Some((Self { id, parent, started }, state))
    }

    /// Ends it, and nobody who has got its number since.
    fn end(self) {
        match pidfd_open(self.id, PidfdFlags::empty()) {
            // Whose handle this is, is asked after it was opened: who has the number and the time of its start now, had
            // it all along.
            Ok(handle) => {
                if Self::of(self.id).is_some_and(|now| now.started == self.started) {
                    let _ = pidfd_send_signal(&handle, Signal::KILL);
                }
            }
            // It is gone.
            Err(Errno::SRCH) => {}
            // A filter of system calls, a kernel before 5.3, no descriptors: there is nothing better.
            Err(_) => {
                if Self::of(self.id).is_some_and(|now| now.started == self.started) {
                    let _ = kill_process(self.id, Signal::KILL);
                }
            }
        }
    }
}

/// All descendants of `ancestor` among `processes`.
fn below(ancestor: Pid, processes: &[Process]) -> Vec<Process> {
    let mut found: Vec<Process> = Vec::new();
    let mut next = Some(ancestor);
    let mut position = 0;
    while let Some(parent) = next {
        found.extend(processes.iter().filter(|process| process.parent == Some(parent)));
        next = found.get(position).map(|process| process.id);
        position += 1;
    }
    found
}

/// The children of this process, those that have ended and were not waited for among them.
pub(super) struct Children {
    /// Of the main thread, which the kernel makes the parent of orphans. It names what it had to look for among all
    /// processes otherwise, and takes a few microseconds. None where the kernel has no such file (CONFIG_PROC_CHILDREN).
    list: Option<File>,
}

impl Children {
    pub(super) fn open() -> Self {
        Self { list: File::open(format!("/proc/self/task/{}/children", getpid())).ok() }
    }

    /// Where the kernel has no list.
    #[cfg(test)]
    pub(super) fn without_list() -> Self {
        Self { list: None }
    }

    /// Those that are in the list of the kernel, if it has one. One may be missing while another thread waits for one.
    pub(super) fn listed(&mut self) -> io::Result<Option<Vec<Pid>>> {
        let Some(list) = &mut self.list else { return Ok(None) };
        let mut text = String::new();
        list.rewind()?;
        list.read_to_string(&mut text)?;
        Ok(Some(text.split_ascii_whitespace().filter_map(|id| Pid::from_raw(id.parse().ok()?)).collect()))
    }

    /// All of them, if nobody waits for any meanwhile.
    pub(super) fn all() -> io::Result<Vec<Pid>> {
        let all = Process::all()?;
        let this = getpid();
        Ok(all.iter().filter(|process| process.parent == Some(this)).map(|process| process.id).collect())
    }
}

/// What did not end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("processes did not end although they were killed{}", listed(processes))]
pub struct Survivors {
    /// Those that were there at last, as far as that could be found out, and their numbers and names.
    processes: Vec<(Process, String)>,
}

fn listed(processes: &[(Process, String)]) -> String {
    const SHOWN: usize = 5;
    let mut text = String::new();
    for (index, (_, name)) in processes.iter().take(SHOWN).enumerate() {
        text.push_str(if index == 0 { ": " } else { ", " });
        text.push_str(name);
    }
    match processes.len().saturating_sub(SHOWN) {
        0 => text,
        more => format!("{text} and {more} more"),
    }
}

impl Survivors {
    /// The chosen children, and all below them.
    fn find(is_chosen: &dyn Fn(Pid) -> bool) -> Self {
        let all = Process::all().unwrap_or_default();
        let this = getpid();
        let mut found = Vec::new();
        for child in all.iter().filter(|process| process.parent == Some(this) && is_chosen(process.id)) {
            found.extend(below(child.id, &all).iter().chain([child]));
        }
        Self::of(found)
    }

    /// These.
    pub(super) fn of(processes: Vec<Process>) -> Self {
        Self { processes: processes.into_iter().map(|process| (process, process.named())).collect() }
    }

    /// For [`Survivors::left_of`]: numbers, and when they were started.
    pub(super) fn encode(&self) -> String {
        self.processes.iter().map(|(process, _)| format!("{} {}\n", process.id, process.started)).collect()
    }

    /// Those of a text by [`Survivors::encode`] that have not ended since, if there are any. What is no such text names
    /// none.
    pub(super) fn left_of(text: &str) -> Option<Self> {
        let named = text.lines().filter_map(|line| {
            let (id, started) = line.split_once(' ')?;
            let id = id.parse().ok().filter(|id: &i32| *id > 0)?;
            Some(Process { id: Pid::from_raw(id)?, parent: None, started: started.parse().ok()? })
        });
        let living: Vec<Process> = named.filter(|process| process.lives()).collect();
        (!living.is_empty()).then(|| Self::of(living))
    }
}

/// Whether there is something to be ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pass {
    /// Nothing is left.
    Over,
    /// Some have ended.
    Some,
    /// None has ended since.
    None,
}

/// What becomes of children that have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// They stay in the table of processes until they are waited for.
    Stay,
    /// The kernel takes leave of them at once ([`crate::sys::disown_ended_children`]).
    Vanish,
}

/// Ends the children of this process that are chosen, with all that they have started, and takes leave of them, until none
/// is left. This process must be the parent of orphans. `alone` calls what it is given with who is chosen; meanwhile nobody
/// else may take leave of a chosen one, or start a child that would be chosen. Where ended ones vanish, all are chosen.
///
/// A process that starts another and ends, again and again, is gone from its number before that can be used, if who looks
/// for it takes longer than it lives. So children are asked for, where the kernel has a list of them, and killed at once,
/// the latest first; what they leave become children. A process that was killed starts no other: that much is atomic. There
/// is no pause as long as some end. Measured with 64 such processes on two busy processors: a tenth of a second to five
/// seconds. To read the table of processes, kill, take leave of the ended and pause for a millisecond ended few of them,
/// but 64 not in the forty seconds that they had: who has no larger share of a processor than each of the others falls
/// behind. It took longer, too, to walk down from each child to its latest descendant, and without [`Ended::Vanish`].
///
/// # Errors
/// What is left after `patience`.
pub(super) fn end_children(
    patience: Duration,
    ended: Ended,
    alone: impl Fn(&mut dyn FnMut(&dyn Fn(Pid) -> bool)),
) -> Result<(), Survivors> {
    let mut children = Children::open();
    let began = Instant::now();
    let mut progress = began;
    loop {
        // Where /proc cannot be read now, it may be later.
        let mut pass = Pass::None;
        alone(&mut |is_chosen| pass = end_once(&mut children, ended, is_chosen).unwrap_or(Pass::None));
        match pass {
            Pass::Over => return Ok(()),
            Pass::Some => progress = Instant::now(),
            Pass::None if progress.elapsed() < ALERT => std::thread::yield_now(),
            Pass::None => {
                // Those whose parent does not end, since it waits for a disk, for instance.
                alone(&mut |is_chosen| end_below(is_chosen));
                std::thread::sleep(PAUSE);
            }
        }
        if began.elapsed() > patience {
            let mut survivors = Survivors::of(Vec::new());
            alone(&mut |is_chosen| survivors = Survivors::find(is_chosen));
            return Err(survivors);
        }
    }
}

/// Ends the chosen ones that there are.
fn end_once(children: &mut Children, ended: Ended, is_chosen: &dyn Fn(Pid) -> bool) -> io::Result<Pass> {
    if matches!(waitid(WaitId::All, LOOK), Err(Errno::CHILD)) {
        return Ok(Pass::Over);
    }
    let mut chosen = children.listed()?.unwrap_or_default();
    chosen.retain(|child| is_chosen(*child));
    if chosen.is_empty() {
        chosen = Children::all()?;
        chosen.retain(|child| is_chosen(*child));
    }
    if chosen.is_empty() {
        // Whoever was there when the table began to be read is still in it, if those that have ended stay. Else there are
        // some as long as there are any: that was asked above.
        return Ok(if ended == Ended::Stay { Pass::Over } else { Pass::None });
    }
    for child in chosen.iter().rev() {
        end_child(*child);
    }
    let mut pass = Pass::None;
    for child in chosen {
        // Nobody else waits for it; if it is gone all the same, that is as well.
        if !matches!(waitpid(Some(child), WaitOptions::NOHANG), Ok(None)) {
            pass = Pass::Some;
        }
    }
    Ok(pass)
}

/// Ends `child`, if that is the number of a child of this process; else it has ended, and the number may be another's.
fn end_child(child: Pid) {
    let is_child = |id: WaitId<'_>| waitid(id, LOOK).map(|_| ());
    match pidfd_open(child, PidfdFlags::empty()) {
        Ok(handle) => match is_child(WaitId::PidFd(handle.as_fd())) {
            Ok(()) => {
                let _ = pidfd_send_signal(&handle, Signal::KILL);
            }
            Err(Errno::CHILD) => {}
            // Before Linux 5.4.
            Err(_) => Process::of(child).into_iter().for_each(Process::end),
        },
        Err(Errno::SRCH) => {}
        Err(_) => {
            if is_child(WaitId::Pid(child)).is_ok() {
                let _ = kill_process(child, Signal::KILL);
            }
        }
    }
}

fn end_below(is_chosen: &dyn Fn(Pid) -> bool) {
    let Ok(all) = Process::all() else { return };
    let this = getpid();
    for child in all.iter().filter(|process| process.parent == Some(this) && is_chosen(process.id)) {
        for process in below(child.id, &all) {
            process.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_found_behind_any_name() {
        let rest = "0 -1 4194560 102 0 0 0 0 0 0 0 20 0 1 0 4242 2457600 238";
        let pid = |number| Pid::from_raw(number);
        let cases = [
            (format!("7 (sh) S 3 7 6 {rest}"), Some((pid(3), 4242, State::Other))),
            (format!("7 (a) b) S 9 (x) T 4 7 6 {rest}"), Some((pid(4), 4242, State::Stopped))),
            (format!("7 (init) Z 0 1 0 {rest}"), Some((None, 4242, State::Ended))),
            ("7 (sh) S 3 7 6 7 0".to_owned(), None),
            ("7 (sh".to_owned(), None),
            (String::new(), None),
        ];
        for (stat, expected) in cases {
            let found = Process::of_stat(Pid::INIT, stat.as_bytes());
            let found = found.map(|(process, state)| (process.parent, process.started, state));
            assert_eq!(found, expected, "{stat}");
        }
    }

    /// A shell with a child of its own.
    fn family() -> std::process::Child {
        let mut child = std::process::Command::new("/bin/sh")
            .args(["-c", "sleep 1000.03125 & echo ready; wait"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line)
            .unwrap();
        child
    }

    #[test]
    fn children_of_children_are_descendants_and_only_who_is_meant_is_ended() {
        let mut child = family();
        let all = Process::all().unwrap();
        let found = below(getpid(), &all);
        let shell = Process::of(Pid::from_child(&child)).unwrap();
        assert!(found.contains(&shell));
        assert!(Children::all().unwrap().contains(&shell.id));
        let below = below(shell.id, &all);
        assert_eq!(below.len(), 1);
        assert!(found.contains(&below[0]));
        // Somebody who had the number before.
        Process { started: shell.started - 1, ..shell }.end();
        Process { started: below[0].started + 1, ..below[0] }.end();
        let ended = below[0];
        // The shell waits for its child.
        assert!(child.try_wait().unwrap().is_none() && Process::of(ended.id) == Some(ended));
        ended.end();
        assert!(child.wait().unwrap().success());
        ended.end();
    }

    #[test]
    fn what_does_not_end_in_time_is_named_and_all_below_it() {
        let mut child = family();
        let shell = Pid::from_child(&child);
        let error = Survivors::find(&|id| id == shell).to_string();
        let sleep = below(shell, &Process::all().unwrap())[0];
        assert_eq!(
            error,
            format!(
                "processes did not end although they were killed: {} (`sleep`), {shell} (`sh`)",
                sleep.id
            )
        );
        let many: Vec<_> = (0..7).map(|number| (sleep, number.to_string())).collect();
        assert_eq!(listed(&many), ": 0, 1, 2, 3, 4 and 2 more");
        sleep.end();
        child.wait().unwrap();
    }

    #[test]
    fn what_was_left_is_known_again_until_it_has_ended() {
        let mut child = std::process::Command::new("/bin/sleep").arg("1000.03127").spawn().unwrap();
        let sleep = Process::of(Pid::from_child(&child)).unwrap();
        let text = Survivors::of(vec![sleep]).encode();
        let left = Survivors::left_of(&format!("x\n1\n-1 2\n0 0\n{text}")).unwrap();
        assert_eq!(left.encode(), text);
        // Somebody else who has the number.
        assert_eq!(Survivors::left_of(&format!("{} {}\n", sleep.id, sleep.started + 1)), None);
        sleep.end();
        let handle = pidfd_open(sleep.id, PidfdFlags::empty()).unwrap();
        waitid(WaitId::PidFd(handle.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
        // It is in the table of processes all the same.
        assert!(Process::of(sleep.id).is_some());
        assert_eq!(Survivors::left_of(&text), None);
        child.wait().unwrap();
    }

    #[test]
    fn children_are_ended_where_the_kernel_has_no_list_of_them() {
        let mut child = std::process::Command::new("/bin/sleep").arg("1000.03126").spawn().unwrap();
        let id = Pid::from_child(&child);
        let mut children = Children::without_list();
        while end_once(&mut children, Ended::Stay, &|other| other == id).unwrap() != Pass::Over {
            std::thread::yield_now();
        }
        assert_eq!(Process::of(id), None);
        assert!(child.wait().is_err(), "it was waited for");
    }
}
