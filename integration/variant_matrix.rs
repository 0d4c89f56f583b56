//! The requests for a platform that other builders answer differently, each on an index that can show it, in all four
//! flavours of an index, in a real registry.

use std::io::{Read, Write};
use std::net::TcpStream;

use builder::image::descriptor::media_type;
use builder::image::digest::Digest;
use serde_json::{Value, json};

use crate::support::ground::ground;
use crate::support::steps::build;
use crate::support::{Builder, Context, finish};

/// The registry's answer: what is put there is nothing that skopeo or builder would write.
fn ask(method: &str, path: &str, kind: &str, body: &[u8]) -> String {
    let registry = ground().registry;
    let mut connection = TcpStream::connect(&registry).expect("registry");
    let length = body.len();
    write!(
        connection,
        "{method} {path} HTTP/1.0\r\nHost: {registry}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n"
    )
    .expect("ask the registry");
    connection.write_all(body).expect("ask the registry");
    let mut answer = String::new();
    connection.read_to_string(&mut answer).expect("the registry's answer");
    assert!(
        answer.split(' ').nth(1).is_some_and(|status| status.starts_with('2')),
        "{method} {path}: {answer}"
    );
    answer
}

/// Where variants are kept, and of whose types all is.
struct Flavour {
    name: &'static str,
    in_descriptor: bool,
    in_config: bool,
    /// Of the index, a manifest, a config.
    kinds: [&'static str; 3],
}

const OCI: [&str; 3] = [media_type::OCI_INDEX, media_type::OCI_MANIFEST, media_type::OCI_CONFIG];
const DOCKER: [&str; 3] = [media_type::DOCKER_LIST, media_type::DOCKER_MANIFEST, media_type::DOCKER_CONFIG];

const FLAVOURS: [Flavour; 4] = [
    Flavour { name: "latest", in_descriptor: true, in_config: true, kinds: OCI },
    Flavour { name: "list", in_descriptor: true, in_config: true, kinds: DOCKER },
    Flavour { name: "configs", in_descriptor: false, in_config: true, kinds: OCI },
    Flavour { name: "unlabelled", in_descriptor: false, in_config: false, kinds: OCI },
];

const REPOSITORY: &str = "variant-matrix";

impl Flavour {
    fn put_manifest(&self, name: &str, kind: &str, value: &Value) -> Value {
        let bytes = value.to_string();
        ask("PUT", &format!("/v2/{REPOSITORY}/manifests/{name}"), kind, bytes.as_bytes());
        json!({"mediaType": kind, "size": bytes.len(), "digest": Digest::of(bytes.as_bytes()).to_string()})
    }

    /// An image without layers, whose label is its platform as it is written in the table. Its descriptor.
    fn child(&self, platform: &str) -> Value {
        let [_, manifest, config] = self.kinds;
        let (words, version) = match platform.split_once(':') {
            Some((words, version)) => (words, Some(version)),
            None => (platform, None),
        };
        let words: Vec<&str> = words.split('/').collect();
        let fields = |with_variant: bool| {
            let mut fields = json!({"os": words[0], "architecture": words[1]});
            if let (Some(variant), true) = (words.get(2), with_variant) {
                fields["variant"] = json!(variant);
            }
            if let Some(version) = version {
                fields["os.version"] = json!(version);
            }
            fields
        };
        let mut value = fields(self.in_config);
        value["config"] = json!({"Labels": {"made": platform}});
        value["rootfs"] = json!({"type": "layers", "diff_ids": []});
        let bytes = value.to_string();
        let digest = Digest::of(bytes.as_bytes()).to_string();
        let started = ask("POST", &format!("/v2/{REPOSITORY}/blobs/uploads/"), "", b"");
        let upload = started.lines().find_map(|line| line.strip_prefix("Location: ")).expect("a location");
        let upload = upload.trim().split_once("/v2/").expect("a path").1;
        let sign = if upload.contains('?') { '&' } else { '?' };
        ask(
            "PUT",
            &format!("/v2/{upload}{sign}digest={digest}"),
            "application/octet-stream",
            bytes.as_bytes(),
        );
        let config = json!({"mediaType": config, "size": bytes.len(), "digest": digest});
        let value = json!({"schemaVersion": 2, "mediaType": manifest, "config": config, "layers": []});
        let mut descriptor =
            self.put_manifest(&Digest::of(value.to_string().as_bytes()).to_string(), manifest, &value);
        descriptor["platform"] = fields(self.in_descriptor);
        descriptor
    }

