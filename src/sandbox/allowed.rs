//! What a step may do: its capabilities, and whether its system calls are filtered.

use rustix::thread::CapabilitySet;
use serde::{Deserialize, Serialize};

use super::Security;
use super::child::{Step, during};
use super::devices::Rules;
use super::own;
use super::refusal::is_filtered;
use super::seccomp::{SystemCalls, can_filter_system_calls};

/// What it takes to give files to others, and to change what belongs to them.
pub(super) const GIVING: CapabilitySet =
    CapabilitySet::CHOWN.union(CapabilitySet::DAC_OVERRIDE).union(CapabilitySet::FOWNER);

/// What builder and a step cannot do without as root: to give files to others, and to become one of them.
pub(super) const NEEDED: CapabilitySet = GIVING.union(CapabilitySet::SETGID).union(CapabilitySet::SETUID);

/// What processes in containers may do by default: 00000000a80425fb, as Docker and BuildKit have it.
pub(super) const CAPABILITIES: CapabilitySet = NEEDED.union(spare()).union(CapabilitySet::SYS_CHROOT);

/// What a step can do without, that which a Dockerfile misses least first: to limit the capabilities of others; ping(8); a
/// server on a low port, where the kernel does not allow that to everybody anyway; pam(3) as root, whose messages for the
/// audit then fail; devices; capabilities of files; to end what another user has started; setgid files that stay so when
/// they are written to.
const SPARE: [CapabilitySet; 8] = [
    CapabilitySet::SETPCAP,
    CapabilitySet::NET_RAW,
    CapabilitySet::NET_BIND_SERVICE,
    CapabilitySet::AUDIT_WRITE,
    CapabilitySet::MKNOD,
    CapabilitySet::SETFCAP,
    CapabilitySet::KILL,
    CapabilitySet::FSETID,
];

const fn spare() -> CapabilitySet {
    let (mut all, mut next) = (CapabilitySet::empty(), 0);
    while next < SPARE.len() {
        all = all.union(SPARE[next]);
        next += 1;
    }
    all
}

/// What a step may do at most; less where the builder may not do it itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Allowed {
    pub(super) capabilities: CapabilitySet,
    pub(super) system_calls: SystemCalls,
}

impl Allowed {
    /// In namespaces of its own: to be asked by a process that has the builder's capabilities.
    pub(super) fn inside(security: Security) -> Step<Self> {
        match security {
            Security::Confined => {
                Ok(Self { capabilities: CAPABILITIES, system_calls: SystemCalls::Filtered })
            }
            Security::Unconfined => {
                let own = during(rustix::thread::capabilities(None), "find out the capabilities of builder")?;
                Ok(Self { capabilities: own.permitted, system_calls: SystemCalls::AsForTheBuilder })
            }
        }
    }

    /// In those of the container, where `devices` hold: to be asked by a process that has the builder's capabilities.
    pub(super) fn beside_others(devices: Rules) -> Step<Self> {
        let own = during(rustix::thread::capabilities(None), "find out the capabilities of the container")?;
        let system_calls = SystemCalls::beside(own.effective);
        Ok(Self { capabilities: fewer(own.permitted, devices), system_calls })
    }
}

impl SystemCalls {
    /// Those of a step in the namespaces of a process that may do `own`.
    fn beside(own: CapabilitySet) -> Self {
        if own.contains(CapabilitySet::SYS_ADMIN) { Self::Filtered } else { Self::AsForTheBuilder }
    }
}

/// Whose filter of system calls a step is under.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Filter {
    /// Builder's, besides what is in force for builder itself.
    Builder,
    /// That which is in force for builder, and no other.
    Container,
    /// Nobody's.
    None,
}

impl Filter {
    /// That of a step in namespaces of its own.
    pub(super) fn inside() -> Self {
        Self::of(SystemCalls::Filtered)
    }

    /// That of a step in the namespaces of this process.
    pub(super) fn beside_others() -> Self {
        Self::of(SystemCalls::beside(own::capabilities()))
    }

    fn of(system_calls: SystemCalls) -> Self {
        match system_calls {
            SystemCalls::Filtered if can_filter_system_calls() => Self::Builder,
            SystemCalls::Filtered | SystemCalls::AsForTheBuilder if is_filtered() => Self::Container,
            SystemCalls::Filtered | SystemCalls::AsForTheBuilder => Self::None,
        }
    }
}

/// What a step may do beside processes with the capabilities `others`.
///
/// Not CAP_SYS_CHROOT, by which it could leave its root. And at least one capability less than they have: the kernel lets
/// nobody trace a process, or see its environment, files and memory, who lacks a capability of it (ptrace(2)). What is
/// left out is missing in the bounding set, too, so no setuid program and no capability of a file brings it back.
fn fewer(others: CapabilitySet, devices: Rules) -> CapabilitySet {
    let mut given = CAPABILITIES.difference(CapabilitySet::SYS_CHROOT);
    if devices == Rules::Missing {
        given.remove(CapabilitySet::MKNOD);
    }
    if given.contains(others)
        && let Some(spare) = SPARE.into_iter().find(|spare| others.contains(*spare))
    {
        given.remove(spare);
    }
    given
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_capabilities_are_those_of_docker() {
        assert_eq!(CAPABILITIES.bits(), 0xa804_25fb);
    }

    #[test]
    fn a_step_has_one_capability_less_than_those_beside_it() {
        use CapabilitySet as Set;
        let usual = CAPABILITIES.difference(Set::SYS_CHROOT);
        let five = Set::CHOWN | Set::DAC_OVERRIDE | Set::FOWNER | Set::SETUID | Set::SETGID;
        let crio = five | Set::FSETID | Set::SETPCAP | Set::NET_BIND_SERVICE | Set::KILL;
        for (others, left_out) in [
            (CAPABILITIES, Set::empty()),
            (Set::all(), Set::empty()),
            (crio | Set::SYS_ADMIN, Set::empty()),
            (usual, Set::SETPCAP),
            (crio, Set::SETPCAP),
            (crio.difference(Set::SETPCAP), Set::NET_BIND_SERVICE),
            (five | Set::FSETID, Set::FSETID),
            // Nothing to spare.
            (five, Set::empty()),
        ] {
            let given = fewer(others, Rules::Hold);
            assert_eq!(given, usual.difference(left_out), "{others:?}");
            assert!(others == five || !given.contains(others), "{others:?}");
        }
        // Where they have CAP_MKNOD and the step does not, that is one.
        let without = usual.difference(Set::MKNOD);
        assert_eq!(fewer(usual, Rules::Missing), without);
        assert_eq!(fewer(crio, Rules::Missing), without.difference(Set::SETPCAP));
    }
}
