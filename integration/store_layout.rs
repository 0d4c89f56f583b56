//! `docs/store.md` names everything that there is in a store.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::support::ground::ground;
use crate::support::traces::Running;
use crate::support::{Builder, Context};

/// The names in the tree that the document draws: those at the top, and those in `tmp`.
fn documented() -> (BTreeSet<String>, BTreeSet<String>) {
    let text = include_str!("../docs/store.md");
    let tree = text.split("```").nth(1).expect("a tree");
    let name = |line: &str, start: &str| {
        let rest = line.strip_prefix(start)?;
        Some(rest.trim_start_matches(['├', '└', '─', ' ']).split([' ', '/']).next()?.to_owned())
    };
    let branches = ["├── ", "└── "];
    let at = |prefix: &'static str| {
        let lines = tree
            .lines()
            .filter(move |line| branches.iter().any(|branch| line.starts_with(&format!("{prefix}{branch}"))));
        lines.filter_map(move |line| name(line, prefix)).collect::<BTreeSet<String>>()
    };
    (at(""), at("    "))
}

fn names(directory: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).expect("directory");
    entries.map(|entry| entry.expect("entry").file_name().into_string().expect("name")).collect()
}

#[test]
fn the_document_names_everything_that_a_build_makes() {
    let (top, temporary) = documented();
    assert!(top.contains("blobs") && temporary.contains("build-HEX"), "{top:?} {temporary:?}");
    let builder = Builder::new();
    let context = Context::new(&format!(
        "FROM {}\nRUN --mount=type=cache,target=/c echo ready; sleep 1000\n",
        ground().name("busybox:latest")
    ));
    let mut running = Running::start(builder.command().args(["--no-push", "--context"]).arg(context.path()));
    running.wait_for("| ready");
    let unknown: Vec<String> = names(builder.store()).difference(&top).cloned().collect();
    assert!(unknown.is_empty(), "not in docs/store.md: {unknown:?}");
    for name in names(&builder.store().join("tmp")) {
        let is_known = |known: &String| {
            let (start, end) =
                known.split_once("HEX").or_else(|| known.split_once('N')).unwrap_or((known, ""));
            name.starts_with(start) && name.ends_with(end.trim_end_matches(','))
        };
        assert!(temporary.iter().any(is_known), "not in docs/store.md: tmp/{name}");
    }
    running.signal(rustix::process::Signal::TERM);
    running.end(std::time::Duration::from_secs(10));
    // And what a damaged catalog leaves.
    fs::write(builder.store().join("index.json"), "{").expect("catalog");
    let context = Context::new("FROM scratch\nCOPY Dockerfile /\n");
    let finished =
        builder.run(["--no-push".as_ref(), "--context".as_ref(), context.path().as_os_str()]).success();
    assert!(finished.says(&["warning: store: the catalog of the store was damaged"]), "{}", finished.stderr);
    let made = names(builder.store());
    assert_eq!(made, top, "left: in the store; right: in docs/store.md");
}
