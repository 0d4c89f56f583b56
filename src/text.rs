//! Text from outside, fit for one line of a message: it cannot steer or fool a terminal, and is short.

use std::borrow::Cow;
use std::error::Error;

/// Whether `character` moves the cursor, hides itself or turns the direction of what is around it.
#[must_use]
pub fn is_deceptive(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
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

/// What stands for a user name or a password: BuildKit's mask.
const MASK: &str = "xxxxx";

/// `text` without the passwords of the URLs in it: `https://user:password@host` becomes `https://xxxxx:xxxxx@host`. A user
/// name alone may be a token, but of `ssh://git@host`, where it is no secret.
#[must_use]
pub fn without_credentials(text: &str) -> Cow<'_, str> {
    let mut shown = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        // Not a quote: a password may have one.
        let is_end = |c: char| c.is_whitespace() || matches!(c, '/' | '?' | '#');
        let authority = &after[..after.find(is_end).unwrap_or(after.len())];
        shown.push_str(before);
        // What stands behind an `@` there is a digest.
        let is_image = ["docker-image://", "oci-layout://"].iter().any(|scheme| before.ends_with(scheme));
        let Some((user, host)) = authority.rsplit_once('@').filter(|_| !is_image) else {
            rest = after;
            continue;
        };
        match user.split_once(':') {
            None if before.to_ascii_lowercase().ends_with("ssh://") => shown.push_str(user),
            None => shown.push_str(MASK),
            Some(("", _)) => shown.extend([":", MASK]),
            Some(_) => shown.extend([MASK, ":", MASK]),
        }
        shown.push('@');
        shown.push_str(host);
        rest = &after[authority.len()..];
    }
    if shown.is_empty() {
        return Cow::Borrowed(text);
    }
    shown.push_str(rest);
    Cow::Owned(shown)
}

/// `error` and its causes, for a message of one line.
#[must_use]
pub fn chained(error: &(dyn Error + 'static)) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(deeper) = cause {
        line.push_str(": ");
        line.push_str(&deeper.to_string());
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
    }

    #[test]
    fn a_line_can_neither_move_the_cursor_nor_turn_the_direction() {
        for (text, shown) in [
            ("a\n\u{1b}[2Jb", "a\\n\\u{1b}[2Jb"),
            ("é\u{202e}x\u{2066}\u{200b}\u{feff}", "é\\u{202e}x\\u{2066}\\u{200b}\\u{feff}"),
            ("\u{85}\t", "\\u{85}\\t"),
        ] {
            assert_eq!(line(text.as_bytes(), 10), shown);
        }
        assert_eq!(line(b"a\xffb", 10), "a\u{fffd}b");
    }

    #[test]
    fn passwords_in_urls_are_not_shown() {
        for (text, shown) in [
            ("no url", "no url"),
            ("http://h/x", "http://h/x"),
            ("ADD https://me:pw@h/x https://h2/a@b /d", "ADD https://xxxxx:xxxxx@h/x https://h2/a@b /d"),
            ("https://token@h", "https://xxxxx@h"),
            ("https://:pw@h", "https://:xxxxx@h"),
            ("https://a:b@c:d@h/", "https://xxxxx:xxxxx@h/"),
            ("ssh://git@h/x and git@h:x", "ssh://git@h/x and git@h:x"),
            ("ssh://git:pw@h/x", "ssh://xxxxx:xxxxx@h/x"),
            ("http://${USER}:${PASSWORD}@h", "http://xxxxx:xxxxx@h"),
            ("'https://me:it's@h/x'", "'https://xxxxx:xxxxx@h/x'"),
            ("\"https://h\" <https://h2>", "\"https://h\" <https://h2>"),
            ("oci-layout://DIR[:TAG][@DIGEST]", "oci-layout://DIR[:TAG][@DIGEST]"),
            (
                "docker-image://busybox:1@sha256:x https://u@h",
                "docker-image://busybox:1@sha256:x https://xxxxx@h",
            ),
            ("x://y://u:p@h", "x://y://xxxxx:xxxxx@h"),
        ] {
            assert_eq!(without_credentials(text), shown);
        }
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
}
