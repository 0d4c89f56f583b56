//! Reading tar archives: ustar, PAX, GNU and old ones, as Go's `archive/tar` understands them.
//!
//! Nothing is allocated from a length that the archive claims; an extension of an entry (a long name, PAX records, a sparse
//! map) is limited.

use std::io::{self, Read};

use super::Limits;
use super::pax::{Pax, PaxError};
use super::sparse::{ImpossibleMap, MapPlace, MapText, Part, SparseContent, SparseMap};
use crate::limit::Limit;
use crate::rootfs::{Escaped, Owner, Timestamp, Xattrs};

/// The unit of tar.
pub const BLOCK: usize = 512;

/// The largest halves of a Linux device number: 12 and 20 bits.
const MAX_MAJOR: u32 = 0xfff;
const MAX_MINOR: u32 = 0xf_ffff;

/// Why an archive cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TarError {
    /// The bytes could not be had, or could not be decompressed.
    #[error("cannot read the archive")]
    Read(#[source] io::Error),
    /// The archive ends in the middle of something.
    #[error("the archive ends in the middle of an entry, after {0} bytes")]
    Truncated(u64),
    /// The archive is larger than allowed.
    #[error("the archive is larger than the limit of {value} bytes; {0}", value = .0.value)]
    TooLarge(Limit),
    /// A header cannot be believed.
    #[error("tar header of `{name}` at byte {offset}")]
    Header {
        /// The name in that header.
        name: Escaped,
        /// Where it starts in the uncompressed archive.
        offset: u64,
        /// What is wrong.
        #[source]
        problem: HeaderProblem,
    },
}

/// What is wrong with a header.
#[derive(Debug, thiserror::Error)]
pub enum HeaderProblem {
    /// The sum of the bytes is another: this is no tar archive, or it is damaged.
    #[error("the checksum is wrong")]
    Checksum,
    /// A number that is none or out of range.
    #[error("the field `{0}` has an impossible value")]
    Number(&'static str),
    /// An entry of a kind that layers do not have.
    #[error("unknown type `{}`", .0.escape_ascii())]
    Type(u8),
    /// An extension too large to be honest.
    #[error("an extension of {0} bytes is larger than the limit of {value} bytes; {1}", value = .1.value)]
    Extension(u64, Limit),
    /// Two extended headers for one entry: readers differ on which counts.
    #[error("two PAX headers in a row")]
    TwoPax,
    /// Extensions, and then nothing to extend.
    #[error("an extension is not followed by an entry")]
    Dangling,
    /// A single empty block, and then more: readers differ on where the archive ends.
    #[error("data after an empty block")]
    AfterEnd,
    /// A sparse map that contradicts itself.
    #[error(transparent)]
    Sparse(#[from] ImpossibleMap),
    /// Records of a sparse file for an entry that is none, or is one by its header.
    #[error("`GNU.sparse` records of what is not a regular file")]
    SparseKind,
    /// PAX records.
    #[error(transparent)]
    Pax(#[from] PaxError),
}

/// What an entry makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// One more name for a file.
    HardLink,
    /// A symbolic link.
    Symlink,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
    /// A directory.
    Directory,
    /// A named pipe.
    Fifo,
}

/// One entry, all its extensions applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name as it stands in the archive: possibly absolute, empty or with `..`, but without NUL.
    pub path: Vec<u8>,
    /// What it makes.
    pub kind: EntryKind,
    /// Permission bits, at most 0o7777.
    pub mode: u32,
    /// Numeric owner; names of users are ignored, as they mean nothing here.
    pub owner: Owner,
    /// Modification time.
    pub mtime: Timestamp,
    /// Bytes that reading the entry gives; 0 for everything but files.
    pub size: u64,
    /// Target of a link as it stands in the archive, else empty.
    pub link: Vec<u8>,
    /// Major and minor number of a device, else 0.
    pub device: (u32, u32),
    /// Extended attributes.
    pub xattrs: Xattrs,
}

/// Reads the entries of an archive one after the other; as a [`Read`], the content of the current one.
pub struct Reader<R> {
    inner: R,
    /// Bytes taken from `inner`.
    position: u64,
    limit: Limit,
    extension_limit: Limit,
    /// Stored bytes of the current entry that are not read yet, and the padding behind them.
    left: u64,
    padding: u64,
    sparse: Option<SparseContent>,
    ended: bool,
}

/// Extensions that wait for their entry.
#[derive(Default)]
struct Pending {
    pax: Option<Pax>,
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
}

impl<R: Read> Reader<R> {
    /// Reads `inner`; of `limits`, those of all bytes and of an extension's count.
    pub fn new(inner: R, limits: &Limits) -> Self {
        Self {
            inner,
            position: 0,
            limit: limits.bytes,
            extension_limit: limits.extension,
            left: 0,
            padding: 0,
            sparse: None,
            ended: false,
        }
    }

