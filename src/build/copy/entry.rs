//! One entry other than a directory, with all its metadata.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::content::{self, ContentError};
use super::{Copier, CopyError, OwnerPolicy, tried};
use crate::rootfs::{
    Attribute, DirectoryEntry, Escaped, FileKind, GuestPath, Metadata, Owner, Rootfs, Timestamp, Xattrs,
    metadata_at, metadata_of, xattrs_at, xattrs_of,
};

/// An entry by its directory and name: no link is followed.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) directory: &'a OwnedFd,
    pub(super) name: &'a [u8],
    /// For messages.
    pub(super) path: &'a GuestPath,
}

impl Place<'_> {
    /// The entry as one of `tree`, which its directory belongs to.
    pub(super) fn entry<'s>(&'s self, tree: &'s Rootfs) -> DirectoryEntry<'s> {
        tree.entry(self.directory, self.name)
    }

    /// All extended attributes of what is there, in `tree`; none if they cannot be read.
    pub(super) fn xattrs(&self, tree: &Rootfs) -> Xattrs {
        let mut xattrs = xattrs_at(self.directory.as_fd(), self.name).unwrap_or_default();
        tree.reveal_xattrs(self.path, &mut xattrs);
        xattrs
    }

    /// The metadata of what is there.
    pub(super) fn metadata(&self) -> Result<Option<Metadata>, CopyError> {
        match metadata_at(self.directory.as_fd(), self.name) {
            Ok(metadata) => Ok(Some(metadata)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => tried(Err(error), "read metadata of", self.path),
        }
    }
}

/// What an entry is to have.
#[derive(Debug, Clone)]
pub(super) struct Attributes {
    pub(super) owner: Owner,
    /// None for symbolic links, which have none.
    pub(super) mode: Option<u32>,
    pub(super) mtime: Timestamp,
    pub(super) xattrs: Xattrs,
}

/// Gives the entry `to` at `path` its attributes, in the order in which none undoes another.
pub(super) fn set_attributes(
    to: &DirectoryEntry<'_>,
    attributes: &Attributes,
    path: &GuestPath,
) -> Result<(), CopyError> {
    tried(to.set_owner(attributes.owner), "set the owner of", path)?;
    for (key, value) in &attributes.xattrs {
        stored(to.set_xattr(key, value)).map_err(|source| CopyError::Attribute {
            path: path.clone(),
            key: Escaped::new(key),
            size: value.len(),
            source,
        })?;
    }
    // An access control list changes the mode.
    if let Some(mode) = attributes.mode {
        tried(to.set_mode(mode), "set the mode of", path)?;
    }
    tried(to.set_times(attributes.mtime), "set the times of", path)
}

/// Extended attributes are set as far as possible: file systems and kernels differ in what they store (BuildKit ignores
/// these as well). Where there is only no room for them, they must not be lost.
fn stored(result: io::Result<()>) -> io::Result<()> {
    match result.as_ref().map_err(Errno::from_io_error) {
        // Without a number it was not the kernel: what it refused could not be kept elsewhere.
        Err(None | Some(Errno::NOSPC | Errno::DQUOT | Errno::IO | Errno::NOMEM | Errno::NAMETOOLONG)) => {
            result
        }
        _ => Ok(()),
    }
}

/// What a copy of `from` gets.
pub(super) fn attributes_of(copier: &Copier<'_>, from: &Place<'_>, metadata: &Metadata) -> Attributes {
    attributes(copier, metadata, from.xattrs(copier.request.from.root))
}

fn attributes(copier: &Copier<'_>, metadata: &Metadata, mut xattrs: Xattrs) -> Attributes {
    xattrs.retain(|key, _| travels(key, copier.request.from.owner));
    let mode = (metadata.kind != FileKind::Symlink).then(|| copier.mode_for(metadata.kind, metadata.mode));
    Attributes { owner: copier.owner_for(metadata.owner), mode, mtime: metadata.mtime, xattrs }
}

/// Whether a copy has the extended attribute `key` of its source: what is part of an image travels. From a build context
/// `trusted.*` does not: only root sees it there, so the image would depend on who builds it, and file systems keep in it
/// where they have put a file (Lustre's `trusted.lov`, GlusterFS' `trusted.gfid`).
pub(super) fn travels(key: &[u8], from: OwnerPolicy) -> bool {
    let seen_by_all = from == OwnerPolicy::Keep || !key.starts_with(b"trusted.");
    Attribute::of(key) == Attribute::Image && seen_by_all
}

