//! Progress for programs: a JSON object a line, as `docker buildx build --progress=rawjson` writes them (BuildKit's
//! `SolveStatus`): `vertexes` are steps, `logs` is what they write (base64), `statuses` are transfers, `warnings` are warnings.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::lines::{needed, verbs, waiting};
use super::{Verbosity, tag};
use crate::build::clock::{Clock, rfc3339};
use crate::build::progress::{Event, Moved, Moving, Place, Progress, Way};
use crate::dockerfile::{self, Span};
use crate::image::digest::Digest;
use crate::sandbox::Stream;
use crate::text::{SafeJson, without_credentials};

/// What stands for all that belongs to no step.
const OTHER: &str = "[internal] builder";

/// Writes events as JSON.
pub(in crate::cli) struct Json<W> {
    verbosity: Verbosity,
    state: Mutex<State<W>>,
}

struct State<W> {
    out: W,
    now: fn() -> String,
    /// The steps that have begun and not ended, by stage.
    open: BTreeMap<usize, Vertex>,
    /// The FROM of each stage: its files may be brought when steps behind it have ended.
    bases: BTreeMap<usize, Vertex>,
    /// When transfers began.
    moving: BTreeMap<u64, String>,
    /// What is for all that belongs to no step, once it has been told.
    other: Option<String>,
}

/// A step that was told of.
#[derive(Clone)]
struct Vertex {
    digest: String,
    name: String,
    started: String,
    number: usize,
}

impl Vertex {
    fn value(&self) -> Value {
        json!({"digest": self.digest, "name": self.name, "started": self.started})
    }

    /// At its end.
    fn completed(&self, now: &str) -> Value {
        let mut value = self.value();
        value["completed"] = now.into();
        value
    }
}

/// What BuildKit calls the digest of a vertex: it only has to tell it from others.
fn digest_of(text: &str) -> String {
    Digest::of(text.as_bytes()).to_string()
}

fn present() -> String {
    rfc3339(Clock::Machine.now())
}

impl<W: Write> Json<W> {
    pub(super) fn new(out: W, verbosity: Verbosity) -> Self {
        let (open, bases, moving) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let state = State { out, now: present, open, bases, moving, other: None };
        Self { verbosity, state: Mutex::new(state) }
    }
}

impl<W: Write> State<W> {
    fn write(&mut self, value: &Value) {
        // Nobody is left to tell when standard error is closed; the build goes on.
        let _ = writeln!(SafeJson(&mut self.out), "{value}");
    }

    /// Ends what is open of a stage, and gives the step at `place` that is called `instruction`.
    fn begin(&mut self, place: &Place, instruction: &str) -> (Vec<Value>, Vertex) {
        let now = (self.now)();
        let before = self.open.remove(&place.index).map(|vertex| vertex.completed(&now));
        let name = format!("{} {}", tag(place), without_credentials(instruction));
        let digest = digest_of(&format!("{} {} {name}", place.index, place.number));
        (before.into_iter().collect(), Vertex { digest, name, started: now, number: place.number })
    }

    /// The open step at `place`, or one that was not told of.
    fn at(&mut self, place: &Place) -> Vertex {
        match self.open.get(&place.index).filter(|vertex| vertex.number == place.number) {
            Some(vertex) => vertex.clone(),
            None => self.begin(place, "").1,
        }
    }

    /// What stands for the rest.
    fn other(&mut self) -> String {
        if let Some(digest) = &self.other {
            return digest.clone();
        }
        let (digest, now) = (digest_of(OTHER), (self.now)());
        self.write(
            &json!({"vertexes": [{"digest": digest, "name": OTHER, "started": now, "completed": now}]}),
        );
        self.other.insert(digest).clone()
    }

    fn log(&mut self, vertex: &str, stream: Stream, bytes: &[u8]) {
        let stream = match stream {
            Stream::Out => 1,
            Stream::Error => 2,
        };
        let now = (self.now)();
        let data = STANDARD.encode(bytes);
        self.write(&json!({"logs": [{"vertex": vertex, "stream": stream, "data": data, "timestamp": now}]}));
    }

    fn say(&mut self, text: &str) {
        let vertex = self.other();
        self.log(&vertex, Stream::Error, format!("{text}\n").as_bytes());
    }

    fn check(&mut self, warning: &dockerfile::Warning) {
        let mut about = json!({"detail": [STANDARD.encode(warning.instead())]});
        if let Some(url) = warning.rule().url() {
            about["url"] = url.into();
        }
        self.warn(warning.rule().name(), Some(warning.span), &warning.detail(), about);
    }

