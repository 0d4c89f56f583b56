//! The emulators that builder brings along or finds: static programs of qemu, prepared to be handlers of binfmt_misc.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;

use super::inserted::{Program, Unfit};
use super::{Architecture, host_architecture, model};

/// The largest emulator: it is kept in memory. Those of qemu have ten megabytes.
const MAX_EMULATOR: u64 = 32 << 20;

/// The most that all emulators of a build may have together.
const MOST_TOGETHER: u64 = 256 << 20;

/// Where builder's own image has emulators, if it has any.
pub const OWN_PLACE: &str = "/kaniko/qemu";

/// The byte by which an emulator for the machine's own architecture is told from the programs that it is for: the last of
/// ELF's identification, which has no meaning and is 0.
pub(super) const MARK: (usize, u8) = (15, b'e');

/// An emulator that can be a handler: a sealed file in memory.
#[derive(Debug, Clone)]
pub struct Emulator {
    /// What it runs, in Go's words.
    pub(super) architecture: &'static str,
    /// The file, opened for reading.
    pub(in crate::sandbox) file: Arc<OwnedFd>,
}

impl Emulator {
    /// What it runs.
    pub(in crate::sandbox) fn architecture(&self) -> &'static str {
        self.architecture
    }

    /// How much memory it takes.
    fn size(&self) -> u64 {
        let size = rustix::fs::fstat(&*self.file).ok().and_then(|found| u64::try_from(found.st_size).ok());
        // None takes more.
        size.unwrap_or(MAX_EMULATOR)
    }

    /// The one in `file`.
    pub(in crate::sandbox) fn of(architecture: &str, file: OwnedFd) -> Option<Self> {
        Some(Self { architecture: Architecture::of(architecture)?.name, file: Arc::new(file) })
    }
}

/// An emulator that was found.
#[derive(Debug, Clone)]
pub struct Found {
    /// Where it is.
    pub path: PathBuf,
    /// The CPU that it plays, unless that is its own choice.
    pub cpu: Option<&'static str>,
    /// What it is as a handler.
    pub emulator: Emulator,
    /// What comes before it, and cannot be used.
    pub passed_over: Vec<Unusable>,
}

/// Why an emulator is of no use.
#[derive(Debug, Clone, thiserror::Error)]
#[error("`{}` is of no use as an emulator: {problem}", path.display())]
pub struct Unusable {
    path: PathBuf,
    problem: String,
}

/// Where emulators are looked for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Places {
    /// The directory that the user has named: what is there is taken before any handler of the machine.
    pub named: Option<PathBuf>,
    /// Others, in order.
    pub usual: Vec<PathBuf>,
}

/// The emulators of a build.
#[derive(Debug, Default)]
pub struct Emulators {
    places: Places,
    prepared: Mutex<BTreeMap<(&'static str, Option<&'static str>), Prepared>>,
}

type Prepared = Result<Option<Found>, Unusable>;

impl Emulators {
    /// Those in `places`.
    #[must_use]
    pub fn new(places: Places) -> Self {
        Self { places, prepared: Mutex::default() }
    }

    /// Whether the user has named where they are.
    pub(super) fn are_named(&self) -> bool {
        self.places.named.is_some()
    }

    /// The one for programs for `architecture/variant`, with the CPU that the variant stands for; none where there is none.
    ///
    /// # Errors
    /// When there is one, and it cannot be used.
    pub fn find(&self, architecture: &str, variant: Option<&str>) -> Result<Option<Found>, Unusable> {
        let Some(known) = Architecture::of(architecture) else { return Ok(None) };
        let cpu = model::cpu_model(architecture, variant);
        let mut prepared = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = prepared.get(&(known.name, cpu)) {
            return known.clone();
        }
        let sizes = prepared.values().filter_map(|prepared| prepared.as_ref().ok()?.as_ref());
        let room = MOST_TOGETHER.saturating_sub(sizes.map(|found| found.emulator.size()).sum());
        let made = self.places.prepare(known, cpu, room);
        prepared.insert((known.name, cpu), made.clone());
        made
    }
}

impl Places {
    /// Prepares the first that there is, with no more than `room` bytes. One that cannot be used does not stand in the way of
    /// those in other places; it is said, as it may be what the user meant.
    fn prepare(&self, architecture: &Architecture, cpu: Option<&'static str>, room: u64) -> Prepared {
        let mut unusable = Vec::new();
        for directory in self.named.iter().chain(&self.usual) {
            for suffix in ["-static", ""] {
                let path = directory.join(format!("qemu-{}{suffix}", architecture.qemu));
                // What is not there, and directories of that name.
                let Some(metadata) = path.metadata().ok().filter(std::fs::Metadata::is_file) else {
                    continue;
                };
                match prepare(&path, &metadata, architecture, cpu, room) {
                    Ok(found) => return Ok(Some(Found { passed_over: unusable, ..found })),
                    Err(error) => unusable.push(Unusable { path, problem: error.to_string() }),
                }
            }
        }
        unusable.into_iter().next().map_or(Ok(None), Err)
    }
}

