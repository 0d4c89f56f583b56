//! What the command line says about every RUN, and `RUN --security`.

use crate::support::steps::{context, output};
use crate::support::{Builder, Context, Finished};

/// The ways to keep steps apart that a machine has: with mounts, and without.
const WAYS: [&str; 3] = ["mount-namespace", "user-namespace", "chroot"];

fn build(builder: &Builder, context: &Context, arguments: &[&str]) -> Finished {
    builder.run([&["--no-push", "-c", context.path().to_str().unwrap()], arguments].concat())
}

fn lines(dockerfile: &str, arguments: &[&str]) -> Vec<String> {
    output(&build(&Builder::new(), &context(dockerfile), arguments).success())
}

#[test]
fn hosts_are_added_to_those_that_every_step_has() {
    for way in WAYS {
        let flags = [
            "--add-host=a.example:192.0.2.1",
            "--add-host",
            "b=[2001:db8::1]",
            "--build-arg=BUILDKIT_SANDBOX_HOSTNAME=me",
            &format!("--isolation={way}"),
        ];
        let found =
            lines("FROM BASE\nRUN cat /etc/hosts\nRUN test ! -e /etc/hosts || wc -l </etc/hosts\n", &flags);
        let expected = [
            "127.0.0.1\tlocalhost me",
            "::1\tlocalhost ip6-localhost ip6-loopback",
            "192.0.2.1\ta.example",
            "2001:db8::1\tb",
        ];
        assert_eq!(found[..4], expected, "{way}");
    }
    let failed = build(&Builder::new(), &context("FROM BASE\n"), &["--add-host=x:host-gateway"]).exited(1);
    assert!(failed.says(&["--add-host: there is no `host-gateway`"]), "{}", failed.stderr);
}

#[test]
fn the_host_name_is_that_of_buildkit_or_the_one_that_is_given() {
    let dockerfile = "FROM BASE\nRUN hostname; env | grep -c BUILDKIT_; true\n";
    assert_eq!(lines(dockerfile, &[]), ["buildkitsandbox", "0"]);
    assert_eq!(lines(dockerfile, &["--build-arg=BUILDKIT_SANDBOX_HOSTNAME=me.example"]), ["me.example", "0"]);
    let failed = build(&Builder::new(), &context(dockerfile), &["--build-arg=BUILDKIT_SANDBOX_HOSTNAME=a b"]);
    let failed = failed.exited(1);
    assert!(failed.says(&["BUILDKIT_SANDBOX_HOSTNAME=\"a b\" is no host name"]), "{}", failed.stderr);
    assert!(failed.stderr.contains("Dockerfile:2"), "{}", failed.stderr);
}

#[test]
fn shared_memory_has_the_size_that_is_asked_for() {
    let dockerfile = "FROM BASE\nRUN grep ' /dev/shm ' /proc/mounts | tr ', ' '\\n\\n' | grep size=\n";
    for (flag, expected) in
        [("--shm-size=1m", "size=1024k"), ("--shm-size=0", "size=65536k"), ("--shm-size=256k", "size=256k")]
    {
        assert_eq!(lines(dockerfile, &[flag]), [expected], "{flag}");
    }
    // Without mounts there is no limit, and no error.
    assert_eq!(
        lines(
            "FROM BASE\nRUN echo x >/dev/shm/x && cat /dev/shm/x\n",
            &["--shm-size=1k", "--isolation=chroot"]
        ),
        ["x"]
    );
}

#[test]
fn limits_are_those_that_are_asked_for() {
    for way in WAYS {
        let flags = [
            "--ulimit=nofile=100:200",
            "--ulimit",
            "core=0:0",
            "--ulimit=stack=1048576",
            &format!("--isolation={way}"),
        ];
        let found = lines(
            "FROM BASE\nRUN ulimit -n; ulimit -Hn; ulimit -s; ulimit -c\nUSER 5\nRUN ulimit -n\n",
            &flags,
        );
        assert_eq!(found, ["100", "200", "1024", "0", "100"], "{way}");
    }
    let failed = build(&Builder::new(), &context("FROM BASE\n"), &["--ulimit=nofiles=1"]).exited(1);
    assert!(
        failed.says(&["--ulimit: there is no limit `nofiles` (did you mean `nofile`?)"]),
        "{}",
        failed.stderr
    );
}

