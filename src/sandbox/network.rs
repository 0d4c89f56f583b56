//! A network that leads nowhere.

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, UnshareFlags};

use super::child::Step;
use super::refusal::{Facts, Refusal};
use super::wire::Report;
use crate::sys;

/// Moves this process, and what it starts from now on, into a network namespace of its own, in which there is a loopback
/// interface and nothing else. It is up, as everywhere: programs talk to themselves.
///
/// Tried whichever way the step is kept apart: a step that asks for no network never gets one.
pub(super) fn cut_off() -> Step<()> {
    // What brings the interface up is CAP_NET_ADMIN over the namespace. A container with CAP_SYS_ADMIN alone could borrow
    // that from a user namespace, but its owner, root, would have it in the step, too, with all of the kernel's packet
    // filters behind it; no other step has that.
    sys::unshare(UnshareFlags::NEWNET)
        .and_then(|()| sys::bring_up_loopback())
        .map_err(|error| Report::Network { errno: error.raw_os_error().unwrap_or_default() })
}

/// Why the kernel refused a network namespace, and what to do about it.
pub(super) fn explain(errno: i32) -> Refusal {
    explain_by(Errno::from_raw_os_error(errno), &Facts::read())
}

fn explain_by(errno: Errno, facts: &Facts) -> Refusal {
    let cause = match errno {
        Errno::NOSPC | Errno::USERS => {
            return Refusal {
                cause:
                    "the limit `user.max_net_namespaces`, or one of a namespace around this one, is reached"
                        .to_owned(),
                remedy: "as root: sysctl -w user.max_net_namespaces=NUMBER".to_owned(),
            };
        }
        Errno::INVAL => {
            return Refusal {
                cause: "the kernel has none".to_owned(),
                remedy: "take a kernel with CONFIG_NET_NS".to_owned(),
            };
        }
        _ if !facts.capabilities.contains(CapabilitySet::SYS_ADMIN) => {
            "it takes CAP_SYS_ADMIN, or a user namespace as --isolation=user-namespace makes one".to_owned()
        }
        Errno::PERM if !facts.capabilities.contains(CapabilitySet::NET_ADMIN) => {
            return Refusal {
                cause: "without CAP_NET_ADMIN its loopback interface cannot be brought up".to_owned(),
                remedy: "take --isolation=user-namespace, or give the container securityContext.capabilities.add: [NET_ADMIN]"
                    .to_owned(),
            };
        }
        _ if facts.filtered => "a seccomp filter is in force, which seems to forbid it".to_owned(),
        errno => std::io::Error::from(errno).to_string(),
    };
    Refusal {
        cause,
        remedy: "let the container have namespaces (`builder doctor` says how), or build without --network=none and keep \
                 the container itself off the network"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_is_named_with_what_to_do() {
        let (none, one) = (CapabilitySet::empty(), CapabilitySet::SYS_ADMIN);
        let all = one | CapabilitySet::NET_ADMIN;
        let cases = [
            (Errno::NOSPC, all, false, "`user.max_net_namespaces`", "sysctl -w"),
            (Errno::INVAL, all, false, "the kernel has none", "CONFIG_NET_NS"),
            (Errno::PERM, none, false, "CAP_SYS_ADMIN", "builder doctor"),
            (Errno::PERM, none, true, "CAP_SYS_ADMIN", "builder doctor"),
            (Errno::PERM, one, true, "CAP_NET_ADMIN", "--isolation=user-namespace"),
            (Errno::PERM, all, true, "a seccomp filter", "builder doctor"),
            (Errno::NOMEM, all, false, "Cannot allocate memory", "builder doctor"),
        ];
        for (errno, capabilities, filtered, cause, remedy) in cases {
            let mut facts = Facts::none();
            (facts.capabilities, facts.filtered) = (capabilities, filtered);
            let refusal = explain_by(errno, &facts);
            assert!(refusal.cause.contains(cause), "{errno:?}: {refusal:?}");
            assert!(refusal.remedy.contains(remedy), "{errno:?}: {refusal:?}");
        }
    }
}
