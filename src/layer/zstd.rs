//! Zstandard frames (RFC 8878), read one after the other; of several readers only one at a time has a large window.

use std::io::{self, BufRead, Read};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use ::zstd::stream::raw::{DParameter, Decoder, InBuffer, Operation, OutBuffer};

use super::compression::invalid;
use crate::limit::Limit;

/// Windows of up to so many bytes are everybody's: what RFC 8878 (3.1.1.1.2) asks every reader for, and what `zstd`
/// uses unless it is told `--long` or `--ultra`.
const USUAL_WINDOW: u64 = 8 << 20;

/// The logarithms of the windows that zstd can be limited to (`ZSTD_WINDOWLOG_ABSOLUTEMIN` and `ZSTD_WINDOWLOG_MAX`).
const WINDOW_LOGS: std::ops::RangeInclusive<u32> = 10..=31;

/// How often somebody who waits looks whether it was told to stop.
const LOOK: Duration = Duration::from_millis(50);

/// Who may have a large window: one reader at a time, so that reading many layers at once needs the memory of one of
/// them.
#[derive(Debug, Default)]
pub struct LargeWindows {
    taken: Mutex<bool>,
    freed: Condvar,
}

/// What readers that work side by side share.
#[derive(Clone, Copy)]
pub struct Side<'a> {
    /// Large windows.
    pub windows: &'a LargeWindows,
    /// Says whether to stop; asked by those who wait.
    pub cancelled: &'a (dyn Fn() -> bool + Sync),
}

/// The right to a large window; it ends with the value.
struct Turn<'a>(&'a LargeWindows);

impl LargeWindows {
    fn turn(&self, cancelled: &(dyn Fn() -> bool + Sync)) -> io::Result<Turn<'_>> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        while *taken {
            if cancelled() {
                return Err(io::Error::other("stopped while waiting for memory for a zstd window"));
            }
            (taken, _) = self.freed.wait_timeout(taken, LOOK).unwrap_or_else(PoisonError::into_inner);
        }
        *taken = true;
        Ok(Turn(self))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.taken.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.0.freed.notify_one();
    }
}

/// Reads frames as one stream.
pub(super) struct ZstdReader<'a, R> {
    source: Peeked<R>,
    window: Limit,
    side: Option<Side<'a>>,
    frame: Option<Frame<'a>>,
    in_frame: bool,
}

/// What the current frame is read with, and those like it that follow: the decoder keeps its window when a frame ends.
struct Frame<'a> {
    decoder: Decoder<'static>,
    /// Dropped after the decoder, which has the memory.
    _turn: Option<Turn<'a>>,
    is_large: bool,
}

impl<'a, R: Read> ZstdReader<'a, R> {
    /// Reads `source`, with others at its `side`. Windows may be as large as `window`, rounded down to a power of two.
    pub(super) fn new(source: R, window: Limit, side: Option<Side<'a>>) -> Self {
        Self { source: Peeked::new(source), window, side, frame: None, in_frame: false }
    }

    /// Prepares for the next frame; false at the end.
    fn begin_frame(&mut self) -> io::Result<bool> {
        let is_large = match self.source.peek()? {
            [] => return Ok(false),
            head => memory_for(head) > USUAL_WINDOW,
        };
        if self.frame.as_ref().is_none_or(|frame| frame.is_large != is_large) {
            // First the old window goes, then the right to it.
            self.frame = None;
            let turn = match self.side {
                Some(side) if is_large => Some(side.windows.turn(side.cancelled)?),
                _ => None,
            };
            let mut decoder = Decoder::new()?;
            let log = self.window.value.checked_ilog2().unwrap_or(0);
            let log = log.clamp(*WINDOW_LOGS.start(), *WINDOW_LOGS.end());
            decoder.set_parameter(DParameter::WindowLogMax(log))?;
            self.frame = Some(Frame { decoder, _turn: turn, is_large });
        }
        self.in_frame = true;
        Ok(true)
    }
}

