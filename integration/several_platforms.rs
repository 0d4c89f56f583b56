//! Images for several platforms from one command, as a real registry and independent readers have them.

use std::fs;
use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::emulation::can_have_handlers;
use crate::support::fake_registry::{Answer, Ending, FakeRegistry};
use crate::support::ground::ground;
use crate::support::oci::{raw_manifest, skopeo};
use crate::support::traces::{self, Family, Running};
use crate::support::tree::{self, Times};
use crate::support::{Builder, Context, Finished, finish, scratch};

const PLATFORMS: &str = "linux/amd64,linux/arm/v7,linux/arm64,linux/arm/v5";

/// A stage that is the same for all, one that is for one each although it runs on this machine, and the images. What tells
/// how often a step ran is in a cache, which no result of an earlier build is.
const STAGES: &str = "FROM --platform=$BUILDPLATFORM BASE AS tools
RUN --mount=type=cache,id=marks,target=/marks echo run >>/marks/all && cp /marks/all /marker
FROM --platform=$BUILDPLATFORM BASE AS cross
ARG TARGETARCH TARGETVARIANT
RUN echo $(uname -m) for $TARGETARCH$TARGETVARIANT >/cross
FROM BASE
COPY --from=tools /marker /
COPY --from=cross /cross /
RUN uname -m >/machine
";

fn context(dockerfile: &str) -> Context {
    Context::new(&dockerfile.replace("BASE", &ground().name("busybox:latest")))
}

fn build(builder: &Builder, context: &Context, arguments: &[&str]) -> Finished {
    finish(builder.command().arg("--context").arg(context.path()).args(arguments))
}

/// The platforms that an index has, in order.
fn platforms(index: &Value) -> Vec<Value> {
    let entries = index["manifests"].as_array().expect("manifests");
    entries.iter().map(|entry| entry["platform"].clone()).collect()
}

fn expected() -> Vec<Value> {
    vec![
        json!({"architecture": "amd64", "os": "linux"}),
        json!({"architecture": "arm", "os": "linux", "variant": "v7"}),
        json!({"architecture": "arm64", "os": "linux", "variant": "v8"}),
        json!({"architecture": "arm", "os": "linux", "variant": "v5"}),
    ]
}

fn text(root: &Path, name: &str) -> String {
    fs::read_to_string(root.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn json_of(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).expect("file")).expect("JSON")
}

#[test]
fn all_platforms_stand_on_one_index_whatever_the_store_has_of_an_older_one() {
    let base = ground().name("several:base");
    let (builder, other) = (Builder::new(), Builder::new());
    let platforms = "--custom-platform=linux/amd64,linux/arm/v7";
    let push = |generation: &str| {
        let context = context(&format!("FROM BASE\nLABEL generation={generation}\n"));
        build(&other, &context, &[platforms, "--destination", &base]).success();
    };
    let generations = |finished: &Finished, layout: &Path| -> Vec<Value> {
        assert_eq!(finished.code, Some(0), "{}", finished.stderr);
        let blob = |digest: &Value| {
            json_of(&layout.join("blobs/sha256").join(digest.as_str().unwrap().trim_start_matches("sha256:")))
        };
        let index = blob(&json_of(&layout.join("index.json"))["manifests"][0]["digest"]);
        let entries = index["manifests"].as_array().unwrap().clone();
        let config = |entry: &Value| blob(&blob(&entry["digest"])["config"]["digest"]);
        entries.iter().map(|entry| config(entry)["config"]["Labels"]["generation"].clone()).collect()
    };
    push("old");
    finish(builder.command().args(["pull", "--arch=amd64", &base])).success();
    push("new");
    let context = Context::new(&format!("FROM {base}\nENV a=b\n"));
    let out = scratch();
    let layout = |name: &str| out.path().join(name);
    let build_to = |name: &str, platforms: &str| {
        let layout = layout(name);
        let finished = build(
            &builder,
            &context,
            &[platforms, "--no-push", "--oci-layout-path", layout.to_str().unwrap()],
        );
        (finished, layout)
    };
    let (finished, layout) = build_to("two", platforms);
    assert_eq!(generations(&finished, &layout), ["new", "new"], "{}", finished.stderr);
    assert!(finished.says(&["does not have it for all platforms of this build"]), "{}", finished.stderr);
    // One alone is taken from the store.
    let (finished, _) = build_to("one", "--custom-platform=linux/amd64");
    assert!(finished.says(&["the image of that name in the store"]), "{}", finished.stderr);
}

