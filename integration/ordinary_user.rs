//! Builds by ordinary users: in a user namespace of their own, with many ids or with one.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::ground::ground;
use crate::support::oci::{Entry, LayoutImage, pull};
use crate::support::traces::{self, Family, Running};
use crate::support::tree::{self, Times};
use crate::support::user::User;
use crate::support::{Builder, Context, Finished, finish, scratch};

/// What RUN printed.
fn output(finished: &Finished) -> Vec<&str> {
    finished.stderr.lines().filter_map(|line| Some(line.split_once("] | ")?.1)).collect()
}

/// Steps that need what an ordinary user lacks: owners, and directories of lower layers that go and come again.
const STEPS: &str = r#"
RUN id && mkdir -p /d/sub && echo 1 >/d/sub/one && echo 2 >/d/two && ln /d/two /d/hard && mkfifo /d/pipe
COPY --chown=1000:1001 Dockerfile /own/
COPY --chown=7 busybox /own/tool
RUN rm -rf /d && mkdir /d && touch /d/new && chown -R 5:6 /d && chmod 2750 /d
RUN rm -rf /home /own/Dockerfile && mkdir /home && ln /own/tool /own/tool-too && chown 70:71 /home
WORKDIR /work/of
USER user
WORKDIR /tmp/mine
RUN id && touch mine && ! touch /work/of/mine
USER 4242:4343
RUN id; grep -E '^(Cap|Groups)' /proc/self/status
"#;

fn dockerfile(steps: &str) -> String {
    let base = ground().name("busybox:latest");
    format!(
        "FROM {base} AS one\n{steps}\nFROM {base}\nUSER 0\nCOPY --from=one / /from/\nCOPY --from=one --chown=user /d /e\nRUN find /from /e | xargs ls -lnd >/list\n"
    )
}

const NATIVE: [&str; 1] = ["--custom-platform=linux/amd64"];

/// An image without the times at which its steps ran.
struct Shown {
    tree: Vec<String>,
    layers: Vec<Vec<Entry>>,
    config: Value,
}

impl Shown {
    fn of(layout: &Path, tag: &str) -> Self {
        let image = LayoutImage::only(layout);
        let mut layers = image.layer_entries(layout);
        layers.iter_mut().flatten().for_each(|entry| entry.mtime = 0);
        let mut config = image.raw_config.clone();
        config["created"].take();
        config["rootfs"]["diff_ids"].take();
        config["history"].as_array_mut().into_iter().flatten().for_each(|row| drop(row["created"].take()));
        let tree = tree::of_layout(layout, tag, Times::Hidden);
        Self { tree: tree.lines().map(|line| format!("{line}\n")).collect(), layers, config }
    }

    #[track_caller]
    fn assert_same_tree(&self, other: &Self) {
        let differences = self.tree.iter().zip(&other.tree).filter(|(one, other)| one != other);
        assert_eq!(differences.collect::<Vec<_>>(), []);
        assert_eq!(self.tree.len(), other.tree.len());
    }

    #[track_caller]
    fn assert_same(&self, other: &Self) {
        self.assert_same_tree(other);
        assert_eq!(self.config, other.config);
        for (one, other) in self.layers.iter().flatten().zip(other.layers.iter().flatten()) {
            assert_eq!(one, other);
        }
        let lengths = |shown: &Self| shown.layers.iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(lengths(self), lengths(other));
    }
}

