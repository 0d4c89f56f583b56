//! Steps in the container's own root: what they leave there, what is theirs, and what becomes of it when somebody is killed.

use std::fs;
use std::os::unix::fs::symlink;

use rustix::process::{Pid, Signal, kill_process};

use crate::privileged::ending::{Bomb, Freezer};
use crate::support::ground::ground;
use crate::support::oci::LayoutImage;
use crate::support::pod::{self, Access, CANARY, PROGRAM, Pod, Profile};
use crate::support::traces::{Family, Running};
use crate::support::tree::{Times, dump};

/// The words of a build of `/data/CONTEXT` into the layout `/data/out/OUTPUT`.
fn build(context: &str, output: &str) -> Vec<String> {
    let mut words = ["builder", "--isolation=in-place", "--no-push"].map(str::to_owned).to_vec();
    words.push(format!("--context=/data/{context}"));
    words.push(format!("--oci-layout-path=/data/out/{output}"));
    words
}

/// The names of bases put into a Dockerfile.
fn dockerfile(text: &str) -> String {
    let ground = ground();
    text.replace("{debian}", &ground.name("debian:latest"))
        .replace("{busybox}", &ground.name("busybox:latest"))
}

/// The files of the container, times included.
fn files(pod: &Pod) -> String {
    dump(&pod.root(), Times::Shown)
}

/// For a script that hears from a step by its descriptor 3. To open it for reading only would wait for the step to write, and
/// the shell gives that up when a child ends: as process 1 it is told of the end of each detached process of the builder.
const OPEN_FIFO: &str = "rm -f /data/fifo; mkfifo /data/fifo; exec 3<>/data/fifo";

/// Runs a script as the first process of the container; it must succeed.
fn script(pod: &Pod, script: &str) -> String {
    let finished = pod.run(&["sh", "-e", "-c", script]).success();
    finished.stdout + &finished.stderr
}

#[test]
fn builds_in_one_pod_leave_nothing_to_each_other() {
    if !pod::available("builds_in_one_pod_leave_nothing_to_each_other") {
        return;
    }
    for profile in [Profile::Crio, Profile::HostusersFalse] {
        let pod = Pod::new(profile);
        pod.write(
            "bad/Dockerfile",
            dockerfile(
                "FROM {debian}\nRUN ln -s /etc /linked && touch /etc/left /var/left /left /usr/left && rm /etc/debian_version && exit 3\n",
            ),
        );
        pod.write(
            "good/Dockerfile",
            dockerfile(
                "FROM {debian} AS one\nRUN ln -s /etc /linked && ln -s ../linked /opt/again\n\
                 FROM {busybox} AS two\nCOPY --from=one /opt /\nRUN test -L /again && ! test -e /etc/debian_version && touch /two\n\
                 FROM one\nCOPY --from=two /two /\nRUN touch /linked/last && test -f /etc/debian_version && ! test -e /etc/left && ! test -e /left\n",
            ),
        );
        pod.run(&["true"]).success();
        let before = files(&pod);
        let (bad, good, again) = (build("bad", "bad"), build("good", "good"), build("good", "again"));
        let commands =
            [&bad, &good, &again].map(|words| words.iter().map(String::as_str).collect::<Vec<_>>());
        let finished = pod.run_all(&commands.each_ref().map(Vec::as_slice));
        let codes: Vec<Option<i32>> = finished.iter().map(|finished| finished.code).collect();
        assert_eq!(codes, [Some(3), Some(0), Some(0)], "{profile:?}: {finished:#?}");
        assert!(finished[0].says(&["warning", "`/data`", "secrets/kubernetes.io"]), "{finished:#?}");
        assert_eq!(files(&pod), before, "{profile:?}");
    }
}

