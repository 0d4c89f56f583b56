//! OCI values: what an image is made of, without any input or output.

pub mod config;
pub mod descriptor;
pub mod digest;
pub mod index;
pub mod json;
pub mod manifest;
pub mod platform;
pub mod reference;
