//! From process 1 to the command: rights, surroundings, and what is wrong when it cannot be executed.

use std::convert::Infallible;
use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Uid};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, Signal, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};

use super::allowed::Allowed;
use super::child::{Step, during};
use super::refusal::Act;
use super::seccomp::{self, SystemCalls};
use super::wire::Report;
use super::{Presentation, Process, emulation};
use crate::rootfs::{Escaped, Owner, open_resolved};
use crate::sys;

/// Where programs are looked for when the environment has no `PATH`.
const DEFAULT_PATH: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// How many scripts may name each other as interpreter, as in Linux.
const MAX_INTERPRETERS: usize = 5;

/// Why a command could not be started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartProblem {
    /// No such file.
    #[error("`{}` is not in the image", Escaped::new(program))]
    Missing {
        /// The command.
        program: Vec<u8>,
    },
    /// No such file in any directory of `PATH`.
    #[error("`{}` is in no directory of PATH (`{}`) in the image", Escaped::new(program), Escaped::new(path))]
    NotInPath {
        /// The command.
        program: Vec<u8>,
        /// Where it was looked for.
        path: Vec<u8>,
    },
    /// A script without its interpreter, or a program without its dynamic loader.
    #[error("`{}` needs `{}`, which is not in the image", Escaped::new(program), Escaped::new(interpreter))]
    MissingInterpreter {
        /// The command.
        program: Vec<u8>,
        /// What it names.
        interpreter: Vec<u8>,
    },
    /// No permission, or no file that could be executed at all.
    #[error("`{}` may not be executed: permission denied, or not a file", Escaped::new(program))]
    NotExecutable {
        /// The command.
        program: Vec<u8>,
    },
    /// A program for another processor, and nothing that would run it.
    #[error(
        "`{}` is a program for `{architecture}`, which this machine cannot run: no handler is registered with binfmt_misc",
        Escaped::new(program)
    )]
    Foreign {
        /// The command.
        program: Vec<u8>,
        /// Its processor, in Go's words.
        architecture: String,
    },
    /// A program for another processor, whose emulator is not reachable from the image.
    #[error(
        "`{}` is a program for `{architecture}`, and its emulator is not in the image: the handler must be registered with binfmt_misc with flag F",
        Escaped::new(program)
    )]
    UnreachableEmulator {
        /// The command.
        program: Vec<u8>,
        /// Its processor, in Go's words.
        architecture: String,
    },
    /// Neither a program nor a script.
    #[error("`{}` is neither a program nor a script that begins with `#!`", Escaped::new(program))]
    Format {
        /// The command.
        program: Vec<u8>,
    },
    /// A way through /proc to the builder's own program.
    #[error("`{}` leads through a link of /proc, and may lead out of the image", Escaped::new(program))]
    Outside {
        /// The command, or the interpreter of a script.
        program: Vec<u8>,
    },
    /// Anything else.
    #[error("`{}` cannot be executed: {}", Escaped::new(program), io::Error::from_raw_os_error(*errno))]
    Other {
        /// The command.
        program: Vec<u8>,
        /// What the kernel said.
        errno: i32,
    },
}

impl StartProblem {
    /// The command.
    #[must_use]
    pub fn program(&self) -> &[u8] {
        match self {
            Self::Missing { program }
            | Self::NotInPath { program, .. }
            | Self::MissingInterpreter { program, .. }
            | Self::NotExecutable { program }
            | Self::Foreign { program, .. }
            | Self::UnreachableEmulator { program, .. }
            | Self::Format { program }
            | Self::Outside { program }
            | Self::Other { program, .. } => program,
        }
    }

    /// Kind, command, detail and error number, for the way to the builder.
    pub(super) fn parts(&self) -> (u32, &[u8], &[u8], i32) {
        let program = self.program();
        match self {
            Self::Missing { .. } => (0, program, b"", 0),
            Self::NotInPath { path, .. } => (1, program, path, 0),
            Self::MissingInterpreter { interpreter, .. } => (2, program, interpreter, 0),
            Self::NotExecutable { .. } => (3, program, b"", 0),
            Self::Foreign { architecture, .. } => (4, program, architecture.as_bytes(), 0),
            Self::UnreachableEmulator { architecture, .. } => (5, program, architecture.as_bytes(), 0),
            Self::Format { .. } => (6, program, b"", 0),
            Self::Outside { .. } => (7, program, b"", 0),
            Self::Other { errno, .. } => (8, program, b"", *errno),
        }
    }

