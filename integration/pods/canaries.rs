//! What a step neither sees nor touches, whatever keeps it apart: the pod's secrets, the builder, other stages.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::support::ground::ground;
use crate::support::oci::skopeo;
use crate::support::pod::{self, Access, CANARY, CREDENTIALS, Pod, Profile, TOKEN, shared_scratch};
use crate::support::tree::{self, Times};
use crate::support::{Finished, finish, traces};

/// Whom a step can send signals.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// Its own processes.
    Step,
    /// All processes of the pod, for all of which the same user stands.
    Pod,
}

/// A pod in which a strategy is the strongest.
struct Place {
    profile: Profile,
    /// As under AppArmor.
    mounts_refused: bool,
    strategy: &'static str,
    /// It is not the strongest, but was asked for.
    asked: bool,
    reach: Reach,
}

const fn place(profile: Profile, strategy: &'static str, reach: Reach) -> Place {
    Place { profile, mounts_refused: false, strategy, asked: false, reach }
}

use Reach::Step;

const PLACES: [Place; 11] = [
    place(Profile::Privileged, "mount-namespace", Step),
    place(Profile::Sysadmin, "mount-namespace", Step),
    place(Profile::HostusersFalseSysadmin, "mount-namespace", Step),
    place(Profile::HostusersFalseUnmasked, "user-namespace", Step),
    place(Profile::Unset, "user-namespace", Step),
    place(Profile::HostusersFalseUnset, "user-namespace", Step),
    place(Profile::Rootless, "user-namespace", Step),
    place(Profile::Default, "chroot", Reach::Pod),
    Place { mounts_refused: true, ..place(Profile::Unset, "chroot", Reach::Pod) },
    Place { mounts_refused: true, ..place(Profile::Sysadmin, "chroot", Reach::Pod) },
    place(Profile::Crio, "in-place", Reach::Pod),
];

/// Where nothing but the way that was asked for keeps a step off the machine: no rules for devices, no filter.
const PRIVILEGED: [Place; 2] = [
    Place { asked: true, ..place(Profile::Privileged, "chroot", Reach::Pod) },
    Place { asked: true, ..place(Profile::Privileged, "in-place", Reach::Pod) },
];

impl Place {
    fn name(&self) -> String {
        let refused = if self.mounts_refused { " without mounts" } else { "" };
        format!("{:?}{refused}, {}", self.profile, self.strategy)
    }

    fn pod(&self) -> Pod {
        let pod = Pod::new(self.profile);
        let pod = if self.mounts_refused { pod.refuse_mounts() } else { pod };
        if self.strategy == "in-place" { pod.own_image() } else { pod }
    }
}

/// Build contexts by name, for all pods.
struct Contexts(TempDir);

impl Contexts {
    fn new(dockerfiles: &[(&str, &str)]) -> Self {
        let contexts = Self(shared_scratch());
        for (name, dockerfile) in dockerfiles {
            let dockerfile = dockerfile.replace("{busybox}", &ground().name("busybox:latest"));
            contexts.write(&format!("{name}/Dockerfile"), dockerfile);
        }
        contexts
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
        fs::write(path, content).expect("file");
    }
}

/// The programs in `attacks`, and what they must not find around them.
fn attacks() -> Contexts {
    let contexts = Contexts::new(&[("attacked", ATTACKED), ("attacked-by-user", ATTACKED_BY_USER)]);
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/pods");
    let [attacks, by_user] =
        ["attacked", "attacked-by-user"].map(|context| contexts.path().join(context).join("attacks"));
    fs::create_dir(&attacks).expect("directory");
    let mut compiler = Command::new("cc");
    compiler.args(["-static", "-O1", "-o"]).arg(attacks.join("attack")).arg(sources.join("attack.c"));
    finish(&mut compiler).success();
    fs::copy(sources.join("look.sh"), attacks.join("look.sh")).expect("script");
    finish(Command::new("cp").arg("-r").args([attacks, by_user])).success();
    contexts.write("attacked/not-copied", format!("{CANARY}-context"));
    contexts.write("attacked/stage", format!("{CANARY}-stage"));
    contexts
}

/// Its last step looks around.
const ATTACKED: &str = "FROM {busybox} AS other
COPY stage /stage
RUN --mount=type=secret,id=secret --mount=type=secret,id=secret,env=SECRET \\
    test \"$SECRET\" = \"$(cat /run/secrets/secret)\" && echo \"secret: ${#SECRET}\"
