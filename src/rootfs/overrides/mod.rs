//! What the entries of a tree are where the disk cannot hold it.
//!
//! Outside of the initial user namespace, or without privileges, chown(2) refuses ids that are not mapped, mknod(2) all
//! devices, setxattr(2) some attributes. What a layer or an instruction says about an entry and the disk does not hold
//! is kept beside the tree, by path, and counts as long as the disk shows what it showed then.

mod file;

use std::collections::BTreeMap;

use super::metadata::{FileKind, Metadata, Owner, Xattrs};
use super::{Caller, GuestPath, Learned};
use crate::limit::Limit;

pub use file::OverridesError;

/// What the disk shows of an entry that is more than that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shown {
    kind: FileKind,
    mode: u16,
    owner: Owner,
}

impl Shown {
    fn of(disk: &Metadata) -> Self {
        // Modes have twelve bits.
        Self { kind: disk.kind, mode: (disk.mode & 0o7777) as u16, owner: disk.owner }
    }
}

/// What few entries have.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Rare {
    /// A character or block device and its number. On disk is a placeholder: an empty regular file of mode 0.
    device: Option<(FileKind, u64)>,
    /// Attributes that are not on disk.
    xattrs: Xattrs,
}

/// What one entry is, and what the disk shows of it instead.
///
/// Each part counts as long as the disk shows what it showed when the override was made: a step that sets the owner
/// itself, for instance, means the owner that it sets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Override {
    shown: Shown,
    mode: u16,
    owner: Owner,
    rare: Option<Box<Rare>>,
}

/// One thing about an entry that the disk does not hold.
#[derive(Debug, Clone)]
pub(super) enum Held<'a> {
    Owner(Owner),
    Mode(u32),
    Device(FileKind, u64),
    Xattr(&'a [u8], &'a [u8]),
    /// The attribute is not held any more.
    NoXattr(&'a [u8]),
}

impl Override {
    /// An override that says nothing but what `disk` says to `caller`.
    fn plain(disk: &Metadata, caller: &Caller) -> Self {
        let shown = Shown::of(disk);
        Self { shown, mode: shown.mode, owner: caller.owner_of(shown.owner), rare: None }
    }

    /// What `old`, if there is any, still says of an entry of which the disk shows `disk`.
    fn renewed(old: Option<&Self>, disk: &Metadata, caller: &Caller) -> Self {
        let plain = Self::plain(disk, caller);
        match old {
            Some(old) if old.is_of(disk) => Self {
                mode: old.mode_for(disk).unwrap_or(plain.mode),
                owner: old.owner_for(disk, plain.owner),
                rare: old.rare.clone(),
                ..plain
            },
            _ => plain,
        }
    }

    /// This, unless the disk, which shows `disk`, says all of it.
    fn unless_plain(self, disk: &Metadata, caller: &Caller) -> Option<Self> {
        (self != Self::plain(disk, caller)).then_some(self)
    }

    /// What is left of this override of an entry of which the disk shows `disk` by now.
    #[must_use]
    pub fn settled(&self, disk: &Metadata, caller: &Caller) -> Option<Self> {
        Self::renewed(Some(self), disk, caller).unless_plain(disk, caller)
    }

    /// The override of an entry of which the disk shows `disk`: what is left of `old`, and `held`; none if the disk shows
    /// all there is to know.
    pub(super) fn with(
        old: Option<&Self>,
        disk: &Metadata,
        caller: &Caller,
        held: &Held<'_>,
    ) -> Option<Self> {
        let mut new = Self::renewed(old, disk, caller);
        match held {
            Held::Owner(owner) => new.owner = *owner,
            Held::Mode(mode) => new.mode = (mode & 0o7777) as u16,
            Held::Device(kind, number) => new.rare.get_or_insert_default().device = Some((*kind, *number)),
            Held::Xattr(key, value) => {
                new.rare.get_or_insert_default().xattrs.insert(key.to_vec(), value.to_vec());
            }
            Held::NoXattr(key) => {
                if let Some(rare) = &mut new.rare {
                    rare.xattrs.remove(*key);
                }
            }
        }
        new.rare = new.rare.filter(|rare| **rare != Rare::default());
        new.unless_plain(disk, caller)
    }

    /// Whether `disk` can be the entry that this is about: of the same kind, and still the placeholder of a device.
    #[must_use]
    pub fn is_of(&self, disk: &Metadata) -> bool {
        disk.kind == self.shown.kind && (!self.is_device() || (disk.size == 0 && disk.mode == 0))
    }

