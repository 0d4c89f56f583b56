//! `RUN --mount=type=bind` and `type=tmpfs` through the whole program: what a step sees, and what is left of it.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use crate::support::ground::ground;
use crate::support::oci::{LayoutImage, with_unpacked};
use crate::support::tree::{Times, dump};
use crate::support::user::User;
use crate::support::{Builder, Context, Finished, finish, scratch, traces};

/// A context whose Dockerfile has the ground's busybox for `BASE`.
fn context(dockerfile: &str) -> Context {
    Context::new(&dockerfile.replace("BASE", &ground().name("busybox:latest")))
}

fn build(context: &Context) -> Finished {
    let builder = Builder::new();
    let finished = builder.run(["--no-push".as_ref(), "-c".as_ref(), context.path().as_os_str()]);
    traces::assert_none(builder.store());
    finished
}

/// What the steps wrote, without their tags.
fn output(finished: &Finished) -> Vec<String> {
    let lines = finished.stderr.lines().filter_map(|line| line.split_once("] | "));
    lines.map(|(_, text)| text.to_owned()).collect()
}

fn lines(context: &Context) -> Vec<String> {
    output(&build(context).success())
}

/// Paths of the layers that a build on busybox adds, one list for each.
fn layers(context: &Context) -> Vec<Vec<String>> {
    let out = scratch();
    let layout = out.path().join("layout");
    Builder::new().layout(context, &layout, &[]).success();
    LayoutImage::only(&layout).layer_paths(&layout).split_off(1)
}

/// The line of the Dockerfile and the message of a build that fails.
fn failure(dockerfile: &str) -> (String, String) {
    let finished = build(&context(dockerfile)).exited(1);
    let place = finished.stderr.lines().find_map(|line| line.split_once("Dockerfile:")).expect("a place").1;
    (place.to_owned(), finished.stderr.clone())
}

#[test]
fn a_directory_of_the_context_is_read_only_and_its_programs_have_no_rights() {
    let context = context(
        "FROM BASE\nRUN --mount=target=/m cat /m/sub/f; touch /m/x 2>/dev/null || echo refused; \
         rm -f /m/sub/f 2>/dev/null || echo refused; \
         grep ' /m ' /proc/mounts | cut -d' ' -f4 | tr , '\\n' | grep -xE 'ro|nosuid|nodev'\n",
    );
    context.write("sub/f", "F\n");
    assert_eq!(lines(&context), ["F", "refused", "refused", "ro", "nosuid", "nodev"]);
}

#[test]
fn what_is_ignored_is_not_there_and_everything_is_root_s() {
    let context = context(
        "FROM BASE\nRUN --mount=target=/m cd /m && find . | sort && stat -c '%u:%g %a %n' src/a src\n\
         RUN --mount=target=/m,source=src ls -a /m; ! test -e /m/b\n",
    );
    for name in ["src/a", "src/b", "src/c/x", ".git/config", "node_modules/big/file"] {
        context.write(name, name);
    }
    context.write(".dockerignore", ".git\nnode_modules\nsrc/b\nsrc/c\nDockerfile\n!src/c/y\n");
    std::os::unix::fs::chown(context.path().join("src/a"), Some(1000), Some(1000)).unwrap();
    assert_eq!(
        lines(&context),
        [".", "./.dockerignore", "./src", "./src/a", "0:0 644 src/a", "0:0 755 src", ".", "..", "a"]
    );
}

#[test]
fn a_store_in_the_context_is_not_shown() {
    let context =
        context("FROM BASE\nRUN --mount=target=/m ls /m\nRUN --mount=target=/m,rw touch /m/x && ls /m\n");
    let store = context.path().join("store");
    let arguments = ["--no-push", "--store", store.to_str().unwrap(), "-c", context.path().to_str().unwrap()];
    let finished = Builder::new().run(arguments).success();
    assert_eq!(output(&finished), ["Dockerfile", "Dockerfile", "x"]);
}

