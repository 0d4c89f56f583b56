//! That this process does not end itself while the root of the container depends on it.
//!
//! The ways in which it ends without unwinding, a second signal or the end of its patience after the first, would leave the
//! root as it is in that moment. Against SIGKILL only the journal helps.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A process has one root and ends once.
static PROCESS: Mutex<()> = Mutex::new(());

/// As long as this lives, this process does not end itself.
pub(super) struct Indispensable(Option<MutexGuard<'static, ()>>);

impl Indispensable {
    /// Waits for others that are. For ever, if the process is about to end.
    pub(super) fn new() -> Self {
        Self(Some(lock()))
    }

    /// Lets the process end while `body` runs, which may take as long as others please: something else sees to the root
    /// then.
    pub(super) fn spared<T>(&mut self, body: impl FnOnce() -> T) -> T {
        self.0 = None;
        let result = body();
        self.0 = Some(lock());
        result
    }

    /// Lets the process end: the root will not get any better by it.
    pub(super) fn release(&mut self) {
        self.0 = None;
    }
}

/// Ends this process with `code`; first the container gets its root back, if an image has it. What does that has to be told
/// to by [`crate::sandbox::Cancel`]; then it takes moments.
pub fn exit(code: i32) -> ! {
    let _forever = lock();
    #[expect(clippy::exit, reason = "for the ways out of the command line")]
    std::process::exit(code)
}

fn lock() -> MutexGuard<'static, ()> {
    PROCESS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::mpsc;

    use super::*;

    /// Tells [`waits_for_the_root`] that it is a process of its own.
    const OWN: &str = "BUILDER_TEST_INDISPENSABLE";

    /// Not a test of its own: the process that the test below starts.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "the way to tell a test that runs as a process of its own")]
    fn waits_for_the_root() {
        let Ok(how) = std::env::var(OWN) else { return };
        let mut process = Indispensable::new();
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            tell.send(rustix::thread::gettid()).unwrap();
            exit(3)
        });
        let thread = told.recv().unwrap().as_raw_nonzero();
        // It sleeps when it waits.
        let stat = format!("/proc/self/task/{thread}/stat");
        while !std::fs::read_to_string(&stat).unwrap().contains(") S ") {
            std::thread::yield_now();
        }
        println!("begun");
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
    fn a_process_ends_when_the_root_is_the_containers_own_or_somebody_else_sees_to_it() {
        for (how, said) in [("held", &["begun", "done"][..]), ("spared", &["begun"])] {
            let mut command = Command::new(std::env::current_exe().unwrap());
            let test = "sandbox::in_place::indispensable::tests::waits_for_the_root";
            let output = command.args([test, "--exact", "--nocapture"]).env(OWN, how).output().unwrap();
            assert_eq!(output.status.code(), Some(3), "{output:?}");
            let text = String::from_utf8_lossy(&output.stdout);
            let lines: Vec<&str> = text.lines().filter(|line| ["begun", "done"].contains(line)).collect();
            assert_eq!(lines, said, "{output:?}");
        }
    }
}
