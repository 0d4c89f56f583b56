//! The keys of `--output`, and one flag's text taken apart.

use std::collections::BTreeMap;

use super::annotations::{self, Annotation};
use crate::cli::failure::Failure;
use crate::dockerfile::{csv_fields, parse_bool, suggest};

/// The flag, as messages call it.
pub(super) const FLAG: &str = "--output";

/// What `type=` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Type {
    /// An image in builder's store; with `push` in a registry.
    Image,
    /// An image in a registry.
    Registry,
    /// An OCI layout, in an archive or a directory.
    Oci,
    /// The same with what `docker load` reads.
    Docker,
    /// The root file system as a directory.
    Local,
    /// The root file system as a tar archive.
    Tar,
    /// Nothing.
    CacheOnly,
}

impl Type {
    const ALL: [Self; 7] =
        [Self::Image, Self::Registry, Self::Oci, Self::Docker, Self::Local, Self::Tar, Self::CacheOnly];

    /// The word for it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Registry => "registry",
            Self::Oci => "oci",
            Self::Docker => "docker",
            Self::Local => "local",
            Self::Tar => "tar",
            Self::CacheOnly => "cacheonly",
        }
    }

    fn parse(text: &str) -> Result<Self, Failure> {
        if let Some(found) = Self::ALL.into_iter().find(|kind| kind.name() == text) {
            return Ok(found);
        }
        let names = Self::ALL.map(Self::name);
        let near = suggest(text, &names).map(|near| format!(" (did you mean `{near}`?)")).unwrap_or_default();
        Err(Failure::new(format!("there is no type `{text}`{near}"))
            .of_flag(FLAG)
            .hint(format!("there are {}", names.join(", "))))
    }
}

/// What becomes of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    /// It does what it does in BuildKit.
    Done,
    /// It changes nothing here, which is said; the text says why.
    NoEffect(&'static str),
    /// It is refused, unless its value is `false`; the text says what is not supported yet.
    Later(&'static str),
}

/// One key.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) types: &'static [Type],
    pub(super) status: Status,
}

const IMAGES: &[Type] = &[Type::Image, Type::Registry, Type::Oci, Type::Docker];
const PUSHED: &[Type] = &[Type::Image, Type::Registry];
const FILES: &[Type] = &[Type::Oci, Type::Docker, Type::Local, Type::Tar];
const ARCHIVES: &[Type] = &[Type::Oci, Type::Docker];
const ROOTS: &[Type] = &[Type::Local, Type::Tar];
const NO_NAMES: &str = "the store keeps no images without a name";

const fn done(name: &'static str, types: &'static [Type]) -> Key {
    Key { name, types, status: Status::Done }
}

const fn idle(name: &'static str, types: &'static [Type], why: &'static str) -> Key {
    Key { name, types, status: Status::NoEffect(why) }
}

const fn later(name: &'static str, types: &'static [Type], what: &'static str) -> Key {
    Key { name, types, status: Status::Later(what) }
}

/// All keys but `type` and those of annotations.
pub(super) const KEYS: &[Key] = &[
    done("dest", FILES),
    done("name", IMAGES),
    done("push", PUSHED),
    done("push-by-digest", PUSHED),
    done("registry.insecure", PUSHED),
    done("tar", ARCHIVES),
    done("oci-mediatypes", IMAGES),
    done("compression", IMAGES),
    done("compression-level", IMAGES),
    done("force-compression", IMAGES),
    done("rewrite-timestamp", IMAGES),
    done("source-date-epoch", IMAGES),
    done("prefer-nondist-layers", IMAGES),
    done("mode", &[Type::Local]),
    done("platform-split", ROOTS),
    idle("unpack", PUSHED, "the store unpacks what a build needs"),
    idle("store", PUSHED, "what is built is in the store"),
    idle("name-canonical", PUSHED, "every image of the store can be had by its digest"),
    idle("dangling-name-prefix", PUSHED, NO_NAMES),
    idle("danging-name-empty-only", PUSHED, NO_NAMES),
    later("oci-artifact", IMAGES, "attestations"),
    later("attestation-inline", IMAGES, "attestations"),
    later("attestation-prefix", ROOTS, "attestations"),
];

