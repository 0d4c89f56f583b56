//! Raw system calls that no crate wraps; the only `unsafe`.
#![expect(unsafe_code, reason = "this is the one place for it")]

use std::ffi::{CStr, CString, c_char};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::mount::MountAttrFlags;
use rustix::process::Pid;
use rustix::thread::UnshareFlags;

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Ends this process with all its threads, whatever they hold: nothing is flushed, dropped or waited for.
pub fn end_at_once(code: i32) -> ! {
    // SAFETY: the call has no preconditions, and does not return.
    unsafe { libc::_exit(code) }
}

/// How far an operation on a mount reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountReach {
    /// This mount only.
    One,
    /// This mount and all that are mounted below it.
    Tree,
}

/// Adds `attributes` to a mount, given by a descriptor of its root, and takes it out of its propagation group, so that
/// nothing that is mounted in it appears elsewhere (`mount_setattr`, Linux 5.12).
///
/// # Errors
/// Those of mount_setattr(2).
pub fn restrict_mount(mount: impl AsFd, attributes: MountAttrFlags, reach: MountReach) -> io::Result<()> {
    let change = libc::mount_attr {
        attr_set: u64::from(attributes.bits()),
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: 0,
    };
    let recursive = if reach == MountReach::Tree { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is a NUL-terminated constant; the kernel reads `size_of` bytes of `change`, which outlives the
    // call.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | recursive,
            &raw const change,
            size_of::<libc::mount_attr>(),
        )
    })?;
    Ok(())
}

/// Moves the calling thread (for pid namespaces: its future children) into new namespaces. The descriptor table stays
/// shared whatever `flags` says.
///
/// # Errors
/// Those of unshare(2).
pub fn unshare(flags: UnshareFlags) -> io::Result<()> {
    // SAFETY: the one hazard is CLONE_FILES, which is masked out.
    unsafe { rustix::thread::unshare_unsafe(flags.difference(UnshareFlags::FILES)) }.map_err(Into::into)
}

/// Brings up the loopback interface of the network namespace that the calling thread is in: the kernel then gives it its
/// addresses.
///
/// # Errors
/// Those of socket(2) and of netdevice(7).
pub fn bring_up_loopback() -> io::Result<()> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // SAFETY: all zero is a value of this plain struct.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as c_char;
    request.ifr_name[1] = b'o' as c_char;
    // SAFETY: both calls read and write no more than `request`, whose name ends with a zero, and which outlives them; what
    // is read of the union is what the first one has written.
    unsafe {
        check(libc::c_long::from(libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS, &raw mut request)))?;
        request.ifr_ifru.ifru_flags |= libc::IFF_UP as libc::c_short;
        check(libc::c_long::from(libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request)))?;
    }
    Ok(())
}

/// The two ways out of [`fork_single_threaded`].
#[derive(Debug)]
pub enum Forked {
    /// The process that called; the id is that of the child.
    Parent(Pid),
    /// The new process.
    Child,
}

/// Forks a process that has one thread only, so that the child may do all that the parent may.
///
/// # Errors
/// Those of fork(2); also when there is, or may be, a second thread.
pub fn fork_single_threaded() -> io::Result<Forked> {
    // Another thread could hold a lock, of the allocator for instance, that nobody would release in the child.
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("the process has more than one thread"));
    }
    // SAFETY: there is no second thread.
    let pid = check(libc::c_long::from(unsafe { libc::fork() }))?;
    Ok(i32::try_from(pid).ok().and_then(Pid::from_raw).map_or(Forked::Child, Forked::Parent))
}

