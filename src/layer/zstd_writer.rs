//! Zstandard as it is written: one frame, compressed in parallel sections, with bounded memory at every level.

use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::sync::{Condvar, Mutex, PoisonError};

use ::zstd::stream::raw::{CParameter, Encoder, InBuffer, Operation, OutBuffer};

/// Compressed bytes that are collected before they are handed on.
const OUT: usize = 1 << 17;

/// Memory that all writers of this process may have together, in MB; those that want more wait until others are done.
const MOST: u32 = 48;

/// Who has how much of it.
static SHARED: (Mutex<u32>, Condvar) = (Mutex::new(0), Condvar::new());

/// A part of the memory. It is given back when the value is dropped.
struct Share(u32);

impl Share {
    /// Waits for `megabytes`. Nobody who has a share waits for another.
    fn take(megabytes: u32) -> Self {
        let wanted = megabytes.min(MOST);
        let taken = SHARED.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |taken: &mut u32| *taken + wanted > MOST;
        let mut taken = SHARED.1.wait_while(taken, fits).unwrap_or_else(PoisonError::into_inner);
        *taken += wanted;
        Self(wanted)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        *SHARED.0.lock().unwrap_or_else(PoisonError::into_inner) -= self.0;
        SHARED.1.notify_all();
    }
}

/// How a level is compressed, beyond what zstd itself makes of it.
struct Effort {
    /// The level as zstd counts; at 0 it takes its usual one, where BuildKit takes the fastest.
    level: i32,
    /// Uncompressed bytes of a section, which one thread compresses. All of the window before it is known to it; a tenth
    /// would be lost otherwise at level 9.
    section: u32,
    /// Logarithms of the window and of the tables in which repetitions are looked up, where those of the level are larger.
    limits: Option<[CParameter; 3]>,
    /// The most threads: each has its tables and a section.
    threads: usize,
    /// Memory for all of it, as measured.
    megabytes: u32,
}

impl Effort {
    /// The frame depends on this and on the bytes alone. Readers must take windows of 8 MiB (RFC 8878, 3.1.1.1.2), and may
    /// refuse larger ones, which `zstd --ultra` has at levels 20 to 22, along with tables of 600 MiB.
    fn at(level: u32) -> Self {
        let limits = match level {
            0..=8 => None,
            _ => Some([CParameter::WindowLog(22), CParameter::HashLog(21), CParameter::ChainLog(21)]),
        };
        let (section, threads, megabytes) = match level {
            0..=2 => (2 << 20, 4, 24),
            3 => (2 << 20, 4, 28),
            4 => (2 << 20, 2, 26),
            5..=8 => (2 << 20, 2, MOST),
            _ => (4 << 20, 1, MOST),
        };
        let level = i32::try_from(level.max(1)).unwrap_or(1);
        Self { level, section, limits, threads, megabytes }
    }
}

/// Compresses what is written into one zstd frame with a checksum.
pub struct ZstdWriter<W> {
    out: W,
    /// Dropped before the share, as it has the memory.
    encoder: Encoder<'static>,
    buffer: Vec<u8>,
    _share: Share,
}

impl<W: Write> ZstdWriter<W> {
    /// Writes to `out`, with at most `threads` threads of zstd's own. `level` goes from 0 to 22. Waits while other writers
    /// have the memory that it takes.
    ///
    /// # Errors
    /// When zstd cannot be prepared.
    pub fn new(out: W, level: u32, threads: NonZeroUsize) -> io::Result<Self> {
        let Effort { level, section, limits, threads: most, megabytes } = Effort::at(level);
        let share = Share::take(megabytes);
        let mut encoder = Encoder::new(level)?;
        for parameter in limits.into_iter().flatten() {
            encoder.set_parameter(parameter)?;
        }
        encoder.set_parameter(CParameter::ChecksumFlag(true))?;
        // One thread too is one that zstd starts: it divides nothing into sections otherwise, and the bytes are others.
        let workers = u32::try_from(threads.get().min(most)).unwrap_or(1);
        encoder.set_parameter(CParameter::NbWorkers(workers))?;
        encoder.set_parameter(CParameter::JobSize(section))?;
        encoder.set_parameter(CParameter::OverlapSizeLog(9))?;
        Ok(Self { out, encoder, buffer: vec![0; OUT], _share: share })
    }

    /// Writes what is left and the end of the frame; gives the output.
    ///
    /// # Errors
    /// When the output fails.
    pub fn finish(mut self) -> io::Result<W> {
        loop {
            let mut output = OutBuffer::around(&mut self.buffer[..]);
            let left = self.encoder.finish(&mut output, true)?;
            self.out.write_all(output.as_slice())?;
            if left == 0 {
                return Ok(self.out);
            }
        }
    }
}

impl<W: Write> Write for ZstdWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        loop {
            let mut input = InBuffer::around(bytes);
            let mut output = OutBuffer::around(&mut self.buffer[..]);
            self.encoder.run(&mut input, &mut output)?;
            self.out.write_all(output.as_slice())?;
            if input.pos() > 0 {
                return Ok(input.pos());
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        // Ending a block here would make the bytes depend on when somebody asks.
        Ok(())
    }
}
