//! References: `registry/repository[:tag][@digest]`.

use std::fmt;
use std::str::FromStr;

use super::digest::{Digest, DigestError};
use super::shown;

/// The registry that is meant where none is named.
const DOCKER_HUB: &str = "docker.io";

/// The name that Docker Hub had before.
const OLD_DOCKER_HUB: &str = "index.docker.io";

/// The tag that is meant where neither tag nor digest is named.
const DEFAULT_TAG: &str = "latest";

/// The most characters of a repository's name (distribution's limit).
const LONGEST_REPOSITORY: usize = 255;

/// The most characters of a tag.
const LONGEST_TAG: usize = 128;

/// The name of an image in a registry, complete: what Docker lets one leave out is filled in. Valid by construction,
/// so that it may be part of a URL. Tag and digest are both kept.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reference {
    registry: String,
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

/// A reference that was written wrongly.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// Nothing is written.
    #[error("an image name is empty")]
    Empty,
    /// Docker names are lower case.
    #[error("`{text}` is not an image name: repository `{repository}` must be lower case")]
    UpperCase {
        /// The whole.
        text: String,
        /// The part.
        repository: String,
    },
    /// Characters or separators that a repository does not have.
    #[error(
        "`{text}` is not an image name: repository `{repository}` may have letters, digits and, between them, `.`, `_`, \
         `__` or `-`"
    )]
    Repository {
        /// The whole.
        text: String,
        /// The part.
        repository: String,
    },
    /// A repository's name is too long.
    #[error("`{text}` is not an image name: its repository is longer than {LONGEST_REPOSITORY} characters")]
    TooLong {
        /// The whole.
        text: String,
    },
    /// No host and port.
    #[error("`{text}` is not an image name: `{registry}` is not a host with an optional port")]
    Registry {
        /// The whole.
        text: String,
        /// The part.
        registry: String,
    },
    /// Not a tag.
    #[error(
        "`{text}` is not an image name: tag `{tag}` must be up to {LONGEST_TAG} letters, digits, `_`, `.` and `-`, and \
         not begin with `.` or `-`"
    )]
    Tag {
        /// The whole.
        text: String,
        /// The part.
        tag: String,
    },
    /// Not a digest.
    #[error("`{text}` is not an image name")]
    Digest {
        /// The whole.
        text: String,
        /// What is wrong with the digest.
        #[source]
        source: DigestError,
    },
    /// User and password, or a token, in front of the registry.
    #[error(
        "`…@{text}` is not an image name: what stands before `@` looks like credentials, which are read from Docker's \
         config.json"
    )]
    Credentials {
        /// What stands behind them.
        text: String,
    },
    /// 64 hexadecimal digits: Docker would take them for an image's id.
    #[error("`{text}` is not an image name: it looks like an image id")]
    Id {
        /// The whole.
        text: String,
    },
    /// `docker://name` and the like.
    #[error(
        "`{text}` is not an image name: expected `[registry/]repository[:tag][@digest]` without `{scheme}://`"
    )]
    Scheme {
        /// The whole.
        text: String,
        /// What stands in front.
        scheme: String,
    },
    /// A repository was wanted, without tag or digest.
    #[error("`{text}` is not a repository: it has a tag or digest")]
    NotBare {
        /// The whole.
        text: String,
    },
}

impl Reference {
    /// Where the image is, for instance `docker.io` or `localhost:5000`.
    #[must_use]
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// Its name there, for instance `library/busybox`.
    #[must_use]
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// Its tag. `latest` where neither tag nor digest was written.
    #[must_use]
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// The digest of its manifest or index.
    #[must_use]
    pub fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// What the registry is asked for: the digest, else the tag.
    #[must_use]
    pub fn identifier(&self) -> String {
        match (&self.digest, &self.tag) {
            (Some(digest), _) => digest.to_string(),
            (None, tag) => tag.as_deref().unwrap_or(DEFAULT_TAG).to_owned(),
        }
    }

    /// Host and port that requests go to: Docker Hub's registry has another name than its images.
    #[must_use]
    pub fn registry_host(&self) -> &str {
        if self.registry == DOCKER_HUB { "registry-1.docker.io" } else { &self.registry }
    }

