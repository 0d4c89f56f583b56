//! Which proxy a request goes through (the conventions of `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY`, as in Go).

use std::fmt;
use std::net::IpAddr;

use url::{Host, Url};

use super::address::{self, Class};
use super::failure::SetupError;

/// The proxies of a client, as they stand in the environment's variables. Nothing is read from the environment here.
#[derive(Clone, Default)]
pub struct Proxies {
    /// For `http` URLs.
    pub http: Option<String>,
    /// For `https` URLs.
    pub https: Option<String>,
    /// Hosts, domains, addresses, networks, each with or without a port, that are reached directly; comma-separated.
    pub none: String,
}

/// Proxies can have passwords.
impl fmt::Debug for Proxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |value: &Option<String>| value.as_ref().map(|_| "…");
        f.debug_struct("Proxies")
            .field("http", &shown(&self.http))
            .field("https", &shown(&self.https))
            .field("none", &self.none)
            .finish()
    }
}

/// [`Proxies`], parsed.
#[derive(Clone)]
pub(super) struct Rules {
    http: Option<Url>,
    https: Option<Url>,
    none: Vec<Exception>,
}

#[derive(Clone, Debug, PartialEq)]
struct Exception {
    hosts: Hosts,
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq)]
enum Hosts {
    All,
    Network(IpAddr, u8),
    /// A name; whether it stands for itself too, or only for what is below it.
    Domain {
        suffix: String,
        itself: Itself,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Itself {
    Included,
    Excluded,
}

impl Rules {
    pub(super) fn parse(proxies: &Proxies) -> Result<Self, SetupError> {
        Ok(Self {
            http: proxies.http.as_deref().map(parse_proxy).transpose()?.flatten(),
            https: proxies.https.as_deref().map(parse_proxy).transpose()?.flatten(),
            none: proxies.none.split([',', ' ']).filter_map(parse_exception).collect(),
        })
    }

    /// The proxy for `url`. This machine is never reached through one.
    pub(super) fn choose(&self, url: &Url) -> Option<Url> {
        let proxy = if url.scheme() == "https" { &self.https } else { &self.http };
        let proxy = proxy.as_ref()?;
        let direct =
            address::literal(url) == Some(Class::Loopback) || self.none.iter().any(|e| e.covers(url));
        (!direct).then(|| proxy.clone())
    }

    pub(super) fn hosts(&self) -> Vec<String> {
        [&self.http, &self.https]
            .into_iter()
            .flatten()
            .filter_map(|url| url.host_str().map(str::to_owned))
            .collect()
    }
}

fn parse_proxy(text: &str) -> Result<Option<Url>, SetupError> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    let full = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    match Url::parse(&full) {
        Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => Ok(Some(url)),
        // Neither the text nor the parser's words: there may be a password in it.
        _ => Err(SetupError::Proxy),
    }
}

fn parse_exception(text: &str) -> Option<Exception> {
    let text = text.trim().to_ascii_lowercase();
    if text.is_empty() {
        return None;
    }
    if let Some((network, bits)) = text.split_once('/') {
        let network: IpAddr = network.parse().ok()?;
        let bits: u8 = bits.parse().ok()?;
        return Some(Exception { hosts: Hosts::Network(network, bits), port: None });
    }
    let (name, port) = split_port(&text);
    let hosts = match name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        Ok(address) => Hosts::Network(address, if address.is_ipv4() { 32 } else { 128 }),
        Err(_) if name == "*" => Hosts::All,
        Err(_) => match name.strip_prefix('*').unwrap_or(name).strip_prefix('.') {
            Some(suffix) => Hosts::Domain { suffix: suffix.to_owned(), itself: Itself::Excluded },
            None => Hosts::Domain { suffix: name.to_owned(), itself: Itself::Included },
        },
    };
    Some(Exception { hosts, port })
}

fn split_port(text: &str) -> (&str, Option<u16>) {
    match text.rsplit_once(':') {
        Some((name, port)) if !name.contains(':') || name.ends_with(']') => match port.parse() {
            Ok(port) => (name, Some(port)),
            Err(_) => (text, None),
        },
        _ => (text, None),
    }
}

impl Exception {
    fn covers(&self, url: &Url) -> bool {
        let same_port = self.port.is_none() || self.port == url.port_or_known_default();
        same_port
            && match (&self.hosts, url.host()) {
                (Hosts::All, _) => true,
                (Hosts::Network(network, bits), Some(Host::Ipv4(address))) => {
                    within(address.into(), *network, *bits)
                }
                (Hosts::Network(network, bits), Some(Host::Ipv6(address))) => {
                    within(address.into(), *network, *bits)
                }
                (Hosts::Domain { suffix, itself }, Some(Host::Domain(name))) => {
                    match name.strip_suffix(suffix.as_str()) {
                        Some("") => *itself == Itself::Included,
                        Some(rest) => rest.ends_with('.'),
                        None => false,
                    }
                }
                _ => false,
            }
    }
}

fn within(address: IpAddr, network: IpAddr, bits: u8) -> bool {
    let same = |a: u128, b: u128, width: u32| {
        let free = width.saturating_sub(u32::from(bits));
        free >= width || a >> free == b >> free
    };
    match (address, network) {
        (IpAddr::V4(a), IpAddr::V4(b)) => same(u32::from(a).into(), u32::from(b).into(), 32),
        (IpAddr::V6(a), IpAddr::V6(b)) => same(a.into(), b.into(), 128),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exceptions_are_hosts_domains_networks_and_ports() {
        for (none, url, direct) in [
            ("example.com", "https://example.com/", true),
            ("example.com", "https://a.example.com/", true),
            ("example.com", "https://notexample.com/", false),
            (".example.com", "https://example.com/", false),
            ("*.example.com", "https://a.example.com/", true),
            ("example.com:8443", "https://example.com/", false),
            ("example.com:443", "https://example.com/", true),
            ("10.0.0.0/8, other", "https://10.1.2.3/", true),
            ("10.0.0.0/8", "https://11.1.2.3/", false),
            ("fd00::/8", "https://[fd00::5]/", true),
            ("10.1.2.3:5000", "https://10.1.2.3:5000/", true),
            ("*", "https://anything/", true),
            ("", "https://127.0.0.1:5000/", true),
            ("", "https://localhost/", true),
            ("0.0.0.0/0", "https://8.8.8.8/", true),
            ("/,::,x/9", "https://8.8.8.8/", false),
        ] {
            let proxies =
                Proxies { https: Some("proxy:3128".to_owned()), none: none.to_owned(), ..Proxies::default() };
            let rules = Rules::parse(&proxies).unwrap();
            assert_eq!(rules.choose(&Url::parse(url).unwrap()).is_none(), direct, "{none} {url}");
        }
    }

    #[test]
    fn a_proxy_that_is_no_url_is_refused_without_showing_its_password() {
        let proxies = Proxies { http: Some("ftp://me:secret@host".to_owned()), ..Proxies::default() };
        let error = Rules::parse(&proxies).err().unwrap();
        assert!(!format!("{error} {error:?} {proxies:?}").contains("secret"));
    }
}
