//! A builder of tar archives that tidies nothing up, for archives that try something.

#![allow(dead_code, reason = "unit tests and integration tests include this file; neither uses all of it")]

/// One header, field by field; nothing is checked.
pub(crate) struct Header {
    pub(crate) name: Vec<u8>,
    pub(crate) flag: u8,
    pub(crate) size: u64,
    pub(crate) raw_size: Option<[u8; 12]>,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) link: Vec<u8>,
    pub(crate) mtime: u64,
    pub(crate) device: (u32, u32),
    pub(crate) magic: [u8; 8],
}

pub(crate) const GNU: [u8; 8] = *b"ustar  \0";

pub(crate) fn header(name: impl AsRef<[u8]>, flag: u8) -> Header {
    Header {
        name: name.as_ref().to_vec(),
        flag,
        size: 0,
        raw_size: None,
        mode: 0o644,
        uid: 0,
        link: Vec::new(),
        mtime: 0,
        device: (0, 0),
        magic: *b"ustar\x0000",
    }
}

impl Header {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut block = vec![0; 512];
        let name = &self.name[..self.name.len().min(100)];
        let link = &self.link[..self.link.len().min(100)];
        block[..name.len()].copy_from_slice(name);
        block[157..157 + link.len()].copy_from_slice(link);
        let mut octal = |at: usize, width: usize, value: u64| {
            block[at..at + width - 1]
                .copy_from_slice(format!("{value:0width$o}", width = width - 1).as_bytes());
        };
        octal(100, 8, self.mode.into());
        octal(108, 8, self.uid.into());
        octal(116, 8, 0);
        octal(124, 12, self.size);
        octal(136, 12, self.mtime);
        octal(329, 8, self.device.0.into());
        octal(337, 8, self.device.1.into());
        if let Some(raw) = self.raw_size {
            block[124..136].copy_from_slice(&raw);
        }
        block[156] = self.flag;
        block[257..265].copy_from_slice(&self.magic);
        block[265..269].copy_from_slice(b"root");
        with_checksum(block)
    }
}

