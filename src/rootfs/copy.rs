//! Copying a whole tree into an empty one.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::content::ContentWriter;
use super::metadata::{
    FileKind, Metadata, metadata_at, metadata_of, set_mode_at, set_owner_at, set_times_at, set_xattr_at,
    xattrs_at,
};
use super::{GuestPath, Rootfs, RootfsError};
use crate::limit::Limit;

/// How many directories of the way down stay open.
const OPEN_LEVELS: usize = 32;

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
    /// A directory of either tree cannot be opened again.
    #[error(transparent)]
    Rootfs(#[from] RootfsError),
    /// More files of several names than can be remembered.
    #[error("the names of hard links take more than {value} bytes; {0}", value = .0.value)]
    Links(Limit),
    /// The copy was stopped.
    #[error("copying was stopped")]
    Cancelled,
}

/// How a tree is copied.
pub struct TreeCopy<'a> {
    /// Which extended attributes are copied.
    pub keep: &'a dyn Fn(&[u8]) -> bool,
    /// The most bytes of names that are remembered, of files with several names.
    pub names: Limit,
    /// Says whether to stop; asked often.
    pub cancelled: &'a dyn Fn() -> bool,
}

/// A directory on the way down.
struct Level {
    path: GuestPath,
    /// The directory in both trees; none while the walk is far below.
    open: Option<(OwnedFd, OwnedFd)>,
    /// Directories in it that are still to be copied.
    below: Vec<Vec<u8>>,
}

struct Copier<'a> {
    rules: &'a TreeCopy<'a>,
    from: &'a Rootfs,
    to: &'a Rootfs,
    /// The first names of files with several, by file system and number.
    first_names: BTreeMap<((u32, u32), u64), GuestPath>,
    remembered: u64,
    buffer: Vec<u8>,
}

impl TreeCopy<'_> {
    /// Copies everything that is in `from`, its root's metadata included, into the empty tree `to`. The process must be
    /// allowed to work in directories whatever their mode. Nobody else may change either tree meanwhile.
    ///
    /// Memory grows by the names of the directories beside the way down and by the files of several names.
    ///
    /// # Errors
    /// [`CopyTreeError`]; `to` then holds a part.
    pub fn copy(&self, from: &Rootfs, to: &Rootfs) -> Result<(), CopyTreeError> {
        let mut copier = Copier {
            rules: self,
            from,
            to,
            first_names: BTreeMap::new(),
            remembered: 0,
            buffer: vec![0; 1 << 17],
        };
        let mut levels = vec![copier.enter(None, GuestPath::root())?];
        while let Some(level) = levels.last_mut() {
            let Some(name) = level.below.pop() else {
                levels.pop();
                continue;
            };
            let path = level.path.child(&name);
            let next = copier.enter(level.open.as_ref(), path)?;
            levels.push(next);
            if let Some(far) = levels.len().checked_sub(OPEN_LEVELS + 1) {
                levels[far].open = None;
            }
        }
        Ok(())
    }
}

fn failed<E: Into<io::Error>>(action: &'static str, path: &GuestPath) -> impl FnOnce(E) -> CopyTreeError {
    move |error| CopyTreeError::Io { action, path: path.clone(), source: error.into() }
}

