//! What is tried on the way to a step, told apart as far as a failure of it means something of its own.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What was tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Act {
    /// A user namespace is made.
    UserNamespace,
    /// The caller's own id is mapped in it.
    MapIds,
    /// A mount namespace is made, and cut off from the one around it.
    MountNamespace,
    /// A network namespace is made, and its loopback interface brought up.
    NetworkNamespace,
    /// A /proc is mounted that shows the processes of a namespace.
    NewProc,
    /// Something else is mounted, or prepared for that.
    Mount,
    /// The root of the machine is left for that of the step, by pivot_root(2) or chroot(2).
    LeaveRoot,
    /// The root is changed by chroot(2) alone.
    ChangeRoot,
    /// A device is made by mknod(2).
    MakeDevice,
    /// A device that was made is opened.
    OpenDevice,
    /// The root of the container is written to.
    WriteRoot,
    /// A handler for programs of other processors is registered for a user namespace of its own.
    Handler,
    /// Anything else.
    Other,
}

impl Act {
    /// All, in the order of their numbers on the wire.
    pub(in crate::sandbox) const ALL: [Self; 13] = [
        Self::UserNamespace,
        Self::MapIds,
        Self::MountNamespace,
        Self::NetworkNamespace,
        Self::NewProc,
        Self::Mount,
        Self::LeaveRoot,
        Self::ChangeRoot,
        Self::MakeDevice,
        Self::OpenDevice,
        Self::WriteRoot,
        Self::Handler,
        Self::Other,
    ];

    /// This act in `words`, which go on from "cannot".
    pub fn named(self, words: impl Into<String>) -> Attempt {
        Attempt { act: self, words: words.into() }
    }
}

/// What was tried, and how a message names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// What is to be known of it to explain a failure.
    pub act: Act,
    /// What goes on from "cannot", for instance "mount `/proc`".
    pub words: String,
}

impl From<&str> for Attempt {
    fn from(words: &str) -> Self {
        Act::Other.named(words)
    }
}

impl From<String> for Attempt {
    fn from(words: String) -> Self {
        Act::Other.named(words)
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}
