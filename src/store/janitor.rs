//! A process that outlives a killed builder by a moment and removes what that leaves.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::pipe::PipeFlags;
use rustix::time::Timespec;

use super::staged;
use super::workspace::{WorkspaceError, lock_of, remove};
use crate::sys;

/// A pipe takes messages of up to this many bytes in one piece (`PIPE_BUF`), so threads cannot mix theirs.
const LONGEST_MESSAGE: usize = 4096;

/// A process that removes the workspaces of this one when it is killed, even by SIGKILL. It waits at the end of a pipe
/// for this process to end; when that happens in good order there is nothing left to do for it.
///
/// It is not a child of this process, has its own session, ignores the signals of the terminal and holds no descriptor
/// but its pipes, so nobody who waits for this process or its output waits for the janitor.
#[derive(Debug, Clone)]
pub struct Janitor(Arc<Lifeline>);

#[derive(Debug)]
struct Lifeline {
    /// Where the janitor hears what exists. Taken when the janitor shall end.
    orders: Option<File>,
    /// Ends when the janitor has ended.
    ended: OwnedFd,
}

impl Janitor {
    /// Starts it. To be called before there is any other thread and before the process changes its mount namespace: the
    /// janitor stays in the one it was started in.
    ///
    /// # Errors
    /// [`WorkspaceError::Janitor`].
    pub fn start() -> Result<Self, WorkspaceError> {
        let pipe =
            || rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|e| WorkspaceError::Janitor(e.into()));
        let (orders, told) = pipe()?;
        let (ended, alive) = pipe()?;
        sys::fork_detached([orders, alive], |[orders, alive]| {
            sys::ignore_ending_signals();
            let _ = rustix::thread::set_name(c"builder-janitor");
            clean_up_after(File::from(orders));
            // The kernel closes it, at the very end.
            std::mem::forget(alive);
        })
        .map_err(WorkspaceError::Janitor)?;
        Ok(Self(Arc::new(Lifeline { orders: Some(told.into()), ended })))
    }

    /// A janitor that was killed cannot be told, nor one for whom the path is too long: the next sweep does its work.
    pub(super) fn tell(&self, sign: u8, path: &Path) {
        let message = [&[sign], path.as_os_str().as_bytes(), &[0]].concat();
        if message.len() <= LONGEST_MESSAGE
            && let Some(mut orders) = self.0.orders.as_ref()
        {
            let _ = orders.write_all(&message);
        }
    }
}

impl Drop for Lifeline {
    /// Waits until the janitor has ended: after an orderly end of the builder no process is left.
    fn drop(&mut self) {
        self.orders = None;
        let mut fds = [PollFd::new(&self.ended, PollFlags::IN)];
        let limit = Timespec { tv_sec: 2, tv_nsec: 0 };
        // A second signal that asks to stop may come meanwhile.
        let _ = rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, Some(&limit)));
    }
}

