//! How much memory a build needs, whatever the size of files and layers.

use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use builder::image::digest::{Algorithm, Digester};
use serde_json::{Value, json};

use crate::support::fake_registry::{Answer, FakeRegistry, Server};
use crate::support::ground::ground;
use crate::support::group::Group;
use crate::support::{Builder, Context, finish, scratch};

/// The most that all processes of a build may need together, in kB.
const MOST: u64 = 100_000;

/// Bytes of each large file.
const LARGE: u64 = 200_000_000;

/// The largest sum of what the processes that execute `program` have had at one moment, from now to the end of `child`, in
/// kB. Of each that is its peak; the pages of the program itself, which all of them share, count once.
fn peak(child: &mut Child, program: &Path) -> u64 {
    let mut most = 0;
    while child.try_wait().expect("wait").is_none() {
        let processes = fs::read_dir("/proc").expect("/proc");
        let peaks = processes.filter_map(|process| peak_of(&process.ok()?.path(), program));
        let (own, shared) =
            peaks.fold((0, 0), |(sum, largest), (own, shared)| (sum + own, shared.max(largest)));
        most = most.max(own + shared);
        std::thread::sleep(Duration::from_millis(5));
    }
    most
}

/// The peak of a process without the pages of files, and those (`VmHWM` and `RssFile` in proc_pid_status(5)).
fn peak_of(process: &Path, program: &Path) -> Option<(u64, u64)> {
    if fs::read_link(process.join("exe")).ok()? != program {
        return None;
    }
    let status = fs::read_to_string(process.join("status")).ok()?;
    let field = |name: &str| -> Option<u64> {
        let value = status.lines().find_map(|line| line.strip_prefix(name))?;
        value.trim().trim_end_matches(" kB").parse().ok()
    };
    let (all, of_files) = (field("VmHWM:")?, field("RssFile:")?);
    Some((all.saturating_sub(of_files), of_files))
}

/// Where programs are.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// Builds in an empty store, in a control group that has no more than `most` kB; gives the peak. Where there can be no such
/// group, the peak alone tells.
fn build(context: &Context, most: u64, arguments: &[&str]) -> u64 {
    run(PATH, &["build"], context, most, arguments)
}

