//! What lies on top of a directory of the context: whiteouts for what must not be seen, and metadata for root.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode};

use super::survey::Hide;
use super::{FILES, Place, ViewError, open};
use crate::rootfs::{
    FileKind, GuestPath, Owner, Rootfs, metadata_at, set_mode_at, set_owner_at, set_xattr_at, xattr_at,
};
use crate::store::mount::{self, CopyUp, Upper};
use crate::store::workspace::Scratch;

/// A layer for overlay mounts on a directory of the context.
pub(super) struct Mask {
    /// Where the mask is.
    scratch: Scratch,
    files: PathBuf,
    root: Rootfs,
    /// The directory that it is for.
    source: Rootfs,
    /// Where that is in the context.
    top: GuestPath,
    copy_up: CopyUp,
}

impl Mask {
    /// One that changes nothing yet, for the directory `place`.
    pub(super) fn new(scratch: Scratch, place: &Place) -> Result<Self, ViewError> {
        let source = place.fd.try_clone().map_err(ViewError::Mask)?;
        let files = scratch.directory(FILES)?;
        let root = Rootfs::from_fd(open(&files)?);
        let mask = Self {
            scratch,
            files,
            root,
            source: Rootfs::from_fd(source),
            top: place.path.clone(),
            copy_up: CopyUp::Whole,
        };
        mask.settle_one(&GuestPath::root()).map_err(ViewError::Mask)?;
        Ok(mask)
    }

    /// The directory that it is for.
    pub(super) fn source(&self) -> BorrowedFd<'_> {
        self.source.as_fd()
    }

    /// The directory to mount as a layer.
    pub(super) fn files(&self) -> &Path {
        &self.files
    }

    /// The directory itself.
    pub(super) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// What a mount must be able to do for it.
    pub(super) fn copy_up(&self) -> CopyUp {
        self.copy_up
    }

    fn below_top(&self, path: &GuestPath) -> Result<GuestPath, ViewError> {
        let length = if self.top.is_root() { 0 } else { self.top.as_bytes().len() };
        let rest = path.as_bytes().get(length..).unwrap_or_default();
        GuestPath::clamp(rest).map_err(|error| ViewError::Mask(io::Error::other(error)))
    }

    fn settle_one(&self, path: &GuestPath) -> io::Result<()> {
        inherit(&self.source, &self.files, path)
    }

    /// Makes root the owner of everything that can be seen. overlayfs copies no content for that, only metadata.
    ///
    /// # Errors
    /// When overlayfs cannot do that here; then the mask is of no use.
    pub(super) fn take_over(&mut self) -> Result<(), ViewError> {
        let source = PathBuf::from(format!("/proc/self/fd/{}", self.source.as_fd().as_raw_fd()));
        let work = self.scratch.directory("work")?;
        let upper = Upper { files: &self.files, work: &work };
        let tree = mount::overlay_with(&[&source], Some(upper), CopyUp::Metadata, self.scratch.path())?;
        give_to_root(&Rootfs::from_fd(tree)).map_err(ViewError::Mask)?;
        self.copy_up = CopyUp::Metadata;
        Ok(())
    }
}

impl Hide for Mask {
    fn hide(&mut self, path: &GuestPath) -> Result<(), ViewError> {
        let path = self.below_top(path)?;
        self.root.remove(&path)?;
        self.root.create_dirs(&path.parent().unwrap_or_else(GuestPath::root), 0o700, Owner::ROOT)?;
        let (directory, name) = self.root.parent(&path)?;
        let whiteout = FileType::CharacterDevice;
        rustix::fs::mknodat(&directory, name.as_slice(), whiteout, Mode::empty(), 0)
            .map_err(|error| ViewError::Mask(error.into()))
    }

    fn settle(&mut self, path: &GuestPath) -> Result<(), ViewError> {
        self.settle_one(&self.below_top(path)?).map_err(ViewError::Mask)
    }
}

/// Gives the directory `path` of `to` what it has in `from`, but to root.
pub(super) fn inherit(from: &Rootfs, to: &Path, path: &GuestPath) -> io::Result<()> {
    let to = Rootfs::open(to)?;
    mount::copy_metadata(from, &to, path)?;
    let directory = to.directory(path).map_err(io::Error::other)?;
    set_owner_at(directory.as_fd(), b".", Owner::ROOT)
}

/// Makes root the owner of everything in `tree`.
fn give_to_root(tree: &Rootfs) -> io::Result<()> {
    give_entry(tree, &GuestPath::root())?;
    let mut pending = vec![GuestPath::root()];
    while let Some(path) = pending.pop() {
        for (name, kind) in tree.read_dir(&path).map_err(io::Error::other)? {
            let child = path.child(&name);
            give_entry(tree, &child)?;
            if kind == FileKind::Directory {
                pending.push(child);
            }
        }
    }
    Ok(())
}

/// The kernel takes setuid bits and capabilities away from a file that changes hands.
fn give_entry(tree: &Rootfs, path: &GuestPath) -> io::Result<()> {
    const CAPABILITY: &[u8] = b"security.capability";
    let (directory, name) = tree.parent(path).map_err(io::Error::other)?;
    let metadata = metadata_at(directory.as_fd(), &name)?;
    if metadata.owner == Owner::ROOT {
        return Ok(());
    }
    let is_file = metadata.kind == FileKind::File;
    let capability = if is_file { xattr_at(directory.as_fd(), &name, CAPABILITY)? } else { None };
    set_owner_at(directory.as_fd(), &name, Owner::ROOT)?;
    if is_file && metadata.mode & 0o6000 != 0 {
        set_mode_at(directory.as_fd(), &name, metadata.mode)?;
    }
    match capability {
        Some(value) => set_xattr_at(directory.as_fd(), &name, CAPABILITY, &value),
        None => Ok(()),
    }
}
