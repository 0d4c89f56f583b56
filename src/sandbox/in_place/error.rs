//! Why a step could not run in place, or what it did to the container.

use std::io;
use std::path::PathBuf;

use crate::rootfs::GuestPath;
use crate::sandbox::Survivors;

/// Why a step could not run in the container's root, or what is wrong with that root since.
#[derive(Debug, thiserror::Error)]
pub enum InPlaceError {
    /// The container's root could not be opened.
    #[error("cannot open the container's root `{path}`")]
    Root {
        /// Where it is.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The builder's own directory could not be used.
    #[error(
        "cannot {action} `{path}`: steps that run in place need a container whose root can be written to"
    )]
    Private {
        /// What was tried.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Another builder has this container.
    #[error(
        "another builder runs steps in the root of this container, and holds `{lock}`: wait until it has ended, or give each builder a container of its own"
    )]
    Busy {
        /// Its lock.
        lock: PathBuf,
    },
    /// What is left of a step holds its lock.
    #[error(
        "`{lock}` is held by what is left of a step in this container: restart the container, or end that"
    )]
    Held {
        /// The lock.
        lock: PathBuf,
    },
    /// A step is not over: some of it lives.
    #[error(
        "a step in the root of this container is not over: {0}; wait until they have ended, or restart the container"
    )]
    Alive(Survivors),
    /// The mounts of this process could not be listed.
    #[error("cannot find out what is mounted in this container")]
    Mounts(#[source] io::Error),
    /// A system call failed.
    #[error("cannot {action} `{path}` in the container's root")]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which entry of the container's root.
        path: GuestPath,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The tree cannot be renamed into the root, or nobody could say where it is afterwards.
    #[error(
        "the files of the stage are not in the builder's own directory in the container's root: steps that run in place need them in `{trees}`"
    )]
    Elsewhere {
        /// Where they belong.
        trees: PathBuf,
    },
    /// What the step needs is the container's, not the image's.
    #[error(
        "the step uses `{path}`, but in this container `{fixed}` is not the image's: it is mounted, or the builder needs it; choose another path in the Dockerfile or in the pod"
    )]
    Covered {
        /// What the step uses.
        path: GuestPath,
        /// The mount point or the file of the builder that hides it.
        fixed: GuestPath,
    },
    /// The step has laid hands on files of the container.
    #[error("the step removed, moved or replaced what is not the image's: {}", listed(paths))]
    Damaged {
        /// Which, by their places in the container.
        paths: Vec<GuestPath>,
    },
    /// What was written down about an exchange cannot be read.
    #[error(
        "`{path}` cannot be read, so nobody knows which files are the container's: start a new container"
    )]
    Journal {
        /// The journal.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// There are files of the container aside, but nothing says how it came to that.
    #[error("`{path}` holds files of this container, and their journal is gone: start a new container")]
    Lost {
        /// Where they are.
        path: PathBuf,
    },
}

impl InPlaceError {
    /// Whether it came to that only because the build was cancelled.
    pub(super) fn is_interruption(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::Interrupted)
    }
}

/// The first few of `paths`.
fn listed(paths: &[GuestPath]) -> String {
    const SHOWN: usize = 5;
    let shown: Vec<String> = paths.iter().take(SHOWN).map(|path| format!("`{path}`")).collect();
    let more = paths.len().saturating_sub(SHOWN);
    if more == 0 { shown.join(", ") } else { format!("{} and {more} more", shown.join(", ")) }
}
