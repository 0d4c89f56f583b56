//! Builds in odd surroundings: whatever limits, descriptors, signals and paths a parent leaves, the image is the same or
//! there is one clear error.

use std::path::Path;
use std::process::Command;

use crate::support::ground::ground;
use crate::support::group::Group;
use crate::support::process_one::as_process_one;
use crate::support::{Builder, Context, Finished, finish, scratch, traces};

/// A stage, a copy and a RUN whose result depends on nothing but the Dockerfile.
fn context() -> Context {
    let context = Context::new(&format!(
        // RUN would make these three where they are missing, at the time of the day.
        "FROM {base} AS base\nWORKDIR /dev\nWORKDIR /proc\nWORKDIR /sys\nWORKDIR /\n\
         FROM base AS one\n\
         RUN mkdir /d && echo hi >/d/f && touch -d @1700000000 /d/f /d\n\
         FROM base\n\
         COPY --from=one /d /copied\n\
         COPY file /new/\n\
         RUN echo more >/more && touch -d @1700000000 /more\n",
        base = ground().name("busybox:latest")
    ));
    let file = context.write("file", "content");
    let status = Command::new("touch").args(["-d", "@1600000000"]).arg(file).status().expect("touch");
    assert!(status.success());
    context
}

/// Builds `context` to its end, see [`command_after`].
fn build_after(builder: &Builder, context: &Context, prelude: &str) -> Finished {
    finish(&mut command_after(builder, context, prelude))
}

/// Builds `context` after a shell has done `prelude`; `STORE` in it is the store's directory, `"$@"` what it starts in
/// the end.
fn command_after(builder: &Builder, context: &Context, prelude: &str) -> Command {
    let plain = builder.command();
    let mut command = Command::new("bash");
    command.env_clear().envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.env("STORE", builder.store()).current_dir(plain.get_current_dir().expect("directory"));
    command.args(["-euc", prelude, "bash"]).arg(plain.get_program());
    command.args(["--no-push", "--build-arg=SOURCE_DATE_EPOCH=1700000000", "--context"]).arg(context.path());
    command
}

#[test]
fn the_image_does_not_depend_on_them() {
    let context = context();
    let expected = build_after(&Builder::new(), &context, "exec \"$@\"").success().stdout;
    assert_eq!(expected.len(), "sha256:\n".len() + 64);
    // Rust's standard library cannot leave signals blocked or ignored.
    let by_python = |statement: &str| {
        format!(
            "exec python3 -c 'import os, signal, sys; {statement}; os.execv(sys.argv[1], sys.argv[1:])' \"$@\""
        )
    };
    for prelude in [
        "umask 077; exec \"$@\"",
        "umask 0; exec \"$@\"",
        "ulimit -n 256; exec \"$@\"",
        "ulimit -c 0 -s 1024; exec \"$@\"",
        "exec \"$@\" <&-",
        "exec \"$@\" 2>&-",
        "exec \"$@\" <&- 2>&-",
        "mkdir gone; cd gone; rmdir ../gone; exec \"$@\"",
        "exec 9>/dev/null 17</dev/null 200</; exec \"$@\"",
        "TZ=Pacific/Auckland LC_ALL=tr_TR.UTF-8 exec \"$@\"",
        "unset HOME PATH; exec \"$@\"",
        &by_python("signal.signal(signal.SIGCHLD, signal.SIG_IGN)"),
        &by_python("signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))"),
        &by_python("signal.signal(signal.SIGPIPE, signal.SIG_DFL)"),
        &by_python("os.setpgid(0, 0)"),
        // Temporary files are in the store, so it does not matter what that says.
        "TMPDIR=/does/not/exist exec \"$@\"",
        "TMPDIR=relative exec \"$@\"",
        "TMPDIR= exec \"$@\"",
    ] {
        // Process 1 of a container is started with the same carelessness.
        for is_first in [false, true] {
            let builder = Builder::new();
            let plain = command_after(&builder, &context, prelude);
            let mut command = if is_first { as_process_one(&plain) } else { plain };
            let finished = finish(&mut command).success();
            assert_eq!(finished.stdout, expected, "{prelude}\n{}", finished.stderr);
            traces::assert_none(builder.store());
        }
    }
}

