//! Layers that try something bad, and odd ones that are meant well: what is accepted, what is refused, and that nothing
//! outside the root changes.

use std::io::{Cursor, Read, Write};
use std::path::Path;

use super::test_support::*;
use super::*;
use crate::image::digest::{Digest, VerifyingReader};
use crate::rootfs::{Rootfs, metadata_at};

/// Unpacked layers of one image in both styles, and something outside that must not change.
struct Ground {
    directory: tempfile::TempDir,
    canary: Vec<String>,
}

impl Ground {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let outside = directory.path().join("outside");
        std::fs::create_dir_all(outside.join("dir")).unwrap();
        std::fs::write(outside.join("file"), "canary").unwrap();
        std::fs::write(outside.join("dir/inner"), "canary").unwrap();
        std::fs::create_dir(directory.path().join("merged")).unwrap();
        let canary = dump(&Rootfs::open(&outside).unwrap());
        Self { directory, canary }
    }

    /// The directory outside, as the layers name it.
    fn outside(&self) -> String {
        self.directory.path().join("outside").to_str().unwrap().to_owned()
    }

    fn climbing(&self) -> String {
        format!("{}{}", "../".repeat(12), &self.outside()[1..])
    }

    fn merged(&self) -> Rootfs {
        Rootfs::open(&self.directory.path().join("merged")).unwrap()
    }

    /// Applies one layer on those before it, and alone into a directory of its own.
    fn apply_both(
        &self,
        number: usize,
        tar: &[u8],
    ) -> (Result<Applied, LayerError>, Result<Applied, LayerError>) {
        let alone = self.directory.path().join(format!("layer{number}"));
        std::fs::create_dir(&alone).unwrap();
        let alone = Rootfs::open(&alone).unwrap();
        let limits = Limits::default();
        let apart = apply(&mut Cursor::new(tar), &alone, Whiteouts::Overlay, &limits);
        (apply(&mut Cursor::new(tar), &self.merged(), Whiteouts::Remove, &limits), apart)
    }

    fn check_outside(&self, name: &str) {
        let now = dump(&Rootfs::open(Path::new(&self.outside())).unwrap());
        assert_eq!(now, self.canary, "{name}: outside changed");
    }

    /// The tree in both styles; the second is none where overlayfs cannot be mounted.
    fn views(&self, layers: usize) -> (Rootfs, Option<Rootfs>) {
        let paths: Vec<_> =
            (0..layers).map(|number| self.directory.path().join(format!("layer{number}"))).collect();
        // Overlayfs wants two layers at least.
        let empty = self.directory.path().join("empty");
        std::fs::create_dir_all(&empty).unwrap();
        let mut all = vec![empty.as_path()];
        all.extend(paths.iter().map(std::path::PathBuf::as_path));
        let view = overlay(&all).inspect_err(|error| eprintln!("skipped: cannot mount overlayfs: {error}"));
        (self.merged(), view.ok())
    }
}

fn base() -> Vec<u8> {
    [
        dir("etc"),
        file("etc/passwd", b"root:x:0:0::/:/bin/sh\n"),
        file("etc/keep", b"keep"),
        dir_mode("tmp", 0o1777),
        dir("data"),
        file("data/a", b"a"),
        file("data/b", b"b"),
        end(),
    ]
    .concat()
}

type Check = (&'static str, Option<&'static str>);

/// Layers on top of [`base`] that are accepted, and what is there afterwards.
fn accepted(name: &str, layers: &dyn Fn(&Ground) -> Vec<Vec<u8>>, checks: &[Check]) {
    let ground = Ground::new();
    let mut all = vec![base()];
    all.extend(layers(&ground));
    for (number, tar) in all.iter().enumerate() {
        let (merged, apart) = ground.apply_both(number, tar);
        merged.unwrap_or_else(|error| panic!("{name}, merged: {error:?}"));
        apart.unwrap_or_else(|error| panic!("{name}, apart: {error:?}"));
    }
    let (merged, apart) = ground.views(all.len());
    for (path, expected) in checks {
        assert_eq!(what(&merged, path).as_deref(), *expected, "{name}, merged: {path}");
        if let Some(apart) = &apart {
            assert_eq!(what(apart, path).as_deref(), *expected, "{name}, apart: {path}");
        }
    }
    ground.check_outside(name);
}

