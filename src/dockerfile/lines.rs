//! From bytes to statements: lines, continuations, comments, directives and here-document bodies.

use super::directive::Directives;
use super::heredoc::{Heredoc, without_onbuild};
use super::parse::{COMMENT_HINT, Problem};
use super::text::{excerpt, split_once_blank, trim, trim_newline, trim_start};
use super::words::{blank_words, json_list, quoted_words, take_flags};
use super::{Escape, PairSyntax, ParseError, Span, Text};

/// The longest line, without its line end.
pub(super) const MAX_LINE: usize = 65535;

/// The most instructions of a file. Each takes a kilobyte until the image is described, and again for what build checks find
/// in it and for the image that they make: a build has 100 MB in all.
pub(super) const MOST_INSTRUCTIONS: usize = 20_000;

/// An instruction whose rest is split, but not understood yet.
pub(super) struct Statement {
    pub(super) span: Span,
    /// The logical line: continuations joined, comments left out.
    pub(super) line: Text,
    /// The keyword as written.
    pub(super) keyword: Text,
    pub(super) flags: Vec<Text>,
    pub(super) arguments: Arguments,
    pub(super) heredocs: Vec<Heredoc>,
    /// The comment lines right above, without `#`.
    pub(super) comments: Vec<Text>,
    /// If there are empty lines in it: the last line of the continuation.
    pub(super) empty_continuation: Option<usize>,
}

/// The rest of an instruction, split the way its keyword asks for.
pub(super) enum Arguments {
    /// The rest as it is.
    Text(Text),
    /// Words.
    Words(Vec<Text>),
    /// A JSON list.
    Json(Vec<Text>),
    /// Names and values.
    Pairs(Vec<(Text, Text)>, PairSyntax),
    /// The first word and the command after it (HEALTHCHECK).
    Typed(Text, Box<Arguments>),
    /// The keyword of the instruction to come (ONBUILD), in upper case.
    Trigger { keyword: Vec<u8>, json: bool },
    /// The keyword is not known.
    Unknown,
}

/// The statements of a text, one after the other: a file may have very many, and each takes some hundred bytes.
pub(super) struct Statements<'a> {
    reader: Reader<'a>,
    pub(super) directives: Directives,
    /// How many there were.
    count: usize,
}

struct Reader<'a> {
    rest: &'a [u8],
    /// The number of the last line read, from 1.
    line: usize,
}

impl<'a> Reader<'a> {
    /// The next line with its line end.
    fn next(&mut self) -> Result<Option<&'a [u8]>, ParseError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let end = self.rest.iter().position(|&b| b == b'\n');
        let length = end.map_or(self.rest.len(), |at| at + 1);
        let (line, rest) = self.rest.split_at(length);
        self.rest = rest;
        self.line += 1;
        if end.unwrap_or(length) > MAX_LINE {
            let message = format!("dockerfile line greater than max allowed size of {MAX_LINE}");
            let problem =
                Problem::from(message).hint("break it with the escape character at the end of a line");
            return Err(problem.at(Span::line(self.line)));
        }
        Ok(Some(line))
    }
}

impl<'a> Statements<'a> {
    /// Those of a whole file (without its byte order mark).
    pub(super) fn of(bytes: &'a [u8]) -> Self {
        Self { reader: Reader { rest: bytes, line: 0 }, directives: Directives::default(), count: 0 }
    }

    /// The next one, split.
    pub(super) fn next(&mut self) -> Result<Option<Statement>, ParseError> {
        let mut comments = Vec::new();
        while let Some(raw) = self.reader.next()? {
            let line = trim_start(trim_newline(raw));
            let span = Span::line(self.reader.line);
            let is_directive = self.directives.offer(line, span).map_err(|problem| problem.at(span))?;
            if let Some(comment) = line.strip_prefix(b"#") {
                let comment = trim(comment);
                if comment.is_empty() {
                    comments.clear();
                } else if !is_directive {
                    comments.push(Text::from(comment));
                }
            } else if line.is_empty() {
                comments.clear();
            } else {
                if self.count == MOST_INSTRUCTIONS {
                    let message = format!("the Dockerfile has more than {MOST_INSTRUCTIONS} instructions");
                    return Err(Problem::from(message).at(span));
                }
                self.count += 1;
                return statement(&mut self.reader, line, self.directives.escape(), comments).map(Some);
            }
        }
        Ok(None)
    }
}

