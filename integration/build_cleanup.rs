//! What is left of a build when it has ended, however it ended: nothing.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::support::fake_registry::{Answer, Ending, FakeRegistry};
use crate::support::ground::{Ground, ground};
use crate::support::oci::skopeo;
use crate::support::process_one::{ProcessOne, as_process_one};
use crate::support::traces::{self, Family, Running};
use crate::support::{Builder, Context, Finished, finish, scratch};

/// Leaves daemons behind, then says that it is there.
const DAEMONS: &str = "setsid sleep 1000 & (trap '' TERM INT HUP; sleep 1000) & touch /made; echo ready";

/// What a build says that finds what a killed one left.
const SWEEPING: &str = "removing what a killed build left in the store";

/// A build with every kind of output.
struct Build {
    ground: Ground,
    builder: Builder,
    context: Context,
    out: TempDir,
    repository: String,
}

impl Build {
    /// One whose last step is this RUN.
    fn of(name: &str, run: &str) -> Self {
        let ground = ground();
        let base = ground.name("busybox:latest");
        let dockerfile = format!("FROM {base}\nCOPY Dockerfile /\nRUN {run}\n");
        let repository = format!("cleanup-{}/{name}", std::process::id());
        Self {
            ground,
            builder: Builder::new(),
            context: Context::new(&dockerfile),
            out: scratch(),
            repository,
        }
    }

    fn destination(&self) -> String {
        self.ground.name(&format!("{}:kept", self.repository))
    }

    /// Pushes something else to the destination first; gives its digest.
    fn occupy(&self) -> String {
        self.ground.copy("busybox:latest", &self.repository);
        let from = format!("docker://{}", self.ground.name(&format!("{}:latest", self.repository)));
        let to = format!("docker://{}", self.destination());
        let insecure = ["--src-tls-verify=false", "--dest-tls-verify=false"];
        skopeo(&["copy", "--quiet", "--all", "--preserve-digests", insecure[0], insecure[1], &from, &to]);
        self.tag()
    }

    /// What the destination's tag points to.
    fn tag(&self) -> String {
        let name = format!("docker://{}", self.destination());
        skopeo(&["inspect", "--raw", "--tls-verify=false", &name])
    }

    fn command(&self) -> Command {
        let mut command = self.builder.command();
        let out = self.out.path();
        command
            .arg("--context")
            .arg(self.context.path())
            .args(["--destination", &self.destination()])
            .arg("--oci-layout-path")
            .arg(out.join("layout"))
            .arg("--tar-path")
            .arg(out.join("image.tar"))
            .arg("--digest-file")
            .arg(out.join("digest"));
        command
    }

    /// Starts it and waits until the RUN says that it is there.
    fn start(&self) -> (Running, Family) {
        self.started(&mut self.command())
    }

    fn started(&self, command: &mut Command) -> (Running, Family) {
        let mut running = Running::start(command);
        running.wait_for("| ready");
        let family = Family::of(running.id());
        // The builder, the supervisor and the command: who looks for nothing finds nothing.
        assert!(family.size() >= 3, "{family:?}");
        let seen = traces::of(self.builder.store()).join("\n");
        for part in ["builder-janitor", "was started with the store", "sees a mount of the store", "is left"]
        {
            assert!(seen.contains(part), "while it runs, no `{part}` in\n{seen}");
        }
        (running, family)
    }

    /// Asserts that nothing of the build is left, but the store that it will use again.
    #[track_caller]
    fn assert_gone(&self, family: &Family) {
        traces::assert_none(self.builder.store());
        traces::assert_empty(|| family.left());
    }

    #[track_caller]
    fn assert_nothing_written(&self, tag: &str) {
        let written: Vec<PathBuf> = self
            .out
            .path()
            .read_dir()
            .expect("directory")
            .map(|entry| entry.expect("entry").path())
            .collect();
        assert!(written.is_empty(), "{written:?}");
        assert_eq!(self.tag(), tag, "the tag was moved");
    }

    /// Builds the same with another RUN, in the same store.
    #[track_caller]
    fn assert_a_rebuild_works(&self) -> Finished {
        let dockerfile = format!("FROM {}\nRUN touch /made\n", self.ground.name("busybox:latest"));
        self.context.write("Dockerfile", dockerfile);
        let finished = Running::start(&mut self.command()).end(Duration::from_secs(60)).success();
        assert!(self.tag().contains("vnd.oci.image.manifest"), "{}", self.tag());
        assert!(finished.stdout.starts_with("sha256:"));
        for name in ["layout/index.json", "image.tar", "digest"] {
            assert!(self.out.path().join(name).exists(), "{name}");
        }
        traces::assert_none(self.builder.store());
        finished
    }
}

#[test]
fn nothing_is_left_after_success_though_a_step_left_daemons() {
    let build = Build::of("success", &format!("{DAEMONS}; sleep 0.5"));
    let (running, family) = build.start();
    let finished = running.end(Duration::from_secs(60)).success();
    assert_eq!(finished.stdout.len(), "sha256:\n".len() + 64);
    build.assert_gone(&family);
    build.assert_a_rebuild_works();
}

