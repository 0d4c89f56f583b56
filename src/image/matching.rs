//! Choosing among the platforms that a base image has.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use super::descriptor::{Descriptor, media_type};
use super::platform::Platform;
use super::shown;

/// How many configs of entries without a platform are read before the search ends.
const MOST_CONFIGS: usize = 64;

/// How many platforms a message lists.
const MOST_LISTED: usize = 40;

/// How close a base must be to the wanted platform.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MatchMode {
    /// The wanted platform only (containerd's `OnlyStrict`).
    Exact,
    /// Also lower variants of the same architecture, best first; never a newer one.
    #[default]
    Compatible,
    /// Also the architectures that 64-bit CPUs run besides: 386 for amd64, arm for arm64 (containerd's `Only`).
    Loose,
    /// Whatever there is.
    None,
}

/// A mode that was written wrongly.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a way to match platforms: expected `exact`, `compatible`, `loose` or `none`")]
pub struct MatchModeError(String);

impl FromStr for MatchMode {
    type Err = MatchModeError;

    fn from_str(text: &str) -> Result<Self, MatchModeError> {
        match text {
            "exact" => Ok(Self::Exact),
            "compatible" => Ok(Self::Compatible),
            "loose" => Ok(Self::Loose),
            "none" => Ok(Self::None),
            _ => Err(MatchModeError(shown(text))),
        }
    }
}

impl fmt::Display for MatchMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exact => "exact",
            Self::Compatible => "compatible",
            Self::Loose => "loose",
            Self::None => "none",
        })
    }
}

/// The entry of an index that was chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Its position in the index, from 0.
    pub position: usize,
    /// What it is for, normalised: its label's platform, with its config's variant where that was read.
    pub platform: Platform,
    /// Whether that is the wanted platform and not merely one that will do.
    pub exact: bool,
}

/// What the label of an entry says before any config is read.
enum Label {
    /// An attestation: no image.
    Never,
    /// Nothing: only the config knows.
    Absent,
    /// All that is needed.
    Certain(Platform),
    /// All but a variant that matters: the config may know it.
    Vague(Platform),
}

/// Smaller is better: distance from the wanted platform, features that match, closeness of Windows versions, position.
type Rank = (usize, Reverse<usize>, Closeness, usize);
type Closeness = (u8, Reverse<[u64; 4]>);

/// Chooses from an index; entries that are indexes themselves must have been replaced by their own entries.
///
/// * Same system, same architecture, the highest variant that is not above the wanted one; among equals the first of
///   the index. Other architectures only as `mode` says.
/// * An entry without platform counts only where no other one fits; its config says what it is.
/// * An entry without variant has the usual one of its architecture (`v7` for arm, the lowest for others), unless its
///   config knows better. Configs are read only where they can change the choice: for arm, and where several entries
///   have the same label, and then only for an entry that would be better than what was found so far.
/// * Attestations are never chosen.
///
/// # Errors
/// What `config_of` fails with.
pub fn choose<E>(
    wanted: &Platform,
    entries: &[Descriptor],
    mode: MatchMode,
    config_of: &mut dyn FnMut(&Descriptor) -> Result<Platform, E>,
) -> Result<Option<Choice>, E> {
    let search = Search::new(wanted, mode);
    let labels = labels(entries);
    let mut best = None;
    for (position, label) in labels.iter().enumerate() {
        if let Label::Certain(platform) = label {
            search.consider(platform, position, &mut best);
        }
    }
    for (position, label) in labels.iter().enumerate() {
        let Label::Vague(platform) = label else { continue };
        let Some(hope) = search.hope(platform, position) else { continue };
        if best.as_ref().is_none_or(|(rank, _)| hope < *rank) {
            let config = config_of(&entries[position])?;
            search.consider(&with_variant_of(platform, &config), position, &mut best);
        }
    }
    if best.is_none() {
        let absent = labels.iter().enumerate().filter(|(_, label)| matches!(label, Label::Absent));
        for (position, _) in absent.take(MOST_CONFIGS) {
            let platform = config_of(&entries[position])?.normalise();
            search.consider(&platform, position, &mut best);
            if best.as_ref().is_some_and(|(_, choice): &(Rank, Choice)| choice.exact)
                && search.wanted.os_version.is_none()
            {
                break;
            }
        }
    }
    if best.is_none() && mode == MatchMode::None {
        return first_image(&search, entries, &labels, config_of);
    }
    Ok(best.map(|(_, choice)| choice))
}

