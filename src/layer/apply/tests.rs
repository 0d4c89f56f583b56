//! What is applied, and what is reported.

use std::io::Cursor;

use proptest::prelude::*;

use super::*;
use crate::layer::Marks;
use crate::layer::test_support::{
    Header, apply, dir, dir_mode, dump, file, hard_link, header, is_root, overlay, path, pax, symlink, what,
};
use crate::rootfs::{Follow, set_mode_at};

fn alone(tar: &[u8]) -> (tempfile::TempDir, Rootfs, Applied) {
    let directory = tempfile::tempdir().unwrap();
    let root = Rootfs::open(directory.path()).unwrap();
    let applied = apply(&mut Cursor::new(tar), &root, Whiteouts::Overlay, &Limits::default()).unwrap();
    (directory, root, applied)
}

fn texts(paths: &[GuestPath]) -> Vec<String> {
    paths.iter().map(ToString::to_string).collect()
}

#[test]
fn directories_without_an_entry_are_reported() {
    if !is_root() {
        return;
    }
    let layer = [
        file("late/f", b""),
        dir_mode("late", 0o700),
        file("plain/deep/f", b""),
        file("removed/only/.wh.x", b""),
        file("removed/.wh.y", b""),
        file("mixed/.wh.x", b""),
        file("mixed/f", b""),
        file("hidden/f", b""),
        file(".wh.hidden", b""),
        file("opaque/below/f", b""),
        file("opaque/.wh..wh..opq", b""),
        symlink("link", "elsewhere/inside"),
        file("link/f", b""),
        dir("own"),
        file("own/f", b""),
        hard_link("links/hl", "lower/file"),
    ]
    .concat();
    let (_directory, root, applied) = alone(&layer);
    assert_eq!(
        texts(&applied.implied),
        [
            "/elsewhere",
            "/elsewhere/inside",
            "/late",
            "/links",
            "/mixed",
            "/opaque",
            "/plain",
            "/plain/deep",
            "/removed",
            "/removed/only"
        ]
    );
    assert_eq!(texts(&applied.own_entry_later), ["/late"]);
    assert_eq!(texts(&applied.hidden), ["/hidden", "/opaque/below"]);
    assert_eq!((applied.whiteouts, texts(&applied.with_whiteouts).len()), (3, 3));
    assert_eq!(texts(&applied.only_whiteouts), ["/removed", "/removed/only"]);
    assert_eq!(applied.missing_links, [(path("/links/hl"), path("/lower/file"))]);
    assert!(!applied.opaque_root);
    let plain = root.metadata(&path("/plain"), Follow::No).unwrap().unwrap();
    assert_eq!((plain.mode, plain.owner, plain.mtime), (0o755, Owner::ROOT, Timestamp::default()));
    assert_eq!(root.metadata(&path("/late"), Follow::No).unwrap().unwrap().mode, 0o700);
}

#[test]
fn whiteouts_are_what_overlayfs_wants() {
    if !is_root() {
        return;
    }
    let layer = [file("d/.wh.x", b""), file(".wh.e", b""), dir("e"), file("f/.wh..wh..opq", b"")].concat();
    for marks in [Marks::Trusted, Marks::User] {
        if marks == Marks::Trusted && Marks::usual() != marks {
            eprintln!("skipped: `trusted.*` attributes need root");
            continue;
        }
        let directory = tempfile::tempdir().unwrap();
        let root = Rootfs::open(directory.path()).unwrap();
        let rules = Rules { marks, ..Rules::layer(Whiteouts::Overlay) };
        Application::new(rules, &Limits::default()).run(&mut Cursor::new(&layer), &root).unwrap();
        assert!(root.metadata(&path("/d/x"), Follow::No).unwrap().unwrap().is_overlay_whiteout());
        for directory in ["/e", "/f"] {
            let xattrs = root.xattrs(&path(directory)).unwrap();
            let expected: Vec<(&[u8], &[u8])> = vec![(marks.opaque(), b"y")];
            let found: Vec<(&[u8], &[u8])> =
                xattrs.iter().map(|(key, value)| (&key[..], &value[..])).collect();
            assert_eq!(found, expected, "{directory}");
        }
    }
    assert!(alone(&file(".wh..wh..opq", b"")).2.opaque_root);
}

