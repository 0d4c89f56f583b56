//! Headers, their extensions, sizes and ends. Many shapes are those of the advisories for tar, Go and tar-rs.

use super::super::archive::*;
use super::{Case, Expect, What, accepted, accepted_raw, content, refused, refused_raw, slow};

pub(super) fn cases() -> Vec<Case> {
    [pax_headers(), gnu(), sizes(), ends(), many()].into_iter().flatten().collect()
}

fn outer(size: u64) -> Vec<u8> {
    Header { size, ..header("outer", b'0') }.bytes()
}

/// A complete entry that is the content of another.
fn inner() -> Vec<u8> {
    file("smuggled", b"")
}

fn raw_pax(body: &[u8]) -> Vec<u8> {
    extension("./PaxHeaders/x", b'x', *b"ustar\x0000", body)
}

fn pax_headers() -> Vec<Case> {
    let mut cases = vec![
        accepted(
            "pax-size-smuggle-zero",
            |_| [pax(&[("size", b"1024")]), outer(0), inner(), vec![b'A'; 512]].concat(),
            &[("smuggled", What::Nothing)],
        ),
        accepted(
            "pax-size-smuggle-nonzero",
            |_| [pax(&[("size", b"1024")]), outer(512), vec![b'B'; 512], inner()].concat(),
            &[("smuggled", What::Nothing)],
        ),
        accepted(
            "pax-size-of-a-directory",
            |_| [pax(&[("size", b"1024")]), dir("d"), file("n", b"n")].concat(),
            &[("d", What::Directory), ("n", content("n"))],
        ),
        accepted(
            "pax-x-then-L",
            |_| [pax(&[("size", b"1")]), gnu_long(b'L', b"long"), outer(0), padded(b"z")].concat(),
            &[("long", content("z")), ("outer", What::Nothing)],
        ),
        accepted(
            "pax-L-then-x",
            |_| [gnu_long(b'L', b"long"), pax(&[("size", b"1")]), outer(0), padded(b"z")].concat(),
            &[("long", content("z")), ("outer", What::Nothing)],
        ),
        accepted(
            "pax-smuggled-in-a-longname",
            |_| {
                [pax(&[("size", b"1024")]), gnu_long(b'L', b"long"), outer(0), inner(), vec![b'A'; 512]]
                    .concat()
            },
            &[("smuggled", What::Nothing)],
        ),
        accepted(
            "pax-global",
            |_| [pax_header(b'g', &[("comment", b"0123")]), file("f", b"x")].concat(),
            &[("f", content("x"))],
        ),
        accepted(
            "pax-global-between",
            |_| {
                [pax(&[("path", b"renamed")]), pax_header(b'g', &[("comment", b"0123")]), file("f", b"x")]
                    .concat()
            },
            &[("renamed", content("x"))],
        ),
        accepted(
            "pax-last-counts",
            |_| {
                [raw_pax(&[record(b"path", b"first"), record(b"path", b"last")].concat()), file("f", b"x")]
                    .concat()
            },
            &[("last", content("x")), ("first", What::Nothing)],
        ),
        accepted(
            "pax-empty-takes-back",
            |_| {
                [raw_pax(&[record(b"path", b"first"), record(b"path", b"")].concat()), file("f", b"x")]
                    .concat()
            },
            &[("f", content("x"))],
        ),
        accepted(
            "pax-for-one-entry",
            |_| [pax(&[("path", b"renamed")]), file("f", b"x"), file("g", b"y")].concat(),
            &[("renamed", content("x")), ("g", content("y"))],
        ),
        accepted(
            "pax-newline-in-a-value",
            |_| [pax(&[("path", b"a\n12 path=b\n")]), file("f", b"x")].concat(),
            &[("a\n12 path=b\n", content("x")), ("b", What::Nothing)],
        ),
        accepted(
            "pax-largest",
            |_| {
                let value = vec![b'v'; (1 << 20) - 100];
                [pax(&[("comment", &value)]), file("f", b"x")].concat()
            },
            &[("f", content("x"))],
        ),
        accepted("pax-of-nothing", |_| [raw_pax(b""), file("f", b"x")].concat(), &[("f", content("x"))]),
        refused("pax-too-large", "larger than the limit of 1048576", |_| {
            [pax(&[("comment", &vec![b'v'; 1 << 20])]), file("f", b"x")].concat()
        }),
        refused_raw("pax-header-1g", "--limit tar-extension=N", || {
            [
                Header { size: 1 << 30, ..header("./PaxHeaders/x", b'x') }.bytes(),
                padded(b"18 path=AAAAAAAAA\n"),
            ]
            .concat()
        }),
        refused("pax-global-size", "sets `size` of all", |_| {
            [pax_header(b'g', &[("size", b"0")]), file("f", b"x")].concat()
        }),
        refused("pax-global-path", "sets `path` of all", |_| {
            [pax_header(b'g', &[("path", b"../x")]), file("f", b"x")].concat()
        }),
        refused("pax-global-malformed", "malformed", |_| {
            [extension("g", b'g', *b"ustar\x0000", b"99 a=b\n"), file("f", b"x")].concat()
        }),
        refused("pax-dangling", "not followed by an entry", |_| pax(&[("path", b"x")])),
        refused("pax-twice", "two PAX headers", |_| {
            [pax(&[("path", b"x")]), pax(&[("uid", b"0")]), file("m", b"x")].concat()
        }),
        refused("pax-size-negative", "`size`", |_| [pax(&[("size", b"-1")]), file("m", b"x")].concat()),
        refused("pax-size-overflow", "`size`", |_| [pax(&[("size", &[b'9'; 30])]), file("m", b"x")].concat()),
        refused("pax-size-of-letters", "`size`", |_| [pax(&[("size", b"0x10")]), file("m", b"x")].concat()),
        refused("pax-size-of-63-bits", "--limit layer-bytes=N", |_| {
            [pax(&[("size", b"9223372036854775807")]), file("m", b"x")].concat()
        }),
        refused_raw("pax-cut", "the archive ends", || pax(&[("comment", &[b'v'; 600])])[..700].to_vec()),
    ];
    let malformed: [(&'static str, &'static [u8]); 9] = [
        ("pax-malformed", b"99 path=evil\n"),
        ("pax-malformed-no-newline", b"12 path=evil"),
        ("pax-malformed-no-equals", b"8 path\n\n"),
        ("pax-malformed-no-key", b"8 =evil\n"),
        ("pax-malformed-no-length", b"path=evil\n"),
        ("pax-malformed-length-0", b"0 path=evil\n"),
        ("pax-malformed-length-negative", b"-13 path=evil\n"),
        ("pax-malformed-length-huge", b"99999999999999999999999 path=evil\n"),
        ("pax-malformed-nul-behind", b"13 path=evil\n\0"),
    ];
    cases.extend(malformed.map(|(name, body)| {
        refused(name, "a PAX record is malformed", move |_| [raw_pax(body), file("m", b"x")].concat())
    }));
    cases
}

