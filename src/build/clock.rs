//! What time it is for the image that is built.

use crate::image::manifest::Image;
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
    /// A clock that stands at `seconds` since 1970, if that is a time that RFC 3339 can express: not before the year 0.
    #[must_use]
    pub fn fixed(seconds: i64) -> Option<Self> {
        const YEAR_0: i64 = -62_167_219_200;
        let is_late = seconds >= YEAR_0;
        jiff::Timestamp::from_second(seconds).ok().filter(|_| is_late).map(|_| Self::Fixed(seconds))
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

/// Lowers the times of what a build has added to `image`, and that of the image itself, to `latest`, in seconds since 1970
/// (BuildKit's exporter option `source-date-epoch`). Earlier ones stay, and so does the history of the base.
pub fn lower(image: &mut Image, latest: i64) {
    let latest = Timestamp { seconds: latest, nanoseconds: 0 };
    let lowered = |created: Option<&str>| {
        let time = created.and_then(|text| text.parse().ok());
        let is_early = time.is_some_and(|time: jiff::Timestamp| {
            (time.as_second(), time.subsec_nanosecond()) <= (latest.seconds, 0)
        });
        created.filter(|_| is_early).map_or_else(|| rfc3339(latest), str::to_owned)
    };
    image.set_created(image.base_rows(), |_, row| Some(lowered(row.created.as_deref())));
    image.edit(|config| config.created = Some(lowered(config.created.as_deref())));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::config::{History, ImageConfig};

    #[test]
    fn times_of_the_build_are_lowered_and_those_of_the_base_stay() {
        let row = |time: &str| History { created: Some(time.to_owned()), ..History::default() };
        let base = "2031-01-01T00:00:00Z";
        let config = ImageConfig { history: vec![row(base)], ..ImageConfig::default() };
        let mut image = Image::from_parts(config, Vec::new()).unwrap();
        for time in
            ["2001-02-03T04:05:06.7Z", "2001-09-09T01:46:40.5Z", "2030-01-01T00:00:00+05:00", "yesterday"]
        {
            image.append(row(time), None);
        }
        image.append(History::default(), None);
        lower(&mut image, 1_000_000_000);
        let epoch = "2001-09-09T01:46:40Z";
        let times: Vec<_> = image.config().history.iter().map(|row| row.created.as_deref()).collect();
        let expected = [base, "2001-02-03T04:05:06.7Z", epoch, epoch, epoch, epoch];
        assert_eq!(times, expected.map(Some));
        assert_eq!(image.config().created.as_deref(), Some(epoch));
        // Without anything of its own, the image is not older than that either.
        let config = ImageConfig { history: vec![row(base)], ..ImageConfig::default() };
        let mut image = Image::from_parts(config, Vec::new()).unwrap();
        lower(&mut image, 1_000_000_000);
        assert_eq!(image.config().history[0].created.as_deref(), Some(base));
        assert_eq!(image.config().created.as_deref(), Some(epoch));
    }

    #[test]
    fn a_clock_stands_where_rfc_3339_can_say_it() {
        for (seconds, is_time) in [
            (-62_167_219_200, true),
            (-62_167_219_201, false),
            (i64::MIN, false),
            (0, true),
            (253_402_207_200, true),
            (i64::MAX, false),
        ] {
            assert_eq!(Clock::fixed(seconds).is_some(), is_time, "{seconds}");
        }
    }

    #[test]
    fn times_are_written_as_docker_writes_them() {
        assert_eq!(rfc3339(Timestamp { seconds: 100, nanoseconds: 0 }), "1970-01-01T00:01:40Z");
        assert_eq!(rfc3339(Timestamp { seconds: 1, nanoseconds: 500_000_000 }), "1970-01-01T00:00:01.5Z");
    }
}
