//! What a process in the sandbox sees, may do, and leaves behind.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime};

use builder::rootfs::{GuestPath, Owner, ResolvedUser, Rootfs};
use builder::sandbox::emulation::{Emulation, Host, Registrations, availability};
use builder::sandbox::{
    Cancel, Exit, HOSTNAME, Isolated, Network, Presentation, ProcView, Process, Runner, Sandbox,
    SandboxError, Script, Security, StartProblem, Stream,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tempfile::TempDir;

use super::is_root;

const HOSTS: &str = "127.0.0.1\tlocalhost buildkitsandbox\n::1\tlocalhost ip6-localhost ip6-loopback\n";
const RESOLV_CONF: &str = "nameserver 192.0.2.53\n";

/// A root with busybox and all its commands.
pub(super) struct Image(TempDir);

impl Image {
    pub(super) fn new() -> Self {
        let image = Self::empty();
        fs::create_dir(image.path("bin")).unwrap();
        fs::copy("/bin/busybox", image.path("bin/busybox")).expect("Debian's busybox-static");
        let list = Command::new("/bin/busybox").arg("--list").output().unwrap();
        for applet in String::from_utf8(list.stdout).unwrap().lines().filter(|applet| *applet != "busybox") {
            symlink("busybox", image.path(&format!("bin/{applet}"))).unwrap();
        }
        image
    }

    pub(super) fn empty() -> Self {
        let image = Self(tempfile::tempdir().unwrap());
        fs::set_permissions(image.0.path(), fs::Permissions::from_mode(0o755)).unwrap();
        image
    }

    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    pub(super) fn root(&self) -> Rootfs {
        Rootfs::open(self.0.path()).unwrap()
    }

    /// The files of the image: one line a path, with mode, owner, size and modification time.
    fn listing(&self) -> BTreeSet<String> {
        let mut lines = BTreeSet::new();
        let mut pending = vec![self.0.path().to_owned()];
        while let Some(path) = pending.pop() {
            let metadata = fs::symlink_metadata(&path).unwrap();
            if metadata.is_dir() {
                pending.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            }
            let mtime = (metadata.mtime(), metadata.mtime_nsec());
            let (mode, size) = (metadata.mode(), if metadata.is_dir() { 0 } else { metadata.size() });
            lines.insert(format!("{} {mode:o} {size} {mtime:?}", path.display()));
        }
        lines
    }

    pub(super) fn run(&self, process: &Process) -> Outcome {
        run_in(&self.root(), process).unwrap()
    }

    pub(super) fn sh(&self, script: &str) -> Outcome {
        self.run(&shell(script))
    }

    pub(super) fn failure(&self, process: &Process) -> SandboxError {
        run_in(&self.root(), process).expect_err("a sandbox error")
    }
}

#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) exit: Exit,
    pub(super) out: String,
    pub(super) error: String,
}

pub(super) fn isolated() -> Isolated {
    Isolated::new(env!("CARGO_BIN_EXE_builder"), ProcView::Own)
}

fn run_in(root: &Rootfs, process: &Process) -> Result<Outcome, SandboxError> {
    run_by(&isolated(), root, process)
}

pub(super) fn run_by(
    sandbox: &dyn Sandbox,
    root: &Rootfs,
    process: &Process,
) -> Result<Outcome, SandboxError> {
    let (mut out, mut error) = (Vec::new(), Vec::new());
    let mut output = |stream: Stream, bytes: &[u8]| match stream {
        Stream::Out => out.extend_from_slice(bytes),
        Stream::Error => error.extend_from_slice(bytes),
    };
    let exit = sandbox.run(root, process, &mut output, &Cancel::new().unwrap())?;
    Ok(Outcome {
        exit,
        out: String::from_utf8_lossy(&out).into_owned(),
        error: String::from_utf8_lossy(&error).into_owned(),
    })
}

pub(super) fn command(args: &[&str]) -> Process {
    Process {
        args: args.iter().map(|argument| argument.as_bytes().to_vec()).collect(),
        env: vec![(b"PATH".to_vec(), b"/bin".to_vec())],
        secret_env: Vec::new(),
        cwd: GuestPath::root(),
        user: user(0, 0, &[]),
        hostname: HOSTNAME.to_owned(),
        hosts: HOSTS.as_bytes().to_vec(),
        resolv_conf: RESOLV_CONF.as_bytes().to_vec(),
        scripts: Vec::new(),
        mounts: Vec::new(),
        presentation: Presentation::Native,
        runner: Runner::Processor,
        network: Network::Shared,
        security: Security::Confined,
        shm_size: None,
        limits: Vec::new(),
    }
}

pub(super) fn shell(script: &str) -> Process {
    command(&["/bin/sh", "-c", script])
}

pub(super) fn user(uid: u32, gid: u32, groups: &[u32]) -> ResolvedUser {
    ResolvedUser { owner: Owner { uid, gid }, groups: groups.to_vec(), home: b"/".to_vec() }
}

/// All processes whose command line contains `text`.
pub(super) fn processes_with(text: &str) -> Vec<i32> {
    let pids =
        fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    pids.filter(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).replace('\0', " ").contains(text)
    })
    .collect()
}

/// Waits for the end of a process that is not our child.
pub(super) fn ends_within(process: i32, limit: Duration) -> bool {
    let Ok(handle) = pidfd_open(Pid::from_raw(process).unwrap(), PidfdFlags::empty()) else { return true };
    let limit = Timespec { tv_sec: limit.as_secs().try_into().unwrap(), tv_nsec: 0 };
    poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&limit)).unwrap() == 1
}

