//! The root file system of an image as a directory of the user's.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use super::staged::{self, Parents, StagedDir};
use crate::rootfs::{Delivered, Delivery, DeliveryError, Rootfs};

/// Why a directory could not be written.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// Something else has the name.
    #[error("`{}` is not a directory", .0.display())]
    NotADirectory(PathBuf),
    /// What the system refuses.
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
    /// An entry. The directory was not there before, and is not now.
    #[error("cannot write to `{}`", path.display())]
    Entry {
        /// The directory.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: DeliveryError,
    },
    /// An entry of a directory that was there before.
    #[error("cannot write to `{}`: the directory is incomplete now", path.display())]
    Incomplete {
        /// The directory.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: DeliveryError,
    },
}

/// Writes the trees `from`, which can be one, into the directory `dest`. One that is not there appears whole; in one that is
/// there, each file does.
///
/// # Errors
/// [`DirectoryError`]; a directory that was there then holds a part.
pub fn write(dest: &Path, from: &[&Rootfs], delivery: &Delivery<'_>) -> Result<Delivered, DirectoryError> {
    let io_error = |action, path: &Path| {
        let path = path.to_owned();
        move |source| DirectoryError::Io { action, path, source }
    };
    let fill = |place: &Path| {
        let directory = File::open(place).map_err(io_error("open", dest))?;
        Ok(delivery.write(from, directory.as_fd()))
    };
    let path = dest.to_owned();
    match fs::metadata(dest) {
        Ok(found) if found.is_dir() => {
            return fill(dest)?.map_err(|source| DirectoryError::Incomplete { path, source });
        }
        Ok(_) => return Err(DirectoryError::NotADirectory(path)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(io_error("find", dest)(error)),
    }
    let parent = staged::parent(dest);
    let parents = Parents::of(dest).map_err(io_error("make", parent))?;
    let stage = StagedDir::beside(dest).map_err(io_error("write to", parent))?;
    let delivered = fill(stage.path())?.map_err(|source| DirectoryError::Entry { path, source })?;
    stage.publish(dest).map_err(io_error("make", dest))?;
    parents.keep();
    Ok(delivered)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Limit;
    use crate::rootfs::Others;

    #[test]
    fn a_new_directory_appears_whole_or_not_at_all() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        fs::create_dir(at("image")).unwrap();
        fs::write(at("image/f"), "text").unwrap();
        let from = Rootfs::open(&at("image")).unwrap();
        let names = Limit::new("names", 1 << 20);
        let write = |dest: &str, cancelled: &(dyn Fn() -> bool + Sync)| {
            write(&at(dest), &[&from], &Delivery { time: None, others: Others::Kept, names, cancelled })
        };
        assert!(matches!(write("new/out", &|| true), Err(DirectoryError::Entry { .. })));
        assert!(!at("new").exists());
        write("new/out", &|| false).unwrap();
        assert_eq!(fs::read_to_string(at("new/out/f")).unwrap(), "text");
        assert_eq!(fs::read_dir(at("new")).unwrap().count(), 1);
        let error = write("new/out", &|| true).unwrap_err().to_string();
        assert!(error.ends_with("out`: the directory is incomplete now"), "{error}");
        assert!(matches!(write("image/f", &|| false), Err(DirectoryError::NotADirectory(_))));
    }
}
