//! Why no answer came, in words that say what to look at.

use std::error::Error;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use super::address::{Forbidden, Unresolved};
use super::redacted::escape;

/// A client that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A file that should hold certificates.
    #[error("`{origin}` cannot be used as a list of certificates: {reason}")]
    Certificates {
        /// The file.
        origin: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A proxy setting.
    #[error("the proxy is not an http or https URL")]
    Proxy,
    /// TLS itself.
    #[error("TLS cannot be set up")]
    Tls {
        /// What the library says.
        #[source]
        source: rustls::Error,
    },
    /// The machinery below.
    #[error("the HTTP client cannot be started")]
    Client {
        /// What the library says.
        #[source]
        source: reqwest::Error,
    },
    /// A thread could not be started.
    #[error("the HTTP client cannot start its thread")]
    Thread {
        /// What the system says.
        #[source]
        source: io::Error,
    },
}

/// A redirect that is not followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RedirectProblem {
    /// A loop, or nearly so.
    #[error("more than {0} redirects")]
    TooMany(usize),
    /// From TLS to no TLS.
    #[error("it leads from https to http, to `{0}`")]
    Downgrade(String),
    /// With a user name in it: whose would it be?
    #[error("it leads to `{0}` with a user name or a password of the server's own")]
    User(String),
    /// Neither http nor https, or not a URL.
    #[error("it leads to `{0}`, which is not a plain http or https URL")]
    Location(String),
    /// To another host, where that is not wanted.
    #[error("it leads to another host, `{0}`")]
    OtherHost(String),
}

/// Why there is no, or no complete, answer. `host` is a host with its port, if it is not the usual one.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Nobody listens there.
    #[error("connection refused by `{host}`")]
    Refused {
        /// Who.
        host: String,
    },
    /// The name has no address.
    #[error("`{host}` cannot be resolved: {reason}")]
    Unresolved {
        /// Who.
        host: String,
        /// What the resolver says.
        reason: String,
    },
    /// TLS was spoken, plain HTTP came back.
    #[error("`{host}` speaks plain HTTP, not HTTPS")]
    NotTls {
        /// Who.
        host: String,
    },
    /// No trust, or no common language.
    #[error("TLS with `{host}` failed: {reason}")]
    Tls {
        /// Who.
        host: String,
        /// What is wrong, often with the certificate.
        reason: String,
    },
    /// What came is not HTTP.
    #[error("`{host}` does not speak HTTP: {reason}")]
    NotHttp {
        /// Who.
        host: String,
        /// What came.
        reason: String,
    },
    /// The connection ended too early.
    #[error("`{host}` closed the connection: {reason}")]
    Closed {
        /// Who.
        host: String,
        /// What was going on.
        reason: String,
    },
    /// Nothing came for some time.
    #[error("`{host}` did nothing for {} seconds", .after.as_secs())]
    Stalled {
        /// Who.
        host: String,
        /// How long it was waited for.
        after: Duration,
    },
    /// Something came, but hardly.
    #[error("`{host}` sends less than {floor} bytes a second")]
    Slow {
        /// Who.
        host: String,
        /// What it should send at least.
        floor: u64,
    },
    /// A redirect that is not followed.
    #[error("`{host}` redirects, but {problem}")]
    Redirect {
        /// Who.
        host: String,
        /// Why it is not followed.
        problem: RedirectProblem,
    },
    /// A name leads into a network where it must not.
    #[error("`{host}` is {address}, which is not a public address")]
    Forbidden {
        /// Who.
        host: String,
        /// Where that is.
        address: IpAddr,
    },
    /// An answer that is longer than anything of its kind may be.
    #[error("the answer of `{host}` is longer than {limit} bytes")]
    TooLong {
        /// Who.
        host: String,
        /// The limit.
        limit: u64,
    },
    /// What was to be sent could not be read.
    #[error("the data to send cannot be read")]
    Source {
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// The build was told to end.
    #[error("cancelled")]
    Cancelled,
    /// Anything else.
    #[error("request to `{host}` failed: {reason}")]
    Other {
        /// Who.
        host: String,
        /// What the library says.
        reason: String,
    },
}

impl Failure {
    /// Whether the same request may work a moment later. A name is looked for more than once by itself.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Refused { .. }
                | Self::Closed { .. }
                | Self::Stalled { .. }
                | Self::Slow { .. }
                | Self::Other { .. }
        )
    }

    /// Sorts an error of the library below. It has no public kinds for most of this, so the chain of causes is looked
    /// through, and in two cases its text.
    pub(super) fn from_library(error: &reqwest::Error, host: &str) -> Self {
        let host = host.to_owned();
        let mut innermost = error.to_string();
        let mut cause: Option<&(dyn Error + 'static)> = error.source();
        while let Some(current) = cause {
            if let Some(failure) = from_cause(current, &host) {
                return failure;
            }
            innermost = current.to_string();
            cause = current.source();
        }
        let reason = escape(&innermost);
        if error.is_timeout() {
            return Self::Closed { host, reason: "timed out".to_owned() };
        }
        // What is no HTTP now will be none a moment later.
        let nonsense = [
            "HTTP version",
            "HTTP header",
            "status-code",
            "content-length",
            "chunk size",
            "transfer-encoding",
        ];
        if nonsense.iter().any(|text| innermost.to_ascii_lowercase().contains(&text.to_ascii_lowercase())) {
            return Self::NotHttp { host, reason };
        }
        if innermost.contains("head is too large") {
            return Self::NotHttp { host, reason };
        }
        let ended = [
            "before message completed",
            "end of file",
            "connection closed",
            "unexpected EOF",
            "channel closed",
        ];
        if ended.iter().any(|text| innermost.contains(text)) {
            return Self::Closed { host, reason };
        }
        Self::Other { host, reason }
    }
}

fn from_cause(cause: &(dyn Error + 'static), host: &str) -> Option<Failure> {
    if let Some(forbidden) = cause.downcast_ref::<Forbidden>() {
        return Some(Failure::Forbidden { host: forbidden.host.clone(), address: forbidden.address });
    }
    if let Some(unresolved) = cause.downcast_ref::<Unresolved>() {
        let reason = escape(&unresolved.reason.to_string());
        return Some(Failure::Unresolved { host: unresolved.host.clone(), reason });
    }
    if let Some(tls) = cause.downcast_ref::<rustls::Error>() {
        return Some(from_tls(tls, host));
    }
    let error = cause.downcast_ref::<io::Error>()?;
    // An `io::Error` that wraps another error has that error's source as its own: look inside.
    if let Some(inner) = error.get_ref()
        && let Some(failure) = from_cause(inner, host)
    {
        return Some(failure);
    }
    let host = host.to_owned();
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Some(Failure::Refused { host }),
        io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::NotConnected
        | io::ErrorKind::UnexpectedEof
        | io::ErrorKind::TimedOut
        | io::ErrorKind::HostUnreachable
        | io::ErrorKind::NetworkUnreachable => {
            Some(Failure::Closed { host, reason: escape(&error.to_string()) })
        }
        _ => None,
    }
}

fn from_tls(error: &rustls::Error, host: &str) -> Failure {
    let host = host.to_owned();
    match error {
        rustls::Error::InvalidMessage(_) => Failure::NotTls { host },
        other => Failure::Tls { host, reason: escape(&other.to_string()) },
    }
}
