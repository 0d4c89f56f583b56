//! What is written down about an exchange, for whoever starts after a builder that was killed.
//!
//! The journal is one small text file: lines of words, bytes as hexadecimal digits. It is written whole before anything is
//! moved; its name says how far the exchange has come. That is enough after SIGKILL: what the kernel has been told stays.
//!
//! | there is | so | and whoever repairs |
//! |---|---|---|
//! | none, or `journal.new` | nothing was moved | has nothing to do; something aside would be of nobody knows where |
//! | `journal.apart` | nothing of an image is in the root; what is aside is the container's, be it a part of a directory | moves back what is aside |
//! | `journal.exchanged` | all that is the container's is aside, or stays; all else in the root is an image's | removes that, and moves back what is aside |

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read, Write as _};
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::face::Face;
use super::moving::act;
use crate::rootfs::{GuestPath, Owner, Timestamp, Xattrs, remove_tree};

/// The first line: who wrote it, and how it is to be read.
const HEADER: &str = "builder in-place 1";

/// The largest journal that is read, in bytes. It has a line for each directory that holds a mount.
const LARGEST: u64 = 16 << 20;

/// What it is called, the last while it is being written.
const FILES: [&str; 3] = ["journal.exchanged", "journal.apart", "journal.new"];
const UNFINISHED: &str = FILES[2];

/// How far an exchange has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nothing of the image is in the root; files of the container may be aside.
    Apart,
    /// All files of the container are aside; what is in the root and does not stay there is the image's.
    Exchanged,
}

impl Phase {
    fn file(self) -> &'static str {
        match self {
            Self::Apart => FILES[1],
            Self::Exchanged => FILES[0],
        }
    }

    fn other(self) -> Self {
        match self {
            Self::Apart => Self::Exchanged,
            Self::Exchanged => Self::Apart,
        }
    }
}

/// A directory of the container's root that holds something that stays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) path: GuestPath,
    /// The names in it that stay.
    stay: BTreeSet<Vec<u8>>,
    /// What it is when no step runs.
    pub(super) face: Face,
}

impl Entry {
    /// The directory `path`, in which what lies at `points` stays or holds what stays; those elsewhere do not matter.
    pub(super) fn new<'a>(
        path: GuestPath,
        points: impl IntoIterator<Item = &'a GuestPath>,
        face: Face,
    ) -> Self {
        let depth = path.components().count();
        let below = points.into_iter().filter(|point| point.starts_with(&path));
        let stay = below.filter_map(|point| point.components().nth(depth).map(<[u8]>::to_vec)).collect();
        Self { path, stay, face }
    }

    /// Whether the entry `name` of this directory stays.
    pub(super) fn keeps(&self, name: &[u8]) -> bool {
        self.stay.contains(name)
    }
}

/// A journal on the disk, beside what is aside.
#[derive(Debug)]
pub(super) struct Journal<'a> {
    private: BorrowedFd<'a>,
    phase: Phase,
}

impl<'a> Journal<'a> {
    /// Writes a new one into the directory `private`; it begins [`Phase::Apart`].
    pub(super) fn begin<'e>(
        private: BorrowedFd<'a>,
        entries: impl IntoIterator<Item = &'e Entry>,
    ) -> io::Result<Self> {
        let text = encode(entries);
        let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = act(|| rustix::fs::openat(private, UNFINISHED, flags, Mode::RUSR | Mode::WUSR))?;
        File::from(file).write_all(text.as_bytes())?;
        act(|| rustix::fs::renameat(private, UNFINISHED, private, Phase::Apart.file()))?;
        Ok(Self { private, phase: Phase::Apart })
    }

    /// The one in `private`, if there is one.
    ///
    /// # Errors
    /// When it cannot be read, or is none.
    pub(super) fn read(private: BorrowedFd<'a>) -> io::Result<Option<(Self, Vec<Entry>)>> {
        for phase in [Phase::Exchanged, Phase::Apart] {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = match rustix::fs::openat(private, phase.file(), flags, Mode::empty()) {
                Ok(file) => file,
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(error.into()),
            };
            return read_file(file.into()).map(|entries| Some((Self { private, phase }, entries)));
        }
        Ok(None)
    }

    /// Removes what is called like one, whatever it is.
    pub(super) fn remove_all(private: BorrowedFd<'_>) -> io::Result<()> {
        FILES.iter().try_for_each(|name| act(|| remove_tree(private, name.as_bytes())))
    }

    /// Whether one may be called `name`.
    pub(super) fn has(name: &[u8]) -> bool {
        FILES.iter().any(|file| file.as_bytes() == name)
    }

    /// How far the exchange has come.
    pub(super) fn phase(&self) -> Phase {
        self.phase
    }

    /// Notes that it has come to the other phase.
    pub(super) fn turn(&mut self) -> io::Result<()> {
        let next = self.phase.other();
        act(|| rustix::fs::renameat(self.private, self.phase.file(), self.private, next.file()))?;
        self.phase = next;
        Ok(())
    }

    /// Writes it anew, as [`Phase::Apart`], where it could not be turned: a step may have taken it away. Whoever read
    /// [`Phase::Exchanged`] from now on would take the container's files for the image's.
    pub(super) fn rewrite<'e>(&mut self, entries: impl IntoIterator<Item = &'e Entry>) -> io::Result<()> {
        *self = Self::begin(self.private, entries)?;
        remove(self.private, Phase::Exchanged.file())
    }

    /// Removes it: everything is where it belongs.
    pub(super) fn end(self) -> io::Result<()> {
        FILES.iter().try_for_each(|name| remove(self.private, name))
    }
}

