//! What an index is to be made of, as manifest-tool's specifications and arguments say it: text to values.
//!
//! The keys are manifest-tool's, and so is what they mean. Besides them there are `os.version` and `os.features`, as the
//! JSON of an index spells them; what is not known is an error with its place, not ignored.

mod template;
mod yaml;

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use crate::image::platform::{
    LONGEST_WORD, MOST_FEATURES, Platform, PlatformFields, WrittenError, check_written, is_readable,
};
use crate::image::reference::{Reference, ReferenceError};
use crate::image::shown;
use crate::limit::Limit;

pub use template::{Template, TemplateError, platforms};

use yaml::{Key, Node, Value};

/// How long a specification may be, in bytes.
pub const LIMIT: Limit = Limit::new("spec-bytes", 4 << 20);

/// The most members: an index has no more.
const MOST_MEMBERS: usize = crate::image::index::MOST_IMAGES;

/// The most tags, and the most annotations.
pub const MOST_ENTRIES: usize = 1000;

/// The most bytes of all annotations. Aliases make much of little.
const ANNOTATION_BYTES: usize = 1 << 20;

const KEYS: &[&str] = &["image", "tags", "annotations", "manifests"];
const MEMBER_KEYS: &[&str] = &["image", "platform"];
const PLATFORM_KEYS: &[&str] =
    &["architecture", "os", "variant", "osversion", "osfeatures", "os.version", "os.features"];

/// A place in a specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The line, from 1.
    pub line: usize,
    /// The character in the line, from 1.
    pub column: usize,
}

impl Place {
    /// Where a text begins.
    pub const START: Self = Self { line: 1, column: 1 };
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// What an index is to be made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// The names that the index gets, the first one first.
    pub names: Vec<Reference>,
    /// Annotations of the index.
    pub annotations: BTreeMap<String, String>,
    /// Where the annotations are said.
    pub annotations_at: Option<Place>,
    /// The images, in the order of the index.
    pub members: Vec<Member>,
}

/// An image, or an index of images, that an index is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub image: Reference,
    /// What the index is to say of it, as far as that is said.
    pub platform: PlatformFields,
    /// Where it is named, if that is in a specification.
    pub place: Option<Place>,
}

/// A specification that is wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind}")]
pub struct SpecError {
    /// Where.
    pub place: Place,
    /// What.
    #[source]
    pub kind: Box<SpecErrorKind>,
}

