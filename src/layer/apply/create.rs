//! Making what an entry is, by directory descriptor and name.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;

use super::attributes::{Refused, set_metadata};
use super::whiteouts::mark_opaque;
use super::{Applier, Inheritance, LossKind, Made, Parent, Whiteouts, io_error};
use crate::layer::EntryError;
use crate::layer::tar::{Entry, EntryKind, Reader};
use crate::rootfs::{ContentWriter, FileKind, Follow, GuestPath, metadata_at, metadata_of, remove_xattr_at};

/// What was at the place of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    /// Nothing that matters.
    Free,
    /// A whiteout, or something else than a directory: it hid what lower layers have, and what replaces it must too.
    Hiding,
    /// A directory, which stays.
    Directory,
}

/// Takes away the access control list that a new file has from its directory.
fn forget_inherited(at: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    match remove_xattr_at(at, name, b"system.posix_acl_access") {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NODATA) => Ok(()),
        result => result,
    }
}

/// What a hard link points to.
pub(super) struct Target {
    real: GuestPath,
    /// The number of the directory that holds it; none when the target is missing.
    directory: Option<u64>,
    name: Vec<u8>,
}

impl Applier<'_> {
    pub(super) fn put_into(
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
        if entry.kind == EntryKind::Directory && !self.implied.is_empty() {
            // What is in the way may be a link on the way.
            let real = parent.real(self.root)?.child(name);
            if let Some(implied) = self.implied.get_mut(&real) {
                implied.own_entry = true;
            }
        }
        let before = self.make_room(parent.directory.as_fd(), name, entry.kind)?;
        if before != Room::Directory && self.rules.whiteouts == Whiteouts::Remove {
            self.lower.put.insert(parent.inode, name);
        }
        if entry.kind == EntryKind::Directory {
            return self.make_directory(entry, parent, name, path, before);
        }
        let at = parent.directory.as_fd();
        let refused = match (entry.kind, target) {
            (EntryKind::File, _) => self.make_file(reader, entry, parent, name)?,
            (EntryKind::HardLink, Some(target)) => return self.make_hard_link(at, name, path, target),
            (EntryKind::HardLink | EntryKind::Directory, _) => return Ok(()),
            (EntryKind::Symlink, _) => {
                let to = self.root.entry(&at, name);
                io_error(to.make_symlink(&entry.link), "make the symbolic link")?;
                let refused = set_metadata(&to, entry, entry.mode, self.rules)?;
                self.tell(Made { entry, directory: at, name, file: None })?;
                refused
            }
            (EntryKind::CharDevice | EntryKind::BlockDevice | EntryKind::Fifo, _) => {
                if !self.make_node(entry, at, name, path)? {
                    // What the layer has no more is gone all the same.
                    return match self.rules.whiteouts {
                        Whiteouts::Overlay => self.hide(parent, name),
                        Whiteouts::Remove | Whiteouts::Ordinary => Ok(()),
                    };
                }
                if parent.inheritance == Inheritance::Undo {
                    io_error(forget_inherited(at, name), "remove an inherited access control list")?;
                }
                let refused = set_metadata(&self.root.entry(&at, name), entry, entry.mode, self.rules)?;
                self.tell(Made { entry, directory: at, name, file: None })?;
                refused
            }
        };
        self.report_refused(path, refused);
        Ok(())
    }

    /// Removes what is in the way of an entry: everything but a directory in the way of a directory.
    fn make_room(&mut self, at: BorrowedFd<'_>, name: &[u8], kind: EntryKind) -> Result<Room, EntryError> {
        let metadata = match metadata_at(at, name) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Room::Free),
            result => io_error(result, "read metadata")?,
        };
        if metadata.kind == FileKind::Directory && kind == EntryKind::Directory {
            return Ok(Room::Directory);
        }
        io_error(self.root.entry(&at, name).remove(), "remove what was there")?;
        self.way_changed |= matches!(metadata.kind, FileKind::Symlink | FileKind::Directory);
        Ok(if self.rules.whiteouts == Whiteouts::Overlay { Room::Hiding } else { Room::Free })
    }

    fn make_file(
        &mut self,
        reader: &mut Reader<&mut dyn Read>,
        entry: &Entry,
        parent: &Parent,
        name: &[u8],
    ) -> Result<Refused, EntryError> {
        let at = parent.directory.as_fd();
        let to = self.root.entry(&at, name);
        let mut content = ContentWriter::new(io_error(to.make_file(), "make the file")?);
        loop {
            let count = reader.read_content(&mut self.buffer)?;
            if count == 0 {
                break;
            }
            self.observer.content(&self.buffer[..count]);
            io_error(content.write(&self.buffer[..count]), "write the file")?;
        }
        let file = io_error(content.finish(), "write the file")?;
        if parent.inheritance == Inheritance::Undo {
            io_error(forget_inherited(at, name), "remove an inherited access control list")?;
        }
        let refused = set_metadata(&to.opened(&file), entry, entry.mode, self.rules)?;
        self.tell(Made { entry, directory: at, name, file: Some(file.as_fd()) })?;
        Ok(refused)
    }

    fn make_directory(
        &mut self,
        entry: &Entry,
        parent: &mut Parent,
        name: &[u8],
        path: &GuestPath,
        before: Room,
    ) -> Result<(), EntryError> {
        let at = parent.directory.as_fd();
        if before != Room::Directory {
            io_error(self.root.entry(&at, name).make_directory(), "make the directory")?;
        } else if self.rules.whiteouts == Whiteouts::Remove {
            self.lower.put.insert(parent.inode, name);
        }
        if before == Room::Hiding {
            io_error(mark_opaque(at, name, self.rules.marks), "mark the directory as opaque")?;
        }
        let directory = io_error(parent.directory.try_clone(), "keep the directory open")?;
        self.set_directory(directory.as_fd(), name, entry, path, |applier| {
            Ok(parent.real(applier.root)?.child(name))
        })
    }

    /// Makes a device or FIFO; false where there can be none.
    fn make_node(
        &mut self,
        entry: &Entry,
        at: BorrowedFd<'_>,
        name: &[u8],
        path: &GuestPath,
    ) -> Result<bool, EntryError> {
        let (kind, what) = match entry.kind {
            EntryKind::CharDevice => (FileKind::CharDevice, "character device"),
            EntryKind::BlockDevice => (FileKind::BlockDevice, "block device"),
            _ => (FileKind::Fifo, "FIFO"),
        };
        let (major, minor) = entry.device;
        // In every kind of tree: the same image must not have other files where overlayfs cannot be used.
        if self.rules.whiteouts != Whiteouts::Ordinary
            && kind == FileKind::CharDevice
            && entry.device == (0, 0)
            && !self.root.holds_what_the_disk_refuses()
        {
            let what = || "character device 0:0, which overlayfs takes for a whiteout".to_owned();
            self.applied.losses.add(LossKind::Device, path, what);
            return Ok(false);
        }
        match self.root.entry(&at, name).make_node(kind, rustix::fs::makedev(major, minor)) {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::PERM) => {
                let what = || format!("{what} {major}:{minor}: {}", io::Error::from(Errno::PERM));
                self.applied.losses.add(LossKind::Device, path, what);
                Ok(false)
            }
            result => io_error(result, "make the device or FIFO").map(|()| true),
        }
    }

    fn has_no_entry(&self, path: &GuestPath) -> bool {
        self.implied.get(path).is_some_and(|implied| !implied.own_entry)
    }

    /// Finds what a hard link points to, before anything is removed for it.
    pub(super) fn link_target(&self, entry: &Entry, path: &GuestPath) -> Result<Target, EntryError> {
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
            return Ok(());
        }
        let (from, from_name) = self.root.parent(&target.real)?;
        let result = self.root.entry(&at, name).make_link(&self.root.entry(&from, &from_name));
        // Owner, mode and attributes are those of the file: its own entry has set them.
        io_error(result, "make the hard link")
    }
}
