//! What an exchange does to the container's root and to the tree, whatever a step does and whatever fails.

#![expect(clippy::disallowed_methods, reason = "tests prepare trees, and do what steps do")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::process::Pid;

use super::exchange::Exchange;
use super::fault::{self, Fault};
use super::fixed::Fixed;
use super::overlay_test::{Overlay, Writing};
use super::*;
use crate::rootfs::{Timestamp, remove_tree, set_times_at};
use crate::sandbox::{Survivors, processes};

/// A container with an overlay as root, as pods have it, and the tree of an image.
struct Pod {
    overlay: Overlay,
    outside: tempfile::TempDir,
}

const PROTECTED: [&str; 3] = ["/kaniko", "/work/context", "/missing"];

impl Pod {
    /// None, and a word about it, where no overlay can be mounted.
    fn new() -> Option<Self> {
        Overlay::mount(fill).map(Self::on)
    }

    /// One whose directories can be renamed, be it by a step.
    fn of_one_layer() -> Option<Self> {
        let overlay = Overlay::mount(|_| {})?;
        fill(&overlay.root());
        Some(Self::on(overlay))
    }

    fn on(overlay: Overlay) -> Self {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("canary"), "alive").unwrap();
        let pod = Self { overlay, outside };
        for name in ["proc", "dev", "data", "var/run/secrets", "nothing/mount"] {
            pod.overlay.mount_in(name);
            fs::write(pod.path(name).join("mounted"), "mount").unwrap();
        }
        for name in ["etc/hosts", "opt/driver/lib.so"] {
            pod.overlay.bind_file(&pod.outside.path().join("canary"), name);
        }
        pod
    }

    fn path(&self, name: &str) -> PathBuf {
        self.overlay.root().join(name)
    }

    fn claim(&self) -> Claim {
        Claim::take(&self.overlay.root(), &|| {}).unwrap()
    }

    fn fixed(&self, claim: &Claim) -> Fixed {
        let protected = PROTECTED.map(|path| GuestPath::clamp(path.as_bytes()).unwrap());
        Fixed::find(claim.root(), &[&protected[..], &[Claim::private_path()]].concat()).unwrap()
    }

    /// The files of the container's own root, without those that are mounted.
    fn files(&self) -> BTreeMap<String, String> {
        listing(&self.overlay.root(), &[PRIVATE_DIRECTORY])
    }

    fn exchange<'a>(&self, claim: &'a Claim, tree: &Path) -> Result<Exchange<'a>, InPlaceError> {
        self.exchange_until(claim, tree, &Cancel::new().unwrap())
    }

    fn exchange_until<'a>(
        &self,
        claim: &'a Claim,
        tree: &Path,
        cancel: &Cancel,
    ) -> Result<Exchange<'a>, InPlaceError> {
        Exchange::begin(claim, &self.fixed(claim), &Rootfs::open(tree).unwrap(), cancel)
    }

    fn repair(&self) -> Repaired {
        ensure_own_root(&self.overlay.root(), &|| {}).unwrap()
    }

    /// Runs `step` with the root of the container in place of `tree`.
    fn step(&self, tree: &Path, claim: &Claim, step: impl FnOnce(&Path)) -> Result<(), InPlaceError> {
        let exchange = self.exchange(claim, tree)?;
        step(&self.overlay.root());
        exchange.end()
    }

    /// Whether something else than the root was touched.
    fn check_others(&self) {
        assert_eq!(fs::read(self.outside.path().join("canary")).unwrap(), b"alive");
        assert_eq!(fs::read_dir(self.outside.path()).unwrap().count(), 1);
        for name in ["data", "var/run/secrets", "nothing/mount"] {
            assert_eq!(fs::read(self.path(name).join("mounted")).unwrap(), b"mount", "{name}");
        }
    }
}

/// Gives it back as a command does before it looks at anything.
fn ensure_own_root(root: &Path, waiting: &dyn Fn()) -> Result<Repaired, OwnRootError> {
    find_foreign_root(root, waiting)?.map_or(Ok(Repaired::Nothing), ForeignRoot::give_back)
}

/// The container's own files.
fn fill(lower: &Path) {
    let files = [
        ("bin/tool", "pod"),
        ("etc/hosts", "pod"),
        ("etc/passwd", "pod"),
        ("etc/ssl/certs/ca", "pod"),
        ("kaniko/builder", "program"),
        ("opt/driver/lib.so", ""),
        ("opt/driver/own", "pod"),
        ("usr/lib/deep/a", "pod"),
        ("usr/lib/deep/b", "pod"),
        ("var/log/messages", "pod"),
        ("var/run/lock/x", "pod"),
        ("work/context/Dockerfile", "FROM"),
        ("work/notes", "pod"),
        (".hidden", "pod"),
    ];
    for (name, content) in files {
        write(&lower.join(name), content);
    }
    for name in ["data", "proc", "dev", "sys", "tmp", "var/run/secrets", "nothing/mount"] {
        fs::create_dir_all(lower.join(name)).unwrap();
    }
    rustix::fs::symlink("usr/lib", lower.join("lib")).unwrap();
    fs::set_permissions(lower.join("tmp"), PermissionsExt::from_mode(0o1777)).unwrap();
    fs::set_permissions(lower.join("var"), PermissionsExt::from_mode(0o711)).unwrap();
    age(lower, 1_000_000_000);
}

