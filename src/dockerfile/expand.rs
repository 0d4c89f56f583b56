//! Variables and quotes: `$name`, `${name…}`, `'…'`, `"…"` and the escape character.

use std::borrow::Cow;

use super::history::quote;
use super::pattern::{Length, Occurrences, Pattern, Steps};
use super::text::char_at;
use super::{Escape, Text};

/// How a name becomes a value; `None` is unset. Names are always valid UTF-8, values need not be.
pub type Lookup<'a> = dyn Fn(&str) -> Option<Cow<'a, [u8]>> + 'a;

/// How deep `${a:-${b:-…}}` may be.
pub const MAX_DEPTH: usize = 200;

/// How many bytes one expansion may produce, intermediate results included. Without it a Dockerfile of a few lines
/// (`ENV a=$a$a`) makes values of any size.
pub const MAX_EXPANSION: usize = 32 << 20;

/// An expanded text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Expanded {
    /// The result.
    pub text: Text,
    /// Names that were used without being set, in order and once each. Forms that cater for unset names (`:-`, `-`,
    /// `:+`, `+`, `:?`, `?`) are not counted.
    pub undefined: Vec<String>,
}

/// A text that was expanded and then split at white space.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExpandedWords {
    /// The words; what was quoted is not split.
    pub words: Vec<Text>,
    /// As in [`Expanded`].
    pub undefined: Vec<String>,
}

/// Why a text could not be expanded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("failed to process {text}: {kind}")]
pub struct ExpandError {
    /// The whole text, quoted (its start, if it is long).
    pub text: String,
    /// What is wrong.
    pub kind: ExpandErrorKind,
}

/// What is wrong with a text to be expanded, in BuildKit's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpandErrorKind {
    /// `${name` without end.
    #[error("syntax error: missing '}}'")]
    MissingBrace,
    /// `${name/pattern` without end.
    #[error("syntax error: missing '/' in ${{}}")]
    MissingSlash,
    /// `${}`, `${:x}`, `${{`.
    #[error("syntax error: bad substitution")]
    BadSubstitution,
    /// Something else after the name.
    #[error("unsupported modifier ({0}) in substitution")]
    UnsupportedModifier(String),
    /// A quote without end.
    #[error("unexpected end of statement while looking for matching {0}")]
    UnmatchedQuote(&'static str),
    /// A backslash before a character that cannot be escaped.
    #[error("invalid pattern ({pattern}) in substitution: invalid escape '\\{escape}'")]
    InvalidPattern {
        /// The pattern.
        pattern: String,
        /// The character.
        escape: String,
    },
    /// `${name:?message}` and `name` is unset or empty.
    #[error("{name}: {message}")]
    Required {
        /// The variable.
        name: String,
        /// The message of the Dockerfile, or what is wrong.
        message: String,
    },
    /// More than [`MAX_DEPTH`] substitutions inside one another.
    #[error("substitutions are nested more than {MAX_DEPTH} deep")]
    TooDeep,
    /// More than [`MAX_EXPANSION`] bytes.
    #[error("the expansion is larger than {MAX_EXPANSION} bytes")]
    TooLarge,
    /// A pattern that takes too many steps to match.
    #[error("matching the pattern takes too many steps")]
    TooExpensive,
}

impl ExpandErrorKind {
    const fn is_limit(&self) -> bool {
        matches!(self, Self::TooDeep | Self::TooLarge | Self::TooExpensive)
    }
}

/// Expands variables and removes quotes and escapes.
///
/// # Errors
/// [`ExpandError`]
pub fn expand(text: &[u8], escape: Escape, lookup: &Lookup<'_>) -> Result<Expanded, ExpandError> {
    let mut lexer = Lexer::new(text, escape, lookup);
    let result = lexer.until(None, Escapes::Resolve, &mut Words::Ignore);
    let text = result.map_err(|kind| failed(text, kind))?;
    Ok(Expanded { text: text.into(), undefined: lexer.undefined })
}

