//! An SSH agent for a step: what gets through to the agent outside, and nothing else.
//!
//! The step does not get the agent's own socket. It talks to this process, which takes one message after the other, hands
//! on those that list keys and that sign with one, and answers all others itself: a step cannot add or remove keys, lock the
//! agent, or use what an agent understands besides. As BuildKit does it.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::Cancel;
use super::mount::{Bind, Content, KeptAt, Rights, Writes};
use crate::rootfs::{Owner, set_mode_at, set_owner_at};

/// The most bytes of a message: what OpenSSH's agent takes (`AGENT_MAX_LEN`).
const LONGEST: usize = 256 << 10;

/// The most connections at once of one step to one agent. Further ones are closed.
const CONNECTIONS: usize = 32;

/// How long to wait for a descriptor.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// `SSH_AGENT_FAILURE` in a message of its own (draft-ietf-sshm-ssh-agent).
const FAILURE: [u8; 5] = [0, 0, 0, 1, 5];

/// `SSH_AGENTC_REQUEST_IDENTITIES` and `SSH_AGENTC_SIGN_REQUEST`.
const HANDED_ON: [u8; 2] = [11, 13];

/// An agent that was given to the build.
#[derive(Debug, Clone)]
pub struct Agent(Arc<OwnedFd>);

impl Agent {
    /// The agent that listens at `path`, which must be a socket. It is found again whatever becomes of the path.
    ///
    /// # Errors
    /// Those of open(2); [`io::ErrorKind::InvalidInput`] where something else is.
    pub fn at(path: &Path) -> io::Result<Self> {
        let socket = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let mode = rustix::fs::fstat(&socket)?.st_mode;
        if rustix::fs::FileType::from_raw_mode(mode) != rustix::fs::FileType::Socket {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no socket"));
        }
        Ok(Self(Arc::new(socket)))
    }

