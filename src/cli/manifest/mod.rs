//! `builder manifest`: indexes of images that registries have.

mod inspect;
mod push;
mod source;

pub(super) use inspect::{InspectSettings, inspect};
pub(super) use push::{PushSettings, push};
