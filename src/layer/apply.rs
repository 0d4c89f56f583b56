//! Applying a layer to a tree.
//!
//! The order of checks is that of umoci's `UnpackEntry`: name, root, parent, whiteout, what is in the way, creation by
//! descriptor and name, owner, mode, attributes, times. No name of the archive is ever resolved by anything but
//! [`Rootfs`]. Memory does not grow with files; per entry it grows only for what [`Applied`] reports and, with
//! [`Whiteouts::Remove`], by 8 bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use super::lower::Lower;
use super::tar::{Entry, EntryKind, Reader};
use super::{EntryError, LayerError, Limits};
use crate::rootfs::{
    Escaped, FileKind, Follow, GuestPath, Metadata, Owner, Rootfs, Timestamp, Xattrs, metadata_at,
    metadata_of, remove_tree, remove_xattr_at, set_mode_at, set_owner_at, set_times_at, set_xattr_at,
    xattr_at, xattrs_at,
};

/// The prefix of a whiteout's name.
pub const WHITEOUT_PREFIX: &[u8] = b".wh.";
/// The name of the marker that makes a directory opaque.
pub const OPAQUE_MARKER: &[u8] = b".wh..wh..opq";
const RESERVED_PREFIX: &[u8] = b".wh..wh.";
const OPAQUE_TRUSTED: &[u8] = b"trusted.overlay.opaque";
const OPAQUE_USER: &[u8] = b"user.overlay.opaque";

/// How removed names appear in the tree. Whiteouts hide what lower layers have; entries of the same layer survive them
/// whatever their order (OCI image-spec `layer.md`, Whiteouts).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whiteouts {
    /// As overlayfs wants them in a lower directory: a character device 0:0 for a removed name, the attribute
    /// `trusted.overlay.opaque` (`user.overlay.opaque` where only that is allowed) on an opaque directory. The tree
    /// must be empty at the start and hold nothing but this layer.
    Overlay,
    /// What lower layers left in the tree is removed.
    Remove,
    /// Not at all: `.wh.` names are ordinary files, as in archives that ADD extracts.
    Ordinary,
}

/// What becomes of names that climb out of the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Names {
    /// The layer is refused.
    Refuse,
    /// `..` at the top stays there.
    Clamp,
}

/// How an archive is applied.
#[derive(Debug, Clone)]
pub struct Rules {
    /// The directory that the names of the archive start from. Must exist; links in it are followed.
    pub base: GuestPath,
    /// What becomes of names that climb out.
    pub names: Names,
    /// How whiteouts are treated.
    pub whiteouts: Whiteouts,
    /// Whom everything belongs to instead of the owner in the archive.
    pub owner: Option<Owner>,
}

impl Rules {
    /// Those of an image's layer.
    #[must_use]
    pub fn layer(whiteouts: Whiteouts) -> Self {
        Self { base: GuestPath::root(), names: Names::Refuse, whiteouts, owner: None }
    }
}

/// Something of the layer that the tree does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// Where.
    pub path: GuestPath,
    /// What, and why, for a person.
    pub what: String,
}

/// What a layer held, and what only the layers below it can settle.
///
/// Unpacking a layer alone ([`Whiteouts::Overlay`]) equals applying it to the layers below if and only if no path of
/// `implied` is a symbolic link there, metadata of implied directories are taken from there, and hard links in
/// `missing_links` are made.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Entries of the archive, whiteouts included.
    pub entries: u64,
    /// Bytes of the uncompressed archive.
    pub bytes: u64,
    /// Directories that had no entry of their own when something below them was made, by their real path, sorted. They
    /// are 0755, 0:0, from 1970. Left out is what the layer itself hides from the layers below. [`Whiteouts::Overlay`] only.
    pub implied: Vec<GuestPath>,
    /// What is left out of `implied`, sorted. What the layers below have there does not matter, except for a link that an
    /// earlier entry of the layer would have gone through.
    pub hidden: Vec<GuestPath>,
    /// Character devices 0:0 made for removed names. [`Whiteouts::Overlay`] only.
    pub whiteouts: u64,
    /// Those of `implied` that got an entry later in the archive: their metadata are their own.
    pub own_entry_later: Vec<GuestPath>,
    /// Those of `implied` and `hidden` that hold nothing but whiteouts and directories of this kind: without a visible
    /// directory of that name in the layers below, they do not exist.
    pub only_whiteouts: Vec<GuestPath>,
    /// Hard links whose target the layer lacked, with their target, in the order of the archive; nothing is made for
    /// them but the directory. Later entries may have taken their place. [`Whiteouts::Overlay`] only: else that is an error.
    pub missing_links: Vec<(GuestPath, GuestPath)>,
    /// The root is opaque: nothing of the layers below is visible. Overlayfs has no sign for it.
    pub opaque_root: bool,
    /// What could not be made or set here.
    pub skipped: Vec<Skipped>,
}

