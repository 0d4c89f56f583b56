//! `--output`: files, layouts, archives and registries, as independent readers see them.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;
use std::process::Command;

use builder::image::platform::Platform;
use serde_json::Value;

use crate::support::fake_registry::FakeRegistry;
use crate::support::ground::ground;
use crate::support::oci::{LayoutImage, raw_manifest, skopeo, with_unpacked};
use crate::support::steps;
use crate::support::user::User;
use crate::support::{Builder, Context, Finished, finish, scratch};

/// What every way of writing must keep: links, modes, owners, capabilities, a removed file.
const ROOT: &str = "FROM BASE
RUN mkdir /x && echo text >/x/f && ln /x/f /x/g && ln -s f /x/l && chown 12:34 /x/f && chmod 4755 /x/f \\
 && mkfifo /x/p && mkdir -m 1777 /x/t && rm /bin/cat
";

fn context(dockerfile: &str) -> Context {
    Context::new(&dockerfile.replace("BASE", &ground().name("busybox:latest")))
}

fn build(builder: &Builder, context: &Context, arguments: &[&str]) -> Finished {
    let mut command = builder.command();
    command.arg("--context").arg(context.path()).args(arguments);
    finish(&mut command)
}

/// One line for each entry of a directory: path, type, mode, and the owner where it is not the caller.
fn listing(root: &Path) -> BTreeSet<String> {
    let script = "find . -mindepth 1 -printf '%P %y %m %n %l %T@\\n'";
    let listed = finish(Command::new("sh").arg("-c").arg(script).current_dir(root)).success();
    // The number of names of a directory is the file system's.
    let line = |line: &str| {
        let mut words: Vec<&str> = line.split(' ').collect();
        if words.get(1) == Some(&"d") {
            words[3] = "";
        }
        words.join(" ")
    };
    listed.stdout.lines().map(line).collect()
}

/// Lines without set-ID bits, which a directory does not get.
fn without_set_ids(lines: &BTreeSet<String>) -> BTreeSet<String> {
    let line = |line: &String| {
        let mut words: Vec<&str> = line.split(' ').collect();
        if words[2].len() == 4 && words[1] == "f" {
            words[2] = &words[2][1..];
        }
        words.join(" ")
    };
    lines.iter().map(line).collect()
}

#[test]
fn the_root_file_system_is_the_same_in_a_directory_an_archive_and_a_layout() {
    let context = context(ROOT);
    let mut seen = Vec::new();
    for snapshotter in ["overlayfs", "native"] {
        let builder = Builder::new();
        let out = scratch();
        let at = |name: &str| out.path().join(name);
        let (layout, tar) = (at("layout"), at("root.tar"));
        let flags = [
            format!("--snapshotter={snapshotter}"),
            format!("-o={}", at("dir").display()),
            format!("-o=type=tar,dest={}", tar.display()),
            format!("-o=type=oci,tar=false,name=x:1,dest={}", layout.display()),
        ];
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        build(&builder, &context, &flags).success();
        let unpacked = at("unpacked");
        fs::create_dir(&unpacked).unwrap();
        finish(Command::new("tar").arg("-xpf").arg(&tar).arg("-C").arg(&unpacked)).success();
        let of_image = with_unpacked(&layout, "1", |root| {
            let file = fs::metadata(root.join("x/f")).unwrap();
            assert_eq!((file.uid(), file.gid(), file.mode() & 0o7777), (12, 34, 0o4755));
            listing(root)
        });
        let file = fs::metadata(unpacked.join("x/f")).unwrap();
        assert_eq!((file.uid(), file.gid(), file.mode() & 0o7777), (12, 34, 0o4755));
        assert_eq!(listing(&unpacked), of_image, "{snapshotter}");
        assert_eq!(listing(&at("dir")), without_set_ids(&of_image), "{snapshotter}");
        let file = fs::metadata(at("dir/x/f")).unwrap();
        assert_eq!((file.uid(), file.gid(), file.mode() & 0o7777), (0, 0, 0o755));
        assert_eq!(file.ino(), fs::metadata(at("dir/x/g")).unwrap().ino());
        assert!(!at("dir/bin/cat").exists() && at("dir/bin/busybox").exists());
        let times = |line: &String| line.rsplit_once(' ').map(|(rest, _)| rest.to_owned());
        seen.push(of_image.iter().filter_map(times).collect::<Vec<_>>());
    }
    assert_eq!(seen[0], seen[1]);
}

