//! What an image will say of itself, without building it.
//!
//! It is written piece by piece: as one value in memory the plan of a large Dockerfile took hundreds of megabytes.

use std::io;

use serde::ser::{Error as _, SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::finished::{describe, history_row};
use super::mount::{BindStep, CacheStep, MountStep, SecretStep, SshStep, TmpfsStep};
use super::services::Base;
use super::step::{CopyFrom, Plan, PlannedStep, StageBase, StagePlan, Step, Target};
use crate::dockerfile::{Need, Warning};
use crate::image::config::{History, ImageConfig};
use crate::sandbox::{Network, Security};
use crate::text::SafeJson;

/// Writes everything that `builder plan` prints: JSON with a line end. One plan is an object; of several, for one platform
/// each, there is a list.
///
/// # Errors
/// Those of `out`.
pub fn write(plans: &[Plan], mut out: impl io::Write) -> io::Result<()> {
    match plans {
        [plan] => serde_json::to_writer_pretty(SafeJson(&mut out), &Document(plan))?,
        plans => serde_json::to_writer_pretty(SafeJson(&mut out), &Each(|| plans.iter().map(Document)))?,
    }
    out.write_all(b"\n")
}

/// All of it.
struct Document<'p>(&'p Plan);

impl Serialize for Document<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(plan) = self;
        let stages = plan.stages.iter().map(|stage| StageDocument::of(stage, plan));
        let mut document = serializer.serialize_map(Some(3))?;
        let image = plan.targets.first().map(|target| ImageDocument { plan, target });
        document.serialize_entry("image", &image)?;
        document.serialize_entry("stages", &Each(|| stages.clone()))?;
        document.serialize_entry("warnings", &Each(|| plan.warnings.iter().map(WarningDocument::of)))?;
        document.end()
    }
}

/// A list of what an iterator gives.
struct Each<F>(F);

impl<F: Fn() -> I, I: Iterator<Item: Serialize>> Serialize for Each<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}

/// The config of the image, without times and with the diff ids of the base alone.
struct ImageDocument<'p> {
    plan: &'p Plan,
    target: &'p Target,
}

impl Serialize for ImageDocument<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { plan, target } = self;
        let base = plan.base(target).map(Base::config);
        // Without what may be large.
        let mut config = base.map_or_else(ImageConfig::default, ImageConfig::without_details);
        describe(&mut config, target);
        let Ok(Value::Object(fields)) = serde_json::to_value(&config) else {
            return Err(S::Error::custom("a config is an object"));
        };
        let history = HistoryDocument { plan, target, base: base.map_or(&[], |base| &base.history) };
        let mut document = serializer.serialize_map(Some(fields.len()))?;
        for (name, value) in &fields {
            match name.as_str() {
                "config" => document.serialize_entry(name, &target.config)?,
                "history" => document.serialize_entry(name, &history)?,
                _ => document.serialize_entry(name, value)?,
            }
        }
        document.end()
    }
}

/// The rows of the base, and those that the steps will leave.
struct HistoryDocument<'p> {
    plan: &'p Plan,
    target: &'p Target,
    base: &'p [History],
}

impl Serialize for HistoryDocument<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { plan, target, base } = self;
        let mut rows = serializer.serialize_seq(None)?;
        for row in *base {
            rows.serialize_element(row)?;
        }
        let (stages, _) = plan.descent(plan.result(target));
        for stage in stages.iter().rev() {
            let layers = stage.layer_positions(plan.layering);
            for (position, step) in stage.steps.iter().enumerate() {
                let empty_layer = !layers.contains(&position);
                if let Some(row) = history_row(step, None) {
                    rows.serialize_element(&History { empty_layer, ..row })?;
                }
            }
        }
        rows.end()
    }
}

#[derive(Serialize)]
struct WarningDocument {
    detail: String,
    instead: String,
    line: usize,
    rule: &'static str,
}

impl WarningDocument {
    fn of(warning: &Warning) -> Self {
        Self {
            detail: warning.detail(),
            instead: warning.instead(),
            line: warning.span.first_line,
            rule: warning.rule().name(),
        }
    }
}

/// A stage that would be built, for people and programs.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StageDocument<'p> {
    base: String,
    base_digest: Option<String>,
    line: usize,
    name: &'p str,
    platform: String,
    steps: StepsDocument<'p>,
}

