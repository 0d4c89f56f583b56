//! A pack of objects, as a server sent it: every object is found, hashed and named by its content, and nothing is believed.
//!
//! This is done here since the library's own index asks for all memory that a chain of deltas wants: it holds every object
//! on the way to the one that it makes, and a pack of some megabytes can ask for terabytes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt as _;
use std::rc::Rc;

use flate2::{Crc, Decompress};
use gix_hash::{Hasher, Kind, ObjectId};

use super::cache::{CACHE, Cache};
use super::delta::{apply_delta, corrupt, distance, entry_head, little, reading};
use super::inflate::Inflated;
use crate::context::git::{Exceeded, GitError};
use crate::limit::Limit;

/// How many deltas may be applied one after the other; git itself makes no more.
const DEEPEST: u16 = 4095;
/// How much memory an entry takes, in bytes, until all are found.
const ENTRY_MEMORY: u64 = 128;
/// The base of what has none, or none that is known.
const NO_BASE: u32 = u32::MAX;
const BUFFER: usize = 64 << 10;

/// What an object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Type {
    Commit,
    Tree,
    Blob,
    Tag,
    /// Made from another; of the same type, which is not known yet.
    Delta,
}

impl Type {
    fn word(self) -> &'static str {
        match self {
            Self::Commit => "commit",
            Self::Tree => "tree",
            Self::Tag => "tag",
            Self::Blob | Self::Delta => "blob",
        }
    }
}

/// An object and where it is.
#[derive(Debug, Clone, Copy)]
struct Entry {
    offset: u64,
    /// Of the object, not of the delta.
    size: u64,
    base: u32,
    /// Of the entry's bytes.
    crc: u32,
    /// How many deltas are applied to get it.
    depth: u16,
    /// How long the head before the data is.
    head: u8,
    kind: Type,
    is_delta: bool,
}

/// The pack, with its index in memory.
pub(super) struct Pack<'a> {
    file: File,
    hash: Kind,
    entries: Vec<Entry>,
    /// The name of each entry, one after the other.
    names: Vec<u8>,
    /// The entries in the order of their names.
    order: Vec<u32>,
    /// The hash of the whole.
    checksum: ObjectId,
    cache: Cache,
    inflate: Decompress,
    buffer: Vec<u8>,
    memory: Limit,
    stopped: &'a dyn Fn() -> Result<(), GitError>,
}

/// The name of an object with this content.
fn name_of(hash: Kind, kind: Type, content: &[u8]) -> Result<ObjectId, GitError> {
    let mut hasher = begin(hash, kind, content.len() as u64);
    hasher.update(content);
    finish(hasher)
}

fn begin(hash: Kind, kind: Type, size: u64) -> Hasher {
    let mut hasher = gix_hash::hasher(hash);
    hasher.update(format!("{} {size}\0", kind.word()).as_bytes());
    hasher
}

fn finish(hasher: Hasher) -> Result<ObjectId, GitError> {
    hasher.try_finalize().map_err(|_| corrupt("an object that is made to be taken for another one"))
}

/// What has been read of deltas while their bases may not be known.
#[derive(Default)]
struct Waiting {
    /// Pairs of base and delta.
    known: Vec<(u32, u32)>,
    /// By the names of their bases.
    named: BTreeMap<ObjectId, Vec<u32>>,
    /// The size that the base must have, by delta.
    sizes: BTreeMap<u32, u64>,
}

impl<'a> Pack<'a> {
    /// Finds all objects of the pack in `file`. `memory` is the most that may be taken.
    pub(super) fn read(
        file: File,
        hash: Kind,
        memory: Limit,
        stopped: &'a dyn Fn() -> Result<(), GitError>,
    ) -> Result<Self, GitError> {
        let mut pack = Self {
            file,
            hash,
            entries: Vec::new(),
            names: Vec::new(),
            order: Vec::new(),
            checksum: ObjectId::null(hash),
            cache: Cache::default(),
            inflate: Decompress::new(true),
            buffer: vec![0; BUFFER],
            memory,
            stopped,
        };
        let waiting = pack.scan()?;
        pack.resolve(waiting)?;
        let mut order: Vec<u32> = (0..pack.entries.len() as u32).collect();
        order.sort_unstable_by(|one, other| pack.name(*one).cmp(pack.name(*other)));
        pack.order = order;
        Ok(pack)
    }

