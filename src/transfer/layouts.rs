//! Images of OCI layouts as bases.

use std::io;
use std::path::Path;

use super::{Candidate, Documents, Images, WhileWanted, based, of_other_machine};
use crate::build::named_contexts::LayoutImageName;
use crate::build::progress::{Transfer, Way};
use crate::build::services::{ServiceError, Wanted};
use crate::image::descriptor::Descriptor;
use crate::image::manifest::Origin;
use crate::image::reference::Reference;
use crate::store::choice::{Choice, LayoutImage};
use crate::store::layout::Layout;

/// The tag that is meant where none is named, if there is an image that has it.
const USUAL_TAG: &str = "latest";

impl Images<'_> {
    /// The image of a layout that is called `reference` in the Dockerfile.
    pub(super) fn in_layout(
        &self,
        name: &LayoutImageName,
        reference: &Reference,
        wanted: &Wanted,
    ) -> Result<Candidate, ServiceError> {
        let layout = Layout::open(&name.path, &self.limits)?;
        let digest = name.digest.as_ref().map(ToString::to_string);
        let tag = name.tag.as_deref().or_else(|| layout.find(Some(USUAL_TAG)).is_ok().then_some(USUAL_TAG));
        let choice = Choice {
            // As for docker, a digest leaves nothing for the tag to say.
            name: digest.as_deref().or(tag),
            platform: &wanted.platform,
            asked: wanted.asked,
            mode: wanted.mode,
        };
        let LayoutImage { manifest, digest, config, cost, mut notes } = layout.choose(&choice)?;
        for note in &mut notes {
            *note = format!("{}: {note}", reference.familiar());
        }
        let foreign = of_other_machine(&config, wanted);
        let documents = Documents { manifest, digest, config, cost };
        based(reference, documents, Origin::Layout(name.path.clone()), notes, foreign)
    }

    /// Brings a blob of the layout at `path` into the store.
    pub(super) fn copy_blob(
        &self,
        path: &Path,
        blob: &Descriptor,
        unwanted: &dyn Fn() -> bool,
    ) -> Result<(), ServiceError> {
        let (name, place) = (blob.digest.to_string(), path.display().to_string());
        let transfer = Transfer::begin(self.progress, Way::Fetch, name, place, Some(blob.size));
        let layout = Layout::open(path, &self.limits)?;
        let writer = self.store.blobs().writer()?;
        let mut wanted = WhileWanted { writer, unwanted, transfer: Some(&transfer) };
        io::copy(&mut layout.reader(blob)?, &mut wanted)?;
        wanted.writer.commit(&blob.digest, blob.size)?;
        transfer.done();
        Ok(())
    }
}
