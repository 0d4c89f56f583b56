//! Names of git repositories, with what of them is wanted, as BuildKit reads them.

use std::fmt;

use url::form_urlencoded;

use super::url::{decoded, host_and_port};
use crate::text::{one_url, without_credentials};

/// How a repository is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Transport {
    /// `http://`
    Http,
    /// `https://`
    Https,
    /// `ssh://`, or `user@host:path`.
    Ssh,
    /// `git://`
    Git,
}

/// What becomes of `.git`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum GitDirectory {
    /// It stays, as large as it has to be for one commit.
    Keep,
    /// It is removed.
    Remove,
}

/// Whether the repositories that a repository points to are checked out as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Submodules {
    /// They are, and theirs.
    Recursive,
    /// Their directories stay empty.
    Skip,
}

/// Which times files get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FileTimes {
    /// That of the checkout.
    Checkout,
    /// That of the commit.
    Commit,
}

impl Submodules {
    /// The word for it in what is remembered of earlier builds: it never changes.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Recursive => "Recursive",
            Self::Skip => "Skip",
        }
    }
}

impl FileTimes {
    /// The word for it in what is remembered of earlier builds: it never changes.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Checkout => "Checkout",
            Self::Commit => "Commit",
        }
    }
}

/// Why a name is not that of a repository that can be used. BuildKit's words, where it has some.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GitSourceError {
    /// An option that does not exist.
    #[error("unexpected query \"{0}\"")]
    UnexpectedQuery(String),
    /// An option without a value.
    #[error("query \"{0}\" has no value")]
    NoValue(String),
    /// An option that is given twice.
    #[error("query \"{0}\" has multiple values")]
    MultipleValues(String),
    /// Two branches, tags or commits.
    #[error("ref conflicts: \"{0}\" vs \"{1}\"")]
    RefConflict(String, String),
    /// Two directories.
    #[error("subdir conflicts: \"{0}\" vs \"{1}\"")]
    SubdirConflict(String, String),
    /// A branch and a tag.
    #[error("branch conflicts with tag")]
    BranchAndTag,
    /// A value that the option cannot have.
    #[error("invalid {option} value: \"{value}\"")]
    Value {
        /// The option.
        option: &'static str,
        /// What it was given.
        value: String,
    },
    /// `--keep-git-dir` and the option of the same name differ.
    #[error("inconsistent keep-git-dir configuration")]
    InconsistentGitDirectory,
    /// `--checksum` and the option of the same name differ.
    #[error("checksum mismatch \"{0}\" != \"{1}\"")]
    ChecksumMismatch(String, String),
    /// What should be the beginning of the id of a commit.
    #[error("invalid checksum {0} for Git URL, expected hex commit hash")]
    Checksum(String),
    /// So short that many commits may begin with it.
    #[error("invalid checksum {0} for Git URL: the commit must be given with at least 7 digits")]
    ShortChecksum(String),
    /// What git itself would not take as a name, or would take for an option.
    #[error("invalid git ref \"{0}\"")]
    Reference(String),
    /// An address that git would take for an option, or that has none.
    #[error("invalid git repository \"{0}\"")]
    Remote(String),
}

/// A repository, and what of it is wanted.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct GitSource {
    /// The repository as git takes it. There may be credentials in it: [`GitSource::shown`] has none.
    pub remote: String,
    /// How it is reached.
    pub transport: Transport,
    /// A branch, a tag, or the whole id of a commit; the default branch if there is none.
    pub reference: Option<String>,
    /// What the id of the commit must begin with.
    pub checksum: Option<String>,
    /// The directory that is taken.
    pub subdirectory: Option<String>,
    /// What becomes of `.git`, as far as the name says.
    pub git_directory: Option<GitDirectory>,
    /// Whether submodules are checked out.
    pub submodules: Submodules,
    /// The times of files.
    pub times: FileTimes,
    /// Whether the commit that `checksum` names in full is fetched whatever the reference stands for.
    pub pinned: Pinned,
}

/// Whether a branch or tag is asked for what it stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pinned {
    /// It is.
    No,
    /// The commit that is named in full is fetched without that.
    Yes,
}

