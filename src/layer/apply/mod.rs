//! Applying a layer to a tree.
//!
//! The order of checks is that of umoci's `UnpackEntry`: name, root, parent, whiteout, what is in the way, creation by
//! descriptor and name, owner, mode, attributes, times. No name of the archive is ever resolved by anything but
//! [`Rootfs`]. Memory does not grow with files; per entry it grows only for what [`Applied`] reports and, with
//! [`Whiteouts::Remove`], by 8 bytes. Where whole directories of lower layers are removed, it grows by 8 bytes for each
//! directory there and the names of those beside the way down.

mod application;
mod attributes;
mod create;
mod losses;
mod lower;
mod observe;
mod restricted;
#[cfg(test)]
mod tests;
mod whiteouts;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::AtFlags;

use self::attributes::{Refused, reset_directory, set_directory_metadata};
use self::create::Room;
use self::lower::Lower;
use self::whiteouts::mark_opaque;
use super::tar::{Entry, EntryKind, Reader};
use super::{EntryError, LayerError, Limits};
use crate::rootfs::walk::Step;
use crate::rootfs::{
    Attribute, Escaped, FileKind, GuestPath, GuestPathError, Metadata, Owner, Rootfs, Timestamp, metadata_at,
    metadata_of, set_times_at, xattr_at,
};

pub use self::application::{Application, Climbing, Owners, Rules};
pub use self::losses::{Loss, LossKind, Losses};
pub use self::observe::{Made, Observer};
pub use self::restricted::Restricted;
pub use self::whiteouts::remove_whiteouts;

/// The prefix of a whiteout's name.
pub const WHITEOUT_PREFIX: &[u8] = b".wh.";
/// The name of the marker that makes a directory opaque.
pub const OPAQUE_MARKER: &[u8] = b".wh..wh..opq";
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";
const RESERVED_PREFIX: &[u8] = b".wh..wh.";

/// How removed names appear in the tree. Whiteouts hide what lower layers have; entries of the same layer survive them
/// whatever their order (OCI image-spec `layer.md`, Whiteouts).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whiteouts {
    /// As overlayfs wants them in a lower directory: a character device 0:0 for a removed name, an attribute
    /// ([`Rules::marks`]) on an opaque directory. The tree must be empty at the start and hold nothing but this layer.
    Overlay,
    /// What lower layers left in the tree is removed.
    Remove,
    /// Not at all: `.wh.` names are ordinary files, as in archives that ADD extracts.
    Ordinary,
}

/// What a layer held, and what only the layers below it can settle.
///
/// A layer that was unpacked alone ([`Whiteouts::Overlay`]) equals one that was applied to the layers below it when
/// - `opaque_root` is not set and `missing_links` is empty,
/// - no path in `implied` or `hidden` is there as anything but a directory,
/// - directories in `implied`, but not in `own_entry_later`, take their metadata from there,
/// - directories in `only_whiteouts` that are not there are removed,
/// - whiteouts in directories that are not there are removed: `with_whiteouts` and [`remove_whiteouts`].
///
/// "There" is what the layers below show at exactly that path ([`Rootfs::exact_metadata`]).
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Entries of the archive, whiteouts included.
    pub entries: u64,
    /// Bytes of the uncompressed archive.
    pub bytes: u64,
    /// Directories that had no entry of their own when something below them was made, by their real path, sorted. They
    /// are 0755, 0:0, from 1970. [`Whiteouts::Overlay`] only, as all below but `losses`.
    pub implied: Vec<GuestPath>,
    /// More of them, which the layer itself hides from the layers below: they are what they are, unless an earlier entry
    /// of the layer would have gone through a link there.
    pub hidden: Vec<GuestPath>,
    /// Those of `implied` that got an entry later in the archive: their metadata are their own.
    pub own_entry_later: Vec<GuestPath>,
    /// Those of `implied` that hold nothing but whiteouts and directories of this kind: without a directory of that
    /// name in the layers below, they do not exist.
    pub only_whiteouts: Vec<GuestPath>,
    /// Character devices 0:0 made for removed names.
    pub whiteouts: u64,
    /// Directories that hold some, by their real path, sorted. Overlayfs hides whiteouts only in directories that it
    /// merges: in one that no layer below has, they would be names without a file.
    pub with_whiteouts: Vec<GuestPath>,
    /// Hard links whose target the layer lacked, with their target, in the order of the archive. Nothing was made for
    /// them, and later entries may have taken their place. With [`Whiteouts::Remove`] that is an error.
    pub missing_links: Vec<(GuestPath, GuestPath)>,
    /// The root is opaque: nothing of the layers below is visible. Overlayfs has no sign for it.
    pub opaque_root: bool,
    /// What could not be made or set here.
    pub losses: Losses,
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
    inheritance: Inheritance,
}