#[test]
fn the_end_of_the_command_is_reported_as_it_was() {
    if !is_root("the_end_of_the_command_is_reported_as_it_was") {
        return;
    }
    let image = Image::new();
    let cases = [
        ("true", Exit::Code(0)),
        ("exit 3", Exit::Code(3)),
        ("exit 255", Exit::Code(255)),
        // The command is process 1, which no signal from inside ends.
        ("kill -9 $$; exit 4", Exit::Code(4)),
        ("kill -9 -1; exit 5", Exit::Code(5)),
        ("sh -c 'kill -SEGV $$'; exit $?", Exit::Code(139)),
    ];
    for (script, expected) in cases {
        assert_eq!(image.sh(script).exit, expected, "{script}");
    }
}

#[test]
fn a_signal_from_outside_is_reported() {
    if !is_root("a_signal_from_outside_is_reported") {
        return;
    }
    let image = Image::new();
    let mut process = shell("echo ready; exec sleep 1000.25");
    process.hostname = "name".to_owned();
    let mut output = |_: Stream, _: &[u8]| {
        // Until the shell has executed it, there is none.
        let found = (0..1000).find_map(|_| {
            let found = processes_with("sleep 1000.25");
            if found.is_empty() {
                std::thread::sleep(Duration::from_millis(10));
            }
            (!found.is_empty()).then_some(found)
        });
        for pid in found.expect("sleep") {
            rustix::process::kill_process(Pid::from_raw(pid).unwrap(), rustix::process::Signal::KILL)
                .unwrap();
        }
    };
    let exit = isolated().run(&image.root(), &process, &mut output, &Cancel::new().unwrap()).unwrap();
    assert_eq!(exit, Exit::Signal(9));
}

#[test]
fn nothing_comes_from_the_environment_or_the_descriptors_of_the_builder() {
    if !is_root("nothing_comes_from_the_environment_or_the_descriptors_of_the_builder") {
        return;
    }
    let image = Image::new();
    // As a library that forgets O_CLOEXEC would have it.
    let leaked = File::open("/etc").unwrap();
    rustix::io::fcntl_setfd(&leaked, rustix::io::FdFlags::empty()).unwrap();
    let mut process = command(&["env"]);
    process.env = vec![
        (b"B".to_vec(), b"2".to_vec()),
        (b"PATH".to_vec(), b"/bin".to_vec()),
        (b"A".to_vec(), b"x=y".to_vec()),
    ];
    assert_eq!(image.run(&process).out, "B=2\nPATH=/bin\nA=x=y\n");
    let descriptors = image.sh("cd /proc/self/fd; ls . -a; for n in 0 1 2; do readlink $n; done").out;
    let mut descriptors = descriptors.lines();
    for expected in [".", "..", "0", "1", "2", "/dev/null"] {
        assert_eq!(descriptors.next(), Some(expected));
    }
    assert!(descriptors.all(|target| target.starts_with("pipe:")));
    let signals = image.run(&command(&["grep", "-E", "^Sig(Blk|Ign|Cgt)", "/proc/self/status"])).out;
    assert!(signals.lines().all(|line| line.ends_with("\t0000000000000000")), "{signals}");
}

#[test]
fn the_supervisor_shows_nothing_of_the_step() {
    if !is_root("the_supervisor_shows_nothing_of_the_step") {
        return;
    }
    let image = Image::new();
    let mut process = shell("echo ready; exec sleep 1000.125");
    process.env.push((b"SECRET".to_vec(), b"canary-of-the-step".to_vec()));
    let cancel = Cancel::new().unwrap();
    let mut seen = Vec::new();
    let mut output = |_: Stream, _: &[u8]| {
        let step = processes_with("sleep 1000.125").pop().expect("the step");
        let status = fs::read_to_string(format!("/proc/{step}/status")).unwrap();
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:\t")).unwrap();
        for file in ["cmdline", "environ"] {
            seen.push(fs::read_to_string(format!("/proc/{parent}/{file}")).unwrap());
        }
        cancel.cancel("seen enough");
    };
    isolated().run(&image.root(), &process, &mut output, &cancel).unwrap_err();
    assert_eq!(seen, [concat!(env!("CARGO_BIN_EXE_builder"), "\0sandbox-supervisor\0"), ""]);
}

#[test]
fn rights_are_those_of_docker() {
    if !is_root("rights_are_those_of_docker") {
        return;
    }
    let image = Image::new();
    let rights = ["grep", "-E", "^(Uid|Gid|Groups|Cap...|NoNewPrivs|Seccomp):", "/proc/self/status"];
    let root = "Uid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nGroups:\t0 10 \nCapInh:\t0000000000000000\n\
                CapPrm:\t00000000a80425fb\nCapEff:\t00000000a80425fb\nCapBnd:\t00000000a80425fb\n\
                CapAmb:\t0000000000000000\nNoNewPrivs:\t0\nSeccomp:\t2\n";
    let other = "Uid:\t1000\t1000\t1000\t1000\nGid:\t100\t100\t100\t100\nGroups:\t5 100 4294967294 \n\
                 CapInh:\t0000000000000000\nCapPrm:\t0000000000000000\nCapEff:\t0000000000000000\n\
                 CapBnd:\t00000000a80425fb\nCapAmb:\t0000000000000000\nNoNewPrivs:\t0\nSeccomp:\t2\n";
    for (user, expected) in [(user(0, 0, &[0, 10]), root), (user(1000, 100, &[5, u32::MAX - 1]), other)] {
        let process = Process { user, ..command(&rights) };
        assert_eq!(image.run(&process).out, expected);
    }
    let nobody = image.failure(&Process { user: user(u32::MAX, 0, &[]), ..command(&["true"]) });
    assert!(matches!(nobody, SandboxError::UnknownId { kind: "user", id: u32::MAX, .. }), "{nobody}");
}

