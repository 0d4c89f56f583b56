//! What programs write, as lines that can be shown.

use std::collections::{BTreeMap, VecDeque};

use crate::build::progress::Place;
use crate::sandbox::Stream;
use crate::text::is_deceptive;

/// The longest line of a RUN that is held back until it is complete, in bytes.
const LONGEST_LINE: usize = 8192;

/// The beginnings of lines that have not ended yet, by stage (one step of each is at work), and by stream.
#[derive(Default)]
pub(super) struct Unfinished(BTreeMap<usize, [Vec<u8>; 2]>);

impl Unfinished {
    /// The lines that are complete with `bytes`.
    pub(super) fn lines(&mut self, place: &Place, stream: Stream, bytes: &[u8]) -> Vec<String> {
        let [out, err] = self.0.entry(place.index).or_default();
        let held = match stream {
            Stream::Out => out,
            Stream::Error => err,
        };
        complete_lines(held, bytes).iter().map(|line| escaped(line)).collect()
    }

    /// What is left at the end of a step.
    pub(super) fn rest(&mut self, place: &Place) -> Vec<String> {
        let rest = self.0.remove(&place.index).unwrap_or_default();
        let rest = rest.into_iter().filter(|line| !line.is_empty());
        let rest = rest.map(|line| last_state([line, b"\n".to_vec()].concat()));
        rest.map(|line| escaped(&line)).collect()
    }

    /// How the last line of a step looks at the moment, if it has not ended.
    pub(super) fn present(&self, stage: usize) -> Option<String> {
        let [out, err] = self.0.get(&stage)?;
        let held = if out.is_empty() { err } else { out };
        (!held.is_empty()).then(|| escaped(&last_state([held, &b"\n"[..]].concat())))
    }
}

/// The last lines that a step has written.
#[derive(Default)]
pub(super) struct Tail {
    lines: VecDeque<String>,
    /// How long they are together, in bytes.
    bytes: usize,
    /// How many went before them.
    dropped: u64,
}

impl Tail {
    /// As many lines are kept.
    const LINES: usize = 50;
    /// In so many bytes.
    const BYTES: usize = 64 * 1024;

    pub(super) fn push(&mut self, line: String) {
        self.bytes += line.len();
        self.lines.push_back(line);
        while self.lines.len() > Self::LINES || (self.bytes > Self::BYTES && self.lines.len() > 1) {
            let Some(line) = self.lines.pop_front() else { return };
            self.bytes -= line.len();
            self.dropped += 1;
        }
    }

    /// The last `most` lines.
    pub(super) fn last(&self, most: usize) -> impl DoubleEndedIterator<Item = &str> {
        self.lines.iter().skip(self.lines.len().saturating_sub(most)).map(String::as_str)
    }

    /// All of them, and before them how many there were more.
    pub(super) fn into_lines(self) -> impl Iterator<Item = String> {
        let before = match self.dropped {
            0 => None,
            1 => Some("… 1 line before this".to_owned()),
            many => Some(format!("… {many} lines before this")),
        };
        before.into_iter().chain(self.lines)
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
pub(in crate::cli) fn escaped(bytes: &[u8]) -> String {
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

/// Removes what programs send to a terminal: colours, links, moves of the cursor (`ESC [ … x`, `ESC ] … BEL`).
pub(super) fn without_colours(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('\u{1b}') {
        out.push_str(&rest[..start]);
        rest = match behind_sequence(&rest[start..]) {
            Some(behind) => behind,
            None => {
                out.push('\u{1b}');
                &rest[start + 1..]
            }
        };
    }
    out.push_str(rest);
    out
}

/// What stands behind the sequence that `text` begins with, if that is one (ECMA-48).
fn behind_sequence(text: &str) -> Option<&str> {
    if let Some(control) = text.strip_prefix("\u{1b}[") {
        let end = control.find(|c: char| !('\u{20}'..='\u{3f}').contains(&c))?;
        return control[end..].strip_prefix(|c: char| ('\u{40}'..='\u{7e}').contains(&c));
    }
    let command = text.strip_prefix("\u{1b}]")?;
    let end = command.find(['\u{7}', '\u{1b}'])?;
    command[end..].strip_prefix('\u{7}').or_else(|| command[end..].strip_prefix("\u{1b}\\"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_cannot_steer_the_terminal() {
        for (bytes, shown) in [
            (&b"\x1b[31mred\x1b[0m \x1b]0;title\x07\ta\x00"[..], "red \ta\\u{0}"),
            (b"\x1b[K\x1b[01;35m\x1b[?25lwarning\x1b[2A", "warning"),
            (b"\x1b]8;;http://a\x1b\\link\x1b]8;;\x1b\\!", "link!"),
            (b"\x1b[3\x1b]0;no end", "\\u{1b}[3\\u{1b}]0;no end"),
            (b"\x1bc\x9b\xc2\x9b1m", "\\u{1b}c\u{fffd}\\u{9b}1m"),
        ] {
            assert_eq!(escaped(bytes), shown);
        }
    }

    #[test]
    fn a_line_without_end_is_shown_in_pieces() {
        let mut held = Vec::new();
        let lines = complete_lines(&mut held, &vec![b'x'; 3 * LONGEST_LINE + 1]);
        assert_eq!(lines.len(), 3);
        assert_eq!(held.len(), 1);
    }

    #[test]
    fn of_much_output_the_last_lines_are_kept() {
        let mut tail = Tail::default();
        for number in 0..1000 {
            tail.push(number.to_string());
        }
        assert_eq!(tail.last(2).collect::<Vec<_>>(), ["998", "999"]);
        let lines: Vec<String> = tail.into_lines().collect();
        assert_eq!(lines.len(), Tail::LINES + 1);
        assert_eq!(lines[..2], ["… 950 lines before this", "950"]);
        let mut tail = Tail::default();
        for _ in 0..100 {
            tail.push("x".repeat(LONGEST_LINE));
        }
        assert!(tail.bytes <= Tail::BYTES, "{}", tail.bytes);
    }
}
