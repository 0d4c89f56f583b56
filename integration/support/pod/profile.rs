//! What Kubernetes gives a container, by what its pod asks for.

/// Capabilities that containerd gives (containerd, `pkg/oci/spec.go`, `defaultUnixCaps`).
const CONTAINERD: &[&str] = &[
    "CHOWN",
    "DAC_OVERRIDE",
    "FSETID",
    "FOWNER",
    "MKNOD",
    "NET_RAW",
    "SETGID",
    "SETUID",
    "SETFCAP",
    "SETPCAP",
    "NET_BIND_SERVICE",
    "SYS_CHROOT",
    "KILL",
    "AUDIT_WRITE",
];

/// Capabilities that CRI-O gives (CRI-O, `internal/config/capabilities`).
const CRIO: &[&str] =
    &["CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "SETGID", "SETUID", "SETPCAP", "NET_BIND_SERVICE", "KILL"];

/// All capabilities by number (capabilities(7)), as a privileged container has them.
const ALL: &[&str] = &[
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// A kind of pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Profile {
    /// containerd, no securityContext: no seccomp filter, which is the kubelet's default.
    Unset,
    /// containerd with `seccompProfile: RuntimeDefault`, or a kubelet with `seccompDefault: true`.
    Default,
    /// CRI-O's nine capabilities and its RuntimeDefault filter.
    Crio,
    /// The Pod Security Standard `restricted`: not root, no capabilities, no_new_privs, RuntimeDefault.
    Restricted,
    /// The same with `hostUsers: false`, where root is allowed from policy 1.35 on.
    RestrictedUserns,
    /// As BuildKit's rootless manifests: user 1000, seccomp and AppArmor Unconfined.
    Rootless,
    /// `hostUsers: false`, RuntimeDefault.
    HostusersFalse,
    /// `hostUsers: false`, no seccomp filter.
    HostusersFalseUnset,
    /// `hostUsers: false`, `procMount: Unmasked`, no seccomp filter (allowed by `baseline` from policy 1.35 on).
    HostusersFalseUnmasked,
    /// `hostUsers: false`, `procMount: Unmasked`, CAP_SYS_ADMIN added, RuntimeDefault.
    HostusersFalseSysadmin,
    /// `hostUsers: false` and `privileged: true`, as BuildKit's userns manifests.
    HostusersFalsePrivileged,
    /// CAP_SYS_ADMIN added, RuntimeDefault.
    Sysadmin,
    /// `privileged: true`.
    Privileged,
}

/// Which filter for system calls there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Filter {
    /// None.
    Unconfined,
    /// containerd's RuntimeDefault.
    Containerd,
    /// CRI-O's RuntimeDefault.
    Crio,
}

/// Whose ids the container has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Users {
    /// The node's.
    Host,
    /// 65,536 of its own, as with `hostUsers: false`.
    Own,
}

/// What is hidden of /proc and /sys, which paths are read-only and which devices there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Machine {
    /// The kubelet's masks; a handful of devices.
    Masked,
    /// `procMount: Unmasked`; a handful of devices.
    Unmasked,
    /// Nothing is hidden, every device may be used.
    Privileged,
}

/// What a profile comes down to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Confinement {
    /// Without `CAP_`. Who is not root has none of them in force: a CRI clears ambient capabilities.
    pub(super) capabilities: &'static [&'static str],
    /// One more capability.
    pub(super) added: Option<&'static str>,
    /// One that is taken away again.
    pub(super) dropped: Option<&'static str>,
    pub(super) filter: Filter,
    pub(super) user: u32,
    pub(super) users: Users,
    pub(super) machine: Machine,
    /// `allowPrivilegeEscalation: false`.
    pub(super) no_new_privileges: bool,
}

/// containerd's, without a securityContext.
const UNSET: Confinement = Confinement {
    capabilities: CONTAINERD,
    added: None,
    dropped: None,
    filter: Filter::Unconfined,
    user: 0,
    users: Users::Host,
    machine: Machine::Masked,
    no_new_privileges: false,
};

const DEFAULT: Confinement = Confinement { filter: Filter::Containerd, ..UNSET };

impl Profile {
    pub(crate) const ALL: [Self; 13] = [
        Self::Unset,
        Self::Default,
        Self::Crio,
        Self::Restricted,
        Self::RestrictedUserns,
        Self::Rootless,
        Self::HostusersFalse,
        Self::HostusersFalseUnset,
        Self::HostusersFalseUnmasked,
        Self::HostusersFalseSysadmin,
        Self::HostusersFalsePrivileged,
        Self::Sysadmin,
        Self::Privileged,
    ];

    pub(super) fn confinement(self) -> Confinement {
        match self {
            Self::Unset => UNSET,
            Self::Default => DEFAULT,
            Self::Crio => Confinement { capabilities: CRIO, filter: Filter::Crio, ..UNSET },
            Self::Restricted => {
                Confinement { capabilities: &[], user: 1000, no_new_privileges: true, ..DEFAULT }
            }
            Self::RestrictedUserns => {
                Confinement { capabilities: &[], users: Users::Own, no_new_privileges: true, ..DEFAULT }
            }
            Self::Rootless => Confinement { user: 1000, ..UNSET },
            Self::HostusersFalse => Confinement { users: Users::Own, ..DEFAULT },
            Self::HostusersFalseUnset => Confinement { users: Users::Own, ..UNSET },
            Self::HostusersFalseUnmasked => {
                Confinement { users: Users::Own, machine: Machine::Unmasked, ..UNSET }
            }
            Self::HostusersFalseSysadmin => Confinement {
                added: Some("SYS_ADMIN"),
                users: Users::Own,
                machine: Machine::Unmasked,
                ..DEFAULT
            },
            Self::HostusersFalsePrivileged => {
                Confinement { users: Users::Own, ..Self::Privileged.confinement() }
            }
            Self::Sysadmin => Confinement { added: Some("SYS_ADMIN"), ..DEFAULT },
            Self::Privileged => Confinement { capabilities: ALL, machine: Machine::Privileged, ..UNSET },
        }
    }
}

impl Confinement {
    /// The capabilities that a program may get at all, without `CAP_`. What the machine itself lacks cannot be given, but
    /// for a user namespace, where all are there.
    pub(super) fn bounding(&self) -> Vec<&'static str> {
        let machine = machine_capabilities();
        let number = |name: &str| {
            ALL.iter().position(|one| *one == name).unwrap_or_else(|| panic!("capability {name}"))
        };
        let given = self.capabilities.iter().copied().chain(self.added);
        let given = given.filter(|name| Some(*name) != self.dropped);
        given.filter(|name| self.users == Users::Own || machine >> number(name) & 1 == 1).collect()
    }

    /// Those that the program has from the beginning.
    pub(super) fn effective(&self) -> Vec<&'static str> {
        if self.user == 0 { self.bounding() } else { Vec::new() }
    }
}

/// One bit for each capability that a process of this machine can have.
fn machine_capabilities() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc/self/status");
    let set = status.lines().find_map(|line| line.strip_prefix("CapBnd:")).expect("bounding set");
    u64::from_str_radix(set.trim(), 16).expect("a set of capabilities")
}
