//! What a build needs: which stages, on what they stand, and the images and contexts behind them.

use std::collections::{BTreeMap, BTreeSet};

use super::copy::Parents;
use super::error::{BuildError, BuildErrorKind};
use super::origin::{ImageName, Names, Origin, circle, named_by};
use super::plan::{Planner, one_line, shown};
use super::services::{Base, Wanted};
use super::stage_order::in_order;
use super::step::{Archives, CopyFrom, CopyStep, Exclude, Onto, PlannedStep, Row, Step, UsedContext};
use super::survey::Surveyed;
use crate::dockerfile::{self, Instruction, Located, Span, Text, TransferKind, Warning, suggest};
use crate::image::matching::Asked;
use crate::image::platform::Platform;
use crate::image::reference::Reference;
use crate::rootfs::GuestPath;

/// Triggers that one base may bring.
const MOST_TRIGGERS: usize = 10_000;

/// A stage that is needed, with everything that decides what it needs in turn.
pub(super) struct Needed {
    pub(super) base: NeededBase,
    pub(super) platform: Platform,
    /// Triggers of the base, then the stage's own instructions.
    pub(super) instructions: Vec<(Located<Instruction>, String)>,
}

/// What it stands on.
pub(super) enum NeededBase {
    Scratch,
    /// Number in the Dockerfile.
    Stage(usize),
    Image(Box<Base>),
    /// Position in [`super::step::Plan::contexts`].
    Files(usize),
}

/// What an image is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// A stage begins with it.
    Base,
    /// Files are taken from it.
    Files,
}

