//! Shell-like path patterns, matched without backtracking.

/// A pattern that cannot be one: a class that does not end, is empty or starts a range at `-`, or a `\` at the end (as
/// Go's `path.Match` judges).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("syntax error in pattern")]
pub struct GlobError;

/// What two stars in a row mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DoubleStar {
    /// The same as one (Go's `path.Match`: sources of COPY and ADD).
    OneComponent,
    /// Any number of components (moby's `patternmatcher`: `.dockerignore`).
    AnyDepth,
}

/// A compiled pattern: `*` and `?` stop at a slash, `[a-z]` and `[^a]` are classes, `\c` is `c` itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob {
    tokens: Vec<Token>,
    /// The bytes every match starts with: most paths are told apart by them alone.
    prefix: Vec<u8>,
    /// Whether the pattern is `**/` and something without a slash, which is then compared with the last component alone.
    /// Many patterns are like that, and their matches may start with anything.
    name: Option<Name>,
    /// The bytes every match ends with, if not empty.
    suffix: Vec<u8>,
}

/// The pattern of a last component.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Name {
    /// How many tokens come before it.
    first: usize,
    /// The bytes that every name that matches starts with.
    prefix: Vec<u8>,
}

/// A character, or a byte that is not part of one, which then lies above all characters.
type Symbol = u32;

const SLASH: Symbol = b'/' as Symbol;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Symbol(Symbol),
    Class {
        negated: bool,
        ranges: Vec<(Symbol, Symbol)>,
    },
    /// `?`
    NotSlash,
    /// `*`
    ManyNotSlash,
    /// `**` at an end of the pattern.
    Everything,
    /// `**/`: nothing, or anything that ends in a slash.
    Directories,
}

impl Glob {
    /// Compiles `pattern`.
    ///
    /// # Errors
    /// [`GlobError`].
    pub fn parse(pattern: &[u8], double_star: DoubleStar) -> Result<Self, GlobError> {
        Ok(Self::of(tokenize(&symbols(pattern).collect::<Vec<_>>(), double_star)?))
    }

    /// What matches exactly `path`, whatever characters are in it.
    #[must_use]
    pub fn literal(path: &[u8]) -> Self {
        Self::of(symbols(path).map(Token::Symbol).collect())
    }

    fn of(tokens: Vec<Token>) -> Self {
        let prefix = literal(tokens.iter());
        let suffix = tokens.iter().rposition(|token| !matches!(token, Token::Symbol(_)));
        let suffix = literal(tokens[suffix.map_or(0, |last| last + 1)..].iter());
        let name = match tokens.as_slice() {
            [Token::Directories, name @ ..] if name.iter().all(Token::is_within_component) => {
                Some(Name { first: 1, prefix: literal(name.iter()) })
            }
            _ => None,
        };
        Self { tokens, prefix, name, suffix }
    }

    /// Whether the pattern matches all of `path`.
    #[must_use]
    pub fn matches(&self, path: &[u8]) -> bool {
        if !path.ends_with(&self.suffix) {
            return false;
        }
        let (path, tokens) = match &self.name {
            Some(Name { first, prefix }) => {
                let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
                if !name.starts_with(prefix) {
                    return false;
                }
                (name, &self.tokens[*first..])
            }
            None if !path.starts_with(&self.prefix) => return false,
            None if self.is_literal() => return path.len() == self.prefix.len(),
            None => (path, self.tokens.as_slice()),
        };
        let mut states = States::new(tokens);
        symbols(path).all(|symbol| states.step(symbol)) && states.accepts()
    }

    /// The only name that an entry of `directory` may have which the pattern matches, or which leads to what it matches;
    /// none where there may be several.
    #[must_use]
    pub fn only_entry(&self, directory: &[u8]) -> Option<&[u8]> {
        let rest = self.prefix.strip_prefix(directory)?;
        let rest = if directory.is_empty() { rest } else { rest.strip_prefix(b"/")? };
        match rest.iter().position(|byte| *byte == b'/') {
            Some(end) => Some(&rest[..end]),
            None => self.is_literal().then_some(rest),
        }
    }

    /// Whether the pattern matches `path` or a directory above it.
    #[must_use]
    pub fn matches_or_parent(&self, path: &[u8]) -> bool {
        let Some(rest) = path.strip_prefix(self.prefix.as_slice()) else { return false };
        if self.is_literal() {
            return matches!(rest, [] | [b'/', ..]);
        }
        let mut states = States::new(&self.tokens);
        for symbol in symbols(path) {
            if symbol == SLASH && states.accepts() {
                return true;
            }
            if !states.step(symbol) {
                return false;
            }
        }
        states.accepts()
    }