impl Copier<'_> {
    /// Copies the directory `path`, which exists in both trees, with all that is in it but the content of directories.
    /// `above` is the one it is in, if that is open.
    fn enter(&mut self, above: Option<&(OwnedFd, OwnedFd)>, path: GuestPath) -> Result<Level, CopyTreeError> {
        const FLAGS: OFlags =
            OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
        let (from, to) = match (above, path.file_name()) {
            (Some((from, to)), Some(name)) => {
                let open = |directory| rustix::fs::openat(directory, name, FLAGS, Mode::empty());
                (open(from).map_err(failed("open", &path))?, open(to).map_err(failed("open", &path))?)
            }
            _ => {
                let open = |tree: &Rootfs| tree.open_file(&path, FLAGS, 0);
                (open(self.from)?, open(self.to)?)
            }
        };
        let mut below = Vec::new();
        for entry in Dir::read_from(&from).map_err(failed("list", &path))? {
            if (self.rules.cancelled)() {
                return Err(CopyTreeError::Cancelled);
            }
            let entry = entry.map_err(failed("list", &path))?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." && self.entry(&from, &to, name, &path)? == FileKind::Directory {
                below.push(name.to_vec());
            }
        }
        // Nothing more is put into it: what follows is in the directories below.
        let metadata = metadata_of(&from).map_err(failed("read metadata of", &path))?;
        self.metadata(&from, &to, b".", &metadata).map_err(failed("set metadata of", &path))?;
        Ok(Level { path, open: Some((from, to)), below })
    }

    /// Copies the entry `name`; of a directory, only that it is there.
    fn entry(
        &mut self,
        from: &OwnedFd,
        to: &OwnedFd,
        name: &[u8],
        directory: &GuestPath,
    ) -> Result<FileKind, CopyTreeError> {
        let path = || directory.child(name);
        let metadata = metadata_at(from.as_fd(), name).map_err(|e| failed("read metadata of", &path())(e))?;
        if metadata.kind == FileKind::Directory {
            let made = rustix::fs::mkdirat(to, name, Mode::RWXU);
            made.map_err(|error| failed("make", &path())(error))?;
            return Ok(metadata.kind);
        }
        if metadata.links > 1 && !self.is_first_name(&metadata, directory, name)? {
            let first = &self.first_names[&(metadata.device, metadata.inode)];
            let (parent, first_name) = self.to.parent(first)?;
            let linked = rustix::fs::linkat(&parent, first_name.as_slice(), to, name, AtFlags::empty());
            linked.map_err(|error| failed("link", &path())(error))?;
            return Ok(metadata.kind);
        }
        let made = self.make(from, to, name, &metadata).map_err(|error| failed("copy", &path())(error))?;
        if made == Made::Stopped {
            return Err(CopyTreeError::Cancelled);
        }
        self.metadata(from, to, name, &metadata)
            .map_err(|error| failed("set metadata of", &path())(error))?;
        Ok(metadata.kind)
    }

    /// Whether a file with several names is met for the first time.
    fn is_first_name(
        &mut self,
        metadata: &Metadata,
        directory: &GuestPath,
        name: &[u8],
    ) -> Result<bool, CopyTreeError> {
        let key = (metadata.device, metadata.inode);
        if self.first_names.contains_key(&key) {
            return Ok(false);
        }
        let path = directory.child(name);
        // What a path costs besides its bytes.
        self.remembered += path.as_bytes().len() as u64 + 64;
        if self.rules.names.is_exceeded_by(self.remembered) {
            return Err(CopyTreeError::Links(self.rules.names));
        }
        self.first_names.insert(key, path);
        Ok(true)
    }

    fn make(&mut self, from: &OwnedFd, to: &OwnedFd, name: &[u8], metadata: &Metadata) -> io::Result<Made> {
        let file_type = match metadata.kind {
            FileKind::File => return self.content(from, to, name),
            FileKind::Symlink => {
                let target = rustix::fs::readlinkat(from, name, Vec::new())?;
                rustix::fs::symlinkat(target, to, name)?;
                return Ok(Made::Whole);
            }
            FileKind::Fifo => FileType::Fifo,
            FileKind::CharDevice => FileType::CharacterDevice,
            FileKind::BlockDevice => FileType::BlockDevice,
            FileKind::Socket => FileType::Socket,
            FileKind::Directory => return Err(Errno::ISDIR.into()),
        };
        rustix::fs::mknodat(to, name, file_type, Mode::RUSR | Mode::WUSR, metadata.rdev)?;
        Ok(Made::Whole)
    }

    fn content(&mut self, from: &OwnedFd, to: &OwnedFd, name: &[u8]) -> io::Result<Made> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let source = rustix::fs::openat(from, name, flags, Mode::empty())?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut copy = ContentWriter::new(rustix::fs::openat(to, name, flags, Mode::RUSR | Mode::WUSR)?);
        loop {
            match rustix::io::read(&source, &mut self.buffer) {
                Ok(0) => break,
                Ok(_) if (self.rules.cancelled)() => return Ok(Made::Stopped),
                Ok(count) => copy.write(&self.buffer[..count])?,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        copy.finish().map(|_| Made::Whole)
    }

    /// Owner first, as that clears set-ID bits and capabilities; times last.
    fn metadata(&self, from: &OwnedFd, to: &OwnedFd, name: &[u8], metadata: &Metadata) -> io::Result<()> {
        let (from, to) = (from.as_fd(), to.as_fd());
        set_owner_at(to, name, metadata.owner)?;
        for (key, value) in xattrs_at(from, name)?.iter().filter(|(key, _)| (self.rules.keep)(key)) {
            set_xattr_at(to, name, key, value)?;
        }
        if metadata.kind != FileKind::Symlink {
            set_mode_at(to, name, metadata.mode)?;
        }
        set_times_at(to, name, metadata.mtime)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Made {
    Whole,
    Stopped,
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::store::testing::{dump, links, run};

    fn copy(from: &Path, to: &Path, names: u64, cancelled: &dyn Fn() -> bool) -> Result<(), CopyTreeError> {
        let names = Limit::new("names", names);
        TreeCopy { keep: &|key| key != b"user.dropped", names, cancelled }
            .copy(&Rootfs::open(from).unwrap(), &Rootfs::open(to).unwrap())
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
            run(directory.path(), "xattr from/a/one user.dropped v\nxattr from/a/b user.kept w");
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
        let expected = dump(&trees[0]).replace(" user.dropped=v", "");
        assert_eq!(dump(&trees[1]), expected);
        assert_eq!(links(&trees[1]), links(&trees[0]));
        assert_eq!(links(&trees[1]).len(), 2);
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
