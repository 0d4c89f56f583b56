//! Which devices a step could open, where its root is not mounted without devices.
//!
//! In namespaces a step's root has none: they are mounts with `nodev`. Where nothing can be mounted, only the rules of the
//! device control group keep whoever can make a device from opening it. A runtime gives such rules to its containers, and
//! then mknod(2) is as harmless as under Docker; a privileged container has none, a machine neither.

use std::fs;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, makedev};
use rustix::io::Errno;

use super::SandboxError;
use super::provided::DEVICES;
use crate::rootfs::{FileKind, Follow, GuestPath, Metadata, Rootfs, RootfsError};

/// The block devices that the machine has.
const PARTITIONS: &str = "/proc/partitions";

/// How many of these are tried; each takes microseconds.
const TRIED: usize = 256;

/// A number that no device has, of either kind: no driver can open it, but rules are asked before.
const NOBODY: (u32, u32) = (4095, 0xf_ffff);

/// The name of a device for the time of a trial.
const NAME: &str = "tried";

/// Whether something keeps who can make a device from opening it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rules {
    /// Rules that refuse all but what a container needs, as far as can be found out.
    Hold,
    /// None, or some by which a disk of the machine can be opened.
    Missing,
}

impl Rules {
    /// Finds out by making devices in `directory` and opening them to read, of which a disk takes no notice. Only those
    /// that are named in [`PARTITIONS`] and such as cannot be there: with others, opening may have done all the harm (a
    /// watchdog, a tape).
    pub(super) fn find(directory: &Path) -> Self {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(directory) = rustix::fs::openat(CWD, directory, flags, Mode::empty()) else {
            return Self::Missing;
        };
        let partitions = fs::read_to_string(PARTITIONS).unwrap_or_default();
        let disks = disks(&partitions).take(TRIED).map(|number| (FileType::BlockDevice, number));
        let nobodies = [FileType::BlockDevice, FileType::CharacterDevice].map(|kind| (kind, NOBODY));
        let all_refused = disks.chain(nobodies).all(|(kind, number)| is_refused(&directory, kind, number));
        if all_refused { Self::Hold } else { Self::Missing }
    }

    /// Whether a step may have `root` under them: not if there is a device in it, by which it could do what it cannot do
    /// with one of its own. Those of a small /dev are none; with what is in `hidden`, a directory below the root, a step
    /// has nothing to do.
    pub(super) fn check(self, root: &Rootfs, hidden: Option<&[u8]>) -> Result<(), SandboxError> {
        if self == Self::Hold {
            return Ok(());
        }
        match dangerous(root, hidden).map_err(SandboxError::Search)? {
            None => Ok(()),
            Some(path) => Err(SandboxError::Device { path }),
        }
    }
}

/// The numbers in a file like [`PARTITIONS`]: `major minor blocks name` below a line of titles.
fn disks(partitions: &str) -> impl Iterator<Item = (u32, u32)> {
    partitions.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    })
}