FROM {busybox}
COPY --from=other /bin/true /needed
COPY attacks /attacks
ARG DISK
RUN STEP=$$ sh /attacks/look.sh $DISK
";

/// The same by a user who becomes root again.
const ATTACKED_BY_USER: &str = "FROM {busybox}
COPY attacks /attacks
RUN chmod 4755 /attacks/attack
USER 1000:1000
ARG DISK
RUN STEP=$$ sh /attacks/look.sh $DISK
";

/// A disk of the machine, gone on drop; or, if this process is killed, with the next that is made. Not one that the machine
/// has anyway: who looks after that may keep all off it, the tests too.
struct Disk {
    device: String,
    _file: TempDir,
}

impl Disk {
    fn new() -> Self {
        // Those of dead tests: their files have been removed.
        let list = ["--list", "--noheadings", "--output=NAME,BACK-FILE"];
        let all = finish(Command::new("losetup").args(list)).success().stdout;
        for line in all.lines().filter(|line| line.contains("/builder-pod-") && line.contains("(deleted)")) {
            finish(Command::new("losetup").arg("-d").args(line.split_whitespace().next()));
        }
        let directory = shared_scratch();
        let file = directory.path().join("disk");
        fs::write(&file, format!("{CANARY}-disk").repeat(1000)).expect("file");
        let device = finish(Command::new("losetup").args(["--find", "--show"]).arg(&file)).success().stdout;
        Self { device: device.trim().to_owned(), _file: directory }
    }

    /// Its number, `major:minor`.
    fn number(&self) -> String {
        let device = fs::metadata(&self.device).expect("disk").rdev();
        format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.device]).output();
    }
}

/// Lines of a step's output, or a program's, that begin so.
fn lines<'a>(text: &'a str, beginning: &str) -> Vec<&'a str> {
    let text = text.lines().map(|line| line.split_once("] | ").map_or(line, |(_, output)| output));
    text.filter_map(|line| line.strip_prefix(beginning)).collect()
}

/// What is looked for can be found, by who is in the pod itself.
#[test]
fn who_looks_in_a_pod_finds_its_secrets() {
    if !pod::available("who_looks_in_a_pod_finds_its_secrets") {
        return;
    }
    let (contexts, disk) = (attacks(), Disk::new());
    let attacks = &contexts.path().join("attacked/attacks");
    let pod = Pod::new(Profile::Unset).mount(attacks, "/attacks", Access::ReadOnly);
    let script = format!("setsid sleep 1000 & sh /attacks/look.sh {}", disk.number());
    let found = pod.run(&["sh", "-c", &script]).success().stdout;
    let seen = lines(&found, "seen: ");
    for path in [TOKEN, CREDENTIALS, "/data", "/kaniko", "/proc/1/environ", "the environment"] {
        assert!(seen.iter().any(|line| line.replace("..2026_11_30/", "") == path), "{path}: {found}");
    }
    for words in [
        "by attaching to it",
        "by seizing it",
        "root of process",
        "memory of process",
        "a descriptor",
        "the root of the container",
    ] {
        assert!(seen.iter().any(|line| line.contains(words)), "{words}: {found}");
    }
    assert!(lines(&found, "touched: ").contains(&"users of its own"), "{found}");
    // The rules for devices hold for all of the pod.
    assert!(!seen.iter().any(|line| line.contains("disk")), "{found}");
    let pod = Pod::new(Profile::Privileged).mount(attacks, "/attacks", Access::ReadOnly);
    let found = pod.run(&["/attacks/attack", &disk.number()]).success().stdout;
    assert!(lines(&found, "seen: ").iter().any(|line| line.contains("the disk")), "{found}");
}

