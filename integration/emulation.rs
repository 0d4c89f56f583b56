//! RUN for other processors: the CPU of the variant, with the machine's handlers, with poor ones, and without any.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::ground::ground;
use crate::support::oci::LayoutImage;
use crate::support::steps::{WAYS, build, context, output};
use crate::support::user::User;
use crate::support::{Builder, Context, Finished, finish, scratch};

/// Where Debian's package qemu-user-static has its programs.
pub(crate) const QEMU: &str = "/usr/bin/qemu-arm-static";

/// Whether steps can have handlers of their own here, as the machine says: by its kernel, by user namespaces, by a list of
/// handlers in one, and by a qemu. Says so if not; the doctor must agree.
pub(crate) fn can_have_handlers(test: &str) -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map(|text| text.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap(), numbers.next().unwrap());
    let list = "/bin/mount -t binfmt_misc none /proc/sys/fs/binfmt_misc";
    let mut namespace = Command::new("/usr/bin/unshare");
    namespace.args(["--user", "--map-root-user", "--mount", "/bin/sh", "-c", list]);
    let why = if version < (6, 7) {
        Some(format!("Linux 6.7 is needed, and this is {}", release.trim()))
    } else if !Path::new(QEMU).exists() {
        Some(format!("there is no {QEMU}"))
    } else {
        let finished = finish(&mut namespace);
        (finished.code != Some(0)).then_some(finished.stderr)
    };
    let report = Builder::new().run(["doctor", "--output=json"]).json();
    let platforms = report["platforms"].as_array().unwrap();
    let arm = platforms.iter().find(|platform| platform["platform"] == "linux/arm/v5").unwrap();
    assert_eq!(arm["how"] == "own", why.is_none(), "the doctor says {arm}; the machine: {why:?}");
    if let Some(why) = &why {
        eprintln!("skipped `{test}`: {why}");
    }
    why.is_none()
}

/// `command` in a user namespace in which `prepare` was done: it has a list of handlers of its own.
fn with_own_list(prepare: &str, command: &Command) -> Finished {
    let script =
        format!("/bin/mount -t binfmt_misc none /proc/sys/fs/binfmt_misc && {{ {prepare}\n}} && exec \"$@\"");
    let mut outer = Command::new("/usr/bin/unshare");
    outer.args(["--user", "--map-root-user", "--mount", "/bin/sh", "-c", &script, "sh"]);
    outer.arg(command.get_program()).args(command.get_args());
    outer.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    finish(outer.current_dir("/"))
}

fn command(builder: &Builder, context: &Path, platform: &str, arguments: &[&str]) -> Command {
    let mut command = builder.command();
    command.args(["--no-push", "--no-cache", "--custom-platform", platform, "-c"]).arg(context);
    command.args(arguments);
    command
}

/// What the machine's list of handlers says.
fn handlers_of_machine() -> Vec<String> {
    let entries = fs::read_dir("/proc/sys/fs/binfmt_misc").unwrap().flatten();
    let mut texts: Vec<String> = entries
        .filter(|entry| entry.file_name() != "register")
        .map(|entry| format!("{:?} {}", entry.file_name(), fs::read_to_string(entry.path()).unwrap()))
        .collect();
    texts.sort();
    texts
}

const MACHINE: &str =
    "FROM BASE\nRUN uname -m; env -i /bin/uname -m; /bin/sh -c 'env -i /bin/sh -c \"/bin/uname -m\"'\n";

#[test]
fn each_variant_has_its_cpu_also_where_nothing_of_the_environment_is_left() {
    if !can_have_handlers("each_variant_has_its_cpu_also_where_nothing_of_the_environment_is_left") {
        return;
    }
    let (builder, context) = (Builder::new(), context(MACHINE));
    let before = handlers_of_machine();
    for way in &WAYS[..2] {
        for (platform, machine) in
            [("linux/arm/v5", "armv5tel"), ("linux/arm/v6", "armv6l"), ("linux/arm/v7", "armv7l")]
        {
            let arguments = ["--custom-platform", platform, "--isolation", way];
            let finished = build(&builder, &context, &arguments).success();
            assert_eq!(output(&finished), [machine; 3], "{platform} in {way}");
        }
    }
    assert_eq!(handlers_of_machine(), before);
}

/// Platform, base, and what programs of it find; Debian's busybox has no getconf, but is an ELF file that says as much.
const PLATFORMS: [(&str, &str, &str, &str); 8] = [
    ("linux/amd64", "debian", "x86_64", "64"),
    ("linux/arm/v7", "debian", "armv7l", "32"),
    ("linux/arm/v6", "debian", "armv6l", "32"),
    ("linux/arm/v5", "debian", "armv5tel", "32"),
    ("linux/386", "busybox", "i686", "32"),
    ("linux/arm64", "busybox", "aarch64", "64"),
    ("linux/ppc64le", "busybox", "ppc64le", "64"),
    ("linux/s390x", "busybox", "s390x", "64"),
];

