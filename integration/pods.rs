//! `builder` in pods of every kind.

mod canaries;
mod in_place;
mod matrix;

use std::fs;

use crate::support::Context;
use crate::support::ground::ground;
use crate::support::pod::{self, Access, Pod, Profile, shared_scratch};

#[test]
fn the_program_starts_in_every_pod() {
    if !pod::available("the_program_starts_in_every_pod") {
        return;
    }
    for profile in Profile::ALL {
        let version = Pod::new(profile).run(&["builder", "version"]).success();
        assert!(version.stdout.contains(env!("CARGO_PKG_VERSION")), "{profile:?}: {version:?}");
    }
}

#[test]
fn a_small_pod_builds_what_is_larger_than_its_memory() {
    if !pod::available("a_small_pod_builds_what_is_larger_than_its_memory") {
        return;
    }
    let base = ground().name("busybox:latest");
    let context = Context::new(&format!(
        "FROM {base}\nRUN dd if=/dev/zero of=/large bs=1M count=200\nRUN rm /bin/vi\n"
    ));
    let place = shared_scratch();
    fs::copy(context.path().join("Dockerfile"), place.path().join("Dockerfile")).expect("copy");
    let pod =
        Pod::new(Profile::Default).memory(100 << 20).mount(place.path(), "/workspace", Access::ReadOnly);
    pod.run(&["builder", "--no-push", "--context=/workspace"]).success();
}
