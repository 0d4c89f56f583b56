//! What is known about one registry: how it is reached, what it asks for, and the tokens it accepts.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::{HeaderValue, WWW_AUTHENTICATE};
use url::Url;

use super::challenge::{self, Challenge};
use super::client::{Client, lock};
use super::credentials::{Credentials, Secret};
use super::error::Problem;
use super::statistics::Kind;
use super::token;
use crate::http::{self, Failure, Method, Request, Response, authority};
use crate::image::reference::Reference;

/// Whether a registry may be spoken to without encryption.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Plain {
    /// No.
    Never,
    /// Yes, when there is no encryption to be had.
    Allowed,
    /// Yes, and that is tried first: it is on this machine.
    Preferred,
}

impl Plain {
    /// `allowed` is whether the user said so.
    pub(super) fn of(host: &str, allowed: bool) -> Self {
        let url = Url::parse(&format!("http://{host}/"));
        match url.ok().as_ref().and_then(http::literal) {
            Some(http::Class::Loopback) => Self::Preferred,
            _ if allowed => Self::Allowed,
            _ => Self::Never,
        }
    }

    fn schemes(self) -> &'static [&'static str] {
        match self {
            Self::Never => &["https"],
            Self::Allowed => &["https", "http"],
            Self::Preferred => &["http", "https"],
        }
    }
}

/// What a token is for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Scope {
    /// Whose credentials are used.
    pub(super) repository: String,
    /// In the token server's words (distribution: token scope).
    pub(super) words: Vec<String>,
}

impl Scope {
    pub(super) fn pull(repository: &str) -> Self {
        Self { repository: repository.to_owned(), words: vec![format!("repository:{repository}:pull")] }
    }

    pub(super) fn push(repository: &str) -> Self {
        Self { repository: repository.to_owned(), words: vec![format!("repository:{repository}:pull,push")] }
    }

    /// To push to `repository` what `from` has.
    pub(super) fn mount(repository: &str, from: &str) -> Self {
        let mut scope = Self::push(repository);
        scope.words.push(format!("repository:{from}:pull"));
        scope
    }
}

/// A token with the time until which it is used.
#[derive(Clone)]
pub(super) struct Token {
    pub(super) text: Secret,
    pub(super) until: Instant,
}

/// An `Authorization` header and where it is from.
pub(super) struct Authorization {
    pub(super) header: HeaderValue,
    /// The token, if one was fetched.
    token: Option<Secret>,
}

impl Authorization {
    /// Whether there may be another one in its place.
    pub(super) fn is_renewable(&self) -> bool {
        self.token.is_some()
    }
}

#[derive(Default)]
enum Slot {
    #[default]
    Empty,
    Token(Token),
    /// The token server said no: asking again with the same password would only lock the account.
    Refused(String),
}

/// One registry.
pub(super) struct Session {
    /// As in references.
    pub(super) host: String,
    /// Where requests go.
    address: String,
    plain: Plain,
    base: Mutex<Option<Url>>,
    challenge: Mutex<Option<Challenge>>,
    credentials: Mutex<BTreeMap<String, Option<Credentials>>>,
    tokens: Mutex<BTreeMap<Vec<String>, Arc<Mutex<Slot>>>>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("host", &self.host)
            .field("plain", &self.plain)
            .finish_non_exhaustive()
    }
}

/// Tokens are not used in their last seconds.
const MARGIN: Duration = Duration::from_secs(10);

impl Session {
    pub(super) fn new(reference: &Reference, plain: Plain) -> Self {
        Self {
            host: reference.registry().to_owned(),
            address: reference.registry_host().to_owned(),
            plain,
            base: Mutex::default(),
            challenge: Mutex::default(),
            credentials: Mutex::default(),
            tokens: Mutex::default(),
        }
    }

    /// The registry's address, once it was reached.
    pub(super) fn authority(&self) -> Option<String> {
        lock(&self.base).as_ref().map(authority)
    }

