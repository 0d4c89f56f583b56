//! What builder, supervisor and process 1 say to each other: length-prefixed frames on one socket.

use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

use super::devices::Rules;
use super::emulation::Emulator;
use super::launch::StartProblem;
use super::mount::{Bind, Content, Mount, Rights, Secret, SecretFile, Writes};
use super::refusal::{Act, Attempt};
use super::{
    Exit, MAX_MOUNTS, Network, Presentation, ProcView, Process, ResourceLimit, Runner, Script, Security,
};
use crate::rootfs::{GuestPath, Owner, ResolvedUser};

/// The largest frame that is accepted: both ends are ours, this only bounds the damage of a mistake.
const MAX_FRAME: usize = 1 << 30;

/// The most descriptors that go with an order: the root, two for each bind mount, and an emulator.
const MAX_DESCRIPTORS: usize = 2 + 2 * MAX_MOUNTS;

/// How the supervisor keeps a process apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Confinement {
    /// In namespaces of its own.
    Namespaces { proc: ProcView },
    /// In a root of its own.
    Chroot { devices: Rules },
    /// In the builder's root.
    InPlace { devices: Rules },
}

impl Confinement {
    /// What has to be ended after the command.
    pub(super) fn left(self) -> Left {
        match self {
            Self::Namespaces { proc: ProcView::Own } => Left::Nothing,
            Self::Namespaces { proc: ProcView::Shared } | Self::Chroot { .. } | Self::InPlace { .. } => {
                Left::Descendants
            }
        }
    }

    fn number(self) -> u8 {
        match self {
            Self::Namespaces { proc: ProcView::Own } => 0,
            Self::Namespaces { proc: ProcView::Shared } => 1,
            Self::Chroot { devices: Rules::Missing } => 2,
            Self::Chroot { devices: Rules::Hold } => 3,
            Self::InPlace { devices: Rules::Missing } => 4,
            Self::InPlace { devices: Rules::Hold } => 5,
        }
    }

    fn of_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Namespaces { proc: ProcView::Own }),
            1 => Some(Self::Namespaces { proc: ProcView::Shared }),
            2 => Some(Self::Chroot { devices: Rules::Missing }),
            3 => Some(Self::Chroot { devices: Rules::Hold }),
            4 => Some(Self::InPlace { devices: Rules::Missing }),
            5 => Some(Self::InPlace { devices: Rules::Hold }),
            _ => None,
        }
    }
}

/// What may be left when the command has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    /// The command is process 1 of a pid namespace: the kernel ends what is in that.
    Nothing,
    /// What the command started.
    Descendants,
}

/// What a supervisor is told to do.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) confinement: Confinement,
    pub(super) process: Process,
    pub(super) root: OwnedFd,
}

