//! What other machines say and what they are called, fit for a message.

use url::Url;

use crate::text;

/// At most this many characters of foreign text are shown.
const SHOWN: usize = 200;

/// `text` from another machine, for a message.
#[must_use]
pub fn escape(text: &str) -> String {
    text::line(text.as_bytes(), SHOWN)
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