    /// Whether the pattern matches some path below `directory`; may say yes where it cannot.
    #[must_use]
    pub fn may_match_below(&self, directory: &[u8]) -> bool {
        let common = directory.len().min(self.prefix.len());
        if directory[..common] != self.prefix[..common] {
            return false;
        }
        let mut states = States::new(&self.tokens);
        symbols(directory).chain([SLASH]).all(|symbol| states.step(symbol))
    }

    /// Bytes that follow one another in every path that the pattern matches.
    pub(super) fn literals(&self) -> Vec<Vec<u8>> {
        let runs = self.tokens.split(|token| !matches!(token, Token::Symbol(_)));
        runs.map(|run| literal(run.iter())).collect()
    }

    fn is_literal(&self) -> bool {
        self.tokens.iter().all(|token| matches!(token, Token::Symbol(_)))
    }
}

impl Token {
    /// Whether it matches nothing with a slash in it.
    fn is_within_component(&self) -> bool {
        match self {
            Self::Symbol(symbol) => *symbol != SLASH,
            // A negated class, or a range, may have it.
            Self::Class { .. } => false,
            Self::NotSlash | Self::ManyNotSlash => true,
            Self::Everything | Self::Directories => false,
        }
    }
}

/// The bytes that the first of `tokens` match, as far as there is no choice.
fn literal<'t>(tokens: impl Iterator<Item = &'t Token>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for token in tokens {
        let Token::Symbol(symbol) = token else { break };
        push_symbol(&mut bytes, *symbol);
    }
    bytes
}

fn tokenize(mut rest: &[Symbol], double_star: DoubleStar) -> Result<Vec<Token>, GlobError> {
    const STAR: Symbol = b'*' as Symbol;
    const QUESTION: Symbol = b'?' as Symbol;
    const BACKSLASH: Symbol = b'\\' as Symbol;
    const OPEN: Symbol = b'[' as Symbol;
    let mut tokens = Vec::new();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        let token = match first {
            STAR if double_star == DoubleStar::AnyDepth && rest.first() == Some(&STAR) => {
                rest = &rest[1..];
                if rest.first() == Some(&SLASH) {
                    rest = &rest[1..];
                    if rest.is_empty() { Token::Everything } else { Token::Directories }
                } else if rest.is_empty() || (tokens.is_empty() && is_plain(rest)) {
                    // `**foo.txt` is any path that ends so, while `**foo*` wants whole components before `foo`.
                    Token::Everything
                } else {
                    Token::Directories
                }
            }
            STAR => Token::ManyNotSlash,
            QUESTION => Token::NotSlash,
            BACKSLASH => {
                let (&escaped, after) = rest.split_first().ok_or(GlobError)?;
                rest = after;
                Token::Symbol(escaped)
            }
            OPEN => {
                let (class, after) = class(rest)?;
                rest = after;
                class
            }
            other => Token::Symbol(other),
        };
        // Repetitions change nothing but would cost time for each symbol of a path.
        let repeated = !matches!(token, Token::Symbol(_) | Token::Class { .. } | Token::NotSlash);
        if !(repeated && tokens.last() == Some(&token)) {
            tokens.push(token);
        }
    }
    Ok(tokens)
}

fn is_plain(symbols: &[Symbol]) -> bool {
    let special = |symbol: &Symbol| u8::try_from(*symbol).is_ok_and(|byte| b"*?[]\\".contains(&byte));
    !symbols.iter().any(special)
}

/// Reads a class behind its `[`; returns what is behind its `]`.
fn class(mut rest: &[Symbol]) -> Result<(Token, &[Symbol]), GlobError> {
    let negated = rest.first() == Some(&Symbol::from(b'^'));
    if negated {
        rest = &rest[1..];
    }
    let mut ranges = Vec::new();
    loop {
        if rest.first() == Some(&Symbol::from(b']')) && !ranges.is_empty() {
            return Ok((Token::Class { negated, ranges }, &rest[1..]));
        }
        let low;
        (low, rest) = class_symbol(rest)?;
        let mut high = low;
        if rest.first() == Some(&Symbol::from(b'-')) {
            (high, rest) = class_symbol(&rest[1..])?;
        }
        ranges.push((low, high));
    }
}

fn class_symbol(rest: &[Symbol]) -> Result<(Symbol, &[Symbol]), GlobError> {
    match rest {
        [escape, symbol, rest @ ..] if *escape == Symbol::from(b'\\') => Ok((*symbol, rest)),
        [symbol, rest @ ..] if ![b'\\', b'-', b']'].map(Symbol::from).contains(symbol) => Ok((*symbol, rest)),
        _ => Err(GlobError),
    }
}