/// Applies the layer in `tar` (uncompressed) to the tree `onto`.
///
/// On an error the tree holds a part of the layer; nothing outside it has changed. All of `tar` is read, padding and
/// all, so that a reader below can check it.
///
/// # Errors
/// [`LayerError`], with the entry that is to blame.
pub fn apply(
    tar: &mut dyn Read,
    onto: &Rootfs,
    whiteouts: Whiteouts,
    limits: &Limits,
) -> Result<Applied, LayerError> {
    apply_with(tar, onto, &Rules::layer(whiteouts), limits)
}

/// [`apply`] with all choices.
///
/// # Errors
/// As [`apply`].
pub fn apply_with(
    tar: &mut dyn Read,
    onto: &Rootfs,
    rules: &Rules,
    limits: &Limits,
) -> Result<Applied, LayerError> {
    let mut reader = Reader::new(tar, limits.bytes);
    let mut applier = Applier {
        root: onto,
        rules,
        limits,
        applied: Applied::default(),
        bytes: 0,
        reported: 0,
        parent: None,
        implied: BTreeMap::new(),
        implied_inodes: BTreeMap::new(),
        lower: Lower::default(),
        buffer: vec![0; 1 << 17],
    };
    while let Some(entry) = reader.next_entry()? {
        let result = applier.entry(&mut reader, &entry);
        result.map_err(|problem| LayerError::Entry { name: Escaped::new(&entry.path), problem })?;
    }
    reader.drain()?;
    applier.finish(reader.position())
}

/// The directory that entries are being made in.
struct Parent {
    /// Its name in the archive.
    path: GuestPath,
    directory: OwnedFd,
    inode: u64,
    /// Making entries changes it; it is set back when the directory is left.
    mtime: Timestamp,
}

/// What is known of an implied directory.
struct Implied {
    own_entry: bool,
    hidden: bool,
}

struct Applier<'a> {
    root: &'a Rootfs,
    rules: &'a Rules,
    limits: &'a Limits,
    applied: Applied,
    bytes: u64,
    reported: u64,
    parent: Option<Parent>,
    implied: BTreeMap<GuestPath, Implied>,
    implied_inodes: BTreeMap<u64, GuestPath>,
    lower: Lower,
    buffer: Vec<u8>,
}

/// What an entry is about.
enum Meaning {
    Put(GuestPath),
    Root,
    Whiteout {
        directory: GuestPath,
        name: Vec<u8>,
    },
    Opaque(GuestPath),
    /// What the storage driver aufs left in old layers.
    Leftover(GuestPath),
}

fn io_error<T, E: Into<io::Error>>(result: Result<T, E>, action: &'static str) -> Result<T, EntryError> {
    result.map_err(|error| EntryError::Io { action, source: error.into() })
}

