//! Images with their layers in the form that an output asks for.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};

use super::{Images, Told, WhileWanted};
use crate::build::progress::{Transfer, Way};
use crate::build::services::ServiceError;
use crate::image::descriptor::Descriptor;
use crate::image::digest::{DiffId, Digest};
use crate::image::manifest::{Image, Layer, Origin};
use crate::layer::Limits;
use crate::layer::convert::{Conversion, ConvertError, convert};
use crate::layer::form::{Compression, Converted, LayerForm, LayerRequest, Rewrite};
use crate::layer::zstd::{LargeWindows, Side};
use crate::registry::in_parallel;
use crate::sandbox::Cancel;
use crate::store::StoreError;

/// What BuildKit notes at layers whose times it has lowered.
const REWRITTEN: &str = "buildkit/rewritten-timestamp";

/// Layers that are converted at once: while one waits for the disk or its decompressor, another one compresses.
const AT_ONCE: usize = 2;

/// The kind of the records in the store.
const RECORDS: &str = "forms";

/// A layer could not be converted.
#[derive(Debug, thiserror::Error)]
#[error("cannot convert the layer {blob} to {form}")]
struct Unconverted {
    blob: Digest,
    form: LayerForm,
    #[source]
    source: ConvertError,
}

/// What became of a layer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct FormRecord {
    /// What it was and became: those of other names are damaged.
    name: String,
    diff_id: DiffId,
    blob: Descriptor,
}

/// What is to become of a layer.
#[derive(Clone, Copy)]
struct Task<'a> {
    position: usize,
    layer: &'a Layer,
    form: LayerForm,
    rewrite: Option<Rewrite>,
}

impl Task<'_> {
    /// Layers of the same content become the same.
    fn name(&self) -> String {
        let rewrite = self.rewrite.map(|rewrite| format!(" {rewrite}")).unwrap_or_default();
        format!("{} {}{rewrite}", self.layer.diff_id.0, self.form)
    }
}

