//! System calls and their numbers, for each way of calling a kernel.

use syscalls::{aarch64, arm, x86, x86_64};

/// A way to call the kernel. The same number means another call in each.
pub(super) struct Abi {
    /// What the kernel calls it (`AUDIT_ARCH_…`).
    pub(super) audit: u32,
    /// The name of a call.
    name: fn(u32) -> Option<&'static str>,
    /// The largest number for which there may be a name.
    last: i32,
    /// Calls far beyond the others.
    private: &'static [(u32, &'static str)],
}

const WORDS_OF_64_BITS: u32 = 0x8000_0000;
const LITTLE_ENDIAN: u32 = 0x4000_0000;

/// x86 with 64 and 32 bits, ARM with 64 and 32 bits. That of x32, programs with 64-bit registers and 32-bit pointers,
/// is not there: it is x86-64 with numbers from 2^30 on, which most kernels do not know either.
pub(super) const ABIS: [Abi; 4] = [
    Abi {
        audit: 62 | WORDS_OF_64_BITS | LITTLE_ENDIAN,
        name: |number| Some(x86_64::Sysno::new(usize::try_from(number).ok()?)?.name()),
        last: x86_64::Sysno::last().id(),
        private: &[],
    },
    Abi {
        audit: 3 | LITTLE_ENDIAN,
        name: |number| Some(x86::Sysno::new(usize::try_from(number).ok()?)?.name()),
        last: x86::Sysno::last().id(),
        private: &[],
    },
    Abi {
        audit: 183 | WORDS_OF_64_BITS | LITTLE_ENDIAN,
        name: |number| Some(aarch64::Sysno::new(usize::try_from(number).ok()?)?.name()),
        last: aarch64::Sysno::last().id(),
        private: &[],
    },
    Abi {
        audit: 40 | LITTLE_ENDIAN,
        name: |number| Some(arm::Sysno::new(usize::try_from(number).ok()?)?.name()),
        last: arm::Sysno::last().id(),
        // `__ARM_NR_…` of the kernel's `asm/unistd.h`.
        private: &[(0xf_0001, "breakpoint"), (0xf_0002, "cacheflush"), (0xf_0005, "set_tls")],
    },
];

impl Abi {
    /// Those that this machine's kernel may offer, of which a process may use one after the other: a 64-bit program can
    /// make 32-bit calls. None on machines that this program was not tried on.
    pub(super) fn of_this_machine() -> &'static [Self] {
        match std::env::consts::ARCH {
            "x86_64" | "x86" => &ABIS[..2],
            "aarch64" | "arm" => &ABIS[2..],
            _ => &[],
        }
    }

    /// All its calls, in the order of their numbers.
    pub(super) fn calls(&self) -> impl Iterator<Item = (u32, &'static str)> {
        self.common_calls().chain(self.private.iter().copied())
    }

    /// Its calls without those that are far beyond the others: the larger the number, the newer the call, apart from the
    /// oldest.
    pub(super) fn common_calls(&self) -> impl Iterator<Item = (u32, &'static str)> {
        let numbers = 0..=u32::try_from(self.last).unwrap_or_default();
        numbers.filter_map(|number| Some((number, (self.name)(number)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_kernel() {
        let cases = [
            (0, [("read", 0), ("clone", 56), ("openat2", 437), ("file_setattr", 469)]),
            (1, [("read", 3), ("clock_gettime", 265), ("mq_unlink", 278), ("file_setattr", 469)]),
            (2, [("read", 63), ("fstatat", 79), ("clone", 220), ("file_setattr", 469)]),
            (3, [("read", 3), ("arm_fadvise64_64", 270), ("set_tls", 0xf_0005), ("file_setattr", 469)]),
        ];
        for (abi, calls) in cases {
            for (name, number) in calls {
                assert!(ABIS[abi].calls().any(|call| call == (number, name)), "{abi}: {name}");
            }
        }
        if cfg!(target_arch = "x86_64") {
            let own = |name| Abi::of_this_machine()[0].calls().find(|call| call.1 == name).unwrap().0;
            assert_eq!(i64::from(own("keyctl")), libc::SYS_keyctl);
        }
    }

    #[test]
    fn calls_are_in_the_order_of_their_numbers() {
        for abi in &ABIS {
            assert!(abi.calls().is_sorted_by_key(|(number, _)| number), "{:#x}", abi.audit);
            assert!(abi.calls().count() > 300, "{:#x}", abi.audit);
        }
    }
}
