//! Whether this machine can run programs for another processor, and what to do if not.
//!
//! The kernel hands programs that it cannot run to handlers registered with binfmt_misc (kernel documentation,
//! `admin-guide/binfmt-misc.rst`), usually qemu's user emulation. Which CPU model qemu plays is left to qemu: its choice
//! runs programs for every variant, but `uname -m` then says `armv7l` for `arm/v5`, too. `QEMU_CPU` could change that and
//! would be visible in the environment of the step.

mod trial;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{Dir, Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

pub use trial::{Trial, try_out};

use super::{Presentation, own};
use crate::sys;

/// Where the kernel's list of handlers is, if it is mounted.
const REGISTRATIONS: &str = "/proc/sys/fs/binfmt_misc";

/// The most that is read of a registration: the kernel writes less than a page.
const MAX_REGISTRATION: usize = 1 << 16;

/// Architectures in Go's words with ELF class, byte order and machine number.
const ARCHITECTURES: [(&str, u8, u8, u16); 14] = [
    ("386", 1, 1, 3),
    ("amd64", 2, 1, 62),
    ("arm", 1, 1, 40),
    ("arm64", 2, 1, 183),
    ("loong64", 2, 1, 258),
    ("mips", 1, 2, 8),
    ("mipsle", 1, 1, 8),
    ("mips64", 2, 2, 8),
    ("mips64le", 2, 1, 8),
    ("ppc64", 2, 2, 21),
    ("ppc64le", 2, 1, 21),
    ("riscv64", 2, 1, 243),
    ("s390x", 2, 2, 22),
    ("sparc64", 2, 2, 43),
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

/// What a machine runs by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Its architecture, in Go's words.
    pub architecture: String,
    /// Whether programs for the 32-bit predecessor run, too.
    pub predecessor: Predecessor,
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
        Self { architecture: host_architecture().to_owned(), predecessor }
    }

    fn presentation(&self, architecture: &str) -> Option<Presentation> {
        match (self.architecture.as_str(), architecture) {
            (own, wanted) if own == wanted => Some(Presentation::Native),
            ("amd64", "386") | ("arm64", "arm") if self.predecessor == Predecessor::Runs => {
                Some(Presentation::ThirtyTwoBit)
            }
            _ => None,
        }
    }
}

/// Whether this machine runs programs for `architecture` without a handler.
pub(super) fn is_native(architecture: &str) -> bool {
    Host::current().presentation(architecture).is_some()
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
        let context = fsopen("binfmt_misc", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&context)?;
        let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
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

/// No way to run programs for a platform.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("programs for `{platform}` cannot run on this machine, which is `{host}`: {reason}")]
pub struct MissingEmulation {
    platform: String,
    architecture: String,
    host: String,
    reason: Reason,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum Reason {
    #[error("no handler for them is registered with binfmt_misc")]
    NotRegistered,
    #[error("the binfmt_misc handler `{0}` is disabled")]
    Disabled(String),
    #[error("binfmt_misc is switched off")]
    SwitchedOff,
}

impl MissingEmulation {
    /// Why there is none.
    #[must_use]
    pub fn reason(&self) -> String {
        self.reason.to_string()
    }

    /// How to get a handler for programs for `architecture`, on one line.
    #[must_use]
    pub fn advice(architecture: &str) -> String {
        format!(
            "on the machine itself (in a cluster: on the node), run `apt-get install qemu-user-static binfmt-support`, or \
             `docker run --privileged --rm tonistiigi/binfmt --install {architecture}`; the handler needs flag F"
        )
    }

    /// What to do about it, on one line.
    #[must_use]
    pub fn hint(&self) -> String {
        match &self.reason {
            Reason::NotRegistered => Self::advice(&self.architecture),
            Reason::Disabled(name) => format!("run `echo 1 > {REGISTRATIONS}/{name}` on the machine itself"),
            Reason::SwitchedOff => format!("run `echo 1 > {REGISTRATIONS}/status` on the machine itself"),
        }
    }
}

/// How programs for `linux/ARCHITECTURE[/VARIANT]` run on `host`.
#[must_use]
pub fn availability(
    architecture: &str,
    variant: Option<&str>,
    host: &Host,
    registrations: &Registrations,
) -> Emulation {
    if let Some(presentation) = host.presentation(architecture) {
        return Emulation::Native(presentation);
    }
    let missing = |reason| {
        let variant = variant.map(|variant| format!("/{variant}")).unwrap_or_default();
        Emulation::Missing(MissingEmulation {
            platform: format!("linux/{architecture}{variant}"),
            architecture: architecture.to_owned(),
            host: format!("linux/{}", host.architecture),
            reason,
        })
    };
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
    let (_, class, order, machine) = *ARCHITECTURES.iter().find(|entry| entry.0 == architecture)?;
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
    ARCHITECTURES.iter().map(|entry| entry.0).find(|architecture| {
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
        Host { architecture: architecture.to_owned(), predecessor }
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
