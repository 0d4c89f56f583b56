//! `builder` in pods of every kind.

mod canaries;
mod in_place;
mod matrix;

use crate::support::pod::{self, Pod, Profile};

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