#[test]
fn a_user_with_ids_builds_what_root_builds() {
    let ground = ground();
    let user = User::with_ranges();
    let context = user.context(&dockerfile(STEPS));
    let repository = format!("ordinary-{}/ranges", std::process::id());
    let names = ["root", "user"].map(|tag| ground.name(&format!("{repository}:{tag}")));
    let build = |command: &mut Command, name: &str| {
        finish(command.args(NATIVE).args(["-d", name, "-c"]).arg(&context)).success()
    };
    let by_root = build(&mut Builder::new().command(), &names[0]);
    let outputs = ["layout", "image.tar", "digest"].map(|output| user.path(output));
    let flags = ["--oci-layout-path", "--tar-path", "--digest-file"];
    let mut command = user.command();
    for (flag, path) in flags.iter().zip(&outputs) {
        command.arg(flag).arg(path);
    }
    let by_user = build(&mut command, &names[1]);
    assert!(output(&by_user).contains(&"uid=1000(user) gid=1001(ugrp) groups=1001(ugrp),2000(supp)"));
    assert_eq!(output(&by_user), output(&by_root));
    let out = scratch();
    let [by_root_image, by_user_image] = ["root", "user"].map(|tag| {
        let layout = out.path().join(tag);
        pull(&ground.name(&format!("{repository}:{tag}")), &layout);
        Shown::of(&layout, "image")
    });
    by_user_image.assert_same(&by_root_image);
    for line in ["/from/d/new file 0644 5:6 0 -\n", "/e/new file 0644 1000:1001 0 -\n"] {
        assert!(by_user_image.tree.iter().any(|found| found == line), "no {line}");
    }
    for path in outputs.iter().chain([&user.store(), &outputs[0].join("index.json")]) {
        let metadata = fs::metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!((metadata.uid(), metadata.gid()), (user.uid, user.gid), "{}", path.display());
    }
    traces::assert_none(&user.store());
    // The layers are there for the next build, under the name of these ids.
    let kinds: Vec<_> = fs::read_dir(user.store().join("unpacked")).expect("unpacked").flatten().collect();
    let [kind] = &kinds[..] else { panic!("{kinds:?}") };
    let name = kind.file_name().into_string().expect("a name");
    assert!(name.starts_with(&format!("0-{}-1_1-", user.uid)) && name.ends_with(".user.v2"), "{name}");
    let again = build(user.command().args(["-v", "debug", "--no-cache"]), &names[1]);
    assert!(again.says(&["is unpacked already"]), "{}", again.stderr);
}

/// Owners that even a user with many ids does not have.
const FAR_STEPS: &str = r#"
COPY --chown=1000000:7 busybox /far/tool
COPY --chown=70000:70000 Dockerfile /far/own
COPY --chown=5:70000 --chmod=6711 busybox /far/half
RUN touch /far/new && chown 70 /far/tool && chown 5:6 /far/own && chgrp 8 /far/half && chmod 6711 /far/half
"#;

#[test]
fn owners_beyond_the_ids_of_a_user_are_the_same_as_root_s() {
    let user = User::with_ranges();
    let base = ground().name("busybox:latest");
    let context =
        user.context(&format!("FROM {base} AS one\n{FAR_STEPS}\nFROM {base}\nCOPY --from=one /far /far\n"));
    let layouts = [user.path("by-user"), user.path("by-root")];
    for (mut command, layout) in [user.command(), Builder::new().command()].into_iter().zip(&layouts) {
        let arguments = ["--no-push", "-d", "x.example/x:latest", "--oci-layout-path"];
        finish(command.args(NATIVE).args(arguments).arg(layout).arg("-c").arg(&context)).success();
    }
    let [by_user, by_root] = layouts.each_ref().map(|layout| Shown::of(layout, "latest"));
    by_user.assert_same(&by_root);
    for line in ["/far/tool file 0755 70:7 ", "/far/own file 0644 5:6 ", "/far/half file 6711 5:8 "] {
        assert!(by_user.tree.iter().any(|found| found.starts_with(line)), "no {line}");
    }
}

/// Steps on nothing, by the program that is copied there: every file of them belongs to 0:0.
const OWN_STEPS: &str = r#"FROM scratch AS one
COPY busybox /bin/busybox
SHELL ["/bin/busybox", "sh", "-c"]
RUN /bin/busybox --install -s /bin && mkdir -p /d/sub /etc && echo 1 >/d/sub/one
RUN rm -rf /d && mkdir /d && touch /d/new && chown 0:0 /d/new && mkfifo /d/pipe && ln /bin/busybox /d/hard
RUN id -u; id -g; echo /proc/[0-9]*
WORKDIR /work
FROM scratch
COPY --from=one / /
COPY Dockerfile /d/
"#;