#[test]
fn one_command_makes_an_index_and_does_once_what_is_the_same_for_all() {
    let made = ground().name("several:one");
    let own = can_have_handlers("v5 of one_command_makes_an_index_and_does_once_what_is_the_same_for_all");
    let v5 = if own { "armv5tel" } else { "armv7l" };
    let out = scratch();
    let at = |name: &str| out.path().join(name);
    let flag = |key: &str, name: &str| format!("{key}{}", at(name).display());
    for snapshotter in ["--snapshotter=overlayfs", "--snapshotter=native"] {
        let builder = Builder::new();
        let finished = build(
            &builder,
            &context(STAGES),
            &[
                &format!("--custom-platform={PLATFORMS}"),
                snapshotter,
                "--no-cache",
                "--destination",
                &made,
                &flag("--output=type=local,mode=delete,dest=", "files"),
                "--output=type=registry",
                &flag("--digest-file=", "digest"),
                &flag("--iidfile=", "id"),
                &flag("--metadata-file=", "metadata"),
            ],
        )
        .success();
        for (directory, machine, target) in [
            ("linux_amd64", "x86_64", "amd64"),
            ("linux_arm_v7", "armv7l", "armv7"),
            ("linux_arm64", "aarch64", "arm64"),
            ("linux_arm_v5", v5, "armv5"),
        ] {
            let root = at("files").join(directory);
            assert_eq!(text(&root, "marker"), "run\n", "{snapshotter}: {directory}");
            assert_eq!(text(&root, "cross"), format!("x86_64 for {target}\n"));
            assert_eq!(text(&root, "machine"), format!("{machine}\n"));
        }
        // Which of several a line is about.
        for place in
            ["[linux/amd64 tools 2/2]", "[linux/amd64->arm/v7 cross 3/3]", "[linux/arm/v7 stage-2 4/4]"]
        {
            assert!(finished.says(&[place]), "{place}: {}", finished.stderr);
        }

        let index = raw_manifest(&made);
        assert_eq!(index["mediaType"], "application/vnd.oci.image.index.v1+json");
        assert_eq!(platforms(&index), expected());
        let name = format!("docker://{made}");
        for (architecture, variant) in [("amd64", ""), ("arm", "v7"), ("arm64", "v8"), ("arm", "v5")] {
            let config = skopeo(&[
                "--override-os=linux",
                &format!("--override-arch={architecture}"),
                &format!("--override-variant={variant}"),
                "inspect",
                "--config",
                "--tls-verify=false",
                &name,
            ]);
            let config: Value = serde_json::from_str(&config).expect("JSON");
            assert_eq!(config["architecture"], architecture);
            assert_eq!(config["variant"].as_str().unwrap_or_default(), variant);
        }
        // As for docker, the id of an index is its digest.
        let digest = text(out.path(), "digest");
        assert_eq!(finished.stdout.trim(), digest);
        assert_eq!(text(out.path(), "id"), digest);
        let metadata = json_of(&at("metadata"));
        assert_eq!(metadata["containerimage.digest"], digest);
        assert_eq!(metadata["containerimage.descriptor"]["mediaType"], index["mediaType"]);
        assert_eq!(metadata["containerimage.config.digest"], Value::Null);
    }
}

