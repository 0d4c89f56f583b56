//! From a Dockerfile to stages and steps: which stages are needed, what they stand on, what every step says.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::sync::Arc;

use super::checks::{Bases, Extent};
use super::clock::Clock;
use super::epoch::{self, Epoch};
use super::error::{BuildError, BuildErrorKind};
use super::named_contexts::NamedContexts;
use super::needed::{Resolved, Trigger};
use super::network::Networks;
use super::origin::{ImageName, available, check_circles};
use super::run_settings::RunSettings;
use super::scope::{self, Globals};
use super::services::{Base, ImageSource};
use super::step::{Layering, Plan, UsedContext};
use super::survey::{Surveyed, survey};
use crate::context::IgnoreRules;
use crate::dockerfile::{
    CheckDirective, Dockerfile, ExpandError, Expanded, Finding, Instruction, Text, Violation, Warning, expand,
};
use crate::image::matching::{Asked, MatchMode};
use crate::image::platform::{Platform, Requested};
use crate::image::reference::Reference;
use crate::image::target;

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
    /// How many such plans, for one platform each, there will be at once: none may be larger than its part.
    pub plans: NonZeroUsize,
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
            plans: NonZeroUsize::MIN,
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
    plan_noting(file, request, ignore, source, &mut Vec::new())
}

/// Plans as [`plan`] does. Where that fails, `warnings` has what build checks found so far; else the plan has it.
///
/// # Errors
/// As [`plan`].
pub fn plan_noting(
    file: &Dockerfile,
    request: &PlanRequest,
    ignore: &IgnoreRules,
    source: &dyn ImageSource,
    warnings: &mut Vec<Warning>,
) -> Result<Plan, BuildError> {
    let mut planner = Planner::new(file, request, ignore, source);
    planner.plan(Extent::LastStage).map_err(|error| {
        let (found, error) = planner.reported(error);
        *warnings = found;
        error
    })
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
    pub(super) ignore: &'a IgnoreRules,
    pub(super) source: &'a dyn ImageSource,
    /// What is built for, where FROM does not say it.
    pub(super) platform: Arc<Platform>,
    pub(super) globals: Arc<Globals>,
    /// The FROM of each stage.
    pub(super) froms: Vec<Surveyed>,
    /// What build checks have found so far.
    pub(super) warnings: BTreeSet<Warning>,
    /// Whether it goes on without a base.
    pub(super) bases: Bases<'a>,
    /// The images that steps read from.
    pub(super) images: Vec<Arc<Base>>,
    pub(super) contexts: Vec<UsedContext>,
    /// The images that were asked for so far.
    pub(super) resolved: Vec<Resolved>,
    /// Their positions, by what was asked.
    pub(super) known: BTreeMap<(ImageName, Platform, Asked), usize>,
    /// Triggers of stages of this file, by number.
    pub(super) triggers: BTreeMap<usize, Arc<[Trigger]>>,
}

impl<'a> Planner<'a> {
    pub(super) fn new(
        file: &'a Dockerfile,
        request: &'a PlanRequest,
        ignore: &'a IgnoreRules,
        source: &'a dyn ImageSource,
    ) -> Self {
        Self {
            file,
            request,
            ignore,
            source,
            globals: Arc::new(Globals::new(request.build_args.clone(), automatic(file, request))),
            platform: Arc::new(request.platform.normalised.clone()),
            froms: Vec::new(),
            warnings: file.warnings.iter().cloned().collect(),
            bases: Bases::Required,
            images: Vec::new(),
            contexts: Vec::new(),
            resolved: Vec::new(),
            known: BTreeMap::new(),
            triggers: BTreeMap::new(),
        }
    }

    /// Everything that does not depend on which stages are needed.
    fn survey(&mut self) -> Result<(), BuildError> {
        self.check_frontend()?;
        self.declare_globals()?;
        self.check_defaults();
        self.froms = survey(self.file, &self.globals, &self.request.host, &mut self.warnings)?;
        let bases = self.froms.iter().map(|from| from.name.as_str());
        check_circles(self.names(), bases, &self.request.platform.normalised)
    }

