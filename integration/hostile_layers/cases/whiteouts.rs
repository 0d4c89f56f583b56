//! Whiteouts and opaque markers (OCI image-spec `layer.md`, Whiteouts), in all places and orders.

use super::super::archive::*;
use super::{Case, What, accepted, content, link, refused, stack};

const OPAQUE: &str = ".wh..wh..opq";

pub(super) fn cases() -> Vec<Case> {
    [removed(), opaque(), with_entries(), through_links(), no_whiteouts()].into_iter().flatten().collect()
}

fn mark(directory: &str) -> Vec<u8> {
    file(format!("{directory}{OPAQUE}"), b"")
}

fn removed() -> Vec<Case> {
    vec![
        accepted(
            "wh-missing",
            |_| file("data/.wh.zzz", b""),
            &[("data/a", content("a")), ("data/zzz", What::Nothing)],
        ),
        accepted("wh-in-a-missing-directory", |_| file("no/such/.wh.zzz", b""), &[("no", What::Nothing)]),
        accepted(
            "wh-of-dir",
            |_| file(".wh.data", b""),
            &[("data", What::Nothing), ("etc/keep", content("keep"))],
        ),
        accepted("wh-absolute", |_| file("/.wh.data", b""), &[("data", What::Nothing)]),
        accepted("wh-through-dots", |_| file("no/../.wh.data", b""), &[("data", What::Nothing)]),
        accepted(
            "wh-of-all",
            |_| [file(".wh.data", b""), file(".wh.etc", b""), file(".wh.tmp", b"")].concat(),
            &[("data", What::Nothing), ("etc", What::Nothing), ("tmp", What::Nothing)],
        ),
        accepted(
            "wh-with-content",
            |_| [file("data/.wh.a", &[b'x'; 2000]), file("n", b"n")].concat(),
            &[("data/a", What::Nothing), ("n", content("n"))],
        ),
        accepted(
            "wh-as-a-directory",
            |_| dir("data/.wh.a/"),
            &[("data/a", What::Nothing), ("data/.wh.a", What::Nothing)],
        ),
        accepted(
            "wh-as-a-symlink",
            |o| symlink("data/.wh.a", format!("{}/file", o.path)),
            &[("data/a", What::Nothing), ("data/.wh.a", What::Nothing)],
        ),
        accepted(
            "wh-as-a-hardlink",
            |o| hard_link("data/.wh.a", format!("{}/file", o.climbing())),
            &[("data/a", What::Nothing)],
        ),
        accepted("wh-as-a-device", |_| device("data/.wh.a", b'3', (1, 3)), &[("data/a", What::Nothing)]),
        accepted(
            "wh-with-a-dot-behind",
            |_| file("data/.wh.a/.", b""),
            &[("data/a", What::Nothing), ("data/.wh.a", What::Nothing)],
        ),
        accepted(
            "wh-of-a-name-with-control-bytes",
            |_| file("data/.wh.a\n\x1b[2J", b""),
            &[("data/a", content("a"))],
        ),
        accepted("wh-below-a-file", |_| file("etc/keep/.wh.x", b""), &[("etc/keep", content("keep"))]),
        accepted(
            "wh-of-long-name",
            |_| {
                let name = [b".wh.".to_vec(), vec![b'n'; 255]].concat();
                [pax(&[("path", &name)]), file("short", b"")].concat()
            },
            &[("short", What::Nothing)],
        ),
        stack(
            "wh-of-symlink",
            |_| vec![symlink("wl", "data"), file(".wh.wl", b"")],
            &[("wl", What::Nothing), ("data/a", content("a"))],
        ),
        stack(
            "wh-then-again-in-the-next-layer",
            |_| vec![file(".wh.data", b""), file("data/c", b"c"), file("data/.wh.c", b"")],
            &[("data", What::Directory), ("data/a", What::Nothing), ("data/c", What::Nothing)],
        ),
        stack(
            "wh-of-a-fifo",
            |_| vec![header("ff", b'6').bytes(), file(".wh.ff", b"")],
            &[("ff", What::Nothing)],
        ),
        stack(
            "wh-of-one-name-of-a-file",
            |_| vec![hard_link("h", "etc/keep"), file("etc/.wh.keep", b"")],
            &[("h", content("keep")), ("etc/keep", What::Nothing)],
        ),
    ]
}

