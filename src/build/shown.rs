//! Instructions as people are shown them.

use crate::dockerfile::{Command, Heredoc, Instruction, Located};
use crate::text::without_credentials;

/// At most this many characters of an instruction are shown.
const LONGEST_SHOWN: usize = 160;

/// An instruction of a Dockerfile for people. Of a RUN that is all here-document, with how that begins, as BuildKit has it.
pub(super) fn shown(located: &Located<Instruction>) -> String {
    let Some(first) = beginning_of_only_heredoc(&located.value) else { return one_line(&located.text) };
    let first = &first[..first.len().min(LONGEST_SHOWN)];
    one_line(&[&located.text, &b" ("[..], first, b"...)"].concat())
}

fn beginning_of_only_heredoc(instruction: &Instruction) -> Option<&[u8]> {
    let Instruction::Run(run) = instruction else { return None };
    let Command::Shell(command) = &run.command else { return None };
    let [heredoc] = &run.heredocs[..] else { return None };
    let mut lines = heredoc.body.split(|byte| *byte == b'\n');
    Heredoc::is_only(command).then(|| lines.find(|line| !line.trim_ascii().is_empty())).flatten()
}

/// An instruction for people: one line, not too long, without passwords.
pub(super) fn one_line(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    // Before it is cut: what is left of a URL then is none any more.
    let text = without_credentials(&text);
    let (mut line, mut length) = (String::new(), 0);
    for word in text.split_whitespace() {
        let blank = if line.is_empty() { "" } else { " " };
        for character in blank.chars().chain(word.chars()) {
            if length == LONGEST_SHOWN {
                line.push('…');
                return line;
            }
            line.push(character);
            length += 1;
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instruction_is_one_line_of_160_characters_at_most() {
        for (text, expected) in [
            (" RUN  a \t b\n", "RUN a b".to_owned()),
            (&"é".repeat(160), "é".repeat(160)),
            (&format!("{} ", "é".repeat(160)), "é".repeat(160)),
            (&"é".repeat(161), format!("{}…", "é".repeat(160))),
            (&format!("{} b", "a".repeat(159)), format!("{} …", "a".repeat(159))),
            (&format!("{} b", "a".repeat(160)), format!("{}…", "a".repeat(160))),
        ] {
            assert_eq!(one_line(text.as_bytes()), expected);
        }
    }
}
