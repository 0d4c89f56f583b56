//! What is kept on disk between builds.
//!
//! The root of a store is a valid OCI image layout whose index is the catalog. Content is named by its hash and never
//! changes; everything appears by a rename. So readers need no lock, two processes may use one store, and what a killed
//! one leaves behind is collected by the next.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::PROC_SUPER_MAGIC;

use crate::image::digest::{Digest, Mismatch};
use crate::image::document::DocumentError;
use crate::image::shown;

pub mod archive;
pub mod blobs;
pub mod cache_mounts;
pub mod catalog;
pub mod chain;
pub mod choice;
pub mod directory;
pub mod export;
pub mod extract;
pub mod index;
pub mod janitor;
pub mod layout;
pub(crate) mod lock;
pub mod mount;
pub mod output;
pub mod overrides;
pub mod records;
pub mod room;
mod settle;
mod staged;
pub mod sweep;
pub mod ticks;
pub mod tree;
pub mod trees;
pub mod unpack;
pub mod unpacked;
pub mod workspace;

#[cfg(test)]
pub(crate) mod layer_laws;
#[cfg(test)]
pub(crate) mod testing;

use blobs::BlobStore;
use catalog::Catalog;
use lock::Sharing;
use records::Records;
use staged::StagedFile;

/// The format that this program writes.
const VERSION: u32 = 1;

/// What stands in the file `oci-layout`.
const LAYOUT_FILE: &[u8] = br#"{"imageLayoutVersion":"1.0.0"}"#;

/// What goes wrong with the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Permissions, or a file system mounted read-only.
    #[error("cannot write to the store: cannot {action} `{}`; choose another store with `--store`", path.display())]
    Unwritable {
        /// What was tried.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Permissions: of another user, for instance.
    #[error("cannot read the store: cannot {action} `{}`; choose another store with `--store`", path.display())]
    Unreadable {
        /// What was tried.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// There can be no store in that place.
    #[error("there can be no store at `{}`: {why}; choose another place with `--store`", path.display())]
    Impossible {
        /// The place.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// A directory where a file belongs.
    #[error("cannot {action} `{}`: the store has a file there, not a directory; delete it", path.display())]
    Obstructed {
        /// What was tried.
        action: &'static str,
        /// The directory.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// Somebody's directory.
    #[error("`{}` is neither empty nor a store; choose another with `--store`", path.display())]
    Foreign {
        /// The directory.
        path: PathBuf,
    },
    /// Made by a later version of this program.
    #[error(
        "the store `{}` has format {found}, but this version knows {VERSION} at most; choose another with `--store`",
        path.display()
    )]
    Newer {
        /// The store.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
    /// The version file holds something else.
    #[error(
        "`{}` holds `{text}`, expected the number of a format; delete the store `{}`, or choose another with `--store`",
        path.display(), root.display()
    )]
    Version {
        /// The store.
        root: PathBuf,
        /// The version file.
        path: PathBuf,
        /// What it holds.
        text: String,
    },
    /// Nobody could tell a living build from a dead one.
    #[error(
        "the store `{}` is on a file system without locks, and needs them to tell who uses what; choose another with \
         `--store`",
        path.display()
    )]
    Lockless {
        /// The store.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// Anything else that the system refuses.
    #[error("cannot {action} `{}`", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The blob is not there, or not whole.
    #[error("blob {0} is not in the store")]
    Missing(Digest),
    /// The blob is not what it was when it was stored. It has been removed.
    #[error("a blob of the store was damaged")]
    Corrupt(#[source] Mismatch),
    /// What was to be stored is not what was announced.
    #[error("received something else than was announced")]
    Mismatch(#[from] Mismatch),
    /// A blob that is read as a whole is too large for that.
    #[error("blob {digest} is {size} bytes long, more than the limit of {limit}")]
    TooLarge {
        /// Which.
        digest: Digest,
        /// Its size.
        size: u64,
        /// The most.
        limit: u64,
    },
    /// A record is not what was written. It has been removed.
    #[error("the record `{}` was damaged; it has been removed", .0.display())]
    Record(PathBuf),
    /// The catalog was damaged while the store was open.
    #[error("the catalog `{}` is damaged", path.display())]
    Catalog {
        /// The catalog.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: DocumentError,
    },
}

impl StoreError {
    /// Whether the content only has to be fetched again.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Missing(_) | Self::Corrupt(_))
    }

    fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| {
            let path = path.to_owned();
            match source.kind() {
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem if action != "read" => {
                    Self::Unwritable { action, path, source }
                }
                io::ErrorKind::PermissionDenied => Self::Unreadable { action, path, source },
                io::ErrorKind::IsADirectory => Self::Obstructed { action, path, source },
                _ => Self::Io { action, path, source },
            }
        }
    }
}

