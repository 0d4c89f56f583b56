//! What comes out of a build: the same image in every place, as independent readers see it.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::ground::ground;
use crate::support::oci::{self, Entry, LayoutImage, raw_config, raw_manifest, skopeo};
use crate::support::traces::Running;
use crate::support::tree::{self, Times};
use crate::support::{Builder, Context, Finished, finish, scratch};

/// Builds into a layout and reads that.
fn built(context: &Context, arguments: &[&str]) -> (LayoutImage, Vec<Vec<Entry>>, Finished) {
    let out = scratch();
    let layout = out.path().join("layout");
    let finished = Builder::new().layout(context, &layout, arguments).success();
    let image = LayoutImage::only(&layout);
    let entries = image.layer_entries(&layout);
    (image, entries, finished)
}

fn inspect(name: &str) -> Value {
    let text = skopeo(&["inspect", "--tls-verify=false", name]);
    serde_json::from_str(&text).expect("skopeo's JSON")
}

#[test]
fn a_pipe_that_nobody_reads_is_told_of_and_can_be_left() {
    let context = Context::new("FROM scratch\nCOPY Dockerfile /\n");
    let place = scratch();
    let fifo = place.path().join("fifo");
    finish(Command::new("mkfifo").arg(&fifo)).success();
    let named = |flag: &str| format!("{flag}{}", fifo.display());
    let waits = "\nwaiting for a reader of the pipe ";
    for flags in [
        vec!["-o".to_owned(), named("type=tar,dest=")],
        vec!["--no-push".to_owned(), named("--tar-path=")],
        vec!["--no-push".to_owned(), named("--digest-file=")],
    ] {
        let builder = Builder::new();
        let mut running = Running::start(builder.command().args(&flags).arg(context.path()));
        running.wait_until("it waits", |said| said.contains(waits));
        running.signal(Signal::INT);
        // Sooner than everything that does not stop by itself is ended.
        let finished = running.end(Duration::from_secs(3)).exited(130);
        assert!(finished.stderr.ends_with("\nerror: stopped by SIGINT\n"), "{}", finished.stderr);
    }
    let builder = Builder::new();
    let mut running =
        Running::start(builder.command().args(["-o", &named("type=tar,dest=")]).arg(context.path()));
    running.wait_until("it waits", |said| said.contains(waits));
    let names = finish(Command::new("tar").arg("-tf").arg(&fifo)).success().stdout;
    assert_eq!(names, "Dockerfile\n");
    running.end(Duration::from_secs(60)).exited(0);
}

#[test]
fn one_image_goes_to_registries_layout_archive_and_digest_file() {
    let ground = ground();
    let base = ground.name("busybox:latest");
    let context = Context::new(&format!("FROM {base}\nRUN echo made >/made\nCOPY Dockerfile /d/\nENV a=b\n"));
    let out = scratch();
    let at = |name: &str| out.path().join(name);
    let names: Vec<String> = ["one:1", "one:2", "two/deeper:3"]
        .map(|name| ground.name(&format!("outputs-{}/{name}", std::process::id())))
        .to_vec();
    let builder = Builder::new();
    let mut command = builder.command();
    command.args(["--custom-platform", "linux/arm/v7", "-c"]).arg(context.path());
    command.args(["-d", &names[0], "-t", &names[1], "--destination", &names[2]]);
    command.arg("--oci-layout-path").arg(at("new/layout"));
    command.arg("--tar-path").arg(at("new/image.tar")).arg("--digest-file").arg(at("new/digest"));
    let finished = finish(&mut command).success();

    let digest = finished.stdout.strip_suffix('\n').expect("a line");
    assert!(digest.len() == 71 && digest.starts_with("sha256:"), "{digest}");
    assert_eq!(fs::read_to_string(at("new/digest")).expect("digest file"), digest);

    let layout = format!("oci:{}", at("new/layout").display());
    let places = [
        format!("docker://{}", names[0]),
        format!("docker://{}", names[1]),
        format!("docker://{}", names[2]),
        format!("{layout}:1"),
    ];
    let seen: Vec<Value> = places.iter().map(|place| inspect(place)).collect();
    for found in &seen {
        assert_eq!(found["Digest"], digest);
        assert_eq!([&found["Architecture"], &found["Os"]], ["arm", "linux"]);
        assert_eq!(found["Layers"], seen[0]["Layers"]);
    }
    // In an archive layers and manifest are another matter; the config is what names the image.
    let config = raw_manifest(&names[0])["config"]["digest"].as_str().expect("config").to_owned();
    let archive = format!("docker-archive:{}", at("new/image.tar").display());
    let copied = format!("oci:{}:copied", at("copied").display());
    skopeo(&["copy", "--quiet", &archive, &copied]);
    let copied = LayoutImage::only(&at("copied"));
    assert_eq!(copied.raw_config["rootfs"], raw_config(&names[0])["rootfs"]);
    assert_eq!(copied.raw_config["config"], raw_config(&names[0])["config"]);
    let listed = finish(Command::new("tar").arg("-xOf").arg(at("new/image.tar")).arg("manifest.json"))
        .success()
        .json();
    assert!(
        listed[0]["Config"].as_str().expect("config").contains(config.trim_start_matches("sha256:")),
        "{listed}"
    );
    assert_eq!(listed[0]["RepoTags"], json!(names));

    let from_layout = tree::of_layout(&at("new/layout"), "1", Times::Shown);
    assert_eq!(from_layout, tree::of_layout(&at("copied"), "copied", Times::Shown));
    for line in ["/made file 0644 0:0 5", "/d/Dockerfile file 0644 0:0"] {
        assert!(from_layout.contains(line), "{from_layout}");
    }
}

