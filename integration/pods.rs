//! `builder` in pods of every kind.

mod canaries;
mod cost;
mod in_place;
mod matrix;

use std::fs;

use crate::support::ground::ground;
use crate::support::pod::{self, Access, Pod, Profile, shared_scratch};
use crate::support::{Context, Finished};

#[test]
fn the_program_starts_in_every_pod() {
    if !pod::available("the_program_starts_in_every_pod") {
        return;
    }
    for profile in Profile::ALL {
        let version = Pod::new(profile).run(&["builder", "version"]).success();
        assert!(version.stdout.contains(env!("CARGO_PKG_VERSION")), "{profile:?}: {version:?}");
    }
}

#[test]
fn a_small_pod_builds_what_is_larger_than_its_memory() {
    if !pod::available("a_small_pod_builds_what_is_larger_than_its_memory") {
        return;
    }
    let base = ground().name("busybox:latest");
    let context = Context::new(&format!(
        "FROM {base}\nRUN dd if=/dev/zero of=/large bs=1M count=200\nRUN rm /bin/vi\n"
    ));
    let place = shared_scratch();
    fs::copy(context.path().join("Dockerfile"), place.path().join("Dockerfile")).expect("copy");
    for (profile, isolation) in [
        (Profile::Privileged, "mount-namespace"),
        (Profile::Unset, "user-namespace"),
        (Profile::Default, "chroot"),
        (Profile::Crio, "in-place"),
    ] {
        let pod = Pod::new(profile).memory(100 << 20).mount(place.path(), "/workspace", Access::ReadOnly);
        let isolation = format!("--isolation={isolation}");
        pod.run(&["builder", "--no-push", "--context=/workspace", &isolation]).success();
    }
}

/// Where all ways work, on one store.
#[test]
fn a_step_in_place_leaves_no_result_to_builds_that_keep_theirs_apart() {
    if !pod::available("a_step_in_place_leaves_no_result_to_builds_that_keep_theirs_apart") {
        return;
    }
    let pod = Pod::new(Profile::Privileged);
    let base = ground().name("busybox:latest");
    pod.write("run/Dockerfile", format!("FROM {base}\nRUN ls /data /proc | wc -l >/n\n"));
    // Root in a user namespace has other owners to give, and so a cache of its own anyway.
    for isolation in ["in-place", "chroot", "mount-namespace", "user-namespace"] {
        let isolation = format!("--isolation={isolation}");
        let build = ["builder", "--no-push", "--context=/data/run", &isolation];
        let [first, second] = [&build, &build].map(|build| pod.run(build).success());
        let found = |finished: &Finished| finished.stderr.contains("CACHED [2/2]");
        assert!(!found(&first) && found(&second), "{isolation}: {}{}", first.stderr, second.stderr);
    }
}

/// In a user namespace binfmt_misc mounts as a list of its own, which would hide the machine's.
#[test]
fn programs_for_another_processor_run_in_every_way() {
    if !pod::available("programs_for_another_processor_run_in_every_way") {
        return;
    }
    let base = ground().name("busybox:latest");
    for (profile, isolation) in [
        (Profile::Privileged, "mount-namespace"),
        (Profile::Privileged, "user-namespace"),
        (Profile::Sysadmin, "user-namespace"),
        (Profile::Unset, "user-namespace"),
        (Profile::HostusersFalseUnmasked, "user-namespace"),
        (Profile::Rootless, "user-namespace"),
        (Profile::Default, "chroot"),
        (Profile::Crio, "in-place"),
    ] {
        let pod = Pod::new(profile);
        pod.write("context/Dockerfile", format!("FROM {base}\nRUN uname -m\nRUN echo $((6 * 7))\n"));
        let isolation = format!("--isolation={isolation}");
        let arguments = ["--no-push", "--context=/data/context", "--custom-platform=linux/arm/v7"];
        let build = pod.run(&[&["builder", &isolation], &arguments[..]].concat()).success();
        assert!(build.says(&["armv7l"]) && build.says(&["42"]), "{profile:?}: {}", build.stderr);
    }
}

