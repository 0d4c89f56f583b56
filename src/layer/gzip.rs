//! Gzip: one member compressed in parallel blocks, and a reader of several members.

use std::collections::VecDeque;
use std::io::{self, BufRead, Read, Write};
use std::num::NonZeroUsize;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Scope;

use flate2::bufread::GzDecoder;
use flate2::{Compress, Compression, Crc, FlushCompress, Status};

use super::compression::invalid;

/// Uncompressed bytes of a block, as in pigz.
const BLOCK: usize = 128 << 10;
/// How far deflate looks back.
const WINDOW: usize = 32 << 10;
/// How much of a block tells whether it can be compressed.
const TRIAL: usize = 4 << 10;

/// A block on its way to a worker.
struct Job {
    data: Arc<Vec<u8>>,
    before: Arc<Vec<u8>>,
    flush: FlushCompress,
    done: SyncSender<io::Result<Vec<u8>>>,
}

/// Compresses what is written into one gzip member.
///
/// Each block is compressed on its own, with the end of the one before as its dictionary, and ends on a byte boundary, so
/// that the blocks in order are one deflate stream: the result depends on the level and on the bytes, not on how many
/// threads there are. A handful of blocks a thread is in memory.
pub struct GzipWriter<W> {
    out: W,
    level: Compression,
    workers: Option<SyncSender<Job>>,
    waiting: VecDeque<Receiver<io::Result<Vec<u8>>>>,
    most_waiting: usize,
    block: Vec<u8>,
    before: Arc<Vec<u8>>,
    crc: Crc,
}

impl<W: Write> GzipWriter<W> {
    /// Writes the header of a member to `out` and starts `threads` threads in `scope`; with one thread, the caller's own
    /// is enough. `level` goes from 0 (none) to 9.
    ///
    /// # Errors
    /// When `out` fails.
    pub fn new<'scope>(
        mut out: W,
        level: u32,
        threads: NonZeroUsize,
        scope: &'scope Scope<'scope, '_>,
    ) -> io::Result<Self> {
        // Deflate, no name, no time, unknown system: as Go writes it.
        out.write_all(&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff])?;
        let level = Compression::new(level.min(9));
        let workers = if threads.get() > 1 { start_workers(threads.get(), level, scope) } else { None };
        Ok(Self {
            out,
            level,
            workers,
            waiting: VecDeque::new(),
            most_waiting: threads.get() * 2,
            block: Vec::with_capacity(BLOCK),
            before: Arc::default(),
            crc: Crc::new(),
        })
    }

    /// Writes what is left and the trailer; returns the output.
    ///
    /// # Errors
    /// When the output fails.
    pub fn finish(mut self) -> io::Result<W> {
        self.end_block(FlushCompress::Finish)?;
        while self.write_next()? {}
        self.out.write_all(&self.crc.sum().to_le_bytes())?;
        self.out.write_all(&self.crc.amount().to_le_bytes())?;
        Ok(self.out)
    }

    fn end_block(&mut self, flush: FlushCompress) -> io::Result<()> {
        let data = Arc::new(std::mem::replace(&mut self.block, Vec::with_capacity(BLOCK)));
        self.crc.update(&data);
        let before = std::mem::replace(&mut self.before, Arc::clone(&data));
        let Some(workers) = &self.workers else {
            let compressed = compress(self.level, &data, &before, flush)?;
            return self.out.write_all(&compressed);
        };
        let (done, result) = sync_channel(1);
        workers
            .send(Job { data, before, flush, done })
            .map_err(|_| io::Error::other("the compressing threads ended"))?;
        self.waiting.push_back(result);
        if self.waiting.len() > self.most_waiting {
            self.write_next()?;
        }
        Ok(())
    }

    /// Writes the oldest block; false when there is none.
    fn write_next(&mut self) -> io::Result<bool> {
        let Some(result) = self.waiting.pop_front() else { return Ok(false) };
        let compressed = result.recv().map_err(|_| io::Error::other("a compressing thread ended"))??;
        self.out.write_all(&compressed)?;
        Ok(true)
    }
}

impl<W: Write> Write for GzipWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A full block waits for the next byte: the last one is ended in another way.
        if self.block.len() == BLOCK {
            self.end_block(FlushCompress::Sync)?;
        }
        let count = bytes.len().min(BLOCK - self.block.len());
        self.block.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Starts so many threads, or as many as there may be; none if not a single one could be started.
