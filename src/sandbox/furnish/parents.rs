//! What a step did to the directories in which something is put for it.
//!
//! The kernel lets nobody remove, replace or move what something is mounted over. Here a step can: whoever ignores that rm
//! fails under BuildKit (`rm -f /etc/resolv.conf || true`) sees it succeed. The entry comes back; so must the time of its
//! directory, or the layer would have a directory that is not in the one made with mounts.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Dir, Mode, OFlags};

use crate::rootfs::{FileId, GuestPath, Timestamp, metadata_at, metadata_of, set_times_at};

/// Directories with entries that are not the image's.
#[derive(Debug, Default)]
pub(super) struct Parents(Vec<Parent>);

#[derive(Debug)]
struct Parent {
    directory: OwnedFd,
    id: FileId,
    /// The entries that are not the image's, each with its file. That is kept open: while it is, no other file gets its
    /// number.
    ours: Vec<(Vec<u8>, Option<OwnedFd>)>,
    before: Option<Before>,
}

/// What a step finds.
#[derive(Debug)]
struct Before {
    mtime: Timestamp,
    /// Of all other entries, see [`Parent::digest`].
    others: u64,
}

impl Parents {
    /// Has the entry `name` of `directory` watched, which is at `path`, unless that is in one of `ours`: then it goes with
    /// it. Errors are none: the time is then what the step has made it.
    pub(super) fn watch(&mut self, path: &GuestPath, directory: &OwnedFd, name: &[u8], ours: &[GuestPath]) {
        if ours.iter().any(|above| path != above && path.starts_with(above)) {
            return;
        }
        let Ok(id) = metadata_of(directory).map(|metadata| metadata.file()) else { return };
        let parent = match self.0.iter_mut().position(|parent| parent.id == id) {
            Some(known) => &mut self.0[known],
            None => {
                let Ok(directory) = directory.try_clone() else { return };
                self.0.push(Parent { directory, id, ours: Vec::new(), before: None });
                let Some(parent) = self.0.last_mut() else { return };
                parent
            }
        };
        if parent.ours.iter().all(|(known, _)| known != name) {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = rustix::fs::openat(&parent.directory, name, flags, Mode::empty()).ok();
            parent.ours.push((name.to_vec(), file));
        }
    }

    /// The step begins.
    pub(super) fn begin(&mut self) {
        for parent in &mut self.0 {
            let before = metadata_of(&parent.directory)
                .and_then(|metadata| Ok(Before { mtime: metadata.mtime, others: parent.digest()? }));
            parent.before = before.ok();
        }
    }

    /// The step has ended, and nothing is undone yet: directories in which it changed nothing but entries that are not the
    /// image's get back the time that they had.
    pub(super) fn end(&mut self) {
        for parent in self.0.drain(..) {
            let Some(before) = &parent.before else { continue };
            let is_lost = |(name, file): &(Vec<u8>, Option<OwnedFd>)| {
                let ours = file.as_ref().and_then(|file| metadata_of(file).ok());
                let now = metadata_at(parent.directory.as_fd(), name).ok();
                ours.zip(now).is_none_or(|(ours, now)| !ours.same_file(&now))
            };
            if parent.ours.iter().any(is_lost) && parent.digest().is_ok_and(|others| others == before.others)
            {
                let _ = set_times_at(parent.directory.as_fd(), b".", before.mtime);
            }
        }
    }
}

impl Parent {
    /// A number that changes when another entry of the directory is made, removed, replaced or gets another name: nothing is
    /// kept of a directory that may be large, and the order of reading does not count.
    fn digest(&self) -> io::Result<u64> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(&self.directory, ".", flags, Mode::empty())?;
        let mut sum = 0_u64;
        for entry in Dir::new(directory)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") || self.ours.iter().any(|(ours, _)| ours == name) {
                continue;
            }
            let mut hasher = DefaultHasher::new();
            (name, entry.ino()).hash(&mut hasher);
            sum = sum.wrapping_add(hasher.finish());
        }
        Ok(sum)
    }
}
