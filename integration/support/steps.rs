//! Builds of a few steps on the ground's busybox, and what the steps wrote.

use super::ground::ground;
use super::{Builder, Context, Finished};

/// The ways to keep steps apart that a machine has: with mounts, and without.
pub(crate) const WAYS: [&str; 3] = ["mount-namespace", "user-namespace", "chroot"];

/// A context whose Dockerfile has the ground's busybox for `BASE`.
pub(crate) fn context(dockerfile: &str) -> Context {
    Context::new(&dockerfile.replace("BASE", &ground().name("busybox:latest")))
}

/// Does all steps, whatever is remembered, and pushes nothing.
pub(crate) fn build(builder: &Builder, context: &Context, arguments: &[&str]) -> Finished {
    let all = [&["--no-push", "--no-cache", "-c", context.path().to_str().unwrap()], arguments].concat();
    builder.run(all)
}

/// What the steps wrote, without their tags.
pub(crate) fn output(finished: &Finished) -> Vec<String> {
    let lines = finished.stderr.lines().filter_map(|line| line.split_once("] | "));
    lines.map(|(_, text)| text.to_owned()).collect()
}