/// An image's files, among them some where the container has a mount.
fn image(claim: &Claim) -> PathBuf {
    let tree = claim.trees().join("tree");
    fs::create_dir_all(&tree).unwrap();
    let files = [
        ("bin/sh", "image"),
        ("etc/passwd", "image"),
        ("etc/hosts", "image"),
        ("etc/apt/sources", "image"),
        ("opt/real/file", "image"),
        ("data/file", "image"),
        ("usr/lib/deep/c", "image"),
        ("var/lib/dpkg/status", "image"),
        ("kaniko/file", "image"),
        ("proc/file", "image"),
        ("work/app", "image"),
    ];
    for (name, content) in files {
        write(&tree.join(name), content);
    }
    for name in ["dev", "sys", "run"] {
        fs::create_dir_all(tree.join(name)).unwrap();
    }
    rustix::fs::symlink("/opt/real", tree.join("opt/driver")).unwrap();
    rustix::fs::symlink("/run", tree.join("var/run")).unwrap();
    rustix::fs::symlink("usr/lib", tree.join("lib64")).unwrap();
    fs::set_permissions(tree.join("var"), PermissionsExt::from_mode(0o2775)).unwrap();
    fs::set_permissions(&tree, PermissionsExt::from_mode(0o751)).unwrap();
    age(&tree, 1_200_000_000);
    tree
}

fn write(path: &Path, content: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// Gives everything in `top` an old time, different for each.
fn age(top: &Path, from: i64) {
    let mut names: Vec<PathBuf> = walk(top, &[]);
    names.push(top.to_owned());
    for (number, path) in names.iter().enumerate() {
        let parent = fs::File::open(path.parent().unwrap()).unwrap();
        let time = Timestamp { seconds: from + number as i64, nanoseconds: 5 };
        set_times_at(parent.as_fd(), path.file_name().unwrap().as_encoded_bytes(), time).unwrap();
    }
}

/// All that is below `top` in its mount.
fn walk(top: &Path, without: &[&str]) -> Vec<PathBuf> {
    let device = fs::metadata(top).unwrap().dev();
    let mut found = Vec::new();
    let mut pending = vec![top.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            if metadata.dev() != device || without.iter().any(|name| path == top.join(name)) {
                continue;
            }
            if metadata.is_dir() {
                pending.push(path.clone());
            }
            found.push(path);
        }
    }
    found
}

/// Paths in `top`, and what is there; an empty path is `top` itself.
fn listing(top: &Path, without: &[&str]) -> BTreeMap<String, String> {
    let mut paths = walk(top, without);
    paths.push(top.to_owned());
    let describe = |path: &PathBuf| {
        let metadata = fs::symlink_metadata(path).unwrap();
        let content = if metadata.is_symlink() {
            fs::read_link(path).unwrap().display().to_string()
        } else if metadata.is_dir() {
            String::new()
        } else {
            fs::read_to_string(path).unwrap()
        };
        let line = format!(
            "{:o} {}:{} {}.{} {content}",
            metadata.mode(),
            metadata.uid(),
            metadata.gid(),
            metadata.mtime(),
            metadata.mtime_nsec(),
        );
        (path.strip_prefix(top).unwrap().display().to_string(), line)
    };
    paths.iter().map(describe).collect()
}

fn inodes(top: &Path) -> BTreeSet<(PathBuf, u64)> {
    walk(top, &[])
        .into_iter()
        .map(|path| (path.clone(), fs::symlink_metadata(&path).unwrap().ino()))
        .collect()
}

fn names(directory: &Path) -> String {
    let mut names: Vec<String> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names.join(" ")
}

