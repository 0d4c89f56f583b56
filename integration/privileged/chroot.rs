//! A step in a root of its own, without mounts, does to an image what one with mounts does.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use builder::rootfs::{Follow, GuestPath, Owner, Rootfs};
use builder::sandbox::{
    Bind, Cancel, Chroot, Content, FurnishError, Loss, Mount, Process, Rights, Sandbox, SandboxError, Script,
    Secret, SecretFile, Stream, Writes,
};
use tempfile::TempDir;

use super::is_root;
use super::sandbox::{Image, Outcome, command, isolated, processes_with, run_by, shell, user};
use crate::support::finish;
use crate::support::ground::ground;
use crate::support::oci::LayoutImage;
use crate::support::tree::{self, Times};
use crate::support::{Builder, Context, scratch};

/// The time of all that was there before a step.
const OLD: &str = "1000";

/// Two images that are equal, and what is mounted in them.
struct Twins {
    images: [Image; 2],
    source: TempDir,
    aside: TempDir,
}

fn make(directory: &Path, script: &str) {
    let script = format!("set -e; umask 022; {script}");
    finish(Command::new("sh").args(["-c", &script]).current_dir(directory)).success();
}

impl Twins {
    /// Busybox and what `script` makes in its root; `S` stands for the directory of what is mounted.
    fn new(script: &str) -> Self {
        let twins = Self {
            images: [Image::new(), Image::new()],
            source: tempfile::tempdir().unwrap(),
            aside: tempfile::tempdir().unwrap(),
        };
        make(
            twins.source.path(),
            "mkdir -p d/sub; echo f > d/f; echo s > d/sub/s; ln d/f d/g; ln -s f d/l; chmod 6755 d/sub/s
             chown 5:6 d d/f; chmod 750 d; mkfifo d/p; echo single > file; chmod 4711 file; chown 7 file",
        );
        for image in &twins.images {
            make(&image.path(""), script);
        }
        twins.age();
        twins
    }

    /// Gives everything the time of before.
    fn age(&self) {
        let images = self.images.iter().map(|image| image.path(""));
        for directory in images.chain([self.source.path().to_owned()]) {
            make(&directory, &format!("find . -depth -exec touch -h -d @{OLD} {{}} +"));
        }
    }

    fn chroot(&self) -> Chroot {
        Chroot::new(env!("CARGO_BIN_EXE_builder"), self.aside.path())
    }

    /// What the step does in either.
    fn run(&self, process: &Process) -> [Result<Outcome, SandboxError>; 2] {
        let chroot = self.chroot();
        let sandboxes: [&dyn Sandbox; 2] = [&isolated(), &chroot];
        let [with, without] = &self.images;
        [(sandboxes[0], with), (sandboxes[1], without)]
            .map(|(sandbox, image)| run_by(sandbox, &image.root(), process))
    }

    /// The files of either, with `now` for every time but that of before.
    fn trees(&self) -> [String; 2] {
        self.images.each_ref().map(|image| {
            let dump = tree::dump(&image.path(""), Times::Shown);
            let line = |line: &str| {
                let mut words: Vec<&str> = line.split(' ').collect();
                if words[5] != OLD {
                    words[5] = "now";
                }
                words.join(" ") + "\n"
            };
            dump.lines().map(line).collect()
        })
    }

    fn bind(&self, source: &str, target: &str, writes: Writes) -> Mount {
        let root = Rootfs::open(self.source.path()).unwrap();
        let tree = Arc::new(root.open_path(&GuestPath::root(), Follow::No).unwrap());
        let path = GuestPath::clamp(source.as_bytes()).unwrap();
        let source = Arc::new(root.open_path(&path, Follow::No).unwrap());
        mount(target, Content::Bind(Bind { tree, source, kept_at: None, writes, rights: Rights::Honoured }))
    }
}

fn mount(target: &str, content: Content) -> Mount {
    Mount { target: GuestPath::clamp(target.as_bytes()).unwrap(), content }
}

fn tmpfs(target: &str) -> Mount {
    mount(target, Content::Tmpfs { size: Some(1 << 20) })
}

fn secret(target: &str) -> Mount {
    let file = SecretFile { value: Secret::new(b"hidden"), mode: 0o440, owner: Owner { uid: 3, gid: 4 } };
    mount(target, Content::Secret(file))
}

fn text(result: &Result<Outcome, SandboxError>) -> String {
    match result {
        Ok(outcome) => format!("{:?}\n{}{}", outcome.exit, outcome.out, outcome.error),
        Err(error) => {
            let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
            format!("{error}{}", cause.unwrap_or_default())
        }
    }
}