/// The same with other programs, or with another command.
fn run(path: &str, command: &[&str], context: &Context, most: u64, arguments: &[&str]) -> u64 {
    let (store, home) = (scratch(), scratch());
    // A name of its own: other builds are running.
    let program = store.path().with_extension("builder");
    fs::hard_link(env!("CARGO_BIN_EXE_builder"), &program).expect("link");
    let group = Group::of_memory(most * 1000);
    let enter = group.as_ref().map(Group::enter).unwrap_or_default();
    let mut child = Command::new("sh")
        .env_clear()
        .env("HOME", home.path())
        .env("PATH", PATH)
        .args(["-euc", &format!("{enter}\nPATH={path} exec \"$@\""), "sh"])
        .arg(&program)
        .args(command)
        .args([
            "--store".as_ref(),
            store.path().as_os_str(),
            "--context".as_ref(),
            context.path().as_os_str(),
        ])
        .arg("--custom-platform=linux/amd64")
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start");
    let peak = peak(&mut child, &program);
    fs::remove_file(&program).expect("remove");
    let output = child.wait_with_output().expect("wait");
    let success = output.status.success() || command == ["check"] && output.status.code() == Some(1);
    assert!(success, "{}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    assert!(peak > 0, "no process was seen");
    assert!(peak < most, "{peak} kB");
    peak
}

#[test]
fn the_kernel_enforces_the_limits_of_these_tests() {
    let Some(group) = Group::of_memory(MOST * 1000) else { return };
    let script = format!("{}; head -c 200000000 /dev/zero | tail -n 1 | wc -c", group.enter());
    let finished = finish(Command::new("bash").args(["-o", "pipefail", "-euc", &script]));
    assert_ne!(finished.code, Some(0), "a process had 200 MB: {finished:?}");
}

#[test]
fn large_files_and_layers_are_never_in_memory() {
    let ground = ground();
    let made = ground.name("memory:large");
    let context = Context::new(&format!(
        "FROM {}\nCOPY large /copied\nRUN dd if=/dev/urandom of=/made bs=1000000 count={} 2>/dev/null\n",
        ground.name("busybox:latest"),
        LARGE / 1_000_000,
    ));
    let mut large = fs::File::create(context.path().join("large")).expect("make");
    let random = fs::File::open("/dev/urandom").expect("open");
    io::copy(&mut random.take(LARGE), &mut large).expect("write");
    let out = scratch();
    let output = |name: &str| out.path().join(name).display().to_string();
    let outputs = ["--tar-path", &output("tar"), "--oci-layout-path", &output("layout")];
    let making = build(&context, MOST, &[&["--destination", &made], &outputs[..]].concat());
    // And the other way: both layers are fetched, unpacked, and linked to another repository.
    let context = Context::new(&format!("FROM {made}\nRUN test -s /copied && echo one more >>/made\n"));
    let unpacking = build(&context, MOST, &["--destination", &ground.name("memory-more:large")]);
    eprintln!("making {making} kB, unpacking {unpacking} kB");
}

#[test]
fn four_stages_at_once_need_no_more_than_one() {
    let ground = ground();
    let base = ground.name("busybox:latest");
    let stage = |name: &str| {
        format!(
            "FROM {base} AS {name}\nCOPY large /copied\nRUN dd if=/copied of=/made bs=1000000 2>/dev/null\n"
        )
    };
    let stages: String = ["a", "b", "c", "d"].map(stage).concat();
    let copies =
        "COPY --from=a /made /a\nCOPY --from=b /made /b\nCOPY --from=c /made /c\nCOPY --from=d /made /d\n";
    let context = Context::new(&format!("{stages}FROM scratch\n{copies}"));
    let mut large = fs::File::create(context.path().join("large")).expect("make");
    let random = fs::File::open("/dev/urandom").expect("open");
    io::copy(&mut random.take(LARGE / 4), &mut large).expect("write");
    let peak = build(&context, MOST, &["--no-push", "--jobs=4"]);
    eprintln!("four stages at once: {peak} kB");
}

#[test]
fn dockerfiles_of_the_largest_size_are_planned() {
    const INSTRUCTIONS: usize = 19_990;
    let lines = |line: &dyn Fn(usize) -> String, count: usize| (0..count).map(line).collect::<String>();
    let chain = |number: usize| format!("FROM s{number} AS s{}\nENV a{number}=b\n", number + 1);
    // Each has all variables of the first, and something of its own.
    let fork = |number: usize| format!("FROM s0 AS t{number}\nENV a=b\n");
    let from_all =
        format!("FROM scratch\nRUN {} x\n", lines(&|n| format!("--mount=from=t{n},target=/{n} "), 90));
    for (what, text) in [
        ("ENV", lines(&|number| format!("ENV a{number}=b\n"), INSTRUCTIONS)),
        ("ARG", lines(&|number| format!("ARG a{number}=b\n"), INSTRUCTIONS)),
        ("LABEL", lines(&|number| format!("LABEL a{number}=b\n"), INSTRUCTIONS)),
        ("USER", lines(&|_| "USER u\n".to_owned(), INSTRUCTIONS)),
        ("ENV of 4 MB", format!("ENV all={}\n", vec!["x".repeat(60_000); 65].join("\\\n"))),
        ("RUN of 4 MB", format!("RUN {}\n", vec!["x".repeat(60_000); 65].join("\\\n"))),
        ("a here-document", format!("RUN <<E\n{}E\n", "0123456789\n".repeat(370_000))),
        ("stages", lines(&chain, INSTRUCTIONS / 2)),
        ("stages on one", [lines(&|n| format!("ENV v{n}=1\n"), 15_000), lines(&fork, 90), from_all].concat()),
    ] {
        let context = Context::new(&format!("FROM scratch AS s0\n{text}"));
        let peak = run(PATH, &["plan"], &context, MOST, &[]);
        eprintln!("{what}: {peak} kB");
    }
    let findings =
        Context::new(&format!("FROM scratch\n{}", lines(&|n| format!("env a{n} b\n"), INSTRUCTIONS)));
    for format in ["--format=text", "--format=json"] {
        let peak = run(PATH, &["check"], &findings, MOST, &[format]);
        eprintln!("two findings a line, {format}: {peak} kB");
    }
}

#[test]
fn images_of_the_most_instructions_and_platforms_are_made() {
    let labels = |count: usize, size: usize| -> String {
        let value = "x".repeat(size);
        (0..count).map(|number| format!("LABEL l{number}={value}\n")).collect()
    };
    let others: Vec<String> = (1..32).map(|number| format!("linux/other{number}")).collect();
    let others = format!("--custom-platform={}", others.join(","));
    for (what, text, platforms) in [
        ("one", labels(19_990, 1), None),
        ("many rows for 32", labels(1_240, 1), Some(&*others)),
        ("long rows for 32", labels(15, 13_000), Some(&*others)),
    ] {
        let context = Context::new(&format!("FROM scratch\n{text}"));
        let peak = build(&context, MOST, &[&["--no-push", "-q"], platforms.as_slice()].concat());
        eprintln!("{what}: {peak} kB");
    }
}

#[test]
fn layers_are_compressed_at_the_highest_level_in_the_same_memory() {
    let base = ground().name("busybox:latest");
    // Two stages, so that two layers are written and converted at once.
    let context = Context::new(&format!(
        "FROM {base} AS one\nRUN head -c 16000000 /dev/urandom >/one\n\
         FROM {base}\nRUN head -c 16000000 /dev/urandom >/two\nCOPY --from=one /one /\n"
    ));
    for flags in [
        &["--compression=zstd", "--compression-level=22", "--reproducible"][..],
        &["--compression=zstd", "--compression-level=9"],
    ] {
        let peak = build(&context, MOST, &[&["--no-push"], flags].concat());
        eprintln!("{flags:?}: {peak} kB");
    }
}

#[test]
fn of_layers_with_large_zstd_windows_one_is_in_memory() {
    const WINDOW_LOG: u32 = 27;
    let registry = FakeRegistry::start();
    let (diff_ids, layers): (Vec<String>, Vec<Value>) =
        (0..4).map(|number| put_layer(&registry, number, WINDOW_LOG)).unzip();
    let config =
        json!({"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": diff_ids}});
    let config = serde_json::to_vec(&config).expect("JSON");
    let manifest_type = "application/vnd.oci.image.manifest.v1+json";
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": manifest_type,
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": registry.put_blob("zstd", &config).to_string(),
            "size": config.len(),
        },
        "layers": layers,
    });
    registry.put_manifest("zstd", "1", manifest_type, &serde_json::to_vec(&manifest).expect("JSON"));
    let context = Context::new(&format!("FROM {}/zstd:1\nCOPY Dockerfile /\n", registry.host()));
    let window = (1 << WINDOW_LOG) / 1000;
    let peak = build(&context, MOST + window, &["--no-push"]);
    eprintln!("four layers at once: {peak} kB");
}