#[test]
fn nothing_is_left_after_a_failing_step() {
    let build = Build::of("failure", &format!("{DAEMONS}; sleep 0.5; exit 3"));
    let tag = build.occupy();
    let (running, family) = build.start();
    let finished = running.end(Duration::from_secs(60)).exited(3);
    assert_eq!(finished.stdout, "");
    build.assert_gone(&family);
    build.assert_nothing_written(&tag);
    build.assert_a_rebuild_works();
}

/// Interrupts a build in its RUN and looks at what is left.
fn interrupted(name: &str, interrupt: impl FnOnce(&Running)) -> Finished {
    let build = Build::of(name, &format!("{DAEMONS}; sleep 1000"));
    let tag = build.occupy();
    let (running, family) = build.start();
    interrupt(&running);
    let finished = running.end(Duration::from_secs(5));
    build.assert_gone(&family);
    build.assert_nothing_written(&tag);
    build.assert_a_rebuild_works();
    finished
}

/// The same, for a builder that is process 1 of a pid namespace.
fn interrupted_process_one(name: &str, signal: Signal) -> Finished {
    let build = Build::of(name, &format!("{DAEMONS}; sleep 1000"));
    let tag = build.occupy();
    let (running, family) = build.started(&mut as_process_one(&build.command()));
    ProcessOne::of_running(&running).signal(signal);
    let finished = running.end(Duration::from_secs(5));
    traces::assert_empty(|| family.left());
    // Its janitor dies with it, as with a pod; on a busy machine it may have seen that builder is gone before that.
    let left = signal == Signal::KILL && !traces::left_in(build.builder.store()).is_empty();
    if !left {
        build.assert_gone(&family);
    }
    build.assert_nothing_written(&tag);
    let swept = build.assert_a_rebuild_works().says(&[SWEEPING]);
    assert_eq!(swept, left);
    finished
}

fn assert_stopped(finished: Finished, signal: &str, code: i32) {
    let finished = finished.exited(code);
    assert_eq!(finished.stdout, "");
    let errors: Vec<&str> = finished.stderr.lines().filter(|line| line.starts_with("error:")).collect();
    assert_eq!(errors, [format!("error: stopped by {signal}")]);
}

#[test]
fn nothing_is_left_after_sigterm() {
    assert_stopped(interrupted("sigterm", |running| running.signal(Signal::TERM)), "SIGTERM", 143);
}

/// As timeout(1) does: it signals the process, then its group.
#[test]
fn a_signal_that_comes_twice_at_once_is_one() {
    let twice = |running: &Running| {
        // The kernel makes one of two that are pending.
        for _ in 0..20 {
            running.signal_group(Signal::TERM);
            std::thread::sleep(Duration::from_micros(100));
        }
    };
    assert_stopped(interrupted("sigterm-twice", twice), "SIGTERM", 143);
}

#[test]
fn nothing_is_left_after_sigint_from_a_terminal() {
    assert_stopped(interrupted("sigint", |running| running.signal_group(Signal::INT)), "SIGINT", 130);
}

#[test]
fn nothing_is_left_after_sighup() {
    assert_stopped(interrupted("sighup", |running| running.signal(Signal::HUP)), "SIGHUP", 129);
}

#[test]
fn nothing_is_left_of_process_1_after_a_signal() {
    for (name, signal, code) in
        [("SIGTERM", Signal::TERM, 143), ("SIGINT", Signal::INT, 130), ("SIGHUP", Signal::HUP, 129)]
    {
        let repository = format!("first-{}", name.to_lowercase());
        assert_stopped(interrupted_process_one(&repository, signal), name, code);
    }
}

#[test]
fn the_next_build_removes_what_is_left_when_process_1_is_killed() {
    interrupted_process_one("first-sigkill", Signal::KILL);
}

#[test]
fn nothing_is_left_after_sigkill() {
    let finished = interrupted("sigkill", |running| running.signal(Signal::KILL));
    assert_eq!(finished.code, None, "{finished:?}");
}

#[test]
fn nothing_is_left_after_sigkill_of_the_whole_process_group() {
    let finished = interrupted("sigkill-group", |running| running.signal_group(Signal::KILL));
    assert_eq!(finished.code, None, "{finished:?}");
}

