//! Empty files and directories in the root, over which others are mounted, and which leave no trace afterwards.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;

use super::furnish::FurnishError;
use super::mount::PointKind;
use super::provided::{self, KERNEL, PROVIDED, in_root};
use super::{Mount, SandboxError};
use crate::rootfs::walk::Step;
use crate::rootfs::{
    FileKind, Follow, GuestPath, Metadata, Owner, Rootfs, RootfsError, keeping_mtime, metadata_at,
};

/// What was made in a root for the time of a step.
#[derive(Debug, Default)]
pub(super) struct Stubs(Vec<Stub>);

/// One file or directory that was made.
#[derive(Debug)]
struct Stub {
    path: GuestPath,
    parent: OwnedFd,
    name: Vec<u8>,
    /// The entry when it had just been made.
    made: Metadata,
}

impl Stubs {
    /// Makes what is missing in `root` for the provided files and for `mounts`: what they cover, or what links there point
    /// to, with all directories above.
    pub(super) fn make(root: &Rootfs, mounts: &[Mount]) -> Result<Self, SandboxError> {
        let mut stubs = Self::default();
        // The first failure is the one to report; dropping the stubs removes them.
        for path in PROVIDED {
            let failed = |source| FurnishError::Prepare { path: in_root(path), source };
            let place = root.resolve(&in_root(path)).map_err(failed)?;
            stubs.make_missing(root, &place, PointKind::File).map_err(failed)?;
            provided::check_file(root, path, &place)?;
        }
        // What is mounted in another mount is made there, by whoever mounts it.
        let mut covered: Vec<GuestPath> = KERNEL.iter().copied().map(in_root).collect();
        for mount in mounts {
            let failed = |source| FurnishError::Prepare { path: mount.target.clone(), source };
            let point = mount.point()?;
            let visit = |step: &Step<'_>| match covered.contains(step.path) {
                true => Err(Way::Covered),
                false => Ok(()),
            };
            match root.walk(&mount.target, visit) {
                Ok(place) => {
                    stubs.make_missing(root, &place, point).map_err(failed)?;
                    covered.push(place);
                }
                Err(Way::Covered) => {}
                Err(Way::Lost(error)) => return Err(failed(error).into()),
            }
        }
        Ok(stubs)
    }

    /// Whether nothing was made.
    pub(super) fn are_none(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `path` was made, a path without links.
    pub(super) fn include(&self, path: &GuestPath) -> bool {
        self.0.iter().any(|stub| stub.path == *path)
    }

    /// What was made: path, directory and name there.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&GuestPath, &OwnedFd, &[u8])> {
        self.0.iter().map(|stub| (&stub.path, &stub.parent, stub.name.as_slice()))
    }

    /// Makes `place`, a path without links, and the directories above it, as far as they are not there.
    pub(super) fn make_missing(
        &mut self,
        root: &Rootfs,
        place: &GuestPath,
        point: PointKind,
    ) -> Result<(), RootfsError> {
        if root.metadata(place, Follow::No)?.is_some() {
            return Ok(());
        }
        let mut missing = vec![place.clone()];
        while let Some(parent) = missing.last().and_then(GuestPath::parent) {
            if root.metadata(&parent, Follow::No)?.is_some() {
                break;
            }
            missing.push(parent);
        }
        for stub in missing.iter().rev() {
            let point = if stub == place { point } else { PointKind::Directory { mode: 0o755 } };
            self.0.push(Stub::make(root, stub, point)?);
        }
        Ok(())
    }

    /// Takes away what is still as it was made, latest first.
    pub(super) fn remove(&mut self) -> Result<(), RootfsError> {
        let mut result = Ok(());
        while let Some(stub) = self.0.pop() {
            result = result.and(stub.remove().map_err(|source| RootfsError::Io {
                action: "remove",
                path: stub.path.clone(),
                source,
            }));
        }
        result
    }
}

/// For the ways out that report another error.
impl Drop for Stubs {
    fn drop(&mut self) {
        let _ = self.remove();
    }
}

/// Why a path was not followed to its end.
enum Way {
    /// It leads into a mount.
    Covered,
    Lost(RootfsError),
}

impl From<RootfsError> for Way {
    fn from(error: RootfsError) -> Self {
        Self::Lost(error)
    }
}

