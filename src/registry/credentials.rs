//! Who we are to a registry: Docker's `config.json` (docker/cli `configfile`, containers-auth.json(5)).

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::Deserialize;

use super::helper::{self, HelperError, Helpers};
use crate::http::escape;

/// A secret text; it never shows itself.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Hides `text`.
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// The text itself.
    pub(super) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// What proves who we are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credentials {
    /// A user name with a password.
    Password {
        /// The user name.
        user: String,
        /// The password.
        password: Secret,
    },
    /// A refresh token, to be exchanged for access tokens.
    Identity {
        /// The user name, as far as known.
        user: String,
        /// The token.
        token: Secret,
    },
    /// An access token.
    Registry {
        /// The token.
        token: Secret,
    },
}

impl Credentials {
    /// The name to call the user by.
    #[must_use]
    pub fn user(&self) -> &str {
        match self {
            Self::Password { user, .. } => user,
            Self::Identity { user, .. } if !user.is_empty() => user,
            Self::Identity { .. } => "the owner of an identity token",
            Self::Registry { .. } => "the owner of a registry token",
        }
    }
}

/// The bytes of a `config.json`.
#[derive(Clone)]
pub struct ConfigFile {
    /// Where it was read, for messages.
    pub path: String,
    /// What was read.
    pub bytes: Vec<u8>,
}

impl fmt::Debug for ConfigFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfigFile").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Credentials that cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// The file is not what Docker writes. The parser's words hold no part of the file.
    #[error("`{path}` is not a Docker configuration: line {line}, column {column}: {reason}")]
    Syntax {
        /// The file.
        path: String,
        /// Where in it.
        line: usize,
        /// Where in it.
        column: usize,
        /// What is wrong.
        reason: &'static str,
    },
    /// An entry's `auth` field.
    #[error("`auth` of `{key}` in `{path}` is not `user:password` in base64")]
    Auth {
        /// The file.
        path: String,
        /// The entry.
        key: String,
    },
    /// A program that keeps credentials.
    #[error("credential helper `{program}`, named in `{path}`, failed")]
    Helper {
        /// The file.
        path: String,
        /// The program.
        program: String,
        /// Why.
        #[source]
        source: HelperError,
    },
}

#[derive(Deserialize, Default)]
struct File {
    #[serde(default)]
    auths: Option<BTreeMap<String, Entry>>,
    #[serde(rename = "credHelpers", default)]
    helpers: Option<BTreeMap<String, String>>,
    #[serde(rename = "credsStore", default)]
    store: Option<String>,
}

#[derive(Deserialize, Default)]
struct Entry {
    #[serde(default)]
    auth: Option<String>,
    #[serde(default)]
    username: Option<String>,
    #[serde(default)]
    password: Option<String>,
    #[serde(rename = "identitytoken", default)]
    identity_token: Option<String>,
    #[serde(rename = "registrytoken", default)]
    registry_token: Option<String>,
}

/// All credentials of a user.
pub(super) struct Keychain {
    path: Option<String>,
    file: File,
    helpers: Helpers,
}

/// The host that Docker Hub has in references, and its key in configurations and helpers.
const HUB: &str = "docker.io";
const HUB_KEY: &str = "https://index.docker.io/v1/";

impl Keychain {
    pub(super) fn new(file: Option<&ConfigFile>, helpers: Helpers) -> Result<Self, CredentialsError> {
        let parsed = match file {
            Some(file) if !file.bytes.trim_ascii().is_empty() => parse(file)?,
            _ => File::default(),
        };
        Ok(Self { path: file.map(|file| file.path.clone()), file: parsed, helpers })
    }

    /// Where credentials were looked for.
    pub(super) fn place(&self) -> String {
        self.path.clone().unwrap_or_else(|| "any config.json (none was found)".to_owned())
    }

