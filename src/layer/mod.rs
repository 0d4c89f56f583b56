//! Temporary.
use crate::rootfs::GuestPath;
/// One change.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// Is there.
    Put(GuestPath),
    /// Is not.
    Remove(GuestPath),
}
/// All.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changeset(pub Vec<Change>);
