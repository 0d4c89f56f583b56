//! `builder doctor`, and the choice that a build makes, on this machine and with less than it allows.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::ground::ground;
use crate::support::pod::{self, Pod, Profile};
use crate::support::user::User;
use crate::support::{Builder, Context, Finished, finish, scratch};

/// What setpriv(1) takes away from root so that nothing is left that keeps a RUN apart: what CRI-O's containers lack.
const CRIO: &str = "-sys_admin,-setfcap,-sys_chroot,-mknod";

/// `program` with its arguments and environment, started by another one.
fn started_by(words: &[&str], program: &Command) -> Command {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).arg(program.get_program()).args(program.get_args());
    command.env_clear().envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    if let Some(directory) = program.get_current_dir() {
        command.current_dir(directory);
    }
    command
}

/// `command` by root without these capabilities, as `-NAME,-NAME`.
fn without(capabilities: &str, command: &Command) -> Command {
    let bounding_set = format!("--bounding-set={capabilities}");
    started_by(&["setpriv", &bounding_set, "--inh-caps=-all"], command)
}

fn doctor(builder: &Builder, arguments: &[&str]) -> Command {
    let mut command = builder.command();
    command.arg("doctor").args(arguments);
    command
}

/// The strategies of a report by their names.
fn strategies(report: &Value) -> BTreeMap<String, Value> {
    let list = report["isolation"]["strategies"].as_array().expect("strategies");
    list.iter().map(|tried| (tried["name"].as_str().expect("name").to_owned(), tried.clone())).collect()
}

#[track_caller]
fn assert_narrow(finished: &Finished) {
    // Paths are as long as they are.
    let lines = finished.stdout.lines().filter(|line| !line.starts_with("The store: "));
    let widest = lines.max_by_key(|line| line.chars().count()).unwrap_or_default();
    assert!(widest.chars().count() <= 80, "{widest}");
}

/// Everything below a directory.
fn listing(directory: &Path) -> String {
    finish(Command::new("find").arg(directory).args(["-printf", "%p %y %s %i\n"])).success().stdout
}

#[test]
fn root_of_a_machine_has_everything_and_the_store_stays_as_it_is() {
    let builder = Builder::new();
    let place = scratch();
    let store = place.path().join("not/there");
    let store = store.to_str().expect("path");
    let before = listing(place.path());
    let platforms = ["--custom-platform=linux/loong64,linux/arm/v8", "--platform", "windows/amd64"];
    let finished = finish(doctor(&builder, &["--output=json", "--store", store]).args(platforms)).success();
    assert_eq!(finished.stderr, "");
    let report = finished.json();
    assert_eq!(report["isolation"]["selected"], "mount-namespace");
    let found = strategies(&report);
    assert_eq!(found["mount-namespace"]["details"]["proc"], "own");
    assert_eq!(found["user-namespace"]["details"]["user_namespace"], "ranges");
    assert_eq!(found["chroot"]["details"]["proc"], "none");
    for strategy in ["mount-namespace", "user-namespace", "chroot"] {
        assert_eq!(found[strategy]["works"], true, "{}", found[strategy]);
    }
    assert_eq!(found["second-container"]["works"], false);
    assert_eq!(found["in-place"]["automatic"], false);
    assert_eq!(report["store"]["path"], store);
    assert_eq!(report["store"]["exists"], false);
    assert_eq!(report["store"]["snapshotter"], "overlayfs");
    let listed = report["platforms"].as_array().expect("platforms");
    let how = |name: &str| {
        let platform = listed.iter().find(|platform| platform["platform"] == name);
        platform.unwrap_or_else(|| panic!("no {name}"))["how"].as_str().expect("how").to_owned()
    };
    assert_eq!(how("windows/amd64"), "missing");
    assert!(["native", "handler", "own", "missing"].contains(&how("linux/loong64").as_str()));
    // The ground has this one.
    let arm = listed.iter().find(|platform| platform["platform"] == "linux/arm/v7").expect("arm");
    if arm["how"] != "native" && arm["how"] != "predecessor" {
        assert!(arm["handler"]["flags"].as_str().expect("flags").contains('F'), "{arm}");
    }
    // Neither a store, nor anything beside it; nor in one that is there.
    assert_eq!(listing(place.path()), before);
    finish(builder.command().args(["plan", "-c"]).arg(Context::new("FROM scratch\n").path())).success();
    let before = listing(builder.store());
    let text = finish(&mut doctor(&builder, &[])).success();
    assert_eq!(listing(builder.store()), before);
    assert_narrow(&text);
    assert!(text.stdout.contains("\n* mount-namespace "), "{}", text.stdout);
}

