//! What every fuzz target does with a text, and the laws that it checks. `integration/fuzz_replay.rs` does the same on
//! stable, so this file knows nothing of a fuzzer.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

use builder::build::named_contexts::{ContextValue, NamedContexts};
use builder::build::services::{Base, ImageSource, ServiceError, Wanted};
use builder::build::{self, PlanRequest, preview};
use builder::context::IgnoreRules;
use builder::dockerfile::{
    self, Command, Dockerfile, Escape, Instruction, Located, MountError, Run, Span, Text,
};
use builder::image::descriptor::{Descriptor, media_type};
use builder::image::digest::Digest;
use builder::image::manifest::Image;
use builder::image::matching::{self, Asked, Choice, MatchMode};
use builder::image::platform::{Platform, PlatformFields, Requested};
use builder::image::reference::Reference;
use builder::sandbox::Cancel;
use builder::spec::Spec;
use builder::store::unpacked::Chain;

/// What a target does with a text.
pub(super) type Body = fn(&[u8]);

/// The name and the body of each target.
pub(super) const TARGETS: [(&str, Body); 8] = [
    ("parser", parser),
    ("expansion", expansion),
    ("mount_options", mount_options),
    ("ignore_rules", ignore_rules),
    ("plan", plan),
    ("references", references),
    ("spec", spec),
    ("matching", matching),
];

/// A Dockerfile: it parses or not, and what is printed of it parses to the same.
pub(super) fn parser(data: &[u8]) {
    let Ok(parsed) = dockerfile::parse(data) else { return };
    if parsed
        .stages
        .iter()
        .flat_map(|stage| &stage.instructions)
        .any(|located| is_announced_by_flags(&located.value))
    {
        return;
    }
    let printed = dockerfile::print(&parsed);
    let again = match dockerfile::parse(&printed) {
        Ok(again) => again,
        Err(error) => panic!("{error} (line {}) in {}", error.span.first_line, shown(&printed)),
    };
    assert!(dockerfile::print(&again) == printed, "printing is not stable: {}", shown(&printed));
    let (parsed, again) = (without_places(parsed), without_places(again));
    assert!(again == parsed, "{again:#?}\nis printed of\n{parsed:#?}\nas\n{}", shown(&printed));
    for located in parsed.stages.iter().flat_map(|stage| &stage.instructions) {
        match &located.value {
            Instruction::Onbuild(text) => drop(dockerfile::parse_trigger(text)),
            Instruction::Run(run) => drop(run.action()),
            _ => {}
        }
    }
}

/// Whether a here-document is announced in a flag: quotes mean one thing to flags (`'\'` has an escape in it) and another to
/// the words of a shell, so a flag may end behind what a shell takes for a word. Such an instruction cannot be printed.
fn is_announced_by_flags(instruction: &Instruction) -> bool {
    let Instruction::Run(run) = instruction else { return false };
    let Run { command: Command::Shell(text), heredocs, .. } = &**run else {
        return false;
    };
    text.windows(2).filter(|pair| pair == b"<<").count() < heredocs.len()
}

/// `file` without what printing does not keep: where and how it is written.
fn without_places(mut file: Dockerfile) -> Dockerfile {
    fn erase<T>(located: &mut Located<T>) {
        located.span = Span::line(1);
        located.text = Text::default();
    }
    file.warnings.clear();
    file.syntax.iter_mut().for_each(erase);
    file.global_args.iter_mut().for_each(erase);
    for stage in &mut file.stages {
        erase(&mut stage.from);
        stage.instructions.iter_mut().for_each(erase);
    }
    file
}

/// Expansion, with either escape character: words are the text without white space, and a text in which nothing is
/// special stays as it is.
pub(super) fn expansion(data: &[u8]) {
    let value = |name: &str| -> Option<Cow<'_, [u8]>> {
        Some(Cow::Borrowed(match name {
            "p" => b"foo.bar.baz",
            "q" => b"a*b/c*d",
            "w" => b" 80 81/udp\t",
            "e" => b"",
            "s" => b"\\$x'\"\xff\n",
            "d" => data,
            _ => return None,
        }))
    };
    for escape in [Escape::Backslash, Escape::Backtick] {
        let text = dockerfile::expand(data, escape, &value);
        let words = dockerfile::expand_words(data, escape, &value);
        assert_eq!(text.is_ok(), words.is_ok());
        if let (Ok(text), Ok(words)) = (&text, &words) {
            let of_words = words.words.iter().map(|word| without_blanks(word)).collect::<String>();
            assert_eq!(without_blanks(&text.text), of_words);
            assert_eq!(text.undefined, words.undefined);
        }
        if !data.iter().any(|b| matches!(b, b'$' | b'\'' | b'"' | b'\\' | b'`')) {
            assert_eq!(text.expect("nothing is special").text.as_bytes(), data);
        }
    }
    let _ = dockerfile::expand_body(data, &value);
}

