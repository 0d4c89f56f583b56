//! `builder check` and `--call=check`: what build checks say of a Dockerfile, as docker prints it.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::ser::SerializeStruct as _;
use serde::{Serialize, Serializer};

use super::args::{BuildArgs, CheckArgs};
use super::build::{client, open_store, warn_of_flags, watch};
use super::failure::{Failure, sentence, shown};
use super::hints::build_failure;
use super::progress::{Colour, Display};
use super::settings::Settings;
use super::sources::Places;
use super::stop::{AtOnce, Stop};
use crate::build::PlanRequest;
use crate::build::checks::{self, Checked, UnknownBase};
use crate::build::progress::{Event, Progress};
use crate::build::services::ServiceError;
use crate::context::FoundDockerfile;
use crate::dockerfile::{self, Span, Warning};
use crate::registry::TransferError;
use crate::text::chained;
use crate::transfer::{Asked, Images, Unhelped};

/// At most this many lines of an instruction are shown, and have a place of their own in JSON. One of very many lines may
/// have very many mistakes.
const MOST_LINES: usize = 20;

/// At most this many characters of a line are shown.
const LONGEST_LINE: usize = 200;

/// What to do with a Dockerfile: docker's `--call`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    /// Build it.
    Build,
    /// Check it.
    Check(Format, Status),
}

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// For people.
    Text,
    /// For programs: docker's JSON.
    Json,
}

/// What the exit code says of warnings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    /// That there are some.
    Told,
    /// Nothing.
    Ignored,
}

impl Call {
    /// What the flags of `build` ask for.
    pub(super) fn of(args: &BuildArgs) -> Result<Self, Failure> {
        let call = Self::parse(&args.call).map_err(|message| Failure::new(message).of_flag("--call"))?;
        match (args.check, call) {
            (true, Self::Build) => Ok(Self::Check(Format::Text, Status::Told)),
            (_, call) => Ok(call),
        }
    }

    /// What the flags of `check` ask for; `--format` comes last.
    pub(super) fn of_check(args: &CheckArgs) -> Result<Self, Failure> {
        let (mut format, mut status) = (Format::Text, Status::Told);
        if let Self::Check(of_call, status_of_call) = Self::of(&args.build)? {
            (format, status) = (of_call, status_of_call);
        }
        if let Some(text) = &args.format {
            format = Format::parse(text).map_err(|message| Failure::new(message).of_flag("--format"))?;
        }
        Ok(Self::Check(format, status))
    }

    /// `METHOD[,format=FORMAT][,ignorestatus=BOOL]`
    fn parse(text: &str) -> Result<Self, String> {
        let (mut method, mut format, mut status) = ("build", Format::Text, Status::Told);
        for field in text.split(',') {
            match field.trim().split_once('=') {
                None => method = field.trim(),
                Some(("format", name)) => format = Format::parse(name)?,
                Some(("ignorestatus", "1" | "true")) => status = Status::Ignored,
                Some(("ignorestatus", "0" | "false")) => status = Status::Told,
                Some(("ignorestatus", other)) => return Err(format!("`{other}` is neither true nor false")),
                Some((name, _)) => {
                    return Err(format!("there is no `{name}`: expected format or ignorestatus"));
                }
            }
        }
        match method {
            "build" | "" => Ok(Self::Build),
            "check" | "lint" => Ok(Self::Check(format, status)),
            "outline" | "targets" => Err(format!(
                "`{method}` is not supported: there are build and check; `builder plan` prints stages and arguments that are used"
            )),
            _ => Err(format!("`{method}` is no method: expected build or check")),
        }
    }
}

impl Format {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(format!("`{text}` is no format: expected text or json")),
        }
    }
}

/// Checks, prints what was found, and says with the exit code whether that is something. Who reads JSON gets some
/// whatever happens.
pub(super) fn check(
    settings: Result<Settings, Failure>,
    format: Format,
    status: Status,
    colour: Colour,
    at_once: &AtOnce,
) -> Result<ExitCode, Failure> {
    let mut printed = Printed::No;
    let result = settings.and_then(|settings| run(&settings, format, status, colour, at_once, &mut printed));
    if let (Err(failure), Format::Json, Printed::No) = (&result, format, printed) {
        let error = ShownError { message: sentence(&failure.line()), location: None };
        super::print_json(&NotRead { warnings: [], sources: [], build_error: error })?;
    }
    result
}

/// Whether standard output has something, or was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Printed {
    Yes,
    No,
}

