//! What went wrong between us and a registry.

use std::fmt;
use std::io;
use std::time::Duration;

use serde::Deserialize;

use super::challenge::ChallengeError;
use super::credentials::CredentialsError;
use super::realm::RealmError;
use crate::http::{Failure, RedirectProblem, Response, SetupError, escape};
use crate::image::descriptor::DescriptorError;
use crate::image::digest::{Digest, Mismatch};
use crate::image::document::DocumentError;
use crate::limit::Limit;

/// What was being done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Reading a manifest or an index.
    Manifest,
    /// Reading a blob.
    Blob(Digest),
    /// Asking whether a blob is there.
    BlobCheck(Digest),
    /// Sending a blob.
    Upload(Digest),
    /// Sending a manifest or an index.
    PutManifest,
    /// Asking whether we may push.
    PushCheck,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Manifest => f.write_str("cannot read the manifest of"),
            Self::Blob(digest) => write!(f, "cannot read blob {digest} of"),
            Self::BlobCheck(digest) => write!(f, "cannot look for blob {digest} in"),
            Self::Upload(digest) => write!(f, "cannot upload blob {digest} to"),
            Self::PutManifest => f.write_str("cannot push the manifest of"),
            Self::PushCheck => f.write_str("cannot push to"),
        }
    }
}

/// A transfer that failed: what was tried on which image, and why it did not work.
#[derive(Debug, thiserror::Error)]
#[error("{action} `{name}`")]
pub struct TransferError {
    /// What was tried.
    pub action: Action,
    /// The reference, with registry and repository.
    pub name: String,
    /// Why it did not work.
    #[source]
    pub problem: Box<Problem>,
}