#[test]
fn an_ordinary_user_is_told_what_takes_root() {
    for (user, kind) in [(User::with_ranges(), "ranges"), (User::with_single_id(), "single")] {
        let mut command = user.command();
        let report = finish(command.args(["doctor", "-o", "json"])).success().json();
        assert_eq!(report["user"], user.uid);
        assert_eq!(report["isolation"]["selected"], "user-namespace");
        let found = strategies(&report);
        let details = &found["user-namespace"]["details"];
        assert_eq!(details["user_namespace"], kind);
        assert_eq!(details["shortage"].is_string(), kind == "single", "{details}");
        for strategy in ["mount-namespace", "chroot"] {
            assert_eq!(found[strategy]["cause"], format!("user {} is not root", user.uid));
        }
        assert_eq!(report["store"]["snapshotter"], "overlayfs");
        assert_eq!(report["store"]["path"].as_str(), user.store().to_str());
        assert!(!user.store().exists(), "a store was made");
        let mut homeless = user.command();
        let homeless = homeless.env("HOME", "/").args(["doctor", "-o", "json"]);
        let homeless = finish(homeless).success().json();
        assert_eq!(homeless["store"]["path"], "/var/lib/builder");
        assert_eq!(homeless["store"]["snapshotter"], Value::Null, "{homeless}");
        assert_eq!(homeless["isolation"]["files"], false, "{homeless}");
        assert!(!homeless["store"]["cause"].as_str().expect("cause").contains(".builder-"), "{homeless}");
        assert!(homeless["store"]["advice"].as_str().expect("advice").contains("--store"));
        let mut text = user.command();
        assert_narrow(&finish(text.arg("doctor")).success());
        // Nothing is missing that could be had, so nothing is said.
        let context = user.context("FROM scratch\nCOPY busybox /busybox\nRUN [\"/busybox\", \"true\"]\n");
        let built = finish(user.command().args(["--no-push", "-c"]).arg(&context)).success();
        assert!(!built.says(&["isolation:"]), "{}", built.stderr);
    }
}

#[test]
fn what_takes_more_than_there_is_is_refused_by_name() {
    let builder = Builder::new();
    let report = finish(&mut without("-sys_admin", &doctor(&builder, &["-o", "json"]))).success().json();
    assert_eq!(report["isolation"]["selected"], "user-namespace");
    let found = strategies(&report);
    assert_eq!(found["mount-namespace"]["cause"], "no CAP_SYS_ADMIN");
    assert!(found["mount-namespace"]["advice"].as_str().expect("advice").contains("CAP_SYS_ADMIN"));

    let none = finish(&mut without(CRIO, &doctor(&builder, &["-o", "json"]))).exited(1).json();
    assert_eq!(none["isolation"]["selected"], Value::Null);
    assert_eq!(none["isolation"]["files"], true, "copying takes no more than root has there");
    assert_eq!(
        strategies(&none)["user-namespace"]["cause"],
        "no CAP_SETFCAP, without which root cannot map ids"
    );
    assert_eq!(none["store"]["snapshotter"], "native");
    let text = finish(&mut without(CRIO, &doctor(&builder, &[]))).exited(1);
    assert!(text.stdout.contains("A build with a RUN fails; one without it"), "{}", text.stdout);

    let all = finish(&mut without("-all", &doctor(&builder, &[]))).exited(1);
    assert!(all.stdout.contains("and so does one that copies files"), "{}", all.stdout);
    assert_narrow(&all);
}

