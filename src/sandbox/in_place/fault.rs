//! Faults for tests: what becomes of the root if an act on the disk fails, or is the last one.

use std::cell::Cell;
use std::io;

/// When acts fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The act after so many.
    Once(usize),
    /// All acts after so many: what a killed process would have done further is not done.
    FromThenOn(usize),
}

type Event = (usize, Box<dyn FnOnce()>);

thread_local! {
    static FAULT: Cell<Option<Fault>> = const { Cell::new(None) };
    static EVENT: Cell<Option<Event>> = const { Cell::new(None) };
    static ACTS: Cell<usize> = const { Cell::new(0) };
}

/// Does `event` before the act after `count` others; they are counted from now on.
pub(super) fn after(count: usize, event: impl FnOnce() + 'static) {
    ACTS.set(0);
    EVENT.set(Some((count, Box::new(event))));
}

/// How many acts there were since [`after`].
pub(super) fn acts() -> usize {
    ACTS.get()
}

/// Sets when acts of this thread fail, from now on.
pub(super) fn set(fault: Option<Fault>) {
    EVENT.set(None);
    FAULT.set(fault);
}

/// Whether the fault that was set has come.
pub(super) fn has_come() -> bool {
    matches!(FAULT.get(), None | Some(Fault::FromThenOn(0)))
}

/// Counts an act, and fails if it is its turn.
pub(super) fn strike() -> io::Result<()> {
    match EVENT.take() {
        Some((count, event)) if count == ACTS.get() => event(),
        other => EVENT.set(other),
    }
    ACTS.set(ACTS.get() + 1);
    let (fails, next) = match FAULT.get() {
        None => (false, None),
        Some(Fault::Once(0)) => (true, None),
        Some(Fault::FromThenOn(0)) => (true, Some(Fault::FromThenOn(0))),
        Some(Fault::Once(left)) => (false, Some(Fault::Once(left - 1))),
        Some(Fault::FromThenOn(left)) => (false, Some(Fault::FromThenOn(left - 1))),
    };
    FAULT.set(next);
    if fails { Err(io::Error::other("a planted fault")) } else { Ok(()) }
}