fn gnu() -> Vec<Case> {
    let long = "g".repeat(120);
    let check = vec![(long.clone().into_bytes(), content("g"))];
    let named = |name: Vec<u8>| {
        move |_: &super::Outside| {
            [gnu_long(b'L', &name), Header { magic: GNU, size: 1, ..header("g", b'0') }.bytes(), padded(b"g")]
                .concat()
        }
    };
    vec![
        Case {
            expect: Expect::Accepted(check.clone()),
            ..accepted("gnu-long-no-nul", named(long.clone().into_bytes()), &[])
        },
        Case {
            expect: Expect::Accepted(check),
            ..accepted(
                "gnu-long-bytes-behind-the-nul",
                named(format!("{long}\0/../../x\0\0").into_bytes()),
                &[],
            )
        },
        accepted("gnu-long-empty", named(b"\0".to_vec()), &[("g", content("g"))]),
        accepted(
            "gnu-long-twice",
            |_| [gnu_long(b'L', b"first\0"), gnu_long(b'L', b"second\0"), file("g", b"g")].concat(),
            &[("second", content("g")), ("first", What::Nothing)],
        ),
        refused("gnu-long-climbs", "climbs out", |o| {
            [gnu_long(b'L', format!("{}/file\0", o.climbing()).as_bytes()), file("g", b"g")].concat()
        }),
        refused("gnu-long-dangling", "not followed by an entry", |_| gnu_long(b'L', b"x\0")),
        refused_raw("gnu-long-1g", "--limit tar-extension=N", || {
            [Header { magic: GNU, size: 1 << 30, ..header("././@LongLink", b'L') }.bytes(), padded(b"x")]
                .concat()
        }),
        accepted(
            "ustar-prefix",
            |_| patched(file("x", b"p"), 345, b"some/dir")[..].to_vec(),
            &[("some/dir/x", content("p"))],
        ),
        refused("ustar-prefix-climbs", "climbs out", |_| patched(file("x", b"p"), 345, b"../..")),
        accepted(
            "gnu-has-no-prefix",
            |_| {
                let block = Header { magic: GNU, size: 1, ..header("x", b'0') }.bytes();
                [patched(block, 345, b"../.."), padded(b"p")].concat()
            },
            &[("x", content("p"))],
        ),
        accepted(
            "header-of-version-7",
            |_| [Header { magic: [0; 8], size: 1, ..header("x", b'0') }.bytes(), padded(b"p")].concat(),
            &[("x", content("p"))],
        ),
        accepted(
            "checksum-of-signed-bytes",
            |_| {
                let block = Header { size: 1, ..header(b"\xe9", b'0') }.bytes();
                let signed: i32 = block
                    .iter()
                    .enumerate()
                    .map(|(at, byte)| {
                        if (148..156).contains(&at) { i32::from(b' ') } else { i32::from(byte.cast_signed()) }
                    })
                    .sum();
                let mut block = block;
                block[148..156].copy_from_slice(format!("{signed:06o}\0 ").as_bytes());
                [block, padded(b"s")].concat()
            },
            &[],
        ),
    ]
}