impl<R: Read> Read for ZstdReader<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if buffer.is_empty() || (!self.in_frame && !self.begin_frame()?) {
                return Ok(0);
            }
            let Some(frame) = &mut self.frame else { return Ok(0) };
            let bytes = self.source.fill_buf()?;
            let (mut input, mut output) = (InBuffer::around(bytes), OutBuffer::around(&mut *buffer));
            let left =
                frame.decoder.run(&mut input, &mut output).map_err(|error| explained(error, self.window))?;
            let (is_end, taken, given) = (bytes.is_empty(), input.pos(), output.pos());
            self.source.consume(taken);
            self.in_frame = left != 0;
            if given > 0 {
                return Ok(given);
            }
            if self.in_frame && is_end {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the zstd data end too early"));
            }
        }
    }
}

/// The library only says that it ran out of memory.
fn explained(error: io::Error, window: Limit) -> io::Error {
    if error.to_string().contains("too much memory") {
        invalid(format!("the zstd window is larger than the limit of {} bytes; {window}", window.value))
    } else {
        error
    }
}

/// The most bytes of a frame's magic number and header (RFC 8878, 3.1.1).
const LONGEST_HEAD: usize = 18;

/// Bytes of the window that the frame which begins with `head` needs, at most; 0 where that cannot be seen.
fn memory_for(head: &[u8]) -> u64 {
    let [0x28, 0xb5, 0x2f, 0xfd, descriptor, fields @ ..] = head else { return 0 };
    let is_single = descriptor & 0x20 != 0;
    let (window, fields) = match fields {
        _ if is_single => (u64::MAX, fields),
        [byte, fields @ ..] => {
            let base = 1_u64 << (10 + (byte >> 3));
            (base + base / 8 * u64::from(byte & 7), fields)
        }
        [] => return 0,
    };
    let dictionary_id = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let size_of_size = match descriptor >> 6 {
        0 => usize::from(is_single),
        flag => 1 << flag,
    };
    let Some(size) = fields.get(dictionary_id..dictionary_id + size_of_size) else { return window };
    if size.is_empty() {
        return window;
    }
    let content = size.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    window.min(if size_of_size == 2 { content + 256 } else { content })
}

/// A reader whose next bytes can be looked at before they are read.
struct Peeked<R> {
    head: [u8; LONGEST_HEAD],
    /// What of `head` is still to be read.
    rest: std::ops::Range<usize>,
    inner: io::BufReader<R>,
}

impl<R: Read> Peeked<R> {
    fn new(inner: R) -> Self {
        Self { head: [0; LONGEST_HEAD], rest: 0..0, inner: io::BufReader::with_capacity(1 << 16, inner) }
    }

    /// The next bytes, as many as a head may have; fewer at the end only.
    fn peek(&mut self) -> io::Result<&[u8]> {
        self.head.copy_within(self.rest.clone(), 0);
        self.rest = 0..self.rest.len();
        while self.rest.end < LONGEST_HEAD {
            match self.inner.read(&mut self.head[self.rest.end..]) {
                Ok(0) => break,
                Ok(count) => self.rest.end += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(&self.head[self.rest.clone()])
    }

    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if !self.rest.is_empty() {
            return Ok(&self.head[self.rest.clone()]);
        }
        loop {
            match self.inner.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
                Ok(_) => break,
            }
        }
        // It is full now; the borrow of the loop would last too long.
        Ok(self.inner.buffer())
    }