#[test]
fn a_user_with_one_id_builds_what_needs_no_other() {
    let user = User::with_single_id();
    let context = user.context(OWN_STEPS);
    let layouts = [user.path("by-user"), user.path("by-root")];
    let build = |command: &mut Command, layout: &Path| {
        let command =
            command.args(NATIVE).args(["--no-push", "-d", "x.example/x:latest", "--oci-layout-path"]);
        let command = command.arg(layout);
        finish(command.arg("-c").arg(&context)).success()
    };
    let by_user = build(&mut user.command(), &layouts[0]);
    let by_root = build(&mut Builder::new().command(), &layouts[1]);
    assert_eq!(output(&by_user), output(&by_root));
    let [by_user_image, by_root_image] = layouts.each_ref().map(|layout| Shown::of(layout, "latest"));
    by_user_image.assert_same(&by_root_image);
    let says =
        ["only users 0 and groups 0", "`ground-single` has no ids in /etc/subuid", "usermod --add-subuids"];
    assert!(by_user.says(&says), "{}", by_user.stderr);
    assert!(!by_root.says(&["only users"]), "{}", by_root.stderr);
}

/// What a step saw as root is not what it sees with one id: owners of files, and which of them it may change.
#[test]
fn a_user_with_one_id_and_root_share_a_store_but_no_results() {
    let user = User::with_single_id();
    let base = ground().name("busybox:latest");
    let context = user.context(&format!(
        "FROM {base}\nCOPY --chown=7:7 busybox /of/seven\nRUN stat -c %u /of/seven >/owner\n"
    ));
    let build = |mut command: Command, name: &str| {
        let layout = user.path(name);
        command.args(NATIVE).args(["--no-push", "-d", "x.example/x:latest", "--oci-layout-path"]);
        let finished = finish(command.arg(&layout).arg("-c").arg(&context)).success();
        (finished, Shown::of(&layout, "latest"))
    };
    let (root, apart) = (Builder::new(), Builder::new());
    let of_root = || {
        let mut command = root.command();
        command.arg("--store").arg(user.store());
        command
    };
    let (by_user, _) = build(user.command(), "by-user");
    let (by_root, of_shared_store) = build(of_root(), "by-root");
    let (_, of_own_store) = build(apart.command(), "apart");
    assert!(!by_user.says(&["CACHED"]) && !by_root.says(&["CACHED"]), "{}", by_root.stderr);
    of_shared_store.assert_same(&of_own_store);
    // Each finds its own, and what one has written is no obstacle to the other.
    for (command, before, name) in
        [(user.command(), by_user, "user-again"), (of_root(), by_root, "root-again")]
    {
        let (again, _) = build(command, name);
        assert_eq!(again.stdout, before.stdout, "{}", again.stderr);
        assert!(["CACHED [2/3]", "CACHED [3/3]"].iter().all(|step| again.says(&[step])), "{}", again.stderr);
    }
}

/// Steps that give files to many, and others that leave them what they are. RUN itself chowns nothing.
const FOREIGN_STEPS: &str = r#"
COPY --chown=1000:1001 archive.tar /own/file
COPY --chown=7 busybox /own/tool
COPY --chown=70000:4242 --chmod=6755 busybox /own/set-id
ADD archive.tar /add/
WORKDIR /work/of
USER user
WORKDIR /tmp/mine
USER 0
RUN echo more >>/own/file && touch /tmp/mine/new && chmod 700 /own
RUN mv /own/tool /own/renamed && rm /add/gone && echo again >/add/gone
RUN rm -rf /home && mkdir /home && rm /add/disk
"#;

