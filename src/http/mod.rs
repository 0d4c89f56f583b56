//! One HTTP client: trusted roots, proxies, redirects, retries and limits.
//!
//! The client is blocking and may be shared by threads; the asynchronous machinery below it stays inside this module.

mod address;
mod body;
mod client;
mod clock;
mod failure;
mod proxy;
mod response;
mod retry;
mod text;
mod tls;

pub use address::{Class, Reach, classify, is_localhost, literal};
pub use body::Content;
pub use client::{Client, Options, Redirects, Request, Timeouts};
pub use clock::{Clock, SystemClock};
pub use failure::{Failure, RedirectProblem, SetupError};
pub use proxy::Proxies;
pub use reqwest::Method;
pub use response::Response;
pub use retry::{Attempts, Retries, retry_after};
pub use text::{authority, escape, is_deceptive, redact, redact_text};
pub use tls::Pem;
