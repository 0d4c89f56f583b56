//! Decisions about system calls as a program for the kernel (classic BPF, see seccomp(2)).
//!
//! Numbers are looked up by bisection: a call costs some ten instructions, not one for each call that is allowed. Only
//! instructions are used that let the kernel find out beforehand which calls are always allowed (Linux 5.11,
//! `seccomp_is_const_allow`), so that it need not run the program for those at all.

use libc::{
    BPF_ABS, BPF_JA, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W, SECCOMP_RET_ALLOW,
    SECCOMP_RET_ERRNO, sock_filter,
};
use rustix::io::Errno;

use super::profile::{Condition, Test, Verdict};

// Where the kernel's `struct seccomp_data` has what.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

/// Verdicts by number: each is valid from its number on, up to the next. The first is valid from 0 on.
pub(super) type Ranges = Vec<(u32, Verdict)>;

/// The program that decides by `verdicts` of each architecture (`AUDIT_ARCH_…`), and answers ENOSYS for others: no
/// process is ended for how it calls the kernel.
pub(super) fn assemble(architectures: &[(u32, Ranges)]) -> Vec<sock_filter> {
    let mut program = vec![load(ARCHITECTURE)];
    for (audit, verdicts) in architectures {
        let mut decision = vec![load(NUMBER)];
        decision.extend(search(verdicts));
        // Most are too long for a conditional jump.
        program.push(jump_if(BPF_JEQ, *audit, 1, 0));
        program.push(jump(decision.len()));
        program.extend(decision);
    }
    program.extend(give(Verdict::Refused(Errno::NOSYS)));
    program
}

/// Decides by the value that is loaded.
fn search(verdicts: &[(u32, Verdict)]) -> Vec<sock_filter> {
    let (lower, upper) = verdicts.split_at(verdicts.len() / 2);
    let (Some((_, only)), Some((first, _))) = (verdicts.first(), upper.first()) else { return Vec::new() };
    if lower.is_empty() {
        return give(*only);
    }
    let first = *first;
    let (lower, upper) = (search(lower), search(upper));
    let mut program = match u8::try_from(lower.len()) {
        Ok(over) => vec![jump_if(BPF_JGE, first, over, 0)],
        Err(_) => vec![jump_if(BPF_JGE, first, 0, 1), jump(lower.len())],
    };
    program.extend(lower);
    program.extend(upper);
    program
}

/// What ends the program.
fn give(verdict: Verdict) -> Vec<sock_filter> {
    match verdict {
        Verdict::Allowed => vec![give_back(SECCOMP_RET_ALLOW)],
        Verdict::Refused(errno) => vec![give_back(SECCOMP_RET_ERRNO | errno.raw_os_error().cast_unsigned())],
        Verdict::If(Condition { argument, test }) => {
            let mut program = vec![load(lower_half(argument))];
            let refused = Verdict::Refused(Errno::PERM);
            match test {
                Test::NoneOf(bits) => {
                    program.push(jump_if(BPF_JSET, bits, 0, 1));
                    program.extend(give(refused));
                    program.extend(give(Verdict::Allowed));
                }
                Test::In(ranges) => {
                    let mut verdicts = vec![(0, refused)];
                    for range in ranges {
                        // A range that begins at 0 leaves nothing of what stands before it.
                        verdicts.retain(|(from, _)| from != range.start());
                        verdicts.push((*range.start(), Verdict::Allowed));
                        verdicts.extend(range.end().checked_add(1).map(|next| (next, refused)));
                    }
                    program.extend(search(&verdicts));
                }
            }
            program
        }
    }
}

/// Where the lower 32 bits of an argument are.
fn lower_half(argument: u32) -> u32 {
    ARGUMENTS + 8 * argument + if cfg!(target_endian = "big") { 4 } else { 0 }
}

fn load(offset: u32) -> sock_filter {
    instruction(BPF_LD | BPF_W | BPF_ABS, 0, 0, offset)
}

/// Jumps over `yes` instructions if the comparison with `value` holds, else over `no`.
fn jump_if(comparison: u32, value: u32, yes: u8, no: u8) -> sock_filter {
    instruction(BPF_JMP | comparison | BPF_K, yes, no, value)
}

/// Jumps over `distance` instructions. One that does not fit is one that no kernel takes.
fn jump(distance: usize) -> sock_filter {
    instruction(BPF_JMP | BPF_JA, 0, 0, u32::try_from(distance).unwrap_or(u32::MAX))
}

fn give_back(value: u32) -> sock_filter {
    instruction(BPF_RET | BPF_K, 0, 0, value)
}

fn instruction(code: u32, jt: u8, jf: u8, k: u32) -> sock_filter {
    // All codes are below 2^8.
    sock_filter { code: code as u16, jt, jf, k }
}

/// Runs programs as the kernel does.
#[cfg(test)]
pub(super) mod interpreter {
    use super::*;

