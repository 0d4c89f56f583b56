//! From what a stage needs to its steps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::checks::{HandedOn, StageChecks};
use super::error::{BuildError, BuildErrorKind};
use super::interpret::{Described, Inherited, Interpreter, Sizes, Sources, one_of};
use super::needed::{Needed, NeededBase, Read, files_of_context};
use super::origin::{Origin, Reader};
use super::plan::{Planner, output_platform};
use super::scope::Scope;
use super::services::Reuse;
use super::shown::{one_line, shown};
use super::step::{CopyFrom, Layering, Plan, PlannedStep, StageBase, StagePlan, Target};
use crate::dockerfile::{Span, Text};
use crate::image::config::RunConfig;
use crate::image::platform::Platform;

/// The PATH of images whose base sets none (BuildKit's).
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The most steps of a plan. A Dockerfile cannot have so many instructions, but each stage also has the triggers of its
/// base.
const MOST_STEPS: usize = 40_000;

/// What has been interpreted so far.
struct SoFar {
    stages: Vec<StagePlan>,
    /// The positions in `stages` that stages will have, by number.
    positions: BTreeMap<usize, usize>,
    /// How many stages still stand on the one with this number.
    users: BTreeMap<usize, usize>,
    /// What stages hand on, for as long as another will want it, by number.
    inherited: BTreeMap<usize, Inherited>,
    /// What build checks of the stages on them want to know, by position.
    handed_on: Vec<HandedOn>,
    /// The numbers of the result and of the stages that it stands on.
    below_result: BTreeSet<usize>,
    /// How the last one of those is described that was interpreted.
    described: Described,
    /// How many steps there are.
    steps: usize,
    sizes: Sizes,
}

