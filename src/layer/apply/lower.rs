//! Removing what lower layers left, and nothing that the layer at hand has put.

use std::collections::BTreeSet;
use std::hash::Hasher;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode};
use rustix::io::Errno;

use super::Owners;
use super::attributes::reset_directory;
use crate::layer::EntryError;
use crate::rootfs::remove::{DIRECTORY, enter};
use crate::rootfs::visit::Names;
use crate::rootfs::{FileKind, Owner, Rootfs, Timestamp, metadata_at, metadata_of, set_times_at};

/// The names that a layer has put, as 64-bit hashes of directory number and name: 8 bytes each.
///
/// Directory numbers make the two ways to a file behind a link to a directory one. A number that is used again belongs
/// to a directory of the same layer, all of whose content is put anyway.
#[derive(Default)]
pub(super) struct Put {
    sorted: Vec<u64>,
    recent: BTreeSet<u64>,
}

impl Put {
    const RECENT: usize = 1 << 16;

    pub(super) fn insert(&mut self, directory: u64, name: &[u8]) {
        self.recent.insert(key(directory, name));
        if self.recent.len() >= Self::RECENT {
            self.sorted.extend(std::mem::take(&mut self.recent));
            // Stable sorting merges two sorted runs in linear time.
            self.sorted.sort();
            self.sorted.dedup();
        }
    }

    fn contains(&self, directory: u64, name: &[u8]) -> bool {
        let key = key(directory, name);
        self.recent.contains(&key) || self.sorted.binary_search(&key).is_ok()
    }
}

fn key(directory: u64, name: &[u8]) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    hasher.write_u64(directory);
    hasher.write(name);
    hasher.finish()
}

/// What is known of the tree while one layer is applied to it.
pub(super) struct Lower {
    pub(super) put: Put,
    /// Directories that hold nothing of lower layers any more: visited once, whatever the number of whiteouts.
    emptied: BTreeSet<u64>,
    /// Directories that have become new ones without an entry, since somebody took them from here.
    pub(super) reset: Vec<u64>,
    owners: Owners,
}

/// A directory on the way down.
struct Level {
    /// None while the walk is far below: opened again on the way back.
    directory: Option<OwnedFd>,
    inode: u64,
    /// Removing entries changes it; it is set back when the directory is left.
    mtime: Timestamp,
    name: Vec<u8>,
    /// The directories in it that are still to be visited.
    below: Names,
}

/// How many directories of the way down stay open.
const OPEN_LEVELS: usize = 32;

fn parent_of(directory: &OwnedFd, inode: u64) -> Result<OwnedFd, EntryError> {
    let parent = io_error(rustix::fs::openat(directory, "..", DIRECTORY, Mode::empty()))?;
    if io_error(metadata_of(&parent))?.inode == inode { Ok(parent) } else { io_error(Err(Errno::STALE)) }
}

fn io_error<T, E: Into<io::Error>>(result: Result<T, E>) -> Result<T, EntryError> {
    result.map_err(|error| EntryError::Io { action: "remove what lower layers have", source: error.into() })
}

impl Lower {
    pub(super) fn new(owners: Owners) -> Self {
        Self { put: Put::default(), emptied: BTreeSet::new(), reset: Vec::new(), owners }
    }

    /// Removes what lower layers have of the entry `name` of the directory `at`, whose number is `inode`.
    ///
    /// # Errors
    /// When something cannot be removed.
    pub(super) fn remove(
        &mut self,
        root: &Rootfs,
        at: BorrowedFd<'_>,
        inode: u64,
        name: &[u8],
    ) -> Result<(), EntryError> {
        let metadata = match metadata_at(at, name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            result => io_error(result)?,
        };
        if metadata.kind == FileKind::Directory {
            self.empty_below(root, io_error(enter(at, name))?)?;
            return self.settle(root, at, inode, name);
        }
        if self.put.contains(inode, name) { Ok(()) } else { io_error(root.entry(&at, name).remove()) }
    }

    /// Removes what lower layers have in `directory`.
    ///
    /// # Errors
    /// When something cannot be removed.
    pub(super) fn empty(&mut self, root: &Rootfs, directory: BorrowedFd<'_>) -> Result<(), EntryError> {
        self.empty_below(root, io_error(rustix::fs::openat(directory, ".", DIRECTORY, Mode::empty()))?)
    }

