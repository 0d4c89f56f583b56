//! The output of a step without the secrets it was given.
//!
//! A program that prints its token prints it into the log of whoever builds. That cannot be prevented (it might print it
//! backwards), but the usual accident can.

use std::collections::BTreeMap;

use crate::sandbox::{Secret, Stream};

/// What stands for a secret.
const MASK: &[u8] = b"***";

/// A shorter secret is not looked for: it would be found everywhere.
const SHORTEST: usize = 4;

/// A line of a secret counts by itself from this length on.
const SHORTEST_LINE: usize = 8;

/// Longer secrets are looked for in pieces of this length, so that not much output must be held back.
const PIECE: usize = 64;

/// Hides secrets in the two streams of a process.
#[derive(Debug, Default)]
pub(super) struct Redactor {
    patterns: Patterns,
    out: Held,
    error: Held,
}

/// What to look for, by its first bytes.
#[derive(Default)]
struct Patterns {
    by_start: BTreeMap<[u8; SHORTEST], Vec<Vec<u8>>>,
    /// Whether a pattern begins with a byte: most positions are settled by that.
    first: Vec<bool>,
}

/// The end of a stream so far: it may be the beginning of a secret.
#[derive(Default)]
struct Held {
    bytes: Vec<u8>,
    /// Whether the last thing that went out was a mask: pieces of one secret make one mask.
    masked: bool,
}

/// Whether more of a stream may come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Open,
    Reached,
}

impl Redactor {
    /// One that hides `secrets`.
    pub(super) fn new<'s>(secrets: impl Iterator<Item = &'s Secret>) -> Self {
        let mut patterns = Patterns::default();
        for secret in secrets {
            patterns.add_value(secret.bytes());
        }
        Self { patterns, ..Self::default() }
    }

    /// Hands on what of `bytes` and of what was held back can be judged.
    pub(super) fn pass(&mut self, stream: Stream, bytes: &[u8], output: &mut dyn FnMut(&[u8])) {
        if self.patterns.by_start.is_empty() {
            return output(bytes);
        }
        let held = match stream {
            Stream::Out => &mut self.out,
            Stream::Error => &mut self.error,
        };
        held.bytes.extend_from_slice(bytes);
        held.judge(&self.patterns, End::Open, output);
    }

    /// Hands on what is still held back, for there is nothing to come.
    pub(super) fn finish(&mut self, output: &mut dyn FnMut(Stream, &[u8])) {
        for (stream, held) in [(Stream::Out, &mut self.out), (Stream::Error, &mut self.error)] {
            held.judge(&self.patterns, End::Reached, &mut |bytes| output(stream, bytes));
        }
    }
}

impl Patterns {
    fn add_value(&mut self, value: &[u8]) {
        let whole = value.trim_ascii();
        self.add(whole, SHORTEST);
        let lines = whole.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
        lines.filter(|line| line.len() < whole.len()).for_each(|line| self.add(line, SHORTEST_LINE));
    }

    fn add(&mut self, text: &[u8], shortest: usize) {
        if text.len() < shortest {
            return;
        }
        // The last piece takes what would be too short for one of its own.
        let mut rest = text;
        while !rest.is_empty() {
            let length = if rest.len() < PIECE + SHORTEST_LINE { rest.len() } else { PIECE };
            let (piece, after) = rest.split_at(length);
            rest = after;
            let Some(start) = piece.first_chunk::<SHORTEST>() else { continue };
            let known = self.by_start.entry(*start).or_default();
            if !known.iter().any(|other| other == piece) {
                known.push(piece.to_vec());
                // The longest is tried first.
                known.sort_by_key(|pattern| std::cmp::Reverse(pattern.len()));
            }
            self.first.resize(256, false);
            self.first[usize::from(start[0])] = true;
        }
    }

    /// The length of the pattern that `text` begins with.
    fn found(&self, text: &[u8]) -> Option<usize> {
        let start = text.first_chunk::<SHORTEST>()?;
        let known = self.by_start.get(start)?;
        known.iter().find(|pattern| text.starts_with(pattern)).map(Vec::len)
    }

    /// Whether `text` is the beginning of a longer pattern.
    fn may_begin(&self, text: &[u8]) -> bool {
        if text.len() >= PIECE + SHORTEST_LINE {
            return false;
        }
        match text.first_chunk::<SHORTEST>() {
            Some(start) => {
                let known = self.by_start.get(start).map(Vec::as_slice).unwrap_or_default();
                known.iter().any(|pattern| pattern.len() > text.len() && pattern.starts_with(text))
            }
            None => self.by_start.range(padded(text)..).next().is_some_and(|(key, _)| key.starts_with(text)),
        }
    }

    fn begins(&self, byte: u8) -> bool {
        self.first.get(usize::from(byte)) == Some(&true)
    }
}