/// Without any matching: the first entry that is an image.
fn first_image<E>(
    search: &Search,
    entries: &[Descriptor],
    labels: &[Label],
    config_of: &mut dyn FnMut(&Descriptor) -> Result<Platform, E>,
) -> Result<Option<Choice>, E> {
    for (position, label) in labels.iter().enumerate() {
        let platform = match label {
            Label::Never => continue,
            Label::Absent => config_of(&entries[position])?.normalise(),
            Label::Certain(platform) | Label::Vague(platform) => platform.clone(),
        };
        let exact = platform == search.wanted;
        return Ok(Some(Choice { position, platform, exact }));
    }
    Ok(None)
}

fn labels(entries: &[Descriptor]) -> Vec<Label> {
    // How many different images there are with the same label, for labels without variant.
    let mut twins: BTreeMap<Platform, Vec<&Descriptor>> = BTreeMap::new();
    let platforms: Vec<Option<Platform>> = entries.iter().map(label_of).collect();
    for (entry, platform) in entries.iter().zip(&platforms) {
        if let Some(platform) = platform.as_ref().filter(|platform| platform.variant.is_none()) {
            let known = twins.entry(platform.clone()).or_default();
            if known.len() < 2 && known.iter().all(|other| other.digest != entry.digest) {
                known.push(entry);
            }
        }
    }
    let judge = |(entry, platform): (&Descriptor, Option<Platform>)| {
        if !is_image(entry) {
            return Label::Never;
        }
        let Some(platform) = platform else { return Label::Absent };
        let normal = platform.normalise();
        let twin = twins.get(&platform).is_some_and(|twins| twins.len() > 1);
        let spelled_arm = platform.architecture.eq_ignore_ascii_case("arm");
        if platform.variant.is_none() && (spelled_arm || twin) {
            Label::Vague(normal)
        } else {
            Label::Certain(normal)
        }
    };
    entries.iter().zip(platforms).map(judge).collect()
}

fn label_of(entry: &Descriptor) -> Option<Platform> {
    let fields = entry.platform.as_ref()?;
    // Half a label is none: the other half would have to be guessed.
    (!fields.os.is_empty() && !fields.architecture.is_empty()).then(|| Platform::from(fields))
}

/// Whether `entry` may be an image: indexes may hold anything, and what is not known is passed over.
fn is_image(entry: &Descriptor) -> bool {
    let kind = entry.media_type.as_str();
    (media_type::is_manifest(kind) || media_type::is_index(kind)) && !is_attestation(entry)
}

/// Whether `entry` describes another image instead of being one (BuildKit's attestations).
#[must_use]
pub fn is_attestation(entry: &Descriptor) -> bool {
    entry.annotation("vnd.docker.reference.type") == Some("attestation-manifest")
        || entry.platform.as_ref().is_some_and(|p| p.os == "unknown" && p.architecture == "unknown")
}

/// `label` with the variant that its config names; a config of another machine has no say.
fn with_variant_of(label: &Platform, config: &Platform) -> Platform {
    let normal = config.normalise();
    let speaks =
        normal.same_machine(label) && (config.variant.is_some() || config.architecture != label.architecture);
    if speaks { Platform { variant: normal.variant, ..label.clone() } } else { label.clone() }
}

/// How a platform goes with the wanted one.
enum Fit {
    Exact,
    Lower,
}

struct Search {
    wanted: Platform,
    /// Architectures and variants that will do, best first.
    chain: Vec<(String, Option<String>)>,
}

impl Search {
    fn new(wanted: &Platform, mode: MatchMode) -> Self {
        let wanted = wanted.normalise();
        let mut chain = vec![(wanted.architecture.clone(), wanted.variant.clone())];
        if mode != MatchMode::Exact {
            chain.extend(lower(&wanted));
        }
        if matches!(mode, MatchMode::Loose | MatchMode::None) {
            chain.extend(other_architectures(&wanted));
        }
        Self { wanted, chain }
    }

