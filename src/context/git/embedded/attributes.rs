//! What `.gitattributes` says of files that are checked out: the ends of their lines and `$Id$`. Filters are programs, and
//! there are none, as under the command.

use std::path::{Path, PathBuf};

use gix_attributes::glob::pattern::Case;
use gix_attributes::search::{MetadataCollection, Outcome};
use gix_attributes::{Search, StateRef};

use crate::context::git::{GitError, Needs, SHOWN_CHARACTERS};
use crate::text::line;

/// What is looked for, in this order.
const NAMES: [&str; 5] = ["text", "crlf", "eol", "ident", "working-tree-encoding"];
/// Lines that are longer count for nothing, as for git, in bytes.
const LONGEST_LINE: usize = 2048;
/// All files of attributes on the way to a directory together, in bytes. What is made of them takes up to ninety times as
/// much memory.
const MOST_BYTES: usize = 256 << 10;
/// Which ends of lines a file gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LineEnds {
    /// Those that it has.
    AsStored,
    /// CR and LF.
    Windows,
    /// CR and LF, if it is a text and has none yet.
    WindowsIfText,
}

/// What becomes of the content of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Conversion {
    pub(super) line_ends: LineEnds,
    /// Whether `$Id$` becomes `$Id: … $`.
    pub(super) is_named: bool,
}

impl Conversion {
    const NONE: Self = Self { line_ends: LineEnds::AsStored, is_named: false };

    pub(super) fn changes_nothing(self) -> bool {
        self == Self::NONE
    }

    /// The content that is written in the place of `content`, whose object has the name `id`.
    pub(super) fn convert(self, content: &[u8], id: &str) -> Vec<u8> {
        let named = if self.is_named { name(content, id) } else { content.to_vec() };
        match self.line_ends {
            LineEnds::AsStored => named,
            LineEnds::WindowsIfText if !is_plain_text(&named) => named,
            _ => to_windows(&named),
        }
    }
}

/// The rules on the way to a directory.
pub(super) struct Attributes {
    rules: Search,
    known: MetadataCollection,
    found: Outcome,
    /// How large each file of rules was.
    sizes: Vec<usize>,
}

impl Attributes {
    pub(super) fn new() -> Result<Self, GitError> {
        let mut known = MetadataCollection::default();
        let none: [PathBuf; 0] = [];
        let rules = Search::new_globals(none, &mut Vec::new(), &mut known).map_err(GitError::Pack)?;
        Ok(Self { rules, known, found: Outcome::default(), sizes: Vec::new() })
    }

    /// Adds the rules of `directory`, a path below the top without a slash at its beginning.
    pub(super) fn enter(&mut self, directory: &Path, text: &[u8]) -> Result<(), GitError> {
        self.sizes.push(text.len());
        if self.sizes.iter().sum::<usize>() > MOST_BYTES {
            return Err(GitError::Corrupt(format!("more than {MOST_BYTES} bytes of `.gitattributes`")));
        }
        let lines = text.split_inclusive(|byte| *byte == b'\n').filter(|line| line.len() < LONGEST_LINE);
        let text: Vec<u8> = lines.flatten().copied().collect();
        let is_top = directory.as_os_str().is_empty();
        let source = directory.join(".gitattributes");
        let added =
            self.rules.add_patterns_buffer(&text, source, Some(Path::new("")), &mut self.known, is_top);
        added.map_err(GitError::Pack)?;
        self.found.initialize_with_selection(&self.known, NAMES);
        Ok(())
    }

    /// Forgets the rules that were added last.
    pub(super) fn leave(&mut self) {
        if self.sizes.pop().is_some() {
            self.rules.pop_pattern_list();
        }
    }

    /// What becomes of the file at `path`.
    pub(super) fn of(&mut self, path: &[u8]) -> Result<Conversion, GitError> {
        if self.sizes.is_empty() {
            return Ok(Conversion::NONE);
        }
        self.found.reset();
        self.rules.pattern_matching_relative_path(path.into(), Case::Sensitive, Some(false), &mut self.found);
        let mut states = [StateRef::Unspecified; NAMES.len()];
        for (state, found) in states.iter_mut().zip(self.found.iter_selected()) {
            *state = found.assignment.state;
        }
        let [text, crlf, eol, ident, encoding] = states;
        if let StateRef::Value(name) = encoding
            && !name.as_bstr().eq_ignore_ascii_case(b"utf-8")
            && !name.as_bstr().eq_ignore_ascii_case(b"utf8")
        {
            return Err(GitError::Missing(Needs::Encoding(line(path, SHOWN_CHARACTERS))));
        }
        let line_ends = line_ends(text, crlf, eol);
        Ok(Conversion { line_ends, is_named: matches!(ident, StateRef::Set) })
    }
}