/// A layer on top of [`base`] that is refused in both styles with `message` somewhere in the error.
fn refused(name: &str, message: &str, layer: &dyn Fn(&Ground) -> Vec<u8>) {
    let ground = Ground::new();
    let (first, _) = ground.apply_both(0, &base());
    first.unwrap();
    let (merged, apart) = ground.apply_both(1, &layer(&ground));
    for result in [merged, apart] {
        let error = result.expect_err(name);
        let mut text = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            text += &format!(": {cause}");
            source = cause.source();
        }
        assert!(text.contains(message), "{name}: {text}");
        assert!(!text.chars().any(char::is_control), "{name}: {text:?}");
    }
    ground.check_outside(name);
}

fn one(entries: &[Vec<u8>]) -> Vec<Vec<u8>> {
    vec![[entries.concat(), end()].concat()]
}

#[test]
fn names() {
    if !is_root() {
        return;
    }
    refused("name-dotdot", "climbs out", &|g| file(format!("{}/file", g.climbing()), b"PWNED"));
    refused("name-dotdot-alone", "climbs out", &|_| dir(".."));
    refused("name-empty", "the name is empty", &|_| file("", b"x"));
    refused("name-dot-file", "the root is a directory", &|_| file(".", b"x"));
    refused("name-dot-symlink", "the root is a directory", &|g| {
        [symlink(".", g.outside()), file("file", b"PWNED")].concat()
    });
    refused("name-slash-hardlink", "the root is a directory", &|_| hard_link("/", "etc/keep"));
    refused("name-nul-in-pax", "the PAX record `path`", &|_| {
        [pax(&[("path", b"ok\0/../x")]), file("ok", b"x")].concat()
    });
    let deep = [b"a/".repeat(100_000), b"f".to_vec()].concat();
    refused("name-deep-100k", "longer than 4096 bytes", &|_| {
        [pax(&[("path", &deep)]), file("short", b"x")].concat()
    });
    refused("name-256", "longer than 255 bytes", &|_| {
        [pax(&[("path", &[b'n'; 256])]), file("short", b"x")].concat()
    });
    refused("name-escaped", "a\\nfake\\u{1b}[31m", &|_| hard_link("a\nfake\x1b[31m", "a\nfake\x1b[31m"));
    accepted("name-dotdot-middle", &|_| one(&[dir("x"), file("x/../moved", b"m")]), &[("moved", Some("m"))]);
    accepted("name-absolute", &|_| one(&[file("/abs//./x", b"m")]), &[("abs/x", Some("m"))]);
    let odd = "a\nERRO[0000] fake\x1b[31m";
    accepted("name-newline-esc", &|_| one(&[file(odd, b"x")]), &[("a\nERRO[0000] fake\x1b[31m", Some("x"))]);
    accepted(
        "name-255",
        &|_| one(&[pax(&[("path", &[b'n'; 255])]), file("short", b"x")]),
        &[("short", None)],
    );
    accepted(
        "name-trailing-slash-file",
        &|_| one(&[header("olddir/", 0).bytes()]),
        &[("olddir", Some("dir"))],
    );
    accepted("name-dot-dir", &|_| one(&[dir_mode("./", 0o755), file("./x", b"x")]), &[("x", Some("x"))]);
}

