//! A stored layer in another form: decompressed, verified, its times lowered if need be, and compressed anew.

use std::io::{self, Read, Write};
use std::num::NonZeroUsize;

use super::compressor::Compressor;
use super::form::{LayerForm, Rewrite};
use super::tar::{EntryKind, Reader};
use super::tar_writer::{Head, TarWriter};
use super::zstd::Side;
use super::{Formats, LayerError, Limits, TarError, decompress_beside};
use crate::image::digest::{Algorithm, DiffId, Hashing};

/// Bytes that are handled at a time.
const CHUNK: usize = 1 << 17;

/// Why there is no other form.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// The layer cannot be read.
    #[error("cannot read the layer")]
    Read(#[source] io::Error),
    /// The layer is not the archive that the image says.
    #[error("the layer is {actual} when it is uncompressed, and not {expected}, which the image says")]
    DiffId {
        /// What the image says.
        expected: DiffId,
        /// What it is.
        actual: DiffId,
    },
    /// The archive cannot be understood, or the new one not be written.
    #[error(transparent)]
    Layer(#[from] LayerError),
}

/// How a layer is converted.
pub struct Conversion<'a> {
    /// What it becomes.
    pub form: LayerForm,
    /// What becomes of modification times; the diff id changes then.
    pub rewrite: Option<Rewrite>,
    /// How many threads compress.
    pub threads: NonZeroUsize,
    /// How much the layer may hold.
    pub limits: &'a Limits,
    /// What those who read layers at the same time share.
    pub side: Side<'a>,
}

/// Reads the layer `stored`, which uncompressed must be `diff_id`, and writes it to `out` in another form. Gives the diff
/// id of what was written. Memory: what compressing takes, and one extended header.
///
/// # Errors
/// [`ConvertError`]; what was written so far is of no use then.
pub fn convert(
    stored: impl Read + Send,
    diff_id: &DiffId,
    out: &mut dyn Write,
    conversion: &Conversion<'_>,
) -> Result<DiffId, ConvertError> {
    let limits = conversion.limits;
    let archive =
        decompress_beside(stored, Formats::Layer, limits, conversion.side).map_err(ConvertError::Read)?;
    let limited = archive.take(limits.bytes.value.saturating_add(1));
    let mut archive = HashingReader { inner: limited, hashing: Hashing::new(io::sink(), Algorithm::Sha256) };
    let output = |error| ConvertError::Layer(LayerError::Output(error));
    let written = std::thread::scope(|scope| {
        let compressor = Compressor::new(out, conversion.form, conversion.threads, scope).map_err(output)?;
        let (diff_id, compressor) = match conversion.rewrite {
            None => (None, copy(&mut archive, compressor)?),
            Some(rewrite) => {
                let (diff_id, compressor) = retime(&mut archive, compressor, rewrite, limits)?;
                (Some(diff_id), compressor)
            }
        };
        compressor.finish().and_then(|out| out.flush()).map_err(output)?;
        Ok::<_, ConvertError>(diff_id)
    })?;
    if archive.inner.limit() == 0 {
        return Err(LayerError::Tar(TarError::TooLarge(limits.bytes)).into());
    }
    let actual = DiffId(archive.hashing.finish().0);
    if actual != *diff_id {
        return Err(ConvertError::DiffId { expected: diff_id.clone(), actual });
    }
    Ok(written.unwrap_or(actual))
}

/// Knows the digest of what was read.
struct HashingReader<R> {
    inner: R,
    hashing: Hashing<io::Sink>,
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.hashing.write_all(&buffer[..count])?;
        Ok(count)
    }
}

/// Copies everything.
fn copy<W: Write>(from: &mut impl Read, mut to: W) -> Result<W, ConvertError> {
    let mut buffer = vec![0; CHUNK];
    loop {
        let count = match from.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            result => result.map_err(ConvertError::Read)?,
        };
        if count == 0 {
            return Ok(to);
        }
        to.write_all(&buffer[..count]).map_err(LayerError::Output)?;
    }
}

