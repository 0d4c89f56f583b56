//! Requests and answers.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Proxy, StatusCode};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use url::Url;

use super::address::{self, Class, Guard, Reach};
use super::body::{self, Content, Source};
use super::clock::{Clock, SystemClock};
use super::failure::{Failure, RedirectProblem, SetupError};
use super::proxy::{Proxies, Rules};
use super::retry::{Attempts, Retries, retry_after};
use super::text::{authority, redact};
use super::tls::{self, Pem};

/// At most this many redirects are followed.
const REDIRECTS: usize = 5;

/// How long is waited for what.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// Resolving, connecting and TLS together.
    pub connect: Duration,
    /// The head of an answer to a request without a stream.
    pub answer: Duration,
    /// The head of an answer after a whole stream was sent: registries copy the data around then.
    pub commit: Duration,
    /// The next byte of an answer, or room for the next byte of a request.
    pub stall: Duration,
    /// Over this time of waiting at least [`Timeouts::floor`] bytes a second must come.
    pub window: Duration,
    /// Bytes a second.
    pub floor: u64,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(30),
            answer: Duration::from_secs(60),
            commit: Duration::from_secs(600),
            stall: Duration::from_secs(30),
            window: Duration::from_secs(60),
            floor: 1024,
        }
    }
}

/// What a client is made with.
#[derive(Clone)]
pub struct Options {
    /// The name that servers are told.
    pub user_agent: String,
    /// Certificates to trust besides the bundled ones.
    pub certificates: Vec<Pem>,
    /// Proxies.
    pub proxies: Proxies,
    /// Timeouts.
    pub timeouts: Timeouts,
    /// Limits of trying again.
    pub retries: Retries,
    /// What waits are measured with.
    pub clock: Arc<dyn Clock>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            user_agent: concat!("builder/", env!("CARGO_PKG_VERSION")).to_owned(),
            certificates: Vec::new(),
            proxies: Proxies::default(),
            timeouts: Timeouts::default(),
            retries: Retries::default(),
            clock: Arc::new(SystemClock),
        }
    }
}

/// Where redirects may lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redirects {
    /// Anywhere, but from https to http; another origin does not see the authorization.
    Follow,
    /// To the same host only.
    SameHost,
}

/// A request.
#[derive(Clone)]
pub struct Request<'a> {
    /// The method.
    pub method: Method,
    /// The address; without user information.
    pub url: Url,
    /// Headers, apart from `Authorization` and those that follow from the content.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The `Authorization` header; shown to the origin of `url` only.
    pub authorization: Option<HeaderValue>,
    /// The body.
    pub content: Content<'a>,
    /// Where redirects may lead.
    pub redirects: Redirects,
    /// What may be connected to.
    pub reach: Reach,
}

impl Request<'_> {
    /// A request without headers and body that follows redirects.
    #[must_use]
    pub fn new(method: Method, url: Url) -> Self {
        Self {
            method,
            url,
            headers: Vec::new(),
            authorization: None,
            content: Content::None,
            redirects: Redirects::Follow,
            reach: Reach::Anywhere,
        }
    }
}

struct Inner {
    /// `None` only while being dropped.
    runtime: Option<Runtime>,
    /// One client for each [`Reach`], made when first needed.
    clients: [OnceLock<reqwest::Client>; 4],
    tls: rustls::ClientConfig,
    rules: Rules,
    user_agent: String,
    timeouts: Timeouts,
    retries: Retries,
    clock: Arc<dyn Clock>,
    cancelled: watch::Sender<bool>,
    sent: AtomicU64,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Dropping it the ordinary way would wait for look-ups and panic inside another runtime.
            runtime.shutdown_background();
        }
    }
}

/// A blocking HTTP client; clones share connections. It must not be used on a thread of an asynchronous runtime.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("timeouts", &self.0.timeouts).finish_non_exhaustive()
    }
}

