//! Programs of the machine that are run to their end, with all they start.

use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::spawn;

/// What a program left when it ended.
#[derive(Debug)]
pub struct Outcome {
    /// How it ended.
    pub status: ExitStatus,
    /// What it printed on its standard output, as far as it is kept.
    pub stdout: Vec<u8>,
    /// And on its standard error.
    pub stderr: Vec<u8>,
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

/// Runs `command` with `input`, a few bytes, on its standard input, and keeps the first `longest` bytes of each of its
/// outputs. `stopped` is asked often; once it says so, the program is killed with all that it has started, and there is no
/// outcome. What is left of those when the program has ended by itself is killed, too.
///
/// # Errors
/// When it cannot be run.
pub fn run_program(
    command: &mut Command,
    input: &[u8],
    longest: u64,
    stopped: &dyn Fn() -> bool,
) -> io::Result<Option<Outcome>> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = spawn(command)?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    std::thread::scope(|scope| {
        // A program that does not read its input is not waited for: so little fits into any pipe.
        if let Some(mut stdin) = stdin {
            let _ = stdin.write_all(input);
        }
        let thread = std::thread::Builder::new;
        let readers = thread()
            .spawn_scoped(scope, || read(stdout, longest))
            .and_then(|output| Ok((output, thread().spawn_scoped(scope, || read(stderr, longest))?)));
        let ended = readers.is_ok() && wait(&child, stopped);
        // Whatever it left behind would keep the pipes open.
        end_group(&child);
        let status = child.wait()?;
        let (stdout, stderr) = readers?;
        let (stdout, stderr) = (stdout.join().unwrap_or_default(), stderr.join().unwrap_or_default());
        Ok(ended.then_some(Outcome { status, stdout, stderr }))
    })
}

/// The first bytes of what comes. The rest is read as well: else the program would wait for somebody to read it.
fn read(pipe: Option<impl Read>, longest: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        let _ = pipe.by_ref().take(longest).read_to_end(&mut bytes);
        let _ = io::copy(&mut pipe, &mut io::sink());
    }
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
        let outcome = run_program(&mut command, b"in", 10, &|| false).unwrap().unwrap();
        assert_eq!(outcome.status.code(), Some(3));
        assert_eq!(outcome.stdout, b"in\0\0\0\0\0\0\0\0");
        assert_eq!(outcome.stderr, b"said\n");
    }

    #[test]
    fn what_is_stopped_goes_with_all_that_it_has_started() {
        let began = Instant::now();
        let outcome = run_program(&mut shell("sleep 60 & sleep 60"), b"", 10, &|| {
            began.elapsed() > Duration::from_millis(100)
        });
        assert!(outcome.unwrap().is_none());
        let outcome = run_program(&mut shell("sleep 60 & exit 0"), b"", 10, &|| false).unwrap().unwrap();
        assert!(outcome.status.success());
        assert!(began.elapsed() < Duration::from_secs(30));
    }
}
