//! What is mounted where, as the kernel tells it (`mountinfo` of proc(5)).

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::StatVfsMountFlags;

/// `OVERLAYFS_SUPER_MAGIC` of linux/magic.h.
const OVERLAYFS: u64 = 0x794c_7630;

/// The mounts of a mount namespace that can be reached from a root, in the order of their making.
#[derive(Debug, Default)]
pub struct MountTable(Vec<Entry>);

#[derive(Debug)]
struct Entry {
    point: Vec<u8>,
    /// None where the line ends too early.
    file_system: Option<String>,
}

impl MountTable {
    /// That of the calling thread: the main thread of a process may be in another mount namespace.
    ///
    /// # Errors
    /// When /proc cannot be read.
    pub fn current() -> io::Result<Self> {
        Ok(Self::parse(&std::fs::read("/proc/thread-self/mountinfo")?))
    }

    /// Reads the text of such a file; what is no line of it is left out.
    #[must_use]
    pub fn parse(text: &[u8]) -> Self {
        Self(text.split(|byte| *byte == b'\n').filter_map(Entry::parse).collect())
    }

    /// Where something is mounted, as paths from the root of who asked.
    pub fn points(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.0.iter().map(|entry| entry.point.as_slice())
    }

    /// The type of the file system that `path`, without links, is on: that of the mount with the longest name above it, of
    /// several at one place the last.
    #[must_use]
    pub fn file_system_of(&self, path: &Path) -> Option<&str> {
        let above = self.0.iter().filter_map(|entry| {
            let inside = path.starts_with(OsStr::from_bytes(&entry.point));
            inside.then_some((entry.point.len(), entry.file_system.as_deref()?))
        });
        above.max_by_key(|(length, _)| *length).map(|(_, file_system)| file_system)
    }
}

impl Entry {
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ');
        let point = unescaped(fields.nth(4)?);
        let file_system = fields.skip_while(|field| *field != b"-").nth(1);
        Some(Self { point, file_system: file_system.map(|name| String::from_utf8_lossy(name).into_owned()) })
    }
}

/// A path of mountinfo, in which a backslash and three octal digits are a byte: blanks, tabs, newlines and backslashes.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let escaped = after.get(..3).filter(|_| *first == b'\\');
        match escaped.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()) {
            Some(byte) => {
                path.push(byte);
                rest = &after[3..];
            }
            None => {
                path.push(*first);
                rest = after;
            }
        }
    }
    path
}

/// Whether `path` is on an overlay, which cannot hold another one.
///
/// # Errors
/// Those of statfs(2).
pub fn is_on_overlay(path: &Path) -> rustix::io::Result<bool> {
    Ok(rustix::fs::statfs(path)?.f_type.cast_unsigned() == OVERLAYFS)
}

/// Whether programs on the file system of `directory` cannot be executed. An overlay above it would not mind.
#[must_use]
pub fn forbids_execution(directory: &Path) -> bool {
    rustix::fs::statvfs(directory).is_ok_and(|mount| mount.f_flag.contains(StatVfsMountFlags::NOEXEC))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_read_as_they_are_written() {
        let cases: [(&[u8], &[u8]); 7] = [
            (br"/a", b"/a"),
            (br"/a\040b\011c\134d", b"/a b\tc\\d"),
            (br"/a\", br"/a\"),
            (br"/a\04", br"/a\04"),
            (br"/\999", br"/\999"),
            (br"/\777", br"/\777"),
            (br"\04\999\", br"\04\999\"),
        ];
        for (text, path) in cases {
            assert_eq!(unescaped(text), path, "{}", text.escape_ascii());
        }
        assert!(MountTable::current().unwrap().points().any(|point| point == b"/proc"));
    }

    #[test]
    fn the_file_system_is_that_of_the_nearest_mount_above() {
        let mounts = "1 0 8:1 / / rw - ext4 /dev/sda rw\n\
                      2 1 0:5 / /var/lib rw shared:1 - xfs /dev/sdb rw\n\
                      3 1 0:6 / /var/li rw - tmpfs tmpfs rw\n\
                      4 2 0:7 / /var/lib/a\\040b rw - btrfs /dev/sdc rw\n\
                      5 2 0:8 / /over rw - ext4 /dev/sdd rw\n\
                      6 5 0:9 / /over rw - tmpfs tmpfs rw\n";
        for (path, expected) in [
            ("/", "ext4"),
            ("/var", "ext4"),
            ("/var/lib", "xfs"),
            ("/var/lib/builder", "xfs"),
            ("/var/libx", "ext4"),
            ("/var/lib/a b/c", "btrfs"),
            ("/over/x", "tmpfs"),
        ] {
            let table = MountTable::parse(mounts.as_bytes());
            assert_eq!(table.file_system_of(Path::new(path)), Some(expected), "{path}");
        }
        assert_eq!(MountTable::parse(b"").file_system_of(Path::new("/")), None);
    }
}
