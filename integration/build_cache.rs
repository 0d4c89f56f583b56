//! Results that are remembered: what a step depends on, what is not done again, and what builds at the same time share.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::ground::{Ground, ground};
use crate::support::oci::{LayoutImage, with_unpacked};
use crate::support::traces::{self, Running};
use crate::support::tree::{self, Times};
use crate::support::{Builder, Context, Finished, finish, scratch};

/// The steps that made a layer in a build, as they are shown: those that were done, or those that were found.
#[derive(Debug, PartialEq, Eq)]
struct Steps {
    done: Vec<String>,
    found: Vec<String>,
}

impl Steps {
    fn of(finished: &Finished) -> Self {
        let mut steps = Self { done: Vec::new(), found: Vec::new() };
        for line in finished.stderr.lines() {
            let (list, line) = match line.strip_prefix("CACHED ") {
                Some(line) => (&mut steps.found, line),
                None => (&mut steps.done, line),
            };
            let Some((tag, instruction)) = line.split_once("] ") else { continue };
            let written = instruction.trim_start_matches("ONBUILD ");
            let keyword = written.split(' ').next().unwrap_or_default().to_uppercase();
            if tag.starts_with('[') && ["RUN", "COPY", "ADD", "WORKDIR"].contains(&keyword.as_str()) {
                list.push(instruction.to_owned());
            }
        }
        steps
    }
}

/// A context that is built again and again in one store.
struct Project {
    ground: Ground,
    builder: Builder,
    context: Context,
    out: TempDir,
}

impl Project {
    /// `BASE` in the Dockerfile is busybox.
    fn new(dockerfile: &str) -> Self {
        let (builder, context) = (Builder::new(), Context::new(""));
        let project = Self { ground: ground(), builder, context, out: scratch() };
        project.dockerfile(dockerfile);
        project
    }

    fn dockerfile(&self, text: &str) {
        self.context.write("Dockerfile", text.replace("BASE", &self.ground.name("busybox:latest")));
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.builder.command();
        command.args(["--no-push", "--custom-platform=linux/amd64", "-c"]).arg(self.context.path());
        command.args(arguments);
        command
    }

    #[track_caller]
    fn build(&self, arguments: &[&str]) -> Finished {
        finish(&mut self.command(arguments)).success()
    }

    /// The steps of a build that were done.
    #[track_caller]
    fn done(&self, arguments: &[&str]) -> Vec<String> {
        Steps::of(&self.build(arguments)).done
    }

    /// Builds into a new layout.
    #[track_caller]
    fn layout(&self, name: &str, arguments: &[&str]) -> (Finished, PathBuf) {
        let layout = self.out.path().join(name);
        let arguments =
            [&["--custom-platform=linux/amd64", "-d", "r.example/app:latest"], arguments].concat();
        let finished = self.builder.layout(&self.context, &layout, &arguments).success();
        (finished, layout)
    }

    /// The records of results, each with its path.
    fn results(&self) -> Vec<(PathBuf, Value)> {
        let directory = self.builder.store().join("cache/results");
        let read = |entry: fs::DirEntry| {
            let text = fs::read_to_string(entry.path()).expect("record");
            let (_, json) = text.split_once('\n').expect("a hash, then the record");
            (entry.path(), serde_json::from_str(json).expect("JSON"))
        };
        fs::read_dir(directory).expect("results").map(|entry| read(entry.expect("entry"))).collect()
    }

    /// The record of the result with so many layers, of which there must be one.
    #[track_caller]
    fn result_with_layers(&self, count: usize) -> (PathBuf, Value) {
        let layers = |record: &Value| record["layers"].as_array().expect("layers").len();
        let mut found = self.results();
        found.retain(|(_, record)| layers(record) == count);
        assert_eq!(found.len(), 1, "results with {count} layers");
        found.remove(0)
    }
}

fn sh(directory: &Path, script: &str) {
    finish(Command::new("sh").args(["-euc", script]).current_dir(directory)).success();
}

/// The content of a file of the image in a layout.
fn file_in(layout: &Path, path: &str) -> String {
    let read = |root: &Path| fs::read_to_string(root.join(path)).expect("file of the image");
    with_unpacked(layout, "latest", read)
}

const THREE: &str = "FROM BASE\nARG A=1\nRUN echo x >/x\nCOPY f /f\nRUN cat /f >/y\n";

fn three() -> Project {
    let project = Project::new(THREE);
    project.context.write("f", "content");
    project.build(&[]);
    project
}

const X: &str = "RUN echo x >/x";
const F: &str = "COPY f /f";
const Y: &str = "RUN cat /f >/y";

