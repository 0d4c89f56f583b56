//! What is around this process: a pod, another container, or a machine of its own.

use std::path::Path;

use crate::sandbox::mount_table::is_on_overlay;

/// The file that builder's own image has, and no other: a step may have this container's root to itself without being
/// told. `Dockerfile` writes it; whoever copies `/kaniko` into another image does not get it.
pub const OWN_IMAGE: &str = "/.builder-image";

/// Where Kubernetes puts the token of a pod's service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Files that engines put into every container: Docker's and podman's.
const MARKS: [&str; 2] = ["/.dockerenv", "/run/.containerenv"];

/// What the environment says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Hints {
    /// `KUBERNETES_SERVICE_HOST` is set, as in every pod. Who works with a cluster may set it anywhere.
    pub kubernetes: bool,
    /// `container` is set, as podman, LXC and systemd-nspawn do.
    pub container: bool,
}

/// What is around this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A container of a pod.
    Pod,
    /// Another container.
    Container,
    /// No container that could be told.
    Machine,
}

impl Place {
    /// Looks for signs of a container. But for that of builder's own image they count only where the root directory or the
    /// process numbers are not those of a machine: virtual machines have been made of images, `/.dockerenv` and all.
    #[must_use]
    pub fn find(hints: Hints) -> Self {
        Self::by(Path::new("/"), hints, apart())
    }

    fn by(root: &Path, hints: Hints, apart: bool) -> Self {
        let exists = |path: &str| root.join(path.trim_start_matches('/')).exists();
        if apart && (hints.kubernetes || exists(SERVICE_ACCOUNT)) {
            return Self::Pod;
        }
        if exists(OWN_IMAGE) || apart && (hints.container || MARKS.into_iter().any(exists)) {
            return Self::Container;
        }
        Self::Machine
    }
}

/// Whether this is the root of builder's own image.
#[must_use]
pub fn is_own_image() -> bool {
    Path::new(OWN_IMAGE).exists()
}

/// Whether the root is an overlay, or the pid namespace another than the machine's first one.
fn apart() -> bool {
    /// `PROC_PID_INIT_INO` of the kernel's linux/proc_ns.h.
    const FIRST: &str = "pid:[4026531836]";
    let overlay = is_on_overlay(Path::new("/")) == Ok(true);
    let namespace = rustix::fs::readlink("/proc/self/ns/pid", Vec::new());
    overlay || namespace.is_ok_and(|name| name.to_bytes() != FIRST.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_that_a_machine_may_have_too_are_not_enough() {
        let kubernetes = Hints { kubernetes: true, container: false };
        let container = Hints { kubernetes: false, container: true };
        for (file, hints, apart, place) in [
            ("", Hints::default(), true, Place::Machine),
            ("", kubernetes, false, Place::Machine),
            ("", container, false, Place::Machine),
            ("", kubernetes, true, Place::Pod),
            ("", container, true, Place::Container),
            (".dockerenv", Hints::default(), false, Place::Machine),
            (".dockerenv", Hints::default(), true, Place::Container),
            (".dockerenv", kubernetes, true, Place::Pod),
            ("run/.containerenv", Hints::default(), true, Place::Container),
            (".builder-image", Hints::default(), false, Place::Container),
            ("var/run/secrets/kubernetes.io/serviceaccount", Hints::default(), true, Place::Pod),
        ] {
            let root = tempfile::tempdir().unwrap();
            if !file.is_empty() {
                std::fs::create_dir_all(root.path().join(file)).unwrap();
            }
            assert_eq!(Place::by(root.path(), hints, apart), place, "{file} {hints:?} {apart}");
        }
    }
}