/// Two pods in which a RUN can only be run in place, which nobody has asked for.
#[test]
fn in_place_is_named_where_nothing_else_works_and_not_taken() {
    if !pod::available("in_place_is_named_where_nothing_else_works_and_not_taken") {
        return;
    }
    let base = ground().name("busybox:latest");
    for profile in [Profile::Crio, Profile::HostusersFalse] {
        let pod = Pod::new(profile);
        pod.write("runs/Dockerfile", format!("FROM {base}\nCOPY . /x/\nRUN true\n"));
        pod.write("copies/Dockerfile", format!("FROM {base}\nCOPY . /x/\nWORKDIR /y\n"));
        let build = |context| ["builder", "--no-push", "--context", context];
        let runs = pod.run(&build("/data/runs")).exited(1);
        assert!(runs.says(&["--isolation=in-place"]), "{profile:?}: {}", runs.stderr);
        assert!(runs.says(&["Dockerfile:3"]), "{profile:?}: {}", runs.stderr);
        pod.run(&build("/data/copies")).success();
        let doctor = pod.run(&["builder", "doctor"]).exited(1);
        let words = doctor.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("only with --isolation=in-place"), "{profile:?}: {}", doctor.stdout);
    }
}

#[test]
fn apparmor_is_named_where_it_refuses_mounts() {
    if !pod::available("apparmor_is_named_where_it_refuses_mounts") {
        return;
    }
    for (profile, stronger) in [(Profile::Unset, "user-namespace"), (Profile::Sysadmin, "mount-namespace")] {
        let doctor = Pod::new(profile).refuse_mounts().run(&["builder", "doctor"]).success();
        let lines = doctor.stdout.lines().skip_while(|line| !line.trim_start().starts_with(stronger));
        let row = lines.take(4).collect::<Vec<_>>().join(" ");
        assert!(row.contains("no") && row.contains("AppArmor"), "{profile:?}: {}", doctor.stdout);
        let chroot = doctor.stdout.lines().find(|line| line.trim_start().starts_with("* chroot "));
        assert!(chroot.is_some_and(|line| line.contains(" yes ")), "{profile:?}: {}", doctor.stdout);
        let text = Pod::new(profile).run(&["builder", "doctor"]).success().stdout;
        assert!(!text.contains("AppArmor"), "{profile:?} without it: {text}");
    }
}

/// In place also with a store on another file system, from which a cache can only be copied.
#[test]
fn caches_stay_in_every_way() {
    if !pod::available("caches_stay_in_every_way") {
        return;
    }
    let base = ground().name("busybox:latest");
    for (profile, isolation, store) in [
        (Profile::Privileged, "mount-namespace", "/data/store"),
        (Profile::Unset, "user-namespace", "/data/store"),
        (Profile::Default, "chroot", "/data/store"),
        (Profile::Crio, "in-place", "/data/store"),
        (Profile::Crio, "in-place", "/store"),
    ] {
        let pod = Pod::new(profile);
        pod.write(
            "context/Dockerfile",
            format!(
                "FROM {base}\nRUN --mount=type=cache,target=/old/c,mode=0750,uid=5 stat -c '%a %u:%g' /old/c; \
                 ls /old/c | wc -l; echo x >/old/c/$(ls /old/c | wc -l); mkdir /old/c/d; chown 7:8 /old/c/d; true\n\
                 RUN --mount=type=cache,id=/old/c,target=/c,mode=0750,uid=5 stat -c %u:%g /c/d; test ! -e /old\n"
            ),
        );
        let isolation = format!("--isolation={isolation}");
        let build =
            format!("builder --no-push --no-cache {isolation} --store={store} --context=/data/context");
        let both = pod.run(&["sh", "-c", &format!("{build} && {build}")]).success();
        let lines = both.stderr.lines().filter_map(|line| line.split_once("] | "));
        let found: Vec<&str> = lines.map(|(_, text)| text).collect();
        let expected = ["750 5:0", "0", "7:8", "750 5:0", "2", "7:8"];
        let found: Vec<&str> = found.into_iter().filter(|line| !line.contains("File exists")).collect();
        assert_eq!(found, expected, "{profile:?} {isolation} {store}: {}", both.stderr);
    }
}