fn without_blanks(text: &[u8]) -> String {
    String::from_utf8_lossy(text).chars().filter(|c| !c.is_whitespace()).collect()
}

/// The value of a `--mount`, with its values expanded to themselves and to something else.
pub(super) fn mount_options(data: &[u8]) {
    let mut file = b"FROM a\nRUN --mount=".to_vec();
    for &byte in data.iter().filter(|&&b| b != b'\n' && b != 0) {
        if !byte.is_ascii_alphanumeric() && byte.is_ascii() {
            file.push(b'\\');
        }
        file.push(byte);
    }
    file.extend_from_slice(b" x");
    let Ok(file) = dockerfile::parse(&file) else { return };
    for located in file.stages.iter().flat_map(|stage| &stage.instructions) {
        let Instruction::Run(run) = &located.value else { continue };
        for mount in &run.mounts {
            let _ = mount.from();
            let _ = mount.resolve(&mut |text| Ok::<_, MountError>(text.clone()));
            let _ = mount.resolve(&mut |_| Ok::<_, MountError>(Text::new(data)));
        }
    }
}

/// A `.dockerignore` and, behind its last line, a path: a directory that has nothing to show hides all that is in it.
pub(super) fn ignore_rules(data: &[u8]) {
    let at = data.iter().rposition(|&b| b == b'\n').unwrap_or(0);
    let (rules, path) = data.split_at(at);
    let path: Vec<&[u8]> =
        path.split(|b| matches!(b, b'/' | b'\n')).filter(|part| !part.is_empty()).take(20).collect();
    let Ok(rules) = IgnoreRules::parse(rules) else { return };
    let mut hidden = false;
    for length in 1..=path.len() {
        let path = path[..length].join(&b'/');
        let excluded = rules.excludes(&path);
        assert!(excluded || !hidden, "{} is in a hidden directory", shown(&path));
        assert_eq!(excluded, rules.deciding_line(&path).is_some());
        hidden |= excluded && !rules.may_include_below(&path);
    }
}

/// No image is there.
struct Nothing;

impl ImageSource for Nothing {
    fn resolve(&self, _: &Reference, _: &Wanted) -> Result<Base, ServiceError> {
        Err("there is no such image".into())
    }

    fn unpack(&self, _: &Image, _: &Cancel) -> Result<Chain, ServiceError> {
        Err("nothing is unpacked while planning".into())
    }
}

