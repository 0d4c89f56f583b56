//! A network that leads nowhere.

use rustix::thread::UnshareFlags;

use super::child::{Step, during};
use super::refusal::Act;
use crate::sys;

/// Moves this process, and what it starts from now on, into a network namespace of its own, in which there is a loopback
/// interface and nothing else. It is up, as everywhere: programs talk to themselves.
///
/// Tried whichever way the step is kept apart: a step that asks for no network never gets one.
pub(super) fn cut_off() -> Step<()> {
    // What brings the interface up is CAP_NET_ADMIN over the namespace. A container with CAP_SYS_ADMIN alone could borrow
    // that from a user namespace, but its owner, root, would have it in the step, too, with all of the kernel's packet
    // filters behind it; no other step has that.
    let made = sys::unshare(UnshareFlags::NEWNET).and_then(|()| sys::bring_up_loopback());
    during(made, Act::NetworkNamespace.named("make a network namespace"))
}
