//! What is known of every entry of a tree, to tell later which of them changed.
//!
//! An entry takes 80 bytes and its name: directories hold their entries as one sorted, packed array each, and a tree of a
//! million files needs a hundred megabytes. [`Index::refresh`] goes through the tree once and compares each entry with
//! what was known; what matches to the last detail of statx(2) is not opened.

mod fingerprint;
mod refresh;

use std::cmp::Ordering;
use std::io;

use crate::layer::changes::Unrecordable;
use crate::rootfs::{FileKind, GuestPath, Metadata, Owner, Rootfs, Timestamp};

use fingerprint::Fingerprint;
pub use fingerprint::Seen;
pub(super) use fingerprint::{Fingerprint as ContentHash, content_of};
pub use refresh::{Refreshed, Trust};

/// Why a tree could not be looked through.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// An entry could not be read.
    #[error("cannot find out whether `{path}` changed")]
    Read {
        /// Its path in the tree.
        path: GuestPath,
        /// Why not.
        #[source]
        cause: io::Error,
    },
    /// A change that no layer can hold.
    #[error(transparent)]
    Unrecordable(#[from] Unrecordable),
}

/// Every entry of a tree.
#[derive(Debug, Clone, Default)]
pub struct Index {
    root: Record,
    /// By the number that the record of a directory has; the root is the first.
    directories: Vec<Option<Box<Directory>>>,
    /// Numbers that no directory has any more.
    free: Vec<u32>,
    newest: Timestamp,
}

impl Index {
    /// That of the tree `root`, as it is now; `seen` knows what files in it hold.
    ///
    /// # Errors
    /// [`IndexError`].
    pub fn of(root: &Rootfs, seen: &Seen, jobs: usize) -> Result<Self, IndexError> {
        refresh::build(root, seen, jobs)
    }

    /// Compares the tree `root`, to which nothing may write meanwhile, with what is known of it; gives what is known of it
    /// then.
    ///
    /// # Errors
    /// [`IndexError`].
    pub fn refresh(self, root: &Rootfs, trust: Trust, jobs: usize) -> Result<(Self, Refreshed), IndexError> {
        refresh::refresh(self, root, trust, jobs)
    }

    /// The index of `root`, which is a copy of this one's tree.
    ///
    /// # Errors
    /// [`IndexError`].
    pub fn of_copy(&self, root: &Rootfs, jobs: usize) -> Result<Self, IndexError> {
        refresh::follow(self.clone(), root, jobs)
    }

    /// The number of the file that was at `path`.
    #[must_use]
    pub fn inode(&self, path: &GuestPath) -> Option<u64> {
        let mut record = &self.root;
        for name in path.components() {
            if record.kind() != FileKind::Directory {
                return None;
            }
            record = self.directories.get(record.directory as usize)?.as_ref()?.get(name)?;
        }
        Some(record.inode)
    }

    /// The latest time at which an entry changed (`ctime`).
    #[must_use]
    pub fn newest(&self) -> Timestamp {
        self.newest
    }

    /// Bytes of memory, and for how many entries.
    #[cfg(test)]
    pub(crate) fn memory(&self) -> (usize, usize) {
        let directories = self.directories.iter().flatten();
        let entries = directories.clone().map(|directory| directory.records.len()).sum();
        let bytes: usize = directories
            .map(|directory| {
                size_of::<Directory>()
                    + directory.records.len() * size_of::<Record>()
                    + directory.names.len()
                    // What an allocator adds to each of three blocks.
                    + 3 * 16
            })
            .sum();
        (bytes + self.directories.capacity() * size_of::<Option<Box<Directory>>>(), entries)
    }
}

/// The entries of a directory, sorted by name.
#[derive(Debug, Clone, Default)]
struct Directory {
    /// One behind the other.
    names: Box<[u8]>,
    records: Box<[Record]>,
}

