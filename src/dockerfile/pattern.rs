//! The patterns of `${name#pattern}` and its kin: `*` and `?` only.
//!
//! As in BuildKit a pattern is not about paths (`*` matches `/`), `[` is an ordinary character, neither `*` nor `?`
//! matches a newline, and `\` may precede `*`, `?`, `\`, `}` and `/` only.

use super::expand::ExpandErrorKind;
use super::text::char_at;

/// A pattern, ready to match.
pub(super) struct Pattern {
    tokens: Vec<Token>,
}

enum Token {
    /// `*`: any number of characters.
    Star,
    /// `?`: one character.
    Any,
    /// This character (a byte sequence that is one character, or one byte that is not UTF-8).
    Literal(Vec<u8>),
}

/// Which of several possible matches is wanted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Length {
    Shortest,
    Longest,
}

/// How often a pattern is replaced.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Occurrences {
    First,
    All,
}

/// Steps that matching may still take, over a whole expansion: a hostile pattern must not cost minutes.
pub(super) struct Steps(u32);

impl Steps {
    pub(super) const fn new() -> Self {
        Self(10_000_000)
    }

    fn take(&mut self, count: usize) -> Result<(), ExpandErrorKind> {
        let left = u32::try_from(count).ok().and_then(|count| self.0.checked_sub(count));
        self.0 = left.ok_or(ExpandErrorKind::TooExpensive)?;
        Ok(())
    }
}

impl Pattern {
    /// Reads a pattern.
    pub(super) fn parse(pattern: &[u8]) -> Result<Self, ExpandErrorKind> {
        let mut tokens = Vec::new();
        let mut at = 0;
        while at < pattern.len() {
            let (_, length) = char_at(pattern, at);
            match pattern[at] {
                b'*' => tokens.push(Token::Star),
                b'?' => tokens.push(Token::Any),
                b'\\' => {
                    at += 1;
                    let (_, length) = char_at(pattern, at);
                    let escaped = pattern.get(at..at + length).unwrap_or_default();
                    if !matches!(escaped, b"*" | b"?" | b"\\" | b"}" | b"/") {
                        return Err(ExpandErrorKind::InvalidPattern {
                            pattern: super::text::excerpt(pattern),
                            escape: String::from_utf8_lossy(escaped).into_owned(),
                        });
                    }
                    tokens.push(Token::Literal(escaped.to_vec()));
                }
                _ => tokens.push(Token::Literal(pattern[at..at + length].to_vec())),
            }
            at += length;
        }
        Ok(Self { tokens })
    }

    /// `value` without the shortest or longest match at its start.
    pub(super) fn trim_prefix(
        &self,
        value: &[u8],
        length: Length,
        steps: &mut Steps,
    ) -> Result<Vec<u8>, ExpandErrorKind> {
        let chars = characters(value);
        let tokens: Vec<&Token> = self.tokens.iter().collect();
        let end = match_end(&tokens, &chars, 0, length, steps)?.unwrap_or(0);
        Ok(chars[end..].concat())
    }

    /// `value` without the shortest or longest match at its end.
    pub(super) fn trim_suffix(
        &self,
        value: &[u8],
        length: Length,
        steps: &mut Steps,
    ) -> Result<Vec<u8>, ExpandErrorKind> {
        let mut chars = characters(value);
        chars.reverse();
        let tokens: Vec<&Token> = self.tokens.iter().rev().collect();
        let end = match_end(&tokens, &chars, 0, length, steps)?.unwrap_or(0);
        let mut kept = chars.split_off(end);
        kept.reverse();
        Ok(kept.concat())
    }

    /// `value` with matches replaced; each match is the leftmost and then the longest. `charge` is told of every byte
    /// that the result grows by.
    pub(super) fn replace(
        &self,
        value: &[u8],
        replacement: &[u8],
        occurrences: Occurrences,
        steps: &mut Steps,
        charge: &mut dyn FnMut(usize) -> Result<(), ExpandErrorKind>,
    ) -> Result<Vec<u8>, ExpandErrorKind> {
        let chars = characters(value);
        let tokens: Vec<&Token> = self.tokens.iter().collect();
        let mut out = Vec::new();
        // `copied`: characters before it are in `out` or were replaced.
        let (mut copied, mut start) = (0, 0);
        while start <= chars.len() {
            let Some(end) = match_end(&tokens, &chars, start, Length::Longest, steps)? else {
                start += 1;
                continue;
            };
            // As Go does: an empty match right after another match is not one.
            if end > copied || start == 0 {
                charge(replacement.len())?;
                out.extend(chars[copied..start].iter().flat_map(|c| c.iter()));
                out.extend_from_slice(replacement);
                copied = end;
                if occurrences == Occurrences::First {
                    break;
                }
            }
            start = end.max(start + usize::from(end == start));
        }
        out.extend(chars[copied..].iter().flat_map(|c| c.iter()));
        Ok(out)
    }
}

/// The characters of `value` as byte sequences.
fn characters(value: &[u8]) -> Vec<&[u8]> {
    let mut characters = Vec::with_capacity(value.len());
    let mut at = 0;
    while at < value.len() {
        let (_, length) = char_at(value, at);
        characters.push(&value[at..at + length]);
        at += length;
    }
    characters
}

