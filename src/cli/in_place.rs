//! Builds whose steps run in the container's own root.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::failure::Failure;
use super::isolation::{Isolation, PROGRAM};
use super::settings::Settings;
use crate::build::progress::{Event, Progress};
use crate::rootfs::GuestPath;
use crate::sandbox::in_place::{self, Claim, InPlaceError, PRIVATE_DIRECTORY, Repaired};
use crate::sandbox::{InPlace, Strategy};
use crate::store::Store;

/// The container's root.
const ROOT: &str = "/";

/// Where kaniko's image, and builder's own, have the program, credentials and helpers.
const HOME: &str = "/kaniko";

/// What was left by a builder that was killed, for whoever wonders.
const REPAIRED: &str = "a builder that was killed here had left an image's files in this container's root: they are \
                        gone, and the container's are back";

/// Puts the container's files back if a builder was killed while a step ran in their place. Until then nothing else in the
/// root is what it seems to be.
pub(super) fn repair(progress: &dyn Progress) -> Result<(), Failure> {
    // Only root can have left something, or do something about it.
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    match in_place::repair(Path::new(ROOT)).map_err(|error| failure(&error))? {
        Repaired::Nothing => {}
        Repaired::Root => progress.tell(&Event::Note(REPAIRED)),
    }
    Ok(())
}

/// A build's hold on the container's root; none where steps run elsewhere.
#[derive(Debug)]
pub(super) struct Hold(Option<Arc<Claim>>);

impl Hold {
    /// Takes the root if `isolation` has chosen that.
    pub(super) fn take(isolation: &Isolation) -> Result<Self, Failure> {
        match isolation.strategy() {
            Some(Strategy::InPlace) => {
                let claim = Claim::take(Path::new(ROOT)).map_err(|error| failure(&error))?;
                Ok(Self(Some(Arc::new(claim))))
            }
            _ => Ok(Self(None)),
        }
    }

    /// Where workspaces belong: usually into the store.
    pub(super) fn temporary(&self, store: &Store) -> PathBuf {
        self.0.as_ref().map_or_else(|| store.temporary(), |claim| claim.trees())
    }

    /// What runs the steps, if they run here.
    pub(super) fn sandbox(&self, settings: &Settings) -> Option<InPlace> {
        let claim = self.0.clone()?;
        Some(InPlace::new(PROGRAM, claim, &protected(settings)).within(settings.limits.layers.names))
    }

    /// What to tell before the first step: what it can lay hands on.
    pub(super) fn warn(&self, settings: &Settings, progress: &dyn Progress) -> Result<(), Failure> {
        let Some(sandbox) = self.sandbox(settings) else { return Ok(()) };
        let seen = sandbox.seen_by_steps().map_err(|error| failure(&error))?;
        let detail = in_place::warning(&seen);
        progress.tell(&Event::Warning { rule: "isolation", span: None, detail: &detail });
        Ok(())
    }
}

/// The builder's own directory in the container's root: a context that is the whole root does not have it.
pub(super) fn private_directory() -> PathBuf {
    Path::new(ROOT).join(PRIVATE_DIRECTORY)
}

/// What has to stay in the root: the program and what it is given, what it is to write, and what it has written.
fn protected(settings: &Settings) -> Vec<GuestPath> {
    let program = std::fs::read_link(PROGRAM).ok();
    let paths =
        [Some(PathBuf::from(HOME)), program, Some(settings.store.clone()), Some(settings.context.clone())];
    let outputs = settings.outputs().map(|(_, path)| path.to_owned());
    let absolute =
        paths.into_iter().flatten().chain(outputs).filter_map(|path| std::path::absolute(path).ok());
    absolute.filter_map(|path| GuestPath::clamp(path.as_os_str().as_bytes()).ok()).collect()
}

fn failure(error: &InPlaceError) -> Failure {
    Failure::from_error(error)
}
