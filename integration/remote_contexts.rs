//! Named contexts of git repositories and URLs, and a Dockerfile at a URL.

use std::os::unix::fs::MetadataExt as _;

use crate::support::fake_registry::Answer;
use crate::support::web::{MODIFIED_SECONDS, Site, listing};
use crate::support::{Builder, Context, Finished, oci, scratch};

/// The files of the image that `dockerfile` makes with `arguments`.
fn built(builder: &Builder, dockerfile: &str, arguments: &[&str]) -> Vec<String> {
    let out = scratch();
    let layout = out.path().join("layout");
    let context = Context::new(dockerfile);
    let more = ["--destination=x.example/x:1"];
    builder.layout(&context, &layout, &[&more, arguments].concat()).success();
    oci::with_unpacked(&layout, "1", listing)
}

fn refused(builder: &Builder, dockerfile: &str, arguments: &[&str]) -> Finished {
    let out = scratch();
    let layout = out.path().join("layout");
    let finished = builder.layout(&Context::new(dockerfile), &layout, arguments).exited(1);
    assert!(!layout.exists());
    finished
}

#[test]
fn a_repository_is_a_context_whose_ignore_rules_do_not_count() {
    let Some(site) = Site::start() else { return };
    site.commit(".dockerignore", "sub\n");
    let builder = Builder::new();
    let flag = |options: &str| format!("--build-context=r={}{options}", site.url("repo.git"));
    let all = [".dockerignore 644 sub", "a 755 #!/bin/sh", "l -> a", "sub/ 755", "sub/b 644 b"];
    for (options, dockerfile, files) in [
        ("", "FROM scratch\nCOPY --from=r . /\n", &all[..]),
        ("#master", "FROM r\n", &all),
        ("#v1:sub", "FROM scratch\nCOPY --from=r b /\n", &["b 644 b"]),
        ("?branch=master&subdir=sub", "FROM nowhere.example/x AS r\nRUN false\n", &["b 644 b"]),
    ] {
        let found: Vec<String> = built(&builder, dockerfile, &[&flag(options)])
            .iter()
            .map(|line| line.trim_end().to_owned())
            .collect();
        assert_eq!(found, files, "{options}");
    }
    let finished = refused(&builder, "FROM r\n", &[&flag("#none")]);
    let words = ["error: --build-context r: cannot fetch `http://", "repo.git"];
    assert!(finished.says(&words), "{}", finished.stderr);
    assert!(finished.says(&["repository does not contain ref none"]), "{}", finished.stderr);
    // Nobody wants it: it is not asked for.
    let before = site.server.requests("GET", "repo.git").len();
    built(&builder, "FROM scratch\nCOPY <<E /x\nE\n", &[&flag("#none")]);
    assert_eq!(site.server.requests("GET", "repo.git").len(), before);
    let finished = refused(&builder, "FROM scratch\n", &["--build-context=r=git@h"]);
    assert!(finished.says(&["--build-context"]), "{}", finished.stderr);
}

#[test]
fn a_url_is_a_context_with_one_file_that_is_not_unpacked() {
    let Some(site) = Site::start() else { return };
    let builder = Builder::new();
    let flag = |path: &str| format!("--build-context=u={}", site.url(path));
    let out = scratch();
    let layout = out.path().join("layout");
    let context = Context::new("FROM scratch\nCOPY --from=u . /d/\nCOPY --from=u context /f\n");
    let arguments = ["--destination=x.example/x:1", &flag("hello.txt")];
    builder.layout(&context, &layout, &arguments).success();
    oci::with_unpacked(&layout, "1", |root| {
        assert_eq!(listing(root), ["d/ 755", "d/context 600 hello", "f 600 hello"]);
        let metadata = std::fs::metadata(root.join("f")).expect("a file");
        assert_eq!((metadata.mtime(), metadata.uid()), (MODIFIED_SECONDS, 0));
    });
    let archive = built(&builder, "FROM scratch\nCOPY --from=u . /\n", &[&flag("a.tar")]);
    assert_eq!(archive.len(), 1, "{archive:?}");
    let finished = refused(&builder, "FROM u\n", &[&flag("missing")]);
    assert!(finished.says(&["--build-context u: cannot fetch `http://"]), "{}", finished.stderr);
    assert!(finished.says(&["invalid response status 404"]), "{}", finished.stderr);
}

#[test]
fn a_dockerfile_may_be_at_a_url() {
    let Some(site) = Site::start_with(|seen| match seen.path.as_str() {
        "/Dockerfile" => Some(Answer::new(200).body("FROM scratch\nCOPY . /\n")),
        "/wrong" => Some(Answer::new(200).body("FROM scratch\nCOPPY a b\n")),
        "/large" => Some(Answer::new(200).body(vec![b'#'; 3000])),
        "/archive" => Some(Answer::new(200).body(&b"\x1f\x8b\x08"[..])),
        _ => None,
    }) else {
        return;
    };
    let builder = Builder::new();
    let flag = |path: &str| format!("--dockerfile={}", site.url(path));
    let context = Context::new("FROM scratch\nRUN false\n");
    context.write("f", "F");
    context.write(".dockerignore", "Dockerfile*\n.dockerignore\n");
    context.write("Dockerfile.dockerignore", "f\n");
    let out = scratch();
    let layout = out.path().join("layout");
    let arguments = ["--destination=x.example/x:1", &flag("Dockerfile")];
    builder.layout(&context, &layout, &arguments).success();
    oci::with_unpacked(&layout, "1", |root| assert_eq!(listing(root), ["f 644 F"]));
    let path = context.path().to_str().expect("a path");
    let plan = builder.run(["plan", path, &flag("Dockerfile")]).success().json();
    assert_eq!(plan["stages"][0]["steps"][0]["instruction"], "COPY . /");
    let secret = site.url("missing").replace("http://", "http://user:pass-w0rd@");
    for (flags, words) in [
        (vec![flag("wrong")], "/wrong:2"),
        (vec![flag("missing")], "invalid response status 404"),
        (vec![format!("--dockerfile={secret}")], "cannot fetch `http://"),
        (
            vec![flag("large"), "--limit=dockerfile-bytes=2KiB".to_owned()],
            "more than 2048 bytes; raise it with",
        ),
        (vec![flag("archive")], "this is an archive, not a Dockerfile"),
    ] {
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let finished = refused(&builder, "FROM scratch\n", &flags);
        assert!(finished.stderr.contains(words), "{flags:?}: {}", finished.stderr);
        assert!(!finished.stderr.contains("pass-w0rd"), "{}", finished.stderr);
    }
}
