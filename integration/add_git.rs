//! ADD of git repositories through the whole program.

use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::Signal;

use crate::support::fake_registry::{Answer, Ending, Server};
use crate::support::traces::Running;
use crate::support::web::{Site, git, listing};
use crate::support::{Builder, Context, Finished, finish, oci, scratch};

/// Builds `FROM scratch` and these lines, with `REPO` for the repository's URL.
fn run(site: &Site, builder: &Builder, lines: &str, arguments: &[&str], layout: &Path) -> Finished {
    let context = Context::new(&format!("FROM scratch\n{}\n", lines.replace("REPO", &site.url("repo.git"))));
    let more = ["--destination=git.example/x:1", "-v", "trace"];
    builder.layout(&context, layout, &[&more, arguments].concat())
}

/// Builds, and looks at the files in `/x`.
fn build(site: &Site, builder: &Builder, lines: &str, arguments: &[&str]) -> (Vec<String>, String) {
    let out = scratch();
    let layout = out.path().join("layout");
    let finished = run(site, builder, lines, arguments, &layout).success();
    let files = oci::with_unpacked(&layout, "1", |root| listing(&root.join("x")));
    (files, finished.stderr)
}

fn fails(site: &Site, builder: &Builder, lines: &str, arguments: &[&str]) -> String {
    let out = scratch();
    let layout = out.path().join("layout");
    let said = run(site, builder, lines, arguments, &layout).exited(1).stderr;
    assert!(!layout.exists() && said.contains("Dockerfile:2"), "{said}");
    let left: Vec<PathBuf> =
        std::fs::read_dir(builder.store().join("tmp")).unwrap().flatten().map(|entry| entry.path()).collect();
    assert!(left.is_empty(), "{left:?}");
    said
}

/// What `v1` has.
const FIRST: [&str; 4] = ["a 755 #!/bin/sh", "l -> a", "sub/ 755", "sub/b 644 b"];

#[test]
fn branches_tags_commits_and_directories_are_found() {
    let Some(site) = Site::start() else { return };
    let builder = Builder::new();
    let first = site.git(&["rev-parse", "HEAD"]);
    site.git(&["tag", "-a", "-m", "annotated", "v2"]);
    let annotated = site.git(&["rev-parse", "v2"]);
    site.git(&["branch", "side/way"]);
    site.git(&["push", "-q", "../repo.git", "side/way"]);
    let second = site.commit("new", "new");
    let with_new = [FIRST[0], FIRST[1], "new 644 new", FIRST[2], FIRST[3]];
    for (options, files) in [
        ("", &with_new[..]),
        ("#", &with_new),
        ("#master", &with_new),
        ("#v1", &FIRST),
        ("#v2", &FIRST),
        ("#side/way", &FIRST),
        ("#refs/heads/master", &with_new),
        ("?tag=v1", &FIRST),
        ("?branch=master", &with_new),
        ("#v1:sub", &["b 644 b"]),
        ("?ref=v1&subdir=/sub/../sub", &["b 644 b"]),
        ("?subdir=l/../sub", &["b 644 b"]),
        (&format!("#{first}"), &FIRST),
        (&format!("?commit={second}"), &with_new),
        (&format!("?checksum={}#v1", &first[..7]), &FIRST),
        (&format!("?checksum={annotated}#v2"), &FIRST),
        (&format!("?checksum={first}#v2"), &FIRST),
        (&format!("?checksum={first}&fetch-by-commit=true#master"), &FIRST),
    ] {
        let (found, _) = build(&site, &builder, &format!("ADD REPO{options} /x"), &[]);
        assert_eq!(found, files, "{options}");
    }
    let (found, _) = build(&site, &builder, &format!("ADD --checksum={} REPO /x", &second[..10]), &[]);
    assert_eq!(found, with_new);
    let wrong = format!("ADD --checksum={} REPO /x", &first[..10]);
    let expected = format!("expected checksum to match {}, got {second}", &first[..10]);
    for (lines, message) in [
        (wrong.as_str(), expected.as_str()),
        ("ADD REPO#none /x", "repository does not contain ref none"),
        (
            "ADD REPO?checksum=1234567 /x",
            "ref 1234567; where no branch or tag is named, a commit is by its whole id",
        ),
        ("ADD REPO#v1:none /x", "the repository has no directory `none`"),
        ("ADD REPO#v1:a /x", "the repository has no directory `a`"),
        ("ADD REPO?foo=1 /x", "unexpected query \"foo\""),
        ("ADD --keep-git-dir=false REPO?keep-git-dir=1 /x", "inconsistent keep-git-dir configuration"),
        ("ADD REPO#--upload-pack=touch /x", "invalid git ref"),
        ("ADD --checksum=xyz REPO /x", "expected hex commit hash"),
        ("COPY REPO /x", "source can't be a git ref for COPY"),
        ("COPY git@h:p /x", "source can't be a git ref for COPY"),
    ] {
        let said = fails(&site, &builder, lines, &[]);
        assert!(said.contains(message), "{lines}: {said}");
    }
}

