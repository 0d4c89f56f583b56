//! Parts of files that were never written, and need not be read either.

use std::fs::File;
use std::io;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

/// Beginning and end of the next part of a file, from `from` on, that is no hole.
pub(super) fn next_data(file: &File, from: u64) -> io::Result<Option<(u64, u64)>> {
    let start = match rustix::fs::seek(file, SeekFrom::Data(from)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        // A file system that knows no holes.
        Err(Errno::INVAL) => return Ok((from < file.metadata()?.len()).then_some((from, u64::MAX))),
        Err(error) => return Err(error.into()),
    };
    Ok(Some((start, rustix::fs::seek(file, SeekFrom::Hole(start))?)))
}