/// What keeps builder from filtering in a chroot, the lack of CAP_SYS_ADMIN, is usual in pods.
#[test]
fn whose_filter_of_system_calls_a_step_has_is_told_for_each_way() {
    if !pod::available("whose_filter_of_system_calls_a_step_has_is_told_for_each_way") {
        return;
    }
    let unfiltered = "system calls not filtered";
    for (profile, expected, words) in [
        (
            Profile::Default,
            [("chroot", "container"), ("in-place", "container")],
            "calls filtered as for builder",
        ),
        (Profile::Unset, [("user-namespace", "builder"), ("chroot", "none")], unfiltered),
        (Profile::Sysadmin, [("mount-namespace", "builder"), ("chroot", "builder")], ""),
    ] {
        let pod = Pod::new(profile);
        let commands: [&[&str]; 2] = [&["builder", "doctor", "--output=json"], &["builder", "doctor"]];
        let [json, text] = <[Finished; 2]>::try_from(pod.run_all(&commands)).expect("two");
        let found = strategies(&json.json());
        for (strategy, filter) in expected {
            assert_eq!(found[strategy]["details"]["seccomp"], filter, "{profile:?}: {strategy}");
        }
        let text = text.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(words), "{profile:?}: {text}");
        assert_eq!(text.contains(unfiltered), words == unfiltered, "{profile:?}: {text}");
    }
    // A build says the same of what it takes.
    let context = Context::new("FROM scratch\nLABEL a=b\n");
    let own = fs::read_to_string("/proc/self/status").expect("/proc");
    let around = if own.contains("Seccomp:\t2") { "filtered as those of builder" } else { "not filtered" };
    for (capabilities, said) in [("-sys_admin", true), ("-linux_immutable", false)] {
        let builder = Builder::new();
        let mut command = builder.command();
        command.args(["--no-push", "-v=debug", "--isolation=chroot", "-c"]).arg(context.path());
        let finished = finish(&mut without(capabilities, &command)).success();
        assert_eq!(finished.says(&["system calls of RUN are", around]), said, "{}", finished.stderr);
    }
}

/// A step that tells which namespaces it is in, and whether there is a /proc.
const TELLING: &str = "RUN readlink /proc/self/ns/user; readlink /proc/self/ns/mnt; ls -d /proc/self; echo pid $$; grep -c . /proc/self/uid_map; echo end\n";

#[test]
fn a_build_is_kept_apart_as_it_is_told() {
    let context = Context::new(&format!("FROM {}\n{TELLING}", ground().name("busybox:latest")));
    let machine = |name: &str| fs::read_link(format!("/proc/self/ns/{name}")).expect("namespace");
    let output = |finished: &Finished| {
        let lines = finished.stderr.lines().filter_map(|line| Some(line.split_once("] | ")?.1.to_owned()));
        lines.collect::<Vec<String>>()
    };
    for strategy in ["mount-namespace", "user-namespace", "chroot"] {
        let builder = Builder::new();
        let mut command = builder.command();
        // The flag wins.
        command.env("BUILDER_ISOLATION", "nonsense").arg(format!("--isolation={strategy}"));
        let finished = finish(command.args(["--no-push", "-v", "debug", "-c"]).arg(context.path())).success();
        let said = output(&finished);
        let [user, mounts] = ["user", "mnt"].map(|name| {
            let inside = said.iter().find(|line| line.starts_with(&format!("{name}:")));
            inside.map(|inside| *inside != machine(name).to_string_lossy())
        });
        let expected = match strategy {
            "mount-namespace" => (Some(false), Some(true)),
            "user-namespace" => (Some(true), Some(true)),
            _ => (None, None),
        };
        assert_eq!((user, mounts), expected, "{strategy}: {said:?}");
        assert_eq!(said.contains(&"pid 1".to_owned()), strategy != "chroot", "{strategy}: {said:?}");
        assert!(finished.says(&[&format!("isolation: {strategy}")]), "{}", finished.stderr);
        let unpacked = builder.store().join("unpacked");
        let kinds: Vec<_> = fs::read_dir(unpacked).into_iter().flatten().flatten().collect();
        let kinds: Vec<_> = kinds.iter().map(|kind| kind.file_name().into_string().expect("name")).collect();
        let expected = match strategy {
            "mount-namespace" => &["all.trusted.v2"][..],
            "user-namespace" => &["all.user.v2"],
            _ => &[],
        };
        assert_eq!(kinds, expected, "{strategy}");
    }
    let builder = Builder::new();
    let refused = |arguments: &[&str], words: &[&str]| {
        let mut command = builder.command();
        let finished =
            finish(command.args(["--no-push", "-c"]).arg(context.path()).args(arguments)).exited(1);
        assert!(finished.says(words), "{}", finished.stderr);
    };
    refused(
        &["--isolation=second-container"],
        &["--isolation: `second-container` is not in this version yet"],
    );
    refused(&["--isolation=kaniko"], &["--isolation: `kaniko` is no way to keep steps apart"]);
    refused(
        &["--isolation=chroot", "--snapshotter=overlayfs"],
        &["overlayfs cannot be mounted with --isolation=chroot"],
    );
    let report = finish(&mut doctor(&builder, &["-o", "json"])).json();
    if report["place"] == "machine" {
        refused(&["--isolation=in-place"], &["this is no container"]);
    }
    let mut command = builder.command();
    command.env("BUILDER_ISOLATION", "user-namespace").args(["--no-push", "-c"]).arg(context.path());
    let limited = finish(&mut without(CRIO, &command)).exited(1);
    assert!(
        limited.says(&["error: --isolation: `user-namespace` does not work here: no CAP_SETFCAP"]),
        "{limited:?}"
    );
}