/// Writes the entries of an archive again, with their times as `rewrite` says: the bytes are those that [`super::write()`]
/// writes of such entries.
fn retime<W: Write>(
    archive: &mut impl Read,
    out: W,
    rewrite: Rewrite,
    limits: &Limits,
) -> Result<(DiffId, W), LayerError> {
    let mut reader = Reader::new(archive, limits);
    let mut writer = TarWriter::new(out);
    let mut buffer = vec![0; CHUNK];
    while let Some(entry) = reader.next_entry()? {
        let type_flag = match entry.kind {
            EntryKind::File => b'0',
            EntryKind::HardLink => b'1',
            EntryKind::Symlink => b'2',
            EntryKind::CharDevice => b'3',
            EntryKind::BlockDevice => b'4',
            EntryKind::Directory => b'5',
            EntryKind::Fifo => b'6',
        };
        let head = Head {
            name: &entry.path,
            type_flag,
            mode: entry.mode,
            owner: entry.owner,
            size: entry.size,
            mtime: rewrite.of(entry.mtime),
            link: &entry.link,
            device: entry.device,
            xattrs: &entry.xattrs,
        };
        writer.head(&head).map_err(LayerError::Output)?;
        loop {
            let count = reader.read_content(&mut buffer)?;
            if count == 0 {
                break;
            }
            writer.content(&buffer[..count]).map_err(LayerError::Output)?;
        }
        writer.pad(entry.size).map_err(LayerError::Output)?;
    }
    reader.drain()?;
    let (diff_id, _, out) = writer.finish().map_err(LayerError::Output)?;
    Ok((diff_id, out))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use proptest::prelude::*;

    use super::super::form::Compression;
    use super::super::zstd::LargeWindows;
    use super::super::{Change, Changeset, WriteOptions, write_with};
    use super::*;
    use crate::image::digest::Digest;
    use crate::limit::Limit;
    use crate::rootfs::{GuestPath, Rootfs, Timestamp, set_times_at, set_xattr_at};

    fn form(text: &str) -> LayerForm {
        text.parse().unwrap()
    }

    fn converted(
        stored: &[u8],
        diff_id: &DiffId,
        form: LayerForm,
        rewrite: Option<Rewrite>,
        limits: &Limits,
    ) -> Result<(DiffId, Vec<u8>), ConvertError> {
        let windows = LargeWindows::default();
        let side = Side { windows: &windows, cancelled: &|| false };
        let threads = NonZeroUsize::new(2).unwrap();
        let mut out = Vec::new();
        let conversion = Conversion { form, rewrite, threads, limits, side };
        convert(stored, diff_id, &mut out, &conversion).map(|diff_id| (diff_id, out))
    }

    /// Files with odd times, a hard link, attributes, a long name and a removed one, all in a layer.
    fn layer(latest: Option<Timestamp>, form: LayerForm) -> (DiffId, Vec<u8>) {
        let directory = tempfile::tempdir().unwrap();
        let root = Rootfs::open(directory.path()).unwrap();
        let long = "n".repeat(180);
        let mut changes = vec![Change::Remove(GuestPath::clamp(b"gone").unwrap())];
        let at = |name: &str| directory.path().join(name);
        std::fs::create_dir(at("d")).unwrap();
        for (name, content) in
            [("d/a", "a".repeat(1000)), ("d/b", String::new()), (&long, "x".repeat(70_000))]
        {
            std::fs::write(at(name), content).unwrap();
        }
        rustix::fs::linkat(&root, "d/a", &root, "d/link", rustix::fs::AtFlags::empty()).unwrap();
        rustix::fs::symlinkat("d/a", &root, "symlink").unwrap();
        let times = [
            ("d/a", 2_000_000_000, 5),
            ("d/b", -7, 500_000_000),
            ("symlink", 1_500_000_000, 0),
            (&long, 1_500_000_000, 1),
            ("d", 1_499_999_999, 999_999_999),
        ];
        for (name, seconds, nanoseconds) in times {
            if name == "d/a" && set_xattr_at(root.as_fd(), b"d/a", b"user.x", b"y").is_err() {
                eprintln!("skipped: no attributes here");
            }
            set_times_at(root.as_fd(), name.as_bytes(), Timestamp { seconds, nanoseconds }).unwrap();
        }
        for name in ["d", "d/a", "d/b", "d/link", "symlink", &long] {
            changes.push(Change::Put(GuestPath::clamp(name.as_bytes()).unwrap()));
        }
        let changes: Changeset = changes.into_iter().collect();
        let mut blob = Vec::new();
        let options = WriteOptions { form, latest, ..WriteOptions::default() };
        let written = write_with(&changes, &root, &mut blob, &options).unwrap();
        (written.diff_id, blob)
    }

    #[test]
    fn forms_differ_in_their_bytes_and_not_in_what_they_hold() {
        let names = ["gzip-0", "gzip-6", "gzip-9", "zstd-0", "zstd-3", "zstd-19", "uncompressed"];
        let written: Vec<_> = names.iter().map(|name| layer(None, form(name))).collect();
        let limits = Limits::default();
        for (from, (diff_id, blob)) in names.iter().zip(&written) {
            assert_eq!(*diff_id, written[0].0, "{from}");
            for (to, (_, expected)) in names.iter().zip(&written) {
                let (same, bytes) = converted(blob, diff_id, form(to), None, &limits).unwrap();
                assert_eq!(same, *diff_id);
                assert!(bytes == *expected, "{from} to {to}");
            }
        }
        let (diff_id, uncompressed) = written.last().unwrap();
        assert_eq!(Digest::of(uncompressed), diff_id.0);
    }

    #[test]
    fn times_are_lowered_as_if_the_layer_had_been_written_so() {
        let (diff_id, blob) = layer(None, LayerForm::PASSING);
        for seconds in [-8, 0, 1_499_999_999, 1_500_000_000, 3_000_000_000] {
            let (rewrite, latest) =
                (Some(Rewrite::Later(seconds)), Some(Timestamp { seconds, nanoseconds: 0 }));
            for name in ["gzip-6", "zstd-3", "uncompressed"] {
                let again = converted(&blob, &diff_id, form(name), rewrite, &Limits::default()).unwrap();
                assert!(again == layer(latest, form(name)), "{seconds} {name}");
            }
        }
        let late = Some(Rewrite::Later(3_000_000_000));
        let (same, _) = converted(&blob, &diff_id, LayerForm::default(), late, &Limits::default()).unwrap();
        assert_eq!(same, diff_id);
    }

    #[test]
    fn all_times_are_replaced_where_that_is_wanted() {
        let (diff_id, blob) = layer(None, LayerForm::PASSING);
        for epoch in [-8, 0, 1_600_000_000, 3_000_000_000] {
            let limits = Limits::default();
            let (other, tar) =
                converted(&blob, &diff_id, form("uncompressed"), Some(Rewrite::All(epoch)), &limits).unwrap();
            let mut reader = Reader::new(tar.as_slice(), &limits);
            let mut count = 0;
            while let Some(entry) = reader.next_entry().unwrap() {
                assert_eq!(entry.mtime, Timestamp { seconds: epoch, nanoseconds: 0 });
                count += 1;
            }
            assert_eq!(count, 7);
            let again = converted(&tar, &other, form("uncompressed"), Some(Rewrite::All(epoch)), &limits);
            assert!(again.unwrap() == (other, tar));
        }
    }

    #[test]
    fn what_is_not_what_it_should_be_is_an_error() {
        let (diff_id, blob) = layer(None, LayerForm::default());
        let gzip = LayerForm::default();
        let rewrite = Some(Rewrite::All(0));
        let (few, other) = (Limit::new("layer-bytes", 10_000), DiffId(Digest::of(b"another")));
        for rewrite in [None, rewrite] {
            let limits = Limits::default();
            let cut = converted(&blob[..blob.len() - 20], &diff_id, gzip, rewrite, &limits);
            assert!(cut.is_err());
            let error = converted(&blob, &other, gzip, rewrite, &limits).unwrap_err();
            assert!(matches!(error, ConvertError::DiffId { .. }), "{error}");
            let limits = Limits { bytes: few, ..limits };
            let error = converted(&blob, &diff_id, gzip, rewrite, &limits).unwrap_err();
            assert!(error.to_string().contains("layer-bytes"), "{error}");
        }
        let archive = b"no archive".repeat(200);
        let error = converted(&archive, &DiffId(Digest::of(&archive)), gzip, rewrite, &Limits::default())
            .unwrap_err();
        assert!(matches!(error, ConvertError::Layer(LayerError::Tar(_))), "{error}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 20, ..ProptestConfig::default() })]
        #[test]
        fn the_bytes_do_not_depend_on_threads_nor_on_the_pieces_they_come_in(
            seed in any::<u64>(), length in 0usize..6_000_000, piece in 1usize..3_000_000, level in 0u32..=10,
        ) {
            let mut state = seed | 1;
            let bytes: Vec<u8> = (0..length).map(|at| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                if at / 5000 % 2 == 0 { state as u8 } else { b"some text that comes again"[at % 26] }
            }).collect();
            let compressed = |threads: usize, piece: usize| {
                std::thread::scope(|scope| {
                    let form = LayerForm::new(Compression::Zstd, Some(&level.to_string())).unwrap();
                    let threads = NonZeroUsize::new(threads).unwrap();
                    let mut writer = Compressor::new(Vec::new(), form, threads, scope).unwrap();
                    for part in bytes.chunks(piece) {
                        writer.write_all(part).unwrap();
                        writer.flush().unwrap();
                    }
                    writer.finish().unwrap()
                })
            };
            let one = compressed(1, length.max(1));
            prop_assert!(one == compressed(2, piece));
            prop_assert!(one == compressed(7, 1 << 17));
            prop_assert!(::zstd::decode_all(&one[..]).unwrap() == bytes);
        }
    }
}
