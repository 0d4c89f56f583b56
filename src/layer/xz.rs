//! XZ files, with a limit on memory that holds for every block of every stream.

use std::io::{self, BufRead, Read};

use super::compression::invalid;
use crate::limit::Limit;
use crate::rootfs::content::read_full;

/// Undoes xz (The .xz File Format 1.2.1): several streams with padding between them are one.
///
/// The decoder allocates what a block header or an index asks for before it reads on, and has no limit for it. So
/// everything that it reads goes through a [`Gate`], which has read it before. Each stream has a decoder of its own:
/// one for all calls itself for each empty stream.
pub(super) struct XzReader<R: BufRead> {
    /// None at the end, and after an error.
    stream: Option<lzma_rust2::XzReader<Gate<R>>>,
}

impl<R: BufRead> XzReader<R> {
    /// Reads `file`, whose dictionaries may have `window` bytes.
    pub(super) fn new(file: R, window: Limit) -> Self {
        let gate = Gate {
            file,
            window,
            part: Part::StreamHeader,
            wanted: 12,
            seen: Vec::new(),
            check: 0,
            data: 0,
            blocks: 0,
        };
        Self { stream: Some(decoder(gate)) }
    }
}

fn decoder<R: BufRead>(gate: Gate<R>) -> lzma_rust2::XzReader<Gate<R>> {
    lzma_rust2::XzReader::new(gate, false)
}

impl<R: BufRead> Read for XzReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        while let Some(mut stream) = self.stream.take() {
            let count = stream.read(buffer)?;
            if count > 0 {
                self.stream = Some(stream);
                return Ok(count);
            }
            self.stream = stream.into_inner().next_stream()?.map(decoder);
        }
        Ok(0)
    }
}

/// What comes next in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    StreamHeader,
    /// The first byte of a block, or of the index.
    Start,
    BlockHeader,
    /// The first byte of an LZMA2 chunk.
    Control,
    /// The sizes in a chunk, and what is before its data.
    Chunk,
    /// Is handed on unseen.
    ChunkData,
    /// Padding and check of a block: handed on unseen.
    BlockEnd,
    /// How many records the index has.
    RecordCount,
    /// The rest of the index and what is behind it, to the end of the stream.
    Index,
}

/// Hands on the bytes of a stream, but none by which the decoder would take more memory than allowed.
struct Gate<R> {
    file: R,
    window: Limit,
    part: Part,
    /// How many bytes the part has.
    wanted: u64,
    /// Those of them that were handed on, where they matter: at most the 1024 of a block header.
    seen: Vec<u8>,
    /// Bytes of the check behind each block.
    check: u64,
    /// Bytes of LZMA2 in the block so far.
    data: u64,
    /// How many blocks there were in the stream.
    blocks: u64,
}

impl<R: BufRead> Read for Gate<R> {
    /// Fills `buffer` unless the file ends: the decoder takes less for damage, even between two of our reads.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let done = read_full(&mut self.file, buffer)?;
        self.look(&buffer[..done])?;
        Ok(done)
    }
}