#[test]
fn without_any_way_to_keep_a_step_apart_files_are_copied_and_a_run_is_refused_before_anything_is_fetched() {
    let builder = Builder::new();
    let base = ground().name("busybox:latest");
    let build = |context: &Context, capabilities: &str| {
        let mut command = builder.command();
        command.args(["--no-push", "-v", "debug", "-c"]).arg(context.path());
        finish(&mut without(capabilities, &command))
    };
    let run = Context::new(&format!("FROM {base}\nLABEL a=b\nRUN true\n"));
    let refused = build(&run, CRIO).exited(1);
    assert!(refused.says(&["error: a RUN cannot be kept apart from the builder here"]), "{}", refused.stderr);
    for words in [
        ["3 | RUN true", ""],
        ["mount-namespace: no CAP_SYS_ADMIN", "(run it as root with CAP_SYS_CHROOT and CAP_SYS_ADMIN)"],
        ["user-namespace: no CAP_SETFCAP", "CAP_SETFCAP)"],
        ["chroot: no CAP_", "CAP_SYS_CHROOT and CAP_MKNOD and CAP_SETFCAP)"],
        ["hint: ", "`builder doctor`"],
    ] {
        assert!(refused.says(&words), "{words:?}: {}", refused.stderr);
    }
    assert!(!refused.says(&["fetching"]), "{}", refused.stderr);

    let copy = Context::new(&format!("FROM {base}\nCOPY --chown=5:6 Dockerfile /d/\nWORKDIR /w\n"));
    let copied = build(&copy, CRIO).success();
    assert!(!copied.says(&["warning"]), "{}", copied.stderr);
    // By a process that may give nothing to anybody: what needs no files is done, the rest is refused.
    let metadata = Context::new(&format!("FROM {base}\nENV a=b\nENTRYPOINT [\"/bin/sh\"]\n"));
    build(&metadata, "-all").success();
    let refused = build(&copy, "-all").exited(1);
    assert!(refused.says(&["error: files cannot be given the owners"]), "{}", refused.stderr);
    assert!(refused.says(&["2 | COPY --chown=5:6"]), "{}", refused.stderr);
}

/// The image does not tell how its steps were kept apart.
#[test]
fn an_image_is_the_same_whatever_keeps_its_steps_apart() {
    let base = ground().name("busybox:latest");
    let context = Context::new(&format!(
        "FROM {base}\nWORKDIR /dev\nWORKDIR /proc\nWORKDIR /sys\nWORKDIR /\nRUN mkdir /d && echo 1 >/d/f && chown 5:6 /d/f && touch -d @1700000000 /d/f /d /\nCOPY --chown=7:8 Dockerfile /d2/\n"
    ));
    let digest = |arguments: &[&str]| {
        let builder = Builder::new();
        let mut command = builder.command();
        command.args(["--no-push", "--build-arg=SOURCE_DATE_EPOCH=1700000000", "-c"]).arg(context.path());
        finish(command.args(arguments)).success().stdout
    };
    let expected = digest(&[]);
    for strategy in ["mount-namespace", "user-namespace", "chroot"] {
        assert_eq!(digest(&[&format!("--isolation={strategy}")]), expected, "{strategy}");
    }
}

