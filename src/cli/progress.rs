//! Progress as lines of plain text on standard error.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use super::failure::sentence;
use crate::build::progress::{Event, Place, Progress, size};
use crate::sandbox::Stream;
use crate::text::is_deceptive;

/// How much to say; kaniko's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verbosity {
    /// Nothing but the error that ends the program (`error`, `fatal`, `panic`).
    Error,
    /// Warnings too.
    Warn,
    /// Steps and the output of RUN too.
    Info,
    /// What was looked up and decided too (`debug`, `trace`).
    Debug,
}

impl FromStr for Verbosity {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.to_ascii_lowercase().as_str() {
            "panic" | "fatal" | "error" => Ok(Self::Error),
            "warn" | "warning" => Ok(Self::Warn),
            "info" => Ok(Self::Info),
            "debug" | "trace" => Ok(Self::Debug),
            _ => Err(format!(
                "`{text}` is not a verbosity: expected trace, debug, info, warn, error, fatal or panic"
            )),
        }
    }
}

/// The longest line of a RUN that is held back until it is complete, in bytes.
const LONGEST_LINE: usize = 8192;

/// Whether to use colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Colour {
    /// Yes: standard error is a terminal.
    Yes,
    /// No.
    No,
}

/// Writes events as lines; every line of a RUN's output stands behind its step.
pub(super) struct Lines<W> {
    verbosity: Verbosity,
    colour: Colour,
    state: Mutex<State<W>>,
}

/// The beginning of a line that has not ended yet, by stage (one step of each is at work), and by stream.
type Unfinished = BTreeMap<usize, [Vec<u8>; 2]>;

struct State<W> {
    out: W,
    unfinished: Unfinished,
}

impl Lines<io::Stderr> {
    /// To standard error.
    pub(super) fn to_stderr(verbosity: Verbosity, colour: Colour) -> Self {
        Self::new(io::stderr(), verbosity, colour)
    }
}

impl<W: Write> Lines<W> {
    fn new(out: W, verbosity: Verbosity, colour: Colour) -> Self {
        Self { verbosity, colour, state: Mutex::new(State { out, unfinished: BTreeMap::new() }) }
    }

    fn paint(&self, code: &str, text: &str) -> String {
        match self.colour {
            Colour::Yes => format!("\u{1b}[{code}m{text}\u{1b}[0m"),
            Colour::No => text.to_owned(),
        }
    }

    fn lines_of(&self, event: &Event<'_>, unfinished: &mut Unfinished) -> Vec<String> {
        match event {
            Event::Started { place, instruction } => {
                vec![format!("{} {}", self.paint("36", &tag(place)), escaped(instruction.as_bytes()))]
            }
            Event::Found { place, instruction } => {
                let tag = self.paint("36", &tag(place));
                vec![format!("{} {tag} {}", self.paint("32", "CACHED"), escaped(instruction.as_bytes()))]
            }
            Event::Waiting { place } => {
                let text = "waiting for another stage or build that runs this step";
                vec![format!("{} {}", self.paint("36", &tag(place)), self.paint("2", text))]
            }
            Event::WaitingForCache { place, id } => {
                let text =
                    format!("waiting for another step that uses the cache `{}`", escaped(id.as_bytes()));
                vec![format!("{} {}", self.paint("36", &tag(place)), self.paint("2", &text))]
            }
            Event::Output { place, stream, bytes } => {
                let tag = tag(place);
                let [out, err] = unfinished.entry(place.index).or_default();
                let held = match stream {
                    Stream::Out => out,
                    Stream::Error => err,
                };
                complete_lines(held, bytes).iter().map(|line| self.output_line(&tag, line)).collect()
            }
            Event::OutputEnded { place } => {
                let tag = tag(place);
                let rest = unfinished.remove(&place.index).unwrap_or_default();
                let rest = rest.into_iter().filter(|line| !line.is_empty());
                let rest = rest.map(|line| last_state([line, b"\n".to_vec()].concat()));
                rest.map(|line| self.output_line(&tag, &line)).collect()
            }
            Event::Finished { place, elapsed, layer } => {
                let size = layer.map(|bytes| format!(", layer {}", size(bytes))).unwrap_or_default();
                let done = format!("done in {:.1} s{size}", elapsed.as_secs_f64());
                vec![format!("{} {}", self.paint("36", &tag(place)), self.paint("2", &done))]
            }
            Event::Failed { place, elapsed } => {
                let failed = format!("failed after {:.1} s", elapsed.as_secs_f64());
                vec![format!("{} {}", self.paint("36", &tag(place)), self.paint("31", &failed))]
            }
            Event::Warning { rule, span, detail } => {
                let place = span.map(|span| format!(" (line {})", span.first_line)).unwrap_or_default();
                vec![format!(
                    "{} {rule}: {}{place}",
                    self.paint("33", "warning:"),
                    escaped(detail.as_bytes())
                )]
            }
            Event::Check(warning) => vec![
                format!("{} {}", self.paint("33", "warning:"), sentence(&warning.to_string())),
                format!("  {} {}", self.paint("2", "instead:"), sentence(&warning.instead())),
            ],
            Event::Note(text) | Event::Detail(text) => vec![escaped(text.as_bytes())],
        }
    }

