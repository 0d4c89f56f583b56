//! Writing and pushing what was built.
//!
//! Files come first, then what registries are to have, then their tags, and at last the files that say what came out: who
//! reads those finds everything that they name. The first failure ends it; what is complete by then stays.

use std::io::Write;
use std::path::{Path, PathBuf};

use super::annotations::Annotated;
use super::keys::FLAG;
use super::output::{Dest, ImageForm, Kind, Output, PushedAs};
use super::reports::{Name, Outcome};
use super::{Outputs, time_of};
use crate::build::clock::{Clock, lower, rfc3339};
use crate::build::progress::Event;
use crate::build::services::{ImageSource as _, ServiceError};
use crate::cli::failure::Failure;
use crate::cli::hints::service_failure;
use crate::cli::settings::Settings;
use crate::cli::talk::naming;
use crate::image::descriptor::Descriptor;
use crate::image::digest::Digest;
use crate::image::encoding::TypeNames;
use crate::image::index::Index;
use crate::image::json::{self, Encoded};
use crate::image::manifest::{EncodedImage, Image};
use crate::image::platform::{Platform, PlatformFields};
use crate::image::reference::Reference;
use crate::layer::LayerError;
use crate::layer::form::{Compression, Times};
use crate::layer::write::TreeArchive;
use crate::rootfs::{Delivered, Delivery, DeliveryError, MergeError, Others, Rootfs, merged};
use crate::sandbox::Cancel;
use crate::snapshot::{Snapshotter, View};
use crate::store::directory::DirectoryError;
use crate::store::export::{CREATED, Content, Export, ExportError};
use crate::store::output::Writing;
use crate::store::{StoreError, archive, directory, layout, output};
use crate::transfer::Images;

/// What writing the outputs of a build needs.
pub(in crate::cli) struct Publishing<'a> {
    /// What was asked for.
    pub(in crate::cli) settings: &'a Settings,
    /// Registries and the store.
    pub(in crate::cli) images: &'a Images<'a>,
    /// How files of images are seen.
    pub(in crate::cli) snapshotter: &'a dyn Snapshotter,
    /// What was built, in the order of the platforms.
    pub(in crate::cli) built: &'a [Image],
    /// What time it is for the image.
    pub(in crate::cli) clock: Clock,
    /// Whether to stop.
    pub(in crate::cli) cancel: &'a Cancel,
}

/// What was built, in the form that an output wants.
struct Rendered<'a> {
    form: &'a ImageForm,
    /// One for each platform.
    images: Vec<Image>,
    /// Their documents.
    encoded: Vec<EncodedImage>,
    /// The index of the images, where there are several.
    index: Option<Encoded>,
    /// Of what is named: the index, or else the only image.
    top: Descriptor,
}

impl Rendered<'_> {
    /// The digest of what is named.
    fn digest(&self) -> &Digest {
        &self.top.digest
    }

    fn content(&self) -> Option<Content<'_>> {
        match &self.index {
            Some(index) => Some(Content::Index { index, images: &self.encoded }),
            None => self.encoded.first().map(Content::Image),
        }
    }

    fn both(&self) -> impl Iterator<Item = (&Image, &EncodedImage)> {
        self.images.iter().zip(&self.encoded)
    }
}

/// What is complete when something fails.
#[derive(Debug, Default)]
struct Done<'a> {
    /// Names with digests.
    pushed: Vec<String>,
    written: Vec<&'a Path>,
}

impl Done<'_> {
    /// In one line; nothing where nobody else sees anything of it: files that are written are where they were asked for.
    fn told(&self) -> Option<String> {
        if self.pushed.is_empty() {
            return None;
        }
        let pushed = listed(self.pushed.iter().map(String::as_str));
        let written = listed(self.written.iter().map(|path| path.display()));
        let written = if written.is_empty() { written } else { format!("; written: {written}") };
        Some(format!("the image was pushed: {pushed}{written}"))
    }
}

/// Some of them, and how many more there are.
fn listed<T: ToString>(all: impl ExactSizeIterator<Item = T>) -> String {
    const MOST: usize = 4;
    let more = all.len().saturating_sub(MOST);
    let list: Vec<String> = all.take(MOST).map(|one| one.to_string()).collect();
    if more == 0 { list.join(", ") } else { format!("{} and {more} more", list.join(", ")) }
}

