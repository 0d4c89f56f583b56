//! Steps: instructions with nothing left to resolve.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use crate::context::IgnoreRules;
use crate::dockerfile::{Mode, Span, Text, TransferKind, Warning};
use crate::image::config::{ImageConfig, RunConfig};
use crate::image::platform::Platform;
use crate::image::reference::Reference;
use crate::rootfs::GuestPath;
use crate::sandbox::{Network, ResourceLimit, Security};

use super::clock::Clock;
use super::copy::Parents;
use super::epoch::EpochSource;
use super::mount::MountStep;
use super::remote::RemoteStep;
use super::run_settings::ExtraHost;
use super::scope::Variables;
use super::services::{Base, Reuse};

/// What a build would do: everything but the files.
#[derive(Debug)]
pub struct Plan {
    /// The stages that are needed, each after those it needs.
    pub stages: Vec<StagePlan>,
    /// The images that come out: one for each platform, in the order in which these were named.
    pub targets: Vec<Target>,
    /// The images that COPY and mounts take files from.
    pub images: Vec<Arc<Base>>,
    /// The named build contexts whose files are used.
    pub contexts: Vec<UsedContext>,
    /// Build checks that the Dockerfile does not pass.
    pub warnings: Vec<Warning>,
    /// Build arguments that nothing in the Dockerfile takes.
    pub unused_args: Vec<String>,
    /// Stages whose results of earlier builds were not to be used, and that the Dockerfile does not have.
    pub unknown_stages: Vec<String>,
    /// Where times come from.
    pub clock: Clock,
    /// Whose time that is, where it can't be known without asking: `clock` is what counts if it has none.
    pub epoch: Option<EpochSource>,
    /// Which steps make a layer.
    pub layering: Layering,
}

/// An image that comes out.
#[derive(Debug)]
pub struct Target {
    /// The stage whose image it is; its position in [`Plan::stages`].
    pub stage: usize,
    /// What it is for, as its config says.
    pub platform: Platform,
    /// Its `config`, labels of the command line included.
    pub config: RunConfig,
    /// Its `author`.
    pub author: Option<String>,
}

/// A named build context whose files a plan uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsedContext {
    /// Its name, as it was given.
    pub name: String,
    /// Its number among all [`super::named_contexts::NamedContexts`].
    pub number: usize,
}

/// Which steps make a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layering {
    /// Each that may change files.
    EachStep,
    /// Of each stage the last that may change files: its layer has the changes of all.
    OncePerStage,
}

impl Plan {
    /// The stage whose image `target` is.
    #[must_use]
    pub fn result(&self, target: &Target) -> &StagePlan {
        &self.stages[target.stage]
    }

    /// What the image of `target` stands on, at the bottom; none if that is `scratch`.
    #[must_use]
    pub fn base(&self, target: &Target) -> Option<&Base> {
        self.descent(self.result(target)).1
    }

    /// How people are told of `stage`, where there are others.
    #[must_use]
    pub fn name_of(&self, stage: &StagePlan) -> Option<String> {
        let is_other = |other: &StagePlan| other.index != stage.index;
        match (&stage.label, self.stages.iter().any(is_other)) {
            (Some(label), true) => Some(format!("{label} {}", stage.name)),
            (Some(label), false) => Some(String::from(&**label)),
            (None, true) => Some(stage.name.clone()),
            (None, false) => None,
        }
    }

    /// `stage` and those it stands on, topmost first, and the image at the bottom, if it is not `scratch`.
    #[must_use]
    pub fn descent<'a>(&'a self, stage: &'a StagePlan) -> (Vec<&'a StagePlan>, Option<&'a Base>) {
        let mut stages = vec![stage];
        let mut current = stage;
        loop {
            current = match &current.base {
                StageBase::Scratch | StageBase::Files(_) => return (stages, None),
                StageBase::Image(base) => return (stages, Some(base)),
                StageBase::Stage(position) => &self.stages[*position],
            };
            stages.push(current);
        }
    }
}

