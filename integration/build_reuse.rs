//! What a build does not do again, and what it does not do at all.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::build_cleanup::registry_with_base;
use crate::support::ground::{Ground, Request, ground};
use crate::support::oci::{LayoutImage, raw_manifest};
use crate::support::traces::Running;
use crate::support::{Builder, Context, Finished, scratch, traces};

/// A base in a repository of its own, so that the registry's log tells what was asked for it.
struct Base {
    ground: Ground,
    repository: String,
    name: String,
}

impl Base {
    fn new(test: &str) -> Self {
        let ground = ground();
        let repository = format!("reuse-{}/{test}", std::process::id());
        let name = ground.copy("busybox:latest", &repository);
        Self { ground, repository, name }
    }

    /// Digests of the base's layers for amd64.
    fn layers(&self) -> Vec<String> {
        let index = raw_manifest(&self.name);
        let entries = index["manifests"].as_array().expect("index");
        let entry = entries.iter().find(|entry| entry["platform"]["architecture"] == "amd64").expect("amd64");
        let digest = entry["digest"].as_str().expect("digest");
        let manifest = raw_manifest(&self.ground.name(&format!("{}@{digest}", self.repository)));
        let layers = manifest["layers"].as_array().expect("layers").iter();
        layers.map(|layer| layer["digest"].as_str().expect("digest").to_owned()).collect()
    }
}

/// Builds with everything told.
fn build(builder: &Builder, dockerfile: &str, arguments: &[&str]) -> Finished {
    let context = Context::new(dockerfile);
    context.write("file", "content");
    let context = context.path().to_str().expect("path").to_owned();
    let all = [&["--context", &context, "--custom-platform=linux/amd64", "-v", "debug"], arguments].concat();
    builder.run(all).success()
}

fn shown(requests: &[Request]) -> Vec<String> {
    requests.iter().map(|request| format!("{} {} {}", request.method, request.path, request.status)).collect()
}

/// Inode and time of change of all unpacked layers in the store.
fn unpacked(builder: &Builder) -> BTreeMap<String, (u64, i64, i64)> {
    let entries = |path| fs::read_dir(path).into_iter().flatten().flatten();
    entries(builder.store().join("unpacked"))
        .flat_map(|kind| entries(kind.path()))
        .map(|entry| {
            let metadata = entry.metadata().expect("metadata");
            let name = entry.file_name().to_string_lossy().into_owned();
            (name, (metadata.ino(), metadata.ctime(), metadata.ctime_nsec()))
        })
        .collect()
}

#[test]
fn another_build_on_the_same_base_fetches_no_blob_and_unpacks_no_layer() {
    let base = Base::new("second");
    let builder = Builder::new();
    let mark = base.ground.mark();
    let first = build(&builder, &format!("FROM {}\nRUN echo one >/one\n", base.name), &["--no-push"]);
    assert!(first.says(&["unpacking sha256:"]), "{}", first.stderr);
    let blobs = base.ground.requests(&mark, &base.repository).iter().filter(|one| one.fetches_blob()).count();
    assert_eq!(blobs, 1 + base.layers().len(), "the config and the layers, each once");
    let before = unpacked(&builder);
    assert!(!before.is_empty());

    let mark = base.ground.mark();
    let dockerfile =
        format!("FROM {}\nCOPY file /x/\nRUN cat /x/file && test ! -e /one\nUSER user\n", base.name);
    let second = build(&builder, &dockerfile, &["--no-push"]);
    assert_eq!(
        shown(&base.ground.requests(&mark, &base.repository)),
        [format!("GET /v2/{}/manifests/latest 200", base.repository)],
        "whether the tag was moved, and nothing else"
    );
    assert!(!second.stderr.contains("unpacking sha256:"), "{}", second.stderr);
    let after = unpacked(&builder);
    assert!(before.iter().all(|(layer, facts)| after.get(layer) == Some(facts)), "{before:?} {after:?}");
    assert_eq!(after.len(), before.len() + 2, "what COPY and RUN wrote");
}

#[test]
fn a_base_that_is_named_by_its_digest_is_not_asked_for_again() {
    let (registry, base) = registry_with_base(&Builder::new());
    let digest = builder::image::digest::Digest::of(&registry.manifest("base", "1").expect("manifest").1);
    let by_digest = format!("{}@{digest}", base.trim_end_matches(":1"));
    let builder = Builder::new();
    let dockerfile = format!("FROM {by_digest}\nCOPY file /\n");
    build(&builder, &dockerfile, &["--no-push"]);
    let asked = registry.server.seen().len();
    let finished = build(&builder, &dockerfile, &["--no-push"]);
    let seen = registry.server.seen();
    assert!(seen[asked..].is_empty(), "{:?}\n{}", &seen[asked..], finished.stderr);
}