/// gitattributes(5), "End-of-line conversion", where `core.autocrlf` is off and `core.eol` is LF.
fn line_ends(text: StateRef<'_>, crlf: StateRef<'_>, eol: StateRef<'_>) -> LineEnds {
    enum Kind {
        Unknown,
        Binary,
        Text,
        Auto,
    }
    let kind = |state| match state {
        StateRef::Set => Kind::Text,
        StateRef::Unset => Kind::Binary,
        StateRef::Value(value) if value.as_bstr() == "input" => Kind::Text,
        StateRef::Value(value) if value.as_bstr() == "auto" => Kind::Auto,
        _ => Kind::Unknown,
    };
    let is_windows = matches!(eol, StateRef::Value(value) if value.as_bstr() == "crlf");
    let kind = match kind(text) {
        Kind::Unknown => kind(crlf),
        kind => kind,
    };
    match kind {
        Kind::Binary => LineEnds::AsStored,
        Kind::Auto if is_windows => LineEnds::WindowsIfText,
        Kind::Unknown | Kind::Text if is_windows => LineEnds::Windows,
        _ => LineEnds::AsStored,
    }
}

/// Whether git would believe it to be a text, whose lines all end with LF alone.
fn is_plain_text(content: &[u8]) -> bool {
    let (mut printable, mut other) = (0_usize, 0_usize);
    for byte in content {
        match byte {
            b'\r' | 0 => return false,
            b'\n' => {}
            0x08 | b'\t' | 0x1b | 0x0c => printable += 1,
            0x7f | ..0x20 => other += 1,
            _ => printable += 1,
        }
    }
    // The end of a file of DOS.
    if content.last() == Some(&0x1a) {
        other -= 1;
    }
    printable >> 7 >= other
}

/// LF becomes CR and LF, where there is no CR before it.
fn to_windows(content: &[u8]) -> Vec<u8> {
    let mut made = Vec::with_capacity(content.len());
    let mut before = 0;
    for byte in content {
        if *byte == b'\n' && before != b'\r' {
            made.push(b'\r');
        }
        made.push(*byte);
        before = *byte;
    }
    made
}

/// `$Id$`, and `$Id: … $` as git has written it before, become `$Id: ID $`.
fn name(content: &[u8], id: &str) -> Vec<u8> {
    let mut made = Vec::with_capacity(content.len());
    let mut rest = content;
    while let Some(at) = rest.iter().position(|byte| *byte == b'$') {
        made.extend_from_slice(&rest[..=at]);
        rest = &rest[at + 1..];
        // git looks at a sign that ends one attempt for no other.
        let tried = [&b"$"[..], b"I$"].into_iter().find(|tried| rest.starts_with(tried));
        if let Some(tried) = tried {
            made.extend_from_slice(tried);
            rest = &rest[tried.len()..];
            continue;
        }
        let Some(behind) = rest.strip_prefix(b"Id") else { continue };
        let end = match behind.first() {
            Some(b'$') => Some(0),
            Some(b':') => behind.iter().position(|byte| matches!(byte, b'$' | b'\n')),
            _ => continue,
        };
        let Some(end) = end else { break };
        if behind[end] == b'$' && !is_foreign(&behind[..=end]) {
            made.extend_from_slice(format!("Id: {id} $").as_bytes());
        } else {
            made.extend_from_slice(&rest[..end + 3]);
        }
        rest = &behind[end + 1..];
    }
    made.extend_from_slice(rest);
    made
}

