//! What stays where it is in the container's root while a step runs: mounts, and what the builder needs.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::error::InPlaceError;
use crate::rootfs::{Follow, GuestPath, Metadata, Rootfs, RootfsError};
use crate::sandbox::mount_table::MountTable;
use crate::sandbox::provided::{KERNEL, OF_RUNTIMES, in_root, is_of_kernel};

/// Paths in the container's root that stay, none of which lies below another.
#[derive(Debug, Default)]
pub(super) struct Fixed(BTreeSet<GuestPath>);

impl Fixed {
    /// What is mounted now, and what of `protected` and of the kernel's directories is there; links are followed.
    pub(super) fn find(root: &Rootfs, protected: &[GuestPath]) -> Result<Self, InPlaceError> {
        let mut points = mount_points(root).map_err(InPlaceError::Mounts)?;
        points.extend(KERNEL.map(in_root));
        for path in protected {
            points.push(root.resolve(path).map_err(|error| looking(path, error))?);
        }
        let mut found = Self::default();
        points.sort_unstable();
        for point in points {
            // A mount that another one hides is listed as well, and may not be there to be found.
            let exists = root.exact_metadata(&point).map_err(|error| looking(&point, error))?.is_some();
            if exists && !point.is_root() && found.holder_of(&point).is_none() {
                found.0.insert(point);
            }
        }
        Ok(found)
    }

    /// The path that stays and that `path` is or lies below.
    pub(super) fn holder_of(&self, path: &GuestPath) -> Option<&GuestPath> {
        // Directories come directly before what is below them, so it can only be the nearest one before.
        self.0.range(..=path.clone()).next_back().filter(|point| path.starts_with(point))
    }

    /// Directories that hold something that stays, each after the one that holds it; the root is the first.
    pub(super) fn directories(&self) -> BTreeSet<GuestPath> {
        let mut directories = BTreeSet::from([GuestPath::root()]);
        for point in &self.0 {
            let mut above = point.parent();
            while let Some(directory) = above.take_if(|directory| !directories.contains(directory)) {
                above = directory.parent();
                directories.insert(directory);
            }
        }
        directories
    }

    /// All of them, sorted.
    pub(super) fn iter(&self) -> impl Iterator<Item = &GuestPath> {
        self.0.iter()
    }

    /// Those that are nobody's business but the container's.
    pub(super) fn telling(&self) -> Vec<GuestPath> {
        let is_known = |path: &&GuestPath| is_of_kernel(path) || OF_RUNTIMES.map(in_root).contains(path);
        self.0.iter().filter(|path| !is_known(path)).cloned().collect()
    }
}

/// What the builder needs and has below something that stays: nothing is exchanged there, but a step can remove it.
pub(super) struct Needed(Vec<(GuestPath, Metadata)>);

impl Needed {
    /// What of `protected` is there.
    pub(super) fn find(root: &Rootfs, fixed: &Fixed, protected: &[GuestPath]) -> Self {
        let places = protected.iter().filter_map(|path| root.resolve(path).ok());
        let below = places.filter(|place| fixed.holder_of(place).is_some_and(|holder| holder != place));
        Self(below.filter_map(|place| Some((place.clone(), there(root, &place)?))).collect())
    }

    /// What is there no more, or something else.
    pub(super) fn gone(&self, root: &Rootfs) -> Vec<GuestPath> {
        let is_gone =
            |(path, was): &&(GuestPath, Metadata)| there(root, path).is_none_or(|is| !is.same_file(was));
        self.0.iter().filter(is_gone).map(|(path, _)| path.clone()).collect()
    }
}

fn there(root: &Rootfs, place: &GuestPath) -> Option<Metadata> {
    root.metadata(place, Follow::No).ok().flatten()
}

fn looking(path: &GuestPath, error: RootfsError) -> InPlaceError {
    let source = match error {
        RootfsError::Io { source, .. } => source,
        other => io::Error::other(other),
    };
    InPlaceError::Io { action: "find", path: path.clone(), source }
}

