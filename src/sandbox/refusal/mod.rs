//! Why the kernel refuses something on the way to a step, and what to do about it: the one place that knows what a number
//! means, whoever met it, a build, a trial of what is possible or a command that wants namespaces of its own.

mod act;
mod facts;
mod remedy;

use rustix::io::Errno;
use rustix::thread::CapabilitySet;

pub use act::{Act, Attempt};
pub(super) use facts::{Facts, is_filtered};
pub use remedy::Explanation;
pub(super) use remedy::{Remedy, names};

/// Why something was refused, and what would make it possible, whatever is around the process: see [`Refusal::at`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Why, in a few words.
    pub cause: String,
    /// What helps, all of it together; nothing where that is not known.
    pub(super) remedies: Vec<Remedy>,
}

impl Refusal {
    pub(super) fn new(cause: impl Into<String>) -> Self {
        Self { cause: cause.into(), remedies: Vec::new() }
    }

    /// The process lacks `capability`.
    pub(super) fn lacking(capability: CapabilitySet) -> Self {
        let names: Vec<&str> = capability.iter_names().map(|(name, _)| name).collect();
        Self::new(format!("no CAP_{}", names.join(" and CAP_"))).and(Remedy::Capabilities(capability))
    }

    fn filter(call: &str) -> Self {
        Self::new(format!("a seccomp profile forbids {call}")).and(Remedy::NoFilter)
    }

    fn security_module(call: &str, facts: &Facts) -> Self {
        let module = match &facts.confined {
            Some(profile) => format!("the security module's profile `{profile}`"),
            None => "a security module (AppArmor, SELinux)".to_owned(),
        };
        let remedy = match facts.is_label() {
            true => Remedy::Words("have the node's SELinux policy allow it".to_owned()),
            false => Remedy::NoProfile,
        };
        Self::new(format!("{module} forbids {call}")).and(remedy)
    }

    /// There may be no more namespaces of the kind that the kernel calls `kind`, as many as `allowed` of them.
    fn limit(kind: &str, allowed: Option<u64>) -> Self {
        let allowed = allowed.map(|allowed| format!(" of {allowed}")).unwrap_or_default();
        let name = format!("user.max_{kind}_namespaces");
        Self::new(format!("the limit `{name}`{allowed}, or one of a namespace around this one, is reached"))
            .and(Remedy::Machine(format!("as root: sysctl -w {name}=NUMBER")))
    }

    /// The store is in a wrong place for `cause`.
    pub(super) fn elsewhere(cause: &str) -> Self {
        let advice = "put the store on another volume (--store), in a pod an emptyDir";
        Self::new(cause).and(Remedy::Words(advice.to_owned()))
    }
}

/// What it means that the kernel answered `attempt` with `errno`, by the `facts` of the process and its machine.
pub(super) fn explain(attempt: &Attempt, errno: Errno, facts: &Facts) -> Refusal {
    let plain = || Refusal::new(format!("cannot {attempt}: {}", errno_words(errno)));
    let lacks = |capability| !facts.capabilities.contains(capability);
    let forbidden = matches!(errno, Errno::PERM | Errno::NOSYS);
    match attempt.act {
        Act::UserNamespace => user_namespace(errno, facts),
        // Since Linux 5.12; the map of groups needs none.
        Act::MapIds if errno == Errno::PERM && facts.uid == 0 && lacks(CapabilitySet::SETFCAP) => Refusal {
            cause: "no CAP_SETFCAP, without which root cannot map ids".to_owned(),
            ..Refusal::lacking(CapabilitySet::SETFCAP)
        },
        Act::MapIds => Refusal::new(format!("cannot map ids: {}", errno_words(errno))),
        Act::MountNamespace => mount_namespace(errno, facts),
        Act::NetworkNamespace => network_namespace(errno, facts),
        // Filters ask whether the container has it, be it in a user namespace or not.
        Act::LeaveRoot | Act::ChangeRoot if forbidden && lacks(CapabilitySet::SYS_CHROOT) => {
            Refusal::lacking(CapabilitySet::SYS_CHROOT)
        }
        Act::LeaveRoot if forbidden && facts.filtered => Refusal::filter("pivot_root(2) and chroot(2)"),
        Act::ChangeRoot if forbidden && facts.filtered => Refusal::filter("chroot(2)"),
        Act::MakeDevice | Act::OpenDevice => device(attempt, errno, facts),
        Act::WriteRoot if errno == Errno::ROFS => {
            Refusal::new("the root file system can only be read").and(Remedy::WritableRoot)
        }
        Act::NewProc | Act::Mount | Act::LeaveRoot if errno == Errno::ACCESS => {
            Refusal::security_module(&format!("mounts (cannot {attempt})"), facts)
        }
        Act::NewProc | Act::Mount if forbidden && facts.filtered => {
            Refusal::filter(&format!("a part of it (cannot {attempt})"))
        }
        Act::NewProc
        | Act::Mount
        | Act::LeaveRoot
        | Act::ChangeRoot
        | Act::WriteRoot
        | Act::Handler
        | Act::Other => plain(),
    }
}