fn prepare(
    path: &Path,
    metadata: &std::fs::Metadata,
    architecture: &Architecture,
    cpu: Option<&'static str>,
    room: u64,
) -> Result<Found, Unfit> {
    if metadata.permissions().mode() & 0o111 == 0 {
        return Err(Unfit::NotExecutable);
    }
    let host = Architecture::of(host_architecture());
    // What it takes to read the header of a program for another kind of machine is not here.
    let host = host.filter(|known| known.is_64_bit_little_endian()).ok_or(Unfit::Foreign)?;
    let mut source = File::open(path)?;
    let program = Program::read(&mut source, host.machine)?;
    // Before any of it is in memory; and while it is copied, as it may grow.
    let check = |length: u64| match length {
        length if length > MAX_EMULATOR => Err(Unfit::TooLarge { most: MAX_EMULATOR }),
        length if length > room => Err(Unfit::TooManyBytes { most: MOST_TOGETHER }),
        _ => Ok(()),
    };
    check(metadata.len())?;
    let mut memory = Memory::new(architecture.qemu)?;
    source.seek(SeekFrom::Start(0))?;
    let length = io::copy(&mut source.take(MAX_EMULATOR.min(room) + 1), &mut memory.0)?;
    check(length)?;
    let cpu = cpu.filter(|_| program.can_insert());
    if let Some(cpu) = cpu {
        program.insert(&mut memory.0, length, ["-cpu", cpu])?;
    }
    if architecture.name == host.name {
        memory.0.seek(SeekFrom::Start(MARK.0 as u64))?;
        memory.0.write_all(&[MARK.1])?;
    }
    let file = Arc::new(memory.seal()?);
    let emulator = Emulator { architecture: architecture.name, file };
    Ok(Found { path: path.to_owned(), cpu, emulator, passed_over: Vec::new() })
}

/// A file in memory that is to be executed.
pub(super) struct Memory(pub(super) File);

impl Memory {
    pub(super) fn new(name: impl fmt::Display) -> io::Result<Self> {
        let name = format!("builder-{name}");
        let memory = |flags| rustix::fs::memfd_create(name.as_str(), flags);
        let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC;
        // Before Linux 6.3 the flag is not known, and every such file can be executed.
        let file = match memory(flags | MemfdFlags::EXEC) {
            Err(Errno::INVAL) => memory(flags),
            result => result,
        };
        Ok(Self(File::from(file?)))
    }

    /// What was written, for reading and executing only, and unchangeable: steps execute it that must not reach each other.
    pub(super) fn seal(self) -> io::Result<OwnedFd> {
        let all = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
        rustix::fs::fcntl_add_seals(self.0.as_fd(), all)?;
        // Nobody can execute what somebody may still write to.
        let path = format!("/proc/self/fd/{}", self.0.as_raw_fd());
        Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs;
    use std::os::unix::fs::OpenOptionsExt as _;

    use super::*;

    /// A directory with the executable `program` in it.
    pub(in crate::sandbox::emulation) fn executable(program: &[u8]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        install(directory.path(), "program", program);
        directory
    }

    pub(in crate::sandbox::emulation) fn install(directory: &Path, name: &str, program: &[u8]) {
        let mut options = fs::OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o755).open(directory.join(name));
        file.unwrap().write_all(program).unwrap();
    }

    /// A static program for this machine, as far as anybody looks who does not start it.
    pub(in crate::sandbox::emulation) fn own_program() -> Vec<u8> {
        const LENGTH: u64 = 400;
        let mut program = super::super::header_of(host_architecture()).unwrap().to_vec();
        for (place, value) in [(24, 0x40_0100_u64), (32, 64)] {
            program[place..place + 8].copy_from_slice(&value.to_le_bytes());
        }
        program[54..58].copy_from_slice(&[56, 0, 1, 0]);
        program.extend([1, 5].map(u32::to_le_bytes).concat());
        program.extend([0, 0x40_0000, 0x40_0000, LENGTH, LENGTH, 0x1000].map(u64::to_le_bytes).concat());
        program.resize(LENGTH as usize, 0);
        program
    }

