//! Copying a whole tree into an empty one, no file of which is shared with the original.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::content::{ContentWriter, InKernel, copy_in_kernel, next_data};
use super::metadata::{
    Attribute, FileId, FileKind, Metadata, Xattrs, keeping_mtime, metadata_at, metadata_of, set_mode_at,
    set_owner_at, set_times_at, set_xattr_at, xattrs_at, xattrs_of,
};
use super::visit::{Names, open_exact, visit};
use super::{GuestPath, Rootfs};
use crate::limit::Limit;

/// Why a tree could not be copied.
#[derive(Debug, thiserror::Error)]
pub enum CopyTreeError {
    /// An entry cannot be read, or not be made.
    #[error("cannot {action} `{path}`")]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which entry.
        path: GuestPath,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// More files of several names than can be remembered.
    #[error("the names of hard links take more than {value} bytes; {0}", value = .0.value)]
    Links(Limit),
    /// The copy was stopped.
    #[error("copying was stopped")]
    Cancelled,
}

/// How a tree is copied. Of extended attributes it has those that are part of an image.
pub struct TreeCopy<'a> {
    /// The most bytes of names that are remembered, of files with several names.
    pub names: Limit,
    /// Says whether to stop; asked often, from several threads.
    pub cancelled: &'a (dyn Fn() -> bool + Sync),
    /// How many threads there are; at least one is.
    pub jobs: usize,
}

struct Copier<'a> {
    rules: &'a TreeCopy<'a>,
    from: &'a Rootfs,
    to: &'a Rootfs,
    names: Mutex<LinkNames>,
    content: ContentCopy<'a>,
}

/// How the content of files gets from one to the other.
pub(super) struct ContentCopy<'a> {
    cancelled: &'a (dyn Fn() -> bool + Sync),
    /// Whether the file system shares blocks between files (ioctl_ficlone(2)), as btrfs and xfs do.
    can_clone: AtomicBool,
    /// Whether it copies inside the kernel (copy_file_range(2)).
    can_copy_ranges: AtomicBool,
}

/// Files with several names: by file system and number, the name that is copied.
#[derive(Default)]
struct LinkNames {
    first: BTreeMap<FileId, GuestPath>,
    /// Bytes.
    remembered: u64,
}

#[derive(Default)]
struct Worker {
    /// Names of files that are there under another.
    links: Vec<(GuestPath, FileId)>,
    buffer: Vec<u8>,
}

/// One entry here and there.
struct Place<'a> {
    from: &'a OwnedFd,
    to: &'a OwnedFd,
    name: &'a [u8],
    metadata: &'a Metadata,
}

impl TreeCopy<'_> {
    /// Copies everything that is in `from`, its root's metadata included, into the empty tree `to`, as the disk shows it.
    /// The process must be allowed to work in directories whatever their mode. Nobody else may change either tree
    /// meanwhile.
    ///
    /// Memory grows by the names of the directories beside the way down and of files of several names.
    ///
    /// # Errors
    /// [`CopyTreeError`]; `to` then holds a part.
    pub fn copy(&self, from: &Rootfs, to: &Rootfs) -> Result<(), CopyTreeError> {
        self.copy_by(&Copier {
            rules: self,
            from,
            to,
            names: Mutex::default(),
            content: ContentCopy::new(self.cancelled),
        })
    }

    /// Makes the entry `name` of `directory`, where there is none yet, a copy of what is open as `original` (`O_PATH`
    /// will do): anything but a directory or a symbolic link.
    ///
    /// # Errors
    /// Those of reading and writing, and `ECANCELED` when the copy was stopped; the entry may be there then.
    pub fn copy_entry(
        &self,
        original: BorrowedFd<'_>,
        directory: BorrowedFd<'_>,
        name: &[u8],
    ) -> io::Result<()> {
        let metadata = metadata_of(original)?;
        if metadata.kind != FileKind::File {
            make_node(directory, name, &metadata)?;
            return give(directory, name, &metadata, &Xattrs::new());
        }
        // The kernel follows the descriptor: no name is looked up.
        let path = format!("/proc/self/fd/{}", original.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let old: File = rustix::fs::open(path, flags, Mode::empty())?.into();
        let new = make_file(directory, name)?;
        let content = ContentCopy::new(self.cancelled);
        match content.copy(&mut Vec::new(), &old, new, metadata.size)? {
            Made::Whole => give(directory, name, &metadata, &xattrs_of(&old)?),
            Made::Stopped => Err(Errno::CANCELED.into()),
        }
    }

    fn copy_by(&self, copier: &Copier<'_>) -> Result<(), CopyTreeError> {
        let workers = (0..self.jobs.max(1)).map(|_| Worker::default()).collect();
        let directory =
            |worker: &mut Worker, path, below: &mut Vec<_>| copier.directory(worker, &path, below);
        let workers = visit(GuestPath::root(), workers, directory)?;
        // Only now every file is there that a name may stand for.
        let mut links: Vec<(GuestPath, FileId)> =
            workers.into_iter().flat_map(|worker| worker.links).collect();
        links.sort_unstable();
        links.iter().try_for_each(|(path, file)| copier.link(path, file).map_err(failed("link", path)))
    }
}

