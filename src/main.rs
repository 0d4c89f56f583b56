//! The command line's process; or, when started with the hidden argument, the inside of a sandbox.

use std::process::ExitCode;

fn main() -> ExitCode {
    // Before anything can start a thread: a process with threads can neither fork safely nor enter a pid namespace.
    if std::env::args_os().nth(1).is_some_and(|argument| argument == builder::sandbox::CHILD_ARGUMENT) {
        return builder::sandbox::child_main();
    }
    builder::cli::main(std::env::args_os().collect())
}
