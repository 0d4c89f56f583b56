//! References: `registry/repository[:tag][@digest]`.

/// The name of an image in a registry.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reference {
    placeholder: (),
}
