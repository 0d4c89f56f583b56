//! The repository's own `Dockerfile`, built by `builder`: kaniko's paths and settings, and a program that runs there.
//!
//! The Rust base is a stand-in whose `cargo` hands out the program under test: what is tested is the image.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::support::ground::ground;
use crate::support::oci::{LayoutImage, with_unpacked};
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

#[test]
fn the_dockerfile_of_this_repository_gives_an_image_like_kanikos() {
    let ground = ground();
    let builder = Builder::new();
    let rust = ground.name(&format!("rust-stand-in-{}:latest", std::process::id()));
    let context = Context::new(&format!(
        "FROM {}\nCOPY builder /opt/builder\nCOPY --chmod=755 cargo /bin/cargo\nCOPY certificates /etc/ssl/certs/ca-certificates.crt\n",
        ground.name("busybox:latest"),
    ));
    fs::copy(env!("CARGO_BIN_EXE_builder"), context.path().join("builder")).expect("copy of the program");
    context.write("cargo", CARGO);
    context.write("certificates", "none\n");
    builder
        .run(["--context".as_ref(), context.path().as_os_str(), "--destination".as_ref(), rust.as_ref()])
        .success();

    let out = scratch();
    let layout = out.path().join("layout");
    builder
        .run([
            "--context".as_ref(),
            env!("CARGO_MANIFEST_DIR").as_ref(),
            "--build-arg".as_ref(),
            format!("RUST={rust}").as_ref(),
            "--no-push".as_ref(),
            "--oci-layout-path".as_ref(),
            layout.as_os_str(),
        ])
        .success();

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

    // No tag is written into a layout unless there is a destination: umoci wants one.
    let tagged = scratch();
    let source = format!("oci:{}", layout.display());
    let target = format!("oci:{}:image", tagged.path().display());
    finish(Command::new("skopeo").args(["--insecure-policy", "copy", "--quiet", &source, &target])).success();
    with_unpacked(tagged.path(), "image", |root| {
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
        assert!(!paths.iter().any(|path| path.starts_with("/bin") || path.starts_with("/src")), "{text}");
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
