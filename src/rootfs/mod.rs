//! A hostile directory tree behind one handle.
//!
//! Every path is resolved by the kernel inside the tree (openat2(2), `RESOLVE_IN_ROOT`): absolute links and `..` mean
//! what they would mean after chroot(2). Whatever is found is used by descriptor; no path is resolved twice.

pub mod content;
pub mod copy;
pub mod delivery;
pub mod entry;
pub mod guest_path;
pub mod ids;
pub mod ledger;
pub mod merged;
pub mod metadata;
pub mod overrides;
pub mod remove;
#[cfg(test)]
pub(crate) mod testing;
pub mod users;
pub(crate) mod visit;
pub(crate) mod walk;

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::limit::Limit;
use ledger::Ledger;

pub use content::ContentWriter;
pub use copy::{CopyTreeError, TreeCopy};
pub use delivery::{Delivered, Delivery, DeliveryError, Others, remove_others};
pub use entry::DirectoryEntry;
pub use guest_path::{Escaped, GuestPath, GuestPathError};
pub use ids::{Extent, IdMap};
pub use ledger::{Caller, Learned};
pub use merged::MergeError;
pub use metadata::{
    Attribute, FileId, FileKind, Metadata, Owner, Timestamp, Xattrs, birth_at, keeping_mtime, metadata_at,
    metadata_of, remove_xattr_at, set_mode_at, set_owner_at, set_times_at, set_xattr_at, xattr_at, xattrs_at,
    xattrs_of,
};
pub use overrides::{Override, Overrides, OverridesError};
pub use remove::remove_tree;
pub use users::{ResolvedUser, UserError, name_of_user, numeric_chown, resolve_chown, resolve_user};

/// Whether a symbolic link in the last component is followed. Those before always are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follow {
    /// To where it points, inside the root.
    Yes,
    /// The link itself is meant.
    No,
}

/// Why a tree could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum RootfsError {
    /// A system call failed.
    #[error("cannot {action} `{path}`")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: GuestPath,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// Something else than a regular file.
    #[error("`{path}` is not a regular file")]
    NotAFile {
        /// What was to be read.
        path: GuestPath,
    },
    /// More bytes than are read into memory.
    #[error("`{path}` is larger than {limit} bytes")]
    TooLarge {
        /// What was to be read.
        path: GuestPath,
        /// The limit.
        limit: u64,
    },
}

impl RootfsError {
    /// The kind of the underlying error, as std names it.
    #[must_use]
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Io { source, .. } => source.kind(),
            _ => io::ErrorKind::InvalidData,
        }
    }
}

/// Says what was tried, and with which entry.
pub(crate) fn at<T, E: Into<io::Error>>(
    result: Result<T, E>,
    action: &'static str,
    path: &GuestPath,
) -> Result<T, RootfsError> {
    result.map_err(|error| RootfsError::Io { action, path: path.clone(), source: error.into() })
}

/// A directory that is treated as the root of a file system, whatever is in it.
#[derive(Debug)]
pub struct Rootfs {
    root: OwnedFd,
    /// What the disk does not hold of the tree; without it the disk is the truth, and what it refuses is an error.
    ledger: Option<Arc<Ledger>>,
}

