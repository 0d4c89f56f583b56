//! Programs of the machine that are run to their end, with all they start.

use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::spawn;
use crate::sys;

/// What a program left when it ended.
#[derive(Debug)]
pub struct Outcome {
    /// How it ended.
    pub status: ExitStatus,
    /// The beginning of what it printed on its standard output, as far as it is kept.
    pub stdout: Vec<u8>,
    /// Whether that is all.
    pub whole: bool,
    /// The end of what it printed on its standard error, as far as it is kept: why it failed stands there.
    pub stderr: Vec<u8>,
}

/// What a program may take.
pub struct Bounds<'a> {
    /// How many bytes of each of its outputs are kept.
    pub kept: u64,
    /// How many bytes of memory it may have for itself, and whatever it starts, each; none for as many as there are.
    pub memory: Option<u64>,
    /// Whether to stop it: asked often, with the number of bytes that it has printed.
    pub stopped: &'a dyn Fn(u64) -> bool,
}

/// The program called `name` in the first directory of `path` that has one; relative directories are passed over.
#[must_use]
pub fn find_program(path: &[PathBuf], name: &str) -> Option<PathBuf> {
    let candidates =
        path.iter().filter(|directory| directory.is_absolute()).map(|directory| directory.join(name));
    candidates.into_iter().find(|candidate| is_executable(candidate))
}

fn is_executable(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

/// Runs `command` with `input`, a few bytes, on its standard input, within `bounds`. Once it is to be stopped, the program
/// is killed with all that it has started, and there is no outcome. What is left of those when the program has ended by
/// itself is killed, too.
///
/// # Errors
/// When it cannot be run.
pub fn run_program(command: &mut Command, input: &[u8], bounds: &Bounds<'_>) -> io::Result<Option<Outcome>> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    if let Some(bytes) = bounds.memory {
        sys::limit_memory(command, bytes);
    }
    let mut child = spawn(command)?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let printed = AtomicU64::new(0);
    let kept = usize::try_from(bounds.kept).unwrap_or(usize::MAX);
    std::thread::scope(|scope| {
        // A program that does not read its input is not waited for: so little fits into any pipe.
        if let Some(mut stdin) = stdin {
            let _ = stdin.write_all(input);
        }
        let thread = std::thread::Builder::new;
        let readers =
            thread().spawn_scoped(scope, || read_beginning(stdout, kept, &printed)).and_then(|output| {
                Ok((output, thread().spawn_scoped(scope, || read_end(stderr, kept, &printed))?))
            });
        let ended = readers.is_ok() && wait(&child, &|| (bounds.stopped)(printed.load(Ordering::Relaxed)));
        // Whatever it left behind would keep the pipes open.
        end_group(&child);
        let status = child.wait()?;
        let (stdout, stderr) = readers?;
        let ((stdout, whole), stderr) =
            (stdout.join().unwrap_or_default(), stderr.join().unwrap_or_default());
        Ok(ended.then_some(Outcome { status, stdout, whole, stderr }))
    })
}

/// Gives `each` what comes, to the end: else the program would wait for somebody to read it.
fn read(pipe: Option<impl Read>, printed: &AtomicU64, mut each: impl FnMut(&[u8])) {
    let Some(mut pipe) = pipe else { return };
    let mut buffer = [0; 8192];
    loop {
        match pipe.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => return,
            Ok(count) => {
                printed.fetch_add(count as u64, Ordering::Relaxed);
                each(&buffer[..count]);
            }
        }
    }
}

/// The first bytes of what comes, and whether there are no more.
fn read_beginning(pipe: Option<impl Read>, kept: usize, printed: &AtomicU64) -> (Vec<u8>, bool) {
    let (mut bytes, mut whole) = (Vec::new(), true);
    read(pipe, printed, |piece| {
        let room = kept - bytes.len();
        whole &= piece.len() <= room;
        bytes.extend_from_slice(&piece[..piece.len().min(room)]);
    });
    (bytes, whole)
}