/// Replaces this process by `program`, an absolute path; returns only when that failed.
pub fn execve(program: &CStr, arguments: &[CString], environment: &[CString]) -> io::Error {
    let pointers = |strings: &[CString]| -> Vec<*const c_char> {
        strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
    };
    let (arguments, environment) = (pointers(arguments), pointers(environment));
    // SAFETY: both arrays end with a null pointer and, as the strings they point to, live until the call returns.
    unsafe { libc::execve(program.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
    io::Error::last_os_error()
}

/// Gives every signal its default action and unblocks them all, as a new program expects.
pub fn reset_signals() {
    // The kernel's `struct sigaction`: all zero is the default action with no flags, on every architecture. The C
    // library's own function would leave out the two signals that it keeps to itself.
    let default = [0_u64; 8];
    const SET_SIZE: usize = 8;
    // SAFETY: the kernel reads less than the 64 bytes of `default` and writes nothing; numbers that cannot be changed are
    // refused with EINVAL. The set is initialised by sigemptyset before it is read.
    unsafe {
        for signal in 1..=64 {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                default.as_ptr(),
                ptr::null::<libc::c_void>(),
                SET_SIZE,
            );
        }
        let mut none = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
    }
}

/// Blocks every signal that can be blocked: only SIGKILL and SIGSTOP reach the process from now on.
pub fn block_signals() {
    // SAFETY: the set is initialised by sigfillset before it is read.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const all, ptr::null_mut());
    }
}

/// A descriptor that can be read when a child has ended, and tells of each time at most once: for a process in which that
/// signal is blocked.
///
/// # Errors
/// Those of signalfd(2).
pub fn ended_children() -> io::Result<OwnedFd> {
    // SAFETY: the set is initialised by sigemptyset before it is read; the descriptor is nobody else's.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
        let descriptor = check(libc::c_long::from(libc::signalfd(-1, &raw const set, flags)))?;
        Ok(OwnedFd::from_raw_fd(descriptor as RawFd))
    }
}

/// Closes what a careless parent left open: all descriptors from 3 on. For the very beginning of a process, before it
/// has opened anything.
///
/// # Errors
/// Those of close_range(2).
pub fn close_inherited_descriptors() -> io::Result<()> {
    close_range(0)
}

/// Marks all descriptors from 3 on to be closed by the next [`execve`].
///
/// # Errors
/// Those of close_range(2).
pub fn set_close_on_exec() -> io::Result<()> {
    close_range(libc::CLOSE_RANGE_CLOEXEC as libc::c_int)
}

fn close_range(flags: libc::c_int) -> io::Result<()> {
    const FIRST: RawFd = 3;
    // SAFETY: no pointers. That nothing which is still in use gets closed is what the callers' comments ask for; the
    // worst result is EBADF.
    check(unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, flags) })?;
    Ok(())
}

/// `PER_LINUX32` of personality(2), which the libc crate lacks.
const PER_LINUX32: libc::c_ulong = 0x0008;

/// Makes the kernel present the machine as its 32-bit predecessor (`uname -m`: `i686` on x86-64, `armv8l` on arm64), for
/// this process and all that it starts.
///
/// # Errors
/// `EINVAL` on an arm64 processor that cannot run 32-bit programs.
pub fn set_32_bit_personality() -> io::Result<()> {
    // SAFETY: no pointers; only the presentation of the machine changes.
    check(libc::c_long::from(unsafe { libc::personality(PER_LINUX32) }))?;
    Ok(())
}

/// Whether the kernel accepts [`set_32_bit_personality`]: on arm64 that says whether the processor runs 32-bit programs.
/// The calling thread's own presentation is the same afterwards.
#[must_use]
pub fn has_32_bit_personality() -> bool {
    const QUERY: libc::c_ulong = 0xffff_ffff;
    // SAFETY: no pointers; the old value is put back.
    unsafe {
        let before = libc::personality(QUERY);
        let accepted = libc::personality(PER_LINUX32) >= 0;
        if let Ok(before) = libc::c_ulong::try_from(before) {
            libc::personality(before);
        }
        accepted
    }
}

/// Keeps everybody with no more rights than this process from tracing it, and from reading its memory, environment and
/// descriptors and going through its root and directories in /proc. Its files there belong to root from now on. So it is
/// with the processes that it forks, until they execute a program or change who they are.
///
/// # Errors
/// Those of prctl(2), `PR_SET_DUMPABLE`; there are none that are expected.
pub fn refuse_tracing() -> io::Result<()> {
    Ok(rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?)
}

/// What [`keep_inside`] keeps inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inside {
    /// Tracing, and connections to sockets that have a name but no file.
    Sockets,
    /// Signals as well.
    SocketsAndSignals,
}