fn assert_equal(twins: &Twins, process: &Process, name: &str) {
    let [with, without] = twins.run(process).each_ref().map(text);
    assert_eq!(without, with, "{name}");
    let [with, without] = twins.trees();
    assert_eq!(differences(&without, &with), "", "{name}");
    let left = fs::read_dir(twins.aside.path()).unwrap().count();
    assert_eq!(left, 0, "{name}: nothing is aside any more");
}

/// Lines that only one of two has.
fn differences(one: &str, other: &str) -> String {
    let only = |one: &str, other: &str, sign| -> String {
        let lines = one.lines().filter(|line| !other.lines().any(|found| found == *line));
        lines.map(|line| format!("{sign} {line}\n")).collect()
    };
    only(one, other, '+') + &only(other, one, '-')
}

#[test]
fn images_of_all_kinds_become_the_same_with_mounts_and_without() {
    if !is_root("images_of_all_kinds_become_the_same_with_mounts_and_without") {
        return;
    }
    let images = [
        "true",
        "mkdir etc proc sys dev; echo h > etc/hosts; ln etc/hosts etc/other; echo r > etc/resolv.conf; echo x > dev/x; echo x > proc/x",
        "mkdir etc; ln -s ../run/systemd/resolve/stub-resolv.conf etc/resolv.conf; ln -s /nowhere/hosts etc/hosts",
        "mkdir -p usr/etc; ln -s usr/etc etc; chmod 700 usr/etc; mkdir -m 1777 tmp; mkdir -m 2775 dev; chown 4 dev",
    ];
    let steps = [
        "true",
        "cat /etc/hosts | head -n 2; cat /etc/resolv.conf; ls -a / | grep -v bin; umask; pwd; wc -c",
        "mkdir -p /a/b && echo x > /a/b/c && chmod 4755 /a/b/c && chown 5:6 /a/b && ln -s /a /l && mkfifo /a/p",
        "head -c 3 /dev/zero | wc -c; head -c 3 /dev/urandom | wc -c; ls /dev | grep -v core; ls -l /dev/null | cut -c 1-10",
        "echo x > /dev/x; mkdir /dev/d /dev/shm/d; echo y > /dev/null; echo z 2>/dev/full > /dev/full; true",
        "chmod 711 /; touch -d @5 /; echo x > /x; mkfifo /p; tar c /x 2>/dev/null | tar x -O",
        "echo x > /etc/new; rm -f /etc/other; mkdir -m 700 /etc/d; echo n > /n; ln /etc/new /etc/newer",
        "mv /etc /moved; mkdir /etc; echo mine > /etc/x",
        "rm -rf /moved; mv /etc /moved; ln -s moved /etc; true",
        "rm -rf /moved/* 2>/dev/null; touch /moved",
        "touch /moved/new; rm -rf /etc /moved /usr 2>/dev/null; touch /",
        "rm -rf /bin/vi; exit 7",
        "rm /etc/hosts 2>/dev/null; rm -rf /etc/resolv.conf /dev /proc /sys 2>/dev/null; true",
        "echo x > /new; mv /new /etc/hosts 2>/dev/null; rm -f /new; chmod 700 /etc",
        "rm -f /etc/hosts 2>/dev/null; echo x > /etc/besides",
    ];
    for image in images {
        let twins = Twins::new(image);
        for step in steps {
            twins.age();
            assert_equal(&twins, &shell(step), &format!("{image}: {step}"));
        }
    }
}

#[test]
fn users_and_scripts_are_the_same_with_mounts_and_without() {
    if !is_root("users_and_scripts_are_the_same_with_mounts_and_without") {
        return;
    }
    let twins = Twins::new("mkdir -m 1777 tmp; mkdir w; cp bin/busybox su; chmod 4755 su");
    let script = Script { name: b"EOF".to_vec(), content: b"#!/bin/sed 1d;s/o/0/g\nfoo\n".to_vec() };
    let mut process = command(&["/dev/pipes/EOF"]);
    process.scripts = vec![script];
    assert_equal(&twins, &process, "a script with an interpreter of its own");
    let outcome = run_by(&twins.chroot(), &twins.images[1].root(), &process).unwrap();
    assert_eq!(outcome.out, "f00\n");
    for cwd in ["/w", "/tmp", "/"] {
        let steps = "id -u; id -G; pwd; echo x > x; (echo y > /dev/shm/y) && cat /dev/shm/y; echo z > /dev/null; : > /etc/z";
        let process = Process {
            user: user(1000, 100, &[5, 6]),
            cwd: GuestPath::clamp(cwd.as_bytes()).unwrap(),
            ..shell(steps)
        };
        assert_equal(&twins, &process, cwd);
    }
}