#[test]
fn what_is_mounted_in_the_pod_stays_and_the_image_keeps_its_own() {
    if !pod::available("what_is_mounted_in_the_pod_stays_and_the_image_keeps_its_own") {
        return;
    }
    let pod = Pod::new(Profile::Crio);
    pod.write("driver", "of the pod");
    pod.write("directory/file", "of the pod");
    let data = pod.data();
    let pod = pod.mount(data.join("driver"), "/opt/driver/lib.so", Access::ReadOnly).mount(
        data.join("directory"),
        "/srv/mounted",
        Access::ReadWrite,
    );
    pod.write(
        "base/Dockerfile",
        dockerfile(
            "FROM {debian}\nRUN mkdir -p /opt/real && echo image >/opt/real/file\n\
             FROM {debian}\nCOPY --from=0 /opt/real /opt/real\nCOPY links /opt/\nCOPY mounted /srv/mounted\n\
             RUN cat /opt/driver/lib.so /srv/mounted/file && echo lost >/srv/mounted/lost && echo kept >/opt/kept && \
             ! cat /opt/driver/file && ! rm /opt/driver/lib.so && ! rmdir /srv/mounted && cat /opt/real/file\n\
             RUN true\n",
        ),
    );
    fs::create_dir(data.join("base/links")).unwrap();
    symlink("/opt/real", data.join("base/links/driver")).unwrap();
    pod.write("base/mounted/own", "of the image");
    pod.run(&["true"]).success();
    let before = files(&pod);
    let words = build("base", "base");
    let finished = pod.run(&words.iter().map(String::as_str).collect::<Vec<_>>()).success();
    assert!(finished.stderr.matches("of the pod").count() == 2, "{}", finished.stderr);
    let image = LayoutImage::only(&data.join("out/base"));
    let layers = image.layer_paths(&data.join("out/base"));
    let text: Vec<String> = layers[1..].iter().map(|layer| layer.join(" ")).collect();
    assert_eq!(text[1], "opt/ opt/driver", "a link as the image has it");
    assert!(text[2].contains("srv/mounted/own"), "{text:?}");
    assert!(
        text[3].contains("opt/kept") && !text[3].contains("lost") && !text[3].contains("driver"),
        "{text:?}"
    );
    assert_eq!(text[4], "", "a step that changes nothing");
    assert_eq!(fs::read(data.join("directory/lost")).unwrap(), b"lost\n", "the step has it from the pod");
    assert_eq!(files(&pod), before);
}

#[test]
fn what_the_pod_hides_cannot_be_used_and_is_said() {
    if !pod::available("what_the_pod_hides_cannot_be_used_and_is_said") {
        return;
    }
    let pod = Pod::new(Profile::Crio);
    for (name, steps) in [
        ("directory", "WORKDIR /data/work\nRUN true\n"),
        ("mount", "RUN --mount=type=tmpfs,target=/var/run/secrets/kubernetes.io/serviceaccount/x true\n"),
    ] {
        pod.write(&format!("{name}/Dockerfile"), dockerfile(&format!("FROM {{busybox}}\n{steps}")));
        let words = build(name, name);
        let finished = pod.run(&words.iter().map(String::as_str).collect::<Vec<_>>()).exited(1);
        assert!(finished.says(&["is not the image's", "choose another path"]), "{}", finished.stderr);
        assert!(finished.says(&[" --> ", "Dockerfile:"]), "{}", finished.stderr);
    }
}

#[test]
fn what_no_step_sees_of_its_image_is_said() {
    if !pod::available("what_no_step_sees_of_its_image_is_said") {
        return;
    }
    let pod = Pod::new(Profile::Crio);
    let steps = "COPY Dockerfile /data/app/\nRUN true\nCOPY Dockerfile /data/more/\nCOPY Dockerfile /app/\n";
    pod.write("context/Dockerfile", dockerfile(&format!("FROM {{busybox}}\n{steps}")));
    let words = build("context", "out");
    let finished = pod.run(&words.iter().map(String::as_str).collect::<Vec<_>>()).success();
    let said = |path: &str| finished.says(&["no RUN sees", path, "(line 2)"]);
    assert!(said("`/data/app`") && !said("`/data/more`") && !said("`/app`"), "{}", finished.stderr);
}

#[test]
fn a_link_at_a_mount_lands_in_the_image() {
    if !pod::available("a_link_at_a_mount_lands_in_the_image") {
        return;
    }
    let pod = Pod::new(Profile::Crio);
    pod.write("context/Dockerfile", "FROM scratch\nADD ./ /\n");
    pod.write("context/etc/other", "x");
    symlink("/tmp/r", pod.data().join("context/etc/resolv.conf")).unwrap();
    let words = build("context", "out");
    pod.run(&words.iter().map(String::as_str).collect::<Vec<_>>()).success();
    let layout = pod.data().join("out/out");
    let facts = LayoutImage::only(&layout).layer_facts(&layout).concat().join("\n");
    assert!(
        facts.lines().any(|line| line.starts_with("etc/resolv.conf ") && line.contains("/tmp/r")),
        "{facts}"
    );
}

