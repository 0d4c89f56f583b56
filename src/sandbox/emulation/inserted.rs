//! Arguments that a static program finds in its command line whoever starts it: they are built into a copy of it.
//!
//! The kernel starts a handler of binfmt_misc with a command line that nobody can add to, and which CPU qemu plays can be
//! said in an argument, or in a variable that `env -i` takes away and that the emulated programs see. So the copy begins with
//! a few instructions of its own. What the kernel has put on the stack stays as it is, with all that it tells an interpreter
//! (the descriptor of the program, whether there is another name of it); below it go two more arguments:
//!
//! ```text
//! before:                 count   name  arguments… 0  environment… 0  auxiliary vector…
//! after:  count + 2  name  first  second arguments… 0  environment… 0  auxiliary vector…
//! ```

use std::io::{self, SeekFrom};

/// The most program headers that a program may have: all need room in one page.
const MOST_HEADERS: u16 = 64;

const FILE_HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;

/// Larger than any page, and what separates segments on arm64.
const ALIGNMENT: u64 = 1 << 16;

const PT_LOAD: u32 = 1;
const PT_INTERP: u32 = 3;
const PT_PHDR: u32 = 6;

/// Readable and executable.
const CODE: u32 = 5;

/// The machine numbers of ELF.
const X86_64: u16 = 62;
const AARCH64: u16 = 183;

/// Why it cannot be done.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unfit {
    #[error("it is no program for this machine")]
    Foreign,
    #[error("it is not static: it needs a loader and libraries, which are not in an image")]
    Dynamic,
    #[error("it is damaged")]
    Damaged,
    #[error("it is cut off: its segments reach to byte {end}, and it has {length}")]
    Cut { end: u64, length: u64 },
    #[error("it is not executable")]
    NotExecutable,
    #[error("it is larger than {} MiB", most >> 20)]
    TooLarge { most: u64 },
    #[error("with it, all emulators together would take more than {} MiB of memory", most >> 20)]
    TooManyBytes { most: u64 },
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// What a static program for the machine `machine` begins with.
pub(super) struct Program {
    machine: u16,
    entry: u64,
    headers: Vec<[u8; PROGRAM_HEADER]>,
}

impl Program {
    /// Reads it from the beginning of `file`.
    pub(super) fn read(file: &mut (impl io::Read + io::Seek), machine: u16) -> Result<Self, Unfit> {
        file.seek(SeekFrom::Start(0))?;
        let mut head = [0; FILE_HEADER];
        file.read_exact(&mut head).map_err(cut)?;
        // 64 bits, the lowest byte first; a program, at a fixed place or at any.
        let is_program = head.starts_with(b"\x7fELF\x02\x01\x01") && matches!(half(&head, 16), 2 | 3);
        if !is_program || half(&head, 18) != machine {
            return Err(Unfit::Foreign);
        }
        let count = half(&head, 56);
        if usize::from(half(&head, 54)) != PROGRAM_HEADER || count == 0 || count > MOST_HEADERS {
            return Err(Unfit::Damaged);
        }
        file.seek(SeekFrom::Start(wide(&head, 32)))?;
        let mut headers = vec![[0; PROGRAM_HEADER]; count.into()];
        for header in &mut headers {
            file.read_exact(header).map_err(cut)?;
        }
        if headers.iter().any(|header| word(header, 0) == PT_INTERP) {
            return Err(Unfit::Dynamic);
        }
        let length = file.seek(SeekFrom::End(0))?;
        let loaded = headers.iter().filter(|header| word(*header, 0) == PT_LOAD);
        let end = loaded.map(|header| wide(header, 8).saturating_add(wide(header, 32))).max();
        let end = end.ok_or(Unfit::Damaged)?;
        // It would start, and end by a signal in the middle of a step.
        if end > length {
            return Err(Unfit::Cut { end, length });
        }
        Ok(Self { machine, entry: wide(&head, 24), headers })
    }

    /// Whether there are instructions for its machine.
    pub(super) fn can_insert(&self) -> bool {
        matches!(self.machine, X86_64 | AARCH64)
    }