impl<'p> StageDocument<'p> {
    fn of(stage: &'p StagePlan, plan: &'p Plan) -> Self {
        let base_digest = match &stage.base {
            StageBase::Image(base) => Some(base.digest.to_string()),
            StageBase::Scratch | StageBase::Stage(_) | StageBase::Files(_) => None,
        };
        Self {
            base: stage.base.shown(&plan.stages),
            base_digest,
            line: stage.span.first_line,
            name: &stage.name,
            platform: stage.platform.to_string(),
            steps: StepsDocument { steps: &stage.steps, plan },
        }
    }
}

struct StepsDocument<'p> {
    steps: &'p [PlannedStep],
    plan: &'p Plan,
}

impl Serialize for StepsDocument<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.steps.iter().map(|step| StepDocument::of(step, self.plan)))
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StepDocument<'p> {
    created_by: Option<&'p str>,
    instruction: &'p str,
    line: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    mounts: Vec<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    security: Option<&'static str>,
    step: &'static str,
}

impl<'p> StepDocument<'p> {
    fn of(step: &'p PlannedStep, plan: &Plan) -> Self {
        let run = match &step.step {
            Step::Run(run) => Some(run),
            Step::Config | Step::Workdir(_) | Step::Copy(_) => None,
        };
        let mounts = run.into_iter().flat_map(|run| &run.mounts);
        Self {
            created_by: step.created_by.as_deref(),
            instruction: &step.instruction,
            line: step.span.first_line,
            mounts: mounts.map(|mount| mount_value(mount, plan)).collect(),
            network: run.filter(|run| run.network == Network::None).map(|_| "none"),
            security: run.filter(|run| run.security == Security::Unconfined).map(|_| "insecure"),
            step: kind(&step.step),
        }
    }
}

fn kind(step: &Step) -> &'static str {
    match step {
        Step::Config => "config",
        Step::Workdir(_) => "workdir",
        Step::Copy(_) => "copy",
        Step::Run(_) => "run",
    }
}

fn mount_value(mount: &MountStep, plan: &Plan) -> Value {
    match mount {
        MountStep::Bind(BindStep { from, source, target, access }) => json!({
            "type": "bind",
            "from": from_value(from, plan),
            "source": source.to_string(),
            "target": target.to_string(),
            "access": access.word(),
        }),
        MountStep::Cache(CacheStep { id, namespace, seed, source, target, sharing, made, access }) => json!({
            "type": "cache",
            "id": id,
            "namespace": namespace,
            "from": seed.as_ref().map(|from| from_value(from, plan)),
            "source": source.to_string(),
            "target": target.to_string(),
            "sharing": sharing.word(),
            "mode": made.map(|made| format!("{:04o}", made.mode)),
            "owner": made.map(|made| format!("{}:{}", made.owner.uid, made.owner.gid)),
            "access": access.word(),
        }),
        MountStep::Tmpfs(TmpfsStep { target, size }) => {
            json!({ "type": "tmpfs", "target": target.to_string(), "size": size })
        }
        MountStep::Secret(SecretStep { id, target, variable, need, mode, owner }) => json!({
            "type": "secret",
            "id": id,
            "target": target.as_ref().map(ToString::to_string),
            "env": variable,
            "required": *need == Need::Required,
            "mode": format!("{mode:04o}"),
            "owner": format!("{}:{}", owner.uid, owner.gid),
        }),
        MountStep::Ssh(SshStep { id, target, need, mode, owner }) => json!({
            "type": "ssh",
            "id": id.as_deref().unwrap_or(SshStep::DEFAULT),
            "target": target.to_string(),
            "required": *need == Need::Required,
            "mode": format!("{mode:04o}"),
            "owner": format!("{}:{}", owner.uid, owner.gid),
        }),
    }
}

fn from_value(from: &CopyFrom, plan: &Plan) -> Value {
    match from {
        CopyFrom::Context => json!("context"),
        CopyFrom::Named(position) => json!({ "context": plan.contexts[*position].name }),
        CopyFrom::Scratch => json!("scratch"),
        CopyFrom::Stage(position) => json!({ "stage": plan.stages[*position].name }),
        CopyFrom::Image(position) => {
            let image = &plan.images[*position];
            json!({ "image": image.reference.to_string(), "digest": image.digest.to_string() })
        }
    }
}
