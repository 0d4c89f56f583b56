//! Answers, read piece by piece.

use std::time::{Duration, Instant};

use bytes::Bytes;
use reqwest::Method;
use reqwest::header::HeaderMap;
use url::Url;

use super::client::{Client, Redirects, Request, Timeouts};
use super::failure::{Failure, RedirectProblem};
use super::redacted::authority;
use super::retry::retry_after;
use crate::text::{redact, redact_text};

/// Where an answer sends us, if it does.
pub(super) fn redirect(response: &Response, request: &Request<'_>) -> Result<Option<Url>, Failure> {
    let keeps_method = matches!(request.method, Method::GET | Method::HEAD);
    let redirects = match response.status() {
        301..=303 => keeps_method,
        307 | 308 => true,
        _ => false,
    };
    let Some(location) = response.header("location").filter(|_| redirects) else { return Ok(None) };
    let refuse = |problem| Failure::Redirect { host: authority(response.url()), problem };
    let next = locate(response.url(), location).map_err(refuse)?;
    let same_host = next.host_str() == response.url().host_str();
    if request.redirects == Redirects::SameHost && !same_host {
        return Err(refuse(RedirectProblem::OtherHost(authority(&next))));
    }
    Ok(Some(next))
}

/// The URL that `location` means in an answer from `base`.
pub(super) fn locate(base: &Url, location: &str) -> Result<Url, RedirectProblem> {
    let shown = || redact_text(location);
    let mut url = base.join(location).map_err(|_| RedirectProblem::Location(shown()))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(RedirectProblem::User(redact(&url)));
    }
    url.set_fragment(None);
    match (base.scheme(), url.scheme()) {
        ("https", "http") => Err(RedirectProblem::Downgrade(redact(&url))),
        (_, "http" | "https") if url.has_host() => Ok(url),
        _ => Err(RedirectProblem::Location(shown())),
    }
}

/// Tells a slow answer from a slow reader: only the time spent waiting for bytes counts.
pub(super) struct Meter {
    host: String,
    timeouts: Timeouts,
    waited: Duration,
    bytes: u64,
}

impl Meter {
    pub(super) fn new(host: String, timeouts: Timeouts) -> Self {
        Self { host, timeouts, waited: Duration::ZERO, bytes: 0 }
    }

    fn record(&mut self, waited: Duration, bytes: usize) -> Result<(), Failure> {
        self.waited += waited;
        self.bytes += bytes as u64;
        if self.waited < self.timeouts.window {
            return Ok(());
        }
        let expected = u128::from(self.timeouts.floor) * self.timeouts.window.as_millis() / 1000;
        if u128::from(self.bytes) < expected {
            return Err(Failure::Slow { host: self.host.clone(), floor: self.timeouts.floor });
        }
        (self.waited, self.bytes) = (Duration::ZERO, 0);
        Ok(())
    }
}

/// An answer whose body is still to be read.
pub struct Response {
    client: Client,
    answer: reqwest::Response,
    url: Url,
    meter: Meter,
}

impl Response {
    pub(super) fn new(client: Client, answer: reqwest::Response, url: Url, meter: Meter) -> Self {
        Self { client, answer, url, meter }
    }

    /// The status code.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.answer.status().as_u16()
    }

    /// Whether the status is one of success.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.answer.status().is_success()
    }

    /// The address that answered, after redirects.
    #[must_use]
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// The first header of this name, if it is text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.answer.headers().get(name)?.to_str().ok()
    }

    /// All headers.
    #[must_use]
    pub fn headers(&self) -> &HeaderMap {
        self.answer.headers()
    }

    /// The announced length of the body. For HEAD, that of the body that GET would have.
    #[must_use]
    pub fn content_length(&self) -> Option<u64> {
        self.header("content-length")?.trim().parse().ok()
    }

    /// How long the server wants us to wait.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        retry_after(self.header("retry-after")?, self.header("date"), self.client.now())
    }

    /// Where the answer's `Location` leads.
    ///
    /// # Errors
    /// When it is missing, leads from https to http, or is no http or https URL.
    pub fn location(&self) -> Result<Url, RedirectProblem> {
        locate(&self.url, self.header("location").ok_or_else(|| RedirectProblem::Location(String::new()))?)
    }

    /// The next bytes of the body; `None` at its end.
    ///
    /// # Errors
    /// [`Failure`] when the body ends early or comes too slowly.
    pub fn chunk(&mut self) -> Result<Option<Bytes>, Failure> {
        let started = Instant::now();
        let stall = self.meter.timeouts.stall;
        let client = self.client.clone();
        let chunk = client.block(async { tokio::time::timeout(stall, self.answer.chunk()).await })?;
        let chunk = match chunk {
            Err(_) => return Err(Failure::Stalled { host: self.meter.host.clone(), after: stall }),
            Ok(chunk) => chunk.map_err(|error| Failure::from_library(&error, &self.meter.host))?,
        };
        if let Some(chunk) = &chunk {
            self.meter.record(started.elapsed(), chunk.len())?;
        }
        Ok(chunk)
    }

    /// The whole body, if it is no longer than `limit` bytes.
    ///
    /// # Errors
    /// [`Failure::TooLong`], and as [`Response::chunk`].
    pub fn read_all(&mut self, limit: u64) -> Result<Vec<u8>, Failure> {
        let too_long = |host: &str| Failure::TooLong { host: host.to_owned(), limit };
        let mut body = Vec::new();
        while let Some(chunk) = self.chunk()? {
            if (body.len() + chunk.len()) as u64 > limit {
                return Err(too_long(&self.meter.host));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    /// The beginning of the body, as far as it comes: for messages.
    pub fn read_some(&mut self, limit: usize) -> Vec<u8> {
        let mut body = Vec::new();
        while body.len() < limit {
            let Ok(Some(chunk)) = self.chunk() else { break };
            body.extend_from_slice(&chunk[..chunk.len().min(limit - body.len())]);
        }
        body
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_joined_but_never_lead_from_https_to_http_or_carry_passwords() {
        let base = Url::parse("https://host/v2/a/blobs/uploads/").unwrap();
        for (location, expected) in [
            ("/x?_state=a%2Bb#frag", Some("https://host/x?_state=a%2Bb")),
            ("sub", Some("https://host/v2/a/blobs/uploads/sub")),
            ("//other/x", Some("https://other/x")),
            ("https://other:444/x", Some("https://other:444/x")),
            ("http://host/x", None),
            ("file:///etc/passwd", None),
            ("https://me:pw@host/", None),
            ("data:,x", None),
            ("https://", None),
        ] {
            assert_eq!(locate(&base, location).ok().as_ref().map(Url::as_str), expected, "{location}");
        }
        let said = locate(&base, "https://me:pw@host/x?y").unwrap_err().to_string();
        assert_eq!(said, "it leads to `https://host/x?…` with a user name or a password of the server's own");
    }

    #[test]
    fn only_waiting_for_bytes_counts_as_slowness() {
        let mut meter = Meter::new(String::new(), Timeouts::default());
        assert!(meter.record(Duration::from_secs(59), 1).is_ok());
        assert!(meter.record(Duration::from_secs(2), 70_000).is_ok());
        assert!(meter.record(Duration::from_secs(61), 61_000).is_err());
    }
}
