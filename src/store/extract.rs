//! The root file system of an image, extracted from a layout into a directory of the user's.
//!
//! It is put together beside its place and gets its name when everything is there and verified: whatever happens before
//! that, nothing is seen there.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, StatxFlags};
use rustix::io::Errno;

use super::choice::LayoutImage;
use super::janitor::Janitor;
use super::layout::{Layout, LayoutError};
use super::mount::{self, MAX_LAYERS, MountError};
use super::settle;
use super::sweep::sweep_hidden;
use super::unpack::{OpenBlob, Source};
use super::unpacked::{Progress, Unpack, UnpackError, Unpacked};
use super::workspace::{Workspace, WorkspaceError};
use crate::image::descriptor::Descriptor;
use crate::image::digest::{DiffId, Digest};
use crate::image::shown;
use crate::layer::zstd::LargeWindows;
use crate::layer::{Application, Limits, LossKind, Losses, Owners, Restricted, Whiteouts};
use crate::rootfs::visit::jobs;
use crate::rootfs::{
    CopyTreeError, Escaped, FileKind, IdMap, Overrides, Rootfs, RootfsError, Timestamp, TreeCopy,
    set_times_at,
};

/// Layers that are unpacked at once.
const JOBS: usize = 4;

/// Why an image could not be extracted.
#[derive(Debug, thiserror::Error)]
pub enum ExtractError {
    /// Something is there already.
    #[error("`{}` {what}: expected a name that is free, or an empty directory", path.display())]
    Occupied {
        /// The place.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// A mount point cannot be replaced by a directory.
    #[error("`{}` is a mount point, which cannot be replaced: name a directory in it", .0.display())]
    MountPoint(PathBuf),
    /// The directory that is to hold the new one cannot be used.
    #[error("cannot {action} `{}`", path.display())]
    Place {
        /// What was tried.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Another system's image.
    #[error("the image is for {0}, whose layers are no root file system")]
    System(String),
    /// More layers than can be stacked.
    #[error("the image has {0} layers, and overlayfs stacks no more than {MAX_LAYERS}")]
    Layers(usize),
    /// A layer's blob is not what its descriptor says.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A layer.
    #[error(transparent)]
    Unpack(#[from] UnpackError),
    /// The layers could not be seen as one tree.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The merged tree could not be copied.
    #[error("cannot copy the merged layers")]
    Copy(#[from] CopyTreeError),
    /// The new tree.
    #[error("cannot finish the root file system")]
    Tree(#[from] RootfsError),
    /// The temporary directory.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
}

/// How layers become one tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// One after the other is applied to the same directory.
    Native,
    /// Each is unpacked into a directory of its own; overlayfs merges them, and the result is copied. The process must be
    /// in a mount namespace of its own, with these ids.
    Overlay(IdMap),
}

/// A directory that does not exist yet, or is empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    path: PathBuf,
    parent: PathBuf,
}

impl Destination {
    /// Looks whether a new directory can get the name `path`.
    ///
    /// # Errors
    /// [`ExtractError::Occupied`], [`ExtractError::MountPoint`] or [`ExtractError::Place`].
    pub fn new(path: &Path) -> Result<Self, ExtractError> {
        let place = |action, source| ExtractError::Place { action, path: path.to_owned(), source };
        // Later changes of the current directory must not move it.
        let absolute = std::path::absolute(path).map_err(|error| place("find", error))?;
        let occupied = |what| Err(ExtractError::Occupied { path: path.to_owned(), what });
        let Some(parent) = absolute.parent().map(Path::to_owned) else { return occupied("is the root") };
        match std::fs::symlink_metadata(&absolute) {
            Ok(metadata) if metadata.is_dir() => {
                if is_mount_point(&absolute) {
                    return Err(ExtractError::MountPoint(path.to_owned()));
                }
                let mut entries = std::fs::read_dir(&absolute).map_err(|error| place("read", error))?;
                if entries.next().is_some() {
                    return occupied("is not empty");
                }
            }
            Ok(_) => return occupied("exists and is not a directory"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(place("find", error)),
        }
        match std::fs::metadata(&parent) {
            Ok(metadata) if metadata.is_dir() => Ok(Self { path: absolute, parent }),
            Ok(_) => Err(ExtractError::Place {
                action: "make a directory in",
                path: parent,
                source: io::ErrorKind::NotADirectory.into(),
            }),
            Err(source) => Err(ExtractError::Place { action: "make a directory in", path: parent, source }),
        }
    }

    /// The directory, absolute.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Whether something is mounted at `path`; not so before Linux 5.8.
pub(crate) fn is_mount_point(path: &Path) -> bool {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    rustix::fs::statx(rustix::fs::CWD, path, flags, StatxFlags::empty())
        .is_ok_and(|stat| stat.stx_attributes.contains(rustix::fs::StatxAttributes::MOUNT_ROOT))
}

/// What extracting an image needs.
pub struct Extract<'a> {
    /// Where the layers are.
    pub layout: &'a Layout,
    /// The image.
    pub image: &'a LayoutImage,
    /// What a layer may hold.
    pub limits: &'a Limits,
    /// What becomes of owners that cannot be given to files.
    pub owners: Owners,
    /// Removes what is not finished, should this process be killed.
    pub janitor: Option<&'a Janitor>,
    /// Hears how it goes; from several threads.
    pub progress: &'a (dyn Fn(Progress<'_>) + Sync),
    /// Says whether to stop; asked often, from several threads.
    pub cancelled: &'a (dyn Fn() -> bool + Sync),
}

impl Extract<'_> {
    /// Makes the directory `to`. Returns what of the image it does not hold.
    ///
    /// # Errors
    /// [`ExtractError`]; nothing is at `to` then that was not there before.
    pub fn run(&self, to: &Destination, way: &Way) -> Result<Losses, ExtractError> {
        let layers: Vec<(DiffId, Descriptor)> =
            self.image.layers().map(|(diff_id, blob)| (diff_id.clone(), blob.clone())).collect();
        self.check(&layers, way)?;
        sweep_hidden(&to.parent);
        let tree = Workspace::create_hidden(&to.parent, self.janitor)?;
        let root = prepare(&tree)?;
        let losses = match way {
            Way::Native => self.apply(&layers, &tree, &root)?,
            Way::Overlay(ids) => self.merge(&layers, &to.parent, ids, &root)?,
        };
        // Nothing must be half made when it is too late to say so.
        if (self.cancelled)() {
            return Err(UnpackError::Cancelled.into());
        }
        publish(&tree, to)?;
        Ok(losses)
    }

    /// What can be found wrong before anything is made.
    fn check(&self, layers: &[(DiffId, Descriptor)], way: &Way) -> Result<(), ExtractError> {
        let system = &self.image.config.os;
        if system.eq_ignore_ascii_case("windows") {
            return Err(ExtractError::System(shown(system)));
        }
        if *way != Way::Native && layers.len() > MAX_LAYERS {
            return Err(ExtractError::Layers(layers.len()));
        }
        for (_, blob) in layers {
            self.layout.reader(blob)?;
        }
        Ok(())
    }

    fn unpack<'a>(
        &'a self,
        open_blob: &'a OpenBlob<'a>,
        progress: &'a (dyn Fn(Progress<'_>) + Sync),
        workspace: &'a Workspace,
    ) -> Unpack<'a> {
        Unpack {
            open_blob,
            workspace,
            progress,
            cancelled: self.cancelled,
            jobs: JOBS,
            limits: self.limits,
            owners: self.owners,
        }
    }

    /// Applies the layers to `root` one after the other.
    fn apply(
        &self,
        layers: &[(DiffId, Descriptor)],
        tree: &Workspace,
        root: &Rootfs,
    ) -> Result<Losses, ExtractError> {
        let mut losses = Losses::default();
        let mut restricted = Restricted::default();
        let windows = LargeWindows::default();
        let open_blob = |digest: &Digest, _: &(dyn Fn() -> bool + Sync)| self.layout.open_blob(digest);
        let unpack = self.unpack(&open_blob, self.progress, tree);
        for (diff_id, blob) in layers {
            (self.progress)(Progress::Started(blob));
            let source = Source { diff_id, blob, unpack: &unpack, windows: &windows };
            let application =
                Application { restricted: Some(&mut restricted), ..source.application(Whiteouts::Remove) };
            let applied = source.apply(application, root)?;
            (self.progress)(Progress::Finished(blob, &applied));
            losses.append(applied.losses);
        }
        restricted.settle(root)?;
        Ok(losses)
    }

    /// Has overlayfs merge the layers, and copies what comes out into `root`.
    fn merge(
        &self,
        layers: &[(DiffId, Descriptor)],
        parent: &Path,
        ids: &IdMap,
        root: &Rootfs,
    ) -> Result<Losses, ExtractError> {
        let workspace = Workspace::create_hidden(parent, self.janitor)?;
        let unpacked = Unpacked::open(&workspace.path().join("unpacked"), ids)?;
        let lost = std::sync::Mutex::new(Losses::default());
        let open_blob = |digest: &Digest, _: &(dyn Fn() -> bool + Sync)| self.layout.open_blob(digest);
        let progress = |news: Progress<'_>| {
            if let Progress::Finished(_, applied) = news {
                let mut lost = lost.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                lost.append(applied.losses.clone());
            }
            (self.progress)(news);
        };
        let chain = unpacked.chain(layers, &self.unpack(&open_blob, &progress, &workspace))?;
        let view = mount::overlay(&chain.root_dirs(), None, &workspace.directory("view")?)?;
        let copy = TreeCopy { names: self.limits.names, cancelled: &self.cancelled, jobs: jobs() };
        match copy.copy(&Rootfs::from_fd(view), root) {
            Err(CopyTreeError::Cancelled) => return Err(UnpackError::Cancelled.into()),
            result => result?,
        }
        let mut losses = lost.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        lose(chain.overrides(), root, &mut losses)?;
        Ok(losses)
    }
}

