//! What a request carries, streamed through buffers of a fixed size.

use std::io::{self, Read};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::mpsc;

use super::failure::Failure;

/// What a request carries.
#[derive(Clone, Copy)]
pub enum Content<'a> {
    /// Nothing.
    None,
    /// A few bytes in memory.
    Bytes(&'a [u8]),
    /// Exactly `size` bytes from elsewhere.
    Stream {
        /// How many.
        size: u64,
        /// Opens them; called again for each further try.
        open: &'a (dyn Fn() -> io::Result<Box<dyn Read + 'a>> + 'a),
    },
}

impl Content<'_> {
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::None => true,
            Self::Bytes(bytes) => bytes.is_empty(),
            Self::Stream { size, .. } => *size == 0,
        }
    }
}

/// How much is read and handed on at once.
const CHUNK: usize = 256 * 1024;
/// How many chunks may wait to be sent.
const QUEUE: usize = 2;

/// The end of the queue that the connection takes from.
pub(super) struct Queue {
    chunks: mpsc::Receiver<Bytes>,
    left: u64,
}

/// The end of the queue that the caller's thread fills.
pub(super) struct Source<'a> {
    chunks: mpsc::Sender<Bytes>,
    reader: Box<dyn Read + 'a>,
    left: u64,
}

/// A body of `size` bytes and what fills it.
pub(super) fn channel<'a>(reader: Box<dyn Read + 'a>, size: u64) -> (Source<'a>, Queue) {
    let (sender, receiver) = mpsc::channel(QUEUE);
    (Source { chunks: sender, reader, left: size }, Queue { chunks: receiver, left: size })
}

impl Source<'_> {
    /// Reads and sends until all is sent or the other end is gone. Reading blocks the calling thread only: it is the
    /// thread of the caller, not one of the runtime.
    pub(super) async fn feed(mut self, host: &str, stall: Duration) -> Result<(), Failure> {
        while self.left > 0 {
            let chunk = self.read().map_err(|source| Failure::Source { source })?;
            match tokio::time::timeout(stall, self.chunks.send(chunk)).await {
                Err(_) => return Err(Failure::Stalled { host: host.to_owned(), after: stall }),
                // The connection failed or the server answered early: the answer says which.
                Ok(Err(_)) => return Ok(()),
                Ok(Ok(())) => {}
            }
        }
        Ok(())
    }

    fn read(&mut self) -> io::Result<Bytes> {
        let want = usize::try_from(self.left).unwrap_or(CHUNK).min(CHUNK);
        let mut chunk = vec![0; want];
        self.reader.read_exact(&mut chunk)?;
        self.left -= want as u64;
        Ok(Bytes::from(chunk))
    }
}

impl Body for Queue {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.chunks.poll_recv(context).map(|chunk| match chunk {
            Some(chunk) => {
                self.left = self.left.saturating_sub(chunk.len() as u64);
                Some(Ok(Frame::data(chunk)))
            }
            None if self.left == 0 => None,
            None => Some(Err(io::ErrorKind::UnexpectedEof.into())),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