fn failed<E: Into<io::Error>>(action: &'static str, path: &GuestPath) -> impl FnOnce(E) -> CopyTreeError {
    move |error| CopyTreeError::Io { action, path: path.clone(), source: error.into() }
}

impl Copier<'_> {
    /// Copies the directory `path`, which exists in both trees, with all that is in it but the content of directories.
    fn directory(
        &self,
        worker: &mut Worker,
        path: &GuestPath,
        below: &mut Vec<GuestPath>,
    ) -> Result<(), CopyTreeError> {
        let open = |tree: &Rootfs| {
            open_exact(tree.as_fd(), path, OFlags::RDONLY | OFlags::DIRECTORY).map_err(failed("open", path))
        };
        let (from, to) = (open(self.from)?, open(self.to)?);
        for name in Names::in_directory(from.as_fd()).map_err(failed("list", path))?.iter() {
            if (self.rules.cancelled)() {
                return Err(CopyTreeError::Cancelled);
            }
            let child = path.child(name);
            let metadata = metadata_at(from.as_fd(), name).map_err(failed("read metadata of", &child))?;
            if metadata.kind == FileKind::Directory {
                rustix::fs::mkdirat(&to, name, Mode::RWXU).map_err(failed("make", &child))?;
                below.push(child);
                continue;
            }
            let file = metadata.file();
            if metadata.links > 1 && !self.is_first_name(file, &child)? {
                worker.links.push((child, file));
                continue;
            }
            let place = Place { from: &from, to: &to, name, metadata: &metadata };
            match self.make(worker, &place) {
                Ok(Made::Stopped) => return Err(CopyTreeError::Cancelled),
                result => result.map_err(failed("copy", &child))?,
            };
            self.metadata(&place).map_err(failed("set metadata of", &child))?;
        }
        // Last: making entries changes the times, and a default ACL must not be inherited by them.
        let metadata = metadata_of(&from).map_err(failed("read metadata of", path))?;
        let place = Place { from: &from, to: &to, name: b".", metadata: &metadata };
        self.metadata(&place).map_err(failed("set metadata of", path))
    }

    fn names(&self) -> MutexGuard<'_, LinkNames> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a file with several names is met for the first time.
    fn is_first_name(&self, file: FileId, path: &GuestPath) -> Result<bool, CopyTreeError> {
        let mut names = self.names();
        let is_new = !names.first.contains_key(&file);
        if is_new {
            names.first.insert(file, path.clone());
        }
        // What a path costs besides its bytes.
        names.remembered += path.as_bytes().len() as u64 + 64;
        if self.rules.names.is_exceeded_by(names.remembered) {
            return Err(CopyTreeError::Links(self.rules.names));
        }
        Ok(is_new)
    }

    fn make(&self, worker: &mut Worker, place: &Place<'_>) -> io::Result<Made> {
        let Place { from, to, name, metadata } = *place;
        match metadata.kind {
            FileKind::File => return self.file(worker, place),
            FileKind::Symlink => {
                let target = rustix::fs::readlinkat(from, name, Vec::new())?;
                rustix::fs::symlinkat(target, to, name)?;
            }
            _ => make_node(to.as_fd(), name, metadata)?,
        }
        Ok(Made::Whole)
    }

    fn metadata(&self, place: &Place<'_>) -> io::Result<()> {
        let Place { from, to, name, metadata } = *place;
        give(to.as_fd(), name, metadata, &xattrs_at(from.as_fd(), name)?)
    }

    fn file(&self, worker: &mut Worker, place: &Place<'_>) -> io::Result<Made> {
        let Place { from, to, name, metadata } = *place;
        let new = make_file(to.as_fd(), name)?;
        if metadata.size == 0 {
            return Ok(Made::Whole);
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let old: File = rustix::fs::openat(from, name, flags, Mode::empty())?.into();
        self.content.copy(&mut worker.buffer, &old, new, metadata.size)
    }

    /// Gives the copy of a file one more name.
    fn link(&self, path: &GuestPath, file: &FileId) -> io::Result<()> {
        let names = self.names();
        let open = |path: &GuestPath| {
            let directory = path.parent().unwrap_or_else(GuestPath::root);
            open_exact(self.to.as_fd(), &directory, OFlags::PATH | OFlags::DIRECTORY)
        };
        let missing = || io::Error::from(Errno::NOENT);
        let first = names.first.get(file).ok_or_else(missing)?;
        let (old, new) = (open(first)?, open(path)?);
        let old_name = first.file_name().ok_or_else(missing)?;
        let name = path.file_name().ok_or_else(missing)?;
        keeping_mtime(&new, || Ok(rustix::fs::linkat(&old, old_name, &new, name, AtFlags::empty())?))
    }
}

