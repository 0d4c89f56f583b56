//! The cases of testdata/dockerfile/cases.json about images as they are written, by their `attrs` as keys of `--output`.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::dockerfile_cases::{cases, pairs, write_files};
use crate::support::ground::ground;
use crate::support::oci::{Entry, LayoutImage};
use crate::support::{Builder, Context, Finished, finish, scratch};

/// What a case wrote.
struct Written {
    image: LayoutImage,
    entries: Vec<Vec<Entry>>,
}

impl Written {
    fn read(layout: &Path) -> Self {
        let image = LayoutImage::only(layout);
        let entries = image.layer_entries(layout);
        Self { image, entries }
    }

    fn history(&self) -> &[Value] {
        self.image.raw_config["history"].as_array().map_or(&[], Vec::as_slice)
    }

    fn layer_types(&self) -> Vec<String> {
        self.image.manifest.layers().iter().map(|layer| layer.media_type().to_string()).collect()
    }

    /// Paths of a layer.
    fn paths(&self, layer: usize) -> Vec<&str> {
        self.entries[layer].iter().map(|entry| entry.path.as_str()).collect()
    }
}

fn run(builder: &Builder, snapshotter: &str, case: &Value, layout: &Path) -> Finished {
    let registry = ground().registry;
    let text = case["dockerfile"].as_str().unwrap();
    let text = format!("\n{text}").replace("\nFROM bb", &format!("\nFROM {registry}/busybox:latest"));
    let context = Context::new(&text[1..]);
    write_files(&context, case);
    let attrs = case["attrs"].as_str().unwrap_or_default();
    let mut command = builder.command();
    command.arg("--context").arg(context.path()).arg(format!("--snapshotter={snapshotter}"));
    command.arg(format!("--output=type=oci,tar=false,dest={}{attrs}", layout.display()));
    for (name, value) in pairs(&case["args"]) {
        command.arg(format!("--build-arg={name}={value}"));
    }
    if let Some(platform) = case["platform"].as_str() {
        command.arg(format!("--platform={platform}"));
    }
    finish(&mut command)
}

/// Whether what was written is what `expect` says, in words, of the case `id`.
fn judge(id: u64, written: &Written) {
    let Written { image, .. } = written;
    let platform = image.descriptor.platform().as_ref().expect("a platform");
    match id {
        289 => {
            assert_eq!([written.paths(0), written.paths(1)], [["f"], ["w/"]]);
            let empty: Vec<bool> = written.history().iter().map(|row| row["empty_layer"] == true).collect();
            assert_eq!(empty, [false, true, false, true]);
            let is_told =
                |row: &Value| row["comment"] == "buildkit.dockerfile.v0" && row["created"].is_string();
            assert!(written.history().iter().all(is_told));
        }
        290 => {
            let manifest = image.descriptor.media_type().to_string();
            assert_eq!(manifest, "application/vnd.oci.image.manifest.v1+json");
            let config = image.manifest.config().media_type().to_string();
            assert_eq!(config, "application/vnd.oci.image.config.v1+json");
            assert_eq!(written.layer_types(), ["application/vnd.oci.image.layer.v1.tar+gzip"]);
            assert_eq!(platform.os().to_string(), "linux");
        }
        292 => assert_eq!(written.layer_types(), ["application/vnd.oci.image.layer.v1.tar+zstd"]),
        293 => {
            assert_eq!(written.layer_types(), ["application/vnd.oci.image.layer.v1.tar"]);
            let digest = image.manifest.layers()[0].digest().to_string();
            assert_eq!(image.raw_config["rootfs"]["diff_ids"][0], digest);
        }
        296 => {
            assert_eq!(image.raw_config["variant"], "v7");
            assert_eq!(platform.variant().as_deref(), Some("v7"));
        }
        298 => assert_eq!(image.annotation("k"), Some("v")),
        301 => {
            assert_eq!(image.raw_config["created"], "1970-01-01T00:01:40Z");
            assert!(written.history().iter().all(|row| row["created"] == "1970-01-01T00:01:40Z"));
            assert!(written.entries[0][0].mtime > 1_000_000_000);
        }
        302 => {
            assert_eq!(written.entries[0][0].mtime, 1_500_000_000);
            assert!(written.entries[1].iter().any(|entry| entry.mtime == 1_000_000_000));
            for layer in image.manifest.layers() {
                let annotations = layer.annotations().as_ref().expect("annotations");
                assert_eq!(annotations["buildkit/rewritten-timestamp"], "1500000000");
            }
        }
        304 => {
            let last = written.entries.last().expect("a layer");
            let shown: Vec<_> =
                last.iter().map(|entry| (entry.path.as_str(), entry.mode, entry.size)).collect();
            // Behind it, the mount points of the first RUN that the base does not have.
            let shown = &shown[..2];
            assert_eq!(shown, [("d/", 0o755, 0), ("d/.wh.a", 0, 0)]);
        }
        305 => assert_eq!([written.entries[0].len(), written.entries[1].len()], [1, 0]),
        307 => {
            assert_eq!(written.paths(0), ["a/", "a/b/", "a/b/f"]);
            assert!(written.entries[0].iter().all(|entry| entry.names == [String::new(), String::new()]));
        }
        308 => {
            let annotations = image.descriptor.annotations().clone().expect("annotations");
            assert_eq!(annotations["io.containerd.image.name"], "docker.io/library/x:1");
            assert_eq!(annotations["org.opencontainers.image.ref.name"], "1");
        }
        other => panic!("nobody has said what case {other} is to be"),
    }
}

/// Of case 295: one index, with two images.
fn judge_index(layout: &Path) {
    let read =
        |path: &Path| -> Value { serde_json::from_slice(&fs::read(path).expect("file")).expect("JSON") };
    let top = read(&layout.join("index.json"));
    let [entry] = &top["manifests"].as_array().expect("manifests")[..] else { panic!("{top}") };
    let digest = entry["digest"].as_str().expect("a digest").replace(':', "/");
    let index = read(&layout.join("blobs").join(digest));
    let platforms: Vec<&Value> =
        index["manifests"].as_array().expect("manifests").iter().map(|entry| &entry["platform"]).collect();
    let expected = ["amd64", "arm64"].map(|name| json!({"architecture": name, "os": "linux"}));
    assert_eq!(platforms, expected.iter().collect::<Vec<_>>());
}

#[test]
fn images_are_written_as_buildkit_writes_them() {
    let builders = ["overlayfs", "native"].map(|snapshotter| (snapshotter, Builder::new()));
    let mut ran = 0;
    for case in cases("O") {
        let id = case["id"].as_u64().expect("a number");
        ran += 1;
        for (snapshotter, builder) in &builders {
            let out = scratch();
            let layout = out.path().join("layout");
            let finished = run(builder, snapshotter, &case, &layout);
            match case["err"].as_str() {
                Some(error) => {
                    let finished = finished.exited(1);
                    assert!(finished.says(&["error: ", error]), "{}", finished.stderr);
                    assert_eq!(fs::read_dir(out.path()).expect("a directory").count(), 0);
                }
                None if id == 295 => {
                    finished.success();
                    judge_index(&layout);
                }
                None => {
                    finished.success();
                    eprintln!("case {id} with {snapshotter}");
                    judge(id, &Written::read(&layout));
                }
            }
        }
    }
    assert_eq!(ran, 14, "cases that nobody looks at");
}