#[test]
fn what_is_written_in_the_dockerfile_counts_where_it_changes_what_a_step_does() {
    let project = three();
    assert_eq!(project.done(&[]), [""; 0]);
    let cases: &[(&str, &[&str])] = &[
        // K3: what is only written down in the image.
        (
            "FROM BASE\nARG A=1\nLABEL a=b\nRUN echo x >/x\nHEALTHCHECK CMD x\nEXPOSE 80\nCOPY f /f\nCMD x\nRUN cat /f >/y\n",
            &[],
        ),
        (
            "FROM BASE\nARG A=1\nRUN echo x >/x\nVOLUME /v\nENTRYPOINT x\nSTOPSIGNAL 9\nCOPY f /f\nONBUILD ENV y=z\nRUN cat /f >/y\n",
            &[],
        ),
        // K10: how it is written.
        (
            "# more\n\n  # and more\nfrom BASE\n\narg A=1\nrun echo x >/x\nCopy f /f\n\n\nRUN \\\n# within\ncat /f >/y\n",
            &[],
        ),
        (
            "FROM BASE AS named\nARG A=1\nRUN echo x >/x\nCOPY ./f f\nRUN [\"/bin/sh\", \"-c\", \"cat /f >/y\"]\n",
            &[],
        ),
        // K4, and what else belongs to the process of a RUN.
        ("FROM BASE\nARG A=1\nRUN echo x >/x\nCOPY f /f\nENV q=1\nRUN cat /f >/y\n", &[Y]),
        ("FROM BASE\nARG A=1\nRUN echo x >/x\nENV q=2\nCOPY f /f\nRUN cat /f >/y\n", &[Y]),
        ("FROM BASE\nARG A=1\nRUN echo x >/x\nCOPY f /f\nUSER 0\nRUN cat /f >/y\n", &[Y]),
        ("FROM BASE\nARG A=1\nRUN echo x >/x\nUSER 0:0\nCOPY f /f\nRUN cat /f >/y\n", &[Y]),
        (
            "FROM BASE\nARG A=1\nRUN echo x >/x\nWORKDIR /tmp\nCOPY f /f\nRUN cat /f >/y\n",
            &["WORKDIR /tmp", Y],
        ),
        (
            "FROM BASE\nARG A=1\nRUN echo x >/x\nCOPY f /f\nSHELL [\"/bin/sh\", \"-ec\"]\nRUN cat /f >/y\n",
            &[Y],
        ),
        ("FROM BASE\nARG A=1\nRUN echo x >/x\nCOPY f /f\nRUN cat  /f >/y\n", &["RUN cat /f >/y"]),
        ("FROM BASE\nARG A=1\nRUN echo x >/x\nCOPY f /f\nARG B=1\nRUN cat /f >/y\n", &[Y]),
        (
            "FROM BASE\nARG A=1\nRUN echo x >/x\nCOPY --chmod=600 f /f\nRUN cat /f >/y\n",
            &["COPY --chmod=600 f /f", Y],
        ),
        (
            "FROM BASE\nARG A=1\nRUN echo x >/x\nCOPY --chown=1 f /f\nRUN cat /f >/y\n",
            &["COPY --chown=1 f /f", Y],
        ),
        ("FROM BASE\nARG A=1\nCOPY f /f\nRUN echo x >/x\n", &[F, X]),
    ];
    for (dockerfile, done) in cases {
        project.dockerfile(dockerfile);
        let finished = project.build(&[]);
        assert_eq!(Steps::of(&finished).done, *done, "{dockerfile}\n{}", finished.stderr);
        assert_eq!(project.done(&[]), [""; 0], "{dockerfile}");
    }
}

#[test]
fn arguments_count_where_they_are_declared() {
    let project = three();
    // K2: arguments that nobody declares, proxies, and the time that the image shows.
    for argument in ["OTHER=1", "HTTP_PROXY=http://p.example", "no_proxy=*", "SOURCE_DATE_EPOCH=1700000000"] {
        let finished = project.build(&["--build-arg", argument]);
        assert_eq!(Steps::of(&finished).done, [""; 0], "{argument}\n{}", finished.stderr);
    }
    // K1: one that is declared, though nothing uses it.
    assert_eq!(project.done(&["--build-arg", "A=2"]), [X, F, Y]);
    // Only what comes after it.
    project
        .dockerfile("FROM BASE\nRUN echo x >/x\nARG A=1\nCOPY f /f\nRUN cat /f >/y\nARG HTTP_PROXY\nRUN :\n");
    assert_eq!(project.done(&[]), [X, F, Y, "RUN :"], "without A, the first is another");
    assert_eq!(project.done(&["--build-arg", "A=2"]), [Y, "RUN :"]);
    assert_eq!(project.done(&["--build-arg", "HTTP_PROXY=http://p.example"]), ["RUN :"]);
}

#[test]
fn files_of_the_context_count_by_what_is_copied() {
    let project = Project::new("FROM BASE\nCOPY f /f\nCOPY d /d/\nRUN ls -R /d >/y\n");
    project.context.write("f", "content");
    project.context.write("d/a", "a");
    project.context.write("d/sub/b", "b");
    project.context.write("other", "nobody copies this");
    project.context.write(".dockerignore", "d/ignored\n");
    project.build(&[]);
    let (f, d, ls) = ("COPY f /f", "COPY d /d/", "RUN ls -R /d >/y");
    let cases: &[(&str, &[&str])] = &[
        // K5
        ("touch -d @1000 f d/a d", &[]),
        ("chown 5:6 f d/a d/sub", &[]),
        ("chmod 700 d/sub d", &[]),
        ("echo other >other; echo ignored >d/ignored; rm -f none", &[]),
        // K6
        ("chmod +x f", &[f, d, ls]),
        ("chmod -x f; chmod +x d/a", &[d, ls]),
        ("printf A >d/a", &[d, ls]),
        // P50: the same content elsewhere.
        ("mv d/sub/b d/sub/c", &[d, ls]),
        ("mkdir d/empty", &[d, ls]),
        ("ln -s a d/link", &[d, ls]),
        ("setcap cap_net_raw+ep d/a", &[d, ls]),
    ];
    for (change, done) in cases {
        sh(project.context.path(), &format!("PATH=$PATH:/usr/sbin; {change}"));
        let finished = project.build(&[]);
        assert_eq!(Steps::of(&finished).done, *done, "{change}\n{}", finished.stderr);
    }
    // What was built once is found again.
    sh(project.context.path(), "rm -r d/a d/sub/c d/link d/empty; printf a >d/a; printf b >d/sub/b");
    assert_eq!(project.done(&[]), [""; 0]);
}

