//! Devices, FIFOs, modes, owners, times and extended attributes.

use super::super::archive::*;
use super::{Case, What, accepted, content, refused, stack};

/// `cap_net_bind_service=ep`, as the kernel stores it.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

pub(super) fn cases() -> Vec<Case> {
    [files(), modes(), numbers(), attributes()].into_iter().flatten().collect()
}

fn xattr(key: &str, value: &[u8]) -> Vec<u8> {
    pax(&[(&format!("SCHILY.xattr.{key}"), value)])
}

fn files() -> Vec<Case> {
    let unknown = [b'8', b'9', b'A', b'D', b'M', b'N', b'V', b'X', b'a', 0xff];
    let mut cases = vec![
        accepted("fifo", |_| header("ff", b'6').bytes(), &[("ff", What::Fifo)]),
        accepted(
            "fifo-then-write",
            |_| [header("ff", b'6').bytes(), file("ff", b"x")].concat(),
            &[("ff", content("x"))],
        ),
        accepted(
            "fifo-then-directory",
            |_| [header("ff", b'6').bytes(), dir("ff"), file("ff/x", b"x")].concat(),
            &[("ff/x", content("x"))],
        ),
        accepted(
            "fifo-then-fifo",
            |_| [header("ff", b'6').bytes(), header("ff", b'6').bytes()].concat(),
            &[("ff", What::Fifo)],
        ),
        accepted("device", |_| device("null", b'3', (1, 3)), &[("null", What::Device)]),
        accepted(
            "device-then-write",
            |_| [device("null", b'3', (1, 3)), file("null", b"x")].concat(),
            &[("null", content("x"))],
        ),
        accepted("device-of-a-disk", |_| device("disk", b'4', (8, 0)), &[("disk", What::Device)]),
        accepted("device-largest", |_| device("large", b'4', (4095, 1_048_575)), &[("large", What::Device)]),
        refused("device-major-too-large", "`device`", |_| device("large", b'4', (4096, 0))),
        refused("device-minor-too-large", "`device`", |_| device("large", b'3', (1, 1_048_576))),
        accepted(
            "device-with-a-size",
            |_| {
                [Header { size: 1 << 30, device: (1, 3), ..header("null", b'3') }.bytes(), file("n", b"n")]
                    .concat()
            },
            &[("n", content("n"))],
        ),
        accepted(
            "typeflag-contiguous",
            |_| [Header { size: 1, ..header("c7", b'7') }.bytes(), padded(b"7")].concat(),
            &[("c7", content("7"))],
        ),
        refused("typeflag-unknown", "unknown type `Z`", |_| header("u", b'Z').bytes()),
    ];
    // Go's reader, and with it containerd, stops at each of them too.
    cases.push(accepted("typeflag-old-file", |_| header("old", 0).bytes(), &[("old", content(""))]));
    for flag in unknown {
        let name: &'static str = Box::leak(format!("typeflag-{}", flag.escape_ascii()).into_boxed_str());
        cases.push(refused(name, "unknown type", move |_| header("u", flag).bytes()));
    }
    cases
}

fn modes() -> Vec<Case> {
    vec![
        accepted(
            "setuid-chown-order",
            |_| {
                [Header { mode: 0o4755, uid: 1234, size: 2, ..header("su", b'0') }.bytes(), padded(b"#!")]
                    .concat()
            },
            &[("su", content("#!"))],
        ),
        accepted(
            "mode-with-a-type",
            |_| [Header { mode: 0o100_644, size: 1, ..header("f", b'0') }.bytes(), padded(b"x")].concat(),
            &[("f", content("x"))],
        ),
        accepted(
            "mode-of-nobody",
            |_| {
                let locked = Header { mode: 0, size: 1, ..header("f", b'0') }.bytes();
                [locked, padded(b"x"), hard_link("h", "f"), file("f", b"new")].concat()
            },
            &[("f", content("new"))],
        ),
        accepted(
            "directory-closed-then-used",
            |_| [dir_mode("d", 0), file("d/x", b"x"), dir_mode("d/e", 0o111), file("d/e/y", b"y")].concat(),
            &[("d", What::Directory), ("d/e/y", content("y"))],
        ),
        accepted(
            "directory-read-only-then-used",
            |_| {
                [dir_mode("d", 0o555), file("d/x", b"x"), symlink("d/l", "x"), header("d/f", b'6').bytes()]
                    .concat()
            },
            &[("d/x", content("x"))],
        ),
        accepted(
            "root-read-only",
            |_| [dir_mode("./", 0o555), file("x", b"x")].concat(),
            &[("x", content("x"))],
        ),
        stack(
            "root-closed-in-a-lower-layer",
            |_| vec![dir_mode(".", 0), [file("x", b"x"), file(".wh.data", b"")].concat()],
            &[("x", content("x")), ("data", What::Nothing)],
        ),
        stack(
            "directory-closed-in-a-lower-layer",
            |_| {
                vec![
                    [dir_mode("d", 0), file("d/x", b"x")].concat(),
                    [file("d/y", b"y"), file("d/.wh.x", b"")].concat(),
                ]
            },
            &[("d/y", content("y")), ("d/x", What::Nothing)],
        ),
        stack(
            "directory-closed-then-removed",
            |_| vec![[dir_mode("d", 0), file("d/e/x", b"x")].concat(), file(".wh.d", b"")],
            &[("d", What::Nothing)],
        ),
        stack(
            "directory-closed-then-opaque",
            |_| {
                vec![
                    [dir_mode("d", 0o100), dir_mode("d/e", 0), file("d/e/x", b"x")].concat(),
                    [file("d/e/new", b"n"), file("d/.wh..wh..opq", b"")].concat(),
                ]
            },
            &[("d/e/x", What::Nothing), ("d/e/new", content("n"))],
        ),
        stack(
            "directory-closed-then-opened",
            |_| vec![dir_mode("d", 0), dir_mode("d", 0o755), file("d/x", b"x")],
            &[("d/x", content("x"))],
        ),
        stack(
            "directory-closed-then-a-file",
            |_| vec![[dir_mode("d", 0), file("d/x", b"x")].concat(), file("d", b"f")],
            &[("d", content("f"))],
        ),
    ]
}