#[test]
fn symbolic_links() {
    if !is_root() {
        return;
    }
    accepted(
        "symlink-relative-then-write",
        &|g| one(&[symlink("evil", g.climbing()), file("evil/file", b"PWNED")]),
        &[],
    );
    accepted(
        "symlink-absolute-then-write",
        &|g| one(&[symlink("evil", g.outside()), file("evil/file", b"PWNED")]),
        &[],
    );
    accepted(
        "symlink-final-component",
        &|g| one(&[symlink("link", format!("{}/file", g.outside())), file("link", b"new")]),
        &[("link", Some("new"))],
    );
    accepted(
        "symlink-dir-chmod",
        &|g| one(&[symlink("p", format!("{}/dir", g.outside())), dir_mode("p", 0o777)]),
        &[("p", Some("dir"))],
    );
    accepted(
        "symlink-mkdir-outside",
        &|g| one(&[symlink("parent", g.climbing()), file("parent/new/dir/f", b"x")]),
        &[],
    );
    accepted(
        "symlink-merged-usr",
        &|_| one(&[dir("usr"), dir("usr/lib"), symlink("lib", "usr/lib"), file("lib/x", b"x")]),
        &[("usr/lib/x", Some("x")), ("lib", Some("symlink:usr/lib"))],
    );
    accepted(
        "symlink-absolute-varrun",
        &|_| one(&[dir("run"), dir("var"), symlink("var/run", "/run"), file("var/run/pid", b"1")]),
        &[("run/pid", Some("1"))],
    );
    accepted(
        "symlink-self-usr-bin-sh",
        &|_| {
            let first = [dir("bin"), file("bin/dash", b"d"), symlink("bin/sh", "dash")].concat();
            vec![first, symlink("bin/sh", "dash")]
        },
        &[("bin/sh", Some("symlink:dash")), ("bin/dash", Some("d"))],
    );
    accepted(
        "dir-becomes-symlink",
        &|g| one(&[symlink("data", g.outside()), file("data/file", b"PWNED")]),
        &[("data/a", None)],
    );
    accepted(
        "file-becomes-dir",
        &|_| vec![file("q", b"q"), [dir("q"), file("q/r", b"r")].concat()],
        &[("q/r", Some("r"))],
    );
    refused("parent-is-file", "`/pf` is not a directory", &|_| {
        [file("pf", b"x"), file("pf/child", b"y")].concat()
    });
    refused("parent-loops", "Too many", &|_| [symlink("l", "l"), file("l/x", b"y")].concat());
}

#[test]
fn hard_links() {
    if !is_root() {
        return;
    }
    refused("hardlink-outside-rel", "climbs out", &|g| hard_link("hl", format!("{}/file", g.climbing())));
    refused("hardlink-via-symlink-dir", "does not exist", &|g| {
        [symlink("sd", g.outside()), hard_link("hl", "sd/file")].concat()
    });
    refused("hardlink-to-dir", "a hard link to the directory", &|_| {
        [dir("etc"), hard_link("hl", "etc")].concat()
    });
    refused("hardlink-to-root", "a hard link to the directory", &|_| hard_link("hl", "/"));
    refused("hardlink-self", "to itself", &|_| hard_link("hl", "hl"));
    refused("hardlink-self-existing", "to itself", &|_| [file("hl", b"x"), hard_link("hl", "./hl")].concat());
    refused("hardlink-self-by-link", "to itself", &|_| {
        [dir("d"), file("d/f", b"x"), symlink("l", "d"), hard_link("l/f", "d/f")].concat()
    });
    refused("hardlink-to-empty", "the name is empty", &|_| hard_link("hl", ""));
    refused("pax-linkpath-escape", "climbs out", &|g| {
        let target = format!("{}/file", g.climbing());
        [pax(&[("linkpath", target.as_bytes())]), hard_link("hl", "etc/keep")].concat()
    });
    accepted(
        "hardlink-then-write",
        &|_| one(&[file("o", b"orig"), hard_link("h", "o"), file("h", b"new")]),
        &[("o", Some("orig")), ("h", Some("new"))],
    );
    accepted(
        "hardlink-through-link-inside",
        &|_| one(&[dir("d"), file("d/f", b"f"), symlink("l", "/d"), hard_link("h", "l/f")]),
        &[("h", Some("f"))],
    );
    accepted(
        "hardlink-to-symlink",
        &|_| one(&[symlink("s", "/etc/passwd"), hard_link("h", "s")]),
        &[("h", Some("symlink:/etc/passwd"))],
    );
}

