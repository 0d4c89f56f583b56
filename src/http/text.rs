//! What other machines say, made fit for one line of a terminal.

use url::Url;

/// At most this many characters of foreign text are shown.
const SHOWN: usize = 200;

/// Whether `character` moves the cursor, hides itself or turns the direction of what is around it.
#[must_use]
pub fn is_deceptive(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// `text` with control and direction-changing characters escaped, cut after 200 characters.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut shown = String::new();
    let mut characters = text.chars();
    for character in characters.by_ref().take(SHOWN) {
        if is_deceptive(character) {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    if characters.next().is_some() {
        shown.push('…');
    }
    shown
}

/// `url` without user information, query and fragment: those may hold secrets.
#[must_use]
pub fn redact(url: &Url) -> String {
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    let query = if url.query().is_some() { "?…" } else { "" };
    escape(&format!("{}://{}{port}{}", url.scheme(), url.host_str().unwrap_or_default(), url.path())) + query
}

/// Text that should be a URL, without what may be a secret in it.
#[must_use]
pub fn redact_text(text: &str) -> String {
    match Url::parse(text) {
        Ok(url) if url.has_host() => redact(&url),
        _ if text.contains('@') => "…".to_owned(),
        _ => escape(text.split(['?', '#']).next().unwrap_or_default()),
    }
}

/// The `host[:port]` of `url`, as it stands in references.
#[must_use]
pub fn authority(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    match url.port() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_cannot_move_the_cursor_and_is_short() {
        assert_eq!(escape("a\n\u{1b}[2Jb\u{202e}"), "a\\n\\u{1b}[2Jb\\u{202e}");
        assert_eq!(escape(&"x".repeat(500)).chars().count(), 201);
    }

    #[test]
    fn a_printed_url_has_neither_password_nor_query() {
        let url = Url::parse("https://me:secret@host:8443/v2/a?token=secret#secret").unwrap();
        assert_eq!(redact(&url), "https://host:8443/v2/a?…");
        assert_eq!(authority(&url), "host:8443");
        for (text, expected) in [
            ("http://me:secret@host/x", "http://host/x"),
            ("me:secret@host", "…"),
            ("file:///x?secret", "file:///x"),
            ("/x?secret", "/x"),
        ] {
            assert_eq!(redact_text(text), expected);
        }
    }
}
