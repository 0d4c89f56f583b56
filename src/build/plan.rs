//! From a Dockerfile to stages and steps: which stages are needed, what they stand on, what every step says.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use super::clock::Clock;
use super::epoch::{self, Epoch};
use super::error::{BuildError, BuildErrorKind};
use super::interpret::{Interpreted, Interpreter, Sources};
use super::named_contexts::NamedContexts;
use super::needed::{Needed, NeededBase, files_of_context};
use super::network::Networks;
use super::origin::{ImageName, Named, Origin, Reader, available, check_circles, named_by, stage_named};
use super::run_settings::RunSettings;
use super::scope::{self, Globals, Scope};
use super::services::{Base, ImageSource, Reuse, Wanted};
use super::step::{CopyFrom, Layering, Plan, StageBase, StagePlan, UsedContext};
use super::survey::{Surveyed, survey};
use crate::context::IgnoreRules;
use crate::dockerfile::{
    self, CheckDirective, Command, Dockerfile, ExpandError, Expanded, Heredoc, Instruction, Located, Span,
    Text, Violation, Warning, expand,
};
use crate::image::config::RunConfig;
use crate::image::matching::{Asked, MatchMode};
use crate::image::platform::{Platform, Requested};
use crate::image::reference::Reference;
use crate::image::target;
use crate::text::without_credentials;

/// The PATH of images whose base sets none (BuildKit's).
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What is to be built.
#[derive(Debug, Clone)]
pub struct PlanRequest {
    /// `--build-arg`.
    pub build_args: BTreeMap<String, String>,
    /// `--target`.
    pub target: Option<String>,
    /// What `--build-context` puts in the place of stages and images.
    pub contexts: NamedContexts,
    /// `--label`.
    pub labels: Vec<(String, String)>,
    /// What the result is for.
    pub platform: Requested,
    /// Whether the user named that platform.
    pub asked: Asked,
    /// How near a base's platform must be.
    pub mode: MatchMode,
    /// This machine.
    pub host: Platform,
    /// Which steps make a layer.
    pub layering: Layering,
    /// The most layers that the files of an image can have where it is built.
    pub most_layers: usize,
    /// Which networks steps may have.
    pub networks: Networks,
    /// What else holds for every RUN.
    pub run: RunSettings,
    /// The stages whose steps are all done, whatever is remembered; in any case.
    pub no_cache: BTreeSet<String>,
    /// Where times come from if neither a build argument nor the Dockerfile says it.
    pub clock: Clock,
}

impl PlanRequest {
    /// What holds where the command line says nothing: an image for `platform`, built on `host`. `most_layers` is a matter of
    /// where files are kept.
    #[must_use]
    pub fn usual(platform: Requested, host: Platform, most_layers: usize) -> Self {
        Self {
            build_args: BTreeMap::new(),
            target: None,
            contexts: NamedContexts::default(),
            labels: Vec::new(),
            platform,
            asked: Asked::ByDefault,
            mode: MatchMode::Compatible,
            host,
            layering: Layering::EachStep,
            most_layers,
            networks: Networks::USUAL,
            run: RunSettings::usual(),
            no_cache: BTreeSet::new(),
            clock: Clock::Machine,
        }
    }
}

/// Plans the build of `file`: bases are resolved, nothing is run.
///
/// # Errors
/// [`BuildError`] with the lines of the instruction that cannot be built. Stages that nothing needs are not looked at.
pub fn plan(
    file: &Dockerfile,
    request: &PlanRequest,
    ignore: &IgnoreRules,
    source: &dyn ImageSource,
) -> Result<Plan, BuildError> {
    let mut planner = Planner::begin(file, request, ignore, source)?;
    let (clock, epoch) = match planner.epoch()? {
        Epoch::Clock(clock) => (clock, None),
        Epoch::Source(source) => (request.clock, Some(source)),
        Epoch::Stage(index) => {
            planner.check_epoch_stage(index)?;
            let mut alone = Planner::begin(file, request, ignore, source)?;
            let needed = alone.needed(index)?;
            let plan = alone.interpret(needed)?;
            (request.clock, Some(planner.epoch_source(index, &plan)?))
        }
    };
    let target = planner.target()?;
    let needed = planner.needed(target)?;
    Ok(Plan { clock, epoch, ..planner.interpret(needed)? })
}

