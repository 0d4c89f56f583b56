//! Which system calls a step may make, tried against the kernel.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use builder::sandbox::emulation::Predecessor;
use builder::sandbox::{Cancel, Chroot, Sandbox, Stream, can_filter_system_calls, emulation};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};

use super::is_root;
use super::sandbox::{Image, command, install};

/// Compiles `call.c`. It needs no C library, so that a 64-bit compiler makes a 32-bit program of it anywhere.
fn compile(directory: &Path, machine: Option<&str>) -> PathBuf {
    let program = directory.join("call");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/privileged/call.c");
    let status = Command::new("cc")
        .args([
            "-O1",
            "-static",
            "-nostdlib",
            "-ffreestanding",
            "-fno-pie",
            "-no-pie",
            "-fno-stack-protector",
        ])
        .args(machine)
        .arg("-o")
        .args([&program, &source])
        .status()
        .expect("gcc, which Rust needs too");
    assert!(status.success(), "{machine:?}");
    program
}

/// What one call gives.
#[derive(Debug, Clone, Copy)]
enum Gives {
    /// This error; the kernel itself would give another one, or none.
    Refused(i64),
    /// This.
    Exactly(i64),
    /// A descriptor.
    Descriptor,
}

const EPERM: i64 = 1;
const EBADF: i64 = 9;
const EFAULT: i64 = 14;
const EINVAL: i64 = 22;
const ENOSYS: i64 = 38;

/// Calls with their arguments. None does anything that could not be undone when it is made.
const CASES: [(&str, &str, Gives); 22] = [
    ("prctl", "21", Gives::Exactly(2)),
    ("prctl", "39", Gives::Exactly(0)),
    ("read", "4294967295", Gives::Exactly(-EBADF)),
    ("ptrace", "0", Gives::Exactly(0)),
    ("chroot", "0", Gives::Exactly(-EFAULT)),
    ("personality", "131080", Gives::Exactly(0)),
    ("personality", "8", Gives::Exactly(0x2_0008)),
    ("personality", "262144", Gives::Refused(EPERM)),
    ("personality", "4294967295", Gives::Exactly(8)),
    ("socket", "1,1", Gives::Descriptor),
    ("socket", "16,3", Gives::Descriptor),
    ("socket", "40,1", Gives::Refused(EPERM)),
    ("socket", "38,5", Gives::Refused(EPERM)),
    // A thread that shares nothing is refused by the kernel, a user namespace is not.
    ("clone", "65536", Gives::Exactly(-EINVAL)),
    ("clone", "268435473", Gives::Refused(EPERM)),
    ("clone3", "0,0", Gives::Refused(ENOSYS)),
    ("unshare", "268435456", Gives::Refused(EPERM)),
    ("unshare", "0", Gives::Refused(EPERM)),
    ("keyctl", "0,4294967293", Gives::Refused(EPERM)),
    ("userfaultfd", "4294967295", Gives::Refused(EPERM)),
    ("io_uring_setup", "0", Gives::Refused(EPERM)),
    ("file_getattr", "0", Gives::Refused(ENOSYS)),
];

fn check(words: &[String], numbers: fn(&str) -> Option<i32>, prefix: &str, image: &Image, whom: &str) {
    let mut script = "/call".to_owned();
    for (name, arguments, _) in CASES {
        let number = numbers(name).unwrap_or_else(|| panic!("{name}"));
        script.push_str(&format!(" {prefix}{number},{arguments}"));
    }
    for word in words {
        script.push_str(&format!(" {word}"));
    }
    let outcome = image.sh(&script);
    let results: Vec<i64> = outcome.out.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(results.len(), CASES.len() + words.len(), "{whom}: {outcome:?}");
    for ((name, arguments, gives), result) in CASES.iter().zip(&results) {
        let right = match gives {
            Gives::Refused(errno) => *result == -errno,
            Gives::Exactly(expected) => result == expected,
            Gives::Descriptor => *result >= 0,
        };
        assert!(right, "{whom}: {name}({arguments}) gave {result}, not {gives:?}");
    }
    assert!(results[CASES.len()..].iter().all(|result| *result == -ENOSYS), "{whom}: {words:?} {results:?}");
}

