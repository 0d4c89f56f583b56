//! What a tree knows about one of its entries, read and written by directory descriptor and name.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Statx, StatxFlags, Timespec, Timestamps, UTIME_OMIT, Uid,
    XattrFlags,
};
use rustix::io::Errno;

/// Who owns a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Owner {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

impl Owner {
    /// 0:0.
    pub const ROOT: Self = Self { uid: 0, gid: 0 };
}

/// Seconds since 1970, before it negative, and nanoseconds that count forward from there (0 to 999 999 999).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Timestamp {
    /// Whole seconds, rounded down.
    pub seconds: i64,
    /// The rest.
    pub nanoseconds: u32,
}

/// What kind of thing a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
    /// A unix socket.
    Socket,
}

impl FileKind {
    /// All of them. Their places are part of what is stored: others go to the end.
    pub const ALL: [Self; 7] = [
        Self::File,
        Self::Directory,
        Self::Symlink,
        Self::Fifo,
        Self::CharDevice,
        Self::BlockDevice,
        Self::Socket,
    ];

    pub(crate) fn of(file_type: FileType) -> Option<Self> {
        Some(match file_type {
            FileType::RegularFile => Self::File,
            FileType::Directory => Self::Directory,
            FileType::Symlink => Self::Symlink,
            FileType::Fifo => Self::Fifo,
            FileType::CharacterDevice => Self::CharDevice,
            FileType::BlockDevice => Self::BlockDevice,
            FileType::Socket => Self::Socket,
            FileType::Unknown => return None,
        })
    }
}

/// Which file a name stands for, as long as the file is there: the number of one that was removed is used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileId {
    /// Major and minor number of the file system.
    device: (u32, u32),
    /// The number of the file in its file system.
    inode: u64,
}

/// The metadata of one entry, without extended attributes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metadata {
    /// What it is.
    pub kind: FileKind,
    /// Permission bits with setuid, setgid and sticky: at most 0o7777.
    pub mode: u32,
    /// Who owns it.
    pub owner: Owner,
    /// Bytes of a file, or of the target of a symbolic link.
    pub size: u64,
    /// When the content changed.
    pub mtime: Timestamp,
    /// When anything changed; cannot be set.
    pub ctime: Timestamp,
    /// Which device a device node stands for, as a Linux `dev_t`.
    pub rdev: u64,
    /// Major and minor number of the file system.
    pub device: (u32, u32),
    /// The number of the file in its file system.
    pub inode: u64,
    /// How many names the file has.
    pub links: u32,
    /// Whether this is a device that the disk holds no more than a place for: an empty file.
    pub placeholder: bool,
}

impl Metadata {
    fn new(stat: &Statx) -> io::Result<Self> {
        let mode = u32::from(stat.stx_mode);
        let kind = FileKind::of(FileType::from_raw_mode(mode)).ok_or(Errno::INVAL)?;
        Ok(Self {
            kind,
            mode: mode & 0o7777,
            owner: Owner { uid: stat.stx_uid, gid: stat.stx_gid },
            size: stat.stx_size,
            mtime: Timestamp { seconds: stat.stx_mtime.tv_sec, nanoseconds: stat.stx_mtime.tv_nsec },
            ctime: Timestamp { seconds: stat.stx_ctime.tv_sec, nanoseconds: stat.stx_ctime.tv_nsec },
            rdev: rustix::fs::makedev(stat.stx_rdev_major, stat.stx_rdev_minor),
            device: (stat.stx_dev_major, stat.stx_dev_minor),
            inode: stat.stx_ino,
            links: stat.stx_nlink,
            placeholder: false,
        })
    }

    /// Whether this is how overlayfs stores a removed name: a character device 0:0.
    #[must_use]
    pub fn is_overlay_whiteout(&self) -> bool {
        self.kind == FileKind::CharDevice && self.rdev == 0 && !self.placeholder
    }

    /// Which file it is of.
    #[must_use]
    pub fn file(&self) -> FileId {
        FileId { device: self.device, inode: self.inode }
    }

    /// Whether `other` is of the same file.
    #[must_use]
    pub fn same_file(&self, other: &Self) -> bool {
        self.file() == other.file()
    }
}

/// Whose an extended attribute is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attribute {
    /// The file's: it is part of an image.
    Image,
    /// Overlayfs keeps it for itself, under either of its prefixes.
    Overlay,
    /// The machine's or the file system's: labels and signatures of security modules, compression, other access control
    /// lists than those of POSIX.
    Machine,
}