/// The platform arguments and the name of the target.
fn automatic(file: &Dockerfile, request: &PlanRequest) -> BTreeMap<String, String> {
    let pairs = target::build_args(&request.host, &request.platform.normalised);
    let mut values: BTreeMap<String, String> =
        pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    let last = file.stages.last().and_then(|stage| stage.name.clone());
    let target = request.target.clone().or(last).unwrap_or_else(|| "default".to_owned());
    values.insert("TARGETSTAGE".to_owned(), target);
    values
}

/// A plan while it is made.
pub(super) struct Planner<'a> {
    pub(super) file: &'a Dockerfile,
    pub(super) request: &'a PlanRequest,
    ignore: &'a IgnoreRules,
    pub(super) source: &'a dyn ImageSource,
    pub(super) globals: Globals,
    /// The FROM of each stage.
    pub(super) froms: Vec<Surveyed>,
    pub(super) warnings: Vec<Warning>,
    /// Bytes of all history rows so far.
    history: usize,
    pub(super) images: Vec<Base>,
    pub(super) contexts: Vec<UsedContext>,
    /// What was asked for so far.
    pub(super) resolved: Vec<(ImageName, Wanted, Base)>,
}

impl<'a> Planner<'a> {
    /// Everything that does not depend on which stages are needed.
    fn begin(
        file: &'a Dockerfile,
        request: &'a PlanRequest,
        ignore: &'a IgnoreRules,
        source: &'a dyn ImageSource,
    ) -> Result<Self, BuildError> {
        let mut planner = Planner {
            file,
            request,
            ignore,
            source,
            globals: Globals::new(request.build_args.clone(), automatic(file, request)),
            froms: Vec::new(),
            warnings: Vec::new(),
            history: 0,
            images: Vec::new(),
            contexts: Vec::new(),
            resolved: Vec::new(),
        };
        planner.check_frontend()?;
        planner.declare_globals()?;
        planner.check_defaults();
        planner.froms = survey(file, &planner.globals, &request.host, &mut planner.warnings)?;
        let bases = planner.froms.iter().map(|from| from.name.as_str());
        check_circles(planner.names(), bases, &request.platform.normalised)?;
        Ok(planner)
    }
}

