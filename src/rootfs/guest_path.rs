//! Paths inside a root, of a type that cannot be handed to `std::fs`.

use std::cmp::Ordering;
use std::fmt;

use crate::text::is_deceptive;

/// The longest path, in bytes and with its leading slash (Linux: `PATH_MAX`).
pub const MAX_PATH: usize = 4096;
/// The longest component, in bytes (Linux: `NAME_MAX`).
pub const MAX_COMPONENT: usize = 255;

/// A name that is no path inside a root.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GuestPathError {
    /// More `..` than there are directories above.
    #[error("`{0}` climbs out of the root")]
    ClimbsOut(Escaped),
    /// The empty name.
    #[error("the name is empty")]
    Empty,
    /// A NUL byte.
    #[error("`{0}` has a NUL byte")]
    Nul(Escaped),
    /// A component that no file system stores.
    #[error("a component of `{0}` is longer than {MAX_COMPONENT} bytes")]
    LongComponent(Escaped),
    /// A path that no system call takes.
    #[error("`{0}` is longer than {MAX_PATH} bytes")]
    Long(Escaped),
}

/// Bytes from an image as one line of text: deceptive characters, bytes that are not UTF-8 and the backslash are escaped.
///
/// Holds a copy of the first [`Escaped::LIMIT`] bytes, so that errors stay short.
#[derive(Clone, PartialEq, Eq)]
pub struct Escaped(Vec<u8>);

impl Escaped {
    /// How many bytes are shown; the rest becomes `…`.
    pub const LIMIT: usize = 1000;

    /// Copies `bytes`.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        // One byte more than is shown says that something is missing.
        Self(bytes[..bytes.len().min(Self::LIMIT + 1)].to_vec())
    }
}

impl fmt::Display for Escaped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_escaped(f, &self.0[..self.0.len().min(Self::LIMIT)])?;
        if self.0.len() > Self::LIMIT { f.write_str("…") } else { Ok(()) }
    }
}

impl fmt::Debug for Escaped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn write_escaped(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '\\' => f.write_str("\\\\")?,
                '\n' => f.write_str("\\n")?,
                _ if is_deceptive(character) => write!(f, "\\u{{{:x}}}", u32::from(character))?,
                _ => write!(f, "{character}")?,
            }
        }
        for byte in chunk.invalid() {
            write!(f, "\\x{byte:02x}")?;
        }
    }
    Ok(())
}

/// An absolute, lexically clean path inside a root: `/` or `/a/b`.
///
/// Ordered by components, so that a directory comes directly before what is below it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct GuestPath(Vec<u8>);

#[derive(Clone, Copy, PartialEq)]
enum AtRoot {
    Fail,
    Stay,
}

impl GuestPath {
    /// The root itself.
    #[must_use]
    pub fn root() -> Self {
        Self(b"/".to_vec())
    }

    /// Reads the name of an archive entry: a leading `/`, `./` and doubled slashes go, `a/../b` is `/b`, and `.` is
    /// the root.
    ///
    /// # Errors
    /// When the name is empty, climbs out of the root, has a NUL byte or is too long for Linux.
    pub fn parse(name: &[u8]) -> Result<Self, GuestPathError> {
        if name.is_empty() {
            return Err(GuestPathError::Empty);
        }
        Self::root().extended(name, AtRoot::Fail)
    }

    /// Reads a path as instructions write it: like [`GuestPath::parse`], but `..` at the root stays there and the empty
    /// name is the root.
    ///
    /// # Errors
    /// When the name has a NUL byte or is too long for Linux.
    pub fn clamp(name: &[u8]) -> Result<Self, GuestPathError> {
        Self::root().extended(name, AtRoot::Stay)
    }

    /// `name` seen from here, with the rules of [`GuestPath::clamp`]; an absolute `name` replaces this path.
    ///
    /// # Errors
    /// As [`GuestPath::clamp`].
    pub fn join(&self, name: &[u8]) -> Result<Self, GuestPathError> {
        let base = if name.starts_with(b"/") { Self::root() } else { self.clone() };
        base.extended(name, AtRoot::Stay)
    }