#[test]
fn layouts_and_archives_have_the_index_and_the_store_too() {
    let builder = Builder::new();
    let out = scratch();
    let at = |name: &str| out.path().join(name).display().to_string();
    let layout = format!("--output=type=oci,tar=false,dest={},annotation-index.all=1", at("layout"));
    let archive = format!("--output=type=oci,dest={},annotation[linux/arm].own=2", at("archive.tar"));
    let stored = "--output=type=image,name=several.example/stored:1";
    let tree = format!("--output=type=tar,dest={}", at("tree.tar"));
    let flags = ["--platform=linux/amd64", "--platform=linux/arm,linux/amd64", "--tag=several.example/x:1"];
    let outputs = [&layout[..], &archive, stored, &tree, "--annotation=index-descriptor:d=3"];
    build(&builder, &context("FROM BASE\nRUN uname -m >/machine\n"), &[&flags[..], &outputs].concat())
        .success();

    let top = json_of(&out.path().join("layout/index.json"));
    let [entry] = &top["manifests"].as_array().expect("manifests")[..] else { panic!("{top}") };
    assert_eq!(entry["annotations"]["org.opencontainers.image.ref.name"], "1");
    assert_eq!(entry["annotations"]["d"], "3");
    let blob = |descriptor: &Value| {
        let digest = descriptor["digest"].as_str().expect("digest").replace(':', "/");
        json_of(&out.path().join("layout/blobs").join(digest))
    };
    let index = blob(entry);
    assert_eq!(platforms(&index), expected()[..2]);
    assert_eq!(index["annotations"], json!({"all": "1"}));
    let manifest = blob(&index["manifests"][1]);
    assert_eq!(blob(&manifest["config"])["variant"], "v7");

    // Another program takes one out of the archive.
    let copy = format!("oci:{}", at("copy"));
    skopeo(&[
        "--override-arch=arm",
        "--override-variant=v7",
        "copy",
        &format!("oci-archive:{}", at("archive.tar")),
        &copy,
    ]);
    let raw: Value = serde_json::from_str(&skopeo(&["inspect", "--raw", &copy])).expect("JSON");
    assert_eq!(raw["annotations"]["own"], "2");

    let listed =
        finish(std::process::Command::new("tar").args(["-xOf", &at("tree.tar"), "linux_arm_v7/machine"]));
    assert_eq!(listed.success().stdout, "armv7l\n");

    // What is stored is a base for each of its platforms.
    for (platform, machine) in [("linux/amd64", "x86_64"), ("linux/arm/v7", "armv7l")] {
        let context = Context::new("FROM several.example/stored:1\nRUN cat /machine\n");
        let finished = build(&builder, &context, &["--no-push", "--platform", platform]).success();
        assert!(finished.says(&["the image of that name in the store"]), "{}", finished.stderr);
        assert!(finished.says(&[&format!("| {machine}")]), "{}", finished.stderr);
    }
    // Of an index there is nothing else anywhere: a lower variant will do, as of one in a registry.
    let context = Context::new("FROM several.example/stored:1\nLABEL a=b\n");
    let finished = build(&builder, &context, &["--no-push", "--platform=linux/arm/v8"]).success();
    for words in [
        "there is no image for linux/arm/v8, using that for linux/arm/v7",
        "the image of that name in the store",
    ] {
        assert!(finished.says(&[words]), "{}", finished.stderr);
    }
    let finished = build(&builder, &context, &["--no-push", "--platform=linux/s390x"]).exited(1);
    let told = "the store has it for `linux/amd64`, `linux/arm/v7`, not for `linux/s390x`";
    for more in ["the registry is asked", "and the registry was asked"] {
        assert!(finished.says(&[told, more]), "{}", finished.stderr);
    }
}

#[test]
fn of_directories_on_a_full_disk_it_is_said_which_are_whole() {
    let (builder, place) = (Builder::new(), scratch());
    let context = Context::new("FROM scratch\nCOPY large /\n");
    std::fs::write(context.path().join("large"), vec![b'x'; 900_000]).expect("write");
    let script = "mount -t tmpfs -o size=1500k none \"$PLACE\" && code=0; \"$@\" || code=$?; \
                  find \"$PLACE\" -mindepth 1 | sort; exit $code";
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(env!("CARGO_BIN_EXE_builder"));
    command.arg("--store").arg(builder.store()).env("PLACE", place.path()).arg("-c").arg(context.path());
    command.arg("--platform=linux/amd64,linux/arm64");
    command.arg("-o").arg(format!("type=local,dest={}/out", place.path().display()));
    let finished = finish(&mut command);
    if finished.stderr.contains("mount:") || finished.stderr.contains("unshare:") {
        return eprintln!("skipped: cannot mount a small disk: {}", finished.stderr);
    }
    let finished = finished.exited(1);
    let words = "of 2 directories in `";
    assert!(
        finished.says(&[words]) && finished.says(&["these are written: linux_amd64"]),
        "{}",
        finished.stderr
    );
    assert!(finished.says(&["No space left on device"]), "{}", finished.stderr);
    let there = finished.stdout.replace(&format!("{}/", place.path().display()), "");
    assert_eq!(there, "out\nout/linux_amd64\nout/linux_amd64/large\n");
}

