//! What a process has mounted in its root besides the kernel's file systems.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::FileType;
use rustix::io::Errno;

use super::furnish::FurnishError;
use crate::rootfs::{GuestPath, Owner, RootfsError};

/// Something that is mounted while the process runs, over whatever is there.
#[derive(Debug, Clone)]
pub struct Mount {
    /// Where. Links are followed inside the root, and inside what is mounted before. What is missing is made, and taken
    /// away afterwards.
    pub target: GuestPath,
    /// What.
    pub content: Content,
}

/// What is mounted.
#[derive(Debug, Clone)]
pub enum Content {
    /// A file or directory from elsewhere.
    Bind(Bind),
    /// An empty directory in memory. It belongs to root and has the mode of the directory that it covers, or 1777 where
    /// there is none.
    Tmpfs {
        /// Bytes that it may hold; half of the memory without it.
        size: Option<u64>,
    },
    /// A file in memory, read-only and not executable.
    Secret(SecretFile),
}

/// A file or directory from elsewhere. Device nodes in it cannot be opened.
#[derive(Debug, Clone)]
pub struct Bind {
    /// The root of the mount that `source` is in. A mount that is attached nowhere may be taken for good. With `kept_at`,
    /// what is to stay open as long as any process of the step may be there, as a lock.
    pub tree: Arc<OwnedFd>,
    /// What is shown, with all that is mounted below it; an `O_PATH` descriptor will do.
    pub source: Arc<OwnedFd>,
    /// Where it is kept, if what the process writes to it is to stay.
    pub kept_at: Option<Arc<KeptAt>>,
    /// Whether the process may write to it.
    pub writes: Writes,
    /// Whether setuid bits and file capabilities in it count.
    pub rights: Rights,
}

/// Where a directory or file is kept that outlives the processes it is mounted for. Where nothing can be mounted it is
/// moved from there to the process, and back: nobody else may use it meanwhile ([`Sandbox::mounts`](super::Sandbox::mounts)).
#[derive(Debug)]
pub struct KeptAt {
    /// The directory that it is in.
    pub directory: OwnedFd,
    /// Its name there.
    pub name: Vec<u8>,
}

/// Whether something can be written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writes {
    /// It cannot.
    Refused,
    /// It can: `source` is there for this process alone, or is kept.
    Allowed,
}

/// Whether programs may have more rights than who starts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rights {
    /// As in an image.
    Honoured,
    /// As in files of the user.
    Ignored,
}

/// A secret as a file.
#[derive(Debug, Clone)]
pub struct SecretFile {
    /// The content.
    pub value: Secret,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub owner: Owner,
}

/// Bytes that are shown to nobody but the process that asks for them: not even `Debug` prints them.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<[u8]>);

impl Secret {
    /// Takes the bytes.
    #[must_use]
    pub fn new(value: &[u8]) -> Self {
        Self(value.into())
    }

    /// The bytes, for the process.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// What a mount needs below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PointKind {
    /// Anything but a directory.
    File,
    /// A directory; if it has to be made, with this mode.
    Directory { mode: u32 },
}

impl Mount {
    /// What is needed where it is mounted.
    pub(super) fn point(&self) -> Result<PointKind, FurnishError> {
        self.content.point().map_err(|error| {
            let (action, path) = ("look at what is to be mounted at", self.target.clone());
            let source = RootfsError::Io { action, path: path.clone(), source: error.into() };
            FurnishError::Prepare { path, source }
        })
    }
}

impl Content {
    /// What is needed to mount it.
    pub(super) fn point(&self) -> rustix::io::Result<PointKind> {
        match self {
            Self::Bind(bind) => {
                let stat = rustix::fs::fstat(&*bind.source)?;
                match FileType::from_raw_mode(stat.st_mode) {
                    FileType::Directory => Ok(PointKind::Directory { mode: 0o755 }),
                    // Whoever looks there would be led elsewhere.
                    FileType::Symlink => Err(Errno::LOOP),
                    _ => Ok(PointKind::File),
                }
            }
            // The mount takes over the mode of what it covers.
            Self::Tmpfs { .. } => Ok(PointKind::Directory { mode: 0o1777 }),
            Self::Secret(_) => Ok(PointKind::File),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a link of the test's own making")]
    fn a_link_is_nothing_to_mount() {
        let directory = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc", directory.path().join("link")).unwrap();
        let root = crate::rootfs::Rootfs::open(directory.path()).unwrap();
        let open = |name: &[u8]| {
            let path = GuestPath::clamp(name).unwrap();
            let source = Arc::new(root.open_path(&path, crate::rootfs::Follow::No).unwrap());
            let tree = Arc::clone(&source);
            Content::Bind(Bind {
                tree,
                source,
                kept_at: None,
                writes: Writes::Refused,
                rights: Rights::Ignored,
            })
        };
        assert_eq!(open(b"/link").point(), Err(Errno::LOOP));
        assert_eq!(open(b"/").point(), Ok(PointKind::Directory { mode: 0o755 }));
    }

    #[test]
    fn a_secret_is_not_printed() {
        let value = Secret::new(b"hunter2");
        let file = SecretFile { value, mode: 0o400, owner: Owner::ROOT };
        let mount = Mount { target: GuestPath::root(), content: Content::Secret(file) };
        assert!(!format!("{mount:?}").contains("hunter2"));
        assert!(!format!("{mount:?}").contains("104, 117"), "nor as numbers");
    }
}
