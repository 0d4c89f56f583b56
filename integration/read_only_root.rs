//! Builds where only the store can be written to, as in a pod with `readOnlyRootFilesystem`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::support::ground::ground;
use crate::support::pod::{self, Access, Pod, Profile};
use crate::support::process_one::as_process_one;
use crate::support::{Builder, Context, Finished, finish, scratch, traces};

/// Makes everything read-only but `"$STORE"` and `"$OUT"`, and goes on with `"$@"`.
const READ_ONLY: &str = r#"
for place in "$STORE" "$OUT"; do mount --bind "$place" "$place"; done
for place in /tmp /var/tmp /run /dev/shm; do mount -t tmpfs -o ro none "$place"; done
mount -o remount,bind,ro /
for place in / /tmp /var/tmp /run /dev/shm /var/lib "$HOME"; do
    if touch "$place/written" 2>/dev/null; then echo "$place can be written to" >&2; exit 99; fi
done
"#;

/// `builder` with these arguments after a shell has done `prelude` in a mount namespace of its own. `OUT` in the arguments
/// is a directory.
fn after(builder: &Builder, out: &Path, prelude: &str, arguments: &[&str]) -> Finished {
    let plain = builder.command();
    let mut command = Command::new("bash");
    command.env_clear().envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.env("STORE", builder.store()).env("OUT", out).current_dir("/");
    command.args(["-euc", prelude, "bash"]).arg(plain.get_program());
    command.args(arguments.iter().map(|argument| argument.replace("OUT", out.to_str().expect("path"))));
    // That has a mount namespace, too.
    finish(&mut as_process_one(&command))
}

/// A build whose digest depends on nothing but this.
fn context() -> Context {
    let base = ground().name("busybox:latest");
    let context = Context::new(&format!(
        "FROM {base}\nWORKDIR /dev\nWORKDIR /proc\nWORKDIR /sys\nWORKDIR /\nCOPY . /c/\n\
         RUN --mount=type=bind,target=/bound --mount=type=tmpfs,target=/memory rm -r /bin/vi && mkdir /d && cp /bound/file /d/f \
         && touch -d @1700000000 /d/f /d /bin\n"
    ));
    let file = context.write("file", "content");
    for path in [context.path(), &context.path().join("Dockerfile"), &file] {
        let status = Command::new("touch").args(["-d", "@1600000000"]).arg(path).status().expect("touch");
        assert!(status.success());
    }
    context
}

#[test]
fn only_store_and_outputs_are_written() {
    let context = context();
    let context = context.path().to_str().expect("path");
    let epoch = "--build-arg=SOURCE_DATE_EPOCH=1700000000";
    let place = scratch();
    let expected = after(&Builder::new(), place.path(), "exec \"$@\"", &["-c", context, "--no-push", epoch])
        .success()
        .stdout;
    for (way, step) in [
        ("mounts", "exec \"$@\""),
        ("users", "exec setpriv --bounding-set=-sys_admin --inh-caps=-all \"$@\""),
    ] {
        for (volume, mount) in [("disk", ""), ("memory", "mount -t tmpfs -o size=64m none \"$STORE\"\n")] {
            for snapshotter in ["overlayfs", "native"] {
                let shown = format!("{way}, {volume}, {snapshotter}");
                let (builder, out) = (Builder::new(), scratch());
                let prelude = format!("{READ_ONLY}{mount}{step}");
                let snapshotter = format!("--snapshotter={snapshotter}");
                let outputs = [
                    "--oci-layout-path=OUT/layout",
                    "--tar-path=OUT/image.tar",
                    "--digest-file=OUT/digest",
                    "--destination=localhost/a:1",
                    "--no-push",
                ];
                let arguments = [&["-c", context, epoch, &snapshotter], &outputs[..]].concat();
                let finished = after(&builder, out.path(), &prelude, &arguments).success();
                assert_eq!(finished.stdout, expected, "{shown}: {}", finished.stderr);
                for output in ["layout/index.json", "image.tar", "digest"] {
                    assert!(out.path().join(output).exists(), "{shown}: {output}");
                }
                traces::assert_none(builder.store());
            }
        }
    }
}

/// `emptyDir: {medium: Memory}`.
struct Memory(TempDir);

