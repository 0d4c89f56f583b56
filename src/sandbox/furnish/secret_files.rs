//! Secrets that are files on a disk for the time of a step, for want of mounts.

use std::os::fd::OwnedFd;

use crate::rootfs::{GuestPath, RootfsError, at};

/// Files that are emptied, wherever they are by then: a step that gives one another name, or moves it, takes no secret
/// into its image.
#[derive(Debug, Default)]
pub(super) struct SecretFiles(Vec<SecretFile>);

#[derive(Debug)]
struct SecretFile {
    /// Open for writing.
    file: OwnedFd,
    /// Where it was put.
    path: GuestPath,
    length: usize,
}

impl SecretFiles {
    pub(super) fn add(&mut self, file: OwnedFd, path: &GuestPath, length: usize) {
        self.0.push(SecretFile { file, path: path.clone(), length });
    }

    /// Overwrites all of them, and empties them. Goes on after a failure: the first is the one to report.
    pub(super) fn empty(&mut self) -> Result<(), RootfsError> {
        let mut result = Ok(());
        for secret in self.0.drain(..) {
            result = result.and(secret.empty());
        }
        result
    }
}

impl SecretFile {
    /// A file system that writes in place leaves nothing for whoever gets the disk's blocks next. Where others are
    /// written, it does no harm.
    fn empty(&self) -> Result<(), RootfsError> {
        let overwritten = self.overwrite();
        // Whether that has worked or not.
        at(rustix::fs::ftruncate(&self.file, 0), "empty", &self.path)?;
        at(overwritten, "overwrite", &self.path)
    }

    fn overwrite(&self) -> rustix::io::Result<()> {
        const ZEROS: [u8; 4096] = [0; 4096];
        let mut done = 0;
        while done < self.length {
            let chunk = &ZEROS[..ZEROS.len().min(self.length - done)];
            done += rustix::io::pwrite(&self.file, chunk, done as u64)?;
        }
        // Else it would be forgotten with the file, and what the disk has would stay. Of what it never had, this writes
        // zeros only.
        rustix::fs::fdatasync(&self.file)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::rootfs::Owner;
    use crate::sandbox::provided::make_file;

    #[test]
    fn all_of_it_is_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let place = std::fs::File::open(directory.path()).unwrap();
        for length in [0, 1, 4096, 10_000] {
            let name = length.to_string();
            let content = vec![b'x'; length];
            let file = make_file(place.as_fd(), name.as_bytes(), Owner::ROOT, 0o600, &content).unwrap();
            let read = || std::fs::read(directory.path().join(&name)).unwrap();
            assert!(read() == content, "{length}");
            let secret = SecretFile { file, path: GuestPath::root(), length };
            secret.overwrite().unwrap();
            assert!(read() == vec![0; length], "{length}");
            secret.empty().unwrap();
            assert_eq!(read(), b"");
        }
    }
}