    fn consider(&self, platform: &Platform, position: usize, best: &mut Option<(Rank, Choice)>) {
        let cpu = |(architecture, variant): &(String, Option<String>)| {
            *architecture == platform.architecture && *variant == platform.variant
        };
        let Some(rank) = self.rank(platform, position, cpu) else { return };
        if best.as_ref().is_none_or(|(known, _)| rank < *known) {
            *best = Some((rank, Choice { position, platform: platform.clone(), exact: rank.0 == 0 }));
        }
    }

    fn judge(&self, platform: &Platform) -> Option<Fit> {
        let mut best = None;
        self.consider(platform, 0, &mut best);
        best.map(|(_, choice)| if choice.exact { Fit::Exact } else { Fit::Lower })
    }

    /// The best rank that an entry could have whose variant is not known yet.
    fn hope(&self, platform: &Platform, position: usize) -> Option<Rank> {
        self.rank(platform, position, |(architecture, _)| *architecture == platform.architecture)
    }

    fn rank(
        &self,
        platform: &Platform,
        position: usize,
        cpu: impl Fn(&(String, Option<String>)) -> bool,
    ) -> Option<Rank> {
        if platform.os != self.wanted.os {
            return None;
        }
        let distance = self.chain.iter().position(cpu)?;
        let needed: Vec<_> =
            platform.os_features.iter().filter(|f| platform.os != "windows" || *f != "win32k").collect();
        if needed.iter().any(|feature| !self.wanted.os_features.contains(feature)) {
            return None;
        }
        let closeness = if platform.os == "windows" {
            windows_closeness(self.wanted.os_version.as_deref(), platform.os_version.as_deref())?
        } else {
            (0, Reverse([0; 4]))
        };
        Some((distance, Reverse(needed.len()), closeness, position))
    }
}

/// The variants below the wanted one that its CPU runs as well, best first. A variant that is not known is not assumed
/// to be above any known one.
fn lower(wanted: &Platform) -> Vec<(String, Option<String>)> {
    let variant = wanted.variant.as_deref();
    let variants: Vec<Option<String>> = match (wanted.architecture.as_str(), variant) {
        ("amd64", Some("v2")) => vec![None],
        ("amd64", Some("v3")) => vec![Some("v2".to_owned()), None],
        ("amd64", Some("v4")) => vec![Some("v3".to_owned()), Some("v2".to_owned()), None],
        ("arm", Some(v @ ("v6" | "v7" | "v8"))) => {
            ["v7", "v6", "v5"].into_iter().filter(|lower| *lower < v).map(|v| Some(v.to_owned())).collect()
        }
        ("arm64", Some(v)) => lower_arm64(v),
        ("amd64" | "arm" | "arm64", _) | (_, None) => Vec::new(),
        (_, Some(_)) => vec![None],
    };
    variants.into_iter().map(|variant| (wanted.architecture.clone(), variant)).collect()
}

/// Splits `v8.3`; only versions that there are.
fn arm64_version(variant: &str) -> Option<(u8, u8)> {
    match variant.as_bytes() {
        [b'v', major @ (b'8' | b'9')] => Some((major - b'0', 0)),
        [b'v', major @ (b'8' | b'9'), b'.', minor @ b'0'..=b'9'] => Some((major - b'0', minor - b'0')),
        _ => None,
    }
}

fn lower_arm64(variant: &str) -> Vec<Option<String>> {
    let Some((major, minor)) = arm64_version(variant) else { return Vec::new() };
    let name = |major: u8, minor: u8| match (major, minor) {
        (8, 0) => None,
        (_, 0) => Some(format!("v{major}")),
        _ => Some(format!("v{major}.{minor}")),
    };
    let mut variants: Vec<_> = (0..minor).rev().map(|lower| name(major, lower)).collect();
    if major == 9 {
        // Armv9.0 has all of Armv8.5, 9.1 all of 8.6, and so on.
        variants.extend((0..=(minor + 5).min(9)).rev().map(|lower| name(8, lower)));
    }
    variants
}

