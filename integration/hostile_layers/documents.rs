//! Images whose blobs, digests, configs, manifests or indexes try something, or are odd and meant well.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::archive::*;
use super::cases::{Expect, What, base};
use super::layout::*;

/// An image and what is to become of it.
pub(crate) struct DocumentCase {
    pub(crate) name: &'static str,
    pub(crate) image: Image,
    pub(crate) expect: Expect,
    /// More words of the command line.
    pub(crate) arguments: Vec<String>,
}

/// All cases.
pub(crate) fn all() -> Vec<DocumentCase> {
    let cases = [compression(), zstandard(), digests(), blobs(), manifests(), indexes(), names(), configs()];
    cases.into_iter().flatten().collect()
}

fn one_file() -> Vec<u8> {
    [file("f", b"x"), end()].concat()
}

/// The base and one more layer.
fn image(layer: Stored) -> Image {
    Image::of(vec![Stored::gzipped(&base()), layer])
}

fn usual() -> Image {
    image(Stored::gzipped(&one_file()))
}

fn refused(name: &'static str, message: &'static str, image: Image) -> DocumentCase {
    DocumentCase { name, image, expect: Expect::Refused(message), arguments: Vec::new() }
}

/// An image from which a file `f` with `x` in it comes out.
fn accepted(name: &'static str, image: Image) -> DocumentCase {
    let expect = Expect::Accepted(vec![(b"f".to_vec(), What::Content(b"x".to_vec()))]);
    DocumentCase { name, image, expect, arguments: Vec::new() }
}

fn with(case: DocumentCase, arguments: &[&str]) -> DocumentCase {
    DocumentCase { arguments: arguments.iter().map(|word| (*word).to_owned()).collect(), ..case }
}

fn stored(tar: &[u8], parts: &[&[u8]]) -> Image {
    image(Stored::of(tar, parts.concat()))
}

fn compression() -> Vec<DocumentCase> {
    let tar = one_file();
    let good = gzip(&tar);
    let changed = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        let at = if at == usize::MAX { bytes.len() - 8 } else { at };
        bytes[at] ^= byte;
        bytes
    };
    let split = [gzip(&tar[..600]), gzip(&tar[600..])].concat();
    let named = {
        let mut encoder = flate2::GzBuilder::new()
            .filename("layer.tar")
            .comment("c")
            .extra(vec![1; 300])
            .mtime(7)
            .write(Vec::new(), flate2::Compression::best());
        encoder.write_all(&tar).expect("gzip");
        encoder.finish().expect("gzip")
    };
    vec![
        accepted("gzip-trailing-zeros", stored(&tar, &[&good, &[0; 512]])),
        accepted("gzip-several-members", stored(&tar, &[&split])),
        accepted("gzip-member-of-nothing", stored(&tar, &[&gzip(b""), &good, &gzip(b"")])),
        accepted("gzip-with-a-name", stored(&tar, &[&named])),
        accepted("not-compressed-though-said", stored(&tar, &[&tar])),
        accepted("gzip-though-not-said", image(Stored::gzipped(&tar).said_to_be(LAYER))),
        accepted("gzip-though-said-to-be-zstd", image(Stored::gzipped(&tar).said_to_be(LAYER_ZSTD))),
        accepted(
            "docker-media-type",
            image(Stored::gzipped(&tar).said_to_be("application/vnd.docker.image.rootfs.diff.tar.gzip")),
        ),
        refused("gzip-trailing-garbage", "cannot read", stored(&tar, &[&good, b"JUNKJUNK"])),
        refused("gzip-trailing-magic", "cannot read", stored(&tar, &[&good, b"\x1f\x8b"])),
        refused("gzip-garbage-behind-zeros", "cannot read", stored(&tar, &[&good, &[0; 100], b"x"])),
        refused("gzip-crc-wrong", "cannot read", stored(&tar, &[&changed(usize::MAX, 1)])),
        refused("gzip-length-wrong", "cannot read", stored(&tar, &[&changed(good.len() - 1, 1)])),
        refused("gzip-truncated", "cannot read", stored(&tar, &[&good[..good.len() - 5]])),
        refused("gzip-nothing-but-a-head", "cannot read", stored(&tar, &[&good[..10]])),
        refused("gzip-reserved-flags", "cannot read", stored(&tar, &[&changed(3, 0xe0)])),
        refused("gzip-unknown-method", "cannot read", stored(&tar, &[&changed(2, 1)])),
        refused("gzip-in-gzip", "cannot unpack", stored(&good, &[&gzip(&good)])),
        refused("xz", "layers are gzip, zstd", stored(&tar, &[b"\xfd7zXZ\0\0\x04\xe6\xd6\xb4F", &[0; 100]])),
        refused("bzip2", "layers are gzip, zstd", stored(&tar, &[b"BZh91AY&SY", &[0; 100]])),
        refused(
            "no-archive-at-all",
            "checksum",
            stored(b"<html>login</html>", &[b"<html>login</html>", &[b'x'; 1000]]),
        ),
        DocumentCase {
            expect: Expect::Accepted(vec![(b"etc/keep".to_vec(), What::Content(b"keep".to_vec()))]),
            ..accepted("blob-of-nothing", stored(b"", &[b""]))
        },
    ]
}