impl<'a> ContentCopy<'a> {
    pub(super) fn new(cancelled: &'a (dyn Fn() -> bool + Sync)) -> Self {
        Self { cancelled, can_clone: AtomicBool::new(true), can_copy_ranges: AtomicBool::new(true) }
    }

    /// Fills the empty file `new` with what is in `old`, which has `size` bytes.
    pub(super) fn copy(&self, buffer: &mut Vec<u8>, old: &File, new: File, size: u64) -> io::Result<Made> {
        if self.can_clone.load(Ordering::Relaxed) {
            match rustix::fs::ioctl_ficlone(&new, old) {
                Ok(()) => return Ok(Made::Whole),
                // The file system cannot do it at all, or the trees are on different ones.
                Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::NOSYS | Errno::XDEV) => {
                    self.can_clone.store(false, Ordering::Relaxed);
                }
                // Not with this file.
                Err(_) => {}
            }
        }
        self.ranges(buffer, old, new, size)
    }

    /// Copies what of a file is no hole.
    fn ranges(&self, buffer: &mut Vec<u8>, old: &File, new: File, size: u64) -> io::Result<Made> {
        let (mut done, mut end) = (0, 0);
        let mut in_kernel = self.can_copy_ranges.load(Ordering::Relaxed);
        loop {
            if done == end {
                let Some(next) = next_data(old, end, size)? else { break };
                (done, end) = next;
            }
            if (self.cancelled)() {
                return Ok(Made::Stopped);
            }
            if !in_kernel {
                return self.rest(buffer, old, new, size, (done, end));
            }
            // In pieces after which somebody may want to stop.
            match copy_in_kernel(old, &new, done, (end - done).min(1 << 26))? {
                InKernel::Copied(count) => done += count,
                InKernel::NotThis => in_kernel = false,
                InKernel::NotHere => {
                    in_kernel = false;
                    self.can_copy_ranges.store(false, Ordering::Relaxed);
                }
            }
        }
        // What is left is a hole.
        new.set_len(size)?;
        Ok(Made::Whole)
    }

    /// Copies a file from `start` on by reading it, `end` being where the next hole is.
    fn rest(
        &self,
        buffer: &mut Vec<u8>,
        old: &File,
        new: File,
        size: u64,
        (mut start, mut end): (u64, u64),
    ) -> io::Result<Made> {
        buffer.resize(1 << 17, 0);
        let mut copy = ContentWriter::at(new.into(), start)?;
        loop {
            while start < end {
                let wanted = usize::try_from(end - start).unwrap_or(usize::MAX).min(buffer.len());
                let count = old.read_at(&mut buffer[..wanted], start)?;
                if count == 0 {
                    // It became shorter.
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                if (self.cancelled)() {
                    return Ok(Made::Stopped);
                }
                copy.write(&buffer[..count])?;
                start += count as u64;
            }
            let Some(next) = next_data(old, start, size)? else { break };
            copy.skip(next.0 - start);
            (start, end) = next;
        }
        copy.skip(size.saturating_sub(start));
        copy.finish().map(|_| Made::Whole)
    }
}

