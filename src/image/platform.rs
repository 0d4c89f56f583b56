//! Platforms: what an image runs on, as it is written, normalised and recorded.

use std::fmt;
use std::str::FromStr as _;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::config::ImageConfig;
use super::shown;

/// The `platform` object of a descriptor, as it was read.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(expecting = "an object")]
pub struct PlatformFields {
    /// CPU architecture, in Go's words.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub architecture: String,
    /// Operating system, in Go's words.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub os: String,
    /// CPU variant, for instance `v7`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
    /// Version of the operating system (Windows).
    #[serde(rename = "os.version", default, skip_serializing_if = "Option::is_none")]
    pub os_version: Option<String>,
    /// Features of the operating system (Windows).
    #[serde(rename = "os.features", default, skip_serializing_if = "Option::is_none")]
    pub os_features: Option<Vec<String>>,
}

/// The most characters of an operating system, architecture, variant, version or feature that somebody writes. Directories and
/// arguments are called after platforms, so what is written is shown whole; of what comes with images, as much is shown.
pub const LONGEST_WORD: usize = 64;

/// The platform of a descriptor. An array would pass for an object without keys.
pub(super) fn object_or_null<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<PlatformFields>, D::Error> {
    struct ObjectOrNull;
    impl<'de> Visitor<'de> for ObjectOrNull {
        type Value = Option<PlatformFields>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
            PlatformFields::deserialize(MapAccessDeserializer::new(map)).map(Some)
        }
    }
    deserializer.deserialize_any(ObjectOrNull)
}

/// What an image is made for. Either as it was written or, after [`Platform::normalise`], in the one spelling that
/// can be compared.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Platform {
    /// Operating system, in Go's words.
    pub os: String,
    /// CPU architecture, in Go's words.
    pub architecture: String,
    /// CPU variant, for instance `v7`; never empty.
    pub variant: Option<String>,
    /// Version of the operating system, for instance `10.0.20348.1970`; never empty.
    pub os_version: Option<String>,
    /// Features of the operating system that the image needs.
    pub os_features: Vec<String>,
}

/// A platform that somebody wrote, with what it means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requested {
    /// As written, aliases resolved: `linux/arm` has no variant, `linux/arm64/v8` has one.
    pub asked: Platform,
    /// As it is compared: `linux/arm/v7`, `linux/arm64`.
    pub normalised: Platform,
}

/// A platform that was written wrongly.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlatformError {
    /// A part is empty or has characters that no platform has.
    #[error("`{text}` is not a platform: `{part}` is not a word, expected `os[/arch[/variant]]`")]
    Syntax {
        /// The whole.
        text: String,
        /// The part.
        part: String,
    },
    /// A word, version or feature that nobody means.
    #[error("`{text}` is not a platform: a word of it is longer than {LONGEST_WORD} characters")]
    TooLong {
        /// The whole.
        text: String,
    },
    /// More than operating system, architecture and variant.
    #[error("`{text}` is not a platform: more than three parts, expected `os[/arch[/variant]]`")]
    TooManyParts {
        /// The whole.
        text: String,
    },
    /// A single word that is neither an operating system nor an architecture.
    #[error("`{text}` is not a platform: neither a known operating system nor a known architecture")]
    Unknown {
        /// The whole.
        text: String,
    },
    /// For instance `arm/v5`, which others take for an operating system `arm` with an architecture `v5`.
    #[error(
        "`{text}` is not a platform: `{architecture}` is an architecture, and the operating system comes first{}",
        meant.as_ref().map(|meant| format!(" (did you mean `{meant}`?)")).unwrap_or_default()
    )]
    NoSystem {
        /// The whole.
        text: String,
        /// What stands in the place of the operating system.
        architecture: String,
        /// What was meant, if that can be told.
        meant: Option<String>,
    },
    /// `os(version)/arch:version`.
    #[error("`{text}` is not a platform: it gives two versions of the operating system")]
    TwoVersions {
        /// The whole.
        text: String,
    },
    /// For instance `linux/armv7l/v6`.
    #[error("`{text}` is not a platform: `{architecture}` means variant `{implied}`, not `{variant}`")]
    Contradiction {
        /// The whole.
        text: String,
        /// The alias.
        architecture: String,
        /// What the alias says.
        implied: String,
        /// What stands behind it.
        variant: String,
    },
}

