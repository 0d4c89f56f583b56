//! Builds that cannot succeed: one error each, with its place and what to do, and nothing half-written.
//!
//! What each prints is in `testdata/failures/NAME.txt`; with `BUILDER_BLESS=1` the files are written anew.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::build_cleanup::registry_with_base;
use crate::support::fake_registry::{Answer, FakeRegistry};
use crate::support::ground::{Ground, ground};
use crate::support::{Builder, Context, finish, scratch, traces};

/// A build that will fail.
struct Attempt {
    name: &'static str,
    ground: Ground,
    builder: Builder,
    context: Context,
    out: TempDir,
    /// Where the image is to be pushed.
    destination: String,
    arguments: Vec<String>,
    /// What a shell does before it starts the builder, in a mount namespace of its own.
    prelude: Option<String>,
    /// Further texts with the words that stand for them in the golden file.
    replaced: Vec<(String, &'static str)>,
    /// What the error has in it, where there is no golden file because it depends on details which line it is.
    words: &'static [&'static str],
}

impl Attempt {
    /// `BASE` in the Dockerfile is the ground's busybox. The name is that of the golden file.
    fn new(name: &'static str, dockerfile: &str) -> Self {
        let ground = ground();
        let dockerfile = dockerfile.replace("BASE", &ground.name("busybox:latest"));
        Self {
            name,
            builder: Builder::new(),
            context: Context::new(&dockerfile),
            out: scratch(),
            destination: ground.name(&format!("failures/{name}:1")),
            ground,
            arguments: Vec::new(),
            prelude: None,
            replaced: Vec::new(),
            words: &[],
        }
    }

