//! From statements to instructions, and from instructions to stages.

use std::collections::BTreeMap;

use super::check::{Casing, Warning, stage_names, written};
use super::directive::{CheckDirective, detect_check, detect_syntax, without_mark};
use super::duration::Duration;
use super::heredoc::Heredoc;
use super::history::quote;
use super::instruction::{
    Assignments, Command, From, Health, HealthCheck, Instruction, Network, Run, Security, Source, Transfer,
    TransferKind,
};
use super::lines::{Arguments, Statement, Statements};
use super::mount::{Device, MountOption};
use super::suggest::suggest;
use super::text::{excerpt, trim};
use super::words::{FlagKind, Flags};
use super::{Dockerfile, Located, ParseError, SIZE_LIMIT, Span, Stage, Text};
use crate::limit::Limit;

/// What is wrong, before it is known where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) message: String,
    pub(super) suggestion: Option<String>,
    pub(super) hint: Option<String>,
}

impl Problem {
    /// With a suggestion, if there is one.
    pub(super) fn suggesting(message: String, suggestion: Option<&str>) -> Self {
        match suggestion {
            Some(word) => {
                let message = format!("{message} (did you mean {word}?)");
                Self { message, suggestion: Some(word.to_owned()), hint: None }
            }
            None => message.into(),
        }
    }

    /// With what to do, for messages that are BuildKit's and do not say it.
    pub(super) fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    pub(super) fn at(self, span: Span) -> ParseError {
        ParseError { span, message: self.message, suggestion: self.suggestion, hint: self.hint }
    }
}

impl std::convert::From<String> for Problem {
    fn from(message: String) -> Self {
        Self { message, suggestion: None, hint: None }
    }
}

/// What is wrong with a `#` behind something else.
pub(super) const COMMENT_HINT: &str = "a comment has a line of its own";

const KEYWORDS: [&str; 18] = [
    "ADD",
    "ARG",
    "CMD",
    "COPY",
    "ENTRYPOINT",
    "ENV",
    "EXPOSE",
    "FROM",
    "HEALTHCHECK",
    "LABEL",
    "MAINTAINER",
    "ONBUILD",
    "RUN",
    "SHELL",
    "STOPSIGNAL",
    "USER",
    "VOLUME",
    "WORKDIR",
];

/// Reads a Dockerfile of at most [`SIZE_LIMIT`].
///
/// # Errors
/// As [`parse_within`].
pub fn parse(bytes: &[u8]) -> Result<Dockerfile, ParseError> {
    parse_within(bytes, SIZE_LIMIT)
}

/// Reads a Dockerfile.
///
/// # Errors
/// The first thing that is wrong: text larger than `limit`, a line longer than 65535 bytes, NUL bytes, an
/// instruction that is unknown or wrongly written, no stage.
pub fn parse_within(bytes: &[u8], limit: Limit) -> Result<Dockerfile, ParseError> {
    parse_noting(bytes, limit, &mut Vec::new())
}