/// A store that is open. Several processes may have one open at the same time.
#[derive(Debug)]
pub struct Store {
    root: PathBuf,
    blobs: BlobStore,
    warnings: Vec<String>,
    /// Held shared as long as the store is in use: whoever collects garbage takes it alone.
    _in_use: File,
}

impl Store {
    /// Opens the store in `root`; makes it where there is none. What killed processes left in it is removed.
    ///
    /// # Errors
    /// [`StoreError`] when `root` cannot be written to, belongs to something else or to a newer version, or is on a file
    /// system without locks.
    pub fn open(root: &Path) -> Result<Self, StoreError> {
        check_place(root)?;
        make_root(root)?;
        // Later changes of the current directory must not move the store.
        let root = std::path::absolute(root).map_err(StoreError::io("find", root))?;
        check_version(&root)?;
        let lock = root.join("lock");
        let in_use = open_lock(&lock)?;
        lock::wait(&in_use, Sharing::Shared).map_err(|source| {
            if lock::is_lacking(&source) {
                StoreError::Lockless { path: root.clone(), source }
            } else {
                StoreError::io("lock", &lock)(source)
            }
        })?;
        let (blobs, temporary) = (root.join("blobs"), root.join("tmp"));
        make_dirs(&blobs.join("sha256"))?;
        make_dirs(&temporary)?;
        let layout = root.join("oci-layout");
        if !layout.try_exists().map_err(StoreError::io("read", &layout))? {
            publish(&layout, LAYOUT_FILE)?;
        }
        staged::sweep(&temporary).map_err(StoreError::io("clean", &temporary))?;
        let blobs = BlobStore::new(&blobs, &temporary);
        let mut store = Self { root, blobs, warnings: Vec::new(), _in_use: in_use };
        if let Some(aside) = store.catalog().repair()? {
            let aside = aside.display();
            let warning =
                format!("the catalog of the store was damaged and is begun anew; the old one is `{aside}`");
            store.warnings.push(warning);
        }
        Ok(store)
    }

    /// The directory, absolute.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where temporary files go: the file system of the store, so that renaming works.
    #[must_use]
    pub fn temporary(&self) -> PathBuf {
        self.root.join("tmp")
    }

    /// Stored bytes, by digest.
    #[must_use]
    pub fn blobs(&self) -> &BlobStore {
        &self.blobs
    }

    /// Images, by name.
    #[must_use]
    pub fn catalog(&self) -> Catalog<'_> {
        Catalog::new(&self.root)
    }

    /// Small records of one kind, by hash.
    #[must_use]
    pub fn records(&self, kind: &str) -> Records {
        Records::new(self.root.join("cache").join(kind), self.temporary())
    }

    /// What was found and repaired on opening.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

/// Whether there could be a store at `root`, as far as that is known without making one.
///
/// # Errors
/// [`StoreError::Impossible`].
pub fn check_place(root: &Path) -> Result<(), StoreError> {
    let absolute = std::path::absolute(root).unwrap_or_else(|_| root.to_owned());
    let Some(there) = absolute.ancestors().find(|path| path.exists()) else { return Ok(()) };
    let why = match there {
        there if !there.is_dir() => format!("`{}` is not a directory", there.display()),
        there if is_of_kernel(there) => {
            format!("`{}` has only what the kernel puts there", there.display())
        }
        _ => return Ok(()),
    };
    Err(StoreError::Impossible { path: root.to_owned(), why })
}