impl<R: BufRead> Gate<R> {
    /// Goes to the next stream behind a whole one; none at the end of the file.
    fn next_stream(mut self) -> io::Result<Option<Self>> {
        let mut padding = 0;
        loop {
            let bytes = match self.file.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                result => result?,
            };
            if bytes.is_empty() {
                return Ok(None);
            }
            let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
            let ends = zeros < bytes.len();
            self.file.consume(zeros);
            padding = (padding + zeros) % 4;
            if ends {
                break;
            }
        }
        if padding != 0 {
            return Err(invalid("the padding between two streams of xz is not whole"));
        }
        self.blocks = 0;
        self.begin(Part::StreamHeader, 12);
        Ok(Some(self))
    }

    fn begin(&mut self, part: Part, wanted: u64) {
        (self.part, self.wanted) = (part, wanted);
        self.seen.clear();
    }

    /// Follows what is handed on.
    fn look(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while let Some(first) = bytes.first() {
            let mut count = 1;
            match self.part {
                Part::Index => return Ok(()),
                Part::ChunkData | Part::BlockEnd => {
                    count = usize::try_from(self.wanted).unwrap_or(usize::MAX).min(bytes.len());
                    self.wanted -= count as u64;
                    if self.wanted == 0 {
                        let next = if self.part == Part::ChunkData { Part::Control } else { Part::Start };
                        self.begin(next, 1);
                    }
                }
                _ => {
                    self.seen.push(*first);
                    if self.seen.len() as u64 == self.wanted {
                        self.complete()?;
                    }
                }
            }
            bytes = &bytes[count..];
        }
        Ok(())
    }

    /// Finds out what comes behind a part that was seen whole.
    fn complete(&mut self) -> io::Result<()> {
        let byte = |position: usize| u64::from(self.seen.get(position).copied().unwrap_or_default());
        let size_at = |position| (byte(position) << 8 | byte(position + 1)) + 1;
        match self.part {
            Part::StreamHeader => {
                // None; then three of each size (section 2.1.1.2).
                self.check = match byte(7) & 0xf {
                    0 => 0,
                    kind => 4 << ((kind - 1) / 3),
                };
                self.begin(Part::Start, 1);
            }
            Part::Start if byte(0) == 0 => self.begin(Part::RecordCount, 1),
            Part::Start => (self.part, self.wanted) = (Part::BlockHeader, (byte(0) + 1) * 4),
            Part::BlockHeader => {
                self.check_block()?;
                self.data = 0;
                self.begin(Part::Control, 1);
            }
            Part::Control => {
                self.data += 1;
                match byte(0) {
                    0 => {
                        let padding = self.data.next_multiple_of(4) - self.data;
                        match padding + self.check {
                            0 => self.begin(Part::Start, 1),
                            length => self.begin(Part::BlockEnd, length),
                        }
                    }
                    1 | 2 => (self.part, self.wanted) = (Part::Chunk, 3),
                    0x80..0xc0 => (self.part, self.wanted) = (Part::Chunk, 5),
                    0xc0.. => (self.part, self.wanted) = (Part::Chunk, 6),
                    _ => return Err(invalid("an xz block has data that is not LZMA2")),
                }
            }
            Part::Chunk => {
                let length = if byte(0) < 0x80 { size_at(1) } else { size_at(3) };
                self.data += self.wanted - 1 + length;
                self.begin(Part::ChunkData, length);
            }
            Part::RecordCount => match varint(&self.seen) {
                Some((count, _)) if count == self.blocks => self.begin(Part::Index, u64::MAX),
                None if self.seen.len() < 9 => self.wanted += 1,
                _ => return Err(invalid("the index of an xz stream does not have a record for each block")),
            },
            Part::ChunkData | Part::BlockEnd | Part::Index => {}
        }
        Ok(())
    }

    /// Refuses a block whose header asks for too much, and one too many: the index has 16 bytes for each in memory.
    fn check_block(&mut self) -> io::Result<()> {
        self.blocks += 1;
        let window = self.window;
        let dictionary = dictionary(&self.seen).ok_or_else(|| invalid("an xz block header is damaged"))?;
        if window.is_exceeded_by(dictionary) {
            return Err(invalid(format!(
                "the xz dictionary of {dictionary} bytes is larger than the limit of {} bytes; {window}",
                window.value
            )));
        }
        if window.is_exceeded_by(self.blocks * 16) {
            return Err(invalid(format!(
                "the index of {} xz blocks takes more than {} bytes; {window}",
                self.blocks, window.value
            )));
        }
        Ok(())
    }
}

/// The number of the filter (section 5.3.1).
const LZMA2: u64 = 0x21;

/// The bytes of the dictionary that a block header asks for (sections 3.1 and 5.3.1). Its filter is the last and no other is
/// of its kind: the end of another LZMA2 around it could come in the middle of what this one reads, and from there on the
/// decoder and [`Gate`] would not agree on what the bytes are.
fn dictionary(header: &[u8]) -> Option<u64> {
    let flags = *header.get(1)?;
    let mut rest = header.get(2..)?;
    let number = |rest: &mut &[u8]| {
        let (number, length) = varint(rest)?;
        *rest = &rest[length..];
        Some(number)
    };
    for present in [flags & 0x40, flags & 0x80] {
        if present != 0 {
            number(&mut rest)?;
        }
    }
    let mut filter = || {
        let kind = number(&mut rest)?;
        let size = usize::try_from(number(&mut rest)?).ok()?;
        let (properties, others) = rest.split_at_checked(size)?;
        rest = others;
        Some((kind, properties))
    };
    for _ in 0..flags & 3 {
        filter().filter(|(kind, _)| *kind != LZMA2)?;
    }
    let (LZMA2, [bits]) = filter()? else { return None };
    Some(match u32::from(*bits) {
        bits @ 0..40 => (2 | u64::from(bits & 1)) << (bits / 2 + 11),
        _ => u64::from(u32::MAX),
    })
}

