//! Steps that share the builder's /proc: what they see of others, what is left of them, and where they work.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use builder::sandbox::{Cancel, Exit, Isolated, ProcView, Process, Sandbox, SandboxError, Stream};
use rustix::process::{Pid, Signal, kill_process};

use super::is_root;
use super::sandbox::{Image, Outcome, ends_within, processes_with, run_by, shell, user};

fn shared() -> Isolated {
    Isolated::new(env!("CARGO_BIN_EXE_builder"), ProcView::Shared)
}

fn run(image: &Image, process: &Process) -> Outcome {
    run_by(&shared(), &image.root(), process).unwrap()
}

fn sh(image: &Image, script: &str) -> Outcome {
    run(image, &shell(script))
}

/// A field of a process' status.
fn status(process: i32, field: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(":\t"));
    line.unwrap_or_default().to_owned()
}

/// The process that holds the sandbox of the step that runs `command`.
fn supervisor_of(command: &str) -> Pid {
    let step = processes_with(command).into_iter().find(|process| {
        let parent = status(*process, "PPid");
        fs::read_to_string(format!("/proc/{parent}/cmdline"))
            .is_ok_and(|line| line.contains("sandbox-supervisor"))
    });
    Pid::from_raw(status(step.expect("the step"), "PPid").parse().unwrap()).unwrap()
}

#[test]
fn rights_and_numbers_are_as_with_a_proc_of_its_own() {
    if !is_root("rights_and_numbers_are_as_with_a_proc_of_its_own") {
        return;
    }
    let image = Image::new();
    let rights = "grep -E '^(Uid|Groups|Cap...|NoNewPrivs|Seccomp):' /proc/self/status";
    for (uid, groups) in [(0, &[0, 10][..]), (1000, &[5])] {
        let process = Process { user: user(uid, uid, groups), ..shell(rights) };
        assert_eq!(run(&image, &process).out, image.run(&process).out);
    }
    // All ids that there are, in a namespace of its own: Landlock, which would do as well, may lack.
    let users = sh(&image, "readlink /proc/self/ns/user").out;
    assert_ne!(users.trim_end(), fs::read_link("/proc/self/ns/user").unwrap().to_str().unwrap());
    let ids = sh(&image, "cat /proc/self/uid_map /proc/self/gid_map").out;
    let all = ids.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    assert!(all.eq([["0", "0", "4294967295"], ["0", "0", "4294967295"]]), "{ids}");
    let owners = sh(&image, "touch /a && chown 70000:80000 /a && stat -c %u:%g /a").out;
    assert_eq!(owners, "70000:80000\n");
    let numbers = "[ $$ != 1 ] && [ -d /proc/$$ ] && [ /proc/self -ef /proc/self/task/../ ] && ps -o pid,comm | grep -w $$";
    let seen = sh(&image, numbers);
    assert!(seen.out.trim_end().ends_with("sh"), "{seen:?}");
}

#[test]
fn proc_is_as_restricted_as_one_of_its_own() {
    if !is_root("proc_is_as_restricted_as_one_of_its_own") {
        return;
    }
    let image = Image::new();
    let refused = [
        "echo x > /proc/sys/kernel/hostname",
        "echo b > /proc/sysrq-trigger",
        "echo x > /proc/irq/default_smp_affinity",
        "echo -1 > /proc/sys/fs/binfmt_misc/status",
        "[ $(wc -c < /proc/keys) != 0 ]",
        "[ $(ls /proc/acpi | wc -l) != 0 ]",
        "mount -t tmpfs none /mnt",
        "mount -o remount,rw,bind /proc/sys",
        "umount /proc/sys",
        "umount /proc",
    ];
    for script in refused {
        assert_ne!(sh(&image, script).exit, Exit::Code(0), "{script}");
    }
    let mounts = sh(&image, "grep -E '^[a-z_]+ /proc[ /]' /proc/mounts").out;
    for line in mounts.lines() {
        let options: Vec<&str> = line.split(' ').nth(3).unwrap().split(',').collect();
        // Files are masked by the device that is always empty.
        let nodev = if line.starts_with("proc ") { "nodev" } else { "nosuid" };
        assert!(["nosuid", "noexec", nodev].iter().all(|option| options.contains(option)), "{line}");
    }
}

/// What can be read of processes through /proc only by who may trace them, and opens the root of another.
const LOOK: &str = "for p in /proc/[0-9]*; do \
      grep -q canary-to-look-for $p/environ 2>/dev/null && echo seen $p/environ; \
      (exec 9< $p/mem) 2>/dev/null && echo traced $p; \
      for l in root cwd exe ns/mnt fd/0; do readlink $p/$l >/dev/null 2>&1 && echo link $p; done; \
      ls $p/root/ >/dev/null 2>&1 && echo root $p; \
    done 2>/dev/null | sort | uniq";

