//! What a step finds around it, as far as its result may depend on that.

use crate::rootfs::GuestPath;

/// What a step finds besides the files of its image. Where steps find different things the same command may do something
/// else, and say that it went well: without `/proc` a configure script or a package's own script goes another way, what is
/// mounted read-only can be written to, and in the root of a container another file lies at the place of each mount. So
/// their results are not taken for each other's.
///
/// What the container's mounts hold does not count: whoever changes a volume would do every step again.
///
/// What else differs from place to place (capabilities of a pod, its seccomp filter, its kernel) fails loudly where it is
/// missing, and nothing that failed is remembered.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum View {
    /// Mounts, processes and a host name of its own.
    Own,
    /// Mounts and a host name of its own, but the processes of the container that the builder runs in.
    SharedProcesses,
    /// No `/proc` and `/sys`, copies in place of mounts, the host name of the container.
    WithoutMounts,
    /// The same, with all that is mounted in the container, its `/proc` and `/sys` among it.
    Container {
        /// Where more is mounted than in every container, sorted; none lies below another.
        mounts: Vec<GuestPath>,
    },
}
