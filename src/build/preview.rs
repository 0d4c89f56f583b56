//! What an image will say of itself, without building it.

use serde_json::{Value, json};

use super::execute::describe;
use super::step::{Plan, StageBase, StagePlan, Step};
use crate::image::config::{History, ImageConfig};

/// The config of the image that `plan` gives, without times and with the diff ids of the base alone.
#[must_use]
pub fn config(plan: &Plan) -> ImageConfig {
    let mut config = ImageConfig::default();
    let mut rows = Vec::new();
    let mut stage = plan.stages.get(plan.target);
    while let Some(current) = stage {
        rows.extend(current.steps.iter().rev().filter_map(|step| {
            let created_by = Some(step.created_by.clone()?);
            Some(History { created_by, empty_layer: !step.step.makes_layer(), ..History::default() })
        }));
        stage = match &current.base {
            StageBase::Scratch => None,
            StageBase::Stage(position) => plan.stages.get(*position),
            StageBase::Image(base) => {
                config = base.config().clone();
                None
            }
        };
    }
    config.history.extend(rows.into_iter().rev());
    if let Some(stage) = plan.stages.get(plan.target) {
        describe(&mut config, stage, plan);
    }
    config
}

/// The stages that would be built, for people and programs.
#[must_use]
pub fn stages(plan: &Plan) -> Value {
    plan.stages.iter().map(|stage| stage_value(stage, plan)).collect()
}

fn stage_value(stage: &StagePlan, plan: &Plan) -> Value {
    let digest = match &stage.base {
        StageBase::Image(base) => Some(base.digest.to_string()),
        _ => None,
    };
    let steps: Vec<Value> = stage
        .steps
        .iter()
        .map(|step| {
            json!({
                "line": step.span.first_line,
                "instruction": step.instruction,
                "createdBy": step.created_by,
                "step": kind(&step.step),
            })
        })
        .collect();
    json!({
        "name": stage.name,
        "line": stage.span.first_line,
        "base": stage.base.shown(&plan.stages),
        "baseDigest": digest,
        "platform": stage.platform.to_string(),
        "steps": steps,
    })
}

fn kind(step: &Step) -> &'static str {
    match step {
        Step::Config => "config",
        Step::Workdir(_) => "workdir",
        Step::Copy(_) => "copy",
        Step::Run(_) => "run",
    }
}

/// Everything that `builder plan` prints.
#[must_use]
pub fn document(plan: &Plan) -> Value {
    let warnings: Vec<Value> = plan
        .warnings
        .iter()
        .map(|warning| json!({ "rule": warning.rule.name(), "line": warning.line, "detail": warning.detail }))
        .collect();
    json!({ "image": config(plan), "warnings": warnings, "stages": stages(plan) })
}
