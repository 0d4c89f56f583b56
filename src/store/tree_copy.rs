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
use super::mount::copy_disk_metadata;
use super::tree::TreeError;
use crate::layer::changes::of_image;
use crate::rootfs::visit::{Names, open_exact, visit};
use crate::rootfs::{
    FileKind, GuestPath, Metadata, Rootfs, metadata_at, metadata_of, set_mode_at, set_owner_at, set_times_at,
    set_xattr_at, xattrs_at,
};

/// Copies all of `from` into the empty directory `to`: kinds, content with its holes, owners, modes, attributes,
/// modification times, and which names are one file. `cancelled` is asked often, from several threads, whether to stop.
///
/// # Errors
/// [`TreeError::Copy`].
pub(super) fn copy(
    from: &Rootfs,
    to: &Rootfs,
    jobs: usize,
    cancelled: &(dyn Fn() -> bool + Sync),
) -> Result<(), TreeError> {
    let copier = Copier {
        from,
        to,
        cancelled,
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
    cancelled: &'a (dyn Fn() -> bool + Sync),
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
            self.go_on().map_err(at(&child))?;
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
        copy_disk_metadata(from.as_fd(), to.as_fd()).map_err(at(path))
    }

    fn go_on(&self) -> io::Result<()> {
        if (self.cancelled)() { Err(io::Error::other("copying was stopped")) } else { Ok(()) }
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
            self.go_on()?;
            let length = usize::try_from(end - position).unwrap_or(usize::MAX).min(1 << 28);
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
            self.go_on()?;
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
    use std::path::Path;

    use super::*;
    use crate::store::testing::{dump, links, run};

    fn copy_all(from: &Path, to: &Path, cancelled: &(dyn Fn() -> bool + Sync)) -> Result<(), TreeError> {
        copy(&Rootfs::open(from).unwrap(), &Rootfs::open(to).unwrap(), 3, cancelled)
    }

    #[test]
    fn a_copy_has_everything() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: needs root, to set owners and make devices");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let [from, to] = ["from", "to"].map(|name| directory.path().join(name));
        std::fs::create_dir(&to).unwrap();
        run(
            directory.path(),
            "mkdir -p from/a/b/c from/locked from/e
             printf x > from/a/one; ln from/a/one from/e/two; ln from/a/one from/a/b/three
             printf y > from/su; chown 5:6 from/su; chmod 6755 from/su
             ln -s ../.. from/a/link; chown -h 7:8 from/a/link; ln from/a/link from/linked
             mkfifo -m 620 from/fifo
             truncate -s 300000 from/a/b/hole; printf z >> from/a/b/hole
             touch from/locked/inside; chmod 0 from/locked; chown 9:9 from/locked
             printf n > \"$(printf 'from/a/odd\\n\\377')\"",
        );
        if rustix::fs::setxattr(from.join("a"), "user.kept", b"v", rustix::fs::XattrFlags::empty()).is_ok() {
            run(directory.path(), "xattr from/a/one trusted.overlay.dropped v\nxattr from/a/b user.kept w");
        }
        if std::process::Command::new("mknod")
            .arg(from.join("null"))
            .args(["c", "1", "3"])
            .status()
            .unwrap()
            .success()
        {
            run(directory.path(), "chmod 640 from/null");
        }
        run(directory.path(), "find from -depth -exec touch -h -d @1000.5 {} +");
        copy_all(&from, &to, &|| false).unwrap();
        let trees = [&from, &to].map(|path| Rootfs::open(path).unwrap());
        let expected = dump(&trees[0]).replace(" trusted.overlay.dropped=v", "");
        assert_eq!(dump(&trees[1]), expected);
        assert_eq!(links(&trees[1]), links(&trees[0]));
        assert_eq!(links(&trees[1]).len(), 2);
    }

    #[test]
    fn a_copy_ends_when_told() {
        let directory = tempfile::tempdir().unwrap();
        let [from, to] = ["from", "to"].map(|name| directory.path().join(name));
        run(directory.path(), "mkdir from to; printf x > from/a");
        assert!(matches!(copy_all(&from, &to, &|| true), Err(TreeError::Copy { .. })));
    }

    #[test]
    fn deep_trees_need_few_descriptors() {
        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let [from, to] = ["from", "to"].map(|name| directory.path().join(name));
        for path in [&from, &to] {
            std::fs::create_dir(path).unwrap();
        }
        let root = Rootfs::open(&from).unwrap();
        let owner = metadata_of(&root).unwrap().owner;
        let deep = GuestPath::clamp("d/".repeat(2000).as_bytes()).unwrap();
        root.create_dirs(&deep, 0o755, owner).unwrap();
        std::fs::write(from.join("d/d/d/file"), "x").unwrap();
        let before = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let few = rustix::process::Rlimit { current: Some(128), ..before };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, few).unwrap();
        let result = copy_all(&from, &to, &|| false);
        rustix::process::setrlimit(rustix::process::Resource::Nofile, before).unwrap();
        result.unwrap();
        let copied = Rootfs::open(&to).unwrap();
        assert!(copied.exact_metadata(&deep).unwrap().is_some());
        assert_eq!(std::fs::read(to.join("d/d/d/file")).unwrap(), b"x");
        let parent = Rootfs::open(directory.path()).unwrap();
        for name in [&b"from"[..], b"to"] {
            crate::rootfs::remove_tree(parent.as_fd(), name).unwrap();
        }
    }
}
