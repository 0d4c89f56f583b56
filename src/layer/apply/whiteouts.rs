//! Whiteouts and opaque directories, and what of them only the layers below can settle.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{FileType, Mode};

use super::{Applied, Applier, Parent, Room, Whiteouts, io_error};
use crate::layer::{EntryError, LayerError, Marks};
use crate::rootfs::{
    Escaped, FileKind, Follow, GuestPath, Rootfs, RootfsError, Timestamp, metadata_at, metadata_of,
    set_times_at, set_xattr_at, xattr_at,
};

impl Applier<'_> {
    /// Goes to the directory `path`, which is made unless the layer itself hides or replaces it; then a whiteout below it
    /// has nothing to say.
    fn enter_parent_of_whiteout(&mut self, path: &GuestPath) -> Result<bool, EntryError> {
        if self.parent.as_ref().is_some_and(|parent| parent.path == *path) {
            return Ok(true);
        }
        self.leave_parent()?;
        let root = self.root;
        let walked = root.walk(path, |step| match step.metadata {
            Some(metadata) if metadata.kind == FileKind::Directory => Ok(()),
            Some(_) => Err(EntryError::NotADirectory(step.path.clone())),
            None => self.make_implied(step, Room::Free),
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

    pub(super) fn whiteout(&mut self, directory: &GuestPath, name: &[u8]) -> Result<(), EntryError> {
        if self.rules.whiteouts == Whiteouts::Remove {
            self.enter_existing_parent(directory)?;
            let Some(parent) = &self.parent else { return Ok(()) };
            self.lower.remove(self.root, parent.directory.as_fd(), parent.inode, name)?;
            self.forget_reset();
            return Ok(());
        }
        if !self.enter_parent_of_whiteout(directory)? {
            return Ok(());
        }
        let Some(mut parent) = self.parent.take() else { return Ok(()) };
        let hidden = self.hide(&mut parent, name);
        self.parent = Some(parent);
        hidden
    }

    /// Hides what lower layers have under the name, in a directory of an overlay.
    pub(super) fn hide(&mut self, parent: &mut Parent, name: &[u8]) -> Result<(), EntryError> {
        let at = parent.directory.as_fd();
        match metadata_at(at, name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let result = rustix::fs::mknodat(at, name, FileType::CharacterDevice, Mode::empty(), 0);
                io_error(result, "make the whiteout")?;
                self.applied.whiteouts += 1;
                let real = parent.real(self.root)?;
                if !self.with_whiteouts.contains(real) {
                    let real = real.clone();
                    self.report(real.as_bytes().len())?;
                    self.with_whiteouts.insert(real);
                }
                Ok(())
            }
            Ok(metadata) if metadata.kind == FileKind::Directory => {
                io_error(mark_opaque(at, name, self.rules.marks), "mark the directory as opaque")?;
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

    fn forget_reset(&mut self) {
        let reset = std::mem::take(&mut self.lower.reset);
        if let Some(restricted) = &mut self.restricted {
            reset.into_iter().for_each(|inode| restricted.forget(inode));
        }
    }

    pub(super) fn opaque(&mut self, directory: &GuestPath) -> Result<(), EntryError> {
        if self.rules.whiteouts == Whiteouts::Remove {
            self.enter_existing_parent(directory)?;
            let Some(parent) = &self.parent else { return Ok(()) };
            self.lower.empty(self.root, parent.directory.as_fd())?;
            self.forget_reset();
            return Ok(());
        }
        if !self.enter_parent_of_whiteout(directory)? {
            return Ok(());
        }
        let Some(parent) = &self.parent else { return Ok(()) };
        let root = io_error(metadata_of(self.root.as_fd()), "read metadata of the root")?;
        if parent.inode == root.inode {
            self.applied.opaque_root = true;
        }
        io_error(
            mark_opaque(parent.directory.as_fd(), b".", self.rules.marks),
            "mark the directory as opaque",
        )
    }

    pub(super) fn finish(mut self, bytes: u64) -> Result<Applied, LayerError> {
        let problem = |problem| LayerError::Entry { name: Escaped::new(b"."), problem };
        self.leave_parent().map_err(problem)?;
        self.applied.bytes = bytes;
        self.finish_implied()?;
        let mut above = Above::default();
        for path in std::mem::take(&mut self.with_whiteouts) {
            if !self.is_directory(&path)? {
                continue;
            }
            let (at, name) = self.root.parent(&path)?;
            if is_opaque(at.as_fd(), &name, self.rules.marks) || above.hides(&path, &self)? {
                remove_whiteouts(self.root, &path)?;
            } else {
                self.applied.with_whiteouts.push(path);
            }
        }
        Ok(self.applied)
    }

    /// Reports the implied directories; those that stand for nothing but whiteouts below what the layer hides anyway go.
    fn finish_implied(&mut self) -> Result<(), LayerError> {
        let links = &self.applied.missing_links;
        let link_parents: BTreeSet<GuestPath> = links.iter().filter_map(|(link, _)| link.parent()).collect();
        let mut only_whiteouts = BTreeSet::new();
        let implied = std::mem::take(&mut self.implied);
        let mut above = Above::default();
        let mut hidden_above = Vec::with_capacity(implied.len());
        for path in implied.keys() {
            hidden_above.push(above.hides(path, self)?);
        }
        // Children come after their parents, so from the back all below a directory is known before it.
        for ((path, state), hidden_above) in implied.iter().zip(hidden_above).rev() {
            let may_be_empty = !state.own_entry && !link_parents.contains(path);
            let is_empty = may_be_empty && self.has_only_whiteouts(path, &only_whiteouts)?;
            if state.hidden || hidden_above {
                if is_empty {
                    self.replace_by_whiteout(path)?;
                }
                self.applied.hidden.push(path.clone());
                continue;
            }
            if state.own_entry {
                self.applied.own_entry_later.push(path.clone());
            } else if is_empty {
                only_whiteouts.insert(path.clone());
            }
            self.applied.implied.push(path.clone());
        }
        self.applied.implied.reverse();
        self.applied.hidden.reverse();
        self.applied.own_entry_later.reverse();
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

/// The directories above a path, and whether one of them is opaque, so that the layers below have no say in what is below
/// it. Asked for paths in their order, it looks at each directory once: there may be thousands above each of thousands.
#[derive(Default)]
struct Above {
    /// From the top; whether it or one above it is opaque.
    directories: Vec<(GuestPath, bool)>,
}

impl Above {
    fn hides(&mut self, path: &GuestPath, applier: &Applier<'_>) -> Result<bool, LayerError> {
        if applier.applied.opaque_root {
            return Ok(true);
        }
        while self.directories.last().is_some_and(|(known, _)| known == path || !path.starts_with(known)) {
            self.directories.pop();
        }
        let mut missing = Vec::new();
        let mut above = path.parent();
        while let Some(directory) = above.filter(|directory| !directory.is_root()) {
            if self.directories.last().is_some_and(|(known, _)| *known == directory) {
                break;
            }
            above = directory.parent();
            missing.push(directory);
        }
        for directory in missing.into_iter().rev() {
            let mut hides = self.directories.last().is_some_and(|(_, hides)| *hides);
            // What has been replaced by something else meanwhile hides nothing.
            if !hides && let Some(open) = applier.root.exact_directory(&directory)? {
                hides = is_opaque(open.as_fd(), b".", applier.rules.marks);
            }
            self.directories.push((directory, hides));
        }
        Ok(self.directories.last().is_some_and(|(_, hides)| *hides))
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

/// Marks a directory so that overlayfs shows nothing of the layers below in it.
pub(super) fn mark_opaque(at: BorrowedFd<'_>, name: &[u8], marks: Marks) -> io::Result<()> {
    set_xattr_at(at, name, marks.opaque(), b"y")
}

fn is_opaque(at: BorrowedFd<'_>, name: &[u8], marks: Marks) -> bool {
    matches!(xattr_at(at, name, marks.opaque()), Ok(Some(value)) if value == b"y")
}