/// Where a match that begins at `start` ends; all ways to match are followed at once, so the time is at most
/// characters × tokens.
fn match_end(
    tokens: &[&Token],
    chars: &[&[u8]],
    start: usize,
    length: Length,
    steps: &mut Steps,
) -> Result<Option<usize>, ExpandErrorKind> {
    let mut found = None;
    // States are token indices, in rising order and without repetition.
    let mut states = vec![];
    enter(tokens, 0, &mut states);
    let mut at = start;
    loop {
        if states.last() == Some(&tokens.len()) {
            found = Some(at);
            if length == Length::Shortest {
                return Ok(found);
            }
        }
        let Some(&c) = chars.get(at) else { return Ok(found) };
        let mut next = Vec::new();
        steps.take(states.len() + 1)?;
        for &state in &states {
            match tokens.get(state) {
                Some(Token::Star) if c != b"\n" => enter(tokens, state, &mut next),
                Some(Token::Any) if c != b"\n" => enter(tokens, state + 1, &mut next),
                Some(Token::Literal(literal)) if literal == c => enter(tokens, state + 1, &mut next),
                _ => {}
            }
        }
        if next.is_empty() {
            return Ok(found);
        }
        states = next;
        at += 1;
    }
}

/// Adds `state` and what a `*` lets follow without a character.
fn enter(tokens: &[&Token], mut state: usize, states: &mut Vec<usize>) {
    loop {
        if states.last().is_none_or(|&last| last < state) {
            states.push(state);
        }
        if !matches!(tokens.get(state), Some(Token::Star)) {
            return;
        }
        state += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replace(value: &str, pattern: &str, with: &str, occurrences: Occurrences) -> String {
        let pattern = Pattern::parse(pattern.as_bytes()).unwrap();
        let mut charge = |_| Ok(());
        let out = pattern
            .replace(value.as_bytes(), with.as_bytes(), occurrences, &mut Steps::new(), &mut charge)
            .unwrap_or_else(|error| panic!("{error}"));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn matches_are_leftmost_and_longest() {
        use Occurrences::{All, First};
        for (value, pattern, with, occurrences, expected) in [
            ("foo.bar.baz", "o*", "x", First, "fx"),
            ("foo.bar.baz", "?o", "X", First, "Xo.bar.baz"),
            ("foo.bar.baz", "[a-z]", "x", All, "foo.bar.baz"),
            ("foo.bar.baz", ".", "", All, "foobarbaz"),
            ("aaaa", "aa", "b", All, "bb"),
            ("abc", "", "x", All, "xaxbxcx"),
            ("abc", "", "x", First, "xabc"),
            ("abc", "*", "x", All, "x"),
            ("a\nb", "*", "x", All, "x\nx"),
            ("a\nb", "?", "x", All, "x\nx"),
            ("äöü", "?", "x", All, "xxx"),
            ("a*b?c", "\\*", "+", All, "a+b?c"),
            ("a/b", "\\/", "}", All, "a}b"),
            ("", "a", "x", All, ""),
            ("", "", "x", All, "x"),
        ] {
            assert_eq!(replace(value, pattern, with, occurrences), expected, "{value} {pattern}");
        }
    }

    #[test]
    fn prefixes_and_suffixes_are_shortest_or_longest() {
        use Length::{Longest, Shortest};
        let value = b"foo.bar.baz";
        let trim = |pattern: &str, length, suffix: bool| {
            let pattern = Pattern::parse(pattern.as_bytes()).unwrap();
            let steps = &mut Steps::new();
            let out = if suffix {
                pattern.trim_suffix(value, length, steps)
            } else {
                pattern.trim_prefix(value, length, steps)
            };
            String::from_utf8(out.unwrap()).unwrap()
        };
        assert_eq!(trim("*.", Shortest, false), "bar.baz");
        assert_eq!(trim("*.", Longest, false), "baz");
        assert_eq!(trim(".*", Shortest, true), "foo.bar");
        assert_eq!(trim(".*", Longest, true), "foo");
        assert_eq!(trim("x*", Longest, true), "foo.bar.baz");
        assert_eq!(trim("*", Longest, true), "");
        assert_eq!(trim("*", Shortest, true), "foo.bar.baz");
    }

    #[test]
    fn only_some_characters_can_be_escaped() {
        for pattern in ["\\.", "a\\", "\\é"] {
            assert!(Pattern::parse(pattern.as_bytes()).is_err(), "{pattern}");
        }
    }

    #[test]
    fn an_expensive_pattern_is_refused_soon() {
        let value = vec![b'a'; 200_000];
        let pattern = Pattern::parse(b"*a*a*a*a*a*a*a*a*b").unwrap();
        let mut charge = |_| Ok(());
        let result = pattern.replace(&value, b"", Occurrences::All, &mut Steps::new(), &mut charge);
        assert_eq!(result.unwrap_err(), ExpandErrorKind::TooExpensive);
    }
}
