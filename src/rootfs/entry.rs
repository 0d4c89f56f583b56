//! Making entries of a tree, and giving them metadata, by directory descriptor and name.
//!
//! Where the disk refuses what an entry is to be, a tree with overrides keeps it in memory ([`Rootfs::with_overrides`]).
//! Without refusals no call costs more than the system call that its name says, except in trees that have overrides
//! already: there the entry's path is looked up, since what was held for it may hold no more.

use std::cell::OnceCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use super::ledger::Ledger;
use super::metadata::{self, Attribute, FileKind, Metadata, Owner, Timestamp, Xattrs};
use super::overrides::Held;
use super::{GuestPath, Rootfs, entry_path, remove_tree};

/// An entry of a tree: the directory that holds it and its name there, which is never followed. `.` is the directory
/// itself.
///
/// What the disk does not hold is kept by name: a file gets its metadata before it gets further names.
#[derive(Debug)]
pub struct DirectoryEntry<'a> {
    tree: &'a Rootfs,
    directory: BorrowedFd<'a>,
    name: &'a [u8],
    /// The file itself, opened for reading or writing.
    open: Option<BorrowedFd<'a>>,
    path: OnceCell<GuestPath>,
}

impl Rootfs {
    /// The entry `name` of `directory`, a directory of this tree that was opened through this handle.
    #[must_use]
    pub fn entry<'a>(&'a self, directory: &'a impl AsFd, name: &'a [u8]) -> DirectoryEntry<'a> {
        let directory = directory.as_fd();
        DirectoryEntry { tree: self, directory, name, open: None, path: OnceCell::new() }
    }
}

/// Whether the kernel refuses an owner: an id that is not mapped, or no right to give files away.
fn is_refused_owner(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::INVAL | Errno::PERM))
}

/// Whether kernel or file system refuse an attribute that is right in itself.
fn is_refused_attribute(error: &io::Error, key: &[u8], value: &[u8]) -> bool {
    // Access control lists name users and groups: those that are not mapped are invalid. Others are for root too: the
    // second version's number, then entries of eight bytes (acl(5), `posix_acl_xattr.h`).
    let is_list =
        || key.starts_with(b"system.posix_acl_") && value.starts_with(&[2, 0, 0, 0]) && value.len() % 8 == 4;
    match Errno::from_io_error(error) {
        Some(Errno::PERM | Errno::OPNOTSUPP) => true,
        Some(Errno::INVAL) => is_list(),
        _ => false,
    }
}

impl<'a> DirectoryEntry<'a> {
    /// The same entry, which is open as `file` (not `O_PATH`): no name needs to be looked up any more.
    #[must_use]
    pub fn opened(self, file: &'a impl AsFd) -> Self {
        Self { open: Some(file.as_fd()), ..self }
    }