fn zstandard() -> Vec<DocumentCase> {
    let tar = one_file();
    let good = zstd::encode_all(&tar[..], 3).expect("zstd");
    // A frame of one raw block without content size; the byte behind the descriptor is the window.
    let frame = |window: u8, content: &[u8]| {
        let block = ((content.len() as u32) << 3 | 1).to_le_bytes();
        [&b"\x28\xb5\x2f\xfd\x00"[..], &[window], &block[..3], content].concat()
    };
    let window = |log: u8| (log - 10) << 3;
    // A single segment of so many bytes (eight bytes of content size), which is the window as well.
    let single = |size: u64| [&b"\x28\xb5\x2f\xfd\xe0"[..], &size.to_le_bytes(), b"\x01\0\0"].concat();
    let sized =
        |size: u64| [&b"\x28\xb5\x2f\xfd\xc0"[..], &[window(20)], &size.to_le_bytes(), b"\x01\0\0"].concat();
    let zst = |name, parts: &[&[u8]]| {
        accepted(name, image(Stored::of(&tar, parts.concat()).said_to_be(LAYER_ZSTD)))
    };
    vec![
        zst("zstd", &[&good]),
        zst(
            "zstd-several-frames",
            &[
                &zstd::encode_all(&tar[..700], 3).expect("zstd"),
                &zstd::encode_all(&tar[700..], 3).expect("zstd"),
            ],
        ),
        zst("zstd-skippable-frames", &[b"\x50\x2a\x4d\x18\x03\0\0\0abc", &good, b"\x5f\x2a\x4d\x18\0\0\0\0"]),
        zst("zstd-window-27", &[&frame(window(27), &tar)]),
        accepted("zstd-though-said-to-be-gzip", stored(&tar, &[&good])),
        refused("zstd-window-31", "--limit zstd-window=N", stored(&tar, &[&frame(window(31), &tar)])),
        with(
            accepted("zstd-window-28-when-allowed", stored(&tar, &[&frame(window(28), &tar)])),
            &["--limit", "zstd-window=256MiB"],
        ),
        refused("zstd-window-28", "--limit zstd-window=N", stored(&tar, &[&frame(window(28), &tar)])),
        refused("zstd-content-size-2-to-60", "cannot", stored(&tar, &[&single(1 << 60)])),
        refused("zstd-content-size-that-lies", "the layer", stored(&tar, &[&sized(1 << 40)])),
        refused("zstd-trailing-garbage", "cannot", stored(&tar, &[&good, b"JUNK"])),
        refused("zstd-truncated", "cannot", stored(&tar, &[&good[..good.len() - 2]])),
        refused(
            "zstd-skippable-frame-cut",
            "cannot",
            stored(&tar, &[&good, b"\x50\x2a\x4d\x18\xff\xff\xff\xffabc"]),
        ),
    ]
}

