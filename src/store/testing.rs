//! Trees as text, for the tests of this crate: a test states what a tree is, or what becomes of it, and compares texts.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use crate::image::digest::Digest;
use crate::layer::is_overlay_attribute;
use crate::rootfs::{FileKind, Follow, GuestPath, Rootfs};
use crate::store::mount::enter_private_mounts;

/// Whether this thread is in a mount namespace of its own from now on and may mount overlays; says so if not.
pub(crate) fn can_mount() -> bool {
    let possible = enter_private_mounts();
    if let Err(error) = &possible {
        eprintln!("skipped: no mount namespace of its own: {error}");
    }
    possible.is_ok()
}

/// Runs `script` in `directory`, line by line: `xattr PATH KEY VALUE` sets an extended attribute, everything else is a
/// command for the shell.
pub(crate) fn run(directory: &Path, script: &str) {
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if let Some(arguments) = line.strip_prefix("xattr ") {
            let words: Vec<&str> = arguments.split(' ').collect();
            let value = words[2].as_bytes();
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::lsetxattr(directory.join(words[0]), words[1], value, flags).unwrap();
        } else {
            let status = Command::new("sh").args(["-euc", line]).current_dir(directory).status().unwrap();
            assert!(status.success(), "{line}");
        }
    }
}

/// Sets all modification times in `directory` to 1000 seconds after 1970.
pub(crate) fn settle_times(directory: &Path) {
    run(directory, "find . -exec touch -h -d @1000 {} +");
}

/// One line a path: kind, mode, owner, modification time, what is special to the kind, attributes.
pub(crate) fn dump(root: &Rootfs) -> String {
    let mut text = String::new();
    let mut pending = vec![GuestPath::root()];
    while let Some(path) = pending.pop() {
        let metadata = root.metadata(&path, Follow::No).unwrap().unwrap();
        let time = metadata.mtime;
        let owner = metadata.owner;
        write!(text, "{path} {:?} {:04o} {}:{} ", metadata.kind, metadata.mode, owner.uid, owner.gid)
            .unwrap();
        write!(text, "{}.{:09}", time.seconds, time.nanoseconds).unwrap();
        match metadata.kind {
            FileKind::File => {
                let content = root.read_small_file(&path, 1 << 20).unwrap().unwrap();
                write!(text, " {} {}", content.len(), Digest::of(&content).short()).unwrap();
            }
            FileKind::Symlink => {
                write!(text, " -> {}", String::from_utf8_lossy(&root.read_link(&path).unwrap())).unwrap();
            }
            FileKind::CharDevice | FileKind::BlockDevice => write!(text, " {:x}", metadata.rdev).unwrap(),
            FileKind::Directory => {
                let children = root.read_dir(&path).unwrap();
                pending.extend(children.iter().rev().map(|(name, _)| path.child(name)));
            }
            FileKind::Fifo | FileKind::Socket => {}
        }
        let xattrs = root.xattrs(&path).unwrap();
        for (key, value) in xattrs.iter().filter(|(key, _)| !is_overlay_attribute(key)) {
            write!(text, " {}={}", key.escape_ascii(), value.escape_ascii()).unwrap();
        }
        text.push('\n');
    }
    text
}

/// Which names are one file: lists of paths, only of files with several names.
pub(crate) fn links(root: &Rootfs) -> Vec<Vec<String>> {
    let mut groups: BTreeMap<(u64, (u32, u32)), Vec<String>> = BTreeMap::new();
    let mut pending = vec![GuestPath::root()];
    while let Some(path) = pending.pop() {
        for (name, kind) in root.read_dir(&path).unwrap().into_iter().rev() {
            let child = path.child(&name);
            if kind == FileKind::Directory {
                pending.push(child);
                continue;
            }
            let metadata = root.metadata(&child, Follow::No).unwrap().unwrap();
            groups.entry((metadata.inode, metadata.device)).or_default().push(child.to_string());
        }
    }
    let mut groups: Vec<_> = groups.into_values().filter(|group| group.len() > 1).collect();
    groups.iter_mut().for_each(|group| group.sort());
    groups.sort();
    groups
}
