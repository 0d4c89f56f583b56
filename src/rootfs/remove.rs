//! Removing a tree of any depth with a handful of descriptors.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, IFlags, Mode, OFlags, RawDir, ResolveFlags};
use rustix::io::Errno;

use super::metadata::{FileId, metadata_of};

/// Removes the entry `name` of `parent`, whatever it is, with all that is below it. Nothing there is fine.
///
/// Links are never followed and mount points never crossed. Two descriptors are open at any depth; memory grows by the
/// names of the directories above the current one. Directories without permissions get them, immutable and
/// append-only flags are taken away where the process may do so.
///
/// # Errors
/// The first failure ends the removal; what is left may be removed later.
pub fn remove_tree(parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    match remove_one(parent, name, FileType::Unknown) {
        Err(Errno::NOTEMPTY | Errno::EXIST) => {}
        Err(Errno::NOENT) => return Ok(()),
        result => return Ok(result?),
    }
    let mut descent = Descent { current: enter(parent, name)?, names: Vec::new(), above: Vec::new() };
    loop {
        match remove_entries(descent.current.as_fd())? {
            Some(directory) => descent.down(&directory)?,
            None if descent.above.is_empty() => break,
            None => {
                let name = descent.up()?;
                ignore_missing(remove_one(descent.current.as_fd(), &name, FileType::Directory))?;
            }
        }
    }
    Ok(ignore_missing(remove_one(parent, name, FileType::Directory))?)
}

/// The way from the top of the tree to the directory that is being emptied.
struct Descent {
    current: OwnedFd,
    /// The names of the directories below the top, joined: one allocation at any depth.
    names: Vec<u8>,
    above: Vec<Above>,
}

/// A directory on the way: which file it is, to notice when somebody moved the tree meanwhile.
struct Above {
    file: FileId,
    name_length: usize,
}

impl Descent {
    fn down(&mut self, name: &[u8]) -> io::Result<()> {
        let metadata = metadata_of(&self.current)?;
        let next = enter(self.current.as_fd(), name)?;
        self.names.extend_from_slice(name);
        self.above.push(Above { file: metadata.file(), name_length: name.len() });
        self.current = next;
        Ok(())
    }

    /// Goes to the parent; returns the name of the directory that was left.
    fn up(&mut self) -> io::Result<Vec<u8>> {
        let Some(above) = self.above.pop() else { return Err(Errno::NOENT.into()) };
        let parent = rustix::fs::openat(&self.current, "..", DIRECTORY, Mode::empty())?;
        let metadata = metadata_of(&parent)?;
        if metadata.file() != above.file {
            return Err(io::Error::other("a directory was moved while it was being removed"));
        }
        self.current = parent;
        Ok(self.names.split_off(self.names.len() - above.name_length))
    }
}

pub(crate) const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Removes what can be removed from `directory`; returns the first directory in it that is not empty.
fn remove_entries(directory: BorrowedFd<'_>) -> io::Result<Option<Vec<u8>>> {
    let mut buffer = [MaybeUninit::uninit(); 8192];
    let mut entries = RawDir::new(directory, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        match ignore_missing(remove_one(directory, name, entry.file_type())) {
            Err(Errno::NOTEMPTY | Errno::EXIST) => return Ok(Some(name.to_vec())),
            result => result?,
        }
    }
    Ok(None)
}

fn ignore_missing(result: rustix::io::Result<()>) -> rustix::io::Result<()> {
    match result {
        Err(Errno::NOENT) => Ok(()),
        result => result,
    }
}

/// Removes a file or an empty directory; `NOTEMPTY` or `EXIST` for a full one.
fn remove_one(parent: BorrowedFd<'_>, name: &[u8], expected: FileType) -> rustix::io::Result<()> {
    let once = || {
        if expected != FileType::Directory {
            match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
                Err(Errno::ISDIR) => {}
                result => return result,
            }
        }
        rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)
    };
    match once() {
        Err(Errno::PERM) => {
            release(parent);
            if let Ok(entry) = open_for_flags(parent, name) {
                release(entry.as_fd());
            }
            once()
        }
        Err(Errno::ACCESS) => {
            allow(parent)?;
            once()
        }
        result => result,
    }
}