fn archive() -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut add = |name: &str, kind, mode, owner: (u64, u64), device: (u32, u32), link: &str| {
        let mut header = tar::Header::new_ustar();
        header.set_path(name).expect("path");
        if !link.is_empty() {
            header.set_link_name(link).expect("link");
        }
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(owner.0);
        header.set_gid(owner.1);
        header.set_device_major(device.0).expect("major");
        header.set_device_minor(device.1).expect("minor");
        header.set_mtime(1_000_000_000);
        header.set_size(0);
        header.set_cksum();
        archive.append(&header, &[][..]).expect("entry");
    };
    use tar::EntryType as Kind;
    add("d/", Kind::Directory, 0o2750, (12, 13), (0, 0), "");
    add("d/shadow", Kind::Regular, 0o640, (0, 42), (0, 0), "");
    add("d/link", Kind::Symlink, 0o777, (3, 4), (0, 0), "shadow");
    add("d/hard", Kind::Link, 0o640, (0, 42), (0, 0), "d/shadow");
    add("d/pipe", Kind::Fifo, 0o622, (5, 6), (0, 0), "");
    add("null", Kind::Char, 0o666, (0, 0), (1, 3), "");
    add("disk", Kind::Block, 0o660, (0, 6), (8, 1), "");
    add("gone", Kind::Regular, 0o644, (9, 9), (0, 0), "");
    archive.into_inner().expect("archive")
}

/// The disk holds neither those owners nor the devices; the image has them.
#[test]
fn a_user_with_one_id_builds_images_that_have_files_of_others() {
    let user = User::with_single_id();
    let context = user.context(&format!(
        "FROM {base} AS one\n{FOREIGN_STEPS}\nFROM {base}\nCOPY --from=one / /from/\nCOPY --from=one --chown=user /own /e\n",
        base = ground().name("busybox:latest")
    ));
    fs::write(context.join("archive.tar"), archive()).expect("archive");
    let layouts = ["by-user", "by-root", "again", "native"].map(|name| user.path(name));
    let build = |command: &mut Command, layout: &Path| {
        let command =
            command.args(NATIVE).args(["--no-push", "-d", "x.example/x:latest", "--oci-layout-path"]);
        finish(command.arg(layout).arg("-c").arg(&context)).success()
    };
    let by_user = build(&mut user.command(), &layouts[0]);
    build(user.command().args(["--no-cache", "--snapshotter=native"]), &layouts[3]);
    let by_root = build(&mut Builder::new().command(), &layouts[1]);
    assert!(by_user.says(&["only users 0 and groups 0"]), "{}", by_user.stderr);
    assert!(!by_user.says(&["left out"]) && !by_root.says(&["left out"]), "{}", by_user.stderr);
    // What a later build finds in the store is as good: its last steps alone are done again.
    let dockerfile = fs::read_to_string(context.join("Dockerfile")).expect("Dockerfile");
    let dockerfile = dockerfile.replace("COPY --from=one / /from/", "COPY --from=one /. /from");
    fs::write(context.join("Dockerfile"), dockerfile).expect("Dockerfile");
    let later = build(&mut user.command(), &layouts[2]);
    let as_expected = later.says(&["CACHED [one 12/12]"]) && later.says(&["[stage-1 2/3] done"]);
    assert!(as_expected, "{}", later.stderr);
    let [by_user_image, by_root_image, again, native] =
        layouts.each_ref().map(|layout| Shown::of(layout, "latest"));
    by_user_image.assert_same(&by_root_image);
    native.assert_same(&by_root_image);
    again.assert_same_tree(&by_root_image);
    for line in [
        "/from/own directory 0700 1000:1001",
        "/from/own/file file 0644 1000:1001",
        "/from/own/renamed file 0755 7:7",
        "/from/own/set-id file 6755 70000:4242",
        "/from/add/d directory 2750 12:13",
        "/from/add/d/shadow file 0640 0:42",
        "/from/add/null ",
        "/from/add/gone file 0644 0:0",
        "/from/tmp/mine directory 0755 1000:1001",
        "/from/tmp/mine/new file 0644 0:0",
        "/e/renamed file 0755 1000:1001",
    ] {
        assert!(by_user_image.tree.iter().any(|found| found.starts_with(line)), "no {line}");
    }
    // A directory of the user's own has no place for what the disk does not hold: that is said, and nothing stands there
    // instead.
    let directory = user.path("extracted");
    let mut extract = user.command();
    let extracted = finish(extract.args(["image", "extract"]).arg(&layouts[0]).arg(&directory)).success();
    for words in [["could not make 1 device", "/from/add/null"], ["could not set the owner of", ""]] {
        assert!(extracted.says(&words), "{words:?}: {}", extracted.stderr);
    }
    assert!(directory.join("from/own/file").is_file() && !directory.join("from/add/null").exists());
}

