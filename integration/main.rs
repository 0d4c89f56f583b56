//! Tests of the whole program.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test says what is wrong by panicking, and why it was skipped on stderr"
)]
#![allow(clippy::disallowed_methods, reason = "tests prepare and look at the machine's own files")]

mod privileged;