/// One flag, taken apart.
#[derive(Debug)]
pub(super) struct Fields {
    /// As it was given.
    pub(super) text: String,
    /// What it is about.
    pub(super) kind: Type,
    values: BTreeMap<&'static str, String>,
    /// Those with `annotation` keys.
    pub(super) annotations: Vec<Annotation>,
}

impl Fields {
    /// Reads the text of one flag; says of keys without effect that they have none.
    pub(super) fn parse(text: &str, warnings: &mut Vec<String>) -> Result<Self, Failure> {
        let failed = |message: String| Failure::new(message).of_flag(FLAG);
        let fields = csv_fields(text.as_bytes()).map_err(|what| failed(format!("`{text}`: {what}")))?;
        let fields: Vec<String> =
            fields.into_iter().map(|field| String::from_utf8_lossy(&field).into_owned()).collect();
        if let [word] = &fields[..]
            && !word.starts_with("type=")
        {
            return Self::short(word);
        }
        let mut pairs = Vec::new();
        let mut kind = None;
        for field in &fields {
            let Some((key, value)) = field.split_once('=') else {
                return Err(failed(format!("`{field}` has no `=`: expected `type=TYPE,KEY=VALUE,…`")));
            };
            match key.trim().to_lowercase().as_str() {
                "type" => kind = Some(Type::parse(value)?),
                _ => pairs.push((key.trim(), value)),
            }
        }
        let misspelt = || pairs.iter().find_map(|(key, _)| misspelt(key, text));
        let kind = kind.ok_or_else(|| misspelt().unwrap_or_else(|| no_type(text)))?;
        let mut found =
            Self { text: text.to_owned(), kind, values: BTreeMap::new(), annotations: Vec::new() };
        for (key, value) in pairs {
            found.add(key, value, warnings)?;
        }
        Ok(found)
    }

    /// `DIR` is a directory, and `-` a tar archive to standard output.
    fn short(word: &str) -> Result<Self, Failure> {
        let key = word.split_once('=').map_or("", |(key, _)| key);
        if word.is_empty() || KEYS.iter().any(|known| known.name == key) || annotations::is_key(key) {
            return Err(no_type(word));
        }
        if let Some(failure) = misspelt(key, word) {
            return Err(failure);
        }
        let kind = if word == "-" { Type::Tar } else { Type::Local };
        let values = BTreeMap::from([("dest", word.to_owned())]);
        Ok(Self { text: word.to_owned(), kind, values, annotations: Vec::new() })
    }

    fn add(&mut self, name: &str, value: &str, warnings: &mut Vec<String>) -> Result<(), Failure> {
        let kind = self.kind.name();
        if annotations::is_key(name) {
            if !IMAGES.contains(&self.kind) {
                let message = format!("type={kind} writes no manifest that could have annotations");
                return Err(Failure::new(message).of_flag(FLAG));
            }
            self.annotations.push(Annotation::of_key(name, value)?);
            return Ok(());
        }
        let name = name.to_lowercase();
        let Some(key) = KEYS.iter().find(|key| key.name == name && key.types.contains(&self.kind)) else {
            return Err(self.unknown(&name));
        };
        match key.status {
            Status::Done => {}
            Status::NoEffect(why) => {
                warnings.push(format!("{FLAG}: `{name}` has no effect: {why}"));
            }
            Status::Later(_) if parse_bool(value) == Some(false) => {}
            Status::Later(what) => {
                return Err(Failure::new(format!("`{name}`: {what} are not supported yet")).of_flag(FLAG));
            }
        }
        if self.values.insert(key.name, value.to_owned()).is_some() {
            return Err(Failure::new(format!("`{name}` is given twice")).of_flag(FLAG));
        }
        Ok(())
    }