    fn output_line(&self, tag: &str, line: &[u8]) -> String {
        format!("{} {} {}", self.paint("36", tag), self.paint("2", "|"), escaped(line))
    }
}

impl<W: Write + Send> Progress for Lines<W> {
    fn tell(&self, event: &Event<'_>) {
        let needed = match event {
            Event::Warning { .. } | Event::Check(_) => Verbosity::Warn,
            Event::Detail(_) => Verbosity::Debug,
            // What a RUN says is the user's own, and without it a failure cannot be understood: kaniko shows it always.
            Event::Output { .. } | Event::OutputEnded { .. } => Verbosity::Error,
            _ => Verbosity::Info,
        };
        if self.verbosity < needed {
            return;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State { out, unfinished } = &mut *state;
        let mut text = self.lines_of(event, unfinished).join("\n");
        if text.is_empty() {
            return;
        }
        text.push('\n');
        // Nobody is left to tell when standard error is closed; the build goes on.
        let _ = out.write_all(text.as_bytes());
    }
}

/// `[2/5]`, or `[compile 2/5]` where there are several stages.
fn tag(place: &Place) -> String {
    match &place.stage {
        Some(stage) => format!("[{stage} {}/{}]", place.number, place.total),
        None => format!("[{}/{}]", place.number, place.total),
    }
}

/// The complete lines of `held` and `bytes`; what is left over stays in `held`, which never grows beyond
/// [`LONGEST_LINE`].
fn complete_lines(held: &mut Vec<u8>, bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut lines = Vec::new();
    for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
        for chunk in piece.chunks(LONGEST_LINE) {
            if held.len() + chunk.len() > LONGEST_LINE {
                lines.push(std::mem::take(held));
            }
            held.extend_from_slice(chunk);
        }
        if held.last() == Some(&b'\n') {
            lines.push(last_state(std::mem::take(held)));
        }
    }
    lines
}

/// A line without its end, as it stands in a terminal in the end: a bar that shows progress begins again after each carriage
/// return.
fn last_state(mut line: Vec<u8>) -> Vec<u8> {
    line.pop();
    while line.last() == Some(&b'\r') {
        line.pop();
    }
    let begin = line.iter().rposition(|byte| *byte == b'\r').map_or(0, |position| position + 1);
    line.split_off(begin)
}

