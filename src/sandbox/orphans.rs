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

/// What is known of the children of this process. Static, as what it describes: a process has one set of children.
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
    if let Some(known) = &mut *known() {
        let new = children::with_awaited(|is_awaited| known.new_children(is_awaited));
        // Asked afterwards: who is alive now was so when they came.
        if known.supervisors.iter().all(|(_, handle)| handle.as_ref().is_some_and(is_alive)) {
            known.strangers.extend(new);
        }
    }
}

impl Known {
    /// The children that are not known yet. None where the kernel has no list of them: in that, and not in the table of
    /// processes, a supervisor ends and leaves its orphans at the same moment.
    fn new_children(&mut self, is_awaited: impl Fn(Pid) -> bool) -> Vec<Process> {
        self.strangers.retain(|stranger| Process::of(stranger.id).as_ref() == Some(stranger));
        let listed = Children::open().listed().unwrap_or_default();
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