#[test]
fn a_branch_that_moved_is_noticed_and_one_that_did_not_is_not_fetched() {
    let Some(site) = Site::start() else { return };
    let builder = Builder::new();
    let fetches = || {
        let bodies = site.server.requests("POST", "git-upload-pack").into_iter().map(|seen| seen.body);
        bodies.filter(|body| body.windows(13).any(|window| window == b"command=fetch")).count()
    };
    let lines = "ADD REPO /x\nADD REPO /again";
    let (files, said) = build(&site, &builder, lines, &[]);
    assert_eq!(files, FIRST);
    assert!(said.contains("layers: 0 remembered, 2 made"), "{said}");
    assert_eq!(fetches(), 1, "what two steps name is fetched once");
    let (_, said) = build(&site, &builder, lines, &[]);
    assert!(said.contains("layers: 2 remembered, 0 made"), "{said}");
    assert_eq!(fetches(), 1);
    site.commit("new", "new");
    let (files, said) = build(&site, &builder, lines, &[]);
    assert!(said.contains("layers: 0 remembered, 2 made"), "{said}");
    assert!(files.contains(&"new 644 new".to_owned()));
    // Other options give other files.
    for options in ["?keep-git-dir", "?mtime=commit", "?submodules=false", "#:sub"] {
        let (_, said) = build(&site, &builder, &format!("ADD REPO{options} /x"), &[]);
        assert!(said.contains("layers: 0 remembered, 1 made"), "{options}: {said}");
    }
}

#[test]
fn flags_hold_for_what_is_elsewhere_and_give_layers_of_their_own() {
    let Some(site) = Site::start() else { return };
    let builder = Builder::new();
    for (flags, files) in [
        ("--exclude=sub", &["a 755 #!/bin/sh", "l -> a"][..]),
        ("--exclude=a", &["l -> a", "sub/ 755", "sub/b 644 b"]),
        ("--link --exclude=*", &[]),
        ("--link", &FIRST),
        ("--chmod=700", &["a 700 #!/bin/sh", "l -> a", "sub/ 700", "sub/b 700 b"]),
        ("--chown=3:4 --chmod=go-rwx", &["a 700 #!/bin/sh", "l -> a", "sub/ 700", "sub/b 600 b"]),
    ] {
        let (found, said) = build(&site, &builder, &format!("ADD {flags} REPO#v1 /x"), &[]);
        assert_eq!(found, files, "{flags}");
        assert!(said.contains("layers: 0 remembered, 1 made"), "{flags}: {said}");
    }
    // What is linked is found on another base.
    let (_, said) = build(&site, &builder, "COPY <<EOF /other\nEOF\nADD --link REPO#v1 /x", &[]);
    assert!(said.contains("layers: 1 remembered, 1 made"), "{said}");
}

