//! Overrides as a file: one line an entry.
//!
//! The first line is `overrides 1`, the last one `end` and the number of entries. Between them, sorted by path:
//!
//! ```text
//! /etc/shadow f 640 0:0 640 0:42
//! /dev/null f 0 0:0 666 0:0 c1:3 user.a=b
//! ```
//!
//! path; kind, mode and owner that the disk shows; mode and owner that the entry has; the device that it is; attributes
//! that are not on disk. Bytes that are no printable ASCII, and `%` and `=`, are `%` and two hexadecimal digits.

use std::io::{self, BufRead, Write};

use super::super::metadata::{FileKind, Owner, Xattrs};
use super::{GuestPath, Override, Overrides, Rare, Shown};

const FIRST_LINE: &str = "overrides 1";

/// Why overrides could not be read.
#[derive(Debug, thiserror::Error)]
pub enum OverridesError {
    /// The file cannot be read.
    #[error("cannot read the file")]
    Io(#[from] io::Error),
    /// Another version, or no such file.
    #[error("line {line} is not what this version writes")]
    Line {
        /// Counts from 1.
        line: u64,
    },
    /// The last line is missing or does not fit.
    #[error("the file is incomplete")]
    Incomplete,
}

impl Overrides {
    /// Writes all of it.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{FIRST_LINE}")?;
        for (path, held) in &self.by_path {
            let Override { shown, mode, owner, rare } = held;
            write_escaped(out, path.as_bytes())?;
            let Owner { uid, gid } = shown.owner;
            write!(out, " {} {:o} {uid}:{gid}", letter(shown.kind), shown.mode)?;
            write!(out, " {mode:o} {}:{}", owner.uid, owner.gid)?;
            if let Some((kind, number)) = rare.as_ref().and_then(|rare| rare.device) {
                let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
                write!(out, " {}{major}:{minor}", letter(kind))?;
            }
            for (key, value) in held.xattrs() {
                out.write_all(b" ")?;
                write_escaped(out, key)?;
                out.write_all(b"=")?;
                write_escaped(out, value)?;
            }
            out.write_all(b"\n")?;
        }
        writeln!(out, "end {}", self.by_path.len())
    }

    /// Reads what [`Overrides::write`] has written. No more than one line is in memory beside the result.
    ///
    /// A line may be as long as its entry's attributes make it, several times what a layer may have of them: the caller
    /// bounds `input`.
    ///
    /// # Errors
    /// [`OverridesError`].
    pub fn read(input: &mut dyn BufRead) -> Result<Self, OverridesError> {
        let mut all = Self::default();
        let mut text = Vec::new();
        for line in 1.. {
            text.clear();
            input.read_until(b'\n', &mut text)?;
            let Some(text) = text.strip_suffix(b"\n") else { break };
            if line == 1 {
                if text != FIRST_LINE.as_bytes() {
                    return Err(OverridesError::Line { line });
                }
                continue;
            }
            if let Some(count) = text.strip_prefix(b"end ") {
                let complete =
                    count == all.by_path.len().to_string().as_bytes() && input.fill_buf()?.is_empty();
                return if complete { Ok(all) } else { Err(OverridesError::Incomplete) };
            }
            let (path, held) = parse(text).ok_or(OverridesError::Line { line })?;
            all.by_path.insert(path, held);
        }
        Err(OverridesError::Incomplete)
    }
}

/// The letter of a kind, as find(1) has it.
fn letter(kind: FileKind) -> char {
    match kind {
        FileKind::File => 'f',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::Fifo => 'p',
        FileKind::CharDevice => 'c',
        FileKind::BlockDevice => 'b',
        FileKind::Socket => 's',
    }
}

fn kind(letter: u8) -> Option<FileKind> {
    FileKind::ALL.into_iter().find(|kind| self::letter(*kind) == char::from(letter))
}

fn write_escaped(out: &mut dyn Write, bytes: &[u8]) -> io::Result<()> {
    for byte in bytes {
        match byte {
            b'%' | b'=' => write!(out, "%{byte:02x}")?,
            b'!'..=b'~' => out.write_all(&[*byte])?,
            _ => write!(out, "%{byte:02x}")?,
        }
    }
    Ok(())
}

