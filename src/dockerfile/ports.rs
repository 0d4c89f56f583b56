//! Ports as EXPOSE takes them: `[ip:[host]:]port[-port][/proto]`.

use std::fmt;
use std::net::IpAddr;

use super::history::quote;

/// Transport protocol of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// TCP, the default.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        })
    }
}

/// What one word of EXPOSE says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortRange {
    /// The first port.
    pub first: u16,
    /// The last port, not below the first.
    pub last: u16,
    /// The protocol.
    pub protocol: Protocol,
    /// Whether the protocol was written in lower case (or not at all).
    pub protocol_case: ProtocolCase,
    /// Whether an address or host port was given; it means nothing here.
    pub host: HostPart,
}

/// How a protocol was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProtocolCase {
    /// In lower case, or left out.
    Lower,
    /// Otherwise.
    Other,
}

/// Whether a word of EXPOSE names something of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostPart {
    /// Only the port of the container.
    Absent,
    /// An address or a port of the host, which is ignored.
    Ignored,
}

/// Why a word is not a port, in BuildKit's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    /// The protocol is not known.
    #[error("invalid port: {word}: invalid proto: {protocol}")]
    Protocol {
        /// The whole word, quoted.
        word: String,
        /// The protocol.
        protocol: String,
    },
    /// There is no port.
    #[error("invalid port: {0}: no port specified")]
    Missing(String),
    /// The port or range of the container.
    #[error("invalid containerPort: {0}")]
    Container(String),
    /// The port or range of the host.
    #[error("invalid hostPort: {0}")]
    Host(String),
    /// The address of the host.
    #[error("invalid IP address: {0}")]
    Address(String),
    /// Two ranges of different length.
    #[error("invalid ranges specified for container and host Ports: {container} and {host}")]
    Ranges {
        /// Of the container.
        container: String,
        /// Of the host.
        host: String,
    },
}

impl PortRange {
    /// The ports as the config names them: `80/tcp`.
    pub fn names(&self) -> impl Iterator<Item = String> + use<> {
        let protocol = self.protocol;
        (self.first..=self.last).map(move |port| format!("{port}/{protocol}"))
    }

    /// How many ports it has: 1 to 65536.
    #[must_use]
    pub fn count(&self) -> usize {
        usize::from(self.last - self.first) + 1
    }
}

/// Reads one expanded word of EXPOSE.
///
/// # Errors
/// [`PortError`]
pub fn parse_ports(word: &str) -> Result<PortRange, PortError> {
    let parts: Vec<&str> = word.rsplitn(3, ':').collect();
    let (container, host, address) = match parts[..] {
        [container, host, address] => (container, host, address),
        [container, host] => (container, host, ""),
        _ => (word, "", ""),
    };
    let (ports, protocol_text) = container.split_once('/').unwrap_or((container, ""));
    if ports.is_empty() {
        return Err(PortError::Missing(quote(word.as_bytes())));
    }
    let protocol = match protocol_text.to_ascii_lowercase().as_str() {
        "" | "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        "sctp" => Protocol::Sctp,
        _ => {
            let (word, protocol) = (quote(word.as_bytes()), protocol_text.to_owned());
            return Err(PortError::Protocol { word, protocol });
        }
    };
    let bare = address.strip_prefix('[').and_then(|a| a.strip_suffix(']')).unwrap_or(address);
    if !address.is_empty() && bare.parse::<IpAddr>().is_err() {
        return Err(PortError::Address(bare.to_owned()));
    }
    let (first, last) = range(ports).ok_or_else(|| PortError::Container(ports.to_owned()))?;
    if !host.is_empty() {
        let (host_first, host_last) = range(host).ok_or_else(|| PortError::Host(host.to_owned()))?;
        if first != last && last - first != host_last - host_first {
            return Err(PortError::Ranges { container: ports.to_owned(), host: host.to_owned() });
        }
    }
    let lower = !protocol_text.contains(|c: char| c.is_ascii_uppercase());
    let absent = host.is_empty() && address.is_empty();
    Ok(PortRange {
        first,
        last,
        protocol,
        protocol_case: if lower { ProtocolCase::Lower } else { ProtocolCase::Other },
        host: if absent { HostPart::Absent } else { HostPart::Ignored },
    })
}

/// `80` or `80-90`.
fn range(text: &str) -> Option<(u16, u16)> {
    let port = |text: &str| if text.starts_with('+') { None } else { text.parse().ok() };
    let (first, last) = match text.split_once('-') {
        Some((first, last)) => (port(first)?, port(last)?),
        None => (port(text)?, port(text)?),
    };
    (first <= last).then_some((first, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_name_ports() {
        for (word, names) in [
            ("80", "80/tcp"),
            ("80/", "80/tcp"),
            ("53/UDP", "53/udp"),
            ("0", "0/tcp"),
            ("65535/sctp", "65535/sctp"),
            ("8-10", "8/tcp 9/tcp 10/tcp"),
            ("9-9", "9/tcp"),
            ("5000:80", "80/tcp"),
            ("127.0.0.1:5000:80", "80/tcp"),
            ("127.0.0.1::80/udp", "80/udp"),
            ("[::1]:5000:80", "80/tcp"),
            ("::1:5000:80", "80/tcp"),
            ("1-3:80", "80/tcp"),
            ("1-2:80-81", "80/tcp 81/tcp"),
        ] {
            let range = parse_ports(word).unwrap_or_else(|error| panic!("{word}: {error}"));
            assert_eq!(range.names().collect::<Vec<_>>().join(" "), names, "{word}");
            assert_eq!(range.count(), names.split(' ').count());
        }
    }

    #[test]
    fn other_words_are_errors() {
        for (word, message) in [
            ("80/foo", "invalid port: \"80/foo\": invalid proto: foo"),
            ("", "invalid port: \"\": no port specified"),
            ("/tcp", "invalid port: \"/tcp\": no port specified"),
            ("90-80", "invalid containerPort: 90-80"),
            ("70000", "invalid containerPort: 70000"),
            ("-1", "invalid containerPort: -1"),
            ("a", "invalid containerPort: a"),
            ("+80", "invalid containerPort: +80"),
            ("1-+2", "invalid containerPort: 1-+2"),
            ("1-2-3", "invalid containerPort: 1-2-3"),
            ("1-", "invalid containerPort: 1-"),
            ("x:80", "invalid hostPort: x"),
            ("1.2.3:1:80", "invalid IP address: 1.2.3"),
            ("1-3:80-81", "invalid ranges specified for container and host Ports: 80-81 and 1-3"),
        ] {
            assert_eq!(parse_ports(word).unwrap_err().to_string(), message, "{word}");
        }
    }
}