/// Keeps this process, and all that it starts, from reaching others by what `inside` says (`LANDLOCK_SCOPE_SIGNAL` and
/// `LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET` of landlock(7)).
///
/// # Errors
/// `ENOSYS`, `EOPNOTSUPP`, `EINVAL` or `E2BIG` from a kernel that cannot do it (before Linux 6.12), `EPERM` without
/// CAP_SYS_ADMIN in the user namespace and without `no_new_privs`, and others where a filter of system calls says so.
pub fn keep_inside(inside: Inside) -> io::Result<()> {
    // `struct landlock_ruleset_attr`: file system and network, nothing of which is restricted, and scopes.
    const SCOPE_ABSTRACT_UNIX_SOCKET: u64 = 1 << 0;
    const SCOPE_SIGNAL: u64 = 1 << 1;
    let scopes = match inside {
        Inside::Sockets => SCOPE_ABSTRACT_UNIX_SOCKET,
        Inside::SocketsAndSignals => SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL,
    };
    let attributes: [u64; 3] = [0, 0, scopes];
    // SAFETY: the kernel reads `size_of_val` bytes of `attributes`, which outlive the call, and makes a descriptor that is
    // nobody else's.
    let ruleset = unsafe {
        let number = check(libc::syscall(
            libc::SYS_landlock_create_ruleset,
            attributes.as_ptr(),
            size_of_val(&attributes),
            0,
        ))?;
        OwnedFd::from_raw_fd(number as RawFd)
    };
    // SAFETY: no pointers.
    check(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0) })?;
    Ok(())
}

/// Leaves the inherited session keyring for a new, empty one.
///
/// # Errors
/// Those of keyctl(2); `ENOSYS` from a kernel without keyrings.
pub fn leave_session_keyring() -> io::Result<()> {
    const JOIN_SESSION_KEYRING: libc::c_int = 1;
    // SAFETY: a null name asks for an anonymous keyring.
    check(unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, ptr::null::<c_char>()) })?;
    Ok(())
}

