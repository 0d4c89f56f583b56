//! What is kept elsewhere and is the step's for a while: moved into the root, and back from wherever the step has put it.
//!
//! Moving takes no time, however much is in it. If the builder is killed meanwhile, it goes with the step's root. Where the
//! root is in another file system it is copied there, and after the step what became of the copy takes its place.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::mounted::copy;
use super::{FurnishError, Furnished, during};
use crate::limit::Limit;
use crate::rootfs::{CopyTreeError, Follow, GuestPath, Rootfs, RootfsError, keeping_mtime, remove_tree};
use crate::sandbox::in_place::{bring_home, is_at};
use crate::sandbox::mount::{KeptAt, PointKind};
use crate::sandbox::{Cancel, SandboxError};

/// Whether two names are of one directory entry.
fn is_same(one: &KeptAt, other: &KeptAt) -> bool {
    let identity =
        |kept_at: &KeptAt| rustix::fs::fstat(&kept_at.directory).map(|stat| (stat.st_dev, stat.st_ino));
    one.name == other.name && matches!((identity(one), identity(other)), (Ok(one), Ok(other)) if one == other)
}

/// Something of which the step has the original or a copy.
#[derive(Debug)]
pub(super) struct Moved {
    /// What the step has, open.
    held: OwnedFd,
    kept_at: Arc<KeptAt>,
    point: PointKind,
    /// Where it was put.
    path: GuestPath,
    way: Way,
}

#[derive(Debug, PartialEq, Eq)]
enum Way {
    /// It is the original, which belongs home.
    Rename,
    /// It is a copy, for which the original stays where it is.
    Copy,
}

/// The name, where it is kept, of a copy that is being made.
const RETURNING: &str = "returning";

impl Furnished {
    /// Moves what is open as `source` and kept at `kept_at` into the directory aside; gives its name there.
    pub(super) fn move_here(
        &mut self,
        source: &OwnedFd,
        kept_at: &Arc<KeptAt>,
        (point, path): (PointKind, &GuestPath),
        names: Limit,
        cancel: &Cancel,
    ) -> Result<String, SandboxError> {
        let step = || format!("move what is to be mounted at `{path}`");
        let made = self.aside.new_name();
        let held = during(source.try_clone(), step())?;
        // Before it is moved: what is not known to be there would go with the directory aside.
        let kept_at = Arc::clone(kept_at);
        self.moved.push(Moved {
            held,
            kept_at: Arc::clone(&kept_at),
            point,
            path: path.clone(),
            way: Way::Rename,
        });
        match rustix::fs::renameat(&kept_at.directory, kept_at.name.as_slice(), &self.aside, &made) {
            Ok(()) => return Ok(made),
            Err(Errno::XDEV) => drop(self.moved.pop()),
            Err(error) => {
                self.moved.pop();
                if let Some(other) = self.moved.iter().find(|other| is_same(&other.kept_at, &kept_at)) {
                    let problem = format!(
                        "the same cache is at `{}`, and where nothing can be mounted it can be at one place only; use it there, or make one of the two `readonly`",
                        other.path
                    );
                    return Err(SandboxError::MountTarget { path: path.clone(), problem });
                }
                // Somebody removes what is in the store.
                return during(Err(error), step());
            }
        }
        let made = self.copy_of(source, (point, path), names, cancel)?;
        let there = GuestPath::root().child(made.as_bytes());
        let aside = during(self.aside.as_fd().try_clone_to_owned(), step())?;
        let held = Rootfs::from_fd(aside).open_path(&there, Follow::No);
        let held = held.map_err(|source| FurnishError::Prepare { path: path.clone(), source })?;
        self.moved.push(Moved { held, kept_at, point, path: path.clone(), way: Way::Copy });
        Ok(made)
    }

    /// Puts copies of what the step has made of copies in the place of the originals, all of them or none.
    pub(super) fn copy_back(&mut self, names: Limit, cancel: &Cancel) -> Result<(), SandboxError> {
        for moved in self.moved.iter().filter(|moved| moved.way == Way::Copy) {
            if cancel.is_cancelled() {
                break;
            }
            let result = moved.copy_back(names, cancel);
            if let Err(source) = result
                && !cancel.is_cancelled()
            {
                return Err(FurnishError::Return { path: moved.path.clone(), source }.into());
            }
        }
        Ok(())
    }

    /// Moves the originals back, and copies out of the root. Goes on after a failure: the first is the one to report.
    pub(super) fn bring_home(&mut self) -> Result<(), RootfsError> {
        let mut result = Ok(());
        while let Some(moved) = self.moved.pop() {
            let brought = match moved.way {
                Way::Rename => moved.bring_home(moved.kept_at.directory.as_fd(), &moved.kept_at.name),
                Way::Copy => {
                    let name = self.aside.new_name();
                    moved.bring_home(self.aside.as_fd(), name.as_bytes())
                }
            };
            let failed = |source| RootfsError::Io { action: "keep", path: moved.path.clone(), source };
            result = result.and(brought.map_err(failed));
        }
        result
    }
}

impl Moved {
    /// Moves what the step has from wherever it is to `name` in `directory`.
    fn bring_home(&self, directory: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
        if is_at(self.held.as_fd(), directory, name) {
            return Ok(());
        }
        match self.point {
            PointKind::Directory { .. } => {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let above = match rustix::fs::openat(&self.held, "..", flags, Mode::empty()) {
                    // The step has removed it: who wants it next makes it anew.
                    Err(Errno::NOENT) => return Ok(()),
                    above => above?,
                };
                // What the step did there counts, what we do does not.
                let moved = keeping_mtime(&above, || bring_home(self.held.as_fd(), directory, name));
                match moved {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                    result => result,
                }
            }
            // A file does not know where it is. One that the step has replaced, as editors do, or moved stays what it was.
            PointKind::File => {
                let path = format!("/proc/self/fd/{}", self.held.as_raw_fd());
                match rustix::fs::linkat(rustix::fs::CWD, path, directory, name, AtFlags::SYMLINK_FOLLOW) {
                    Err(Errno::NOENT) => Ok(()),
                    result => Ok(result?),
                }
            }
        }
    }

    fn copy_back(&self, names: Limit, cancel: &Cancel) -> Result<(), CopyTreeError> {
        let KeptAt { directory, name } = &*self.kept_at;
        let failed = |action| {
            let path = self.path.clone();
            move |source: io::Error| CopyTreeError::Io { action, path, source }
        };
        // Of one who was killed here.
        let _ = remove_tree(directory.as_fd(), RETURNING.as_bytes());
        let copied =
            copy(&self.held, (self.point, &self.path), (directory.as_fd(), RETURNING), names, cancel);
        let swapped = copied.and_then(|()| {
            let flags = RenameFlags::EXCHANGE;
            let exchanged =
                rustix::fs::renameat_with(directory, RETURNING, directory, name.as_slice(), flags);
            match exchanged {
                // A file system that cannot exchange. If this is killed here, the cache is new next time.
                Err(Errno::INVAL | Errno::NOSYS) => remove_tree(directory.as_fd(), name)
                    .and_then(|()| {
                        Ok(rustix::fs::renameat(directory, RETURNING, directory, name.as_slice())?)
                    })
                    .map_err(failed("replace")),
                result => result.map_err(|error| failed("replace")(error.into())),
            }
        });
        let removed = remove_tree(directory.as_fd(), RETURNING.as_bytes());
        swapped?;
        removed.map_err(failed("remove the old of"))
    }
}
