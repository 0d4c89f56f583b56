//! The build context as a bind mount shows it: what is ignored is not there, everything is root's, as after BuildKit's
//! transfer of the context.
//!
//! Most contexts need no copy for that. Where nothing is ignored and all is root's, the directory itself is mounted.
//! Where something is ignored, an overlay mount hides it: on top of the context lies a directory with nothing in it but
//! whiteouts, the *mask*. Where other owners are to be hidden as well the mask also holds their files, but for the
//! content (overlayfs calls that `metacopy`). Only where overlayfs takes neither is everything copied.

mod mask;
mod survey;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rustix::fs::{Mode, OFlags};

use self::mask::Mask;
use self::survey::{Found, survey};
use super::copy::{Copier, CopyError, CopyRequest, OwnerPolicy, Parents, Selected, SourceTree};
use super::execute::locked;
use crate::context::Context;
use crate::dockerfile::Access;
use crate::rootfs::{
    Escaped, FileKind, Follow, GuestPath, Metadata, Owner, Rootfs, RootfsError, Timestamp, metadata_of,
};
use crate::store::mount::{self, CopyUp, MountError, Upper};
use crate::store::workspace::{Scratch, Workspace, WorkspaceError};

/// Why a part of the context cannot be mounted.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// It could not be read.
    #[error("cannot read the build context")]
    Context(#[from] RootfsError),
    /// A path that no system call takes.
    #[error("the path `{path}` in the build context is longer than 4096 bytes")]
    TooDeep {
        /// The beginning of the path.
        path: Escaped,
    },
    /// There is no place for what hides a part of it, or for what is written to it.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    /// What shows it, or hides a part of it, could not be made.
    #[error("cannot {action} `{path}` of the build context")]
    Prepare {
        /// What was tried.
        action: &'static str,
        /// With which directory.
        path: GuestPath,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// It could not be copied.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// It could not be mounted.
    #[error(transparent)]
    Mount(#[from] MountError),
}

/// Views of one context, for one build.
pub(super) struct ContextViews<'a> {
    context: &'a Context,
    workspace: &'a Workspace,
    /// What is known of the directories that were mounted before.
    known: Mutex<BTreeMap<GuestPath, Arc<Known>>>,
}

/// How a directory can be mounted.
enum Known {
    /// As it is; with an overlay that takes what is written, unless there are other mounts in it.
    AsItIs(Found),
    /// Below a mask.
    Masked(Mask),
    /// As a copy.
    Copied(Scratch),
}

/// Something that can be mounted, and what must be kept for as long as it is.
pub(super) struct Shown {
    /// The root of the mount that `source` is in.
    pub(super) tree: Arc<OwnedFd>,
    /// What to mount.
    pub(super) source: Arc<OwnedFd>,
    _scratch: Option<Scratch>,
    _known: Option<Arc<Known>>,
}

impl Shown {
    fn new(source: OwnedFd, scratch: Option<Scratch>) -> Self {
        let source = Arc::new(source);
        Self { tree: Arc::clone(&source), source, _scratch: scratch, _known: None }
    }
}

/// What is at a path of the context, and what it was when it was opened.
struct Place {
    path: GuestPath,
    fd: OwnedFd,
    metadata: Metadata,
}

impl Place {
    /// Whoever writes to the context may have put a link where there was none: that is no place.
    fn find(root: &Rootfs, path: &GuestPath) -> Result<Self, ViewError> {
        let fd = root.open_path(path, Follow::No)?;
        let metadata = metadata_of(&fd).map_err(|source| RootfsError::Io {
            action: "look at",
            path: path.clone(),
            source,
        })?;
        if metadata.kind == FileKind::Symlink {
            return Err(CopyError::Changed { path: path.clone() }.into());
        }
        Ok(Self { path: path.clone(), fd, metadata })
    }

    /// The same for somebody else to keep.
    fn kept_open(&self) -> Result<OwnedFd, ViewError> {
        self.fd.try_clone().map_err(|source| self.failed("keep open", source))
    }

    fn failed(&self, action: &'static str, source: io::Error) -> ViewError {
        ViewError::Prepare { action, path: self.path.clone(), source }
    }
}

/// Opens something in the workspace, which may be a copy of anything: no link is followed.
fn open(path: &Path) -> Result<OwnedFd, MountError> {
    rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
        .map_err(|cause| MountError::Directory { path: path.to_owned(), cause: cause.into() })
}

impl<'a> ContextViews<'a> {
    /// Views of `context`; what they need besides is put into `workspace`.
    pub(super) fn new(context: &'a Context, workspace: &'a Workspace) -> Self {
        Self { context, workspace, known: Mutex::default() }
    }

    /// The context.
    pub(super) fn context(&self) -> &'a Context {
        self.context
    }

    /// What to mount for `path`, which is not ignored and leads over no links. Where `access` allows writing, all that is
    /// written goes with the value.
    pub(super) fn show(&self, path: &GuestPath, access: Access) -> Result<Shown, ViewError> {
        let place = Place::find(self.context.root(), path)?;
        let Metadata { kind, owner, .. } = place.metadata;
        match kind {
            FileKind::Directory => self.directory(place, access),
            FileKind::File if owner == Owner::ROOT && access == Access::ReadOnly => {
                Ok(Shown::new(place.fd, None))
            }
            _ => self.copy_of_file(&place),
        }
    }

    fn directory(&self, place: Place, access: Access) -> Result<Shown, ViewError> {
        let known = self.known(&place)?;
        let shown = match (&*known, access) {
            (Known::AsItIs(_), Access::ReadOnly) => Shown::new(place.fd, None),
            (Known::Copied(scratch), Access::ReadOnly) => {
                Shown::new(open(&scratch.path().join(FILES))?, None)
            }
            (Known::Masked(mask), Access::ReadOnly) => self.overlay(&place, Some(mask), access)?,
            (Known::AsItIs(Found { mounts: 0, .. }), Access::ReadWrite) => {
                self.overlay(&place, None, access).or_else(|_| self.copy_of_directory(&place))?
            }
            (Known::Masked(mask), Access::ReadWrite) => {
                self.overlay(&place, Some(mask), access).or_else(|_| self.copy_of_directory(&place))?
            }
            (Known::AsItIs(_) | Known::Copied(_), Access::ReadWrite) => self.copy_of_directory(&place)?,
        };
        Ok(Shown { _known: Some(known), ..shown })
    }

    /// Finds out how the directory can be mounted, once for each.
    fn known(&self, place: &Place) -> Result<Arc<Known>, ViewError> {
        // Others who want the same wait: looking may take long.
        let mut all = locked(&self.known);
        if let Some(known) = all.get(&place.path) {
            return Ok(Arc::clone(known));
        }
        let known = Arc::new(self.look_at(place)?);
        all.insert(place.path.clone(), Arc::clone(&known));
        Ok(known)
    }

    fn look_at(&self, place: &Place) -> Result<Known, ViewError> {
        let mut mask = Mask::new(self.workspace.scratch("context")?, place)?;
        let found = survey(self.context.root(), self.context.ignore(), &place.path, &mut mask)?;
        if (found.hidden, found.foreign, found.pipes) == (0, 0, 0) {
            return Ok(Known::AsItIs(found));
        }
        // An overlay does not show what is mounted in its layers.
        let usable = found.mounts == 0
            && mask.finish().is_ok()
            && (found.foreign == 0 || mask.take_over().is_ok())
            && self.overlay(place, Some(&mask), Access::ReadOnly).is_ok();
        if usable { Ok(Known::Masked(mask)) } else { Ok(Known::Copied(self.copied_directory(place)?)) }
    }

    /// Mounts the directory `place` under `mask`, and both under one for what is written if `access` allows that.
    fn overlay(&self, place: &Place, mask: Option<&Mask>, access: Access) -> Result<Shown, ViewError> {
        let scratch = self.workspace.scratch("context")?;
        let below = mask.map_or(place.fd.as_fd(), Mask::source);
        let below_name = PathBuf::from(format!("/proc/self/fd/{}", below.as_raw_fd()));
        let mut lowers = vec![below_name.as_path()];
        lowers.extend(mask.map(Mask::files));
        let [files, work] = [scratch.directory(FILES)?, scratch.directory("work")?];
        let upper = match access {
            Access::ReadOnly => None,
            Access::ReadWrite => {
                // Its root is that of the mount.
                let failed = |source| place.failed("copy the metadata of", source);
                let top = mask.map_or(below, Mask::root).try_clone_to_owned().map_err(failed)?;
                mask::inherit(&Rootfs::from_fd(top), &files, &GuestPath::root()).map_err(failed)?;
                Some(Upper { files: &files, work: &work })
            }
        };
        let copy_up = mask.map_or(CopyUp::Whole, Mask::copy_up);
        let tree = mount::overlay_with(&lowers, upper, copy_up, scratch.path())?;
        Ok(Shown::new(tree, Some(scratch)))
    }

    fn copy_of_directory(&self, place: &Place) -> Result<Shown, ViewError> {
        let scratch = self.copied_directory(place)?;
        Ok(Shown::new(open(&scratch.path().join(FILES))?, Some(scratch)))
    }

    fn copied_directory(&self, place: &Place) -> Result<Scratch, ViewError> {
        let scratch = self.workspace.scratch("context")?;
        let files = scratch.directory(FILES)?;
        self.copy(place, &files, b"/")?;
        let top = Rootfs::from_fd(place.kept_open()?);
        mask::inherit(&top, &files, &GuestPath::root())
            .map_err(|source| place.failed("copy the metadata of", source))?;
        Ok(scratch)
    }

    fn copy_of_file(&self, place: &Place) -> Result<Shown, ViewError> {
        let scratch = self.workspace.scratch("context")?;
        self.copy(place, scratch.path(), b"/file")?;
        Ok(Shown::new(open(&scratch.path().join("file"))?, Some(scratch)))
    }

    /// Copies what is not ignored of `place` to `destination` in the directory `to`, for root.
    fn copy(&self, place: &Place, to: &Path, destination: &[u8]) -> Result<(), ViewError> {
        let onto = Rootfs::from_fd(open(to)?);
        let request = CopyRequest {
            sources: Vec::new(),
            from: SourceTree {
                root: self.context.root(),
                ignore: Some(self.context.ignore()),
                owner: OwnerPolicy::Root,
            },
            destination,
            workdir: &GuestPath::root(),
            chown: None,
            chmod: None,
            exclude: None,
            parents: Parents::Dropped,
        };
        let selected = Selected::Tree {
            name: b"file".to_vec(),
            path: place.path.clone(),
            metadata: place.metadata.clone(),
            only: None,
        };
        let mut copier = Copier::new(&request, &onto, Timestamp::default())?;
        copier.place(&selected)?;
        copier.finish()?;
        Ok(())
    }
}

/// The directory that holds the files, in a [`Scratch`].
const FILES: &str = "files";

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the tests prepare contexts of their own on the host")]
mod tests;