#[test]
fn under_an_epoch_all_files_have_its_time() {
    let context = Context::new("FROM scratch\nCOPY f /d/f\nWORKDIR /w\n");
    context.write("f", "F");
    let builder = Builder::new();
    let out = scratch();
    let mut archives = Vec::new();
    for name in ["one", "two"] {
        let (directory, tar) = (out.path().join(name), out.path().join(format!("{name}.tar")));
        let flags = [
            "--build-arg=SOURCE_DATE_EPOCH=1500000000".to_owned(),
            format!("--output={}", directory.display()),
            format!("--output=type=tar,dest={}", tar.display()),
        ];
        build(&builder, &context, &flags.each_ref().map(String::as_str)).success();
        for path in ["d", "d/f", "w"] {
            let found = fs::metadata(directory.join(path)).unwrap();
            assert_eq!((found.mtime(), found.mtime_nsec()), (1_500_000_000, 0), "{path}");
        }
        archives.push(fs::read(tar).unwrap());
    }
    assert_eq!(archives[0], archives[1]);
    let mut archive = tar::Archive::new(&archives[0][..]);
    for entry in archive.entries().unwrap() {
        assert_eq!(entry.unwrap().header().mtime().unwrap(), 1_500_000_000);
    }
}

#[test]
fn standard_output_has_an_archive_and_nothing_else() {
    let context = Context::new("FROM scratch\nCOPY f /d/f\n");
    context.write("f", "F");
    let builder = Builder::new();
    for (flag, expected) in [
        ("-", &["d/", "d/f"][..]),
        ("type=tar", &["d/", "d/f"]),
        ("type=tar,dest=-", &["d/", "d/f"]),
        ("type=oci", &["index.json", "oci-layout"]),
        ("type=docker,dest=-", &["index.json", "manifest.json", "oci-layout"]),
    ] {
        let mut command = builder.command();
        let output = command.arg("-o").arg(flag).arg("--context").arg(context.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.stdout.len() % 512, 0, "{flag}");
        assert_eq!(&output.stdout[output.stdout.len() - 1024..], &[0; 1024], "{flag}");
        let mut archive = tar::Archive::new(&output.stdout[..]);
        let names = archive
            .entries()
            .unwrap()
            .map(|entry| String::from_utf8(entry.unwrap().path_bytes().into_owned()).unwrap());
        let names: Vec<String> = names.filter(|name| !name.starts_with("blobs")).collect();
        assert_eq!(names, expected, "{flag}");
    }
}