    /// The counterpart of [`StartProblem::parts`].
    pub(super) fn from_parts(kind: u32, program: &[u8], detail: &[u8], errno: i32) -> Option<Self> {
        let program = program.to_vec();
        let architecture = || String::from_utf8(detail.to_vec()).ok();
        Some(match kind {
            0 => Self::Missing { program },
            1 => Self::NotInPath { program, path: detail.to_vec() },
            2 => Self::MissingInterpreter { program, interpreter: detail.to_vec() },
            3 => Self::NotExecutable { program },
            4 => Self::Foreign { program, architecture: architecture()? },
            5 => Self::UnreachableEmulator { program, architecture: architecture()? },
            6 => Self::Format { program },
            7 => Self::Outside { program },
            8 => Self::Other { program, errno },
            _ => return None,
        })
    }
}

/// Gives this process the surroundings of the command and at most what is `allowed`, and becomes it. It already is inside
/// the root.
pub(super) fn launch(process: &Process, allowed: &Allowed) -> Step<Infallible> {
    let Allowed { capabilities, system_calls } = *allowed;
    let strings = during(Strings::new(process), "pass an argument or a variable with a NUL byte")?;
    during(check_identity(process), "take the identity of the user")?;
    during(connect_standard_input(), Act::OpenDevice.named("open `/dev/null`"))?;
    enter_directory(process)?;
    during(limit(process, capabilities), "set the limits of the process")?;
    // Before rights are given up: see there.
    set_limits(process)?;
    // While there still is CAP_SYS_ADMIN; what follows must be among what a step may do.
    if system_calls == SystemCalls::Filtered {
        during(seccomp::install(capabilities), "filter the system calls of the process")?;
    }
    during(take_identity(process, capabilities), "take the identity of the user")?;
    // As before: who changes its identity gets what `fs.suid_dumpable` says.
    during(sys::refuse_tracing(), "keep others from tracing the process")?;
    if process.presentation == Presentation::ThirtyTwoBit {
        during(sys::set_32_bit_personality(), "present a 32-bit machine")?;
    }
    during(rustix::process::setsid(), "start a session")?;
    // When only the supervisor was killed. The kernel forgets this when the command gains rights; the socket does not.
    during(rustix::process::set_parent_process_death_signal(Some(Signal::KILL)), "end with the supervisor")?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    during(sys::set_close_on_exec(), "close descriptors")?;
    sys::reset_signals();
    Err(Report::Start(execute(process, &strings)))
}

/// Sets the limits that the process asks for. To raise one above the builder's own takes CAP_SYS_RESOURCE in the user
/// namespace of the machine; nobody needs it to set a limit that is set already.
pub(super) fn set_limits(process: &Process) -> Step<()> {
    process
        .limits
        .iter()
        .try_for_each(|limit| during(limit.set(), format!("set the limit `{limit}` (--ulimit)")))
}

/// Arguments and environment as execve(2) takes them.
struct Strings {
    args: Vec<CString>,
    env: Vec<CString>,
}

impl Strings {
    fn new(process: &Process) -> io::Result<Self> {
        let variable = |name: &[u8], value: &[u8]| CString::new([name, b"=", value].concat());
        Ok(Self {
            args: process
                .args
                .iter()
                .map(|argument| CString::new(argument.as_slice()))
                .collect::<Result<_, _>>()?,
            env: process
                .env
                .iter()
                .map(|(name, value)| variable(name, value))
                .chain(process.secret_env.iter().map(|(name, value)| variable(name, value.bytes())))
                .collect::<Result<_, _>>()?,
        })
    }
}

fn connect_standard_input() -> rustix::io::Result<()> {
    let null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(null)
}

