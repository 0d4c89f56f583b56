//! What a RUN sees and leaves, through the whole program.

use std::fs;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::ground::ground;
use crate::support::oci::LayoutImage;
use crate::support::traces::{self, Family, Running};
use crate::support::{Builder, Context, Finished, scratch};

/// What the steps wrote, without their tags.
fn output(finished: &Finished) -> Vec<&str> {
    finished.stderr.lines().filter_map(|line| line.split_once("] | ").map(|(_, text)| text)).collect()
}

/// What the first RUN leaves on an image without these directories, as under BuildKit, with a file `/made`.
const FIRST: [&str; 4] = ["dev/", "made", "proc/", "sys/"];

/// Builds steps on busybox; gives what they wrote.
fn run(steps: &str) -> Vec<String> {
    let context = Context::new(&format!("FROM {}\n{steps}", ground().name("busybox:latest")));
    let builder = Builder::new();
    let finished = builder.run(["--no-push".as_ref(), "-c".as_ref(), context.path().as_os_str()]).success();
    traces::assert_none(builder.store());
    output(&finished).into_iter().map(str::to_owned).collect()
}

/// Paths of the layers that a build made on busybox, one list for each.
fn layers(steps: &str) -> Vec<Vec<String>> {
    let base = ground().name("busybox:latest");
    let context = Context::new(&format!("FROM {base}\n{steps}"));
    layers_of(&context, &["--custom-platform=linux/amd64"]).split_off(1)
}

/// Paths of all layers of what a context gives.
fn layers_of(context: &Context, arguments: &[&str]) -> Vec<Vec<String>> {
    let out = scratch();
    let layout = out.path().join("layout");
    Builder::new().layout(context, &layout, arguments).success();
    LayoutImage::only(&layout).layer_paths(&layout)
}

#[test]
fn a_step_is_alone_with_its_processes() {
    let lines =
        run("RUN cat /proc/1/comm; ls -d /proc/[0-9]* | wc -l; tr '\\0' ' ' </proc/1/cmdline; echo\n");
    assert_eq!(lines[0], "sh");
    let count: usize = lines[1].trim().parse().expect("number");
    assert!(count <= 4, "{lines:?}");
    assert!(lines[2].starts_with("/bin/sh -c cat /proc/1/comm"), "{lines:?}");
}

#[test]
fn host_name_and_hosts_are_those_of_buildkit() {
    assert_eq!(
        run("RUN hostname; cat /etc/hosts\n"),
        [
            "buildkitsandbox",
            "127.0.0.1\tlocalhost buildkitsandbox",
            "::1\tlocalhost ip6-localhost ip6-loopback"
        ]
    );
}

#[test]
fn name_servers_are_the_machine_s_and_neither_file_stays_in_the_image() {
    let own = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let lines = run("RUN cat /etc/resolv.conf\n");
    assert_eq!(lines, own.lines().collect::<Vec<_>>());
    assert_eq!(layers("RUN echo x >/made; test -f /etc/hosts && test -f /etc/resolv.conf\n"), [FIRST]);
}

#[test]
fn rights_are_docker_s() {
    let lines = run("RUN grep -E '^(Cap|Seccomp:|NoNewPrivs)' /proc/self/status; umask; id\n\
         USER user\nRUN grep -E '^Cap(Eff|Prm|Bnd)' /proc/self/status; id\n\
         USER user:root\nRUN id\nUSER 4242:4343\nRUN id\nUSER 1000\nRUN id\n");
    let text = lines.join("\n");
    for line in [
        "CapInh:\t0000000000000000",
        "CapPrm:\t00000000a80425fb",
        "CapEff:\t00000000a80425fb",
        "CapBnd:\t00000000a80425fb",
        "CapAmb:\t0000000000000000",
        "NoNewPrivs:\t0",
        "Seccomp:\t2",
        "0022",
        "uid=0(root) gid=0(root) groups=0(root)",
        "CapPrm:\t0000000000000000",
        "CapEff:\t0000000000000000",
        "uid=1000(user) gid=1001(ugrp) groups=1001(ugrp),2000(supp)",
        "uid=1000(user) gid=0(root) groups=0(root)",
        "uid=4242 gid=4343 groups=4343",
    ] {
        assert!(lines.iter().any(|found| found == line), "no `{line}` in\n{text}");
    }
    assert_eq!(
        lines.last().map(String::as_str),
        Some("uid=1000(user) gid=1001(ugrp) groups=1001(ugrp),2000(supp)")
    );
}

