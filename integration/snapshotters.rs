//! Builds on overlay mounts and in plain directories: the same layers, and a word where only the latter is possible.

use std::process::Command;

use crate::support::ground::ground;
use crate::support::oci::LayoutImage;
use crate::support::{Builder, Context, Finished, finish, scratch, traces};

/// Stages, copies between them and RUNs whose result depends on nothing but the Dockerfile.
fn context() -> Context {
    let base = ground().name("busybox:latest");
    let context = Context::new(&format!(
        // RUN would make these three where they are missing, at the time of the day.
        "FROM {base} AS base\nWORKDIR /dev\nWORKDIR /proc\nWORKDIR /sys\nWORKDIR /\n\
         FROM base AS one\n\
         RUN mkdir /d && echo hi >/d/f && ln /d/f /d/g && ln -s f /d/l && touch -d @1700000000 /d/f /d\n\
         RUN mv /d /e && mv /e /d && rm /d/l && touch -d @1700000000 /d && chmod 4711 /bin/busybox\n\
         FROM base\n\
         COPY --from=one /d /copied\n\
         COPY --from=one /d/f /bin/busybox* /once-more/\n\
         COPY --from={base} /bin /bin-too\n\
         COPY file /new/\n\
         RUN echo more >/more && touch -d @1700000000 /more\n\
         RUN rm -r /copied /tmp && mkdir /tmp && chmod 1777 /tmp && touch -d @1700000000 /tmp && ln /more /more-too\n\
         RUN true\n"
    ));
    let file = context.write("file", "content");
    let status = Command::new("touch").args(["-d", "@1600000000"]).arg(file).status().expect("touch");
    assert!(status.success());
    context
}

fn build(context: &Context, flags: &[&str]) -> (Finished, LayoutImage) {
    let builder = Builder::new();
    let out = scratch();
    let layout = out.path().join("layout");
    let flags = [&["--build-arg=SOURCE_DATE_EPOCH=1700000000"], flags].concat();
    let finished = builder.layout(context, &layout, &flags).success();
    traces::assert_none(builder.store());
    let image = LayoutImage::only(&layout);
    (finished, image)
}

#[test]
fn images_are_the_same_bit_for_bit() {
    let context = context();
    let (overlay, image) = build(&context, &["--snapshotter=overlayfs"]);
    for flags in [
        &["--snapshotter=native"][..],
        &["--snapshotter=native", "--snapshot-mode=full"],
        &["--snapshotter=native", "--snapshot-mode=time"],
        &["--snapshotter=native", "--snapshotMode=redo"],
        &["--snapshotter=auto"],
    ] {
        let (native, other) = build(&context, flags);
        assert_eq!(image.config.rootfs().diff_ids(), other.config.rootfs().diff_ids(), "{flags:?}");
        assert_eq!(overlay.stdout, native.stdout, "{flags:?}");
        assert!(!native.says(&["overlayfs cannot be used"]), "{}", native.stderr);
    }
}

/// Users of kaniko report files that are missing in images: programs set back the times of what they change.
#[test]
fn changes_that_keep_size_and_time_are_found_in_every_mode() {
    let base = ground().name("busybox:latest");
    let context = Context::new(&format!(
        "FROM {base}\nRUN printf AAAA >/f && touch -d @1 /f\nRUN printf BBBB >/f && touch -d @1 /f\n\
         RUN printf CCCC >/g && touch -d @1 /g && mv /g /f\nRUN grep CCCC /f\n"
    ));
    for flags in [
        &["--snapshotter=overlayfs"][..],
        &["--snapshotter=native", "--snapshot-mode=full"],
        &["--snapshotter=native", "--snapshot-mode=redo"],
        &["--snapshotter=native", "--snapshot-mode=time"],
    ] {
        let builder = Builder::new();
        let out = scratch();
        let layout = out.path().join("layout");
        builder.layout(&context, &layout, flags).success();
        let layers = LayoutImage::only(&layout).layer_facts(&layout);
        let steps = &layers[layers.len() - 4..];
        let files: Vec<Option<&str>> = steps
            .iter()
            .map(|layer| layer.iter().find(|line| line.starts_with("f ")).map(String::as_str))
            .collect();
        assert!(files[..3].iter().all(Option::is_some) && files[3].is_none(), "{flags:?}: {files:?}");
        assert!(files[0] != files[1] && files[1] != files[2], "{flags:?}: {files:?}");
    }
}

/// Runs `builder` where `$1` is an overlay mount.
fn on_overlay(context: &Context, flags: &[&str]) -> Finished {
    let place = scratch();
    let builder = Builder::new();
    let plain = builder.command();
    let mut command = Command::new("unshare");
    command.env_clear().envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let script = "cd \"$1\" && mkdir lower upper work merged &&
         mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work overlay merged &&
         export BUILDER_STORE=\"$1/merged\" && shift && exec \"$@\"";
    command.args(["-m", "sh", "-euc", script, "sh"]).arg(place.path()).arg(plain.get_program());
    command.args(["--no-push", "--build-arg=SOURCE_DATE_EPOCH=1700000000", "--context"]).arg(context.path());
    let finished = finish(command.args(flags));
    let left = |path: &str| std::fs::read_dir(place.path().join(path)).expect("directory").count();
    assert_eq!(left("upper/tmp"), 0, "{}", finished.stderr);
    finished
}