fn opaque() -> Vec<Case> {
    vec![
        accepted(
            "wh-opaque",
            |_| [dir("data"), file("data/new", b"n"), mark("data/")].concat(),
            &[("data/a", What::Nothing), ("data/b", What::Nothing), ("data/new", content("n"))],
        ),
        accepted(
            "wh-opaque-first",
            |_| [mark("data/"), file("data/new", b"n"), dir("data/a")].concat(),
            &[("data/a", What::Directory), ("data/b", What::Nothing), ("data/new", content("n"))],
        ),
        accepted(
            "wh-opaque-without-an-entry",
            |_| mark("data/"),
            &[("data", What::Directory), ("data/a", What::Nothing)],
        ),
        accepted(
            "wh-opaque-twice",
            |_| [mark("data/"), file("data/new", b"n"), mark("data/")].concat(),
            &[("data/a", What::Nothing), ("data/new", content("n"))],
        ),
        accepted(
            "wh-opaque-before-its-directory",
            |_| [mark("data/"), dir_mode("data", 0o700)].concat(),
            &[("data", What::Directory), ("data/a", What::Nothing)],
        ),
        accepted("wh-opaque-in-a-missing-directory", |_| mark("no/such/"), &[("data/a", content("a"))]),
        accepted(
            "wh-opaque-in-a-new-directory",
            |_| [dir("new"), mark("new/"), file("new/x", b"x")].concat(),
            &[("new/x", content("x"))],
        ),
        accepted(
            "wh-opaque-as-a-directory",
            |_| dir(format!("data/{OPAQUE}")),
            &[("data/a", What::Nothing), ("data", What::Directory)],
        ),
        accepted(
            "wh-opaque-with-content",
            |_| file(format!("data/{OPAQUE}"), &[b'x'; 700]),
            &[("data/a", What::Nothing)],
        ),
        accepted(
            "wh-opaque-root",
            |_| [mark(""), file("n", b"n")].concat(),
            &[("etc", What::Nothing), ("data", What::Nothing), ("n", content("n"))],
        ),
        accepted(
            "wh-opaque-root-last",
            |_| [file("etc/n", b"n"), mark("./")].concat(),
            &[("etc/n", content("n")), ("etc/keep", What::Nothing), ("data", What::Nothing)],
        ),
        accepted("wh-opaque-below-a-file", |_| mark("etc/keep/"), &[("etc/keep", content("keep"))]),
        stack(
            "wh-opaque-of-many-levels",
            |_| {
                let lower = ["1/f", "1/2/f", "1/2/3/f", "1/b/f", "2/f"]
                    .map(|name| file(format!("data/{name}"), b"l"));
                let upper = [file("data/1/2/new", b"n"), mark("data/"), dir("data/1/b")];
                vec![lower.concat(), upper.concat()]
            },
            &[
                ("data/1/2/new", content("n")),
                ("data/1/2/f", What::Nothing),
                ("data/1/2/3", What::Nothing),
                ("data/1/f", What::Nothing),
                ("data/1/b", What::Directory),
                ("data/1/b/f", What::Nothing),
                ("data/2", What::Nothing),
            ],
        ),
        stack(
            "wh-opaque-of-two-layers",
            |_| vec![file("data/mid", b"m"), [mark("data/"), file("data/top", b"t")].concat()],
            &[("data/a", What::Nothing), ("data/mid", What::Nothing), ("data/top", content("t"))],
        ),
        stack(
            "wh-opaque-below-and-files-above",
            |_| vec![mark("data/"), file("data/top", b"t")],
            &[("data/a", What::Nothing), ("data/top", content("t"))],
        ),
    ]
}

fn with_entries() -> Vec<Case> {
    vec![
        accepted(
            "wh-then-put",
            |_| {
                [
                    file("data/.wh.a", b""),
                    file("data/a", b"new"),
                    file(".wh.etc", b""),
                    dir("etc"),
                    file("etc/x", b"x"),
                ]
                .concat()
            },
            &[("data/a", content("new")), ("etc/keep", What::Nothing), ("etc/x", content("x"))],
        ),
        accepted(
            "put-then-wh",
            |_| {
                [
                    file("data/a", b"new"),
                    file("data/.wh.a", b""),
                    dir("etc"),
                    file("etc/x", b"x"),
                    file(".wh.etc", b""),
                ]
                .concat()
            },
            &[("data/a", content("new")), ("etc/keep", What::Nothing), ("etc/x", content("x"))],
        ),
        accepted(
            "wh-then-implied",
            |_| {
                [file(".wh.etc", b""), file("etc/x/y", b"x"), file("tmp/z", b"z"), file(".wh.tmp", b"")]
                    .concat()
            },
            &[("etc/keep", What::Nothing), ("etc/x/y", content("x")), ("tmp/z", content("z"))],
        ),
        accepted(
            "wh-of-a-directory-and-in-it",
            |_| [file("data/.wh.a", b""), file(".wh.data", b""), file("data/new", b"n")].concat(),
            &[("data/new", content("n")), ("data/a", What::Nothing), ("data/b", What::Nothing)],
        ),
        accepted(
            "wh-of-a-directory-that-becomes-a-file",
            |_| [file(".wh.data", b""), file("data", b"f")].concat(),
            &[("data", content("f"))],
        ),
        accepted(
            "wh-of-a-file-that-becomes-a-directory",
            |_| [file("data/.wh.a", b""), file("data/a/x", b"x")].concat(),
            &[("data/a/x", content("x"))],
        ),
        accepted(
            "wh-of-a-directory-that-becomes-a-link",
            |_| [file(".wh.data", b""), symlink("data", "etc")].concat(),
            &[("data", link("etc")), ("etc/keep", content("keep"))],
        ),
        accepted(
            "wh-of-what-the-layer-replaced",
            |_| [dir("data/a"), file("data/a/x", b"x"), file("data/.wh.a", b"")].concat(),
            &[("data/a/x", content("x"))],
        ),
    ]
}