    /// The URL of `path` below the registry's API, for instance `["app", "blobs", "sha256:…"]`.
    pub(super) fn url(&self, client: &Client, repository: &str, path: &[&str]) -> Result<Url, Problem> {
        let mut url = self.contact(client)?;
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().push("v2").extend(repository.split('/')).extend(path);
        }
        Ok(url)
    }

    /// Reaches the registry for the first time: finds out its scheme and what it asks for. Everybody else waits.
    pub(super) fn contact(&self, client: &Client) -> Result<Url, Problem> {
        let mut base = lock(&self.base);
        if let Some(base) = &*base {
            return Ok(base.clone());
        }
        let mut attempts = client.http.attempts();
        let (found, response) = loop {
            match self.ping(client) {
                Ok(found) => break found,
                Err(problem) => client.again(problem, &mut attempts)?,
            }
        };
        if response.status() == 401 {
            let headers = response.headers().get_all(WWW_AUTHENTICATE);
            // What cannot be understood here will be met again where it matters.
            if let Ok(challenge) = challenge::choose(headers.iter().filter_map(|header| header.to_str().ok()))
            {
                self.learn(challenge);
            }
        }
        *base = Some(found.clone());
        Ok(found)
    }

    fn ping(&self, client: &Client) -> Result<(Url, Response), Problem> {
        let mut reason = None;
        for scheme in self.plain.schemes() {
            let base = base(scheme, &self.address)?;
            let mut url = base.clone();
            url.set_path("/v2/");
            client.counters.count(Kind::Ping);
            let failure = match client.http.send(&Request::new(Method::GET, url)) {
                Ok(mut response) => {
                    if *scheme == "https" || !is_tls_server(&mut response) {
                        return Ok((encrypted(response.url(), &base).unwrap_or(base), response));
                    }
                    Failure::NotHttp { host: authority(&base), reason: "it wants HTTPS".to_owned() }
                }
                // A certificate that is not trusted is no reason to do without.
                Err(failure @ (Failure::Tls { .. } | Failure::Cancelled)) => return Err(failure.into()),
                Err(failure) => failure,
            };
            reason = Some(more_telling(reason, failure));
        }
        Err(reason.map_or_else(|| Problem::Host(http::escape(&self.host)), Problem::from))
    }

    /// Takes in what the registry asks for; says whether that is news.
    pub(super) fn learn(&self, challenge: Challenge) -> bool {
        let mut known = lock(&self.challenge);
        let news = known.as_ref() != Some(&challenge);
        *known = Some(challenge);
        news
    }

    /// Who we are to this registry; asked for once.
    pub(super) fn credentials(&self, client: &Client, scope: &Scope) -> Result<Option<Credentials>, Problem> {
        let mut known = lock(&self.credentials);
        if let Some(credentials) = known.get(&scope.repository) {
            return Ok(credentials.clone());
        }
        let found = client.keychain.find(&self.host, &scope.repository)?;
        known.insert(scope.repository.clone(), found.clone());
        Ok(found)
    }

    /// The header for `scope`, as far as the registry asked for one.
    pub(super) fn authorization(
        &self,
        client: &Client,
        scope: &Scope,
    ) -> Result<Option<Authorization>, Problem> {
        let Some(challenge) = lock(&self.challenge).clone() else { return Ok(None) };
        let credentials = self.credentials(client, scope)?;
        if let Some(Credentials::Registry { token }) = &credentials {
            return self.header("Bearer", token.reveal(), None).map(Some);
        }
        match (challenge, credentials) {
            (Challenge::Basic, Some(Credentials::Password { user, password })) => self
                .header("Basic", &STANDARD.encode(format!("{user}:{}", password.reveal())), None)
                .map(Some),
            (Challenge::Basic, _) => Ok(None),
            (Challenge::Bearer { realm, service }, credentials) => {
                let token = self.token(client, scope, || {
                    token::fetch(client, self, scope, &realm, service.as_deref(), credentials.as_ref())
                })?;
                self.header("Bearer", token.reveal(), Some(token.clone())).map(Some)
            }
        }
    }

    fn header(&self, scheme: &str, value: &str, token: Option<Secret>) -> Result<Authorization, Problem> {
        let mut header = HeaderValue::try_from(format!("{scheme} {value}")).map_err(|_| Problem::Answer {
            host: self.host.clone(),
            problem: "a token that cannot be part of a header".to_owned(),
        })?;
        header.set_sensitive(true);
        Ok(Authorization { header, token })
    }

    /// The token for `scope`: the known one, or one that `fetch` gets while everybody else who wants it waits.
    fn token(
        &self,
        client: &Client,
        scope: &Scope,
        fetch: impl FnOnce() -> Result<Token, Problem>,
    ) -> Result<Secret, Problem> {
        let slot = lock(&self.tokens).entry(scope.words.clone()).or_default().clone();
        let mut slot = lock(&slot);
        match &*slot {
            Slot::Token(token) if token.until > Instant::now() + MARGIN => return Ok(token.text.clone()),
            Slot::Refused(words) => return Err(self.unknown(client, scope, words.clone())),
            _ => {}
        }
        match fetch() {
            Ok(token) => {
                let text = token.text.clone();
                *slot = Slot::Token(token);
                Ok(text)
            }
            Err(problem) => {
                if let Problem::Rejected { words, .. } | Problem::NoCredentials { words, .. } = &problem {
                    *slot = Slot::Refused(words.clone());
                }
                Err(problem)
            }
        }
    }

    /// Drops the token of `authorization`, unless somebody has replaced it already.
    pub(super) fn forget(&self, scope: &Scope, authorization: &Authorization) {
        let Some(refused) = &authorization.token else { return };
        let slot = lock(&self.tokens).get(&scope.words).cloned();
        if let Some(slot) = slot {
            let mut slot = lock(&slot);
            if matches!(&*slot, Slot::Token(token) if token.text == *refused) {
                *slot = Slot::Empty;
            }
        }
    }

    /// The registry does not know us: with the name it knows us by, or with where we looked for one.
    pub(super) fn unknown(&self, client: &Client, scope: &Scope, words: String) -> Problem {
        let host = self.host.clone();
        match self.credentials(client, scope) {
            Ok(Some(credentials)) => Problem::Rejected { host, user: credentials.user().to_owned(), words },
            Ok(None) => Problem::NoCredentials { host, place: client.keychain.place(), words },
            Err(problem) => problem,
        }
    }
}

