//! The wish to stop, which wakes up whoever waits.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use rustix::event::{EventfdFlags, eventfd};

/// A switch that goes on once and stays on; clones share it.
#[derive(Debug, Clone)]
pub struct Cancel(Arc<State>);

#[derive(Debug)]
struct State {
    reason: OnceLock<String>,
    /// Readable from the moment of cancellation on: nobody ever reads it.
    event: OwnedFd,
}

impl Cancel {
    /// A switch that is off.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(State { reason: OnceLock::new(), event })))
    }

    /// Switches on. The first `reason` (for instance `interrupted`) counts.
    pub fn cancel(&self, reason: &str) {
        self.0.reason.get_or_init(|| reason.to_owned());
        // Fails only when the counter is full, and then it is readable anyway.
        let _ = rustix::io::write(&self.0.event, &1_u64.to_ne_bytes());
    }

    /// Whether it is on.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.reason.get().is_some()
    }

    /// Why; none while it is off.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        self.0.reason.get().map(String::as_str)
    }
}

/// For poll(2): readable when cancelled.
impl AsFd for Cancel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    #[test]
    fn the_first_reason_counts_and_every_clone_wakes() {
        let cancel = Cancel::new().unwrap();
        let clone = cancel.clone();
        assert!(!clone.is_cancelled());
        assert_eq!(clone.reason(), None);
        cancel.cancel("first");
        cancel.cancel("second");
        assert!(clone.is_cancelled());
        assert_eq!(clone.reason(), Some("first"));
        for _ in 0..2 {
            assert_eq!(poll(&mut [PollFd::new(&clone, PollFlags::IN)], None).unwrap(), 1);
        }
    }

    #[test]
    fn wakes_another_thread() {
        let cancel = Cancel::new().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| poll(&mut [PollFd::new(&cancel, PollFlags::IN)], None).unwrap());
            cancel.cancel("enough");
        });
    }
}