#[test]
fn with_one_id_what_needs_another_fails_and_says_why() {
    let user = User::with_single_id();
    let head = "FROM scratch\nCOPY busybox /bin/busybox\nSHELL [\"/bin/busybox\", \"sh\", \"-c\"]\n";
    let build = |steps: &str| {
        let context = user.context(&format!("{head}{steps}"));
        finish(user.command().args(["--no-push", "-c"]).arg(context))
    };
    let chown = build("RUN /bin/busybox chown 5:6 /bin/busybox\n").exited(1);
    assert!(chown.says(&["chown: /bin/busybox: Invalid argument"]), "{}", chown.stderr);
    assert!(chown.says(&["hint: the step had one user and one group id", "/etc/subuid"]), "{}", chown.stderr);
    for (user, message) in [
        ("1000", "the process needs user 1000, but this user namespace has only users 0"),
        ("0:7", "the process needs group 7, but this user namespace has only groups 0"),
    ] {
        let failed = build(&format!("USER {user}\nRUN true\n")).exited(1);
        assert!(failed.says(&[message]), "{user}: {}", failed.stderr);
    }
}

#[test]
fn a_user_that_no_range_has_is_named() {
    let user = User::with_ranges();
    let context = user.context(&format!("FROM {}\nUSER 70000\nRUN true\n", ground().name("busybox:latest")));
    let failed = finish(user.command().args(["--no-push", "-c"]).arg(context)).exited(1);
    assert!(failed.says(&["needs user 70000", "only users 0-65536"]), "{}", failed.stderr);
    assert!(failed.says(&["hint: ", "/etc/subuid"]), "{}", failed.stderr);
}

/// What a step tries that it must not be able to do, and looks at what it must not see.
const PROBES: &str = r#"
RUN echo /proc/[0-9]*; cat /proc/1/comm; kill -9 -1 2>/dev/null; echo alive
RUN grep -E '^(Cap|Seccomp:|NoNewPrivs)' /proc/self/status; umask; ulimit -c
RUN for place in /proc/sys /sys/firmware /proc/keys /sys /dev/null /; do umount $place 2>/dev/null && echo unmounted $place; done; echo tried
RUN for place in /proc/sys /sys/firmware /proc/keys /sys /dev/null; do unshare -Urm umount $place 2>/dev/null && echo unmounted $place; done; echo tried
RUN unshare -Urm id -u; unshare -Urm mount -t proc proc /proc 2>/dev/null && echo mounted; mount -t tmpfs none /tmp 2>/dev/null && echo mounted; echo tried
RUN echo 1 2>/dev/null >/proc/sys/kernel/sysrq || echo refused; mkdir /sys/x 2>/dev/null || echo refused; chroot /proc/1/root/.. ls / | head -3
RUN ls /sys/fs/cgroup /sys/kernel/debug /sys/kernel/security 2>/dev/null | wc -l; wc -c </proc/keys; ls -l /dev | cut -c 1-10; ls /dev; hostname
RUN ls -l /proc/self/fd 2>/dev/null | grep -c -v -E "pipe:|/dev/null|/proc/|total"; readlink /proc/1/exe; cat /proc/self/cgroup | cut -d: -f3 | sort -u
"#;

