//! What builder, supervisor and process 1 say to each other: length-prefixed frames on one socket.

use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

use super::launch::StartProblem;
use super::{Exit, Presentation, Process, Script};
use crate::rootfs::{GuestPath, Owner, ResolvedUser};

/// The largest frame that is accepted: both ends are ours, this only bounds the damage of a mistake.
const MAX_FRAME: usize = 1 << 30;

/// What a child has to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Report {
    /// A system call failed on the way to the command.
    Setup { step: String, errno: i32 },
    /// The image has something else than a directory (or file) at a mount point.
    MountPoint { path: String, found: String },
    /// The working directory cannot be entered.
    WorkingDirectory { errno: i32 },
    /// The command cannot be started.
    Start(StartProblem),
    /// Process 1 has ended, and everything in its namespace with it.
    Exit(Exit),
}

/// Writes values one after the other; [`Decoder`] reads them in the same order.
#[derive(Default)]
struct Encoder(Vec<u8>);

impl Encoder {
    fn number(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn signed(&mut self, value: i32) {
        self.number(value.cast_unsigned());
    }

    fn bytes(&mut self, value: &[u8]) {
        self.0.extend_from_slice(&(value.len() as u64).to_le_bytes());
        self.0.extend_from_slice(value);
    }

    fn list<T>(&mut self, items: &[T], mut each: impl FnMut(&mut Self, &T)) {
        self.0.extend_from_slice(&(items.len() as u64).to_le_bytes());
        for item in items {
            each(self, item);
        }
    }
}

/// The counterpart of [`Encoder`]; none of its functions panics on any input.
struct Decoder<'a>(&'a [u8]);

impl Decoder<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (value, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*value)
    }

    fn number(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn signed(&mut self) -> Option<i32> {
        self.number().map(u32::cast_signed)
    }

    fn length(&mut self) -> Option<usize> {
        usize::try_from(u64::from_le_bytes(self.take()?)).ok()
    }

    fn bytes(&mut self) -> Option<Vec<u8>> {
        let length = self.length()?;
        let (value, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(value.to_vec())
    }

    fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?).ok()
    }

    fn list<T>(&mut self, mut each: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let length = self.length()?;
        // No capacity ahead: an item takes at least a byte, so a wrong length fails before it costs anything.
        let mut items = Vec::new();
        for _ in 0..length {
            items.push(each(self)?);
        }
        Some(items)
    }
}

/// The bytes of an order.
pub(super) fn encode_process(process: &Process) -> Vec<u8> {
    let mut out = Encoder::default();
    out.list(&process.args, |out, argument| out.bytes(argument));
    out.list(&process.env, |out, (name, value)| {
        out.bytes(name);
        out.bytes(value);
    });
    out.bytes(process.cwd.as_bytes());
    out.number(process.user.owner.uid);
    out.number(process.user.owner.gid);
    out.list(&process.user.groups, |out, group| out.number(*group));
    out.bytes(&process.user.home);
    out.bytes(process.hostname.as_bytes());
    out.bytes(&process.hosts);
    out.bytes(&process.resolv_conf);
    out.list(&process.scripts, |out, script| {
        out.bytes(&script.name);
        out.bytes(&script.content);
    });
    out.number(match process.presentation {
        Presentation::Native => 0,
        Presentation::ThirtyTwoBit => 1,
    });
    out.0
}

/// The order that [`encode_process`] wrote.
pub(super) fn decode_process(bytes: &[u8]) -> Option<Process> {
    let mut from = Decoder(bytes);
    let process = Process {
        args: from.list(Decoder::bytes)?,
        env: from.list(|from| Some((from.bytes()?, from.bytes()?)))?,
        cwd: GuestPath::clamp(&from.bytes()?).ok()?,
        user: ResolvedUser {
            owner: Owner { uid: from.number()?, gid: from.number()? },
            groups: from.list(Decoder::number)?,
            home: from.bytes()?,
        },
        hostname: from.text()?,
        hosts: from.bytes()?,
        resolv_conf: from.bytes()?,
        scripts: from.list(|from| Some(Script { name: from.bytes()?, content: from.bytes()? }))?,
        presentation: match from.number()? {
            0 => Presentation::Native,
            1 => Presentation::ThirtyTwoBit,
            _ => return None,
        },
    };
    from.0.is_empty().then_some(process)
}