    fn ledger(&self) -> Option<&'a Ledger> {
        self.tree.ledger.as_deref()
    }

    /// The overrides, if there is anything in them.
    fn used_ledger(&self) -> Option<&'a Ledger> {
        self.ledger().filter(|ledger| !ledger.is_empty())
    }

    fn path(&self) -> io::Result<&GuestPath> {
        if let Some(path) = self.path.get() {
            return Ok(path);
        }
        let directory = self.tree.real_path(self.directory)?;
        let path = entry_path(&directory, self.name);
        Ok(self.path.get_or_init(|| path))
    }

    /// What the disk shows.
    fn shown(&self) -> io::Result<Metadata> {
        match self.open {
            Some(file) => metadata::metadata_of(file),
            None => metadata::metadata_at(self.directory, self.name),
        }
    }

    fn hold(&self, ledger: &Ledger, held: &Held<'_>) -> io::Result<()> {
        ledger.hold(self.path()?.clone(), &self.shown()?, held)
    }

    /// Notes what is on disk now, where something else was held before.
    fn hold_no_more(&self, held: &Held<'_>) -> io::Result<()> {
        match self.used_ledger() {
            Some(ledger) if ledger.has(self.path()?) => self.hold(ledger, held),
            _ => Ok(()),
        }
    }

    /// Nothing that was held for the name holds for what has been made there.
    fn made(&self) -> io::Result<()> {
        match self.used_ledger() {
            Some(ledger) => ledger.forget(self.path()?.clone()),
            None => Ok(()),
        }
    }

    /// What the entry is.
    ///
    /// # Errors
    /// Those of statx(2).
    pub fn metadata(&self) -> io::Result<Metadata> {
        let shown = self.shown()?;
        match self.ledger() {
            Some(ledger) if !ledger.is_trivial() => Ok(ledger.reveal(self.path()?, shown)),
            _ => Ok(shown),
        }
    }

    /// All extended attributes of the entry.
    ///
    /// # Errors
    /// Those of llistxattr(2) and lgetxattr(2).
    pub fn xattrs(&self) -> io::Result<Xattrs> {
        let mut xattrs = match self.open {
            Some(file) => metadata::xattrs_of(file)?,
            None => metadata::xattrs_at(self.directory, self.name)?,
        };
        if let Some(ledger) = self.used_ledger() {
            ledger.reveal_xattrs(self.path()?, &mut xattrs);
        }
        Ok(xattrs)
    }

    /// Makes an empty file of mode 0600, to write to.
    ///
    /// # Errors
    /// Those of openat(2): `EEXIST` if there is something.
    pub fn make_file(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(self.directory, self.name, flags, Mode::RUSR | Mode::WUSR)?;
        self.made()?;
        Ok(file)
    }

    /// Makes a directory of mode 0700.
    ///
    /// # Errors
    /// Those of mkdirat(2): `EEXIST` if there is something.
    pub fn make_directory(&self) -> io::Result<()> {
        rustix::fs::mkdirat(self.directory, self.name, Mode::RWXU)?;
        self.made()
    }

    /// Makes a symbolic link to `target`.
    ///
    /// # Errors
    /// Those of symlinkat(2).
    pub fn make_symlink(&self, target: &[u8]) -> io::Result<()> {
        rustix::fs::symlinkat(target, self.directory, self.name)?;
        self.made()
    }

    /// Makes a FIFO, or a device with the Linux `dev_t` `number`, of mode 0600. Instead of a device that may not be made,
    /// and of one that overlayfs would take for a whiteout, an empty file stands on disk if the tree has overrides.
    ///
    /// # Errors
    /// Those of mknodat(2).
    pub fn make_node(&self, kind: FileKind, number: u64) -> io::Result<()> {
        let file_type = match kind {
            FileKind::Fifo => FileType::Fifo,
            FileKind::CharDevice => FileType::CharacterDevice,
            FileKind::BlockDevice => FileType::BlockDevice,
            _ => return Err(Errno::INVAL.into()),
        };
        let whiteout = kind == FileKind::CharDevice && number == 0;
        let make =
            |file_type, mode, number| rustix::fs::mknodat(self.directory, self.name, file_type, mode, number);
        let usual = Mode::RUSR | Mode::WUSR;
        let Some(ledger) = self.ledger().filter(|_| kind != FileKind::Fifo) else {
            make(file_type, usual, number)?;
            return self.made();
        };
        let made = if whiteout { Err(Errno::PERM) } else { make(file_type, usual, number) };
        match made {
            Err(Errno::PERM) => {
                make(FileType::RegularFile, Mode::empty(), 0)?;
                self.made()?;
                self.hold(ledger, &Held::Device(kind, number))?;
                self.hold(ledger, &Held::Mode(usual.as_raw_mode()))
            }
            result => {
                result?;
                self.made()
            }
        }
    }

    /// Makes this another name of `file`.
    ///
    /// # Errors
    /// Those of linkat(2).
    pub fn make_link(&self, file: &DirectoryEntry<'_>) -> io::Result<()> {
        rustix::fs::linkat(file.directory, file.name, self.directory, self.name, AtFlags::empty())?;
        match self.used_ledger() {
            Some(ledger) => {
                let held = ledger.of(file.path()?);
                ledger.set(self.path()?.clone(), held)
            }
            None => Ok(()),
        }
    }

    /// Removes the entry, whatever it is, with all that is below it; see [`remove_tree`].
    ///
    /// # Errors
    /// The first failure.
    pub fn remove(&self) -> io::Result<()> {
        remove_tree(self.directory, self.name)?;
        self.forget()
    }

    /// Forgets all that was held for the entry and for what was below it: it has been removed.
    ///
    /// # Errors
    /// When the kernel does not tell where the entry is.
    pub fn forget(&self) -> io::Result<()> {
        match self.used_ledger() {
            Some(ledger) => ledger.forget_below(self.path()?),
            None => Ok(()),
        }
    }

    /// Sets owner and group. The kernel clears setuid and setgid bits and `security.capability`: mode and attributes come
    /// after.
    ///
    /// # Errors
    /// Those of chown(2).
    pub fn set_owner(&self, owner: Owner) -> io::Result<()> {
        let Some(ledger) = self.ledger() else { return self.chown(Some(owner.uid), Some(owner.gid)) };
        let disk = ledger.caller.on_disk(owner);
        match self.chown(Some(disk.uid), Some(disk.gid)) {
            Err(error) if is_refused_owner(&error) => {
                // As near as possible, for the programs that RUN starts.
                let _ = self.chown(Some(disk.uid), None);
                let _ = self.chown(None, Some(disk.gid));
                self.hold(ledger, &Held::Owner(owner))
            }
            result => {
                result?;
                if ledger.caller.owner_of(disk) == owner {
                    self.hold_no_more(&Held::Owner(owner))
                } else {
                    self.hold(ledger, &Held::Owner(owner))
                }
            }
        }
    }

    fn chown(&self, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
        let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        let done = match self.open {
            Some(file) => rustix::fs::fchown(file, uid, gid),
            None => rustix::fs::chownat(self.directory, self.name, uid, gid, AtFlags::SYMLINK_NOFOLLOW),
        };
        done.map_err(Into::into)
    }

    /// Sets the permission bits (0 to 0o7777). The entry must not be a symbolic link.
    ///
    /// # Errors
    /// Those of chmod(2).
    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        /// The bits that the kernel drops without a word where the caller may not set them.
        const SET_ID: u32 = 0o6000;
        let Some(ledger) = self.ledger() else { return self.chmod(mode) };
        if ledger.is_placeholder(|| self.path())? {
            return self.hold(ledger, &Held::Mode(mode));
        }
        let more = ledger.caller.needs(|| Ok(self.shown()?.kind))?;
        self.chmod(mode | more)?;
        if mode & more != more || (mode & SET_ID != 0 && self.shown()?.mode != mode | more) {
            self.hold(ledger, &Held::Mode(mode))
        } else {
            self.hold_no_more(&Held::Mode(mode))
        }
    }

    fn chmod(&self, mode: u32) -> io::Result<()> {
        match self.open {
            Some(file) => Ok(rustix::fs::fchmod(file, Mode::from_raw_mode(mode))?),
            None => metadata::set_mode_at(self.directory, self.name, mode),
        }
    }

    /// Sets one extended attribute.
    ///
    /// # Errors
    /// Those of setxattr(2). Attributes that are no part of an image are never kept elsewhere.
    pub fn set_xattr(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        let Some(ledger) = self.ledger() else { return self.setxattr(key, value) };
        let placeholder = ledger.is_placeholder(|| self.path())?;
        let result = if placeholder { Err(Errno::PERM.into()) } else { self.setxattr(key, value) };
        match result {
            Err(error)
                if Attribute::of(key) == Attribute::Image && is_refused_attribute(&error, key, value) =>
            {
                self.hold(ledger, &Held::Xattr(key, value))
            }
            result => {
                result?;
                self.hold_no_more(&Held::NoXattr(key))
            }
        }
    }

    fn setxattr(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        match self.open {
            Some(file) => Ok(rustix::fs::fsetxattr(file, key, value, XattrFlags::empty())?),
            None => metadata::set_xattr_at(self.directory, self.name, key, value),
        }
    }

    /// Removes one extended attribute that [`DirectoryEntry::xattrs`] has named.
    ///
    /// # Errors
    /// Those of removexattr(2).
    pub fn remove_xattr(&self, key: &[u8]) -> io::Result<()> {
        let removed = match self.open {
            Some(file) => rustix::fs::fremovexattr(file, key).map_err(io::Error::from),
            None => metadata::remove_xattr_at(self.directory, self.name, key),
        };
        let Some(ledger) = self.used_ledger() else { return removed };
        if !ledger.holds_xattr(self.path()?, key) {
            return removed;
        }
        // Whether it is on disk too or not: it may not even be allowed there.
        self.hold(ledger, &Held::NoXattr(key))
    }

    /// Sets access and modification time.
    ///
    /// # Errors
    /// Those of utimensat(2).
    pub fn set_times(&self, mtime: Timestamp) -> io::Result<()> {
        let Some(file) = self.open else { return metadata::set_times_at(self.directory, self.name, mtime) };
        let time = Timespec { tv_sec: mtime.seconds, tv_nsec: mtime.nanoseconds.into() };
        Ok(rustix::fs::futimens(file, &Timestamps { last_access: time, last_modification: time })?)
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests prepare trees on the host")]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::sync::Arc;

    use super::super::testing::inside;
    use super::super::{Follow, Overrides};
    use super::*;

    const FOREIGN: Owner = Owner { uid: 70_001, gid: 70_002 };

    fn path(text: &str) -> GuestPath {
        GuestPath::clamp(text.as_bytes()).unwrap()
    }

    fn tree() -> (tempfile::TempDir, Rootfs) {
        let directory = tempfile::tempdir().unwrap();
        let root = Rootfs::open(directory.path()).unwrap();
        (directory, root.with_overrides(Arc::default(), Overrides::LIMIT))
    }

    /// What `name` is, as the tree says it and as the disk does: kind, mode, owner.
    fn both(root: &Rootfs, directory: &tempfile::TempDir, name: &str) -> (String, String) {
        let is = root.metadata(&path(name), Follow::No).unwrap().unwrap();
        let shown = std::fs::symlink_metadata(directory.path().join(name)).unwrap();
        (
            format!("{:?} {:o} {}:{}", is.kind, is.mode, is.owner.uid, is.owner.gid),
            format!("{:o} {}:{}", shown.mode() & 0o7777, shown.uid(), shown.gid()),
        )
    }

    #[test]
    fn what_the_disk_refuses_is_held_until_somebody_sets_it_anew() {
        if !inside!(SingleId) {
            return;
        }
        let (directory, root) = tree();
        let file = root.entry(&root, b"file");
        let open = file.make_file().unwrap();
        let file = file.opened(&open);
        file.set_owner(FOREIGN).unwrap();
        file.set_mode(0o6751).unwrap();
        let device = root.entry(&root, b"null");
        device.make_node(FileKind::CharDevice, rustix::fs::makedev(1, 3)).unwrap();
        device.set_mode(0o666).unwrap();
        device.set_xattr(b"trusted.a", b"1").unwrap();
        assert_eq!(
            [both(&root, &directory, "file"), both(&root, &directory, "null")],
            [
                ("File 6751 70001:70002".into(), "6751 0:0".into()),
                ("CharDevice 666 0:0".into(), "0 0:0".into())
            ]
        );
        assert_eq!(root.xattrs(&path("/null")).unwrap()[&b"trusted.a"[..]], b"1");
        assert_eq!(root.read_dir(&path("/")).unwrap()[1], (b"null".to_vec(), FileKind::CharDevice));
        assert!(root.read_small_file(&path("/null"), 10).is_err());
        // A further name is the same file.
        root.entry(&root, b"link").make_link(&root.entry(&root, b"file")).unwrap();
        assert_eq!(both(&root, &directory, "link").0, "File 6751 70001:70002");
        // By this program; as always, chown(2) clears these bits.
        file.set_owner(Owner::ROOT).unwrap();
        assert_eq!(both(&root, &directory, "file").0, "File 751 0:0");
        device.remove_xattr(b"trusted.a").unwrap();
        assert!(!root.xattrs(&path("/null")).unwrap().contains_key(&b"trusted.a"[..]));
        // By another one: only of what it has changed nothing is known any more.
        std::fs::set_permissions(directory.path().join("link"), PermissionsExt::from_mode(0o600)).unwrap();
        assert_eq!(both(&root, &directory, "link").0, "File 600 70001:70002");
        std::fs::write(directory.path().join("null"), "x").unwrap();
        assert_eq!(both(&root, &directory, "null").0, "File 0 0:0");
    }

    #[test]
    fn nothing_is_left_of_what_is_removed_or_replaced() {
        if !inside!(SingleId) {
            return;
        }
        let (directory, root) = tree();
        let names = ["d", "d/e", "d/e/f", "d-too"];
        root.create_dirs(&path("/d/e/f"), 0o700, FOREIGN).unwrap();
        root.create_dirs(&path("/d-too"), 0o700, FOREIGN).unwrap();
        for name in names {
            assert_eq!(both(&root, &directory, name).0, "Directory 700 70001:70002", "{name}");
        }
        root.remove(&path("/d")).unwrap();
        root.create_dirs(&path("/d/e/f"), 0o755, Owner::ROOT).unwrap();
        for name in &names[..3] {
            assert_eq!(both(&root, &directory, name).0, "Directory 755 0:0", "{name}");
        }
        assert_eq!(both(&root, &directory, "d-too").0, "Directory 700 70001:70002");
        let learned = root.take_learned();
        assert_eq!(learned.keys().map(ToString::to_string).collect::<Vec<_>>(), ["/d-too"]);
    }

    #[test]
    fn entries_have_paths_in_a_mount_that_is_nowhere() {
        use rustix::mount::{OpenTreeFlags, open_tree};
        if !inside!(SingleId) {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(directory.path().join("a/b (deleted)")).unwrap();
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        for root in [
            Rootfs::open(directory.path()).unwrap(),
            Rootfs::from_fd(open_tree(rustix::fs::CWD, directory.path(), flags).unwrap()),
            Rootfs::open(std::path::Path::new("/")).unwrap(),
        ] {
            let top = if root.metadata(&path("/a"), Follow::No).unwrap().is_some() {
                path("/")
            } else {
                path(directory.path().to_str().unwrap())
            };
            for name in ["/", "/a", "/a/b (deleted)"] {
                let at = top.join(&name.as_bytes()[1..]).unwrap();
                assert_eq!(root.real_path(root.directory(&at).unwrap().as_fd()).unwrap(), at);
            }
        }
        let (_outside, other) = tree();
        assert!(other.real_path(Rootfs::open(directory.path()).unwrap().as_fd()).is_err());
    }

    #[test]
    fn an_ordinary_user_can_go_on_whatever_the_modes_are() {
        if !inside!(OrdinaryUser) {
            return;
        }
        let (directory, root) = tree();
        root.create_dirs(&path("/closed"), 0o000, Owner::ROOT).unwrap();
        let closed = root.directory(&path("/closed")).unwrap();
        let file = root.entry(&closed, b"file");
        file.make_file().unwrap();
        file.set_owner(Owner { uid: 1234, gid: 0 }).unwrap();
        file.set_mode(0o100).unwrap();
        file.set_xattr(b"user.a", b"1").unwrap();
        assert_eq!(
            [both(&root, &directory, "closed"), both(&root, &directory, "closed/file")],
            [
                ("Directory 0 0:0".into(), "700 1234:1234".into()),
                ("File 100 1234:0".into(), "700 1234:1234".into())
            ]
        );
        // What others make in the tree is root's.
        std::fs::write(directory.path().join("new"), "").unwrap();
        assert_eq!(both(&root, &directory, "new").0, "File 644 0:0");
    }

    #[test]
    fn what_is_held_has_a_limit_and_the_error_says_how_to_raise_it() {
        if !inside!(SingleId) {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let root = Rootfs::open(directory.path()).unwrap();
        let root = root.with_overrides(Arc::default(), Overrides::LIMIT.with(1000));
        let entry = root.entry(&root, b"file");
        entry.make_file().unwrap();
        entry.set_owner(FOREIGN).unwrap();
        for _ in 0..10 {
            entry.set_xattr(b"trusted.a", &[b'x'; 500]).unwrap();
        }
        let error = entry.set_xattr(b"trusted.b", &[b'x'; 500]).unwrap_err();
        let message = error.to_string();
        assert!(message.contains("1000 bytes") && message.contains("--limit layer-overrides=N"), "{message}");
        // Short ones are many.
        for name in 0..100 {
            let name = name.to_string().into_bytes();
            let entry = root.entry(&root, &name);
            entry.make_file().unwrap();
            entry.set_owner(FOREIGN).unwrap();
        }
    }
}
