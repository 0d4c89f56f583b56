//! `RUN --mount=type=cache` through the whole program: what stays, for whom, and what of it no image has.

use std::fs;
use std::io::{BufRead, BufReader, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Stdio};

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::oci::LayoutImage;
use crate::support::steps::{WAYS, build, context, output};
use crate::support::user::User;
use crate::support::{Builder, Context, finish, scratch, traces};

fn lines(builder: &Builder, dockerfile: &str, arguments: &[&str]) -> Vec<String> {
    output(&build(builder, &context(dockerfile), arguments).success())
}

/// The directories of all copies of all caches in the store.
fn copies(builder: &Builder) -> Vec<PathBuf> {
    let list = |directory: PathBuf| -> Vec<PathBuf> {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    };
    list(builder.store().join("cache-mounts")).into_iter().flat_map(list).flat_map(list).collect()
}

fn isolation(way: &str) -> String {
    format!("--isolation={way}")
}

#[test]
fn what_is_written_stays_for_later_steps_and_builds_and_is_in_no_image() {
    for way in WAYS {
        let (builder, out) = (Builder::new(), scratch());
        let context = context(
            "FROM BASE\nRUN mkdir -p /old/c && echo image >/old/c/f && touch -d @1000000000 /old/c /old\n\
             RUN --mount=type=cache,target=/old/c ls -A /old/c; date >/old/c/x; mkdir -p /old/c/d; \
             chown 7:8 /old/c/d; ln -f /old/c/x /old/c/y\n\
             RUN --mount=type=cache,target=/old/c ls -A /old/c; stat -c '%u:%g %h' /old/c/d /old/c/y\n\
             RUN --mount=type=cache,id=/old/c,target=/new/deep/c ls -A /new/deep/c\n\
             RUN cat /old/c/f; test ! -e /new; ls -A /old/c\n",
        );
        let layout = out.path().join("layout");
        let flags = ["--no-cache", &isolation(way)];
        let finished = builder.layout(&context, &layout, &flags).success();
        let expected = ["d", "x", "y", "7:8 2", "0:0 2", "d", "x", "y", "image", "f"];
        assert_eq!(output(&finished), expected, "{way}\n{}", finished.stderr);
        let paths = LayoutImage::only(&layout).layer_paths(&layout).split_off(2);
        assert_eq!(paths, vec![Vec::<String>::new(); 4], "{way}");
        // Another build, which finds it.
        let again = build(&builder, &context, &[&isolation(way)]).success();
        assert_eq!(output(&again).iter().filter(|line| *line == "x").count(), 3, "{way}");
        traces::assert_none(builder.store());
        assert_eq!(copies(&builder).len(), 1, "{way}");
    }
}

#[test]
fn a_new_cache_has_the_owner_and_mode_that_are_asked_for() {
    for way in WAYS {
        let found = lines(
            &Builder::new(),
            "FROM BASE\n\
             RUN --mount=type=cache,target=/c,id=m,mode=0700,uid=5,gid=6 stat -c '%a %u:%g' /c; chmod 711 /c\n\
             RUN --mount=type=cache,target=/c,id=m,mode=0700,uid=5,gid=6 stat -c '%a %u:%g' /c\n\
             RUN --mount=type=cache,target=/c stat -c '%a %u:%g' /c\n\
             RUN --mount=type=cache,target=/etc,uid=7 stat -c '%a %u:%g' /etc\n\
             USER 5\nRUN --mount=type=cache,target=/c,uid=5 touch /c/x && stat -c %u:%g /c/x\n",
            &[&isolation(way)],
        );
        assert_eq!(found, ["700 5:6", "711 5:6", "755 0:0", "755 7:0", "5:0"], "{way}");
    }
}