    /// `registry/repository`, complete.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}/{}", self.registry, self.repository)
    }

    /// The short form that Docker shows: without `docker.io/` and `library/`, where that is the same image.
    #[must_use]
    pub fn familiar(&self) -> String {
        let text = self.to_string();
        let Some(short) = text.strip_prefix("docker.io/") else { return text };
        let short = match short.strip_prefix("library/") {
            // `library/a/b` is not `a/b`.
            Some(official) if !self.repository["library/".len()..].contains('/') => official,
            _ => short,
        };
        // `docker.io/a.b/c` is not `a.b/c`.
        if short.parse().as_ref() == Ok(self) { short.to_owned() } else { text }
    }

    /// The same repository under another tag, without digest.
    ///
    /// # Errors
    /// [`ReferenceError::Tag`].
    pub fn with_tag(&self, tag: &str) -> Result<Self, ReferenceError> {
        check_tag(tag, tag)?;
        Ok(Self { tag: Some(tag.to_owned()), digest: None, ..self.clone() })
    }

    /// The same with a digest; a tag stays.
    #[must_use]
    pub fn with_digest(&self, digest: Digest) -> Self {
        Self { digest: Some(digest), ..self.clone() }
    }

    /// The same without digest; `latest` where there is no tag.
    #[must_use]
    pub fn without_digest(&self) -> Self {
        let tag = self.tag.clone().or_else(|| Some(DEFAULT_TAG.to_owned()));
        Self { tag, digest: None, ..self.clone() }
    }

    /// The same without tag, where there is a digest to go by.
    #[must_use]
    pub fn without_tag(&self) -> Self {
        Self { tag: self.tag.clone().filter(|_| self.digest.is_none()), ..self.clone() }
    }

    /// Reads `[registry/]repository`; the result has the tag `latest`.
    ///
    /// # Errors
    /// [`ReferenceError`], also when there is a tag or digest.
    pub fn parse_repository(text: &str) -> Result<Self, ReferenceError> {
        let reference: Self = text.parse()?;
        let bare = !text.contains('@') && split_tag(text).is_none();
        if bare { Ok(reference) } else { Err(ReferenceError::NotBare { text: shown(text) }) }
    }
}

impl FromStr for Reference {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        if text.is_empty() {
            return Err(ReferenceError::Empty);
        }
        if let Some((scheme, _)) = text.split_once("://") {
            return Err(ReferenceError::Scheme { text: shown(text), scheme: shown(scheme) });
        }
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => {
                let error = |source| match behind_credentials(text) {
                    Some(behind) => ReferenceError::Credentials { text: shown(behind) },
                    None => ReferenceError::Digest { text: shown(text), source },
                };
                (rest, Some(digest.parse().map_err(error)?))
            }
            None => (text, None),
        };
        let (name, tag) = split_tag(rest).map_or((rest, None), |(name, tag)| (name, Some(tag)));
        if let Some(tag) = tag {
            check_tag(text, tag)?;
        }
        let (registry, repository) = split_registry(name);
        if digest.is_none() && tag.is_none() && is_id(name) {
            return Err(ReferenceError::Id { text: shown(text) });
        }
        check_registry(text, registry)?;
        check_repository(text, repository)?;
        let official = registry == DOCKER_HUB && !repository.contains('/');
        let repository = if official { format!("library/{repository}") } else { repository.to_owned() };
        let tag = tag.or((digest.is_none()).then_some(DEFAULT_TAG)).map(str::to_owned);
        Ok(Self { registry: registry.to_owned(), repository, tag, digest })
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

/// What stands behind what may be a user's name and password, or a token: of those nothing is ever shown. A digest is no
/// host, and has no slash.
fn behind_credentials(text: &str) -> Option<&str> {
    let (user, behind) = text.rsplit_once('@')?;
    if behind.starts_with("sha") && !behind.contains('/') {
        return behind_credentials(user);
    }
    (user.contains(':') || behind.contains('/')).then_some(behind)
}

/// Splits `name:tag`; a colon before the last slash is that of a port.
fn split_tag(text: &str) -> Option<(&str, &str)> {
    let (name, tag) = text.rsplit_once(':')?;
    (!tag.contains('/')).then_some((name, tag))
}

/// Docker's rule: what stands before the first slash is a registry when it could not be part of a repository's name,
/// or is `localhost`.
fn split_registry(name: &str) -> (&str, &str) {
    match name.split_once('/') {
        Some((OLD_DOCKER_HUB | DOCKER_HUB, rest)) => (DOCKER_HUB, rest),
        Some((first, rest)) => {
            let registry =
                first == "localhost" || first.contains(['.', ':']) || first.chars().any(char::is_uppercase);
            if registry { (first, rest) } else { (DOCKER_HUB, name) }
        }
        None => (DOCKER_HUB, name),
    }
}