/// openat2(2), as often as the kernel asks for it: while anybody on the machine renames or mounts something, a `..` of a path
/// or a link cannot be resolved.
///
/// # Errors
/// Those of openat2(2).
pub fn open_resolved(
    directory: BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
    mode: Mode,
    resolve: ResolveFlags,
) -> rustix::io::Result<OwnedFd> {
    let mut retries = 0;
    loop {
        match rustix::fs::openat2(directory, path, flags, mode, resolve) {
            Err(Errno::AGAIN) if retries < 1000 => retries += 1,
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

impl Rootfs {
    /// Opens the directory `path` of the host.
    ///
    /// # Errors
    /// When `path` is no directory or cannot be reached.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { root: rustix::fs::open(path, flags, Mode::empty())?, ledger: None })
    }

    /// Takes a directory that is already open.
    #[must_use]
    pub fn from_fd(root: OwnedFd) -> Self {
        Self { root, ledger: None }
    }

    /// The tree as the overrides say that it is, to be read: writing what the disk refuses is an error.
    #[must_use]
    pub fn showing(self, overrides: Arc<Overrides>) -> Self {
        Self { ledger: Some(Arc::new(Ledger::new(overrides, Caller::current(), None))), ..self }
    }

    /// The tree as the overrides say that it is. What is written to it through this handle, and those made from it, and
    /// cannot be held by the disk, adds to them, up to `limit`: bytes beyond 200 an entry.
    #[must_use]
    pub fn holding(self, overrides: Arc<Overrides>, limit: Limit) -> Self {
        Self { ledger: Some(Arc::new(Ledger::new(overrides, Caller::current(), Some(limit)))), ..self }
    }

    /// Whether what the disk refuses is kept elsewhere.
    #[must_use]
    pub fn holds_what_the_disk_refuses(&self) -> bool {
        self.ledger.as_ref().is_some_and(|ledger| ledger.is_written_to())
    }

    /// What is held of the entry at the real path `path`.
    #[must_use]
    pub fn override_of(&self, path: &GuestPath) -> Option<Override> {
        self.ledger.as_ref()?.of(path)
    }

    /// Holds `held` of the entry at the real path `path`, and nothing else.
    ///
    /// # Errors
    /// When that is more than is kept in memory.
    pub fn set_override(&self, path: GuestPath, held: Option<Override>) -> io::Result<()> {
        match &self.ledger {
            Some(ledger) if held.is_some() || ledger.has(&path) => ledger.set(path, held),
            _ => Ok(()),
        }
    }

    /// Takes what has been learned about the tree since it got its overrides.
    #[must_use]
    pub fn take_learned(&self) -> Learned {
        self.ledger.as_ref().map(|ledger| ledger.take()).unwrap_or_default()
    }

    /// What the entry at the real path `path` is, of which the disk shows `shown`.
    #[must_use]
    pub fn reveal(&self, path: &GuestPath, shown: Metadata) -> Metadata {
        match &self.ledger {
            Some(ledger) => ledger.reveal(path, shown),
            None => shown,
        }
    }

    /// Adds to `xattrs` those of the entry at the real path `path` that are not on disk.
    pub fn reveal_xattrs(&self, path: &GuestPath, xattrs: &mut Xattrs) {
        if let Some(ledger) = &self.ledger {
            ledger.reveal_xattrs(path, xattrs);
        }
    }

    /// [`Rootfs::reveal`] for the entry `name` of the directory `parent`.
    #[must_use]
    pub fn reveal_in(&self, parent: &GuestPath, name: &[u8], shown: Metadata) -> Metadata {
        match &self.ledger {
            Some(ledger) if !ledger.is_trivial() => ledger.reveal(&entry_path(parent, name), shown),
            _ => shown,
        }
    }

    /// [`Rootfs::reveal_xattrs`] for the entry `name` of the directory `parent`.
    pub fn reveal_xattrs_in(&self, parent: &GuestPath, name: &[u8], xattrs: &mut Xattrs) {
        if let Some(ledger) = &self.ledger
            && !ledger.is_empty()
        {
            ledger.reveal_xattrs(&entry_path(parent, name), xattrs);
        }
    }

    /// What is open as `fd`.
    fn metadata_of(&self, fd: BorrowedFd<'_>) -> io::Result<Metadata> {
        let shown = metadata_of(fd)?;
        match &self.ledger {
            Some(ledger) if !ledger.is_trivial() => Ok(ledger.reveal(&self.real_path(fd)?, shown)),
            _ => Ok(shown),
        }
    }

    /// A second handle of the same directory.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { root: self.root.try_clone()?, ledger: self.ledger.clone() })
    }

    fn resolve_to_fd(&self, path: &GuestPath, flags: OFlags, mode: Mode) -> rustix::io::Result<OwnedFd> {
        self.resolve_with(path, flags, mode, ResolveFlags::empty())
    }

    /// The one way from a guest path to a descriptor.
    fn resolve_with(
        &self,
        path: &GuestPath,
        flags: OFlags,
        mode: Mode,
        more: ResolveFlags,
    ) -> rustix::io::Result<OwnedFd> {
        let name = if path.is_root() { &b"."[..] } else { path.relative() };
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | more;
        open_resolved(self.root.as_fd(), name, flags | OFlags::CLOEXEC, mode, resolve)
    }

    /// Opens `path` following links inside the root. Never waits for the other end of a FIFO and never makes a terminal
    /// the controlling one. `mode` counts when `flags` create a file, less the umask.
    ///
    /// # Errors
    /// Those of openat2(2).
    pub fn open_file(&self, path: &GuestPath, flags: OFlags, mode: u32) -> Result<OwnedFd, RootfsError> {
        let flags =
            if flags.contains(OFlags::PATH) { flags } else { flags | OFlags::NONBLOCK | OFlags::NOCTTY };
        let creates = flags.contains(OFlags::CREATE) || flags.contains(OFlags::TMPFILE);
        let mode = if creates { Mode::from_raw_mode(mode) } else { Mode::empty() };
        at(self.resolve_to_fd(path, flags, mode), "open", path)
    }

    /// Opens `path` as a place (`O_PATH`): nothing can be read from it, and nothing happens to what is there.
    ///
    /// # Errors
    /// Those of openat2(2).
    pub fn open_path(&self, path: &GuestPath, follow: Follow) -> Result<OwnedFd, RootfsError> {
        let flags = if follow == Follow::No { OFlags::PATH | OFlags::NOFOLLOW } else { OFlags::PATH };
        at(self.resolve_to_fd(path, flags, Mode::empty()), "find", path)
    }

    /// The directory that holds `path` (links followed, `O_PATH`) and the name in it, for the `…at` calls, none of which
    /// follow that name. The root is `.` in itself.
    ///
    /// # Errors
    /// When the directory is not there.
    pub fn parent(&self, path: &GuestPath) -> Result<(OwnedFd, Vec<u8>), RootfsError> {
        let parent = path.parent().unwrap_or_else(GuestPath::root);
        let name = path.file_name().unwrap_or(b".").to_vec();
        Ok((self.directory(&parent)?, name))
    }

    /// The directory `path` as a place (`O_PATH`), links followed.
    ///
    /// # Errors
    /// When it is not there or no directory.
    pub fn directory(&self, path: &GuestPath) -> Result<OwnedFd, RootfsError> {
        at(self.resolve_to_fd(path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()), "find", path)
    }

    /// The metadata of `path`; none when there is nothing.
    ///
    /// # Errors
    /// Those of openat2(2) and statx(2), except `ENOENT` and `ENOTDIR`.
    pub fn metadata(&self, path: &GuestPath, follow: Follow) -> Result<Option<Metadata>, RootfsError> {
        let flags = if follow == Follow::No { OFlags::PATH | OFlags::NOFOLLOW } else { OFlags::PATH };
        match self.resolve_to_fd(path, flags, Mode::empty()) {
            Ok(fd) => at(self.metadata_of(fd.as_fd()), "read metadata of", path).map(Some),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(error) => at(Err(error), "find", path),
        }
    }

    /// The metadata of what is at exactly `path`: none when a link leads there, and when there is nothing.
    ///
    /// # Errors
    /// Those of openat2(2) and statx(2), except `ENOENT`, `ENOTDIR` and `ELOOP`.
    pub fn exact_metadata(&self, path: &GuestPath) -> Result<Option<Metadata>, RootfsError> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        match self.resolve_with(path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
            Ok(fd) => at(self.metadata_of(fd.as_fd()), "read metadata of", path).map(Some),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(error) => at(Err(error), "find", path),
        }
    }

    /// The directory that is at exactly `path` (`O_PATH`); none when something else is there, or a link leads there.
    ///
    /// # Errors
    /// Those of openat2(2), except `ENOENT`, `ENOTDIR` and `ELOOP`.
    pub fn exact_directory(&self, path: &GuestPath) -> Result<Option<OwnedFd>, RootfsError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        match self.resolve_with(path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
            Ok(directory) => Ok(Some(directory)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(error) => at(Err(error), "find", path),
        }
    }

    /// The target of the symbolic link `path`, as it is stored.
    ///
    /// # Errors
    /// When `path` is no symbolic link.
    pub fn read_link(&self, path: &GuestPath) -> Result<Vec<u8>, RootfsError> {
        let fd = self.open_path(path, Follow::No)?;
        Ok(at(rustix::fs::readlinkat(fd, "", Vec::new()), "read link", path)?.into_bytes())
    }

    /// The entries of the directory `path` without `.` and `..`, sorted by name.
    ///
    /// # Errors
    /// When `path` is no directory.
    pub fn read_dir(&self, path: &GuestPath) -> Result<Vec<(Vec<u8>, FileKind)>, RootfsError> {
        let fd =
            at(self.resolve_to_fd(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()), "list", path)?;
        let mut entries = at(entries_of(&fd), "list", path)?;
        if self.ledger.as_ref().is_some_and(|ledger| !ledger.is_empty()) {
            at(self.reveal_kinds(&fd, &mut entries), "list", path)?;
        }
        Ok(entries)
    }

    /// Devices that are but files on disk are devices.
    fn reveal_kinds(&self, directory: &OwnedFd, entries: &mut [(Vec<u8>, FileKind)]) -> io::Result<()> {
        let path = self.real_path(directory.as_fd())?;
        for (name, kind) in entries.iter_mut().filter(|(_, kind)| *kind == FileKind::File) {
            let child = path.child(name);
            if self.ledger.as_ref().is_some_and(|ledger| ledger.is_device(&child)) {
                *kind = self.reveal(&child, metadata_at(directory.as_fd(), name)?).kind;
            }
        }
        Ok(())
    }

    /// The whole regular file `path`, links followed; none when there is nothing.
    ///
    /// # Errors
    /// When it is something else than a regular file, or larger than `limit` bytes.
    pub fn read_small_file(&self, path: &GuestPath, limit: u64) -> Result<Option<Vec<u8>>, RootfsError> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = match self.resolve_to_fd(path, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            // Sockets and devices without driver.
            Err(Errno::NXIO | Errno::NODEV) => return Err(RootfsError::NotAFile { path: path.clone() }),
            Err(error) => return at(Err(error), "open", path),
        };
        if at(self.metadata_of(fd.as_fd()), "read metadata of", path)?.kind != FileKind::File {
            return Err(RootfsError::NotAFile { path: path.clone() });
        }
        let mut bytes = Vec::new();
        at(File::from(fd).take(limit.saturating_add(1)).read_to_end(&mut bytes), "read", path)?;
        if bytes.len() as u64 > limit {
            return Err(RootfsError::TooLarge { path: path.clone(), limit });
        }
        Ok(Some(bytes))
    }

    /// The extended attributes of `path` itself; a symbolic link is not followed.
    ///
    /// # Errors
    /// When `path` is not there or its attributes cannot be read.
    pub fn xattrs(&self, path: &GuestPath) -> Result<Xattrs, RootfsError> {
        let (parent, name) = self.parent(path)?;
        at(self.entry(&parent, &name).xattrs(), "read attributes of", path)
    }

    /// Sets one extended attribute of `path` itself; a symbolic link is not followed.
    ///
    /// # Errors
    /// Those of lsetxattr(2).
    pub fn set_xattr(&self, path: &GuestPath, key: &[u8], value: &[u8]) -> Result<(), RootfsError> {
        let (parent, name) = self.parent(path)?;
        at(self.entry(&parent, &name).set_xattr(key, value), "set an attribute of", path)
    }

    /// Makes the directory `path` and those above it that are missing, through links, dangling ones included. `mode`
    /// (0 to 0o7777, whatever the umask) and `owner` are those of new directories only. Returns what was made, by its
    /// real path.
    ///
    /// # Errors
    /// When something on the way is no directory, or a directory cannot be made.
    pub fn create_dirs(
        &self,
        path: &GuestPath,
        mode: u32,
        owner: Owner,
    ) -> Result<Vec<GuestPath>, RootfsError> {
        let mut made = Vec::new();
        self.walk(path, |step| {
            if step.metadata.is_some() {
                return Ok(());
            }
            let (missing, parent, name) = (step.path, step.directory()?, step.name);
            match self.entry(&parent, name).make_directory() {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
                result => at(result, "make directory", missing)?,
            }
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let new = at(rustix::fs::openat(parent, name, flags, Mode::empty()), "open", missing)?;
            let entry = self.entry(&parent, name).opened(&new);
            if at(entry.metadata(), "read metadata of", missing)?.owner != owner {
                at(entry.set_owner(owner), "set the owner of", missing)?;
            }
            at(entry.set_mode(mode), "set the mode of", missing)?;
            made.push(missing.clone());
            Ok(())
        })?;
        match self.metadata(path, Follow::Yes)? {
            Some(metadata) if metadata.kind == FileKind::Directory => Ok(made),
            _ => at(Err(Errno::NOTDIR), "make directory", path),
        }
    }

    /// Removes whatever `path` is, with all that is below it. Nothing there is fine; of the root only the content goes.
    ///
    /// # Errors
    /// The first failure; see [`remove_tree`].
    pub fn remove(&self, path: &GuestPath) -> Result<(), RootfsError> {
        if path.is_root() {
            for (name, _) in self.read_dir(path)? {
                at(self.entry(&self.root, &name).remove(), "remove", &path.child(&name))?;
            }
            return Ok(());
        }
        let (parent, name) = match self.parent(path) {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(());
            }
            result => result?,
        };
        at(self.entry(&parent, &name).remove(), "remove", path)
    }

    /// `path` with every symbolic link replaced by where it points inside the root. What does not exist is kept as
    /// written.
    ///
    /// # Errors
    /// When there are too many links, or one has a target that is no path.
    pub fn resolve(&self, path: &GuestPath) -> Result<GuestPath, RootfsError> {
        // Most paths lead through no link, and the kernel can tell.
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        if self.resolve_with(path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS).is_ok() {
            return Ok(path.clone());
        }
        self.walk(path, |_| Ok(()))
    }
}

