//! What FROM, `--from` of COPY and `from` of a mount name: a context, a stage, an image, or nothing at all.

use super::error::BuildErrorKind;
use super::named_contexts::{ContextValue, LayoutImageName, NamedContexts};
use crate::dockerfile::{Dockerfile, Instruction, Text};
use crate::image::platform::Platform;
use crate::image::reference::Reference;

/// What a name stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    /// `scratch`: no files.
    Scratch,
    /// A stage, by its number in the Dockerfile.
    Stage(usize),
    /// An image.
    Image(ImageName),
    /// The files of a named context, by its number.
    Files(usize),
}

/// An image that is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ImageName {
    /// One of a registry.
    Registry(Reference),
    /// One of an OCI layout: its name in the Dockerfile, and its place.
    Layout(Reference, LayoutImageName),
}

/// Where names are looked up.
#[derive(Clone, Copy)]
pub(super) struct Names<'a> {
    pub(super) file: &'a Dockerfile,
    pub(super) contexts: &'a NamedContexts,
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Named<'a> {
    pub(super) reader: Reader,
    pub(super) name: &'a Text,
}

/// The stages and images whose files an instruction reads.
pub(super) fn named_by(instruction: &Instruction) -> Vec<Named<'_>> {
    match instruction {
        Instruction::Copy(transfer) => {
            let from = transfer.from.as_ref().filter(|from| !from.is_empty());
            from.map(|name| Named { reader: Reader::Copy, name }).into_iter().collect()
        }
        Instruction::Run(run) => {
            let names = run.mounts.iter().filter_map(|mount| mount.from());
            names.map(|name| Named { reader: Reader::Mount, name }).collect()
        }
        _ => Vec::new(),
    }
}

/// The last stage called `name` among the first `before`.
pub(super) fn stage_named(file: &Dockerfile, name: &str, before: usize) -> Option<usize> {
    file.stages[..before].iter().rposition(|stage| stage.name.as_deref() == Some(name))
}

impl Names<'_> {
    /// The named context that `name` means for `platform`: it comes before any stage and image of that name.
    ///
    /// # Errors
    /// When it stands for a stage that is not there.
    pub(super) fn context(&self, name: &str, platform: &Platform) -> Result<Option<Origin>, BuildErrorKind> {
        self.contexts.find(name, platform).map(|number| self.of_context(number)).transpose()
    }

    fn of_context(&self, number: usize) -> Result<Origin, BuildErrorKind> {
        let context = &self.contexts.all()[number];
        Ok(match &context.value {
            ContextValue::Files => Origin::Files(number),
            ContextValue::Scratch => Origin::Scratch,
            ContextValue::Image(reference) => Origin::Image(ImageName::Registry(reference.clone())),
            ContextValue::Layout(layout) => {
                Origin::Image(ImageName::Layout(context.reference().clone(), layout.clone()))
            }
            ContextValue::Stage(stage) => {
                let stages = &self.file.stages;
                let number = stage_named(self.file, &stage.to_lowercase(), stages.len());
                Origin::Stage(number.ok_or_else(|| {
                    let name = context.name.clone();
                    let available = available(self.file);
                    BuildErrorKind::ContextStage { name, stage: stage.clone(), available }
                })?)
            }
        })
    }

    /// The context that takes the place of stage `index` and all its instructions: one with the stage's name.
    ///
    /// # Errors
    /// When it stands for a stage that is not there.
    pub(super) fn in_place_of(
        &self,
        index: usize,
        platform: &Platform,
    ) -> Result<Option<Origin>, BuildErrorKind> {
        match &self.file.stages[index].name {
            Some(name) => self.context(name, platform),
            None => Ok(None),
        }
    }

    /// What FROM of stage `index` means by `name`.
    ///
    /// # Errors
    /// When it is no name of an image, or that of a context for a stage that is not there.
    pub(super) fn base(
        &self,
        name: &str,
        index: usize,
        platform: &Platform,
    ) -> Result<Origin, BuildErrorKind> {
        if let Some(origin) = self.context(name, platform)? {
            return Ok(origin);
        }
        // Stages have lower-case names; as in BuildKit, `FROM Build` is not `build`.
        match stage_named(self.file, name, index) {
            Some(base) => Ok(Origin::Stage(base)),
            None => image(name),
        }
    }

    /// What stage `index`, whose files are for `platform`, means by a name.
    ///
    /// # Errors
    /// When the name is that of the stage itself or of a later one, or has variables.
    pub(super) fn origin(
        &self,
        named: Named<'_>,
        index: usize,
        platform: &Platform,
    ) -> Result<Origin, BuildErrorKind> {
        let file = self.file;
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
                number if number < index => {
                    Ok(self.in_place_of(number, platform)?.unwrap_or(Origin::Stage(number)))
                }
                number if number == index => invalid(format!("circular dependency detected on stage: {own}")),
                number => invalid(format!("invalid stage index {number}")),
            };
        }
        if let Some(origin) = self.context(&lower, platform)? {
            return Ok(origin);
        }
        if let Some(number) = stage_named(file, &lower, index) {
            return Ok(Origin::Stage(number));
        }
        if lower == own {
            return invalid(format!("circular dependency detected on stage: {own}"));
        }
        if stage_named(file, &lower, file.stages.len()).is_some() {
            let act = match named.reader {
                Reader::Copy => "copy",
                Reader::Mount => "mount",
            };
            return invalid(format!(
                "cannot {act} from stage `{lower}`, it needs to be defined before current stage `{own}`"
            ));
        }
        image(&name)
    }
}

/// The image called `name`, or none.
fn image(name: &str) -> Result<Origin, BuildErrorKind> {
    if name == "scratch" {
        Ok(Origin::Scratch)
    } else {
        Ok(Origin::Image(ImageName::Registry(name.parse()?)))
    }
}

/// The names of the stages, for a message.
pub(super) fn available(file: &Dockerfile) -> String {
    let names = file.stages.iter().filter_map(|stage| stage.name.as_ref());
    let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    if names.is_empty() { "no named stage".to_owned() } else { names.join(", ") }
}