    /// A warning, in which `about` is more that is known of it.
    fn warn(&mut self, rule: &str, span: Option<Span>, detail: &str, about: Value) {
        let vertex = self.other();
        let short = STANDARD.encode(format!("{rule}: {}", without_credentials(detail)));
        let mut warning = about;
        warning["vertex"] = vertex.into();
        warning["level"] = 1.into();
        warning["short"] = short.into();
        if let Some(span) = span {
            let place = |line: usize| json!({"line": line});
            warning["range"] = json!([{"start": place(span.first_line), "end": place(span.last_line)}]);
        }
        self.write(&json!({"warnings": [warning]}));
    }

    fn transfer(&mut self, moving: &Moving<'_>) {
        let vertex = self.other();
        let now = (self.now)();
        let started = match moving.state {
            Moved::Partly => self.moving.entry(moving.id).or_insert_with(|| now.clone()).clone(),
            Moved::Done | Moved::GivenUp => self.moving.remove(&moving.id).unwrap_or_else(|| now.clone()),
        };
        let verb = match moving.way {
            Way::Push => "pushing",
            way => verbs(way).0,
        };
        let id = format!("{verb} {} {}", moving.image, without_credentials(moving.name));
        let mut status = json!({
            "id": id,
            "vertex": vertex,
            "name": without_credentials(moving.name),
            "current": moving.bytes,
            "timestamp": now,
            "started": started,
        });
        if let Some(total) = moving.total {
            status["total"] = total.into();
        }
        if moving.state == Moved::Done {
            status["completed"] = now.into();
        }
        self.write(&json!({"statuses": [status]}));
    }

    fn tell(&mut self, event: &Event<'_>) {
        match event {
            Event::Started { place, instruction } => {
                let (mut vertexes, vertex) = self.begin(place, instruction);
                vertexes.push(vertex.value());
                self.open.insert(place.index, vertex);
                self.write(&json!({"vertexes": vertexes}));
            }
            // It is open until it is known whether its files are needed.
            Event::Applied { place, instruction } if place.number == 1 && place.total > 1 => {
                let (mut vertexes, vertex) = self.begin(place, instruction);
                vertexes.push(vertex.value());
                self.bases.insert(place.index, vertex.clone());
                self.open.insert(place.index, vertex);
                self.write(&json!({"vertexes": vertexes}));
            }
            Event::Unpacking { place } => {
                let Some(base) = self.bases.get(&place.index) else { return };
                if self.open.get(&place.index).is_some_and(|vertex| vertex.number == base.number) {
                    return;
                }
                let vertex = Vertex { started: (self.now)(), ..base.clone() };
                let value = vertex.value();
                self.open.insert(place.index, vertex);
                self.write(&json!({"vertexes": [value]}));
            }
            Event::Applied { place, instruction } => {
                let (mut vertexes, vertex) = self.begin(place, instruction);
                vertexes.push(vertex.completed(&vertex.started));
                self.write(&json!({"vertexes": vertexes}));
            }
            Event::Found { place, instruction } => {
                let (mut vertexes, vertex) = self.begin(place, instruction);
                let mut value = vertex.completed(&vertex.started);
                value["cached"] = true.into();
                vertexes.push(value);
                self.write(&json!({"vertexes": vertexes}));
            }
            Event::Finished { place, .. } | Event::Failed { place, .. } => {
                let is_open = self.open.get(&place.index).is_some_and(|vertex| vertex.number == place.number);
                if !is_open {
                    return;
                }
                let Some(vertex) = self.open.remove(&place.index) else { return };
                let mut value = vertex.completed(&(self.now)());
                if let Event::Failed { error, .. } = event {
                    value["error"] = without_credentials(error).into();
                }
                self.write(&json!({"vertexes": [value]}));
            }
            Event::Output { place, stream, bytes } => {
                let vertex = self.at(place);
                self.log(&vertex.digest, *stream, bytes);
            }
            Event::Waiting { place } | Event::WaitingForCache { place, .. } => {
                let text = waiting(event).map(|(_, text)| text).unwrap_or_default();
                self.say(&format!("{} {text}", tag(place)));
            }
            Event::Warning { rule, span, detail } => self.warn(rule, *span, detail, json!({})),
            Event::Check(warning) => self.check(warning),
            Event::Note(text) | Event::Detail(text) => self.say(&without_credentials(text)),
            Event::Moving(moving) => self.transfer(moving),
            // BuildKit's clients see by themselves that all has ended.
            Event::Planned { .. } | Event::OutputEnded { .. } | Event::Complete { .. } => {}
        }
    }
}