#[test]
fn steps_see_and_touch_nothing_of_the_pod() {
    if !pod::available("steps_see_and_touch_nothing_of_the_pod") {
        return;
    }
    let (contexts, disk) = (attacks(), Disk::new());
    let mut wrong = Vec::new();
    for place in PLACES.iter().chain(&PRIVILEGED) {
        let finished = attack(place, &contexts, "attacked", &disk, Start::ProcessOne);
        let mut problems = found_by(place, &finished);
        if lines(&finished.stderr, "secret: ") != ["24"] {
            problems.push("it has not looked for secrets".to_owned());
        }
        // What opens no disk does no harm.
        let makes_devices = lines(&finished.stderr, "mknod: ").is_empty();
        if place.asked == makes_devices && [Profile::Default, Profile::Privileged].contains(&place.profile) {
            problems.push(format!("it can make devices: {makes_devices}"));
        }
        if !problems.is_empty() {
            wrong.push(format!("{}: {}\n{}", place.name(), problems.join("; "), finished.stderr));
        }
        if place.strategy == "in-place" {
            let visible = visible(&finished);
            let secrets = [TOKEN, CREDENTIALS].map(|path| is_below(path, &visible));
            assert_eq!(secrets, [true, true], "the warning names what can be seen: {}", finished.stderr);
        }
    }
    assert!(wrong.is_empty(), "{} wrong\n{}", wrong.len(), wrong.join("\n"));
}

/// Process 1 of many a CI system's containers is a shell, which has its variables and all the container's capabilities, and
/// can be traced like any program.
#[test]
fn steps_see_nothing_of_the_shell_that_started_the_builder() {
    if !pod::available("steps_see_nothing_of_the_shell_that_started_the_builder") {
        return;
    }
    let (contexts, disk) = (attacks(), Disk::new());
    let mut wrong = Vec::new();
    let beside = PLACES.iter().chain(&PRIVILEGED).filter(|place| place.reach == Reach::Pod);
    for place in beside.chain([&place(Profile::HostusersFalse, "in-place", Reach::Pod)]) {
        for context in ["attacked", "attacked-by-user"] {
            let finished = attack(place, &contexts, context, &disk, Start::BelowShell);
            let mut problems = found_by(place, &finished);
            if lines(&finished.stderr, "root").is_empty() {
                problems.push("it did not become root".to_owned());
            }
            if !problems.is_empty() {
                let problems = problems.join("; ");
                wrong.push(format!("{}, {context}: {problems}\n{}", place.name(), finished.stderr));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong\n{}", wrong.len(), wrong.join("\n"));
}

/// What starts the builder.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Start {
    /// The runtime.
    ProcessOne,
    /// A shell that the runtime has started.
    BelowShell,
}

fn attack(place: &Place, contexts: &Contexts, context: &str, disk: &Disk, start: Start) -> Finished {
    let pod = place.pod().mount(contexts.path(), "/contexts", Access::ReadOnly);
    pod.write("secret", format!("{CANARY}-secret"));
    let [disk, context] =
        [format!("--build-arg=DISK={}", disk.number()), format!("--context=/contexts/{context}")];
    let secret = "--secret=id=secret,src=/data/secret";
    let mut build = vec!["builder", "--verbosity=debug", "--no-push", secret, &context, &disk];
    let isolation = format!("--isolation={}", place.strategy);
    if place.asked {
        build.push(&isolation);
    }
    match start {
        Start::ProcessOne => pod.run(&build),
        // Not the last command, which it would become.
        Start::BelowShell => pod.run(&["sh", "-c", &format!("{}; exit $?", build.join(" "))]),
    }
}

/// What is wrong with a build in whose last step `look.sh` looked around.
fn found_by(place: &Place, finished: &Finished) -> Vec<String> {
    let Finished { code, stderr, .. } = finished;
    let mut problems = Vec::new();
    if *code != Some(0) || !finished.says(&["isolation: ", place.strategy]) {
        problems.push(format!("exit code {code:?}"));
    }
    // Else it has not looked.
    let files: usize = lines(stderr, "files: ").first().and_then(|line| line.parse().ok()).unwrap_or(0);
    if files < 5 || lines(stderr, "others: ").len() != 1 {
        problems.push("it has not looked".to_owned());
    }
    let visible = visible(finished);
    // Directories above what is named are there, too.
    let is_above = |line: &str| visible.iter().any(|named| Path::new(named).starts_with(line));
    let known = |line: &str| is_below(line, &visible) || is_above(line);
    let all = stderr.lines().map(|line| line.split_once("] | ").map_or(line, |(_, output)| output));
    let found = all.filter(|line| line.starts_with("seen: ") || line.starts_with("touched: "));
    let unknown = found.filter(|line| !line.strip_prefix("seen: ").is_some_and(known));
    problems.extend(unknown.map(str::to_owned));
    problems
}

/// What the warning of in-place says that a step can see.
fn visible(finished: &Finished) -> Vec<&str> {
    let line = finished.stderr.lines().find(|line| line.contains("is not kept apart from this container"));
    line.unwrap_or_default().split('`').skip(1).step_by(2).collect()
}

fn is_below(line: &str, places: &[&str]) -> bool {
    places.iter().any(|place| Path::new(line).starts_with(place))
}

/// What keeps steps of two builders in one pod off each other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Between {
    /// All that keeps a step off the pod.
    Everything,
    /// A step can give another its root, whose files are all that can be reached from there.
    Root,
    /// Nothing: from the root of one the other reaches that of the container.
    Nothing,
}

/// Whether this machine's Linux can keep sockets and tracing inside (Landlock, from 6.12 on).
fn has_scopes() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("release");
    let mut numbers = release.split(['.', '-']).map(|number| number.parse().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(6), Some(12))
}