#[test]
fn a_context_that_is_no_volume_survives() {
    if !pod::available("a_context_that_is_no_volume_survives") {
        return;
    }
    let pod = Pod::new(Profile::Crio);
    let text = dockerfile(
        "FROM {busybox}\nCOPY . /a\nRUN rm -r /a\nFROM {busybox}\nCOPY . /x\nRUN test -f /x/file\n",
    );
    let program = fs::read(pod.root().join(&PROGRAM[1..])).unwrap();
    let evil = dockerfile(
        "FROM {busybox} AS evil\nRUN echo marker >/marker\n\
         FROM {busybox}\nRUN ln -s ../../.. /evil\nCOPY --from=evil /marker /evil/usr/local/bin/builder\n\
         COPY --from=evil /marker /evil/usr/local/bin/marker\n\
         RUN grep marker /usr/local/bin/marker && echo marker >/proc/self/root/marker\n",
    );
    pod.write("evil/Dockerfile", evil);
    let store = "--store=/var/lib/builder";
    let build = format!("builder --isolation=in-place --no-push {store}");
    let output = script(
        &pod,
        &format!(
            "mkdir -p /workspace /var/lib/builder; cd /workspace; printf %s '{text}' >Dockerfile; echo x >file; chmod 640 file
             stat -c '%n %a %y' /workspace/* >/data/before
             {build} --oci-layout-path=/workspace/out; {build} --no-cache --context /workspace --oci-layout-path=/data/out
             rm -r out; stat -c '%n %a %y' /workspace/* | diff /data/before - && echo intact
             {build} --context=/data/evil && ! test -e /marker && echo contained; ls -A /",
        ),
    );
    assert!(output.contains("\nintact\n") || output.starts_with("intact\n"), "{output}");
    assert!(
        output.contains("contained\n") && !output.lines().any(|line| line == ".builder-in-place"),
        "{output}"
    );
    assert!(fs::read(pod.root().join(&PROGRAM[1..])).unwrap() == program);
}

#[test]
fn a_killed_builder_is_repaired_by_the_next() {
    if !pod::available("a_killed_builder_is_repaired_by_the_next") {
        return;
    }
    for profile in [Profile::Crio, Profile::HostusersFalse] {
        let pod = Pod::new(profile);
        pod.write(
            "hangs/Dockerfile",
            dockerfile("FROM {debian}\nRUN touch /left /etc/left; rm -r /usr/share; (setsid sleep 1000.5 &); echo $PPID >/data/fifo; sleep 1000\n"),
        );
        pod.write(
            "good/Dockerfile",
            dockerfile("FROM {busybox}\nRUN ! test -e /left && ! test -e /usr/bin/perl\n"),
        );
        pod.run(&["true"]).success();
        let before = files(&pod);
        // Whichever process is killed: the builder, whose supervisor repairs then; the supervisor; or both.
        let victims = [("$builder", false), ("$supervisor", false), ("$supervisor $builder", true)];
        for (victim, repaired) in victims {
            // Nobody is left then who knows of them.
            let daemons =
                if repaired { "" } else { "if grep -l '^sleep' /proc/[0-9]*/cmdline; then exit 9; fi; " };
            // Else the next builder may come before the supervisor has done it, and does it.
            let wait = if repaired {
                ":"
            } else {
                "n=0; while test -e /.builder-in-place; do n=$((n + 1)); test $n -lt 9000000 || exit 8; done"
            };
            let output = script(
                &pod,
                &format!(
                    "{OPEN_FIFO}
                     builder --isolation=in-place --no-push --context=/data/hangs & builder=$!
                     read -r supervisor <&3
                     # The container's programs are aside, but not the shell's own commands.
                     kill -STOP {victim}; kill -9 {victim}; wait $builder || echo builder ended with $?
                     {wait}
                     builder --isolation=in-place --no-push --context=/data/good
                     {daemons}ls -A /"
                ),
            );
            assert_eq!(output.contains("a builder that was killed"), repaired, "{profile:?}: {output}");
            assert!(!output.lines().any(|line| line == ".builder-in-place"), "{output}");
            assert_eq!(
                without_directory_times(&files(&pod)),
                without_directory_times(&before),
                "{profile:?}: {output}"
            );
        }
    }
}

#[test]
fn a_look_at_what_works_leaves_no_trace() {
    if !pod::available("a_look_at_what_works_leaves_no_trace") {
        return;
    }
    for profile in [Profile::Crio, Profile::HostusersFalse] {
        let pod = Pod::new(profile);
        pod.write("copies/Dockerfile", "FROM scratch\nCOPY . /x/\n");
        pod.run(&["true"]).success();
        let before = files(&pod);
        let report = pod.run(&["builder", "doctor", "-o", "json"]).exited(1).json();
        let strategies = report["isolation"]["strategies"].as_array().expect("strategies");
        let in_place = strategies.iter().find(|tried| tried["name"] == "in-place").expect("in-place");
        assert_eq!(in_place["works"], true, "{profile:?}: {report}");
        assert_eq!(files(&pod), before, "{profile:?}: doctor");
        pod.run(&["builder", "--no-push", "--context=/data/copies"]).success();
        assert_eq!(files(&pod), before, "{profile:?}: a build that runs nothing");
    }
}

