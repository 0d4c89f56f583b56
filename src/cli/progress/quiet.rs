//! Nothing, but what a step wrote that failed: without it, nobody would know why.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

use super::output::{Tail, Unfinished};
use super::tag;
use crate::build::progress::{Event, Progress};

/// Keeps the end of what steps write.
pub(in crate::cli) struct Quiet<W> {
    state: Mutex<State<W>>,
}

struct State<W> {
    out: W,
    unfinished: Unfinished,
    /// By stage.
    tails: BTreeMap<usize, Tail>,
}

impl<W: Write> Quiet<W> {
    pub(super) fn new(out: W) -> Self {
        Self { state: Mutex::new(State { out, unfinished: Unfinished::default(), tails: BTreeMap::new() }) }
    }
}

impl<W: Write + Send> Progress for Quiet<W> {
    fn tell(&self, event: &Event<'_>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State { out, unfinished, tails } = &mut *state;
        match event {
            Event::Output { place, stream, bytes } => {
                let tail = tails.entry(place.index).or_default();
                unfinished.lines(place, *stream, bytes).into_iter().for_each(|line| tail.push(line));
            }
            Event::OutputEnded { place } => {
                let tail = tails.entry(place.index).or_default();
                unfinished.rest(place).into_iter().for_each(|line| tail.push(line));
            }
            Event::Finished { place, .. } => {
                tails.remove(&place.index);
            }
            Event::Failed { place, .. } => {
                let tag = tag(place);
                for line in tails.remove(&place.index).unwrap_or_default().into_lines() {
                    // Nobody is left to tell when standard error is closed.
                    let _ = writeln!(out, "{tag} | {line}");
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::build::progress::Place;
    use crate::sandbox::Stream;

    #[test]
    fn what_a_step_wrote_is_shown_if_it_failed() {
        let quiet = Quiet::new(Vec::new());
        let place = |number| Place { stage: None, index: 0, number, total: 3 };
        let (first, second) = (&place(2), &place(3));
        let took = Duration::ZERO;
        for event in [
            Event::Started { place: first, instruction: "RUN a" },
            Event::Output { place: first, stream: Stream::Out, bytes: b"fine\n" },
            Event::OutputEnded { place: first },
            Event::Finished { place: first, elapsed: took, layer: None },
            Event::Started { place: second, instruction: "RUN b" },
            Event::Output { place: second, stream: Stream::Error, bytes: b"no such\nfi" },
            Event::Output { place: second, stream: Stream::Error, bytes: b"le" },
            Event::OutputEnded { place: second },
            Event::Failed { place: second, elapsed: took, error: "x" },
        ] {
            quiet.tell(&event);
        }
        let text = String::from_utf8(quiet.state.into_inner().unwrap().out).unwrap();
        assert_eq!(text, "[3/3] | no such\n[3/3] | file\n");
    }
}
