//! Sparse files in archives: where the stored pieces of a file belong, as the formats of GNU tar say it.
//!
//! GNU tar's manual, "Storing Sparse Files", describes them: the old one in the header, and three in PAX records (0.0,
//! 0.1 and 1.0). Readers differ on records that are given twice, in part, or for two versions at once: those are refused.

use super::pax::{PaxError, decimal, size, text};

/// The key prefix of the records that describe a sparse file.
pub(super) const PREFIX: &[u8] = b"GNU.sparse.";

/// A sparse map that contradicts itself, the size of the file, or what is stored of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the sparse map is impossible")]
pub struct ImpossibleMap;

/// The pieces of a sparse file, as they are read. Pieces that touch become one: what is left has gaps, so its offsets
/// grow, and no map takes much more memory than it takes in the archive, where it is limited.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SparseMap {
    /// Offset and length of each piece, ascending; neither empty nor touching.
    pieces: Vec<(u64, u64)>,
    /// How many pieces were given.
    given: u64,
    /// Where the last one ends.
    end: u64,
    /// The length of all.
    stored: u64,
}

impl SparseMap {
    /// Adds the next piece.
    pub(super) fn push(&mut self, offset: u64, length: u64) -> Result<(), ImpossibleMap> {
        self.end = offset.checked_add(length).filter(|_| offset >= self.end).ok_or(ImpossibleMap)?;
        self.given += 1;
        // No overflow: the pieces do not overlap, so together they are no longer than where the last one ends.
        self.stored += length;
        match self.pieces.last_mut() {
            _ if length == 0 => {}
            Some((start, last)) if *start + *last == offset => *last += length,
            _ => self.pieces.push((offset, length)),
        }
        Ok(())
    }

    /// How many pieces were given.
    pub(super) fn given(&self) -> u64 {
        self.given
    }

    /// The content of a file of `size` bytes, of which `stored` follow in the archive.
    pub(super) fn content(self, size: u64, stored: u64) -> Result<SparseContent, ImpossibleMap> {
        if self.end > size || self.stored != stored {
            return Err(ImpossibleMap);
        }
        let mut pieces = self.pieces.into_iter();
        let current = pieces.next();
        Ok(SparseContent { pieces, current, at: 0, size })
    }
}

/// What comes next in the content of a sparse file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// That many zeros.
    Hole(u64),
    /// That many bytes of what is stored; 0 at the end of the file.
    Stored(u64),
}

/// Where in its content the reading of a sparse file is.
#[derive(Debug)]
pub(super) struct SparseContent {
    pieces: std::vec::IntoIter<(u64, u64)>,
    current: Option<(u64, u64)>,
    at: u64,
    size: u64,
}

impl SparseContent {
    /// What comes next.
    pub(super) fn part(&mut self) -> Part {
        while self.current.is_some_and(|(offset, length)| offset + length <= self.at) {
            self.current = self.pieces.next();
        }
        let (start, end) =
            self.current.map_or((self.size, self.size), |(offset, length)| (offset, offset + length));
        if self.at < start { Part::Hole(start - self.at) } else { Part::Stored(end - self.at) }
    }

    /// Goes over `count` bytes of what [`Self::part`] gave.
    pub(super) fn advance(&mut self, count: u64) {
        self.at += count;
    }
}

/// The map of version 1.0, which stands before the stored pieces: decimal numbers with a newline behind each, first how
/// many pieces there are, then offset and length of each.
#[derive(Debug, Default)]
pub(super) struct MapText {
    map: SparseMap,
    number: Option<u64>,
    count: Option<u64>,
    offset: Option<u64>,
}