fn digests() -> Vec<DocumentCase> {
    let layer_digest =
        |digest: &'static str| usual().manifest(move |m| m["layers"][1]["digest"] = digest.into());
    let size = |size: Value| usual().manifest(move |m| m["layers"][1]["size"] = size.clone());
    let off = |by: i64| {
        usual().manifest(move |m| {
            m["layers"][1]["size"] = (m["layers"][1]["size"].as_i64().expect("size") + by).into()
        })
    };
    let diff_ids = |edit: fn(&mut Vec<Value>)| {
        usual().config(move |c| edit(c["rootfs"]["diff_ids"].as_array_mut().expect("array")))
    };
    let tar = one_file();
    let zeros = format!("sha256:{}", "0".repeat(64));
    vec![
        refused(
            "digest-wrong",
            "cannot read",
            usual().then(|layout| {
                flip(layout, &sha256(&gzip(&one_file())));
            }),
        ),
        refused(
            "digest-algorithm-unknown",
            "is not a digest",
            layer_digest("md5:d41d8cd98f00b204e9800998ecf8427e"),
        ),
        refused(
            "digest-traversal",
            "is not a digest",
            layer_digest("sha256:../../../../../../../../etc/passwd"),
        ),
        refused(
            "digest-traversal-of-the-algorithm",
            "is not a digest",
            layer_digest("../../../../etc/passwd:00"),
        ),
        refused(
            "digest-of-63-digits",
            "is not a digest",
            layer_digest("sha256:123456789012345678901234567890123456789012345678901234567890123"),
        ),
        refused("digest-empty", "is not a digest", layer_digest("sha256:")),
        refused(
            "digest-without-an-algorithm",
            "is not a digest",
            layer_digest("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
        ),
        refused(
            "digest-of-capitals",
            "is not a digest",
            layer_digest("sha256:E3B0C44298FC1C149AFBF4C8996FB92427AE41E4649B934CA495991B7852B855"),
        ),
        refused(
            "digest-no-text",
            "is not valid at `layers[1].digest`",
            usual().manifest(|m| m["layers"][1]["digest"] = 7.into()),
        ),
        refused(
            "digest-absent",
            "missing field `digest`",
            usual().manifest(|m| drop(m["layers"][1].as_object_mut().expect("layer").remove("digest"))),
        ),
        refused(
            "config-digest-wrong",
            "cannot read blob",
            usual().then(|layout| flip(layout, &digest_in(layout, &["config"]))),
        ),
        refused(
            "manifest-digest-wrong",
            "cannot read blob",
            usual().then(|layout| flip(layout, &digest_in(layout, &[]))),
        ),
        refused("size-wrong-short", "bytes long, expected", off(-10)),
        refused("size-wrong-long", "bytes long, expected", off(10)),
        refused("size-zero", "bytes long, expected", size(0.into())),
        refused("size-negative", "is not valid at `layers[1].size`", size((-1).into())),
        refused("size-of-a-fraction", "is not valid at `layers[1].size`", size(1.5.into())),
        refused("size-as-text", "is not valid at `layers[1].size`", size("7".into())),
        refused("size-null", "is not valid at `layers[1].size`", size(Value::Null)),
        refused("size-of-64-bits", "out of range", size((1_u64 << 63).into())),
        refused(
            "size-absent",
            "missing field `size`",
            usual().manifest(|m| drop(m["layers"][1].as_object_mut().expect("layer").remove("size"))),
        ),
        refused(
            "size-of-the-manifest-wrong",
            "bytes long, expected",
            usual().index(|i| i["manifests"][0]["size"] = 5.into()),
        ),
        refused(
            "size-of-the-config-wrong",
            "bytes long, expected",
            usual().manifest(|m| m["config"]["size"] = 5.into()),
        ),
        refused(
            "diffid-wrong",
            "but the image's config says",
            usual().config(move |c| c["rootfs"]["diff_ids"][1] = zeros.clone().into()),
        ),
        refused("diffid-missing", "layers, its config has 1 diff ids", diff_ids(|ids| drop(ids.pop()))),
        refused(
            "diffid-surplus",
            "layers, its config has 3 diff ids",
            diff_ids(|ids| ids.push(ids[0].clone())),
        ),
        refused("diffid-swapped", "but the image's config says", diff_ids(|ids| ids.swap(0, 1))),
        refused(
            "diffid-of-the-blob",
            "but the image's config says",
            usual().config(|c| c["rootfs"]["diff_ids"][1] = sha256(&gzip(&one_file())).into()),
        ),
        refused("diffid-no-digest", "is not a digest", diff_ids(|ids| ids[1] = "sha256:00".into())),
        refused("diffid-null", "is not valid at `rootfs.diff_ids[1]`", diff_ids(|ids| ids[1] = Value::Null)),
        accepted(
            "digest-sha512",
            usual()
                .manifest(|m| {
                    m["layers"][1]["digest"] = sha512(&gzip(&one_file())).into();
                })
                .then(|layout| put(layout, &sha512(&gzip(&one_file())), &gzip(&one_file()))),
        ),
        refused(
            "digest-sha512-wrong",
            "cannot read",
            usual()
                .manifest(|m| {
                    m["layers"][1]["digest"] = sha512(b"other").into();
                })
                .then(|layout| put(layout, &sha512(b"other"), &gzip(&one_file()))),
        ),
        accepted("diffid-sha512", usual().config(move |c| c["rootfs"]["diff_ids"][1] = sha512(&tar).into())),
        accepted(
            "same-blob-twice",
            Image::of(vec![
                Stored::gzipped(&base()),
                Stored::gzipped(&one_file()),
                Stored::gzipped(&one_file()),
            ]),
        ),
        refused(
            "same-blob-with-two-sizes",
            "bytes long, expected",
            Image::of(vec![Stored::gzipped(&one_file()), Stored::gzipped(&one_file())])
                .manifest(|m| m["layers"][1]["size"] = 1.into()),
        ),
    ]
}

/// The digest at some place of the manifest; that of the manifest itself without one.
fn digest_in(layout: &Path, path: &[&str]) -> String {
    let index: Value =
        serde_json::from_slice(&fs::read(layout.join("index.json")).expect("index")).expect("index");
    let digest = index["manifests"][0]["digest"].as_str().expect("digest").to_owned();
    if path.is_empty() {
        return digest;
    }
    let manifest: Value =
        serde_json::from_slice(&fs::read(blob(layout, &digest)).expect("manifest")).expect("manifest");
    path.iter().fold(&manifest, |value, key| &value[key])["digest"].as_str().expect("digest").to_owned()
}

fn blob(layout: &Path, digest: &str) -> PathBuf {
    layout.join("blobs").join(digest.replace(':', "/"))
}

/// Changes a byte of a blob.
fn flip(layout: &Path, digest: &str) {
    let path = blob(layout, digest);
    let mut bytes = fs::read(&path).expect("blob");
    let at = bytes.len() - 2;
    bytes[at] ^= 1;
    fs::write(path, bytes).expect("blob");
}

fn blobs() -> Vec<DocumentCase> {
    let replaced = |name, by: fn(&Path)| {
        refused(
            name,
            "cannot read blob",
            usual().then(move |layout| {
                let path = blob(layout, &sha256(&gzip(&one_file())));
                fs::rename(&path, layout.join("elsewhere")).expect("rename");
                by(&path);
            }),
        )
    };
    vec![
        replaced("blob-missing", |_| ()),
        replaced("blob-is-a-directory", |path| fs::create_dir(path).expect("mkdir")),
        replaced("blob-is-a-symlink", |path| {
            std::os::unix::fs::symlink("../../elsewhere", path).expect("symlink")
        }),
        replaced("blob-is-a-device", |path| std::os::unix::fs::symlink("/dev/zero", path).expect("symlink")),
        replaced("blob-is-a-fifo", |path| {
            rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, 0o644.into(), 0)
                .expect("mkfifo");
        }),
        refused(
            "blobs-are-elsewhere",
            "cannot read blob",
            usual().then(|layout| {
                fs::rename(layout.join("blobs"), layout.join("real")).expect("rename");
                std::os::unix::fs::symlink("real", layout.join("blobs")).expect("symlink");
            }),
        ),
        refused(
            "layout-file-missing",
            "cannot read `oci-layout`",
            usual().then(|layout| fs::remove_file(layout.join("oci-layout")).expect("remove")),
        ),
        refused(
            "layout-version-2",
            "image layout version `2.0.0`",
            usual().then(|layout| {
                fs::write(layout.join("oci-layout"), r#"{"imageLayoutVersion":"2.0.0"}"#).expect("write");
            }),
        ),
        refused(
            "index-missing",
            "cannot read `index.json`",
            usual().then(|layout| fs::remove_file(layout.join("index.json")).expect("remove")),
        ),
        refused(
            "index-is-a-fifo",
            "cannot read `index.json`",
            usual().then(|layout| {
                let path = layout.join("index.json");
                fs::remove_file(&path).expect("remove");
                rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o644.into(), 0)
                    .expect("mkfifo");
            }),
        ),
        refused(
            "index-is-a-symlink",
            "cannot read `index.json`",
            usual().then(|layout| {
                fs::rename(layout.join("index.json"), layout.join("real")).expect("rename");
                std::os::unix::fs::symlink("real", layout.join("index.json")).expect("symlink");
            }),
        ),
        refused(
            "layout-is-empty",
            "is not an OCI layout",
            usual().then(|layout| {
                fs::remove_dir_all(layout).expect("remove");
                fs::create_dir(layout).expect("mkdir");
            }),
        ),
        refused(
            "layout-is-missing",
            "there is no directory",
            usual().then(|layout| fs::remove_dir_all(layout).expect("remove")),
        ),
    ]
}