    /// Compared with these words, not with a golden file.
    fn saying(self, words: &'static [&'static str]) -> Self {
        Self { words, ..self }
    }

    /// With a file in its context.
    fn file(self, name: &str, content: &str) -> Self {
        self.context.write(name, content);
        self
    }

    /// With a file in its context that is one hole.
    fn hole(self, name: &str, size: u64) -> Self {
        let file = fs::File::create(self.context.path().join(name)).expect("file");
        file.set_len(size).expect("hole");
        self
    }

    /// With further arguments; `OUT` in them is a directory for outputs.
    fn with(mut self, arguments: &[&str]) -> Self {
        let out = self.out.path().to_str().expect("path");
        self.arguments.extend(arguments.iter().map(|argument| argument.replace("OUT", out)));
        self
    }

    /// With a registry that does as it is told. `FAKE` in the Dockerfile is its address.
    fn registry(mut self, registry: &FakeRegistry) -> Self {
        let path = self.context.path().join("Dockerfile");
        let text = fs::read_to_string(&path).expect("Dockerfile").replace("FAKE", &registry.host());
        fs::write(path, text).expect("Dockerfile");
        self.replaced.push((registry.host(), "FAKE"));
        self
    }

    /// With a directory in `OUT`.
    fn having(self, name: &str) -> Self {
        fs::create_dir(self.out.path().join(name)).expect("directory");
        self
    }

    /// Pushed elsewhere.
    fn to(mut self, destination: &str) -> Self {
        self.destination = destination.to_owned();
        self
    }

    /// Started by a shell that has done this before, in a mount namespace of its own; `STORE` and `OUT` are directories.
    fn after(mut self, prelude: &str) -> Self {
        let paths = [("STORE", self.builder.store()), ("OUT", self.out.path())];
        let prelude = paths
            .iter()
            .fold(prelude.to_owned(), |text, (word, path)| text.replace(word, path.to_str().expect("path")));
        self.prelude = Some(prelude);
        self
    }

    fn command(&self) -> Command {
        let mut command = self.builder.command();
        if let Some(prelude) = &self.prelude {
            let program = command.get_program().to_owned();
            // What is in these mounts can only be seen from there.
            let look = format!(
                "find {} {}/tmp -type d -printf '%p\\n' -o -printf '%p %s\\n' 2>/dev/null | sort",
                self.out.path().display(),
                self.builder.store().display()
            );
            let script = format!(
                "set -e\n{prelude}\n{look} >before || :\ncode=0\n\"$@\" || code=$?\n{look} >after || :\nexit $code"
            );
            let mut wrapped = Command::new("unshare");
            wrapped.args(["--mount", "--propagation", "private", "sh", "-c", &script, "sh"]).arg(program);
            wrapped.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
            wrapped.current_dir(command.get_current_dir().expect("directory"));
            command = wrapped;
        }
        command
    }

    /// Runs it with every kind of output.
    #[track_caller]
    fn fails(self) {
        let out = self.out.path().display();
        let arguments = [
            format!("--context={}", self.context.path().display()),
            format!("--destination={}", self.destination),
            format!("--oci-layout-path={out}/new/layout"),
            format!("--tar-path={out}/new/image.tar"),
            format!("--digest-file={out}/new/digest"),
        ];
        self.fails_with(&arguments);
    }

    /// Runs it with these arguments and its own, and compares.
    #[track_caller]
    fn fails_with(self, arguments: &[String]) {
        let before = listing(self.out.path());
        let finished = finish(self.command().args(arguments).args(&self.arguments));
        let shown = format!("{}\n{}", finished.command, finished.stderr);
        let errors = finished.stderr.lines().filter(|line| line.starts_with("error:")).count();
        assert_eq!(errors, 1, "{shown}");
        assert!(!finished.stderr.contains("panicked"), "{shown}");
        assert_eq!(finished.stdout, "", "{shown}");
        assert_eq!(listing(self.out.path()), before, "outputs were written: {shown}");
        if self.prelude.is_some() {
            let home = self.builder.command().get_current_dir().expect("home").to_owned();
            let seen = |name| {
                let text = fs::read_to_string(home.join(name)).expect("listing");
                text.replace(&format!("{}/tmp\n", self.builder.store().display()), "")
            };
            assert_eq!(seen("after"), seen("before"), "{shown}");
        }
        assert_eq!(self.tag(), 404, "an image was pushed: {shown}");
        traces::assert_none(self.builder.store());
        let code = finished.code.map_or("none".to_owned(), |code| code.to_string());
        self.compare(&format!("exit {code}\n{}", self.normalised(&finished.stderr)));
    }

    /// From the error on: what was built before is not what this is about.
    fn normalised(&self, stderr: &str) -> String {
        let text = self.with_words(stderr);
        if self.words.is_empty() { without_sizes(&text) } else { text }
    }

    fn with_words(&self, stderr: &str) -> String {
        let mut text = stderr[stderr.find("error:").expect("error")..].to_owned();
        let mut known: Vec<(String, &str)> = self.replaced.clone();
        for (path, word) in
            [(self.builder.store(), "STORE"), (self.context.path(), "CONTEXT"), (self.out.path(), "OUT")]
        {
            known.push((path.to_str().expect("path").to_owned(), word));
        }
        known.push((self.ground.registry.clone(), "REGISTRY"));
        for (found, word) in known {
            text = text.replace(&found, word);
        }
        without_digests(&text)
    }

    fn compare(&self, text: &str) {
        if !self.words.is_empty() {
            assert!(text.starts_with("exit 1\n"), "{text}");
            assert!(self.words.iter().all(|word| text.contains(word)), "{:?}\n{text}", self.words);
            return;
        }
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("testdata/failures/{}.txt", self.name));
        if std::env::var_os("BUILDER_BLESS").is_some() {
            fs::write(&path, text).expect("golden file");
        }
        let expected = fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(text, expected, "{}", path.display());
    }

    /// How the registry answers when it is asked for the destination.
    fn tag(&self) -> u16 {
        let Some((repository, tag)) = self
            .destination
            .strip_prefix(&format!("{}/", self.ground.registry))
            .and_then(|rest| rest.rsplit_once(':'))
        else {
            return 404;
        };
        let mut connection = TcpStream::connect(&self.ground.registry).expect("registry");
        write!(
            connection,
            "HEAD /v2/{repository}/manifests/{tag} HTTP/1.0\r\nAccept: */*\r\nHost: {}\r\n\r\n",
            self.ground.registry
        )
        .expect("ask the registry");
        let mut answer = String::new();
        connection.read_to_string(&mut answer).expect("the registry's answer");
        answer.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("status")
    }
}

/// Every path below a directory.
fn listing(directory: &Path) -> Vec<PathBuf> {
    let mut pending = vec![directory.to_owned()];
    let mut found = Vec::new();
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(directory).expect("directory") {
            let path = entry.expect("entry").path();
            if path.is_dir() && !path.is_symlink() {
                pending.push(path.clone());
            }
            found.push(path);
        }
    }
    found.sort();
    found
}

