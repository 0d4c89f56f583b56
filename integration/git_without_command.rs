//! Git repositories where there is no `git` command: the same files as with it, and words about what takes it.

use std::fmt::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::process::Signal;

use crate::support::fake_registry::{Answer, Ending, Server};
use crate::support::traces::Running;
use crate::support::web::{Site, git, listing};
use crate::support::{Builder, Context, Finished, finish, oci, scratch};

/// Builds `ADD SOURCE /x`.
fn run(builder: &Builder, source: &str, layout: &Path, arguments: &[&str]) -> Finished {
    let context = Context::new(&format!("FROM scratch\nADD {source} /x\n"));
    let more = ["--destination=git.example/x:1", "-v", "trace"];
    builder.layout(&context, layout, &[&more, arguments].concat())
}

/// All that is in the image, files by the hash of their content, with owners; with times too if they are those of the commit.
fn files(builder: &Builder, source: &str) -> String {
    let out = scratch();
    let layout = out.path().join("layout");
    run(builder, source, &layout, &[]).success();
    oci::with_unpacked(&layout, "1", |root| {
        let x = root.join("x");
        let mut all = listing(&x).join("\n");
        if source.contains("mtime=commit") {
            for name in ["text", "deep"] {
                let found = std::fs::symlink_metadata(x.join(name)).unwrap();
                let _ = write!(all, "\n{name} {} {} {}", found.mtime(), found.uid(), found.gid());
            }
        }
        all
    })
}

fn fails(builder: &Builder, source: &str, arguments: &[&str]) -> Finished {
    let out = scratch();
    let layout = out.path().join("layout");
    let finished = run(builder, source, &layout, arguments).exited(1);
    assert!(!layout.exists() && finished.stderr.contains("Dockerfile:2"), "{}", finished.stderr);
    let left = std::fs::read_dir(builder.store().join("tmp")).unwrap().count();
    assert_eq!(left, 0, "something is left in the store");
    finished
}