#[test]
fn names_are_no_paths_and_namespaces_keep_them_apart() {
    // CVE-2024-9675.
    let canary = scratch();
    let builder = Builder::new();
    let up = format!("{}{}", "../".repeat(20), canary.path().strip_prefix("/").unwrap().display());
    let dockerfile = format!(
        "FROM BASE\nWORKDIR /w\nRUN --mount=type=cache,id={up},target=/c ls /c; touch /c/one\n\
         RUN --mount=type=cache,id=../../x,target=/c ls /c; touch /c/two\n\
         RUN --mount=type=cache,id=..,target=/c ls /c; touch /c/three\n\
         RUN --mount=type=cache,target=rel ls /w/rel; touch /w/rel/four\n\
         RUN --mount=type=cache,id=rel,target=/x ls /x\n"
    );
    let all = ["one", "two", "three", "four", "four"];
    assert_eq!(lines(&builder, &dockerfile, &[]), all[4..]);
    assert_eq!(lines(&builder, &dockerfile, &[]), all);
    assert_eq!(lines(&builder, &dockerfile, &["--build-arg=BUILDKIT_CACHE_MOUNT_NS=other"]), all[4..]);
    let finished = build(&builder, &context(&dockerfile), &["--build-arg=BUILDKIT_CACHE_MOUNT_NS=other"]);
    let finished = finished.success();
    assert_eq!(output(&finished), all);
    assert!(!finished.stderr.contains("has no effect"), "{}", finished.stderr);
    assert_eq!(fs::read_dir(canary.path()).unwrap().count(), 0);
}

#[test]
fn a_new_cache_begins_with_files_of_a_stage_and_keeps_what_is_written() {
    for way in WAYS {
        let builder = Builder::new();
        let dockerfile = |seed: &str| {
            format!(
                "FROM BASE AS seed\nRUN mkdir -m 750 /s && echo {seed} >/s/f && chown 3:4 /s /s/f && ln -s s /link\n\
                 FROM BASE\n\
                 RUN --mount=type=cache,id=x,from=seed,source=/link,target=/c stat -c '%a %u:%g' /c /c/f; cat /c/*; echo more >/c/g\n\
                 RUN --mount=type=cache,id=x,from=seed,source=/link,target=/c cat /c/*\n\
                 RUN --mount=type=cache,id=x,target=/c ls -A /c\n\
                 RUN --mount=type=cache,id=x,from=seed,source=/link,target=/c,uid=9 stat -c '%a %u:%g' /c; ls /c\n"
            )
        };
        let first = lines(&builder, &dockerfile("one"), &[&isolation(way)]);
        let expected = ["750 3:4", "644 3:4", "one", "one", "more", "755 9:0", "f"];
        assert_eq!(first, expected, "{way}");
        // What a cache begins with is part of which it is.
        let other = lines(&builder, &dockerfile("two"), &[&isolation(way)]);
        assert_eq!(other[2..5], ["two", "two", "more"], "{way}");
        let of_image = "FROM scratch AS nothing\nFROM BASE\n\
             RUN --mount=type=cache,from=BASE,source=etc,target=/c head -n1 /c/passwd | cut -d: -f1; ls /c/more; touch /c/more\n\
             RUN --mount=type=cache,id=n,from=nothing,target=/c ls -A /c; touch /c/n\n";
        let first = lines(&builder, of_image, &[&isolation(way)]);
        assert_eq!(first, ["root", "ls: /c/more: No such file or directory"], "{way}");
        assert_eq!(lines(&builder, of_image, &[&isolation(way)]), ["root", "/c/more", "n"], "{way}");
    }
    let missing =
        context("FROM BASE AS seed\nFROM BASE\nRUN --mount=type=cache,from=seed,source=/no,target=/c true\n");
    let failed = build(&Builder::new(), &missing, &[]).exited(1);
    assert!(failed.says(&["\"/no\": not found", "not in stage `seed`"]), "{}", failed.stderr);
    assert!(failed.stderr.contains("Dockerfile:3"), "{}", failed.stderr);
}

