//! Stopping in an orderly way when a signal asks for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::failure::Failure;
use super::progress::Colour;
use crate::sandbox::{Cancel, exit_when_dispensable};
use crate::sys;

/// The signals that ask to end.
const SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// How long a command that was told to stop may take to do so in an orderly way. Then it ends at once: the janitor removes
/// its files, the kernel its processes and mounts. Only what nobody else would do is done before: see
/// [`exit_when_dispensable`].
const PATIENCE: Duration = Duration::from_secs(4);

/// What comes so soon after the first signal was not meant to be a second: timeout(1), for one, signals the process and then
/// its group.
const ECHO: Duration = Duration::from_millis(300);

/// Whether a signal ends this process at once, as it does until a command knows better.
///
/// That is what happens to a process that does nothing about signals, unless it is process 1 of a pid namespace, as in a
/// container: the kernel keeps from that one whatever it has no handler for. Nor would the exit code be that of a command
/// that was stopped.
#[derive(Clone)]
pub(super) struct AtOnce(Arc<AtomicBool>);

impl AtOnce {
    /// Has signals do so from now on.
    pub(super) fn begin() -> Self {
        let armed = Arc::new(AtomicBool::new(true));
        for signal in SIGNALS {
            // Fails for signals only that nobody can handle.
            let _ = sys::end_at_signal(signal, Arc::clone(&armed), line_for(signal));
        }
        Self(armed)
    }

    /// Has them wait while `body` makes and removes what nobody else would remove: then they end the process. One that
    /// comes while another waits does so at once, unless it is an echo.
    pub(super) fn after<T>(&self, body: impl FnOnce() -> T) -> T {
        self.waiting(Second::AtOnce { echo: ECHO }, body)
    }

    /// [`AtOnce::after`], but all of them wait: for what takes moments and must not be left half done.
    pub(super) fn undisturbed<T>(&self, body: impl FnOnce() -> T) -> T {
        self.waiting(Second::Waits, body)
    }

    fn waiting<T>(&self, second: Second, body: impl FnOnce() -> T) -> T {
        let (came, first) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicU64::new(0)));
        let ids: Vec<_> = SIGNALS
            .into_iter()
            .flat_map(|signal| {
                let number = usize::try_from(signal).unwrap_or_default();
                let noted = signal_hook::flag::register_usize(signal, Arc::clone(&came), number);
                let ending = match second {
                    Second::AtOnce { echo } => {
                        Some(sys::end_at_second_signal(signal, line_for(signal), Arc::clone(&first), echo))
                    }
                    Second::Waits => None,
                };
                [Some(noted), ending]
            })
            .flatten()
            .filter_map(Result::ok)
            .collect();
        self.0.store(false, Ordering::SeqCst);
        let result = body();
        self.0.store(true, Ordering::SeqCst);
        for id in ids {
            signal_hook::low_level::unregister(id);
        }
        match i32::try_from(came.load(Ordering::SeqCst)) {
            Ok(signal @ 1..) => end(signal),
            _ => result,
        }
    }
}

/// What a signal does that comes while another waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Second {
    /// It ends the process, unless it comes so soon after the first that it was not meant to be another.
    AtOnce {
        /// How soon.
        echo: Duration,
    },
    Waits,
}

/// Stops a command when a signal asks for it.
pub(super) struct Stop {
    /// Goes on with the first signal.
    pub(super) cancel: Cancel,
    signal: Arc<AtomicI32>,
    at_once: AtOnce,
}

impl Stop {
    /// One that nobody has asked for. Until [`Stop::watch`] is called, signals end the process at once.
    pub(super) fn new(at_once: &AtOnce) -> Result<Self, Failure> {
        let cancel = Cancel::new()
            .map_err(|error| Failure::new(format!("cannot make an event descriptor: {error}")))?;
        Ok(Self { cancel, signal: Arc::new(AtomicI32::new(0)), at_once: at_once.clone() })
    }

    /// The signal that came, or 0.
    fn signal(&self) -> i32 {
        self.signal.load(Ordering::SeqCst)
    }

    /// What a command ended with, or that it was stopped.
    pub(super) fn judge<T>(&self, result: Result<T, Failure>) -> Result<T, Failure> {
        match (result, self.signal()) {
            // A signal that comes when everything is done changes nothing.
            (Ok(done), _) => Ok(done),
            (Err(failure), 0) => Err(failure),
            (Err(failure), signal) => Err(Failure { done: failure.done, ..stopped(signal) }),
        }
    }