#[test]
fn an_upstream_stage_counts_by_what_is_copied_from_it() {
    // K7, P54: the recipe is made anew, and is the same.
    let project = Project::new(
        "FROM BASE AS made\nARG A=1\nCOPY . /src\nRUN mkdir /out; cut -c1 /src/f >/out/r; date >/other\n\
         FROM BASE\nCOPY --from=made /out /out\nRUN cat /out/r >/expensive\n",
    );
    project.context.write("f", "1 and more");
    project.context.write(".dockerignore", "Dockerfile\n");
    project.build(&[]);
    let made = "RUN mkdir /out; cut -c1 /src/f >/out/r; date >/other";
    project.context.write("f", "1 and other");
    assert_eq!(project.done(&[]), ["COPY . /src", made]);
    assert_eq!(project.done(&["--build-arg", "A=2"]), [made]);
    project.context.write("f", "2");
    let copy = "COPY --from=made /out /out";
    assert_eq!(project.done(&[]), ["COPY . /src", made, copy, "RUN cat /out/r >/expensive"]);
    // Owners and modes come along, so they count.
    project.dockerfile(
        "FROM BASE AS made\nARG A=1\nCOPY . /src\nRUN mkdir /out; cut -c1 /src/f >/out/r; date >/other\n\
         RUN chown -R 7 /out\nFROM BASE\nCOPY --from=made /out /out\nRUN cat /out/r >/expensive\n",
    );
    assert_eq!(project.done(&[]), ["RUN chown -R 7 /out", copy, "RUN cat /out/r >/expensive"]);
}

#[test]
fn mounts_count_by_what_they_show_and_secrets_by_their_names() {
    // K8: of the build context, of a stage, of an image.
    let bind = "RUN --mount=type=bind,source=sub,target=/m cat /m/f >/f";
    let secret = "RUN --mount=type=secret,id=s cat /run/secrets/s >/dev/null";
    let from = "RUN --mount=type=bind,from=made,source=/out,target=/m cat /m/f >/g";
    let project = Project::new(&format!(
        "FROM BASE AS made\nARG A\nRUN mkdir /out; echo 1 >/out/f; echo $A >/other\nFROM BASE\n{bind}\n{secret}\n{from}\n"
    ));
    project.context.write("sub/f", "1");
    project.context.write("beside", "1");
    let value = project.out.path().join("secret");
    fs::write(&value, "one").expect("secret");
    let secret_flag = format!("id=s,src={}", value.display());
    let done = |more: &[&str]| project.done(&[&["--secret", &secret_flag], more].concat());
    assert_eq!(done(&[]).len(), 4);
    project.context.write("beside", "2");
    assert_eq!(done(&[]), [""; 0]);
    // K9
    fs::write(&value, "two").expect("secret");
    assert_eq!(done(&[]), [""; 0]);
    // K7 for mounts: the stage is built anew, and what is mounted of it is the same.
    assert_eq!(done(&["--build-arg", "A=2"]), ["RUN mkdir /out; echo 1 >/out/f; echo $A >/other"]);
    project.context.write("sub/f", "2");
    assert_eq!(done(&["--build-arg", "A=2"]), [bind, secret, from]);
    sh(project.context.path(), "touch -d @1000 sub/f; chown 7 sub/f");
    assert_eq!(done(&["--build-arg", "A=2"]), [""; 0]);
}

#[test]
fn variables_in_paths_count_by_what_they_make_of_them() {
    // P49, also for ADD and WORKDIR.
    let project =
        Project::new("FROM BASE\nARG A\nCOPY f /$A/f\nADD f /added/$A\nWORKDIR /at/$A\nRUN pwd >/pwd\n");
    project.context.write("f", "content");
    for (value, name) in [("one", "1"), ("two", "2"), ("one", "3")] {
        let (finished, layout) = project.layout(name, &["--build-arg", &format!("A={value}")]);
        assert_eq!(Steps::of(&finished).done.is_empty(), name == "3", "{}", finished.stderr);
        assert_eq!(file_in(&layout, &format!("{value}/f")), "content");
        assert_eq!(file_in(&layout, &format!("added/{value}")), "content");
        assert_eq!(file_in(&layout, "pwd"), format!("/at/{value}\n"));
    }
}

