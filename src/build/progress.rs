//! What a build tells while it goes on.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::dockerfile::{self, Span};
use crate::image::platform::Platform;
use crate::sandbox::Stream;

/// Where in the build something happens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The stage's name, or `stage-N`, after its platform where there are several; absent where there is one stage for one
    /// platform.
    pub stage: Option<String>,
    /// Tells the stage from others: several may have one name.
    pub index: usize,
    /// The step's number within its stage, from 1; FROM is the first.
    pub number: usize,
    /// How many steps the stage has.
    pub total: usize,
}

/// Something to tell.
#[derive(Debug)]
pub enum Event<'a> {
    /// It is known what will be done.
    Planned {
        /// What the images will be for.
        platforms: &'a [&'a Platform],
        /// How many steps there are in all stages that are needed, FROM included.
        steps: usize,
    },
    /// A step begins; `instruction` is one line.
    Started {
        /// Where.
        place: &'a Place,
        /// The instruction, abbreviated.
        instruction: &'a str,
    },
    /// A step that changes nothing but the configuration, or a FROM: what there is to do of it is done with this. The
    /// files of a FROM may be brought later, or never.
    Applied {
        /// Where.
        place: &'a Place,
        /// The instruction, abbreviated.
        instruction: &'a str,
    },
    /// The files that a stage begins with, or has so far, are brought: for a step that comes. `Finished` follows for a FROM.
    Unpacking {
        /// Where: the FROM of the stage.
        place: &'a Place,
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
    /// A step has failed. Why is told in the end, with more than the sentence here.
    Failed {
        /// Where.
        place: &'a Place,
        /// How long it took.
        elapsed: Duration,
        /// One sentence.
        error: &'a str,
    },
    /// All is built, written and pushed.
    Complete {
        /// What the images are for.
        platforms: &'a [&'a Platform],
        /// How many steps there were, as [`Event::Planned`] has it.
        steps: usize,
        /// How long all of it took.
        elapsed: Duration,
    },
    /// Bytes are on their way; see [`Transfer`].
    Moving(Moving<'a>),
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

    /// Nothing will move any more: something else will be written to the same terminal now.
    fn end(&self) {}
}

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From a stored layer into files.
    Unpack,
    /// From a stored layer into one of another form.
    Convert,
    /// From a registry.
    Pull,
    /// To a registry.
    Push,
    /// From somewhere else.
    Fetch,
}

/// Bytes on their way, at one moment.
#[derive(Debug, Clone, Copy)]
pub struct Moving<'a> {
    /// Tells this transfer from others that go on.
    pub id: u64,
    /// Which way.
    pub way: Way,
    /// What is moved: a digest, or a URL without its secrets.
    pub name: &'a str,
    /// The image that it is a part of, or nothing; the form that a layer is converted to.
    pub image: &'a str,
    /// How many bytes have been moved.
    pub bytes: u64,
    /// How many there are, where that is known.
    pub total: Option<u64>,
    /// Whether that was all.
    pub state: Moved,
}

/// How far a transfer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moved {
    /// It goes on.
    Partly,
    /// All is there.
    Done,
    /// It has failed, or nobody wants it any more.
    GivenUp,
}

/// A transfer that is told of from its beginning, several times a second, to its end: with [`Transfer::done`], or given up
/// when it is dropped.
pub struct Transfer<'a> {
    progress: &'a dyn Progress,
    id: u64,
    way: Way,
    name: String,
    image: String,
    total: Option<u64>,
    bytes: AtomicU64,
    told: Mutex<Instant>,
    /// What it will have been when it is dropped.
    end: Moved,
}

/// How often a transfer is told of, at most.
const PAUSE: Duration = Duration::from_millis(100);

impl<'a> Transfer<'a> {
    /// Begins one; see [`Moving`] for what `name` and `image` are.
    #[must_use]
    pub fn begin(
        progress: &'a dyn Progress,
        way: Way,
        name: String,
        image: String,
        total: Option<u64>,
    ) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let bytes = AtomicU64::new(0);
        let told = Mutex::new(Instant::now());
        let transfer = Self { progress, id, way, name, image, total, bytes, told, end: Moved::GivenUp };
        transfer.tell(Moved::Partly);
        transfer
    }

    /// `bytes` more are there.
    pub fn add(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.tell_now_and_then();
    }

    /// `bytes` are there in all: of a transfer that began anew, fewer than before.
    pub fn set(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
        self.tell_now_and_then();
    }

    /// All is there.
    pub fn done(mut self) {
        self.end = Moved::Done;
    }

    fn tell_now_and_then(&self) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.elapsed() < PAUSE {
            return;
        }
        *told = Instant::now();
        drop(told);
        self.tell(Moved::Partly);
    }

    fn tell(&self, state: Moved) {
        self.progress.tell(&Event::Moving(Moving {
            id: self.id,
            way: self.way,
            name: &self.name,
            image: &self.image,
            bytes: self.bytes.load(Ordering::Relaxed),
            total: self.total,
            state,
        }));
    }
}

impl Drop for Transfer<'_> {
    fn drop(&mut self) {
        self.tell(self.end);
    }
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

    #[derive(Default)]
    struct Told(Mutex<Vec<(u64, Moved)>>);

    impl Progress for Told {
        fn tell(&self, event: &Event<'_>) {
            if let Event::Moving(moving) = event {
                self.0.lock().unwrap().push((moving.bytes, moving.state));
            }
        }
    }

    #[test]
    fn a_transfer_has_a_beginning_and_one_end_and_is_not_told_of_with_every_byte() {
        let told = Told::default();
        let begin = || Transfer::begin(&told, Way::Pull, "sha256:a".to_owned(), "x".to_owned(), Some(9));
        let transfer = begin();
        for _ in 0..9 {
            transfer.add(1);
        }
        transfer.done();
        drop(begin());
        let told = told.0.into_inner().unwrap();
        assert_eq!(told.first(), Some(&(0, Moved::Partly)));
        assert_eq!(told[told.len() - 3..], [(9, Moved::Done), (0, Moved::Partly), (0, Moved::GivenUp)]);
        assert!(told.len() < 9, "{told:?}");
    }

    #[test]
    fn sizes_have_three_digits_at_most() {
        for (bytes, text) in
            [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (99_960, "100 kB"), (2_345_678, "2.3 MB")]
        {
            assert_eq!(size(bytes), text);
        }
    }
}