impl PlatformError {
    /// Whether it says what was meant.
    #[must_use]
    pub fn has_advice(&self) -> bool {
        matches!(self, Self::NoSystem { meant: Some(_), .. })
    }
}

/// A platform for an index that is not in the words of the OCI image specification, which are Go's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WrittenError {
    /// The operating system.
    #[error("`{written}` is not an operating system in Go's words{}", instead(.usual.as_deref()))]
    System {
        /// What is written.
        written: String,
        /// How it is usually written.
        usual: Option<String>,
    },
    /// The architecture.
    #[error("`{written}` is not an architecture in Go's words{}", instead(.usual.as_deref()))]
    Architecture {
        /// What is written.
        written: String,
        /// How it is usually written.
        usual: Option<String>,
    },
    /// The variant.
    #[error("`{written}` is not a variant of {architecture}: {known}")]
    Variant {
        /// What is written.
        written: String,
        /// Of which architecture.
        architecture: String,
        /// What there is.
        known: &'static str,
    },
    /// A variant of nothing.
    #[error("the variant `{0}` stands without an architecture")]
    Alone(String),
}

fn instead(usual: Option<&str>) -> String {
    usual.map(|usual| format!(": write `{usual}`")).unwrap_or_default()
}

impl WrittenError {
    /// The field that is wrong, as the JSON of an index calls it.
    #[must_use]
    pub fn key(&self) -> &'static str {
        match self {
            Self::System { .. } => "os",
            Self::Architecture { .. } => "architecture",
            Self::Variant { .. } | Self::Alone(_) => "variant",
        }
    }
}

/// Checks what somebody wants to be written in an index, as far as it is there: nothing is an alias, nothing misspelt. The
/// variants are those of the image specification (1.1.1, `image-index.md`), and `v5` of arm, which Debian has.
///
/// # Errors
/// [`WrittenError`].
pub fn check_written(fields: &PlatformFields) -> Result<(), WrittenError> {
    let PlatformFields { os, architecture, variant, .. } = fields;
    if !os.is_empty() && !SYSTEMS.contains(&os.as_str()) && !WASI.contains(&os.as_str()) {
        let usual = Some(normalise_os(os)).filter(|usual| SYSTEMS.contains(&usual.as_str()));
        return Err(WrittenError::System { written: shown(os), usual });
    }
    if !architecture.is_empty() && !ARCHITECTURES.contains(&architecture.as_str()) {
        let (usual, implied) = normalise_cpu(&architecture.to_lowercase(), "");
        let usual = ARCHITECTURES.contains(&usual.as_str()).then(|| match implied {
            Some(variant) => format!("{usual}` with variant `{variant}"),
            None => usual,
        });
        return Err(WrittenError::Architecture { written: shown(architecture), usual });
    }
    let Some(variant) = variant.as_deref().filter(|variant| !variant.is_empty()) else { return Ok(()) };
    if architecture.is_empty() {
        return Err(WrittenError::Alone(shown(variant)));
    }
    let numbered = |prefix: &str, suffix: &str| {
        let number = variant.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(suffix));
        number.is_some_and(|n| (1..=2).contains(&n.len()) && n.bytes().all(|b| b.is_ascii_digit()))
    };
    let (is_known, known) = match architecture.as_str() {
        "amd64" => (matches!(variant, "v1" | "v2" | "v3" | "v4"), "there are v1 to v4"),
        "arm" => (matches!(variant, "v5" | "v6" | "v7" | "v8"), "there are v5 to v8"),
        "arm64" => {
            let minor = variant.strip_prefix("v8.").or_else(|| variant.strip_prefix("v9."));
            let is_minor = minor.is_some_and(|minor| matches!(minor.as_bytes(), [b'0'..=b'9']));
            (is_minor || matches!(variant, "v8" | "v9"), "there are v8, v8.1 to v8.9, v9, v9.1 to v9.9")
        }
        "ppc64le" | "ppc64" => (numbered("power", ""), "there are power8, power9 and so on"),
        "riscv64" => (numbered("rva", "u64"), "there are rva20u64, rva22u64 and so on"),
        _ => (false, "there are none"),
    };
    if is_known {
        return Ok(());
    }
    Err(WrittenError::Variant { written: shown(variant), architecture: architecture.clone(), known })
}