impl Planner<'_> {
    pub(super) fn names(&self) -> Names<'_> {
        Names { file: self.file, contexts: &self.request.contexts }
    }

    /// What `target` needs, each stage after those it needs itself. A context may stand for any stage, a later one too.
    pub(super) fn needed(&mut self, target: usize) -> Result<Vec<(usize, Needed)>, BuildError> {
        let mut open = BTreeSet::from([target]);
        let mut needed: BTreeMap<usize, Needed> = BTreeMap::new();
        let mut needs: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        while let Some(index) = open.pop_last() {
            let stage = self.stage(index)?;
            let mut others = BTreeSet::new();
            if let NeededBase::Stage(base) = stage.base {
                others.insert(base);
            }
            for (instruction, _) in &stage.instructions {
                for named in named_by(&instruction.value) {
                    let origin = self
                        .names()
                        .origin(named, index, &stage.platform)
                        .map_err(|kind| BuildError::at(Some(instruction.span), kind))?;
                    if let Origin::Stage(other) = origin {
                        others.insert(other);
                    }
                }
            }
            needed.insert(index, stage);
            open.extend(others.iter().filter(|other| !needed.contains_key(other)));
            needs.insert(index, others);
        }
        let order = in_order(&needs).map_err(|index| circle(self.file, index))?;
        Ok(order.into_iter().filter_map(|index| Some((index, needed.remove(&index)?))).collect())
    }

    fn stage(&mut self, index: usize) -> Result<Needed, BuildError> {
        let stage = &self.file.stages[index];
        let span = stage.from.span;
        let Surveyed { name, platform } = self.froms[index].clone();
        let (platform, asked) = match platform {
            Some(platform) => (platform, Asked::Explicitly),
            None => (self.request.platform.normalised.clone(), self.request.asked),
        };
        let at = |kind| BuildError::at(Some(span), kind);
        let instead = self.names().in_place_of(index, &platform).map_err(at)?;
        let is_replaced = instead.is_some();
        let origin = match instead {
            Some(origin) => origin,
            None => self.names().base(&name, index, &platform).map_err(at)?,
        };
        let base = match origin {
            Origin::Scratch => NeededBase::Scratch,
            Origin::Stage(base) => NeededBase::Stage(base),
            Origin::Files(number) => NeededBase::Files(self.used_context(number)),
            Origin::Image(name) => {
                NeededBase::Image(Box::new(self.resolve(span, &name, &platform, (asked, Role::Base))?))
            }
        };
        let instructions = if is_replaced {
            Vec::new()
        } else {
            let triggers = self.triggers(&base, span)?;
            let own = stage.instructions.iter().map(|located| (located.clone(), shown(located)));
            triggers.into_iter().chain(own).collect()
        };
        let platform = match &base {
            NeededBase::Image(base) => platform_of(base, platform),
            _ => platform,
        };
        Ok(Needed { base, platform, instructions })
    }

    /// The position in [`super::step::Plan::contexts`] of the context with this number.
    pub(super) fn used_context(&mut self, number: usize) -> usize {
        let known = self.contexts.iter().position(|used| used.number == number);
        known.unwrap_or_else(|| {
            let name = self.request.contexts.all()[number].name.clone();
            self.contexts.push(UsedContext { name, number });
            self.contexts.len() - 1
        })
    }

    fn resolve(
        &mut self,
        span: Span,
        name: &ImageName,
        platform: &Platform,
        (asked, role): (Asked, Role),
    ) -> Result<Base, BuildError> {
        let wanted = Wanted { platform: platform.clone(), asked, mode: self.request.mode };
        // Asked once: a tag that moves meanwhile must not give one build two bases.
        if let Some((_, _, base)) = self.resolved.iter().find(|(n, w, _)| n == name && *w == wanted) {
            return Ok(base.clone());
        }
        let (reference, base) = match name {
            ImageName::Registry(reference) => (reference, self.source.resolve(reference, &wanted)),
            ImageName::Layout(reference, layout) => {
                (reference, self.source.resolve_in_layout(layout, reference, &wanted))
            }
        };
        let base = base.map_err(|source| {
            let (reference, clue) = match name {
                ImageName::Registry(reference) => (reference.to_string(), self.clue(reference, role)),
                ImageName::Layout(reference, layout) => (
                    format!("oci-layout://{}", layout.path.display()),
                    format!(", for which `{}` stands", reference.familiar()),
                ),
            };
            BuildError::at(Some(span), BuildErrorKind::Image { reference, clue, source })
        })?;
        self.resolved.push((name.clone(), wanted, base.clone()));
        if let Some(found) = &base.foreign {
            let (found, wanted) = (found.to_string(), platform.to_string());
            self.warnings.push(Warning::invalid_base_image_platform(
                span,
                &reference.familiar(),
                &found,
                &wanted,
            ));
        }
        Ok(base)
    }

    /// What the Dockerfile says of an image that is not to be had: a stage may have been meant.
    fn clue(&self, image: &Reference, role: Role) -> String {
        let Some(name) = image.repository().strip_prefix("library/") else { return String::new() };
        let stages: Vec<&str> =
            self.file.stages.iter().take(1000).filter_map(|stage| stage.name.as_deref()).collect();
        if stages.contains(&name) {
            return format!(" (the stage `{name}` is defined only later)");
        }
        match (suggest(name, &stages), role) {
            (Some(near), _) => format!(" (did you mean the stage `{near}`?)"),
            (None, Role::Base) => String::new(),
            // Files are rarely taken from an image that has no more of a name.
            (None, Role::Files) => format!(" (no stage and no `--build-context` is called `{name}`)"),
        }
    }

    /// An image that a step reads from.
    pub(super) fn used_image(
        &mut self,
        span: Span,
        name: &ImageName,
        platform: &Platform,
    ) -> Result<CopyFrom, BuildError> {
        let base = self.resolve(span, name, platform, (self.request.asked, Role::Files))?;
        self.images.push(base);
        Ok(CopyFrom::Image(self.images.len() - 1))
    }

    /// ONBUILD instructions of the base, which run first. Those of a stage of this file are its own alone: what it had
    /// from its base has run in it.
    fn triggers(
        &self,
        base: &NeededBase,
        from: Span,
    ) -> Result<Vec<(Located<Instruction>, String)>, BuildError> {
        let texts: Vec<(Vec<u8>, Span)> = match base {
            NeededBase::Scratch | NeededBase::Files(_) => Vec::new(),
            NeededBase::Image(base) => {
                base.config().config.on_build.iter().map(|text| (text.clone().into_bytes(), from)).collect()
            }
            NeededBase::Stage(index) => self.file.stages[*index]
                .instructions
                .iter()
                .filter_map(|located| match &located.value {
                    Instruction::Onbuild(text) => Some((text.as_bytes().to_vec(), located.span)),
                    _ => None,
                })
                .collect(),
        };
        if texts.len() > MOST_TRIGGERS {
            let message =
                format!("base image has {} ONBUILD triggers, at most {MOST_TRIGGERS} are run", texts.len());
            return Err(BuildError::at(Some(from), BuildErrorKind::Invalid(message)));
        }
        let parse = |(text, span): (Vec<u8>, Span)| {
            let trigger = dockerfile::parse_trigger(&text).map_err(|error| {
                let message = format!(
                    "ONBUILD trigger `{}` of the base image: {error}",
                    String::from_utf8_lossy(&text)
                );
                BuildError::at(Some(span), BuildErrorKind::Invalid(message))
            })?;
            let shown = one_line(&text);
            Ok((Located { span, ..trigger }, format!("ONBUILD {shown}")))
        };
        texts.into_iter().map(parse).collect()
    }
}

/// What the base is really for: its config knows better than what was wished.
fn platform_of(base: &Base, wanted: Platform) -> Platform {
    let config = base.config();
    if config.os.is_empty() || config.architecture.is_empty() {
        return wanted;
    }
    let found = Platform::from(config).normalise();
    // A config without variant says nothing about it: what was wanted holds.
    if found.same_machine(&wanted) && config.variant.is_none() { wanted } else { found }
}

/// The first step of a stage that stands on the files of a context. Its row says what BuildKit's does.
pub(super) fn files_of_context(position: usize, name: &str, span: Span) -> PlannedStep {
    let step = CopyStep {
        kind: TransferKind::Copy,
        archives: Archives::Keep,
        from: CopyFrom::Named(position),
        sources: vec![Text::from(".")],
        remotes: Vec::new(),
        inline: Vec::new(),
        destination: Text::from("/"),
        workdir: GuestPath::root(),
        chown: None,
        chmod: None,
        exclude: Exclude::default(),
        parents: Parents::Dropped,
        onto: Onto::Stage,
    };
    PlannedStep {
        span,
        instruction: format!("the files of the build context `{name}`"),
        created_by: Some(format!("local source for {name}")),
        row: Row::Base,
        step: Step::Copy(step),
    }
}
