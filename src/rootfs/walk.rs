//! Following a path component by component.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::metadata::{FileKind, Metadata, metadata_at};
use super::{GuestPath, Rootfs, RootfsError, at};

/// How many links a path may lead through, as in Linux.
pub(crate) const MAX_LINKS: usize = 40;

/// One component of a path, and what is there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step<'a> {
    /// Its real path: no component of it is a link.
    pub(crate) path: &'a GuestPath,
    /// The directory that holds it (`O_PATH`); none where a component above is missing, or no directory.
    pub(crate) directory: Option<BorrowedFd<'a>>,
    /// Its name there.
    pub(crate) name: &'a [u8],
    /// What is there.
    pub(crate) metadata: Option<&'a Metadata>,
}

impl Step<'_> {
    /// The directory in which something can be made under the name.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) fn directory(&self) -> Result<BorrowedFd<'_>, RootfsError> {
        self.directory.ok_or_else(|| RootfsError::Io {
            action: "find the directory of",
            path: self.path.clone(),
            source: Errno::NOENT.into(),
        })
    }
}

/// Where a walk has come to.
struct Place {
    path: GuestPath,
    directory: Directory,
}

enum Directory {
    Open(OwnedFd),
    /// It was left by `..` or an absolute link, and is opened by its path when it is needed.
    Unopened,
    Missing,
}

impl Rootfs {
    /// Follows `path` component by component; calls `visit` with each step but those that are links. What `visit` makes
    /// counts. Every component is looked for in the directory before it: the whole takes time in proportion to the path's
    /// length, which is thousands of components at worst.
    pub(crate) fn walk<E: From<RootfsError>>(
        &self,
        path: &GuestPath,
        mut visit: impl FnMut(&Step<'_>) -> Result<(), E>,
    ) -> Result<GuestPath, E> {
        let mut pending: VecDeque<Vec<u8>> = path.components().map(<[u8]>::to_vec).collect();
        let mut current = Place { path: GuestPath::root(), directory: Directory::Unopened };
        let mut links = 0;
        while let Some(component) = pending.pop_front() {
            if component == b".." {
                let above = current.path.parent().unwrap_or_else(GuestPath::root);
                current = Place { path: above, directory: Directory::Unopened };
                continue;
            }
            let next = current.path.child(&component);
            let directory = self.open_place(&mut current)?;
            let metadata = at(self.look(directory, &component, &next), "find", &next)?;
            if metadata.as_ref().is_some_and(|metadata| metadata.kind == FileKind::Symlink) {
                links += 1;
                if links > MAX_LINKS {
                    return Ok(at(Err(Errno::LOOP), "find", path)?);
                }
                let target = self.read_link_at(directory, &component, &next)?;
                if target.starts_with(b"/") {
                    current = Place { path: GuestPath::root(), directory: Directory::Unopened };
                }
                push_front(&mut pending, &target);
                continue;
            }
            visit(&Step { path: &next, directory, name: &component, metadata: metadata.as_ref() })?;
            let below = directory.map(|directory| open_below(directory, &component));
            current =
                Place { directory: at(below.unwrap_or(Ok(Directory::Missing)), "find", &next)?, path: next };
        }
        Ok(current.path)
    }

    fn open_place<'a>(&self, place: &'a mut Place) -> Result<Option<BorrowedFd<'a>>, RootfsError> {
        if matches!(place.directory, Directory::Unopened) {
            place.directory = match self.directory(&place.path) {
                Ok(directory) => Directory::Open(directory),
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
                {
                    Directory::Missing
                }
                Err(error) => return Err(error),
            };
        }
        Ok(match &place.directory {
            Directory::Open(directory) => Some(directory.as_fd()),
            Directory::Unopened | Directory::Missing => None,
        })
    }

    fn look(
        &self,
        directory: Option<BorrowedFd<'_>>,
        name: &[u8],
        path: &GuestPath,
    ) -> io::Result<Option<Metadata>> {
        let Some(directory) = directory else { return Ok(None) };
        match metadata_at(directory, name) {
            Ok(shown) => Ok(Some(self.reveal(path, shown))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn read_link_at(
        &self,
        directory: Option<BorrowedFd<'_>>,
        name: &[u8],
        path: &GuestPath,
    ) -> Result<Vec<u8>, RootfsError> {
        match directory {
            Some(directory) => {
                let target = rustix::fs::readlinkat(directory, name, Vec::new());
                Ok(at(target, "read link", path)?.into_bytes())
            }
            None => self.read_link(path),
        }
    }
}

/// Opens the directory `name` of `directory`, if it is one. A single name that is no link leads nowhere else.
fn open_below(directory: BorrowedFd<'_>, name: &[u8]) -> io::Result<Directory> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(directory, name, flags, Mode::empty()) {
        Ok(below) => Ok(Directory::Open(below)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(Directory::Missing),
        Err(error) => Err(error.into()),
    }
}

fn push_front(pending: &mut VecDeque<Vec<u8>>, target: &[u8]) {
    for component in target.rsplit(|byte| *byte == b'/') {
        if !matches!(component, b"" | b".") {
            pending.push_front(component.to_vec());
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests prepare trees on the host")]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn path(text: &str) -> GuestPath {
        GuestPath::clamp(text.as_bytes()).unwrap()
    }

    #[test]
    fn steps_are_the_real_way_and_what_is_there() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path();
        std::fs::create_dir_all(top.join("a/b")).unwrap();
        std::fs::write(top.join("file"), "").unwrap();
        symlink("../../a/./b/../b", top.join("a/l")).unwrap();
        symlink("/nowhere/../a", top.join("abs")).unwrap();
        let root = Rootfs::open(top).unwrap();
        for (text, expected, end) in [
            ("/a/l/x/y", "/a d,/a d,/a/b d,/a/b d,/a/b/x -,/a/b/x/y !", "/a/b/x/y"),
            ("/abs/b", "/nowhere -,/a d,/a/b d", "/a/b"),
            ("/file/x/y", "/file f,/file/x !,/file/x/y !", "/file/x/y"),
            ("/", "", "/"),
        ] {
            let mut steps = Vec::new();
            let reached = root.walk(&path(text), |step| {
                let what = match (step.directory, step.metadata.map(|metadata| metadata.kind)) {
                    (None, _) => "!",
                    (_, None) => "-",
                    (_, Some(FileKind::Directory)) => "d",
                    _ => "f",
                };
                steps.push(format!("{} {what}", step.path));
                Ok::<(), RootfsError>(())
            });
            assert_eq!((steps.join(","), reached.unwrap()), (expected.to_owned(), path(end)), "{text}");
        }
    }

    #[test]
    fn what_a_visit_makes_is_walked_through() {
        let directory = tempfile::tempdir().unwrap();
        let root = Rootfs::open(directory.path()).unwrap();
        symlink("made/here", directory.path().join("l")).unwrap();
        let reached = root.walk(&path("/l/below"), |step| {
            if step.metadata.is_none() {
                at(rustix::fs::mkdirat(step.directory()?, step.name, Mode::RWXU), "make", step.path)?;
            }
            Ok::<(), RootfsError>(())
        });
        assert_eq!(reached.unwrap(), path("/made/here/below"));
        assert!(directory.path().join("made/here/below").is_dir());
    }
}
