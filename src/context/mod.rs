//! Where COPY and ADD read: the build context and its `.dockerignore`.

mod candidates;
pub mod dir;
pub mod glob;
pub mod ignore;

pub use dir::{Context, ContextError, ContextLimits, FoundDockerfile};
pub use ignore::{IgnoreError, IgnoreRules, Verdict};
