//! The supervisor: a small process between the builder and process 1 of the sandbox.

use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::ExitCode;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpid, getppid, pidfd_open, set_child_subreaper,
    waitpid,
};
use rustix::thread::UnshareFlags;

use super::allowed::Allowed;
use super::emulation::{self, Emulator};
use super::own::Inner;
use super::refusal::{Act, Attempt};
use super::wire::{self, Confinement, Left, Order, Report};
use super::{
    Exit, Network, ProcView, Process, Runner, Survivors, attach, chroot, descendants, in_place, launch,
    mounts, network,
};
use crate::sys::{self, Forked, Inside};

/// The first argument that makes this program the supervisor of a sandbox.
pub const CHILD_ARGUMENT: &str = "sandbox-supervisor";

/// How long a builder that is dead may take to go.
const PATIENCE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// How many children are taken leave of before something else is looked at: there may be others as fast as that.
const REAPED_AT_ONCE: usize = 256;

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
    let mut rest = Rest::Ended;
    let report = match supervise(order, socket.as_fd(), &mut rest) {
        Ok(exit) => Report::Exit(exit),
        Err(report) => report,
    };
    match wire::send_report(socket.as_fd(), &report) {
        Ok(()) if rest == Rest::Ended => ExitCode::SUCCESS,
        // The builder becomes the parent of what is left, and tries to end it.
        _ => ExitCode::FAILURE,
    }
}

/// What has become of all that the command had started.
#[derive(Debug, PartialEq, Eq)]
enum Rest {
    /// It has ended, or never was.
    Ended,
    /// Some of it would not end.
    Lives(Survivors),
}

/// Starts the command and waits for its end. In the process that becomes the command this returns only when that could
/// not be started.
fn supervise(order: Order, socket: BorrowedFd<'_>, rest: &mut Rest) -> Step<Exit> {
    let Order { confinement, process, root } = order;
    // A session of its own keeps a terminal's job control away.
    during(rustix::process::setsid(), "start a session")?;
    if process.network == Network::None {
        network::cut_off()?;
    }
    let left = confinement.left();
    match confinement {
        Confinement::Namespaces { proc } => {
            let root = mounts::separate_root(root, process.security)?;
            let clones = attach::clone_sources(&process)?;
            let handlers = Handlers::prepare(&process)?;
            match proc {
                ProcView::Own => {
                    during(sys::unshare(UnshareFlags::NEWPID), "make a pid namespace")?;
                    start(root, socket, (left, rest), |root| {
                        mounts::enter(&process, root, clones, proc)?;
                        if let Some(handlers) = &handlers {
                            // With the /proc of its own namespace, in which its number means what it does to this process.
                            let inner = Inner::prepare()?;
                            launch::set_limits(&process)?;
                            of_handlers(inner.enter_with_mounts())?;
                            if process.network == Network::None {
                                network::cut_off()?;
                            }
                            handlers.register()?;
                        }
                        if !matches!(process.runner, Runner::Processor) {
                            leave_first_process()?;
                        }
                        launch::launch(&process, &Allowed::inside(process.security)?)
                    })
                }
                ProcView::Shared => start(root, socket, (left, rest), |root| {
                    // From where the machine's /proc still is, and before there is anything of the image.
                    let inner = Inner::prepare()?;
                    mounts::enter(&process, root, clones, proc)?;
                    match &handlers {
                        None => inner.enter()?,
                        Some(_) => of_handlers(inner.enter_with_mounts())?,
                    }
                    // The network has to belong to the namespace that its capabilities count in, or its root could not
                    // listen on ports below 1024 there, nor ping.
                    if process.network == Network::None {
                        network::cut_off()?;
                    }
                    if let Some(handlers) = &handlers {
                        handlers.register()?;
                    }
                    // Where the kernel cannot do that, a step may end its own build, and nothing is left all the same: see
                    // [`super::orphans`].
                    let _ = sys::keep_inside(Inside::SocketsAndSignals);
                    launch::launch(&process, &Allowed::inside(process.security)?)
                }),
            }
        }
        Confinement::Chroot { devices } => start(root, socket, (left, rest), |root| {
            let allowed = Allowed::beside_others(devices)?;
            chroot::enter(root)?;
            // Another builder's step in the same container could hand over its root, or be traced: from there on leads no
            // way but up. It takes CAP_SYS_ADMIN, or no_new_privs, which would take their rights from setuid programs.
            // Signals do less harm than it does to refuse them only where there is that capability.
            let _ = sys::keep_inside(Inside::Sockets);
            launch::launch(&process, &allowed)
        }),
        Confinement::InPlace { devices } => {
            // No root, but the lock by which the next builder knows that something of the step is left, also if this
            // builder is dead by then.
            let lock = during(root.try_clone(), "keep the lock of the step")?;
            let supervisor = getpid();
            let exit = start(root, socket, (left, rest), |_| {
                launch::launch(&process, &Allowed::beside_others(devices)?)
            });
            // Else this is what should have become the command; or the builder lives, and goes on.
            if getpid() == supervisor && is_dead(socket) {
                match rest {
                    Rest::Ended => in_place::take_over(Path::new("/"), lock),
                    // No file may be moved under it.
                    Rest::Lives(survivors) => in_place::leave_to_next(Path::new("/"), survivors),
                }
            }
            exit
        }
    }
}

