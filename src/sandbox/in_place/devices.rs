//! That the container's /dev is one: a step in place has no other, and can take away what everybody needs.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, makedev};

use super::error::InPlaceError;
use crate::rootfs::{FileKind, GuestPath, Metadata, metadata_at};
use crate::sandbox::provided::{DEVICES, LINKS};

/// How many of [`LINKS`] every container has; the others are a runtime's choice.
const OF_EVERYBODY: usize = 4;

/// What a container has of the usual entries of /dev.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Devices(Vec<(&'static str, Entry)>);

/// What an entry is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Entry {
    /// A device of this number.
    Device(FileKind, u64),
    /// A link to there.
    Link(PathBuf),
    Other(FileKind),
    Missing,
}

/// The /dev of this process: that of a step in place.
pub(super) fn open() -> Result<OwnedFd, InPlaceError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open("/dev", flags, Mode::empty()).map_err(|error| {
        let path = GuestPath::root().child(b"dev");
        InPlaceError::Io { action: "open", path, source: error.into() }
    })
}

impl Devices {
    /// What is in the directory `dev`.
    pub(super) fn of(dev: BorrowedFd<'_>) -> Self {
        let links = LINKS.iter().take(OF_EVERYBODY).map(|(name, _)| *name);
        let names = DEVICES.iter().map(|(name, ..)| *name).chain(links);
        Self(names.map(|name| (name, Entry::of(dev, name))).collect())
    }

    /// What is a device by its name and none, or another.
    ///
    /// # Errors
    /// [`InPlaceError::NoDevices`]: something has replaced them, a step of another build perhaps.
    pub(super) fn check(&self) -> Result<(), InPlaceError> {
        let is_wrong = |(name, entry): &&(&str, Entry)| {
            let number = DEVICES.iter().find(|(device, ..)| device == name);
            number.is_some_and(|(_, major, minor)| {
                // Where it is missing, a step may do without; not so builder without the first.
                let is_needed = *name == DEVICES[0].0 || *entry != Entry::Missing;
                is_needed && *entry != Entry::Device(FileKind::CharDevice, makedev(*major, *minor))
            })
        };
        let paths: Vec<GuestPath> = self.0.iter().filter(is_wrong).map(|(name, _)| path_of(name)).collect();
        if paths.is_empty() { Ok(()) } else { Err(InPlaceError::NoDevices { paths }) }
    }

    /// Where `now` is another.
    pub(super) fn changed(&self, now: &Self) -> Vec<GuestPath> {
        let pairs = self.0.iter().zip(&now.0);
        pairs.filter(|(was, is)| was != is).map(|((name, _), _)| path_of(name)).collect()
    }
}

impl Entry {
    fn of(dev: BorrowedFd<'_>, name: &str) -> Self {
        let Ok(Metadata { kind, rdev, .. }) = metadata_at(dev, name.as_bytes()) else { return Self::Missing };
        match kind {
            FileKind::CharDevice | FileKind::BlockDevice => Self::Device(kind, rdev),
            FileKind::Symlink => rustix::fs::readlinkat(dev, name, Vec::new())
                .ok()
                .and_then(|to| to.into_string().ok())
                .map_or(Self::Other(kind), |to| Self::Link(Path::new(&to).to_owned())),
            _ => Self::Other(kind),
        }
    }
}

fn path_of(name: &str) -> GuestPath {
    GuestPath::root().child(b"dev").child(name.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsFd;

    use rustix::fs::{CWD, FileType, mknodat};

    use super::*;

    fn texts(paths: &[GuestPath]) -> String {
        paths.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn what_is_no_device_is_not_taken_for_one_and_what_a_step_replaced_is_told() {
        let top = tempfile::tempdir().unwrap();
        let path = |name: &str| top.path().join(name);
        let make = |name: &str, minor| {
            mknodat(CWD, path(name), FileType::CharacterDevice, Mode::RUSR, makedev(1, minor))
        };
        if make("null", 3).is_err() {
            eprintln!("skipped: no device can be made");
            return;
        }
        make("zero", 5).unwrap();
        rustix::fs::symlink("/proc/self/fd", path("fd")).unwrap();
        let dev = fs::File::open(top.path()).unwrap();
        let before = Devices::of(dev.as_fd());
        before.check().unwrap();
        assert_eq!(before.changed(&Devices::of(dev.as_fd())), []);
        for name in ["null", "zero", "fd"] {
            fs::remove_file(path(name)).unwrap();
        }
        fs::write(path("null"), "").unwrap();
        make("zero", 7).unwrap();
        rustix::fs::symlink("/etc", path("fd")).unwrap();
        let after = Devices::of(dev.as_fd());
        assert_eq!(texts(&before.changed(&after)), "/dev/null /dev/zero /dev/fd");
        let error = after.check().unwrap_err().to_string();
        let told = "`/dev/null`, `/dev/zero` of this container are not the devices of that name: restart the container";
        assert_eq!(error, told);
        fs::remove_file(path("null")).unwrap();
        fs::remove_file(path("zero")).unwrap();
        assert!(Devices::of(dev.as_fd()).check().unwrap_err().to_string().starts_with("`/dev/null` of"));
    }
}
