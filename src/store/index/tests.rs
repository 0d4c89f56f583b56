//! What the index finds, how often it reads, and how large it gets.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use crate::layer::{Application, Change, Limits, Rules, Whiteouts};
use crate::rootfs::{Rootfs, metadata_at};
use crate::store::testing::{can_mount, run};
use crate::store::ticks::Ticks;
use crate::store::workspace::Workspace;

use super::*;

struct Ground {
    _directory: tempfile::TempDir,
    workspace: Arc<Workspace>,
    path: std::path::PathBuf,
    root: Rootfs,
}

fn ground(script: &str) -> Ground {
    in_directory(tempfile::tempdir().unwrap(), script)
}

fn in_directory(directory: tempfile::TempDir, script: &str) -> Ground {
    let workspace = Arc::new(Workspace::create(&directory.path().join("tmp"), None).unwrap());
    let path = workspace.directory("tree").unwrap();
    run(&path, script);
    let root = Rootfs::open(&path).unwrap();
    Ground { _directory: directory, workspace, path, root }
}

impl Ground {
    fn index(&self) -> Index {
        Index::of(&self.root, &Seen::default(), 2).unwrap()
    }
}

fn changes(refreshed: Refreshed) -> Vec<String> {
    let line = |change: Change| match change {
        Change::Put(path) => format!("+{path}"),
        Change::Remove(path) => format!("-{path}"),
    };
    refreshed.changes.finish().iter().map(line).collect()
}

