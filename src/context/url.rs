//! What a URL has in it besides an address: percent signs, a user name and a password, and the hosts that secrets are named by.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use url::Url;

/// `text` with its percent signs resolved, where two digits follow them.
pub(super) fn decoded(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let digit = |at: usize| bytes.get(at).and_then(|byte| char::from(*byte).to_digit(16));
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        match (bytes[at], digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                decoded.push((high * 16 + low) as u8);
                at += 3;
            }
            (byte, _, _) => {
                decoded.push(byte);
                at += 1;
            }
        }
    }
    decoded
}

/// The `Authorization` that a URL with a user name stands for.
pub(super) fn basic_authorization(url: &Url) -> Option<String> {
    if url.username().is_empty() && url.password().is_none() {
        return None;
    }
    let user = decoded(url.username());
    let password = decoded(url.password().unwrap_or_default());
    Some(format!("Basic {}", STANDARD.encode([&user[..], b":", &password[..]].concat())))
}

/// The host of `url` by which BuildKit names the secrets for a file: without a port.
pub(super) fn host(url: &str) -> Option<String> {
    Url::parse(url).ok()?.host_str().map(str::to_owned)
}

/// The host of `repository`, a URL or `user@host:path`, by which BuildKit names the secrets for it: with its port, if it has
/// one.
pub(super) fn host_and_port(repository: &str) -> &str {
    let (rest, end) = match repository.split_once("://") {
        Some((_, rest)) => (rest, '/'),
        None => (repository, ':'),
    };
    let authority = rest.split(end).next().unwrap_or_default();
    authority.rsplit_once('@').map_or(authority, |(_, host)| host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_signs_stand_for_bytes_where_two_digits_follow() {
        for (text, expected) in
            [("a%20b", &b"a b"[..]), ("%zz%4", b"%zz%4"), ("%c3%A9", "é".as_bytes()), ("%", b"%"), ("", b"")]
        {
            assert_eq!(decoded(text), expected, "{text}");
        }
    }

    #[test]
    fn secrets_are_named_by_the_host_of_a_file_and_by_host_and_port_of_a_repository() {
        for (text, of_file, of_repository) in [
            ("https://me:p@h:8443/r.git", Some("h"), "h:8443"),
            ("http://[::1]:80/x", Some("[::1]"), "[::1]:80"),
            ("ssh://git@h/x", Some("h"), "h"),
            ("git@h:a/b", None, "h"),
        ] {
            assert_eq!((host(text).as_deref(), host_and_port(text)), (of_file, of_repository), "{text}");
        }
    }
}