fn run(
    settings: &Settings,
    format: Format,
    status: Status,
    colour: Colour,
    at_once: &AtOnce,
    printed: &mut Printed,
) -> Result<ExitCode, Failure> {
    let progress =
        Arc::new(Display::to_stderr(settings.progress.without_motion(), settings.verbosity, colour)?);
    warn_of_flags(settings, &*progress);
    let mut places = Places::open(settings)?;
    let found = places.find(settings)?;
    let store = open_store(&settings.store, &progress)?;
    let client = client(&settings.client, settings.limits.documents, &progress)?;
    let stop = Stop::new(at_once)?;
    watch(&stop, &client)?;
    let found = found.map_or_else(|| places.fetch_text(settings, client.http(), &*progress), Ok);
    let result = found.and_then(|found| {
        let images = Images {
            client: &client,
            store: &store,
            progress: &*progress,
            limits: settings.limits.documents,
            pull: settings.pull,
            unpacking: None,
            asked: Asked::for_platforms(settings.platforms.normalised()),
        };
        let checked = checked(settings, &places, &found, &images);
        for base in &checked.unknown {
            progress.tell(&Event::Warning {
                rule: "not checked",
                span: Some(base.span),
                detail: &not_checked(base),
            });
        }
        *printed = Printed::Yes;
        print(&Report { found: &found, checked: &checked }, format)?;
        match (&checked.error, checked.warnings.is_empty() || status == Status::Ignored) {
            (Some(error), _) => Err(build_failure(error, &found, settings)),
            (None, true) => Ok(ExitCode::SUCCESS),
            (None, false) => Ok(ExitCode::FAILURE),
        }
    });
    stop.judge(result)
}

fn checked(settings: &Settings, places: &Places, found: &FoundDockerfile, images: &Images<'_>) -> Checked {
    let mut warnings = Vec::new();
    let limit = settings.limits.context.dockerfile;
    match dockerfile::parse_noting(&found.content, limit, &mut warnings) {
        Ok(file) => {
            let mut all = Checked::default();
            for platform in settings.platforms.iter() {
                let request = PlanRequest { platform: platform.clone(), ..settings.request.clone() };
                all.absorb(checks::check(&file, &request, &places.ignore(), images, &is_unanswered));
            }
            all
        }
        Err(error) => checks::of_unparsed(&found.content, &settings.request, error, warnings),
    }
}

fn is_unanswered(error: &ServiceError) -> bool {
    Unhelped::behind(&**error).downcast_ref::<TransferError>().is_some_and(TransferError::is_without_answer)
}

fn not_checked(base: &UnknownBase) -> String {
    format!(
        "`{}`, its variables, triggers and platform: nobody could be asked: {}",
        base.image.familiar(),
        base.reason
    )
}

fn print(report: &Report<'_>, format: Format) -> Result<(), Failure> {
    match format {
        Format::Text => super::print_with(|out| report.write_text(out)),
        Format::Json => super::print_json(report),
    }
}

/// What was found, with the text that it was found in. Nothing is put together in memory: there may be very much of it.
struct Report<'a> {
    found: &'a FoundDockerfile,
    checked: &'a Checked,
}

impl Report<'_> {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let warnings = &self.checked.warnings;
        let found = match warnings.len() {
            0 => "no warnings found.".to_owned(),
            1 => "1 warning has been found!".to_owned(),
            count => format!("{count} warnings have been found!"),
        };
        match self.checked.is_complete() {
            // The error itself is told last.
            false => writeln!(out, "Check incomplete because of an error; before it, {found}")?,
            true => writeln!(out, "Check complete, {found}")?,
        }
        let mut lines = TextLines::of(&self.found.content);
        let mut above = None;
        for warning in warnings {
            let rule = warning.rule();
            write!(out, "\nWARNING: {rule}")?;
            if let Some(url) = rule.url() {
                write!(out, " - {url}")?;
            }
            writeln!(out, "\n{}", sentence(&warning.detail()))?;
            writeln!(out, "Instead: {}", sentence(&warning.instead()))?;
            if above.replace(warning.span) == Some(warning.span) {
                // Its lines were shown just now: one instruction may have very many mistakes.
                write_place(out, &self.found.path, warning.span)?;
            } else {
                write_excerpt(out, &self.found.path, &mut lines, warning.span)?;
            }
        }
        Ok(())
    }
}

fn write_place(out: &mut dyn Write, file: &Path, span: Span) -> io::Result<()> {
    writeln!(out, "{}:{}", sentence(&file.display().to_string()), span.first_line)
}