/// Of two failures the one that tells more: rather something about a server that is there, else the first.
fn more_telling(first: Option<Failure>, second: Failure) -> Failure {
    match (first, second) {
        (None | Some(Failure::Refused { .. }), second) => second,
        (Some(first), Failure::Refused { .. } | Failure::NotTls { .. }) => first,
        (Some(Failure::NotHttp { .. } | Failure::Closed { .. }), second) => second,
        (Some(first), _) => first,
    }
}

/// The address of a registry.
fn base(scheme: &str, host: &str) -> Result<Url, Problem> {
    let unusable = || Problem::Host(http::escape(host));
    let url = Url::parse(&format!("{scheme}://{host}/")).map_err(|_| unusable())?;
    let bare =
        url.path() == "/" && url.query().is_none() && url.fragment().is_none() && url.username().is_empty();
    if bare && url.has_host() && url.password().is_none() { Ok(url) } else { Err(unusable()) }
}

/// The address of a registry that sent a plain request on to HTTPS on the same host: what is known from then on.
fn encrypted(answered: &Url, base: &Url) -> Option<Url> {
    let better =
        base.scheme() == "http" && answered.scheme() == "https" && answered.host_str() == base.host_str();
    let mut url = answered.clone();
    url.set_path("/");
    url.set_query(None);
    better.then_some(url)
}

/// Whether a plain request was answered by a server that expects TLS (Go's and nginx's sentences).
fn is_tls_server(response: &mut Response) -> bool {
    if response.status() != 400 {
        return false;
    }
    let body = String::from_utf8_lossy(&response.read_some(4096)).to_ascii_lowercase();
    body.contains("http request to an https server") || body.contains("sent to https port")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_hosts_become_addresses() {
        for (host, expected) in [
            ("r.example:5000", Some("https://r.example:5000/")),
            ("[::1]:5000", Some("https://[::1]:5000/")),
            ("a/b", None),
            ("me@host", None),
            ("host?x", None),
            ("host#x", None),
            ("", None),
            ("host:99999", None),
        ] {
            assert_eq!(base("https", host).ok().as_ref().map(Url::as_str), expected, "{host}");
        }
    }

    #[test]
    fn plain_http_is_for_this_machine_and_for_what_the_user_names() {
        for (host, allowed, expected) in [
            ("127.0.0.1:5000", false, Plain::Preferred),
            ("127.8.8.8", false, Plain::Preferred),
            ("[::1]:5000", false, Plain::Preferred),
            ("localhost:5000", false, Plain::Preferred),
            ("localhost.example", false, Plain::Never),
            ("10.0.0.1:5000", false, Plain::Never),
            ("10.0.0.1:5000", true, Plain::Allowed),
        ] {
            assert_eq!(Plain::of(host, allowed), expected, "{host}");
        }
    }
}
