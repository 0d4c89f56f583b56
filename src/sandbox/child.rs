//! The supervisor: a small process between the builder and process 1 of the sandbox.

use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::ExitCode;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, getppid, pidfd_open, set_child_subreaper, waitpid,
};
use rustix::thread::UnshareFlags;

use super::launch::CAPABILITIES;
use super::own::Inner;
use super::refusal::Attempt;
use super::seccomp::SystemCalls;
use super::wire::{self, Confinement, Left, Order, Report};
use super::{Exit, Network, ProcView, attach, chroot, descendants, in_place, launch, mounts, network};
use crate::sys::{self, Forked};

/// The first argument that makes this program the supervisor of a sandbox.
pub const CHILD_ARGUMENT: &str = "sandbox-supervisor";

/// How long a builder that is dead may take to go.
const PATIENCE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// The result of a step on the way to the command; failure is what the builder will be told.
pub(super) type Step<T> = Result<T, Report>;

/// Names what was tried when `result` is a failure.
pub(super) fn during<T, E: Into<io::Error>>(result: Result<T, E>, step: impl Into<Attempt>) -> Step<T> {
    result.map_err(|error| Report::Setup {
        step: step.into(),
        errno: error.into().raw_os_error().unwrap_or(Errno::IO.raw_os_error()),
    })
}

/// The whole life of the supervisor, and of process 1 until it becomes the command. To be called first thing in `main`,
/// before any thread exists, when the first argument is [`CHILD_ARGUMENT`].
#[must_use]
pub fn child_main() -> ExitCode {
    // Before the order: it holds secrets, and steps that run now may see this process.
    if sys::refuse_tracing().is_err() {
        return ExitCode::FAILURE;
    }
    // Standard input is the socket. Whatever else the builder's other threads had open at the moment of its fork is
    // none of our business, and might be the end of another step's pipe.
    if sys::close_inherited_descriptors().is_err() {
        return ExitCode::FAILURE;
    }
    // A signal to the terminal's process group, or to all processes of a container, reaches the builder as well, and
    // that decides; the supervisor must live to end what it supervises.
    sys::reset_signals();
    sys::block_signals();
    let Ok(socket) = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3) else {
        return ExitCode::FAILURE;
    };
    // Without an order, the builder is gone, or this is no sandbox at all but somebody who tries the argument.
    let Ok(order) = wire::receive_order(socket.as_fd()) else { return ExitCode::FAILURE };
    let report = match supervise(order, socket.as_fd()) {
        Ok(exit) => Report::Exit(exit),
        Err(report) => report,
    };
    match wire::send_report(socket.as_fd(), &report) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Starts the command and waits for its end. In the process that becomes the command this returns only when that could
/// not be started.
fn supervise(order: Order, socket: BorrowedFd<'_>) -> Step<Exit> {
    let Order { confinement, process, root } = order;
    // A session of its own keeps a terminal's job control away.
    during(rustix::process::setsid(), "start a session")?;
    if process.network == Network::None {
        network::cut_off()?;
    }
    let unfiltered = SystemCalls::AsForTheBuilder;
    let left = confinement.left();
    match confinement {
        Confinement::Namespaces { proc } => {
            let root = mounts::separate_root(root)?;
            let clones = attach::clone_sources(&process)?;
            match proc {
                ProcView::Own => {
                    during(sys::unshare(UnshareFlags::NEWPID), "make a pid namespace")?;
                    start(root, socket, left, |root| {
                        mounts::enter(&process, root, clones, proc)?;
                        launch::launch(&process, CAPABILITIES, SystemCalls::Filtered)
                    })
                }
                ProcView::Shared => start(root, socket, left, |root| {
                    // From where the machine's /proc still is, and before there is anything of the image.
                    let inner = Inner::prepare()?;
                    mounts::enter(&process, root, clones, proc)?;
                    inner.enter()?;
                    // The network has to belong to the namespace that its capabilities count in, or its root could not
                    // listen on ports below 1024 there, nor ping.
                    if process.network == Network::None {
                        network::cut_off()?;
                    }
                    // Where the kernel cannot do that, a step may end its own build, and nothing is left all the same: see
                    // [`super::orphans`].
                    let _ = sys::keep_signals_inside();
                    launch::launch(&process, CAPABILITIES, SystemCalls::Filtered)
                }),
            }
        }
        Confinement::Chroot => start(root, socket, left, |root| {
            chroot::enter(root).and_then(|()| launch::launch(&process, chroot::CAPABILITIES, unfiltered))
        }),
        Confinement::InPlace => {
            // No root, but the lock by which the next builder knows that something of the step is left, also if this
            // builder is dead by then.
            let lock = during(root.try_clone(), "keep the lock of the step")?;
            let (supervisor, builder) = (getpid(), getppid());
            let exit =
                start(root, socket, left, |_| launch::launch(&process, chroot::CAPABILITIES, unfiltered));
            // Else this is what should have become the command; or the builder lives, and goes on.
            if getpid() == supervisor && is_dead(builder, socket) {
                in_place::take_over(Path::new("/"), lock);
            }
            exit
        }
    }
}

