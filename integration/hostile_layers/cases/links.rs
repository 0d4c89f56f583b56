//! Symbolic and hard links, and what is made through them. Many shapes are those of containerd's `TestBreakouts`.

use super::super::archive::*;
use super::{Case, What, accepted, content, link, refused, slow, stack};

pub(super) fn cases() -> Vec<Case> {
    [symbolic(), replaced(), hard(), hard_through_symbolic()].into_iter().flatten().collect()
}

fn symbolic() -> Vec<Case> {
    vec![
        accepted(
            "symlink-relative-then-write",
            |o| [symlink("evil", o.climbing()), file("evil/file", b"PWNED")].concat(),
            &[],
        ),
        accepted(
            "symlink-absolute-then-write",
            |o| [symlink("evil", &o.path), file("evil/file", b"PWNED")].concat(),
            &[],
        ),
        accepted(
            "symlink-absolute-then-directory",
            |o| [symlink("evil", &o.path), dir_mode("evil/dir", 0o777)].concat(),
            &[],
        ),
        accepted(
            "symlink-chain-then-write",
            |o| {
                [symlink("a", "b"), symlink("b", "c"), symlink("c", o.climbing()), file("a/file", b"PWNED")]
                    .concat()
            },
            &[],
        ),
        accepted(
            "symlink-mkdir-outside",
            |o| [symlink("parent", o.climbing()), file("parent/new/dir/f", b"x")].concat(),
            &[],
        ),
        accepted(
            "symlink-of-proc-root",
            |o| [symlink("p", "/proc/self/root"), file(format!("p{}/file", o.path), b"PWNED")].concat(),
            &[("proc/self/root", What::Directory)],
        ),
        accepted(
            "symlink-of-a-descriptor",
            |_| [symlink("p", "/proc/self/fd/3"), file("p/x", b"x")].concat(),
            &[("proc/self/fd/3/x", content("x"))],
        ),
        accepted(
            "symlink-merged-usr",
            |_| [dir("usr"), dir("usr/lib"), symlink("lib", "usr/lib"), file("lib/x", b"x")].concat(),
            &[("usr/lib/x", content("x")), ("lib", link("usr/lib"))],
        ),
        accepted(
            "symlink-absolute-varrun",
            |_| [dir("run"), dir("var"), symlink("var/run", "/run"), file("var/run/pid", b"1")].concat(),
            &[("run/pid", content("1"))],
        ),
        accepted(
            "symlink-to-the-root",
            |_| [symlink("r", "/"), file("r/etc/new", b"n")].concat(),
            &[("etc/new", content("n"))],
        ),
        accepted(
            "symlink-above-the-root",
            |_| [symlink("r", "../".repeat(60)), file("r/etc/new", b"n")].concat(),
            &[("etc/new", content("n"))],
        ),
        accepted(
            "symlink-up-and-in",
            |_| [dir("dummy"), symlink("localetc", "/dummy/../etc"), file("localetc/new", b"n")].concat(),
            &[("etc/new", content("n"))],
        ),
        accepted(
            "symlink-of-a-symlink",
            |_| {
                [
                    dir("dummy"),
                    symlink("dummy/etc", "/etc"),
                    symlink("localetc", "./dummy/etc"),
                    file("localetc/new", b"n"),
                ]
                .concat()
            },
            &[("etc/new", content("n")), ("localetc", link("./dummy/etc"))],
        ),
        accepted(
            "symlink-dangling-then-write",
            |_| [symlink("l", "no/such"), file("l/x", b"x")].concat(),
            &[("no/such/x", content("x")), ("l", link("no/such"))],
        ),
        accepted(
            "symlink-of-a-name-with-dots",
            |_| [dir("sub"), symlink("sub/l/..", "/etc"), file("sub/x", b"x")].concat(),
            &[("etc/x", content("x"))],
        ),
        accepted(
            "symlink-longest",
            |_| [pax(&[("linkpath", &[b't'; 4095])]), symlink("l", "")].concat(),
            &[],
        ),
        refused("symlink-too-long", "cannot make the symbolic link", |_| {
            [pax(&[("linkpath", &[b't'; 4096])]), symlink("l", "")].concat()
        }),
        refused("symlink-empty", "cannot make the symbolic link", |_| symlink("l", "")),
        refused("symlink-loops", "Too many", |_| [symlink("l", "l"), file("l/x", b"y")].concat()),
        refused("symlink-loops-in-pairs", "Too many", |_| {
            [symlink("l", "m"), symlink("m", "l"), dir("l/x")].concat()
        }),
        refused("symlink-41-in-a-row", "Too many", |_| {
            let links = (0..41).map(|n| symlink(format!("l{n}"), format!("l{}", n + 1)));
            [links.collect::<Vec<_>>().concat(), dir("l41"), file("l0/x", b"x")].concat()
        }),
        refused("symlink-to-a-file-as-parent", "is not a directory", |_| {
            [symlink("l", "etc/keep"), file("l/x", b"x")].concat()
        }),
        refused("parent-is-file", "`/pf` is not a directory", |_| {
            [file("pf", b"x"), file("pf/child", b"y")].concat()
        }),
        refused("parent-is-a-lower-file", "`/etc/keep` is not a directory", |_| file("etc/keep/child", b"y")),
        refused("parent-is-a-fifo", "is not a directory", |_| {
            [header("ff", b'6').bytes(), file("ff/x", b"x")].concat()
        }),
    ]
}

