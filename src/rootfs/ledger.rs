//! What is being learned about a tree that its disk does not hold.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::thread::CapabilitySet;

use super::metadata::{FileKind, Metadata, Owner, Xattrs};
use super::overrides::{Held, Override, Overrides};
use super::{GuestPath, Rootfs};
use crate::limit::Limit;

/// What this process may do to files that belong to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// As whom the disk shows what belongs to 0:0. A process that is not root, in no user namespace either, can make
    /// nothing but files of its own: they stand for those of root.
    root: Owner,
    /// `CAP_DAC_OVERRIDE`: permissions are no obstacle. Without it the owner of a tree must be able to read and change
    /// everything in it, whatever its mode.
    ignores_permissions: bool,
}

impl Caller {
    /// This process.
    #[must_use]
    pub fn current() -> Self {
        let uid = rustix::process::geteuid();
        let root = match uid.is_root() {
            true => Owner::ROOT,
            false => Owner { uid: uid.as_raw(), gid: rustix::process::getegid().as_raw() },
        };
        let ignores_permissions = match rustix::thread::capabilities(None) {
            Ok(sets) => sets.effective.contains(CapabilitySet::DAC_OVERRIDE),
            Err(_) => uid.is_root(),
        };
        Self { root, ignores_permissions }
    }

    /// Root, or one who may do as much.
    #[cfg(test)]
    pub(crate) fn root() -> Self {
        Self { root: Owner::ROOT, ignores_permissions: true }
    }

    /// A word that tells those apart that leave different files on disk: nothing for root.
    #[must_use]
    pub fn name(&self) -> String {
        let Owner { uid, gid } = self.root;
        match (self.is_root(), self.ignores_permissions) {
            (true, true) => String::new(),
            (true, false) => ".as-root".to_owned(),
            (false, _) => format!(".as-{uid}-{gid}"),
        }
    }

    /// Whose a file is that the disk shows as that of `disk`.
    pub(super) fn owner_of(&self, disk: Owner) -> Owner {
        let id = |shown, root| if shown == root { 0 } else { shown };
        Owner { uid: id(disk.uid, self.root.uid), gid: id(disk.gid, self.root.gid) }
    }

    /// As whom the disk is to show a file of `owner`.
    pub(super) fn on_disk(&self, owner: Owner) -> Owner {
        let id = |wanted, root| if wanted == 0 { root } else { wanted };
        Owner { uid: id(owner.uid, self.root.uid), gid: id(owner.gid, self.root.gid) }
    }

    /// The bits that every mode on disk has, for this process to go on.
    pub(super) fn needs(&self, kind: impl FnOnce() -> io::Result<FileKind>) -> io::Result<u32> {
        Ok(match self.ignores_permissions {
            true => 0,
            false if kind()? == FileKind::Directory => 0o700,
            false => 0o600,
        })
    }

    fn is_root(&self) -> bool {
        self.root == Owner::ROOT
    }
}

/// What has been learned since the tree was opened; none for an entry of which nothing is held any more.
pub type Learned = BTreeMap<GuestPath, Option<Override>>;

/// Bytes that every override may take. What is more counts for the limit.
const EACH: u64 = 200;

/// Why an override is not kept.
#[derive(Debug, thiserror::Error)]
#[error(
    "what the disk cannot hold (owners, modes, devices, attributes) takes more than {} bytes beyond {EACH} an entry; {limit}",
    limit.value
)]
pub struct TooMuch {
    limit: Limit,
}

#[derive(Debug, Default)]
struct Recent {
    learned: Learned,
    /// What entries take beyond [`EACH`].
    excess: u64,
}

/// The overrides of a tree, and those that are added while it is being written to.
#[derive(Debug)]
pub(super) struct Ledger {
    known: Arc<Overrides>,
    pub(super) caller: Caller,
    /// The most that is added; none if nothing is.
    limit: Option<Limit>,
    recent: Mutex<Recent>,
    /// Whether there has ever been anything in `recent`.
    written: AtomicBool,
}

impl Ledger {
    pub(super) fn new(known: Arc<Overrides>, caller: Caller, limit: Option<Limit>) -> Self {
        Self { known, caller, limit, recent: Mutex::default(), written: AtomicBool::new(false) }
    }

    /// Whether something may be added.
    pub(super) fn is_written_to(&self) -> bool {
        self.limit.is_some()
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the disk holds everything. Then no entry needs to be looked up, nor its path known.
    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty() && !self.written.load(Ordering::Relaxed)
    }

    fn get<T>(&self, path: &GuestPath, look: impl FnOnce(Option<&Override>) -> T) -> T {
        match self.recent().learned.get(path) {
            Some(recent) => look(recent.as_ref()),
            None => look(self.known.get(path)),
        }
    }

    pub(super) fn has(&self, path: &GuestPath) -> bool {
        !self.is_empty() && self.get(path, |held| held.is_some())
    }

    pub(super) fn is_device(&self, path: &GuestPath) -> bool {
        !self.is_empty() && self.get(path, |held| held.is_some_and(Override::is_device))
    }