#[test]
fn archives_and_layouts_are_read_by_skopeo() {
    let context = context("FROM BASE\nCOPY Dockerfile /d\nCMD [\"/bin/true\"]\n");
    let builder = Builder::new();
    let out = scratch();
    let at = |name: &str| out.path().join(name).display().to_string();
    let flags = [
        format!("-o=type=oci,dest={}", at("oci.tar")),
        format!("-o=type=docker,dest={}", at("docker.tar")),
        format!("-o=type=oci,tar=false,dest={}", at("oci")),
        format!("-o=type=docker,tar=false,dest={}", at("docker")),
        format!("-o=type=docker,oci-mediatypes=false,dest={}", at("typed.tar")),
        "--tag=host.example/app:1".to_owned(),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let finished = build(&builder, &context, &flags).success();
    assert!(finished.says(&["not pushed", "host.example/app:1"]), "{}", finished.stderr);
    let id = |copied: &str| {
        let manifest: Value =
            serde_json::from_str(&fs::read_to_string(format!("{copied}/manifest.json")).unwrap()).unwrap();
        manifest["config"]["digest"].as_str().unwrap().to_owned()
    };
    let mut ids = BTreeSet::new();
    for (number, from) in [
        format!("oci-archive:{}:1", at("oci.tar")),
        format!("docker-archive:{}:host.example/app:1", at("docker.tar")),
        format!("oci:{}:1", at("oci")),
        format!("oci:{}:1", at("docker")),
        format!("docker-archive:{}:host.example/app:1", at("typed.tar")),
    ]
    .iter()
    .enumerate()
    {
        let to = at(&format!("copied{number}"));
        skopeo(&["copy", "--quiet", from, &format!("dir:{to}")]);
        ids.insert(id(&to));
    }
    assert_eq!(ids.len(), 1, "{ids:?}");
    assert!(Path::new(&at("docker")).join("manifest.json").exists());
}

#[test]
fn docker_s_types_are_pushed_and_taken() {
    let ground = ground();
    let name = ground.name(&format!("outputs-{}/types:1", std::process::id()));
    let context = context("FROM BASE\nCOPY Dockerfile /d\n");
    let builder = Builder::new();
    build(&builder, &context, &["--image-format=docker", "--annotation=k=v", "-t", &name]).success();
    let manifest = raw_manifest(&name);
    assert_eq!(manifest["mediaType"], "application/vnd.docker.distribution.manifest.v2+json");
    assert_eq!(manifest["config"]["mediaType"], "application/vnd.docker.container.image.v1+json");
    for layer in manifest["layers"].as_array().unwrap() {
        assert_eq!(layer["mediaType"], "application/vnd.docker.image.rootfs.diff.tar.gzip");
    }
    assert_eq!(manifest["annotations"], serde_json::json!({"k": "v"}));
}

#[test]
fn names_are_pushed_when_an_output_or_push_says_so() {
    let ground = ground();
    let name = |name: &str| ground.name(&format!("outputs-{}/{name}", std::process::id()));
    let context = Context::new("FROM scratch\nCOPY Dockerfile /\n");
    let builder = Builder::new();
    let out = scratch();
    let exists = |name: &str| {
        let name = format!("docker://{name}");
        let mut skopeo = Command::new("skopeo");
        finish(skopeo.args(["inspect", "--raw", "--tls-verify=false", &name])).code == Some(0)
    };
    let tar = format!("-o=type=oci,dest={}", out.path().join("x.tar").display());
    build(&builder, &context, &[&tar, "-t", &name("a:1")]).success();
    assert!(!exists(&name("a:1")));
    build(&builder, &context, &[&tar, "-t", &name("a:2"), "--push"]).success();
    assert!(exists(&name("a:2")));
    build(&builder, &context, &["-o", &format!("type=image,name={},push=true", name("a:3"))]).success();
    assert!(exists(&name("a:3")));
    let pair = format!("type=registry,\"name={},{}\"", name("a:4"), name("b:4"));
    build(&builder, &context, &["-o", &pair, "-t", &name("a:5")]).success();
    assert!(exists(&name("a:4")) && exists(&name("b:4")) && !exists(&name("a:5")));
    let by_digest = format!("type=registry,push-by-digest=true,name={}", name("c"));
    let file = out.path().join("name");
    let told = format!("--image-name-tag-with-digest-file={}", file.display());
    let digest = build(&builder, &context, &["-o", &by_digest, &told]).success().stdout;
    let pushed = format!("{}@{}", name("c"), digest.trim());
    assert!(exists(&pushed) && !exists(&name("c:latest")));
    assert_eq!(fs::read_to_string(file).unwrap(), pushed + "\n", "there is no such tag");
    build(&builder, &context, &["-o", &format!("type=image,name={}", name("d:1"))]).success();
    assert!(!exists(&name("d:1")));
}

#[test]
fn a_name_of_the_store_is_a_base_unless_the_registry_is_to_be_asked() {
    let name = ground().name(&format!("outputs-{}/named:1", std::process::id()));
    let built = |builder: &Builder, text: &str, arguments: &[&str]| {
        let context = steps::context(&format!("FROM BASE\nRUN echo {text} >/which\n"));
        builder.run([&["-c", context.path().to_str().unwrap()], arguments].concat()).success();
    };
    let builder = Builder::new();
    built(&builder, "store", &["-o", &format!("type=image,name={name}")]);
    let on_it = steps::context(&format!("FROM {name}\nRUN cat /which\nCOPY --from={name} /which /again\n"));
    let build = |arguments: &[&str]| steps::build(&builder, &on_it, arguments);
    let first = build(&[]).success();
    let told = format!("FROM {name}: the image of that name in the store (sha256:");
    assert_eq!((steps::output(&first), first.stderr.matches(&told).count()), (vec!["store".to_owned()], 1));
    build(&["--pull"]).exited(1);
    built(&Builder::new(), "registry", &["-d", &name]);
    assert_eq!(steps::output(&build(&["--pull"]).success()), ["registry"]);
    assert_eq!(steps::output(&build(&["--pull=false"]).success()), ["store"]);
    // The registry has none for that platform, either.
    let other = build(&["--platform=linux/arm/v7"]).exited(1);
    let host = Platform::host(std::env::consts::OS, std::env::consts::ARCH, String::new);
    let told = format!("the store has it for `{host}`, not for `linux/arm/v7`");
    // Once before the registry is asked, and once more where that did not help.
    assert_eq!(other.stderr.matches(&told).count(), 2, "{}", other.stderr);
    assert!(other.says(&["the registry is asked"]), "{}", other.stderr);
    let names = fs::read_dir(builder.store().join("blobs/sha256")).unwrap();
    names.for_each(|blob| fs::remove_file(blob.unwrap().path()).unwrap());
    let without = build(&[]).success();
    assert_eq!(steps::output(&without), ["registry"]);
    assert!(without.says(&["in the store", "the registry is asked"]), "{}", without.stderr);
}

/// The limit is below that of one config.
#[test]
fn the_config_of_a_base_counts_once_where_the_registry_has_what_the_store_lacks() {
    let name = ground().name(&format!("outputs-{}/counted:1", std::process::id()));
    let of_base = steps::context(&format!("FROM BASE\nLABEL a={}\nRUN echo a >/a\n", "x".repeat(10_000)));
    let built = |builder: &Builder, arguments: &[&str]| {
        builder.run([&["-c", of_base.path().to_str().unwrap()], arguments].concat()).success();
    };
    let builder = Builder::new();
    built(&builder, &["-o", &format!("type=image,name={name}")]);
    built(&Builder::new(), &["-d", &name]);
    for blob in fs::read_dir(builder.store().join("blobs/sha256")).unwrap() {
        let blob = blob.unwrap().path();
        if fs::read(&blob).unwrap().first() != Some(&b'{') {
            fs::remove_file(blob).unwrap();
        }
    }
    let on_it = steps::context(&format!("FROM {name}\nENV a=b\n"));
    // It has twenty thousand bytes: the label is in its history as well.
    for (limit, code, words) in [
        ("base-config-bytes=16KiB", 1, "raise it with `--limit base-config-bytes=N`"),
        ("base-config-bytes=32KiB", 0, "lacks layers; the registry is asked"),
    ] {
        let arguments = ["-c", on_it.path().to_str().unwrap(), "--limit", limit, "--no-push"];
        let finished = builder.run(arguments).exited(code);
        assert!(finished.says(&[words]), "{}", finished.stderr);
    }
}

#[test]
fn an_image_that_is_stored_without_a_name_is_told_of() {
    let context = steps::context("FROM scratch\nLABEL a=b\n");
    let finished = steps::build(&Builder::new(), &context, &["-o", "type=image"]).success();
    let digest = finished.stdout.trim_end().to_owned();
    assert!(
        finished.says(&[&format!("stored {digest} without a name"), "`name=NAME`"]),
        "{}",
        finished.stderr
    );
}

#[test]
fn files_say_what_came_out() {
    let ground = ground();
    let name = ground.name(&format!("outputs-{}/told:1", std::process::id()));
    let context = Context::new("FROM scratch\nCOPY Dockerfile /\n");
    let builder = Builder::new();
    let out = scratch();
    let at = |name: &str| out.path().join(name);
    let flags = [
        format!("--metadata-file={}", at("new/metadata").display()),
        format!("--iidfile={}", at("new/id").display()),
        format!("--digest-file={}", at("new/digest").display()),
        format!("--image-name-with-digest-file={}", at("new/name").display()),
        format!("--image-name-tag-with-digest-file={}", at("new/tag").display()),
        format!("--destination={name}"),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let digest = build(&builder, &context, &flags).success().stdout.trim().to_owned();
    let read = |name: &str| fs::read_to_string(at(name)).unwrap();
    let config = raw_manifest(&name)["config"]["digest"].as_str().unwrap().to_owned();
    assert_eq!((read("new/digest"), read("new/id")), (digest.clone(), config.clone()));
    let repository = name.strip_suffix(":1").unwrap();
    assert_eq!(read("new/name"), format!("{repository}@{digest}\n"));
    assert_eq!(read("new/tag"), format!("{name}@{digest}\n"));
    let metadata: Value = serde_json::from_str(&read("new/metadata")).unwrap();
    assert_eq!(metadata["containerimage.digest"], digest);
    assert_eq!(metadata["containerimage.config.digest"], config);
    assert_eq!(metadata["image.name"], name);
    let descriptor = &metadata["containerimage.descriptor"];
    assert_eq!(descriptor["mediaType"], "application/vnd.oci.image.manifest.v1+json");
    assert_eq!(descriptor["digest"], digest);
    assert!(descriptor["size"].as_u64().unwrap() > 0);
    assert_eq!(descriptor["platform"]["os"], "linux");
    assert!(descriptor["annotations"]["org.opencontainers.image.created"].is_string());
}

#[test]
fn who_cannot_be_told_in_a_file_is_told_that_the_image_was_pushed() {
    let registry = FakeRegistry::start();
    let name = format!("{}/told/app:1", registry.host());
    let context = Context::new("FROM scratch\nCOPY Dockerfile /\n");
    let out = scratch();
    let archive = out.path().join("a.tar");
    let flags = [
        "--push",
        "--tag",
        &name,
        "-q",
        "--iidfile=/dev/full",
        "-o",
        "type=image",
        "--tar-path",
        archive.to_str().unwrap(),
    ];
    let finished = build(&Builder::new(), &context, &flags).exited(1);
    assert!(finished.says(&["error: --iidfile: cannot write `/dev/full`"]), "{}", finished.stderr);
    let told = format!("but: the image was pushed: {name}@sha256:");
    assert!(finished.says(&[&told, &format!("; written: {}", archive.display())]), "{}", finished.stderr);
    let finished = build(&Builder::new(), &context, &["--no-push", "--iidfile=/dev/full"]).exited(1);
    assert!(!finished.says(&["but:"]), "{}", finished.stderr);
}

#[test]
fn a_closed_standard_output_is_an_error_before_anything_is_done() {
    let context = Context::new("FROM scratch\nCOPY Dockerfile /\n");
    let builder = Builder::new();
    let run = |script: &str| {
        let plain = builder.command();
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(plain.get_program()).arg(context.path());
        command.env_clear().envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        finish(&mut command)
    };
    for arguments in ["-o -", "--no-push", "plan", "check", "version"] {
        let context = if arguments == "version" { "" } else { "--context \"$1\"" };
        let finished = run(&format!("\"$0\" {arguments} {context} >&-")).exited(1);
        assert!(finished.says(&["error: standard output is closed"]), "{}", finished.stderr);
        assert!(!finished.says(&["COPY"]), "{arguments}: {}", finished.stderr);
        // Some open it for reading and writing, as Rust itself does.
        run(&format!("\"$0\" {arguments} {context} 1<>/dev/null")).success();
    }
}

#[test]
fn annotations_are_where_they_are_to_be() {
    let context = Context::new("FROM scratch\nCOPY Dockerfile /\n");
    let builder = Builder::new();
    let out = scratch();
    let layout = out.path().join("layout");
    let dest = format!(
        "type=oci,tar=false,annotation.a=1,annotation-manifest-descriptor.b=2,dest={}",
        layout.display()
    );
    let flags = ["--annotation=a=over", "--annotation=manifest,manifest-descriptor:d=4", "-o", &dest];
    build(&builder, &context, &flags).success();
    let image = LayoutImage::only(&layout);
    let of_manifest = ["a", "b", "d"].map(|key| image.annotation(key).map(str::to_owned));
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(of_manifest, [some("over"), None, some("4")]);
    let annotations = image.descriptor.annotations().clone().unwrap();
    let of_descriptor = ["a", "b", "d"].map(|key| annotations.get(key).cloned());
    assert_eq!(of_descriptor, [None, some("2"), some("4")]);
}

#[test]
fn who_wants_warnings_alone_is_told_that_times_are_not_rewritten() {
    let context = Context::new("FROM scratch\nCOPY Dockerfile /\n");
    let (builder, out) = (Builder::new(), scratch());
    let output = format!("type=oci,rewrite-timestamp=true,dest={}", out.path().join("x.tar").display());
    let told = |flags: &[&str]| {
        let flags = [&["--verbosity=warn", "-o", &output], flags].concat();
        build(&builder, &context, &flags).success().stderr
    };
    let warning = format!(
        "warning: --output {output}: `rewrite-timestamp` has no effect: there is no SOURCE_DATE_EPOCH\n"
    );
    assert_eq!(told(&[]), warning);
    assert_eq!(told(&["--build-arg=SOURCE_DATE_EPOCH="]), warning);
    assert_eq!(told(&["--build-arg=SOURCE_DATE_EPOCH=5"]), "");
}

#[test]
fn an_output_s_own_epoch_lowers_what_is_later() {
    let context = Context::new("FROM scratch\nCOPY Dockerfile /\n");
    let builder = Builder::new();
    let out = scratch();
    let (early, late) = (out.path().join("early"), out.path().join("late"));
    let flags = [
        format!("-o=type=oci,tar=false,source-date-epoch=100,dest={}", early.display()),
        format!("-o=type=oci,tar=false,source-date-epoch=99999999999,dest={}", late.display()),
    ];
    build(&builder, &context, &flags.each_ref().map(String::as_str)).success();
    let early = LayoutImage::only(&early).raw_config;
    assert_eq!(early["created"], "1970-01-01T00:01:40Z");
    assert!(early["history"].as_array().unwrap().iter().all(|row| row["created"] == "1970-01-01T00:01:40Z"));
    let late = LayoutImage::only(&late).raw_config;
    assert!(late["created"].as_str().unwrap().starts_with("20"), "{late}");
}

#[test]
fn a_hostile_image_writes_nowhere_else() {
    let dockerfile = "FROM BASE\nRUN rm -rf /home && ln -s /victim /home && mkdir /d && echo evil >/d/f && echo evil >/h \\\n\
         && mkdir /back && ln -s ../../victim /back/up\n";
    let context = context(dockerfile);
    let builder = Builder::new();
    let out = scratch();
    let at = |name: &str| out.path().join(name);
    for name in ["victim", "dest"] {
        fs::create_dir(at(name)).unwrap();
    }
    fs::write(at("victim/f"), "mine").unwrap();
    symlink(at("victim"), at("dest/d")).unwrap();
    symlink(at("victim/f"), at("dest/h")).unwrap();
    fs::write(at("dest/own"), "own").unwrap();
    for _ in 0..2 {
        build(&builder, &context, &["-o", at("dest").to_str().unwrap()]).success();
    }
    assert_eq!(fs::read_to_string(at("victim/f")).unwrap(), "mine");
    assert_eq!(fs::read_dir(at("victim")).unwrap().count(), 1);
    assert_eq!(fs::read_to_string(at("dest/d/f")).unwrap(), "evil\n");
    assert_eq!(fs::read_to_string(at("dest/own")).unwrap(), "own");
    assert_eq!(fs::read_link(at("dest/home")).unwrap(), Path::new("/victim"));
    let deleting = format!("type=local,mode=delete,dest={}", at("dest").display());
    build(&builder, &context, &["-o", &deleting]).success();
    assert!(!at("dest/own").exists());
    assert_eq!(fs::read_dir(at("victim")).unwrap().count(), 1);
}

#[test]
fn the_first_output_that_fails_is_named_and_those_before_it_stay() {
    let context = Context::new("FROM scratch\nCOPY d /d\n");
    context.write("d", "file");
    let builder = Builder::new();
    let out = scratch();
    let at = |name: &str| out.path().join(name);
    fs::create_dir_all(at("dir/d")).unwrap();
    fs::write(at("dir/d/own"), "own").unwrap();
    let flags = [
        format!("-o=type=tar,dest={}", at("one.tar").display()),
        format!("-o={}", at("dir").display()),
        format!("-o=type=tar,dest={}", at("three.tar").display()),
    ];
    let finished = build(&builder, &context, &flags.each_ref().map(String::as_str)).exited(1);
    let told = format!("error: --output {}: cannot write to", at("dir").display());
    assert!(finished.says(&[&told]), "{}", finished.stderr);
    assert!(finished.says(&["`/d` is a directory that is not empty"]), "{}", finished.stderr);
    assert!(finished.stdout.is_empty());
    let mut names: Vec<_> =
        fs::read_dir(out.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["dir", "one.tar"]);
    assert_eq!(fs::read_dir(at("dir")).unwrap().count(), 1);
}

#[test]
fn a_full_disk_leaves_nothing_half_written() {
    let context = Context::new("FROM scratch\nCOPY big /big\n");
    context.write("big", vec![7; 3 << 20]);
    let builder = Builder::new();
    // The layer is small, its file is not.
    for (output, code, left) in [
        ("type=tar,dest=/mnt/x.tar", 1, "fill\n"),
        ("/mnt/x", 1, "fill\n"),
        ("/mnt", 1, "fill\n"),
        ("type=oci,dest=/mnt/x.tar", 0, "fill\nx.tar\n"),
    ] {
        let script = format!(
            "mount -t tmpfs -o size=1m none /mnt && head -c 900k /dev/zero >/mnt/fill && \
             {{ \"$0\" -o {output} --context \"$1\" >/dev/null; echo code $?; ls -A /mnt; }}"
        );
        let plain = builder.command();
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
        command.arg(plain.get_program()).arg(context.path());
        command.env_clear().envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let finished = finish(&mut command).success();
        assert_eq!(finished.stdout, format!("code {code}\n{left}"), "{output}\n{}", finished.stderr);
        assert_eq!(finished.says(&["No space left on device"]), code == 1, "{output}\n{}", finished.stderr);
        assert_eq!(finished.says(&["error: --output", output]), code == 1, "{output}\n{}", finished.stderr);
    }
}

#[test]
fn an_ordinary_user_s_files_are_the_user_s_and_an_archive_has_all_owners() {
    let steps = "COPY --chown=12:34 --chmod=4755 Dockerfile /x/f\nRUN ln /x/f /x/g && ln -s f /x/l\n";
    for (user, flags) in [(User::with_ranges(), &["--snapshotter=native"][..]), (User::with_single_id(), &[])]
    {
        let base = ground().name("busybox:latest");
        let context = user.context(&format!("FROM {base}\n{steps}"));
        let (directory, tar) = (user.path("dir"), user.path("root.tar"));
        let mut command = user.command();
        command.arg("--context").arg(context).args(flags);
        command.arg("-o").arg(&directory);
        command.arg("-o").arg(format!("type=tar,dest={}", tar.display()));
        finish(&mut command).success();
        for path in ["", "x", "x/f", "x/g", "x/l", "bin/busybox"] {
            let found = fs::symlink_metadata(directory.join(path)).unwrap();
            assert_eq!((found.uid(), found.gid()), (user.uid, user.gid), "{path}");
        }
        let mut archive = tar::Archive::new(fs::File::open(tar).unwrap());
        let entry =
            archive.entries().unwrap().map(Result::unwrap).find(|entry| &*entry.path_bytes() == b"x/f");
        let header = entry.unwrap().header().clone();
        let facts = (header.uid().unwrap(), header.gid().unwrap(), header.mode().unwrap() & 0o7777);
        assert_eq!(facts, (12, 34, 0o4755));
    }
}