#[test]
fn whoever_stops_a_push_at_its_tag_is_told_that_it_may_have_been_moved() {
    let registry = FakeRegistry::start();
    let name = format!("{}/several/app:1", registry.host());
    let builder = Builder::new();
    let context = Context::new("FROM scratch\nARG TARGETARCH\nLABEL for=$TARGETARCH\n");
    let told = format!("`{name}` may be the new image or still the old one");
    // The registry takes its time with the answer about the tag; or about an image, when no tag is near.
    for (part, is_told) in [("/manifests/1", true), ("/manifests/sha256", false)] {
        registry.fault("PUT", part, 1, Answer::new(400).body("x".repeat(1000)).ending(Ending::Stall(0)));
        let mut command = builder.command();
        command.args(["--platform=linux/amd64,linux/arm64", "--destination", &name, "-c"]);
        let before = registry.server.requests("PUT", part).len();
        let mut running = Running::start(command.arg(context.path()));
        running.wait_until("the tag is pushed", |_| registry.server.requests("PUT", part).len() > before);
        running.signal(Signal::INT);
        let finished = running.end(std::time::Duration::from_secs(10)).exited(130);
        assert_eq!(finished.stderr.contains(&told), is_told, "{}", finished.stderr);
        assert!(finished.stderr.ends_with("\nerror: stopped by SIGINT\n"), "{}", finished.stderr);
    }
}

#[test]
fn a_failure_of_one_platform_fails_all_and_moves_no_tag() {
    let made = ground().name("several:fails");
    let builder = Builder::new();
    let good = context("FROM BASE\nLABEL made=before\n");
    let flags = [&format!("--custom-platform={PLATFORMS}")[..], "--destination", &made];
    build(&builder, &good, &flags).success();
    let before = raw_manifest(&made);
    let bad = context("FROM BASE\nARG TARGETARCH\nRUN test $TARGETARCH != arm64 || exit 7\n");
    let finished = build(&builder, &bad, &flags).exited(7);
    assert!(finished.says(&["error: linux/arm64: ", "test $TARGETARCH"]), "{}", finished.stderr);
    assert_eq!(raw_manifest(&made), before);
    // Nor is anything written where one platform cannot even be planned.
    let out = scratch();
    let layout = out.path().join("layout");
    let flags = [
        "--platform=linux/amd64,linux/riscv64",
        "--no-push",
        "--oci-layout-path",
        &layout.display().to_string(),
    ];
    let finished = build(&builder, &good, &flags).exited(1);
    assert!(finished.says(&["error: linux/riscv64: "]), "{}", finished.stderr);
    assert!(finished.says(&["there is no image for `linux/riscv64`"]), "{}", finished.stderr);
    assert!(!layout.exists());
}

#[test]
fn where_an_image_cannot_be_pushed_no_tag_is_moved() {
    let registry = FakeRegistry::start();
    let name = format!("{}/several/app:1", registry.host());
    let builder = Builder::new();
    let context = Context::new("FROM scratch\nARG TARGETARCH\nLABEL for=$TARGETARCH\n");
    let flags = ["--platform=linux/amd64,linux/arm64", "--destination", &name];
    registry.fault("PUT", "/manifests/sha256", 1, Answer::error(403, "DENIED", "not this one"));
    let finished = build(&builder, &context, &flags).exited(1);
    assert!(finished.says(&["not this one"]), "{}", finished.stderr);
    assert!(registry.manifest("several/app", "1").is_none());
    build(&builder, &context, &flags).success();
    let (media_type, _) = registry.manifest("several/app", "1").expect("an index");
    assert_eq!(media_type, "application/vnd.oci.image.index.v1+json");
}

#[test]
fn all_platforms_mean_the_same_image_by_a_name() {
    let ground = ground();
    let base = ground.copy("busybox:latest", "several-asked");
    let mark = ground.mark();
    let context = Context::new(&format!("FROM {base}\nLABEL a=b\n"));
    build(&Builder::new(), &context, &[&format!("--platform={PLATFORMS}"), "--no-push"]).success();
    let by_tag: Vec<_> = ground
        .requests(&mark, "several-asked")
        .into_iter()
        .filter(|request| request.path.contains("/manifests/") && !request.path.contains("sha256"))
        .collect();
    assert_eq!(by_tag.len(), 1, "{by_tag:?}");
}

