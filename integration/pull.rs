//! `builder pull`: the image for a platform in the store; and the platform in parts, for builds as well.

use std::fs;

use builder::store::Store;

use crate::support::ground::{Ground, ground};
use crate::support::oci::LayoutImage;
use crate::support::{Builder, Context, Finished, scratch};

fn pull(ground: &Ground, builder: &Builder, flags: &[&str], name: &str) -> Finished {
    let name = ground.name(name);
    builder.run(["pull"].iter().copied().chain(flags.iter().copied()).chain([name.as_str()]))
}

fn digest_of(ground: &Ground, tag: &str, debian: &str) -> String {
    let bases = ground.bases();
    let is_it = |base: &&crate::support::ground::Base| {
        base.repository == "busybox" && base.tag == tag && base.debian == debian
    };
    bases.iter().find(is_it).expect("base").digest.clone()
}

#[test]
fn the_image_of_the_platform_is_taken_whatever_the_index_says() {
    let ground = ground();
    for (flags, flavour, debian) in [
        (&["--arch", "arm", "--variant", "v5"][..], "latest", "armel"),
        (&["--os", "linux", "--architecture", "arm", "--variant", "v7"], "configs", "armhf"),
        (&["--custom-platform", "linux/arm/v5"], "list", "armel"),
        (&["--platform", "linux/arm64"], "unlabelled", "arm64"),
        (&["--arch", "386"], "list", "i386"),
        (&["--arch", "x86_64", "--variant", "v3"], "latest", "amd64"),
        (&["--arch", "arm", "--variant", "v6"], "configs", "armel"),
    ] {
        let builder = Builder::new();
        let pulled = pull(&ground, &builder, flags, &format!("busybox:{flavour}")).success();
        let digest = digest_of(&ground, flavour, debian);
        assert_eq!(pulled.stdout, format!("{digest}\n"), "{flags:?} {flavour}");
        let store = Store::open(builder.store()).expect("store");
        let images = store.catalog().list().expect("catalog");
        let (name, image) = images.iter().next().expect("an image");
        assert_eq!(name.to_string(), ground.name(&format!("busybox:{flavour}")));
        assert_eq!(image.digest.to_string(), digest);
        let hex = digest.strip_prefix("sha256:").expect("sha256");
        let manifest = fs::read(builder.store().join("blobs/sha256").join(hex)).expect("manifest");
        let manifest: serde_json::Value = serde_json::from_slice(&manifest).expect("JSON");
        for blob in [&manifest["config"], &manifest["layers"][0]] {
            let blob: builder::image::descriptor::Descriptor =
                serde_json::from_value(blob.clone()).expect("blob");
            store.blobs().check(&blob).expect("all blobs are there");
        }
    }
}

#[test]
fn a_name_is_that_of_the_image_that_was_pulled_last() {
    let (ground, builder) = (ground(), Builder::new());
    for debian in ["armel", "armhf"] {
        let variant = if debian == "armel" { "v5" } else { "v7" };
        pull(&ground, &builder, &["--arch=arm", "--variant", variant], "busybox:latest").success();
        let images = Store::open(builder.store()).expect("store").catalog().list().expect("catalog");
        let image = images.into_values().next().expect("an image");
        assert_eq!(image.digest.to_string(), digest_of(&ground, "latest", debian));
        assert_eq!(image.platform.expect("platform").variant.as_deref(), Some(variant));
    }
}

#[test]
fn what_is_in_the_store_is_not_fetched_again() {
    let (ground, builder) = (ground(), Builder::new());
    let repository = "pull/again";
    ground.copy("busybox:latest", repository);
    pull(&ground, &builder, &["--arch=s390x"], &format!("{repository}:latest")).success();
    let mark = ground.mark();
    pull(&ground, &builder, &["--arch=s390x"], &format!("{repository}:latest")).success();
    let requests = ground.requests(&mark, repository);
    assert_eq!(requests.len(), 1, "{requests:?}");
    assert!(requests[0].path.ends_with("/manifests/latest"), "{requests:?}");
}

#[test]
fn a_platform_that_is_not_there_is_an_error() {
    let (ground, builder) = (ground(), Builder::new());
    let refused = pull(&ground, &builder, &["--arch=riscv64"], "busybox:latest").exited(1);
    assert!(refused.says(&["cannot pull", "linux/riscv64"]), "{}", refused.stderr);
    assert!(refused.says(&["linux/arm/v5", "linux/s390x"]), "{}", refused.stderr);
    let exact =
        pull(&ground, &builder, &["--arch=arm", "--variant=v6", "--platform-match=exact"], "busybox:latest");
    exact.exited(1);
    let single = pull(&ground, &builder, &["--arch=amd64"], "busybox:single-armhf").exited(1);
    assert!(single.says(&["linux/arm/v7"]), "{}", single.stderr);
    let missing = pull(&ground, &builder, &[], "busybox:nothing").exited(1);
    assert_eq!(missing.stdout, "");
    assert!(Store::open(builder.store()).expect("store").catalog().list().expect("catalog").is_empty());
}

#[test]
fn a_platform_is_given_as_one_or_in_parts() {
    let (ground, builder) = (ground(), Builder::new());
    let context = Context::new(&format!("FROM {}\nLABEL made=here\n", ground.name("busybox:latest")));
    let path = context.path().to_str().expect("path");
    let out = scratch();
    let layout = out.path().join("layout");
    builder.layout(&context, &layout, &["--os=linux", "--arch=arm", "--variant=v5"]).success();
    let image = LayoutImage::only(&layout);
    assert_eq!(
        (&image.raw_config["architecture"], &image.raw_config["variant"]),
        (&"arm".into(), &"v5".into())
    );
    let plan = builder.run(["plan", "--context", path, "--architecture", "s390x"]).success().json();
    assert_eq!(plan["image"]["architecture"], "s390x");
    for (flags, expected) in [
        (
            &["--os=linux", "--custom-platform=linux/arm"][..],
            "--os: --custom-platform linux/arm names the platform already",
        ),
        (
            &["--variant=v7", "--platform=linux/arm"],
            "--variant: --custom-platform linux/arm names the platform already",
        ),
        (&["--arch=linux/arm"], "--arch: `linux/arm` is no part of a platform"),
        (&["--os=linux,windows"], "--os: `linux,windows` is no part of a platform"),
        (&["--arch="], "--arch: `` is no part of a platform"),
        (&["--arch=a b"], "--arch: `linux/a b` is not a platform"),
        (&["--arch=armv7l", "--variant=v6"], "--arch --variant: `linux/armv7l/v6` is not a platform"),
    ] {
        let refused = builder.run(["plan", "--context", path].iter().chain(flags)).exited(1);
        assert!(refused.says(&["error", expected]), "{flags:?}: {}", refused.stderr);
    }
}