    /// How many bytes of the archive were read.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Goes to the next entry, over what is left of the current one; none at the end. Archives without the two empty
    /// blocks at their end are accepted.
    ///
    /// # Errors
    /// [`TarError`]; reading on makes no sense then.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, TarError> {
        let mut pending = Pending::default();
        loop {
            self.skip_content()?;
            let offset = self.position;
            let Some(block) = self.read_header()? else {
                let dangling = pending.pax.is_some() || pending.name.is_some() || pending.link.is_some();
                return if dangling { Err(problem(&[], offset, HeaderProblem::Dangling)) } else { Ok(None) };
            };
            let header = Header(&block);
            let result = match header.type_flag() {
                b'x' | b'g' | b'L' | b'K' => self.take_extension(&header, &mut pending).map(|()| None),
                _ => self.entry(&header, std::mem::take(&mut pending)).map(Some),
            };
            match result {
                Ok(Some(entry)) => return Ok(Some(entry)),
                Ok(None) => {}
                Err(Failure::Read(error)) => return Err(error),
                Err(Failure::Header(cause)) => return Err(problem(&header.name(), offset, cause)),
            }
        }
    }

    /// Reads whatever comes after the last entry, so that a reader below can check all bytes.
    ///
    /// # Errors
    /// When reading fails or the limit is reached.
    pub fn drain(&mut self) -> Result<(), TarError> {
        let mut buffer = vec![0; 1 << 16];
        while self.read_some(&mut buffer)? != 0 {}
        Ok(())
    }

    /// The only place that takes bytes.
    fn read_some(&mut self, buffer: &mut [u8]) -> Result<usize, TarError> {
        loop {
            match self.inner.read(buffer) {
                Ok(count) => {
                    self.position += count as u64;
                    if self.limit.is_exceeded_by(self.position) {
                        return Err(TarError::TooLarge(self.limit));
                    }
                    return Ok(count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(TarError::Read(error)),
            }
        }
    }

    /// Fills `buffer` as far as the archive goes.
    fn read_up_to(&mut self, buffer: &mut [u8]) -> Result<usize, TarError> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.read_some(&mut buffer[filled..])? {
                0 => break,
                count => filled += count,
            }
        }
        Ok(filled)
    }

    fn skip_content(&mut self) -> Result<(), TarError> {
        self.sparse = None;
        let mut buffer = [0; 8192];
        while self.left + self.padding > 0 {
            let want = (self.left + self.padding).min(buffer.len() as u64) as usize;
            let got = self.read_some(&mut buffer[..want])? as u64;
            if got == 0 {
                // Some writers leave out the last padding.
                self.padding = 0;
                return if self.left == 0 { Ok(()) } else { Err(TarError::Truncated(self.position)) };
            }
            let content = got.min(self.left);
            self.left -= content;
            self.padding -= got - content;
        }
        Ok(())
    }