fn device(attempt: &Attempt, errno: Errno, facts: &Facts) -> Refusal {
    match errno {
        Errno::PERM if facts.in_user_namespace => {
            Refusal::new("devices cannot be made in a user namespace").and(Remedy::HostUsers)
        }
        Errno::PERM if !facts.capabilities.contains(CapabilitySet::MKNOD) => {
            Refusal::lacking(CapabilitySet::MKNOD)
        }
        Errno::PERM => Refusal::new("the container's device rules do not allow /dev/null and the like"),
        // A device that was made and cannot be opened.
        Errno::ACCESS => {
            Refusal::elsewhere("no device can be opened on the store's file system (mounted nodev)")
        }
        errno => Refusal::new(format!("cannot {attempt}: {}", errno_words(errno))),
    }
}

fn mount_namespace(errno: Errno, facts: &Facts) -> Refusal {
    match errno {
        Errno::ACCESS => Refusal::security_module("mount(2)", facts),
        Errno::NOSPC | Errno::USERS => Refusal::limit("mnt", None),
        // Ubuntu's AppArmor lets everybody make a user namespace, and takes the capabilities away that one has in it.
        Errno::PERM if facts.in_user_namespace && Culprit::of(errno, facts) == Culprit::Ubuntu => {
            user_namespace(errno, facts)
        }
        Errno::PERM | Errno::NOSYS if facts.filtered => Refusal::filter("unshare(2) or mount(2)"),
        Errno::INVAL => Refusal::new("the root directory is no mount point")
            .and(Remedy::Words("in a chroot, bind-mount its root onto itself first".to_owned())),
        errno => Refusal::new(format!("the kernel refuses a mount namespace ({})", errno_words(errno))),
    }
}

fn network_namespace(errno: Errno, facts: &Facts) -> Refusal {
    let lacks = |capability| !facts.capabilities.contains(capability);
    let otherwise = |words: &str| Remedy::Otherwise(words.to_owned());
    let refusal = match errno {
        Errno::NOSPC | Errno::USERS => return Refusal::limit("net", None),
        Errno::INVAL => {
            let remedy = "take a kernel with CONFIG_NET_NS".to_owned();
            return Refusal::new("the kernel has none").and(Remedy::Machine(remedy));
        }
        _ if lacks(CapabilitySet::SYS_ADMIN) => {
            let needed = CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN;
            Refusal::new("it takes CAP_SYS_ADMIN and CAP_NET_ADMIN, or a user namespace")
                .and(Remedy::Capabilities(needed.difference(facts.capabilities)))
                .and(otherwise("take --isolation=user-namespace, if `builder doctor` says that it works"))
        }
        Errno::PERM if lacks(CapabilitySet::NET_ADMIN) => {
            return Refusal::new("without CAP_NET_ADMIN its loopback interface cannot be brought up")
                .and(Remedy::Capabilities(CapabilitySet::NET_ADMIN))
                .and(otherwise("take --isolation=user-namespace"));
        }
        Errno::PERM | Errno::NOSYS if facts.filtered => Refusal::filter("unshare(2)"),
        errno => Refusal::new(errno_words(errno)),
    };
    refusal.and(otherwise("build without --network=none and keep the container itself off the network"))
}

/// What keeps a process from having namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Culprit {
    /// `user.max_user_namespaces`, or that of a namespace around this one.
    Limit,
    /// `kernel.unprivileged_userns_clone`.
    Switch,
    /// The process is in a chroot.
    Chroot,
    /// Ubuntu's AppArmor.
    Ubuntu,
    /// The caller is nobody in its own namespace.
    Unmapped,
    /// A filter of system calls.
    Filter,
    /// The kernel has none.
    Kernel,
    /// Nobody knows.
    Unknown,
}

