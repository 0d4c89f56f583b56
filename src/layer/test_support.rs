//! What tests of layers share: a tar builder, and trees as text.

use std::io::{self, Read};
use std::os::fd::AsFd;

pub(crate) use super::archive::*;
use super::{Application, Applied, LayerError, Limits, Rules, Whiteouts};
use crate::rootfs::{FileKind, Follow, GuestPath, Rootfs};

pub(crate) fn path(text: &str) -> GuestPath {
    GuestPath::clamp(text.as_bytes()).unwrap()
}

/// Whether the process may do what unpacking needs; says so if not.
pub(crate) fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: needs root, to set owners");
    }
    root
}

/// The tree as text, one line a path: name, kind, mode, owner, modification time and what else there is.
pub(crate) fn dump(root: &Rootfs) -> Vec<String> {
    let mut lines = Vec::new();
    let mut pending = vec![GuestPath::root()];
    while let Some(next) = pending.pop() {
        let (parent, name) = root.parent(&next).unwrap();
        let entry = root.entry(&parent, &name);
        let metadata = entry.metadata().unwrap();
        let owner = metadata.owner;
        let kind = format!("{:?}", metadata.kind).to_lowercase();
        let mut line = format!("{next} {kind} {:04o} {}:{}", metadata.mode, owner.uid, owner.gid);
        line += &format!(" {}.{:09}", metadata.mtime.seconds, metadata.mtime.nanoseconds);
        match metadata.kind {
            FileKind::File => {
                let content = root.read_small_file(&next, 1 << 30).unwrap().unwrap();
                line += &format!(" {} {}", content.len(), content[..content.len().min(80)].escape_ascii());
            }
            FileKind::Symlink => line += &format!(" -> {}", root.read_link(&next).unwrap().escape_ascii()),
            FileKind::CharDevice | FileKind::BlockDevice => line += &format!(" {}", metadata.rdev),
            _ => {}
        }
        for (key, value) in entry.xattrs().unwrap() {
            if key != b"security.selinux" {
                line += &format!(" {}={}", key.escape_ascii(), value.escape_ascii());
            }
        }
        lines.push((next.clone(), line));
        if metadata.kind == FileKind::Directory {
            pending.extend(root.read_dir(&next).unwrap().into_iter().map(|(name, _)| next.child(&name)));
        }
    }
    lines.sort();
    lines.into_iter().map(|(_, line)| line).collect()
}

/// What stands at `name`: the content of a file, `dir`, `symlink:TARGET`, another kind's name, or nothing.
pub(crate) fn what(root: &Rootfs, name: &str) -> Option<String> {
    let path = path(name);
    let metadata = root.metadata(&path, Follow::No).unwrap()?;
    Some(match metadata.kind {
        FileKind::File => {
            String::from_utf8_lossy(&root.read_small_file(&path, 1 << 20).unwrap().unwrap()).into_owned()
        }
        FileKind::Directory => "dir".to_owned(),
        FileKind::Symlink => format!("symlink:{}", String::from_utf8_lossy(&root.read_link(&path).unwrap())),
        kind => format!("{kind:?}"),
    })
}

/// The view that overlayfs gives of unpacked layers, bottom first, as a mount that is nowhere attached.
pub(crate) fn overlay(layers: &[&std::path::Path]) -> io::Result<Rootfs> {
    use rustix::mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen,
    };
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for layer in layers.iter().rev() {
        fsconfig_set_string(context.as_fd(), "lowerdir+", *layer)?;
    }
    fsconfig_create(context.as_fd())?;
    let mount = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    Ok(Rootfs::from_fd(mount))
}

/// Applies a layer by the rules for images.
pub(crate) fn apply(
    tar: &mut dyn Read,
    onto: &Rootfs,
    whiteouts: Whiteouts,
    limits: &Limits,
) -> Result<Applied, LayerError> {
    Application::new(Rules::layer(whiteouts), limits).run(tar, onto)
}