/// Runs `body` in a process of its own that is no child of this one: it is the child of init (or of the nearest
/// subreaper), in a session of its own, works in `/`, and ends when `body` returns. It holds the descriptors `keep`,
/// which are closed here, and no others: 0, 1 and 2 are /dev/null, so nobody waits for it at the end of a pipe. Only
/// the calling thread exists there: call this while there is no other.
///
/// # Errors
/// Those of fork(2), and a first child that was killed before it could fork.
pub fn fork_detached<const N: usize>(keep: [OwnedFd; N], body: impl FnOnce([OwnedFd; N])) -> io::Result<()> {
    // SAFETY: fork has no preconditions. What the child may do is limited only when other threads exist; the C
    // library keeps its allocator usable even then.
    let first = unsafe { libc::fork() };
    if first < 0 {
        return Err(io::Error::last_os_error());
    }
    if first == 0 {
        // SAFETY: both take no pointers.
        let second = unsafe {
            libc::setsid();
            libc::fork()
        };
        if second == 0 {
            keep_only(&keep);
            body(keep);
        }
        let code =
            if second < 0 { io::Error::last_os_error().raw_os_error().unwrap_or(libc::EAGAIN) } else { 0 };
        // SAFETY: ends this process at once: nothing of the parent's (buffers, exit handlers) may run twice.
        unsafe { libc::_exit(code) }
    }
    match wait_for(first)? {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

/// Runs `body` in a child that has a copy of everything, holds of the descriptors only its standard ones, `keep` and
/// `telling`, which are closed here, and ends when `body` returns. The process has one thread only.
///
/// # Errors
/// Those of [`fork_single_threaded`].
pub fn fork_helper<const N: usize>(
    keep: [OwnedFd; N],
    telling: OwnedFd,
    body: impl FnOnce([OwnedFd; N], OwnedFd),
) -> io::Result<Pid> {
    match fork_single_threaded()? {
        Forked::Parent(child) => Ok(child),
        Forked::Child => {
            let kept: Vec<BorrowedFd<'_>> = keep.iter().map(AsFd::as_fd).chain([telling.as_fd()]).collect();
            close_all_but(&kept, 3);
            body(keep, telling);
            // SAFETY: ends this process at once: nothing of the parent's (buffers, exit handlers) may run twice.
            unsafe { libc::_exit(0) }
        }
    }
}

/// Closes every descriptor but `keep`, opens /dev/null as 0, 1 and 2 and goes to `/`. Only for a process that was just
/// forked, whose owners of all those descriptors will never run.
fn keep_only(keep: &[OwnedFd]) {
    close_all_but(keep, 0);
    // SAFETY: the paths are NUL-terminated. New descriptors take the lowest free numbers.
    unsafe {
        while (0..2).contains(&libc::open(c"/dev/null".as_ptr(), libc::O_RDWR)) {}
        libc::chdir(c"/".as_ptr());
    }
}

/// Closes the descriptors from `first` on. Only for a process that was just forked, as above.
fn close_all_but(keep: &[impl AsRawFd], mut first: u32) {
    let mut kept: Vec<u32> = keep.iter().map(|fd| fd.as_raw_fd().cast_unsigned()).collect();
    kept.sort_unstable();
    for fd in kept {
        if first < fd {
            close_each(first, fd - 1);
        }
        first = first.max(fd + 1);
    }
    close_each(first, u32::MAX);
}

fn close_each(first: u32, last: u32) {
    // SAFETY: takes no pointers; nobody in this process uses the descriptors any more.
    if unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } == 0 {
        return;
    }
    // Before Linux 5.9. Descriptors beyond what is usual stay open; they keep nobody waiting for us.
    for fd in first..=last.min(65_536) {
        // SAFETY: as above.
        unsafe { libc::close(fd.cast_signed()) };
    }
}

/// The exit code of the child `process`, once it has ended.
fn wait_for(process: libc::pid_t) -> io::Result<i32> {
    let mut status = 0;
    loop {
        // SAFETY: `status` is valid for writing.
        if unsafe { libc::waitpid(process, &raw mut status, 0) } == process {
            break;
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            // Whoever started us ignores SIGCHLD: the kernel reaps, and the code is lost.
            Some(libc::ECHILD) => return Ok(0),
            _ => return Err(error),
        }
    }
    if libc::WIFEXITED(status) { Ok(libc::WEXITSTATUS(status)) } else { Ok(libc::EINTR) }
}

/// Waits until a child of this process has ended, whichever; gives its number. It stays to be waited for.
///
/// # Errors
/// Those of waitid(2): `ECHILD` when there is no child at all.
pub fn wait_for_any_child() -> io::Result<Pid> {
    // SAFETY: the kernel writes no more than `info`, for which all zero is a valid value.
    let ended = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let options = libc::WEXITED | libc::WNOWAIT;
        check(libc::c_long::from(libc::waitid(libc::P_ALL, 0, &raw mut info, options)))?;
        info.si_pid()
    };
    Pid::from_raw(ended).ok_or_else(|| io::Error::from_raw_os_error(libc::ECHILD))
}

/// Whether standard output was closed when this process began.
static STDOUT_WAS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Before `main`: Rust opens `/dev/null` for standard streams that are closed, and another program may give the same on purpose.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK_AT_STDOUT: extern "C" fn() = look_at_stdout;

extern "C" fn look_at_stdout() {
    // SAFETY: the call has no preconditions, and what is called here needs nothing of Rust's runtime.
    let is_closed = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) } < 0;
    STDOUT_WAS_CLOSED.store(is_closed, Ordering::Relaxed);
}

/// Whether this process was started without a standard output. What is written there now gets lost.
#[must_use]
pub fn stdout_was_closed() -> bool {
    STDOUT_WAS_CLOSED.load(Ordering::Relaxed)
}

/// Undoes what a careless parent may have left: no signal is blocked, ended children are told of, and writing a file
/// that is longer than the limit (`ulimit -f`) fails instead of ending the process without a word.
pub fn settle_inherited_signals() {
    // SAFETY: SIG_DFL and SIG_IGN are no handlers, so no code runs in signal context; the set is initialised by
    // sigemptyset before it is read.
    unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        let mut none = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
    }
}

/// Has the kernel take leave of children as they end, from now on: nobody is told how, and none is left to be waited for.
pub fn disown_ended_children() {
    // SAFETY: SIG_IGN is no handler, so no code runs in signal context.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
}

