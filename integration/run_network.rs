//! `RUN --network`, `--network` and `--allow`, through the whole program.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use crate::support::ground::ground;
use crate::support::pod::{self, Pod, Profile};
use crate::support::user::User;
use crate::support::{Builder, Context, Finished, finish};

/// What the steps wrote, without their tags.
fn output(finished: &Finished) -> Vec<&str> {
    finished.stderr.lines().filter_map(|line| line.split_once("] | ").map(|(_, text)| text)).collect()
}

fn on_busybox(steps: &str) -> String {
    format!("FROM {}\n{steps}", ground().name("busybox:latest"))
}

fn build(builder: &Builder, context: &Context, flags: &[&str]) -> Finished {
    finish(builder.command().args(["--no-push", "-c"]).arg(context.path()).args(flags))
}

/// Whether there is an interface that leads out, as text.
const INTERFACES: &str = "[ \"$(ls /sys/class/net)\" = lo ] && echo alone || echo connected";

#[test]
fn a_step_has_the_network_that_it_names_or_that_of_the_flag() {
    let machine = if Path::new("/sys/class/net").read_dir().unwrap().count() > 1 {
        "connected"
    } else {
        eprintln!("this machine has no network: less is seen");
        "alone"
    };
    let context = Context::new(&on_busybox(&format!(
        "RUN {INTERFACES}\nRUN --network=default {INTERFACES}\nRUN --network=none {INTERFACES}\n"
    )));
    let builder = Builder::new();
    for (flag, expected) in [
        ("--network=default", [machine, machine, "alone"]),
        ("--network=none", ["alone"; 3]),
        ("--network=host", [machine, machine, "alone"]),
    ] {
        let finished = build(&builder, &context, &["--no-cache", flag]).success();
        assert_eq!(output(&finished), expected, "{flag}");
    }
    let host = Context::new(&on_busybox(&format!("RUN --network=host {INTERFACES}\n")));
    for flags in [
        &["--no-cache", "--allow", "network.host"][..],
        &["--no-cache", "--network=host"],
        &["--no-cache", "--network=none", "--allow=network.host"],
    ] {
        assert_eq!(output(&build(&builder, &host, flags).success()), [machine], "{flags:?}");
    }
}

#[test]
fn the_host_s_network_must_be_allowed() {
    let context = Context::new("FROM scratch\nWORKDIR /x\nRUN --network=host [\"/x\"]\n");
    let failed = build(&Builder::new(), &context, &[]).exited(1);
    assert!(failed.stderr.starts_with("error: network.host is not allowed\n"), "{}", failed.stderr);
    assert!(failed.says(&["Dockerfile:3"]), "{}", failed.stderr);
    assert!(failed.says(&["hint:", "--allow network.host"]), "{}", failed.stderr);
}

#[test]
fn what_is_no_network_and_cannot_be_allowed_is_refused() {
    let context = Context::new("FROM scratch\nRUN --network=foo x\n");
    let failed = build(&Builder::new(), &context, &[]).exited(1);
    assert!(
        failed.says(&["invalid network mode \"foo\""]) && failed.says(&["Dockerfile:2"]),
        "{}",
        failed.stderr
    );
    for (flag, part) in [
        ("--network=bridge", "`bridge` is no network mode"),
        ("--network=", "`` is no network mode"),
        ("--allow=network", "`network` is nothing that can be allowed"),
    ] {
        let failed = build(&Builder::new(), &context, &[flag]).exited(1);
        assert!(failed.says(&[part]), "{flag}: {}", failed.stderr);
    }
}

#[test]
fn what_was_done_with_a_network_is_done_again_without() {
    let builder = Builder::new();
    let context = Context::new(&on_busybox("RUN echo hello >/made\n"));
    let cached = |flags: &[&str]| build(&builder, &context, flags).success().says(&["CACHED", "RUN"]);
    assert!(!cached(&[]));
    assert!(!cached(&["--network=none"]));
    assert!(cached(&[]) && cached(&["--network=none"]) && cached(&["--network=host"]));
    let context = Context::new(&on_busybox("RUN --network=none echo hello >/made\n"));
    assert!(build(&builder, &context, &[]).success().says(&["CACHED", "RUN"]), "the same as with the flag");
    let plan = finish(builder.command().args(["plan", "-c"]).arg(context.path())).success().json();
    assert_eq!(plan["stages"][0]["steps"][0]["network"], "none");
}

