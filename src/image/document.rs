//! Strict reading of manifests, indexes and configs from outside.

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Map, Value};

use super::descriptor::{Descriptor, DescriptorError, media_type};
use super::index::{Index, MOST_IMAGES};
use super::manifest::Manifest;
use super::shown;
use crate::limit::Limit;

/// The most layers of an image.
pub const MOST_LAYERS: usize = 10_000;

/// Keys that decide what a document is. Go's decoder ignores their case, so another spelling would be read by some.
const DECISIVE: [&str; 6] = ["schemaVersion", "mediaType", "config", "layers", "manifests", "fsLayers"];

/// How large the documents of an image may be, in bytes. What is reached is in the error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DocumentLimits {
    /// Of a manifest.
    pub manifest: Limit,
    /// Of an index.
    pub index: Limit,
    /// Of a config.
    pub config: Limit,
    /// Of the configs of all bases of a build together: their bytes, or more where values take more memory than text.
    pub bases: Limit,
    /// How deep indexes may lie in an index.
    pub nesting: Limit,
}

impl DocumentLimits {
    /// 4 MiB, as registries have it (OCI distribution-spec, Pushing Manifests).
    pub const MANIFEST: Limit = Limit::new("manifest-bytes", 4 << 20);
    /// 4 MiB.
    pub const INDEX: Limit = Limit::new("index-bytes", 4 << 20);
    /// 8 MiB.
    pub const CONFIG: Limit = Limit::new("config-bytes", 8 << 20);
    /// 8 MiB: those that a build stands on are in memory all at once, several times each.
    pub const BASES: Limit = Limit::new("base-config-bytes", 8 << 20);
    /// 2.
    pub const NESTING: Limit = Limit::new("index-nesting", 2);

    /// For documents that this program made itself.
    pub const OWN: Self = Self {
        manifest: Self::MANIFEST.with(u64::MAX),
        index: Self::INDEX.with(u64::MAX),
        config: Self::CONFIG.with(u64::MAX),
        bases: Self::BASES.with(u64::MAX),
        nesting: Self::NESTING,
    };

    /// That of documents of a kind.
    #[must_use]
    pub fn of(&self, kind: Kind) -> Limit {
        match kind {
            Kind::ManifestOrIndex if self.index.value > self.manifest.value => self.index,
            Kind::Manifest | Kind::ManifestOrIndex => self.manifest,
            Kind::Index => self.index,
            Kind::Config => self.config,
        }
    }
}

impl Default for DocumentLimits {
    fn default() -> Self {
        Self {
            manifest: Self::MANIFEST,
            index: Self::INDEX,
            config: Self::CONFIG,
            bases: Self::BASES,
            nesting: Self::NESTING,
        }
    }
}

/// What a document is meant to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A manifest or an index: which one is seen on reading.
    ManifestOrIndex,
    /// A manifest.
    Manifest,
    /// An index.
    Index,
    /// The config of an image.
    Config,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::ManifestOrIndex | Self::Manifest => "manifest",
            Self::Index => "index",
            Self::Config => "config",
        }
    }

    /// What is said of the weight of keys, where they have any.
    fn keys(self) -> String {
        match self {
            Self::Config => format!(", a key for {KEY_OF_CONFIG}"),
            Self::Manifest | Self::Index | Self::ManifestOrIndex => String::new(),
        }
    }
}

/// What a manifest may be of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payload {
    /// Images that can be run or built on.
    Images,
    /// Whatever registries keep: attestations, signatures, encrypted images.
    Anything,
}

/// A manifest or an index.
#[derive(Debug, Clone, PartialEq)]
pub enum Document {
    /// One image.
    Manifest(Box<Manifest>),
    /// Several images.
    Index(Index),
}

impl Document {
    /// What it is: as it says itself, else OCI's type.
    #[must_use]
    pub fn media_type(&self) -> &str {
        let (own, usual) = match self {
            Self::Manifest(manifest) => (&manifest.media_type, media_type::OCI_MANIFEST),
            Self::Index(index) => (&index.media_type, media_type::OCI_INDEX),
        };
        own.as_deref().unwrap_or(usual)
    }
}

