//! OCI values: what an image is made of, without any input or output.

pub mod assemble;
pub mod config;
pub mod descriptor;
pub mod digest;
pub mod document;
pub mod encoding;
pub mod index;
pub mod json;
pub mod manifest;
pub mod matching;
pub mod platform;
pub mod reference;
pub mod target;

/// Text from outside for a message: at most 100 characters.
#[must_use]
pub fn shown(text: &str) -> String {
    crate::text::line(text.as_bytes(), 100)
}
