//! When something elsewhere was changed: for who takes that for the present.

use std::io;

use super::remote::Remotes;
use crate::build::remote::Remote;
use crate::build::services::ServiceError;
use crate::context::{FileTimes, GitSource, UrlSource};
use crate::image::digest::Digest;
use crate::layer::tar::Reader;
use crate::layer::{Formats, Limits, decompress};
use crate::rootfs::metadata_of;
use crate::sandbox::Cancel;

impl Remotes<'_> {
    /// When `remote` was changed last, in seconds since 1970: a repository when the commit was made, a file when the server
    /// says so, or else when the newest file in it was changed, if it is an archive. None where nobody says it.
    ///
    /// # Errors
    /// When it cannot be had.
    pub fn changed(
        &self,
        remote: &Remote,
        limits: &Limits,
        cancel: &Cancel,
    ) -> Result<Option<i64>, ServiceError> {
        match remote {
            Remote::Git(source) => self.commit_time(source, cancel).map(Some),
            Remote::File { url, checksum } => self.file_time(url, checksum.as_ref(), limits, cancel),
        }
    }

    /// A checkout may have the time of the commit in all of its files.
    fn commit_time(&self, source: &GitSource, cancel: &Cancel) -> Result<i64, ServiceError> {
        let dated = GitSource { times: FileTimes::Commit, ..source.clone() };
        Ok(metadata_of(&self.tree(&dated, cancel)?)?.mtime.seconds)
    }

    fn file_time(
        &self,
        url: &UrlSource,
        checksum: Option<&Digest>,
        limits: &Limits,
        cancel: &Cancel,
    ) -> Result<Option<i64>, ServiceError> {
        let file = self.file(url, checksum, cancel)?;
        if file.modified.is_some() {
            return Ok(file.modified);
        }
        let archive = decompress(self.stored(&file)?, Formats::Archive, limits)?;
        let mut entries = Reader::new(archive, limits);
        let mut newest = None;
        loop {
            if cancel.is_cancelled() {
                return Err(io::Error::other("stopped").into());
            }
            match entries.next_entry() {
                Ok(Some(entry)) => newest = newest.max(Some(entry.mtime.seconds)),
                Ok(None) => return Ok(newest),
                // It is no archive, or one that nobody will extract.
                Err(_) => return Ok(None),
            }
        }
    }
}
