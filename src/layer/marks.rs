//! The extended attributes by which overlayfs marks directories, and which of them this process can set.

use rustix::fs::{MemfdFlags, XattrFlags};
use rustix::io::Errno;

/// One of the two names under which overlayfs keeps its marks. A directory that is marked under one is not marked for a
/// mount that reads the other, so all of a build uses one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marks {
    /// `trusted.overlay.*`: only for a process with CAP_SYS_ADMIN in the initial user namespace.
    Trusted,
    /// `user.overlay.*`, for mounts with `userxattr`.
    User,
}

impl Marks {
    /// What this process can use, found by trying: root in a user namespace has every capability there, and still no
    /// `trusted.*` attributes.
    #[must_use]
    pub fn usual() -> Self {
        // Replacing what is not there changes nothing; the right to do it is asked for first (xattr(7)).
        let try_it = || {
            let file = rustix::fs::memfd_create(c"marks", MemfdFlags::CLOEXEC)?;
            rustix::fs::fsetxattr(&file, Self::Trusted.opaque(), b"y", XattrFlags::REPLACE)
        };
        if try_it() == Err(Errno::PERM) { Self::User } else { Self::Trusted }
    }

    /// What all marks begin with.
    #[must_use]
    pub fn prefix(self) -> &'static [u8] {
        match self {
            Self::Trusted => b"trusted.overlay.",
            Self::User => b"user.overlay.",
        }
    }

    /// The attribute of opaque directories; its value is `y`.
    #[must_use]
    pub fn opaque(self) -> &'static [u8] {
        match self {
            Self::Trusted => b"trusted.overlay.opaque",
            Self::User => b"user.overlay.opaque",
        }
    }

    /// A word for the names of directories: `trusted` or `user`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Trusted => "trusted",
            Self::User => "user",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rootfs::Attribute;

    #[test]
    fn the_marks_are_those_that_can_be_set() {
        let directory = tempfile::tempdir().unwrap();
        let flags = XattrFlags::empty();
        let set = rustix::fs::setxattr(directory.path(), Marks::Trusted.opaque(), b"y", flags);
        assert_eq!(Marks::usual(), if set.is_ok() { Marks::Trusted } else { Marks::User }, "{set:?}");
    }

    #[test]
    fn all_attributes_of_overlayfs_are_known() {
        for marks in [Marks::Trusted, Marks::User] {
            assert!(marks.opaque().starts_with(marks.prefix()));
            assert_eq!(Attribute::of(marks.opaque()), Attribute::Overlay);
        }
    }
}
