//! ADD of URLs through the whole program, from servers that behave and servers that do not.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use builder::image::digest::Digest;
use rustix::process::Signal;

use crate::support::fake_registry::{Answer, Ending, Seen, Server};
use crate::support::traces::Running;
use crate::support::web::{MODIFIED, MODIFIED_SECONDS};
use crate::support::{Builder, Context, Finished, oci, scratch};

const CANARY: &str = "canary-t0k3n";

/// A server and what is built from it.
struct Trial {
    server: Server,
    builder: Builder,
}

impl Trial {
    fn new(handler: impl Fn(&Seen) -> Answer + Send + Sync + 'static) -> Self {
        Self { server: Server::start("127.0.0.1", handler), builder: Builder::new() }
    }

    /// Builds `FROM scratch` and these lines, with `URL` for the server's; looks at the files.
    fn build(&self, lines: &str, arguments: &[&str], look: impl FnOnce(&Path)) -> Finished {
        let out = scratch();
        let layout = out.path().join("layout");
        let finished = self.run(lines, arguments, &layout).success();
        oci::with_unpacked(&layout, "1", look);
        finished
    }

    fn run(&self, lines: &str, arguments: &[&str], layout: &Path) -> Finished {
        let lines = lines.replace("URL", &format!("http://{}", self.server.address));
        let context = Context::new(&format!("FROM scratch\n{lines}\n"));
        context.write("local", "local");
        let more = ["--destination=urls.example/x:1", "-v", "trace"];
        self.builder.layout(&context, layout, &[&more, arguments].concat())
    }

    /// Builds what must fail, leaving nothing behind; gives what was said.
    fn fails(&self, lines: &str, arguments: &[&str]) -> String {
        let out = scratch();
        let layout = out.path().join("layout");
        let finished = self.run(lines, arguments, &layout).exited(1);
        assert!(!layout.exists());
        assert!(finished.stderr.contains("Dockerfile:2"), "{}", finished.stderr);
        for left in ["blobs/sha256", "tmp"] {
            let left = std::fs::read_dir(self.builder.store().join(left)).unwrap().flatten();
            let left: Vec<_> = left.map(|entry| entry.file_name()).collect();
            assert!(left.is_empty(), "{left:?}");
        }
        finished.stderr
    }
}

/// A server of one answer.
fn always(answer: Answer) -> Trial {
    Trial::new(move |_| answer.clone())
}

fn content(root: &Path, name: &str) -> String {
    String::from_utf8(std::fs::read(root.join(name)).unwrap()).unwrap()
}

#[test]
fn a_file_has_the_name_of_the_url_and_the_time_of_its_last_change() {
    let trial = Trial::new(|seen| match seen.path.as_str() {
        "/redir" => Answer::new(302).with("Location", "/elsewhere/other.txt"),
        "/cd" => Answer::new(200).with("Content-Disposition", "attachment; filename=other").body("cd"),
        "/nolm" => Answer::new(200).body("nolm"),
        path => Answer::new(200).with("Last-Modified", MODIFIED).body(path),
    });
    let lines = "ARG name=x\nADD URL/$name.txt?q=/y URL/redir URL/cd URL/nolm URL URL/a%20* /d/\n\
                 ADD --chown=7:8 --chmod=4711 URL/f /g";
    trial.build(lines, &[], |root| {
        let names = ["x.txt", "redir", "cd", "nolm", "__unnamed__", "a *"];
        let seconds = [MODIFIED_SECONDS, MODIFIED_SECONDS, 0, 0, MODIFIED_SECONDS, MODIFIED_SECONDS];
        for (name, seconds) in names.iter().zip(seconds) {
            let found = std::fs::metadata(root.join("d").join(name)).unwrap();
            assert_eq!((found.mode() & 0o7777, found.uid(), found.mtime()), (0o600, 0, seconds), "{name}");
        }
        assert_eq!(content(root, "d/redir"), "/elsewhere/other.txt");
        let found = std::fs::metadata(root.join("g")).unwrap();
        assert_eq!((found.mode() & 0o7777, found.uid(), found.gid()), (0o4711, 7, 8));
    });
}