#[test]
fn each_platform_has_its_machine_and_its_word_size() {
    if !cfg!(target_arch = "x86_64") || !can_have_handlers("each_platform_has_its_machine_and_its_word_size")
    {
        return;
    }
    let builder = Builder::new();
    for (platform, base, machine, bits) in PLATFORMS {
        let word = match base {
            "debian" => "getconf LONG_BIT",
            _ => "/bin/sh -c 'echo $((32 * $(head -c 5 /bin/busybox | tail -c 1 | od -An -td1)))'",
        };
        let base = ground().name(&format!("{base}:latest"));
        let clean = "env -i PATH=/usr/bin:/bin";
        let run = format!("RUN uname -m; {word}; {clean} uname -m; {clean} {word}");
        let context = Context::new(&format!("FROM {base}\n{run}\n"));
        let finished = build(&builder, &context, &["--custom-platform", platform]).success();
        assert_eq!(output(&finished), [machine, bits, machine, bits], "{platform}");
    }
}

#[test]
fn a_processor_presents_itself_as_its_predecessor() {
    if cfg!(target_arch = "x86_64") {
        let (builder, context) = (Builder::new(), context(MACHINE));
        for way in WAYS {
            let arguments = ["--custom-platform=linux/386", "--isolation", way];
            assert_eq!(output(&build(&builder, &context, &arguments).success()), ["i686"; 3], "{way}");
        }
    }
}

#[test]
fn nothing_of_the_cpu_is_in_the_step_or_in_the_image() {
    let builder = Builder::new();
    let context = context(
        "FROM BASE\nRUN env >/env; cat /proc/self/cmdline >/line; ls -A /proc/sys/fs/binfmt_misc >/list\n",
    );
    let out = scratch();
    let layout = out.path().join("layout");
    let build = |platform: &str| {
        let _ = fs::remove_dir_all(&layout);
        builder.layout(&context, &layout, &["--no-cache", "--custom-platform", platform]).success();
        let image = LayoutImage::only(&layout);
        let layer = crate::support::oci::uncompressed(&image.layer_bytes(&layout, 1));
        let config = serde_json::to_string(&image.config).unwrap();
        (config, String::from_utf8_lossy(&layer).into_owned())
    };
    for platform in ["linux/arm/v5", "linux/arm/v7"] {
        let (config, layer) = build(platform);
        for word in ["QEMU", "qemu", "arm926", "cortex", "-cpu"] {
            assert!(!config.contains(word), "{word} in {config}");
            assert!(!layer.contains(word), "{word} in {layer}");
        }
    }
}

#[test]
fn a_machine_without_handlers_or_with_poor_ones_builds_all_the_same() {
    if !can_have_handlers("a_machine_without_handlers_or_with_poor_ones_builds_all_the_same") {
        return;
    }
    // busybox needs the name that it was called by, which a handler without flag P takes away.
    let poor = format!(
        "printf '%s' ':arm:M::\\x7fELF\\x01\\x01\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x02\\x00\\x28\\x00:\
         \\xff\\xff\\xff\\xff\\xff\\xff\\xff\\x00\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xfe\\xff\\xff\\xff:{QEMU}:FOC' \
         >/proc/sys/fs/binfmt_misc/register"
    );
    let (builder, context) = (Builder::new(), context(MACHINE));
    let before = handlers_of_machine();
    for prepare in ["true", poor.as_str()] {
        for (platform, machine) in [("linux/arm/v5", "armv5tel"), ("linux/arm/v7", "armv7l")] {
            let command = command(&builder, context.path(), platform, &[]);
            let finished = with_own_list(prepare, &command).success();
            assert_eq!(output(&finished), [machine; 3], "{platform}: {prepare}");
            assert!(!finished.says(&["warning", "flag P"]), "{}", finished.stderr);
        }
    }
    // Without a qemu there is what there was before.
    let without = Builder::without_programs();
    let bare = command(&without, context.path(), "linux/arm/v5", &[]);
    let refused = with_own_list("true", &bare).exited(1);
    assert!(
        refused.says(&["error: programs for `linux/arm/v5` cannot run", "no handler"]),
        "{}",
        refused.stderr
    );
    assert!(
        refused.says(&["hint: give builder a static qemu, `qemu-arm-static`, in PATH"]),
        "{}",
        refused.stderr
    );
    let named = format!("--emulator-dir={}", Path::new(QEMU).parent().unwrap().display());
    let bare = command(&without, context.path(), "linux/arm/v5", &[&named]);
    assert_eq!(output(&with_own_list("true", &bare).success()), ["armv5tel"; 3]);
    assert_eq!(handlers_of_machine(), before);
}

