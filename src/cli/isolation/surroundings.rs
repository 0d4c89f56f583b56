//! What a process becomes for a build.

use super::Chosen;
use crate::sandbox::Strategy;
use crate::sandbox::own::{self, Own, OwnError, Wish};
use crate::sys;

/// What a process becomes for a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) enum Surroundings {
    /// It stays where it is, and mounts nothing.
    Unchanged,
    /// It gets mounts of its own.
    Mounts,
    /// It gets users and mounts of its own.
    UsersAndMounts,
}

impl Surroundings {
    /// What is needed for what was `chosen`.
    pub(in crate::cli) fn of(chosen: Option<Chosen>) -> Self {
        match chosen {
            Some(Chosen { way, strategy, .. }) if way.mounts() => match strategy {
                Strategy::UserNamespace => Self::UsersAndMounts,
                _ => Self::Mounts,
            },
            _ => Self::Unchanged,
        }
    }

    /// Enters the user namespace, if there is to be one. To be called before any other thread exists.
    pub(in crate::cli) fn enter_users(self) -> Result<Own, OwnError> {
        match self {
            Self::UsersAndMounts => own::enter_user_namespace(Wish::All),
            Self::Mounts | Self::Unchanged => own::stay(),
        }
    }

    /// Enters the mount namespace, if there is to be one, after [`Surroundings::enter_users`].
    pub(in crate::cli) fn enter_mounts(self) -> Result<(), OwnError> {
        match self {
            Self::UsersAndMounts | Self::Mounts => {
                sys::enter_private_mounts().map_err(|error| OwnError::of_mounts(&error))
            }
            Self::Unchanged => Ok(()),
        }
    }
}
