//! Layers that are made on nothing and put on top of whatever there is: COPY and ADD with `--link`.

use super::*;

/// What is copied onto, by links and otherwise.
const BELOW: &str = "FROM BASE\nRUN mkdir -p /t /tmp/deep && chmod 1777 /tmp && ln -s /t /d && ln -s t/new /file && echo old >/old && ln /old /too\n";
/// What is copied there, and what must be found then.
const ABOVE: &str = "COPY --link f /d/\nADD --link --chown=5:6 f dir /tmp/\nCOPY --link f /file\nCOPY --link f /old\nCOPY --link f /s\n";
const SEEN: &str = "test ! -L /d && test -z \"$(ls /t)\" && test \"$(cat /d/f /file /old /too)\" = \"$(cat /s /s /s; echo old)\" \
    && test \"$(stat -c '%a %u:%g' /tmp)\" = '755 5:6' && test -d /tmp/deep && test \"$(stat -c %u /tmp/sub)\" = 5";

fn project(dockerfile: &str) -> Project {
    let project = Project::new(dockerfile);
    for name in ["f", "dir/sub/g"] {
        project.context.write(name, name);
    }
    project
}

/// Digests of the layers, bottom first.
fn layers(layout: &Path) -> Vec<String> {
    let image = LayoutImage::only(layout);
    image.manifest.layers().iter().map(|layer| layer.digest().to_string()).collect()
}

#[test]
fn what_a_stage_has_then_is_what_its_layers_make_however_it_is_built() {
    let mut trees = Vec::new();
    let mut facts = Vec::new();
    for flags in [
        &["--snapshotter=overlayfs"][..],
        &["--snapshotter=native"],
        &["--snapshotter=overlayfs", "--single-snapshot"],
        &["--snapshotter=native", "--single-snapshot"],
    ] {
        // A step that sees the files fails where they are not what another program makes of the layers.
        let project = project(&format!("{BELOW}{ABOVE}RUN {SEEN}\nCOPY f /d/more\n"));
        let (finished, layout) = project.layout("layout", flags);
        assert!(finished.says(&["COPY --link f /d/"]), "{}", finished.stderr);
        trees.push((flags, tree::of_layout(&layout, "latest", Times::Hidden)));
        facts.push(LayoutImage::only(&layout).layer_facts(&layout));
    }
    let expected = "/d/f file 0644 0:0 1 -\n/d/more file 0644 0:0 1 -\n";
    for (flags, tree) in &trees {
        assert!(tree.contains(expected), "{flags:?}: {tree}");
        assert_eq!(*tree, trees[0].1, "{flags:?}");
    }
    assert_eq!(facts[0], facts[1]);
    assert_eq!(facts[2], facts[3]);
    let linked: Vec<_> = facts[0][facts[0].len() - 7..facts[0].len() - 2].concat();
    let paths: Vec<_> = linked.iter().map(|line| line.split(' ').next().unwrap_or_default()).collect();
    let expected = ["d/", "d/f", "tmp/", "tmp/f", "tmp/sub/", "tmp/sub/g", "file", "old", "s"];
    assert_eq!(paths, expected, "each layer has all that it needs");
}