fn remove(private: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    match act(|| rustix::fs::unlinkat(private, name, AtFlags::empty())) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn read_file(file: File) -> io::Result<Vec<Entry>> {
    let mut text = String::new();
    let length = file.take(LARGEST + 1).read_to_string(&mut text)?;
    if length as u64 > LARGEST {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    decode(&text)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it is no journal of this builder"))
}

fn encode<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> String {
    let mut text = format!("{HEADER}\n");
    for Entry { path, stay, face } in entries {
        let Face { owner: Owner { uid, gid }, mode, mtime: Timestamp { seconds, nanoseconds }, xattrs } =
            face;
        // Writing into a string does not fail.
        let _ = writeln!(
            text,
            "directory {} {uid} {gid} {mode} {seconds} {nanoseconds}",
            digits(path.as_bytes())
        );
        for (key, value) in xattrs {
            let _ = writeln!(text, "attribute {} {}", digits(key), digits(value));
        }
        for name in stay {
            let _ = writeln!(text, "stays {}", digits(name));
        }
    }
    text.push_str("end\n");
    text
}

fn decode(text: &str) -> Option<Vec<Entry>> {
    let mut lines = text.lines();
    let mut entries: Vec<Entry> = Vec::new();
    if lines.next()? != HEADER {
        return None;
    }
    for line in lines.by_ref() {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["directory", path, uid, gid, mode, seconds, nanoseconds] => entries.push(Entry {
                path: GuestPath::clamp(&bytes(path)?).ok()?,
                stay: BTreeSet::new(),
                face: Face {
                    owner: Owner { uid: uid.parse().ok()?, gid: gid.parse().ok()? },
                    mode: mode.parse().ok().filter(|mode| *mode <= 0o7777)?,
                    mtime: Timestamp {
                        seconds: seconds.parse().ok()?,
                        nanoseconds: nanoseconds.parse().ok().filter(|rest| *rest < 1_000_000_000)?,
                    },
                    xattrs: Xattrs::new(),
                },
            }),
            ["attribute", key, value] => {
                entries.last_mut()?.face.xattrs.insert(bytes(key)?, bytes(value)?);
            }
            ["stays", name] => {
                let name = bytes(name).filter(|name| is_name(name))?;
                entries.last_mut()?.stay.insert(name);
            }
            ["end"] => return lines.next().is_none().then_some(entries),
            _ => return None,
        }
    }
    None
}

/// Whether it is one component of a path.
fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name != b"." && name != b".." && !name.iter().any(|byte| matches!(byte, b'/' | 0))
}

