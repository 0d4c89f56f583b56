//! What an image has in places where steps in the container's root see what the container has there.

use crate::build::Plan;
use crate::build::step::{PlannedStep, StageBase, Step};
use crate::cli::failure::Failure;
use crate::context::FoundDockerfile;
use crate::dockerfile::Span;
use crate::rootfs::GuestPath;
use crate::sandbox::InPlace;
use crate::sandbox::in_place::InPlaceError;

use super::Refused;

/// What `plan` puts where no RUN sees it: the lines, and what to say of each.
///
/// Places are taken as they are written: the links of images are not known yet.
///
/// # Errors
/// A RUN whose working directory it is.
pub(in crate::cli) fn find(
    plan: &Plan,
    steps: &InPlace<'_>,
    found: &FoundDockerfile,
) -> Result<Vec<(Span, String)>, Failure> {
    let mut hidden = Vec::new();
    for (step, path, purpose) in places(plan) {
        let Some(fixed) = steps.hiding(&path).map_err(|error| Failure::from_error(&error))? else { continue };
        match purpose {
            Purpose::Work => {
                let error = InPlaceError::Covered { path, fixed };
                return Err(Refused(Failure::from_error(&error)).at(step, found));
            }
            Purpose::Files => hidden.push((
                step.span,
                format!(
                    "no RUN sees what the image has at `{path}`, but what this container has there, since `{fixed}` stays \
                     where it is while steps run in place; the image is right all the same"
                ),
            )),
        }
    }
    Ok(hidden)
}

/// What a place is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// Files are put there.
    Files,
    /// A RUN starts there.
    Work,
}

/// The places that steps name, as far as there is a RUN afterwards.
fn places(plan: &Plan) -> Vec<(&PlannedStep, GuestPath, Purpose)> {
    let mut places = Vec::new();
    for (position, stage) in plan.stages.iter().enumerate() {
        let is_base =
            plan.stages.iter().any(|other| matches!(other.base, StageBase::Stage(base) if base == position));
        let last_run = stage.steps.iter().rposition(|step| matches!(step.step, Step::Run(_)));
        for (number, step) in stage.steps.iter().enumerate() {
            let is_before_a_run = is_base || last_run.is_some_and(|last| number < last);
            match &step.step {
                Step::Run(run) => places.push((step, GuestPath::clone(&run.workdir), Purpose::Work)),
                // What is no path is an error of the step.
                Step::Copy(copy) if is_before_a_run => {
                    let path = copy.workdir.join(copy.destination.as_bytes());
                    places.extend(path.ok().map(|path| (step, path, Purpose::Files)));
                }
                Step::Copy(_) | Step::Workdir(_) | Step::Config => {}
            }
        }
    }
    places
}