    /// Plans the target, or what is planned if none is given.
    pub(super) fn plan(&mut self, extent: Extent) -> Result<Plan, BuildError> {
        self.survey()?;
        let (clock, epoch) = match self.epoch()? {
            Epoch::Clock(clock) => (clock, None),
            Epoch::Source(source) => (self.request.clock, Some(source)),
            Epoch::Stage(index) => {
                self.check_epoch_stage(index)?;
                let mut alone = Planner::new(self.file, self.request, self.ignore, self.source);
                alone.survey()?;
                let needed = alone.needed(BTreeSet::from([index]))?;
                let plan = alone.interpret(needed)?;
                (self.request.clock, Some(self.epoch_source(index, &plan)?))
            }
        };
        let last = self.target()?;
        let targets = match (extent, &self.request.target) {
            (Extent::EveryStage, None) => (0..self.file.stages.len()).collect(),
            _ => BTreeSet::from([last]),
        };
        let needed = self.needed(targets)?;
        Ok(Plan { clock, epoch, ..self.interpret(needed)? })
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
                Arc::make_mut(&mut self.globals).declare(&name, default);
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
            if name.is_ok_and(|name| name.parse::<Reference>().is_err()) {
                let finding = Finding::InvalidDefaultArgInFrom { image: image.clone() };
                self.warnings.insert(Warning::new(stage.from.span, finding));
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
        self.file.stage_named(&wanted, self.file.stages.len()).ok_or_else(|| {
            let available = available(self.file);
            BuildError::at(None, BuildErrorKind::Target { name: name.clone(), available })
        })
    }

    /// The build checks that are not passed, in the order of their lines; an error if they are to be.
    pub(super) fn checked(&mut self) -> Result<Vec<Warning>, BuildError> {
        let directive = self.directive()?;
        if directive.violation == Violation::Warning {
            return Ok(self.allowed(&directive));
        }
        self.warnings.retain(|warning| directive.allows(warning.rule()));
        let rules: BTreeSet<&str> = self.warnings.iter().map(|warning| warning.rule().name()).collect();
        match self.warnings.first() {
            Some(first) => {
                Err(BuildError::at(Some(first.span), BuildErrorKind::Checks(rules.into_iter().collect())))
            }
            None => Ok(Vec::new()),
        }
    }

    /// Which of them are reported, and what it leads to.
    fn directive(&self) -> Result<CheckDirective, BuildError> {
        match self.globals.build_arg(CHECKS) {
            Some(text) => CheckDirective::parse(text)
                .map_err(|error| BuildError::at(None, BuildErrorKind::Invalid(format!("{CHECKS}: {error}")))),
            None => Ok(self.file.check.clone().unwrap_or_default()),
        }
    }

    fn allowed(&mut self, directive: &CheckDirective) -> Vec<Warning> {
        let mut warnings = std::mem::take(&mut self.warnings);
        // It is known then how many there are, and no room is taken for more.
        warnings.retain(|warning| directive.allows(warning.rule()));
        warnings.into_iter().collect()
    }

    /// What there is to report where planning has ended with `error`: what is wrong with the build argument that says so is
    /// told before all else.
    pub(super) fn reported(&mut self, error: BuildError) -> (Vec<Warning>, BuildError) {
        match self.directive() {
            Ok(directive) => (self.allowed(&directive), error),
            Err(error) => (Vec::new(), error),
        }
    }

    /// Names among those of [`PlanRequest::no_cache`] that no stage has.
    pub(super) fn unknown_stages(&self) -> Vec<String> {
        let stages = &self.file.stages;
        let is_unknown = |name: &&String| self.file.stage_named(&name.to_lowercase(), stages.len()).is_none();
        self.request.no_cache.iter().filter(is_unknown).cloned().collect()
    }

    /// Build arguments that are not declared anywhere and mean nothing by themselves.
    pub(super) fn unused_args(&self) -> Vec<String> {
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

/// The build argument that takes the place of `# check=`.
pub const CHECKS: &str = "BUILDKIT_DOCKERFILE_CHECK";

/// Build arguments that act without being declared.
const EFFECTIVE_ARGS: [&str; 5] =
    [epoch::NAME, CHECKS, "BUILDKIT_SYNTAX", "BUILDKIT_CACHE_MOUNT_NS", "BUILDKIT_SANDBOX_HOSTNAME"];

/// What the result's config says it is for: what was asked for, else what its base is for.
pub(super) fn output_platform(request: &PlanRequest, base: Option<Platform>) -> Platform {
    match (request.asked, base) {
        (Asked::ByDefault, Some(base)) if !base.normalise().same_machine(&request.platform.normalised) => {
            base
        }
        (_, base) => target::output_label(&request.platform, base.as_ref()),
    }
}
