//! The module map in `src/lib.rs` is the truth: no module uses one that the map does not allow.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The modules that each module may use.
type Map = BTreeMap<String, BTreeSet<String>>;

/// Reads the table in the documentation of `src/lib.rs`: rows `| level | [`module`] | what | may use |`.
fn parse_map(lib: &str) -> Map {
    let mut map = Map::new();
    for line in lib.lines() {
        let cells: Vec<&str> = line.trim_start_matches("//!").trim().split('|').map(str::trim).collect();
        let ["", level, module, _, uses, ""] = cells[..] else { continue };
        if level.parse::<u8>().is_err() {
            continue;
        }
        let module = module.trim_matches(['[', ']', '`']).to_owned();
        let named: BTreeSet<String> = uses.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        let above: BTreeSet<String> = map.keys().cloned().collect();
        let allowed = match uses {
            "everything" => above,
            _ if uses.starts_with("everything above except ") => above.difference(&named).cloned().collect(),
            _ => named,
        };
        map.insert(module, allowed);
    }
    map
}

/// Code without comments and the unit tests at the end: those may borrow a higher module to make
/// their input.
fn code_of(source: &str) -> String {
    let mut code = String::new();
    let mut in_block = false;
    for line in without_tests(source).lines() {
        let mut rest = line;
        if in_block {
            let Some((_, after)) = rest.split_once("*/") else { continue };
            rest = after;
            in_block = false;
        }
        if let Some((before, _)) = rest.split_once("//") {
            rest = before;
        }
        if let Some((before, _)) = rest.split_once("/*") {
            in_block = !line.contains("*/");
            rest = before;
        }
        code.push_str(rest);
        code.push('\n');
    }
    code
}

/// `source` up to its unit tests. A mere declaration (`mod tests;`) is no end: code may follow it.
fn without_tests(source: &str) -> &str {
    let mut from = 0;
    while let Some(at) = source[from..].find("#[cfg(test)]\nmod ") {
        let at = from + at;
        let line = source[at..].lines().nth(1).unwrap_or_default();
        if line.ends_with('{') {
            return &source[..at];
        }
        from = at + 1;
    }
    source
}

#[test]
fn a_declaration_of_tests_does_not_end_a_file() {
    let source =
        "#[cfg(test)]\nmod tests;\nuse crate::build::x;\n#[cfg(test)]\nmod more {\nuse crate::cli;\n}\n";
    assert_eq!(used_modules(&code_of(source), 1), BTreeSet::from(["build".to_owned()]));
}

/// The top-level modules that a file uses: what stands behind `crate::`, and behind as many `super::` as lead there
/// from `depth` modules down.
fn used_modules(code: &str, depth: usize) -> BTreeSet<String> {
    let root = "super::".repeat(depth);
    let mut used = BTreeSet::new();
    for marker in ["crate::", root.as_str()] {
        for (start, _) in code.match_indices(marker) {
            let before = code[..start].chars().next_back();
            if before.is_some_and(|character| character.is_alphanumeric() || character == '_') {
                continue;
            }
            // Of a longer chain of `super::` only the last part counts.
            let rest = &code[start + marker.len()..];
            if rest.starts_with("super::") {
                continue;
            }
            used.extend(first_names(rest));
        }
    }
    used
}