#[test]
fn a_user_may_write_to_the_standard_streams_and_not_elsewhere() {
    if !is_root("a_user_may_write_to_the_standard_streams_and_not_elsewhere") {
        return;
    }
    let image = Image::new();
    let script =
        "echo a > /dev/stdout; echo b > /dev/stderr; echo c > /proc/self/fd/1; (: > /x); touch /dev/x";
    let outcome = image.run(&Process { user: user(1000, 1000, &[]), ..shell(script) });
    assert_eq!(outcome.out, "a\nc\n");
    assert_eq!(outcome.error.matches("Permission denied").count(), 2, "{}", outcome.error);
    assert!(outcome.error.starts_with("b\n"), "{}", outcome.error);
}

#[test]
fn surroundings_are_those_of_buildkit() {
    if !is_root("surroundings_are_those_of_buildkit") {
        return;
    }
    let image = Image::new();
    fs::create_dir_all(image.path("w/x")).unwrap();
    symlink("/w/x", image.path("link")).unwrap();
    let script = "umask; hostname; echo $$; pwd -P; ulimit -Hc; wc -c; echo /proc/[0-9]*; \
                  cut -d' ' -f6 /proc/self/stat; cat /etc/hosts /etc/resolv.conf";
    let outcome = image.run(&Process { cwd: GuestPath::clamp(b"/link").unwrap(), ..shell(script) });
    let expected = format!("0022\nbuildkitsandbox\n1\n/w/x\n0\n0\n/proc/1\n1\n{HOSTS}{RESOLV_CONF}");
    assert_eq!((outcome.out, outcome.error), (expected, String::new()));
}