/// The most features of an operating system.
pub const MOST_FEATURES: usize = 64;

/// Whether `text` may be a word of a platform, in whosever words: nobody could write or read another one.
#[must_use]
pub fn is_readable(text: &str) -> bool {
    // Of nothing longer the characters are counted.
    text.len() <= LONGEST_WORD * 4
        && (1..=LONGEST_WORD).contains(&text.chars().count())
        && !text.chars().any(|c| c.is_whitespace() || crate::text::is_deceptive(c))
}

/// A platform that cannot be passed on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WordError {
    /// A word that nobody can write so.
    #[error(
        "its `{key}` is `{value}`: a word has 1 to {LONGEST_WORD} characters, none of them blank or invisible"
    )]
    Word {
        /// Of which field.
        key: &'static str,
        /// What there is.
        value: String,
    },
    /// Too many of the operating system.
    #[error("it has more than {MOST_FEATURES} `os.features`")]
    Features,
}

/// Checks what an image or an index says before it is passed on, as far as it says anything.
///
/// # Errors
/// [`WordError`].
pub fn check_words(fields: &PlatformFields) -> Result<(), WordError> {
    let PlatformFields { os, architecture, variant, os_version, os_features } = fields;
    let features = os_features.as_deref().unwrap_or_default();
    if features.len() > MOST_FEATURES {
        return Err(WordError::Features);
    }
    let words = [
        ("os", Some(os).filter(|os| !os.is_empty())),
        ("architecture", Some(architecture).filter(|architecture| !architecture.is_empty())),
        ("variant", variant.as_ref()),
        ("os.version", os_version.as_ref()),
    ];
    let words = words.into_iter().filter_map(|(key, word)| Some((key, word?)));
    let mut words = words.chain(features.iter().map(|feature| ("os.features", feature)));
    match words.find(|(_, word)| !is_readable(word)) {
        Some((key, word)) => Err(WordError::Word { key, value: shown(word) }),
        None => Ok(()),
    }
}

/// Systems of WebAssembly.
const WASI: [&str; 2] = ["wasi", "wasip1"];

/// Operating systems that stand for themselves when they are all that is written (containerd's list).
const SYSTEMS: [&str; 17] = [
    "aix",
    "android",
    "darwin",
    "dragonfly",
    "freebsd",
    "hurd",
    "illumos",
    "ios",
    "js",
    "linux",
    "nacl",
    "netbsd",
    "openbsd",
    "plan9",
    "solaris",
    "windows",
    "zos",
];

/// Architectures that stand for themselves when they are all that is written (containerd's list).
const ARCHITECTURES: [&str; 24] = [
    "386",
    "amd64",
    "amd64p32",
    "arm",
    "arm64",
    "arm64be",
    "armbe",
    "loong64",
    "mips",
    "mips64",
    "mips64le",
    "mips64p32",
    "mips64p32le",
    "mipsle",
    "ppc",
    "ppc64",
    "ppc64le",
    "riscv",
    "riscv64",
    "s390",
    "s390x",
    "sparc",
    "sparc64",
    "wasm",
];

impl Platform {
    /// A platform without version or features.
    #[must_use]
    pub fn new(os: &str, architecture: &str, variant: Option<&str>) -> Self {
        Self {
            os: os.to_owned(),
            architecture: architecture.to_owned(),
            variant: variant.filter(|v| !v.is_empty()).map(str::to_owned),
            ..Self::default()
        }
    }

    /// The machine's own platform, normalised. `os` and `architecture` are Rust's words ([`std::env::consts`]);
    /// `cpuinfo` gives the text of `/proc/cpuinfo`, from which the variant of ARM is taken; elsewhere it is not asked, as a
    /// machine with many processors takes its time to tell. The level of an amd64 CPU is not looked for: builds must not
    /// depend on the machine.
    #[must_use]
    pub fn host(os: &str, architecture: &str, cpuinfo: impl FnOnce() -> String) -> Self {
        let little = cfg!(target_endian = "little");
        let architecture = match architecture {
            "x86_64" => "amd64",
            "x86" => "386",
            "aarch64" => "arm64",
            "powerpc64" if little => "ppc64le",
            "powerpc64" => "ppc64",
            "loongarch64" => "loong64",
            "mips" if little => "mipsle",
            "mips64" if little => "mips64le",
            other => other,
        };
        let variant = (architecture == "arm").then(|| arm_variant(&cpuinfo()));
        let os = if os == "macos" { "darwin" } else { os };
        Self::new(os, architecture, variant).normalise()
    }