    fn read_header(&mut self) -> Result<Option<[u8; BLOCK]>, TarError> {
        if self.ended {
            return Ok(None);
        }
        let mut block = [0; BLOCK];
        let offset = self.position;
        match self.read_up_to(&mut block)? {
            0 => self.ended = true,
            BLOCK if block != [0; BLOCK] => return Ok(Some(block)),
            BLOCK => {
                self.ended = true;
                let second = self.read_up_to(&mut block)?;
                if block[..second].iter().any(|byte| *byte != 0) {
                    return Err(problem(&[], offset, HeaderProblem::AfterEnd));
                }
            }
            _ => return Err(TarError::Truncated(self.position)),
        }
        Ok(None)
    }

    fn begin_content(&mut self, stored: u64) {
        self.left = stored;
        self.padding = stored.wrapping_neg() % BLOCK as u64;
    }

    /// The body of an extension header, which describes itself by its own size field only.
    fn extension(&mut self, header: &Header<'_>) -> Result<Vec<u8>, Failure> {
        let size = header.size()?;
        self.check_extension(size)?;
        self.begin_content(size);
        let mut body = Vec::new();
        // Grows with what is there, not with what is claimed.
        let mut chunk = [0; 4096];
        while self.left > 0 {
            let want = self.left.min(chunk.len() as u64) as usize;
            let got = self.read_some(&mut chunk[..want])?;
            if got == 0 {
                return Err(TarError::Truncated(self.position).into());
            }
            body.extend_from_slice(&chunk[..got]);
            self.left -= got as u64;
        }
        Ok(body)
    }

    fn take_extension(&mut self, header: &Header<'_>, pending: &mut Pending) -> Result<(), Failure> {
        let body = self.extension(header)?;
        match header.type_flag() {
            b'x' if pending.pax.is_some() => return Err(HeaderProblem::TwoPax.into()),
            b'x' => pending.pax = Some(Pax::parse(&body).map_err(HeaderProblem::Pax)?),
            b'L' => pending.name = Some(until_nul(&body).to_vec()),
            b'K' => pending.link = Some(until_nul(&body).to_vec()),
            _ => Pax::check_global(&body).map_err(HeaderProblem::Pax)?,
        }
        Ok(())
    }

    fn entry(&mut self, header: &Header<'_>, pending: Pending) -> Result<Entry, Failure> {
        let pax = pending.pax.unwrap_or_default();
        // Before all others, as in GNU tar and in Go: the other names of a sparse file are made up.
        let (sparse_name, sparse) = pax.sparse.map(|sparse| (sparse.name, (sparse.size, sparse.map))).unzip();
        let path = sparse_name
            .flatten()
            .or(pending.name.filter(|name| !name.is_empty()))
            .or(pax.path)
            .unwrap_or_else(|| header.name());
        let link =
            pending.link.filter(|name| !name.is_empty()).or(pax.linkpath).unwrap_or_else(|| header.link());
        let kind = header.kind(&path)?;
        if sparse.is_some() && (kind != EntryKind::File || header.type_flag() == b'S') {
            return Err(HeaderProblem::SparseKind.into());
        }
        let owner = Owner {
            uid: pax.uid.map_or_else(|| header.id("uid", 108), Ok)?,
            gid: pax.gid.map_or_else(|| header.id("gid", 116), Ok)?,
        };
        let mtime = match pax.mtime {
            Some(mtime) => mtime,
            None => Timestamp { seconds: header.number("mtime", 136, 12)?, nanoseconds: 0 },
        };
        let mut size = 0;
        // Everything else has no content, whatever its size says (Go: `isHeaderOnly`).
        if kind == EntryKind::File {
            size = pax.size.map_or_else(|| header.size(), Ok)?;
            self.begin_content(size);
            if header.type_flag() == b'S' {
                size = self.read_sparse_map(header)?;
            } else if let Some((real_size, map)) = sparse {
                let map = match map {
                    MapPlace::Records(map) => map,
                    MapPlace::Content => self.read_map_text()?,
                };
                self.sparse = Some(map.content(real_size, self.left)?);
                size = real_size;
            }
        }
        let is_link = matches!(kind, EntryKind::HardLink | EntryKind::Symlink);
        let device = match kind {
            EntryKind::CharDevice | EntryKind::BlockDevice => {
                (header.device(329, MAX_MAJOR)?, header.device(337, MAX_MINOR)?)
            }
            _ => (0, 0),
        };
        Ok(Entry {
            path,
            kind,
            mode: (header.number("mode", 100, 8)? & 0o7777) as u32,
            owner,
            mtime,
            size,
            link: if is_link { link } else { Vec::new() },
            device,
            xattrs: pax.xattrs,
        })
    }