/// A document that is not what it should be.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// Larger than any honest one.
    #[error("{what} is {size} bytes long, more than the limit of {value}; {limit}", value = limit.value)]
    TooLarge {
        /// Manifest, index or config.
        what: &'static str,
        /// Its size.
        size: u64,
        /// The most.
        limit: Limit,
    },
    /// The same, where nobody knows how large it is.
    #[error("{what} is longer than the limit of {value} bytes; {limit}", value = limit.value)]
    TooLong {
        /// Manifest, index or config.
        what: &'static str,
        /// The most.
        limit: Limit,
    },
    /// The configs of all bases.
    #[error(
        "with its config, those of the bases of this build take {size} bytes, more than the limit of {value}; {limit}",
        value = limit.value
    )]
    Together {
        /// What they take.
        size: u64,
        /// The most.
        limit: Limit,
    },
    /// No JSON, or JSON of another shape.
    #[error("{what} is not valid{place}")]
    Json {
        /// Manifest or config.
        what: &'static str,
        /// Where in the document, or nothing.
        place: String,
        /// What is wrong there.
        #[source]
        source: serde_json::Error,
    },
    /// A list where fields should be.
    #[error("{0} is an array, expected an object")]
    Array(&'static str),
    /// Docker's first format.
    #[error("docker schema 1 manifests are not supported; re-push the image with a current client")]
    Schema1,
    /// `schemaVersion` is absent or something else.
    #[error("`schemaVersion` is {0}, expected 2")]
    SchemaVersion(String),
    /// A manifest and an index at once: readers would disagree.
    #[error("has both `{0}` and `{1}`: neither clearly a manifest nor clearly an index")]
    Ambiguous(&'static str, &'static str),
    /// A key that some readers take for another.
    #[error("key `{found}` differs from `{key}` in its case only")]
    Case {
        /// As it is written.
        found: String,
        /// As it should be.
        key: &'static str,
    },
    /// The document says something else about itself than its descriptor or registry does.
    #[error("media type is `{found}` in the document, but `{declared}` outside of it")]
    MediaType {
        /// By the descriptor or `Content-Type`.
        declared: String,
        /// By `mediaType`.
        found: String,
    },
    /// An index instead of a manifest, or the other way round.
    #[error("is {found}, expected {expected}")]
    Other {
        /// What it is.
        found: &'static str,
        /// What was wanted.
        expected: &'static str,
    },
    /// Something that a registry keeps beside images, for instance a chart.
    #[error("not an image: {what} is `{media_type}`")]
    NotAnImage {
        /// Which part.
        what: &'static str,
        /// Its type.
        media_type: String,
    },
    /// Encrypted layers.
    #[error("encrypted layers are not supported: layer {0} is `{1}`")]
    Encrypted(usize, String),
    /// The config has no bytes.
    #[error("not an image: the config is empty")]
    EmptyConfig,
    /// Too many of something.
    #[error("has {count} {what}, more than the limit of {limit}")]
    TooMany {
        /// What.
        what: &'static str,
        /// How many.
        count: usize,
        /// The most.
        limit: usize,
    },
    /// Too many values, by what each counts for.
    #[error(
        "has {weight} values (an object counts for {object}{keys}), more than the limit of {most}",
        object = OBJECT,
        keys = kind.keys(),
        most = MOST_WEIGHT
    )]
    TooManyValues {
        /// Of what.
        kind: Kind,
        /// What they count together.
        weight: usize,
    },
    /// A descriptor that cannot be right.
    #[error("a descriptor is not valid")]
    Descriptor(#[from] DescriptorError),
    /// A config without layers, not even none.
    #[error("config has no `rootfs`")]
    NoRootfs,
    /// Not made of layers.
    #[error("`rootfs.type` of the config is `{0}`, expected `layers`")]
    RootfsType(String),
}

/// Reads the manifest of an image, or an index. `declared` is its media type as the descriptor or the registry has it; types
/// that say nothing, such as `application/json`, are as good as none.
///
/// # Errors
/// [`DocumentError`] unless the document is clearly one of both, in agreement with `declared`.
pub fn parse(
    bytes: &[u8],
    declared: Option<&str>,
    limits: &DocumentLimits,
) -> Result<Document, DocumentError> {
    parse_payload(bytes, declared, limits, Payload::Images)
}

