//! Names of entries.

use super::super::archive::*;
use super::{Case, Expect, What, accepted, content, refused};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = vec![
        refused("name-dotdot", "climbs out", |o| file(format!("{}/file", o.climbing()), b"PWNED")),
        refused("name-dotdot-alone", "climbs out", |_| dir("..")),
        refused("name-dotdot-symlink", "climbs out", |o| symlink("..", &o.path)),
        refused("name-dotdot-after-slash", "climbs out", |_| file("/../x", b"x")),
        refused("name-dotdot-in-the-middle-of-few", "climbs out", |_| file("a/../../x", b"x")),
        refused("name-empty", "the name is empty", |_| file("", b"x")),
        refused("name-empty-symlink", "the name is empty", |o| symlink("", &o.path)),
        refused("name-dot-file", "the root is a directory", |_| file(".", b"x")),
        refused("name-slash-file", "the root is a directory", |_| file("/", b"x")),
        refused("name-dot-symlink", "the root is a directory", |o| {
            [symlink(".", &o.path), file("file", b"PWNED")].concat()
        }),
        refused("name-back-to-the-root-symlink", "the root is a directory", |o| {
            [dir("d"), symlink("d/..", &o.path)].concat()
        }),
        refused("name-slash-hardlink", "the root is a directory", |_| hard_link("/", "etc/keep")),
        refused("name-nul-in-pax", "the PAX record `path`", |_| {
            [pax(&[("path", b"ok\0/../x")]), file("ok", b"x")].concat()
        }),
        refused("name-256", "longer than 255 bytes", |_| {
            [pax(&[("path", &[b'n'; 256])]), file("short", b"x")].concat()
        }),
        refused("name-256-in-the-middle", "longer than 255 bytes", |_| {
            [pax(&[("path", &[&[b'n'; 256][..], b"/x"].concat())]), file("short", b"x")].concat()
        }),
        refused("name-deep-100k", "longer than 4096 bytes", |_| {
            let deep = [b"a/".repeat(100_000), b"f".to_vec()].concat();
            [pax(&[("path", &deep)]), file("short", b"x")].concat()
        }),
        refused("name-4097", "longer than 4096 bytes", |_| {
            [pax(&[("path", &[b"a/".repeat(2048), b"f".to_vec()].concat())]), file("short", b"x")].concat()
        }),
        // Escaped in the message, as everything from an image.
        refused("name-escaped", "a\\nfake\\u{1b}[31m", |_| hard_link("a\nfake\x1b[31m", "a\nfake\x1b[31m")),
        accepted(
            "name-dotdot-middle",
            |_| [dir("x"), file("x/../moved", b"m")].concat(),
            &[("moved", content("m"))],
        ),
        accepted(
            "name-dotdot-of-nothing",
            |_| file("no/such/../../moved", b"m"),
            &[("moved", content("m")), ("no", What::Nothing)],
        ),
        accepted("name-back-to-the-root", |_| dir_mode("x/..", 0o755), &[("etc/keep", content("keep"))]),
        accepted("name-absolute", |_| file("/abs//./x", b"m"), &[("abs/x", content("m"))]),
        accepted("name-dot-dir", |_| [dir("./"), file("./x", b"x")].concat(), &[("x", content("x"))]),
        accepted(
            "name-dots",
            |_| [file("...", b"3"), file("..a", b"a"), file(".b.", b"b")].concat(),
            &[("...", content("3")), ("..a", content("a")), (".b.", content("b"))],
        ),
        accepted("name-backslashes", |_| file("..\\..\\x", b"m"), &[("..\\..\\x", content("m"))]),
        accepted(
            "name-newline-esc",
            |_| file("a\nERRO[0000] fake\x1b[31m", b"x"),
            &[("a\nERRO[0000] fake\x1b[31m", content("x"))],
        ),
        accepted(
            "name-blanks-and-dashes",
            |_| [file(" ", b"1"), file("-rf", b"2"), file("a ", b"3")].concat(),
            &[(" ", content("1")), ("-rf", content("2")), ("a ", content("3"))],
        ),
        accepted(
            "name-trailing-slash-file",
            |_| header("olddir/", 0).bytes(),
            &[("olddir", What::Directory)],
        ),
        // With a type, the slash says nothing.
        accepted("name-trailing-slash-of-a-file", |_| file("plain/", b"x"), &[("plain", content("x"))]),
        accepted(
            "name-twice",
            |_| [file("t", b"first"), file("t", b"second")].concat(),
            &[("t", content("second"))],
        ),
        accepted(
            "name-in-two-cases",
            |_| [file("Case", b"1"), file("case", b"2")].concat(),
            &[("Case", content("1")), ("case", content("2"))],
        ),
    ];
    cases.push(Case {
        expect: Expect::Accepted(vec![(vec![b'n'; 255], content("x"))]),
        ..accepted("name-255", |_| [pax(&[("path", &[b'n'; 255])]), file("short", b"x")].concat(), &[])
    });
    let longest = [b"a/".repeat(2047), b"f".to_vec()].concat();
    cases.push(Case {
        expect: Expect::Accepted(vec![(longest.clone(), content("x")), (b"a/a/a".to_vec(), What::Directory)]),
        ..accepted("name-4095", move |_| [pax(&[("path", &longest)]), file("short", b"x")].concat(), &[])
    });
    cases.push(Case {
        expect: Expect::Accepted(vec![(b"\xff\xfe".to_vec(), content("x"))]),
        ..accepted("name-not-utf8", |_| file(b"\xff\xfe", b"x"), &[])
    });
    cases
}