#[test]
fn a_second_build_needs_two_requests() {
    let (registry, base) = registry_with_base(&Builder::new());
    let builder = Builder::new();
    let dockerfile = format!("FROM {base}\nCOPY file /\n");
    build(&builder, &dockerfile, &["--no-push"]);
    let asked = registry.server.seen().len();
    build(&builder, &dockerfile, &["--no-push"]);
    let seen = registry.server.seen();
    let seen: Vec<_> = seen[asked..].iter().map(|one| format!("{} {}", one.method, one.path)).collect();
    assert_eq!(
        seen,
        ["GET /v2/", "GET /v2/base/manifests/1"],
        "first contact, then whether the tag was moved"
    );
}

#[test]
fn a_build_that_needs_no_files_fetches_no_layer_and_mounts_them_when_pushed() {
    let base = Base::new("config-only");
    let builder = Builder::new();
    let target = format!("{}-target", base.repository);
    let destination = base.ground.name(&format!("{target}:1"));
    let dockerfile = format!("FROM {}\nENV a=b\nLABEL c=d\nUSER user\nCMD [\"sh\"]\nEXPOSE 80\n", base.name);
    let mark = base.ground.mark();
    let finished = build(&builder, &dockerfile, &["--destination", &destination]);
    let fetched = base.ground.requests(&mark, &base.repository);
    for layer in base.layers() {
        assert!(!shown(&fetched).join("\n").contains(&layer), "{fetched:?}");
        assert!(finished.says(&[&layer, "mounted"]), "{}", finished.stderr);
    }
    assert_eq!(unpacked(&builder), BTreeMap::new());

    // What is sent is the config alone.
    let pushed = shown(&base.ground.requests(&mark, &target));
    let count = |method: &str| pushed.iter().filter(|line| line.starts_with(method)).count();
    assert_eq!(count("PUT /v2/") - count(&format!("PUT /v2/{target}/manifests/")), 1, "{pushed:#?}");
    assert_eq!(count("PATCH"), 0, "{pushed:#?}");
    assert_eq!(pushed.last().expect("requests"), &format!("PUT /v2/{target}/manifests/1 201"), "the last");
}

#[test]
fn what_is_at_the_destination_is_not_sent_again() {
    let base = Base::new("again");
    let builder = Builder::new();
    let target = format!("{}-target", base.repository);
    let destination = base.ground.name(&format!("{target}:1"));
    let dockerfile = format!("FROM {}\nCOPY --chmod=644 file /\n", base.name);
    let context = Context::new(&dockerfile);
    context.write("file", "content");
    let context = context.path().to_str().expect("path").to_owned();
    let arguments =
        ["-c", &context, "-d", &destination, "-v", "debug", "--build-arg", "SOURCE_DATE_EPOCH=1700000000"];
    let first = builder.run(arguments).success();
    let mark = base.ground.mark();
    let second = builder.run(arguments).success();
    assert_eq!(first.stdout, second.stdout);
    let pushed = shown(&base.ground.requests(&mark, &target));
    let sent: Vec<_> =
        pushed.iter().filter(|line| line.starts_with("PUT") || line.starts_with("PATCH")).collect();
    assert_eq!(sent, [&format!("PUT /v2/{target}/manifests/1 201")], "{pushed:#?}");
    assert!(second.says(&["was there"]), "{}", second.stderr);
}

#[test]
fn layers_of_a_base_elsewhere_are_fetched_only_to_be_sent() {
    let (registry, base) = registry_with_base(&Builder::new());
    let ground = ground();
    let builder = Builder::new();
    let destination = ground.name(&format!("reuse-{}/elsewhere:1", std::process::id()));
    build(&builder, &format!("FROM {base}\nENV a=b\n"), &["--destination", &destination]);
    let fetched = registry.server.requests("GET", "/blobs/").len();
    assert_eq!(fetched, 2, "config and layer");
    assert_eq!(unpacked(&builder), BTreeMap::new());
    assert_eq!(raw_manifest(&destination)["layers"].as_array().expect("layers").len(), 1);
}

