//! Stored bytes, named by their hash.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::StoreError;
use super::staged::{self, StagedFile};
use crate::image::descriptor::Descriptor;
use crate::image::digest::{Algorithm, Digest, Digester, Mismatch, VerifyingReader};

/// How the names of half-written blobs begin.
const TEMPORARY: &str = "blob-";

/// How many bytes are handled at a time.
const CHUNK: usize = 1 << 16;

/// The blobs of a store. Cheap to clone; may be used from several threads and processes.
#[derive(Debug, Clone)]
pub struct BlobStore {
    blobs: Arc<Path>,
    temporary: Arc<Path>,
}

impl BlobStore {
    pub(super) fn new(blobs: &Path, temporary: &Path) -> Self {
        Self { blobs: blobs.into(), temporary: temporary.into() }
    }

    /// Whether the blob is there, as far as its size tells: half a blob is none.
    #[must_use]
    pub fn contains(&self, blob: &Descriptor) -> bool {
        fs::symlink_metadata(self.path(&blob.digest))
            .is_ok_and(|found| found.is_file() && found.len() == blob.size)
    }

    /// Opens a blob for reading. What is read is not verified: see [`BlobStore::reader`].
    ///
    /// # Errors
    /// [`StoreError::Missing`], or what the system says.
    pub fn open(&self, digest: &Digest) -> Result<File, StoreError> {
        let path = self.path(digest);
        // Nothing but us writes here; but a link or FIFO must not lead elsewhere or wait for ever.
        match OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(&path) {
            Ok(file) if file.metadata().is_ok_and(|found| found.is_file()) => Ok(file),
            Ok(_) => Err(StoreError::Missing(digest.clone())),
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ELOOP)) => {
                Err(StoreError::Missing(digest.clone()))
            }
            Err(error) => Err(StoreError::io("read", &path)(error)),
        }
    }

    /// Opens a blob; reading it ends with an error when it is not what it should be (see [`BlobStore::read_error`]).
    ///
    /// # Errors
    /// [`StoreError::Missing`] also when the size is another.
    pub fn reader(&self, blob: &Descriptor) -> Result<VerifyingReader<File>, StoreError> {
        let file = self.open(&blob.digest)?;
        if file.metadata().is_ok_and(|found| found.len() != blob.size) {
            return Err(StoreError::Missing(blob.digest.clone()));
        }
        Ok(VerifyingReader::new(file, blob.digest.clone(), blob.size))
    }

    /// Reads a whole blob of at most `limit` bytes and verifies it. A damaged one is removed.
    ///
    /// # Errors
    /// [`StoreError::Missing`] and [`StoreError::Corrupt`] where it has to be fetched again.
    pub fn read(&self, blob: &Descriptor, limit: u64) -> Result<Vec<u8>, StoreError> {
        if blob.size > limit {
            return Err(StoreError::TooLarge { digest: blob.digest.clone(), size: blob.size, limit });
        }
        let mut bytes = Vec::new();
        match self.reader(blob)?.read_to_end(&mut bytes) {
            Ok(_) => Ok(bytes),
            Err(error) => Err(self.read_error(&blob.digest, error)),
        }
    }

    /// Turns an error of a [`BlobStore::reader`] into one of the store. Where the blob is damaged it is removed, so that
    /// it will be fetched again.
    #[must_use]
    pub fn read_error(&self, digest: &Digest, error: io::Error) -> StoreError {
        let mismatch = error.get_ref().and_then(|inner| inner.downcast_ref::<Mismatch>()).cloned();
        match mismatch {
            Some(mismatch) => self.remove(digest).err().unwrap_or(StoreError::Corrupt(mismatch)),
            None => StoreError::io("read", &self.path(digest))(error),
        }
    }

    /// Reads a blob to its end; one that is damaged is removed. To be asked when something failed that this may explain.
    ///
    /// # Errors
    /// [`StoreError::Missing`] and [`StoreError::Corrupt`] where it has to be fetched again.
    pub fn check(&self, blob: &Descriptor) -> Result<(), StoreError> {
        match io::copy(&mut self.reader(blob)?, &mut io::sink()) {
            Ok(_) => Ok(()),
            Err(error) => Err(self.read_error(&blob.digest, error)),
        }
    }

    /// Removes a blob, if it is there.
    ///
    /// # Errors
    /// What the system says.
    pub fn remove(&self, digest: &Digest) -> Result<(), StoreError> {
        let path = self.path(digest);
        fs::remove_file(&path).or_else(staged::absent).map_err(StoreError::io("remove", &path))
    }

    /// Begins a new blob.
    ///
    /// # Errors
    /// When no temporary file can be made.
    pub fn writer(&self) -> Result<BlobWriter, StoreError> {
        let file = StagedFile::within(&self.temporary, OsStr::new(TEMPORARY))
            .map_err(StoreError::io("write to", &self.temporary))?;
        let digester = Digester::new(Algorithm::Sha256);
        Ok(BlobWriter { file: BufWriter::with_capacity(CHUNK, file), digester, size: 0, blobs: self.clone() })
    }

    /// Stores bytes.
    ///
    /// # Errors
    /// What the system says.
    pub fn put(&self, bytes: &[u8]) -> Result<Digest, StoreError> {
        let mut writer = self.writer()?;
        writer.write_all(bytes).map_err(StoreError::io("write to", &self.temporary))?;
        Ok(writer.finish()?.0)
    }

    /// Replaces whatever has the name: it may be half a blob, and is the same otherwise.
    ///
    /// Nothing is written out to disk: waiting for that would take longer than most steps, and whatever is lost when the
    /// machine stops can be had again. What is left of a blob then is shorter (file systems write content before sizes),
    /// or another, which is noticed when it is read.
    fn publish(&self, file: StagedFile, digest: &Digest) -> Result<(), StoreError> {
        let path = self.path(digest);
        if digest.algorithm() != Algorithm::Sha256 {
            let dir = staged::parent(&path);
            fs::create_dir_all(dir).map_err(StoreError::io("make", dir))?;
        }
        file.protect().and_then(|()| file.publish_unsynced(&path)).map_err(StoreError::io("write", &path))
    }

    fn path(&self, digest: &Digest) -> PathBuf {
        self.blobs.join(digest.algorithm().name()).join(digest.hex())
    }
}