    /// Reads the pack once from its beginning to its end.
    fn scan(&mut self) -> Result<Waiting, GitError> {
        let file = self.file.try_clone().map_err(GitError::Pack)?;
        let reader = BufReader::with_capacity(BUFFER, At { file: &file, offset: 0 });
        let mut source = Counted { reader, offset: 0, crc: Crc::new(), hasher: gix_hash::hasher(self.hash) };
        let mut head = [0; 12];
        source.read_exact(&mut head).map_err(reading)?;
        let number = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        if &head[..4] != b"PACK" || !matches!(number(4), 2 | 3) {
            return Err(corrupt("what is no pack"));
        }
        let mut waiting = Waiting::default();
        for index in 0..number(8) {
            (self.stopped)()?;
            if u64::from(index) * ENTRY_MEMORY > self.memory.value / 2 {
                return Err(GitError::Exceeded(Exceeded::Memory(self.memory)));
            }
            self.scan_entry(&mut source, index, &mut waiting)?;
        }
        self.checksum = finish(source.hasher.clone())?;
        let mut trailer = vec![0; self.hash.len_in_bytes()];
        source.read_exact(&mut trailer).map_err(reading)?;
        if trailer != self.checksum.as_slice() {
            return Err(corrupt("a pack with another checksum than it says"));
        }
        if !source.fill_buf().map_err(reading)?.is_empty() {
            return Err(corrupt("more than a pack"));
        }
        Ok(waiting)
    }

    fn scan_entry<R: BufRead>(
        &mut self,
        source: &mut Counted<R>,
        index: u32,
        waiting: &mut Waiting,
    ) -> Result<(), GitError> {
        let offset = source.offset;
        source.crc.reset();
        let (kind, stored) = entry_head(source)?;
        let mut entry = Entry {
            offset,
            size: stored,
            base: NO_BASE,
            crc: 0,
            depth: 0,
            head: 0,
            kind: Type::Delta,
            is_delta: false,
        };
        entry.kind = match kind {
            1 => Type::Commit,
            2 => Type::Tree,
            3 => Type::Blob,
            4 => Type::Tag,
            6 => {
                let base = distance(source)?;
                let base = offset.checked_sub(base).ok_or_else(|| corrupt("a delta of nothing"))?;
                let found = self.entries.binary_search_by_key(&base, |entry| entry.offset);
                let base = found.map_err(|_| corrupt("a delta of nothing"))? as u32;
                waiting.known.push((base, index));
                Type::Delta
            }
            7 => {
                let mut name = vec![0; self.hash.len_in_bytes()];
                source.read_exact(&mut name).map_err(reading)?;
                let name = ObjectId::try_from(&name[..]).map_err(|_| corrupt("a delta of nothing"))?;
                waiting.named.entry(name).or_default().push(index);
                Type::Delta
            }
            _ => return Err(corrupt("an object of no known type")),
        };
        entry.is_delta = entry.kind == Type::Delta;
        entry.head =
            u8::try_from(source.offset - offset).map_err(|_| corrupt("an object with a long head"))?;
        let mut hasher = begin(self.hash, entry.kind, stored);
        let mut first = Vec::new();
        let mut size = 0;
        let mut data = Inflated::new(&mut *source, &mut self.inflate);
        let buffer = &mut self.buffer;
        loop {
            let count = data.read(buffer).map_err(reading)?;
            if count == 0 {
                break;
            }
            size += count as u64;
            if size > stored {
                return Err(corrupt("an object that is longer than it says"));
            }
            if entry.is_delta {
                first.extend(buffer[..count].iter().take(20_usize.saturating_sub(first.len())));
            } else {
                hasher.update(&buffer[..count]);
            }
            (self.stopped)()?;
        }
        if size != stored {
            return Err(corrupt("an object that is shorter than it says"));
        }
        let name = if entry.is_delta {
            let mut first = &first[..];
            waiting.sizes.insert(index, little(&mut first)?);
            entry.size = little(&mut first)?;
            ObjectId::null(self.hash)
        } else {
            finish(hasher)?
        };
        entry.crc = source.crc.sum();
        self.entries.push(entry);
        self.names.extend_from_slice(name.as_slice());
        Ok(())
    }