/// The first key that a beginning may have.
fn padded(text: &[u8]) -> [u8; SHORTEST] {
    let mut key = [0; SHORTEST];
    key[..text.len()].copy_from_slice(text);
    key
}

impl Held {
    fn judge(&mut self, patterns: &Patterns, end: End, output: &mut dyn FnMut(&[u8])) {
        let bytes = std::mem::take(&mut self.bytes);
        let (mut at, mut clean) = (0, 0);
        while at < bytes.len() {
            let rest = &bytes[at..];
            if !patterns.begins(rest[0]) {
                at += 1;
                continue;
            }
            // A longer secret may begin with a shorter one; at the end it is the shorter one.
            if end == End::Open && patterns.may_begin(rest) {
                break;
            }
            match patterns.found(rest) {
                Some(length) => {
                    self.tell(&bytes[clean..at], output);
                    if !self.masked {
                        output(MASK);
                    }
                    self.masked = true;
                    at += length;
                    clean = at;
                }
                None => at += 1,
            }
        }
        self.tell(&bytes[clean..at], output);
        self.bytes = bytes[at..].to_vec();
    }

    fn tell(&mut self, bytes: &[u8], output: &mut dyn FnMut(&[u8])) {
        if !bytes.is_empty() {
            self.masked = false;
            output(bytes);
        }
    }
}

impl std::fmt::Debug for Patterns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Patterns(..)")
    }
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Held(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `text` with `secrets` hidden, handed over in chunks of `size`.
    fn shown(secrets: &[&str], text: &str, size: usize) -> String {
        let secrets: Vec<Secret> = secrets.iter().map(|secret| Secret::new(secret.as_bytes())).collect();
        let mut redactor = Redactor::new(secrets.iter());
        let mut all = Vec::new();
        for chunk in text.as_bytes().chunks(size) {
            redactor.pass(Stream::Out, chunk, &mut |bytes| all.extend_from_slice(bytes));
        }
        redactor.finish(&mut |_, bytes| all.extend_from_slice(bytes));
        String::from_utf8(all).unwrap()
    }

    #[test]
    fn secrets_are_hidden_wherever_the_output_is_cut() {
        let long = "0123456789abcdefghijklmnopqrstuvwxyz".repeat(20);
        let key = "-----BEGIN KEY-----\nbGluZSBvbmU=\nbGluZSB0d28=\n}\n-----END KEY-----\n";
        let cases: [(&[&str], String, &str); 14] = [
            (&["hunter2"], "the token is hunter2\n".to_owned(), "the token is ***\n"),
            (&["hunter2\n"], "hunter2hunter2".to_owned(), "***"),
            (&["hunter2"], "hunter hunter2 hunterhunter2".to_owned(), "hunter *** hunter***"),
            (&["hunter2"], "hunt".to_owned(), "hunt"),
            (&["abc"], "abcabc".to_owned(), "abcabc"),
            (&[""], "x".to_owned(), "x"),
            (&["abcd", "abcdefgh"], "abcd abcdefgh abcdefgx".to_owned(), "*** *** ***efgx"),
            (&["aaaab"], "aaaaaaab".to_owned(), "aaa***"),
            (&[&long], format!("<{long}>"), "<***>"),
            (&[key], key.to_owned(), "***\n"),
            (&[key], "a bGluZSB0d28= } b".to_owned(), "a *** } b"),
            // What ends the output may begin a longer secret that never comes.
            (&["abcd", "abcdefgh"], "abcd".to_owned(), "***"),
            (&["abcd", "abcdefgh"], "abcdefg".to_owned(), "***efg"),
            (&["user1234\npass5678\n"], "user1234\n".to_owned(), "***\n"),
        ];
        for (secrets, text, expected) in cases {
            for size in [1, 2, 3, 7, 64, 100_000] {
                assert_eq!(shown(secrets, &text, size), expected, "{secrets:?} in chunks of {size}");
            }
        }
    }

    #[test]
    fn the_streams_do_not_mix() {
        let secret = Secret::new(b"hunter2");
        let mut redactor = Redactor::new(std::iter::once(&secret));
        let (mut out, mut error) = (Vec::new(), Vec::new());
        redactor.pass(Stream::Out, b"a hun", &mut |bytes| out.extend_from_slice(bytes));
        redactor.pass(Stream::Error, b"b hunter2", &mut |bytes| error.extend_from_slice(bytes));
        redactor.pass(Stream::Out, b"ter2 c", &mut |bytes| out.extend_from_slice(bytes));
        assert_eq!((out.as_slice(), error.as_slice()), (&b"a *** c"[..], &b"b ***"[..]));
    }

    #[test]
    fn without_secrets_nothing_is_held_back() {
        let mut redactor = Redactor::new(std::iter::empty());
        let mut out = Vec::new();
        redactor.pass(Stream::Out, b"x", &mut |bytes| out.extend_from_slice(bytes));
        assert_eq!(out, b"x");
    }
}
