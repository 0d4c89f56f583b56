//! What time it is for the image that is built.

use crate::rootfs::Timestamp;

/// Where a build's times come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Clock {
    /// The machine's clock.
    #[default]
    Machine,
    /// `SOURCE_DATE_EPOCH`: seconds since 1970, whatever the machine says.
    Fixed(i64),
}

impl Clock {
    /// A clock that stands at `seconds` since 1970, if that is a time that RFC 3339 can express.
    #[must_use]
    pub fn fixed(seconds: i64) -> Option<Self> {
        jiff::Timestamp::from_second(seconds).ok().map(|_| Self::Fixed(seconds))
    }

    /// The seconds since 1970 at which it stands, if it does not go.
    #[must_use]
    pub fn epoch(self) -> Option<i64> {
        match self {
            Self::Machine => None,
            Self::Fixed(seconds) => Some(seconds),
        }
    }

    /// The present.
    #[must_use]
    pub fn now(self) -> Timestamp {
        match self {
            Self::Fixed(seconds) => Timestamp { seconds, nanoseconds: 0 },
            Self::Machine => {
                #[expect(
                    clippy::disallowed_methods,
                    reason = "this is the clock that everything else is handed"
                )]
                let now = std::time::SystemTime::now();
                let since = now.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
                Timestamp {
                    seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
                    nanoseconds: since.subsec_nanos(),
                }
            }
        }
    }
}

/// `time` as RFC 3339 in UTC, as image configs hold it. Times that it cannot express become 1970.
#[must_use]
pub fn rfc3339(time: Timestamp) -> String {
    let nanoseconds = i32::try_from(time.nanoseconds).unwrap_or(0);
    jiff::Timestamp::new(time.seconds, nanoseconds).unwrap_or(jiff::Timestamp::UNIX_EPOCH).to_string()
}

/// The time `text`, RFC 3339, but no later than `latest`, seconds since 1970. What is no time stays.
#[must_use]
pub fn lowered(text: &str, latest: i64) -> String {
    match text.parse::<jiff::Timestamp>() {
        Ok(time) if time.as_second() >= latest => rfc3339(Timestamp { seconds: latest, nanoseconds: 0 }),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_docker_writes_them() {
        assert_eq!(rfc3339(Timestamp { seconds: 100, nanoseconds: 0 }), "1970-01-01T00:01:40Z");
        assert_eq!(rfc3339(Timestamp { seconds: 1, nanoseconds: 500_000_000 }), "1970-01-01T00:00:01.5Z");
    }

    #[test]
    fn only_later_times_are_lowered() {
        for (text, expected) in [
            ("2024-01-01T00:00:00.5Z", "1970-01-01T00:01:40Z"),
            ("1970-01-01T00:01:40.5Z", "1970-01-01T00:01:40Z"),
            ("1970-01-01T00:00:01.5Z", "1970-01-01T00:00:01.5Z"),
            ("yesterday", "yesterday"),
        ] {
            assert_eq!(lowered(text, 100), expected);
        }
    }
}
