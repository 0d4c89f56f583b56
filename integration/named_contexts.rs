//! `--build-context`: what stands in the place of stages and images.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::support::ground::ground;
use crate::support::oci::{LayoutImage, with_unpacked};
use crate::support::{Builder, Context, Finished, scratch};

/// Files of an unpacked image, `path content` each.
fn files(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() && !path.is_symlink() {
                open.push(path);
            } else {
                let name = path.strip_prefix(root).expect("below").display().to_string();
                found.push(format!("{name} {}", fs::read_to_string(&path).unwrap_or_default().trim_end()));
            }
        }
    }
    found.sort();
    found
}

/// The files of the image that `context` makes with `arguments`.
fn built(builder: &Builder, context: &Context, arguments: &[&str]) -> Vec<String> {
    let out = scratch();
    let layout = out.path().join("layout");
    let mut all = vec!["--destination=x.example/x:1"];
    all.extend(arguments);
    builder.layout(context, &layout, &all).success();
    let mut found = Vec::new();
    with_unpacked(&layout, "1", |root| found = files(root));
    found
}

fn refused(dockerfile: &str, arguments: &[&str]) -> Finished {
    let context = Context::new(dockerfile);
    let mut all = vec!["--no-push", "-c", context.path().to_str().expect("a path")];
    all.extend(arguments);
    Builder::new().run(all).exited(1)
}

/// A directory with these files.
fn directory(files: &[(&str, &str)]) -> Context {
    let directory = Context::new("");
    fs::remove_file(directory.path().join("Dockerfile")).expect("remove");
    for (name, text) in files {
        directory.write(name, text);
    }
    directory
}

fn named(name: &str, directory: &Context) -> String {
    format!("--build-context={name}={}", directory.path().display())
}

#[test]
fn a_context_comes_before_stages_and_images_wherever_they_are_named() {
    let builder = Builder::new();
    let other = directory(&[("f", "ctx"), (".dockerignore", "hidden\n"), ("hidden", "x")]);
    let flag = named("st", &other);
    let replaced = "FROM nowhere.example/missing AS st\nRUN false\n";
    for (dockerfile, target) in [
        (format!("{replaced}FROM scratch\nCOPY --from=st / /\n"), ""),
        (format!("{replaced}FROM scratch\nCOPY --from=ST f .dockerignore /\n"), ""),
        (format!("{replaced}FROM scratch\nCOPY --from=0 f .dockerignore /\n"), ""),
        ("FROM scratch\nCOPY --from=docker.io/library/st:latest . /\n".to_owned(), ""),
        (format!("FROM scratch AS first\nCOPY --from=st . /\n{replaced}"), "first"),
        (format!("{replaced}FROM st\n"), ""),
        ("FROM docker.io/library/st\n".to_owned(), ""),
        (replaced.to_owned(), "ST"),
    ] {
        let found = built(&builder, &Context::new(&dockerfile), &[&flag, "--target", target]);
        assert_eq!(found, [".dockerignore hidden", "f ctx"], "{dockerfile}");
    }
}

