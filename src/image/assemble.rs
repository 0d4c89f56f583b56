//! Indexes that are made of images which there are already.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::descriptor::Descriptor;
use super::digest::Digest;
use super::document::{self, DocumentError, DocumentLimits, Kind, check_size};
use super::encoding::TypeNames;
use super::index::{Index, MOST_IMAGES};
use super::json::{self, Encoded};
use super::platform::{Platform, PlatformFields};

/// An image of an index, on its way there.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// What the index will have, with its platform.
    pub descriptor: Descriptor,
    /// How the user calls it, which all entries of an index share.
    pub source: Arc<str>,
}

/// What an index has so far, counted while its images are still looked for: none of those that are too many is held.
#[derive(Debug, Default)]
pub struct Tally(AtomicUsize);

/// More than an index can have.
#[derive(Debug, thiserror::Error)]
#[error("with it, the index would have more than {MOST_IMAGES} images and attestations")]
pub struct TooMany;

impl Tally {
    /// Counts so many more.
    ///
    /// # Errors
    /// [`TooMany`].
    pub fn add(&self, entries: usize) -> Result<(), TooMany> {
        let before = self.0.fetch_add(entries, Ordering::Relaxed);
        if before.saturating_add(entries) > MOST_IMAGES { Err(TooMany) } else { Ok(()) }
    }
}

