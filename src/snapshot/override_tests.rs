//! Steps on files whose owners and kinds the disk does not hold: what becomes of them, with privileges and without.

use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use rustix::mount::MoveMountFlags;

use crate::layer::{Formats, Limits, decompress, write};
use crate::rootfs::testing::inside;
use crate::store::layer_laws;
use crate::store::testing::{can_mount, dump, run};
use crate::store::trees::Trees;
use crate::store::unpacked::Chain;
use crate::store::workspace::Workspace;

use super::testing::{KINDS, Kind};
use super::*;

/// One entry of the base: name, kind, mode, owner, content or target of a link.
type Given = (&'static str, char, u32, (u32, u32), &'static str);

const BASE: [Given; 19] = [
    ("etc", 'd', 0o755, (0, 0), ""),
    ("etc/shadow", 'f', 0o640, (0, 42), "root:*:"),
    ("dev", 'd', 0o755, (0, 0), ""),
    ("dev/null", 'c', 0o666, (0, 0), "1:3"),
    ("dev/zero-zero", 'c', 0o600, (0, 6), "0:0"),
    ("d", 'd', 0o751, (1000, 1000), ""),
    ("d/file", 'f', 0o644, (1000, 1001), "content"),
    ("d/same", 'f', 0o644, (1000, 1001), "content"),
    ("d/other", 'f', 0o644, (2000, 2000), "another"),
    ("d/sub", 'd', 0o700, (1000, 0), ""),
    ("d/sub/deep", 'f', 0o600, (70_000, 70_000), "deep"),
    ("d/link", 'l', 0o777, (1000, 1000), "file"),
    ("d/pipe", 'p', 0o644, (1000, 1000), ""),
    ("two", 'f', 0o644, (33, 33), "two"),
    ("two-too", 'h', 0o644, (33, 33), "two"),
    ("plain", 'd', 0o755, (0, 0), ""),
    ("plain/file", 'f', 0o644, (0, 0), "plain"),
    ("suid", 'f', 0o6755, (5, 6), "suid"),
    ("tagged", 'f', 0o644, (0, 0), "tagged"),
];

fn archive() -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, kind, mode, (uid, gid), text) in BASE {
        if name == "tagged" {
            archive.append_pax_extensions([("SCHILY.xattr.trusted.tag", &b"t"[..])]).unwrap();
        }
        let mut header = tar::Header::new_gnu();
        let (kind, link, content) = match kind {
            'd' => (tar::EntryType::Directory, "", ""),
            'l' => (tar::EntryType::Symlink, text, ""),
            'h' => (tar::EntryType::Link, text, ""),
            'p' => (tar::EntryType::Fifo, "", ""),
            'c' => (tar::EntryType::Char, "", ""),
            _ => (tar::EntryType::Regular, "", text),
        };
        if let Some((major, minor)) = text.split_once(':').filter(|_| kind == tar::EntryType::Char) {
            header.set_device_major(major.parse().unwrap()).unwrap();
            header.set_device_minor(minor.parse().unwrap()).unwrap();
        }
        header.set_path(name).unwrap();
        header.as_gnu_mut().unwrap().linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(uid.into());
        header.set_gid(gid.into());
        header.set_mtime(1000);
        header.set_size(content.len() as u64);
        header.set_cksum();
        archive.append(&header, content.as_bytes()).unwrap();
    }
    archive.into_inner().unwrap()
}

struct Ground {
    store: layer_laws::Ground,
    trees: Option<Trees>,
    snapshotter: Box<dyn Snapshotter>,
    base: Vec<layer_laws::Stored>,
}

impl Ground {
    fn new(kind: Kind) -> Self {
        let store = layer_laws::Ground::new();
        let base = vec![store.add(&archive())];
        let workspace = Arc::new(Workspace::create(&store.directory.path().join("tmp"), None).unwrap());
        let trees = (kind != Kind::Overlay).then(|| Trees::new(Arc::clone(&workspace)));
        Self { store, trees, snapshotter: kind.snapshotter(workspace), base }
    }

    fn chain(&self, layers: &[layer_laws::Stored]) -> Chain {
        match &self.trees {
            Some(trees) => self.store.unpacking(|unpack| trees.chain(layers, unpack)).unwrap(),
            None => self.store.chain(layers).unwrap().into(),
        }
    }

