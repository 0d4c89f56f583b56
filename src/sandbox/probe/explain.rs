//! What an obstacle means, and what would take it away.

use rustix::io::Errno;
use rustix::thread::CapabilitySet;

use super::Obstacle;
use crate::sandbox::allowed::NEEDED;
use crate::sandbox::refusal::{self, Act, Facts, Refusal, Remedy};
use crate::sandbox::{Attempt, Strategy};

/// What root needs to map all ids that it has.
const MAPPING: CapabilitySet =
    CapabilitySet::SETFCAP.union(CapabilitySet::SETGID).union(CapabilitySet::SETUID);

/// What root must be allowed for `strategy`.
fn needed(strategy: Strategy) -> CapabilitySet {
    match strategy {
        // Mounts are not all: what lies above the new root is covered by way of chroot(2).
        Strategy::MountNamespace => NEEDED | CapabilitySet::SYS_ADMIN | CapabilitySet::SYS_CHROOT,
        Strategy::UserNamespace => MAPPING,
        // It works without SETFCAP, but setcap(8) and packages whose programs have capabilities do not.
        Strategy::Chroot => {
            NEEDED | CapabilitySet::MKNOD | CapabilitySet::SYS_CHROOT | CapabilitySet::SETFCAP
        }
        Strategy::SecondContainer | Strategy::InPlace => NEEDED,
    }
}

/// Explains `obstacle`, which is in the way of `strategy`, by the `facts` of the machine.
pub(super) fn explain(strategy: Strategy, obstacle: &Obstacle, facts: &Facts) -> Refusal {
    let refusal = match obstacle {
        Obstacle::Unfinished => Refusal::new("not in this version yet"),
        Obstacle::NotRoot { uid } => Refusal::new(format!("user {uid} is not root")).and(Remedy::Root),
        Obstacle::NoAdministrator => Refusal::lacking(CapabilitySet::SYS_ADMIN),
        Obstacle::Powerless => {
            let lacking = needed(strategy).difference(facts.capabilities);
            let usual = refusal::names(lacking & NEEDED, "CAP_").join(", ");
            Refusal::new(format!("root lacks {usual}, which it usually has"))
                .and(Remedy::Capabilities(lacking))
        }
        Obstacle::NoContainer => Refusal::new("this is no container: the root would be that of the machine")
            .and(Remedy::Words("run it in a container".to_owned())),
        Obstacle::NoExecution => {
            Refusal::elsewhere("no program can be executed on the store's file system (mounted noexec)")
        }
        Obstacle::Refused { attempt, errno } => {
            return explain_trial(strategy, attempt, Errno::from_raw_os_error(*errno), facts);
        }
        Obstacle::Other { message } => Refusal::new(message.clone()),
    };
    complete(refusal, strategy, facts)
}

/// Explains that a trial of `strategy` failed in `attempt` with `errno`.
fn explain_trial(strategy: Strategy, attempt: &Attempt, errno: Errno, facts: &Facts) -> Refusal {
    // Whatever has no name of its own there has to do with mounts.
    let attempt = match (strategy, attempt.act) {
        (Strategy::MountNamespace | Strategy::UserNamespace, Act::Other) => {
            &Act::Mount.named(attempt.words.clone())
        }
        _ => attempt,
    };
    complete(refusal::explain(attempt, errno, facts), strategy, facts)
}

/// The same for a step of a build, for which a trial had worked: what has no name of its own was not refused by a setting.
pub(super) fn explain_step(strategy: Strategy, attempt: &Attempt, errno: Errno, facts: &Facts) -> Refusal {
    complete(refusal::explain(attempt, errno, facts), strategy, facts)
}

