//! Sparse files: maps that contradict themselves, the size or what is stored, and records that readers disagree on.

use super::super::archive::*;
use super::{Case, Expect, What, accepted, content, refused, refused_raw, slow};

pub(super) fn cases() -> Vec<Case> {
    [old(), every_version(), records(), names(), text_maps()].into_iter().flatten().collect()
}

const IMPOSSIBLE: &str = "the sparse map is impossible";
const RECORDS: &str = "records are incomplete, repeated, unknown or of two versions";

fn holding(expected: &[u8]) -> Expect {
    Expect::Accepted(vec![(b"sp".to_vec(), What::Content(expected.to_vec()))])
}

fn old() -> Vec<Case> {
    vec![
        Case {
            expect: Expect::Accepted(vec![(
                b"sp".to_vec(),
                What::Content([&b"ab"[..], &[0; 98], b"cd", &[0; 98], b"e", &[0; 99]].concat()),
            )]),
            ..accepted("sparse-old", |_| sparse("sp", 300, &[(0, 2), (100, 2), (200, 1)], b"abcde"), &[])
        },
        accepted(
            "sparse-old-of-many-pieces",
            |_| {
                let pieces: Vec<(u64, u64)> = (0..1000).map(|n| (n * 4096, 1)).collect();
                [sparse("sp", 4_096_000, &pieces, &[b'x'; 1000]), file("n", b"n")].concat()
            },
            &[("n", content("n"))],
        ),
        slow(accepted(
            "sparse-old-hole",
            |_| [sparse("sp", 8 << 30, &[], b""), file("n", b"n")].concat(),
            &[("n", content("n"))],
        )),
        refused_raw("sparse-old-bomb", "--limit layer-bytes=N", || sparse("sp", 1 << 62, &[], b"")),
        refused("sparse-old-overlap", IMPOSSIBLE, |_| sparse("sp", 100, &[(0, 10), (5, 10)], &[b'x'; 20])),
        refused("sparse-old-backwards", IMPOSSIBLE, |_| sparse("sp", 100, &[(50, 10), (0, 10)], &[b'x'; 20])),
        refused("sparse-old-beyond-the-size", IMPOSSIBLE, |_| sparse("sp", 100, &[(95, 10)], &[b'x'; 10])),
        refused("sparse-old-overflow", IMPOSSIBLE, |_| {
            sparse("sp", i64::MAX as u64, &[(i64::MAX as u64, 10)], &[b'x'; 10])
        }),
        refused("sparse-old-more-than-stored", IMPOSSIBLE, |_| sparse("sp", 100, &[(0, 50)], &[b'x'; 10])),
        refused("sparse-old-less-than-stored", IMPOSSIBLE, |_| sparse("sp", 100, &[(0, 5)], &[b'x'; 10])),
        refused("sparse-old-map-without-end", "--limit tar-extension=N", |_| {
            let pieces: Vec<(u64, u64)> = (0..60_000).map(|n| (n, 0)).collect();
            sparse("sp", 100_000, &pieces, b"")
        }),
        refused_raw("sparse-old-map-cut", "the archive ends", || {
            let pieces: Vec<(u64, u64)> = (0..100).map(|n| (n * 10, 1)).collect();
            sparse("sp", 1000, &pieces, &[b'x'; 100])[..1500].to_vec()
        }),
        refused("sparse-old-in-ustar", "unknown type `S`", |_| header("sp", b'S').bytes()),
    ]
}

type Pieces = &'static [(u64, u64)];

/// What it shows, size, pieces, what is stored, and the content.
type Good = (&'static str, u64, Pieces, &'static [u8], Vec<u8>);

