//! Filters for system calls as container runtimes set them by default, made from containers-common's.
//!
//! `seccomp.json` of containers-common (Debian: golang-github-containers-common) is CRI-O's but for three calls. containerd's is
//! stricter: what it does not have is taken out, and what it gives for a capability is given for that.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::{Value, json};

use super::profile::Filter;

/// Where Debian keeps it.
pub(super) const FILE: &str = "/usr/share/containers/seccomp.json";

/// Each flag of clone(2) that makes a namespace: NEWNS NEWCGROUP NEWUTS NEWIPC NEWUSER NEWPID NEWNET.
const NAMESPACES: [u64; 7] =
    [0x2_0000, 0x200_0000, 0x400_0000, 0x800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000];

/// What AppArmor's `deny mount` of containerd's default profile refuses, with EACCES.
const MOUNTS: [&str; 5] = ["mount", "move_mount", "mount_setattr", "fsmount", "pivot_root"];

/// containers-common allows these to everybody, containerd not.
const NOT_CONTAINERD: &str = "clone clone3 fsconfig fsmount fsopen fspick get_mempolicy keyctl mbind mount
    mount_setattr move_mount open_tree pidfd_getfd pivot_root reboot set_mempolicy setns syslog umount umount2 unshare
    add_key request_key readdir sigaction signal sigpending sigsuspend timerfd";

/// containerd allows these for a capability.
const GATED: [(&str, &str); 14] = [
    (
        "SYS_ADMIN",
        "bpf clone clone3 fanotify_init fsconfig fsmount fsopen fspick lookup_dcookie mount mount_setattr move_mount
         open_tree perf_event_open quotactl quotactl_fd setdomainname sethostname setns syslog umount umount2 unshare",
    ),
    ("SYS_CHROOT", "chroot"),
    ("DAC_READ_SEARCH", "open_by_handle_at"),
    ("SYS_BOOT", "reboot"),
    ("SYS_MODULE", "delete_module init_module finit_module"),
    ("SYS_PACCT", "acct"),
    ("SYS_PTRACE", "kcmp pidfd_getfd process_madvise"),
    ("SYS_RAWIO", "iopl ioperm"),
    ("SYS_TIME", "settimeofday stime clock_settime clock_settime64"),
    ("SYS_TTY_CONFIG", "vhangup"),
    ("SYS_NICE", "get_mempolicy mbind set_mempolicy set_mempolicy_home_node"),
    ("SYSLOG", "syslog"),
    ("BPF", "bpf"),
    ("PERFMON", "perf_event_open"),
];

/// containerd knows these, containers-common 0.50 not yet.
const NEWER: &str = "cachestat fchmodat2 futex_requeue futex_wait futex_waitv futex_wake getxattrat listmount
    listxattrat map_shadow_stack mseal removexattrat setxattrat statmount landlock_create_ruleset landlock_add_rule
    landlock_restrict_self openat2 faccessat2 close_range epoll_pwait2 memfd_secret process_mrelease pidfd_open
    pidfd_send_signal io_pgetevents vmsplice ptrace process_vm_readv process_vm_writev";

/// Whether a node's AppArmor profile refuses mounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mounts {
    Allowed,
    Refused,
}

/// `linux.seccomp` of an OCI runtime's configuration, if there is to be a filter.
pub(super) fn filter(filter: Filter, capabilities: &[&str], mounts: Mounts) -> Option<Value> {
    let (default_action, default_errno, mut rules) = match filter {
        Filter::Unconfined if mounts == Mounts::Allowed => return None,
        Filter::Unconfined => ("SCMP_ACT_ALLOW", None, Rules::default()),
        // containerd's default is EPERM; the file's, and so CRI-O's, ENOSYS.
        Filter::Containerd => ("SCMP_ACT_ERRNO", Some(1), containerd(capabilities)),
        Filter::Crio => ("SCMP_ACT_ERRNO", Some(38), crio(capabilities)),
    };
    if filter != Filter::Unconfined {
        rules.gate_namespaces(filter, capabilities.contains(&"SYS_ADMIN"));
    }
    if mounts == Mounts::Refused {
        rules.forbid(MOUNTS);
        rules.others.push(json!({"names": MOUNTS, "action": "SCMP_ACT_ERRNO", "errnoRet": 13}));
    }
    let architectures = match std::env::consts::ARCH {
        "x86_64" => json!(["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"]),
        "aarch64" => json!(["SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM"]),
        _ => json!([]),
    };
    // In this order: libseccomp takes a rule for some arguments after one for all, but not before.
    let mut syscalls = Vec::new();
    if !rules.allowed.is_empty() {
        syscalls.push(json!({"names": rules.allowed, "action": "SCMP_ACT_ALLOW"}));
    }
    syscalls.extend(rules.others);
    let mut filter =
        json!({"defaultAction": default_action, "architectures": architectures, "syscalls": syscalls});
    if let Some(errno) = default_errno {
        filter["defaultErrnoRet"] = json!(errno);
    }
    Some(filter)
}

#[derive(Default)]
struct Rules {
    /// Allowed whatever the arguments are.
    allowed: BTreeSet<String>,
    others: Vec<Value>,
}

