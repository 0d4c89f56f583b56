//! Plans of one Dockerfile for several platforms as one plan: what is the same for several of them is done once.
//!
//! Stages are the same as for BuildKit: where everything is that they are made from, with all variables replaced. That is
//! what a stage is on `$BUILDPLATFORM` that asks for nothing of the target.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::error::{BuildError, BuildErrorKind};
use super::mount::{BindStep, CacheStep, MountStep};
use super::services::Base;
use super::step::{CopyFrom, Plan, StageBase, StagePlan, Step, Target, UsedContext};
use crate::dockerfile::Warning;
use crate::image::platform::Platform;

/// Joins `plans`, one for each platform. Those that come first have the names of what is shared.
///
/// # Errors
/// When they do not agree on the time of the build.
pub fn joined(plans: Vec<Plan>) -> Result<Plan, BuildError> {
    let mut plans = plans.into_iter();
    let Some(first) = plans.next() else {
        return Err(invalid("there is no platform to build for"));
    };
    if plans.len() == 0 {
        return Ok(first);
    }
    let mut joint = Joint::of(first);
    for plan in plans {
        joint.add(plan)?;
    }
    Ok(joint.finish())
}

fn invalid(message: &str) -> BuildError {
    BuildError::at(None, BuildErrorKind::Invalid(message.to_owned()))
}

/// A plan while it is joined.
struct Joint {
    plan: Plan,
    /// The positions of stages, by number in the Dockerfile.
    same_number: BTreeMap<usize, Vec<usize>>,
    /// For each stage, the targets that need it, by position.
    users: Vec<BTreeSet<usize>>,
}

/// Where in the joint plan is what another one has at a position of its own.
#[derive(Default)]
struct Places {
    stages: Vec<usize>,
    images: Vec<usize>,
    contexts: Vec<usize>,
}

impl Places {
    fn of(&self, from: &mut CopyFrom) {
        match from {
            CopyFrom::Named(position) => *position = self.contexts[*position],
            CopyFrom::Stage(position) => *position = self.stages[*position],
            CopyFrom::Image(position) => *position = self.images[*position],
            CopyFrom::Context | CopyFrom::Scratch => {}
        }
    }

    /// `stage` as it is in the joint plan. What it needs is there already.
    fn moved(&self, mut stage: StagePlan) -> StagePlan {
        if let StageBase::Stage(position) = &mut stage.base {
            *position = self.stages[*position];
        }
        for step in &mut stage.steps {
            match &mut step.step {
                Step::Copy(copy) => self.of(&mut copy.from),
                Step::Run(run) => {
                    for mount in &mut run.mounts {
                        match mount {
                            MountStep::Bind(BindStep { from, .. })
                            | MountStep::Cache(CacheStep { seed: Some(from), .. }) => self.of(from),
                            MountStep::Cache(_)
                            | MountStep::Tmpfs(_)
                            | MountStep::Secret(_)
                            | MountStep::Ssh(_) => {}
                        }
                    }
                }
                Step::Config | Step::Workdir(_) => {}
            }
        }
        stage
    }
}

impl Joint {
    fn of(plan: Plan) -> Self {
        let users = plan.stages.iter().map(|_| BTreeSet::from([0])).collect();
        let mut same_number: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for stage in &plan.stages {
            same_number.entry(stage.index).or_default().push(stage.position);
        }
        Self { plan, same_number, users }
    }

    fn add(&mut self, plan: Plan) -> Result<(), BuildError> {
        let Plan { stages, targets, images, contexts, warnings, unused_args, clock, epoch, .. } = plan;
        if clock != self.plan.clock || epoch != self.plan.epoch {
            return Err(invalid("SOURCE_DATE_EPOCH depends on the platform, and a build has one time"));
        }
        let mut places = Places::default();
        for image in images {
            let is_same = |known: &Arc<Base>| is_same_base(known, &image);
            places.images.push(position_or_push(&mut self.plan.images, is_same, || Arc::clone(&image)));
        }
        for context in contexts {
            let is_same = |known: &UsedContext| known.number == context.number;
            places.contexts.push(position_or_push(&mut self.plan.contexts, is_same, || context.clone()));
        }
        let user = self.plan.targets.len();
        for stage in stages {
            let position = self.stage(places.moved(stage), user);
            places.stages.push(position);
        }
        let moved = |target: Target| Target { stage: places.stages[target.stage], ..target };
        self.plan.targets.extend(targets.into_iter().map(moved));
        // They are in the order of their lines.
        let known: BTreeSet<Warning> = self.plan.warnings.drain(..).chain(warnings).collect();
        self.plan.warnings = known.into_iter().collect();
        self.plan.unused_args.retain(|name| unused_args.contains(name));
        Ok(())
    }

    /// The position of `stage`, which the target `user` needs.
    fn stage(&mut self, stage: StagePlan, user: usize) -> usize {
        let same_number = self.same_number.entry(stage.index).or_default();
        let is_same = |position: &&usize| is_same_stage(&self.plan.stages[**position], &stage);
        let position = match same_number.iter().find(is_same) {
            Some(position) => *position,
            None => {
                let position = self.plan.stages.len();
                same_number.push(position);
                self.plan.stages.push(StagePlan { position, ..stage });
                self.users.push(BTreeSet::new());
                position
            }
        };
        self.users[position].insert(user);
        position
    }

    fn finish(self) -> Plan {
        let Self { mut plan, users, .. } = self;
        let platforms: Vec<Platform> =
            plan.targets.iter().map(|target| target.platform.normalise()).collect();
        for (stage, users) in plan.stages.iter_mut().zip(users) {
            let only = match Vec::from_iter(users)[..] {
                [user] => platforms.get(user),
                _ => None,
            };
            stage.label = Some(label(&stage.wanted, only).into());
        }
        plan
    }
}

/// How a stage for `platform` is called; of a stage that only one target needs, it is said which.
fn label(platform: &Platform, only: Option<&Platform>) -> String {
    match only.filter(|target| !target.same_machine(platform) || target.variant != platform.variant) {
        Some(target) if target.os == platform.os => {
            let variant = target.variant.as_ref().map(|variant| format!("/{variant}"));
            format!("{platform}->{}{}", target.architecture, variant.unwrap_or_default())
        }
        Some(target) => format!("{platform}->{target}"),
        None => platform.to_string(),
    }
}

/// The position of what `is_same`; it is put at the end if there is nothing.
fn position_or_push<T>(list: &mut Vec<T>, is_same: impl Fn(&T) -> bool, new: impl FnOnce() -> T) -> usize {
    list.iter().position(is_same).unwrap_or_else(|| {
        list.push(new());
        list.len() - 1
    })
}

fn is_same_base(one: &Base, other: &Base) -> bool {
    (&one.digest, &one.reference) == (&other.digest, &other.reference)
}

/// Whether two stages, whose references to others mean the same plan, are made from the same. What they are built for counts
/// besides what their files are for: it is the CPU that a RUN sees.
fn is_same_stage(one: &StagePlan, other: &StagePlan) -> bool {
    let same_base = match (&one.base, &other.base) {
        (StageBase::Scratch, StageBase::Scratch) => true,
        (StageBase::Stage(one), StageBase::Stage(other)) => one == other,
        (StageBase::Image(one), StageBase::Image(other)) => is_same_base(one, other),
        (StageBase::Files(one), StageBase::Files(other)) => one == other,
        _ => false,
    };
    let facts = |stage: &StagePlan| (stage.platform.clone(), stage.wanted.clone(), stage.reuse);
    same_base && facts(one) == facts(other) && one.steps == other.steps
}