/// The lines `span` and some around them, marked, as BuildKit shows them.
fn write_excerpt(out: &mut dyn Write, file: &Path, lines: &mut TextLines<'_>, span: Span) -> io::Result<()> {
    const RULER: &str = "--------------------";
    let around = if span.first_line == span.last_line { 2 } else { 1 };
    let last_shown = span.last_line.min(span.first_line + MOST_LINES - 1);
    let left_out = span.last_line - last_shown;
    write_place(out, file, span)?;
    writeln!(out, "{RULER}")?;
    let first = span.first_line.saturating_sub(around).max(1);
    for number in first..=last_shown {
        let mark = if number >= span.first_line { ">>>" } else { "   " };
        write_line(out, lines, number, mark)?;
    }
    if left_out > 0 {
        // What comes behind them is not looked for, either: that would be done for each of very many findings.
        writeln!(out, "     | >>> … {left_out} more lines\n{RULER}")?;
        return Ok(());
    }
    for number in span.last_line + 1..=span.last_line + around {
        write_line(out, lines, number, "   ")?;
    }
    writeln!(out, "{RULER}")
}

fn write_line(out: &mut dyn Write, lines: &mut TextLines<'_>, number: usize, mark: &str) -> io::Result<()> {
    let Some(line) = lines.line(number) else { return Ok(()) };
    writeln!(out, " {number:>3} | {mark} {}", shown(line, LONGEST_LINE))
}

/// The lines of a text, asked for in nearly rising order; no list of them is kept.
struct TextLines<'a> {
    text: &'a [u8],
    /// The number of the line that begins at `offset`, from 1.
    number: usize,
    offset: usize,
}

impl<'a> TextLines<'a> {
    fn of(text: &'a [u8]) -> Self {
        Self { text, number: 1, offset: 0 }
    }

    /// The line `number` without its end; none behind the last one. As in BuildKit a text that ends with a line feed has an
    /// empty line behind it.
    fn line(&mut self, number: usize) -> Option<&'a [u8]> {
        while self.number > number {
            let before = self.text[..self.offset.saturating_sub(1)].iter().rposition(|byte| *byte == b'\n');
            self.offset = before.map_or(0, |position| position + 1);
            self.number -= 1;
        }
        while self.number < number {
            let length = self.text[self.offset..].iter().position(|byte| *byte == b'\n')?;
            self.offset += length + 1;
            self.number += 1;
        }
        let rest = &self.text[self.offset..];
        let line = &rest[..rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len())];
        Some(line.strip_suffix(b"\r").unwrap_or(line))
    }
}

impl Serialize for Report<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Checked { warnings, error, unknown } = self.checked;
        let mut document = serializer.serialize_struct("Report", 4)?;
        document.serialize_field("warnings", &Each(warnings, ShownWarning::of))?;
        document.serialize_field("sources", &[Source::of(self.found)])?;
        if let Some(error) = error {
            let location = error.span.map(Location::of);
            let shown = ShownError { message: chained(error), location };
            document.serialize_field("buildError", &shown)?;
        }
        if !unknown.is_empty() {
            document.serialize_field("notChecked", &Each(unknown, ShownUnknown::of))?;
        }
        document.end()
    }
}

/// A list that is made one by one.
struct Each<'a, T, U>(&'a [T], fn(&T) -> U);

impl<T, U: Serialize> Serialize for Each<'_, T, U> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(self.1))
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownWarning {
    rule_name: &'static str,
    description: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    detail: String,
    /// Not docker's.
    instead: String,
    location: Location,
}

impl ShownWarning {
    fn of(warning: &Warning) -> Self {
        let rule = warning.rule();
        Self {
            rule_name: rule.name(),
            description: rule.description(),
            url: rule.url(),
            detail: warning.detail(),
            instead: warning.instead(),
            location: Location::of(warning.span),
        }
    }
}

/// What is printed where there was nothing to check.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NotRead {
    warnings: [ShownWarning; 0],
    sources: [Source; 0],
    build_error: ShownError,
}

#[derive(Serialize)]
struct ShownError {
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    location: Option<Location>,
}

/// Not docker's.
#[derive(Serialize)]
struct ShownUnknown {
    image: String,
    reason: String,
    location: Location,
}

impl ShownUnknown {
    fn of(base: &UnknownBase) -> Self {
        let UnknownBase { span, image, reason } = base;
        Self { image: image.familiar(), reason: reason.clone(), location: Location::of(*span) }
    }
}

/// As BuildKit has it: a range for each line, and no number for the only source, which is 0.
#[derive(Serialize)]
struct Location {
    ranges: Vec<Range>,
}

#[derive(Serialize)]
struct Range {
    start: Position,
    end: Position,
}

#[derive(Serialize)]
struct Position {
    line: usize,
}

impl Location {
    fn of(span: Span) -> Self {
        let range = |first, last| Range { start: Position { line: first }, end: Position { line: last } };
        let Span { first_line: first, last_line: last } = span;
        let ranges = if last - first < MOST_LINES {
            (first..=last).map(|line| range(line, line)).collect()
        } else {
            vec![range(first, last)]
        };
        Self { ranges }
    }
}