/// Reads the statement that begins with `first`.
fn statement(
    reader: &mut Reader<'_>,
    first: &[u8],
    escape: Escape,
    comments: Vec<Text>,
) -> Result<Statement, ParseError> {
    let start = reader.line;
    let mut line = Vec::new();
    let mut has_empty_lines = false;
    let mut continues = append(&mut line, first, escape);
    while continues && let Some(raw) = reader.next()? {
        let next = trim_newline(raw);
        match trim_start(next).first() {
            Some(b'#') => {}
            None => has_empty_lines = true,
            Some(_) => continues = append(&mut line, next, escape),
        }
    }
    let here = Span::new(start, reader.line);
    let empty_continuation = has_empty_lines.then_some(reader.line);
    let (keyword, flags, arguments) = split(&line, escape).map_err(|problem| problem.at(here))?;
    let mut heredocs = Vec::new();
    if takes_heredocs(&keyword, &arguments) {
        let announced =
            Heredoc::announced(&line).map_err(|error| Problem::from(error.to_string()).at(here))?;
        for heredoc in announced {
            heredocs.push(body(reader, heredoc, start)?);
        }
    }
    let span = Span::new(start, reader.line);
    Ok(Statement {
        span,
        line: line.into(),
        keyword,
        flags,
        arguments,
        heredocs,
        comments,
        empty_continuation,
    })
}

/// Adds a physical line; whether it continues on the next one: its last character but blanks and tabs is an escape
/// character that follows no other escape character.
fn append(line: &mut Vec<u8>, next: &[u8], escape: Escape) -> bool {
    let escape = escape.byte();
    let end = next.iter().rposition(|b| !matches!(b, b' ' | b'\t')).map_or(0, |at| at + 1);
    let continues = match &next[..end] {
        [.., before, last] => *last == escape && *before != escape,
        [last] => *last == escape,
        [] => false,
    };
    line.extend_from_slice(if continues { &next[..end - 1] } else { next });
    continues
}

/// Reads the lines of a here-document.
fn body(reader: &mut Reader<'_>, mut heredoc: Heredoc, start: usize) -> Result<Heredoc, ParseError> {
    let mut body = Vec::new();
    while let Some(raw) = reader.next()? {
        if heredoc.is_end(trim_newline(raw)) {
            heredoc.body = body.into();
            return Ok(heredoc);
        }
        body.extend_from_slice(raw);
    }
    let name = excerpt(&heredoc.name);
    let hint = if name.bytes().all(|b| b.is_ascii_digit()) {
        format!("with a blank behind it `<<` begins a here-document; `1<<{name}` is none")
    } else {
        format!("a line with `{name}` and nothing else ends it; there is none")
    };
    let problem = Problem::from("unterminated heredoc".to_owned()).hint(hint);
    Err(problem.at(Span::new(start, reader.line)))
}

/// Splits a logical line into keyword, flags and the rest.
fn split(line: &[u8], escape: Escape) -> Result<(Text, Vec<Text>, Arguments), Problem> {
    let (keyword, rest) = split_once_blank(trim(line));
    let (flags, rest) = take_flags(rest.unwrap_or_default());
    let rest = trim(rest);
    let arguments = match keyword.to_ascii_uppercase().as_slice() {
        b"ONBUILD" => trigger(rest, escape)?,
        upper => arguments(upper, rest, escape)?,
    };
    Ok((keyword.into(), flags, arguments))
}

