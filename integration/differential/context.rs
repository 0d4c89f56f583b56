//! Build contexts: a small tree with all kinds of files in it, and a `.dockerignore`.

use super::commands::Names;
use super::program::{File, Kind};
use super::random::Random;

const NAMES: &[&str] =
    &["a", "b", "d", "f", "g", "l", "x.txt", "y.txt", ".h", "n n", "ü", "f.go", "[x]", "a*b", "-q", ".wha"];
const MODES: &[u32] = &[0o644, 0o644, 0o600, 0o755, 0o444, 0o4755, 0o2711, 0o640, 0o1644];
const DIRECTORY_MODES: &[u32] = &[0o755, 0o755, 0o700, 0o750, 0o1777, 0o2755];
const TIMES: &[(i64, i64)] = &[
    (1_000_000_000, 0),
    (1_234_567_890, 123_456_789),
    (1, 0),
    (0, 0),
    (1_600_000_000, 5),
    (4_000_000_000, 0),
];
const ATTRIBUTES: &[(&str, &[u8])] = &[
    ("user.note", b"hello"),
    // cap_net_bind_service=ep
    ("security.capability", &[1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
];

/// Files of a context, parents first.
pub(crate) fn files(random: &mut Random, names: Names) -> Vec<File> {
    let mut files = Vec::new();
    fill(random, b"", 0, &mut files);
    if names == Names::One {
        files.retain(|file| !matches!(file.kind, Kind::Same(_)));
    }
    if random.percent(30) {
        let archive = super::archive::bytes(random);
        add(random, below(b"", "t.tar"), Kind::Regular(archive), &mut files);
    }
    files
}

fn below(directory: &[u8], name: &str) -> Vec<u8> {
    let slash: &[u8] = if directory.is_empty() { b"" } else { b"/" };
    [directory, slash, name.as_bytes()].concat()
}

fn add(random: &mut Random, path: Vec<u8>, kind: Kind, files: &mut Vec<File>) {
    let directory = matches!(kind, Kind::Directory);
    let modes = if directory { DIRECTORY_MODES } else { MODES };
    let regular = matches!(kind, Kind::Regular(_));
    let attribute = (regular && random.percent(5)).then(|| ATTRIBUTES[random.below(ATTRIBUTES.len())]);
    let mode = modes[random.below(modes.len())];
    let time = TIMES[random.below(TIMES.len())];
    files.push(File { path, kind, mode, time, attribute });
}

fn fill(random: &mut Random, directory: &[u8], depth: usize, files: &mut Vec<File>) {
    for name in NAMES {
        if !random.percent(if depth == 0 { 40 } else { 25 }) {
            continue;
        }
        let path = below(directory, name);
        let kind = match random.below(20) {
            0..=5 if depth < 3 => Kind::Directory,
            6 | 7 => Kind::Link(target(random, files)),
            8 => match files.iter().rev().find(|file| matches!(file.kind, Kind::Regular(_))) {
                Some(file) => Kind::Same(file.path.clone()),
                None => Kind::Regular(Vec::new()),
            },
            _ => Kind::Regular(format!("{}\n", random.below(1000)).into_bytes()),
        };
        let directory = matches!(kind, Kind::Directory);
        add(random, path.clone(), kind, files);
        if directory {
            if random.percent(10) {
                add(random, below(&path, "pipe"), Kind::Fifo, files);
            }
            fill(random, &path, depth + 1, files);
        }
    }
}

fn target(random: &mut Random, files: &[File]) -> Vec<u8> {
    match random.below(6) {
        0 => b"nowhere".to_vec(),
        1 => b"../..".to_vec(),
        2 => b"/a".to_vec(),
        3 => random.pick(NAMES).as_bytes().to_vec(),
        _ if files.is_empty() => b".".to_vec(),
        4 => [b"/", &files[random.below(files.len())].path[..]].concat(),
        _ => files[random.below(files.len())].path.clone(),
    }
}

/// Lines of a `.dockerignore`, if there is one.
pub(crate) fn ignore(random: &mut Random) -> Option<String> {
    if !random.percent(30) {
        return None;
    }
    const PATTERNS: &[&str] = &[
        "*.txt",
        "**/*.txt",
        "a",
        "a/*",
        "!a/b",
        "!**/f",
        "d/**",
        "*/f",
        "**/d",
        "!d",
        "# comment",
        "",
        " b ",
        "/f",
        "b/",
        "./g",
        ".*",
        "!.h",
        "[a-b]",
        "*/*/f",
        "a**",
        "**/*.go",
        "!x.txt",
        "?.txt",
        "Dockerfile",
        "l",
        "!*.go",
        "../f",
        "\\[x\\]",
        "d/a/../f",
    ];
    let lines: Vec<&str> = (0..random.between(1, 4)).map(|_| random.pick(PATTERNS)).collect();
    Some(lines.join("\n") + random.sometimes(50, "\n"))
}