impl Planner<'_> {
    /// `# syntax=` may name Docker's own language alone: nothing else is downloaded and run.
    fn check_frontend(&self) -> Result<(), BuildError> {
        let written = self.file.syntax.as_ref().map(|syntax| (syntax.value.as_str(), Some(syntax.span)));
        let given = self.request.build_args.get("BUILDKIT_SYNTAX").map(|value| (value.as_str(), None));
        let Some((frontend, span)) = given.or(written) else { return Ok(()) };
        let image = frontend.split_whitespace().next().unwrap_or_default();
        let name =
            image.strip_prefix("docker.io/").unwrap_or(image).split([':', '@']).next().unwrap_or_default();
        match name {
            "docker/dockerfile" | "docker/dockerfile-upstream" | "dockerfile.v0" | "" => Ok(()),
            _ => Err(BuildError::at(span, BuildErrorKind::Frontend(image.to_owned()))),
        }
    }

    fn declare_globals(&mut self) -> Result<(), BuildError> {
        for argument in &self.file.global_args {
            let Instruction::Arg(names) = &argument.value else { continue };
            for (name, default) in names {
                let name = name.to_string();
                let default = match default {
                    Some(default) if self.globals.build_arg(&name).is_none() => {
                        let expanded = self.expanded(default, &self.globals);
                        let expanded =
                            expanded.map_err(|error| BuildError::at(Some(argument.span), error))?;
                        Some(expanded.text.to_string())
                    }
                    _ => None,
                };
                self.globals.declare(&name, default);
            }
        }
        Ok(())
    }

    /// Whether every FROM would name an image if no build argument were given.
    fn check_defaults(&mut self) {
        let mut defaults = Globals::new(BTreeMap::new(), automatic(self.file, self.request));
        for argument in &self.file.global_args {
            let Instruction::Arg(names) = &argument.value else { continue };
            for (name, default) in names {
                // A default that cannot be expanded is an error only where it is needed.
                let default = default.as_ref().and_then(|text| self.expanded(text, &defaults).ok());
                defaults.declare(&name.to_string(), default.map(|expanded| expanded.text.to_string()));
            }
        }
        for stage in &self.file.stages {
            let image = &stage.from.value.image;
            let name = self.expanded(image, &defaults).map(|expanded| expanded.text.to_string());
            if name.is_ok_and(|name| name.parse::<Reference>().is_err()) && image.has_variables() {
                self.warnings.push(Warning::invalid_default_arg_in_from(stage.from.span, image));
            }
        }
    }

    fn expanded(&self, text: &Text, globals: &Globals) -> Result<Expanded, ExpandError> {
        let lookup = |name: &str| globals.lookup(name).map(|value| Cow::Borrowed(value.as_bytes()));
        expand(text, self.file.escape, &lookup)
    }

    /// The number of the stage that is asked for.
    fn target(&self) -> Result<usize, BuildError> {
        let last = self.file.stages.len().saturating_sub(1);
        let Some(name) = &self.request.target else { return Ok(last) };
        let wanted = name.to_lowercase();
        stage_named(self.file, &wanted, self.file.stages.len()).ok_or_else(|| {
            let available = available(self.file);
            BuildError::at(None, BuildErrorKind::Target { name: name.clone(), available })
        })
    }

    /// Interprets the needed stages in their order.
    fn interpret(mut self, needed: Vec<(usize, Needed)>) -> Result<Plan, BuildError> {
        let positions: BTreeMap<usize, usize> =
            needed.iter().enumerate().map(|(position, (index, _))| (*index, position)).collect();
        let mut users: BTreeMap<usize, usize> = BTreeMap::new();
        for (_, stage) in &needed {
            if let NeededBase::Stage(number) = stage.base {
                *users.entry(number).or_default() += 1;
            }
        }
        let mut stages: Vec<StagePlan> = Vec::with_capacity(needed.len());
        let mut scopes: Vec<Scope> = Vec::with_capacity(needed.len());
        for (index, stage) in needed {
            let (plan, scope) = self.interpret_stage(
                index,
                stage,
                &positions,
                &mut Interpreting { stages: &mut stages, scopes: &mut scopes, users: &mut users },
            )?;
            stages.push(plan);
            scopes.push(scope);
        }
        let unknown_stages = self.unknown_stages();
        let mut plan = Plan {
            platform: self.request.platform.normalised.clone(),
            stages,
            labels: self.request.labels.clone(),
            warnings: self.checked(&positions)?,
            unused_args: self.unused_args(),
            unknown_stages,
            clock: self.request.clock,
            epoch: None,
            layering: self.request.layering,
            images: self.images,
            contexts: self.contexts,
        };
        plan.platform = output_platform(self.request, &plan);
        Ok(plan)
    }

    /// The build checks that the needed stages do not pass, in the order of their lines.
    fn checked(&mut self, needed: &BTreeMap<usize, usize>) -> Result<Vec<Warning>, BuildError> {
        let directive = match self.globals.build_arg("BUILDKIT_DOCKERFILE_CHECK") {
            Some(text) => CheckDirective::parse(text).map_err(|error| {
                BuildError::at(None, BuildErrorKind::Invalid(format!("BUILDKIT_DOCKERFILE_CHECK: {error}")))
            })?,
            None => self.file.check.clone().unwrap_or_default(),
        };
        let mut warnings = std::mem::take(&mut self.warnings);
        warnings.extend(dockerfile::check(self.file));
        warnings.retain(|warning| {
            directive.allows(warning.rule) && warning.stage.is_none_or(|stage| needed.contains_key(&stage))
        });
        warnings.sort();
        warnings.dedup();
        if directive.violation == Violation::Error && !warnings.is_empty() {
            let line = warnings.first().map(|warning| Span::line(warning.line));
            return Err(BuildError::at(line, BuildErrorKind::Checks(warnings)));
        }
        Ok(warnings)
    }

    fn interpret_stage(
        &mut self,
        index: usize,
        needed: Needed,
        positions: &BTreeMap<usize, usize>,
        so_far: &mut Interpreting<'_>,
    ) -> Result<(StagePlan, Scope), BuildError> {
        // Everything that a needed stage refers to is needed, and interpreted before it.
        let position_of = |number: usize| positions[&number];
        let origins = self.origins(&needed.instructions, &needed.platform, index, &position_of)?;
        let mut platform = needed.platform;
        let mut layers = 0;
        let files = match needed.base {
            NeededBase::Files(position) => Some(position),
            _ => None,
        };
        let (base, scope, config, author) = match needed.base {
            NeededBase::Scratch | NeededBase::Files(_) => {
                let config = RunConfig { working_dir: "/".to_owned(), ..RunConfig::default() };
                let base = match files {
                    Some(position) => StageBase::Files(self.contexts[position].name.clone()),
                    None => StageBase::Scratch,
                };
                (base, self.scope_on(&config), config, None)
            }
            NeededBase::Image(base) => {
                let config = RunConfig { on_build: Vec::new(), ..base.config().config.clone() };
                let author = base.config().author.clone();
                layers = base.image.layers().len();
                (StageBase::Image(base), self.scope_on(&config), config, author)
            }
            NeededBase::Stage(number) => {
                let position = position_of(number);
                let below = &so_far.stages[position];
                platform = below.platform.clone();
                layers = below.layers;
                let author = below.author.clone();
                let (config, scope) = so_far.hand_on(number, position);
                (StageBase::Stage(position), scope, RunConfig { on_build: Vec::new(), ..config }, author)
            }
        };
        let from = |reader: Reader, name: &Text| {
            let found = origins.iter().find(|(known, _)| known.is(reader, name));
            let found = found.map(|(_, from)| from.clone());
            found.ok_or_else(|| BuildErrorKind::Invalid(format!("unknown `from={name}`")))
        };
        let mut interpreter = Interpreter::new(
            self.file.escape,
            scope,
            config,
            author,
            self.history,
            &mut self.warnings,
            Sources {
                ignore: self.ignore,
                from: &from,
                networks: self.request.networks,
                run: &self.request.run,
            },
        );
        for (instruction, shown) in &needed.instructions {
            interpreter.instruction(instruction.span, shown, &instruction.value)?;
        }
        let Interpreted { scope, config, author, mut steps, history } = interpreter.finish();
        self.history = history;
        let stage = &self.file.stages[index];
        if let Some(position) = files {
            steps.insert(0, files_of_context(position, &self.contexts[position].name, stage.from.span));
        }
        let is_named =
            |wanted: &String| stage.name.as_ref().is_some_and(|name| *name == wanted.to_lowercase());
        let reuse = if self.request.no_cache.iter().any(is_named) { Reuse::No } else { Reuse::Yes };
        let mut plan = StagePlan {
            reuse,
            index,
            name: stage.name.clone().unwrap_or_else(|| format!("stage-{index}")),
            span: stage.from.span,
            instruction: one_line(&stage.from.text),
            base,
            platform,
            steps,
            config,
            author,
            layers,
        };
        for position in plan.layer_positions(self.request.layering) {
            plan.layers += 1;
            let most = self.request.most_layers;
            if plan.layers > most {
                let kind = BuildErrorKind::TooManyLayers { number: plan.layers, most };
                return Err(BuildError::at(Some(plan.steps[position].span), kind));
            }
        }
        Ok((plan, scope))
    }

    /// Everything that the stage's instructions read from; images are resolved, each once.
    fn origins<'n>(
        &mut self,
        needed: &'n [(Located<Instruction>, String)],
        platform: &Platform,
        index: usize,
        position_of: &dyn Fn(usize) -> usize,
    ) -> Result<Vec<(Named<'n>, CopyFrom)>, BuildError> {
        let mut origins: Vec<(Named<'n>, CopyFrom)> = Vec::new();
        for (instruction, _) in needed {
            for named in named_by(&instruction.value) {
                if origins.iter().any(|(known, _)| known.is(named.reader, named.name)) {
                    continue;
                }
                let origin = self
                    .names()
                    .origin(named, index, platform)
                    .map_err(|kind| BuildError::at(Some(instruction.span), kind))?;
                let span = instruction.span;
                let from = match origin {
                    Origin::Scratch => CopyFrom::Scratch,
                    Origin::Stage(number) => CopyFrom::Stage(position_of(number)),
                    Origin::Files(number) => CopyFrom::Named(self.used_context(number)),
                    Origin::Image(name) => self.used_image(span, &name, platform)?,
                };
                origins.push((named, from));
            }
        }
        Ok(origins)
    }

    /// The scope of a stage on `config`, with the default PATH where it has none.
    fn scope_on(&self, config: &RunConfig) -> Scope {
        // An entry without a name, or without `=`, is no definition; the host's value must never be taken for it.
        let pairs = config.env.iter().filter_map(|entry| entry.split_once('='));
        let named =
            |(name, value): (&str, &str)| (!name.is_empty()).then(|| (name.to_owned(), value.to_owned()));
        let mut env: Vec<(String, String)> = pairs.filter_map(named).collect();
        if !env.iter().any(|(name, _)| name == "PATH") {
            env.push(("PATH".to_owned(), DEFAULT_PATH.to_owned()));
        }
        Scope::new(self.globals.clone(), env)
    }

    /// Names among those of [`PlanRequest::no_cache`] that no stage has.
    fn unknown_stages(&self) -> Vec<String> {
        let stages = &self.file.stages;
        let is_unknown =
            |name: &&String| stage_named(self.file, &name.to_lowercase(), stages.len()).is_none();
        self.request.no_cache.iter().filter(is_unknown).cloned().collect()
    }

    /// Build arguments that are not declared anywhere and mean nothing by themselves.
    fn unused_args(&self) -> Vec<String> {
        let own = self.file.stages.iter().flat_map(|stage| &stage.instructions);
        let mut declared: BTreeSet<String> = BTreeSet::new();
        for argument in self.file.global_args.iter().chain(own) {
            if let Instruction::Arg(names) = &argument.value {
                declared.extend(names.iter().map(|(name, _)| name.to_string()));
            }
        }
        let automatic = automatic(self.file, self.request);
        let means_something = |name: &str| {
            scope::is_proxy(name) || automatic.contains_key(name) || EFFECTIVE_ARGS.contains(&name)
        };
        let given = self.request.build_args.keys();
        given.filter(|name| !declared.contains(*name) && !means_something(name)).cloned().collect()
    }
}