/// Every file of a directory, with its content.
fn contents(directory: &Path) -> Vec<(String, Vec<u8>)> {
    let listing = dump(directory, Times::Shown);
    let names = listing.lines().filter(|line| line.contains(" file ")).map(|line| {
        let name = line.split(' ').next().unwrap();
        (line.to_owned(), fs::read(directory.join(&name[1..])).unwrap())
    });
    names.collect()
}

/// CVE-2025-4953: what a step wrote to its context stayed on the machine.
#[test]
fn what_is_written_to_the_context_is_discarded_and_the_context_stays_as_it_is() {
    for rules in ["", "ignored\n"] {
        let context = context(
            "FROM BASE\n\
             RUN --mount=target=/m,rw rm -rf /m/d /m/file && echo new >/m/new && mkdir /m/e && chmod 700 /m && ls /m\n\
             RUN --mount=target=/m,rw ls /m\n\
             RUN --mount=target=/m/x,source=file,rw echo other >/m/x && cat /m/x\n\
             RUN --mount=target=/m/x,source=file cat /m/x\n",
        );
        context.write("d/f", "F");
        context.write("file", "file\n");
        context.write("ignored", "");
        context.write(".dockerignore", rules);
        let before = (dump(context.path(), Times::Shown), contents(context.path()));
        let mut found = lines(&context);
        found.retain(|name| name != "ignored");
        let expected = ["Dockerfile", "e", "new", "Dockerfile", "d", "file", "other", "file"];
        assert_eq!(found, expected, "{rules:?}");
        assert_eq!((dump(context.path(), Times::Shown), contents(context.path())), before, "{rules:?}");
    }
}

#[test]
fn stages_and_images_are_mounted_and_only_those_that_are_needed_are_built() {
    let base = ground().name("busybox:latest");
    let context = context(&format!(
        "FROM BASE AS tools\nRUN mkdir /t && echo tool >/t/x && ln -s /t /link && chown 7:8 /t/x\n\
         FROM BASE AS unused\nRUN exit 9\n\
         FROM BASE AS result\n\
         RUN --mount=from=tools,source=link,target=/m cat /m/x; stat -c %u:%g /m/x; touch /m/y 2>/dev/null || echo refused\n\
         RUN --mount=from=tools,target=/m,rw echo changed >/m/t/x; cat /m/t/x\n\
         RUN --mount=from=TOOLS,source=/t/x,target=/m cat /m\n\
         RUN --mount=from={base},source=/etc,target=/m head -n1 /m/passwd | cut -d: -f1\n\
         RUN --mount=from=scratch,target=/m ls -A /m | wc -l\n\
         FROM result\nRUN --mount=from=result,source=bin/sh,target=/new/sh --mount=from=tools,target=/t /new/sh -c 'cat /t/t/x'\n"
    ));
    assert_eq!(lines(&context), ["tool", "7:8", "refused", "changed", "tool", "root", "0", "tool"]);
}

#[test]
fn a_stage_that_stands_on_another_may_mount_it_too() {
    let context = context(
        "FROM BASE AS a\nRUN echo old >/f\n\
         FROM a\nRUN echo new >/f\nRUN --mount=from=a,source=f,target=/old cat /old /f\n",
    );
    assert_eq!(lines(&context), ["old", "new"]);
}

#[test]
fn triggers_mount_stages_as_well() {
    let context = context(
        "FROM BASE AS tools\nRUN echo tool >/x\n\
         FROM BASE AS base\nONBUILD RUN --mount=from=tools,target=/t cat /t/x\n\
         FROM base\n",
    );
    assert_eq!(lines(&context), ["tool"]);
}