#[test]
fn a_step_that_changes_nothing_leaves_everything_as_it_was() {
    let Some(pod) = Pod::new() else { return };
    let before = pod.files();
    let claim = pod.claim();
    let tree = image(&claim);
    let (files, numbers) = (listing(&tree, &[]), inodes(&tree));
    // The second time, what was in a lower layer is not any more.
    for _ in 0..2 {
        let result = pod.step(&tree, &claim, |root| {
            let expected =
                [".builder-in-place", "bin data dev etc kaniko lib64 nothing opt proc run sys usr var work"]
                    .join(" ");
            assert_eq!(names(root), expected);
            assert_eq!(names(&root.join("etc")), "apt hosts passwd");
            assert_eq!(names(&root.join("opt")), "driver real");
            assert_eq!(
                names(&root.join("opt/driver")),
                "lib.so",
                "the mount is there, nothing else of the pod is"
            );
            assert_eq!(names(&root.join("var")), "lib run");
            assert_eq!(names(&root.join("var/run")), "secrets");
            assert_eq!(names(&root.join("work")), "app context");
            assert_eq!(names(&root.join("usr/lib/deep")), "c");
            for name in ["etc/passwd", "bin/sh"] {
                assert_eq!(fs::read(root.join(name)).unwrap(), b"image", "{name}");
            }
            assert_eq!(fs::read(root.join("kaniko/builder")).unwrap(), b"program");
            let metadata = |name: &str| fs::metadata(root.join(name)).unwrap();
            assert_eq!((metadata("").mode() & 0o7777, metadata("var").mode() & 0o7777), (0o751, 0o2775));
            let line = |name: &str| format!("{}.{}", metadata(name).mtime(), metadata(name).mtime_nsec());
            for name in ["", "etc", "var", "opt", "work"] {
                assert!(files[name].contains(&line(name)), "the time of `{name}`");
            }
        });
        result.unwrap();
        assert_eq!(listing(&tree, &[]), files);
        assert_eq!(inodes(&tree), numbers);
        assert_eq!(pod.files(), before);
    }
    pod.check_others();
    remove_tree(claim.private(), b"trees").unwrap();
    drop(claim);
    assert!(!pod.path(PRIVATE_DIRECTORY).exists());
    assert_eq!(pod.files(), before);
}

#[test]
fn what_a_step_does_is_done_to_the_tree() {
    let Some(pod) = Pod::new() else { return };
    let before = pod.files();
    let claim = pod.claim();
    let tree = image(&claim);
    let old = listing(&tree, &[]);
    pod.step(&tree, &claim, |root| {
        write(&root.join("etc/new/file"), "step");
        write(&root.join("top"), "step");
        fs::remove_file(root.join("etc/passwd")).unwrap();
        fs::remove_dir_all(root.join("usr")).unwrap();
        fs::rename(root.join("bin"), root.join("var/bin")).unwrap();
        fs::set_permissions(root.join("var"), PermissionsExt::from_mode(0o700)).unwrap();
        rustix::fs::chown(root.join("etc"), Some(rustix::fs::Uid::from_raw(7)), None).unwrap();
        rustix::fs::symlink("/kaniko", root.join("var/lib/link")).unwrap();
        // The image has nothing here: it gets a directory.
        write(&root.join("nothing/step"), "step");
        // Here it has a link, and its own files are elsewhere.
        write(&root.join("opt/driver/step"), "lost");
        write(&root.join("var/run/step/deep"), "lost");
        // Mounts are not of the image.
        fs::remove_file(root.join("data/mounted")).unwrap();
        write(&root.join("data/mounted"), "mount");
    })
    .unwrap();
    let new = listing(&tree, &[]);
    let gone: Vec<&String> = old.keys().filter(|path| !new.contains_key(*path)).collect();
    assert_eq!(
        gone,
        ["bin", "bin/sh", "etc/passwd", "usr", "usr/lib", "usr/lib/deep", "usr/lib/deep/c"]
            .iter()
            .collect::<Vec<_>>()
    );
    let more: Vec<&String> = new.keys().filter(|path| !old.contains_key(*path)).collect();
    let expected = [
        "etc/new",
        "etc/new/file",
        "nothing",
        "nothing/step",
        "top",
        "var/bin",
        "var/bin/sh",
        "var/lib/link",
    ];
    assert_eq!(more, expected.iter().collect::<Vec<_>>());
    let other: Vec<&String> = old
        .iter()
        .filter(|(path, line)| new.get(*path).is_some_and(|new| new != *line))
        .map(|(path, _)| path)
        .collect();
    // The root, since entries came and went; the others likewise.
    assert_eq!(other, ["", "etc", "var", "var/lib"].iter().collect::<Vec<_>>());
    assert!(new["etc"].starts_with("40755 7:0 ") && new["var"].starts_with("40700 0:0 "), "{new:?}");
    assert!(new["nothing"].starts_with("40755 0:0 "), "{}", new["nothing"]);
    assert_eq!(pod.files(), before);
    pod.check_others();
}

/// A step like many.
fn ordinary(root: &Path) {
    write(&root.join("etc/new/file"), "step");
    fs::remove_dir_all(root.join("usr")).unwrap();
    write(&root.join("opt/driver/step"), "lost");
    write(&root.join("nothing/step"), "step");
}

/// Without the times of directories: those of a directory that is half moved are lost.
fn without_times_of_directories(files: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let strip = |line: String| if line.starts_with('4') { line.split(' ').take(2).collect() } else { line };
    files.into_iter().map(|(path, line)| (path, strip(line))).collect()
}

