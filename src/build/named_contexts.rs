//! Named build contexts: what the user puts in the place of stages and images of a Dockerfile.

use std::path::PathBuf;

use crate::image::digest::Digest;
use crate::image::platform::{Platform, PlatformError, Requested};
use crate::image::reference::{Reference, ReferenceError};

/// Names that mean something else in every Dockerfile.
const RESERVED: [&str; 2] = ["scratch", "context"];

/// Why a name cannot be one of a context.
#[derive(Debug, thiserror::Error)]
pub enum ContextNameError {
    /// Nothing stands in front of `=`.
    #[error("a build context without a name")]
    Empty,
    /// `scratch` or `context`.
    #[error("`{0}` cannot be the name of a build context: it means something else in every Dockerfile")]
    Reserved(String),
    /// It could never be asked for.
    #[error("`{name}` cannot be the name of a build context")]
    Reference {
        /// As given.
        name: String,
        /// Why not.
        #[source]
        source: ReferenceError,
    },
    /// Behind `::`.
    #[error("`{name}` cannot be the name of a build context")]
    Platform {
        /// As given.
        name: String,
        /// What is wrong with the platform.
        #[source]
        source: PlatformError,
    },
}

/// What a name stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContextValue {
    /// Files, for instance of a directory: [`super::services::Services::contexts`] has those that a plan uses.
    Files,
    /// Nothing at all.
    Scratch,
    /// An image of a registry.
    Image(Reference),
    /// An image of an OCI layout.
    Layout(LayoutImageName),
    /// A stage of the same Dockerfile.
    Stage(String),
}

/// An image of an OCI layout, by name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LayoutImageName {
    /// The layout's directory.
    pub path: PathBuf,
    /// Its tag there; without it the one that is called `latest`, or the only one.
    pub tag: Option<String>,
    /// The digest of its manifest or index.
    pub digest: Option<Digest>,
}

/// A context with its name.
#[derive(Debug, Clone)]
pub struct NamedContext {
    /// The name as given, with its platform.
    pub name: String,
    /// What it stands for.
    pub value: ContextValue,
    reference: Reference,
    /// Normalised; none where it is for all.
    platform: Option<Platform>,
}

impl NamedContext {
    /// The name as that of an image.
    #[must_use]
    pub fn reference(&self) -> &Reference {
        &self.reference
    }
}

/// A context that has a name now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Added {
    /// Its number.
    pub number: usize,
    /// How the name was spelled for which it stands in the place of another context, which had this number before.
    pub replaced: Option<String>,
}

/// All contexts that have names, numbered from 0 in the order in which they were added.
#[derive(Debug, Clone, Default)]
pub struct NamedContexts(Vec<NamedContext>);

impl NamedContexts {
    /// Adds `value` under `name`, which is read like the name of an image (`alpine` is `docker.io/library/alpine:latest`);
    /// behind `::` it may have the only platform that the context is for, `host` being this machine's. Of two with one name
    /// the last counts, as for docker.
    ///
    /// # Errors
    /// [`ContextNameError`].
    pub fn add(
        &mut self,
        name: &str,
        value: ContextValue,
        host: &Platform,
    ) -> Result<Added, ContextNameError> {
        let (image, platform) = match name.split_once("::") {
            Some((image, platform)) => (image, Some(platform)),
            None => (name, None),
        };
        if image.is_empty() {
            return Err(ContextNameError::Empty);
        }
        if is_reserved(image) {
            return Err(ContextNameError::Reserved(image.to_owned()));
        }
        let reference: Reference =
            image.parse().map_err(|source| ContextNameError::Reference { name: name.to_owned(), source })?;
        let platform = platform
            .map(|platform| Requested::parse(platform, host))
            .transpose()
            .map_err(|source| ContextNameError::Platform { name: name.to_owned(), source })?
            .map(|requested| requested.normalised);
        let same = |other: &NamedContext| other.reference == reference && other.platform == platform;
        let known = self.0.iter().position(same);
        let context = NamedContext { name: name.to_owned(), value, reference, platform };
        let Some(number) = known else {
            self.0.push(context);
            return Ok(Added { number: self.0.len() - 1, replaced: None });
        };
        let before = std::mem::replace(&mut self.0[number], context);
        Ok(Added { number, replaced: Some(before.name) })
    }