fn symbols(bytes: &[u8]) -> impl Iterator<Item = Symbol> {
    bytes.utf8_chunks().flat_map(|chunk| {
        let invalid = chunk.invalid().iter().map(|byte| INVALID + Symbol::from(*byte));
        chunk.valid().chars().map(Symbol::from).chain(invalid)
    })
}

/// Where the bytes begin that are not UTF-8: above `char::MAX`.
const INVALID: Symbol = 0x11_0000;

fn push_symbol(bytes: &mut Vec<u8>, symbol: Symbol) {
    match char::from_u32(symbol) {
        Some(character) => bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
        None => bytes.extend(u8::try_from(symbol - INVALID)),
    }
}

/// All ways in which the symbols so far can be matched, as positions in the pattern: time grows by the product of both
/// lengths at most, whatever the pattern.
struct States<'a> {
    tokens: &'a [Token],
    current: Vec<usize>,
    next: Vec<usize>,
    /// For each position, the number of the step in which it was last reached.
    reached: Vec<usize>,
    step: usize,
}

impl<'a> States<'a> {
    fn new(tokens: &'a [Token]) -> Self {
        let reached = vec![0; tokens.len() + 1];
        let mut states = Self { tokens, current: Vec::new(), next: Vec::new(), reached, step: 1 };
        states.reach(0);
        std::mem::swap(&mut states.current, &mut states.next);
        states
    }

    /// Adds `position` and all positions that nothing separates from it.
    fn reach(&mut self, mut position: usize) {
        loop {
            let new = self.reached[position] != self.step;
            if new {
                self.reached[position] = self.step;
                self.next.push(position);
            }
            match self.tokens.get(position) {
                // It may have been kept in its middle, from where the next position is not reached.
                Some(Token::Directories) => {}
                Some(Token::ManyNotSlash | Token::Everything) if new => {}
                _ => return,
            }
            position += 1;
        }
    }

    /// Takes in a symbol; whether a match is still possible.
    fn step(&mut self, symbol: Symbol) -> bool {
        self.step += 1;
        self.next.clear();
        let current = std::mem::take(&mut self.current);
        for &position in &current {
            match self.tokens.get(position) {
                Some(Token::Symbol(expected)) if *expected == symbol => self.reach(position + 1),
                Some(Token::NotSlash) if symbol != SLASH => self.reach(position + 1),
                Some(Token::ManyNotSlash) if symbol != SLASH => self.reach(position),
                Some(Token::Everything) => self.reach(position),
                Some(Token::Class { negated, ranges })
                    if ranges.iter().any(|(low, high)| (*low..=*high).contains(&symbol)) != *negated =>
                {
                    self.reach(position + 1);
                }
                Some(Token::Directories) => {
                    if self.reached[position] != self.step {
                        self.reached[position] = self.step;
                        self.next.push(position);
                    }
                    if symbol == SLASH {
                        self.reach(position + 1);
                    }
                }
                _ => {}
            }
        }
        self.current = current;
        std::mem::swap(&mut self.current, &mut self.next);
        !self.current.is_empty()
    }

