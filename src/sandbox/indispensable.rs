//! That this process does not end itself while something depends on it that nobody else would do.
//!
//! The ways in which it ends without unwinding, a second signal or the end of its patience after the first, would leave the
//! root of a container as it is in that moment, or the processes of a step whose supervisor is no more. Against SIGKILL only
//! the journal of a root helps.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// For how many reasons this process is needed. Static, as what it describes: a process ends once.
static REASONS: Mutex<usize> = Mutex::new(0);

/// Tells that there is one less.
static LESS: Condvar = Condvar::new();

/// As long as this lives, this process does not end itself. There may be several, also of one thread.
pub(super) struct Indispensable {
    counts: bool,
}

impl Indispensable {
    /// Waits for ever, if the process is about to end.
    pub(super) fn new() -> Self {
        *lock() += 1;
        Self { counts: true }
    }

    /// Lets the process end while `body` runs, which may take as long as others please: something else sees to it then.
    pub(super) fn spared<T>(&mut self, body: impl FnOnce() -> T) -> T {
        self.end();
        let result = body();
        *self = Self::new();
        result
    }

    fn end(&mut self) {
        if std::mem::take(&mut self.counts) {
            *lock() -= 1;
            LESS.notify_all();
        }
    }
}

impl Drop for Indispensable {
    fn drop(&mut self) {
        self.end();
    }
}

/// Ends this process with `code` as soon as nothing depends on it: first the container gets its root back, if an image has
/// it, and the processes of a step are ended that are left to this one. What does that has to be told to by
/// [`super::Cancel`]; then it takes moments, or as long as a step resists. Every way out of the command line that does not
/// unwind is this one, but for a second signal while nobody has been told yet.
pub fn exit_when_dispensable(code: i32) -> ! {
    let _forever = dispensable();
    #[expect(clippy::exit, reason = "for the ways out of the command line")]
    std::process::exit(code)
}

/// Waits until nothing depends on this process, and sees to it that nothing will.
pub(super) fn dispensable() -> MutexGuard<'static, usize> {
    let mut reasons = lock();
    while *reasons > 0 {
        reasons = LESS.wait(reasons).unwrap_or_else(PoisonError::into_inner);
    }
    reasons
}

fn lock() -> MutexGuard<'static, usize> {
    REASONS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::mpsc;

    use super::*;

    /// Tells [`is_needed`] that it is a process of its own.
    const OWN: &str = "BUILDER_TEST_INDISPENSABLE";

    /// Not a test of its own: the process that the test below starts.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "the way to tell a test that runs as a process of its own")]
    fn is_needed() {
        let Ok(how) = std::env::var(OWN) else { return };
        // One reason does not wait for another.
        let (mut process, other) = (Indispensable::new(), Indispensable::new());
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            tell.send(rustix::thread::gettid()).unwrap();
            exit_when_dispensable(3)
        });
        let thread = told.recv().unwrap().as_raw_nonzero();
        // It sleeps when it waits.
        let stat = format!("/proc/self/task/{thread}/stat");
        while !std::fs::read_to_string(&stat).unwrap().contains(") S ") {
            std::thread::yield_now();
        }
        println!("begun");
        drop(other);
        // Nor does one that comes when the end is waited for already.
        drop(Indispensable::new());
        if how == "spared" {
            process.spared(|| {
                loop {
                    std::thread::park()
                }
            });
        }
        println!("done");
        drop(process);
        loop {
            std::thread::park();
        }
    }

    #[test]
    fn a_process_ends_when_nothing_depends_on_it_or_somebody_else_sees_to_that() {
        for (how, said) in [("held", &["begun", "done"][..]), ("spared", &["begun"])] {
            let mut command = Command::new(std::env::current_exe().unwrap());
            let test = "sandbox::indispensable::tests::is_needed";
            let output = command.args([test, "--exact", "--nocapture"]).env(OWN, how).output().unwrap();
            assert_eq!(output.status.code(), Some(3), "{output:?}");
            let text = String::from_utf8_lossy(&output.stdout);
            let lines: Vec<&str> = text.lines().filter(|line| ["begun", "done"].contains(line)).collect();
            assert_eq!(lines, said, "{output:?}");
        }
    }
}