/// How much room is left depends on the kernel, and on when one looks.
fn without_sizes(text: &str) -> String {
    let split = |when: &'static str| text.split_once(when).map(|(before, after)| (before, when, after));
    let found = split(" free now)").or_else(|| split(" free when it failed)"));
    let Some((before, when, after)) = found else { return text.to_owned() };
    let sized = before.rfind('(').expect("what is free stands in brackets");
    format!("{}(SOME{when}{after}", &before[..sized])
}

/// Digests differ from one ground to the next.
fn without_digests(text: &str) -> String {
    let is_digest = |word: &str| word.len() == 64 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let words = text.split_inclusive(|c: char| !c.is_ascii_alphanumeric());
    words
        .map(|piece| {
            let word = piece.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
            if is_digest(word) { piece.replace(word, "DIGEST") } else { piece.to_owned() }
        })
        .collect()
}

// The Dockerfile.

#[test]
fn an_unknown_instruction() {
    Attempt::new("unknown-instruction", "FROM scratch\n\nCOPPY f /\n").fails();
}

#[test]
fn an_unknown_flag_of_an_instruction() {
    Attempt::new("unknown-instruction-flag", "FROM scratch\nCOPY --chwon=1:1 \\\n  Dockerfile /\n").fails();
}

#[test]
fn build_checks_that_are_to_be_passed() {
    Attempt::new("checks", "# check=error=true\nFROM scratch\nLABEL a=$b \\\n  c=d\nCMD x\n").fails();
}

#[test]
fn a_flag_that_is_not_there_yet() {
    Attempt::new("not-yet", "FROM BASE\nRUN --device=vendor.example/class=name true\n").fails();
}

#[test]
fn an_empty_dockerfile() {
    Attempt::new("empty-dockerfile", "# nothing\n").fails();
}

#[test]
fn an_instruction_before_from() {
    Attempt::new("no-from", "RUN true\nFROM scratch\n").fails();
}

#[test]
fn no_dockerfile() {
    let attempt = Attempt::new("no-dockerfile", "");
    fs::remove_file(attempt.context.path().join("Dockerfile")).expect("remove");
    attempt.fails();
}

#[test]
fn a_named_dockerfile_that_is_not_there() {
    Attempt::new("named-dockerfile", "FROM scratch\n").with(&["--dockerfile=sub/Dockerfile.arm"]).fails();
}

#[test]
fn no_context() {
    let attempt = Attempt::new("no-context", "FROM scratch\n");
    let destination = format!("--destination={}", attempt.destination);
    let context = format!("--context={}/nowhere", attempt.context.path().display());
    attempt.fails_with(&[context, destination]);
}

#[test]
fn a_context_that_is_a_file() {
    let attempt = Attempt::new("context-file", "FROM scratch\n");
    let destination = format!("--destination={}", attempt.destination);
    let context = format!("--context={}/Dockerfile", attempt.context.path().display());
    attempt.fails_with(&[context, destination]);
}

#[test]
fn an_unknown_target() {
    Attempt::new("target", "FROM scratch AS one\nFROM scratch AS two\n").with(&["--target=three"]).fails();
}

// COPY.

#[test]
fn a_missing_source() {
    Attempt::new("copy-missing", "FROM scratch\nCOPY missing.txt /app/\n").fails();
}

#[test]
#[expect(clippy::disallowed_methods, reason = "makes the trap")]
fn a_source_that_is_a_loop_of_links() {
    for (name, dockerfile) in [
        ("copy-link-loop", "FROM scratch\nCOPY sl/loop /o\n"),
        ("mount-link-loop", "FROM BASE\nRUN --mount=target=/o,source=sl/loop true\n"),
    ] {
        let attempt = Attempt::new(name, dockerfile);
        fs::create_dir(attempt.context.path().join("sl")).expect("directory");
        std::os::unix::fs::symlink("loop", attempt.context.path().join("sl/loop")).expect("link");
        attempt.fails();
    }
}

#[test]
fn a_source_that_dockerignore_excludes() {
    Attempt::new("copy-excluded", "FROM scratch\n\nCOPY build/a.txt /app/\n")
        .file("build/a.txt", "here")
        .file(".dockerignore", "# texts\n\n**/*.txt\n")
        .fails();
}

#[test]
fn a_source_that_the_stage_has_not() {
    Attempt::new(
        "copy-from-stage",
        "FROM BASE AS compile\nRUN touch /made\nFROM scratch\nCOPY --from=compile /mode /app/\n",
    )
    .fails();
}