/// Reads a Dockerfile. Where it is none, `warnings` has what build checks said of what was read before that was seen,
/// whatever `# check=` says; else they are the [`Dockerfile`]'s.
///
/// # Errors
/// As [`parse_within`].
pub fn parse_noting(
    bytes: &[u8],
    limit: Limit,
    warnings: &mut Vec<Warning>,
) -> Result<Dockerfile, ParseError> {
    let start = Span::line(1);
    if bytes.is_empty() {
        return Err(Problem::from("the Dockerfile cannot be empty".to_owned()).at(start));
    }
    refuse_binary(bytes, limit)?;
    let check = match detect_check(bytes) {
        None => None,
        Some(located) => match CheckDirective::parse(&located.value) {
            Ok(directive) => Some(directive),
            Err(error) => return Err(Problem::from(error.to_string()).at(located.span)),
        },
    };
    let text = without_mark(bytes);
    // As in BuildKit, what is wrong with the lines of a file comes before what is wrong with an instruction.
    let mut all = Statements::of(text);
    let mut last = None;
    while let Some(statement) = all.next()? {
        last = Some(statement.span);
    }
    let Some(last) = last else {
        return Err(Problem::from("file with no instructions".to_owned()).at(start));
    };
    let mut dockerfile = Dockerfile {
        escape: all.directives.escape(),
        syntax: detect_syntax(bytes),
        check,
        global_args: Vec::new(),
        stages: Vec::new(),
        warnings: Vec::new(),
        named: BTreeMap::new(),
    };
    let mut casing = Casing::default();
    let mut statements = Statements::of(text);
    while let Some(statement) = statements.next()? {
        let span = statement.span;
        written(&statement, warnings);
        if !dockerfile.stages.is_empty() || statement.keyword.eq_ignore_ascii_case(b"FROM") {
            casing.add(&statement.keyword, span);
        }
        let text = statement.line.clone();
        let value = instruction(statement).map_err(|problem| problem.at(span))?;
        match (value, dockerfile.stages.last_mut()) {
            (Instruction::From(from), before) => {
                // There may be very many stages, and room for some instructions more in each.
                before.into_iter().for_each(|stage| stage.instructions.shrink_to_fit());
                let name = from.name.clone();
                if let Some(name) = &name {
                    dockerfile.named.entry(name.clone()).or_default().push(dockerfile.stages.len());
                }
                let from = Located { value: from, span, text };
                dockerfile.stages.push(Stage { from, name, instructions: Vec::new() });
            }
            (value, Some(stage)) => stage.instructions.push(Located { value, span, text }),
            (value @ Instruction::Arg(_), None) => {
                dockerfile.global_args.push(Located { value, span, text });
            }
            (_, None) => {
                let problem = Problem::from("no build stage in current context".to_owned());
                return Err(problem.hint("only ARG may come before the first FROM").at(span));
            }
        }
    }
    dockerfile.stages.iter_mut().for_each(|stage| stage.instructions.shrink_to_fit());
    if dockerfile.stages.is_empty() {
        let problem = Problem::from("dockerfile contains no stages to build".to_owned());
        return Err(problem.hint("begin one with `FROM IMAGE`").at(last));
    }
    stage_names(&dockerfile.stages, warnings);
    casing.report(warnings);
    dockerfile.warnings = std::mem::take(warnings);
    Ok(dockerfile)
}

/// Reads the text of an ONBUILD trigger, from this file or from the config of a base image. Line numbers count from the
/// start of the text.
///
/// # Errors
/// As [`parse`]; also if the text is not exactly one instruction, or is FROM.
pub fn parse_trigger(text: &[u8]) -> Result<Located<Instruction>, ParseError> {
    // The config it comes from has a limit of its own.
    refuse_binary(text, SIZE_LIMIT.with(u64::MAX))?;
    let mut statements = Statements::of(text);
    let first = statements.next()?;
    let mut more = false;
    while statements.next()?.is_some() {
        more = true;
    }
    let (Some(statement), false) = (first, more) else {
        let message = "onbuild trigger should be a single expression".to_owned();
        return Err(Problem::from(message).at(Span::line(1)));
    };
    let (span, text) = (statement.span, statement.line.clone());
    let value = instruction(statement).map_err(|problem| problem.at(span))?;
    if matches!(value, Instruction::From(_)) {
        return Err(Problem::from("FROM isn't allowed as an ONBUILD trigger".to_owned()).at(span));
    }
    Ok(Located { value, span, text })
}