/// Goes on in a child; this process waits for its end, and for that of all others of the pid namespace, and ends as it did.
///
/// To process 1 of a pid namespace no signal that it sends itself does anything. An emulator that ends its program by a
/// signal, an illegal instruction for instance, sends it to itself and waits for it: for ever, if it were that process.
fn leave_first_process() -> Step<()> {
    let first = match during(sys::fork_single_threaded(), "fork")? {
        Forked::Child => return Ok(()),
        Forked::Parent(first) => first,
    };
    // When only the supervisor was killed, as in [`launch`].
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    // The socket among them: only the command may report.
    let _ = sys::close_inherited_descriptors();
    loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((process, status))) if process == first => sys::end_at_once(match exit_of(status) {
                Exit::Code(code) => code.into(),
                // As a shell says it: this process cannot end so.
                Exit::Signal(signal) => 128 + signal,
            }),
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => sys::end_at_once(u8::MAX.into()),
        }
    }
}

/// How a process has ended.
fn exit_of(status: WaitStatus) -> Exit {
    if let Some(signal) = status.terminating_signal() {
        return Exit::Signal(signal);
    }
    let code = status.exit_status().and_then(|code| u8::try_from(code).ok());
    Exit::Code(code.unwrap_or(u8::MAX))
}

/// Handlers that only the command and what it starts have.
struct Handlers<'a> {
    emulator: &'a Emulator,
    /// What is put into the one stays open as long as the other: in the supervisor, and nowhere that the command could
    /// close it.
    ends: [OwnedFd; 2],
}

impl<'a> Handlers<'a> {
    /// For the supervisor.
    fn prepare(process: &'a Process) -> Step<Option<Self>> {
        let Runner::Own(emulator) = &process.runner else { return Ok(None) };
        let (kept, other) = during(
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None),
            Act::Handler.named("keep handlers of the step's own"),
        )?;
        Ok(Some(Self { emulator, ends: [kept, other] }))
    }

    /// For the command, when it is in the user namespace.
    fn register(&self) -> Step<()> {
        let register = || {
            let mount = emulation::register(std::slice::from_ref(self.emulator))?;
            wire::put_into(self.ends[1].as_fd(), mount.as_fd()).map_err(io::Error::from)
        };
        of_handlers(during(register(), "register a handler of its own with binfmt_misc"))
    }
}

