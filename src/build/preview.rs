//! What an image will say of itself, without building it.

use serde_json::{Value, json};

use super::finished::{describe, history_row};
use super::step::{Plan, StageBase, StagePlan, Step};
use crate::image::config::{History, ImageConfig};

/// The config of the image that `plan` gives, without times and with the diff ids of the base alone.
#[must_use]
pub fn config(plan: &Plan) -> ImageConfig {
    let Some(result) = plan.result() else { return ImageConfig::default() };
    let (stages, base) = plan.descent(result);
    let mut config = base.map(|base| base.config().clone()).unwrap_or_default();
    for stage in stages.iter().rev() {
        let layers = stage.layer_positions(plan.layering);
        for (position, step) in stage.steps.iter().enumerate() {
            let empty_layer = !layers.contains(&position);
            config.history.extend(history_row(step, None).map(|row| History { empty_layer, ..row }));
        }
    }
    describe(&mut config, result, plan);
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
