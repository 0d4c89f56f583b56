//! Small files that say what came out: digests, names and BuildKit's metadata.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::cli::args::BuildArgs;
use crate::cli::failure::Failure;
use crate::image::descriptor::Descriptor;
use crate::image::digest::Digest;
use crate::image::reference::Reference;
use crate::store::archive;
use crate::store::export::ExportError;

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

/// What came out.
pub(super) struct Outcome<'a> {
    /// The manifest, or the index of several.
    pub(super) top: &'a Descriptor,
    /// The config; an index has none.
    pub(super) config: Option<&'a Digest>,
    /// The names of all images, each with the digest of its own manifest.
    pub(super) names: Vec<(&'a Reference, &'a Digest)>,
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
    pub(super) fn write(&self, outcome: &Outcome<'_>) -> Result<(), Failure> {
        let digest = &outcome.top.digest;
        let lines = |line: &dyn Fn(&Reference, &Digest) -> String| {
            outcome.names.iter().map(|(name, digest)| line(name, digest) + "\n").collect::<String>()
        };
        match self.content {
            Content::Digest => self.overwrite(&digest.to_string()),
            Content::ImageId => self.overwrite(&outcome.config.unwrap_or(digest).to_string()),
            Content::Names => self.overwrite(&lines(&|name, digest| format!("{}@{digest}", name.name()))),
            Content::NamesAndTags => self.overwrite(&lines(&|name, digest| match name.tag() {
                Some(tag) => format!("{}:{tag}@{digest}", name.name()),
                None => format!("{}@{digest}", name.name()),
            })),
            Content::Metadata => self.replace(&metadata(outcome)?),
        }
    }

    /// Writes the whole text and nothing else, without a line feed of its own: that is how kaniko and docker write digests.
    /// A file that is there is written to, not replaced: in Kubernetes it may be the mount `/dev/termination-log`.
    fn overwrite(&self, text: &str) -> Result<(), Failure> {
        make_parent(&self.path, self.flag())?;
        let is_new = !self.path.exists();
        overwrite(&self.path, text.as_bytes()).map_err(|source| {
            if is_new {
                // An empty file would be taken for a digest.
                let _ = std::fs::remove_file(&self.path);
            }
            self.failed(ExportError::Io { action: "write", path: self.path.clone(), source })
        })
    }

    /// Writes a document, which appears whole.
    fn replace(&self, text: &str) -> Result<(), Failure> {
        let path = &self.path;
        let write = archive::appear(path, |out| {
            out.write_all(text.as_bytes()).map_err(|source| ExportError::Io {
                action: "write",
                path: path.clone(),
                source,
            })
        });
        write.map_err(|error| self.failed(error))
    }

    fn failed(&self, error: ExportError) -> Failure {
        Failure::from_error(&error).of_flag(self.flag())
    }
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
    let own = outcome.names.iter().filter(|(_, digest)| **digest == outcome.top.digest);
    let names: Vec<String> = own.map(|(name, _)| name.to_string()).collect();
    if !names.is_empty() {
        document.insert("image.name".to_owned(), json!(names.join(",")));
    }
    let text = serde_json::to_string_pretty(&Value::Object(document));
    Ok(text.map_err(|error| Failure::from_error(&error))? + "\n")
}

fn make_parent(path: &Path, flag: &str) -> Result<(), Failure> {
    let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) else { return Ok(()) };
    std::fs::create_dir_all(parent).map_err(|error| {
        Failure::new(format!("cannot make the directory `{}`: {error}", parent.display())).of_flag(flag)
    })
}

/// Writes a small file over what is there, cutting that off last: a full disk does not take what was there before.
fn overwrite(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
    file.write_all(content)?;
    // A pipe or terminal has no end.
    if file.metadata()?.is_file() { file.set_len(content.len() as u64) } else { Ok(()) }
}