    fn consume(&mut self, count: usize) {
        if self.rest.is_empty() {
            self.inner.consume(count);
        } else {
            self.rest.start += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use ::zstd::stream::raw::CParameter;

    use crate::layer::Limits;

    use super::*;

    const WINDOW: Limit = Limits::WINDOW;

    /// A frame with a window of 2 to the power of `log`, with the size of its content in its head or without.
    fn frame(content: &[u8], log: u32, has_size: bool) -> Vec<u8> {
        let mut encoder = ::zstd::Encoder::new(Vec::new(), 1).unwrap();
        encoder.set_parameter(CParameter::WindowLog(log)).unwrap();
        encoder.include_contentsize(has_size).unwrap();
        if has_size {
            encoder.set_pledged_src_size(Some(content.len() as u64)).unwrap();
        }
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }

    fn content(length: usize) -> Vec<u8> {
        (0..length).map(|position| (position * position / 7) as u8).collect()
    }

    #[test]
    fn the_memory_of_a_frame_is_in_its_head() {
        let content = content(300);
        assert_eq!(memory_for(&frame(&content, 27, false)), 1 << 27);
        assert_eq!(memory_for(&frame(&content, 27, true)), 300);
        for (head, memory) in [
            (&b"\x28\xb5\x2f\xfd\x00\x6f"[..], (1 << 23) / 8 * 15),
            (b"\x28\xb5\x2f\xfd\x20\x05", 5),
            (b"\x28\xb5\x2f\xfd\x60\x00\x01", 512),
            (b"\x28\xb5\x2f\xfd\xa3IDID\x00\x00\x00\x02", 2 << 24),
            (b"\x28\xb5\x2f\xfd\xe0\xff\xff\xff\xff\xff\xff\xff\xff", u64::MAX),
            (b"\x28\xb5\x2f\xfd\x00", 0),
            (b"\x50\x2a\x4d\x18\xff\xff\xff\xff", 0),
            (b"", 0),
        ] {
            assert_eq!(memory_for(head), memory, "{head:x?}");
        }
    }

    #[test]
    fn frames_of_all_sizes_are_one_stream() {
        let small: Vec<Vec<u8>> = (0..40).map(content).collect();
        let mut stored = Vec::new();
        let mut expected = Vec::new();
        for (number, part) in small.iter().chain([&content(3 << 20)]).enumerate() {
            stored.extend(frame(part, 10 + number as u32 % 18, number % 3 == 0));
            stored.extend_from_slice(b"\x5a\x2a\x4d\x18\x02\0\0\0ab");
            expected.extend_from_slice(part);
        }
        let windows = LargeWindows::default();
        let side = Side { windows: &windows, cancelled: &|| false };
        for pieces in [1, 7, 1 << 20] {
            let mut read = Vec::new();
            ZstdReader::new(Trickle(&stored, pieces), WINDOW, Some(side)).read_to_end(&mut read).unwrap();
            assert!(read == expected, "{pieces}");
        }
        for cut in [1, 5, 12, stored.len() / 2] {
            let mut reader = ZstdReader::new(&stored[..stored.len() - 10 - cut], WINDOW, None);
            assert!(io::copy(&mut reader, &mut io::sink()).is_err(), "{cut}");
        }
        assert!(!*windows.taken.lock().unwrap());
    }

    /// Gives a few bytes at a time.
    struct Trickle<'a>(&'a [u8], usize);

    impl Read for Trickle<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let count = buffer.len().min(self.1);
            self.0.read(&mut buffer[..count])
        }
    }

    #[test]
    fn one_reader_at_a_time_has_a_large_window() {
        let (large, usual) = (frame(&content(1 << 20), 24, false), frame(&content(1 << 20), 23, false));
        let mixed = [usual.clone(), large.clone(), usual.clone(), large.clone()].concat();
        let windows = LargeWindows::default();
        let holders = AtomicUsize::new(0);
        let read = |stored: &[u8]| {
            let side = Side { windows: &windows, cancelled: &|| false };
            let mut reader = ZstdReader::new(stored, WINDOW, Some(side));
            let mut buffer = vec![0; 10_000];
            while reader.read(&mut buffer).unwrap() > 0 {
                if reader.frame.as_ref().is_some_and(|frame| frame.is_large) {
                    assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0);
                    std::thread::yield_now();
                    holders.fetch_sub(1, Ordering::SeqCst);
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| read(&mixed));
            }
        });
        // While one has it, those with usual windows go on, and who waits for it can be stopped.
        let side = Side { windows: &windows, cancelled: &|| false };
        let mut first = ZstdReader::new(&large[..], WINDOW, Some(side));
        first.read_exact(&mut [0; 100]).unwrap();
        read(&usual);
        let stop = AtomicBool::new(false);
        let cancelled = || stop.swap(true, Ordering::SeqCst);
        let mut second =
            ZstdReader::new(&large[..], WINDOW, Some(Side { windows: &windows, cancelled: &cancelled }));
        let error = second.read(&mut [0; 100]).unwrap_err();
        assert!(error.to_string().contains("stopped"), "{error}");
        drop(first);
        read(&large);
    }
}