/// The path of an entry; `.` is the directory itself.
fn entry_path(parent: &GuestPath, name: &[u8]) -> GuestPath {
    if name == b"." { parent.clone() } else { parent.child(name) }
}

impl AsFd for Rootfs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }
}

fn entries_of(directory: &OwnedFd) -> io::Result<Vec<(Vec<u8>, FileKind)>> {
    let mut entries = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        let kind = match FileKind::of(entry.file_type()) {
            Some(kind) => kind,
            // Some file systems do not say.
            None => match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => FileKind::of(FileType::from_raw_mode(stat.st_mode)).ok_or(Errno::INVAL)?,
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(error.into()),
            },
        };
        entries.push((name.to_vec(), kind));
    }
    entries.sort_unstable();
    Ok(entries)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests prepare trees on the host")]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    fn path(text: &str) -> GuestPath {
        GuestPath::clamp(text.as_bytes()).unwrap()
    }

    fn tree() -> (tempfile::TempDir, Rootfs) {
        let directory = tempfile::tempdir().unwrap();
        let rootfs = Rootfs::open(directory.path()).unwrap();
        (directory, rootfs)
    }

    #[test]
    fn links_mean_what_they_mean_inside_the_root() {
        let (directory, rootfs) = tree();
        std::fs::create_dir_all(directory.path().join("run")).unwrap();
        std::fs::create_dir_all(directory.path().join("var")).unwrap();
        symlink("/run", directory.path().join("var/run")).unwrap();
        symlink("../../../../etc", directory.path().join("var/up")).unwrap();
        symlink("loop", directory.path().join("loop")).unwrap();
        symlink("/proc/self/root/etc", directory.path().join("magic")).unwrap();
        std::fs::write(directory.path().join("run/pid"), "1").unwrap();
        assert_eq!(rootfs.read_small_file(&path("/var/run/pid"), 10).unwrap().unwrap(), b"1");
        assert_eq!(rootfs.read_small_file(&path("/var/up/passwd"), 1 << 20).unwrap(), None);
        assert_eq!(rootfs.read_small_file(&path("/magic/passwd"), 1 << 20).unwrap(), None);
        for (from, to) in [
            ("/var/run/pid", "/run/pid"),
            ("/var/up/passwd", "/etc/passwd"),
            ("/", "/"),
            ("/no/such", "/no/such"),
            ("/run/pid/x", "/run/pid/x"),
        ] {
            assert_eq!(rootfs.resolve(&path(from)).unwrap(), path(to));
        }
        assert!(rootfs.resolve(&path("/loop/x")).is_err());
        assert_eq!(rootfs.read_link(&path("/var/run")).unwrap(), b"/run");
        assert_eq!(rootfs.metadata(&path("/var/run"), Follow::No).unwrap().unwrap().kind, FileKind::Symlink);
        assert_eq!(
            rootfs.metadata(&path("/var/run"), Follow::Yes).unwrap().unwrap().kind,
            FileKind::Directory
        );
        assert_eq!(rootfs.metadata(&path("/run/pid/x"), Follow::Yes).unwrap(), None);
        assert_eq!(rootfs.exact_metadata(&path("/var/run")).unwrap().unwrap().kind, FileKind::Symlink);
        assert_eq!(rootfs.exact_metadata(&path("/run/pid")).unwrap().unwrap().size, 1);
        for name in ["/var/run/pid", "/loop/x", "/nothing"] {
            assert_eq!(rootfs.exact_metadata(&path(name)).unwrap(), None, "{name}");
        }
    }

    #[test]
    fn only_regular_files_within_the_limit_are_read() {
        let (directory, rootfs) = tree();
        std::fs::write(directory.path().join("file"), "12345").unwrap();
        std::fs::create_dir(directory.path().join("dir")).unwrap();
        rustix::fs::mknodat(rootfs.as_fd(), "fifo", FileType::Fifo, Mode::RUSR, 0).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(directory.path().join("socket")).unwrap();
        assert_eq!(rootfs.read_small_file(&path("/file"), 5).unwrap().unwrap(), b"12345");
        assert!(matches!(rootfs.read_small_file(&path("/file"), 4), Err(RootfsError::TooLarge { .. })));
        for name in ["/dir", "/fifo", "/socket"] {
            let result = rootfs.read_small_file(&path(name), 9);
            assert!(matches!(result, Err(RootfsError::NotAFile { .. })), "{name}: {result:?}");
        }
        let names: Vec<_> = rootfs.read_dir(&path("/")).unwrap();
        assert_eq!(
            names,
            [
                (b"dir".to_vec(), FileKind::Directory),
                (b"fifo".to_vec(), FileKind::Fifo),
                (b"file".to_vec(), FileKind::File),
                (b"socket".to_vec(), FileKind::Socket)
            ]
        );
    }

    #[test]
    fn directories_are_made_through_links_even_dangling_ones() {
        let (directory, rootfs) = tree();
        symlink("/data/../store/x", directory.path().join("link")).unwrap();
        let owner = metadata_of(rootfs.as_fd()).unwrap().owner;
        let made = rootfs.create_dirs(&path("/link/a/b"), 0o1777, owner).unwrap();
        // `data` is on the way, so it has to be there, as for the kernel.
        let expected: Vec<_> =
            ["/data", "/store", "/store/x", "/store/x/a", "/store/x/a/b"].map(path).into_iter().collect();
        assert_eq!(made, expected);
        let metadata = std::fs::metadata(directory.path().join("store/x/a/b")).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o7777, 0o1777);
        assert_eq!(rootfs.create_dirs(&path("/link/a/b"), 0o700, owner).unwrap(), []);
        assert_eq!(metadata.ino(), std::fs::metadata(directory.path().join("store/x/a/b")).unwrap().ino());
        std::fs::write(directory.path().join("file"), "").unwrap();
        for name in ["/file", "/file/x"] {
            assert!(rootfs.create_dirs(&path(name), 0o755, owner).is_err(), "{name}");
        }
    }

    #[test]
    fn removing_stays_inside_and_takes_everything() {
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("keep"), "x").unwrap();
        let (directory, rootfs) = tree();
        symlink(outside.path(), directory.path().join("link")).unwrap();
        rootfs.remove(&path("/link/keep")).unwrap();
        rootfs.remove(&path("/nothing/here")).unwrap();
        std::fs::create_dir_all(directory.path().join("a/b")).unwrap();
        rootfs.remove(&path("/")).unwrap();
        assert_eq!(rootfs.read_dir(&path("/")).unwrap(), []);
        assert!(outside.path().join("keep").exists());
    }

    #[test]
    fn attributes_of_links_are_their_own() {
        let (directory, rootfs) = tree();
        std::fs::write(directory.path().join("file"), "").unwrap();
        symlink("file", directory.path().join("link")).unwrap();
        rootfs.set_xattr(&path("/file"), b"user.big", &[7; 3000]).unwrap();
        rootfs.set_xattr(&path("/"), b"user.root", b"r").unwrap();
        assert_eq!(rootfs.xattrs(&path("/file")).unwrap().get(&b"user.big"[..]).unwrap(), &[7; 3000]);
        assert_eq!(rootfs.xattrs(&path("/")).unwrap().get(&b"user.root"[..]).unwrap(), b"r");
        assert!(!rootfs.xattrs(&path("/link")).unwrap().contains_key(&b"user.big"[..]));
        if let Err(error) = rootfs.set_xattr(&path("/link"), b"trusted.test", b"") {
            eprintln!("skipped: cannot set trusted attributes: {error}");
            return;
        }
        assert_eq!(rootfs.xattrs(&path("/link")).unwrap().get(&b"trusted.test"[..]).unwrap(), b"");
    }
}