fn sizes() -> Vec<Case> {
    vec![
        refused("size-base256-negative", "`size`", |_| {
            Header { raw_size: Some([0xff; 12]), ..header("n", b'0') }.bytes()
        }),
        accepted(
            "size-base256",
            |_| {
                [
                    Header { raw_size: Some(*b"\x80\0\0\0\0\0\0\0\0\0\0\x01"), ..header("n", b'0') }.bytes(),
                    padded(b"n"),
                ]
                .concat()
            },
            &[("n", content("n"))],
        ),
        refused("size-base256-huge", "`size`", |_| {
            Header { raw_size: Some(*b"\x80\0\0\xff\xff\xff\xff\xff\xff\xff\xff\xff"), ..header("n", b'0') }
                .bytes()
        }),
        refused("size-of-letters", "`size`", |_| {
            Header { raw_size: Some(*b"0000000000x\0"), ..header("n", b'0') }.bytes()
        }),
        refused("size-of-nines", "`size`", |_| {
            Header { raw_size: Some(*b"00000000009\0"), ..header("n", b'0') }.bytes()
        }),
        accepted(
            "size-of-blanks",
            |_| {
                [Header { raw_size: Some(*b"          1 "), ..header("n", b'0') }.bytes(), padded(b"n")]
                    .concat()
            },
            &[("n", content("n"))],
        ),
        refused_raw("size-beyond-eof", "the archive ends", || {
            [Header { size: 1 << 30, ..header("big", b'0') }.bytes(), vec![b'x'; 512]].concat()
        }),
        refused_raw("size-beyond-eof-by-one", "the archive ends", || {
            [Header { size: 1025, ..header("big", b'0') }.bytes(), vec![b'x'; 1024]].concat()
        }),
        refused_raw("size-beyond-limit", "--limit layer-bytes=N", || {
            Header { raw_size: Some(*b"\x80\0\0\0\0\0\0\x40\0\0\0\0"), ..header("big", b'0') }.bytes()
        }),
        slow(refused("size-of-many-files", "--limit layer-bytes=N", |_| {
            let holes = (0..70).map(|n| sparse(&format!("s{n}"), 1 << 30, &[], b""));
            holes.collect::<Vec<_>>().concat()
        })),
        accepted(
            "size-of-a-symlink",
            |_| {
                [Header { size: 512, link: b"t".to_vec(), ..header("s", b'2') }.bytes(), file("n", b"n")]
                    .concat()
            },
            &[("n", content("n"))],
        ),
        refused("checksum", "checksum", |_| vec![b'x'; 512]),
        refused("checksum-off-by-one", "checksum", |_| {
            let mut block = file("f", b"x");
            block[0] ^= 1;
            block
        }),
        refused("checksum-of-an-extension", "checksum", |_| {
            let mut block = pax(&[("path", b"x")]);
            block[300] ^= 1;
            [block, file("f", b"x")].concat()
        }),
        refused("no-archive", "checksum", |_| b"#!/bin/sh\necho hello\n".repeat(100)[..1024].to_vec()),
    ]
}

