//! What tests of layers share: a tar builder that tidies nothing up, and trees as text.

use std::io;
use std::os::fd::AsFd;

use crate::rootfs::{FileKind, Follow, GuestPath, Rootfs};

/// One header, field by field.
pub(crate) struct Header {
    pub(crate) name: Vec<u8>,
    pub(crate) flag: u8,
    pub(crate) size: u64,
    pub(crate) raw_size: Option<[u8; 12]>,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) link: Vec<u8>,
    pub(crate) mtime: u64,
    pub(crate) device: (u32, u32),
    pub(crate) magic: [u8; 8],
}

pub(crate) const GNU: [u8; 8] = *b"ustar  \0";

pub(crate) fn header(name: impl AsRef<[u8]>, flag: u8) -> Header {
    Header {
        name: name.as_ref().to_vec(),
        flag,
        size: 0,
        raw_size: None,
        mode: 0o644,
        uid: 0,
        link: Vec::new(),
        mtime: 0,
        device: (0, 0),
        magic: *b"ustar\x0000",
    }
}

impl Header {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut block = vec![0; 512];
        let name = &self.name[..self.name.len().min(100)];
        let link = &self.link[..self.link.len().min(100)];
        block[..name.len()].copy_from_slice(name);
        block[157..157 + link.len()].copy_from_slice(link);
        let mut octal = |at: usize, width: usize, value: u64| {
            block[at..at + width - 1]
                .copy_from_slice(format!("{value:0width$o}", width = width - 1).as_bytes());
        };
        octal(100, 8, self.mode.into());
        octal(108, 8, self.uid.into());
        octal(116, 8, 0);
        octal(124, 12, self.size);
        octal(136, 12, self.mtime);
        octal(329, 8, self.device.0.into());
        octal(337, 8, self.device.1.into());
        if let Some(raw) = self.raw_size {
            block[124..136].copy_from_slice(&raw);
        }
        block[156] = self.flag;
        block[257..265].copy_from_slice(&self.magic);
        block[265..269].copy_from_slice(b"root");
        with_checksum(block)
    }
}

pub(crate) fn with_checksum(mut block: Vec<u8>) -> Vec<u8> {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

pub(crate) fn padded(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

pub(crate) fn file(name: impl AsRef<[u8]>, content: &[u8]) -> Vec<u8> {
    let header = Header { size: content.len() as u64, ..header(name, b'0') };
    [header.bytes(), padded(content)].concat()
}

pub(crate) fn dir(name: impl AsRef<[u8]>) -> Vec<u8> {
    dir_mode(name, 0o755)
}

pub(crate) fn dir_mode(name: impl AsRef<[u8]>, mode: u32) -> Vec<u8> {
    Header { mode, ..header(name, b'5') }.bytes()
}

pub(crate) fn symlink(name: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Vec<u8> {
    Header { link: target.as_ref().to_vec(), mode: 0o777, ..header(name, b'2') }.bytes()
}

pub(crate) fn hard_link(name: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Vec<u8> {
    Header { link: target.as_ref().to_vec(), ..header(name, b'1') }.bytes()
}

pub(crate) fn device(name: impl AsRef<[u8]>, flag: u8, device: (u32, u32)) -> Vec<u8> {
    Header { device, ..header(name, flag) }.bytes()
}

pub(crate) fn extension(name: &str, flag: u8, magic: [u8; 8], body: &[u8]) -> Vec<u8> {
    let header = Header { size: body.len() as u64, magic, ..header(name, flag) };
    [header.bytes(), padded(body)].concat()
}

pub(crate) fn pax(records: &[(&str, &[u8])]) -> Vec<u8> {
    pax_header(b'x', records)
}

pub(crate) fn pax_header(flag: u8, records: &[(&str, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    for (key, value) in records {
        super::pax::push_record(&mut body, key.as_bytes(), value);
    }
    extension("./PaxHeaders/x", flag, *b"ustar\x0000", &body)
}

pub(crate) fn gnu_long(flag: u8, name: &[u8]) -> Vec<u8> {
    extension("././@LongLink", flag, GNU, name)
}

pub(crate) fn end() -> Vec<u8> {
    vec![0; 1024]
}

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