/// Whether `directory` is one of /proc or /sys.
#[must_use]
pub fn is_of_kernel(directory: &Path) -> bool {
    /// `SYSFS_MAGIC` of linux/magic.h.
    const SYSFS: u64 = 0x6265_6572;
    let kinds = [PROC_SUPER_MAGIC as u64, SYSFS];
    rustix::fs::statfs(directory).is_ok_and(|found| kinds.contains(&(found.f_type as u64)))
}

/// Makes the store's own directory for its owner alone: images may hold what not everybody on the machine may read. One
/// that is there stays as it is.
fn make_root(path: &Path) -> Result<(), StoreError> {
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        fs::create_dir_all(parent).map_err(StoreError::io("make", path))?;
    }
    let mut builder = fs::DirBuilder::new();
    builder.mode(0o700).recursive(true);
    builder.create(path).map_err(|error| {
        // The system would say that it exists.
        let dangling = error.kind() == io::ErrorKind::AlreadyExists && path.is_symlink();
        StoreError::io("make", path)(if dangling {
            io::Error::other("it is a symbolic link to something that does not exist")
        } else {
            error
        })
    })
}

fn make_dirs(path: &Path) -> Result<(), StoreError> {
    fs::create_dir_all(path).map_err(StoreError::io("make", path))
}

fn open_lock(path: &Path) -> Result<File, StoreError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.open(path).map_err(StoreError::io("open", path))
}

/// Writes a small file so that it is there whole or not at all.
fn publish(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let write = || {
        let mut file = StagedFile::beside(path)?;
        file.write_all(bytes)?;
        file.publish(path)
    };
    write().map_err(StoreError::io("write", path))
}

/// The version file is the first thing in a store, so that two processes may make one at the same time.
fn check_version(root: &Path) -> Result<(), StoreError> {
    let path = root.join("version");
    let text = match fs::read(&path) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            check_empty(root)?;
            return publish(&path, format!("{VERSION}\n").as_bytes());
        }
        // Without it, nothing says that the rest is a store.
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
            return Err(StoreError::Foreign { path: root.to_owned() });
        }
        Err(error) => return Err(StoreError::io("read", &path)(error)),
    };
    match text.trim_end().parse::<u32>() {
        Ok(found) if found > VERSION => Err(StoreError::Newer { path: root.to_owned(), found }),
        Ok(_) => Ok(()),
        Err(_) => Err(StoreError::Version { root: root.to_owned(), path, text: shown(text.trim_end()) }),
    }
}

