//! `examples/indexed-job`: its own commands, as many processes at once as it has pods, and the index that is made of what
//! they pushed.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::Deserialize;
use serde_json::Value;

use crate::emulation::can_have_handlers;
use crate::support::ground::ground;
use crate::support::oci::raw_manifest;
use crate::support::steps::{build, output};
use crate::support::{Builder, Context, Finished, finish};

fn documents(file: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/indexed-job").join(file);
    let text = std::fs::read_to_string(path).expect("manifest");
    serde_yaml_ng::Deserializer::from_str(&text)
        .map(|document| Value::deserialize(document).expect("YAML"))
        .collect()
}

fn container(job: &Value) -> &Value {
    &job["spec"]["template"]["spec"]["containers"][0]
}

fn strings(list: &Value) -> Vec<String> {
    let texts = list.as_array().into_iter().flatten();
    texts.map(|text| text.as_str().expect("a string").to_owned()).collect()
}

fn environment(job: &Value) -> BTreeMap<String, String> {
    let entries = container(job)["env"].as_array().expect("env").iter();
    let text = |value: &Value| value.as_str().expect("a string").to_owned();
    entries.map(|entry| (text(&entry["name"]), text(&entry["value"]))).collect()
}

fn platforms(job: &Value) -> Vec<String> {
    environment(job)["PLATFORMS"].split(' ').map(str::to_owned).collect()
}

/// The command lines of a container in a cluster where the image has another name.
struct Cluster {
    image: String,
    context: Context,
}

impl Cluster {
    fn new(image: &str, run: &str) -> Self {
        let base = ground().name("busybox:latest");
        let context = Context::new(&format!("FROM {base}\nARG TARGETPLATFORM\n{run}\n"));
        Self { image: ground().name(image), context }
    }

