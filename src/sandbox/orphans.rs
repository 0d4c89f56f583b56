//! What a step leaves when its supervisor is killed, or could not end it, where no pid namespace does.
//!
//! Such a step may send signals to its supervisor, and to the builder: they are the same user to the kernel. So the builder
//! is a subreaper, too. It adopts what a killed supervisor leaves, and ends it.
//!
//! As process 1 of a container, or as the ancestor of a daemon that a credential helper has started, it adopts others
//! besides, which are no step's and must live. They are told apart by when they came: as long as a supervisor lives, the
//! orphans of its step are its own, so whoever has become a child of the builder meanwhile is a stranger. That is noted
//! every second. Who came after the last note, and before a step killed its supervisor, is taken for the step's: ending a
//! stranger is a nuisance, leaving a step's process alive is a danger. Nothing that a process has, session, capabilities
//! or filters, would say it better: a step can take on those of others, or get rid of its own.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open, set_child_subreaper};

use super::processes::{Children, Ended, PATIENCE, Process, Survivors, end_children};
use crate::children;

/// How often strangers are noted.
pub(super) const PERIOD: Duration = Duration::from_secs(1);

/// What is known of the children of this process. Static, as what it describes: a process has one set of children. Who
/// needs to know, too, who is waited for asks that first ([`children::with_awaited`]): in the other order two steps at once
/// would wait for each other.
static KNOWN: Mutex<Option<Known>> = Mutex::new(None);

#[derive(Debug)]
struct Known {
    /// The children that are no step's, and that nobody waits for: the janitor, and what belongs to others.
    strangers: Vec<Process>,
    /// Of steps that are not over. None where there are no handles.
    supervisors: Vec<(Pid, Option<OwnedFd>)>,
}

fn known() -> MutexGuard<'static, Option<Known>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes this process the parent of orphans, for good.
///
/// # Errors
/// Those of reading /proc.
pub(super) fn adopt() -> io::Result<()> {
    let mut known = known();
    if known.is_none() {
        let this = getpid();
        let strangers = Process::all()?.into_iter().filter(|process| process.parent == Some(this)).collect();
        *known = Some(Known { strangers, supervisors: Vec::new() });
        set_child_subreaper(Some(this))?;
    }
    Ok(())
}

/// Says that `supervisor`, a child that has not got its order yet, is the parent of a step's orphans from now on.
pub(super) fn begin(supervisor: Pid) {
    let handle = pidfd_open(supervisor, PidfdFlags::empty()).ok();
    if let Some(known) = &mut *known() {
        known.supervisors.push((supervisor, handle));
    }
}

/// Says that the step of `supervisor` is over, and nothing is left of it.
pub(super) fn end(supervisor: Pid) {
    if let Some(known) = &mut *known() {
        known.supervisors.retain(|(other, _)| *other != supervisor);
    }
}

/// Notes which children are no step's.
pub(super) fn note_strangers() {
    children::with_awaited(|is_awaited| {
        if let Some(known) = &mut *known() {
            let new = known.new_children(&mut Children::open(), is_awaited);
            // Asked afterwards: who is alive now was so when they came.
            if known.supervisors.iter().all(|(_, handle)| handle.as_ref().is_some_and(is_alive)) {
                known.strangers.extend(new);
            }
        }
    });
}

impl Known {
    /// The children that are not known yet. None where the kernel has no list of them: in that, and not in the table of
    /// processes, a supervisor ends and leaves its orphans at the same moment.
    fn new_children(&mut self, children: &mut Children, is_awaited: &dyn Fn(Pid) -> bool) -> Vec<Process> {
        self.strangers.retain(|stranger| Process::of(stranger.id).as_ref() == Some(stranger));
        let listed = children.listed().ok().flatten().unwrap_or_default();
        let new = listed.into_iter().filter(|child| !is_awaited(*child) && !self.is_stranger(*child));
        new.filter_map(Process::of).collect()
    }

    /// Whether the child is known as no step's.
    fn is_stranger(&self, child: Pid) -> bool {
        let noted = self.strangers.iter().find(|stranger| stranger.id == child);
        // Its number may have become another's.
        noted.is_some_and(|stranger| Process::of(child).is_some_and(|now| now.started == stranger.started))
    }
}

/// Whether the process has not ended, even if nobody has waited for it.
fn is_alive(handle: &OwnedFd) -> bool {
    poll(&mut [PollFd::new(handle, PollFlags::IN)], Some(&Timespec::default())) == Ok(0)
}