#[test]
fn two_signals_while_files_change_places_leave_the_container_its_own() {
    const ENTRIES: usize = 20_000;
    if !pod::available("two_signals_while_files_change_places_leave_the_container_its_own") {
        return;
    }
    let pod = Pod::new(Profile::Crio);
    for number in 0..ENTRIES {
        fs::write(pod.root().join(format!("entry-{number}")), "").expect("file");
    }
    pod.write("runs/Dockerfile", dockerfile("FROM {busybox}\nRUN echo step >/data/step\n"));
    pod.run(&["true"]).success();
    let before = without_directory_times(&files(&pod));
    let output = script(
        &pod,
        &format!(
            "{OPEN_FIFO}
         builder --isolation=in-place --no-push --context=/data/runs & builder=$!
         while ! test -e /.builder-in-place/aside/entry-0; do :; done
         kill -TERM $builder
         # The shell's own way to sleep: programs are aside. What comes sooner is no second signal.
         read -r -t 1 x <&3 || :
         kill -TERM $builder 2>/dev/null || :
         wait $builder || echo builder ended with $?
         set -- /entry-*; echo $# entries are back"
        ),
    );
    assert!(output.contains("builder ended with 143"), "{output}");
    assert!(output.contains(&format!("\n{ENTRIES} entries are back")), "{output}");
    assert!(!pod.data().join("step").exists(), "too early for the step: {output}");
    assert_eq!(without_directory_times(&files(&pod)), before, "{output}");
}

#[test]
fn no_command_takes_the_files_of_an_image_for_the_containers() {
    if !pod::available("no_command_takes_the_files_of_an_image_for_the_containers") {
        return;
    }
    let pod = Pod::new(Profile::Crio);
    pod.write("hangs/Dockerfile", dockerfile("FROM {busybox}\nRUN echo $PPID >/data/fifo; sleep 1000\n"));
    pod.write("good/Dockerfile", "FROM scratch\nCOPY . /\n");
    pod.run(&["true"]).success();
    let before = without_directory_times(&files(&pod));
    let output = script(
        &pod,
        &format!(
            "{OPEN_FIFO}
         builder --isolation=in-place --no-push --context=/data/hangs & builder=$!
         read -r supervisor <&3
         builder plan --context=/data/good && exit 5
         builder doctor && exit 6
         builder --isolation=chroot --no-push --context=/data/good && exit 7
         kill -STOP $supervisor $builder; kill -9 $supervisor $builder; wait $builder || :
         builder plan --context=/data/good >/data/plan"
        ),
    );
    assert_eq!(output.matches("another builder runs a step in it").count(), 3, "{output}");
    assert_eq!(output.matches("wait until that builder has ended").count(), 3, "{output}");
    assert!(!output.contains("steps that run in place"), "{output}");
    assert_eq!(output.matches("its own are back").count(), 1, "{output}");
    let after = without_directory_times(&files(&pod));
    let left: Vec<&String> = after.iter().filter(|line| !before.contains(line)).collect();
    assert!(left.iter().all(|line| line.contains(".builder-in-place")), "{left:?}");
    assert!(before.iter().all(|line| after.contains(line)), "{output}");
}

/// Lines of a dump without the times of directories.
fn without_directory_times(dump: &str) -> Vec<String> {
    dump.lines()
        .map(|line| match line.split(' ').collect::<Vec<_>>()[..] {
            [path, "directory" | "d", mode, owner, ..] => format!("{path} {mode} {owner}"),
            _ => line.to_owned(),
        })
        .collect()
}

#[test]
fn a_step_sees_no_secret_of_the_builder_itself() {
    if !pod::available("a_step_sees_no_secret_of_the_builder_itself") {
        return;
    }
    for profile in [Profile::Crio, Profile::HostusersFalse] {
        let pod = Pod::new(profile);
        pod.write(
            "look/Dockerfile",
            dockerfile(&format!(
                "FROM {{busybox}}\nRUN ! grep -l '[c]{}-environment' /proc/[0-9]*/environ && ! head -c 1 /proc/1/mem && ! ls /proc/1/root/ && ! readlink /proc/1/fd/3 && \
                 ! chroot / true && grep CapBnd /proc/self/status\n",
                &CANARY[1..]
            )),
        );
        let words = build("look", "look");
        let finished = pod.run(&words.iter().map(String::as_str).collect::<Vec<_>>()).success();
        assert!(!finished.stderr.contains(CANARY), "{}", finished.stderr);
        let rights = finished.stderr.lines().find_map(|line| line.split_once("CapBnd:\t")).expect("rights").1;
        let rights = u64::from_str_radix(rights.trim(), 16).expect("a number");
        assert_eq!(rights & !0xa800_25fb, 0, "those of Docker but CAP_SYS_CHROOT, at most: {rights:x}");
    }
}