#[test]
fn a_mount_from_what_cannot_be_is_an_error_with_its_line() {
    for (dockerfile, line, message) in [
        (
            "FROM BASE\nRUN --mount=source=/nope,target=/m true\n",
            "2",
            "\"/nope\": not found: the source of RUN --mount is not in the build context",
        ),
        (
            "FROM BASE AS a\nFROM BASE\nUSER 0\nRUN --mount=from=a,source=nope,target=/m true\n",
            "4",
            "\"/nope\": not found: the source of RUN --mount is not in stage `a`",
        ),
        (
            "FROM BASE AS a\nRUN --mount=from=later,target=/m true\nFROM BASE AS later\nFROM a\n",
            "2",
            "cannot mount from stage \"later\" to \"/m\", stage needs to be defined before current command",
        ),
        (
            "FROM BASE AS a\nRUN --mount=from=a,target=/m true\n",
            "2",
            "circular dependency detected on stage: a",
        ),
        ("FROM BASE\nRUN --mount=from=$x,target=/m true\n", "2", "'from' doesn't support variable expansion"),
        ("FROM BASE\nRUN --mount=target=/ true\n", "2", "invalid mount target \"/\""),
        ("FROM BASE\nRUN --mount=target=/../ true\n", "2", "invalid mount target \"/\""),
        ("FROM BASE\nRUN --mount=target= true\n", "2", "invalid mount target \"/\""),
        (
            "FROM BASE\nRUN --mount=type=tmpfs,target=/proc/self true\n",
            "2",
            "invalid mount target \"/proc/self\"",
        ),
        ("FROM BASE\nRUN --mount=type=tmpfs,target=/dev true\n", "2", "invalid mount target \"/dev\""),
        ("FROM BASE\nRUN --mount=type=ssh,required true\n", "2", "no SSH key \"\" forwarded from the client"),
        // CVE-2024-9407: options went into the text that mount(8) takes apart.
        (
            "FROM BASE\nRUN --mount=target=/m,bind-propagation=suid true\n",
            "2",
            "unexpected key 'bind-propagation'",
        ),
        ("FROM BASE\nRUN --mount=target=/m,Z true\n", "2", "invalid field 'Z' must be a key=value pair"),
        ("FROM BASE\nRUN --mount=type=tmpfs,target=/m,size=1m,mode=777 true\n", "2", "mode not allowed"),
        ("FROM BASE\nRUN --mount=type=tmpfs,target=/m,size=1,rw=maybe true\n", "2", "invalid value for rw"),
    ] {
        let (place, text) = failure(dockerfile);
        assert_eq!(place, line, "{dockerfile}\n{text}");
        assert!(text.contains(message), "{dockerfile}\n{text}");
    }
}

#[test]
fn values_expand_and_relative_targets_join_the_working_directory() {
    let context = context(
        "FROM BASE\nARG what=sub\nENV where=in\nWORKDIR /w\n\
         RUN --mount=source=$what/${nothing:-f},target=$where/f cat in/f; pwd\n\
         RUN --mount=target=.,rw cat sub/f; pwd; touch x; ls\n",
    );
    context.write("sub/f", "F\n");
    assert_eq!(lines(&context), ["F", "/w", "F", "/w", "Dockerfile", "sub", "x"]);
}

#[test]
fn a_tmpfs_has_the_mode_of_what_it_covers_and_the_size_that_is_asked_for() {
    let context = context(
        "FROM BASE\nRUN mkdir -m 750 /d && echo x >/d/f\n\
         RUN --mount=type=tmpfs,target=/d --mount=type=tmpfs,target=/new,size=64k \
         stat -c '%a %u:%g' /d /new; ls -A /d; touch /d/y; dd if=/dev/zero of=/new/z bs=1k count=100 2>/dev/null || echo full\n\
         RUN ls -A /d; test -e /new || echo gone\n",
    );
    assert_eq!(lines(&context), ["750 0:0", "1777 0:0", "full", "f", "gone"]);
}

