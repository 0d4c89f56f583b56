//! The interpreter: Dockerfile to plan, plan to image.

pub mod add;
mod bases;
pub mod clock;
pub mod copy;
pub mod error;
pub mod execute;
mod interpret;
pub mod plan;
pub mod preview;
pub mod progress;
pub mod scope;
pub mod services;
pub mod step;

pub use error::{BuildError, BuildErrorKind};
pub use execute::execute;
pub use plan::{PlanRequest, plan};
pub use services::Services;
pub use step::Plan;
