//! `builder manifest`: indexes of images that registries have, compared with what manifest-tool makes and prints
//! (testdata/manifest/README.md).

use std::fs;
use std::path::{Path, PathBuf};

use builder::image::descriptor::media_type;
use builder::image::digest::Digest;
use serde_json::{Value, json};

use crate::support::fake_registry::{Answer, FakeRegistry};
use crate::support::ground::{Ground, ground};
use crate::support::oci::{raw_manifest, skopeo};
use crate::support::{Builder, Finished, scratch};

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/manifest")
}

/// The names without ending of the files in a directory that end so, in order.
fn named(directory: &Path, ending: &str) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("directory").map(|entry| entry.expect("entry").file_name());
    let names = entries.filter_map(|name| Some(name.to_str()?.strip_suffix(ending)?.to_owned()));
    let mut names: Vec<String> = names.collect();
    names.sort();
    assert!(!names.is_empty());
    names
}

/// Pushes a specification, with the type that its first line names.
fn push(builder: &Builder, registry: &str, text: &str, flags: &[&str]) -> Finished {
    let text = text.replace("REGISTRY", registry);
    let kind = text.lines().next().and_then(|line| line.strip_prefix("# type: ")).expect("a type").to_owned();
    let directory = scratch();
    fs::write(directory.path().join("spec.yaml"), text).expect("write");
    let mut command = builder.command();
    command.current_dir(directory.path());
    command.args(["manifest", "push", "--type", &kind, "from-spec", "spec.yaml"]).args(flags);
    crate::support::finish(&mut command)
}

/// `text` with names for what differs from one ground to the next.
fn named_bases(ground: &Ground, text: &str) -> String {
    let mut text = text.replace(&ground.registry, "REGISTRY");
    for base in ground.bases() {
        text = text.replace(&base.digest, &format!("{}:{} {}", base.repository, base.tag, base.debian));
    }
    text
}

/// `text` without other digests, and without sizes.
fn without_sizes(text: &str) -> String {
    let mut out = String::new();
    for line in text.split_inclusive('\n') {
        let mut line = line.to_owned();
        while let Some(at) = line.find("sha256:") {
            line.replace_range(at..at + "sha256:".len() + 64, "DIGEST");
        }
        for key in ["Length: ", "Size: ", "\"size\": "] {
            if let Some(at) = line.find(key) {
                let from = at + key.len();
                let digits = line[from..].bytes().take_while(u8::is_ascii_digit).count();
                assert!(digits > 0, "{line}");
                line.replace_range(from..from + digits, "SIZE");
            }
        }
        out.push_str(&line);
    }
    out
}

#[track_caller]
fn assert_golden(name: &str, text: &str) {
    let expected = fs::read_to_string(testdata().join(name)).expect("golden text");
    assert_eq!(text, expected, "{name}");
}

#[test]
fn indexes_are_those_that_manifest_tool_makes() {
    let (ground, builder) = (ground(), Builder::new());
    for name in named(&testdata(), ".yaml") {
        let text = fs::read_to_string(testdata().join(format!("{name}.yaml"))).expect("spec");
        let finished = push(&builder, &ground.registry, &text, &[]).success();
        let reference = ground.name(&format!("manifests/{name}:latest"));
        let raw = skopeo(&["inspect", "--raw", "--tls-verify=false", &format!("docker://{reference}")]);
        assert_eq!(
            finished.stdout,
            format!("Digest: {} {}\n", Digest::of(raw.as_bytes()), raw.len()),
            "{name}"
        );
        let mut index: Value = serde_json::from_str(&raw).expect("JSON");
        for entry in index["manifests"].as_array_mut().expect("manifests") {
            // Each is in the repository of the index.
            let member =
                ground.name(&format!("manifests/{name}@{}", entry["digest"].as_str().expect("digest")));
            let raw = skopeo(&["inspect", "--raw", "--tls-verify=false", &format!("docker://{member}")]);
            assert_eq!(entry["size"], raw.len(), "{name}");
            entry["size"] = json!("SIZE");
        }
        let index: Value = serde_json::from_str(&named_bases(&ground, &index.to_string())).expect("JSON");
        let expected = fs::read(testdata().join(format!("{name}.json"))).expect("golden JSON");
        let expected: Value = serde_json::from_slice(&expected).expect("golden JSON");
        assert_eq!(index, expected, "{name}:\n{index:#}");
    }
}