/// Copies `from`, which has `metadata` and is no directory, to `to`. What was there is replaced, not written to: other
/// names of it keep their content.
pub(super) fn copy(
    copier: &mut Copier<'_>,
    from: &Place<'_>,
    metadata: &Metadata,
    to: &Place<'_>,
) -> Result<(), CopyError> {
    if metadata.kind == FileKind::File {
        copier.done.bytes += copy_file(copier, from, to)?;
        copier.done.files += 1;
        return Ok(());
    }
    make_room(to)?;
    let entry = to.entry(copier.onto);
    match metadata.kind {
        FileKind::Symlink => {
            let target =
                tried(rustix::fs::readlinkat(from.directory, from.name, Vec::new()), "read link", from.path)?;
            tried(entry.make_symlink(target.as_bytes()), "make link", to.path)?;
        }
        FileKind::Fifo | FileKind::CharDevice | FileKind::BlockDevice => {
            tried(entry.make_node(metadata.kind, metadata.rdev), "make", to.path)?;
        }
        // A socket without a process is nothing; BuildKit leaves an empty file.
        FileKind::File | FileKind::Socket => drop(create(&entry, to)?),
        FileKind::Directory => return Err(CopyError::CannotCopyToNonDirectory { path: to.path.clone() }),
    }
    set_attributes(&entry, &attributes_of(copier, from, metadata), to.path)?;
    copier.done.files += 1;
    Ok(())
}

/// Makes `to` a file that holds `content`.
pub(super) fn write(copier: &mut Copier<'_>, content: &[u8], to: &Place<'_>) -> Result<(), CopyError> {
    let entry = to.entry(copier.onto);
    tried(create(&entry, to)?.write_all(content), "write", to.path)?;
    let owner = copier.request.chown.unwrap_or(Owner::ROOT);
    let mode = Some(copier.mode_for(FileKind::File, 0o644));
    let attributes = Attributes { owner, mode, mtime: copier.now, xattrs: Xattrs::new() };
    set_attributes(&entry, &attributes, to.path)?;
    copier.done.files += 1;
    copier.done.bytes += content.len() as u64;
    Ok(())
}

/// Takes away what is at `to`, unless it is a directory.
pub(super) fn make_room(to: &Place<'_>) -> Result<(), CopyError> {
    match to.metadata()? {
        None => Ok(()),
        Some(metadata) if metadata.kind == FileKind::Directory => {
            Err(CopyError::CannotReplaceDirectoryWithFile { path: to.path.clone() })
        }
        Some(_) => tried(rustix::fs::unlinkat(to.directory, to.name, AtFlags::empty()), "remove", to.path),
    }
}

/// Makes an empty file in place of what is there.
fn create(entry: &DirectoryEntry<'_>, to: &Place<'_>) -> Result<File, CopyError> {
    let file = match entry.make_file() {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            make_room(to)?;
            entry.make_file()
        }
        result => result,
    };
    tried(file, "make", to.path).map(File::from)
}

/// Copies a file; returns its size.
fn copy_file(copier: &mut Copier<'_>, from: &Place<'_>, to: &Place<'_>) -> Result<u64, CopyError> {
    let changed = || CopyError::Changed { path: from.path.clone() };
    // By now it may be something else: a FIFO must not make us wait, a link must not lead elsewhere.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let source = match rustix::fs::openat(from.directory, from.name, flags, Mode::empty()) {
        Err(Errno::LOOP | Errno::NOENT | Errno::NXIO | Errno::NODEV) => return Err(changed()),
        result => File::from(tried(result, "open", from.path)?),
    };
    let metadata = tried(metadata_of(&source), "read metadata of", from.path)?;
    if metadata.kind != FileKind::File {
        return Err(changed());
    }
    let entry = to.entry(copier.onto);
    let target = create(&entry, to)?;
    match content::copy(&source, &metadata, &target, &mut copier.buffer) {
        Ok(()) => {}
        Err(ContentError::Changed) => return Err(changed()),
        Err(ContentError::Read(error)) => return tried(Err(error), "read", from.path),
        Err(ContentError::Write(error)) => return tried(Err(error), "write", to.path),
    }
    let size = metadata.size;
    let tree = copier.request.from.root;
    let mut xattrs = xattrs_of(&source).unwrap_or_default();
    tree.reveal_xattrs(from.path, &mut xattrs);
    let attributes = attributes(copier, &tree.reveal(from.path, metadata), xattrs);
    set_attributes(&entry.opened(&target), &attributes, to.path)?;
    Ok(size)
}
