//! Where the Dockerfile comes from, and which ignore rules come with it.

use std::sync::LazyLock;

use std::io::Write as _;
use std::process::Stdio;

use crate::support::oci::{LayoutImage, with_unpacked};
use crate::support::tree::{Times, dump};
use crate::support::{Builder, Context, Finished, scratch};

/// Runs the program with `input` on its standard input.
fn with_input(builder: &Builder, arguments: &[&str], input: &[u8]) -> Finished {
    let mut command = builder.command();
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("start builder");
    // Who refuses does not read all of it.
    let _ = child.stdin.take().expect("a pipe").write_all(input);
    let output = child.wait_with_output().expect("an end");
    Finished {
        command: format!("{command:?}"),
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

#[test]
fn a_dockerfile_on_standard_input_has_the_context_that_is_named_or_none() {
    let context = Context::new("FROM scratch\nRUN false\n");
    context.write("f", "F");
    context.write("hidden", "H");
    context.write(".dockerignore", "hidden\nDockerfile\n.dockerignore\n");
    context.write("Dockerfile.dockerignore", "f\n");
    let path = context.path().to_str().expect("a path");
    let out = scratch();
    let layout = out.path().join("layout");
    let output = format!("--oci-layout-path={}", layout.display());
    let builder = Builder::new();
    for flags in [&["-f", "-", path][..], &["--dockerfile=-", "-c", path], &["-f", "/dev/stdin", path]] {
        let all = [&["build", "--no-push", "-t", "x.example/x:1", &output], flags].concat();
        with_input(&builder, &all, b"FROM scratch\nCOPY . /\n").success();
        with_unpacked(&layout, "1", |root| {
            let names = dump(root, Times::Hidden);
            assert!(names.contains("/f ") && !names.contains("/hidden "), "{flags:?}: {names}");
        });
    }
    let all = ["-t", "x.example/x:1", "--no-push", &output, "-"];
    with_input(&builder, &all, b"FROM scratch\nCOPY . /e/\nCOPY <<E /g\ng\nE\n").success();
    let paths = LayoutImage::only(&layout).layer_paths(&layout).concat();
    assert_eq!(paths, ["e/", "g"]);
    let plan = with_input(&builder, &["plan", "-"], b"FROM scratch\nENV a=b\n").success().json();
    assert_eq!(plan["stages"][0]["steps"][0]["instruction"], "ENV a=b");
}

#[test]
fn standard_input_is_refused_with_its_place_where_it_is_no_dockerfile() {
    let context = Context::new("FROM scratch\n");
    let path = context.path().to_str().expect("a path");
    let mut tar = vec![0; 2048];
    tar[257..262].copy_from_slice(b"ustar");
    for (arguments, input, words) in [
        (&["--no-push", "-"][..], &b"FROM scratch\nCOPPY a b\n"[..], &["--> standard input:2"][..]),
        (&["--no-push", "-"], b"", &["the Dockerfile cannot be empty"]),
        (&["--no-push", "-"], &tar, &["standard input: this is an archive"]),
        (&["--no-push", "-"], b"\x1f\x8b\x08", &["standard input: this is an archive"]),
        (&["--no-push", "-f", "-", path], &tar, &["standard input: this is an archive"]),
        (&["--no-push", "-f", "-", "-"], b"FROM scratch\n", &["cannot be both"]),
        (&["--no-push", "-f", "Dockerfile", "-"], b"FROM scratch\n", &["--dockerfile names another"]),
        (&["--no-push", "-"], b"FROM scratch\nCOPY x /\n", &["`x` is not in the build context"]),
        (&["--no-push", "--limit=dockerfile-bytes=9", "-"], b"FROM scratch\n", &["larger than 9 bytes"]),
    ] {
        let finished = with_input(&Builder::new(), arguments, input).exited(1);
        assert!(finished.says(words), "{arguments:?}: {}", finished.stderr);
    }
}

#[test]
fn the_usual_name_may_be_in_lower_case_and_has_its_own_rules() {
    let context = Context::new("");
    std::fs::remove_file(context.path().join("Dockerfile")).expect("remove");
    context.write("dockerfile", "FROM scratch\nCOPY a /\n");
    context.write("dockerfile.dockerignore", "a\n");
    context.write("a", "A");
    let path = context.path().to_str().expect("a path");
    let finished = Builder::new().run(["--no-push", path]).exited(1);
    assert!(finished.says(&["excluded by `dockerfile.dockerignore` line 1: `a`"]), "{}", finished.stderr);
    std::fs::remove_file(context.path().join("dockerfile")).expect("remove");
    let finished = Builder::new().run(["--no-push", path]).exited(1);
    assert!(finished.says(&["no `Dockerfile` in"]), "{}", finished.stderr);
}

/// The context of the table of ignore rules; directories end in a slash.
static TREE: LazyLock<Vec<&str>> =
    LazyLock::new(|| include_str!("../testdata/ignore/tree.txt").lines().collect());

/// A row of the table: the file of rules, and what is there then or what is wrong.
fn row(line: &str) -> (String, Result<Vec<&'static str>, &str>) {
    let (rules, expected) = line.split_once('\t').expect("a tab");
    let rules = rules.replace('⏎', "\n").replace('␠', " ").replace('␉', "\t").replace('␍', "\r");
    let (verb, list) = expected.split_once(':').expect("a colon");
    let words: Vec<&str> = list.split(' ').filter(|word| !word.is_empty()).collect();
    let is_named = |entry: &str| {
        words.iter().any(|word| word.strip_suffix("...").map_or(*word == entry, |top| entry.starts_with(top)))
    };
    let there = TREE.iter().copied().filter(|entry| is_named(entry) == (verb == "keeps"));
    (rules, if verb == "error" { Err(list.trim()) } else { Ok(there.collect()) })
}

#[test]
fn every_row_of_the_ignore_table_holds_for_the_main_context_and_for_named_ones() {
    let table = include_str!("../testdata/ignore/table.tsv");
    let rows: Vec<_> = table.lines().filter(|line| !line.starts_with("##")).map(row).collect();
    assert!(rows.len() > 50, "{}", rows.len());
    let fill = |context: &Context, rules: &str| {
        for entry in TREE.iter() {
            match entry.strip_suffix('/') {
                Some(directory) => {
                    std::fs::create_dir_all(context.path().join(directory)).expect("directory");
                }
                None if *entry != ".dockerignore" => {
                    context.write(entry, "");
                }
                None => {}
            }
        }
        context.write(".dockerignore", rules);
    };
    let builder = Builder::new();
    let (mut flags, mut contexts, mut dockerfile) = (Vec::new(), Vec::new(), "FROM scratch\n".to_owned());
    for (number, (rules, expected)) in rows.iter().enumerate() {
        let context = Context::new("");
        fill(&context, rules);
        let flag = format!("--build-context=c{number}={}", context.path().display());
        match expected {
            Ok(_) => {
                dockerfile += &format!("COPY --from=c{number} . /{number}/\n");
                flags.push(flag);
            }
            Err(message) => {
                let user = Context::new(&format!("FROM scratch\nCOPY --from=c{number} . /\n"));
                for path in [user.path(), context.path()] {
                    if path == context.path() {
                        context.write("Dockerfile", "FROM scratch\n");
                    }
                    let path = path.to_str().expect("a path");
                    let finished = builder.run(["--no-push", path, &flag]).exited(1);
                    assert!(finished.says(&[message]), "{rules:?}: {}", finished.stderr);
                }
            }
        }
        contexts.push(context);
    }
    let user = Context::new(&dockerfile);
    let out = scratch();
    let layout = out.path().join("layout");
    flags.push("--destination=x.example/x:1".to_owned());
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    builder.layout(&user, &layout, &flags).success();
    let paths = LayoutImage::only(&layout).layer_paths(&layout);
    let mut layers = paths.iter();
    for (number, (rules, expected)) in rows.iter().enumerate() {
        let Ok(expected) = expected else { continue };
        let top = format!("{number}/");
        let below = layers.next().expect("a layer").iter().filter_map(|path| path.strip_prefix(&top));
        let mut found: Vec<&str> = below.filter(|path| !path.is_empty()).collect();
        found.sort_unstable();
        let mut expected = expected.clone();
        expected.sort_unstable();
        assert_eq!(found, expected, "{rules:?}");
    }
    // The same files as the main context, whose Dockerfile lies elsewhere and has no rules of its own.
    let other = Context::new("FROM scratch\nCOPY . /0/\n");
    let dockerfile = other.path().join("Dockerfile");
    for (context, (rules, expected)) in contexts.iter().zip(&rows).step_by(7) {
        let Ok(expected) = expected else { continue };
        let file = format!("--dockerfile={}", dockerfile.display());
        builder.layout(context, &layout, &[&file]).success();
        let paths = LayoutImage::only(&layout).layer_paths(&layout).concat();
        let mut found: Vec<&str> = paths.iter().filter_map(|path| path.strip_prefix("0/")).collect();
        found.retain(|path| !path.is_empty());
        found.sort_unstable();
        let mut expected = expected.clone();
        expected.sort_unstable();
        assert_eq!(found, expected, "{rules:?}");
    }
}