/// The remote may hold a password.
impl fmt::Debug for GitSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GitSource")
            .field("remote", &self.shown())
            .field("reference", &self.reference)
            .field("checksum", &self.checksum)
            .field("subdirectory", &self.subdirectory)
            .finish_non_exhaustive()
    }
}

impl GitSource {
    /// What a source of ADD means, if it means a repository: `git://`, `ssh://`, `user@host:path`, or an http or https
    /// URL whose path ends with `.git`.
    ///
    /// # Errors
    /// [`GitSourceError`] for a repository with options that cannot be.
    pub fn parse(text: &str) -> Option<Result<Self, GitSourceError>> {
        let (remote, query, fragment) = split(text);
        let transport = match remote.split_once("://") {
            Some((scheme, rest)) => {
                let transport = transport_of(scheme)?;
                let path = rest.split_once('/').map_or("", |(_, path)| path);
                let is_web = matches!(transport, Transport::Http | Transport::Https);
                if is_web && !decoded(path).ends_with(b".git") {
                    return None;
                }
                transport
            }
            None if is_scp_style(remote) => Transport::Ssh,
            None => return None,
        };
        Some(Self::with_options(remote, transport, query, fragment))
    }

    /// What the name of a build context means: as [`GitSource::parse`], and `github.com/…` besides.
    ///
    /// # Errors
    /// As there.
    pub fn parse_context(text: &str) -> Option<Result<Self, GitSourceError>> {
        if !text.starts_with("github.com/") {
            return Self::parse(text);
        }
        let (remote, query, fragment) = split(text);
        Some(Self::with_options(&format!("https://{remote}"), Transport::Https, query, fragment))
    }

    fn with_options(
        remote: &str,
        transport: Transport,
        query: &str,
        fragment: &str,
    ) -> Result<Self, GitSourceError> {
        let mut source = Self {
            remote: remote.to_owned(),
            transport,
            reference: None,
            checksum: None,
            subdirectory: None,
            git_directory: None,
            submodules: Submodules::Recursive,
            times: FileTimes::Checkout,
            pinned: Pinned::No,
        };
        if !source.is_usable() {
            return Err(GitSourceError::Remote(source.shown()));
        }
        let fragment = String::from_utf8_lossy(&decoded(fragment)).into_owned();
        let (reference, subdirectory) = fragment.split_once(':').unwrap_or((&fragment, ""));
        let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        (source.reference, source.subdirectory) = (given(reference), given(subdirectory));
        source.take_query(query)?;
        source.check()?;
        Ok(source)
    }

    /// Whether there is a host, and neither it nor a path would be taken for an option.
    fn is_usable(&self) -> bool {
        let rest = self.remote.split_once("://").map_or(self.remote.as_str(), |(_, rest)| rest);
        let (authority, path) = match self.remote.contains("://") {
            true => rest.split_once('/').unwrap_or((rest, "")),
            false => rest.split_once(':').unwrap_or((rest, "")),
        };
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let plain = |text: &str| !text.chars().any(|c| c.is_control() || c.is_whitespace());
        !host.is_empty()
            && !authority.starts_with('-')
            && !host.starts_with('-')
            && !path.is_empty()
            && !path.starts_with('-')
            && plain(&self.remote)
    }