/// One stage, for one platform.
#[derive(Debug)]
pub struct StagePlan {
    /// Its position in [`Plan::stages`].
    pub position: usize,
    /// The stage's number in the Dockerfile, from 0.
    pub index: usize,
    /// Its name, or `stage-N`.
    pub name: String,
    /// Where the build is for several platforms: what it is for, as people are told.
    pub label: Option<Arc<str>>,
    /// The lines of FROM.
    pub span: Span,
    /// FROM as written, one line.
    pub instruction: String,
    /// What it stands on.
    pub base: StageBase,
    /// What its files are for.
    pub platform: Arc<Platform>,
    /// What it is built for: another variant than that of its files where there was no base for that one.
    pub wanted: Arc<Platform>,
    /// Its steps.
    pub steps: Vec<PlannedStep>,
    /// How many layers its image will have.
    pub layers: usize,
    /// Whether results of earlier builds are used, where they are used at all.
    pub reuse: Reuse,
}

impl StagePlan {
    /// How many steps are shown of it: FROM is one.
    #[must_use]
    pub fn shown_steps(&self) -> usize {
        self.steps.len() + 1
    }

    /// The steps as they are done together, by position, in order: of those that may change files the last one gets the
    /// layer with all changes.
    #[must_use]
    pub fn groups(&self, layering: Layering) -> Vec<Range<usize>> {
        let files = |step: &PlannedStep| step.step.changes_files();
        let alone = |positions: Range<usize>| positions.map(|position| position..position + 1);
        let (first, last) = (self.steps.iter().position(files), self.steps.iter().rposition(files));
        match (layering, first, last) {
            (Layering::OncePerStage, Some(first), Some(last)) => {
                let together = std::iter::once(first..last + 1);
                alone(0..first).chain(together).chain(alone(last + 1..self.steps.len())).collect()
            }
            _ => alone(0..self.steps.len()).collect(),
        }
    }

    /// The positions of the steps that get a layer.
    #[must_use]
    pub fn layer_positions(&self, layering: Layering) -> BTreeSet<usize> {
        let last =
            |group: Range<usize>| group.rev().find(|position| self.steps[*position].step.changes_files());
        self.groups(layering).into_iter().filter_map(last).collect()
    }
}

/// What a stage stands on.
#[derive(Debug)]
pub enum StageBase {
    /// Nothing.
    Scratch,
    /// Another stage; its position in [`Plan::stages`].
    Stage(usize),
    /// An image.
    Image(Arc<Base>),
    /// The files of the named build context of this name: the stage's first step copies them.
    Files(String),
}

/// One instruction.
#[derive(Debug, PartialEq)]
pub struct PlannedStep {
    /// Its lines; those of FROM for a trigger of the base image.
    pub span: Span,
    /// The instruction, one line.
    pub instruction: String,
    /// Its history row; ONBUILD has none.
    pub created_by: Option<String>,
    /// Where that comes from.
    pub row: Row,
    /// What to do.
    pub step: Step,
}

/// Where a history row comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Row {
    /// An instruction of the Dockerfile, or of a trigger.
    Instruction,
    /// A base that has files and no history.
    Base,
}

/// What to do.
#[derive(Debug, PartialEq)]
pub enum Step {
    /// Nothing: the config was changed while planning.
    Config,
    /// Make the working directory.
    Workdir(Box<WorkdirStep>),
    /// Copy files into the image.
    Copy(Box<CopyStep>),
    /// Run a process.
    Run(Box<RunStep>),
}

impl Step {
    /// Whether the step may change files, and so have a layer, be it empty.
    #[must_use]
    pub fn changes_files(&self) -> bool {
        !matches!(self, Self::Config)
    }

    /// Whose files the step reads, besides those of its own stage.
    pub fn reads(&self) -> impl Iterator<Item = &CopyFrom> {
        let (copy, mounts) = match self {
            Self::Copy(copy) => (Some(&copy.from), &[][..]),
            Self::Run(run) => (None, run.mounts.as_slice()),
            Self::Config | Self::Workdir(_) => (None, &[][..]),
        };
        copy.into_iter().chain(mounts.iter().filter_map(MountStep::from))
    }
}

/// WORKDIR.
#[derive(Debug, PartialEq)]
pub struct WorkdirStep {
    /// The directory.
    pub path: GuestPath,
    /// USER as it stands, who owns what is made.
    pub user: Arc<str>,
}

