//! How a failure is shown: what, where in the Dockerfile, why, and what to do.

use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;

use super::advice::Trouble;
use super::progress::{Colour, escaped};
use crate::dockerfile::Span;
use crate::text::without_credentials;

/// At most this many lines of an instruction are shown.
const EXCERPT_LINES: usize = 8;

/// At most this many characters of one of those lines are shown.
const LONGEST_LINE: usize = 200;

/// At most this many characters of a sentence are shown: names in it may be as long as files.
const LONGEST_SENTENCE: usize = 1200;

/// A sentence from wherever, fit to be shown.
pub(super) fn sentence(text: &str) -> String {
    shown(text.as_bytes(), LONGEST_SENTENCE)
}

/// `text` without the passwords of URLs, or its beginning. What is cut off may be what tells a password.
pub(super) fn shown(text: &[u8], most: usize) -> String {
    shortened(&without_credentials(&escaped(text)), most)
}

/// `text`, or its beginning.
fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The end of a command that did not succeed.
#[derive(Debug)]
pub(super) struct Failure {
    /// What went wrong, in one sentence.
    pub(super) message: String,
    /// Where in the Dockerfile.
    pub(super) excerpt: Option<Excerpt>,
    /// What was behind it, outermost first.
    pub(super) causes: Vec<String>,
    /// What is done nevertheless, and can be seen elsewhere.
    pub(super) done: Option<String>,
    /// What to do about it.
    pub(super) hint: Option<String>,
    /// The exit code of the process.
    pub(super) code: u8,
    /// The system's part in it.
    pub(super) trouble: Option<Trouble>,
}

/// Lines of a Dockerfile.
#[derive(Debug)]
pub(super) struct Excerpt {
    /// The file's name as the user gave it.
    pub(super) file: String,
    /// Which lines.
    pub(super) span: Span,
    /// Which character of the first line, from 1, where that is known.
    pub(super) column: Option<usize>,
    /// Their text.
    pub(super) lines: Vec<String>,
}

impl Excerpt {
    /// The lines `span` of `text`.
    pub(super) fn of(file: &str, text: &[u8], span: Span) -> Self {
        let count = (span.last_line + 1).saturating_sub(span.first_line).min(EXCERPT_LINES);
        let lines = text.split(|&byte| byte == b'\n').skip(span.first_line.saturating_sub(1)).take(count);
        let lines = lines.map(|line| shown(line.strip_suffix(b"\r").unwrap_or(line), LONGEST_LINE)).collect();
        Self { file: file.to_owned(), span, column: None, lines }
    }
}