/// What is wrong with a specification.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecErrorKind {
    /// Longer than any honest one.
    #[error("the specification is longer than {value} bytes; {0}", value = .0.value)]
    TooLong(Limit),
    /// Other bytes than UTF-8.
    #[error("the specification is not UTF-8")]
    Encoding,
    /// No YAML.
    #[error("no valid YAML: {0}")]
    Syntax(String),
    /// More behind the first document.
    #[error("a second document begins here: a specification is one")]
    SecondDocument,
    /// `!!binary` and the like.
    #[error("the tag `{0}` is not supported: values are texts, lists and mappings")]
    Tag(String),
    /// A list or nothing where a key has to be.
    #[error("a key has to be a text")]
    Key,
    /// An alias within what it stands for.
    #[error("this alias is part of what it stands for")]
    Recursive,
    /// Values in values in values.
    #[error("values lie more than {0} deep in each other")]
    Depth(usize),
    /// Too many of all.
    #[error("the specification has more than {0} values")]
    Values(usize),
    /// Too many of one kind.
    #[error("there are more than {limit} {what}")]
    TooMany {
        /// What.
        what: &'static str,
        /// The most.
        limit: usize,
    },
    /// The same key twice.
    #[error("the key `{key}` is there twice, first in line {line}", line = .first.line)]
    Twice {
        /// The key.
        key: String,
        /// Where it is first.
        first: Place,
    },
    /// An image that is named again, for the same platform.
    #[error("`{name}` is there twice, first in line {line}: name it once", line = .first.line)]
    Again {
        /// Its name.
        name: String,
        /// Where it is first.
        first: Place,
    },
    /// A key that means nothing.
    #[error("unknown key `{key}`: there are {known}")]
    Unknown {
        /// The key.
        key: String,
        /// Those that there are.
        known: String,
    },
    /// `<<`.
    #[error("merging with `<<` is not supported: write the keys out, or use an alias for the whole")]
    Merge,
    /// Two spellings of one key.
    #[error("`{key}` says the same as `{other}` in line {line}", line = .first.line)]
    SameKey {
        /// The key.
        key: String,
        /// Its other spelling.
        other: String,
        /// Where that is.
        first: Place,
    },
    /// Something else than a mapping.
    #[error("{what} is {found}, expected a mapping")]
    Shape {
        /// What.
        what: &'static str,
        /// What there is.
        found: &'static str,
    },
    /// A list where a text has to be, and so on.
    #[error("`{key}` is {found}, expected {expected}")]
    Type {
        /// Of which key.
        key: String,
        /// What there is.
        found: &'static str,
        /// What has to be.
        expected: &'static str,
    },
    /// Not there.
    #[error("{0}")]
    Missing(&'static str),
    /// No name of an image.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// A name that only the result can tell.
    #[error("`{0}` is no name for an index that is yet to be made: it has a digest")]
    Digest(String),
    /// No platform.
    #[error(transparent)]
    Platform(#[from] WrittenError),
    /// A key of an annotation that nobody can write so.
    #[error("`{0}` is no key of an annotation: it has at least one character, and none that is invisible")]
    AnnotationKey(String),
    /// A version or feature that nobody can write so.
    #[error("`{key}` has to be 1 to {LONGEST_WORD} characters, none of them blank or invisible")]
    Word {
        /// Of which key.
        key: &'static str,
    },
}

impl SpecErrorKind {
    fn at(self, place: Place) -> SpecError {
        SpecError { place, kind: Box::new(self) }
    }
}

impl Spec {
    /// Reads a specification.
    ///
    /// # Errors
    /// [`SpecError`] with the first thing that is wrong.
    pub fn parse(bytes: &[u8], limit: Limit) -> Result<Self, SpecError> {
        if limit.is_exceeded_by(bytes.len() as u64) {
            return Err(SpecErrorKind::TooLong(limit).at(Place::START));
        }
        let text = match std::str::from_utf8(bytes) {
            Ok(text) => text.strip_prefix('\u{feff}').unwrap_or(text),
            Err(error) => {
                let valid = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
                let column = valid.chars().rev().take_while(|character| *character != '\n').count() + 1;
                let place = Place { line: valid.matches('\n').count() + 1, column };
                return Err(SpecErrorKind::Encoding.at(place));
            }
        };
        let document = yaml::read(text)?;
        Self::of_document(&document)
    }

    fn of_document(document: &Node<'_>) -> Result<Self, SpecError> {
        if matches!(document.value, Value::Null) {
            return Err(SpecErrorKind::Missing("the specification is empty").at(document.place));
        }
        let fields = Fields::of("the specification", document, KEYS)?;
        let missing = SpecErrorKind::Missing("there is no `image`: the name of the index to push");
        let (at, image) = fields.text("image")?.ok_or_else(|| missing.at(document.place))?;
        let image = reference(image, at)?;
        if image.digest().is_some() {
            return Err(SpecErrorKind::Digest(image.to_string()).at(at));
        }
        let mut names = vec![image.clone()];
        for (at, tag) in fields.texts("tags", "tags", MOST_ENTRIES)? {
            let name = image.with_tag(tag).map_err(|error| SpecErrorKind::Reference(error).at(at))?;
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let annotations = fields.annotations("annotations")?;
        let (at, entries) = match fields.get("manifests") {
            Some((key, node)) => (key.place, list(&key.text, node)?),
            None => (document.place, &[][..]),
        };
        if entries.is_empty() {
            let missing = "there are no `manifests`: the images that the index is to have";
            return Err(SpecErrorKind::Missing(missing).at(at));
        }
        check_count("images", entries.len(), MOST_MEMBERS, at)?;
        let members = entries.iter().map(|entry| Member::of(entry)).collect::<Result<Vec<_>, _>>()?;
        refuse_again(&members)?;
        let annotations_at = fields.get("annotations").map(|(key, _)| key.place);
        Ok(Self { names, annotations, annotations_at, members })
    }
}

impl Member {
    fn of(node: &Node<'_>) -> Result<Self, SpecError> {
        let fields = Fields::of("an entry of `manifests`", node, MEMBER_KEYS)?;
        let missing = SpecErrorKind::Missing("this entry of `manifests` has no `image`");
        let (at, image) = fields.text("image")?.ok_or_else(|| missing.at(node.place))?;
        let image = reference(image, at)?;
        let platform = match fields.get("platform") {
            Some((_, node)) if !matches!(node.value, Value::Null) => platform(node)?,
            _ => PlatformFields::default(),
        };
        Ok(Self { image, platform, place: Some(at) })
    }
}

fn platform(node: &Node<'_>) -> Result<PlatformFields, SpecError> {
    let fields = Fields::of("`platform`", node, PLATFORM_KEYS)?;
    let word = |name: &'static str| -> Result<Option<String>, SpecError> {
        let Some((at, text)) = fields.text(name)? else { return Ok(None) };
        checked_word(name, text, at).map(Some)
    };
    let version = fields.either("osversion", "os.version")?;
    let features = fields.either("osfeatures", "os.features")?;
    let os_features = fields
        .texts(features, "features", MOST_FEATURES)?
        .into_iter()
        .map(|(at, text)| checked_word(features, text, at))
        .collect::<Result<Vec<_>, _>>()?;
    let platform = PlatformFields {
        architecture: word("architecture")?.unwrap_or_default(),
        os: word("os")?.unwrap_or_default(),
        variant: word("variant")?,
        os_version: word(version)?,
        os_features: (!os_features.is_empty()).then_some(os_features),
    };
    check_written(&platform).map_err(|error| {
        let key = error.key();
        let at = fields.get(key).map_or(node.place, |(_, value)| value.place);
        SpecErrorKind::Platform(error).at(at)
    })?;
    Ok(platform)
}

/// Whether an annotation can be called so.
#[must_use]
pub fn is_annotation_key(key: &str) -> bool {
    !key.is_empty() && !key.chars().any(crate::text::is_deceptive)
}

/// No registry is asked twice for what could only be refused then.
fn refuse_again(members: &[Member]) -> Result<(), SpecError> {
    let mut known = BTreeMap::new();
    for member in members {
        let Some(at) = member.place else { continue };
        let platform = Platform::from(&member.platform).normalise();
        if let Some(first) = known.insert((&member.image, platform), at) {
            return Err(SpecErrorKind::Again { name: member.image.familiar(), first }.at(at));
        }
    }
    Ok(())
}

fn checked_word(key: &'static str, text: &str, at: Place) -> Result<String, SpecError> {
    if is_readable(text) { Ok(text.to_owned()) } else { Err(SpecErrorKind::Word { key }.at(at)) }
}

fn reference(text: &str, at: Place) -> Result<Reference, SpecError> {
    text.parse().map_err(|error| SpecErrorKind::Reference(error).at(at))
}

fn check_count(what: &'static str, count: usize, limit: usize, at: Place) -> Result<(), SpecError> {
    if count > limit { Err(SpecErrorKind::TooMany { what, limit }.at(at)) } else { Ok(()) }
}

/// The entries of a list; none where there is nothing.
fn list<'n, 'a>(key: &str, node: &'n Node<'a>) -> Result<&'n [Rc<Node<'a>>], SpecError> {
    match &node.value {
        Value::Null => Ok(&[]),
        Value::List(entries) => Ok(entries),
        other => Err(wrong(key, other, "a list").at(node.place)),
    }
}

