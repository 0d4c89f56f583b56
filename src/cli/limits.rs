//! `--limit NAME=VALUE` and `BUILDER_LIMITS`: every limit that the user may raise, by name.

use super::failure::Failure;
use crate::build::services::BuildLimits;
use crate::context::{ContextLimits, DOWNLOAD_LIMIT, GitLimits, ignore};
use crate::dockerfile::suggest;
use crate::image::document::{self, DocumentLimits};
use crate::layer;
use crate::limit::Limit;
use crate::rootfs::{Overrides, users::DATABASE_LIMIT};
use crate::spec;

/// The limits of all modules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    /// Of manifests, indexes and configs.
    pub(super) documents: DocumentLimits,
    /// Of layers and archives.
    pub(super) layers: layer::Limits,
    /// Of Dockerfiles and ignore rules.
    pub(super) context: ContextLimits,
    /// Of files that are fetched from URLs.
    pub(super) download: Limit,
    /// Of git repositories.
    pub(super) git: GitLimits,
    /// Of `/etc/passwd` and `/etc/group`.
    pub(super) users: Limit,
    /// Of specifications of indexes.
    pub(super) spec: Limit,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            documents: DocumentLimits::default(),
            layers: layer::Limits::default(),
            context: ContextLimits::default(),
            download: DOWNLOAD_LIMIT,
            git: GitLimits::default(),
            users: DATABASE_LIMIT,
            spec: spec::LIMIT,
        }
    }
}

/// What a limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    /// Bytes: the value may have a suffix.
    Bytes,
    /// Things.
    Count,
}

/// One limit that can be set.
struct Setting {
    /// Its name and usual value.
    usual: Limit,
    unit: Unit,
    /// What it is the limit of.
    what: &'static str,
    /// What else is to be known of it.
    note: fn() -> String,
    of: fn(&mut Limits) -> &mut Limit,
}

const fn bytes(usual: Limit, what: &'static str, of: fn(&mut Limits) -> &mut Limit) -> Setting {
    Setting { usual, unit: Unit::Bytes, what, note: String::new, of }
}

const fn count(usual: Limit, what: &'static str, of: fn(&mut Limits) -> &mut Limit) -> Setting {
    Setting { usual, unit: Unit::Count, what, note: String::new, of }
}

/// All of them, in the order of the documentation.
const SETTINGS: [Setting; 25] = [
    bytes(
        layer::Limits::BYTES,
        "a layer or an archive for ADD, uncompressed, and all its files together, holes included",
        |limits| &mut limits.layers.bytes,
    ),
    count(
        layer::Limits::ENTRIES,
        "entries of a layer or archive and directories that have no entry of their own",
        |limits| &mut limits.layers.entries,
    ),
    bytes(
        layer::Limits::NAMES,
        "names that must be remembered of a layer: directories without entry, hard links into lower layers",
        |limits| &mut limits.layers.names,
    ),
    bytes(
        Overrides::LIMIT,
        "what the disk cannot hold of the files of a layer or step (owners, devices, attributes), beyond 200 an entry: without privileges, memory that is taken",
        |limits| &mut limits.layers.overrides,
    ),
    bytes(
        layer::Limits::EXTENSION,
        "the PAX records, the long name or the sparse map of one entry",
        |limits| &mut limits.layers.extension,
    ),
    bytes(
        layer::Limits::WINDOW,
        "the window of a zstd frame, or of the dictionary or the index (16 a block) of an xz archive: memory that unpacking takes",
        |limits| &mut limits.layers.window,
    ),
    bytes(
        layer::Limits::WRITTEN,
        "all files of a layer that a step makes, holes included; of COPY and ADD also of all sources together, each as often as it is named",
        |limits| &mut limits.layers.written,
    ),
    bytes(DocumentLimits::MANIFEST, "a manifest", |limits| &mut limits.documents.manifest),
    bytes(DocumentLimits::INDEX, "an index, `index.json` of a layout included", |limits| {
        &mut limits.documents.index
    }),
    bytes(DocumentLimits::CONFIG, "the config of an image", |limits| &mut limits.documents.config),
    bytes(
        DocumentLimits::BASES,
        "the configs of all bases of a build together, for each platform anew: they are in memory",
        |limits| &mut limits.documents.bases,
    )
    .noted(of_bases),
    count(DocumentLimits::NESTING, "indexes within indexes: how deep", |limits| {
        &mut limits.documents.nesting
    }),
    bytes(ContextLimits::DOCKERFILE, "the Dockerfile", |limits| &mut limits.context.dockerfile),
    bytes(ignore::BYTES_LIMIT, "the `.dockerignore` file", |limits| &mut limits.context.ignore_bytes),
    count(ignore::PATTERNS_LIMIT, "patterns in the `.dockerignore` file", |limits| {
        &mut limits.context.ignore_patterns
    }),
    bytes(DOWNLOAD_LIMIT, "a file that is fetched from a URL, for ADD or as a named context", |limits| {
        &mut limits.download
    }),
    bytes(
        GitLimits::BYTES,
        "a git repository on disk: its files, those of its submodules, and what git keeps of them",
        |limits| &mut limits.git.bytes,
    ),
    count(GitLimits::ENTRIES, "files and directories of a git repository on disk, likewise", |limits| {
        &mut limits.git.entries
    }),
    count(GitLimits::SECONDS, "seconds that a git repository may take as a whole", |limits| {
        &mut limits.git.seconds
    }),
    count(GitLimits::IDLE, "seconds in which nothing comes of a git repository", |limits| {
        &mut limits.git.idle
    }),
    bytes(GitLimits::MEMORY, "memory of one process of git", |limits| &mut limits.git.memory),
    count(GitLimits::SUBMODULES, "submodules of a git repository, and theirs", |limits| {
        &mut limits.git.submodules
    }),
    count(GitLimits::NESTING, "submodules within submodules: how deep", |limits| &mut limits.git.nesting),
    bytes(spec::LIMIT, "the YAML file of `manifest push from-spec`", |limits| &mut limits.spec),
    bytes(DATABASE_LIMIT, "`/etc/passwd` and `/etc/group` of an image, each", |limits| &mut limits.users),
];