#[test]
fn steps_of_two_builders_in_a_pod_meet_only_in_a_chroot() {
    if !pod::available("steps_of_two_builders_in_a_pod_meet_only_in_a_chroot") {
        return;
    }
    let contexts = attacks();
    let port = (20_000 + std::process::id() % 20_000).to_string();
    for role in ["give", "take"] {
        let dockerfile = format!(
            "FROM {}\nCOPY attacks /attacks\nRUN [\"/attacks/attack\", \"{role}\", \"{port}\"]\n",
            ground().name("busybox:latest")
        );
        contexts.write(&format!("attacked/{role}"), dockerfile);
    }
    let scoped = if has_scopes() { Between::Everything } else { Between::Nothing };
    let without_mounts = |profile| Place { mounts_refused: true, ..place(profile, "chroot", Reach::Pod) };
    for (place, expected) in [
        (place(Profile::Privileged, "mount-namespace", Step), Between::Root),
        (place(Profile::HostusersFalseUnmasked, "user-namespace", Step), Between::Root),
        (
            place(Profile::Unset, "user-namespace", Step),
            if has_scopes() { Between::Everything } else { Between::Root },
        ),
        (place(Profile::Default, "chroot", Reach::Pod), Between::Nothing),
        (without_mounts(Profile::Sysadmin), scoped),
    ] {
        let pod = place.pod().mount(contexts.path(), "/contexts", Access::ReadOnly);
        let build = |role| {
            format!(
                "builder --no-push --no-cache --isolation={} --context=/contexts/attacked --dockerfile=/contexts/attacked/{role}",
                place.strategy
            )
        };
        let finished = pod.run(&["sh", "-c", &format!("{} & {}; wait", build("give"), build("take"))]);
        let said = &finished.stderr;
        let name = place.name();
        assert!(lines(said, "taker: ").contains(&"has met"), "{name}: {finished:#?}");
        let giver = *lines(said, "giver: ").first().expect("the giver's number");
        let traced = lines(said, "seen: process ");
        let is_giver = |line: &&str| line.strip_prefix(giver).is_some_and(|rest| rest.starts_with(' '));
        // The builders, and those that hold the sandboxes, are out of reach in any case.
        assert!(traced.iter().all(is_giver), "{name}: {said}");
        let root = said.contains("seen: the root of another step");
        let container = said.contains("seen: the root of the container");
        let found = match (traced.is_empty(), root, container) {
            (true, false, false) => Between::Everything,
            (true, true, false) => Between::Root,
            (false, true, true) => Between::Nothing,
            other => panic!("{name}: {other:?} {said}"),
        };
        assert!(found == expected, "{name}: {said}");
    }
}

/// Steps that end what they can reach, and others.
const DOCKERFILES: [(&str, &str); 4] = [
    // Times included, its result depends on nothing but this.
    (
        "good",
        "FROM {busybox}\nWORKDIR /dev\nWORKDIR /proc\nWORKDIR /sys\nRUN echo good >/good && touch -d @1700000000 /good /\n",
    ),
    ("kills-all", "FROM {busybox}\nRUN kill -9 -1; exit 7\n"),
    ("kills-parent", "FROM {busybox}\nRUN test $PPID != 0 && kill -9 $PPID || exit 9; sleep 4321\n"),
    (
        "leaves-daemons",
        "FROM {busybox}\nRUN setsid sleep 4321 >/dev/null 2>&1 & sleep 4321 & \\\n\
         (setsid sh -c 'trap \"\" TERM HUP INT; sleep 4321; sleep 4321' &); (sleep 4321 &) ; echo done\n",
    ),
];

/// Prints what is left of the steps.
const LEFT: [&str; 3] = ["sh", "-c", "ps -o args | grep '^sleep 432[1]' || true"];

