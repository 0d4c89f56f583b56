//! The repository's own `Dockerfile`, built by `builder`: kaniko's paths and settings, and a program that runs there.
//!
//! The Rust base is a stand-in whose `cargo` hands out the program under test: what is tested is the image.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::emulation::{QEMU, can_have_handlers};
use crate::support::ground::ground;
use crate::support::oci::{LayoutImage, skopeo, with_unpacked};
use crate::support::pod::{self, Access, Pod, Profile};
use crate::support::tree::{self, Times};
use crate::support::{Builder, Context, finish, scratch};

/// Accepts exactly the call in the Dockerfile.
const CARGO: &str = "#!/bin/sh
set -eu
[ \"$*\" = 'build --release --locked --bin builder' ]
[ -e Cargo.toml ] && [ -e Cargo.lock ] && [ -e .cargo/config.toml ] && [ -e src/main.rs ]
[ ! -e target ] && [ ! -e .git ]
mkdir -p target/any/release
cp /opt/builder target/any/release/builder
";

/// Accepts exactly the calls in the Dockerfile. Of the emulators one is what it is called.
const APT_GET: &str = "#!/bin/sh
set -eu
case \"$*\" in
  update) ;;
  'install --yes --no-install-recommends qemu-user-static')
    mkdir -p /usr/bin
    for cpu in aarch64 i386 mips64el ppc64le riscv64 s390x x86_64; do echo none >/usr/bin/qemu-$cpu-static; done
    cp /opt/qemu-arm-static /usr/bin/
    ;;
  *) exit 1 ;;
esac
";

/// Builds the Dockerfile of this repository for each of these lists of flags; gives the layouts, in a directory.
fn own_images<const N: usize>(name: &str, flags: [&[&str]; N]) -> (TempDir, [PathBuf; N]) {
    let ground = ground();
    let builder = Builder::new();
    let rust = ground.name(&format!("rust-stand-in-{name}-{}:latest", std::process::id()));
    let context = Context::new(&format!(
        "FROM {}\nCOPY builder qemu-arm-static /opt/\nCOPY --chmod=755 cargo apt-get /bin/\n\
         COPY certificates /etc/ssl/certs/ca-certificates.crt\n",
        ground.name("busybox:latest"),
    ));
    fs::copy(env!("CARGO_BIN_EXE_builder"), context.path().join("builder")).expect("copy of the program");
    fs::copy(QEMU, context.path().join("qemu-arm-static")).expect("copy of qemu");
    context.write("cargo", CARGO);
    context.write("apt-get", APT_GET);
    context.write("certificates", "none\n");
    builder
        .run(["--context".as_ref(), context.path().as_os_str(), "--destination".as_ref(), rust.as_ref()])
        .success();

    let out = scratch();
    let mut number = 0;
    let layouts = flags.map(|flags| {
        number += 1;
        let layout = out.path().join(format!("layout-{number}"));
        let mut command = builder.command();
        command.args(["--context", env!("CARGO_MANIFEST_DIR"), "--no-push"]).args(flags);
        command.arg(format!("--build-arg=RUST={rust}")).arg("--oci-layout-path").arg(&layout);
        finish(&mut command).success();
        layout
    });
    (out, layouts)
}

/// The files of the image in a layout.
fn with_files(layout: &Path, look: impl FnOnce(&Path)) {
    // No tag is written into a layout unless there is a destination: umoci wants one.
    let tagged = scratch();
    let source = format!("oci:{}", layout.display());
    let target = format!("oci:{}:image", tagged.path().display());
    skopeo(&["copy", "--quiet", &source, &target]);
    with_unpacked(tagged.path(), "image", look);
}

