//! Random steps on both kinds of trees: the same changes, the same files, and layers that give them again.
//!
//! What overlayfs does otherwise by design is left out: files of earlier steps with several names are not written to (it
//! would cut them off from their other names), and directories of earlier steps are moved by copying where it says EXDEV.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use proptest::test_runner::{TestError, TestRunner};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use crate::layer::{Limits, Marks};
use crate::rootfs::Overrides;
use crate::rootfs::{FileKind, Follow, GuestPath, Metadata, Rootfs, metadata_at, metadata_of};
use crate::store::index::Trust;
use crate::store::testing::{can_mount, links};
use crate::store::unpacked::Chain;
use crate::store::workspace::Workspace;

use super::native::Comparison;
use super::testing::{Ground, Kind, dump_without_time_of_root, text};
use super::{NativeSnapshotter, OverlaySnapshotter};

const PATHS: [&str; 10] = ["a", "b", "a/b", "x", "y", "a/x", "a/y", "b/x", "a/b/x", "b/c"];

/// What the first step makes before anything else: directories, then files.
const BASE: [(usize, Act); 8] = [
    (0, Act::Mkdir),
    (1, Act::Mkdir),
    (2, Act::Mkdir),
    (3, Act::Create(0)),
    (5, Act::Create(1)),
    (7, Act::Create(2)),
    (8, Act::Create(0)),
    (9, Act::Mkdir),
];

/// What a step does, to paths by their number.
#[derive(Debug, Clone)]
enum Act {
    Create(u8),
    Write(u8),
    Overwrite(u8),
    Mapped,
    Truncate(u64),
    Mkdir,
    Rmdir,
    RemoveAll,
    /// [`Act::RemoveAll`] and [`Act::Mkdir`].
    Remake,
    Unlink,
    Rename(usize),
    Exchange(usize),
    Link(usize),
    Symlink(&'static str),
    Fifo,
    Chmod(u32),
    Chown(u32),
    Utimes(i64),
    Xattr(u8),
    Unxattr,
}

#[derive(Debug, Clone)]
struct Op {
    path: usize,
    act: Act,
    /// Whether the times of what was touched are what they were, as package managers do it.
    restore: bool,
}

fn op() -> impl Strategy<Value = Op> {
    let path = || 0..PATHS.len();
    let act = prop_oneof![
        4 => (0..3u8).prop_map(Act::Create),
        2 => (0..3u8).prop_map(Act::Write),
        2 => (0..3u8).prop_map(Act::Overwrite),
        1 => Just(Act::Mapped),
        1 => (0..3u64).prop_map(Act::Truncate),
        4 => Just(Act::Mkdir),
        1 => Just(Act::Rmdir),
        1 => Just(Act::RemoveAll),
        1 => Just(Act::Remake),
        2 => Just(Act::Unlink),
        4 => path().prop_map(Act::Rename),
        1 => path().prop_map(Act::Exchange),
        2 => path().prop_map(Act::Link),
        1 => prop::sample::select(vec!["a", "b", "x"]).prop_map(Act::Symlink),
        1 => Just(Act::Fifo),
        1 => prop::sample::select(vec![0o644, 0o755, 0o4711]).prop_map(Act::Chmod),
        1 => (0..2u32).prop_map(Act::Chown),
        1 => (5..8i64).prop_map(Act::Utimes),
        1 => (0..2u8).prop_map(Act::Xattr),
        1 => Just(Act::Unxattr),
    ];
    (path(), act, prop::bool::weighted(0.6)).prop_map(|(path, act, restore)| Op { path, act, restore })
}

fn steps() -> impl Strategy<Value = Vec<Vec<Op>>> {
    (prop::collection::vec(op(), 0..8), prop::collection::vec(prop::collection::vec(op(), 1..8), 1..4))
        .prop_map(|(first, mut rest)| {
            let base = BASE.into_iter().map(|(path, act)| Op { path, act, restore: false });
            rest.insert(0, base.chain(first).collect());
            rest
        })
}

/// A tree that a step works in.
struct Place<'a> {
    root: OwnedFd,
    path: &'a Path,
}

fn open(path: &Path) -> OwnedFd {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap()
}

fn parent_of(path: &str) -> &str {
    path.rsplit_once('/').map_or(".", |(parent, _)| parent)
}

fn set_time(at: BorrowedFd<'_>, path: &str, seconds: i64, flags: AtFlags) {
    let time = Timespec { tv_sec: seconds, tv_nsec: 7 };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(at, path, &times, flags).unwrap();
}

