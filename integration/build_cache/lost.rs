//! Results that are lost, damaged or of another run.

use super::*;

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