/// What is to be known of the limit on the configs of bases.
fn of_bases() -> String {
    let (own, one) = (DocumentLimits::BASES.name(), DocumentLimits::CONFIG.name());
    format!("; {}. Where `{own}` is not set, it is no less than `{one}`", document::cost_in_words())
}

impl Setting {
    const fn noted(self, note: fn() -> String) -> Self {
        Self { note, ..self }
    }

    /// The usual value as people write it.
    fn usual_value(&self) -> String {
        let value = self.usual.value;
        let suffix = SUFFIXES.iter().rev().find(|(_, shift)| value.is_multiple_of(1 << shift));
        match (self.unit, suffix) {
            (Unit::Bytes, Some((suffix, shift))) => format!("{}{suffix}", value >> shift),
            _ => value.to_string(),
        }
    }

    fn meaning(&self) -> String {
        let unit = match self.unit {
            Unit::Bytes => "bytes of ",
            Unit::Count => "",
        };
        format!("{unit}{}{}", self.what, (self.note)())
    }
}

/// What `builder help limits` says.
pub(super) fn help() -> String {
    let lines = |setting: &Setting| {
        format!("\n  {}={}\n      {}\n", setting.usual.name(), setting.usual_value(), setting.meaning())
    };
    let lines: String = SETTINGS.iter().map(lines).collect();
    format!(
        "Limits on what is read or written, with their usual values. Others are set by --limit NAME=VALUE\n\
         (repeatable), or by BUILDER_LIMITS=NAME=VALUE,… in the environment.\n{lines}"
    )
}

impl Limits {
    /// The limits of what a build reads and writes itself.
    pub(super) fn of_build(&self) -> BuildLimits {
        BuildLimits { layers: self.layers, users: self.users }
    }

    /// The usual limits, changed by the variable `BUILDER_LIMITS` and then by the flags, each `NAME=VALUE`.
    pub(super) fn resolve(variable: Option<&str>, flags: &[String]) -> Result<Self, Failure> {
        let mut limits = Self::default();
        let mut set = Vec::new();
        for text in variable.unwrap_or_default().split(',').map(str::trim).filter(|text| !text.is_empty()) {
            set.push(limits.set(text).map_err(|failure| failure.of_flag("BUILDER_LIMITS"))?);
        }
        for text in flags {
            set.push(limits.set(text).map_err(|failure| failure.of_flag("--limit"))?);
        }
        let documents = &mut limits.documents;
        if !set.contains(&DocumentLimits::BASES.name()) {
            // Whoever allows one config that is larger allows that as well.
            documents.bases = documents.bases.with(documents.bases.value.max(documents.config.value));
        }
        Ok(limits)
    }

    /// Sets the limit that `text` names; gives its name.
    fn set(&mut self, text: &str) -> Result<&'static str, Failure> {
        let Some((name, value)) = text.split_once('=') else {
            return Err(Failure::new(format!("`{text}` is no limit, expected `NAME=VALUE`")).hint(names()));
        };
        let Some(setting) = SETTINGS.iter().find(|setting| setting.usual.name() == name) else {
            let known: Vec<&str> = SETTINGS.iter().map(|setting| setting.usual.name()).collect();
            let near =
                suggest(name, &known).map(|near| format!(" (did you mean `{near}`?)")).unwrap_or_default();
            return Err(Failure::new(format!("there is no limit `{name}`{near}")).hint(names()));
        };
        let limit = (setting.of)(self);
        *limit = limit.with(number(value, setting.unit).ok_or_else(|| {
            let expected = match setting.unit {
                Unit::Bytes => "a number of bytes, with KiB, MiB, GiB or TiB if you like",
                Unit::Count => "a number",
            };
            Failure::new(format!("`{value}` is no value for `{name}`, expected {expected}"))
        })?);
        Ok(setting.usual.name())
    }
}

