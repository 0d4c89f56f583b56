//! Tests that need root on a Linux machine.

mod chroot;
pub(crate) mod ending;
mod namespaces;
mod network;
mod sandbox;
mod system_calls;

/// Whether such tests can run; says so when they cannot.
fn is_root(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped `{test}`: it needs root");
    }
    root
}