/// Why a transfer did not work.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// No answer.
    #[error("{failure}{}", tried(*.tries))]
    Http {
        /// Why not. Its own words are part of these; what is behind it is not.
        #[source]
        failure: Failure,
        /// How often it was tried.
        tries: u32,
    },
    /// We told who we are, and that was not good enough.
    #[error("authentication failed for {host} as {user}{}", said(.words))]
    Rejected {
        /// The registry.
        host: String,
        /// The user name.
        user: String,
        /// What the registry says.
        words: String,
    },
    /// We could not tell who we are.
    #[error("no credentials for {host} in {place}{}", said(.words))]
    NoCredentials {
        /// The registry.
        host: String,
        /// Where credentials were looked for.
        place: String,
        /// What the registry says.
        words: String,
    },
    /// We may not do this.
    #[error("{host} does not allow it to {user}{}", said(.words))]
    Denied {
        /// The registry.
        host: String,
        /// The user name, or what stands for it.
        user: String,
        /// What the registry says.
        words: String,
    },
    /// It is not there, or we may not see it.
    #[error("{what} not found: repository or tag unknown, or it is private{}", said(.words))]
    NotFound {
        /// What.
        what: String,
        /// What the registry says.
        words: String,
    },
    /// Any other status.
    #[error("{host} answers {status}{}{}", said(.words), tried(*.tries))]
    Status {
        /// The registry, or whom it sent us to.
        host: String,
        /// The status code.
        status: u16,
        /// What it says.
        words: String,
        /// How often it was tried.
        tries: u32,
        /// How long it wants us to wait.
        retry_after: Option<Duration>,
    },
    /// An answer that makes no sense.
    #[error("{host} sends {problem}")]
    Answer {
        /// The registry.
        host: String,
        /// What is wrong.
        problem: String,
    },
    /// A document that is no manifest or index, or not clearly one of them.
    #[error("{host} sends a manifest that is not accepted")]
    Document {
        /// The registry.
        host: String,
        /// What is wrong.
        #[source]
        source: DocumentError,
    },
    /// A descriptor that cannot be right.
    #[error("its descriptor is not accepted")]
    Descriptor(#[from] DescriptorError),
    /// A blob that is to be held in memory, and says itself that it is too large for that.
    #[error("it is {size} bytes long, more than the limit of {value}; {limit}", value = limit.value)]
    TooLarge {
        /// Its size.
        size: u64,
        /// The most.
        limit: Limit,
    },
    /// The content is not what its digest says, twice.
    #[error("{host} sends other content, twice")]
    Corrupt {
        /// The registry.
        host: String,
        /// Both digests, or sizes.
        #[source]
        mismatch: Mismatch,
    },
    /// The content is not what its digest says.
    #[error("{host} sends other content")]
    Content {
        /// The registry.
        host: String,
        /// Both digests, or sizes.
        #[source]
        mismatch: Mismatch,
    },
    /// A tag that must not change has another image.
    #[error("tag `{tag}` is immutable and is {existing}{}", said(.words))]
    ImmutableTag {
        /// The tag.
        tag: String,
        /// What it points to.
        existing: Digest,
        /// What the registry says.
        words: String,
    },
    /// Blobs that were uploaded are not there for the registry.
    #[error("{host} does not find what was uploaded to it ({missing}){}", said(.words))]
    BlobsUnknown {
        /// The registry.
        host: String,
        /// Digests.
        missing: String,
        /// What the registry says.
        words: String,
    },
    /// How the registry wants us to authenticate.
    #[error("{host} cannot be authenticated to: {problem}")]
    Challenge {
        /// The registry.
        host: String,
        /// What is wrong.
        problem: ChallengeError,
    },
    /// Where the registry wants us to get tokens.
    #[error("{host} wants tokens from a place that is not asked: {problem}")]
    Realm {
        /// The registry.
        host: String,
        /// Why not.
        problem: RealmError,
    },
    /// Where the registry wants an upload to go.
    #[error("{host} wants the upload at a place that is not used: {problem}")]
    Location {
        /// The registry.
        host: String,
        /// Why not.
        problem: RedirectProblem,
    },
    /// Our credentials.
    #[error("the credentials cannot be read")]
    Credentials(#[from] CredentialsError),
    /// The other side of the transfer, on this machine.
    #[error("cannot write what was received")]
    Write {
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// The registry's name is no host.
    #[error("`{0}` is not a registry's host name")]
    Host(String),
}

/// A client that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Certificates or proxies.
    #[error(transparent)]
    Http(#[from] SetupError),
    /// Docker's configuration.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
}

impl TransferError {
    /// What may help, in one sentence, if anything is known.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match &*self.problem {
            Problem::Http { failure: Failure::Refused { host }, .. } => {
                Some(format!("is the registry running? nothing listens at `{host}`"))
            }
            Problem::Http { failure: Failure::NotTls { host }, .. } => Some(
                format!("add `--insecure-registry {host}` if this registry is to be used without encryption"),
            ),
            Problem::Http { failure: Failure::Unresolved { .. }, .. } => {
                Some("is the registry's name spelled right, and does DNS work here?".to_owned())
            }
            Problem::Http { failure: Failure::Tls { reason, .. }, .. } if reason.contains("UnknownIssuer") => Some(
                "if the registry's certificate is from an authority of your own, name that in `SSL_CERT_FILE`"
                    .to_owned(),
            ),
            Problem::NoCredentials { host, .. } => {
                Some(format!("log in with `docker login {host}` or the like"))
            }
            Problem::Rejected { .. } => Some("are user name and password still valid?".to_owned()),
            Problem::Location { problem: RedirectProblem::Downgrade(_), .. } => {
                Some("a proxy in front of the registry may have to set `X-Forwarded-Proto`".to_owned())
            }
            _ => None,
        }
    }

    /// Whether the registry says that what was asked for is not there.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(*self.problem, Problem::NotFound { .. })
    }

    /// Whether there is nothing under the name for anybody who asks as we do.
    #[must_use]
    pub fn is_nothing_for_us(&self) -> bool {
        self.is_without_answer()
            || matches!(
                *self.problem,
                Problem::NotFound { .. }
                    | Problem::Denied { .. }
                    | Problem::Rejected { .. }
                    | Problem::NoCredentials { .. }
            )
    }

    /// Whether the registry has answered, with something that is not what was asked for, or cannot be read.
    #[must_use]
    pub fn is_about_content(&self) -> bool {
        matches!(
            *self.problem,
            Problem::Document { .. }
                | Problem::Descriptor(_)
                | Problem::TooLarge { .. }
                | Problem::Corrupt { .. }
                | Problem::Content { .. }
                | Problem::Answer { .. }
        )
    }

    /// Whether nobody answered, or nobody who knows: it says nothing about what was asked for.
    #[must_use]
    pub fn is_without_answer(&self) -> bool {
        matches!(*self.problem, Problem::Http { .. }) || self.problem.is_transient()
    }

    /// This error and its causes in one line.
    #[must_use]
    pub fn in_one_line(&self) -> String {
        crate::text::chained(self)
    }
}

