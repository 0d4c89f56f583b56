//! How the rest of an instruction is split: flags, `name=value` words, blank-separated words, JSON lists.

use serde::de::IgnoredAny;

use super::parse::Problem;
use super::suggest::suggest;
use super::text::{char_at, excerpt, is_blank, trim_start};
use super::{Escape, Text};

/// Takes the words that begin with `--` off the start of `rest`; the answer is them and what follows.
///
/// Quotes and backslashes are resolved (the escape directive does not matter here); a lone `--` ends the flags and
/// disappears.
pub(super) fn take_flags(rest: &[u8]) -> (Vec<Text>, &[u8]) {
    let mut flags = Vec::new();
    let mut at = 0;
    loop {
        while rest.get(at).is_some_and(u8::is_ascii_whitespace) || rest.get(at) == Some(&0x0b) {
            at += 1;
        }
        if !rest[at..].starts_with(b"--") {
            return (flags, &rest[at..]);
        }
        let (word, end) = flag_word(rest, at);
        at = end;
        if word == b"--" {
            return (flags, &rest[at..]);
        }
        flags.push(word.into());
    }
}

/// The word at `at` without quotes and backslashes, and where it ends.
fn flag_word(rest: &[u8], mut at: usize) -> (Vec<u8>, usize) {
    let mut word = Vec::new();
    let mut quote = None;
    while let Some(&byte) = rest.get(at) {
        match byte {
            b'\\' => {
                at += 1;
                word.extend(rest.get(at));
            }
            _ if quote == Some(byte) => quote = None,
            b'\'' | b'"' if quote.is_none() => quote = Some(byte),
            _ if quote.is_none() && (is_blank(byte) || byte == b'\n') => break,
            _ => word.push(byte),
        }
        at += 1;
    }
    (word, at.min(rest.len()))
}

/// What a flag of an instruction takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FlagKind {
    /// `--f` or `--f=true|false`.
    Switch,
    /// `--f=value`.
    Value,
    /// `--f=value`, any number of times.
    List,
}

