//! What a build needs: which stages, on what they stand, and the images and contexts behind them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::checks::{Bases, UnknownBase};
use super::copy::Parents;
use super::error::{BuildError, BuildErrorKind};
use super::interpret::Inherited;
use super::origin::{ImageName, Names, Origin, Reader, circle, named_by};
use super::plan::Planner;
use super::services::{Base, Wanted};
use super::shown::one_line;
use super::stage_order::in_order;
use super::step::{Archives, CopyFrom, CopyStep, Exclude, Onto, PlannedStep, Row, Step, UsedContext};
use super::survey::Surveyed;
use crate::dockerfile::{self, Finding, Instruction, Located, Span, Text, TransferKind, Warning, suggest};
use crate::image::matching::Asked;
use crate::image::platform::Platform;
use crate::image::reference::Reference;
use crate::rootfs::GuestPath;
use crate::text::chained;

/// Triggers that one base may bring.
const MOST_TRIGGERS: usize = 10_000;

/// A stage that is needed, with everything that decides what it needs in turn.
pub(super) struct Needed<'a> {
    pub(super) base: NeededBase,
    /// What its files are for.
    pub(super) platform: Arc<Platform>,
    /// What it is built for: the same or another variant.
    pub(super) wanted: Arc<Platform>,
    /// Those of the base, which come before its own instructions.
    pub(super) triggers: Arc<[Trigger]>,
    /// The stage's own instructions.
    pub(super) own: &'a [Located<Instruction>],
    /// What the instructions read from, each once, in the order in which it is first named.
    pub(super) reads: Vec<Read>,
}

/// What it stands on.
#[derive(Clone, Copy)]
pub(super) enum NeededBase {
    Scratch,
    /// Number in the Dockerfile.
    Stage(usize),
    /// Position in [`Planner::resolved`].
    Image(usize),
    /// Position in [`super::step::Plan::contexts`].
    Files(usize),
    /// An image that nobody could be asked for.
    Unknown,
}

/// An instruction of ONBUILD.
#[derive(Debug)]
pub(super) struct Trigger {
    pub(super) instruction: Instruction,
    /// Its lines; an image has none.
    pub(super) span: Option<Span>,
    /// For people.
    pub(super) shown: String,
}

/// What instructions of a stage read from.
pub(super) struct Read {
    pub(super) reader: Reader,
    pub(super) name: Text,
    /// The first instruction that names it.
    pub(super) span: Span,
    pub(super) origin: Origin,
}

/// An image that was asked for, and what stages on it have found out of it. There may be as many stages on it as a
/// Dockerfile has lines.
pub(super) struct Resolved {
    pub(super) base: Arc<Base>,
    pub(super) inherited: Option<Inherited>,
    triggers: Option<Arc<[Trigger]>>,
    /// Its position in [`super::step::Plan::images`], if steps read from it.
    used: Option<usize>,
}

/// What an image is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// A stage begins with it.
    Base,
    /// Files are taken from it.
    Files,
}

