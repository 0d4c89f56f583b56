//! `examples/kubernetes`: manifests that are read, and builds in pods such as they ask for. `examples/arm`: what its one command
//! would build; `examples/arm/demo` does it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::support::ground::ground;
use crate::support::pod::{self, Access, Pod, Profile};
use crate::support::{Builder, Context, scratch};

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/kubernetes")
}

/// The pod of a manifest: its `spec`.
fn pod_of(file: &str) -> Value {
    let text = fs::read_to_string(directory().join(file)).expect("manifest");
    let documents = serde_yaml_ng::Deserializer::from_str(&text);
    let mut documents = documents.map(|document| Value::deserialize(document).expect("YAML"));
    let first = documents.next().expect("a document");
    documents.for_each(drop);
    match first["kind"].as_str() {
        Some("Job") => first["spec"]["template"]["spec"].clone(),
        _ => first["spec"].clone(),
    }
}

fn texts(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().map(|text| text.as_str().expect("a string")).collect()
}

/// A manifest, the pods that it gives on nodes of several kinds, and how steps are kept apart there.
type Example = (&'static str, fn() -> Value, &'static [(Profile, &'static str)]);

const EXAMPLES: [Example; 4] = [
    ("pod.yaml", || json!([null, null]), &[(Profile::Unset, "user-namespace"), (Profile::Default, "chroot")]),
    (
        "job.yaml",
        || {
            let added = ["SYS_CHROOT", "MKNOD", "SETFCAP"];
            json!([null, {"seccompProfile": {"type": "RuntimeDefault"}, "capabilities": {"add": added}}])
        },
        &[(Profile::Default, "chroot")],
    ),
    (
        "pod-user-namespace.yaml",
        || json!([false, {"procMount": "Unmasked", "readOnlyRootFilesystem": true}]),
        &[(Profile::HostusersFalseUnmasked, "user-namespace")],
    ),
    (
        "pod-privileged.yaml",
        || json!([false, {"privileged": true}]),
        &[(Profile::HostusersFalsePrivileged, "mount-namespace")],
    ),
];

#[test]
fn every_manifest_is_in_the_table_of_the_readme() {
    let readme = fs::read_to_string(directory().join("README.md")).expect("README.md");
    let files = fs::read_dir(directory()).expect("directory").map(|entry| entry.expect("entry").file_name());
    let mut manifests: Vec<String> =
        files.map(|name| name.into_string().expect("UTF-8")).filter(|name| name.ends_with(".yaml")).collect();
    manifests.sort();
    let mut expected = EXAMPLES.map(|(file, ..)| file.to_owned());
    expected.sort();
    assert_eq!(manifests, expected);
    for (file, _, pods) in EXAMPLES {
        let row = readme.lines().find(|line| line.starts_with(&format!("| `{file}`"))).expect("a row");
        for (_, strategy) in pods {
            assert!(row.contains(strategy), "{strategy} in {row}");
        }
    }
}

#[test]
fn what_a_manifest_mounts_is_there() {
    for (file, ..) in EXAMPLES {
        let spec = pod_of(file);
        let volumes: Vec<&Value> =
            spec["volumes"].as_array().expect("volumes").iter().map(|volume| &volume["name"]).collect();
        for containers in ["initContainers", "containers"] {
            for mount in spec[containers][0]["volumeMounts"].as_array().expect("mounts") {
                assert!(volumes.contains(&&mount["name"]), "{file}: {mount}");
            }
        }
    }
}

#[test]
fn builds_work_in_the_pods_that_manifests_ask_for() {
    if !pod::available("builds_work_in_the_pods_that_manifests_ask_for") {
        return;
    }
    let ground = ground();
    let base = ground.name("busybox:latest");
    let context = Context::new(&format!("FROM {base}\nRUN echo it works && chown 7:8 /bin && touch /made\n"));
    fs::set_permissions(context.path(), fs::Permissions::from_mode(0o755)).expect("mode");
    for (file, wanted, pods) in EXAMPLES {
        let spec = pod_of(file);
        let container = &spec["containers"][0];
        assert_eq!(json!([spec["hostUsers"], container["securityContext"]]), wanted(), "{file}");
        let registry = ground.name(&format!("examples-{}/", std::process::id()));
        let arguments: Vec<String> = texts(&container["args"])
            .into_iter()
            .map(|argument| argument.replace("registry.example.com/", &registry))
            // The machine need not have an emulator.
            .filter(|argument| !argument.starts_with("--custom-platform"))
            .chain(["--verbosity=debug".to_owned()])
            .collect();
        let arguments: Vec<&str> =
            ["builder"].into_iter().chain(arguments.iter().map(String::as_str)).collect();
        for (profile, strategy) in pods {
            let store = scratch();
            fs::set_permissions(store.path(), fs::Permissions::from_mode(0o777)).expect("mode");
            let mut pod = Pod::new(*profile).environment("BUILDER_STORE=/var/lib/builder");
            pod = pod.mount(context.path(), "/workspace", Access::ReadOnly);
            pod = pod.mount(store.path(), "/var/lib/builder", Access::ReadWrite);
            if container["securityContext"]["readOnlyRootFilesystem"] == true {
                pod = pod.read_only_root();
            }
            let finished = pod.run(&arguments).success();
            let taken = format!("isolation: {strategy}");
            assert!(finished.says(&[&taken]), "{file}, {profile:?}: {}", finished.stderr);
            assert!(finished.says(&["] | it works"]), "{file}, {profile:?}: {}", finished.stderr);
            assert!(store.path().join("version").exists(), "{file}, {profile:?}");
        }
    }
}

/// The platforms of `examples/arm`, with what Debian calls the base of each.
const ARM: [(&str, &str); 4] = [
    ("linux/amd64", "amd64"),
    ("linux/arm64", "arm64"),
    ("linux/arm/v7", "armhf"),
    ("linux/arm/v5", "armel"),
];

#[test]
fn the_example_for_arm_has_a_base_of_its_own_for_each_of_its_platforms() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    let platforms = ARM.map(|(platform, _)| platform).join(",");
    for file in ["README.md", "examples/arm/Dockerfile", "examples/arm/demo"] {
        let text = fs::read_to_string(repository.join(file)).expect("a file of the repository");
        assert!(text.contains(&platforms), "{file} names other platforms");
    }
    let ground = ground();
    let (base, compiler) = (ground.name("debian"), ground.name("debian-cross"));
    let builder = Builder::new();
    let planned = builder.run([
        "plan",
        "--custom-platform",
        &platforms,
        &format!("--build-arg=BASE={base}"),
        &format!("--build-arg=COMPILER={compiler}"),
        "--context",
        &repository.join("examples/arm").display().to_string(),
    ]);
    let plans = planned.success().json();
    let bases = ground.bases();
    for ((platform, debian), plan) in ARM.iter().zip(plans.as_array().expect("a plan for each")) {
        let own = bases
            .iter()
            .find(|one| one.repository == "debian" && one.tag == "latest" && one.debian == *debian);
        let own = own.unwrap_or_else(|| panic!("no base of {debian}; run integration/ground/up"));
        let [compile, image] = &plan["stages"].as_array().expect("stages")[..] else { panic!("{plan}") };
        assert_eq!(image["baseDigest"], own.digest.as_str(), "{platform}");
        assert_eq!(image["platform"], *platform);
        assert_eq!(compile["base"], format!("{compiler}:latest"));
    }
}
