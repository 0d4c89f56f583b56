//! What an entry holds, as 16 bytes: content, target and extended attributes.
//!
//! The hash is XXH3 (128 bits), not a cryptographic one: whoever can write into a tree gains nothing by two contents with
//! one hash but that a change of his own is overlooked.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{Mode, OFlags};
use twox_hash::XxHash3_128;

use crate::layer::changes::of_image;
use crate::layer::{Made, Observer};
use crate::rootfs::content::next_data;
use crate::rootfs::{FileKind, GuestPath, Metadata, Rootfs, metadata_of, xattrs_at};

/// A hash of what an entry holds. Entries that look the same and have the same one are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(in crate::store) struct Fingerprint([u64; 2]);

impl Fingerprint {
    fn of(hasher: &XxHash3_128) -> Self {
        let hash = hasher.finish_128();
        Self([(hash >> 64) as u64, hash as u64])
    }

    fn bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.0[0].to_le_bytes());
        bytes[8..].copy_from_slice(&self.0[1].to_le_bytes());
        bytes
    }
}

/// Zeros are hashed in pieces of this many bytes, of which those that are nothing else are left out: a hole costs nothing,
/// and is the same as zeros.
const PIECE: usize = 1 << 16;
const ZEROS: &[u8; PIECE] = &[0; PIECE];

/// The hash of a content that comes bit by bit.
struct ContentHasher {
    hasher: XxHash3_128,
    position: u64,
    /// Whether the piece at `position` has had something else than zeros.
    begun: bool,
}

impl ContentHasher {
    fn new() -> Self {
        Self { hasher: XxHash3_128::new(), position: 0, begun: false }
    }

    fn in_piece(&self) -> usize {
        // Less than a piece.
        (self.position % PIECE as u64) as usize
    }

    fn write(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let before = self.in_piece();
            let (now, later) = bytes.split_at(bytes.len().min(PIECE - before));
            if !self.begun && now != &ZEROS[..now.len()] {
                self.hasher.write(&(self.position / PIECE as u64).to_le_bytes());
                self.hasher.write(&ZEROS[..before]);
                self.begun = true;
            }
            if self.begun {
                self.hasher.write(now);
            }
            self.advance(now.len() as u64);
            bytes = later;
        }
    }

    fn zeros(&mut self, mut count: u64) {
        if self.begun {
            let rest = count.min((PIECE - self.in_piece()) as u64);
            self.hasher.write(&ZEROS[..rest as usize]);
            self.advance(rest);
            count -= rest;
        }
        self.advance(count);
    }

    fn advance(&mut self, count: u64) {
        let piece = self.position / PIECE as u64;
        self.position += count;
        self.begun &= self.position / PIECE as u64 == piece;
    }

    fn finish(mut self) -> Fingerprint {
        self.hasher.write(&self.position.to_le_bytes());
        Fingerprint::of(&self.hasher)
    }
}

/// The content of files that this process has written, by their number.
#[derive(Default)]
pub struct Seen {
    current: Option<ContentHasher>,
    files: Vec<(u64, Fingerprint)>,
    /// So many of them are sorted, and each there once.
    settled: usize,
    with_xattrs: BTreeSet<u64>,
}

impl std::fmt::Debug for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seen").field("files", &self.files.len()).finish_non_exhaustive()
    }
}

/// What [`Seen`] knows of a file.
pub(super) struct SeenFile {
    content: Fingerprint,
    has_xattrs: bool,
}

impl Seen {
    const UNSETTLED: usize = 1 << 16;

    /// Numbers of removed files are used again: what was seen last counts.
    pub(crate) fn settle(&mut self) {
        self.files.reverse();
        // Stable, so that of equal numbers the latest comes first and is kept.
        self.files.sort_by_key(|(inode, _)| *inode);
        self.files.dedup_by_key(|(inode, _)| *inode);
        self.settled = self.files.len();
    }

    pub(super) fn file(&self, inode: u64) -> Option<SeenFile> {
        let position = self.files[..self.settled].binary_search_by_key(&inode, |(inode, _)| *inode).ok()?;
        Some(SeenFile { content: self.files[position].1, has_xattrs: self.with_xattrs.contains(&inode) })
    }
}

impl Observer for Seen {
    fn content(&mut self, bytes: &[u8]) {
        self.current.get_or_insert_with(ContentHasher::new).write(bytes);
    }

    fn made(&mut self, made: &Made<'_>) -> io::Result<()> {
        let Some(file) = made.file else { return Ok(()) };
        let content = self.current.take().unwrap_or_else(ContentHasher::new).finish();
        let inode = metadata_of(file)?.inode;
        self.files.push((inode, content));
        if made.entry.xattrs.is_empty() {
            self.with_xattrs.remove(&inode);
        } else {
            self.with_xattrs.insert(inode);
        }
        // Layers that replace the files of those below would else be remembered all.
        if self.files.len() - self.settled > Self::UNSETTLED.max(self.settled) {
            self.settle();
        }
        Ok(())
    }
}

/// An entry whose fingerprint is wanted.
pub(super) struct Place<'a> {
    pub(super) tree: &'a Rootfs,
    /// The path of the directory in the tree.
    pub(super) parent: &'a GuestPath,
    pub(super) directory: BorrowedFd<'a>,
    pub(super) name: &'a [u8],
    pub(super) metadata: &'a Metadata,
}

