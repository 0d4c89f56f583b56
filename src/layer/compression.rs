//! Undoing the compression of layers and archives, told by their first bytes.

use std::io::{self, BufReader, Read};

use super::Limits;
use super::gzip::GunzipReader;
use super::xz::XzReader;
use super::zstd::{Side, ZstdReader};

/// Which compressions are undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Formats {
    /// Those of layers: gzip, zstd and none.
    Layer,
    /// Those of archives that ADD extracts: bzip2 and xz too.
    Archive,
}

/// What the first bytes say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compression {
    None,
    Gzip,
    Zstd,
    Bzip2,
    Xz,
}

impl Compression {
    fn detect(start: &[u8]) -> Self {
        match start {
            [0x1f, 0x8b, ..] => Self::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Self::Zstd,
            // A frame to be skipped, as at the start of some seekable files.
            [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Self::Zstd,
            [b'B', b'Z', b'h', b'1'..=b'9', ..] => Self::Bzip2,
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Self::Xz,
            _ => Self::None,
        }
    }
}

/// Bytes of the head that are looked at: the longest signature.
const HEAD: usize = 6;

/// Reads `reader` uncompressed. The media type is a hint that nobody checks, so the first bytes decide; unknown ones are
/// handed on as they are.
///
/// Several gzip members or zstd frames are one stream; zeros may follow, anything else is an error, and so is a wrong
/// checksum or an early end.
///
/// # Errors
/// When the head cannot be read, or the compression is not among `formats`. Reading fails where that needs more memory
/// than allowed: [`Limits::window`] is the most for zstd's window (rounded down to a power of two) and for the dictionary
/// of each block of xz.
pub fn decompress<'a>(
    reader: impl Read + Send + 'a,
    formats: Formats,
    limits: &Limits,
) -> io::Result<Box<dyn Read + Send + 'a>> {
    detect_and_decompress(reader, formats, limits, None)
}

/// [`decompress`] for one of several layers that are read at the same time: whoever has a zstd window of more than 8 MiB
/// makes others who want one wait, until it reaches the end of such frames or is dropped.
///
/// # Errors
/// As [`decompress`]. A reader that is stopped while it waits fails.
pub fn decompress_beside<'a>(
    reader: impl Read + Send + 'a,
    formats: Formats,
    limits: &Limits,
    side: Side<'a>,
) -> io::Result<Box<dyn Read + Send + 'a>> {
    detect_and_decompress(reader, formats, limits, Some(side))
}

fn detect_and_decompress<'a>(
    mut reader: impl Read + Send + 'a,
    formats: Formats,
    limits: &Limits,
    side: Option<Side<'a>>,
) -> io::Result<Box<dyn Read + Send + 'a>> {
    let window = limits.window;
    let mut head = Vec::with_capacity(HEAD);
    reader.by_ref().take(HEAD as u64).read_to_end(&mut head)?;
    let compression = Compression::detect(&head);
    let whole = io::Cursor::new(head).chain(reader);
    if compression == Compression::Zstd {
        return Ok(Box::new(ZstdReader::new(whole, window, side)));
    }
    let whole = BufReader::with_capacity(1 << 16, whole);
    match (compression, formats) {
        (Compression::None | Compression::Zstd, _) => Ok(Box::new(whole)),
        (Compression::Gzip, _) => Ok(Box::new(GunzipReader::new(whole))),
        (Compression::Bzip2, Formats::Archive) => Ok(Box::new(bzip2::bufread::MultiBzDecoder::new(whole))),
        (Compression::Xz, Formats::Archive) => Ok(Box::new(XzReader::new(whole, window))),
        (Compression::Bzip2 | Compression::Xz, Formats::Layer) => Err(invalid(format!(
            "a layer compressed with {compression:?}; layers are gzip, zstd or not compressed"
        ))),
    }
}

pub(super) fn invalid(message: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn read(bytes: &[u8], formats: Formats) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        decompress(bytes, formats, &Limits::default())?.read_to_end(&mut out)?;
        Ok(out)
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn bzip2(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    /// `printf hello | xz`
    const XZ: &[u8] = b"\xfd7zXZ\0\0\x04\xe6\xd6\xb4F\x02\0!\x01\x16\0\0\0t/\xe5\xa3\x01\0\x04hello\0\0\0\0\xb17\xb9\xdb\xe5\xda\x1e\x9b\0\x01\x1d\x05\xb8-\x80\xaf\x1f\xb6\xf3}\x01\0\0\0\0\x04YZ";

    #[test]
    fn the_first_bytes_decide() {
        let zstd = zstd::encode_all(&b"hello"[..], 3).unwrap();
        let skippable = [&b"\x50\x2a\x4d\x18\x01\0\0\0x"[..], &zstd].concat();
        for bytes in [&gzip(b"hello"), &zstd, &skippable, &b"hello".to_vec()] {
            assert_eq!(read(bytes, Formats::Layer).unwrap(), b"hello");
            assert_eq!(read(bytes, Formats::Archive).unwrap(), b"hello");
        }
        for bytes in [&bzip2(b"hello"), &XZ.to_vec()] {
            assert_eq!(read(bytes, Formats::Archive).unwrap(), b"hello");
            assert!(read(bytes, Formats::Layer).unwrap_err().to_string().contains("layers are gzip"));
        }
        assert_eq!(read(b"", Formats::Layer).unwrap(), b"");
    }

    #[test]
    fn several_members_and_zeros_are_fine_and_everything_else_is_not() {
        let good = gzip(b"hello");
        let mut wrong_sum = good.clone();
        let at = wrong_sum.len() - 8;
        wrong_sum[at] ^= 1;
        let mut wrong_size = good.clone();
        *wrong_size.last_mut().unwrap() ^= 1;
        let zstd = zstd::encode_all(&b"hello"[..], 3).unwrap();
        let accepted: [(&[u8], &[u8]); 4] = [
            (&[&good[..], &gzip(b" again")].concat(), b"hello again"),
            (&[&good[..], &[0; 1000]].concat(), b"hello"),
            (&[&good[..], &gzip(b"")].concat(), b"hello"),
            (&[&zstd[..], &zstd].concat(), b"hellohello"),
        ];
        for (bytes, expected) in accepted {
            assert_eq!(read(bytes, Formats::Layer).unwrap(), expected);
        }
        let refused: [&[u8]; 9] = [
            &[&good[..], b"JUNKJUNK"].concat(),
            &[&good[..], b"\x1f"].concat(),
            &[&good[..], &[0; 100], b"x"].concat(),
            &[&good[..], &[0; 100], &good].concat(),
            &good[..good.len() - 1],
            &good[..12],
            &wrong_sum,
            &wrong_size,
            &zstd[..zstd.len() - 1],
        ];
        for (index, bytes) in refused.into_iter().enumerate() {
            assert!(read(bytes, Formats::Layer).is_err(), "{index}");
        }
    }

    #[test]
    fn memory_that_a_head_asks_for_is_limited() {
        // Frame headers without content size; the window byte is (log - 10) << 3.
        let frame = |log: u8| [&b"\x28\xb5\x2f\xfd\x00"[..], &[(log - 10) << 3], b"\x29\0\0hello"].concat();
        assert_eq!(read(&frame(27), Formats::Layer).unwrap(), b"hello");
        let error = read(&frame(31), Formats::Layer).unwrap_err();
        assert!(error.to_string().contains("134217728"), "{error}");
        let mut xz = XZ.to_vec();
        xz[16] = 40;
        assert!(read(&xz, Formats::Archive).unwrap_err().to_string().contains("dictionary"));
    }
}