#[test]
fn removed_files_stay_removed() {
    // P02, P03
    let project = Project::new(
        "FROM BASE AS b\nRUN mkdir -p /o/k /s && touch /o/k/m && echo 1 >/s/f\nRUN rm /s/f\nFROM b AS m\nRUN rm -rf /o/k\n\
         FROM b\nCOPY --from=m /o/ /o/\nRUN find / -name '.wh.*' | wc -l >/markers; ls /s /o/k >/left\n",
    );
    let (first, one) = project.layout("one", &[]);
    let (second, two) = project.layout("two", &[]);
    assert_eq!(first.stdout, second.stdout);
    assert_eq!(Steps::of(&second).done, [""; 0]);
    // Now with files that come from the layers.
    sh(project.builder.store(), "rm -rf unpacked");
    project.dockerfile(
        "FROM BASE AS b\nRUN mkdir -p /o/k /s && touch /o/k/m && echo 1 >/s/f\nRUN rm /s/f\nFROM b AS m\nRUN rm -rf /o/k\n\
         FROM b\nCOPY --from=m /o/ /o/\nRUN find / -name '.wh.*' | wc -l >/markers; ls /s /o/k >/left; :\n",
    );
    let (third, three) = project.layout("three", &[]);
    assert_eq!(Steps::of(&third).done.len(), 1);
    let tree = tree::of_layout(&one, "latest", Times::Hidden);
    for layout in [two, three] {
        assert_eq!(tree::of_layout(&layout, "latest", Times::Hidden), tree);
        assert_eq!([file_in(&layout, "markers"), file_in(&layout, "left")], ["0\n", "/o/k:\nm\n\n/s:\n"]);
    }
}

#[test]
fn a_rebuild_gives_the_same_image_and_asks_the_registry_only_what_the_tag_is() {
    let project = Project::new("");
    let repository = format!("cache-{}/rebuild", std::process::id());
    let base = project.ground.copy("debian:latest", &repository);
    let target = format!("{repository}-target");
    let destination = project.ground.name(&format!("{target}:1"));
    project.context.write("f", "content");
    project.context.write(
        "Dockerfile",
        format!("FROM {base} AS a\nRUN date +%N >/t\nFROM {base}\nWORKDIR /w\nCOPY f .\nCOPY --from=a /t /t\nENV a=b\nRUN date +%N >/n\nLABEL c=d\n"),
    );
    let build = || {
        let mut command = project.builder.command();
        command.args(["--custom-platform=linux/amd64", "-v", "debug", "-d", &destination, "-c"]);
        finish(command.arg(project.context.path())).success()
    };
    let first = build();
    let unpacked =
        || fs::read_dir(project.builder.store().join("unpacked/all.trusted")).expect("unpacked").count();
    let before = unpacked();
    let mark = project.ground.mark();
    let second = build();
    assert_eq!(first.stdout, second.stdout);
    assert_eq!(Steps::of(&second).done, [""; 0]);
    let asked: Vec<_> = project.ground.requests(&mark, &repository);
    let asked: Vec<_> = asked.iter().map(|one| format!("{} {}", one.method, one.path)).collect();
    assert_eq!(asked, [format!("GET /v2/{repository}/manifests/latest")]);
    for word in ["unpacking", "unpacked", "fetching", "sent"] {
        assert!(!second.stderr.contains(word), "{word}: {}", second.stderr);
    }
    assert_eq!(unpacked(), before);
    assert!(second.says(&["5 remembered, 0 made"]), "{}", second.stderr);
    let pushed = project.ground.requests(&mark, &target);
    assert!(
        pushed.iter().all(|one| one.method != "PATCH" && !one.path.contains("/uploads/sha256")),
        "{pushed:?}"
    );
}

#[test]
fn a_push_to_elsewhere_sends_what_was_remembered_and_mounts_the_base() {
    let project = Project::new("");
    let repository = format!("cache-{}/elsewhere", std::process::id());
    let base = project.ground.copy("busybox:latest", &repository);
    project.context.write("Dockerfile", format!("FROM {base}\nRUN echo x >/x\n"));
    let push = |name: &str| {
        let destination = project.ground.name(&format!("{repository}-{name}:1"));
        let mut command = project.builder.command();
        command.args(["--custom-platform=linux/amd64", "-v", "debug", "-d", &destination, "-c"]);
        finish(command.arg(project.context.path())).success()
    };
    let first = push("one");
    let mark = project.ground.mark();
    let second = push("two");
    assert_eq!(first.stdout, second.stdout);
    let count = |words: &str| second.stderr.lines().filter(|line| line.ends_with(words)).count();
    assert_eq!((count(" mounted"), count(" sent")), (1, 1), "{}", second.stderr);
    assert!(project.ground.requests(&mark, &repository).iter().all(|one| !one.fetches_blob()));
}

#[test]
fn what_is_not_needed_is_not_fetched_even_for_stages_that_are_copied_from() {
    let project = Project::new("");
    let repository = format!("cache-{}/unneeded", std::process::id());
    let base = project.ground.copy("busybox:latest", &repository);
    let dockerfile = |last: &str| {
        let text =
            format!("FROM {base} AS a\nRUN echo a >/a\nFROM scratch\nCOPY --from=a /a /a\nCOPY f {last}\n");
        project.context.write("Dockerfile", text);
    };
    project.context.write("f", "content");
    dockerfile("/f");
    project.build(&[]);
    // As in a store whose files were cleared away.
    sh(project.builder.store(), "rm -rf unpacked");
    let layer = fs::read_dir(project.builder.store().join("blobs/sha256"))
        .expect("blobs")
        .map(|entry| entry.expect("entry").path());
    let largest =
        layer.max_by_key(|path| fs::metadata(path).expect("blob").len()).expect("the layer of the base");
    fs::remove_file(&largest).expect("remove");
    dockerfile("/g");
    let mark = project.ground.mark();
    assert_eq!(project.done(&[]), ["COPY f /g"]);
    assert!(project.ground.requests(&mark, &repository).iter().all(|one| !one.fetches_blob()));
    assert!(!largest.exists());
}