pub(crate) fn with_checksum(mut block: Vec<u8>) -> Vec<u8> {
    block[148..156].fill(b' ');
    let sum: u32 = block[..512].iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

pub(crate) fn padded(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

pub(crate) fn file(name: impl AsRef<[u8]>, content: &[u8]) -> Vec<u8> {
    let header = Header { size: content.len() as u64, ..header(name, b'0') };
    [header.bytes(), padded(content)].concat()
}

/// A directory of mode 0755.
pub(crate) fn dir(name: impl AsRef<[u8]>) -> Vec<u8> {
    dir_mode(name, 0o755)
}

pub(crate) fn dir_mode(name: impl AsRef<[u8]>, mode: u32) -> Vec<u8> {
    Header { mode, ..header(name, b'5') }.bytes()
}

pub(crate) fn symlink(name: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Vec<u8> {
    Header { link: target.as_ref().to_vec(), mode: 0o777, ..header(name, b'2') }.bytes()
}

pub(crate) fn hard_link(name: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Vec<u8> {
    Header { link: target.as_ref().to_vec(), ..header(name, b'1') }.bytes()
}

pub(crate) fn device(name: impl AsRef<[u8]>, flag: u8, device: (u32, u32)) -> Vec<u8> {
    Header { device, ..header(name, flag) }.bytes()
}

pub(crate) fn extension(name: &str, flag: u8, magic: [u8; 8], body: &[u8]) -> Vec<u8> {
    let header = Header { size: body.len() as u64, magic, ..header(name, flag) };
    [header.bytes(), padded(body)].concat()
}

pub(crate) fn pax(records: &[(&str, &[u8])]) -> Vec<u8> {
    pax_header(b'x', records)
}

pub(crate) fn pax_header(flag: u8, records: &[(&str, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    for (key, value) in records {
        body.extend(record(key.as_bytes(), value));
    }
    extension("./PaxHeaders/x", flag, *b"ustar\x0000", &body)
}

/// `LENGTH KEY=VALUE\n`; the length counts itself.
pub(crate) fn record(key: &[u8], value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let length = (1..).map(|digits| rest + digits).find(|length| rest + length.to_string().len() == *length);
    [length.unwrap_or(rest).to_string().as_bytes(), b" ", key, b"=", value, b"\n"].concat()
}

pub(crate) fn gnu_long(flag: u8, name: &[u8]) -> Vec<u8> {
    extension("././@LongLink", flag, GNU, name)
}

pub(crate) fn end() -> Vec<u8> {
    vec![0; 1024]
}

/// A header with other bytes at some place, and the checksum for that.
pub(crate) fn patched(mut block: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    block[at..at + bytes.len()].copy_from_slice(bytes);
    with_checksum(block)
}

/// An entry of GNU's old sparse format: `stored` bytes behind a map of `pieces`, each with offset and length.
pub(crate) fn sparse(name: &str, size: u64, pieces: &[(u64, u64)], stored: &[u8]) -> Vec<u8> {
    let field = |number: u64| match format!("{number:011o}\0") {
        octal if octal.len() == 12 => octal.into_bytes(),
        _ => [&[0x80, 0, 0, 0][..], &number.to_be_bytes()].concat(),
    };
    let pair = |(offset, length): &(u64, u64)| [field(*offset), field(*length)].concat();
    let mut block = Header { magic: GNU, size: stored.len() as u64, ..header(name, b'S') }.bytes();
    let (first, rest) = pieces.split_at(pieces.len().min(4));
    let map: Vec<u8> = first.iter().flat_map(pair).collect();
    block[386..386 + map.len()].copy_from_slice(&map);
    block[482] = u8::from(!rest.is_empty());
    block[483..495].copy_from_slice(&field(size));
    let mut archive = with_checksum(block);
    let mut chunks = rest.chunks(21).peekable();
    while let Some(chunk) = chunks.next() {
        let mut more: Vec<u8> = chunk.iter().flat_map(pair).collect();
        more.resize(512, 0);
        more[504] = u8::from(chunks.peek().is_some());
        archive.extend(more);
    }
    archive.extend(padded(stored));
    archive
}

/// The entry of a sparse file in PAX form: `stored`, under a made-up name, behind `records`.
pub(crate) fn sparse_entry(records: &[(&str, &[u8])], stored: &[u8]) -> Vec<u8> {
    [pax(records), file("GNUSparseFile.0/made-up", stored)].concat()
}

/// The versions of sparse files in PAX form.
pub(crate) const SPARSE_VERSIONS: [&str; 3] = ["0.0", "0.1", "1.0"];

/// An entry as GNU tar writes it in one of [`SPARSE_VERSIONS`]: `stored` behind a map of `pieces`, each with offset and
/// length.
pub(crate) fn sparse_pax(
    version: &str,
    name: &str,
    size: u64,
    pieces: &[(u64, u64)],
    stored: &[u8],
) -> Vec<u8> {
    let count = pieces.len().to_string();
    let size = size.to_string();
    let numbers = pieces.iter().flat_map(|(offset, length)| [offset.to_string(), length.to_string()]);
    let numbers: Vec<String> = numbers.collect();
    let first: [(&str, &[u8]); 2] =
        [("GNU.sparse.size", size.as_bytes()), ("GNU.sparse.numblocks", count.as_bytes())];
    match version {
        "0.0" => {
            let keys = ["GNU.sparse.offset", "GNU.sparse.numbytes"].into_iter().cycle();
            let pairs = keys.zip(numbers.iter().map(String::as_bytes));
            let records: Vec<_> = first.into_iter().chain(pairs).chain([("path", name.as_bytes())]).collect();
            sparse_entry(&records, stored)
        }
        "0.1" => {
            let map = numbers.join(",");
            let rest = [("GNU.sparse.name", name.as_bytes()), ("GNU.sparse.map", map.as_bytes())];
            sparse_entry(&[first, rest].concat(), stored)
        }
        _ => {
            let map = [&[count], &numbers[..]].concat().join("\n") + "\n";
            sparse_1_0(name, size.as_bytes(), map.as_bytes(), stored)
        }
    }
}

/// An entry of version 1.0 with any map before what is stored.
pub(crate) fn sparse_1_0(name: &str, size: &[u8], map: &[u8], stored: &[u8]) -> Vec<u8> {
    let records: [(&str, &[u8]); 4] = [
        ("GNU.sparse.major", b"1"),
        ("GNU.sparse.minor", b"0"),
        ("GNU.sparse.name", name.as_bytes()),
        ("GNU.sparse.realsize", size),
    ];
    sparse_entry(&records, &[padded(map), stored.to_vec()].concat())
}
