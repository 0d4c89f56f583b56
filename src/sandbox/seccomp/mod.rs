//! Which system calls a step may make, enforced by the kernel (seccomp(2)).
//!
//! ```text
//! profile: names ──┐
//!                  ├─> verdicts by number, for each architecture ──> program: one BPF program ──> the kernel
//! numbers: names ──┘
//! ```

mod numbers;
mod profile;
mod program;

use std::io;

use libc::sock_filter;
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

use self::numbers::Abi;
use self::profile::{Profile, Verdict};
use self::program::Ranges;
use crate::sys;

/// Whether a step's system calls are filtered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SystemCalls {
    /// By [`install`].
    Filtered,
    /// Only by what is in force for the builder, for instance its pod's filter. Without CAP_SYS_ADMIN another can be
    /// installed only together with no_new_privs, and then setuid programs like su and sudo would not work in a step.
    AsForTheBuilder,
}

/// Whether this kernel can filter system calls, and this program knows how to on this machine.
#[must_use]
pub fn can_filter_system_calls() -> bool {
    sys::has_system_call_filters() && !Abi::of_this_machine().is_empty()
}

/// Installs the filter for a process that will have at most `capabilities`, for the calling thread and all that it starts.
/// Takes CAP_SYS_ADMIN. Where [`can_filter_system_calls`] says no, nothing happens: capabilities and namespaces hold as
/// well there, and who runs such a kernel cannot change it for a build.
pub(super) fn install(capabilities: CapabilitySet) -> io::Result<()> {
    if !can_filter_system_calls() {
        return Ok(());
    }
    sys::install_system_call_filter(&filter(Abi::of_this_machine(), capabilities))
}

fn filter(abis: &[Abi], capabilities: CapabilitySet) -> Vec<sock_filter> {
    let profile = Profile::new(capabilities);
    let architectures: Vec<_> = abis.iter().map(|abi| (abi.audit, verdicts(abi, &profile))).collect();
    program::assemble(&architectures)
}

/// The verdicts on all numbers.
///
/// A call that the profile does not name is refused, but does not exist if it is newer than all that the profile names,
/// as under runc: programs try new calls and fall back when there are none, but not when they may not make them.
fn verdicts(abi: &Abi, profile: &Profile) -> Ranges {
    let named = abi.common_calls().filter(|(_, name)| profile.of(name).is_some());
    let newest = named.map(|(number, _)| number).max().unwrap_or_default();
    let missing = Verdict::Refused(Errno::NOSYS);
    let mut ranges = vec![(0, missing)];
    let mut next = 0;
    for (number, name) in abi.calls() {
        let unnamed = if number > newest { missing } else { Verdict::Refused(Errno::PERM) };
        begin(&mut ranges, next, missing);
        begin(&mut ranges, number, profile.of(name).unwrap_or(unnamed));
        next = number.saturating_add(1);
    }
    begin(&mut ranges, next, missing);
    ranges
}