#[test]
fn mounts_of_all_kinds_leave_the_same_image_with_mounts_and_without() {
    if !is_root("mounts_of_all_kinds_leave_the_same_image_with_mounts_and_without") {
        return;
    }
    let image = "mkdir -p etc old/d real; echo o > old/f; chmod 2750 old/d; ln -s /real link; ln -s /gone/there broken";
    let look =
        "find /m /old /real /gone /run /new ! -type d -exec stat -c '%n %a %u:%g %s' {} + 2>/dev/null | sort";
    /// A name, what the step does, and what is mounted where.
    type Case = (&'static str, &'static str, Vec<(&'static str, &'static str)>);
    let cases: [Case; 8] = [
        ("a directory", "cp -a /m /copy; cat /m/f /m/sub/s", vec![("d", "/m")]),
        ("a directory over another", "cp -r /old/d /copy; touch /old/x", vec![("d", "/old/d")]),
        (
            "through links",
            "cp /link/x/f /f; touch /link/y; ls /gone/there",
            vec![("d", "/link/x"), ("d", "/broken")],
        ),
        (
            "files",
            "cat /m /old/f /etc/hosts; cp -p /m /copy",
            vec![("file", "/m"), ("file", "/old/f"), ("file", "/etc/hosts")],
        ),
        (
            "tmpfs",
            "touch /m/x /old/d/x; stat -c %a /m /old/d; echo y > /y",
            vec![("tmpfs", "/m"), ("tmpfs", "/old/d")],
        ),
        (
            "secrets",
            "cat /run/secrets/a; cp /old/f /m",
            vec![("secret", "/run/secrets/a"), ("secret", "/old/f")],
        ),
        (
            "inside each other",
            "echo w > /m/t/u/v; cat /m/t/s /m/t/u/v; touch /m/sub; mkdir /new; cp -r /m /new",
            vec![
                ("tmpfs", "/m"),
                ("tmpfs", "/m/t"),
                ("secret", "/m/t/s"),
                ("d", "/m/t/u"),
                ("tmpfs", "/m/t/u"),
            ],
        ),
        ("in /dev", "cat /dev/m/f /dev/s; touch /dev/shm/x", vec![("d", "/dev/m"), ("secret", "/dev/s")]),
    ];
    for (name, step, mounts) in cases {
        let twins = Twins::new(image);
        let before = (tree::dump(twins.source.path(), Times::Shown), twins.trees());
        let mounts: Vec<Mount> = mounts
            .into_iter()
            .map(|(what, target)| match what {
                "tmpfs" => tmpfs(target),
                "secret" => secret(target),
                source => twins.bind(source, target, Writes::Allowed),
            })
            .collect();
        let process = Process { mounts: mounts.clone(), ..shell(&format!("{look}; {step}")) };
        assert_equal(&twins, &process, name);
        let process = Process { mounts, ..shell("true") };
        let untouched = Twins::new(image);
        assert_equal(&untouched, &process, name);
        let [with, without] = before.1;
        let kernel = |tree: &str| -> String {
            let made = ["/proc ", "/sys ", "/dev ", "/ "];
            let lines = tree.lines().filter(|line| !made.iter().any(|start| line.starts_with(start)));
            lines.map(|line| format!("{line}\n")).collect()
        };
        let after = untouched.trees();
        for (before, after) in [&with, &without].into_iter().zip(&after) {
            assert_eq!(differences(&kernel(after), &kernel(before)), "", "{name}");
        }
        if !name.contains("inside") {
            assert_eq!(tree::dump(twins.source.path(), Times::Shown), before.0, "{name}");
        }
    }
}

