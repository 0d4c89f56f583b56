//! Moving entries from one directory to another of the same mount, as a whole where the file system can.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::claim::COPY;
use super::face::Face;
use crate::limit::Limit;
use crate::rootfs::remove::enter;
use crate::rootfs::visit::Names;
use crate::rootfs::{FileKind, TreeCopy, metadata_at, xattrs_at};
use crate::sandbox::Cancel;

/// Moves the entry `name` of `from` into `to`, where there is none of that name. Links are moved, not followed.
///
/// A directory of an overlay's lower layers cannot be renamed (`EXDEV`): a new one is made with the same metadata, and
/// what is in the old one is moved there, which copies files of lower layers. If that ends halfway, doing it again goes on
/// where it ended, and moving back brings all back: directories of the same name are joined.
///
/// # Errors
/// Those of renameat2(2); `EEXIST` when something else than a directory has the name in `to`.
pub(super) fn move_entry(from: BorrowedFd<'_>, name: &[u8], to: BorrowedFd<'_>) -> io::Result<()> {
    move_with(from, name, to, None)
}

/// An error where `cancel` has come.
pub(super) fn go_on(cancel: &Cancel) -> io::Result<()> {
    if cancel.is_cancelled() { Err(io::ErrorKind::Interrupted.into()) } else { Ok(()) }
}

/// [`move_entry`] for what may be of lower layers. The kernel would copy their files as well, but waits for the disk after
/// each (fsync(2)), which takes several times as long: so they are copied by us, into the directory `scratch` of the same
/// mount. Ends halfway soon after `cancel`.
///
/// # Errors
/// As [`move_entry`], and those of [`go_on`].
pub(super) fn move_lower(
    from: BorrowedFd<'_>,
    name: &[u8],
    to: BorrowedFd<'_>,
    scratch: BorrowedFd<'_>,
    cancel: &Cancel,
) -> io::Result<()> {
    move_with(from, name, to, Some((scratch, cancel)))
}

fn move_with(
    from: BorrowedFd<'_>,
    name: &[u8],
    to: BorrowedFd<'_>,
    copying: Option<(BorrowedFd<'_>, &Cancel)>,
) -> io::Result<()> {
    let mut levels = match move_whole(from, name, to)? {
        Moved::Whole => return Ok(()),
        Moved::Not(reason) => vec![Level::begin(from, name, to, reason)?],
    };
    while let Some(level) = levels.last_mut() {
        let (from_here, to_here) = (level.from.as_fd(), level.to.as_fd());
        match level.waiting.pop() {
            Some(child) => {
                if let (Reason::Lower, Some((scratch, cancel))) = (level.reason, copying) {
                    // Where that is not to be had, the kernel does it.
                    let _ = replace_by_copy(from_here, &child, scratch, cancel);
                }
                copying.map_or(Ok(()), |(_, cancel)| go_on(cancel))?;
                if let Moved::Not(reason) = move_whole(from_here, &child, to_here)? {
                    let below = Level::begin(from_here, &child, to_here, reason)?;
                    levels.push(below);
                }
            }
            None => {
                level.end()?;
                let Some(level) = levels.pop() else { break };
                let parent = levels.last().map_or(from, |above| above.from.as_fd());
                act(|| rustix::fs::unlinkat(parent, level.name.as_slice(), AtFlags::REMOVEDIR))?;
            }
        }
    }
    Ok(())
}

/// Puts a copy of the file `name` in its place: that is in the upper layer, and can be renamed. Leaves what a copy would not
/// be equal to: a file with several names, or with attributes, which not everybody may set.
fn replace_by_copy(
    directory: BorrowedFd<'_>,
    name: &[u8],
    scratch: BorrowedFd<'_>,
    cancel: &Cancel,
) -> io::Result<()> {
    let metadata = metadata_at(directory, name)?;
    if metadata.kind != FileKind::File || metadata.links > 1 || !xattrs_at(directory, name)?.is_empty() {
        return Ok(());
    }
    let original = rustix::fs::openat(
        directory,
        name,
        OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let cancelled = &|| cancel.is_cancelled();
    let copy = TreeCopy { names: Limit::new("layer-names", 0), cancelled, jobs: 1 };
    let copied = act(|| copy.copy_entry(original.as_fd(), scratch, COPY.as_bytes()))
        .and_then(|()| act(|| rustix::fs::renameat(scratch, COPY, directory, name)));
    if copied.is_err() {
        let _ = act(|| rustix::fs::unlinkat(scratch, COPY, AtFlags::empty()));
    }
    copied
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moved {
    Whole,
    /// It is a directory whose entries have to be moved.
    Not(Reason),
}

/// Why entries have to be moved one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    /// The directory is in a lower layer.
    Lower,
    /// There is one already where it is to be.
    Joined,
}

fn move_whole(from: BorrowedFd<'_>, name: &[u8], to: BorrowedFd<'_>) -> io::Result<Moved> {
    let renamed = act(|| match rustix::fs::renameat_with(from, name, to, name, RenameFlags::NOREPLACE) {
        // The file system knows no flags.
        Err(Errno::INVAL) if metadata_at(to, name).is_err() => rustix::fs::renameat(from, name, to, name),
        result => result,
    });
    let is_directory =
        |directory| metadata_at(directory, name).is_ok_and(|entry| entry.kind == FileKind::Directory);
    match renamed {
        Ok(()) => Ok(Moved::Whole),
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::XDEV) if is_directory(from) => Ok(Moved::Not(Reason::Lower)),
            Some(Errno::EXIST) if is_directory(from) && is_directory(to) => Ok(Moved::Not(Reason::Joined)),
            _ => Err(error),
        },
    }
}