fn numbers() -> Vec<Case> {
    let block = |name: &str| header(name, b'0').bytes();
    let base_256 = |width: usize, number: u64| {
        let mut field = vec![0; width];
        field[0] = 0x80;
        let bytes = number.to_be_bytes();
        let kept = bytes.len().min(width - 1);
        field[width - kept..].copy_from_slice(&bytes[8 - kept..]);
        field
    };
    vec![
        accepted(
            "uid-largest",
            move |_| patched(block("f"), 108, &base_256(8, 4_294_967_294)),
            &[("f", content(""))],
        ),
        refused("uid-none", "`uid`", move |_| patched(block("f"), 108, &base_256(8, 4_294_967_295))),
        refused("uid-too-large", "`uid`", move |_| patched(block("f"), 108, &base_256(8, 1 << 40))),
        refused("gid-negative", "`gid`", move |_| patched(block("f"), 116, &[0xff; 8])),
        refused("pax-uid-too-large", "`uid`", |_| [pax(&[("uid", b"4294967296")]), file("f", b"x")].concat()),
        refused("pax-gid-negative", "`gid`", |_| [pax(&[("gid", b"-1")]), file("f", b"x")].concat()),
        accepted("mtime-before-1970", move |_| patched(block("f"), 136, &[0xff; 12]), &[("f", content(""))]),
        accepted(
            "mtime-far",
            move |_| patched(block("f"), 136, &base_256(12, 1 << 62)),
            &[("f", content(""))],
        ),
        accepted(
            "pax-mtime-far",
            |_| [pax(&[("mtime", b"9223372036854775807.999999999")]), file("f", b"x")].concat(),
            &[("f", content("x"))],
        ),
        refused("pax-mtime-nan", "`mtime`", |_| [pax(&[("mtime", b"nan")]), file("f", b"x")].concat()),
        refused("mode-no-number", "`mode`", move |_| patched(block("f"), 100, b"rwxr-xr\0")),
        accepted("numbers-of-blanks", move |_| patched(block("f"), 100, b"    644 "), &[("f", content(""))]),
        accepted(
            "numbers-that-are-empty",
            move |_| patched(block("f"), 108, &[0; 16]),
            &[("f", content(""))],
        ),
    ]
}

fn attributes() -> Vec<Case> {
    let mut cases = vec![
        accepted(
            "xattr-capability",
            |_| {
                [
                    xattr("security.capability", &CAPABILITY),
                    Header { mode: 0o755, size: 1, ..header("ping", b'0') }.bytes(),
                    padded(b"x"),
                ]
                .concat()
            },
            &[("ping", content("x"))],
        ),
        accepted(
            "xattr-user",
            |_| [xattr("user.a", b"\0\xff"), file("f", b"x"), xattr("user.a", b""), dir("d")].concat(),
            &[("f", content("x")), ("d", What::Directory)],
        ),
        accepted("xattr-user-of-a-link", |_| [xattr("user.a", b"v"), symlink("s", "f")].concat(), &[]),
        accepted(
            "xattr-user-of-a-read-only-file",
            |_| {
                [
                    xattr("user.a", b"v"),
                    Header { mode: 0o444, size: 1, ..header("f", b'0') }.bytes(),
                    padded(b"x"),
                ]
                .concat()
            },
            &[("f", content("x"))],
        ),
        accepted(
            "xattr-trusted",
            |_| [xattr("trusted.a", b"v"), file("f", b"x")].concat(),
            &[("f", content("x"))],
        ),
        accepted(
            "xattr-of-no-kind",
            |_| [xattr("nonsense", b"v"), file("f", b"x")].concat(),
            &[("f", content("x"))],
        ),
        accepted(
            "xattr-of-libarchive",
            |_| [pax(&[("LIBARCHIVE.xattr.trusted.overlay.opaque", b"eQ")]), file("f", b"x")].concat(),
            &[("f", content("x"))],
        ),
        refused("xattr-without-a-name", "malformed", |_| [xattr("", b"v"), file("f", b"x")].concat()),
        refused("xattr-too-large", "cannot set the extended attribute `user.a` (70000 bytes)", |_| {
            [xattr("user.a", &[b'v'; 70_000]), file("f", b"x")].concat()
        }),
    ];
    let reserved = [
        ("xattr-trusted-overlay", "trusted.overlay.redirect"),
        ("xattr-trusted-overlay-opaque", "trusted.overlay.opaque"),
        ("xattr-trusted-overlay-metacopy", "trusted.overlay.metacopy"),
        ("xattr-trusted-overlay-nested", "trusted.overlay.overlay.opaque"),
        ("xattr-user-overlay", "user.overlay.whiteout"),
        ("xattr-user-overlay-redirect", "user.overlay.redirect"),
    ];
    cases.extend(reserved.map(|(name, key)| {
        refused(name, "reserved for overlayfs", move |_| [xattr(key, b"/../x"), dir("ov")].concat())
    }));
    cases
}
