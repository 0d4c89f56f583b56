//! Where a token may be asked for, and who may see credentials: a registry's answer alone decides neither.

use url::{Host, Url};

use crate::http::{self, Class, Reach};
use crate::text::{redact, redact_text};

/// Why a token realm is not asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RealmError {
    /// Not a URL, not http or https, or with a user name in it.
    #[error("`{0}` is not a plain https URL")]
    Url(String),
    /// Unencrypted, while the registry is not.
    #[error("`{0}` is not encrypted, but the registry is")]
    Plain(String),
    /// An address in a network that the registry is not in.
    #[error("`{0}` is on a private network or on this machine, but the registry is not")]
    Private(String),
    /// Credentials of the registry would go to somebody else.
    #[error("`{0}` belongs to another domain than the registry, so the credentials are not sent there")]
    Foreign(String),
}

/// Whether the credentials of the registry may be shown to the realm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Credentials {
    /// It belongs to the registry.
    Shown,
    /// It may belong to anybody.
    Withheld,
}

/// A realm that may be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Realm {
    pub(super) url: Url,
    pub(super) credentials: Credentials,
    /// What a connection to it may lead to.
    pub(super) reach: Reach,
}

/// Judges the realm that the registry at `registry` names. `class` is the network the registry is in; `trusted` are
/// hosts that the user named as token servers of this registry.
pub(super) fn judge(
    realm: &str,
    registry: &Url,
    class: Class,
    trusted: &[String],
) -> Result<Realm, RealmError> {
    let unusable = || RealmError::Url(redact_text(realm));
    let mut url = Url::parse(realm).map_err(|_| unusable())?;
    url.set_fragment(None);
    if !url.has_host() || !url.username().is_empty() || url.password().is_some() {
        return Err(unusable());
    }
    match (url.scheme(), registry.scheme()) {
        ("https", _) | ("http", "http") => {}
        ("http", _) => return Err(RealmError::Plain(redact(&url))),
        _ => return Err(unusable()),
    }
    if url.host_str() == registry.host_str() {
        return Ok(Realm { url, credentials: Credentials::Shown, reach: Reach::Anywhere });
    }
    let reach = Reach::of(class);
    if http::literal(&url).is_some_and(|class| !reach.allows(class)) {
        return Err(RealmError::Private(redact(&url)));
    }
    let named = url.host_str().is_some_and(|host| trusted.iter().any(|trusted| trusted == host));
    let credentials =
        if named || same_domain(&url, registry) { Credentials::Shown } else { Credentials::Withheld };
    Ok(Realm { url, credentials, reach })
}

/// Second-level names under which anybody can have a name, in front of a country's two letters.
const SHARED_SECOND: [&str; 12] =
    ["ac", "co", "com", "edu", "go", "gov", "gob", "ne", "net", "or", "org", "nom"];

/// Domains whose subdomains belong to different people. The public suffix list has thousands; these are those of
/// places that run containers or registries. A registry below one that is missing here could send its own users to
/// another below the same: no more than it gets by asking for Basic authentication.
const SHARED: [&str; 20] = [
    "amazonaws.com",
    "azure.com",
    "azurecr.io",
    "azurewebsites.net",
    "cloudapp.net",
    "cloudfront.net",
    "digitaloceanspaces.com",
    "fly.dev",
    "github.io",
    "githubusercontent.com",
    "gitlab.io",
    "herokuapp.com",
    "jfrog.io",
    "netlify.app",
    "ngrok.io",
    "nip.io",
    "pages.dev",
    "run.app",
    "vercel.app",
    "workers.dev",
];

fn same_domain(a: &Url, b: &Url) -> bool {
    let domain = |url: &Url| match url.host() {
        Some(Host::Domain(name)) => registrable(name).map(str::to_owned),
        _ => None,
    };
    matches!((domain(a), domain(b)), (Some(a), Some(b)) if a == b)
}