    /// A connection. An agent that takes none for the moment is asked again until `stop` is on.
    fn connect(&self, stop: &Cancel) -> io::Result<UnixStream> {
        use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let address = SocketAddrUnix::new(format!("/proc/self/fd/{}", self.0.as_raw_fd()))?;
        loop {
            match connect(&socket, &address) {
                Ok(()) => break,
                // Its queue is full (unix(7)); nothing tells when that has changed.
                Err(Errno::AGAIN) => {
                    let _ = poll(&mut [PollFd::new(stop, PollFlags::IN)], Some(&PAUSE));
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            if stop.is_cancelled() {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
        }
        let stream = UnixStream::from(socket);
        stream.set_nonblocking(false)?;
        Ok(stream)
    }
}

/// A socket at which a step reaches an agent, as long as this value is there.
#[derive(Debug)]
pub struct Forwarding {
    directory: Arc<OwnedFd>,
    socket: Arc<OwnedFd>,
    stop: Cancel,
    server: Option<JoinHandle<()>>,
}

/// Its name in its directory.
const NAME: &str = "agent";

impl Forwarding {
    /// Begins to listen at a new socket in `directory`, which is for this alone. The socket gets `mode` and `owner`.
    ///
    /// # Errors
    /// Those of socket(2), bind(2) and chown(2).
    pub fn begin(agent: Agent, directory: &Path, owner: Owner, mode: u32) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(directory, flags, Mode::empty())?;
        // A socket's path has 107 bytes at most.
        let listener = UnixListener::bind(format!("/proc/self/fd/{}/{NAME}", directory.as_raw_fd()))?;
        listener.set_nonblocking(true)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let socket = rustix::fs::openat(&directory, NAME, flags, Mode::empty())?;
        let place = std::os::fd::AsFd::as_fd(&directory);
        set_owner_at(place, NAME.as_bytes(), owner)?;
        set_mode_at(place, NAME.as_bytes(), mode)?;
        let stop = Cancel::new()?;
        let server = Server { agent, stop: stop.clone(), open: Mutex::default() };
        let server = std::thread::Builder::new().spawn(move || server.serve(&listener))?;
        let (directory, socket) = (Arc::new(directory), Arc::new(socket));
        Ok(Self { directory, socket, stop, server: Some(server) })
    }

    /// The socket, to be mounted.
    ///
    /// # Errors
    /// Those of dup(2).
    pub fn content(&self) -> io::Result<Content> {
        let kept_at = KeptAt { directory: self.directory.try_clone()?, name: NAME.as_bytes().to_vec() };
        Ok(Content::Bind(Bind {
            tree: Arc::clone(&self.directory),
            source: Arc::clone(&self.socket),
            // A copy would lead nowhere.
            kept_at: Some(Arc::new(kept_at)),
            writes: Writes::Allowed,
            rights: Rights::Ignored,
        }))
    }
}

impl Drop for Forwarding {
    fn drop(&mut self) {
        self.stop.cancel("the step has ended");
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

struct Server {
    agent: Agent,
    stop: Cancel,
    /// What has to be shut down for its threads to end.
    open: Mutex<BTreeMap<u64, Vec<UnixStream>>>,
}

impl Server {
    fn serve(&self, listener: &UnixListener) {
        std::thread::scope(|scope| {
            for number in 0_u64.. {
                let Some(client) = self.accept(listener) else { break };
                if self.open().len() >= CONNECTIONS || !self.note(number, &client) {
                    continue;
                }
                let serve = move || {
                    // An end like any other: who has asked gets no answer.
                    let _ = self.connect(number, client);
                    self.open().remove(&number);
                };
                if std::thread::Builder::new().spawn_scoped(scope, serve).is_err() {
                    self.open().remove(&number);
                }
            }
            for stream in self.open().values().flatten() {
                let _ = stream.shutdown(Shutdown::Both);
            }
        });
    }

    /// The next connection; none when it is over.
    fn accept(&self, listener: &UnixListener) -> Option<UnixStream> {
        loop {
            let mut waiting = [PollFd::new(listener, PollFlags::IN), PollFd::new(&self.stop, PollFlags::IN)];
            match poll(&mut waiting, None) {
                Err(Errno::INTR) => continue,
                Err(_) => return None,
                Ok(_) if self.stop.is_cancelled() => return None,
                Ok(_) => {}
            }
            match listener.accept() {
                Ok((client, _)) => return Some(client),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // Gone before it was taken; or no descriptor is left, which may be better in a moment.
                Err(_) => {
                    let _ = poll(&mut [PollFd::new(&self.stop, PollFlags::IN)], Some(&PAUSE));
                }
            }
        }
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<u64, Vec<UnixStream>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has `stream` shut down when it is over; says whether it is not.
    fn note(&self, number: u64, stream: &UnixStream) -> bool {
        let mut open = self.open();
        match stream.try_clone() {
            Ok(stream) if !self.stop.is_cancelled() => {
                open.entry(number).or_default().push(stream);
                true
            }
            _ => false,
        }
    }

    fn connect(&self, number: u64, client: UnixStream) -> io::Result<()> {
        // Waits for the other end, and ends with it.
        client.set_nonblocking(false)?;
        let agent = self.agent.connect(&self.stop)?;
        if self.note(number, &agent) { relay(&client, &agent) } else { Ok(()) }
    }
}

/// Relays messages until one end closes.
fn relay(mut client: &UnixStream, mut agent: &UnixStream) -> io::Result<()> {
    let mut message = Vec::new();
    while read_message(&mut client, &mut message)? {
        match message.get(4) {
            Some(kind) if HANDED_ON.contains(kind) => {
                agent.write_all(&message)?;
                if !read_message(&mut agent, &mut message)? {
                    break;
                }
                client.write_all(&message)?;
            }
            _ => client.write_all(&FAILURE)?,
        }
    }
    Ok(())
}

/// Reads a message with its length in front; says whether there was one.
fn read_message(from: &mut impl Read, message: &mut Vec<u8>) -> io::Result<bool> {
    let mut length = [0; 4];
    match from.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
        result => result?,
    }
    let size = u32::from_be_bytes(length) as usize;
    if size == 0 || size > LONGEST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    message.clear();
    message.extend_from_slice(&length);
    message.resize(4 + size, 0);
    from.read_exact(&mut message[4..])?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    /// An agent that answers each message with its kind and content reversed, and tells of each.
    fn agent(directory: &Path) -> (Agent, Receiver<Vec<u8>>) {
        let path = directory.join("outside");
        let listener = UnixListener::bind(&path).unwrap();
        let (tell, told) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let tell = tell.clone();
                std::thread::spawn(move || {
                    let mut message = Vec::new();
                    while read_message(&mut &stream, &mut message).is_ok_and(|there| there) {
                        tell.send(message[4..].to_vec()).unwrap();
                        message[4..].reverse();
                        (&stream).write_all(&message).unwrap();
                    }
                });
            }
        });
        (Agent::at(&path).unwrap(), told)
    }

    struct Ground {
        directory: tempfile::TempDir,
        told: Receiver<Vec<u8>>,
        forwarding: Forwarding,
    }

    fn ground() -> Ground {
        let directory = tempfile::tempdir().unwrap();
        let (agent, told) = agent(directory.path());
        let place = directory.path().join("step");
        std::fs::create_dir(&place).unwrap();
        let owner =
            Owner { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() };
        let forwarding = Forwarding::begin(agent, &place, owner, 0o600).unwrap();
        Ground { directory, told, forwarding }
    }

    impl Ground {
        fn connect(&self) -> UnixStream {
            UnixStream::connect(self.directory.path().join("step").join(NAME)).unwrap()
        }
    }

    fn message(content: &[u8]) -> Vec<u8> {
        [&u32::try_from(content.len()).unwrap().to_be_bytes()[..], content].concat()
    }

    fn ask(mut stream: &UnixStream, content: &[u8]) -> Vec<u8> {
        stream.write_all(&message(content)).unwrap();
        let mut answer = Vec::new();
        assert!(read_message(&mut stream, &mut answer).unwrap());
        answer.split_off(4)
    }

    #[test]
    fn a_step_may_list_keys_and_sign_and_nothing_else() {
        let ground = ground();
        let stream = ground.connect();
        for kind in 0..=u8::MAX {
            let handed_on = kind == 11 || kind == 13;
            let answer = ask(&stream, &[kind, 1, 2]);
            assert_eq!(answer, if handed_on { vec![2, 1, kind] } else { vec![5] }, "{kind}");
            assert_eq!(ground.told.try_recv().is_ok(), handed_on, "{kind}");
        }
        let long = [&[13][..], &vec![7; LONGEST - 1]].concat();
        assert_eq!(ask(&stream, &long).len(), LONGEST);
    }

    #[test]
    fn what_is_no_message_ends_the_connection_and_no_other() {
        let ground = ground();
        let other = ground.connect();
        let too_long = u32::try_from(LONGEST + 1).unwrap().to_be_bytes();
        for bytes in [&[0, 0, 0, 0][..], &too_long, &u32::MAX.to_be_bytes(), &[0, 0, 0, 9, 13]] {
            let mut stream = ground.connect();
            stream.write_all(bytes).unwrap();
            let _ = stream.shutdown(Shutdown::Write);
            let mut rest = Vec::new();
            assert!(!matches!(stream.read_to_end(&mut rest), Ok(1..)), "{bytes:?}");
        }
        assert_eq!(ask(&other, &[11]), [11]);
    }

    #[test]
    fn it_ends_with_its_step_whoever_is_connected() {
        let ground = ground();
        let streams: Vec<UnixStream> = (0..CONNECTIONS + 3).map(|_| ground.connect()).collect();
        assert_eq!(ask(&streams[0], &[11]), [11]);
        // One has asked half a question.
        (&streams[1]).write_all(&[0, 0, 0, 9, 11]).unwrap();
        let place = ground.directory.path().join("step").join(NAME);
        drop(ground.forwarding);
        for mut stream in streams {
            let mut rest = Vec::new();
            assert!(!matches!(stream.read_to_end(&mut rest), Ok(1..)));
        }
        assert!(UnixStream::connect(place).is_err());
    }

    #[test]
    fn an_agent_that_takes_no_connections_does_not_keep_a_step_from_ending() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("outside");
        // Its queue holds a few, and nobody takes them out.
        let _listener = UnixListener::bind(&path).unwrap();
        let address = rustix::net::SocketAddrUnix::new(&path).unwrap();
        let mut queued = Vec::new();
        loop {
            use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
            let flags = SocketFlags::NONBLOCK;
            let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
            match connect(&socket, &address) {
                Ok(()) => queued.push(socket),
                Err(Errno::AGAIN) => break,
                Err(error) => panic!("{error}"),
            }
        }
        let place = directory.path().join("step");
        std::fs::create_dir(&place).unwrap();
        let owner =
            Owner { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() };
        let forwarding = Forwarding::begin(Agent::at(&path).unwrap(), &place, owner, 0o600).unwrap();
        let connect = || UnixStream::connect(place.join(NAME)).unwrap();
        let _waiting: Vec<UnixStream> = (0..CONNECTIONS).map(|_| connect()).collect();
        // One too many, which is closed when all others have been taken.
        assert!(!matches!(connect().read_to_end(&mut Vec::new()), Ok(1..)));
        let (ended, end) = channel();
        std::thread::spawn(move || {
            drop(forwarding);
            ended.send(()).unwrap();
        });
        end.recv_timeout(std::time::Duration::from_secs(30)).unwrap();
    }

    #[test]
    fn an_agent_is_a_socket_and_may_be_moved() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert_eq!(Agent::at(&file).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(Agent::at(&directory.path().join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
        let (agent, _told) = agent(directory.path());
        std::fs::rename(directory.path().join("outside"), directory.path().join("moved")).unwrap();
        assert_eq!(ask(&agent.connect(&Cancel::new().unwrap()).unwrap(), &[1, 2]), [2, 1]);
    }
}