impl Place<'_> {
    fn stat(&self, path: &str) -> Option<Metadata> {
        metadata_at(self.root.as_fd(), path.as_bytes()).ok()
    }

    /// The directory that holds `path`, links followed.
    fn parent(&self, path: &str) -> Option<Metadata> {
        let directory = rustix::fs::openat(&self.root, parent_of(path), OFlags::PATH, Mode::empty()).ok()?;
        metadata_of(directory).ok()
    }

    fn write(&self, path: &str, content: &[u8], flags: OFlags) -> Result<(), Errno> {
        let flags = flags | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = rustix::fs::openat(&self.root, path, flags, Mode::from_raw_mode(0o644))?;
        rustix::io::write(&file, content).map(drop)
    }

    fn act(&self, path: &str, act: &Act) -> Result<(), Errno> {
        let root = &self.root;
        let content = |byte: &u8| [b'A' + byte, b'\n'];
        match act {
            Act::Create(byte) => self.write(path, &content(byte), OFlags::CREATE | OFlags::EXCL),
            Act::Write(byte) => self.write(path, &content(byte), OFlags::TRUNC),
            Act::Overwrite(byte) => self.write(path, &content(byte)[..1], OFlags::empty()),
            Act::Mapped => {
                let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK;
                let file = rustix::fs::openat(root, path, flags, Mode::empty())?;
                crate::sys::write_mapped(&file, || Ok(()))
                    .map_err(|error| Errno::from_io_error(&error).unwrap())
            }
            Act::Truncate(size) => {
                let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
                rustix::fs::ftruncate(rustix::fs::openat(root, path, flags, Mode::empty())?, *size)
            }
            Act::Mkdir => rustix::fs::mkdirat(root, path, Mode::from_raw_mode(0o755)),
            Act::Rmdir => rustix::fs::unlinkat(root, path, AtFlags::REMOVEDIR),
            Act::RemoveAll => {
                let (parent, name) = (parent_of(path), path.rsplit_once('/').map_or(path, |(_, name)| name));
                // Not a FIFO, at whose end nobody is.
                let flags = OFlags::RDONLY | OFlags::DIRECTORY;
                let parent = rustix::fs::openat(root, parent, flags, Mode::empty())?;
                crate::rootfs::remove_tree(parent.as_fd(), name.as_bytes())
                    .map_err(|error| Errno::from_io_error(&error).unwrap())
            }
            Act::Remake => {
                self.act(path, &Act::RemoveAll)?;
                self.act(path, &Act::Mkdir)
            }
            Act::Unlink => rustix::fs::unlinkat(root, path, AtFlags::empty()),
            Act::Rename(to) => match rustix::fs::renameat(root, path, root, PATHS[*to]) {
                Err(Errno::XDEV) => {
                    let mut moved = Command::new("mv");
                    moved.args(["-T", path, PATHS[*to]]).current_dir(self.path).stderr(Stdio::null());
                    if moved.status().unwrap().success() { Ok(()) } else { Err(Errno::NOTEMPTY) }
                }
                result => result,
            },
            Act::Exchange(to) => {
                rustix::fs::renameat_with(root, path, root, PATHS[*to], RenameFlags::EXCHANGE)
            }
            Act::Link(to) => rustix::fs::linkat(root, path, root, PATHS[*to], AtFlags::empty()),
            Act::Symlink(target) => rustix::fs::symlinkat(*target, root, path),
            Act::Fifo => rustix::fs::mknodat(root, path, FileType::Fifo, Mode::from_raw_mode(0o644), 0),
            Act::Chmod(mode) => match self.stat(path).ok_or(Errno::NOENT)?.kind {
                FileKind::Symlink => Err(Errno::OPNOTSUPP),
                _ => rustix::fs::chmodat(root, path, Mode::from_raw_mode(*mode), AtFlags::empty()),
            },
            Act::Chown(owner) => {
                let (uid, gid) = (Uid::from_raw(*owner), Gid::from_raw(*owner));
                rustix::fs::chownat(root, path, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
            }
            Act::Utimes(_) => self.stat(path).map(drop).ok_or(Errno::NOENT),
            Act::Xattr(value) => {
                let path = self.path.join(path);
                rustix::fs::lsetxattr(path, "user.a", &content(value), XattrFlags::empty())
            }
            Act::Unxattr => rustix::fs::lremovexattr(self.path.join(path), "user.a"),
        }
    }

    /// Does it, and gives what was touched times that do not depend on the clock.
    fn run(&self, op: &Op, number: i64) -> bool {
        let path = PATHS[op.path];
        let other = match op.act {
            Act::Rename(to) | Act::Exchange(to) | Act::Link(to) => Some(PATHS[to]),
            _ => None,
        };
        let paths: Vec<&str> = [Some(path), other].into_iter().flatten().collect();
        let before: Vec<_> = paths.iter().map(|path| (self.stat(path), self.parent(path))).collect();
        if self.act(path, &op.act).is_err() {
            return false;
        }
        let kept = |before: &Option<Metadata>| {
            before.as_ref().filter(|_| op.restore).map_or(number, |before| before.mtime.seconds)
        };
        // A moved entry keeps its time; so does what is replaced by it not.
        for (position, path) in paths.iter().enumerate() {
            let time = match op.act {
                Act::Utimes(time) => time,
                Act::Rename(_) | Act::Link(_) => kept(&before[0].0),
                Act::Exchange(_) => kept(&before[1 - position].0),
                _ => kept(&before[position].0),
            };
            if self.stat(path).is_some() {
                set_time(self.root.as_fd(), path, time, AtFlags::SYMLINK_NOFOLLOW);
            }
        }
        for (path, (_, parent)) in paths.iter().zip(&before) {
            if self.parent(path).is_some() {
                set_time(self.root.as_fd(), parent_of(path), kept(parent), AtFlags::empty());
            }
        }
        true
    }
}

