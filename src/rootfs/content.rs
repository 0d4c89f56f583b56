//! Writing the content of a file so that long runs of zeros take no room.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

/// The longest run of zeros that is looked for at once, in bytes.
const LONGEST: usize = 1 << 17;

static ZEROS: [u8; LONGEST] = [0; LONGEST];

/// A new file that is being filled from its start to its end. Blocks of zeros become holes: an archive of a megabyte can
/// hold gigabytes of them.
#[derive(Debug)]
pub struct ContentWriter {
    file: OwnedFd,
    /// Zeros that come next and are not in the file yet.
    hole: u64,
    /// Where the file ends with them.
    end: u64,
}

impl ContentWriter {
    /// Fills the empty file `file`.
    #[must_use]
    pub fn new(file: OwnedFd) -> Self {
        Self { file, hole: 0, end: 0 }
    }

    /// Goes on at `start` with a file that is empty from there on.
    ///
    /// # Errors
    /// Those of lseek(2).
    pub fn at(file: OwnedFd, start: u64) -> io::Result<Self> {
        rustix::fs::seek(&file, SeekFrom::Start(start))?;
        Ok(Self { file, hole: 0, end: start })
    }

    /// Leaves out `count` zeros.
    pub fn skip(&mut self, count: u64) {
        self.hole += count;
        self.end += count;
    }

    /// Writes the next bytes.
    ///
    /// # Errors
    /// Those of write(2) and lseek(2).
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        for chunk in bytes.chunks(LONGEST) {
            self.end += chunk.len() as u64;
            // Less than a block is not worth a seek.
            if chunk.len() >= 4096 && *chunk == ZEROS[..chunk.len()] {
                self.hole += chunk.len() as u64;
                continue;
            }
            if self.hole > 0 {
                rustix::fs::seek(&self.file, SeekFrom::Current(self.hole.cast_signed()))?;
                self.hole = 0;
            }
            write_all(&self.file, chunk)?;
        }
        Ok(())
    }

    /// Ends the file and gives it back.
    ///
    /// # Errors
    /// Those of ftruncate(2).
    pub fn finish(self) -> io::Result<OwnedFd> {
        if self.hole > 0 {
            rustix::fs::ftruncate(&self.file, self.end)?;
        }
        Ok(self.file)
    }
}

/// Beginning and end of the next part of a file of `size` bytes, from `from` on, that is no hole.
///
/// # Errors
/// Those of lseek(2).
pub(crate) fn next_data(file: &File, from: u64, size: u64) -> io::Result<Option<(u64, u64)>> {
    if from >= size {
        return Ok(None);
    }
    let start = match rustix::fs::seek(file, SeekFrom::Data(from)) {
        Ok(start) => start,
        // Nothing but a hole is left.
        Err(Errno::NXIO) => return Ok(None),
        // A file system that knows no holes.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((from, size))),
        Err(error) => return Err(error.into()),
    };
    if start >= size {
        return Ok(None);
    }
    match rustix::fs::seek(file, SeekFrom::Hole(start)) {
        Ok(end) => Ok(Some((start, end.min(size)))),
        // It became shorter meanwhile: whoever reads notices.
        Err(Errno::NXIO) => Ok(Some((start, size))),
        Err(error) => Err(error.into()),
    }
}

/// What became of an attempt to copy a part of a file within the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InKernel {
    /// So many bytes were copied, as a reference where the file system shares blocks; at least one.
    Copied(u64),
    /// Not this part: the file ends here, or the file system only claims that it can do this.
    NotThis,
    /// No file of these file systems.
    NotHere,
}

/// Copies at most `most` bytes from `position` on to the same place of `target` (copy_file_range(2)).
///
/// # Errors
/// Those that reading and writing would have as well.
pub(crate) fn copy_in_kernel(source: &File, target: &File, position: u64, most: u64) -> io::Result<InKernel> {
    let length = usize::try_from(most).unwrap_or(usize::MAX);
    loop {
        let (mut from, mut to) = (position, position);
        return match rustix::fs::copy_file_range(source, Some(&mut from), target, Some(&mut to), length) {
            Ok(count) if count > 0 => Ok(InKernel::Copied(count as u64)),
            Err(Errno::INTR) => continue,
            Ok(_) | Err(Errno::INVAL | Errno::PERM | Errno::TXTBSY) => Ok(InKernel::NotThis),
            Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::XDEV) => Ok(InKernel::NotHere),
            Err(error) => Err(error.into()),
        };
    }
}