#[test]
fn a_hard_link_into_a_lower_layer_is_made_or_reported() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    ground.apply_both(0, &base()).0.unwrap();
    let (merged, apart) = ground.apply_both(1, &[hard_link("keep2", "etc/keep"), end()].concat());
    assert_eq!(merged.unwrap().missing_links, []);
    assert_eq!(what(&ground.merged(), "keep2").as_deref(), Some("keep"));
    assert_eq!(apart.unwrap().missing_links, [(path("/keep2"), path("/etc/keep"))]);
    let (merged, _) = ground.apply_both(2, &hard_link("x", "no/such"));
    assert!(merged.is_err());
}

#[test]
fn whiteouts() {
    if !is_root() {
        return;
    }
    let opaque = "data/.wh..wh..opq";
    accepted(
        "wh-opaque",
        &|_| one(&[dir("data"), file("data/new", b"n"), file(opaque, b"")]),
        &[("data/a", None), ("data/b", None), ("data/new", Some("n"))],
    );
    accepted(
        "wh-opaque-first",
        &|_| one(&[file(opaque, b""), file("data/new", b"n"), dir("data/a")]),
        &[("data/a", Some("dir")), ("data/b", None), ("data/new", Some("n"))],
    );
    accepted(
        "wh-then-put",
        &|_| {
            one(&[
                file("data/.wh.a", b""),
                file("data/a", b"new"),
                file(".wh.etc", b""),
                dir("etc"),
                file("etc/x", b"x"),
            ])
        },
        &[("data/a", Some("new")), ("etc/keep", None), ("etc/x", Some("x"))],
    );
    accepted(
        "put-then-wh",
        &|_| {
            one(&[
                file("data/a", b"new"),
                file("data/.wh.a", b""),
                dir("etc"),
                file("etc/x", b"x"),
                file(".wh.etc", b""),
            ])
        },
        &[("data/a", Some("new")), ("etc/keep", None), ("etc/x", Some("x"))],
    );
    accepted(
        "wh-then-implied",
        &|_| one(&[file(".wh.etc", b""), file("etc/x/y", b"x"), file("tmp/z", b"z"), file(".wh.tmp", b"")]),
        &[("etc/keep", None), ("etc/x/y", Some("x")), ("tmp/z", Some("z"))],
    );
    accepted(
        "wh-opaque-through-symlink",
        &|g| one(&[symlink("ws", format!("{}/dir", g.outside())), file("ws/.wh..wh..opq", b"")]),
        &[("data/a", Some("a"))],
    );
    accepted(
        "wh-of-symlink",
        &|_| vec![symlink("wl", "data"), file(".wh.wl", b"")],
        &[("wl", None), ("data/a", Some("a"))],
    );
    accepted(
        "wh-missing",
        &|_| one(&[file("data/.wh.zzz", b"")]),
        &[("data/a", Some("a")), ("data/zzz", None)],
    );
    accepted("wh-of-dir", &|_| one(&[file(".wh.data", b"")]), &[("data", None)]);
    let long = [b".wh.".to_vec(), vec![b'n'; 255]].concat();
    accepted("wh-of-long-name", &|_| one(&[pax(&[("path", &long)]), file("short", b"")]), &[("short", None)]);
    accepted(
        "wh-aufs",
        &|_| one(&[dir(".wh..wh.plnk"), file(".wh..wh.plnk/1.2", b"x")]),
        &[(".wh..wh.plnk", None)],
    );
    for (name, entry) in [
        ("wh-empty", "data/.wh."),
        ("wh-dotdot", "data/.wh..."),
        ("wh-root-dotdot", ".wh..."),
        ("wh-dot", "data/.wh.."),
    ] {
        refused(name, "a whiteout names nothing", &|_| file(entry, b""));
    }
    refused("wh-climbing", "climbs out", &|_| file("../.wh.x", b""));
    refused("wh-in-the-middle", "reserved", &|_| file("data/.wh.x/y", b""));
}

