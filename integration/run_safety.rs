//! What hostile Dockerfiles and images try with RUN, each by the advisory that it is known from.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};

use builder::build::services::{Base, ImageSource, ServiceError, Wanted};
use builder::build::step::Step;
use builder::build::{self, PlanRequest};
use builder::context::IgnoreRules;
use builder::image::config::ImageConfig;
use builder::image::digest::Digest;
use builder::image::manifest::Image;
use builder::image::platform::{Platform, Requested};
use builder::image::reference::Reference;
use builder::sandbox::Cancel;
use builder::store::unpacked::Chain;

use crate::support::steps::{WAYS, build, context, output};
use crate::support::{Builder, scratch, traces};

/// CVE-2024-40635, CVE-2026-46680 and CVE-2016-3697: numbers that became another user, and users that are called as numbers.
#[test]
fn digits_are_a_user_id_in_its_range_and_never_a_name() {
    let builder = Builder::new();
    let passwd =
        "printf '4000:x:0:7::/:/bin/sh\\n4294967296:x:0:0::/:/bin/sh\\n-1:x:0:0::/:/bin/sh\\n' >>/etc/passwd";
    for (user, expected) in [
        ("4000", Ok("4000:0")),
        ("2147483648:0", Ok("2147483648:0")),
        ("4294967294:4294967294", Ok("4294967294:4294967294")),
        ("4294967295", Err("`4294967295` is out of range")),
        ("4294967296", Err("`4294967296` is out of range")),
        ("0:4294967296", Err("`4294967296` is out of range")),
        ("18446744073709551616", Err("is out of range")),
        ("\"-1\"", Ok("0:0")),
        ("\"0x10\"", Err("unable to find user 0x10")),
    ] {
        let dockerfile =
            context(&format!("FROM BASE\nRUN {passwd}\nUSER {user}\nRUN echo $(id -u):$(id -g)\n"));
        let finished = build(&builder, &dockerfile, &["--isolation=mount-namespace"]);
        match expected {
            Ok(ids) => assert_eq!(output(&finished.success()), [ids], "{user}"),
            Err(message) => {
                let failed = finished.exited(1);
                assert!(
                    failed.says(&[message]) && failed.stderr.contains("Dockerfile:4"),
                    "{user}: {}",
                    failed.stderr
                );
            }
        }
    }
}

/// CVE-2026-47262, GHSA-72x6 and CVE-2024-9676: lists of users that are endless, huge, or no files at all.
#[test]
fn lists_of_users_that_are_no_small_files_are_refused_and_wait_for_nobody() {
    let canary = scratch();
    fs::write(canary.path().join("passwd"), "canary:x:0:0::/:/bin/sh\n").unwrap();
    let builder = Builder::new();
    let up = "../".repeat(20);
    for (script, message) in [
        ("mkfifo /etc/passwd".to_owned(), "`/etc/passwd`"),
        ("mknod /etc/passwd c 1 5".to_owned(), "`/etc/passwd`"),
        ("ln -s /dev/zero /etc/passwd".to_owned(), ""),
        ("truncate -s 20G /etc/passwd".to_owned(), "`/etc/passwd`"),
        (format!("ln -s {up}{}/passwd /etc/passwd", canary.path().display()), "unable to find user canary"),
        ("mkdir /etc/passwd".to_owned(), "`/etc/passwd`"),
    ] {
        let dockerfile =
            context(&format!("FROM BASE\nRUN rm /etc/passwd && {script}\nUSER canary\nRUN true\n"));
        // No layer is made of the twenty gigabytes.
        let flags = ["--isolation=mount-namespace", "--single-snapshot"];
        let failed = build(&builder, &dockerfile, &flags).exited(1);
        assert!(failed.stderr.contains(message), "{script}: {}", failed.stderr);
        assert!(failed.stderr.contains("Dockerfile:4"), "{script}: {}", failed.stderr);
    }
    traces::assert_none(builder.store());
}