fn insert(text: &[u8], more: &str) -> Vec<u8> {
    [b"{", more.as_bytes(), b",", &text[1..]].concat()
}

fn manifests() -> Vec<DocumentCase> {
    let edited = |edit: fn(&mut Value)| usual().manifest(edit);
    let text = |more: &'static str| usual().manifest_text(move |text| insert(&text, more));
    let layer_type =
        |kind: &'static str| usual().manifest(move |m| m["layers"][1]["mediaType"] = kind.into());
    let repeated = |times: usize| {
        usual().manifest(move |m| {
            let layer = m["layers"][1].clone();
            m["layers"] = vec![layer; times].into();
        })
    };
    let data = |layer: &str| {
        use base64::Engine as _;
        base64::engine::general_purpose::STANDARD.encode(layer)
    };
    let (right, wrong) = (data("{}"), data("[]"));
    vec![
        refused(
            "manifest-too-large",
            "--limit manifest-bytes=N",
            usual().manifest(|m| m["x"] = "x".repeat(5 << 20).into()),
        ),
        refused(
            "manifest-layers-and-manifests",
            "has both `layers` and `manifests`",
            edited(|m| m["manifests"] = json!([])),
        ),
        refused("manifest-keys-twice", "duplicate field `layers`", text(r#""layers":[]"#)),
        refused(
            "manifest-keys-in-another-case",
            "differs from `layers` in its case only",
            edited(|m| m["Layers"] = json!([])),
        ),
        refused("manifest-of-another-type", "media type is", edited(|m| m["mediaType"] = INDEX.into())),
        refused(
            "manifest-of-schema-1",
            "schema 1 manifests are not supported",
            edited(|m| m["fsLayers"] = json!([])),
        ),
        refused(
            "manifest-schema-version-1",
            "`schemaVersion` is 1",
            edited(|m| m["schemaVersion"] = 1.into()),
        ),
        refused(
            "manifest-without-schema-version",
            "`schemaVersion` is absent",
            edited(|m| drop(m.as_object_mut().expect("object").remove("schemaVersion"))),
        ),
        refused("manifest-no-json", "is not valid", usual().manifest_text(|_| b"<html>".to_vec())),
        refused("manifest-null", "is not valid", usual().manifest_text(|_| b"null".to_vec())),
        refused(
            "manifest-array",
            "is not valid",
            usual().manifest_text(|text| [b"[", &text[..], b"]"].concat()),
        ),
        refused(
            "manifest-with-a-bom",
            "is not valid",
            usual().manifest_text(|text| [b"\xef\xbb\xbf", &text[..]].concat()),
        ),
        refused(
            "manifest-trailing-bytes",
            "is not valid",
            usual().manifest_text(|text| [&text[..], b"}"].concat()),
        ),
        refused(
            "manifest-not-utf8",
            "is not valid",
            usual().manifest_text(|text| [b"{\"\xff\":1,", &text[1..]].concat()),
        ),
        refused(
            "manifest-nested-100k",
            "is not valid",
            usual().manifest_text(|text| {
                insert(&text, &format!("\"x\":{}{}", "[".repeat(100_000), "]".repeat(100_000)))
            }),
        ),
        refused(
            "manifest-cut",
            "is not valid",
            usual().manifest_text(|text| text[..text.len() - 1].to_vec()),
        ),
        refused(
            "manifest-config-of-an-artifact",
            "not an image",
            edited(|m| m["config"]["mediaType"] = "application/vnd.cncf.helm.config.v1+json".into()),
        ),
        refused(
            "manifest-config-of-nothing",
            "the config is empty",
            edited(|m| m["config"]["size"] = 0.into()),
        ),
        refused(
            "manifest-without-a-config",
            "missing field `config`",
            edited(|m| drop(m.as_object_mut().expect("object").remove("config"))),
        ),
        refused("manifest-10001-layers", "more than the limit of 10000", repeated(10_001)),
        refused(
            "layer-encrypted",
            "encrypted layers are not supported",
            layer_type("application/vnd.oci.image.layer.v1.tar+gzip+encrypted"),
        ),
        refused(
            "layer-of-a-chart",
            "not an image",
            layer_type("application/vnd.cncf.helm.chart.content.v1.tar+gzip"),
        ),
        refused(
            "layer-type-absent",
            "missing field `mediaType`",
            edited(|m| drop(m["layers"][1].as_object_mut().expect("layer").remove("mediaType"))),
        ),
        refused("layer-type-with-control-bytes", "not an image", layer_type("a\n\u{1b}[31mb")),
        accepted(
            "layer-foreign-but-there",
            usual().manifest(|m| {
                m["layers"][1]["mediaType"] =
                    "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip".into();
                m["layers"][1]["urls"] = json!(["http://169.254.169.254/layer"]);
            }),
        ),
        refused(
            "layer-foreign-and-missing",
            "cannot read blob",
            usual().manifest(|m| {
                m["layers"][1]["mediaType"] =
                    "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip".into();
                m["layers"][1]["digest"] = sha256(b"elsewhere").into();
                m["layers"][1]["urls"] = json!(["http://127.0.0.1:1/layer"]);
            }),
        ),
        refused(
            "data-wrong",
            "inline data differs",
            usual().manifest(move |m| m["config"]["data"] = wrong.clone().into()),
        ),
        refused(
            "data-of-another-size",
            "inline data differs",
            usual().manifest(move |m| m["config"]["data"] = right.clone().into()),
        ),
        refused("data-no-base64", "is not base64", edited(|m| m["config"]["data"] = "***".into())),
        DocumentCase {
            expect: Expect::Accepted(vec![(b"f".to_vec(), What::Nothing)]),
            ..accepted("no-layers", Image::of(Vec::new()))
        },
        DocumentCase {
            expect: Expect::Accepted(vec![(b"f".to_vec(), What::Nothing)]),
            ..accepted("layers-null", Image::of(Vec::new()).manifest(|m| m["layers"] = Value::Null))
        },
        accepted(
            "two-hundred-layers",
            Image::of(
                (0..200)
                    .map(|n| {
                        Stored::gzipped(
                            &[
                                file(format!("own-{n}"), b""),
                                file("f", if n == 199 { b"x" } else { b"y" }),
                                end(),
                            ]
                            .concat(),
                        )
                    })
                    .collect(),
            ),
        ),
        accepted(
            "manifest-with-more",
            edited(|m| {
                m["subject"] = m["config"].clone();
                m["artifactType"] = "x/y".into();
                m["annotations"] = json!({"a\nb": "\u{1b}[31m"});
                m["unknown"] = json!({"deep": [1, {"x": null}]});
            }),
        ),
        accepted(
            "manifest-without-a-type",
            edited(|m| drop(m.as_object_mut().expect("object").remove("mediaType"))),
        ),
    ]
}

/// Replaces the entries of `index.json` by an index, `depth` times, whose innermost one has them.
fn nested(depth: usize) -> Image {
    usual().then(move |layout| {
        let mut document: Value =
            serde_json::from_slice(&fs::read(layout.join("index.json")).expect("index")).expect("index");
        for _ in 0..depth {
            let bytes = serde_json::to_vec(&document).expect("index");
            put(layout, &sha256(&bytes), &bytes);
            document =
                json!({"schemaVersion": 2, "manifests": [descriptor(INDEX, &sha256(&bytes), bytes.len())]});
        }
        fs::write(layout.join("index.json"), serde_json::to_vec(&document).expect("index")).expect("index");
    })
}

/// Puts more entries in front of the image's own one.
fn before(entries: impl Fn(&Value) -> Vec<Value> + 'static) -> Image {
    usual().index(move |index| {
        let own = index["manifests"][0].clone();
        let mut all = entries(&own);
        all.push(own);
        index["manifests"] = all.into();
    })
}

fn indexes() -> Vec<DocumentCase> {
    let edited = |edit: fn(&mut Value)| usual().index(edit);
    let other_platform = |own: &Value, platform: Value| {
        let mut other = own.clone();
        other["platform"] = platform;
        other["digest"] = sha256(b"missing").into();
        other
    };
    vec![
        accepted("index-nested-1", nested(1)),
        accepted("index-nested-2", nested(2)),
        refused("index-nested-3", "--limit index-nesting=N", nested(3)),
        with(accepted("index-nested-3-when-allowed", nested(3)), &["--limit=index-nesting=3"]),
        refused("index-too-large", "--limit index-bytes=N", edited(|i| i["x"] = "x".repeat(5 << 20).into())),
        refused(
            "index-of-10001",
            "more than the limit of 10000",
            edited(|i| i["manifests"] = vec![i["manifests"][0].clone(); 10_001].into()),
        ),
        refused("index-empty", "the layout has no image", edited(|i| i["manifests"] = json!([]))),
        refused("index-null", "the layout has no image", edited(|i| i["manifests"] = Value::Null)),
        refused(
            "index-is-a-manifest",
            "media type is",
            usual().then(|layout| {
                let manifest = fs::read(blob(layout, &digest_in(layout, &[]))).expect("manifest");
                fs::write(layout.join("index.json"), manifest).expect("index");
            }),
        ),
        refused(
            "index-with-layers",
            "expected an index",
            edited(|i| {
                i["layers"] = json!([]);
                drop(i.as_object_mut().expect("object").remove("manifests"));
            }),
        ),
        refused("index-with-both", "has both `layers` and `manifests`", edited(|i| i["layers"] = json!([]))),
        refused("index-schema-version-1", "`schemaVersion` is 1", edited(|i| i["schemaVersion"] = 1.into())),
        refused("index-no-json", "is not valid", usual().index_text(|_| b"{".to_vec())),
        refused(
            "index-entry-is-a-config",
            "is not the type of an image",
            edited(|i| i["manifests"][0]["mediaType"] = CONFIG.into()),
        ),
        refused(
            "index-entry-says-index",
            "media type is",
            edited(|i| i["manifests"][0]["mediaType"] = INDEX.into()),
        ),
        refused(
            "index-digest-traversal",
            "is not a digest",
            edited(|i| i["manifests"][0]["digest"] = "sha256:../../etc/passwd".into()),
        ),
        refused(
            "index-without-our-platform",
            "there is no image for `linux/",
            before(|_| Vec::new()).index(move |i| {
                let own = i["manifests"][0].clone();
                i["manifests"] = json!([
                    other_platform(&own, json!({"os": "linux", "architecture": "s390x"})),
                    other_platform(&own, json!({"os": "windows", "architecture": "amd64"})),
                ]);
                i["manifests"][1]["digest"] = sha256(b"another").into();
            }),
        ),
        accepted(
            "index-of-two-platforms",
            before(move |own| vec![other_platform(own, json!({"os": "linux", "architecture": "s390x"}))]),
        ),
        accepted(
            "index-with-attestations",
            before(move |own| {
                let mut attestation =
                    other_platform(own, json!({"os": "unknown", "architecture": "unknown"}));
                attestation["annotations"] = json!({"vnd.docker.reference.type": "attestation-manifest"});
                vec![attestation]
            }),
        ),
        accepted(
            "index-with-unknown-types",
            before(|own| {
                let mut unknown = own.clone();
                unknown["mediaType"] = "application/x-unknown".into();
                unknown["digest"] = sha256(b"missing").into();
                vec![unknown]
            }),
        ),
        accepted(
            "index-entry-without-platform",
            edited(|i| drop(i["manifests"][0].as_object_mut().expect("entry").remove("platform"))),
        ),
        accepted(
            "index-entry-of-another-platform",
            edited(|i| i["manifests"][0]["platform"] = json!({"os": "linux", "architecture": "s390x"})),
        ),
        accepted("index-entry-twice", before(|own| vec![own.clone()])),
        with(
            refused("platform-that-is-not-there", "not `linux/s390x`", usual()),
            &["--platform=linux/s390x"],
        ),
        with(refused("platform-that-is-none", "is not a platform", usual()), &["--custom-platform=linux/"]),
    ]
}

fn names() -> Vec<DocumentCase> {
    let two = || {
        before(|own| {
            let mut other = own.clone();
            other["digest"] = sha256(b"missing").into();
            other["annotations"] = json!({"org.opencontainers.image.ref.name": "o\n\u{1b}[31m"});
            vec![other]
        })
    };
    vec![
        refused("name-not-given", "images of several names: `o\\n\\u{1b}[31m`, `t`", two()),
        with(accepted("name-given", two()), &["--ref", "t"]),
        with(refused("name-of-nothing", "no image of the layout is named `../x`", two()), &["--ref", "../x"]),
    ]
}

fn configs() -> Vec<DocumentCase> {
    let edited = |edit: fn(&mut Value)| usual().config(edit);
    let run = |key: &'static str, value: Value| usual().config(move |c| c["config"][key] = value.clone());
    vec![
        refused("config-no-json", "is not valid", usual().config_text(|_| b"hello".to_vec())),
        refused("config-array", "is not valid", usual().config_text(|_| b"[]".to_vec())),
        refused("config-null", "is not valid", usual().config_text(|_| b"null".to_vec())),
        refused(
            "config-nested-100k",
            "is not valid",
            usual().config_text(|text| {
                insert(&text, &format!("\"x\":{}{}", "[".repeat(100_000), "]".repeat(100_000)))
            }),
        ),
        refused(
            "config-too-large",
            "--limit config-bytes=N",
            edited(|c| c["x"] = "x".repeat(9 << 20).into()),
        ),
        with(
            accepted("config-large-when-allowed", edited(|c| c["x"] = "x".repeat(9 << 20).into())),
            &["--limit", "config-bytes=10MiB"],
        ),
        refused(
            "config-without-rootfs",
            "config has no `rootfs`",
            edited(|c| drop(c.as_object_mut().expect("object").remove("rootfs"))),
        ),
        refused("config-rootfs-null", "config has no `rootfs`", edited(|c| c["rootfs"] = Value::Null)),
        refused(
            "config-of-another-kind",
            "`rootfs.type` of the config is `disk`",
            edited(|c| c["rootfs"]["type"] = "disk".into()),
        ),
        refused(
            "config-rootfs-twice",
            "duplicate field `rootfs`",
            usual().config_text(|text| insert(&text, r#""rootfs":{"type":"layers","diff_ids":[]}"#)),
        ),
        refused(
            "config-million-variables",
            " values (an object counts for 16, a key for 15), more than the limit of 600000",
            run("Env", vec![Value::from("A=b"); 1_000_000].into()),
        ),
        refused(
            "config-many-variables",
            "environment variables, more than the limit",
            run("Env", vec![Value::from("A=b"); 100_000].into()),
        ),
        refused(
            "config-entrypoint-of-text",
            "is not valid at `config.Entrypoint`",
            run("Entrypoint", "/bin/sh".into()),
        ),
        refused("config-of-windows", "the image is for windows", edited(|c| c["os"] = "windows".into())),
        accepted(
            "config-odd-variables",
            run("Env", json!(["A", "=x", "*", "A=\n", "AWS_SECRET_ACCESS_KEY"])),
        ),
        accepted("config-odd-user", run("User", "nobody:nogroup:x\u{0}".into())),
        accepted("config-user-of-33-bits", run("User", "4294967296".into())),
        accepted("config-climbing-directory", run("WorkingDir", "../../../../proc/self/fd/3".into())),
        accepted(
            "config-odd-fields",
            edited(|c| {
                c["config"]["ExposedPorts"] = json!({"x": {}});
                c["config"]["Volumes"] = json!({"../": {}});
                c["config"]["StopSignal"] = "SIGFOO".into();
                c["config"]["OnBuild"] = json!(["FROM scratch", "ONBUILD RUN x", "RUN rm -rf /"]);
                c["config"]["Cmd"] = Value::Null;
                c["config"]["Labels"] = json!({"a": null});
            }),
        ),
        accepted(
            "config-odd-times",
            edited(|c| {
                c["created"] = "now".into();
                c["history"] = json!([{"created": "-1", "empty_layer": null}]);
            }),
        ),
        accepted(
            "config-history-of-many",
            edited(|c| c["history"] = vec![json!({"created_by": "x"}); 1000].into()),
        ),
        accepted(
            "config-history-absent",
            edited(|c| drop(c.as_object_mut().expect("object").remove("history"))),
        ),
        accepted("config-of-another-machine", edited(|c| c["architecture"] = "s390x".into())),
        accepted(
            "config-of-no-machine",
            edited(|c| {
                c["architecture"] = "".into();
                c["os"] = Value::Null;
            }),
        ),
    ]
}
