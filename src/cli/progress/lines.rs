//! Progress as lines of plain text.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::output::{Unfinished, escaped};
use super::{Colour, Verbosity, paint, seconds, tag};
use crate::build::progress::{Event, Moved, Moving, Progress, Way, size};
use crate::cli::failure::sentence;
use crate::image::platform::Platform;
use crate::text::without_credentials;

/// How often a line says how far a transfer is.
const PAUSE: Duration = Duration::from_secs(10);

/// A transfer that takes as long has a line at its end, too.
const LONG: Duration = Duration::from_secs(1);

/// Writes events as lines; every line of a RUN's output stands behind its step.
pub(in crate::cli) struct Lines<W> {
    verbosity: Verbosity,
    colour: Colour,
    state: Mutex<State<W>>,
}

struct State<W> {
    out: W,
    unfinished: Unfinished,
    moving: BTreeMap<u64, Told>,
}

/// A transfer of which something was said.
struct Told {
    began: Instant,
    last: Instant,
}

impl Lines<io::Stderr> {
    /// To standard error.
    pub(in crate::cli) fn to_stderr(verbosity: Verbosity, colour: Colour) -> Self {
        Self::new(io::stderr(), verbosity, colour)
    }
}

impl<W: Write> Lines<W> {
    fn new(out: W, verbosity: Verbosity, colour: Colour) -> Self {
        let state = State { out, unfinished: Unfinished::default(), moving: BTreeMap::new() };
        Self { verbosity, colour, state: Mutex::new(state) }
    }
}

/// What an event says by itself, without what other ones have said.
pub(super) fn lines_of(event: &Event<'_>, colour: Colour) -> Vec<String> {
    let tag = |place| paint(colour, "36", &tag(place));
    let line = match event {
        Event::Started { place, instruction } | Event::Applied { place, instruction } => {
            format!("{} {}", tag(place), escaped(instruction.as_bytes()))
        }
        Event::Found { place, instruction } => {
            let cached = paint(colour, "32", "CACHED");
            format!("{cached} {} {}", tag(place), escaped(instruction.as_bytes()))
        }
        Event::Waiting { .. } | Event::WaitingForCache { .. } => match waiting(event) {
            Some((place, text)) => format!("{} {}", tag(place), paint(colour, "2", &text)),
            None => return Vec::new(),
        },
        Event::Finished { place, elapsed, layer } => {
            let size = layer.map(|bytes| format!(", layer {}", size(bytes))).unwrap_or_default();
            let done = format!("done in {}{size}", seconds(*elapsed));
            format!("{} {}", tag(place), paint(colour, "2", &done))
        }
        Event::Failed { place, elapsed, .. } => {
            let failed = format!("failed after {}", seconds(*elapsed));
            format!("{} {}", tag(place), paint(colour, "31", &failed))
        }
        Event::Warning { rule, span, detail } => {
            let place = span.map(|span| format!(" (line {})", span.first_line)).unwrap_or_default();
            let detail = escaped(detail.as_bytes());
            format!("{} {rule}: {detail}{place}", paint(colour, "33", "warning:"))
        }
        Event::Check(warning) => {
            return vec![
                format!("{} {}", paint(colour, "33", "warning:"), sentence(&warning.to_string())),
                format!("  {} {}", paint(colour, "2", "instead:"), sentence(&warning.instead())),
            ];
        }
        Event::Note(text) | Event::Detail(text) => escaped(text.as_bytes()),
        Event::Complete { platforms, steps, elapsed } => {
            let steps = if *steps == 1 { "1 step".to_owned() } else { format!("{steps} steps") };
            let platforms = listed(platforms);
            paint(colour, "1", &format!("finished {steps} for {platforms} in {}", seconds(*elapsed)))
        }
        Event::Planned { .. }
        | Event::Unpacking { .. }
        | Event::Output { .. }
        | Event::OutputEnded { .. }
        | Event::Moving(_) => return Vec::new(),
    };
    vec![line]
}