    /// Runs one step after the other; gives the tree in the end, one line a path, and what is in the last layer. The tree
    /// is also compared with what a later build sees, which unpacks the layers of the steps.
    fn steps(&self, scripts: &[&str]) -> (BTreeMap<String, String>, Vec<String>) {
        let mut chain = self.chain(&self.base);
        let mut layers = self.base.clone();
        let mut changes = Vec::new();
        for script in scripts {
            let recording = self.snapshotter.begin(chain).unwrap();
            self.run_in(recording.mount(), script);
            let recorded = recording.finish().unwrap();
            let mut blob = Vec::new();
            write(&recorded.changes, &recorded.files, &mut blob).unwrap();
            let mut tar = Vec::new();
            let mut archive = decompress(&blob[..], Formats::Layer, &Limits::default()).unwrap();
            io::Read::read_to_end(&mut archive, &mut tar).unwrap();
            layers.push(self.store.add(&tar));
            changes = recorded.changes.iter().map(|change| change.path().to_string()).collect();
            chain = recorded.chain;
        }
        let tree = dump(self.snapshotter.view(&chain).unwrap().root());
        let later = dump(self.snapshotter.view(&self.chain(&layers)).unwrap().root());
        // Layers have no entry for the root.
        assert!(tree.lines().skip(1).eq(later.lines().skip(1)), "{scripts:?}:\n{tree}later:\n{later}");
        let line = |line: &str| line.split_once(' ').map(|(path, rest)| (path.to_owned(), rest.to_owned()));
        (tree.lines().filter_map(line).collect(), changes)
    }

    fn run_in(&self, mount: BorrowedFd<'_>, script: &str) {
        let place = self.store.directory.path().join("place");
        std::fs::create_dir_all(&place).unwrap();
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        match rustix::mount::move_mount(mount, "", rustix::fs::CWD, &place, flags) {
            Ok(()) => {
                run(&place, script);
                rustix::mount::unmount(&place, rustix::mount::UnmountFlags::DETACH).unwrap();
            }
            // No mounts for ordinary users: then it is the directory itself.
            Err(_) => run(std::path::Path::new(&format!("/proc/self/fd/{}", mount.as_raw_fd())), script),
        }
    }
}

/// What a path is expected to be in the end: nothing, or its kind, mode and owner.
type Expected = (&'static str, Option<&'static str>);