#[test]
fn a_failure_anywhere_leaves_the_container_as_it_was() {
    let Some(pod) = Pod::new() else { return };
    let before = pod.files();
    let mut count = 0;
    let expected = loop {
        let claim = pod.claim();
        assert_eq!(claim.repaired(), Repaired::Nothing, "{count}");
        let tree = image(&claim);
        let old = listing(&tree, &[]);
        fault::set(Some(Fault::Once(count)));
        let exchange = pod.exchange(&claim, &tree);
        let began = exchange.is_ok();
        let result = exchange.and_then(|exchange| {
            ordinary(&pod.overlay.root());
            exchange.end()
        });
        let come = fault::has_come();
        fault::set(None);
        if result.is_ok() {
            // Some failures do no harm, but those that come are not many more than the acts.
            assert!(come || count > 50, "{count}");
        }
        if !come {
            break listing(&tree, &[]);
        }
        if !began {
            assert_eq!(listing(&tree, &[]), old, "{count}: the image is as it was");
        }
        drop(claim);
        let claim = pod.claim();
        assert_eq!(
            without_times_of_directories(pod.files()),
            without_times_of_directories(before.clone()),
            "{count}: {result:?}"
        );
        pod.check_others();
        drop(claim);
        count += 1;
    };
    assert!(count > 50, "{count} acts");
    assert!(expected.contains_key("nothing/step"));
}

#[test]
fn a_builder_killed_anywhere_is_repaired_by_the_next() {
    let Some(pod) = Pod::new() else { return };
    let before = without_times_of_directories(pod.files());
    let mut repaired = 0;
    for count in 0.. {
        let claim = pod.claim();
        let tree = image(&claim);
        fault::set(Some(Fault::FromThenOn(count)));
        let result = pod.exchange(&claim, &tree).and_then(|exchange| {
            ordinary(&pod.overlay.root());
            exchange.end()
        });
        let come = fault::has_come();
        drop(claim);
        fault::set(None);
        if !come {
            result.unwrap();
            break;
        }
        repaired += usize::from(pod.repair() == Repaired::Root);
        assert_eq!(without_times_of_directories(pod.files()), before, "{count}: {result:?}");
        // What holds nothing of the container is for the next that runs steps in place.
        drop(pod.claim());
        assert!(!pod.path(PRIVATE_DIRECTORY).exists(), "{count}");
        pod.check_others();
    }
    assert!(repaired > 50, "{repaired}");
}

#[test]
fn a_repair_that_is_killed_is_repaired() {
    let Some(pod) = Pod::new() else { return };
    let before = without_times_of_directories(pod.files());
    for count in 0.. {
        let claim = pod.claim();
        let tree = image(&claim);
        let exchange = pod.exchange(&claim, &tree).unwrap();
        ordinary(&pod.overlay.root());
        fault::set(Some(Fault::FromThenOn(0)));
        drop(exchange);
        drop(claim);
        fault::set(Some(Fault::FromThenOn(count)));
        let result = ensure_own_root(&pod.overlay.root(), &|| {});
        let come = fault::has_come();
        fault::set(None);
        if !come {
            assert_eq!(result.unwrap(), Repaired::Root);
            break;
        }
        pod.repair();
        assert_eq!(without_times_of_directories(pod.files()), before, "{count}");
        pod.check_others();
    }
}

#[test]
fn what_supervised_a_step_repairs_the_root_of_a_dead_builder() {
    let Some(pod) = Pod::new() else { return };
    let before = pod.files();
    let claim = pod.claim();
    let tree = image(&claim);
    let exchange = pod.exchange(&claim, &tree).unwrap();
    let exchanged = pod.files();
    take_over(&pod.overlay.root(), claim.begin_step().unwrap());
    assert_eq!(pod.files(), exchanged, "the builder lives");
    let step = claim.begin_step().unwrap();
    fault::set(Some(Fault::FromThenOn(0)));
    drop(exchange);
    fault::set(None);
    drop(claim);
    take_over(&pod.overlay.root(), step);
    assert_eq!(pod.files(), before);
    assert!(!pod.path(PRIVATE_DIRECTORY).exists());
    pod.check_others();
}