    fn take_query(&mut self, query: &str) -> Result<(), GitSourceError> {
        let mut seen = Vec::new();
        let (mut tag, mut branch) = (None, None);
        for (key, value) in form_urlencoded::parse(query.as_bytes()) {
            let (key, value) = (key.into_owned(), value.into_owned());
            if seen.contains(&key) {
                return Err(GitSourceError::MultipleValues(key));
            }
            let may_be_empty = matches!(key.as_str(), "keep-git-dir" | "submodules" | "fetch-by-commit");
            let is_known = may_be_empty
                || matches!(
                    key.as_str(),
                    "ref" | "tag" | "branch" | "subdir" | "checksum" | "commit" | "mtime"
                );
            if value.is_empty() && is_known && !may_be_empty {
                return Err(GitSourceError::NoValue(key));
            }
            match key.as_str() {
                "ref" => self.set_reference(value)?,
                "tag" => tag = Some(prefixed("refs/tags/", value)),
                "branch" => branch = Some(prefixed("refs/heads/", value)),
                "subdir" => match self.subdirectory.replace(value.clone()) {
                    Some(before) if before != value => {
                        return Err(GitSourceError::SubdirConflict(before, value));
                    }
                    _ => {}
                },
                "checksum" | "commit" => self.checksum = Some(value),
                "keep-git-dir" => {
                    self.git_directory = Some(match flag("keep-git-dir", &value)? {
                        true => GitDirectory::Keep,
                        false => GitDirectory::Remove,
                    });
                }
                "submodules" => {
                    self.submodules = match flag("submodules", &value)? {
                        true => Submodules::Recursive,
                        false => Submodules::Skip,
                    };
                }
                "fetch-by-commit" => {
                    self.pinned = if flag("fetch-by-commit", &value)? { Pinned::Yes } else { Pinned::No };
                }
                "mtime" => {
                    self.times = match value.as_str() {
                        "checkout" => FileTimes::Checkout,
                        "commit" => FileTimes::Commit,
                        _ => return Err(GitSourceError::Value { option: "mtime", value }),
                    };
                }
                _ => return Err(GitSourceError::UnexpectedQuery(key)),
            }
            seen.push(key);
        }
        if tag.is_some() && branch.is_some() {
            return Err(GitSourceError::BranchAndTag);
        }
        if let Some(reference) = tag.or(branch) {
            self.set_reference(reference)?;
        }
        if self.reference.is_none() {
            self.reference.clone_from(&self.checksum);
        }
        Ok(())
    }

    fn set_reference(&mut self, reference: String) -> Result<(), GitSourceError> {
        match self.reference.take() {
            Some(before) if before != reference => Err(GitSourceError::RefConflict(before, reference)),
            _ => {
                self.reference = Some(reference);
                Ok(())
            }
        }
    }

    /// Takes what flags of ADD say.
    ///
    /// # Errors
    /// Where they contradict the name.
    pub fn with_flags(
        mut self,
        git_directory: Option<GitDirectory>,
        checksum: Option<&str>,
    ) -> Result<Self, GitSourceError> {
        match (self.git_directory, git_directory) {
            (Some(named), Some(given)) if named != given => {
                return Err(GitSourceError::InconsistentGitDirectory);
            }
            (None, given) => self.git_directory = given,
            _ => {}
        }
        match (&self.checksum, checksum) {
            (Some(named), Some(given)) if named != given => {
                return Err(GitSourceError::ChecksumMismatch(given.to_owned(), named.clone()));
            }
            (None, Some(given)) => self.checksum = Some(given.to_owned()),
            _ => {}
        }
        self.check()?;
        Ok(self)
    }

    fn check(&self) -> Result<(), GitSourceError> {
        if let Some(reference) = self.reference.as_ref().filter(|reference| !is_reference(reference)) {
            return Err(GitSourceError::Reference(reference.clone()));
        }
        match &self.checksum {
            Some(text) if !text.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
                Err(GitSourceError::Checksum(text.clone()))
            }
            Some(text) if text.len() < 7 => Err(GitSourceError::ShortChecksum(text.clone())),
            _ => Ok(()),
        }
    }

    /// The repository without credentials, for messages.
    #[must_use]
    pub fn shown(&self) -> String {
        // The user of `user@host:path` is no secret.
        if self.remote.contains("://") { one_url(&self.remote) } else { self.remote.clone() }
    }

    /// The repository as far as it tells one from another in what is remembered of earlier builds: it never changes.
    #[must_use]
    pub fn remembered(&self) -> String {
        without_credentials(&self.remote).into_owned()
    }

    /// Whether `.git` is kept.
    #[must_use]
    pub fn keeps_git_directory(&self) -> bool {
        self.git_directory == Some(GitDirectory::Keep)
    }

    /// The host, with its port if it has one: secrets are named by it.
    #[must_use]
    pub fn host(&self) -> &str {
        host_and_port(&self.remote)
    }
}