/// Whether what is made in a directory gets an access control list that no entry has asked for (acl(5), default ACLs).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Inheritance {
    /// It does, and for layers that is undone.
    Undo,
    /// It does not, or it may.
    Leave,
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
    /// Entries and implied directories: an entry of one block can make two thousand of them.
    made: u64,
    bytes: u64,
    reported: u64,
    parent: Option<Parent>,
    /// A link or directory has been replaced: the way to `parent` may have led through it.
    way_changed: bool,
    implied: BTreeMap<GuestPath, Implied>,
    with_whiteouts: BTreeSet<GuestPath>,
    lower: Lower,
    /// Where modes wait that would be in the way of later entries; none where privileges make nothing of them.
    restricted: Option<&'a mut Restricted>,
    buffer: Vec<u8>,
    observer: &'a mut dyn Observer,
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

impl<'a> Applier<'a> {
    fn new(root: &'a Rootfs, rules: &'a Rules, limits: &'a Limits, observer: &'a mut dyn Observer) -> Self {
        Self {
            root,
            rules,
            limits,
            applied: Applied::default(),
            made: 0,
            bytes: 0,
            reported: 0,
            parent: None,
            way_changed: false,
            implied: BTreeMap::new(),
            with_whiteouts: BTreeSet::new(),
            lower: Lower::new(rules.owners),
            restricted: None,
            buffer: vec![0; 1 << 17],
            observer,
        }
    }

    fn apply(mut self, tar: &mut dyn Read) -> Result<Applied, LayerError> {
        let mut reader = Reader::new(tar, self.limits);
        while let Some(entry) = reader.next_entry()? {
            let result = self.entry(&mut reader, &entry);
            result.map_err(|problem| LayerError::Entry { name: Escaped::new(&entry.path), problem })?;
        }
        reader.drain()?;
        self.finish(reader.position())
    }
}