    /// The credentials for `repository` at `registry` (as in references). As Docker does: the helper of this host,
    /// then the store, then the file; within the file the longest name that fits, as Podman does.
    pub(super) fn find(
        &self,
        registry: &str,
        repository: &str,
    ) -> Result<Option<Credentials>, CredentialsError> {
        let helper =
            self.file.helpers.iter().flatten().find(|(key, _)| host_of(key) == Some(canonical(registry)));
        let helper = helper.map(|(_, name)| name).or(self.file.store.as_ref());
        if let Some(name) = helper.filter(|name| !name.is_empty())
            && let Some(found) = self.ask(name, registry)?
        {
            return Ok(Some(found));
        }
        let Some((key, entry)) = self.entry(registry, repository) else { return Ok(None) };
        self.read(key, entry)
    }

    fn ask(&self, name: &str, registry: &str) -> Result<Option<Credentials>, CredentialsError> {
        let key = if canonical(registry) == HUB { HUB_KEY } else { registry };
        let answer = helper::get(&self.helpers, name, key).map_err(|source| CredentialsError::Helper {
            path: self.place(),
            program: escape(&format!("docker-credential-{name}")),
            source,
        })?;
        Ok(answer.map(|(user, secret)| {
            // Helpers mark identity tokens by this in place of a user name.
            if user == "<token>" {
                Credentials::Identity { user: String::new(), token: secret }
            } else {
                Credentials::Password { user, password: secret }
            }
        }))
    }

    fn entry(&self, registry: &str, repository: &str) -> Option<(&String, &Entry)> {
        let registry = canonical(registry);
        let entries = self.file.auths.as_ref()?;
        let mut namespace = Some(repository);
        while let Some(name) = namespace {
            let found = entries.iter().find(|(key, _)| {
                key.split_once('/').is_some_and(|(host, rest)| canonical(host) == registry && rest == name)
            });
            if found.is_some() {
                return found;
            }
            namespace = name.rsplit_once('/').map(|(parent, _)| parent);
        }
        // Docker leaves an empty entry for what its store keeps.
        entries.iter().filter(|(_, entry)| !entry.is_empty()).find(|(key, _)| host_of(key) == Some(registry))
    }

    fn read(&self, key: &str, entry: &Entry) -> Result<Option<Credentials>, CredentialsError> {
        let given = |value: &Option<String>| value.clone().filter(|value| !value.is_empty());
        let (mut user, mut password) = (given(&entry.username), given(&entry.password));
        if let Some(auth) = given(&entry.auth) {
            let (name, secret) = decode(&auth)
                .ok_or_else(|| CredentialsError::Auth { path: self.place(), key: escape(key) })?;
            (user, password) = (Some(name), Some(secret));
        }
        if let Some(token) = given(&entry.registry_token) {
            return Ok(Some(Credentials::Registry { token: Secret(token) }));
        }
        if let Some(token) = given(&entry.identity_token) {
            return Ok(Some(Credentials::Identity { user: user.unwrap_or_default(), token: Secret(token) }));
        }
        Ok(user.map(|user| Credentials::Password { user, password: Secret(password.unwrap_or_default()) }))
    }
}

impl Entry {
    fn is_empty(&self) -> bool {
        [&self.auth, &self.username, &self.identity_token, &self.registry_token]
            .into_iter()
            .all(|field| field.as_ref().is_none_or(String::is_empty))
    }
}

fn parse(file: &ConfigFile) -> Result<File, CredentialsError> {
    let syntax =
        |line, column, reason| CredentialsError::Syntax { path: file.path.clone(), line, column, reason };
    // Serde would take a list for an object.
    if !file.bytes.trim_ascii_start().starts_with(b"{") {
        return Err(syntax(1, 1, "this is not a JSON object"));
    }
    serde_json::from_slice(&file.bytes).map_err(|error| {
        let reason = match error.classify() {
            serde_json::error::Category::Data => "a field has the wrong type",
            _ => "this is not JSON",
        };
        syntax(error.line(), error.column(), reason)
    })
}

/// All names of Docker Hub are one.
fn canonical(host: &str) -> &str {
    match host {
        "index.docker.io" | "registry-1.docker.io" | "registry.hub.docker.com" => HUB,
        other => other,
    }
}

/// The host that a key of `auths` or `credHelpers` stands for; `None` when it stands for a part of a host only.
fn host_of(key: &str) -> Option<&str> {
    let bare = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://"));
    let (host, path) = bare.unwrap_or(key).split_once('/').unwrap_or((bare.unwrap_or(key), ""));
    let whole = bare.is_some() || matches!(path.trim_matches('/'), "" | "v1" | "v2");
    whole.then(|| canonical(host))
}

