//! Parser directives: `# syntax=`, `# escape=`, `# check=` at the very top.

use std::collections::BTreeSet;

use super::check::Rule;
use super::history::quote;
use super::parse::Problem;
use super::text::{excerpt, trim, trim_start};
use super::words::parse_bool;
use super::{Escape, Located, Span, Text};

/// What `# check=` says about build checks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckDirective {
    skip: Selection,
    experimental: Selection,
    /// Whether a violation is an error.
    pub violation: Violation,
}

/// What a violated build check leads to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Violation {
    /// A warning.
    #[default]
    Warning,
    /// A failed build.
    Error,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Selection {
    All,
    Some(BTreeSet<String>),
}

impl Default for Selection {
    fn default() -> Self {
        Self::Some(BTreeSet::new())
    }
}

impl Selection {
    fn parse(value: &str) -> Self {
        match value.trim() {
            "all" => Self::All,
            list => Self::Some(list.split(',').map(|name| name.trim().to_owned()).collect()),
        }
    }

    /// As it is written; `None` for the default.
    fn text(&self) -> Option<String> {
        match self {
            Self::All => Some("all".to_owned()),
            Self::Some(names) if names.is_empty() => None,
            Self::Some(names) => Some(names.iter().map(String::as_str).collect::<Vec<_>>().join(",")),
        }
    }

    fn contains(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Some(names) => names.contains(name),
        }
    }
}

/// A value of `# check=` (or of the build argument that replaces it) that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckDirectiveError {
    /// Not `key=value`, or a key that does not exist.
    #[error("invalid check option {0}")]
    Option(String),
    /// `error=` with something that is no boolean.
    #[error("failed to parse check option {0}: invalid syntax")]
    Boolean(String),
}

impl CheckDirective {
    /// Reads `skip=A,B|all;error=true|false;experimental=A|all`, each part optional.
    ///
    /// # Errors
    /// [`CheckDirectiveError`]
    pub fn parse(text: &str) -> Result<Self, CheckDirectiveError> {
        let mut directive = Self::default();
        let text = text.trim();
        if text.is_empty() {
            return Ok(directive);
        }
        for part in text.splitn(3, ';') {
            let shown = |text: &str| quote(excerpt(text.as_bytes()).as_bytes());
            let (key, value) =
                part.split_once('=').ok_or_else(|| CheckDirectiveError::Option(shown(part)))?;
            match key.trim() {
                "skip" => directive.skip = Selection::parse(value),
                "experimental" => directive.experimental = Selection::parse(value),
                "error" => {
                    let on =
                        parse_bool(value.trim()).ok_or_else(|| CheckDirectiveError::Boolean(shown(part)))?;
                    directive.violation = if on { Violation::Error } else { Violation::Warning };
                }
                key => return Err(CheckDirectiveError::Option(shown(key))),
            }
        }
        Ok(directive)
    }

    /// As the directive is written.
    pub(super) fn text(&self) -> String {
        let mut parts: Vec<String> = Vec::new();
        if self.violation == Violation::Error {
            parts.push("error=true".to_owned());
        }
        parts.extend(self.skip.text().map(|names| format!("skip={names}")));
        parts.extend(self.experimental.text().map(|names| format!("experimental={names}")));
        // Only the third part, the last one, can have a `;` in it.
        parts.sort_by_key(|part| part.contains(';'));
        if parts.is_empty() { "error=false".to_owned() } else { parts.join(";") }
    }

    /// Whether violations of `rule` are reported: an experimental rule must be asked for, another one is reported unless it
    /// is skipped.
    #[must_use]
    pub fn allows(&self, rule: Rule) -> bool {
        if rule.is_experimental() {
            self.experimental.contains(rule.name())
        } else {
            !self.skip.contains(rule.name())
        }
    }
}

/// The directives met so far.
#[derive(Default)]
pub(super) struct Directives {
    seen: Vec<(Vec<u8>, Located<String>)>,
    ended: bool,
    escape: Escape,
}

impl Directives {
    pub(super) const fn escape(&self) -> Escape {
        self.escape
    }

    /// Takes the next line (without blanks at its start); whether it is a directive.
    pub(super) fn offer(&mut self, line: &[u8], span: Span) -> Result<bool, Problem> {
        if self.ended {
            return Ok(false);
        }
        let Some((key, value)) = key_value(line, b"#") else {
            self.ended = true;
            return Ok(false);
        };
        let name = String::from_utf8_lossy(&key).into_owned();
        if self.seen.iter().any(|(seen, _)| *seen == key) {
            return Err(format!("only one {name} parser directive can be used").into());
        }
        if key == b"escape" {
            self.escape = match value {
                b"\\" => Escape::Backslash,
                b"`" => Escape::Backtick,
                other => {
                    let other = excerpt(other);
                    return Err(format!("invalid escape token '{other}' does not match ` or \\").into());
                }
            };
        }
        let value = String::from_utf8_lossy(value).into_owned();
        self.seen.push((key, Located { value, span, text: line.into() }));
        Ok(true)
    }
}