fn names() -> String {
    let names: Vec<&str> = SETTINGS.iter().map(|setting| setting.usual.name()).collect();
    format!("the limits are {}", names.join(", "))
}

const SUFFIXES: [(&str, u32); 4] = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];

fn number(text: &str, unit: Unit) -> Option<u64> {
    let (digits, shift) = match SUFFIXES.into_iter().find(|(suffix, _)| text.ends_with(suffix)) {
        Some((suffix, shift)) if unit == Unit::Bytes => (text.strip_suffix(suffix)?.trim_end(), shift),
        _ => (text, 0),
    };
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse::<u64>().ok().filter(|_| is_number)?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(variable: &str, flags: &[&str]) -> Result<Limits, String> {
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        Limits::resolve(Some(variable), &flags).map_err(|failure| failure.message)
    }

    #[test]
    fn flags_win_over_the_variable_and_that_over_the_usual() {
        let limits =
            resolve("layer-entries=5, index-bytes=1KiB,", &["layer-entries=6", "zstd-window=2 GiB"]).unwrap();
        assert_eq!((limits.layers.entries.value, limits.documents.index.value), (6, 1024));
        assert_eq!(limits.layers.window, layer::Limits::WINDOW.with(2 << 30));
        assert_eq!(limits.layers.bytes, layer::Limits::BYTES);
        assert_eq!(resolve("", &[]).unwrap(), Limits::default());
    }

    /// One config may take as much as all together, unless somebody says otherwise.
    #[test]
    fn the_configs_of_all_bases_may_take_as_much_as_one_may_unless_their_limit_is_set() {
        let usual = DocumentLimits::BASES.value;
        for (variable, flags, expected) in [
            ("", &["config-bytes=64MiB"][..], 64 << 20),
            ("", &["config-bytes=1KiB"], usual),
            ("", &["base-config-bytes=1KiB"], 1024),
            ("base-config-bytes=1KiB", &["config-bytes=64MiB"], 1024),
            ("config-bytes=64MiB", &["base-config-bytes=9MiB"], 9 << 20),
        ] {
            let limits = resolve(variable, flags).unwrap();
            assert_eq!(limits.documents.bases.value, expected, "{variable} {flags:?}");
        }
    }

    #[test]
    fn what_is_no_limit_is_named() {
        for (text, expected) in [
            ("layer-entires=5", "--limit: there is no limit `layer-entires` (did you mean `layer-entries`?)"),
            ("layer-entries", "--limit: `layer-entries` is no limit, expected `NAME=VALUE`"),
            ("layer-entries=1KiB", "--limit: `1KiB` is no value for `layer-entries`, expected a number"),
            ("layer-entries=-1", "--limit: `-1` is no value for `layer-entries`, expected a number"),
            ("index-bytes=99999999TiB", "--limit: `99999999TiB` is no value for `index-bytes`, expected a"),
            ("index-bytes=", "--limit: `` is no value for `index-bytes`, expected a number of bytes"),
        ] {
            let message = resolve("", &[text]).unwrap_err();
            assert!(message.starts_with(expected), "{message}");
        }
        assert!(resolve("x=1", &[]).unwrap_err().starts_with("BUILDER_LIMITS: there is no limit `x`"));
        let failure = Limits::resolve(None, &["x".to_owned()]).unwrap_err();
        let hint = failure.hint.unwrap();
        assert!(hint.starts_with("the limits are layer-bytes, layer-entries, "), "{hint}");
    }

    #[test]
    fn help_has_every_limit() {
        let help = help();
        let is_there = |setting: &Setting| help.contains(&format!("\n  {}=", setting.usual.name()));
        assert!(SETTINGS.iter().all(is_there), "{help}");
    }

    #[test]
    fn every_setting_sets_its_own_limit() {
        for setting in &SETTINGS {
            let mut limits = Limits::default();
            assert_eq!(*(setting.of)(&mut limits), setting.usual, "{}", setting.usual.name());
        }
        assert_eq!(ContextLimits::DOCKERFILE, crate::dockerfile::SIZE_LIMIT);
    }

    /// The rows of `docs/limits.md`, as they have to be.
    fn table() -> Vec<String> {
        let row = |setting: &Setting| {
            format!("| `{}` | {} | {} |", setting.usual.name(), setting.usual_value(), setting.meaning())
        };
        SETTINGS.iter().map(row).collect()
    }

    #[test]
    fn the_documentation_has_every_limit_and_no_other() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/limits.md");
        let text = std::fs::read_to_string(path).unwrap();
        let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("| `")).collect();
        assert_eq!(rows, table(), "expected:\n{}", table().join("\n"));
    }
}