#[test]
fn a_step_is_told_to_stop_although_the_parent_blocked_the_signal() {
    let context = Context::new(&format!("FROM {}\nRUN sleep 1000\n", ground().name("busybox:latest")));
    let builder = Builder::new();
    let began = std::time::Instant::now();
    let finished = build_after(
        &builder,
        &context,
        "exec timeout 2 python3 -c 'import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65)); os.execv(sys.argv[1], sys.argv[1:])' \"$@\"",
    );
    assert!(finished.says(&["error: stopped by SIGTERM"]), "{finished:?}");
    assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
    traces::assert_none(builder.store());
}

#[test]
fn a_store_may_have_any_name_and_be_reached_in_any_way() {
    let context = context();
    let place = scratch();
    let deep = format!("{}/{}", "d".repeat(250), "e".repeat(250));
    let expected = build_after(&Builder::new(), &context, "exec \"$@\"").success().stdout;
    for (store, prelude) in [
        ("with space", ""),
        ("new\nline", ""),
        ("comma,colon:back\\slash\"quotes'", ""),
        ("$'\\xff\\xfe'", "STORE=$'\\xff\\xfe'; "),
        ("-dash", ""),
        ("not/yet/there/", ""),
        ("real", "mkdir real; ln -s real link; STORE=link; "),
        ("ünïcode", ""),
        ("./../PLACE/relative", ""),
        (deep.as_str(), ""),
        ("tmpfs", "mkdir tmpfs; mount -t tmpfs none tmpfs; "),
    ] {
        let name = place.path().file_name().expect("name").to_str().expect("name");
        let store = store.replace("PLACE", name);
        let builder = Builder::new();
        let script = format!(
            "cd {}; export BUILDER_STORE; {prelude}BUILDER_STORE=${{STORE#$PWD/}}; \"$@\"; ls -A \"./$BUILDER_STORE/tmp\" >&2",
            place.path().display()
        );
        let plain = builder.command();
        let mut command = Command::new("unshare");
        command.env_clear().envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.env("STORE", &store).args(["--mount", "--propagation", "private", "bash", "-euc", &script]);
        command.arg("bash").arg(plain.get_program()).args(["--no-push", "--verbosity=warn", "--context"]);
        command.arg(context.path()).arg("--build-arg=SOURCE_DATE_EPOCH=1700000000");
        let finished = finish(&mut command).success();
        assert_eq!(finished.stdout, expected, "{store}: {}", finished.stderr);
        assert_eq!(finished.stderr, "", "{store}");
    }
    assert!(Path::new(&place.path().join("real/version")).exists(), "the link was replaced");
}

#[test]
fn where_there_may_be_few_processes_the_image_is_the_same_or_there_is_one_error() {
    let context = context();
    let expected = build_after(&Builder::new(), &context, "exec \"$@\"").success().stdout;
    let mut succeeded = 0;
    for most in (1..20).step_by(2) {
        let Some(group) = Group::of_processes(most) else { return };
        let builder = Builder::new();
        let plain = command_after(&builder, &context, &format!("{}; exec \"$@\"", group.enter()));
        // Process 1 wants one more, to reap orphans, and does without.
        let finished = finish(&mut if most % 4 == 1 { plain } else { as_process_one(&plain) });
        if finished.code == Some(0) {
            assert_eq!(finished.stdout, expected, "{most}: {}", finished.stderr);
            succeeded += 1;
        } else {
            let errors = finished.stderr.lines().filter(|line| line.starts_with("error:")).count();
            assert!(errors == 1 && !finished.stderr.contains("panicked"), "{most}: {finished:?}");
        }
        traces::assert_none(builder.store());
    }
    assert!(succeeded > 0, "nineteen are not enough");
}