#[test]
fn a_new_cache_begins_with_files_of_a_named_context() {
    let directory = scratch();
    for name in ["d/f", "d/ignored", ".dockerignore"] {
        fs::create_dir_all(directory.path().join("d")).unwrap();
        fs::write(directory.path().join(name), "d/ignored\n").unwrap();
    }
    std::os::unix::fs::chown(directory.path().join("d/f"), Some(5), Some(6)).unwrap();
    let named = format!("--build-context=named={}", directory.path().display());
    for way in WAYS {
        let builder = Builder::new();
        let dockerfile = "FROM BASE\n\
             RUN --mount=type=cache,id=x,from=named,source=d,target=/c stat -c '%u:%g %n' /c/*; echo more >/c/g\n\
             RUN --mount=type=cache,id=x,from=named,source=d,target=/c ls /c\n";
        let found = lines(&builder, dockerfile, &[&named, &isolation(way)]);
        assert_eq!(found, ["0:0 /c/f", "f", "g"], "{way}");
        // Another directory of that name, or the same with other files, is not what the cache began with.
        fs::write(directory.path().join("d/new"), "").unwrap();
        let found = lines(&builder, dockerfile, &[&named, &isolation(way)]);
        assert_eq!(found, ["0:0 /c/f", "0:0 /c/new", "f", "g", "new"], "{way}");
        fs::remove_file(directory.path().join("d/new")).unwrap();
    }
    assert!(!directory.path().join("d/g").exists());
}

/// CVE-2024-9675 and CVE-2024-23651: what is shown of a cache is looked up in it.
#[test]
fn a_part_of_a_cache_is_looked_up_inside() {
    let canary = scratch();
    fs::write(canary.path().join("x"), "canary").unwrap();
    for way in WAYS {
        let builder = Builder::new();
        let path = canary.path().display();
        let found = lines(
            &builder,
            &format!(
                "FROM BASE\n\
                 RUN --mount=type=cache,id=x,target=/c mkdir -p /c/sub{path} && echo in >/c/sub/f && ln -s / /c/root && \
                 ln -s {path} /c/abs && ln -s ../../../../../.. /c/up && mkdir -p /c{path} && echo inside >/c{path}/x && echo one >/c/file\n\
                 RUN --mount=type=cache,id=x,source=sub,target=/m cat /m/f; echo more >/m/g\n\
                 RUN --mount=type=cache,id=x,source=/root,target=/m cat /m/sub/g\n\
                 RUN --mount=type=cache,id=x,source=up/../../sub,target=/m cat /m/g\n\
                 RUN --mount=type=cache,id=x,source=abs,target=/m cat /m/x; echo written >/m/y\n\
                 RUN --mount=type=cache,id=x,source=../..,target=/m cat /m/sub/f\n\
                 RUN --mount=type=cache,id=x,source=file,target=/m/file cat /m/file; echo two >/m/file\n\
                 RUN --mount=type=cache,id=x,source=file,target=/m/file cat /m/file\n"
            ),
            &[&isolation(way)],
        );
        assert_eq!(found, ["in", "more", "more", "inside", "in", "one", "two"], "{way}");
        assert_eq!(fs::read_dir(canary.path()).unwrap().count(), 1, "{way}");
        let failed = context("FROM BASE\nUSER 1\nRUN --mount=type=cache,id=x,source=nope,target=/m true\n");
        let failed = build(&builder, &failed, &[&isolation(way)]).exited(1);
        assert!(failed.says(&["\"/nope\": not found"]), "{}", failed.stderr);
        assert!(failed.stderr.contains("Dockerfile:3"), "{}", failed.stderr);
    }
}

#[test]
fn a_read_only_cache_is_not_changed() {
    for way in WAYS {
        let found = lines(
            &Builder::new(),
            "FROM BASE\nRUN --mount=type=cache,target=/c echo one >/c/f\n\
             RUN --mount=type=cache,target=/c,ro cat /c/f; echo two 2>/dev/null >/c/f; true\n\
             RUN --mount=type=cache,target=/c cat /c/f\n",
            &[&isolation(way)],
        );
        assert_eq!(found.iter().filter(|line| *line == "one").count(), 2, "{way}: {found:?}");
        assert!(!found.contains(&"two".to_owned()), "{way}: {found:?}");
    }
}

