//! Stages that do not need each other are built at the same time, and stop when one of them fails.

use std::io::Write as _;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::ground::ground;
use crate::support::oci::LayoutImage;
use crate::support::traces;
use crate::support::{Builder, Context, Finished, finish, scratch};

/// Puts the name of a base into a Dockerfile.
fn context(dockerfile: &str) -> Context {
    Context::new(&dockerfile.replace("{base}", &ground().name("busybox:latest")))
}

fn build(builder: &Builder, context: &Context, arguments: &[&str]) -> Finished {
    let path = context.path().display().to_string();
    builder.run(["--no-push", "--context", &path].into_iter().chain(arguments.iter().copied()))
}

/// Where two steps meet: each is told `go` when both are there. Gives the command with which they come.
fn meeting() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let port = listener.local_addr().expect("address").port();
    std::thread::spawn(move || {
        let both = [listener.accept(), listener.accept()];
        for (mut stream, _) in both.into_iter().flatten() {
            let _ = stream.write_all(b"go\n");
        }
    });
    format!("timeout 60 nc 127.0.0.1 {port} | grep go")
}

#[test]
fn more_stages_at_once_than_there_can_be_are_refused() {
    let context = Context::new("FROM scratch\n");
    for many in ["65", "18446744073709551615"] {
        let finished = build(&Builder::new(), &context, &["--jobs", many]).exited(1);
        let said = "stages cannot be built at once, at most 64 can";
        assert!(finished.stderr.contains(said) && finished.stderr.contains("--jobs"), "{finished:?}");
    }
}

#[test]
fn stages_that_do_not_need_each_other_run_at_the_same_time() {
    let meet = meeting();
    let context = context(&format!(
        "FROM {{base}} AS one\nRUN {meet} >/met\n\
         FROM {{base}} AS other\nRUN {meet} >/met\n\
         FROM scratch\nCOPY --from=one /met /one\nCOPY --from=other /met /other\n"
    ));
    let builder = Builder::new();
    // What is done once would not meet.
    build(&builder, &context, &["--jobs=2", "--no-cache"]).success();
    traces::assert_none(builder.store());
}

#[test]
fn the_first_failure_stops_the_other_stages() {
    let meet = meeting();
    let context = context(&format!(
        "FROM {{base}} AS long\nRUN {meet} && sleep 1000\n\
         FROM {{base}} AS reads\nCOPY --from=long /etc/passwd /\nRUN touch /never\n\
         FROM {{base}} AS fails\nRUN {meet} && exit 7\n\
         FROM scratch\nCOPY --from=reads /never /\nCOPY --from=fails /etc/passwd /\n"
    ));
    let builder = Builder::new();
    let began = Instant::now();
    let finished = build(&builder, &context, &["--jobs=3"]).exited(7);
    assert!(began.elapsed() < Duration::from_secs(100), "{}", finished.stderr);
    assert!(finished.says(&["Dockerfile:7"]), "{}", finished.stderr);
    // The one that would read it may not have begun.
    assert!(finished.says(&["[long]", "stopped: another stage has failed"]), "{}", finished.stderr);
    assert!(!finished.stderr.contains("touch /never"), "{}", finished.stderr);
    traces::assert_none(builder.store());
}

#[test]
fn images_are_equal_however_many_stages_are_built_at_once() {
    let context = context(
        "FROM {base} AS one\nRUN echo 1 >/one\nWORKDIR /w\nCOPY Dockerfile .\n\
         FROM one AS two\nRUN echo 2 >/two\n\
         FROM one AS three\nRUN echo 3 >/three\nCOPY --from=two /two /\n\
         FROM {base} AS four\nCOPY --from=one /one /\nRUN --mount=from=three,target=/m cp /m/two /m/three /\n\
         FROM two AS five\nCOPY --from=four /one /two /three /all/\nRUN cat /all/* >/sum\n\
         FROM five\nCOPY --from=three /w /w3\nLABEL a=b\n",
    );
    let image = |snapshotter: &str, jobs: &str| -> (Vec<Vec<String>>, Value, Value) {
        let (builder, out) = (Builder::new(), scratch());
        let layout = out.path().join("layout");
        let arguments = [
            "--build-arg=SOURCE_DATE_EPOCH=1",
            &format!("--snapshotter={snapshotter}"),
            &format!("--jobs={jobs}"),
        ];
        builder.layout(&context, &layout, &arguments).success();
        traces::assert_none(builder.store());
        let image = LayoutImage::only(&layout);
        let [history, config] = ["history", "config"].map(|key| image.raw_config[key].clone());
        (image.layer_paths(&layout), history, config)
    };
    let expected = image("auto", "1");
    for (snapshotter, jobs) in [("auto", "8"), ("native", "1"), ("native", "3"), ("auto", "0")] {
        assert_eq!(image(snapshotter, jobs), expected, "{snapshotter} {jobs}");
    }
}

#[test]
fn what_two_stages_begin_with_is_done_once() {
    let context = context(
        "FROM {base} AS one\nRUN cat /proc/sys/kernel/random/uuid >/id\nRUN echo 1\n\
         FROM {base} AS two\nRUN cat /proc/sys/kernel/random/uuid >/id\nRUN echo 2\n\
         FROM {base}\nCOPY --from=one /id /1\nCOPY --from=two /id /2\nRUN cmp /1 /2\n",
    );
    let finished = build(&Builder::new(), &context, &["--jobs=2"]).success();
    assert_eq!(finished.stderr.matches("CACHED").count(), 1, "{}", finished.stderr);
}

#[test]
fn many_stages_at_once_need_no_higher_limit_of_open_files_and_steps_have_the_one_of_before() {
    let stages: String =
        (0..60).map(|n| format!("FROM {{base}} AS s{n}\nRUN echo {n} >/n; ulimit -n\n")).collect();
    let copies: String = (0..60).map(|n| format!("COPY --from=s{n} /n /{n}\n")).collect();
    let context = context(&format!("{stages}FROM scratch\n{copies}"));
    let builder = Builder::new();
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "ulimit -Sn 128; exec \"$@\"", "sh"]).arg(env!("CARGO_BIN_EXE_builder"));
    command
        .args(["--no-push", "--jobs=0", "--store"])
        .arg(builder.store())
        .arg("--context")
        .arg(context.path());
    let finished = finish(&mut command).success();
    assert_eq!(finished.stderr.matches("| 128\n").count(), 60, "{}", finished.stderr);
}