fn wrong(key: &str, found: &Value<'_>, expected: &'static str) -> SpecErrorKind {
    SpecErrorKind::Type { key: shown(key), found: found.kind(), expected }
}

/// A mapping whose keys are all known.
struct Fields<'n, 'a>(&'n [(Key<'a>, Rc<Node<'a>>)]);

impl<'n, 'a> Fields<'n, 'a> {
    fn of(what: &'static str, node: &'n Node<'a>, known: &[&str]) -> Result<Self, SpecError> {
        let Value::Map(entries) = &node.value else {
            return Err(SpecErrorKind::Shape { what, found: node.value.kind() }.at(node.place));
        };
        for (key, _) in entries {
            if key.text == "<<" {
                return Err(SpecErrorKind::Merge.at(key.place));
            }
            if !known.contains(&&*key.text) {
                let known: Vec<String> = known.iter().map(|key| format!("`{key}`")).collect();
                let key_text = shown(&key.text);
                return Err(SpecErrorKind::Unknown { key: key_text, known: known.join(", ") }.at(key.place));
            }
        }
        Ok(Self(entries))
    }

    fn get(&self, name: &str) -> Option<(&'n Key<'a>, &'n Node<'a>)> {
        self.0.iter().find(|(key, _)| key.text == name).map(|(key, node)| (key, &**node))
    }

    /// The one of two spellings that is there.
    fn either(&self, one: &'static str, other: &'static str) -> Result<&'static str, SpecError> {
        match (self.get(one), self.get(other)) {
            (Some((first, _)), Some((second, _))) => {
                let (first, second) =
                    if first.place < second.place { (first, second) } else { (second, first) };
                let error = SpecErrorKind::SameKey {
                    key: second.text.clone().into_owned(),
                    other: first.text.clone().into_owned(),
                    first: first.place,
                };
                Err(error.at(second.place))
            }
            (None, Some(_)) => Ok(other),
            _ => Ok(one),
        }
    }

    fn text(&self, name: &'static str) -> Result<Option<(Place, &'n str)>, SpecError> {
        match self.get(name) {
            None => Ok(None),
            Some((_, node)) => text(name, node),
        }
    }

    fn texts(
        &self,
        name: &'static str,
        what: &'static str,
        limit: usize,
    ) -> Result<Vec<(Place, &'n str)>, SpecError> {
        let Some((key, node)) = self.get(name) else { return Ok(Vec::new()) };
        let entries = list(name, node)?;
        check_count(what, entries.len(), limit, key.place)?;
        let missing = |place| SpecErrorKind::Missing("this entry of the list is empty").at(place);
        entries.iter().map(|entry| text(name, entry)?.ok_or_else(|| missing(entry.place))).collect()
    }

    fn annotations(&self, name: &'static str) -> Result<BTreeMap<String, String>, SpecError> {
        let Some((key, node)) = self.get(name) else { return Ok(BTreeMap::new()) };
        let entries = match &node.value {
            Value::Null => &[][..],
            Value::Map(entries) => entries,
            other => return Err(wrong(name, other, "a mapping").at(node.place)),
        };
        check_count("annotations", entries.len(), MOST_ENTRIES, key.place)?;
        let mut annotations = BTreeMap::new();
        let mut bytes = 0;
        for (key, node) in entries {
            let value = match &node.value {
                Value::Null => "",
                Value::Text(text) => text,
                other => return Err(wrong(&key.text, other, "a text").at(node.place)),
            };
            if !is_annotation_key(&key.text) {
                return Err(SpecErrorKind::AnnotationKey(shown(&key.text)).at(key.place));
            }
            bytes += key.text.len() + value.len();
            check_count("bytes of annotations", bytes, ANNOTATION_BYTES, key.place)?;
            annotations.insert(key.text.clone().into_owned(), value.to_owned());
        }
        Ok(annotations)
    }
}