#[test]
fn whatever_a_step_does_to_the_place_of_a_cache_the_image_has_nothing_of_it() {
    for way in WAYS {
        let (builder, out) = (Builder::new(), scratch());
        // With mounts, mv would copy it: what the step does itself is in the image.
        let moving = if way == "chroot" { "mv /n/c /elsewhere;" } else { "" };
        let context = context(&format!(
            "FROM BASE\nRUN true\n\
             RUN --mount=type=cache,id=a,target=/n/c echo x >/n/c/x; {moving} mv /n /m\n\
             RUN --mount=type=cache,id=a,target=/c ls /c; rm -rf /c 2>/dev/null; true\n\
             RUN --mount=type=cache,id=a,target=/c ls /c | wc -l; echo y >/c/y; rm -rf /c/y; ln -s /etc /c/link; \
             mkdir /c/d; ln -sf /c/d /inside; exit 0\n\
             RUN --mount=type=cache,id=a,target=/c --mount=type=cache,id=b,target=/c/d echo b >/c/d/b; ls /c\n\
             RUN --mount=type=cache,id=b,target=/c/d --mount=type=cache,id=a,target=/c ls /c/d; rm -rf /c/* 2>/dev/null; true\n\
             RUN --mount=type=cache,id=b,target=/b ls /b | wc -l\n",
        ));
        let layout = out.path().join("layout");
        let finished = builder.layout(&context, &layout, &["--no-cache", &isolation(way)]).success();
        let found = output(&finished);
        assert_eq!(found, ["x", "0", "d", "link", "b", "0"], "{way}\n{}", finished.stderr);
        let paths = LayoutImage::only(&layout).layer_paths(&layout).split_off(2);
        let all: Vec<&str> = paths.iter().flatten().map(String::as_str).collect();
        assert_eq!(all, ["m/", "inside"], "{way}");
        traces::assert_none(builder.store());
    }
}

#[test]
fn a_step_that_fails_keeps_what_it_has_written() {
    for way in WAYS {
        let builder = Builder::new();
        let failing = context("FROM BASE\nRUN --mount=type=cache,target=/c echo x >/c/f; exit 3\n");
        build(&builder, &failing, &[&isolation(way)]).exited(3);
        let found =
            lines(&builder, "FROM BASE\nRUN --mount=type=cache,target=/c cat /c/f\n", &[&isolation(way)]);
        assert_eq!(found, ["x"], "{way}");
    }
}

/// Adds one, as many times as it is told, in a way that loses some if somebody else does the same at the same time.
const COUNTS: &str =
    "for i in $(seq 40); do n=$(cat /c/n 2>/dev/null || echo 0); usleep 500; echo $((n+1)) >/c/n; done";

#[test]
fn of_builds_that_lock_a_cache_one_runs_at_a_time() {
    for ways in [["mount-namespace", "mount-namespace"], ["mount-namespace", "chroot"], ["chroot", "chroot"]]
    {
        let builder = Builder::new();
        let dockerfile = format!("FROM BASE\nRUN --mount=type=cache,target=/c,sharing=locked {COUNTS}\n");
        // The base need not be fetched by both at the same time.
        lines(&builder, "FROM BASE\nRUN true\n", &[]);
        let running = ways.map(|way| {
            let context = context(&dockerfile);
            let mut command = builder.command();
            command.args(["--no-push", "--no-cache", &isolation(way), "-c"]).arg(context.path());
            (command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap(), context)
        });
        for (child, _context) in running {
            let ended = child.wait_with_output().unwrap();
            assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        }
        let found = lines(&builder, "FROM BASE\nRUN --mount=type=cache,target=/c cat /c/n\n", &[]);
        assert_eq!(found, ["80"], "{ways:?}");
    }
}

/// A build of `dockerfile` that has said `word`.
fn until(
    builder: &Builder,
    context: &Context,
    arguments: &[&str],
    word: &str,
) -> (Child, BufReader<ChildStderr>) {
    let mut command = builder.command();
    command.args(["--no-push", "--no-cache"]).args(arguments).arg("-c").arg(context.path());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut reader = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains(word) {
        line.clear();
        assert!(reader.read_line(&mut line).unwrap() > 0, "it ended without `{word}`");
    }
    (child, reader)
}

