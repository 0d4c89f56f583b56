//! How many files may be open at once: of the builder as many as the kernel lets it have, of steps as many as before.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::sandbox::ResourceLimit;

/// As many as are asked for. Programs that are started here and close every number there could be take no time for these.
const WANTED: u64 = 1 << 16;

/// Raises the limit: the usual 1,024 are few where many stages are built at once. Gives the one of before, with which steps
/// run.
pub(super) fn raise() -> Option<ResourceLimit> {
    let before = getrlimit(Resource::Nofile);
    let most = before.maximum.map_or(WANTED, |most| most.min(WANTED));
    if before.current.is_some_and(|current| current < most) {
        // Who may not has as many as before, and is told when they are used up.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(most), ..before });
    }
    ResourceLimit::named("nofile", before.current, before.maximum)
}
