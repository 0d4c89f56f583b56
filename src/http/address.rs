//! Which addresses may be connected to: some names must not lead into private networks.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use url::{Host, Url};

/// What kind of network an address belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// The internet.
    Public,
    /// A private network (RFC 1918, RFC 4193) or a provider's own (RFC 6598).
    Private,
    /// This machine.
    Loopback,
    /// The link, where clouds have their metadata services; also multicast and reserved addresses.
    LinkLocal,
}

/// Which classes of addresses a request may connect to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// Only the internet.
    Public,
    /// Private networks too.
    Private,
    /// This machine too.
    Loopback,
    /// Everything.
    Anywhere,
}

impl Reach {
    /// The least that something at an address of `class` may connect to.
    #[must_use]
    pub fn of(class: Class) -> Self {
        match class {
            Class::Public => Self::Public,
            Class::Private => Self::Private,
            Class::Loopback => Self::Loopback,
            Class::LinkLocal => Self::Anywhere,
        }
    }

    /// Whether an address of `class` is allowed.
    #[must_use]
    pub fn allows(self, class: Class) -> bool {
        Self::of(class) <= self
    }
}

/// The class of `address`; addresses that only wrap IPv4 ones count as those.
#[must_use]
pub fn classify(address: IpAddr) -> Class {
    match address {
        IpAddr::V4(v4) => classify_v4(v4),
        IpAddr::V6(v6) => classify_v6(v6),
    }
}

fn classify_v4(address: Ipv4Addr) -> Class {
    match address.octets() {
        [127 | 0, ..] => Class::Loopback,
        [10, ..] | [192, 168, ..] => Class::Private,
        [172, second, ..] if second & 0xf0 == 16 => Class::Private,
        [100, second, ..] if second & 0xc0 == 64 => Class::Private,
        [169, 254, ..] | [224..=255, ..] => Class::LinkLocal,
        _ => Class::Public,
    }
}

fn classify_v6(address: Ipv6Addr) -> Class {
    if let Some(v4) = address.to_ipv4_mapped() {
        return classify_v4(v4);
    }
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => Class::Loopback,
        // NAT64 (RFC 6052) and 6to4 (RFC 3056) lead to the IPv4 address they hold.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => {
            let [a, b] = high.to_be_bytes();
            let [c, d] = low.to_be_bytes();
            classify_v4(Ipv4Addr::new(a, b, c, d))
        }
        [first, ..] if first & 0xfe00 == 0xfc00 => Class::Private,
        [first, ..] if first & 0xff80 == 0xfe80 || first >= 0xff00 => Class::LinkLocal,
        _ => Class::Public,
    }
}

/// The class of a URL's host when it is an address or `localhost`; `None` for other names.
#[must_use]
pub fn literal(url: &Url) -> Option<Class> {
    match url.host()? {
        Host::Ipv4(address) => Some(classify_v4(address)),
        Host::Ipv6(address) => Some(classify_v6(address)),
        Host::Domain(name) => is_localhost(name).then_some(Class::Loopback),
    }
}

/// Whether `name` is one of those that always mean this machine (RFC 6761).
#[must_use]
pub fn is_localhost(name: &str) -> bool {
    let name = name.trim_end_matches('.');
    name.eq_ignore_ascii_case("localhost") || name.to_ascii_lowercase().ends_with(".localhost")
}

/// A name leads to an address that this request must not connect to.
#[derive(Debug, Clone, thiserror::Error)]
#[error("`{host}` is {address}, which is not a public address")]
pub(super) struct Forbidden {
    pub(super) host: String,
    pub(super) address: IpAddr,
}

/// A name that leads nowhere.
#[derive(Debug, thiserror::Error)]
#[error("`{host}` cannot be resolved")]
pub(super) struct Unresolved {
    pub(super) host: String,
    #[source]
    pub(super) reason: io::Error,
}

/// The system's resolver, with the addresses out of reach taken out: the check is on what is connected to, since a
/// check of the name alone could be answered differently the next time.
#[derive(Debug)]
pub(super) struct Guard {
    pub(super) reach: Reach,
    /// Names that the user configured (proxies): always allowed.
    pub(super) exempt: Arc<Vec<String>>,
}

impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let host = name.as_str().to_owned();
        let reach = if self.exempt.contains(&host) { Reach::Anywhere } else { self.reach };
        Box::pin(async move {
            let found = lookup(&host).await?;
            let allowed: Vec<SocketAddr> =
                found.iter().copied().filter(|address| reach.allows(classify(address.ip()))).collect();
            match (allowed.is_empty(), found.first()) {
                (true, Some(address)) => Err(Forbidden { host, address: address.ip() }.into()),
                _ => Ok(Box::new(allowed.into_iter()) as Addrs),
            }
        })
    }
}

/// How long is waited before a name is looked for once more, where that may help. Longer waits help nobody: a machine
/// without a network is as common as one whose network comes up a moment later.
const AGAIN: [Duration; 2] = [Duration::from_millis(500), Duration::from_millis(1500)];

/// All addresses of `host`, at least one.
pub(super) async fn lookup(host: &str) -> Result<Vec<SocketAddr>, Unresolved> {
    let unresolved = |reason| Unresolved { host: host.to_owned(), reason };
    let mut waits = AGAIN.into_iter();
    let found: Vec<SocketAddr> = loop {
        match tokio::net::lookup_host((host, 0)).await {
            Ok(found) => break found.collect(),
            Err(error) => match waits.next().filter(|_| may_be_found_later(&error.to_string())) {
                Some(wait) => tokio::time::sleep(wait).await,
                None => return Err(unresolved(error)),
            },
        }
    };
    if found.is_empty() {
        return Err(unresolved(io::Error::new(io::ErrorKind::NotFound, "the name has no address")));
    }
    Ok(found)
}

/// Whether the resolver itself failed (`EAI_AGAIN`). Else it has said that there is no such name. The standard library
/// keeps but the words: those of glibc, and those of musl.
fn may_be_found_later(reason: &str) -> bool {
    reason.contains("Temporary failure in name resolution") || reason.contains("Try again")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_sorted_into_classes_however_they_are_written() {
        for (text, class) in [
            ("8.8.8.8", Class::Public),
            ("127.9.9.9", Class::Loopback),
            ("0.0.0.0", Class::Loopback),
            ("10.0.0.1", Class::Private),
            ("172.16.0.1", Class::Private),
            ("172.32.0.1", Class::Public),
            ("192.168.1.1", Class::Private),
            ("100.64.0.1", Class::Private),
            ("169.254.169.254", Class::LinkLocal),
            ("255.255.255.255", Class::LinkLocal),
            ("::1", Class::Loopback),
            ("::ffff:127.0.0.1", Class::Loopback),
            ("64:ff9b::a9fe:a9fe", Class::LinkLocal),
            ("2002:7f00:1::", Class::Loopback),
            ("fe80::1", Class::LinkLocal),
            ("fd00::1", Class::Private),
            ("2606:4700::1", Class::Public),
        ] {
            assert_eq!(classify(text.parse().unwrap()), class, "{text}");
        }
        for (text, class) in [
            ("http://0x7f.1/", Some(Class::Loopback)),
            ("http://2852039166/", Some(Class::LinkLocal)),
            ("http://LOCALHOST./", Some(Class::Loopback)),
            ("http://a.localhost/", Some(Class::Loopback)),
            ("http://example.com/", None),
        ] {
            assert_eq!(literal(&Url::parse(text).unwrap()), class, "{text}");
        }
    }

    #[test]
    fn a_name_that_does_not_exist_is_not_looked_for_again() {
        for (reason, again) in [
            ("failed to lookup address information: Name or service not known", false),
            ("failed to lookup address information: Name does not resolve", false),
            ("failed to lookup address information: No address associated with hostname", false),
            ("failed to lookup address information: Temporary failure in name resolution", true),
            ("failed to lookup address information: Try again", true),
        ] {
            assert_eq!(may_be_found_later(reason), again, "{reason}");
        }
    }

    #[test]
    fn something_on_a_private_network_may_name_private_addresses_but_never_the_link() {
        assert!(Reach::of(Class::Private).allows(Class::Private));
        assert!(Reach::of(Class::Loopback).allows(Class::Private));
        assert!(!Reach::of(Class::Public).allows(Class::Private));
        assert!(!Reach::of(Class::Private).allows(Class::Loopback));
        assert!(!Reach::of(Class::Loopback).allows(Class::LinkLocal));
    }
}