/// What 64-bit CPUs usually run besides.
fn other_architectures(wanted: &Platform) -> Vec<(String, Option<String>)> {
    match wanted.architecture.as_str() {
        "amd64" => vec![("386".to_owned(), None)],
        "arm64" if wanted.variant.as_deref().is_none_or(|v| arm64_version(v).is_some()) => {
            ["v8", "v7", "v6", "v5"].map(|variant| ("arm".to_owned(), Some(variant.to_owned()))).to_vec()
        }
        _ => Vec::new(),
    }
}

/// Whether Windows of version `entry` runs on `wanted`, and how close they are (smaller is closer). Builds before 20348
/// must be equal; later ones run those since the long-term release before them (containerd's rule).
fn windows_closeness(wanted: Option<&str>, entry: Option<&str>) -> Option<Closeness> {
    const LONG_TERM: [u64; 2] = [20348, 26100];
    let Some(wanted) = wanted else { return Some((0, Reverse([0; 4]))) };
    let Some(entry) = entry else { return Some((1, Reverse([0; 4]))) };
    if wanted == entry {
        return Some((0, Reverse(windows_version(entry).unwrap_or([0; 4]))));
    }
    let (ours, theirs) = (windows_version(wanted)?, windows_version(entry)?);
    let (host, build) = (ours[2], theirs[2]);
    let lowest = if host < LONG_TERM[0] {
        host
    } else {
        LONG_TERM.into_iter().rev().find(|release| *release < host).unwrap_or(LONG_TERM[0])
    };
    let runs = ours[..2] == theirs[..2] && (lowest..=host).contains(&build);
    runs.then_some((1, Reverse([theirs[0], theirs[1], build, 0])))
}

/// `major.minor.build[.revision]`.
fn windows_version(text: &str) -> Option<[u64; 4]> {
    let mut version = [0; 4];
    let mut count = 0;
    for part in text.split('.') {
        *version.get_mut(count)? = part.parse().ok()?;
        count += 1;
    }
    (count >= 3).then_some(version)
}

/// What an index without images has.
pub const NO_IMAGE: &str = "no image";

/// The platforms of an index in its order, for a message that says what there is instead.
#[must_use]
pub fn available(entries: &[Descriptor]) -> String {
    let mut names: Vec<String> = Vec::new();
    for entry in entries.iter().filter(|entry| is_image(entry)) {
        let name =
            label_of(entry).map_or_else(|| "one without platform".to_owned(), |p| format!("`{}`", p.shown()));
        if !names.contains(&name) {
            if names.len() == MOST_LISTED {
                names.push("more".to_owned());
                break;
            }
            names.push(name);
        }
    }
    if names.is_empty() { NO_IMAGE.to_owned() } else { names.join(", ") }
}

/// Who wanted a platform.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Asked {
    /// The user, on the command line or in the Dockerfile.
    Explicitly,
    /// Nobody: it is the host's.
    ByDefault,
}

/// How an image that is the only one under its name goes with the wanted platform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Single {
    /// It is for that platform, or does not say.
    Fits,
    /// It is for another one that will do, for instance a lower variant.
    WillDo(Platform),
    /// It is for another one, and nobody asked: its platform becomes that of the build. Worth a warning.
    Keep(Platform),
    /// It is for another one, but matching is switched off. Worth a warning.
    Unchecked(Platform),
}

/// An image for another platform than the wanted one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// It is for another system or architecture.
    #[error("is `{found}`, not `{wanted}`")]
    Other {
        /// What was wanted, normalised.
        wanted: Box<Platform>,
        /// What it is, normalised.
        found: Box<Platform>,
    },
    /// It is for a variant that the wanted platform may not run.
    #[error("is `{found}`, which `{wanted}` may not run")]
    Variant {
        /// What was wanted, normalised.
        wanted: Box<Platform>,
        /// What it is, normalised.
        found: Box<Platform>,
    },
}