#[test]
fn a_store_on_an_overlay_will_do() {
    let context = context();
    let (expected, _) = build(&context, &["--snapshotter=overlayfs"]);
    for flags in [&[][..], &["--snapshot-mode=full"]] {
        let finished = on_overlay(&context, flags).success();
        assert_eq!(finished.stdout, expected.stdout);
        let words =
            ["overlayfs cannot be used", "plain directories", "on an overlay itself", "emptyDir", "--store"];
        assert!(finished.says(&words), "{}", finished.stderr);
    }
    assert!(!on_overlay(&context, &["--snapshotter=native"]).success().says(&["overlayfs"]));
    let refused = on_overlay(&context, &["--snapshotter=overlayfs"]).exited(1);
    assert!(refused.says(&["error: the store", "on an overlay file system"]), "{}", refused.stderr);
    assert!(refused.says(&["hint:", "emptyDir"]), "{}", refused.stderr);
}

#[test]
fn that_a_snapshot_mode_makes_no_difference_is_said_where_it_was_given() {
    let context = context();
    let says = |flags: &[&str]| build(&context, flags).0.says(&["--snapshot-mode makes no difference"]);
    assert!(says(&["--snapshotter=overlayfs", "--snapshot-mode=redo"]));
    assert!(!says(&["--snapshotter=overlayfs"]));
    assert!(!says(&["--snapshotter=native", "--snapshot-mode=redo"]));
}

/// overlayfs stacks 499 layers; plain directories know no such number.
#[test]
fn more_layers_than_overlayfs_stacks_are_built_and_built_on() {
    let layers: String = (0..501).map(|number| format!("WORKDIR /d{number}\n")).collect();
    let context = Context::new(&format!("FROM scratch\n{layers}"));
    let name = ground().name("more-layers:than-overlayfs-stacks");
    let builder = Builder::new();
    let destination = format!("--destination={name}");
    let build = |context: &Context, flags: &[&str]| {
        let context = ["--context", context.path().to_str().expect("UTF-8")];
        builder.run([&context[..], flags].concat())
    };
    build(&context, &[&destination, "--snapshotter=native"]).success();
    let on_it = Context::new(&format!("FROM {name}\nCOPY Dockerfile /\n"));
    build(&on_it, &["--no-push", "--snapshotter=native"]).success();
    for context in [&context, &on_it] {
        let refused = build(context, &["--no-push", "--snapshotter=overlayfs"]).exited(1);
        assert!(refused.says(&["error", "of the image", "no more than 499"]), "{}", refused.stderr);
        assert!(refused.says(&["hint:", "--snapshotter=native"]), "{}", refused.stderr);
    }
}

/// What RUN printed.
fn output(finished: &Finished) -> Vec<String> {
    finished.stderr.lines().filter_map(|line| Some(line.split_once("] | ")?.1.to_owned())).collect()
}

/// The number of a file tells whether a step works in the files of the one before or in a copy.
#[test]
fn files_are_copied_only_where_two_need_them() {
    let base = ground().name("busybox:latest");
    let look = "RUN stat -c %i /bin/busybox\n";
    let context = Context::new(&format!(
        "FROM {base} AS one\n{look}{look}FROM {base} AS two\n{look}FROM one AS three\n{look}FROM one AS four\n{look}\
         FROM four\n{look}COPY --from=two /etc /x\nCOPY --from=three /etc /y\n{look}"
    ));
    let finished = Builder::new().layout(
        &context,
        scratch().path().join("layout").as_path(),
        &["--snapshotter=native", "--no-cache", "--jobs=1", "-v", "debug"],
    );
    let finished = finished.success();
    let numbers = output(&finished);
    let [one, again, two, three, four, last, end] = &numbers[..] else { panic!("{numbers:?}") };
    assert_eq!(one, again, "steps of a stage");
    assert_eq!(one, four, "the last stage on a stage");
    assert_eq!((four, four), (last, end), "a stage on a stage that nobody else uses");
    assert!(three != one && two != one && two != three, "{numbers:?}");
    // The base is wanted twice, and unpacked once.
    let unpacked = finished.stderr.lines().filter(|line| line.starts_with("unpacking ")).count();
    assert_eq!(unpacked, 1, "{}", finished.stderr);
}

#[test]
fn an_image_that_is_copied_from_several_times_is_unpacked_once() {
    let ground = ground();
    let (base, other) = (ground.name("busybox:latest"), ground.name("debian:latest"));
    let context = Context::new(&format!(
        "FROM {base}\nCOPY --from={other} /etc/passwd /1\nCOPY --from={other} /etc/group /2\n\
         FROM {base}\nCOPY --from={other} /etc/hostname* /etc/passwd /3/\nCOPY --from=0 /1 /2 /4/\n"
    ));
    let out = scratch();
    let layout = out.path().join("layout");
    let flags = ["--snapshotter=native", "--no-cache", "-v", "debug"];
    let finished = Builder::new().layout(&context, &layout, &flags).success();
    let mut unpacked: Vec<&str> =
        finished.stderr.lines().filter(|line| line.starts_with("unpacking ")).collect();
    let all = unpacked.len();
    unpacked.sort_unstable();
    unpacked.dedup();
    assert!(all >= 2 && unpacked.len() == all, "{}", finished.stderr);
}