#[test]
fn a_second_build_downloads_only_what_was_changed() {
    let version = Arc::new(AtomicUsize::new(1));
    let now = Arc::clone(&version);
    let trial = Trial::new(move |seen| {
        let version = now.load(Ordering::SeqCst);
        let etag = format!("\"{version}\"");
        let body = format!("{} {version}", seen.path);
        match seen.path.as_str() {
            "/etag" if seen.header("if-none-match") == Some(&etag) => Answer::new(304),
            // It has heard of tags, but not of conditions.
            "/etag" | "/deaf" => Answer::new(200).with("ETag", etag).body(body),
            "/date" if seen.header("if-modified-since") == Some(MODIFIED) => Answer::new(304),
            "/date" => Answer::new(200).with("Last-Modified", MODIFIED).body(body),
            _ => Answer::new(200).body(body),
        }
    });
    let lines = "ADD URL/etag URL/deaf URL/date URL/plain /\nADD URL/etag /again";
    let first = trial.build(lines, &[], |root| assert_eq!(content(root, "again"), "/etag 1"));
    assert!(first.says(&["layers: 0 remembered, 2 made"]), "{}", first.stderr);
    assert_eq!(trial.server.seen().len(), 4, "what two steps name is asked for once");
    let second = trial.build(lines, &[], |_| ());
    assert!(second.says(&["layers: 2 remembered, 0 made"]), "{}", second.stderr);
    // What is done anew takes the file from the store.
    let third = trial.build(lines, &["--no-cache"], |root| assert_eq!(content(root, "deaf"), "/deaf 1"));
    assert!(third.says(&["/etag: not changed"]) && third.says(&["/date: not changed"]), "{}", third.stderr);
    version.store(2, Ordering::SeqCst);
    let changed = trial.build(lines, &[], |root| {
        assert_eq!(content(root, "etag"), "/etag 2");
        assert_eq!(content(root, "deaf"), "/deaf 2");
        assert_eq!(content(root, "date"), "/date 1");
        assert_eq!(content(root, "plain"), "/plain 2");
    });
    assert!(changed.says(&["layers: 0 remembered, 2 made"]), "{}", changed.stderr);
}

#[test]
fn the_same_content_is_a_hit_and_another_time_is_none() {
    let time = Arc::new(AtomicUsize::new(37));
    let now = Arc::clone(&time);
    let trial = Trial::new(move |_| {
        let date = format!("Sun, 06 Nov 1994 08:49:{} GMT", now.load(Ordering::SeqCst));
        Answer::new(200).with("Last-Modified", date).body("same")
    });
    let build = |lines: &str| trial.build(lines, &[], |_| ()).stderr;
    assert!(build("ADD URL/x /").contains("0 remembered, 1 made"));
    assert!(build("ADD URL/x?other=1 /").contains("1 remembered, 0 made"));
    assert!(build("ADD URL/y /").contains("0 remembered, 1 made"));
    time.store(38, Ordering::SeqCst);
    assert!(build("ADD URL/x?third=1 /").contains("0 remembered, 1 made"));
}

#[test]
fn what_comes_later_replaces_what_came_before_wherever_it_is_from() {
    let trial = always(Answer::new(200).body("remote"));
    let lines = "ADD local URL/local /a/\nADD URL/local local /b/\nADD URL/x <<y local /c/\nhere\ny";
    trial.build(lines, &[], |root| {
        assert_eq!(content(root, "a/local"), "remote");
        assert_eq!(content(root, "b/local"), "local");
        assert_eq!(content(root, "c/x"), "remote");
        assert_eq!(content(root, "c/y"), "here\n");
        assert_eq!(content(root, "c/local"), "local");
    });
}

#[test]
fn archives_are_extracted_only_for_who_says_so() {
    let archive = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/archives/a.tgz")).unwrap();
    let trial = always(Answer::new(200).body(archive));
    let lines = "ADD URL/a /kept/\nADD --unpack=true URL/a /unpacked/\nADD --unpack=false URL/a /kept2";
    trial.build(lines, &[], |root| {
        assert!(root.join("kept/a").is_file() && root.join("kept2").is_file());
        assert_eq!(std::fs::metadata(root.join("unpacked/p/q")).unwrap().uid(), 31);
    });
}