/// All four flavours of index, read by others than ourselves.
#[test]
fn what_was_pushed_can_be_chosen_from_by_platform() {
    let (ground, builder) = (ground(), Builder::new());
    for flavour in ["latest", "configs", "list"] {
        let target = ground.name(&format!("manifests/chosen:{flavour}"));
        let text =
            format!("# type: docker\nimage: {target}\nmanifests:\n- image: REGISTRY/busybox:{flavour}\n");
        push(&builder, &ground.registry, &text, &[]).success();
        for (debian, architecture, variant) in
            [("armel", "arm", "v5"), ("armhf", "arm", "v7"), ("s390x", "s390x", "")]
        {
            let layout = scratch();
            let to = format!("oci:{}:x", layout.path().join("layout").display());
            let from = format!("docker://{target}");
            let mut arguments = vec!["--override-os", "linux", "--override-arch", architecture];
            if !variant.is_empty() {
                arguments.extend(["--override-variant", variant]);
            }
            arguments.extend(["copy", "--quiet", "--src-tls-verify=false", &from, &to]);
            skopeo(&arguments);
            let index = fs::read_to_string(layout.path().join("layout/index.json")).expect("index");
            let base = ground.bases().into_iter().find(|base| base.tag == flavour && base.debian == debian);
            let base = base.expect("base").digest;
            if flavour != "list" {
                assert!(index.contains(&base), "{flavour} {debian}: {index}");
            }
        }
    }
}

#[test]
fn tags_and_annotations_come_from_arguments() {
    let (ground, builder) = (ground(), Builder::new());
    let template = ground.name("busybox:single-ARCHVARIANT");
    let target = ground.name("manifests/arguments");
    let finished = builder
        .run([
            "manifest",
            "push",
            "--type=oci",
            "from-args",
            "--platforms=linux/amd64,linux/arm64",
            "--template",
            &template,
            "--target",
            &target,
            "--tags=1,1.0",
            "--annotations=a=b=c,d=",
        ])
        .success();
    let index = raw_manifest(&target);
    assert_eq!(index["annotations"], json!({"a": "b=c", "d": ""}));
    assert_eq!(
        index["manifests"][1]["platform"],
        json!({"os": "linux", "architecture": "arm64", "variant": "v8"})
    );
    for tag in ["1", "1.0", "latest"] {
        assert_eq!(raw_manifest(&format!("{target}:{tag}")), index, "{tag}");
    }
    assert_eq!(finished.stdout.lines().count(), 1, "{}", finished.stdout);
}

#[test]
fn missing_images_are_left_out_only_if_that_was_said() {
    let (ground, builder) = (ground(), Builder::new());
    let template = ground.name("busybox:single-ARCH");
    let target = ground.name("manifests/missing:1");
    let push = |platforms: &str, flags: &[&str]| {
        let arguments = ["manifest", "push", "from-args", "--template", &template, "--target", &target];
        builder.run(arguments.iter().chain(&["--platforms", platforms]).chain(flags))
    };
    let refused = push("linux/amd64,linux/riscv64", &[]).exited(1);
    assert!(
        refused.says(&["single-riscv64"]) && refused.says(&["hint", "--ignore-missing"]),
        "{}",
        refused.stderr
    );
    assert!(refused.says(&["there is no image for linux/riscv64"]), "{}", refused.stderr);
    // All, in their order, whichever was looked for first.
    let several = push("linux/riscv64,linux/amd64,linux/loong64,linux/mips64le", &[]).exited(1);
    let name = |architecture: &str| {
        format!("`{}` for linux/{architecture}", ground.name(&format!("busybox:single-{architecture}")))
    };
    let told = format!(
        "error: 3 of 4 images are not there: {}, {}, {}\nhint: has what builds it pushed it",
        name("riscv64"),
        name("loong64"),
        name("mips64le")
    );
    assert!(several.stderr.starts_with(&told), "{}", several.stderr);
    let without = push("linux/amd64,linux/riscv64", &["--ignore-missing"]).success();
    assert!(without.says(&["a manifest list of Docker's type, in which 1 of 1 images are of OCI's"]));
    assert!(without.says(&["warning", "single-riscv64", "left out"]), "{}", without.stderr);
    assert_eq!(raw_manifest(&target)["manifests"].as_array().expect("list").len(), 1);
    let none = push("linux/riscv64", &["--ignore-missing"]).exited(1);
    assert!(none.says(&["error", "nothing to push"]), "{}", none.stderr);
    assert_eq!(none.stdout, "");
}

/// What the registry itself refuses is no missing image.
#[test]
fn a_registry_that_does_not_let_us_in_is_not_taken_for_a_missing_image() {
    let (builder, registry) = (Builder::new(), FakeRegistry::start());
    registry.guard("Basic nobody", "Basic realm=\"x\"");
    let text = "# type: docker\nimage: REGISTRY/app:1\nmanifests:\n- image: REGISTRY/app:amd64\n";
    let refused = push(&builder, &registry.host(), text, &["--ignore-missing"]).exited(1);
    assert!(refused.says(&["no credentials"]), "{}", refused.stderr);
}

