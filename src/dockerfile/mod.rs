//! Dockerfile text to values: the whole language as BuildKit reads it, without input or output.
//!
//! [`parse()`] gives a [`Dockerfile`] whose instructions are as written. Nothing is expanded, since what a variable is
//! depends on the build; [`expand()`] and its kin do it, and [`parse_ports`], [`signal_number`], [`Mode::parse`] and
//! [`MountOption::resolve`] read what can be read only then. [`Warning`]s are of build checks: those that need no build are
//! made here.
//! Messages are BuildKit's where it has one, since people search for them.

mod check;
mod directive;
mod duration;
mod expand;
mod heredoc;
mod history;
mod instruction;
mod lines;
mod mode;
mod mount;
mod parse;
mod pattern;
mod ports;
mod print;
mod signal;
mod suggest;
mod text;
mod words;

#[cfg(test)]
mod corpus;

pub use check::{Elsewhere, Finding, Majority, Rule, Warning};
pub use directive::{CheckDirective, CheckDirectiveError, Violation, check_directive, detect_syntax};
pub use duration::{Duration, DurationError};
pub use expand::{
    ExpandError, ExpandErrorKind, Expanded, ExpandedWords, Lookup, MAX_DEPTH, MAX_EXPANSION, expand,
    expand_body, expand_words,
};
pub use heredoc::{Expansion, Heredoc, Tabs};
pub use instruction::{
    Assignments, Command, From, Health, HealthCheck, Instruction, Network, PairSyntax, Run, RunAction,
    Security, Source, Transfer, TransferKind,
};
pub use mode::{Mode, ModeError, ModeTarget, Symbolic};
pub use mount::{
    Access, BindMount, CacheMount, Device, Mount, MountError, MountOption, MountOwner, Need, SecretMount,
    Sharing, SshMount, TmpfsMount, parse_size,
};
pub use parse::{parse, parse_noting, parse_trigger, parse_within};
pub use ports::{HostPart, PortError, PortRange, Protocol, ProtocolCase, parse_ports};
pub use print::print;
pub use signal::{SignalError, signal_number};
pub use suggest::suggest;
pub use text::Text;
pub use words::{csv_fields, parse_bool};

/// Texts of the image history, in Go's formats.
pub mod created_by {
    pub use super::history::{
        assignments, expose, healthcheck, plain_list, quote, quoted_list, run, transfer,
    };
}

use std::collections::BTreeMap;

use crate::limit::Limit;

/// The largest Dockerfile that is read, in bytes: 4 MiB.
pub const SIZE_LIMIT: Limit = Limit::new("dockerfile-bytes", 4 << 20);

/// Lines of a file, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// The first line.
    pub first_line: usize,
    /// The last line, not before the first.
    pub last_line: usize,
}

impl Span {
    /// The lines `first` to `last`.
    #[must_use]
    pub const fn new(first: usize, last: usize) -> Self {
        Self { first_line: first, last_line: last }
    }

    /// One line.
    #[must_use]
    pub const fn line(line: usize) -> Self {
        Self::new(line, line)
    }
}

/// A value and where it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located<T> {
    /// The value.
    pub value: T,
    /// Its lines, with those of continuations and here-documents.
    pub span: Span,
    /// The line as written: continuations joined, comments and here-documents left out.
    pub text: Text,
}

/// The character that escapes others and continues lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Escape {
    /// `\`, the default.
    #[default]
    Backslash,
    /// `` ` ``, as Windows wants it.
    Backtick,
}

impl Escape {
    /// The character.
    #[must_use]
    pub const fn byte(self) -> u8 {
        match self {
            Self::Backslash => b'\\',
            Self::Backtick => b'`',
        }
    }
}

/// A parsed Dockerfile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dockerfile {
    /// `# escape=`
    pub escape: Escape,
    /// `# syntax=`: the first word is the image of a frontend, the whole its command line.
    pub syntax: Option<Located<String>>,
    /// `# check=`
    pub check: Option<CheckDirective>,
    /// The ARGs before the first FROM.
    pub global_args: Vec<Located<Instruction>>,
    /// The stages, at least one.
    pub stages: Vec<Stage>,
    /// What build checks say of how the file is written.
    pub warnings: Vec<Warning>,
    /// The numbers of the stages with each name, rising.
    named: BTreeMap<String, Vec<usize>>,
}

impl Dockerfile {
    /// The number of the last stage called `name` among the first `before`. In a file with very many stages each may ask,
    /// so no list is searched.
    #[must_use]
    pub fn stage_named(&self, name: &str, before: usize) -> Option<usize> {
        let numbers = self.named.get(name)?;
        numbers[..numbers.partition_point(|&number| number < before)].last().copied()
    }
}

/// A build stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    /// What it begins with.
    pub from: Located<From>,
    /// Its name in lower case, if it has one.
    pub name: Option<String>,
    /// Everything up to the next FROM.
    pub instructions: Vec<Located<Instruction>>,
}

/// Why a text is not a Dockerfile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ParseError {
    /// The lines that are wrong.
    pub span: Span,
    /// What is wrong, the suggestion included.
    pub message: String,
    /// The word that may have been meant.
    pub suggestion: Option<String>,
    /// What to do, where the message does not say it.
    pub hint: Option<String>,
}