/// Build arguments that act without being declared.
const EFFECTIVE_ARGS: [&str; 5] = [
    epoch::NAME,
    "BUILDKIT_DOCKERFILE_CHECK",
    "BUILDKIT_SYNTAX",
    "BUILDKIT_CACHE_MOUNT_NS",
    "BUILDKIT_SANDBOX_HOSTNAME",
];

/// What the result's config says it is for: what was asked for, else what its base is for.
fn output_platform(request: &PlanRequest, plan: &Plan) -> Platform {
    let base =
        plan.result().and_then(|stage| plan.descent(stage).1).map(|base| Platform::from(base.config()));
    match (request.asked, base) {
        (Asked::ByDefault, Some(base)) if !base.normalise().same_machine(&request.platform.normalised) => {
            base
        }
        (_, base) => target::output_label(&request.platform, base.as_ref()),
    }
}

/// At most this many characters of an instruction are shown.
const LONGEST_SHOWN: usize = 160;

/// An instruction of a Dockerfile for people. Of a RUN that is all here-document, with how that begins, as BuildKit has it.
pub(super) fn shown(located: &Located<Instruction>) -> String {
    let mut text = located.text.to_vec();
    if let Instruction::Run(run) = &located.value
        && let Command::Shell(command) = &run.command
        && let [heredoc] = &run.heredocs[..]
        && Heredoc::is_only(command)
        && let Some(first) =
            heredoc.body.split(|byte| *byte == b'\n').find(|line| !line.trim_ascii().is_empty())
    {
        text.extend([b" (", &first[..first.len().min(LONGEST_SHOWN)], b"...)"].concat());
    }
    one_line(&text)
}

/// An instruction for people: one line, not too long, without passwords.
pub(super) fn one_line(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    // Before it is cut: what is left of a URL then is none any more.
    let text = without_credentials(&text);
    let mut words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = words.char_indices().nth(LONGEST_SHOWN) {
        words.truncate(end);
        words.push('…');
    }
    words
}

/// What has been interpreted so far.
struct Interpreting<'a> {
    stages: &'a mut Vec<StagePlan>,
    scopes: &'a mut Vec<Scope>,
    /// How many stages still stand on the one with this number.
    users: &'a mut BTreeMap<usize, usize>,
}

impl Interpreting<'_> {
    /// Config and scope for a stage on the one with this number. The last one gets them for good: long chains of stages
    /// must not have a copy for each.
    fn hand_on(&mut self, number: usize, position: usize) -> (RunConfig, Scope) {
        let left = self.users.entry(number).or_default();
        *left = left.saturating_sub(1);
        let (config, scope) = (&mut self.stages[position].config, &mut self.scopes[position]);
        if *left == 0 {
            (std::mem::take(config), std::mem::take(scope))
        } else {
            (config.clone(), scope.clone())
        }
    }
}