#[test]
fn oci_client_and_oci_spec_read_the_image() {
    let ground = ground();
    let name = ground.name(&format!("outputs-{}/client:1", std::process::id()));
    let context = Context::new(&format!("FROM {}\nRUN echo made >/made\n", ground.name("busybox:latest")));
    let builder = Builder::new();
    let arguments = ["--custom-platform", "linux/arm/v5", "-d", &name, "-c"];
    let finished = finish(builder.command().args(arguments).arg(context.path())).success();
    // It takes what the process has; nothing if somebody else was first.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let config = oci_client::client::ClientConfig {
        protocol: oci_client::client::ClientProtocol::Http,
        ..Default::default()
    };
    let client = oci_client::Client::new(config);
    let reference: oci_client::Reference = name.parse().expect("reference");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    let anonymous = oci_client::secrets::RegistryAuth::Anonymous;
    let (manifest, digest, config) =
        runtime.block_on(client.pull_manifest_and_config(&reference, &anonymous)).expect("manifest");
    assert_eq!(digest, finished.stdout.trim());
    assert_eq!(manifest.annotations.expect("annotations")["io.builder.platform"], "linux/arm/v5");
    let config: oci_spec::image::ImageConfiguration = serde_json::from_str(&config).expect("config");
    assert_eq!(config.variant().as_deref(), Some("v5"));
    assert_eq!(config.rootfs().diff_ids().len(), manifest.layers.len());
    let mut blob = Vec::new();
    let layer = manifest.layers.last().expect("layer");
    runtime.block_on(client.pull_blob(&reference, layer, &mut blob)).expect("layer");
    assert_eq!(blob.len() as i64, layer.size);
}

#[test]
fn the_platform_is_in_config_descriptor_and_annotation_and_a_stale_variant_is_not() {
    let base = ground().name("busybox:latest");
    for (from, asked, expected) in [
        ("FROM", "linux/arm/v7", ("arm", Some("v7"))),
        ("FROM", "linux/arm/v5", ("arm", Some("v5"))),
        ("FROM", "linux/386", ("386", None)),
        ("FROM --platform=linux/arm/v7", "linux/386", ("386", None)),
        ("FROM --platform=linux/arm/v7", "linux/arm64", ("arm64", None)),
        ("FROM --platform=linux/386", "linux/arm/v6", ("arm", Some("v6"))),
        ("FROM --platform=linux/arm/v5", "linux/arm/v7", ("arm", Some("v7"))),
    ] {
        let case = format!("{from} for {asked}");
        let context = Context::new(&format!("{from} {base}\nENV a=b\n"));
        let (image, ..) = built(&context, &["--platform", asked]);
        assert_eq!(image.raw_config["os"], "linux", "{case}");
        assert_eq!(image.raw_config["architecture"], expected.0, "{case}");
        assert_eq!(image.raw_config.get("variant").and_then(Value::as_str), expected.1, "{case}");
        let platform = image.descriptor.platform().as_ref().expect("platform of the descriptor");
        assert_eq!(platform.architecture().to_string(), expected.0, "{case}");
        assert_eq!(platform.variant().as_deref(), expected.1, "{case}");
        assert_eq!(image.annotation("io.builder.platform"), Some(asked), "{case}");
        assert_eq!(image.annotation("org.opencontainers.image.base.name"), Some(base.as_str()), "{case}");
        let digest = image.annotation("org.opencontainers.image.base.digest").expect("base");
        assert!(digest.starts_with("sha256:"), "{case}");
    }
}