fn text<'n>(name: &str, node: &'n Node<'_>) -> Result<Option<(Place, &'n str)>, SpecError> {
    match &node.value {
        Value::Null => Ok(None),
        Value::Text(text) if text.is_empty() => Ok(None),
        Value::Text(text) => Ok(Some((node.place, text))),
        other => Err(wrong(name, other, "a text").at(node.place)),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn parse(text: &str) -> Result<Spec, SpecError> {
        Spec::parse(text.as_bytes(), LIMIT)
    }

    /// `line:column: message`.
    fn error(text: &[u8]) -> String {
        let error = Spec::parse(text, LIMIT).expect_err(&String::from_utf8_lossy(text));
        format!("{}: {error}", error.place)
    }

    /// One member, whose platform is written so.
    fn of_platform(platform: &str) -> String {
        format!("image: r.io/a:1\nmanifests:\n- image: r.io/b:1\n  platform: {platform}\n")
    }

    #[test]
    fn manifest_tool_s_keys_are_read() {
        let spec = parse(
            "# comment\nimage: reg.io:5000/some/image:latest\ntags: ['1.0', 3.20, latest, \"1\"]\n\
             annotations:\n  org.example.a: b\n  n: 1\n  empty:\nmanifests:\n\
             -\n  image: reg.io:5000/some/image:ppc64le\n  platform:\n    architecture: ppc64le\n    os: linux\n\
             - image: reg.io:5000/some/image:arm\n\
             - {image: 'reg.io:5000/w', platform: {os: windows, architecture: amd64, osversion: 10.0.20348.1, \
             osfeatures: [win32k]}}\n",
        )
        .expect("a specification");
        let names: Vec<String> = spec.names.iter().map(ToString::to_string).collect();
        // A tag is text, however much it looks like a number; one that is there already is no further one.
        assert_eq!(names, ["latest", "1.0", "3.20", "1"].map(|tag| format!("reg.io:5000/some/image:{tag}")));
        let annotations: Vec<_> =
            spec.annotations.iter().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(annotations, ["empty=", "n=1", "org.example.a=b"]);
        let members: Vec<String> = spec
            .members
            .iter()
            .map(|member| {
                let platform = serde_json::to_string(&member.platform).expect("JSON");
                format!("{} {} {platform}", member.place.expect("place"), member.image)
            })
            .collect();
        assert_eq!(
            members,
            [
                r#"10:10 reg.io:5000/some/image:ppc64le {"architecture":"ppc64le","os":"linux"}"#,
                r#"14:10 reg.io:5000/some/image:arm {"architecture":"","os":""}"#,
                r#"15:11 reg.io:5000/w:latest {"architecture":"amd64","os":"windows","os.version":"10.0.20348.1","os.features":["win32k"]}"#,
            ]
        );
    }

    #[test]
    fn the_spellings_of_json_are_taken_too() {
        let both = of_platform("{os: windows, architecture: amd64, osversion: 1.2.3, osfeatures: [a]}");
        let json = of_platform("{os: windows, architecture: amd64, os.version: 1.2.3, os.features: [a]}");
        assert_eq!(parse(&both).expect("old").members, parse(&json).expect("new").members);
        let yaml = "{\"image\": \"r.io/a:1\", \"manifests\": [{\"image\": \"r.io/b:1\"}]}";
        assert_eq!(parse(yaml).expect("JSON is YAML").members.len(), 1);
    }

    #[test]
    fn anchors_stand_for_whole_values() {
        let text = "image: r.io/a:1\nmanifests:\n- image: r.io/b:1\n  platform: &p {os: linux, architecture: arm}\n\
                    - image: r.io/c:1\n  platform: *p\n";
        let members = parse(text).expect("aliases").members;
        assert_eq!(members[0].platform, members[1].platform);
    }

    #[test]
    fn every_variant_of_the_image_specification_is_taken() {
        for (architecture, variants) in [
            ("amd64", &["v1", "v2", "v3", "v4"][..]),
            ("arm", &["v5", "v6", "v7", "v8"]),
            ("arm64", &["v8", "v8.1", "v8.9", "v9", "v9.5"]),
            ("ppc64le", &["power8", "power10"]),
            ("riscv64", &["rva20u64", "rva23u64"]),
        ] {
            for variant in variants {
                let text =
                    of_platform(&format!("{{os: linux, architecture: {architecture}, variant: {variant}}}"));
                let spec = parse(&text).unwrap_or_else(|error| panic!("{architecture}/{variant}: {error}"));
                assert_eq!(spec.members[0].platform.variant.as_deref(), Some(*variant));
            }
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        let two = "image: r.io/a:1\nmanifests:\n- image: r.io/b:1\n";
        for (text, expected) in [
            (String::new(), "1:1: the specification is empty"),
            ("# nothing\n".into(), "1:1: the specification is empty"),
            ("- a\n".into(), "1:1: the specification is a list, expected a mapping"),
            ("tags: [a]\n".into(), "1:1: there is no `image`: the name of the index to push"),
            (
                "image: r.io/a:1\n".into(),
                "1:1: there are no `manifests`: the images that the index is to have",
            ),
            (
                "image: r.io/a:1\nmanifests: []\n".into(),
                "2:1: there are no `manifests`: the images that the index is to have",
            ),
            (
                format!("{two}tag: x\n"),
                "4:1: unknown key `tag`: there are `image`, `tags`, `annotations`, `manifests`",
            ),
            (format!("{two}Tags: [x]\n"), "4:1: unknown key `Tags`: there are"),
            (
                of_platform("{os: linux, features: [sse]}"),
                "4:25: unknown key `features`: there are `architecture`, `os`, `variant`, `osversion`, `osfeatures`, \
                 `os.version`, `os.features`",
            ),
            (of_platform("{OSVersion: '1'}"), "4:14: unknown key `OSVersion`"),
            (
                of_platform("{osversion: '1', os.version: '1'}"),
                "4:30: `os.version` says the same as `osversion` in line 4",
            ),
            (of_platform("linux/amd64"), "4:13: `platform` is a text, expected a mapping"),
            (of_platform("{os: [linux]}"), "4:18: `os` is a list, expected a text"),
            (of_platform("{os: linux, os.features: x}"), "4:38: `os.features` is a text, expected a list"),
            (
                of_platform("{os: Linux}"),
                "4:18: `Linux` is not an operating system in Go's words: write `linux`",
            ),
            (of_platform("{os: linus}"), "4:18: `linus` is not an operating system in Go's words"),
            (
                of_platform("{os: linux, architecture: aarch64}"),
                "4:39: `aarch64` is not an architecture in Go's words: write `arm64`",
            ),
            (
                of_platform("{os: linux, architecture: armhf}"),
                "4:39: `armhf` is not an architecture in Go's words: write `arm` with variant `v7`",
            ),
            (
                of_platform("{os: linux, architecture: amd64, variant: v5}"),
                "4:55: `v5` is not a variant of amd64: there are v1 to v4",
            ),
            (
                of_platform("{os: linux, architecture: s390x, variant: z15}"),
                "4:55: `z15` is not a variant of s390x: there are none",
            ),
            (
                of_platform("{os: linux, variant: v7}"),
                "4:34: the variant `v7` stands without an architecture",
            ),
            (
                of_platform("{os: \"a b\"}"),
                "4:18: `os` has to be 1 to 64 characters, none of them blank or invisible",
            ),
            (two.replace("r.io/b", "r.io/B"), "3:10: `r.io/B:1` is not an image name"),
            (two.replace("image: r.io/b:1", "platform: {}"), "3:3: this entry of `manifests` has no `image`"),
            (
                two.replace("- image: r.io/b:1", "- r.io/b:1"),
                "3:3: an entry of `manifests` is a text, expected a mapping",
            ),
            (two.replace("- image", "  image"), "3:3: `manifests` is a mapping, expected a list"),
            (format!("{two}tags: a\n"), "4:7: `tags` is a text, expected a list"),
            (format!("{two}tags: [a, '']\n"), "4:11: this entry of the list is empty"),
            (format!("{two}tags: [a b]\n"), "4:8: `a b` is not an image name: tag `a b`"),
            (format!("{two}annotations: {{a: [b]}}\n"), "4:18: `a` is a list, expected a text"),
            (format!("{two}image: r.io/c:1\n"), "4:1: the key `image` is there twice, first in line 1"),
            (
                format!("{two}- image: r.io/b:1\n"),
                "4:10: `r.io/b:1` is there twice, first in line 3: name it once",
            ),
            (
                of_platform(
                    "{os: linux, architecture: arm}\n- {image: r.io/b:1, platform: {os: linux, architecture: arm, variant: v7}}",
                ),
                "5:11: `r.io/b:1` is there twice, first in line 3",
            ),
            (format!("{two}annotations: {{'': b}}\n"), "4:15: `` is no key of an annotation"),
            (format!("{two}annotations: {{\"a\\nb\": b}}\n"), "4:15: `a\\nb` is no key of an annotation"),
            (format!("{two}<<: {{}}\n"), "4:1: merging with `<<` is not supported"),
            (format!("{two}---\nimage: x\n"), "4:1: a second document begins here: a specification is one"),
            (format!("{two}? [a]\n: b\n"), "4:3: a key has to be a text"),
            (
                format!("{two}tags: [!!binary aGk=]\n"),
                "4:8: the tag `tag:yaml.org,2002:!binary` is not supported",
            ),
            (two.replace("r.io/b:1", "*x"), "3:10: no valid YAML: while parsing node, found unknown anchor"),
            (format!("{two}tags: &a [*a]\n"), "4:11: this alias is part of what it stands for"),
            (format!("{two}\tx: y\n"), "3:10: no valid YAML"),
            (format!("{two}tags: [a\n"), "5:1: no valid YAML"),
            (two.replace("r.io/a:1", &format!("r.io/a@sha256:{}", "a".repeat(64))), "1:8: `r.io/a@sha256:"),
        ] {
            let error = error(text.as_bytes());
            assert!(error.starts_with(expected), "{error:?} does not begin with {expected:?} for\n{text}");
        }
        assert_eq!(error(b"image: \xff"), "1:8: the specification is not UTF-8");
        assert_eq!(error("a: 1\nb: ä\u{0}\n".as_bytes()).split(':').next(), Some("2"));
    }

    /// Bombs and other excesses end soon, and take no memory: aliases of aliases are 10^9 texts in the first one.
    #[test]
    fn hostile_texts_end_soon() {
        let mut laughs = "image: r.io/a:1\na0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..9 {
            let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
            laughs.push_str(&format!("a{level}: &a{level} [{aliases}]\n"));
        }
        let long = "x".repeat(1 << 20);
        let repeated = |text: &str, count: usize| text.repeat(count);
        for (text, expected) in [
            (laughs, "unknown key `a0`"),
            (repeated("[", 1 << 20), "recursion limit exceeded"),
            (repeated("- ", 1 << 20), "more than 16 deep"),
            (repeated("? ", 1 << 20), ""),
            (repeated("{a: ", 1 << 20), ""),
            (format!("tags: [{}]", repeated("a,", 1 << 20)), "more than 200000 values"),
            (format!("image: r.io/a:1\ntags: [{}]", repeated("a,", 2000)), "more than 1000 tags"),
            (
                format!("image: r.io/a:1\nmanifests: [&m {{image: r.io/b}}{}]", repeated(", *m", 10_000)),
                "more than 10000 images",
            ),
            (
                format!(
                    "image: r.io/a:1\nannotations: {{a: &a {long}{}}}",
                    (0..900).map(|n| format!(", b{n}: *a")).collect::<String>()
                ),
                "more than 1048576 bytes of annotations",
            ),
            (of_platform(&format!("{{os: {long}}}")), "`os` has to be 1 to 64 characters"),
            (of_platform(&format!("{{os.features: [{}]}}", repeated("a,", 65))), "more than 64 features"),
            (format!("image: {long}"), "is not an image name"),
            (repeated("&a ", 1 << 20), ""),
            (repeated("!a ", 1 << 20), ""),
            (repeated("\n", 4 << 20), "the specification is empty"),
            (repeated("#", 4 << 20), "the specification is empty"),
            (repeated("a\n", 2 << 20), ""),
            (repeated("\"", 4 << 20), ""),
            (repeated("%TAG !a! b\n", 1 << 18), ""),
            (repeated("a: ", 1 << 20), ""),
            (repeated("a:\n ", 1 << 20), ""),
            (repeated(" ", (4 << 20) + 1), "longer than 4194304 bytes; raise it with `--limit spec-bytes=N`"),
        ] {
            let begun = Instant::now();
            let error = error(text.as_bytes());
            let beginning: String = text.chars().take(40).collect();
            assert!(error.contains(expected), "{error:?} does not say {expected:?} for {beginning}");
            assert!(error.len() < 400, "{} bytes of error for {beginning}", error.len());
            let taken = begun.elapsed();
            assert!(taken < Duration::from_secs(20), "{taken:?} for {beginning}");
        }
    }
}