impl Applier<'_> {
    fn entry(&mut self, reader: &mut Reader<&mut dyn Read>, entry: &Entry) -> Result<(), EntryError> {
        self.applied.entries += 1;
        if self.applied.entries > self.limits.entries {
            return Err(EntryError::Entries(self.limits.entries));
        }
        self.bytes = self.bytes.saturating_add(entry.size);
        if self.bytes > self.limits.bytes {
            return Err(EntryError::Bytes(self.limits.bytes));
        }
        let reserved =
            |key: &&Vec<u8>| key.starts_with(b"trusted.overlay.") || key.starts_with(b"user.overlay.");
        if let Some(key) = entry.xattrs.keys().find(reserved) {
            return Err(EntryError::OverlayAttribute(Escaped::new(key)));
        }
        match self.meaning(entry)? {
            Meaning::Root => self.root_entry(entry),
            Meaning::Put(path) => self.put(reader, entry, &path),
            Meaning::Whiteout { directory, name } => self.whiteout(&directory, &name),
            Meaning::Opaque(directory) => self.opaque(&directory),
            Meaning::Leftover(path) => self.skip(path, "leftover of aufs".to_owned()),
        }
    }

    fn path(&self, name: &[u8]) -> Result<GuestPath, crate::rootfs::GuestPathError> {
        let path = match self.rules.names {
            Names::Refuse => GuestPath::parse(name)?,
            Names::Clamp => GuestPath::clamp(name)?,
        };
        self.rules.base.join(path.relative())
    }

    fn meaning(&self, entry: &Entry) -> Result<Meaning, EntryError> {
        if self.rules.whiteouts != Whiteouts::Ordinary {
            // Taken apart before the name is checked: the prefix may make it longer than any file's name.
            let name = without_slashes(&entry.path);
            let (directory, base) = match name.iter().rposition(|byte| *byte == b'/') {
                Some(slash) => (&name[..=slash], &name[slash + 1..]),
                None => (&b"."[..], name),
            };
            if base.starts_with(WHITEOUT_PREFIX) {
                return self.whiteout_meaning(directory, base);
            }
        }
        let path = self.path(&entry.path).map_err(EntryError::Name)?;
        if path == self.rules.base {
            return Ok(Meaning::Root);
        }
        if self.rules.whiteouts != Whiteouts::Ordinary {
            if path.relative().starts_with(RESERVED_PREFIX) {
                return Ok(Meaning::Leftover(path));
            }
            if path.components().any(|component| component.starts_with(WHITEOUT_PREFIX)) {
                return Err(EntryError::Reserved);
            }
        }
        Ok(Meaning::Put(path))
    }

    fn whiteout_meaning(&self, directory: &[u8], base: &[u8]) -> Result<Meaning, EntryError> {
        let directory = self.path(directory).map_err(EntryError::Name)?;
        if base == OPAQUE_MARKER {
            return Ok(Meaning::Opaque(directory));
        }
        let leftover = directory.relative().starts_with(RESERVED_PREFIX) || base.starts_with(RESERVED_PREFIX);
        if leftover {
            return Ok(Meaning::Leftover(directory));
        }
        if directory.components().any(|component| component.starts_with(WHITEOUT_PREFIX)) {
            return Err(EntryError::Reserved);
        }
        let name = &base[WHITEOUT_PREFIX.len()..];
        if matches!(name, b"" | b"." | b"..") {
            return Err(EntryError::Whiteout);
        }
        // The rules for names hold for the removed name too.
        directory.join(name).map_err(EntryError::Name)?;
        Ok(Meaning::Whiteout { directory, name: name.to_vec() })
    }

    fn report(&mut self, bytes: usize) -> Result<(), EntryError> {
        // What a path costs besides its bytes.
        self.reported += bytes as u64 + 64;
        if self.reported > self.limits.reported {
            Err(EntryError::Reported(self.limits.reported))
        } else {
            Ok(())
        }
    }

    fn skip(&mut self, path: GuestPath, what: String) -> Result<(), EntryError> {
        self.report(path.as_bytes().len() + what.len())?;
        self.applied.skipped.push(Skipped { path, what });
        Ok(())
    }

    fn root_entry(&mut self, entry: &Entry) -> Result<(), EntryError> {
        if entry.kind != EntryKind::Directory {
            return Err(EntryError::Root);
        }
        // ADD leaves the directory it extracts into as it is.
        if self.rules.whiteouts == Whiteouts::Ordinary {
            return Ok(());
        }
        self.leave_parent()?;
        let directory = self.root.directory(&self.rules.base)?;
        let skipped = set_directory_metadata(directory.as_fd(), b".", entry, self.rules.owner)?;
        self.skip_xattrs(&self.rules.base.clone(), skipped)
    }

    fn put(
        &mut self,
        reader: &mut Reader<&mut dyn Read>,
        entry: &Entry,
        path: &GuestPath,
    ) -> Result<(), EntryError> {
        let target =
            if entry.kind == EntryKind::HardLink { Some(self.link_target(entry, path)?) } else { None };
        let directory = path.parent().unwrap_or_else(GuestPath::root);
        let name = path.file_name().unwrap_or(b".");
        self.enter_parent(&directory)?;
        let Some(parent) = self.parent.take() else { return Err(EntryError::NotADirectory(directory)) };
        let result = self.put_into(reader, entry, path, &parent, name, target.as_ref());
        self.parent = Some(parent);
        result
    }

    fn put_into(
        &mut self,
        reader: &mut Reader<&mut dyn Read>,
        entry: &Entry,
        path: &GuestPath,
        parent: &Parent,
        name: &[u8],
        target: Option<&Target>,
    ) -> Result<(), EntryError> {
        let at = parent.directory.as_fd();
        if target.is_some_and(|target| target.directory == Some(parent.inode) && target.name == name) {
            return Err(EntryError::LinkToItself);
        }
        let before = self.make_room(at, name, entry.kind)?;
        if before != Room::Directory && self.rules.whiteouts == Whiteouts::Remove {
            self.lower.put.insert(parent.inode, name);
        }
        let owner = self.rules.owner.unwrap_or(entry.owner);
        let skipped = match (entry.kind, target) {
            (EntryKind::File, _) => self.make_file(reader, entry, at, name, owner)?,
            (EntryKind::Directory, _) => self.make_directory(entry, parent, name, before)?,
            (EntryKind::HardLink, Some(target)) => {
                self.make_hard_link(at, name, path, target)?;
                Vec::new()
            }
            (EntryKind::HardLink, None) => Vec::new(),
            (EntryKind::Symlink, _) => {
                io_error(rustix::fs::symlinkat(entry.link.as_slice(), at, name), "make the symbolic link")?;
                io_error(set_owner_at(at, name, owner), "set the owner")?;
                let skipped = set_xattrs_at(at, name, &entry.xattrs)?;
                io_error(set_times_at(at, name, entry.mtime), "set the times")?;
                skipped
            }
            (EntryKind::CharDevice | EntryKind::BlockDevice | EntryKind::Fifo, _) => {
                self.make_node(entry, at, name, path, owner)?
            }
        };
        self.skip_xattrs(path, skipped)
    }

    fn skip_xattrs(&mut self, path: &GuestPath, skipped: Refused) -> Result<(), EntryError> {
        for (key, error) in skipped {
            let what = format!("extended attribute `{}`: {}", Escaped::new(&key), io::Error::from(error));
            self.skip(path.clone(), what)?;
        }
        Ok(())
    }

    /// Goes to the directory `path`, which is made if it is not there.
    fn enter_parent(&mut self, path: &GuestPath) -> Result<(), EntryError> {
        if self.parent.as_ref().is_some_and(|parent| parent.path == *path) {
            return Ok(());
        }
        self.leave_parent()?;
        let directory = match self.root.directory(path) {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                self.make_parents(path)?;
                self.root.directory(path)?
            }
            result => result?,
        };
        self.remember_parent(path, directory)
    }

    /// Goes to the directory `path` if there is one.
    fn enter_existing_parent(&mut self, path: &GuestPath) -> Result<(), EntryError> {
        if self.parent.as_ref().is_some_and(|parent| parent.path == *path) {
            return Ok(());
        }
        self.leave_parent()?;
        match self.root.directory(path) {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Ok(())
            }
            result => self.remember_parent(path, result?),
        }
    }

    fn remember_parent(&mut self, path: &GuestPath, directory: OwnedFd) -> Result<(), EntryError> {
        let metadata = io_error(metadata_of(&directory), "read metadata of the directory")?;
        let (inode, mtime) = (metadata.inode, metadata.mtime);
        self.parent = Some(Parent { path: path.clone(), directory, inode, mtime });
        Ok(())
    }

    fn leave_parent(&mut self) -> Result<(), EntryError> {
        match self.parent.take() {
            Some(parent) => io_error(
                set_times_at(parent.directory.as_fd(), b".", parent.mtime),
                "set the times of the directory",
            ),
            None => Ok(()),
        }
    }

    fn make_parents(&mut self, path: &GuestPath) -> Result<(), EntryError> {
        let root = self.root;
        root.walk(path, |real, metadata| match metadata {
            Some(metadata) if metadata.kind == FileKind::Directory => Ok(()),
            Some(metadata) if self.is_whiteout(metadata) => self.make_implied(real, Room::Whiteout),
            Some(_) => Err(EntryError::NotADirectory(real.clone())),
            None => self.make_implied(real, Room::Free),
        })?;
        Ok(())
    }

    fn is_whiteout(&self, metadata: &Metadata) -> bool {
        self.rules.whiteouts == Whiteouts::Overlay && metadata.is_overlay_whiteout()
    }

    /// Makes a directory that has no entry of its own (yet).
    fn make_implied(&mut self, path: &GuestPath, before: Room) -> Result<(), EntryError> {
        let (parent, name) = self.root.parent(path)?;
        let parent = parent.as_fd();
        let mtime = io_error(metadata_of(parent), "read metadata of the directory")?.mtime;
        if before == Room::Whiteout {
            io_error(
                rustix::fs::unlinkat(parent, name.as_slice(), AtFlags::empty()),
                "replace the whiteout",
            )?;
        }
        io_error(rustix::fs::mkdirat(parent, name.as_slice(), Mode::RWXU), "make the directory above it")?;
        let owner = self.rules.owner.unwrap_or(Owner::ROOT);
        reset_directory(parent, &name, owner)?;
        let hidden = before == Room::Whiteout;
        if hidden {
            io_error(mark_opaque(parent, &name), "mark the directory as opaque")?;
        }
        if self.rules.whiteouts == Whiteouts::Overlay {
            self.report(path.as_bytes().len() * 2)?;
            let inode = io_error(metadata_at(parent, &name), "read metadata of the directory")?.inode;
            self.implied.insert(path.clone(), Implied { own_entry: false, hidden });
            self.implied_inodes.insert(inode, path.clone());
        }
        io_error(set_times_at(parent, b".", mtime), "set the times of the directory")
    }

    /// Removes what is in the way of an entry: everything but a directory in the way of a directory.
    fn make_room(&self, at: BorrowedFd<'_>, name: &[u8], kind: EntryKind) -> Result<Room, EntryError> {
        let metadata = match metadata_at(at, name) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Room::Free),
            result => io_error(result, "read metadata")?,
        };
        if metadata.kind == FileKind::Directory && kind == EntryKind::Directory {
            return Ok(Room::Directory);
        }
        io_error(remove_tree(at, name), "remove what was there")?;
        // A file of this layer hid what the layers below have, and a directory in its place still does.
        let hides = self.rules.whiteouts == Whiteouts::Overlay && kind == EntryKind::Directory;
        Ok(if hides || self.is_whiteout(&metadata) { Room::Whiteout } else { Room::Free })
    }

    fn make_file(
        &mut self,
        reader: &mut Reader<&mut dyn Read>,
        entry: &Entry,
        at: BorrowedFd<'_>,
        name: &[u8],
        owner: Owner,
    ) -> Result<Refused, EntryError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = io_error(rustix::fs::openat(at, name, flags, Mode::RUSR | Mode::WUSR), "make the file")?;
        loop {
            let count = reader.read_content(&mut self.buffer)?;
            if count == 0 {
                break;
            }
            let mut rest = &self.buffer[..count];
            while !rest.is_empty() {
                match rustix::io::write(&file, rest) {
                    Ok(written) => rest = &rest[written..],
                    Err(Errno::INTR) => {}
                    Err(error) => return io_error(Err(error), "write the file"),
                }
            }
        }
        set_metadata_of(&file, entry, owner)
    }

    fn make_directory(
        &mut self,
        entry: &Entry,
        parent: &Parent,
        name: &[u8],
        before: Room,
    ) -> Result<Refused, EntryError> {
        let at = parent.directory.as_fd();
        if before == Room::Directory {
            let inode = io_error(metadata_at(at, name), "read metadata")?.inode;
            if let Some(implied) = self.implied_inodes.get(&inode).and_then(|path| self.implied.get_mut(path))
            {
                implied.own_entry = true;
            }
            if self.rules.whiteouts == Whiteouts::Remove {
                self.lower.put.insert(parent.inode, name);
            }
        } else {
            io_error(rustix::fs::mkdirat(at, name, Mode::RWXU), "make the directory")?;
        }
        if before == Room::Whiteout {
            io_error(mark_opaque(at, name), "mark the directory as opaque")?;
            // A directory without an entry may have been here, and a file in its place.
            let real = self.root.resolve(&parent.path)?.child(name);
            if let Some(implied) = self.implied.get_mut(&real) {
                implied.own_entry = true;
            }
        }
        set_directory_metadata(at, name, entry, self.rules.owner)
    }

    fn make_node(
        &mut self,
        entry: &Entry,
        at: BorrowedFd<'_>,
        name: &[u8],
        path: &GuestPath,
        owner: Owner,
    ) -> Result<Refused, EntryError> {
        let (file_type, what) = match entry.kind {
            EntryKind::CharDevice => (FileType::CharacterDevice, "character device"),
            EntryKind::BlockDevice => (FileType::BlockDevice, "block device"),
            _ => (FileType::Fifo, "FIFO"),
        };
        let (major, minor) = entry.device;
        if self.rules.whiteouts == Whiteouts::Overlay
            && entry.kind == EntryKind::CharDevice
            && entry.device == (0, 0)
        {
            let what = "character device 0:0, which overlayfs would take for a whiteout".to_owned();
            self.skip(path.clone(), what)?;
            return Ok(Vec::new());
        }
        let device = rustix::fs::makedev(major, minor);
        match rustix::fs::mknodat(at, name, file_type, Mode::RUSR | Mode::WUSR, device) {
            Err(Errno::PERM) => {
                let what = format!("{what} {major}:{minor}: {}", io::Error::from(Errno::PERM));
                self.skip(path.clone(), what)?;
                return Ok(Vec::new());
            }
            result => io_error(result, "make the device or FIFO")?,
        }
        io_error(set_owner_at(at, name, owner), "set the owner")?;
        io_error(set_mode_at(at, name, entry.mode), "set the mode")?;
        let skipped = set_xattrs_at(at, name, &entry.xattrs)?;
        io_error(set_times_at(at, name, entry.mtime), "set the times")?;
        Ok(skipped)
    }

    /// Finds what a hard link points to, before anything is removed for it.
    fn link_target(&self, entry: &Entry, path: &GuestPath) -> Result<Target, EntryError> {
        let target = self.path(&entry.link).map_err(EntryError::Target)?;
        if target == *path {
            return Err(EntryError::LinkToItself);
        }
        let Some((parent, name)) = target.parent().zip(target.file_name()) else {
            return Err(EntryError::LinkToDirectory(target));
        };
        let real_parent = self.root.resolve(&parent)?;
        let real = real_parent.child(name);
        match self.root.metadata(&real, Follow::No)? {
            Some(metadata) if metadata.kind == FileKind::Directory => {
                Err(EntryError::LinkToDirectory(target))
            }
            Some(metadata) if !self.is_whiteout(&metadata) => {
                let directory =
                    io_error(metadata_of(self.root.directory(&real_parent)?), "read metadata")?.inode;
                Ok(Target { real, directory: Some(directory), name: name.to_vec() })
            }
            // A link of this layer led there, so the layer itself should hold the file.
            None if self.rules.whiteouts == Whiteouts::Overlay && real_parent == parent => {
                Ok(Target { real, directory: None, name: name.to_vec() })
            }
            _ => Err(EntryError::LinkToNothing(target)),
        }
    }

    fn make_hard_link(
        &mut self,
        at: BorrowedFd<'_>,
        name: &[u8],
        path: &GuestPath,
        target: &Target,
    ) -> Result<(), EntryError> {
        if target.directory.is_none() {
            let parent = path.parent().unwrap_or_else(GuestPath::root);
            let link = self.root.resolve(&parent)?.child(name);
            self.report(link.as_bytes().len() + target.real.as_bytes().len())?;
            self.applied.missing_links.push((link, target.real.clone()));
            return Ok(());
        }
        let (from, from_name) = self.root.parent(&target.real)?;
        let result = rustix::fs::linkat(&from, from_name.as_slice(), at, name, AtFlags::empty());
        // Owner, mode and attributes are those of the file: its own entry has set them.
        io_error(result, "make the hard link")
    }

    fn whiteout(&mut self, directory: &GuestPath, name: &[u8]) -> Result<(), EntryError> {
        if self.rules.whiteouts == Whiteouts::Remove {
            self.enter_existing_parent(directory)?;
            let Some(parent) = &self.parent else { return Ok(()) };
            return self.lower.remove(parent.directory.as_fd(), parent.inode, name);
        }
        self.enter_parent(directory)?;
        let Some(parent) = &self.parent else { return Ok(()) };
        let at = parent.directory.as_fd();
        match metadata_at(at, name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.applied.whiteouts += 1;
                let made = rustix::fs::mknodat(at, name, FileType::CharacterDevice, Mode::empty(), 0);
                io_error(made, "make the whiteout")
            }
            Ok(metadata) if metadata.kind == FileKind::Directory => {
                if let Some(path) = self.implied_inodes.get(&metadata.inode)
                    && let Some(implied) = self.implied.get_mut(path)
                {
                    implied.hidden = true;
                }
                io_error(mark_opaque(at, name), "mark the directory as opaque")
            }
            // A file of this layer hides the lower one already.
            result => io_error(result, "read metadata").map(|_| ()),
        }
    }

    fn opaque(&mut self, directory: &GuestPath) -> Result<(), EntryError> {
        if self.rules.whiteouts == Whiteouts::Remove {
            self.enter_existing_parent(directory)?;
            let Some(parent) = &self.parent else { return Ok(()) };
            return self.lower.empty(parent.directory.as_fd());
        }
        self.enter_parent(directory)?;
        let Some(parent) = &self.parent else { return Ok(()) };
        let root = io_error(metadata_of(self.root.as_fd()), "read metadata of the root")?;
        if parent.inode == root.inode {
            self.applied.opaque_root = true;
        }
        io_error(mark_opaque(parent.directory.as_fd(), b"."), "mark the directory as opaque")
    }

    fn finish(mut self, bytes: u64) -> Result<Applied, LayerError> {
        let problem = |problem| LayerError::Entry { name: Escaped::new(b"."), problem };
        self.leave_parent().map_err(problem)?;
        self.applied.bytes = bytes;
        let link_parents: BTreeSet<GuestPath> =
            self.applied.missing_links.iter().filter_map(|(link, _)| link.parent()).collect();
        let mut only_whiteouts = BTreeSet::new();
        // Children come after their parents, so from the back all below a directory is known before it.
        let implied = std::mem::take(&mut self.implied);
        for (path, state) in implied.iter().rev() {
            if !state.own_entry
                && !link_parents.contains(path)
                && self.has_only_whiteouts(path, &only_whiteouts)?
            {
                only_whiteouts.insert(path.clone());
            }
            if state.hidden || self.is_hidden_above(path)? {
                self.applied.hidden.push(path.clone());
                continue;
            }
            if state.own_entry {
                self.applied.own_entry_later.push(path.clone());
            }
            self.applied.implied.push(path.clone());
        }
        self.applied.implied.reverse();
        self.applied.hidden.reverse();
        self.applied.own_entry_later.reverse();
        self.applied.only_whiteouts = only_whiteouts.into_iter().collect();
        Ok(self.applied)
    }

    /// Whether a directory above is opaque, so that the layers below have no say.
    fn is_hidden_above(&self, path: &GuestPath) -> Result<bool, LayerError> {
        if self.applied.opaque_root {
            return Ok(true);
        }
        let mut above = path.parent();
        while let Some(directory) = above.filter(|directory| !directory.is_root()) {
            // What has been replaced by something else meanwhile hides nothing.
            if let Ok((at, name)) = self.root.parent(&directory)
                && is_opaque(at.as_fd(), &name)
            {
                return Ok(true);
            }
            above = directory.parent();
        }
        Ok(false)
    }

    fn has_only_whiteouts(&self, path: &GuestPath, known: &BTreeSet<GuestPath>) -> Result<bool, LayerError> {
        // Later entries may have replaced it, or a directory above, by something else.
        if !self.root.resolve(path).is_ok_and(|real| real == *path) {
            return Ok(false);
        }
        let metadata = self.root.metadata(path, Follow::No)?;
        if metadata.is_none_or(|metadata| metadata.kind != FileKind::Directory) {
            return Ok(false);
        }
        for (name, kind) in self.root.read_dir(path)? {
            let child = path.child(&name);
            let is_whiteout = match kind {
                FileKind::CharDevice => self
                    .root
                    .metadata(&child, Follow::No)?
                    .is_some_and(|metadata| metadata.is_overlay_whiteout()),
                FileKind::Directory => known.contains(&child),
                _ => false,
            };
            if !is_whiteout {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// What was at the place of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    Free,
    Whiteout,
    Directory,
}

/// What a hard link points to.
struct Target {
    real: GuestPath,
    /// The number of the directory that holds it; none when the target is missing.
    directory: Option<u64>,
    name: Vec<u8>,
}

fn without_slashes(name: &[u8]) -> &[u8] {
    let end = name.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    &name[..end]
}

/// Marks a directory so that overlayfs shows nothing of the layers below in it.
fn mark_opaque(at: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    match set_xattr_at(at, name, OPAQUE_TRUSTED, b"y") {
        // Inside a user namespace overlayfs is mounted with `userxattr` and reads the other name.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            set_xattr_at(at, name, OPAQUE_USER, b"y")
        }
        result => result,
    }
}

fn is_opaque(at: BorrowedFd<'_>, name: &[u8]) -> bool {
    let is_set = |key| matches!(xattr_at(at, name, key), Ok(Some(value)) if value == b"y");
    is_set(OPAQUE_TRUSTED) || is_set(OPAQUE_USER)
}

/// Attributes that the file system or the kernel refused, with the reason. A layer with attributes that mean nothing
/// here is still usable; what is lost is reported.
type Refused = Vec<(Vec<u8>, Errno)>;

fn set_xattrs(xattrs: &Xattrs, set: impl Fn(&[u8], &[u8]) -> io::Result<()>) -> Result<Refused, EntryError> {
    let mut refused = Vec::new();
    for (key, value) in xattrs {
        match set(key, value) {
            Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::OPNOTSUPP | Errno::PERM)) => {
                refused.push((key.clone(), Errno::from_io_error(&error).unwrap_or(Errno::PERM)));
            }
            result => io_error(result, "set an extended attribute")?,
        }
    }
    Ok(refused)
}