/// Why images make no index.
#[derive(Debug, thiserror::Error)]
pub enum AssembleError {
    /// Clients would take the first.
    #[error("{}", twice(.platform, (.first, .first_source), (.second, .second_source)))]
    Twice {
        /// The platform.
        platform: Box<Platform>,
        /// The first image.
        first: Digest,
        /// How the user calls it.
        first_source: String,
        /// The second.
        second: Digest,
        /// How the user calls it.
        second_source: String,
        /// Which of the images the second is.
        position: usize,
    },
    /// Nobody says what it is for.
    #[error("nothing says what {digest} of `{source_name}` is for: its config names no {missing}")]
    NoPlatform {
        /// The image.
        digest: Digest,
        /// How the user calls it.
        source_name: String,
        /// What is not known.
        missing: &'static str,
        /// Which of the images it is.
        position: usize,
    },
    /// More than an index can have.
    #[error(transparent)]
    Size(#[from] DocumentError),
    /// It cannot be JSON.
    #[error("cannot encode the index")]
    Encode(#[from] serde_json::Error),
}

/// What is said of two images, each with how the user calls it.
fn twice(platform: &Platform, one: (&Digest, &str), other: (&Digest, &str)) -> String {
    let ((first, first_source), (second, second_source)) = (one, other);
    if first != second {
        return format!(
            "two images are for `{platform}`: {first} of `{first_source}`, and {second} of `{second_source}`"
        );
    }
    if first_source == second_source {
        return format!("`{first_source}` is there twice, with the same image for `{platform}`");
    }
    format!("`{first_source}` and `{second_source}` are the same image for `{platform}`: {first}")
}

/// What an index is to say of an image: what is `wanted`, and what is missing there from `own`, which its config says.
///
/// As under manifest-tool. But what belongs to another machine than the wanted one is left where it is: a config that is
/// wrong about its machine says nothing about the variant either. `amd64/v1` becomes `amd64`, which all clients find.
#[must_use]
pub fn completed(wanted: &PlatformFields, own: &PlatformFields) -> PlatformFields {
    let filled = |wanted: &str, own: &str| if wanted.is_empty() { own.to_owned() } else { wanted.to_owned() };
    let os = filled(&wanted.os, &own.os);
    let architecture = filled(&wanted.architecture, &own.architecture);
    let (meant, said) =
        (Platform::new(&os, &architecture, None).normalise(), Platform::from(own).normalise());
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let own_variant = given(&own.variant).filter(|_| meant.architecture == said.architecture);
    let own_version = given(&own.os_version).filter(|_| meant.os == said.os);
    let own_features = own.os_features.clone().filter(|_| meant.os == said.os);
    let features = wanted.os_features.clone().filter(|features| !features.is_empty()).or(own_features);
    let variant = given(&wanted.variant).or(own_variant);
    PlatformFields {
        variant: variant.filter(|variant| architecture != "amd64" || variant != "v1"),
        os,
        architecture,
        os_version: given(&wanted.os_version).or(own_version),
        os_features: features.filter(|features| !features.is_empty()),
    }
}

/// Whether two descriptions of an image speak of different machines, as far as both say anything.
#[must_use]
pub fn contradict(one: &PlatformFields, other: &PlatformFields) -> bool {
    let differ = |one: &str, other: &str| !one.is_empty() && !other.is_empty() && one != other;
    let (first, second) = (Platform::from(one).normalise(), Platform::from(other).normalise());
    let variants = one.variant.is_some() && other.variant.is_some() && first.variant != second.variant;
    let same = first.architecture == second.architecture;
    differ(&first.os, &second.os) || differ(&first.architecture, &second.architecture) || (same && variants)
}

/// An index of these images, in their order, and of attestations behind them.
///
/// # Errors
/// [`AssembleError`], also where two images are for the same platform.
pub fn assemble(
    types: TypeNames,
    images: Vec<Entry>,
    attestations: Vec<Descriptor>,
    annotations: &BTreeMap<String, String>,
) -> Result<Encoded, AssembleError> {
    let mut known: BTreeMap<Platform, usize> = BTreeMap::new();
    for (position, Entry { descriptor, source }) in images.iter().enumerate() {
        let fields = descriptor.platform.clone().unwrap_or_default();
        let missing = match (fields.os.is_empty(), fields.architecture.is_empty()) {
            (true, true) => Some("operating system and no architecture"),
            (true, false) => Some("operating system"),
            (false, true) => Some("architecture"),
            (false, false) => None,
        };
        if let Some(missing) = missing {
            let (digest, source_name) = (descriptor.digest.clone(), source.to_string());
            return Err(AssembleError::NoPlatform { digest, source_name, missing, position });
        }
        let platform = Platform::from(&fields).normalise();
        if let Some(first) = known.insert(platform.clone(), position) {
            let first = &images[first];
            return Err(AssembleError::Twice {
                platform: Box::new(platform),
                first: first.descriptor.digest.clone(),
                first_source: first.source.to_string(),
                second: descriptor.digest.clone(),
                second_source: source.to_string(),
                position,
            });
        }
    }
    let manifests: Vec<Descriptor> =
        images.into_iter().map(|entry| entry.descriptor).chain(attestations).collect();
    document::check_count("images", manifests.len(), MOST_IMAGES)?;
    let index = Index::new(types, manifests, annotations.clone());
    let encoded = json::encode(&index)?;
    // Registries take no more, and nobody could read it.
    check_size(Kind::Index, encoded.bytes.len() as u64, &DocumentLimits::default())?;
    Ok(encoded)
}

#[cfg(test)]
mod tests {
    use super::super::descriptor::media_type;
    use super::*;

    /// `os arch variant version features`, `-` for what is not there.
    fn fields(text: &str) -> PlatformFields {
        let words: Vec<Option<String>> =
            text.split(' ').map(|word| (word != "-").then(|| word.to_owned())).collect();
        let word = |at: usize| words.get(at).cloned().flatten();
        PlatformFields {
            os: word(0).unwrap_or_default(),
            architecture: word(1).unwrap_or_default(),
            variant: word(2),
            os_version: word(3),
            os_features: word(4).map(|features| features.split('+').map(str::to_owned).collect()),
        }
    }

    #[test]
    fn what_is_missing_comes_from_the_config_of_the_same_machine() {
        for (wanted, own, expected) in [
            ("- -", "linux arm v7", "linux arm v7"),
            ("linux arm", "linux arm v7", "linux arm v7"),
            ("linux arm v6", "linux arm v7", "linux arm v6"),
            ("linux -", "linux arm v7", "linux arm v7"),
            ("- arm", "linux arm v7", "linux arm v7"),
            ("linux arm", "linux arm", "linux arm"),
            ("linux arm64", "linux arm64 v8", "linux arm64 v8"),
            ("linux amd64", "linux arm v7", "linux amd64"),
            ("linux amd64 v3", "linux amd64", "linux amd64 v3"),
            ("linux amd64 v1", "linux amd64", "linux amd64"),
            ("- -", "linux amd64 v1", "linux amd64"),
            ("windows amd64", "windows amd64 - 10.0.20348.1 win32k", "windows amd64 - 10.0.20348.1 win32k"),
            ("windows amd64 - 10.0.1.1", "windows amd64 - 10.0.20348.1", "windows amd64 - 10.0.1.1"),
            ("linux amd64", "windows amd64 - 10.0.20348.1 win32k", "linux amd64"),
            ("- -", "- -", "- -"),
        ] {
            assert_eq!(completed(&fields(wanted), &fields(own)), fields(expected), "{wanted} of {own}");
        }
    }

    #[test]
    fn contradictions_are_between_what_both_say() {
        for (one, other, expected) in [
            ("linux arm", "linux arm v7", false),
            ("linux arm v6", "linux arm v7", true),
            ("linux arm64", "linux arm64 v8", false),
            ("linux amd64", "linux arm", true),
            ("linux amd64", "- -", false),
            ("windows amd64", "linux amd64", true),
        ] {
            assert_eq!(contradict(&fields(one), &fields(other)), expected, "{one} and {other}");
        }
    }

    fn entry(source: &str, platform: &str) -> Entry {
        let digest = Digest::of(source.as_bytes());
        let platform = Some(fields(platform));
        let descriptor = Descriptor { platform, ..Descriptor::new(media_type::OCI_MANIFEST, digest, 7) };
        Entry { descriptor, source: source.into() }
    }

    fn index(images: &[(&str, &str)]) -> Result<Encoded, AssembleError> {
        let images = images.iter().map(|(source, platform)| entry(source, platform)).collect();
        let attestation = entry("attestation", "unknown unknown").descriptor;
        assemble(TypeNames::Docker, images, vec![attestation], &BTreeMap::new())
    }

    #[test]
    fn images_keep_their_order_and_attestations_come_last() {
        let index = index(&[("b", "linux arm v7"), ("a", "linux amd64")]).unwrap();
        let value: serde_json::Value = serde_json::from_slice(&index.bytes).unwrap();
        let order: Vec<_> = value["manifests"].as_array().unwrap().iter().map(|m| &m["platform"]).collect();
        assert_eq!(order[0]["variant"], "v7");
        assert_eq!(order[1]["architecture"], "amd64");
        assert_eq!(order[2]["os"], "unknown");
        assert_eq!(value["mediaType"], media_type::DOCKER_LIST);
        assert_eq!(value.get("annotations"), None);
    }

    #[test]
    fn one_platform_has_one_image_however_it_is_spelled() {
        for (one, other) in [
            ("linux amd64", "linux amd64"),
            ("linux arm", "linux arm v7"),
            ("linux arm64", "linux arm64 v8"),
            ("windows amd64 - 1.2.3 a+b", "windows amd64 - 1.2.3 b+a"),
        ] {
            let error = index(&[("first", one), ("between", "linux s390x"), ("second", other)]).unwrap_err();
            let AssembleError::Twice { position, .. } = &error else { panic!("{error}") };
            assert_eq!(*position, 2);
            for part in ["first", "second", Digest::of(b"first").hex(), Digest::of(b"second").hex()] {
                assert!(error.to_string().contains(part), "{error}");
            }
        }
        assert!(index(&[("a", "windows amd64 - 1.2.3"), ("b", "windows amd64 - 1.2.4")]).is_ok());
        assert!(index(&[("a", "linux arm v6"), ("b", "linux arm v7")]).is_ok());
    }

    #[test]
    fn what_is_too_much_is_seen_before_it_is_all_there() {
        let tally = Tally::default();
        assert!(tally.add(MOST_IMAGES - 1).is_ok() && tally.add(1).is_ok());
        assert!(tally.add(1).is_err() && tally.add(0).is_err());
    }

    #[test]
    fn an_image_for_nothing_in_particular_is_refused() {
        for (platform, missing) in [
            ("- -", "no operating system and no architecture"),
            ("linux -", "no architecture"),
            ("- amd64", "no operating system"),
        ] {
            let error = index(&[("x", platform)]).unwrap_err().to_string();
            assert!(error.ends_with(missing), "{error}");
        }
    }
}