/// Judges a base that is no index by its config's platform. A config without variant is taken for any (many builders
/// leave it out, and Docker takes it too), and so is one without system and architecture.
///
/// # Errors
/// [`Unfit`] when a platform was asked for and the base is for another one.
pub fn accept_single(
    wanted: &Platform,
    config: &Platform,
    asked: Asked,
    mode: MatchMode,
) -> Result<Single, Unfit> {
    let search = Search::new(wanted, mode);
    let found = config.normalise();
    if found.os.is_empty() && found.architecture.is_empty() {
        return Ok(Single::Fits);
    }
    if config.variant.is_none() && found.same_machine(&search.wanted) && search.hope(&found, 0).is_some() {
        return Ok(Single::Fits);
    }
    match search.judge(&found) {
        Some(Fit::Exact) => return Ok(Single::Fits),
        Some(Fit::Lower) => return Ok(Single::WillDo(found)),
        None => {}
    }
    if mode == MatchMode::None {
        return Ok(Single::Unchecked(found));
    }
    if asked == Asked::ByDefault {
        return Ok(Single::Keep(found));
    }
    let lower = Search::new(wanted, MatchMode::Compatible).judge(&found).is_some();
    let (wanted, found) = (Box::new(search.wanted), Box::new(found));
    let variant = found.same_machine(&wanted) && !lower;
    Err(if variant { Unfit::Variant { wanted, found } } else { Unfit::Other { wanted, found } })
}

#[cfg(test)]
mod tests {
    use super::super::digest::Digest;
    use super::super::platform::{PlatformFields, Requested};
    use super::*;

    fn requested(text: &str) -> Platform {
        Requested::parse(text, &Platform::new("linux", "amd64", None)).unwrap().normalised
    }

    /// A platform as an index would have it: nothing normalised.
    fn literal(text: &str) -> Platform {
        let mut parts = text.split('/');
        let system = parts.next().unwrap();
        let (os, options) = system.split_once('(').unwrap_or((system, ")"));
        let mut options = options.trim_end_matches(')').split('+');
        Platform {
            os: os.to_owned(),
            os_version: options.next().filter(|v| !v.is_empty()).map(str::to_owned),
            os_features: options.map(str::to_owned).collect(),
            architecture: parts.next().unwrap().to_owned(),
            variant: parts.next().map(str::to_owned),
        }
    }

    /// Entries, and the platforms of their configs: `label{config}`, or `label` alone where both are the same.
    fn index(text: &str) -> (Vec<Descriptor>, Vec<Platform>) {
        let mut entries = Vec::new();
        let mut configs = Vec::new();
        for (position, entry) in text.split(' ').enumerate() {
            let (label, config) = entry.split_once('{').unwrap_or((entry, entry));
            let digest = Digest::of(&[u8::try_from(position).unwrap()]);
            let mut descriptor = Descriptor::new(media_type::OCI_MANIFEST, digest, 1);
            descriptor.platform = (label != "nil").then(|| PlatformFields::from(&literal(label)));
            entries.push(descriptor);
            configs.push(literal(config.trim_end_matches('}')));
        }
        (entries, configs)
    }

    /// The chosen position from 1, and which configs were read.
    fn choice(wanted: &str, text: &str, mode: MatchMode) -> (Option<Choice>, Vec<usize>) {
        let (entries, configs) = index(text);
        let mut read = Vec::new();
        let mut config_of = |entry: &Descriptor| {
            let position = entries.iter().position(|other| other == entry).unwrap();
            read.push(position + 1);
            Ok::<_, ()>(configs[position].clone())
        };
        let choice = choose(&requested(wanted), &entries, mode, &mut config_of).unwrap();
        (choice, read)
    }

    #[test]
    fn bases_are_chosen_as_in_the_table() {
        let table = include_str!("../../testdata/platforms/choose.tsv");
        let mut rows = 0;
        for line in table.lines().filter(|line| !line.starts_with('#')) {
            let [case, wanted, entries, exact, compatible, loose] = line.split('\t').collect::<Vec<_>>()[..]
            else {
                panic!("{line}")
            };
            for (mode, expected) in
                [(MatchMode::Exact, exact), (MatchMode::Compatible, compatible), (MatchMode::Loose, loose)]
            {
                let chosen = choice(wanted, entries, mode).0;
                let chosen =
                    chosen.map_or_else(|| "ERR".to_owned(), |choice| (choice.position + 1).to_string());
                assert_eq!(chosen, expected, "case {case}, {mode}");
            }
            rows += 1;
        }
        assert_eq!(rows, 66);
    }

