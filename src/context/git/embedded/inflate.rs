//! One zlib stream out of many that stand one behind the other, read exactly to its end.

use std::io::{self, BufRead, Read};

use flate2::{Decompress, FlushDecompress, Status};

/// The uncompressed bytes of the stream that `input` stands before. Afterwards it stands behind it.
pub(super) struct Inflated<'a, R> {
    input: R,
    state: &'a mut Decompress,
    is_over: bool,
}

impl<'a, R: BufRead> Inflated<'a, R> {
    /// `state` is used again for each stream: it is some ten kilobytes.
    pub(super) fn new(input: R, state: &'a mut Decompress) -> Self {
        state.reset(true);
        Self { input, state, is_over: false }
    }
}

impl<R: BufRead> Read for Inflated<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        while !self.is_over {
            let bytes = self.input.fill_buf()?;
            let is_at_end = bytes.is_empty();
            let (taken, made) = (self.state.total_in(), self.state.total_out());
            let status = self.state.decompress(bytes, into, FlushDecompress::None);
            let status = status.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            let taken = (self.state.total_in() - taken) as usize;
            let made = (self.state.total_out() - made) as usize;
            self.input.consume(taken);
            self.is_over = status == Status::StreamEnd;
            if made > 0 {
                return Ok(made);
            }
            if is_at_end && !self.is_over {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if taken == 0 && !self.is_over {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
        Ok(0)
    }
}