#[test]
fn packages_accounts_and_setuid_programs_work_and_namespaces_do_not() {
    let steps = "RUN mkdir -p /p/DEBIAN /p/opt && printf 'Package: p\\nVersion: 1\\nArchitecture: all\\nMaintainer: m <m@m>\\nDescription: d\\n' >/p/DEBIAN/control && \\
           printf '#!/bin/sh\\ngroupadd --system made && touch /opt/made && chgrp made /opt/made\\n' >/p/DEBIAN/postinst && chmod 755 /p/DEBIAN/postinst && \\
           dpkg-deb --build /p /p.deb >/dev/null && dpkg -i /p.deb >/dev/null && stat -c %G /opt/made && useradd somebody && su somebody -c id\n\
         USER somebody\n\
         RUN exec 2>&1; passwd -S | cut -d' ' -f1; grep NoNewPrivs /proc/self/status; unshare -U true; unshare -r true; echo tried\n";
    let base = ground().name("debian:latest");
    let context = Context::new(&format!("FROM {base}\n{steps}"));
    for platform in ["linux/amd64", "linux/arm/v7"] {
        let finished = Builder::new()
            .run([
                "--no-push".as_ref(),
                format!("--custom-platform={platform}").as_ref(),
                "-c".as_ref(),
                context.path().as_os_str(),
            ])
            .success();
        let refused = "unshare: unshare failed: Operation not permitted";
        assert_eq!(
            output(&finished),
            [
                "made",
                "uid=1000(somebody) gid=1000(somebody) groups=1000(somebody)",
                // From a file that only root reads.
                "somebody",
                "NoNewPrivs:\t0",
                refused,
                refused,
                "tried"
            ],
            "{platform}"
        );
    }
}

#[test]
fn the_machine_is_masked_and_read_only() {
    let lines = run("RUN for file in /proc/kcore /proc/keys /proc/timer_list; do \
           if [ -e $file ]; then wc -c <$file; fi; done; ls /sys/firmware | wc -l\n\
         RUN echo 1 2>/dev/null >/proc/sys/kernel/sysrq || echo refused; \
           echo x 2>/dev/null >/proc/sysrq-trigger || echo refused; \
           mkdir /sys/x 2>/dev/null || echo refused; \
           mount -t tmpfs none /tmp 2>/dev/null || echo refused\n");
    assert!(lines.iter().filter(|line| line.trim() == "0").count() >= 2, "{lines:?}");
    assert_eq!(lines.iter().filter(|line| *line == "refused").count(), 4, "{lines:?}");
}

#[test]
fn nothing_of_the_builder_s_environment_is_there() {
    let context = Context::new(&format!(
        "FROM {}\nENV own=1\nARG given\nRUN env | sort\nUSER user\nRUN echo $HOME\n",
        ground().name("busybox:latest")
    ));
    let builder = Builder::new();
    let mut command = builder.command();
    command.env("SECRET", "leaked").args(["--no-push", "--build-arg=given=2", "-c"]).arg(context.path());
    let finished = crate::support::finish(&mut command).success();
    let lines = output(&finished);
    let names: Vec<&str> =
        lines.iter().filter_map(|line| line.split_once('=').map(|(name, _)| name)).collect();
    // The shell adds PWD and SHLVL.
    assert_eq!(names, ["HOME", "PATH", "PWD", "SHLVL", "given", "own"], "{lines:?}");
    assert!(lines.contains(&"HOME=/root"), "{lines:?}");
    assert_eq!(lines.last(), Some(&"/home/user"));
}

#[test]
fn here_documents_are_scripts_or_input() {
    let lines = run("RUN <<EOF\necho one\necho two\nEOF\n\
         RUN <<EOF\n#!/bin/sh -e\necho \"$0\" | wc -l\nEOF\n\
         RUN <<A cat - && echo end\ninput\nA\n\
         RUN <<'EOF'\necho \"$((1 + 2)) $HOME\"\nEOF\n");
    let lines: Vec<&str> = lines.iter().map(|line| line.trim()).collect();
    assert_eq!(lines, ["one", "two", "1", "input", "end", "3 /root"]);
}

#[test]
fn a_here_document_ends_with_its_last_command() {
    let context =
        Context::new(&format!("FROM {}\nRUN <<EOF\nfalse\nexit 9\nEOF\n", ground().name("busybox:latest")));
    let finished =
        Builder::new().run(["--no-push".as_ref(), "-c".as_ref(), context.path().as_os_str()]).exited(9);
    assert!(finished.stderr.contains("Dockerfile:2"), "{}", finished.stderr);
}

#[test]
fn the_working_directory_is_made_and_entered() {
    assert_eq!(
        run(
            "WORKDIR /a/b\nRUN pwd\nWORKDIR c\nRUN pwd; stat -c '%a %u:%g' /a /a/b/c\nUSER user\nWORKDIR /home/user/d\nRUN pwd; stat -c '%a %u:%g' .\n"
        ),
        ["/a/b", "/a/b/c", "755 0:0", "755 0:0", "/home/user/d", "755 1000:1001"]
    );
}

#[test]
fn the_shell_form_uses_the_shell_of_the_dockerfile() {
    let steps = r#"SHELL ["/bin/sh", "-ec"]
RUN false || case $- in *e*) echo $0;; esac
RUN ["echo", "$HOME", "a b"]
"#;
    assert_eq!(run(steps), ["/bin/sh", "$HOME a b"]);
}