    /// Makes `file`, which is this program, insert `arguments` behind its name when it starts. `length` is that of the file.
    pub(super) fn insert(
        mut self,
        file: &mut (impl io::Write + io::Seek),
        length: u64,
        arguments: [&str; 2],
    ) -> Result<(), Unfit> {
        // A segment of its own, behind all others in the file and in memory: the program headers, of which there is one
        // more now, the instructions and the arguments.
        let loaded: Vec<usize> =
            (0..self.headers.len()).filter(|index| word(&self.headers[*index], 0) == PT_LOAD).collect();
        let ends = loaded.iter().map(|index| {
            let header = &self.headers[*index];
            wide(header, 16).checked_add(wide(header, 40))
        });
        let end = ends.max().flatten().ok_or(Unfit::Damaged)?;
        let up = |value: u64| value.checked_next_multiple_of(ALIGNMENT).ok_or(Unfit::Damaged);
        let (offset, address) = (up(length)?, up(end)?);
        let last = *loaded.last().ok_or(Unfit::Damaged)?;
        self.headers.insert(last + 1, [0; PROGRAM_HEADER]);
        let table = self.headers.len() * PROGRAM_HEADER;
        let start = address.checked_add(table as u64).ok_or(Unfit::Damaged)?;
        let code = instructions(self.machine, start, self.entry, arguments).ok_or(Unfit::Damaged)?;
        let segment = |kind, flags, size: usize| {
            let size = size as u64;
            let words = [kind, flags].map(u32::to_le_bytes).concat();
            let wides = [offset, address, address, size, size, ALIGNMENT].map(u64::to_le_bytes).concat();
            let mut header = [0; PROGRAM_HEADER];
            header[..8].copy_from_slice(&words);
            header[8..].copy_from_slice(&wides);
            header
        };
        self.headers[last + 1] = segment(PT_LOAD, CODE, table + code.len());
        for header in &mut self.headers {
            if word(header, 0) == PT_PHDR {
                *header = segment(PT_PHDR, 4, table);
            }
        }
        file.seek(SeekFrom::Start(offset))?;
        file.write_all(&self.headers.concat())?;
        file.write_all(&code)?;
        for (place, value) in [(24, start), (32, offset)] {
            file.seek(SeekFrom::Start(place))?;
            file.write_all(&value.to_le_bytes())?;
        }
        file.seek(SeekFrom::Start(56))?;
        let count = u16::try_from(self.headers.len()).map_err(|_| Unfit::Damaged)?;
        Ok(file.write_all(&count.to_le_bytes())?)
    }
}

fn cut(error: io::Error) -> Unfit {
    if error.kind() == io::ErrorKind::UnexpectedEof { Unfit::Foreign } else { error.into() }
}