#[test]
fn what_every_step_is_given_is_a_reason_to_do_it_again() {
    let (builder, context) = (Builder::new(), context("FROM BASE\nRUN echo done\n"));
    let done = |flags: &[&str]| output(&build(&builder, &context, flags).success());
    assert_eq!(done(&[]), ["done"]);
    for flag in [
        "--add-host=a:192.0.2.1",
        "--shm-size=1m",
        "--ulimit=nofile=100",
        "--build-arg=BUILDKIT_SANDBOX_HOSTNAME=x",
    ] {
        assert_eq!(done(&[flag]), ["done"], "{flag}");
        assert_eq!(done(&[flag]), [""; 0], "{flag}");
    }
    assert_eq!(done(&["--allow=security.insecure"]), [""; 0]);
}

/// CVE-2024-23653, GHSA-7236-3392-c5c6: privileges that nobody had allowed.
#[test]
fn a_step_may_be_insecure_only_if_that_is_allowed() {
    let insecure = "FROM BASE\nRUN --security=insecure true\n";
    for flags in [&[][..], &["--allow=network.host"], &["--network=host"]] {
        let failed = build(&Builder::new(), &context(insecure), flags).exited(1);
        assert!(failed.says(&["security.insecure is not allowed"]), "{}", failed.stderr);
        assert!(failed.stderr.contains("Dockerfile:2"), "{}", failed.stderr);
    }
    for value in ["Insecure", "2", "privileged"] {
        let text = format!("FROM BASE\nRUN --security={value} true\n");
        let finished = build(&Builder::new(), &context(&text), &["--allow=security.insecure"]);
        assert_ne!(finished.code, Some(0), "{value}: {}", finished.stderr);
        assert!(finished.says(&["is not valid"]), "{value}: {}", finished.stderr);
    }
    let failed = build(&Builder::new(), &context(insecure), &["--allow=security"]).exited(1);
    assert!(failed.says(&["--allow: `security` is nothing that can be allowed"]), "{}", failed.stderr);
}

#[test]
fn an_insecure_step_may_do_what_the_builder_may_and_the_next_one_may_not() {
    let dockerfile = "FROM BASE\n\
        RUN --security=insecure grep -E '^(Seccomp|NoNewPrivs):' /proc/self/status | tr -d '\\t'; \
        mkdir /mnt && mount -t tmpfs none /mnt && echo mounted; umount /mnt; rmdir /mnt; \
        awk '$2 == \"/sys\" { print $4 }' /proc/mounts | cut -d, -f1; ls /proc/acpi /proc/keys >/dev/null 2>&1; \
        awk '$2 == \"/proc/sys\"' /proc/mounts; grep CapEff /proc/self/status | cut -f2 >/eff\n\
        RUN mount -t tmpfs none /dev/shm 2>/dev/null || echo refused; grep -E '^(Seccomp):' /proc/self/status | tr -d '\\t'; \
        test $(cat /eff) != $(grep CapEff /proc/self/status | cut -f2) && echo less; rm /eff\n";
    for way in ["mount-namespace", "user-namespace"] {
        let found = lines(dockerfile, &["--allow=security.insecure", &format!("--isolation={way}")]);
        assert_eq!(
            found,
            ["NoNewPrivs:0", "Seccomp:0", "mounted", "rw", "refused", "Seccomp:2", "less"],
            "{way}"
        );
    }
    let flags = ["--allow=security.insecure", "--isolation=chroot"];
    let failed = build(&Builder::new(), &context(dockerfile), &flags).exited(1);
    assert!(
        failed.says(&["RUN --security=insecure takes namespaces", "--isolation=chroot"]),
        "{}",
        failed.stderr
    );
    assert!(failed.stderr.contains("Dockerfile:2"), "{}", failed.stderr);
}

#[test]
fn devices_are_refused_by_name() {
    for device in ["vendor.com/class=gpu", "name=vendor.com/class=gpu,required"] {
        let text = format!("FROM BASE\nUSER 0\nRUN --device={device} true\n");
        let failed = build(&Builder::new(), &context(&text), &[]).exited(1);
        let words = ["is not supported: steps get no devices", "vendor.com/class=gpu"];
        assert!(failed.says(&words), "{}", failed.stderr);
        assert!(failed.stderr.contains("Dockerfile:3"), "{}", failed.stderr);
    }
}