/// Makes something at `path`, a path without links whose directory is there, that can be mounted over.
pub(super) fn make_point(root: &Rootfs, path: &GuestPath, point: PointKind) -> Result<(), RootfsError> {
    match point {
        PointKind::Directory { mode } => root.create_dirs(path, mode, Owner::ROOT).map(drop),
        PointKind::File => {
            root.open_file(path, OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY, 0o644).map(drop)
        }
    }
}

impl Stub {
    fn make(root: &Rootfs, path: &GuestPath, point: PointKind) -> Result<Self, RootfsError> {
        let io = |source: io::Error| RootfsError::Io { action: "make", path: path.clone(), source };
        let (parent, name) = root.parent(path)?;
        // The time comes back at once: what the step does in the same moment, by the clock of the file system, has another
        // time then.
        keeping_mtime(&parent, || Ok(make_point(root, path, point))).map_err(io)??;
        let made = metadata_at(parent.as_fd(), &name).map_err(io)?;
        Ok(Self { path: path.clone(), parent, name, made })
    }

    /// Removes the entry by directory and inode, wherever the step has moved the directory; by path, a link that the step
    /// put there could lead to anybody's empty file (CVE-2024-23652).
    fn remove(&self) -> io::Result<()> {
        let now = match metadata_at(self.parent.as_fd(), &self.name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            result => result?,
        };
        if !now.same_file(&self.made) || now.kind != self.made.kind {
            return Ok(());
        }
        if now.kind == FileKind::File && now.size != 0 {
            return Ok(());
        }
        let how = if now.kind == FileKind::Directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        // The step's own change of the directory counts, ours does not.
        keeping_mtime(&self.parent, || match rustix::fs::unlinkat(&self.parent, self.name.as_slice(), how) {
            // The step has put something there: then the directory is part of the result.
            Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
            result => Ok(result?),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::{Path, PathBuf};

    use super::super::{Content, Secret, SecretFile};
    use super::*;
    use crate::rootfs::Timestamp;

    /// Every path with its modification time.
    fn tree(top: &Path) -> Vec<(PathBuf, Timestamp)> {
        let mut found = Vec::new();
        let mut pending = vec![top.to_owned()];
        while let Some(path) = pending.pop() {
            let directory = fs::File::open(path.parent().unwrap()).unwrap();
            let name = path.file_name().unwrap().as_encoded_bytes();
            let metadata = metadata_at(directory.as_fd(), name).unwrap();
            if metadata.kind == FileKind::Directory {
                pending.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            }
            found.push((path, metadata.mtime));
        }
        found.sort();
        found
    }

    fn age(path: &Path) {
        let old = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123_456_789);
        fs::File::open(path).unwrap().set_modified(old).unwrap();
    }

    #[expect(clippy::disallowed_methods, reason = "trees of the test's own making")]
    fn link(target: &str, name: &Path) {
        symlink(target, name).unwrap();
    }

    #[test]
    fn leave_no_trace_whatever_the_image_has() {
        type Prepare = fn(&Path);
        let cases: [(&str, Prepare, &[&str]); 6] = [
            ("nothing", |_| {}, &["etc/resolv.conf", "etc/hosts"]),
            ("only the directory", |top| fs::create_dir(top.join("etc")).unwrap(), &["etc/resolv.conf"]),
            (
                "both files",
                |top| {
                    fs::create_dir(top.join("etc")).unwrap();
                    fs::write(top.join("etc/hosts"), "mine").unwrap();
                    fs::write(top.join("etc/resolv.conf"), "mine").unwrap();
                },
                &["etc/resolv.conf"],
            ),
            (
                "a dangling link, as of systemd",
                |top| {
                    fs::create_dir(top.join("etc")).unwrap();
                    link("../run/systemd/resolve/stub-resolv.conf", &top.join("etc/resolv.conf"));
                },
                &["run/systemd/resolve/stub-resolv.conf"],
            ),
            (
                "a link out of the root",
                |top| {
                    fs::create_dir(top.join("etc")).unwrap();
                    link("../../../../tmp/builder-stub-canary", &top.join("etc/resolv.conf"));
                },
                &["tmp/builder-stub-canary"],
            ),
            ("a link as directory", |top| link("/usr/etc", &top.join("etc")), &["usr/etc/hosts"]),
        ];
        for (name, prepare, expected) in cases {
            let directory = tempfile::tempdir().unwrap();
            let top = directory.path().join("root");
            fs::create_dir(&top).unwrap();
            prepare(&top);
            for (path, _) in tree(&top).iter().filter(|(path, _)| path.is_dir() && !path.is_symlink()) {
                age(path);
            }
            let before = tree(&top);
            let mut stubs = Stubs::make(&Rootfs::open(&top).unwrap(), &[]).unwrap();
            for path in expected {
                assert!(top.join(path).exists(), "{name}: {path}");
            }
            assert!(!Path::new("/tmp/builder-stub-canary").exists());
            stubs.remove().unwrap();
            assert_eq!(tree(&top), before, "{name}");
        }
    }

    fn mount(target: &str, content: Content) -> Mount {
        Mount { target: GuestPath::clamp(target.as_bytes()).unwrap(), content }
    }

    fn secret() -> Content {
        let value = Secret::new(b"");
        Content::Secret(SecretFile { value, mode: 0o400, owner: Owner::ROOT })
    }

    const TMPFS: Content = Content::Tmpfs { size: None };

    #[test]
    fn mounts_get_places_unless_they_lie_in_other_mounts() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path();
        for name in ["etc", "real", "old"] {
            fs::create_dir(top.join(name)).unwrap();
        }
        link("/real", &top.join("link"));
        for name in ["etc", "real", "old"] {
            age(&top.join(name));
        }
        let before = tree(top);
        let mounts = [
            mount("/old/new/file", secret()),
            mount("/link/directory", TMPFS),
            mount("/link/directory/inner/file", secret()),
            mount("/real/directory/other", TMPFS),
            mount("/proc/x", TMPFS),
            mount("/sys/fs/x", TMPFS),
            mount("/dev/x/y", secret()),
        ];
        let mut stubs = Stubs::make(&Rootfs::open(top).unwrap(), &mounts).unwrap();
        assert!(top.join("old/new/file").is_file());
        let mode = fs::metadata(top.join("real/directory")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o1777, "the mount takes it over");
        assert_eq!(fs::read_dir(top.join("real/directory")).unwrap().count(), 0);
        for name in ["proc", "sys", "dev"] {
            assert!(!top.join(name).exists(), "{name} is the kernel's");
        }
        stubs.remove().unwrap();
        assert_eq!(tree(top), before);
    }

    #[test]
    fn what_was_made_before_a_failure_goes_again() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path();
        fs::create_dir(top.join("etc")).unwrap();
        fs::write(top.join("file"), "").unwrap();
        age(&top.join("etc"));
        let before = tree(top);
        let mounts = [mount("/new/place", TMPFS), mount("/file/x", TMPFS)];
        let error = Stubs::make(&Rootfs::open(top).unwrap(), &mounts).unwrap_err();
        assert_eq!(error.to_string(), "cannot prepare `/file/x` in the image");
        assert_eq!(tree(top), before);
    }

