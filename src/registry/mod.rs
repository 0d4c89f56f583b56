//! A client of registries (OCI distribution-spec): pulls and pushes manifests and blobs.
//!
//! ```text
//! Client ── pull.rs, push.rs, publish.rs       one operation each: what is asked, what is checked, what is tried again
//!   └ session.rs   Session         one registry: scheme, challenge, tokens (one request per scope)
//!       ├ credentials.rs, helper.rs    who we are
//!       ├ challenge.rs, realm.rs       what the registry wants, and whether it gets it
//!       └ http::Client                 bytes
//! ```
//!
//! Credentials leave this process for the host they belong to, and for a token server that `realm.rs` found to belong
//! to it; never with a redirect to another host, and never without encryption unless that was allowed for the host.

mod challenge;
mod client;
mod credentials;
mod error;
mod helper;
mod manifest;
mod parallel;
mod publish;
mod pull;
mod push;
mod realm;
mod session;
mod statistics;
mod token;

pub use challenge::ChallengeError;
pub use client::{Client, ClientOptions, Insecure, Notice};
pub use credentials::{ConfigFile, Credentials, CredentialsError, Secret};
pub use error::{Action, ClientError, Problem, TransferError};
pub use helper::{HelperError, Helpers};
pub use parallel::in_parallel;
pub use pull::Fetched;
pub use push::{BlobSource, OpenBlob, Uploaded};
pub use realm::RealmError;
pub use statistics::Statistics;