/// A working directory outside the root, reached through a forgotten descriptor, has opened whole machines before
/// (CVE-2024-21626).
fn enter_directory(process: &Process) -> Step<()> {
    let failed = |error: Errno| Report::WorkingDirectory { errno: error.raw_os_error() };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let path = process.cwd.as_bytes();
    let directory = rustix::fs::openat2(CWD, "/", flags, Mode::empty(), ResolveFlags::empty())
        .and_then(|root| open_resolved(root.as_fd(), path, flags, Mode::empty(), resolve))
        .map_err(failed)?;
    rustix::process::fchdir(directory).map_err(failed)?;
    let current = rustix::process::getcwd(Vec::new()).map_err(failed)?;
    if current.to_bytes().starts_with(b"/") { Ok(()) } else { Err(failed(Errno::XDEV)) }
}

/// What is not about the user.
fn limit(process: &Process, capabilities: CapabilitySet) -> rustix::io::Result<()> {
    // The pipes belong to whoever made them, and `echo > /dev/stderr` opens them anew.
    let owner = (Some(Uid::from_raw(process.user.owner.uid)), Some(Gid::from_raw(process.user.owner.gid)));
    let _ = rustix::fs::fchown(rustix::stdio::stdout(), owner.0, owner.1);
    let _ = rustix::fs::fchown(rustix::stdio::stderr(), owner.0, owner.1);
    // Keys of the builder's session; a kernel without keyrings has none.
    let _ = sys::leave_session_keyring();
    // A dump would be written into the image, or by a program of the machine.
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    for bit in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        match rustix::thread::capability_is_in_bounding_set(capability) {
            Ok(true) if !capabilities.contains(capability) => {
                match rustix::thread::remove_capability_from_bounding_set(capability) {
                    // A container without CAP_SETPCAP. Then nothing may give rights back that are given up below: else root
                    // would have all of the set with the next program that it executes. Setuid programs gain none either.
                    Err(Errno::PERM) => return rustix::thread::set_no_new_privs(true),
                    result => result?,
                }
            }
            Ok(_) => {}
            // The first number that the kernel does not know.
            Err(Errno::INVAL) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// To the kernel the largest number means "no change".
fn check_identity(process: &Process) -> rustix::io::Result<()> {
    let Owner { uid, gid } = process.user.owner;
    let all_are_ids = process.user.groups.iter().chain([&uid, &gid]).all(|id| *id != u32::MAX);
    if all_are_ids { Ok(()) } else { Err(Errno::INVAL) }
}

fn take_identity(process: &Process, capabilities: CapabilitySet) -> rustix::io::Result<()> {
    let user = &process.user;
    // With the primary group among the supplementary ones, a setgid program cannot be used to get rid of it
    // (CVE-2022-36109).
    let mut groups = user.groups.clone();
    if !groups.contains(&user.owner.gid) {
        groups.insert(0, user.owner.gid);
    }
    let groups: Vec<Gid> = groups.into_iter().map(Gid::from_raw).collect();
    let (uid, gid) = (Uid::from_raw(user.owner.uid), Gid::from_raw(user.owner.gid));
    match rustix::thread::set_thread_groups(&groups) {
        // A user namespace with one group: the kernel keeps the caller's groups, which are nobody's in there.
        Err(Errno::PERM) if may_not_set_groups() => {}
        result => result?,
    }
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    // Another user than root has lost its capabilities by now; setuid programs get back what the bounding set allows.
    let kept = rustix::thread::capabilities(None)?.permitted & capabilities;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets)?;
    rustix::thread::clear_ambient_capability_set()
}

/// Whether this user namespace has given up setgroups(2) (user_namespaces(7)).
fn may_not_set_groups() -> bool {
    std::fs::read("/proc/self/setgroups").is_ok_and(|text| text.starts_with(b"deny"))
}

/// Becomes the command; returns what prevented it.
fn execute(process: &Process, strings: &Strings) -> StartProblem {
    let program = match process.args.first() {
        None => return StartProblem::Missing { program: Vec::new() },
        Some(name) if name.contains(&b'/') => name.clone(),
        Some(name) => match find_in_path(name, process) {
            Ok(found) => found,
            Err(problem) => return problem,
        },
    };
    if let Some(problem) = leads_outside(&program) {
        return problem;
    }
    let Ok(path) = CString::new(program.as_slice()) else { return StartProblem::Missing { program } };
    let error = sys::execve(&path, &strings.args, &strings.env);
    explain(program, error.raw_os_error().unwrap_or_default())
}

/// The first executable file of that name. Relative directories of `PATH` are left out: a program of the working
/// directory is named by its path.
fn find_in_path(name: &[u8], process: &Process) -> Result<Vec<u8>, StartProblem> {
    let path = process.env.iter().rev().find(|(variable, _)| variable == b"PATH");
    let path = path.map_or(DEFAULT_PATH, |(_, value)| value.as_slice());
    let mut forbidden = None;
    for directory in path.split(|byte| *byte == b':').filter(|directory| directory.starts_with(b"/")) {
        let candidate = [directory, b"/", name].concat();
        let Ok(stat) = rustix::fs::stat(candidate.as_slice()) else { continue };
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            continue;
        }
        if rustix::fs::accessat(CWD, candidate.as_slice(), Access::EXEC_OK, AtFlags::EACCESS).is_ok() {
            return Ok(candidate);
        }
        forbidden.get_or_insert(candidate);
    }
    Err(match forbidden {
        Some(program) => StartProblem::NotExecutable { program },
        None => StartProblem::NotInPath { program: name.to_vec(), path: path.to_vec() },
    })
}

