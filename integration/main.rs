//! Tests of the whole crate from outside.

mod registry_hostile;
mod support {
    pub(crate) mod fake_registry;
}