#[test]
fn what_is_not_used_is_not_looked_at() {
    let broken = directory(&[(".dockerignore", "[\n")]);
    let flags = [
        named("broken", &broken),
        "--build-context=image=docker-image://nowhere.example/missing".to_owned(),
        "--build-context=layout=oci-layout:///nowhere".to_owned(),
        "--build-context=stage=target:nowhere".to_owned(),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let context = Context::new("FROM scratch\nCOPY f /\n");
    context.write("f", "F");
    assert_eq!(built(&Builder::new(), &context, &flags), ["f F"]);
    let finished = refused("FROM scratch\nCOPY --from=broken . /\n", &flags);
    assert!(
        finished.says(&["--build-context broken:", ".dockerignore` is not valid"]),
        "{}",
        finished.stderr
    );
    let finished = refused("FROM scratch\nCOPY --from=stage . /\n", &flags);
    assert!(
        finished.says(&["--build-context:", "`nowhere`, which could not be found"]),
        "{}",
        finished.stderr
    );
    assert!(finished.stderr.contains("Dockerfile:2"), "{}", finished.stderr);
}

#[test]
fn files_of_a_context_are_root_s_and_no_link_leads_out_of_it() {
    let other = directory(&[("d/f", "F")]);
    let outside = directory(&[("secret", "S")]);
    std::os::unix::fs::chown(other.path().join("d/f"), Some(1000), Some(1000)).expect("chown");
    symlink(outside.path(), other.path().join("out")).expect("link");
    symlink(outside.path().join("secret"), other.path().join("file")).expect("link");
    let flag = named("c", &other);
    let context = Context::new("FROM scratch\nCOPY --from=c d /d\n");
    let out = scratch();
    let layout = out.path().join("layout");
    Builder::new().layout(&context, &layout, &[&flag]).success();
    let facts = LayoutImage::only(&layout).facts_of_layer(&layout, 0);
    assert!(facts.iter().any(|fact| fact.contains("d/f") && fact.contains("0:0")), "{facts:?}");
    for source in ["out/secret", "file"] {
        let finished = refused(&format!("FROM scratch\nCOPY --from=c {source} /\n"), &[&flag]);
        assert!(finished.says(&["is not in the build context `c`"]), "{}", finished.stderr);
    }
}

#[test]
fn mounts_show_a_context_as_copy_sees_it() {
    let other = directory(&[("f", "F\n"), ("hidden", "H\n"), (".dockerignore", "hidden\n")]);
    std::os::unix::fs::chown(other.path().join("f"), Some(1000), Some(1000)).expect("chown");
    let base = ground().name("busybox:latest");
    let context = Context::new(&format!(
        "FROM {base}\nRUN --mount=from=c,target=/m cd /m && stat -c '%u:%g %n' * && cat f\n\
         RUN --mount=from=c,target=/m,rw rm /m/f\nRUN --mount=from=c,source=f,target=/m cat /m\n"
    ));
    for snapshotter in ["overlayfs", "native"] {
        let flags = [named("c", &other), format!("--snapshotter={snapshotter}")];
        let path = context.path().to_str().expect("a path");
        let finished = Builder::new().run(["--no-push", "-c", path, &flags[0], &flags[1]]).success();
        let lines: Vec<&str> =
            finished.stderr.lines().filter_map(|line| Some(line.split_once("] | ")?.1)).collect();
        assert_eq!(lines, ["0:0 f", "F", "F"], "{snapshotter}");
    }
    assert!(other.path().join("f").exists());
}

#[test]
fn a_context_may_be_the_base_and_nothing_on_it_is_remembered() {
    let base = ground().name("busybox:latest");
    let builder = Builder::new();
    let root = directory(&[("bin/d/f", "F")]);
    let flag = named("root", &root);
    let context = Context::new(&format!(
        "FROM root\nENV a=b\nCOPY --from={base} /bin/busybox /bin/sh\nRUN echo done >/done\n"
    ));
    let out = scratch();
    let layout = out.path().join("layout");
    let finished = builder.layout(&context, &layout, &[&flag]).success();
    let image = LayoutImage::only(&layout);
    assert!(image.layer_paths(&layout)[0].iter().any(|path| path.contains("bin/d/f")));
    let again = builder.layout(&context, &layout, &[&flag]).success();
    assert!(!finished.stderr.contains("CACHED") && !again.stderr.contains("CACHED"), "{}", again.stderr);
    let rows: Vec<(String, String)> = image.raw_config["history"]
        .as_array()
        .expect("rows")
        .iter()
        .map(|row| {
            let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
            (text("created_by"), text("comment"))
        })
        .collect();
    assert_eq!(rows[0], ("local source for root".to_owned(), "buildkit.exporter.image.v0".to_owned()));
    assert_eq!(rows[1], ("ENV a=b".to_owned(), "buildkit.dockerfile.v0".to_owned()));
    assert_eq!(rows.len(), 4);
    assert_eq!(image.raw_config["config"]["WorkingDir"], "/");
    // What copies the same files from it is found all the same.
    let context = Context::new("FROM root AS r\nFROM scratch\nCOPY --from=r bin/d/f /\n");
    assert_eq!(built(&builder, &context, &[&flag]), ["f F"]);
    let again = builder.layout(&context, &out.path().join("other"), &[&flag]).success();
    assert!(again.says(&["CACHED", "COPY --from=r"]), "{}", again.stderr);
}

#[test]
fn an_image_of_a_registry_or_layout_takes_the_place_of_another() {
    let base = ground().name("busybox:latest");
    let out = scratch();
    let layout = out.path().join("layout");
    let layout_text = layout.display().to_string();
    let maker = Context::new(&format!("FROM {base}\nENV made=here\nONBUILD RUN echo triggered >/t\n"));
    Builder::new().layout(&maker, &layout, &["-t", "x.example/y:v1"]).success();
    for (value, triggered) in [
        (format!("docker-image://{base}"), false),
        (format!("oci-layout://{layout_text}:v1"), true),
        (format!("oci-layout://{layout_text}"), true),
        (format!("oci-layout://{layout_text}@{}", LayoutImage::only(&layout).descriptor.digest()), true),
    ] {
        let context = Context::new(
            "FROM alpine:3\nRUN echo ${made:-no} >/m\nCOPY --from=alpine:3 /bin/busybox /copy\n",
        );
        let flag = format!("--build-context=alpine:3={value}");
        let found = built(&Builder::new(), &context, &[&flag]);
        let made = if triggered { "m here" } else { "m no" };
        assert!(found.iter().any(|file| file == made), "{value}: {found:?}");
        assert_eq!(found.iter().any(|file| file == "t triggered"), triggered, "{value}");
        assert!(found.iter().any(|file| file.starts_with("copy ")), "{value}");
    }
    let wrong = format!("--build-context=a=oci-layout://{layout_text}:v2");
    let finished = refused("FROM a\n", &[&wrong]);
    assert!(finished.says(&["no image of the layout is named `v2`: it has `v1`"]), "{}", finished.stderr);
    let nothing = built(
        &Builder::new(),
        &Context::new("FROM alpine\nCOPY --from=alpine . /\n"),
        &["--build-context=alpine=docker-image://scratch"],
    );
    assert_eq!(nothing, [""; 0]);
}

#[test]
fn a_context_may_be_a_stage_before_or_behind() {
    let builder = Builder::new();
    let text = "FROM scratch\nCOPY --from=x f /\nFROM scratch AS end\nCOPY f /\n";
    let context = Context::new(&text.replacen("scratch", "scratch AS begin", 1));
    context.write("f", "F");
    let found = built(&builder, &context, &["--build-context=x=target:END", "--target=begin"]);
    assert_eq!(found, ["f F"]);
    let circle = ["--build-context=x=target:begin", "--target=begin"];
    let finished = refused("FROM scratch AS begin\nCOPY --from=x f /\n", &circle);
    let message = "circular dependency detected on stage: begin";
    assert!(finished.stderr.contains(message), "{}", finished.stderr);
    let circle = ["--build-context=a=target:b", "--build-context=b=target:a"];
    let finished = refused("FROM scratch AS a\nFROM scratch AS b\n", &circle);
    assert!(finished.stderr.contains("circular dependency detected on stage: "), "{}", finished.stderr);
}

#[test]
fn a_context_may_be_for_one_platform() {
    let arm = directory(&[("f", "arm")]);
    let any = directory(&[("f", "any")]);
    let flags = [named("c::linux/arm64", &arm), named("c", &any)];
    let context = Context::new("FROM scratch\nCOPY --from=c . /\n");
    for (platform, text) in [("linux/arm64", "f arm"), ("linux/amd64", "f any"), ("linux/arm64/v8", "f arm")]
    {
        let platform = format!("--platform={platform}");
        assert_eq!(built(&Builder::new(), &context, &[&flags[0], &flags[1], &platform]), [text]);
    }
}

#[test]
fn outputs_and_the_store_are_no_part_of_a_named_context() {
    let other = directory(&[("f", "F")]);
    let context = Context::new("FROM scratch\nCOPY --from=c . /\n");
    let builder = Builder::new();
    let (store, layout) = (other.path().join("store"), other.path().join("out"));
    for _ in 0..2 {
        let arguments = ["--store", store.to_str().expect("a path"), "-t", "x.example/x:1"];
        let mut all = arguments.to_vec();
        let flag = named("c", &other);
        all.push(&flag);
        builder.layout(&context, &layout, &all).success();
        with_unpacked(&layout, "1", |root| assert_eq!(files(root), ["f F"]));
    }
    let itself = format!("--oci-layout-path={}", other.path().display());
    fs::remove_dir_all(&layout).expect("remove");
    fs::remove_dir_all(&store).expect("remove");
    fs::remove_file(other.path().join("f")).expect("remove");
    let finished = refused("FROM scratch\nCOPY --from=c . /\n", &[&named("c", &other), &itself]);
    assert!(finished.says(&["is the build context itself"]), "{}", finished.stderr);
}

#[test]
fn a_directory_that_is_none_is_told_with_what_may_be_meant() {
    let file = directory(&[("f", "F")]);
    let not_a_directory = format!("--build-context=c={}/f", file.path().display());
    for (flag, words) in [
        (
            "--build-context=c=/nowhere/at/all",
            &["--build-context c:", "`/nowhere/at/all` does not exist"][..],
        ),
        (&not_a_directory, &["--build-context c:", "is not a directory"]),
        ("--build-context=c=alpine:3", &["hint: an image is written `docker-image://alpine:3`"]),
        ("--build-context=c=s3://bucket/x", &["`s3://` is no kind of build context"]),
        ("--build-context=context=.", &["`context` cannot be the name of a build context"]),
        ("--build-context=c", &["expected `NAME=VALUE`"]),
    ] {
        let finished = refused("FROM scratch\n", &[flag]);
        assert!(finished.says(words), "{flag}: {}", finished.stderr);
    }
}

#[test]
fn what_is_copied_from_a_context_is_compared_by_content_wherever_it_is() {
    let builder = Builder::new();
    let context = Context::new("FROM scratch\nCOPY --from=c f /\n");
    let files = [("f", "F"), (".dockerignore", "other\n"), ("other", "x")];
    let (first, second) = (directory(&files), directory(&files));
    let path = context.path().to_str().expect("a path");
    let is_cached = |other: &Context| {
        let finished = builder.run(["--no-push", path, &named("c", other)]).success();
        finished.says(&["CACHED", "COPY --from=c"])
    };
    assert!(!is_cached(&first));
    assert!(is_cached(&second));
    second.write("other", "y");
    assert!(is_cached(&second));
    second.write("f", "G");
    assert!(!is_cached(&second));
    assert!(is_cached(&first));
}
