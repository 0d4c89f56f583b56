//! Tar archives as they are written: headers, padding, the end, and the digest of all of it.
//!
//! The archive is ustar where everything fits and PAX where it does not, as Go's `archive/tar` writes it for BuildKit.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::pax;
use super::tar::BLOCK;
use crate::image::digest::{Algorithm, DiffId, Hashing};
use crate::rootfs::{Owner, Timestamp, Xattrs};

/// What a header says.
pub(super) struct Head<'a> {
    pub(super) name: &'a [u8],
    pub(super) type_flag: u8,
    pub(super) mode: u32,
    pub(super) owner: Owner,
    pub(super) size: u64,
    pub(super) mtime: Timestamp,
    pub(super) link: &'a [u8],
    pub(super) device: (u32, u32),
    pub(super) xattrs: &'a Xattrs,
}

/// Writes entries one after the other. Equal entries are equal bytes.
pub(super) struct TarWriter<W> {
    out: Hashing<W>,
    entries: u64,
}

impl<W: Write> TarWriter<W> {
    /// An archive without entries yet.
    pub(super) fn new(out: W) -> Self {
        Self { out: Hashing::new(out, Algorithm::Sha256), entries: 0 }
    }

    /// Writes content of the entry whose head came last.
    pub(super) fn content(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)
    }

    /// Ends the archive. Gives its digest, how many entries it has, and the output.
    pub(super) fn finish(mut self) -> io::Result<(DiffId, u64, W)> {
        self.out.write_all(&[0; 2 * BLOCK])?;
        let (digest, out) = self.out.finish();
        Ok((DiffId(digest), self.entries, out))
    }

    /// Writes what comes before the content of an entry.
    pub(super) fn head(&mut self, head: &Head<'_>) -> io::Result<()> {
        self.entries += 1;
        let mut block = [0; BLOCK];
        let mut records: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        if !put_name(&mut block, head.name) {
            records.insert(b"path".to_vec(), head.name.to_vec());
        }
        if !put_text(&mut block[157..257], head.link) {
            records.insert(b"linkpath".to_vec(), head.link.to_vec());
        }
        for (key, value, start, width) in [
            (&b"uid"[..], u64::from(head.owner.uid), 108, 8),
            (b"gid", u64::from(head.owner.gid), 116, 8),
            (b"size", head.size, 124, 12),
        ] {
            if !put_octal(&mut block[start..start + width], value) {
                records.insert(key.to_vec(), value.to_string().into_bytes());
            }
        }
        let whole_seconds = u64::try_from(head.mtime.seconds).unwrap_or(0);
        let exact = put_octal(&mut block[136..148], whole_seconds);
        if !exact || head.mtime.seconds < 0 || head.mtime.nanoseconds != 0 {
            records.insert(b"mtime".to_vec(), pax::format_time(head.mtime));
        }
        for (key, value) in head.xattrs {
            records.insert([pax::XATTR_PREFIX, key].concat(), value.clone());
        }
        if !records.is_empty() {
            self.extended_header(head.name, &records)?;
        }
        put_octal(&mut block[100..108], head.mode.into());
        put_octal(&mut block[329..337], head.device.0.into());
        put_octal(&mut block[337..345], head.device.1.into());
        self.block(block, head.type_flag)
    }

    /// Writes the PAX records of the entry that follows.
    fn extended_header(&mut self, name: &[u8], records: &BTreeMap<Vec<u8>, Vec<u8>>) -> io::Result<()> {
        let mut body = Vec::new();
        for (key, value) in records {
            pax::push_record(&mut body, key, value);
        }
        let mut block = [0; BLOCK];
        let name = name.strip_suffix(b"/").unwrap_or(name);
        let slash = name.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        // Only readers without PAX see this name.
        let shown = [&name[..slash], b"PaxHeaders.0/", &name[slash..]].concat();
        put_shortened(&mut block[..100], &shown);
        put_octal(&mut block[100..108], 0);
        put_octal(&mut block[108..116], 0);
        put_octal(&mut block[116..124], 0);
        put_octal(&mut block[124..136], body.len() as u64);
        put_octal(&mut block[136..148], 0);
        self.block(block, b'x')?;
        self.out.write_all(&body)?;
        self.pad(body.len() as u64)
    }

    /// Completes a header with type, signature and checksum.
    fn block(&mut self, mut block: [u8; BLOCK], type_flag: u8) -> io::Result<()> {
        block[156] = type_flag;
        block[257..265].copy_from_slice(b"ustar\x0000");
        block[148..156].fill(b' ');
        let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
        put_octal(&mut block[148..155], sum);
        self.out.write_all(&block)
    }

    /// Fills the block in which `size` bytes of content end.
    pub(super) fn pad(&mut self, size: u64) -> io::Result<()> {
        let padding = (size.wrapping_neg() % BLOCK as u64) as usize;
        self.out.write_all(&[0; BLOCK][..padding])
    }
}

/// Puts a number and its final NUL into a field; if it does not fit, a 0.
fn put_octal(field: &mut [u8], number: u64) -> bool {
    let width = field.len() - 1;
    let text = format!("{number:0width$o}");
    let fits = text.len() == width;
    if fits {
        field[..width].copy_from_slice(text.as_bytes())
    } else {
        field[..width].fill(b'0')
    }
    fits
}

fn put_shortened(field: &mut [u8], text: &[u8]) {
    let ascii = text.iter().filter(|byte| byte.is_ascii());
    for (place, byte) in field.iter_mut().zip(ascii) {
        *place = *byte;
    }
}

/// Puts a text into a field; if it does not fit, or is not ASCII and so depends on the reader's character set, as much
/// as possible.
fn put_text(field: &mut [u8], text: &[u8]) -> bool {
    put_shortened(field, text);
    text.is_ascii() && text.len() <= field.len()
}

/// Puts a name into the name field, or into name and prefix.
fn put_name(block: &mut [u8; BLOCK], name: &[u8]) -> bool {
    if name.is_ascii() && name.len() > 100 {
        // The last slash that leaves a prefix of at most 155 bytes; one at the very end separates nothing.
        let end = name.len().min(156);
        let search = if end == name.len() && name.ends_with(b"/") { &name[..end - 1] } else { &name[..end] };
        if let Some(slash) = search.iter().rposition(|byte| *byte == b'/').filter(|slash| *slash > 0) {
            let rest = &name[slash + 1..];
            if !rest.is_empty() && rest.len() <= 100 {
                put_shortened(&mut block[345..500], &name[..slash]);
                return put_text(&mut block[..100], rest);
            }
        }
    }
    put_text(&mut block[..100], name)
}