#[test]
fn a_branch_stands_for_one_commit_in_all_steps_of_a_build() {
    let Some(site) = Site::start() else { return };
    let builder = Builder::new();
    let lines = "ADD REPO#master /x\nADD REPO#master:sub /y\nADD --keep-git-dir REPO#master /z";
    build(&site, &builder, lines, &[]);
    let asked = || site.server.requests("GET", "info/refs").len();
    let before = asked();
    let (_, said) = build(&site, &builder, lines, &[]);
    assert!(said.contains("layers: 3 remembered, 0 made"), "{said}");
    assert_eq!(asked() - before, 1);
}

#[test]
fn a_kept_git_directory_works_and_has_neither_secrets_nor_traces_of_here() {
    let Some(site) = Site::start() else { return };
    let builder = Builder::new();
    let out = scratch();
    let layout = out.path().join("layout");
    let url = format!("http://me:canary@{}/repo.git", site.server.address);
    let lines = format!("ADD --keep-git-dir=true {url}?tag=v1 /x");
    let finished = run(&site, &builder, &lines, &[], &layout).success();
    assert!(!finished.stderr.contains("canary"), "{}", finished.stderr);
    oci::with_unpacked(&layout, "1", |root| {
        let x = root.join("x");
        assert_eq!(git(&x, &["status", "--porcelain"]), "");
        assert_eq!(git(&x, &["describe", "--tags"]), "v1");
        assert_eq!(git(&x, &["remote", "get-url", "origin"]), site.url("repo.git"));
        for line in listing(&x) {
            assert!(
                !line.contains("canary") && !line.contains("FETCH_HEAD") && !line.contains("/tmp/"),
                "{line}"
            );
        }
    });
}

#[test]
fn modes_and_times_are_those_of_the_repository_whoever_checks_it_out() {
    let Some(site) = Site::start() else { return };
    let builder = Builder::new();
    let out = scratch();
    let layout = out.path().join("layout");
    let context = Context::new(&format!("FROM scratch\nADD {}?mtime=commit /x\n", site.url("repo.git")));
    let mut shell = Command::new("sh");
    shell.args(["-c", "umask 077 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_builder")]);
    shell.args(["--no-push", "--destination=git.example/x:1"]).arg("--store").arg(builder.store());
    shell.arg("--oci-layout-path").arg(&layout).arg(context.path());
    finish(&mut shell).success();
    oci::with_unpacked(&layout, "1", |root| {
        let x = root.join("x");
        assert_eq!(listing(&x), FIRST);
        for name in ["a", "l", "sub", "sub/b"] {
            let found = std::fs::symlink_metadata(x.join(name)).unwrap();
            assert_eq!((found.mtime(), found.uid(), found.gid()), (1_700_000_000, 0, 0), "{name}");
        }
    });
}

#[test]
fn submodules_are_checked_out_unless_they_are_files_of_this_machine() {
    let Some(site) = Site::start() else { return };
    let builder = Builder::new();
    let inner = site.add_inner();
    let add = |url: &str| {
        site.git(&["submodule", "add", "-q", "--force", "../inner.git", "module"]);
        site.git(&["config", "-f", ".gitmodules", "submodule.module.url", url]);
    };
    add("../inner.git");
    site.commit("one", "one");
    let (files, _) = build(&site, &builder, "ADD REPO /x", &[]);
    assert!(files.contains(&"module/inside 644 inside".to_owned()), "{files:?}");
    assert!(!files.iter().any(|line| line.contains(".git/") || line.contains(".git ")), "{files:?}");
    let (files, _) = build(&site, &builder, "ADD REPO?submodules=0 /x", &[]);
    assert!(files.contains(&"module/ 755".to_owned()), "{files:?}");
    assert!(!files.iter().any(|line| line.starts_with("module/inside")), "{files:?}");
    let (files, _) = build(&site, &builder, "ADD REPO#:module /x", &[]);
    assert_eq!(files, ["inside 644 inside"]);
    for url in [format!("file://{}", inner.display()), format!("ext::touch {}/owned", inner.display())] {
        site.git(&["config", "-f", ".gitmodules", "submodule.module.url", &url]);
        site.commit("two", &url);
        let said = fails(&site, &builder, "ADD REPO /x", &[]);
        assert!(said.contains("not allowed"), "{said}");
        assert!(!inner.join("owned").exists());
    }
}