/// Refuses what would execute the builder's own program: until the command is executed, `/proc/self/exe` is that, and a
/// process of the image that runs it could write to it (CVE-2019-5736).
fn leads_outside(program: &[u8]) -> Option<StartProblem> {
    let mut program = program.to_vec();
    for _ in 0..=MAX_INTERPRETERS {
        match open(&program) {
            Ok(file) => program = interpreter_of(&head(&file))?,
            Err(Errno::LOOP) => return Some(StartProblem::Outside { program }),
            // Whatever it is, execve(2) finds it, too.
            Err(_) => return None,
        }
    }
    None
}

/// Opens a program for reading, through no link of /proc; as a mere place, when it may not be read.
fn open(program: &[u8]) -> rustix::io::Result<OwnedFd> {
    let open = |flags: OFlags| {
        rustix::fs::openat2(CWD, program, flags | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::NO_MAGICLINKS)
    };
    match open(OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY) {
        Err(Errno::ACCESS) => open(OFlags::PATH),
        result => result,
    }
}

/// The first bytes of a file; nothing of one that may not be read.
fn head(file: &OwnedFd) -> Vec<u8> {
    let mut head = vec![0; 4096];
    let length = rustix::io::read(file, &mut head).unwrap_or(0);
    head.truncate(length);
    head
}

/// The interpreter that the first line of a script names.
fn interpreter_of(head: &[u8]) -> Option<Vec<u8>> {
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let name = line.trim_ascii_start().split(|byte| matches!(byte, b' ' | b'\t' | 0)).next()?;
    (!name.is_empty()).then(|| name.to_vec())
}

/// The dynamic loader that an ELF program names (`PT_INTERP`), if its first 4 KiB tell.
fn loader_of(head: &[u8]) -> Option<Vec<u8>> {
    const PT_INTERP: u64 = 3;
    let (class, big) = (*head.get(4)?, *head.get(5)? == 2);
    let number = |offset: usize, size: usize| -> Option<u64> {
        let bytes = head.get(offset..offset.checked_add(size)?)?;
        let fold = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
        Some(if big { bytes.iter().fold(0, fold) } else { bytes.iter().rev().fold(0, fold) })
    };
    let at = |offset: u64| usize::try_from(offset).ok();
    // Offsets of the program headers in the file header, and of offset and size in a program header.
    let (headers, size, count, file_offset, file_size, word) = match class {
        1 => (number(28, 4)?, number(42, 2)?, number(44, 2)?, 4, 16, 4),
        2 => (number(32, 8)?, number(54, 2)?, number(56, 2)?, 8, 32, 8),
        _ => return None,
    };
    for index in 0..count {
        let header = at(headers.checked_add(index.checked_mul(size)?)?)?;
        if number(header, 4)? == PT_INTERP {
            let start = at(number(header.checked_add(file_offset)?, word)?)?;
            let length = at(number(header.checked_add(file_size)?, word)?)?;
            let name = head.get(start..start.checked_add(length)?)?;
            return Some(name.split(|byte| *byte == 0).next()?.to_vec());
        }
    }
    None
}