/// Whether `builder`, which was the parent of this process and has the other end of `socket`, is dead.
///
/// A process that is killed closes its sockets some time before its locks and before its children get another parent, the
/// more so where much else runs. So the end of one that has closed its socket is waited for.
fn is_dead(builder: Option<Pid>, socket: BorrowedFd<'_>) -> bool {
    if getppid() != builder {
        return true;
    }
    // Where it lives, it has not closed the socket, but only said that it will write nothing more.
    let mut closed = [PollFd::new(&socket, PollFlags::empty())];
    let is_closed =
        poll(&mut closed, Some(&Timespec::default())).is_ok() && closed[0].revents().contains(PollFlags::HUP);
    if is_closed && let Some(Ok(handle)) = builder.map(|builder| pidfd_open(builder, PidfdFlags::empty())) {
        // For a while: who has the number of a builder that was dead from the beginning may live long.
        let _ = poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&PATIENCE));
    }
    is_closed
}

/// Forks a process that becomes the command by `become_command`, and waits for its end.
fn start(
    root: OwnedFd,
    socket: BorrowedFd<'_>,
    left: Left,
    become_command: impl FnOnce(OwnedFd) -> Step<Infallible>,
) -> Step<Exit> {
    if left == Left::Descendants {
        during(set_child_subreaper(Some(getpid())), "become the parent of orphans")?;
    }
    let children = during(sys::ended_children(), "wait for processes")?;
    match during(sys::fork_single_threaded(), "fork")? {
        Forked::Child => match become_command(root) {
            Ok(never) => match never {},
            Err(report) => Err(report),
        },
        Forked::Parent(first) => {
            drop((root, become_command));
            let exit = during(wait(first, &children, socket), "wait for the process");
            if left == Left::Descendants {
                during(descendants::end_all(), "end what the process left running")?;
            }
            exit
        }
    }
}

/// Waits until process 1 has ended, which takes every other process of its namespace along. Ends it when the builder
/// closes its end of the socket: on purpose, or because it is dead. `children` can be read when a child has ended.
///
/// Meanwhile it takes leave of what the process has orphaned: who waits for a daemon to end sees whether its number is
/// still taken (start-stop-daemon(8)).
fn wait(first: Pid, children: &OwnedFd, socket: BorrowedFd<'_>) -> io::Result<Exit> {
    // Its number is its own until it is reaped, which is done nowhere else.
    let end = || {
        let _ = rustix::process::kill_process(first, Signal::KILL);
    };
    let mut builder_is_there = true;
    loop {
        if let Some(exit) = reap(first)? {
            return Ok(exit);
        }
        // The socket is left out once it has said what it has to say.
        let mut waiting = vec![PollFd::new(&children, PollFlags::IN)];
        if builder_is_there {
            waiting.push(PollFd::new(&socket, PollFlags::IN | PollFlags::RDHUP));
        }
        if let Err(error) = poll(&mut waiting, None)
            && error != Errno::INTR
        {
            end();
            let _ = waitpid(Some(first), WaitOptions::empty());
            return Err(error.into());
        }
        let happened: Vec<bool> = waiting.iter().map(|entry| !entry.revents().is_empty()).collect();
        if happened[0] {
            // However many have ended since, it is said once.
            let _ = rustix::io::read(children, &mut [0; 128]);
        }
        if happened.get(1) == Some(&true) {
            builder_is_there = false;
            end();
        }
    }
}

/// Takes leave of all children that have ended; says how the first ended, if it has.
fn reap(first: Pid) -> io::Result<Option<Exit>> {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some((process, _))) if process != first => {}
            Ok(Some((_, status))) => {
                if let Some(signal) = status.terminating_signal() {
                    return Ok(Some(Exit::Signal(signal)));
                }
                let code = status.exit_status().and_then(|code| u8::try_from(code).ok());
                return Ok(Some(Exit::Code(code.unwrap_or(u8::MAX))));
            }
            Ok(None) => return Ok(None),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};

    use super::*;

    #[test]
    fn a_builder_that_says_no_more_lives_and_one_that_is_no_parent_is_dead() {
        let (theirs, ours) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        assert!(!is_dead(getppid(), ours.as_fd()));
        shutdown(&theirs, Shutdown::Write).unwrap();
        assert!(!is_dead(getppid(), ours.as_fd()));
        // This process is not its own parent.
        assert!(is_dead(Some(getpid()), ours.as_fd()));
    }
}
