//! Text of a Dockerfile: bytes that are nearly always UTF-8, but need not be.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A piece of a Dockerfile, byte for byte.
///
/// BuildKit does not check that a Dockerfile is UTF-8; file names and values pass through unchanged. So this is a byte
/// string, used like a `&[u8]`; where a `String` is wanted at last (the image config is JSON), [`Text::to_string_lossy`]
/// replaces what is not UTF-8.
///
/// A clone shares the bytes: a file can name one large here-document many times.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text(Arc<[u8]>);

impl Text {
    /// The text `bytes`.
    #[must_use]
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into().into())
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// As a string, with U+FFFD for what is not UTF-8.
    #[must_use]
    pub fn to_string_lossy(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }

    /// Whether expansion could replace something in it (it has a `$`).
    #[must_use]
    pub fn has_variables(&self) -> bool {
        self.0.contains(&b'$')
    }
}

impl Deref for Text {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for Text {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_string_lossy())
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.to_string_lossy(), f)
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().into())
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self(text.into_bytes().into())
    }
}

impl From<&[u8]> for Text {
    fn from(text: &[u8]) -> Self {
        Self(text.into())
    }
}

impl From<Vec<u8>> for Text {
    fn from(text: Vec<u8>) -> Self {
        Self(text.into())
    }
}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        *self.0 == *other.as_bytes()
    }
}

impl PartialEq<&str> for Text {
    fn eq(&self, other: &&str) -> bool {
        *self.0 == *other.as_bytes()
    }
}

/// The character at `at` and its length in bytes; U+FFFD of length 1 where the bytes are not UTF-8. `at` must be
/// inside `bytes`, else the answer is U+FFFD, 1.
pub(super) fn char_at(bytes: &[u8], at: usize) -> (char, usize) {
    let Some(&first) = bytes.get(at) else { return ('\u{fffd}', 1) };
    if first.is_ascii() {
        return (char::from(first), 1);
    }
    let end = bytes.len().min(at + 4);
    let valid = match std::str::from_utf8(&bytes[at..end]) {
        Ok(text) => text,
        Err(error) => std::str::from_utf8(&bytes[at..at + error.valid_up_to()]).unwrap_or_default(),
    };
    valid.chars().next().map_or(('\u{fffd}', 1), |c| (c, c.len_utf8()))
}

/// `bytes` without white space (Unicode's) at the start.
pub(super) fn trim_start(bytes: &[u8]) -> &[u8] {
    let mut at = 0;
    while at < bytes.len() {
        let (c, length) = char_at(bytes, at);
        if !c.is_whitespace() {
            break;
        }
        at += length;
    }
    &bytes[at..]
}

/// `bytes` without white space (Unicode's) at both ends.
pub(super) fn trim(bytes: &[u8]) -> &[u8] {
    let mut rest = trim_start(bytes);
    while !rest.is_empty() {
        let mut start = rest.len() - 1;
        while start > 0 && rest.len() - start < 4 && rest[start] & 0xc0 == 0x80 {
            start -= 1;
        }
        let (c, length) = char_at(rest, start);
        if length != rest.len() - start || !c.is_whitespace() {
            break;
        }
        rest = &rest[..start];
    }
    rest
}

/// `bytes` without line ends at the end.
pub(super) fn trim_newline(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().rposition(|b| !matches!(b, b'\r' | b'\n')).map_or(0, |at| at + 1);
    &bytes[..end]
}

/// Whether `byte` separates words of an instruction: blank, tab, vertical tab, form feed, carriage return.
pub(super) fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | 0x0b | 0x0c | b'\r')
}

/// What is before the first run of blanks, and what is after it (`None` without any blank).
pub(super) fn split_once_blank(bytes: &[u8]) -> (&[u8], Option<&[u8]>) {
    let Some(start) = bytes.iter().position(|&b| is_blank(b)) else { return (bytes, None) };
    let end = bytes[start..].iter().position(|&b| !is_blank(b)).map_or(bytes.len(), |n| start + n);
    (&bytes[..start], Some(&bytes[end..]))
}

/// At most 200 bytes of `text` for a message.
pub(super) fn excerpt(text: &[u8]) -> String {
    const LIMIT: usize = 200;
    if text.len() <= LIMIT {
        String::from_utf8_lossy(text).into_owned()
    } else {
        format!("{}…", String::from_utf8_lossy(&text[..LIMIT]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_decoded_and_other_bytes_are_single() {
        assert_eq!(char_at(b"a", 0), ('a', 1));
        assert_eq!(char_at("é".as_bytes(), 0), ('é', 2));
        assert_eq!(char_at("😀x".as_bytes(), 0), ('😀', 4));
        assert_eq!(char_at(b"\xc3", 0), ('\u{fffd}', 1));
        assert_eq!(char_at(b"\xff\xfe", 1), ('\u{fffd}', 1));
        assert_eq!(char_at("éé".as_bytes(), 1), ('\u{fffd}', 1));
        assert_eq!(char_at(b"", 0), ('\u{fffd}', 1));
    }

    #[test]
    fn trimming_knows_unicode_white_space() {
        assert_eq!(trim("\u{a0} a b\u{2003}\t".as_bytes()), b"a b");
        assert_eq!(trim(b" \xa0 "), b"\xa0");
        assert_eq!(trim(b"  "), b"");
        assert_eq!(trim("é".as_bytes()), "é".as_bytes());
        assert_eq!(trim_newline(b"a\r\n"), b"a");
        assert_eq!(trim_newline(b"\r\n"), b"");
    }

    #[test]
    fn the_first_run_of_blanks_splits() {
        assert_eq!(split_once_blank(b"a \t b c"), (&b"a"[..], Some(&b"b c"[..])));
        assert_eq!(split_once_blank(b"a"), (&b"a"[..], None));
        assert_eq!(split_once_blank(b"a "), (&b"a"[..], Some(&b""[..])));
    }

    #[test]
    fn text_is_lossless_and_displays_lossily() {
        let text = Text::new(b"a\xffb".to_vec());
        assert_eq!(text.as_bytes(), b"a\xffb");
        assert_eq!(text.to_string(), "a\u{fffd}b");
        assert_eq!(excerpt(&[b'x'; 300]).len(), 200 + "…".len());
    }
}