#[test]
fn who_waits_for_a_cache_says_so_and_can_be_stopped() {
    for (way, sharing, turn) in [
        ("mount-namespace", "locked", FlockOperation::LockShared),
        ("mount-namespace", "shared", FlockOperation::LockExclusive),
        ("chroot", "shared", FlockOperation::LockShared),
    ] {
        let builder = Builder::new();
        let dockerfile =
            format!("FROM BASE\nRUN --mount=type=cache,target=/c,sharing={sharing} echo was here\n");
        assert_eq!(lines(&builder, &dockerfile, &[]), ["was here"]);
        let lock: OwnedFd = fs::File::open(copies(&builder)[0].join("lock")).unwrap().into();
        flock(&lock, turn).unwrap();
        let (context, flag) = (context(&dockerfile), isolation(way));
        let (mut child, _reader) =
            until(&builder, &context, &[&flag], "waiting for another step that uses the cache `/c`");
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        assert!(!child.wait().unwrap().success());
        traces::assert_none(builder.store());
        let (mut child, mut reader) = until(&builder, &context, &[&flag], "waiting for another step");
        drop(lock);
        let rest: Vec<String> = reader.by_ref().lines().map_while(Result::ok).collect();
        assert!(child.wait().unwrap().success(), "{rest:?}");
        assert!(rest.iter().any(|line| line.ends_with("was here")), "{rest:?}");
    }
}

#[test]
fn who_wants_a_private_cache_gets_another_copy_of_one_that_is_in_use() {
    let builder = Builder::new();
    let dockerfile =
        "FROM BASE\nRUN --mount=type=cache,target=/c,sharing=private ls /c; echo x >/c/$(ls /c | wc -l)\n";
    assert_eq!(lines(&builder, dockerfile, &[]), [""; 0]);
    let lock = fs::File::open(copies(&builder)[0].join("lock")).unwrap();
    flock(&lock, FlockOperation::LockShared).unwrap();
    assert_eq!(lines(&builder, dockerfile, &[]), [""; 0]);
    assert_eq!(lines(&builder, dockerfile, &[]), ["0"]);
    drop(lock);
    assert_eq!(lines(&builder, dockerfile, &[]), ["0"]);
    assert_eq!(copies(&builder).len(), 2);
}

#[test]
fn a_shared_cache_is_used_by_several_at_once() {
    let builder = Builder::new();
    let lock = || fs::File::open(copies(&builder)[0].join("lock")).unwrap();
    let dockerfile = "FROM BASE\nRUN --mount=type=cache,target=/c echo was here >/c/f; cat /c/f\n";
    lines(&builder, dockerfile, &[]);
    let held = lock();
    flock(&held, FlockOperation::LockShared).unwrap();
    let finished = build(&builder, &context(dockerfile), &[]).success();
    assert_eq!(output(&finished), ["was here"]);
    assert!(!finished.stderr.contains("waiting"), "{}", finished.stderr);
}

#[test]
fn a_killed_build_leaves_a_cache_that_can_be_used() {
    for way in WAYS {
        let builder = Builder::new();
        let hangs = context(
            "FROM BASE\nRUN --mount=type=cache,target=/c,sharing=locked echo x >/c/f; echo begun; sleep 1000\n",
        );
        let (mut child, _reader) = until(&builder, &hangs, &[&isolation(way)], "| begun");
        kill_process(Pid::from_child(&child), Signal::KILL).unwrap();
        child.wait().unwrap();
        let dockerfile = "FROM BASE\nRUN --mount=type=cache,target=/c,sharing=locked touch /c/g && ls /c\n";
        let found = lines(&builder, dockerfile, &[&isolation(way)]);
        assert_eq!(found.last().map(String::as_str), Some("g"), "{way}");
        traces::assert_none(builder.store());
    }
}

#[test]
fn ordinary_users_have_caches_of_their_own() {
    const DOCKERFILE: &str = r#"FROM scratch
COPY busybox /bin/busybox
SHELL ["/bin/busybox", "sh", "-c"]
RUN --mount=type=cache,target=/c,mode=0750 /bin/busybox ls /c; /bin/busybox stat -c '%a %u:%g' /c; echo x >/c/f
RUN --mount=type=cache,target=/c,mode=0750 /bin/busybox cat /c/f
"#;
    for user in [User::with_ranges(), User::with_single_id()] {
        let context = user.context(DOCKERFILE);
        let run = || {
            let mut command = user.command();
            command.args(["--no-push", "--no-cache", "--platform=linux/amd64", "-c"]).arg(&context);
            output(&finish(&mut command).success())
        };
        assert_eq!(run(), ["750 0:0", "x"]);
        assert_eq!(run(), ["f", "750 0:0", "x"]);
        traces::assert_none(&user.store());
    }
    let user = User::with_ranges();
    let owned = user.context(&DOCKERFILE.replace("mode=0750", "uid=7,gid=8"));
    let mut command = user.command();
    command.args(["--no-push", "--platform=linux/amd64", "-c"]).arg(&owned);
    assert_eq!(output(&finish(&mut command).success()), ["755 7:8", "x"]);
}