/// A directory whose entries are moved one by one.
struct Level {
    name: Vec<u8>,
    from: OwnedFd,
    to: OwnedFd,
    waiting: Names,
    reason: Reason,
    /// What the new directory is to be; none if it was there.
    face: Option<Face>,
}

impl Level {
    fn begin(from: BorrowedFd<'_>, name: &[u8], to: BorrowedFd<'_>, reason: Reason) -> io::Result<Self> {
        let old = enter(from, name)?;
        let face = match act(|| rustix::fs::mkdirat(to, name, Mode::RWXU)) {
            Ok(()) => Some(Face::of(&old)?),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => None,
            Err(error) => return Err(error),
        };
        let new = enter(to, name)?;
        if let Some(face) = &face {
            // Now, in case that somebody has to move it back; the time again when it is full.
            act(|| face.give_what_can_be_had(new.as_fd()))?;
        }
        let waiting = Names::in_directory(old.as_fd())?;
        Ok(Self { name: name.to_vec(), from: old, to: new, waiting, reason, face })
    }

    fn end(&self) -> io::Result<()> {
        self.face.as_ref().map_or(Ok(()), |face| act(|| face.give_what_can_be_had(self.to.as_fd())))
    }
}

/// Does something that changes the disk: every such act goes through here, so that tests can stop after any of them.
pub(super) fn act<T, E: Into<io::Error>>(what: impl FnOnce() -> Result<T, E>) -> io::Result<T> {
    #[cfg(test)]
    super::fault::strike()?;
    what().map_err(Into::into)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::sandbox::in_place::overlay_test::Overlay;

    fn open(path: &Path) -> OwnedFd {
        fs::File::open(path).unwrap().into()
    }

    #[test]
    fn nothing_is_replaced_and_directories_are_joined() {
        let top = tempfile::tempdir().unwrap();
        let path = |name: &str| top.path().join(name);
        for name in ["a/x/y", "b/x/z", "a/w"] {
            fs::create_dir_all(path(name)).unwrap();
        }
        for (name, content) in [("a/x/f", "1"), ("b/x/g", "2"), ("a/t", "3"), ("b/t", "4")] {
            fs::write(path(name), content).unwrap();
        }
        rustix::fs::symlink("/etc", path("a/link")).unwrap();
        rustix::fs::symlink("/usr", path("b/link")).unwrap();
        let (from, to) = (open(&path("a")), open(&path("b")));
        let go = |name: &[u8]| move_entry(from.as_fd(), name, to.as_fd());
        go(b"x").unwrap();
        go(b"w").unwrap();
        for name in ["b/x/y", "b/x/z", "b/x/f", "b/x/g", "b/w"] {
            assert!(path(name).exists(), "{name}");
        }
        assert!(!path("a/x").exists());
        for name in [&b"t"[..], b"link"] {
            assert_eq!(go(name).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        }
        assert_eq!(fs::read(path("b/t")).unwrap(), b"4");
        assert_eq!(fs::read_link(path("b/link")).unwrap(), Path::new("/usr"));
    }

    #[test]
    fn directories_of_lower_layers_are_moved_entry_by_entry_once() {
        let Some(overlay) = Overlay::mount(|lower| {
            fs::create_dir_all(lower.join("usr/lib/deep")).unwrap();
            fs::write(lower.join("usr/lib/deep/file"), "content").unwrap();
            fs::write(lower.join("usr/lib/several"), "names").unwrap();
            let names = [lower.join("usr/lib/several"), lower.join("usr/lib/name")];
            rustix::fs::link(&names[0], &names[1]).unwrap();
            crate::rootfs::set_mode_at(open(&lower.join("usr/lib/deep")).as_fd(), b"file", 0o4711).unwrap();
            rustix::fs::symlink("lib", lower.join("usr/lib64")).unwrap();
            fs::create_dir(lower.join("aside")).unwrap();
            let old = crate::rootfs::Timestamp { seconds: 1_000_000_000, nanoseconds: 5 };
            for name in ["usr/lib/deep", "usr/lib", "usr"] {
                let directory = open(&lower.join(name));
                crate::rootfs::set_mode_at(directory.as_fd(), b".", 0o751).unwrap();
                crate::rootfs::set_times_at(directory.as_fd(), b".", old).unwrap();
            }
        }) else {
            return;
        };
        let (root, aside) = (open(&overlay.root()), open(&overlay.root().join("aside")));
        let scratch = tempfile::tempdir_in(overlay.root()).unwrap();
        let faces = || {
            ["usr", "usr/lib", "usr/lib/deep"].map(|name| Face::of(open(&overlay.root().join(name))).unwrap())
        };
        let before = faces();
        let file = || metadata_at(open(&overlay.root().join("usr/lib/deep")).as_fd(), b"file").unwrap();
        let old = file();
        let cancel = Cancel::new().unwrap();
        move_lower(root.as_fd(), b"usr", aside.as_fd(), open(scratch.path()).as_fd(), &cancel).unwrap();
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
        assert!(!overlay.root().join("usr").exists());
        assert_eq!(fs::read(overlay.root().join("aside/usr/lib64/deep/file")).unwrap(), b"content");
        // From now on it is a directory like any other.
        assert_eq!(move_whole(aside.as_fd(), b"usr", root.as_fd()).unwrap(), Moved::Whole);
        assert_eq!(faces(), before);
        let new = file();
        let facts =
            |file: &crate::rootfs::Metadata| (file.kind, file.mode, file.owner, file.size, file.mtime);
        assert_eq!(facts(&new), facts(&old));
        assert_eq!(fs::read(overlay.root().join("usr/lib/name")).unwrap(), b"names");
        assert_eq!(move_whole(root.as_fd(), b"usr", aside.as_fd()).unwrap(), Moved::Whole);
    }
}
