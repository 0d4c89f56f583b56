//! How the files of stages are kept: as layers that overlayfs stacks, or in plain directories where that is refused.

use std::path::Path;
use std::sync::Arc;

use super::failure::Failure;
use super::isolation::{Isolation, Surroundings};
use super::settings::Settings;
use crate::build::progress::{Event, Progress};
use crate::image::document::MOST_LAYERS;
use crate::limit::Limit;
use crate::rootfs::IdMap;
use crate::sandbox::mount_table::is_on_overlay;
use crate::snapshot::native::{Comparison, Mounts};
use crate::snapshot::{NativeSnapshotter, OverlaySnapshotter, SnapshotError, Snapshotter};
use crate::store::Store;
use crate::store::mount::MAX_LAYERS;
use crate::store::trees::Trees;
use crate::store::unpacked::Unpacked;
use crate::store::workspace::Workspace;
use crate::transfer::Unpacker;

/// What the user wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Preference {
    /// Layers, where they can be stacked.
    Auto,
    /// Layers, and no build where they cannot.
    Overlay,
    /// Plain directories.
    Native,
}

impl Preference {
    /// Reads BuildKit's words, which `source`, a flag or a variable, has.
    pub(super) fn parse(source: &str, text: &str) -> Result<Self, Failure> {
        let words = [("auto", Self::Auto), ("overlayfs", Self::Overlay), ("native", Self::Native)];
        word(source, "snapshotter", text, &words)
    }

    /// The most layers of an image, as far as that can be told before anything was tried.
    pub(super) fn most_layers(self) -> usize {
        match self {
            Self::Auto | Self::Overlay => MAX_LAYERS,
            Self::Native => MOST_LAYERS,
        }
    }
}

/// Reads kaniko's words. Nothing is missed with any of them; `full` does not even believe the kernel.
pub(super) fn comparison(text: &str) -> Result<Comparison, Failure> {
    let words =
        [("full", Comparison::Content), ("redo", Comparison::Metadata), ("time", Comparison::Metadata)];
    word("--snapshot-mode", "snapshot mode", text, &words)
}

/// What `text` means among the words of `flag`, which says which `what` is wanted.
pub(super) fn word<T: Copy>(flag: &str, what: &str, text: &str, words: &[(&str, T)]) -> Result<T, Failure> {
    let known = words.iter().find(|(word, _)| *word == text);
    known.map(|(_, meaning)| *meaning).ok_or_else(|| {
        let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let (last, others) = words.split_last().unwrap_or((&"", &[]));
        let hint = format!("{} or {last}", others.join(", "));
        Failure::new(format!("`{text}` is no {what}")).of_flag(flag).hint(hint)
    })
}

/// What steps work on, and what becomes of layers for that.
pub(super) struct Kept {
    /// Where steps write.
    pub(super) snapshotter: Box<dyn Snapshotter>,
    /// Where images are unpacked.
    pub(super) unpacker: Unpacker,
}

/// Chooses, and tells if it is not what is best.
pub(super) fn choose(
    settings: &Settings,
    isolation: &Isolation,
    store: &Store,
    workspace: &Arc<Workspace>,
    ids: &IdMap,
    progress: &dyn Progress,
) -> Result<Kept, Failure> {
    let overlay = || {
        let snapshotter = OverlaySnapshotter::new(Arc::clone(workspace), settings.limits.layers.overrides);
        let unpacked = Unpacked::open(&store.root().join("unpacked"), ids)
            .map_err(|error| Failure::from_error(&error))?;
        Ok(Kept { snapshotter: Box::new(snapshotter), unpacker: Unpacker::Layers(unpacked) })
    };
    let mut mounts = Mounts::Own;
    if isolation.surroundings() == Surroundings::Unchanged {
        mounts = Mounts::None;
        if settings.snapshotter == Preference::Overlay {
            return Err(unmountable(isolation));
        }
    } else if settings.snapshotter != Preference::Native {
        match refusal(store.root(), settings.limits.layers.overrides, workspace)? {
            None => {
                if settings.comparison.is_some() {
                    let note = "--snapshot-mode makes no difference with overlayfs: what a step changes is recorded as it happens";
                    progress.tell(&Event::Note(note));
                }
                return overlay();
            }
            Some(refusal) if settings.snapshotter == Preference::Overlay => {
                return Err(refusal.failure(store));
            }
            Some(refusal) => progress.tell(&Event::Note(&refusal.note())),
        }
    }
    let limits = settings.limits.layers;
    let comparison = settings.comparison.unwrap_or(Comparison::Metadata);
    let snapshotter = NativeSnapshotter::new(Arc::clone(workspace), comparison, limits).with(mounts);
    let unpacker = Unpacker::Trees(Trees::new(Arc::clone(workspace)));
    Ok(Kept { snapshotter: Box::new(snapshotter), unpacker })
}