/// Whether two files, of which nothing has been read yet, have the same content.
///
/// # Errors
/// Those of read(2).
pub fn same(one: &File, other: &File) -> io::Result<bool> {
    let (mut left, mut right) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        let count = read_full(one, &mut left)?;
        if read_full(other, &mut right)? != count || left[..count] != right[..count] {
            return Ok(false);
        }
        if count < left.len() {
            return Ok(true);
        }
    }
}

/// Reads until `buffer` is full or the file ends.
///
/// # Errors
/// Those of reading.
pub(crate) fn read_full(mut file: impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

fn write_all(file: &OwnedFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(file, bytes) {
            // A regular file takes something or fails.
            Ok(0) => return Err(Errno::IO.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn data_is_what_is_no_hole_up_to_the_size() {
        use std::os::unix::fs::FileExt;
        let file = tempfile::tempfile().unwrap();
        file.set_len(3 << 20).unwrap();
        file.write_all_at(&[1; 1 << 16], 1 << 20).unwrap();
        let data = Some((1 << 20, (1 << 20) + (1 << 16)));
        assert_eq!(next_data(&file, 0, 3 << 20).unwrap(), data);
        assert_eq!(next_data(&file, 1 << 20, (1 << 20) + 5).unwrap(), Some((1 << 20, (1 << 20) + 5)));
        assert_eq!(next_data(&file, 2 << 20, 3 << 20).unwrap(), None);
        assert_eq!(next_data(&file, 0, 1 << 20).unwrap(), None);
        // Shorter by now than it was.
        assert_eq!(next_data(&file, 4 << 20, 5 << 20).unwrap(), None);
    }

    #[test]
    fn files_are_the_same_to_their_last_byte() {
        let file = |bytes: &[u8]| {
            let mut file = tempfile::tempfile().unwrap();
            std::io::Write::write_all(&mut file, bytes).unwrap();
            std::io::Seek::rewind(&mut file).unwrap();
            file
        };
        let long = vec![7; (1 << 17) + 5];
        let mut other = long.clone();
        other[1 << 17] = 8;
        let contents = [&b""[..], b"a", b"b", b"ab", &long[..1 << 16], &long[..(1 << 16) + 1], &long, &other];
        for (position, one) in contents.iter().enumerate() {
            for (number, content) in contents.iter().enumerate() {
                let (one, content) = (file(one), file(content));
                assert_eq!(same(&one, &content).unwrap(), position == number, "{position} {number}");
            }
        }
    }

    #[test]
    fn what_was_written_is_in_the_file_and_zeros_take_no_room() {
        let directory = tempfile::tempdir().unwrap();
        for (number, lengths) in [
            &[][..],
            &[(0u8, 1usize)],
            &[(0, 3 << 20)],
            &[(1, 100), (0, 1 << 20), (2, 5000), (0, 4095), (3, 1)],
            &[(0, 1 << 20), (1, 1 << 18), (0, (1 << 20) + 77)],
        ]
        .into_iter()
        .enumerate()
        {
            let path = directory.path().join(number.to_string());
            let mut writer = ContentWriter::new(std::fs::File::create_new(&path).unwrap().into());
            let mut expected = Vec::new();
            for (byte, length) in lengths {
                let bytes = vec![*byte; *length];
                writer.write(&bytes).unwrap();
                expected.extend(bytes);
            }
            writer.finish().unwrap();
            assert!(std::fs::read(&path).unwrap() == expected, "{number}");
            let room = std::fs::metadata(&path).unwrap().blocks() * 512;
            let needed =
                lengths.iter().filter(|(byte, _)| *byte != 0).map(|(_, length)| *length as u64 + 9000);
            let needed = needed.sum::<u64>() + if expected.len() < 4096 { 4096 } else { 0 };
            assert!(room <= needed, "{number}: {room} > {needed}");
        }
    }
}