#[test]
fn what_cannot_be_done_is_said_in_the_same_words_with_mounts_and_without() {
    if !is_root("what_cannot_be_done_is_said_in_the_same_words_with_mounts_and_without") {
        return;
    }
    let image =
        "mkdir etc d; echo '#!/no/such' > script; echo text > text; chmod 755 script text; echo x > plain
                 ln -s loop loop; cp /bin/sh linked
                 printf '\\177ELF\\2\\1\\1\\0\\0\\0\\0\\0\\0\\0\\0\\0\\2\\0\\2\\1' > foreign; head -c 200 /dev/zero >> foreign; chmod 755 foreign";
    let twins = Twins::new(image);
    let run = |args: &[&str]| command(args);
    let cases = [
        ("no such program", run(&["/no/such"])),
        ("not in PATH", run(&["nosuch"])),
        ("no interpreter", run(&["/script"])),
        ("no loader", run(&["/linked"])),
        ("no program", run(&["/text"])),
        ("for another processor", run(&["/foreign"])),
        ("a directory", run(&["/d"])),
        ("no right", run(&["/plain"])),
        ("a loop", run(&["/loop"])),
        ("nothing", Process { args: Vec::new(), ..run(&[]) }),
        ("no directory", Process { cwd: GuestPath::clamp(b"/none").unwrap(), ..run(&["true"]) }),
        ("a file as directory", Process { cwd: GuestPath::clamp(b"/text").unwrap(), ..run(&["true"]) }),
        ("nobody", Process { user: user(u32::MAX, 0, &[]), ..run(&["true"]) }),
        ("over /", Process { mounts: vec![tmpfs("/d/..")], ..run(&["true"]) }),
        ("over /dev", Process { mounts: vec![tmpfs("/dev/.")], ..run(&["true"]) }),
        ("in /proc", Process { mounts: vec![secret("/proc/x")], ..run(&["true"]) }),
        ("in a file", Process { mounts: vec![secret("/text/x")], ..run(&["true"]) }),
        ("in a loop", Process { mounts: vec![secret("/loop/x")], ..run(&["true"]) }),
        ("a file over a directory", Process { mounts: vec![secret("/d")], ..run(&["true"]) }),
        (
            "a directory over a file",
            Process { mounts: vec![twins.bind("d", "/text", Writes::Refused)], ..run(&["true"]) },
        ),
    ];
    for (name, process) in cases {
        let results = twins.run(&process);
        assert!(results.iter().all(Result::is_err), "{name}: {results:?}");
        assert_eq!(text(&results[1]), text(&results[0]), "{name}");
        let [with, without] = twins.trees();
        assert_eq!(differences(&without, &with), "", "{name}");
    }
    for prepare in
        ["echo x > proc", "ln -s etc sys", "mkfifo dev", "mkdir -p etc/hosts", "mkdir -p etc/resolv.conf"]
    {
        let twins = Twins::new(prepare);
        let results = twins.run(&run(&["true"]));
        assert!(
            results
                .iter()
                .all(|result| matches!(result, Err(SandboxError::Furnish(FurnishError::MountPoint { .. })))),
            "{results:?}"
        );
        assert_eq!(text(&results[1]), text(&results[0]), "{prepare}");
    }
}

#[test]
fn a_step_cannot_leave_its_root() {
    if !is_root("a_step_cannot_leave_its_root") {
        return;
    }
    let twins = Twins::new("mkdir d");
    let outcome =
        run_by(&twins.chroot(), &twins.images[1].root(), &shell("chroot /d /x; chroot . /x")).unwrap();
    assert_eq!(outcome.error.matches("Operation not permitted").count(), 2, "{}", outcome.error);
    let outcome = run_by(&twins.chroot(), &twins.images[1].root(), &shell("ls / /.. /proc /sys")).unwrap();
    assert_eq!(
        outcome.out,
        "/:\nbin\nd\ndev\netc\nproc\nsys\n\n/..:\nbin\nd\ndev\netc\nproc\nsys\n\n/proc:\n\n/sys:\n"
    );
}

#[test]
fn nothing_is_left_of_a_step_and_its_surroundings_however_it_ends() {
    if !is_root("nothing_is_left_of_a_step_and_its_surroundings_however_it_ends") {
        return;
    }
    let twins = Twins::new("mkdir etc proc sys dev; echo h > etc/hosts; echo r > etc/resolv.conf");
    let before = twins.trees()[1].clone();
    let leave = "setsid sleep 1000.625 & (setsid sh -c 'trap \"\" TERM; sleep 1000.625' &) ; rm /etc/hosts; echo x > /dev/x;";
    let secret = || vec![secret("/run/secrets/a"), tmpfs("/new")];
    let check = |what: &str| {
        assert!(processes_with("sleep 1000.625").is_empty(), "{what}");
        assert_eq!(fs::read_dir(twins.aside.path()).unwrap().count(), 0, "{what}");
        let after = twins.trees()[1].clone();
        // Of the directory in which the step removed something the time is another.
        assert_eq!(differences(&after.replace("0:0 - now", "0:0 - 1000"), &before), "", "{what}");
    };
    let run = |script: &str, cancel: &Cancel, output: &mut dyn FnMut(Stream, &[u8])| {
        let process = Process { mounts: secret(), ..shell(&format!("{leave} {script}")) };
        twins.chroot().run(&twins.images[1].root(), &process, output, cancel)
    };
    let never = Cancel::new().unwrap();
    run("exit 0", &never, &mut |_, _| {}).unwrap();
    check("it ends");
    run("kill -9 $$", &never, &mut |_, _| {}).unwrap();
    check("it is killed");
    let error = run("kill -9 $PPID; sleep 1000.625", &never, &mut |_, _| {}).unwrap_err();
    assert!(matches!(error, SandboxError::Lost(Loss::Step)), "{error}");
    check("its supervisor is killed");
    let cancel = Cancel::new().unwrap();
    let error = run("echo ready; sleep 1000.625", &cancel, &mut |_, _| cancel.cancel("enough")).unwrap_err();
    assert!(matches!(error, SandboxError::Cancelled { .. }), "{error}");
    check("it is cancelled");
    let error = run("true", &cancel, &mut |_, _| {}).unwrap_err();
    assert!(matches!(error, SandboxError::Cancelled { .. }), "{error}");
    check("it never begins");
}

