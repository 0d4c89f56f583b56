//! Images of the store as bases: an earlier build, or a pull, has given them a name there.

use std::error::Error;

use super::{Candidate, Images};
use crate::build::named_contexts::LayoutImageName;
use crate::build::progress::Event;
use crate::build::services::{Base, ServiceError, Wanted};
use crate::image::descriptor::media_type;
use crate::image::matching::{MatchMode, Unfit};
use crate::image::platform::Platform;
use crate::image::reference::Reference;
use crate::store::choice::ChoiceError;

/// Where a base is looked for that the store has under its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pull {
    /// In the store; as docker build finds the images of this machine.
    Missing,
    /// In its registry.
    Always,
}

/// What the store has under a name.
pub(super) enum Stored {
    /// The image that is wanted.
    Base(Box<Candidate>),
    /// Nothing, or nothing that is worth a word when the registry fails, too.
    Nothing,
    /// The image that is wanted, but nothing for another platform of the build, which would then stand on something else.
    Partly(Box<Candidate>),
    /// Images for other platforms, in words.
    Others(String),
}

/// A registry that does not help where the store has an image for another platform.
#[derive(Debug, thiserror::Error)]
#[error("the store has it for {others}, not for `{wanted}`, and the registry was asked")]
pub struct Unhelped {
    pub(super) others: String,
    pub(super) wanted: Platform,
    /// What the registry was asked in vain for.
    #[source]
    pub(super) source: ServiceError,
}

impl Unhelped {
    /// What is wrong with the registry, where that is what `error` is about; else `error` itself.
    #[must_use]
    pub fn behind<'e>(
        error: &'e (dyn Error + Send + Sync + 'static),
    ) -> &'e (dyn Error + Send + Sync + 'static) {
        error.downcast_ref::<Self>().map_or(error, |unhelped| &*unhelped.source)
    }
}

/// The platforms of images that will not do because of them.
fn others(error: &(dyn Error + 'static)) -> Option<String> {
    match error.downcast_ref::<ChoiceError>()? {
        ChoiceError::NoPlatform { available, .. } => Some(available.clone()),
        ChoiceError::Unfit(Unfit::Other { found, .. } | Unfit::Variant { found, .. }) => {
            Some(format!("`{found}`"))
        }
        _ => None,
    }
}

impl Images<'_> {
    /// The image that the store has under the name `reference`, if it will do. Why it will not is told.
    pub(super) fn in_store(&self, reference: &Reference, wanted: &Wanted) -> Result<Stored, ServiceError> {
        // A digest is the same image everywhere.
        if self.pull == Pull::Always || reference.digest().is_some() {
            return Ok(Stored::Nothing);
        }
        let Some(known) = self.store.catalog().get(reference)? else { return Ok(Stored::Nothing) };
        // Of an index the store has all that the name stands for. Of one image nobody knows: the registry may have the very
        // platform, and a lower variant does not stand in its way.
        let mode = match wanted.mode {
            MatchMode::None => MatchMode::None,
            mode if media_type::is_index(&known.media_type) => mode,
            _ => MatchMode::Exact,
        };
        let wanted = &Wanted { mode, ..wanted.clone() };
        let (path, tag) = (self.store.root().to_owned(), Some(reference.to_string()));
        let name = LayoutImageName { path, tag, digest: None };
        let familiar = reference.familiar();
        let asked = |note: &str| self.progress.tell(&Event::Note(&format!("{note}; the registry is asked")));
        let lacks =
            |base: &Base| base.image.layers().iter().any(|layer| !self.store.blobs().contains(&layer.blob));
        let others = match self.in_layout(&name, reference, wanted) {
            Ok(Candidate { base: Base { foreign: Some(found), .. }, .. }) => Some(format!("`{found}`")),
            Ok(Candidate { base, .. }) if lacks(&base) => {
                asked(&format!("FROM {familiar}: the image of that name in the store lacks layers"));
                None
            }
            Ok(mut candidate) => {
                let digest = candidate.base.digest.short().to_owned();
                candidate.base.notes.push(format!(
                    "FROM {familiar}: the image of that name in the store (sha256:{digest}); --pull asks the registry"
                ));
                let serves = |platform: &Platform| {
                    let wanted = Wanted { platform: platform.clone(), ..wanted.clone() };
                    let found = self.in_layout(&name, reference, &wanted);
                    found.is_ok_and(|found| found.base.foreign.is_none() && !lacks(&found.base))
                };
                let all = &self.asked.platforms;
                let is_for_all = !all.contains(&wanted.platform)
                    || all.iter().all(|other| *other == wanted.platform || serves(other));
                if is_for_all {
                    return Ok(Stored::Base(Box::new(candidate)));
                }
                asked(&format!(
                    "FROM {familiar}: the store does not have it for all platforms of this build"
                ));
                return Ok(Stored::Partly(Box::new(candidate)));
            }
            Err(error) => {
                let others = others(&*error);
                if others.is_none() {
                    let why = crate::text::chained(&*error);
                    asked(&format!(
                        "FROM {familiar}: the image of that name in the store will not do: {why}"
                    ));
                }
                others
            }
        };
        let Some(others) = others else { return Ok(Stored::Nothing) };
        asked(&format!("FROM {familiar}: the store has it for {others}, not for `{}`", wanted.platform));
        Ok(Stored::Others(others))
    }
}
