//! What lies on top of a directory of the context: whiteouts for what must not be seen, and metadata for root.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode};
use rustix::io::Errno;

use super::survey::Hide;
use super::{FILES, Place, ViewError, open};
use crate::layer::{Recipient, copy_metadata};
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
    /// Whether everything that must not be seen is hidden so far.
    whole: bool,
}

impl Mask {
    /// One that changes nothing yet, for the directory `place`.
    pub(super) fn new(scratch: Scratch, place: &Place) -> Result<Self, ViewError> {
        let source = place.kept_open()?;
        let files = scratch.directory(FILES)?;
        let root = Rootfs::from_fd(open(&files)?);
        Ok(Self {
            scratch,
            files,
            root,
            source: Rootfs::from_fd(source),
            top: place.path.clone(),
            copy_up: CopyUp::Whole,
            whole: true,
        })
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

    /// Ends it when all that must not be seen was told. An overlay mount shows the mask's root as its own.
    ///
    /// # Errors
    /// When something could not be hidden; then the mask is of no use. Device nodes, for one, cannot be made everywhere:
    /// overlayfs takes no whiteouts from others.
    pub(super) fn finish(&self) -> io::Result<()> {
        if !self.whole {
            return Err(Errno::PERM.into());
        }
        inherit(&self.source, &self.files, &GuestPath::root())
    }

    fn below_top(&self, path: &GuestPath) -> io::Result<GuestPath> {
        let length = if self.top.is_root() { 0 } else { self.top.as_bytes().len() };
        let rest = path.as_bytes().get(length..).unwrap_or_default();
        GuestPath::clamp(rest).map_err(io::Error::other)
    }

    fn put_whiteout(&self, path: &GuestPath) -> io::Result<()> {
        let path = self.below_top(path)?;
        self.root.remove(&path).map_err(io::Error::other)?;
        let above = path.parent().unwrap_or_else(GuestPath::root);
        self.root.create_dirs(&above, 0o700, Owner::ROOT).map_err(io::Error::other)?;
        let (directory, name) = self.root.parent(&path).map_err(io::Error::other)?;
        let whiteout = FileType::CharacterDevice;
        Ok(rustix::fs::mknodat(&directory, name.as_slice(), whiteout, Mode::empty(), 0)?)
    }

    /// Makes root the owner of everything that can be seen. overlayfs copies no content for that, only metadata.
    ///
    /// # Errors
    /// When overlayfs cannot do that here; then the mask is of no use.
    pub(super) fn take_over(&mut self) -> Result<(), ViewError> {
        let failed =
            |source| ViewError::Prepare { action: "change the owners in", path: self.top.clone(), source };
        let source = PathBuf::from(format!("/proc/self/fd/{}", self.source.as_fd().as_raw_fd()));
        let work = self.scratch.directory("work")?;
        let upper = Upper { files: &self.files, work: &work };
        let tree = mount::overlay_with(&[&source], Some(upper), CopyUp::Metadata, self.scratch.path())?;
        give_to_root(&Rootfs::from_fd(tree)).map_err(failed)?;
        self.copy_up = CopyUp::Metadata;
        Ok(())
    }
}

/// After one thing that cannot be hidden, the rest is not tried.
impl Hide for Mask {
    fn hide(&mut self, path: &GuestPath) {
        self.whole = self.whole && self.put_whiteout(path).is_ok();
    }

    fn settle(&mut self, path: &GuestPath) {
        let settle = |path: GuestPath| inherit(&self.source, &self.files, &path);
        self.whole = self.whole && self.below_top(path).and_then(settle).is_ok();
    }
}

/// Gives the directory `path` of `to` what it has in `from`, but to root.
pub(super) fn inherit(from: &Rootfs, to: &Path, path: &GuestPath) -> io::Result<()> {
    copy_metadata(from, &Rootfs::open(to)?, path, Recipient::Root)
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