/// The layers that a build adds to its base, as paths.
fn layers(context: &Context, flags: &[&str]) -> Vec<Vec<String>> {
    let out = scratch();
    let layout = out.path().join("layout");
    Builder::new().layout(context, &layout, flags).success();
    LayoutImage::only(&layout).layer_paths(&layout).split_off(1)
}

#[test]
fn a_step_that_changes_nothing_adds_nothing_and_others_add_the_same() {
    if !is_root("a_step_that_changes_nothing_adds_nothing_and_others_add_the_same") {
        return;
    }
    let base = ground().name("debian:latest");
    let context = Context::new(&format!(
        "FROM {base}\nRUN true\nRUN --mount=type=tmpfs,target=/usr/share --mount=target=/m/x true\n\
         RUN echo x >>/etc/hosts || true; touch /etc/new\nRUN true\nRUN <<EOF\n#!/usr/bin/perl\nmkdir '/made'; print 'perl', \"\\n\";\nEOF\n"
    ));
    let mounts = layers(&context, &["--isolation=mount-namespace", "--snapshotter=native"]);
    let without = layers(&context, &["--isolation=chroot"]);
    assert_eq!(without, mounts);
    assert_eq!(without.last().unwrap(), &["made/"].map(str::to_owned));
}

#[test]
fn a_step_that_fails_is_told_what_it_lacked() {
    if !is_root("a_step_that_fails_is_told_what_it_lacked") {
        return;
    }
    let base = ground().name("busybox:latest");
    let context = Context::new(&format!("FROM {base}\nRUN cat </proc/self/stat\n"));
    let builder = Builder::new();
    for (isolation, code) in [("mount-namespace", 0), ("chroot", 1)] {
        let mut command = builder.command();
        let flag = format!("--isolation={isolation}");
        command.args(["--no-push", "--no-cache", &flag, "-c"]).arg(context.path());
        let finished = finish(&mut command).exited(code);
        assert_eq!(finished.says(&["hint: ", "had no /proc", "builder doctor"]), code == 1, "{finished:?}");
    }
}

/// In namespaces no device of an image can be opened.
#[test]
fn no_step_finds_a_device_in_its_image_that_it_could_open() {
    if !is_root("no_step_finds_a_device_in_its_image_that_it_could_open") {
        return;
    }
    let twins = Twins::new("mkdir dev lib; mknod dev/messages c 1 11; mknod lib/null c 1 3");
    let read = shell("head -c 0 /lib/messages && echo opened");
    let in_chroot = |process| run_by(&twins.chroot(), &twins.images[1].root(), process);
    // What is in the image's own /dev is out of reach, and /dev/null does no harm.
    in_chroot(&read).unwrap();
    for image in &twins.images {
        make(&image.path(""), "mknod lib/messages c 1 11");
    }
    let [with, without] = twins.run(&read);
    assert_eq!(with.unwrap().out, "");
    // The rules for devices of whoever runs the tests decide.
    match fs::File::open(twins.images[1].path("lib/messages")) {
        Ok(_) => assert!(
            matches!(&without, Err(SandboxError::Device { path }) if path.to_string() == "/lib/messages"),
            "{}",
            text(&without)
        ),
        Err(_) => assert_eq!(without.unwrap().out, ""),
    }
    let left = fs::read_dir(twins.aside.path()).unwrap().count();
    assert_eq!(left, 0, "nothing is aside any more");
}