/// A Dockerfile, planned where no image is to be had.
pub(super) fn plan(data: &[u8]) {
    let Ok(file) = dockerfile::parse(data) else { return };
    let host = Platform::new("linux", "amd64", None);
    let Ok(platform) = Requested::parse("linux/arm/v7", &host) else { return };
    let args = [("a", "1"), ("TARGETARCH", "x"), ("http_proxy", "p"), ("b", "$a \"'\\")];
    let mut contexts = NamedContexts::default();
    for (name, value) in [("a", ContextValue::Stage("b".to_owned())), ("c", ContextValue::Files)] {
        assert!(contexts.add(name, value, &host).is_ok());
    }
    let request = PlanRequest {
        contexts,
        no_cache: BTreeSet::from(["b".to_owned()]),
        clock: builder::build::clock::Clock::Machine,
        build_args: args.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        asked: Asked::Explicitly,
        ..PlanRequest::usual(platform, host, 500)
    };
    let contexts = NamedContexts::default();
    let asked = Asked::ByDefault;
    let bare = PlanRequest { build_args: BTreeMap::new(), contexts, asked, ..request.clone() };
    for request in [request, bare] {
        match build::plan(&file, &request, &IgnoreRules::default(), &Nothing) {
            Ok(plan) => assert!(preview::write(&[plan], std::io::sink()).is_ok()),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

/// An image reference: what is shown of it is the same reference.
pub(super) fn references(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let Ok(reference) = text.parse::<Reference>() else { return };
    for shown in [reference.to_string(), reference.familiar()] {
        let again = shown.parse::<Reference>();
        assert_eq!(again.as_ref().ok(), Some(&reference), "{shown}");
    }
}

/// A specification of an index: an error is within the text, and all names can be read again.
pub(super) fn spec(data: &[u8]) {
    match Spec::parse(data, builder::spec::LIMIT) {
        Ok(Spec { names, members, .. }) => {
            for name in names.iter().chain(members.iter().map(|member| &member.image)) {
                assert_eq!(name.to_string().parse::<Reference>().as_ref().ok(), Some(name), "{name}");
            }
        }
        Err(error) => {
            let lines = String::from_utf8_lossy(data).split(['\n', '\r']).count();
            let within = (1..=lines + 1).contains(&error.place.line) && error.place.column >= 1;
            assert!(within, "{error} at {} in {}", error.place, shown(data));
        }
    }
}

/// A wanted platform and, line by line, the entries of an index: `LABEL`, `LABEL{CONFIG` or `nil{CONFIG`. Whatever they are,
/// nothing newer is taken, nor, unless it was allowed, anything of another architecture; where a stricter mode finds something,
/// a looser one does, and the same if every entry has a platform: others count only where none with one will do.
pub(super) fn matching(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut lines = text.split('\n');
    let host = Platform::new("linux", "amd64", None);
    let Ok(wanted) = Requested::parse(lines.next().unwrap_or_default(), &host) else { return };
    let wanted = wanted.normalised;
    let mut entries = Vec::new();
    let mut configs = BTreeMap::new();
    for (position, line) in lines.take(40).enumerate() {
        let (label, config) = line.split_once('{').unwrap_or((line, line));
        let digest = Digest::of(&position.to_le_bytes());
        configs.insert(digest.clone(), literal(config));
        let mut entry = Descriptor::new(media_type::OCI_MANIFEST, digest, 1);
        entry.platform = (label != "nil").then(|| PlatformFields::from(&literal(label)));
        entries.push(entry);
    }
    let choose = |mode| -> Option<Choice> {
        let mut config_of = |entry: &Descriptor| Ok::<_, Infallible>(configs[&entry.digest].clone());
        let chosen = matching::choose(&wanted, &entries, mode, &mut config_of).expect("no error");
        if let Some(Choice { position, .. }) = &chosen {
            assert!(!matching::is_attestation(&entries[*position]), "{mode} takes an attestation");
        }
        chosen
    };
    let exact = choose(MatchMode::Exact);
    let compatible = choose(MatchMode::Compatible);
    let loose = choose(MatchMode::Loose);
    let any = choose(MatchMode::None);
    for chosen in exact.iter().chain(&compatible) {
        let found = &chosen.platform;
        assert_eq!((&found.os, &found.architecture), (&wanted.os, &wanted.architecture));
        assert!(!is_newer(found, &wanted), "{found} for {wanted}");
        assert_eq!(chosen.exact, found.variant == wanted.variant);
    }
    assert!(exact.as_ref().is_none_or(|chosen| chosen.exact));
    let labelled = entries.iter().all(|entry| {
        entry.platform.as_ref().is_some_and(|label| !label.os.is_empty() && !label.architecture.is_empty())
    });
    for (strict, lenient) in [(&exact, &compatible), (&compatible, &loose), (&loose, &any)] {
        let same = strict == lenient || !labelled && lenient.is_some();
        assert!(strict.is_none() || same, "{strict:?} and {lenient:?} for {wanted}");
    }
}

/// A platform as an index may have it, nothing checked.
fn literal(text: &str) -> Platform {
    let mut parts = text.splitn(3, '/');
    let mut next = || parts.next().unwrap_or_default().to_owned();
    let (os, architecture) = (next(), next());
    let (os, os_version) = match os.split_once(':') {
        Some((os, version)) => (os.to_owned(), Some(version.to_owned())),
        None => (os, None),
    };
    Platform { os_version, ..Platform::new(&os, &architecture, parts.next()) }
}

/// Whether a CPU for `wanted` need not run what is for `found`, by the numbers in their variants; both are normalised.
fn is_newer(found: &Platform, wanted: &Platform) -> bool {
    let usual = match wanted.architecture.as_str() {
        "arm" => "v7",
        "arm64" => "v8",
        _ => "v1",
    };
    let level = |platform: &Platform| -> Option<(u32, u32)> {
        let variant = platform.variant.as_deref().unwrap_or(usual).strip_prefix('v')?;
        let (major, minor) = variant.split_once('.').unwrap_or((variant, "0"));
        Some((major.parse().ok()?, minor.parse().ok()?))
    };
    if found.variant == wanted.variant {
        return false;
    }
    match (wanted.architecture.as_str(), level(found), level(wanted)) {
        // Armv9.0 has all of Armv8.5.
        ("arm64", Some((8, found)), Some((9, wanted))) => found > wanted + 5,
        ("amd64" | "arm" | "arm64", Some(found), Some(wanted)) => found > wanted,
        ("amd64" | "arm" | "arm64", ..) => true,
        _ => found.variant.is_some(),
    }
}

fn shown(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}