/// What the steps are about, their scripts, and what some paths are afterwards.
type Case = (&'static str, &'static [&'static str], &'static [Expected]);

/// Where a build without privileges gives what one with all gives.
const EQUAL: [Case; 28] = [
    ("nothing", &["cat d/file d/sub/deep etc/shadow"], &[("/d/file", Some("File 0644 1000:1001"))]),
    ("appending", &["echo more >> d/file"], &[("/d/file", Some("File 0644 1000:1001"))]),
    ("truncating", &["echo new > d/file"], &[("/d/file", Some("File 0644 1000:1001"))]),
    (
        "appending in several steps",
        &["echo 1 >> d/sub/deep", "touch plain/new", "echo 2 >> d/sub/deep"],
        &[("/d/sub/deep", Some("File 0600 70000:70000")), ("/d/sub", Some("Directory 0700 1000:0"))],
    ),
    (
        "removing and making",
        &["rm d/file; echo new > d/file"],
        &[("/d/file", Some("File 0644 0:0")), ("/d", Some("Directory 0751 1000:1000"))],
    ),
    (
        "removing and making in two steps",
        &["rm d/file", "echo new > d/file"],
        &[("/d/file", Some("File 0644 0:0"))],
    ),
    ("another kind", &["rm d/file; mkdir d/file"], &[("/d/file", Some("Directory 0755 0:0"))]),
    ("another mode", &["chmod 600 d/file"], &[("/d/file", Some("File 0600 1000:1001"))]),
    ("another mode of a directory", &["chmod 711 d"], &[("/d", Some("Directory 0711 1000:1000"))]),
    (
        "a new file in a directory",
        &["echo > d/sub/new"],
        &[("/d/sub", Some("Directory 0700 1000:0")), ("/d/sub/new", Some("File 0644 0:0"))],
    ),
    (
        "a directory made anew",
        &["rm -r d; mkdir d; echo > d/file; mkfifo d/pipe"],
        &[
            ("/d", Some("Directory 0755 0:0")),
            ("/d/file", Some("File 0644 0:0")),
            ("/d/pipe", Some("Fifo 0644 0:0")),
            ("/d/sub", None),
        ],
    ),
    (
        "a directory removed in one step and made in another",
        &["rm -r d", "mkdir -p d/sub; echo > d/sub/deep"],
        &[("/d/sub", Some("Directory 0755 0:0")), ("/d/sub/deep", Some("File 0644 0:0"))],
    ),
    (
        "a device touched",
        &["touch -d @2000 dev/null dev/zero-zero"],
        &[("/dev/null", Some("CharDevice 0666 0:0")), ("/dev/zero-zero", Some("CharDevice 0600 0:6"))],
    ),
    ("a device removed", &["rm dev/null dev/zero-zero"], &[("/dev/null", None), ("/dev/zero-zero", None)]),
    (
        "a file instead of a device",
        &["rm dev/null; echo > dev/null"],
        &[("/dev/null", Some("File 0644 0:0"))],
    ),
    (
        "renaming a file",
        &["mv d/other plain/other"],
        &[("/plain/other", Some("File 0644 2000:2000")), ("/d/other", None)],
    ),
    (
        "renaming a file to another's name",
        &["mv d/other d/file"],
        &[("/d/file", Some("File 0644 2000:2000")), ("/d/other", None)],
    ),
    (
        "renaming one of two equal files",
        &["mv d/file plain/1; mv d/same plain/2"],
        &[("/plain/1", Some("File 0644 1000:1001")), ("/plain/2", Some("File 0644 1000:1001"))],
    ),
    (
        "renaming a file and making it anew",
        &["mv d/file d/moved; echo > d/file"],
        &[("/d/moved", Some("File 0644 1000:1001")), ("/d/file", Some("File 0644 0:0"))],
    ),
    (
        "another name for a file",
        &["ln d/file another"],
        &[("/d/file", Some("File 0644 1000:1001")), ("/another", Some("File 0644 1000:1001"))],
    ),
    (
        "another name for a file instead of the first",
        &["ln d/file another; rm d/file"],
        &[("/d/file", None), ("/another", Some("File 0644 1000:1001"))],
    ),
    (
        "another name for a device",
        &["ln dev/null another"],
        &[("/dev/null", Some("CharDevice 0666 0:0")), ("/another", Some("CharDevice 0666 0:0"))],
    ),
    ("renaming a device", &["mv dev/null plain/null"], &[("/plain/null", Some("CharDevice 0666 0:0"))]),
    ("one of two names", &["echo more >> two"], &[("/two", Some("File 0644 33:33"))]),
    (
        "a link touched, and replaced",
        &["touch -h -d @2000 d/link", "ln -sfn elsewhere d/link"],
        &[("/d/link", Some("Symlink 0777 0:0"))],
    ),
    (
        "a link and a FIFO touched",
        &["touch -h -d @2000 d/link d/pipe; chmod 600 d/pipe"],
        &[("/d/link", Some("Symlink 0777 1000:1000")), ("/d/pipe", Some("Fifo 0600 1000:1000"))],
    ),
    (
        "a file replaced as useradd does it",
        &["cp -p etc/shadow etc/shadow+; echo app:!: >> etc/shadow+; mv etc/shadow+ etc/shadow"],
        &[("/etc/shadow", Some("File 0640 0:42"))],
    ),
    ("a file with an attribute", &["echo more >> tagged"], &[("/tagged", Some("File 0644 0:0"))]),
];

/// Where the step itself sees, and keeps, no more than the disk shows: what it is with all privileges, and without, in an
/// overlay and in a plain directory.
const DIFFERENT: [(&str, &[&str], &str, [&str; 3]); 4] = [
    (
        "the owner that the disk shows already",
        &["chown 0:0 d/file"],
        "/d/file",
        ["0:0", "1000:1001", "1000:1001"],
    ),
    (
        "a common mode kept in a replaced file",
        &["sed -i s/o/x/ d/file"],
        "/d/file",
        ["1000:1001", "0:0", "0:0"],
    ),
    // Overlayfs renames no directories; mv(1) copies them.
    ("a directory renamed", &["mv d e"], "/e/file", ["1000:1001", "0:0", "1000:1001"]),
    ("a copy", &["cp -a d/file plain/copy"], "/plain/copy", ["1000:1001", "0:0", "0:0"]),
];

fn check_equal(kind: Kind) {
    let ground = Ground::new(kind);
    for (what, scripts, expected) in EQUAL {
        let (tree, _) = ground.steps(scripts);
        for (path, expected) in expected {
            let actual = tree.get(*path).map(String::as_str);
            let fits = match (actual, expected) {
                (Some(actual), Some(expected)) => actual.starts_with(expected),
                (actual, expected) => actual.is_none() && expected.is_none(),
            };
            assert!(fits, "{kind:?}, {what}: {path}: {actual:?}, expected {expected:?}");
        }
    }
}

fn check_different(kind: Kind, unprivileged: bool) {
    let ground = Ground::new(kind);
    for (what, scripts, path, expected) in DIFFERENT {
        let (tree, _) = ground.steps(scripts);
        let case = match kind {
            _ if !unprivileged => 0,
            Kind::Overlay => 1,
            Kind::Native | Kind::NativeFull => 2,
        };
        assert_eq!(tree[path].split(' ').nth(2).unwrap(), expected[case], "{kind:?}, {what}: {path}");
    }
}

#[test]
fn what_a_step_leaves_of_owners_and_devices_is_the_same_with_privileges_and_without() {
    if inside!(OrdinaryUser) {
        check_equal(Kind::Native);
        return;
    }
    let single = inside!(SingleId);
    if can_mount() {
        for kind in KINDS {
            check_equal(kind);
            check_different(kind, single);
        }
    }
}

fn check_nothing_changed(kind: Kind) {
    let ground = Ground::new(kind);
    for (script, expected) in [
        ("cat d/file", &[][..]),
        ("chmod 644 d/file; chmod 751 d; touch -h -d @1000 d/link d/pipe; touch -d @1000 dev/null", &[]),
        ("cp d/file x; cat x > d/file; rm x; touch -d @1000 d/file", &[]),
        ("mv d/file x; mv x d/file; touch -d @1000 d", &[]),
        ("echo >> d/sub/deep", &["/d", "/d/sub", "/d/sub/deep"]),
        ("rm d/other", &["/d", "/d/other"]),
    ] {
        assert_eq!(ground.steps(&[script]).1, expected, "{kind:?}, {script}");
    }
    let (tree, _) = ground.steps(&["echo >> tagged"]);
    assert!(tree["/tagged"].ends_with(" trusted.tag=t"), "{kind:?}, {}", tree["/tagged"]);
}

#[test]
fn what_a_step_does_not_change_is_no_change() {
    if inside!(OrdinaryUser) {
        check_nothing_changed(Kind::Native);
        return;
    }
    let _ = inside!(SingleId);
    if can_mount() {
        KINDS.into_iter().for_each(check_nothing_changed);
    }
}

#[test]
fn files_that_two_stages_stand_on_are_the_same_for_both() {
    let check = |kind| {
        let ground = Ground::new(kind);
        let shared = ground.chain(&ground.base);
        let shown = |chain: &Chain| dump(ground.snapshotter.view(chain).unwrap().root());
        let before = shown(&shared);
        let recording = ground.snapshotter.begin(shared.clone()).unwrap();
        ground.run_in(
            recording.mount(),
            "echo more >> d/file; rm d/other dev/null; ln d/same x; chmod 700 etc",
        );
        let after = recording.finish().unwrap().chain;
        assert_eq!(shown(&shared), before, "{kind:?}");
        for line in
            ["/d/file File 0644 1000:1001 ", "/x File 0644 1000:1001 ", "/dev/zero-zero CharDevice 0600 0:6 "]
        {
            assert!(shown(&after).lines().any(|found| found.starts_with(line)), "{kind:?}: no {line}");
        }
    };
    if inside!(OrdinaryUser) {
        return check(Kind::Native);
    }
    let _ = inside!(SingleId);
    if can_mount() {
        KINDS.into_iter().for_each(check);
    }
}
