//! What a step finds in its root where nothing can be mounted: put there before it runs, taken away when it has ended.
//!
//! What is covered is renamed *aside*, into a directory on the same file system that the step cannot reach. What covers it
//! was made there and is renamed into its place. All that is undone backwards: what the step left in a covered place is
//! removed, and what was there before comes back, the same files with the same times. No path is looked up for that:
//! places are known by directory and name, wherever the step has moved the directory.

mod aside;
mod dev;
mod error;
mod kept;
mod mounted;
mod parents;
mod secret_files;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use self::aside::Aside;
use self::kept::Moved;
use self::parents::Parents;
use self::secret_files::SecretFiles;
use super::mount::PointKind;
use super::provided::{self, KERNEL, PROVIDED, cause, in_root, make_file};
use super::refusal::Attempt;
use super::stubs::Stubs;
use super::{Cancel, Process, SandboxError, Script};
use crate::limit::Limit;
use crate::rootfs::{
    GuestPath, Metadata, Owner, Rootfs, RootfsError, keeping_mtime, metadata_of, set_mode_at, set_owner_at,
    set_times_at,
};
pub use error::FurnishError;

/// What is in a root for the time of a step. Dropped, it is undone.
#[derive(Debug)]
pub(super) struct Furnished {
    /// The tree as the disk has it.
    root: Rootfs,
    aside: Aside,
    /// Latest last.
    done: Vec<Done>,
    /// The real paths of what was put there.
    ours: Vec<GuestPath>,
    secrets: SecretFiles,
    /// What is kept elsewhere, latest last.
    moved: Vec<Moved>,
    /// Where it was put.
    parents: Parents,
}

/// Something that was done to the root.
#[derive(Debug)]
enum Done {
    /// Something was made where nothing was.
    Made(Stubs),
    /// Something was covered.
    Covered(Covered),
}

/// An entry of the root that is aside.
#[derive(Debug)]
struct Covered {
    /// Its real path.
    path: GuestPath,
    parent: OwnedFd,
    name: Vec<u8>,
    /// Its name in the directory aside.
    aside: String,
    origin: Origin,
    /// The directories of the image on the way to it, from the first below the root.
    above: Vec<Metadata>,
}

/// Whose a covered entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    Image,
    /// It was made to be covered, or covers something itself.
    Ours,
}

/// Names the step of a failure.
fn during<T>(result: Result<T, impl Into<io::Error>>, step: impl Into<Attempt>) -> Result<T, SandboxError> {
    result.map_err(|error| SandboxError::Setup { step: step.into(), source: error.into() })
}

/// Gives what was just made owner and mode, whatever the umask was.
fn finish(directory: BorrowedFd<'_>, name: &[u8], owner: Owner, mode: u32) -> io::Result<()> {
    set_owner_at(directory, name, owner)?;
    set_mode_at(directory, name, mode)
}

/// Makes a directory of root.
fn make_directory(directory: BorrowedFd<'_>, name: &[u8], mode: u32) -> io::Result<()> {
    rustix::fs::mkdirat(directory, name, Mode::RWXU)?;
    finish(directory, name, Owner::ROOT, mode)
}

/// Where a step is about to run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Home<'a> {
    pub(super) root: &'a Rootfs,
    /// As for [`Furnished::new`].
    pub(super) aside: &'a Path,
    pub(super) kernel: KernelDirectories,
    /// The most bytes of names that are remembered while a tree with hard links is copied.
    pub(super) names: Limit,
}

/// What becomes of `/proc`, `/sys` and `/dev`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KernelDirectories {
    /// They are covered, for a step that sees these very directories.
    Covered,
    /// They are left as they are, for a step that sees others in their place.
    Plain,
}

impl Home<'_> {
    /// Puts there what `process` is to find.
    pub(super) fn furnish(self, process: &Process, cancel: &Cancel) -> Result<Furnished, SandboxError> {
        let mut furnished = Furnished::new(self.root, self.aside)?;
        furnished.provide_files(&process.resolv_conf, &with_own_name(&process.hosts))?;
        if self.kernel == KernelDirectories::Covered {
            furnished.cover_kernel_directories(&process.scripts)?;
        }
        furnished.put_mounts(&process.mounts, self.names, cancel)?;
        furnished.watch();
        Ok(furnished)
    }
}