#[test]
fn members_of_the_same_registry_are_mounted_and_not_fetched() {
    let (ground, builder) = (ground(), Builder::new());
    ground.copy("busybox:single-armhf", "manifests/mounted-from");
    let source = ground.name("manifests/mounted-from:single-armhf");
    let target = format!("manifests/mounted-{}", std::process::id());
    let mark = ground.mark();
    let name = ground.name(&format!("{target}:1"));
    let text = format!("# type: docker\nimage: {name}\nmanifests:\n- image: {source}\n");
    push(&builder, &ground.registry, &text, &[]).success();
    let requests = ground.requests(&mark, "manifests/mounted-from");
    let blobs: Vec<_> = requests.iter().filter(|request| request.fetches_blob()).collect();
    // The config, which says the platform.
    assert_eq!(blobs.len(), 1, "{requests:?}");
    let mounts = ground.requests(&mark, &target);
    let mounts = mounts.iter().filter(|request| request.method == "POST" && request.status == 201);
    assert_eq!(mounts.count(), 2, "layer and config");
    // In the repository of the index itself, nothing but the index is sent.
    let mark = ground.mark();
    let text = format!("# type: docker\nimage: {name}-again\nmanifests:\n- image: {name}\n");
    push(&builder, &ground.registry, &text, &[]).success();
    let sent: Vec<_> =
        ground.requests(&mark, &target).into_iter().filter(|request| request.method != "GET").collect();
    assert_eq!(sent.len(), 1, "{sent:?}");
}

#[test]
fn members_of_another_registry_are_copied_byte_by_byte() {
    let (ground, builder, registry) = (ground(), Builder::new(), FakeRegistry::start());
    let text = format!(
        "# type: oci\nimage: REGISTRY/app:1\nmanifests:\n- image: {}\n- image: {}\n",
        ground.name("busybox:single-armhf"),
        ground.name("busybox:single-amd64")
    );
    push(&builder, &registry.host(), &text, &[]).success();
    let (_, index) = registry.manifest("app", "1").expect("index");
    let index: Value = serde_json::from_slice(&index).expect("JSON");
    for (entry, debian) in index["manifests"].as_array().expect("list").iter().zip(["armhf", "amd64"]) {
        let digest = entry["digest"].as_str().expect("digest");
        let (kind, bytes) = registry.manifest("app", digest).expect("manifest");
        assert_eq!(kind, media_type::OCI_MANIFEST);
        let name = ground.name(&format!("busybox:single-{debian}"));
        let raw = skopeo(&["inspect", "--raw", "--tls-verify=false", &format!("docker://{name}")]);
        assert_eq!(String::from_utf8(bytes).expect("text"), raw);
        let manifest: Value = serde_json::from_str(&raw).expect("JSON");
        for blob in [&manifest["config"], &manifest["layers"][0]] {
            let digest: Digest = blob["digest"].as_str().expect("digest").parse().expect("digest");
            let size = registry.blob("app", &digest).expect("blob").len();
            assert_eq!(blob["size"], size);
        }
    }
}

/// An index as BuildKit pushes it: an image, and an attestation of it whose layer is no file system. Its bytes are not what
/// this program would write.
fn put_attested(registry: &FakeRegistry, repository: &str, platform: &Value) -> String {
    let descriptor = |kind: &str, bytes: &[u8]| {
        let digest = registry.put_blob(repository, bytes);
        json!({"mediaType": kind, "digest": digest, "size": bytes.len()})
    };
    let put = |name: &str, kind: &str, value: &Value| {
        let bytes = format!("{value:#}\n");
        let digest = registry.put_manifest(repository, name, kind, bytes.as_bytes());
        json!({"mediaType": kind, "digest": digest, "size": bytes.len()})
    };
    let mut config = json!({"rootfs": {"type": "layers", "diff_ids": [Digest::of(repository.as_bytes())]}});
    let fields = platform.as_object().expect("object").clone();
    config.as_object_mut().expect("object").extend(fields);
    let manifest = |config: Value, layers: Value| json!({"schemaVersion": 2, "mediaType": media_type::OCI_MANIFEST, "config": config, "layers": layers});
    let layer = descriptor(media_type::OCI_LAYER_GZIP, repository.as_bytes());
    let config = descriptor(media_type::OCI_CONFIG, config.to_string().as_bytes());
    let mut image = put("image", media_type::OCI_MANIFEST, &manifest(config, json!([layer])));
    let statement = descriptor("application/vnd.in-toto+json", b"{\"predicate\":{}}");
    let empty = descriptor(media_type::OCI_CONFIG, b"{\"architecture\":\"unknown\",\"os\":\"unknown\"}");
    let mut attestation = put("attestation", media_type::OCI_MANIFEST, &manifest(empty, json!([statement])));
    image["platform"] = platform.clone();
    attestation["platform"] = json!({"architecture": "unknown", "os": "unknown"});
    attestation["annotations"] = json!({
        "vnd.docker.reference.type": "attestation-manifest",
        "vnd.docker.reference.digest": image["digest"],
    });
    let index =
        json!({"schemaVersion": 2, "mediaType": media_type::OCI_INDEX, "manifests": [image, attestation]});
    put("1", media_type::OCI_INDEX, &index);
    format!("{}/{repository}:1", registry.host())
}