/// [`parse`], where a manifest may have another `payload`, too.
///
/// # Errors
/// [`DocumentError`] unless the document is clearly a manifest of that or clearly an index, in agreement with `declared`.
pub fn parse_payload(
    bytes: &[u8],
    declared: Option<&str>,
    limits: &DocumentLimits,
    payload: Payload,
) -> Result<Document, DocumentError> {
    let size = bytes.len() as u64;
    check_size(Kind::ManifestOrIndex, size, limits)?;
    let probe: Probe = from_json(Kind::ManifestOrIndex, bytes)?;
    let declared = declared.and_then(essence);
    probe.check_version(declared.as_deref())?;
    match probe.shape(declared.as_deref())? {
        Shape::Manifest => {
            check_size(Kind::Manifest, size, limits)?;
            let manifest: Manifest = from_json(Kind::Manifest, bytes)?;
            check_keys(&manifest.other)?;
            check_descriptors(&manifest)?;
            if payload == Payload::Images {
                check_image(&manifest, limits)?;
            }
            Ok(Document::Manifest(Box::new(manifest)))
        }
        Shape::Index => {
            check_size(Kind::Index, size, limits)?;
            let index: Index = from_json(Kind::Index, bytes)?;
            check_keys(&index.other)?;
            check_count("images", index.manifests.len(), MOST_IMAGES)?;
            index.manifests.iter().try_for_each(Descriptor::check)?;
            Ok(Document::Index(index))
        }
    }
}

/// Whether there is a value is all that counts for most of them.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
#[serde(expecting = "an object")]
struct Probe {
    schema_version: Option<Value>,
    media_type: Option<String>,
    config: Option<IgnoredAny>,
    layers: Option<IgnoredAny>,
    manifests: Option<IgnoredAny>,
    fs_layers: Option<IgnoredAny>,
}

enum Shape {
    Manifest,
    Index,
}

impl Probe {
    fn check_version(&self, declared: Option<&str>) -> Result<(), DocumentError> {
        const SCHEMA_1: [&str; 2] = [
            "application/vnd.docker.distribution.manifest.v1+json",
            "application/vnd.docker.distribution.manifest.v1+prettyjws",
        ];
        let types = [declared, self.media_type.as_deref()];
        if self.fs_layers.is_some() || types.iter().flatten().any(|name| SCHEMA_1.contains(name)) {
            return Err(DocumentError::Schema1);
        }
        match &self.schema_version {
            Some(version) if version.as_u64() == Some(2) => Ok(()),
            Some(version) => Err(DocumentError::SchemaVersion(shown(&version.to_string()))),
            None => Err(DocumentError::SchemaVersion("absent".to_owned())),
        }
    }

    fn shape(&self, declared: Option<&str>) -> Result<Shape, DocumentError> {
        let body = self.media_type.as_deref();
        if let (Some(declared), Some(found)) = (declared, body)
            && declared != found
        {
            return Err(DocumentError::MediaType { declared: shown(declared), found: shown(found) });
        }
        for (key, value) in [("layers", &self.layers), ("config", &self.config)] {
            if value.is_some() && self.manifests.is_some() {
                return Err(DocumentError::Ambiguous(key, "manifests"));
            }
        }
        let is_manifest = self.layers.is_some() || self.config.is_some();
        match declared.or(body) {
            Some(name) if media_type::is_manifest(name) => match self.manifests {
                None => Ok(Shape::Manifest),
                Some(_) => {
                    Err(DocumentError::Other { found: "an index", expected: "a manifest by its media type" })
                }
            },
            Some(name) if media_type::is_index(name) => {
                if is_manifest {
                    return Err(DocumentError::Other {
                        found: "a manifest",
                        expected: "an index by its media type",
                    });
                }
                Ok(Shape::Index)
            }
            Some(name) => Err(DocumentError::NotAnImage { what: "the document", media_type: shown(name) }),
            None if is_manifest => Ok(Shape::Manifest),
            None if self.manifests.is_some() => Ok(Shape::Index),
            None => Err(DocumentError::Other { found: "neither", expected: "a manifest or an index" }),
        }
    }
}

