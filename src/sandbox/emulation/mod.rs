//! Whether this machine can run programs for another processor, and what to do if not.
//!
//! The kernel hands programs that it cannot run to handlers registered with binfmt_misc (kernel documentation,
//! `admin-guide/binfmt-misc.rst`), usually qemu's user emulation. Those of the machine are what somebody has set up. In a
//! user namespace there can be others ([`Choice::Own`]): then each step has the CPU of its variant, by `uname -m` and
//! by what it can do, and nothing need be set up.

mod emulator;
mod inserted;
mod instance;
mod model;
mod trial;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{Dir, Mode, OFlags};

pub use emulator::{Emulator, Emulators, Found, OWN_PLACE, Places, Unusable};
pub(super) use instance::register;
pub use instance::try_as_own_handler;
pub use model::Features;
pub use trial::{Trial, try_out};

use super::{Presentation, own};
use crate::sys;

/// Where the kernel's list of handlers is, if it is mounted.
const REGISTRATIONS: &str = "/proc/sys/fs/binfmt_misc";

/// The most that is read of a registration: the kernel writes less than a page.
const MAX_REGISTRATION: usize = 1 << 16;

/// An architecture, and how its programs begin.
struct Architecture {
    /// In Go's words.
    name: &'static str,
    /// In qemu's.
    qemu: &'static str,
    /// ELF's class: 1 of 32 bits, 2 of 64.
    class: u8,
    /// ELF's byte order: 1 the lowest byte first, 2 the highest.
    order: u8,
    /// ELF's number of the machine.
    machine: u16,
}

impl Architecture {
    const fn new(name: &'static str, qemu: &'static str, class: u8, order: u8, machine: u16) -> Self {
        Self { name, qemu, class, order, machine }
    }

    fn is_64_bit_little_endian(&self) -> bool {
        (self.class, self.order) == (2, 1)
    }

    fn of(name: &str) -> Option<&'static Self> {
        ARCHITECTURES.iter().find(|known| known.name == name)
    }
}

/// Those that there are.
static ARCHITECTURES: [Architecture; 14] = [
    Architecture::new("386", "i386", 1, 1, 3),
    Architecture::new("amd64", "x86_64", 2, 1, 62),
    Architecture::new("arm", "arm", 1, 1, 40),
    Architecture::new("arm64", "aarch64", 2, 1, 183),
    Architecture::new("loong64", "loongarch64", 2, 1, 258),
    Architecture::new("mips", "mips", 1, 2, 8),
    Architecture::new("mipsle", "mipsel", 1, 1, 8),
    Architecture::new("mips64", "mips64", 2, 2, 8),
    Architecture::new("mips64le", "mips64el", 2, 1, 8),
    Architecture::new("ppc64", "ppc64", 2, 2, 21),
    Architecture::new("ppc64le", "ppc64le", 2, 1, 21),
    Architecture::new("riscv64", "riscv64", 2, 1, 243),
    Architecture::new("s390x", "s390x", 2, 2, 22),
    Architecture::new("sparc64", "sparc64", 2, 2, 43),
];

/// The architecture of this program, in Go's words: what the machine runs by itself.
#[must_use]
pub fn host_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86" => "386",
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "loongarch64" => "loong64",
        "powerpc64" => {
            if cfg!(target_endian = "little") {
                "ppc64le"
            } else {
                "ppc64"
            }
        }
        other => other,
    }
}

/// Whether this process is in the user namespace of the machine, as far as it can find out: what a step loses there in a
/// namespace of its own is what root of the machine may do.
#[must_use]
pub fn is_of_machine() -> bool {
    own::is_in_initial_user_namespace().unwrap_or(true)
}

/// What a machine runs by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Its architecture, in Go's words.
    pub architecture: String,
    /// Whether programs for the 32-bit predecessor run, too.
    pub predecessor: Predecessor,
    /// What its processor can do, if it is amd64 and that is known.
    pub features: Option<Features>,
}

/// Whether a 64-bit processor runs programs for its 32-bit predecessor (386 on amd64, arm on arm64).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Predecessor {
    /// It does.
    Runs,
    /// It does not, as many server processors for arm64, or there is none.
    DoesNotRun,
}

impl Host {
    /// This machine.
    #[must_use]
    pub fn current() -> Self {
        let runs = sys::has_32_bit_personality();
        let predecessor = if runs { Predecessor::Runs } else { Predecessor::DoesNotRun };
        Self { architecture: host_architecture().to_owned(), predecessor, features: None }
    }