fn check_empty(root: &Path) -> Result<(), StoreError> {
    let mut foreign = false;
    for entry in fs::read_dir(root).map_err(StoreError::io("read", root))? {
        let name = entry.map_err(StoreError::io("read", root))?.file_name();
        // A volume of its own has `lost+found`.
        foreign |= name != "lost+found" && !staged::is_staged(&name);
    }
    // Another process may have made the store meanwhile.
    if foreign && !root.join("version").exists() {
        return Err(StoreError::Foreign { path: root.to_owned() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_there_can_be_no_store_is_said_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        for (root, why) in [
            (PathBuf::from("/dev/null"), "/dev/null` is not a directory"),
            (PathBuf::from("/proc/x"), "`/proc` has only what the kernel puts there"),
            (file.clone(), "file` is not a directory"),
            (file.join("x/y"), "file` is not a directory"),
        ] {
            let error = Store::open(&root).unwrap_err().to_string();
            assert!(error.starts_with("there can be no store at `") && error.contains(why), "{error}");
            assert!(error.ends_with("choose another place with `--store`"), "{error}");
        }
        check_place(&dir.path().join("new/store")).unwrap();
    }

    #[test]
    fn a_store_is_made_once_and_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("a/store");
        drop(Store::open(&root).unwrap());
        let first = Store::open(&root).unwrap();
        let second = Store::open(&root).unwrap();
        assert!(first.warnings().is_empty() && second.warnings().is_empty());
        assert_eq!(fs::read_to_string(root.join("version")).unwrap(), "1\n");
        layout::Layout::open(&root, &Default::default()).unwrap();
    }

    #[test]
    fn many_processes_may_make_the_same_store() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("store");
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..16).map(|_| scope.spawn(|| Store::open(&root).map(|_| ()))).collect();
            for thread in threads {
                thread.join().unwrap().unwrap();
            }
        });
        assert!(fs::read_dir(&root).unwrap().all(|entry| !staged::is_staged(&entry.unwrap().file_name())));
    }

    #[test]
    fn other_directories_and_newer_stores_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("lost+found")).unwrap();
        drop(Store::open(dir.path()).unwrap());

        let other = tempfile::tempdir().unwrap();
        fs::write(other.path().join("letter.txt"), "dear").unwrap();
        let error = Store::open(other.path()).unwrap_err().to_string();
        assert!(error.ends_with("is neither empty nor a store; choose another with `--store`"), "{error}");
        assert_eq!(fs::read_dir(other.path()).unwrap().count(), 1);

        fs::write(dir.path().join("version"), "7\n").unwrap();
        let error = Store::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("has format 7, but this version knows 1 at most"), "{error}");
        for damage in [&b"x\n"[..], b"", b"\xff"] {
            fs::write(dir.path().join("version"), damage).unwrap();
            let error = Store::open(dir.path()).unwrap_err().to_string();
            let wanted = format!("delete the store `{}`, or choose another", dir.path().display());
            assert!(error.contains("expected the number of a format") && error.contains(&wanted), "{error}");
        }
        fs::remove_file(dir.path().join("version")).unwrap();
        fs::create_dir(dir.path().join("version")).unwrap();
        assert!(matches!(Store::open(dir.path()), Err(StoreError::Foreign { .. })));
    }

    #[test]
    fn a_directory_where_a_file_belongs_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let blob = dir.path().join("blobs/sha256").join(Digest::of(b"blob").hex());
        fs::create_dir(&blob).unwrap();
        let of_blob = store.blobs().put(b"blob").unwrap_err();
        let catalog = dir.path().join("index.json");
        fs::remove_file(&catalog).unwrap();
        fs::create_dir(&catalog).unwrap();
        let of_catalog = Store::open(dir.path()).unwrap_err();
        for (error, path) in [(of_blob, blob), (of_catalog, catalog)] {
            let error = error.to_string();
            let wanted =
                format!("`{}`: the store has a file there, not a directory; delete it", path.display());
            assert!(error.ends_with(&wanted), "{error}");
        }
    }

    #[test]
    fn a_store_that_cannot_be_made_is_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        // Not even root makes directories in the second.
        for place in [dir.path().join("file/store"), PathBuf::from("/proc/sys/store")] {
            let error = Store::open(&place).unwrap_err().to_string();
            assert!(error.contains(place.to_str().unwrap()), "{error}");
        }
        let link = dir.path().join("link");
        rustix::fs::symlink("nothing", &link).unwrap();
        let source = std::error::Error::source(&Store::open(&link).unwrap_err()).unwrap().to_string();
        assert_eq!(source, "it is a symbolic link to something that does not exist");
        let denied = StoreError::io("read", Path::new("/s/version"))(io::ErrorKind::PermissionDenied.into());
        assert_eq!(
            denied.to_string(),
            "cannot read the store: cannot read `/s/version`; choose another store with `--store`"
        );
        let denied = StoreError::io("make", Path::new("/s"))(io::ErrorKind::ReadOnlyFilesystem.into());
        assert_eq!(
            denied.to_string(),
            "cannot write to the store: cannot make `/s`; choose another store with `--store`"
        );
    }

    #[test]
    fn a_store_on_a_file_system_without_locks_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        testing::without_locks(|| {
            let error = Store::open(&dir.path().join("store")).unwrap_err();
            assert!(
                matches!(&error, StoreError::Lockless { path, .. } if path.ends_with("store")),
                "{error}"
            );
            let source = std::error::Error::source(&error).unwrap().to_string();
            assert!(source.starts_with("the file system has no locks"), "{source}");
        });
    }

    #[test]
    fn leftovers_of_killed_processes_are_collected_and_those_of_live_ones_kept() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let live = store.blobs().writer().unwrap();
        let leftover = store.temporary().join("blob-77.builder");
        fs::write(&leftover, "half").unwrap();
        drop(Store::open(dir.path()).unwrap());
        assert!(!leftover.exists());
        assert_eq!(live.finish().unwrap().1, 0);
        assert_eq!(fs::read_dir(store.temporary()).unwrap().count(), 0);
    }
}
