//! The client: what it is made with, and how every request to a registry goes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use reqwest::header::{HeaderName, HeaderValue, WWW_AUTHENTICATE};
use url::Url;

use super::challenge::{self, Challenge};
use super::credentials::{ConfigFile, Keychain};
use super::error::{ClientError, Problem, Words, is_transient};
use super::helper::Helpers;
use super::session::{Authorization, Plain, Scope, Session};
use super::statistics::{Counters, Kind, Statistics};
use crate::http::{self, Attempts, Content, Method, Request, Response, authority};
use crate::image::document::DocumentLimits;
use crate::image::reference::Reference;

/// Is told, in one line, what goes on that is no error: waits, and answers that are odd.
pub type Notice = Arc<dyn Fn(&str) + Send + Sync>;

/// Where connections without encryption are allowed. Registries on this machine always may be spoken to in the clear.
#[derive(Debug, Clone, Default)]
pub struct Insecure {
    /// Hosts, with their ports, as in references.
    pub registries: BTreeSet<String>,
    /// All registries that are pulled from.
    pub pull: bool,
    /// All registries that are pushed to.
    pub push: bool,
}

/// What a client is made with.
#[derive(Clone, Default)]
pub struct ClientOptions {
    /// Certificates, proxies, timeouts, retries, clock.
    pub http: http::Options,
    /// Where no encryption is needed.
    pub insecure: Insecure,
    /// Docker's configuration.
    pub credentials: Option<ConfigFile>,
    /// How credential helpers are run.
    pub helpers: Helpers,
    /// By registry: hosts outside of its domain that may see its credentials in exchange for tokens.
    pub token_hosts: BTreeMap<String, Vec<String>>,
    /// Is told what goes on.
    pub notice: Option<Notice>,
    /// How large documents may be.
    pub limits: DocumentLimits,
}

/// A client of all registries; it is shared by threads, and blocks the one that calls.
pub struct Client {
    pub(super) http: http::Client,
    insecure: Insecure,
    pub(super) keychain: Keychain,
    pub(super) token_hosts: BTreeMap<String, Vec<String>>,
    pub(super) counters: Counters,
    notice: Option<Notice>,
    pub(super) limits: DocumentLimits,
    sessions: Mutex<BTreeMap<(String, Plain), Arc<Session>>>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("insecure", &self.insecure).finish_non_exhaustive()
    }
}

/// In which direction an image goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Pull,
    Push,
}

/// A request to a registry.
pub(super) struct Call<'a> {
    pub(super) method: Method,
    pub(super) url: Url,
    pub(super) scope: &'a Scope,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    pub(super) content: Content<'a>,
    pub(super) kind: Kind,
}

impl<'a> Call<'a> {
    pub(super) fn new(method: Method, url: Url, scope: &'a Scope, kind: Kind) -> Self {
        Self { method, url, scope, headers: Vec::new(), content: Content::None, kind }
    }
}

