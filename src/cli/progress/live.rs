//! A live view on a terminal: what is done scrolls up as lines, what goes on stands below and is drawn anew.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use unicode_width::UnicodeWidthChar as _;

use super::lines::{how_far, lines_of, listed, needed, output_line, waiting, what};
use super::output::{Tail, Unfinished, escaped, without_colours};
use super::{Colour, Verbosity, paint, seconds, tag};
use crate::build::progress::{Event, Moved, Moving, Place, Progress, size};
use crate::image::digest::Digest;

/// How often the view is drawn at most.
const PAUSE: Duration = Duration::from_millis(100);
/// No line is longer than this many columns, however wide the terminal: eyes have to find the time at its end.
const WIDEST: usize = 120;
/// As many lines of what a step writes are shown, if there is room.
const LINES: usize = 6;
/// As many transfers are shown.
const TRANSFERS: usize = 5;

/// Shows events as they come, and how long what goes on has taken.
pub(in crate::cli) struct Live {
    verbosity: Verbosity,
    shared: Arc<Mutex<Shared>>,
    /// Who draws, once there is something that moves: a build forks before that.
    drawer: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    view: View,
    phase: Phase,
    /// How wide the lines of the view are that are on the screen, above the one where the cursor is.
    drawn: Vec<usize>,
}

/// Whether there is something that moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    NotYet,
    Moving,
    Ended,
}

impl Live {
    pub(super) fn new(verbosity: Verbosity, colour: Colour) -> Self {
        let shared =
            Shared { view: View::new(colour, Instant::now()), phase: Phase::NotYet, drawn: Vec::new() };
        Self { verbosity, shared: Arc::new(Mutex::new(shared)), drawer: Mutex::new(None) }
    }

    /// Begins to draw.
    fn start(&self, shared: &mut Shared) {
        if shared.phase != Phase::NotYet {
            return;
        }
        shared.phase = Phase::Moving;
        let theirs = Arc::clone(&self.shared);
        let drawer = std::thread::Builder::new().name("progress".to_owned()).spawn(move || {
            loop {
                {
                    let mut shared = locked(&theirs);
                    if shared.phase == Phase::Ended {
                        return;
                    }
                    shared.draw(&[]);
                }
                std::thread::park_timeout(PAUSE);
            }
        });
        // Without one, the view moves with events alone.
        *locked(&self.drawer) = drawer.ok();
    }
}