/// The whole id of a commit, SHA-1 or SHA-256.
#[must_use]
pub fn is_commit(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Before the query, the query, the fragment.
fn split(text: &str) -> (&str, &str, &str) {
    let (rest, fragment) = text.split_once('#').unwrap_or((text, ""));
    let (remote, query) = rest.split_once('?').unwrap_or((rest, ""));
    (remote, query, fragment)
}

fn transport_of(scheme: &str) -> Option<Transport> {
    Some(match scheme.to_ascii_lowercase().as_str() {
        "http" => Transport::Http,
        "https" => Transport::Https,
        "ssh" => Transport::Ssh,
        "git" => Transport::Git,
        _ => return None,
    })
}

/// `user@host:path`.
fn is_scp_style(text: &str) -> bool {
    let Some((user, rest)) = text.split_once('@') else { return false };
    let Some((host, _)) = rest.split_once(':') else { return false };
    let word = |text: &str, more: &[char]| {
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || more.contains(&c))
    };
    word(user, &['_']) && word(host, &['.'])
}

fn prefixed(prefix: &str, name: String) -> String {
    if name.starts_with(prefix) { name } else { format!("{prefix}{name}") }
}

/// A truth value as Go reads it; an option alone is true.
fn flag(option: &'static str, value: &str) -> Result<bool, GitSourceError> {
    match value {
        "" | "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(GitSourceError::Value { option, value: value.to_owned() }),
    }
}