    #[test]
    fn configs_decide_where_labels_have_no_variant() {
        for (wanted, entries, expected, exact) in [
            // Debian's armel and armhf, both labelled alike.
            ("linux/arm/v5", "linux/arm{linux/arm/v5} linux/arm{linux/arm/v7}", Some(1), true),
            ("linux/arm/v6", "linux/arm{linux/arm/v5} linux/arm{linux/arm/v7}", Some(1), false),
            ("linux/arm/v7", "linux/arm{linux/arm/v5} linux/arm{linux/arm/v7}", Some(2), true),
            ("linux/arm", "linux/arm{linux/arm/v5} linux/arm{linux/arm/v7}", Some(2), true),
            ("linux/arm/v5", "linux/arm{linux/arm/v7} linux/arm{linux/arm/v5}", Some(2), true),
            // A single one: the label means v7, but the config is the truth.
            ("linux/arm/v5", "linux/arm{linux/arm/v5}", Some(1), true),
            ("linux/arm/v7", "linux/arm{linux/arm/v5}", Some(1), false),
            ("linux/arm/v7", "linux/arm{linux/arm/v8}", None, false),
            ("linux/arm/v6", "linux/arm{linux/arm/v6} linux/arm/v5", Some(1), true),
            ("linux/arm/v7", "linux/arm{linux/arm/v5} linux/arm/v7", Some(2), true),
            // Configs without variant leave the label its usual meaning.
            ("linux/arm/v7", "linux/arm linux/arm", Some(1), true),
            ("linux/arm/v5", "linux/arm linux/arm", None, false),
            // A config of another machine has no say.
            ("linux/arm/v7", "linux/arm{linux/amd64/v3}", Some(1), true),
            // Other architectures where two entries look the same.
            ("linux/amd64", "linux/amd64{linux/amd64/v3} linux/amd64", Some(2), true),
            ("linux/amd64/v3", "linux/amd64 linux/amd64{linux/amd64/v3}", Some(2), true),
            ("linux/arm64", "linux/arm64{linux/arm64/v8} linux/arm64{linux/arm64/v8}", Some(1), true),
        ] {
            let chosen = choice(wanted, entries, MatchMode::Compatible).0;
            assert_eq!(chosen.as_ref().map(|c| c.position + 1), expected, "{wanted} of {entries}");
            assert_eq!(chosen.is_some_and(|c| c.exact), exact, "{wanted} of {entries}");
        }
    }

    #[test]
    fn configs_are_read_only_where_they_can_matter() {
        for (wanted, entries, expected) in [
            ("linux/amd64", "linux/amd64 linux/arm64 linux/arm linux/arm", vec![]),
            ("linux/arm64", "linux/amd64 linux/arm64 linux/arm linux/arm", vec![]),
            ("linux/arm/v7", "linux/arm/v7 linux/arm", vec![]),
            ("linux/arm/v7", "linux/arm/v5 linux/arm/v7 linux/arm64", vec![]),
            ("linux/arm/v7", "linux/arm linux/arm/v7", vec![1]),
            ("linux/arm/v7", "linux/arm linux/arm", vec![1]),
            ("linux/arm/v5", "linux/arm/v5 linux/arm", vec![]),
            ("linux/arm/v6", "linux/arm/v5 linux/arm", vec![2]),
            ("linux/amd64", "nil{linux/amd64} linux/amd64", vec![]),
            ("linux/amd64", "nil{linux/arm64} nil{linux/amd64} nil{linux/amd64}", vec![1, 2]),
        ] {
            assert_eq!(choice(wanted, entries, MatchMode::Compatible).1, expected, "{wanted} of {entries}");
        }
    }

    #[test]
    fn unknown_variants_are_never_taken_for_newer_ones() {
        for (wanted, entries) in [
            ("linux/amd64/v5", "linux/amd64/v4 linux/amd64"),
            ("linux/amd64/turbo", "linux/amd64"),
            ("linux/arm/v9", "linux/arm/v7 linux/arm/v5"),
            ("linux/arm64/v10", "linux/arm64/v9 linux/arm64"),
            ("linux/arm/v4294967295", "linux/arm/v7"),
        ] {
            assert_eq!(choice(wanted, entries, MatchMode::Compatible).0, None, "{wanted} of {entries}");
        }
        let v9 = choice(
            "linux/arm64/v9.1",
            "linux/arm64/v8 linux/arm64/v8.6 linux/arm64/v8.7",
            MatchMode::Compatible,
        );
        assert_eq!(v9.0.unwrap().platform.to_string(), "linux/arm64/v8.6");
    }