impl Memory {
    fn of_size(size: &str) -> Self {
        let directory = scratch();
        let options = format!("size={size},mode=777");
        let mut mount = Command::new("mount");
        finish(mount.args(["-t", "tmpfs", "-o", &options, "none"]).arg(directory.path())).success();
        Self(directory)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

/// A pod with a read-only root, its store in memory; `CONTEXT` and `/memory` are volumes.
fn pod(profile: Profile, context: &Context, memory: &Memory) -> Pod {
    let pod = Pod::new(profile).read_only_root();
    pod.mount(context.path(), CONTEXT, Access::ReadOnly).mount(memory.0.path(), "/memory", Access::ReadWrite)
}

const CONTEXT: &str = "/workspace";

#[test]
fn pods_of_all_kinds_need_no_more_than_a_volume_even_in_memory() {
    if !pod::available("pods_of_all_kinds_need_no_more_than_a_volume_even_in_memory") {
        return;
    }
    let context = context();
    fs::set_permissions(context.path(), fs::Permissions::from_mode(0o755)).expect("mode");
    let arguments = ["builder", "--no-push", "--build-arg=SOURCE_DATE_EPOCH=1700000000"];
    let expected = Builder::new()
        .run(arguments[1..].iter().copied().chain(["-c", context.path().to_str().expect("path")]));
    let expected = expected.success().stdout;
    for (profile, strategy, snapshotter) in [
        (Profile::Privileged, "", "overlayfs"),
        (Profile::Sysadmin, "", "overlayfs"),
        (Profile::Unset, "isolation: user-namespace", "overlayfs"),
        (Profile::HostusersFalseUnmasked, "isolation: user-namespace", "overlayfs"),
        (Profile::Rootless, "isolation: user-namespace", "overlayfs"),
        (Profile::Default, "isolation: chroot", "native"),
    ] {
        let memory = Memory::of_size("64m");
        let snapshotter = format!("--snapshotter={snapshotter}");
        for store in ["--store=/memory/store", "--store=/data/store"] {
            let pod = pod(profile, &context, &memory);
            let finished = pod.run(&[&arguments[..], &[store, &snapshotter]].concat()).success();
            assert_eq!(finished.stdout, expected, "{profile:?}: {}", finished.stderr);
            assert!(finished.stderr.contains(strategy), "{profile:?}: {}", finished.stderr);
            let left = finish(Command::new("ls").arg(memory.0.path().join("store/tmp"))).success().stdout;
            assert_eq!(left, "", "{profile:?}");
        }
        let full = Memory::of_size("1m");
        let finished = pod(profile, &context, &full)
            .run(&[&arguments[..], &["--store=/memory/store", &snapshotter]].concat())
            .exited(1);
        let hint = ["hint: the disk that holds the store `/memory/store` had too little room"];
        assert!(finished.says(&hint), "{profile:?}: {}", finished.stderr);
        let without = ["env", "-u", "BUILDER_STORE", "-u", "HOME"];
        let finished = pod(profile, &context, &memory).run(&[&without, &arguments[..]].concat()).exited(1);
        let hint = ["hint:", "in a pod, mount a volume at `/var/lib/builder`"];
        assert!(finished.says(&hint), "{profile:?}: {}", finished.stderr);
    }
    // Where the container's root is all that there is for steps, it must be theirs.
    let memory = Memory::of_size("64m");
    let pod = pod(Profile::Crio, &context, &memory).own_image();
    let finished = pod.run(&arguments).exited(1);
    let cause = ["in-place: the root file system can only be read", "readOnlyRootFilesystem: false"];
    assert!(finished.says(&cause), "{finished:?}");
}

#[test]
fn without_a_volume_the_one_to_add_is_named() {
    let context = Context::new("FROM scratch\nCOPY Dockerfile /\n");
    let context = context.path().to_str().expect("path");
    let out = scratch();
    for command in ["build", "plan"] {
        let prelude = format!("{READ_ONLY}unset BUILDER_STORE; exec \"$@\"");
        let finished = after(&Builder::new(), out.path(), &prelude, &[command, "--no-push", "-c", context]);
        let finished = finished.exited(1);
        for words in [
            ["error: cannot write to the store", "`/var/lib/builder"],
            ["caused by: Read-only file system", ""],
            ["hint: in a pod, mount a volume at `/var/lib/builder`", "emptyDir"],
        ] {
            assert!(finished.says(&words), "{command}: {words:?}\n{}", finished.stderr);
        }
    }
}

#[test]
fn a_volume_that_belongs_to_another_needs_a_group() {
    let context = Context::new("FROM scratch\nCOPY Dockerfile /\n");
    let out = scratch();
    let prelude = "mount -t tmpfs -o mode=755 none /var/lib; cd /var/lib; mkdir context store; touch program
        mount -t tmpfs -o mode=755 none store; mount --bind \"$3\" context; mount --bind \"$1\" program
        chmod 755 context; chmod 644 context/Dockerfile; export BUILDER_STORE=/var/lib/store
        exec setpriv --reuid=54321 --regid=54321 --clear-groups ./program --no-push -c context";
    let context = context.path().to_str().expect("path");
    let finished = after(&Builder::new(), out.path(), prelude, &["-c", context]).exited(1);
    assert!(finished.says(&["error: cannot write to the store", "`/var/lib/store/version`"]), "{finished:?}");
    assert!(finished.says(&["hint: this user may not write there", "`fsGroup`"]), "{finished:?}");
}

/// As OpenShift starts containers: nobody has given the user a name, a home or a group of its own.
#[test]
fn a_user_without_name_and_home_has_the_store_on_the_volume_of_pods() {
    let context = Context::new(&format!(
        "FROM {}\nCOPY Dockerfile /\nRUN id -u && touch /made && chmod 700 /made\n",
        ground().name("busybox:latest")
    ));
    let context = context.path().to_str().expect("path");
    for home in ["export HOME=/", "unset HOME"] {
        let out = scratch();
        let prelude = format!(
            "mount -t tmpfs -o mode=755 none /var/lib; cd /var/lib; mkdir -m 777 builder; mkdir context; touch program
            mount --bind \"$3\" context; mount --bind \"$1\" program
            chmod 755 context; chmod 644 context/Dockerfile; {home}; unset BUILDER_STORE
            setpriv --reuid=1000680000 --regid=0 --clear-groups ./program --no-push -c context; ls builder"
        );
        let finished = after(&Builder::new(), out.path(), &prelude, &["-c", context]).success();
        assert!(finished.says(&["] | 0"]), "{finished:?}");
        assert!(finished.stdout.ends_with("\nversion\n"), "{finished:?}");
    }
}