#[test]
fn a_step_that_forks_faster_than_it_is_looked_at_leaves_nothing_in_the_pod() {
    if !pod::available("a_step_that_forks_faster_than_it_is_looked_at_leaves_nothing_in_the_pod") {
        return;
    }
    let pod = Pod::new(Profile::Crio);
    let bomb = Bomb::compile();
    for kind in ["chain", "overlap", "sibling"] {
        let run =
            format!("FROM {{busybox}}\nCOPY {0} /\nRUN [\"/{0}\", \"{kind}\", \"3\", \"60\"]\n", bomb.name);
        pod.write(&format!("{kind}/Dockerfile"), dockerfile(&run));
        bomb.put_into(&pod.data().join(kind));
    }
    pod.run(&["true"]).success();
    let before = files(&pod);
    let builds = ["chain", "overlap", "sibling"].map(|kind| build(kind, kind));
    // In a session of which none of them is process 1, whose end would be that of all.
    let commands = builds.each_ref().map(|words| words.iter().map(String::as_str).collect::<Vec<_>>());
    let look = ["sh", "-c", "ps -o comm | grep ^bomb- || true"];
    let [chain, overlap, sibling] = commands.each_ref().map(Vec::as_slice);
    let finished = pod.run_all(&[chain, &look, overlap, &look, sibling, &look]);
    for pair in finished.chunks(2) {
        assert_eq!(pair[0].code, Some(7), "{pair:#?}");
        assert_eq!(pair[1].stdout, "", "{pair:#?}");
    }
    assert_eq!(files(&pod), before);
}

/// Nothing is moved under a process that lives; what is out of its place is put back by the next builder that comes when it
/// has ended.
#[test]
fn a_step_that_will_not_end_keeps_the_root_until_it_has() {
    const NAME: &str = "a_step_that_will_not_end_keeps_the_root_until_it_has";
    if !pod::available(NAME) {
        return;
    }
    let Some(freezer) = Freezer::new() else {
        eprintln!("skipped `{NAME}`: it needs the control group `freezer` (version 1)");
        return;
    };
    let pod = Pod::new(Profile::Crio);
    let stays = "FROM {busybox}\nRUN touch /made; sleep 1000 & echo ready; exec tail -f /dev/null\nRUN echo another\n";
    pod.write("stays/Dockerfile", dockerfile(stays));
    pod.write("next/Dockerfile", dockerfile("FROM {busybox}\nRUN echo next\n"));
    pod.run(&["true"]).success();
    let before = files(&pod);
    let [stays, next] = ["stays", "next"].map(|context| build(context, context).join(" "));
    let script = format!(
        "{{ {stays}; echo code $?; {next}; echo code $?; test -e /made && echo of the image; until test -e /data/end; do :; done; {next}; echo code $?; test -e /made || echo its own; }} >&2"
    );
    let mut running = Running::start(&mut pod.command(&["sh", "-c", &script]));
    running.wait_for("| ready");
    // Until they execute those, both are shells.
    let id = running.id();
    let both = |_: &str| ["sleep", "tail"].iter().all(|name| Family::of(id).named(name).is_some());
    running.wait_until("sleep and tail", both);
    let family = Family::of(id);
    freezer.freeze(family.named("sleep").expect("what stays"));
    let step = Pid::from_raw(family.named("tail").expect("the step")).expect("a number");
    kill_process(step, Signal::KILL).expect("kill");
    running.wait_for("of the image");
    drop(freezer);
    pod.write("end", "");
    let said = running.end(std::time::Duration::from_secs(20)).stderr;
    let error = "error: cannot end the step: processes did not end although they were killed: ";
    assert!(said.contains(error) && said.contains("restart the container"), "{said}");
    assert!(!said.contains("| another") && said.matches("| next").count() == 1, "{said}");
    assert!(
        said.contains("a step in it is not over: processes did not end although they were killed: "),
        "{said}"
    );
    let lines: Vec<&str> = said
        .lines()
        .filter(|line| ["code", "of the image", "its own"].iter().any(|words| line.starts_with(words)))
        .collect();
    assert_eq!(lines, ["code 1", "code 1", "of the image", "code 0", "its own"], "{said}");
    assert_eq!(files(&pod), before);
}
