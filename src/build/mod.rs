//! The interpreter: Dockerfile to plan, plan to image.

pub mod add;
mod bases;
mod cache_mount;
pub mod clock;
pub mod clues;
pub mod context_view;
pub mod copy;
pub mod error;
pub mod execute;
mod finished;
mod interpret;
pub mod key;
pub mod mount;
mod mounted;
pub mod network;
mod origin;
mod perform;
pub mod plan;
pub mod preview;
pub mod progress;
mod recall;
mod redact;
pub mod run_settings;
pub mod scope;
mod selection;
pub mod services;
mod stage;
mod stages;
pub mod step;
mod survey;

pub use error::{BuildError, BuildErrorKind};
pub use execute::execute;
pub use plan::{PlanRequest, plan};
pub use services::Services;
pub use step::Plan;