#[test]
fn a_base_is_named_even_behind_stages_and_scratch_names_none() {
    let base = ground().name("busybox:latest");
    let context = Context::new(&format!("FROM {base} AS one\nFROM one AS two\nFROM two\nENV a=b\n"));
    let (image, ..) = built(&context, &[]);
    assert_eq!(image.annotation("org.opencontainers.image.base.name"), Some(base.as_str()));
    let context = Context::new(&format!("FROM {base} AS one\nFROM scratch\nCOPY --from=one /etc/passwd /\n"));
    let (image, ..) = built(&context, &[]);
    assert_eq!(image.annotation("org.opencontainers.image.base.name"), None);
}

#[test]
fn layers_are_jointly_described_by_history_and_diff_ids() {
    // Case 289.
    let context = Context::new("FROM scratch\nCOPY f /f\nENV a=1\nWORKDIR /w\nLABEL x=y\n");
    context.write("f", "F");
    let (image, entries, _) = built(&context, &[]);
    let paths: Vec<Vec<&str>> =
        entries.iter().map(|layer| layer.iter().map(|entry| entry.path.as_str()).collect()).collect();
    assert_eq!(paths, [["f"], ["w/"]]);
    let history = image.raw_config["history"].as_array().expect("history");
    let empty: Vec<bool> = history.iter().map(|row| row["empty_layer"] == true).collect();
    assert_eq!(empty, [false, true, false, true]);
    for row in history {
        assert_eq!(row["comment"], "buildkit.dockerfile.v0");
        assert!(row["created"].is_string(), "{row}");
    }
}

#[test]
fn a_layout_has_one_manifest_of_oci_types() {
    // Case 290.
    let context = Context::new("FROM scratch\nCOPY f /f\n");
    context.write("f", "F");
    let (image, ..) = built(&context, &["--platform=linux/amd64"]);
    assert_eq!(image.descriptor.media_type().to_string(), "application/vnd.oci.image.manifest.v1+json");
    let config = image.manifest.config().media_type().to_string();
    assert_eq!(config, "application/vnd.oci.image.config.v1+json");
    let layer = image.manifest.layers()[0].media_type().to_string();
    assert_eq!(layer, "application/vnd.oci.image.layer.v1.tar+gzip");
    let platform = image.descriptor.platform().as_ref().expect("platform");
    assert_eq!(
        (platform.os().to_string(), platform.architecture().to_string()),
        ("linux".into(), "amd64".into())
    );
}

#[test]
fn an_epoch_sets_the_times_of_the_image_and_leaves_those_of_files() {
    // Case 301.
    let context = Context::new("FROM scratch\nCOPY f /f\nENV a=1\n");
    let file = context.write("f", "F");
    set_mtime(&file, 1_234_567_890);
    let (image, entries, _) = built(&context, &["--build-arg=SOURCE_DATE_EPOCH=100"]);
    assert_eq!(image.raw_config["created"], "1970-01-01T00:01:40Z");
    for row in image.raw_config["history"].as_array().expect("history") {
        assert_eq!(row["created"], "1970-01-01T00:01:40Z");
    }
    assert_eq!(entries[0][0].mtime, 1_234_567_890);
}

