//! What an image says of itself when its last stage is done.

use std::collections::BTreeMap;

use super::step::{Plan, PlannedStep, Row, Target};
use crate::image::config::{History, ImageConfig};
use crate::image::manifest::Image;

/// The comment of every history row that a Dockerfile makes; tools look for BuildKit's.
const COMMENT: &str = "buildkit.dockerfile.v0";

/// The comment of rows for layers that came without any.
const COMMENT_OF_BASE: &str = "buildkit.exporter.image.v0";

/// `image`, the rows of which this build has made from `first_row` on, with its final config, annotations and times. What
/// has no layer of this build is from the time that `time` says.
pub(super) fn finished(
    plan: &Plan,
    target: &Target,
    mut image: Image,
    first_row: usize,
    time: impl FnOnce() -> String,
) -> Image {
    image.edit(|config| {
        describe(config, target);
        config.config = target.config.clone();
    });
    image.annotations = annotations(plan, target);
    fill_times(&mut image, first_row, time);
    image
}

/// Puts everything that planning has found out into `config`, but for [`Target::config`], which may be large.
pub(super) fn describe(config: &mut ImageConfig, target: &Target) {
    config.author.clone_from(&target.author);
    config.architecture.clone_from(&target.platform.architecture);
    config.os.clone_from(&target.platform.os);
    config.variant.clone_from(&target.platform.variant);
    config.os_version.clone_from(&target.platform.os_version);
    config.os_features = Some(target.platform.os_features.clone()).filter(|features| !features.is_empty());
}

fn annotations(plan: &Plan, target: &Target) -> BTreeMap<String, String> {
    let mut annotations = BTreeMap::from([("io.builder.platform".to_owned(), target.platform.to_string())]);
    if let Some(base) = plan.base(target) {
        annotations.insert("org.opencontainers.image.base.name".to_owned(), base.reference.to_string());
        annotations.insert("org.opencontainers.image.base.digest".to_owned(), base.digest.to_string());
    }
    annotations
}

/// The row that `step` leaves in the history, if it leaves one.
pub(super) fn history_row(step: &PlannedStep, created: Option<String>) -> Option<History> {
    let created_by = Some(step.created_by.clone()?);
    let comment = match step.row {
        Row::Instruction => COMMENT,
        Row::Base => COMMENT_OF_BASE,
    };
    Some(History { created, created_by, comment: Some(comment.to_owned()), ..History::default() })
}

/// Rows that made no layer have the time of the layer before them, or of the first one of this build.
fn fill_times(image: &mut Image, first_row: usize, time: impl FnOnce() -> String) {
    let rows = &image.config().history[first_row..];
    let first = rows.iter().find_map(|row| row.created.clone());
    let mut current = if rows.is_empty() { String::new() } else { first.unwrap_or_else(time) };
    let mut times = Vec::with_capacity(rows.len());
    for row in rows {
        if let Some(created) = &row.created {
            current.clone_from(created);
        }
        times.push(current.clone());
    }
    image.set_created(first_row, |position, _| times.get(position - first_row).cloned());
}
