//! Which system calls a step may make.
//!
//! The rules are those of Docker, as of moby/profiles 02e898b (`seccomp/default_linux.go`); containerd's
//! (`contrib/seccomp/seccomp_default.go`) are the same but for a few calls. A call that no list here names is refused.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use rustix::io::Errno;
use rustix::thread::CapabilitySet;

/// Calls that every step may make, by subject. Names that an architecture lacks mean nothing there.
const ALLOWED: [&str; 13] = [
    // Files by name.
    "access chdir chmod chown chown32 creat execve execveat faccessat faccessat2 fchmodat fchmodat2 fchownat fstatat \
     fstatat64 futimesat getcwd inotify_add_watch lchown lchown32 link linkat lstat lstat64 mkdir mkdirat mknod mknodat \
     name_to_handle_at newfstatat open openat openat2 readlink readlinkat rename renameat renameat2 rmdir stat stat64 \
     statfs statfs64 statx symlink symlinkat truncate truncate64 umask unlink unlinkat utime utimensat \
     utimensat_time64 utimes",
    // Extended attributes.
    "fgetxattr flistxattr fremovexattr fsetxattr getxattr getxattrat lgetxattr listxattr listxattrat llistxattr \
     lremovexattr lsetxattr removexattr removexattrat setxattr setxattrat",
    // Open files.
    "_llseek arm_fadvise64_64 arm_sync_file_range cachestat close close_range copy_file_range dup dup2 dup3 fadvise64 \
     fadvise64_64 fallocate fanotify_mark fchdir fchmod fchown fchown32 fcntl fcntl64 fdatasync flock fstat fstat64 \
     fstatfs fstatfs64 fsync ftruncate ftruncate64 getdents getdents64 inotify_init inotify_init1 inotify_rm_watch ioctl \
     lseek memfd_create memfd_secret pipe pipe2 pread64 preadv preadv2 pwrite64 pwritev pwritev2 read readahead readv \
     sendfile sendfile64 splice sync sync_file_range syncfs tee vmsplice write writev",
    // Waiting for several things; asynchronous reading and writing, but not io_uring.
    "_newselect epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old \
     eventfd eventfd2 io_cancel io_destroy io_getevents io_pgetevents io_pgetevents_time64 io_setup io_submit poll ppoll \
     ppoll_time64 pselect6 pselect6_time64 select",
    // The network; `socket` is among the conditions.
    "accept accept4 bind connect getpeername getsockname getsockopt listen recv recvfrom recvmmsg recvmmsg_time64 recvmsg \
     send sendmmsg sendmsg sendto setsockopt shutdown socketpair",
    // Several calls in one, which keep their arguments in memory, where no filter sees them: with `socketcall` 32-bit
    // programs for x86 get sockets of every family. The C library of Debian has no other way there.
    "ipc socketcall",
    // Memory.
    "brk get_robust_list madvise map_shadow_stack membarrier mincore mlock mlock2 mlockall mmap mmap2 mprotect mremap mseal \
     msync munlock munlockall munmap pkey_alloc pkey_free pkey_mprotect process_mrelease remap_file_pages rseq \
     set_robust_list",
    // Processes and threads; `clone` is among the conditions. From Linux 4.8 on, a tracer cannot get its tracee past a
    // filter.
    "arch_prctl breakpoint cacheflush exit exit_group fork futex futex_requeue futex_time64 futex_wait futex_waitv \
     futex_wake get_thread_area getpgid getpgrp getpid getppid getsid gettid kill modify_ldt pause pidfd_open \
     pidfd_send_signal prctl process_vm_readv process_vm_writev ptrace restart_syscall seccomp set_thread_area \
     set_tid_address set_tls setpgid setsid tgkill tkill uretprobe vfork wait4 waitid waitpid",
    // Signals.
    "rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait \
     rt_sigtimedwait_time64 rt_tgsigqueueinfo sigaltstack signalfd signalfd4 sigprocmask sigreturn",
    // Users and rights.
    "capget capset getegid getegid32 geteuid geteuid32 getgid getgid32 getgroups getgroups32 getresgid getresgid32 \
     getresuid getresuid32 getuid getuid32 landlock_add_rule landlock_create_ruleset landlock_restrict_self setfsgid \
     setfsgid32 setfsuid setfsuid32 setgid setgid32 setgroups setgroups32 setregid setregid32 setresgid setresgid32 \
     setresuid setresuid32 setreuid setreuid32 setuid setuid32",
    // Time. The kernel asks for CAP_SYS_TIME where the clock is set.
    "adjtimex alarm clock_adjtime clock_adjtime64 clock_getres clock_getres_time64 clock_gettime clock_gettime64 \
     clock_nanosleep clock_nanosleep_time64 getitimer gettimeofday nanosleep setitimer time timer_create timer_delete \
     timer_getoverrun timer_gettime timer_gettime64 timer_settime timer_settime64 timerfd_create timerfd_gettime \
     timerfd_gettime64 timerfd_settime timerfd_settime64 times",
    // The machine and what a process uses of it.
    "getcpu getpriority getrandom getrlimit getrusage ioprio_get ioprio_set listmount prlimit64 sched_get_priority_max \
     sched_get_priority_min sched_getaffinity sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval \
     sched_rr_get_interval_time64 sched_setaffinity sched_setattr sched_setparam sched_setscheduler sched_yield \
     setpriority setrlimit statmount sysinfo ugetrlimit uname",
    // System V and POSIX communication between processes.
    "mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedreceive_time64 mq_timedsend mq_timedsend_time64 mq_unlink \
     msgctl msgget msgrcv msgsnd semctl semget semop semtimedop semtimedop_time64 shmat shmctl shmdt shmget",
];

