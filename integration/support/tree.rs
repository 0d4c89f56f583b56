//! A file system as text, so that two can be compared line by line.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::oci::with_unpacked;

/// Whether times are part of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Times {
    /// Seconds since 1970; directories too.
    Shown,
    /// `-` in their place.
    Hidden,
}

/// An image of an OCI layout, flattened by umoci: see [`dump`].
pub(crate) fn of_layout(layout: &Path, tag: &str, times: Times) -> String {
    with_unpacked(layout, tag, |root| dump(root, times))
}

/// One line for each path below `root`, sorted: `path type mode uid:gid size time`, then `-> target` of a symbolic
/// link, `major:minor` of a device, `=first-path` of a further name of a file with several, and `name=value` of
/// each extended attribute. What is not printable is escaped. The size of a directory is not shown.
pub(crate) fn dump(root: &Path, times: Times) -> String {
    let mut names = std::collections::BTreeMap::new();
    let mut lines = Vec::new();
    for path in paths(root) {
        let metadata = fs::symlink_metadata(&path).expect("metadata");
        let inside = path.strip_prefix(root).expect("below the root");
        let shown = format!("/{}", inside.as_os_str().as_bytes().escape_ascii());
        let mut line = format!("{shown} {}", describe(&metadata, times));
        if metadata.is_symlink() {
            let target = fs::read_link(&path).expect("link");
            line += &format!(" -> {}", target.as_os_str().as_bytes().escape_ascii());
        }
        if metadata.file_type().is_char_device() || metadata.file_type().is_block_device() {
            line +=
                &format!(" {}:{}", rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
        }
        if !metadata.is_dir() && metadata.nlink() > 1 {
            let first = names.entry((metadata.dev(), metadata.ino())).or_insert_with(|| shown.clone());
            if *first != shown {
                line += &format!(" ={first}");
            }
        }
        for (name, value) in xattrs(&path) {
            line += &format!(" {}={}", name.escape_ascii(), value.escape_ascii());
        }
        lines.push(line + "\n");
    }
    lines.concat()
}

/// `root` and all that is below it, sorted.
pub(crate) fn paths(root: &Path) -> Vec<PathBuf> {
    let mut pending = vec![root.to_path_buf()];
    let mut found = Vec::new();
    while let Some(path) = pending.pop() {
        if fs::symlink_metadata(&path).expect("metadata").is_dir() {
            pending.extend(fs::read_dir(&path).expect("directory").map(|entry| entry.expect("entry").path()));
        }
        found.push(path);
    }
    found.sort();
    found
}

/// Type, mode, owner, size and time.
fn describe(metadata: &fs::Metadata, times: Times) -> String {
    let kind = metadata.file_type();
    let name = match () {
        () if kind.is_file() => "file",
        () if kind.is_dir() => "directory",
        () if kind.is_symlink() => "symlink",
        () if kind.is_fifo() => "fifo",
        () if kind.is_char_device() => "char",
        () if kind.is_block_device() => "block",
        () => "socket",
    };
    let size = if kind.is_dir() { "-".to_owned() } else { metadata.size().to_string() };
    let time = match times {
        Times::Shown => metadata.mtime().to_string(),
        Times::Hidden => "-".to_owned(),
    };
    format!("{name} {:04o} {}:{} {size} {time}", metadata.mode() & 0o7777, metadata.uid(), metadata.gid())
}

/// Extended attributes, sorted; those that the kernel or a security module adds by itself are left out.
fn xattrs(path: &Path) -> std::collections::BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 65536];
    let length = rustix::fs::llistxattr(path, &mut names[..]).unwrap_or(0);
    let names = names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names
        .filter(|name| !name.starts_with(b"security.selinux"))
        .map(|name| {
            let mut value = vec![0; 65536];
            let length = rustix::fs::lgetxattr(path, name, &mut value[..]).expect("extended attribute");
            value.truncate(length);
            (name.to_vec(), value)
        })
        .collect()
}
