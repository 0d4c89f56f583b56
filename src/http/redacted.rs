//! What other machines say and where they are, fit for a message: short, and without secrets.

use url::Url;

use crate::text;

/// At most this many characters of foreign text are shown.
const SHOWN: usize = 200;

/// `text` from another machine, for a message.
#[must_use]
pub fn escape(text: &str) -> String {
    text::line(text.as_bytes(), SHOWN)
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