fn unescaped(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.iter();
    while let Some(byte) = rest.next() {
        let byte = match byte {
            b'%' => {
                let digits = [*rest.next()?, *rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            _ => *byte,
        };
        bytes.push(byte);
    }
    Some(bytes)
}

fn number<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn mode(text: &[u8]) -> Option<u16> {
    let mode = u16::from_str_radix(std::str::from_utf8(text).ok()?, 8).ok()?;
    Some(mode).filter(|mode| *mode <= 0o7777)
}

/// Two numbers with a colon between them.
fn pair(text: &[u8]) -> Option<(u32, u32)> {
    let colon = text.iter().position(|byte| *byte == b':')?;
    Some((number(&text[..colon])?, number(&text[colon + 1..])?))
}

fn owner(text: &[u8]) -> Option<Owner> {
    pair(text).map(|(uid, gid)| Owner { uid, gid })
}

fn parse(line: &[u8]) -> Option<(GuestPath, Override)> {
    let mut words = line.split(|byte| *byte == b' ');
    let path = GuestPath::parse(&unescaped(words.next()?)?).ok()?;
    let [letter] = words.next()? else { return None };
    let shown = Shown { kind: kind(*letter)?, mode: mode(words.next()?)?, owner: owner(words.next()?)? };
    let (mode, owner) = (mode(words.next()?)?, owner(words.next()?)?);
    let mut rare = Rare { device: None, xattrs: Xattrs::new() };
    for word in words {
        if let Some(equals) = word.iter().position(|byte| *byte == b'=') {
            rare.xattrs.insert(unescaped(&word[..equals])?, unescaped(&word[equals + 1..])?);
            continue;
        }
        let (letter, numbers) = word.split_first()?;
        let kind =
            kind(*letter).filter(|kind| matches!(kind, FileKind::CharDevice | FileKind::BlockDevice))?;
        let (major, minor) = pair(numbers)?;
        rare.device = Some((kind, rustix::fs::makedev(major, minor)));
    }
    let rare = Some(Box::new(rare)).filter(|rare| **rare != Rare::default());
    Some((path, Override { shown, mode, owner, rare }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given() -> Overrides {
        let shown = |kind| Shown { kind, mode: 0o640, owner: Owner::ROOT };
        let plain = |kind, mode, uid, gid| Override {
            shown: shown(kind),
            mode,
            owner: Owner { uid, gid },
            rare: None,
        };
        let device = |kind, major, minor| Rare {
            device: Some((kind, rustix::fs::makedev(major, minor))),
            xattrs: Xattrs::new(),
        };
        let xattrs = [(&b"user.a b"[..], &b"%=\n\0\xff"[..]), (b"trusted.=", b"")];
        let xattrs = xattrs.map(|(key, value)| (key.to_vec(), value.to_vec())).into();
        let entries: [(&[u8], Override); 6] = [
            (b"/", plain(FileKind::Directory, 0o755, 1, u32::MAX - 1)),
            (b"/etc/shadow", plain(FileKind::File, 0o640, 0, 42)),
            (b"/a b\n%c=\xff", plain(FileKind::Symlink, 0o777, 5, 6)),
            (
                b"/dev/null",
                Override {
                    rare: Some(Box::new(device(FileKind::CharDevice, 1, 3))),
                    ..plain(FileKind::File, 0o666, 0, 0)
                },
            ),
            (
                b"/dev/disk",
                Override {
                    rare: Some(Box::new(Rare { xattrs, ..device(FileKind::BlockDevice, 300, 70_000) })),
                    ..plain(FileKind::File, 0o7777, 0, 6)
                },
            ),
            (b"/pipe", plain(FileKind::Fifo, 0o6755, 7, 8)),
        ];
        entries.into_iter().map(|(path, held)| (GuestPath::parse(path).unwrap(), held)).collect()
    }

    fn read(mut text: &[u8]) -> Result<Overrides, OverridesError> {
        Overrides::read(&mut text)
    }

    #[test]
    fn what_was_written_is_read_again() {
        let mut text = Vec::new();
        given().write(&mut text).unwrap();
        let shown = String::from_utf8(text.clone()).unwrap();
        assert!(shown.starts_with("overrides 1\n/ d 640 0:0 755 1:4294967294\n"), "{shown}");
        assert!(shown.contains("\n/dev/null f 640 0:0 666 0:0 c1:3\n"), "{shown}");
        assert!(shown.contains("/a%20b%0a%25c%3d%ff l "), "{shown}");
        assert_eq!(read(&text).unwrap(), given());
        assert_eq!(read(b"overrides 1\nend 0\n").unwrap(), Overrides::default());
    }

    #[test]
    fn a_line_is_as_long_as_its_attributes() {
        // What `--limit tar-extension=4MiB` lets through, of bytes that take three each.
        let xattrs = Xattrs::from([(b"user.a".to_vec(), vec![0; 3 << 20])]);
        let (path, plain) = given().iter().map(|(path, held)| (path.clone(), held.clone())).next().unwrap();
        let held = Override { rare: Some(Box::new(Rare { device: None, xattrs })), ..plain };
        let long: Overrides = [(path, held)].into_iter().collect();
        let mut text = Vec::new();
        long.write(&mut text).unwrap();
        assert!(read(&text).unwrap() == long);
    }

    #[test]
    fn a_damaged_file_is_an_error() {
        let mut text = Vec::new();
        given().write(&mut text).unwrap();
        // Whatever is missing at its end.
        for end in 0..text.len() {
            assert!(read(&text[..end]).is_err(), "{}", text[..end].escape_ascii());
        }
        let line = |line: &str| format!("overrides 1\n{line}\nend 1\n").into_bytes();
        let good = "/a f 644 0:0 644 1:1";
        assert_eq!(read(&line(good)).unwrap().len(), 1);
        for wrong in [
            "",
            "/a f 644 0:0 644",
            "/a x 644 0:0 644 1:1",
            "/a f 10000 0:0 644 1:1",
            "/a f 644 0:0 644 1",
            "/a f 644 0:0 644 1:4294967296",
            "/a%0 f 644 0:0 644 1:1",
            "/a%00 f 644 0:0 644 1:1",
            "../a f 644 0:0 644 1:1",
            "/a f 644 0:0 644 1:1 p1:3",
            "/a f 644 0:0 644 1:1 c1",
            "/a f 644 0:0 644 1:1 ",
        ] {
            assert!(matches!(read(&line(wrong)), Err(OverridesError::Line { line: 2 })), "{wrong}");
        }
        for (wrong, what) in [
            (format!("overrides 2\n{good}\nend 1\n"), "another version"),
            (format!("overrides 1\n{good}\nend 2\n"), "another count"),
            (format!("overrides 1\n{good}\nend 1\nmore"), "more behind the end"),
            (format!("overrides 1\n{}", "x".repeat(5 << 20)), "a line without end"),
        ] {
            assert!(read(wrong.as_bytes()).is_err(), "{what}");
        }
    }
}