/// The files that a step finds, by their number.
fn inodes(root: &Rootfs) -> BTreeSet<u64> {
    let mut found = BTreeSet::new();
    let mut pending = vec![GuestPath::root()];
    while let Some(path) = pending.pop() {
        for (name, kind) in root.read_dir(&path).unwrap() {
            let child = path.child(&name);
            found.insert(root.metadata(&child, Follow::No).unwrap().unwrap().inode);
            if kind == FileKind::Directory {
                pending.push(child);
            }
        }
    }
    found
}

/// Whether overlayfs would do something else, by design.
fn is_left_out(native: &Place<'_>, op: &Op, old: &BTreeSet<u64>) -> bool {
    let other = match op.act {
        Act::Exchange(to) => Some(PATHS[to]),
        // Whether a name that is in the way goes is the same everywhere.
        Act::Unlink | Act::RemoveAll | Act::Remake => return false,
        _ => None,
    };
    let mut paths: Vec<&str> = vec![PATHS[op.path]];
    paths.extend(other);
    paths.into_iter().any(|path| {
        let Some(metadata) = native.stat(path) else { return false };
        if metadata.kind != FileKind::Directory {
            return metadata.links > 1 && old.contains(&metadata.inode);
        }
        match op.act {
            Act::Exchange(_) => old.contains(&metadata.inode),
            Act::Rename(_) => holds_old_links(native, path, old),
            _ => false,
        }
    })
}

fn holds_old_links(native: &Place<'_>, path: &str, old: &BTreeSet<u64>) -> bool {
    let directory = Rootfs::open(&native.path.join(path)).unwrap();
    let mut pending = vec![GuestPath::root()];
    while let Some(path) = pending.pop() {
        for (name, kind) in directory.read_dir(&path).unwrap() {
            let child = path.child(&name);
            let metadata = directory.metadata(&child, Follow::No).unwrap().unwrap();
            if kind == FileKind::Directory {
                pending.push(child);
            } else if metadata.links > 1 && old.contains(&metadata.inode) {
                return true;
            }
        }
    }
    false
}

