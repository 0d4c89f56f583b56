//! Build checks: what is allowed, but probably a mistake.
//!
//! Here are those of how a file is written, which parsing makes, and what to say of all of them. Those of what it means are
//! made where it is interpreted: they depend on variables, on bases, and on what a stage stands on.

mod finding;
mod rule;

use std::collections::BTreeSet;

pub use finding::{Elsewhere, Finding, Majority, Warning};
pub use rule::Rule;

use super::lines::{Arguments, Statement};
use super::{Span, Stage, Text};

/// How keywords are cased, over the whole file.
#[derive(Default)]
pub(super) struct Casing {
    keywords: Vec<(Text, Span)>,
}

impl Casing {
    pub(super) fn add(&mut self, keyword: &Text, span: Span) {
        self.keywords.push((keyword.clone(), span));
    }

    /// Reports what differs from the majority; upper case wins a tie.
    pub(super) fn report(&self, warnings: &mut Vec<Warning>) {
        let count = |wanted: fn(&[u8]) -> bool| self.keywords.iter().filter(|(word, _)| wanted(word)).count();
        let lower = count(is_lower) > count(is_upper);
        let (fits, majority): (fn(&[u8]) -> bool, _) =
            if lower { (is_lower, Majority::Lower) } else { (is_upper, Majority::Upper) };
        for (keyword, span) in self.keywords.iter().filter(|(word, _)| !fits(word)) {
            let finding = Finding::ConsistentInstructionCasing { keyword: keyword.clone(), majority };
            warnings.push(Warning::new(*span, finding));
        }
    }
}

fn is_lower(word: &[u8]) -> bool {
    !word.iter().any(u8::is_ascii_uppercase)
}

fn is_upper(word: &[u8]) -> bool {
    !word.iter().any(u8::is_ascii_lowercase)
}

/// Checks how a statement is written, which its instruction does not tell any more.
pub(super) fn written(statement: &Statement, warnings: &mut Vec<Warning>) {
    if let Some(line) = statement.empty_continuation {
        warnings.push(Warning::new(Span::line(line), Finding::NoEmptyContinuation));
    }
    let keyword = &statement.keyword;
    if let Arguments::Text(maintainer) = &statement.arguments
        && keyword.eq_ignore_ascii_case(b"MAINTAINER")
        && !maintainer.is_empty()
    {
        let finding = Finding::MaintainerDeprecated { maintainer: maintainer.clone() };
        warnings.push(Warning::new(statement.span, finding));
    }
    let Arguments::Words(words) = &statement.arguments else { return };
    if keyword.eq_ignore_ascii_case(b"ARG") {
        let name = |word: &Text| Text::from(word.split(|&b| b == b'=').next().unwrap_or_default());
        let names: Vec<Text> = words.iter().map(name).collect();
        description(statement, "ARG", &names, warnings);
    }
    if !keyword.eq_ignore_ascii_case(b"FROM") {
        return;
    }
    let [_, as_word, name] = words.as_slice() else { return };
    if !is_lower(name) {
        warnings.push(Warning::new(statement.span, Finding::StageNameCasing { name: name.clone() }));
    }
    let matches = if is_lower(keyword) {
        is_lower(as_word)
    } else {
        // A keyword of mixed case is reported as such.
        !is_upper(keyword) || is_upper(as_word)
    };
    if !matches {
        let finding = Finding::FromAsCasing { from: keyword.clone(), written: as_word.clone() };
        warnings.push(Warning::new(statement.span, finding));
    }
    description(statement, "FROM", &[Text::from(name.to_ascii_lowercase())], warnings);
}

/// The comment right above ARG or FROM should begin with the name of what it describes.
fn description(statement: &Statement, keyword: &'static str, names: &[Text], warnings: &mut Vec<Warning>) {
    let (Some(comment), Some(first)) = (statement.comments.last(), names.first()) else { return };
    let word = comment.split(|&b| b == b' ').next().unwrap_or_default();
    if names.iter().any(|name| name.as_bytes() == word) {
        return;
    }
    let example = if names.len() > 1 { "<arg_key>".to_owned() } else { first.to_string() };
    let finding = Finding::InvalidDefinitionDescription { keyword, example };
    warnings.push(Warning::new(statement.span, finding));
}

/// Checks the names of all stages.
pub(super) fn stage_names(stages: &[Stage], warnings: &mut Vec<Warning>) {
    let mut seen = BTreeSet::new();
    for stage in stages {
        let Some(name) = &stage.name else { continue };
        let mut warn = |finding| warnings.push(Warning::new(stage.from.span, finding));
        if matches!(name.as_str(), "scratch" | "context") {
            warn(Finding::ReservedStageName { name: name.clone() });
        }
        if !seen.insert(name) {
            warn(Finding::DuplicateStageName { name: name.clone() });
        }
    }
}