impl Images<'_> {
    /// The image with its layers as they are asked for: in the store, each converted once and found again later. The layers
    /// of the base stay what and where they are unless the request is for all; an image of which all layers are as they
    /// should be is given back as it is.
    ///
    /// Memory: what two compressors take, whatever the size and the number of layers.
    ///
    /// # Errors
    /// When a layer cannot be had, read or stored, or `cancel` is on.
    pub fn in_form(
        &self,
        image: &Image,
        request: &LayerRequest,
        cancel: &Cancel,
    ) -> Result<Image, ServiceError> {
        let mut tasks: BTreeMap<String, Task<'_>> = BTreeMap::new();
        for task in tasks_of(image, request) {
            tasks.entry(task.name()).or_insert(task);
        }
        let (names, tasks): (Vec<String>, Vec<Task<'_>>) = tasks.into_iter().unzip();
        let windows = LargeWindows::default();
        let converted = in_parallel(&tasks, AT_ONCE, |task| self.converted(task, &windows, cancel))?;
        let converted: BTreeMap<String, Layer> = names.into_iter().zip(converted).collect();
        let mut result = image.clone();
        for task in tasks_of(image, request) {
            if let Some(layer) = converted.get(&task.name()) {
                result.replace_layer(task.position, layer.clone());
            }
        }
        Ok(result)
    }

    fn converted(
        &self,
        task: &Task<'_>,
        windows: &LargeWindows,
        cancel: &Cancel,
    ) -> Result<Layer, ServiceError> {
        let layer = match self.remembered(task)? {
            Some(layer) => layer,
            None => self.convert(task, windows, cancel)?,
        };
        Ok(annotated(layer, task))
    }

    /// The layer as it was converted before, if it still is in the store.
    fn remembered(&self, task: &Task<'_>) -> Result<Option<Layer>, StoreError> {
        let name = task.name();
        let bytes = match self.store.records(RECORDS).get(&Digest::of(name.as_bytes())) {
            // It has been removed; the layer can be converted again.
            Err(StoreError::Record(_)) => None,
            result => result?,
        };
        let record: Option<FormRecord> = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let record = record.filter(|record| record.name == name && self.store.blobs().contains(&record.blob));
        Ok(record.map(|FormRecord { diff_id, blob, .. }| Layer { blob, diff_id, origin: Origin::Stored }))
    }

    fn convert(
        &self,
        task: &Task<'_>,
        windows: &LargeWindows,
        cancel: &Cancel,
    ) -> Result<Layer, ServiceError> {
        let blob = &task.layer.blob;
        let source = match self.try_to_convert(task, windows, cancel)? {
            Ok(layer) => return Ok(layer),
            Err(source) => source,
        };
        if cancel.is_cancelled() {
            return Err("stopped while a layer was being converted".into());
        }
        match self.damage(blob) {
            // It is fetched once more.
            Some(_) if task.layer.origin != Origin::Stored => {}
            // The next build makes it again.
            Some(damage) => return Err(damage.into()),
            None => return Err(unconverted(task, source)),
        }
        self.try_to_convert(task, windows, cancel)?.map_err(|source| unconverted(task, source))
    }

    fn try_to_convert(
        &self,
        task: &Task<'_>,
        windows: &LargeWindows,
        cancel: &Cancel,
    ) -> Result<Result<Layer, ConvertError>, ServiceError> {
        let Task { layer, form, rewrite, .. } = *task;
        let cancelled = || cancel.is_cancelled();
        self.fetch(&layer.blob, &layer.origin, &cancelled)?;
        let limits = self.unpacking.as_ref().map_or_else(Limits::default, |unpacking| unpacking.limits);
        let conversion = Conversion {
            form,
            rewrite,
            threads: std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
            limits: &limits,
            side: Side { windows, cancelled: &cancelled },
        };
        let (name, to, size) = (layer.blob.digest.to_string(), form.to_string(), layer.blob.size);
        let transfer = Transfer::begin(self.progress, Way::Convert, name, to, Some(size));
        let stored = Told { blob: self.store.blobs().reader(&layer.blob)?, transfer: &transfer };
        let mut out =
            WhileWanted { writer: self.store.blobs().writer()?, unwanted: &cancelled, transfer: None };
        let diff_id = match convert(stored, &layer.diff_id, &mut out, &conversion) {
            Ok(diff_id) => diff_id,
            Err(error) => return Ok(Err(error)),
        };
        transfer.done();
        let (digest, size) = out.writer.finish()?;
        let blob = form.noted_at(Descriptor::new(form.compression().media_type(), digest, size));
        let record = FormRecord { name: task.name(), diff_id: diff_id.clone(), blob: blob.clone() };
        let bytes = serde_json::to_vec(&record)?;
        self.store.records(RECORDS).put(&Digest::of(record.name.as_bytes()), &bytes)?;
        Ok(Ok(Layer { blob, diff_id, origin: Origin::Stored }))
    }
}

fn unconverted(task: &Task<'_>, source: ConvertError) -> ServiceError {
    Unconverted { blob: task.layer.blob.digest.clone(), form: task.form, source }.into()
}

/// Says at the descriptor that its times were lowered.
fn annotated(mut layer: Layer, task: &Task<'_>) -> Layer {
    if let Some(rewrite) = task.rewrite {
        let annotations = layer.blob.annotations.get_or_insert_default();
        annotations.insert(REWRITTEN.to_owned(), rewrite.epoch().to_string());
    }
    layer
}

/// The layers of `image` that are not as they are asked for.
fn tasks_of<'a>(image: &'a Image, request: &LayerRequest) -> impl Iterator<Item = Task<'a>> {
    let LayerRequest { form, converted, rewrite } = *request;
    let base = image.base_layers();
    image.layers().iter().enumerate().filter_map(move |(position, layer)| {
        if position >= base {
            let is_fine = rewrite.is_none() && LayerForm::of(&layer.blob) == Some(form);
            return (!is_fine).then_some(Task { position, layer, form, rewrite });
        }
        let compression = Compression::of_media_type(&layer.blob.media_type);
        let is_fine = converted == Converted::Own || compression == form.compression();
        (!is_fine).then_some(Task { position, layer, form, rewrite: None })
    })
}