#[test]
fn special_files_and_attributes() {
    if !is_root() {
        return;
    }
    accepted("wh-overlay-chardev", &|_| one(&[device("data/a0", b'3', (0, 0))]), &[("data/a", Some("a"))]);
    accepted(
        "fifo-then-write",
        &|_| one(&[header("ff", b'6').bytes(), file("ff", b"x")]),
        &[("ff", Some("x"))],
    );
    accepted("device", &|_| one(&[device("null", b'3', (1, 3))]), &[("null", Some("CharDevice"))]);
    accepted(
        "typeflag-contiguous",
        &|_| one(&[Header { size: 1, ..header("c7", b'7') }.bytes(), padded(b"7")]),
        &[("c7", Some("7"))],
    );
    refused("typeflag-unknown", "unknown type `Z`", &|_| header("u", b'Z').bytes());
    for key in ["trusted.overlay.redirect", "trusted.overlay.opaque", "user.overlay.whiteout"] {
        refused("xattr-trusted-overlay", "reserved for overlayfs", &|_| {
            [pax(&[(&format!("SCHILY.xattr.{key}"), b"/../x")]), dir("ov")].concat()
        });
    }
}

#[test]
fn setuid_bits_and_capabilities_survive_the_change_of_owner() {
    if !is_root() {
        return;
    }
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let record = ("SCHILY.xattr.security.capability", &capability[..]);
    let layer = [
        Header { mode: 0o4755, uid: 1234, ..header("su", b'0') }.bytes(),
        pax(&[record]),
        Header { mode: 0o755, uid: 7, ..header("ping", b'0') }.bytes(),
    ]
    .concat();
    let ground = Ground::new();
    let (merged, apart) = ground.apply_both(0, &layer);
    assert_eq!((merged.unwrap().losses, apart.unwrap().losses), Default::default());
    for root in [ground.merged(), Rootfs::open(&ground.directory.path().join("layer0")).unwrap()] {
        use std::os::fd::AsFd;
        let metadata = metadata_at(root.as_fd(), b"su").unwrap();
        assert_eq!((metadata.mode, metadata.owner.uid), (0o4755, 1234));
        assert!(root.xattrs(&path("ping")).unwrap().contains_key(&b"security.capability"[..]));
    }
}

#[test]
fn what_the_tree_cannot_hold_is_reported() {
    if !is_root() {
        return;
    }
    let layer = [
        device("data/dev00", b'3', (0, 0)),
        pax(&[("SCHILY.xattr.nonsense.key", b"x")]),
        file("f", b"x"),
        pax(&[("SCHILY.xattr.user.on.a.link", b"x")]),
        symlink("s", "f"),
    ]
    .concat();
    let (merged, apart) = Ground::new().apply_both(0, &layer);
    let counts =
        |applied: Applied| applied.losses.iter().map(|(kind, loss)| (kind, loss.count)).collect::<Vec<_>>();
    for applied in [merged, apart] {
        assert_eq!(counts(applied.unwrap()), [(LossKind::Device, 1), (LossKind::Attribute, 2)]);
    }
}