/// Older forms of calls that are allowed anyway, for old 32-bit programs. Docker refuses them, Podman does not.
const OLDER_FORMS: &str = "readdir sigaction signal sigpending sigsuspend";

/// Calls that a step may make if it has the capability.
const WITH_CAPABILITY: [(CapabilitySet, &str); 14] = [
    (
        CapabilitySet::SYS_ADMIN,
        "bpf clone clone3 fanotify_init fsconfig fsmount fsopen fspick lookup_dcookie lsm_get_self_attr lsm_list_modules \
         lsm_set_self_attr mount mount_setattr move_mount open_tree perf_event_open quotactl quotactl_fd setdomainname \
         sethostname setns syslog umount umount2 unshare",
    ),
    (CapabilitySet::BPF, "bpf"),
    (CapabilitySet::DAC_READ_SEARCH, "open_by_handle_at"),
    (CapabilitySet::PERFMON, "perf_event_open"),
    (CapabilitySet::SYS_BOOT, "reboot"),
    (CapabilitySet::SYS_CHROOT, "chroot"),
    (CapabilitySet::SYS_MODULE, "delete_module finit_module init_module"),
    (CapabilitySet::SYS_NICE, "get_mempolicy mbind set_mempolicy set_mempolicy_home_node"),
    (CapabilitySet::SYS_PACCT, "acct"),
    (CapabilitySet::SYS_PTRACE, "kcmp pidfd_getfd process_madvise"),
    (CapabilitySet::SYS_RAWIO, "ioperm iopl"),
    (CapabilitySet::SYS_TIME, "clock_settime clock_settime64 settimeofday stime"),
    (CapabilitySet::SYS_TTY_CONFIG, "vhangup"),
    (CapabilitySet::SYSLOG, "syslog"),
];

/// Calls that every step may make with some arguments.
const CONDITIONS: [(&str, Condition); 3] = [
    ("clone", Condition { argument: 0, test: Test::NoneOf(NEW_NAMESPACES) }),
    ("personality", Condition { argument: 0, test: Test::In(PERSONALITIES) }),
    ("socket", Condition { argument: 0, test: Test::In(SOCKET_FAMILIES) }),
];

/// `CLONE_NEWNS`, `NEWCGROUP`, `NEWUTS`, `NEWIPC`, `NEWUSER`, `NEWPID` and `NEWNET`.
const NEW_NAMESPACES: u32 = 0x7e02_0000;

/// `PER_LINUX` and `PER_LINUX32`, each also with `UNAME26`, and the question for the current one.
const PERSONALITIES: &[RangeInclusive<u32>] =
    &[0..=0, 0x8..=0x8, 0x2_0000..=0x2_0000, 0x2_0008..=0x2_0008, u32::MAX..=u32::MAX];

/// Families that the kernel has, without `AF_ALG` (38, the kernel's cryptography, which had holes) and `AF_VSOCK` (40,
/// which reaches the host of a virtual machine whatever the network namespace), and without those that are gone from newer
/// kernels: DECnet (12), Econet (19), ATM SVC (20), IrDA (23), WANPIPE (25), ISDN (34) and CAIF (37).
const SOCKET_FAMILIES: &[RangeInclusive<u32>] =
    &[1..=11, 13..=18, 21..=22, 24..=24, 26..=33, 35..=36, 39..=39, 41..=45];

