//! COPY and ADD with `--link`: a layer that is made on nothing and put on top of the stage, whatever the stage holds.
//!
//! So it needs none of the stage's files, and neither is it made anew when these change: its layer is remembered as that of
//! the same step on an empty root as well.

use std::fs::File;
use std::io::{Read, Seek as _, Write as _};
use std::time::Instant;

use super::clock::{Clock, rfc3339};
use super::error::{BuildError, BuildErrorKind};
use super::execute::{Executor, Files};
use super::key;
use super::perform::Below;
use super::progress::Event;
use super::recall::{GroupKey, Work};
use super::services::Reuse;
use super::stage::{StageRun, append_rows};
use super::step::{CopyStep, Onto, PlannedStep, StagePlan, Step};
use crate::cache::{CacheKey, Remembered, RememberedLayer};
use crate::image::manifest::{Image, Layer};
use crate::layer::form::LayerForm;
use crate::layer::{self, Application, Formats, Rules, Whiteouts, WriteOptions, decompress};
use crate::rootfs::Rootfs;
use crate::snapshot::{Recorded, SnapshotError};
use crate::store::unpacked::Chain;

/// The copy that is all that `steps` do to files, if its layer is made on nothing.
pub(super) fn linked(steps: &[PlannedStep]) -> Option<(usize, &CopyStep)> {
    let mut changing = steps.iter().enumerate().filter(|(_, step)| step.step.changes_files());
    match (changing.next(), changing.next()) {
        (Some((position, PlannedStep { step: Step::Copy(copy), .. })), None)
            if copy.onto == Onto::Nothing =>
        {
            Some((position, copy))
        }
        _ => None,
    }
}