#[test]
fn a_removed_file_is_a_whiteout_below_its_changed_directory() {
    // Case 304.
    let base = ground().name("busybox:latest");
    let context = Context::new(&format!("FROM {base}\nRUN true\nCOPY d /d\nRUN rm /d/a\n"));
    context.write("d/a", "");
    context.write("d/b", "");
    let (_, entries, _) = built(&context, &["--platform=linux/amd64"]);
    let last = entries.last().expect("layer");
    let shown: Vec<_> = last.iter().map(|entry| (entry.path.as_str(), entry.mode, entry.size)).collect();
    assert_eq!(shown, [("d/", 0o755, 0), ("d/.wh.a", 0, 0)]);
}

#[test]
fn the_same_copy_again_is_an_empty_layer() {
    // Case 305.
    let context = Context::new("FROM scratch\nCOPY f /f\nCOPY f /f\n");
    context.write("f", "F");
    let (image, entries, _) = built(&context, &[]);
    assert_eq!(image.manifest.layers().len(), 2);
    assert_eq!((entries[0].len(), entries[1].len()), (1, 0));
}

#[test]
fn names_in_layers_are_relative_and_those_of_users_empty() {
    // Case 307.
    let context = Context::new("FROM scratch\nCOPY f /a/b/f\n");
    context.write("f", "F");
    let (_, entries, _) = built(&context, &[]);
    let paths: Vec<&str> = entries[0].iter().map(|entry| entry.path.as_str()).collect();
    assert_eq!(paths, ["a/", "a/b/", "a/b/f"]);
    for entry in &entries[0] {
        assert_eq!(entry.names, [String::new(), String::new()]);
    }
}

#[test]
fn a_layout_that_is_there_is_replaced() {
    let out = scratch();
    let layout = out.path().join("layout");
    let builder = Builder::new();
    for text in ["one", "two"] {
        let context = Context::new("FROM scratch\nCOPY f /\n");
        context.write("f", text);
        builder.layout(&context, &layout, &[]).success();
        let blobs = fs::read_dir(layout.join("blobs/sha256")).expect("blobs").count();
        assert_eq!(blobs, 3, "manifest, config and layer");
        LayoutImage::only(&layout);
    }
}