#[test]
fn an_image_without_new_layers_keeps_its_time() {
    let project = Project::new("FROM BASE\nENV a=b\nLABEL c=d\n");
    let first = project.build(&[]);
    assert_eq!(project.build(&[]).stdout, first.stdout);
    assert_ne!(project.build(&["--no-cache"]).stdout, first.stdout);
}

#[test]
fn the_files_of_steps_are_kept_for_the_next_build() {
    let project = Project::new(
        "FROM BASE\nRUN mkdir /d; echo 1 >/d/f; rm -r /home\nRUN rm /d/f; echo 2 >/d/g\nRUN ls / /d\n",
    );
    project.build(&[]);
    project.dockerfile(
        "FROM BASE\nRUN mkdir /d; echo 1 >/d/f; rm -r /home\nRUN rm /d/f; echo 2 >/d/g\nRUN ls /d >/ls\n",
    );
    let (finished, one) = project.layout("one", &["-v", "debug"]);
    assert_eq!(Steps::of(&finished).done, ["RUN ls /d >/ls"]);
    assert!(!finished.stderr.contains("unpacking"), "{}", finished.stderr);
    // The same from the layers' blobs.
    sh(project.builder.store(), "rm -rf unpacked");
    let dockerfile = fs::read_to_string(project.context.path().join("Dockerfile")).expect("Dockerfile");
    project.context.write("Dockerfile", format!("{dockerfile}RUN :\n"));
    let (finished, two) = project.layout("two", &["-v", "debug"]);
    assert_eq!(Steps::of(&finished).done, ["RUN :"]);
    assert_eq!(finished.stderr.matches("unpacking").count(), 4, "{}", finished.stderr);
    let [one, two] = [one, two].map(|layout| tree::of_layout(&layout, "latest", Times::Shown));
    assert_eq!(one, two);
}

#[test]
fn one_result_that_is_lost_is_no_reason_to_do_the_others_again() {
    // P53: what stands on it is complete in itself.
    let steps: String = (1..=8).map(|number| format!("RUN echo {number} >/f{number}\n")).collect();
    let project = Project::new(&format!("FROM BASE\n{steps}"));
    let first = project.build(&[]);
    let (third, _) = project.result_with_layers(3);
    fs::remove_file(&third).expect("remove");
    let second = project.build(&[]);
    assert_eq!((Steps::of(&second).done, second.stdout), (Vec::new(), first.stdout.clone()));
    // Where nothing stands on it, it is done again, and what is on the new files cannot be the old.
    let (last, _) = project.result_with_layers(8);
    fs::remove_file(&last).expect("remove");
    let third = project.build(&[]);
    assert_eq!(Steps::of(&third).done, ["RUN echo 8 >/f8"]);
    assert_ne!(third.stdout, first.stdout);
}

#[test]
fn a_layer_that_is_lost_is_made_again_with_all_on_it() {
    let project = Project::new("FROM BASE\nRUN echo 1 >/f1\nRUN echo 2 >/f2\nRUN echo 3 >/f3\n");
    let (first, _) = project.layout("first", &[]);
    let (_, record) = project.result_with_layers(2);
    let digest = record["layers"][1]["blob"]["digest"].as_str().expect("digest").to_owned();
    let blob = project.builder.store().join("blobs/sha256").join(digest.trim_start_matches("sha256:"));
    fs::remove_file(&blob).expect("remove");
    let (second, layout) = project.layout("second", &[]);
    assert_eq!(Steps::of(&second).found, ["RUN echo 1 >/f1"]);
    assert_eq!(Steps::of(&second).done, ["RUN echo 2 >/f2", "RUN echo 3 >/f3"]);
    let notes = second.stderr.lines().filter(|line| line.contains("is not in the store any more"));
    assert_eq!(notes.count(), 1, "told once: {}", second.stderr);
    assert_ne!(second.stdout, first.stdout);
    LayoutImage::only(&layout);
    assert_eq!(project.build(&[]).stdout, second.stdout);
}

#[test]
fn what_stands_on_a_layer_that_comes_out_the_same_is_found_again() {
    let project = Project::new("FROM BASE\nRUN echo 1 >/f1\nRUN true\nRUN echo 3 >/f3\nRUN true # 4\n");
    project.build(&[]);
    let (_, record) = project.result_with_layers(2);
    let digest = record["layers"][1]["blob"]["digest"].as_str().expect("digest").to_owned();
    let blob = project.builder.store().join("blobs/sha256").join(digest.trim_start_matches("sha256:"));
    fs::remove_file(&blob).expect("remove");
    let finished = project.build(&[]);
    assert_eq!(Steps::of(&finished).done, ["RUN true"], "{}", finished.stderr);
}