    fn accepts(&self) -> bool {
        self.reached[self.tokens.len()] == self.step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignore_patterns_match_as_moby_patternmatcher_does() {
        // pattern, path, matches the path itself, matches it or a parent
        for (pattern, path, exact, parent) in [
            ("**", "file", true, true),
            ("**/", "dir/file", true, true),
            ("**/**", "dir/file", true, true),
            ("dir/**", "dir/dir2/file", true, true),
            ("dir/**", "dir", false, false),
            ("**/dir", "dir", true, true),
            ("**/dir", "dir/file", false, true),
            ("**/dir2/*", "dir/dir2/file", true, true),
            ("**/dir2/**", "dir/dir2/dir3/file", true, true),
            ("**file", "dir/file", true, true),
            ("**file", "dir/xfile", true, true),
            ("**file*", "dir/xfile", false, false),
            ("**/file*txt", "dir/dir/file.txt", true, true),
            ("**/**/*.txt", "dir/dir/file.txt", true, true),
            ("**/**/*.txt", "file.txt", true, true),
            ("a**/*.txt", "a/dir/file.txt", true, true),
            ("a**b", "ab", true, true),
            ("a**b", "ax/b", true, true),
            ("a**b", "axb", false, false),
            ("a/*.txt", "a/dir/file.txt", false, false),
            ("a[b-d]e", "ace", true, true),
            ("a[b-d]e", "ae", false, false),
            ("a[^b-d]e", "aze", true, true),
            ("a?c", "a/c", false, false),
            ("**/.foo", "bar.foo", false, false),
            ("a.|)$(}+{bc", "a.|)$(}+{bc", true, true),
            ("a\\\\", "a\\", true, true),
            ("a\\*b", "a*b", true, true),
            ("a*b?c*x", "abxbbxdbxebxczzx", true, true),
            ("a*b?c*x", "abxbbxdbxebxczzy", false, false),
            ("a?b", "a☺b", true, true),
            ("[a-ζ]*", "α", true, true),
            ("*", "ab/c", false, true),
            ("[x\\-]", "-", true, true),
            ("x]", "x]", true, true),
        ] {
            let glob = Glob::parse(pattern.as_bytes(), DoubleStar::AnyDepth).unwrap();
            assert_eq!(glob.matches(path.as_bytes()), exact, "{pattern} on {path}");
            assert_eq!(glob.matches_or_parent(path.as_bytes()), parent, "{pattern} on {path} or a parent");
        }
    }

    #[test]
    fn source_patterns_take_two_stars_for_one() {
        for (pattern, name, expected) in [
            ("**", "ab", true),
            ("a**b", "axxb", true),
            ("**/b", "a/c/b", false),
            ("[[]x]", "[x]", true),
            ("*", ".hidden", true),
            ("[^a]", "b", true),
        ] {
            let glob = Glob::parse(pattern.as_bytes(), DoubleStar::OneComponent).unwrap();
            assert_eq!(glob.matches(name.as_bytes()), expected, "{pattern} on {name}");
        }
    }

    #[test]
    fn bytes_that_are_not_utf8_match_themselves() {
        let glob = |pattern: &[u8]| Glob::parse(pattern, DoubleStar::AnyDepth).unwrap();
        assert!(glob(b"a\xff*").matches(b"a\xffb"));
        assert!(glob(b"a\xff").matches(b"a\xff"));
        assert!(!glob(b"a\xff").matches("aÿ".as_bytes()));
        assert!(glob(b"a?b").matches(b"a\xfeb"));
    }

    #[test]
    fn broken_classes_and_escapes_are_errors() {
        for pattern in [
            "[", "[^", "[^bc", "a[", "[]a]", "[-]", "[x-]", "[-x]", "[a-b-c]", "[]", "[^]", "\\", "a\\",
            "[\\", "*[a",
        ] {
            for double_star in [DoubleStar::OneComponent, DoubleStar::AnyDepth] {
                assert_eq!(Glob::parse(pattern.as_bytes(), double_star), Err(GlobError), "{pattern}");
            }
        }
    }

    #[test]
    fn below_is_asked_for_directories() {
        for (pattern, directory, expected) in [
            ("a/b", "a", true),
            ("a/b", "b", false),
            ("a/b", "a/b", false),
            ("a/b", "ab", false),
            ("**/*.go", "x/y", true),
            ("*.go", "x", false),
            ("*/x", "y", true),
            ("*/x", "y/z", false),
            ("a**", "a", true),
        ] {
            let glob = Glob::parse(pattern.as_bytes(), DoubleStar::AnyDepth).unwrap();
            assert_eq!(glob.may_match_below(directory.as_bytes()), expected, "{pattern} below {directory}");
        }
    }

    #[test]
    fn the_only_entry_that_leads_to_a_match_is_known() {
        for (pattern, directory, expected) in [
            ("a/b/c", "", Some("a")),
            ("a/b/c", "a", Some("b")),
            ("a/b/c", "a/b", Some("c")),
            ("a/b/c", "a/b/c", None),
            ("a/b/c", "ab", None),
            ("a/b*", "a", None),
            ("a/b*/c", "", Some("a")),
            ("ab*", "", None),
            ("**/a", "", None),
            ("a/**", "", Some("a")),
            ("a/**", "a", None),
        ] {
            let glob = Glob::parse(pattern.as_bytes(), DoubleStar::AnyDepth).unwrap();
            let only = glob.only_entry(directory.as_bytes());
            assert_eq!(only, expected.map(str::as_bytes), "{pattern} in {directory}");
        }
        assert_eq!(Glob::literal(b"a*[").only_entry(b""), Some(&b"a*["[..]));
        assert!(Glob::literal(b"a*[").matches(b"a*[") && !Glob::literal(b"a*").matches(b"ab"));
    }

    #[test]
    fn hostile_patterns_take_no_exponential_time() {
        // Each would keep a backtracking matcher busy for longer than the universe has existed.
        let path = "a/".repeat(2000) + "x";
        for unit in ["**/", "a**/", "*a*", "**/a/"] {
            let pattern = unit.repeat(500) + "b";
            let glob = Glob::parse(pattern.as_bytes(), DoubleStar::AnyDepth).unwrap();
            assert!(!glob.matches_or_parent(path.as_bytes()));
        }
        let name = "a".repeat(4000);
        let glob = Glob::parse(("*a".repeat(1000) + "b").as_bytes(), DoubleStar::OneComponent).unwrap();
        assert!(!glob.matches(name.as_bytes()));
    }
}