/// The first name of a path, or the first name of each path in braces.
fn first_names(path: &str) -> Vec<String> {
    let name = |text: &str| -> String {
        text.trim_start()
            .chars()
            .take_while(|character| character.is_alphanumeric() || *character == '_')
            .collect()
    };
    let Some(group) = path.trim_start().strip_prefix('{') else { return vec![name(path)] };
    let mut level = 0;
    let mut names = Vec::new();
    let mut start = 0;
    for (at, character) in group.char_indices() {
        match character {
            '{' => level += 1,
            '}' if level == 0 => {
                names.push(name(&group[start..at]));
                break;
            }
            '}' => level -= 1,
            ',' if level == 0 => {
                names.push(name(&group[start..at]));
                start = at + 1;
            }
            _ => {}
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

/// All Rust files below a directory of the repository, sorted.
fn rust_files(directory: &str) -> Vec<PathBuf> {
    let mut pending = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(directory)];
    let mut files = Vec::new();
    while let Some(path) = pending.pop() {
        if path.is_dir() {
            pending.extend(fs::read_dir(&path).expect("directory").map(|entry| entry.expect("entry").path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

fn relative(path: &Path) -> String {
    path.strip_prefix(env!("CARGO_MANIFEST_DIR")).expect("in the repository").display().to_string()
}

fn read_map() -> Map {
    let lib = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs");
    parse_map(&fs::read_to_string(lib).expect("src/lib.rs"))
}

/// The files that are nothing but tests: their declaration stands behind `#[cfg(test)]`.
fn test_files(files: &[PathBuf]) -> BTreeSet<PathBuf> {
    let mut tests = BTreeSet::new();
    for file in files {
        let source = fs::read_to_string(file).expect("source");
        let is_root = matches!(file.file_stem().and_then(|stem| stem.to_str()), Some("mod" | "lib"));
        let directory =
            if is_root { file.parent().expect("directory").to_owned() } else { file.with_extension("") };
        tests.extend(test_modules(&source).map(|name| directory.join(format!("{name}.rs"))));
    }
    tests
}

fn test_modules(source: &str) -> impl Iterator<Item = &str> {
    source.split("#[cfg(test)]\n").skip(1).filter_map(|rest| {
        let declaration = rest.lines().map(str::trim).find(|line| !line.starts_with("#["))?;
        let (visibility, name) = declaration.strip_suffix(';')?.split_once("mod ")?;
        (visibility.is_empty() || visibility.starts_with("pub")).then_some(name)
    })
}

#[test]
fn files_of_tests_are_told_by_their_declaration() {
    let source = "mod a;\n#[cfg(test)]\nmod b;\n#[cfg(test)]\npub(crate) mod c;\n#[cfg(test)]\nmod tests {\n}\n\
         #[cfg(test)]\n#[expect(x)]\nmod d;\n";
    assert_eq!(test_modules(source).collect::<Vec<_>>(), ["b", "c", "d"]);
}

#[test]
fn no_module_uses_one_that_the_map_forbids() {
    let map = read_map();
    let mut wrong = Vec::new();
    let files = rust_files("src");
    let tests = test_files(&files);
    for file in files.iter().filter(|file| !tests.contains(*file)) {
        let name = relative(file);
        let parts: Vec<&str> = name.trim_start_matches("src/").trim_end_matches(".rs").split('/').collect();
        if matches!(parts[..], ["lib"] | ["main"]) {
            continue;
        }
        let depth = parts.len() - usize::from(parts.last() == Some(&"mod"));
        let Some(allowed) = map.get(parts[0]) else {
            wrong.push(format!("{name}: `{}` is not in the map", parts[0]));
            continue;
        };
        let source = fs::read_to_string(file).expect("source");
        for used in used_modules(&code_of(&source), depth) {
            if used != parts[0] && map.contains_key(&used) && !allowed.contains(&used) {
                wrong.push(format!("{name}: `{}` may not use `{used}`", parts[0]));
            }
        }
    }
    assert!(wrong.is_empty(), "against the map in src/lib.rs:\n{}", wrong.join("\n"));
}

/// Process 1 takes leave of all children but those that `children` knows.
#[test]
fn children_are_started_in_one_place() {
    // The other one does so before there is a second thread, or in a process of its own.
    let places = ["src/children.rs", "src/sandbox/subordinate.rs"];
    let files = rust_files("src");
    let tests = test_files(&files);
    let starting = files.iter().filter(|file| !tests.contains(*file)).filter(|file| {
        let code = code_of(&fs::read_to_string(file).expect("source"));
        let starts = [".spawn()", ".output()", ".status()"].iter().any(|call| code.contains(call));
        starts && code.contains("process::") && code.contains("Command")
    });
    assert_eq!(starting.map(|file| relative(file)).collect::<Vec<_>>(), places);
}

#[test]
fn the_map_names_every_module_and_only_lower_ones_are_used() {
    let lib =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs")).expect("src/lib.rs");
    let map = parse_map(&lib);
    for line in lib.lines() {
        if let Some(module) = line.strip_prefix("pub mod ").and_then(|rest| rest.strip_suffix(';')) {
            assert!(map.contains_key(module), "`{module}` is not in the map of src/lib.rs");
        }
    }
    let order: Vec<&str> = lib
        .lines()
        .filter_map(|line| line.split('|').nth(2)?.trim().strip_prefix("[`")?.strip_suffix("`]"))
        .collect();
    for (module, allowed) in &map {
        let own = order.iter().position(|name| name == module);
        for used in allowed {
            let other = order.iter().position(|name| name == used);
            assert!(
                other.is_some() && other < own,
                "`{module}` uses `{used}`, which is not above it in the map"
            );
        }
    }
}

#[test]
fn every_file_says_first_what_it_is() {
    let silent: Vec<String> = ["src", "integration"]
        .iter()
        .flat_map(|directory| rust_files(directory))
        .filter(|file| {
            let source = fs::read_to_string(file).expect("source");
            !source.lines().next().is_some_and(|line| line.starts_with("//! ") && line.len() > 10)
        })
        .map(|file| relative(&file))
        .collect();
    assert!(silent.is_empty(), "the first line must be `//! …`: {}", silent.join(", "));
}

#[test]
fn uses_are_found_in_all_their_forms() {
    let names = |code: &str, depth| used_modules(&code_of(code), depth).into_iter().collect::<Vec<_>>();
    let cases: &[(&str, usize, &[&str])] = &[
        ("use crate::image::digest::Digest;", 2, &["image"]),
        ("use crate::{image::{self, config}, rootfs::Rootfs};", 2, &["image", "rootfs"]),
        ("use crate::{\n    image::digest::{A, B},\n    store,\n};", 2, &["image", "store"]),
        ("let a = crate::sys::mount(fd);", 2, &["sys"]),
        ("pub(in crate::layer) fn f() {}", 2, &["layer"]),
        ("use super::super::store::Store;", 2, &["store"]),
        ("use super::store::Store;", 1, &["store"]),
        ("use super::apply;", 2, &[]),
        ("// use crate::store::Store;", 2, &[]),
        ("/// See [`crate::store`].\nfn f() {}", 2, &[]),
        ("use crate::a::B;\n#[cfg(test)]\nmod tests {\n    use crate::store::Store;\n}", 2, &["a"]),
    ];
    for (code, depth, expected) in cases {
        assert_eq!(names(code, *depth), *expected, "{code}");
    }
}

#[test]
fn the_map_is_read_in_all_its_forms() {
    let map = parse_map(
        "//! | level | module | what it is | may use |\n//! |---|---|---|---|\n//! | 0 | [`a`] | x | – |\n\
         //! | 1 | [`b`] | x | `a` |\n//! | 2 | [`c`] | x | everything above except `a` |\n\
         //! | 3 | [`d`] | x | everything |\n",
    );
    let allowed = |module: &str| map[module].iter().map(String::as_str).collect::<Vec<_>>();
    assert_eq!(allowed("a"), [""; 0]);
    assert_eq!(allowed("b"), ["a"]);
    assert_eq!(allowed("c"), ["b"]);
    assert_eq!(allowed("d"), ["a", "b", "c"]);
}