#[test]
fn what_a_definition_stands_for_is_found_out_again() {
    let project = Project::new(
        "FROM BASE AS a\nRUN echo 1 >/f1\nFROM BASE\nRUN echo 2 >/f2\nCOPY --from=a /f1 /\nRUN cat /f1\n",
    );
    let first = project.build(&[]);
    sh(project.builder.store(), "rm -rf cache/contents unpacked");
    let second = project.build(&["-v", "debug"]);
    assert_eq!((Steps::of(&second).done, &second.stdout), (Vec::new(), &first.stdout), "{}", second.stderr);
    assert!(second.says(&["unpacking"]), "{}", second.stderr);
    let third = project.build(&["-v", "debug"]);
    assert!(!third.says(&["is unpacked already"]), "{}", third.stderr);
}

#[test]
fn results_of_two_runs_are_never_mixed() {
    let project =
        Project::new("FROM BASE AS a\nRUN cat /proc/sys/kernel/random/uuid >/t\nFROM a\nRUN cp /t /u\n");
    project.build(&[]);
    assert_eq!(project.done(&["--no-cache", "--target", "a"]).len(), 1);
    let (finished, layout) = project.layout("mixed", &[]);
    assert_eq!(Steps::of(&finished).done, ["RUN cp /t /u"], "{}", finished.stderr);
    assert_eq!(file_in(&layout, "t"), file_in(&layout, "u"));
    assert_eq!(project.done(&[]), [""; 0]);
}

#[test]
fn a_damaged_layer_is_noticed_when_its_files_are_needed_and_made_again() {
    let project = Project::new("FROM BASE AS a\nRUN echo 1 >/f1\nFROM a\nRUN echo 2 >/f2\n");
    project.build(&[]);
    let (_, record) = project.result_with_layers(1);
    let digest = record["layers"][0]["blob"]["digest"].as_str().expect("digest").to_owned();
    let blob = project.builder.store().join("blobs/sha256").join(digest.trim_start_matches("sha256:"));
    let mut bytes = fs::read(&blob).expect("blob");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::remove_file(&blob).expect("remove");
    fs::write(&blob, bytes).expect("write");
    sh(project.builder.store(), "rm -rf unpacked");
    project.dockerfile("FROM BASE AS a\nRUN echo 1 >/f1\nFROM a\nRUN cat /f1 >/f2\n");
    let (finished, layout) = project.layout("again", &[]);
    assert!(finished.says(&["a layer of a remembered result is damaged"]), "{}", finished.stderr);
    assert_eq!(Steps::of(&finished).done, ["RUN echo 1 >/f1", "RUN cat /f1 >/f2"]);
    assert_eq!(file_in(&layout, "f2"), "1\n");
}

#[test]
fn a_damaged_layer_that_nobody_unpacks_fails_once_and_is_made_again() {
    let project = Project::new("FROM BASE\nRUN echo 1 >/f1\n");
    project.build(&[]);
    let (_, record) = project.result_with_layers(1);
    let digest = record["layers"][0]["blob"]["digest"].as_str().expect("digest").to_owned();
    let blob = project.builder.store().join("blobs/sha256").join(digest.trim_start_matches("sha256:"));
    let mut bytes = fs::read(&blob).expect("blob");
    bytes[20] ^= 1;
    fs::remove_file(&blob).expect("remove");
    fs::write(&blob, bytes).expect("write");
    let name = project.ground.name(&format!("cache-{}/damaged:1", std::process::id()));
    let push = || {
        let mut command = project.builder.command();
        command.args(["--custom-platform=linux/amd64", "-d", &name, "-c"]).arg(project.context.path());
        finish(&mut command)
    };
    let failed = push().exited(1);
    assert!(failed.stderr.contains("a blob of the store was damaged"), "{}", failed.stderr);
    assert_eq!(Steps::of(&push().success()).done, ["RUN echo 1 >/f1"]);
}

#[test]
fn a_damaged_record_is_told_and_the_step_is_done() {
    let project = three();
    let mut records: Vec<PathBuf> = project.results().into_iter().map(|(path, _)| path).collect();
    records.sort();
    for (number, path) in records.iter().enumerate() {
        let text = fs::read(path).expect("record");
        fs::write(path, &text[..text.len() - 1 - number]).expect("damage");
    }
    let finished = project.build(&[]);
    assert_eq!(Steps::of(&finished).done, [X, F, Y]);
    for path in &records {
        let name = path.file_name().expect("name").to_str().expect("name");
        assert!(
            finished.says(&["warning: cache: ", name, "was damaged; it has been removed"]),
            "{}",
            finished.stderr
        );
    }
    assert_eq!(project.done(&[]), [""; 0]);
}

#[test]
fn a_cache_that_cannot_be_used_is_told_and_the_build_goes_on() {
    let project = three();
    let results = project.builder.store().join("cache/results");
    fs::rename(&results, results.with_extension("away")).expect("rename");
    fs::write(&results, "no directory").expect("write");
    let finished = project.build(&[]);
    assert_eq!(Steps::of(&finished).done, [X, F, Y]);
    for words in [["warning: cache: ", "cannot read"], ["warning: cache: ", "cannot write"]] {
        assert!(finished.says(&words), "{}", finished.stderr);
    }
}

#[test]
fn without_cache_everything_is_done_and_remembered_anew() {
    let project = Project::new("FROM BASE\nRUN cat /proc/sys/kernel/random/uuid >/t\nRUN cat /t >/u\n");
    let first = project.build(&[]);
    assert_eq!(project.build(&[]).stdout, first.stdout);
    let anew = project.build(&["--no-cache"]);
    assert_eq!(Steps::of(&anew).done.len(), 2, "{}", anew.stderr);
    assert_ne!(anew.stdout, first.stdout);
    assert_eq!(project.build(&["--no-cache=false"]).stdout, anew.stdout);
}