#[test]
fn a_checksum_that_holds_saves_the_download_and_one_that_does_not_is_an_error() {
    let trial = always(Answer::new(200).body("content"));
    let sum = Digest::of(b"content");
    let lines = format!("ARG SUM={sum}\nADD --checksum=$SUM URL/x /");
    trial.build(&lines, &[], |root| assert_eq!(content(root, "x"), "content"));
    let asked = trial.server.seen().len();
    trial.build(&lines, &[], |_| ());
    trial.build(&lines, &["--no-cache"], |root| assert_eq!(content(root, "x"), "content"));
    assert_eq!(trial.server.seen().len(), asked);
    let other = always(Answer::new(200).body("other"));
    let said = other.fails(&format!("ADD --checksum={sum} URL/x /"), &[]);
    assert!(said.contains("digest mismatch"), "{said}");
    for (lines, message) in [
        ("ADD --checksum=sha256:12 URL/x /", "invalid checksum digest length"),
        ("ADD --checksum=12 URL/x /", "invalid checksum digest format"),
        ("ADD --checksum=md5:12 URL/x /", "unsupported digest algorithm"),
        (&format!("ADD --checksum={sum} URL/x URL/y /"), "checksum can't be specified for multiple sources"),
        (&format!("ADD --checksum={sum} local /"), "checksum requires HTTP(S) or Git sources"),
        ("COPY URL/x /", "source can't be a URL for COPY"),
        ("COPY URL/x.git /", "source can't be a git ref for COPY"),
    ] {
        let said = other.fails(lines, &[]);
        assert!(said.contains(message), "{lines}: {said}");
    }
}

#[test]
fn credentials_go_to_their_host_and_are_shown_nowhere() {
    let thief = Server::start("127.0.0.2", |_| Answer::new(200).body("stolen"));
    let to = format!("http://{}/x", thief.address);
    let trial = Trial::new(move |seen| match (seen.path.as_str(), seen.header("authorization")) {
        (_, None) => Answer::new(401),
        ("/away", _) => Answer::new(302).with("Location", &to),
        _ => Answer::new(200).body("mine"),
    });
    let out = scratch();
    let secret = out.path().join("secret");
    std::fs::write(&secret, format!("{CANARY}\n")).unwrap();
    let flag = |id: &str| format!("--secret=id={id},src={}", secret.display());
    let said = trial.build("ADD URL/x /", &[&flag("HTTP_AUTH_TOKEN_127.0.0.1")], |_| ()).stderr;
    assert!(!said.contains(CANARY));
    let seen = trial.server.seen().pop().unwrap();
    assert_eq!(seen.header("authorization"), Some(&*format!("Bearer {CANARY}")));
    trial.build("ADD URL/y /", &[&flag("HTTP_AUTH_HEADER_127.0.0.1")], |_| ());
    assert_eq!(trial.server.seen().pop().unwrap().header("authorization"), Some(CANARY));
    trial.build("ADD URL/away /", &[&flag("HTTP_AUTH_TOKEN_127.0.0.1")], |root| {
        assert_eq!(content(root, "away"), "stolen");
    });
    assert_eq!(thief.seen().pop().unwrap().header("authorization"), None);
    let said =
        trial.run("ADD URL/z /", &[&flag("HTTP_AUTH_TOKEN_127.0.0.2")], &out.path().join("z")).exited(1);
    assert!(said.says(&["invalid response status 401"]) && said.says(&["--secret id=HTTP_AUTH_TOKEN_HOST"]));

    // In the URL itself.
    let layout = out.path().join("layout");
    let with_password = format!("ADD http://me:{CANARY}@{}/u /", trial.server.address);
    let finished = trial.run(&with_password, &[], &layout).success();
    assert!(trial.server.seen().pop().unwrap().header("authorization").unwrap().starts_with("Basic "));
    let image = oci::LayoutImage::only(&layout);
    let row = format!("ADD http://xxxxx:xxxxx@{}/u / # buildkit", trial.server.address);
    assert_eq!(image.raw_config["history"][0]["created_by"], row);
    for text in [finished.stderr, finished.stdout, image.raw_config.to_string()] {
        assert!(!text.contains(CANARY), "{text}");
    }
    let missing = format!("ADD ftp://me:{CANARY}@h/x http://me:{CANARY}@{}/%zz /", trial.server.address);
    let said = trial.run(&missing, &[], &out.path().join("none")).exited(1).stderr;
    assert!(!said.contains(CANARY), "{said}");
}

