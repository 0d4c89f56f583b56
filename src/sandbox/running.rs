//! A step seen from the builder: its supervisor is started, its output handed on, its end waited for.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{self, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use rustix::pipe::{PipeFlags, fcntl_getpipe_size, pipe_with};
use rustix::process::Pid;

use super::indispensable::Indispensable;
use super::processes::Survivors;
use super::supervisor::{Found, Stops, ends_within, timespec};
use super::wire::{self, Confinement, Left, Report};
use super::{
    CHILD_ARGUMENT, Cancel, Content, Exit, Loss, Process, SandboxError, Security, Strategy, Stream, loss,
    orphans,
};
use crate::children::{self, Awaited};
use crate::rootfs::{IdMap, ResolvedUser};

/// The most that is handed to `output` at once, in bytes.
const CHUNK: usize = 1 << 16;

/// How long a supervisor may take to end its step before it is ended itself.
const LONGEST_END: Duration = Duration::from_secs(3);

/// What would not end, if there is something: then there is no further step in this process. It could meet what is left of
/// another, which may do to it whatever it likes: they are the same user, and both may be in the root of the container, or
/// hand each other directories of their roots.
static SURVIVORS: OnceLock<Survivors> = OnceLock::new();

#[cfg(test)]
thread_local! {
    /// What the next step of this thread leaves, as if it would not end.
    pub(super) static PLANTED: std::cell::Cell<Option<Survivors>> = const { std::cell::Cell::new(None) };
}

/// What is to be started, and how it is kept apart.
pub(super) struct Command<'a> {
    /// The program that becomes the supervisor.
    pub(super) program: &'a Path,
    pub(super) confinement: Confinement,
    pub(super) process: &'a Process,
}

impl Command<'_> {
    /// Runs it in `root` to its end. When this returns, no process of the step is left, unless the error is
    /// [`SandboxError::Survivors`]. [`Confinement::InPlace`] has no root: its descriptor is only held, until then.
    pub(super) fn run(
        &self,
        root: impl AsFd,
        output: &mut dyn FnMut(Stream, &[u8]),
        cancel: &Cancel,
    ) -> Result<Exit, SandboxError> {
        #[cfg(test)]
        if let Some(survivors) = PLANTED.take() {
            return Err(SandboxError::Survivors(survivors));
        }
        let killed = loss::killed_for_memory();
        let result = Running::start(self, root.as_fd()).and_then(|mut step| {
            let report = step.watch(output, cancel).map_err(|error| match error {
                SandboxError::Lost(_) => {
                    SandboxError::Lost(Loss::of(self.confinement.left(), [killed, loss::killed_for_memory()]))
                }
                other => other,
            });
            let ended = step.end();
            let report = report?;
            ended.map(|()| report).map_err(SandboxError::Survivors)
        });
        // Worse than all that can have happened besides.
        no_survivors()?;
        // A step that was ended early did not fail by itself.
        not_cancelled(cancel)?;
        match result? {
            Report::Exit(exit) => Ok(exit),
            failure => Err(error_of(failure, self.process)),
        }
    }
}

/// Whether a step can begin at all.
pub(super) fn check(process: &Process, cancel: &Cancel) -> Result<(), SandboxError> {
    no_survivors()?;
    not_cancelled(cancel)?;
    check_ids(process)
}

/// Whether a step that sees other processes of this user may be what it asks for.
pub(super) fn check_confined(process: &Process, strategy: Strategy) -> Result<(), SandboxError> {
    match process.security {
        Security::Confined => Ok(()),
        Security::Unconfined => Err(SandboxError::Unconfined(strategy)),
    }
}

fn no_survivors() -> Result<(), SandboxError> {
    SURVIVORS.get().map_or(Ok(()), |survivors| Err(SandboxError::Survivors(survivors.clone())))
}

fn not_cancelled(cancel: &Cancel) -> Result<(), SandboxError> {
    match cancel.reason() {
        None => Ok(()),
        Some(reason) => Err(SandboxError::Cancelled { reason: reason.to_owned() }),
    }
}