    /// Waits for signals in a thread. The first stops the command in an orderly way and calls `wake`, for what does not
    /// look at [`Stop::cancel`]; the second stops it at once.
    pub(super) fn watch(&self, wake: impl Fn() + Send + 'static) -> Result<(), Failure> {
        let mut signals = signal_hook::iterator::Signals::new(SIGNALS)
            .map_err(|error| Failure::new(format!("cannot wait for signals: {error}")))?;
        let cancel = self.cancel.clone();
        let received = Arc::clone(&self.signal);
        let work = move || {
            let mut first: Option<Instant> = None;
            for signal in signals.forever() {
                match first {
                    Some(first) if first.elapsed() < ECHO => continue,
                    // Asked for twice: the janitor and the kernel clean up.
                    Some(_) => end(signal),
                    None => first = Some(Instant::now()),
                }
                received.store(signal, Ordering::SeqCst);
                cancel.cancel("a signal asked for it");
                wake();
                // Without one, only a second signal ends what does not stop by itself.
                let _ = std::thread::Builder::new().spawn(move || {
                    std::thread::sleep(PATIENCE);
                    end(signal);
                });
            }
        };
        match std::thread::Builder::new().spawn(work) {
            Ok(_) => {
                self.at_once.0.store(false, Ordering::SeqCst);
                Ok(())
            }
            Err(error) => {
                let message = format!("cannot start a thread: {error}");
                Err(Failure { message, ..Failure::from_error(&error) })
            }
        }
    }
}

/// Ends this process at once, and says so.
fn end(signal: i32) -> ! {
    sys::write_last(&line_for(signal));
    exit_when_dispensable(128 + signal)
}

/// What is said of that where nothing else is.
fn line_for(signal: i32) -> String {
    stopped(signal).render(Colour::No)
}

/// The end that somebody asked for. The exit code is that of a shell whose command is ended by the signal.
fn stopped(signal: i32) -> Failure {
    let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
    Failure { code: u8::try_from(128 + signal).unwrap_or(1), ..Failure::new(format!("stopped by {name}")) }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Tells [`is_signalled`] that it is a process of its own, and how many signals it gets.
    const SIGNALLED: &str = "BUILDER_TEST_SIGNALS";

    /// Not a test of its own: the process that the test below starts.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "the way to tell a test that runs as a process of its own")]
    fn is_signalled() {
        let Ok(count) = std::env::var(SIGNALLED) else { return };
        let (count, echo) = match count.strip_suffix(" at once") {
            Some(count) => (count, Duration::from_secs(3600)),
            None => (&*count, Duration::ZERO),
        };
        // To this thread: two that wait for any thread to take them are one.
        let raise = || signal_hook::low_level::raise(signal_hook::consts::SIGTERM).unwrap();
        let at_once = AtOnce::begin();
        assert_eq!(at_once.after(|| 5), 5);
        if count == "0" {
            raise();
        }
        at_once.waiting(Second::AtOnce { echo }, || {
            println!("begun");
            (0..count.parse::<i32>().unwrap()).for_each(|_| raise());
            println!("done");
        });
    }

    /// Not a test of its own: the process that the test below starts.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "the way to tell a test that runs as a process of its own")]
    fn is_undisturbed() {
        let Ok(count) = std::env::var(SIGNALLED) else { return };
        let at_once = AtOnce::begin();
        at_once.undisturbed(|| {
            println!("begun");
            (0..count.parse::<i32>().unwrap())
                .for_each(|_| signal_hook::low_level::raise(signal_hook::consts::SIGTERM).unwrap());
            println!("done");
        });
    }

    #[test]
    fn what_must_be_finished_is_finished_unless_a_second_signal_comes() {
        let whole = &["begun", "done"][..];
        let cases =
            [("0", &[][..]), ("1", whole), ("2", &["begun"]), ("1 at once", whole), ("2 at once", whole)];
        for (count, said) in cases {
            check("is_signalled", count, said);
        }
        for count in ["1", "2", "5"] {
            check("is_undisturbed", count, &["begun", "done"]);
        }
    }

    /// Starts `test` as a process that gets so many signals, which end it: what it says before.
    fn check(test: &str, count: &str, said: &[&str]) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([&format!("cli::stop::tests::{test}"), "--exact", "--nocapture"]);
        let output = command.env(SIGNALLED, count).output().unwrap();
        assert_eq!(output.status.code(), Some(143), "{output:?}");
        let text = String::from_utf8_lossy(&output.stdout);
        let lines: Vec<&str> = text.lines().filter(|line| ["begun", "done"].contains(line)).collect();
        assert_eq!(lines, said, "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "error: stopped by SIGTERM\n", "{output:?}");
    }
}