#[test]
fn what_a_server_may_not_do_is_an_error_that_leaves_nothing_behind() {
    let headers = (0..4000)
        .fold(Answer::new(200), |answer, number| answer.with(&format!("X-{number}"), "x".repeat(1000)));
    let cases: Vec<(Answer, &[&str], &str)> = vec![
        (Answer::new(404), &[], "invalid response status 404"),
        (Answer::new(403), &[], "invalid response status 403"),
        (
            Answer::new(200).body("x".repeat(1 << 16)).ending(Ending::Endless),
            &["--limit=download-bytes=1MiB"],
            "raise it with `--limit download-bytes=N`",
        ),
        (Answer::new(200).body("12345"), &["--limit=download-bytes=4"], "the file has more than 4 bytes"),
        (Answer::new(200).body("x".repeat(1000)).ending(Ending::Cut(500)), &[], "closed the connection"),
        (headers, &[], "127.0.0.1"),
        (Answer::new(302).with("Location", "/again"), &[], "more than 10 redirects"),
        (Answer::new(302).with("Location", "file:///etc/passwd"), &[], "not a plain http or https URL"),
    ];
    for (answer, arguments, message) in cases {
        let said = always(answer).fails("ADD URL/x /", arguments);
        assert!(said.contains(message), "{message}: {said}");
    }
    // No server at all.
    let trial = always(Answer::new(200));
    let said = trial.fails("ADD http://127.0.0.1:1/x /", &[]);
    assert!(said.contains("connection refused"), "{said}");
}

#[test]
fn a_file_that_was_damaged_in_the_store_is_fetched_again() {
    let trial = Trial::new(|seen| match seen.header("if-none-match") {
        Some("\"1\"") => Answer::new(304),
        _ => Answer::new(200).with("ETag", "\"1\"").body("content"),
    });
    trial.build("ADD URL/x /", &[], |_| ());
    let blob = trial.builder.store().join("blobs/sha256").join(Digest::of(b"content").hex());
    // Of the same size, so that only reading it tells.
    std::fs::remove_file(&blob).unwrap();
    std::fs::write(&blob, "another").unwrap();
    trial.build("ADD URL/x /", &["--no-cache"], |root| assert_eq!(content(root, "x"), "content"));
    std::fs::remove_file(&blob).unwrap();
    trial.build("ADD URL/x /", &["--no-cache"], |root| assert_eq!(content(root, "x"), "content"));
    assert!(blob.exists());
}

#[test]
fn a_server_that_fails_for_a_moment_is_asked_again() {
    let tries = AtomicUsize::new(0);
    let trial = Trial::new(move |_| match tries.fetch_add(1, Ordering::SeqCst) {
        0 => Answer::new(503).with("Retry-After", 0),
        1 => Answer::new(200).body("x".repeat(1000)).ending(Ending::Cut(500)),
        _ => Answer::new(200).body("whole"),
    });
    trial.build("ADD URL/x /", &[], |root| assert_eq!(content(root, "x"), "whole"));
    assert_eq!(trial.server.seen().len(), 3);
}

#[test]
fn planning_fetches_nothing() {
    let trial = always(Answer::new(200).body("x"));
    let url = format!("http://{}/x", trial.server.address);
    let context = Context::new(&format!("FROM scratch\nADD {url} {url}.git /\n"));
    let plan = trial.builder.run([Path::new("plan"), context.path()]).success().json();
    assert_eq!(plan["image"]["history"][0]["created_by"], format!("ADD {url} {url}.git / # buildkit"));
    assert!(trial.server.seen().is_empty());
}

#[test]
fn a_build_that_waits_for_a_server_ends_at_once_when_it_is_told_to() {
    let answer = Answer::new(200).body("x".repeat(1000)).ending(Ending::Stall(500));
    let trial = always(answer);
    let context = Context::new(&format!("FROM scratch\nADD http://{}/x /\n", trial.server.address));
    let mut command = trial.builder.command();
    command.arg("--no-push").arg(context.path());
    let mut running = Running::start(&mut command);
    running.wait_until("a request", |_| !trial.server.seen().is_empty());
    running.signal(Signal::INT);
    let finished = running.end(Duration::from_secs(5));
    assert_eq!(finished.code, Some(130), "{}", finished.stderr);
}