/// There is no base for v6: both stand on that for v5, and yet a RUN for each finds a CPU of its own.
#[test]
fn what_is_for_another_variant_is_not_the_same_though_its_base_is() {
    let context = context("FROM BASE\nRUN uname -m\n");
    for platforms in ["linux/arm/v6,linux/arm/v5", "linux/arm/v5,linux/arm/v6"] {
        let finished = build(&Builder::new(), &context, &["--platform", platforms, "--no-push"]).success();
        for place in ["[linux/arm/v5 2/2] RUN", "[linux/arm/v6 2/2] RUN"] {
            assert!(finished.says(&[place]), "{platforms}: {}", finished.stderr);
        }
        if can_have_handlers("what_is_for_another_variant") {
            for line in ["[linux/arm/v5 2/2] | armv5tel", "[linux/arm/v6 2/2] | armv6l"] {
                assert!(finished.says(&[line]), "{platforms}: {}", finished.stderr);
            }
        }
    }
}

#[test]
fn checks_look_at_all_platforms() {
    let context =
        Context::new("FROM --platform=linux/arm64 scratch\nARG TARGETARCH\nFROM scratch AS x$TARGETARCH\n");
    let checked = |platforms: &str| {
        let builder = Builder::new();
        let mut command = builder.command();
        command.args(["check", "--platform", platforms]).arg("--context").arg(context.path());
        finish(&mut command).stdout
    };
    let (one, other) = (checked("linux/amd64"), checked("linux/arm64"));
    let both = checked("linux/amd64,linux/arm64");
    for found in one.lines().chain(other.lines()).filter(|line| line.starts_with("WARNING")) {
        assert!(both.contains(found), "{found}: {both}");
    }
}

#[test]
fn what_cannot_be_for_several_is_refused_before_anything_is_built() {
    let builder = Builder::new();
    let context = context("FROM BASE\nRUN echo built\n");
    let out = scratch();
    let dest = out.path().join("x").display().to_string();
    for (flag, words) in [
        (format!("--output=type=docker,dest={dest}"), "does not currently support exporting manifest lists"),
        ("--annotation=index[linux/arm]:k=v".to_owned(), "the index is for all platforms"),
    ] {
        let flags = ["--platform=linux/amd64,linux/arm", "--no-push", &flag];
        let finished = build(&builder, &context, &flags).exited(1);
        assert!(finished.says(&[words]), "{flag}: {}", finished.stderr);
        assert!(!finished.says(&["RUN echo"]), "{flag}: {}", finished.stderr);
    }
    let flags = ["image", "extract", "--platform=linux/amd64,linux/arm", "layout", &dest];
    assert!(builder.run(flags).exited(1).says(&["names several platforms"]));
}

#[test]
fn without_a_directory_for_each_platform_the_files_of_all_are_in_one() {
    let builder = Builder::new();
    let out = scratch();
    let at = |name: &str| out.path().join(name);
    let context = Context::new(
        "FROM scratch\nARG TARGETARCH\nCOPY program /bin/program-$TARGETARCH\nCOPY only-$TARGETARCH /share/\n",
    );
    context.write("program", "text");
    context.write("only-amd64/a", "a");
    context.write("only-arm64/b", "b");
    fs::create_dir(at("files")).unwrap();
    fs::write(at("files/old"), "").unwrap();
    let platforms = "--platform=linux/amd64,linux/arm64";
    let output = |kind: &str, name: &str| {
        format!("--output=type={kind},platform-split=false,dest={}", at(name).display())
    };
    let outputs =
        [output("local,mode=delete", "files"), output("local", "new/files"), output("tar", "files.tar")];
    let flags: Vec<&str> = std::iter::once(platforms).chain(outputs.iter().map(String::as_str)).collect();
    build(&builder, &context, &flags).success();
    fs::create_dir(at("unpacked")).unwrap();
    let [archive, unpacked] = ["files.tar", "unpacked"].map(|name| at(name).display().to_string());
    finish(std::process::Command::new("tar").args(["-xf", &archive, "-C", &unpacked])).success();
    for place in ["files", "new/files", "unpacked"] {
        let told = tree::dump(&at(place), Times::Hidden);
        let paths: Vec<&str> = told.lines().filter_map(|line| line.split(' ').next()).collect();
        let expected =
            ["/", "/bin", "/bin/program-amd64", "/bin/program-arm64", "/share", "/share/a", "/share/b"];
        assert_eq!(paths, expected, "{place}");
    }
    let listed = finish(std::process::Command::new("tar").args(["-tf", &archive])).success().stdout;
    assert_eq!(listed.lines().filter(|line| *line == "bin/").count(), 1, "{listed}");
}