#[test]
fn a_step_s_system_calls_are_filtered_whichever_way_it_makes_them() {
    let test = "a_step_s_system_calls_are_filtered_whichever_way_it_makes_them";
    if !is_root(test) {
        return;
    }
    if !can_filter_system_calls() {
        eprintln!("skipped `{test}`: the kernel has no seccomp filters");
        return;
    }
    let image = Image::new();
    let scratch = tempfile::tempdir().unwrap();
    let native = |name: &str| name.parse::<syscalls::Sysno>().ok().map(|call| call.id());
    let of_32_bits = |name: &str| name.parse::<syscalls::x86::Sysno>().ok().map(|call| call.id());
    install(&image, "call", &fs::read(compile(scratch.path(), None)).unwrap());
    // x32 begins at 2^30.
    let unknown = ["999", "1073741863"].map(str::to_owned);
    check(&unknown, native, "", &image, "native");
    if cfg!(not(target_arch = "x86_64")) {
        return;
    }
    if emulation::Host::current().predecessor != Predecessor::Runs
        || !Command::new(compile(scratch.path(), Some("-m32"))).status().is_ok_and(|status| status.success())
    {
        eprintln!("skipped half of `{test}`: the kernel runs no 32-bit programs");
        return;
    }
    check(&["i999".to_owned()], of_32_bits, "i", &image, "32-bit calls of a 64-bit program");
    install(&image, "call", &fs::read(scratch.path().join("call")).unwrap());
    check(&["999".to_owned()], of_32_bits, "", &image, "a 32-bit program");
}

#[test]
fn without_namespaces_system_calls_are_filtered_where_the_builder_may_do_that() {
    let test = "without_namespaces_system_calls_are_filtered_where_the_builder_may_do_that";
    if !is_root(test) {
        return;
    }
    let image = Image::new();
    let scratch = tempfile::tempdir().unwrap();
    let program = compile(scratch.path(), None);
    install(&image, "call", &fs::read(&program).unwrap());
    fs::create_dir_all(image.path("dev")).unwrap();
    mknodat(
        CWD,
        image.path("dev/null"),
        FileType::CharacterDevice,
        Mode::from_raw_mode(0o666),
        makedev(1, 3),
    )
    .unwrap();
    // PR_GET_SECCOMP, PR_GET_NO_NEW_PRIVS.
    let prctl = "prctl".parse::<syscalls::Sysno>().unwrap().id();
    let arguments = [format!("{prctl},21"), format!("{prctl},39")];
    let own = Command::new(program).args(&arguments).output().unwrap().stdout;
    let own = String::from_utf8(own).unwrap();
    let in_chroot = || {
        let mut out = Vec::new();
        let mut output = |_: Stream, bytes: &[u8]| out.extend_from_slice(bytes);
        let process = command(&["/call", &arguments[0], &arguments[1]]);
        let aside = tempfile::tempdir().unwrap();
        let chroot = Chroot::new(env!("CARGO_BIN_EXE_builder"), aside.path());
        chroot.run(&image.root(), &process, &mut output, &Cancel::new().unwrap()).unwrap();
        String::from_utf8(out).unwrap()
    };
    // Neither sets no_new_privs, without which nobody else may install a filter.
    let filtered = if can_filter_system_calls() { "2\n0\n" } else { &own };
    assert_eq!(in_chroot(), filtered);
    let without_it = std::thread::scope(|scope| {
        // Capabilities are a thread's, and those of a process that it starts.
        let ordinary = scope.spawn(|| {
            remove_capability_from_bounding_set(CapabilitySet::SYS_ADMIN).unwrap();
            in_chroot()
        });
        ordinary.join().unwrap()
    });
    assert_eq!(without_it, own);
}
