//! What an obstacle means, and which setting would take it away.

use rustix::io::Errno;
use rustix::thread::CapabilitySet;

use super::super::refusal::{self, Culprit, Facts, errno_words};
use super::{Obstacle, Place};
use crate::sandbox::Strategy;
use crate::sandbox::own::Part;

/// What root has in every container, unless that is taken away, and cannot do without.
const BASIC: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::SETUID);

/// What needs chroot(2), in the words of steps.
const CHANGE_ROOT: [&str; 2] = ["change the root", "cover what lies above the root"];

/// What takes AppArmor away.
const NO_APPARMOR: &str = "securityContext.appArmorProfile: {type: Unconfined}";

/// What root needs to map all ids that it has.
const MAPPING: CapabilitySet =
    CapabilitySet::SETFCAP.union(CapabilitySet::SETGID).union(CapabilitySet::SETUID);

/// What root must be allowed for `strategy`.
fn needed(strategy: Strategy) -> CapabilitySet {
    match strategy {
        // Mounts are not all: what lies above the new root is covered by way of chroot(2).
        Strategy::MountNamespace => BASIC | CapabilitySet::SYS_ADMIN | CapabilitySet::SYS_CHROOT,
        Strategy::UserNamespace => MAPPING,
        Strategy::Chroot => BASIC | CapabilitySet::MKNOD | CapabilitySet::SYS_CHROOT,
        Strategy::SecondContainer | Strategy::InPlace => BASIC,
    }
}

/// Why a strategy cannot be had, and what would make it possible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// Why, in a few words.
    pub cause: String,
    /// What to set in the pod's manifest, each a path and a value in YAML; a path that begins with `securityContext` is
    /// that of the container. Empty outside of pods, and where nothing in a manifest would help.
    pub changes: Vec<String>,
    /// What else to do; absent where `changes` say all, or nothing helps.
    pub advice: Option<String>,
}

impl Explanation {
    /// What to do, in one line.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        let changes = (!self.changes.is_empty()).then(|| self.changes.join(" and "));
        let parts: Vec<String> = changes.into_iter().chain(self.advice.clone()).collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }

    fn new(cause: impl Into<String>) -> Self {
        Self { cause: cause.into(), changes: Vec::new(), advice: None }
    }
}

/// Explains `obstacle`, which is in the way of `strategy`, by the `facts` of the machine.
pub(super) fn explain(strategy: Strategy, obstacle: &Obstacle, place: Place, facts: &Facts) -> Explanation {
    let explain = Explain { strategy, place, facts };
    let mut explanation = match obstacle {
        Obstacle::Unfinished => Explanation::new("not in this version yet"),
        Obstacle::NotRoot { uid } => explain.not_root(*uid),
        Obstacle::NoAdministrator => explain.capability("SYS_ADMIN"),
        Obstacle::Powerless => explain.powerless(),
        Obstacle::NoContainer => Explanation {
            advice: Some("run it in a container".to_owned()),
            ..Explanation::new("this is no container: the root would be that of the machine")
        },
        Obstacle::NoExecution => {
            elsewhere("no program can be executed on the store's file system (mounted noexec)")
        }
        Obstacle::Namespace { part, errno } => explain.namespace(*part, Errno::from_raw_os_error(*errno)),
        Obstacle::Step { step, errno } => explain.step(step, Errno::from_raw_os_error(*errno)),
        Obstacle::Other { message } => Explanation::new(message.clone()),
    };
    // What comes next where mounts are to be made: AppArmor's usual profile for containers forbids them.
    let mounts = matches!(strategy, Strategy::MountNamespace | Strategy::UserNamespace);
    if mounts && !explanation.changes.is_empty() && facts.confined.is_some() && !facts.is_label() {
        let change = NO_APPARMOR.to_owned();
        if !explanation.changes.contains(&change) {
            explanation.changes.push(change);
        }
    }
    explanation
}

/// The store is in a wrong place for `cause`.
fn elsewhere(cause: &str) -> Explanation {
    Explanation {
        advice: Some("put the store on another volume (--store), in a pod an emptyDir".to_owned()),
        ..Explanation::new(cause)
    }
}

struct Explain<'a> {
    strategy: Strategy,
    place: Place,
    facts: &'a Facts,
}