/// For what a step waits.
pub(super) fn waiting<'a>(event: &Event<'a>) -> Option<(&'a crate::build::progress::Place, String)> {
    match event {
        Event::Waiting { place } => {
            Some((place, "waiting for another stage or build that runs this step".to_owned()))
        }
        Event::WaitingForCache { place, id } => {
            let id = escaped(id.as_bytes());
            Some((place, format!("waiting for another step that uses the cache `{id}`")))
        }
        _ => None,
    }
}

/// A line of what a step writes.
pub(super) fn output_line(colour: Colour, tag: &str, line: &str) -> String {
    format!("{} {} {line}", paint(colour, "36", tag), paint(colour, "2", "|"))
}

/// What is moved, and how much of it there is.
pub(super) fn what(moving: &Moving<'_>) -> String {
    moved(moving, verbs(moving.way).0)
}

/// What is done with what is moved: while it is, and when it is over.
pub(super) fn verbs(way: Way) -> (&'static str, &'static str) {
    match way {
        Way::Pull | Way::Fetch => ("fetching", "fetched"),
        Way::Push => ("sending", "sent"),
        Way::Unpack => ("unpacking", "unpacked"),
        Way::Convert => ("converting", "converted"),
    }
}

fn moved(moving: &Moving<'_>, verb: &str) -> String {
    let name = without_credentials(moving.name);
    let total = moving.total.map(|total| format!(" ({})", size(total))).unwrap_or_default();
    let image = match (moving.image, moving.way) {
        ("", _) => String::new(),
        (image, Way::Push | Way::Convert) => format!(" to {image}"),
        (image, Way::Pull | Way::Fetch | Way::Unpack) => format!(" of {image}"),
    };
    escaped(format!("{verb} {name}{total}{image}").as_bytes())
}

/// What of it is there.
pub(super) fn how_far(moving: &Moving<'_>) -> String {
    let bytes = size(moving.bytes);
    match moving.total.filter(|total| *total > 0) {
        Some(total) => {
            let percent = u128::from(moving.bytes.min(total)) * 100 / u128::from(total);
            format!("{bytes} of {}, {percent} %", size(total))
        }
        None => bytes,
    }
}

impl<W: Write> State<W> {
    fn lines_of(&mut self, event: &Event<'_>, colour: Colour) -> Vec<String> {
        let (place, lines) = match event {
            Event::Output { place, stream, bytes } => (*place, self.unfinished.lines(place, *stream, bytes)),
            Event::OutputEnded { place } => (*place, self.unfinished.rest(place)),
            Event::Moving(moving) => return self.of_transfer(moving).into_iter().collect(),
            _ => return lines_of(event, colour),
        };
        let tag = tag(place);
        lines.iter().map(|line| output_line(colour, &tag, line)).collect()
    }

    /// Of a transfer its beginning is told, and how far it is and when it ends if it takes long: logs are watched.
    fn of_transfer(&mut self, moving: &Moving<'_>) -> Option<String> {
        let now = Instant::now();
        if moving.state != Moved::Partly {
            let took = now.duration_since(self.moving.remove(&moving.id)?.began);
            let is_told = moving.state == Moved::Done && took >= LONG;
            let done = || moved(moving, verbs(moving.way).1);
            return is_told.then(|| format!("{} in {}", done(), seconds(took)));
        }
        match self.moving.get_mut(&moving.id) {
            Some(told) if now.duration_since(told.last) < PAUSE => None,
            Some(told) => {
                told.last = now;
                Some(format!("{}: {}", what(&Moving { total: None, ..*moving }), how_far(moving)))
            }
            None => {
                self.moving.insert(moving.id, Told { began: now, last: now });
                // That an image is sent has been said.
                (moving.way != Way::Push).then(|| what(moving))
            }
        }
    }
}