fn check_registry(text: &str, registry: &str) -> Result<(), ReferenceError> {
    let error = || ReferenceError::Registry { text: shown(text), registry: shown(registry) };
    let (host, port) = match registry.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']').ok_or_else(error)?;
            address.parse::<std::net::Ipv6Addr>().map_err(|_| error())?;
            (None, if port.is_empty() { None } else { Some(port.strip_prefix(':').ok_or_else(error)?) })
        }
        None => match registry.split_once(':') {
            Some((host, port)) => (Some(host), Some(port)),
            None => (Some(registry), None),
        },
    };
    let label = |label: &str| {
        !label.is_empty()
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let host_fits = host.is_none_or(|host| host.len() <= 253 && host.split('.').all(label));
    let port_fits = port.is_none_or(|port| {
        port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|number| number > 0)
    });
    if host_fits && port_fits { Ok(()) } else { Err(error()) }
}

fn check_repository(text: &str, repository: &str) -> Result<(), ReferenceError> {
    if repository.len() > LONGEST_REPOSITORY {
        return Err(ReferenceError::TooLong { text: shown(text) });
    }
    if repository.split('/').all(is_component) {
        return Ok(());
    }
    let (text, lower) = (shown(text), repository.to_lowercase());
    let repository = shown(repository);
    Err(if lower.split('/').all(is_component) {
        ReferenceError::UpperCase { text, repository }
    } else {
        ReferenceError::Repository { text, repository }
    })
}

/// Lower-case letters and digits, separated by `.`, `_`, `__` or any number of `-`.
fn is_component(text: &str) -> bool {
    let mut separator = String::new();
    let mut any = false;
    for character in text.chars() {
        match character {
            'a'..='z' | '0'..='9' => {
                let fits = matches!(separator.as_str(), "" | "." | "_" | "__")
                    || separator.bytes().all(|b| b == b'-');
                if !fits || (!any && !separator.is_empty()) {
                    return false;
                }
                separator.clear();
                any = true;
            }
            '.' | '_' | '-' => separator.push(character),
            _ => return false,
        }
    }
    any && separator.is_empty()
}

fn check_tag(text: &str, tag: &str) -> Result<(), ReferenceError> {
    let valid = (1..=LONGEST_TAG).contains(&tag.len())
        && !tag.starts_with(['.', '-'])
        && tag.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'));
    if valid { Ok(()) } else { Err(ReferenceError::Tag { text: shown(text), tag: shown(tag) }) }
}

