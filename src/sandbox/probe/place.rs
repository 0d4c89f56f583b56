//! What is around this process: a pod, another container, or a machine of its own.

use std::path::Path;

use serde::Serialize;

use crate::sandbox::mount_table::is_on_overlay;

/// The file that builder's own image has, and no other: a step may have this container's root to itself without being
/// told. `Dockerfile` writes it; whoever copies `/kaniko` into another image does not get it.
const OWN_IMAGE: &str = "/.builder-image";

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
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
        Self::by(Path::new("/"), hints, Surroundings::find())
    }

    fn by(root: &Path, hints: Hints, surroundings: Surroundings) -> Self {
        let apart = surroundings == Surroundings::Apart;
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

/// What root directory and process numbers say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Surroundings {
    /// The root is an overlay, or the pid namespace another than the machine's first one.
    Apart,
    /// They are as on a machine.
    Plain,
}

impl Surroundings {
    fn find() -> Self {
        /// `PROC_PID_INIT_INO` of the kernel's linux/proc_ns.h.
        const FIRST: &str = "pid:[4026531836]";
        let namespace = rustix::fs::readlink("/proc/self/ns/pid", Vec::new());
        let another = namespace.is_ok_and(|name| name.to_bytes() != FIRST.as_bytes());
        match another || is_on_overlay(Path::new("/")) == Ok(true) {
            true => Self::Apart,
            false => Self::Plain,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Surroundings::{Apart, Plain};
    use super::*;

    #[test]
    fn signs_that_a_machine_may_have_too_are_not_enough() {
        let kubernetes = Hints { kubernetes: true, container: false };
        let container = Hints { kubernetes: false, container: true };
        for (file, hints, surroundings, place) in [
            ("", Hints::default(), Apart, Place::Machine),
            ("", kubernetes, Plain, Place::Machine),
            ("", container, Plain, Place::Machine),
            ("", kubernetes, Apart, Place::Pod),
            ("", container, Apart, Place::Container),
            (".dockerenv", Hints::default(), Plain, Place::Machine),
            (".dockerenv", Hints::default(), Apart, Place::Container),
            (".dockerenv", kubernetes, Apart, Place::Pod),
            ("run/.containerenv", Hints::default(), Apart, Place::Container),
            (".builder-image", Hints::default(), Plain, Place::Container),
            ("var/run/secrets/kubernetes.io/serviceaccount", Hints::default(), Apart, Place::Pod),
        ] {
            let root = tempfile::tempdir().unwrap();
            if !file.is_empty() {
                std::fs::create_dir_all(root.path().join(file)).unwrap();
            }
            assert_eq!(
                Place::by(root.path(), hints, surroundings),
                place,
                "{file} {hints:?} {surroundings:?}"
            );
        }
    }
}