/// A media type without parameters; nothing where it says nothing.
fn essence(text: &str) -> Option<String> {
    let name = text.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    let vague = matches!(name.as_str(), "" | "application/json" | "application/octet-stream" | "text/plain");
    (!vague).then_some(name)
}

fn check_keys(other: &Map<String, Value>) -> Result<(), DocumentError> {
    for key in other.keys() {
        let similar =
            DECISIVE.into_iter().find(|decisive| decisive.eq_ignore_ascii_case(key) && decisive != key);
        if let Some(decisive) = similar {
            return Err(DocumentError::Case { found: shown(key), key: decisive });
        }
    }
    Ok(())
}

fn check_descriptors(manifest: &Manifest) -> Result<(), DocumentError> {
    check_count("layers", manifest.layers.len(), MOST_LAYERS)?;
    manifest.config.check()?;
    Ok(manifest.layers.iter().try_for_each(Descriptor::check)?)
}

fn check_image(manifest: &Manifest, limits: &DocumentLimits) -> Result<(), DocumentError> {
    let config = &manifest.config;
    if !media_type::is_config(&config.media_type) {
        let media_type = shown(&config.media_type);
        return Err(DocumentError::NotAnImage { what: "its config", media_type });
    }
    if config.size == 0 {
        return Err(DocumentError::EmptyConfig);
    }
    check_size(Kind::Config, config.size, limits)?;
    for (position, layer) in manifest.layers.iter().enumerate() {
        if layer.media_type.ends_with("+encrypted") {
            return Err(DocumentError::Encrypted(position + 1, shown(&layer.media_type)));
        }
        if !media_type::is_layer(&layer.media_type) {
            return Err(DocumentError::NotAnImage { what: "a layer", media_type: shown(&layer.media_type) });
        }
    }
    Ok(())
}

/// Checks the size of a document, before or after it is read.
///
/// # Errors
/// [`DocumentError::TooLarge`].
pub fn check_size(kind: Kind, size: u64, limits: &DocumentLimits) -> Result<(), DocumentError> {
    let limit = limits.of(kind);
    if limit.is_exceeded_by(size) {
        return Err(DocumentError::TooLarge { what: kind.name(), size, limit });
    }
    Ok(())
}

/// What to say of a document that goes on behind its limit.
#[must_use]
pub fn too_long(kind: Kind, limits: &DocumentLimits) -> DocumentError {
    DocumentError::TooLong { what: kind.name(), limit: limits.of(kind) }
}

pub(super) fn check_count(what: &'static str, count: usize, limit: usize) -> Result<(), DocumentError> {
    if count > limit { Err(DocumentError::TooMany { what, count, limit }) } else { Ok(()) }
}

/// As deep as serde_json goes.
const DEEPEST: usize = 128;

/// The most that the values of a document may count together; see [`weight`].
const MOST_WEIGHT: usize = 600_000;

/// How much an object counts.
const OBJECT: usize = 16;

/// How much each key of a config counts besides its value: its labels and volumes are maps, of any number of short texts.
const KEY_OF_CONFIG: usize = 15;

/// Bytes for each unit of [`weight`]: no config that may be alone costs more than the largest text.
const BYTES_OF_WEIGHT: usize = 13;

/// What a config of so many bytes and so much weight takes of [`DocumentLimits::bases`].
fn cost(bytes: usize, weight: usize) -> u64 {
    bytes.max(weight * BYTES_OF_WEIGHT) as u64
}

/// How [`DocumentLimits::bases`] counts, for those who set it.
#[must_use]
pub fn cost_in_words() -> String {
    format!(
        "a value counts for {BYTES_OF_WEIGHT} bytes, a key for {}, an object for {}, where that is more than the text",
        KEY_OF_CONFIG * BYTES_OF_WEIGHT,
        OBJECT * BYTES_OF_WEIGHT
    )
}