/// The part of `name` that somebody registered: `example.com` of `a.b.example.com`.
fn registrable(name: &str) -> Option<&str> {
    let name = name.strip_suffix('.').unwrap_or(name);
    let last = |count: usize| {
        let start = name.rmatch_indices('.').nth(count - 1).map_or(0, |(position, _)| position + 1);
        let part = &name[start..];
        (part.split('.').count() == count && !part.split('.').any(str::is_empty)).then_some(part)
    };
    let two = last(2)?;
    if SHARED.contains(&two) {
        return last(3);
    }
    match two.split_once('.') {
        Some((second, top)) if top.len() == 2 && SHARED_SECOND.contains(&second) => last(3),
        _ => Some(two),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_realm_is_judged_by_scheme_network_and_domain() {
        use Credentials::{Shown, Withheld};
        let private = Class::Private;
        for (realm, registry, class, expected) in [
            ("https://r.example.com/token", "https://r.example.com", Class::Public, Some(Shown)),
            ("https://r.example.com:8443/token", "https://r.example.com", Class::Public, Some(Shown)),
            ("https://auth.example.com/token", "https://r.example.com", Class::Public, Some(Shown)),
            ("https://auth.docker.io/token", "https://registry-1.docker.io", Class::Public, Some(Shown)),
            ("https://gitlab.com/jwt/auth", "https://registry.gitlab.com", Class::Public, Some(Shown)),
            ("https://evil.com/token", "https://r.example.com", Class::Public, Some(Withheld)),
            ("https://evil.co.uk/token", "https://good.co.uk", Class::Public, Some(Withheld)),
            ("https://evil.github.io/", "https://good.github.io", Class::Public, Some(Withheld)),
            ("https://com/", "https://example.com", Class::Public, Some(Withheld)),
            ("https://auth.partner.com/", "https://r.example.com", Class::Public, Some(Shown)),
            ("http://r.example.com/token", "https://r.example.com", Class::Public, None),
            ("http://r.example.com/token", "http://r.example.com", Class::Public, Some(Shown)),
            ("http://169.254.169.254/latest", "http://r.example.com", Class::Public, None),
            ("https://169.254.169.254/latest", "https://r.example.com", Class::Public, None),
            ("https://169.254.169.254/latest", "https://127.0.0.1:5000", Class::Loopback, None),
            ("https://[::1]/", "https://r.example.com", Class::Public, None),
            ("https://localhost/", "https://r.example.com", Class::Public, None),
            ("https://0x7f000001/", "https://r.example.com", Class::Public, None),
            ("https://10.0.0.2/", "https://r.example.com", Class::Public, None),
            ("https://10.0.0.2/", "https://r.corp.example", private, Some(Withheld)),
            ("https://127.0.0.1/", "https://r.corp.example", private, None),
            ("http://127.0.0.1:6000/t", "http://127.0.0.1:5000", Class::Loopback, Some(Shown)),
            ("http://127.0.0.2:6000/t", "http://127.0.0.1:5000", Class::Loopback, Some(Withheld)),
            ("https://me:pw@r.example.com/", "https://r.example.com", Class::Public, None),
            ("file:///etc/passwd", "https://r.example.com", Class::Public, None),
            ("/token", "https://r.example.com", Class::Public, None),
            ("", "https://r.example.com", Class::Public, None),
        ] {
            let trusted = ["auth.partner.com".to_owned()];
            let judged = judge(realm, &Url::parse(registry).unwrap(), class, &trusted);
            assert_eq!(judged.ok().map(|realm| realm.credentials), expected, "{realm} {registry}");
        }
    }

    #[test]
    fn the_registrable_domain_has_one_name_more_than_what_is_shared() {
        for (name, expected) in [
            ("example.com", Some("example.com")),
            ("a.b.example.com.", Some("example.com")),
            ("a.co.uk", Some("a.co.uk")),
            ("b.a.com.br", Some("a.com.br")),
            ("co.uk", None),
            ("github.io", None),
            ("localhost", None),
            ("..", None),
        ] {
            assert_eq!(registrable(name), expected, "{name}");
        }
    }
}