    /// The contexts by number.
    #[must_use]
    pub fn all(&self) -> &[NamedContext] {
        &self.0
    }

    /// The number of the context that `name` means where files are for `platform`, normalised. One that is for this
    /// platform alone comes before one for all.
    pub(super) fn find(&self, name: &str, platform: &Platform) -> Option<usize> {
        if self.0.is_empty() || is_reserved(name) {
            return None;
        }
        let reference: Reference = name.parse().ok()?;
        let of = |wanted: Option<&Platform>| {
            self.0
                .iter()
                .position(|context| context.reference == reference && context.platform.as_ref() == wanted)
        };
        of(Some(platform)).or_else(|| of(None))
    }
}

fn is_reserved(name: &str) -> bool {
    RESERVED.iter().any(|reserved| name.eq_ignore_ascii_case(reserved))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> Platform {
        Platform::new("linux", "amd64", None)
    }

    fn contexts(names: &[&str]) -> Result<NamedContexts, String> {
        let mut contexts = NamedContexts::default();
        for name in names {
            contexts.add(name, ContextValue::Files, &host()).map_err(|error| error.to_string())?;
        }
        Ok(contexts)
    }

    #[test]
    fn names_are_those_of_images() {
        let known = contexts(&["alpine:latest", "src", "r.example/a/b:1", "busybox::linux/arm64", "busybox"]);
        let known = known.unwrap();
        let arm64 = Platform::new("linux", "arm64", Some("v8")).normalise();
        for (name, platform, number) in [
            ("alpine", host(), Some(0)),
            ("docker.io/library/alpine", host(), Some(0)),
            ("docker.io/library/alpine:latest", arm64.clone(), Some(0)),
            ("alpine:3", host(), None),
            ("src", host(), Some(1)),
            ("r.example/a/b:1", host(), Some(2)),
            ("r.example/a/b", host(), None),
            ("busybox", arm64, Some(3)),
            ("busybox", host(), Some(4)),
            ("Build", host(), None),
            ("", host(), None),
            ("scratch", host(), None),
        ] {
            assert_eq!(known.find(name, &platform), number, "{name} {platform}");
        }
    }

    #[test]
    fn what_cannot_be_named_is_said() {
        for (names, message) in [
            (&[""][..], "a build context without a name"),
            (&["::linux/arm64"], "a build context without a name"),
            (&["Scratch"], "`Scratch` cannot be the name"),
            (&["context"], "`context` cannot be the name"),
            (&["context::linux/arm64"], "`context` cannot be the name"),
            (&["A"], "`A` cannot be the name of a build context"),
            (&["a::linux/"], "`a::linux/` cannot be the name of a build context"),
        ] {
            let error = contexts(names).unwrap_err();
            assert!(error.contains(message), "{names:?}: {error}");
        }
    }

    #[test]
    fn of_two_with_one_name_the_last_counts() {
        let mut known = contexts(&["a", "a::linux/arm64", "a:1"]).unwrap();
        assert_eq!(known.all().len(), 3);
        for (name, number, before) in
            [("docker.io/library/a:latest", 0, "a"), ("a::linux/arm64/v8", 1, "a::linux/arm64")]
        {
            let added = known.add(name, ContextValue::Scratch, &host()).unwrap();
            assert_eq!(added, Added { number, replaced: Some(before.to_owned()) }, "{name}");
            assert_eq!((known.all().len(), &known.all()[number].value), (3, &ContextValue::Scratch));
        }
    }
}