/// The janitor's life: hears which workspaces exist until the builder is no more, then removes them.
fn clean_up_after(mut orders: File) {
    let mut heard = Vec::new();
    let mut existing: Vec<PathBuf> = Vec::new();
    let mut buffer = [0; LONGEST_MESSAGE];
    loop {
        match orders.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => heard.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        }
        while let Some(end) = heard.iter().position(|byte| *byte == 0) {
            let message: Vec<u8> = heard.drain(..=end).collect();
            let Some((sign, path)) = message[..end].split_first() else { continue };
            let path = Path::new(OsStr::from_bytes(path));
            match sign {
                b'+' => existing.push(path.to_owned()),
                _ => existing.retain(|known| known != path),
            }
        }
    }
    let temporary: BTreeSet<PathBuf> =
        existing.iter().filter_map(|path| path.parent()).map(Path::to_owned).collect();
    // After an orderly end the builder waits for this process.
    if temporary.is_empty() {
        return;
    }
    for path in existing {
        // Processes of the build may still be dying, and writing until then.
        for _ in 0..50 {
            if remove(&path).is_ok() {
                let _ = rustix::fs::unlink(lock_of(&path));
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    // Blobs and records that were being written. The locks that mark those of living processes go when ours has ended for good.
    for _ in 0..3 {
        for directory in &temporary {
            let _ = staged::sweep(directory);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};
    use std::time::Instant;

    use super::*;
    use crate::store::sweep::sweep;
    use crate::store::workspace::Workspace;

    /// Names the temporary directory to the process that [`lives_until_killed`] becomes.
    const DIRECTORY: &str = "BUILDER_TEST_WORKSPACE_IN";

    /// Not a test of its own: the process that the tests below kill. Does nothing unless it is told a directory.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "the way to tell a test that runs as a process of its own")]
    fn lives_until_killed() {
        let Some(directory) = std::env::var_os(DIRECTORY) else { return };
        let janitor = Janitor::start().unwrap();
        let workspace = Workspace::create(Path::new(&directory), Some(&janitor)).unwrap();
        let gone = Workspace::create(Path::new(&directory), Some(&janitor)).unwrap();
        drop(gone);
        std::fs::create_dir_all(workspace.path().join("a/b/c")).unwrap();
        let mut output = std::io::stdout();
        writeln!(output, "\nworkspace {}", workspace.path().display()).unwrap();
        output.flush().unwrap();
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
    }

    /// The process above in a process group of its own, the path of its workspace and the reader of its output.
    fn start(directory: &Path) -> (Child, PathBuf, impl BufRead) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "store::janitor::tests::lives_until_killed", "--nocapture"])
            .env(DIRECTORY, directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.starts_with("workspace ") {
            line.clear();
            assert_ne!(lines.read_line(&mut line).unwrap(), 0, "the process ended too early");
        }
        let path = PathBuf::from(line.trim_start_matches("workspace ").trim_end());
        assert!(path.join("a/b/c").is_dir());
        (child, path, lines)
    }

    fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
        let start = Instant::now();
        while !holds() {
            assert!(start.elapsed() < Duration::from_secs(2), "{what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The janitor of `child`: the process of that name that holds a pipe which `child` holds too.
    fn janitor_of(child: &Child) -> rustix::process::Pid {
        let mut found = Vec::new();
        // It takes its name when it gets to run.
        wait_until("there is no janitor", || {
            found = janitors_of(child);
            !found.is_empty()
        });
        assert_eq!(found.len(), 1);
        rustix::process::Pid::from_raw(found[0].cast_signed()).unwrap()
    }

    fn janitors_of(child: &Child) -> Vec<u32> {
        let pipes = |process: u32| -> Vec<PathBuf> {
            let Ok(fds) = std::fs::read_dir(format!("/proc/{process}/fd")) else { return Vec::new() };
            let links = fds.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
            links.filter(|link| link.to_string_lossy().starts_with("pipe:")).collect()
        };
        let ours = pipes(child.id());
        let processes = std::fs::read_dir("/proc").unwrap();
        let processes = processes.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
        let named = |process: &u32| {
            std::fs::read_to_string(format!("/proc/{process}/comm"))
                .is_ok_and(|name| name == "builder-janitor\n")
        };
        processes
            .filter(named)
            .filter(|process| pipes(*process).iter().any(|pipe| ours.contains(pipe)))
            .collect()
    }

    /// Gone, or at least only waiting for init to take note of it.
    fn ended(process: rustix::process::Pid) -> bool {
        let state =
            std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).unwrap_or_default();
        state.is_empty() || state.contains(") Z ")
    }

    #[test]
    fn the_janitor_removes_the_workspace_of_a_killed_builder() {
        let temporary = tempfile::tempdir().unwrap();
        let (mut child, path, mut lines) = start(temporary.path());
        let janitor = janitor_of(&child);
        for signal in
            [rustix::process::Signal::TERM, rustix::process::Signal::INT, rustix::process::Signal::HUP]
        {
            rustix::process::kill_process(janitor, signal).unwrap();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // The end of the output comes at once: the janitor does not hold it open.
        assert_eq!(lines.read_line(&mut String::new()).unwrap(), 0);
        wait_until("the workspace is still there", || !path.exists());
        wait_until("the lock is still there", || {
            std::fs::read_dir(temporary.path()).unwrap().next().is_none()
        });
        wait_until("the janitor is still there", || ended(janitor));
    }

    #[test]
    fn after_an_orderly_end_neither_workspace_nor_janitor_is_left() {
        let temporary = tempfile::tempdir().unwrap();
        let (mut child, path, _lines) = start(temporary.path());
        let janitor = janitor_of(&child);
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
        assert!(!path.exists());
        wait_until("the janitor is still there", || ended(janitor));
    }

    #[test]
    fn what_neither_builder_nor_janitor_could_remove_is_swept_at_the_next_start() {
        let temporary = tempfile::tempdir().unwrap();
        let (mut child, path, _lines) = start(temporary.path());
        let janitor = janitor_of(&child);
        assert_eq!(sweep(temporary.path()).unwrap(), 0);
        rustix::process::kill_process(janitor, rustix::process::Signal::KILL).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(path.exists());
        assert_eq!(sweep(temporary.path()).unwrap(), 1);
        assert!(!path.exists());
    }
}