fn start_workers<'scope>(
    threads: usize,
    level: Compression,
    scope: &'scope Scope<'scope, '_>,
) -> Option<SyncSender<Job>> {
    let (sender, receiver) = sync_channel::<Job>(threads * 2);
    let jobs = Arc::new(Mutex::new(receiver));
    let mut started = 0;
    for _ in 0..threads {
        let jobs = Arc::clone(&jobs);
        let work = move || {
            loop {
                // Ends when the writer, which holds the only sender, is dropped.
                let next = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
                let Ok(job) = next else { break };
                let _ = job.done.send(compress(level, &job.data, &job.before, job.flush));
            }
        };
        started += usize::from(std::thread::Builder::new().spawn_scoped(scope, work).is_ok());
    }
    (started > 0).then_some(sender)
}

fn compress(level: Compression, data: &[u8], before: &[u8], flush: FlushCompress) -> io::Result<Vec<u8>> {
    let is_stored =
        looks_random(data) && deflate(level, &data[..TRIAL], &[], FlushCompress::Finish)?.len() >= TRIAL;
    if is_stored { Ok(store(data, flush)) } else { deflate(level, data, before, flush) }
}

fn deflate(level: Compression, data: &[u8], before: &[u8], flush: FlushCompress) -> io::Result<Vec<u8>> {
    // A new state for each block: zlib-rs 0.6 does not forget all of the last one on a reset, so the bytes would depend on
    // which thread got which block. It costs nothing measurable.
    let mut state = Compress::new(level, false);
    if !before.is_empty() {
        state.set_dictionary(&before[before.len().saturating_sub(WINDOW)..])?;
    }
    let mut out = Vec::with_capacity(data.len() + data.len() / 512 + 1024);
    loop {
        let done = usize::try_from(state.total_in()).unwrap_or(usize::MAX).min(data.len());
        let status = state.compress_vec(&data[done..], &mut out, flush)?;
        let all_in = state.total_in() == data.len() as u64;
        match flush {
            FlushCompress::Finish if status == Status::StreamEnd => return Ok(out),
            // Room left means that nothing more is to come (zlib.h, deflate).
            FlushCompress::Finish => {}
            _ if all_in && out.len() < out.capacity() => return Ok(out),
            _ => {}
        }
        out.reserve(out.capacity() / 2 + 1024);
    }
}

/// Whether all bytes are about equally frequent, as in what is compressed or encrypted already. Deflate takes longest for
/// such blocks, for nothing. Bytes may be equally frequent and yet repeat, so this is only a hint.
fn looks_random(data: &[u8]) -> bool {
    let mut counts = [0u64; 256];
    for byte in data {
        counts[usize::from(*byte)] += 1;
    }
    // For random bytes the sum of squares is `length` above the least one possible, length² / 256; for what gzip wrote up
    // to some ten times that, for programs and text thousands.
    let length = data.len() as u64;
    let squares: u64 = counts.iter().map(|count| count * count).sum();
    data.len() >= TRIAL && squares <= length * length / 256 + 64 * length
}

/// The block as it is (RFC 1951, 3.2.4). It begins and ends on a byte boundary.
fn store(data: &[u8], flush: FlushCompress) -> Vec<u8> {
    const LONGEST: usize = u16::MAX as usize;
    let mut out = Vec::with_capacity(data.len() + (data.len() / LONGEST + 1) * 5);
    let mut chunks = data.chunks(LONGEST).peekable();
    while let Some(chunk) = chunks.next() {
        let is_last = matches!(flush, FlushCompress::Finish) && chunks.peek().is_none();
        let length = chunk.len() as u16;
        out.push(u8::from(is_last));
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(&(!length).to_le_bytes());
        out.extend_from_slice(chunk);
    }
    out
}

/// Reads gzip members one after the other as one stream; zeros may follow the last one.
pub struct GunzipReader<R> {
    state: State<R>,
}

enum State<R> {
    Member(Box<GzDecoder<R>>),
    Between(R),
    End,
}

impl<R: BufRead> GunzipReader<R> {
    /// Reads `inner`, which must hold at least one member.
    #[must_use]
    pub fn new(inner: R) -> Self {
        Self { state: State::Member(Box::new(GzDecoder::new(inner))) }
    }
}

impl<R: BufRead> Read for GunzipReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match std::mem::replace(&mut self.state, State::End) {
                State::End => return Ok(0),
                State::Member(mut member) => match member.read(buffer) {
                    Ok(0) if !buffer.is_empty() => self.state = State::Between(member.into_inner()),
                    Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                    result => {
                        self.state = State::Member(member);
                        return result;
                    }
                },
                State::Between(mut inner) => match inner.fill_buf()?.first() {
                    None => {}
                    Some(0x1f) => self.state = State::Member(Box::new(GzDecoder::new(inner))),
                    Some(_) => expect_zeros(inner)?,
                },
            }
        }
    }
}