    /// The one spelling in which platforms are compared (containerd's `Normalize`), aliases of architectures resolved.
    /// What is unknown stays as it is, in lower case.
    #[must_use]
    pub fn normalise(&self) -> Self {
        let (architecture, variant) = normalise_cpu(
            &self.architecture.to_lowercase(),
            &self.variant.as_deref().unwrap_or("").to_lowercase(),
        );
        let mut os_features = self.os_features.clone();
        os_features.sort();
        os_features.dedup();
        Self {
            os: normalise_os(&self.os),
            architecture,
            variant,
            os_version: self.os_version.clone(),
            os_features,
        }
    }

    /// As it is shown to people, in one spelling wherever it is from: `arm64/v8` is `arm64`, as [`Self::normalise`] has it. But no
    /// variant is made up: an `arm` of which nobody says more may be any.
    #[must_use]
    pub fn shown(&self) -> Self {
        if self.variant.is_some() { self.normalise() } else { self.clone() }
    }

    fn words(&self) -> impl Iterator<Item = &str> {
        let Self { os, architecture, variant, os_version, os_features } = self;
        let optional = variant.iter().chain(os_version);
        [os, architecture].into_iter().chain(optional).chain(os_features).map(String::as_str)
    }

    /// Whether operating system and architecture are those of `other`, whatever the variants.
    #[must_use]
    pub fn same_machine(&self, other: &Self) -> bool {
        self.os == other.os && self.architecture == other.architecture
    }
}

impl Requested {
    /// Reads a platform as containerd does: `os[(version+feature…)]`, `arch`, or `os/arch[/variant]`. What is left out
    /// is `host`'s. Also accepted: go-containerregistry's `os/arch:version`, and `uname -m` or level names of CPUs
    /// (`armv7l`, `i686`, `x86-64-v3`).
    ///
    /// # Errors
    /// [`PlatformError`] for everything else; nothing is guessed.
    pub fn parse(text: &str, host: &Platform) -> Result<Self, PlatformError> {
        parse(text, host).map(Self::from)
    }

    /// Whether the variant was written, and not only follows from the architecture.
    #[must_use]
    pub fn names_variant(&self) -> bool {
        self.asked.variant.is_some()
    }
}

impl From<Platform> for Requested {
    fn from(asked: Platform) -> Self {
        Self { normalised: asked.normalise(), asked }
    }
}

impl fmt::Display for Requested {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.normalised.fmt(f)
    }
}

fn parse(text: &str, host: &Platform) -> Result<Platform, PlatformError> {
    let (body, version) = match text.rsplit_once(':') {
        Some((body, version)) => (body, Some(version)),
        None => (text, None),
    };
    let parts: Vec<&str> = body.splitn(4, '/').collect();
    if parts.len() > 3 {
        return Err(PlatformError::TooManyParts { text: shown(text) });
    }
    let syntax = |part: &str| PlatformError::Syntax { text: shown(text), part: shown(part) };
    let (name, options) = parse_system(parts[0]).ok_or_else(|| syntax(parts[0]))?;
    if let Some(bad) = parts[1..].iter().find(|part| !is_word(part)) {
        return Err(syntax(bad));
    }
    if parts.len() > 1 && is_architecture(name) {
        let meant = match parts[..] {
            [_, second] if is_system(second) => Some(format!("{}/{}", shown(second), shown(name))),
            [_, second] if !is_architecture(second) => Some(format!("{}/{}", host.os, shown(text))),
            _ => None,
        };
        return Err(PlatformError::NoSystem { text: shown(text), architecture: shown(name), meant });
    }
    let mut platform = match parts[1..] {
        [] => one_word(name, parts[0], host).ok_or_else(|| PlatformError::Unknown { text: shown(text) })?,
        [architecture] => two_words(name, architecture),
        [architecture, variant, ..] => {
            contradiction(text, architecture, variant)?;
            three_words(name, architecture, variant)
        }
    };
    (platform.os_version, platform.os_features) = options;
    if let Some(version) = version {
        let version = decode(version).ok_or_else(|| syntax(version))?;
        if platform.os_version.replace(version).is_some() {
            return Err(PlatformError::TwoVersions { text: shown(text) });
        }
    }
    if platform.words().any(|word| word.chars().count() > LONGEST_WORD) {
        return Err(PlatformError::TooLong { text: shown(text) });
    }
    Ok(platform)
}