fn half(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u16::from_le_bytes(*bytes))
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn wide(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// What begins at `start`, inserts the arguments, which follow it, and goes on at `entry`; none where that is too far away.
fn instructions(machine: u16, start: u64, entry: u64, arguments: [&str; 2]) -> Option<Vec<u8>> {
    let strings: Vec<u8> = arguments.iter().flat_map(|argument| argument.bytes().chain([0])).collect();
    let second = arguments[0].len() as u64 + 1;
    // Both move by the same number of bytes where a program may be anywhere.
    let distance = |from: u64| i64::try_from(i128::from(entry) - i128::from(from)).ok();
    let mut code = match machine {
        X86_64 => {
            const LENGTH: u64 = 55;
            let mut code = Vec::new();
            // lea rax, [first]; lea rcx, [second]
            code.extend([0x48, 0x8d, 0x05]);
            code.extend(i32::try_from(LENGTH - 7).ok()?.to_le_bytes());
            code.extend([0x48, 0x8d, 0x0d]);
            code.extend(i32::try_from(LENGTH - 14 + second).ok()?.to_le_bytes());
            code.extend([
                0x48, 0x8b, 0x34, 0x24, // mov rsi, [rsp]
                0x48, 0x83, 0xc6, 0x02, // add rsi, 2
                0x48, 0x8b, 0x7c, 0x24, 0x08, // mov rdi, [rsp+8]
                0x48, 0x83, 0xec, 0x10, // sub rsp, 16
                0x48, 0x89, 0x34, 0x24, // mov [rsp], rsi
                0x48, 0x89, 0x7c, 0x24, 0x08, // mov [rsp+8], rdi
                0x48, 0x89, 0x44, 0x24, 0x10, // mov [rsp+16], rax
                0x48, 0x89, 0x4c, 0x24, 0x18, // mov [rsp+24], rcx
                0xe9, // jmp entry
            ]);
            code.extend(
                i32::try_from(distance(start.checked_add(code.len() as u64 + 4)?)?).ok()?.to_le_bytes(),
            );
            code
        }
        AARCH64 => {
            const LENGTH: u64 = 44;
            let adr = |from: u64, to: u64| {
                let distance = to - from;
                0x1000_0001 | (distance & 3) << 29 | (distance >> 2) << 5
            };
            let far = distance(start.checked_add(LENGTH - 4)?)? / 4;
            // A branch reaches 128 MiB.
            let branch =
                (-0x200_0000..0x200_0000).contains(&far).then_some(far.cast_unsigned() & 0x3ff_ffff)?;
            let words = [
                0xf940_03e1,              // ldr x1, [sp]
                0xf940_07e2,              // ldr x2, [sp, #8]
                0x9100_0821,              // add x1, x1, #2
                0xd100_43ff,              // sub sp, sp, #16
                0xf900_03e1,              // str x1, [sp]
                0xf900_07e2,              // str x2, [sp, #8]
                adr(24, LENGTH),          // adr x1, first
                0xf900_0be1,              // str x1, [sp, #16]
                adr(32, LENGTH + second), // adr x1, second
                0xf900_0fe1,              // str x1, [sp, #24]
                0x1400_0000 | branch,     // b entry
            ];
            words.iter().flat_map(|word| (*word as u32).to_le_bytes()).collect()
        }
        _ => return None,
    };
    code.extend(strings);
    Some(code)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;
    use std::os::unix::process::CommandExt as _;
    use std::process::{Command, Output};

    use super::*;
    use crate::sandbox::emulation::emulator::tests::executable;

    /// A program of these instructions at a fixed place, for `machine`, with a header that a table would have.
    fn program(machine: u16, code: &[u8]) -> Vec<u8> {
        let mut program = b"\x7fELF\x02\x01\x01".to_vec();
        program.resize(16, 0);
        for value in [2, machine] {
            program.extend(value.to_le_bytes());
        }
        program.extend(1_u32.to_le_bytes());
        let begin = (FILE_HEADER + 2 * PROGRAM_HEADER) as u64;
        for value in [0x40_0000 + begin, FILE_HEADER as u64, 0] {
            program.extend(value.to_le_bytes());
        }
        program.extend(0_u32.to_le_bytes());
        for value in [FILE_HEADER as u16, PROGRAM_HEADER as u16, 2, 64, 0, 0] {
            program.extend(value.to_le_bytes());
        }
        let size = begin + code.len() as u64;
        for (kind, offset, length, flags) in
            [(PT_PHDR, FILE_HEADER as u64, 2 * PROGRAM_HEADER as u64, 4_u32), (PT_LOAD, 0, size, CODE)]
        {
            program.extend(kind.to_le_bytes());
            program.extend(flags.to_le_bytes());
            for value in [offset, 0x40_0000 + offset, 0x40_0000 + offset, length, length, 0x1000] {
                program.extend(value.to_le_bytes());
            }
        }
        program.extend(code);
        program
    }

    fn with(program: Vec<u8>, machine: u16, arguments: [&str; 2]) -> Vec<u8> {
        let mut file = Cursor::new(program);
        let length = file.get_ref().len() as u64;
        Program::read(&mut file, machine).unwrap().insert(&mut file, length, arguments).unwrap();
        file.into_inner()
    }

    fn run(before: &[&str], program: &[u8], arguments: &[&str]) -> Option<Output> {
        let file = executable(program);
        let path = file.path().join("program");
        let mut command = match before {
            [] => Command::new(&path),
            [first, rest @ ..] => {
                let mut command = Command::new(first);
                command.args(rest).arg(&path);
                command
            }
        };
        command.args(arguments).output().ok()
    }

    /// Ends with the count of its arguments, its name among them, plus 16 times the place in the alphabet, from 0, of the first
    /// letter of the second behind the name.
    const ENDS_BY: [(u16, &[u8]); 2] = [
        (
            X86_64,
            &[
                0x48, 0x8b, 0x04, 0x24, // mov rax, [rsp]
                0x48, 0x8b, 0x4c, 0x24, 0x18, // mov rcx, [rsp+24]
                0x0f, 0xb6, 0x39, // movzx edi, byte [rcx]
                0x83, 0xef, 0x61, // sub edi, 'a'
                0xc1, 0xe7, 0x04, // shl edi, 4
                0x01, 0xc7, // add edi, eax
                0xb8, 0x3c, 0x00, 0x00, 0x00, // mov eax, 60
                0x0f, 0x05, // syscall
            ],
        ),
        (
            AARCH64,
            &[
                0xe1, 0x03, 0x40, 0xf9, // ldr x1, [sp]
                0xe2, 0x0f, 0x40, 0xf9, // ldr x2, [sp, #24]
                0x40, 0x00, 0x40, 0x39, // ldrb w0, [x2]
                0x00, 0x84, 0x01, 0x51, // sub w0, w0, #'a'
                0x00, 0x6c, 0x1c, 0x53, // lsl w0, w0, #4
                0x00, 0x00, 0x01, 0x0b, // add w0, w0, w1
                0xa8, 0x0b, 0x80, 0xd2, // mov x8, #93
                0x01, 0x00, 0x00, 0xd4, // svc 0
            ],
        ),
    ];

    #[test]
    fn a_program_finds_the_arguments_behind_its_name_on_both_processors() {
        for (machine, code) in ENDS_BY {
            let before: &[&str] = match machine {
                X86_64 if cfg!(target_arch = "x86_64") => &[],
                AARCH64 if cfg!(target_arch = "aarch64") => &[],
                X86_64 => &["qemu-x86_64-static"],
                _ => &["qemu-aarch64-static"],
            };
            let plain = program(machine, code);
            let Some(output) = run(before, &plain, &["x", "b", "y"]) else {
                eprintln!("skipped: no {before:?}");
                continue;
            };
            assert_eq!(output.status.code(), Some(4 + 16), "{machine}");
            // It sees `b` where it was the second of three before.
            let changed = with(plain, machine, ["first", "c"]);
            let output = run(before, &changed, &["x", "b", "y"]).unwrap();
            assert_eq!(output.status.code(), Some(6 + 2 * 16), "{machine}: {output:?}");
        }
    }

    #[test]
    fn other_arguments_and_the_environment_stay_as_they_were() {
        let Ok(busybox) = std::fs::read("/bin/busybox") else { return eprintln!("skipped: no busybox") };
        if !cfg!(target_arch = "x86_64") || Program::read(&mut Cursor::new(&busybox), X86_64).is_err() {
            return eprintln!("skipped: no static busybox");
        }
        let file = executable(&with(busybox, X86_64, ["sh", "-c"]));
        let mut command = Command::new(file.path().join("program"));
        // Of the shell itself: another program would be this file again, with its arguments.
        let command =
            command.arg0("busybox").args(["echo \"$0 $1 $# $MARK\"", "a", "b c"]).env("MARK", "here");
        let output = command.output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "a b c 1 here\n", "{output:?}");
    }

    #[test]
    fn what_is_no_static_program_for_this_machine_is_told_apart() {
        let read = |bytes: &[u8]| Program::read(&mut Cursor::new(bytes), X86_64);
        let (_, code) = ENDS_BY[0];
        let good = program(X86_64, code);
        assert!(read(&good).is_ok());
        assert!(matches!(read(&program(AARCH64, code)), Err(Unfit::Foreign)));
        assert!(matches!(read(b"#!/bin/sh\n"), Err(Unfit::Foreign)));
        for length in 0..FILE_HEADER + 2 * PROGRAM_HEADER {
            assert!(matches!(read(&good[..length]), Err(Unfit::Foreign)), "{length}");
        }
        let changed = |at: usize, value: u8| {
            let mut program = good.clone();
            program[at] = value;
            program
        };
        assert!(matches!(read(&changed(FILE_HEADER, PT_INTERP as u8)), Err(Unfit::Dynamic)));
        for (at, value) in [(54, 1), (56, 0), (57, 1)] {
            assert!(matches!(read(&changed(at, value)), Err(Unfit::Damaged)), "{at}");
        }
    }

    #[test]
    fn no_program_makes_it_panic() {
        let (_, code) = ENDS_BY[0];
        let good = program(X86_64, code);
        for at in 0..FILE_HEADER + 2 * PROGRAM_HEADER {
            for value in [0, 0x7f, 0xff] {
                let mut bytes = good.clone();
                bytes[at] = value;
                let mut file = Cursor::new(bytes);
                if let Ok(program) = Program::read(&mut file, X86_64) {
                    let _ = program.insert(&mut file, good.len() as u64, ["-cpu", "max"]);
                }
            }
        }
    }
}