#[test]
fn a_step_that_fails_or_is_interrupted_is_not_remembered() {
    let project = Project::new("FROM BASE\nRUN echo 1 >/f\nRUN echo started; test -e /never\n");
    for _ in 0..2 {
        let failed = finish(&mut project.command(&[])).exited(1);
        assert!(failed.says(&["| started"]), "{}", failed.stderr);
    }
    assert_eq!(project.results().len(), 1, "the step before it");
    project.dockerfile("FROM BASE\nRUN echo 1 >/f\nRUN echo started; sleep 1000\n");
    let mut running = Running::start(&mut project.command(&[]));
    running.wait_for("| started");
    running.signal(Signal::TERM);
    running.end(Duration::from_secs(10)).exited(143);
    assert_eq!(project.results().len(), 1);
}

#[test]
fn equal_steps_of_one_build_are_done_once() {
    let project = Project::new(
        "FROM BASE AS a\nRUN cat /proc/sys/kernel/random/uuid >/t\nFROM BASE AS b\nRUN cat /proc/sys/kernel/random/uuid >/t\n\
         FROM scratch\nCOPY --from=a /t /a\nCOPY --from=b /t /b\n",
    );
    let (finished, layout) = project.layout("one", &[]);
    assert_eq!(Steps::of(&finished).found, ["RUN cat /proc/sys/kernel/random/uuid >/t"]);
    assert_eq!(file_in(&layout, "a"), file_in(&layout, "b"));
}

/// What the base image triggers is done like any other step.
#[test]
fn triggers_of_a_base_are_remembered() {
    let project = Project::new("FROM BASE\nONBUILD RUN cat /proc/sys/kernel/random/uuid >/t\n");
    let base = project.ground.name(&format!("cache-{}/trigger:1", std::process::id()));
    let mut push = project.builder.command();
    finish(push.args(["-d", &base, "-c"]).arg(project.context.path())).success();
    project.context.write("Dockerfile", format!("FROM {base}\nCMD x\n"));
    let first = project.build(&[]);
    assert_eq!(Steps::of(&first).done.len(), 1, "{}", first.stderr);
    let second = project.build(&[]);
    assert_eq!((Steps::of(&second).found.len(), second.stdout), (1, first.stdout));
}

#[test]
fn no_platform_gets_what_was_run_for_another() {
    let project = Project::new("FROM BASE\nRUN uname -m >/m\n");
    let builder = &project.builder;
    let platforms = ["linux/amd64", "linux/arm/v5", "linux/arm/v7", "linux/386"];
    for round in 0..2 {
        for platform in platforms {
            let arguments = ["--no-push", "--custom-platform", platform, "-c"];
            let finished = finish(builder.command().args(arguments).arg(project.context.path())).success();
            assert_eq!(Steps::of(&finished).done.len(), 1 - round, "{platform}: {}", finished.stderr);
        }
    }
    // Even where the base is the same for all.
    project.dockerfile("FROM scratch AS s\nCOPY --from=BASE / /\nRUN echo x >/x\n");
    for (platform, done) in
        [("linux/amd64", 2), ("linux/amd64/v2", 1), ("linux/amd64/v3", 1), ("linux/amd64", 0)]
    {
        let arguments = ["--no-push", "--custom-platform", platform, "-c"];
        let finished = finish(builder.command().args(arguments).arg(project.context.path())).success();
        assert_eq!(Steps::of(&finished).done.len(), done, "{platform}: {}", finished.stderr);
    }
}

#[test]
fn a_step_that_two_builds_want_is_done_once() {
    let project = Project::new(
        "FROM BASE\nRUN cat /proc/sys/kernel/random/uuid >/t; echo started; sleep 2\nRUN cat /t >/u\n",
    );
    let mut first = Running::start(&mut project.command(&[]));
    first.wait_for("| started");
    let mut second = Running::start(&mut project.command(&[]));
    second.wait_for("[2/3] waiting for another build that runs this step");
    let second = second.end(Duration::from_secs(60)).success();
    let first = first.end(Duration::from_secs(60)).success();
    assert_eq!(first.stdout, second.stdout);
    assert_eq!(Steps::of(&first).done.len(), 2);
    assert!(Steps::of(&second).found[0].contains("sleep 2"), "{}", second.stderr);
}

#[test]
fn when_the_build_that_is_waited_for_ends_badly_the_next_one_does_the_step() {
    let step = "echo started; test -e /proc/sys && sleep 3";
    for signal in [Some(Signal::KILL), Some(Signal::TERM), None] {
        let project = Project::new(&format!("FROM BASE\nRUN {step}\n"));
        if signal.is_none() {
            // It fails by itself, and so does the other.
            project.dockerfile("FROM BASE\nRUN echo started; sleep 1; false\n");
        }
        let mut first = Running::start(&mut project.command(&[]));
        first.wait_for("| started");
        let mut second = Running::start(&mut project.command(&[]));
        second.wait_for("waiting for another build that runs this step");
        if let Some(signal) = signal {
            first.signal(signal);
        }
        first.end(Duration::from_secs(30));
        second.wait_for("| started");
        let second = second.end(Duration::from_secs(60));
        assert_eq!(second.code, Some(i32::from(signal.is_none())), "{}", second.stderr);
        traces::assert_none(project.builder.store());
    }
}