/// CVE-2022-2990, CVE-2023-25173, CVE-2022-36109 and GHSA-hmfx: groups that were lost, or could be given up.
#[test]
fn a_user_has_the_groups_of_the_image_and_its_primary_one() {
    for way in WAYS {
        let dockerfile = context(
            "FROM BASE\nRUN echo 'five:x:500:app' >>/etc/group && echo 'app:x:1500:1501::/:/bin/sh' >>/etc/passwd && \
             mkdir -m 0070 /open && chgrp 500 /open && echo in >/open/f && chmod 644 /open/f && \
             mkdir -m 0707 /shut && chgrp 1501 /shut\n\
             USER app\nRUN cat /open/f; ls /shut 2>/dev/null || echo kept out; id -G\n\
             USER 1500\nRUN cat /open/f; id -G\nUSER app:0\nRUN cat /open/f 2>/dev/null || echo only 0; id -G\n\
             USER 77\nRUN id -G\n",
        );
        let finished = build(&Builder::new(), &dockerfile, &[&format!("--isolation={way}")]).success();
        let expected = ["in", "kept out", "1501 500", "in", "1501 500", "only 0", "0", "0"];
        assert_eq!(output(&finished), expected, "{way}");
    }
}

/// CVE-2024-21626 and CVE-2026-55686: a working directory that leads through an open descriptor, or a link, to the machine.
#[test]
fn a_working_directory_is_in_the_image_or_an_error() {
    let canary = scratch();
    let builder = Builder::new();
    for directory in ["/proc/self/fd/3", "/proc/self/fd/7", "/proc/self/fd/20", "/proc/self/cwd", "/dev/fd/3"]
    {
        let dockerfile = context(&format!("FROM BASE\nWORKDIR {directory}\nRUN ls ../.. && touch escaped\n"));
        let failed = build(&builder, &dockerfile, &["--isolation=mount-namespace"]).exited(1);
        assert!(failed.stderr.contains("Dockerfile:"), "{directory}: {}", failed.stderr);
        assert!(!failed.stderr.contains("] | "), "{directory}: {}", failed.stderr);
    }
    let path = canary.path().display();
    for way in WAYS {
        let linked =
            context(&format!("FROM BASE\nRUN ln -s {path} /link\nWORKDIR /link/x\nRUN pwd -P; touch y\n"));
        let finished = build(&builder, &linked, &[&format!("--isolation={way}")]).success();
        assert_eq!(output(&finished), [format!("{path}/x")], "{way}");
    }
    assert_eq!(fs::read_dir(canary.path()).unwrap().count(), 0);
}

/// CVE-2026-33747: names in messages that became paths.
#[test]
fn names_of_all_kinds_are_no_paths() {
    let canary = scratch();
    let secret = canary.path().join("secret");
    fs::write(&secret, "hidden").unwrap();
    let builder = Builder::new();
    let flags = [
        format!("--secret=id=../../../x,src={}", secret.display()),
        format!("--secret=id=/etc/passwd,src={}", secret.display()),
    ];
    let dockerfile = context(
        "FROM BASE\nRUN --mount=type=secret,id=../../../x ls /run/secrets\n\
         RUN --mount=type=secret,id=/etc/passwd ls /run/secrets; head -n1 /etc/passwd | cut -d: -f1\n\
         RUN --mount=type=cache,id=/../../../../etc,target=/c ls -A /c\n\
         RUN --mount=type=ssh,id=../../x true\n",
    );
    let finished = build(&builder, &dockerfile, &[&flags[0], &flags[1]]).success();
    assert_eq!(output(&finished), ["x", "passwd", "root"]);
    let refused = build(&builder, &dockerfile, &["--target=../x"]).exited(1);
    assert!(refused.says(&["target stage `../x` could not be found"]), "{}", refused.stderr);
    let named = build(&builder, &context("FROM BASE AS ../x\nRUN true\n"), &[]);
    assert_ne!(named.code, Some(0), "{}", named.stderr);
    traces::assert_none(builder.store());
}

