//! The fuzz targets without a fuzzer: their seeds, and a fixed number of texts made of them by a seeded generator.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

#[path = "../fuzz/bodies.rs"]
mod bodies;

/// How many texts are made for each target; `BUILDER_FUZZ_ITERATIONS` says otherwise, for a longer run by hand.
const ITERATIONS: u64 = 4_000;

/// What texts are made with besides their seeds: what means something to some target.
const TOKENS: [&str; 96] = [
    "FROM ",
    "RUN ",
    "COPY ",
    "ADD ",
    "ENV ",
    "ARG ",
    "LABEL ",
    "CMD ",
    "ENTRYPOINT ",
    "SHELL ",
    "HEALTHCHECK ",
    "ONBUILD ",
    "VOLUME ",
    "EXPOSE ",
    "WORKDIR ",
    "USER ",
    "STOPSIGNAL ",
    "MAINTAINER ",
    " AS ",
    "scratch",
    "NONE",
    "\n",
    "\n",
    "\r\n",
    " ",
    "\t",
    "\\",
    "\\\n",
    "`",
    "`\n",
    " \\ \n",
    "\"",
    "'",
    "$",
    "${",
    "}",
    ":-",
    ":+",
    ":?",
    "#",
    "##",
    "%",
    "%%",
    "/",
    "//",
    "*",
    "?",
    "[",
    "]",
    "\", \"",
    "[\"",
    "\"]",
    ",",
    "=",
    "<<",
    "<<-",
    "<<EOF",
    "EOF\n",
    "\nEOF\n",
    "<<\"E F\"",
    "3<<E",
    "--",
    "--mount=type=",
    "--from=",
    "--platform=",
    "--chown=",
    "--link",
    "--interval=5s",
    "cache",
    "secret",
    "ssh",
    "tmpfs",
    "bind",
    ",target=",
    ",id=",
    ",required",
    "# escape=`\n",
    "# syntax=",
    "# check=skip=",
    "!",
    "**",
    "**/",
    "\u{feff}",
    "\u{a0}",
    "é",
    "\0",
    "@sha256:",
    "localhost:5000/",
    "\nlinux/arm",
    "/v6",
    "/v9",
    ".3",
    "{linux/amd64",
    "\nnil{",
    "a",
    "0",
];

/// splitmix64: the same numbers for the same seed on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, or 0.
    fn below(&mut self, end: usize) -> usize {
        (self.next() % (end.max(1) as u64)) as usize
    }

    /// A part of `text`, not too long.
    fn part<'t>(&mut self, text: &'t [u8]) -> &'t [u8] {
        let start = self.below(text.len() + 1);
        let end = text.len().min(start + self.below(40));
        &text[start..end]
    }

    /// `seeds`, changed in a few places.
    fn text(&mut self, seeds: &[Vec<u8>]) -> Vec<u8> {
        let mut text = seeds[self.below(seeds.len())].clone();
        for _ in 0..=self.below(6) {
            let at = self.below(text.len() + 1);
            let end = text.len().min(at + self.below(20));
            let piece = match self.below(8) {
                0 => vec![self.next() as u8],
                1 | 2 => TOKENS[self.below(TOKENS.len())].as_bytes().to_vec(),
                3 => TOKENS[self.below(TOKENS.len())].repeat(self.below(4)).into_bytes(),
                4 => {
                    let other = self.below(seeds.len());
                    self.part(&seeds[other]).to_vec()
                }
                5 => {
                    let part = self.part(&text).to_vec();
                    part.repeat(self.below(3))
                }
                _ => Vec::new(),
            };
            // Inserted, or in the place of something.
            let end = if self.below(2) == 0 { at } else { end };
            text.splice(at..end, piece);
        }
        text.truncate(20_000);
        text
    }
}

/// The seeds of each target: its own, and the Dockerfiles of the parser's corpus for those that read Dockerfiles.
fn seeds(target: &str) -> Vec<Vec<u8>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut seeds = BTreeMap::new();
    let mut add = |directory: &Path, extension: Option<&str>| {
        for entry in std::fs::read_dir(directory).into_iter().flatten() {
            let path = entry.expect("an entry").path();
            if extension.is_none_or(|wanted| path.extension().is_some_and(|found| found == wanted)) {
                seeds.insert(path.clone(), std::fs::read(&path).expect("a seed"));
            }
        }
    };
    add(&root.join("fuzz/corpus").join(target), None);
    if matches!(target, "parser" | "plan") {
        add(&root.join("testdata/dockerfile/parse"), Some("Dockerfile"));
    }
    seeds.into_values().collect()
}