/// Opens the directory `name` without following a link or crossing a mount.
pub(crate) fn enter(parent: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    match rustix::fs::openat2(parent, name, DIRECTORY, Mode::empty(), resolve) {
        Err(Errno::ACCESS) => {
            let path = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            allow(rustix::fs::openat2(parent, name, path, Mode::empty(), resolve)?.as_fd())?;
            rustix::fs::openat2(parent, name, DIRECTORY, Mode::empty(), resolve)
        }
        result => result,
    }
}

fn allow(directory: BorrowedFd<'_>) -> rustix::io::Result<()> {
    rustix::fs::chmod(format!("/proc/self/fd/{}", directory.as_raw_fd()), Mode::RWXU)
}

/// Only files and directories have flags, and opening them has no side effect.
fn open_for_flags(parent: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<OwnedFd> {
    let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile | FileType::Directory => {
            let flags =
                OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
            rustix::fs::openat(parent, name, flags, Mode::empty())
        }
        _ => Err(Errno::NOTSUP),
    }
}

/// Takes away the flags that forbid removal, as far as possible: the next attempt tells.
fn release(entry: BorrowedFd<'_>) {
    let Ok(flags) = rustix::fs::ioctl_getflags(entry) else { return };
    let forbidding = IFlags::IMMUTABLE | IFlags::APPEND;
    if flags.intersects(forbidding) {
        let _ = rustix::fs::ioctl_setflags(entry, flags.difference(forbidding));
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests prepare trees on the host")]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn open(path: &std::path::Path) -> OwnedFd {
        File::open(path).unwrap().into()
    }

    #[test]
    fn links_are_removed_and_never_followed() {
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("keep"), "x").unwrap();
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path().join("top");
        std::fs::create_dir_all(top.join("a/b/c")).unwrap();
        std::fs::write(top.join("a/b/file"), "x").unwrap();
        symlink(outside.path(), top.join("a/link")).unwrap();
        std::fs::set_permissions(top.join("a/b"), PermissionsExt::from_mode(0o0)).unwrap();
        let parent = open(directory.path());
        remove_tree(parent.as_fd(), b"top").unwrap();
        assert!(!top.exists());
        symlink(outside.path(), &top).unwrap();
        remove_tree(parent.as_fd(), b"top").unwrap();
        remove_tree(parent.as_fd(), b"top").unwrap();
        assert!(outside.path().join("keep").exists());
    }

    #[test]
    fn a_tree_of_a_hundred_thousand_levels_goes() {
        // In memory, where there is such a place: a disk's journal takes minutes.
        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let top = open(directory.path());
        let mut current = top.try_clone().unwrap();
        for level in 0..100_000 {
            rustix::fs::mkdirat(&current, "d", Mode::RWXU).unwrap();
            if level % 1000 == 0 {
                rustix::fs::mkdirat(&current, "e", Mode::RWXU).unwrap();
            }
            current = rustix::fs::openat(&current, "d", DIRECTORY, Mode::empty()).unwrap();
        }
        drop(current);
        remove_tree(top.as_fd(), b"d").unwrap();
        assert!(!directory.path().join("d").exists());
    }

    #[test]
    fn immutable_files_are_released_or_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path().join("top");
        std::fs::create_dir(&top).unwrap();
        let file = File::create(top.join("file")).unwrap();
        if rustix::fs::ioctl_setflags(&file, IFlags::IMMUTABLE).is_err() {
            eprintln!("skipped: this file system or user cannot set the immutable flag");
            return;
        }
        let _ = rustix::fs::ioctl_setflags(open(&top), IFlags::APPEND);
        remove_tree(open(directory.path()).as_fd(), b"top").unwrap();
        assert!(!top.exists());
    }
}