#[test]
fn attestations_of_flattened_indexes_come_last_and_along() {
    let (builder, registry) = (Builder::new(), FakeRegistry::start());
    let arm = put_attested(&registry, "arm", &json!({"os": "linux", "architecture": "arm", "variant": "v7"}));
    let amd = put_attested(&registry, "amd", &json!({"os": "linux", "architecture": "amd64"}));
    let text = format!(
        "# type: oci\nimage: REGISTRY/both:1\nmanifests:\n- image: {arm}\n- image: {amd}\n  platform: {{os: linux, \
         architecture: amd64, variant: v2}}\n"
    );
    push(&builder, &registry.host(), &text, &[]).success();
    let read = |repository: &str, name: &str| -> Value {
        serde_json::from_slice(&registry.manifest(repository, name).expect("manifest").1).expect("JSON")
    };
    let (arm, amd, both) = (read("arm", "1"), read("amd", "1"), read("both", "1"));
    let mut labelled = amd["manifests"][0].clone();
    // It is the only image of its index, so what the specification says of it counts.
    labelled["platform"]["variant"] = json!("v2");
    let expected = json!([arm["manifests"][0], labelled, arm["manifests"][1], amd["manifests"][1]]);
    assert_eq!(both["manifests"], expected, "{both:#}");
    for entry in both["manifests"].as_array().expect("list") {
        let digest = entry["digest"].as_str().expect("digest");
        let (_, bytes) = registry.manifest("both", digest).expect("a member");
        assert_eq!(Digest::of(&bytes).to_string(), digest);
        let manifest: Value = serde_json::from_slice(&bytes).expect("JSON");
        let layer: Digest =
            manifest["layers"][0]["digest"].as_str().expect("digest").parse().expect("digest");
        assert!(registry.blob("both", &layer).is_some(), "{manifest:#}");
    }
}

/// Windows has layers that Microsoft alone gives away: registries have their addresses and not their bytes.
#[test]
fn layers_with_an_address_elsewhere_stay_there() {
    let (builder, registry) = (Builder::new(), FakeRegistry::start());
    let foreign = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip";
    let config = br#"{"os":"windows","architecture":"amd64","os.version":"10.0.17763.1"}"#;
    let here = registry.put_blob("base", b"here");
    let elsewhere = Digest::of(b"elsewhere");
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": media_type::DOCKER_MANIFEST,
        "config": {
            "mediaType": media_type::DOCKER_CONFIG, "size": config.len(), "digest": registry.put_blob("base", config),
        },
        "layers": [
            {"mediaType": foreign, "size": 9, "digest": elsewhere, "urls": ["https://example.invalid/layer"]},
            {"mediaType": foreign, "size": 4, "digest": here},
        ],
    });
    registry.put_manifest("base", "1", media_type::DOCKER_MANIFEST, manifest.to_string().as_bytes());
    let text = "# type: docker\nimage: REGISTRY/app:1\nmanifests:\n- image: REGISTRY/base:1\n";
    push(&builder, &registry.host(), text, &[]).success();
    assert!(registry.blob("app", &here).is_some() && registry.blob("app", &elsewhere).is_none());
    let (_, index) = registry.manifest("app", "1").expect("index");
    let index: Value = serde_json::from_slice(&index).expect("JSON");
    let platform = json!({"os": "windows", "architecture": "amd64", "os.version": "10.0.17763.1"});
    assert_eq!(index["manifests"][0]["platform"], platform);
}

#[test]
fn what_contradicts_the_image_is_written_with_a_warning() {
    let (ground, builder) = (ground(), Builder::new());
    let text = "# type: docker\nimage: REGISTRY/manifests/contradicted:1\nmanifests:\n\
                - {image: REGISTRY/busybox:single-armhf, platform: {os: linux, architecture: s390x}}\n\
                - {image: REGISTRY/busybox:latest, platform: {os: linux, architecture: amd64}}\n";
    let refused = push(&builder, &ground.registry, text, &[]).exited(1);
    assert!(
        refused.says(&["warning", "says of itself that it is for linux/arm/v7", "linux/s390x"]),
        "{}",
        refused.stderr
    );
    assert!(refused.says(&["warning", "index of 7 images", "has no effect"]), "{}", refused.stderr);
    // The index has one for s390x already.
    assert!(refused.says(&["error", "two images are for `linux/s390x`"]), "{}", refused.stderr);
}

#[test]
fn no_tag_is_moved_when_a_member_cannot_be_brought() {
    let (ground, builder, registry) = (ground(), Builder::new(), FakeRegistry::start());
    let text = format!(
        "# type: oci\nimage: REGISTRY/app:1\nmanifests:\n- image: {}\n",
        ground.name("busybox:single-armhf")
    );
    registry.fault("POST", "/v2/app/blobs/uploads/", 100, Answer::error(403, "DENIED", "no room"));
    let refused = push(&builder, &registry.host(), &text, &[]).exited(1);
    assert!(refused.says(&["cannot bring"]) && refused.says(&["no room"]), "{}", refused.stderr);
    assert!(registry.manifest("app", "1").is_none());
    assert_eq!(refused.stdout, "");
}