/// Of no bytes at all it is `-`.
fn digits(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "-".to_owned();
    }
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn bytes(digits: &str) -> Option<Vec<u8>> {
    if digits == "-" {
        return Some(Vec::new());
    }
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| {
        let text = std::str::from_utf8(pair).ok().filter(|text| !text.starts_with('+'))?;
        u8::from_str_radix(text, 16).ok()
    };
    rest.is_empty().then(|| pairs.iter().map(byte).collect())?
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    fn entries() -> Vec<Entry> {
        let face = Face {
            owner: Owner { uid: 7, gid: u32::MAX - 1 },
            mode: 0o1777,
            mtime: Timestamp { seconds: -5, nanoseconds: 999_999_999 },
            xattrs: Xattrs::from([
                (b"user.a b".to_vec(), b"\x00\xff".to_vec()),
                (b"user.e".to_vec(), Vec::new()),
            ]),
        };
        let path = |text: &[u8]| GuestPath::clamp(text).unwrap();
        let points = [&b"/proc"[..], b"/a\nb \\", b"/a\nb \\/c"].map(path);
        let root = Entry::new(GuestPath::root(), &points, face);
        let other = Entry::new(path(b"/var/\xfe x"), &points, root.face.clone());
        vec![root, other]
    }

    #[test]
    fn a_journal_is_read_as_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let private = File::open(directory.path()).unwrap();
        let read = || {
            let found = Journal::read(private.as_fd()).unwrap();
            found.map(|(journal, entries)| (journal.phase(), entries))
        };
        assert_eq!(read(), None);
        let mut journal = Journal::begin(private.as_fd(), &entries()).unwrap();
        assert_eq!(read(), Some((Phase::Apart, entries())));
        journal.turn().unwrap();
        assert_eq!((read(), journal.phase()), (Some((Phase::Exchanged, entries())), Phase::Exchanged));
        journal.turn().unwrap();
        assert_eq!((read(), journal.phase()), (Some((Phase::Apart, entries())), Phase::Apart));
        journal.end().unwrap();
        assert_eq!(read(), None);
    }

    #[test]
    fn a_journal_that_a_step_took_away_or_copied_is_written_anew() {
        type Hostile = fn(&std::path::Path);
        let hostile: [Hostile; 3] = [
            |path| std::fs::remove_file(path.join("journal.exchanged")).unwrap(),
            |path| std::fs::rename(path.join("journal.exchanged"), path.join("journal.apart")).unwrap(),
            |path| {
                std::fs::remove_file(path.join("journal.exchanged")).unwrap();
                std::fs::write(path.join("journal.new"), "x").unwrap();
            },
        ];
        for hostile in hostile {
            let directory = tempfile::tempdir().unwrap();
            let private = File::open(directory.path()).unwrap();
            let mut journal = Journal::begin(private.as_fd(), []).unwrap();
            journal.turn().unwrap();
            hostile(directory.path());
            assert!(journal.turn().is_err());
            journal.rewrite(&entries()).unwrap();
            let (found, read) = Journal::read(private.as_fd()).unwrap().unwrap();
            assert_eq!((journal.phase(), found.phase(), read), (Phase::Apart, Phase::Apart, entries()));
            journal.end().unwrap();
            assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn what_stays_in_a_directory_is_the_next_name_on_the_way_there() {
        let path = |text: &str| GuestPath::clamp(text.as_bytes()).unwrap();
        let points = ["/var/run/x", "/var/lib", "/data", "/var/run/a", "/variable/x", "/etc/hosts"].map(path);
        let entry = |directory: &str| Entry::new(path(directory), &points, entries()[0].face.clone());
        for (directory, stays) in [
            ("/", &["var", "data", "variable", "etc"][..]),
            ("/var", &["run", "lib"]),
            ("/var/run", &["x", "a"]),
            ("/usr", &[]),
        ] {
            let entry = entry(directory);
            let names = ["var", "data", "variable", "etc", "run", "lib", "x", "a", "hosts", "usr"];
            for name in names {
                assert_eq!(entry.keeps(name.as_bytes()), stays.contains(&name), "{directory}: {name}");
            }
        }
    }

    #[test]
    fn what_a_step_may_have_put_there_is_an_error() {
        let good = encode(&entries());
        assert!(decode(&good).is_some());
        for cut in 0..good.len() - 1 {
            assert!(decode(&good[..cut]).is_none(), "{cut}");
        }
        let lines = [
            "directory 2f 0 0 4096 0 0",
            "directory 2f 0 0 0 0 1000000000",
            "directory 2 0 0 0 0 0",
            "directory +f 0 0 0 0 0",
            "directory 2f00 0 0 0 0 0",
            "stays 61",
            "unknown",
        ];
        for line in lines {
            assert!(decode(&format!("{HEADER}\n{line}\nend\n")).is_none(), "{line}");
        }
        for name in ["", ".", "..", "a/b", "a\0b"] {
            let stays = format!("stays {}", digits(name.as_bytes()));
            let text = format!("{HEADER}\ndirectory 2f 0 0 0 0 0\n{stays}\nend\n");
            assert!(decode(&text).is_none(), "{name:?}");
        }
        assert!(decode("builder in-place 2\nend\n").is_none());
        let directory = tempfile::tempdir().unwrap();
        let private = File::open(directory.path()).unwrap();
        for make in [
            &(|path: &std::path::Path| rustix::fs::symlink("/etc/passwd", path).unwrap())
                as &dyn Fn(&std::path::Path),
            &|path| std::fs::create_dir(path).unwrap(),
            &|path| rustix::fs::mkfifoat(rustix::fs::CWD, path, Mode::RUSR).unwrap(),
        ] {
            let path = directory.path().join(Phase::Exchanged.file());
            make(&path);
            assert!(Journal::read(private.as_fd()).is_err());
            let _ = std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir(&path));
        }
    }
}