/// Refuses what is too large, and what is no text in an encoding that keeps ASCII.
fn refuse_binary(bytes: &[u8], limit: Limit) -> Result<(), ParseError> {
    let size = bytes.len();
    if limit.is_exceeded_by(size as u64) {
        let message = format!("the Dockerfile has {size} bytes, at most {} are read; {limit}", limit.value);
        return Err(Problem::from(message).at(Span::line(1)));
    }
    if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") {
        let message = "the Dockerfile is UTF-16 text, it must be UTF-8".to_owned();
        return Err(Problem::from(message).at(Span::line(1)));
    }
    if let Some(at) = bytes.iter().position(|&b| b == 0) {
        let line = bytes[..at].iter().filter(|&&b| b == b'\n').count() + 1;
        let message = "the Dockerfile has a NUL byte, it must be UTF-8 text (not UTF-16)".to_owned();
        return Err(Problem::from(message).at(Span::line(line)));
    }
    Ok(())
}

/// Understands one statement.
fn instruction(statement: Statement) -> Result<Instruction, Problem> {
    let keyword = statement.keyword.to_ascii_uppercase();
    Ok(match keyword.as_slice() {
        b"FROM" => Instruction::From(from(statement)?),
        b"RUN" => Instruction::Run(Box::new(run(statement)?)),
        b"COPY" => Instruction::Copy(Box::new(transfer(statement, TransferKind::Copy)?)),
        b"ADD" => Instruction::Add(Box::new(transfer(statement, TransferKind::Add)?)),
        b"ENV" => Instruction::Env(assignments(statement, "ENV")?),
        b"LABEL" => Instruction::Label(assignments(statement, "LABEL")?),
        b"ARG" => Instruction::Arg(arg(statement)?),
        b"WORKDIR" => Instruction::Workdir(one_text(statement, "WORKDIR")?),
        b"USER" => Instruction::User(one_text(statement, "USER")?),
        b"MAINTAINER" => Instruction::Maintainer(one_text(statement, "MAINTAINER")?),
        b"STOPSIGNAL" => {
            // Its flags are never looked at.
            let statement = Statement { flags: Vec::new(), ..statement };
            Instruction::StopSignal(one_text(statement, "STOPSIGNAL")?)
        }
        b"EXPOSE" => {
            let mut words = at_least_one(statement, "EXPOSE")?;
            words.sort();
            Instruction::Expose(words)
        }
        b"VOLUME" => Instruction::Volume(volume(statement)?),
        b"CMD" => Instruction::Cmd(command(no_flags(statement)?.arguments)),
        b"ENTRYPOINT" => Instruction::Entrypoint(command(no_flags(statement)?.arguments)),
        b"SHELL" => Instruction::Shell(shell(statement)?),
        b"HEALTHCHECK" => Instruction::Healthcheck(healthcheck(statement)?),
        b"ONBUILD" => Instruction::Onbuild(onbuild(statement)?),
        _ => {
            let keyword = String::from_utf8_lossy(&statement.keyword).to_uppercase();
            let near = suggest(&keyword, &KEYWORDS);
            let keyword = excerpt(keyword.as_bytes());
            return Err(Problem::suggesting(format!("unknown instruction: {keyword}"), near));
        }
    })
}

/// Refuses all flags.
fn no_flags(statement: Statement) -> Result<Statement, Problem> {
    Flags::parse(&statement.flags, &[])?;
    Ok(statement)
}

fn command(arguments: Arguments) -> Command {
    match arguments {
        Arguments::Json(words) => Command::Exec(words),
        Arguments::Text(text) => Command::Shell(text),
        _ => Command::Shell(Text::default()),
    }
}

fn words(arguments: Arguments) -> Vec<Text> {
    match arguments {
        Arguments::Words(words) | Arguments::Json(words) => words,
        _ => Vec::new(),
    }
}

fn one_text(statement: Statement, keyword: &str) -> Result<Text, Problem> {
    let text = match &statement.arguments {
        Arguments::Text(text) if !text.is_empty() => text.clone(),
        _ => return Err(format!("{keyword} requires exactly one argument").into()),
    };
    no_flags(statement)?;
    Ok(text)
}