/// COPY or ADD.
#[derive(Debug, PartialEq)]
pub struct CopyStep {
    /// Which instruction.
    pub kind: TransferKind,
    /// Whether ADD extracts archives.
    pub archives: Archives,
    /// Where paths are read.
    pub from: CopyFrom,
    /// Paths and patterns.
    pub sources: Vec<Text>,
    /// Sources of ADD that are elsewhere.
    pub remotes: Vec<RemoteStep>,
    /// Files that the Dockerfile holds: name and content.
    pub inline: Vec<(Text, Text)>,
    /// Where to.
    pub destination: Text,
    /// What a relative destination is relative to.
    pub workdir: Arc<GuestPath>,
    /// `--chown`.
    pub chown: Option<String>,
    /// `--chmod`.
    pub chmod: Option<Mode>,
    /// `--exclude`.
    pub exclude: Exclude,
    /// Whether `--parents` is set.
    pub parents: Parents,
    /// Whether `--link` is in force.
    pub onto: Onto,
}

/// What a copy finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Onto {
    /// The files of its stage.
    Stage,
    /// Nothing; its layer is put on top of the stage then.
    Nothing,
}

impl PartialEq for Exclude {
    fn eq(&self, other: &Self) -> bool {
        // The rules come from them.
        self.patterns == other.patterns
    }
}

impl CopyStep {
    /// The rules of `--exclude`, if there are any.
    #[must_use]
    pub fn excluded(&self) -> Option<&IgnoreRules> {
        (!self.exclude.patterns.is_empty()).then_some(&self.exclude.rules)
    }
}

/// `--exclude`: what of each source that is a directory is left out.
#[derive(Debug, Clone, Default)]
pub struct Exclude {
    /// As written.
    pub patterns: Vec<Text>,
    /// What they say.
    pub rules: IgnoreRules,
}

/// What ADD does with archives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Archives {
    /// Extracts them.
    Extract,
    /// Copies them like any file.
    Keep,
}

/// Where COPY and bind mounts read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum CopyFrom {
    /// The build context.
    Context,
    /// A named build context; its position in [`Plan::contexts`].
    Named(usize),
    /// Nothing: `--from=scratch`.
    Scratch,
    /// A stage; its position in [`Plan::stages`].
    Stage(usize),
    /// An image; its position in [`Plan::images`].
    Image(usize),
}

/// RUN.
#[derive(Debug, PartialEq)]
pub struct RunStep {
    /// The program and its arguments.
    pub args: Vec<Vec<u8>>,
    /// The environment; HOME is added from the image's passwd where it is missing.
    pub env: Variables,
    /// Added to the environment: proxies that nothing declares.
    pub proxies: Variables,
    /// The working directory.
    pub workdir: Arc<GuestPath>,
    /// USER as it stands.
    pub user: Arc<str>,
    /// A here-document that is a script: name and content.
    pub script: Option<(Text, Text)>,
    /// What is mounted meanwhile, in the order in which it is mounted.
    pub mounts: Vec<MountStep>,
    /// Its network.
    pub network: Network,
    /// What it may do.
    pub security: Security,
    /// Its host name.
    pub hostname: String,
    /// Further lines of `/etc/hosts`.
    pub hosts: Arc<[ExtraHost]>,
    /// Bytes that `/dev/shm` may hold, if not the usual number.
    pub shm_size: Option<u64>,
    /// Limits of its processes.
    pub limits: Arc<[ResourceLimit]>,
    /// The command line as errors show it.
    pub shown: String,
}

impl Base {
    /// The base's config.
    #[must_use]
    pub fn config(&self) -> &ImageConfig {
        self.image.config()
    }
}

impl StageBase {
    /// The base as the plan shows it.
    #[must_use]
    pub fn shown(&self, stages: &[StagePlan]) -> String {
        match self {
            Self::Files(name) => name.clone(),
            Self::Scratch => "scratch".to_owned(),
            Self::Stage(position) => {
                stages.get(*position).map_or_else(String::new, |stage| stage.name.clone())
            }
            Self::Image(base) => Reference::to_string(&base.reference),
        }
    }
}