fn encode_report(report: &Report) -> Vec<u8> {
    let mut out = Encoder::default();
    match report {
        Report::Setup { step, errno } => {
            out.number(0);
            out.bytes(step.as_bytes());
            out.signed(*errno);
        }
        Report::MountPoint { path, found } => {
            out.number(1);
            out.bytes(path.as_bytes());
            out.bytes(found.as_bytes());
        }
        Report::WorkingDirectory { errno } => {
            out.number(2);
            out.signed(*errno);
        }
        Report::Start(problem) => {
            let (kind, program, detail, errno) = problem.parts();
            out.number(3);
            out.number(kind);
            out.bytes(program);
            out.bytes(detail);
            out.signed(errno);
        }
        Report::Exit(Exit::Code(code)) => {
            out.number(4);
            out.number(u32::from(*code));
        }
        Report::Exit(Exit::Signal(signal)) => {
            out.number(5);
            out.signed(*signal);
        }
    }
    out.0
}

/// The report in a frame.
pub(super) fn decode_report(bytes: &[u8]) -> Option<Report> {
    let mut from = Decoder(bytes);
    let report = match from.number()? {
        0 => Report::Setup { step: from.text()?, errno: from.signed()? },
        1 => Report::MountPoint { path: from.text()?, found: from.text()? },
        2 => Report::WorkingDirectory { errno: from.signed()? },
        3 => {
            let kind = from.number()?;
            Report::Start(StartProblem::from_parts(kind, &from.bytes()?, &from.bytes()?, from.signed()?)?)
        }
        4 => Report::Exit(Exit::Code(u8::try_from(from.number()?).ok()?)),
        5 => Report::Exit(Exit::Signal(from.signed()?)),
        _ => return None,
    };
    from.0.is_empty().then_some(report)
}

fn framed(payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u64).to_le_bytes().to_vec();
    frame.extend_from_slice(payload);
    frame
}

/// Sends an order together with the descriptor of the root.
pub(super) fn send_order(socket: BorrowedFd<'_>, process: &Process, root: BorrowedFd<'_>) -> io::Result<()> {
    let frame = framed(&encode_process(process));
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let roots = [root];
    control.push(SendAncillaryMessage::ScmRights(&roots));
    // The descriptor travels with the first byte; a large rest would block before it is known to be taken.
    let sent = rustix::net::sendmsg(socket, &[IoSlice::new(&frame[..1])], &mut control, SendFlags::NOSIGNAL)?;
    write_all(socket, &frame[sent..])
}

/// The order and the root that [`send_order`] sent.
pub(super) fn receive_order(socket: BorrowedFd<'_>) -> io::Result<(Process, OwnedFd)> {
    let mut first = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut first)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let root = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let root = root.filter(|_| received.bytes == 1).ok_or(io::ErrorKind::UnexpectedEof)?;
    let mut rest = [0; 7];
    let mut reader = SocketReader(socket);
    reader.read_exact(&mut rest)?;
    let mut length = [first[0], 0, 0, 0, 0, 0, 0, 0];
    length[1..].copy_from_slice(&rest);
    let length = usize::try_from(u64::from_le_bytes(length)).ok().filter(|length| *length <= MAX_FRAME);
    let mut payload = vec![0; length.ok_or(io::ErrorKind::InvalidData)?];
    reader.read_exact(&mut payload)?;
    Ok((decode_process(&payload).ok_or(io::ErrorKind::InvalidData)?, root))
}

/// Sends a report.
pub(super) fn send_report(socket: BorrowedFd<'_>, report: &Report) -> io::Result<()> {
    write_all(socket, &framed(&encode_report(report)))
}