#[test]
fn an_archive_may_go_into_a_pipe() {
    let context = Context::new("FROM scratch\nCOPY Dockerfile /\n");
    let builder = Builder::new();
    let mut command = builder.command();
    command.args(["--no-push", "--tar-path", "/dev/stdout", "-c"]).arg(context.path());
    let output = command.output().expect("run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // The digest follows the archive; what reads a tar archive stops at its end.
    let mut archive = tar::Archive::new(&output.stdout[..]);
    let names: Vec<PathBuf> = archive
        .entries()
        .expect("archive")
        .map(|entry| entry.expect("entry").path().expect("path").into_owned())
        .collect();
    assert!(names.iter().any(|name| name == Path::new("manifest.json")), "{names:?}");
}

fn set_mtime(path: &Path, seconds: i64) {
    let time = rustix::fs::Timespec { tv_sec: seconds, tv_nsec: 123_456_789 };
    let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(rustix::fs::CWD, path, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
        .expect("times");
}

/// A build of the same sources in another place: store, home, current directory, umask and time zone differ, and the
/// files were made in another order.
fn rebuilt(dockerfile: &str, files: &[&str], umask: u32, zone: &str, cwd: &str) -> String {
    let context = Context::new(dockerfile);
    for name in files {
        context.write(name, name.as_bytes());
    }
    let mut pending = vec![context.path().to_owned()];
    while let Some(path) = pending.pop() {
        if path.is_dir() {
            pending.extend(fs::read_dir(&path).expect("directory").map(|entry| entry.expect("entry").path()));
        }
        set_mtime(&path, 1_600_000_000);
    }
    let builder = Builder::new();
    let mut command = builder.command();
    command.args([
        "--no-push",
        "--custom-platform=linux/arm/v7",
        "--build-arg=SOURCE_DATE_EPOCH=1700000000",
        "-c",
    ]);
    command.arg(context.path()).env("TZ", zone).current_dir(cwd);
    #[allow(unsafe_code, reason = "umask is safe to call after fork")]
    // SAFETY: umask(2) does nothing but set a number.
    unsafe {
        command.pre_exec(move || {
            rustix::process::umask(rustix::fs::Mode::from_raw_mode(umask));
            Ok(())
        });
    }
    finish(&mut command).success().stdout
}

#[test]
fn an_epoch_makes_builds_of_the_same_sources_equal() {
    let base = ground().name("busybox:latest");
    for dockerfile in [
        "FROM scratch\nCOPY . /all/\nCOPY a/b.txt /x/y/z/\nENV a=b\n".to_owned(),
        "FROM scratch\nADD a /all/\nLABEL x=y\nWORKDIR /w/deep\nCOPY <<EOF /here/doc\ntext\nEOF\n".to_owned(),
        format!(
            "FROM {base}\nCOPY a/b.txt /etc/\nWORKDIR /home/user/w\nCOPY --chown=user c /home/user/w/\nCMD [\"x\"]\n"
        ),
        format!("FROM {base} AS one\nCOPY a /new/a\nFROM {base}\nCOPY --from=one /new /copied/new\n"),
    ] {
        let one = rebuilt(&dockerfile, &["a/b.txt", "a/d/e", "c"], 0o022, "UTC", "/");
        // Files of another second, were any time taken from the machine.
        std::thread::sleep(std::time::Duration::from_millis(1100));
        let other = rebuilt(&dockerfile, &["c", "a/d/e", "a/b.txt"], 0o077, "Pacific/Kiritimati", "/tmp");
        assert_eq!(one, other, "{dockerfile}");
    }
}

#[test]
fn labels_of_the_command_line_are_on_the_result_alone() {
    let context = Context::new("FROM scratch AS one\nLABEL a=1 b=1\nFROM one\nLABEL b=2\n");
    let (image, ..) = built(&context, &["--label=b=3", "--label", "c=x=y"]);
    assert_eq!(image.raw_config["config"]["Labels"], json!({"a": "1", "b": "3", "c": "x=y"}));
    let history = image.raw_config["history"].to_string();
    assert!(!history.contains("x=y"), "{history}");
}

#[test]
fn nothing_but_the_digest_is_on_standard_output_whatever_is_told() {
    let base = ground().name("busybox:latest");
    let context = Context::new(&format!("FROM {base}\nRUN echo loud; echo louder >&2\n"));
    for level in ["trace", "info", "error"] {
        let (.., finished) = built(&context, &["--verbosity", level]);
        assert_eq!(finished.stdout.lines().count(), 1, "{level}: {}", finished.stdout);
        // What the steps themselves say is told at any level, as kaniko does.
        let ours = finished.stderr.lines().filter(|line| !line.starts_with("[2/2] | ")).count();
        assert_eq!(ours == 0, level == "error", "{level}: {}", finished.stderr);
        assert!(finished.says(&["[2/2] | louder"]), "{level}: {}", finished.stderr);
    }
}

#[test]
fn umoci_unpacks_what_skopeo_copies_from_the_registry() {
    let ground = ground();
    let name = ground.name(&format!("outputs-{}/umoci:1", std::process::id()));
    let base = ground.name("busybox:latest");
    let context = Context::new(&format!(
        "FROM {base}\nRUN mkdir -m 1777 /sticky && ln /bin/busybox /bin/second && chmod 4755 /bin/second && ln -s /nowhere /dangling\nRUN rm -r /home\n"
    ));
    let builder = Builder::new();
    builder
        .run([
            "-d".as_ref(),
            name.as_ref(),
            "--platform=linux/s390x".as_ref(),
            "-c".as_ref(),
            context.path().as_os_str(),
        ])
        .success();
    let out = scratch();
    let layout = out.path().join("layout");
    oci::pull(&name, &layout);
    let text = tree::of_layout(&layout, "image", Times::Hidden);
    for line in [
        "/sticky directory 1777 0:0",
        "/bin/second file 4755 0:0",
        "/dangling symlink 0777 0:0 8 - -> /nowhere",
    ] {
        assert!(text.contains(line), "no `{line}` in\n{text}");
    }
    assert!(!text.contains("/home"), "{text}");
}