impl Applier<'_> {
    fn entry(&mut self, reader: &mut Reader<&mut dyn Read>, entry: &Entry) -> Result<(), EntryError> {
        self.applied.entries += 1;
        self.count_made()?;
        self.bytes = self.bytes.saturating_add(entry.size);
        if self.limits.bytes.is_exceeded_by(self.bytes) {
            return Err(EntryError::Bytes(self.limits.bytes));
        }
        if let Some(key) = entry.xattrs.keys().find(|key| Attribute::of(key) == Attribute::Overlay) {
            return Err(EntryError::OverlayAttribute(Escaped::new(key)));
        }
        match self.meaning(entry)? {
            Meaning::Root => self.root_entry(entry),
            Meaning::Put(path) => self.put(reader, entry, &path),
            Meaning::Whiteout { directory, name } => self.whiteout(&directory, &name),
            Meaning::Opaque(directory) => self.opaque(&directory),
            Meaning::Leftover(path) => {
                self.applied.losses.add(LossKind::Leftover, &path, || Escaped::new(&entry.path).to_string());
                Ok(())
            }
        }
    }

    fn count_made(&mut self) -> Result<(), EntryError> {
        self.made += 1;
        if self.limits.entries.is_exceeded_by(self.made) {
            return Err(EntryError::Entries(self.limits.entries));
        }
        Ok(())
    }

    fn path(&self, name: &[u8]) -> Result<GuestPath, GuestPathError> {
        let path = match self.rules.climbing {
            Climbing::Refuse => GuestPath::parse(name)?,
            Climbing::Clamp => GuestPath::clamp(name)?,
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
            // Written as `.wh.x/.`, for instance. Elsewhere in a path the prefix means nothing, as in containerd and moby.
            if let Some(name) = path.file_name().filter(|name| name.starts_with(WHITEOUT_PREFIX)) {
                let directory = path.parent().unwrap_or_else(GuestPath::root);
                return self.whiteout_meaning(directory.as_bytes(), name);
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
        if self.limits.names.is_exceeded_by(self.reported) {
            Err(EntryError::Names(self.limits.names))
        } else {
            Ok(())
        }
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
        let base = self.rules.base.clone();
        self.set_directory(directory.as_fd(), b".", entry, &base, |applier| {
            Ok(applier.root.resolve(&base)?)
        })
    }

    /// Gives the directory `name` of `at`, which is `path` in the archive, what its entry says. `real` finds its path
    /// without links.
    fn set_directory(
        &mut self,
        at: BorrowedFd<'_>,
        name: &[u8],
        entry: &Entry,
        path: &GuestPath,
        real: impl FnOnce(&Self) -> Result<GuestPath, EntryError>,
    ) -> Result<(), EntryError> {
        let mode = if self.restricted.is_some() { Restricted::for_now(entry.mode) } else { entry.mode };
        let refused = set_directory_metadata(self.root, at, name, entry, mode, self.rules)?;
        self.report_refused(path, refused);
        self.tell(Made { entry, directory: at, name, file: None })?;
        if self.restricted.as_ref().is_some_and(|known| !known.is_indifferent_to(entry.mode)) {
            let real = real(self)?;
            self.report(real.as_bytes().len())?;
            let inode = io_error(metadata_at(at, name), "read metadata of the directory")?.inode;
            if let Some(restricted) = &mut self.restricted {
                restricted.remember(inode, &real, entry.mode);
            }
        }
        Ok(())
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
        // The same path may lead elsewhere now.
        if std::mem::take(&mut self.way_changed) {
            self.leave_parent()?;
        }
        result
    }

    fn tell(&mut self, made: Made<'_>) -> Result<(), EntryError> {
        io_error(self.observer.made(&made), "read metadata")
    }

    fn report_refused(&mut self, path: &GuestPath, refused: Refused) {
        let losses = &mut self.applied.losses;
        if let Some((owner, error)) = refused.owner {
            let what = || format!("{}:{}: {}", owner.uid, owner.gid, io::Error::from(error));
            losses.add(LossKind::Owner, path, what);
        }
        if let Some(mode) = refused.set_id {
            losses.add(LossKind::SetId, path, || format!("mode {mode:04o}"));
        }
        for (key, error) in refused.xattrs {
            let what = || format!("`{}`: {}", Escaped::new(&key), io::Error::from(error));
            losses.add(LossKind::Attribute, path, what);
        }
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

    fn remember_parent(&mut self, path: &GuestPath, directory: OwnedFd) -> Result<(), EntryError> {
        let metadata = io_error(metadata_of(&directory), "read metadata of the directory")?;
        let (inode, mtime) = (metadata.inode, metadata.mtime);
        // What ADD extracts is made as if by a program of the image.
        let default = self.rules.whiteouts != Whiteouts::Ordinary
            && io_error(xattr_at(directory.as_fd(), b".", DEFAULT_ACL), "read the access control list")?
                .is_some();
        let inheritance = if default { Inheritance::Undo } else { Inheritance::Leave };
        self.parent = Some(Parent { path: path.clone(), directory, inode, mtime, real: None, inheritance });
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
        root.walk(path, |step| match step.metadata {
            Some(metadata) if metadata.kind == FileKind::Directory => Ok(()),
            Some(metadata) if self.is_whiteout(metadata) => self.make_implied(step, Room::Hiding),
            Some(_) => Err(EntryError::NotADirectory(step.path.clone())),
            None => self.make_implied(step, Room::Free),
        })?;
        Ok(())
    }

    fn is_whiteout(&self, metadata: &Metadata) -> bool {
        self.rules.whiteouts == Whiteouts::Overlay && metadata.is_overlay_whiteout()
    }

    /// Makes a directory that has no entry of its own (yet).
    fn make_implied(&mut self, step: &Step<'_>, before: Room) -> Result<(), EntryError> {
        self.count_made()?;
        let (parent, name) = (step.directory()?, step.name);
        let mtime = io_error(metadata_of(parent), "read metadata of the directory")?.mtime;
        if before == Room::Hiding {
            io_error(rustix::fs::unlinkat(parent, name, AtFlags::empty()), "replace the whiteout")?;
        }
        io_error(self.root.entry(&parent, name).make_directory(), "make the directory above it")?;
        let owner = self.rules.owner.unwrap_or(Owner::ROOT);
        reset_directory(self.root, parent, name, owner, self.rules.owners)?;
        if let Some(restricted) = &mut self.restricted {
            let inode = io_error(metadata_at(parent, name), "read metadata of the directory")?.inode;
            restricted.forget(inode);
        }
        if before == Room::Hiding {
            io_error(mark_opaque(parent, name, self.rules.marks), "mark the directory as opaque")?;
        } else if self.rules.whiteouts == Whiteouts::Overlay {
            self.report(step.path.as_bytes().len())?;
            self.implied.entry(step.path.clone()).or_default();
        }
        io_error(set_times_at(parent, b".", mtime), "set the times of the directory")
    }
}

fn without_slashes(name: &[u8]) -> &[u8] {
    let end = name.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    &name[..end]
}
