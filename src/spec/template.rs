//! Names of images made of a template and platforms.

use std::collections::BTreeMap;

use super::Member;
use crate::image::index::MOST_IMAGES;
use crate::image::platform::{Platform, PlatformFields, WrittenError, check_written};
use crate::image::reference::{Reference, ReferenceError};
use crate::image::shown;

/// A template for the names of images: the first `ARCH`, `OS` and `VARIANT` in it stand for parts of a platform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template(String);

/// A list of platforms that is wrong, or that a template makes no names of.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// Not `OS/ARCH` or `OS/ARCH/VARIANT`.
    #[error("`{0}` is no platform: expected `OS/ARCH` or `OS/ARCH/VARIANT`")]
    Parts(String),
    /// A word in it.
    #[error("`{platform}`")]
    Platform {
        /// The platform.
        platform: String,
        /// What is wrong.
        #[source]
        source: WrittenError,
    },
    /// What comes out is no name.
    #[error("for `{platform}`")]
    Name {
        /// The platform.
        platform: String,
        /// What is wrong.
        #[source]
        source: ReferenceError,
    },
    /// An index would say of one image that it is for several machines.
    #[error("`{name}` would be the image for {first} and for {second}, too")]
    Same {
        /// The image.
        name: String,
        /// The platform.
        first: String,
        /// The other.
        second: String,
    },
    /// A platform that is listed twice.
    #[error("`{0}` is there twice")]
    Twice(String),
    /// More than an index has images.
    #[error("there are more than {MOST_IMAGES} platforms")]
    TooMany,
}

/// Reads platforms as manifest-tool does: all parts are written.
///
/// # Errors
/// [`TemplateError`] for the first that is none.
pub fn platforms(texts: &[String]) -> Result<Vec<PlatformFields>, TemplateError> {
    let read = |text: &String| {
        let parts: Vec<&str> = text.splitn(4, '/').collect();
        let (os, architecture, variant) = match parts[..] {
            [os, architecture] => (os, architecture, None),
            [os, architecture, variant] => (os, architecture, Some(variant)),
            _ => return Err(TemplateError::Parts(shown(text))),
        };
        if os.is_empty() || architecture.is_empty() || variant.is_some_and(str::is_empty) {
            return Err(TemplateError::Parts(shown(text)));
        }
        let platform = PlatformFields {
            os: os.to_owned(),
            architecture: architecture.to_owned(),
            variant: variant.map(str::to_owned),
            ..PlatformFields::default()
        };
        check_written(&platform)
            .map_err(|source| TemplateError::Platform { platform: shown(text), source })?;
        Ok(platform)
    };
    if texts.len() > MOST_IMAGES {
        return Err(TemplateError::TooMany);
    }
    texts.iter().map(read).collect()
}

impl Template {
    /// A template of this text.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// The name of the image for a platform, as text.
    #[must_use]
    pub fn fill(&self, platform: &PlatformFields) -> String {
        let variant = platform.variant.as_deref().unwrap_or_default();
        // In manifest-tool's order.
        [("ARCH", platform.architecture.as_str()), ("OS", &platform.os), ("VARIANT", variant)]
            .into_iter()
            .fold(self.0.clone(), |text, (word, value)| text.replacen(word, value, 1))
    }

    /// Whether a separator is left over where `platform` has no variant, as in `NAME:OS-ARCH-VARIANT`.
    #[must_use]
    pub fn leaves_separator(&self, platform: &PlatformFields) -> bool {
        let before = self.0.find("VARIANT").map(|at| &self.0[..at]);
        platform.variant.is_none() && before.is_some_and(|before| before.ends_with(['-', '_', '.', '/']))
    }