#[test]
fn specifications_that_are_wrong_are_refused_with_their_line() {
    let (ground, builder) = (ground(), Builder::new());
    let directory = testdata().join("refused");
    for name in named(&directory, ".yaml") {
        let text = fs::read_to_string(directory.join(format!("{name}.yaml"))).expect("spec");
        let refused = push(&builder, &ground.registry, &text, &[]).exited(1);
        assert_eq!(refused.stdout, "", "{name}");
        let shown = named_bases(&ground, &refused.stderr);
        let golden = directory.join(format!("{name}.txt"));
        if std::env::var_os("BUILDER_BLESS").is_some() {
            fs::write(&golden, &shown).expect("golden");
        }
        assert_eq!(shown, fs::read_to_string(&golden).expect("golden text"), "{name}");
    }
    let unset = skopeo_fails(&ground.name("manifests/refused:1"));
    assert!(unset, "something was pushed");
}

fn skopeo_fails(name: &str) -> bool {
    let mut command = std::process::Command::new("skopeo");
    command.args(["inspect", "--raw", "--tls-verify=false", &format!("docker://{name}")]);
    !command.output().expect("skopeo").status.success()
}

#[test]
fn arguments_that_are_wrong_are_refused() {
    let builder = Builder::new();
    let tags = (0..1001).map(|tag| tag.to_string()).collect::<Vec<_>>().join(",");
    let repeated = vec!["linux/amd64"; 3001].join(",");
    let push = |platforms: &str, more: &[&str]| {
        let arguments = ["manifest", "push", "from-args", "--platforms", platforms];
        builder.run(arguments.iter().chain(more)).exited(1).stderr
    };
    for (platforms, more, expected) in [
        (
            "linux",
            &["--template", "x:ARCH", "--target", "x"][..],
            "error: --platforms: `linux` is no platform",
        ),
        ("linux/amd64/v9", &["--template", "x:ARCH", "--target", "x"], "`v9` is not a variant of amd64"),
        ("linux/amd64", &["--template", "X:ARCH", "--target", "x"], "error: --template: for `linux/amd64`"),
        (
            "linux/amd64",
            &["--template", "x:ARCH", "--target", "X"],
            "error: --target: `X` is not an image name",
        ),
        ("linux/amd64", &["--template", "x:ARCH", "--target", "x", "--tags", "a b"], "error: --tags: `a b`"),
        (
            "linux/amd64",
            &["--template", "x:ARCH", "--target", "x", "--annotations", "a=b"],
            "error: --annotations: a manifest list of Docker's type has no annotations",
        ),
        (
            "linux/amd64",
            &["--type=oci", "--template", "x:ARCH", "--target", "x", "--annotations", "a=b,c"],
            "error: --annotations: `c` is no `KEY=VALUE`",
        ),
        (
            "linux/amd64",
            &["--type=oci", "--template", "x:ARCH", "--target", "x", "--annotations", "a=b,a=d"],
            "error: --annotations: `a` is there twice",
        ),
        (
            "linux/amd64",
            &["--template", "x:ARCH", "--target", "x", "--tags", tags.as_str()],
            "error: --tags: there are more than 1000 tags",
        ),
        (
            repeated.as_str(),
            &["--template", "x:ARCH", "--target", "x"],
            "error: --platforms: `linux/amd64` is there twice",
        ),
        (
            "linux/amd64",
            &["--type=rkt", "--template", "x", "--target", "x"],
            "error: --type: `rkt` is no type of index",
        ),
        ("linux/amd64", &["--template", "x:ARCH"], "--target"),
        ("linux/amd64", &["--templat", "x"], "unknown flag `--templat` (did you mean `--template`?)"),
    ] {
        let stderr = push(platforms, more);
        assert!(stderr.contains(expected), "{expected}: {stderr}");
    }
    let missing = builder.run(["manifest", "push", "from-spec", "nothing.yaml"]).exited(1);
    assert!(missing.says(&["cannot read `nothing.yaml`"]), "{}", missing.stderr);
    let limited =
        builder.run(["manifest", "push", "from-spec", "--limit=spec-bytes=10", "/etc/services"]).exited(1);
    assert!(limited.says(&["longer than 10 bytes", "spec-bytes=N"]), "{}", limited.stderr);
    let endless = builder.run(["manifest", "push", "from-spec", "/dev/zero"]).exited(1);
    assert!(endless.says(&["error: `/dev/zero`: the specification is longer than"]), "{}", endless.stderr);
    assert!(!endless.stderr.contains("\\u{0}"), "{}", endless.stderr);
}

