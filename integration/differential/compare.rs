//! Where two images of a program are not the same.

use serde_json::Value;

use super::image::{Facts, Tree, names};
use super::program::Program;

/// One fact that two makers disagree about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Difference {
    /// Which one, for instance `tree /a mode`.
    pub(crate) place: String,
    /// What the first has.
    pub(crate) one: String,
    /// What the other has.
    pub(crate) other: String,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}\n    {}\n    {}", self.place, self.one, self.other)
    }
}

fn add(differences: &mut Vec<Difference>, place: &str, one: &str, other: &str) {
    if one != other {
        differences.push(Difference {
            place: place.to_owned(),
            one: one.to_owned(),
            other: other.to_owned(),
        });
    }
}

/// Everything: entries of the layers, config, history. The first is what overlayfs makes.
pub(crate) fn exactly(program: &Program, one: &Facts, other: &Facts) -> Vec<Difference> {
    let mut differences = Vec::new();
    // On overlayfs a directory of a lower layer is moved by copying it.
    let moved = program.dockerfile().contains("mv ");
    let layers_of = |facts: &Facts| match moved {
        true => {
            facts.layers.iter().map(|lines| lines.iter().map(|line| whole_seconds(line)).collect()).collect()
        }
        false => facts.layers.clone(),
    };
    let (one_layers, other_layers): (Vec<Vec<String>>, Vec<Vec<String>>) = (layers_of(one), layers_of(other));
    add(&mut differences, "layers", &one.layers.len().to_string(), &other.layers.len().to_string());
    // overlayfs gives a name that is written to a file of its own: `docs/snapshotters.md`, "What differs".
    let shared = |line: &str| one.shared.iter().chain(&other.shared).any(|path| is_of(line, path));
    for (number, (ones, others)) in one_layers.iter().zip(&other_layers).enumerate() {
        let (ones, others) = match moved {
            true => {
                let others = without_return(others, ones, &other_layers[..number]);
                (without_return(&as_if_renamed(ones, &others), &others, &one_layers[..number]), others)
            }
            false => (ones.clone(), others.clone()),
        };
        let less = |all: &[String], those: &[String]| {
            let differing = all.iter().filter(|line| !those.contains(line) && !shared(line));
            let lines: Vec<&str> = differing.map(String::as_str).collect();
            lines.join("\n    ")
        };
        let place = format!("layer {number}");
        add(&mut differences, &place, &less(&ones, &others), &less(&others, &ones));
        if differences.is_empty() && one.shared.is_empty() && other.shared.is_empty() {
            add(&mut differences, &format!("{place} order"), &ones.join(" "), &others.join(" "));
        }
    }
    add(&mut differences, "history", &one.history.join("\n    "), &other.history.join("\n    "));
    add(&mut differences, "config", &one.config.to_string(), &other.config.to_string());
    differences
}

/// The lines of a layer as they would be if its directories were renamed, as those of `others` are, and not copied.
fn as_if_renamed(lines: &[String], others: &[String]) -> Vec<String> {
    let renamed = |line: &String| {
        let file = || others.iter().find(|other| !lines.contains(other) && is_busybox_copy(line, other));
        if others.contains(line) { line.clone() } else { file().unwrap_or(line).clone() }
    };
    lines.iter().map(renamed).collect()
}

/// The lines of a layer but for those that only it has, of what was moved and came back as a copy: without the billionths of
/// seconds it is other than it was in `before`, the layers below.
fn without_return(lines: &[String], others: &[String], before: &[Vec<String>]) -> Vec<String> {
    let is_back =
        |line: &String| before.iter().flatten().any(|file| line == file || is_busybox_copy(line, file));
    lines.iter().filter(|line| others.contains(line) || !is_back(line)).cloned().collect()
}

/// Whether `copy` is what busybox makes of `file` when it cannot rename: without extended attributes, and a link has the
/// time at which it is made.
fn is_busybox_copy(copy: &str, file: &str) -> bool {
    let parts = |line: &str| {
        let (facts, time) = line.rsplit_once(' ')?;
        let (facts, attributes) = facts.split_once(" {")?;
        Some((facts.to_owned(), attributes.to_owned(), time.to_owned()))
    };
    let (Some(copy), Some(file)) = (parts(copy), parts(file)) else { return false };
    let is_link = copy.0.contains(" symlink ");
    copy.0 == file.0
        && (copy.1 == file.1 || copy.1 == "}")
        && (copy.2 == file.2 || (is_link && copy.2 == "now"))
}

