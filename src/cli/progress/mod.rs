//! What is shown while a build goes on: lines, a live view of it on a terminal, JSON, or nothing.

mod json;
mod lines;
mod live;
mod output;
mod quiet;

use std::io::{self, IsTerminal as _};
use std::str::FromStr;
use std::time::Duration;

pub(super) use lines::Lines;
pub(super) use output::escaped;

use super::failure::Failure;
use crate::build::progress::{Event, Place, Progress};
use json::Json;
use live::Live;
use quiet::Quiet;

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

/// Whether to use colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Colour {
    /// Yes: standard error is a terminal.
    Yes,
    /// No.
    No,
}

/// How progress is shown; docker's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// The live view on a terminal, lines elsewhere.
    Auto,
    /// Lines.
    Plain,
    /// The live view.
    Tty,
    /// Nothing but what a failed step wrote.
    Quiet,
    /// A JSON object a line, as BuildKit's `rawjson`.
    RawJson,
}

impl Mode {
    /// The same for what is over in a moment.
    pub(super) fn without_motion(self) -> Self {
        if matches!(self, Self::Auto | Self::Tty) { Self::Plain } else { self }
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "plain" => Ok(Self::Plain),
            "tty" => Ok(Self::Tty),
            "quiet" => Ok(Self::Quiet),
            "rawjson" => Ok(Self::RawJson),
            _ => Err(format!(
                "`{text}` is no way to show progress: expected auto, plain, tty, quiet or rawjson"
            )),
        }
    }
}

/// What shows progress on standard error.
pub(super) enum Display {
    /// As lines.
    Lines(Lines<io::Stderr>),
    /// As a live view.
    Live(Live),
    /// Not.
    Quiet(Quiet<io::Stderr>),
    /// To programs.
    Json(Json<io::Stderr>),
}

impl Display {
    /// Shows as much as `verbosity` says in a `mode`.
    ///
    /// # Errors
    /// When there is no terminal for a live view that was asked for.
    pub(super) fn to_stderr(mode: Mode, verbosity: Verbosity, colour: Colour) -> Result<Self, Failure> {
        let is_terminal = io::stderr().is_terminal();
        let live = match mode {
            Mode::Quiet => return Ok(Self::Quiet(Quiet::new(io::stderr()))),
            Mode::RawJson => return Ok(Self::Json(Json::new(io::stderr(), verbosity))),
            Mode::Tty if !is_terminal => {
                return Err(Failure::new("standard error is not a terminal")
                    .of_flag("--progress tty")
                    .hint("--progress auto chooses by itself"));
            }
            Mode::Plain => false,
            Mode::Tty => true,
            Mode::Auto => is_terminal,
        };
        // Who wants to see less does not want to see it move.
        Ok(if live && verbosity >= Verbosity::Info {
            Self::Live(Live::new(verbosity, colour))
        } else {
            Self::Lines(Lines::to_stderr(verbosity, colour))
        })
    }
}

impl Progress for Display {
    fn tell(&self, event: &Event<'_>) {
        match self {
            Self::Lines(lines) => lines.tell(event),
            Self::Live(live) => live.tell(event),
            Self::Quiet(quiet) => quiet.tell(event),
            Self::Json(json) => json.tell(event),
        }
    }

    fn end(&self) {
        if let Self::Live(live) = self {
            live.end();
        }
    }
}

/// A time for a human.
fn seconds(time: Duration) -> String {
    match time.as_secs() {
        long @ 600.. => format!("{} min {:02} s", long / 60, long % 60),
        _ => format!("{:.1} s", time.as_secs_f64()),
    }
}

/// `[2/5]`, or `[compile 2/5]` where there are several stages.
fn tag(place: &Place) -> String {
    match &place.stage {
        Some(stage) => format!("[{stage} {}/{}]", place.number, place.total),
        None => format!("[{}/{}]", place.number, place.total),
    }
}

/// Text in a colour, by the number that terminals give it.
fn paint(colour: Colour, code: &str, text: &str) -> String {
    match colour {
        Colour::Yes => format!("\u{1b}[{code}m{text}\u{1b}[0m"),
        Colour::No => text.to_owned(),
    }
}
