//! Layers in every form: the same files, the same diff ids, and bytes that other programs read.

use std::fs;
use std::process::Command;

use builder::image::digest::Digest;

use crate::support::ground::ground;
use crate::support::oci::{LayoutImage, skopeo, uncompressed};
use crate::support::{Builder, Context, finish, scratch};

fn context() -> Context {
    let context = Context::new(&format!(
        "FROM {}\nCOPY file /f\nRUN seq 1 100000 >/numbers\n",
        ground().name("busybox:latest")
    ));
    context.write("file", "content ".repeat(100_000));
    context
}

#[test]
fn every_form_is_the_same_image_but_for_its_bytes() {
    let (context, builder, out) = (context(), Builder::new(), scratch());
    let build = |name: &str, flags: &[&str]| {
        let layout = out.path().join(name);
        let flags = [&["--build-arg=SOURCE_DATE_EPOCH=7"], flags].concat();
        let finished = builder.layout(&context, &layout, &flags).success();
        (LayoutImage::only(&layout), finished)
    };
    let (usual, finished) = build("usual", &[]);
    let base = usual.manifest.layers().len() - 2;
    for (name, flags, kind) in [
        ("one", &["--compression=gzip", "--compression-level=1"][..], "tar+gzip"),
        ("zero", &["--compression-level=0"], "tar+gzip"),
        ("zstd", &["--compression", "zstd"], "tar+zstd"),
        ("best", &["--compression=zstd", "--compression-level=19"], "tar+zstd"),
        ("plain", &["--compression=uncompressed"], ".tar"),
    ] {
        let (image, _) = build(name, flags);
        assert_eq!(image.raw_config, usual.raw_config, "{name}");
        for (layer, diff_id) in
            image.manifest.layers()[base..].iter().zip(&image.config.rootfs().diff_ids()[base..])
        {
            let media_type = layer.media_type().to_string();
            assert!(media_type.ends_with(kind), "{name} {media_type}");
            assert_eq!(layer.digest().to_string() == *diff_id, name == "plain");
            assert_eq!(*layer.annotations(), None, "{name}");
            let blob = out.path().join(name).join("blobs/sha256").join(layer.digest().digest());
            let archive = uncompressed(&fs::read(blob).expect("layer"));
            assert_eq!(Digest::of(&archive).to_string(), *diff_id, "{name}");
        }
        assert_eq!(image.manifest.layers()[..base], usual.manifest.layers()[..base], "{name}");
    }
    // What was converted is found again, and what was made is what it was.
    let again = build("again", &["-v", "debug"]).1;
    assert_eq!(again.stdout, finished.stdout);
    assert!(!again.says(&["converting"]), "{}", again.stderr);
    let once_more = build("once-more", &["-v", "debug", "--compression=zstd"]).1;
    assert!(!once_more.says(&["converting"]), "{}", once_more.stderr);
    let other = build("other", &["-v", "debug", "--compression=zstd", "--compression-level=5"]).1;
    assert!(other.says(&["converting", "to zstd-5"]), "{}", other.stderr);
}

#[test]
fn a_layer_is_written_in_its_form_at_once() {
    let (context, out) = (context(), scratch());
    let [layout, copied] = ["layout", "copied"].map(|name| out.path().join(name));
    let finished = Builder::new()
        .layout(&context, &layout, &["--compression=zstd", "-v", "debug", "-d", "x:latest"])
        .success();
    assert!(!finished.says(&["converting"]), "{}", finished.stderr);
    skopeo(&[
        "copy",
        "--quiet",
        "--dest-compress-format=gzip",
        &format!("oci:{}:latest", layout.display()),
        &format!("oci:{}:copied", copied.display()),
    ]);
    let [one, other] = [&layout, &copied].map(|layout| LayoutImage::only(layout));
    assert_eq!(one.config.rootfs().diff_ids(), other.config.rootfs().diff_ids());
}

#[test]
fn a_form_that_there_is_not_is_refused_before_anything_is_built() {
    let context = Context::new("FROM nowhere.invalid/base\n");
    for (flags, message) in [
        (&["--compression=foo"][..], "unsupported compression type foo"),
        (&["--compression=estargz"], "unsupported compression type estargz"),
        (&["--compression-level=10"], "invalid compression level `10`: gzip has the levels 0 to 9"),
        (&["--compression-level", "-2"], "invalid compression level `-2`"),
        (&["--compression=zstd", "--compression-level=23"], "zstd has the levels 0 to 22"),
    ] {
        let builder = Builder::new();
        let mut command = builder.command();
        command.args(["--no-push", "-c"]).arg(context.path()).args(flags);
        let finished = finish(&mut command).exited(1);
        assert!(finished.says(&[message]), "{}", finished.stderr);
    }
}

#[test]
fn a_damaged_layer_is_not_converted() {
    let (context, builder, out) = (context(), Builder::new(), scratch());
    let layout = out.path().join("layout");
    builder.layout(&context, &layout, &[]).success();
    let image = LayoutImage::only(&layout);
    let layer = image.manifest.layers().last().expect("layer");
    let blob = builder.store().join("blobs/sha256").join(layer.digest().digest());
    let mut bytes = fs::read(&blob).expect("blob");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    finish(Command::new("chmod").arg("u+w").arg(&blob)).success();
    fs::write(&blob, &bytes).expect("write");
    let flags = ["--compression=zstd"];
    let finished = builder.layout(&context, &out.path().join("other"), &flags).exited(1);
    assert!(finished.says(&["damaged"]), "{}", finished.stderr);
    assert!(!blob.exists());
    builder.layout(&context, &out.path().join("other"), &flags).success();
    let again = LayoutImage::only(&out.path().join("other"));
    assert_eq!(again.config.rootfs().diff_ids().len(), image.config.rootfs().diff_ids().len());
}