/// `bytes` as text that cannot steer or fool a terminal: deceptive characters but tab are escaped, colours of programs are dropped.
pub(super) fn escaped(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut out = String::with_capacity(text.len());
    for character in without_colours(&text).chars() {
        match character {
            '\t' => out.push('\t'),
            c if is_deceptive(c) => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    out
}

/// Removes `ESC [ … m`: many programs colour their output whatever it goes to.
fn without_colours(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("\u{1b}[") {
        let parameters = &rest[start + 2..];
        let end = parameters.find(|c: char| !c.is_ascii_digit() && c != ';').unwrap_or(parameters.len());
        out.push_str(&rest[..start]);
        match parameters[end..].strip_prefix('m') {
            Some(after) => rest = after,
            None => {
                out.push_str("\u{1b}[");
                rest = parameters;
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn shown(verbosity: Verbosity, events: &[Event<'_>]) -> String {
        let lines = Lines::new(Vec::new(), verbosity, Colour::No);
        for event in events {
            lines.tell(event);
        }
        String::from_utf8(lines.state.into_inner().unwrap().out).unwrap()
    }

    #[test]
    fn every_line_of_a_run_stands_behind_its_step() {
        let place = Place { stage: Some("compile".to_owned()), index: 1, number: 2, total: 3 };
        let text = shown(
            Verbosity::Info,
            &[
                Event::Started { place: &place, instruction: "RUN make" },
                Event::Output { place: &place, stream: Stream::Out, bytes: b"one\ntw" },
                Event::Output { place: &place, stream: Stream::Error, bytes: b"error\n" },
                Event::Output { place: &place, stream: Stream::Out, bytes: b"o\r\nthree" },
                Event::OutputEnded { place: &place },
                Event::Finished {
                    place: &place,
                    elapsed: Duration::from_millis(1230),
                    layer: Some(2_300_000),
                },
            ],
        );
        assert_eq!(
            text,
            "[compile 2/3] RUN make\n[compile 2/3] | one\n[compile 2/3] | error\n[compile 2/3] | two\n[compile 2/3] | three\n\
             [compile 2/3] done in 1.2 s, layer 2.3 MB\n"
        );
    }

    #[test]
    fn of_a_bar_that_shows_progress_the_last_state_stays() {
        let place = Place { stage: None, index: 0, number: 2, total: 3 };
        let bytes: &[u8] = b" 10%\r 50%\r100%\ndone\r\n20%\r\r\n40%\r60%";
        let text = shown(
            Verbosity::Info,
            &[
                Event::Output { place: &place, stream: Stream::Out, bytes },
                Event::OutputEnded { place: &place },
            ],
        );
        assert_eq!(text, "[2/3] | 100%\n[2/3] | done\n[2/3] | 20%\n[2/3] | 60%\n");
    }

    #[test]
    fn steps_that_are_remembered_or_done_elsewhere_are_shown_as_such() {
        let place = Place { stage: None, index: 0, number: 2, total: 3 };
        let text = shown(
            Verbosity::Info,
            &[Event::Waiting { place: &place }, Event::Found { place: &place, instruction: "RUN make" }],
        );
        assert_eq!(
            text,
            "[2/3] waiting for another stage or build that runs this step\nCACHED [2/3] RUN make\n"
        );
    }

    #[test]
    fn verbosity_warn_shows_warnings_alone() {
        let text = shown(
            Verbosity::Warn,
            &[
                Event::Note("x"),
                Event::Warning { rule: "LegacyKeyValueFormat", span: None, detail: "write `ENV a=b`" },
            ],
        );
        assert_eq!(text, "warning: LegacyKeyValueFormat: write `ENV a=b`\n");
    }

    #[test]
    fn output_cannot_steer_the_terminal() {
        assert_eq!(
            escaped(b"\x1b[31mred\x1b[0m \x1b]0;title\x07\ta\x00"),
            "red \\u{1b}]0;title\\u{7}\ta\\u{0}"
        );
    }

    #[test]
    fn a_line_without_end_is_shown_in_pieces() {
        let mut held = Vec::new();
        let lines = complete_lines(&mut held, &vec![b'x'; 3 * LONGEST_LINE + 1]);
        assert_eq!(lines.len(), 3);
        assert_eq!(held.len(), 1);
    }
}