/// Whether the kernel will let the process be who it is to be. Where there is one group only, supplementary ones cannot be
/// had at all: then nobody expects them, least of all an image's root, who often is in many.
fn check_ids(process: &Process) -> Result<(), SandboxError> {
    // The supervisor says so if there is no /proc.
    let Ok(ids) = IdMap::of_this_process() else { return Ok(()) };
    let ResolvedUser { owner, groups, .. } = &process.user;
    let wanted = if ids.groups().is_one() { &[] } else { &groups[..] };
    let secrets = process.mounts.iter().filter_map(|mount| match &mount.content {
        Content::Secret(file) => Some(file.owner),
        Content::Bind(_) | Content::Tmpfs { .. } => None,
    });
    let (uids, gids): (Vec<u32>, Vec<u32>) =
        std::iter::once(*owner).chain(secrets).map(|owner| (owner.uid, owner.gid)).unzip();
    let unknown =
        |kind, id, available: String, file| Err(SandboxError::UnknownId { kind, id, available, file });
    if let Some(uid) = uids.into_iter().find(|uid| !ids.users().contain(*uid)) {
        return unknown("user", uid, ids.users().to_string(), "/etc/subuid");
    }
    match gids.iter().chain(wanted).find(|gid| !ids.groups().contain(**gid)) {
        Some(gid) => unknown("group", *gid, ids.groups().to_string(), "/etc/subgid"),
        None => Ok(()),
    }
}

fn error_of(report: Report, process: &Process) -> SandboxError {
    match report {
        Report::Setup { step, errno } => {
            SandboxError::Setup { step, source: io::Error::from_raw_os_error(errno) }
        }
        Report::MountTarget { path, problem } => SandboxError::MountTarget { path, problem },
        Report::WorkingDirectory { errno } => SandboxError::WorkingDirectory {
            path: process.cwd.clone(),
            source: io::Error::from_raw_os_error(errno),
        },
        Report::Start(problem) => SandboxError::Start(problem),
        // Not a failure; whoever reports it twice has lost track.
        Report::Exit(_) => SandboxError::Lost(Loss::Outside),
    }
}

/// A step between its start and its end. Dropped early, it ends.
struct Running {
    /// None once it has ended.
    supervisor: Option<Awaited>,
    left: Left,
    /// Until when the supervisor, told to end the step, has time for that; a step may have stopped it.
    end_by: Option<Instant>,
    /// As long as this process has to end it: a supervisor that was told to do it may be stopped.
    indispensable: Option<Indispensable>,
    /// When it was last noted who is no orphan of a step, and the supervisor looked at.
    noted: Instant,
    stops: Stops,
    /// Closing it, or its writing half, ends the step.
    socket: OwnedFd,
    pipes: [(Stream, Option<OwnedFd>); 2],
}

impl Running {
    fn start(command: &Command<'_>, root: BorrowedFd<'_>) -> Result<Self, SandboxError> {
        // Another step may have left something since it was asked whether this one can begin.
        no_survivors()?;
        let (socket, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                .map_err(|error| SandboxError::Connection(error.into()))?;
        let (out, stdout) = pipe()?;
        let (error, stderr) = pipe()?;
        // Neither arguments nor environment tell anything: both can be read by everybody on the machine.
        let mut program = process::Command::new(command.program);
        program.arg(CHILD_ARGUMENT).env_clear().current_dir("/");
        program.stdin(Stdio::from(theirs)).stdout(Stdio::from(stdout)).stderr(Stdio::from(stderr));
        let left = command.confinement.left();
        if left == Left::Descendants {
            orphans::adopt().map_err(SandboxError::Spawn)?;
            orphans::note_strangers();
        }
        let supervisor = children::spawn(&mut program).map_err(SandboxError::Spawn)?;
        if left == Left::Descendants {
            orphans::begin(Pid::from_child(&supervisor));
        }
        // It holds the step's ends: as long as one is open, output has no end.
        drop(program);
        let pipes = [(Stream::Out, Some(out)), (Stream::Error, Some(error))];
        let (supervisor, noted, stops) = (Some(supervisor), Instant::now(), Stops::default());
        let running =
            Self { supervisor, left, end_by: None, indispensable: None, noted, stops, socket, pipes };
        // A supervisor that cannot take the order is gone, which shows when its report is waited for.
        match wire::send_order(running.socket.as_fd(), command.confinement, command.process, root) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(SandboxError::Connection(error)),
            _ => Ok(running),
        }
    }

