//! What a step depends on, and what not.

use super::*;

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
fn equal_steps_of_one_build_are_done_once() {
    let project = Project::new(
        "FROM BASE AS a\nRUN cat /proc/sys/kernel/random/uuid >/t\nFROM BASE AS b\nRUN cat /proc/sys/kernel/random/uuid >/t\n\
         FROM scratch\nCOPY --from=a /t /a\nCOPY --from=b /t /b\n",
    );
    let (finished, layout) = project.layout("one", &[]);
    assert_eq!(Steps::of(&finished).found, ["RUN cat /proc/sys/kernel/random/uuid >/t"]);
    assert_eq!(file_in(&layout, "a"), file_in(&layout, "b"));
}

/// In a chroot there is no /proc, and what is mounted can be written to.
#[test]
fn what_a_run_finds_around_it_counts() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped `what_a_run_finds_around_it_counts`: only root can change its root");
        return;
    }
    let (run, copy, mount) =
        ("RUN ls /proc | wc -l >/n", "COPY f /g", "RUN --mount=target=/m touch /m/f || echo refused >/r");
    let project = Project::new(&format!("FROM BASE\nCOPY f /f\n{run}\n{copy}\n{mount}\n"));
    project.context.write("f", "content");
    let done = |isolation: &str| project.done(&[&format!("--isolation={isolation}")]);
    assert_eq!(done("mount-namespace"), ["COPY f /f", run, copy, mount]);
    // Files are the same everywhere, until a RUN has changed some.
    assert_eq!(done("chroot"), [run, copy, mount]);
    assert_eq!(done("chroot"), [""; 0]);
    // Nor has it replaced what was remembered.
    assert_eq!(done("mount-namespace"), [""; 0]);
    let (_, layout) = project.layout("one", &["--isolation=mount-namespace"]);
    assert_ne!(file_in(&layout, "n"), "0\n");
    assert_eq!(file_in(&layout, "r"), "refused\n");
    let (_, layout) = project.layout("two", &["--isolation=chroot"]);
    assert_eq!(file_in(&layout, "n"), "0\n");
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