/// Ends the orphans of steps, and what they have started, and waits until none is left.
///
/// # Errors
/// When they start others faster than they are ended, or wait for something that does not come.
pub(super) fn end_all() -> Result<(), Survivors> {
    end_children(PATIENCE, Ended::Stay, |act| {
        // Nothing is started meanwhile that would be taken for an orphan.
        children::with_awaited(|is_awaited| {
            let known = known();
            let is_stranger = |child| known.as_ref().is_some_and(|known| known.is_stranger(child));
            act(&|child| !is_awaited(child) && !is_stranger(child));
        });
    })
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::process::{Command, Stdio};
    use std::sync::mpsc;

    use rustix::process::{Signal, kill_process};

    use super::*;
    use crate::children::Awaited;

    /// Tells [`adopts`] that it is a process of its own.
    const ALONE: &str = "BUILDER_TEST_ORPHANS";

    /// A shell with a process that it leaves when it ends, which it does when its standard input is closed.
    fn parent() -> (Awaited, Process) {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "sleep 1000.0625 >/dev/null 2>&1 & echo $!; read -r line"]);
        let mut shell = children::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped())).unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let left = Process::of(Pid::from_raw(line.trim().parse().unwrap()).unwrap()).unwrap();
        (shell, left)
    }

    fn is_ours(process: Process) -> bool {
        Process::of(process.id)
            .is_some_and(|now| now.started == process.started && now.parent == Some(getpid()))
    }

    /// While strangers are noted and it is not known yet who is awaited, others can ask what is known.
    fn nobody_is_kept_waiting() {
        let (tell, told) = mpsc::channel();
        let noting = children::with_awaited(|_| {
            let noting = std::thread::spawn(move || {
                tell.send(rustix::thread::gettid()).unwrap();
                note_strangers();
            });
            // It sleeps when it waits.
            let stat = format!("/proc/self/task/{}/stat", told.recv().unwrap());
            while !std::fs::read_to_string(&stat).unwrap().contains(") S ") {
                std::thread::yield_now();
            }
            assert!(KNOWN.try_lock().is_ok());
            noting
        });
        noting.join().unwrap();
    }

    fn leave(mut parent: Awaited) {
        drop(parent.stdin.take());
        parent.wait().unwrap();
    }

    /// Not a test of its own: the process that the test below starts.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "the way to tell a test that runs as a process of its own")]
    fn adopts() {
        if std::env::var_os(ALONE).is_none() {
            return;
        }
        let (older, from_older) = parent();
        adopt().unwrap();
        leave(older);
        let (supervisor, of_step) = parent();
        begin(Pid::from_child(&supervisor));
        let (other, stranger) = parent();
        leave(other);
        assert!(is_ours(from_older) && is_ours(stranger) && !is_ours(of_step));
        // In the table of processes an orphan may be there before its supervisor's end.
        let new = |mut children| known().as_mut().unwrap().new_children(&mut children, &|_| false);
        assert_eq!(new(Children::without_list()), []);
        assert!(new(Children::open()).iter().any(|child| child.id == stranger.id));
        nobody_is_kept_waiting();
        note_strangers();
        // Nothing that comes when the supervisor is dead is believed, also before somebody has noticed.
        let mut supervisor = supervisor;
        kill_process(Pid::from_child(&supervisor), Signal::KILL).unwrap();
        let handle = pidfd_open(Pid::from_child(&supervisor), PidfdFlags::empty()).unwrap();
        poll(&mut [PollFd::new(&handle, PollFlags::IN)], None).unwrap();
        assert!(is_ours(of_step));
        note_strangers();
        supervisor.wait().unwrap();
        let id = Pid::from_child(&supervisor);
        drop(supervisor);
        note_strangers();
        end_all().unwrap();
        assert_eq!([from_older, stranger, of_step].map(is_ours), [true, true, false]);
        // From now on there is no step, and everybody is a stranger.
        end(id);
        let (other, later) = parent();
        leave(other);
        note_strangers();
        end_all().unwrap();
        assert!(is_ours(later));
        for process in [from_older, stranger, later] {
            kill_process(process.id, Signal::KILL).unwrap();
        }
        println!("told them apart");
    }

    #[test]
    fn strangers_are_who_came_while_all_supervisors_lived() {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["sandbox::orphans::tests::adopts", "--exact", "--nocapture"]).env(ALONE, "1");
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("told them apart"), "{output:?}");
    }
}