impl SoFar {
    /// Nothing yet; `needed` come in that order.
    fn before(needed: &[(usize, Needed<'_>)]) -> Self {
        let positions: BTreeMap<usize, usize> =
            needed.iter().enumerate().map(|(position, (index, _))| (*index, position)).collect();
        let mut users: BTreeMap<usize, usize> = BTreeMap::new();
        for (_, stage) in needed {
            if let NeededBase::Stage(number) = stage.base {
                *users.entry(number).or_default() += 1;
            }
        }
        let mut below_result = BTreeSet::new();
        let mut below = needed.last().map(|(index, _)| *index);
        // Whoever wants the image uses it, too.
        users.extend(below.map(|result| (result, 1)));
        while let Some(index) = below {
            below_result.insert(index);
            below = positions.get(&index).and_then(|position| match needed[*position].1.base {
                NeededBase::Stage(base) => Some(base),
                NeededBase::Scratch | NeededBase::Image(_) | NeededBase::Files(_) | NeededBase::Unknown => {
                    None
                }
            });
        }
        Self {
            stages: Vec::with_capacity(needed.len()),
            positions,
            users,
            inherited: BTreeMap::new(),
            handed_on: Vec::with_capacity(needed.len()),
            below_result,
            described: Described::default(),
            steps: 0,
            sizes: Sizes::default(),
        }
    }

    /// What the stage with this number hands on, for good where nobody else will want it.
    fn hand_on(&mut self, number: usize) -> Option<Inherited> {
        let left = self.users.entry(number).or_default();
        *left = left.saturating_sub(1);
        if *left == 0 { self.inherited.remove(&number) } else { self.inherited.get(&number).cloned() }
    }
}

/// What a stage begins with.
struct Beginning {
    base: StageBase,
    platform: Arc<Platform>,
    inherited: Inherited,
    described: Described,
    layers: usize,
    /// The step that brings the files of a context.
    files: Option<PlannedStep>,
    handed_on: HandedOn,
}

impl Planner<'_> {
    /// Interprets the needed stages in their order.
    pub(super) fn interpret(&mut self, needed: Vec<(usize, Needed<'_>)>) -> Result<Plan, BuildError> {
        let mut so_far = SoFar::before(&needed);
        let result = needed.last().map(|(index, _)| *index);
        for (index, stage) in needed {
            let plan = self.interpret_stage(index, stage, &mut so_far)?;
            so_far.stages.push(plan);
        }
        let inherited = result.and_then(|result| so_far.hand_on(result));
        let inherited = inherited.unwrap_or_else(|| self.inherited_from(&RunConfig::default()));
        let (mut config, author) = so_far.described.finish(&inherited);
        config.labels.extend(self.request.labels.iter().cloned());
        let mut plan = Plan {
            targets: Vec::new(),
            stages: so_far.stages,
            warnings: self.checked()?,
            unused_args: self.unused_args(),
            unknown_stages: self.unknown_stages(),
            clock: self.request.clock,
            epoch: None,
            layering: self.request.layering,
            images: std::mem::take(&mut self.images),
            contexts: std::mem::take(&mut self.contexts),
        };
        if let Some(stage) = plan.stages.len().checked_sub(1) {
            let base = plan.descent(&plan.stages[stage]).1.map(|base| Platform::from(base.config()));
            plan.targets.push(Target {
                stage,
                platform: output_platform(self.request, base),
                config,
                author,
            });
        }
        Ok(plan)
    }

    fn interpret_stage(
        &mut self,
        index: usize,
        needed: Needed<'_>,
        so_far: &mut SoFar,
    ) -> Result<StagePlan, BuildError> {
        let stage = &self.file.stages[index];
        so_far.steps += needed.triggers.len() + needed.own.len();
        let most = MOST_STEPS / self.request.plans;
        if so_far.steps > most {
            let message = format!(
                "the stages have more than {most} instructions together, with the triggers of their bases{}",
                one_of(self.request.plans)
            );
            return Err(BuildError::at(Some(stage.from.span), BuildErrorKind::Invalid(message)));
        }
        let origins = self.origins(&needed.reads, &needed.platform, so_far)?;
        let from = |reader: Reader, name: &Text| {
            let found = origins.get(&(reader, name.clone())).cloned();
            found.ok_or_else(|| BuildErrorKind::Invalid(format!("unknown `from={name}`")))
        };
        let (triggers, own) = (needed.triggers.clone(), needed.own);
        let wanted = match needed.base {
            NeededBase::Stage(number) => so_far.stages[so_far.positions[&number]].wanted.clone(),
            _ => needed.wanted.clone(),
        };
        let Beginning { base, platform, inherited, described, mut layers, files, handed_on } =
            self.beginning(index, needed, so_far);
        let (request, sizes) = (self.request, so_far.sizes);
        let sources = Sources {
            ignore: self.ignore,
            from: &from,
            networks: request.networks,
            run: &request.run,
            plans: request.plans,
        };
        let checks = StageChecks::of(handed_on, &mut self.warnings);
        let mut interpreter =
            Interpreter::new(self.file.escape, inherited, described, sizes, checks, sources);
        let mut steps = Vec::with_capacity(triggers.len() + own.len() + usize::from(files.is_some()));
        let mut add = |step: PlannedStep| -> Result<(), BuildError> {
            // At once: there may be thousands more.
            if request.layering == Layering::EachStep && step.step.changes_files() {
                layers += 1;
                check_layers(layers, request.most_layers, step.span)?;
            }
            steps.push(step);
            Ok(())
        };
        files.map_or(Ok(()), &mut add)?;
        for trigger in &*triggers {
            let span = trigger.span.unwrap_or(stage.from.span);
            add(interpreter.instruction(span, trigger.shown.clone(), &trigger.instruction)?)?;
        }
        for located in own {
            add(interpreter.instruction(located.span, shown(located), &located.value)?)?;
        }
        let (inherited, described, sizes, handed_on) = interpreter.finish();
        so_far.sizes = sizes;
        so_far.handed_on.push(handed_on);
        if so_far.below_result.contains(&index) {
            so_far.described = described;
        }
        if so_far.users.contains_key(&index) {
            so_far.inherited.insert(index, inherited);
        }
        let last = steps.iter().rev().find(|step| step.step.changes_files());
        if let (Layering::OncePerStage, Some(last)) = (request.layering, last) {
            layers += 1;
            check_layers(layers, request.most_layers, last.span)?;
        }
        let is_named =
            |wanted: &String| stage.name.as_ref().is_some_and(|name| *name == wanted.to_lowercase());
        Ok(StagePlan {
            reuse: if request.no_cache.iter().any(is_named) { Reuse::No } else { Reuse::Yes },
            position: so_far.stages.len(),
            index,
            label: None,
            name: stage.name.clone().unwrap_or_else(|| format!("stage-{index}")),
            span: stage.from.span,
            instruction: one_line(&stage.from.text),
            base,
            platform,
            wanted,
            steps,
            layers,
        })
    }

    fn beginning(&mut self, index: usize, needed: Needed<'_>, so_far: &mut SoFar) -> Beginning {
        let is_described = so_far.below_result.contains(&index);
        let Needed { base, platform, .. } = needed;
        let on_nothing = |planner: &Self, base, files, handed_on| {
            let config = RunConfig { working_dir: "/".to_owned(), ..RunConfig::default() };
            let inherited = planner.inherited_from(&config);
            let (platform, described) = (platform.clone(), Described::default());
            Beginning { base, platform, inherited, described, layers: 0, files, handed_on }
        };
        match base {
            NeededBase::Scratch => on_nothing(self, StageBase::Scratch, None, HandedOn::default()),
            NeededBase::Unknown => on_nothing(self, StageBase::Scratch, None, HandedOn::ON_UNKNOWN),
            NeededBase::Files(position) => {
                let name = &self.contexts[position].name;
                let files = files_of_context(position, name, self.file.stages[index].from.span);
                on_nothing(self, StageBase::Files(name.clone()), Some(files), HandedOn::default())
            }
            NeededBase::Image(position) => {
                let resolved = &self.resolved[position];
                let base = Arc::clone(&resolved.base);
                let inherited = match &resolved.inherited {
                    Some(inherited) => inherited.clone(),
                    None => self.inherited_from(&base.config().config),
                };
                self.resolved[position].inherited.get_or_insert_with(|| inherited.clone());
                let described = match is_described {
                    true => Described {
                        config: RunConfig { on_build: Vec::new(), ..base.config().config.clone() },
                        author: base.config().author.clone(),
                    },
                    false => Described::default(),
                };
                let layers = base.image.layers().len();
                Beginning {
                    base: StageBase::Image(base),
                    platform,
                    inherited,
                    described,
                    layers,
                    files: None,
                    handed_on: HandedOn::default(),
                }
            }
            NeededBase::Stage(number) => {
                // Everything that a needed stage refers to is needed, and interpreted before it.
                let position = so_far.positions[&number];
                let below = &so_far.stages[position];
                let (platform, layers) = (below.platform.clone(), below.layers);
                let inherited = so_far.hand_on(number);
                let inherited = inherited.unwrap_or_else(|| self.inherited_from(&RunConfig::default()));
                let mut described =
                    if is_described { std::mem::take(&mut so_far.described) } else { Described::default() };
                described.config.on_build.clear();
                let base = StageBase::Stage(position);
                let handed_on = so_far.handed_on[position];
                Beginning { base, platform, inherited, described, layers, files: None, handed_on }
            }
        }
    }

    /// Everything that the stage's instructions read from; images are resolved, each once.
    fn origins(
        &mut self,
        reads: &[Read],
        platform: &Platform,
        so_far: &SoFar,
    ) -> Result<BTreeMap<(Reader, Text), CopyFrom>, BuildError> {
        let mut origins = BTreeMap::new();
        for Read { reader, name, span, origin } in reads {
            let from = match origin {
                Origin::Scratch => CopyFrom::Scratch,
                Origin::Stage(number) => CopyFrom::Stage(so_far.positions[number]),
                Origin::Files(number) => CopyFrom::Named(self.used_context(*number)),
                Origin::Image(image) => self.used_image(*span, &name.to_string_lossy(), image, platform)?,
            };
            origins.insert((*reader, name.clone()), from);
        }
        Ok(origins)
    }

    /// What an image with `config` hands on, with the default PATH where it has none.
    fn inherited_from(&self, config: &RunConfig) -> Inherited {
        // An entry without a name, or without `=`, is no definition; the host's value must never be taken for it.
        let pairs = config.env.iter().filter_map(|entry| entry.split_once('='));
        let mut scope = Scope::new(Arc::clone(&self.globals), pairs.filter(|(name, _)| !name.is_empty()));
        if scope.lookup("PATH").is_none() {
            scope.set_env("PATH", DEFAULT_PATH);
        }
        Inherited {
            scope,
            user: config.user.as_str().into(),
            working_dir: config.working_dir.as_str().into(),
            shell: config.shell.as_deref().map(Arc::from),
        }
    }
}

fn check_layers(number: usize, most: usize, span: Span) -> Result<(), BuildError> {
    if number <= most {
        return Ok(());
    }
    Err(BuildError::at(Some(span), BuildErrorKind::TooManyLayers { number, most }))
}