/// The last bytes of what comes.
fn read_end(pipe: Option<impl Read>, kept: usize, printed: &AtomicU64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let cut = |bytes: &mut Vec<u8>| {
        let too_many = bytes.len().saturating_sub(kept);
        bytes.drain(..too_many);
    };
    read(pipe, printed, |piece| {
        bytes.extend_from_slice(piece);
        // Now and then, so that each byte is moved once.
        if bytes.len() > kept.saturating_mul(2) {
            cut(&mut bytes);
        }
    });
    cut(&mut bytes);
    bytes
}

/// Waits until the program has ended or is to be stopped; says whether it has ended. It is not reaped here, so that its
/// process group keeps its number until [`end_group`] has used it.
fn wait(child: &Child, stopped: &dyn Fn() -> bool) -> bool {
    let mut pause = Duration::from_millis(1);
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) else { return true };
    // An error here is found again by the caller, who waits once more.
    while matches!(waitid(WaitId::Pid(pid), options), Ok(None)) {
        if stopped() {
            return false;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
    true
}

fn end_group(child: &Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // Usually nobody is left.
        let _ = kill_process_group(group, Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_program_that_prints_more_than_is_kept_is_still_read_to_its_end() {
        let mut command = shell("cat; head -c 1000000 /dev/zero; echo said >&2; exit 3");
        let asked = AtomicU64::new(0);
        let count = |printed| {
            asked.fetch_max(printed, Ordering::Relaxed);
            false
        };
        let bounds = Bounds { kept: 10, memory: None, stopped: &count };
        let outcome = run_program(&mut command, b"in", &bounds).unwrap().unwrap();
        assert_eq!(outcome.status.code(), Some(3));
        assert_eq!((outcome.stdout.as_slice(), outcome.whole), (&b"in\0\0\0\0\0\0\0\0"[..], false));
        assert_eq!(outcome.stderr, b"said\n");
        let mut command = shell("echo short; head -c 100000 /dev/zero >&2; echo the end >&2");
        let outcome = run_program(&mut command, b"", &bounds).unwrap().unwrap();
        assert_eq!((outcome.stdout.as_slice(), outcome.whole), (&b"short\n"[..], true));
        assert_eq!(outcome.stderr, b"\0\0the end\n");
    }

    #[test]
    fn what_it_prints_is_counted_while_it_runs_and_its_memory_is_limited() {
        // Whoever is never told of the bytes waits for the end of the sleep, and fails.
        let began = Instant::now();
        let bounds = Bounds { kept: 10, memory: None, stopped: &|printed| printed >= 5 };
        assert!(run_program(&mut shell("echo told; sleep 60"), b"", &bounds).unwrap().is_none());
        assert!(began.elapsed() < Duration::from_secs(30));
        // A shell that keeps a string of 64 MiB.
        let greedy = "x=$(head -c 67108864 /dev/zero | tr '\\0' x) && echo ${#x}";
        for (memory, works) in [(Some(32 << 20), false), (Some(1 << 30), true)] {
            let bounds = Bounds { kept: 100, memory, stopped: &|_| false };
            let outcome = run_program(&mut shell(greedy), b"", &bounds).unwrap().unwrap();
            assert_eq!(outcome.stdout == b"67108864\n", works, "{outcome:?}");
        }
    }

    #[test]
    fn what_is_stopped_goes_with_all_that_it_has_started() {
        let began = Instant::now();
        let late = |_| began.elapsed() > Duration::from_millis(100);
        let bounds = Bounds { kept: 10, memory: None, stopped: &late };
        assert!(run_program(&mut shell("sleep 60 & sleep 60"), b"", &bounds).unwrap().is_none());
        let bounds = Bounds { stopped: &|_| false, ..bounds };
        let outcome = run_program(&mut shell("sleep 60 & exit 0"), b"", &bounds).unwrap().unwrap();
        assert!(outcome.status.success());
        assert!(began.elapsed() < Duration::from_secs(30));
    }
}