/// A failure that there would not be without handlers of its own.
fn of_handlers(step: Step<()>) -> Step<()> {
    step.map_err(|report| match report {
        Report::Setup { step, errno } => Report::Setup { step: Act::Handler.named(step.words), errno },
        other => other,
    })
}

/// Whether the builder, which has made `socket` and the process at this end of it, is dead.
///
/// Its number is the socket's: whose child this process was before it could ask may be dead already.
///
/// A process that is killed closes its sockets some time before its locks and before its children get another parent, the
/// more so where much else runs. So the end of one that has closed its socket is waited for.
fn is_dead(socket: BorrowedFd<'_>) -> bool {
    let builder = socket_peercred(socket).ok().map(|builder| builder.pid);
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
    (left, rest): (Left, &mut Rest),
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
            if left == Left::Descendants
                && let Err(survivors) = descendants::end_all()
            {
                *rest = Rest::Lives(survivors);
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
        let now = match reap(first)? {
            Reaped::First(exit) => return Ok(exit),
            Reaped::All => None,
            Reaped::Some => Some(Timespec::default()),
        };
        // The socket is left out once it has said what it has to say.
        let mut waiting = vec![PollFd::new(&children, PollFlags::IN)];
        if builder_is_there {
            waiting.push(PollFd::new(&socket, PollFlags::IN | PollFlags::RDHUP));
        }
        if let Err(error) = poll(&mut waiting, now.as_ref())
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

/// Who has been taken leave of.
enum Reaped {
    /// The first, which ended so.
    First(Exit),
    /// All that had ended.
    All,
    /// Some of those.
    Some,
}

/// Takes leave of children that have ended, until it comes to the first.
fn reap(first: Pid) -> io::Result<Reaped> {
    for _ in 0..REAPED_AT_ONCE {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some((process, _))) if process != first => {}
            Ok(Some((_, status))) => return Ok(Reaped::First(exit_of(status))),
            Ok(None) => return Ok(Reaped::All),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Reaped::Some)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::os::unix::process::CommandExt as _;
    use std::process::{Command, Stdio};

    use rustix::net::{Shutdown, shutdown};

    use super::*;

    /// Tells [`says_whether_the_builder_is_dead`] that it is a process of its own.
    const ALONE: &str = "BUILDER_TEST_DEAD";

    /// Not a test of its own: the process that the test below starts, which asks when it is told to, as late as can be.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "the way to tell a test that runs as a process of its own")]
    fn says_whether_the_builder_is_dead() {
        if std::env::var_os(ALONE).is_some() {
            println!("is dead: {}", is_dead(rustix::stdio::stdin()));
        }
    }

    /// Runs the above as a child of `shell` with one end of a socket of this process; what it says.
    fn asked_from(shell: &str, how: Option<Shutdown>) -> String {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        if let Some(how) = how {
            shutdown(&ours, how).unwrap();
        }
        let name = "sandbox::child::tests::says_whether_the_builder_is_dead";
        let program = std::env::current_exe().unwrap();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", shell, "sh"]).arg(program).args([name, "--exact", "--nocapture"]);
        command.env(ALONE, "1").stdin(Stdio::from(theirs)).stdout(Stdio::piped()).process_group(0);
        let mut child = command.spawn().unwrap();
        drop(command);
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let said = lines.map_while(Result::ok).find(|line| line.contains("is dead: ")).unwrap_or_default();
        child.wait().unwrap();
        said
    }

    #[test]
    fn a_builder_that_says_no_more_lives_and_one_that_is_no_parent_is_dead() {
        for (shell, how, expected) in [
            ("exec \"$@\"", None, "is dead: false"),
            ("exec \"$@\"", Some(Shutdown::Write), "is dead: false"),
            // Somebody else was its parent before it could ask.
            ("\"$@\"; exit 0", None, "is dead: true"),
        ] {
            assert!(asked_from(shell, how).ends_with(expected), "{shell} {how:?}");
        }
    }
}