fn replaced() -> Vec<Case> {
    vec![
        accepted(
            "symlink-final-component",
            |o| [symlink("link", format!("{}/file", o.path)), file("link", b"new")].concat(),
            &[("link", content("new"))],
        ),
        accepted(
            "symlink-final-component-fifo",
            |o| [symlink("link", format!("{}/file", o.path)), header("link", b'6').bytes()].concat(),
            &[("link", What::Fifo)],
        ),
        accepted(
            "symlink-final-component-hardlink",
            |o| [symlink("link", format!("{}/file", o.path)), hard_link("link", "etc/keep")].concat(),
            &[("link", content("keep"))],
        ),
        accepted(
            "symlink-dir-chmod",
            |o| [symlink("p", format!("{}/dir", o.path)), dir_mode("p", 0o777)].concat(),
            &[("p", What::Directory)],
        ),
        accepted(
            "symlink-becomes-a-directory-that-is-used",
            |o| [symlink("p", format!("{}/dir", o.path)), dir("p"), file("p/inner", b"PWNED")].concat(),
            &[("p/inner", content("PWNED"))],
        ),
        accepted(
            "dir-becomes-symlink",
            |o| [symlink("data", &o.path), file("data/file", b"PWNED")].concat(),
            &[("data/a", What::Nothing)],
        ),
        accepted(
            "dir-becomes-symlink-between-two-files",
            |o| {
                [
                    dir("d"),
                    file("d/file", b"1"),
                    symlink("d", &o.path),
                    file("d/file", b"PWNED"),
                    file("d/other", b"PWNED"),
                ]
                .concat()
            },
            &[],
        ),
        stack(
            "symlink-of-a-lower-layer-then-write",
            |o| vec![symlink("evil", &o.path), file("evil/file", b"PWNED"), dir("evil/dir/more")],
            &[],
        ),
        stack(
            "symlink-of-a-lower-layer-is-replaced",
            |o| vec![symlink("evil", &o.path), [dir_mode("evil", 0o777), file("evil/file", b"n")].concat()],
            &[("evil/file", content("n"))],
        ),
        stack(
            "symlink-self-usr-bin-sh",
            |_| {
                vec![
                    [dir("bin"), file("bin/dash", b"d"), symlink("bin/sh", "dash")].concat(),
                    symlink("bin/sh", "dash"),
                ]
            },
            &[("bin/sh", link("dash")), ("bin/dash", content("d"))],
        ),
        stack(
            "file-becomes-dir",
            |_| vec![file("q", b"q"), [dir("q"), file("q/r", b"r")].concat()],
            &[("q/r", content("r"))],
        ),
        stack(
            "dir-becomes-file-becomes-dir",
            |_| vec![file("q/r", b"r"), file("q", b"q"), [dir("q"), file("q/s", b"s")].concat()],
            &[("q/s", content("s")), ("q/r", What::Nothing)],
        ),
        stack(
            "dir-becomes-dir",
            |_| vec![file("q/r", b"r"), [dir_mode("q", 0o700), file("q/s", b"s")].concat()],
            &[("q/r", content("r")), ("q/s", content("s"))],
        ),
    ]
}