    fn extended(mut self, name: &[u8], at_root: AtRoot) -> Result<Self, GuestPathError> {
        if name.contains(&0) {
            return Err(GuestPathError::Nul(Escaped::new(name)));
        }
        for component in name.split(|byte| *byte == b'/') {
            match component {
                b"" | b"." => {}
                b".." if self.pop() || at_root == AtRoot::Stay => {}
                b".." => return Err(GuestPathError::ClimbsOut(Escaped::new(name))),
                _ if component.len() > MAX_COMPONENT => {
                    return Err(GuestPathError::LongComponent(Escaped::new(name)));
                }
                _ => self.push(component),
            }
            if self.0.len() > MAX_PATH {
                return Err(GuestPathError::Long(Escaped::new(name)));
            }
        }
        Ok(self)
    }

    fn push(&mut self, component: &[u8]) {
        if !self.is_root() {
            self.0.push(b'/');
        }
        self.0.extend_from_slice(component);
    }

    /// Goes up in place: names of a megabyte may do so a hundred thousand times. False at the root.
    fn pop(&mut self) -> bool {
        let slash = self.0.iter().rposition(|byte| *byte == b'/').filter(|_| !self.is_root());
        slash.map(|slash| self.0.truncate(slash.max(1))).is_some()
    }

    /// The entry `component` of this directory. `component` must be one name as a directory holds it; a slash in it is
    /// taken as a separator.
    #[must_use]
    pub fn child(&self, component: &[u8]) -> Self {
        // Exactly as long as it must be: there may be a million of them.
        let mut path = Self(Vec::with_capacity(self.0.len() + 1 + component.len()));
        path.0.extend_from_slice(&self.0);
        path.push(component);
        path
    }

    /// The directory that holds this path; none for the root.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        if self.is_root() {
            return None;
        }
        let slash = self.0.iter().rposition(|byte| *byte == b'/')?;
        Some(Self(self.0[..slash.max(1)].to_vec()))
    }

    /// The last component; none for the root.
    #[must_use]
    pub fn file_name(&self) -> Option<&[u8]> {
        self.components().next_back()
    }

    /// Keeps the first `keep` bytes and puts `end` behind them: the way to a path from another one, by bytes that both are
    /// known to have.
    pub(crate) fn replace_end(&mut self, keep: usize, end: &[u8]) {
        self.0.truncate(keep);
        self.0.extend_from_slice(end);
    }

    /// The components, from the root.
    pub fn components(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.0.split(|byte| *byte == b'/').filter(|component| !component.is_empty())
    }

    /// The path with its leading slash.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The path without its leading slash: empty for the root.
    #[must_use]
    pub fn relative(&self) -> &[u8] {
        &self.0[1..]
    }

    /// Whether this path is `other` or below it.
    #[must_use]
    pub fn starts_with(&self, other: &Self) -> bool {
        other.is_root()
            || self.0.strip_prefix(other.0.as_slice()).is_some_and(|rest| matches!(rest, [] | [b'/', ..]))
    }

    /// Whether this is `/`.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.0.len() == 1
    }
}

impl Ord for GuestPath {
    fn cmp(&self, other: &Self) -> Ordering {
        // A slash sorts before every other byte, else `/a-b` would come between `/a` and `/a/b`.
        let rank = |byte: &u8| if *byte == b'/' { 0 } else { *byte };
        // Neighbours in a tree have most of their paths in common: eight bytes at once.
        let (parts, _) = self.0.as_chunks::<8>();
        let (others, _) = other.0.as_chunks::<8>();
        let equal = 8 * parts.iter().zip(others).take_while(|(one, other)| one == other).count();
        let (one, other) = (&self.0[equal..], &other.0[equal..]);
        one.iter().map(rank).cmp(other.iter().map(rank))
    }
}

impl PartialOrd for GuestPath {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for GuestPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_escaped(f, &self.0)
    }
}

