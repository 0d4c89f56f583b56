//! Getting tokens (distribution: token authentication, OAuth2 token authentication).

use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::{CONTENT_TYPE, HeaderValue};
use serde::Deserialize;
use serde_json::Value;
use url::form_urlencoded::Serializer;

use super::client::Client;
use super::credentials::{Credentials, Secret};
use super::error::{Problem, Words, is_transient};
use super::realm::{self, RealmError};
use super::session::{Scope, Session, Token};
use super::statistics::Kind;
use crate::http::{Class, Content, Method, Redirects, Request, Response, authority};
use crate::text::redact;

/// Tokens with everything in them have some kilobytes.
const LONGEST: u64 = 1024 * 1024;
/// What a server that does not say means (distribution: `expires_in`).
const SHORTEST_LIFE: u64 = 60;
/// Nothing is believed for longer.
const LONGEST_LIFE: u64 = 24 * 60 * 60;

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    token: Option<String>,
    #[serde(default)]
    access_token: Option<String>,
    #[serde(default)]
    expires_in: Value,
}

/// Asks `realm` for a token for `scope`.
pub(super) fn fetch(
    client: &Client,
    session: &Session,
    scope: &Scope,
    realm: &str,
    service: Option<&str>,
    credentials: Option<&Credentials>,
) -> Result<Token, Problem> {
    let refuse = |problem| Problem::Realm { host: session.host.clone(), problem };
    let base = session.contact(client)?;
    let class = if same_host(realm, &base) { Class::Public } else { client.http.class(&base)? };
    let trusted = client.token_hosts.get(&session.host).map_or(&[][..], Vec::as_slice);
    let mut realm = realm::judge(realm, &base, class, trusted).map_err(refuse)?;
    if credentials.is_some() && realm.credentials == realm::Credentials::Withheld {
        return Err(refuse(RealmError::Foreign(redact(&realm.url))));
    }

    let form = form(scope, service, credentials);
    if form.is_none() {
        let mut query = realm.url.query_pairs_mut();
        query.extend_pairs(service.map(|service| ("service", service)));
        query.extend_pairs(scope.words.iter().map(|words| ("scope", words)));
        if let Some(Credentials::Password { user, .. }) = credentials {
            query.append_pair("account", user);
        }
    }
    let mut request = Request::new(if form.is_some() { Method::POST } else { Method::GET }, realm.url);
    request.redirects = Redirects::SameHost;
    request.reach = realm.reach;
    if let Some(form) = &form {
        request.headers.push((CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded")));
        request.content = Content::Bytes(form.as_bytes());
    } else if let Some(Credentials::Password { user, password }) = credentials {
        let basic = format!("Basic {}", STANDARD.encode(format!("{user}:{}", password.reveal())));
        // Base64 is always a valid header.
        request.authorization = HeaderValue::try_from(basic).ok();
    }
    ask(client, session, scope, &request)
}

fn same_host(realm: &str, base: &url::Url) -> bool {
    url::Url::parse(realm).is_ok_and(|realm| realm.host_str() == base.host_str())
}

/// The form that exchanges an identity token.
fn form(scope: &Scope, service: Option<&str>, credentials: Option<&Credentials>) -> Option<String> {
    let Some(Credentials::Identity { token, .. }) = credentials else { return None };
    let mut form = Serializer::new(String::new());
    form.append_pair("grant_type", "refresh_token").append_pair("client_id", "builder");
    form.append_pair("service", service.unwrap_or_default()).append_pair("scope", &scope.words.join(" "));
    form.append_pair("refresh_token", token.reveal());
    Some(form.finish())
}

fn ask(client: &Client, session: &Session, scope: &Scope, request: &Request<'_>) -> Result<Token, Problem> {
    let mut attempts = client.http.attempts();
    loop {
        client.counters.count(Kind::Token);
        let asked_at = Instant::now();
        let mut response = match client.http.send(request) {
            Ok(response) => response,
            Err(failure) => {
                client.again(failure.into(), &mut attempts)?;
                continue;
            }
        };
        match response.status() {
            200 => match response.read_all(LONGEST) {
                Ok(body) => return read(&body, &response, asked_at),
                Err(failure) => client.again(failure.into(), &mut attempts)?,
            },
            status if is_transient(status) => {
                client.again(client.status(&mut response), &mut attempts)?;
            }
            400 | 401 | 403 => {
                let at = format!("token server {} answers {}", redact(response.url()), response.status());
                let words = Words::of(&mut response).text;
                let words = if words.is_empty() { at } else { format!("{at}: {words}") };
                return Err(session.unknown(client, scope, words));
            }
            _ => return Err(client.status(&mut response)),
        }
    }
}

fn read(body: &[u8], response: &Response, asked_at: Instant) -> Result<Token, Problem> {
    let unusable =
        |problem: &str| Problem::Answer { host: authority(response.url()), problem: problem.to_owned() };
    let answer: Answer =
        serde_json::from_slice(body).map_err(|_| unusable("something else than JSON in place of a token"))?;
    let text = answer.token.filter(|token| !token.is_empty()).or(answer.access_token);
    let text = text.filter(|token| !token.is_empty()).ok_or_else(|| unusable("an answer without a token"))?;
    let life = answer.expires_in.as_u64().unwrap_or_default().clamp(SHORTEST_LIFE, LONGEST_LIFE);
    Ok(Token { text: Secret::new(text), until: asked_at + Duration::from_secs(life) })
}