fn hard() -> Vec<Case> {
    vec![
        refused("hardlink-outside-rel", "climbs out", |o| hard_link("hl", format!("{}/file", o.climbing()))),
        refused("hardlink-outside-abs", "does not exist", |o| hard_link("hl", format!("{}/file", o.path))),
        refused("pax-linkpath-escape", "climbs out", |o| {
            let target = format!("{}/file", o.climbing());
            [pax(&[("linkpath", target.as_bytes())]), hard_link("hl", "etc/keep")].concat()
        }),
        refused("gnu-longlink-escape", "climbs out", |o| {
            [gnu_long(b'K', format!("{}/file\0", o.climbing()).as_bytes()), hard_link("hl", "etc/keep")]
                .concat()
        }),
        refused("hardlink-missing", "does not exist", |_| hard_link("hl", "no/such")),
        refused("hardlink-forward", "does not exist", |_| {
            [hard_link("hl", "later"), file("later", b"x")].concat()
        }),
        refused("hardlink-to-dir", "a hard link to the directory", |_| hard_link("hl", "etc")),
        refused("hardlink-to-own-dir", "a hard link to the directory", |_| {
            [dir("d"), hard_link("hl", "d")].concat()
        }),
        refused("hardlink-to-root", "a hard link to the directory", |_| hard_link("hl", "/")),
        refused("hardlink-self", "to itself", |_| hard_link("hl", "hl")),
        refused("hardlink-self-existing", "to itself", |_| {
            [file("hl", b"x"), hard_link("hl", "./hl")].concat()
        }),
        refused("hardlink-to-empty", "the name is empty", |_| hard_link("hl", "")),
        refused("hardlink-to-a-removed-file", "does not exist", |_| {
            [file("etc/.wh.keep", b""), hard_link("hl", "etc/keep")].concat()
        }),
        accepted(
            "hardlink-then-write",
            |_| [file("o", b"orig"), hard_link("h", "o"), file("h", b"new")].concat(),
            &[("o", content("orig")), ("h", content("new"))],
        ),
        accepted(
            "hardlink-then-write-to-the-first",
            |_| [file("o", b"orig"), hard_link("h", "o"), file("o", b"new")].concat(),
            &[("o", content("new")), ("h", content("orig"))],
        ),
        accepted(
            "hardlink-chain",
            |_| [file("o", b"x"), hard_link("p", "o"), hard_link("q", "p"), hard_link("r", "/q")].concat(),
            &[("r", content("x"))],
        ),
        accepted("hardlink-lower-layer", |_| hard_link("keep2", "etc/keep"), &[("keep2", content("keep"))]),
        accepted(
            "hardlink-over-a-directory",
            |_| hard_link("data", "etc/keep"),
            &[("data", content("keep"))],
        ),
        accepted(
            "hardlink-through-dots",
            |_| hard_link("h", "data/../etc/./keep"),
            &[("h", content("keep"))],
        ),
        accepted(
            "hardlink-with-a-size",
            |_| {
                [
                    Header { size: 4096, link: b"etc/keep".to_vec(), ..header("h", b'1') }.bytes(),
                    file("n", b"n"),
                ]
                .concat()
            },
            &[("h", content("keep")), ("n", content("n"))],
        ),
        accepted(
            "hardlink-to-a-fifo",
            |_| [header("ff", b'6').bytes(), hard_link("h", "ff"), file("h", b"x")].concat(),
            &[("ff", What::Fifo), ("h", content("x"))],
        ),
        stack(
            "hardlink-to-a-file-that-is-replaced-later",
            |_| vec![hard_link("h", "etc/keep"), file("etc/keep", b"new")],
            &[("h", content("keep")), ("etc/keep", content("new"))],
        ),
        // Each target takes its own way through two thousand directories.
        slow(accepted(
            "hardlink-deep-1000",
            |_| {
                let deep = [b"d/".repeat(2000), b"f".to_vec()].concat();
                let first = [pax(&[("path", &deep)]), file("x", b"x")].concat();
                let links =
                    (0..1000).map(|n| [pax(&[("linkpath", &deep)]), hard_link(format!("h{n}"), "")].concat());
                [first, links.collect::<Vec<_>>().concat()].concat()
            },
            &[("h999", content("x"))],
        )),
    ]
}