impl Problem {
    pub(super) fn at(self, action: Action, name: &impl fmt::Display) -> TransferError {
        TransferError { action, name: name.to_string(), problem: Box::new(self) }
    }
}

impl Problem {
    /// Whether the same may work a moment later.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Http { failure, .. } => failure.is_transient(),
            Self::Status { status, .. } => is_transient(*status),
            Self::BlobsUnknown { .. } => true,
            _ => false,
        }
    }

    /// How long the other side wants us to wait.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// The same after so many tries.
    pub(super) fn tried(self, tries: u32) -> Self {
        match self {
            Self::Http { failure, .. } => Self::Http { failure, tries },
            Self::Status { host, status, words, retry_after, .. } => {
                Self::Status { host, status, words, tries, retry_after }
            }
            other => other,
        }
    }
}

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
        Self::Http { failure, tries: 1 }
    }
}

/// Statuses that a moment later may be others.
pub(super) fn is_transient(status: u16) -> bool {
    matches!(status, 408 | 429 | 500 | 502 | 503 | 504)
}

fn said(words: &str) -> String {
    if words.is_empty() { String::new() } else { format!(": {words}") }
}

fn tried(tries: u32) -> String {
    if tries > 1 { format!(" (tried {tries} times)") } else { String::new() }
}

/// What a registry says about an error, ready to be shown.
#[derive(Debug, Clone, Default)]
pub(super) struct Words {
    /// The codes of distribution-spec, Error Codes.
    pub(super) codes: Vec<String>,
    pub(super) text: String,
}

/// More of an error's body is not read.
const LONGEST_BODY: usize = 64 * 1024;

#[derive(Deserialize)]
struct Errors {
    #[serde(default)]
    errors: Vec<OneError>,
    /// Token servers of some registries.
    #[serde(default)]
    details: Option<String>,
    #[serde(default)]
    error_description: Option<String>,
}

#[derive(Deserialize)]
struct OneError {
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: Option<String>,
}

impl Words {
    /// Reads the body of an answer.
    pub(super) fn of(response: &mut Response) -> Self {
        let body = response.read_some(LONGEST_BODY);
        let Ok(errors) = serde_json::from_slice::<Errors>(&body) else {
            return Self { codes: Vec::new(), text: escape(String::from_utf8_lossy(&body).trim()) };
        };
        let one = |error: &OneError| match error.message.as_deref().filter(|message| !message.is_empty()) {
            Some(message) => format!("{}: {message}", error.code),
            None => error.code.clone(),
        };
        let mut texts: Vec<String> = errors.errors.iter().take(5).map(one).collect();
        texts.extend(errors.details.or(errors.error_description));
        let codes = errors.errors.into_iter().map(|error| error.code).collect();
        Self { codes, text: escape(&texts.join(", ")) }
    }

    pub(super) fn has(&self, code: &str) -> bool {
        self.codes.iter().any(|found| found.eq_ignore_ascii_case(code))
    }
}
