//! What is looked at in every stage, needed or not: its FROM with everything expanded, and whether what it copies from can
//! be at all. As in BuildKit, a stage that is not built may fail or stand on an image that does not exist, but not say
//! what means nothing.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::checks::platform_of_from;
use super::error::{BuildError, BuildErrorKind};
use super::origin::{Reader, VARIABLES, named_by};
use super::scope::{Globals, resembling};
use crate::dockerfile::{Dockerfile, Escape, Finding, Span, Stage, Text, Warning, expand};
use crate::image::platform::{Platform, Requested};

/// A FROM with nothing left to expand.
#[derive(Debug, Clone)]
pub(super) struct Surveyed {
    /// What it names: a stage, an image, `scratch`; never empty.
    pub(super) name: String,
    /// `--platform`.
    pub(super) platform: Option<Arc<Platform>>,
}

/// Looks at all stages of `file`; `host` is what a platform without a system is read for.
///
/// # Errors
/// When a FROM cannot be expanded, names nothing, or names no platform; when COPY copies from a variable, or from a number
/// that no stage has.
pub(super) fn survey(
    file: &Dockerfile,
    globals: &Globals,
    host: &Platform,
    warnings: &mut BTreeSet<Warning>,
) -> Result<Vec<Surveyed>, BuildError> {
    let mut reader = FromReader { globals, escape: file.escape, warnings };
    let surveyed = file.stages.iter().map(|stage| reader.read(stage, host)).collect::<Result<_, _>>()?;
    for instruction in file.stages.iter().flat_map(|stage| &stage.instructions) {
        for named in named_by(&instruction.value) {
            if named.reader == Reader::Copy {
                check_name(named.name, file.stages.len()).map_err(|message| {
                    BuildError::at(Some(instruction.span), BuildErrorKind::Invalid(message))
                })?;
            }
        }
    }
    Ok(surveyed)
}

/// Whether `--from` of COPY names something that could be there.
fn check_name(name: &Text, stages: usize) -> Result<(), String> {
    if name.has_variables() {
        return Err(VARIABLES.to_owned());
    }
    match name.to_string_lossy().parse::<i64>() {
        Ok(number) if usize::try_from(number).is_ok_and(|number| number < stages) => Ok(()),
        Ok(number) => Err(format!("invalid stage index {number}")),
        Err(_) => Ok(()),
    }
}

struct FromReader<'a> {
    globals: &'a Globals,
    escape: Escape,
    warnings: &'a mut BTreeSet<Warning>,
}

impl FromReader<'_> {
    fn read(&mut self, stage: &Stage, host: &Platform) -> Result<Surveyed, BuildError> {
        let span = stage.from.span;
        let from = &stage.from.value;
        let invalid = |message| BuildError::at(Some(span), BuildErrorKind::Invalid(message));
        let (name, _) = self.expanded(span, &from.image)?;
        let name = name.to_string();
        if name.is_empty() {
            return Err(invalid(format!("base name ({}) should not be blank", from.image)));
        }
        let Some(written) = &from.platform else { return Ok(Surveyed { name, platform: None }) };
        let (text, variables) = self.expanded(span, written)?;
        let target = self.globals.lookup("TARGETPLATFORM").unwrap_or_default();
        let found = platform_of_from(written, &text, &variables, target, stage.name.as_deref(), host);
        self.warnings.extend(found.map(|finding| Warning::new(span, finding)));
        if text.is_empty() {
            return Err(invalid(format!("empty platform value from expression {written}")));
        }
        let requested = Requested::parse(&text.to_string_lossy(), host);
        let requested = requested.map_err(|error| BuildError::at(Some(span), error))?;
        Ok(Surveyed { name, platform: Some(Arc::new(requested.normalised)) })
    }

    /// Expands `text` and notes what is not declared. Gives the variables too whose values are in it, or were to be.
    fn expanded(&mut self, span: Span, text: &Text) -> Result<(Text, BTreeSet<String>), BuildError> {
        let variables = RefCell::new(BTreeSet::new());
        let lookup = |name: &str| {
            let value = self.globals.lookup(name)?;
            variables.borrow_mut().insert(name.to_owned());
            Some(Cow::Borrowed(value.as_bytes()))
        };
        let expanded =
            expand(text, self.escape, &lookup).map_err(|error| BuildError::at(Some(span), error))?;
        for name in expanded.undefined.iter().filter(|name| !self.globals.is_declared(name)) {
            let near = resembling(name, self.globals.names(), self.warnings.len()).map(str::to_owned);
            let finding = Finding::UndefinedArgInFrom { name: name.clone(), near };
            self.warnings.insert(Warning::new(span, finding));
        }
        let mut variables = variables.into_inner();
        variables.extend(expanded.undefined);
        Ok((expanded.text, variables))
    }
}
