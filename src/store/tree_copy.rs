//! Copying a tree: everything in it, and no file shared with the original.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::holes::next_data;
use super::mount::copy_metadata;
use super::tree::TreeError;
use crate::layer::changes::of_image;
use crate::rootfs::visit::{Names, open_exact, visit};
use crate::rootfs::{
    FileKind, GuestPath, Metadata, Rootfs, metadata_at, metadata_of, set_mode_at, set_owner_at, set_times_at,
    set_xattr_at, xattrs_at,
};

/// Copies all of `from` into the empty directory `to`: kinds, content with its holes, owners, modes, attributes,
/// modification times, and which names are one file.
///
/// # Errors
/// [`TreeError::Copy`].
pub(super) fn copy(from: &Rootfs, to: &Rootfs, jobs: usize) -> Result<(), TreeError> {
    let copier = Copier {
        from,
        to,
        linked: Mutex::default(),
        can_clone: AtomicBool::new(true),
        can_copy_ranges: AtomicBool::new(true),
    };
    let workers = (0..jobs.max(1)).map(|_| Worker::default()).collect();
    let workers =
        visit(GuestPath::root(), workers, |worker, path, below| copier.directory(worker, &path, below))?;
    // Only now every file is there that a name may stand for.
    let mut links: Vec<(GuestPath, u64)> = workers.into_iter().flat_map(|worker| worker.links).collect();
    links.sort_unstable();
    for (path, inode) in links {
        copier.link(&path, inode).map_err(at(&path))?;
    }
    Ok(())
}

fn at(path: &GuestPath) -> impl FnOnce(io::Error) -> TreeError {
    let path = path.clone();
    move |cause| TreeError::Copy { path, cause }
}

struct Copier<'a> {
    from: &'a Rootfs,
    to: &'a Rootfs,
    /// Files with several names: the one that is copied.
    linked: Mutex<BTreeMap<u64, GuestPath>>,
    /// Whether the file system shares blocks between files (ioctl_ficlone(2)), as btrfs and xfs do.
    can_clone: AtomicBool,
    /// Whether it copies inside the kernel (copy_file_range(2)).
    can_copy_ranges: AtomicBool,
}

#[derive(Default)]
struct Worker {
    /// Names of files that are there under another.
    links: Vec<(GuestPath, u64)>,
    buffer: Vec<u8>,
}

/// One entry here and there.
struct Entry<'a> {
    from: &'a OwnedFd,
    to: &'a OwnedFd,
    name: &'a [u8],
    metadata: &'a Metadata,
}

