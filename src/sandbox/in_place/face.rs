//! What a directory is apart from what it holds: owner, mode, times and attributes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;

use crate::rootfs::{
    Attribute, Owner, Timestamp, Xattrs, metadata_of, remove_xattr_at, set_mode_at, set_owner_at,
    set_times_at, set_xattr_at, xattrs_at,
};

/// The metadata of a directory that an image has as well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Face {
    pub(super) owner: Owner,
    /// Permission bits, 0 to 0o7777.
    pub(super) mode: u32,
    pub(super) mtime: Timestamp,
    /// Those that are part of an image.
    pub(super) xattrs: Xattrs,
}

impl Face {
    /// That of a directory as `mkdir -p` makes it for root, but with this time.
    pub(super) fn plain(mtime: Timestamp) -> Self {
        Self { owner: Owner::ROOT, mode: 0o755, mtime, xattrs: Xattrs::new() }
    }

    /// That of `directory`, which must be open for reading or a place (`O_PATH`).
    pub(super) fn of(directory: impl AsFd) -> io::Result<Self> {
        let metadata = metadata_of(&directory)?;
        let mut xattrs = xattrs_at(directory.as_fd(), b".")?;
        xattrs.retain(|key, _| Attribute::of(key) == Attribute::Image);
        Ok(Self { owner: metadata.owner, mode: metadata.mode, mtime: metadata.mtime, xattrs })
    }

    /// Gives it to `directory`. Nothing is set that is right already: the process may not be allowed to.
    pub(super) fn give_to(&self, directory: BorrowedFd<'_>) -> io::Result<()> {
        let now = Self::of(directory)?;
        if now.owner != self.owner {
            set_owner_at(directory, b".", self.owner)?;
        }
        for key in now.xattrs.keys().filter(|key| !self.xattrs.contains_key(*key)) {
            remove_xattr_at(directory, b".", key)?;
        }
        for (key, value) in self.xattrs.iter().filter(|(key, value)| now.xattrs.get(*key) != Some(value)) {
            set_xattr_at(directory, b".", key, value)?;
        }
        // After owner and access control list, both of which change the mode.
        if metadata_of(directory)?.mode != self.mode {
            set_mode_at(directory, b".", self.mode)?;
        }
        if metadata_of(directory)?.mtime != self.mtime {
            set_times_at(directory, b".", self.mtime)?;
        }
        Ok(())
    }

    /// [`Face::give_to`] for a file system or a process that cannot do everything: attributes that are refused are left
    /// out.
    pub(super) fn give_what_can_be_had(&self, directory: BorrowedFd<'_>) -> io::Result<()> {
        match self.give_to(directory) {
            Err(error) if is_refusal(&error) => {
                Self { xattrs: Face::of(directory)?.xattrs, ..self.clone() }.give_to(directory)
            }
            result => result,
        }
    }

    /// Whether they differ in more than the time.
    pub(super) fn differs_beyond_time(&self, other: &Self) -> bool {
        (self.owner, self.mode, &self.xattrs) != (other.owner, other.mode, &other.xattrs)
    }
}

fn is_refusal(error: &io::Error) -> bool {
    [Errno::PERM, Errno::OPNOTSUPP].iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_directory_gets_all_of_it() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let open = |directory: &tempfile::TempDir| File::open(directory.path()).unwrap();
        set_mode_at(open(&one).as_fd(), b".", 0o2775).unwrap();
        if set_xattr_at(open(&one).as_fd(), b".", b"user.a", b"1").is_err() {
            eprintln!("not tried: this file system has no attributes");
        }
        let _ = set_xattr_at(open(&other).as_fd(), b".", b"user.b", b"2");
        set_times_at(open(&one).as_fd(), b".", Timestamp { seconds: 5, nanoseconds: 7 }).unwrap();
        let face = Face::of(open(&one)).unwrap();
        assert_ne!(Face::of(open(&other)).unwrap(), face);
        face.give_to(open(&other).as_fd()).unwrap();
        assert_eq!(Face::of(open(&other)).unwrap(), face);
        let changed = metadata_of(open(&other)).unwrap().ctime;
        face.give_to(open(&other).as_fd()).unwrap();
        assert_eq!(metadata_of(open(&other)).unwrap().ctime, changed, "nothing was to be done");
    }
}