#[test]
fn mounts_lie_in_mounts_and_over_files_in_the_order_of_their_targets() {
    let context = context(
        "FROM BASE\nRUN mkdir /m && echo image >/m/f\n\
         RUN --mount=source=b,target=/t/deep/b --mount=type=tmpfs,target=/t --mount=source=a,target=/etc/passwd \
         --mount=source=d,target=/m/f/../d,rw --mount=source=b,target=/m/d/made/b --mount=source=a,target=/dev/x/y \
         --mount=type=tmpfs,target=/sys/firmware --mount=source=b,target=/etc/hosts --mount=source=a,target=/run/a \
         --mount=source=b,target=/run/a \
         cat /t/deep/b /etc/passwd /m/f /m/d/in /m/d/made/b /dev/x/y /etc/hosts /run/a; ls -A /sys/firmware\n\
         RUN ls -A /m /t; grep -c root /etc/passwd\n",
    );
    context.write("a", "A\n");
    context.write("b", "B\n");
    context.write("d/in", "IN\n");
    let mut found = lines(&context);
    found.retain(|line| !line.contains("No such file") && line != "/m:");
    assert_eq!(found, ["B", "A", "image", "IN", "B", "A", "B", "B", "f", "1"]);
}

#[test]
fn what_cannot_be_mounted_is_said() {
    for (mount, message) in [
        ("source=d,target=/etc/passwd", "cannot mount at `/etc/passwd`: it is no directory"),
        ("source=f,target=/etc", "cannot mount at `/etc`: it is a directory"),
        ("source=f,target=/etc/passwd/x", "cannot prepare `/etc/passwd/x` in the image"),
        (
            "target=/m --mount=source=f,target=/m/no/such",
            "cannot mount at `/m/no/such`: cannot make directory",
        ),
        ("type=tmpfs,target=/to-root", "cannot mount at `/to-root`: it leads to the root directory"),
        ("type=tmpfs,target=/to-proc/x", "cannot mount at `/to-proc/x`: it leads to `/proc/x`"),
        ("source=f,target=/to-proc", "cannot mount at `/to-proc`: it leads to `/proc`"),
        ("type=tmpfs,target=/sys/no/such", "cannot mount at `/sys/no/such`: cannot make directory"),
        ("type=tmpfs,target=/loop/x", "cannot prepare `/loop/x` in the image"),
    ] {
        let context = context(&format!(
            "FROM BASE\nRUN ln -s / /to-root; ln -s ../proc /to-proc; ln -s loop /loop\nRUN --mount={mount} true\n"
        ));
        context.write("f", "");
        context.write("d/f", "");
        let finished = build(&context).exited(1);
        assert!(finished.says(&[message]), "{mount}\n{}", finished.stderr);
        assert!(finished.stderr.contains("Dockerfile:3"), "{mount}\n{}", finished.stderr);
    }
}

/// Mounts of every kind, their mount points new and in directories that are there.
const EVERYWHERE: &str = "--mount=target=/old/dir/m --mount=type=tmpfs,target=/old/t --mount=source=f,target=/old/f \
     --mount=type=tmpfs,target=/new/t --mount=source=f,target=/new/deep/f --mount=type=tmpfs,target=/new/t/inner \
     --mount=source=f,target=/old/link/x --mount=type=tmpfs,target=/old/dangling --mount=target=/bin/m,rw";

#[test]
fn neither_mounts_nor_their_places_are_in_the_layer() {
    let context = context(&format!(
        "FROM BASE\nRUN mkdir -p /old/dir /real && ln -s /real /old/link && ln -s /real/made /old/dangling && \
         touch -d @1000000000 /old/dir /old /real /bin\n\
         RUN {EVERYWHERE} test -d /old/dangling && cat /old/link/x /old/f /new/deep/f\n\
         RUN {EVERYWHERE} echo x >/old/made\n"
    ));
    context.write("f", "F");
    let found = layers(&context);
    assert_eq!(found[1], [""; 0]);
    assert_eq!(found[2], ["old/", "old/made"]);
}

#[test]
fn a_step_may_put_something_beside_a_mount_but_not_under_it() {
    let context = context(
        "FROM BASE\n\
         RUN --mount=type=tmpfs,target=/n/t echo x >/n/kept && echo y >/n/t/lost && chmod 700 /n\n\
         RUN --mount=type=tmpfs,target=/p/t mv /p /q && echo z >/q/kept\n",
    );
    let found = layers(&context);
    assert_eq!(found[0], ["dev/", "n/", "n/kept", "proc/", "sys/"]);
    assert_eq!(found[1], ["q/", "q/kept"]);
}