    #[test]
    fn what_the_step_did_stays() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path();
        fs::create_dir(top.join("etc")).unwrap();
        age(&top.join("etc"));
        let mut stubs = Stubs::make(&Rootfs::open(top).unwrap(), &[]).unwrap();
        fs::write(top.join("etc/new"), "").unwrap();
        fs::remove_file(top.join("etc/resolv.conf")).unwrap();
        fs::write(top.join("etc/resolv.conf"), "written by the step").unwrap();
        fs::write(top.join("etc/hosts"), "also written").unwrap();
        let changed = fs::metadata(top.join("etc")).unwrap().modified().unwrap();
        stubs.remove().unwrap();
        assert!(top.join("etc/resolv.conf").exists());
        assert!(top.join("etc/hosts").exists());
        assert_eq!(fs::metadata(top.join("etc")).unwrap().modified().unwrap(), changed);
    }

    #[test]
    fn a_link_put_in_the_way_leads_nowhere() {
        let directory = tempfile::tempdir().unwrap();
        let (top, host) = (directory.path().join("root"), directory.path().join("host"));
        fs::create_dir(&top).unwrap();
        fs::create_dir(&host).unwrap();
        fs::write(host.join("hosts"), "").unwrap();
        let mut stubs = Stubs::make(&Rootfs::open(&top).unwrap(), &[]).unwrap();
        fs::rename(top.join("etc"), top.join("moved")).unwrap();
        link(host.to_str().unwrap(), &top.join("etc"));
        stubs.remove().unwrap();
        assert!(host.join("hosts").exists());
        assert!(!top.join("moved/hosts").exists(), "removed where the step moved it");
    }
}