impl Client {
    /// Makes a client with one thread of its own.
    ///
    /// # Errors
    /// [`SetupError`] for certificates and proxies that cannot be used.
    pub fn new(options: Options) -> Result<Self, SetupError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(4)
            .thread_name("http")
            .enable_all()
            .build()
            .map_err(|source| SetupError::Thread { source })?;
        let client = Self(Arc::new(Inner {
            runtime: Some(runtime),
            clients: Default::default(),
            tls: tls::config(&options.certificates)?,
            rules: Rules::parse(&options.proxies)?,
            user_agent: options.user_agent,
            timeouts: options.timeouts,
            retries: options.retries,
            clock: options.clock,
            cancelled: watch::Sender::new(false),
            sent: AtomicU64::new(0),
        }));
        client.client(Reach::Anywhere).map_err(|source| SetupError::Client { source })?;
        Ok(client)
    }

    /// Makes everything that waits, now or later, end with [`Failure::Cancelled`].
    pub fn cancel(&self) {
        self.0.cancelled.send_replace(true);
    }

    /// How many requests were sent, redirects included.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.0.sent.load(Ordering::Relaxed)
    }

    /// The tries of a new operation.
    #[must_use]
    pub fn attempts(&self) -> Attempts {
        Attempts::new(self.0.retries)
    }

    /// Waits before the next try, or returns `false` when there should be none. `asked` is what the server wants;
    /// `before` is told how long the wait will be.
    ///
    /// # Errors
    /// [`Failure::Cancelled`].
    pub fn wait(
        &self,
        attempts: &mut Attempts,
        asked: Option<Duration>,
        before: impl FnOnce(Duration),
    ) -> Result<bool, Failure> {
        let Some(wait) = attempts.after_failure(asked, &*self.0.clock) else { return Ok(false) };
        before(wait);
        let cancelled = || *self.0.cancelled.borrow();
        self.0.clock.sleep(wait, &cancelled);
        if cancelled() { Err(Failure::Cancelled) } else { Ok(true) }
    }

    /// The class of the network that the host of `url` is in; [`Class::Public`] when that cannot be found out.
    ///
    /// # Errors
    /// [`Failure::Cancelled`].
    pub fn class(&self, url: &Url) -> Result<Class, Failure> {
        if let Some(class) = address::literal(url) {
            return Ok(class);
        }
        let host = url.host_str().unwrap_or_default();
        let found = self.block(address::lookup(host))?.unwrap_or_default();
        Ok(found.iter().map(|address| address::classify(address.ip())).max().unwrap_or(Class::Public))
    }

    /// Sends a request, once, and follows redirects.
    ///
    /// # Errors
    /// [`Failure`]; an answer of any status is none.
    pub fn send(&self, request: &Request<'_>) -> Result<Response, Failure> {
        let mut url = request.url.clone();
        let mut authorization = request.authorization.as_ref();
        for _ in 0..=REDIRECTS {
            let response = self.send_once(request, &url, authorization)?;
            let Some(next) = redirect(&response, request)? else { return Ok(response) };
            if next.origin() != url.origin() {
                authorization = None;
            }
            url = next;
        }
        Err(Failure::Redirect { host: authority(&url), problem: RedirectProblem::TooMany(REDIRECTS) })
    }

    fn send_once(
        &self,
        request: &Request<'_>,
        url: &Url,
        authorization: Option<&HeaderValue>,
    ) -> Result<Response, Failure> {
        let host = authority(url);
        if let Some(class) = address::literal(url)
            && !request.reach.allows(class)
        {
            return Err(self.out_of_reach(url, host));
        }
        let other = |error: reqwest::Error| Failure::from_library(&error, &host);
        let client = self.client(request.reach).map_err(other)?;
        let mut outgoing = reqwest::Request::new(request.method.clone(), url.clone());
        for (name, value) in &request.headers {
            outgoing.headers_mut().append(name.clone(), value.clone());
        }
        if let Some(authorization) = authorization {
            outgoing.headers_mut().insert(reqwest::header::AUTHORIZATION, authorization.clone());
        }
        let mut source = None;
        match request.content {
            Content::None if matches!(request.method, Method::GET | Method::HEAD) => {}
            // Servers want to know that there is nothing (RFC 9110, 8.6).
            Content::None => *outgoing.body_mut() = Some(Bytes::new().into()),
            Content::Bytes(bytes) => *outgoing.body_mut() = Some(Bytes::copy_from_slice(bytes).into()),
            Content::Stream { size, open } => {
                let reader = open().map_err(|source| Failure::Source { source })?;
                let (feeder, queue) = body::channel(reader, size);
                *outgoing.body_mut() = Some(reqwest::Body::wrap(queue));
                source = Some(feeder);
            }
        }
        if matches!(request.content, Content::None) && !matches!(request.method, Method::GET | Method::HEAD) {
            outgoing.headers_mut().insert(reqwest::header::CONTENT_LENGTH, HeaderValue::from_static("0"));
        }
        self.0.sent.fetch_add(1, Ordering::Relaxed);
        let answer = self.block(exchange(client, outgoing, source, &host, self.0.timeouts))??;
        let meter = Meter { host, timeouts: self.0.timeouts, waited: Duration::ZERO, bytes: 0 };
        Ok(Response { client: self.clone(), answer, url: url.clone(), meter })
    }

    fn out_of_reach(&self, url: &Url, host: String) -> Failure {
        let address = match url.host() {
            Some(url::Host::Ipv4(address)) => address.into(),
            Some(url::Host::Ipv6(address)) => address.into(),
            _ => std::net::Ipv4Addr::LOCALHOST.into(),
        };
        Failure::Forbidden { host, address }
    }

    fn client(&self, reach: Reach) -> Result<&reqwest::Client, reqwest::Error> {
        let slot = &self.0.clients[reach as usize];
        if let Some(client) = slot.get() {
            return Ok(client);
        }
        let rules = self.0.rules.clone();
        let exempt = Arc::new(rules.hosts());
        let client = reqwest::Client::builder()
            .user_agent(&self.0.user_agent)
            .redirect(reqwest::redirect::Policy::none())
            .referer(false)
            .retry(reqwest::retry::never())
            .connect_timeout(self.0.timeouts.connect)
            .http2_adaptive_window(true)
            .tls_backend_preconfigured(self.0.tls.clone())
            .dns_resolver(Arc::new(Guard { reach, exempt }))
            // The only proxies are ours: nothing is taken from the environment.
            .proxy(Proxy::custom(move |url| rules.choose(url)))
            .build()?;
        Ok(slot.get_or_init(|| client))
    }

    /// Runs `work` on this thread until it is done or everything is cancelled.
    fn block<T>(&self, work: impl Future<Output = T>) -> Result<T, Failure> {
        let Some(runtime) = &self.0.runtime else { return Err(Failure::Cancelled) };
        let mut cancelled = self.0.cancelled.subscribe();
        runtime.block_on(async {
            tokio::select! {
                biased;
                _ = cancelled.wait_for(|cancelled| *cancelled) => Err(Failure::Cancelled),
                done = work => Ok(done),
            }
        })
    }
}