    /// Whether the entry is a device.
    #[must_use]
    pub fn is_device(&self) -> bool {
        self.device().is_some()
    }

    /// The device that the entry is, a placeholder on disk: its kind and its number, a Linux `dev_t`.
    #[must_use]
    pub fn device(&self) -> Option<(FileKind, u64)> {
        self.rare.as_ref()?.device
    }

    /// The owner, where the disk showed another.
    #[must_use]
    pub fn owner(&self) -> Option<Owner> {
        (self.owner != self.shown.owner).then_some(self.owner)
    }

    /// The permission bits, where the disk showed others.
    #[must_use]
    pub fn mode(&self) -> Option<u32> {
        (self.mode != self.shown.mode).then_some(self.mode.into())
    }

    fn mode_for(&self, disk: &Metadata) -> Option<u16> {
        (disk.mode == u32::from(self.shown.mode)).then_some(self.mode)
    }

    /// The owner that counts; `new` is whom the disk says that the entry belongs to. Who sets only one of user and group
    /// leaves the other what it is.
    fn owner_for(&self, disk: &Metadata, new: Owner) -> Owner {
        let shown = self.shown.owner;
        Owner {
            uid: if disk.owner.uid == shown.uid { self.owner.uid } else { new.uid },
            gid: if disk.owner.gid == shown.gid { self.owner.gid } else { new.gid },
        }
    }

    /// Whether an entry that a step left as `disk` is in all that this knows what it was.
    #[must_use]
    pub fn fits(&self, disk: &Metadata) -> bool {
        self.is_of(disk) && Shown::of(disk) == self.shown
    }

    /// Puts what this knows of an entry into `truth`; the disk shows `disk` of it.
    pub(super) fn apply(&self, disk: &Metadata, truth: &mut Metadata) {
        if !self.is_of(disk) {
            return;
        }
        truth.mode = self.mode_for(disk).map_or(truth.mode, u32::from);
        truth.owner = self.owner_for(disk, truth.owner);
        if let Some((kind, number)) = self.device() {
            (truth.kind, truth.rdev, truth.placeholder) = (kind, number, true);
        }
    }

    /// The attributes that are not on disk.
    pub fn xattrs(&self) -> impl Iterator<Item = (&Vec<u8>, &Vec<u8>)> {
        self.rare.iter().flat_map(|rare| &rare.xattrs)
    }

    /// Bytes of memory, about.
    pub(super) fn cost(&self, path: &GuestPath) -> u64 {
        let attribute = |(key, value): (&Vec<u8>, &Vec<u8>)| 100 + key.len() as u64 + value.len() as u64;
        let rare = self.rare.as_ref().map_or(0, |rare| 100 + rare.xattrs.iter().map(attribute).sum::<u64>());
        100 + path.as_bytes().len() as u64 + rare
    }
}

/// The overrides of a tree.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overrides {
    by_path: BTreeMap<GuestPath, Override>,
}

impl Overrides {
    /// 64 MiB of memory for those of one layer or step, beyond 200 bytes an entry.
    pub const LIMIT: Limit = Limit::new("layer-overrides", 64 << 20);

    /// Whether the disk holds everything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_path.is_empty()
    }

    /// How many entries have one.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_path.len()
    }

    /// What is known of the entry at the real path `path`.
    #[must_use]
    pub fn get(&self, path: &GuestPath) -> Option<&Override> {
        self.by_path.get(path)
    }

    /// All, sorted by path: a directory comes directly before what is below it.
    pub fn iter(&self) -> impl Iterator<Item = (&GuestPath, &Override)> {
        self.by_path.iter()
    }

    /// The paths from `first` on.
    pub(super) fn from(&self, first: &GuestPath) -> impl Iterator<Item = &GuestPath> {
        self.by_path.range(first..).map(|(path, _)| path)
    }

    /// These with what was learned later.
    #[must_use]
    pub fn with(mut self, learned: Learned) -> Self {
        for (path, held) in learned {
            match held {
                Some(held) => drop(self.by_path.insert(path, held)),
                None => drop(self.by_path.remove(&path)),
            }
        }
        self
    }
}

impl FromIterator<(GuestPath, Override)> for Overrides {
    fn from_iter<T: IntoIterator<Item = (GuestPath, Override)>>(all: T) -> Self {
        Self { by_path: all.into_iter().collect() }
    }
}
