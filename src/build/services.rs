//! What a build needs from elsewhere: base images, trees, processes, a place for layers.

use std::collections::BTreeMap;
use std::error::Error;
use std::num::NonZeroUsize;

use super::named_contexts::LayoutImageName;
use super::progress::Progress;
use super::remote::RemoteFiles;
use crate::cache::LayerCache;
use crate::context::Context;
use crate::image::digest::Digest;
use crate::image::manifest::Image;
use crate::image::matching::{Asked, MatchMode};
use crate::image::platform::Platform;
use crate::image::reference::Reference;
use crate::layer;
use crate::layer::form::LayerForm;
use crate::limit::Limit;
use crate::sandbox::emulation::Emulators;
use crate::sandbox::{Agent, Cancel, ResourceLimit, Sandbox, Secret};
use crate::snapshot::Snapshotter;
use crate::store::blobs::BlobStore;
use crate::store::cache_mounts::CacheMounts;
use crate::store::unpacked::Chain;
use crate::store::workspace::Workspace;

/// What went wrong elsewhere. The command line knows the types behind it.
pub type ServiceError = Box<dyn Error + Send + Sync>;

/// The platform that an image is wanted for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Normalised.
    pub platform: Platform,
    /// Whether the user named it.
    pub asked: Asked,
    /// How near an image's platform must be.
    pub mode: MatchMode,
}

/// An image to build on.
#[derive(Debug, Clone)]
pub struct Base {
    /// Config and layers; the layers may still be elsewhere.
    pub image: Image,
    /// The name it was asked for by.
    pub reference: Reference,
    /// The digest of the manifest of the chosen platform.
    pub digest: Digest,
    /// What the user should know of the choice, for instance that a lower variant was taken.
    pub notes: Vec<String>,
    /// What it is for, where that is another platform than the wanted one and it was taken all the same.
    pub foreign: Option<Platform>,
}

/// Where base images come from.
pub trait ImageSource: Sync {
    /// Finds the image: manifest and config alone.
    ///
    /// # Errors
    /// When there is none, none for the platform, or it could not be asked for.
    fn resolve(&self, reference: &Reference, wanted: &Wanted) -> Result<Base, ServiceError>;

    /// Finds an image of an OCI layout, which a Dockerfile calls `reference`: manifest and config alone.
    ///
    /// # Errors
    /// As [`ImageSource::resolve`], and when there is no such layout.
    fn resolve_in_layout(
        &self,
        layout: &LayoutImageName,
        reference: &Reference,
        wanted: &Wanted,
    ) -> Result<Base, ServiceError> {
        let _ = (reference, wanted);
        Err(format!("there are no layouts here, and so not `{}`", layout.path.display()).into())
    }

    /// The image's layers on disk: fetched, verified and unpacked where they are not yet.
    ///
    /// # Errors
    /// When a layer can't be fetched, isn't what was announced, or can't be unpacked; when `cancel` is on.
    fn unpack(&self, image: &Image, cancel: &Cancel) -> Result<Chain, ServiceError>;

    /// Nothing is wanted any more: whoever waits for an answer from afar comes back soon.
    fn give_up(&self) {}

    /// Keeps the topmost layer of `chain`, which a step has just written and which is the last one of `image`, so that
    /// [`ImageSource::unpack`] will not have to unpack it. Gives the chain with it where it is then; the old one is not to
    /// be used any more.
    ///
    /// # Errors
    /// When it could not be kept; then `chain` is as it was.
    fn keep(&self, image: &Image, chain: &Chain) -> Result<Chain, ServiceError> {
        let _ = image;
        Ok(chain.clone())
    }
}

/// Whether results of earlier builds are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reuse {
    /// They are.
    Yes,
    /// Every step is done; later builds find what comes of it.
    No,
}

/// How much there may be of what a build reads and writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BuildLimits {
    /// In an archive that ADD extracts, and in a layer that a step makes.
    pub layers: layer::Limits,
    /// In `/etc/passwd` and `/etc/group`.
    pub users: Limit,
}

/// Everything a build needs from elsewhere.
pub struct Services<'a> {
    /// Base images.
    pub source: &'a dyn ImageSource,
    /// Trees to write to.
    pub snapshotter: &'a dyn Snapshotter,
    /// Processes; none where a RUN cannot be kept apart, so that there must be none.
    pub sandbox: Option<&'a dyn Sandbox>,
    /// What runs programs for other processors, besides the machine's handlers.
    pub emulators: &'a Emulators,
    /// Where layers go.
    pub blobs: &'a BlobStore,
    /// How they are written there.
    pub form: LayerForm,
    /// What was built before.
    pub cache: &'a dyn LayerCache,
    /// Whether that is used.
    pub reuse: Reuse,
    /// Which owners and attributes files can have here, where they cannot have all.
    pub restriction: Option<String>,
    /// Where COPY reads.
    pub context: &'a Context,
    /// The named contexts of the plan, in its order.
    pub contexts: &'a [Context],
    /// Where ADD finds URLs and git repositories.
    pub remote: &'a dyn RemoteFiles,
    /// Who is told.
    pub progress: &'a dyn Progress,
    /// When to stop.
    pub cancel: &'a Cancel,
    /// How many stages may be built at once.
    pub jobs: NonZeroUsize,
    /// Where what a step needs besides may be put.
    pub workspace: &'a Workspace,
    /// What `--mount=type=secret` may ask for, by id.
    pub secrets: BTreeMap<String, Secret>,
    /// What `--mount=type=ssh` may ask for, by id.
    pub agents: BTreeMap<String, Agent>,
    /// What `--mount=type=cache` shows.
    pub cache_mounts: &'a CacheMounts,
    /// How much there may be.
    pub limits: BuildLimits,
    /// What RUN finds in `/etc/resolv.conf`.
    pub resolv_conf: Vec<u8>,
    /// How many files a RUN may have open, unless its own settings say: the builder itself may have more.
    pub open_files: Option<ResourceLimit>,
}