impl Attribute {
    /// That of the attribute named `key`.
    #[must_use]
    pub fn of(key: &[u8]) -> Self {
        let begins = |prefixes: &[&[u8]]| prefixes.iter().any(|prefix| key.starts_with(prefix));
        if begins(&[b"trusted.overlay.", b"user.overlay."]) {
            Self::Overlay
        } else if begins(&[b"user.", b"trusted.", b"system.posix_acl_"]) || key == b"security.capability" {
            Self::Image
        } else {
            Self::Machine
        }
    }
}

/// Extended attributes, values by name.
pub type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// The metadata behind a descriptor of any kind, `O_PATH` included.
///
/// # Errors
/// Those of statx(2).
pub fn metadata_of(fd: impl AsFd) -> io::Result<Metadata> {
    Metadata::new(&rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?)
}

/// The metadata of the entry `name` of `directory`; a symbolic link is not followed. `.` is the directory itself.
///
/// # Errors
/// Those of statx(2).
pub fn metadata_at(directory: BorrowedFd<'_>, name: &[u8]) -> io::Result<Metadata> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    Metadata::new(&rustix::fs::statx(directory, name, flags, StatxFlags::BASIC_STATS)?)
}

/// When the entry `name` of `directory` was made, which cannot be set; none where the file system does not say.
///
/// # Errors
/// Those of statx(2).
pub fn birth_at(directory: BorrowedFd<'_>, name: &[u8]) -> io::Result<Option<Timestamp>> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let stat = rustix::fs::statx(directory, name, flags, StatxFlags::BTIME)?;
    let time = Timestamp { seconds: stat.stx_btime.tv_sec, nanoseconds: stat.stx_btime.tv_nsec };
    Ok((stat.stx_mask & StatxFlags::BTIME.bits() != 0).then_some(time))
}

/// The name under which system calls that take no descriptor reach an entry. The kernel follows the descriptor, never
/// the entry.
fn proc_path(directory: BorrowedFd<'_>, name: &[u8]) -> Vec<u8> {
    let mut path = format!("/proc/self/fd/{}/", directory.as_raw_fd()).into_bytes();
    path.extend_from_slice(name);
    path
}

/// All extended attributes that this process may see of the entry `name` of `directory`, which is not followed.
/// File systems without extended attributes have none.
///
/// # Errors
/// Those of llistxattr(2) and lgetxattr(2); without /proc every entry fails.
pub fn xattrs_at(directory: BorrowedFd<'_>, name: &[u8]) -> io::Result<Xattrs> {
    let path = proc_path(directory, name);
    read_xattrs(
        |buffer| rustix::fs::llistxattr(path.as_slice(), buffer),
        |key, buffer| rustix::fs::lgetxattr(path.as_slice(), key, buffer),
    )
}

/// All extended attributes of an open file or directory (not `O_PATH`) that this process may see.
///
/// # Errors
/// Those of flistxattr(2) and fgetxattr(2).
pub fn xattrs_of(fd: impl AsFd) -> io::Result<Xattrs> {
    read_xattrs(
        |buffer| rustix::fs::flistxattr(&fd, buffer),
        |key, buffer| rustix::fs::fgetxattr(&fd, key, buffer),
    )
}