/// The number at the beginning of `bytes`, seven bits a byte (section 1.2), and how many bytes it has.
fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let length = bytes.iter().take(9).position(|byte| byte & 0x80 == 0)? + 1;
    let bits = |(position, byte): (usize, &u8)| u64::from(byte & 0x7f) << (7 * position);
    Some((bytes[..length].iter().enumerate().map(bits).sum(), length))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::layer::Limits;

    /// `printf hello | xz`: a stream header of 12 bytes, a block of 32, index and footer.
    const HELLO: &[u8] = b"\xfd7zXZ\0\0\x04\xe6\xd6\xb4F\x02\0!\x01\x16\0\0\0t/\xe5\xa3\x01\0\x04hello\0\0\0\0\xb17\xb9\xdb\xe5\xda\x1e\x9b\0\x01\x1d\x05\xb8-\x80\xaf\x1f\xb6\xf3}\x01\0\0\0\0\x04YZ";
    /// `xz < /dev/null`
    const EMPTY: &[u8] = b"\xfd7zXZ\0\0\x04\xe6\xd6\xb4F\0\0\0\0\x1c\xdfD!\x1f\xb6\xf3}\x01\0\0\0\0\x04YZ";

    /// Reads in pieces of all lengths.
    fn read(file: &[u8], window: u64) -> io::Result<Vec<u8>> {
        let file = io::BufReader::with_capacity(7, file);
        let mut all = Vec::new();
        XzReader::new(file, Limits::WINDOW.with(window)).read_to_end(&mut all)?;
        Ok(all)
    }

    #[test]
    fn the_limit_holds_for_every_block_of_every_stream() {
        assert_eq!(read(HELLO, 8 << 20).unwrap(), b"hello");
        let mut greedy = HELLO.to_vec();
        greedy[16] = 40;
        let block = &greedy[12..44];
        for (what, file) in [
            ("the first block", &greedy[..]),
            ("another block", &[&HELLO[..44], block].concat()),
            ("another stream", &[HELLO, &greedy].concat()),
            ("another stream behind padding", &[HELLO, EMPTY, &[0; 8], &greedy].concat()),
        ] {
            let error = read(file, 8 << 20).unwrap_err().to_string();
            assert!(error.contains("dictionary of 4294967295 bytes"), "{what}: {error}");
        }
        assert!(read(HELLO, (8 << 20) - 1).unwrap_err().to_string().contains("--limit zstd-window="));
        assert_eq!(dictionary(b"\x03\xc1\x80\x01\x05\x03\x01\0\xa1\0\x01\x16"), Some(8 << 20));
        assert_eq!(dictionary(b"\x03\0\x21\x02\x16"), None);
    }

    /// The outer one ends in the middle of a chunk of the inner one; what follows is a block again for the decoder.
    #[test]
    fn a_decoder_within_a_decoder_cannot_hide_a_block() {
        let block = |filters: &[u8]| {
            // Twelve bytes with the sum, in units of four, less one.
            let mut header = [&[2], filters].concat();
            header.resize(8, 0);
            let mut sum = flate2::Crc::new();
            sum.update(&header);
            [header.as_slice(), &sum.sum().to_le_bytes()].concat()
        };
        let hidden = block(b"\0\x21\x01\x28");
        let outer = block(b"\x01\x21\x01\0\x21\x01\0");
        let file = [&HELLO[..12], &outer, b"\x01\xff\xff\0", &hidden, b"\x01"].concat();
        let error = read(&file, 8 << 20).unwrap_err().to_string();
        assert!(error.contains("block header is damaged"), "{error}");
    }

    #[test]
    fn an_index_takes_no_more_memory_than_its_blocks() {
        let records = b"\0\xff\xff\xff\xff\x0f";
        let error = read(&[&HELLO[..44], records].concat(), 8 << 20).unwrap_err().to_string();
        assert!(error.contains("a record for each block"), "{error}");
        let mut block = HELLO[12..44].to_vec();
        // A dictionary of 4 KiB.
        block[4] = 0;
        let mut sum = flate2::Crc::new();
        sum.update(&block[..8]);
        block[8..12].copy_from_slice(&sum.sum().to_le_bytes());
        for (blocks, message) in [(256, "failed to fill"), (257, "the index of 257 xz blocks")] {
            let error = read(&[&HELLO[..12], &block.repeat(blocks)].concat(), 4096).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn any_number_of_empty_streams_is_nothing() {
        assert_eq!(read(&[&EMPTY.repeat(200_000), HELLO].concat(), 8 << 20).unwrap(), b"hello");
        assert!(read(&[HELLO, &[0; 3], HELLO].concat(), 8 << 20).is_err());
        assert!(read(&[HELLO, b"junk"].concat(), 8 << 20).is_err());
        for end in 1..HELLO.len() {
            assert!(read(&HELLO[..end], 8 << 20).is_err(), "{end}");
        }
    }

    #[test]
    fn what_xz_writes_is_read() {
        let text: Vec<u8> =
            (0..200_000_u32).flat_map(|number| number.wrapping_mul(number).to_le_bytes()).collect();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("text");
        std::fs::write(&path, &text).unwrap();
        for options in [
            "-0",
            "-1 --check=none --block-size=10000",
            "-6 --check=crc32 --block-size=99999",
            "-T2 --check=sha256 --block-size=65536",
            "--x86 --delta=dist=4 --lzma2=dict=64KiB",
            "--block-size=100000 --arm --lzma2=dict=4KiB,mode=fast",
        ] {
            let mut xz = Command::new("xz");
            xz.args(options.split(' ')).arg("--stdout").arg(&path);
            let output = match xz.output() {
                Ok(output) if output.status.success() => output.stdout,
                other => {
                    eprintln!("skipped: cannot run xz {options}: {other:?}");
                    continue;
                }
            };
            let twice = [&output[..], &[0; 4], &output].concat();
            assert!(read(&twice, 8 << 20).unwrap() == text.repeat(2), "{options}");
        }
    }
}
