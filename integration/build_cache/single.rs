//! One layer for all steps of a stage.

use super::*;

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
