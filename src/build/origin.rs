//! What FROM, `--from` of COPY and `from` of a mount name: a context, a stage, an image, or nothing at all.

use std::collections::{BTreeMap, BTreeSet};

use super::error::{BuildError, BuildErrorKind};
use super::named_contexts::{ContextValue, LayoutImageName, NamedContexts};
use super::stage_order::in_order;
use crate::dockerfile::{Dockerfile, Instruction, Located, MountOption, Text};
use crate::image::platform::Platform;
use crate::image::reference::Reference;

/// BuildKit's words.
pub(super) const VARIABLES: &str = "variable expansion is not supported for --from, define a new stage with FROM using ARG from \
                         global scope as a workaround";

/// What a name stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    /// `scratch`: no files.
    Scratch,
    /// A stage, by its number in the Dockerfile.
    Stage(usize),
    /// An image.
    Image(Box<ImageName>),
    /// The files of a named context, by its number.
    Files(usize),
}

/// An image that is asked for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
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
            ContextValue::Image(reference) => Origin::Image(Box::new(ImageName::Registry(reference.clone()))),
            ContextValue::Layout(layout) => {
                Origin::Image(Box::new(ImageName::Layout(context.reference().clone(), layout.clone())))
            }
            ContextValue::Stage(stage) => {
                let stages = &self.file.stages;
                let number = self.file.stage_named(&stage.to_lowercase(), stages.len());
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
        match self.file.stage_named(name, index) {
            Some(base) => Ok(Origin::Stage(base)),
            None => image(name).map_err(|kind| self.no_image(name, kind)),
        }
    }

    /// What is wrong with a name that is neither a stage nor an image. Docker keeps the names of stages in lower case, and
    /// compares with what FROM says as it is written.
    fn no_image(&self, name: &str, kind: BuildErrorKind) -> BuildErrorKind {
        let lower = name.to_lowercase();
        if lower == name || self.file.stage_named(&lower, self.file.stages.len()).is_none() {
            return kind;
        }
        BuildErrorKind::Invalid(format!("{kind}; the stage is called `{lower}`, write it like that"))
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
            return invalid(VARIABLES.to_owned());
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
        if let Some(number) = file.stage_named(&lower, index) {
            return Ok(Origin::Stage(number));
        }
        if lower == own {
            return invalid(format!("circular dependency detected on stage: {own}"));
        }
        if file.stage_named(&lower, file.stages.len()).is_some() {
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
        image(&name)
    }
}

/// Checks that no stage needs itself, be it needed or not. `bases` is what their FROM names.
///
/// # Errors
/// [`BuildErrorKind::Invalid`] with the lines.
pub(super) fn check_circles<'n>(
    names: Names<'_>,
    bases: impl Iterator<Item = &'n str>,
    platform: &Platform,
) -> Result<(), BuildError> {
    let Names { file, contexts } = names;
    let mut needs: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    for (index, (stage, base)) in file.stages.iter().zip(bases).enumerate() {
        let named = stage.instructions.iter().flat_map(|located| named_by(&located.value));
        let read = named.filter_map(|named| reference(file, named, index));
        let others = file.stage_named(base, index).into_iter().chain(read).collect();
        let is_replaced = stage.name.as_ref().is_some_and(|name| contexts.find(name, platform).is_some());
        needs.insert(index, if is_replaced { BTreeSet::new() } else { others });
    }
    in_order(&needs).map(|_| ()).map_err(|index| circle(file, index))
}

/// The stage that a name means in stage `index`, wherever it is; none for an image.
fn reference(file: &Dockerfile, named: Named<'_>, index: usize) -> Option<usize> {
    let (name, count) = (named.name.to_string(), file.stages.len());
    if named.reader == Reader::Copy
        && let Ok(number) = name.parse::<usize>()
    {
        return Some(number).filter(|number| *number < count);
    }
    let lower = name.to_lowercase();
    file.stage_named(&lower, index).or_else(|| file.stage_named(&lower, count))
}

/// Stage `index` needs itself, directly or through others: the line that says so, or else its FROM.
pub(super) fn circle(file: &Dockerfile, index: usize) -> BuildError {
    let stage = &file.stages[index];
    let name = stage.name.clone().unwrap_or_else(|| format!("stage-{index}"));
    let names_itself = |located: &&Located<Instruction>| {
        named_by(&located.value).into_iter().any(|named| reference(file, named, index) == Some(index))
    };
    let span = stage.instructions.iter().find(names_itself).map_or(stage.from.span, |located| located.span);
    let message = format!("circular dependency detected on stage: {name}");
    BuildError::at(Some(span), BuildErrorKind::Invalid(message))
}

/// The image called `name`, or none.
fn image(name: &str) -> Result<Origin, BuildErrorKind> {
    if name == "scratch" {
        Ok(Origin::Scratch)
    } else {
        Ok(Origin::Image(Box::new(ImageName::Registry(name.parse()?))))
    }
}

/// The names of the stages, for a message.
pub(super) fn available(file: &Dockerfile) -> String {
    let names = file.stages.iter().filter_map(|stage| stage.name.as_ref());
    let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    if names.is_empty() { "no named stage".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dockerfile::parse;

    fn checked(dockerfile: &str, contexts: &[&str]) -> Result<(), (usize, String)> {
        let host = Platform::new("linux", "amd64", None);
        let mut known = NamedContexts::default();
        for name in contexts {
            known.add(name, ContextValue::Files, &host).unwrap();
        }
        let file = parse(dockerfile.as_bytes()).unwrap();
        let bases: Vec<String> = file.stages.iter().map(|stage| stage.from.value.image.to_string()).collect();
        let names = Names { file: &file, contexts: &known };
        check_circles(names, bases.iter().map(String::as_str), &host)
            .map_err(|error| (error.span.unwrap().first_line, error.to_string()))
    }

    #[test]
    fn circles_are_told_in_every_stage() {
        for (dockerfile, line, stage) in [
            ("FROM a\nENV a=b\nCOPY --from=0 a b\nFROM b\n", 3, "stage-0"),
            ("FROM a AS x\nRUN --mount=from=X,target=/m y\nFROM b\n", 2, "x"),
            ("FROM a AS x\nCOPY --from=y a b\nFROM x AS y\nFROM b\n", 1, "x"),
        ] {
            let expected = format!("circular dependency detected on stage: {stage}");
            assert_eq!(checked(dockerfile, &[]), Err((line, expected)), "{dockerfile}");
        }
        for dockerfile in [
            "FROM a\nCOPY --from=later a b\nFROM b AS later\n",
            "FROM a\nCOPY --from=1 a b\nFROM b\n",
            "FROM a\nRUN --mount=from=0,target=/m x\n",
            "FROM a AS x\nFROM b AS x\nCOPY --from=x a b\n",
        ] {
            assert_eq!(checked(dockerfile, &[]), Ok(()), "{dockerfile}");
        }
        let circle = "FROM a AS x\nCOPY --from=y a b\nFROM x AS y\n";
        assert!(checked(circle, &[]).is_err() && checked(circle, &["y"]).is_ok());
    }
}