#[test]
fn a_hostile_step_leads_nobody_astray() {
    type Hostile = fn(&Path, &Path);
    fn private(root: &Path, name: &str) -> PathBuf {
        root.join(PRIVATE_DIRECTORY).join(name)
    }
    fn link(to: &Path, at: &Path) {
        rustix::fs::symlink(to, at).unwrap();
    }
    // What it does, what is told, and what of the container is gone for good.
    let cases: [(&str, Hostile, &str, &[&str]); 16] = [
        (
            "a directory with a mount moved, and a link in its place",
            |root, outside| {
                fs::rename(root.join("var"), root.join("bin/moved")).unwrap();
                link(outside, &root.join("var"));
            },
            "/var",
            &[],
        ),
        (
            "a directory with a mount moved into another one",
            |root, _| {
                fs::rename(root.join("opt"), root.join("var/opt")).unwrap();
                fs::rename(root.join("var"), root.join("etc/var")).unwrap();
            },
            "/opt",
            &[],
        ),
        (
            "a directory of the builder moved, and another in its place",
            |root, _| {
                fs::rename(root.join("kaniko"), root.join("etc/kaniko")).unwrap();
                write(&root.join("kaniko/builder"), "evil");
            },
            "/kaniko",
            &[],
        ),
        (
            "a directory that holds one of the builder removed",
            |root, _| fs::remove_dir_all(root.join("work")).unwrap(),
            "/work",
            &["work/context", "work/context/Dockerfile"],
        ),
        (
            "files that are aside removed",
            |root, _| fs::remove_dir_all(private(root, "aside/bin")).unwrap(),
            "/bin",
            &["bin", "bin/tool"],
        ),
        (
            "files that are aside replaced",
            |root, outside| {
                fs::remove_file(private(root, "aside/etc/passwd")).unwrap();
                link(&outside.join("canary"), &private(root, "aside/etc/passwd"));
            },
            "/etc/passwd",
            &["etc/passwd"],
        ),
        (
            "something put beside the files that are aside",
            |root, _| write(&private(root, "aside/usr2/evil"), "evil"),
            "",
            &[],
        ),
        (
            "the directory of what is aside moved, and a link in its place",
            |root, outside| {
                fs::rename(private(root, "aside"), root.join("bin/aside")).unwrap();
                link(outside, &private(root, "aside"));
            },
            "",
            &[],
        ),
        (
            "links where things are taken away to",
            |root, outside| {
                link(outside, &private(root, "left"));
                write(&root.join("var/run/lost"), "x");
            },
            "",
            &[],
        ),
        (
            "the builder's own directory moved, and a link in its place",
            |root, outside| {
                fs::rename(root.join(PRIVATE_DIRECTORY), root.join("usr/x")).unwrap();
                link(outside, &root.join(PRIVATE_DIRECTORY));
            },
            "/.builder-in-place",
            &[],
        ),
        (
            "a directory of the tree replaced by a link",
            |root, outside| {
                fs::rename(private(root, "trees/tree/etc"), root.join("etc/tree")).unwrap();
                link(outside, &private(root, "trees/tree/etc"));
            },
            "/.builder-in-place",
            &[],
        ),
        (
            "the root of the tree moved, and a link to the container's in its place",
            |root, _| {
                fs::rename(private(root, "trees/tree"), private(root, "trees/other")).unwrap();
                link(root, &private(root, "trees/tree"));
            },
            "/.builder-in-place",
            &[],
        ),
        (
            "the root of the tree moved into itself, and a link in its place",
            |root, outside| {
                fs::rename(private(root, "trees/tree"), root.join("usr/tree")).unwrap();
                link(outside, &private(root, "trees/tree"));
            },
            "/.builder-in-place",
            &[],
        ),
        (
            "the directory of all trees moved, and a link in its place",
            |root, outside| {
                fs::rename(private(root, "trees"), root.join("bin/trees")).unwrap();
                fs::create_dir_all(root.join("evil/tree")).unwrap();
                link(&root.join("evil"), &private(root, "trees"));
                link(outside, &root.join("evil/tree/link"));
            },
            "/.builder-in-place",
            &[],
        ),
        (
            "the journal removed",
            |root, _| fs::remove_file(private(root, "journal.exchanged")).unwrap(),
            "/.builder-in-place",
            &[],
        ),
        (
            "everything removed that can be",
            |root, _| {
                for path in walk(root, &[]).iter().rev() {
                    let _ = fs::remove_file(path).or_else(|_| fs::remove_dir(path));
                }
            },
            "/.builder-in-place",
            &["*"],
        ),
    ];
    for (what, hostile, told, gone) in cases {
        let Some(pod) = Pod::of_one_layer() else { return };
        let before = without_times_of_directories(pod.files());
        let claim = pod.claim();
        let tree = image(&claim);
        let result = pod.step(&tree, &claim, |root| hostile(root, pod.outside.path()));
        // Whoever goes the way to the tree later, as when it is removed, comes to a tree or nowhere.
        for name in ["trees", "trees/tree"] {
            let kind = fs::symlink_metadata(private(&pod.overlay.root(), name)).map(|found| found.is_dir());
            assert!(kind.unwrap_or(true), "{what}: a link is left at `{name}`");
        }
        match result {
            Err(InPlaceError::Damaged { paths }) => {
                assert!(paths.iter().any(|path| path.as_bytes() == told.as_bytes()), "{what}: {paths:?}");
            }
            Ok(()) => assert_eq!(told, "", "{what}"),
            Err(error) => panic!("{what}: {error:?}"),
        }
        drop(claim);
        pod.check_others();
        let after = without_times_of_directories(pod.files());
        if gone != ["*"] {
            let expected = before.iter().filter(|(path, _)| !gone.contains(&path.as_str()));
            for (path, line) in expected {
                assert_eq!(after.get(path), Some(line), "{what}: {path}");
            }
        }
        let left: Vec<&String> = after.keys().filter(|path| !before.contains_key(*path)).collect();
        assert!(left.is_empty(), "{what}: {left:?}");
        // Where only the tree was damaged, the next step works.
        let claim = pod.claim();
        let tree = image(&claim);
        pod.step(&tree, &claim, |_| {}).unwrap();
    }
}