#[test]
fn who_waits_for_another_build_can_be_stopped() {
    let project = Project::new("FROM BASE\nRUN echo started; sleep 1000\n");
    let mut first = Running::start(&mut project.command(&[]));
    first.wait_for("| started");
    let mut second = Running::start(&mut project.command(&[]));
    second.wait_for("waiting for another build that runs this step");
    second.signal(Signal::TERM);
    second.end(Duration::from_secs(3)).exited(143);
    // Who uses no cache does not wait either.
    let mut third = Running::start(&mut project.command(&["--no-cache"]));
    third.wait_for("| started");
    third.signal(Signal::TERM);
    third.end(Duration::from_secs(10)).exited(143);
    first.signal(Signal::TERM);
    first.end(Duration::from_secs(10)).exited(143);
}

#[test]
fn a_file_that_changes_while_it_is_copied_is_never_taken_for_what_it_was() {
    let project = Project::new("FROM scratch\nCOPY f /f\n");
    let path = project.context.path().join("f");
    let contents = [b"A", b"B"].map(|letter| letter.repeat(2_000_000));
    fs::write(&path, &contents[0]).expect("write");
    let stop = std::sync::atomic::AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        scope.spawn(|| {
            let other = project.out.path().join("other");
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                for content in &contents {
                    // As editors do it: whoever has the old one open does not notice.
                    fs::write(&other, content).expect("write");
                    fs::rename(&other, &path).expect("rename");
                }
            }
        });
        let builds = (0..30).map(|_| finish(&mut project.command(&["--no-cache"])).success());
        let noticed = |build: Finished| build.says(&["the build context was changed while"]);
        let seen = builds.map(noticed).filter(|noticed| *noticed).count();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        seen
    });
    assert!(seen > 0, "it never happened");
    for (name, content) in ["a", "b"].iter().zip(&contents) {
        fs::write(&path, content).expect("write");
        let (_, layout) = project.layout(name, &[]);
        assert!(
            file_in(&layout, "f").as_bytes() == content.as_slice(),
            "{name}: another content was remembered"
        );
    }
}

const SEVERAL: &str = "FROM BASE AS a\nRUN mkdir /d; echo 1 >/d/one; ln /d/one /d/two\nFROM BASE\nENV x=y\nRUN echo gone >/gone\n\
    COPY --chown=5:6 f /c/\nWORKDIR /w\nRUN rm /gone; echo $x >x; mkfifo /p\nUSER 7\nCOPY --from=a /d /d\nLABEL l=m\nMAINTAINER me\n";

#[test]
fn with_one_layer_a_stage_the_files_are_the_same() {
    let project = Project::new(SEVERAL);
    project.context.write("f", "content");
    let (_, several) = project.layout("several", &[]);
    let (first, single) = project.layout("single", &["--single-snapshot"]);
    assert_eq!(Steps::of(&first).done.len(), 6, "one layer of all is another result: {}", first.stderr);
    let [one, other] = [&several, &single].map(|layout| tree::of_layout(layout, "latest", Times::Hidden));
    assert_eq!(one, other);

    let [several, single] = [&several, &single].map(|layout| LayoutImage::only(layout));
    assert_eq!((several.manifest.layers().len(), single.manifest.layers().len()), (6, 2));
    let rows = |image: &LayoutImage| -> Vec<(String, bool)> {
        let rows = image.raw_config["history"].as_array().expect("history").iter();
        rows.map(|row| {
            (row["created_by"].as_str().unwrap_or_default().to_owned(), row["empty_layer"] == true)
        })
        .collect()
    };
    let [several_rows, single_rows] = [rows(&several), rows(&single)];
    assert_eq!(several_rows.len(), single_rows.len());
    assert!(several_rows.iter().zip(&single_rows).all(|(one, other)| one.0 == other.0));
    let new = &single_rows[single_rows.len() - 9..];
    let with_layer: Vec<_> = new.iter().filter(|(_, empty)| !empty).map(|(row, _)| row.as_str()).collect();
    assert_eq!(with_layer, ["COPY /d /d # buildkit"], "{new:?}");
    let [mut one, mut other] = [several.raw_config, single.raw_config];
    for config in [&mut one, &mut other] {
        for field in ["rootfs", "history", "created"] {
            config[field].take();
        }
    }
    assert_eq!(one, other);

    // It is remembered as a whole, by the spelling of kaniko's older versions too.
    let second = project.build(&["--singleSnapshot"]);
    let found = Steps::of(&second);
    assert_eq!(
        (found.done.len(), found.found.len(), &second.stdout),
        (0, 6, &first.stdout),
        "{}",
        second.stderr
    );
    project.dockerfile(&SEVERAL.replace("echo 1 >/d/one", "echo 2 >/d/one"));
    assert_eq!(project.done(&["--single-snapshot"]).len(), 6);
    let plan = project.builder.run([
        "plan",
        "--single-snapshot",
        "-c",
        project.context.path().to_str().expect("path"),
    ]);
    let history = plan.success().json()["image"]["history"].as_array().expect("history").clone();
    assert_eq!(history[history.len() - 9..].iter().filter(|row| row["empty_layer"] != true).count(), 1);
}
