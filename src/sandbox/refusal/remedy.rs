//! What to do about a refusal, in the words of the place: fields of a pod's manifest, options of a container's engine, or
//! what somebody who has a machine can do.

use rustix::thread::CapabilitySet;

use super::Refusal;
use crate::sandbox::allowed::NEEDED;
use crate::sandbox::probe::Place;

/// One thing that takes away what is in the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::sandbox) enum Remedy {
    /// The process is root.
    Root,
    /// It has these capabilities, too.
    Capabilities(CapabilitySet),
    /// What it starts may gain something. The API server refuses CAP_SYS_ADMIN without.
    Escalation,
    /// No filter of system calls.
    NoFilter,
    /// No profile of AppArmor.
    NoProfile,
    /// The users of the machine.
    HostUsers,
    /// A root file system that can be written to.
    WritableRoot,
    /// What root does on the machine: the node, where this is a pod.
    Machine(String),
    /// What is the same everywhere.
    Words(String),
    /// What makes up for all of the others.
    Otherwise(String),
}

impl Remedy {
    /// Whether it is a setting of whatever started the process.
    pub(in crate::sandbox) fn is_setting(&self) -> bool {
        !matches!(self, Self::Machine(_) | Self::Words(_) | Self::Otherwise(_))
    }

    /// The field of a pod's manifest, with its value.
    fn field(&self) -> Option<String> {
        Some(match self {
            Self::Root => "securityContext.runAsUser: 0".to_owned(),
            Self::Escalation => "securityContext.allowPrivilegeEscalation: true".to_owned(),
            Self::Capabilities(set) => {
                format!("securityContext.capabilities.add: [{}]", names(*set, "").join(", "))
            }
            Self::NoFilter => "securityContext.seccompProfile: {type: Unconfined}".to_owned(),
            Self::NoProfile => "securityContext.appArmorProfile: {type: Unconfined}".to_owned(),
            Self::HostUsers => "spec.hostUsers: true".to_owned(),
            Self::WritableRoot => "securityContext.readOnlyRootFilesystem: false".to_owned(),
            Self::Machine(_) | Self::Words(_) | Self::Otherwise(_) => return None,
        })
    }

    /// The option of an engine (docker, podman) that starts the container.
    fn option(&self) -> Option<String> {
        Some(match self {
            Self::Root => "--user 0".to_owned(),
            Self::Escalation => "--security-opt no-new-privileges=false".to_owned(),
            Self::Capabilities(set) => names(*set, "--cap-add ").join(" "),
            Self::NoFilter => "--security-opt seccomp=unconfined".to_owned(),
            Self::NoProfile => "--security-opt apparmor=unconfined".to_owned(),
            Self::HostUsers => "--userns host".to_owned(),
            Self::WritableRoot => "--read-only=false".to_owned(),
            Self::Machine(_) | Self::Words(_) | Self::Otherwise(_) => return None,
        })
    }

    /// What to do where nothing started a container.
    fn action(&self) -> Option<String> {
        Some(match self {
            Self::Root => "run it as root".to_owned(),
            Self::Escalation => "run it without no_new_privs".to_owned(),
            Self::Capabilities(set) => {
                let usual = set.intersects(NEEDED).then(|| "its usual capabilities".to_owned());
                let others = names(set.difference(NEEDED), "CAP_");
                let all: Vec<String> = usual.into_iter().chain(others).collect();
                format!("run it as root with {}", all.join(" and "))
            }
            Self::NoFilter => "run it without that filter of system calls".to_owned(),
            Self::NoProfile => "give this program a profile that allows it".to_owned(),
            Self::HostUsers => "run it outside of the user namespace".to_owned(),
            Self::WritableRoot => "mount the root for writing".to_owned(),
            Self::Machine(_) | Self::Words(_) | Self::Otherwise(_) => return None,
        })
    }

    fn words(&self, place: Place) -> Option<String> {
        match (self, place) {
            (Self::Words(words), _) | (Self::Machine(words), Place::Machine) => Some(words.clone()),
            (Self::Machine(words), Place::Pod) => Some(format!("on the node, {words}")),
            (Self::Machine(words), Place::Container) => Some(format!("on the machine, {words}")),
            _ => None,
        }
    }
}

pub(in crate::sandbox) fn names(set: CapabilitySet, before: &str) -> Vec<String> {
    set.iter_names().map(|(name, _)| format!("{before}{name}")).collect()
}

/// Why something cannot be had, and what would make it possible, in the words of a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// Why, in a few words.
    pub cause: String,
    /// What to set in the pod's manifest, each a path and a value in YAML; a path that begins with `securityContext` is
    /// that of the container. Empty outside of pods, and where nothing in a manifest would help.
    pub manifest: Vec<String>,
    /// What else to do, or, if it begins with "or", instead of `manifest`; absent where that says all, or nothing helps.
    pub advice: Option<String>,
}

impl Explanation {
    /// What to do, in one line.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        let settings = (!self.manifest.is_empty()).then(|| self.manifest.join(" and "));
        let parts: Vec<String> = settings.into_iter().chain(self.advice.clone()).collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

impl Refusal {
    /// The same in the words of `place`.
    #[must_use]
    pub fn at(&self, place: Place) -> Explanation {
        let mut explanation = Explanation { cause: self.cause.clone(), manifest: Vec::new(), advice: None };
        let remedies = self.remedies.iter();
        let mut advice: Vec<String> = Vec::new();
        match place {
            Place::Pod => {
                explanation.manifest.extend(remedies.clone().filter_map(Remedy::field));
                // Who keeps a pod from running as root keeps it from being started then.
                if let Some(root) = self.remedies.iter().position(|one| *one == Remedy::Root) {
                    let field = "securityContext.runAsNonRoot: false".to_owned();
                    explanation.manifest.insert((root + 1).min(explanation.manifest.len()), field);
                }
            }
            Place::Container => {
                let options: Vec<String> = remedies.clone().filter_map(Remedy::option).collect();
                if !options.is_empty() {
                    advice.push(format!("start the container with {}", options.join(" ")));
                }
            }
            Place::Machine => {
                let others = self.remedies.iter().any(|one| matches!(one, Remedy::Capabilities(_)));
                // Whoever is to have capabilities is to be root.
                let actions = remedies.clone().filter(|one| !(others && **one == Remedy::Root));
                advice.extend(actions.filter_map(Remedy::action));
            }
        }
        advice.extend(remedies.clone().filter_map(|remedy| remedy.words(place)));
        for remedy in remedies {
            if let Remedy::Otherwise(words) = remedy {
                let first = advice.is_empty() && explanation.manifest.is_empty();
                advice.push(if first { words.clone() } else { format!("or {words}") });
            }
        }
        explanation.advice = (!advice.is_empty()).then(|| advice.join("; "));
        explanation
    }

    /// With `remedy`, too; capabilities join those that are there.
    pub(in crate::sandbox) fn and(mut self, remedy: Remedy) -> Self {
        for known in &mut self.remedies {
            match (known, &remedy) {
                (Remedy::Capabilities(some), Remedy::Capabilities(others)) => {
                    *some = some.union(*others);
                    return self;
                }
                (known, remedy) if *known == *remedy => return self,
                _ => {}
            }
        }
        self.remedies.push(remedy);
        self
    }
}