fn read_xattrs(
    mut list: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>,
    mut get: impl FnMut(&[u8], &mut [u8]) -> rustix::io::Result<usize>,
) -> io::Result<Xattrs> {
    let mut xattrs = Xattrs::new();
    let mut names = vec![0; 1024];
    let names = match read_growing(&mut names, &mut list) {
        Ok(length) => &names[..length],
        Err(Errno::OPNOTSUPP) => return Ok(xattrs),
        Err(error) => return Err(error.into()),
    };
    let mut value = Vec::new();
    for key in names.split(|byte| *byte == 0).filter(|key| !key.is_empty()) {
        value.resize(256, 0);
        match read_growing(&mut value, |buffer| get(key, buffer)) {
            Ok(length) => drop(xattrs.insert(key.to_vec(), value[..length].to_vec())),
            // It went away in between.
            Err(Errno::NODATA) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(xattrs)
}

/// One extended attribute of the entry `name` of `directory`, which is not followed.
///
/// # Errors
/// Those of lgetxattr(2).
pub fn xattr_at(directory: BorrowedFd<'_>, name: &[u8], key: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let path = proc_path(directory, name);
    let mut value = vec![0; 256];
    match read_growing(&mut value, |buffer| rustix::fs::lgetxattr(path.as_slice(), key, buffer)) {
        Ok(length) => {
            value.truncate(length);
            Ok(Some(value))
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn read_growing(
    buffer: &mut Vec<u8>,
    mut read: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>,
) -> rustix::io::Result<usize> {
    loop {
        match read(buffer) {
            // Linux caps both lists and values at 64 KiB.
            Err(Errno::RANGE) if buffer.len() < 1 << 17 => buffer.resize(buffer.len() * 4, 0),
            result => return result,
        }
    }
}

/// Sets one extended attribute of the entry `name` of `directory`, which is not followed.
///
/// # Errors
/// Those of lsetxattr(2).
pub fn set_xattr_at(directory: BorrowedFd<'_>, name: &[u8], key: &[u8], value: &[u8]) -> io::Result<()> {
    Ok(rustix::fs::lsetxattr(proc_path(directory, name).as_slice(), key, value, XattrFlags::empty())?)
}

/// Removes one extended attribute of the entry `name` of `directory`, which is not followed.
///
/// # Errors
/// Those of lremovexattr(2).
pub fn remove_xattr_at(directory: BorrowedFd<'_>, name: &[u8], key: &[u8]) -> io::Result<()> {
    Ok(rustix::fs::lremovexattr(proc_path(directory, name).as_slice(), key)?)
}

/// Sets owner and group of the entry `name` of `directory`, which is not followed. The kernel clears setuid and setgid
/// bits and `security.capability`: mode and attributes come after.
///
/// # Errors
/// Those of fchownat(2).
pub fn set_owner_at(directory: BorrowedFd<'_>, name: &[u8], owner: Owner) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
    Ok(rustix::fs::chownat(directory, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Sets the permission bits (0 to 0o7777) of the entry `name` of `directory`, which must not be a symbolic link.
///
/// # Errors
/// Those of openat(2) and chmod(2).
pub fn set_mode_at(directory: BorrowedFd<'_>, name: &[u8], mode: u32) -> io::Result<()> {
    // fchmodat(2) ignores AT_SYMLINK_NOFOLLOW before Linux 6.6, and fchmod(2) takes no O_PATH descriptor, while an
    // ordinary open of a FIFO or device has side effects. A link's own descriptor makes chmod(2) fail.
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let entry = rustix::fs::openat(directory, name, flags, Mode::empty())?;
    Ok(set_mode_of(&entry, mode)?)
}

fn set_mode_of(entry: &OwnedFd, mode: u32) -> rustix::io::Result<()> {
    rustix::fs::chmod(format!("/proc/self/fd/{}", entry.as_raw_fd()), Mode::from_raw_mode(mode))
}

/// Sets access and modification time of the entry `name` of `directory`, which is not followed.
///
/// # Errors
/// Those of utimensat(2).
pub fn set_times_at(directory: BorrowedFd<'_>, name: &[u8], mtime: Timestamp) -> io::Result<()> {
    let time = Timespec { tv_sec: mtime.seconds, tv_nsec: mtime.nanoseconds.into() };
    let times = Timestamps { last_access: time, last_modification: time };
    Ok(rustix::fs::utimensat(directory, name, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Does something in `directory` that leaves its modification time as it was.
///
/// # Errors
/// Those of fstat(2), utimensat(2) and of `change`.
pub fn keeping_mtime<T>(directory: impl AsFd, change: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let before = metadata_of(&directory)?.mtime;
    let result = change();
    if metadata_of(&directory)?.mtime != before {
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: before.seconds, tv_nsec: before.nanoseconds.into() },
        };
        rustix::fs::utimensat(&directory, ".", &times, AtFlags::empty())?;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_the_images_overlayfs_or_the_machines() {
        for (whose, keys) in [
            (
                Attribute::Image,
                "user.a trusted.md5 security.capability system.posix_acl_default user.overlayed",
            ),
            (Attribute::Overlay, "trusted.overlay.opaque user.overlay.overlay.opaque"),
            (
                Attribute::Machine,
                "security.ima security.selinux system.nfs4_acl btrfs.compression user trusted",
            ),
        ] {
            for key in keys.split(' ') {
                assert_eq!(Attribute::of(key.as_bytes()), whose, "{key}");
            }
        }
    }
}