/// The directive on `line`, if it is one of the known.
fn key_value<'a>(line: &'a [u8], comment: &[u8]) -> Option<(Vec<u8>, &'a [u8])> {
    let rest = trim_start(line.strip_prefix(comment)?);
    let end = rest.iter().position(|b| !b.is_ascii_alphanumeric())?;
    let key = rest[..end].to_ascii_lowercase();
    if !rest[0].is_ascii_alphabetic() || !matches!(key.as_slice(), b"syntax" | b"escape" | b"check") {
        return None;
    }
    let value = trim(trim_start(&rest[end..]).strip_prefix(b"=")?);
    (!value.is_empty()).then_some((key, value))
}

/// The frontend that a file asks for: `# syntax=…` or `// syntax=…` at the top (also below a line `#!…`), or the key
/// `syntax` of a JSON object.
///
/// The first word is an image reference. Since this looks before anything is parsed, it also answers for files that
/// are no Dockerfiles.
#[must_use]
pub fn detect_syntax(bytes: &[u8]) -> Option<Located<String>> {
    detect(bytes, b"syntax", &[b"#", b"//"]).or_else(|| {
        let object: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(without_mark(bytes)).ok()?;
        let value = object.get("syntax")?.as_str()?.to_owned();
        Some(Located { value, span: Span::line(1), text: Text::default() })
    })
}

/// What `# check=…` at the top says of a file that need not be a Dockerfile; the default where that cannot be read.
#[must_use]
pub fn check_directive(bytes: &[u8]) -> CheckDirective {
    detect_check(bytes).and_then(|located| CheckDirective::parse(&located.value).ok()).unwrap_or_default()
}

/// `# check=…` at the top, also below a line `#!…`.
pub(super) fn detect_check(bytes: &[u8]) -> Option<Located<String>> {
    detect(bytes, b"check", &[b"#"])
}

fn detect(bytes: &[u8], wanted: &[u8], comments: &[&[u8]]) -> Option<Located<String>> {
    let bytes = without_mark(bytes);
    for comment in comments {
        let lines = bytes.split(|&b| b == b'\n').enumerate();
        let lines = lines.skip(usize::from(bytes.starts_with(b"#!")));
        let mut seen = BTreeSet::new();
        for (index, line) in lines {
            let Some((key, value)) = key_value(line, comment) else { break };
            if key == wanted {
                let value = String::from_utf8_lossy(value).into_owned();
                return Some(Located { value, span: Span::line(index + 1), text: line.into() });
            }
            if !seen.insert(key) {
                break;
            }
        }
    }
    None
}

/// `bytes` without a UTF-8 byte order mark.
pub(super) fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_directives_choose_rules() {
        let directive = CheckDirective::parse(" skip=MaintainerDeprecated, UndefinedVar;error=true").unwrap();
        assert!(!directive.allows(Rule::UndefinedVar));
        assert!(directive.allows(Rule::StageNameCasing));
        assert!(!directive.allows(Rule::InvalidDefinitionDescription));
        assert_eq!(directive.violation, Violation::Error);
        let directive = CheckDirective::parse("skip=all;experimental=all").unwrap();
        assert!(!directive.allows(Rule::StageNameCasing));
        assert!(directive.allows(Rule::InvalidDefinitionDescription));
        assert_eq!(CheckDirective::parse("").unwrap(), CheckDirective::default());
        for (text, message) in [
            ("x", "invalid check option \"x\""),
            ("foo=1", "invalid check option \"foo\""),
            ("error=maybe", "failed to parse check option \"error=maybe\": invalid syntax"),
        ] {
            assert_eq!(CheckDirective::parse(text).unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn the_syntax_is_found_before_parsing() {
        for (file, syntax) in [
            ("# syntax=docker/dockerfile:1 x=y\nFROM a", Some("docker/dockerfile:1 x=y")),
            ("#syntax = a\r\n", Some("a")),
            ("\u{feff}# SYNTAX=a", Some("a")),
            ("#!/bin/x\n# syntax=a", Some("a")),
            ("#!/bin/x\n\n# syntax=a", None),
            ("# escape=`\n# syntax=a", Some("a")),
            ("# foo=bar\n# syntax=a", None),
            ("// syntax=a\n", Some("a")),
            ("{\"syntax\": \"a\"}", Some("a")),
            ("{\"syntax\": 1}", None),
            ("\n# syntax=a", None),
            ("# syntax=", None),
            ("", None),
        ] {
            let found = detect_syntax(file.as_bytes()).map(|located| located.value);
            assert_eq!(found.as_deref(), syntax, "{file}");
        }
    }
}