#[test]
fn processes_of_others_are_closed_to_a_step() {
    if !is_root("processes_of_others_are_closed_to_a_step") {
        return;
    }
    let images = [Image::new(), Image::new()];
    // Of the pod, and without the capabilities that would keep a step off it.
    let mut other = Command::new("setpriv");
    other
        .args(["--bounding-set=-all", "--inh-caps=-all", "/bin/sleep", "1000.2"])
        .env("SECRET", "canary-to-look-for");
    let mut other = other.spawn().unwrap();
    let cancel = Cancel::new().unwrap();
    let (ready, wait) = mpsc::channel();
    let (found, supervisor, step) = std::thread::scope(|scope| {
        let cancel = &cancel;
        let root = images[0].root();
        let first = scope.spawn(move || {
            let mut process = shell("echo ready; exec sleep 1000.21");
            process.env.push((b"SECRET".to_vec(), b"canary-to-look-for".to_vec()));
            shared().run(&root, &process, &mut |_, _| ready.send(()).unwrap(), cancel).unwrap_err()
        });
        wait.recv_timeout(Duration::from_secs(60)).unwrap();
        let mut process = shell(&format!("echo me $$; {LOOK}"));
        process.env.push((b"SECRET".to_vec(), b"canary-to-look-for".to_vec()));
        let found = run(&images[1], &process).out;
        let supervisor = supervisor_of("sleep 1000.21");
        let step = processes_with("sleep 1000.21");
        cancel.cancel("seen");
        first.join().unwrap();
        (found, supervisor, step)
    });
    let others = [std::process::id(), other.id(), supervisor.as_raw_nonzero().get().cast_unsigned()];
    let others: Vec<String> =
        others.iter().map(u32::to_string).chain(step.iter().map(i32::to_string)).collect();
    other.kill().unwrap();
    other.wait().unwrap();
    let (me, seen) = found.split_once('\n').unwrap();
    let me = me.strip_prefix("me ").unwrap();
    // It looks for what it finds of itself.
    for what in ["seen", "traced", "link", "root"] {
        assert!(
            seen.lines().any(|line| line.starts_with(&format!("{what} /proc/{me}"))),
            "{what} {me}: {seen}"
        );
    }
    assert_eq!(others.len(), 4, "{others:?}");
    for process in &others {
        let path = format!("/proc/{process}");
        let of_it = |line: &&str| {
            line.split(' ')
                .nth(1)
                .is_some_and(|found| found == path || found.starts_with(&format!("{path}/")))
        };
        assert_eq!(seen.lines().filter(of_it).collect::<Vec<_>>(), [""; 0], "of {process} among {others:?}");
    }
}

#[test]
fn nothing_is_left_of_a_step_that_shares_its_numbers() {
    if !is_root("nothing_is_left_of_a_step_that_shares_its_numbers") {
        return;
    }
    let image = Image::new();
    let outcome = sh(
        &image,
        "sleep 1000.22 & setsid sleep 1000.22 & (trap '' TERM HUP INT; exec sleep 1000.22) & (setsid setsid sleep 1000.22 &); exit 7",
    );
    assert_eq!(outcome.exit, Exit::Code(7));
    assert!(processes_with("sleep 1000.22").is_empty());
}

/// Who waits for a daemon to end looks whether its number is still taken, as start-stop-daemon does.
#[test]
fn what_a_step_has_orphaned_is_reaped_while_it_runs() {
    if !is_root("what_a_step_has_orphaned_is_reaped_while_it_runs") {
        return;
    }
    let image = Image::new();
    let script = "(sleep 1000.23 & echo $! > /number); kill -9 $(cat /number); \
        n=0; while [ -d /proc/$(cat /number) ] && [ $n -lt 500 ]; do n=$((n + 1)); sleep 0.02; done; [ $n -lt 500 ]";
    assert_eq!(sh(&image, script).exit, Exit::Code(0));
}

/// Runs a step that begins with `script`, and `reach` once it has written something; returns how it ended.
fn reached(image: &Image, script: &str, cancel: &Cancel, mut reach: impl FnMut()) -> SandboxError {
    let mut begun = false;
    let mut output = |_: Stream, _: &[u8]| {
        if !std::mem::replace(&mut begun, true) {
            reach();
        }
    };
    shared().run(&image.root(), &shell(script), &mut output, cancel).expect_err("an error")
}

/// A step of several processes that run `sleep`.
fn daemons(sleep: &str) -> String {
    format!("setsid {sleep} & (trap '' TERM; exec {sleep}) & ({sleep} &); echo ready; exec {sleep}")
}