/// How much the values of a JSON text count. What is not known is kept as it was read, and takes far more memory than text:
/// each value counts for one, an object for [`OBJECT`], and in a config each key for [`KEY_OF_CONFIG`] more.
fn weight(kind: Kind, bytes: &[u8]) -> usize {
    let (mut weight, mut depth, mut in_string, mut rest) = (0, 0_usize, false, bytes.iter());
    while let Some(byte) = rest.next() {
        match (in_string, byte) {
            (_, b'"') => in_string = !in_string,
            (true, b'\\') => drop(rest.next()),
            (false, b'{' | b'[') => {
                weight += if *byte == b'{' { OBJECT } else { 1 };
                depth += 1;
            }
            (false, b'}' | b']') => depth = depth.saturating_sub(1),
            (false, b',') => weight += 1,
            (false, b':') if kind == Kind::Config => weight += KEY_OF_CONFIG,
            _ => {}
        }
        if depth > DEEPEST {
            // Reading ends here, with an error that says so.
            break;
        }
    }
    weight
}

pub(super) fn from_json<T: DeserializeOwned>(kind: Kind, bytes: &[u8]) -> Result<T, DocumentError> {
    from_json_at_cost(kind, bytes).map(|(value, _)| value)
}

/// [`from_json`], with what it takes of [`DocumentLimits::bases`].
pub(super) fn from_json_at_cost<T: DeserializeOwned>(
    kind: Kind,
    bytes: &[u8],
) -> Result<(T, u64), DocumentError> {
    let weight = weight(kind, bytes);
    if weight > MOST_WEIGHT {
        return Err(DocumentError::TooManyValues { kind, weight });
    }
    // It would pass for an object without keys.
    if bytes.trim_ascii_start().starts_with(b"[") {
        return Err(DocumentError::Array(kind.name()));
    }
    let value = serde_json::from_slice(bytes).map_err(|source| {
        let place = place(bytes, source.line(), source.column());
        let place = if place.is_empty() { place } else { format!(" at `{place}`") };
        DocumentError::Json { what: kind.name(), place, source }
    })?;
    Ok((value, cost(bytes.len(), weight)))
}