/// What `errno` of execve(2) means for `program`.
fn explain(program: Vec<u8>, errno: i32) -> StartProblem {
    let missing = |path: &[u8]| !Path::new(OsStr::from_bytes(path)).exists();
    let head = open(&program).map(|file| head(&file)).unwrap_or_default();
    let foreign = emulation::architecture_of(&head).filter(|found| !emulation::is_native(found));
    match Errno::from_raw_os_error(errno) {
        Errno::NOENT | Errno::NOTDIR => {
            if missing(&program) {
                return StartProblem::Missing { program };
            }
            if let Some(interpreter) = interpreter_of(&head).or_else(|| loader_of(&head))
                && missing(&interpreter)
            {
                return StartProblem::MissingInterpreter { program, interpreter };
            }
            match foreign {
                Some(found) => StartProblem::UnreachableEmulator { program, architecture: found.to_owned() },
                None => StartProblem::Other { program, errno },
            }
        }
        Errno::NOEXEC => match foreign {
            Some(found) => StartProblem::Foreign { program, architecture: found.to_owned() },
            None => StartProblem::Format { program },
        },
        Errno::ACCESS => StartProblem::NotExecutable { program },
        _ => StartProblem::Other { program, errno },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interpreters_are_read_as_the_kernel_reads_them() {
        let cases: [(&[u8], Option<&[u8]>); 8] = [
            (b"#!/bin/sh\necho", Some(b"/bin/sh")),
            (b"#! /usr/bin/env python3\n", Some(b"/usr/bin/env")),
            (b"#!\t/bin/sh -e", Some(b"/bin/sh")),
            (b"#!/bin/sh\r\n", Some(b"/bin/sh\r")),
            (b"#!\n/bin/sh", None),
            (b"#!", None),
            (b"echo", None),
            (b"", None),
        ];
        for (head, expected) in cases {
            assert_eq!(interpreter_of(head).as_deref(), expected, "{}", Escaped::new(head));
        }
    }

    #[test]
    fn loaders_are_found_in_programs_and_nothing_panics_on_cut_ones() {
        let sh = std::fs::read("/bin/sh").unwrap();
        let sh = &sh[..sh.len().min(4096)];
        if cfg!(target_arch = "x86_64") {
            assert_eq!(loader_of(sh).as_deref(), Some(&b"/lib64/ld-linux-x86-64.so.2"[..]));
        }
        for length in 0..sh.len() {
            let _ = loader_of(&sh[..length]);
        }
        let mut wild = sh.to_vec();
        for index in 0..64 {
            let before = std::mem::replace(&mut wild[index], 0xff);
            let _ = loader_of(&wild);
            wild[index] = before;
        }
    }

    #[test]
    fn problems_survive_the_way_to_the_builder() {
        let program = b"/bin/sh".to_vec();
        let architecture = "arm".to_owned();
        let problems = [
            StartProblem::Missing { program: program.clone() },
            StartProblem::NotInPath { program: program.clone(), path: b"/bin".to_vec() },
            StartProblem::MissingInterpreter { program: program.clone(), interpreter: b"/x".to_vec() },
            StartProblem::NotExecutable { program: program.clone() },
            StartProblem::Foreign { program: program.clone(), architecture: architecture.clone() },
            StartProblem::UnreachableEmulator { program: program.clone(), architecture },
            StartProblem::Format { program: program.clone() },
            StartProblem::Outside { program: program.clone() },
            StartProblem::Other { program, errno: 7 },
        ];
        for problem in problems {
            let (kind, program, detail, errno) = problem.parts();
            assert_eq!(StartProblem::from_parts(kind, program, detail, errno), Some(problem.clone()));
        }
        assert_eq!(StartProblem::from_parts(99, b"", b"", 0), None);
    }

    #[test]
    fn messages_are_one_line() {
        let problem = StartProblem::Missing { program: b"/bin/a\nb\x1b".to_vec() };
        assert_eq!(problem.to_string(), "`/bin/a\\nb\\u{1b}` is not in the image");
    }
}