    /// The name of an index of these.
    fn index(&self, children: &str) -> String {
        let children: Vec<Value> = children.split(' ').map(|platform| self.child(platform)).collect();
        let kind = self.kinds[0];
        let value = json!({"schemaVersion": 2, "mediaType": kind, "manifests": children});
        let digest = self.put_manifest(&Digest::of(value.to_string().as_bytes()).to_string(), kind, &value);
        ground().name(&format!("{REPOSITORY}@{}", digest["digest"].as_str().expect("a digest")))
    }
}

/// What is taken, by position from 1; 0: nothing, which is an error.
#[derive(Clone, Copy)]
enum Taken {
    /// The same, wherever variants are.
    Always(usize),
    /// With variants in descriptors or configs, and without any: then `arm` means v7, whichever it is.
    Or(usize, usize),
}

use Taken::{Always, Or};

const DEBIAN: &str = "linux/arm/v5 linux/arm/v7";
const ALPINE: &str = "linux/arm/v6 linux/arm/v7";
const MANY: &str = "linux/amd64 linux/arm/v5 linux/arm/v6 linux/arm/v7 linux/arm64";
const WINDOWS: &str = "windows/amd64:10.0.17763.1 windows/amd64:10.0.20348.1";

/// Asked for, what there is, what is taken, what is taken with `--platform-match=loose`.
const TABLE: [(&str, &str, Taken, Taken); 23] = [
    ("linux/arm", DEBIAN, Or(2, 1), Or(2, 1)),
    ("linux/arm/v5", DEBIAN, Or(1, 0), Or(1, 0)),
    ("linux/arm/v6", DEBIAN, Or(1, 0), Or(1, 0)),
    ("linux/arm/v7", "linux/arm/v6", Always(1), Always(1)),
    ("linux/arm/v5", ALPINE, Always(0), Always(0)),
    ("linux/arm/v8", "linux/arm/v7", Always(1), Always(1)),
    ("linux/arm64", "linux/arm64/v8", Always(1), Always(1)),
    ("linux/arm64/v8", "linux/arm64", Always(1), Always(1)),
    ("linux/arm64", "linux/arm/v7", Always(0), Always(1)),
    ("linux/amd64", "linux/amd64/v2 linux/amd64/v1", Or(2, 1), Or(2, 1)),
    ("linux/amd64", "linux/amd64/v2 linux/amd64", Or(2, 1), Or(2, 1)),
    ("linux/amd64/v3", "linux/amd64", Always(1), Always(1)),
    ("linux/amd64/v3", "linux/amd64 linux/amd64/v2", Or(2, 1), Or(2, 1)),
    ("linux/amd64/v3", "linux/386", Always(0), Always(1)),
    ("linux/aarch64", MANY, Always(5), Always(5)),
    ("linux/x86_64", MANY, Always(1), Always(1)),
    ("Linux/ARM64", MANY, Always(5), Always(5)),
    ("linux/armhf", MANY, Or(4, 2), Or(4, 2)),
    ("linux/armel", MANY, Or(3, 0), Or(3, 0)),
    ("linux", MANY, HOST, HOST),
    ("arm64", MANY, Always(5), Always(5)),
    ("windows/amd64:10.0.20348.1", WINDOWS, Always(2), Always(2)),
    ("windows/amd64:10.0.1", WINDOWS, Always(0), Always(0)),
];

const HOST: Taken = Always(if cfg!(target_arch = "aarch64") { 5 } else { 1 });

#[test]
fn each_request_takes_from_each_flavour_what_runs_there() {
    let builder = Builder::new();
    for flavour in FLAVOURS {
        for (asked, children, compatible, loose) in TABLE {
            let base = flavour.index(children);
            let context = Context::new(&format!("FROM {base}\n"));
            for (mode, taken) in [("compatible", compatible), ("loose", loose)] {
                let case = format!("{asked} of {children}, {}, {mode}", flavour.name);
                let position = match taken {
                    Always(position) => position,
                    Or(with, without) => {
                        if flavour.in_config {
                            with
                        } else {
                            without
                        }
                    }
                };
                let mut command = builder.command();
                command.args(["plan", "--platform", asked, "--platform-match", mode, "--context"]);
                let planned = finish(command.arg(context.path()));
                if position == 0 {
                    let refused = planned.exited(1);
                    assert!(refused.says(&["error: "]), "{case}: {}", refused.stderr);
                    assert!(refused.says(&["no image for"]), "{case}: {}", refused.stderr);
                    continue;
                }
                assert_eq!(planned.code, Some(0), "{case}: {}", planned.stderr);
                let image = &planned.json()["image"];
                let expected = children.split(' ').nth(position - 1).expect("a child");
                assert_eq!(image["config"]["Labels"]["made"], expected, "{case}");
                if asked.starts_with("windows") {
                    assert_eq!(
                        (&image["architecture"], &image["os.version"]),
                        (&json!("amd64"), &json!("10.0.20348.1"))
                    );
                }
            }
        }
    }
}

#[test]
fn a_single_image_of_another_architecture_is_refused_in_each_flavour() {
    let builder = Builder::new();
    for flavour in FLAVOURS {
        let child = flavour.child("linux/arm/v7");
        let base = ground().name(&format!("{REPOSITORY}@{}", child["digest"].as_str().expect("a digest")));
        let context = Context::new(&format!("FROM {base}\n"));
        let asked = ["--platform=linux/amd64"];
        let refused = build(&builder, &context, &asked).exited(1);
        let words = ["is `linux/arm", "not `linux/amd64`"];
        assert!(refused.says(&words), "{}: {}", flavour.name, refused.stderr);
        let taken = build(&builder, &context, &[&asked[..], &["--platform-match=none"]].concat()).success();
        let words = ["warning: InvalidBaseImagePlatform", "\"linux/arm", "expected \"linux/amd64\""];
        assert!(taken.says(&words), "{}: {}", flavour.name, taken.stderr);
    }
}