/// Has `verdict` hold from `number` on, which is not below those before.
fn begin(ranges: &mut Ranges, number: u32, verdict: Verdict) {
    ranges.pop_if(|(from, _)| *from == number);
    if ranges.last().is_none_or(|(_, before)| *before != verdict) {
        ranges.push((number, verdict));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use libc::{SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO};

    use super::super::allowed::CAPABILITIES;
    use super::numbers::ABIS;
    use super::program::interpreter::{Call, run};
    use super::*;

    const ALLOWED: u32 = SECCOMP_RET_ALLOW;
    const EPERM: u32 = SECCOMP_RET_ERRNO | 1;
    const ENOSYS: u32 = SECCOMP_RET_ERRNO | 38;

    /// Runs `program` on a call of `abi`.
    fn result(program: &[sock_filter], abi: &Abi, number: u32, first: u64) -> u32 {
        let call = Call { number, architecture: abi.audit, arguments: [first, 0, 0, 0, 0, 0] };
        run(program, &call).0
    }

    /// Name, first argument, result; for whichever architecture has the call.
    const CASES: [(&str, u64, u32); 52] = [
        ("read", 0, ALLOWED),
        ("openat2", 0, ALLOWED),
        ("open", 0, ALLOWED),
        ("stat64", 0, ALLOWED),
        ("newfstatat", 0, ALLOWED),
        ("fstatat", 0, ALLOWED),
        ("execve", 0, ALLOWED),
        ("rt_sigreturn", 0, ALLOWED),
        ("clock_gettime", 0, ALLOWED),
        ("clock_gettime64", 0, ALLOWED),
        ("chroot", 0, ALLOWED),
        ("mknodat", 0, ALLOWED),
        ("ptrace", 0, ALLOWED),
        ("process_vm_readv", 0, ALLOWED),
        ("removexattrat", 0, ALLOWED),
        ("socketcall", 1, ALLOWED),
        ("set_tls", 0, ALLOWED),
        ("cacheflush", 0, ALLOWED),
        ("sigaction", 0, ALLOWED),
        ("mount", 0, EPERM),
        ("umount2", 0, EPERM),
        ("fsopen", 0, EPERM),
        ("pivot_root", 0, EPERM),
        ("setns", 0, EPERM),
        ("unshare", 0x1000_0000, EPERM),
        ("unshare", 0, EPERM),
        ("keyctl", 0, EPERM),
        ("add_key", 0, EPERM),
        ("bpf", 0, EPERM),
        ("userfaultfd", 0, EPERM),
        ("perf_event_open", 0, EPERM),
        ("io_uring_setup", 0, EPERM),
        ("open_by_handle_at", 0, EPERM),
        ("kexec_load", 0, EPERM),
        ("vm86", 0, EPERM),
        ("clone3", 0, ENOSYS),
        // Newer than what the profile names.
        ("file_getattr", 0, ENOSYS),
        // A thread, a process, one in a user namespace, one in a network namespace.
        ("clone", 0x003d_0f00, ALLOWED),
        ("clone", 17, ALLOWED),
        ("clone", 0x1000_0011, EPERM),
        ("clone", 0x4000_0011, EPERM),
        ("personality", 0, ALLOWED),
        ("personality", 8, ALLOWED),
        ("personality", 0x2_0008, ALLOWED),
        ("personality", 0xffff_ffff, ALLOWED),
        ("personality", 0x4_0000, EPERM),
        ("socket", 1, ALLOWED),
        ("socket", 16, ALLOWED),
        ("socket", 38, EPERM),
        ("socket", 40, EPERM),
        // The kernel looks at 32 bits.
        ("socket", 1 << 32 | 40, EPERM),
        ("socket", 46, EPERM),
    ];

    #[test]
    fn a_step_may_do_what_it_may_do_under_docker_on_every_architecture() {
        let program = filter(&ABIS, CAPABILITIES);
        let mut found = BTreeMap::new();
        for abi in &ABIS {
            let numbers: BTreeMap<&str, u32> = abi.calls().map(|(number, name)| (name, number)).collect();
            for (name, first, expected) in CASES {
                let Some(number) = numbers.get(name) else { continue };
                *found.entry(name).or_insert(0) += 1;
                let result = result(&program, abi, *number, first);
                assert_eq!(result, expected, "{:#x}: {name}({first:#x}): {result:#x}", abi.audit);
            }
        }
        for (name, ..) in CASES {
            assert!(found.contains_key(name), "`{name}` was tried nowhere");
        }
        assert_eq!(found["read"], ABIS.len());
    }

    #[test]
    fn numbers_without_a_call_do_not_exist() {
        let program = filter(&ABIS, CAPABILITIES);
        for abi in &ABIS {
            let last = abi.common_calls().last().unwrap().0;
            // x32, and what a tracer sets to leave out a call.
            let beyond = [last + 1, last + 100, 0xf_0100, 0x4000_0000, 0x4000_0015, u32::MAX];
            let known: Vec<u32> = abi.calls().map(|(number, _)| number).collect();
            let gaps = (0..last).filter(|number| !known.contains(number));
            for number in gaps.chain(beyond) {
                assert_eq!(result(&program, abi, number, 0), ENOSYS, "{:#x}: {number}", abi.audit);
            }
        }
    }

    #[test]
    fn no_process_is_ended_for_its_architecture() {
        let program = filter(&ABIS, CAPABILITIES);
        for architecture in [0, 8, 22, 243, 0xc000_00f3, u32::MAX] {
            let call = Call { number: 0, architecture, arguments: [0; 6] };
            assert_eq!(run(&program, &call).0, ENOSYS, "{architecture:#x}");
        }
    }

    #[test]
    fn a_call_is_decided_in_few_instructions_and_the_kernel_takes_the_program() {
        /// `BPF_MAXINSNS`.
        const MOST: usize = 4096;
        for abis in [&ABIS[..2], &ABIS[2..]] {
            let program = filter(abis, CAPABILITIES);
            assert!(program.len() < MOST / 4, "{}", program.len());
            for abi in abis {
                for number in 0..600 {
                    let call = Call { number, architecture: abi.audit, arguments: [0; 6] };
                    let (_, steps) = run(&program, &call);
                    assert!(steps < 30, "{:#x}: {number}: {steps}", abi.audit);
                }
            }
        }
    }

    /// The line of a thread's status that says how many filters there are.
    fn filters() -> u32 {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Seccomp_filters:"));
        line.unwrap().trim().parse().unwrap()
    }

    fn in_a_thread(test: impl FnOnce() + Send + 'static) {
        std::thread::spawn(test).join().unwrap();
    }

    #[test]
    fn the_kernel_enforces_it() {
        if !rustix::process::geteuid().is_root() || !can_filter_system_calls() {
            eprintln!("skipped `the_kernel_enforces_it`: it needs root and a kernel with seccomp filters");
            return;
        }
        in_a_thread(|| {
            let before = filters();
            // Creates nothing: an id of a keyring is asked for.
            let get_keyring = || sys::leave_session_keyring().map_err(|error| error.raw_os_error());
            assert_ne!(get_keyring(), Err(Some(1)));
            install(CAPABILITIES).unwrap();
            assert_eq!(filters(), before + 1);
            assert_eq!(get_keyring(), Err(Some(1)));
            let unshared = sys::unshare(rustix::thread::UnshareFlags::NEWUTS);
            assert_eq!(unshared.unwrap_err().raw_os_error(), Some(1));
        });
    }

    #[test]
    fn a_kernel_without_filters_is_put_up_with() {
        in_a_thread(|| {
            sys::refuse_call(libc::SYS_seccomp, Errno::NOSYS).unwrap();
            let before = filters();
            assert!(!can_filter_system_calls());
            install(CAPABILITIES).unwrap();
            assert_eq!(filters(), before);
        });
    }
}
