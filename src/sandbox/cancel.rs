//! The wish to stop, which wakes up whoever waits.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use rustix::event::{EventfdFlags, epoll, eventfd};

/// A switch that goes on once and stays on; clones share it.
#[derive(Debug, Clone)]
pub struct Cancel(Arc<State>);

#[derive(Debug)]
struct State {
    reason: OnceLock<String>,
    /// Readable from the moment of cancellation on: nobody ever reads it.
    event: OwnedFd,
    above: Option<Above>,
}

/// A switch that switches another one on with it.
#[derive(Debug)]
struct Above {
    switch: Cancel,
    /// An epoll(7) descriptor: readable when either is on.
    either: OwnedFd,
}

impl Cancel {
    /// A switch that is off.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(State { reason: OnceLock::new(), event, above: None })))
    }

    /// A switch that is on when this one is, and can be switched on without it.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn below(&self) -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let either = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (number, one) in [(0, event.as_fd()), (1, self.as_fd())] {
            epoll::add(&either, one, epoll::EventData::new_u64(number), epoll::EventFlags::IN)?;
        }
        let above = Some(Above { switch: self.clone(), either });
        Ok(Self(Arc::new(State { reason: OnceLock::new(), event, above })))
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
        self.reason().is_some()
    }

    /// Why; none while it is off.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        let above = || self.0.above.as_ref()?.switch.reason();
        self.0.reason.get().map(String::as_str).or_else(above)
    }
}

/// For poll(2): readable when cancelled.
impl AsFd for Cancel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.above.as_ref().map_or_else(|| self.0.event.as_fd(), |above| above.either.as_fd())
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
    fn a_switch_below_another_is_on_with_it_and_can_be_without() {
        let is_readable = |cancel: &Cancel| {
            let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
            poll(&mut [PollFd::new(cancel, PollFlags::IN)], Some(&now)).unwrap() == 1
        };
        let above = Cancel::new().unwrap();
        let (one, other) = (above.below().unwrap(), above.below().unwrap());
        assert!(!is_readable(&one));
        one.cancel("one");
        let state = |cancel: &Cancel| (cancel.is_cancelled(), is_readable(cancel));
        assert_eq!([&above, &one, &other].map(state), [(false, false), (true, true), (false, false)]);
        above.cancel("all");
        assert_eq!([&above, &one, &other].map(state), [(true, true); 3]);
        assert_eq!([&one, &other].map(|cancel| cancel.reason()), [Some("one"), Some("all")]);
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