fn set_xattrs_at(at: BorrowedFd<'_>, name: &[u8], xattrs: &Xattrs) -> Result<Refused, EntryError> {
    set_xattrs(xattrs, |key, value| set_xattr_at(at, name, key, value))
}

/// Sets what an entry says about an open file or directory: the owner first, as that clears setuid bits and
/// capabilities, the times last.
fn set_metadata_of(file: &OwnedFd, entry: &Entry, owner: Owner) -> Result<Refused, EntryError> {
    let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
    io_error(rustix::fs::fchown(file, Some(uid), Some(gid)), "set the owner")?;
    io_error(rustix::fs::fchmod(file, Mode::from_raw_mode(entry.mode)), "set the mode")?;
    let refused = set_xattrs(&entry.xattrs, |key, value| {
        Ok(rustix::fs::fsetxattr(file, key, value, XattrFlags::empty())?)
    })?;
    let time = Timespec { tv_sec: entry.mtime.seconds, tv_nsec: entry.mtime.nanoseconds.into() };
    let times = Timestamps { last_access: time, last_modification: time };
    io_error(rustix::fs::futimens(file, &times), "set the times")?;
    Ok(refused)
}

fn open_directory(at: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, EntryError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    io_error(rustix::fs::openat(at, name, flags, Mode::empty()), "open the directory")
}