/// CVE-2024-23652: the builder removed mount points by path, and the step had put a link in it.
#[test]
fn removing_mount_points_removes_nothing_of_the_machine() {
    let canary = scratch();
    fs::create_dir_all(canary.path().join("b/c")).unwrap();
    fs::write(canary.path().join("b/d"), "").unwrap();
    let path = canary.path().display();
    let context = context(&format!(
        "FROM BASE\n\
         RUN --mount=type=tmpfs,target=/a/b/c mv /a /moved && ln -s {path} /a\n\
         RUN --mount=source=f,target=/x/b/d mv /x /moved2 && ln -s {path} /x && rm -f /etc/hosts; true\n\
         RUN --mount=type=tmpfs,target=/y/b/c mv /y/b /y/e && ln -s {path}/b /y/b && test -L /y/b\n"
    ));
    context.write("f", "");
    build(&context).success();
    assert!(canary.path().join("b/c").is_dir());
    assert!(canary.path().join("b/d").is_file());
}

/// CVE-2024-1753: the source of a mount was looked up on the machine.
#[test]
fn a_source_is_looked_up_in_its_stage() {
    let canary = Path::new("/BIND_BREAKOUT");
    assert!(!canary.exists());
    let context = context(
        "FROM BASE AS evil\nRUN ln -s / /rootdir && ln -s ../../../../../../.. /up && echo evil >/which\n\
         FROM BASE\n\
         RUN --mount=from=evil,source=/rootdir,target=/m,rw touch /m/BIND_BREAKOUT && cat /m/which && ls /m | grep -c BREAK\n\
         RUN --mount=from=evil,source=up,target=/m,rw touch /m/BIND_BREAKOUT; cat /m/which\n\
         RUN --mount=from=evil,source=/rootdir/../up/which,target=/m cat /m\n\
         RUN --mount=source=link,target=/m cat /m/Dockerfile | head -n1 | cut -c1-4\n",
    );
    symlink("/", context.path().join("link")).unwrap();
    assert_eq!(lines(&context), ["evil", "1", "evil", "evil", "FROM"]);
    assert!(!canary.exists());
}