/// All records by path.
fn records(index: &Index) -> Vec<(String, Record)> {
    let mut all = Vec::new();
    let mut pending = vec![(GuestPath::root(), 0)];
    while let Some((path, number)) = pending.pop() {
        for (name, record) in index.directories[number as usize].as_ref().unwrap().entries() {
            let child = path.child(name);
            all.push((child.to_string(), *record));
            if record.kind() == FileKind::Directory {
                pending.push((child, record.directory));
            }
        }
    }
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

#[test]
fn a_record_takes_eighty_bytes() {
    assert_eq!(size_of::<Record>(), 80);
}

#[test]
fn a_record_says_what_statx_said() {
    let ground =
        ground("echo x > f; ln f g; chmod 4751 f; mkdir d; command mknod n b 7 300 || true; ln -s t l");
    for name in [&b"f"[..], b"g", b"d", b"n", b"l"] {
        let Ok(metadata) = metadata_at(ground.root.as_fd(), name) else { continue };
        let record = Record::new(&metadata, Fingerprint::default());
        let size = if metadata.kind == FileKind::Directory { 0 } else { metadata.size };
        assert_eq!(record.metadata(), Metadata { device: (0, 0), size, ..metadata.clone() });
        assert!(record.matches(&metadata));
        let later = Timestamp { nanoseconds: metadata.ctime.nanoseconds ^ 1, ..metadata.ctime };
        let others = [
            Metadata { mode: metadata.mode ^ 1, ..metadata.clone() },
            Metadata { ctime: later, ..metadata.clone() },
            Metadata { mtime: Timestamp::default(), ..metadata.clone() },
            Metadata { inode: metadata.inode + 1, ..metadata.clone() },
            Metadata { owner: Owner { uid: 77, gid: 0 }, ..metadata.clone() },
            Metadata { kind: FileKind::Fifo, ..metadata.clone() },
        ];
        assert!(others.iter().all(|other| !record.matches(other)));
    }
}

/// Changes a file right after the index was made, and again: as near as a program can get to the tick in which it was
/// made.
fn change_in_time(ground: &Ground) {
    let ticks = Ticks::observe(&ground.workspace).unwrap();
    let file = ground.path.join("f");
    let write = |number: usize| {
        std::fs::write(&file, format!("{number:04}")).unwrap();
        let time = rustix::fs::Timespec { tv_sec: 1000, tv_nsec: 0 };
        let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(rustix::fs::CWD, &file, &times, rustix::fs::AtFlags::empty()).unwrap();
    };
    write(0);
    let mut index = ground.index();
    for number in 1..100 {
        let trust = Trust::UnchangedSince(ticks.past(index.newest()).unwrap());
        write(number);
        let (new, refreshed) = index.refresh(&ground.root, trust, 1).unwrap();
        assert_eq!(changes(refreshed), ["+/f"], "{number}");
        index = new;
    }
}

#[test]
fn a_change_in_the_tick_in_which_the_index_was_made_is_found() {
    change_in_time(&ground("true"));
}

/// Since Linux 6.13 most file systems give every change a time of its own once the last one was looked at; this one
/// does not.
#[test]
fn a_change_in_one_tick_is_found_where_times_are_coarse() {
    if !can_mount() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let flags = rustix::mount::MountFlags::empty();
    if let Err(error) = rustix::mount::mount("none", directory.path(), "ramfs", flags, None) {
        eprintln!("skipped: no ramfs: {error}");
        return;
    }
    let ground = in_directory(directory, "true");
    change_in_time(&ground);
}

#[test]
fn what_changed_too_late_to_be_believed_is_read() {
    let ground = ground("echo a > a; echo b > b; : > empty; ln -s a l; mkdir d");
    let index = ground.index();
    let newest = index.newest();
    let later = Timestamp { seconds: newest.seconds + 1, ..newest };
    let (index, refreshed) = index.refresh(&ground.root, Trust::UnchangedSince(later), 2).unwrap();
    assert_eq!((refreshed.visited, refreshed.opened), (5, 0));
    assert_eq!(changes(refreshed), [""; 0]);
    let trust = Trust::UnchangedSince(Timestamp::default());
    let (_, refreshed) = index.refresh(&ground.root, trust, 2).unwrap();
    assert_eq!((refreshed.visited, refreshed.opened), (5, 2));
    assert_eq!(changes(refreshed), [""; 0]);
}

#[test]
fn a_file_with_many_names_is_read_once() {
    let ground = ground("echo a > a; for name in b c d e f; do ln a $name; done");
    let index = ground.index();
    let (_, refreshed) = index.refresh(&ground.root, Trust::Nothing, 1).unwrap();
    assert_eq!(refreshed.opened, 1);
}

#[test]
fn numbers_of_directories_that_are_gone_are_used_again() {
    let ground = ground("mkdir -p keep/deep");
    let mut index = ground.index();
    for _ in 0..20 {
        run(&ground.path, "mkdir -p a/b/c a/d; echo > a/b/c/f");
        index = index.refresh(&ground.root, Trust::Nothing, 2).unwrap().0;
        run(&ground.path, "rm -r a");
        index = index.refresh(&ground.root, Trust::Nothing, 2).unwrap().0;
    }
    assert_eq!(index.directories.len(), 7);
    assert_eq!(records(&index).len(), 2);
}

#[test]
fn a_refreshed_index_is_a_new_one() {
    let ground = ground(
        "mkdir -p a/b c; echo 1 > a/1; echo 2 > a/b/2; ln a/1 c/1; ln -s x l; mkfifo p
         xattr a/1 user.a 1",
    );
    let mut index = ground.index();
    for script in [
        "true",
        "echo 3 > a/b/3; rm a/b/2",
        "rm -r a; echo > a",
        "rm a; mkdir -p a/b/c/d; mv c a/b/c/d/e",
        "mv a/b a/B; rm l; mkdir l",
    ] {
        run(&ground.path, script);
        let trust = Trust::UnchangedSince(index.newest());
        index = index.refresh(&ground.root, trust, 3).unwrap().0;
        let facts = |index: &Index| {
            let all = records(index).into_iter();
            let all = all.map(|(path, record)| (path, record.metadata(), record.fingerprint));
            all.collect::<Vec<_>>()
        };
        assert_eq!(facts(&index), facts(&ground.index()), "{script}");
    }
}

#[test]
fn what_was_seen_while_unpacking_is_what_is_read_afterwards() {
    let ground = ground("true");
    let mut archive = tar::Builder::new(Vec::new());
    let mut add = |name: &str, content: &[u8]| {
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, content).unwrap();
    };
    add("small", b"x");
    add("empty", b"");
    add("zeros", &[0; 300_000]);
    add("replaced", b"first");
    add("large", &(0..400_000_u32).map(|number| (number / 70_000) as u8).collect::<Vec<_>>());
    add("replaced", b"second");
    let archive = archive.into_inner().unwrap();
    let mut seen = Seen::default();
    let limits = Limits::default();
    let application = Application {
        observer: Some(&mut seen),
        ..Application::new(Rules::layer(Whiteouts::Remove), &limits)
    };
    application.run(&mut &archive[..], &ground.root).unwrap();
    seen.settle();
    let index = Index::of(&ground.root, &seen, 1).unwrap();
    let (_, refreshed) = index.refresh(&ground.root, Trust::Nothing, 1).unwrap();
    assert_eq!((refreshed.visited, refreshed.opened), (5, 4));
    assert_eq!(changes(refreshed), [""; 0]);
}

#[test]
fn what_cannot_be_read_is_an_error_with_its_path() {
    let ground = ground("mkdir -p a/b; echo > a/b/f");
    let index = ground.index();
    let (path, index) = std::thread::scope(|scope| {
        // A root that is no directory any more: nothing can be listed.
        let file = Rootfs::from_fd(std::fs::File::open(ground.path.join("a/b/f")).unwrap().into());
        let result = scope.spawn(move || index.refresh(&file, Trust::Nothing, 2)).join().unwrap();
        let Err(IndexError::Read { path, .. }) = result else { panic!("{result:?}") };
        (path, ground.index())
    });
    assert!(path.is_root());
    assert_eq!(records(&index).len(), 3);
    assert!(Path::new(&ground.path).exists());
}