#[test]
fn mounts_are_these() {
    if !is_root("mounts_are_these") {
        return;
    }
    let image = Image::new();
    let outcome = image.sh("while read -r a b c d e; do echo $b $c ${d%%,*}; done < /proc/mounts");
    let (first, rest) = outcome.out.split_once('\n').unwrap();
    assert!(first.starts_with("/ "), "{first}");
    let masked =
        ["/proc/acpi", "/proc/asound", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap"];
    let lines: Vec<&str> =
        rest.lines().filter(|line| !masked.iter().any(|path| line.starts_with(path))).collect();
    let devices =
        ["null", "zero", "full", "random", "urandom", "tty"].map(|name| format!("/dev/{name} tmpfs rw"));
    let read_only = ["bus", "fs", "irq", "sys", "sysrq-trigger"].map(|name| format!("/proc/{name} proc ro"));
    let always =
        ["/proc proc rw", "/sys sysfs ro", "/dev tmpfs rw", "/dev/pts devpts rw", "/dev/shm tmpfs rw"];
    let bound = ["/etc/resolv.conf tmpfs ro", "/etc/hosts tmpfs ro"];
    for line in devices.iter().map(String::as_str).chain(always).chain(bound) {
        assert!(lines.contains(&line), "{line} is missing in {}", outcome.out);
    }
    for line in read_only.iter().filter(|line| Path::new(line.split(' ').next().unwrap()).exists()) {
        assert!(lines.contains(&line.as_str()), "{line} is missing in {}", outcome.out);
    }
    let known = |line: &&&str| {
        let optional = ["/proc/", "/sys/fs/cgroup cgroup2 ro", "/dev/mqueue mqueue rw"];
        devices.iter().any(|device| device == **line)
            || always.contains(*line)
            || bound.contains(*line)
            || optional.iter().any(|start| line.starts_with(start))
    };
    let unknown: Vec<&&str> = lines.iter().filter(|line| !known(line)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    assert!(!outcome.out.contains(image.0.path().to_str().unwrap()));
}

#[test]
fn the_machine_can_neither_be_read_nor_changed() {
    if !is_root("the_machine_can_neither_be_read_nor_changed") {
        return;
    }
    let image = Image::new();
    let masked = image.sh("for f in kcore keys latency_stats timer_list timer_stats sched_debug; do \
           [ ! -e /proc/$f ] || wc -c < /proc/$f; done; \
         for d in /proc/acpi /proc/asound /proc/scsi /sys/firmware /sys/devices/virtual/powercap; do \
           [ ! -e $d ] || ls -A $d | wc -l; done");
    assert!(masked.out.lines().count() >= 3, "{masked:?}");
    assert!(masked.out.lines().all(|line| line.trim() == "0"), "{masked:?}");
    let refused = [
        "echo x > /proc/sys/kernel/hostname",
        "echo b > /proc/sysrq-trigger",
        "echo x > /proc/irq/default_smp_affinity",
        "mkdir /sys/fs/cgroup/x",
        "echo x > /sys/kernel/mm/transparent_hugepage/enabled",
        "mount -t tmpfs none /mnt",
        "mount -o remount,rw /sys",
        "umount /etc/hosts",
        "hostname other",
        "echo x > /etc/hosts",
        "rm /etc/resolv.conf",
        "mv /etc/hosts /etc/other",
        "mkdir /mnt/x && chroot /mnt/x /bin/sh -c 'mount -t proc none /'",
    ];
    fs::create_dir(image.path("mnt")).unwrap();
    let hostname = fs::read("/proc/sys/kernel/hostname").unwrap();
    for script in refused {
        let outcome = image.sh(script);
        assert_ne!(outcome.exit, Exit::Code(0), "{script}");
    }
    assert_eq!(fs::read("/proc/sys/kernel/hostname").unwrap(), hostname);
}

#[test]
fn devices_are_few_and_no_others_open() {
    if !is_root("devices_are_few_and_no_others_open") {
        return;
    }
    let image = Image::new();
    let outcome =
        image.sh("ls /dev; stat -c '%a %t:%T %F' /dev/null; stat -c %a /dev/shm; ls -l /dev/ptmx /dev/fd");
    let names = outcome.out.lines().take_while(|line| !line.starts_with("666")).collect::<Vec<_>>().join(" ");
    let expected = "core fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero";
    assert_eq!(names.replace("mqueue ", ""), expected.replace("mqueue ", ""));
    assert!(outcome.out.contains("666 1:3 character special file\n1777\n"), "{}", outcome.out);
    let works = "echo x > /dev/null && head -c 3 /dev/zero | wc -c && head -c 3 /dev/urandom | wc -c && \
                 cat /dev/null && echo x > /dev/shm/x && ! echo x > /dev/full && [ -c /dev/pts/ptmx ]";
    assert_eq!(image.sh(works).out, "3\n3\n", "{works}");
    // The machine's first disk, or any other.
    let disk =
        fs::metadata("/dev/vda").or_else(|_| fs::metadata("/dev/sda")).map_or(7 << 8, |disk| disk.rdev());
    let (major, minor) = (rustix::fs::major(disk), rustix::fs::minor(disk));
    for place in ["/disk", "/dev/disk", "/dev/shm/disk"] {
        let outcome = image.sh(&format!("mknod {place} b {major} {minor} && head -c 1 {place}"));
        assert!(outcome.error.contains("Permission denied"), "{place}: {outcome:?}");
    }
}

#[test]
fn provided_files_leave_no_trace() {
    if !is_root("provided_files_leave_no_trace") {
        return;
    }
    let old = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 5);
    type Prepare<'a> = &'a dyn Fn(&Image);
    let prepare: [(&str, Prepare<'_>); 3] = [
        ("etc is empty", &|_| {}),
        ("files of its own", &|image| {
            fs::write(image.path("etc/hosts"), "own").unwrap();
            fs::write(image.path("etc/resolv.conf"), "own").unwrap();
        }),
        ("a link as of systemd", &|image| {
            symlink("../run/systemd/resolve/stub-resolv.conf", image.path("etc/resolv.conf")).unwrap();
        }),
    ];
    for (name, prepare) in prepare {
        let image = Image::new();
        for directory in ["etc", "proc", "sys", "dev", "run"] {
            fs::create_dir(image.path(directory)).unwrap();
        }
        prepare(&image);
        for directory in ["etc", "run", ""] {
            File::open(image.path(directory)).unwrap().set_modified(old).unwrap();
        }
        let before = image.listing();
        let outcome = image.sh("cat /etc/hosts /etc/resolv.conf");
        assert_eq!(outcome.out, format!("{HOSTS}{RESOLV_CONF}"), "{name}: {}", outcome.error);
        assert_eq!(image.listing(), before, "{name}");
        // Also when the step fails, or cannot even start.
        image.sh("exit 1");
        image.failure(&command(&["/missing"]));
        assert_eq!(image.listing(), before, "{name}");
    }
}

#[test]
fn missing_directories_for_the_kernel_stay() {
    if !is_root("missing_directories_for_the_kernel_stay") {
        return;
    }
    let image = Image::new();
    image.sh("true");
    for name in ["proc", "sys", "dev"] {
        let metadata = fs::metadata(image.path(name)).unwrap();
        assert_eq!(
            (metadata.mode() & 0o7777, fs::read_dir(image.path(name)).unwrap().count()),
            (0o755, 0),
            "{name}"
        );
    }
    assert!(!image.path("etc").exists());
}

#[test]
fn what_the_step_writes_stays_and_only_that() {
    if !is_root("what_the_step_writes_stays_and_only_that") {
        return;
    }
    let image = Image::new();
    image.sh("echo x > /etc/new; mkdir /run; echo y > /run/y; echo z > /dev/shm/z; echo z > /dev/z");
    assert_eq!(fs::read_to_string(image.path("etc/new")).unwrap(), "x\n");
    assert_eq!(fs::read_to_string(image.path("run/y")).unwrap(), "y\n");
    assert_eq!(fs::read_dir(image.path("etc")).unwrap().count(), 1);
    assert_eq!(fs::read_dir(image.path("dev")).unwrap().count(), 0);
}

#[test]
fn nothing_is_left_of_daemons_and_nobody_waits_for_them() {
    if !is_root("nothing_is_left_of_daemons_and_nobody_waits_for_them") {
        return;
    }
    let image = Image::new();
    let started = Instant::now();
    // One that keeps the output open, one in a session of its own, one that ignores what it can.
    let outcome = image.sh(
        "sleep 1000.5 & setsid sleep 1000.5 & (trap '' TERM HUP INT; exec sleep 1000.5) & echo started; exit 7",
    );
    assert_eq!((outcome.exit, outcome.out.as_str()), (Exit::Code(7), "started\n"));
    assert!(started.elapsed() < Duration::from_secs(60));
    assert!(processes_with("sleep 1000.5").is_empty());
}

#[test]
fn output_of_any_size_arrives_whole() {
    if !is_root("output_of_any_size_arrives_whole") {
        return;
    }
    let image = Image::new();
    let (mut out, mut error, mut largest) = (0, 0, 0);
    let mut output = |stream: Stream, bytes: &[u8]| {
        largest = largest.max(bytes.len());
        *(if stream == Stream::Out { &mut out } else { &mut error }) += bytes.len();
    };
    let script = "head -c 5000000 /dev/zero & head -c 1048576 /dev/zero >&2; wait";
    let cancel = Cancel::new().unwrap();
    let exit = isolated().run(&image.root(), &shell(script), &mut output, &cancel).unwrap();
    assert_eq!((exit, out, error), (Exit::Code(0), 5_000_000, 1_048_576));
    assert!(largest <= 1 << 16, "{largest}");
}

#[test]
fn cancelling_ends_the_step_at_once() {
    if !is_root("cancelling_ends_the_step_at_once") {
        return;
    }
    let image = Image::new();
    let cancel = Cancel::new().unwrap();
    let (ready, wait) = mpsc::channel();
    let root = image.root();
    let error = std::thread::scope(|scope| {
        let step = scope.spawn(|| {
            let mut output = |_: Stream, _: &[u8]| ready.send(()).unwrap();
            let script =
                "trap '' TERM INT; setsid sleep 1000.75 & echo ready; while :; do sleep 1000.75; done";
            isolated().run(&root, &shell(script), &mut output, &cancel).unwrap_err()
        });
        wait.recv_timeout(Duration::from_secs(60)).unwrap();
        let started = Instant::now();
        cancel.cancel("interrupted");
        let error = step.join().unwrap();
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
        error
    });
    assert_eq!(error.to_string(), "cancelled: interrupted");
    assert!(processes_with("sleep 1000.75").is_empty());
    assert!(!image.path("etc").exists());
    let again = isolated().run(&root, &shell("true"), &mut |_, _| {}, &cancel).unwrap_err();
    assert!(matches!(again, SandboxError::Cancelled { .. }));
}

/// This test plays both the builder, in a process of its own, and the one who kills it.
#[test]
fn nothing_survives_a_killed_builder() {
    const NAME: &str = "privileged::sandbox::nothing_survives_a_killed_builder";
    const ROOT: &str = "SANDBOX_TEST_ROOT";
    if !is_root("nothing_survives_a_killed_builder") {
        return;
    }
    if let Some(root) = std::env::var_os(ROOT) {
        let root = Rootfs::open(Path::new(&root)).unwrap();
        let mut output = |_: Stream, bytes: &[u8]| println!("\n{}", String::from_utf8_lossy(bytes));
        let script = "setsid sleep 1000.0625 & echo the step is ready; exec sleep 1000.0625";
        isolated().run(&root, &shell(script), &mut output, &Cancel::new().unwrap()).unwrap();
        return;
    }
    let image = Image::new();
    let mut builder = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture", "--test-threads=1"])
        .env(ROOT, image.0.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(builder.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "the step is ready"));
    // The shell that said so is still to become the second.
    let began = std::time::Instant::now();
    let mut step = processes_with("sleep 1000.0625");
    while step.len() < 2 && began.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(5));
        step = processes_with("sleep 1000.0625");
    }
    assert_eq!(step.len(), 2, "the step and its daemon");
    let supervisors = processes_with("sandbox-supervisor").into_iter().filter(|pid| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.contains(&format!("PPid:\t{}\n", builder.id()))
    });
    let supervisors: Vec<i32> = supervisors.collect();
    assert_eq!(supervisors.len(), 1);
    builder.kill().unwrap();
    builder.wait().unwrap();
    for process in step.iter().chain(&supervisors) {
        assert!(ends_within(*process, Duration::from_secs(20)), "{process} lives on");
    }
    assert!(processes_with("sleep 1000.0625").is_empty());
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(image.0.path().to_str().unwrap()), "{mounts}");
}