impl Explain<'_> {
    /// `change` in a pod's manifest, `option` of a container's engine, or what `otherwise` says.
    fn by_place(
        &self,
        cause: String,
        change: impl Into<String>,
        option: impl Into<String>,
        otherwise: &str,
    ) -> Explanation {
        let mut explanation = Explanation::new(cause);
        match self.place {
            Place::Pod => explanation.changes.push(change.into()),
            Place::Container => {
                explanation.advice = Some(format!("start the container with {}", option.into()))
            }
            Place::Machine => explanation.advice = Some(otherwise.to_owned()),
        }
        explanation
    }

    fn not_root(&self, uid: u32) -> Explanation {
        let cause = format!("user {uid} is not root");
        let root = self.by_place(cause, "securityContext.runAsUser: 0", "--user 0", "run it as root");
        self.with_capabilities(root)
    }

    /// The process lacks `capability`, which is where it ended; it may lack others as well.
    fn capability(&self, capability: &str) -> Explanation {
        self.with_capabilities(Explanation::new(format!("no CAP_{capability}")))
    }

    fn powerless(&self) -> Explanation {
        let explanation =
            self.with_capabilities(Explanation::new("root lacks capabilities that it usually has"));
        let devices = self.strategy == Strategy::Chroot && self.facts.in_user_namespace;
        if devices { self.without_user_namespace(explanation) } else { explanation }
    }

    /// Adds to `explanation` what of the capabilities that the strategy needs is not there.
    fn with_capabilities(&self, explanation: Explanation) -> Explanation {
        self.with(explanation, needed(self.strategy))
    }

    fn with(&self, mut explanation: Explanation, needed: CapabilitySet) -> Explanation {
        let lacking = needed.difference(self.facts.capabilities);
        let names: Vec<&str> = lacking.iter_names().map(|(name, _)| name).collect();
        if names.is_empty() {
            return explanation;
        }
        match self.place {
            Place::Pod => {
                let names = names.join(", ");
                explanation.changes.push(format!("securityContext.capabilities.add: [{names}]"));
            }
            Place::Container => {
                let options: Vec<String> = names.iter().map(|name| format!("--cap-add {name}")).collect();
                let options = options.join(" ");
                explanation.advice = Some(match explanation.advice {
                    Some(advice) => format!("{advice} {options}"),
                    None => format!("start the container with {options}"),
                });
            }
            Place::Machine => {
                let basic = lacking.intersects(BASIC).then(|| "its usual capabilities".to_owned());
                let others = lacking.difference(BASIC);
                let others = others.iter_names().map(|(name, _)| format!("CAP_{name}"));
                let all: Vec<String> = basic.into_iter().chain(others).collect();
                explanation.advice = Some(format!("run it as root with {}", all.join(" and ")));
            }
        }
        explanation
    }

    fn filter(&self, call: &str) -> Explanation {
        let cause = format!("a seccomp profile forbids {call}");
        self.by_place(
            cause,
            "securityContext.seccompProfile: {type: Unconfined}",
            "--security-opt seccomp=unconfined",
            "run it without that filter of system calls",
        )
    }

    fn security_module(&self, call: &str) -> Explanation {
        let module = match &self.facts.confined {
            Some(profile) => format!("the security module's profile `{profile}`"),
            None => "a security module (AppArmor, SELinux)".to_owned(),
        };
        let mut explanation = self.by_place(
            format!("{module} forbids {call}"),
            NO_APPARMOR,
            "--security-opt apparmor=unconfined",
            "give this program a profile that allows it",
        );
        if self.facts.is_label() {
            explanation.changes.clear();
            explanation.advice = Some("have the node's SELinux policy allow it".to_owned());
        }
        explanation
    }

    fn namespace(&self, part: Part, errno: Errno) -> Explanation {
        let by_filter = Culprit::of(errno, self.facts) == Culprit::Filter;
        let has = |capability| self.facts.capabilities.contains(capability);
        match part {
            Part::Map if errno == Errno::PERM && self.facts.uid == 0 && !has(CapabilitySet::SETFCAP) => {
                let mut explanation = self.capability("SETFCAP");
                explanation.cause = "no CAP_SETFCAP, without which root cannot map ids".to_owned();
                explanation
            }
            Part::Map => Explanation::new(format!("cannot map ids: {}", errno_words(errno))),
            // Root maps ids itself, once it may.
            Part::UserNamespace if by_filter && self.facts.uid == 0 => {
                self.with_capabilities(self.filter("unshare(2)"))
            }
            Part::UserNamespace if by_filter => self.filter("unshare(2)"),
            Part::Mounts if errno == Errno::ACCESS => self.security_module("mount(2)"),
            Part::Mounts if by_filter => self.filter("unshare(2) or mount(2)"),
            Part::Mounts if errno == Errno::INVAL => Explanation {
                advice: Some("in a chroot, bind-mount its root onto itself first".to_owned()),
                ..Explanation::new("the root directory is no mount point")
            },
            Part::UserNamespace | Part::Mounts => {
                let refusal::Refusal { cause, remedy } = refusal::explain_by(errno, self.facts);
                let node = if self.place == Place::Machine { "" } else { "on the node, " };
                Explanation { advice: Some(format!("{node}{remedy}")), ..Explanation::new(cause) }
            }
        }
    }

    fn step(&self, step: &str, errno: Errno) -> Explanation {
        let cause = format!("cannot {step}: {}", errno_words(errno));
        match (self.strategy, errno) {
            (Strategy::Chroot, _) => {
                self.step_in_chroot(step, errno).unwrap_or_else(|| Explanation::new(cause))
            }
            (Strategy::InPlace, Errno::ROFS) => self.by_place(
                "the root file system can only be read".to_owned(),
                "securityContext.readOnlyRootFilesystem: false",
                "a root that can be written to",
                "",
            ),
            (Strategy::InPlace, _) => Explanation::new(cause),
            // Filters ask whether the container has it, be it in a user namespace or not.
            (_, Errno::PERM | Errno::NOSYS)
                if CHANGE_ROOT.contains(&step)
                    && !self.facts.capabilities.contains(CapabilitySet::SYS_CHROOT) =>
            {
                let explanation = Explanation::new("no CAP_SYS_CHROOT");
                self.with(explanation, needed(self.strategy) | CapabilitySet::SYS_CHROOT)
            }
            (_, Errno::ACCESS) => self.security_module(&format!("mounts (cannot {step})")),
            (_, Errno::PERM | Errno::NOSYS) if self.facts.filtered => {
                self.filter(&format!("a part of it (cannot {step})"))
            }
            _ => Explanation::new(cause),
        }
    }

    fn step_in_chroot(&self, step: &str, errno: Errno) -> Option<Explanation> {
        let lacks = |capability| !self.facts.capabilities.contains(capability);
        let about_devices = step.contains("/dev/");
        match errno {
            Errno::PERM | Errno::NOSYS if !about_devices && lacks(CapabilitySet::SYS_CHROOT) => {
                let explanation = self.capability("SYS_CHROOT");
                Some(if self.facts.in_user_namespace {
                    self.without_user_namespace(explanation)
                } else {
                    explanation
                })
            }
            Errno::PERM | Errno::NOSYS if !about_devices && self.facts.filtered => {
                Some(self.filter("chroot(2)"))
            }
            Errno::PERM if about_devices && self.facts.in_user_namespace => {
                let cause = "devices cannot be made in a user namespace";
                let other = "run it outside of the user namespace";
                Some(self.by_place(
                    cause.to_owned(),
                    "spec.hostUsers: true",
                    "the host's user namespace",
                    other,
                ))
            }
            Errno::PERM if about_devices && lacks(CapabilitySet::MKNOD) => Some(self.capability("MKNOD")),
            // A device that was made and cannot be opened.
            Errno::ACCESS if about_devices => {
                Some(elsewhere("no device can be opened on the store's file system (mounted nodev)"))
            }
            Errno::PERM if about_devices => {
                Some(Explanation::new("the container's device rules do not allow /dev/null and the like"))
            }
            _ => None,
        }
    }

    /// Adds that there must be no user namespace, in which nobody can make devices.
    fn without_user_namespace(&self, mut explanation: Explanation) -> Explanation {
        let other = self.by_place(
            String::new(),
            "spec.hostUsers: true",
            "the machine's users",
            "run it outside of the user namespace",
        );
        explanation.changes.extend(other.changes);
        explanation.advice = explanation.advice.or(other.advice);
        explanation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What root of a container has.
    const DOCKER: CapabilitySet = crate::sandbox::allowed::CAPABILITIES;

    fn facts() -> Facts {
        Facts { capabilities: DOCKER, ..Facts::none() }
    }

    fn step(step: &str, errno: Errno) -> Obstacle {
        Obstacle::Step { step: step.to_owned(), errno: errno.raw_os_error() }
    }

    fn namespace(part: Part, errno: Errno) -> Obstacle {
        Obstacle::Namespace { part, errno: errno.raw_os_error() }
    }

    #[test]
    fn in_a_pod_the_manifest_s_fields_are_named() {
        const ADMIN: &str = "securityContext.capabilities.add: [SYS_ADMIN]";
        const SECCOMP: &str = "securityContext.seccompProfile: {type: Unconfined}";
        const ROOT: &str = "securityContext.runAsUser: 0";
        use Strategy::{Chroot, InPlace, MountNamespace, UserNamespace};
        let filtered = || Facts { filtered: true, ..facts() };
        let without = |capabilities: CapabilitySet, facts: Facts| Facts {
            capabilities: facts.capabilities.difference(capabilities),
            ..facts
        };
        let crio = CapabilitySet::SYS_CHROOT | CapabilitySet::MKNOD | CapabilitySet::SETFCAP;
        let inside = || Facts { in_user_namespace: true, ..facts() };
        let profile =
            Facts { confined: Some("cri-containerd.apparmor.d (enforce)".to_owned()), ..filtered() };
        let label = "system_u:system_r:container_t:s0:c1,c2".to_owned();
        let unshare = |errno| namespace(Part::UserNamespace, errno);
        let cases: Vec<(Strategy, Obstacle, Facts, &str, &[&str])> = vec![
            (MountNamespace, Obstacle::NoAdministrator, facts(), "no CAP_SYS_ADMIN", &[ADMIN]),
            (
                MountNamespace,
                Obstacle::NotRoot { uid: 1000 },
                facts(),
                "user 1000 is not root",
                &[ROOT, ADMIN],
            ),
            (Chroot, Obstacle::NotRoot { uid: 1000 }, facts(), "user 1000 is not root", &[ROOT]),
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
                step(CHANGE_ROOT[1], Errno::PERM),
                without(CapabilitySet::SYS_CHROOT, filtered()),
                "no CAP_SYS_CHROOT",
                &["securityContext.capabilities.add: [SYS_CHROOT, SYS_ADMIN]"],
            ),
            (
                UserNamespace,
                step(CHANGE_ROOT[0], Errno::PERM),
                without(CapabilitySet::SYS_CHROOT, filtered()),
                "no CAP_SYS_CHROOT",
                &["securityContext.capabilities.add: [SYS_CHROOT]"],
            ),
            (MountNamespace, step(CHANGE_ROOT[0], Errno::PERM), filtered(), "seccomp", &[SECCOMP]),
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
                step("change the root", Errno::PERM),
                without(crio, filtered()),
                "no CAP_SYS_CHROOT",
                &["securityContext.capabilities.add: [SYS_CHROOT, MKNOD]"],
            ),
            (
                UserNamespace,
                namespace(Part::Map, Errno::PERM),
                without(crio, facts()),
                "no CAP_SETFCAP",
                &["securityContext.capabilities.add: [SETFCAP]"],
            ),
            (
                MountNamespace,
                namespace(Part::Mounts, Errno::ACCESS),
                facts(),
                "security module",
                &[NO_APPARMOR],
            ),
            (
                UserNamespace,
                step("mount `/sys`", Errno::ACCESS),
                facts(),
                "(cannot mount `/sys`)",
                &[NO_APPARMOR],
            ),
            (MountNamespace, step("mount `/sys`", Errno::PERM), filtered(), "seccomp", &[SECCOMP]),
            (
                UserNamespace,
                namespace(Part::Mounts, Errno::ACCESS),
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
                step("make `/dev/null`", Errno::PERM),
                inside(),
                "devices cannot be made in a user namespace",
                &["spec.hostUsers: true"],
            ),
            (Chroot, step("open `/dev/null`", Errno::ACCESS), facts(), "nodev", &[]),
            (Chroot, Obstacle::NoExecution, facts(), "noexec", &[]),
            (Chroot, step("change the root", Errno::PERM), filtered(), "forbids chroot(2)", &[SECCOMP]),
            (
                Chroot,
                Obstacle::Powerless,
                without(CapabilitySet::CHOWN, inside()),
                "root lacks",
                &["securityContext.capabilities.add: [CHOWN]", "spec.hostUsers: true"],
            ),
            (
                InPlace,
                step("write to the root of the container", Errno::ROFS),
                facts(),
                "can only be read",
                &["securityContext.readOnlyRootFilesystem: false"],
            ),
        ];
        for (strategy, obstacle, facts, cause, changes) in cases {
            let explanation = explain(strategy, &obstacle, Place::Pod, &facts);
            assert!(explanation.cause.contains(cause), "{obstacle:?}: {explanation:?}");
            assert_eq!(explanation.changes, changes, "{obstacle:?}: {explanation:?}");
            assert!(!changes.is_empty() || explanation.advice.is_some(), "{obstacle:?}: {explanation:?}");
        }
    }

    #[test]
    fn outside_of_pods_there_is_no_manifest() {
        let filtered = Facts { filtered: true, ..facts() };
        for (place, advice) in [
            (Place::Container, "start the container with --security-opt seccomp=unconfined"),
            (Place::Machine, "run it without that filter of system calls"),
        ] {
            let obstacle = namespace(Part::UserNamespace, Errno::PERM);
            let explanation = explain(Strategy::UserNamespace, &obstacle, place, &filtered);
            assert_eq!((explanation.changes.len(), explanation.remedy().unwrap().as_str()), (0, advice));
        }
        let root = |place| {
            explain(Strategy::MountNamespace, &Obstacle::NotRoot { uid: 5 }, place, &facts())
                .remedy()
                .unwrap()
        };
        assert_eq!(root(Place::Container), "start the container with --user 0 --cap-add SYS_ADMIN");
        assert_eq!(root(Place::Machine), "run it as root with CAP_SYS_ADMIN");
        let no_container = explain(Strategy::InPlace, &Obstacle::NoContainer, Place::Machine, &facts());
        assert!(no_container.cause.contains("no container"), "{no_container:?}");
    }
}
