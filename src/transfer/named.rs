//! Images of the store as bases: an earlier build, or a pull, has given them a name there.

use super::{Candidate, Images};
use crate::build::named_contexts::LayoutImageName;
use crate::build::progress::Event;
use crate::build::services::{Base, ServiceError, Wanted};
use crate::image::descriptor::media_type;
use crate::image::matching::MatchMode;
use crate::image::reference::Reference;

/// Where a base is looked for that the store has under its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pull {
    /// In the store; as docker build finds the images of this machine.
    Missing,
    /// In its registry.
    Always,
}

impl Images<'_> {
    /// The image that the store has under the name `reference`, if it will do. Why it will not is told.
    pub(super) fn in_store(
        &self,
        reference: &Reference,
        wanted: &Wanted,
    ) -> Result<Option<Candidate>, ServiceError> {
        // A digest is the same image everywhere.
        if self.pull == Pull::Always || reference.digest().is_some() {
            return Ok(None);
        }
        let Some(known) = self.store.catalog().get(reference)? else { return Ok(None) };
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
        let why_not = match self.in_layout(&name, reference, wanted) {
            Ok(Candidate { base, .. }) if base.foreign.is_some() => "is for another platform".to_owned(),
            Ok(Candidate { base, .. })
                if base.image.layers().iter().any(|layer| !self.store.blobs().contains(&layer.blob)) =>
            {
                "lacks layers".to_owned()
            }
            Ok(mut candidate) => {
                let Base { digest, notes, .. } = &mut candidate.base;
                notes.push(format!(
                    "FROM {familiar}: the image of that name in the store (sha256:{}); --pull asks the registry",
                    digest.short()
                ));
                return Ok(Some(candidate));
            }
            Err(error) => format!("will not do: {}", crate::text::chained(&*error)),
        };
        let note = format!("FROM {familiar}: the image of that name in the store {why_not}");
        self.progress.tell(&Event::Note(&format!("{note}; the registry is asked")));
        Ok(None)
    }
}