#[test]
fn a_build_that_is_stopped_while_files_change_places_goes_back_at_once() {
    let mut stopped = 0;
    for count in 0.. {
        // With lower layers that nothing has been moved of.
        let Some(pod) = Pod::new() else { return };
        let before = pod.files();
        let claim = pod.claim();
        let tree = image(&claim);
        let old = listing(&tree, &[]);
        let cancel = Cancel::new().unwrap();
        let stop = cancel.clone();
        fault::after(count, move || stop.cancel("a signal asked for it"));
        let result = pod.exchange_until(&claim, &tree, &cancel);
        let acts = fault::acts();
        fault::set(None);
        if !cancel.is_cancelled() {
            result.unwrap().end().unwrap();
            break;
        }
        match result.map(Exchange::end) {
            // It came with the last act, or while the last directory was shown.
            Ok(ended) => ended.unwrap(),
            Err(error) => {
                assert!(error.is_interruption(), "{count}: {error:?}");
                // An entry whose move has begun is moved. Each act is undone by one; to make a directory, two more are done.
                assert!(acts <= 3 * count + 20, "{count}: {acts} acts");
                stopped += 1;
            }
        }
        assert_eq!(listing(&tree, &[]), old, "{count}: the image is as it was");
        drop(claim);
        assert_eq!(
            without_times_of_directories(pod.files()),
            without_times_of_directories(before.clone()),
            "{count}"
        );
        pod.check_others();
    }
    assert!(stopped > 50, "{stopped}");
}

#[test]
fn whether_steps_can_run_is_found_out_without_a_trace() {
    let Some(pod) = Pod::new() else { return };
    let root = pod.overlay.root();
    let (before, upper) = (pod.files(), pod.overlay.changed());
    let program = Path::new("/proc/self/exe");
    let tried = try_in(&root, program, |sandbox, tree| {
        assert!(tree.starts_with(pod.path(PRIVATE_DIRECTORY)), "{}", tree.display());
        let tree = Rootfs::open(tree).unwrap();
        let fixed = Fixed::find(sandbox.claim.root(), &sandbox.protected).unwrap();
        // What was to be moved is, and nothing else of this container.
        let exchange = Exchange::begin(sandbox.claim, &fixed, &tree, &Cancel::new().unwrap()).unwrap();
        assert!(!pod.path(".builder-in-place/trial/root/entry").exists());
        assert_eq!(pod.files(), before);
        exchange.end()
    });
    tried.unwrap().unwrap();
    assert_eq!(pod.files(), before);
    assert_eq!(pod.overlay.changed(), upper, "a lower layer was copied");
    assert!(!pod.path(PRIVATE_DIRECTORY).exists());
    // Of one that was killed.
    for name in [".builder-in-place-trial", ".builder-in-place/trial/root/.builder-in-place/trees/tree/etc"] {
        fs::create_dir_all(pod.path(name)).unwrap();
    }
    try_in(&root, program, |_, _| {}).unwrap();
    assert!(!pod.path(PRIVATE_DIRECTORY).exists() && !pod.path(".builder-in-place-trial").exists());
    pod.overlay.allow(Writing::No);
    let error = try_in(&root, program, |_, _| {}).unwrap_err();
    assert!(
        matches!(&error, InPlaceError::Private { source, .. } if source.kind() == std::io::ErrorKind::ReadOnlyFilesystem),
        "{error:?}"
    );
    pod.overlay.allow(Writing::Yes);
    // Who has it for moments stops nobody.
    let claim = pod.claim();
    std::thread::scope(|scope| {
        let (waits, waiting) = std::sync::mpsc::channel();
        let other = scope.spawn(move || {
            waits.send(()).unwrap();
            Claim::take(&root, &|| {}).map(drop)
        });
        waiting.recv().unwrap();
        drop(claim);
        other.join().unwrap().unwrap();
    });
}