fn ends() -> Vec<Case> {
    vec![
        accepted_raw("no-end-blocks", || file("ne", b"x"), &[("ne", content("x"))]),
        accepted_raw("no-end-and-no-padding", || file("ne", b"x")[..513].to_vec(), &[("ne", content("x"))]),
        accepted_raw("one-end-block", || [file("ne", b"x"), vec![0; 512]].concat(), &[("ne", content("x"))]),
        accepted_raw("empty-layer", Vec::new, &[("etc/keep", content("keep"))]),
        accepted_raw("nothing-but-the-end", end, &[("etc/keep", content("keep"))]),
        accepted_raw(
            "trailing-tar-data",
            || [file("f", b"x"), end(), file("after", b"x"), end()].concat(),
            &[("f", content("x")), ("after", What::Nothing)],
        ),
        accepted_raw(
            "junk-after-the-end",
            || [file("f", b"x"), end(), vec![7; 100_000]].concat(),
            &[("f", content("x"))],
        ),
        accepted_raw(
            "zeros-after-the-end",
            || [file("f", b"x"), end(), vec![0; 32 << 20]].concat(),
            &[("f", content("x"))],
        ),
        refused_raw("one-empty-block", "data after an empty block", || {
            [file("f", b"x"), vec![0; 512], file("g", b"x")].concat()
        }),
        refused_raw("half-a-header", "the archive ends", || file("f", b"x")[..300].to_vec()),
    ]
}

fn many() -> Vec<Case> {
    vec![
        slow(accepted(
            "many-entries-100k",
            |_| (0..100_000).flat_map(|n| file(format!("many/{n:06}"), b"")).collect(),
            &[("many/000000", content("")), ("many/099999", content(""))],
        )),
        // One entry of a kilobyte makes a hundred directories.
        slow(accepted(
            "many-implied-directories",
            |_| {
                (0..500)
                    .flat_map(|n| {
                        [pax(&[("path", format!("i{n}/{}f", "d/".repeat(99)).as_bytes())]), file("f", b"")]
                            .concat()
                    })
                    .collect()
            },
            &[("i499/d/d/d", What::Directory)],
        )),
        slow(accepted(
            "many-whiteouts",
            |_| (0..50_000).flat_map(|n| file(format!("data/.wh.{n:06}"), b"")).collect(),
            &[("data/a", content("a")), ("data/000001", What::Nothing)],
        )),
        slow(accepted(
            "many-opaque-markers",
            |_| file("data/.wh..wh..opq", b"").repeat(20_000),
            &[("data/a", What::Nothing)],
        )),
        slow(accepted(
            "many-times-the-same-directory",
            |_| dir_mode("data", 0o700).repeat(50_000),
            &[("data/a", content("a"))],
        )),
        slow(accepted(
            "many-names-that-go-up",
            |_| {
                let name = [b"x/../".repeat(200_000), b"up".to_vec()].concat();
                [pax(&[("path", &name)]), file("f", b"x")].concat().repeat(20)
            },
            &[("up", content("x"))],
        )),
    ]
}