/// What becomes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is made.
    Allowed,
    /// It fails with this error.
    Refused(Errno),
    /// It is made if an argument is right, and else fails with EPERM.
    If(Condition),
}

/// A condition on an argument. Only its lower 32 bits count: the kernel uses no more of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Condition {
    /// The argument's position, from 0.
    pub(super) argument: u32,
    pub(super) test: Test,
}

/// What an argument must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Test {
    /// None of these bits is set.
    NoneOf(u32),
    /// In one of these ranges, which are in order and do not touch.
    In(&'static [RangeInclusive<u32>]),
}

/// The calls that the lists name, for a process with certain capabilities.
pub(super) struct Profile(BTreeMap<&'static str, Verdict>);

impl Profile {
    /// The profile of a process with `capabilities`.
    pub(super) fn new(capabilities: CapabilitySet) -> Self {
        let mut verdicts: BTreeMap<&'static str, Verdict> = BTreeMap::new();
        for name in WITH_CAPABILITY.iter().flat_map(|(_, names)| words(names)) {
            verdicts.insert(name, Verdict::Refused(Errno::PERM));
        }
        verdicts.extend(CONDITIONS.iter().map(|(name, condition)| (*name, Verdict::If(*condition))));
        // Its flags are in memory, where no filter sees them. With ENOSYS, C libraries take `clone` instead.
        verdicts.insert("clone3", Verdict::Refused(Errno::NOSYS));
        let had = WITH_CAPABILITY.iter().filter(|(capability, _)| capabilities.contains(*capability));
        for names in ALLOWED.into_iter().chain([OLDER_FORMS]).chain(had.map(|(_, names)| *names)) {
            verdicts.extend(words(names).map(|name| (name, Verdict::Allowed)));
        }
        Self(verdicts)
    }

    /// What becomes of a call; none if no list names it.
    pub(super) fn of(&self, name: &str) -> Option<Verdict> {
        self.0.get(name).copied()
    }
}

fn words(names: &'static str) -> impl Iterator<Item = &'static str> {
    names.split_ascii_whitespace()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::numbers::ABIS;
    use super::*;

    #[test]
    fn every_name_is_a_call_of_some_architecture_and_in_one_list_only() {
        let calls: BTreeSet<&str> = ABIS.iter().flat_map(|abi| abi.calls()).map(|(_, name)| name).collect();
        let mut allowed = BTreeSet::new();
        for name in ALLOWED.into_iter().chain([OLDER_FORMS]).flat_map(words) {
            assert!(allowed.insert(name), "`{name}` is allowed twice");
        }
        let gated: BTreeSet<&str> = WITH_CAPABILITY.iter().flat_map(|(_, names)| words(names)).collect();
        let conditional = CONDITIONS.map(|(name, _)| name);
        for name in &allowed {
            assert!(!gated.contains(name) && !conditional.contains(name), "`{name}` is in two lists");
        }
        for name in allowed.iter().chain(&gated).copied().chain(conditional) {
            assert!(calls.contains(name), "no architecture has `{name}`");
        }
    }

    #[test]
    fn capabilities_open_what_needs_them_and_nothing_else() {
        let none = Profile::new(CapabilitySet::empty());
        let cases = [
            (CapabilitySet::SYS_CHROOT, "chroot"),
            (CapabilitySet::SYS_ADMIN, "unshare"),
            (CapabilitySet::SYS_ADMIN, "clone"),
            (CapabilitySet::SYS_ADMIN, "clone3"),
            (CapabilitySet::SYS_ADMIN, "bpf"),
            (CapabilitySet::BPF, "bpf"),
            (CapabilitySet::SYSLOG, "syslog"),
        ];
        for (capability, name) in cases {
            assert_ne!(none.of(name), Some(Verdict::Allowed), "{name}");
            let profile = Profile::new(capability);
            assert_eq!(profile.of(name), Some(Verdict::Allowed), "{name}");
            let changed = profile.0.iter().filter(|(name, verdict)| none.of(name) != Some(**verdict)).count();
            let words = WITH_CAPABILITY.iter().filter(|(one, _)| *one == capability);
            assert_eq!(changed, words.flat_map(|(_, names)| words_of(names)).count(), "{name}");
        }
    }

    fn words_of(names: &'static str) -> Vec<&'static str> {
        words(names).collect()
    }

    #[test]
    fn ranges_are_in_order_and_apart() {
        for ranges in [PERSONALITIES, SOCKET_FAMILIES] {
            for pair in ranges.windows(2) {
                assert!(*pair[0].end() + 1 < *pair[1].start(), "{pair:?}");
            }
        }
    }
}