    #[test]
    fn without_matching_anything_but_an_attestation_is_taken() {
        let position = |wanted, entries| choice(wanted, entries, MatchMode::None).0.map(|c| c.position + 1);
        assert_eq!(position("linux/s390x", "unknown/unknown linux/amd64"), Some(2));
        assert_eq!(position("linux/amd64", "linux/arm64 linux/amd64"), Some(2));
        assert_eq!(position("linux/amd64", "unknown/unknown"), None);
    }

    #[test]
    fn what_there_is_is_listed_once() {
        let (mut entries, _) = index("linux/amd64 linux/arm/v7 unknown/unknown linux/amd64 nil{linux/arm}");
        assert_eq!(available(&entries), "`linux/amd64`, `linux/arm/v7`, one without platform");
        entries[0].platform.as_mut().unwrap().os = "lin\nux".to_owned();
        assert!(available(&entries).starts_with("`lin\\nux/amd64`"));
        assert_eq!(available(&[]), "no image");
        let mut attestation = entries[1].clone();
        let kind = ("vnd.docker.reference.type".to_owned(), "attestation-manifest".to_owned());
        attestation.annotations = Some([kind].into());
        assert_eq!(available(&[attestation]), "no image");
    }

    #[test]
    fn a_single_image_must_fit_what_was_asked_for() {
        use Asked::{ByDefault, Explicitly};
        let accept = |wanted: &str, config: &str, asked, mode| {
            accept_single(&requested(wanted), &literal(config), asked, mode).map_err(|e| e.to_string())
        };
        let compatible = MatchMode::Compatible;
        let found = |text: &str| literal(text);
        assert_eq!(accept("linux/arm/v5", "linux/arm", Explicitly, compatible), Ok(Single::Fits));
        assert_eq!(accept("linux/arm64/v8", "linux/arm64", Explicitly, MatchMode::Exact), Ok(Single::Fits));
        assert_eq!(accept("linux/arm/v5", "/", Explicitly, compatible), Ok(Single::Fits));
        assert_eq!(
            accept("linux/arm/v7", "linux/arm/v5", Explicitly, compatible),
            Ok(Single::WillDo(found("linux/arm/v5")))
        );
        assert_eq!(
            accept("linux/arm/v7", "linux/amd64", Explicitly, compatible),
            Err("is `linux/amd64`, not `linux/arm/v7`".to_owned())
        );
        assert_eq!(
            accept("linux/arm/v7", "linux/arm/v5", Explicitly, MatchMode::Exact),
            Err("is `linux/arm/v5`, not `linux/arm/v7`".to_owned())
        );
        assert_eq!(
            accept("linux/amd64", "linux/amd64/v3", Explicitly, compatible),
            Err("is `linux/amd64/v3`, which `linux/amd64` may not run".to_owned())
        );
        assert_eq!(accept("linux/amd64/v3", "linux/amd64", Explicitly, compatible), Ok(Single::Fits));
        assert!(accept("linux/amd64", "linux/386", Explicitly, compatible).is_err());
        assert_eq!(
            accept("linux/amd64", "linux/386", Explicitly, MatchMode::Loose),
            Ok(Single::WillDo(found("linux/386")))
        );
        assert_eq!(
            accept("linux/amd64", "linux/arm/v7", ByDefault, compatible),
            Ok(Single::Keep(found("linux/arm/v7")))
        );
        assert_eq!(
            accept("linux/amd64", "linux/s390x", Explicitly, MatchMode::None),
            Ok(Single::Unchecked(found("linux/s390x")))
        );
    }

    #[test]
    fn modes_are_read_as_they_are_printed() {
        for mode in [MatchMode::Exact, MatchMode::Compatible, MatchMode::Loose, MatchMode::None] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert!("Exact".parse::<MatchMode>().is_err());
    }
}
