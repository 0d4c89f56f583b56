//! The bytes of a file from one descriptor to another.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::rootfs::content::{InKernel, copy_in_kernel, next_data};
use crate::rootfs::{Metadata, metadata_of};

/// Why bytes did not arrive.
#[derive(Debug)]
pub(super) enum ContentError {
    /// The file is no longer as it was when it was opened.
    Changed,
    Read(io::Error),
    Write(io::Error),
}

/// Copies what `source` held when it had `metadata` to the empty file `target`: within the kernel where possible, as a
/// reference where the file system shares blocks, and with its holes. What fits into `buffer`, which must not be empty,
/// goes through that.
///
/// # Errors
/// When something fails, or `source` got another size or time meanwhile.
pub(super) fn copy(
    source: &File,
    metadata: &Metadata,
    target: &File,
    buffer: &mut [u8],
) -> Result<(), ContentError> {
    let size = metadata.size;
    let mut position = 0;
    if size <= buffer.len() as u64 {
        copy_through_memory(source, target, 0, size, buffer)?;
        position = size;
    }
    while let Some((start, end)) = next_data(source, position, size).map_err(ContentError::Read)? {
        copy_range(source, target, start, end, buffer)?;
        position = end;
    }
    if position < size {
        target.set_len(size).map_err(ContentError::Write)?;
    }
    let after = metadata_of(source).map_err(ContentError::Read)?;
    if (after.size, after.mtime) == (size, metadata.mtime) { Ok(()) } else { Err(ContentError::Changed) }
}

fn copy_range(
    source: &File,
    target: &File,
    mut position: u64,
    end: u64,
    buffer: &mut [u8],
) -> Result<(), ContentError> {
    while position < end {
        match copy_in_kernel(source, target, position, end - position).map_err(ContentError::Write)? {
            InKernel::Copied(count) => position += count,
            InKernel::NotThis | InKernel::NotHere => {
                return copy_through_memory(source, target, position, end, buffer);
            }
        }
    }
    Ok(())
}

fn copy_through_memory(
    source: &File,
    target: &File,
    mut position: u64,
    end: u64,
    buffer: &mut [u8],
) -> Result<(), ContentError> {
    while position < end {
        let length = usize::try_from(end - position).unwrap_or(usize::MAX).min(buffer.len());
        let count = match source.read_at(&mut buffer[..length], position) {
            Ok(0) => return Err(ContentError::Changed),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(ContentError::Read(error)),
        };
        target.write_all_at(&buffer[..count], position).map_err(ContentError::Write)?;
        position += count as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn copied(bytes: &[u8], change: impl Fn(&mut Metadata)) -> Result<Vec<u8>, ContentError> {
        let (mut source, target) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        source.write_all(bytes).unwrap();
        let mut metadata = metadata_of(&source).unwrap();
        change(&mut metadata);
        copy(&source, &metadata, &target, &mut [0; 4])?;
        // Once more with a buffer that takes all of it.
        let again = tempfile::tempfile().unwrap();
        copy(&source, &metadata, &again, &mut [0; 64])?;
        assert_eq!(again.metadata().unwrap().len(), target.metadata().unwrap().len());
        let mut copied = vec![0; usize::try_from(target.metadata().unwrap().len()).unwrap()];
        target.read_exact_at(&mut copied, 0).unwrap();
        Ok(copied)
    }

    #[test]
    fn a_file_that_changes_meanwhile_is_an_error() {
        assert_eq!(copied(b"hello", |_| {}).unwrap(), b"hello");
        assert_eq!(copied(b"", |_| {}).unwrap(), b"");
        // It grew, shrank, or was written to after it was looked at.
        assert!(matches!(copied(b"hello", |before| before.size = 3), Err(ContentError::Changed)));
        assert!(matches!(copied(b"hello", |before| before.size = 9), Err(ContentError::Changed)));
        assert!(matches!(copied(b"hello", |before| before.mtime.seconds -= 1), Err(ContentError::Changed)));
    }

    #[test]
    fn memory_serves_where_the_kernel_cannot_copy() {
        let (mut source, target) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let bytes: Vec<u8> = (0..300_000u32).map(|number| number as u8).collect();
        source.write_all(&bytes).unwrap();
        copy_through_memory(&source, &target, 0, 300_000, &mut [0; 70_000]).unwrap();
        let mut copied = vec![0; bytes.len()];
        target.read_exact_at(&mut copied, 0).unwrap();
        assert_eq!(copied, bytes);
        assert!(matches!(
            copy_through_memory(&source, &target, 0, 300_001, &mut [0; 70_000]),
            Err(ContentError::Changed)
        ));
    }

    #[test]
    fn holes_stay_holes() {
        let (source, target) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        source.write_all_at(b"middle", 1 << 30).unwrap();
        source.set_len(1 << 40).unwrap();
        copy(&source, &metadata_of(&source).unwrap(), &target, &mut [0; 4096]).unwrap();
        let metadata = target.metadata().unwrap();
        assert_eq!(metadata.len(), 1 << 40);
        assert!(metadata.blocks() * 512 < 1 << 24, "{} blocks", metadata.blocks());
        let mut middle = [0; 6];
        target.read_exact_at(&mut middle, 1 << 30).unwrap();
        assert_eq!(&middle, b"middle");
    }
}
