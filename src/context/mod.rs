//! Where COPY and ADD read: the build context and its `.dockerignore`.

pub mod glob;
pub mod ignore;

pub use ignore::{IgnoreError, IgnoreRules};
