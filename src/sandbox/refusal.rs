//! Why the kernel refuses namespaces, and what to do about it.

use std::fs;

use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

use super::mount_table::MountTable;
use super::own;
use crate::rootfs::IdMap;

/// What the machine says about namespaces; each is unknown where the kernel has no such thing.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    /// `user.max_user_namespaces`.
    pub(super) limit: Option<u64>,
    /// `kernel.unprivileged_userns_clone`, a switch of Debian's and other kernels.
    pub(super) clone: Option<u64>,
    /// `kernel.apparmor_restrict_unprivileged_userns`, Ubuntu's switch.
    pub(super) apparmor: Option<u64>,
    /// Whether the root directory is certainly none of a mount.
    pub(super) in_chroot: bool,
    /// Whether a filter of system calls is in force.
    pub(super) filtered: bool,
    /// Whether the caller's own id is missing in the namespace it is in.
    pub(super) unmapped: bool,
    /// The AppArmor profile or the security context that confines the process.
    pub(super) confined: Option<String>,
    /// Whether there are users of the machine that do not exist here.
    pub(super) in_user_namespace: bool,
    /// Whether parts of /proc are covered, which makes the kernel refuse a new one in a user namespace.
    pub(super) hidden_proc: bool,
    /// Who the process is.
    pub(super) uid: u32,
    /// What the process may do; of one that is not root, what it might if it were.
    pub(super) capabilities: CapabilitySet,
}

impl Facts {
    pub(super) fn read() -> Self {
        let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse().ok();
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
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
            filtered: status.lines().any(|line| line.split_whitespace().eq(["Seccomp:", "2"])),
            unmapped: ids.as_ref().is_ok_and(|ids| !ids.users().contain(uid) || !ids.groups().contain(gid)),
            confined: confined(),
            hidden_proc: MountTable::current().is_ok_and(|mounts| hides_proc(&mounts)),
            in_user_namespace: ids.is_ok_and(|ids| !ids.is_whole()),
            uid,
            capabilities: if uid == 0 { own::capabilities() } else { bounding_set() },
        }
    }

    /// Whether what confines the process is a label of SELinux, which has three colons or more, and no name of AppArmor.
    pub(super) fn is_label(&self) -> bool {
        self.confined.as_ref().is_some_and(|profile| profile.matches(':').count() >= 3)
    }

    /// Whether what namespaces allow is not limited by anything else here.
    pub(super) fn are_clear(&self) -> bool {
        !(self.filtered || self.in_chroot || self.in_user_namespace || self.hidden_proc)
            && self.confined.is_none()
    }

    /// A machine with nothing in the way, and a process that may do nothing.
    #[cfg(test)]
    pub(super) fn none() -> Self {
        Self {
            limit: None,
            clone: None,
            apparmor: None,
            in_chroot: false,
            filtered: false,
            unmapped: false,
            confined: None,
            in_user_namespace: false,
            hidden_proc: false,
            uid: 0,
            capabilities: CapabilitySet::empty(),
        }
    }
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

/// What keeps a process from having namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Culprit {
    /// `user.max_user_namespaces`, or that of a namespace around this one.
    Limit,
    /// `kernel.unprivileged_userns_clone`.
    Switch,
    /// The process is in a chroot.
    Chroot,
    /// Ubuntu's AppArmor.
    Ubuntu,
    /// The caller is nobody in its own namespace.
    Unmapped,
    /// A filter of system calls.
    Filter,
    /// The kernel has none.
    Kernel,
    /// Nobody knows.
    Unknown,
}

impl Culprit {
    /// Who it was that said `errno`.
    pub(super) fn of(errno: Errno, facts: &Facts) -> Self {
        match (errno, facts) {
            (Errno::NOSPC | Errno::USERS, _) => Self::Limit,
            // What some filters say to calls that they have not heard of.
            (Errno::NOSYS, Facts { filtered: true, .. }) => Self::Filter,
            (Errno::NOSYS | Errno::INVAL, _) => Self::Kernel,
            (Errno::PERM | Errno::ACCESS, Facts { clone: Some(0), .. }) => Self::Switch,
            (Errno::PERM | Errno::ACCESS, Facts { in_chroot: true, .. }) => Self::Chroot,
            (Errno::PERM | Errno::ACCESS, Facts { apparmor: Some(1..), .. }) => Self::Ubuntu,
            (Errno::PERM | Errno::ACCESS, Facts { unmapped: true, .. }) => Self::Unmapped,
            (Errno::PERM | Errno::ACCESS, Facts { filtered: true, .. }) => Self::Filter,
            _ => Self::Unknown,
        }
    }
}

/// Cause and remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) cause: String,
    pub(super) remedy: String,
}

/// What every refusal has in common: there is another way.
const AS_ROOT: &str = "run the build as root";

/// Explains why unshare(2) failed with `errno`.
pub(super) fn explain(errno: Errno) -> Refusal {
    explain_by(errno, &Facts::read())
}