/// CVE-2024-9407: what is in a value goes into no text that somebody takes apart.
#[test]
fn values_of_mounts_are_values() {
    let builder = Builder::new();
    for (mount, message) in [
        ("type=cache,target=/c,bind-propagation=suid", "unexpected key 'bind-propagation'"),
        ("type=cache,target=/c,Z", "invalid field 'Z' must be a key=value pair"),
        ("type=cache,target=/c,sharing=shared:rw", "unsupported sharing value \"shared:rw\""),
        ("type=cache,target=/c,mode=0755:exec", "invalid value 0755:exec for mode"),
        ("type=ssh,options=rw", "unexpected key 'options'"),
    ] {
        let failed =
            build(&builder, &context(&format!("FROM BASE\nRUN --mount={mount} true\n")), &[]).exited(1);
        assert!(
            failed.stderr.contains(message) && failed.stderr.contains("Dockerfile:2"),
            "{}",
            failed.stderr
        );
    }
    let odd = context(
        "FROM BASE\nRUN [\"--mount=type=tmpfs,target=/a\", \"true\"]\nRUN --mount=type=cache,\"target=/a,b c:d\\\\040,rw\" ls -d /a*\n",
    );
    let finished = build(&builder, &odd, &[]);
    assert!(finished.code == Some(1) || output(&finished) == ["/a,b c:d\\040,rw"], "{}", finished.stderr);
}

/// An image with this environment.
struct WithEnvironment(Vec<&'static str>);

impl ImageSource for WithEnvironment {
    fn resolve(&self, reference: &Reference, _: &Wanted) -> Result<Base, ServiceError> {
        let mut config = ImageConfig::default();
        config.rootfs.kind = "layers".to_owned();
        config.architecture = "amd64".to_owned();
        config.os = "linux".to_owned();
        config.config.env = self.0.iter().map(|entry| (*entry).to_owned()).collect();
        Ok(Base {
            image: Image::from_parts(config, Vec::new())?,
            reference: reference.clone(),
            digest: Digest::of(b"manifest"),
            notes: Vec::new(),
            foreign: None,
        })
    }

    fn unpack(&self, _: &Image, _: &Cancel) -> Result<Chain, ServiceError> {
        Err("nothing is unpacked while planning".into())
    }
}

/// CVE-2026-57231 (GHSA-4hq8) and CVE-2021-3602: what an image only names is taken from nowhere.
#[test]
fn a_variable_without_a_value_is_none() {
    let image = WithEnvironment(vec!["PATH", "*", "HOME", "A=1", "=B", "CARGO_MANIFEST_DIR", "C="]);
    let host = Platform::new("linux", "amd64", None);
    let platform = Requested { asked: host.clone(), normalised: host.clone() };
    let request = PlanRequest::usual(platform, host, 100);
    let file = builder::dockerfile::parse(b"FROM base\nRUN true\n").unwrap();
    let plan = build::plan(&file, &request, &IgnoreRules::default(), &image).unwrap();
    let Step::Run(run) = &plan.stages[0].steps[0].step else { panic!("no RUN") };
    let variables = run.env.list();
    let env: Vec<(&str, &str)> = variables.iter().map(|(name, value)| (&**name, &**value)).collect();
    let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    assert_eq!(env, [("A", "1"), ("C", ""), ("PATH", path)]);
}

/// CVE-2024-11218: what is mounted is exchanged for a link to the machine between the look at it and the mount, again and
/// again.
#[test]
fn a_part_of_the_context_that_is_exchanged_meanwhile_leads_nowhere_else() {
    let canary = scratch();
    fs::write(canary.path().join("canary"), "").unwrap();
    let builder = Builder::new();
    let mounts: String = (0..30).map(|number| format!("--mount=source=sub,target=/m/{number},rw ")).collect();
    let context = context(&format!(
        "FROM BASE\nRUN {mounts} for d in /m/*; do test ! -e $d/canary || echo canary; touch $d/written 2>/dev/null; done; true\n"
    ));
    context.write("sub/in", "");
    symlink(canary.path(), context.path().join("evil")).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let flips = scope.spawn(|| {
            let (one, other) = (context.path().join("sub"), context.path().join("evil"));
            let mut count = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                let cwd = rustix::fs::CWD;
                rustix::fs::renameat_with(cwd, &one, cwd, &other, rustix::fs::RenameFlags::EXCHANGE).unwrap();
                count += 1;
            }
            count
        });
        for _ in 0..15 {
            // That it was a link is said.
            let finished = build(&builder, &context, &[]);
            assert!(!finished.stderr.contains("| canary"), "{}", finished.stderr);
        }
        stop.store(true, Ordering::Relaxed);
        assert!(flips.join().unwrap() > 100);
    });
    assert_eq!(fs::read_dir(canary.path()).unwrap().count(), 1);
}