    /// Whether the entry is a device that the disk has no more than a place for. Its path is asked for only if it matters.
    pub(super) fn is_placeholder<'p>(
        &self,
        path: impl FnOnce() -> io::Result<&'p GuestPath>,
    ) -> io::Result<bool> {
        Ok(!self.is_empty() && self.is_device(path()?))
    }

    pub(super) fn holds_xattr(&self, path: &GuestPath, key: &[u8]) -> bool {
        self.get(path, |held| held.is_some_and(|held| held.xattrs().any(|(held, _)| held == key)))
    }

    /// What is held of one entry.
    pub(super) fn of(&self, path: &GuestPath) -> Option<Override> {
        self.get(path, |held| held.cloned())
    }

    /// Turns what the disk shows of the entry at the real path `path` into what it is.
    pub(super) fn reveal(&self, path: &GuestPath, mut metadata: Metadata) -> Metadata {
        if self.is_trivial() {
            return metadata;
        }
        let disk = metadata.clone();
        metadata.owner = self.caller.owner_of(disk.owner);
        self.get(path, |held| {
            if let Some(held) = held {
                held.apply(&disk, &mut metadata);
            }
        });
        metadata
    }

    /// Whether [`Ledger::reveal`] could change anything.
    pub(super) fn is_trivial(&self) -> bool {
        self.is_empty() && self.caller.is_root()
    }

    /// Adds the attributes of an entry that are not on disk.
    pub(super) fn reveal_xattrs(&self, path: &GuestPath, xattrs: &mut Xattrs) {
        if self.is_empty() {
            return;
        }
        self.get(path, |held| {
            for (key, value) in held.into_iter().flat_map(Override::xattrs) {
                xattrs.entry(key.clone()).or_insert_with(|| value.clone());
            }
        });
    }

    /// Notes `held` of an entry, of which the disk shows `disk`.
    pub(super) fn hold(&self, path: GuestPath, disk: &Metadata, held: &Held<'_>) -> io::Result<()> {
        let new = self.get(&path, |old| Override::with(old, disk, &self.caller, held));
        self.set(path, new)
    }

    /// Notes that what is at `path` is new: nothing that was held for it holds.
    pub(super) fn forget(&self, path: GuestPath) -> io::Result<()> {
        if self.has(&path) { self.set(path, None) } else { Ok(()) }
    }

    pub(super) fn set(&self, path: GuestPath, new: Option<Override>) -> io::Result<()> {
        let Some(limit) = self.limit else {
            return Err(io::Error::other("the tree is only read, so nothing can be held of it"));
        };
        let excess = |path: &GuestPath, held: &Option<Override>| {
            held.as_ref().map_or(0, |held| held.cost(path).saturating_sub(EACH))
        };
        let mut recent = self.recent();
        let Recent { learned, excess: total } = &mut *recent;
        self.written.store(true, Ordering::Relaxed);
        let entry = learned.entry(path);
        let before = match &entry {
            Entry::Occupied(entry) => excess(entry.key(), entry.get()),
            Entry::Vacant(_) => 0,
        };
        let after = *total - before + excess(entry.key(), &new);
        if limit.is_exceeded_by(after) {
            return Err(io::Error::other(TooMuch { limit }));
        }
        *total = after;
        let says_something = new.is_some() || self.known.get(entry.key()).is_some();
        match entry {
            Entry::Occupied(entry) if !says_something => drop(entry.remove()),
            Entry::Vacant(_) if !says_something => {}
            Entry::Occupied(mut entry) => drop(entry.insert(new)),
            Entry::Vacant(entry) => _ = entry.insert(new),
        }
        Ok(())
    }

    /// Forgets everything about what was below `path`, which has been removed.
    pub(super) fn forget_below(&self, path: &GuestPath) -> io::Result<()> {
        let gone = {
            let recent = self.recent();
            let below = |other: &&GuestPath| other.starts_with(path);
            let learned = recent.learned.range(path..).map(|(path, _)| path).take_while(below);
            learned.chain(self.known.from(path).take_while(below)).cloned().collect::<Vec<_>>()
        };
        gone.into_iter().try_for_each(|path| self.set(path, None))
    }

    /// Gives away what has been learned.
    pub(super) fn take(&self) -> Learned {
        std::mem::take(&mut *self.recent()).learned
    }
}

/// Where the kernel says that `fd` is.
fn link_of(fd: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let name = format!("/proc/self/fd/{}", fd.as_raw_fd());
    Ok(rustix::fs::readlink(name, Vec::new())?.into_bytes())
}

impl Rootfs {
    /// The path inside the tree of what `fd`, which was opened through this handle, stands for.
    pub(super) fn real_path(&self, fd: BorrowedFd<'_>) -> io::Result<GuestPath> {
        let (root, path) = (link_of(self.as_fd())?, link_of(fd)?);
        // The root of a mount that is nowhere is `/`.
        let root = root.strip_suffix(b"/").unwrap_or(&root);
        match path.strip_prefix(root) {
            Some(inside) if inside.is_empty() || inside.starts_with(b"/") => {
                GuestPath::clamp(inside).map_err(io::Error::other)
            }
            _ => Err(io::Error::other("the directory has been moved out of the tree")),
        }
    }
}