#[test]
fn a_root_is_the_containers_own_or_given_back_or_it_is_said_what_to_do() {
    let Some(pod) = Pod::new() else { return };
    let root = pod.overlay.root();
    let own = || ensure_own_root(&root, &|| {});
    assert_eq!(own().unwrap(), Repaired::Nothing);
    assert!(!pod.path(PRIVATE_DIRECTORY).exists(), "nothing is made to find nothing");
    let before = pod.files();
    // A builder between its steps stops nobody.
    let claim = pod.claim();
    let tree = image(&claim);
    assert_eq!(own().unwrap(), Repaired::Nothing);
    let exchange = pod.exchange(&claim, &tree).unwrap();
    let error = own().unwrap_err();
    assert!(matches!(error, OwnRootError::InUse { .. }), "{error:?}");
    assert!(!error.to_string().contains("steps that run in place"), "{error}");
    fault::set(Some(Fault::FromThenOn(0)));
    drop(exchange);
    fault::set(None);
    // Dead, but whoever supervised its step has not ended.
    drop(claim);
    pod.overlay.allow(Writing::No);
    let error = own().unwrap_err();
    assert!(matches!(error, OwnRootError::Irreparable(_)), "{error:?}");
    assert_eq!(error.remedy(), "start a new container");
    pod.overlay.allow(Writing::Yes);
    assert_eq!(own().unwrap(), Repaired::Root);
    assert_eq!(pod.files(), before);
    // What holds nothing of the container's is no matter where nobody can write, nor is what others have there.
    drop(pod.claim());
    write(&pod.path(PRIVATE_DIRECTORY).join("trees/build-1/tree-0/file"), "image");
    pod.overlay.allow(Writing::No);
    assert_eq!(own().unwrap(), Repaired::Nothing);
    pod.overlay.allow(Writing::Yes);
    drop(pod.claim());
    for other in ["/etc", "/missing"] {
        rustix::fs::symlink(other, pod.path(PRIVATE_DIRECTORY)).unwrap();
        assert_eq!(own().unwrap(), Repaired::Nothing, "{other}");
        fs::remove_file(pod.path(PRIVATE_DIRECTORY)).unwrap();
    }
    write(&pod.path(PRIVATE_DIRECTORY), "x");
    assert_eq!(own().unwrap(), Repaired::Nothing);
}

#[test]
fn what_is_abandoned_is_for_the_next_builder_and_keeps_no_process() {
    let Some(pod) = Pod::new() else { return };
    let before = pod.files();
    let claim = pod.claim();
    let tree = image(&claim);
    pod.exchange(&claim, &tree).unwrap().abandon();
    assert_ne!(pod.files(), before);
    drop((crate::sandbox::indispensable::dispensable(), claim));
    assert_eq!(pod.repair(), Repaired::Root);
    assert_eq!(pod.files(), before);
}

#[test]
fn what_lives_of_a_step_keeps_the_next_builder_from_moving_files() {
    let Some(pod) = Pod::new() else { return };
    let before = pod.files();
    let claim = pod.claim();
    let tree = Rootfs::open(&image(&claim)).unwrap();
    let mut living = std::process::Command::new("/bin/sleep").arg("1000.6").spawn().unwrap();
    let survivor = processes::Process::of(Pid::from_child(&living)).unwrap();
    running::PLANTED.set(Some(Survivors::of(vec![survivor])));
    let cancel = Cancel::new().unwrap();
    let sandbox = InPlace::new("/missing", &claim, &[]);
    let error = sandbox.run(&tree, &Process::bare(vec![b"/bin/sh".to_vec()]), &mut |_, _| {}, &cancel);
    assert!(matches!(error, Err(SandboxError::Survivors(_))), "{error:?}");
    drop(claim);
    let left = pod.files();
    assert_ne!(left, before);
    let root = pod.overlay.root();
    let error = Claim::take(&root, &|| {}).unwrap_err();
    assert!(matches!(error, InPlaceError::Alive(_)), "{error}");
    assert!(error.to_string().contains(&format!("{} (`sleep`)", survivor.id)), "{error}");
    // Nor may other commands.
    let error = ensure_own_root(&root, &|| {}).unwrap_err();
    assert!(matches!(error, OwnRootError::Alive(_)), "{error}");
    assert_eq!(pod.files(), left);
    living.kill().unwrap();
    living.wait().unwrap();
    assert_eq!(pod.repair(), Repaired::Root);
    assert_eq!(pod.files(), before);
    assert!(!pod.path(PRIVATE_DIRECTORY).exists());
}

#[test]
fn what_lives_is_written_down_where_a_step_has_put_something_else() {
    let root = tempfile::tempdir().unwrap();
    let claim = Claim::take(root.path(), &|| {}).unwrap();
    let place = claim.path_of("living");
    fs::write(root.path().join("file"), "of the container").unwrap();
    fs::hard_link(root.path().join("file"), &place).unwrap();
    let this = processes::Process::of(rustix::process::getpid()).unwrap();
    // Of a builder that is dead, by its supervisor.
    leave_to_next(root.path(), &Survivors::of(vec![this]));
    assert_eq!(fs::read(root.path().join("file")).unwrap(), b"of the container");
    drop(claim);
    let error = Claim::take(root.path(), &|| {}).unwrap_err();
    assert!(matches!(error, InPlaceError::Alive(_)), "{error}");
    fs::write(&place, "nonsense\n").unwrap();
    drop(Claim::take(root.path(), &|| {}).unwrap());
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
}

#[test]
fn a_root_has_one_builder_at_a_time() {
    let Some(pod) = Pod::new() else { return };
    let claim = pod.claim();
    let error = Claim::take(&pod.overlay.root(), &|| {}).unwrap_err();
    assert!(matches!(error, InPlaceError::Busy { .. }), "{error:?}");
    drop(claim);
    drop(pod.claim());
    assert!(!pod.path(PRIVATE_DIRECTORY).exists());
}