/// Ignores the signals by which terminals, shells and supervisors end or stop a process.
pub fn ignore_ending_signals() {
    for signal in [
        libc::SIGINT,
        libc::SIGTERM,
        libc::SIGHUP,
        libc::SIGQUIT,
        libc::SIGPIPE,
        libc::SIGTSTP,
        libc::SIGTTIN,
        libc::SIGTTOU,
    ] {
        // SAFETY: SIG_IGN is no handler, so no code runs in signal context.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Takes this thread, and the threads and processes it starts from now on, into a mount namespace of its own, to which
/// mounts made outside still come and from which none go out. To be called before there is any other thread.
///
/// # Errors
/// Those of unshare(2), `EPERM` without `CAP_SYS_ADMIN`, and of mount(2).
pub fn enter_private_mounts() -> io::Result<()> {
    unshare(UnshareFlags::NEWNS)?;
    let change = rustix::mount::MountPropagationFlags::DOWNSTREAM | rustix::mount::MountPropagationFlags::REC;
    Ok(rustix::mount::mount_change("/", change)?)
}

/// Gives the calling thread a current directory of its own.
///
/// # Errors
/// Those of unshare(2).
pub fn unshare_current_directory() -> io::Result<()> {
    // SAFETY: CLONE_FS does not touch the table of descriptors.
    Ok(unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FS) }?)
}

/// Tries to take the lock on the byte at `offset` of `file` (`F_OFD_SETLK` of fcntl(2)); says whether it is taken now. It
/// belongs to the open file, not to the process: it is held until the last descriptor of that is closed, even by the
/// kernel, and excludes other openings of the same process too. Bytes beyond the end of the file can be locked.
///
/// # Errors
/// Those of fcntl(2): `EBADF` for a file that is not open for writing, and others from file systems without locks.
pub fn try_lock_byte(file: impl AsFd, offset: u64) -> io::Result<bool> {
    let start = i64::try_from(offset).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let lock = libc::flock64 {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: 1,
        // Must be zero for locks of open files.
        l_pid: 0,
    };
    loop {
        // SAFETY: `lock` lives until the call returns, which only reads it.
        match check(libc::c_long::from(unsafe {
            libc::fcntl(file.as_fd().as_raw_fd(), libc::F_OFD_SETLK, &raw const lock)
        })) {
            Ok(_) => return Ok(true),
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN | libc::EACCES) => return Ok(false),
                _ => return Err(error),
            },
        }
    }
}

/// Maps the first byte of `file`, reads it there, does `between`, and writes another byte there.
///
/// # Errors
/// Those of mmap(2) and of `between`; `EINVAL` for an empty file. Nobody may cut the file off meanwhile: that would end
/// the process.
pub fn write_mapped(file: impl AsFd, between: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    if rustix::fs::fstat(&file)?.st_size < 1 {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: the kernel chooses an address that nobody uses.
    let address = unsafe {
        libc::mmap(
            ptr::null_mut(),
            1,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_fd().as_raw_fd(),
            0,
        )
    };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let byte = address.cast::<u8>();
    // SAFETY: the mapping holds this byte, which the file has, until munmap below; volatile, so that both accesses are
    // made although nobody uses what they give.
    let before = unsafe { byte.read_volatile() };
    let result = between();
    if result.is_ok() {
        // SAFETY: as above.
        unsafe { byte.write_volatile(before.wrapping_add(1)) };
    }
    // SAFETY: nothing points into the mapping any more.
    unsafe { libc::munmap(address, 1) };
    result
}

/// Whether the kernel takes filters of system calls, and the filters in force let one ask.
#[must_use]
pub fn has_system_call_filters() -> bool {
    let action = libc::SECCOMP_RET_ERRNO;
    // SAFETY: the kernel reads four bytes of `action`, which outlives the call.
    unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, &raw const action) == 0 }
}

