//! What an image will say of itself, without building it.

use serde_json::{Value, json};

use super::finished::{describe, history_row};
use super::mount::{BindStep, CacheStep, MountStep, SecretStep, SshStep, TmpfsStep};
use super::step::{CopyFrom, Plan, StageBase, StagePlan, Step};
use crate::dockerfile::{Access, Need, Sharing};
use crate::image::config::{History, ImageConfig};
use crate::sandbox::{Network, Security};

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
            let mut value = json!({
                "line": step.span.first_line,
                "instruction": step.instruction,
                "createdBy": step.created_by,
                "step": kind(&step.step),
            });
            if let Step::Run(run) = &step.step {
                if !run.mounts.is_empty() {
                    value["mounts"] = run.mounts.iter().map(|mount| mount_value(mount, plan)).collect();
                }
                if run.network == Network::None {
                    value["network"] = json!("none");
                }
                if run.security == Security::Unconfined {
                    value["security"] = json!("insecure");
                }
            }
            value
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

fn mount_value(mount: &MountStep, plan: &Plan) -> Value {
    match mount {
        MountStep::Bind(BindStep { from, source, target, access }) => json!({
            "type": "bind",
            "from": from_value(from, plan),
            "source": source.to_string(),
            "target": target.to_string(),
            "access": access_value(*access),
        }),
        MountStep::Cache(CacheStep { id, namespace, seed, source, target, sharing, made, access }) => json!({
            "type": "cache",
            "id": id,
            "namespace": namespace,
            "from": seed.as_ref().map(|from| from_value(from, plan)),
            "source": source.to_string(),
            "target": target.to_string(),
            "sharing": match sharing {
                Sharing::Shared => "shared",
                Sharing::Private => "private",
                Sharing::Locked => "locked",
            },
            "mode": made.map(|made| format!("{:04o}", made.mode)),
            "owner": made.map(|made| format!("{}:{}", made.owner.uid, made.owner.gid)),
            "access": access_value(*access),
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

fn access_value(access: Access) -> &'static str {
    match access {
        Access::ReadOnly => "ro",
        Access::ReadWrite => "rw",
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

/// Everything that `builder plan` prints.
#[must_use]
pub fn document(plan: &Plan) -> Value {
    let warnings: Vec<Value> = plan
        .warnings
        .iter()
        .map(|warning| {
            json!({
                "rule": warning.rule().name(),
                "line": warning.span.first_line,
                "detail": warning.detail(),
                "instead": warning.instead(),
            })
        })
        .collect();
    json!({ "image": config(plan), "warnings": warnings, "stages": stages(plan) })
}