#[test]
fn what_is_in_a_cache_is_no_reason_to_do_a_step_again_and_how_it_is_mounted_is() {
    let builder = Builder::new();
    let done = |options: &str| {
        let context = context(&format!(
            "FROM BASE\nRUN --mount=type=cache,target=/c{options} echo done; date 2>/dev/null >>/c/f; true\n"
        ));
        output(&builder.run(["--no-push", "-c", context.path().to_str().unwrap()]).success())
    };
    assert_eq!(done(""), ["done"]);
    assert_eq!(done(""), [""; 0]);
    for options in [",id=x", ",sharing=locked", ",ro,id=y", ",mode=0700"] {
        assert_eq!(done(options), ["done"], "{options}");
        assert_eq!(done(options), [""; 0], "{options}");
    }
}

/// CVE-2024-23651: one step replaces a part of a cache by links to the machine, again and again, while others mount it.
#[test]
fn a_part_that_another_step_exchanges_meanwhile_leads_nowhere_else() {
    let canary = scratch();
    fs::write(canary.path().join("canary"), "").unwrap();
    let builder = Builder::new();
    let path = canary.path().display();
    lines(
        &builder,
        &format!(
            "FROM BASE\nRUN --mount=type=cache,id=x,target=/c mkdir -p /c/sub /c/other && touch /c/sub/in && ln -s {path} /c/link\n"
        ),
        &[],
    );
    let cache = copies(&builder)[0].join("root");
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let flips = scope.spawn(|| {
            let mut count = 0_u64;
            symlink(canary.path(), cache.join("evil")).unwrap();
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let swap = |a: &str, b: &str| {
                    let (a, b) = (cache.join(a), cache.join(b));
                    let cwd = rustix::fs::CWD;
                    rustix::fs::renameat_with(cwd, a, cwd, b, rustix::fs::RenameFlags::EXCHANGE).unwrap();
                };
                swap("sub", "evil");
                count += 1;
            }
            count
        });
        let mounts: String =
            (0..30).map(|number| format!("--mount=type=cache,id=x,source=sub,target=/m/{number} ")).collect();
        let dockerfile = format!(
            "FROM BASE\nRUN {mounts} for d in /m/*; do test ! -e $d/canary || echo canary; touch $d/written 2>/dev/null; done; true\n"
        );
        let context = context(&dockerfile);
        let mut seen = 0;
        for _ in 0..20 {
            // Where the link itself was found there is nothing to mount, which is said.
            let finished = build(&builder, &context, &[]);
            assert!(!finished.stderr.contains("| canary"), "{}", finished.stderr);
            seen += u32::from(finished.code == Some(0));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(flips.join().unwrap() > 100);
        eprintln!("{seen} of 20 builds found a directory each time");
    });
    assert_eq!(fs::read_dir(canary.path()).unwrap().count(), 1);
    let mode = fs::metadata(&cache).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o755);
}

#[test]
fn where_nothing_can_be_mounted_a_cache_is_at_one_place_only_and_that_is_said() {
    let dockerfile = "FROM BASE\n\
         RUN --mount=type=cache,target=/a,id=z --mount=type=cache,target=/b,id=z touch /a/1; ls /b\n";
    for (way, works) in [("user-namespace", true), ("chroot", false)] {
        let builder = Builder::new();
        let finished = build(&builder, &context(dockerfile), &[&isolation(way)]);
        assert_eq!(finished.code == Some(0), works, "{way}: {}", finished.stderr);
        assert_eq!(
            finished.says(&["the same cache is at `/a`", "one place only"]),
            !works,
            "{}",
            finished.stderr
        );
    }
}
