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
    Escaped, FileKind, Follow, GuestPath, Metadata, Owner, Rootfs, RootfsError, Timestamp, Xattrs,
    metadata_at, metadata_of, remove_tree, remove_xattr_at, set_mode_at, set_owner_at, set_times_at,
    set_xattr_at, xattr_at, xattrs_at,
};

/// The prefix of a whiteout's name.
pub const WHITEOUT_PREFIX: &[u8] = b".wh.";
/// The name of the marker that makes a directory opaque.
pub const OPAQUE_MARKER: &[u8] = b".wh..wh..opq";
const RESERVED_PREFIX: &[u8] = b".wh..wh.";
/// The mode of a whiteout in place of a hard link; that of others is 0.
const MISSING_LINK: Mode = Mode::RUSR;
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
/// Unpacking a layer alone ([`Whiteouts::Overlay`]) equals applying it to the layers below when
/// - no path of `implied` is there as anything but a directory (else the layer has to be applied to them),
/// - directories in `implied`, but not in `own_metadata`, take their metadata from there,
/// - directories in `only_whiteouts` that are not there are removed,
/// - whiteouts in `with_whiteouts` that are not there are removed ([`remove_whiteouts`]),
/// - hard links in `missing_links` are made.
///
/// "There" is what the layers below show at exactly that path ([`Rootfs::exact_metadata`]).
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Entries of the archive, whiteouts included.
    pub entries: u64,
    /// Bytes of the uncompressed archive.
    pub bytes: u64,
    /// Directories that had no entry of their own when something below them was made, by their real path, sorted. They
    /// are 0755, 0:0, from 1970. [`Whiteouts::Overlay`] only.
    pub implied: Vec<GuestPath>,
    /// Those of `implied` that keep their metadata all the same: an entry of their own came later in the archive, or the
    /// layer hides what the layers below have there.
    pub own_metadata: Vec<GuestPath>,
    /// Those of `implied` that hold nothing but whiteouts and directories of this kind: without a directory of that
    /// name in the layers below, they do not exist.
    pub only_whiteouts: Vec<GuestPath>,
    /// Directories that hold whiteouts, by their real path, sorted. Overlayfs hides whiteouts only in directories that it
    /// merges: in one that no layer below has, they would be names without a file. [`Whiteouts::Overlay`] only.
    pub with_whiteouts: Vec<GuestPath>,
    /// Hard links whose target the layer lacks, with their target, in the order of the archive; a whiteout stands in
    /// their place, or what later entries made of it. [`Whiteouts::Overlay`] only: else that is an error.
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
/// [`LayerError`], with the entry that is to blame. With [`Whiteouts::Overlay`] see
/// [`LayerError::depends_on_lower_layers`].
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
        with_whiteouts: BTreeSet::new(),
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
    /// Where it really is, once that was needed.
    real: Option<GuestPath>,
}

impl Parent {
    fn real(&mut self, root: &Rootfs) -> Result<&GuestPath, EntryError> {
        let real = match self.real.take() {
            Some(real) => real,
            None => root.resolve(&self.path)?,
        };
        Ok(self.real.insert(real))
    }
}