/// Whether git takes `text` for the name of a branch or tag, or for a commit (git-check-ref-format).
fn is_reference(text: &str) -> bool {
    let forbidden = |c: char| c.is_control() || matches!(c, ' ' | '~' | '^' | ':' | '?' | '*' | '[' | '\\');
    let component = |part: &str| !part.is_empty() && !part.starts_with('.') && !part.ends_with(".lock");
    !text.starts_with('-')
        && !text.ends_with('.')
        && !text.contains("..")
        && !text.contains("@{")
        && !text.contains(forbidden)
        && text.split('/').all(component)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Option<GitSource> {
        GitSource::parse(text).map(|source| source.unwrap())
    }

    fn error(text: &str) -> String {
        GitSource::parse(text).unwrap().unwrap_err().to_string()
    }

    #[test]
    fn only_some_names_are_those_of_repositories() {
        for (text, remote, transport) in [
            ("https://h/a/b.git", "https://h/a/b.git", Transport::Https),
            ("HTTP://h:1/b.git#x", "HTTP://h:1/b.git", Transport::Http),
            ("https://u:p@h/b.git", "https://u:p@h/b.git", Transport::Https),
            ("git://h/foo", "git://h/foo", Transport::Git),
            ("ssh://git@h:22/foo", "ssh://git@h:22/foo", Transport::Ssh),
            ("git@h.x:a/b", "git@h.x:a/b", Transport::Ssh),
            ("me@h:a/b.git#v1:d", "me@h:a/b.git", Transport::Ssh),
        ] {
            let found = parsed(text).unwrap();
            assert_eq!((found.remote.as_str(), found.transport), (remote, transport), "{text}");
        }
        for text in [
            "https://h/",
            "https://h/foo",
            "https://h/foo.git/",
            "https://h/foo.git.bar",
            "http://h/d.git:#branch",
            "github.com/moby/buildkit",
            "custom.xyz/moby/buildkit.git",
            "./.git",
            ".git",
            "file:///x.git",
            "ftp://h/x.git",
            "a/b@c:d",
        ] {
            assert!(GitSource::parse(text).is_none(), "{text}");
        }
        let context = GitSource::parse_context("github.com/moby/buildkit#v1:frontend").unwrap().unwrap();
        assert_eq!(context.remote, "https://github.com/moby/buildkit");
        assert_eq!(context.subdirectory.as_deref(), Some("frontend"));
    }

    #[test]
    fn reference_and_directory_stand_in_the_fragment_or_the_query() {
        for (options, reference, directory) in [
            ("", None, None),
            ("#", None, None),
            ("#baz/qux:quux/quuz", Some("baz/qux"), Some("quux/quuz")),
            ("#:sub", None, Some("sub")),
            ("?ref=v1&subdir=/sub", Some("v1"), Some("/sub")),
            ("?tag=v1", Some("refs/tags/v1"), None),
            ("?tag=refs/tags/v1", Some("refs/tags/v1"), None),
            ("?branch=a%2Fb", Some("refs/heads/a/b"), None),
            ("?ref=v1#v1:sub", Some("v1"), Some("sub")),
            ("?commit=1234567", Some("1234567"), None),
        ] {
            let found = parsed(&format!("https://h/r.git{options}")).unwrap();
            assert_eq!(found.reference.as_deref(), reference, "{options}");
            assert_eq!(found.subdirectory.as_deref(), directory, "{options}");
        }
        let found =
            parsed("https://h/r.git?keep-git-dir&submodules=0&mtime=commit&fetch-by-commit=1").unwrap();
        assert!(found.keeps_git_directory());
        assert_eq!(found.submodules, Submodules::Skip);
        assert_eq!((found.times, found.pinned), (FileTimes::Commit, Pinned::Yes));
    }

    #[test]
    fn options_that_cannot_be_are_refused_in_buildkit_s_words() {
        for (options, message) in [
            ("?foo=1", "unexpected query \"foo\""),
            ("?foo", "unexpected query \"foo\""),
            ("?ref=", "query \"ref\" has no value"),
            ("?ref=a&ref=b", "query \"ref\" has multiple values"),
            ("?ref=a#b", "ref conflicts: \"b\" vs \"a\""),
            ("?tag=a#b", "ref conflicts: \"b\" vs \"refs/tags/a\""),
            ("?subdir=a#:b", "subdir conflicts: \"b\" vs \"a\""),
            ("?tag=a&branch=b", "branch conflicts with tag"),
            ("?keep-git-dir=x", "invalid keep-git-dir value: \"x\""),
            ("?submodules=x", "invalid submodules value: \"x\""),
            ("?mtime=x", "invalid mtime value: \"x\""),
            ("?checksum=xyz", "invalid checksum xyz for Git URL, expected hex commit hash"),
            ("#--upload-pack=cmd", "invalid git ref \"--upload-pack=cmd\""),
            ("#a%20b", "invalid git ref \"a b\""),
            ("#a..b", "invalid git ref \"a..b\""),
        ] {
            assert_eq!(error(&format!("https://h/r.git{options}")), message, "{options}");
        }
        for text in ["ssh://-oProxyCommand=x/r", "git@h:-x", "ssh://u@-h/r", "git://h", "https:///r.git"] {
            assert!(error(text).starts_with("invalid git repository"), "{text}");
        }
    }

    #[test]
    fn flags_must_agree_with_the_name() {
        let source = |text| parsed(text).unwrap();
        let plain = source("https://h/r.git").with_flags(Some(GitDirectory::Keep), Some("1234567")).unwrap();
        assert!(plain.keeps_git_directory());
        // The commit that a flag names must be that of the default branch.
        assert_eq!((plain.checksum.as_deref(), plain.reference), (Some("1234567"), None));
        let kept = source("https://h/r.git?keep-git-dir=true");
        let error = kept.clone().with_flags(Some(GitDirectory::Remove), None).unwrap_err();
        assert_eq!(error.to_string(), "inconsistent keep-git-dir configuration");
        let error = kept.clone().with_flags(None, Some("123")).unwrap_err().to_string();
        assert!(error.contains("at least 7"), "{error}");
        let error = source("https://h/r.git?checksum=1234567").with_flags(None, Some("7654321")).unwrap_err();
        assert_eq!(error.to_string(), "checksum mismatch \"7654321\" != \"1234567\"");
    }

    #[test]
    fn what_is_shown_has_no_password() {
        let source = parsed("https://me:secret@h:8443/r.git").unwrap();
        assert_eq!(source.shown(), "https://xxxxx:xxxxx@h:8443/r.git");
        assert!(!format!("{source:?}").contains("secret"));
        assert_eq!(source.host(), "h:8443");
        assert_eq!(parsed("git@h:a/b").unwrap().host(), "h");
    }
}