/// The flags of one instruction, checked.
pub(super) struct Flags {
    given: Vec<(&'static str, Text)>,
}

impl Flags {
    /// Checks `words` against the flags that are known.
    pub(super) fn parse(words: &[Text], known: &[(&'static str, FlagKind)]) -> Result<Self, Problem> {
        let mut given: Vec<(&'static str, Text)> = Vec::new();
        for word in words {
            let (flag, value) = match word.iter().position(|&b| b == b'=') {
                Some(at) => (&word[..at], Some(&word[at + 1..])),
                None => (&word[..], None),
            };
            let shown = excerpt(flag);
            let Some(&(name, kind)) = known.iter().find(|(name, _)| name.as_bytes() == &flag[2..]) else {
                let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
                let near = suggest(&String::from_utf8_lossy(&flag[2..]), &names);
                return Err(Problem::suggesting(format!("unknown flag: {shown}"), near));
            };
            if kind != FlagKind::List && given.iter().any(|(other, _)| *other == name) {
                return Err(format!("duplicate flag specified: {shown}").into());
            }
            let value: &[u8] = match (kind, value) {
                (FlagKind::Switch, None) => b"true",
                (FlagKind::Switch, Some(b"")) | (_, None) => {
                    return Err(format!("missing a value on flag: {shown}").into());
                }
                (FlagKind::Switch, Some(value)) if value.eq_ignore_ascii_case(b"true") => b"true",
                (FlagKind::Switch, Some(value)) if value.eq_ignore_ascii_case(b"false") => b"false",
                (FlagKind::Switch, Some(value)) => {
                    let value = excerpt(value);
                    return Err(format!("expecting boolean value for flag {shown}, not: {value}").into());
                }
                (_, Some(value)) => value,
            };
            given.push((name, value.into()));
        }
        Ok(Self { given })
    }

    /// The value of a flag; an empty one counts as not given.
    pub(super) fn value(&self, name: &str) -> Option<Text> {
        self.list(name).next().filter(|value| !value.is_empty()).cloned()
    }

    /// The values of a flag that may be repeated.
    pub(super) fn list(&self, name: &str) -> impl Iterator<Item = &Text> {
        self.given.iter().filter(move |(given, _)| *given == name).map(|(_, value)| value)
    }

    /// Whether a switch is on or off, if it is given.
    pub(super) fn switch(&self, name: &str) -> Option<bool> {
        self.list(name).next().map(|value| *value == "true")
    }
}

/// Words separated by white space, where quotes and the escape character keep white space inside; both stay in the word.
/// The names and values of ENV, LABEL and ARG.
pub(super) fn quoted_words(rest: &[u8], escape: Escape) -> Vec<Text> {
    let escape = escape.byte();
    let mut words = Vec::new();
    let mut word = Vec::new();
    let (mut inside, mut quote) = (false, None);
    let mut at = 0;
    while at < rest.len() {
        let (c, length) = char_at(rest, at);
        let byte = rest[at];
        if quote.is_none() && c.is_whitespace() {
            if inside && !word.is_empty() {
                words.push(std::mem::take(&mut word).into());
            }
            inside = false;
            at += length;
            continue;
        }
        inside = true;
        match quote {
            Some(open) if byte == open => quote = None,
            None if matches!(byte, b'\'' | b'"') => quote = Some(byte),
            _ => {}
        }
        if byte == escape && quote != Some(b'\'') {
            if at + 1 == rest.len() {
                // An escape character at the very end means nothing.
                break;
            }
            word.push(byte);
            at += 1;
            let (_, length) = char_at(rest, at);
            word.extend_from_slice(&rest[at..at + length]);
            at += length;
            continue;
        }
        word.extend_from_slice(&rest[at..at + length]);
        at += length;
    }
    if !word.is_empty() {
        words.push(word.into());
    }
    words
}

/// Words separated by blanks, and nothing else: no quotes, no escapes. `rest` has no blanks at its ends.
pub(super) fn blank_words(rest: &[u8]) -> Vec<Text> {
    rest.split(|&b| is_blank(b)).filter(|word| !word.is_empty()).map(Text::from).collect()
}

/// A JSON list of strings that is the whole of `rest`; `None` if it is no JSON list at all.
///
/// # Errors
/// If it is a JSON list of other things.
pub(super) fn json_list(rest: &[u8]) -> Result<Option<Vec<Text>>, Problem> {
    let rest = trim_start(rest);
    if !rest.starts_with(b"[") {
        return Ok(None);
    }
    if let Some(items) = json_strings(rest) {
        return Ok(Some(items));
    }
    // A list of strings was taken above, so a list that is valid has something else in it.
    match serde_json::from_str::<Vec<IgnoredAny>>(&String::from_utf8_lossy(rest)) {
        Ok(_) => {
            let message = "when using JSON array syntax, arrays must be comprised of strings only".to_owned();
            Err(Problem::from(message).hint("put each element in double quotes"))
        }
        Err(_) => Ok(None),
    }
}

/// Reads `["…", "…"]` to the end of `text`. Bytes that are not UTF-8 are kept, and lone surrogates become U+FFFD as in Go.
fn json_strings(text: &[u8]) -> Option<Vec<Text>> {
    let skip = |mut at: usize| {
        while matches!(text.get(at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            at += 1;
        }
        at
    };
    let mut items = Vec::new();
    let mut at = skip(1);
    if text.get(at) == Some(&b']') {
        return (skip(at + 1) == text.len()).then_some(items);
    }
    loop {
        let (item, end) = json_string(text, at)?;
        items.push(item);
        at = skip(end);
        match text.get(at)? {
            b',' => at = skip(at + 1),
            b']' => return (skip(at + 1) == text.len()).then_some(items),
            _ => return None,
        }
    }
}

/// Reads a JSON string at `at`; the answer is it and where it ends.
fn json_string(text: &[u8], mut at: usize) -> Option<(Text, usize)> {
    if text.get(at) != Some(&b'"') {
        return None;
    }
    at += 1;
    let mut out = Vec::new();
    loop {
        match *text.get(at)? {
            b'"' => return Some((out.into(), at + 1)),
            b'\\' => {
                let escaped = *text.get(at + 1)?;
                at += 2;
                match escaped {
                    b'"' | b'\\' | b'/' => out.push(escaped),
                    b'b' => out.push(8),
                    b'f' => out.push(12),
                    b'n' => out.push(b'\n'),
                    b'r' => out.push(b'\r'),
                    b't' => out.push(b'\t'),
                    b'u' => {
                        let (c, end) = json_unicode(text, at)?;
                        out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                        at = end;
                    }
                    _ => return None,
                }
            }
            byte if byte < 0x20 => return None,
            byte => {
                out.push(byte);
                at += 1;
            }
        }
    }
}

/// The character of `XXXX` or `XXXX\uXXXX` at `at`.
fn json_unicode(text: &[u8], at: usize) -> Option<(char, usize)> {
    let unit = |at: usize| {
        let digits = text.get(at..at + 4)?;
        if !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    let first = unit(at)?;
    let second = if text.get(at + 4..at + 6) == Some(b"\\u") { unit(at + 6) } else { None };
    if let Some(second) = second
        && let Some(Ok(c)) = char::decode_utf16([first, second]).next()
        && c.len_utf16() == 2
    {
        return Some((c, at + 10));
    }
    Some((char::from_u32(u32::from(first)).unwrap_or('\u{fffd}'), at + 4))
}

/// Comma-separated fields, in double quotes if need be.
///
/// # Errors
/// When a quote is where none can be; the text says nothing of what is in the fields.
pub fn csv_fields(text: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let mut fields = Vec::new();
    let mut at = 0;
    loop {
        let mut field = Vec::new();
        if text.get(at) == Some(&b'"') {
            at += 1;
            loop {
                match (text.get(at), text.get(at + 1)) {
                    (None, _) => return Err("extraneous or missing \" in quoted-field".to_owned()),
                    (Some(b'"'), Some(b'"')) => {
                        field.push(b'"');
                        at += 2;
                    }
                    (Some(b'"'), _) => break,
                    (Some(&byte), _) => {
                        field.push(byte);
                        at += 1;
                    }
                }
            }
            at += 1;
            if !matches!(text.get(at), None | Some(b',')) {
                return Err("extraneous or missing \" in quoted-field".to_owned());
            }
        } else {
            let end = text[at..].iter().position(|&b| b == b',').map_or(text.len(), |n| at + n);
            if text[at..end].contains(&b'"') {
                return Err("bare \" in non-quoted field".to_owned());
            }
            field.extend_from_slice(&text[at..end]);
            at = end;
        }
        fields.push(field);
        if at >= text.len() {
            return Ok(fields);
        }
        at += 1;
    }
}

/// As Go's `strconv.ParseBool`; none for other words.
#[must_use]
pub fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(words: &[Text]) -> Vec<String> {
        words.iter().map(Text::to_string).collect()
    }

    #[test]
    fn flags_come_first() {
        for (rest, flags, after) in [
            ("--a --b=c d --e", vec!["--a", "--b=c"], "d --e"),
            ("--x=\"a b\" c", vec!["--x=a b"], "c"),
            ("--x='a b'\\ d c", vec!["--x=a b d"], "c"),
            ("-- --foo x", vec![], " --foo x"),
            ("--a -- b", vec!["--a"], " b"),
            ("--", vec![], ""),
            ("--a", vec!["--a"], ""),
            ("- --a", vec![], "- --a"),
            ("--a\\", vec!["--a"], ""),
            ("--a='b", vec!["--a=b"], ""),
            ("--a=é\u{a0} b", vec!["--a=é\u{a0}"], "b"),
            ("", vec![], ""),
        ] {
            let (found, left) = take_flags(rest.as_bytes());
            assert_eq!(texts(&found), flags, "{rest}");
            assert_eq!(left, after.as_bytes(), "{rest}");
        }
    }

    #[test]
    fn flags_are_checked() {
        const KNOWN: [(&str, FlagKind); 3] =
            [("link", FlagKind::Switch), ("from", FlagKind::Value), ("exclude", FlagKind::List)];
        for (word, message) in [
            ("--nope", "unknown flag: --nope"),
            ("--form=x", "unknown flag: --form (did you mean from?)"),
            ("--link=maybe", "expecting boolean value for flag --link, not: maybe"),
            ("--link=", "missing a value on flag: --link"),
            ("--from", "missing a value on flag: --from"),
            ("--exclude", "missing a value on flag: --exclude"),
            ("--link --link", "duplicate flag specified: --link"),
            ("--from=a --from=b", "duplicate flag specified: --from"),
        ] {
            let error = Flags::parse(&blank_words(word.as_bytes()), &KNOWN).err().map(|e| e.message);
            assert_eq!(error.as_deref(), Some(message), "{word}");
        }
        let words = blank_words(b"--link=FALSE --from= --exclude=a --exclude=b");
        let flags = Flags::parse(&words, &KNOWN).unwrap_or_else(|error| panic!("{}", error.message));
        assert_eq!(flags.switch("link"), Some(false));
        assert_eq!(flags.value("from"), None);
        assert_eq!(flags.list("exclude").count(), 2);
    }

    #[test]
    fn quotes_and_escapes_keep_words_together() {
        for (rest, words) in [
            ("a=1 b=2", vec!["a=1", "b=2"]),
            ("a='x y' b=\"p q\" c=m\\ n", vec!["a='x y'", "b=\"p q\"", "c=m\\ n"]),
            ("a=\"x\\\" y\" b", vec!["a=\"x\\\" y\"", "b"]),
            ("a='x\\' y'", vec!["a='x\\'", "y'"]),
            ("a=1\\", vec!["a=1"]),
            ("a=${z:-x y}", vec!["a=${z:-x", "y}"]),
            ("\u{2003}a\u{a0}b", vec!["a", "b"]),
            ("\"\"", vec!["\"\""]),
            ("\"a", vec!["\"a"]),
            ("", vec![]),
        ] {
            assert_eq!(texts(&quoted_words(rest.as_bytes(), Escape::Backslash)), words, "{rest}");
        }
        assert_eq!(texts(&quoted_words(b"a=b`\\ c c:\\ d", Escape::Backtick)), ["a=b`\\", "c", "c:\\", "d"]);
    }

    #[test]
    fn json_lists_are_lists_of_strings() {
        for (rest, items) in [
            (r#"["a", "b"]"#, Some(vec!["a", "b"])),
            (r#"  [ "a" ,"b c"] "#, Some(vec!["a", "b c"])),
            ("[]", Some(vec![])),
            ("[ ]", Some(vec![])),
            (r#"["\\\"\/\b\f\n\r\t\u0041\ud83d\ude00"]"#, Some(vec!["\\\"/\u{8}\u{c}\n\r\tA😀"])),
            (r#"["\ud800x"]"#, Some(vec!["\u{fffd}x"])),
            (r#"["a", "b"] x"#, None),
            ("['a']", None),
            (r#"["a",]"#, None),
            (r#"["a" "b"]"#, None),
            (r#"["a"#, None),
            (r#"["\x"]"#, None),
            ("[\"a\tb\"]", None),
            (r#"["\u12g4"]"#, None),
            ("[", None),
            ("", None),
            ("a", None),
        ] {
            let found =
                json_list(rest.as_bytes()).unwrap_or_else(|error| panic!("{rest}: {}", error.message));
            assert_eq!(
                found.as_deref().map(texts),
                items.map(|items| items.into_iter().map(str::to_owned).collect()),
                "{rest}"
            );
        }
        for rest in ["[1]", r#"["a", 1]"#, "[null]", r#"[["a"]]"#, r#"[{"a":1}]"#] {
            assert!(json_list(rest.as_bytes()).is_err(), "{rest}");
        }
        let deep = "[".repeat(1_000_000);
        assert_eq!(json_list(deep.as_bytes()).ok().flatten(), None);
        let invalid = json_list(b"[\"a\xff\"]").ok().flatten().unwrap();
        assert_eq!(invalid[0].as_bytes(), b"a\xff");
    }
}