/// A history with everything that decides about files.
fn fill(site: &Site) {
    let work = site.repositories().join("work");
    let write = |name: &str, content: &[u8]| {
        let path = work.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    };
    write("text", b"one\ntwo\n");
    write("windows/text", b"one\ntwo\r\nthree\n");
    write("windows/.gitattributes", b"* eol=crlf\n*.bin -text\nauto* text=auto\n*.sh !eol\n");
    write("windows/auto.txt", b"one\ntwo\n");
    write("windows/auto-mixed.txt", b"one\r\ntwo\n");
    write("windows/auto-binary", b"one\n\0\n");
    write("windows/data.bin", b"one\ntwo\n");
    write("windows/run.sh", b"one\n");
    write("windows/below/text", b"one\n");
    write("windows/below/.gitattributes", b"text -crlf -text\n");
    let ids = b"$Id$ $$Id$ $I$Id$ $Id: 0123 $ $Id: by somebody else $ $Id$\n$Id: \n$ $Id:$ $Id";
    write("named/ids", ids);
    write("named/windows", b"$Id$\n");
    write(
        ".gitattributes",
        b"[attr]both ident eol=crlf\nnamed/ids ident\nnamed/windows both\n*.lfs filter=lfs\n\"quoted name\" eol=crlf\n",
    );
    write("quoted name", b"a\n");
    write("big.lfs", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n");
    write("empty", b"");
    write("deep/er/and/deeper/\u{fc}\u{1f600}", b"x");
    // Sorted in one way with and in another without the directory's slash.
    write("z.b", b"1");
    write("z/b", b"2");
    write("z0", b"3");
    symlink("../text", work.join("deep/link")).unwrap();
    symlink("/nowhere/$Id$", work.join("named/dangling")).unwrap();
    for (name, mode) in [("text", 0o755), ("empty", 0o600), ("z0", 0o711)] {
        std::fs::set_permissions(work.join(name), std::fs::Permissions::from_mode(mode)).unwrap();
    }
    // What is much alike is sent as what is different.
    let lines: String = (0..5000).map(|line| format!("line {line} of many\n")).collect();
    for number in 0..40 {
        write(&format!("alike/{number}"), format!("{number}\n{lines}{number}\n").as_bytes());
        site.commit("last", &format!("{number}\n"));
    }
}

#[test]
fn the_files_are_those_that_the_command_checks_out() {
    for (site, protocol) in [(Site::start(), 2), (Site::start_old(), 0)] {
        let Some(site) = site else { return };
        fill(&site);
        let older = site.git(&["rev-parse", "HEAD~3"]);
        site.git(&["tag", "-a", "-m", "annotated", "v2"]);
        site.git(&["tag", "-a", "-m", "of a tag", "v3", "v2"]);
        let annotated = site.git(&["rev-parse", "v2"]);
        site.git(&["branch", "side/way", "HEAD~1"]);
        site.git(&["push", "-q", "../repo.git", "side/way", "HEAD~2:refs/pull/1/head"]);
        let newest = site.commit("new", "new");
        let url = site.url("repo.git");
        let (with, without) = (Builder::new(), Builder::without_programs());
        for options in [
            "".to_owned(),
            "#v1".to_owned(),
            "#v2".to_owned(),
            "#v3".to_owned(),
            "#side/way".to_owned(),
            "#refs/pull/1/head:alike".to_owned(),
            "?branch=master&subdir=windows".to_owned(),
            "?tag=v2&subdir=named".to_owned(),
            "?mtime=commit".to_owned(),
            format!("#{newest}"),
            format!("#{older}"),
            format!("?ref=v2&checksum={annotated}"),
            format!("?checksum={newest}&fetch-by-commit=true#side/way"),
        ] {
            let source = format!("{url}{options}");
            let expected = files(&with, &source);
            assert!(expected.len() > 10, "{options}: {expected}");
            assert_eq!(files(&without, &source), expected, "protocol {protocol}, {options}");
        }
        let asked = site.server.requests("GET", "info/refs");
        let agents: Vec<_> = asked.iter().filter_map(|seen| seen.header("user-agent")).collect();
        assert!(agents.iter().any(|agent| agent.starts_with("builder/")), "{agents:?}");
        for (options, words) in [
            ("#none", "repository does not contain ref none"),
            ("#v1:none", "the repository has no directory `none`"),
            ("?ref=v1&checksum=1234567", "expected checksum to match 1234567, got"),
            ("#0123456789012345678901234567890123456789", "not our ref"),
        ] {
            let finished = fails(&without, &format!("{url}{options}"), &[]);
            assert!(finished.stderr.contains(words), "protocol {protocol}, {options}: {}", finished.stderr);
        }
    }
}

#[test]
fn odd_times_of_commits_are_the_same_with_the_command_or_refused_by_both() {
    let Some(site) = Site::start() else { return };
    site.commit("text", "x");
    site.commit("deep/text", "x");
    let tree = site.git(&["rev-parse", "HEAD^{tree}"]);
    let (with, without) = (Builder::new(), Builder::without_programs());
    for (number, (committer, is_fine)) in [
        ("A <a@b> 0 +0000", true),
        ("A <a@b> 2147483648 +9999", true),
        ("A <a@b>  007 -1 more", true),
        ("A <a@b> -5 +0000", false),
        ("A <a@b> 253402300800 +0000", false),
        ("A <a@b> 18446744073709551616 +0000", false),
        ("A <a@b> 5 UTC", false),
    ]
    .into_iter()
    .enumerate()
    {
        let file = site.repositories().join("commit");
        let text = format!("tree {tree}\nauthor A <a@b> word\ncommitter {committer}\n\nodd\n");
        std::fs::write(&file, text).unwrap();
        let path = file.to_str().unwrap();
        let id = site.git(&["hash-object", "-t", "commit", "-w", "--literally", path]);
        site.git(&["push", "-q", "../repo.git", &format!("{id}:refs/heads/odd-{number}")]);
        let plain = format!("{}?ref=odd-{number}", site.url("repo.git"));
        assert_eq!(files(&with, &plain), files(&without, &plain), "{committer}");
        let source = format!("{plain}&mtime=commit");
        if is_fine {
            assert_eq!(files(&with, &source), files(&without, &source), "{committer}");
            continue;
        }
        for builder in [&with, &without] {
            let words = format!("the commit {id} has no time between the years 1970 and 9999");
            let finished = fails(builder, &source, &[]);
            assert!(finished.stderr.contains(&words), "{committer}: {}", finished.stderr);
        }
    }
}

#[test]
fn as_little_is_fetched_as_with_the_command() {
    let Some(site) = Site::start() else { return };
    fill(&site);
    let builder = Builder::without_programs();
    let source = site.url("repo.git");
    files(&builder, &format!("{source} /x\nADD {source}"));
    let fetches = site.server.requests("POST", "git-upload-pack");
    let fetches: Vec<_> = fetches.iter().map(|seen| String::from_utf8_lossy(&seen.body)).collect();
    let fetches: Vec<_> = fetches.iter().filter(|body| body.contains("command=fetch")).collect();
    assert_eq!(fetches.len(), 1, "{fetches:?}");
    assert!(fetches[0].contains("deepen 1"), "{fetches:?}");
}

#[test]
fn repositories_with_longer_names_of_objects_are_read_too() {
    let Some(site) = Site::start() else { return };
    let work = site.repositories().join("long");
    std::fs::create_dir(&work).unwrap();
    git(&work, &["init", "-q", "--object-format=sha256"]);
    std::fs::write(work.join("text"), "$Id$\n").unwrap();
    std::fs::write(work.join("deep"), "text ident\n").unwrap();
    std::fs::write(work.join(".gitattributes"), "text ident\n").unwrap();
    git(&work, &["add", "-A"]);
    git(&work, &["commit", "-q", "-m", "long"]);
    git(site.repositories(), &["clone", "-q", "--bare", "long", "long.git"]);
    let id = git(&work, &["rev-parse", "HEAD"]);
    for options in ["?mtime=commit".to_owned(), format!("#{id}")] {
        let source = format!("{}{options}", site.url("long.git"));
        let expected = files(&Builder::new(), &source);
        assert_eq!(files(&Builder::without_programs(), &source), expected);
    }
}

#[test]
fn a_kept_git_directory_is_one_that_git_goes_on_with() {
    let Some(site) = Site::start() else { return };
    fill(&site);
    site.git(&["tag", "-a", "-m", "annotated", "v2"]);
    site.commit("new", "new");
    for (options, described) in [("?tag=v2", "v2"), ("?ref=v1", "v1"), ("#master", "heads/master")] {
        let out = scratch();
        let layout = out.path().join("layout");
        let url = format!("http://me:canary@{}/repo.git", site.server.address);
        let source = format!("--keep-git-dir=true {url}{options}");
        let finished = run(&Builder::without_programs(), &source, &layout, &[]).success();
        assert!(!finished.stderr.contains("canary"), "{}", finished.stderr);
        oci::with_unpacked(&layout, "1", |root| {
            let x = root.join("x");
            assert_eq!(git(&x, &["status", "--porcelain"]), "", "{options}");
            assert_eq!(git(&x, &["fsck", "--full"]), "", "{options}");
            assert_eq!(git(&x, &["describe", "--all", "--always"]).trim_start_matches("tags/"), described);
            assert_eq!(git(&x, &["remote", "get-url", "origin"]), site.url("repo.git"));
            assert_eq!(git(&x, &["log", "--format=%h"]).lines().count(), 1);
            for line in listing(&x) {
                assert!(!line.contains("canary") && !line.contains("/tmp/"), "{line}");
            }
            // It is a repository: there is more where this came from.
            git(&x, &["fetch", "-q", "--unshallow", "origin"]);
            git(&x, &["fsck", "--full"]);
        });
    }
}

#[test]
fn what_takes_the_command_says_so() {
    let Some(site) = Site::start() else { return };
    let builder = Builder::without_programs();
    site.add_inner();
    site.git(&["submodule", "add", "-q", "--force", "../inner.git", "module"]);
    site.commit("one", "one");
    let source = site.url("repo.git");
    for (source, words) in [
        (source.as_str(), "a repository with submodules (`?submodules=false` leaves them out)"),
        ("git@git.example:x.git", "a repository that is reached by ssh"),
        ("ssh://git.example/x.git", "a repository that is reached by ssh"),
        ("git://git.example/x.git", "a repository that is reached by `git://`"),
    ] {
        let finished = fails(&builder, source, &[]);
        let all = [words, "takes the git command, which is not installed here (not found in PATH)"];
        assert!(finished.says(&all), "{source}: {}", finished.stderr);
        assert!(finished.says(&["hint: install git"]), "{source}: {}", finished.stderr);
    }
    let expected = files(&Builder::new(), &format!("{source}?submodules=false"));
    assert_eq!(files(&builder, &format!("{source}?submodules=false")), expected);
    // Nothing says where it would be: its directory stays empty.
    site.git(&["rm", "-q", "--cached", ".gitmodules"]);
    std::fs::remove_file(site.repositories().join("work/.gitmodules")).unwrap();
    site.commit("two", "two");
    let expected = files(&Builder::new(), &source);
    assert!(expected.contains("module/ 755"), "{expected}");
    assert_eq!(files(&builder, &source), expected);
    site.commit(".gitattributes", "sub/b working-tree-encoding=ISO-8859-1\n");
    let finished = fails(&builder, &source, &[]);
    assert!(
        finished.says(&["the `working-tree-encoding` of `sub/b` takes the git command"]),
        "{}",
        finished.stderr
    );
}

#[test]
fn secrets_open_a_repository_and_go_nowhere_else() {
    let thief = Server::start("127.0.0.2", |_| Answer::new(404));
    let to = format!("http://{}/repo.git/info/refs?service=git-upload-pack", thief.address);
    let site = Site::start_with(move |seen| match (seen.header("authorization"), seen.path.as_str()) {
        (Some(_), path) if path.starts_with("/away") => Some(Answer::new(302).with("Location", &to)),
        (Some("basic eC1hY2Nlc3MtdG9rZW46Y2FuYXJ5" | "Basic bWU6Y2FuYXJ5" | "canary"), _) => None,
        _ => Some(Answer::new(401).with("WWW-Authenticate", "Basic realm=\"x\"")),
    });
    let Some(site) = site else { return };
    let builder = Builder::without_programs();
    let finished = fails(&builder, &site.url("repo.git"), &[]);
    assert!(finished.says(&["Authentication failed: response status 401"]), "{}", finished.stderr);
    assert!(finished.says(&["--secret id=GIT_AUTH_TOKEN"]), "{}", finished.stderr);
    let out = scratch();
    let secret = out.path().join("secret");
    std::fs::write(&secret, "canary\n").unwrap();
    let flag = |id: &str| format!("--secret=id={id},src={}", secret.display());
    let of_host = format!("GIT_AUTH_HEADER.{}", site.server.address);
    for id in ["GIT_AUTH_TOKEN", of_host.as_str()] {
        let layout = out.path().join(id.replace(['.', ':'], "_"));
        let finished = run(&builder, &site.url("repo.git"), &layout, &[&flag(id)]).success();
        assert!(!finished.stderr.contains("canary"), "{}", finished.stderr);
    }
    let with_password = format!("http://me:canary@{}/repo.git", site.server.address);
    assert!(files(&builder, &with_password).contains("sub/b 644 b"));
    let finished = fails(&builder, &site.url("away.git"), &[&flag("GIT_AUTH_TOKEN")]);
    assert!(finished.says(&["redirects, and where that leads no secret is taken"]), "{}", finished.stderr);
    assert!(!finished.stderr.contains("canary"), "{}", finished.stderr);
    assert!(thief.seen().is_empty(), "{:?}", thief.seen());
}

#[test]
fn a_repository_that_has_moved_and_a_server_that_is_busy_are_found_all_the_same() {
    let Some(site) = Site::start() else { return };
    let to = site.url("repo.git");
    let busy = Arc::new(AtomicUsize::new(0));
    let front = Server::start("127.0.0.1", move |seen| {
        if busy.fetch_add(1, Ordering::SeqCst) == 0 {
            return Answer::new(503).with("Retry-After", "0");
        }
        let rest = seen.path.trim_start_matches("/old.git");
        Answer::new(301).with("Location", format!("{to}{rest}?{}", seen.query))
    });
    let source = format!("http://{}/old.git", front.address);
    assert!(files(&Builder::without_programs(), &source).contains("sub/b 644 b"));
    assert!(front.requests("POST", "").is_empty(), "what has moved is asked where it is");
    let nowhere = Server::start("127.0.0.1", |_| Answer::new(302).with("Location", "/elsewhere"));
    let elsewhere = format!("http://{}/r.git", nowhere.address);
    let finished = fails(&Builder::without_programs(), &elsewhere, &[]);
    assert!(finished.stderr.contains("redirects"), "{}", finished.stderr);
}

#[test]
fn a_repository_behind_a_certificate_of_ones_own_is_a_context() {
    let Some(site) = Site::start() else { return };
    let to = site.url("");
    let client = builder::http::Client::new(builder::http::Options::default()).unwrap();
    // What speaks TLS hands everything on.
    let front = Server::start_tls("127.0.0.1", "server.pem", move |seen| {
        let method =
            if seen.method == "POST" { builder::http::Method::POST } else { builder::http::Method::GET };
        let url =
            url::Url::parse(&format!("{to}{}?{}", seen.path.trim_start_matches('/'), seen.query)).unwrap();
        let mut request = builder::http::Request::new(method, url);
        for (name, value) in &seen.headers {
            if ["git-protocol", "content-type", "accept"].contains(&name.as_str()) {
                let name = reqwest::header::HeaderName::from_bytes(name.as_bytes()).unwrap();
                request.headers.push((name, value.parse().unwrap()));
            }
        }
        request.content = builder::http::Content::Bytes(&seen.body);
        let mut response = client.send(&request).unwrap();
        let kind = response.header("content-type").unwrap_or_default().to_owned();
        Answer::new(response.status()).with("Content-Type", kind).body(response.read_all(1 << 20).unwrap())
    });
    let context = Context::new("FROM r\n");
    let out = scratch();
    let layout = out.path().join("layout");
    let builder = Builder::without_programs();
    let build = |trusts: bool| {
        let mut command = builder.command();
        if trusts {
            command.env("SSL_CERT_FILE", Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/tls/ca.pem"));
        }
        command.args(["--no-push", "--destination=git.example/x:1"]).arg("--oci-layout-path").arg(&layout);
        command
            .arg(format!("--build-context=r=https://{}/repo.git#v1:sub", front.address))
            .arg(context.path());
        finish(&mut command)
    };
    let refused = build(false).exited(1);
    assert!(refused.stderr.contains("certificate"), "{}", refused.stderr);
    build(true).success();
    oci::with_unpacked(&layout, "1", |root| assert_eq!(listing(root), ["b 644 b"]));
}

#[test]
fn a_fetch_ends_at_once_when_it_is_told_to_and_limits_hold() {
    let stalled = Answer::new(200).with("Content-Type", "application/x-git-upload-pack-advertisement");
    let name = format!("{} refs/heads/x\0side-band-64k multi_ack_detailed\n", "1".repeat(40));
    let endless = stalled.clone().body(format!("{:04x}{name}", name.len() + 4)).ending(Ending::Endless);
    let server = Server::start("127.0.0.1", move |seen| match seen.path.as_str() {
        path if path.starts_with("/endless") => endless.clone(),
        path if path.starts_with("/refused") => stalled.clone().body("001eERR go away,\u{9b}1m stranger\n"),
        path if path.starts_with("/nonsense") => Answer::new(200).body("<html>"),
        _ => stalled.clone().body("001e# service=git-upload-pack\n").ending(Ending::Stall(4)),
    });
    let builder = Builder::without_programs();
    let source = |name: &str| format!("http://{}/{name}.git", server.address);
    let context = Context::new(&format!("FROM scratch\nADD {} /x\n", source("stalled")));
    let mut command = builder.command();
    command.arg("--no-push").arg(context.path());
    let mut running = Running::start(&mut command);
    running.wait_until("it asks", |_| !server.seen().is_empty());
    running.signal(Signal::TERM);
    let finished = running.end(Duration::from_secs(5));
    assert_eq!(finished.code, Some(143), "{}", finished.stderr);
    let finished = fails(&builder, &source("nonsense"), &[]);
    assert!(finished.stderr.contains("cannot ask http://"), "{}", finished.stderr);
    let finished = fails(&builder, &source("refused"), &[]);
    let words = "branches and tags: the server says: go away,\\u{9b}1m stranger";
    assert!(finished.stderr.contains(words), "{}", finished.stderr);
    let finished = fails(&builder, &source("endless"), &["--limit=git-memory=16MiB"]);
    assert!(finished.stderr.contains("--limit git-memory=N"), "{}", finished.stderr);
    let Some(site) = Site::start() else { return };
    for (limit, words) in [
        (
            "git-bytes=100",
            "the repository takes more than 100 bytes on disk; raise it with `--limit git-bytes=N`",
        ),
        ("git-entries=3", "more than 3 files, links and directories; raise it with `--limit git-entries=N`"),
        ("git-memory=1MiB", "more than 1048576 bytes of memory; raise it with `--limit git-memory=N`"),
    ] {
        let finished = fails(&builder, &site.url("repo.git"), &[&format!("--limit={limit}")]);
        assert!(finished.stderr.contains(words), "{limit}: {}", finished.stderr);
    }
}