    /// Names what was made from others: each once, right after what it is made from.
    fn resolve(&mut self, mut waiting: Waiting) -> Result<(), GitError> {
        waiting.known.sort_unstable();
        let all = self.entries.len() as u32;
        let mut next: Vec<u32> =
            (0..all).rev().filter(|index| !self.entries[*index as usize].is_delta).collect();
        let mut resolved = next.len();
        while let Some(parent) = next.pop() {
            let made = waiting.take(parent, self.id(parent));
            if made.is_empty() {
                continue;
            }
            let base = self.content(parent)?;
            let from = self.entries[parent as usize];
            for index in made {
                (self.stopped)()?;
                let size = waiting.sizes.remove(&index);
                let entry = &mut self.entries[index as usize];
                entry.base = parent;
                entry.kind = from.kind;
                entry.depth = from.depth + 1;
                if entry.depth > DEEPEST {
                    return Err(corrupt("a chain of deltas that is too long"));
                }
                if size != Some(from.size) {
                    return Err(corrupt("a delta of another object"));
                }
                let content = self.apply(index, &base)?;
                let name = name_of(self.hash, from.kind, &content)?;
                let width = self.hash.len_in_bytes();
                self.names[index as usize * width..][..width].copy_from_slice(name.as_slice());
                resolved += 1;
                if waiting.has(index, &name) {
                    self.cache.insert(index, Rc::new(content));
                    next.push(index);
                }
            }
        }
        if resolved == self.entries.len() { Ok(()) } else { Err(corrupt("a delta of what is not there")) }
    }

    fn name(&self, index: u32) -> &[u8] {
        let width = self.hash.len_in_bytes();
        &self.names[index as usize * width..][..width]
    }

    fn id(&self, index: u32) -> ObjectId {
        ObjectId::try_from(self.name(index)).unwrap_or_else(|_| ObjectId::null(self.hash))
    }

    fn find(&self, id: &ObjectId) -> Option<u32> {
        let found = self.order.binary_search_by(|index| self.name(*index).cmp(id.as_slice()));
        found.ok().map(|at| self.order[at])
    }

    fn must_find(&self, id: &ObjectId, kind: Type) -> Result<u32, GitError> {
        let index = self.find(id).ok_or_else(|| GitError::Corrupt(format!("no object {id}")))?;
        if self.entries[index as usize].kind == kind {
            Ok(index)
        } else {
            Err(GitError::Corrupt(format!("an object {id} that is no {}", kind.word())))
        }
    }

    /// How the objects are named.
    pub(super) fn hash(&self) -> Kind {
        self.hash
    }

    /// The hash of the whole, which its file is named after.
    pub(super) fn checksum(&self) -> ObjectId {
        self.checksum
    }

    /// Name, checksum and place of all objects, in the order of their names.
    pub(super) fn listing(&self) -> impl ExactSizeIterator<Item = (&[u8], u32, u64)> + Clone {
        self.order.iter().map(|index| {
            let entry = &self.entries[*index as usize];
            (self.name(*index), entry.crc, entry.offset)
        })
    }

    /// What kind of object `id` is, if it is there.
    pub(super) fn kind(&self, id: &ObjectId) -> Option<Type> {
        self.find(id).map(|index| self.entries[index as usize].kind)
    }

    /// How large the object is, in bytes.
    pub(super) fn size(&self, id: &ObjectId, kind: Type) -> Result<u64, GitError> {
        Ok(self.entries[self.must_find(id, kind)? as usize].size)
    }

    /// The content of an object.
    pub(super) fn object(&mut self, id: &ObjectId, kind: Type) -> Result<Rc<Vec<u8>>, GitError> {
        let index = self.must_find(id, kind)?;
        self.content(index)
    }

    /// Writes the content of an object, in pieces if it was sent whole.
    pub(super) fn write(&mut self, id: &ObjectId, kind: Type, into: &mut dyn Write) -> Result<(), GitError> {
        let index = self.must_find(id, kind)?;
        let entry = self.entries[index as usize];
        if entry.is_delta {
            let content = self.content(index)?;
            return into.write_all(&content).map_err(GitError::Pack);
        }
        let mut data = Inflated::new(data_of(&self.file, &entry), &mut self.inflate);
        loop {
            (self.stopped)()?;
            let count = data.read(&mut self.buffer).map_err(reading)?;
            if count == 0 {
                return Ok(());
            }
            into.write_all(&self.buffer[..count]).map_err(GitError::Pack)?;
        }
    }

