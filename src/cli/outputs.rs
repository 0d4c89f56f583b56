//! What comes out of a build: layout, archive, pushed names and the digest.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use rustix::fs::Access;

use super::failure::Failure;
use super::hints::service_failure;
use super::settings::Settings;
use crate::build::clock::{Clock, rfc3339};
use crate::build::progress::{Event, Progress};
use crate::context::{Context, FoundDockerfile};
use crate::image::manifest::{EncodedImage, Image};
use crate::image::reference::Reference;
use crate::sandbox::in_place::PRIVATE_DIRECTORY;
use crate::store::export::{Content, Export, ExportError};
use crate::store::{StoreError, archive, is_of_kernel, layout};
use crate::transfer::Images;

/// What the build itself writes must not be part of its context.
pub(super) fn hide_outputs(context: &mut Context, settings: &Settings) -> Result<(), Failure> {
    // Of a context that is the whole root.
    let private = Path::new("/").join(PRIVATE_DIRECTORY);
    let own = [settings.store.as_path(), &private];
    for path in own.into_iter().chain(settings.outputs().map(|(_, path)| path)) {
        context.exclude(path).map_err(|error| Failure::from_error(&error))?;
    }
    Ok(())
}

/// That nothing is read or written where the files of a container are kept for the time of a step, and removed after it:
/// `named` are paths with their flags.
pub(super) fn check_not_private<'a>(
    named: impl IntoIterator<Item = (&'static str, &'a Path)>,
) -> Result<(), Failure> {
    let private = Path::new("/").join(PRIVATE_DIRECTORY);
    for (flag, path) in named {
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        if absolute.starts_with(&private) || real(path).starts_with(&private) {
            let message = format!("`{}` is in `{}`", path.display(), private.display());
            return Err(Failure::new(message)
                .of_flag(flag)
                .hint("choose another place: that directory is builder's own, and goes with the build"));
        }
    }
    Ok(())
}

/// What would be in the way of an output is found before anything is built.
pub(super) fn check_outputs(settings: &Settings, found: &FoundDockerfile) -> Result<(), Failure> {
    if let Some(path) = &settings.layout {
        layout::check(path).map_err(|error| Failure::from_error(&error).of_flag("--oci-layout-path"))?;
    }
    for (flag, path) in [("--tar-path", &settings.archive), ("--digest-file", &settings.digest_file)] {
        if let Some(path) = path.as_ref().filter(|path| path.is_dir()) {
            let message = format!("`{}` is a directory, expected the name of a file", path.display());
            return Err(Failure::new(message).of_flag(flag));
        }
    }
    for (flag, path) in settings.outputs() {
        // Of an archive that is there another takes its place.
        let written = if flag == "--tar-path" { Written::Replaced } else { Written::There };
        if let Some(why) = obstacle(path, written) {
            let message = format!("`{}` cannot be written: {why}", path.display());
            return Err(Failure::new(message).of_flag(flag).hint("write it somewhere else"));
        }
    }
    let mut taken: Vec<_> = found.file().map(|file| (real(file), "the Dockerfile")).into_iter().collect();
    let store = real(&settings.store);
    for (flag, path) in settings.outputs() {
        let place = real(path);
        if place.starts_with(&store) {
            let message = format!("`{}` is in the store", path.display());
            return Err(Failure::new(message)
                .of_flag(flag)
                .hint("write it somewhere else: the store is builder's own"));
        }
        if let Some((_, other)) = taken.iter().find(|(known, _)| *known == place) {
            let message = format!("`{}` would overwrite {other}", path.display());
            return Err(Failure::new(message).of_flag(flag));
        }
        taken.push((place, flag));
    }
    Ok(())
}

/// What becomes of an output that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Written {
    /// It is written to.
    There,
    /// Its directory gets another of its name.
    Replaced,
}

/// Why nothing can be written to `path`, as far as that is known without trying.
fn obstacle(path: &Path, written: Written) -> Option<String> {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let is_file = absolute.is_file();
    if absolute.exists() && (written == Written::There || !is_file) {
        return access(&absolute, Access::WRITE_OK);
    }
    let directory = absolute.ancestors().skip(1).find(|directory| directory.exists())?;
    if !directory.is_dir() {
        return Some(format!("`{}` is not a directory", directory.display()));
    }
    if is_of_kernel(directory) {
        return Some(format!("`{}` has only what the kernel puts there", directory.display()));
    }
    access(directory, Access::WRITE_OK | Access::EXEC_OK)
}

fn access(path: &Path, wanted: Access) -> Option<String> {
    let error = rustix::fs::access(path, wanted).err()?;
    Some(format!("`{}`: {}", path.display(), std::io::Error::from(error)))
}

/// Where `path` really is; what of it does not exist yet is taken as it stands.
fn real(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for ancestor in absolute.ancestors() {
        #[expect(
            clippy::disallowed_methods,
            reason = "paths of the user's flags, to be compared and not to be opened"
        )]
        let real = std::fs::canonicalize(ancestor);
        if let (Ok(real), Ok(rest)) = (real, absolute.strip_prefix(ancestor)) {
            return if rest.as_os_str().is_empty() { real } else { real.join(rest) };
        }
    }
    absolute
}

