//! Children of this process: whom somebody waits for, who is forked to say one thing, and the orphans that nobody waits for.
//!
//! Process 1 of a pid namespace, which this program is in most containers, becomes the parent of every process there whose
//! own parent has ended: of what `kubectl exec` left running, for instance. When such an orphan ends it stays in the table
//! of processes until its new parent takes note of that (wait(2)), and a pod may have only so many.
//!
//! To take note of whoever ends would be simple, and wrong: the status of a child that another thread waits for would be
//! gone, and its number might be somebody else's by then.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, getpid, kill_process, waitid, waitpid,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::sys;

mod program;

pub use program::{Bounds, Outcome, find_program, run_program};

/// The children that somebody waits for.
///
/// Static, as what it describes: a process has one set of children, whichever of its parts made them.
static AWAITED: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// Whether a thread takes note of the end of orphans.
static REAPING: AtomicBool = AtomicBool::new(false);

/// Tells that somebody has waited to the end.
static WAITED: Condvar = Condvar::new();

/// How often process 1 looks for orphans while it has no child at all, so that there is nothing to wait for.
const PAUSE: Duration = Duration::from_secs(1);

fn awaited() -> MutexGuard<'static, BTreeSet<u32>> {
    AWAITED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A child whose end its owner waits for, before dropping it.
#[derive(Debug)]
pub struct Awaited(Child);

/// Starts a child.
///
/// # Errors
/// Those of [`Command::spawn`].
pub fn spawn(command: &mut Command) -> io::Result<Awaited> {
    // Locked until it is known: it may end at any time.
    let mut known = awaited();
    let child = command.spawn()?;
    known.insert(child.id());
    Ok(Awaited(child))
}

/// Calls `body` with a function that tells whether somebody waits for a child. Meanwhile none is started.
pub fn with_awaited<T>(body: impl FnOnce(&dyn Fn(Pid) -> bool) -> T) -> T {
    let known = awaited();
    body(&|child| is_awaited(&known, child))
}

impl Deref for Awaited {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Awaited {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        awaited().remove(&self.0.id());
        WAITED.notify_all();
    }
}

/// Waits for the end of `child`, which was forked by a process with one thread, whatever end that is.
pub fn wait_for_end(child: Pid) {
    // It fails where SIGCHLD is ignored: then the kernel has reaped it.
    while matches!(waitpid(Some(child), WaitOptions::empty()), Err(Errno::INTR)) {}
}

/// The most that a forked child may say, in bytes.
const LONGEST_ANSWER: u64 = 1 << 16;

/// A forked child that has one thing to say. Its end is waited for when it is dropped.
#[derive(Debug)]
pub struct Asked<T> {
    child: Pid,
    answer: OwnedFd,
    kind: PhantomData<T>,
}

impl<T: Serialize + DeserializeOwned> Asked<T> {
    /// Runs `body` in a child that has a copy of everything, but of the descriptors only `keep`. To be called while this
    /// process has one thread.
    ///
    /// # Errors
    /// When no child can be started.
    pub fn start<const N: usize>(
        keep: [OwnedFd; N],
        body: impl FnOnce([OwnedFd; N]) -> T,
    ) -> io::Result<Self> {
        let (answer, telling) = pipe_with(PipeFlags::CLOEXEC)?;
        let child = sys::fork_helper(keep, telling, |keep, telling| {
            let text = serde_json::to_vec(&body(keep)).unwrap_or_default();
            let _ = File::from(telling).write_all(&text);
        })?;
        Ok(Self { child, answer, kind: PhantomData })
    }

    /// Waits for what it has to say; none when it was killed before, or has become another program.
    pub fn answer(&mut self) -> Option<T> {
        let mut text = Vec::new();
        let mut answer = File::from(self.answer.try_clone().ok()?).take(LONGEST_ANSWER);
        answer.read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Kills it.
    pub fn kill(&self) {
        // The number is its own until it is waited for.
        let _ = kill_process(self.child, Signal::KILL);
    }
}

impl<T> Drop for Asked<T> {
    fn drop(&mut self) {
        wait_for_end(self.child);
    }
}

/// Runs `body` in a child, for what would change this process for good, and gives what it gives; none when it was killed
/// before. To be called while this process has one thread.
///
/// # Errors
/// When no child can be started.
pub fn ask<T: Serialize + DeserializeOwned>(body: impl FnOnce() -> T) -> io::Result<Option<T>> {
    Ok(Asked::start([], |[]| body())?.answer())
}

/// Where this process is process 1, has a thread take note of the end of orphans from now on. All that single-threaded
/// parts of the program have started must have ended or be nobody's business any more.
pub fn reap_orphans() {
    if getpid().is_init() {
        begin();
    }
}

fn begin() {
    // Where there may be no further thread, a build with fewer free process numbers is better than none.
    if !REAPING.swap(true, Ordering::Relaxed) {
        let _ = std::thread::Builder::new().spawn(reap);
    }
}

/// Waits for the end of whichever child, without taking note of it: no signal is needed, which would interrupt system
/// calls of all other threads.
fn reap() {
    loop {
        let ended = sys::wait_for_any_child();
        let known = awaited();
        match ended {
            // The kernel would name it again and again, and no other. Its owner is about to wait for it.
            Ok(child) if is_awaited(&known, child) => drop(WAITED.wait(known)),
            // Locked: no child can get this number meanwhile.
            Ok(child) => {
                let _ = waitid(WaitId::Pid(child), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
            }
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INTR) => {}
            Err(_) => drop(WAITED.wait_timeout(known, PAUSE)),
        }
    }
}

fn is_awaited(known: &BTreeSet<u32>, child: Pid) -> bool {
    known.contains(&child.as_raw_nonzero().get().cast_unsigned())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// Tells [`adopts`] that it is a process of its own.
    const ALONE: &str = "BUILDER_TEST_CHILDREN";

    /// Not a test of its own: the process that the test below starts. It adopts orphans as process 1 does.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "the way to tell a test that runs as a process of its own")]
    fn adopts() {
        if std::env::var_os(ALONE).is_none() {
            return;
        }
        rustix::process::set_child_subreaper(Some(getpid())).unwrap();
        begin();
        begin();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    for round in 0..25 {
                        let code = 1 + (thread * 25 + round) % 100;
                        // Some end while nobody waits for them yet, some leave orphans.
                        let script = format!("sleep 0.002 & (sleep 0 &); exit {code}");
                        let mut child = spawn(Command::new("/bin/sh").args(["-c", &script])).unwrap();
                        if round % 5 == 0 {
                            std::thread::sleep(Duration::from_millis(10));
                        }
                        assert_eq!(child.wait().unwrap().code(), Some(code));
                    }
                });
            }
        });
        // One that is dropped without a wait is an orphan like others.
        drop(spawn(&mut Command::new("/bin/true")).unwrap());
        let began = Instant::now();
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        while !matches!(waitid(WaitId::All, options), Err(Errno::CHILD)) {
            assert!(began.elapsed() < Duration::from_secs(20), "there still are children");
            std::thread::sleep(Duration::from_millis(5));
        }
        println!("adopted them all");
    }

    #[test]
    fn orphans_are_reaped_and_children_are_left_to_who_waits_for_them() {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["children::tests::adopts", "--exact", "--nocapture"]).env(ALONE, "1");
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("adopted them all"), "{output:?}");
    }
}