fn through_links() -> Vec<Case> {
    vec![
        accepted(
            "wh-opaque-through-symlink",
            |o| [symlink("ws", format!("{}/dir", o.path)), mark("ws/")].concat(),
            &[("data/a", content("a"))],
        ),
        accepted(
            "wh-through-symlink",
            |o| {
                [symlink("ws", format!("{}/dir", o.path)), file("ws/.wh.inner", b""), file("ws/.wh.zzz", b"")]
                    .concat()
            },
            &[],
        ),
        accepted(
            "wh-through-climbing-symlink",
            |o| [symlink("ws", o.climbing()), file("ws/.wh.file", b""), file("ws/.wh.dir", b"")].concat(),
            &[],
        ),
        stack(
            "wh-through-a-lower-symlink",
            |_| vec![symlink("localetc", "/etc"), file("localetc/.wh.keep", b"")],
            &[
                ("etc/keep", What::Nothing),
                ("etc/passwd", content("root:x:0:0::/:/bin/sh\n")),
                ("localetc", link("/etc")),
            ],
        ),
        stack(
            "wh-opaque-through-a-lower-symlink",
            |_| vec![symlink("localetc", "/etc"), mark("localetc/")],
            &[("etc/keep", What::Nothing), ("etc", What::Directory)],
        ),
        stack(
            "wh-through-a-lower-symlink-outside",
            |o| vec![symlink("ws", &o.path), [file("ws/.wh.file", b""), mark("ws/dir/")].concat()],
            &[],
        ),
        stack(
            "wh-through-a-dead-symlink",
            |_| vec![symlink("dead", "/no/such"), file("dead/.wh.keep", b"")],
            &[("etc/keep", content("keep")), ("dead", link("/no/such"))],
        ),
    ]
}

fn no_whiteouts() -> Vec<Case> {
    let mut cases: Vec<Case> = [
        ("wh-empty", "data/.wh."),
        ("wh-dotdot", "data/.wh..."),
        ("wh-root-dotdot", ".wh..."),
        ("wh-dot", "data/.wh.."),
        ("wh-root-dot", ".wh.."),
        ("wh-empty-root", ".wh."),
    ]
    .into_iter()
    .map(|(name, entry)| refused(name, "a whiteout names nothing", move |_| file(entry, b"")))
    .collect();
    cases.extend([
        refused("wh-climbing", "climbs out", |_| file("../.wh.x", b"")),
        refused("wh-opaque-climbing", "climbs out", |_| mark("../")),
        refused("wh-of-a-name-of-256", "longer than 255 bytes", |_| {
            let name = [b".wh.".to_vec(), vec![b'n'; 256]].concat();
            [pax(&[("path", &name)]), file("short", b"")].concat()
        }),
        // Only the last component can be a whiteout.
        accepted(
            "wh-in-the-middle",
            |_| file(".wh.etc/somefile", b"x"),
            &[("etc/keep", content("keep")), (".wh.etc/somefile", content("x"))],
        ),
        accepted(
            "wh-in-the-wrong-case",
            |_| file("data/.WH.a", b"x"),
            &[("data/a", content("a")), ("data/.WH.a", content("x"))],
        ),
        accepted(
            "wh-almost",
            |_| [file("data/.wha", b"x"), file("data/wh.a", b"y")].concat(),
            &[("data/a", content("a")), ("data/.wha", content("x")), ("data/wh.a", content("y"))],
        ),
        accepted(
            "wh-aufs",
            |_| {
                [
                    dir(".wh..wh.plnk"),
                    file(".wh..wh.plnk/1.2", b"x"),
                    file(".wh..wh.aufs", b""),
                    dir(".wh..wh.orph"),
                ]
                .concat()
            },
            &[(".wh..wh.plnk", What::Nothing), ("data/a", content("a"))],
        ),
        // What overlayfs keeps for a removed name is a device, and nothing is removed by it.
        accepted("wh-overlay-chardev", |_| device("data/dev00", b'3', (0, 0)), &[("data/a", content("a"))]),
        accepted(
            "wh-overlay-chardev-of-a-name",
            |_| device("data/a", b'3', (0, 0)),
            &[("data/a", What::Nothing), ("data/b", content("b"))],
        ),
    ]);
    cases
}