impl Culprit {
    /// Who it was that said `errno`.
    fn of(errno: Errno, facts: &Facts) -> Self {
        match (errno, facts) {
            (Errno::NOSPC | Errno::USERS, _) => Self::Limit,
            // What some filters say to calls that they have not heard of.
            (Errno::NOSYS, Facts { filtered: true, .. }) => Self::Filter,
            (Errno::NOSYS | Errno::INVAL, _) => Self::Kernel,
            (Errno::PERM | Errno::ACCESS, Facts { clone: Some(0), .. }) => Self::Switch,
            (Errno::PERM | Errno::ACCESS, Facts { in_chroot: true, .. }) => Self::Chroot,
            (Errno::PERM | Errno::ACCESS, Facts { apparmor: Some(1..), .. }) => Self::Ubuntu,
            (Errno::PERM | Errno::ACCESS, Facts { unmapped: true, .. }) => Self::Unmapped,
            (Errno::PERM | Errno::ACCESS, Facts { filtered: true, .. }) => Self::Filter,
            _ => Self::Unknown,
        }
    }
}

fn user_namespace(errno: Errno, facts: &Facts) -> Refusal {
    let sysctl = |name: &str, is: u64, wanted: u64| {
        let remedy = format!("as root: sysctl -w {name}={wanted}");
        Refusal::new(format!("`{name}` is {is}")).and(Remedy::Machine(remedy))
    };
    let words = errno_words(errno);
    let refusal = match Culprit::of(errno, facts) {
        Culprit::Limit if facts.limit == Some(0) => sysctl("user.max_user_namespaces", 0, 15_000),
        Culprit::Limit => Refusal::limit("user", facts.limit),
        Culprit::Switch => sysctl("kernel.unprivileged_userns_clone", 0, 1),
        Culprit::Chroot => Refusal::new("this process is in a chroot, where the kernel allows none")
            .and(Remedy::Words("build outside of the chroot".to_owned())),
        Culprit::Ubuntu => {
            let remedy = "give this program an AppArmor profile with `userns,`; or as root: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0";
            Refusal::new("`kernel.apparmor_restrict_unprivileged_userns` is 1")
                .and(Remedy::Machine(remedy.to_owned()))
        }
        Culprit::Unmapped => {
            let remedy = "start it with ids that /proc/self/uid_map and /proc/self/gid_map have".to_owned();
            return Refusal::new(
                "the caller's own user or group id does not exist in the user namespace around it",
            )
            .and(Remedy::Words(remedy));
        }
        Culprit::Filter => return Refusal::filter("unshare(2)"),
        Culprit::Kernel => Refusal::new(format!("the kernel has none ({words})"))
            .and(Remedy::Machine("take a kernel with CONFIG_USER_NS".to_owned())),
        Culprit::Unknown if matches!(errno, Errno::PERM | Errno::ACCESS) => {
            let remedy = "a chroot, a container or a security module may be why".to_owned();
            Refusal::new(words).and(Remedy::Words(remedy))
        }
        Culprit::Unknown => Refusal::new(words),
    };
    // Whatever the reason, there is a way without.
    let without = match facts.uid {
        0 => "run the build with CAP_SYS_ADMIN",
        _ => "run the build as root",
    };
    refusal.and(Remedy::Otherwise(without.to_owned()))
}