#[test]
fn mount_points_that_lead_elsewhere_are_refused_by_name() {
    if !is_root("mount_points_that_lead_elsewhere_are_refused_by_name") {
        return;
    }
    let host = tempfile::tempdir().unwrap();
    let outside = host.path().to_str().unwrap();
    type Prepare<'a> = &'a dyn Fn(PathBuf);
    let kinds: [(&str, Prepare<'_>); 3] = [
        ("symbolic link", &|path| symlink(outside, path).unwrap()),
        ("symbolic link", &|path| symlink("/bin", path).unwrap()),
        ("file", &|path| fs::write(path, "").unwrap()),
    ];
    for name in ["proc", "sys", "dev"] {
        for (kind, make) in &kinds {
            let image = Image::new();
            make(image.path(name));
            let before = image.listing().len();
            let error = image.failure(&shell("true")).to_string();
            let expected = format!("`/{name}` in the image is a {kind}: nothing can be mounted there");
            assert_eq!(error, expected);
            assert!(image.listing().len() <= before + 2, "at most `/proc` and `/sys` were made");
        }
    }
    assert_eq!(fs::read_dir(host.path()).unwrap().count(), 0);
    let image = Image::new();
    fs::create_dir_all(image.path("etc/hosts")).unwrap();
    let error = image.failure(&shell("true")).to_string();
    assert!(error.starts_with("`/etc/hosts` in the image is a directory"), "{error}");
}

#[test]
fn working_directories_never_lie_outside() {
    if !is_root("working_directories_never_lie_outside") {
        return;
    }
    let image = Image::new();
    symlink("/proc/self/fd", image.path("fds")).unwrap();
    let leaked = File::open("/").unwrap();
    rustix::io::fcntl_setfd(&leaked, rustix::io::FdFlags::empty()).unwrap();
    let numbers =
        (0..30).flat_map(|n| [format!("/proc/self/fd/{n}"), format!("/dev/fd/{n}"), format!("/fds/{n}")]);
    let tricks = [
        "/proc/self/cwd",
        "/proc/self/root",
        "/proc/1/root/etc",
        "/proc/self/task/1/cwd",
        "/missing",
        "/bin/sh",
    ];
    for cwd in numbers.chain(tricks.map(str::to_owned)) {
        let process = Process { cwd: GuestPath::clamp(cwd.as_bytes()).unwrap(), ..command(&["pwd", "-P"]) };
        let error = image.failure(&process);
        assert!(matches!(error, SandboxError::WorkingDirectory { .. }), "{cwd}: {error}");
    }
}

#[test]
fn commands_that_cannot_start_say_why() {
    if !is_root("commands_that_cannot_start_say_why") {
        return;
    }
    let image = Image::new();
    let file = |name: &str, content: &[u8], mode: u32| {
        fs::write(image.path(name), content).unwrap();
        fs::set_permissions(image.path(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    file("script", b"#!/usr/bin/perl -w\n", 0o755);
    file("text", b"echo hello\n", 0o755);
    file("empty", b"", 0o755);
    file("forbidden", b"#!/bin/sh\n", 0o644);
    file("escape", b"#!/proc/self/exe\n", 0o755);
    file("escape2", b"#!/escape\n", 0o755);
    file("loop", b"#!/loop\n", 0o755);
    let dynamic = fs::read("/usr/bin/env").unwrap();
    file("dynamic", &dynamic, 0o755);
    fs::create_dir(image.path("directory")).unwrap();
    symlink("/proc/self/exe", image.path("link")).unwrap();
    let outside =
        |program: &str| format!("`{program}` leads through a link of /proc, and may lead out of the image");
    let forbidden =
        |program: &str| format!("`{program}` may not be executed: permission denied, or not a file");
    let format =
        |program: &str| format!("`{program}` is neither a program nor a script that begins with `#!`");
    let cases = [
        ("/usr/bin/missing", "`/usr/bin/missing` is not in the image".to_owned()),
        ("/bin/sh/x", "`/bin/sh/x` is not in the image".to_owned()),
        ("missing", "`missing` is in no directory of PATH (`/bin`) in the image".to_owned()),
        ("/script", "`/script` needs `/usr/bin/perl`, which is not in the image".to_owned()),
        ("/text", format("/text")),
        ("/empty", format("/empty")),
        ("/forbidden", forbidden("/forbidden")),
        ("/directory", forbidden("/directory")),
        ("/escape", outside("/proc/self/exe")),
        ("/escape2", outside("/proc/self/exe")),
        ("/link", outside("/link")),
        ("/proc/self/exe", outside("/proc/self/exe")),
        ("/proc/1/root/bin/sh", outside("/proc/1/root/bin/sh")),
        ("/dev/fd/0", outside("/dev/fd/0")),
    ];
    for (program, expected) in cases {
        let error = image.failure(&command(&[program]));
        assert!(matches!(error, SandboxError::Start(_)), "{error:?}");
        assert_eq!(error.to_string(), expected);
    }
    let error = image.failure(&command(&["/dynamic"])).to_string();
    assert!(error.starts_with("`/dynamic` needs `/lib"), "{error}");
    let error = image.failure(&command(&["/loop"])).to_string();
    assert!(error.starts_with("`/loop` cannot be executed: "), "{error}");
    let error = image.failure(&command(&["/bin/true", &"x".repeat(1 << 20)])).to_string();
    assert_eq!(error, "`/bin/true` cannot be executed: Argument list too long (os error 7)");
    let error = image.failure(&command(&[])).to_string();
    assert_eq!(error, "`` is not in the image");
    let error = image.failure(&command(&["true", "a\0b"])).to_string();
    assert_eq!(error, "cannot pass an argument or a variable with a NUL byte for the sandbox");
}

#[test]
fn an_image_without_a_shell_says_so() {
    if !is_root("an_image_without_a_shell_says_so") {
        return;
    }
    let error = Image::empty().failure(&shell("true"));
    assert_eq!(error.to_string(), "`/bin/sh` is not in the image");
}

#[test]
fn programs_are_found_in_the_path_of_the_image() {
    if !is_root("programs_are_found_in_the_path_of_the_image") {
        return;
    }
    let image = Image::new();
    fs::create_dir_all(image.path("opt/one")).unwrap();
    fs::create_dir_all(image.path("opt/two")).unwrap();
    let script = |name: &str, mode: u32| {
        fs::write(image.path(name), format!("#!/bin/sh\necho {name} $0 $1\n")).unwrap();
        fs::set_permissions(image.path(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    script("opt/one/tool", 0o644);
    script("opt/two/tool", 0o755);
    script("here", 0o755);
    let mut process = command(&["tool", "argument"]);
    process.env = vec![(b"PATH".to_vec(), b"opt/two::/nowhere:/opt/one:/opt/two".to_vec())];
    assert_eq!(image.run(&process).out, "opt/two/tool /opt/two/tool argument\n");
    let mut relative = command(&["here"]);
    relative.env = vec![(b"PATH".to_vec(), b".::".to_vec())];
    image.failure(&relative);
    assert_eq!(image.run(&command(&["./here"])).out, "here ./here\n");
    // Without PATH, where Docker looks.
    let mut without = command(&["true"]);
    without.env.clear();
    assert_eq!(image.run(&without).exit, Exit::Code(0));
}

#[test]
fn scripts_lie_in_dev_pipes_and_cannot_be_changed() {
    if !is_root("scripts_lie_in_dev_pipes_and_cannot_be_changed") {
        return;
    }
    let image = Image::new();
    let script = |name: &str, content: &str| Script { name: name.into(), content: content.into() };
    let mut process = shell(
        "/dev/pipes/EOF; stat -c %a /dev/pipes/EOF; echo x > /dev/pipes/EOF || echo kept; touch /dev/pipes/x || echo kept; ls /dev/pipes",
    );
    process.scripts = vec![script("EOF", "#!/bin/sh\necho hello\n"), script("B", &"#".repeat(3 << 20))];
    assert_eq!(image.run(&process).out, "hello\n755\nkept\nkept\nB\nEOF\n");
    process.args = vec![b"/dev/pipes/EOF".to_vec()];
    assert_eq!(image.run(&process).out, "hello\n");
    for name in ["", ".", "..", "../x", "a/b", "x\0"] {
        process.scripts = vec![script(name, "")];
        let error = image.failure(&process);
        assert!(matches!(error, SandboxError::Setup { .. }), "{name}: {error}");
    }
}

#[test]
fn setuid_programs_gain_rights() {
    if !is_root("setuid_programs_gain_rights") {
        return;
    }
    if cfg!(not(target_arch = "x86_64")) {
        eprintln!("skipped `setuid_programs_gain_rights`: its program is for x86-64");
        return;
    }
    // `exit(geteuid())`, behind an ELF header and one program header that loads all of it at 0x10000.
    let mut program = Vec::new();
    for word in
        [0x464c_457f, 0x0001_0102, 0, 0, 0x003e_0002, 1, 0x1_0078, 0, 64, 0, 0, 0, 0, 0x0038_0040, 1, 0_u32]
    {
        program.extend(word.to_le_bytes());
    }
    for word in [0x5_0000_0001, 0, 0x1_0000, 0x1_0000, 136, 136, 0x1000_u64] {
        program.extend(word.to_le_bytes());
    }
    program.extend([0xb8, 107, 0, 0, 0, 0x0f, 0x05, 0x89, 0xc7, 0xb8, 60, 0, 0, 0, 0x0f, 0x05]);
    let image = Image::new();
    install(&image, "program", &program);
    let process = Process { user: user(7, 7, &[]), ..command(&["/program"]) };
    assert_eq!(image.run(&process).exit, Exit::Code(7));
    fs::set_permissions(image.path("program"), fs::Permissions::from_mode(0o4755)).unwrap();
    assert_eq!(image.run(&process).exit, Exit::Code(0));
}

/// A mount that is attached nowhere, as the overlay of a step is.
fn detached_overlay(image: &Image, scratch: &Path) -> OwnedFd {
    use rustix::mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen,
    };
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).unwrap();
    fsconfig_set_string(&context, "lowerdir", image.0.path()).unwrap();
    for name in ["upperdir", "workdir"] {
        fs::create_dir(scratch.join(name)).unwrap();
        fsconfig_set_string(&context, name, scratch.join(name)).unwrap();
    }
    fsconfig_create(&context).unwrap();
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).unwrap()
}

#[test]
fn a_detached_overlay_serves_several_steps() {
    if !is_root("a_detached_overlay_serves_several_steps") {
        return;
    }
    let image = Image::new();
    for directory in ["etc", "proc", "sys", "dev"] {
        fs::create_dir(image.path(directory)).unwrap();
    }
    let before = image.listing();
    let scratch = tempfile::tempdir().unwrap();
    let root = Rootfs::from_fd(detached_overlay(&image, scratch.path()));
    assert_eq!(run_in(&root, &shell("echo one > /one; rm /bin/uniq; cat /etc/hosts")).unwrap().out, HOSTS);
    let outcome = run_in(&root, &shell("cat /one; grep -c ' / overlay rw,nodev' /proc/mounts")).unwrap();
    assert_eq!(outcome.out, "one\n1\n", "{}", outcome.error);
    assert_eq!(root.read_small_file(&GuestPath::clamp(b"/one").unwrap(), 100).unwrap().unwrap(), b"one\n");
    assert_eq!(image.listing(), before);
    let mut upper: Vec<String> = Vec::new();
    for path in ["", "etc", "bin", "dev"] {
        let entries = fs::read_dir(scratch.path().join("upperdir").join(path));
        upper.extend(
            entries
                .into_iter()
                .flatten()
                .map(|entry| format!("{path}/{}", entry.unwrap().file_name().to_str().unwrap())),
        );
    }
    upper.sort();
    assert_eq!(upper, ["/bin", "/etc", "/one", "bin/uniq"], "nothing else, and `/etc` as it was");
    let times = |path: PathBuf| fs::metadata(path).unwrap().modified().unwrap();
    assert_eq!(times(scratch.path().join("upperdir/etc")), times(image.path("etc")));
}

#[test]
fn steps_side_by_side_do_not_meet() {
    if !is_root("steps_side_by_side_do_not_meet") {
        return;
    }
    let images = [Image::new(), Image::new(), Image::new(), Image::new()];
    std::thread::scope(|scope| {
        for (index, image) in images.iter().enumerate() {
            scope.spawn(move || {
                for round in 0..3 {
                    let text = format!("{index} {round}");
                    let outcome = image.sh(&format!("echo /proc/[0-9]*; echo {text}"));
                    assert_eq!((outcome.exit, outcome.out), (Exit::Code(0), format!("/proc/1\n{text}\n")));
                }
            });
        }
    });
}

/// The smallest program for 32-bit ARM: `exit(7)`.
fn arm_program() -> Vec<u8> {
    let mut program = Vec::new();
    let mut words = |values: &[u32]| values.iter().for_each(|value| program.extend(value.to_le_bytes()));
    // ELF header: 32 bits, little endian, executable, ARM, entry after both headers, one program header.
    words(&[0x464c_457f, 0x0001_0101, 0, 0, 0x0028_0002, 1, 0x1_0054, 52, 0, 0x0500_0000, 0x0020_0034, 1, 0]);
    // PT_LOAD of the whole file at 0x10000, readable and executable.
    words(&[1, 0, 0x1_0000, 0x1_0000, 96, 96, 5, 0x1000]);
    // mov r0, #7; mov r7, #1; svc 0
    words(&[0xe3a0_0007, 0xe3a0_7001, 0xef00_0000]);
    program
}

pub(super) fn install(image: &Image, name: &str, program: &[u8]) {
    fs::write(image.path(name), program).unwrap();
    fs::set_permissions(image.path(name), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn programs_for_another_processor_run_by_a_handler() {
    if !is_root("programs_for_another_processor_run_by_a_handler") {
        return;
    }
    match availability("arm", Some("v5"), &Host::current(), &Registrations::current()) {
        Emulation::Handler(handler) if handler.flags.contains('F') => {}
        other => {
            eprintln!("skipped `programs_for_another_processor_run_by_a_handler`: {other:?}");
            return;
        }
    }
    let image = Image::new();
    install(&image, "arm", &arm_program());
    assert_eq!(image.run(&command(&["/arm"])).exit, Exit::Code(7));
}

#[test]
fn programs_that_nothing_can_run_are_named() {
    if !is_root("programs_that_nothing_can_run_are_named") {
        return;
    }
    let machines =
        [("sparc64", 2, 2, 43_u16), ("loong64", 2, 1, 258), ("mips64", 2, 2, 8), ("riscv64", 2, 1, 243)];
    let registrations = Registrations::current();
    let missing = machines.into_iter().find(|(architecture, ..)| {
        matches!(availability(architecture, None, &Host::current(), &registrations), Emulation::Missing(_))
    });
    let Some((architecture, class, order, machine)) = missing else {
        eprintln!("skipped `programs_that_nothing_can_run_are_named`: handlers for everything");
        return;
    };
    let image = Image::new();
    let number = |value: u16| if order == 1 { value.to_le_bytes() } else { value.to_be_bytes() };
    let mut program = vec![0x7f, b'E', b'L', b'F', class, order, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    program.extend(number(2));
    program.extend(number(machine));
    program.resize(200, 0);
    install(&image, "foreign", &program);
    let error = image.failure(&command(&["/foreign"]));
    let SandboxError::Start(StartProblem::Foreign { architecture: found, .. }) = &error else {
        panic!("{error}")
    };
    assert_eq!(found, architecture);
    assert!(error.to_string().contains("binfmt_misc"), "{error}");
}

#[test]
fn the_machine_can_be_presented_as_its_predecessor() {
    if !is_root("the_machine_can_be_presented_as_its_predecessor") {
        return;
    }
    let image = Image::new();
    let process = Process { presentation: Presentation::ThirtyTwoBit, ..shell("uname -m") };
    let expected = if cfg!(target_arch = "x86_64") { "i686\n" } else { "armv8l\n" };
    assert_eq!(image.run(&process).out, expected);
    assert_eq!(image.sh("uname -m").out, format!("{}\n", std::env::consts::ARCH));
}

#[test]
fn the_list_of_handlers_can_be_read_without_its_mount() {
    if !is_root("the_list_of_handlers_can_be_read_without_its_mount") {
        return;
    }
    assert_ne!(Registrations::current(), Registrations::Unreadable);
}

#[test]
fn the_hidden_argument_alone_does_nothing() {
    let status = Command::new(env!("CARGO_BIN_EXE_builder"))
        .arg("sandbox-supervisor")
        .stdin(Stdio::null())
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(1));
}

#[test]
fn links_of_the_image_lead_where_they_would_after_chroot() {
    if !is_root("links_of_the_image_lead_where_they_would_after_chroot") {
        return;
    }
    let image = Image::new();
    let root = image.root();
    fs::rename(image.path("bin"), image.path("programs")).unwrap();
    symlink("/../../programs", image.path("bin")).unwrap();
    assert_eq!(run_in(&root, &shell("echo found")).unwrap().out, "found\n");
}