#[test]
fn sizes_and_extensions() {
    if !is_root() {
        return;
    }
    let inner = file("smuggled", b"");
    let outer = |size| Header { size, ..header("outer", b'0') }.bytes();
    accepted(
        "pax-size-smuggle-zero",
        &|_| one(&[pax(&[("size", b"1024")]), outer(0), inner.clone(), vec![b'A'; 512]]),
        &[("smuggled", None)],
    );
    accepted(
        "pax-size-smuggle-nonzero",
        &|_| one(&[pax(&[("size", b"1024")]), outer(512), vec![b'B'; 512], inner.clone()]),
        &[("smuggled", None)],
    );
    accepted(
        "pax-x-then-L",
        &|_| one(&[pax(&[("size", b"1")]), gnu_long(b'L', b"long"), outer(0), padded(b"z")]),
        &[("long", Some("z")), ("outer", None)],
    );
    accepted(
        "gnu-long-no-nul",
        &|_| {
            one(&[
                gnu_long(b'L', &[b'g'; 120]),
                Header { magic: GNU, size: 1, ..header("g", b'0') }.bytes(),
                padded(b"g"),
            ])
        },
        &[("g", None)],
    );
    let global = |records| pax_header(b'g', records);
    accepted(
        "pax-global",
        &|_| one(&[global(&[("comment", b"0123")]), file("f", b"x")]),
        &[("f", Some("x"))],
    );
    refused("pax-global-size", "sets `size` of all", &|_| {
        [global(&[("size", b"0")]), file("f", b"x")].concat()
    });
    accepted("no-end-blocks", &|_| vec![file("ne", b"x")], &[("ne", Some("x"))]);
    accepted("empty-layer", &|_| vec![Vec::new()], &[("etc/keep", Some("keep"))]);
    accepted(
        "junk-after-the-end",
        &|_| vec![[file("f", b"x"), end(), vec![7; 100_000]].concat()],
        &[("f", Some("x"))],
    );
    let raw = extension("./PaxHeaders/x", b'x', *b"ustar\x0000", b"99 path=evil\n");
    refused("pax-malformed", "a PAX record is malformed", &|_| [raw.clone(), file("m", b"x")].concat());
    refused("pax-size-negative", "`size`", &|_| [pax(&[("size", b"-1")]), file("m", b"x")].concat());
    refused("pax-size-overflow", "`size`", &|_| [pax(&[("size", &[b'9'; 30])]), file("m", b"x")].concat());
    refused("pax-header-1g", "larger than the limit of 1048576", &|_| {
        [Header { size: 1 << 30, ..header("./PaxHeaders/x", b'x') }.bytes(), padded(b"18 path=AAAAAAAAA\n")]
            .concat()
    });
    refused("pax-dangling", "not followed by an entry", &|_| [pax(&[("path", b"x")]), end()].concat());
    refused("pax-twice", "two PAX headers", &|_| {
        [pax(&[("path", b"x")]), pax(&[("uid", b"0")]), file("m", b"x")].concat()
    });
    refused("size-base256-negative", "`size`", &|_| {
        Header { raw_size: Some([0xff; 12]), ..header("n", b'0') }.bytes()
    });
    refused("size-beyond-eof", "the archive ends", &|_| {
        [Header { size: 1 << 30, ..header("big", b'0') }.bytes(), vec![b'x'; 512]].concat()
    });
    refused("size-beyond-limit", "more than 68719476736 bytes", &|_| {
        Header { raw_size: Some(*b"\x80\0\0\0\0\0\0\x40\0\0\0\0"), ..header("big", b'0') }.bytes()
    });
    refused("sparse-old-bomb", "more than 68719476736 bytes", &|_| {
        let mut block = Header { magic: GNU, ..header("sp", b'S') }.bytes();
        block[386..410].copy_from_slice(b"00000000000\x0000000000000\0");
        block[483] = 0x80;
        block[487] = 0x40;
        with_checksum(block)
    });
    refused("sparse-pax", "sparse files in PAX form", &|_| {
        [pax(&[("GNU.sparse.major", b"1"), ("GNU.sparse.minor", b"0")]), file("sp", b"x")].concat()
    });
    refused("checksum", "checksum", &|_| vec![b'x'; 512]);
    refused("one-empty-block", "data after an empty block", &|_| {
        [file("f", b"x"), vec![0; 512], file("g", b"x")].concat()
    });
    refused("half-a-header", "the archive ends", &|_| file("f", b"x")[..300].to_vec());
}