/// [`explain`] where the facts are known.
pub(super) fn explain_by(errno: Errno, facts: &Facts) -> Refusal {
    let sysctl = |name: &str, is: u64, wanted: u64| Refusal {
        cause: format!("`{name}` is {is}"),
        remedy: format!("as root: sysctl -w {name}={wanted}; or {AS_ROOT}"),
    };
    let words = errno_words(errno);
    match Culprit::of(errno, facts) {
        Culprit::Limit if facts.limit == Some(0) => sysctl("user.max_user_namespaces", 0, 15_000),
        Culprit::Limit => {
            let limit = facts.limit.map(|limit| format!(" of {limit}")).unwrap_or_default();
            Refusal {
                cause: format!(
                    "the limit `user.max_user_namespaces`{limit}, or one of a namespace around this one, is reached"
                ),
                remedy: format!("as root: sysctl -w user.max_user_namespaces=NUMBER; or {AS_ROOT}"),
            }
        }
        Culprit::Switch => sysctl("kernel.unprivileged_userns_clone", 0, 1),
        Culprit::Chroot => Refusal {
            cause: "this process is in a chroot, where the kernel allows none".to_owned(),
            remedy: format!("build outside of the chroot, or {AS_ROOT}"),
        },
        Culprit::Ubuntu => Refusal {
            cause: "`kernel.apparmor_restrict_unprivileged_userns` is 1".to_owned(),
            remedy: format!(
                "give this program an AppArmor profile with `userns,`; or as root: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0; or {AS_ROOT}"
            ),
        },
        Culprit::Unmapped => Refusal {
            cause: "the caller's own user or group id does not exist in the user namespace around it"
                .to_owned(),
            remedy: "start it with ids that /proc/self/uid_map and /proc/self/gid_map have".to_owned(),
        },
        Culprit::Filter => Refusal {
            cause: format!("a seccomp filter is in force, which seems to forbid it ({words})"),
            remedy: format!(
                "let the container's seccomp profile allow unshare(2) and mount(2), or {AS_ROOT} with CAP_SYS_ADMIN"
            ),
        },
        Culprit::Kernel => Refusal {
            cause: format!("the kernel has none ({words})"),
            remedy: format!("take a kernel with CONFIG_USER_NS, or {AS_ROOT}"),
        },
        Culprit::Unknown if matches!(errno, Errno::PERM | Errno::ACCESS) => Refusal {
            cause: words,
            remedy: format!(
                "a chroot, a container or a security module may be why; {AS_ROOT}, with CAP_SYS_ADMIN"
            ),
        },
        Culprit::Unknown => Refusal { cause: words, remedy: AS_ROOT.to_owned() },
    }
}

pub(super) fn errno_words(errno: Errno) -> String {
    std::io::Error::from(errno).to_string()
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

    #[test]
    fn the_cause_is_named_with_what_to_do() {
        let facts = Facts { limit: Some(1000), ..Facts::none() };
        let cases = [
            (
                Errno::NOSPC,
                Facts { limit: Some(0), ..facts.clone() },
                "`user.max_user_namespaces` is 0",
                "sysctl -w user.max_user_namespaces=15000",
            ),
            (
                Errno::NOSPC,
                facts.clone(),
                "the limit `user.max_user_namespaces` of 1000, or one of",
                "=NUMBER",
            ),
            (
                Errno::PERM,
                Facts { clone: Some(0), in_chroot: true, apparmor: Some(1), ..facts.clone() },
                "`kernel.unprivileged_userns_clone` is 0",
                "sysctl -w kernel.unprivileged_userns_clone=1",
            ),
            (Errno::PERM, Facts { in_chroot: true, ..facts.clone() }, "in a chroot", "outside of the chroot"),
            (
                Errno::ACCESS,
                Facts { clone: Some(1), apparmor: Some(1), filtered: true, ..facts.clone() },
                "`kernel.apparmor_restrict_unprivileged_userns` is 1",
                "`userns,`",
            ),
            (Errno::PERM, Facts { unmapped: true, ..facts.clone() }, "does not exist", "/proc/self/uid_map"),
            (
                Errno::PERM,
                Facts { apparmor: Some(0), filtered: true, ..facts.clone() },
                "a seccomp filter",
                "seccomp profile",
            ),
            (Errno::PERM, facts.clone(), "Operation not permitted", "run the build as root"),
            (Errno::NOSYS, Facts { filtered: true, ..facts.clone() }, "a seccomp filter", "seccomp profile"),
            (Errno::INVAL, facts.clone(), "the kernel has none", "CONFIG_USER_NS"),
            (Errno::NOMEM, facts, "Cannot allocate memory", "run the build as root"),
        ];
        for (errno, facts, cause, remedy) in cases {
            let refusal = explain_by(errno, &facts);
            assert!(refusal.cause.contains(cause), "{facts:?}: {refusal:?}");
            assert!(refusal.remedy.contains(remedy), "{facts:?}: {refusal:?}");
        }
    }
}