/// CVE-2024-9341, and the classic: a link of the image leads a mount to the machine.
#[test]
fn a_target_is_looked_up_in_the_root() {
    let canary = scratch();
    fs::set_permissions(canary.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let up = format!("{}{}", "../".repeat(20), canary.path().strip_prefix("/").unwrap().display());
    let context = context(&format!(
        "FROM BASE\nRUN ln -s {up} /up && ln -s {} /abs && ln -s / /policies\n\
         RUN --mount=source=f,target=/up/x/y --mount=type=tmpfs,target=/abs/z --mount=source=f,target=/policies/config \
         cat /up/x/y /config && test -d {}/z\n",
        canary.path().display(),
        canary.path().display(),
    ));
    context.write("f", "F\n");
    let out = scratch();
    let layout = out.path().join("layout");
    let finished = Builder::new().layout(&context, &layout, &["--destination=x.example/x:1"]).success();
    assert_eq!(output(&finished), ["F", "F"]);
    assert_eq!(fs::read_dir(canary.path()).unwrap().count(), 0);
    with_unpacked(&layout, "1", |root| assert!(!root.join("config").exists()));
}

#[test]
fn here_documents_have_mounts_too() {
    let context = context("FROM BASE\nRUN --mount=source=f,target=/m <<EOF\ncat /m\ncat /m >/o\nEOF\n");
    context.write("f", "F\n");
    assert_eq!(lines(&context), ["F"]);
}

#[test]
fn a_hundred_mounts_are_the_most() {
    let mounts = |count: usize| -> String {
        (0..count).map(|number| format!("--mount=source=f,target=/m/{number} ")).collect()
    };
    let context = context(&format!("FROM BASE\nRUN {}ls /m | wc -l\n", mounts(100)));
    context.write("f", "F\n");
    assert_eq!(lines(&context), ["100"]);
    let (line, text) = failure(&format!("FROM BASE\nRUN {}true\n", mounts(101)));
    assert_eq!(line, "2");
    assert!(text.contains("RUN has more than 100 mounts"), "{text}");
}

#[test]
fn the_plan_shows_mounts() {
    let context = context(
        "FROM BASE AS a\nFROM BASE\nARG t=/t\nUSER 5\n\
         RUN --mount=type=tmpfs,target=$t,size=1m --mount=from=a,source=x/../y,target=m,rw --mount=target=/c \
         --mount=type=secret,id=s,env=TOKEN,required true\n",
    );
    let finished = Builder::new().run(["plan".as_ref(), context.path().as_os_str()]).success();
    let plan = finished.json();
    let stages = plan["stages"].as_array().unwrap();
    assert_eq!(stages.len(), 2);
    let expected = serde_json::json!([
        {"type": "secret", "id": "s", "target": null, "env": "TOKEN", "required": true, "mode": "0400", "owner": "0:0"},
        {"type": "bind", "from": "context", "source": "/", "target": "/c", "access": "ro"},
        {"type": "bind", "from": {"stage": "a"}, "source": "/y", "target": "/m", "access": "rw"},
        {"type": "tmpfs", "target": "/t", "size": 1_048_576},
    ]);
    assert_eq!(stages[1]["steps"][2]["mounts"], expected);
}

/// Every kind of mount, for whoever builds.
const KINDS: &str = r#"FROM scratch AS tools
COPY busybox /bin/busybox
SHELL ["/bin/busybox", "sh", "-c"]
RUN /bin/busybox --install -s /bin && mkdir /t && echo tool >/t/x
FROM tools
RUN --mount=target=/m cat /m/sub/f; stat -c '%u:%g %n' /m/sub /m/sub/*; touch /m/x 2>/dev/null || echo refused
RUN --mount=target=/m,rw rm -r /m/sub && touch /m/x && ls /m
RUN --mount=target=/m,source=sub ls -A /m
RUN --mount=type=tmpfs,target=/n/t --mount=type=secret,id=s,target=/n/t/s stat -c '%a %n' /n/t /n/t/s; cat /n/t/s
RUN --mount=from=tools,source=t,target=/m,rw echo changed >/m/x; cat /m/x
RUN --mount=from=tools,source=t/x,target=/m cat /m; ! test -e /n
"#;

#[test]
fn ordinary_users_have_all_mounts() {
    let expected = [
        "F",
        "0:0 /m/sub",
        "0:0 /m/sub/f",
        "0:0 /m/sub/g",
        "refused",
        "Dockerfile",
        "busybox",
        "secret",
        "x",
        "f",
        "g",
        "1777 /n/t",
        "400 /n/t/s",
        "***",
        "changed",
        "tool",
    ];
    for (user, owner) in
        [(User::with_ranges(), None), (User::with_single_id(), None), (User::with_single_id(), Some(5))]
    {
        let context = user.context(KINDS);
        for (name, content) in [("sub/f", "F\n"), ("sub/g", ""), ("sub/h", ""), ("secret", "hidden secret\n")]
        {
            fs::create_dir_all(context.join("sub")).unwrap();
            fs::write(context.join(name), content).unwrap();
            std::os::unix::fs::chown(context.join(name), owner.or(Some(user.uid)), Some(user.gid)).unwrap();
        }
        for name in ["", "sub", "busybox", "Dockerfile"] {
            std::os::unix::fs::chown(context.join(name), Some(user.uid), Some(user.gid)).unwrap();
        }
        for rules in ["", "sub/h\n.dockerignore\n"] {
            fs::write(context.join(".dockerignore"), rules).unwrap();
            std::os::unix::fs::chown(context.join(".dockerignore"), Some(user.uid), Some(user.gid)).unwrap();
            let secret = format!("--secret=id=s,src={}", context.join("secret").display());
            let mut command = user.command();
            command.args(["--no-push", "--platform=linux/amd64", &secret, "-c"]).arg(&context);
            let found = output(&finish(&mut command).success());
            let found: Vec<&str> =
                found.iter().map(String::as_str).filter(|line| !line.ends_with('h')).collect();
            assert_eq!(found, expected, "{owner:?}, {rules:?}");
        }
        traces::assert_none(&user.store());
    }
}

/// Which of the steps were done; the others were remembered.
fn done(builder: &Builder, context: &Context, arguments: &[&str]) -> Vec<String> {
    let all = [&["--no-push", "-c", context.path().to_str().unwrap()], arguments].concat();
    let finished = builder.run(all).success();
    // Each prints its name, and a step that is remembered prints nothing.
    output(&finished)
}

#[test]
fn a_step_is_done_again_when_what_it_mounts_is_other_and_only_then() {
    let (builder, context) = (
        Builder::new(),
        context(
            "FROM BASE AS tools\nCOPY tool unused /t/\nRUN rm /t/unused\n\
             FROM BASE\n\
             RUN --mount=source=sub,target=/m cat /m/f >/sub; echo sub\n\
             RUN --mount=source=f,target=/m cat /m >/f; echo file\n\
             RUN --mount=from=tools,source=t,target=/m --mount=source=sub,target=/n,rw cat /m/tool >/tool; echo tool\n\
             RUN --mount=type=tmpfs,target=/m echo tmpfs\n",
        ),
    );
    for (name, content) in
        [("sub/f", "1"), ("f", "1"), ("tool", "1"), ("unused", "1"), (".dockerignore", "sub/log\n")]
    {
        context.write(name, content);
    }
    let all = ["sub", "file", "tool", "tmpfs"];
    assert_eq!(done(&builder, &context, &[]), all);
    assert_eq!(done(&builder, &context, &[]), [""; 0]);
    assert_eq!(done(&Builder::new(), &context, &[]), all, "elsewhere");
    type Change = fn(&Context);
    let changes: [(&str, Change, &[&str]); 10] = [
        ("a file beside it", |context| drop(context.write("other", "x")), &[]),
        ("a time", |context| drop(context.write("f", "1")), &[]),
        ("an ignored file", |context| drop(context.write("sub/log", "x")), &[]),
        ("another directory", |context| drop(context.write("sub2/f", "1")), &[]),
        (
            "the step that makes the stage, with the same result",
            |context| drop(context.write("unused", "2")),
            &[],
        ),
        // Files below are other, so those on them are done as well.
        ("the file", |context| drop(context.write("f", "2")), &["file", "tool", "tmpfs"]),
        ("the stage", |context| drop(context.write("tool", "2")), &["tool", "tmpfs"]),
        ("the directory", |context| drop(context.write("sub/f", "2")), &all),
        ("a new file in it", |context| drop(context.write("sub/g", "")), &all),
        (
            "a mode in it",
            |context| {
                fs::set_permissions(context.path().join("sub/g"), fs::Permissions::from_mode(0o755)).unwrap();
            },
            &all,
        ),
    ];
    for (what, change, expected) in changes {
        change(&context);
        assert_eq!(done(&builder, &context, &[]), expected, "{what}");
        assert_eq!(done(&builder, &context, &[]), [""; 0], "{what}, again");
    }
}

#[test]
fn a_secret_s_value_is_no_reason_to_do_a_step_again() {
    let context =
        context("FROM BASE\nRUN --mount=type=secret,id=s,env=T cat /run/secrets/s 2>/dev/null; echo done\n");
    let builder = Builder::new();
    context.write("one", "first secret");
    context.write("two", "second secret");
    let secret = |name: &str| format!("--secret=id=s,src={}", context.path().join(name).display());
    assert_eq!(done(&builder, &context, &[&secret("one")]), ["done"]);
    for flag in [secret("one"), secret("two")] {
        assert_eq!(done(&builder, &context, &[&flag]), [""; 0], "{flag}");
    }
    assert_eq!(done(&builder, &context, &[]), [""; 0]);
}