fn at_least_one(statement: Statement, keyword: &str) -> Result<Vec<Text>, Problem> {
    let statement = no_flags(statement)?;
    let words = words(statement.arguments);
    if words.is_empty() { Err(format!("{keyword} requires at least one argument").into()) } else { Ok(words) }
}

fn from(statement: Statement) -> Result<From, Problem> {
    let words = words(statement.arguments);
    let (image, name) = match words.as_slice() {
        [image] => (image, None),
        [image, keyword, name] if keyword.eq_ignore_ascii_case(b"as") => (image, Some(name)),
        words => {
            let hint = if words.iter().any(|word| word.starts_with(b"#")) {
                COMMENT_HINT
            } else {
                "write `FROM IMAGE` or `FROM IMAGE AS NAME`"
            };
            return Err(Problem::from("FROM requires either one or three arguments".to_owned()).hint(hint));
        }
    };
    let name = match name {
        None => None,
        Some(name) => Some(stage_name(name).ok_or_else(|| {
            let shown = quote(excerpt(name).as_bytes());
            format!(
                "invalid name for build stage: {shown}, name can't start with a number or contain symbols"
            )
        })?),
    };
    let flags = Flags::parse(&statement.flags, &[("platform", FlagKind::Value)])?;
    Ok(From { image: image.clone(), platform: flags.value("platform"), name })
}

/// A stage name in lower case: a letter, then letters, digits, `-`, `_`, `.`.
fn stage_name(written: &[u8]) -> Option<String> {
    let name = std::str::from_utf8(written).ok()?.to_lowercase();
    let valid = name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.'));
    valid.then_some(name)
}

fn run(statement: Statement) -> Result<Run, Problem> {
    const FLAGS: [(&str, FlagKind); 4] = [
        ("device", FlagKind::List),
        ("mount", FlagKind::List),
        ("network", FlagKind::Value),
        ("security", FlagKind::Value),
    ];
    let flags = Flags::parse(&statement.flags, &FLAGS)?;
    let shown = |value: &Text| quote(excerpt(value).as_bytes());
    let network = match flags.value("network") {
        None => Network::Default,
        Some(value) => match value.as_bytes() {
            b"default" => Network::Default,
            b"none" => Network::None,
            b"host" => Network::Host,
            other => {
                let near = suggest(&String::from_utf8_lossy(other), &["default", "none", "host"]);
                return Err(Problem::suggesting(format!("invalid network mode {}", shown(&value)), near));
            }
        },
    };
    let security = match flags.value("security") {
        None => Security::Sandbox,
        Some(value) => match value.as_bytes() {
            b"sandbox" => Security::Sandbox,
            b"insecure" => Security::Insecure,
            other => {
                let near = suggest(&String::from_utf8_lossy(other), &["sandbox", "insecure"]);
                return Err(Problem::suggesting(format!("security {} is not valid", shown(&value)), near));
            }
        },
    };
    let mounts = flags.list("mount").map(|value| MountOption::parse(value)).collect::<Result<Vec<_>, _>>()?;
    let mounts = mounts.into_boxed_slice().into_vec();
    let devices = flags.list("device").map(|value| Device::parse(value)).collect::<Result<_, _>>()?;
    let command = command(statement.arguments);
    Ok(Run { command, heredocs: statement.heredocs, mounts, network, security, devices })
}

