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

thread_local! {
    static FAULT: Cell<Option<Fault>> = const { Cell::new(None) };
}

/// Sets when acts of this thread fail, from now on.
pub(super) fn set(fault: Option<Fault>) {
    FAULT.set(fault);
}

/// Whether the fault that was set has come.
pub(super) fn has_come() -> bool {
    matches!(FAULT.get(), None | Some(Fault::FromThenOn(0)))
}

/// Counts an act, and fails if it is its turn.
pub(super) fn strike() -> io::Result<()> {
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