/// Adds what else of the process's setting is in the way of `strategy`, so that who changes one thing is not told the next
/// one after another try.
fn complete(mut refusal: Refusal, strategy: Strategy, facts: &Facts) -> Refusal {
    if !refusal.remedies.iter().any(Remedy::is_setting) {
        return refusal;
    }
    let lacking = needed(strategy).difference(facts.capabilities);
    // Others need none, or could not use them.
    if !lacking.is_empty() && (facts.uid == 0 || refusal.remedies.contains(&Remedy::Root)) {
        refusal = refusal.and(Remedy::Capabilities(lacking));
    }
    let administers =
        |one: &Remedy| matches!(one, Remedy::Capabilities(set) if set.contains(CapabilitySet::SYS_ADMIN));
    if facts.no_gain && refusal.remedies.iter().any(administers) {
        refusal = refusal.and(Remedy::Escalation);
    }
    match strategy {
        // AppArmor's usual profile for containers forbids mounts.
        Strategy::MountNamespace | Strategy::UserNamespace
            if facts.confined.is_some() && !facts.is_label() =>
        {
            refusal.and(Remedy::NoProfile)
        }
        // Nobody can make devices there.
        Strategy::Chroot if facts.in_user_namespace => refusal.and(Remedy::HostUsers),
        _ => refusal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::probe::Place;
    use crate::sandbox::refusal::Explanation;

    const NO_APPARMOR: &str = "securityContext.appArmorProfile: {type: Unconfined}";

    /// What root of a container has.
    const DOCKER: CapabilitySet = crate::sandbox::allowed::CAPABILITIES;

    fn facts() -> Facts {
        Facts { capabilities: DOCKER, ..Facts::none() }
    }

    fn refused(attempt: impl Into<Attempt>, errno: Errno) -> Obstacle {
        Obstacle::Refused { attempt: attempt.into(), errno: errno.raw_os_error() }
    }

    fn act(act: Act, errno: Errno) -> Obstacle {
        refused(act.named("try"), errno)
    }

    fn explained(strategy: Strategy, obstacle: &Obstacle, place: Place, facts: &Facts) -> Explanation {
        explain(strategy, obstacle, facts).at(place)
    }

    #[test]
    fn in_a_pod_the_manifest_s_fields_are_named() {
        const ADMIN: &str = "securityContext.capabilities.add: [SYS_ADMIN]";
        const SECCOMP: &str = "securityContext.seccompProfile: {type: Unconfined}";
        const ROOT: &str = "securityContext.runAsUser: 0";
        const NON_ROOT: &str = "securityContext.runAsNonRoot: false";
        use Strategy::{Chroot, InPlace, MountNamespace, UserNamespace};
        let filtered = || Facts { filtered: true, ..facts() };
        let without = |capabilities: CapabilitySet, facts: Facts| Facts {
            capabilities: facts.capabilities.difference(capabilities),
            ..facts
        };
        let crio = CapabilitySet::SYS_CHROOT | CapabilitySet::MKNOD | CapabilitySet::SETFCAP;
        let admin =
            |facts: Facts| Facts { capabilities: facts.capabilities | CapabilitySet::SYS_ADMIN, ..facts };
        let inside = || Facts { in_user_namespace: true, ..facts() };
        let profile =
            Facts { confined: Some("cri-containerd.apparmor.d (enforce)".to_owned()), ..filtered() };
        let label = "system_u:system_r:container_t:s0:c1,c2".to_owned();
        let unshare = |errno| act(Act::UserNamespace, errno);
        let cases: Vec<(Strategy, Obstacle, Facts, &str, &[&str])> = vec![
            (MountNamespace, Obstacle::NoAdministrator, facts(), "no CAP_SYS_ADMIN", &[ADMIN]),
            (
                MountNamespace,
                Obstacle::NotRoot { uid: 1000 },
                facts(),
                "user 1000 is not root",
                &[ROOT, NON_ROOT, ADMIN],
            ),
            (Chroot, Obstacle::NotRoot { uid: 1000 }, facts(), "user 1000 is not root", &[ROOT, NON_ROOT]),
            (
                MountNamespace,
                Obstacle::NotRoot { uid: 1000 },
                Facts { no_gain: true, ..facts() },
                "not root",
                &[ROOT, NON_ROOT, ADMIN, "securityContext.allowPrivilegeEscalation: true"],
            ),
            // With AppArmor, mounts would be the next to be refused.
            (
                MountNamespace,
                Obstacle::NoAdministrator,
                profile.clone(),
                "no CAP_SYS_ADMIN",
                &[ADMIN, NO_APPARMOR],
            ),
            (UserNamespace, unshare(Errno::PERM), profile, "seccomp", &[SECCOMP, NO_APPARMOR]),
            (
                UserNamespace,
                unshare(Errno::PERM),
                filtered(),
                "a seccomp profile forbids unshare(2)",
                &[SECCOMP],
            ),
            // CAP_SYS_ADMIN alone, where pivot_root(2) is filtered.
            (
                MountNamespace,
                act(Act::LeaveRoot, Errno::PERM),
                without(CapabilitySet::SYS_CHROOT, admin(filtered())),
                "no CAP_SYS_CHROOT",
                &["securityContext.capabilities.add: [SYS_CHROOT]"],
            ),
            (
                UserNamespace,
                act(Act::LeaveRoot, Errno::PERM),
                without(CapabilitySet::SYS_CHROOT, filtered()),
                "no CAP_SYS_CHROOT",
                &["securityContext.capabilities.add: [SYS_CHROOT]"],
            ),
            (MountNamespace, act(Act::LeaveRoot, Errno::PERM), admin(filtered()), "seccomp", &[SECCOMP]),
            // CRI-O's filter and capabilities.
            (
                UserNamespace,
                unshare(Errno::NOSYS),
                without(crio, filtered()),
                "seccomp",
                &[SECCOMP, "securityContext.capabilities.add: [SETFCAP]"],
            ),
            (
                Chroot,
                act(Act::ChangeRoot, Errno::PERM),
                without(crio, filtered()),
                "no CAP_SYS_CHROOT",
                &["securityContext.capabilities.add: [SYS_CHROOT, MKNOD, SETFCAP]"],
            ),
            (
                UserNamespace,
                act(Act::MapIds, Errno::PERM),
                without(crio, facts()),
                "no CAP_SETFCAP",
                &["securityContext.capabilities.add: [SETFCAP]"],
            ),
            (
                MountNamespace,
                act(Act::MountNamespace, Errno::ACCESS),
                admin(facts()),
                "security module",
                &[NO_APPARMOR],
            ),
            (
                UserNamespace,
                refused("mount `/sys`", Errno::ACCESS),
                facts(),
                "(cannot mount `/sys`)",
                &[NO_APPARMOR],
            ),
            (MountNamespace, refused("mount `/sys`", Errno::PERM), admin(filtered()), "seccomp", &[SECCOMP]),
            (
                UserNamespace,
                act(Act::MountNamespace, Errno::ACCESS),
                Facts { confined: Some(label), ..facts() },
                "container_t",
                &[],
            ),
            (
                UserNamespace,
                unshare(Errno::NOSPC),
                Facts { limit: Some(0), ..facts() },
                "max_user_namespaces",
                &[],
            ),
            (
                Chroot,
                act(Act::MakeDevice, Errno::PERM),
                inside(),
                "devices cannot be made in a user namespace",
                &["spec.hostUsers: true"],
            ),
            (Chroot, act(Act::OpenDevice, Errno::ACCESS), facts(), "nodev", &[]),
            (Chroot, Obstacle::NoExecution, facts(), "noexec", &[]),
            (Chroot, act(Act::ChangeRoot, Errno::PERM), filtered(), "forbids chroot(2)", &[SECCOMP]),
            (
                Chroot,
                Obstacle::Powerless,
                without(CapabilitySet::CHOWN, inside()),
                "root lacks",
                &["securityContext.capabilities.add: [CHOWN]", "spec.hostUsers: true"],
            ),
            (
                Chroot,
                Obstacle::Powerless,
                without(CapabilitySet::SETUID, facts()),
                "root lacks CAP_SETUID, which",
                &["securityContext.capabilities.add: [SETUID]"],
            ),
            // The five that root cannot do without, and no more.
            (
                MountNamespace,
                Obstacle::Powerless,
                Facts { capabilities: crate::sandbox::allowed::GIVING, ..Facts::none() },
                "root lacks",
                &["securityContext.capabilities.add: [SETGID, SETUID, SYS_CHROOT, SYS_ADMIN]"],
            ),
            (
                InPlace,
                act(Act::WriteRoot, Errno::ROFS),
                facts(),
                "can only be read",
                &["securityContext.readOnlyRootFilesystem: false"],
            ),
        ];
        for (strategy, obstacle, facts, cause, fields) in cases {
            let explanation = explained(strategy, &obstacle, Place::Pod, &facts);
            assert!(explanation.cause.contains(cause), "{obstacle:?}: {explanation:?}");
            assert_eq!(explanation.manifest, fields, "{obstacle:?}: {explanation:?}");
            assert!(!fields.is_empty() || explanation.advice.is_some(), "{obstacle:?}: {explanation:?}");
        }
    }

    #[test]
    fn outside_of_pods_there_is_no_manifest() {
        let filtered = Facts { filtered: true, ..facts() };
        for (place, advice) in [
            (Place::Container, "start the container with --security-opt seccomp=unconfined"),
            (Place::Machine, "run it without that filter of system calls"),
        ] {
            let obstacle = act(Act::UserNamespace, Errno::PERM);
            let explanation = explained(Strategy::UserNamespace, &obstacle, place, &filtered);
            assert_eq!((explanation.manifest.len(), explanation.remedy().unwrap().as_str()), (0, advice));
        }
        let root = |place| {
            explained(Strategy::MountNamespace, &Obstacle::NotRoot { uid: 5 }, place, &facts())
                .remedy()
                .unwrap()
        };
        assert_eq!(root(Place::Container), "start the container with --user 0 --cap-add SYS_ADMIN");
        assert_eq!(root(Place::Machine), "run it as root with CAP_SYS_ADMIN");
        let no_container = explained(Strategy::InPlace, &Obstacle::NoContainer, Place::Machine, &facts());
        assert!(no_container.cause.contains("no container"), "{no_container:?}");
    }
}