impl<W: Write + Send> Progress for Json<W> {
    fn tell(&self, event: &Event<'_>) {
        if self.verbosity < needed(event) {
            return;
        }
        self.state.lock().unwrap_or_else(PoisonError::into_inner).tell(event);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_written_cannot_steer_a_terminal() {
        let json = Json::new(Vec::new(), Verbosity::Info);
        let place = Place { stage: None, index: 0, number: 1, total: 4 };
        json.tell(&Event::Applied { place: &place, instruction: "ENV a=\u{202e}\u{9b}1m\u{1b}[2J" });
        let text = String::from_utf8(json.state.into_inner().unwrap().out).unwrap();
        assert!(text.contains(r"ENV a=\u202e\u009b1m\u001b[2J"), "{text}");
    }

    #[test]
    fn events_are_what_buildkit_s_clients_read() {
        let json = Json::new(Vec::new(), Verbosity::Info);
        json.state.lock().unwrap().now = || "T".to_owned();
        let place = |number| Place { stage: None, index: 0, number, total: 4 };
        let [from, env, run, copy] = &[place(1), place(2), place(3), place(4)];
        let moving = |state| {
            let (name, image) = ("sha256:a", "x:1");
            Moving { id: 7, way: Way::Pull, name, image, bytes: 5, total: Some(10), state }
        };
        for event in [
            Event::Applied { place: from, instruction: "FROM x" },
            Event::Applied { place: env, instruction: "ENV a=b" },
            Event::Unpacking { place: from },
            Event::Moving(moving(Moved::Partly)),
            Event::Moving(moving(Moved::Done)),
            Event::Finished { place: from, elapsed: Duration::ZERO, layer: None },
            Event::Started { place: run, instruction: "RUN x" },
            Event::Output { place: run, stream: Stream::Error, bytes: b"\xff\n" },
            Event::OutputEnded { place: run },
            Event::Failed { place: run, elapsed: Duration::ZERO, error: "it did not" },
            Event::Found { place: copy, instruction: "COPY . ." },
            Event::Warning { rule: "R", span: Some(Span::new(2, 3)), detail: "d" },
        ] {
            json.tell(&event);
        }
        let text = String::from_utf8(json.state.into_inner().unwrap().out).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let [base, vertex] =
            [&lines[0], &lines[7]].map(|line| line["vertexes"][0]["digest"].as_str().unwrap());
        let other = &lines[3]["vertexes"][0]["digest"];
        let [begun, ended] = [
            json!({"digest": base, "name": "[1/4] FROM x", "started": "T"}),
            json!({"digest": base, "name": "[1/4] FROM x", "started": "T", "completed": "T"}),
        ];
        assert_eq!(lines[0]["vertexes"], json!([begun]));
        assert_eq!(lines[1]["vertexes"][0], ended);
        assert_eq!(lines[1]["vertexes"][1]["name"], "[2/4] ENV a=b");
        assert_eq!(lines[2]["vertexes"], json!([begun]), "its files are brought");
        let status = json!({"id": "fetching x:1 sha256:a", "vertex": other, "name": "sha256:a", "current": 5,
            "timestamp": "T", "started": "T", "total": 10});
        assert_eq!(lines[4]["statuses"][0], status);
        assert_eq!(lines[5]["statuses"][0]["completed"], "T");
        assert_eq!(lines[6]["vertexes"], json!([ended]));
        assert_eq!(lines[7]["vertexes"], json!([{"digest": vertex, "name": "[3/4] RUN x", "started": "T"}]));
        assert_eq!(
            lines[8],
            json!({"logs": [{"vertex": vertex, "stream": 2, "data": "/wo=", "timestamp": "T"}]})
        );
        assert_eq!(lines[9]["vertexes"][0]["error"], "it did not");
        assert_eq!(lines[9]["vertexes"][0]["digest"], *vertex);
        assert_eq!(lines[10]["vertexes"][0]["cached"], true);
        let range = json!([{"start": {"line": 2}, "end": {"line": 3}}]);
        assert_eq!(
            lines[11],
            json!({"warnings": [{"vertex": other, "level": 1, "short": "UjogZA==", "range": range}]})
        );
        assert_eq!(lines.len(), 12);
    }
}