    /// Reads the map of GNU's old sparse format; returns the size of the file.
    fn read_sparse_map(&mut self, header: &Header<'_>) -> Result<u64, Failure> {
        if !header.is_gnu() {
            return Err(HeaderProblem::Type(b'S').into());
        }
        let size = header.unsigned("realsize", 483, 12)?;
        let mut map = SparseMap::default();
        let mut more = sparse_pieces(&header.0[386..482], &mut map)? && header.0[482] != 0;
        while more {
            let mut block = [0; BLOCK];
            if self.read_up_to(&mut block)? < BLOCK {
                return Err(TarError::Truncated(self.position).into());
            }
            more = sparse_pieces(&block[..504], &mut map)? && block[504] != 0;
            self.check_extension(map.given() * 24)?;
        }
        self.sparse = Some(map.content(size, self.left)?);
        Ok(size)
    }

    /// Reads the map that stands in whole blocks before the pieces of a sparse file, and is part of what is stored.
    fn read_map_text(&mut self) -> Result<SparseMap, Failure> {
        let mut text = MapText::default();
        let mut bytes = 0;
        loop {
            bytes += BLOCK as u64;
            self.check_extension(bytes)?;
            if self.left < BLOCK as u64 {
                return Err(ImpossibleMap.into());
            }
            let mut block = [0; BLOCK];
            if self.read_up_to(&mut block)? < BLOCK {
                return Err(TarError::Truncated(self.position).into());
            }
            self.left -= BLOCK as u64;
            if text.take(&block)? {
                return Ok(text.map());
            }
        }
    }

    fn check_extension(&self, bytes: u64) -> Result<(), HeaderProblem> {
        if self.extension_limit.is_exceeded_by(bytes) {
            return Err(HeaderProblem::Extension(bytes, self.extension_limit));
        }
        Ok(())
    }

    fn read_stored(&mut self, buffer: &mut [u8]) -> Result<usize, TarError> {
        let want = (buffer.len() as u64).min(self.left) as usize;
        if want == 0 {
            return Ok(0);
        }
        let got = self.read_some(&mut buffer[..want])?;
        if got == 0 {
            return Err(TarError::Truncated(self.position));
        }
        self.left -= got as u64;
        Ok(got)
    }

    /// Reads content of the current entry; 0 at its end.
    ///
    /// # Errors
    /// When the archive ends before the entry does, or reading fails.
    pub fn read_content(&mut self, buffer: &mut [u8]) -> Result<usize, TarError> {
        let Some(sparse) = &mut self.sparse else { return self.read_stored(buffer) };
        let length = match sparse.part() {
            Part::Hole(length) => {
                let count = (buffer.len() as u64).min(length) as usize;
                buffer[..count].fill(0);
                sparse.advance(count as u64);
                return Ok(count);
            }
            Part::Stored(length) => length,
        };
        let want = (buffer.len() as u64).min(length) as usize;
        let got = self.read_stored(&mut buffer[..want])?;
        if let Some(sparse) = &mut self.sparse {
            sparse.advance(got as u64);
        }
        Ok(got)
    }
}

impl<R: Read> Read for Reader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read_content(buffer).map_err(io::Error::other)
    }
}