fn is_id(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn names_are_completed_as_docker_does() {
        let pinned = format!("busybox@{DIGEST}");
        let both = format!("localhost:5000/a/b:1@{DIGEST}");
        let pinned_full = format!("docker.io/library/busybox@{DIGEST}");
        for (text, canonical, familiar) in [
            ("busybox", "docker.io/library/busybox:latest", "busybox:latest"),
            ("a", "docker.io/library/a:latest", "a:latest"),
            ("me/app:1", "docker.io/me/app:1", "me/app:1"),
            ("docker.io/busybox", "docker.io/library/busybox:latest", "busybox:latest"),
            ("index.docker.io/busybox:2", "docker.io/library/busybox:2", "busybox:2"),
            ("library/busybox", "docker.io/library/busybox:latest", "busybox:latest"),
            ("library/a/b", "docker.io/library/a/b:latest", "library/a/b:latest"),
            ("localhost/x", "localhost/x:latest", "localhost/x:latest"),
            ("localhost:5000/x", "localhost:5000/x:latest", "localhost:5000/x:latest"),
            ("localhost:5000", "docker.io/library/localhost:5000", "localhost:5000"),
            ("quay.io/a/b/c:v1_x", "quay.io/a/b/c:v1_x", "quay.io/a/b/c:v1_x"),
            ("[::1]:5000/x:1", "[::1]:5000/x:1", "[::1]:5000/x:1"),
            ("[fe80::1]/x", "[fe80::1]/x:latest", "[fe80::1]/x:latest"),
            ("HOST/x", "HOST/x:latest", "HOST/x:latest"),
            ("docker.io/a.b/c", "docker.io/a.b/c:latest", "docker.io/a.b/c:latest"),
            ("docker.io/localhost/c", "docker.io/localhost/c:latest", "docker.io/localhost/c:latest"),
            ("m/a__b---c.d_e/f", "docker.io/m/a__b---c.d_e/f:latest", "m/a__b---c.d_e/f:latest"),
            (&pinned, &pinned_full, &pinned),
            (&both, &both, &both),
        ] {
            let reference: Reference = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(reference.to_string(), canonical, "{text}");
            assert_eq!(reference.familiar(), familiar, "{text}");
            assert_eq!(canonical.parse::<Reference>().unwrap(), reference, "{text}");
            assert_eq!(familiar.parse::<Reference>().unwrap(), reference, "{text}");
        }
    }

    #[test]
    fn what_is_no_reference_is_refused_with_the_reason() {
        let long = "a/".repeat(127) + "ab";
        let tag = format!("x:{}", "t".repeat(129));
        for (text, expected) in [
            ("", "is empty"),
            ("BusyBox", "repository `BusyBox` must be lower case"),
            ("quay.io/A", "repository `A` must be lower case"),
            ("a//b", "repository `a//b` may have"),
            ("/a", "repository `/a` may have"),
            ("a/", "repository `a/` may have"),
            ("a..b", "may have"),
            ("-a", "may have"),
            ("a-", "may have"),
            ("a_.b", "may have"),
            ("a b", "may have"),
            ("ä", "may have"),
            ("../../etc", "is not a host"),
            ("a/../b", "may have"),
            ("x:", "tag `` must be"),
            ("x:.a", "tag `.a` must be"),
            ("x:a/b", "`x:a` is not a host"),
            ("x:ä", "tag `ä` must be"),
            (&tag, "must be up to 128"),
            (&long, "longer than 255"),
            ("x@sha256:00", "is not an image name"),
            ("x@", "is not an image name"),
            ("x@md5:d41d8cd98f00b204e9800998ecf8427e", "is not an image name"),
            ("host:99999/x", "`host:99999` is not a host"),
            ("host:0/x", "is not a host"),
            ("host:/x", "is not a host"),
            ("-h.io/x", "is not a host"),
            ("[::1/x", "is not a host"),
            ("[zz]:1/x", "is not a host"),
            ("docker://busybox", "without `docker://`"),
            (&DIGEST[7..], "looks like an image id"),
            ("a\nb", "`a\\nb` is not an image name"),
        ] {
            let error = text.parse::<Reference>().expect_err(text).to_string();
            assert!(error.contains(expected), "{error:?} does not say {expected:?}");
        }
    }

    #[test]
    fn credentials_in_a_name_are_refused_and_not_shown() {
        for text in [
            "me:secret@localhost:5000/x:1",
            "secret@h.example/x",
            "me:se@cret@h/x",
            "me:secret@localhost:5000",
            &format!("me:secret@localhost:5000/x@{DIGEST}"),
        ] {
            let error = text.parse::<Reference>().unwrap_err();
            assert!(!format!("{error:?} {error}").contains("cret"), "{error:?}");
            assert!(error.to_string().contains("config.json"), "{error}");
        }
        for text in ["x@sha256:1", "x:1@sha256:1", "x@latest"] {
            assert!(text.parse::<Reference>().unwrap_err().to_string().contains(text), "{text}");
        }
    }

    #[test]
    fn tag_and_digest_are_both_kept() {
        let digest: Digest = DIGEST.parse().unwrap();
        let reference: Reference = "x:1".parse().unwrap();
        let pinned = reference.with_digest(digest.clone());
        assert_eq!((pinned.tag(), pinned.digest()), (Some("1"), Some(&digest)));
        assert_eq!((reference.identifier(), pinned.identifier()), ("1".to_owned(), DIGEST.to_owned()));
        assert_eq!(pinned.without_tag().to_string(), format!("docker.io/library/x@{DIGEST}"));
        assert_eq!(reference.without_tag(), reference);
        assert_eq!(pinned.with_tag("2").unwrap().to_string(), "docker.io/library/x:2");
        assert!(reference.with_tag("a b").is_err());
        assert_eq!(reference.registry_host(), "registry-1.docker.io");
        assert_eq!("localhost:1/x".parse::<Reference>().unwrap().registry_host(), "localhost:1");
    }

    #[test]
    fn a_repository_has_neither_tag_nor_digest() {
        assert_eq!(
            Reference::parse_repository("localhost:5000/cache").unwrap().name(),
            "localhost:5000/cache"
        );
        assert!(Reference::parse_repository("localhost:5000/cache:1").is_err());
        assert!(Reference::parse_repository(&format!("cache@{DIGEST}")).is_err());
    }

    #[test]
    fn any_text_is_parsed_or_refused() {
        use proptest::prelude::*;
        proptest!(|(text in "[a-zA-Z0-9.:/@_\\[\\]-]{0,40}|\\PC{0,20}")| {
            if let Ok(reference) = text.parse::<Reference>() {
                prop_assert_eq!(&reference.to_string().parse::<Reference>().unwrap(), &reference);
                prop_assert_eq!(&reference.familiar().parse::<Reference>().unwrap(), &reference);
            }
        });
    }
}