impl<'a> Planner<'a> {
    pub(super) fn names(&self) -> Names<'a> {
        Names { file: self.file, contexts: &self.request.contexts }
    }

    /// What `targets` need, each stage after those it needs itself. A context may stand for any stage, a later one too.
    pub(super) fn needed(
        &mut self,
        targets: BTreeSet<usize>,
    ) -> Result<Vec<(usize, Needed<'a>)>, BuildError> {
        let mut open = targets;
        let mut needed: BTreeMap<usize, Needed<'a>> = BTreeMap::new();
        let mut needs: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        while let Some(index) = open.pop_last() {
            let stage = self.stage(index)?;
            let base = match stage.base {
                NeededBase::Stage(base) => Some(base),
                NeededBase::Scratch | NeededBase::Image(_) | NeededBase::Files(_) | NeededBase::Unknown => {
                    None
                }
            };
            let read = stage.reads.iter().filter_map(|read| match read.origin {
                Origin::Stage(other) => Some(other),
                Origin::Scratch | Origin::Image(_) | Origin::Files(_) => None,
            });
            let others: BTreeSet<usize> = base.into_iter().chain(read).collect();
            needed.insert(index, stage);
            open.extend(others.iter().filter(|other| !needed.contains_key(other)));
            needs.insert(index, others);
        }
        let order = in_order(&needs).map_err(|index| circle(self.file, index))?;
        Ok(order.into_iter().filter_map(|index| Some((index, needed.remove(&index)?))).collect())
    }

    fn stage(&mut self, index: usize) -> Result<Needed<'a>, BuildError> {
        let stage = &self.file.stages[index];
        let span = stage.from.span;
        let Surveyed { name, platform } = self.froms[index].clone();
        let (platform, asked) = match platform {
            Some(platform) => (platform, Asked::Explicitly),
            None => (Arc::clone(&self.platform), self.request.asked),
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
            Origin::Image(image) => match self.resolve(span, &image, &platform, (asked, Role::Base))? {
                Some(position) => {
                    self.check_platform(span, &name, position, &platform);
                    NeededBase::Image(position)
                }
                None => NeededBase::Unknown,
            },
        };
        let (triggers, own) = if is_replaced {
            (Arc::from([]), &[][..])
        } else {
            (self.triggers(base, span)?, stage.instructions.as_slice())
        };
        let asked_for = Arc::clone(&platform);
        let platform = match base {
            NeededBase::Image(position) => platform_of(&self.resolved[position].base, platform),
            NeededBase::Scratch | NeededBase::Stage(_) | NeededBase::Files(_) | NeededBase::Unknown => {
                platform
            }
        };
        let wanted = if asked_for.same_machine(&platform) { asked_for } else { Arc::clone(&platform) };
        let reads = self.reads(index, &platform, &triggers, own)?;
        Ok(Needed { base, platform, wanted, triggers, own, reads })
    }

    /// What the instructions of stage `index`, whose files are for `platform`, read from.
    fn reads(
        &self,
        index: usize,
        platform: &Platform,
        triggers: &[Trigger],
        own: &[Located<Instruction>],
    ) -> Result<Vec<Read>, BuildError> {
        let from = self.file.stages[index].from.span;
        let triggers = triggers.iter().map(|trigger| (trigger.span.unwrap_or(from), &trigger.instruction));
        let own = own.iter().map(|located| (located.span, &located.value));
        let mut known: BTreeSet<(Reader, Text)> = BTreeSet::new();
        let mut reads = Vec::new();
        for (span, instruction) in triggers.chain(own) {
            for named in named_by(instruction) {
                let (reader, name) = (named.reader, named.name.clone());
                if !known.insert((reader, name.clone())) {
                    continue;
                }
                let origin = self.names().origin(named, index, platform);
                let origin = origin.map_err(|kind| BuildError::at(Some(span), kind))?;
                reads.push(Read { reader, name, span, origin });
            }
        }
        Ok(reads)
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

    /// The position in [`Planner::resolved`] of an image; none where it need not be had and nobody could be asked.
    fn resolve(
        &mut self,
        span: Span,
        name: &ImageName,
        platform: &Platform,
        (asked, role): (Asked, Role),
    ) -> Result<Option<usize>, BuildError> {
        // Asked once: a tag that moves meanwhile must not give one build two bases.
        let question = (name.clone(), platform.clone(), asked);
        if let Some(position) = self.known.get(&question) {
            return Ok(Some(*position));
        }
        if let ImageName::Registry(reference) = name
            && self.bases.are_unknown_at(span, reference)
        {
            return Ok(None);
        }
        let wanted = Wanted { platform: platform.clone(), asked, mode: self.request.mode };
        let (reference, base) = match name {
            ImageName::Registry(reference) => (reference, self.source.resolve(reference, &wanted)),
            ImageName::Layout(reference, layout) => {
                (reference, self.source.resolve_in_layout(layout, reference, &wanted))
            }
        };
        let base = match (base, &mut self.bases) {
            (Ok(base), _) => base,
            (Err(source), Bases::Wished(unanswered, unknown)) if unanswered(&source) => {
                let reason = chained(&*source);
                unknown.push(UnknownBase { span, image: reference.clone(), reason });
                return Ok(None);
            }
            (Err(source), _) => {
                let (reference, clue) = match name {
                    ImageName::Registry(reference) => (reference.to_string(), self.clue(reference, role)),
                    ImageName::Layout(reference, layout) => (
                        format!("oci-layout://{}", layout.path.display()),
                        format!(", for which `{}` stands", reference.familiar()),
                    ),
                };
                let kind = BuildErrorKind::Image { reference, clue, source };
                return Err(BuildError::at(Some(span), kind));
            }
        };
        self.resolved.push(Resolved { base: Arc::new(base), inherited: None, triggers: None, used: None });
        let position = self.resolved.len() - 1;
        self.known.insert(question, position);
        Ok(Some(position))
    }

    /// Whether the image at `position` in [`Planner::resolved`], which is called `written`, is for another platform.
    fn check_platform(&mut self, span: Span, written: &str, position: usize, platform: &Platform) {
        let base = &self.resolved[position].base;
        if let Some(found) = &base.foreign {
            let (actual, expected) = (found.to_string(), platform.to_string());
            let finding = Finding::InvalidBaseImagePlatform { image: written.to_owned(), actual, expected };
            self.warnings.insert(Warning::new(span, finding));
        }
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
        written: &str,
        name: &ImageName,
        platform: &Platform,
    ) -> Result<CopyFrom, BuildError> {
        let position = self.resolve(span, name, platform, (self.request.asked, Role::Files))?;
        let Some(position) = position else { return Ok(CopyFrom::Scratch) };
        self.check_platform(span, written, position, platform);
        let resolved = &mut self.resolved[position];
        let used = *resolved.used.get_or_insert_with(|| {
            self.images.push(Arc::clone(&resolved.base));
            self.images.len() - 1
        });
        Ok(CopyFrom::Image(used))
    }

    /// ONBUILD instructions of the base, which run first. Those of a stage of this file are its own alone: what it had
    /// from its base has run in it.
    fn triggers(&mut self, base: NeededBase, from: Span) -> Result<Arc<[Trigger]>, BuildError> {
        match base {
            NeededBase::Scratch | NeededBase::Files(_) | NeededBase::Unknown => Ok(Arc::from([])),
            NeededBase::Image(position) => {
                if let Some(known) = &self.resolved[position].triggers {
                    return Ok(Arc::clone(known));
                }
                let texts = &self.resolved[position].base.config().config.on_build;
                let triggers = parsed(texts.iter().map(|text| (text.as_bytes(), None)), from)?;
                Ok(Arc::clone(self.resolved[position].triggers.insert(triggers)))
            }
            NeededBase::Stage(index) => {
                if let Some(known) = self.triggers.get(&index) {
                    return Ok(Arc::clone(known));
                }
                let texts =
                    self.file.stages[index].instructions.iter().filter_map(|located| match &located.value {
                        Instruction::Onbuild(text) => Some((text.as_bytes(), Some(located.span))),
                        _ => None,
                    });
                let triggers = parsed(texts, from)?;
                self.triggers.insert(index, Arc::clone(&triggers));
                Ok(triggers)
            }
        }
    }
}