#[test]
fn a_step_in_a_user_namespace_can_do_and_see_no_more_than_under_root() {
    let user = User::with_ranges();
    let base = ground().name("busybox:latest");
    let context = user.context(&format!("FROM {base}\n{PROBES}"));
    let arguments = ["--no-push", "--custom-platform=linux/amd64", "-c"];
    let by_user = finish(user.command().args(arguments).arg(&context)).success();
    let by_root = finish(Builder::new().command().args(arguments).arg(&context)).success();
    let lines = [output(&by_user), output(&by_root)];
    assert_eq!(lines[0], lines[1]);
    assert!(lines[0].iter().all(|line| !line.contains("mounted")), "{lines:?}");
    assert_eq!(lines[0].iter().filter(|line| **line == "tried").count(), 3, "{lines:?}");
    assert!(lines[0].contains(&"Seccomp:\t2"), "{lines:?}");
}

#[test]
fn emulators_of_the_machine_work_in_a_user_namespace() {
    let user = User::with_ranges();
    let base = ground().name("busybox:latest");
    let context = user.context(&format!("FROM {base}\nRUN uname -m && rm -rf /home && echo $((6 * 7))\n"));
    let arguments = ["--no-push", "--custom-platform=linux/arm/v7", "-c"];
    let finished = finish(user.command().args(arguments).arg(&context)).success();
    assert_eq!(output(&finished), ["armv7l", "42"]);
}

/// Kills a build whose step has made files of many owners; nothing of it may be left.
fn killed(user: &User, kill: impl FnOnce(&Running, &Family)) {
    let base = ground().name("busybox:latest");
    let steps = "RUN mkdir -p /d/e && touch /d/e/f && chown -R 5:6 /d && chmod 700 /d && setsid sleep 1000 & echo ready; exec sleep 1000";
    let context = user.context(&format!("FROM {base}\nRUN touch /x && chown 1000 /x\n{steps}\n"));
    let mut running = Running::start(user.command().args(["--no-push", "-c"]).arg(&context));
    running.wait_for("| ready");
    let family = Family::of(running.id());
    assert!(family.size() >= 3, "{family:?}");
    let seen = traces::of(&user.store()).join("\n");
    for part in ["sees a mount of the store", "is left"] {
        assert!(seen.contains(part), "while it runs, no `{part}` in\n{seen}");
    }
    // Builder and janitor; the environment of the others is not the builder's.
    assert_eq!(processes_of(user).len(), 2, "{:?}", processes_of(user));
    kill(&running, &family);
    let finished = running.end(Duration::from_secs(5));
    assert_eq!(finished.code, None, "{finished:?}");
    traces::assert_empty(|| family.left());
}

/// The processes that were started with the user's home directory.
fn processes_of(user: &User) -> Vec<String> {
    let home = format!("HOME={}\0", user.home().display());
    let entries = fs::read_dir("/proc").expect("/proc").flatten().map(|entry| entry.path());
    let environ = |path: &PathBuf| fs::read(path.join("environ")).unwrap_or_default();
    let is_ours = |path: &PathBuf| String::from_utf8_lossy(&environ(path)).contains(&home);
    entries.filter(is_ours).map(|path| path.display().to_string()).collect()
}

#[test]
fn nothing_is_left_when_a_builder_is_killed() {
    let user = User::with_ranges();
    killed(&user, |running, _| running.signal(Signal::KILL));
    traces::assert_none(&user.store());
    traces::assert_empty(|| processes_of(&user));
}

#[test]
fn nothing_is_left_when_a_builder_s_group_is_killed() {
    let user = User::with_ranges();
    killed(&user, |running, _| running.signal_group(Signal::KILL));
    traces::assert_none(&user.store());
    traces::assert_empty(|| processes_of(&user));
}

#[test]
fn the_next_build_sweeps_files_of_any_owner() {
    let user = User::with_ranges();
    killed(&user, |running, _| {
        let janitor = processes_of(&user)
            .into_iter()
            .find(|process| {
                fs::read_to_string(format!("{process}/comm")).is_ok_and(|name| name == "builder-janitor\n")
            })
            .and_then(|process| {
                rustix::process::Pid::from_raw(process.strip_prefix("/proc/")?.parse().ok()?)
            });
        rustix::process::kill_process(janitor.expect("janitor"), Signal::KILL).expect("kill");
        running.signal(Signal::KILL);
    });
    assert!(!traces::of(&user.store()).is_empty(), "nothing to sweep");
    let context = user.context("FROM scratch\nCOPY Dockerfile /\n");
    finish(user.command().args(["--no-push", "-c"]).arg(context)).success();
    traces::assert_none(&user.store());
}