#[test]
fn inspect_prints_what_manifest_tool_prints() {
    let (ground, builder) = (ground(), Builder::new());
    let inspect = |flags: &[&str], name: &str| {
        let name = ground.name(name);
        let arguments = ["manifest", "inspect"].iter().chain(flags).copied().chain([name.as_str()]);
        named_bases(&ground, &builder.run(arguments).success().stdout)
    };
    assert_golden("inspect-list.txt", &without_sizes(&inspect(&[], "busybox:list")));
    assert_golden("inspect-image.txt", &without_sizes(&inspect(&[], "busybox:single-armhf")));
    assert_golden("inspect-image.json", &without_sizes(&inspect(&["--raw"], "busybox:single-armhf")));
    let expanded = inspect(&["--raw", "--expand-config"], "busybox:single-armhf");
    assert_golden("inspect-expanded.json", &without_sizes(&expanded));
}

#[test]
fn inspect_tells_attestations_from_images() {
    let (builder, registry) = (Builder::new(), FakeRegistry::start());
    let platform = json!({
        "os": "windows", "architecture": "amd64",
        "os.version": "10.0.20348.1970", "os.features": ["win32k", "other"],
    });
    let name = put_attested(&registry, "app", &platform);
    let text = builder.run(["manifest", "inspect", &name]).success().stdout;
    assert_golden("inspect-attested.txt", &without_sizes(&text.replace(&registry.host(), "REGISTRY")));
    // An attestation alone is shown, too.
    let alone = name.replace(":1", ":attestation");
    let text = builder.run(["manifest", "inspect", "--raw", &alone]).success().json();
    assert_eq!(text["layers"][0]["mediaType"], "application/vnd.in-toto+json");
    assert_eq!((&text["os"], &text["architecture"]), (&json!("unknown"), &json!("unknown")));
}

#[test]
fn a_raw_index_is_printed_byte_by_byte() {
    let (builder, registry) = (Builder::new(), FakeRegistry::start());
    let name = put_attested(&registry, "app", &json!({"os": "linux", "architecture": "amd64"}));
    let printed = builder.run(["manifest", "inspect", "--raw", &name]).success().stdout;
    let (_, bytes) = registry.manifest("app", "1").expect("index");
    assert_eq!(printed.as_bytes(), bytes);
    let expanded = builder.run(["manifest", "inspect", "--raw", "--expand-config", &name]).exited(1);
    assert!(expanded.says(&["is an index, which has no config"]) && expanded.says(&["hint", "@sha256:"]));
}

/// A small index may name one image with very many layers again and again.
#[test]
fn inspect_prints_no_more_text_than_fits_into_memory() {
    let (builder, registry) = (Builder::new(), FakeRegistry::start());
    let digest = Digest::of(b"").to_string();
    let layer = json!({"mediaType": media_type::OCI_LAYER_GZIP, "digest": digest, "size": 1});
    let image = json!({
        "schemaVersion": 2,
        "mediaType": media_type::OCI_MANIFEST,
        "config": {"mediaType": media_type::OCI_CONFIG, "digest": digest, "size": 2},
        "layers": vec![layer; 10_000],
    });
    let image = serde_json::to_vec(&image).expect("JSON");
    let digest = registry.put_manifest("many", "image", media_type::OCI_MANIFEST, &image);
    // One has 1.6 million bytes of text.
    for (entries, code) in [(35, 0), (45, 1)] {
        let entry = json!({
            "mediaType": media_type::OCI_MANIFEST, "digest": digest.to_string(), "size": image.len(),
        });
        let index = json!({
            "schemaVersion": 2, "mediaType": media_type::OCI_INDEX, "manifests": vec![entry; entries],
        });
        let index = serde_json::to_vec(&index).expect("JSON");
        registry.put_manifest("many", "1", media_type::OCI_INDEX, &index);
        let name = format!("{}/many:1", registry.host());
        let finished = builder.run(["manifest", "inspect", &name]).exited(code);
        assert_eq!(finished.says(&["has is more than 64 MiB of text"]), code == 1, "{}", finished.stderr);
        assert_eq!(finished.says(&["--raw prints the index alone"]), code == 1, "{}", finished.stderr);
        let printed = finished.stdout.matches("layer 10000: digest = ").count();
        assert_eq!(printed, if code == 0 { entries } else { 0 });
    }
}

#[test]
fn inspect_guesses_no_tag() {
    let builder = Builder::new();
    let refused = builder.run(["manifest", "inspect", "localhost:1/app"]).exited(1);
    assert!(refused.says(&["neither tag nor digest"]) && refused.says(&["localhost:1/app:latest"]));
    let refused = builder.run(["manifest", "inspect", "--expand-config", "localhost:1/app:1"]).exited(1);
    assert!(refused.says(&["--expand-config", "--raw"]), "{}", refused.stderr);
}