impl Executor<'_> {
    /// What a step depends on besides what is below it, when that is nothing.
    pub(super) fn key_of_nothing(&self) -> CacheKey {
        key::start(&Image::scratch(), self.services.restriction.as_deref())
    }

    /// Finds or makes the layer of a group that is one copy, and puts it on top of the stage.
    pub(super) fn link(
        &self,
        run: &mut StageRun<'_>,
        group: usize,
        work: Work,
        copy: &CopyStep,
        position: usize,
    ) -> Result<(), BuildError> {
        let stage = run.stage;
        let key = run.keys.get(&group).and_then(GroupKey::linked).cloned();
        let (layer, made, own) = match key.as_ref().and_then(|key| self.linked_layer(key, stage)) {
            Some(known) => {
                self.count.add_found();
                let place = &run.place(Some(position));
                let instruction = &stage.steps[position].instruction;
                self.services.progress.tell(&Event::Found { place, instruction });
                (known.layer, known.created, None)
            }
            None => {
                self.count.add_done();
                let made = self.layer_on_nothing(run, copy, position);
                let (layer, chain) =
                    made.map_err(|kind| BuildError::at(Some(stage.steps[position].span), kind))?;
                (layer, rfc3339(Clock::Machine.now()), Some(chain))
            }
        };
        let kept = self.remember(run, group, work, &layer, &made);
        if let (true, Some(key), Some(_)) = (kept, key, &own) {
            self.remember_linked(key, &layer, &made);
        }
        append_rows(run, group, Some(layer.clone()), Some(self.shown_time(&made)));
        let below = std::mem::replace(&mut run.done.files, Files::OfImage);
        run.done.files = match (below, own) {
            // On nothing, it is all there is.
            (Files::Chain(below), Some(own)) if below.is_empty() => {
                Files::Chain(if kept { self.keep(&run.done.image, own) } else { own })
            }
            (below, own) => self.on_top(below, own, &layer),
        };
        Ok(())
    }

    fn layer_on_nothing(
        &self,
        run: &StageRun<'_>,
        copy: &CopyStep,
        position: usize,
    ) -> Result<(Layer, Chain), BuildErrorKind> {
        self.stop_if_cancelled()?;
        let place = &run.place(Some(position));
        let instruction = &run.stage.steps[position].instruction;
        self.services.progress.tell(&Event::Started { place, instruction });
        let began = Instant::now();
        let recording = self.services.snapshotter.begin(Chain::empty())?;
        self.copy(copy, run.stage, Below::Nothing, recording.root())?;
        let (layer, chain) = self.layer(recording)?;
        let size = Some(layer.blob.size);
        self.services.progress.tell(&Event::Finished { place, elapsed: began.elapsed(), layer: size });
        Ok((layer, chain))
    }

    /// The layer that the same step has left on an empty root, or on top of another stage.
    fn linked_layer(&self, key: &CacheKey, stage: &StagePlan) -> Option<RememberedLayer> {
        if self.reuse(stage) == Reuse::No {
            return None;
        }
        match self.services.cache.lookup(key) {
            Ok(Some(Remembered { mut layers, .. })) if layers.len() == 1 => layers.pop(),
            Ok(_) => None,
            Err(error) => {
                self.tell_problem(&error);
                None
            }
        }
    }

    fn remember_linked(&self, key: CacheKey, layer: &Layer, created: &str) {
        let made = RememberedLayer { key: key.clone(), layer: layer.clone(), created: created.to_owned() };
        let result = Remembered { content: key.clone(), created: created.to_owned(), layers: vec![made] };
        if let Err(error) = self.services.cache.insert(&key, &result) {
            self.tell_problem(&error);
        }
    }

    /// The files of a stage that has those `below` and `layer` on top of them; `own` are those of the layer, if it was made
    /// just now.
    fn on_top(&self, below: Files, own: Option<Chain>, layer: &Layer) -> Files {
        match (below, own) {
            // All that is in one directory would have to be unpacked again for the sake of one layer.
            (Files::Chain(tree @ Chain::Tree(_)), _) => match self.laid(tree, layer) {
                Ok(chain) => return Files::Chain(chain),
                Err(error) => {
                    let note = format!("the files of the stage are unpacked anew: {error}");
                    self.services.progress.tell(&Event::Detail(&note));
                }
            },
            (_, Some(own)) => self.discard(&own),
            (_, None) => {}
        }
        // Whoever wants them has them unpacked. Of layers that are kept it is only this one then, and perhaps nobody wants
        // them.
        Files::OfImage
    }

    /// The files of `below` with those of `layer` on top.
    fn laid(&self, below: Chain, layer: &Layer) -> Result<Chain, BuildErrorKind> {
        let recording = self.services.snapshotter.begin(below)?;
        self.lay(self.services.blobs.reader(&layer.blob)?, recording.root())?;
        Ok(recording.finish()?.chain)
    }

    /// Does a copy as a layer on top of what is in `onto`: for steps that have a layer together with others.
    pub(super) fn copy_on_top(
        &self,
        copy: &CopyStep,
        stage: &StagePlan,
        onto: &Rootfs,
    ) -> Result<(), BuildErrorKind> {
        let recording = self.services.snapshotter.begin(Chain::empty())?;
        self.copy(copy, stage, Below::Nothing, recording.root())?;
        let Recorded { changes, files, chain, .. } = recording.finish()?;
        let scratch = self.services.workspace.scratch("linked").map_err(SnapshotError::from)?;
        let path = scratch.path().join("layer");
        let mut file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)
            .map_err(BuildErrorKind::StepFiles)?;
        // It is read once, here.
        let options = WriteOptions {
            form: LayerForm::PASSING,
            bytes: self.services.limits.layers.written,
            ..WriteOptions::default()
        };
        layer::write_with(&changes, &files, &mut file, &options)?;
        self.stop_if_cancelled()?;
        drop(files);
        self.discard(&chain);
        file.flush().and_then(|()| file.rewind()).map_err(BuildErrorKind::StepFiles)?;
        self.lay(file, onto)
    }

    fn lay(&self, layer: impl Read + Send, onto: &Rootfs) -> Result<(), BuildErrorKind> {
        let limits = &self.services.limits.layers;
        let mut archive = decompress(layer, Formats::Layer, limits).map_err(BuildErrorKind::StepFiles)?;
        Application::new(Rules::layer(Whiteouts::Remove), limits).run(&mut archive, onto)?;
        Ok(())
    }

    /// Removes the files of a layer, which nobody needs any more.
    fn discard(&self, own: &Chain) {
        let Chain::Layers(layers) = own else { return };
        let directories = layers.layers().iter().filter_map(|layer| layer.root_dir().parent());
        directories.for_each(|directory| self.services.workspace.remove(directory));
    }
}
