//! Trees as text, for the tests of this crate: a test states what a tree is, or what becomes of it, and compares texts.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use rustix::fs::CWD;

use crate::image::digest::Digest;
use crate::rootfs::{Attribute, FileId, FileKind, Follow, GuestPath, Rootfs};
use crate::sys::enter_private_mounts;

/// Whether this thread is in a mount namespace of its own from now on and may mount overlays; says so if not.
pub(crate) fn can_mount() -> bool {
    let possible = enter_private_mounts();
    if let Err(error) = &possible {
        eprintln!("skipped: no mount namespace of its own: {error}");
    }
    possible.is_ok()
}

/// Whether devices can be made here, as they cannot in a user namespace; says so if not.
pub(crate) fn can_make_devices() -> bool {
    let directory = tempfile::tempdir().unwrap();
    let kind = rustix::fs::FileType::CharacterDevice;
    let null = rustix::fs::makedev(1, 3);
    let made = rustix::fs::mknodat(CWD, directory.path().join("null"), kind, 0o600.into(), null);
    if let Err(error) = made {
        eprintln!("skipped: no devices: {error}");
    }
    made.is_ok()
}

/// Runs `test` in a thread for which file systems have no locks. Skips it, visibly, where that cannot be had.
pub(crate) fn without_locks(test: impl FnOnce() + Send) {
    let refused = || {
        crate::sys::refuse_call(libc::SYS_flock, rustix::io::Errno::NOLCK)?;
        test();
        Ok::<(), std::io::Error>(())
    };
    let done = std::thread::scope(|scope| scope.spawn(refused).join());
    match done {
        Ok(Ok(())) => {}
        Ok(Err(error)) => eprintln!("skipped: no filter for system calls: {error}"),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Runs `script` in `directory`, line by line. Everything is a command for the shell, except
/// - `xattr PATH KEY VALUE` and `unxattr PATH KEY`: sets and removes an extended attribute,
/// - `acl PATH access|default USER`: an access control list that gives a user everything,
/// - `exchange PATH PATH`: renameat2(2) with `RENAME_EXCHANGE`,
/// - `mapped PATH`: changes the first byte of a file through a mapping that was read before.
pub(crate) fn run(directory: &Path, script: &str) {
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let words: Vec<&str> = line.split(' ').collect();
        let place = |word: usize| directory.join(words[word]);
        let set = |key: &str, value: &[u8]| {
            rustix::fs::lsetxattr(place(1), key, value, rustix::fs::XattrFlags::empty()).unwrap();
        };
        match words[0] {
            "xattr" => set(words[2], words[3].as_bytes()),
            "unxattr" => rustix::fs::lremovexattr(place(1), words[2]).unwrap(),
            "acl" => set(&format!("system.posix_acl_{}", words[2]), &access_list(words[3].parse().unwrap())),
            "exchange" => {
                let flags = rustix::fs::RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(CWD, place(1), CWD, place(2), flags).unwrap();
            }
            "mapped" => {
                let file = std::fs::OpenOptions::new().read(true).write(true).open(place(1)).unwrap();
                crate::sys::write_mapped(file, || Ok(())).unwrap();
            }
            _ => {
                // Where there are no devices, something special all the same.
                let script =
                    format!("mknod() {{ command mknod \"$@\" 2>/dev/null || mkfifo \"$1\"; }}; {line}");
                let shell = ["-euc", &script];
                let status = Command::new("sh").args(shell).current_dir(directory).status().unwrap();
                assert!(status.success(), "{line}");
            }
        }
    }
}

/// An access control list as the kernel stores it (version 2; owner, `user`, group, mask, others).
pub(crate) fn access_list(user: u32) -> Vec<u8> {
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in
        [(1u16, 7u16, u32::MAX), (2, 7, user), (4, 5, u32::MAX), (0x10, 7, u32::MAX), (0x20, 5, u32::MAX)]
    {
        list.extend([tag.to_le_bytes(), permissions.to_le_bytes()].concat());
        list.extend(id.to_le_bytes());
    }
    list
}

/// Sets all modification times in `directory` to 1000 seconds after 1970.
pub(crate) fn settle_times(directory: &Path) {
    run(directory, "find . -exec touch -h -d @1000 {} +");
}

/// One line a path: kind, mode, owner, modification time, what is special to the kind, attributes.
pub(crate) fn dump(root: &Rootfs) -> String {
    dump_with(root, Times::Shown)
}

/// Whether a dump has the times of entries.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Times {
    Shown,
    /// For trees that were made at different times.
    Hidden,
}

/// [`dump`], perhaps without times.
pub(crate) fn dump_with(root: &Rootfs, times: Times) -> String {
    let mut text = String::new();
    let mut pending = vec![GuestPath::root()];
    while let Some(path) = pending.pop() {
        let metadata = root.metadata(&path, Follow::No).unwrap().unwrap();
        let time = metadata.mtime;
        let owner = metadata.owner;
        write!(text, "{path} {:?} {:04o} {}:{} ", metadata.kind, metadata.mode, owner.uid, owner.gid)
            .unwrap();
        if times == Times::Shown {
            write!(text, "{}.{:09}", time.seconds, time.nanoseconds).unwrap();
        }
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
        for (key, value) in xattrs.iter().filter(|(key, _)| Attribute::of(key) != Attribute::Overlay) {
            write!(text, " {}={}", key.escape_ascii(), value.escape_ascii()).unwrap();
        }
        text.push('\n');
    }
    text
}

/// Which names are one file: lists of paths, only of files with several names.
pub(crate) fn links(root: &Rootfs) -> Vec<Vec<String>> {
    let mut groups: BTreeMap<FileId, Vec<String>> = BTreeMap::new();
    let mut pending = vec![GuestPath::root()];
    while let Some(path) = pending.pop() {
        for (name, kind) in root.read_dir(&path).unwrap().into_iter().rev() {
            let child = path.child(&name);
            if kind == FileKind::Directory {
                pending.push(child);
                continue;
            }
            let metadata = root.metadata(&child, Follow::No).unwrap().unwrap();
            groups.entry(metadata.file()).or_default().push(child.to_string());
        }
    }
    let mut groups: Vec<_> = groups.into_values().filter(|group| group.len() > 1).collect();
    groups.iter_mut().for_each(|group| group.sort());
    groups.sort();
    groups
}
