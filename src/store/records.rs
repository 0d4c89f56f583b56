//! Small records, each in a file that is named by the hash it is found by; damage is noticed.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use super::StoreError;
use super::staged::{self, StagedFile};
use crate::image::digest::Digest;

/// The longest record, in bytes.
const LONGEST: u64 = 1 << 20;

/// The records of one kind. May be used from several threads and processes.
///
/// A record's file begins with a line that holds the hash of the rest: nothing is written out to disk at once, so a
/// machine that stops may leave less than was written, or something else.
#[derive(Debug, Clone)]
pub struct Records {
    directory: PathBuf,
    temporary: PathBuf,
}

impl Records {
    pub(super) fn new(directory: PathBuf, temporary: PathBuf) -> Self {
        Self { directory, temporary }
    }

    /// What is recorded for `name`.
    ///
    /// # Errors
    /// [`StoreError::Record`] when it was damaged; the record is gone then. Else what the system says.
    pub fn get(&self, name: &Digest) -> Result<Option<Vec<u8>>, StoreError> {
        let path = self.path(name);
        let mut bytes = Vec::new();
        let read = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(&path)
            .and_then(|file| file.take(LONGEST + 1).read_to_end(&mut bytes));
        match read {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(StoreError::io("read", &path)(error)),
        }
        match content_of(&bytes) {
            Some(content) => Ok(Some(content.to_vec())),
            None => Err(self.remove_damaged(name)),
        }
    }

    /// Records `content` for `name`, in place of what there was.
    ///
    /// # Errors
    /// What the system says.
    pub fn put(&self, name: &Digest, content: &[u8]) -> Result<(), StoreError> {
        let path = self.path(name);
        let write = || {
            let mut file = StagedFile::within(&self.temporary, OsStr::new("record-"))?;
            file.write_all(&[Digest::of(content).hex().as_bytes(), b"\n", content].concat())?;
            file.publish_unsynced(&path)
        };
        let written = match write() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(&self.directory).map_err(StoreError::io("make", &self.directory))?;
                write()
            }
            result => result,
        };
        written.map_err(StoreError::io("write", &path))
    }

    /// Removes a record of which somebody has found out that it cannot be right; gives the error that says so.
    #[must_use]
    pub fn remove_damaged(&self, name: &Digest) -> StoreError {
        let path = self.path(name);
        match fs::remove_file(&path).or_else(staged::absent) {
            Ok(()) => StoreError::Record(path),
            Err(error) => StoreError::io("remove the damaged", &path)(error),
        }
    }

    fn path(&self, name: &Digest) -> PathBuf {
        self.directory.join(name.hex())
    }
}

/// What a file holds, if it is as it was written.
fn content_of(bytes: &[u8]) -> Option<&[u8]> {
    let (hash, rest) = bytes.split_at_checked(64)?;
    let content = rest.strip_prefix(b"\n")?;
    (hash == Digest::of(content).hex().as_bytes()).then_some(content)
}

#[cfg(test)]
mod tests {
    use super::super::Store;
    use super::*;

    #[test]
    fn a_record_is_found_by_its_name_and_the_last_one_counts() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let records = store.records("things");
        let [one, two] = [Digest::of(b"1"), Digest::of(b"2")];
        assert_eq!(records.get(&one).unwrap(), None);
        records.put(&one, b"first").unwrap();
        records.put(&one, b"second").unwrap();
        assert_eq!(records.get(&one).unwrap().unwrap(), b"second");
        assert_eq!(records.get(&two).unwrap(), None);
        assert_eq!(store.records("others").get(&one).unwrap(), None);
        assert_eq!(fs::read_dir(store.temporary()).unwrap().count(), 0);
    }

    #[test]
    fn a_damaged_record_is_an_error_once_and_gone_then() {
        let dir = tempfile::tempdir().unwrap();
        let records = Store::open(dir.path()).unwrap().records("things");
        let name = Digest::of(b"1");
        records.put(&name, b"content").unwrap();
        let path = records.path(&name);
        let good = fs::read(&path).unwrap();
        let mut flipped = good.clone();
        *flipped.last_mut().unwrap() ^= 1;
        for bytes in [&good[..good.len() - 1], &[], &flipped, &[0; 90], &vec![b'x'; 2 << 20]] {
            fs::write(&path, bytes).unwrap();
            let error = records.get(&name).unwrap_err();
            assert!(matches!(&error, StoreError::Record(which) if *which == path), "{error}");
            assert_eq!(records.get(&name).unwrap(), None);
        }
    }

    #[test]
    fn what_cannot_be_read_is_no_missing_record() {
        let dir = tempfile::tempdir().unwrap();
        let records = Store::open(dir.path()).unwrap().records("things");
        let name = Digest::of(b"1");
        fs::create_dir_all(records.path(&name)).unwrap();
        assert!(matches!(records.get(&name), Err(StoreError::Obstructed { action: "read", .. })));
    }
}
