//! What a build tells while it goes on.

use std::time::Duration;

use crate::dockerfile::{self, Span};
use crate::sandbox::Stream;

/// Where in the build something happens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The stage's name, or `stage-N`; absent where the Dockerfile has only one.
    pub stage: Option<String>,
    /// The stage's number in the Dockerfile: several may have one name.
    pub index: usize,
    /// The step's number within its stage, from 1; FROM is the first.
    pub number: usize,
    /// How many steps the stage has.
    pub total: usize,
}

/// Something to tell.
#[derive(Debug)]
pub enum Event<'a> {
    /// A step begins; `instruction` is one line.
    Started {
        /// Where.
        place: &'a Place,
        /// The instruction, abbreviated.
        instruction: &'a str,
    },
    /// A step need not be done: its result is remembered.
    Found {
        /// Where.
        place: &'a Place,
        /// The instruction, abbreviated.
        instruction: &'a str,
    },
    /// Another build does the step that comes next; its result will do.
    Waiting {
        /// Where.
        place: &'a Place,
    },
    /// Another step, of this build or another one, uses a cache that a step wants alone, or the other way round.
    WaitingForCache {
        /// Where.
        place: &'a Place,
        /// Which cache.
        id: &'a str,
    },
    /// What a RUN writes, as it comes: any bytes, not whole lines.
    Output {
        /// Where.
        place: &'a Place,
        /// From which of its streams: lines of one are not to be mixed with those of the other.
        stream: Stream,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// A RUN has written its last, whether it ended well or not.
    OutputEnded {
        /// Where.
        place: &'a Place,
    },
    /// A step has ended well.
    Finished {
        /// Where.
        place: &'a Place,
        /// How long it took.
        elapsed: Duration,
        /// Size of the stored layer in bytes, if the step made one.
        layer: Option<u64>,
    },
    /// A step has failed. Why is told in the end.
    Failed {
        /// Where.
        place: &'a Place,
        /// How long it took.
        elapsed: Duration,
    },
    /// Something that the user should change.
    Warning {
        /// The build check's name, or what the warning is about.
        rule: &'a str,
        /// Lines of the Dockerfile.
        span: Option<Span>,
        /// One sentence.
        detail: &'a str,
    },
    /// A build check that the Dockerfile does not pass.
    Check(&'a dockerfile::Warning),
    /// Something that the user will want to know.
    Note(&'a str),
    /// Something for whoever looks for a fault.
    Detail(&'a str),
}

/// Who is told. Called from several threads.
pub trait Progress: Sync {
    /// Tells one event.
    fn tell(&self, event: &Event<'_>);
}

/// Bytes for a human: three digits and a unit.
#[must_use]
pub fn size(bytes: u64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB"];
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = if unit == 0 || value >= 99.95 { 0 } else { 1 };
    format!("{value:.digits$} {}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_three_digits_at_most() {
        for (bytes, text) in
            [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (99_960, "100 kB"), (2_345_678, "2.3 MB")]
        {
            assert_eq!(size(bytes), text);
        }
    }
}