impl MapText {
    /// Reads on; true when the map ended, and what is left of `block` is padding.
    pub(super) fn take(&mut self, block: &[u8]) -> Result<bool, ImpossibleMap> {
        for byte in block {
            if byte.is_ascii_digit() {
                let digit = u64::from(byte - b'0');
                let number = self.number.unwrap_or(0).checked_mul(10).and_then(|ten| ten.checked_add(digit));
                self.number = Some(number.ok_or(ImpossibleMap)?);
                continue;
            }
            let number = self.number.take().filter(|_| *byte == b'\n').ok_or(ImpossibleMap)?;
            match (self.count, self.offset.take()) {
                (None, _) => self.count = Some(number),
                (Some(_), None) => self.offset = Some(number),
                (Some(_), Some(offset)) => self.map.push(offset, number)?,
            }
            if self.offset.is_none() && self.count == Some(self.map.given) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// What was read.
    pub(super) fn map(self) -> SparseMap {
        self.map
    }
}

/// Where the map of a sparse file stands.
#[derive(Debug, PartialEq, Eq)]
pub enum MapPlace {
    /// In the records: versions 0.0 and 0.1.
    Records(SparseMap),
    /// Before the stored pieces: version 1.0.
    Content,
}

/// What the records of an extended header say about a sparse file.
#[derive(Debug, PartialEq, Eq)]
pub struct PaxSparse {
    /// The name of the file; that of the entry is made up then, for readers that know nothing of sparse files.
    pub name: Option<Vec<u8>>,
    /// Bytes of the file, holes included.
    pub size: u64,
    /// Its map.
    pub map: MapPlace,
}

/// Collects the records of an extended header that describe a sparse file.
#[derive(Debug, Default)]
pub(super) struct SparseRecords {
    some: bool,
    version: (Option<u64>, Option<u64>),
    name: Option<Vec<u8>>,
    /// Of versions 0.0 and 0.1.
    size: Option<u64>,
    pieces: Option<u64>,
    /// Of version 0.1.
    map: Option<SparseMap>,
    /// Of version 0.0; the offset waits for its length.
    pairs: Option<SparseMap>,
    offset: Option<u64>,
    /// Of version 1.0.
    real_size: Option<u64>,
}

impl SparseRecords {
    /// Takes the record `GNU.sparse.KEY`.
    pub(super) fn take(&mut self, key: &[u8], value: &[u8]) -> Result<(), PaxError> {
        self.some = true;
        match key {
            b"major" => once(&mut self.version.0, number("GNU.sparse.major", value)?),
            b"minor" => once(&mut self.version.1, number("GNU.sparse.minor", value)?),
            b"name" if value.is_empty() => Err(PaxError::Value("GNU.sparse.name")),
            b"name" => once(&mut self.name, text("GNU.sparse.name", value)?),
            b"size" => once(&mut self.size, size("GNU.sparse.size", value)?),
            b"realsize" => once(&mut self.real_size, size("GNU.sparse.realsize", value)?),
            b"numblocks" => once(&mut self.pieces, number("GNU.sparse.numblocks", value)?),
            b"map" => once(&mut self.map, map_of(value)?),
            b"offset" => once(&mut self.offset, number("GNU.sparse.offset", value)?),
            b"numbytes" => {
                let offset = self.offset.take().ok_or(PaxError::Sparse)?;
                let length = number("GNU.sparse.numbytes", value)?;
                Ok(self.pairs.get_or_insert_default().push(offset, length)?)
            }
            _ => Err(PaxError::Sparse),
        }
    }

    /// What the records say, all of them read; none when there were none.
    pub(super) fn finish(self) -> Result<Option<PaxSparse>, PaxError> {
        let (map, size) = match self {
            Self { some: false, .. } => return Ok(None),
            Self {
                version: (Some(1), Some(0)),
                real_size: Some(size),
                size: None,
                pieces: None,
                map: None,
                pairs: None,
                offset: None,
                ..
            } => (MapPlace::Content, size),
            Self {
                version: (None, None) | (Some(0), Some(1)),
                real_size: None,
                size: Some(size),
                pieces: Some(pieces),
                map: Some(map),
                pairs: None,
                offset: None,
                ..
            }
            | Self {
                version: (None, None) | (Some(0), Some(0)),
                real_size: None,
                size: Some(size),
                pieces: Some(pieces),
                map: None,
                pairs: Some(map),
                offset: None,
                ..
            } => {
                if map.given != pieces {
                    return Err(ImpossibleMap.into());
                }
                (MapPlace::Records(map), size)
            }
            _ => return Err(PaxError::Sparse),
        };
        Ok(Some(PaxSparse { name: self.name, size, map }))
    }
}

fn once<T>(slot: &mut Option<T>, value: T) -> Result<(), PaxError> {
    match slot.replace(value) {
        Some(_) => Err(PaxError::Sparse),
        None => Ok(()),
    }
}

fn number(key: &'static str, value: &[u8]) -> Result<u64, PaxError> {
    decimal(value).ok_or(PaxError::Value(key))
}

/// Reads `OFFSET,LENGTH,OFFSET,LENGTH…`.
fn map_of(value: &[u8]) -> Result<SparseMap, PaxError> {
    let mut map = SparseMap::default();
    let mut numbers = value.split(|byte| *byte == b',').map(|field| number("GNU.sparse.map", field));
    while let Some(offset) = numbers.next() {
        let length = numbers.next().unwrap_or(Err(PaxError::Value("GNU.sparse.map")));
        map.push(offset?, length?)?;
    }
    Ok(map)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::layer::Limits;
    use crate::layer::tar::Reader;
    use crate::layer::test_support::{SPARSE_VERSIONS, end, sparse, sparse_pax};

    fn read(archive: &[u8], buffer: usize) -> (Vec<u8>, Vec<u8>) {
        let mut reader = Reader::new(archive, &Limits::default());
        let entry = reader.next_entry().unwrap().unwrap();
        let mut content = Vec::new();
        let mut buffer = vec![0xff; buffer];
        loop {
            match reader.read_content(&mut buffer).unwrap() {
                0 => break,
                count => content.extend_from_slice(&buffer[..count]),
            }
        }
        assert_eq!(content.len() as u64, entry.size);
        assert_eq!(reader.next_entry().unwrap(), None);
        (entry.path, content)
    }

    proptest! {
        #[test]
        fn every_format_gives_the_same_file(
            steps in proptest::collection::vec((0u64..700, 0u64..700), 0..60),
            tail in 0u64..700,
            buffer in 1usize..1500,
        ) {
            let mut pieces = Vec::new();
            let (mut stored, mut content) = (Vec::new(), Vec::new());
            for (hole, length) in steps {
                content.resize(content.len() + hole as usize, 0);
                pieces.push((content.len() as u64, length));
                let piece: Vec<u8> = (1..=255).cycle().skip(stored.len()).take(length as usize).collect();
                stored.extend_from_slice(&piece);
                content.extend_from_slice(&piece);
            }
            content.resize(content.len() + tail as usize, 0);
            let size = content.len() as u64;
            // A map without pieces is none in versions 0.0 and 0.1: GNU tar names an empty one at the end.
            pieces.push((size, 0));
            let old = [sparse("sp", size, &pieces, &stored), end()].concat();
            prop_assert!(read(&old, buffer) == (b"sp".to_vec(), content.clone()));
            for version in SPARSE_VERSIONS {
                let archive = [sparse_pax(version, "sp", size, &pieces, &stored), end()].concat();
                prop_assert!(read(&archive, buffer) == (b"sp".to_vec(), content.clone()), "{version}");
            }
        }
    }

    #[test]
    fn a_map_in_text_ends_where_it_ends() {
        let text = b"3\n10\n1\n20\n2\n30\n3\n";
        let padded = [&text[..], b"padding"].concat();
        for cut in 0..padded.len() {
            let (first, second) = padded.split_at(cut);
            let mut map = MapText::default();
            let ended = map.take(first).unwrap();
            assert_eq!(ended, cut >= text.len(), "{cut}");
            assert!(ended || map.take(second).unwrap(), "{cut}");
            assert_eq!(map.map().pieces, [(10, 1), (20, 2), (30, 3)], "{cut}");
        }
    }

    #[test]
    fn pieces_that_say_nothing_take_no_memory() {
        let mut map = SparseMap::default();
        for offset in 0..100_000 {
            map.push(offset, 0).unwrap();
            map.push(offset, 1).unwrap();
        }
        assert_eq!((map.pieces.len(), map.given, map.stored), (1, 200_000, 100_000));
    }
}