    fn unknown(&self, name: &str) -> Failure {
        let kind = self.kind.name();
        let here: Vec<&str> =
            KEYS.iter().filter(|key| key.types.contains(&self.kind)).map(|key| key.name).collect();
        let elsewhere = KEYS.iter().find(|key| key.name == name);
        let failure = match (elsewhere, suggest(name, &here)) {
            (Some(key), _) => {
                let types: Vec<String> =
                    key.types.iter().map(|kind| format!("type={}", kind.name())).collect();
                Failure::new(format!("type={kind} has no key `{name}`: it is one of {}", types.join(", ")))
            }
            (None, Some(near)) => {
                Failure::new(format!("type={kind} has no key `{name}` (did you mean `{near}`?)"))
            }
            (None, None) => Failure::new(format!("type={kind} has no key `{name}`")),
        };
        let keys = if here.is_empty() { "no keys".to_owned() } else { here.join(", ") };
        failure.of_flag(FLAG).hint(format!("type={kind} has {keys}"))
    }

    /// The value of a key; none if it is not there.
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(String::as_str)
    }

    /// The value of a key that is there and not empty.
    pub(super) fn filled(&self, key: &str) -> Option<&str> {
        self.get(key).filter(|value| !value.is_empty())
    }

    /// Whether a key says `true`, as Go reads such words; none if it is not there.
    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>, Failure> {
        let Some(value) = self.get(key) else { return Ok(None) };
        parse_bool(value)
            .map(Some)
            .ok_or_else(|| Failure::new(format!("`{key}={value}`: expected `true` or `false`")).of_flag(FLAG))
    }
}

/// What is said where `key` of the output `text`, which has no type, is nearly one that there is: docker makes a directory of
/// that name.
fn misspelt(key: &str, text: &str) -> Option<Failure> {
    let names: Vec<&str> = std::iter::once("type").chain(KEYS.iter().map(|key| key.name)).collect();
    // Short names are near to everything.
    let near = suggest(key, &names).filter(|_| key.len() > 2)?;
    let directory =
        if text.contains(',') { String::new() } else { format!("; a directory of that name is `./{text}`") };
    let failure = Failure::new(format!("`{text}`: there is no key `{key}` (did you mean `{near}`?)"));
    let done = KEYS.iter().filter(|key| key.status == Status::Done).map(|key| key.name);
    let keys: Vec<&str> = std::iter::once("type").chain(done).collect();
    Some(failure.of_flag(FLAG).hint(format!("the keys are {}{directory}", keys.join(", "))))
}

