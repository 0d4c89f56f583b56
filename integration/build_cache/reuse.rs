//! What is not done, fetched or unpacked again.

use super::*;

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
    rebuilt("overlayfs");
}

#[test]
fn a_rebuild_in_plain_directories_gives_the_same_and_asks_no_more() {
    rebuilt("native");
}

fn rebuilt(snapshotter: &str) {
    let project = Project::new("");
    let repository = format!("cache-{}/rebuild-{snapshotter}", std::process::id());
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
        command.args([
            "--custom-platform=linux/amd64",
            "-v",
            "debug",
            "-d",
            &destination,
            "--snapshotter",
            snapshotter,
            "-c",
        ]);
        finish(command.arg(project.context.path())).success()
    };
    let first = build();
    let unpacked = || {
        finish(Command::new("find").arg(project.builder.store().join("unpacked")).args(["-maxdepth", "2"]))
            .stdout
    };
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
fn without_cache_everything_is_done_and_remembered_anew() {
    let project = Project::new("FROM BASE\nRUN cat /proc/sys/kernel/random/uuid >/t\nRUN cat /t >/u\n");
    let first = project.build(&[]);
    assert_eq!(project.build(&[]).stdout, first.stdout);
    let anew = project.build(&["--no-cache"]);
    assert_eq!(Steps::of(&anew).done.len(), 2, "{}", anew.stderr);
    assert_ne!(anew.stdout, first.stdout);
    assert_eq!(project.build(&["--no-cache=false"]).stdout, anew.stdout);
}