fn decode(auth: &str) -> Option<(String, String)> {
    let config = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    let bytes = GeneralPurpose::new(&STANDARD, config).decode(auth.trim()).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    let (user, password) = text.split_once(':')?;
    // Docker pads with NUL in old files.
    (!user.is_empty()).then(|| (user.to_owned(), password.trim_matches('\0').to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keychain(json: &str) -> Keychain {
        let file = ConfigFile { path: "/config.json".to_owned(), bytes: json.as_bytes().to_vec() };
        Keychain::new(Some(&file), Helpers::default()).unwrap()
    }

    fn password(user: &str, password: &str) -> Option<Credentials> {
        Some(Credentials::Password { user: user.to_owned(), password: Secret::new(password.to_owned()) })
    }

    #[test]
    fn an_entry_is_found_by_host_port_namespace_and_hubs_old_name() {
        // `u:p` is `dTpw`; `h:q` is `aDpx`.
        let chain = keychain(
            r#"{"auths": {
                "https://index.docker.io/v1/": {"auth": "dTpw"},
                "r.example:5000": {"auth": "dTpw"},
                "r.example:5000/team": {"auth": "aDpx"},
                "https://old.example/v1/": {"username": "u", "password": "p"},
                "empty.example": {},
                "bare.example": {"auth": "dTpwdw"}
            }, "HttpHeaders": {"x": "y"}}"#,
        );
        for (registry, repository, expected) in [
            ("docker.io", "library/busybox", password("u", "p")),
            ("index.docker.io", "x", password("u", "p")),
            ("r.example:5000", "app", password("u", "p")),
            ("r.example:5000", "team/app", password("h", "q")),
            ("r.example:5000", "team", password("h", "q")),
            ("r.example:5000", "teams/app", password("u", "p")),
            ("r.example", "team/app", None),
            ("example:5000", "app", None),
            ("old.example", "app", password("u", "p")),
            ("empty.example", "app", None),
            ("bare.example", "app", password("u", "pw")),
        ] {
            assert_eq!(chain.find(registry, repository).unwrap(), expected, "{registry}/{repository}");
        }
    }

    #[test]
    fn tokens_come_before_passwords() {
        let chain = keychain(
            r#"{"auths": {"a": {"auth": "dTpw", "identitytoken": "i"}, "b": {"registrytoken": "r", "auth": null}}}"#,
        );
        let token = |text: &str| Secret::new(text.to_owned());
        assert_eq!(
            chain.find("a", "x").unwrap(),
            Some(Credentials::Identity { user: "u".to_owned(), token: token("i") })
        );
        assert_eq!(chain.find("b", "x").unwrap(), Some(Credentials::Registry { token: token("r") }));
    }

    #[test]
    fn a_broken_file_is_an_error_that_says_where_and_shows_no_secret() {
        for json in [r#"{"auths": {"a": {"auth": 5}}}"#, r#"{"auths": ["dTpw"]}"#, "{", "[]"] {
            let file = ConfigFile { path: "/c.json".to_owned(), bytes: json.as_bytes().to_vec() };
            let error = Keychain::new(Some(&file), Helpers::default()).err().unwrap();
            assert!(error.to_string().contains("/c.json"));
            assert!(!format!("{error} {error:?}").contains("dTpw"));
        }
        for auth in ["dTpw!", "dXA=", "OnA="] {
            let chain = keychain(&format!(r#"{{"auths": {{"a": {{"auth": "{auth}"}}}}}}"#));
            let error = chain.find("a", "x").unwrap_err();
            assert!(error.to_string().contains("`a` in `/config.json`"), "{error}");
            assert!(chain.find("b", "x").unwrap().is_none());
        }
    }

    #[test]
    fn secrets_do_not_show_in_debug_output() {
        let credentials =
            Credentials::Password { user: "u".to_owned(), password: Secret::new("hunter2".to_owned()) };
        assert!(!format!("{credentials:?}").contains("hunter2"));
    }
}
