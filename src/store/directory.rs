//! The root file system of an image as a directory of the user's.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::staged::{self, Parents, StagedDir};
use crate::rootfs::{Delivered, Delivery, DeliveryError, Rootfs, remove_others};

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
    /// What was there before.
    #[error("`{}` has not lost all that it is to lose", path.display())]
    Others {
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

/// Removes from the directory `dest` what is neither of the directories `kept` in it.
///
/// # Errors
/// [`DirectoryError`]; some is removed by then.
pub fn keep_only(
    dest: &Path,
    kept: &[PathBuf],
    cancelled: &(dyn Fn() -> bool + Sync),
) -> Result<(), DirectoryError> {
    let path = dest.to_owned();
    let opened = File::open(dest);
    let directory =
        opened.map_err(|source| DirectoryError::Io { action: "open", path: path.clone(), source })?;
    let kept: Vec<&[u8]> = kept.iter().filter_map(|kept| Some(kept.file_name()?.as_bytes())).collect();
    remove_others(directory.as_fd(), &kept, cancelled)
        .map_err(|source| DirectoryError::Others { path, source })
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
    #[test]
    #[expect(clippy::disallowed_methods, reason = "a link of the test's own")]
    fn what_is_none_of_the_directories_kept_goes_and_no_link_is_followed() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        for directory in ["out/linux_amd64", "out/linux_386/deep", "elsewhere"] {
            fs::create_dir_all(at(directory)).unwrap();
        }
        for file in ["out/linux_amd64/f", "out/linux_386/deep/f", "out/old", "elsewhere/f"] {
            fs::write(at(file), "text").unwrap();
        }
        std::os::unix::fs::symlink(at("elsewhere"), at("out/link")).unwrap();
        let kept = [at("out/linux_amd64"), at("out/linux_arm64")];
        let error = keep_only(&at("out"), &kept, &|| true).unwrap_err();
        assert!(matches!(error, DirectoryError::Others { source: DeliveryError::Cancelled, .. }));
        assert_eq!(fs::read_dir(at("out")).unwrap().count(), 4);
        keep_only(&at("out"), &kept, &|| false).unwrap();
        let left: Vec<_> = fs::read_dir(at("out")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["linux_amd64"]);
        assert!(at("out/linux_amd64/f").exists() && at("elsewhere/f").exists());
    }
}