fn no_type(text: &str) -> Failure {
    Failure::new(format!("type is required for output `{text}`"))
        .of_flag(FLAG)
        .hint("for instance `-o type=oci,dest=image.tar`; `-o DIR` alone writes the root file system to DIR")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Key and value.
    type Pair = (&'static str, String);

    fn parse(text: &str) -> Result<(Type, Vec<Pair>), String> {
        let mut warnings = Vec::new();
        let fields = Fields::parse(text, &mut warnings).map_err(|failure| failure.message)?;
        Ok((fields.kind, fields.values.into_iter().collect()))
    }

    #[test]
    fn a_flag_is_taken_apart_as_buildx_does() {
        let values = |pairs: &[(&'static str, &str)]| -> Vec<Pair> {
            pairs.iter().map(|(key, value)| (*key, (*value).to_owned())).collect()
        };
        for (text, kind, expected) in [
            ("out", Type::Local, &[("dest", "out")][..]),
            ("-", Type::Tar, &[("dest", "-")]),
            ("a=b", Type::Local, &[("dest", "a=b")]),
            ("./tpye=local", Type::Local, &[("dest", "./tpye=local")]),
            ("build/variant=1", Type::Local, &[("dest", "build/variant=1")]),
            ("type=tar", Type::Tar, &[]),
            ("type=tar,dest=a=b", Type::Tar, &[("dest", "a=b")]),
            ("dest=x, TAR=false,Type=oci", Type::Oci, &[("dest", "x"), ("tar", "false")]),
            ("type=oci,\"name=a,b\"", Type::Oci, &[("name", "a,b")]),
            ("type=oci,\"dest=a\"\"b\"", Type::Oci, &[("dest", "a\"b")]),
            ("type=image,oci-artifact=false", Type::Image, &[("oci-artifact", "false")]),
            ("type=cacheonly", Type::CacheOnly, &[]),
        ] {
            assert_eq!(parse(text), Ok((kind, values(expected))), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_flag_is_said() {
        for (text, message) in [
            ("", "--output: type is required for output ``"),
            ("dest=x", "--output: type is required for output `dest=x`"),
            ("dest=x,tar=false", "--output: type is required for output `dest=x,tar=false`"),
            ("type=", "--output: there is no type ``"),
            ("tpye=local", "--output: `tpye=local`: there is no key `tpye` (did you mean `type`?)"),
            ("Type=local,dst=x", "--output: type=local has no key `dst` (did you mean `dest`?)"),
            (
                "typ=local,dest=x",
                "--output: `typ=local,dest=x`: there is no key `typ` (did you mean `type`?)",
            ),
            ("dst=out", "--output: `dst=out`: there is no key `dst` (did you mean `dest`?)"),
            ("type=dockr", "--output: there is no type `dockr` (did you mean `docker`?)"),
            ("type=oci,dest", "--output: `dest` has no `=`: expected `type=TYPE,KEY=VALUE,…`"),
            ("type=oci,dst=x", "--output: type=oci has no key `dst` (did you mean `dest`?)"),
            ("type=oci,mode=delete", "--output: type=oci has no key `mode`: it is one of type=local"),
            ("type=oci,frobnicate=1", "--output: type=oci has no key `frobnicate`"),
            ("type=oci,dest=a,dest=b", "--output: `dest` is given twice"),
            ("type=oci,oci-artifact=true", "--output: `oci-artifact`: attestations are not supported yet"),
            ("type=tar,annotation.a=b", "--output: type=tar writes no manifest that could have annotations"),
            ("type=oci,\"dest=x", "--output: `type=oci,\"dest=x`: extraneous or missing \" in quoted-field"),
        ] {
            assert_eq!(parse(text), Err(message.to_owned()), "{text}");
        }
    }

    #[test]
    fn what_has_no_effect_is_told() {
        let mut warnings = Vec::new();
        Fields::parse("type=image,unpack=true", &mut warnings).unwrap();
        assert_eq!(warnings, ["--output: `unpack` has no effect: the store unpacks what a build needs"]);
    }

    #[test]
    fn the_documentation_has_every_type_and_key() {
        let page = include_str!("../../../docs/outputs.md");
        let is_told = |word: &str| page.lines().any(|line| line.starts_with(&format!("| `{word}`")));
        for kind in Type::ALL {
            assert!(is_told(&format!("type={}", kind.name())), "type={}", kind.name());
        }
        for key in KEYS {
            assert!(is_told(key.name), "{}", key.name);
            let row = page.lines().find(|line| line.starts_with(&format!("| `{}`", key.name))).unwrap();
            let types = row.split('|').nth(2).unwrap();
            for kind in Type::ALL {
                let listed = types.split(|c: char| !c.is_alphanumeric()).any(|word| word == kind.name());
                assert_eq!(listed, key.types.contains(&kind), "{} and {}", key.name, kind.name());
            }
            let word = match key.status {
                Status::Done => None,
                Status::NoEffect(_) => Some("no effect"),
                Status::Later(_) => Some("refused"),
            };
            assert!(word.is_none_or(|word| row.contains(word)), "{row}");
        }
    }
}