// Bases and platforms.

#[test]
fn a_base_that_is_not_there() {
    let base = ground().name("no-such-base:1");
    Attempt::new("base-missing", &format!("ARG A\nFROM {base} AS x\nRUN true\n")).fails();
}

#[test]
fn a_platform_that_the_base_has_not() {
    Attempt::new("platform-missing", "FROM BASE\nRUN true\n")
        .with(&["--custom-platform=linux/riscv64"])
        .fails();
}

#[test]
fn a_platform_that_is_none() {
    Attempt::new("platform-invalid", "FROM BASE\n").with(&["--custom-platform=arm/v7/linux/x"]).fails();
}

#[test]
fn one_of_several_platforms() {
    Attempt::new("platforms", "FROM BASE\n").with(&["--platform=linux/amd64,linux/riscv64"]).fails();
}

#[test]
fn a_registry_that_is_down() {
    // Nothing listens on a port that was free a moment ago.
    let address = std::net::TcpListener::bind("127.0.0.1:0").expect("port").local_addr().expect("address");
    let mut attempt = Attempt::new("registry-down", &format!("FROM {address}/a/base:1\nRUN true\n"));
    attempt.replaced.push((address.to_string(), "ADDRESS"));
    attempt.fails();
}

#[test]
fn a_destination_that_is_down() {
    let address = std::net::TcpListener::bind("127.0.0.1:0").expect("port").local_addr().expect("address");
    let mut attempt = Attempt::new("destination-down", "FROM BASE\nRUN echo built >&2\n");
    attempt.replaced.push((address.to_string(), "ADDRESS"));
    attempt.to(&format!("{address}/a/b:1")).fails();
}

#[test]
fn a_base_that_wants_a_password() {
    let registry = FakeRegistry::start();
    registry.guard("Basic bWU6c2VjcmV0", "Basic realm=\"fake\"");
    Attempt::new("unauthorized-basic", "FROM FAKE/base:1\n").registry(&registry).fails();
}

#[test]
fn a_base_that_wants_a_token() {
    let registry = FakeRegistry::start();
    let realm = format!("Bearer realm=\"http://{}/token\",service=\"fake\"", registry.host());
    registry.guard("Bearer good", &realm);
    registry.fault("GET", "/token", 9, Answer::error(401, "UNAUTHORIZED", "authentication required"));
    Attempt::new("unauthorized-bearer", "FROM FAKE/base:1\n").registry(&registry).fails();
}

#[test]
fn a_wrong_password() {
    let registry = FakeRegistry::start();
    registry.guard("Basic bWU6c2VjcmV0", "Basic realm=\"fake\"");
    let attempt = Attempt::new("wrong-password", "FROM FAKE/base:1\n").registry(&registry);
    let config = format!("{{\"auths\": {{\"{}\": {{\"auth\": \"bWU6d3Jvbmc=\"}}}}}}", registry.host());
    let home = attempt.builder.command().get_current_dir().expect("home").to_owned();
    fs::create_dir(home.join(".docker")).expect("directory");
    fs::write(home.join(".docker/config.json"), config).expect("config.json");
    let mut attempt = attempt;
    attempt.replaced.push((home.display().to_string(), "HOME"));
    attempt.fails();
}

#[test]
fn a_destination_that_may_not_be_written() {
    let registry = FakeRegistry::start();
    registry.fault("POST", "/blobs/uploads/", 9, Answer::error(403, "DENIED", "not yours"));
    let attempt = Attempt::new("destination-denied", "FROM scratch\nCOPY Dockerfile /\n").registry(&registry);
    attempt.to(&format!("{}/mine/image:1", registry.host())).fails();
}

#[test]
fn no_tag_is_moved_when_one_of_several_destinations_fails() {
    let registry = FakeRegistry::start();
    registry.fault("PUT", "/v2/mine/image/blobs/uploads/", 9, Answer::error(403, "DENIED", "quota exceeded"));
    let attempt = Attempt::new("one-destination", "FROM scratch\nCOPY Dockerfile /\n").registry(&registry);
    let other = format!("--destination={}/mine/image:1", registry.host());
    let first = format!("--destination={}", attempt.destination);
    let context = format!("--context={}", attempt.context.path().display());
    attempt.fails_with(&[context, first, other]);
}

