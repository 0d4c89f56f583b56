//! Where the steps of a build run: its temporary files, and what runs the steps on them.

use std::path::Path;
use std::sync::Arc;

use super::{Isolation, PROGRAM, hidden};
use crate::build::Plan;
use crate::cli::contexts::GivenFiles;
use crate::cli::failure::Failure;
use crate::cli::settings::Settings;
use crate::context::FoundDockerfile;
use crate::dockerfile::Span;
use crate::sandbox::in_place::{self, Claim, kept_in_place};
use crate::sandbox::probe::Way;
use crate::sandbox::{Chroot, InPlace, Isolated, ProcView, Sandbox};
use crate::store::Store;
use crate::store::janitor::Janitor;
use crate::store::workspace::Workspace;

/// The root of the container.
const ROOT: &str = "/";

/// Where a build has its temporary files.
pub(in crate::cli) struct Grounds {
    /// They go before the claim on the place where they are.
    pub(in crate::cli) workspace: Arc<Workspace>,
    steps: Steps,
}

/// What the steps are in.
enum Steps {
    Namespaces(ProcView),
    Chroot,
    InPlace(Claim),
    /// There can be none.
    None,
}

impl Grounds {
    /// Those of a build in `store` that keeps its steps apart as `isolation` says.
    pub(in crate::cli) fn prepare(
        isolation: &Isolation,
        store: &Store,
        janitor: &Janitor,
    ) -> Result<Self, Failure> {
        let steps = match isolation.way() {
            Some(Way::Namespaces(proc)) => Steps::Namespaces(proc),
            Some(Way::Chroot) => Steps::Chroot,
            Some(Way::InPlace) => {
                // Whoever had to be waited for was so when the root was repaired.
                let claim = Claim::take(Path::new(ROOT), &|| {});
                Steps::InPlace(claim.map_err(|error| Failure::from_error(&error))?)
            }
            None => Steps::None,
        };
        let temporary = match &steps {
            Steps::InPlace(claim) => claim.trees(),
            Steps::Namespaces(_) | Steps::Chroot | Steps::None => store.temporary(),
        };
        let workspace = Workspace::create(&temporary, Some(janitor))
            .map_err(|error| Failure::from_error(&error).advised(store.root()))?;
        Ok(Self { workspace: Arc::new(workspace), steps })
    }

    /// What runs the steps; none where there can be none.
    pub(in crate::cli) fn sandbox<'a>(&'a self, settings: &Settings) -> Option<Box<dyn Sandbox + 'a>> {
        let names = settings.limits.layers.names;
        Some(match &self.steps {
            Steps::Namespaces(proc) => Box::new(Isolated::new(PROGRAM, *proc)),
            Steps::Chroot => Box::new(Chroot::new(PROGRAM, self.workspace.path()).within(names)),
            Steps::InPlace(claim) => Box::new(in_place(claim, settings).within(names)),
            Steps::None => return None,
        })
    }

    /// What `plan` puts where no RUN sees it: the lines of the Dockerfile, and what to say of each.
    pub(in crate::cli) fn hidden(
        &self,
        plan: &Plan,
        found: &FoundDockerfile,
        settings: &Settings,
    ) -> Result<Vec<(Span, String)>, Failure> {
        match &self.steps {
            Steps::InPlace(claim) => hidden::find(plan, &in_place(claim, settings), found),
            Steps::Namespaces(_) | Steps::Chroot | Steps::None => Ok(Vec::new()),
        }
    }

    /// What to tell the user before steps run in place.
    pub(in crate::cli) fn warning(&self, settings: &Settings) -> Result<Option<String>, Failure> {
        let Steps::InPlace(claim) = &self.steps else { return Ok(None) };
        let seen = in_place(claim, settings).seen_by_steps().map_err(|error| Failure::from_error(&error))?;
        Ok(Some(in_place::warning(&seen)))
    }
}

/// Steps in the root of the container, in which what the builder reads and writes meanwhile stays where it is.
fn in_place<'a>(claim: &'a Claim, settings: &Settings) -> InPlace<'a> {
    let given = [Some(&settings.store), settings.context.as_ref()].into_iter().flatten();
    let written = settings.outputs.paths().map(|(_, path)| path);
    let contexts = settings.context_files.values().filter_map(GivenFiles::directory);
    let given = given.map(|path| path.as_path()).chain(written).chain(contexts);
    let paths = given.chain(settings.dockerfile.file());
    InPlace::new(PROGRAM, claim, &kept_in_place(Path::new(PROGRAM), paths))
}
