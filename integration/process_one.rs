//! `builder` as process 1 of a pid namespace, which it is in most containers.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::Timespec;

use crate::support::fake_registry::{Answer, Ending, FakeRegistry};
use crate::support::ground::ground;
use crate::support::pod::{self, Pod, Profile};
use crate::support::process_one::{ProcessOne, as_process_one};
use crate::support::traces::{self, Family, Running};
use crate::support::{Builder, Context, finish};

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Asks until there is an answer.
#[track_caller]
fn wait_for<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(began.elapsed() < PATIENCE, "no {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Both ends of a pipe that nobody reads from.
struct Stuck {
    _reading: OwnedFd,
    writing: OwnedFd,
}

impl Stuck {
    fn new() -> Self {
        let (reading, writing) = pipe_with(PipeFlags::CLOEXEC).expect("pipe");
        Self { _reading: reading, writing }
    }

    /// Writes until no more goes in.
    fn full() -> Self {
        let stuck = Self::new();
        rustix::fs::fcntl_setfl(&stuck.writing, OFlags::NONBLOCK).expect("flags");
        while rustix::io::write(&stuck.writing, &[b'x'; 4096]).is_ok() {}
        rustix::fs::fcntl_setfl(&stuck.writing, OFlags::empty()).expect("flags");
        stuck
    }

    fn is_full(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::from_borrowed_fd(self.writing.as_fd(), PollFlags::OUT)], Some(&now)).expect("poll")
            == 0
    }

    fn end(&self) -> Stdio {
        self.writing.try_clone().expect("descriptor").into()
    }
}

/// Ends with the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends `signal` again and again until process 1 has ended: what comes before it listens is lost. Gives its code.
#[track_caller]
fn end_by(command: &mut Command, signal: Signal) -> Option<i32> {
    let mut running = Killed(command.spawn().expect("unshare"));
    wait_for("end", || {
        ProcessOne::of(running.0.id()).into_iter().for_each(|first| first.signal(signal));
        running.0.try_wait().expect("wait")
    })
    .code()
}

#[test]
fn signals_end_a_command_that_cannot_write() {
    let builder = Builder::new();
    for (arguments, signal, code) in [
        ("version", Signal::TERM, 143),
        ("--version", Signal::HUP, 129),
        ("build --help", Signal::INT, 130),
        ("image", Signal::TERM, 143),
        ("doctor", Signal::HUP, 129),
    ] {
        let stuck = Stuck::full();
        let mut plain = builder.command();
        plain.args(arguments.split(' '));
        let mut command = as_process_one(&plain);
        command.stdin(Stdio::null()).stdout(stuck.end()).stderr(stuck.end());
        assert_eq!(end_by(&mut command, signal), Some(code), "{arguments}");
    }
}

#[test]
fn signals_end_what_waits_for_the_store() {
    let builder = Builder::new();
    let context = Context::new("FROM scratch\nCOPY Dockerfile /\n");
    let lock = fs::File::create(builder.store().join("lock")).expect("lock");
    fs::write(builder.store().join("version"), "1\n").expect("version");
    flock(&lock, FlockOperation::LockExclusive).expect("lock");
    for (subcommand, signal, code) in [("build", Signal::TERM, 143), ("plan", Signal::INT, 130)] {
        let mut plain = builder.command();
        plain.args([subcommand, "--no-push", "-c"]).arg(context.path());
        let mut command = as_process_one(&plain);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        assert_eq!(end_by(&mut command, signal), Some(code), "{subcommand}");
    }
}

#[test]
fn a_plan_that_waits_for_a_registry_is_stopped_in_order() {
    let registry = FakeRegistry::start();
    registry.fault("GET", "/v2/base/manifests/", 9, Answer::new(200).body("{ }").ending(Ending::Stall(1)));
    let context = Context::new(&format!("FROM {}/base:1\n", registry.host()));
    let builder = Builder::new();
    let mut plain = builder.command();
    plain.args(["plan", "-c"]).arg(context.path());
    let mut running = Running::start(&mut as_process_one(&plain));
    running.wait_until("request for a manifest", |_| {
        !registry.server.requests("GET", "/v2/base/manifests/").is_empty()
    });
    ProcessOne::of_running(&running).signal(Signal::TERM);
    let finished = running.end(Duration::from_secs(5)).exited(143);
    assert!(finished.says(&["error: stopped by SIGTERM"]), "{finished:?}");
    traces::assert_none(builder.store());
}

#[test]
fn a_build_whose_output_nobody_reads_ends_within_the_grace_of_a_pod() {
    let context = Context::new(&format!("FROM {}\nRUN yes\n", ground().name("busybox:latest")));
    let builder = Builder::new();
    let mut plain = builder.command();
    plain.args(["--no-push", "-c"]).arg(context.path());
    let stuck = Stuck::new();
    let mut command = as_process_one(&plain);
    let mut running = Killed(
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stuck.end()).spawn().expect("unshare"),
    );
    wait_for("output", || stuck.is_full().then_some(()));
    ProcessOne::of(running.0.id()).expect("process 1").signal(Signal::TERM);
    let began = Instant::now();
    let status = wait_for("end", || running.0.try_wait().expect("wait"));
    assert_eq!(status.code(), Some(143));
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