#[test]
fn a_layer_with_another_digest() {
    let (registry, _) = registry_with_base(&Builder::new());
    let (_, manifest) = registry.manifest("base", "1").expect("manifest");
    let manifest: serde_json::Value = serde_json::from_slice(&manifest).expect("manifest");
    let layer = manifest["layers"][0]["digest"].as_str().expect("layer");
    let size = usize::try_from(manifest["layers"][0]["size"].as_u64().expect("size")).expect("size");
    registry.fault("GET", &format!("/blobs/{layer}"), 9, Answer::new(200).body(noise(size)));
    Attempt::new("wrong-digest", "FROM FAKE/base:1\nWORKDIR /w\n").registry(&registry).fails();
}

#[test]
fn a_user_that_the_image_does_not_know() {
    Attempt::new("run-user", "FROM BASE\nUSER nosuchuser\nRUN true\n").fails();
}

#[test]
fn a_failing_step_gives_its_exit_code() {
    Attempt::new("run-exit", "FROM BASE AS x\nRUN echo one; \\\n    exit 42\n").fails();
}

#[test]
fn a_program_that_is_not_there() {
    Attempt::new("run-missing", "FROM BASE\nRUN [\"/usr/bin/nope\", \"x\"]\n").fails();
}

#[test]
fn a_program_that_is_not_in_path() {
    Attempt::new("run-not-in-path", "FROM BASE\nRUN [\"nope\", \"x\"]\n").fails();
}

#[test]
fn no_shell() {
    Attempt::new("run-no-shell", "FROM scratch\nRUN true\n").fails();
}

#[test]
fn no_handler_for_the_platform() {
    if Path::new("/proc/sys/fs/binfmt_misc/qemu-riscv64").exists() {
        eprintln!("skipped `no_handler_for_the_platform`: this machine can run linux/riscv64");
        return;
    }
    let mut attempt = Attempt::new("no-handler", "FROM scratch\nCOPY Dockerfile /\nRUN [\"/prog\"]\n");
    let host = if cfg!(target_arch = "aarch64") { "linux/arm64" } else { "linux/amd64" };
    attempt.replaced.push((host.to_owned(), "HOST"));
    // Nor any qemu, which would do without one.
    attempt.builder = Builder::without_programs();
    attempt.with(&["--custom-platform=linux/riscv64"]).fails();
}

// Flags.

#[test]
fn an_unknown_flag() {
    Attempt::new("unknown-flag", "FROM scratch\n").with(&["--frobnicate"]).fails();
}

#[test]
fn a_misspelt_flag() {
    Attempt::new("misspelt-flag", "FROM scratch\n").with(&["--build-args=a=b"]).fails();
}

#[test]
fn no_destination() {
    let attempt = Attempt::new("no-destination", "FROM scratch\n");
    let context = format!("--context={}", attempt.context.path().display());
    attempt.fails_with(&[context]);
}

#[test]
fn a_destination_that_is_no_name() {
    Attempt::new("bad-destination", "FROM scratch\n").to("Registry/UPPER:1").fails();
}

#[test]
fn flags_with_values_that_are_none() {
    for (name, flag) in [
        ("bad-label", "--label=x"),
        ("bad-match", "--platform-match=near"),
        ("bad-verbosity", "--verbosity=loud"),
        ("bad-epoch", "--build-arg=SOURCE_DATE_EPOCH=yesterday"),
        ("bad-bool", "--no-push=maybe"),
        ("bad-snapshotter", "--snapshotter=overlay2"),
        ("bad-snapshot-mode", "--snapshot-mode=fast"),
        ("output-type", "--output=type=dockr"),
        ("output-without-type", "--output=dest=x"),
        ("output-key", "--output=type=oci,dest=x,compresion=zstd"),
        ("output-key-of-others", "--output=type=local,dest=x,name=y"),
        ("output-compression", "--output=type=oci,dest=x,compression=estargz"),
        ("output-level", "--output=type=oci,dest=x,compression-level=10"),
        ("output-later", "--output=type=oci,dest=x,oci-artifact=true"),
        ("output-index-annotation", "--output=type=oci,dest=x,annotation-index.k=v"),
        ("output-daemon", "--output=type=docker"),
        ("output-no-directory", "--output=type=local"),
        ("output-root", "--output=/"),
        ("output-misspelt", "--output=tpye=local"),
        ("bad-compression", "--compression=lz4"),
        ("one-dash", "-target=x"),
        ("empty-path", "--metadata-file="),
        ("output-load", "--load"),
        ("output-attestation", "--provenance=mode=max"),
        ("output-annotation", "--annotation=what"),
        ("image-format", "--image-format=v1"),
    ] {
        Attempt::new(name, "FROM scratch\n").with(&[flag]).fails();
    }
}