    /// All pods of all Jobs of build.yaml at once, each with a store of its own.
    fn build(&self) -> Vec<(String, Finished)> {
        let program = Path::new(env!("CARGO_BIN_EXE_builder")).parent().expect("a directory");
        let mut pods = Vec::new();
        for job in documents("build.yaml") {
            for (index, platform) in platforms(&job).into_iter().enumerate() {
                let builder = Builder::new();
                let mut words = strings(&container(&job)["command"]);
                words.extend(strings(&container(&job)["args"]));
                let workspace = self.context.path().display().to_string();
                for word in &mut words {
                    *word = word.replace("/workspace", &workspace);
                }
                let mut command = Command::new(&words[0]);
                let own = builder.command();
                command.args(&words[1..]).env_clear().stdin(Stdio::null()).current_dir("/");
                command.envs(own.get_envs().filter_map(|(name, value)| Some((name, value?))));
                command.envs(environment(&job)).env("IMAGE", &self.image);
                command.env("PATH", format!("{}:/usr/bin:/bin", program.display()));
                command.env("JOB_COMPLETION_INDEX", index.to_string());
                pods.push((platform, builder, command));
            }
        }
        let run =
            |(platform, _store, mut command): (String, Builder, Command)| (platform, finish(&mut command));
        let threads: Vec<_> = pods.into_iter().map(|pod| std::thread::spawn(move || run(pod))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a pod")).collect()
    }

    /// join.yaml, whose variables the kubelet would replace.
    fn join(&self) -> Finished {
        let [job] = &documents("join.yaml")[..] else { panic!("one Job") };
        let mut environment = environment(job);
        environment.insert("IMAGE".to_owned(), self.image.clone());
        let mut arguments = strings(&container(job)["args"]);
        for argument in &mut arguments {
            for (name, value) in &environment {
                *argument = argument.replace(&format!("$({name})"), value);
            }
            assert!(!argument.contains("$("), "{argument}");
        }
        Builder::new().run(arguments)
    }

    fn tags(&self) -> [String; 2] {
        ["42", "latest"].map(|tag| format!("{}:{tag}", self.image))
    }
}

/// Every field of the manifests is one of Kubernetes' (`batch/v1` and `v1` of 1.33), in its place.
#[test]
fn all_fields_are_those_of_kubernetes() {
    const JOB: &[&str] = &["apiVersion", "kind", "metadata", "spec"];
    const JOB_SPEC: &[&str] =
        &["backoffLimit", "backoffLimitPerIndex", "completionMode", "completions", "parallelism", "template"];
    const POD: &[&str] = &[
        "automountServiceAccountToken",
        "containers",
        "initContainers",
        "nodeSelector",
        "restartPolicy",
        "volumes",
    ];
    const CONTAINER: &[&str] = &["args", "command", "env", "image", "name", "volumeMounts"];
    let check = |value: &Value, known: &[&str]| {
        for key in value.as_object().expect("a mapping").keys() {
            assert!(known.contains(&key.as_str()), "`{key}` is none of {known:?}");
        }
    };
    for job in documents("build.yaml").iter().chain(&documents("join.yaml")) {
        check(job, JOB);
        assert_eq!((&job["apiVersion"], &job["kind"]), (&"batch/v1".into(), &"Job".into()));
        check(&job["spec"], JOB_SPEC);
        check(&job["spec"]["template"], &["metadata", "spec"]);
        let pod = &job["spec"]["template"]["spec"];
        check(pod, POD);
        let volumes: Vec<&Value> =
            pod["volumes"].as_array().expect("volumes").iter().map(|volume| &volume["name"]).collect();
        pod["volumes"]
            .as_array()
            .expect("volumes")
            .iter()
            .for_each(|v| check(v, &["name", "emptyDir", "secret"]));
        for containers in ["initContainers", "containers"] {
            for container in pod[containers].as_array().into_iter().flatten() {
                check(container, CONTAINER);
                for mount in container["volumeMounts"].as_array().expect("mounts") {
                    check(mount, &["name", "mountPath", "readOnly"]);
                    assert!(volumes.contains(&&mount["name"]), "{mount}");
                }
            }
        }
    }
}

#[test]
fn there_is_a_pod_for_each_platform_on_nodes_that_run_it() {
    let mut built = Vec::new();
    for job in documents("build.yaml") {
        let (spec, platforms) = (&job["spec"], platforms(&job));
        assert_eq!(spec["completionMode"], "Indexed");
        assert_eq!(
            (&spec["completions"], &spec["parallelism"]),
            (&platforms.len().into(), &platforms.len().into())
        );
        let node = &spec["template"]["spec"]["nodeSelector"]["kubernetes.io/arch"];
        for platform in &platforms {
            let architecture = platform.split('/').nth(1).expect("architecture");
            let runs = match architecture {
                "386" => "amd64",
                "arm" => "arm64",
                own => own,
            };
            assert_eq!(node, runs, "{platform}");
        }
        built.extend(platforms);
    }
    let [join] = &documents("join.yaml")[..] else { panic!("one Job") };
    let joined = format!("--platforms={}", built.join(","));
    assert!(strings(&container(join)["args"]).contains(&joined), "{joined}");
    let same = |name: &str, job: &Value| assert_eq!(environment(job)[name], environment(join)[name]);
    for job in documents("build.yaml") {
        same("IMAGE", &job);
        same("BUILD", &job);
    }
}

#[test]
fn pods_that_build_a_platform_each_and_a_join_make_one_image() {
    let cluster = Cluster::new("indexed-job/app", "RUN uname -m >/machine; echo $TARGETPLATFORM >/platform");
    let built = cluster.build();
    assert_eq!(built.len(), 5);
    let built: Vec<String> = built
        .into_iter()
        .map(|(platform, pod)| {
            pod.success();
            platform
        })
        .collect();
    let joined = cluster.join().success();
    let digest = joined.stdout.split(' ').nth(1).expect("a digest").to_owned();

    let [index, latest] = cluster.tags().map(|name| raw_manifest(&name));
    assert_eq!(index, latest);
    assert_eq!(index["mediaType"], "application/vnd.oci.image.index.v1+json");
    let told: Vec<String> = index["manifests"]
        .as_array()
        .expect("manifests")
        .iter()
        .map(|entry| {
            let part = |key: &str| entry["platform"][key].as_str().unwrap_or_default().to_owned();
            let text = [part("os"), part("architecture"), part("variant")].join("/");
            // An arm64 says that it is v8.
            text.trim_end_matches('/').replace("arm64/v8", "arm64")
        })
        .collect();
    assert_eq!(told, built);

    let cpus = can_have_handlers("the machines of pods_that_build_a_platform_each");
    let builder = Builder::new();
    for platform in &built {
        let base = format!("{}@{digest}", cluster.image);
        let context = Context::new(&format!("FROM {base}\nRUN uname -m; cat /machine /platform\n"));
        let finished = build(&builder, &context, &["--custom-platform", platform]).success();
        let lines = output(&finished);
        assert_eq!(lines[2], *platform);
        assert_eq!(lines[0], lines[1], "{platform}");
        if cpus && cfg!(target_arch = "x86_64") {
            let machine = match platform.as_str() {
                "linux/amd64" => "x86_64",
                "linux/386" => "i686",
                "linux/arm64" => "aarch64",
                "linux/arm/v7" => "armv7l",
                "linux/arm/v5" => "armv5tel",
                other => panic!("{other}"),
            };
            assert_eq!(lines[0], machine, "{platform}");
        }
    }
}

#[test]
fn where_a_pod_failed_the_join_refuses_and_moves_no_tag() {
    let image = format!("indexed-job/fails-{}", std::process::id());
    let cluster = Cluster::new(&image, "RUN test $TARGETPLATFORM != linux/arm/v7");
    for (platform, pod) in cluster.build() {
        pod.exited(i32::from(platform == "linux/arm/v7"));
    }
    // What an earlier build has given the name to.
    let [_, latest] = cluster.tags();
    let earlier = cluster.context.path().to_str().expect("UTF-8");
    let destination = format!("--destination={latest}");
    Builder::new().run(["--context", earlier, "--custom-platform=linux/amd64", &destination]).success();
    let before = raw_manifest(&latest);
    let refused = cluster.join().exited(1);
    assert!(refused.says(&["error", "linux/arm/v7"]) && refused.says(&["42-armv7"]), "{}", refused.stderr);
    assert_eq!(refused.stdout, "");
    assert_eq!(raw_manifest(&latest), before);
    let [new, _] = cluster.tags();
    let mut inspect = Command::new("skopeo");
    inspect.args(["inspect", "--raw", "--tls-verify=false", &format!("docker://{new}")]);
    assert!(!inspect.output().expect("skopeo").status.success(), "{new} is there");
}