    /// Hands on output until the supervisor has reported, and then what is still in the pipes.
    fn watch(
        &mut self,
        output: &mut dyn FnMut(Stream, &[u8]),
        cancel: &Cancel,
    ) -> Result<Report, SandboxError> {
        let mut buffer = vec![0; CHUNK];
        let mut received = Vec::new();
        let report = loop {
            let told = self.end_by.is_some();
            let ready = self.wait(if told { None } else { Some(cancel) })?;
            self.look_around()?;
            if !told && cancel.is_cancelled() {
                self.tell_to_end();
            }
            if self.patience().is_some_and(|left| left.is_zero()) {
                return Err(SandboxError::Lost(Loss::Outside));
            }
            for (index, (stream, pipe)) in self.pipes.iter_mut().enumerate() {
                if ready.pipes[index]
                    && let Some(end) = pipe
                {
                    match read(end.as_fd(), &mut buffer)? {
                        Some(0) => *pipe = None,
                        Some(length) => {
                            spared(&mut self.indispensable, || output(*stream, &buffer[..length]));
                        }
                        None => {}
                    }
                }
            }
            if ready.socket {
                let length = read(self.socket.as_fd(), &mut buffer)?;
                received.extend_from_slice(&buffer[..length.unwrap_or(0)]);
                if let Some(frame) = wire::next_frame(&mut received) {
                    match wire::decode_report(&frame) {
                        // Process 1 may have failed to become the command; its end comes after.
                        Some(report) => break report,
                        None => return Err(SandboxError::Connection(io::ErrorKind::InvalidData.into())),
                    }
                }
                if length == Some(0) {
                    self.drain(output, &mut buffer)?;
                    return Err(SandboxError::Lost(Loss::Outside));
                }
            }
        };
        if matches!(report, Report::Exit(_)) {
            self.drain(output, &mut buffer)?;
        }
        Ok(report)
    }

    /// Notes strangers, and looks whether the supervisor can do its work, if it is time for that.
    fn look_around(&mut self) -> Result<(), SandboxError> {
        if self.left != Left::Descendants || self.noted.elapsed() < orphans::PERIOD {
            return Ok(());
        }
        orphans::note_strangers();
        self.noted = Instant::now();
        let Some(supervisor) = &self.supervisor else { return Ok(()) };
        match self.stops.look(Pid::from_child(supervisor)) {
            Found::Well => Ok(()),
            Found::Lost => {
                // It will not do it.
                self.end_by = Some(Instant::now());
                Err(SandboxError::Lost(Loss::Step))
            }
        }
    }

    /// Waits for any end to have something to say, for cancellation, until the supervisor has had its time, or strangers
    /// are to be noted.
    fn wait(&self, cancel: Option<&Cancel>) -> Result<Ready, SandboxError> {
        let mut waiting = vec![PollFd::new(&self.socket, PollFlags::IN)];
        let open = self.pipes.iter().filter_map(|(_, pipe)| pipe.as_ref());
        waiting.extend(open.map(|pipe| PollFd::new(pipe, PollFlags::IN)));
        waiting.extend(cancel.map(|cancel| PollFd::new(cancel, PollFlags::IN)));
        let pause = (self.left == Left::Descendants).then_some(orphans::PERIOD);
        let limit = [self.patience(), pause].into_iter().flatten().min();
        match poll(&mut waiting, limit.map(timespec).as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(SandboxError::Connection(error.into())),
        }
        let mut happened = waiting.iter().map(|entry| !entry.revents().is_empty());
        let socket = happened.next() == Some(true);
        let pipes = self.pipes.each_ref().map(|(_, pipe)| pipe.is_some() && happened.next() == Some(true));
        Ok(Ready { socket, pipes })
    }