/// Reads the pairs of a sparse map; false when an empty pair ended it.
fn sparse_pieces(fields: &[u8], map: &mut SparseMap) -> Result<bool, ImpossibleMap> {
    for pair in fields.chunks_exact(24) {
        if pair[0] == 0 && pair[12] == 0 {
            return Ok(false);
        }
        let number = |field| parse_number(field).and_then(|number| u64::try_from(number).ok());
        let (offset, length) = number(&pair[..12]).zip(number(&pair[12..])).ok_or(ImpossibleMap)?;
        map.push(offset, length)?;
    }
    Ok(true)
}

/// Either the archive ended, or the header at hand is wrong.
enum Failure {
    Read(TarError),
    Header(HeaderProblem),
}

impl From<TarError> for Failure {
    fn from(error: TarError) -> Self {
        Self::Read(error)
    }
}

impl From<ImpossibleMap> for Failure {
    fn from(problem: ImpossibleMap) -> Self {
        Self::Header(problem.into())
    }
}

impl From<HeaderProblem> for Failure {
    fn from(problem: HeaderProblem) -> Self {
        Self::Header(problem)
    }
}

fn problem(name: &[u8], offset: u64, problem: HeaderProblem) -> TarError {
    TarError::Header { name: Escaped::new(name), offset, problem }
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Reads octal digits between blanks and NULs (nothing is 0), or GNU's base-256.
fn parse_number(field: &[u8]) -> Option<i64> {
    let first = *field.first()?;
    if first & 0x80 != 0 {
        let start = if first & 0x40 != 0 { -1 } else { 0 };
        let high = i128::from(first & 0x7f) | (start << 7);
        let number = field[1..].iter().fold(high, |sum, byte| (sum << 8) | i128::from(*byte));
        return i64::try_from(number).ok();
    }
    let trim = |byte: &u8| *byte == b' ' || *byte == 0;
    let start = field.iter().position(|byte| !trim(byte)).unwrap_or(field.len());
    let digits = until_nul(&field[start..]).trim_ascii_end();
    digits.iter().try_fold(0i64, |sum, digit| {
        let digit =
            if digit.is_ascii_digit() && *digit < b'8' { i64::from(digit - b'0') } else { return None };
        sum.checked_mul(8)?.checked_add(digit)
    })
}

/// The fields of one header block.
struct Header<'a>(&'a [u8; BLOCK]);