/// Whether a word means an operating system.
fn is_system(word: &str) -> bool {
    SYSTEMS.contains(&normalise_os(word).as_str())
}

/// Whether a word means an architecture, and no operating system.
fn is_architecture(word: &str) -> bool {
    let (architecture, _) = normalise_cpu(&word.to_lowercase(), "");
    ARCHITECTURES.contains(&architecture.as_str())
}

/// One component: an operating system on the host's architecture, or an architecture under the host's system.
fn one_word(name: &str, whole: &str, host: &Platform) -> Option<Platform> {
    if is_system(name) {
        let os = normalise_os(name);
        let variant = host.variant.as_deref().filter(|v| host.architecture == "arm" && *v != "v7");
        return Some(Platform::new(&os, &host.architecture, variant));
    }
    let platform = two_words(&host.os, whole);
    ARCHITECTURES.contains(&platform.architecture.as_str()).then_some(platform)
}

fn two_words(os: &str, architecture: &str) -> Platform {
    let (architecture, variant) = normalise_cpu(&architecture.to_lowercase(), "");
    let implied = architecture == "arm" && variant.as_deref() == Some("v7");
    Platform::new(&normalise_os(os), &architecture, variant.as_deref().filter(|_| !implied))
}

fn three_words(os: &str, architecture: &str, variant: &str) -> Platform {
    let (architecture, variant) = normalise_cpu(&architecture.to_lowercase(), &variant.to_lowercase());
    // Normalising takes `v8` away; but whoever wrote it wants to see it in the image.
    let variant = if architecture == "arm64" { variant.or_else(|| Some("v8".to_owned())) } else { variant };
    Platform::new(&normalise_os(os), &architecture, variant.as_deref())
}

/// containerd drops what stands behind `armhf` and `armel`; for names that only this program takes, a contradiction
/// is a mistake.
fn contradiction(text: &str, architecture: &str, variant: &str) -> Result<(), PlatformError> {
    let Some(("arm" | "amd64", Some(implied))) = alias(&architecture.to_lowercase()) else { return Ok(()) };
    let variant = variant.to_lowercase();
    if variant == implied || format!("v{variant}") == implied {
        return Ok(());
    }
    Err(PlatformError::Contradiction {
        text: shown(text),
        architecture: architecture.to_owned(),
        implied,
        variant: shown(&variant),
    })
}

type SystemOptions = (Option<String>, Vec<String>);

/// `name[(version[+feature]…)]`.
fn parse_system(text: &str) -> Option<(&str, SystemOptions)> {
    let (name, options) = match text.split_once('(') {
        Some((name, rest)) => (name, Some(rest.strip_suffix(')')?)),
        None => (text, None),
    };
    if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-')) {
        return None;
    }
    let Some(options) = options else { return Some((name, (None, Vec::new()))) };
    let mut parts = options.split('+');
    let version = match parts.next() {
        None | Some("") => None,
        Some(version) => Some(decode(version)?),
    };
    let mut features = parts.map(decode).collect::<Option<Vec<_>>>()?;
    features.sort();
    features.dedup();
    Some((name, (version, features)))
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'))
}

/// A version or feature, `%XX` decoded; at least one character.
fn decode(text: &str) -> Option<String> {
    if !is_word(&text.replace('%', "_")) {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next()?, rest.next()?];
            let digits =
                std::str::from_utf8(&digits).ok().filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()))?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

fn encode(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-') {
            write!(f, "{}", char::from(byte))?;
        } else {
            write!(f, "%{byte:02X}")?;
        }
    }
    Ok(())
}