/// Runs a build by `script`, which finds the program and its arguments in `$@`.
fn build_by(user: &User, script: &str) -> Finished {
    let context = user.context("FROM scratch\nCOPY Dockerfile /\n");
    let mut command = user.other("/bin/sh");
    command
        .args(["-euc", script, "sh"])
        .arg(user.program())
        .args(["--no-push", "-v", "debug", "-c"])
        .arg(context)
        // To a process without rights that is called 0 the store of root would be the usual one.
        .env("BUILDER_STORE", user.store());
    finish(&mut command)
}

#[test]
fn where_user_namespaces_are_refused_the_cause_is_named() {
    let user = User::with_ranges();
    // Root of a namespace sets its limit, and then has no rights any more.
    let limit = "exec unshare --user --map-root-user sh -euc 'echo 0 >/proc/sys/user/max_user_namespaces; \
                 exec setpriv --bounding-set=-all --inh-caps=-all \"$@\"' sh \"$@\"";
    let finished = build_by(&user, limit).exited(1);
    assert!(finished.says(&["error: files cannot be given the owners"]), "{}", finished.stderr);
    assert!(
        finished.says(&[
            "user-namespace: `user.max_user_namespaces` is 0",
            "sysctl -w user.max_user_namespaces=15000"
        ]),
        "{}",
        finished.stderr
    );
    // A directory that is no mount point, with what a build looks at first.
    let root = user.path("root");
    fs::create_dir_all(root.join("proc")).expect("directory");
    fs::copy(user.program(), root.join("builder")).expect("program");
    fs::write(root.join("Dockerfile"), "FROM scratch\nCOPY Dockerfile /\n").expect("Dockerfile");
    let script = "mount -t proc proc \"$1/proc\"; mkdir -m 777 \"$1/store\"; exec chroot --userspec=\"$2\" \"$1\" \
                  /builder build --no-push --store /store -c /";
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-euc", script, "sh"])
        .arg(&root)
        .arg(format!("{}:{}", user.uid, user.gid));
    let finished = finish(&mut command).exited(1);
    assert!(
        finished.says(&["user-namespace: this process is in a chroot", "build outside of the chroot"]),
        "{}",
        finished.stderr
    );
}

#[test]
fn where_parts_of_proc_are_hidden_steps_have_that_proc_and_that_is_said() {
    let user = User::with_ranges();
    let context =
        user.context(&format!("FROM {}\nRUN ls -d /proc/bus /proc/self\n", ground().name("busybox:latest")));
    let script = "mount -t tmpfs none /proc/bus; exec setpriv --reuid=\"$1\" --regid=\"$2\" --clear-groups \"$3\" \
                  --no-push --store \"$4\" -c \"$5\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-euc", script, "sh"]).arg(user.uid.to_string()).arg(user.gid.to_string());
    command.arg(user.program()).arg(user.store()).arg(context).env("HOME", user.home());
    let finished = finish(&mut command).success();
    assert!(
        finished.says(&["isolation: user-namespace with the /proc of the container", "is not root"]),
        "{}",
        finished.stderr
    );
    traces::assert_none(&user.store());
}

#[test]
fn where_the_programs_that_map_ids_may_not_the_reason_is_told_and_one_id_is_used() {
    let user = User::with_ranges();
    let finished = build_by(&user, "exec setpriv --no-new-privs \"$@\"").success();
    assert!(finished.says(&["only users 0 and groups 0", "newuidmap: "]), "{}", finished.stderr);
    assert!(finished.says(&["newuidmap: ", "newgidmap: "]), "{}", finished.stderr);
    let mapped = build_by(&user, "exec \"$@\"").success();
    assert!(mapped.says(&["in a user namespace with users 0-65536 and groups 0-65536"]), "{}", mapped.stderr);
    assert!(!mapped.says(&["only users"]), "{}", mapped.stderr);
}