/// Triggers of a base, read; those without lines of their own are an image's, and the stage begins at `from`.
fn parsed<'t>(
    texts: impl Iterator<Item = (&'t [u8], Option<Span>)> + Clone,
    from: Span,
) -> Result<Arc<[Trigger]>, BuildError> {
    let count = texts.clone().count();
    if count > MOST_TRIGGERS {
        let message = format!("base image has {count} ONBUILD triggers, at most {MOST_TRIGGERS} are run");
        return Err(BuildError::at(Some(from), BuildErrorKind::Invalid(message)));
    }
    let parse = |(text, span): (&[u8], Option<Span>)| {
        let trigger = dockerfile::parse_trigger(text).map_err(|error| {
            let message =
                format!("ONBUILD trigger `{}` of the base image: {error}", String::from_utf8_lossy(text));
            BuildError::at(span.or(Some(from)), BuildErrorKind::Invalid(message))
        })?;
        let shown = format!("ONBUILD {}", one_line(text));
        Ok(Trigger { instruction: trigger.value, span, shown })
    };
    texts.map(parse).collect()
}

/// What the base is really for: its config knows better than what was wished.
fn platform_of(base: &Base, wanted: Arc<Platform>) -> Arc<Platform> {
    let config = base.config();
    if config.os.is_empty() || config.architecture.is_empty() {
        return wanted;
    }
    let found = Platform::from(config).normalise();
    // A config without variant says nothing about it: what was wanted holds.
    let is_wanted = found == *wanted || (found.same_machine(&wanted) && config.variant.is_none());
    if is_wanted { wanted } else { Arc::new(found) }
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
        workdir: Arc::new(GuestPath::root()),
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
        step: Step::Copy(Box::new(step)),
    }
}