#[test]
fn the_dockerfile_of_this_repository_gives_an_image_like_kanikos() {
    let (_out, [layout]) = own_images("plain", [&[]]);
    let image = LayoutImage::only(&layout);
    let config = &image.raw_config["config"];
    assert_eq!(config["Entrypoint"], serde_json::json!(["/kaniko/executor"]));
    assert_eq!(config["WorkingDir"], "/workspace");
    assert_eq!(config["Volumes"], serde_json::json!({"/var/lib/builder": {}}));
    let environment: Vec<&str> =
        config["Env"].as_array().expect("environment").iter().filter_map(|one| one.as_str()).collect();
    for variable in [
        "HOME=/root",
        "USER=root",
        "SSL_CERT_DIR=/kaniko/ssl/certs",
        "DOCKER_CONFIG=/kaniko/.docker/",
        "BUILDER_STORE=/var/lib/builder",
    ] {
        assert!(environment.contains(&variable), "{variable} in {environment:?}");
    }
    assert!(environment.contains(&"PATH=/usr/local/bin:/kaniko"), "{environment:?}");

    with_files(&layout, |root| {
        let text = tree::dump(root, Times::Hidden);
        let paths: Vec<&str> = text.lines().filter_map(|line| line.split(' ').next()).collect();
        for path in [
            "/kaniko/.docker",
            "/kaniko/executor",
            "/kaniko/ssl/certs/ca-certificates.crt",
            "/workspace",
            // Says whose image this is, and is not below the directory that others copy from it.
            "/.builder-image",
        ] {
            assert!(paths.contains(&path), "{path} in\n{text}");
        }
        for part in ["/bin", "/src", "/kaniko/qemu"] {
            assert!(!paths.iter().any(|path| path.starts_with(part)), "{text}");
        }
        assert!(text.contains("/kaniko directory 0777 0:0 - -\n"), "{text}");
        assert!(
            text.contains("/usr/local/bin/builder symlink 0777 0:0 16 - -> /kaniko/executor\n"),
            "{text}"
        );
        let mode = fs::metadata(root.join("kaniko/executor")).expect("program").permissions().mode();
        assert_eq!(mode & 0o7777, 0o755);
        let version =
            finish(Command::new("chroot").arg(root).args(["/kaniko/executor", "--version"])).success();
        assert!(version.stdout.contains(env!("CARGO_PKG_VERSION")), "{version:?}");
    });
}

#[test]
fn the_variant_cross_is_the_plain_image_with_emulators_that_steps_run_under() {
    let test = "the_variant_cross_is_the_plain_image_with_emulators_that_steps_run_under";
    if !can_have_handlers(test) || !pod::available(test) {
        return;
    }
    let (_out, [plain, cross]) = own_images("cross", [&[], &["--target=cross"]]);
    let [plain, of_cross] = [&plain, &cross].map(|layout| LayoutImage::only(layout));
    assert_eq!(plain.raw_config["config"], of_cross.raw_config["config"]);
    let (shared, own) = of_cross.manifest.layers().split_at(plain.manifest.layers().len());
    assert_eq!((shared, own.len()), (&plain.manifest.layers()[..], 1));

    let context = Context::new(&format!("FROM {}\nRUN uname -m\n", ground().name("busybox:latest")));
    with_files(&cross, |root| {
        let mut emulators: Vec<String> = fs::read_dir(root.join("kaniko/qemu"))
            .expect("emulators")
            .map(|entry| entry.expect("entry").file_name().into_string().expect("UTF-8"))
            .collect();
        emulators.sort();
        let cpus = ["aarch64", "arm", "i386", "mips64el", "ppc64le", "riscv64", "s390x", "x86_64"];
        assert_eq!(emulators, cpus.map(|cpu| format!("qemu-{cpu}-static")));
        // The container has no other qemu. The handlers of this machine know nothing of v5.
        let pod = Pod::new(Profile::Privileged)
            .mount(root.join("kaniko"), "/kaniko", Access::ReadOnly)
            .mount(context.path(), "/workspace", Access::ReadOnly);
        for (platform, machine) in [("linux/arm/v7", "armv7l"), ("linux/arm/v5", "armv5tel")] {
            let flag = format!("--custom-platform={platform}");
            let build = ["/kaniko/executor", "--no-push", "--context=/workspace", &flag];
            let finished = pod.run(&build).success();
            assert!(finished.says(&[&format!("| {machine}")]), "{platform}: {}", finished.stderr);
        }
        let report = pod.run(&["/kaniko/executor", "doctor", "--output=json"]).json();
        let platforms = report["platforms"].as_array().expect("platforms");
        let arm = platforms.iter().find(|platform| platform["platform"] == "linux/arm/v7").expect("arm");
        assert_eq!(arm["emulator"]["path"], "/kaniko/qemu/qemu-arm-static", "{arm}");
    });
}
