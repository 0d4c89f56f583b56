//! `RUN --mount=type=secret` through the whole program: who gets a secret, and where it is never found.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;

use crate::support::ground::ground;
use crate::support::oci::LayoutImage;
use crate::support::traces::{self, Family, Running};
use crate::support::{Builder, Context, Finished, scratch};

const CANARY: &str = "canary-5up3r-s3cr3t";

fn context(dockerfile: &str) -> Context {
    Context::new(&dockerfile.replace("BASE", &ground().name("busybox:latest")))
}

fn build(builder: &Builder, context: &Context, arguments: &[&str]) -> Finished {
    let mut command = builder.command();
    command.env("TOKEN", CANARY).args(["--no-push", "-v", "trace", "-c"]).arg(context.path()).args(arguments);
    crate::support::finish(&mut command)
}

/// What the steps wrote, without their tags.
fn lines(finished: &Finished) -> Vec<&str> {
    finished.stderr.lines().filter_map(|line| line.split_once("] | ").map(|(_, text)| text)).collect()
}

/// The files below `directory` that hold `needle`, packed or not.
fn holding(directory: &Path, needle: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut pending = vec![directory.to_owned()];
    while let Some(path) = pending.pop() {
        let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
        if metadata.is_dir() {
            pending.extend(fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()));
        } else if metadata.is_file() {
            let raw = fs::read(&path).unwrap_or_default();
            let mut unpacked = Vec::new();
            let _ = flate2::read::MultiGzDecoder::new(&raw[..]).read_to_end(&mut unpacked);
            let holds = |bytes: &[u8]| bytes.windows(needle.len()).any(|window| window == needle.as_bytes());
            if holds(&raw) || holds(&unpacked) {
                found.push(path);
            }
        }
    }
    found
}

#[test]
fn a_search_for_secrets_finds_them() {
    let directory = scratch();
    fs::write(directory.path().join("plain"), format!("x{CANARY}x")).unwrap();
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, CANARY.as_bytes()).unwrap();
    fs::write(directory.path().join("packed"), packed.finish().unwrap()).unwrap();
    fs::write(directory.path().join("other"), "x").unwrap();
    assert_eq!(holding(directory.path(), CANARY).len(), 2);
}

#[test]
fn a_secret_is_in_no_layer_store_history_log_or_error() {
    let context = context(
        "FROM BASE\n\
         RUN --mount=type=secret,id=file --mount=type=secret,id=env,env=TOKEN --mount=type=secret,id=env,target=/etc/token \
         cat /run/secrets/file /etc/token; echo; echo $TOKEN >&2; echo ok >/made; test $(cat /etc/token) = $TOKEN\n\
         RUN test -z \"$TOKEN\" && ! test -e /run && ! test -e /etc/token\n\
         RUN --mount=type=secret,id=file cat /run/secrets/file && exit 7\n",
    );
    let (builder, out) = (Builder::new(), scratch());
    let file = out.path().join("file");
    fs::write(&file, format!("first line\n{CANARY}\n")).unwrap();
    let layout = out.path().join("layout");
    let flags = [
        &format!("--secret=id=file,src={}", file.display()),
        "--secret=id=env,env=TOKEN",
        &format!("--oci-layout-path={}", layout.display()),
    ];
    let finished = build(&builder, &context, &flags).exited(7);
    assert!(!finished.stderr.contains(CANARY), "{}", finished.stderr);
    assert!(finished.stderr.contains("| ***"), "{}", finished.stderr);
    assert_eq!(holding(builder.store(), CANARY), [""; 0].map(PathBuf::from));

    let text = fs::read_to_string(context.path().join("Dockerfile")).unwrap();
    fs::write(context.path().join("Dockerfile"), text.replace(" && exit 7", "")).unwrap();
    let finished = build(&builder, &context, &flags).success();
    assert!(!finished.stderr.contains(CANARY) && !finished.stdout.contains(CANARY), "{}", finished.stderr);
    assert_eq!(holding(builder.store(), CANARY), [""; 0].map(PathBuf::from));
    assert_eq!(holding(&layout, CANARY), [""; 0].map(PathBuf::from));
    let layers = LayoutImage::only(&layout).layer_paths(&layout);
    assert_eq!(layers[1], ["dev/", "made", "proc/", "sys/"]);
    assert_eq!(layers[2..], [Vec::<String>::new(), Vec::new()]);
}