/// A root file system that could not be written as an archive.
enum RootError {
    Layer(LayerError),
    Export(ExportError),
}

impl From<ExportError> for RootError {
    fn from(error: ExportError) -> Self {
        Self::Export(error)
    }
}

impl Publishing<'_> {
    /// Writes and pushes everything, then says the digest of the image.
    ///
    /// # Errors
    /// The first failure, with what is pushed and written by then.
    pub(in crate::cli) fn run(&self) -> Result<(), Failure> {
        let mut done = Done::default();
        self.run_noting(&mut done).map_err(|failure| Failure { done: done.told(), ..failure })
    }

    fn run_noting<'a>(&'a self, done: &mut Done<'a>) -> Result<(), Failure> {
        let outputs = &self.settings.outputs;
        if let Some(output) = outputs.list.iter().find(|output| output.merges()) {
            self.check_merged().map_err(|failure| failure.of_flag(&output.flag))?;
        }
        let mut rendered: Vec<Rendered<'_>> = Vec::new();
        for output in &outputs.list {
            let Some(form) = output.image() else { continue };
            if !rendered.iter().any(|known| known.form == form) {
                rendered.push(self.render(&output.flag, form)?);
            }
        }
        if rendered.is_empty() {
            // It has a digest, even if nobody wants the image.
            rendered.push(self.render(FLAG, &outputs.usual)?);
        }
        let find = |form: &ImageForm| rendered.iter().find(|known| known.form == form);
        for output in &outputs.list {
            let image = output.image().and_then(find);
            self.write(output, image).map_err(|failure| failure.of_flag(&output.flag))?;
            done.written.extend(output.path());
        }
        let pushes = || outputs.list.iter().filter_map(|output| Push::of(output, find(output.image()?)?));
        for push in pushes() {
            self.upload(&push)?;
        }
        for push in pushes() {
            self.name(&push, done)?;
        }
        // What is pushed is what others will ask for; else, as under BuildKit, the last image counts.
        let image = pushes().map(|push| push.image).next();
        let image = image.or_else(|| outputs.list.iter().rev().find_map(|output| find(output.image()?)));
        let Some(image) = image.or(rendered.last()) else { return Ok(()) };
        let mut names: Vec<Name<'_>> = Vec::new();
        for output in &outputs.list {
            let Some(image) = output.image().and_then(find) else { continue };
            for reference in output.names().into_iter().flatten() {
                let name = Name { reference, by: output.named_by(), digest: image.digest() };
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        if names.is_empty() {
            let named = |reference| Name { reference, by: PushedAs::Tag, digest: image.digest() };
            names.extend(outputs.names.iter().map(named));
        }
        self.report(outputs, image, names, done)
    }

    fn report<'a>(
        &'a self,
        outputs: &'a Outputs,
        image: &Rendered<'_>,
        names: Vec<Name<'_>>,
        done: &mut Done<'a>,
    ) -> Result<(), Failure> {
        // As for docker, an index has no id but its digest.
        let config = match &image.encoded[..] {
            [only] if image.index.is_none() => Some(&only.config.digest),
            _ => None,
        };
        let outcome = Outcome { top: &image.top, config, names };
        if !outputs.unpushed.is_empty() {
            let names: Vec<String> = outputs.unpushed.iter().map(Reference::familiar).collect();
            self.tell(&format!("not pushed, which --push would do: {}", names.join(", ")));
        }
        for report in &outputs.reports {
            self.with_writing(report.path(), |writing| report.write(&outcome, writing))?;
            done.written.push(report.path());
        }
        if outputs.list.iter().any(Output::is_streamed) {
            return Ok(());
        }
        self.images.progress.end();
        crate::cli::print(&format!("{}\n", outcome.top.digest))
    }

    /// The descriptor of an image's manifest, as an index has it. The time of the image is for who lists images: it is said in
    /// the store and in layouts, and in no index that is named.
    fn describe(&self, image: &Image, encoded: &EncodedImage, annotated: &Annotated) -> Descriptor {
        let manifest = &encoded.manifest;
        let mut descriptor =
            Descriptor::new(encoded.types.manifest(), manifest.digest.clone(), manifest.bytes.len() as u64);
        let platform = Platform::from(image.config());
        descriptor.platform = (!platform.os.is_empty()).then(|| PlatformFields::from(&platform));
        descriptor.annotations = Some(annotated.descriptor.clone()).filter(|known| !known.is_empty());
        descriptor
    }

    /// The time of what was built, RFC 3339: that of its first image.
    fn created(&self, images: &[Image]) -> String {
        let created = images.first().and_then(|image| image.config().created.clone());
        created.unwrap_or_else(|| rfc3339(self.clock.now()))
    }

    /// Makes of the images what an output wants, for which `flag` asked.
    fn render<'f>(&self, flag: &str, form: &'f ImageForm) -> Result<Rendered<'f>, Failure> {
        let layers = form.layers(self.clock);
        if form.times != Times::Kept && layers.rewrite.is_none() {
            self.warn(flag, "`rewrite-timestamp` has no effect: there is no SOURCE_DATE_EPOCH");
        }
        if form.encoding.types == TypeNames::Docker && form.layers.compression() == Compression::Zstd {
            self.warn(flag, "Docker's media types have none for zstd: many programs refuse such layers");
        }
        let (mut images, mut encoded, mut entries) = (Vec::new(), Vec::new(), Vec::new());
        for (built, annotated) in self.built.iter().zip(&form.annotations.images) {
            let in_form = self.images.in_form(built, &layers, self.cancel);
            let mut image = in_form.map_err(|error| service_failure(&*error))?;
            if let Some(latest) = form.epoch {
                lower(&mut image, latest);
            }
            if form.encoding.types == TypeNames::Docker {
                // Docker's manifests know nothing of annotations: they have those alone that somebody wants there.
                image.annotations.clear();
            }
            image.annotations.extend(annotated.document.clone());
            let documents = image.encode_as(form.encoding).map_err(|error| Failure::from_error(&error))?;
            self.images.keep(&documents).map_err(|error| Failure::from_error(&error))?;
            entries.push(self.describe(&image, &documents, annotated));
            images.push(image);
            encoded.push(documents);
        }
        let (index, mut top) = match &entries[..] {
            [only] => (None, only.clone()),
            _ => {
                let types = form.encoding.types;
                let annotated = &form.annotations.index;
                let index = Index::new(types, entries, annotated.document.clone());
                let index = json::encode(&index).map_err(|error| Failure::from_error(&error))?;
                let stored = self.images.store.blobs().put(&index.bytes);
                stored.map_err(|error| Failure::from_error(&error))?;
                let size = index.bytes.len() as u64;
                let mut top = Descriptor::new(types.index(), index.digest.clone(), size);
                top.annotations = Some(annotated.descriptor.clone());
                (Some(index), top)
            }
        };
        let created = || self.created(&images);
        top.annotations.get_or_insert_default().entry(CREATED.to_owned()).or_insert_with(created);
        Ok(Rendered { form, images, encoded, index, top })
    }

    /// Writes what is no matter of registries.
    fn write(&self, output: &Output, image: Option<&Rendered<'_>>) -> Result<(), Failure> {
        match (&output.kind, image) {
            (Kind::Push { .. }, _) => Ok(()),
            (Kind::Directory { dest, trees, others }, _) => {
                if output.merges() {
                    return self.write_directory(&output.flag, self.built, dest, *others);
                }
                for directory in output.directories() {
                    refuse_link(directory)?;
                }
                for (done, (image, tree)) in self.built.iter().zip(trees).enumerate() {
                    self.write_directory(&output.flag, std::slice::from_ref(image), tree, *others)
                        .inspect_err(|_| {
                            self.tell_complete(&output.flag, dest, &trees[..done], trees.len())
                        })?;
                }
                if *others == Others::Removed {
                    // Last: until then what was there may be all that there is.
                    directory::keep_only(dest, trees, &|| self.cancel.is_cancelled())
                        .map_err(|error| Failure::from_error(&error))?;
                }
                Ok(())
            }
            (Kind::Tar { dest, below }, _) => self.write_root(dest, below),
            (Kind::Stored { names, .. }, Some(image)) => self.store(names, image),
            (Kind::Layout { dest, readers, names, .. }, Some(image)) => {
                self.twice_if_damaged(
                    image,
                    |export, created| {
                        let blobs = self.images.store.blobs();
                        let cancelled = || self.cancel.is_cancelled();
                        layout::write(dest, *readers, &[export], blobs, created, &cancelled)
                    },
                    names,
                )?;
                self.tell(&format!("wrote the OCI layout {}", dest.display()));
                Ok(())
            }
            (Kind::Archive { dest, readers, names, .. }, Some(image)) => {
                self.twice_if_damaged(
                    image,
                    |export, created| {
                        let blobs = self.images.store.blobs();
                        self.write_to(dest, |out, place| {
                            let cancelled = || self.cancel.is_cancelled();
                            archive::write(out, place, *readers, &[export], blobs, created, &cancelled)
                        })
                    },
                    names,
                )?;
                if let Dest::File(path) = dest {
                    self.tell(&format!("wrote the archive {}", path.display()));
                }
                Ok(())
            }
            (_, None) => Err(Failure::new("there is no image to write")),
        }
    }

    fn tell(&self, note: &str) {
        self.images.progress.tell(&Event::Note(note));
    }

    /// Says what is not as `flag` asked for it, or does not do.
    fn warn(&self, flag: &str, detail: &str) {
        self.images.progress.tell(&Event::Warning { rule: flag, span: None, detail });
    }

    fn complete(&self, rendered: &Rendered<'_>) -> Result<(), Failure> {
        for (image, encoded) in rendered.both() {
            self.images.complete(image, encoded).map_err(|error| service_failure(&*error))?;
        }
        Ok(())
    }

    fn store(&self, names: &[Reference], image: &Rendered<'_>) -> Result<(), Failure> {
        self.complete(image)?;
        if names.is_empty() {
            // As under BuildKit.
            let digest = image.digest();
            self.tell(&format!(
                "stored {digest} without a name: `name=NAME` gives one, by which FROM finds it"
            ));
        }
        for name in names {
            let named = self.images.store.catalog().set(name, &image.top);
            named.map_err(|error| Failure::from_error(&error))?;
            self.tell(&format!("stored {}@{}", name.familiar(), image.digest()));
        }
        Ok(())
    }

    /// Writes an output; when that finds a damaged layer, once more after that was fetched again.
    fn twice_if_damaged(
        &self,
        image: &Rendered<'_>,
        write: impl Fn(Export<'_>, &str) -> Result<(), ExportError>,
        names: &[Reference],
    ) -> Result<(), Failure> {
        self.complete(image)?;
        let created = self.created(&image.images);
        let Some(content) = image.content() else { return Err(Failure::new("there is no image to write")) };
        let annotations = match (&image.index, &image.form.annotations.images[..]) {
            (None, [only]) => &only.descriptor,
            _ => &image.form.annotations.index.descriptor,
        };
        let write = || write(Export { content, names, annotations }, &created);
        let written = match write() {
            Err(ExportError::Store(StoreError::Corrupt(mismatch))) => {
                self.complete(image)?;
                match write() {
                    // One of this build's own, which nobody else has.
                    Err(ExportError::Store(StoreError::Missing(_))) => {
                        Err(StoreError::Corrupt(mismatch).into())
                    }
                    again => again,
                }
            }
            once => once,
        };
        written.map_err(|error| Failure::from_error(&error))
    }

    /// The files of an image.
    fn root(&self, image: &Image) -> Result<View, Failure> {
        let system = &image.config().os;
        if system.eq_ignore_ascii_case("windows") {
            let message = format!("the image is for {system}, whose layers are no root file system");
            return Err(Failure::new(message).hint("write an image, for instance with type=oci"));
        }
        let chain = self.images.unpack(image, self.cancel).map_err(|error| service_failure(&*error))?;
        self.snapshotter.view(&chain).map_err(|error| Failure::from_error(&error))
    }

    /// The files of several images.
    fn roots(&self, images: &[Image]) -> Result<Vec<View>, Failure> {
        images.iter().map(|image| self.root(image)).collect()
    }

    /// That the files of all platforms can be in one directory. Nothing has been written yet.
    fn check_merged(&self) -> Result<(), Failure> {
        if self.built.len() < 2 {
            return Ok(());
        }
        let views = self.roots(self.built)?;
        let trees: Vec<&Rootfs> = views.iter().map(View::root).collect();
        let checked = merged::check(&trees, &|| self.cancel.is_cancelled());
        checked.map_err(|error| match error {
            MergeError::Conflict { path, trees: (first, second) } => {
                let of = |number: usize| Platform::from(self.built[number].config());
                let message = format!(
                    "`{path}` is a file of {} and of {}, and `platform-split=false` has one place for both",
                    of(first),
                    of(second)
                );
                Failure::new(message).hint(
                    "leave platform-split out, and there is a directory for each platform; or give the file a name \
                     with $TARGETARCH$TARGETVARIANT in it",
                )
            }
            other => Failure::from_error(&other),
        })
    }

    /// Writes the files of these images into one directory.
    fn write_directory(
        &self,
        flag: &str,
        images: &[Image],
        dest: &Path,
        others: Others,
    ) -> Result<(), Failure> {
        let views = self.roots(images)?;
        let trees: Vec<&Rootfs> = views.iter().map(View::root).collect();
        let delivery = Delivery {
            time: time_of(self.clock),
            others,
            names: self.settings.limits.layers.names,
            cancelled: &|| self.cancel.is_cancelled(),
        };
        let done = directory::write(dest, &trees, &delivery).map_err(|error| {
            if let DirectoryError::Incomplete { source: DeliveryError::Cancelled, .. } = error {
                // That it was stopped is all that is said in the end.
                self.warn(flag, &format!("the directory `{}` is incomplete now", dest.display()));
            }
            Failure::from_error(&error)
        })?;
        self.tell(&format!("wrote the root file system, {} entries, to {}", done.entries, dest.display()));
        if let Some(left_out) = left_out(&done) {
            self.tell(&format!("{left_out}; `-o type=tar` keeps all"));
        }
        Ok(())
    }

    /// Which directories of several are what they are to be, where writing them has ended too early.
    fn tell_complete(&self, flag: &str, dest: &Path, complete: &[PathBuf], of: usize) {
        let names: Vec<_> = complete.iter().filter_map(|tree| tree.file_name()?.to_str()).collect();
        if !names.is_empty() {
            let detail = format!(
                "of {of} directories in `{}`, these are written: {}",
                dest.display(),
                names.join(", ")
            );
            self.warn(flag, &detail);
        }
    }

    fn write_root(&self, dest: &Dest, below: &[String]) -> Result<(), Failure> {
        let views = self.roots(self.built)?;
        let merged: Vec<&Rootfs> = views.iter().map(View::root).collect();
        let split: Vec<_> = below.iter().cloned().zip(merged.iter().copied()).collect();
        let archive = TreeArchive {
            time: time_of(self.clock),
            bytes: self.settings.limits.layers.written,
            cancelled: &|| self.cancel.is_cancelled(),
        };
        let mut entries = 0;
        let written = self.write_to(dest, |out, _| {
            let written = match below.is_empty() {
                true => archive.write(&merged, out),
                false => archive.write_below(&split, out),
            };
            entries = written.map_err(RootError::Layer)?;
            Ok(())
        });
        written.map_err(|error| match error {
            RootError::Layer(error) => Failure::from_error(&error),
            RootError::Export(error) => Failure::from_error(&error),
        })?;
        if let Dest::File(path) = dest {
            self.tell(&format!("wrote the root file system, {entries} entries, to {}", path.display()));
        }
        Ok(())
    }

    /// Has `write` write to a file, which appears whole, or to standard output. It is told what the place is called. Who
    /// reads a pipe may show something on the same terminal: the view is gone by then.
    fn write_to<E: From<ExportError>>(
        &self,
        dest: &Dest,
        write: impl FnOnce(&mut dyn Write, &Path) -> Result<(), E>,
    ) -> Result<(), E> {
        if dest.is_read_meanwhile() {
            self.images.progress.end();
        }
        match dest {
            Dest::File(path) => {
                self.with_writing(path, |writing| output::appear(path, writing, |out| write(out, path)))
            }
            Dest::StandardOutput => {
                let place = Path::new("standard output");
                self.with_writing(place, |writing| output::stream(writing, |out| write(out, place)))
            }
        }
    }

    /// What goes on while the file `dest` is written.
    fn with_writing<T>(&self, dest: &Path, body: impl FnOnce(&Writing<'_>) -> T) -> T {
        body(&Writing {
            cancelled: &|| self.cancel.is_cancelled(),
            waits: &|| self.tell(&format!("waiting for a reader of the pipe {}", dest.display())),
        })
    }

    /// Every destination has everything but its name before the first tag is moved: where one can't be had, all tags stay as
    /// they were.
    fn upload(&self, push: &Push<'_>) -> Result<(), Failure> {
        let failed = |error: ServiceError| service_failure(&*error).of_flag(push.flag);
        for destination in push.names {
            self.tell(&format!("pushing {}", push.called(destination).familiar()));
            for (image, encoded) in push.image.both() {
                self.images.upload(image, encoded, destination).map_err(failed)?;
                if push.image.index.is_some() {
                    let name = by_digest(destination, &encoded.manifest.digest);
                    self.images.name(&encoded.manifest, encoded.types.manifest(), &name).map_err(failed)?;
                }
            }
        }
        Ok(())
    }

    fn name(&self, push: &Push<'_>, done: &mut Done<'_>) -> Result<(), Failure> {
        let top = &push.image.top;
        let document = match (&push.image.index, &push.image.encoded[..]) {
            (Some(index), _) => index,
            (None, [only]) => &only.manifest,
            (None, _) => return Err(Failure::new("there is no image to push")),
        };
        for destination in push.names {
            let name = push.called(destination);
            let put = || self.images.name(document, &top.media_type, &name);
            let named = naming((self.cancel, self.images.progress), push.flag, &name, put);
            named.map_err(|error| service_failure(&*error).of_flag(push.flag))?;
            let pushed = name.with_digest(top.digest.clone());
            let pushed = pushed.familiar();
            self.tell(&format!("pushed {pushed}"));
            done.pushed.push(pushed);
        }
        Ok(())
    }
}

/// The image of that digest beside `name`.
fn by_digest(name: &Reference, digest: &Digest) -> Reference {
    name.with_digest(digest.clone()).without_tag()
}

/// A directory for a platform is in that of the output, and no link leads elsewhere.
pub(super) fn refuse_link(directory: &Path) -> Result<(), Failure> {
    if directory.is_symlink() {
        let message = format!("`{}` is a link, and the files would be elsewhere", directory.display());
        return Err(Failure::new(message).hint("remove it: it is the directory for the files of a platform"));
    }
    Ok(())
}

/// An image on its way to a registry.
struct Push<'a> {
    flag: &'a str,
    names: &'a [Reference],
    by: PushedAs,
    image: &'a Rendered<'a>,
}