/// Makes the directory for the digest file.
fn make_parent(path: &Path) -> Result<(), Failure> {
    let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) else { return Ok(()) };
    std::fs::create_dir_all(parent).map_err(|error| {
        Failure::new(format!("cannot make the directory `{}`: {error}", parent.display()))
            .of_flag("--digest-file")
    })
}

/// The digest alone, without a line feed, as kaniko writes it. A file that is there is
/// written to, not replaced: in Kubernetes it may be the mount `/dev/termination-log`.
fn write_digest(path: &Path, digest: &str) -> Result<(), Failure> {
    make_parent(path)?;
    let is_new = !path.exists();
    overwrite(path, digest.as_bytes()).map_err(|source| {
        if is_new {
            // An empty file would be taken for a digest.
            let _ = std::fs::remove_file(path);
        }
        let error = ExportError::Io { action: "write", path: path.to_owned(), source };
        Failure::from_error(&error).of_flag("--digest-file")
    })
}

/// Writes a small file over what is there, cutting that off last: a full disk does not take what was there before.
fn overwrite(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
    file.write_all(content)?;
    // A pipe or terminal has no end.
    if file.metadata()?.is_file() { file.set_len(content.len() as u64) } else { Ok(()) }
}

/// Writes and pushes the image, then says its digest.
pub(super) fn publish(
    settings: &Settings,
    images: &Images<'_>,
    image: &Image,
    clock: Clock,
) -> Result<(), Failure> {
    let progress = images.progress;
    let encoded = &image.encode().map_err(|error| Failure::from_error(&error))?;
    images.keep(encoded).map_err(|error| Failure::from_error(&error))?;
    if settings.layout.is_some() || settings.archive.is_some() {
        images.complete(image, encoded).map_err(|error| service_failure(&*error))?;
    }
    let created = image.config().created.clone().unwrap_or_else(|| rfc3339(clock.now()));
    let exports = [Export { content: Content::Image(encoded), names: &settings.names }];
    let blobs = images.store.blobs();
    if let Some(path) = &settings.layout {
        twice_if_damaged(images, image, encoded, || layout::write(path, &exports, blobs, &created))
            .map_err(|failure| failure.of_flag("--oci-layout-path"))?;
        progress.tell(&Event::Note(&format!("wrote the OCI layout {}", path.display())));
    }
    if let Some(path) = &settings.archive {
        twice_if_damaged(images, image, encoded, || archive::write(path, &exports, blobs, &created))
            .map_err(|failure| failure.of_flag("--tar-path"))?;
        progress.tell(&Event::Note(&format!("wrote the archive {}", path.display())));
    }
    push(images, image, encoded, &settings.push, progress)?;
    let digest = &encoded.manifest.digest;
    if let Some(path) = &settings.digest_file {
        write_digest(path, &digest.to_string())?;
    }
    progress.end();
    super::print(&format!("{digest}\n"))
}

/// Writes an output; when that finds a damaged layer, once more after that was fetched again.
fn twice_if_damaged(
    images: &Images<'_>,
    image: &Image,
    encoded: &EncodedImage,
    write: impl Fn() -> Result<(), ExportError>,
) -> Result<(), Failure> {
    let written = match write() {
        Err(ExportError::Store(StoreError::Corrupt(mismatch))) => {
            images.complete(image, encoded).map_err(|error| service_failure(&*error))?;
            match write() {
                // One of this build's own, which nobody else has.
                Err(ExportError::Store(StoreError::Missing(_))) => Err(StoreError::Corrupt(mismatch).into()),
                again => again,
            }
        }
        once => once,
    };
    written.map_err(|error| Failure::from_error(&error))
}

/// Every destination has all blobs before the first tag is moved: where one can't be had, all tags stay as they were.
fn push(
    images: &Images<'_>,
    image: &Image,
    encoded: &EncodedImage,
    destinations: &[Reference],
    progress: &dyn Progress,
) -> Result<(), Failure> {
    for destination in destinations {
        progress.tell(&Event::Note(&format!("pushing {}", destination.familiar())));
        images
            .upload(image, encoded, destination)
            .map_err(|error| service_failure(&*error).of_flag("--destination"))?;
    }
    for destination in destinations {
        images
            .name(encoded, destination)
            .map_err(|error| service_failure(&*error).of_flag("--destination"))?;
        let name = destination.familiar();
        progress.tell(&Event::Note(&format!("pushed {name}@{}", encoded.manifest.digest)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_nothing_can_be_written_is_known_before() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("file");
        std::fs::write(&file, "").unwrap();
        for (path, words) in [
            (place.path().join("new/deep/name"), None),
            (file.clone(), None),
            (file.join("x"), Some("file` is not a directory")),
            ("/dev/null".into(), None),
            ("/dev/null/x".into(), Some("`/dev/null` is not a directory")),
            ("/proc/x/y".into(), Some("`/proc` has only what the kernel puts there")),
        ] {
            for written in [Written::There, Written::Replaced] {
                let found = obstacle(&path, written);
                assert_eq!(found.is_some(), words.is_some(), "{path:?} {found:?}");
                assert!(found.unwrap_or_default().contains(words.unwrap_or_default()), "{path:?}");
            }
        }
    }
}