/// A layer with a file of zeros that is larger than the window it is compressed with: its diff id and its descriptor.
fn put_layer(registry: &FakeRegistry, number: u8, window_log: u32) -> (String, Value) {
    let size = (1 << window_log) + 1_000_000;
    let mut header = tar::Header::new_ustar();
    header.set_mode(0o644);
    header.set_size(size);
    header.set_path(format!("file-{number}")).expect("name");
    header.set_cksum();
    let padding = size.next_multiple_of(512) + 1024;
    let archive = || header.as_bytes().as_slice().chain(io::repeat(0).take(padding));
    let mut digester = Digester::new(Algorithm::Sha256);
    io::copy(&mut archive(), &mut digester).expect("hash");
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).expect("encoder");
    encoder.window_log(window_log).expect("window");
    io::copy(&mut archive(), &mut encoder).expect("compress");
    let blob = encoder.finish().expect("compress");
    let descriptor = json!({
        "mediaType": "application/vnd.oci.image.layer.v1.tar+zstd",
        "digest": registry.put_blob("zstd", &blob).to_string(),
        "size": blob.len(),
    });
    (digester.finish().to_string(), descriptor)
}

/// Where memory lacks, that is said, and nothing waits for it.
#[test]
fn without_enough_memory_a_build_ends() {
    let base = ground().name("busybox:latest");
    let context = Context::new(&format!("FROM {base}\nRUN echo x >/x\n"));
    let builder = Builder::new();
    let limited = |most: usize| {
        let mut command = Command::new("sh");
        command.args(["-euc", &format!("ulimit -v {most}; exec \"$@\""), "sh"]);
        command.arg(env!("CARGO_BIN_EXE_builder"));
        command
    };
    // With less the kernel cannot start it.
    let starts = |most: &usize| finish(limited(*most).arg("version")).code == Some(0);
    let least = (10_000..1_000_000).step_by(2_000).find(starts).expect("it starts");
    let mut short = 0;
    for most in (least..least + 40_000).step_by(2_000) {
        let mut command = limited(most);
        command.arg("--store").arg(builder.store());
        command.env("RUST_BACKTRACE", "1").args(["--no-push", "--no-cache", "-c"]).arg(context.path());
        let finished = finish(&mut command);
        match finished.code {
            Some(0) => {}
            Some(1) => {
                short += 1;
                assert!(finished.stderr.contains("error: "), "{most}: {}", finished.stderr);
            }
            // What the standard library does; its words say it.
            None if finished.stderr.contains("memory allocation of") => short += 1,
            code => panic!("{most}: {code:?}: {}", finished.stderr),
        }
    }
    assert_ne!(short, 0, "there was memory enough for all");
}

#[test]
fn a_large_file_of_a_url_takes_no_more_memory_than_a_small_one() {
    let server = Server::start("127.0.0.1", |_| Answer::new(200).body(vec![b'x'; LARGE as usize]));
    let context = Context::new(&format!("FROM scratch\nADD http://{}/large /\n", server.address));
    build(&context, MOST, &["--no-push"]);
}

