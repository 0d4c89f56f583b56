//! One HTTP client: trusted roots, proxies, redirects, retries and limits.
//!
//! The client is blocking and may be shared by threads; the asynchronous machinery below it stays inside this module.

mod address;
mod body;
mod client;
mod clock;
mod failure;
mod proxy;
mod redacted;
mod response;
mod retry;
mod tls;

pub use address::{Class, Reach, classify, is_localhost, literal};
pub use body::Content;
pub use client::{Client, Options, Redirects, Request, Timeouts};
pub use clock::{Clock, SystemClock};
pub use failure::{Failure, RedirectProblem, SetupError};
pub use proxy::Proxies;
pub use redacted::{authority, escape};
pub use reqwest::Method;
pub use response::Response;
pub use retry::{Attempts, Retries, retry_after};
pub use tls::{Pem, pem_bundle};