    /// Whether that much more would be too much.
    fn afford(&self, bytes: u64) -> Result<(), GitError> {
        if self.memory.is_exceeded_by(bytes.saturating_add(CACHE)) {
            return Err(GitError::Exceeded(Exceeded::Memory(self.memory)));
        }
        Ok(())
    }

    fn content(&mut self, index: u32) -> Result<Rc<Vec<u8>>, GitError> {
        let (mut chain, mut at) = (Vec::new(), index);
        let mut content = loop {
            if let Some(content) = self.cache.get(at) {
                break content;
            }
            let entry = self.entries[at as usize];
            if !entry.is_delta {
                break Rc::new(self.whole(&entry)?);
            }
            chain.push(at);
            at = entry.base;
        };
        while let Some(next) = chain.pop() {
            (self.stopped)()?;
            content = Rc::new(self.apply(next, &content)?);
        }
        self.cache.insert(index, Rc::clone(&content));
        Ok(content)
    }

    /// An object that was sent whole.
    fn whole(&mut self, entry: &Entry) -> Result<Vec<u8>, GitError> {
        self.afford(entry.size)?;
        let mut content = Vec::with_capacity(usize::try_from(entry.size).unwrap_or_default());
        let data = Inflated::new(data_of(&self.file, entry), &mut self.inflate);
        data.take(entry.size).read_to_end(&mut content).map_err(reading)?;
        Ok(content)
    }

    /// The object that the delta at `index` makes of `base`.
    fn apply(&mut self, index: u32, base: &[u8]) -> Result<Vec<u8>, GitError> {
        let entry = self.entries[index as usize];
        self.afford((base.len() as u64).saturating_add(entry.size))?;
        let data = Inflated::new(data_of(&self.file, &entry), &mut self.inflate);
        apply_delta(base, &mut BufReader::new(data), entry.size)
    }
}

fn data_of<'f>(file: &'f File, entry: &Entry) -> BufReader<At<'f>> {
    // Most objects are small.
    let capacity = usize::try_from(entry.size.clamp(512, BUFFER as u64)).unwrap_or(BUFFER);
    BufReader::with_capacity(capacity, At { file, offset: entry.offset + u64::from(entry.head) })
}

impl Waiting {
    /// What is made from `parent`.
    fn take(&mut self, parent: u32, name: ObjectId) -> Vec<u32> {
        let first = self.known.partition_point(|(base, _)| *base < parent);
        let known = self.known[first..].iter().take_while(|(base, _)| *base == parent);
        let mut made: Vec<u32> = known.map(|(_, index)| *index).collect();
        made.extend(self.named.remove(&name).unwrap_or_default());
        made
    }

    fn has(&self, parent: u32, name: &ObjectId) -> bool {
        self.known.binary_search_by(|(base, _)| base.cmp(&parent)).is_ok() || self.named.contains_key(name)
    }
}

/// A file from some place on, wherever others read it.
struct At<'f> {
    file: &'f File,
    offset: u64,
}

impl Read for At<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(into, self.offset)?;
        self.offset += count as u64;
        Ok(count)
    }
}

/// Counts and hashes what is taken.
struct Counted<R> {
    reader: R,
    offset: u64,
    crc: Crc,
    hasher: Hasher,
}

impl<R: BufRead> BufRead for Counted<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.reader.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        if let Ok(bytes) = self.reader.fill_buf() {
            let taken = &bytes[..count.min(bytes.len())];
            self.crc.update(taken);
            self.hasher.update(taken);
        }
        self.reader.consume(count);
        self.offset += count as u64;
    }
}

