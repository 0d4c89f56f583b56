//! Compressing a layer while it is written, in the form that it is to have.

use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::thread::Scope;

use super::form::{Compression, LayerForm};
use super::gzip::GzipWriter;
use super::zstd_writer::ZstdWriter;

/// Compresses what is written to it. The bytes depend on the form alone, not on how many threads there are, nor on how
/// many bytes come at a time.
pub enum Compressor<W: Write> {
    /// One gzip member.
    Gzip(GzipWriter<W>),
    /// One zstd frame.
    Zstd(ZstdWriter<W>),
    /// The bytes as they are.
    Uncompressed(W),
}

impl<W: Write> Compressor<W> {
    /// Writes to `out`, with the help of `threads` threads of `scope`.
    ///
    /// # Errors
    /// When `out` fails, or memory is short.
    pub fn new<'scope>(
        out: W,
        form: LayerForm,
        threads: NonZeroUsize,
        scope: &'scope Scope<'scope, '_>,
    ) -> io::Result<Self> {
        Ok(match form.compression() {
            Compression::Gzip => Self::Gzip(GzipWriter::new(out, form.level(), threads, scope)?),
            Compression::Zstd => Self::Zstd(ZstdWriter::new(out, form.level(), threads)?),
            Compression::Uncompressed => Self::Uncompressed(out),
        })
    }

    /// Writes what is left; gives the output.
    ///
    /// # Errors
    /// When the output fails.
    pub fn finish(self) -> io::Result<W> {
        match self {
            Self::Gzip(gzip) => gzip.finish(),
            Self::Zstd(zstd) => zstd.finish(),
            Self::Uncompressed(out) => Ok(out),
        }
    }
}

impl<W: Write> Write for Compressor<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Gzip(gzip) => gzip.write(bytes),
            Self::Zstd(zstd) => zstd.write(bytes),
            Self::Uncompressed(out) => out.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