#[test]
fn the_next_build_removes_what_is_left_when_the_janitor_is_killed_too() {
    let build = Build::of("janitor", &format!("{DAEMONS}; sleep 1000"));
    let (running, family) = build.start();
    let seen = traces::of(build.builder.store());
    let janitor = seen.iter().find_map(|line| {
        let process =
            line.strip_prefix("process ")?.strip_suffix(" (builder-janitor) was started with the store");
        process?.parse().ok()
    });
    let janitor = rustix::process::Pid::from_raw(janitor.expect("janitor")).expect("janitor");
    rustix::process::kill_process(janitor, Signal::KILL).expect("kill");
    running.signal(Signal::KILL);
    running.end(Duration::from_secs(5));
    traces::assert_empty(|| family.left());
    let left = traces::of(build.builder.store());
    assert!(left.iter().all(|line| line.ends_with("is left")), "{left:?}");
    assert!(!left.is_empty(), "nothing to sweep");
    let finished = build.assert_a_rebuild_works();
    assert!(finished.says(&[SWEEPING]), "{}", finished.stderr);
    assert!(!build.assert_a_rebuild_works().says(&[SWEEPING]));
}

#[test]
fn what_a_killed_build_left_on_a_full_disk_goes_before_the_next_one_needs_the_room() {
    let builder = Builder::new();
    let context = Context::new("FROM scratch\nCOPY large /\n");
    context.write("large", vec![b'x'; 3 << 20]);
    let script = "mount -t tmpfs -o size=8m none \"$BUILDER_STORE\"; \"$@\"
        left=$BUILDER_STORE/tmp/build-0000000000000001; mkdir -p $left/step-0
        ! cat /dev/zero >$left/step-0/file 2>/dev/null
        \"$@\"; ls \"$BUILDER_STORE/tmp\"";
    let plain = builder.command();
    let mut command = Command::new("unshare");
    command.env_clear().envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command
        .args(["--mount", "--propagation", "private", "sh", "-euc", script, "sh"])
        .arg(plain.get_program());
    let finished = finish(command.args(["--no-push", "--context"]).arg(context.path())).success();
    assert_eq!(finished.stdout.lines().count(), 2, "{finished:?}");
    assert!(finished.says(&[SWEEPING]), "{}", finished.stderr);
}

/// An image with one layer in a registry that can be told to be slow.
pub(crate) fn registry_with_base(builder: &Builder) -> (FakeRegistry, String) {
    let registry = FakeRegistry::start();
    let base = format!("{}/base:1", registry.host());
    let context = Context::new("FROM scratch\nCOPY Dockerfile /file\n");
    builder.run(["--context".as_ref(), context.path().as_os_str(), "-d".as_ref(), base.as_ref()]).success();
    (registry, base)
}

#[test]
fn a_pull_that_stalls_is_ended_by_sigterm() {
    let (registry, base) = registry_with_base(&Builder::new());
    registry.fault("GET", "/v2/base/blobs/", 1, Answer::new(200).body("{").ending(Ending::Stall(1)));
    let context = Context::new(&format!("FROM {base}\nWORKDIR /w\n"));
    let builder = Builder::new();
    let mut running = Running::start(builder.command().args(["--no-push", "-c"]).arg(context.path()));
    running.wait_until("a request for a blob", |_| {
        !registry.server.requests("GET", "/v2/base/blobs/").is_empty()
    });
    running.signal(Signal::TERM);
    assert_stopped(running.end(Duration::from_secs(5)), "SIGTERM", 143);
    traces::assert_none(builder.store());
}

#[test]
fn nothing_is_left_of_a_layer_that_was_being_fetched_when_the_builder_was_killed() {
    let (registry, base) = registry_with_base(&Builder::new());
    let manifest: serde_json::Value =
        serde_json::from_slice(&registry.manifest("base", "1").expect("a manifest").1).expect("JSON");
    let layer = format!("/v2/base/blobs/{}", manifest["layers"][0]["digest"].as_str().expect("digest"));
    registry.fault("GET", &layer, 1, Answer::new(200).body("{").ending(Ending::Stall(20)));
    let context = Context::new(&format!("FROM {base}\nWORKDIR /w\n"));
    let builder = Builder::new();
    let mut running = Running::start(builder.command().args(["--no-push", "-c"]).arg(context.path()));
    running.wait_until("a request for the layer", |_| !registry.server.requests("GET", &layer).is_empty());
    running.signal(Signal::KILL);
    running.end(Duration::from_secs(5));
    traces::assert_none(builder.store());
}

#[test]
fn a_push_that_stalls_is_ended_by_sigterm_and_moves_no_tag() {
    let builder = Builder::new();
    let (registry, base) = registry_with_base(&builder);
    let before = registry.manifest("base", "1");
    registry.script("PUT", "/v2/base/blobs/uploads/", 1, |_| {
        std::thread::sleep(Duration::from_secs(20));
        Answer::new(500)
    });
    let context = Context::new("FROM scratch\nCOPY Dockerfile /other\n");
    let begun = registry.server.requests("PUT", "").len();
    let mut running = Running::start(builder.command().args(["-d", &base, "-c"]).arg(context.path()));
    running.wait_until("an upload", |_| registry.server.requests("PUT", "").len() > begun);
    running.signal(Signal::TERM);
    assert_stopped(running.end(Duration::from_secs(5)), "SIGTERM", 143);
    traces::assert_none(builder.store());
    assert_eq!(registry.manifest("base", "1"), before);
}