/// What maps of all three versions in PAX form have in common.
fn every_version() -> Vec<Case> {
    const MAX: u64 = i64::MAX as u64;
    let impossible: [(&str, u64, Pieces, usize); 11] = [
        ("overlap", 100, &[(0, 10), (5, 10)], 20),
        ("same-piece-twice", 100, &[(0, 10), (0, 10)], 20),
        ("backwards", 100, &[(50, 10), (0, 10)], 20),
        ("empty-piece-backwards", 100, &[(50, 10), (20, 0)], 10),
        ("beyond-the-size", 100, &[(95, 10)], 10),
        ("empty-piece-beyond-the-size", 100, &[(0, 10), (101, 0)], 10),
        ("overflow", MAX, &[(u64::MAX - 4, 10)], 10),
        ("overflow-of-63-bits", MAX, &[(MAX, 10)], 10),
        ("more-than-stored", 100, &[(0, 50)], 10),
        ("less-than-stored", 100, &[(0, 5)], 10),
        ("nothing-of-what-is-stored", 100, &[(100, 0)], 10),
    ];
    let mut cases = Vec::new();
    for version in SPARSE_VERSIONS {
        let name = |what: &str| -> &'static str { format!("sparse-{version}-{what}").leak() };
        for (what, size, pieces, stored) in impossible {
            let layer = move |_: &_| sparse_pax(version, "sp", size, pieces, &vec![b'x'; stored]);
            cases.push(refused(name(what), IMPOSSIBLE, layer));
        }
        let good: [Good; 4] = [
            (
                "pieces",
                300,
                &[(0, 2), (100, 2), (200, 1), (300, 0)],
                b"abcde",
                [&b"ab"[..], &[0; 98], b"cd", &[0; 98], b"e", &[0; 99]].concat(),
            ),
            ("touching-pieces", 6, &[(1, 1), (2, 0), (2, 2), (4, 1)], b"abcd", b"\0abcd\0".to_vec()),
            ("only-a-hole", 5000, &[(5000, 0)], b"", vec![0; 5000]),
            ("of-no-size", 0, &[(0, 0)], b"", Vec::new()),
        ];
        for (what, size, pieces, stored, expected) in good {
            let layer =
                move |_: &_| [sparse_pax(version, "sp", size, pieces, stored), file("n", b"n")].concat();
            let checks =
                [("n", content("n")), ("sp", What::Content(expected)), ("GNUSparseFile.0", What::Nothing)];
            cases.push(accepted(name(what), layer, &checks));
        }
        cases.extend([
            accepted(
                name("of-many-pieces"),
                move |_| {
                    let pieces: Vec<(u64, u64)> = (0..1000).map(|n| (n * 4096, 1)).collect();
                    [sparse_pax(version, "sp", 4_096_000, &pieces, &[b'x'; 1000]), file("n", b"n")].concat()
                },
                &[("n", content("n"))],
            ),
            refused(name("bomb"), "--limit layer-bytes=N", move |_| {
                sparse_pax(version, "sp", 1 << 62, &[(1 << 62, 0)], b"")
            }),
            refused(name("map-without-end"), "--limit tar-extension=N", move |_| {
                let pieces: Vec<(u64, u64)> = (0..200_000).map(|n| (n, 0)).collect();
                sparse_pax(version, "sp", 200_000, &pieces, b"")
            }),
            refused_raw(name("cut"), "the archive ends", move || {
                let archive = sparse_pax(version, "sp", 5000, &[(0, 1000)], &[b'x'; 1000]);
                archive[..archive.len() - 600].to_vec()
            }),
            refused(name("climbs"), "climbs out", move |outside| {
                sparse_pax(version, &format!("{}/file", outside.climbing()), 10, &[(0, 1)], b"x")
            }),
            // What the link leads to is looked up inside; the canary tells if not.
            accepted(
                name("behind-a-link-outside"),
                move |outside| {
                    let link = symlink("out", outside.climbing());
                    [link, sparse_pax(version, "out/file", 10, &[(0, 1)], b"x")].concat()
                },
                &[],
            ),
            accepted(
                name("whiteout"),
                move |_| sparse_pax(version, "data/.wh.a", 10, &[(0, 1)], b"x"),
                &[("data/a", What::Nothing), ("data/.wh.a", What::Nothing), ("data/b", content("b"))],
            ),
        ]);
    }
    cases
}

type Given = &'static [(&'static str, &'static [u8])];