/// Where something is mounted below `root`.
fn mount_points(root: &Rootfs) -> io::Result<Vec<GuestPath>> {
    let place: PathBuf = fs::read_link(format!("/proc/self/fd/{}", root.as_fd().as_raw_fd()))?;
    Ok(points_below(&MountTable::current()?, place.as_os_str().as_bytes()))
}

/// The mount points below the directory `place`, as paths inside of it.
fn points_below(mounts: &MountTable, place: &[u8]) -> Vec<GuestPath> {
    let place = place.strip_suffix(b"/").unwrap_or(place);
    let below = |point: &[u8]| {
        let rest = point.strip_prefix(place).filter(|rest| rest.starts_with(b"/"))?;
        GuestPath::parse(rest).ok().filter(|path| !path.is_root())
    };
    mounts.points().filter_map(below).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> GuestPath {
        GuestPath::parse(text.as_bytes()).unwrap()
    }

    fn texts<'a>(paths: impl IntoIterator<Item = &'a GuestPath>) -> String {
        paths.into_iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn mount_points_are_read_as_the_kernel_writes_them() {
        let mounts = b"1 0 8:1 / / rw - overlay overlay rw\n\
            2 1 0:5 / /proc rw shared:3 - proc proc rw\n\
            3 1 8:1 /x /a\\040b\\134c\\011\\012 rw - ext4 /dev/vda rw\n\
            4 1 8:1 /y /data/x rw - ext4 /dev/vda rw\n\
            5 1 8:1 /y /database rw - ext4 /dev/vda rw\n\
            \n\
            broken\n";
        let mounts = &MountTable::parse(mounts);
        let points = points_below(mounts, b"/");
        let found: Vec<&[u8]> = points.iter().map(GuestPath::as_bytes).collect();
        assert_eq!(found, [&b"/proc"[..], b"/a b\\c\t\n", b"/data/x", b"/database"]);
        assert_eq!(texts(&points_below(mounts, b"/data")), "/x");
    }

    #[test]
    fn what_stays_is_the_topmost_of_what_is_there() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["a/b/c", "proc", "real/x", "d-e", "d"] {
            fs::create_dir_all(directory.path().join(name)).unwrap();
        }
        rustix::fs::symlink("/real", directory.path().join("link")).unwrap();
        let root = Rootfs::open(directory.path()).unwrap();
        let protected = ["/a/b/c", "/a/b", "/missing/x", "/link/x", "/d", "/d-e", "/"].map(path_or_root);
        let fixed = Fixed::find(&root, &protected).unwrap();
        assert_eq!(texts(fixed.iter()), "/a/b /d /d-e /proc /real/x");
        assert_eq!(texts(&fixed.directories()), "/ /a /real");
        for (inside, holder) in [
            ("/a/b/c/d", Some("/a/b")),
            ("/a/b", Some("/a/b")),
            ("/a", None),
            ("/a/bc", None),
            ("/d/x", Some("/d")),
        ] {
            assert_eq!(fixed.holder_of(&path(inside)), holder.map(path).as_ref(), "{inside}");
        }
        assert_eq!(texts(&fixed.telling()), "/a/b /d /d-e /real/x");
    }

    #[test]
    fn what_the_builder_needs_below_a_mount_is_missed_when_a_step_removes_it() {
        let top = tempfile::tempdir().unwrap();
        for name in ["data/store", "data/context", "own"] {
            fs::create_dir_all(top.path().join(name)).unwrap();
        }
        let root = Rootfs::open(top.path()).unwrap();
        let fixed = Fixed(BTreeSet::from(["/data", "/own"].map(path)));
        let protected = ["/data/store", "/data/context", "/data/missing", "/own"].map(path);
        let needed = Needed::find(&root, &fixed, &protected);
        assert_eq!(texts(&needed.gone(&root)), "");
        fs::rename(top.path().join("data/store"), top.path().join("data/other")).unwrap();
        fs::create_dir(top.path().join("data/store")).unwrap();
        fs::remove_dir(top.path().join("data/context")).unwrap();
        assert_eq!(texts(&needed.gone(&root)), "/data/store /data/context");
    }

    fn path_or_root(text: &str) -> GuestPath {
        GuestPath::clamp(text.as_bytes()).unwrap()
    }
}