fn transfer(statement: Statement, kind: TransferKind) -> Result<Transfer, Problem> {
    const COPY: [(&str, FlagKind); 6] = [
        ("chmod", FlagKind::Value),
        ("chown", FlagKind::Value),
        ("exclude", FlagKind::List),
        ("from", FlagKind::Value),
        ("link", FlagKind::Switch),
        ("parents", FlagKind::Switch),
    ];
    const ADD: [(&str, FlagKind); 7] = [
        ("checksum", FlagKind::Value),
        ("chmod", FlagKind::Value),
        ("chown", FlagKind::Value),
        ("exclude", FlagKind::List),
        ("keep-git-dir", FlagKind::Switch),
        ("link", FlagKind::Switch),
        ("unpack", FlagKind::Switch),
    ];
    let keyword = kind.keyword();
    let mut words = words(statement.arguments);
    let Some(destination) = words.pop().filter(|_| !words.is_empty()) else {
        let message = format!(
            "{keyword} requires at least two arguments, but only one was provided. Destination could not be determined"
        );
        return Err(Problem::from(message).hint(format!("write `{keyword} SOURCE DESTINATION`")));
    };
    let known: &[(&'static str, FlagKind)] = match kind {
        TransferKind::Copy => &COPY,
        TransferKind::Add => &ADD,
    };
    let flags = Flags::parse(&statement.flags, known)?;
    if Heredoc::is_only(&destination) {
        return Err(format!("{keyword} cannot accept a heredoc as a destination").into());
    }
    // Of several of the same name the last one counts.
    let bodies = statement.heredocs.iter().map(|heredoc| (heredoc.name.as_bytes(), &heredoc.body)).collect();
    let sources = words.into_iter().map(|word| source(word, &bodies)).collect();
    Ok(Transfer {
        sources,
        destination,
        from: flags.value("from"),
        chown: flags.value("chown"),
        chmod: flags.value("chmod"),
        link: flags.switch("link") == Some(true),
        parents: flags.switch("parents") == Some(true),
        exclude: flags.list("exclude").cloned().collect(),
        checksum: flags.value("checksum"),
        keep_git_dir: flags.switch("keep-git-dir"),
        unpack: flags.switch("unpack"),
    })
}

/// A path, or a here-document with its body.
fn source(word: Text, bodies: &BTreeMap<&[u8], &Text>) -> Source {
    let Ok(Some(heredoc)) = Heredoc::parse(&word) else { return Source::Path(word) };
    let body = bodies.get(heredoc.name.as_bytes()).copied().cloned().unwrap_or_default();
    Source::Heredoc(Heredoc { body, ..heredoc })
}

fn assignments(statement: Statement, keyword: &str) -> Result<Assignments, Problem> {
    let statement = no_flags(statement)?;
    let Arguments::Pairs(pairs, syntax) = statement.arguments else {
        return Err(format!("{keyword} requires at least one argument").into());
    };
    if pairs.is_empty() {
        return Err(format!("{keyword} requires at least one argument").into());
    }
    if pairs.iter().any(|(name, _)| name.is_empty()) {
        return Err(format!("{keyword} names can not be blank").into());
    }
    Ok(Assignments { pairs, syntax })
}

fn arg(statement: Statement) -> Result<Vec<(Text, Option<Text>)>, Problem> {
    let words = words(statement.arguments);
    if words.is_empty() {
        return Err("ARG requires at least one argument".to_owned().into());
    }
    let split = |word: Text| match word.iter().position(|&b| b == b'=') {
        Some(0) => Err("ARG names can not be blank".to_owned().into()),
        Some(at) => Ok((Text::from(&word[..at]), Some(Text::from(&word[at + 1..])))),
        None => Ok((word, None)),
    };
    words.into_iter().map(split).collect()
}

fn volume(statement: Statement) -> Result<Vec<Text>, Problem> {
    let words = at_least_one(statement, "VOLUME")?;
    let words: Vec<Text> = words.iter().map(|word| Text::from(trim(word))).collect();
    if words.iter().any(|word| word.is_empty()) {
        return Err("VOLUME specified can not be an empty string".to_owned().into());
    }
    Ok(words)
}

fn shell(statement: Statement) -> Result<Vec<Text>, Problem> {
    match no_flags(statement)?.arguments {
        Arguments::Json(words) if !words.is_empty() => Ok(words),
        Arguments::Text(text) if !text.is_empty() => {
            let problem = Problem::from("SHELL requires the arguments to be in JSON form".to_owned());
            Err(problem.hint("for instance: SHELL [\"/bin/bash\", \"-c\"]"))
        }
        _ => Err("SHELL requires at least one argument".to_owned().into()),
    }
}

fn healthcheck(statement: Statement) -> Result<HealthCheck, Problem> {
    const FLAGS: [(&str, FlagKind); 5] = [
        ("interval", FlagKind::Value),
        ("retries", FlagKind::Value),
        ("start-interval", FlagKind::Value),
        ("start-period", FlagKind::Value),
        ("timeout", FlagKind::Value),
    ];
    let (kind, rest) = match statement.arguments {
        Arguments::Typed(kind, rest) if !kind.is_empty() => (kind, *rest),
        _ => return Err("HEALTHCHECK requires at least one argument".to_owned().into()),
    };
    let command = command(rest);
    let empty = match &command {
        Command::Shell(text) => text.is_empty(),
        Command::Exec(words) => words.is_empty(),
    };
    if kind.eq_ignore_ascii_case(b"NONE") {
        // Its flags are never looked at.
        return if empty {
            Ok(HealthCheck::None)
        } else {
            Err("HEALTHCHECK NONE takes no arguments".to_owned().into())
        };
    }
    let flags = Flags::parse(&statement.flags, &FLAGS)?;
    if !kind.eq_ignore_ascii_case(b"CMD") {
        let kind = quote(excerpt(&kind).to_uppercase().as_bytes());
        return Err(format!("Unknown type {kind} in HEALTHCHECK (try CMD)").into());
    }
    if empty {
        return Err("Missing command after HEALTHCHECK CMD".to_owned().into());
    }
    Ok(HealthCheck::Check(Health {
        command,
        interval: interval(&flags, "interval")?,
        timeout: interval(&flags, "timeout")?,
        start_period: interval(&flags, "start-period")?,
        start_interval: interval(&flags, "start-interval")?,
        retries: retries(&flags)?,
    }))
}

fn interval(flags: &Flags, name: &str) -> Result<Duration, Problem> {
    let Some(value) = flags.value(name) else { return Ok(Duration::default()) };
    let duration = Duration::parse(&excerpt(&value)).map_err(|error| error.to_string())?;
    if duration != Duration::default() && duration.nanoseconds() < 1_000_000 {
        return Err(format!("Interval \"{name}\" cannot be less than 1ms").into());
    }
    Ok(duration)
}

fn retries(flags: &Flags) -> Result<u32, Problem> {
    let Some(value) = flags.value("retries") else { return Ok(0) };
    let text = value.to_string_lossy();
    let number: i32 = text.parse().map_err(|error: std::num::ParseIntError| {
        let what = match error.kind() {
            std::num::IntErrorKind::PosOverflow | std::num::IntErrorKind::NegOverflow => "value out of range",
            _ => "invalid syntax",
        };
        format!("strconv.ParseInt: parsing {}: {what}", quote(excerpt(&value).as_bytes()))
    })?;
    u32::try_from(number).map_err(|_| format!("--retries cannot be negative ({number})").into())
}

fn onbuild(statement: Statement) -> Result<Text, Problem> {
    let Arguments::Trigger { keyword, .. } = &statement.arguments else {
        return Err("ONBUILD requires at least one argument".to_owned().into());
    };
    if keyword.is_empty() {
        return Err("ONBUILD requires at least one argument".to_owned().into());
    }
    Flags::parse(&statement.flags, &[])?;
    match keyword.as_slice() {
        b"ONBUILD" => Err("Chaining ONBUILD via `ONBUILD ONBUILD` isn't allowed".to_owned().into()),
        b"FROM" | b"MAINTAINER" => {
            Err(format!("{} isn't allowed as an ONBUILD trigger", String::from_utf8_lossy(keyword)).into())
        }
        _ => Ok(statement.trigger_text()),
    }
}