    /// The same with what its processor can do, which a machine with many may take milliseconds to tell.
    #[must_use]
    pub fn with_features(self) -> Self {
        let features = if self.architecture == "amd64" { Features::current() } else { None };
        Self { features, ..self }
    }

    /// What its processor lacks of what programs for `architecture/variant` may need.
    fn lacking(&self, architecture: &str, variant: Option<&str>) -> Vec<&'static str> {
        match &self.features {
            Some(features) if (self.architecture.as_str(), architecture) == ("amd64", "amd64") => {
                features.lacking(variant)
            }
            _ => Vec::new(),
        }
    }

    fn presentation(&self, architecture: &str, variant: Option<&str>) -> Option<Presentation> {
        match (self.architecture.as_str(), architecture) {
            (own, wanted) if own == wanted => {
                self.lacking(architecture, variant).is_empty().then_some(Presentation::Native)
            }
            ("amd64", "386") | ("arm64", "arm") if self.predecessor == Predecessor::Runs => {
                Some(Presentation::ThirtyTwoBit)
            }
            _ => None,
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = self.features.as_ref().map(|features| format!("/{}", features.variant()));
        write!(f, "linux/{}{}", self.architecture, level.unwrap_or_default())
    }
}

/// Whether this machine runs programs for `architecture` without a handler.
pub(super) fn is_native(architecture: &str) -> bool {
    Host::current().presentation(architecture, None).is_some()
}

/// A handler as binfmt_misc lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handler {
    /// Its name, for instance `qemu-arm`.
    pub name: String,
    /// The emulator's path.
    pub interpreter: String,
    /// Its flags, for instance `POF`.
    pub flags: String,
    enabled: bool,
    offset: usize,
    magic: Vec<u8>,
    mask: Vec<u8>,
}

impl Handler {
    /// What will go wrong with it, one sentence each.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if !self.flags.contains('F') {
            warnings.push(format!(
                "the binfmt_misc handler `{}` lacks flag F: `{}` is looked for in the image, where it usually is not",
                self.name, self.interpreter
            ));
        }
        if !self.flags.contains('P') {
            warnings.push(format!(
                "the binfmt_misc handler `{}` lacks flag P: programs do not learn the name they were called by, which \
                 busybox and others need",
                self.name
            ));
        }
        warnings
    }

    /// Reads what binfmt_misc writes about a handler; none for one that goes by file name.
    fn parse(name: &str, text: &str) -> Option<Self> {
        let mut handler = Self {
            name: name.to_owned(),
            interpreter: String::new(),
            flags: String::new(),
            enabled: false,
            offset: 0,
            magic: Vec::new(),
            mask: Vec::new(),
        };
        for line in text.lines() {
            let (key, value) = line.split_once(' ').unwrap_or((line, ""));
            match key {
                "enabled" => handler.enabled = true,
                "interpreter" => value.clone_into(&mut handler.interpreter),
                "flags:" => value.clone_into(&mut handler.flags),
                "offset" => handler.offset = value.parse().ok()?,
                "magic" => handler.magic = hexadecimal(value)?,
                "mask" => handler.mask = hexadecimal(value)?,
                _ => {}
            }
        }
        let masked = handler.mask.is_empty() || handler.mask.len() == handler.magic.len();
        (!handler.magic.is_empty() && masked).then_some(handler)
    }

    /// Whether the kernel would hand it a file that begins so.
    fn matches(&self, header: &[u8]) -> bool {
        let end = self.offset.saturating_add(self.magic.len());
        header.get(self.offset..end).is_some_and(|bytes| {
            bytes.iter().zip(&self.magic).enumerate().all(|(index, (byte, magic))| {
                (byte ^ magic) & self.mask.get(index).copied().unwrap_or(0xff) == 0
            })
        })
    }
}

fn hexadecimal(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|digit| digit.to_digit(16).and_then(|digit| u8::try_from(digit).ok())).collect();
    let (pairs, rest) = digits.as_deref()?.as_chunks::<2>();
    rest.is_empty().then(|| pairs.iter().map(|[high, low]| high << 4 | low).collect())
}

/// The handlers of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Registrations {
    /// The list, by name.
    Listed(Vec<Handler>),
    /// binfmt_misc is switched off as a whole.
    SwitchedOff,
    /// It cannot be read here. There may be handlers all the same: in a container, the list is often not mounted.
    Unreadable,
}