#[test]
fn builds_side_by_side_share_a_store() {
    let base = Base::new("side-by-side");
    let context = Context::new(&format!(
        // RUN would make these three where they are missing, at the time of the day.
        "FROM {} AS base\nWORKDIR /dev\nWORKDIR /proc\nWORKDIR /sys\nWORKDIR /\n\
         ARG VARIANT\n\
         RUN echo $VARIANT >/variant; sleep 0.2; touch -d @1700000000 /variant; echo \"is $VARIANT\"\n",
        base.name
    ));
    let start = |builder: &Builder, variant: u32| {
        let mut command = builder.command();
        command.args(["--no-push", "--build-arg=SOURCE_DATE_EPOCH=1700000000", "--context"]);
        command.arg(context.path()).arg(format!("--build-arg=VARIANT={variant}"));
        Running::start(&mut command)
    };
    let end = |running: Running| running.end(std::time::Duration::from_secs(100)).success();
    let expected = [0, 1].map(|variant| end(start(&Builder::new(), variant)).stdout);
    assert_ne!(expected[0], expected[1]);
    // All need the base at once, and two of each the same layer.
    let builder = Builder::new();
    let running: Vec<Running> = (0..6).map(|number| start(&builder, number % 2)).collect();
    for (number, one) in running.into_iter().enumerate() {
        let finished = end(one);
        assert_eq!(finished.stdout, expected[number % 2], "{}", finished.stderr);
    }
    for entry in fs::read_dir(builder.store().join("blobs/sha256")).expect("blobs") {
        let path = entry.expect("entry").path();
        let name = path.file_name().expect("name").to_str().expect("name");
        assert_eq!(builder::image::digest::Digest::of(&fs::read(&path).expect("blob")).hex(), name);
    }
    traces::assert_none(builder.store());
}

/// Flips a bit of a blob in the store.
fn damage(builder: &Builder, digest: &str) {
    let blob = builder.store().join("blobs/sha256").join(digest.trim_start_matches("sha256:"));
    let mut bytes = fs::read(&blob).expect("blob");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::remove_file(&blob).expect("remove");
    fs::write(&blob, bytes).expect("blob");
}

#[test]
fn a_damaged_blob_of_the_store_is_found_and_fetched_again() {
    let base = Base::new("damaged");
    let builder = Builder::new();
    let dockerfile = format!("FROM {}\nENV a=b\n", base.name);
    let out = scratch();
    let path = |name: &str| out.path().join(name).display().to_string();
    build(
        &builder,
        &dockerfile,
        &["--no-push", "--oci-layout-path", &path("one"), "--tar-path", &path("tar")],
    );
    let layer = base.layers().remove(0);
    for output in ["--oci-layout-path", "--tar-path"] {
        damage(&builder, &layer);
        let mark = base.ground.mark();
        build(&builder, &dockerfile, &["--no-push", output, &path(output.trim_start_matches('-'))]);
        let fetched = shown(&base.ground.requests(&mark, &base.repository)).join("\n");
        assert!(fetched.contains(&layer), "{fetched}");
    }
    let layout = |name: &str| {
        let path = out.path().join(name).join("blobs/sha256").join(layer.trim_start_matches("sha256:"));
        builder::image::digest::Digest::of(&fs::read(path).expect("layer")).to_string()
    };
    assert_eq!([layout("one"), layout("oci-layout-path")], [layer.clone(), layer.clone()]);
    let archive = |name: &str| fs::metadata(out.path().join(name)).expect("archive").len();
    assert_eq!(archive("tar"), archive("tar-path"));
}

#[test]
fn a_damaged_blob_of_the_store_is_fetched_again_when_a_registry_refuses_it() {
    let (registry, base) = registry_with_base(&Builder::new());
    let builder = Builder::new();
    let dockerfile = format!("FROM {base}\nCOPY file /\n");
    // Unpacked now: nobody but the registry looks at the bytes again.
    build(&builder, &dockerfile, &["--no-push"]);
    let manifest: serde_json::Value =
        serde_json::from_slice(&registry.manifest("base", "1").expect("manifest").1).expect("JSON");
    let layer = manifest["layers"][0]["digest"].as_str().expect("digest");
    damage(&builder, layer);
    let destination = ground().name(&format!("reuse-{}/damaged:1", std::process::id()));
    build(&builder, &dockerfile, &["--destination", &destination]);
    assert_eq!(raw_manifest(&destination)["layers"][0]["digest"], layer);
}