#[test]
fn a_repository_cannot_lead_out_of_its_checkout() {
    let Some(site) = Site::start() else { return };
    let builder = Builder::new();
    let work = site.repositories().join("work");
    symlink("/etc", work.join("etc")).unwrap();
    symlink("../../../../../../../../etc", work.join("up")).unwrap();
    symlink("/sub", work.join("inside")).unwrap();
    site.commit("links", "");
    for directory in ["../../../../../../../etc", "etc", "up", "/etc/../etc"] {
        let said = fails(&site, &builder, &format!("ADD REPO#:{directory} /x"), &[]);
        assert!(said.contains("the repository has no directory"), "{directory}: {said}");
    }
    let (files, _) = build(&site, &builder, "ADD REPO#:inside /x", &[]);
    assert_eq!(files, ["b 644 b"]);
}

#[test]
fn secrets_open_a_repository_and_go_to_no_other_host() {
    let thief = Server::start("127.0.0.2", |_| Answer::new(404));
    let to = format!("http://{}/repo.git/info/refs?service=git-upload-pack", thief.address);
    let away = Arc::new(AtomicBool::new(false));
    let leads_away = Arc::clone(&away);
    let site = Site::start_with(move |seen| {
        let denied = Answer::new(401).with("WWW-Authenticate", "Basic realm=\"x\"");
        match seen.header("authorization") {
            Some(_) if leads_away.load(Ordering::SeqCst) => Some(Answer::new(302).with("Location", &to)),
            // x-access-token:canary
            Some("basic eC1hY2Nlc3MtdG9rZW46Y2FuYXJ5" | "Basic bWU6Y2FuYXJ5" | "canary") => None,
            _ => Some(denied),
        }
    });
    let Some(site) = site else { return };
    let builder = Builder::new();
    let said = fails(&site, &builder, "ADD REPO /x", &[]);
    assert!(
        said.contains("terminal prompts disabled") && said.contains("--secret id=GIT_AUTH_TOKEN"),
        "{said}"
    );
    let out = scratch();
    let secret = out.path().join("secret");
    std::fs::write(&secret, "canary\n").unwrap();
    let flag = |id: &str| format!("--secret=id={id},src={}", secret.display());
    let of_host = format!("GIT_AUTH_HEADER.{}", site.server.address);
    for id in ["GIT_AUTH_TOKEN", of_host.as_str()] {
        let (files, said) = build(&site, &Builder::new(), "ADD REPO /x", &[&flag(id)]);
        assert_eq!(files, FIRST);
        assert!(!said.contains("canary"), "{said}");
    }
    let with_password = format!("ADD http://me:canary@{}/repo.git /x", site.server.address);
    let (files, said) = build(&site, &builder, &with_password, &[]);
    assert_eq!(files, FIRST);
    assert!(!said.contains("canary"), "{said}");
    away.store(true, Ordering::SeqCst);
    let said = fails(&site, &builder, "ADD REPO?mtime=commit /x", &[&flag("GIT_AUTH_TOKEN")]);
    assert!(!said.contains("canary"), "{said}");
    assert!(thief.seen().is_empty(), "{:?}", thief.seen());
}