#[test]
fn an_epoch_of_the_environment_that_is_no_time() {
    Attempt::new("bad-epoch-variable", "FROM scratch\n").after("export SOURCE_DATE_EPOCH=yesterday").fails();
}

#[test]
fn outputs_that_something_else_occupies() {
    for (name, flag) in [
        ("layout-occupied", "--oci-layout-path=OUT/mine"),
        ("archive-occupied", "--tar-path=OUT/mine"),
        ("digest-occupied", "--digest-file=OUT/mine"),
    ] {
        let attempt = Attempt::new(name, "FROM BASE\nRUN touch /x\n").having("mine");
        fs::write(attempt.out.path().join("mine/notes"), "mine").expect("file");
        attempt.with(&["--no-push"]).fails_with_output(flag);
    }
}

impl Attempt {
    /// With this output alone.
    #[track_caller]
    fn fails_with_output(self, flag: &str) {
        let attempt = self.with(&[flag]);
        let context = format!("--context={}", attempt.context.path().display());
        attempt.fails_with(&[context]);
    }
}

// The machine.

const NO_ROOM: &[&str] =
    &["`STORE", "No space left on device", "hint: the disk that holds the store `STORE` had too little room"];

const SMALL_STORE: &str = "mount -t tmpfs -o size=20m none STORE";

#[test]
fn a_disk_that_is_full_when_a_step_writes() {
    Attempt::new("full-step", "FROM BASE\nRUN dd if=/dev/urandom of=/big bs=1M count=40 2>/dev/null\n")
        .after(SMALL_STORE)
        .fails();
}

#[test]
fn a_disk_that_is_full_when_files_are_copied() {
    let attempt = Attempt::new("full-copy", "FROM BASE\nCOPY big /\n");
    attempt.context.write("big", noise(30 << 20));
    attempt.after(SMALL_STORE).fails();
}

#[test]
fn a_disk_that_is_full_when_a_layer_is_stored() {
    let attempt = Attempt::new("full-layer", "FROM scratch\nCOPY big /\n");
    attempt.context.write("big", noise(12 << 20));
    attempt.after(SMALL_STORE).fails();
}

#[test]
fn a_disk_that_is_full_when_a_base_is_fetched() {
    let base = ground().name("debian:latest");
    Attempt::new("full-fetch", &format!("FROM {base}\nRUN true\n")).after(SMALL_STORE).fails();
}

#[test]
fn a_disk_that_is_full_when_a_base_is_unpacked() {
    Attempt::new("full-unpack", "FROM BASE\nRUN true\n")
        .after("mount -t tmpfs -o size=2m none STORE")
        .fails();
}

#[test]
fn a_disk_that_is_full_when_the_image_is_described() {
    // Room for the store's own three files and nothing else.
    Attempt::new("full-documents", "FROM scratch\nCMD [\"/x\"]\n")
        .after("mount -t tmpfs -o size=12k none STORE")
        .saying(NO_ROOM)
        .fails();
}

#[test]
fn a_disk_without_room_for_a_store() {
    Attempt::new("full-store", "FROM scratch\n")
        .after("mount -t tmpfs -o size=4k none STORE")
        .saying(NO_ROOM)
        .fails();
}

#[test]
fn a_disk_without_inodes() {
    for (inodes, words) in [
        (8, &["`STORE", "No space left on device", "too few inodes ("]),
        (40, &["cannot unpack the layer", "caused by: entry", "has too few inodes ("]),
    ] {
        Attempt::new("inodes", "FROM BASE\nRUN true\n")
            .after(&format!("mount -t tmpfs -o nr_inodes={inodes} none STORE"))
            .saying(words)
            .fails();
    }
    Attempt::new("inodes-step", "FROM BASE\nRUN for n in $(seq 1000); do echo >/$n || exit 1; done\n")
        .after("mount -t tmpfs -o nr_inodes=700 none STORE")
        .fails();
}