/// The Dockerfile, as BuildKit has it.
#[derive(Serialize)]
struct Source {
    filename: String,
    language: &'static str,
    data: String,
}

impl Source {
    fn of(found: &FoundDockerfile) -> Self {
        Self {
            filename: found.path.display().to_string(),
            language: "Dockerfile",
            data: STANDARD.encode(&found.content),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dockerfile::{Elsewhere, Finding};

    #[test]
    fn calls_are_docker_s() {
        for (text, call) in [
            ("build", Some(Call::Build)),
            ("check", Some(Call::Check(Format::Text, Status::Told))),
            ("lint", Some(Call::Check(Format::Text, Status::Told))),
            ("check,format=json", Some(Call::Check(Format::Json, Status::Told))),
            ("format=json,check,ignorestatus=true", Some(Call::Check(Format::Json, Status::Ignored))),
            ("check,format=xml", None),
            ("check,colour=no", None),
            ("outline", None),
            ("chekc", None),
        ] {
            assert_eq!(Call::parse(text).ok(), call, "{text}");
        }
    }

    #[test]
    fn lines_are_found_forth_and_back() {
        let mut lines = TextLines::of(b"a\r\nb\n\nd\n");
        for (number, line) in [
            (1, Some(&b"a"[..])),
            (4, Some(b"d")),
            (3, Some(b"")),
            (2, Some(b"b")),
            (5, Some(b"")),
            (6, None),
            (1, Some(b"a")),
        ] {
            assert_eq!(lines.line(number), line, "{number}");
        }
    }

    fn excerpt(text: &str, span: Span) -> String {
        let mut out = Vec::new();
        write_excerpt(&mut out, Path::new("Dockerfile"), &mut TextLines::of(text.as_bytes()), span).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn an_excerpt_is_buildkit_s() {
        assert_eq!(
            excerpt("FROM a\n\nRUN x\nCMD y\n", Span::line(4)),
            "Dockerfile:4\n--------------------\n   2 |     \n   3 |     RUN x\n   4 | >>> CMD y\n   5 |     \n--------------------\n"
        );
        assert_eq!(
            excerpt("FROM a\nENV a=1 \\\n b=2\nRUN x\nRUN y", Span::new(2, 3)),
            "Dockerfile:2\n--------------------\n   1 |     FROM a\n   2 | >>> ENV a=1 \\\n   3 | >>>  b=2\n   4 |     RUN x\n--------------------\n"
        );
    }

    #[test]
    fn of_an_instruction_of_very_many_lines_the_first_are_shown() {
        let text = "x\n".repeat(100_000);
        let shown = excerpt(&text, Span::new(1, 99_000));
        assert!(
            shown.ends_with("  20 | >>> x\n     | >>> … 98980 more lines\n--------------------\n"),
            "{shown}"
        );
        assert_eq!(Location::of(Span::new(1, 99_000)).ranges.len(), 1);
        assert_eq!(Location::of(Span::new(1, 3)).ranges.len(), 3);
    }

    #[test]
    fn the_lines_of_an_instruction_with_many_mistakes_are_shown_once() {
        let of = |line, name: String| {
            let finding = Finding::UndefinedVar { name, near: None, elsewhere: Elsewhere::Nowhere };
            Warning::new(Span::line(line), finding)
        };
        let mut warnings: Vec<Warning> = (0..3000).map(|number| of(2, format!("b{number}"))).collect();
        warnings.push(of(3, "y".to_owned()));
        let checked = Checked { warnings, error: None, unknown: Vec::new() };
        let text = format!("FROM scratch\nENV {}\nLABEL x=$y\n", "a=$b ".repeat(10_000));
        let found = FoundDockerfile::read_stream("D", text.as_bytes(), dockerfile::SIZE_LIMIT).unwrap();
        let mut out = Vec::new();
        Report { found: &found, checked: &checked }.write_text(&mut out).unwrap();
        let out = String::from_utf8(out).unwrap();
        assert_eq!(out.matches("WARNING: UndefinedVar").count(), 3001);
        assert_eq!(out.matches(">>> ENV").count(), 1);
        assert_eq!(out.matches("\nD:2\n").count(), 3000);
        assert!(out.ends_with("   3 | >>> LABEL x=$y\n   4 |     \n--------------------\n"), "{out}");
    }

    #[test]
    fn text_of_a_dockerfile_cannot_steer_a_terminal() {
        assert!(!excerpt("ENV a \u{1b}]0;x\u{7}\n", Span::line(1)).contains('\u{1b}'));
    }
}