    /// Reads what was written before the end: not more than a pipe holds, since a process of the machine could have got
    /// hold of the other end and go on.
    fn drain(
        &mut self,
        output: &mut dyn FnMut(Stream, &[u8]),
        buffer: &mut [u8],
    ) -> Result<(), SandboxError> {
        for (stream, pipe) in &mut self.pipes {
            let Some(end) = pipe.take() else { continue };
            let mut left = fcntl_getpipe_size(&end).unwrap_or(CHUNK);
            while left > 0 {
                match read(end.as_fd(), buffer)? {
                    Some(0) | None => break,
                    Some(length) => {
                        spared(&mut self.indispensable, || output(*stream, &buffer[..length]));
                        left = left.saturating_sub(length);
                    }
                }
            }
        }
        Ok(())
    }

    fn tell_to_end(&mut self) {
        if self.left == Left::Descendants {
            self.indispensable.get_or_insert_with(Indispensable::new);
        }
        // Not for reading: only when a builder is dead its end of the socket is closed altogether. Fails only when the
        // other end is gone, and then there is nothing to end.
        let _ = shutdown(&self.socket, Shutdown::Write);
        self.end_by.get_or_insert_with(|| Instant::now() + LONGEST_END);
    }

    /// How long to wait for a supervisor that was told to end its step; without limit where a step cannot reach it.
    fn patience(&self) -> Option<Duration> {
        let end_by = self.end_by.filter(|_| self.left == Left::Descendants)?;
        Some(end_by.saturating_duration_since(Instant::now()))
    }

    /// Ends the step if it has not ended by itself. The supervisor waits for the last of its processes, or this one does
    /// where a step could reach the supervisor; until then it does not end itself.
    ///
    /// # Errors
    /// When some would not end.
    fn end(&mut self) -> Result<(), Survivors> {
        let Some(supervisor) = self.supervisor.take() else { return Ok(()) };
        self.tell_to_end();
        let ended = self.end_with(supervisor);
        self.indispensable = None;
        ended
    }

    fn end_with(&self, mut supervisor: Awaited) -> Result<(), Survivors> {
        if self.left == Left::Nothing {
            let _ = supervisor.wait();
            return Ok(());
        }
        let id = Pid::from_child(&supervisor);
        if self.patience().is_some_and(|patience| !ends_within(&mut supervisor, patience)) {
            let _ = supervisor.kill();
        }
        let ended_well = supervisor.wait().is_ok_and(|status| status.success());
        // Its number may become that of an orphan.
        drop(supervisor);
        if !ended_well && let Err(survivors) = orphans::end_all() {
            let _ = SURVIVORS.set(survivors.clone());
            return Err(survivors);
        }
        orphans::end(id);
        Ok(())
    }
}

/// Lets this process end while `body` runs, which may wait for others for ever: the supervisor ends the step then, unless
/// that is stopped.
fn spared(indispensable: &mut Option<Indispensable>, body: impl FnOnce()) {
    match indispensable {
        Some(indispensable) => indispensable.spared(body),
        None => body(),
    }
}

/// Which ends have something to say.
struct Ready {
    socket: bool,
    pipes: [bool; 2],
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// A pipe whose reading end never blocks.
fn pipe() -> Result<(OwnedFd, OwnedFd), SandboxError> {
    let make = || {
        let (reading, writing) = pipe_with(PipeFlags::CLOEXEC)?;
        rustix::fs::fcntl_setfl(&reading, OFlags::NONBLOCK)?;
        Ok((reading, writing))
    };
    make().map_err(|error: Errno| SandboxError::Connection(error.into()))
}

/// What is there; none when nothing is for now.
fn read(from: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<Option<usize>, SandboxError> {
    match rustix::io::read(from, buffer) {
        Ok(length) => Ok(Some(length)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        // The supervisor was killed with our order half read.
        Err(Errno::CONNRESET) => Ok(Some(0)),
        Err(error) => Err(SandboxError::Connection(error.into())),
    }
}
