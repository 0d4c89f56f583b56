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
use super::metadata::{self, FileKind, Metadata, Owner, Timestamp, Xattrs};
use super::overrides::Held;
use super::{GuestPath, Rootfs, remove_tree};

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
        let path = if self.name == b"." { directory } else { directory.child(self.name) };
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
            Err(error) if metadata::belongs_to_the_file(key) && is_refused_attribute(&error, key, value) => {
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