/// Splits the rest of an instruction. `keyword` is in upper case.
fn arguments(keyword: &[u8], rest: &[u8], escape: Escape) -> Result<Arguments, Problem> {
    Ok(match keyword {
        b"RUN" | b"CMD" | b"ENTRYPOINT" | b"SHELL" => command(rest)?,
        b"COPY" | b"ADD" | b"VOLUME" => match json_list(rest)? {
            Some(items) => Arguments::Json(items),
            None => Arguments::Words(blank_words(rest)),
        },
        b"FROM" | b"EXPOSE" => Arguments::Words(blank_words(rest)),
        b"ARG" => Arguments::Words(quoted_words(rest, escape)),
        b"ENV" => pairs("ENV", rest, escape)?,
        b"LABEL" => pairs("LABEL", rest, escape)?,
        b"USER" | b"WORKDIR" | b"STOPSIGNAL" | b"MAINTAINER" => Arguments::Text(rest.into()),
        b"HEALTHCHECK" => {
            let (kind, after) = split_once_blank(rest);
            Arguments::Typed(kind.into(), Box::new(command(after.unwrap_or_default())?))
        }
        _ => Arguments::Unknown,
    })
}

fn command(rest: &[u8]) -> Result<Arguments, Problem> {
    Ok(json_list(rest)?.map_or_else(|| Arguments::Text(rest.into()), Arguments::Json))
}

fn pairs(keyword: &str, rest: &[u8], escape: Escape) -> Result<Arguments, Problem> {
    let words = quoted_words(rest, escape);
    if words.first().is_some_and(|first| !first.contains(&b'=')) {
        let (name, value) = split_once_blank(rest);
        let value = value.ok_or_else(|| format!("{keyword} must have two arguments"))?;
        return Ok(Arguments::Pairs(vec![(name.into(), value.into())], PairSyntax::Legacy));
    }
    let mut pairs = Vec::with_capacity(words.len());
    for word in words {
        let Some(at) = word.iter().position(|&b| b == b'=') else {
            let hint = if word.starts_with(b"#") { COMMENT_HINT } else { "a value with blanks needs quotes" };
            let word = super::history::quote(excerpt(&word).as_bytes());
            let message = format!("Syntax error - can't find = in {word}. Must be of the form: name=value");
            return Err(Problem::from(message).hint(hint));
        };
        pairs.push((Text::from(&word[..at]), Text::from(&word[at + 1..])));
    }
    Ok(Arguments::Pairs(pairs, PairSyntax::Equals))
}

/// The rest of ONBUILD: what can be said of the instruction before it is triggered.
fn trigger(rest: &[u8], escape: Escape) -> Result<Arguments, Problem> {
    let (keyword, after) = split_once_blank(rest);
    let keyword = keyword.to_ascii_uppercase();
    let (_, after) = take_flags(after.unwrap_or_default());
    // Only how its words are split is checked, as in BuildKit; an ONBUILD of ONBUILD is refused anyway.
    let inner = arguments(&keyword, trim(after), escape)?;
    Ok(Arguments::Trigger { keyword, json: matches!(inner, Arguments::Json(_)) })
}

/// RUN, COPY and ADD take here-documents, also behind ONBUILD, but not as a JSON list.
fn takes_heredocs(keyword: &[u8], arguments: &Arguments) -> bool {
    let (keyword, json) = match arguments {
        Arguments::Trigger { keyword, json } => (keyword.as_slice(), *json),
        Arguments::Json(_) => (keyword, true),
        _ => (keyword, false),
    };
    !json && [&b"RUN"[..], b"COPY", b"ADD"].iter().any(|known| known.eq_ignore_ascii_case(keyword))
}

impl Statement {
    /// What ONBUILD stores: the instruction as written, here-documents and their ends behind it.
    pub(super) fn trigger_text(&self) -> Text {
        let mut text = without_onbuild(&self.line).to_vec();
        for heredoc in &self.heredocs {
            text.push(b'\n');
            text.extend_from_slice(&heredoc.body);
            text.extend_from_slice(&heredoc.name);
        }
        text.into()
    }
}