/// Where this process has no mounts of its own, there is nothing to try.
fn unmountable(isolation: &Isolation) -> Failure {
    let message = match isolation.strategy() {
        Some(strategy) => {
            format!("overlayfs cannot be mounted with --isolation={strategy}, which mounts nothing")
        }
        None => "overlayfs cannot be mounted: there is no way to mount anything here".to_owned(),
    };
    Failure::new(message).of_flag("--snapshotter").hint("leave it out, or see what `builder doctor` says")
}

/// Why overlayfs cannot be used.
enum Refusal {
    /// The store is on an overlay itself.
    OnOverlay,
    /// The kernel, or the file system.
    Tried(SnapshotError),
}

/// Tries it, once.
fn refusal(root: &Path, overrides: Limit, workspace: &Arc<Workspace>) -> Result<Option<Refusal>, Failure> {
    let on_overlay = is_on_overlay(root)
        .map_err(|error| Failure::new(format!("cannot look at the store `{}`: {error}", root.display())))?;
    if on_overlay {
        return Ok(Some(Refusal::OnOverlay));
    }
    Ok(OverlaySnapshotter::new(Arc::clone(workspace), overrides).try_out().err().map(Refusal::Tried))
}

/// Why overlayfs does not work on the file system of `root`, in which `workspace` is, and what to do about it.
pub(super) fn overlay_refusal(
    root: &Path,
    overrides: Limit,
    workspace: &Arc<Workspace>,
) -> Option<(String, &'static str)> {
    match refusal(root, overrides, workspace) {
        Ok(refusal) => refusal.map(|refusal| refusal.reason()),
        Err(failure) => Some((failure.message, REMEDY)),
    }
}

/// What makes overlayfs possible for most.
const REMEDY: &str = "put the store on a volume (in a pod: an emptyDir), with --store or BUILDER_STORE";

impl Refusal {
    fn failure(&self, store: &Store) -> Failure {
        match self {
            Self::OnOverlay => Failure::new(format!(
                "the store `{}` is on an overlay file system, which cannot hold another one",
                store.root().display()
            ))
            .hint(REMEDY),
            Self::Tried(error) => Failure::from_error(error)
                .of_flag("--snapshotter")
                .hint("--snapshotter=native keeps files in plain directories"),
        }
    }

    /// Cause and remedy.
    fn reason(&self) -> (String, &'static str) {
        match self {
            Self::OnOverlay => ("the store is on an overlay itself".to_owned(), REMEDY),
            Self::Tried(error) => {
                let failure = Failure::from_error(error);
                let reason = [vec![failure.message], failure.causes].concat().join(": ");
                (reason, "a store on another file system may allow it (--store)")
            }
        }
    }

    fn note(&self) -> String {
        let (reason, remedy) = self.reason();
        format!("overlayfs cannot be used, so files are kept in plain directories: {reason}; {remedy}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_those_of_buildkit_and_kaniko() {
        for (text, choice) in
            [("auto", Preference::Auto), ("overlayfs", Preference::Overlay), ("native", Preference::Native)]
        {
            assert_eq!(Preference::parse("--snapshotter", text).unwrap(), choice);
        }
        let words = ["full", "redo", "time"].map(|text| comparison(text).unwrap());
        assert_eq!(words, [Comparison::Content, Comparison::Metadata, Comparison::Metadata]);
        assert_eq!(
            Preference::parse("--snapshotter", "overlay").unwrap_err().message,
            "--snapshotter: `overlay` is no snapshotter"
        );
        let error = comparison("fast").unwrap_err();
        assert_eq!(error.message, "--snapshot-mode: `fast` is no snapshot mode");
    }
}