impl Directory {
    fn get(&self, name: &[u8]) -> Option<&Record> {
        let (mut first, mut end) = (0, self.records.len());
        while first < end {
            let middle = first + (end - first) / 2;
            let start = middle.checked_sub(1).map_or(0, |before| self.records[before].name_end as usize);
            let record = &self.records[middle];
            match self.names[start..record.name_end as usize].cmp(name) {
                Ordering::Equal => return Some(record),
                Ordering::Less => first = middle + 1,
                Ordering::Greater => end = middle,
            }
        }
        None
    }

    fn entries(&self) -> impl Iterator<Item = (&[u8], &Record)> {
        let mut start = 0;
        self.records.iter().map(move |record| {
            let end = record.name_end as usize;
            let name = &self.names[start..end];
            start = end;
            (name, record)
        })
    }
}

/// What is known of an entry.
#[derive(Debug, Clone, Copy, Default)]
struct Record {
    /// Of a device which it is, of a directory nothing.
    size: u64,
    mtime_seconds: i64,
    ctime_seconds: i64,
    inode: u64,
    fingerprint: Fingerprint,
    mtime_nanoseconds: u32,
    ctime_nanoseconds: u32,
    uid: u32,
    gid: u32,
    links: u32,
    /// Where the name ends in the names of the directory.
    name_end: u32,
    /// Of a directory its number in [`Index::directories`].
    directory: u32,
    /// The kind in the upper four bits.
    kind_and_mode: u16,
}

fn is_device(kind: FileKind) -> bool {
    matches!(kind, FileKind::CharDevice | FileKind::BlockDevice)
}

impl Record {
    fn new(metadata: &Metadata, fingerprint: Fingerprint) -> Self {
        let size = match metadata.kind {
            kind if is_device(kind) => metadata.rdev,
            FileKind::Directory => 0,
            _ => metadata.size,
        };
        // Both fit: there are seven kinds, and a mode has twelve bits.
        let kind = FileKind::ALL.iter().position(|kind| *kind == metadata.kind).unwrap_or_default() as u16;
        Self {
            size,
            mtime_seconds: metadata.mtime.seconds,
            ctime_seconds: metadata.ctime.seconds,
            inode: metadata.inode,
            fingerprint,
            mtime_nanoseconds: metadata.mtime.nanoseconds,
            ctime_nanoseconds: metadata.ctime.nanoseconds,
            uid: metadata.owner.uid,
            gid: metadata.owner.gid,
            links: metadata.links,
            name_end: 0,
            directory: 0,
            kind_and_mode: kind << 12 | (metadata.mode & 0o7777) as u16,
        }
    }

    fn kind(&self) -> FileKind {
        FileKind::ALL[usize::from(self.kind_and_mode >> 12).min(FileKind::ALL.len() - 1)]
    }

    fn ctime(&self) -> Timestamp {
        Timestamp { seconds: self.ctime_seconds, nanoseconds: self.ctime_nanoseconds }
    }

    /// What statx(2) said, the file system aside.
    fn metadata(&self) -> Metadata {
        let kind = self.kind();
        let (size, rdev) = if is_device(kind) { (0, self.size) } else { (self.size, 0) };
        Metadata {
            kind,
            mode: u32::from(self.kind_and_mode & 0o7777),
            owner: Owner { uid: self.uid, gid: self.gid },
            size,
            mtime: Timestamp { seconds: self.mtime_seconds, nanoseconds: self.mtime_nanoseconds },
            ctime: self.ctime(),
            rdev,
            device: (0, 0),
            inode: self.inode,
            links: self.links,
            placeholder: false,
        }
    }

    /// Whether statx(2) says the same again. The number of names of a directory changes with what is in it, which is
    /// compared by itself.
    fn matches(&self, metadata: &Metadata) -> bool {
        let now = Self::new(metadata, self.fingerprint);
        let facts = |of: &Self| {
            let times = (of.mtime_seconds, of.mtime_nanoseconds, of.ctime_seconds, of.ctime_nanoseconds);
            (of.kind_and_mode, of.uid, of.gid, of.size, of.inode, times)
        };
        facts(self) == facts(&now) && (metadata.kind == FileKind::Directory || self.links == metadata.links)
    }
}

#[cfg(test)]
mod tests;
