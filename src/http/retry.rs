//! How often and after what time a request is tried again.

use std::time::{Duration, SystemTime};

use super::clock::Clock;

/// Limits of trying again.
#[derive(Debug, Clone, Copy)]
pub struct Retries {
    /// How often something is tried in all.
    pub tries: u32,
    /// The wait after the first failure; doubled after each further one.
    pub base: Duration,
    /// All waits together are no longer than this.
    pub budget: Duration,
}

impl Default for Retries {
    fn default() -> Self {
        Self { tries: 5, base: Duration::from_millis(500), budget: Duration::from_secs(60) }
    }
}

/// The tries of one operation.
#[derive(Debug, Clone)]
pub struct Attempts {
    limits: Retries,
    failed: u32,
    waited: Duration,
}

impl Attempts {
    /// Nothing was tried yet.
    #[must_use]
    pub fn new(limits: Retries) -> Self {
        Self { limits, failed: 0, waited: Duration::ZERO }
    }

    /// A single try.
    #[must_use]
    pub fn once() -> Self {
        Self::new(Retries { tries: 1, ..Retries::default() })
    }

    /// How many tries failed.
    #[must_use]
    pub fn failed(&self) -> u32 {
        self.failed
    }

    /// The wait before the next try, or `None` when it is time to give up. `asked` is what the server wants.
    pub fn after_failure(&mut self, asked: Option<Duration>, clock: &dyn Clock) -> Option<Duration> {
        self.failed += 1;
        let left = self.limits.budget.saturating_sub(self.waited);
        if self.failed >= self.limits.tries || left.is_zero() {
            return None;
        }
        let wait = match asked {
            Some(asked) => asked,
            None => {
                let full = self.limits.base.saturating_mul(1 << (self.failed - 1).min(16));
                full / 2 + clock.jitter(full)
            }
        };
        let wait = wait.min(left);
        self.waited += wait;
        Some(wait)
    }

    /// Starts counting anew: the last try got a good step further before it failed. The time already waited counts on.
    pub fn progress(&mut self) {
        self.failed = 0;
    }
}

/// A `Retry-After` header (RFC 9110, 10.2.3): seconds or a date, which is compared with the server's own `Date` where
/// it sends one.
#[must_use]
pub fn retry_after(value: &str, date: Option<&str>, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(Duration::from_secs(value.parse().unwrap_or(u64::from(u32::MAX))));
    }
    let until = httpdate::parse_http_date(value).ok()?;
    let now = date.and_then(|date| httpdate::parse_http_date(date).ok()).unwrap_or(now);
    Some(until.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Still;

    impl Clock for Still {
        fn now(&self) -> SystemTime {
            SystemTime::UNIX_EPOCH
        }
        fn sleep(&self, _: Duration, _: &dyn Fn() -> bool) {}
        fn jitter(&self, _: Duration) -> Duration {
            Duration::ZERO
        }
    }

    #[test]
    fn waits_double_and_end_after_five_tries() {
        let mut attempts = Attempts::new(Retries::default());
        let waits: Vec<_> = std::iter::from_fn(|| attempts.after_failure(None, &Still)).collect();
        assert_eq!(waits, [250, 500, 1000, 2000].map(Duration::from_millis));
    }

    #[test]
    fn a_server_cannot_make_us_wait_longer_than_the_budget() {
        let mut attempts = Attempts::new(Retries::default());
        let waits: Vec<_> =
            std::iter::from_fn(|| attempts.after_failure(Some(Duration::from_secs(99_999)), &Still))
                .collect();
        assert_eq!(waits, [Duration::from_secs(60)]);
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let now = at(784_111_777);
        let later = "Sun, 06 Nov 1994 08:50:00 GMT";
        for (value, date, expected) in [
            ("2", None, Some(2)),
            (later, None, Some(23)),
            (later, Some("Sun, 06 Nov 1994 08:49:50 GMT"), Some(10)),
            ("Sun, 06 Nov 1994 08:00:00 GMT", None, Some(0)),
            ("99999999999999999999999", None, Some(u64::from(u32::MAX))),
            ("-1", None, None),
            ("", None, None),
            ("soon", None, None),
        ] {
            assert_eq!(retry_after(value, date, now), expected.map(Duration::from_secs), "{value}");
        }
    }
}