fn expect_zeros(mut inner: impl BufRead) -> io::Result<()> {
    loop {
        let bytes = inner.fill_buf()?;
        if bytes.iter().any(|byte| *byte != 0) {
            return Err(invalid("other bytes than zeros after the end of the gzip data"));
        }
        let count = bytes.len();
        if count == 0 {
            return Ok(());
        }
        inner.consume(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gzip(bytes: &[u8], level: u32, threads: usize) -> Vec<u8> {
        std::thread::scope(|scope| {
            let threads = NonZeroUsize::new(threads).unwrap();
            let mut writer = GzipWriter::new(Vec::new(), level, threads, scope).unwrap();
            writer.write_all(bytes).unwrap();
            writer.finish().unwrap()
        })
    }

    /// Bytes of which some repeat near, some far and some never.
    fn sample(length: usize) -> Vec<u8> {
        let mut state = 1u64;
        (0..length)
            .map(|at| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                if at / 10_000 % 3 == 0 { (state >> 60) as u8 } else { (state >> 33) as u8 }
            })
            .collect()
    }

    #[test]
    fn the_bytes_do_not_depend_on_the_number_of_threads() {
        for length in [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 1_000_000] {
            let bytes = sample(length);
            for level in [0, 1, 6, 9] {
                let one = gzip(&bytes, level, 1);
                let mut back = Vec::new();
                // A single member: the whole of it, to a reader that stops after the first.
                GzDecoder::new(one.as_slice()).read_to_end(&mut back).unwrap();
                assert!(back == bytes, "{length} bytes at level {level}");
                assert!(gzip(&bytes, level, 2) == one && gzip(&bytes, level, 4) == one);
            }
        }
    }

    #[test]
    fn programs_too_give_the_same_bytes_with_any_number_of_threads() {
        // The test itself: a block in thirty tells whether a state was used before.
        let mut bytes = Vec::new();
        let program = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
        program.take(24 << 20).read_to_end(&mut bytes).unwrap();
        let one = gzip(&bytes, 6, 1);
        assert!(gzip(&bytes, 6, 2) == one && gzip(&bytes, 6, 3) == one);
    }

    #[test]
    fn gzip_itself_reads_it() {
        let file = tempfile::NamedTempFile::with_suffix(".gz").unwrap();
        std::fs::write(file.path(), gzip(&sample(1_000_000), 6, 4)).unwrap();
        match std::process::Command::new("gzip").arg("-t").arg(file.path()).status() {
            Ok(status) => assert!(status.success()),
            Err(error) => eprintln!("skipped: cannot run gzip: {error}"),
        }
    }

    #[test]
    fn blocks_know_what_came_before() {
        let block = sample(20_000);
        let repeated = block.repeat(40);
        assert!(gzip(&repeated, 6, 2).len() < 2 * gzip(&block, 6, 1).len());
    }

    #[test]
    fn what_cannot_be_compressed_is_stored_and_the_rest_is_not() {
        let mut state = 1u64;
        let random: Vec<u8> = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .take(5 * BLOCK / 2)
        .collect();
        let text = b"the same again, and ".repeat(BLOCK / 10);
        let bytes = [&random[..], &text, &random[..BLOCK], &random[..100]].concat();
        let compressed = gzip(&bytes, 6, 2);
        assert!(compressed == gzip(&bytes, 6, 1));
        let mut back = Vec::new();
        GzDecoder::new(compressed.as_slice()).read_to_end(&mut back).unwrap();
        assert!(back == bytes);
        assert!(compressed.len() < bytes.len() - text.len() + text.len() / 20);
        // Ten bytes before and eight after; five for each stored part.
        assert_eq!(gzip(&random[..2 * BLOCK], 6, 1).len(), 2 * BLOCK + 18 + 6 * 5);
        // Equally frequent bytes that repeat are no such block.
        let repeated: Vec<u8> = (0..=255).cycle().take(BLOCK).collect();
        assert!(looks_random(&repeated) && gzip(&repeated, 6, 1).len() < BLOCK / 50);
    }

    #[test]
    fn a_failing_output_ends_the_writing() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                if bytes.len() > 10 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(bytes.len()) }
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        std::thread::scope(|scope| {
            let threads = NonZeroUsize::new(3).unwrap();
            let mut writer = GzipWriter::new(Full, 6, threads, scope).unwrap();
            let error = writer.write_all(&sample(20 * BLOCK)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        });
    }
}