impl<'a> Push<'a> {
    fn of(output: &'a Output, image: &'a Rendered<'a>) -> Option<Self> {
        match &output.kind {
            Kind::Push { names, by, .. } => Some(Self { flag: &output.flag, names, by: *by, image }),
            _ => None,
        }
    }

    /// What the registry is to call the image.
    fn called(&self, destination: &Reference) -> Reference {
        match self.by {
            PushedAs::Tag => destination.clone(),
            PushedAs::Digest => by_digest(destination, self.image.digest()),
        }
    }
}

/// What a directory lacks of an image, in one sentence.
fn left_out(done: &Delivered) -> Option<String> {
    let parts = [
        (done.nodes, "devices and sockets"),
        (done.set_ids, "set-user-ID and set-group-ID bits"),
        (done.attributes, "capabilities and other extended attributes"),
    ];
    let parts: Vec<String> =
        parts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
    (!parts.is_empty()).then(|| format!("left out: {}", parts.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_complete_is_told_where_others_see_it() {
        let told = |pushed: &[&str], written: &[&'static str]| {
            let pushed = pushed.iter().map(|name| (*name).to_owned()).collect();
            Done { pushed, written: written.iter().map(Path::new).collect() }.told()
        };
        assert_eq!(told(&[], &["a.tar"]), None);
        assert_eq!(told(&["r/a:1@x"], &[]).unwrap(), "the image was pushed: r/a:1@x");
        assert_eq!(
            told(&["a", "b", "c", "d", "e", "f"], &["a.tar", "id"]).unwrap(),
            "the image was pushed: a, b, c, d and 2 more; written: a.tar, id"
        );
    }

    #[test]
    fn what_a_directory_lacks_is_said_in_one_sentence() {
        assert_eq!(left_out(&Delivered { entries: 7, ..Delivered::default() }), None);
        let done = Delivered { entries: 1, nodes: 2, set_ids: 0, attributes: 3 };
        let told = "left out: 2 devices and sockets, 3 capabilities and other extended attributes";
        assert_eq!(left_out(&done).as_deref(), Some(told));
    }
}