#[test]
fn a_disk_without_room_for_extended_attributes() {
    let attempt = Attempt::new("full-attributes", "FROM BASE\nADD archive.tar /\n");
    attempt.context.write("archive.tar", archive_with_attribute("user.large", &[b'x'; 6000]));
    let prelude = "truncate -s 64M disk && mkfs.ext4 -q disk && mount -o loop disk STORE";
    let possible = finish(Command::new("unshare").args([
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        &format!("cd {} && {}", attempt.out.path().display(), prelude.replace("STORE", "/mnt")),
    ]));
    fs::remove_file(attempt.out.path().join("disk")).expect("disk");
    if possible.code != Some(0) {
        eprintln!("skipped: no ext4 on a loop device: {}", possible.stderr);
        return;
    }
    attempt.after(prelude).fails();
}

#[test]
fn attributes_that_linux_refuses() {
    let long = format!("user.{}", "n".repeat(300));
    for (name, attribute, value) in [
        ("attribute-value", "user.large", &vec![b'x'; 65_537][..]),
        ("attribute-name", &*long, b"xyz"),
        ("attribute-acl", "system.posix_acl_access", b"\x02\0\0\0xyz"),
        ("attribute-capability", "security.capability", b"xyz"),
    ] {
        let attempt = Attempt::new(name, "FROM BASE\nADD archive.tar /\n");
        attempt.context.write("archive.tar", archive_with_attribute(attribute, value));
        attempt.fails();
    }
}

/// An archive with one file, which has this attribute.
fn archive_with_attribute(name: &str, value: &[u8]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    archive.append_pax_extensions([(&*format!("SCHILY.xattr.{name}"), value)]).expect("archive");
    let mut header = tar::Header::new_ustar();
    header.set_mode(0o644);
    header.set_size(0);
    header.set_cksum();
    archive.append_data(&mut header, "file", &b""[..]).expect("archive");
    archive.into_inner().expect("archive")
}

#[test]
fn files_that_are_longer_than_the_process_may_write() {
    Attempt::new("file-limit", "FROM BASE\nRUN true\n").after("ulimit -f 100").fails();
}

#[test]
fn more_than_a_layer_may_hold() {
    let step = "RUN dd if=/dev/null of=/hole bs=1 count=0 seek=1099511627776 2>/dev/null";
    for snapshotter in ["overlayfs", "native"] {
        Attempt::new("limit-run", &format!("FROM BASE\n{step}\n"))
            .with(&["--snapshotter", snapshotter])
            .fails();
    }
    Attempt::new("limit-copy", "FROM BASE\nCOPY hole /\n").hole("hole", 1 << 40).fails();
}

#[test]
fn limits_of_what_is_read() {
    Attempt::new("limit-dockerfile", "FROM BASE\n").with(&["--limit=dockerfile-bytes=8"]).fails();
    Attempt::new("limit-manifest", "FROM BASE\n").with(&["--limit=manifest-bytes=8"]).fails();
    Attempt::new("limit-entries", "FROM BASE\nRUN true\n").with(&["--limit=layer-entries=8"]).fails();
    Attempt::new("limit-unknown", "FROM BASE\n").with(&["--limit=layer-entires=8"]).fails();
}

#[test]
fn a_disk_that_is_full_when_outputs_are_written() {
    for (name, flag) in [
        ("full-layout", "--oci-layout-path=OUT/small/layout"),
        ("full-archive", "--tar-path=OUT/small/a"),
        ("full-root-archive", "--output=type=tar,dest=OUT/small/a"),
        ("full-root-directory", "--output=OUT/small/new"),
        ("full-root-there", "--output=OUT/small"),
    ] {
        let attempt = Attempt::new(name, "FROM scratch\nCOPY big /\n");
        attempt.context.write("big", noise(4 << 20));
        attempt
            .having("small")
            .after("mount -t tmpfs -o size=2m none OUT/small")
            .with(&["--no-push"])
            .fails_with_output(flag);
    }
}

#[test]
fn a_disk_that_is_full_when_the_digest_is_written() {
    Attempt::new("full-digest", "FROM scratch\n")
        .after("mount -t tmpfs -o size=4k none OUT/small && head -c 4096 /dev/zero >OUT/small/filled")
        .with(&["--no-push"])
        .having("small")
        .fails_with_output("--digest-file=OUT/small/digest");
}

#[test]
fn a_store_that_is_read_only() {
    Attempt::new("read-only-store", "FROM BASE\nRUN true\n")
        .after("mount --bind STORE STORE && mount -o remount,bind,ro STORE")
        .fails();
}