/// Records of which readers would make different files, before 5 stored bytes.
fn records() -> Vec<Case> {
    const MAJOR: (&str, &[u8]) = ("GNU.sparse.major", b"1");
    const MINOR: (&str, &[u8]) = ("GNU.sparse.minor", b"0");
    const REAL_SIZE: (&str, &[u8]) = ("GNU.sparse.realsize", b"5");
    const SIZE: (&str, &[u8]) = ("GNU.sparse.size", b"5");
    const BLOCKS: (&str, &[u8]) = ("GNU.sparse.numblocks", b"1");
    const MAP: (&str, &[u8]) = ("GNU.sparse.map", b"0,5");
    const OFFSET: (&str, &[u8]) = ("GNU.sparse.offset", b"0");
    const BYTES: (&str, &[u8]) = ("GNU.sparse.numbytes", b"5");
    const NAME: (&str, &[u8]) = ("GNU.sparse.name", b"sp");
    let table: [(&str, &str, Given); 37] = [
        ("only-a-name", RECORDS, &[NAME]),
        ("only-a-version", RECORDS, &[MAJOR, MINOR]),
        ("only-a-size", RECORDS, &[SIZE]),
        ("only-a-real-size", RECORDS, &[REAL_SIZE]),
        ("only-a-map", RECORDS, &[MAP]),
        ("no-minor", RECORDS, &[MAJOR, REAL_SIZE]),
        ("no-major", RECORDS, &[MINOR, REAL_SIZE]),
        ("no-numblocks", RECORDS, &[SIZE, MAP]),
        ("no-size", RECORDS, &[BLOCKS, MAP]),
        ("no-map", RECORDS, &[SIZE, ("GNU.sparse.numblocks", b"0")]),
        ("version-2", RECORDS, &[("GNU.sparse.major", b"2"), MINOR, REAL_SIZE]),
        ("version-1.1", RECORDS, &[MAJOR, ("GNU.sparse.minor", b"1"), REAL_SIZE]),
        ("unknown", RECORDS, &[SIZE, BLOCKS, MAP, ("GNU.sparse.other", b"1")]),
        ("map-twice", RECORDS, &[SIZE, BLOCKS, MAP, MAP]),
        ("size-twice", RECORDS, &[SIZE, SIZE, BLOCKS, MAP]),
        ("name-twice", RECORDS, &[NAME, SIZE, BLOCKS, MAP, NAME]),
        ("map-and-pairs", RECORDS, &[SIZE, BLOCKS, MAP, OFFSET, BYTES]),
        ("version-1.0-and-map", RECORDS, &[MAJOR, MINOR, REAL_SIZE, MAP]),
        ("version-1.0-and-pairs", RECORDS, &[MAJOR, MINOR, REAL_SIZE, OFFSET, BYTES]),
        ("two-sizes", RECORDS, &[MAJOR, MINOR, REAL_SIZE, SIZE]),
        ("map-and-real-size", RECORDS, &[REAL_SIZE, BLOCKS, MAP]),
        ("version-0.0-and-map", RECORDS, &[("GNU.sparse.major", b"0"), MINOR, SIZE, BLOCKS, MAP]),
        ("bytes-before-offset", RECORDS, &[SIZE, BLOCKS, BYTES, OFFSET]),
        ("two-offsets", RECORDS, &[SIZE, BLOCKS, OFFSET, OFFSET, BYTES]),
        ("offset-alone", RECORDS, &[SIZE, BLOCKS, OFFSET, BYTES, OFFSET]),
        ("fewer-blocks-than-told", IMPOSSIBLE, &[SIZE, ("GNU.sparse.numblocks", b"2"), MAP]),
        ("more-blocks-than-told", IMPOSSIBLE, &[SIZE, ("GNU.sparse.numblocks", b"0"), OFFSET, BYTES]),
        ("numblocks-huge", IMPOSSIBLE, &[SIZE, ("GNU.sparse.numblocks", b"18446744073709551615"), MAP]),
        ("numblocks-negative", "numblocks`", &[SIZE, ("GNU.sparse.numblocks", b"-1"), MAP]),
        ("size-negative", "sparse.size`", &[("GNU.sparse.size", b"-5"), BLOCKS, MAP]),
        ("size-of-64-bits", "sparse.size`", &[("GNU.sparse.size", b"9223372036854775808"), BLOCKS, MAP]),
        ("real-size-negative", "realsize`", &[MAJOR, MINOR, ("GNU.sparse.realsize", b"-5")]),
        ("map-negative", "sparse.map`", &[SIZE, BLOCKS, ("GNU.sparse.map", b"-5,5")]),
        ("map-odd", "sparse.map`", &[SIZE, BLOCKS, ("GNU.sparse.map", b"0,5,5")]),
        ("map-empty", "sparse.map`", &[SIZE, ("GNU.sparse.numblocks", b"0"), ("GNU.sparse.map", b"")]),
        ("offset-negative", "offset`", &[SIZE, BLOCKS, ("GNU.sparse.offset", b"-1"), BYTES]),
        ("offset-with-comma", "offset`", &[SIZE, BLOCKS, ("GNU.sparse.offset", b"0,5"), BYTES]),
    ];
    let mut cases: Vec<Case> = table
        .into_iter()
        .map(|(what, message, records)| {
            let name = format!("sparse-records-{what}").leak();
            refused(name, message, move |_| sparse_entry(records, b"abcde"))
        })
        .collect();
    cases.extend([
        Case {
            expect: holding(b"abcde"),
            ..accepted(
                "sparse-records-with-version-0.1",
                |_| {
                    let version = [("GNU.sparse.major", &b"0"[..]), ("GNU.sparse.minor", b"1")];
                    sparse_entry(&[&version[..], &[MAP, BLOCKS, SIZE, NAME]].concat(), b"abcde")
                },
                &[],
            )
        },
        refused("sparse-records-global", "sets `GNU.sparse` of all", |_| {
            [pax_header(b'g', &[SIZE, BLOCKS, MAP]), file("f", b"abcde")].concat()
        }),
        refused("sparse-records-of-old-sparse", "of what is not a regular file", |_| {
            [pax(&[SIZE, BLOCKS, MAP]), sparse("sp", 5, &[(0, 5)], b"abcde")].concat()
        }),
        refused("sparse-records-of-a-directory", "of what is not a regular file", |_| {
            [pax(&[SIZE, BLOCKS, MAP]), dir("sp")].concat()
        }),
        refused("sparse-records-of-a-hard-link", "of what is not a regular file", |_| {
            [pax(&[SIZE, BLOCKS, MAP]), hard_link("sp", "etc/keep")].concat()
        }),
        accepted(
            "sparse-records-for-one-entry",
            |_| [pax(&[SIZE, BLOCKS, MAP]), file("f", b"abcde"), file("g", b"g")].concat(),
            &[("f", content("abcde")), ("g", content("g"))],
        ),
    ]);
    cases
}