fn replay(target: &str) {
    let (_, body) = bodies::TARGETS.iter().find(|(name, _)| *name == target).expect("a target");
    let iterations = std::env::var("BUILDER_FUZZ_ITERATIONS").ok().and_then(|text| text.parse().ok());
    let iterations = iterations.unwrap_or(ITERATIONS);
    let first = std::env::var("BUILDER_FUZZ_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let seeds = seeds(target);
    assert!(seeds.len() >= 5, "{target} has {} seeds", seeds.len());
    for seed in &seeds {
        checked(*body, seed);
    }
    let mut random = Random(first);
    let mut slowest = Duration::ZERO;
    for _ in 0..iterations {
        let text = random.text(&seeds);
        let began = Instant::now();
        checked(*body, &text);
        let took = began.elapsed();
        if took > slowest && took > Duration::from_millis(50) {
            eprintln!("{target}: {took:?} for {}", text.escape_ascii());
            slowest = took;
        }
    }
}

/// Runs `body` on `text`, which is shown if it panics.
fn checked(body: bodies::Body, text: &[u8]) {
    struct Shown<'t>(&'t [u8]);
    impl Drop for Shown<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("the text is b\"{}\"", self.0.escape_ascii());
            }
        }
    }
    let _shown = Shown(text);
    body(text);
}

#[test]
fn fuzz_parser() {
    replay("parser");
}

#[test]
fn fuzz_expansion() {
    replay("expansion");
}

#[test]
fn fuzz_mount_options() {
    replay("mount_options");
}

#[test]
fn fuzz_ignore_rules() {
    replay("ignore_rules");
}

#[test]
fn fuzz_plan() {
    replay("plan");
}

#[test]
fn fuzz_references() {
    replay("references");
}

#[test]
fn fuzz_spec() {
    replay("spec");
}

#[test]
fn fuzz_matching() {
    replay("matching");
}

/// The same laws for indexes that could be: of the words that mean something, and of any others.
#[test]
fn no_index_makes_a_newer_variant_or_another_architecture_be_taken() {
    use proptest::prelude::*;
    let platform = || {
        let architecture = "amd64|x86_64|386|arm|armhf|armel|armv[5-8]l|arm64|aarch64|ppc64le|riscv64|s390x";
        let variant = "(/v[1-9]|/v[89]\\.[0-9]|/[5-9]|/power(8|9|10)|/turbo|/\\PC{0,6}|)";
        format!("linux/({architecture}){variant}")
    };
    let entry = format!("({0}|{0}\\{{{0}|nil\\{{{0}|unknown/unknown|\\PC{{0,16}})", platform());
    let entries =
        proptest::collection::vec(proptest::string::string_regex(&entry).expect("an expression"), 0..8);
    let wanted = proptest::string::string_regex(&platform()).expect("an expression");
    let config = ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(wanted in wanted, entries in entries)| {
        checked(bodies::matching, [&[wanted], &entries[..]].concat().join("\n").as_bytes());
    });
}

/// A target that is in one place only would never run.
#[test]
fn every_fuzz_target_has_a_file_and_seeds() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (target, _) in bodies::TARGETS {
        let file = root.join("fuzz/fuzz_targets").join(format!("{target}.rs"));
        let source =
            std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        assert!(source.contains(&format!("bodies::{target}(")), "{source}");
        let manifest = std::fs::read_to_string(root.join("fuzz/Cargo.toml")).expect("a manifest");
        assert!(manifest.contains(&format!("name = \"{target}\"")), "{target}");
    }
}

#[test]
fn fuzz_targets_are_compiled_as_everything_else_is() {
    // Both get their profile from .cargo/config.toml; another would have every crate compiled once more.
    for manifest in ["Cargo.toml", "fuzz/Cargo.toml"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(manifest);
        let text = std::fs::read_to_string(path).expect("manifest");
        assert!(!text.contains("[profile.dev"), "{manifest}");
    }
}