#[test]
fn many_entries_take_neither_memory_nor_time() {
    if !is_root() {
        return;
    }
    // In memory, where there is such a place: a disk's journal takes a minute.
    let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let root = Rootfs::open(directory.path()).unwrap();
    let tar: Vec<u8> = (0..100_000).flat_map(|number| file(format!("many/{number:06}"), b"")).collect();
    let applied = apply(&mut Cursor::new(&tar), &root, Whiteouts::Overlay, &Limits::default()).unwrap();
    assert_eq!(applied.entries, 100_000);
    assert_eq!(applied.implied, [path("/many")]);
    let limits = Limits { entries: Limits::ENTRIES.with(99), ..Limits::default() };
    let error = apply(&mut Cursor::new(&tar), &root, Whiteouts::Overlay, &limits).unwrap_err();
    assert!(matches!(error, LayerError::Entry { problem: EntryError::Entries(_), .. }), "{error:?}");
    let limits = Limits { names: Limits::NAMES.with(10_000), ..Limits::default() };
    let deep: Vec<u8> = (0..100).flat_map(|number| file(format!("{number}/b/c/d"), b"")).collect();
    let error = apply(&mut Cursor::new(&deep), &root, Whiteouts::Overlay, &limits).unwrap_err();
    assert!(matches!(error, LayerError::Entry { problem: EntryError::Names(_), .. }), "{error:?}");
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn compression() {
    if !is_root() {
        return;
    }
    let unpack = |blob: Vec<u8>, limits: &Limits| {
        let directory = tempfile::tempdir().unwrap();
        let root = Rootfs::open(directory.path()).unwrap();
        let mut tar =
            decompress(Cursor::new(blob), Formats::Layer, &Limits::default()).map_err(LayerError::Output)?;
        apply(&mut tar, &root, Whiteouts::Remove, limits)
    };
    let layer = [file("f", b"x"), end()].concat();
    let good = gzip(&layer);
    let mut wrong_sum = good.clone();
    let at = good.len() - 8;
    wrong_sum[at..at + 4].fill(0);
    let split = [gzip(&layer[..600]), gzip(&layer[600..])].concat();
    let limits = Limits::default();
    assert!(unpack(good.clone(), &limits).is_ok());
    assert!(unpack(layer.clone(), &limits).is_ok());
    assert!(unpack(split, &limits).is_ok());
    assert!(unpack([&good[..], &[0; 512]].concat(), &limits).is_ok());
    assert!(unpack([&good[..], b"JUNKJUNK"].concat(), &limits).is_err());
    assert!(unpack(wrong_sum, &limits).is_err());
    assert!(unpack(good[..good.len() - 3].to_vec(), &limits).is_err());
    let bomb =
        gzip(&[Header { size: 64 << 20, ..header("zeros", b'0') }.bytes(), vec![0; 64 << 20]].concat());
    assert!(bomb.len() < 1 << 20);
    assert!(unpack(bomb.clone(), &limits).is_ok());
    let small = Limits { bytes: Limits::BYTES.with(1 << 20), ..limits };
    assert!(matches!(unpack(bomb, &small), Err(LayerError::Entry { problem: EntryError::Bytes(_), .. })));
    let tail = gzip(&[file("f", b"x"), end(), vec![0; 2 << 20]].concat());
    assert!(matches!(unpack(tail, &small), Err(LayerError::Tar(TarError::TooLarge(_)))));
}

#[test]
fn other_bytes_than_announced_are_noticed_before_the_end() {
    if !is_root() {
        return;
    }
    let layer = [file("f", b"x"), end(), vec![0; 5000]].concat();
    let blob = gzip(&layer);
    let unpack = |blob: &[u8], digest: &Digest, size: usize, diff_id: &Digest| {
        let directory = tempfile::tempdir().unwrap();
        let root = Rootfs::open(directory.path()).unwrap();
        let stored = VerifyingReader::new(Cursor::new(blob.to_vec()), digest.clone(), size as u64);
        let tar = decompress(stored, Formats::Layer, &Limits::default()).map_err(LayerError::Output)?;
        let mut tar = VerifyingReader::new(tar, diff_id.clone(), layer.len() as u64);
        apply(&mut tar as &mut dyn Read, &root, Whiteouts::Remove, &Limits::default())
    };
    let (digest, diff_id) = (Digest::of(&blob), Digest::of(&layer));
    let mut flipped = blob.clone();
    *flipped.last_mut().unwrap() ^= 1;
    assert!(unpack(&blob, &digest, blob.len(), &diff_id).is_ok());
    assert!(unpack(&flipped, &digest, blob.len(), &diff_id).is_err(), "digest-wrong");
    assert!(unpack(&blob, &digest, blob.len() - 10, &diff_id).is_err(), "size-wrong-short");
    assert!(unpack(&blob, &digest, blob.len() + 1, &diff_id).is_err(), "size-wrong-long");
    assert!(unpack(&blob, &digest, blob.len(), &Digest::of(b"")).is_err(), "diffid-wrong");
}