/// Counts what the disk does not hold of a tree, and takes away what stands in place of devices there.
fn lose(overrides: &Overrides, root: &Rootfs, losses: &mut Losses) -> Result<(), RootfsError> {
    for (path, held) in overrides.iter() {
        if let Some((kind, number)) = held.device() {
            let kind = if kind == FileKind::CharDevice { "character device" } else { "block device" };
            let number = (rustix::fs::major(number), rustix::fs::minor(number));
            losses.add(LossKind::Device, path, || format!("{kind} {}:{}", number.0, number.1));
            settle::remove(root, path)?;
            continue;
        }
        if let Some(owner) = held.owner() {
            losses.add(LossKind::Owner, path, || format!("{}:{}", owner.uid, owner.gid));
        }
        if let Some(mode) = held.mode() {
            losses.add(LossKind::SetId, path, || format!("mode {mode:04o}"));
        }
        for (key, _) in held.xattrs() {
            losses.add(LossKind::Attribute, path, || format!("`{}`", Escaped::new(key)));
        }
    }
    Ok(())
}

/// Makes of a new workspace what an image without a word about its root has: 0755, from 1970.
fn prepare(tree: &Workspace) -> Result<Rootfs, ExtractError> {
    let failed = |source| ExtractError::Place { action: "prepare", path: tree.path().to_owned(), source };
    let root = Rootfs::open(tree.path()).map_err(failed)?;
    rustix::fs::chmod(tree.path(), Mode::from_raw_mode(0o755)).map_err(|error| failed(error.into()))?;
    set_times_at(root.as_fd(), b".", Timestamp::default()).map_err(failed)?;
    Ok(root)
}

/// Gives the complete tree its name. An empty directory that has it is replaced.
fn publish(tree: &Workspace, to: &Destination) -> Result<(), ExtractError> {
    let path = || to.path.clone();
    match rustix::fs::rename(tree.path(), &to.path) {
        Ok(()) => Ok(()),
        // Somebody was faster.
        Err(Errno::NOTEMPTY | Errno::EXIST) => {
            Err(ExtractError::Occupied { path: path(), what: "is not empty any more" })
        }
        Err(Errno::NOTDIR) => {
            Err(ExtractError::Occupied { path: path(), what: "exists and is not a directory" })
        }
        Err(Errno::BUSY) => Err(ExtractError::MountPoint(path())),
        Err(error) => Err(ExtractError::Place { action: "make", path: path(), source: error.into() }),
    }
}