impl fmt::Display for Platform {
    /// `os[(version+feature…)]/arch[/variant]`, features sorted: what [`Requested::parse`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |word: &str| crate::text::line(word.as_bytes(), LONGEST_WORD);
        f.write_str(&if self.os.is_empty() { "unknown".to_owned() } else { word(&self.os) })?;
        if self.os_version.is_some() || !self.os_features.is_empty() {
            f.write_str("(")?;
            encode(f, self.os_version.as_deref().unwrap_or(""))?;
            let mut features: Vec<_> = self.os_features.iter().collect();
            features.sort();
            features.dedup();
            for feature in features {
                f.write_str("+")?;
                encode(f, feature)?;
            }
            f.write_str(")")?;
        }
        for part in [Some(self.architecture.as_str()), self.variant.as_deref()].into_iter().flatten() {
            if !part.is_empty() {
                write!(f, "/{}", word(part))?;
            }
        }
        Ok(())
    }
}

fn normalise_os(os: &str) -> String {
    let os = os.to_lowercase();
    if os == "macos" { "darwin".to_owned() } else { os }
}

/// Architecture and variant in lower case, as containerd's `normalizeArch` and the names of [`alias`] have them.
fn normalise_cpu(architecture: &str, variant: &str) -> (String, Option<String>) {
    let given = |v: &str| (!v.is_empty()).then(|| v.to_owned());
    let (architecture, variant) = match (architecture, variant) {
        ("i386", _) => ("386", None),
        ("x86_64" | "x86-64" | "amd64", "v1") => ("amd64", None),
        ("x86_64" | "x86-64" | "amd64", other) => ("amd64", given(other)),
        ("aarch64" | "arm64", "8" | "v8" | "v8.0") => ("arm64", None),
        ("aarch64" | "arm64", "9" | "9.0" | "v9.0") => ("arm64", given("v9")),
        ("aarch64" | "arm64", other) => ("arm64", given(other)),
        ("armhf", _) | ("arm", "" | "7") => ("arm", given("v7")),
        // Debian's armel runs on v5, but containerd reads the word so; v5 is found on the way down.
        ("armel", _) => ("arm", given("v6")),
        ("arm", "5" | "6" | "8") => ("arm", Some(format!("v{variant}"))),
        (other, variant) => match alias(other) {
            Some((architecture, implied)) => {
                (architecture, implied.filter(|v| architecture != "amd64" || v != "v1"))
            }
            None => (other, given(variant)),
        },
    };
    (architecture.to_owned(), variant)
}

/// Names of CPUs that containerd does not take: of `uname -m`, and of amd64's levels.
fn alias(name: &str) -> Option<(&'static str, Option<String>)> {
    if matches!(name, "i486" | "i586" | "i686") {
        return Some(("386", None));
    }
    if let Some(level) =
        ["x86-64-v", "x86_64_v", "amd64v"].iter().find_map(|prefix| name.strip_prefix(prefix))
    {
        let known = matches!(level, "1" | "2" | "3" | "4");
        return known.then(|| ("amd64", Some(format!("v{level}"))));
    }
    let rest = name.strip_prefix("armv")?;
    let variant = rest.get(..1).filter(|v| matches!(*v, "5" | "6" | "7" | "8"))?;
    let suffix = &rest[1..];
    // `armv7b` is a big-endian machine, which runs nothing that is made for `arm`.
    let little = suffix.bytes().all(|b| b.is_ascii_lowercase()) && !suffix.ends_with('b');
    little.then(|| ("arm", Some(format!("v{variant}"))))
}

/// The variant of a 32-bit ARM process (containerd's `getCPUVariant`).
fn arm_variant(cpuinfo: &str) -> &'static str {
    let field = |name: &str| {
        cpuinfo.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.trim().eq_ignore_ascii_case(name).then(|| value.trim())
        })
    };
    let digits = field("CPU architecture").unwrap_or("");
    match u32::from_str(digits.trim_end_matches(|c: char| !c.is_ascii_digit())) {
        // Some kernels say 7 on the first Raspberry Pi.
        Ok(7) if field("model name").is_some_and(|m| m.starts_with("ARMv6-compatible")) => "v6",
        Ok(6) => "v6",
        Ok(5) => "v5",
        Ok(4) => "v4",
        // 32-bit programs on a 64-bit CPU are v7, and so is what nothing is known about, as plain `arm` is.
        _ => "v7",
    }
}