impl Failure {
    /// A failure with nothing but a sentence; exit code 1.
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            excerpt: None,
            causes: Vec::new(),
            done: None,
            hint: None,
            code: 1,
            trouble: None,
        }
    }

    /// `error` with all its sources.
    pub(super) fn from_error(error: &(dyn Error + 'static)) -> Self {
        let mut failure = Self { trouble: Trouble::behind(error), ..Self::new(error.to_string()) };
        let mut source = error.source();
        while let Some(cause) = source {
            let text = cause.to_string();
            // Wrappers repeat what they wrap, perhaps with something behind it (`… (tried 5 times)`).
            if !failure.causes.last().unwrap_or(&failure.message).starts_with(&text) {
                failure.causes.push(text);
            }
            source = cause.source();
        }
        failure
    }

    /// Says which flag it is about.
    pub(super) fn of_flag(mut self, flag: &str) -> Self {
        self.message = format!("{flag}: {}", self.message);
        self
    }

    /// Says which image it is about, in front of what was behind it until now.
    pub(super) fn within(self, message: String) -> Self {
        let causes = std::iter::once(self.message).chain(self.causes).collect();
        Self { message, causes, ..self }
    }

    /// Adds what to do.
    pub(super) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds what to do about the system's part in it, unless something else was said. To be asked while the build's
    /// temporary files are there: they may be what the disk has no room for.
    pub(super) fn advised(mut self, store: &Path) -> Self {
        let advice = || self.trouble.as_ref().and_then(|trouble| trouble.advice(store));
        self.hint = self.hint.take().or_else(advice);
        self
    }

    /// What went wrong and why, in one line.
    pub(super) fn line(&self) -> String {
        std::iter::once(&self.message).chain(&self.causes).map(String::as_str).collect::<Vec<_>>().join(": ")
    }

    /// The text to show, several lines that end with a line feed.
    pub(super) fn render(&self, colour: Colour) -> String {
        let paint = |code: &str, text: &str| match colour {
            Colour::Yes => format!("\u{1b}[{code}m{text}\u{1b}[0m"),
            Colour::No => text.to_owned(),
        };
        let mut text = format!("{} {}\n", paint("1;31", "error:"), sentence(&self.message));
        if let Some(excerpt) = &self.excerpt {
            let width = excerpt.span.last_line.to_string().len();
            let _ = writeln!(
                text,
                "{:width$}{} {}:{}{}",
                "",
                paint("36", "-->"),
                sentence(&excerpt.file),
                excerpt.span.first_line,
                excerpt.column.map(|column| format!(":{column}")).unwrap_or_default()
            );
            for (offset, line) in excerpt.lines.iter().enumerate() {
                let number = excerpt.span.first_line + offset;
                let _ = writeln!(text, "{} {line}", paint("36", &format!("{number:>width$} |")));
            }
            let all = excerpt.span.last_line + 1 - excerpt.span.first_line;
            if all > excerpt.lines.len() {
                let _ = writeln!(
                    text,
                    "{:width$} {} {} more lines",
                    "",
                    paint("36", "…"),
                    all - excerpt.lines.len()
                );
            }
        }
        for cause in &self.causes {
            let _ = writeln!(text, "  caused by: {}", sentence(cause));
        }
        if let Some(done) = &self.done {
            let _ = writeln!(text, "{} {}", paint("1;33", "but:"), sentence(done));
        }
        if let Some(hint) = &self.hint {
            let _ = writeln!(text, "{} {}", paint("1;32", "hint:"), sentence(hint));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_shows_what_where_why_and_what_to_do() {
        let dockerfile = b"FROM scratch\nCOPY missing.txt /app/\n";
        let failure = Failure {
            excerpt: Some(Excerpt::of("Dockerfile", dockerfile, Span { first_line: 2, last_line: 2 })),
            causes: vec!["excluded by `.dockerignore` line 3: `*.txt`".to_owned()],
            done: Some("the image was pushed".to_owned()),
            ..Failure::new("COPY source `missing.txt` is not in the build context")
        };
        let failure = failure.hint("add `!missing.txt` to `.dockerignore`");
        assert_eq!(
            failure.render(Colour::No),
            "error: COPY source `missing.txt` is not in the build context\n \
             --> Dockerfile:2\n2 | COPY missing.txt /app/\n  \
             caused by: excluded by `.dockerignore` line 3: `*.txt`\nbut: the image was pushed\nhint: add `!missing.txt` to `.dockerignore`\n"
        );
    }

    #[test]
    fn the_name_of_a_file_cannot_steer_a_terminal() {
        let excerpt = Excerpt::of("D\u{9b}1m\u{202e}", b"x\n", Span { first_line: 1, last_line: 1 });
        let failure = Failure { excerpt: Some(excerpt), ..Failure::new("m") };
        assert!(failure.render(Colour::No).contains("--> D\\u{9b}1m\\u{202e}:1\n"));
    }

    #[test]
    fn a_long_instruction_is_cut() {
        let text = "x\n".repeat(30);
        let failure = Failure {
            excerpt: Some(Excerpt::of("D", text.as_bytes(), Span { first_line: 1, last_line: 20 })),
            ..Failure::new("m")
        };
        assert!(
            failure.render(Colour::No).ends_with("8 | x\n   … 12 more lines\n")
                || failure.render(Colour::No).contains("12 more lines")
        );
    }
}
