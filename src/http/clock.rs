//! Time as a value: what retries wait by.

use std::time::{Duration, Instant, SystemTime};

/// Tells the time, waits, and makes waits differ from each other.
pub trait Clock: Send + Sync {
    /// The time of day; only compared with dates that servers send.
    fn now(&self) -> SystemTime;

    /// Waits for `duration`, or until `cancelled` says so.
    fn sleep(&self, duration: Duration, cancelled: &dyn Fn() -> bool);

    /// A random duration below `limit`, so that many clients do not come back in the same moment.
    fn jitter(&self, limit: Duration) -> Duration;
}

/// The clock of this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "decides how long to wait, never what is built")]
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    fn sleep(&self, duration: Duration, cancelled: &dyn Fn() -> bool) {
        const SLICE: Duration = Duration::from_millis(50);
        let end = Instant::now() + duration;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || cancelled() {
                return;
            }
            std::thread::sleep(left.min(SLICE));
        }
    }

    fn jitter(&self, limit: Duration) -> Duration {
        let mut bytes = [0_u8; 4];
        // Without random numbers there is no jitter: still a correct wait.
        let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::NONBLOCK);
        limit.mul_f64(f64::from(u32::from_le_bytes(bytes)) / (f64::from(u32::MAX) + 1.0))
    }
}