impl Registrations {
    /// Those of this machine.
    #[must_use]
    pub fn current() -> Self {
        match Self::read(Path::new(REGISTRATIONS)) {
            Ok(registrations @ (Self::Listed(_) | Self::SwitchedOff)) => registrations,
            _ => Self::through_own_mount().unwrap_or(Self::Unreadable),
        }
    }

    /// Those listed in `directory`, which has the form of a mounted binfmt_misc; unreadable if it has another.
    ///
    /// # Errors
    /// When the directory or a file in it cannot be read.
    pub fn read(directory: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Self::read_from(rustix::fs::open(directory, flags, Mode::empty())?.as_fd())
    }

    /// Mounts the list, visible to nobody. Only in the initial user namespace: from another, the mount would be a new and
    /// empty list, and would hide that of the machine.
    fn through_own_mount() -> io::Result<Self> {
        if !own::is_in_initial_user_namespace()? {
            return Ok(Self::Unreadable);
        }
        let mount = instance::mount()?;
        let directory = rustix::fs::openat(&mount, ".", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Self::read_from(directory.as_fd())
    }

    fn read_from(directory: BorrowedFd<'_>) -> io::Result<Self> {
        match read_file(directory, c"status") {
            Ok(status) if status.trim_end() == "enabled" => {}
            Ok(_) => return Ok(Self::SwitchedOff),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::Unreadable),
            Err(error) => return Err(error),
        }
        let mut handlers = Vec::new();
        for entry in Dir::read_from(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b".." | b"status" | b"register") {
                continue;
            }
            let text = match read_file(directory, name) {
                // Unregistered meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                result => result?,
            };
            handlers.extend(Handler::parse(&name.to_string_lossy(), &text));
        }
        handlers.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(Self::Listed(handlers))
    }
}

fn read_file(directory: BorrowedFd<'_>, name: &std::ffi::CStr) -> io::Result<String> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, name, flags, Mode::empty())?;
    let mut text = vec![0; MAX_REGISTRATION];
    let mut length = 0;
    while length < text.len() {
        match rustix::io::read(&file, &mut text[length..])? {
            0 => break,
            more => length += more,
        }
    }
    Ok(String::from_utf8_lossy(&text[..length]).into_owned())
}

/// How programs for a platform run on a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Emulation {
    /// By the processor itself; `presentation` makes `uname -m` fit.
    Native(Presentation),
    /// By this handler.
    Handler(Handler),
    /// Not at all.
    Missing(MissingEmulation),
    /// It can only be tried: the list of handlers cannot be read here.
    Unknown,
}

/// Whether a step can have handlers of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnHandlers {
    /// It can.
    Possible,
    /// The kernel has one list of handlers for all.
    OldKernel,
    /// It is in no user namespace, and gets none.
    NoNamespace,
    /// It is to have all rights that root of the machine has, which it would not have in a user namespace.
    AllRights,
}

impl OwnHandlers {
    /// What this kernel allows to steps that can have a user namespace.
    #[must_use]
    pub fn of_kernel() -> Self {
        let release = rustix::system::uname();
        Self::of_release(&release.release().to_string_lossy())
    }

    /// The same of a kernel that calls itself so (uname(2)). Since 6.7 there may be a list for each user namespace.
    fn of_release(release: &str) -> Self {
        let mut numbers = release.split(['.', '-', '+']).map(|number| number.parse().unwrap_or(0));
        let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        if version >= (6, 7) { Self::Possible } else { Self::OldKernel }
    }
}

