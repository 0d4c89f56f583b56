//! Durations as Go writes them: `1h30m`, `1.5s`, `300ms`.

use std::fmt;

/// A span of time in nanoseconds, as in an image config.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Duration(i64);

/// Why a text is not a duration, in the words of Go's `time.ParseDuration`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// Not of the form number and unit.
    #[error("time: invalid duration {0:?}")]
    Invalid(String),
    /// A number without unit.
    #[error("time: missing unit in duration {0:?}")]
    MissingUnit(String),
    /// A unit that does not exist.
    #[error("time: unknown unit {unit:?} in duration {text:?}")]
    UnknownUnit {
        /// The unit.
        unit: String,
        /// The whole text.
        text: String,
    },
}

const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

impl Duration {
    /// A duration of so many nanoseconds.
    #[must_use]
    pub const fn from_nanoseconds(nanoseconds: i64) -> Self {
        Self(nanoseconds)
    }

    /// In nanoseconds.
    #[must_use]
    pub const fn nanoseconds(self) -> i64 {
        self.0
    }

    /// Reads `[-+](number unit)+`, or `0`; numbers may have a fraction, units are ns, us, ms, s, m, h.
    ///
    /// # Errors
    /// If `text` is none, or does not fit into 64 bits.
    pub fn parse(text: &str) -> Result<Self, DurationError> {
        let invalid = || DurationError::Invalid(text.to_owned());
        let (negative, mut rest) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        if rest == "0" {
            return Ok(Self(0));
        }
        if rest.is_empty() {
            return Err(invalid());
        }
        let mut total: u64 = 0;
        while !rest.is_empty() {
            let (nanoseconds, after) = one_number(text, rest)?;
            total = total.checked_add(nanoseconds).filter(|&n| n <= 1 << 63).ok_or_else(invalid)?;
            rest = after;
        }
        if negative {
            // The magnitude 2^63 exists only below zero.
            return Ok(Self((total as i64).wrapping_neg()));
        }
        i64::try_from(total).map(Self).map_err(|_| invalid())
    }
}

/// Reads one number and its unit at the start of `rest`; the answer is nanoseconds and what follows.
fn one_number<'a>(text: &str, rest: &'a str) -> Result<(u64, &'a str), DurationError> {
    let invalid = || DurationError::Invalid(text.to_owned());
    let digits = |s: &str| s.bytes().take_while(u8::is_ascii_digit).count();
    let whole_end = digits(rest);
    let whole = &rest[..whole_end];
    let mut after = &rest[whole_end..];
    let mut fraction = "";
    if let Some(point) = after.strip_prefix('.') {
        fraction = &point[..digits(point)];
        after = &point[fraction.len()..];
    }
    if whole.is_empty() && fraction.is_empty() {
        return Err(invalid());
    }
    let unit_end = after.bytes().position(|b| b == b'.' || b.is_ascii_digit()).unwrap_or(after.len());
    let unit = &after[..unit_end];
    if unit.is_empty() {
        return Err(DurationError::MissingUnit(text.to_owned()));
    }
    let Some(&(_, scale)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        return Err(DurationError::UnknownUnit { unit: unit.to_owned(), text: text.to_owned() });
    };
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| invalid())? };
    let mut nanoseconds = whole.checked_mul(scale).filter(|&n| n <= 1 << 63).ok_or_else(invalid)?;
    let (mut part, mut of) = (0u128, 1u128);
    // Digits below a nanosecond of the largest unit change nothing.
    for digit in fraction.bytes().take(18) {
        part = part * 10 + u128::from(digit - b'0');
        of *= 10;
    }
    let part = u64::try_from(part * u128::from(scale) / of).map_err(|_| invalid())?;
    nanoseconds = nanoseconds.checked_add(part).ok_or_else(invalid)?;
    Ok((nanoseconds, &after[unit_end..]))
}

impl fmt::Display for Duration {
    /// As Go prints it: `5m0s`, `1.5s`, `100µs`, `0s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let magnitude = self.0.unsigned_abs();
        if magnitude == 0 {
            return f.write_str("0s");
        }
        if self.0 < 0 {
            f.write_str("-")?;
        }
        let decimal = |value: u64, scale: u64, digits: usize| -> String {
            let (whole, part) = (value / scale, value % scale);
            let part = format!("{part:0digits$}");
            let part = part.trim_end_matches('0');
            if part.is_empty() || digits == 0 { whole.to_string() } else { format!("{whole}.{part}") }
        };
        match magnitude {
            n if n < 1_000 => write!(f, "{n}ns"),
            n if n < 1_000_000 => write!(f, "{}µs", decimal(n, 1_000, 3)),
            n if n < 1_000_000_000 => write!(f, "{}ms", decimal(n, 1_000_000, 6)),
            n => {
                let minutes = n / 60_000_000_000;
                let seconds = decimal(n % 60_000_000_000, 1_000_000_000, 9);
                match minutes {
                    0 => write!(f, "{seconds}s"),
                    1..60 => write!(f, "{minutes}m{seconds}s"),
                    _ => write!(f, "{}h{}m{seconds}s", minutes / 60, minutes % 60),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_and_print_as_in_go() {
        for (text, nanoseconds, printed) in [
            ("0", 0, "0s"),
            ("-0", 0, "0s"),
            ("5m", 300_000_000_000, "5m0s"),
            ("1h30m", 5_400_000_000_000, "1h30m0s"),
            ("1.5s", 1_500_000_000, "1.5s"),
            (".5s", 500_000_000, "500ms"),
            ("5.s", 5_000_000_000, "5s"),
            ("+3s", 3_000_000_000, "3s"),
            ("-2s", -2_000_000_000, "-2s"),
            ("100us", 100_000, "100µs"),
            ("1µs", 1_000, "1µs"),
            ("1μs", 1_000, "1µs"),
            ("1500ns", 1_500, "1.5µs"),
            ("1ns", 1, "1ns"),
            ("2ms", 2_000_000, "2ms"),
            ("2h3m4.5s", 7_384_500_000_000, "2h3m4.5s"),
            ("60m", 3_600_000_000_000, "1h0m0s"),
            ("9223372036854775807ns", i64::MAX, "2562047h47m16.854775807s"),
            ("-9223372036854775808ns", i64::MIN, "-2562047h47m16.854775808s"),
            ("0.100000000000000000000000000s", 100_000_000, "100ms"),
        ] {
            let duration = Duration::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(duration.nanoseconds(), nanoseconds, "{text}");
            assert_eq!(duration.to_string(), printed, "{text}");
        }
    }

    #[test]
    fn other_texts_are_errors_in_the_words_of_go() {
        for (text, message) in [
            ("", "time: invalid duration \"\""),
            ("-", "time: invalid duration \"-\""),
            ("5", "time: missing unit in duration \"5\""),
            ("1h5", "time: missing unit in duration \"1h5\""),
            ("1d", "time: unknown unit \"d\" in duration \"1d\""),
            ("1h 30m", "time: unknown unit \"h \" in duration \"1h 30m\""),
            (".s", "time: invalid duration \".s\""),
            ("x", "time: invalid duration \"x\""),
            ("9223372036854775808ns", "time: invalid duration \"9223372036854775808ns\""),
            ("99999999999999999999h", "time: invalid duration \"99999999999999999999h\""),
        ] {
            assert_eq!(Duration::parse(text).unwrap_err().to_string(), message, "{text}");
        }
    }
}