#[test]
fn where_no_namespace_can_be_made_for_it_the_machines_handler_is_taken() {
    if !can_have_handlers("where_no_namespace_can_be_made_for_it_the_machines_handler_is_taken") {
        return;
    }
    let (builder, context) = (Builder::new(), context(MACHINE));
    let command = command(&builder, context.path(), "linux/arm/v5", &[]);
    let list = Path::new("/proc/sys/fs/binfmt_misc/status").exists();
    if !list {
        return eprintln!("skipped: the list of handlers is not mounted");
    }
    let mut outer = Command::new("/usr/bin/unshare");
    let script = "echo 0 >/proc/sys/user/max_user_namespaces && exec \"$@\"";
    outer.args(["--user", "--map-root-user", "--mount", "/bin/sh", "-c", script, "sh"]);
    outer.arg(command.get_program()).args(command.get_args());
    outer.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let finished = finish(&mut outer).success();
    assert_eq!(output(&finished), ["armv7l"; 3]);
    assert!(
        finished.says(&["cannot make a user namespace of its own", "the machine's handler is taken"]),
        "{}",
        finished.stderr
    );
    assert_eq!(finished.stderr.matches("handler is taken").count(), 1, "{}", finished.stderr);
    // Its key says what it was to run under: who finds it would have the result of another CPU.
    let plain =
        builder.run(["--no-push", "--custom-platform=linux/arm/v5", "-c", context.path().to_str().unwrap()]);
    assert_eq!(output(&plain.success()), ["armv5tel"; 3]);
}

#[test]
fn an_ordinary_user_has_the_cpus_too() {
    if !can_have_handlers("an_ordinary_user_has_the_cpus_too") {
        return;
    }
    for user in [User::with_ranges(), User::with_single_id()] {
        let base = ground().name("busybox:latest");
        let context = user.context(&MACHINE.replace("BASE", &base));
        let arguments = ["--no-push", "--no-cache", "--custom-platform=linux/arm/v5", "-c"];
        let finished = finish(user.command().args(arguments).arg(&context)).success();
        assert_eq!(output(&finished), ["armv5tel"; 3]);
    }
}

#[test]
fn in_a_root_without_namespaces_the_machines_cpu_is_told() {
    let (builder, context) = (Builder::new(), context(MACHINE));
    let arguments = ["--custom-platform=linux/arm/v5", "--isolation=chroot"];
    let finished = build(&builder, &context, &arguments).success();
    assert_eq!(output(&finished).len(), 3);
    let told = ["note: a RUN for linux/arm/v5 finds the CPU that the machine's handler plays", "namespaces"];
    assert!(finished.says(&told), "{}", finished.stderr);
}

/// A program with an instruction of ARMv7, from testdata/emulation, and a Dockerfile that starts it.
fn newer_program(run: &str) -> Context {
    let context = context(&format!("FROM BASE\nCOPY --chmod=755 v7 /v7\n{run}\n"));
    context.write("v7", fs::read("testdata/emulation/v7").unwrap());
    context
}

#[test]
fn a_program_for_a_newer_variant_ends_by_an_illegal_instruction_which_is_explained() {
    if !can_have_handlers("a_program_for_a_newer_variant_ends_by_an_illegal_instruction_which_is_explained") {
        return;
    }
    let builder = Builder::new();
    // By a shell, as the first process of the step, and hidden behind another exit code.
    for run in ["RUN /v7", "RUN [\"/v7\"]", "RUN /v7; exit 3"] {
        let context = newer_program(run);
        let finished = build(&builder, &context, &["--custom-platform=linux/arm/v7"]);
        assert_eq!(output(&finished), ["v7"], "{}", finished.stderr);
        for platform in ["linux/arm/v5", "linux/arm/v6"] {
            let finished = build(&builder, &context, &["--custom-platform", platform]);
            assert_ne!(finished.code, Some(0), "{run}");
            let hint = format!("hint: illegal instruction: the program needs a newer CPU than {platform};");
            assert!(finished.says(&[&hint]), "{run}: {}", finished.stderr);
        }
    }
}

/// A layout with an image whose config says `platform`.
fn labelled(builder: &Builder, layout: &Path, platform: &str) {
    let context = context("FROM BASE\nLABEL made=here\n");
    builder.layout(&context, layout, &["--custom-platform", platform]).success();
}