    /// The image for each platform.
    ///
    /// # Errors
    /// [`TemplateError::Name`], [`TemplateError::Same`] and [`TemplateError::Twice`].
    pub fn members(&self, platforms: Vec<PlatformFields>) -> Result<Vec<Member>, TemplateError> {
        let text = |platform: &PlatformFields| Platform::from(platform).to_string();
        let mut known: BTreeMap<String, String> = BTreeMap::new();
        let mut members = Vec::with_capacity(platforms.len());
        for platform in platforms {
            let image = self
                .fill(&platform)
                .parse::<Reference>()
                .map_err(|source| TemplateError::Name { platform: text(&platform), source })?;
            let second = text(&platform);
            if let Some(first) = known.insert(image.to_string(), second.clone()) {
                if first == second {
                    return Err(TemplateError::Twice(second));
                }
                return Err(TemplateError::Same { name: image.familiar(), first, second });
            }
            members.push(Member { image, platform, place: None });
        }
        Ok(members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(platforms: &[&str]) -> Vec<String> {
        platforms.iter().map(|platform| (*platform).to_owned()).collect()
    }

    #[test]
    fn names_are_made_as_manifest_tool_makes_them() {
        for (template, platform, name) in [
            ("r.io/bar:OS-ARCH", "linux/amd64", "r.io/bar:linux-amd64"),
            ("r.io/ARCH/bar:OS", "linux/arm/v7", "r.io/arm/bar:linux"),
            ("r.io/bar:ARCHVARIANT", "linux/arm/v7", "r.io/bar:armv7"),
            ("r.io/bar:ARCHVARIANT", "linux/amd64", "r.io/bar:amd64"),
            // Only the first of each.
            ("r.io/bar:ARCH-ARCH", "linux/amd64", "r.io/bar:amd64-ARCH"),
            ("r.io/bar:OS-ARCH-VARIANT", "linux/amd64", "r.io/bar:linux-amd64-"),
        ] {
            let platform = platforms(&texts(&[platform])).expect("platform").remove(0);
            assert_eq!(Template::new(template).fill(&platform), name, "{template}");
        }
    }

    #[test]
    fn a_separator_that_is_left_over_is_noticed() {
        let plain = platforms(&texts(&["linux/amd64"])).expect("platform").remove(0);
        let variant = platforms(&texts(&["linux/arm/v7"])).expect("platform").remove(0);
        let template = Template::new("r.io/bar:OS-ARCH-VARIANT");
        assert!(template.leaves_separator(&plain) && !template.leaves_separator(&variant));
        assert!(!Template::new("r.io/bar:ARCHVARIANT").leaves_separator(&plain));
    }

    #[test]
    fn one_image_is_not_said_to_be_for_two_machines() {
        for (template, listed, expected) in [
            (
                "r.io/app:x",
                &["linux/amd64", "linux/arm64"][..],
                "`r.io/app:x` would be the image for linux/amd64 and for linux/arm64, too",
            ),
            (
                "r.io/app:ARCH",
                &["linux/amd64", "linux/arm/v6", "linux/arm/v7"],
                "`r.io/app:arm` would be the image for linux/arm/v6 and for linux/arm/v7, too",
            ),
            ("r.io/app:ARCH", &["linux/amd64", "linux/amd64"], "`linux/amd64` is there twice"),
        ] {
            let platforms = platforms(&texts(listed)).expect("platforms");
            let error = Template::new(template).members(platforms).expect_err(template);
            assert_eq!(error.to_string(), expected);
        }
        let one = platforms(&texts(&["linux/amd64"])).expect("platform");
        assert_eq!(Template::new("r.io/app:x").members(one).expect("one image").len(), 1);
    }

    #[test]
    fn what_is_no_platform_is_refused() {
        for (text, expected) in [
            ("linux", "`linux` is no platform: expected `OS/ARCH` or `OS/ARCH/VARIANT`"),
            ("linux/", "`linux/` is no platform"),
            ("linux/arm/v7/x", "`linux/arm/v7/x` is no platform"),
            ("linux/arm/", "`linux/arm/` is no platform"),
            (
                "linux/aarch64",
                "`linux/aarch64`: `aarch64` is not an architecture in Go's words: write `arm64`",
            ),
            ("linux/amd64/v5", "`linux/amd64/v5`: `v5` is not a variant of amd64: there are v1 to v4"),
        ] {
            let error = platforms(&texts(&[text])).expect_err(text);
            assert!(crate::text::chained(&error).starts_with(expected), "{error}");
        }
        let platforms = platforms(&texts(&["linux/amd64"])).expect("platform");
        let error = Template::new("r.io/Bar:ARCH").members(platforms).expect_err("upper case");
        assert!(
            crate::text::chained(&error)
                .starts_with("for `linux/amd64`: `r.io/Bar:amd64` is not an image name")
        );
    }
}