pub(super) fn errno_words(errno: Errno) -> String {
    std::io::Error::from(errno).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::probe::Place;

    #[track_caller]
    fn assert_explained(act: Act, errno: Errno, facts: &Facts, cause: &str, remedy: &str) {
        let explanation = explain(&act.named("try"), errno, facts).at(Place::Machine);
        assert!(explanation.cause.contains(cause), "{facts:?}: {explanation:?}");
        let advice = explanation.remedy().unwrap_or_default();
        assert!(advice.contains(remedy), "{facts:?}: {explanation:?}");
    }

    #[test]
    fn the_cause_is_named_with_what_to_do() {
        let facts = Facts { limit: Some(1000), uid: 1000, ..Facts::none() };
        let cases = [
            (
                Errno::NOSPC,
                Facts { limit: Some(0), ..facts.clone() },
                "`user.max_user_namespaces` is 0",
                "sysctl -w user.max_user_namespaces=15000",
            ),
            (
                Errno::NOSPC,
                facts.clone(),
                "the limit `user.max_user_namespaces` of 1000, or one of",
                "=NUMBER",
            ),
            (
                Errno::PERM,
                Facts { clone: Some(0), in_chroot: true, apparmor: Some(1), ..facts.clone() },
                "`kernel.unprivileged_userns_clone` is 0",
                "sysctl -w kernel.unprivileged_userns_clone=1",
            ),
            (Errno::PERM, Facts { in_chroot: true, ..facts.clone() }, "in a chroot", "outside of the chroot"),
            (
                Errno::ACCESS,
                Facts { clone: Some(1), apparmor: Some(1), filtered: true, ..facts.clone() },
                "`kernel.apparmor_restrict_unprivileged_userns` is 1",
                "`userns,`",
            ),
            (Errno::PERM, Facts { unmapped: true, ..facts.clone() }, "does not exist", "/proc/self/uid_map"),
            (
                Errno::PERM,
                Facts { apparmor: Some(0), filtered: true, ..facts.clone() },
                "a seccomp profile forbids unshare(2)",
                "without that filter",
            ),
            (Errno::PERM, facts.clone(), "Operation not permitted", "run the build as root"),
            (Errno::PERM, Facts { uid: 0, ..facts.clone() }, "not permitted", "with CAP_SYS_ADMIN"),
            (Errno::NOSYS, Facts { filtered: true, ..facts.clone() }, "a seccomp profile", "that filter"),
            (Errno::INVAL, facts.clone(), "the kernel has none", "CONFIG_USER_NS"),
            (Errno::NOMEM, facts, "Cannot allocate memory", "run the build as root"),
        ];
        for (errno, facts, cause, remedy) in cases {
            assert_explained(Act::UserNamespace, errno, &facts, cause, remedy);
        }
    }

    #[test]
    fn mounts_of_its_own_are_not_explained_as_users_of_its_own() {
        let root = Facts { capabilities: CapabilitySet::all(), apparmor: Some(1), ..Facts::none() };
        let inside = Facts { in_user_namespace: true, ..root.clone() };
        let filtered = Facts { filtered: true, ..root.clone() };
        for (errno, facts, cause, remedy) in [
            (Errno::NOSPC, &root, "`user.max_mnt_namespaces`", "sysctl -w user.max_mnt_namespaces=NUMBER"),
            (Errno::PERM, &root, "refuses a mount namespace (Operation not permitted", ""),
            (Errno::PERM, &filtered, "a seccomp profile forbids unshare(2) or mount(2)", "that filter"),
            (Errno::INVAL, &root, "no mount point", "bind-mount"),
            (Errno::ACCESS, &root, "forbids mount(2)", "a profile that allows it"),
            // There the users are to blame for it.
            (Errno::PERM, &inside, "`kernel.apparmor_restrict_unprivileged_userns` is 1", "`userns,`"),
        ] {
            assert_explained(Act::MountNamespace, errno, facts, cause, remedy);
        }
        let plain = explain(&Act::MountNamespace.named("try"), Errno::PERM, &root);
        assert_eq!(plain.remedies, [], "there is nothing that this one lacks");
    }

    #[test]
    fn a_network_of_its_own_is_explained_as_other_namespaces_are() {
        let (none, one) = (CapabilitySet::empty(), CapabilitySet::SYS_ADMIN);
        let all = one | CapabilitySet::NET_ADMIN;
        let cases = [
            (Errno::NOSPC, all, false, "`user.max_net_namespaces`", "sysctl -w"),
            (Errno::INVAL, all, false, "the kernel has none", "CONFIG_NET_NS"),
            (Errno::PERM, none, false, "CAP_SYS_ADMIN", "builder doctor"),
            (Errno::PERM, none, true, "CAP_SYS_ADMIN", "--isolation=user-namespace"),
            (Errno::PERM, one, true, "CAP_NET_ADMIN", "--isolation=user-namespace"),
            (Errno::PERM, all, true, "a seccomp profile forbids unshare(2)", "without that filter"),
            (Errno::NOMEM, all, false, "Cannot allocate memory", "keep the container itself off"),
        ];
        for (errno, capabilities, filtered, cause, remedy) in cases {
            let facts = Facts { capabilities, filtered, ..Facts::none() };
            assert_explained(Act::NetworkNamespace, errno, &facts, cause, remedy);
        }
        let remedy = |errno, capabilities, place| {
            let facts = Facts { capabilities, ..Facts::none() };
            explain(&Act::NetworkNamespace.named("try"), errno, &facts).at(place).remedy().unwrap()
        };
        let without = "build without --network=none and keep the container itself off the network";
        let namespace = "take --isolation=user-namespace";
        // What there is besides has an "or" before it, and nothing has that begins the line.
        for place in [Place::Machine, Place::Container, Place::Pod] {
            assert_eq!(remedy(Errno::NOMEM, all, place), without);
        }
        assert_eq!(
            remedy(Errno::PERM, one, Place::Pod),
            format!("securityContext.capabilities.add: [NET_ADMIN]; or {namespace}")
        );
        assert_eq!(
            remedy(Errno::PERM, none, Place::Machine),
            format!(
                "run it as root with CAP_NET_ADMIN and CAP_SYS_ADMIN; or {namespace}, if `builder doctor` says that it works; or {without}"
            )
        );
        let facts = Facts { capabilities: one, ..Facts::none() };
        let refusal = explain(&"try".into(), Errno::PERM, &facts);
        assert!(refusal.remedies.is_empty(), "nothing is known of what has no name: {refusal:?}");
    }
}
