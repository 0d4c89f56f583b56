//! What the output of a step spoke of, by which a failure can be explained that the step does not explain itself.

use crate::sandbox::Stream;

/// What programs complain of that miss `/proc`: by its name, or by what leads there.
const OF_PROC: [&[u8]; 3] = [b"/proc", b"/dev/fd", b"/dev/std"];

/// What programs complain of that want to be, or to give something to, somebody who is not there.
const OF_OTHERS: [&[u8]; 9] = [
    b"invalid argument",
    b"operation not permitted",
    b"chown",
    b"chgrp",
    b"setgroups",
    b"initgroups",
    b"setgid",
    b"setuid",
    b"seteuid",
];

/// What shells and qemu say of a program with an instruction that the CPU does not know.
const OF_INSTRUCTIONS: [&[u8]; 1] = [b"illegal instruction"];

/// The length of the longest of them, in bytes.
const LONGEST: usize = 23;

/// What was spoken of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Clues {
    /// `/proc`, or what leads there.
    pub proc: bool,
    /// Other users.
    pub others: bool,
    /// An instruction that the CPU does not know.
    pub instruction: bool,
}

/// Looks at output as it passes. Of each stream the end is kept, as far as it may be the beginning of a word.
#[derive(Debug, Default)]
pub(super) struct Watch {
    ends: [Vec<u8>; 2],
    found: Clues,
}

impl Watch {
    /// Looks at the next `bytes` of `stream`.
    pub(super) fn pass(&mut self, stream: Stream, bytes: &[u8]) {
        if self.found == (Clues { proc: true, others: true, instruction: true }) {
            return;
        }
        let end = &mut self.ends[usize::from(stream == Stream::Error)];
        // What lies on both sides of the cut.
        end.extend_from_slice(&bytes[..bytes.len().min(LONGEST - 1)]);
        for part in [&end[..], bytes] {
            self.found.proc |= speaks_of(part, &OF_PROC);
            self.found.others |= speaks_of(part, &OF_OTHERS);
            self.found.instruction |= speaks_of(part, &OF_INSTRUCTIONS);
        }
        if bytes.len() >= LONGEST {
            end.clear();
            end.extend_from_slice(&bytes[bytes.len() - (LONGEST - 1)..]);
        } else {
            end.drain(..end.len().saturating_sub(LONGEST - 1));
        }
    }

    /// What has been found.
    pub(super) fn found(&self) -> Clues {
        self.found
    }
}

fn speaks_of(text: &[u8], words: &[&[u8]]) -> bool {
    let begins = |rest: &[u8]| {
        words.iter().any(|word| rest.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word)))
    };
    (0..text.len()).any(|start| begins(&text[start..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_word_is_as_long_as_it_is_said() {
        let all = OF_PROC.iter().chain(&OF_OTHERS).chain(&OF_INSTRUCTIONS);
        assert_eq!(all.map(|word| word.len()).max(), Some(LONGEST));
    }

    #[test]
    fn words_are_found_however_the_output_is_cut() {
        let nothing = Clues::default();
        let (proc, others) = (Clues { proc: true, ..nothing }, Clues { others: true, ..nothing });
        let filler = "x".repeat(100);
        for (text, clues) in [
            (format!("{filler} not found {filler}"), nothing),
            (format!("{filler} /proc/self: No such file {filler}"), proc),
            (format!("sh: can't open {filler} /dev/fd/63"), proc),
            ("cannot create /dev/stdout".to_owned(), proc),
            (format!("chmod: {filler} Operation not permitted{filler}"), others),
            (
                format!("{filler} signal 4 (Illegal instruction) - core"),
                Clues { instruction: true, ..nothing },
            ),
            ("process".to_owned(), nothing),
            ("/pro".to_owned(), nothing),
        ] {
            for size in 1..=text.len() {
                let mut watch = Watch::default();
                for chunk in text.as_bytes().chunks(size) {
                    watch.pass(Stream::Error, chunk);
                    watch.pass(Stream::Out, b"-");
                    assert!(watch.ends.iter().all(|end| end.len() < LONGEST));
                }
                assert_eq!(watch.found(), clues, "{text} in pieces of {size}");
            }
        }
    }
}