/// A blob that is being written: nobody sees it before it is complete, and it is gone when it is dropped.
pub struct BlobWriter {
    file: BufWriter<StagedFile>,
    digester: Digester,
    size: u64,
    blobs: BlobStore,
}

impl BlobWriter {
    /// How many bytes were written so far.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Makes the blob visible, provided that it is what was announced.
    ///
    /// # Errors
    /// [`StoreError::Mismatch`] when it is something else, or what the system says.
    pub fn commit(self, expected: &Digest, size: u64) -> Result<(), StoreError> {
        if self.size != size {
            return Err(Mismatch::Size { expected: expected.clone(), size, actual: self.size }.into());
        }
        let (file, digester, blobs) = self.into_parts()?;
        let actual = match expected.algorithm() {
            Algorithm::Sha256 => digester.finish(),
            // Too rare to be hashed with both while writing.
            algorithm @ Algorithm::Sha512 => {
                hash(file.file(), algorithm).map_err(StoreError::io("read", &blobs.temporary))?
            }
        };
        if actual != *expected {
            return Err(Mismatch::Digest { expected: expected.clone(), actual }.into());
        }
        blobs.publish(file, expected)
    }

    /// Makes the blob visible under its own hash; returns that and its size.
    ///
    /// # Errors
    /// What the system says.
    pub fn finish(self) -> Result<(Digest, u64), StoreError> {
        let size = self.size;
        let (file, digester, blobs) = self.into_parts()?;
        let digest = digester.finish();
        blobs.publish(file, &digest)?;
        Ok((digest, size))
    }

    fn into_parts(self) -> Result<(StagedFile, Digester, BlobStore), StoreError> {
        let Self { file, digester, blobs, .. } = self;
        let full =
            |error: io::IntoInnerError<_>| StoreError::io("write to", &blobs.temporary)(error.into_error());
        Ok((file.into_inner().map_err(full)?, digester, blobs))
    }
}

/// The system's error with the file that it is about: who writes a layer sees no more than a [`Write`].
#[derive(Debug, thiserror::Error)]
#[error("cannot write to `{}`", path.display())]
struct WriteError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl BlobWriter {
    fn named<T>(&self, result: io::Result<T>) -> io::Result<T> {
        result.map_err(|source| {
            let path = self.file.get_ref().path().to_owned();
            io::Error::new(source.kind(), WriteError { path, source })
        })
    }
}

impl Write for BlobWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes);
        let count = self.named(written)?;
        self.digester.update(&bytes[..count]);
        self.size += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.file.flush();
        self.named(flushed)
    }
}

