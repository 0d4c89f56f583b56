//! Small Dockerfiles with the image that BuildKit makes of them (testdata/dockerfile/cases.json; the fields are
//! explained in testdata/dockerfile/README.md).

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use builder::build::services::{Base, ImageSource, ServiceError, Wanted};
use builder::build::{self, BuildError, PlanRequest, preview};
use builder::context::IgnoreRules;
use builder::dockerfile;
use builder::image::config::ImageConfig;
use builder::image::digest::Digest;
use builder::image::manifest::Image;
use builder::image::matching::Asked;
use builder::image::platform::{Platform, Requested};
use builder::image::reference::Reference;
use builder::sandbox::Cancel;
use builder::store::unpacked::Chain;
use serde_json::Value;

use crate::support::web::Site;
use crate::support::{Builder, Context, Finished, finish, ground, oci, scratch};

pub(crate) fn cases(kind: &str) -> Vec<Value> {
    let text = include_str!("../testdata/dockerfile/cases.json");
    let cases: Vec<Value> = serde_json::from_str(text).expect("cases.json");
    cases.into_iter().filter(|case| case["kind"] == kind).collect()
}

/// A list of `name=value`.
pub(crate) fn pairs(value: &Value) -> BTreeMap<String, String> {
    let pairs = value.as_array().into_iter().flatten().filter_map(Value::as_str);
    pairs
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// The only image of a case, `base`: a config without layers.
struct OneBase(Option<ImageConfig>);

impl ImageSource for OneBase {
    fn resolve(&self, reference: &Reference, _: &Wanted) -> Result<Base, ServiceError> {
        let config = self.0.clone().ok_or("there is no such image")?;
        Ok(Base {
            image: Image::from_parts(config, Vec::new())?,
            reference: reference.clone(),
            digest: Digest::of(b"base"),
            notes: Vec::new(),
            foreign: None,
        })
    }

    fn unpack(&self, _: &Image, _: &Cancel) -> Result<Chain, ServiceError> {
        Err("nothing is unpacked while planning".into())
    }
}

fn plan(case: &Value) -> Result<Value, BuildError> {
    plan_with(case, &IgnoreRules::default())
}

fn plan_with(case: &Value, ignore: &IgnoreRules) -> Result<Value, BuildError> {
    let text = case["dockerfile"].as_str().expect("a Dockerfile");
    let host = Platform::new("linux", "amd64", None);
    let platform = case["platform"].as_str();
    let requested = Requested::parse(platform.unwrap_or("linux/amd64"), &host).expect("platform");
    let most_layers = case["layers"].as_u64().map_or(499, |most| most as usize);
    let request = PlanRequest {
        build_args: pairs(&case["args"]),
        target: case["target"].as_str().map(str::to_owned),
        labels: pairs(&case["labels"]).into_iter().collect(),
        asked: if platform.is_some() { Asked::Explicitly } else { Asked::ByDefault },
        ..PlanRequest::usual(requested, host, most_layers)
    };
    let base = case.get("base").map(|base| serde_json::from_value(base.clone()).expect("base config"));
    let file = dockerfile::parse(text.as_bytes())?;
    let plan = build::plan(&file, &request, ignore, &OneBase(base))?;
    let mut document = Vec::new();
    preview::write(std::slice::from_ref(&plan), &mut document).expect("written");
    Ok(serde_json::from_slice(&document).expect("JSON"))
}

/// What is wrong with the plan of a case.
fn faults(case: &Value, document: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    let image = &document["image"];
    for (object, expected) in [(&image["config"], &case["cfg"]), (image, &case["top"])] {
        for (key, expected) in expected.as_object().into_iter().flatten() {
            let actual = object.get(key).unwrap_or(&Value::Null);
            let both_empty = expected.is_null() && actual.as_array().is_some_and(Vec::is_empty);
            if actual != expected && !both_empty {
                faults.push(format!("{key} is {actual}, expected {expected}"));
            }
        }
    }
    if let Some(expected) = case["hist"].as_array() {
        let rows: Vec<String> = image["history"].as_array().into_iter().flatten().map(history_row).collect();
        let expected: Vec<&str> = expected.iter().filter_map(Value::as_str).collect();
        if rows != expected {
            faults.push(format!("history is {rows:#?}, expected {expected:#?}"));
        }
    }
    let warnings: BTreeSet<&str> = document["warnings"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|warning| warning["rule"].as_str())
        .collect();
    for rule in case["warn"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !warnings.contains(rule) {
            faults.push(format!("no warning {rule}, only {warnings:?}"));
        }
    }
    for rule in case["nowarn"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if warnings.contains(rule) {
            faults.push(format!("warning {rule}"));
        }
    }
    faults
}

fn history_row(row: &Value) -> String {
    let empty = if row["empty_layer"] == true { "-" } else { "" };
    format!("{empty}{}", row["created_by"].as_str().unwrap_or_default())
}

#[test]
fn plans_say_what_buildkit_s_images_say() {
    let mut faulty = Vec::new();
    let cases = cases("P");
    for case in &cases {
        let faults = match (plan(case), case.get("err")) {
            (Ok(document), None) => faults(case, &document),
            (Ok(_), Some(expected)) => vec![format!("succeeds, expected {expected}")],
            (Err(error), None) => vec![format!("fails: {error}")],
            (Err(error), Some(_)) if error.span.is_none() && !placeless(case) => {
                vec![format!("fails without saying where: {error}")]
            }
            (Err(_), Some(_)) => Vec::new(),
        };
        faulty.extend(
            faults.iter().map(|fault| format!("case {}: {fault}\n{}", case["id"], case["dockerfile"])),
        );
    }
    assert!(cases.len() > 80, "only {} cases were found", cases.len());
    assert!(faulty.is_empty(), "{} faults\n{}", faulty.len(), faulty.join("\n"));
}

/// Errors of the whole file, or of a flag.
fn placeless(case: &Value) -> bool {
    case["target"].is_string() || case["dockerfile"].as_str().is_some_and(|text| !text.contains("FROM"))
}

#[test]
fn checks_that_need_the_build_name_rule_and_line() {
    let warnings = |dockerfile: &str, ignore: &str| {
        let case = serde_json::json!({ "dockerfile": dockerfile, "args": ["A=scratch"] });
        let document =
            plan_with(&case, &IgnoreRules::parse(ignore.as_bytes()).expect("rules")).expect(dockerfile);
        let rows = document["warnings"].as_array().expect("a list").clone();
        rows.iter()
            .map(|row| format!("{} {}", row["rule"].as_str().expect("rule"), row["line"]))
            .collect::<Vec<_>>()
    };
    assert_eq!(warnings("ARG A\nFROM $A\n", ""), ["InvalidDefaultArgInFrom 2"]);
    assert_eq!(warnings("ARG A=busybox\nFROM $A\n", ""), [""; 0]);
    assert_eq!(warnings("FROM scratch\nCOPY a b/ /\n", "b\n"), ["CopyIgnoredFile 2"]);
    assert_eq!(warnings("FROM scratch\nENV x=$nope\n", ""), ["UndefinedVar 2"]);
    assert_eq!(warnings("# check=skip=UndefinedVar\nFROM scratch\nENV x=$nope\n", ""), [""; 0]);
}

/// Plans or builds in a process that may have 700 MB of address space.
fn in_little_memory(command: &[&str], dockerfile: &str) -> Finished {
    let builder = Builder::new();
    let context = Context::new(dockerfile);
    let limited = "ulimit -v 700000 && exec \"$0\" \"$@\"";
    let mut shell = std::process::Command::new("sh");
    shell
        .args(["-c", limited, env!("CARGO_BIN_EXE_builder")])
        .args(command)
        .arg("--store")
        .arg(builder.store());
    finish(shell.arg(context.path())).success()
}

#[test]
fn a_long_chain_of_stages_and_a_large_environment_need_little_memory() {
    let chain: String = (1..5_000).map(|i| format!("FROM s{} AS s{i}\nLABEL a{i}={i}\n", i - 1)).collect();
    let chain = format!("FROM scratch AS s0\n{chain}");
    let document = in_little_memory(&["plan"], &chain).json();
    in_little_memory(&["build", "--no-push", "--verbosity=warn"], &chain);
    assert_eq!(document["image"]["config"]["Labels"].as_object().expect("labels").len(), 4_999);
    let runs = "RUN :\n".repeat(490);
    let value = "x".repeat(60_000);
    let env: String = (0..60).map(|i| format!("ENV E{i}={value}\n")).collect();
    in_little_memory(&["plan"], &format!("FROM scratch\n{env}{runs}"));
}

#[test]
fn what_cannot_be_built_is_found_while_planning() {
    let error = |dockerfile: String| {
        let error = plan(&serde_json::json!({ "dockerfile": dockerfile })).expect_err("no plan");
        (error.span.map(|span| span.first_line), error.to_string())
    };
    let (line, message) = error(format!("FROM scratch\n{}", "WORKDIR /a\n".repeat(600)));
    assert_eq!(line, Some(501));
    assert!(message.contains("no more than 499"), "{message}");
    let dockerfile = format!("FROM scratch\n{}", "WORKDIR /a\n".repeat(600));
    plan(&serde_json::json!({ "dockerfile": dockerfile, "layers": 600 })).expect("a plan");
    let (line, message) =
        error("FROM scratch\nENV A=aaaaaaaaaa\n".to_owned() + &"ENV A=$A$A$A$A$A$A$A$A$A$A\n".repeat(6));
    assert_eq!(line, Some(8));
    assert!(message.contains("no process can be given them"), "{message}");
    let (line, message) = error("# syntax=example.org/other:1\nFROM scratch\n".to_owned());
    assert_eq!(line, Some(1));
    assert!(message.contains("the frontend `example.org/other:1` is not known"), "{message}");
    let (line, message) = error("ARG SOURCE_DATE_EPOCH=253402300800000\nFROM scratch\n".to_owned());
    assert_eq!(line, Some(1));
    assert!(message.contains("invalid SOURCE_DATE_EPOCH"), "{message}");
}

#[test]
fn builds_make_the_files_that_buildkit_makes() {
    let registry = ground::ground().registry;
    let Some(site) = Site::start() else { return };
    let address = site.server.address.to_string();
    let builders = ["overlayfs", "native"].map(|snapshotter| (snapshotter, Builder::new()));
    let mut faulty = Vec::new();
    let mut ran = 0;
    for case in cases("B") {
        let text = case["dockerfile"].as_str().expect("a Dockerfile");
        // Files of an image keep their times under an epoch; case 283 is about export as a directory.
        let of_directories = case["id"] == 283;
        if of_directories {
            continue;
        }
        ran += 1;
        let text = format!("\n{text}").replace("\nFROM bb", &format!("\nFROM {registry}/busybox:latest"));
        let text = text.replace("127.0.0.1:18080", &address);
        let mut layers = Vec::new();
        for (snapshotter, builder) in &builders {
            let mut faults = Vec::new();
            layers.push(build_case(builder, snapshotter, &case, &text[1..], &mut faults));
            let line =
                |fault| format!("case {} with {snapshotter}: {fault}\n{}", case["id"], case["dockerfile"]);
            faulty.extend(faults.into_iter().map(line));
        }
        if layers[0] != layers[1] {
            faulty.push(format!("case {}: other layers\n{:#?}", case["id"], layers));
        }
    }
    assert!(ran >= 69, "only {ran} cases were run");
    assert!(faulty.is_empty(), "{} faults\n{}", faulty.len(), faulty.join("\n"));
}

/// What is in the layers of the image, times aside; nothing if there is no image.
type Layers = Vec<Vec<String>>;

fn build_case(
    builder: &Builder,
    snapshotter: &str,
    case: &Value,
    dockerfile: &str,
    faults: &mut Vec<String>,
) -> Layers {
    let context = Context::new(dockerfile);
    write_files(&context, case);
    let out = scratch();
    let layout = out.path().join("layout");
    let mut arguments =
        vec!["--context".to_owned(), context.path().display().to_string(), "--no-push".to_owned()];
    arguments.push("--destination=cases.example/case:1".to_owned());
    arguments.push(format!("--oci-layout-path={}", layout.display()));
    arguments.push(format!("--snapshotter={snapshotter}"));
    for (name, value) in pairs(&case["args"]) {
        arguments.push(format!("--build-arg={name}={value}"));
    }
    for (id, value) in case["secret"].as_object().into_iter().flatten() {
        let file = out.path().join(format!("secret-{id}"));
        std::fs::write(&file, value.as_str().expect("a secret")).expect("write");
        arguments.push(format!("--secret=id={id},src={}", file.display()));
    }
    let mut named = Vec::new();
    for (name, files) in case["build_contexts"].as_object().into_iter().flatten() {
        let directory = scratch();
        for (file, text) in files.as_object().into_iter().flatten() {
            let path = directory.path().join(file);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("create directory");
            std::fs::write(&path, text.as_str().expect("text")).expect("write");
        }
        arguments.push(format!("--build-context={name}={}", directory.path().display()));
        named.push(directory);
    }
    for flag in ["target", "platform"] {
        if let Some(value) = case[flag].as_str() {
            arguments.push(format!("--{flag}={value}"));
        }
    }
    let finished = builder.run(&arguments);
    faults.extend(log_faults(case, &finished));
    match (finished.code, case.get("err")) {
        (Some(0), None) => {
            oci::with_unpacked(&layout, "1", |root| faults.extend(file_faults(case, root)));
            return oci::LayoutImage::only(&layout).layer_facts(&layout);
        }
        (Some(0), Some(expected)) => faults.push(format!("succeeds, expected {expected}")),
        (_, None) => faults.push(format!("fails:\n{}", finished.stderr)),
        (_, Some(_)) => {
            let located = finished.stderr.contains("--> ");
            if !located && !pairs(&case["args"]).contains_key("SOURCE_DATE_EPOCH") {
                faults.push(format!("fails without saying where:\n{}", finished.stderr));
            }
            if layout.exists() {
                faults.push("fails, and leaves a layout".to_owned());
            }
        }
    }
    Layers::new()
}

fn log_faults(case: &Value, finished: &Finished) -> Vec<String> {
    let expected = case["log"].as_array().into_iter().flatten().filter_map(Value::as_str);
    expected
        .filter(|text| !finished.stderr.contains(text))
        .map(|text| format!("the log lacks {text}"))
        .collect()
}

pub(crate) fn write_files(context: &Context, case: &Value) {
    for (name, file) in case["files"].as_object().into_iter().flatten() {
        let path = context.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("create directory");
        match file["type"].as_str().expect("type") {
            "dir" => std::fs::create_dir_all(&path).expect("create directory"),
            "symlink" => {
                std::os::unix::fs::symlink(file["target"].as_str().expect("target"), &path).expect("link")
            }
            "copy" => {
                let from = file["from"].as_str().expect("from").replace("files/", "");
                let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/archives").join(from);
                std::fs::copy(from, &path).expect("copy");
            }
            "file" => std::fs::write(&path, file["text"].as_str().unwrap_or_default()).expect("write"),
            other => panic!("unknown type {other}"),
        }
    }
    for (name, mode) in case["modes"].as_object().into_iter().flatten() {
        let mode = mode.as_str().map_or_else(
            || u32::try_from(mode.as_u64().expect("mode")).expect("mode"),
            |text| u32::from_str_radix(text, 8).expect("octal mode"),
        );
        std::fs::set_permissions(context.path().join(name), std::fs::Permissions::from_mode(mode))
            .expect("chmod");
    }
}

fn file_faults(case: &Value, root: &Path) -> Vec<String> {
    let mut faults = Vec::new();
    for (path, expected) in case["fs"].as_object().into_iter().flatten() {
        let actual = describe(&root.join(path), expected.as_str().unwrap_or_default());
        if actual.as_deref() != expected.as_str() {
            faults.push(format!("{path} is {actual:?}, expected {expected}"));
        }
    }
    faults
}

/// `type mode uid:gid [->target] [@mtime] [=content]`, with the optional parts that `like` has.
fn describe(path: &Path, like: &str) -> Option<String> {
    let metadata = std::fs::symlink_metadata(path).ok()?;
    let kind = match metadata.file_type() {
        kind if kind.is_dir() => "d",
        kind if kind.is_symlink() => "l",
        kind if kind.is_fifo() => "p",
        _ => "f",
    };
    let mut words = vec![kind.to_owned()];
    let expected: Vec<&str> = like.split(" =").next().unwrap_or_default().split(' ').collect();
    if expected.get(1).is_some_and(|word| word.bytes().all(|byte| byte.is_ascii_digit())) {
        words.push(format!("{:o}", metadata.permissions().mode() & 0o7777));
    }
    if expected.iter().any(|word| word.contains(':')) {
        words.push(format!("{}:{}", metadata.uid(), metadata.gid()));
    }
    if like.contains("->") {
        words.push(format!("->{}", std::fs::read_link(path).ok()?.display()));
    }
    if expected.iter().any(|word| word.starts_with('@')) {
        words.push(format!("@{}", metadata.mtime()));
    }
    if like.contains(" =") {
        words.push(format!("={}", String::from_utf8_lossy(&std::fs::read(path).ok()?)));
    }
    Some(words.join(" "))
}