impl From<&PlatformFields> for Platform {
    fn from(fields: &PlatformFields) -> Self {
        Self {
            os_version: fields.os_version.clone().filter(|v| !v.is_empty()),
            os_features: fields.os_features.clone().unwrap_or_default(),
            ..Self::new(&fields.os, &fields.architecture, fields.variant.as_deref())
        }
    }
}

impl From<&Platform> for PlatformFields {
    fn from(platform: &Platform) -> Self {
        Self {
            architecture: platform.architecture.clone(),
            os: platform.os.clone(),
            variant: platform.variant.clone(),
            os_version: platform.os_version.clone(),
            os_features: (!platform.os_features.is_empty()).then(|| platform.os_features.clone()),
        }
    }
}

impl From<&ImageConfig> for Platform {
    fn from(config: &ImageConfig) -> Self {
        Self {
            os_version: config.os_version.clone().filter(|v| !v.is_empty()),
            os_features: config.os_features.clone().unwrap_or_default(),
            ..Self::new(&config.os, &config.architecture, config.variant.as_deref())
        }
    }
}

fn null_is_empty<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(Option::<String>::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> Platform {
        Platform::new("linux", "amd64", None)
    }

    fn parsed(text: &str) -> Requested {
        Requested::parse(text, &host()).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn words_that_steer_a_terminal_are_not_passed_on() {
        let good =
            PlatformFields { os: "cp/m".into(), architecture: "z80".into(), ..PlatformFields::default() };
        assert_eq!(check_words(&good), Ok(()));
        assert_eq!(check_words(&PlatformFields::default()), Ok(()));
        let of = |os: &str, variant: Option<&str>, features: &[&str]| PlatformFields {
            os: os.to_owned(),
            variant: variant.map(str::to_owned),
            os_features: Some(features.iter().map(|feature| (*feature).to_owned()).collect()),
            ..good.clone()
        };
        for (fields, expected) in [
            (of("li\nux", None, &[]), "its `os` is `li\\nux`: a word has 1 to 64 characters"),
            (of("linux", Some("\u{1b}[31m"), &[]), "its `variant` is `\\u{1b}[31m`"),
            (of("linux", Some(""), &[]), "its `variant` is ``"),
            (of("linux", None, &["a b"]), "its `os.features` is `a b`"),
            (of(&"x".repeat(65), None, &[]), "its `os` is `xxx"),
            (of("linux", None, &["a"; 65]), "it has more than 64 `os.features`"),
        ] {
            let error = check_words(&fields).expect_err(expected).to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn platforms_are_shown_in_one_spelling() {
        for (architecture, variant, expected) in [
            ("arm64", Some("v8"), "linux/arm64"),
            ("arm64", None, "linux/arm64"),
            ("arm64", Some("v8.2"), "linux/arm64/v8.2"),
            ("amd64", Some("v1"), "linux/amd64"),
            ("arm", Some("7"), "linux/arm/v7"),
            ("arm", None, "linux/arm"),
        ] {
            assert_eq!(Platform::new("linux", architecture, variant).shown().to_string(), expected);
        }
    }

    #[test]
    fn platforms_parse_and_normalise_as_in_the_table() {
        let table = include_str!("../../testdata/platforms/parse.tsv");
        let mut rows = 0;
        for line in table.lines().filter(|line| !line.starts_with('#')) {
            let [input, asked, normalised] = line.split('\t').collect::<Vec<_>>()[..] else {
                panic!("{line:?}")
            };
            let result = Requested::parse(input, &host());
            if asked == "ERR" {
                assert!(result.is_err(), "{input:?} gave {result:?}");
            } else {
                let requested = result.unwrap_or_else(|error| panic!("{input}: {error}"));
                assert_eq!(requested.asked.to_string(), asked, "{input}");
                assert_eq!(requested.normalised.to_string(), normalised, "{input}");
            }
            rows += 1;
        }
        assert!(rows >= 60, "{rows} rows");
    }

    #[test]
    fn what_is_printed_parses_to_the_same() {
        for text in
            ["linux/amd64/v3", "windows(10.0%2F1+win32k+a%25b)/amd64", "linux(+sse4)/arm64/v8", "wasi/wasm"]
        {
            let requested = parsed(text);
            assert_eq!(parsed(&requested.asked.to_string()), requested, "{text}");
        }
        assert_eq!(parsed("windows(10%2E0+%28x%29)/amd64").asked.os_features, ["(x)"]);
    }

    #[test]
    fn a_word_is_shown_whole_or_refused() {
        let word = |length| "a".repeat(length);
        let (longest, more) = (word(LONGEST_WORD), word(LONGEST_WORD + 1));
        for (before, after) in
            [("linux/", ""), ("linux/arm/", ""), ("", "/arm"), ("linux(", ")/arm"), ("linux(+", ")/arm")]
        {
            let platform = format!("{before}{longest}{after}");
            assert_eq!(parsed(&platform).asked.to_string(), platform);
            let error = Requested::parse(&format!("{before}{more}{after}"), &host()).unwrap_err().to_string();
            assert!(error.ends_with("a word of it is longer than 64 characters"), "{error}");
        }
        let of_an_image = Platform::new("linux", &word(300), None).to_string();
        assert_eq!(of_an_image, format!("linux/{longest}…"));
    }

    #[test]
    fn any_text_is_parsed_or_refused() {
        use proptest::prelude::*;
        proptest!(|(text in "[ -~]{0,24}|\\PC{0,12}|[a-z(+%):/.*]{0,20}")| {
            if let Ok(requested) = Requested::parse(&text, &host()) {
                let printed = requested.asked.to_string();
                prop_assert_eq!(Requested::parse(&printed, &host()).unwrap(), requested);
            }
        });
    }

    #[test]
    fn errors_name_the_part() {
        let error = |text| Requested::parse(text, &host()).unwrap_err().to_string();
        assert_eq!(
            error("linux/armv7l/v6"),
            "`linux/armv7l/v6` is not a platform: `armv7l` means variant `v7`, not `v6`"
        );
        assert_eq!(
            error("linux/a b"),
            "`linux/a b` is not a platform: `a b` is not a word, expected `os[/arch[/variant]]`"
        );
        assert!(error("windows(1)/amd64:2").contains("two versions"));
        for (text, architecture, meant) in [
            ("arm/v5", "arm", Some("linux/arm/v5")),
            ("aarch64/v8", "aarch64", Some("linux/aarch64/v8")),
            ("arm64/amd64", "arm64", None),
            ("arm/arm/v7", "arm", None),
            ("arm/windows", "arm", Some("windows/arm")),
            ("arm64/macOS", "arm64", Some("macOS/arm64")),
        ] {
            let meant = meant.map(|meant| format!(" (did you mean `{meant}`?)")).unwrap_or_default();
            assert_eq!(
                error(text),
                format!(
                    "`{text}` is not a platform: `{architecture}` is an architecture, and the operating system comes \
                     first{meant}"
                )
            );
        }
    }

    #[test]
    fn one_word_takes_the_rest_from_the_host() {
        let host = Platform::new("freebsd", "arm", Some("v6"));
        let asked = |text| Requested::parse(text, &host).unwrap().asked.to_string();
        assert_eq!(asked("linux"), "linux/arm/v6");
        assert_eq!(asked("s390x"), "freebsd/s390x");
        assert_eq!(asked("linux:7"), "linux(7)/arm/v6");
    }

    #[test]
    fn the_host_is_named_in_gos_words() {
        let pi1 = "processor : 0\nmodel name : ARMv6-compatible processor rev 7 (v6l)\nCPU architecture: 7\n";
        for (architecture, cpuinfo, expected) in [
            ("x86_64", "", "linux/amd64"),
            ("x86", "", "linux/386"),
            ("aarch64", "CPU architecture: 8\n", "linux/arm64"),
            ("arm", "CPU architecture: 8\n", "linux/arm/v7"),
            ("arm", "CPU architecture\t: 7\n", "linux/arm/v7"),
            ("arm", "CPU architecture: 5TEJ\n", "linux/arm/v5"),
            ("arm", pi1, "linux/arm/v6"),
            ("arm", "", "linux/arm/v7"),
            ("riscv64", "", "linux/riscv64"),
            ("s390x", "", "linux/s390x"),
        ] {
            assert_eq!(
                Platform::host("linux", architecture, || cpuinfo.to_owned()).to_string(),
                expected,
                "{architecture} {cpuinfo}"
            );
        }
        let amd64 = Platform::host("linux", "x86_64", || panic!("nothing there is about the platform"));
        assert_eq!(amd64.to_string(), "linux/amd64");
    }
}