/// The path of the value that ends at a line and column of a JSON text, for instance `layers[0].size`.
fn place(bytes: &[u8], line: usize, column: usize) -> String {
    enum Frame {
        Object(Option<String>),
        Array(usize),
    }
    let start: usize = bytes.split(|b| *b == b'\n').take(line.saturating_sub(1)).map(|l| l.len() + 1).sum();
    let end = (start + column).min(bytes.len());
    let mut stack = Vec::new();
    let mut at = 0;
    while at < end && stack.len() < DEEPEST {
        match bytes[at] {
            b'{' => stack.push(Frame::Object(None)),
            b'[' => stack.push(Frame::Array(0)),
            b'}' | b']' => drop(stack.pop()),
            b',' => match stack.last_mut() {
                Some(Frame::Object(key)) => *key = None,
                Some(Frame::Array(index)) => *index += 1,
                None => {}
            },
            b'"' => {
                let from = at + 1;
                at = from;
                while at < end && bytes[at] != b'"' {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                if let Some(Frame::Object(key @ None)) = stack.last_mut() {
                    *key = Some(String::from_utf8_lossy(&bytes[from..at.min(end)]).into_owned());
                }
            }
            _ => {}
        }
        at += 1;
    }
    let mut path = String::new();
    for frame in &stack {
        match frame {
            Frame::Object(Some(key)) if path.is_empty() => path.push_str(key),
            Frame::Object(Some(key)) => path.extend([".", key]),
            Frame::Object(None) => {}
            Frame::Array(index) => path.push_str(&format!("[{index}]")),
        }
    }
    shown(&path)
}

#[cfg(test)]
mod tests {
    use super::super::digest::Digest;
    use super::super::index::parse_index;
    use super::super::json;
    use super::super::manifest::parse_manifest;
    use super::*;

    const LIMITS: DocumentLimits = DocumentLimits {
        manifest: DocumentLimits::MANIFEST,
        index: DocumentLimits::INDEX,
        config: DocumentLimits::CONFIG,
        bases: DocumentLimits::BASES,
        nesting: DocumentLimits::NESTING,
    };

    const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn descriptor(kind: &str, size: &str) -> String {
        format!(r#"{{"mediaType":"{kind}","digest":"{DIGEST}","size":{size}}}"#)
    }

    fn manifest(config: &str, layers: &str) -> String {
        format!(r#"{{"schemaVersion":2,"config":{config},"layers":{layers}}}"#)
    }

    fn good_config() -> String {
        descriptor(media_type::OCI_CONFIG, "2")
    }

    fn error(text: &str, declared: Option<&str>) -> String {
        let error = parse(text.as_bytes(), declared, &LIMITS).expect_err(text);
        let source =
            std::error::Error::source(&error).map(|source| format!(": {source}")).unwrap_or_default();
        format!("{error}{source}")
    }

    /// Of one with 7 MB of ones, four hundred megabytes were taken.
    #[test]
    fn a_document_with_very_many_values_is_refused_before_it_is_read() {
        let many = |value: &str, count: usize| format!("{{\"x\":[{}0]}}", format!("{value},").repeat(count));
        let keys = format!("{{{}\"\":0}}", "\"\":0,".repeat(80_000));
        assert!(from_json::<Value>(Kind::Index, keys.as_bytes()).is_ok());
        for text in [many("1", 700_000), many("{}", 40_000), many("[]", 700_000), keys] {
            let error = from_json::<Value>(Kind::Config, text.as_bytes()).unwrap_err();
            assert!(matches!(error, DocumentError::TooManyValues { .. }), "{error}");
        }
        for text in [many("1", 500_000), many("\"{\\\"{{{{[[[,,,\"", 100_000)] {
            assert!(from_json::<Value>(Kind::Config, text.as_bytes()).is_ok());
        }
    }

    #[test]
    fn documents_that_are_clearly_one_thing_are_read() {
        use media_type::{DOCKER_LIST, DOCKER_MANIFEST, OCI_INDEX, OCI_MANIFEST};
        let plain = manifest(&good_config(), "null");
        let typed = |kind: &str| plain.replacen('{', &format!(r#"{{"mediaType":"{kind}","#), 1);
        let index = format!(r#"{{"schemaVersion":2,"manifests":[{}]}}"#, descriptor("something/else", "2"));
        for (text, declared, is_index) in [
            (plain.clone(), None, false),
            (plain.clone(), Some(OCI_MANIFEST), false),
            (plain.clone(), Some("application/json"), false),
            (typed(OCI_MANIFEST), Some("Application/vnd.oci.image.manifest.v1+json; charset=utf-8"), false),
            (typed(DOCKER_MANIFEST), Some(DOCKER_MANIFEST), false),
            (typed(DOCKER_MANIFEST), None, false),
            (index.clone(), None, true),
            (index.clone(), Some(OCI_INDEX), true),
            (index, Some(DOCKER_LIST), true),
            (r#"{"schemaVersion":2,"manifests":null}"#.to_owned(), Some(OCI_INDEX), true),
        ] {
            let document =
                parse(text.as_bytes(), declared, &LIMITS).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(matches!(document, Document::Index(_)), is_index, "{text}");
            assert_eq!(parse_index(text.as_bytes(), declared, &LIMITS).is_ok(), is_index, "{text}");
            assert_eq!(parse_manifest(text.as_bytes(), declared, &LIMITS).is_ok(), !is_index, "{text}");
        }
    }

    #[test]
    fn what_is_no_object_is_told_in_the_words_of_json() {
        let index = |entry: &str| format!(r#"{{"schemaVersion":2,"manifests":[{entry}]}}"#);
        let entry = descriptor(media_type::OCI_MANIFEST, "2");
        let with = |platform: &str| index(&entry.replace('}', &format!(r#","platform":{platform}}}"#)));
        for (text, expected) in [
            ("7".to_owned(), "expected an object"),
            ("[]".to_owned(), "manifest is an array, expected an object"),
            (index("7"), "expected an object"),
            (with("[]"), "expected an object"),
            (with("\"linux\""), "expected an object"),
        ] {
            let told = error(&text, None);
            assert!(told.contains(expected) && !told.contains("struct"), "{text}: {told}");
        }
        assert!(parse(with("null").as_bytes(), None, &LIMITS).is_ok());
        let config = super::super::config::parse_platform(b" []", &LIMITS).expect_err("an array");
        assert_eq!(config.to_string(), "config is an array, expected an object");
    }

    #[test]
    fn a_manifest_of_anything_is_read_where_that_is_wanted_and_no_less_strictly() {
        let layer = |kind: &str, size: &str| format!("[{}]", descriptor(kind, size));
        let anything = |text: &str| parse_payload(text.as_bytes(), None, &LIMITS, Payload::Anything);
        for text in [
            manifest(&good_config(), &layer("application/vnd.in-toto+json", "1")),
            manifest(&descriptor("application/vnd.oci.empty.v1+json", "2"), "[]"),
            manifest(&good_config(), &layer(&format!("{}+encrypted", media_type::OCI_LAYER_GZIP), "1")),
        ] {
            assert!(parse(text.as_bytes(), None, &LIMITS).is_err(), "{text}");
            assert!(matches!(anything(&text), Ok(Document::Manifest(_))), "{text}");
        }
        for text in [
            manifest(&good_config(), &layer("application/vnd.in-toto+json", "9223372036854775808")),
            manifest(&good_config(), "[]").replace(":2,", ":1,"),
            manifest(&good_config(), "[]").replacen('{', r#"{"manifests":[],"#, 1),
        ] {
            assert!(anything(&text).is_err(), "{text}");
        }
    }

    #[test]
    fn unknown_fields_survive_a_round_trip() {
        let layer = descriptor(media_type::OCI_LAYER_GZIP, "3")
            .replace('}', r#","urls":["http://x/"],"annotations":{"a":"b\n"}}"#);
        let text = manifest(&good_config(), &format!("[{layer},{layer}]")).replacen(
            '{',
            r#"{"subject":{"x":1},"artifactType":"t","annotations":{"k":"v"},"#,
            1,
        );
        let parsed = parse_manifest(text.as_bytes(), None, &LIMITS).unwrap();
        assert_eq!(serde_json::to_value(&parsed).unwrap(), serde_json::from_str::<Value>(&text).unwrap());
        let again = json::encode(&parsed).unwrap();
        assert_eq!(parse_manifest(&again.bytes, None, &LIMITS).unwrap(), parsed);
        let sha512 = text.replace(DIGEST, &format!("sha512:{}", "a".repeat(128)));
        assert!(parse_manifest(sha512.as_bytes(), None, &LIMITS).is_ok());
    }

    #[test]
    fn documents_that_readers_could_take_for_two_things_are_refused() {
        use media_type::{DOCKER_MANIFEST, OCI_INDEX, OCI_MANIFEST};
        let good = manifest(&good_config(), "[]");
        let with = |extra: &str| good.replacen('{', &format!("{{{extra},"), 1);
        let index = r#"{"schemaVersion":2,"manifests":[]}"#;
        for (text, declared, expected) in [
            (with(r#""manifests":[]"#), None, "has both `layers` and `manifests`"),
            (with(r#""manifests":[]"#), Some(OCI_INDEX), "has both `layers` and `manifests`"),
            (with(r#""Manifests":[]"#), None, "key `Manifests` differs from `manifests` in its case only"),
            (with(r#""layers":[]"#), None, "duplicate field `layers`"),
            (with(r#""fsLayers":[]"#), None, "schema 1 manifests are not supported"),
            (good.clone(), Some(OCI_INDEX), "is a manifest, expected an index by its media type"),
            (index.to_owned(), Some(OCI_MANIFEST), "is an index, expected a manifest by its media type"),
            (
                with(r#""mediaType":"application/vnd.oci.image.index.v1+json""#),
                None,
                "is a manifest, expected an index",
            ),
            (
                with(r#""mediaType":"application/vnd.oci.image.manifest.v1+json""#),
                Some(DOCKER_MANIFEST),
                "media type is `application/vnd.oci.image.manifest.v1+json` in the document, but",
            ),
            (good.clone(), Some("application/vnd.cncf.helm.config.v1+json"), "not an image: the document is"),
            (r#"{"schemaVersion":2}"#.to_owned(), None, "is neither, expected a manifest or an index"),
        ] {
            let error = error(&text, declared);
            assert!(error.contains(expected), "{error:?} does not say {expected:?} for {text}");
        }
    }

    #[test]
    fn documents_of_another_shape_are_refused_with_the_place() {
        let good = manifest(&good_config(), "[]");
        let layers = |layer: &str| manifest(&good_config(), &format!("[{layer}]"));
        let gzip = media_type::OCI_LAYER_GZIP;
        for (text, expected) in [
            (good.replace(":2,", ":1,"), "`schemaVersion` is 1, expected 2"),
            (good.replace(":2,", ":\"2\","), "`schemaVersion` is \"2\", expected 2"),
            (good.replace("\"schemaVersion\":2,", ""), "`schemaVersion` is absent, expected 2"),
            (r#"{"schemaVersion":1,"name":"x","fsLayers":[]}"#.to_owned(), "re-push the image"),
            (good.clone() + "x", "trailing characters"),
            (format!("\u{feff}{good}"), "manifest is not valid"),
            ("[".repeat(100_000), "manifest is an array"),
            ("[2]".to_owned(), "is"),
            (
                good.replacen('{', &format!("{{\"x\":{}{},", "[".repeat(9999), "]".repeat(9999)), 1),
                "recursion limit",
            ),
            (layers(&descriptor(gzip, "-1")), "at `layers[0].size`"),
            (layers(&descriptor(gzip, "1.5")), "at `layers[0].size`"),
            (layers(&descriptor(gzip, "9223372036854775808")), "size 9223372036854775808 of"),
            (
                layers(&format!(r#"{{"mediaType":"{gzip}","digest":"{DIGEST}"}}"#)),
                "at `layers[0]`: missing field `size`",
            ),
            (layers(&descriptor(gzip, "1").replace("e3b0", "E3B0")), "at `layers[0].digest`"),
            (layers(&descriptor(gzip, "1").replace("sha256:", "md5:")), "is not a digest"),
            (
                layers(&descriptor(&format!("{gzip}+encrypted"), "1")),
                "encrypted layers are not supported: layer 1 is",
            ),
            (
                layers(&descriptor("application/vnd.cncf.helm.chart.content.v1.tar+gzip", "1")),
                "not an image: a layer is `application/vnd.cncf.helm.chart.content.v1.tar+gzip`",
            ),
            (
                manifest(&descriptor("application/vnd.oci.empty.v1+json", "2"), "[]"),
                "not an image: its config is `application/vnd.oci.empty.v1+json`",
            ),
            (manifest(&descriptor(media_type::OCI_CONFIG, "0"), "[]"), "the config is empty"),
            (
                manifest(&descriptor(media_type::OCI_CONFIG, "8388609"), "[]"),
                "config is 8388609 bytes long, more than the limit of 8388608",
            ),
            (
                layers(&vec![descriptor(gzip, "1"); 10_001].join(",")),
                "has 10001 layers, more than the limit of 10000",
            ),
            (" ".repeat(5 << 20), "manifest is 5242880 bytes long, more than the limit of 4194304"),
        ] {
            let error = error(&text, None);
            assert!(error.contains(expected), "{error:?} does not say {expected:?}");
        }
        assert!(parse(&[b'{', b'"', 0xff, b'"', b':', b'1', b'}'], None, &LIMITS).is_err());
    }

    #[test]
    fn any_bytes_are_read_or_refused() {
        use proptest::prelude::*;
        let config =
            serde_json::to_vec(&Descriptor::new(media_type::OCI_CONFIG, Digest::of(b"{}"), 2)).unwrap();
        let good = manifest(std::str::from_utf8(&config).unwrap(), "[]").into_bytes();
        proptest!(|(at in 0..good.len(), byte: u8, cut in 0..good.len())| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            drop(parse(&bytes, None, &LIMITS));
            drop(parse(&bytes[..cut], Some(media_type::OCI_MANIFEST), &LIMITS));
        });
    }
}
