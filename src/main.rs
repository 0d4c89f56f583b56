//! The command line's process; or, when started with the hidden argument, the inside of a sandbox.

use std::fmt::{self, Write as _};
use std::os::fd::AsFd as _;
use std::process::ExitCode;

/// Standard error, without a lock and without memory of its own.
struct Unbuffered;

impl fmt::Write for Unbuffered {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut left = text.as_bytes();
        while !left.is_empty() {
            let written = rustix::io::write(std::io::stderr().as_fd(), left).map_err(|_| fmt::Error)?;
            left = left.get(written..).unwrap_or_default();
        }
        Ok(())
    }
}

/// Ends the process when any of its threads panics; what it leaves is for the janitor.
///
/// The usual hook takes memory for a stack trace. Where memory is what lacks, it waits for itself for ever.
fn end_at_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let text = panic.payload_as_str().unwrap_or("of unknown kind");
        let _ = match panic.location() {
            Some(place) => writeln!(Unbuffered, "error: internal error at {place}: {text}"),
            None => writeln!(Unbuffered, "error: internal error: {text}"),
        };
        let _ = Unbuffered.write_str("  hint: if memory was short (`ulimit -v`, the pod's limit), give it more; else please report this\n");
        builder::sys::end_at_once(1)
    }));
}

fn main() -> ExitCode {
    end_at_panics();
    // Before anything can start a thread: a process with threads can neither fork safely nor enter a pid namespace.
    if std::env::args_os().nth(1).is_some_and(|argument| argument == builder::sandbox::CHILD_ARGUMENT) {
        return builder::sandbox::child_main();
    }
    builder::cli::main(std::env::args_os().collect())
}