#[test]
fn the_builder_ends_what_a_killed_supervisor_leaves() {
    if !is_root("the_builder_ends_what_a_killed_supervisor_leaves") {
        return;
    }
    let image = Image::new();
    // An own child, which must be left alone.
    let mut own = Command::new("/bin/sleep").arg("1000.25").spawn().unwrap();
    let cancel = Cancel::new().unwrap();
    let sleep = "sleep 1000.24";
    let error = reached(&image, &daemons(sleep), &cancel, || {
        kill_process(supervisor_of(sleep), Signal::KILL).unwrap();
    });
    assert!(error.to_string().starts_with("the process that holds the sandbox was killed"), "{error}");
    assert!(processes_with(sleep).is_empty());
    assert!(own.try_wait().unwrap().is_none());
    own.kill().unwrap();
    own.wait().unwrap();
    assert_eq!(sh(&image, "echo fine").out, "fine\n");
}

#[test]
fn a_stopped_supervisor_does_not_hold_up_the_end() {
    if !is_root("a_stopped_supervisor_does_not_hold_up_the_end") {
        return;
    }
    let image = Image::new();
    let cancel = Cancel::new().unwrap();
    let mut began = Instant::now();
    let sleep = "sleep 1000.29";
    let error = reached(&image, &daemons(sleep), &cancel, || {
        kill_process(supervisor_of(sleep), Signal::STOP).unwrap();
        cancel.cancel("interrupted");
        began = Instant::now();
    });
    assert_eq!(error.to_string(), "cancelled: interrupted");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert!(processes_with(sleep).is_empty());
}

/// Landlock can keep signals inside from Linux 6.12 on. Signals are sent one by one: where it does not, the rest of the
/// machine must not come to harm.
#[test]
fn signals_of_a_step_reach_its_own_processes_only() {
    if !is_root("signals_of_a_step_reach_its_own_processes_only") {
        return;
    }
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map(|number| number.parse().unwrap_or(0));
    if (numbers.next(), numbers.next()) < (Some(6), Some(12)) {
        eprintln!("skipped `signals_of_a_step_reach_its_own_processes_only`: it needs Linux 6.12");
        return;
    }
    let image = Image::new();
    let mut other = Command::new("/bin/sleep").arg("1000.26").spawn().unwrap();
    let script = format!(
        "kill -9 $PPID || echo refused; kill -9 {} || echo refused; \
         sleep 1000.27 & kill -9 $!; wait $!; echo $?; mkdir /a /b; touch /a/x; mv /a/x /b && ln /b/x /a/y && mv /a /b && ls /b/a",
        other.id()
    );
    assert_eq!(sh(&image, &script).out, "refused\nrefused\n137\ny\n");
    assert!(other.try_wait().unwrap().is_none());
    other.kill().unwrap();
    other.wait().unwrap();
}

/// This test again, started by `program` with `args`, to do `part` there.
fn again(test: &str, part: &str, program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command
        .args(args)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", &format!("privileged::namespaces::{test}"), "--nocapture", "--test-threads=1"])
        .env(PART, part);
    command
}

const PART: &str = "NAMESPACES_TEST_PART";

/// Lets a process that waits in a new user namespace have these ids, and go on.
fn map(waiting: &mut Child, count: u32) {
    let mut line = String::new();
    BufReader::new(waiting.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "waiting\n");
    let write = |name: &str, text: &str| fs::write(format!("/proc/{}/{name}", waiting.id()), text).unwrap();
    if count == 1 {
        write("setgroups", "deny");
    }
    write("uid_map", &format!("0 0 {count}"));
    write("gid_map", &format!("0 0 {count}"));
    waiting.stdin.take().unwrap().write_all(b"go\n").unwrap();
}

