//! The test ground is what the other tests take it for, as skopeo, umoci and the kernel see it.

use std::fs;

use oci_spec::image::MediaType;
use serde_json::json;

use crate::support::ground::ground;
use crate::support::oci::{LayoutImage, pull, raw_config, raw_manifest};
use crate::support::pod::{self, Pod, Profile};
use crate::support::scratch;
use crate::support::tree::{self, Times};

#[test]
fn the_flavours_of_an_index_differ_in_where_they_keep_the_variant() {
    let ground = ground();
    // Flavour, variant of armel in the descriptor, in the config, type of the index.
    let oci = "application/vnd.oci.image.index.v1+json";
    let docker = "application/vnd.docker.distribution.manifest.list.v2+json";
    let cases = [
        ("latest", json!("v5"), json!("v5"), oci),
        ("unlabelled", json!(null), json!(null), oci),
        ("configs", json!(null), json!("v5"), oci),
        ("list", json!("v5"), json!("v5"), docker),
    ];
    for repository in ["busybox", "debian"] {
        for (tag, in_descriptor, in_config, media_type) in &cases {
            let index = raw_manifest(&ground.name(&format!("{repository}:{tag}")));
            assert_eq!(index["mediaType"], *media_type, "{repository}:{tag}");
            let bases = ground.bases();
            let armel = bases
                .iter()
                .find(|base| base.repository == repository && base.tag == *tag && base.debian == "armel")
                .expect("armel");
            let descriptors = index["manifests"].as_array().expect("manifests");
            let descriptor = descriptors
                .iter()
                .find(|entry| entry["digest"] == armel.digest.as_str())
                .expect("armel's descriptor");
            assert_eq!(descriptor["platform"]["architecture"], "arm");
            assert_eq!(descriptor["platform"]["variant"], *in_descriptor, "{repository}:{tag}");
            let config = raw_config(&ground.name(&format!("{repository}@{}", armel.digest)));
            assert_eq!(config["variant"], *in_config, "{repository}:{tag}");
        }
    }
}

#[test]
fn busybox_has_its_users_and_next_to_nothing_else() {
    let layout = scratch();
    pull(&ground().name("busybox:single-armhf"), layout.path());
    let image = LayoutImage::only(layout.path());
    assert_eq!(*image.descriptor.media_type(), MediaType::ImageManifest);
    assert_eq!(image.manifest.layers().len(), 1);
    assert_eq!(image.raw_config["variant"], "v7");
    let text = tree::of_layout(layout.path(), "image", Times::Shown);
    let links: Vec<&str> = text.lines().filter(|line| line.ends_with(" -> busybox")).collect();
    assert!(links.iter().any(|line| line.starts_with("/bin/sh symlink 0777 0:0 7 ")), "{text}");
    assert!(links.len() > 200, "{} links to busybox", links.len());
    let rest: Vec<&str> = text.lines().filter(|line| !line.ends_with(" -> busybox")).collect();
    let [root, bin, busybox, rest @ ..] = &rest[..] else { panic!("{text}") };
    assert_eq!(*root, "/ directory 0755 0:0 - 1700000000");
    assert_eq!(*bin, "/bin directory 0755 0:0 - 1700000000");
    assert!(
        busybox.starts_with("/bin/busybox file 0755 0:0 ") && busybox.ends_with(" 1700000000"),
        "{busybox}"
    );
    assert_eq!(
        rest,
        [
            "/etc directory 0755 0:0 - 1700000000",
            "/etc/group file 0644 0:0 40 1700000000",
            "/etc/passwd file 0644 0:0 67 1700000000",
            "/home directory 0755 0:0 - 1700000000",
            "/home/user directory 0755 1000:1001 - 1700000000",
            "/tmp directory 1777 0:0 - 1700000000",
        ]
    );
}

#[test]
fn requests_to_the_registry_can_be_counted() {
    let ground = ground();
    let repository = format!("counted-{}", std::process::id());
    let copy = ground.copy("busybox:single-i386", &repository);
    let mark = ground.mark();
    let layout = scratch();
    pull(&copy, layout.path());
    let requests = ground.requests_by("skopeo/", &mark, &repository);
    let blobs = requests.iter().filter(|request| request.fetches_blob()).count();
    assert_eq!(blobs, 2, "a layer and a config: {requests:#?}");
    assert!(requests.iter().all(|request| request.status == 200), "{requests:#?}");
    assert!(ground.requests_by("skopeo/", &ground.mark(), &repository).is_empty());
}

#[test]
fn a_tree_shows_what_an_archive_can_hold() {
    let scratch = scratch();
    let root = scratch.path().join("root");
    fs::create_dir_all(root.join("directory")).expect("directory");
    fs::write(root.join("directory/file"), "text").expect("file");
    fs::hard_link(root.join("directory/file"), root.join("directory/second name")).expect("hard link");
    std::os::unix::fs::symlink("../elsewhere", root.join("link")).expect("symlink");
    rustix::fs::lsetxattr(root.join("directory"), "user.a", b"b\x01", rustix::fs::XattrFlags::empty())
        .expect("xattr");
    let text = tree::dump(&root, Times::Hidden);
    let owner = {
        use std::os::unix::fs::MetadataExt;
        let metadata = fs::metadata(&root).expect("metadata");
        format!("{}:{}", metadata.uid(), metadata.gid())
    };
    assert_eq!(
        text,
        format!(
            "/ directory 0755 {owner} - -\n/directory directory 0755 {owner} - - user.a=b\\x01\n\
             /directory/file file 0644 {owner} 4 -\n/directory/second name file 0644 {owner} 4 - =/directory/file\n\
             /link symlink 0777 {owner} 12 - -> ../elsewhere\n"
        )
    );
}

/// What other tests leave out where there can be none: the ground has what it takes.
#[test]
fn there_can_be_pods() {
    assert!(pod::available("there_can_be_pods"), "run integration/ground/up");
    let status = |profile| {
        let read = ["grep", "-E", "^(CapBnd|Seccomp|NoNewPrivs):", "/proc/1/status"];
        Pod::new(profile).run(&read).success().stdout
    };
    let text =
        |new, bounding, filter| format!("CapBnd:\t{bounding}\nNoNewPrivs:\t{new}\nSeccomp:\t{filter}\n");
    assert_eq!(status(Profile::Unset), text(0, "00000000a80425fb", 0));
    assert_eq!(status(Profile::Default), text(0, "00000000a80425fb", 2));
    assert_eq!(status(Profile::Crio), text(0, "00000000000005fb", 2));
    assert_eq!(status(Profile::Restricted), text(1, "0000000000000000", 2));
}

#[test]
fn handlers_for_other_processors_have_the_flags_that_builds_need() {
    let native: &[&str] = match std::env::consts::ARCH {
        "x86_64" => &["x86_64", "i386"],
        "aarch64" => &["aarch64"],
        _ => &[],
    };
    for processor in ["arm", "aarch64", "ppc64le", "s390x"] {
        if native.contains(&processor) {
            continue;
        }
        let usable = ["", "-builder"].iter().any(|suffix| {
            let path = format!("/proc/sys/fs/binfmt_misc/qemu-{processor}{suffix}");
            let text = fs::read_to_string(path).unwrap_or_default();
            let flags = text.lines().find_map(|line| line.strip_prefix("flags: ")).unwrap_or_default();
            text.starts_with("enabled\n") && flags.contains('P') && flags.contains('F')
        });
        assert!(usable, "no handler with flags P and F for {processor}; run integration/ground/up");
    }
}
