//! The ways to keep a step apart from what is around it.

use std::fmt;

use serde::Serialize;

/// A way to keep a step apart, strongest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// Mount, pid, ipc and uts namespaces of its own, which takes CAP_SYS_ADMIN.
    MountNamespace,
    /// The same inside a user namespace, which takes no capability.
    UserNamespace,
    /// A container of the same pod that has nothing in it and shares its process namespace.
    SecondContainer,
    /// A root directory of its own, by chroot(2), and a small /dev; no mounts.
    Chroot,
    /// The root of the container that the builder runs in, as in kaniko.
    InPlace,
}

impl Strategy {
    /// All of them, strongest first.
    pub const ALL: [Self; 5] =
        [Self::MountNamespace, Self::UserNamespace, Self::SecondContainer, Self::Chroot, Self::InPlace];

    /// Its name in flags and messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::MountNamespace => "mount-namespace",
            Self::UserNamespace => "user-namespace",
            Self::SecondContainer => "second-container",
            Self::Chroot => "chroot",
            Self::InPlace => "in-place",
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_same_in_flags_and_in_json() {
        for strategy in Strategy::ALL {
            assert_eq!(serde_json::to_value(strategy).unwrap(), strategy.name());
        }
        assert!(Strategy::ALL.is_sorted(), "strongest first");
    }
}