#[test]
fn a_level_that_the_processor_lacks_is_emulated_or_refused() {
    if !cfg!(target_arch = "x86_64")
        || !can_have_handlers("a_level_that_the_processor_lacks_is_emulated_or_refused")
    {
        return;
    }
    let out = scratch();
    let cpuinfo = out.path().join("cpuinfo");
    fs::write(&cpuinfo, "processor\t: 0\nflags\t\t: sse2 cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3\n\n")
        .unwrap();
    let context = Context::new("FROM old\nRUN uname -m; /bin/sh -c 'exec /bin/busybox echo done'\n");
    let with_such_a_cpu = |builder: &Builder, variant: &str| {
        let layout = out.path().join(variant);
        let platform = format!("linux/amd64/{variant}");
        labelled(&Builder::new(), &layout, &platform);
        let contexts = format!("--build-context=old=oci-layout://{}", layout.display());
        let command = command(builder, context.path(), &platform, &[&contexts, "--verbosity=debug"]);
        let mut outer = Command::new("/usr/bin/unshare");
        let script = "/bin/mount --bind \"$1\" /proc/cpuinfo && shift && exec \"$@\"";
        outer.args(["--mount", "/bin/sh", "-c", script, "sh"]).arg(&cpuinfo);
        outer.arg(command.get_program()).args(command.get_args());
        outer.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        finish(&mut outer)
    };
    let native = with_such_a_cpu(&Builder::new(), "v2").success();
    assert_eq!(output(&native), ["x86_64", "done"]);
    assert!(!native.says(&["run under"]), "{}", native.stderr);
    let emulated = with_such_a_cpu(&Builder::new(), "v3").success();
    assert_eq!(output(&emulated), ["x86_64", "done"]);
    assert!(
        emulated.says(&["programs for linux/amd64/v3 run under", "qemu-x86_64-static as max"]),
        "{}",
        emulated.stderr
    );
    for (builder, variant, lacking, hint) in [
        (Builder::without_programs(), "v3", "its CPU lacks avx, avx2, bmi1", "`qemu-x86_64-static`"),
        (Builder::new(), "v4", "avx512f", "qemu plays none that has AVX-512"),
    ] {
        let refused = with_such_a_cpu(&builder, variant).exited(1);
        let words = format!(
            "error: programs for `linux/amd64/{variant}` cannot run on this machine, which is `linux/amd64/v2`"
        );
        assert!(refused.says(&[&words, lacking]), "{}", refused.stderr);
        assert!(refused.says(&["hint: build on a machine with such a CPU", hint]), "{}", refused.stderr);
    }
}

#[test]
fn a_directory_of_emulators_that_is_none_is_refused_by_name() {
    let refused = Builder::new().run(["--no-push", "--emulator-dir=/nowhere", "-c", "/"]).exited(1);
    assert!(refused.says(&["error: --emulator-dir: `/nowhere` is no directory"]), "{}", refused.stderr);
    let builder = Builder::new();
    let mut command = builder.command();
    let refused = finish(command.env("BUILDER_EMULATOR_DIR", "/nowhere").arg("doctor")).exited(1);
    assert!(refused.says(&["error: BUILDER_EMULATOR_DIR: `/nowhere` is no directory"]), "{}", refused.stderr);
}

#[test]
fn the_doctor_names_emulator_and_cpu() {
    if !can_have_handlers("the_doctor_names_emulator_and_cpu") {
        return;
    }
    let builder = Builder::new();
    let command = |arguments: &[&str]| {
        let mut command = builder.command();
        command.arg("doctor").args(arguments);
        command
    };
    for prepare in ["true", "echo -1 >/proc/sys/fs/binfmt_misc/status"] {
        let report = with_own_list(prepare, &command(&["-o", "json", "--emulator-dir=/usr/bin"])).json();
        let platforms = report["platforms"].as_array().unwrap();
        for (platform, cpu) in [("linux/arm/v5", Some("arm926")), ("linux/riscv64", None)] {
            let found = platforms.iter().find(|found| found["platform"] == platform).unwrap();
            assert_eq!(found["how"], "own", "{found}");
            assert!(found["emulator"]["path"].as_str().unwrap().starts_with("/usr/bin/qemu-"), "{found}");
            assert_eq!(found["emulator"]["cpu"].as_str(), cpu, "{found}");
        }
    }
    let text = with_own_list("true", &command(&[])).stdout;
    let line = text.lines().find(|line| line.contains("linux/arm/v5 ")).unwrap();
    assert!(line.ends_with("by /usr/bin/qemu-arm-static as arm926, for the step"), "{line}");
}
