//! What `--from` of COPY and `from` of a mount name: a stage, an image, or nothing at all.

use super::error::BuildErrorKind;
use crate::dockerfile::{Dockerfile, Instruction, MountOption, Text};

/// What a name stands for.
pub(super) enum Origin {
    /// `scratch`: no files.
    Scratch,
    /// A stage, by its number in the Dockerfile.
    Stage(usize),
    /// The name of an image.
    Image(String),
}

/// Who uses the name: a number is a stage for COPY only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reader {
    /// COPY.
    Copy,
    /// A mount of RUN.
    Mount,
}

/// A name as it is used.
#[derive(Debug, Clone, Copy)]
pub(super) struct Named<'a> {
    pub(super) reader: Reader,
    pub(super) name: &'a Text,
    /// Where a mount is to be, as written.
    pub(super) target: Option<&'a Text>,
}

impl Named<'_> {
    /// Whether it is this name, used so.
    pub(super) fn is(&self, reader: Reader, name: &Text) -> bool {
        self.reader == reader && self.name == name
    }
}

/// The stages and images whose files an instruction reads.
pub(super) fn named_by<'a>(instruction: &'a Instruction) -> Vec<Named<'a>> {
    match instruction {
        Instruction::Copy(transfer) => {
            let from = transfer.from.as_ref().filter(|from| !from.is_empty());
            from.map(|name| Named { reader: Reader::Copy, name, target: None }).into_iter().collect()
        }
        Instruction::Run(run) => {
            let named = |mount: &'a MountOption| {
                Some(Named { reader: Reader::Mount, name: mount.from()?, target: mount.target() })
            };
            run.mounts.iter().filter_map(named).collect()
        }
        _ => Vec::new(),
    }
}

/// The last stage called `name` among the first `before`.
pub(super) fn stage_named(file: &Dockerfile, name: &str, before: usize) -> Option<usize> {
    file.stages[..before].iter().rposition(|stage| stage.name.as_deref() == Some(name))
}

/// What stage `index` means by a name.
///
/// # Errors
/// When the name is that of the stage itself or of a later one, or has variables.
pub(super) fn origin(file: &Dockerfile, named: Named<'_>, index: usize) -> Result<Origin, BuildErrorKind> {
    let invalid = |message: String| Err(BuildErrorKind::Invalid(message));
    if named.reader == Reader::Copy && named.name.has_variables() {
        return invalid(
            "variable expansion is not supported for --from, define a new stage with FROM using ARG from global scope as a workaround"
                .to_owned(),
        );
    }
    let name = named.name.to_string();
    let lower = name.to_lowercase();
    let own = file.stages[index].name.clone().unwrap_or_else(|| format!("stage-{index}"));
    if named.reader == Reader::Copy
        && let Ok(number) = name.parse::<usize>()
    {
        return match number {
            number if number < index => Ok(Origin::Stage(number)),
            number if number == index => invalid(format!("circular dependency detected on stage: {own}")),
            number => invalid(format!("invalid stage index {number}")),
        };
    }
    if let Some(number) = stage_named(file, &lower, index) {
        return Ok(Origin::Stage(number));
    }
    if lower == own {
        return invalid(format!("circular dependency detected on stage: {own}"));
    }
    if stage_named(file, &lower, file.stages.len()).is_some() {
        return invalid(match named.reader {
            Reader::Copy => format!(
                "cannot copy from stage `{lower}`, it needs to be defined before current stage `{own}`"
            ),
            // BuildKit's words.
            Reader::Mount => format!(
                "cannot mount from stage \"{name}\" to \"{}\", stage needs to be defined before current command",
                named.target.map(Text::to_string).unwrap_or_default()
            ),
        });
    }
    Ok(if name == "scratch" { Origin::Scratch } else { Origin::Image(name) })
}
