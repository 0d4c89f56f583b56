//! The store as a build would find it, without making one.

use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};

use super::report::{self, Snapshotter};
use crate::children;
use crate::cli::advice::advice_for_unwritable;
use crate::cli::failure::Failure;
use crate::cli::isolation::{Chosen, Surroundings};
use crate::cli::snapshotter::overlay_refusal;
use crate::layer::Limits;
use crate::sandbox::mount_table::{MountTable, forbids_execution};
use crate::sandbox::probe::Place;
use crate::store::janitor::Janitor;
use crate::store::workspace::{Workspace, WorkspaceError};
use crate::store::{StoreError, check_place};

/// A place to try things in: on the file system of the store, if that can be written to.
pub(super) struct Site {
    /// The store.
    store: PathBuf,
    /// What is nearest to it and exists.
    near: PathBuf,
    workspace: Option<Arc<Workspace>>,
    /// Why there can be no store, and what to do.
    refused: Option<(String, String)>,
}

impl Site {
    /// Makes a directory, which goes with the value, in the store or as near to it as something exists; in `temporary` where
    /// that cannot be written to. To be called before there is any other thread.
    pub(super) fn find(store: &Path, temporary: &Path) -> Result<Self, Failure> {
        let janitor = Janitor::start().map_err(|error| Failure::from_error(&error))?;
        let within = store.join("tmp");
        let near = within.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/")).to_owned();
        let make = |directory: &Path| Workspace::create_hidden(directory, Some(&janitor)).map(Arc::new);
        let elsewhere = || "name a directory that can be written to with --store".to_owned();
        let place = match check_place(store) {
            Err(StoreError::Impossible { why, .. }) => Err((why, elsewhere())),
            Err(error) => Err((error.to_string(), elsewhere())),
            Ok(()) => make(&near).map_err(|error| {
                let (WorkspaceError::Create { cause, .. }
                | WorkspaceError::Lock { cause, .. }
                | WorkspaceError::Sweep { cause, .. }
                | WorkspaceError::Janitor(cause)) = error;
                let volume = advice_for_unwritable(cause.kind(), store);
                let advice = volume.map_or_else(elsewhere, |volume| format!("{volume}; or {}", elsewhere()));
                (format!("`{}` cannot be written to: {cause}", near.display()), advice)
            }),
        };
        let (workspace, refused) = match place {
            Ok(workspace) => (Some(workspace), None),
            Err(refused) => (make(temporary).ok(), Some(refused)),
        };
        Ok(Self { store: store.to_owned(), near, workspace, refused })
    }

    /// Whether there can be a store.
    pub(super) fn is_usable(&self) -> bool {
        self.refused.is_none()
    }

    /// Where things can be tried.
    pub(super) fn directory(&self) -> Option<&Path> {
        self.workspace.as_ref().map(|workspace| workspace.path())
    }

    /// What a build at `place` that takes `chosen` would make of it.
    pub(super) fn look(&self, chosen: Option<Chosen>, place: Place) -> report::Store {
        let mut found = report::Store {
            path: self.store.display().to_string(),
            exists: self.store.join("version").exists(),
            file_system: file_system(&self.near),
            snapshotter: None,
            noexec: false,
            cause: None,
            advice: None,
        };
        if let Some((cause, advice)) = &self.refused {
            found.cause = Some(cause.clone());
            found.advice = Some(advice.clone());
            return found;
        }
        found.snapshotter = Some(Snapshotter::Native);
        found.noexec = forbids_execution(&self.near);
        let surroundings = Surroundings::of(chosen);
        if surroundings == Surroundings::Unchanged {
            found.cause = Some(match chosen {
                Some(Chosen { strategy, .. }) => format!("{strategy} mounts nothing"),
                None => "nothing can be mounted here".to_owned(),
            });
            return found;
        }
        match self.overlay(surroundings, place) {
            None => found.snapshotter = Some(Snapshotter::Overlayfs),
            Some((cause, advice)) => {
                found.cause = Some(cause);
                found.advice = advice;
            }
        }
        found
    }

    /// Why overlayfs does not work there, with what to do.
    fn overlay(&self, surroundings: Surroundings, place: Place) -> Option<(String, Option<String>)> {
        let workspace = self.workspace.as_ref()?;
        let try_it = || {
            if let Err(error) = surroundings.enter_users().and_then(|_| surroundings.enter_mounts()) {
                return Some((error.to_string(), error.remedy(place)));
            }
            overlay_refusal(&self.near, Limits::default().overrides, workspace)
                .map(|(cause, advice)| (cause, Some(advice.to_owned())))
        };
        let lost = || Some(("it could not be tried".to_owned(), None));
        children::ask(try_it).ok().flatten().unwrap_or_else(lost)
    }
}

/// The type of the file system that `path` is on.
fn file_system(path: &Path) -> Option<String> {
    let opened = rustix::fs::open(path, OFlags::PATH, Mode::empty()).ok()?;
    let path = std::fs::read_link(format!("/proc/self/fd/{}", opened.as_raw_fd())).ok()?;
    MountTable::current().ok()?.file_system_of(&path).map(str::to_owned)
}