#[test]
fn a_step_that_kills_what_it_can_harms_nothing_but_its_build() {
    if !pod::available("a_step_that_kills_what_it_can_harms_nothing_but_its_build") {
        return;
    }
    let contexts = Contexts::new(&DOCKERFILES);
    let mut wrong = Vec::new();
    for place in &PLACES {
        wrong.extend(
            killers(place, &contexts).into_iter().map(|problem| format!("{}: {problem}", place.name())),
        );
    }
    assert!(wrong.is_empty(), "{} wrong\n{}", wrong.len(), wrong.join("\n"));
}

fn killers(place: &Place, contexts: &Contexts) -> Vec<String> {
    let pod = place.pod().mount(contexts.path(), "/contexts", Access::ReadOnly);
    // The runtime makes what it mounts on.
    pod.run(&["true"]).success();
    let before = tree::dump(&pod.root(), Times::Hidden);
    let unique =
        pod.root().parent().and_then(Path::file_name).expect("a name").to_string_lossy().to_lowercase();
    let names = ["first", "second"].map(|tag| ground().name(&format!("{unique}:{tag}")));
    let build = |context: &str, tag: usize| {
        let words = ["builder", "--no-cache", "--build-arg=SOURCE_DATE_EPOCH=1700000000"].map(str::to_owned);
        let more = [format!("--context=/contexts/{context}"), format!("--destination={}", names[tag])];
        [&words[..], &more].concat()
    };
    let contexts = [("good", 0), ("kills-all", 0), ("kills-parent", 0), ("good", 1), ("leaves-daemons", 1)];
    let builds = contexts.map(|(context, tag)| build(context, tag));
    let commands = builds.each_ref().map(|words| words.iter().map(String::as_str).collect::<Vec<_>>());
    let [good, all, parent, again, daemons] = commands.each_ref().map(Vec::as_slice);
    let mut finished = pod.run_all(&[good, parent, &LEFT, again, daemons, &LEFT]);
    let mut wrong = Vec::new();
    let mut check = |is_right: bool, what: &str, finished: &Finished| {
        if !is_right {
            wrong.push(format!("{what}: {finished:#?}"));
        }
    };
    let first = finished.remove(0);
    check(first.code == Some(0), "good", &first);
    let is_same = |next: &Finished| next.code == Some(0) && next.stdout == first.stdout;
    let [parent, left, next, daemons, left_daemons] = &finished[..] else { unreachable!() };
    // In namespaces, Linux from 6.12 on keeps a step's signals inside even where it sees other processes.
    let kept_inside = place.reach == Step || place.strategy == "user-namespace" && parent.code == Some(9);
    let codes = |inside, outside| if kept_inside { inside } else { outside };
    check(parent.code == Some(codes(9, 1)) && parent.says(&["error: "]), "kills-parent", parent);
    check(left.stdout.is_empty(), "left by kills-parent", left);
    check(is_same(next), "after kills-parent", next);
    check(daemons.code == Some(0) && daemons.says(&["done"]), "leaves-daemons", daemons);
    check(left_daemons.stdout.is_empty(), "left by leaves-daemons", left_daemons);
    // Process 1 of a container cannot be killed from inside.
    let process_one = pod.run(all);
    check(process_one.code == Some(codes(7, 1)), "kills-all, from process 1", &process_one);
    check(process_one.says(&["error: "]), "kills-all, from process 1", &process_one);
    // Else the builder may be gone, but not the shell that started it.
    let killed = pod.run_all(&[all, again]);
    check(killed[0].code == Some(codes(7, 137)), "kills-all", &killed[0]);
    check(is_same(&killed[1]), "after kills-all", &killed[1]);
    let digest =
        skopeo(&["inspect", "--tls-verify=false", "--format={{.Digest}}", &format!("docker://{}", names[0])]);
    if first.stdout.trim().rsplit('@').next() != Some(digest.trim()) {
        wrong.push(format!("the tag moved to {digest}, {first:#?}"));
    }
    wrong.extend(traces::left_in(&pod.data().join("store")));
    let after = tree::dump(&pod.root(), Times::Hidden);
    let changed = after.lines().filter(|line| !before.contains(*line));
    let gone = before.lines().filter(|line| !after.contains(*line));
    let lines = changed.chain(gone).take(20);
    wrong.extend(lines.map(|line| format!("the root of the container changed: {line}")));
    wrong
}