#[test]
fn a_damaged_blob_that_nobody_else_has_is_made_anew() {
    let builder = Builder::new();
    let out = scratch();
    let context = Context::new("FROM scratch\nCOPY --chmod=644 Dockerfile /\n");
    let run =
        |name: &str| builder.layout(&context, &out.path().join(name), &["--build-arg=SOURCE_DATE_EPOCH=1"]);
    run("one").success();
    let manifest = LayoutImage::only(&out.path().join("one")).manifest;
    damage(&builder, manifest.layers()[0].digest().as_ref());
    let finished = run("two");
    if finished.code != Some(0) {
        // The step's result was taken as it stood.
        assert!(finished.says(&["hint: it has been removed: build again"]), "{}", finished.stderr);
        assert!(!out.path().join("two").exists());
        run("two").success();
    }
    assert_eq!(LayoutImage::only(&out.path().join("two")).manifest, manifest);
}

#[test]
fn a_blob_of_the_store_that_is_cut_off_is_fetched_again() {
    let base = Base::new("cut-off");
    let builder = Builder::new();
    build(&builder, &format!("FROM {}\nRUN true\n", base.name), &["--no-push"]);
    let layer = base.layers().remove(0);
    let blob = builder.store().join("blobs/sha256").join(layer.trim_start_matches("sha256:"));
    let bytes = fs::read(&blob).expect("blob");
    fs::remove_file(&blob).expect("remove");
    fs::write(&blob, &bytes[..bytes.len() / 2]).expect("blob");
    let out = scratch();
    let layout = format!("--oci-layout-path={}", out.path().join("layout").display());
    build(&builder, &format!("FROM {}\nRUN true\n", base.name), &["--no-push", &layout]);
    assert_eq!(fs::read(&blob).expect("blob"), bytes);
}

#[test]
fn a_size_that_is_wrong_fails_although_the_blob_is_in_the_store() {
    let (registry, base) = registry_with_base(&Builder::new());
    let builder = Builder::new();
    build(&builder, &format!("FROM {base}\nCOPY file /\n"), &["--no-push"]);
    let (media_type, bytes) = registry.manifest("base", "1").expect("manifest");
    let mut manifest: serde_json::Value = serde_json::from_slice(&bytes).expect("JSON");
    let size = manifest.pointer_mut("/layers/0/size").expect("a layer");
    *size = (size.as_u64().expect("a number") + 1).into();
    registry.put_manifest("base", "1", &media_type, &serde_json::to_vec(&manifest).expect("JSON"));
    let context = Context::new(&format!("FROM {base}\nWORKDIR /w\n"));
    let finished = builder.run(["--no-push".as_ref(), "-c".as_ref(), context.path().as_os_str()]);
    let stderr = finished.exited(1).stderr;
    assert!(stderr.contains("bytes long, expected"), "{stderr}");
}

#[test]
fn stages_that_are_named_are_done_again_and_others_are_not() {
    let builder = Builder::new();
    let text = format!(
        "FROM {} AS One\nRUN echo 1 >/one\nFROM scratch AS two\nCOPY file /f\nFROM scratch\nCOPY --from=one /one /\n\
         COPY --from=two /f /\n",
        ground().name("busybox:latest")
    );
    build(&builder, &text, &["--no-push"]);
    let done = |flags: &[&str]| {
        let finished = build(&builder, &text, &[&["--no-push"], flags].concat());
        let lines = ["RUN echo 1", "COPY file", "COPY --from=one", "COPY --from=two"];
        (lines.map(|step| !finished.says(&["CACHED", step])), finished.stderr)
    };
    assert_eq!(done(&[]).0, [false; 4]);
    assert_eq!(done(&["--no-cache-filter=ONE"]).0, [true, false, false, false]);
    assert_eq!(done(&["--no-cache-filter", "one,two"]).0, [true, true, false, false]);
    assert_eq!(done(&["--no-cache-filter=one", "--no-cache-filter=two"]).0, [true, true, false, false]);
    let (steps, told) = done(&["--no-cache-filter=three"]);
    assert_eq!(steps, [false; 4]);
    assert!(told.contains("`three` has no effect: the Dockerfile has no such stage"), "{told}");
    let context = Context::new("FROM scratch\n");
    let path = context.path().to_str().expect("a path");
    let finished = builder.run(["--no-push", "--no-cache", "--no-cache-filter=x", path]).exited(1);
    assert!(finished.says(&["--no-cache-filter: it says nothing beside --no-cache"]), "{}", finished.stderr);
}