#[test]
fn a_checkout_ends_at_once_when_it_is_told_to() {
    let stalled = Answer::new(200).with("Content-Type", "application/x-git-upload-pack-advertisement");
    let server =
        Server::start("127.0.0.1", move |_| stalled.clone().body("x".repeat(9)).ending(Ending::Stall(4)));
    if Command::new("git").arg("version").output().is_err() {
        eprintln!("skipped: git is not installed");
        return;
    }
    let builder = Builder::new();
    let context = Context::new(&format!("FROM scratch\nADD http://{}/r.git /x\n", server.address));
    let mut command = builder.command();
    command.arg("--no-push").arg(context.path());
    let mut running = Running::start(&mut command);
    running.wait_until("git asks", |_| !server.seen().is_empty());
    running.signal(Signal::TERM);
    let finished = running.end(Duration::from_secs(5));
    assert_eq!(finished.code, Some(143), "{}", finished.stderr);
}

/// Has `--limit` changed for a build of `lines`, which then fails; gives what is said.
fn beyond(site: &Site, lines: &str, limit: &str) -> String {
    let said = fails(site, &Builder::new(), lines, &[&format!("--limit={limit}")]);
    let (name, _) = limit.split_once('=').unwrap();
    assert!(said.contains(&format!("raise it with `--limit {name}=N`")), "{limit}: {said}");
    said
}

#[test]
fn what_a_repository_takes_has_limits() {
    let Some(site) = Site::start() else { return };
    // Small on the way, large on the disk.
    site.commit("large", &"0".repeat(3 << 20));
    for (limit, words) in [
        ("git-bytes=2MiB", "the repository takes more than 2097152 bytes on disk"),
        ("git-entries=4", "the repository takes more than 4 files, links and directories"),
        ("git-seconds=0", "the repository takes more than 0 seconds"),
    ] {
        let said = beyond(&site, "ADD REPO /x", limit);
        assert!(said.contains(words), "{limit}: {said}");
    }
    let (files, _) = build(&site, &Builder::new(), "ADD REPO /x", &["--limit=git-bytes=8MiB"]);
    assert_eq!(files.len(), 5, "{files:?}");
}

#[test]
fn submodules_are_counted_at_all_depths_before_they_are_fetched() {
    let Some(site) = Site::start() else { return };
    let make = |name: &str, below: Option<&str>| {
        let work = site.repositories().join(name);
        std::fs::create_dir(&work).unwrap();
        git(&work, &["init", "-q"]);
        std::fs::write(work.join(name), name).unwrap();
        if let Some(below) = below {
            // A blank, and a name that is a path.
            let url = format!("../{below}.git");
            git(&work, &["submodule", "add", "-q", "--name", "some/name", &url, "sub/a module"]);
            git(&work, &["config", "-f", ".gitmodules", "submodule.some/name.url", &url]);
        }
        git(&work, &["add", "-A"]);
        git(&work, &["commit", "-q", "-m", name]);
        git(site.repositories(), &["clone", "-q", "--bare", name, &format!("{name}.git")]);
    };
    make("lowest", None);
    make("middle", Some("lowest"));
    site.git(&["submodule", "add", "-q", "../middle.git", "one"]);
    site.git(&["submodule", "add", "-q", "../lowest.git", "two"]);
    site.commit("modules", "modules");
    let (files, _) = build(&site, &Builder::new(), "ADD REPO /x", &[]);
    for file in ["one/middle 644 middle", "one/sub/a module/lowest 644 lowest", "two/lowest 644 lowest"] {
        assert!(files.iter().any(|line| line == file), "{file}: {files:?}");
    }
    assert!(!files.iter().any(|line| line.contains(".git/") || line.contains(".git ")), "{files:?}");
    let said = beyond(&site, "ADD REPO /x", "git-submodules=2");
    assert!(said.contains("the repository takes more than 2 submodules"), "{said}");
    let said = beyond(&site, "ADD REPO /x", "git-submodule-nesting=1");
    assert!(said.contains("more than 1 submodules within each other"), "{said}");
    let asked = |name: &str| site.server.requests("GET", &format!("{name}.git/info/refs")).len();
    let before = asked("middle");
    beyond(&site, "ADD REPO /x", "git-submodules=1");
    assert_eq!(asked("middle"), before);
    let more = ["--limit=git-submodules=3", "--limit=git-submodule-nesting=2"];
    build(&site, &Builder::new(), "ADD REPO /x", &more);
    // One whose path leads elsewhere is none, whoever says so.
    site.git(&["config", "-f", ".gitmodules", "submodule.none.path", "../../../etc"]);
    site.git(&["config", "-f", ".gitmodules", "submodule.here.path", "."]);
    site.commit("odd", "odd");
    let (files, _) = build(&site, &Builder::new(), "ADD REPO /x", &[]);
    assert!(files.contains(&"two/lowest 644 lowest".to_owned()), "{files:?}");
}

