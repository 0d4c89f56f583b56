//! The limits of what a repository may take: room, names, time, memory, and repositories within it.

use crate::limit::Limit;

/// The limits of one checkout. A repository is named by a Dockerfile, and its server may be anybody's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GitLimits {
    /// Bytes on disk, of files and of what git keeps for itself, holes included.
    pub bytes: Limit,
    /// Files, links and directories on disk, those that git keeps for itself included.
    pub entries: Limit,
    /// Seconds that one repository may take as a whole, with its submodules.
    pub seconds: Limit,
    /// Seconds in which nothing comes.
    pub idle: Limit,
    /// Bytes of memory of one process.
    pub memory: Limit,
    /// Submodules, at all depths together.
    pub submodules: Limit,
    /// How deep submodules may be within submodules.
    pub nesting: Limit,
}

impl GitLimits {
    /// The usual [`GitLimits::bytes`]: as those of a layer.
    pub const BYTES: Limit = Limit::new("git-bytes", 64 << 30);
    /// The usual [`GitLimits::entries`]: as those of a layer.
    pub const ENTRIES: Limit = Limit::new("git-entries", 10_000_000);
    /// The usual [`GitLimits::seconds`]: two hours.
    pub const SECONDS: Limit = Limit::new("git-seconds", 2 * 60 * 60);
    /// The usual [`GitLimits::idle`]: a server that counts the objects of a large repository says so meanwhile.
    pub const IDLE: Limit = Limit::new("git-idle-seconds", 120);
    /// The usual [`GitLimits::memory`]: enough for a million branches, and for unpacking a commit of Linux several times.
    pub const MEMORY: Limit = Limit::new("git-memory", 1 << 30);
    /// The usual [`GitLimits::submodules`].
    pub const SUBMODULES: Limit = Limit::new("git-submodules", 1000);
    /// The usual [`GitLimits::nesting`].
    pub const NESTING: Limit = Limit::new("git-submodule-nesting", 10);
}

impl Default for GitLimits {
    fn default() -> Self {
        Self {
            bytes: Self::BYTES,
            entries: Self::ENTRIES,
            seconds: Self::SECONDS,
            idle: Self::IDLE,
            memory: Self::MEMORY,
            submodules: Self::SUBMODULES,
            nesting: Self::NESTING,
        }
    }
}