/// Sends `request`, filling its body from `source`, until the head of an answer is there.
async fn exchange(
    client: &reqwest::Client,
    request: reqwest::Request,
    source: Option<Source>,
    host: &str,
    timeouts: Timeouts,
) -> Result<reqwest::Response, Failure> {
    let failed = |error: reqwest::Error| Failure::from_library(&error, host);
    let mut answer = std::pin::pin!(client.execute(request));
    let mut patience = timeouts.answer + timeouts.connect;
    if let Some(source) = source {
        patience = timeouts.commit;
        tokio::select! {
            biased;
            early = &mut answer => return early.map_err(failed),
            fed = source.feed(host, timeouts.stall + timeouts.connect) => fed?,
        }
    }
    match tokio::time::timeout(patience, answer).await {
        Ok(answer) => answer.map_err(failed),
        Err(_) => Err(Failure::Stalled { host: host.to_owned(), after: patience }),
    }
}

/// Where an answer sends us, if it does.
fn redirect(response: &Response, request: &Request<'_>) -> Result<Option<Url>, Failure> {
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
    let shown = || super::text::escape(location.split(['?', '#']).next().unwrap_or_default());
    let mut url = base.join(location).map_err(|_| RedirectProblem::Location(shown()))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(RedirectProblem::Location(redact(&url)));
    }
    url.set_fragment(None);
    match (base.scheme(), url.scheme()) {
        ("https", "http") => Err(RedirectProblem::Downgrade(redact(&url))),
        (_, "http" | "https") if url.has_host() => Ok(url),
        _ => Err(RedirectProblem::Location(shown())),
    }
}

/// Tells a slow answer from a slow reader: only the time spent waiting for bytes counts.
struct Meter {
    host: String,
    timeouts: Timeouts,
    waited: Duration,
    bytes: u64,
}

impl Meter {
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
    /// The status code.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.answer.status().as_u16()
    }

    /// Whether the status is one of success.
    #[must_use]
    pub fn is_success(&self) -> bool {
        StatusCode::is_success(&self.answer.status())
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
        retry_after(self.header("retry-after")?, self.header("date"), self.client.0.clock.now())
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
    }

    #[test]
    fn a_name_that_leads_to_this_machine_is_not_connected_to_when_out_of_reach() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let client = Client::new(Options::default()).unwrap();
        for host in ["localhost", "127.0.0.1", "[::ffff:127.0.0.1]", "2130706433"] {
            let url = Url::parse(&format!("http://{host}:{port}/")).unwrap();
            let request = Request { reach: Reach::Private, ..Request::new(Method::GET, url) };
            assert!(matches!(client.send(&request), Err(Failure::Forbidden { .. })), "{host}");
        }
        // The resolver itself refuses as well, whatever the name looks like.
        let guard = Guard { reach: Reach::Public, exempt: Arc::default() };
        let name: reqwest::dns::Name = "localhost".parse().unwrap();
        let found = client.block(reqwest::dns::Resolve::resolve(&guard, name)).unwrap();
        assert!(found.is_err());
        assert!(listener.accept().is_err());
        assert_eq!(client.requests(), 0);
    }

    #[test]
    fn a_cancelled_client_neither_waits_nor_sends() {
        let client = Client::new(Options::default()).unwrap();
        client.cancel();
        let request = Request::new(Method::GET, Url::parse("http://127.0.0.1:1/").unwrap());
        assert!(matches!(client.send(&request), Err(Failure::Cancelled)));
        assert!(matches!(client.wait(&mut client.attempts(), None, |_| ()), Err(Failure::Cancelled)));
    }

    #[test]
    fn only_waiting_for_bytes_counts_as_slowness() {
        let mut meter =
            Meter { host: String::new(), timeouts: Timeouts::default(), waited: Duration::ZERO, bytes: 0 };
        assert!(meter.record(Duration::from_secs(59), 1).is_ok());
        assert!(meter.record(Duration::from_secs(2), 70_000).is_ok());
        assert!(meter.record(Duration::from_secs(61), 61_000).is_err());
    }
}