impl fmt::Debug for GuestPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_archive_entries_are_cleaned_or_refused() {
        let long = [b'n'; 256];
        let deep = b"a/".repeat(3000);
        let fits = b"a/".repeat(2048);
        type Case<'a> = (&'a [u8], Result<&'a [u8], &'a str>);
        let cases: [Case; 15] = [
            (b".", Ok(b"/")),
            (b"./", Ok(b"/")),
            (b"/", Ok(b"/")),
            (b"a", Ok(b"/a")),
            (b"./a//b/", Ok(b"/a/b")),
            (b"/a/./b", Ok(b"/a/b")),
            (b"a/../b", Ok(b"/b")),
            (b"a/..", Ok(b"/")),
            (b"...", Ok(b"/...")),
            (b"", Err("the name is empty")),
            (b"..", Err("`..` climbs out of the root")),
            (b"a/../../b", Err("`a/../../b` climbs out of the root")),
            (b"a\0b", Err("`a\\u{0}b` has a NUL byte")),
            (&long[..255], Ok(&[])),
            (&fits[..4095], Ok(&[])),
        ];
        for (name, expected) in cases {
            match (GuestPath::parse(name), expected) {
                (Ok(path), Ok(b"")) => assert_eq!(path.relative(), name),
                (Ok(path), Ok(bytes)) => assert_eq!(path.as_bytes(), bytes),
                (Err(error), Err(text)) => assert_eq!(error.to_string(), text),
                (result, _) => panic!("{result:?} for {:?}", Escaped::new(name)),
            }
        }
        assert!(matches!(GuestPath::parse(&long), Err(GuestPathError::LongComponent(_))));
        assert!(matches!(GuestPath::parse(&deep), Err(GuestPathError::Long(_))));
        assert!(GuestPath::parse(&deep).unwrap_err().to_string().len() < 1100);
    }

    #[test]
    fn paths_of_instructions_stay_at_the_root() {
        for (base, name, expected) in [
            ("/", "", "/"),
            ("/", "../..", "/"),
            ("/w", "x/../../../y", "/y"),
            ("/w", "/abs/", "/abs"),
            ("/w", "b//c/", "/w/b/c"),
            ("/w", "", "/w"),
        ] {
            let base = GuestPath::clamp(base.as_bytes()).unwrap();
            assert_eq!(base.join(name.as_bytes()).unwrap().to_string(), expected);
        }
    }

    #[test]
    fn a_directory_sorts_directly_before_what_is_below_it() {
        let mut paths: Vec<GuestPath> = ["/a-b", "/a/b", "/", "/a", "/b", "/a/b/c", "/a\x01"]
            .iter()
            .map(|text| GuestPath::parse(text.as_bytes()).unwrap())
            .collect();
        paths.sort();
        let sorted: Vec<String> = paths.iter().map(ToString::to_string).collect();
        assert_eq!(sorted, ["/", "/a", "/a/b", "/a/b/c", "/a\\u{1}", "/a-b", "/b"]);
    }

    #[test]
    fn relations_are_of_components_not_of_bytes() {
        let path = |text: &str| GuestPath::parse(text.as_bytes()).unwrap();
        assert!(path("/a/b").starts_with(&path("/a")));
        assert!(path("/a").starts_with(&path("/a")));
        assert!(path("/a").starts_with(&path("/")));
        assert!(!path("/ab").starts_with(&path("/a")));
        assert_eq!(path("/a").parent(), Some(path("/")));
        assert_eq!(path("/a/b").parent(), Some(path("/a")));
        assert_eq!(path("/").parent(), None);
        assert_eq!(path("/").file_name(), None);
        assert_eq!(path("/a/b").file_name(), Some(&b"b"[..]));
        assert_eq!(path("/").child(b"a"), path("/a"));
        assert_eq!(path("/a").child(b"b"), path("/a/b"));
    }

    #[test]
    fn control_bytes_never_reach_a_log_line() {
        let path = GuestPath::parse(b"a\nERROR\x1b[31m\\\xff").unwrap();
        assert_eq!(path.to_string(), "/a\\nERROR\\u{1b}[31m\\\\\\xff");
    }

    proptest::proptest! {
        /// Long common beginnings, for which there is a shorter way.
        #[test]
        fn paths_are_ordered_by_their_components(
            start in "[a/-]{0,40}",
            one in "[a/.-]{0,20}",
            other in "[a/.-]{0,20}",
        ) {
            let [one, other] = [one, other].map(|end| GuestPath::clamp((start.clone() + &end).as_bytes()).unwrap());
            let by_components = one.components().cmp(other.components());
            proptest::prop_assert_eq!(one.cmp(&other), by_components, "{} {}", one, other);
        }
    }
}
