//! How URLs are shown: the one place that decides what of them may be a secret.
//!
//! It depends on who wrote a URL. In what the user wrote, instructions and flags, user names and passwords are masked and all
//! else stays: a query is part of the history, as under BuildKit. Where builder itself speaks of one URL that the user wrote,
//! its query, which may be a signature, is not needed to know which it is. In a URL that a server named, nobody but the
//! server knows what is secret: scheme, host and path are shown.

use std::borrow::Cow;

use url::Url;

use super::line;

/// What stands for a user name or a password: BuildKit's mask.
const MASK: &str = "xxxxx";

/// At most this many characters of a URL that a server named are shown.
const SHOWN: usize = 200;

/// `text` that the user wrote without the passwords of the URLs in it: `https://user:password@host` becomes
/// `https://xxxxx:xxxxx@host`. A user name alone may be a token, but of `ssh://git@host`, where it is no secret.
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
        shown.push_str(&masked(before, user));
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

/// What is shown for `user`, the name and the password, of a URL that begins with `scheme`, or text that ends so.
fn masked(scheme: &str, user: &str) -> String {
    match user.split_once(':') {
        None if scheme.to_ascii_lowercase().ends_with("ssh://") => user.to_owned(),
        None => MASK.to_owned(),
        Some(("", _)) => format!(":{MASK}"),
        Some(_) => format!("{MASK}:{MASK}"),
    }
}

/// The URL `text` that the user wrote, masked likewise and without query and fragment. Of what cannot be taken apart, where a
/// password may be anywhere, no more than the scheme.
#[must_use]
pub fn one_url(text: &str) -> String {
    let Some(url) = Url::parse(text).ok().filter(Url::has_host) else {
        let scheme = text.split_once("://").map_or("", |(scheme, _)| scheme);
        return format!("{scheme}://…");
    };
    let user = match url.password() {
        Some(password) => Some(format!("{}:{password}", url.username())),
        None if url.username().is_empty() => None,
        None => Some(url.username().to_owned()),
    };
    let user = user.map(|user| masked(&format!("{}://", url.scheme()), &user) + "@").unwrap_or_default();
    format!("{}://{user}{}", url.scheme(), behind_user(&url))
}

/// The `url` that a server named, or that leads to one: without user information, query and fragment.
#[must_use]
pub fn redact(url: &Url) -> String {
    line(format!("{}://{}", url.scheme(), behind_user(url)).as_bytes(), SHOWN)
}

/// Text of a server that should be a URL, likewise.
#[must_use]
pub fn redact_text(text: &str) -> String {
    match Url::parse(text) {
        Ok(url) if url.has_host() => redact(&url),
        _ if text.contains('@') => "…".to_owned(),
        _ => line(text.split(['?', '#']).next().unwrap_or_default().as_bytes(), SHOWN),
    }
}

/// Host, port and path, and whether there is a query.
fn behind_user(url: &Url) -> String {
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    let query = if url.query().is_some() { "?…" } else { "" };
    format!("{}{port}{}{query}", url.host_str().unwrap_or_default(), url.path())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_in_urls_are_not_shown() {
        for (text, shown) in [
            ("no url", "no url"),
            ("http://h/x", "http://h/x"),
            ("ADD https://me:pw@h/x https://h2/a@b /d", "ADD https://xxxxx:xxxxx@h/x https://h2/a@b /d"),
            ("https://token@h?a=b", "https://xxxxx@h?a=b"),
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
    fn one_url_is_taken_apart_and_shown_without_what_may_be_a_secret() {
        for (text, shown) in [
            ("https://h:8443/a%20b", "https://h:8443/a%20b"),
            ("https://h/x?X-Signature=secret#secret", "https://h/x?…"),
            ("https://me:it's@h/x", "https://xxxxx:xxxxx@h/x"),
            ("https://token@h/x", "https://xxxxx@h/x"),
            ("https://:pw@h/x", "https://:xxxxx@h/x"),
            ("https://a:b@c@h/x", "https://xxxxx:xxxxx@h/x"),
            // The password has a slash; it could be the path.
            ("https://me:p/w@h/x", "https://…"),
            ("ssh://git@h:22/x", "ssh://git@h:22/x"),
            ("ssh://git:pw@h/x", "ssh://xxxxx:xxxxx@h/x"),
            ("http://", "http://…"),
            ("nonsense", "://…"),
        ] {
            assert_eq!(one_url(text), shown, "{text}");
        }
    }

    #[test]
    fn a_url_of_a_server_has_neither_password_nor_query() {
        let url = Url::parse("https://me:secret@host:8443/v2/a?token=secret#secret").unwrap();
        assert_eq!(redact(&url), "https://host:8443/v2/a?…");
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