/// What it guards is whole at any time.
fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Live {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    /// Draws the view in the place of the one before, below `lines`, which stay. All is one write: nothing flickers.
    fn draw(&mut self, lines: &[String]) {
        let window = window();
        let view = match self.phase {
            Phase::Moving => self.view.render(window, Instant::now()),
            Phase::NotYet | Phase::Ended => Vec::new(),
        };
        let text = frame(height(&self.drawn, window.columns), lines, &view, window.columns);
        self.drawn = view.iter().map(|line| shown_width(line)).collect();
        // Nobody is left to tell when standard error is closed.
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
}

/// How many rows lines of these widths take in a window that may have become narrower since they were written: today's
/// terminals wrap them then. Those that cut them instead lose as many lines above the view.
fn height(widths: &[usize], columns: usize) -> usize {
    widths.iter().map(|width| width.div_ceil(columns).max(1)).sum()
}

/// What replaces the `drawn` rows above the cursor: `lines`, then `view`, and the cursor below them: what the terminal shows
/// there by itself (`^C`) is gone with the next frame.
fn frame(drawn: usize, lines: &[String], view: &[String], columns: usize) -> String {
    let mut text = String::new();
    if drawn > 0 {
        // Writing to a string does not fail.
        let _ = write!(text, "\r\u{1b}[{drawn}A");
    }
    for line in lines.iter().chain(view) {
        text.push_str(line);
        // What is left of a longer line; behind one that fills its rows, terminals would take its last character.
        let width = shown_width(line);
        let is_full = width > 0 && width.is_multiple_of(columns);
        text.push_str(if drawn > 0 && !is_full { "\u{1b}[K\n" } else { "\n" });
    }
    if drawn > 0 {
        text.push_str("\u{1b}[J");
    }
    text
}

impl Progress for Live {
    fn tell(&self, event: &Event<'_>) {
        if self.verbosity < needed(event) {
            return;
        }
        let mut shared = locked(&self.shared);
        let lines = shared.view.take(event, window().columns, Instant::now());
        let moves = matches!(event, Event::Planned { .. } | Event::Started { .. } | Event::Moving(_));
        if moves {
            self.start(&mut shared);
        }
        if !lines.is_empty() {
            shared.draw(&lines);
        }
    }

    /// Takes the moving part away. What is told after that is shown as lines.
    fn end(&self) {
        {
            let mut shared = locked(&self.shared);
            if std::mem::replace(&mut shared.phase, Phase::Ended) != Phase::Ended {
                let rest = shared.view.rest(window().columns);
                shared.draw(&rest);
            }
        }
        let drawer = locked(&self.drawer).take();
        if let Some(drawer) = drawer {
            drawer.thread().unpark();
            // It has nothing to say.
            let _ = drawer.join();
        }
    }
}

/// The size of the terminal, in characters.
#[derive(Debug, Clone, Copy)]
struct Window {
    rows: usize,
    columns: usize,
}

/// That of the terminal that is standard error.
fn window() -> Window {
    let size = rustix::termios::tcgetwinsize(std::io::stderr()).ok();
    // A terminal that does not know its size says zero.
    let or = |value: Option<u16>, usual| value.filter(|value| *value > 0).map_or(usual, usize::from);
    Window { rows: or(size.map(|size| size.ws_row), 24), columns: or(size.map(|size| size.ws_col), 80) }
}

/// A step that goes on.
struct Active {
    place: Place,
    instruction: String,
    began: Instant,
    /// For what it waits.
    waits: Option<String>,
    tail: Tail,
}

/// A transfer that goes on.
struct Under {
    what: String,
    far: String,
    began: Instant,
}

/// What is shown.
struct View {
    colour: Colour,
    began: Instant,
    /// For what is built, and how many steps there are.
    planned: Option<(String, usize)>,
    /// Those of several platforms for which nothing has begun.
    waiting: Vec<String>,
    /// How many steps have ended, each FROM aside.
    done: usize,
    /// By stage.
    active: BTreeMap<usize, Active>,
    transfers: BTreeMap<u64, Under>,
    unfinished: Unfinished,
    /// The FROM of each stage.
    bases: BTreeMap<usize, Base>,
}

/// The FROM of a stage: its line stays once, with the time that its files took if they are brought.
struct Base {
    place: Place,
    instruction: String,
    shown: bool,
    /// The lines of what follows and needs no files: they stay below it.
    held: Vec<String>,
    /// Whether it counts as done: its files are there, or what follows did without.
    done: bool,
}

impl View {
    fn new(colour: Colour, began: Instant) -> Self {
        Self {
            colour,
            began,
            planned: None,
            waiting: Vec::new(),
            done: 0,
            active: BTreeMap::new(),
            transfers: BTreeMap::new(),
            unfinished: Unfinished::default(),
            bases: BTreeMap::new(),
        }
    }

    /// What `event` makes of the view; gives the lines that stay.
    fn take(&mut self, event: &Event<'_>, columns: usize, now: Instant) -> Vec<String> {
        if let Event::Started { place, .. }
        | Event::Unpacking { place }
        | Event::Applied { place, .. }
        | Event::Found { place, .. } = event
        {
            self.waiting.retain(|platform| !is_for(place, platform));
        }
        match event {
            Event::Planned { platforms, steps } => {
                self.planned = Some((listed(platforms), *steps));
                self.done = 0;
                let several = platforms.iter().filter(|_| platforms.len() > 1);
                self.waiting = several.map(|platform| platform.shown().to_string()).collect();
            }
            Event::Started { place, instruction } => {
                self.base_done(place.index, true);
                let base = self.base(place, columns);
                self.activate(place, instruction, now);
                return base;
            }
            Event::Unpacking { place } => {
                self.base_done(place.index, false);
                let base = self.bases.get(&place.index).map(|base| base.instruction.clone());
                self.activate(place, &base.unwrap_or_default(), now);
            }
            Event::Waiting { place } | Event::WaitingForCache { place, .. } => {
                let is_there = self.at(place).is_some();
                if !is_there {
                    self.activate(place, "", now);
                }
                let text = waiting(event).map(|(_, text)| text);
                if let Some(active) = self.at(place) {
                    active.waits = text;
                }
            }
            Event::Applied { place, instruction } if place.number == 1 => {
                let instruction = escaped(instruction.as_bytes());
                let base = Base {
                    place: (*place).clone(),
                    instruction,
                    shown: false,
                    held: Vec::new(),
                    done: place.number == place.total,
                };
                self.bases.insert(place.index, base);
            }
            Event::Applied { place, instruction } | Event::Found { place, instruction } => {
                self.active.remove(&place.index);
                self.done += 1;
                let (tag, instruction) = (tag(place), escaped(instruction.as_bytes()));
                let is_found = matches!(event, Event::Found { .. });
                let cached: &[(&str, &str)] = if is_found { &[("32", "CACHED ")] } else { &[] };
                let line = self.line(&[cached, &[("36", &tag)]].concat(), &instruction, columns);
                if is_found || place.number == place.total {
                    self.base_done(place.index, true);
                } else if let Some(base) = self.bases.get_mut(&place.index).filter(|base| !base.shown) {
                    // Whether the files of the base are needed is not known yet.
                    base.held.push(line);
                    return Vec::new();
                }
                let mut lines = self.base(place, columns);
                lines.push(line);
                return lines;
            }
            Event::Output { place, stream, bytes } => {
                let lines = self.unfinished.lines(place, *stream, bytes);
                if let Some(active) = self.at(place) {
                    active.waits = None;
                    lines.into_iter().for_each(|line| active.tail.push(line));
                }
            }
            Event::OutputEnded { place } => {
                let lines = self.unfinished.rest(place);
                if let Some(active) = self.at(place) {
                    lines.into_iter().for_each(|line| active.tail.push(line));
                }
            }
            Event::Finished { place, elapsed, layer } => {
                let Some(active) = self.active.remove(&place.index) else { return Vec::new() };
                let layer = layer.map(|bytes| format!("{}  ", size(bytes))).unwrap_or_default();
                let time = format!("{layer}{}", seconds(*elapsed));
                let row = self.row(&active, &time, columns.min(WIDEST), "36");
                if place.number > 1 {
                    self.done += 1;
                    return vec![row];
                }
                self.base_done(place.index, true);
                // What was found may have been shown below it.
                let base = self.bases.get_mut(&place.index).filter(|base| !base.shown);
                let Some(base) = base else { return Vec::new() };
                base.shown = true;
                return std::iter::once(row).chain(std::mem::take(&mut base.held)).collect();
            }
            Event::Failed { place, elapsed, .. } => {
                let Some(active) = self.active.remove(&place.index) else { return Vec::new() };
                let time = format!("failed after {}", seconds(*elapsed));
                let head = self.row(&active, &time, columns.min(WIDEST), "31");
                let (tag, colour) = (tag(place), self.colour);
                let output = active.tail.into_lines().map(|line| output_line(colour, &tag, &line));
                return std::iter::once(head).chain(output).collect();
            }
            Event::Moving(moving) => self.transfer(moving, now),
            Event::Warning { .. }
            | Event::Check(_)
            | Event::Note(_)
            | Event::Detail(_)
            | Event::Complete { .. } => {
                return lines_of(event, self.colour);
            }
        }
        Vec::new()
    }

    /// Whether the FROM of `stage` counts as done.
    fn base_done(&mut self, stage: usize, done: bool) {
        if let Some(base) = self.bases.get_mut(&stage) {
            base.done = done;
        }
    }

    /// The line of the FROM of the stage at `place`, if it has not been shown, and those below it.
    fn base(&mut self, place: &Place, columns: usize) -> Vec<String> {
        let base = self.bases.get_mut(&place.index).filter(|base| !base.shown);
        let Some(base) = base else { return Vec::new() };
        base.shown = true;
        let (tag, instruction, held) =
            (tag(&base.place), base.instruction.clone(), std::mem::take(&mut base.held));
        let line = self.line(&[("36", &tag)], &instruction, columns);
        std::iter::once(line).chain(held).collect()
    }

    /// What has not been shown in the end, if nothing was interrupted.
    fn rest(&mut self, columns: usize) -> Vec<String> {
        if !self.active.is_empty() {
            return Vec::new();
        }
        let places: Vec<Place> = self.bases.values().map(|base| base.place.clone()).collect();
        places.iter().flat_map(|place| self.base(place, columns)).collect()
    }

    fn activate(&mut self, place: &Place, instruction: &str, now: Instant) {
        let instruction = escaped(instruction.as_bytes());
        let active =
            Active { place: place.clone(), instruction, began: now, waits: None, tail: Tail::default() };
        self.active.insert(place.index, active);
    }

    fn at(&mut self, place: &Place) -> Option<&mut Active> {
        self.active.get_mut(&place.index).filter(|active| active.place.number == place.number)
    }

    fn transfer(&mut self, moving: &Moving<'_>, now: Instant) {
        if moving.state != Moved::Partly {
            self.transfers.remove(&moving.id);
            return;
        }
        let far = how_far(moving);
        let began = || {
            let name = &abbreviated(moving.name);
            Under { what: what(&Moving { total: None, name, ..*moving }), far: String::new(), began: now }
        };
        self.transfers.entry(moving.id).or_insert_with(began).far = far;
    }

    /// The line of a step that has a time.
    fn row(&self, active: &Active, time: &str, columns: usize, code: &str) -> String {
        let tag = tag(&active.place);
        let line = aligned(&format!("{tag} {}", active.instruction), time, columns);
        self.painted(&[(code, &tag)], line)
    }

    /// A line of `heads` in their colours, and `text`.
    fn line(&self, heads: &[(&str, &str)], text: &str, columns: usize) -> String {
        let head: String = heads.iter().map(|(_, head)| *head).collect();
        self.painted(heads, fitted(&format!("{head} {text}"), columns.min(WIDEST)))
    }

    /// `line`, with as many of the `heads` in colour as are left of them.
    fn painted(&self, heads: &[(&str, &str)], line: String) -> String {
        let mut out = String::new();
        let mut rest = line.as_str();
        for (code, head) in heads {
            let Some(after) = rest.strip_prefix(head) else { break };
            out.push_str(&paint(self.colour, code, head));
            rest = after;
        }
        out.push_str(rest);
        out
    }

    /// What goes on, in lines that fit.
    fn render(&self, window: Window, now: Instant) -> Vec<String> {
        // The last column is left free: terminals differ in what they do after a character there.
        let columns = window.columns.saturating_sub(1).min(WIDEST);
        // One line is where the cursor is, one is the last of this view.
        let room = window.rows.saturating_sub(2);
        let since = |began: Instant| now.saturating_duration_since(began);
        let mut transfers: Vec<String> = self
            .transfers
            .values()
            .take(TRANSFERS)
            .map(|under| {
                let text = format!("{}  {}", under.far, seconds(since(under.began)));
                aligned(&under.what, &text, columns)
            })
            .collect();
        if self.transfers.len() > TRANSFERS {
            transfers.push(format!("… and {} more", self.transfers.len() - TRANSFERS));
        }
        let left = room.saturating_sub(self.active.len() + transfers.len());
        let lines = (left / self.active.len().max(1)).min(LINES);
        let mut rows = Vec::new();
        for (stage, active) in &self.active {
            rows.push(self.row(active, &seconds(since(active.began)), columns, "1;36"));
            let waits = active.waits.iter().cloned();
            let unfinished = self.unfinished.present(*stage);
            let output = active.tail.last(LINES).map(str::to_owned).chain(unfinished).chain(waits);
            let output: Vec<String> = output.collect();
            for line in output.iter().skip(output.len().saturating_sub(lines)) {
                rows.push(paint(self.colour, "2", &fitted(&format!("  | {line}"), columns)));
            }
        }
        rows.extend(transfers);
        if !self.waiting.is_empty() {
            let text = format!("waiting for their turn: {}", self.waiting.join(", "));
            rows.push(paint(self.colour, "2", &fitted(&text, columns)));
        }
        if rows.len() > room {
            let more = rows.len() - room + 1;
            rows.truncate(room.saturating_sub(1));
            rows.extend((room > 0).then(|| fitted(&format!("… and {more} more"), columns)));
        }
        let text = match &self.planned {
            Some((platform, steps)) => {
                let done = self.done + self.bases.values().filter(|base| base.done).count();
                // The count comes first: names of many platforms are cut.
                format!("{} of {steps} steps done for {platform}", done.min(*steps))
            }
            None => "preparing".to_owned(),
        };
        rows.push(paint(self.colour, "1", &aligned(&text, &seconds(since(self.began)), columns)));
        rows
    }
}

/// Whether the stage at `place` is for `platform`: its label says so, or what stands behind the arrow in it.
fn is_for(place: &Place, platform: &str) -> bool {
    let label = place.stage.as_deref().and_then(|stage| stage.split(' ').next()).unwrap_or_default();
    let target = label.rsplit("->").next().unwrap_or_default();
    target == platform
        || (target != label && platform.split_once('/').is_some_and(|(_, rest)| rest == target))
}

/// Enough of a digest to tell it from others; anything else as it is.
fn abbreviated(name: &str) -> String {
    match (name.split_once(':'), name.parse::<Digest>()) {
        (Some((algorithm, _)), Ok(digest)) => format!("{algorithm}:{}", digest.short()),
        _ => name.to_owned(),
    }
}

/// `left` at the left and `right` at the right of a line.
fn aligned(left: &str, right: &str, columns: usize) -> String {
    let room = columns.saturating_sub(width(right) + 2);
    let left = fitted(left, room);
    let blanks = columns.saturating_sub(width(&left) + width(right));
    format!("{left}{}{right}", " ".repeat(blanks))
}

/// How many columns `text`, which has no tabs and no colours, takes at most. Of emoji that are put together, terminals show
/// one picture or several.
fn width(text: &str) -> usize {
    text.chars().map(width_of).sum()
}

fn width_of(character: char) -> usize {
    match character {
        // Makes a picture of the character before it, which is wider than that.
        '\u{fe0f}' => 1,
        _ => character.width().unwrap_or(0),
    }
}

/// How many columns a line takes that may have colours.
fn shown_width(line: &str) -> usize {
    width(&without_colours(line))
}

/// `text`, or its beginning where it is wider than `columns`.
fn fitted(text: &str, columns: usize) -> String {
    let text = text.replace('\t', "    ");
    if width(&text) <= columns {
        return text;
    }
    let mut out = String::new();
    let mut width = 0;
    for character in text.chars() {
        let own = width_of(character);
        if width + own + 1 > columns {
            break;
        }
        width += own;
        out.push(character);
    }
    out.push('…');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::progress::Way;
    use crate::image::platform::Platform;
    use crate::sandbox::Stream;

    const NARROW: Window = Window { rows: 24, columns: 80 };

    fn place(stage: &str, index: usize, number: usize) -> Place {
        Place { stage: Some(stage.to_owned()), index, number, total: 4 }
    }

    /// What stays, and what is drawn after twelve seconds.
    fn shown(events: &[Event<'_>], window: Window) -> (Vec<String>, Vec<String>) {
        let began = Instant::now();
        let mut view = View::new(Colour::No, began);
        let take = |event| view.take(event, window.columns, began);
        let stays = events.iter().flat_map(take).collect();
        (stays, view.render(window, began + Duration::from_millis(12_300)))
    }

    fn platform() -> Platform {
        let host = Platform::default();
        crate::image::platform::Requested::parse("linux/arm/v7", &host).unwrap().normalised
    }

    #[test]
    fn what_is_done_stays_and_what_goes_on_stands_below_it() {
        let (compile, web) = (&place("compile", 0, 2), &place("web", 1, 3));
        let long = format!("RUN npm ci && {}", "npm run build ".repeat(20));
        let platform = platform();
        let moving = Moving {
            id: 1,
            way: Way::Pull,
            name: &format!("sha256:{}", "0123456789".repeat(7).get(..64).unwrap_or_default()),
            image: "debian:12",
            bytes: 12_000_000,
            total: Some(48_000_000),
            state: Moved::Partly,
        };
        let events = [
            Event::Planned { platforms: &[&platform], steps: 8 },
            Event::Applied { place: &place("compile", 0, 1), instruction: "FROM debian:12" },
            Event::Found { place: &place("web", 1, 2), instruction: "COPY . ." },
            Event::Started { place: compile, instruction: "RUN make" },
            Event::Output {
                place: compile,
                stream: Stream::Out,
                bytes: b"cc -c a.c\ncc\t-c b.c\n 10%\r 20%",
            },
            Event::Started { place: web, instruction: &long },
            Event::WaitingForCache { place: web, id: "npm" },
            Event::Moving(moving),
        ];
        let (stays, drawn) = shown(&events, NARROW);
        assert_eq!(stays, ["CACHED [web 2/4] COPY . .", "[compile 1/4] FROM debian:12"]);
        assert_eq!(
            drawn.join("\n"),
            "[compile 2/4] RUN make                                                   12.3 s\n\
             \x20 | cc -c a.c\n\
             \x20 | cc    -c b.c\n\
             \x20 |  20%\n\
             [web 3/4] RUN npm ci && npm run build npm run build npm run build npm …  12.3 s\n\
             \x20 | waiting for another step that uses the cache `npm`\n\
             fetching sha256:012345678901 of debian:12      12.0 MB of 48.0 MB, 25 %  12.3 s\n\
             2 of 8 steps done for linux/arm/v7                                       12.3 s"
        );
    }

    #[test]
    fn the_line_of_a_base_stays_once_with_its_time_if_its_files_are_brought() {
        let base = |name, index| (place(name, index, 1), place(name, index, 2));
        let ((a, a2), (b, b2), (c, _)) = (base("a", 0), base("b", 1), base("c", 2));
        let elapsed = Duration::from_secs(1);
        let events = [
            Event::Applied { place: &a, instruction: "FROM a" },
            Event::Unpacking { place: &a },
            Event::Finished { place: &a, elapsed, layer: None },
            Event::Found { place: &a2, instruction: "RUN a" },
            Event::Applied { place: &b, instruction: "FROM b" },
            Event::Applied { place: &b2, instruction: "ENV b=b" },
            Event::Unpacking { place: &b },
            Event::Finished { place: &b, elapsed, layer: None },
            Event::Applied { place: &c, instruction: "FROM c" },
        ];
        let mut view = View::new(Colour::No, Instant::now());
        let take = |event| view.take(event, 30, Instant::now());
        let stays: Vec<String> = events.iter().flat_map(take).collect();
        assert_eq!(
            stays,
            [
                "[a 1/4] FROM a           1.0 s",
                "CACHED [a 2/4] RUN a",
                "[b 1/4] FROM b           1.0 s",
                "[b 2/4] ENV b=b",
            ]
        );
        assert_eq!(view.rest(30), ["[c 1/4] FROM c"]);
        assert_eq!(view.rest(30), [""; 0]);
    }

    #[test]
    fn a_platform_that_waits_is_shown_until_its_first_stage_begins() {
        let platforms: Vec<Platform> = ["amd64", "arm64", "s390x"]
            .map(|architecture| {
                Platform::new("linux", architecture, (architecture == "arm64").then_some("v8"))
            })
            .to_vec();
        let platforms: Vec<&Platform> = platforms.iter().collect();
        let waits = |begun: &[&str]| {
            let places: Vec<Place> = begun.iter().map(|label| place(label, 0, 1)).collect();
            let begun = places.iter().map(|place| Event::Applied { place, instruction: "FROM x" });
            let planned = Event::Planned { platforms: &platforms, steps: 24 };
            let events: Vec<Event<'_>> = std::iter::once(planned).chain(begun).collect();
            let (_, drawn) = shown(&events, NARROW);
            drawn
                .into_iter()
                .find_map(|line| line.strip_prefix("waiting for their turn: ").map(str::to_owned))
        };
        for (begun, expected) in [
            (&[][..], Some("linux/amd64, linux/arm64, linux/s390x")),
            (&["linux/amd64 web"], Some("linux/arm64, linux/s390x")),
            (&["linux/amd64->arm64 compile"], Some("linux/amd64, linux/s390x")),
            (&["linux/amd64", "linux/arm64", "linux/s390x"], None),
        ] {
            assert_eq!(waits(begun).as_deref(), expected, "{begun:?}");
        }
    }

    #[test]
    fn of_many_platforms_names_are_cut_and_the_count_is_not() {
        let platform = platform();
        let events = [Event::Planned { platforms: &[&platform; 12], steps: 24 }];
        let (_, drawn) = shown(&events, Window { rows: 24, columns: 60 });
        assert_eq!(drawn[1..], ["0 of 24 steps done for linux/arm/v7, linux/arm/v7,…  12.3 s"]);
    }

    #[test]
    fn a_base_counts_as_done_when_its_files_are_there_or_not_needed() {
        let steps = [1, 2, 3].map(|number| Place { stage: None, index: 0, number, total: 3 });
        let [from, env, run] = &steps;
        let elapsed = Duration::from_secs(1);
        let platform = platform();
        let counts = |events: &[Event<'_>]| -> Vec<String> {
            let now = Instant::now();
            let mut view = View::new(Colour::No, now);
            view.take(&Event::Planned { platforms: &[&platform], steps: 3 }, 80, now);
            let after = |event| {
                view.take(event, 80, now);
                let count = view.render(NARROW, now).pop().unwrap_or_default();
                count.get(..1).unwrap().to_owned()
            };
            events.iter().map(after).collect()
        };
        let begin = || Event::Applied { place: from, instruction: "FROM x" };
        let config = |place| Event::Applied { place, instruction: "ENV a=b" };
        let done = |place| Event::Finished { place, elapsed, layer: None };
        let brought = [
            begin(),
            config(env),
            Event::Unpacking { place: from },
            done(from),
            Event::Started { place: run, instruction: "RUN y" },
            done(run),
        ];
        assert_eq!(counts(&brought).concat(), "011223");
        let found = [begin(), config(env), Event::Found { place: run, instruction: "RUN y" }];
        assert_eq!(counts(&found).concat(), "013");
        assert_eq!(counts(&[begin(), config(env), config(run)]).concat(), "013");
    }

    #[test]
    fn a_step_that_fails_shows_what_it_wrote_and_one_that_does_not_does_not() {
        let (good, bad) = (&place("a", 0, 2), &place("b", 1, 2));
        let output = |place, bytes| Event::Output { place, stream: Stream::Error, bytes };
        let elapsed = Duration::from_millis(1500);
        let events = [
            Event::Started { place: good, instruction: "RUN a" },
            Event::Started { place: bad, instruction: "RUN b" },
            output(good, b"fine\n"),
            output(bad, b"no such\nfile"),
            Event::OutputEnded { place: good },
            Event::OutputEnded { place: bad },
            Event::Finished { place: good, elapsed, layer: Some(2_300_000) },
            Event::Failed { place: bad, elapsed, error: "x" },
        ];
        let (stays, drawn) = shown(&events, Window { rows: 24, columns: 50 });
        assert_eq!(
            stays,
            [
                "[a 2/4] RUN a                        2.3 MB  1.5 s",
                "[b 2/4] RUN b                   failed after 1.5 s",
                "[b 2/4] | no such",
                "[b 2/4] | file",
            ]
        );
        assert_eq!(drawn, ["preparing                                  12.3 s"]);
    }

    #[test]
    fn the_view_fits_into_any_terminal() {
        let places: Vec<Place> = (0..30).map(|index| place("stage", index, 2)).collect();
        let mut events: Vec<Event<'_>> = places
            .iter()
            .map(|place| Event::Started {
                place, instruction: "RUN echo 漢字 漢字 漢字 漢字 漢字 漢字 漢字"
            })
            .collect();
        events.extend(places.iter().map(|place| Event::Output {
            place,
            stream: Stream::Out,
            bytes: b"a\nb\nc\nd\ne\nf\ng\nh\n",
        }));
        for (rows, columns) in [(24, 80), (24, 200), (5, 20), (2, 10), (1, 1), (100, 40)] {
            let (_, drawn) = shown(&events, Window { rows, columns });
            assert!(drawn.len() < rows.max(2), "{rows}: {drawn:#?}");
            assert!(drawn.iter().all(|line| width(line) <= columns.max(12)), "{columns}: {drawn:#?}");
        }
    }

    #[test]
    fn a_frame_takes_the_place_of_the_one_before() {
        let lines = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
        assert_eq!(frame(0, &lines(&["a"]), &lines(&["b"]), 80), "a\nb\n");
        assert_eq!(frame(2, &lines(&["a"]), &lines(&["b"]), 80), "\r\u{1b}[2Aa\u{1b}[K\nb\u{1b}[K\n\u{1b}[J");
        assert_eq!(frame(1, &[], &[], 80), "\r\u{1b}[1A\u{1b}[J");
        assert_eq!(frame(0, &[], &[], 80), "");
        let full = paint(Colour::Yes, "36", "漢字");
        assert_eq!(frame(1, &[], std::slice::from_ref(&full), 4), format!("\r\u{1b}[1A{full}\n\u{1b}[J"));
    }

    #[test]
    fn lines_that_a_narrower_terminal_wraps_are_replaced_with_all_their_rows() {
        for (widths, columns, rows) in [
            (&[79, 79][..], 80, 2),
            (&[79, 79], 200, 2),
            (&[79, 40, 0, 41], 40, 6),
            (&[79], 1, 79),
            (&[], 80, 0),
        ] {
            assert_eq!(height(widths, columns), rows, "{widths:?} {columns}");
        }
    }

    #[test]
    fn wide_characters_tabs_and_emoji_are_cut_where_the_terminal_ends() {
        for (text, shown) in [
            ("ab漢字漢字", "ab漢字…"),
            ("abcde漢字", "abcde…"),
            ("\tabcdef", "    ab…"),
            ("👩\u{200d}👩\u{200d}👧\u{200d}👦", "👩\u{200d}👩\u{200d}👧\u{200d}…"),
            ("☺\u{fe0f}☺\u{fe0f}☺\u{fe0f}☺\u{fe0f}", "☺\u{fe0f}☺\u{fe0f}☺\u{fe0f}…"),
            ("e\u{301}e\u{301}e\u{301}", "e\u{301}e\u{301}e\u{301}"),
        ] {
            assert_eq!(fitted(text, 7), shown);
            assert!(width(shown) <= 7, "{shown}");
        }
    }

    #[test]
    fn times_and_texts_are_as_long_as_there_is_room() {
        assert_eq!(seconds(Duration::from_secs(599)), "599.0 s");
        assert_eq!(seconds(Duration::from_secs(605)), "10 min 05 s");
        assert_eq!(fitted("漢字漢字", 6), "漢字…");
        assert_eq!(aligned("abcdef", "1 s", 8), "ab…  1 s");
    }
}