#[test]
fn a_step_of_a_dead_builder_is_waited_for() {
    let Some(pod) = Pod::new() else { return };
    let claim = pod.claim();
    let step = claim.begin_step().unwrap();
    drop(claim);
    let lock = pod.path(PRIVATE_DIRECTORY).join("step");
    // The directory of a builder that was killed is not tidied up.
    write(&lock, "");
    let held = fs::File::open(&lock).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
    drop(step);
    let (ended, end) = std::sync::mpsc::channel();
    let (told, waits) = std::sync::mpsc::channel();
    let root = pod.overlay.root();
    std::thread::scope(|scope| {
        let next = scope.spawn(move || {
            let claim = Claim::take(&root, &|| told.send(()).unwrap()).unwrap();
            end.recv_timeout(std::time::Duration::ZERO).expect("the step has ended before");
            drop(claim);
        });
        waits.recv().expect("it says that it waits");
        ended.send(()).unwrap();
        drop(held);
        next.join().unwrap();
        assert!(waits.recv().is_err(), "it says so once");
    });
}

#[test]
fn a_lock_that_is_never_let_go_of_is_an_error() {
    let Some(pod) = Pod::new() else { return };
    let claim = pod.claim();
    let step = claim.begin_step().unwrap();
    let error = claim.begin_step().unwrap_err();
    assert!(matches!(error, InPlaceError::Held { .. }), "{error}");
    assert!(error.to_string().ends_with(
        "/step` is held by what is left of a step in this container: restart the container, or end that"
    ));
    drop(step);
    claim.begin_step().unwrap();
}

#[test]
fn files_that_nobody_can_tell_of_are_an_error() {
    let Some(pod) = Pod::new() else { return };
    let private = pod.path(PRIVATE_DIRECTORY);
    write(&private.join("aside/usr/file"), "pod");
    let error = Claim::take(&pod.overlay.root(), &|| {}).unwrap_err();
    assert!(matches!(error, InPlaceError::Lost { .. }), "{error}");
    fs::write(private.join("journal.apart"), "something else").unwrap();
    let error = Claim::take(&pod.overlay.root(), &|| {}).unwrap_err();
    assert!(matches!(error, InPlaceError::Journal { .. }), "{error}");
    assert_eq!(fs::read(private.join("aside/usr/file")).unwrap(), b"pod");
    // A journal that a step wrote names what it likes, but only places in the root.
    let outside = GuestPath::clamp(pod.outside.path().as_os_str().as_encoded_bytes()).unwrap();
    rustix::fs::symlink(pod.outside.path(), pod.path("link")).unwrap();
    for path in [GuestPath::root().child(b"link"), GuestPath::root().child(b"data"), outside] {
        let hex: String = path.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        let text = format!(
            "builder in-place 1\ndirectory 2f 0 0 493 0 0\nstays 64617461\nstays 70726f63\ndirectory {hex} 0 0 448 0 0\nend\n"
        );
        fs::write(private.join("journal.apart"), text).unwrap();
        Claim::take(&pod.overlay.root(), &|| {}).unwrap_err();
        pod.check_others();
    }
}

#[test]
fn trees_elsewhere_are_refused_before_anything_is_moved() {
    let Some(pod) = Pod::new() else { return };
    let before = pod.files();
    let claim = pod.claim();
    let elsewhere = tempfile::tempdir().unwrap();
    let error = pod.step(elsewhere.path(), &claim, |_| panic!("it ran")).unwrap_err();
    assert!(matches!(error, InPlaceError::Elsewhere { .. }), "{error}");
    assert!(error.to_string().contains("/.builder-in-place/trees"), "{error}");
    assert_eq!(pod.files(), before);
}

#[test]
fn the_warning_names_what_is_there() {
    let Some(pod) = Pod::new() else { return };
    let protected = PROTECTED.map(|path| GuestPath::clamp(path.as_bytes()).unwrap());
    let claim = pod.claim();
    let sandbox = InPlace::new("/proc/self/exe", &claim, &protected);
    // What the build itself has put there counts for no result.
    let mounts = ["/data", "/nothing/mount", "/opt/driver/lib.so", "/var/run/secrets"];
    let mounts = mounts.map(|path| GuestPath::clamp(path.as_bytes()).unwrap()).to_vec();
    assert_eq!(sandbox.view().unwrap(), View::Container { mounts });
    let seen = sandbox.seen_by_steps().unwrap();
    assert_eq!(
        warning(&seen),
        "RUN is not kept apart from this container (--isolation=in-place): it can read and change `/data`, `/kaniko`, \
         `/nothing/mount`, `/opt/driver/lib.so`, `/var/run/secrets`, `/work/context` of this container; in `/.builder-in-place` are the \
         container's other files meanwhile, and other stages"
    );
    let many: Vec<GuestPath> = (0..10).map(|n| GuestPath::root().child(n.to_string().as_bytes())).collect();
    assert!(warning(&many).contains("`/7` and 2 more of this container;"), "{}", warning(&many));
    assert!(warning(&[]).contains("no files of this container but those of the kernel;"));
}
