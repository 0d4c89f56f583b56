//! Going through a checkout, one directory after the other, with the names of directories in memory and no others.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd};

use rustix::fs::{AtFlags, OFlags, RawDir};
use rustix::io::Errno;

use crate::rootfs::visit::{Names, open_exact};
use crate::rootfs::{FileKind, GuestPath, RootfsError, metadata_at};

/// Calls `enter` with each directory of `root` and its path, the top first. What `enter` puts into the list are the names
/// of directories in it, which come later. No link is followed.
///
/// # Errors
/// Those of `enter`, and those of open(2), with the path of the directory.
pub(super) fn each_directory<E: From<RootfsError>>(
    root: BorrowedFd<'_>,
    enter: &mut dyn FnMut(&GuestPath, BorrowedFd<'_>, &mut Names) -> Result<(), E>,
) -> Result<(), E> {
    let mut above: Vec<(GuestPath, Names)> = Vec::new();
    let mut path = GuestPath::root();
    loop {
        let opened = open_exact(root, &path, OFlags::RDONLY | OFlags::DIRECTORY);
        let directory = opened.map_err(|source| failed("open", &path, source))?;
        let mut below = Names::default();
        enter(&path, directory.as_fd(), &mut below)?;
        above.push((path, below));
        path = loop {
            let Some((parent, names)) = above.last_mut() else { return Ok(()) };
            match names.pop() {
                Some(name) => break parent.child(&name),
                None => above.pop(),
            };
        };
    }
}

/// Calls `each` with the name and kind of each entry of `directory`, in the order of the disk, without having all in
/// memory.
///
/// # Errors
/// Those of `each`, and those of getdents64(2), with `path`.
pub(super) fn each_entry<E: From<RootfsError>>(
    directory: BorrowedFd<'_>,
    path: &GuestPath,
    mut each: impl FnMut(&[u8], FileKind) -> Result<(), E>,
) -> Result<(), E> {
    let mut buffer = [MaybeUninit::uninit(); 8192];
    let mut entries = RawDir::new(directory, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = entry.map_err(|error| failed("list", path, error.into()))?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        let kind = match FileKind::of(entry.file_type()) {
            Some(kind) => kind,
            // Some file systems do not say.
            None => metadata_at(directory, name).map_err(|source| failed("look at", path, source))?.kind,
        };
        each(name, kind)?;
    }
    Ok(())
}

fn failed(action: &'static str, path: &GuestPath, source: io::Error) -> RootfsError {
    RootfsError::Io { action, path: path.clone(), source }
}

/// What there is in a directory, at all depths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Room {
    /// Bytes of files, holes included.
    pub(super) bytes: u64,
    /// Files, links and directories.
    pub(super) entries: u64,
}

/// Why a count was not brought to its end.
enum Unfinished {
    Enough,
    Failed(RootfsError),
}

impl From<RootfsError> for Unfinished {
    fn from(error: RootfsError) -> Self {
        Self::Failed(error)
    }
}

impl Room {
    /// Counts what is below `root`, until `enough` says that it is. Where a directory goes away meanwhile, it is what was
    /// found by then.
    ///
    /// # Errors
    /// Those of getdents64(2) and statx(2), but not that something is not there any more.
    pub(super) fn below(root: BorrowedFd<'_>, enough: &dyn Fn(&Self) -> bool) -> Result<Self, RootfsError> {
        let mut room = Self::default();
        let counted = each_directory(root, &mut |path, directory, below| {
            each_entry(directory, path, |name, kind| {
                room.add(directory, name, kind, below).map_err(|source| failed("look at", path, source))?;
                if enough(&room) { Err(Unfinished::Enough) } else { Ok(()) }
            })
        });
        match counted {
            Ok(()) | Err(Unfinished::Enough) => Ok(room),
            Err(Unfinished::Failed(error)) if error.kind() == io::ErrorKind::NotFound => Ok(room),
            Err(Unfinished::Failed(error)) => Err(error),
        }
    }

    fn add(
        &mut self,
        directory: BorrowedFd<'_>,
        name: &[u8],
        kind: FileKind,
        below: &mut Names,
    ) -> io::Result<()> {
        self.entries += 1;
        match kind {
            FileKind::Directory => below.push(name)?,
            FileKind::File => match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(found) => self.bytes += u64::try_from(found.st_size).unwrap_or(0),
                Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            },
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_below_is_counted_at_all_depths_without_following_links_until_it_is_enough() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        std::fs::create_dir_all(path.join("a/b/c")).unwrap();
        std::fs::write(path.join("a/b/c/file"), [1; 1000]).unwrap();
        std::fs::File::create(path.join("hole")).unwrap().set_len(1 << 40).unwrap();
        rustix::fs::symlink("a", path.join("link")).unwrap();
        let root = std::fs::File::open(path).unwrap();
        let room = Room::below(root.as_fd(), &|_| false).unwrap();
        assert_eq!(room, Room { bytes: (1 << 40) + 1000, entries: 6 });
        let room = Room::below(root.as_fd(), &|room| room.entries == 2).unwrap();
        assert_eq!(room.entries, 2);
        assert_eq!(Room::below(root.as_fd(), &|room| room.bytes > 1000).unwrap().bytes >> 40, 1);
    }
}
