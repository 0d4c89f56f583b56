//! Several trees that are to be one, as the files of several platforms in one directory: directories are shared, and
//! whatever else has a path is of one tree.
//!
//! A directory that several have is what it is in the first of them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::metadata::{FileKind, metadata_at};
use super::visit::{Names, open_exact};
use super::{GuestPath, Rootfs, RootfsError, at};

/// Why trees cannot be one.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// An entry cannot be read.
    #[error(transparent)]
    Tree(#[from] RootfsError),
    /// Two trees have the path, and not both as a directory.
    #[error("`{path}` is in two trees")]
    Conflict {
        /// Which.
        path: GuestPath,
        /// The places of the trees in the list.
        trees: (usize, usize),
    },
    /// It was stopped.
    #[error("comparing the files was stopped")]
    Cancelled,
}

/// Looks whether the trees can be one. What only one of them has is not gone through.
///
/// Memory grows by the names of the shared directories beside the way down, and of what is in one of them.
///
/// # Errors
/// [`MergeError`]; of several conflicts always the same one is told.
pub fn check(trees: &[&Rootfs], cancelled: &(dyn Fn() -> bool + Sync)) -> Result<(), MergeError> {
    let mut waiting = vec![(GuestPath::root(), (0..trees.len()).collect::<Vec<usize>>())];
    while let Some((path, sharing)) = waiting.pop() {
        let mut listed: Vec<(usize, OwnedFd, Names)> = Vec::with_capacity(sharing.len());
        for number in sharing {
            let opened = open_exact(trees[number].as_fd(), &path, OFlags::RDONLY | OFlags::DIRECTORY);
            let directory = at(opened, "open", &path)?;
            let names = at(Names::in_directory(directory.as_fd()), "list", &path)?;
            listed.push((number, directory, names));
        }
        let mut below = Vec::new();
        for (position, (_, _, names)) in listed.iter().enumerate() {
            let (before, from_here) = listed.split_at(position);
            for name in names.iter().filter(|name| !before.iter().any(|(.., known)| known.contain(name))) {
                if cancelled() {
                    return Err(MergeError::Cancelled);
                }
                let having: Vec<_> = from_here.iter().filter(|(.., known)| known.contain(name)).collect();
                let [(first, ..), (second, ..), ..] = having[..] else { continue };
                let path = path.child(name);
                for (number, directory, _) in &having {
                    let shown = at(metadata_at(directory.as_fd(), name), "read metadata of", &path)?;
                    if trees[*number].reveal(&path, shown).kind != FileKind::Directory {
                        let second = if number == first { second } else { number };
                        return Err(MergeError::Conflict { path, trees: (*first, *second) });
                    }
                }
                below.push((path, having.iter().map(|(number, ..)| *number).collect()));
            }
        }
        waiting.extend(below.into_iter().rev());
    }
    Ok(())
}

/// The directory `path` of a tree; none where it has no such directory.
///
/// # Errors
/// Those of openat2(2).
pub(crate) fn directory_of(tree: &Rootfs, path: &GuestPath) -> io::Result<Option<OwnedFd>> {
    match open_exact(tree.as_fd(), path, OFlags::RDONLY | OFlags::DIRECTORY) {
        Ok(directory) => Ok(Some(directory)),
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            _ => Err(error),
        },
    }
}

/// The first of the trees that has the directory `path`, with it.
///
/// # Errors
/// Those of openat2(2).
pub(crate) fn first_with<'a>(
    trees: &[&'a Rootfs],
    path: &GuestPath,
) -> io::Result<Option<(&'a Rootfs, OwnedFd)>> {
    for tree in trees {
        if let Some(directory) = directory_of(tree, path)? {
            return Ok(Some((tree, directory)));
        }
    }
    Ok(None)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the tests make files of their own")]
mod tests {
    use super::*;

    /// What is told of trees with these entries: a name with a slash at its end is a directory, one with `@` a link.
    fn told(trees: &[&[&str]]) -> Result<(), String> {
        let places: Vec<_> = trees.iter().map(|_| tempfile::tempdir().unwrap()).collect();
        for (place, entries) in places.iter().zip(trees) {
            for entry in *entries {
                let path = place.path().join(entry.trim_end_matches(['/', '@']));
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                match entry.chars().last() {
                    Some('/') => std::fs::create_dir_all(path).unwrap(),
                    Some('@') => std::os::unix::fs::symlink("/", path).unwrap(),
                    _ => std::fs::write(path, "same").unwrap(),
                }
            }
        }
        let roots: Vec<Rootfs> = places.iter().map(|place| Rootfs::open(place.path()).unwrap()).collect();
        check(&roots.iter().collect::<Vec<_>>(), &|| false).map_err(|error| match error {
            MergeError::Conflict { path, trees } => format!("{path} {} {}", trees.0, trees.1),
            other => other.to_string(),
        })
    }

    #[test]
    fn directories_may_be_shared_and_nothing_else() {
        assert_eq!(told(&[&["bin/a/x", "etc/"], &["bin/a/y", "etc/"], &["bin/a/z", "usr/x"]]), Ok(()));
        for (trees, expected) in [
            // Equal files are not one file either.
            ([&["a/x"][..], &["b/x"], &["a/x"]], "/a/x 0 2"),
            ([&["x/y"], &["z"], &["x"]], "/x 0 2"),
            ([&["x"], &["x/y"], &[]], "/x 0 1"),
            ([&["x/"], &["x@"], &[]], "/x 0 1"),
            ([&["x/"], &["x/"], &["x"]], "/x 0 2"),
            ([&[], &["d/b", "d/a", "c"], &["c", "d/a"]], "/c 1 2"),
            ([&[], &["d/b", "d/a/x"], &["d/a/x", "d/b"]], "/d/b 1 2"),
        ] {
            assert_eq!(told(&trees), Err(expected.to_owned()), "{trees:?}");
        }
    }

    #[test]
    fn it_stops_when_it_is_told() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("f"), "").unwrap();
        let root = Rootfs::open(place.path()).unwrap();
        assert!(matches!(check(&[&root, &root], &|| true), Err(MergeError::Cancelled)));
    }
}