#[test]
fn nothing_is_left_of_a_step_in_whatever_it_ran() {
    let base = ground().name("busybox:latest");
    let daemons =
        "setsid sleep 1000 & (trap '' TERM INT HUP; sleep 1000) & touch /made; echo ready; sleep 1000";
    let context = Context::new(&format!("FROM {base}\nCOPY Dockerfile /\nRUN {daemons}\n"));
    for strategy in ["mount-namespace", "user-namespace", "chroot"] {
        for (signal, code) in [(Signal::TERM, Some(143)), (Signal::KILL, None)] {
            let builder = Builder::new();
            let mut plain = builder.command();
            plain.args(["--no-push", "--isolation", strategy, "-c"]).arg(context.path());
            let mut running = Running::start(&mut as_process_one(&plain));
            running.wait_for("| ready");
            let family = Family::of(running.id());
            assert!(
                family.named("sleep").is_some() && family.named("builder-janitor").is_some(),
                "{family:?}"
            );
            ProcessOne::of_running(&running).signal(signal);
            let finished = running.end(Duration::from_secs(5));
            traces::assert_empty(|| family.left());
            match code {
                Some(code) => {
                    finished.exited(code);
                    traces::assert_none(builder.store());
                }
                None => {
                    // The janitor died with it: the next start sweeps.
                    assert!(!traces::left_in(builder.store()).is_empty(), "{strategy}: nothing to sweep");
                    let fail = Context::new(&format!("FROM {base}\nRUN exit 9\n"));
                    let mut next = builder.command();
                    next.args(["--no-push", "--isolation", strategy, "-c"]).arg(fail.path());
                    finish(&mut as_process_one(&next)).exited(9);
                    traces::assert_none(builder.store());
                }
            }
        }
    }
}

/// Every name in the container's root, and what it is.
fn names(root: &Path) -> Vec<String> {
    let shown = |path: PathBuf| {
        let kind = fs::symlink_metadata(&path).map(|metadata| metadata.file_type());
        format!("{} {kind:?}", path.display())
    };
    crate::support::tree::paths(root).into_iter().map(shown).collect()
}

#[test]
fn a_pod_that_is_stopped_has_its_own_root_again() {
    if !pod::available("a_pod_that_is_stopped_has_its_own_root_again") {
        return;
    }
    let base = ground().name("busybox:latest");
    for (profile, strategy) in
        [(Profile::Crio, "in-place"), (Profile::Default, "chroot"), (Profile::Unset, "user-namespace")]
    {
        let pod = Pod::new(profile);
        pod.write(
            "context/Dockerfile",
            format!(
                "FROM {base}\nRUN setsid sleep 1000 & rm -r /bin/vi; touch /made; echo ready; sleep 1000\n"
            ),
        );
        let arguments = ["builder", "--no-push", "-c", "/data/context", "--isolation", strategy];
        // The runtime makes what it mounts things on.
        pod.run(&["builder", "version"]).success();
        let before = names(&pod.root());
        let mut running = Running::start(&mut pod.command(&arguments));
        running.wait_for("| ready");
        let family = Family::of(running.id());
        ProcessOne::of_running(&running).signal(Signal::TERM);
        let finished = running.end(Duration::from_secs(5)).exited(143);
        assert!(finished.says(&["error: stopped by SIGTERM"]), "{finished:?}");
        traces::assert_empty(|| family.left());
        assert_eq!(traces::left_in(&pod.data().join("store")), [""; 0], "{strategy}");
        assert_eq!(names(&pod.root()), before, "{strategy}");
    }
}

/// A command in the namespaces of process 1, as `kubectl exec` starts it.
fn exec(first: ProcessOne, script: &str) {
    let target = first.id().to_string();
    let status = Command::new("nsenter")
        .args(["--target", &target, "--pid", "--mount", "/bin/sh", "-euc", script])
        .stdin(Stdio::null())
        .status();
    assert!(status.expect("nsenter").success());
}

#[test]
fn what_others_leave_in_the_pod_is_reaped_and_steps_end_as_they_did() {
    let base = ground().name("busybox:latest");
    let context = Context::new(&format!("FROM {base}\nRUN echo ready; sleep 1000; exit 7\n"));
    let builder = Builder::new();
    let mut plain = builder.command();
    plain.args(["--no-push", "-c"]).arg(context.path());
    let mut running = Running::start(&mut as_process_one(&plain));
    running.wait_for("| ready");
    let first = ProcessOne::of_running(&running);

    exec(
        first,
        "for i in 1 2 3 4 5 6 7 8 9; do sleep 0 & sleep 0.0$i & done; tail -f /dev/null >/dev/null 2>&1 &",
    );
    let orphan = wait_for("orphan", || Family::of(running.id()).named("tail"));
    wait_for("adoption", || (parent_of(orphan) == Some(first.id())).then_some(()));
    kill_process(Pid::from_raw(orphan).expect("process number"), Signal::KILL).expect("kill");
    wait_for("end of an orphan", || (!Path::new(&format!("/proc/{orphan}")).exists()).then_some(()));

    let step = Family::of(running.id()).named("sleep").expect("the step's sleep");
    kill_process(Pid::from_raw(step).expect("process number"), Signal::TERM).expect("kill");
    running.end(PATIENCE).exited(7);
    traces::assert_none(builder.store());
}

/// The parent of a process that lives.
fn parent_of(process: i32) -> Option<Pid> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    Pid::from_raw(line.trim().parse().ok()?)
}
