//! What is chosen when a layer is applied.

use std::io::Read;

use super::{Applied, Applier, Observer, Restricted, Whiteouts};
use crate::layer::{LayerError, Limits, Marks};
use crate::rootfs::{GuestPath, Owner, Rootfs};

/// What becomes of names that climb out of the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Climbing {
    /// The layer is refused.
    Refuse,
    /// `..` at the top stays there.
    Clamp,
}

/// What becomes of owners that the process may not give to files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owners {
    /// They are errors.
    Required,
    /// Such files stay the process's own, without set-user-ID and set-group-ID bits, which would be those of somebody else
    /// (as POSIX has it for `cp -p`). Both are reported.
    Possible,
    /// As before, and no file gets such bits: the process is root in a user namespace alone, so that even files of root
    /// are an ordinary user's.
    Mapped,
}

/// How an archive is applied.
#[derive(Debug, Clone)]
pub struct Rules {
    /// The directory that the names of the archive start from. Must exist; links in it are followed.
    pub base: GuestPath,
    /// What becomes of names that climb out.
    pub climbing: Climbing,
    /// How whiteouts are treated.
    pub whiteouts: Whiteouts,
    /// How directories are marked with [`Whiteouts::Overlay`].
    pub marks: Marks,
    /// Whom everything belongs to instead of the owner in the archive.
    pub owner: Option<Owner>,
    /// What becomes of owners that cannot be given.
    pub owners: Owners,
}

impl Rules {
    /// Those of an image's layer, with the marks that this process can set.
    #[must_use]
    pub fn layer(whiteouts: Whiteouts) -> Self {
        Self {
            base: GuestPath::root(),
            climbing: Climbing::Refuse,
            whiteouts,
            marks: Marks::usual(),
            owner: None,
            owners: Owners::Required,
        }
    }
}

/// One layer that is to be applied: [`Application::new`], what is to be otherwise, and [`Application::run`].
pub struct Application<'a> {
    /// How.
    pub rules: Rules,
    /// What the layer may hold.
    pub limits: &'a Limits,
    /// Hears what is made.
    pub observer: Option<&'a mut dyn Observer>,
    /// For a process without privileges: takes the modes of directories that their owner may not write to or enter. They
    /// are so only when all layers are applied and this is settled.
    pub restricted: Option<&'a mut Restricted>,
}

impl<'a> Application<'a> {
    /// With nobody who hears what is made, by a process that has the privileges it needs.
    #[must_use]
    pub fn new(rules: Rules, limits: &'a Limits) -> Self {
        Self { rules, limits, observer: None, restricted: None }
    }

    /// Applies the layer in `tar` (uncompressed) to the tree `onto`.
    ///
    /// On an error the tree holds a part of the layer; nothing outside it has changed. All of `tar` is read, padding and
    /// all, so that a reader below can check it.
    ///
    /// # Errors
    /// [`LayerError`], with the entry that is to blame. With [`Whiteouts::Overlay`] see
    /// [`LayerError::depends_on_lower_layers`].
    pub fn run(self, tar: &mut dyn Read, onto: &Rootfs) -> Result<Applied, LayerError> {
        let Self { rules, limits, observer, restricted } = self;
        let mut nobody = ();
        let observer = observer.unwrap_or(&mut nobody);
        Applier { restricted, ..Applier::new(onto, &rules, limits, observer) }.apply(tar)
    }
}