/// A lock that a panic elsewhere does not take away: what it guards is whole at any time.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Client {
    /// Makes a client; nothing is connected to yet.
    ///
    /// # Errors
    /// [`ClientError`] for certificates, proxies or a Docker configuration that cannot be used.
    pub fn new(options: ClientOptions) -> Result<Self, ClientError> {
        Ok(Self {
            http: http::Client::new(options.http)?,
            insecure: options.insecure,
            keychain: Keychain::new(options.credentials.as_ref(), options.helpers)?,
            token_hosts: options.token_hosts,
            counters: Counters::default(),
            notice: options.notice,
            limits: options.limits,
            sessions: Mutex::default(),
        })
    }

    /// How many requests of each kind were sent so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.counters.read()
    }

    /// The HTTP client below, for requests to others than registries.
    #[must_use]
    pub fn http(&self) -> &http::Client {
        &self.http
    }

    /// Makes everything that waits, now or later, end with an error.
    pub fn cancel(&self) {
        self.http.cancel();
    }

    pub(super) fn notice(&self, text: &str) {
        if let Some(notice) = &self.notice {
            notice(text);
        }
    }

    /// What is known about the registry of `reference`.
    pub(super) fn session(&self, reference: &Reference, direction: Direction) -> Arc<Session> {
        let host = reference.registry();
        let everywhere = match direction {
            Direction::Pull => self.insecure.pull,
            Direction::Push => self.insecure.push,
        };
        let plain = Plain::of(host, everywhere || self.insecure.registries.contains(host));
        let mut sessions = lock(&self.sessions);
        let session = sessions.entry((host.to_owned(), plain));
        session.or_insert_with(|| Arc::new(Session::new(reference, plain))).clone()
    }

    /// Sends a request, authenticated as the registry wants, again where that makes sense. Answers of all other
    /// statuses than 401 and those that pass are for the caller to judge.
    pub(super) fn call(
        &self,
        session: &Session,
        call: &Call<'_>,
        attempts: &mut Attempts,
    ) -> Result<Response, Problem> {
        let base = session.contact(self)?;
        // Uploads and redirects may lead elsewhere; who we are is the registry's business only.
        let at_home = call.url.origin() == base.origin();
        let mut refused = 0;
        loop {
            let authorization = if at_home { session.authorization(self, call.scope)? } else { None };
            let request = Request {
                headers: call.headers.clone(),
                authorization: authorization.as_ref().map(|authorization| authorization.header.clone()),
                content: call.content,
                ..Request::new(call.method.clone(), call.url.clone())
            };
            self.counters.count(call.kind);
            let mut response = match self.http.send(&request) {
                Ok(response) => response,
                Err(failure) => {
                    self.again(failure.into(), attempts)?;
                    continue;
                }
            };
            match response.status() {
                401 if at_home && response.url().origin() == base.origin() => {
                    refused += u32::from(authorization.is_some());
                    self.unauthorized(session, call.scope, authorization, refused, &mut response)?;
                }
                status if is_transient(status) => {
                    self.again(self.status(&mut response), attempts)?;
                }
                _ => return Ok(response),
            }
        }
    }

    /// Learns from a 401 how to do better, or says why that is not possible.
    fn unauthorized(
        &self,
        session: &Session,
        scope: &Scope,
        authorization: Option<Authorization>,
        refused: u32,
        response: &mut Response,
    ) -> Result<(), Problem> {
        let headers = response.headers().get_all(WWW_AUTHENTICATE);
        let challenge = challenge::choose(headers.iter().filter_map(|header| header.to_str().ok()));
        let words = Words::of(response).text;
        let Some(authorization) = authorization else {
            let host = session.host.clone();
            let challenge = challenge.map_err(|problem| Problem::Challenge { host, problem })?;
            let hopeless = challenge == Challenge::Basic && session.credentials(self, scope)?.is_none();
            return match session.learn(challenge) {
                true if !hopeless => Ok(()),
                _ => Err(session.unknown(self, scope, words)),
            };
        };
        session.forget(scope, &authorization);
        let fresh = match challenge {
            Ok(challenge) => session.learn(challenge) || authorization.is_renewable(),
            Err(_) => authorization.is_renewable(),
        };
        if fresh && refused < 2 { Ok(()) } else { Err(session.unknown(self, scope, words)) }
    }

    /// Waits before another try after `problem`, or gives up with it.
    pub(super) fn again(&self, problem: Problem, attempts: &mut Attempts) -> Result<(), Problem> {
        if !problem.is_transient() {
            return Err(problem);
        }
        let tell =
            |wait: Duration| self.notice(&format!("{problem}; trying again in {:.1} s", wait.as_secs_f64()));
        let again = self.http.wait(attempts, problem.retry_after(), tell)?;
        if again { Ok(()) } else { Err(problem.tried(attempts.failed())) }
    }

    /// An answer that only its status describes.
    pub(super) fn status(&self, response: &mut Response) -> Problem {
        Problem::Status {
            host: authority(response.url()),
            status: response.status(),
            retry_after: response.retry_after(),
            words: Words::of(response).text,
            tries: 1,
        }
    }

    /// An answer that says no; `what` was asked for.
    pub(super) fn refusal(
        &self,
        session: &Session,
        scope: &Scope,
        what: &str,
        response: &mut Response,
    ) -> Problem {
        match response.status() {
            403 if Some(authority(response.url())) == session.authority() => {
                let user = match session.credentials(self, scope) {
                    Ok(credentials) => credentials.map(|credentials| credentials.user().to_owned()),
                    Err(problem) => return problem,
                };
                let user = user.unwrap_or_else(|| {
                    format!("anonymous users (no credentials in {})", self.keychain.place())
                });
                Problem::Denied { host: session.host.clone(), user, words: Words::of(response).text }
            }
            404 => Problem::NotFound { what: what.to_owned(), words: Words::of(response).text },
            _ => self.status(response),
        }
    }
}