/// Takes the first whole frame off `buffer`; none while there is no whole one.
pub(super) fn next_frame(buffer: &mut Vec<u8>) -> Option<Vec<u8>> {
    let length = usize::try_from(u64::from_le_bytes(*buffer.first_chunk()?)).ok()?;
    let end = length.checked_add(8)?;
    if buffer.len() < end {
        return None;
    }
    let rest = buffer.split_off(end);
    let mut frame = std::mem::replace(buffer, rest);
    frame.drain(..8);
    Some(frame)
}

fn write_all(socket: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::net::send(socket, bytes, SendFlags::NOSIGNAL) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

struct SocketReader<'a>(BorrowedFd<'a>);

impl Read for SocketReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(self.0, buffer)?)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    fn process() -> Process {
        Process {
            args: vec![b"/bin/sh".to_vec(), b"-c".to_vec(), b"echo \xff".to_vec()],
            env: vec![(b"PATH".to_vec(), b"/bin".to_vec()), (b"EMPTY".to_vec(), Vec::new())],
            cwd: GuestPath::clamp(b"/w").unwrap(),
            user: ResolvedUser {
                owner: Owner { uid: 5, gid: u32::MAX - 1 },
                groups: vec![1, 2],
                home: b"/home".to_vec(),
            },
            hostname: "name".to_owned(),
            hosts: b"127.0.0.1 localhost\n".to_vec(),
            resolv_conf: Vec::new(),
            scripts: vec![Script { name: b"EOF".to_vec(), content: vec![b'x'; 1 << 20] }],
            presentation: Presentation::ThirtyTwoBit,
        }
    }

    #[test]
    fn an_order_comes_back_as_it_was_with_its_descriptor() {
        let (one, other) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let root = std::fs::File::open("/").unwrap();
        let received = std::thread::scope(|scope| {
            let receiver = scope.spawn(|| receive_order(other.as_fd()).unwrap());
            send_order(one.as_fd(), &process(), root.as_fd()).unwrap();
            receiver.join().unwrap()
        });
        assert_eq!(received.0, process());
        let (sent, got) = (rustix::fs::fstat(&root).unwrap(), rustix::fs::fstat(&received.1).unwrap());
        assert_eq!((sent.st_dev, sent.st_ino), (got.st_dev, got.st_ino));
    }

    #[test]
    fn a_cut_or_lengthened_order_is_refused() {
        let mut small = process();
        small.scripts[0].content.truncate(3);
        let bytes = encode_process(&small);
        assert_eq!(decode_process(&bytes), Some(small));
        for length in 0..bytes.len() {
            assert_eq!(decode_process(&bytes[..length]), None, "{length}");
        }
        assert_eq!(decode_process(&[bytes.as_slice(), b"x"].concat()), None);
        assert_eq!(decode_process(&[0xff; 64]), None);
    }

    #[test]
    fn reports_come_back_as_they_were() {
        let reports = [
            Report::Setup { step: "mount".to_owned(), errno: 1 },
            Report::MountPoint { path: "/proc".to_owned(), found: "file".to_owned() },
            Report::WorkingDirectory { errno: 20 },
            Report::Start(StartProblem::Missing { program: b"/bin/sh".to_vec() }),
            Report::Exit(Exit::Code(255)),
            Report::Exit(Exit::Signal(9)),
        ];
        let mut buffer: Vec<u8> = reports.iter().flat_map(|report| framed(&encode_report(report))).collect();
        let last = buffer.pop().unwrap();
        for report in &reports[..5] {
            assert_eq!(decode_report(&next_frame(&mut buffer).unwrap()).as_ref(), Some(report));
        }
        assert_eq!(next_frame(&mut buffer), None);
        buffer.push(last);
        assert_eq!(decode_report(&next_frame(&mut buffer).unwrap()), Some(reports[5].clone()));
        assert!(buffer.is_empty());
        assert_eq!(decode_report(b"\x09\0\0\0"), None);
    }
}
