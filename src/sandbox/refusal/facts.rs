//! What is known of this process and its machine that may be why something is refused.

use std::fs;

use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags};
use rustix::thread::CapabilitySet;

use crate::rootfs::IdMap;
use crate::sandbox::mount_table::MountTable;
use crate::sandbox::own;

/// What the machine says about namespaces; each is unknown where the kernel has no such thing.
#[derive(Debug, Clone)]
pub(in crate::sandbox) struct Facts {
    /// `user.max_user_namespaces`.
    pub(in crate::sandbox) limit: Option<u64>,
    /// `kernel.unprivileged_userns_clone`, a switch of Debian's and other kernels.
    pub(in crate::sandbox) clone: Option<u64>,
    /// `kernel.apparmor_restrict_unprivileged_userns`, Ubuntu's switch.
    pub(in crate::sandbox) apparmor: Option<u64>,
    /// Whether the root directory is certainly none of a mount.
    pub(in crate::sandbox) in_chroot: bool,
    /// Whether a filter of system calls is in force.
    pub(in crate::sandbox) filtered: bool,
    /// Whether no program that it starts can gain anything (no_new_privs).
    pub(in crate::sandbox) no_gain: bool,
    /// Whether the caller's own id is missing in the namespace it is in.
    pub(in crate::sandbox) unmapped: bool,
    /// The AppArmor profile or the security context that confines the process.
    pub(in crate::sandbox) confined: Option<String>,
    /// Whether there are users of the machine that do not exist here.
    pub(in crate::sandbox) in_user_namespace: bool,
    /// Whether parts of /proc are covered, which makes the kernel refuse a new one in a user namespace.
    pub(in crate::sandbox) hidden_proc: bool,
    /// Who the process is.
    pub(in crate::sandbox) uid: u32,
    /// What the process may do; of one that is not root, what it might if it were.
    pub(in crate::sandbox) capabilities: CapabilitySet,
}

impl Facts {
    pub(in crate::sandbox) fn read() -> Self {
        let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse().ok();
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let ids = IdMap::of_this_process();
        let flags = AtFlags::empty();
        let root = rustix::fs::statx(CWD, "/", flags, StatxFlags::empty());
        Self {
            limit: number("/proc/sys/user/max_user_namespaces"),
            clone: number("/proc/sys/kernel/unprivileged_userns_clone"),
            apparmor: number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
            in_chroot: root.is_ok_and(|root| {
                root.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT)
                    && !root.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
            }),
            filtered: is_filtered(),
            no_gain: status_says("NoNewPrivs:", "1"),
            unmapped: ids.as_ref().is_ok_and(|ids| !ids.users().contain(uid) || !ids.groups().contain(gid)),
            confined: confined(),
            hidden_proc: MountTable::current().is_ok_and(|mounts| hides_proc(&mounts)),
            in_user_namespace: ids.is_ok_and(|ids| !ids.is_whole()),
            uid,
            capabilities: if uid == 0 { own::capabilities() } else { bounding_set() },
        }
    }

    /// Whether what confines the process is a label of SELinux, which has three colons or more, and no name of AppArmor.
    pub(in crate::sandbox) fn is_label(&self) -> bool {
        self.confined.as_ref().is_some_and(|profile| profile.matches(':').count() >= 3)
    }

    /// Whether what namespaces allow is not limited by anything else here.
    pub(in crate::sandbox) fn are_clear(&self) -> bool {
        !(self.filtered || self.in_chroot || self.in_user_namespace || self.hidden_proc)
            && self.confined.is_none()
    }

    /// A machine with nothing in the way, and a process that may do nothing.
    #[cfg(test)]
    pub(in crate::sandbox) fn none() -> Self {
        Self {
            limit: None,
            clone: None,
            apparmor: None,
            in_chroot: false,
            filtered: false,
            no_gain: false,
            unmapped: false,
            confined: None,
            in_user_namespace: false,
            hidden_proc: false,
            uid: 0,
            capabilities: CapabilitySet::empty(),
        }
    }
}

/// Whether a filter of system calls is in force for this process.
pub(in crate::sandbox) fn is_filtered() -> bool {
    status_says("Seccomp:", "2")
}

fn status_says(name: &str, value: &str) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().any(|line| line.split_whitespace().eq([name, value]))
}

/// What this process, or what it starts, can ever be allowed to do.
fn bounding_set() -> CapabilitySet {
    let all = CapabilitySet::all().iter_names().map(|(_, one)| one);
    all.filter(|one| rustix::thread::capability_is_in_bounding_set(*one) == Ok(true)).collect()
}

/// Whether one of the `mounts` covers a part of /proc. The directory that is there for binfmt_misc alone hides nothing.
fn hides_proc(mounts: &MountTable) -> bool {
    mounts.points().any(|point| point.starts_with(b"/proc/") && point != b"/proc/sys/fs/binfmt_misc")
}

/// What a security module says of this process; none where there is none, or it lets everything pass.
fn confined() -> Option<String> {
    let files = ["/proc/self/attr/apparmor/current", "/proc/self/attr/current"];
    let text = files.into_iter().find_map(|file| fs::read_to_string(file).ok())?;
    let text = text.trim_end_matches(['\n', '\0']);
    (!text.is_empty() && text != "unconfined").then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mounted_over_a_part_of_proc_hides_it() {
        let proc = "22 1 0:21 / /proc rw - proc proc rw\n";
        for (line, hides) in [
            ("", false),
            ("30 22 0:30 / /proc/sys/fs/binfmt_misc rw - binfmt_misc none rw\n", false),
            ("31 22 0:31 / /proc/acpi ro - tmpfs tmpfs ro\n", true),
            ("32 1 0:32 / /process rw - tmpfs tmpfs rw\n", false),
        ] {
            let mounts = MountTable::parse(format!("{proc}{line}").as_bytes());
            assert_eq!(hides_proc(&mounts), hides, "{line}");
        }
    }
}