impl Copier<'_> {
    fn directory(
        &self,
        worker: &mut Worker,
        path: &GuestPath,
        below: &mut Vec<GuestPath>,
    ) -> Result<(), TreeError> {
        let open = |tree: &Rootfs| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            open_exact(tree.as_fd(), path, flags).map_err(at(path))
        };
        let (from, to) = (open(self.from)?, open(self.to)?);
        for name in Names::in_directory(from.as_fd()).map_err(at(path))?.iter() {
            let child = path.child(name);
            let metadata = metadata_at(from.as_fd(), name).map_err(at(&child))?;
            if metadata.kind == FileKind::Directory {
                let made = rustix::fs::mkdirat(&to, name, Mode::RWXU);
                made.map_err(|error| at(&child)(error.into()))?;
                below.push(child);
                continue;
            }
            if metadata.links > 1 && !self.is_first(metadata.inode, &child) {
                worker.links.push((child, metadata.inode));
                continue;
            }
            let entry = Entry { from: &from, to: &to, name, metadata: &metadata };
            self.entry(worker, &entry).map_err(at(&child))?;
        }
        // Last: making entries changes the times, and a default ACL must not be inherited by them.
        copy_metadata(self.from, self.to, path).map_err(at(path))
    }

    /// Whether `path` is the first name of the file that was come across.
    fn is_first(&self, inode: u64, path: &GuestPath) -> bool {
        let mut linked = self.linked.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = !linked.contains_key(&inode);
        if is_new {
            linked.insert(inode, path.clone());
        }
        is_new
    }

    fn entry(&self, worker: &mut Worker, entry: &Entry<'_>) -> io::Result<()> {
        let Entry { from, to, name, metadata } = *entry;
        let node = |kind, device| rustix::fs::mknodat(to, name, kind, Mode::RUSR | Mode::WUSR, device);
        match metadata.kind {
            FileKind::File => self.file(worker, entry)?,
            FileKind::Symlink => {
                let target = rustix::fs::readlinkat(from, name, Vec::new())?;
                rustix::fs::symlinkat(target, to, name)?;
            }
            FileKind::Fifo => node(FileType::Fifo, 0)?,
            FileKind::Socket => node(FileType::Socket, 0)?,
            FileKind::CharDevice => node(FileType::CharacterDevice, metadata.rdev)?,
            FileKind::BlockDevice => node(FileType::BlockDevice, metadata.rdev)?,
            FileKind::Directory => {}
        }
        // The owner first, as that clears setuid bits and capabilities, the times last.
        set_owner_at(to.as_fd(), name, metadata.owner)?;
        if metadata.kind != FileKind::Symlink {
            set_mode_at(to.as_fd(), name, metadata.mode)?;
        }
        for (key, value) in of_image(&xattrs_at(from.as_fd(), name)?) {
            set_xattr_at(to.as_fd(), name, key, value)?;
        }
        set_times_at(to.as_fd(), name, metadata.mtime)
    }

    fn file(&self, worker: &mut Worker, entry: &Entry<'_>) -> io::Result<()> {
        let Entry { from, to, name, metadata } = *entry;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let new: File = rustix::fs::openat(to, name, flags, Mode::RUSR | Mode::WUSR)?.into();
        if metadata.size == 0 {
            return Ok(());
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let old: File = rustix::fs::openat(from, name, flags, Mode::empty())?.into();
        if self.can_clone.load(Ordering::Relaxed) {
            match rustix::fs::ioctl_ficlone(&new, &old) {
                Ok(()) => return Ok(()),
                // The file system cannot do it at all, or not with such a file.
                Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::NOSYS | Errno::XDEV) => {
                    self.can_clone.store(false, Ordering::Relaxed);
                }
                Err(Errno::INVAL | Errno::PERM | Errno::TXTBSY) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let mut done = 0;
        while let Some((start, end)) = next_data(&old, done)? {
            let end = end.min(metadata.size);
            self.range(worker, (&old, &new), start, end)?;
            done = end;
            if done >= metadata.size {
                return Ok(());
            }
        }
        // What is left is a hole.
        new.set_len(metadata.size)
    }

    fn range(&self, worker: &mut Worker, (old, new): (&File, &File), start: u64, end: u64) -> io::Result<()> {
        let mut position = start;
        while position < end && self.can_copy_ranges.load(Ordering::Relaxed) {
            let (mut from, mut to) = (position, position);
            let length = usize::try_from(end - position).unwrap_or(usize::MAX).min(1 << 30);
            match rustix::fs::copy_file_range(old, Some(&mut from), new, Some(&mut to), length) {
                // The file is shorter than it was, or the file system only claims that it can do this.
                Ok(0) => break,
                Ok(count) => position += count as u64,
                Err(Errno::INTR) => {}
                Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::XDEV | Errno::INVAL | Errno::PERM) => {
                    self.can_copy_ranges.store(false, Ordering::Relaxed);
                }
                Err(error) => return Err(error.into()),
            }
        }
        worker.buffer.resize(1 << 17, 0);
        while position < end {
            let wanted = usize::try_from(end - position).unwrap_or(usize::MAX).min(worker.buffer.len());
            let count = old.read_at(&mut worker.buffer[..wanted], position)?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            new.write_all_at(&worker.buffer[..count], position)?;
            position += count as u64;
        }
        Ok(())
    }

    /// Gives the copy of the file `inode` one more name.
    fn link(&self, path: &GuestPath, inode: u64) -> io::Result<()> {
        let linked = self.linked.lock().unwrap_or_else(PoisonError::into_inner);
        let open = |path: &GuestPath| {
            let directory = path.parent().unwrap_or_else(GuestPath::root);
            open_exact(self.to.as_fd(), &directory, OFlags::PATH | OFlags::DIRECTORY)
        };
        let missing = || io::Error::from(Errno::NOENT);
        let first = linked.get(&inode).ok_or_else(missing)?;
        let (old, new) = (open(first)?, open(path)?);
        let old_name = first.file_name().ok_or_else(missing)?;
        let name = path.file_name().ok_or_else(missing)?;
        let mtime = metadata_of(&new)?.mtime;
        rustix::fs::linkat(&old, old_name, &new, name, AtFlags::empty())?;
        set_times_at(new.as_fd(), b".", mtime)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::unix::fs::MetadataExt;
    use std::path::PathBuf;

    use crate::rootfs::Follow;
    use crate::store::testing::{dump, links, run, settle_times};

    use super::*;

    fn trees(script: &str) -> (tempfile::TempDir, [PathBuf; 2]) {
        let directory = tempfile::tempdir().unwrap();
        let [from, to] = ["from", "to"].map(|name| directory.path().join(name));
        std::fs::create_dir(&from).unwrap();
        std::fs::create_dir(&to).unwrap();
        run(&from, script);
        settle_times(&from);
        (directory, [from, to])
    }

    const TREE: &str = r#"
        mkdir -p a/b/c empty odd lists secret; echo 1 > a/1; echo 2 > a/b/2; : > a/b/c/none
        ln a/1 a/b/c/1; ln a/1 odd/1; ln -s ../nowhere a/l; ln -P a/l a/b/l
        mkfifo a/p; mknod a/n c 1 3; mknod a/d b 7 300; ln a/n a/b/n
        perl -MIO::Socket::UNIX -e 'IO::Socket::UNIX->new(Local => "a/s", Listen => 1)'
        chmod 4755 a/1; chown 5:6 a/b; chown -h 7:8 a/l; chmod 1777 empty; chmod 0 secret
        xattr a/b/2 user.a 1
        xattr a/b user.b 2
        PATH=$PATH:/usr/sbin setcap cap_net_raw+ep a/b/2
        acl lists default 5
        acl a/b/c/none access 6
        echo x > lists/f; mkdir lists/d
        echo > "$(printf 'odd/new\nline')"; echo > "$(printf 'odd/\377')"; echo > odd/$(printf %0255d 0)
        truncate -s 700K a/hole; printf data >> a/hole; truncate -s 900K a/hole; truncate -s 500K a/only-hole"#;

    #[test]
    fn a_copy_is_equal_and_shares_no_file() {
        let (_directory, [from, to]) = trees(TREE);
        for jobs in [1, 3] {
            let (old, new) = (Rootfs::open(&from).unwrap(), Rootfs::open(&to).unwrap());
            copy(&old, &new, jobs).unwrap();
            assert_eq!(dump(&new), dump(&old));
            assert_eq!(links(&new), links(&old));
            let inodes = |path: &PathBuf| {
                let list = std::process::Command::new("find").arg(path).args(["-printf", "%i\n"]).output();
                let text = String::from_utf8(list.unwrap().stdout).unwrap();
                text.lines().map(str::to_owned).collect::<BTreeSet<_>>()
            };
            assert!(inodes(&from).is_disjoint(&inodes(&to)));
            run(&to, "find . -mindepth 1 -delete");
        }
    }

    #[test]
    fn holes_stay_holes_however_files_are_copied() {
        let (_directory, [from, to]) =
            trees("truncate -s 60M f; printf x >> f; truncate -s 90M f; truncate -s 8G g");
        let (old, new) = (Rootfs::open(&from).unwrap(), Rootfs::open(&to).unwrap());
        for (clone, ranges) in [(true, true), (false, true), (false, false)] {
            let copier = Copier {
                from: &old,
                to: &new,
                linked: Mutex::default(),
                can_clone: AtomicBool::new(clone),
                can_copy_ranges: AtomicBool::new(ranges),
            };
            copier.directory(&mut Worker::default(), &GuestPath::root(), &mut Vec::new()).unwrap();
            for name in ["f", "g"] {
                let (old, new) = (from.join(name), to.join(name));
                let (old, new) = (old.metadata().unwrap(), new.metadata().unwrap());
                assert_eq!(old.size(), new.size());
                assert!(new.blocks() <= old.blocks() + 16, "{name}: {} of {}", new.blocks(), old.blocks());
            }
            let mut read = [0; 1];
            File::open(to.join("f")).unwrap().read_exact_at(&mut read, 60 << 20).unwrap();
            assert_eq!(read, *b"x");
            run(&to, "rm f g");
        }
    }

    #[test]
    fn what_cannot_be_copied_is_an_error_with_its_path() {
        let (_directory, [from, to]) = trees("mkdir a; echo > a/f");
        run(&to, "mkdir a; echo > a/f");
        let (old, new) = (Rootfs::open(&from).unwrap(), Rootfs::open(&to).unwrap());
        let error = copy(&old, &new, 1).unwrap_err();
        assert!(matches!(&error, TreeError::Copy { path, .. } if path.to_string() == "/a"), "{error}");
        assert!(new.metadata(&GuestPath::root(), Follow::No).unwrap().is_some());
    }
}