#[test]
fn times_of_directories_are_those_of_their_entries() {
    if !is_root() {
        return;
    }
    let old = |name| Header { mtime: 1000, mode: 0o755, ..header(name, b'5') }.bytes();
    let first =
        [old("./"), old("d"), old("d/e"), file("d/e/f", b"x"), file("d/g", b"x"), file("h", b"x")].concat();
    let second = [
        file("d/new", b"x"),
        file("d/.wh.g", b""),
        file("d/e/implied/f", b"x"),
        old("d/e"),
        file("d/.wh.e", b""),
    ]
    .concat();
    let (_directory, root, _) = alone(&first);
    apply(&mut Cursor::new(&second), &root, Whiteouts::Remove, &Limits::default()).unwrap();
    for name in ["/", "/d", "/d/e"] {
        assert_eq!(root.metadata(&path(name), Follow::No).unwrap().unwrap().mtime.seconds, 1000, "{name}");
    }
}

#[test]
fn archives_are_extracted_into_a_directory_and_cannot_leave_it() {
    if !is_root() {
        return;
    }
    let (_directory, root, _) = alone(&[dir("srv"), symlink("to", "/srv/app"), file("etc", b"old")].concat());
    let archive = [
        dir_mode(".", 0o777),
        file("../../etc", b"x"),
        file("/abs", b"x"),
        file(".wh.etc", b"w"),
        hard_link("hl", "../abs"),
    ]
    .concat();
    let rules = Rules {
        base: path("/to"),
        climbing: Climbing::Clamp,
        owner: Some(Owner { uid: 5, gid: 6 }),
        ..Rules::layer(Whiteouts::Ordinary)
    };
    let applied = Application::new(rules, &Limits::default()).run(&mut Cursor::new(&archive), &root).unwrap();
    assert_eq!((applied.entries, applied.implied), (5, vec![]));
    for (name, content) in [("etc", "x"), ("abs", "x"), (".wh.etc", "w"), ("hl", "x")] {
        assert_eq!(what(&root, &format!("/srv/app/{name}")).as_deref(), Some(content), "{name}");
    }
    assert_eq!(what(&root, "/etc").as_deref(), Some("old"));
    for name in ["/srv/app", "/srv/app/etc"] {
        let owner = root.metadata(&path(name), Follow::No).unwrap().unwrap().owner;
        assert_eq!(owner, Owner { uid: 5, gid: 6 }, "{name}");
    }
}

#[test]
fn deep_lower_trees_are_removed_with_few_descriptors() {
    if !is_root() {
        return;
    }
    let (_directory, root, _) = alone(&file("a/".repeat(1500) + "f", b"x"));
    let layer = [file("a/a/keep", b"x"), file(".wh.a", b"")].concat();
    apply(&mut Cursor::new(&layer), &root, Whiteouts::Remove, &Limits::default()).unwrap();
    assert_eq!(root.read_dir(&path("/a/a")).unwrap(), [(b"keep".to_vec(), FileKind::File)]);
}