/// busybox copies no billionths of seconds.
fn whole_seconds(line: &str) -> String {
    match line.rsplit_once(' ') {
        Some((facts, time)) => format!("{facts} {}", time.split('.').next().unwrap_or_default()),
        None => line.to_owned(),
    }
}

/// Whether a line is about a path, another name of it, or a directory that it is in.
fn is_of(line: &str, path: &str) -> bool {
    if let Some((directory, _)) = line.split_once(" directory ") {
        return path.strip_prefix(directory).is_some_and(|below| below.starts_with('/'));
    }
    let rest = line.strip_prefix(path);
    rest.is_some_and(|rest| rest.starts_with(' '))
        || line.contains(&format!(" {} ", path.trim_start_matches('/')))
}

/// The files of both.
pub(crate) fn trees(one: &Tree, other: &Tree) -> Vec<Difference> {
    let mut differences = Vec::new();
    let (names_one, names_other) = (names(one), names(other));
    let paths: std::collections::BTreeSet<&String> = one.keys().chain(other.keys()).collect();
    for path in paths {
        let (Some(a), Some(b)) = (one.get(path), other.get(path)) else {
            let shown = |tree: &Tree| tree.get(path).map_or("-".to_owned(), |file| file.kind.clone());
            add(&mut differences, &format!("tree {path} there"), &shown(one), &shown(other));
            continue;
        };
        for ((field, a), (_, b)) in a.fields().into_iter().zip(b.fields()) {
            let directory = if field == "time" && one[path].kind == "directory" { "directory-" } else { "" };
            add(&mut differences, &format!("tree {path} {directory}{field}"), &a, &b);
        }
        if let (Some(a), Some(b)) = (names_one.get(path.as_str()), names_other.get(path.as_str())) {
            add(&mut differences, &format!("tree {path} name"), a, b);
        }
    }
    differences
}

/// What can be compared with an image of another builder: files, config, and which instructions the history is of.
pub(crate) fn by_meaning(one: &Facts, other: &Facts) -> Vec<Difference> {
    let mut differences = trees(&one.tree, &other.tree);
    let keys = |facts: &Facts| {
        let top = facts.config.as_object().cloned().unwrap_or_default();
        let inner = top.get("config").and_then(Value::as_object).cloned().unwrap_or_default();
        let top = top
            .into_iter()
            .filter(|(key, _)| key != "config")
            .map(|(key, value)| (format!("top {key}"), value));
        top.chain(inner).collect::<std::collections::BTreeMap<String, Value>>()
    };
    let (one_keys, other_keys) = (keys(one), keys(other));
    let all: std::collections::BTreeSet<&String> = one_keys.keys().chain(other_keys.keys()).collect();
    for key in all {
        let shown = |keys: &std::collections::BTreeMap<String, Value>| {
            keys.get(key).filter(|value| !is_empty(value)).map_or("-".to_owned(), Value::to_string)
        };
        add(&mut differences, &format!("config {key}"), &shown(&one_keys), &shown(&other_keys));
    }
    let rows = |facts: &Facts| facts.history.iter().map(|row| instruction(row)).collect::<Vec<_>>().join(" ");
    add(&mut differences, "history", &rows(one), &rows(other));
    differences
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(array) => array.is_empty(),
        Value::Object(object) => object.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

/// The instruction that a row of the history is of, in the words of BuildKit or of those who follow Docker's first builder.
fn instruction(row: &str) -> String {
    let row = row.trim_start_matches('-');
    let row = row.split_once("#(nop) ").map_or(row, |(_, instruction)| instruction);
    let word = row.split_whitespace().next().unwrap_or_default();
    let known = word.bytes().all(|byte| byte.is_ascii_uppercase());
    if known { word.to_owned() } else { "RUN".to_owned() }
}
