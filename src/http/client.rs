//! Requests and answers.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use reqwest::header::{AUTHORIZATION, CONTENT_LENGTH, HeaderName, HeaderValue};
use reqwest::{Method, Proxy};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use url::Url;

use super::address::{self, Class, Guard, Reach};
use super::body::{self, Content, Source};
use super::clock::{Clock, SystemClock};
use super::failure::{Failure, RedirectProblem, SetupError};
use super::proxy::{Proxies, Rules};
use super::redacted::authority;
use super::response::{Meter, Response, redirect};
use super::retry::{Attempts, Retries};
use super::tls::{self, Pem};

/// At most this many redirects are followed, unless the request says otherwise.
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
    /// How many may follow one another.
    pub most_redirects: usize,
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
            most_redirects: REDIRECTS,
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

/// Whether somebody wants it to stop.
type Stop = Arc<dyn Fn() -> bool + Send + Sync>;

/// How often that is asked.
const PAUSE: Duration = Duration::from_millis(50);

/// A blocking HTTP client; clones share connections. It must not be used on a thread of an asynchronous runtime.
#[derive(Clone)]
pub struct Client(Arc<Inner>, Option<Stop>);

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("timeouts", &self.0.timeouts).finish_non_exhaustive()
    }
}

/// Finds out whether there may be one more thread: where not, the runtime would panic.
fn try_a_thread() -> std::io::Result<()> {
    let thread = std::thread::Builder::new().spawn(rustix::thread::gettid)?;
    let Ok(thread) = thread.join() else { return Ok(()) };
    // Until the kernel has let go of it, it still counts.
    let trace = std::path::PathBuf::from(format!("/proc/self/task/{}", thread.as_raw_nonzero()));
    let began = std::time::Instant::now();
    while trace.exists() && began.elapsed() < Duration::from_secs(1) {
        std::thread::yield_now();
    }
    Ok(())
}

impl Client {
    /// Makes a client with one thread of its own.
    ///
    /// # Errors
    /// [`SetupError`] for certificates and proxies that cannot be used.
    pub fn new(options: Options) -> Result<Self, SetupError> {
        try_a_thread().map_err(|source| SetupError::Thread { source })?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(4)
            .thread_name("http")
            .enable_all()
            .build()
            .map_err(|source| SetupError::Thread { source })?;
        let inner = Inner {
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
        };
        let client = Self(Arc::new(inner), None);
        client.client(Reach::Anywhere).map_err(|source| SetupError::Client { source })?;
        Ok(client)
    }

    /// The same client for a user of its own: what waits for that one ends with [`Failure::Cancelled`] once `stop` says so,
    /// too.
    #[must_use]
    pub fn until(&self, stop: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::clone(&self.0), Some(Arc::new(stop)))
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
        let cancelled = || *self.0.cancelled.borrow() || self.1.as_ref().is_some_and(|stop| stop());
        self.0.clock.sleep(wait, &cancelled);
        if cancelled() { Err(Failure::Cancelled) } else { Ok(true) }
    }

    pub(super) fn now(&self) -> SystemTime {
        self.0.clock.now()
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
        for _ in 0..=request.most_redirects {
            let response = self.send_once(request, &url, authorization)?;
            let Some(next) = redirect(&response, request)? else { return Ok(response) };
            if next.origin() != url.origin() {
                authorization = None;
            }
            url = next;
        }
        let problem = RedirectProblem::TooMany(request.most_redirects);
        Err(Failure::Redirect { host: authority(&url), problem })
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
            outgoing.headers_mut().insert(AUTHORIZATION, authorization.clone());
        }
        let mut source = None;
        match request.content {
            Content::None => {}
            Content::Bytes(bytes) => *outgoing.body_mut() = Some(Bytes::copy_from_slice(bytes).into()),
            Content::Stream { size, open } => {
                let reader = open().map_err(|source| Failure::Source { source })?;
                let (feeder, queue) = body::channel(reader, size);
                *outgoing.body_mut() = Some(reqwest::Body::wrap(queue));
                source = Some(feeder);
            }
        }
        if request.content.is_empty() && !matches!(request.method, Method::GET | Method::HEAD) {
            // Servers want to know that there is nothing (RFC 9110, 8.6).
            outgoing.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        }
        self.0.sent.fetch_add(1, Ordering::Relaxed);
        let answer = self.block(exchange(client, outgoing, source, &host, self.0.timeouts))??;
        let meter = Meter::new(host, self.0.timeouts);
        Ok(Response::new(self.clone(), answer, url.clone(), meter))
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
    pub(super) fn block<T>(&self, work: impl Future<Output = T>) -> Result<T, Failure> {
        let Some(runtime) = &self.0.runtime else { return Err(Failure::Cancelled) };
        let mut cancelled = self.0.cancelled.subscribe();
        runtime.block_on(async {
            tokio::select! {
                biased;
                _ = cancelled.wait_for(|cancelled| *cancelled) => Err(Failure::Cancelled),
                () = stopped(self.1.as_ref()) => Err(Failure::Cancelled),
                done = work => Ok(done),
            }
        })
    }
}

/// Waits until `stop` says so.
async fn stopped(stop: Option<&Stop>) {
    let Some(stop) = stop else { return std::future::pending().await };
    while !stop() {
        tokio::time::sleep(PAUSE).await;
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

#[cfg(test)]
mod tests {
    use super::*;

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
    fn who_stops_waits_no_longer_and_nobody_else_is_stopped() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = Url::parse(&format!("http://{}/", listener.local_addr().unwrap())).unwrap();
        let client = Client::new(Options::default()).unwrap();
        let asked = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&asked);
        // It waits for a server that never answers.
        let one = client.until(move || counted.fetch_add(1, Ordering::Relaxed) >= 2);
        let began = std::time::Instant::now();
        assert!(matches!(one.send(&Request::new(Method::GET, url)), Err(Failure::Cancelled)));
        assert!(matches!(one.wait(&mut one.attempts(), None, |_| ()), Err(Failure::Cancelled)));
        assert!(began.elapsed() < Duration::from_secs(30));
        assert!(client.block(async {}).is_ok());
    }
}