#[test]
fn a_store_that_is_something_else() {
    let attempt = Attempt::new("foreign-store", "FROM BASE\nRUN true\n");
    fs::write(attempt.builder.store().join("notes"), "mine").expect("file");
    attempt.fails();
}

#[test]
fn no_user_namespace() {
    // Root of a namespace limits it, and then has no rights any more.
    let inside =
        "echo 0 >/proc/sys/user/max_user_namespaces; exec setpriv --bounding-set=-all --inh-caps=-all \"$@\"";
    Attempt::new("no-user-namespace", "FROM BASE\nRUN true\n")
        .after(&format!("set -- unshare --user --map-root-user sh -euc '{inside}' sh \"$@\""))
        .fails();
}

#[test]
fn root_that_may_not_map_itself() {
    Attempt::new("no-setfcap", "FROM BASE\nRUN true\n")
        .after("set -- setpriv --bounding-set=-sys_admin,-setfcap,-sys_chroot --inh-caps=-all \"$@\"")
        .fails();
}

#[test]
fn a_store_of_another_user() {
    Attempt::new("store-of-another", "FROM BASE\nRUN true\n")
        .after(
            "echo 1 >STORE/version; chmod 700 STORE
             set -- setpriv --reuid 54321 --regid 54321 --clear-groups \"$@\"",
        )
        .fails();
}

#[test]
fn a_store_that_is_damaged() {
    for (name, prelude) in [
        ("store-version", "echo one >STORE/version"),
        ("store-catalog", "echo 1 >STORE/version; mkdir STORE/index.json"),
    ] {
        Attempt::new(name, "FROM BASE\nRUN true\n").after(prelude).fails();
    }
}

#[test]
fn a_user_without_an_id() {
    Attempt::new("run-user-id", "FROM scratch\nUSER 1000\nCOPY Dockerfile /\nRUN [\"/Dockerfile\"]\n")
        .after("set -- unshare --user --map-root-user \"$@\"")
        .fails();
}

/// Bytes that cannot be compressed.
fn noise(size: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(size);
    bytes
}

#[test]
fn outputs_that_would_overwrite_something_are_refused_before_anything_is_built() {
    let context = Context::new("FROM scratch\nCOPY Dockerfile /\n");
    let builder = Builder::new();
    let out = scratch();
    let run = |flags: &[String]| {
        let context = context.path().display().to_string();
        let all = ["--no-push".to_owned(), format!("--context={context}")];
        builder.run(all.iter().chain(flags)).exited(1).stderr
    };
    let file = out.path().join("file").display().to_string();
    let store = builder.store().display().to_string();
    let missing = out.path().join("missing").display().to_string();
    let dockerfile = context.path().join("Dockerfile").display().to_string();
    let other_name = out.path().join("other-name").display().to_string();
    fs::hard_link(&dockerfile, &other_name).expect("link");
    for (flags, expected) in [
        (vec![format!("--digest-file={store}/version")], "is in the store"),
        (vec![format!("--oci-layout-path={store}/x")], "is in the store"),
        (vec![format!("--tar-path={dockerfile}")], "would overwrite the Dockerfile"),
        (vec![format!("--tar-path={file}"), format!("--digest-file={file}")], "would overwrite `"),
        (
            vec![
                format!("--output=type=tar,dest={file}"),
                format!("--output=type=oci,dest={missing}/../file"),
            ],
            "missing/../file` would overwrite `",
        ),
        (vec![format!("--output={file}"), format!("--output={file}/")], "file/` would overwrite `"),
        (
            vec![format!("--output=type=tar,dest={file}"), format!("--metadata-file={file}/x")],
            "is in what is written as `",
        ),
        (vec![format!("--tar-path={other_name}")], "is another name of the same file, and would overwrite"),
        (vec![format!("--digest-file={dockerfile}/x")], "is not a directory"),
    ] {
        let error = run(&flags);
        assert!(error.contains(expected), "{flags:?}: {error}");
        assert!(!error.contains("[1/"), "something was built: {error}");
    }
    assert_eq!(
        std::fs::read_to_string(&dockerfile).expect("Dockerfile"),
        "FROM scratch\nCOPY Dockerfile /\n"
    );
    builder.run(["--no-push".to_owned(), format!("--context={}", context.path().display())]).success();
}