/// Makes a named pipe, device or socket.
fn make_node(directory: BorrowedFd<'_>, name: &[u8], metadata: &Metadata) -> io::Result<()> {
    let file_type = match metadata.kind {
        FileKind::Fifo => FileType::Fifo,
        FileKind::CharDevice => FileType::CharacterDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::Socket => FileType::Socket,
        FileKind::Directory => return Err(Errno::ISDIR.into()),
        FileKind::File | FileKind::Symlink => return Err(Errno::INVAL.into()),
    };
    Ok(rustix::fs::mknodat(directory, name, file_type, Mode::RUSR | Mode::WUSR, metadata.rdev)?)
}

pub(super) fn make_file(directory: BorrowedFd<'_>, name: &[u8]) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(directory, name, flags, Mode::RUSR | Mode::WUSR)?.into())
}

/// Gives an entry its metadata. Owner first, as that clears set-ID bits and capabilities; times last.
fn give(directory: BorrowedFd<'_>, name: &[u8], metadata: &Metadata, xattrs: &Xattrs) -> io::Result<()> {
    set_owner_at(directory, name, metadata.owner)?;
    for (key, value) in xattrs.iter().filter(|(key, _)| Attribute::of(key) == Attribute::Image) {
        set_xattr_at(directory, name, key, value)?;
    }
    if metadata.kind != FileKind::Symlink {
        set_mode_at(directory, name, metadata.mode)?;
    }
    set_times_at(directory, name, metadata.mtime)
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Made {
    Whole,
    Stopped,
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::Follow;
    use super::*;
    use crate::store::testing::{dump, links, run};

    fn copy(
        from: &Path,
        to: &Path,
        names: u64,
        cancelled: &(dyn Fn() -> bool + Sync),
    ) -> Result<(), CopyTreeError> {
        let names = Limit::new("names", names);
        TreeCopy { names, cancelled, jobs: 2 }.copy(&Rootfs::open(from).unwrap(), &Rootfs::open(to).unwrap())
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
        let dropped = "security.dropped";
        if rustix::fs::setxattr(from.join("a/one"), dropped, b"v", rustix::fs::XattrFlags::empty()).is_ok() {
            run(directory.path(), "xattr from/a user.kept v\nxattr from/a/b user.kept w");
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
        copy(&from, &to, 1 << 20, &|| false).unwrap();
        let trees = [&from, &to].map(|path| Rootfs::open(path).unwrap());
        let expected = dump(&trees[0]).replace(" security.dropped=v", "");
        assert_eq!(dump(&trees[1]), expected);
        assert_eq!(links(&trees[1]), links(&trees[0]));
        assert_eq!(links(&trees[1]).len(), 2);
    }

    #[test]
    fn lists_capabilities_and_sockets_are_copied_and_no_file_is_shared() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: needs root, to set capabilities");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let [from, to] = ["from", "to"].map(|name| directory.path().join(name));
        std::fs::create_dir(&to).unwrap();
        run(
            directory.path(),
            "mkdir -p from/lists from/d; echo x > from/d/can; ln from/d/can from/d/can-too; echo x > from/d/list
             PATH=$PATH:/usr/sbin setcap cap_net_raw+ep from/d/can
             acl from/lists default 5
             acl from/d/list access 6
             echo x > from/lists/f; mkdir from/lists/d
             perl -MIO::Socket::UNIX -e 'IO::Socket::UNIX->new(Local => \"from/s\", Listen => 1)'
             find from -depth -exec touch -h -d @1000.5 {} +",
        );
        for jobs in [1, 3] {
            let trees = [&from, &to].map(|path| Rootfs::open(path).unwrap());
            let names = Limit::new("names", 1 << 20);
            TreeCopy { names, cancelled: &|| false, jobs }.copy(&trees[0], &trees[1]).unwrap();
            assert_eq!(dump(&trees[1]), dump(&trees[0]));
            let inodes = |path: &Path| {
                let list = std::process::Command::new("find").arg(path).args(["-printf", "%i\n"]).output();
                let text = String::from_utf8(list.unwrap().stdout).unwrap();
                text.lines().map(str::to_owned).collect::<std::collections::BTreeSet<_>>()
            };
            assert!(inodes(&from).is_disjoint(&inodes(&to)));
            run(&to, "find . -mindepth 1 -delete");
        }
    }

    #[test]
    fn holes_stay_holes_however_files_are_copied() {
        use std::os::unix::fs::MetadataExt;
        let directory = tempfile::tempdir().unwrap();
        let [from, to] = ["from", "to"].map(|name| directory.path().join(name));
        run(
            directory.path(),
            "mkdir from to
             truncate -s 60M from/f; printf x >> from/f; truncate -s 90M from/f; truncate -s 8G from/g
             printf start > from/h; truncate -s 3M from/h; printf end >> from/h",
        );
        let (old, new) = (Rootfs::open(&from).unwrap(), Rootfs::open(&to).unwrap());
        let names = Limit::new("names", 1 << 20);
        let rules = TreeCopy { names, cancelled: &|| false, jobs: 1 };
        for (clone, ranges) in [(true, true), (false, true), (false, false)] {
            rules
                .copy_by(&Copier {
                    rules: &rules,
                    from: &old,
                    to: &new,
                    names: Mutex::default(),
                    content: ContentCopy {
                        cancelled: rules.cancelled,
                        can_clone: AtomicBool::new(clone),
                        can_copy_ranges: AtomicBool::new(ranges),
                    },
                })
                .unwrap();
            for name in ["f", "g", "h"] {
                let (old, new) = (from.join(name), to.join(name));
                let (old, new) = (old.metadata().unwrap(), new.metadata().unwrap());
                assert_eq!(old.size(), new.size());
                assert!(new.blocks() <= old.blocks() + 16, "{name}: {} of {}", new.blocks(), old.blocks());
            }
            let mut read = [0; 1];
            File::open(to.join("f")).unwrap().read_exact_at(&mut read, 60 << 20).unwrap();
            assert_eq!(read, *b"x");
            assert!(std::fs::read(from.join("h")).unwrap() == std::fs::read(to.join("h")).unwrap());
            run(&to, "rm f g h");
        }
    }

    #[test]
    fn a_single_entry_is_copied_with_what_belongs_to_it() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: needs root, to set owners and capabilities");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let [from, to] = ["from", "to"].map(|name| directory.path().join(name));
        run(
            directory.path(),
            "mkdir from to; printf x > from/file; chown 5:6 from/file; chmod 6750 from/file
             PATH=$PATH:/usr/sbin setcap cap_net_raw+ep from/file
             truncate -s 300000 from/hole; printf z >> from/hole; : > from/none; mkfifo -m 620 from/fifo
             find from -exec touch -h -d @1000.5 {} +; touch -d @1000.5 to",
        );
        let (old, new) = (Rootfs::open(&from).unwrap(), Rootfs::open(&to).unwrap());
        let copy = |name: &str, cancelled: &(dyn Fn() -> bool + Sync)| {
            let original = old.open_path(&GuestPath::root().child(name.as_bytes()), Follow::No).unwrap();
            let rules = TreeCopy { names: Limit::new("names", 0), cancelled, jobs: 1 };
            rules.copy_entry(original.as_fd(), new.as_fd(), name.as_bytes())
        };
        for name in ["file", "hole", "none", "fifo"] {
            copy(name, &|| false).unwrap();
            assert_eq!(copy(name, &|| false).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        }
        run(&to, "touch -d @1000.5 .");
        assert_eq!(dump(&new), dump(&old));
        run(&to, "rm file; mkdir ../from/d; ln -s x ../from/l");
        let error = copy("file", &|| true).unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(Errno::CANCELED));
        for name in ["d", "l"] {
            assert!(copy(name, &|| false).is_err(), "{name}");
        }
    }

    #[test]
    fn a_copy_ends_when_told_or_at_its_limit() {
        let directory = tempfile::tempdir().unwrap();
        let [from, to, again] = ["from", "to", "again"].map(|name| directory.path().join(name));
        run(directory.path(), "mkdir from to again; printf x > from/a; ln from/a from/b");
        assert!(matches!(copy(&from, &to, 1 << 20, &|| true), Err(CopyTreeError::Cancelled)));
        let error = copy(&from, &again, 10, &|| false).unwrap_err();
        assert!(matches!(error, CopyTreeError::Links(_)), "{error}");
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
        let result = copy(&from, &to, 1 << 20, &|| false);
        rustix::process::setrlimit(rustix::process::Resource::Nofile, before).unwrap();
        result.unwrap();
        let copied = Rootfs::open(&to).unwrap();
        assert!(copied.exact_metadata(&deep).unwrap().is_some());
        assert_eq!(std::fs::read(to.join("d/d/d/file")).unwrap(), b"x");
        let parent = Rootfs::open(directory.path()).unwrap();
        for name in [&b"from"[..], b"to"] {
            super::super::remove_tree(parent.as_fd(), name).unwrap();
        }
    }
}