/// What a child has to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Report {
    /// A system call failed on the way to the command.
    Setup { step: Attempt, errno: i32 },
    /// Nothing can be mounted where the process wants it.
    MountTarget { path: GuestPath, problem: String },
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

    fn wide(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
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

    fn wide(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn length(&mut self) -> Option<usize> {
        usize::try_from(self.wide()?).ok()
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

/// The bytes of an order, descriptors left out.
pub(super) fn encode_process(process: &Process) -> Vec<u8> {
    let mut out = Encoder::default();
    out.list(&process.args, |out, argument| out.bytes(argument));
    out.list(&process.env, |out, (name, value)| {
        out.bytes(name);
        out.bytes(value);
    });
    out.list(&process.secret_env, |out, (name, value)| {
        out.bytes(name);
        out.bytes(value.bytes());
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
    out.list(&process.mounts, encode_mount);
    out.number(match process.presentation {
        Presentation::Native => 0,
        Presentation::ThirtyTwoBit => 1,
    });
    match &process.runner {
        Runner::Processor => out.number(0),
        Runner::Handler => out.number(1),
        Runner::Own(emulator) => {
            out.number(2);
            out.bytes(emulator.architecture().as_bytes());
        }
    }
    out.number(match process.network {
        Network::Shared => 0,
        Network::None => 1,
    });
    out.number(match process.security {
        Security::Confined => 0,
        Security::Unconfined => 1,
    });
    // No bytes at all would be the usual number of them.
    out.wide(process.shm_size.unwrap_or(0));
    out.list(&process.limits, |out, limit| limit.parts().into_iter().for_each(|part| out.wide(part)));
    out.0
}

fn encode_mount(out: &mut Encoder, mount: &Mount) {
    out.bytes(mount.target.as_bytes());
    match &mount.content {
        Content::Bind(bind) => {
            out.number(0);
            out.number(u32::from(bind.writes == Writes::Allowed));
            out.number(u32::from(bind.rights == Rights::Honoured));
        }
        Content::Tmpfs { size } => {
            out.number(1);
            // None is what no bytes at all would be.
            out.wide(size.unwrap_or(0));
        }
        Content::Secret(secret) => {
            out.number(2);
            out.bytes(secret.value.bytes());
            out.number(secret.mode);
            out.number(secret.owner.uid);
            out.number(secret.owner.gid);
        }
    }
}

fn decode_mount(from: &mut Decoder<'_>, descriptors: &mut impl Iterator<Item = OwnedFd>) -> Option<Mount> {
    let target = GuestPath::clamp(&from.bytes()?).ok()?;
    let flag = |from: &mut Decoder<'_>| match from.number()? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    };
    let content = match from.number()? {
        0 => Content::Bind(Bind {
            writes: if flag(from)? { Writes::Allowed } else { Writes::Refused },
            rights: if flag(from)? { Rights::Honoured } else { Rights::Ignored },
            tree: Arc::new(descriptors.next()?),
            source: Arc::new(descriptors.next()?),
            // Only the builder moves anything.
            kept_at: None,
        }),
        1 => Content::Tmpfs { size: Some(from.wide()?).filter(|size| *size > 0) },
        2 => Content::Secret(SecretFile {
            value: Secret::new(&from.bytes()?),
            mode: from.number()?,
            owner: Owner { uid: from.number()?, gid: from.number()? },
        }),
        _ => return None,
    };
    Some(Mount { target, content })
}

/// The descriptors of an order in the order in which they are sent, behind that of the root.
fn descriptors(process: &Process) -> impl Iterator<Item = BorrowedFd<'_>> {
    let binds = process.mounts.iter().filter_map(|mount| match &mount.content {
        Content::Bind(bind) => Some([bind.tree.as_fd(), bind.source.as_fd()]),
        Content::Tmpfs { .. } | Content::Secret(_) => None,
    });
    let emulator = match &process.runner {
        Runner::Own(emulator) => Some(emulator.file.as_fd()),
        Runner::Processor | Runner::Handler => None,
    };
    binds.flatten().chain(emulator)
}

/// The order that [`encode_process`] wrote, with the descriptors that came with it.
pub(super) fn decode_process(bytes: &[u8], descriptors: Vec<OwnedFd>) -> Option<Process> {
    let mut from = Decoder(bytes);
    let mut descriptors = descriptors.into_iter();
    let process = Process {
        args: from.list(Decoder::bytes)?,
        env: from.list(|from| Some((from.bytes()?, from.bytes()?)))?,
        secret_env: from.list(|from| Some((from.bytes()?, Secret::new(&from.bytes()?))))?,
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
        mounts: from.list(|from| decode_mount(from, &mut descriptors))?,
        presentation: match from.number()? {
            0 => Presentation::Native,
            1 => Presentation::ThirtyTwoBit,
            _ => return None,
        },
        runner: match from.number()? {
            0 => Runner::Processor,
            1 => Runner::Handler,
            2 => Runner::Own(Emulator::of(&from.text()?, descriptors.next()?)?),
            _ => return None,
        },
        network: match from.number()? {
            0 => Network::Shared,
            1 => Network::None,
            _ => return None,
        },
        security: match from.number()? {
            0 => Security::Confined,
            1 => Security::Unconfined,
            _ => return None,
        },
        shm_size: Some(from.wide()?).filter(|size| *size > 0),
        limits: from.list(|from| ResourceLimit::from_parts([from.wide()?, from.wide()?, from.wide()?]))?,
    };
    (from.0.is_empty() && descriptors.next().is_none()).then_some(process)
}

fn encode_report(report: &Report) -> Vec<u8> {
    let mut out = Encoder::default();
    match report {
        Report::Setup { step, errno } => {
            out.number(0);
            out.number(step.act as u32);
            out.bytes(step.words.as_bytes());
            out.signed(*errno);
        }
        Report::MountTarget { path, problem } => {
            out.number(1);
            out.bytes(path.as_bytes());
            out.bytes(problem.as_bytes());
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
        0 => {
            let act = *Act::ALL.get(from.number()? as usize)?;
            Report::Setup { step: act.named(from.text()?), errno: from.signed()? }
        }
        2 => Report::WorkingDirectory { errno: from.signed()? },
        3 => {
            let kind = from.number()?;
            Report::Start(StartProblem::from_parts(kind, &from.bytes()?, &from.bytes()?, from.signed()?)?)
        }
        4 => Report::Exit(Exit::Code(u8::try_from(from.number()?).ok()?)),
        5 => Report::Exit(Exit::Signal(from.signed()?)),
        1 => Report::MountTarget { path: GuestPath::clamp(&from.bytes()?).ok()?, problem: from.text()? },
        _ => return None,
    };
    from.0.is_empty().then_some(report)
}

fn framed(payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u64).to_le_bytes().to_vec();
    frame.extend_from_slice(payload);
    frame
}

/// Sends an order together with the descriptors of the root and of what is mounted in it.
pub(super) fn send_order(
    socket: BorrowedFd<'_>,
    confinement: Confinement,
    process: &Process,
    root: BorrowedFd<'_>,
) -> io::Result<()> {
    let mut payload = vec![confinement.number()];
    payload.extend_from_slice(&encode_process(process));
    let frame = framed(&payload);
    let sent: Vec<BorrowedFd<'_>> = std::iter::once(root).chain(descriptors(process)).collect();
    if sent.len() > MAX_DESCRIPTORS {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "more mounts than a process may have"));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&sent));
    // The descriptors travel with the first byte; a large rest would block before it is known to be taken.
    let sent = rustix::net::sendmsg(socket, &[IoSlice::new(&frame[..1])], &mut control, SendFlags::NOSIGNAL)?;
    write_all(socket, &frame[sent..])
}

/// Puts `descriptor` into `socket`: what it means stays open until somebody takes it out at the other end, or closes that.
pub(super) fn put_into(socket: BorrowedFd<'_>, descriptor: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let sent = [descriptor];
    control.push(SendAncillaryMessage::ScmRights(&sent));
    rustix::net::sendmsg(socket, &[IoSlice::new(b"k")], &mut control, SendFlags::NOSIGNAL).map(drop)
}

/// The order that [`send_order`] sent.
pub(super) fn receive_order(socket: BorrowedFd<'_>) -> io::Result<Order> {
    let mut first = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut first)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut descriptors: Vec<OwnedFd> = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    if received.bytes != 1 || descriptors.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let root = descriptors.remove(0);
    let mut rest = [0; 7];
    let mut reader = SocketReader(socket);
    reader.read_exact(&mut rest)?;
    let mut length = [first[0], 0, 0, 0, 0, 0, 0, 0];
    length[1..].copy_from_slice(&rest);
    let length = usize::try_from(u64::from_le_bytes(length)).ok().filter(|length| *length <= MAX_FRAME);
    let mut payload = vec![0; length.ok_or(io::ErrorKind::InvalidData)?];
    reader.read_exact(&mut payload)?;
    let (confinement, process) = payload.split_first().ok_or(io::ErrorKind::InvalidData)?;
    let confinement = Confinement::of_number(*confinement).ok_or(io::ErrorKind::InvalidData)?;
    let process = decode_process(process, descriptors).ok_or(io::ErrorKind::InvalidData)?;
    Ok(Order { confinement, process, root })
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

    fn mounts() -> Vec<Mount> {
        let target = GuestPath::clamp(b"/target").unwrap();
        let open = |path| Arc::new(OwnedFd::from(std::fs::File::open(path).unwrap()));
        let contents = [
            Content::Bind(Bind {
                tree: open("/"),
                source: open("/etc"),
                kept_at: None,
                writes: Writes::Allowed,
                rights: Rights::Ignored,
            }),
            Content::Tmpfs { size: Some(u64::MAX) },
            Content::Tmpfs { size: None },
            Content::Secret(SecretFile {
                value: Secret::new(b"secret"),
                mode: 0o400,
                owner: Owner { uid: 1, gid: 2 },
            }),
        ];
        contents.map(|content| Mount { target: target.clone(), content }).into()
    }

    fn process() -> Process {
        Process {
            args: vec![b"/bin/sh".to_vec(), b"-c".to_vec(), b"echo \xff".to_vec()],
            env: vec![(b"PATH".to_vec(), b"/bin".to_vec()), (b"EMPTY".to_vec(), Vec::new())],
            secret_env: vec![(b"TOKEN".to_vec(), Secret::new(b"value"))],
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
            mounts: mounts(),
            presentation: Presentation::ThirtyTwoBit,
            runner: Runner::Own(
                Emulator::of("arm", std::fs::File::open("/etc/passwd").unwrap().into()).unwrap(),
            ),
            network: Network::None,
            security: Security::Unconfined,
            shm_size: Some(5),
            limits: vec![ResourceLimit::named("nofile", Some(1), None).unwrap()],
        }
    }

    #[test]
    fn an_order_comes_back_as_it_was_with_its_descriptor() {
        let (one, other) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let root = std::fs::File::open("/").unwrap();
        let received = std::thread::scope(|scope| {
            let receiver = scope.spawn(|| receive_order(other.as_fd()).unwrap());
            send_order(one.as_fd(), Confinement::Chroot { devices: Rules::Hold }, &process(), root.as_fd())
                .unwrap();
            receiver.join().unwrap()
        });
        assert_eq!(encode_process(&received.process), encode_process(&process()));
        let same = |one: BorrowedFd<'_>, other: BorrowedFd<'_>| {
            let (one, other) = (rustix::fs::fstat(one).unwrap(), rustix::fs::fstat(other).unwrap());
            (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
        };
        assert!(same(root.as_fd(), received.root.as_fd()));
        for (sent, got) in descriptors(&process()).zip(descriptors(&received.process)) {
            assert!(same(sent, got));
        }
    }

    #[test]
    fn a_process_has_no_more_mounts_than_descriptors_can_be_passed_for() {
        let mut crowded = process();
        let bind = crowded.mounts[0].clone();
        crowded.mounts = vec![bind; MAX_MOUNTS];
        let (one, other) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let root = std::fs::File::open("/").unwrap();
        crowded.scripts.clear();
        send_order(one.as_fd(), Confinement::InPlace { devices: Rules::Missing }, &crowded, root.as_fd())
            .unwrap();
        assert_eq!(receive_order(other.as_fd()).unwrap().process.mounts.len(), MAX_MOUNTS);
        crowded.mounts.push(crowded.mounts[0].clone());
        let error =
            send_order(one.as_fd(), Confinement::InPlace { devices: Rules::Missing }, &crowded, root.as_fd())
                .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn a_cut_or_lengthened_order_is_refused() {
        let mut small = process();
        small.scripts[0].content.truncate(3);
        let bytes = encode_process(&small);
        let open = |count: usize| -> Vec<OwnedFd> {
            (0..count).map(|_| std::fs::File::open("/").unwrap().into()).collect()
        };
        let decoded = decode_process(&bytes, open(3)).unwrap();
        assert_eq!(encode_process(&decoded), bytes);
        for length in 0..bytes.len() {
            assert!(decode_process(&bytes[..length], open(3)).is_none(), "{length}");
        }
        assert!(decode_process(&[bytes.as_slice(), b"x"].concat(), open(3)).is_none());
        assert!(decode_process(&bytes, open(2)).is_none(), "an emulator without a file");
        assert!(decode_process(&bytes, open(4)).is_none(), "a source without a mount");
        assert!(decode_process(&[0xff; 64], Vec::new()).is_none());
    }

    #[test]
    fn reports_come_back_as_they_were() {
        let reports = [
            Report::Setup { step: "mount".into(), errno: 1 },
            Report::MountTarget { path: GuestPath::root(), problem: "none".to_owned() },
            Report::WorkingDirectory { errno: 20 },
            Report::Start(StartProblem::Missing { program: b"/bin/sh".to_vec() }),
            Report::Exit(Exit::Code(255)),
            Report::Exit(Exit::Signal(9)),
        ];
        let mut buffer: Vec<u8> = reports.iter().flat_map(|report| framed(&encode_report(report))).collect();
        let last = buffer.pop().unwrap();
        for report in &reports[..reports.len() - 1] {
            assert_eq!(decode_report(&next_frame(&mut buffer).unwrap()).as_ref(), Some(report));
        }
        assert_eq!(next_frame(&mut buffer), None);
        buffer.push(last);
        assert_eq!(decode_report(&next_frame(&mut buffer).unwrap()), reports.last().cloned());
        assert!(buffer.is_empty());
        assert_eq!(decode_report(b"\x09\0\0\0"), None);
    }

    #[test]
    fn what_was_tried_is_known_on_the_other_side() {
        for act in Act::ALL {
            let report = Report::Setup { step: act.named("try"), errno: 1 };
            assert_eq!(decode_report(&encode_report(&report)), Some(report));
        }
        let unknown = [0, Act::ALL.len() as u32, 0, 0, 1].map(u32::to_le_bytes).concat();
        assert_eq!(decode_report(&unknown), None);
    }

    #[test]
    fn every_confinement_is_understood_as_it_was_sent() {
        let [missing, hold] = [Rules::Missing, Rules::Hold];
        let all = [
            Confinement::Namespaces { proc: ProcView::Own },
            Confinement::Namespaces { proc: ProcView::Shared },
            Confinement::Chroot { devices: missing },
            Confinement::Chroot { devices: hold },
            Confinement::InPlace { devices: missing },
            Confinement::InPlace { devices: hold },
        ];
        for confinement in all {
            assert_eq!(Confinement::of_number(confinement.number()), Some(confinement));
        }
        assert_eq!(Confinement::of_number(6), None);
    }
}