impl Place<'_> {
    /// Content or target, and attributes. `seen` may know the file; `opened` counts those that were read.
    pub(super) fn fingerprint(
        &self,
        seen: Option<SeenFile>,
        buffer: &mut [u8],
        opened: &mut u64,
    ) -> io::Result<Fingerprint> {
        let mut has_xattrs = true;
        let held = match self.metadata.kind {
            FileKind::File => {
                if let Some(seen) = seen {
                    has_xattrs = seen.has_xattrs;
                    Some(seen.content)
                } else if self.metadata.size == 0 {
                    Some(ContentHasher::new().finish())
                } else {
                    *opened += 1;
                    Some(content_of(&self.open()?, self.metadata.size, buffer)?)
                }
            }
            FileKind::Symlink => {
                let target = rustix::fs::readlinkat(self.directory, self.name, Vec::new())?;
                let mut hasher = ContentHasher::new();
                hasher.write(target.as_bytes());
                Some(hasher.finish())
            }
            _ => None,
        };
        let mut xattrs = if has_xattrs { xattrs_at(self.directory, self.name)? } else { Default::default() };
        self.tree.reveal_xattrs_in(self.parent, self.name, &mut xattrs);
        let mut attributes = of_image(&xattrs).peekable();
        if attributes.peek().is_none() {
            return Ok(held.unwrap_or_default());
        }
        let mut hasher = XxHash3_128::new();
        hasher.write(&held.unwrap_or_default().bytes());
        for text in attributes.flat_map(|(key, value)| [key, value]) {
            hasher.write(&(text.len() as u64).to_le_bytes());
            hasher.write(text);
        }
        Ok(Fingerprint::of(&hasher))
    }

    fn open(&self) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(self.directory, self.name, flags, Mode::empty())?.into())
    }
}

/// Smaller files are not asked for their holes.
const WORTH_ASKING: u64 = 1 << 20;

/// The hash of the content of `file`, which nothing has been read of, of `size` bytes.
pub(in crate::store) fn content_of(file: &File, size: u64, buffer: &mut [u8]) -> io::Result<Fingerprint> {
    let mut hasher = ContentHasher::new();
    if size >= WORTH_ASKING {
        while let Some((start, end)) = next_data(file, hasher.position, size)? {
            hasher.zeros(start - hasher.position);
            while hasher.position < end {
                let rest = usize::try_from(end - hasher.position).unwrap_or(usize::MAX);
                let wanted = buffer.len().min(rest);
                let count = file.read_at(&mut buffer[..wanted], hasher.position)?;
                if count == 0 {
                    return Ok(hasher.finish());
                }
                hasher.write(&buffer[..count]);
            }
        }
        hasher.zeros(size.saturating_sub(hasher.position));
        return Ok(hasher.finish());
    }
    let mut file = file;
    loop {
        match file.read(buffer) {
            Ok(0) => return Ok(hasher.finish()),
            Ok(count) => hasher.write(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(pieces: &[&[u8]]) -> Fingerprint {
        let mut hasher = ContentHasher::new();
        for piece in pieces {
            hasher.write(piece);
        }
        hasher.finish()
    }

    #[test]
    fn a_hash_depends_on_the_content_and_not_on_how_it_comes() {
        let content: Vec<u8> =
            [&b"x"[..], &[0; 3 * PIECE], b"y", &[0; PIECE / 2], b"z", &[0; PIECE * 2]].concat();
        let whole = hash(&[&content]);
        for cut in [1, 2, 100, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, 3 * PIECE + 2, content.len()] {
            let (a, b) = content.split_at(cut);
            assert_eq!(hash(&[a, b]), whole, "{cut}");
        }
        let mut with_holes = ContentHasher::new();
        with_holes.write(b"x");
        with_holes.zeros(3 * PIECE as u64);
        with_holes.write(b"y");
        with_holes.zeros(1);
        with_holes.zeros(PIECE as u64 / 2 - 1);
        with_holes.write(b"z");
        with_holes.zeros(2 * PIECE as u64);
        assert_eq!(with_holes.finish(), whole);
    }

    #[test]
    fn other_contents_have_other_hashes() {
        let zeros = [0; 2 * PIECE];
        let contents: Vec<Vec<u8>> = vec![
            b"".to_vec(),
            b"\0".to_vec(),
            b"\0\0".to_vec(),
            b"x".to_vec(),
            b"\0x".to_vec(),
            zeros.to_vec(),
            [&zeros[..], b"x"].concat(),
            [&b"x"[..], &zeros].concat(),
            [&zeros[..PIECE], b"x", &zeros[..PIECE]].concat(),
        ];
        for (position, one) in contents.iter().enumerate() {
            for other in &contents[..position] {
                assert_ne!(hash(&[one]), hash(&[other]));
            }
        }
    }

    #[test]
    fn a_file_with_holes_is_read_around_them() {
        let directory = tempfile::tempdir().unwrap();
        let file = std::fs::OpenOptions::new()
            .create_new(true)
            .read(true)
            .write(true)
            .open(directory.path().join("f"))
            .unwrap();
        // So much that reading it would take an hour.
        let size = 8 << 40;
        file.set_len(size).unwrap();
        file.write_all_at(b"x", (4 << 40) + 7).unwrap();
        let mut expected = ContentHasher::new();
        expected.zeros((4 << 40) + 7);
        expected.write(b"x");
        expected.zeros(size - expected.position);
        assert_eq!(content_of(&file, size, &mut [0; 4096]).unwrap(), expected.finish());
    }
}