/// Gives a directory the metadata of an entry and no other attributes.
fn set_directory_metadata(
    at: BorrowedFd<'_>,
    name: &[u8],
    entry: &Entry,
    owner: Option<Owner>,
) -> Result<Refused, EntryError> {
    let directory = open_directory(at, name)?;
    clear_xattrs(&directory, &entry.xattrs)?;
    set_metadata_of(&directory, entry, owner.unwrap_or(entry.owner))
}

/// Takes away the attributes that are not in `kept`, except those of overlayfs and of security modules.
fn clear_xattrs(directory: &OwnedFd, kept: &Xattrs) -> Result<(), EntryError> {
    for key in io_error(xattrs_at(directory.as_fd(), b"."), "read the extended attributes")?.into_keys() {
        let ours = !key.starts_with(b"trusted.overlay.")
            && !key.starts_with(b"user.overlay.")
            && (!key.starts_with(b"security.") || key == b"security.capability");
        if ours && !kept.contains_key(&key) {
            io_error(remove_xattr_at(directory.as_fd(), b".", &key), "remove an extended attribute")?;
        }
    }
    Ok(())
}

/// Makes an existing directory what one without an entry is: 0755, of `owner`, from 1970.
pub(super) fn reset_directory(at: BorrowedFd<'_>, name: &[u8], owner: Owner) -> Result<(), EntryError> {
    let directory = open_directory(at, name)?;
    clear_xattrs(&directory, &Xattrs::new())?;
    let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
    io_error(rustix::fs::fchown(&directory, Some(uid), Some(gid)), "set the owner")?;
    io_error(rustix::fs::fchmod(&directory, Mode::from_raw_mode(0o755)), "set the mode")?;
    io_error(set_times_at(directory.as_fd(), b".", Timestamp::default()), "set the times")
}