#[test]
fn a_repository_is_fetched_without_the_git_command_in_little_memory() {
    use crate::support::web::{Site, git};
    let Some(site) = Site::start() else { return };
    let work = site.repositories().join("work");
    // One large file that is sent whole, and many that are sent as what is different.
    let mut random = fs::File::open("/dev/urandom").expect("random numbers");
    let mut large = fs::File::create(work.join("large")).expect("a file");
    io::copy(&mut random.by_ref().take(LARGE / 2), &mut large).expect("content");
    let mut common = vec![0; 1_000_000];
    random.read_exact(&mut common).expect("random numbers");
    for number in 0..100_u8 {
        common[usize::from(number) * 1000] = number;
        fs::write(work.join(format!("alike-{number}")), &common).expect("a file");
    }
    site.git(&["config", "core.bigFileThreshold", "50m"]);
    site.commit("last", "");
    git(&site.repositories().join("repo.git"), &["gc", "-q"]);
    let context = Context::new(&format!("FROM scratch\nADD {} /x\n", site.url("repo.git")));
    let out = scratch();
    let layout = format!("--oci-layout-path={}", out.path().join("layout").display());
    let arguments = ["--no-push", "--destination=x.example/x:1", layout.as_str()];
    let peak = run("/nonexistent", &["build"], &context, MOST, &arguments);
    eprintln!("{peak} kB");
}

/// Each base is looked at for itself, and all of them stay until the images are written.
#[test]
fn large_configs_of_bases_for_many_platforms_are_refused_before_they_fill_the_memory() {
    const PLATFORMS: usize = 32;
    const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
    const INDEX: &str = "application/vnd.oci.image.index.v1+json";
    let many =
        |each: &dyn Fn(usize) -> String, count: usize| (0..count).map(each).collect::<Vec<_>>().join(",");
    let text = |length: usize| "x".repeat(length);
    for (what, fields) in [
        ("one text", format!(r#""x":"{}""#, text(7_000_000))),
        (
            "labels",
            format!(
                r#""config":{{"Labels":{{{}}}}}"#,
                many(&|number| format!(r#""{number}":"{}""#, text(170)), 36_000)
            ),
        ),
        (
            "rows",
            format!(r#""history":[{}]"#, many(&|_| format!(r#"{{"created_by":"{}"}}"#, text(370)), 18_000)),
        ),
    ] {
        let registry = FakeRegistry::start();
        let entry = |number: usize| {
            let platform = json!({"os": "linux", "architecture": format!("processor{number}")});
            let config = format!(
                r#"{{"os":"linux","architecture":"processor{number}",{fields},"rootfs":{{"type":"layers","diff_ids":[]}}}}"#
            );
            let manifest = json!({
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": {
                    "mediaType": "application/vnd.oci.image.config.v1+json",
                    "digest": registry.put_blob("large", config.as_bytes()).to_string(),
                    "size": config.len(),
                },
                "layers": [],
            });
            let manifest = serde_json::to_vec(&manifest).expect("JSON");
            let digest = registry.put_manifest("large", &number.to_string(), MANIFEST, &manifest);
            json!({"mediaType": MANIFEST, "digest": digest.to_string(), "size": manifest.len(), "platform": platform})
        };
        let entries: Vec<Value> = (0..PLATFORMS).map(entry).collect();
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries});
        registry.put_manifest("large", "1", INDEX, &serde_json::to_vec(&index).expect("JSON"));
        let context = Context::new(&format!("FROM {}/large:1\nENV a=b\n", registry.host()));
        let platforms = |count: usize| {
            let names: Vec<String> = (0..count).map(|number| format!("linux/processor{number}")).collect();
            format!("--custom-platform={}", names.join(","))
        };
        for (count, refused) in [(1, false), (PLATFORMS, true)] {
            // A name of its own: other builds are running.
            let store = scratch();
            let program = store.path().with_extension("builder");
            fs::hard_link(env!("CARGO_BIN_EXE_builder"), &program).expect("link");
            let mut command = Command::new(&program);
            command.arg("--store").arg(store.path()).args(["--no-push", &platforms(count), "-c"]);
            command.arg(context.path()).stdout(Stdio::null()).stderr(Stdio::piped());
            let mut child = command.spawn().expect("start");
            let peak = peak(&mut child, &program);
            fs::remove_file(&program).expect("remove");
            let output = child.wait_with_output().expect("wait");
            let said = String::from_utf8_lossy(&output.stderr);
            eprintln!("{what} for {count}: {peak} kB");
            assert_eq!(!output.status.success(), refused, "{what}: {said}");
            assert_eq!(said.contains("--limit base-config-bytes=N"), refused, "{what}: {said}");
            assert!((1..MOST).contains(&peak), "{what} for {count}: {peak} kB");
        }
    }
}