/// Runs the steps on both kinds of trees, one after the other.
fn check(overlay: &Ground, native: &Ground, steps: &[Vec<Op>]) -> Result<(), String> {
    let mut chains = (Chain::empty(), Chain::empty());
    for (number, ops) in steps.iter().enumerate() {
        let before = (overlay.second(&chains.0), native.second(&chains.1));
        let on_overlay = overlay.snapshotter.begin(chains.0).unwrap();
        let on_native = native.snapshotter.begin(chains.1).unwrap();
        let old = inodes(on_native.root());
        overlay.at_place(on_overlay.mount(), |overlay| {
            native.at_place(on_native.mount(), |native| {
                let overlay = Place { root: open(overlay), path: overlay };
                let native = Place { root: open(native), path: native };
                for (position, op) in ops.iter().enumerate() {
                    if is_left_out(&native, op, &old) {
                        continue;
                    }
                    let time = 1000 * (number as i64 + 1) + position as i64;
                    let results = (overlay.run(op, time), native.run(op, time));
                    assert_eq!(results.0, results.1, "{op:?} of {ops:?} in step {number}");
                }
            });
        });
        let trees =
            (dump_without_time_of_root(on_overlay.root()), dump_without_time_of_root(on_native.root()));
        if trees.0 != trees.1 {
            return Err(format!("step {number} makes other files: {}\n{}", trees.0, trees.1));
        }
        let recorded = (on_overlay.finish().unwrap(), on_native.finish().unwrap());
        let changes = (text(&recorded.0.changes), text(&recorded.1.changes));
        if changes.0 != changes.1 {
            return Err(format!("step {number}: overlay {:?}, native {:?}", changes.0, changes.1));
        }
        let views = (
            overlay.snapshotter.view(&recorded.0.chain).unwrap(),
            native.snapshotter.view(&recorded.1.chain).unwrap(),
        );
        for (view, tree) in [(&views.0, &trees.0), (&views.1, &trees.1)] {
            if dump_without_time_of_root(view.root()) != *tree {
                return Err(format!("step {number}: the tree afterwards is another"));
            }
        }
        let linked = (links(views.0.root()), links(views.1.root()));
        if linked.0 != linked.1 {
            return Err(format!("step {number}: one file are {:?} and {:?}", linked.0, linked.1));
        }
        overlay.check_layer(before.0, &recorded.0, views.0.root())?;
        native.check_layer(before.1, &recorded.1, views.1.root())?;
        drop(views);
        chains = (recorded.0.chain, recorded.1.chain);
    }
    Ok(())
}

/// Runs [`check`] on random steps; gives the first that fail, if there are any.
fn first_failure(
    cases: u32,
    shrink: u32,
    grounds: impl Fn() -> (Ground, Ground),
) -> Result<(), TestError<Vec<Vec<Op>>>> {
    let config = ProptestConfig {
        cases,
        failure_persistence: None,
        max_shrink_iters: shrink,
        ..ProptestConfig::default()
    };
    let shared = Mutex::new((grounds(), 0));
    TestRunner::new(config).run(&steps(), |steps| {
        let mut shared = shared.lock().unwrap();
        // Directories are removed when they have become many.
        shared.1 += 1;
        if shared.1 % 50 == 0 {
            shared.0 = grounds();
        }
        check(&shared.0.0, &shared.0.1, &steps).map_err(TestCaseError::fail)
    })
}

#[test]
fn random_steps_change_the_same_on_both_kinds_of_trees() {
    if !can_mount() {
        return;
    }
    // PROPTEST_CASES asks for more.
    let cases = ProptestConfig::default().cases / 4;
    let grounds = || (Ground::new(Kind::Overlay), Ground::new(Kind::Native));
    if let Err(failure) = first_failure(cases, 100, grounds) {
        panic!("{failure}");
    }
}

/// The property above is worth something: it finds what it is there to find.
#[test]
fn random_steps_find_a_fault_in_either_kind() {
    if !can_mount() {
        return;
    }
    let cases = 2_000;
    let blind_overlay = |workspace: Arc<Workspace>| {
        let mut snapshotter = OverlaySnapshotter::new(workspace, Overrides::LIMIT);
        // Directories that were made anew are taken for those of the lower layers.
        snapshotter.marks = if Marks::usual() == Marks::User { Marks::Trusted } else { Marks::User };
        Box::new(snapshotter) as Box<dyn super::Snapshotter>
    };
    let blind_native = |workspace: Arc<Workspace>| {
        let mut snapshotter = NativeSnapshotter::new(workspace, Comparison::Metadata, Limits::default());
        // Size and modification time are believed.
        snapshotter.fault = Some(Trust::Looks);
        Box::new(snapshotter) as Box<dyn super::Snapshotter>
    };
    let faulty = || (Ground::with(Kind::Overlay, blind_overlay), Ground::new(Kind::Native));
    assert!(first_failure(cases, 0, faulty).is_err(), "opaque directories can be forgotten");
    let faulty = || (Ground::new(Kind::Overlay), Ground::with(Kind::Native, blind_native));
    assert!(first_failure(cases, 0, faulty).is_err(), "times can be believed");
}
