//! Small files that say what came out: digests, names and BuildKit's metadata.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::output::PushedAs;
use crate::cli::args::BuildArgs;
use crate::cli::failure::Failure;
use crate::image::descriptor::Descriptor;
use crate::image::digest::Digest;
use crate::image::reference::Reference;
use crate::store::export::ExportError;
use crate::store::output::{self, Writing};

/// A file that says what came out.
#[derive(Debug)]
pub(in crate::cli) struct Report {
    content: Content,
    path: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    /// The digest of the manifest.
    Digest,
    /// The digest of the config, which Docker takes for the image's id; of an index its own.
    ImageId,
    /// BuildKit's metadata.
    Metadata,
    /// Each name with the digest.
    Names,
    /// Each name with its tag and the digest.
    NamesAndTags,
}

impl Content {
    fn text(self, outcome: &Outcome<'_>) -> Result<String, Failure> {
        let digest = &outcome.top.digest;
        let lines = |called: fn(&Name<'_>) -> String| -> String {
            outcome.names.iter().map(|name| format!("{}@{}\n", called(name), name.digest)).collect()
        };
        match self {
            Self::Digest => Ok(digest.to_string()),
            Self::ImageId => Ok(outcome.config.unwrap_or(digest).to_string()),
            Self::Names => Ok(lines(|name| name.reference.name())),
            Self::NamesAndTags => Ok(lines(tagged)),
            Self::Metadata => metadata(outcome),
        }
    }
}

/// What came out.
pub(super) struct Outcome<'a> {
    /// The manifest, or the index of several.
    pub(super) top: &'a Descriptor,
    /// The config; an index has none.
    pub(super) config: Option<&'a Digest>,
    /// The names of all images.
    pub(super) names: Vec<Name<'a>>,
}

/// A name of an image.
#[derive(PartialEq, Eq)]
pub(super) struct Name<'a> {
    pub(super) reference: &'a Reference,
    /// Whether the image has the tag.
    pub(super) by: PushedAs,
    /// Of the image's own manifest.
    pub(super) digest: &'a Digest,
}

/// The name, with the tag if the image has one.
fn tagged(name: &Name<'_>) -> String {
    let repository = name.reference.name();
    match name.reference.tag().filter(|_| name.by == PushedAs::Tag) {
        Some(tag) => format!("{repository}:{tag}"),
        None => repository,
    }
}

impl Report {
    /// Those that the flags ask for.
    pub(super) fn all(args: &BuildArgs) -> Vec<Self> {
        let given = [
            (Content::Digest, &args.digest_file),
            (Content::ImageId, &args.iidfile),
            (Content::Names, &args.image_name_with_digest_file),
            (Content::NamesAndTags, &args.image_name_tag_with_digest_file),
            (Content::Metadata, &args.metadata_file),
        ];
        let report = |(content, path): (Content, &Option<PathBuf>)| {
            path.as_ref().map(|path| Self { content, path: path.clone() })
        };
        given.into_iter().filter_map(report).collect()
    }

    /// The flag that asks for it.
    pub(super) fn flag(&self) -> &'static str {
        match self.content {
            Content::Digest => "--digest-file",
            Content::ImageId => "--iidfile",
            Content::Metadata => "--metadata-file",
            Content::Names => "--image-name-with-digest-file",
            Content::NamesAndTags => "--image-name-tag-with-digest-file",
        }
    }

    /// Where it is written.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes it.
    pub(super) fn write(&self, outcome: &Outcome<'_>, writing: &Writing<'_>) -> Result<(), Failure> {
        let text = self.content.text(outcome)?;
        let written = match self.content {
            Content::Metadata => self.replace(&text, writing),
            _ => self.overwrite(&text, writing),
        };
        written.map_err(|error| Failure::from_error(&error).of_flag(self.flag()))
    }

    /// Writes the whole text and nothing else, without a line feed of its own: that is how kaniko and docker write digests.
    /// A file that is there is written to, not replaced: in Kubernetes it may be the mount `/dev/termination-log`.
    fn overwrite(&self, text: &str, writing: &Writing<'_>) -> Result<(), ExportError> {
        make_parent(&self.path)?;
        let is_new = !self.path.exists();
        overwrite(&self.path, text.as_bytes(), writing).inspect_err(|_| {
            if is_new {
                // An empty file would be taken for a digest.
                let _ = std::fs::remove_file(&self.path);
            }
        })
    }

    /// Writes a document, which appears whole.
    fn replace(&self, text: &str, writing: &Writing<'_>) -> Result<(), ExportError> {
        output::appear(&self.path, writing, |out| {
            out.write_all(text.as_bytes()).map_err(io_error("write", &self.path))
        })
    }
}

fn io_error(action: &'static str, path: &Path) -> impl Fn(io::Error) -> ExportError {
    move |source| ExportError::Io { action, path: path.to_owned(), source }
}

/// What BuildKit's clients write. There is no history of builds that `buildx.build.ref` could point to.
fn metadata(outcome: &Outcome<'_>) -> Result<String, Failure> {
    let mut document = Map::new();
    let descriptor = serde_json::to_value(outcome.top).map_err(|error| Failure::from_error(&error))?;
    if let Some(config) = outcome.config {
        document.insert("containerimage.config.digest".to_owned(), json!(config.to_string()));
    }
    document.insert("containerimage.descriptor".to_owned(), descriptor);
    document.insert("containerimage.digest".to_owned(), json!(outcome.top.digest.to_string()));
    let own = outcome.names.iter().filter(|name| *name.digest == outcome.top.digest);
    let names: Vec<String> = own.map(tagged).collect();
    if !names.is_empty() {
        document.insert("image.name".to_owned(), json!(names.join(",")));
    }
    let text = serde_json::to_string_pretty(&Value::Object(document));
    Ok(text.map_err(|error| Failure::from_error(&error))? + "\n")
}

fn make_parent(path: &Path) -> Result<(), ExportError> {
    let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) else { return Ok(()) };
    std::fs::create_dir_all(parent).map_err(io_error("make the directory", parent))
}

/// Writes a small file over what is there, cutting that off last: a full disk does not take what was there before.
fn overwrite(path: &Path, content: &[u8], writing: &Writing<'_>) -> Result<(), ExportError> {
    let mut options = OpenOptions::new();
    let mut file = output::open(path, options.write(true).create(true).truncate(false), writing)?;
    let mut write = || {
        file.write_all(content)?;
        // A pipe or terminal has no end.
        if file.metadata()?.is_file() { file.set_len(content.len() as u64) } else { Ok(()) }
    };
    write().map_err(io_error("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_pushed_by_its_digest_is_told_without_tag() {
        let reference: Reference = "r.example/a:1".parse().unwrap();
        let digest = Digest::of(b"x");
        for (by, called) in [(PushedAs::Tag, "r.example/a:1"), (PushedAs::Digest, "r.example/a")] {
            let top = Descriptor::new("x", digest.clone(), 1);
            let names = vec![Name { reference: &reference, by, digest: &digest }];
            let outcome = Outcome { top: &top, config: None, names };
            let text = |content: Content| content.text(&outcome).unwrap();
            assert_eq!(text(Content::Names), format!("r.example/a@{digest}\n"));
            assert_eq!(text(Content::NamesAndTags), format!("{called}@{digest}\n"));
            let metadata: Value = serde_json::from_str(&text(Content::Metadata)).unwrap();
            assert_eq!(metadata["image.name"], called);
        }
    }
}