#[test]
fn names_are_resolved_as_under_buildkit() {
    let context = Context::new(&on_busybox(
        "RUN --network=none cat /etc/hosts; grep -c ^nameserver /etc/resolv.conf; grep -E '^nameserver +(127|::1)' /etc/resolv.conf; ping -c 1 localhost >/dev/null && echo reached\n",
    ));
    let finished = build(&Builder::new(), &context, &[]).success();
    let lines = output(&finished);
    assert_eq!(
        lines[..2],
        ["127.0.0.1\tlocalhost buildkitsandbox", "::1\tlocalhost ip6-localhost ip6-loopback"]
    );
    assert!(lines[2].parse::<u32>().is_ok_and(|servers| servers > 0), "{lines:?}");
    assert_eq!(lines[3..], ["reached"]);
}

#[test]
fn an_ordinary_user_s_step_can_be_without_network_too() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let steps = format!(
        "RUN --network=none ls /sys/class/net; httpd -h / -p 127.0.0.1:{port} && echo bound; cut -d: -f1 /proc/net/dev | tail -n +3\n"
    );
    let user = User::with_ranges();
    let context = user.context(&on_busybox(&steps));
    let finished = finish(user.command().args(["--no-push", "-c"]).arg(&context)).success();
    assert_eq!(output(&finished), ["lo", "bound", "    lo"]);
}

#[test]
fn where_the_machine_s_sys_is_bound_its_interfaces_are_not_seen() {
    // A user namespace gets no sysfs of its own while parts of the machine's are covered.
    let user = User::with_ranges();
    let steps = "RUN --network=none ls /sys/class/net | wc -l; ls -d /sys/class/tty; grep -c ' /sys sysfs' /proc/mounts\n\
                 RUN ls /sys/class/net | grep -cx lo\n";
    let context = user.context(&on_busybox(steps));
    let script = "mount -t tmpfs none /sys/firmware && exec setpriv --reuid=$0 --regid=$1 --clear-groups \"$2\" --no-push -c \"$3\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, &user.uid.to_string(), &user.gid.to_string()]);
    command.arg(user.program()).arg(&context);
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("HOME", user.home());
    let finished = finish(command.current_dir(user.home())).success();
    assert_eq!(output(&finished), ["0", "/sys/class/tty", "1", "1"]);
}

#[test]
fn in_pods_a_step_has_no_network_or_fails_and_says_why() {
    if !pod::available("in_pods_a_step_has_no_network_or_fails_and_says_why") {
        return;
    }
    let dockerfile = "FROM scratch\nCOPY busybox /bin/sh\n\
                      RUN --network=none tail -n +3 /proc/net/dev | cut -d: -f1; httpd -p 127.0.0.1:80 -h / && echo bound; ping -c 1 127.0.0.1 >/dev/null && echo reached; ls /sys/class/net | grep -v lo || true\n";
    let without_network = Ok(["    lo", "bound", "reached"]);
    let cases = [
        (Profile::Default, "chroot", Err("it takes CAP_SYS_ADMIN")),
        (Profile::Unset, "user-namespace", without_network),
        (Profile::Rootless, "user-namespace", without_network),
        (Profile::HostusersFalseUnmasked, "user-namespace", without_network),
        (Profile::Sysadmin, "mount-namespace", Err("without CAP_NET_ADMIN")),
        // What the hint says.
        (Profile::Sysadmin, "user-namespace", without_network),
        (Profile::Privileged, "mount-namespace", without_network),
    ];
    for (profile, isolation, expected) in cases {
        let pod = Pod::new(profile);
        pod.write("context/Dockerfile", dockerfile);
        pod.write("context/busybox", std::fs::read("/bin/busybox").unwrap());
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(pod.data().join("context/busybox"), executable).unwrap();
        let isolation = format!("--isolation={isolation}");
        let finished = pod.run(&["builder", "build", "--no-push", &isolation, "-c", "/data/context"]);
        match expected {
            Ok(lines) => assert_eq!(output(&finished.success()), lines, "{profile:?}"),
            Err(cause) => {
                let failed = finished.exited(1);
                let words = ["error: a RUN cannot have a network of its own here: ", cause];
                assert!(failed.says(&words), "{profile:?}: {}", failed.stderr);
                assert!(failed.says(&["hint: "]), "{profile:?}: {}", failed.stderr);
                // Nothing was done before.
                assert!(!failed.says(&["[1/"]), "{profile:?}: {}", failed.stderr);
                assert!(failed.says(&["Dockerfile:3"]), "{}", failed.stderr);
                assert!(!failed.says(&["| bound"]), "{profile:?}: {}", failed.stderr);
            }
        }
    }
}
