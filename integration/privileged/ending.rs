//! Steps that do not want to end, where no pid namespace ends them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use builder::rootfs::{GuestPath, Owner};
use builder::sandbox::{
    Cancel, Chroot, Content, Exit, Isolated, Loss, Mount, ProcView, Process, Sandbox, SandboxError, Secret,
    SecretFile,
};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::is_root;
use super::sandbox::{Image, command, processes_with, run_by, shell};
use crate::support::traces::Running;
use crate::support::{Builder, Context, finish};

/// The ways that have no pid namespace and a root of their own.
fn sandboxes(aside: &Path) -> [(&'static str, Box<dyn Sandbox>); 2] {
    let program = env!("CARGO_BIN_EXE_builder");
    [
        ("chroot", Box::new(Chroot::new(program, aside))),
        ("user-namespace", Box::new(Isolated::new(program, ProcView::Shared))),
    ]
}

/// A program that forks faster than anybody looks, by a name of its own.
pub(crate) struct Bomb {
    directory: TempDir,
    /// What it is called.
    pub(crate) name: String,
}

impl Bomb {
    pub(crate) fn compile() -> Self {
        let (directory, name) = (tempfile::tempdir().unwrap(), format!("bomb-{}", std::process::id()));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/privileged/bomb.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-static", "-O1", "-o"]).arg(directory.path().join(&name)).arg(source);
        finish(&mut compiler).success();
        Self { directory, name }
    }

    /// Copies it into a directory.
    pub(crate) fn put_into(&self, directory: &Path) {
        fs::copy(self.directory.path().join(&self.name), directory.join(&self.name)).unwrap();
    }

    /// Some are between two numbers at any time.
    pub(crate) fn is_alive(&self) -> bool {
        (0..20).any(|_| !processes_with(&self.name).is_empty())
    }
}

#[test]
fn a_step_that_forks_faster_than_it_is_looked_at_is_ended() {
    if !is_root("a_step_that_forks_faster_than_it_is_looked_at_is_ended") {
        return;
    }
    let bomb = Bomb::compile();
    let (image, aside) = (Image::new(), tempfile::tempdir().unwrap());
    bomb.put_into(&image.path(""));
    let program = format!("/{}", bomb.name);
    for (way, sandbox) in sandboxes(aside.path()) {
        for kind in ["chain", "twice", "overlap", "sibling"] {
            for chains in ["1", "8", "64"] {
                let began = Instant::now();
                let outcome = run_by(&*sandbox, &image.root(), &command(&[&program, kind, chains, "40"]));
                let took = began.elapsed();
                println!("{way}: {chains} of {kind}: {took:?}");
                assert_eq!(outcome.unwrap().exit, Exit::Code(7), "{way}: {chains} of {kind}");
                assert!(!bomb.is_alive(), "{way}: {chains} of {kind}");
                assert!(took < Duration::from_secs(30), "{way}: {chains} of {kind}: {took:?}");
            }
        }
    }
    assert_eq!(fs::read_dir(aside.path()).unwrap().count(), 0);
}

/// Then the builder has to do it, which has other children as well.
#[test]
fn a_step_that_forks_and_has_killed_its_supervisor_is_ended() {
    if !is_root("a_step_that_forks_and_has_killed_its_supervisor_is_ended") {
        return;
    }
    let bomb = Bomb::compile();
    let (image, aside) = (Image::new(), tempfile::tempdir().unwrap());
    bomb.put_into(&image.path(""));
    let mut own = Command::new("/bin/sleep").arg("1000.31").spawn().unwrap();
    let chroot = Chroot::new(env!("CARGO_BIN_EXE_builder"), aside.path());
    for kind in ["chain", "twice", "overlap", "sibling"] {
        for chains in ["1", "2", "8"] {
            let began = Instant::now();
            let script = format!("/{} {kind} {chains} 40; kill -9 $PPID; sleep 1000.32", bomb.name);
            let error = run_by(&chroot, &image.root(), &shell(&script)).unwrap_err();
            let took = began.elapsed();
            println!("{chains} of {kind}: {took:?}");
            assert!(matches!(error, SandboxError::Lost(_)), "{chains} of {kind}: {error}");
            assert!(!bomb.is_alive(), "{chains} of {kind}");
            assert!(took < Duration::from_secs(15), "{chains} of {kind}: {took:?}");
        }
    }
    assert!(processes_with("sleep 1000.32").is_empty());
    assert_eq!(fs::read_dir(aside.path()).unwrap().count(), 0);
    assert!(own.try_wait().unwrap().is_none());
    own.kill().unwrap();
    own.wait().unwrap();
}

#[test]
fn a_step_that_stops_its_supervisor_is_ended_when_the_build_is_cancelled() {
    if !is_root("a_step_that_stops_its_supervisor_is_ended_when_the_build_is_cancelled") {
        return;
    }
    let (image, aside) = (Image::new(), tempfile::tempdir().unwrap());
    let chroot = Chroot::new(env!("CARGO_BIN_EXE_builder"), aside.path());
    let cancel = Cancel::new().unwrap();
    let script = "setsid sleep 1000.33 & (trap '' TERM; exec sleep 1000.33) & kill -STOP $PPID; echo ready; sleep 1000.33";
    let mut began = Instant::now();
    let mut output = |_, _: &[u8]| {
        cancel.cancel("enough");
        began = Instant::now();
    };
    let error = chroot.run(&image.root(), &shell(script), &mut output, &cancel).unwrap_err();
    assert!(matches!(error, SandboxError::Cancelled { .. }), "{error}");
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
    assert!(processes_with("sleep 1000.33").is_empty());
    assert_eq!(fs::read_dir(aside.path()).unwrap().count(), 0);
}

/// A build must not wait for ever for who cannot say that the step is over.
#[test]
fn a_step_that_stops_its_supervisor_and_ends_has_ended() {
    if !is_root("a_step_that_stops_its_supervisor_and_ends_has_ended") {
        return;
    }
    let (image, aside) = (Image::new(), tempfile::tempdir().unwrap());
    for (way, sandbox) in sandboxes(aside.path()) {
        let once = run_by(&*sandbox, &image.root(), &shell("kill -STOP $PPID; exit 3"));
        assert_eq!(once.unwrap().exit, Exit::Code(3), "{way}");
        // It depends on who comes first.
        let script = "(while kill -STOP $PPID; do :; done) & exit 4";
        match run_by(&*sandbox, &image.root(), &shell(script)) {
            Ok(outcome) => assert_eq!(outcome.exit, Exit::Code(4), "{way}"),
            Err(error) => assert!(matches!(error, SandboxError::Lost(Loss::Step)), "{way}: {error}"),
        }
        assert!(processes_with("kill -STOP $PPID; do").is_empty(), "{way}");
    }
    assert_eq!(fs::read_dir(aside.path()).unwrap().count(), 0);
}

/// Its supervisor cannot end it, so the builder must not end before.
#[test]
fn two_signals_to_a_builder_leave_nothing_of_a_step_that_has_stopped_its_supervisor() {
    const NAME: &str = "two_signals_to_a_builder_leave_nothing_of_a_step_that_has_stopped_its_supervisor";
    if !is_root(NAME) {
        return;
    }
    let bomb = Bomb::compile();
    let step = format!("[\"/{}\", \"chain\", \"8\", \"40\", \"stop\"]", bomb.name);
    let context = Context::new(&format!("FROM scratch\nCOPY {} /\nRUN {step}\n", bomb.name));
    bomb.put_into(context.path());
    let builder = Builder::new();
    let mut command = builder.command();
    command.args(["--isolation=chroot", "--no-push", "--context"]).arg(context.path());
    let mut running = Running::start(&mut command);
    running.wait_for("ready");
    running.signal(Signal::TERM);
    let first = Instant::now();
    // What comes sooner is no second signal.
    while first.elapsed() < Duration::from_millis(400) {
        std::thread::sleep(Duration::from_millis(10));
    }
    running.signal(Signal::TERM);
    let finished = running.end(Duration::from_secs(30));
    assert!(!bomb.is_alive(), "{finished:#?}");
    finished.exited(143);
}

/// A group of processes that can be kept from ending.
pub(crate) struct Freezer(PathBuf);

impl Freezer {
    /// None where there are no control groups of version 1.
    pub(crate) fn new() -> Option<Self> {
        let path = Path::new("/sys/fs/cgroup/freezer").join(format!("builder-test-{}", std::process::id()));
        fs::create_dir(&path).ok()?;
        path.join("freezer.state").exists().then_some(Self(path))
    }

    /// Keeps it, and all others in the group, from running and from ending.
    pub(crate) fn freeze(&self, process: i32) {
        fs::write(self.0.join("cgroup.procs"), process.to_string()).unwrap();
        fs::write(self.0.join("freezer.state"), "FROZEN").unwrap();
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("freezer.state"), "THAWED");
        let began = Instant::now();
        while fs::remove_dir(&self.0).is_err() && began.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Tells a test that it is a process of its own.
const ALONE: &str = "ENDING_TEST_ALONE";

#[test]
fn what_would_not_end_keeps_its_files_and_no_step_comes_after_it() {
    const NAME: &str = "what_would_not_end_keeps_its_files_and_no_step_comes_after_it";
    if !is_root(NAME) {
        return;
    }
    if std::env::var_os(ALONE).is_none() {
        // No other test of this process could run a step any more.
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([&format!("privileged::ending::{NAME}"), "--exact", "--nocapture"]).env(ALONE, "1");
        let output = finish(&mut command).success();
        eprint!("{}", output.stderr);
        return;
    }
    let Some(freezer) = Freezer::new() else {
        eprintln!("skipped `{NAME}`: it needs the control group `freezer` (version 1)");
        return;
    };
    let (image, aside) = (Image::new(), tempfile::tempdir().unwrap());
    fs::create_dir(image.path("dev")).unwrap();
    fs::write(image.path("dev/of-the-image"), "").unwrap();
    let chroot = Chroot::new(env!("CARGO_BIN_EXE_builder"), aside.path());
    let cancel = Cancel::new().unwrap();
    let began = Instant::now();
    let mut output = |_, _: &[u8]| {
        freezer.freeze(processes_with("sleep 1000.35")[0]);
        // It counts for more than that the build is cancelled.
        cancel.cancel("enough");
        kill_process(Pid::from_raw(processes_with("sleep 1000.36")[0]).unwrap(), Signal::KILL).unwrap();
    };
    let value = Secret::new(b"hidden");
    let file = SecretFile { value, mode: 0o400, owner: Owner { uid: 0, gid: 0 } };
    let secret =
        Mount { target: GuestPath::clamp(b"/run/secrets/one").unwrap(), content: Content::Secret(file) };
    let script = "sleep 1000.35 & echo ready; exec sleep 1000.36";
    let process = Process { mounts: vec![secret], ..shell(script) };
    let error = chroot.run(&image.root(), &process, &mut output, &cancel).unwrap_err();
    assert!(matches!(error, SandboxError::Survivors(_)), "{error}");
    assert_eq!(fs::read(image.path("run/secrets/one")).unwrap(), b"", "a secret does not stay");
    let said = error.to_string();
    assert!(said.contains("(`sleep`)") && said.contains("restart the container"), "{said}");
    assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
    // As the step sees it, and the image's is still aside.
    assert!(image.path("dev/null").exists() && !image.path("dev/of-the-image").exists());
    let other = Image::new();
    let next = run_by(&chroot, &other.root(), &shell("true")).unwrap_err();
    assert_eq!(next.to_string(), said);
    assert!(!other.path("dev").exists());
}

/// As process 1 of a container, or with a credential helper that leaves a daemon, the builder gets children that are no
/// step's.
#[test]
fn what_others_leave_to_the_builder_outlives_a_step_that_kills_its_supervisor() {
    if !is_root("what_others_leave_to_the_builder_outlives_a_step_that_kills_its_supervisor") {
        return;
    }
    let (image, aside) = (Image::new(), tempfile::tempdir().unwrap());
    let chroot = Chroot::new(env!("CARGO_BIN_EXE_builder"), aside.path());
    // Children are looked at before output is handed on, if that was done a second ago or before. So one output after a
    // second has passed they were.
    let (mut came, mut is_noted) = (None, false);
    let mut output = |_, _: &[u8]| {
        if is_noted {
            fs::write(image.path("noted"), "").unwrap();
        }
        let came = came.get_or_insert_with(|| {
            let leave = "sleep 1000.37 >/dev/null 2>&1 &";
            finish(Command::new("/bin/sh").args(["-c", leave])).success();
            Instant::now()
        });
        is_noted = came.elapsed() > Duration::from_secs(1);
    };
    let script = "until test -e /noted; do echo tick; sleep 0.02; done; setsid sleep 1000.38 & kill -9 $PPID; sleep 1000.38";
    let cancel = Cancel::new().unwrap();
    let error = chroot.run(&image.root(), &shell(script), &mut output, &cancel).unwrap_err();
    assert!(matches!(error, SandboxError::Lost(_)), "{error}");
    assert!(processes_with("sleep 1000.38").is_empty());
    let strangers = processes_with("sleep 1000.37");
    assert_eq!(strangers.len(), 1);
    kill_process(Pid::from_raw(strangers[0]).unwrap(), Signal::KILL).unwrap();
}