/// Name, target of links, and which kind of entry.
type Op = (String, &'static str, u8);

/// A default ACL as the kernel stores it: user 5 may do everything.
fn default_acl() -> Vec<u8> {
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in
        [(1u16, 7u16, u32::MAX), (2, 7, 5), (4, 5, u32::MAX), (0x10, 7, u32::MAX), (0x20, 5, u32::MAX)]
    {
        value.extend_from_slice(&tag.to_le_bytes());
        value.extend_from_slice(&permissions.to_le_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    }
    value
}

#[test]
fn nothing_is_inherited_from_the_default_acl_of_a_directory() {
    if !is_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let root = Rootfs::open(directory.path()).unwrap();
    // Where the store lies in such a directory, its own root has one.
    if root.set_xattr(&path("/"), b"system.posix_acl_default", &default_acl()).is_err() {
        eprintln!("skipped: this file system has no ACLs");
        return;
    }
    let layer = [
        pax(&[("SCHILY.xattr.system.posix_acl_default", &default_acl())]),
        dir("d"),
        file("d/f", b"x"),
        dir("d/d"),
        file("d/implied/f", b"x"),
        header("d/p", b'6').bytes(),
        file("f", b"x"),
    ]
    .concat();
    apply(&mut Cursor::new(&layer), &root, Whiteouts::Remove, &Limits::default()).unwrap();
    let lines = dump(&root);
    let with_acl: Vec<&String> = lines.iter().filter(|line| line.contains("posix_acl")).collect();
    assert_eq!(with_acl.len(), 2, "{lines:#?}");
    assert!(with_acl[0].starts_with("/ directory") && with_acl[1].starts_with("/d directory 0755"));
    assert!(lines.iter().any(|line| line.starts_with("/d/f file 0644")), "{lines:#?}");
}

/// Writes down what it hears.
#[derive(Default)]
struct Listener(Vec<String>, Vec<u8>);

impl Observer for Listener {
    fn content(&mut self, bytes: &[u8]) {
        self.1.extend_from_slice(bytes);
    }

    fn made(&mut self, made: &Made<'_>) -> io::Result<()> {
        let metadata = crate::rootfs::metadata_at(made.directory, made.name)?;
        if let Some(file) = made.file {
            assert!(metadata_of(file)?.same_file(&metadata));
        }
        let content = std::mem::take(&mut self.1);
        let name = made.name.escape_ascii();
        self.0.push(format!(
            "{name} {:?} {:o} {}",
            metadata.kind,
            metadata.mode,
            String::from_utf8_lossy(&content)
        ));
        Ok(())
    }
}

#[test]
fn an_observer_hears_of_everything_that_is_made() {
    if !is_root() {
        return;
    }
    let layer = [
        dir_mode("./", 0o711),
        dir_mode("d", 0o700),
        file("d/f", b"content"),
        file("d/implied/f", b""),
        symlink("l", "d/f"),
        hard_link("h", "d/f"),
        header("p", b'6').bytes(),
        file("d/.wh.f", b""),
    ]
    .concat();
    for whiteouts in [Whiteouts::Remove, Whiteouts::Overlay] {
        let directory = tempfile::tempdir().unwrap();
        let root = Rootfs::open(directory.path()).unwrap();
        let mut listener = Listener::default();
        let (rules, limits) = (Rules::layer(whiteouts), Limits::default());
        let application = Application { observer: Some(&mut listener), ..Application::new(rules, &limits) };
        application.run(&mut Cursor::new(&layer), &root).unwrap();
        let expected = [
            ". Directory 711 ",
            "d Directory 700 ",
            "f File 644 content",
            "f File 644 ",
            "l Symlink 777 ",
            "p Fifo 644 ",
        ];
        assert_eq!(listener.0, expected);
    }
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let name = prop::collection::vec("[abc]", 1..4).prop_map(|parts| parts.join("/"));
    let target = prop_oneof![Just("a"), Just("/b"), Just("../c"), Just("a/b"), Just("/c/a")];
    prop::collection::vec((name, target, 0u8..10), 0..8)
}

fn layer_of(ops: &[Op]) -> Vec<u8> {
    let entry = |(name, target, what): &Op| {
        let (parent, base) = name.rsplit_once('/').unwrap_or((".", name));
        match what {
            0..=2 => file(name, name.as_bytes()),
            3 | 4 => dir_mode(name, 0o700),
            5 => symlink(name, target),
            6 | 7 => file(format!("{parent}/.wh.{base}"), b""),
            8 => file(format!("{parent}/.wh..wh..opq"), b""),
            _ => hard_link(name, target.trim_start_matches(['.', '/'])),
        }
    };
    ops.iter().flat_map(entry).collect()
}

/// Does what is left to the caller; false where layers cannot be unpacked alone.
fn settle(applied: &Applied, layer: &Rootfs, below: &Rootfs) -> bool {
    if applied.opaque_root || !applied.missing_links.is_empty() {
        return false;
    }
    let is_directory = |metadata: &Metadata| metadata.kind == FileKind::Directory;
    for path in &applied.with_whiteouts {
        if !below.exact_metadata(path).unwrap().is_some_and(|lower| is_directory(&lower)) {
            remove_whiteouts(layer, path).unwrap();
        }
    }
    let may_be = |path| below.exact_metadata(path).unwrap().is_none_or(|lower| is_directory(&lower));
    if !applied.hidden.iter().all(may_be) {
        return false;
    }
    for path in applied.implied.iter().rev() {
        let lower = below.exact_metadata(path).unwrap();
        if lower.as_ref().is_some_and(|lower| !is_directory(lower)) {
            return false;
        }
        if lower.is_none() && applied.only_whiteouts.contains(path) {
            let parent = path.parent().unwrap();
            let mtime = layer.exact_metadata(&parent).unwrap().unwrap().mtime;
            layer.remove(path).unwrap();
            set_times_at(layer.directory(&parent).unwrap().as_fd(), b".", mtime).unwrap();
        }
        let now = layer.exact_metadata(path).unwrap();
        if let (Some(lower), Some(now)) = (lower, now)
            && is_directory(&now)
            && !applied.own_entry_later.contains(path)
        {
            let (at, name) = layer.parent(path).unwrap();
            set_mode_at(at.as_fd(), &name, lower.mode).unwrap();
            set_times_at(at.as_fd(), &name, lower.mtime).unwrap();
        }
    }
    true
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn unpacking_alone_equals_applying_from_the_bottom_up(layers in prop::collection::vec(ops(), 2..4)) {
        if !is_root() {
            return Ok(());
        }
        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let open = |name: &str| {
            std::fs::create_dir(directory.path().join(name)).unwrap();
            Rootfs::open(&directory.path().join(name)).unwrap()
        };
        let merged = open("merged");
        open("empty");
        let mut paths = vec![directory.path().join("empty")];
        for (number, ops) in layers.iter().enumerate() {
            let tar = &layer_of(ops);
            let limits = Limits::default();
            let name = number.to_string();
            let layer = open(&name);
            let apart = apply(&mut Cursor::new(tar), &layer, Whiteouts::Overlay, &limits);
            let Ok(_) = apply(&mut Cursor::new(tar), &merged, Whiteouts::Remove, &limits) else { return Ok(()) };
            let lowers: Vec<_> = paths.iter().map(std::path::PathBuf::as_path).collect();
            // Overlayfs wants two layers.
            let below = if lowers.len() == 1 { Rootfs::open(lowers[0]) } else { overlay(&lowers) };
            let Ok(below) = below else {
                eprintln!("skipped: cannot mount overlayfs");
                return Ok(());
            };
            let apart = match apart {
                Ok(apart) => apart,
                Err(error) if error.depends_on_lower_layers() => return Ok(()),
                Err(error) => return Err(TestCaseError::fail(format!("{error:?}"))),
            };
            if !settle(&apart, &layer, &below) {
                return Ok(());
            }
            drop(below);
            paths.push(directory.path().join(name));
            let lowers: Vec<_> = paths.iter().map(std::path::PathBuf::as_path).collect();
            let view = dump(&overlay(&lowers).unwrap());
            prop_assert_eq!(&view[1..], &dump(&merged)[1..]);
        }
    }
}

#[test]
fn an_attribute_that_is_refused_is_named_with_its_size() {
    if !is_root() {
        return;
    }
    // Both are refused by Linux, whatever the file system is.
    let name = format!("SCHILY.xattr.user.{}", "n".repeat(300));
    for (key, value, words) in [
        ("SCHILY.xattr.user.big", vec![b'x'; 65_537], "attribute `user.big` (65537 bytes)"),
        (&name, vec![b'x'; 3], "nnn` (3 bytes)"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let root = Rootfs::open(directory.path()).unwrap();
        let layer = [pax(&[(key, &value)]), file("f", b"x")].concat();
        let error =
            apply(&mut Cursor::new(&layer), &root, Whiteouts::Remove, &Limits::default()).unwrap_err();
        let LayerError::Entry { problem: problem @ EntryError::Attribute { .. }, .. } = error else {
            panic!("{error:?}");
        };
        assert!(problem.to_string().contains(words), "{problem}");
    }
}