/// The hosts of a step that has the host name of the machine: that must lead somewhere, too.
fn with_own_name(hosts: &[u8]) -> Vec<u8> {
    let system = rustix::system::uname();
    let name = system.nodename().to_bytes();
    let mut hosts = hosts.to_vec();
    let is_known = hosts.split(u8::is_ascii_whitespace).any(|word| word == name);
    if !is_known && !name.is_empty() && name.iter().all(u8::is_ascii_graphic) {
        hosts.extend_from_slice(&[b"127.0.0.1\t", name, b"\n"].concat());
    }
    hosts
}

impl Furnished {
    /// Nothing yet but the kernel's directories, which stay. What is covered in `root` is kept in `aside`, a directory on
    /// the same file system, and in the same mount, that the step cannot reach. Nobody else may change the tree until the
    /// step runs.
    pub(super) fn new(root: &Rootfs, aside: &Path) -> Result<Self, SandboxError> {
        let step = || format!("use the directory `{}`", aside.display());
        let root = Rootfs::from_fd(during(root.as_fd().try_clone_to_owned(), "open the root")?);
        provided::make_kernel_directories(&root)?;
        let aside = during(Aside::new(aside), step())?;
        let (secrets, parents) = (SecretFiles::default(), Parents::default());
        let (done, ours, moved) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { root, aside, done, ours, secrets, moved, parents })
    }

    /// Covers `/etc/resolv.conf` and `/etc/hosts`, or what links there point to.
    pub(super) fn provide_files(&mut self, resolv_conf: &[u8], hosts: &[u8]) -> Result<(), SandboxError> {
        let mut places = Vec::new();
        for path in PROVIDED {
            let target = in_root(path);
            let failed = |source| FurnishError::Prepare { path: target.clone(), source };
            let place = self.root.resolve(&target).map_err(failed)?;
            let origin = self.make_missing(&place, PointKind::File).map_err(failed)?;
            places.push((path, place, origin));
        }
        for ((path, place, origin), content) in places.into_iter().zip([resolv_conf, hosts]) {
            provided::check_file(&self.root, path, &place)?;
            let step = || format!("put `/{path}` in its place");
            let made = self.aside.new_name();
            during(make_file(&self.aside, made.as_bytes(), Owner::ROOT, 0o644, content), step())?;
            during(self.cover(&place, &made, origin), step())?;
        }
        Ok(())
    }

    /// Covers `/proc` and `/sys` with empty directories and `/dev` with a small one of our own, in which `scripts` are.
    pub(super) fn cover_kernel_directories(&mut self, scripts: &[Script]) -> Result<(), SandboxError> {
        for name in KERNEL {
            let step = || format!("put `/{name}` in its place");
            let made = match name {
                "dev" => dev::make(&mut self.aside, scripts)?,
                _ => {
                    let made = self.aside.new_name();
                    during(make_directory(self.aside.as_fd(), made.as_bytes(), 0o555), step())?;
                    made
                }
            };
            during(self.cover(&in_root(name), &made, Origin::Image), step())?;
        }
        Ok(())
    }

    /// Makes `place` and the directories above it, as far as they are not there, until everything is undone.
    fn make_missing(&mut self, place: &GuestPath, point: PointKind) -> Result<Origin, RootfsError> {
        let mut stubs = Stubs::default();
        let result = stubs.make_missing(&self.root, place, point);
        let is_ours = !stubs.are_none() || self.has_made(place) || self.ours.contains(place);
        self.done.push(Done::Made(stubs));
        result.map(|()| if is_ours { Origin::Ours } else { Origin::Image })
    }

    fn has_made(&self, path: &GuestPath) -> bool {
        self.done.iter().any(|done| matches!(done, Done::Made(stubs) if stubs.include(path)))
    }

    /// Puts what is called `made` in the directory aside over what is at `place`, which leads over no link.
    fn cover(&mut self, place: &GuestPath, made: &str, origin: Origin) -> io::Result<()> {
        let (parent, name) = self.root.parent(place).map_err(cause)?;
        let above = self.directories_above(place)?;
        let aside = self.aside.new_name();
        let (directory, name_there) = (parent.try_clone()?, name.clone());
        keeping_mtime(&directory, || {
            rustix::fs::renameat(&parent, name.as_slice(), &self.aside, &aside)?;
            // Before anything else can fail: what is not known to be aside goes with it.
            let path = place.clone();
            self.done.push(Done::Covered(Covered { path, parent, name, aside, origin, above }));
            Ok(rustix::fs::renameat(&self.aside, made, &directory, name_there.as_slice())?)
        })?;
        self.ours.push(place.clone());
        Ok(())
    }

    /// Remembers what the step finds, to tell what it did from what is undone.
    fn watch(&mut self) {
        for done in &self.done {
            match done {
                Done::Made(stubs) => stubs.entries().for_each(|(path, parent, name)| {
                    self.parents.watch(path, parent, name, &self.ours);
                }),
                Done::Covered(Covered { path, parent, name, .. }) => {
                    self.parents.watch(path, parent, name, &self.ours);
                }
            }
        }
        self.parents.begin();
    }

    /// The directories of the image on the way to `place`, from the first below the root.
    fn directories_above(&self, place: &GuestPath) -> io::Result<Vec<Metadata>> {
        let mut paths = Vec::new();
        let mut next = place.parent();
        while let Some(path) = next.filter(|path| !path.is_root()) {
            next = path.parent();
            paths.push(path);
        }
        let mut found = Vec::new();
        for path in paths.iter().rev() {
            if self.has_made(path) {
                break;
            }
            let directory = self.root.directory(path).map_err(cause)?;
            found.push(metadata_of(&directory)?);
        }
        Ok(found)
    }

    /// Takes everything away again. No process of the step may be left. What is kept elsewhere and could only be copied is
    /// copied back, unless `cancel` comes.
    pub(super) fn remove(mut self, names: Limit, cancel: &Cancel) -> Result<(), SandboxError> {
        self.parents.end();
        let copied = self.copy_back(names, cancel);
        self.undo().map_err(FurnishError::Restore)?;
        copied
    }

    /// Leaves everything where it is, but for secrets: something of the step lives, which could lead astray what is moved.
    /// Their files are open, and not found by their paths.
    pub(super) fn leave(mut self) {
        // That something lives is the failure to report.
        let _ = self.secrets.empty();
        std::mem::forget(self);
    }

    /// Goes on after a failure: the first is the one to report.
    fn undo(&mut self) -> Result<(), RootfsError> {
        let mut result = self.secrets.empty();
        // Before anything is discarded.
        result = result.and(self.bring_home());
        while let Some(done) = self.done.pop() {
            let undone = match done {
                Done::Made(mut stubs) => stubs.remove(),
                Done::Covered(covered) => self.uncover(&covered).map_err(|source| RootfsError::Io {
                    action: "put back",
                    path: covered.path,
                    source,
                }),
            };
            result = result.and(undone);
        }
        result
    }

    fn uncover(&mut self, covered: &Covered) -> io::Result<()> {
        let Covered { parent, name, aside, .. } = covered;
        let before = metadata_of(parent)?.mtime;
        // At once and not at the end: the step may have moved the very directory in there that comes next, and whatever
        // is put back into it must not go with it.
        let discarded = self.aside.discard(parent.as_fd(), name);
        match rustix::fs::renameat(&self.aside, aside, parent, name.as_slice()) {
            Err(Errno::NOENT) => self.put_back_by_path(covered)?,
            result => {
                result?;
                // What the step changed there counts, what we change does not.
                set_times_at(parent.as_fd(), b".", before)?;
            }
        }
        discarded
    }

    /// The step has removed the directory. From one in which something is mounted the kernel would have let it remove
    /// only the rest: the directories of the image are made again.
    fn put_back_by_path(&self, covered: &Covered) -> io::Result<()> {
        let mut directory = self.root.as_fd().try_clone_to_owned()?;
        for (name, metadata) in covered.path.components().zip(&covered.above) {
            directory = remake(&directory, name, metadata)?;
        }
        if covered.origin == Origin::Image {
            rustix::fs::renameat(&self.aside, &covered.aside, directory, covered.name.as_slice())?;
        }
        Ok(())
    }
}

/// The directory `name` of `parent`, which is made like the one that `metadata` is of if there is none.
fn remake(parent: &OwnedFd, name: &[u8], metadata: &Metadata) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || rustix::fs::openat(parent, name, flags, Mode::empty());
    match open() {
        Err(Errno::NOENT) => {}
        Err(Errno::NOTDIR | Errno::LOOP) => rustix::fs::unlinkat(parent, name, AtFlags::empty())?,
        result => return Ok(result?),
    }
    rustix::fs::mkdirat(parent, name, Mode::RWXU)?;
    finish(parent.as_fd(), name, metadata.owner, metadata.mode)?;
    Ok(open()?)
}

/// For the ways out that report another error.
impl Drop for Furnished {
    fn drop(&mut self) {
        let _ = self.undo();
    }
}

#[cfg(test)]
mod tests;
