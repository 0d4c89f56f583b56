//! Ends what a process has started, where no pid namespace does that.
//!
//! Processes may leave their group, their session and their parent; they stay descendants of the nearest subreaper above
//! them (`PR_SET_CHILD_SUBREAPER` of prctl(2)).

use super::processes::{Ended, PATIENCE, Survivors, end_children};
use crate::sys;

/// Ends all descendants of this process and waits until none is left. It must be their subreaper and have one thread, and
/// can wait for no child any more.
///
/// # Errors
/// When they start others faster than they are ended, or wait for something that does not come.
pub(super) fn end_all() -> Result<(), Survivors> {
    sys::disown_ended_children();
    end_children(PATIENCE, Ended::Vanish, |act| act(&|_| true))
}