#[test]
fn in_a_container_s_user_namespace_the_masked_proc_is_shared() {
    const NAME: &str = "in_a_container_s_user_namespace_the_masked_proc_is_shared";
    if !is_root(NAME) {
        return;
    }
    if let Some(count) = std::env::var_os(PART) {
        return in_masked_namespace(count.to_str().unwrap());
    }
    for count in [1, 65_536] {
        // Covered before there is a user namespace, and so locked, as by the runtime of a container.
        let outside = "mount -t tmpfs none /proc/bus && exec unshare --user --mount \"$@\"";
        let inside = "echo waiting; read -r go; exec \"$@\"";
        let wrapped = ["--mount", "sh", "-euc", outside, "sh", "sh", "-euc", inside, "sh"];
        let mut command = again(NAME, &count.to_string(), "unshare", &wrapped);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut waiting = command.spawn().unwrap();
        map(&mut waiting, count);
        let output = waiting.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && said.contains("it is shared"),
            "{count}: {said}\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

fn in_masked_namespace(count: &str) {
    let image = Image::new();
    let error = image.failure(&shell("true")).to_string();
    assert!(error.contains("mount a `/proc` of its own"), "{error}");
    let look = "awk '{print $1, $2, $3}' /proc/self/uid_map; id -u; ls -A /proc/bus | wc -l; grep -c ' /proc/bus ' /proc/mounts; \
        [ -d /proc/$$ ] && echo x > /dev/null && head -c 1 /dev/zero | wc -c && [ -c /dev/pts/ptmx ] && touch /dev/shm/x && \
        ! (echo x > /proc/sys/kernel/hostname) 2>/dev/null && ls -d /sys/kernel; grep CapEff /proc/self/status";
    let seen = sh(&image, look);
    let expected = format!("0 0 {count}\n0\n0\n2\n1\n/sys/kernel\nCapEff:\t00000000a80425fb\n");
    assert_eq!(seen.out, expected, "{seen:?}");
    let error = sh(&image, "umount /proc/bus; umount /proc; chmod 600 /dev/null").error;
    assert_eq!(error.lines().count(), 3, "{error}");
    println!("it is shared");
}

#[test]
fn without_cap_setpcap_nothing_gives_rights_back() {
    const NAME: &str = "without_cap_setpcap_nothing_gives_rights_back";
    if !is_root(NAME) {
        return;
    }
    if std::env::var_os(PART).is_some() {
        let image = Image::new();
        // The shell and what it executes, both as root, and a user's.
        let script = "grep -E '^(CapPrm|CapEff|NoNewPrivs)' /proc/self/status; exec sh -c 'grep CapEff /proc/self/status'";
        println!("{}", image.sh(script).out);
        println!("{}", image.run(&Process { user: user(5, 5, &[]), ..shell(script) }).out);
        return;
    }
    let without = ["--bounding-set=-setpcap", "--inh-caps=-setpcap"];
    let output = again(NAME, "inside", "setpriv", &without).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let kept = "00000000a80424fb";
    let expected = format!("CapPrm:\t{kept}\nCapEff:\t{kept}\nNoNewPrivs:\t1\nCapEff:\t{kept}\n\n");
    assert!(said.contains(&expected), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains(&expected.replace(kept, "0000000000000000")), "{said}");
}

/// Whose files in /proc belong to root although the process is somebody else's is not to be traced (proc(5)).
#[test]
fn builder_supervisor_and_janitor_of_a_user_cannot_be_traced_by_that_user() {
    const NAME: &str = "builder_supervisor_and_janitor_of_a_user_cannot_be_traced_by_that_user";
    if !is_root(NAME) {
        return;
    }
    let user = crate::support::user::User::with_ranges();
    let context = user
        .context("FROM scratch\nCOPY busybox /bin/busybox\nRUN [\"/bin/busybox\", \"sleep\", \"1000.28\"]\n");
    let mut build = user.command();
    build.args(["build", "--no-push", "--tar-path"]).arg(user.path("out.tar")).arg("--context").arg(&context);
    let mut build = build.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let began = Instant::now();
    let step = loop {
        let steps = processes_with("/bin/busybox sleep 1000.28");
        // Not the argument of somebody's build.
        if let Some(step) = steps.iter().find(|step| status(**step, "Name") == "busybox") {
            break *step;
        }
        assert!(build.try_wait().unwrap().is_none() && began.elapsed() < Duration::from_secs(60), "no step");
        std::thread::sleep(Duration::from_millis(5));
    };
    let supervisor: i32 = status(step, "PPid").parse().unwrap();
    assert_eq!(status(supervisor, "PPid"), build.id().to_string());
    let janitors = processes_with(context.to_str().unwrap());
    let janitor = janitors
        .into_iter()
        .find(|process| status(*process, "Name") == "builder-janitor")
        .expect("the janitor");
    let builder = i32::try_from(build.id()).unwrap();
    let owner = |process: i32| {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(format!("/proc/{process}/environ")).unwrap().uid()
    };
    let owners = [builder, supervisor, janitor].map(owner);
    // The step itself may be, by itself.
    let own = owner(step);
    kill_process(Pid::from_raw(builder).unwrap(), Signal::TERM).unwrap();
    build.wait().unwrap();
    assert!(ends_within(step, Duration::from_secs(20)));
    // For the supervisor, which was started in the namespace, root is the user who started all of it.
    assert_eq!(owners, [0, owners[1], 0]);
    let root_of_namespace = user.uid;
    assert_eq!((owners[1], own), (root_of_namespace, root_of_namespace));
}
