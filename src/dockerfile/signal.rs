//! Names of signals, as STOPSIGNAL takes them.

use super::suggest::suggest;

/// Linux's signals by name, as on x86 and arm.
const SIGNALS: [(&str, i64); 34] = [
    ("ABRT", 6),
    ("ALRM", 14),
    ("BUS", 7),
    ("CHLD", 17),
    ("CLD", 17),
    ("CONT", 18),
    ("FPE", 8),
    ("HUP", 1),
    ("ILL", 4),
    ("INT", 2),
    ("IO", 29),
    ("IOT", 6),
    ("KILL", 9),
    ("PIPE", 13),
    ("POLL", 29),
    ("PROF", 27),
    ("PWR", 30),
    ("QUIT", 3),
    ("SEGV", 11),
    ("STKFLT", 16),
    ("STOP", 19),
    ("SYS", 31),
    ("TERM", 15),
    ("TRAP", 5),
    ("TSTP", 20),
    ("TTIN", 21),
    ("TTOU", 22),
    ("URG", 23),
    ("USR1", 10),
    ("USR2", 12),
    ("VTALRM", 26),
    ("WINCH", 28),
    ("XCPU", 24),
    ("XFSZ", 25),
];

const RTMIN: i64 = 34;
const RTMAX: i64 = 64;

/// A text that names no signal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid signal: {text}{}", near.map(|near| format!(" (did you mean {near}?)")).unwrap_or_default())]
pub struct SignalError {
    /// The text, or its start.
    pub text: String,
    /// A signal that may have been meant.
    pub near: Option<&'static str>,
}

/// The number of the signal `text`: a name in any case with or without `SIG`, `RTMIN+n`, `RTMAX-n`, or any number but 0.
///
/// # Errors
/// If `text` is none of these.
pub fn signal_number(text: &str) -> Result<i64, SignalError> {
    let invalid = || SignalError { text: super::text::excerpt(text.as_bytes()), near: resembling(text) };
    if let Ok(number) = text.parse::<i64>() {
        return if number == 0 { Err(invalid()) } else { Ok(number) };
    }
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    if let Some((_, number)) = SIGNALS.iter().find(|(known, _)| *known == name) {
        return Ok(*number);
    }
    // "01" is not a name that exists, so the digits are compared as text.
    let offset = |digits: &str, limit: i64| (1..=limit).find(|n| n.to_string() == digits);
    match name {
        "RTMIN" => Some(RTMIN),
        "RTMAX" => Some(RTMAX),
        _ => match (name.strip_prefix("RTMIN+"), name.strip_prefix("RTMAX-")) {
            (Some(digits), _) => offset(digits, 15).map(|n| RTMIN + n),
            (_, Some(digits)) => offset(digits, 14).map(|n| RTMAX - n),
            _ => None,
        },
    }
    .ok_or_else(invalid)
}

/// The signal that a name resembles; very short names resemble all of them.
fn resembling(text: &str) -> Option<&'static str> {
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    if name.len() < 4 || !name.bytes().all(|b| b.is_ascii_uppercase()) {
        return None;
    }
    suggest(name, &SIGNALS.map(|(name, _)| name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names_and_numbers() {
        for (text, number) in [
            ("SIGTERM", 15),
            ("term", 15),
            ("sigkill", 9),
            ("9", 9),
            ("999", 999),
            ("+9", 9),
            ("-5", -5),
            ("99999999999", 99_999_999_999),
            ("rtmin", 34),
            ("rtmin+3", 37),
            ("SIGRTMAX-14", 50),
            ("RTMAX", 64),
        ] {
            assert_eq!(signal_number(text), Ok(number), "{text}");
        }
        for text in ["0", "SIGFOO", "", "RTMIN+16", "RTMIN+03", "RTMAX-15", "RTMIN-1", "TERM ", "9x"] {
            assert_eq!(signal_number(text).unwrap_err().to_string(), format!("invalid signal: {text}"));
        }
        let error = signal_number("SIGTREM").unwrap_err();
        assert_eq!(error.to_string(), "invalid signal: SIGTREM (did you mean TERM?)");
    }
}