/// No way to run programs for a platform.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("programs for `{platform}` cannot run on this machine, which is `{host}`: {reason}")]
pub struct MissingEmulation {
    platform: String,
    architecture: String,
    host: String,
    reason: Reason,
    own: OwnHandlers,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum Reason {
    #[error("no handler for them is registered with binfmt_misc")]
    NotRegistered,
    #[error("the binfmt_misc handler `{0}` is disabled")]
    Disabled(String),
    #[error("binfmt_misc is switched off")]
    SwitchedOff,
    #[error("its CPU lacks {}", lacking.join(", "))]
    Level { lacking: Vec<&'static str>, can_be_emulated: bool },
    #[error("no handler for them is registered with binfmt_misc, and {0}")]
    Unusable(String),
}

impl MissingEmulation {
    /// Why there is none.
    #[must_use]
    pub fn reason(&self) -> String {
        self.reason.to_string()
    }

    /// How to get a handler for programs for `architecture`, on one line, where a step can have its own or not.
    #[must_use]
    pub fn advice(architecture: &str, own: OwnHandlers) -> String {
        let machine = format!(
            "on the machine itself (in a cluster: on the node), run `apt-get install qemu-user-static binfmt-support`, or \
             `docker run --privileged --rm tonistiigi/binfmt --install {architecture}`; the handler needs flag F"
        );
        let Some(known) = Architecture::of(architecture) else { return machine };
        let emulator = format!("qemu-{}-static", known.qemu);
        match own {
            OwnHandlers::Possible => format!(
                "give builder a static qemu, `{emulator}`, in PATH (Debian's package qemu-user-static) or in the directory \
                 that --emulator-dir names: nothing else has to be set up"
            ),
            OwnHandlers::OldKernel => {
                format!("{machine}. From Linux 6.7 on, `{emulator}` in PATH or in --emulator-dir is enough")
            }
            OwnHandlers::NoNamespace => format!(
                "{machine}. Where steps are kept apart by mount-namespace or user-namespace (`builder doctor`), \
                 `{emulator}` in PATH or in --emulator-dir is enough"
            ),
            OwnHandlers::AllRights => {
                format!(
                    "{machine}. Without --security=insecure, `{emulator}` in PATH or in --emulator-dir is enough"
                )
            }
        }
    }

    /// What to do about it, on one line.
    #[must_use]
    pub fn hint(&self) -> String {
        match (&self.reason, self.own) {
            (Reason::Level { can_be_emulated: false, .. }, _) => {
                "build on a machine with such a CPU: qemu plays none that has AVX-512".to_owned()
            }
            (Reason::Level { .. }, OwnHandlers::Possible) => format!(
                "build on a machine with such a CPU, or, slower, {}",
                Self::advice(&self.architecture, self.own)
            ),
            (Reason::Level { .. }, _) => "build on a machine with such a CPU".to_owned(),
            (Reason::NotRegistered | Reason::Unusable(_), own) => Self::advice(&self.architecture, own),
            (Reason::Disabled(name), _) => {
                format!("run `echo 1 > {REGISTRATIONS}/{name}` on the machine itself")
            }
            (Reason::SwitchedOff, _) => {
                format!("run `echo 1 > {REGISTRATIONS}/status` on the machine itself")
            }
        }
    }
}

/// How a step for a platform is to run.
#[derive(Debug, Clone)]
pub enum Choice {
    /// As the machine does it: [`Emulation::Missing`] is none of it.
    Machine(Emulation),
    /// By a handler of its own.
    Own {
        /// Which.
        found: Found,
        /// How it can run without.
        instead: Emulation,
    },
}

/// Chooses for programs for `linux/ARCHITECTURE[/VARIANT]` on `host`, which has `registrations`, where `own` says whether a
/// step can have handlers of its own. What the machine has is taken where it does as well. The text says what emulator
/// was not taken, and why.
///
/// # Errors
/// Where they cannot run.
pub fn choose(
    (architecture, variant): (&str, Option<&str>),
    host: &Host,
    registrations: &Registrations,
    emulators: &Emulators,
    own: OwnHandlers,
) -> Result<(Choice, Option<String>), MissingEmulation> {
    let machine = match availability(architecture, variant, host, registrations) {
        Emulation::Missing(missing) => Emulation::Missing(MissingEmulation { own, ..missing }),
        Emulation::Native(presentation) => {
            return Ok((Choice::Machine(Emulation::Native(presentation)), None));
        }
        other => other,
    };
    let is_hopeless = matches!(
        machine,
        Emulation::Missing(MissingEmulation { reason: Reason::Level { can_be_emulated: false, .. }, .. })
    );
    let found = match own {
        OwnHandlers::Possible if !is_hopeless => emulators.find(architecture, variant),
        _ => Ok(None),
    };
    let is_as_good = match &machine {
        Emulation::Handler(handler) => handler.warnings().is_empty() && !emulators.are_named(),
        _ => false,
    };
    match (machine, found) {
        (machine, Ok(Some(found))) if found.cpu.is_some() || !is_as_good => {
            Ok((Choice::Own { found, instead: machine }, None))
        }
        (Emulation::Missing(missing), Err(unusable)) => Err(MissingEmulation {
            reason: match missing.reason {
                Reason::NotRegistered => Reason::Unusable(unusable.to_string()),
                other => other,
            },
            ..missing
        }),
        (Emulation::Missing(missing), Ok(_)) => Err(missing),
        (machine, Err(unusable)) => Ok((Choice::Machine(machine), Some(unusable.to_string()))),
        (machine, Ok(_)) => Ok((Choice::Machine(machine), None)),
    }
}

/// The CPU that the variant stands for, which a step sees only with a handler of its own; none where there is nothing that
/// could be told from another.
#[must_use]
pub fn cpu_of_variant(architecture: &str, variant: Option<&str>) -> Option<&'static str> {
    model::cpu_model(architecture, variant)
}

/// How programs for `linux/ARCHITECTURE[/VARIANT]` run on `host`.
#[must_use]
pub fn availability(
    architecture: &str,
    variant: Option<&str>,
    host: &Host,
    registrations: &Registrations,
) -> Emulation {
    if let Some(presentation) = host.presentation(architecture, variant) {
        return Emulation::Native(presentation);
    }
    let missing = |reason| {
        let variant = variant.map(|variant| format!("/{variant}")).unwrap_or_default();
        Emulation::Missing(MissingEmulation {
            platform: format!("linux/{architecture}{variant}"),
            architecture: architecture.to_owned(),
            host: host.to_string(),
            reason,
            own: OwnHandlers::NoNamespace,
        })
    };
    let lacking = host.lacking(architecture, variant);
    if !lacking.is_empty() {
        return missing(Reason::Level { lacking, can_be_emulated: model::can_be_emulated(variant) });
    }
    let handlers = match registrations {
        Registrations::Listed(handlers) => handlers,
        Registrations::SwitchedOff => return missing(Reason::SwitchedOff),
        Registrations::Unreadable => return Emulation::Unknown,
    };
    let Some(header) = header_of(architecture) else { return missing(Reason::NotRegistered) };
    let mut matching: Vec<&Handler> = handlers.iter().filter(|handler| handler.matches(&header)).collect();
    // The kernel takes the one that was registered last, which the list does not show; the best is the likeliest.
    matching.sort_by_key(|handler| (!handler.enabled, handler.warnings().len()));
    match matching.first() {
        Some(handler) if handler.enabled => Emulation::Handler((*handler).clone()),
        Some(handler) => missing(Reason::Disabled(handler.name.clone())),
        None => missing(Reason::NotRegistered),
    }
}

/// The beginning of a program for `architecture`, as far as handlers look.
fn header_of(architecture: &str) -> Option<[u8; 64]> {
    let Architecture { class, order, machine, .. } = *Architecture::of(architecture)?;
    let number = |value: u16| if order == 1 { value.to_le_bytes() } else { value.to_be_bytes() };
    let mut header = [0; 64];
    header[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, order, 1]);
    // An executable; handlers ignore the lowest bit, which position-independent ones have.
    header[16..18].copy_from_slice(&number(2));
    header[18..20].copy_from_slice(&number(machine));
    Some(header)
}