/// What is known of an implied directory.
#[derive(Default)]
struct Implied {
    own_entry: bool,
    /// The layer has a whiteout for it.
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
    with_whiteouts: BTreeSet<GuestPath>,
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
        let Some(mut parent) = self.parent.take() else { return Err(EntryError::NotADirectory(directory)) };
        let result = self.put_into(reader, entry, path, &mut parent, name, target.as_ref());
        self.parent = Some(parent);
        result
    }

    fn put_into(
        &mut self,
        reader: &mut Reader<&mut dyn Read>,
        entry: &Entry,
        path: &GuestPath,
        parent: &mut Parent,
        name: &[u8],
        target: Option<&Target>,
    ) -> Result<(), EntryError> {
        if target.is_some_and(|target| target.directory == Some(parent.inode) && target.name == name) {
            return Err(EntryError::LinkToItself);
        }
        let before = self.make_room(parent.directory.as_fd(), name, entry.kind)?;
        if before != Room::Directory && self.rules.whiteouts == Whiteouts::Remove {
            self.lower.put.insert(parent.inode, name);
        }
        if entry.kind == EntryKind::Directory {
            let skipped = self.make_directory(entry, parent, name, before)?;
            return self.skip_xattrs(path, skipped);
        }
        let at = parent.directory.as_fd();
        let owner = self.rules.owner.unwrap_or(entry.owner);
        let skipped = match (entry.kind, target) {
            (EntryKind::File, _) => self.make_file(reader, entry, at, name, owner)?,
            (EntryKind::HardLink, Some(target)) => {
                self.make_hard_link(at, name, path, target)?;
                Vec::new()
            }
            (EntryKind::HardLink | EntryKind::Directory, _) => Vec::new(),
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

    /// Goes to the directory `path`, which is made unless the layer itself hides or replaces it; then a whiteout below it
    /// has nothing to say.
    fn enter_parent_of_whiteout(&mut self, path: &GuestPath) -> Result<bool, EntryError> {
        if self.parent.as_ref().is_some_and(|parent| parent.path == *path) {
            return Ok(true);
        }
        self.leave_parent()?;
        let root = self.root;
        let walked = root.walk(path, |real, metadata| match metadata {
            Some(metadata) if metadata.kind == FileKind::Directory => Ok(()),
            Some(_) => Err(EntryError::NotADirectory(real.clone())),
            None => self.make_implied(real, Room::Free),
        });
        match walked {
            Err(EntryError::NotADirectory(_)) => Ok(false),
            Err(error) => Err(error),
            Ok(_) => {
                let directory = self.root.directory(path)?;
                self.remember_parent(path, directory)?;
                Ok(true)
            }
        }
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
        self.parent = Some(Parent { path: path.clone(), directory, inode, mtime, real: None });
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
            // It may be a link to a symbolic link to a directory.
            Some(metadata) if self.is_whiteout(metadata) && metadata.mode == MISSING_LINK.bits() => {
                Err(EntryError::NotADirectory(real.clone()))
            }
            Some(metadata) if self.is_whiteout(metadata) => self.make_implied(real, Room::Hiding),
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
        if before == Room::Hiding {
            io_error(
                rustix::fs::unlinkat(parent, name.as_slice(), AtFlags::empty()),
                "replace the whiteout",
            )?;
        }
        io_error(rustix::fs::mkdirat(parent, name.as_slice(), Mode::RWXU), "make the directory above it")?;
        let owner = self.rules.owner.unwrap_or(Owner::ROOT);
        reset_directory(parent, &name, owner)?;
        if before == Room::Hiding {
            io_error(mark_opaque(parent, &name), "mark the directory as opaque")?;
        } else if self.rules.whiteouts == Whiteouts::Overlay {
            self.report(path.as_bytes().len())?;
            self.implied.entry(path.clone()).or_default();
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
        Ok(if self.rules.whiteouts == Whiteouts::Overlay { Room::Hiding } else { Room::Free })
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
        parent: &mut Parent,
        name: &[u8],
        before: Room,
    ) -> Result<Refused, EntryError> {
        let real = if self.implied.is_empty() { None } else { Some(parent.real(self.root)?.child(name)) };
        if let Some(implied) = real.and_then(|real| self.implied.get_mut(&real)) {
            implied.own_entry = true;
        }
        let at = parent.directory.as_fd();
        if before != Room::Directory {
            io_error(rustix::fs::mkdirat(at, name, Mode::RWXU), "make the directory")?;
        } else if self.rules.whiteouts == Whiteouts::Remove {
            self.lower.put.insert(parent.inode, name);
        }
        if before == Room::Hiding {
            io_error(mark_opaque(at, name), "mark the directory as opaque")?;
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

    fn has_no_entry(&self, path: &GuestPath) -> bool {
        self.implied.get(path).is_some_and(|implied| !implied.own_entry)
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
            // Without an entry, it may be something else in the layers below.
            Some(metadata) if metadata.kind == FileKind::Directory && self.has_no_entry(&real) => {
                Ok(Target { real, directory: None, name: name.to_vec() })
            }
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
            // Whatever replaces the link later in the archive must hide the lower layers as the link does.
            let whiteout = rustix::fs::mknodat(at, name, FileType::CharacterDevice, MISSING_LINK, 0);
            return io_error(whiteout, "make a whiteout in place of the hard link");
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
        if !self.enter_parent_of_whiteout(directory)? {
            return Ok(());
        }
        let Some(parent) = &mut self.parent else { return Ok(()) };
        let at = parent.directory.as_fd();
        match metadata_at(at, name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let result = rustix::fs::mknodat(at, name, FileType::CharacterDevice, Mode::empty(), 0);
                io_error(result, "make the whiteout")?;
                let real = parent.real(self.root)?;
                if !self.with_whiteouts.contains(real) {
                    let real = real.clone();
                    self.report(real.as_bytes().len())?;
                    self.with_whiteouts.insert(real);
                }
                Ok(())
            }
            Ok(metadata) if metadata.kind == FileKind::Directory => {
                io_error(mark_opaque(at, name), "mark the directory as opaque")?;
                if !self.implied.is_empty()
                    && let Some(implied) = self.implied.get_mut(&parent.real(self.root)?.child(name))
                {
                    implied.hidden = true;
                }
                Ok(())
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
        if !self.enter_parent_of_whiteout(directory)? {
            return Ok(());
        }
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
        self.finish_implied(&link_parents)?;
        for path in std::mem::take(&mut self.with_whiteouts) {
            if !self.is_directory(&path)? {
                continue;
            }
            let (at, name) = self.root.parent(&path)?;
            if is_opaque(at.as_fd(), &name) || self.is_hidden_above(&path)? {
                remove_whiteouts(self.root, &path)?;
            } else {
                self.applied.with_whiteouts.push(path);
            }
        }
        Ok(self.applied)
    }

    /// Reports the implied directories; those that stand for nothing but whiteouts below what the layer hides anyway go.
    fn finish_implied(&mut self, link_parents: &BTreeSet<GuestPath>) -> Result<(), LayerError> {
        let mut only_whiteouts = BTreeSet::new();
        // Children come after their parents, so from the back all below a directory is known before it.
        for (path, state) in std::mem::take(&mut self.implied).iter().rev() {
            let is_empty = !state.own_entry
                && !link_parents.contains(path)
                && self.has_only_whiteouts(path, &only_whiteouts)?;
            let hidden = state.hidden || self.is_hidden_above(path)?;
            if hidden && is_empty {
                self.replace_by_whiteout(path)?;
            }
            if hidden || state.own_entry {
                self.applied.own_metadata.push(path.clone());
            } else if is_empty {
                only_whiteouts.insert(path.clone());
            }
            self.applied.implied.push(path.clone());
        }
        self.applied.implied.reverse();
        self.applied.own_metadata.reverse();
        self.applied.only_whiteouts = only_whiteouts.into_iter().collect();
        Ok(())
    }

    fn replace_by_whiteout(&mut self, path: &GuestPath) -> Result<(), LayerError> {
        let parent_path = path.parent().unwrap_or_else(GuestPath::root);
        let mtime =
            self.root.metadata(&parent_path, Follow::No)?.map_or(Timestamp::default(), |parent| parent.mtime);
        self.root.remove(path)?;
        let (at, name) = self.root.parent(path)?;
        let made = rustix::fs::mknodat(&at, name.as_slice(), FileType::CharacterDevice, Mode::empty(), 0);
        let failed = |source| RootfsError::Io { action: "make the whiteout", path: path.clone(), source };
        made.map_err(|error| failed(error.into()))?;
        set_times_at(at.as_fd(), b".", mtime).map_err(failed)?;
        self.with_whiteouts.insert(parent_path);
        Ok(())
    }

    /// Whether there is a directory at exactly `path`.
    fn is_directory(&self, path: &GuestPath) -> Result<bool, LayerError> {
        let metadata = self.root.exact_metadata(path)?;
        Ok(metadata.is_some_and(|metadata| metadata.kind == FileKind::Directory))
    }

    /// Whether a directory above is opaque, so that the layers below have no say.
    fn is_hidden_above(&self, path: &GuestPath) -> Result<bool, LayerError> {
        if self.applied.opaque_root {
            return Ok(true);
        }
        let mut above = path.parent();
        while let Some(directory) = above.filter(|directory| !directory.is_root()) {
            // What has been replaced by something else meanwhile hides nothing.
            if self.is_directory(&directory)? {
                let (at, name) = self.root.parent(&directory)?;
                if is_opaque(at.as_fd(), &name) {
                    return Ok(true);
                }
            }
            above = directory.parent();
        }
        Ok(false)
    }

    fn has_only_whiteouts(&self, path: &GuestPath, known: &BTreeSet<GuestPath>) -> Result<bool, LayerError> {
        if !self.is_directory(path)? {
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

/// Removes the whiteouts (character devices 0:0) in the directory `path`, whose modification time stays.
///
/// # Errors
/// When the directory cannot be read or changed.
pub fn remove_whiteouts(root: &Rootfs, path: &GuestPath) -> Result<(), RootfsError> {
    let mtime = root.metadata(path, Follow::No)?.map(|metadata| metadata.mtime);
    for (name, kind) in root.read_dir(path)? {
        let child = path.child(&name);
        if kind == FileKind::CharDevice
            && root.metadata(&child, Follow::No)?.is_some_and(|metadata| metadata.is_overlay_whiteout())
        {
            root.remove(&child)?;
        }
    }
    let Some(mtime) = mtime else { return Ok(()) };
    let (at, name) = root.parent(path)?;
    set_times_at(at.as_fd(), &name, mtime).map_err(|source| RootfsError::Io {
        action: "set the times of",
        path: path.clone(),
        source,
    })
}

/// What was at the place of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    /// Nothing that matters.
    Free,
    /// A whiteout, or something else than a directory: it hid what lower layers have, and what replaces it must too.
    Hiding,
    /// A directory, which stays.
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

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use proptest::prelude::*;

    use super::super::test_support::{
        Times, dir, dir_mode, dump, file, hard_link, is_root, overlay, path, symlink, what,
    };
    use super::*;

    fn alone(tar: &[u8]) -> (tempfile::TempDir, Rootfs, Applied) {
        let directory = tempfile::tempdir().unwrap();
        let root = Rootfs::open(directory.path()).unwrap();
        let applied = apply(&mut Cursor::new(tar), &root, Whiteouts::Overlay, &Limits::default()).unwrap();
        (directory, root, applied)
    }

    fn texts(paths: &[GuestPath]) -> Vec<String> {
        paths.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn directories_without_an_entry_are_reported() {
        if !is_root() {
            return;
        }
        let layer = [
            file("late/f", b""),
            dir_mode("late", 0o700),
            file("plain/deep/f", b""),
            file("removed/only/.wh.x", b""),
            file("removed/.wh.y", b""),
            file("mixed/.wh.x", b""),
            file("mixed/f", b""),
            file("hidden/f", b""),
            file(".wh.hidden", b""),
            file("opaque/below/f", b""),
            file("opaque/.wh..wh..opq", b""),
            symlink("link", "elsewhere/inside"),
            file("link/f", b""),
            dir("own"),
            file("own/f", b""),
            hard_link("links/hl", "lower/file"),
        ]
        .concat();
        let (_directory, root, applied) = alone(&layer);
        assert_eq!(
            texts(&applied.implied),
            [
                "/elsewhere",
                "/elsewhere/inside",
                "/hidden",
                "/late",
                "/links",
                "/mixed",
                "/opaque",
                "/opaque/below",
                "/plain",
                "/plain/deep",
                "/removed",
                "/removed/only"
            ]
        );
        assert_eq!(texts(&applied.own_metadata), ["/hidden", "/late", "/opaque/below"]);
        assert_eq!(texts(&applied.only_whiteouts), ["/removed", "/removed/only"]);
        assert_eq!(applied.missing_links, [(path("/links/hl"), path("/lower/file"))]);
        assert!(!applied.opaque_root);
        let plain = root.metadata(&path("/plain"), Follow::No).unwrap().unwrap();
        assert_eq!((plain.mode, plain.owner, plain.mtime), (0o755, Owner::ROOT, Timestamp::default()));
        assert_eq!(root.metadata(&path("/late"), Follow::No).unwrap().unwrap().mode, 0o700);
    }

    #[test]
    fn whiteouts_are_what_overlayfs_wants() {
        if !is_root() {
            return;
        }
        let layer =
            [file("d/.wh.x", b""), file(".wh.e", b""), dir("e"), file("f/.wh..wh..opq", b"")].concat();
        let (_directory, root, _) = alone(&layer);
        assert!(root.metadata(&path("/d/x"), Follow::No).unwrap().unwrap().is_overlay_whiteout());
        for directory in ["/e", "/f"] {
            let xattrs = root.xattrs(&path(directory)).unwrap();
            assert_eq!(xattrs.get(OPAQUE_TRUSTED).or(xattrs.get(OPAQUE_USER)).unwrap(), b"y", "{directory}");
        }
        assert!(alone(&file(".wh..wh..opq", b"")).2.opaque_root);
    }

    #[test]
    fn times_of_directories_are_those_of_their_entries() {
        if !is_root() {
            return;
        }
        use super::super::test_support::{Header, header};
        let old = |name| Header { mtime: 1000, mode: 0o755, ..header(name, b'5') }.bytes();
        let first =
            [old("./"), old("d"), old("d/e"), file("d/e/f", b"x"), file("d/g", b"x"), file("h", b"x")]
                .concat();
        let second = [file("d/new", b"x"), file("d/.wh.g", b""), file("d/e/implied/f", b"x")].concat();
        let (_directory, root, _) = alone(&first);
        apply(&mut Cursor::new(&second), &root, Whiteouts::Remove, &Limits::default()).unwrap();
        for name in ["/", "/d", "/d/e"] {
            assert_eq!(
                root.metadata(&path(name), Follow::No).unwrap().unwrap().mtime.seconds,
                1000,
                "{name}"
            );
        }
    }

    #[test]
    fn archives_are_extracted_into_a_directory_and_cannot_leave_it() {
        if !is_root() {
            return;
        }
        let (_directory, root, _) =
            alone(&[dir("srv"), symlink("to", "/srv/app"), file("etc", b"old")].concat());
        let archive = [
            dir_mode(".", 0o777),
            file("../../etc", b"x"),
            file("/abs", b"x"),
            file(".wh.etc", b"w"),
            hard_link("hl", "../abs"),
        ]
        .concat();
        let rules = Rules {
            base: path("/to"),
            names: Names::Clamp,
            whiteouts: Whiteouts::Ordinary,
            owner: Some(Owner { uid: 5, gid: 6 }),
        };
        let applied = apply_with(&mut Cursor::new(&archive), &root, &rules, &Limits::default()).unwrap();
        assert_eq!((applied.entries, applied.implied), (5, vec![]));
        for (name, content) in [("etc", "x"), ("abs", "x"), (".wh.etc", "w"), ("hl", "x")] {
            assert_eq!(what(&root, &format!("/srv/app/{name}")).as_deref(), Some(content), "{name}");
        }
        assert_eq!(what(&root, "/etc").as_deref(), Some("old"));
        for name in ["/srv/app", "/srv/app/etc"] {
            let owner = root.metadata(&path(name), Follow::No).unwrap().unwrap().owner;
            assert_eq!(owner, Owner { uid: 5, gid: 6 }, "{name}");
        }
    }

    #[test]
    fn deep_lower_trees_are_removed_with_few_descriptors() {
        if !is_root() {
            return;
        }
        let (_directory, root, _) = alone(&file("a/".repeat(1500) + "f", b"x"));
        let layer = [file("a/a/keep", b"x"), file(".wh.a", b"")].concat();
        apply(&mut Cursor::new(&layer), &root, Whiteouts::Remove, &Limits::default()).unwrap();
        assert_eq!(root.read_dir(&path("/a/a")).unwrap(), [(b"keep".to_vec(), FileKind::File)]);
    }

    /// Name, target of links, and which kind of entry.
    type Op = (String, &'static str, u8);

    fn ops() -> impl Strategy<Value = Vec<Op>> {
        let name = prop::collection::vec("[abc]", 1..4).prop_map(|parts| parts.join("/"));
        let target = prop_oneof![Just("a"), Just("/b"), Just("../c"), Just("a/b"), Just("/c/a")];
        prop::collection::vec((name, target, 0u8..10), 0..8)
    }

    fn layer_of(ops: &[Op]) -> Vec<u8> {
        let entry = |(name, target, what): &Op| {
            let (parent, base) = name.rsplit_once('/').unwrap_or((".", name));
            match what {
                0..=2 => file(name, name.as_bytes()),
                3 | 4 => dir_mode(name, 0o700),
                5 => symlink(name, target),
                6 | 7 => file(format!("{parent}/.wh.{base}"), b""),
                8 => file(format!("{parent}/.wh..wh..opq"), b""),
                _ => hard_link(name, target.trim_start_matches(['.', '/'])),
            }
        };
        ops.iter().flat_map(entry).collect()
    }

    /// Does what is left to the caller; false where layers cannot be unpacked alone.
    fn settle(applied: &Applied, layer: &Rootfs, below: &Rootfs) -> bool {
        if applied.opaque_root || !applied.missing_links.is_empty() {
            return false;
        }
        let is_directory = |metadata: &Metadata| metadata.kind == FileKind::Directory;
        for path in &applied.with_whiteouts {
            if !below.exact_metadata(path).unwrap().is_some_and(|lower| is_directory(&lower)) {
                remove_whiteouts(layer, path).unwrap();
            }
        }
        for path in applied.implied.iter().rev() {
            let lower = below.exact_metadata(path).unwrap();
            if lower.as_ref().is_some_and(|lower| !is_directory(lower)) {
                return false;
            }
            if lower.is_none() && applied.only_whiteouts.contains(path) {
                layer.remove(path).unwrap();
            }
            let now = layer.exact_metadata(path).unwrap();
            if let (Some(lower), Some(now)) = (lower, now)
                && is_directory(&now)
                && !applied.own_metadata.contains(path)
            {
                let (at, name) = layer.parent(path).unwrap();
                set_mode_at(at.as_fd(), &name, lower.mode).unwrap();
            }
        }
        true
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn unpacking_alone_equals_applying_from_the_bottom_up(layers in prop::collection::vec(ops(), 2..4)) {
            if !is_root() {
                return Ok(());
            }
            let directory = tempfile::tempdir().unwrap();
            let open = |name: &str| {
                std::fs::create_dir(directory.path().join(name)).unwrap();
                Rootfs::open(&directory.path().join(name)).unwrap()
            };
            let merged = open("merged");
            open("empty");
            let mut paths = vec![directory.path().join("empty")];
            for (number, ops) in layers.iter().enumerate() {
                let tar = &layer_of(ops);
                let limits = Limits::default();
                let name = number.to_string();
                let layer = open(&name);
                let apart = apply(&mut Cursor::new(tar), &layer, Whiteouts::Overlay, &limits);
                let Ok(_) = apply(&mut Cursor::new(tar), &merged, Whiteouts::Remove, &limits) else { return Ok(()) };
                let lowers: Vec<_> = paths.iter().map(std::path::PathBuf::as_path).collect();
                // Overlayfs wants two layers.
                let below = if lowers.len() == 1 { Rootfs::open(lowers[0]) } else { overlay(&lowers) };
                let Ok(below) = below else {
                    eprintln!("skipped: cannot mount overlayfs");
                    return Ok(());
                };
                let apart = match apart {
                    Ok(apart) => apart,
                    Err(error) if error.depends_on_lower_layers() => return Ok(()),
                    Err(error) => return Err(TestCaseError::fail(format!("{error:?}"))),
                };
                if !settle(&apart, &layer, &below) {
                    return Ok(());
                }
                drop(below);
                paths.push(directory.path().join(name));
                let lowers: Vec<_> = paths.iter().map(std::path::PathBuf::as_path).collect();
                let view = dump(&overlay(&lowers).unwrap(), Times::Files);
                prop_assert_eq!(&view[1..], &dump(&merged, Times::Files)[1..]);
            }
        }
    }
}