impl<W: Write + Send> Progress for Lines<W> {
    fn tell(&self, event: &Event<'_>) {
        if self.verbosity < needed(event) {
            return;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = state.lines_of(event, self.colour).join("\n");
        if text.is_empty() {
            return;
        }
        text.push('\n');
        // Nobody is left to tell when standard error is closed; the build goes on.
        let _ = state.out.write_all(text.as_bytes());
    }
}

/// Who wants to know of an event.
pub(super) fn needed(event: &Event<'_>) -> Verbosity {
    match event {
        Event::Warning { .. } | Event::Check(_) => Verbosity::Warn,
        Event::Detail(_) => Verbosity::Debug,
        // What a RUN says is the user's own, and without it a failure cannot be understood: kaniko shows it always.
        Event::Output { .. } | Event::OutputEnded { .. } => Verbosity::Error,
        _ => Verbosity::Info,
    }
}

/// Platforms, one after the other.
pub(super) fn listed(platforms: &[&Platform]) -> String {
    let platforms: Vec<String> = platforms.iter().map(|platform| platform.shown().to_string()).collect();
    platforms.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::progress::Place;
    use crate::sandbox::Stream;

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
                Event::Complete {
                    platforms: &[&Platform::new("linux", "amd64", None)],
                    steps: 9,
                    elapsed: Duration::from_secs(605),
                },
            ],
        );
        assert_eq!(
            text,
            "[compile 2/3] RUN make\n[compile 2/3] | one\n[compile 2/3] | error\n[compile 2/3] | two\n[compile 2/3] | three\n\
             [compile 2/3] done in 1.2 s, layer 2.3 MB\n\
             finished 9 steps for linux/amd64 in 10 min 05 s\n"
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
    fn a_transfer_is_told_when_it_begins_and_that_of_an_upload_was_told() {
        let moving = |way, id, state| {
            let name = "https://me:secret@host/f";
            Event::Moving(Moving {
                id,
                way,
                name,
                image: "",
                bytes: 1_000_000,
                total: Some(4_000_000),
                state,
            })
        };
        let text = shown(
            Verbosity::Info,
            &[
                moving(Way::Fetch, 1, Moved::Partly),
                moving(Way::Push, 2, Moved::Partly),
                moving(Way::Fetch, 1, Moved::Partly),
                moving(Way::Fetch, 1, Moved::Done),
            ],
        );
        assert_eq!(text, "fetching https://xxxxx:xxxxx@host/f (4.0 MB)\n");
        let Event::Moving(moving) = moving(Way::Push, 1, Moved::Partly) else { unreachable!() };
        assert_eq!(how_far(&moving), "1.0 MB of 4.0 MB, 25 %");
        assert_eq!(how_far(&Moving { total: None, ..moving }), "1.0 MB");
    }

    #[test]
    fn what_takes_long_is_told_again_when_it_is_done() {
        let lines = Lines::new(Vec::new(), Verbosity::Info, Colour::No);
        let moving = |id, way, image, state| {
            Event::Moving(Moving {
                id,
                way,
                name: "sha256:a",
                image,
                bytes: 5_000_000,
                total: Some(5_000_000),
                state,
            })
        };
        let all = [(1, Way::Unpack, "debian:12"), (2, Way::Convert, "zstd-3"), (3, Way::Unpack, "")];
        for (id, way, image) in all {
            lines.tell(&moving(id, way, image, Moved::Partly));
        }
        for id in [1, 2] {
            let mut state = lines.state.lock().unwrap();
            state.moving.get_mut(&id).unwrap().began -= Duration::from_millis(3250);
        }
        for (id, way, image) in all {
            lines.tell(&moving(id, way, image, Moved::Done));
        }
        assert_eq!(
            String::from_utf8(lines.state.into_inner().unwrap().out).unwrap(),
            "unpacking sha256:a (5.0 MB) of debian:12\nconverting sha256:a (5.0 MB) to zstd-3\n\
             unpacking sha256:a (5.0 MB)\n\
             unpacked sha256:a (5.0 MB) of debian:12 in 3.3 s\n\
             converted sha256:a (5.0 MB) to zstd-3 in 3.3 s\n"
        );
    }
}