/// Expands like [`expand`], and splits the result at white space that is neither quoted nor escaped: EXPOSE's rule.
///
/// # Errors
/// [`ExpandError`]
pub fn expand_words(text: &[u8], escape: Escape, lookup: &Lookup<'_>) -> Result<ExpandedWords, ExpandError> {
    let mut lexer = Lexer::new(text, escape, lookup);
    let mut words = Words::new();
    lexer.until(None, Escapes::Resolve, &mut words).map_err(|kind| failed(text, kind))?;
    let words = words.finish().into_iter().map(Text::from).collect();
    Ok(ExpandedWords { words, undefined: lexer.undefined })
}

/// Expands the body of an unquoted here-document of COPY or ADD: variables only, quotes stay, the escape character is
/// always `\` whatever the directive says, and it disappears.
///
/// # Errors
/// [`ExpandError`]
pub fn expand_body(body: &[u8], lookup: &Lookup<'_>) -> Result<Expanded, ExpandError> {
    let mut lexer = Lexer::new(body, Escape::Backslash, lookup);
    lexer.quotes = Quotes::Ordinary;
    let result = lexer.until(None, Escapes::Resolve, &mut Words::Ignore);
    let text = result.map_err(|kind| failed(body, kind))?;
    Ok(Expanded { text: text.into(), undefined: lexer.undefined })
}

/// The words of a shell command, quotes, escapes and variables kept; `None` if it is not well-formed.
pub(super) fn shell_words(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    raw_words(line, Quotes::Keep, Escapes::Keep).ok()
}

/// The words of a here-document's name, variables kept, with or without its quotes.
pub(super) fn name_words(name: &[u8], quotes: Quotes) -> Result<Vec<Vec<u8>>, ExpandError> {
    raw_words(name, quotes, Escapes::Resolve).map_err(|kind| failed(name, kind))
}

fn raw_words(text: &[u8], quotes: Quotes, escapes: Escapes) -> Result<Vec<Vec<u8>>, ExpandErrorKind> {
    let lookup = |_: &str| None;
    let mut lexer = Lexer::new(text, Escape::Backslash, &lookup);
    lexer.quotes = quotes;
    lexer.unset = Unset::Keep;
    lexer.escapes = escapes;
    let mut words = Words::new();
    lexer.until(None, escapes, &mut words)?;
    Ok(words.finish())
}

fn failed(text: &[u8], kind: ExpandErrorKind) -> ExpandError {
    ExpandError { text: quote(super::text::excerpt(text).as_bytes()), kind }
}

/// What becomes of `'` and `"`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Quotes {
    /// They quote and disappear.
    Remove,
    /// They quote and stay.
    Keep,
    /// They are characters like others.
    Ordinary,
}

/// What becomes of the escape character.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Escapes {
    Resolve,
    Keep,
}

/// What an unset variable becomes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unset {
    Empty,
    Keep,
}

/// The words of the result, if anyone asks for them.
enum Words {
    Ignore,
    Collect { words: Vec<Vec<u8>>, current: Vec<u8>, inside: bool },
}

impl Words {
    const fn new() -> Self {
        Self::Collect { words: Vec::new(), current: Vec::new(), inside: false }
    }

    /// Adds characters of which white space separates words.
    fn split(&mut self, text: &[u8]) {
        let Self::Collect { words, current, inside } = self else { return };
        let mut at = 0;
        while at < text.len() {
            let (c, length) = char_at(text, at);
            if !c.is_whitespace() {
                current.extend_from_slice(&text[at..at + length]);
                *inside = true;
            } else if *inside && !current.is_empty() {
                words.push(std::mem::take(current));
                *inside = false;
            }
            at += length;
        }
    }

    /// Adds characters that belong to the word whatever they are.
    fn add(&mut self, text: &[u8]) {
        if let Self::Collect { current, inside, .. } = self {
            current.extend_from_slice(text);
            *inside = true;
        }
    }

    fn finish(self) -> Vec<Vec<u8>> {
        match self {
            Self::Ignore => Vec::new(),
            Self::Collect { mut words, current, .. } => {
                if !current.is_empty() {
                    words.push(current);
                }
                words
            }
        }
    }
}

