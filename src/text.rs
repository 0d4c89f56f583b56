//! Text from outside, fit for one line of a message: it cannot steer or fool a terminal, and is short.

mod url;

use std::error::Error;
use std::io::{self, Write};

pub use url::{one_url, redact, redact_text, without_credentials};

/// Whether `character` moves the cursor, hides itself or turns the direction of what is around it: Unicode's Cc, and what of Cf
/// has such an effect.
#[must_use]
pub fn is_deceptive(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
        )
}

/// `bytes` with deceptive characters escaped as Rust writes them, and `…` behind the first `most` characters if there are
/// more. What is not UTF-8 becomes replacement characters.
#[must_use]
pub fn line(bytes: &[u8], most: usize) -> String {
    // A character has at most four bytes, what is not one at least one: no more than this is looked at.
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(most.saturating_add(1).saturating_mul(4))]);
    let mut line = String::new();
    for (count, character) in text.chars().enumerate() {
        if count == most {
            line.push('…');
            break;
        }
        if is_deceptive(character) {
            line.extend(character.escape_default());
        } else {
            line.push(character);
        }
    }
    line
}

/// JSON on its way to `W`, in which deceptive characters become `\uXXXX`: a terminal may be where it ends. They stand in
/// strings alone, where that means the same; line feeds and blanks between them stay.
pub struct SafeJson<W>(pub W);

impl<W: Write> Write for SafeJson<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Whoever writes JSON writes whole characters.
        for chunk in bytes.utf8_chunks() {
            let mut rest = chunk.valid();
            while let Some(at) = rest.find(|c: char| c >= '\u{7f}' && is_deceptive(c)) {
                self.0.write_all(&rest.as_bytes()[..at])?;
                let character = rest[at..].chars().next().unwrap_or_default();
                for unit in character.encode_utf16(&mut [0; 2]) {
                    write!(self.0, "\\u{unit:04x}")?;
                }
                rest = &rest[at + character.len_utf8()..];
            }
            self.0.write_all(rest.as_bytes())?;
            self.0.write_all(chunk.invalid())?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// `error` and its causes, for a message of one line.
#[must_use]
pub fn chained(error: &(dyn Error + 'static)) -> String {
    let mut last = error.to_string();
    let mut line = last.clone();
    let mut cause = error.source();
    while let Some(deeper) = cause {
        let text = deeper.to_string();
        // Wrappers repeat what they wrap, perhaps with something behind it.
        if !last.starts_with(&text) {
            line.push_str(": ");
            line.push_str(&text);
            last = text;
        }
        cause = deeper.source();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_shown_with_its_causes() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot do it")]
        struct Outer(#[source] std::io::Error);
        let inner = std::io::Error::from_raw_os_error(2);
        let text = format!("cannot do it: {inner}");
        assert_eq!(chained(&Outer(inner)), text);
        assert_eq!(chained(&std::io::Error::other("alone")), "alone");
        #[derive(Debug, thiserror::Error)]
        #[error("{0} (tried twice)")]
        struct Again(#[source] std::io::Error);
        assert_eq!(chained(&Again(std::io::Error::other("it is gone"))), "it is gone (tried twice)");
    }

    #[test]
    fn a_line_can_neither_move_the_cursor_nor_turn_the_direction() {
        for (text, shown) in [
            ("a\n\u{1b}[2Jb", "a\\n\\u{1b}[2Jb"),
            ("é\u{202e}x\u{2066}\u{200b}\u{feff}", "é\\u{202e}x\\u{2066}\\u{200b}\\u{feff}"),
            ("\u{85}\t", "\\u{85}\\t"),
            ("\u{9b}1m\u{61c}", "\\u{9b}1m\\u{61c}"),
            ("\u{2069}\u{206f}\u{ad}", "\\u{2069}\\u{206f}\\u{ad}"),
        ] {
            assert_eq!(line(text.as_bytes(), 10), shown);
        }
        assert_eq!(line(b"a\xffb", 10), "a\u{fffd}b");
    }

    #[test]
    fn a_line_is_cut_where_there_is_more() {
        for (text, shown) in
            [("", ""), ("abc", "abc"), ("abcd", "abc…"), ("😀😀😀", "😀😀😀"), ("😀😀😀x", "😀😀😀…")]
        {
            assert_eq!(line(text.as_bytes(), 3), shown);
        }
        assert_eq!(line(&vec![0; 1_000_000], 100).chars().count(), 501);
    }

    #[test]
    fn json_says_the_same_and_cannot_steer_a_terminal() {
        let value = serde_json::json!({"a\u{9b}": ["\u{202e}é\u{e0041}\u{7f}\n\u{1b}", "plain 😀"]});
        let mut out = Vec::new();
        serde_json::to_writer_pretty(SafeJson(&mut out), &value).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.contains(r#""a\u009b""#) && text.contains(r#""\u202eé\udb40\udc41\u007f\n\u001b""#),
            "{text}"
        );
        assert!(!text.replace('\n', "").contains(is_deceptive), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}
