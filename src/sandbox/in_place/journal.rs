//! What is written down about an exchange, for whoever starts after a builder that was killed.
//!
//! The journal is one small text file: lines of words, bytes as hexadecimal digits. It is written whole before anything is
//! moved; its name says how far the exchange has come. That is enough after SIGKILL: what the kernel has been told stays.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read, Write as _};
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::face::Face;
use super::moving::act;
use crate::rootfs::{GuestPath, Owner, Timestamp, Xattrs};

/// The first line: who wrote it, and how it is to be read.
const HEADER: &str = "builder in-place 1";

/// The largest journal that is read, in bytes. It has a line for each directory that holds a mount.
const LARGEST: u64 = 16 << 20;

/// While it is being written.
const UNFINISHED: &str = "journal.new";

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
            Self::Apart => "journal.apart",
            Self::Exchanged => "journal.exchanged",
        }
    }
}

/// A directory of the container's root that holds something that stays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) path: GuestPath,
    /// The names in it that stay.
    pub(super) stay: Vec<Vec<u8>>,
    /// What it is when no step runs.
    pub(super) face: Face,
}

/// Writes a new journal into the directory `private`; it begins [`Phase::Apart`].
pub(super) fn begin<'a>(
    private: BorrowedFd<'_>,
    entries: impl IntoIterator<Item = &'a Entry>,
) -> io::Result<()> {
    let text = encode(entries);
    let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = act(|| rustix::fs::openat(private, UNFINISHED, flags, Mode::RUSR | Mode::WUSR))?;
    File::from(file).write_all(text.as_bytes())?;
    act(|| rustix::fs::renameat(private, UNFINISHED, private, Phase::Apart.file()))
}

/// Notes that the exchange has come to `phase` from the other one.
pub(super) fn turn(private: BorrowedFd<'_>, phase: Phase) -> io::Result<()> {
    let before = match phase {
        Phase::Apart => Phase::Exchanged,
        Phase::Exchanged => Phase::Apart,
    };
    act(|| rustix::fs::renameat(private, before.file(), private, phase.file()))
}

/// Removes the journal: everything is where it belongs.
pub(super) fn end(private: BorrowedFd<'_>) -> io::Result<()> {
    withdraw(private, Phase::Exchanged)?;
    withdraw(private, Phase::Apart)?;
    remove(private, UNFINISHED)
}

/// Removes a journal that says `phase`.
pub(super) fn withdraw(private: BorrowedFd<'_>, phase: Phase) -> io::Result<()> {
    remove(private, phase.file())
}

fn remove(private: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    match act(|| rustix::fs::unlinkat(private, name, AtFlags::empty())) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// The journal in `private`, if there is one.
///
/// # Errors
/// When it cannot be read, or is none.
pub(super) fn read(private: BorrowedFd<'_>) -> io::Result<Option<(Phase, Vec<Entry>)>> {
    for phase in [Phase::Exchanged, Phase::Apart] {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(private, phase.file(), flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => continue,
            Err(error) => return Err(error.into()),
        };
        return read_file(file.into()).map(|entries| Some((phase, entries)));
    }
    Ok(None)
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
                stay: Vec::new(),
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
                entries.last_mut()?.stay.push(name);
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
        let root = Entry { path: GuestPath::root(), stay: vec![b"proc".to_vec(), b"a\nb \\".to_vec()], face };
        let path = GuestPath::clamp(b"/var/\xfe x").unwrap();
        vec![root.clone(), Entry { path, stay: Vec::new(), ..root }]
    }

    #[test]
    fn a_journal_is_read_as_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let private = File::open(directory.path()).unwrap();
        assert_eq!(read(private.as_fd()).unwrap(), None);
        begin(private.as_fd(), &entries()).unwrap();
        assert_eq!(read(private.as_fd()).unwrap(), Some((Phase::Apart, entries())));
        turn(private.as_fd(), Phase::Exchanged).unwrap();
        assert_eq!(read(private.as_fd()).unwrap(), Some((Phase::Exchanged, entries())));
        turn(private.as_fd(), Phase::Apart).unwrap();
        end(private.as_fd()).unwrap();
        end(private.as_fd()).unwrap();
        assert_eq!(read(private.as_fd()).unwrap(), None);
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
            assert!(read(private.as_fd()).is_err());
            let _ = std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir(&path));
        }
    }
}