    /// The kernel's `struct seccomp_data`, little endian, without the instruction pointer.
    #[derive(Debug, Clone, Copy)]
    pub(in super::super) struct Call {
        pub(in super::super) number: u32,
        pub(in super::super) architecture: u32,
        pub(in super::super) arguments: [u64; 6],
    }

    impl Call {
        fn word(&self, offset: u32) -> u32 {
            let mut data = Vec::new();
            data.extend(self.number.to_ne_bytes());
            data.extend(self.architecture.to_ne_bytes());
            data.extend(0_u64.to_ne_bytes());
            data.extend(self.arguments.iter().flat_map(|argument| argument.to_ne_bytes()));
            let word = &data[offset as usize..][..4];
            u32::from_ne_bytes(word.try_into().unwrap())
        }
    }

    /// The result, and how many instructions it took.
    pub(in super::super) fn run(program: &[sock_filter], call: &Call) -> (u32, usize) {
        let (mut at, mut accumulator, mut steps) = (0, 0, 0);
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            steps += 1;
            at += 1;
            let code = u32::from(code);
            let holds = match code & !(BPF_JMP | BPF_K) {
                _ if code == BPF_LD | BPF_W | BPF_ABS => {
                    accumulator = call.word(k);
                    continue;
                }
                _ if code == BPF_RET | BPF_K => return (k, steps),
                _ if code == BPF_JMP | BPF_JA => {
                    at += k as usize;
                    continue;
                }
                BPF_JEQ => accumulator == k,
                BPF_JGE => accumulator >= k,
                BPF_JSET => accumulator & k != 0,
                _ => panic!("an instruction that the program should not have: {code:#x}"),
            };
            at += usize::from(if holds { jt } else { jf });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::interpreter::{Call, run};
    use super::*;

    const ALLOW: u32 = SECCOMP_RET_ALLOW;

    fn error(errno: Errno) -> u32 {
        SECCOMP_RET_ERRNO | errno.raw_os_error().cast_unsigned()
    }

    #[test]
    fn every_number_gets_the_verdict_of_its_range_however_many_there_are() {
        let verdict = |index: u32| Verdict::Refused(Errno::from_raw_os_error(index.cast_signed() % 4000 + 1));
        for count in [1, 2, 3, 7, 64, 1000] {
            let ranges: Ranges = (0..count).map(|index| (index * 3, verdict(index))).collect();
            let program = assemble(&[(7, ranges)]);
            for number in (0..count * 3 + 10).chain([u32::MAX]) {
                let call = Call { number, architecture: 7, arguments: [0; 6] };
                let Verdict::Refused(expected) = verdict((number / 3).min(count - 1)) else { unreachable!() };
                assert_eq!(run(&program, &call).0, error(expected), "{count}: {number}");
            }
        }
    }

    #[test]
    fn architectures_are_told_apart_and_others_do_not_exist() {
        let verdicts = |verdict| vec![(0, verdict)];
        let program =
            assemble(&[(1, verdicts(Verdict::Allowed)), (2, verdicts(Verdict::Refused(Errno::PERM)))]);
        for (architecture, expected) in
            [(1, ALLOW), (2, error(Errno::PERM)), (3, error(Errno::NOSYS)), (0, error(Errno::NOSYS))]
        {
            let call = Call { number: 5, architecture, arguments: [0; 6] };
            assert_eq!(run(&program, &call).0, expected, "{architecture}");
        }
        assert_eq!(
            run(&assemble(&[]), &Call { number: 0, architecture: 1, arguments: [0; 6] }).0,
            error(Errno::NOSYS)
        );
    }

    #[test]
    fn conditions_look_at_the_lower_half_of_their_argument() {
        let within = Test::In(&[0..=0, 3..=5, u32::MAX..=u32::MAX]);
        let without = Test::NoneOf(0b110);
        let cases = [
            (within, 0, true),
            (within, 1, false),
            (within, 3, true),
            (within, 5, true),
            (within, 6, false),
            (within, 0xffff_fffe, false),
            (within, 0xffff_ffff, true),
            (within, u64::MAX, true),
            (within, 1 << 32 | 4, true),
            (within, 3 << 32, true),
            (within, 3 << 32 | 1, false),
            (without, 0b1001, true),
            (without, 0b10, false),
            (without, 0b100, false),
            (without, 0b10 << 32, true),
        ];
        for (test, value, allowed) in cases {
            let program = assemble(&[(1, vec![(0, Verdict::If(Condition { argument: 2, test }))])]);
            let mut arguments = [7; 6];
            arguments[2] = value;
            let result = run(&program, &Call { number: 0, architecture: 1, arguments }).0;
            assert_eq!(result, if allowed { ALLOW } else { error(Errno::PERM) }, "{test:?} {value:#x}");
        }
    }
}