#[test]
fn a_linked_layer_is_found_on_every_base_and_needs_no_file_of_it() {
    let project = project("FROM BASE\nCOPY --link f /x/\nADD --link --chown=7 dir /y/\n");
    let (first, layout) = project.layout("first", &["-v", "debug"]);
    assert_eq!(Steps::of(&first).done.len(), 2);
    // The base is copied into the layout, but no file of it is wanted.
    assert!(!first.stderr.contains("unpacking sha256:"), "{}", first.stderr);
    let linked = layers(&layout).split_off(layers(&layout).len() - 2);

    for (number, below) in [
        "FROM scratch\n",
        "FROM scratch\nCOPY dir /\n",
        "FROM BASE\nRUN echo new >/new\n",
        "FROM BASE\nWORKDIR /w\nENV a=b\n",
    ]
    .iter()
    .enumerate()
    {
        let text = format!("{below}COPY --link f /x/\nADD --link --chown=7 dir /y/\n");
        project.dockerfile(&text);
        let (finished, layout) = project.layout(&format!("other-{number}"), &[]);
        let found = Steps::of(&finished).found;
        assert_eq!(found, ["COPY --link f /x/", "ADD --link --chown=7 dir /y/"], "{text}{}", finished.stderr);
        assert!(layers(&layout).ends_with(&linked), "{text}");
    }
    // Without the flag it is the same on nothing, and nowhere else.
    project.dockerfile("FROM scratch\nCOPY f /x/\n");
    assert_eq!(project.done(&[]), [""; 0]);
    project.dockerfile("FROM BASE\nCOPY f /x/\n");
    assert_eq!(project.done(&[]), ["COPY f /x/"]);

    // What is not the same is done.
    project.context.write("f", "other");
    project.dockerfile("FROM BASE\nCOPY --link f /x/\nADD --link --chown=7 dir /y/\n");
    let steps = Steps::of(&project.build(&[]));
    assert_eq!(steps.done, ["COPY --link f /x/"]);
    assert_eq!(steps.found, ["ADD --link --chown=7 dir /y/"]);
    project.dockerfile("FROM BASE\nCOPY --link f /z/\n");
    assert_eq!(project.done(&[]), ["COPY --link f /z/"]);
    for flag in ["--no-cache", "--no-cache-filter=own"] {
        project.dockerfile("FROM BASE AS own\nWORKDIR /new\nCOPY --link f /z/\n");
        assert_eq!(project.done(&[flag]), ["WORKDIR /new", "COPY --link f /z/"], "{flag}");
    }
}

#[test]
fn a_step_on_linked_layers_depends_on_all_that_is_below() {
    let project = project("FROM BASE\nCOPY base /base\nCOPY --link f /x/\nRUN cat /base /x/f >/both\n");
    for (base, file, done) in [
        ("1", "a", &["COPY base /base", "COPY --link f /x/", "RUN cat /base /x/f >/both"][..]),
        ("2", "a", &["COPY base /base", "RUN cat /base /x/f >/both"]),
        ("2", "b", &["COPY --link f /x/", "RUN cat /base /x/f >/both"]),
        ("1", "a", &[]),
        ("1", "b", &["RUN cat /base /x/f >/both"]),
    ] {
        for snapshotter in ["--snapshotter=native", "--snapshotter=overlayfs"] {
            project.context.write("base", base);
            project.context.write("f", file);
            let (finished, layout) = project.layout(&format!("{base}{file}{snapshotter}"), &[snapshotter]);
            // The second finds all that the first has made.
            let done = if snapshotter == "--snapshotter=native" { done } else { &[] };
            assert_eq!(Steps::of(&finished).done, done, "{base} {file} {snapshotter}");
            with_unpacked(&layout, "latest", |root| {
                let both = fs::read_to_string(root.join("both")).expect("both");
                assert_eq!(both, format!("{base}{file}"));
            });
            fs::remove_dir_all(layout).expect("remove");
        }
    }
}

#[test]
fn a_linked_layer_that_is_lost_is_made_again() {
    let project = project("FROM scratch\nCOPY --link f /x/\n");
    let epoch = ["--build-arg=SOURCE_DATE_EPOCH=1700000000"];
    let (_, layout) = project.layout("first", &epoch);
    let linked = layers(&layout);
    let blob = linked[0].trim_start_matches("sha256:");
    fs::remove_file(project.builder.store().join("blobs/sha256").join(blob)).expect("the layer's blob");
    project.dockerfile("FROM BASE\nCOPY --link f /x/\n");
    let (finished, layout) = project.layout("second", &epoch);
    assert_eq!(Steps::of(&finished).done, ["COPY --link f /x/"], "{}", finished.stderr);
    assert!(layers(&layout).ends_with(&linked));
}
