//! COPY and ADD in all their forms.

use super::generate::{Generator, Language};
use super::program::Kind;

const GLOBS: &[&str] =
    &["*", "*.txt", "[a-d]*", "?", "d/*", "*/f", "*/*", "a*", ".*", "[[]x]", "*/*.txt", "[^a-f]*"];
const OF_STAGES: &[&str] = &[
    "/etc/passwd",
    "/etc",
    "/etc/",
    "/home",
    "/[a]",
    "/[b]",
    "/[a-d]",
    "/*/f",
    "/[l]",
    "/w*",
    "/tmp",
    "/[a-d]/*",
    "/[f]*",
    "/home/user/../..",
    "/bin/busybo*",
    "/.[h]",
    "/?",
    "home/use*",
    "/out*",
    "/tm*/*",
];
const DESTINATIONS: &[&str] = &[
    "/",
    "./",
    ".",
    "/a/",
    "/a",
    "/a",
    "/b/c",
    "/b/",
    "/w/x/",
    "sub/",
    "sub",
    "/a/b/c/d/",
    "/l/",
    "/l",
    "/l/x",
    "/tmp/",
    "/home/user/x",
    "/f",
    "/d/",
    "../up/",
    "/c",
    "/c/.",
    "/g/../h/",
    "$A/",
    "${C:-/c}/",
];

/// A COPY or ADD.
pub(super) fn copy(of: &mut Generator, instruction: &str) -> String {
    let copy = instruction == "COPY";
    if of.language == Language::Whole && of.random.percent(8) {
        return here_document(of, instruction);
    }
    let from = (copy && !of.earlier.is_empty() && of.random.percent(40))
        .then(|| of.earlier[of.random.below(of.earlier.len())].clone());
    let mut flags = from.as_ref().map_or_else(String::new, |from| format!("--from={from} "));
    if of.random.percent(20) {
        let owners = ["5:6", "7", ":9", "user", "user:supp", "0:0", "root", "1000:supp"];
        flags += &format!("--chown={} ", of.random.pick(&owners));
    }
    if of.random.percent(12) {
        let modes: &[&str] = if of.language == Language::Whole {
            &["755", "0640", "4711", "u=rwX,go=rX", "+x", "g-w,o="]
        } else {
            &["755", "0640", "700"]
        };
        flags += &format!("--chmod={} ", of.random.pick(modes));
    }
    if of.language == Language::Whole {
        flags += of.random.sometimes(15, "--link ");
        if copy {
            flags += of.random.sometimes(15, "--parents ");
        } else {
            flags += of.random.sometimes(10, "--unpack=false ");
        }
        if of.random.percent(12) {
            let patterns = ["*.txt", "**/f", "a", "*/b", "!a", ".*", "**/*.go"];
            flags += &format!("--exclude={} ", of.random.pick(&patterns));
            flags += of.random.sometimes(30, "--exclude=!x.txt ");
        }
    }
    let count = *of.random.pick(&[&1, &1, &1, &2, &3]);
    let mut words: Vec<String> = (0..count).map(|_| source(of, instruction, from.is_some())).collect();
    let destination = of.random.pick(DESTINATIONS);
    let slash = if count > 1 && of.random.percent(90) && !destination.ends_with('/') { "/" } else { "" };
    words.push(format!("{destination}{slash}"));
    format!("{instruction} {flags}{}", arguments(&words))
}

fn arguments(words: &[String]) -> String {
    if words.iter().any(|word| word.contains(' ')) {
        serde_json::json!(words).to_string()
    } else {
        words.join(" ")
    }
}

fn source(of: &mut Generator, instruction: &str, from_stage: bool) -> String {
    if from_stage {
        return of.random.pick(OF_STAGES).to_owned();
    }
    if instruction == "ADD"
        && of.random.percent(40)
        && of.context.iter().any(|file| file.path.ends_with(b".tar"))
    {
        return "t.tar".to_owned();
    }
    let all = of.paths(|kind| !matches!(kind, Kind::Fifo));
    let directories = of.paths(|kind| matches!(kind, Kind::Directory));
    let some = |of: &mut Generator, paths: &[String]| match paths.len() {
        0 => ".".to_owned(),
        count => paths[of.random.below(count)].clone(),
    };
    let path = match of.random.below(12) {
        0..=4 => some(of, &all),
        5 | 6 => some(of, &directories),
        7 => some(of, &directories) + of.random.pick(&["/", "/.", "/*"]),
        8 => format!("{}{}", of.random.pick(&["/", "./", "../"]), some(of, &all)),
        9 => of.random.pick(&[".", "/", "./", ".."]).to_owned(),
        _ => return of.random.pick(GLOBS).to_owned(),
    };
    // These have to be given as patterns; a backslash would be taken by the expansion of variables.
    path.replace("[x]", "[[]x]")
}

fn here_document(of: &mut Generator, instruction: &str) -> String {
    let destination = of.random.pick(DESTINATIONS);
    let number = of.random.below(100);
    let flags = of.random.sometimes(30, "--chmod=750 --chown=3:4 ");
    match of.random.below(4) {
        0 => format!("{instruction} {flags}<<one <<\"two\" {destination}/\n{number} $A\none\n$A \\$A\ntwo"),
        1 => format!("{instruction} {flags}<<-EOF {destination}\n\t{number}\n\t\t${{B:-none}}\n\tEOF"),
        2 => format!("{instruction} {flags}<<f [f]* {destination}/\n{number}\nf"),
        _ => format!("{instruction} {flags}<<EOF {destination}\n#!/bin/sh\n\n# {number} \"$A\"\nEOF"),
    }
}