/// Whether `: … $` was written by another program: it has spaces elsewhere than at its ends.
fn is_foreign(expanded: &[u8]) -> bool {
    let Some(words) = expanded.strip_prefix(b": ") else { return false };
    words.windows(2).any(|pair| pair[0].is_ascii_whitespace() && pair[1] != b'$')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(rules: &[(&str, &str)], path: &str) -> Result<Conversion, GitError> {
        let mut attributes = Attributes::new().unwrap();
        for (directory, text) in rules {
            attributes.enter(Path::new(directory), text.as_bytes()).unwrap();
        }
        attributes.of(path.as_bytes())
    }

    #[test]
    fn rules_of_nearer_directories_and_later_lines_count_more() {
        let top = ("", "* text\n*.w eol=crlf\n/only eol=crlf\nsub/a.w -text\n");
        let sub = ("sub", "*.w text=auto\nnear eol=crlf\n");
        for (path, expected) in [
            ("a", LineEnds::AsStored),
            ("a.w", LineEnds::Windows),
            ("only", LineEnds::Windows),
            ("sub/only", LineEnds::AsStored),
            ("sub/a.w", LineEnds::WindowsIfText),
            ("sub/below/near", LineEnds::Windows),
            ("near", LineEnds::AsStored),
        ] {
            assert_eq!(of(&[top, sub], path).unwrap().line_ends, expected, "{path}");
        }
        let mut attributes = Attributes::new().unwrap();
        assert!(attributes.of(b"a.w").unwrap().changes_nothing());
        attributes.enter(Path::new(""), top.1.as_bytes()).unwrap();
        attributes.enter(Path::new("sub"), sub.1.as_bytes()).unwrap();
        attributes.leave();
        assert_eq!(attributes.of(b"sub/near").unwrap().line_ends, LineEnds::AsStored);
        attributes.leave();
        assert!(attributes.of(b"a.w").unwrap().changes_nothing());
    }

    #[test]
    fn macros_are_known_at_the_top_only_and_long_lines_nowhere() {
        let named = "[attr]both ident eol=crlf\n";
        let both = Conversion { line_ends: LineEnds::Windows, is_named: true };
        assert_eq!(of(&[("", &format!("{named}a both\n"))], "a").unwrap(), both);
        assert!(of(&[("sub", &format!("{named}a both\n"))], "sub/a").unwrap().changes_nothing());
        assert!(of(&[("", "* eol=crlf\n* binary\n")], "a").unwrap().changes_nothing());
        let long = format!("a eol=crlf {}\n", "x".repeat(LONGEST_LINE));
        assert!(of(&[("", &long)], "a").unwrap().changes_nothing());
    }

    #[test]
    fn another_encoding_takes_the_command() {
        for (value, is_needed) in [("UTF-8", false), ("utf8", false), ("UTF-16LE-BOM", true)] {
            let found = of(&[("", &format!("* working-tree-encoding={value}\n"))], "a");
            assert_eq!(matches!(found, Err(GitError::Missing(Needs::Encoding(_)))), is_needed, "{value}");
        }
    }

    #[test]
    fn names_are_put_where_git_puts_them() {
        for (text, expected) in [
            ("", ""),
            ("$Id$", "$Id: 7 $"),
            ("a $Id$ b $Id$", "a $Id: 7 $ b $Id: 7 $"),
            ("$Id: 0123 $", "$Id: 7 $"),
            ("$Id:$", "$Id: 7 $"),
            ("$Id: by others $", "$Id: by others $"),
            ("$Id: \n$", "$Id: \n$"),
            ("$Id", "$Id"),
            ("$Id: x", "$Id: x"),
            ("$id$ $$Id$", "$id$ $$Id$"),
            ("$I$Id$", "$I$Id$"),
        ] {
            assert_eq!(String::from_utf8(name(text.as_bytes(), "7")).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn line_ends_are_changed_once_and_not_in_what_is_no_text() {
        let windows = Conversion { line_ends: LineEnds::Windows, is_named: false };
        let if_text = Conversion { line_ends: LineEnds::WindowsIfText, is_named: false };
        for (content, always, text) in [
            (&b""[..], &b""[..], &b""[..]),
            (b"a\nb\n", b"a\r\nb\r\n", b"a\r\nb\r\n"),
            (b"a\r\nb\n", b"a\r\nb\r\n", b"a\r\nb\n"),
            (b"a\rb\n", b"a\rb\r\n", b"a\rb\n"),
            (b"a\0\n", b"a\0\r\n", b"a\0\n"),
            (b"\x01\x02\n", b"\x01\x02\r\n", b"\x01\x02\n"),
            (b"\x1a", b"\x1a", b"\x1a"),
        ] {
            assert_eq!(windows.convert(content, ""), always);
            assert_eq!(if_text.convert(content, ""), text);
        }
    }
}