/// What a registry says cannot steer the terminal.
#[test]
fn inspect_escapes_what_comes_from_outside() {
    let (builder, registry) = (Builder::new(), FakeRegistry::start());
    let platform = json!({"os": "li\u{1b}[2Jnux", "architecture": "\u{202e}46dma", "variant": "v\n1"});
    let name = put_attested(&registry, "app", &platform);
    let text = builder.run(["manifest", "inspect", &name]).success().stdout;
    assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text}");
    assert!(text.contains("li\\u{1b}[2Jnux") && text.contains("v\\n1"), "{text}");
}

/// Neither needs a store, as long as nothing has to be copied.
#[test]
fn nothing_is_written_where_nothing_is_copied() {
    let (builder, registry) = (Builder::new(), FakeRegistry::start());
    let name = put_attested(&registry, "app", &json!({"os": "linux", "architecture": "amd64"}));
    builder.run(["manifest", "inspect", &name]).success();
    let text = format!("# type: oci\nimage: {name}-index\nmanifests:\n- image: {name}\n");
    push(&builder, &registry.host(), &text, &[]).success();
    assert_eq!(fs::read_dir(builder.store()).expect("store").count(), 0);
}

/// An index may name one image as often as it has room for.
#[test]
fn an_image_that_an_index_names_thousands_of_times_is_asked_for_once() {
    const INDEX: &str = "application/vnd.oci.image.index.v1+json";
    let (builder, registry) = (Builder::new(), FakeRegistry::start());
    put_attested(&registry, "app", &json!({"os": "linux", "architecture": "amd64"}));
    let (_, bytes) = registry.manifest("app", "1").expect("index");
    let index: Value = serde_json::from_slice(&bytes).expect("JSON");
    let image = &index["manifests"][0];
    let entry = |number: usize| {
        let mut entry = image.clone();
        entry["platform"] = json!({"os": "linux", "architecture": format!("processor{number}")});
        entry
    };
    for (tag, count) in [("many", 9000), ("some", 1000)] {
        let entries: Vec<Value> = (0..count).map(entry).collect();
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries});
        registry.put_manifest("app", tag, INDEX, &serde_json::to_vec(&index).expect("JSON"));
    }
    let digest = image["digest"].as_str().expect("digest");
    let asked = || registry.server.requests("GET", &format!("app/manifests/{digest}")).len();
    let text =
        builder.run(["manifest", "inspect", &format!("{}/app:many", registry.host())]).success().stdout;
    assert!(text.contains("[9000]    -    Arch: processor8999"), "{}", &text[..2000]);
    assert_eq!(asked(), 1);
    // To another repository: looked at, brought, and sent once.
    let host = registry.host();
    let spec = format!("image: {host}/other:1\nmanifests:\n- image: {host}/app:some\n");
    push(&builder, &host, &format!("# type: oci\n{spec}"), &[]).success();
    assert_eq!(asked(), 2);
    assert_eq!(registry.server.requests("GET", "app/blobs/").len(), 1, "the config");
    assert_eq!(registry.server.requests("PUT", &format!("other/manifests/{digest}")).len(), 1);
}

#[test]
fn members_that_are_too_many_together_are_refused_with_their_line_before_they_are_looked_at() {
    const INDEX: &str = media_type::OCI_INDEX;
    let (builder, registry) = (Builder::new(), FakeRegistry::start());
    put_attested(&registry, "app", &json!({"os": "linux", "architecture": "amd64"}));
    let (_, bytes) = registry.manifest("app", "1").expect("index");
    let index: Value = serde_json::from_slice(&bytes).expect("JSON");
    for (tag, count) in [("many", 5001), ("full", 9999)] {
        let entries = vec![index["manifests"][0].clone(); count];
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries});
        registry.put_manifest("app", tag, INDEX, &serde_json::to_vec(&index).expect("JSON"));
    }
    for members in [["full", "many"], ["many", "full"]] {
        let members: String = members.iter().map(|tag| format!("- image: REGISTRY/app:{tag}\n")).collect();
        let text = format!("# type: oci\nimage: REGISTRY/other:1\nmanifests:\n{members}");
        let refused = push(&builder, &registry.host(), &text, &[]).exited(1);
        assert!(
            refused.says(&["error", "cannot take"])
                && refused.says(&["with it, the index would have more than 10000 images and attestations"])
                && refused.says(&["spec.yaml:"])
                && refused.says(&["hint", "leave members out"]),
            "{}",
            refused.stderr
        );
        assert!(registry.manifest("other", "1").is_none());
    }
}

/// An index may say of an image what the image itself does not.
fn put_lying(registry: &FakeRegistry, repository: &str) -> String {
    let name = put_attested(registry, repository, &json!({"os": "linux", "architecture": "s390x"}));
    let (_, bytes) = registry.manifest(repository, "1").expect("index");
    let mut index: Value = serde_json::from_slice(&bytes).expect("JSON");
    index["manifests"][0]["platform"] = json!({"os": "linux", "architecture": "arm", "variant": "v7"});
    let bytes = serde_json::to_vec(&index).expect("JSON");
    registry.put_manifest(repository, "1", media_type::OCI_INDEX, &bytes);
    name
}