#[test]
fn a_list_of_branches_without_end_and_a_server_that_is_silent_are_not_waited_for() {
    let Some(site) = Site::start_with(|seen| {
        let list = Answer::new(200).with("Content-Type", "application/x-git-upload-pack-advertisement");
        let line = format!("{} refs/heads/x\n", "1".repeat(40));
        let line = format!("{:04x}{line}", line.len() + 4);
        let service = "001e# service=git-upload-pack\n0000";
        match seen.path.as_str() {
            "/endless.git/info/refs" => {
                let body = format!("{service}{}", line.repeat(1000));
                Some(list.body(body).ending(Ending::Endless))
            }
            "/stalled.git/info/refs" => Some(list.body(service).ending(Ending::Stall(8))),
            _ => None,
        }
    }) else {
        return;
    };
    let endless = format!("ADD {} /x", site.url("endless.git"));
    let said = beyond(&site, &endless, "git-memory=64MiB");
    assert!(said.contains("the repository takes more than 67108864 bytes of memory"), "{said}");
    // What is only slow has its time.
    beyond(&site, &format!("ADD {} /x", site.url("stalled.git")), "git-idle-seconds=1");
    // It takes connections, and never says a word.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let said = beyond(&site, &format!("ADD git://{address}/x /x"), "git-idle-seconds=1");
    assert!(said.contains("nothing has come of the repository for 1 seconds"), "{said}");
}

#[test]
fn ssh_is_given_the_agent_that_is_named_and_asks_nobody() {
    use std::os::unix::fs::PermissionsExt as _;
    let Some(site) = Site::start() else { return };
    let builder = Builder::new();
    let out = scratch();
    // Stands for ssh: notes what it is told, and runs the command here.
    let (log, ssh) = (out.path().join("log"), out.path().join("ssh"));
    let script = format!(
        "#!/bin/sh\nprintf '%s\\n' \"$@\" \"$SSH_AUTH_SOCK\" >>{log}\nfor last; do :; done\ncd {repositories}\neval \"$last\"\n",
        log = log.display(),
        repositories = site.repositories().display()
    );
    std::fs::write(&ssh, script).unwrap();
    std::fs::set_permissions(&ssh, std::fs::Permissions::from_mode(0o755)).unwrap();
    let socket = out.path().join("agent");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let layout = out.path().join("layout");
    let context = Context::new("FROM scratch\nADD me@git.example:repo.git#v1 /x\n");
    let mut command = builder.command();
    command.env("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin", out.path().display()));
    command.args(["--no-push", "--destination=git.example/x:1"]).arg("--oci-layout-path").arg(&layout);
    command.arg(format!("--ssh=default={}", socket.display())).arg(context.path());
    finish(&mut command).success();
    oci::with_unpacked(&layout, "1", |root| assert_eq!(listing(&root.join("x")), FIRST));
    let told = std::fs::read_to_string(&log).unwrap();
    for line in ["BatchMode=yes", "me@git.example", "git-upload-pack 'repo.git'", socket.to_str().unwrap()] {
        assert!(told.lines().any(|told| told == line), "{line}: {told}");
    }
}