/// The manifest's fields for each strategy that a pod refuses.
#[test]
fn in_a_pod_the_fields_of_the_manifest_are_named() {
    if !pod::available("in_a_pod_the_fields_of_the_manifest_are_named") {
        return;
    }
    const ADMIN: &str = "securityContext.capabilities.add: [SYS_ADMIN]";
    const SECCOMP: &str = "securityContext.seccompProfile: {type: Unconfined}";
    const APPARMOR: &str = "securityContext.appArmorProfile: {type: Unconfined}";
    const ROOT: &str = "securityContext.runAsUser: 0";
    const NON_ROOT: &str = "securityContext.runAsNonRoot: false";
    const SETUID: &str = "securityContext.capabilities.add: [SETUID]";
    const CHROOT: &str = "securityContext.capabilities.add: [SYS_CHROOT]";
    type Rows<'a> = &'a [(&'a str, &'a [&'a str])];
    let cases: [(Pod, Option<&str>, Rows<'_>); 8] = [
        (
            Pod::new(Profile::Default),
            Some("chroot"),
            &[("mount-namespace", &[ADMIN]), ("user-namespace", &[SECCOMP]), ("chroot", &[])],
        ),
        (
            Pod::new(Profile::Crio),
            None,
            &[
                ("user-namespace", &[SECCOMP, "securityContext.capabilities.add: [SETFCAP]"]),
                ("chroot", &["securityContext.capabilities.add: [SYS_CHROOT, MKNOD, SETFCAP]"]),
            ],
        ),
        (
            Pod::new(Profile::HostusersFalse),
            None,
            &[("user-namespace", &[SECCOMP]), ("chroot", &["spec.hostUsers: true"])],
        ),
        (
            Pod::new(Profile::Rootless),
            Some("user-namespace"),
            &[("mount-namespace", &[ROOT, NON_ROOT, ADMIN]), ("chroot", &[ROOT, NON_ROOT])],
        ),
        (
            Pod::new(Profile::Sysadmin).refuse_mounts(),
            Some("chroot"),
            &[("mount-namespace", &[APPARMOR]), ("user-namespace", &[APPARMOR])],
        ),
        // The filter refuses pivot_root(2), and there is no chroot(2) instead.
        (
            Pod::new(Profile::Sysadmin).without("SYS_CHROOT"),
            None,
            &[("mount-namespace", &[CHROOT]), ("user-namespace", &[CHROOT]), ("chroot", &[CHROOT])],
        ),
        // Steps could not become other users.
        (
            Pod::new(Profile::Default).without("SETUID"),
            None,
            &[("chroot", &[SETUID]), ("in-place", &[SETUID])],
        ),
        (
            Pod::new(Profile::Crio).read_only_root(),
            None,
            &[("in-place", &["securityContext.readOnlyRootFilesystem: false"])],
        ),
    ];
    for (number, (pod, taken, rows)) in cases.into_iter().enumerate() {
        let [json, text] = ["json", "text"].map(|format| pod.run(&["builder", "doctor", "--output", format]));
        assert_eq!(json.code, Some(if taken.is_some() { 0 } else { 1 }), "{number}: {json:?}");
        assert_narrow(&text);
        let report = json.json();
        assert_eq!(report["place"], "pod", "{number}");
        assert_eq!(report["isolation"]["selected"].as_str(), taken, "{number}: {}", text.stdout);
        let found = strategies(&report);
        for (strategy, changes) in rows {
            assert_eq!(found[*strategy]["manifest"], serde_json::json!(changes), "{number}: {}", text.stdout);
            for change in *changes {
                assert!(text.stdout.contains(&format!("+ {change}")), "{number}: {}", text.stdout);
            }
        }
        assert!(!pod.data().join("store").exists(), "{number}: a store was made");
        let left = fs::read_dir(pod.data()).expect("data").flatten().map(|entry| entry.file_name());
        let left: Vec<_> = left.filter(|name| name.to_string_lossy().starts_with(".builder")).collect();
        assert!(left.is_empty(), "{number}: {left:?}");
    }
}

#[test]
fn what_a_build_would_refuse_of_the_environment_is_refused_with_the_variable_s_name() {
    let builder = Builder::new();
    for variable in ["BUILDER_ISOLATION", "BUILDER_SNAPSHOTTER", "BUILDER_LIMITS"] {
        let failed = finish(doctor(&builder, &[]).env(variable, "bogus")).exited(1);
        assert!(failed.stderr.starts_with(&format!("error: {variable}: ")), "{}", failed.stderr);
    }
}