    #[test]
    fn the_named_directory_comes_first_and_what_cannot_be_used_is_passed_over() {
        let (named, one, two) = (tempfile::tempdir(), tempfile::tempdir(), tempfile::tempdir());
        let (named, one, two) = (named.unwrap(), one.unwrap(), two.unwrap());
        let places = Places {
            named: Some(named.path().to_owned()),
            usual: vec![one.path().to_owned(), two.path().to_owned()],
        };
        let find = || Emulators::new(places.clone()).find("riscv64", None);
        assert!(find().unwrap().is_none());
        install(one.path(), "qemu-riscv64-static", b"#!/bin/sh\n");
        let error = find().unwrap_err().to_string();
        assert!(
            error.contains("qemu-riscv64-static` is of no use") && error.ends_with("for this machine"),
            "{error}"
        );
        install(two.path(), "qemu-riscv64", &own_program());
        let found = find().unwrap().unwrap();
        assert_eq!((found.path, found.cpu), (two.path().join("qemu-riscv64"), None));
        let told: Vec<String> = found.passed_over.iter().map(ToString::to_string).collect();
        assert_eq!(told, [error]);
        install(named.path(), "qemu-riscv64", &own_program());
        assert_eq!(find().unwrap().unwrap().path, named.path().join("qemu-riscv64"));
        assert!(Emulators::new(places).find("z80", None).unwrap().is_none());
    }

    #[test]
    fn what_is_cut_off_too_large_or_no_program_is_told_of() {
        let whole = own_program();
        let room = whole.len() as u64;
        let known = Architecture::of("riscv64").unwrap();
        // As large as it says to be, without taking room on the disk.
        let large =
            |path: &Path| fs::File::options().write(true).open(path).unwrap().set_len(MAX_EMULATOR + 1);
        let unexecutable = |path: &Path| File::open(path)?.set_permissions(fs::Permissions::from_mode(0o644));
        let nothing = |_: &Path| Ok(());
        type Change<'a> = &'a dyn Fn(&Path) -> io::Result<()>;
        let cases: [(&[u8], Change<'_>, u64, &str); 7] = [
            (&whole, &nothing, room, ""),
            (&whole[..whole.len() / 2], &nothing, room, "it is cut off: its segments reach to byte "),
            (&whole[..100], &nothing, room, "it is no program for this machine"),
            (b"", &nothing, room, "it is no program for this machine"),
            (&whole, &unexecutable, room, "it is not executable"),
            (&whole, &large, u64::MAX, "it is larger than 32 MiB"),
            (
                &whole,
                &nothing,
                room - 1,
                "with it, all emulators together would take more than 256 MiB of memory",
            ),
        ];
        for (program, change, room, expected) in cases {
            let directory = tempfile::tempdir().unwrap();
            install(directory.path(), "qemu-riscv64", program);
            change(&directory.path().join("qemu-riscv64")).unwrap();
            let places = Places { named: Some(directory.path().to_owned()), usual: Vec::new() };
            let problem = places.prepare(known, None, room).err().map(|error| error.problem);
            let problem = problem.unwrap_or_default();
            assert!(problem.contains(expected) && problem.is_empty() == expected.is_empty(), "{problem}");
        }
    }

    #[test]
    fn an_emulator_is_prepared_once_and_can_be_changed_by_nobody() {
        let directory = tempfile::tempdir().unwrap();
        install(directory.path(), "qemu-arm-static", &own_program());
        let places = Places { named: None, usual: vec![directory.path().to_owned()] };
        let emulators = Emulators::new(places);
        let found = emulators.find("arm", Some("v5")).unwrap().unwrap();
        assert_eq!(found.cpu, Some("arm926"));
        let again = emulators.find("arm", Some("v5")).unwrap().unwrap();
        assert!(Arc::ptr_eq(&found.emulator.file, &again.emulator.file));
        let path = format!("/proc/self/fd/{}", found.emulator.file.as_raw_fd());
        let written = fs::OpenOptions::new().write(true).open(path).and_then(|mut file| file.write_all(b"x"));
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn the_emulator_of_the_machines_own_architecture_has_a_mark() {
        let directory = tempfile::tempdir().unwrap();
        let host = Architecture::of(host_architecture()).unwrap();
        for known in [host.qemu, "arm"] {
            install(directory.path(), &format!("qemu-{known}"), &own_program());
        }
        let emulators =
            Emulators::new(Places { named: Some(directory.path().to_owned()), usual: Vec::new() });
        for (architecture, marked) in [(host.name, true), ("arm", host.name == "arm")] {
            let found = emulators.find(architecture, None).unwrap().unwrap();
            let mut byte = [0];
            rustix::io::pread(&*found.emulator.file, &mut byte, MARK.0 as u64).unwrap();
            assert_eq!(byte[0] == MARK.1, marked, "{architecture}");
        }
    }
}