struct Lexer<'a, 'v> {
    source: &'a [u8],
    at: usize,
    escape: u8,
    lookup: &'a Lookup<'v>,
    quotes: Quotes,
    escapes: Escapes,
    unset: Unset,
    undefined: Vec<String>,
    depth: usize,
    produced: usize,
    steps: Steps,
}

type Piece = Result<Vec<u8>, ExpandErrorKind>;

impl<'a, 'v> Lexer<'a, 'v> {
    fn new(source: &'a [u8], escape: Escape, lookup: &'a Lookup<'v>) -> Self {
        Self {
            source,
            at: 0,
            escape: escape.byte(),
            lookup,
            quotes: Quotes::Remove,
            escapes: Escapes::Resolve,
            unset: Unset::Empty,
            undefined: Vec::new(),
            depth: 0,
            produced: 0,
            steps: Steps::new(),
        }
    }

    fn peek(&self) -> Option<u8> {
        self.source.get(self.at).copied()
    }

    /// The next character as bytes; empty at the end.
    fn next(&mut self) -> &'a [u8] {
        if self.at >= self.source.len() {
            return &[];
        }
        let (_, length) = char_at(self.source, self.at);
        let taken = &self.source[self.at..self.at + length];
        self.at += length;
        taken
    }

    fn push(&mut self, out: &mut Vec<u8>, piece: &[u8]) -> Result<(), ExpandErrorKind> {
        charge(&mut self.produced, piece.len())?;
        out.extend_from_slice(piece);
        Ok(())
    }

    /// Processes up to `stop`, which is consumed, or to the end if it is `None`.
    fn until(&mut self, stop: Option<u8>, escapes: Escapes, words: &mut Words) -> Piece {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(ExpandErrorKind::TooDeep);
        }
        let before = std::mem::replace(&mut self.escapes, escapes);
        let result = self.until_inner(stop, words);
        self.escapes = before;
        self.depth -= 1;
        result
    }

    fn until_inner(&mut self, stop: Option<u8>, words: &mut Words) -> Piece {
        let mut out = Vec::new();
        while let Some(byte) = self.peek() {
            if stop == Some(byte) {
                self.at += 1;
                return Ok(out);
            }
            match byte {
                b'$' => {
                    let value = self.dollar()?;
                    words.split(&value);
                    self.push(&mut out, &value)?;
                }
                b'<' => {
                    let piece = self.here_operator();
                    words.add(piece);
                    self.push(&mut out, piece)?;
                }
                b'\'' if self.quotes != Quotes::Ordinary => {
                    let value = self.single_quoted()?;
                    words.add(&value);
                    self.push(&mut out, &value)?;
                }
                b'"' if self.quotes != Quotes::Ordinary => {
                    let value = self.double_quoted()?;
                    words.add(&value);
                    self.push(&mut out, &value)?;
                }
                _ if byte == self.escape => {
                    self.at += 1;
                    if self.escapes == Escapes::Keep {
                        words.add(&[byte]);
                        self.push(&mut out, &[byte])?;
                    }
                    let escaped = self.next();
                    if !escaped.is_empty() {
                        words.add(escaped);
                        self.push(&mut out, escaped)?;
                    }
                }
                _ => {
                    let plain = self.plain(stop);
                    words.split(plain);
                    self.push(&mut out, plain)?;
                }
            }
        }
        match stop {
            None => Ok(out),
            Some(b'/') => Err(ExpandErrorKind::MissingSlash),
            Some(_) => Err(ExpandErrorKind::MissingBrace),
        }
    }

    /// The longest run of characters that mean nothing.
    fn plain(&mut self, stop: Option<u8>) -> &'a [u8] {
        let rest = &self.source[self.at..];
        let special = |b: u8| matches!(b, b'$' | b'<' | b'\'' | b'"') || b == self.escape || stop == Some(b);
        // The first byte is known to be ordinary here, even where it is a quote.
        let length = rest.iter().skip(1).position(|&b| special(b)).map_or(rest.len(), |n| n + 1);
        self.at += length;
        &rest[..length]
    }

    /// `<`, or `<<` with the blanks after it: they belong to the word of a here-document.
    fn here_operator(&mut self) -> &'a [u8] {
        let start = self.at;
        self.at += 1;
        if self.peek() == Some(b'<') {
            self.at += 1;
            while matches!(self.peek(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
                self.at += 1;
            }
        }
        &self.source[start..self.at]
    }

    fn single_quoted(&mut self) -> Piece {
        let inner = &self.source[self.at + 1..];
        let Some(length) = inner.iter().position(|&b| b == b'\'') else {
            self.at = self.source.len();
            return Err(ExpandErrorKind::UnmatchedQuote("single-quote"));
        };
        let quoted = &self.source[self.at..self.at + length + 2];
        self.at += length + 2;
        charge(&mut self.produced, quoted.len())?;
        Ok(if self.quotes == Quotes::Keep { quoted.to_vec() } else { inner[..length].to_vec() })
    }

    fn double_quoted(&mut self) -> Piece {
        let mut out = Vec::new();
        let keep = self.quotes == Quotes::Keep;
        self.at += 1;
        if keep {
            out.push(b'"');
        }
        while let Some(byte) = self.peek() {
            match byte {
                b'"' => {
                    self.at += 1;
                    if keep {
                        out.push(b'"');
                    }
                    return Ok(out);
                }
                b'$' => {
                    let value = self.dollar()?;
                    self.push(&mut out, &value)?;
                }
                _ if byte == self.escape => {
                    self.at += 1;
                    if self.escapes == Escapes::Keep {
                        self.push(&mut out, &[byte])?;
                    }
                    match self.peek() {
                        None => {}
                        Some(next) if next == b'"' || next == b'$' || next == self.escape => {
                            self.at += 1;
                            self.push(&mut out, &[next])?;
                        }
                        Some(_) => self.push(&mut out, &[byte])?,
                    }
                }
                _ => {
                    let piece = self.next();
                    self.push(&mut out, piece)?;
                }
            }
        }
        Err(ExpandErrorKind::UnmatchedQuote("double-quote"))
    }

    fn dollar(&mut self) -> Piece {
        self.at += 1;
        if self.peek() == Some(b'{') {
            self.at += 1;
            return self.braces();
        }
        let name = self.name();
        if name.is_empty() {
            return Ok(b"$".to_vec());
        }
        let value = self.value(name);
        Ok(value.unwrap_or_else(|| self.kept(&[b"$", name.as_bytes()])))
    }

    /// `${…}` after the brace.
    fn braces(&mut self) -> Piece {
        match self.peek() {
            None => return Err(ExpandErrorKind::MissingBrace),
            Some(b'{' | b'}' | b':') => return Err(ExpandErrorKind::BadSubstitution),
            Some(_) => {}
        }
        let name = self.name();
        let start = self.at;
        let first = self.next();
        match first {
            b"}" => {
                let value = self.value(name);
                Ok(value.unwrap_or_else(|| self.kept(&[b"${", name.as_bytes(), b"}"])))
            }
            b"/" => self.replacement(name),
            b":" | b"+" | b"-" | b"?" | b"#" | b"%" => {
                let kind = if first == b":" { self.next() } else { first };
                let modifier = &self.source[start..self.at];
                self.modified(name, modifier, kind, first == b":")
            }
            _ => Err(unsupported(first)),
        }
    }

    /// `${name-word}` and its kin, after the modifier.
    fn modified(&mut self, name: &str, modifier: &[u8], kind: &[u8], null_is_unset: bool) -> Piece {
        let trims = matches!(kind, b"#" | b"%");
        let escapes = if trims { Escapes::Keep } else { Escapes::Resolve };
        let word = self.part(b'}', escapes, ExpandErrorKind::MissingBrace)?;
        let set = (self.lookup)(name).map(Cow::into_owned);
        if set.is_none() && self.unset == Unset::Keep {
            return Ok(self.kept(&[b"${", name.as_bytes(), modifier, &word, b"}"]));
        }
        let usable = set.as_ref().is_some_and(|value| !(null_is_unset && value.is_empty()));
        match kind {
            b"-" => Ok(if usable { set.unwrap_or_default() } else { word }),
            b"+" => Ok(if usable { word } else { Vec::new() }),
            b"?" => match set {
                Some(value) if usable => Ok(value),
                set => Err(required(name, &word, set.is_none())),
            },
            b"#" | b"%" => {
                if set.is_none() {
                    self.note_undefined(name);
                }
                let value = set.unwrap_or_default();
                let (length, pattern) = match word.strip_prefix(kind) {
                    Some(pattern) => (Length::Longest, pattern),
                    None => (Length::Shortest, &word[..]),
                };
                let pattern = Pattern::parse(pattern)?;
                if kind == b"#" {
                    pattern.trim_prefix(&value, length, &mut self.steps)
                } else {
                    pattern.trim_suffix(&value, length, &mut self.steps)
                }
            }
            _ => Err(unsupported(modifier)),
        }
    }

    /// `${name/pattern/replacement}` after the first slash.
    fn replacement(&mut self, name: &str) -> Piece {
        let occurrences = if self.peek() == Some(b'/') {
            self.at += 1;
            Occurrences::All
        } else {
            Occurrences::First
        };
        let pattern = self.part(b'/', Escapes::Keep, ExpandErrorKind::MissingSlash)?;
        let replacement = self.part(b'}', Escapes::Keep, ExpandErrorKind::MissingBrace)?;
        let Some(value) = self.value(name) else {
            return Ok(self.kept(&[b"${", name.as_bytes(), b"/", &pattern, b"/", &replacement, b"}"]));
        };
        let produced = &mut self.produced;
        let mut charge = |length| charge(produced, length);
        Pattern::parse(&pattern)?.replace(&value, &replacement, occurrences, &mut self.steps, &mut charge)
    }

    /// A part of a substitution; whatever goes wrong at the very end of the text is reported as a part without end.
    fn part(&mut self, stop: u8, escapes: Escapes, unended: ExpandErrorKind) -> Piece {
        match self.until(Some(stop), escapes, &mut Words::Ignore) {
            Err(kind) if self.at >= self.source.len() && !kind.is_limit() => Err(unended),
            other => other,
        }
    }

    /// The value of `name`; unset is noted and empty, or `None` where unset variables are kept as they are written.
    fn value(&mut self, name: &str) -> Option<Vec<u8>> {
        match (self.lookup)(name) {
            Some(value) => Some(value.into_owned()),
            None if self.unset == Unset::Keep => None,
            None => {
                self.note_undefined(name);
                Some(Vec::new())
            }
        }
    }

    fn note_undefined(&mut self, name: &str) {
        // Bounded, since looking for a repetition is linear.
        if self.undefined.len() < 100 && !self.undefined.iter().any(|known| known == name) {
            self.undefined.push(name.to_owned());
        }
    }

    fn kept(&self, parts: &[&[u8]]) -> Vec<u8> {
        parts.concat()
    }

    /// A name: letters, digits and `_`; only digits if it begins with one; or one special parameter.
    fn name(&mut self) -> &'a str {
        let start = self.at;
        if let Some(b'@' | b'*' | b'#' | b'?' | b'-' | b'$' | b'!') = self.peek() {
            self.at += 1;
        } else {
            let digits_only = self.peek_char().is_some_and(char::is_numeric);
            while let Some(c) = self.peek_char() {
                let belongs = if digits_only { c.is_numeric() } else { c.is_alphanumeric() || c == '_' };
                if !belongs {
                    break;
                }
                self.at += c.len_utf8();
            }
        }
        std::str::from_utf8(&self.source[start..self.at]).unwrap_or_default()
    }

    fn peek_char(&self) -> Option<char> {
        (self.at < self.source.len()).then(|| char_at(self.source, self.at).0)
    }
}