#[test]
fn standard_input_is_empty_and_output_keeps_its_order() {
    let lines = run("RUN cat; echo out; echo err >&2; printf unfinished\n");
    assert_eq!(lines, ["out", "err", "unfinished"]);
}

#[test]
fn the_last_words_of_a_failing_step_are_shown() {
    let base = ground().name("busybox:latest");
    let context = Context::new(&format!("FROM {base}\nRUN printf 'no line feed'; exit 2\n"));
    let finished =
        Builder::new().run(["--no-push".as_ref(), "-c".as_ref(), context.path().as_os_str()]).exited(2);
    assert_eq!(output(&finished), ["no line feed"]);
}

#[test]
fn what_a_step_writes_cannot_steer_the_terminal() {
    let lines = run("RUN printf 'a\\033]0;title\\007b\\rc\\n'\n");
    assert!(lines.iter().all(|line| !line.contains('\u{1b}') && !line.contains('\u{7}')), "{lines:?}");
}

#[test]
fn a_step_that_a_signal_ends_fails_with_255() {
    let base = ground().name("busybox:latest");
    let context = Context::new(&format!("FROM {base}\nRUN echo ready; exec sleep 1000\n"));
    let builder = Builder::new();
    let mut running = Running::start(builder.command().args(["--no-push", "-c"]).arg(context.path()));
    running.wait_for("| ready");
    let builder_id = running.id();
    running.wait_until("sleep", |_| Family::of(builder_id).named("sleep").is_some());
    let step = Family::of(running.id()).named("sleep").expect("the step");
    kill_process(Pid::from_raw(step).expect("process"), Signal::KILL).expect("kill");
    let finished = running.end(Duration::from_secs(20)).exited(255);
    assert!(
        finished.says(&["error: process `/bin/sh -c echo ready; exec sleep 1000`", "signal 9"]),
        "{}",
        finished.stderr
    );
    traces::assert_none(builder.store());
}

#[test]
fn files_are_recorded_as_they_were_left() {
    let layers = layers(
        "RUN mkdir /d && touch /d/a /d/b && ln /d/a /d/hard && ln -s a /d/soft && mkfifo /d/pipe\n\
         RUN rm /d/a && mv /d/b /d/c && chmod 600 /d/hard\n\
         RUN rm -r /d && mkdir /d && touch /d/new\n\
         RUN rm /bin/vi && touch /bin/vi && rm /bin/vi\n\
         RUN true\n\
         RUN touch /x && rm /x\n",
    );
    assert_eq!(layers[0], ["d/", "d/a", "d/b", "d/hard", "d/pipe", "d/soft", "dev/", "proc/", "sys/"]);
    assert_eq!(layers[1], ["d/", "d/.wh.a", "d/.wh.b", "d/c", "d/hard"]);
    assert_eq!(layers[2][0], "d/");
    assert!(layers[2].contains(&"d/new".to_owned()), "{layers:?}");
    assert_eq!(layers[3], ["bin/", "bin/.wh.vi"]);
    assert_eq!(layers[4], [""; 0]);
    assert_eq!(layers[5], [""; 0]);
}

#[test]
fn one_file_on_a_base_of_many_gives_a_layer_of_one_file() {
    let base = ground().name("many:100k");
    let context = Context::new(&format!("FROM {base}\nRUN echo one >/made\nRUN echo two >/two\n"));
    let layers = layers_of(&context, &[]);
    assert_eq!(layers[layers.len() - 2], FIRST);
    assert_eq!(layers[layers.len() - 1], ["two"]);
}

#[test]
fn steps_run_for_every_architecture() {
    let ground = ground();
    let builder = Builder::new();
    for (platform, machine) in [
        ("linux/amd64", "x86_64"),
        ("linux/386", "i686"),
        ("linux/arm/v5", "arm"),
        ("linux/arm/v7", "arm"),
        ("linux/arm64", "aarch64"),
        ("linux/s390x", "s390x"),
        ("linux/ppc64le", "ppc64le"),
    ] {
        let context = Context::new(&format!(
            "FROM {}\nRUN uname -m && echo $((6 * 7)) >/made\nRUN cat /made && ls / | grep -c .\n",
            ground.name("busybox:latest")
        ));
        let out = scratch();
        let layout = out.path().join("layout");
        let finished =
            builder.layout(&context, &layout, &[&format!("--custom-platform={platform}")]).success();
        let lines = output(&finished);
        assert!(lines[0].starts_with(machine), "{platform}: {lines:?}");
        assert_eq!(lines[1], "42", "{platform}");
        let image = LayoutImage::only(&layout);
        assert_eq!(
            image.annotation("io.builder.platform").map(|found| found.trim_end_matches("/v8")),
            Some(platform)
        );
        let paths = image.layer_paths(&layout);
        assert_eq!(paths[1], FIRST, "{platform}");
        assert_eq!(paths[2], [""; 0], "{platform}");
    }
}