#[test]
fn a_file_of_two_platforms_is_told_before_anything_is_written() {
    let builder = Builder::new();
    let out = scratch();
    let at = |name: &str| out.path().join(name);
    let registry = FakeRegistry::start();
    let name = format!("{}/several/app:1", registry.host());
    let context = Context::new(
        "FROM scratch\nARG TARGETARCH\nCOPY Dockerfile /bin/$TARGETARCH/\nCOPY same /etc/same\n",
    );
    context.write("same", "same");
    fs::create_dir(at("there")).unwrap();
    fs::write(at("there/old"), "").unwrap();
    for kind in ["local,mode=delete,dest=there", "local,dest=new", "tar,dest=new.tar"] {
        let (kind, dest) = kind.split_once("dest=").unwrap();
        let output = format!("--output=type={kind}platform-split=false,dest={}", at(dest).display());
        let layout = format!("--output=type=oci,tar=false,dest={}", at("layout").display());
        let flags = ["--platform=linux/amd64,linux/arm64", "--push", "--tag", &name, &layout, &output];
        let finished = build(&builder, &context, &flags).exited(1);
        let words = "`/etc/same` is a file of linux/amd64 and of linux/arm64";
        assert!(finished.says(&["error: ", words]), "{}", finished.stderr);
        assert!(finished.says(&["hint: leave platform-split out"]), "{}", finished.stderr);
        let there: Vec<_> =
            fs::read_dir(out.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(there, ["there"], "{kind}");
        assert_eq!(fs::read_dir(at("there")).unwrap().count(), 1);
        assert!(registry.server.requests("PUT", "").is_empty(), "{:?}", registry.server.seen());
    }
    // For one platform there is nothing to be split.
    let output = format!("--output=type=local,platform-split=false,dest={}", at("one").display());
    build(&builder, &context, &["--platform=linux/arm64", &output]).success();
    assert_eq!(text(&at("one"), "etc/same"), "same");
}

/// One platform is done, one is in a step that does not end by itself; and, once more, all are done and being pushed.
#[test]
fn whoever_stops_a_build_for_several_platforms_finds_no_tag_and_no_process() {
    let registry = FakeRegistry::start();
    let name = format!("{}/several/stopped:1", registry.host());
    let builder = Builder::new();
    let start = |dockerfile: &str| {
        let context = context(dockerfile);
        let mut command = builder.command();
        command.args(["--platform=linux/amd64,linux/arm64", "--destination", &name, "-c"]);
        (Running::start(command.arg(context.path())), context)
    };
    let stop = |running: Running| {
        let family = Family::of(running.id());
        running.signal(Signal::INT);
        let finished = running.end(std::time::Duration::from_secs(10)).exited(130);
        assert!(finished.stderr.ends_with("\nerror: stopped by SIGINT\n"), "{}", finished.stderr);
        assert!(registry.manifest("several/stopped", "1").is_none());
        traces::assert_none(builder.store());
        traces::assert_empty(|| family.left());
        family
    };
    let (mut running, _context) = start(
        "FROM BASE\nARG TARGETARCH\n\
         RUN if [ $TARGETARCH = arm64 ]; then echo ready; trap '' INT TERM; sleep 1000; fi; echo done\n",
    );
    running.wait_for("| ready");
    running.wait_for("| done");
    let family = stop(running);
    assert!(family.size() >= 3, "{family:?}");
    // Nothing of the platform that is done has gone anywhere.
    let sent = |method: &str| registry.server.requests(method, "/v2/several").len();
    assert_eq!(["PUT", "PATCH"].map(sent), [0; 2]);

    for method in ["PUT", "PATCH"] {
        let answer = Answer::new(202).body("x".repeat(1000)).ending(Ending::Stall(0));
        registry.fault(method, "/blobs/uploads", 1, answer);
    }
    let (mut running, _context) = start("FROM BASE\nARG TARGETARCH\nRUN echo $TARGETARCH >/made\n");
    running.wait_until("a layer is pushed", |_| sent("PUT") + sent("PATCH") > 0);
    stop(running);
    assert!(registry.server.requests("PUT", "/manifests/").is_empty());
}

#[test]
fn what_is_of_no_platform_of_the_build_goes_with_mode_delete_alone() {
    let builder = Builder::new();
    let out = scratch();
    let context = Context::new("FROM scratch\nCOPY Dockerfile /\n");
    let dest = out.path().join("files");
    fs::create_dir_all(dest.join("linux_386/deep")).unwrap();
    fs::write(dest.join("old"), "").unwrap();
    let output = |kind: &str| format!("--output=type=local{kind},dest={}", dest.display());
    let there = || {
        let mut names: Vec<_> =
            fs::read_dir(&dest).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let platforms = "--platform=linux/amd64,linux/arm/v7";
    build(&builder, &context, &[platforms, &output("")]).success();
    assert_eq!(there(), ["linux_386", "linux_amd64", "linux_arm_v7", "old"]);
    build(&builder, &context, &[platforms, &output(",mode=delete")]).success();
    assert_eq!(there(), ["linux_amd64", "linux_arm_v7"]);
    build(&builder, &context, &["--platform=linux/386", &output(",mode=delete,platform-split=true")])
        .success();
    assert_eq!(there(), ["linux_386"]);
}

/// What is written to a platform's directory is nowhere else, and nothing else is there.
#[test]
fn the_directories_for_platforms_are_looked_at_before_anything_is_built() {
    let builder = Builder::new();
    let context = context("FROM BASE\nRUN echo built\n");
    let out = scratch();
    let at = |name: &str| out.path().join(name);
    let shown = |name: &str| at(name).display().to_string();
    fs::create_dir_all(at("linked")).unwrap();
    fs::create_dir_all(at("victim")).unwrap();
    fs::write(at("victim/data"), "precious").unwrap();
    std::os::unix::fs::symlink(at("victim"), at("linked/linux_arm_v7")).unwrap();
    fs::create_dir_all(at("taken")).unwrap();
    fs::write(at("taken/linux_amd64"), "").unwrap();
    let local = |name: &str| format!("--output=type=local,mode=delete,dest={}", shown(name));
    let platforms = "--platform=linux/amd64,linux/arm/v7";
    for (flags, words) in [
        (vec![platforms.to_owned(), local("linked")], "linux_arm_v7` is a link"),
        (vec!["--platform=linux/arm/v7".to_owned(), local("linked") + ",platform-split=true"], "is a link"),
        (vec![platforms.to_owned(), local("taken")], "is not a directory"),
        (vec!["--platform=linux/arm/v7,linux/arm_v7".to_owned(), local("new")], "two platforms would have"),
        (vec!["--platform=linux/amd64,windows/amd64".to_owned(), local("new")], "no root file system"),
        (
            vec![
                platforms.to_owned(),
                local("new"),
                format!("--output=type=oci,tar=false,dest={}", shown("new/linux_amd64")),
            ],
            "linux_amd64",
        ),
        (
            vec![
                platforms.to_owned(),
                local("new"),
                format!("--metadata-file={}", shown("new/linux_amd64/m")),
            ],
            "has --metadata-file in it",
        ),
        (
            vec![platforms.to_owned(), local("new"), format!("--metadata-file={}", shown("new/m"))],
            "/new` has --metadata-file in it, which mode=delete would remove",
        ),
        (
            vec![
                platforms.to_owned(),
                format!("--output=type=local,mode=delete,dest={}", context.path().display()),
            ],
            "has the build context in it, which mode=delete would remove",
        ),
    ] {
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let finished = build(&builder, &context, &flags).exited(1);
        assert!(finished.says(&["error: ", words]), "{flags:?}: {}", finished.stderr);
        assert!(!finished.says(&["RUN echo"]), "{flags:?}: {}", finished.stderr);
    }
    assert_eq!(text(out.path(), "victim/data"), "precious");
    assert!(!at("new").exists());
}

#[test]
fn a_plan_for_several_is_a_list() {
    let context = context(STAGES);
    let platforms = format!("--platform={PLATFORMS}");
    let builder = Builder::new();
    let mut command = builder.command();
    let plan =
        finish(command.arg("plan").arg("--context").arg(context.path()).arg(platforms)).success().json();
    let plans = plan.as_array().expect("a list");
    let told: Vec<_> =
        plans.iter().map(|plan| plan["image"]["architecture"].as_str().expect("text")).collect();
    assert_eq!(told, ["amd64", "arm", "arm64", "arm"]);
}