#[test]
fn an_index_that_contradicts_the_config_of_its_image_is_taken_with_a_warning() {
    let (builder, registry) = (Builder::new(), FakeRegistry::start());
    let name = put_lying(&registry, "app");
    let text = format!("# type: oci\nimage: REGISTRY/app:2\nmanifests:\n- image: {name}\n");
    let pushed = push(&builder, &registry.host(), &text, &[]).success();
    let told = "says of itself that it is for linux/s390x, and goes into the index for linux/arm/v7";
    assert!(pushed.says(&["warning", told]), "{}", pushed.stderr);
    // Of an image that is not there, nothing is known that could contradict.
    let absent = json!({
        "mediaType": media_type::OCI_MANIFEST, "digest": Digest::of(b"absent"), "size": 9,
        "platform": {"os": "linux", "architecture": "arm", "variant": "v7"},
    });
    let index = json!({"schemaVersion": 2, "mediaType": media_type::OCI_INDEX, "manifests": [absent]});
    registry.put_manifest("app", "sparse", media_type::OCI_INDEX, index.to_string().as_bytes());
    let text = "# type: oci\nimage: REGISTRY/app:3\nmanifests:\n- image: REGISTRY/app:sparse\n";
    let pushed = push(&builder, &registry.host(), text, &[]).success();
    assert_eq!(pushed.stderr.matches("warning").count(), 0, "{}", pushed.stderr);
}

#[test]
fn what_an_index_wrongly_says_to_be_what_was_asked_for_is_not_pulled() {
    let (builder, registry) = (Builder::new(), FakeRegistry::start());
    let name = put_lying(&registry, "app");
    let refused = builder.run(["pull", "--arch=arm", "--variant=v7", &name]).exited(1);
    assert!(refused.says(&["is `linux/s390x`, not `linux/arm/v7`"]), "{}", refused.stderr);
    assert!(refused.says(&["hint", "--platform-match=none"]), "{}", refused.stderr);
    let taken = builder.run(["pull", "--arch=arm", "--variant=v7", "--platform-match=none", &name]).success();
    assert!(taken.says(&["warning", "is for linux/s390x, not for linux/arm/v7"]), "{}", taken.stderr);
}

#[test]
fn platforms_that_steer_a_terminal_are_not_passed_on() {
    let (builder, registry) = (Builder::new(), FakeRegistry::start());
    let name = put_attested(&registry, "app", &json!({"os": "li\nnux", "architecture": "\u{1b}[2Jx"}));
    for member in [name.clone(), name.replace(":1", ":image")] {
        let text = format!("# type: oci\nimage: REGISTRY/app:2\nmanifests:\n- image: {member}\n");
        let refused = push(&builder, &registry.host(), &text, &[]).exited(1);
        assert!(refused.says(&["cannot take", &member]), "{}", refused.stderr);
        assert!(refused.says(&["its `os` is `li\\nnux`"]), "{}", refused.stderr);
        assert!(refused.says(&["spec.yaml:4:10"]), "{}", refused.stderr);
    }
    // What the specification says instead counts.
    let text = format!(
        "# type: oci\nimage: REGISTRY/app:2\nmanifests:\n- {{image: {name}, platform: {{os: linux, architecture: arm}}}}\n"
    );
    push(&builder, &registry.host(), &text, &[]).success();
}

#[test]
fn an_index_without_images_is_not_said_to_lack_some() {
    let (builder, registry) = (Builder::new(), FakeRegistry::start());
    let index = json!({"schemaVersion": 2, "mediaType": media_type::OCI_INDEX, "manifests": []});
    registry.put_manifest("app", "empty", media_type::OCI_INDEX, index.to_string().as_bytes());
    let text = "# type: oci\nimage: REGISTRY/app:1\nmanifests:\n- image: REGISTRY/app:empty\n";
    let refused = push(&builder, &registry.host(), text, &[]).exited(1);
    assert!(refused.says(&["indexes without images", "nothing to push"]), "{}", refused.stderr);
    assert!(!refused.stderr.contains("--ignore-missing"), "{}", refused.stderr);
}

#[test]
fn a_config_that_is_too_large_is_refused_with_the_limit_that_allows_it() {
    let (builder, registry) = (Builder::new(), FakeRegistry::start());
    let name = put_attested(&registry, "app", &json!({"os": "linux", "architecture": "amd64"}));
    let name = name.replace(":1", ":image");
    let refused = builder.run(["manifest", "inspect", "--limit=config-bytes=10", &name]).exited(1);
    assert!(refused.says(&["more than the limit of 10", "--limit config-bytes=N"]), "{}", refused.stderr);
}