/// The architecture of a program that begins so, in Go's words.
pub(super) fn architecture_of(head: &[u8]) -> Option<&'static str> {
    let head = head.get(..20)?;
    let expected = |architecture| header_of(architecture);
    ARCHITECTURES.iter().map(|known| known.name).find(|architecture| {
        expected(architecture)
            .is_some_and(|header| head[..6] == header[..6] && head[18..20] == header[18..20])
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const ARM: &str = "enabled\ninterpreter /usr/libexec/qemu-binfmt/arm-binfmt-P\nflags: POF\noffset 0\n\
                       magic 7f454c4601010100000000000000000002002800\nmask ffffffffffffff00fffffffffffffffffeffffff\n";

    fn host(architecture: &str, predecessor: Predecessor) -> Host {
        Host { architecture: architecture.to_owned(), predecessor, features: None }
    }

    fn listed(entries: &[(&str, &str)]) -> Registrations {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in [("status", "enabled\n"), ("register", "")].iter().chain(entries) {
            fs::write(directory.path().join(name), text).unwrap();
        }
        Registrations::read(directory.path()).unwrap()
    }

    #[test]
    fn the_processor_itself_comes_first() {
        let none = Registrations::Listed(Vec::new());
        let native = Emulation::Native(Presentation::Native);
        let older = Emulation::Native(Presentation::ThirtyTwoBit);
        let cases = [
            ("amd64", "amd64", Predecessor::Runs, &native),
            ("amd64", "386", Predecessor::Runs, &older),
            ("arm64", "arm64", Predecessor::DoesNotRun, &native),
            ("arm64", "arm", Predecessor::Runs, &older),
        ];
        for (own, wanted, predecessor, expected) in cases {
            assert_eq!(
                &availability(wanted, None, &host(own, predecessor), &none),
                expected,
                "{wanted} on {own}"
            );
        }
        let without = availability("arm", Some("v7"), &host("arm64", Predecessor::DoesNotRun), &none);
        assert!(matches!(without, Emulation::Missing(_)));
    }

    #[test]
    fn a_handler_is_found_by_what_it_matches_not_by_its_name() {
        let registrations =
            listed(&[("something", ARM), ("by-name", "enabled\ninterpreter /x\nextension .exe\n")]);
        let amd64 = host("amd64", Predecessor::Runs);
        for variant in [None, Some("v5"), Some("v7")] {
            let Emulation::Handler(handler) = availability("arm", variant, &amd64, &registrations) else {
                panic!("{variant:?}");
            };
            assert_eq!((handler.name.as_str(), handler.flags.as_str()), ("something", "POF"));
            assert!(handler.warnings().is_empty());
        }
        assert!(matches!(availability("arm64", None, &amd64, &registrations), Emulation::Missing(_)));
        assert!(matches!(availability("ppc64le", None, &amd64, &registrations), Emulation::Missing(_)));
        assert!(matches!(availability("z80", None, &amd64, &registrations), Emulation::Missing(_)));
    }

    #[test]
    fn the_handlers_of_debian_match_their_architectures() {
        let entries = [
            ("arm64", "7f454c460201010000000000000000000200b700", "ffffffffffffff00fffffffffffffffffeffffff"),
            (
                "ppc64le",
                "7f454c4602010100000000000000000002001500",
                "fffffffffffffffcfffffffffffffffffeffff00",
            ),
            ("s390x", "7f454c4602020100000000000000000000020016", "fffffffffffffffcfffffffffffffffffffeffff"),
            (
                "riscv64",
                "7f454c460201010000000000000000000200f300",
                "ffffffffffffff00fffffffffffffffffeffffff",
            ),
        ];
        let texts = entries.map(|(name, magic, mask)| {
            (name, format!("enabled\ninterpreter /{name}\nflags: PF\noffset 0\nmagic {magic}\nmask {mask}\n"))
        });
        let registrations = listed(&texts.each_ref().map(|(name, text)| (*name, text.as_str())));
        for (name, ..) in entries {
            match availability(name, None, &host("amd64", Predecessor::Runs), &registrations) {
                Emulation::Handler(handler) => assert_eq!(handler.name, name),
                other => panic!("{name}: {other:?}"),
            }
        }
    }

    #[test]
    fn missing_flags_are_told() {
        let registrations = listed(&[("qemu-arm", &ARM.replace("POF", "OC"))]);
        let Emulation::Handler(handler) =
            availability("arm", None, &host("amd64", Predecessor::Runs), &registrations)
        else {
            panic!("no handler");
        };
        let warnings = handler.warnings();
        assert_eq!(warnings.len(), 2);
        assert!(warnings[0].contains("flag F") && warnings[1].contains("flag P"), "{warnings:?}");
    }

    #[test]
    fn the_better_of_two_handlers_is_named() {
        let registrations = listed(&[
            ("a", &ARM.replace("POF", "F")),
            ("b", ARM),
            ("c", &ARM.replace("enabled", "disabled")),
        ]);
        match availability("arm", None, &host("amd64", Predecessor::Runs), &registrations) {
            Emulation::Handler(handler) => assert_eq!(handler.name, "b"),
            other => panic!("{other:?}"),
        }
    }

    /// Emulators for these architectures, in qemu's words, in a directory that the user has named or not.
    fn emulators(names: &[&str], are_named: bool) -> (Emulators, tempfile::TempDir) {
        let directory = tempfile::tempdir().unwrap();
        for name in names {
            let program = emulator::tests::own_program();
            emulator::tests::install(directory.path(), &format!("qemu-{name}-static"), &program);
        }
        let place = directory.path().to_owned();
        let (named, usual) = if are_named { (Some(place), Vec::new()) } else { (None, vec![place]) };
        (Emulators::new(Places { named, usual }), directory)
    }

    /// What is chosen, in a word: `own` with the CPU, or how the machine does it.
    fn chosen(
        platform: (&str, Option<&str>),
        host: &Host,
        registrations: &Registrations,
        emulators: &Emulators,
        own: OwnHandlers,
    ) -> String {
        match choose(platform, host, registrations, emulators, own) {
            Ok((Choice::Own { found, .. }, _)) => format!("own {}", found.cpu.unwrap_or("-")),
            Ok((Choice::Machine(Emulation::Native(_)), _)) => "native".to_owned(),
            Ok((Choice::Machine(Emulation::Handler(_)), _)) => "handler".to_owned(),
            Ok((Choice::Machine(other), _)) => format!("{other:?}"),
            Err(missing) => format!("{missing}; {}", missing.hint()),
        }
    }

    #[test]
    fn a_handler_of_the_steps_own_is_taken_where_that_of_the_machine_does_less() {
        use OwnHandlers::{NoNamespace, OldKernel, Possible};
        let amd64 = host("amd64", Predecessor::Runs);
        let (none, good) = (listed(&[]), listed(&[("qemu-arm", ARM)]));
        let (poor, unknown) = (listed(&[("qemu-arm", &ARM.replace("POF", "F"))]), Registrations::Unreadable);
        let arm64 =
            ("arm64", "7f454c460201010000000000000000000200b700", "ffffffffffffff00fffffffffffffffffeffffff");
        let arm64 =
            format!("enabled\ninterpreter /q\nflags: PF\noffset 0\nmagic {}\nmask {}\n", arm64.1, arm64.2);
        let arm64 = listed(&[("qemu-aarch64", &arm64)]);
        let (found, _directory) = emulators(&["arm", "aarch64"], false);
        let (named, _other) = emulators(&["aarch64"], true);
        let nothing = Emulators::default();
        let v5 = ("arm", Some("v5"));
        for (platform, registrations, emulators, own, expected) in [
            // For the CPU, whatever the machine has.
            (v5, &good, &found, Possible, "own arm926"),
            (("arm", Some("v6")), &poor, &found, Possible, "own arm1176"),
            (("arm", None), &none, &found, Possible, "own cortex-a7"),
            (v5, &unknown, &found, Possible, "own arm926"),
            // What cannot be had is not missed.
            (v5, &good, &nothing, Possible, "handler"),
            (v5, &good, &found, OldKernel, "handler"),
            (v5, &poor, &found, NoNamespace, "handler"),
            // Nothing is better than what is there, but for whoever says so.
            (("arm64", None), &arm64, &found, Possible, "handler"),
            (("arm64", None), &arm64, &named, Possible, "own -"),
            (("arm64", None), &none, &found, Possible, "own -"),
            (("386", None), &none, &found, Possible, "native"),
        ] {
            assert_eq!(
                chosen(platform, &amd64, registrations, emulators, own),
                expected,
                "{platform:?} {own:?}"
            );
        }
        for (own, words) in [
            (Possible, "give builder a static qemu, `qemu-riscv64-static`, in PATH"),
            (OldKernel, "apt-get install qemu-user-static binfmt-support"),
            (NoNamespace, "kept apart by mount-namespace or user-namespace"),
            (OwnHandlers::AllRights, "Without --security=insecure"),
        ] {
            let text = chosen(("riscv64", None), &amd64, &none, &found, own);
            assert!(text.contains("no handler for them is registered") && text.contains(words), "{text}");
        }
    }

    #[test]
    fn a_level_that_the_processor_lacks_is_emulated_or_refused() {
        const V2: &str = "flags : cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3 avx";
        let amd64 = Host { features: Features::parse(V2), ..host("amd64", Predecessor::Runs) };
        let none = listed(&[]);
        let (found, _directory) = emulators(&["x86_64"], false);
        let choose =
            |variant, emulators: &Emulators, own| chosen(("amd64", variant), &amd64, &none, emulators, own);
        for variant in [None, Some("v1"), Some("v2")] {
            assert_eq!(choose(variant, &found, OwnHandlers::Possible), "native", "{variant:?}");
        }
        assert_eq!(choose(Some("v3"), &found, OwnHandlers::Possible), "own max");
        let refused = choose(Some("v3"), &Emulators::default(), OwnHandlers::Possible);
        let words = "programs for `linux/amd64/v3` cannot run on this machine, which is `linux/amd64/v2`: its CPU lacks avx2, bmi1, bmi2, f16c, fma, abm, movbe, xsave; build on a machine with such a CPU, or, slower, give builder";
        assert!(refused.starts_with(words), "{refused}");
        let refused = choose(Some("v3"), &found, OwnHandlers::NoNamespace);
        assert!(refused.ends_with("; build on a machine with such a CPU"), "{refused}");
        let refused = choose(Some("v4"), &found, OwnHandlers::Possible);
        assert!(refused.contains("avx512f") && refused.ends_with("none that has AVX-512"), "{refused}");
        // Whoever does not know refuses nothing.
        let unknown = host("amd64", Predecessor::Runs);
        assert_eq!(chosen(("amd64", Some("v4")), &unknown, &none, &found, OwnHandlers::Possible), "native");
        let foreign = host("arm64", Predecessor::DoesNotRun);
        assert!(
            chosen(("amd64", Some("v4")), &foreign, &none, &found, OwnHandlers::OldKernel).contains("binfmt")
        );
    }

    #[test]
    fn kernels_have_a_list_of_handlers_for_each_user_namespace_from_6_7_on() {
        for (release, expected) in [
            ("6.7.0", OwnHandlers::Possible),
            ("6.18.44-fc-v669", OwnHandlers::Possible),
            ("7.0-rc1", OwnHandlers::Possible),
            ("6.6.99", OwnHandlers::OldKernel),
            ("5.15.0-91-generic", OwnHandlers::OldKernel),
            ("x", OwnHandlers::OldKernel),
        ] {
            assert_eq!(OwnHandlers::of_release(release), expected, "{release}");
        }
    }

    #[test]
    fn what_is_missing_and_what_to_do_is_said() {
        let amd64 = host("amd64", Predecessor::Runs);
        let missing =
            |registrations: &Registrations| match availability("arm", Some("v5"), &amd64, registrations) {
                Emulation::Missing(missing) => (missing.to_string(), missing.hint()),
                other => panic!("{other:?}"),
            };
        let (text, hint) = missing(&listed(&[]));
        assert_eq!(
            text,
            "programs for `linux/arm/v5` cannot run on this machine, which is `linux/amd64`: no handler for them is \
             registered with binfmt_misc"
        );
        assert!(hint.contains("qemu-user-static") && hint.contains("--install arm`"), "{hint}");
        let (text, hint) = missing(&listed(&[("qemu-arm", &ARM.replace("enabled", "disabled"))]));
        assert!(text.ends_with("the binfmt_misc handler `qemu-arm` is disabled"), "{text}");
        assert!(hint.contains("/qemu-arm`"), "{hint}");
        let (text, _) = missing(&Registrations::SwitchedOff);
        assert!(text.ends_with("binfmt_misc is switched off"), "{text}");
    }

    #[test]
    fn an_unmounted_list_says_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let registrations = Registrations::read(directory.path()).unwrap();
        assert_eq!(registrations, Registrations::Unreadable);
        let emulation = availability("arm", None, &host("amd64", Predecessor::Runs), &registrations);
        assert_eq!(emulation, Emulation::Unknown);
        fs::write(directory.path().join("status"), "disabled\n").unwrap();
        assert_eq!(Registrations::read(directory.path()).unwrap(), Registrations::SwitchedOff);
    }

    #[test]
    fn broken_registrations_are_no_handlers() {
        for text in [
            "",
            "enabled\nmagic 7f4\n",
            "enabled\nmagic zz\n",
            "enabled\noffset -1\nmagic 7f\n",
            "enabled\nmagic 7f45\nmask ff\n",
        ] {
            assert_eq!(Handler::parse("x", text), None, "{text}");
        }
        let far = Handler::parse("x", &format!("enabled\noffset {}\nmagic 7f\n", usize::MAX)).unwrap();
        assert!(!far.matches(&[0x7f; 64]));
    }

    #[test]
    fn programs_tell_their_architecture() {
        let own = fs::read("/proc/self/exe").unwrap();
        assert_eq!(architecture_of(&own), Some(host_architecture()));
        assert!(is_native(host_architecture()));
        assert_eq!(architecture_of(&header_of("arm").unwrap()), Some("arm"));
        assert_eq!(architecture_of(b"#!/bin/sh\n"), None);
        assert_eq!(architecture_of(&own[..19]), None);
    }
}