fn hard_through_symbolic() -> Vec<Case> {
    vec![
        refused("hardlink-via-symlink-dir", "does not exist", |o| {
            [symlink("sd", &o.path), hard_link("hl", "sd/file")].concat()
        }),
        refused("hardlink-self-by-link", "to itself", |_| {
            [dir("d"), file("d/f", b"x"), symlink("l", "d"), hard_link("l/f", "d/f")].concat()
        }),
        accepted(
            "hardlink-through-link-inside",
            |_| [dir("d"), file("d/f", b"f"), symlink("l", "/d"), hard_link("h", "l/f")].concat(),
            &[("h", content("f"))],
        ),
        accepted(
            "hardlink-through-links-that-climb",
            |_| {
                [
                    dir("breakouts"),
                    dir("downandout"),
                    symlink("breakouts/d1", "../downandout/../../etc"),
                    hard_link("breakouts/mine", "/breakouts/d1/keep"),
                ]
                .concat()
            },
            &[("breakouts/mine", content("keep"))],
        ),
        accepted(
            "hardlink-below-a-link-that-replaced-a-directory",
            |_| [symlink("data", "../../etc"), hard_link("data/mine", "/etc/keep")].concat(),
            &[("etc/mine", content("keep")), ("data", link("../../etc"))],
        ),
        accepted(
            "hardlink-to-symlink",
            |_| [symlink("s", "/etc/passwd"), hard_link("h", "s")].concat(),
            &[("h", link("/etc/passwd"))],
        ),
        accepted(
            "hardlink-to-a-dangling-symlink",
            |_| [symlink("s", "/etc/late"), hard_link("h", "s"), file("etc/late", b"late")].concat(),
            &[("h", link("/etc/late")), ("etc/late", content("late"))],
        ),
        accepted(
            "hardlink-to-symlink-outside-then-write",
            |o| [symlink("s", format!("{}/file", o.path)), hard_link("h", "s"), file("h", b"new")].concat(),
            &[("h", content("new"))],
        ),
        // The link has the name of a file outside, and the hard link follows neither.
        accepted(
            "hardlink-to-symlink-outside",
            |o| {
                [
                    symlink(format!("{}/file", o.path), format!("{}/dir/inner", o.path)),
                    hard_link("sketchy", format!("{}/file", o.path)),
                ]
                .concat()
            },
            &[],
        ),
        stack(
            "directory-overrides-symlink-and-hardlink",
            |_| {
                vec![
                    [symlink("localetc", "etc"), hard_link("localetc/mine", "/etc/keep")].concat(),
                    [dir("localetc"), file("localetc/mine", b"different")].concat(),
                ]
            },
            &[
                ("localetc/mine", content("different")),
                ("etc/mine", content("keep")),
                ("etc/keep", content("keep")),
            ],
        ),
    ]
}
