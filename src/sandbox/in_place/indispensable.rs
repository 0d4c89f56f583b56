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