#[test]
fn without_mounts_a_secret_is_on_a_disk_for_the_time_of_its_step_and_that_is_said() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: it needs root");
        return;
    }
    let file = "RUN --mount=type=secret,id=s,target=/s";
    let (builder, out) = (Builder::new(), scratch());
    let layout = out.path().join("layout");
    let layout_flag = format!("--oci-layout-path={}", layout.display());
    let look = context(&format!("FROM BASE\n{file} grep -c canary /s; ln /s /linked\n{file} mv /s /moved\n"));
    let flags = ["--isolation=chroot", "--secret=id=s,env=TOKEN", &layout_flag];
    let finished = build(&builder, &look, &flags).success();
    let warnings =
        finished.stderr.lines().filter(|line| line.contains("secrets are files on a disk")).count();
    assert_eq!(warnings, 1, "{}", finished.stderr);
    assert_eq!(lines(&finished), ["1"]);
    for place in [builder.store(), &layout] {
        assert_eq!(holding(place, CANARY), [""; 0].map(PathBuf::from));
    }
    assert_eq!(LayoutImage::only(&layout).layer_paths(&layout)[2], ["moved"]);
    // Where there is none to be told of.
    for (run, flags) in [
        (file, &["--isolation=chroot"][..]),
        (file, &["--isolation=mount-namespace", "--secret=id=s,env=TOKEN"]),
        ("RUN --mount=type=secret,id=s,env=S", &["--isolation=chroot", "--secret=id=s,env=TOKEN"]),
    ] {
        let finished = build(&builder, &context(&format!("FROM BASE\n{run} true\n")), flags).success();
        assert!(!finished.says(&["on a disk"]), "{run}: {}", finished.stderr);
    }
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let shared_memory = mounts.lines().rfind(|line| line.split(' ').nth(1) == Some("/dev/shm"));
    if shared_memory.is_none_or(|line| !line.contains(" tmpfs ") || line.contains("nodev")) {
        eprintln!("skipped in part: there is no file system in memory that can have devices at /dev/shm");
        return;
    }
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let store = format!("--store={}", memory.path().display());
    let flags = ["--isolation=chroot", "--secret=id=s,env=TOKEN", &store];
    let finished = build(&builder, &context(&format!("FROM BASE\n{file} cat /s\n")), &flags).success();
    assert!(!finished.says(&["on a disk"]), "{}", finished.stderr);
}

#[test]
fn while_a_step_has_a_secret_nobody_else_does() {
    let context = context(
        "FROM BASE\nRUN --mount=type=secret,id=s grep -c canary /run/secrets/s; echo ready; exec sleep 1000\n",
    );
    let (builder, out) = (Builder::new(), scratch());
    let file = out.path().join("file");
    fs::write(&file, CANARY).unwrap();
    let mut command = builder.command();
    command.args(["--no-push", "-v", "trace", "-c"]).arg(context.path());
    let mut running = Running::start(command.arg(format!("--secret=id=s,src={}", file.display())));
    running.wait_for("| ready");
    let step = {
        let id = running.id();
        running.wait_until("sleep", |_| Family::of(id).named("sleep").is_some());
        Family::of(id).named("sleep").expect("the step")
    };
    // It is there, in the step's own view, and only in memory.
    let seen = format!("/proc/{step}/root/run/secrets/s");
    assert_eq!(fs::read_to_string(&seen).unwrap(), CANARY);
    let mounts = fs::read_to_string(format!("/proc/{step}/mountinfo")).unwrap();
    let mount = mounts.lines().find(|line| line.contains(" /run/secrets/s ")).expect("a mount");
    assert!(mount.contains(" - tmpfs "), "{mount}");
    for option in ["ro", "nosuid", "nodev", "noexec"] {
        assert!(mount.split([' ', ',']).any(|word| word == option), "{mount}");
    }
    let own = fs::metadata(&seen).unwrap();
    assert_eq!((own.mode() & 0o7777, own.uid(), own.gid()), (0o400, 0, 0));
    for process in Family::of(running.id()).processes() {
        for file in ["cmdline", "environ"] {
            let bytes = fs::read(format!("/proc/{process}/{file}")).unwrap_or_default();
            let text = String::from_utf8_lossy(&bytes);
            assert!(!text.contains(CANARY), "{file} of {process}: {text}");
        }
    }
    assert_eq!(holding(builder.store(), CANARY), [""; 0].map(PathBuf::from));
    running.signal(Signal::TERM);
    let finished = running.end(Duration::from_secs(20)).exited(143);
    assert!(!finished.stderr.contains(CANARY), "{}", finished.stderr);
    traces::assert_none(builder.store());
}