    /// Depth-first without recursion, with at most [`OPEN_LEVELS`] descriptors.
    fn empty_below(&mut self, root: &Rootfs, top: OwnedFd) -> Result<(), EntryError> {
        let mut levels = Vec::new();
        self.visit(root, top, Vec::new(), &mut levels)?;
        while let Some(level) = levels.last_mut() {
            if let Some(name) = level.below.pop() {
                let Some(directory) = &level.directory else { return io_error(Err(Errno::BADF)) };
                let next = io_error(enter(directory.as_fd(), &name))?;
                let inode = io_error(metadata_of(&next))?.inode;
                if self.emptied.contains(&inode) {
                    self.settle(root, directory.as_fd(), level.inode, &name)?;
                    continue;
                }
                self.visit(root, next, name, &mut levels)?;
                if let Some(far) = levels.len().checked_sub(OPEN_LEVELS + 1) {
                    levels[far].directory = None;
                }
                continue;
            }
            let Some(done) = levels.pop() else { break };
            if let Some(directory) = &done.directory {
                io_error(set_times_at(directory.as_fd(), b".", done.mtime))?;
            }
            if let Some(above) = levels.last_mut() {
                let directory = match (above.directory.take(), done.directory) {
                    (Some(directory), _) => directory,
                    (None, Some(below)) => parent_of(&below, above.inode)?,
                    (None, None) => return io_error(Err(Errno::BADF)),
                };
                self.settle(root, directory.as_fd(), above.inode, &done.name)?;
                above.directory = Some(directory);
            }
        }
        Ok(())
    }

    /// Removes the files of a directory and queues the directories in it.
    fn visit(
        &mut self,
        root: &Rootfs,
        directory: OwnedFd,
        name: Vec<u8>,
        levels: &mut Vec<Level>,
    ) -> Result<(), EntryError> {
        let metadata = io_error(metadata_of(&directory))?;
        let (inode, mtime) = (metadata.inode, metadata.mtime);
        if !self.emptied.insert(inode) {
            return Ok(());
        }
        let below = loop {
            // Removing entries while they are listed may hide others from the list.
            if let Some(below) = self.remove_files(root, directory.as_fd(), inode)? {
                break below;
            }
        };
        levels.push(Level { directory: Some(directory), inode, mtime, name, below });
        Ok(())
    }

    /// Removes the files of a directory, one by one as they are listed: a list of them would be as long as a hostile layer
    /// likes. The directories in it, if there was nothing to remove.
    fn remove_files(
        &self,
        root: &Rootfs,
        directory: BorrowedFd<'_>,
        inode: u64,
    ) -> Result<Option<Names>, EntryError> {
        let mut below = Names::default();
        let mut has_removed = false;
        for entry in io_error(Dir::read_from(directory))? {
            let entry = io_error(entry)?;
            let child = entry.file_name().to_bytes();
            if child == b"." || child == b".." {
                continue;
            }
            let is_directory = match entry.file_type() {
                FileType::Directory => true,
                FileType::Unknown => io_error(metadata_at(directory, child))?.kind == FileKind::Directory,
                _ => false,
            };
            if is_directory {
                io_error(below.push(child))?;
            } else if !self.put.contains(inode, child) {
                io_error(root.entry(&directory, child).remove())?;
                has_removed = true;
            }
        }
        Ok((!has_removed).then_some(below))
    }

    /// Decides about a directory whose lower content is gone: without an entry of this layer it goes too, unless the
    /// layer has put something below it; then it is a new directory without an entry.
    fn settle(
        &mut self,
        root: &Rootfs,
        at: BorrowedFd<'_>,
        inode: u64,
        name: &[u8],
    ) -> Result<(), EntryError> {
        if self.put.contains(inode, name) {
            return Ok(());
        }
        match rustix::fs::unlinkat(at, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY | Errno::EXIST) => {
                reset_directory(root, at, name, Owner::ROOT, self.owners)?;
                self.reset.push(io_error(metadata_at(at, name))?.inode);
                Ok(())
            }
            result => io_error(result.map_err(Into::into).and_then(|()| root.entry(&at, name).forget())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rootfs::testing::most_memory_of;

    #[test]
    fn a_full_directory_is_emptied_without_a_list_of_its_files() {
        let tree = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let root = Rootfs::open(tree.path()).unwrap();
        std::fs::create_dir(tree.path().join("below")).unwrap();
        std::fs::write(tree.path().join("below/file"), "").unwrap();
        let long = "x".repeat(200);
        for number in 0..100_000 {
            std::fs::write(tree.path().join(format!("{number}{long}")), "").unwrap();
        }
        let mut lower = Lower::new(Owners::Required);
        lower.put.insert(metadata_of(&root).unwrap().inode, format!("7{long}").as_bytes());
        let Some(grown) = most_memory_of(|| lower.empty(&root, root.as_fd()).unwrap()) else { return };
        let left: Vec<_> =
            std::fs::read_dir(tree.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, [format!("7{long}").as_str()]);
        assert!(grown < 8 << 20, "{grown} bytes");
    }
}