impl Header<'_> {
    fn type_flag(&self) -> u8 {
        self.0[156]
    }

    fn is_gnu(&self) -> bool {
        &self.0[257..265] == b"ustar  \0"
    }

    /// The directory part that POSIX puts in front of the name, and star with less room.
    fn prefix(&self) -> &[u8] {
        match (&self.0[257..263], &self.0[508..512]) {
            (b"ustar\0", b"tar\0") => until_nul(&self.0[345..476]),
            (b"ustar\0", _) => until_nul(&self.0[345..500]),
            _ => &[],
        }
    }

    fn name(&self) -> Vec<u8> {
        let mut name = self.prefix().to_vec();
        if !name.is_empty() {
            name.push(b'/');
        }
        name.extend_from_slice(until_nul(&self.0[..100]));
        name
    }

    fn link(&self) -> Vec<u8> {
        until_nul(&self.0[157..257]).to_vec()
    }

    fn number(&self, field: &'static str, start: usize, length: usize) -> Result<i64, HeaderProblem> {
        parse_number(&self.0[start..start + length]).ok_or(HeaderProblem::Number(field))
    }

    fn unsigned(&self, field: &'static str, start: usize, length: usize) -> Result<u64, HeaderProblem> {
        u64::try_from(self.number(field, start, length)?).map_err(|_| HeaderProblem::Number(field))
    }

    /// The size of the body, after a look at the checksum: nothing of a block counts before that.
    fn size(&self) -> Result<u64, HeaderProblem> {
        self.check()?;
        self.unsigned("size", 124, 12)
    }

    fn id(&self, field: &'static str, start: usize) -> Result<u32, HeaderProblem> {
        let id = u32::try_from(self.number(field, start, 8)?).map_err(|_| HeaderProblem::Number(field))?;
        if id == u32::MAX { Err(HeaderProblem::Number(field)) } else { Ok(id) }
    }

    /// One half of a device's number. mknod(2) would cut off what is larger than `most`, and make another device.
    fn device(&self, start: usize, most: u32) -> Result<u32, HeaderProblem> {
        if &self.0[257..262] != b"ustar" {
            return Ok(0);
        }
        let number = u32::try_from(self.number("device", start, 8)?).ok().filter(|number| *number <= most);
        number.ok_or(HeaderProblem::Number("device"))
    }

    /// The sum of all bytes, the checksum itself taken as blanks; old writers summed signed bytes.
    fn check(&self) -> Result<(), HeaderProblem> {
        let bytes = || {
            self.0.iter().enumerate().map(|(at, byte)| if (148..156).contains(&at) { b' ' } else { *byte })
        };
        let unsigned: i64 = bytes().map(i64::from).sum();
        let signed: i64 = bytes().map(|byte| i64::from(byte.cast_signed())).sum();
        match parse_number(&self.0[148..156]) {
            Some(sum) if sum == unsigned || sum == signed => Ok(()),
            _ => Err(HeaderProblem::Checksum),
        }
    }

    fn kind(&self, path: &[u8]) -> Result<EntryKind, HeaderProblem> {
        self.check()?;
        Ok(match self.type_flag() {
            // Before ustar, a directory was a file whose name ends with a slash.
            0 if path.ends_with(b"/") => EntryKind::Directory,
            0 | b'0' | b'7' | b'S' => EntryKind::File,
            b'1' => EntryKind::HardLink,
            b'2' => EntryKind::Symlink,
            b'3' => EntryKind::CharDevice,
            b'4' => EntryKind::BlockDevice,
            b'5' => EntryKind::Directory,
            b'6' => EntryKind::Fifo,
            other => return Err(HeaderProblem::Type(other)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{GNU, Header as Block, header, padded, with_checksum};
    use super::*;

    fn read_all(archive: &[u8]) -> Result<Vec<(Entry, Vec<u8>)>, TarError> {
        let mut reader =
            Reader::new(archive, &Limits { bytes: Limits::BYTES.with(1 << 40), ..Limits::default() });
        let mut entries = Vec::new();
        while let Some(entry) = reader.next_entry()? {
            let mut content = Vec::new();
            let mut buffer = [0; 700];
            loop {
                match reader.read_content(&mut buffer)? {
                    0 => break,
                    count => content.extend_from_slice(&buffer[..count]),
                }
            }
            entries.push((entry, content));
        }
        Ok(entries)
    }

    #[test]
    fn numbers_are_octal_or_binary_and_never_guessed() {
        let cases: [(&[u8], Option<i64>); 14] = [
            (b"0000644\0", Some(0o644)),
            (b"   644 \0", Some(0o644)),
            (b"\0\0\0\0\0\0\0\0", Some(0)),
            (b"77777777", Some(0o7777_7777)),
            (b"644\0junk", Some(0o644)),
            (b"0000648\0", None),
            (b"-1\0\0\0\0\0\0", None),
            (b"12 34\0\0\0", None),
            (b"\x80\0\0\0\0\0\x01\0", Some(256)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff", Some(-1)),
            (b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff", Some(i64::MAX)),
            (b"\x80\0\0\0\x80\0\0\0\0\0\0\0", None),
            (b"\xff\xff\xff\xff\x80\0\0\0\0\0\0\0", Some(i64::MIN)),
            (b"\xc0\0\0\0\0\0\0\0\0\0\0\0", None),
        ];
        for (field, expected) in cases {
            assert_eq!(parse_number(field), expected, "{}", field.escape_ascii());
        }
    }

    #[test]
    fn sparse_files_of_gnu_tar_are_read_with_their_holes() {
        // 2 bytes at 1000, then 1 byte at every further thousand: more pieces than fit into the header.
        let pieces: Vec<(u64, u64)> = (1..31).map(|n| (n * 1000, if n == 1 { 2 } else { 1 })).collect();
        let field = |number: u64| format!("{number:011o}\0").into_bytes();
        let pair = |&(offset, length): &(u64, u64)| [field(offset), field(length)].concat();
        let mut block = Block { magic: GNU, size: 31, ..header("sp", b'S') }.bytes();
        block[386..482].copy_from_slice(&pieces[..4].iter().flat_map(pair).collect::<Vec<u8>>());
        block[482] = 1;
        block[483..495].copy_from_slice(&field(40_000));
        let mut more = vec![0; 1024];
        more[..504].copy_from_slice(&pieces[4..25].iter().flat_map(pair).collect::<Vec<u8>>());
        more[504] = 1;
        more[512..512 + 5 * 24].copy_from_slice(&pieces[25..].iter().flat_map(pair).collect::<Vec<u8>>());
        let stored: Vec<u8> = (b'A'..).take(31).collect();
        let next = header("next", b'0').bytes();
        let archive = [with_checksum(block.clone()), more, padded(&stored), next].concat();
        let entries = read_all(&archive).unwrap();
        let mut expected = vec![0; 40_000];
        expected[1000..1002].copy_from_slice(b"AB");
        for (n, byte) in (2..31).zip(b'C'..) {
            expected[n * 1000] = byte;
        }
        assert_eq!(entries[0].0.size, 40_000);
        assert!(entries[0].1 == expected);
        assert_eq!(entries[1].0.path, b"next");
        for (at, bytes) in [(483, field(30_000)), (386, field(3_000)), (398, field(3)), (124, field(30))] {
            let mut wrong = block.clone();
            wrong[at..at + 12].copy_from_slice(&bytes);
            let archive = [with_checksum(wrong), archive[512..].to_vec()].concat();
            assert!(read_all(&archive).is_err(), "{at}");
        }
    }

    #[test]
    fn extensions_are_for_the_next_entry_only() {
        use super::super::test_support::{file, gnu_long, pax, symlink};
        let long = vec![b'l'; 300];
        let archive = [
            pax(&[
                ("path", b"renamed"),
                ("uid", b"3000000"),
                ("mtime", b"-1.5"),
                ("SCHILY.xattr.user.a", b"="),
            ]),
            file("first", b"one"),
            file("second", b"two"),
            gnu_long(b'K', &[&long[..], b"\0"].concat()),
            symlink("third", "short"),
        ]
        .concat();
        let entries = read_all(&archive).unwrap();
        let first = &entries[0].0;
        assert_eq!((first.path.as_slice(), first.owner.uid), (&b"renamed"[..], 3_000_000));
        assert_eq!(first.mtime, Timestamp { seconds: -2, nanoseconds: 500_000_000 });
        assert_eq!(first.xattrs, Xattrs::from([(b"user.a".to_vec(), b"=".to_vec())]));
        let second = &entries[1].0;
        assert_eq!((second.path.as_slice(), second.owner.uid, second.xattrs.len()), (&b"second"[..], 0, 0));
        assert_eq!(entries[2].0.link, long);
    }

    #[test]
    fn prefixes_belong_to_posix_headers_only() {
        for (magic, name) in [(*b"ustar\x0000", "dir/x"), (GNU, "x"), ([0; 8], "x")] {
            let mut block = Block { magic, ..header("x", b'0') }.bytes();
            block[345..348].copy_from_slice(b"dir");
            assert_eq!(read_all(&with_checksum(block)).unwrap()[0].0.path, name.as_bytes());
        }
    }
}