/// Whether nobody here may open a device, whatever it is. What cannot be made was not tried.
fn is_refused(directory: &OwnedFd, kind: FileType, (major, minor): (u32, u32)) -> bool {
    let made = rustix::fs::mknodat(directory, NAME, kind, Mode::RUSR, makedev(major, minor));
    if let Err(error) = made {
        return error == Errno::PERM;
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(directory, NAME, flags, Mode::empty());
    let _ = rustix::fs::unlinkat(directory, NAME, AtFlags::empty());
    matches!(opened, Err(Errno::PERM))
}

/// A device in `root`, as the disk has it, that does not belong to a small /dev.
fn dangerous(root: &Rootfs, hidden: Option<&[u8]>) -> Result<Option<GuestPath>, RootfsError> {
    let failed = |source| RootfsError::Io { action: "open", path: GuestPath::root(), source };
    let root = Rootfs::from_fd(root.as_fd().try_clone_to_owned().map_err(failed)?);
    let hidden = hidden.map(|name| GuestPath::root().child(name));
    let mut waiting = vec![GuestPath::root()];
    while let Some(directory) = waiting.pop() {
        for (name, kind) in root.read_dir(&directory)? {
            let path = directory.child(&name);
            match kind {
                FileKind::Directory if Some(&path) != hidden.as_ref() => waiting.push(path),
                FileKind::CharDevice | FileKind::BlockDevice => {
                    let metadata = root.metadata(&path, Follow::No)?;
                    if metadata.is_some_and(|metadata| !is_harmless(&metadata)) {
                        return Ok(Some(path));
                    }
                }
                _ => {}
            }
        }
    }
    Ok(None)
}

/// Whether a device belongs to a small /dev, or is none at all, like what stands for a removed file in an overlay.
fn is_harmless(metadata: &Metadata) -> bool {
    let known = DEVICES.map(|(_, major, minor)| makedev(major, minor));
    metadata.kind == FileKind::CharDevice && (metadata.rdev == 0 || known.contains(&metadata.rdev))
}

#[cfg(test)]
mod tests {
    use rustix::fs::mknodat;

    use super::*;

    #[test]
    fn disks_are_read_from_the_kernel_s_table() {
        let table = "major minor  #blocks  name\n\n 254        0  264241152 vda\n   7       10          4 loop10\nx\n";
        assert_eq!(disks(table).collect::<Vec<_>>(), [(254, 0), (7, 10)]);
    }

    #[test]
    fn only_a_device_that_a_small_dev_has_is_harmless() {
        let directory = tempfile::tempdir().unwrap();
        let make = |path: &str, kind, major, minor| {
            let path = directory.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            mknodat(CWD, path, kind, Mode::RUSR, makedev(major, minor))
        };
        use FileType::{BlockDevice, CharacterDevice};
        if make("a/null", CharacterDevice, 1, 3).is_err() {
            eprintln!("skipped `only_a_device_that_a_small_dev_has_is_harmless`: no device can be made");
            return;
        }
        let root = Rootfs::open(directory.path()).unwrap();
        let found = |hidden| dangerous(&root, hidden).unwrap().map(|path| path.to_string());
        make("dev/sda", BlockDevice, 8, 0).unwrap();
        assert_eq!(found(Some(b"dev")), None);
        assert_eq!(found(None).as_deref(), Some("/dev/sda"));
        // The number of /dev/null, of the other kind.
        make("a/dev/b/ram", BlockDevice, 1, 3).unwrap();
        assert_eq!(found(Some(b"dev")).as_deref(), Some("/a/dev/b/ram"));
        assert!(Rules::Hold.check(&root, None).is_ok());
        let refused = Rules::Missing.check(&root, Some(b"dev")).unwrap_err();
        assert!(
            refused.to_string().starts_with("`/a/dev/b/ram` is a device, in the image or in a cache"),
            "{refused}"
        );
    }

    #[test]
    fn rules_are_missing_where_any_device_can_be_opened() {
        let directory = tempfile::tempdir().unwrap();
        // The kernel's messages, which no container is let read.
        let device = directory.path().join("kmsg");
        if mknodat(CWD, &device, FileType::CharacterDevice, Mode::RUSR, makedev(1, 11)).is_err() {
            eprintln!("skipped `rules_are_missing_where_any_device_can_be_opened`: no device can be made");
            return;
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let expected = match rustix::fs::openat(CWD, &device, flags, Mode::empty()) {
            Ok(_) => Rules::Missing,
            Err(error) => {
                assert_eq!(error, Errno::PERM, "neither opened nor refused by rules");
                Rules::Hold
            }
        };
        fs::remove_file(&device).unwrap();
        assert_eq!(Rules::find(directory.path()), expected);
        // Nothing is left of the trial.
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        assert_eq!(Rules::find(&directory.path().join("none")), Rules::Missing);
    }
}