/// As in a container that root has been left in without CAP_SYS_ADMIN.
#[test]
fn root_without_the_right_to_mount_keeps_all_ids() {
    let user = User::with_ranges();
    let context = user.context(&dockerfile(STEPS));
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-sys_admin", "--inh-caps=-all"]).arg(env!("CARGO_BIN_EXE_builder"));
    let out = scratch();
    command.env("BUILDER_STORE", out.path()).args(["--no-push", "-v", "debug", "-c"]).arg(context);
    let finished = finish(&mut command).success();
    assert!(finished.says(&["in a user namespace with users 0-4294967294"]), "{}", finished.stderr);
    assert!(output(&finished).contains(&"uid=1000(user) gid=1001(ugrp) groups=1001(ugrp),2000(supp)"));
    assert!(out.path().join("unpacked/all.user.v2").is_dir());
}

#[test]
fn without_a_home_there_is_no_store_and_the_flag_is_named() {
    let user = User::with_single_id();
    let context = user.context("FROM scratch\nCOPY Dockerfile /\n");
    let mut command = user.command();
    command.env_remove("HOME").args(["--no-push", "-c"]).arg(&context);
    let finished = finish(&mut command).exited(1);
    assert!(finished.says(&["there is no place for the store", "HOME"]), "{}", finished.stderr);
    assert!(finished.says(&["--store"]), "{}", finished.stderr);
    for (variable, store) in [(user.path("data"), user.path("data/builder")), ("data".into(), user.store())] {
        finish(user.command().env("XDG_DATA_HOME", &variable).args(["--no-push", "-c"]).arg(&context))
            .success();
        assert!(store.join("version").is_file(), "{}", variable.display());
    }
}

#[test]
fn plans_need_no_namespace() {
    let user = User::with_single_id();
    let context = user.context("FROM scratch\nCOPY --chown=5 Dockerfile /\n");
    let script = "exec unshare --user --map-root-user sh -euc 'echo 0 >/proc/sys/user/max_user_namespaces; \
                  exec setpriv --bounding-set=-all --inh-caps=-all \"$@\"' sh \"$@\"";
    let mut command = user.other("/bin/sh");
    // To a process without rights that is called 0 the store of root would be the usual one.
    command.env("BUILDER_STORE", user.store());
    command.args(["-euc", script, "sh"]).arg(user.program()).arg("plan").arg("-c").arg(context);
    assert_eq!(finish(&mut command).success().json()["stages"].as_array().map(Vec::len), Some(1));
}

/// The machine's own nodes are in the step's /dev there, and root in the step owns them.
#[test]
fn without_the_right_to_mount_a_step_cannot_change_the_devices_of_the_machine() {
    let base = ground().name("busybox:latest");
    // The mode it has anyway: should it work, no harm is done.
    let context = Context::new(&format!(
        "FROM {base}\nRUN chmod 666 /dev/zero || echo kept; chown 0 /dev/null || echo kept; echo x >/dev/null; \
         echo x >>/dev/null; echo x | tee /dev/null; head -c 3 /dev/zero | wc -c; [ -w /dev/null ] && echo writable\n"
    ));
    let out = scratch();
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-sys_admin", "--inh-caps=-all"]).arg(env!("CARGO_BIN_EXE_builder"));
    command.env("BUILDER_STORE", out.path()).args(["--no-push", "-c"]).arg(context.path());
    let finished = finish(&mut command).success();
    let said = output(&finished);
    assert_eq!(said.iter().filter(|line| line.contains("Read-only file system")).count(), 2, "{said:?}");
    let said: Vec<_> = said.into_iter().filter(|line| !line.contains("Read-only file system")).collect();
    assert_eq!(said, ["kept", "kept", "x", "3", "writable"]);
}
