//! What git says of a failure: shown in one line, and, apart from that, what it means.

use std::process::ExitStatus;

use super::SHOWN_CHARACTERS;
use crate::text::{line, without_credentials};

/// How many lines are shown.
const SHOWN_LINES: usize = 6;

/// Why git failed, as far as that decides what is done next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// The server cannot give a commit without its history.
    Shallow,
    /// There was not enough memory.
    Memory,
    /// Anything else.
    Other,
}

/// What git's own words mean. What the server says decides nothing: `remote: ` stands in front of each line of it.
pub(super) fn cause(stderr: &[u8]) -> Cause {
    let text = String::from_utf8_lossy(stderr);
    let own = text
        .split(['\n', '\r'])
        .filter(|line| !line.starts_with("remote:") && !line.starts_with("fatal: remote error"));
    let mut cause = Cause::Other;
    for line in own {
        let line = line.to_ascii_lowercase();
        if line.contains("out of memory") || line.contains("cannot allocate memory") {
            return Cause::Memory;
        }
        if line.starts_with("fatal:") && (line.contains("shallow") || line.contains("--depth")) {
            cause = Cause::Shallow;
        }
    }
    cause
}

/// What git has to say, in one line and without secrets.
pub(super) fn complaint(stderr: &[u8], status: ExitStatus) -> String {
    let text = String::from_utf8_lossy(stderr);
    let lines: Vec<&str> = text
        .split(['\n', '\r'])
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("hint:") && !is_progress(line))
        .collect();
    let first = lines.len().saturating_sub(SHOWN_LINES);
    let shown: Vec<String> = lines[first..]
        .iter()
        .map(|text| line(without_credentials(text).as_bytes(), SHOWN_CHARACTERS))
        .collect();
    if shown.is_empty() { format!("it ended with {status}") } else { shown.join("; ") }
}

/// Whether `line` tells how far something is, as git writes it: `Receiving objects:  50% (1/2)`, `Enumerating objects: 3`.
fn is_progress(line: &str) -> bool {
    let line = line.strip_prefix("remote: ").unwrap_or(line);
    let Some((what, count)) = line.split_once(':') else { return line.starts_with("Total ") };
    let count = count.trim_start();
    let digits = count.trim_start_matches(|c: char| c.is_ascii_digit());
    let is_word = what.chars().all(|c| c.is_ascii_alphabetic() || c == ' ');
    is_word && digits.len() < count.len() && (digits.is_empty() || digits.starts_with(['%', ',']))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn a_complaint_is_one_line_without_passwords_control_characters_and_progress() {
        let status = ExitStatus::from_raw(128 << 8);
        let said = "remote: \u{1b}[31mno\nhint: try\nfatal: unable to access 'https://me:pw@h/x/': 403\n";
        assert_eq!(
            complaint(said.as_bytes(), status),
            "remote: \\u{1b}[31mno; fatal: unable to access 'https://xxxxx:xxxxx@h/x/': 403"
        );
        assert_eq!(complaint(b"\n", status), "it ended with exit status: 128");
        let many = "x\n".repeat(100);
        assert_eq!(complaint(many.as_bytes(), status), "x; x; x; x; x; x");
        let progress = "remote: Enumerating objects: 3, done.\nremote: Counting objects:  33% (1/3)\rremote: Counting \
                        objects: 100% (3/3), done.\nremote: Total 3 (delta 0)\nUnpacking objects: 12\rReceiving objects: \
                        100% (3/3), 1.00 KiB | 1.00 MiB/s, done.\nfatal: 404: no\n";
        assert_eq!(complaint(progress.as_bytes(), status), "fatal: 404: no");
    }

    #[test]
    fn only_git_s_own_words_decide_what_is_done_next() {
        let chatty = "remote: x\n".repeat(1000);
        for (said, expected) in [
            ("fatal: dumb http transport does not support shallow capabilities\n", Cause::Shallow),
            ("fatal: Server does not support shallow clients\n", Cause::Shallow),
            (&format!("fatal: Server does not support shallow requests\n{chatty}"), Cause::Shallow),
            ("remote: fatal: does not support shallow\nfatal: early EOF\n", Cause::Other),
            ("fatal: remote error: shallow --depth out of memory\n", Cause::Other),
            ("remote: Out of memory\n", Cause::Other),
            ("fatal: Out of memory, malloc failed (tried to allocate 5 bytes)\n", Cause::Memory),
            ("fatal: mmap failed: Cannot allocate memory\nfatal: index-pack failed\n", Cause::Memory),
            ("", Cause::Other),
        ] {
            assert_eq!(cause(said.as_bytes()), expected, "{said}");
        }
    }
}