fn names() -> Vec<Case> {
    let named = |name: &'static [u8]| {
        [
            ("GNU.sparse.name", name),
            ("GNU.sparse.size", &b"2"[..]),
            ("GNU.sparse.numblocks", b"1"),
            ("GNU.sparse.map", b"0,1"),
            ("path", b"made-up"),
        ]
    };
    vec![
        accepted(
            "sparse-name-before-all-others",
            move |_| [gnu_long(b'L', b"long\0"), sparse_entry(&named(b"sp"), b"x")].concat(),
            &[("sp", content("x\0")), ("long", What::Nothing), ("made-up", What::Nothing)],
        ),
        refused("sparse-name-empty", "sparse.name`", move |_| sparse_entry(&named(b""), b"x")),
        refused("sparse-name-with-nul", "sparse.name`", move |_| sparse_entry(&named(b"a\0b"), b"x")),
        refused("sparse-name-of-the-parent", "climbs out", move |_| sparse_entry(&named(b"../sp"), b"x")),
        refused("sparse-name-of-the-root", "the root is a directory", move |_| {
            sparse_entry(&named(b"./"), b"x")
        }),
    ]
}

/// Maps of version 1.0, which stand before the stored bytes.
fn text_maps() -> Vec<Case> {
    let impossible: [(&str, &'static [u8]); 11] = [
        ("empty", b""),
        ("not-ended", b"2\n0\n1\n"),
        ("without-newline", b"1\n0\n1"),
        ("negative-count", b"-1\n"),
        ("negative-offset", b"1\n-1\n1\n"),
        ("negative-length", b"1\n0\n-1\n"),
        ("letters", b"1\n0\n0x1\n"),
        ("empty-line", b"1\n\n1\n"),
        ("carriage-return", b"1\r\n0\r\n1\r\n"),
        ("count-huge", b"18446744073709551615\n0\n1\n"),
        ("number-overflow", b"1\n18446744073709551616\n1\n"),
    ];
    let mut cases: Vec<Case> = impossible
        .into_iter()
        .map(|(what, map)| {
            let name = format!("sparse-1.0-map-{what}").leak();
            refused(name, IMPOSSIBLE, move |_| sparse_1_0("sp", b"10", map, b"x"))
        })
        .collect();
    cases.extend([
        Case {
            expect: holding(b"\0x\0"),
            ..accepted(
                "sparse-1.0-map-with-leading-zeros-over-blocks",
                |_| {
                    let map = [&b"1\n"[..], &[b'0'; 600], b"1\n", &[b'0'; 600], b"1\n"].concat();
                    sparse_1_0("sp", b"3", &map, b"x")
                },
                &[],
            )
        },
        // All that is stored is the map, and it never ends.
        refused("sparse-1.0-map-is-all", IMPOSSIBLE, |_| {
            sparse_1_0("sp", b"3", &[b'1', b'\n'].repeat(256), b"")
        }),
        refused("sparse-1.0-map-of-part-of-a-block", IMPOSSIBLE, |_| {
            let records: [(&str, &[u8]); 3] =
                [("GNU.sparse.major", b"1"), ("GNU.sparse.minor", b"0"), ("GNU.sparse.realsize", b"0")];
            sparse_entry(&records, b"0\n")
        }),
        refused("sparse-1.0-map-of-one-number", "--limit tar-extension=N", |_| {
            sparse_1_0("sp", b"3", &vec![b'0'; 2 << 20], b"")
        }),
        refused_raw("sparse-1.0-map-cut", "the archive ends", || {
            let pieces: Vec<(u64, u64)> = (0..1000).map(|n| (n * 10, 1)).collect();
            sparse_pax("1.0", "sp", 10_000, &pieces, &[b'x'; 1000])[..3000].to_vec()
        }),
    ]);
    cases
}