impl<R: BufRead> Read for Counted<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.fill_buf()?.read(into)?;
        self.consume(count);
        Ok(count)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const MEMORY: Limit = Limit::new("git-memory", 100 << 20);
    const GO_ON: &dyn Fn() -> Result<(), GitError> = &|| Ok(());

    /// What an entry of a pack is.
    pub(in crate::context::git::embedded) enum Stored<'a> {
        Whole(u8, &'a [u8]),
        /// So many bytes behind its base.
        Behind(u64, &'a [u8]),
        Of(ObjectId, &'a [u8]),
    }

    fn zlib(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn head(kind: u8, size: u64) -> Vec<u8> {
        let mut head = vec![(kind << 4) | (size & 0x0f) as u8];
        let mut rest = size >> 4;
        while rest > 0 {
            *head.last_mut().unwrap() |= 0x80;
            head.push((rest & 0x7f) as u8);
            rest >>= 7;
        }
        head
    }

    pub(in crate::context::git::embedded) fn entry(stored: &Stored<'_>) -> Vec<u8> {
        match stored {
            Stored::Whole(kind, content) => [head(*kind, content.len() as u64), zlib(content)].concat(),
            Stored::Of(base, delta) => {
                [head(7, delta.len() as u64), base.as_slice().to_vec(), zlib(delta)].concat()
            }
            Stored::Behind(distance, delta) => {
                let mut bytes = vec![(distance & 0x7f) as u8];
                let mut rest = distance >> 7;
                while rest > 0 {
                    rest -= 1;
                    bytes.insert(0, 0x80 | (rest & 0x7f) as u8);
                    rest >>= 7;
                }
                [head(6, delta.len() as u64), bytes, zlib(delta)].concat()
            }
        }
    }

    pub(in crate::context::git::embedded) fn pack(entries: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = b"PACK\0\0\0\x02".to_vec();
        bytes.extend((entries.len() as u32).to_be_bytes());
        bytes.extend(entries.concat());
        sealed(bytes)
    }

    fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
        let mut hasher = gix_hash::hasher(Kind::Sha1);
        hasher.update(&bytes);
        bytes.extend(hasher.try_finalize().unwrap().as_slice());
        bytes
    }

    pub(in crate::context::git::embedded) fn read(bytes: &[u8]) -> Result<Pack<'static>, GitError> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        Pack::read(file, Kind::Sha1, MEMORY, GO_ON)
    }

    fn blob(content: &[u8]) -> ObjectId {
        name_of(Kind::Sha1, Type::Blob, content).unwrap()
    }

    fn number(mut value: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while value > 0x7f {
            bytes.push(0x80 | (value & 0x7f) as u8);
            value >>= 7;
        }
        bytes.push(value as u8);
        bytes
    }

    /// A delta from `base` bytes to `size` with these orders.
    fn delta(base: usize, size: usize, orders: &[u8]) -> Vec<u8> {
        [number(base as u64), number(size as u64), orders.to_vec()].concat()
    }

    /// All but the last byte, and then `end`.
    fn tail(base: &[u8], end: u8) -> Vec<u8> {
        delta(base.len(), base.len(), &[0xb0, base.len() as u8 - 1, 0, 1, end])
    }

    #[test]
    fn objects_are_found_whether_sent_whole_or_made_from_others_before_or_behind_them() {
        let (one, two, three, four) = (b"hello\n", b"hello!", b"hello?", b"hello.");
        assert_eq!(blob(one).to_string(), "ce013625030ba8dba906f756967f9e9ca394464a");
        let first = entry(&Stored::Of(blob(three), &tail(three, b'.')));
        let whole = entry(&Stored::Whole(3, one));
        let behind = entry(&Stored::Behind(whole.len() as u64, &tail(one, b'!')));
        let of = entry(&Stored::Of(blob(two), &tail(two, b'?')));
        let mut pack = read(&pack(&[first, whole, behind, of])).unwrap();
        for content in [one, two, three, four] {
            let id = blob(content);
            assert_eq!(pack.kind(&id), Some(Type::Blob));
            assert_eq!(pack.size(&id, Type::Blob).unwrap(), 6);
            assert_eq!(**pack.object(&id, Type::Blob).unwrap(), *content);
            let mut written = Vec::new();
            pack.write(&id, Type::Blob, &mut written).unwrap();
            assert_eq!(written, content);
            assert!(pack.object(&id, Type::Tree).is_err());
        }
        assert_eq!(pack.kind(&blob(b"other")), None);
        assert!(pack.listing().map(|(name, ..)| name.to_vec()).is_sorted());
    }

    #[test]
    fn what_no_server_should_send_is_refused() {
        let base = b"hello\n";
        let whole = entry(&Stored::Whole(3, base));
        let made = |delta: &[u8]| pack(&[whole.clone(), entry(&Stored::Behind(whole.len() as u64, delta))]);
        let good = pack(std::slice::from_ref(&whole));
        let longer = [head(3, 5), zlib(base)].concat();
        let shorter = [head(3, 7), zlib(base)].concat();
        let mut damaged = good.clone();
        damaged[14] ^= 1;
        let more = sealed([&b"PACK\0\0\0\x02\0\0\0\0"[..], &whole].concat());
        let fewer = sealed([&b"PACK\0\0\0\x02\0\0\0\x02"[..], &whole].concat());
        let orders = |orders: &[u8]| made(&delta(6, 6, orders));
        let deep: Vec<Vec<u8>> = std::iter::once(whole.clone())
            .chain((0..4096).map(|at| {
                let delta = delta(6, 6, &[0x90, 6]);
                let length = entry(&Stored::Behind(1, &delta)).len() as u64;
                entry(&Stored::Behind(if at == 0 { whole.len() as u64 } else { length }, &delta))
            }))
            .collect();
        for (what, bytes, words) in [
            ("nothing", Vec::new(), "ends too early"),
            ("a page", b"<html>this is no pack</html>".to_vec(), "what is no pack"),
            ("half a pack", good[..good.len() / 2].to_vec(), "ends too early"),
            ("damaged", damaged, "not compressed"),
            ("more behind it", [good.clone(), b"x".to_vec()].concat(), "more than a pack"),
            ("more entries than it says", more, "checksum"),
            ("fewer entries than it says", fewer, "a"),
            ("longer", pack(&[longer]), "longer than it says"),
            ("shorter", pack(&[shorter]), "shorter than it says"),
            ("no type", pack(&[[head(5, 1), zlib(b"x")].concat()]), "no known type"),
            ("a size without end", pack(&[vec![0xbf; 40]]), "too large"),
            ("no zlib", pack(&[[head(3, 4), b"none".to_vec()].concat()]), "not compressed"),
            ("of nothing", pack(&[entry(&Stored::Behind(1, &tail(base, b'!')))]), "a delta of nothing"),
            ("of itself", pack(&[entry(&Stored::Behind(0, &tail(base, b'!')))]), "a delta of nothing"),
            ("of no entry", made(&[]), "ends too early"),
            (
                "of what is not there",
                pack(&[entry(&Stored::Of(blob(b"x"), &tail(base, b'!')))]),
                "a delta of what is not there",
            ),
            ("of another size", made(&delta(5, 6, &[0x90, 5])), "a delta of another object"),
            ("too little", orders(&[0x90, 5]), "makes less than it says"),
            ("too much", orders(&[0x90, 6, 0x90, 1]), "makes more than it says"),
            ("copies from behind the end", orders(&[0x91, 1, 6]), "copies what is not there"),
            ("copies from far away", orders(&[0x9f, 255, 255, 255, 255, 6]), "copies what is not there"),
            ("order 0", orders(&[0]), "makes more than it says"),
            ("half an order", orders(&[0x9f, 0]), "ends too early"),
            ("half a piece", orders(&[6, b'x']), "ends too early"),
            ("a long chain", pack(&deep), "a chain of deltas that is too long"),
        ] {
            let error = read(&bytes).err().unwrap_or_else(|| panic!("{what} is taken")).to_string();
            assert!(error.contains(words) && error.starts_with("the server of the repo"), "{what}: {error}");
        }
    }

    #[test]
    fn an_object_takes_no_memory_before_it_is_known_to_fit() {
        let whole = entry(&Stored::Whole(3, b"hello\n"));
        let huge = delta(6, 1 << 50, &[0x90, 6]);
        let bomb = pack(&[whole.clone(), entry(&Stored::Behind(whole.len() as u64, &huge))]);
        let error = read(&bomb).err().expect("a limit").to_string();
        assert!(error.contains("--limit git-memory=N"), "{error}");
        // What was sent whole is written in pieces, however large it is, but nothing is made from it.
        let large = vec![7; 80 << 20];
        let whole = entry(&Stored::Whole(3, &large));
        let mut pack = read(&pack(&[whole])).unwrap();
        let mut count = Count(0);
        pack.write(&blob(&large), Type::Blob, &mut count).unwrap();
        assert_eq!(count.0, large.len());
        assert!(pack.object(&blob(&large), Type::Blob).is_err());
    }

    struct Count(usize);

    impl Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn reading_ends_when_it_is_told_to() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&pack(&[entry(&Stored::Whole(3, b"x"))])).unwrap();
        let stopped: &dyn Fn() -> Result<(), GitError> = &|| Err(GitError::Cancelled);
        assert!(matches!(Pack::read(file, Kind::Sha1, MEMORY, stopped), Err(GitError::Cancelled)));
    }
}