fn hash(mut file: &File, algorithm: Algorithm) -> io::Result<Digest> {
    file.seek(SeekFrom::Start(0))?;
    let mut digester = Digester::new(algorithm);
    io::copy(&mut file, &mut digester)?;
    Ok(digester.finish())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::super::Store;
    use super::*;
    use crate::image::descriptor::media_type::OCI_LAYER;

    fn store() -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        (dir, store)
    }

    fn descriptor(bytes: &[u8]) -> Descriptor {
        Descriptor::new(OCI_LAYER, Digest::of(bytes), bytes.len() as u64)
    }

    #[test]
    fn blobs_appear_only_when_they_are_what_was_announced() {
        let (_dir, store) = store();
        let blob = descriptor(b"hello");
        for (bytes, size) in [(&b"hellO"[..], 5), (b"hell", 5), (b"hello", 6), (b"hello!", 5)] {
            let mut writer = store.blobs().writer().unwrap();
            writer.write_all(bytes).unwrap();
            assert!(matches!(writer.commit(&blob.digest, size), Err(StoreError::Mismatch(_))), "{bytes:?}");
            assert!(matches!(store.blobs().open(&blob.digest), Err(StoreError::Missing(_))));
        }
        let mut writer = store.blobs().writer().unwrap();
        writer.write_all(b"hello").unwrap();
        assert!(!store.blobs().contains(&blob));
        writer.commit(&blob.digest, 5).unwrap();
        assert!(store.blobs().contains(&blob));
        let path = store.root().join("blobs/sha256").join(blob.digest.hex());
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o7777, 0o444);
        assert_eq!(fs::read_dir(store.temporary()).unwrap().count(), 0);
    }

    #[test]
    fn sha512_is_verified_too() {
        let (_dir, store) = store();
        let mut digester = Digester::new(Algorithm::Sha512);
        digester.update(b"hello");
        let digest = digester.finish();
        for (bytes, good) in [(b"hellO", false), (b"hello", true)] {
            let mut writer = store.blobs().writer().unwrap();
            writer.write_all(bytes).unwrap();
            assert_eq!(writer.commit(&digest, 5).is_ok(), good);
        }
        assert_eq!(store.blobs().read(&Descriptor::new(OCI_LAYER, digest, 5), 10).unwrap(), b"hello");
    }

    #[test]
    fn half_a_blob_is_none_and_is_replaced() {
        let (_dir, store) = store();
        let blob = descriptor(b"hello");
        let path = store.root().join("blobs/sha256").join(blob.digest.hex());
        fs::write(&path, "hel").unwrap();
        assert!(!store.blobs().contains(&blob));
        assert!(store.blobs().reader(&blob).is_err_and(|error| error.is_absent()));
        assert_eq!(store.blobs().put(b"hello").unwrap(), blob.digest);
        assert_eq!(store.blobs().read(&blob, 5).unwrap(), b"hello");
    }

    #[test]
    fn a_damaged_blob_is_noticed_and_removed() {
        let (_dir, store) = store();
        let blob = descriptor(b"hello");
        fs::write(store.root().join("blobs/sha256").join(blob.digest.hex()), "hellO").unwrap();
        assert!(matches!(store.blobs().read(&blob, 4), Err(StoreError::TooLarge { .. })));
        let error = store.blobs().read(&blob, 5).unwrap_err();
        assert!(matches!(error, StoreError::Corrupt(_)) && error.is_absent());
        assert!(!store.blobs().contains(&blob));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "makes the traps")]
    fn links_and_fifos_are_no_blobs() {
        let (_dir, store) = store();
        let blob = descriptor(b"hello");
        let path = store.root().join("blobs/sha256").join(blob.digest.hex());
        fs::write(store.root().join("hello"), "hello").unwrap();
        std::os::unix::fs::symlink(store.root().join("hello"), &path).unwrap();
        assert!(!store.blobs().contains(&blob));
        assert!(matches!(store.blobs().open(&blob.digest), Err(StoreError::Missing(_))));
        fs::remove_file(&path).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert!(matches!(store.blobs().open(&blob.digest), Err(StoreError::Missing(_))));
    }

    #[test]
    fn many_writers_of_one_blob_do_not_disturb_each_other() {
        let (_dir, store) = store();
        let bytes = vec![7; 1 << 20];
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| store.blobs().put(&bytes).unwrap());
            }
        });
        assert_eq!(store.blobs().read(&descriptor(&bytes), 1 << 20).unwrap(), bytes);
    }
}