impl Rules {
    fn allow<'a>(&mut self, names: impl IntoIterator<Item = &'a str>) {
        self.allowed.extend(names.into_iter().map(str::to_owned));
    }

    fn forbid<'a>(&mut self, names: impl IntoIterator<Item = &'a str>) {
        for name in names {
            self.allowed.remove(name);
        }
    }

    /// New namespaces are for CAP_SYS_ADMIN. The flags of clone3(2) are in memory, where no filter can see them.
    fn gate_namespaces(&mut self, filter: Filter, administrator: bool) {
        if administrator {
            return self.allow(["clone", "clone3", "unshare"]);
        }
        let all: u64 = NAMESPACES.iter().sum();
        self.others.push(json!({"names": ["clone"], "action": "SCMP_ACT_ALLOW",
            "args": [{"index": 0, "value": all, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}]}));
        self.others.push(json!({"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38}));
        if filter == Filter::Crio {
            for flag in NAMESPACES {
                self.others.push(json!({"names": ["clone"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1,
                    "args": [{"index": 0, "value": flag, "valueTwo": flag, "op": "SCMP_CMP_MASKED_EQ"}]}));
            }
        }
    }
}

fn crio(capabilities: &[&str]) -> Rules {
    let mut rules = Rules::default();
    for rule in read().into_iter().filter(|rule| rule.is_for(capabilities)) {
        if rule.is_plain() {
            rules.allow(rule.names());
        } else {
            rules.others.push(rule.for_runtime());
        }
    }
    rules.forbid(["clone", "clone3", "unshare"]);
    rules
}

fn containerd(capabilities: &[&str]) -> Rules {
    let mut rules = Rules::default();
    for rule in read().into_iter().filter(|rule| !rule.depends_on_capabilities()) {
        if rule.is_plain() {
            rules.allow(rule.names());
        } else if rule.names().eq(["personality"]) {
            rules.others.push(rule.for_runtime());
        }
    }
    rules.forbid(NOT_CONTAINERD.split_whitespace().chain(["socket"]));
    rules.allow(NEWER.split_whitespace());
    // All address families but AF_ALG, which is 38, and AF_VSOCK, which is 40.
    for (family, comparison) in [(38, "SCMP_CMP_LT"), (39, "SCMP_CMP_EQ"), (40, "SCMP_CMP_GT")] {
        rules.others.push(json!({"names": ["socket"], "action": "SCMP_ACT_ALLOW",
            "args": [{"index": 0, "value": family, "valueTwo": 0, "op": comparison}]}));
    }
    for (_, names) in GATED {
        rules.forbid(names.split_whitespace());
    }
    for (_, names) in GATED.into_iter().filter(|(capability, _)| capabilities.contains(capability)) {
        rules.allow(names.split_whitespace());
    }
    rules
}

/// A rule of the file.
struct Rule(Value);

impl Rule {
    fn names(&self) -> impl Iterator<Item = &str> {
        self.0["names"].as_array().into_iter().flatten().filter_map(Value::as_str)
    }

    /// Whether it allows calls, whatever their arguments are.
    fn is_plain(&self) -> bool {
        self.0["action"] == "SCMP_ACT_ALLOW" && self.0["args"].as_array().is_none_or(Vec::is_empty)
    }

    /// Without what decides whether it is one of the filter's.
    fn for_runtime(&self) -> Value {
        let kept = ["names", "action", "errnoRet", "args"];
        let fields = kept.into_iter().filter(|key| !self.0[*key].is_null());
        fields.map(|key| (key.to_owned(), self.0[key].clone())).collect::<serde_json::Map<_, _>>().into()
    }

    fn depends_on_capabilities(&self) -> bool {
        ["includes", "excludes"].into_iter().any(|side| !self.0[side]["caps"].is_null())
    }

    fn is_for(&self, capabilities: &[&str]) -> bool {
        let has = |side: &str| {
            let list = self.0[side]["caps"].as_array()?;
            let has = |name: &str| name.strip_prefix("CAP_").is_some_and(|name| capabilities.contains(&name));
            Some(list.iter().filter_map(Value::as_str).any(has))
        };
        has("includes").unwrap_or(true) && !has("excludes").unwrap_or(false)
    }

    fn is_for_this_machine(&self) -> bool {
        let machine: &[&str] = match std::env::consts::ARCH {
            "x86_64" => &["amd64", "x32", "x86"],
            "aarch64" => &["arm64", "arm"],
            _ => &[],
        };
        let list = self.0["includes"]["arches"].as_array();
        list.is_none_or(|list| list.iter().filter_map(Value::as_str).any(|name| machine.contains(&name)))
    }
}

#[derive(Deserialize)]
struct File {
    syscalls: Vec<Value>,
}

fn read() -> Vec<Rule> {
    let text = std::fs::read_to_string(FILE).unwrap_or_else(|error| panic!("{FILE}: {error}"));
    let file: File = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{FILE}: {error}"));
    file.syscalls.into_iter().map(Rule).filter(Rule::is_for_this_machine).collect()
}