#[test]
fn mode_owner_and_place_are_as_asked_for() {
    let context = context(
        "FROM BASE\nUSER user\nWORKDIR /w\n\
         RUN --mount=type=secret,id=s cat /run/secrets/s 2>/dev/null || echo refused\n\
         RUN --mount=type=secret,id=s,uid=1000,gid=1001,mode=0440 \
         stat -c '%a %u:%g' /run/secrets/s; cat /run/secrets/s; chmod 600 /run/secrets/s 2>/dev/null || echo refused\n\
         RUN --mount=type=secret,id=s,target=sub/s,mode=0444 cat /w/sub/s\n\
         RUN --mount=type=tmpfs,target=/t --mount=type=secret,id=s,target=/t/deep/s,mode=0444 cat /t/deep/s\n\
         RUN --mount=type=secret,id=a/b,mode=0444 --mount=type=secret,id=../../etc/passwd,mode=0444 ls /run/secrets\n\
         RUN --mount=type=secret,id=s,target=/etc/passwd,mode=0444 cat /etc/passwd\n",
    );
    let out = scratch();
    let file = out.path().join("file");
    fs::write(&file, "abc\n").unwrap();
    let secret = |id: &str| format!("--secret=id={id},src={}", file.display());
    let flags = [secret("s"), secret("a/b"), secret("../../etc/passwd")];
    let finished = build(&Builder::new(), &context, &flags.each_ref().map(String::as_str)).success();
    assert_eq!(
        lines(&finished),
        ["refused", "440 1000:1001", "abc", "refused", "abc", "abc", "b", "passwd", "abc"]
    );
}

#[test]
fn a_secret_that_is_not_given_is_absent_empty_or_an_error() {
    let optional = context(
        "FROM BASE\nENV A=image\n\
         RUN --mount=type=secret,id=s,env=A --mount=type=secret,id=s,target=/x/s echo \"<$A>\"; test -e /x || echo absent\n\
         RUN echo $A\n",
    );
    assert_eq!(lines(&build(&Builder::new(), &optional, &[]).success()), ["<>", "absent", "image"]);
    let given = build(&Builder::new(), &optional, &["--secret=id=s,env=TOKEN"]).success();
    assert_eq!(lines(&given), ["<***>", "image"]);
    let required = context("FROM BASE\nRUN true\nRUN --mount=type=secret,id=s,required true\n");
    let finished = build(&Builder::new(), &required, &[]).exited(1);
    assert!(finished.stderr.contains("error: secret s: not found"), "{}", finished.stderr);
    assert!(finished.says(&["Dockerfile:3"]), "{}", finished.stderr);
    assert!(finished.says(&["hint: pass it with `--secret id=s,src=FILE`"]), "{}", finished.stderr);
}

#[test]
fn a_secret_that_cannot_be_read_ends_the_build_before_it_begins() {
    let context = context("FROM BASE\nRUN true\n");
    for (flag, message) in [
        ("id=s,src=/no/such", "--secret: cannot read the secret `s` from `/no/such`"),
        ("src=x", "--secret: it has no id"),
        ("id=s,src=/dev/zero", "--secret: the secret `s` is larger than 512000 bytes"),
    ] {
        let finished = build(&Builder::new(), &context, &[&format!("--secret={flag}")]).exited(1);
        assert!(finished.says(&[message]), "{}", finished.stderr);
        assert!(!finished.stderr.contains("FROM"), "{}", finished.stderr);
    }
    let plan = Builder::new().run(["plan", "--secret=id=s,src=/no/such", context.path().to_str().unwrap()]);
    plan.success();
}