fn charge(produced: &mut usize, length: usize) -> Result<(), ExpandErrorKind> {
    *produced += length;
    if *produced > MAX_EXPANSION { Err(ExpandErrorKind::TooLarge) } else { Ok(()) }
}

fn unsupported(modifier: &[u8]) -> ExpandErrorKind {
    // Go shows the end of the text as U+FFFD.
    let shown = if modifier.is_empty() { "\u{fffd}".into() } else { String::from_utf8_lossy(modifier) };
    ExpandErrorKind::UnsupportedModifier(shown.into_owned())
}

fn required(name: &str, word: &[u8], unset: bool) -> ExpandErrorKind {
    let message = match (word.is_empty(), unset) {
        (false, _) => String::from_utf8_lossy(word).into_owned(),
        (true, true) => "is not allowed to be unset".to_owned(),
        (true, false) => "is not allowed to be empty".to_owned(),
    };
    ExpandErrorKind::Required { name: name.to_owned(), message }
}

#[cfg(test)]
mod tests {
    use super::*;

    // What expands to what is in testdata/dockerfile/expand.tsv.

    fn lookup(name: &str) -> Option<Cow<'static, [u8]>> {
        match name {
            "n" => Some(Cow::Borrowed(b"name")),
            "raw" => Some(Cow::Borrowed(b"\xff\xfe")),
            _ => None,
        }
    }

    #[test]
    fn errors_show_the_whole_text() {
        let error = expand(b"a=${x:-y", Escape::Backslash, &lookup).unwrap_err();
        assert_eq!(error.to_string(), "failed to process \"a=${x:-y\": syntax error: missing '}'");
    }

    #[test]
    fn bytes_that_are_not_utf8_pass_through() {
        let expanded = expand(b"\xc3$raw'\xff'\"\xfe\"\\\x80", Escape::Backslash, &lookup).unwrap();
        assert_eq!(expanded.text.as_bytes(), b"\xc3\xff\xfe\xff\xfe\x80");
    }

    #[test]
    fn undefined_names_are_told() {
        for (source, undefined) in [
            ("$x$y$x$n", vec!["x", "y"]),
            ("${x:-$y}", vec!["y"]),
            ("${x-1}${x:+1}${x+1}", vec![]),
            ("${x#a}${y//a/b}", vec!["x", "y"]),
            ("'$x'\\$y", vec![]),
        ] {
            let expanded = expand(source.as_bytes(), Escape::Backslash, &lookup).unwrap();
            assert_eq!(expanded.undefined, undefined, "{source}");
        }
    }

    #[test]
    fn depth_and_size_are_limited() {
        let kind = |source: String| {
            expand(source.as_bytes(), Escape::Backslash, &lookup).map_err(|error| error.kind)
        };
        for depth in [10_000, 100_000] {
            let open = "${x:-".repeat(depth);
            assert_eq!(kind(open.clone()), Err(ExpandErrorKind::TooDeep));
            assert_eq!(kind(open + &"}".repeat(depth)), Err(ExpandErrorKind::TooDeep));
            assert_eq!(kind("${x:-\"".repeat(depth)), Err(ExpandErrorKind::TooDeep));
            assert_eq!(kind("${x/".repeat(depth)), Err(ExpandErrorKind::TooDeep));
        }
        let deepest = MAX_DEPTH - 1;
        assert!(kind("${x:-".repeat(deepest) + "a" + &"}".repeat(deepest)).is_ok());
        let large = vec![b'a'; 1 << 20];
        let lookup = |_: &str| Some(Cow::Borrowed(&large[..]));
        let error = expand("$a".repeat(100).as_bytes(), Escape::Backslash, &lookup).unwrap_err();
        assert_eq!(error.kind, ExpandErrorKind::TooLarge);
        let error = expand(b"${a//a/${a}}", Escape::Backslash, &lookup).unwrap_err();
        assert_eq!(error.kind, ExpandErrorKind::TooLarge);
        let error = expand(b"${a//*a*a*a*b/}", Escape::Backslash, &lookup).unwrap_err();
        assert_eq!(error.kind, ExpandErrorKind::TooExpensive);
    }
}