/// Has the kernel run `program` before each system call of the calling thread, and of what that starts from now on
/// (seccomp(2)). Takes CAP_SYS_ADMIN, or no_new_privs.
///
/// # Errors
/// Those of seccomp(2).
pub fn install_system_call_filter(program: &[libc::sock_filter]) -> io::Result<()> {
    let Ok(length) = u16::try_from(program.len()) else {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    };
    let program = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut() };
    // Before Linux 5.16 a filter would otherwise switch on mitigations of speculation that make all of the process
    // slower. Containers have done without since runc 1.1.
    let flags = libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
    // SAFETY: the kernel reads `len` instructions from `filter`, writes nothing, and checks the program; both outlive the
    // call.
    check(unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program)
    })?;
    Ok(())
}

/// Ends this process as [`end_at_once`] does, with the code of a shell whose command `signal` has ended, after `line` was
/// written to standard error. May be called in signal context.
fn end_with_line(signal: i32, line: &str) -> ! {
    write_last(line);
    end_at_once(128 + signal)
}

/// Writes `line`, which fits in a page, to standard error, unless that would have to wait: nobody may be reading. May be
/// called in signal context.
pub fn write_last(line: &str) {
    let mut error = libc::pollfd { fd: libc::STDERR_FILENO, events: libc::POLLOUT, revents: 0 };
    // SAFETY: both calls are allowed in signal context, and what they are given is there meanwhile.
    unsafe {
        // A pipe is writable when a page has room in it.
        if libc::poll(&raw mut error, 1, 0) == 1 && error.revents & libc::POLLOUT != 0 {
            libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len());
        }
    }
}

/// Ends this process with `line` when `signal` comes while `armed` is set.
///
/// # Errors
/// Those of sigaction(2).
pub fn end_at_signal(signal: i32, armed: Arc<AtomicBool>, line: String) -> io::Result<signal_hook::SigId> {
    let act = move || {
        if armed.load(Ordering::SeqCst) {
            end_with_line(signal, &line);
        }
    };
    // SAFETY: what is done in signal context (atomics, poll, write, _exit) is allowed there, and cannot panic.
    unsafe { signal_hook::low_level::register(signal, act) }
}

/// Ends this process with `line` when `signal` comes and another one came before, at least `echo` ago. `first` is shared by
/// all signals that count as one another: nanoseconds since the machine was started, zero as long as none came.
///
/// # Errors
/// Those of sigaction(2).
pub fn end_at_second_signal(
    signal: i32,
    line: String,
    first: Arc<AtomicU64>,
    echo: Duration,
) -> io::Result<signal_hook::SigId> {
    let act = move || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let now = now
            .tv_sec
            .cast_unsigned()
            .saturating_mul(1_000_000_000)
            .saturating_add(now.tv_nsec.cast_unsigned());
        if let Err(first) = first.compare_exchange(0, now, Ordering::SeqCst, Ordering::SeqCst)
            && Duration::from_nanos(now.saturating_sub(first)) >= echo
        {
            end_with_line(signal, &line);
        }
    };
    // SAFETY: what is done in signal context (clock_gettime, atomics, poll, write, _exit) is allowed there, and cannot panic.
    unsafe { signal_hook::low_level::register(signal, act) }
}

/// Has `command`, and whatever it starts, each have at most `bytes` of memory of its own (`RLIMIT_DATA`), if it may not have
/// less already. What it maps of files does not count.
pub fn limit_memory(command: &mut std::process::Command, bytes: u64) {
    use std::os::unix::process::CommandExt as _;

    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    let limit = move || {
        let most = getrlimit(Resource::Data).maximum.map_or(bytes, |most| most.min(bytes));
        Ok(setrlimit(Resource::Data, Rlimit { current: Some(most), maximum: Some(most) })?)
    };
    // SAFETY: between fork(2) and execve(2) there are two system calls, that neither allocate nor take a lock.
    unsafe {
        command.pre_exec(limit);
    }
}

/// Has the system call `number` of the calling thread, and of threads that it starts, fail with `errno` from now on.
///
/// # Errors
/// Those of prctl(2) and seccomp(2).
#[cfg(test)]
pub fn refuse_call(number: libc::c_long, errno: rustix::io::Errno) -> io::Result<()> {
    let statement = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    // SAFETY: takes no pointers.
    check(libc::c_long::from(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }))?;
    install_system_call_filter(&[
        // The number of the call is the first field of struct seccomp_data.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, number as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | errno.raw_os_error() as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ])
}
