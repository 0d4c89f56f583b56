//! How a build keeps its steps apart: as it was told, or in the strongest way that works here.

use std::fmt::Write as _;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

use super::failure::{Excerpt, Failure};
use super::settings::Settings;
use super::snapshotter::word;
use crate::build::Plan;
use crate::build::step::{PlannedStep, Step};
use crate::context::FoundDockerfile;
use crate::rootfs::{GuestPath, Rootfs};
use crate::sandbox::in_place::{self, Claim, Repaired};
use crate::sandbox::own::{self, Own, OwnError, Wish};
use crate::sandbox::probe::{Care, Explanation, Ground, Obstacle, Place, Working, is_own_image};
use crate::sandbox::{
    Cancel, Chroot, Exit, InPlace, Isolated, ProcView, Process, Sandbox, SandboxError, Strategy, Stream,
};
use crate::store::Store;
use crate::store::janitor::Janitor;
use crate::store::workspace::Workspace;
use crate::sys;

/// What becomes the supervisor of a step. Not the program's path: an upgrade meanwhile would put another program there.
pub(super) const PROGRAM: &str = "/proc/self/exe";

/// The root of the container.
const ROOT: &str = "/";

/// The flag, for messages.
const FLAG: &str = "--isolation";

/// What the user wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Preference {
    /// The strongest that works.
    Auto,
    /// This, or no build.
    Only(Strategy),
}

impl Preference {
    /// Reads the value of `--isolation`.
    pub(super) fn parse(text: &str) -> Result<Self, Failure> {
        let mut words = vec![("auto", Self::Auto)];
        words.extend(Strategy::ALL.map(|strategy| (strategy.name(), Self::Only(strategy))));
        match word(FLAG, "way to keep steps apart", text, &words)? {
            Self::Only(strategy @ Strategy::SecondContainer) => {
                Err(Failure::new(format!("`{strategy}` is not in this version yet")).of_flag(FLAG))
            }
            preference => Ok(preference),
        }
    }
}

/// What a process becomes for a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Surroundings {
    /// It stays where it is, and mounts nothing.
    Unchanged,
    /// It gets mounts of its own.
    Mounts,
    /// It gets users and mounts of its own.
    UsersAndMounts,
}

impl Surroundings {
    /// What `strategy` needs.
    pub(super) fn of(strategy: Option<Strategy>) -> Self {
        match strategy {
            Some(Strategy::MountNamespace) => Self::Mounts,
            Some(Strategy::UserNamespace) => Self::UsersAndMounts,
            Some(Strategy::SecondContainer | Strategy::Chroot | Strategy::InPlace) | None => Self::Unchanged,
        }
    }

    /// Enters the user namespace, if there is to be one. To be called before any other thread exists.
    pub(super) fn enter_users(self) -> Result<Own, OwnError> {
        match self {
            Self::UsersAndMounts => own::enter_user_namespace(Wish::All),
            Self::Mounts | Self::Unchanged => own::stay(),
        }
    }

    /// Enters the mount namespace, if there is to be one, after [`Surroundings::enter_users`].
    pub(super) fn enter_mounts(self) -> Result<(), OwnError> {
        match self {
            Self::UsersAndMounts | Self::Mounts => {
                sys::enter_private_mounts().map_err(|error| OwnError::of_mounts(&error))
            }
            Self::Unchanged => Ok(()),
        }
    }
}

/// What was found out, and taken.
pub(super) struct Isolation {
    /// None where nothing works: then there can be no RUN.
    taken: Option<(Strategy, Working)>,
    /// What was tried before and does not work, strongest first.
    refused: Vec<(Strategy, Explanation)>,
    /// What works, too, and is taken only by who asks for it.
    on_request: Option<Strategy>,
    place: Place,
}

impl Isolation {
    /// Chooses what `settings` say, trying in the store's temporary directory. To be called before there is any other
    /// thread.
    pub(super) fn of_build(settings: &Settings, store: &Store) -> Result<Self, Failure> {
        let place = Place::find(settings.hints);
        let temporary = Workspace::create(&store.temporary(), None)
            .map_err(|error| Failure::from_error(&error).advised(store.root()))?;
        let ground = Ground { program: Path::new(PROGRAM), directory: temporary.path(), place };
        match settings.isolation {
            Preference::Auto => Ok(Self::strongest(&ground)),
            Preference::Only(strategy) => Self::only(strategy, &ground),
        }
    }

    /// The strongest that works, for who has not said.
    fn strongest(ground: &Ground<'_>) -> Self {
        let mut isolation = Self { taken: None, refused: Vec::new(), on_request: None, place: ground.place };
        for strategy in Strategy::ALL {
            match ground.attempt(strategy, Care::Usual) {
                Ok(_) if !unasked(strategy) => isolation.on_request = Some(strategy),
                Ok(working) => {
                    isolation.taken = Some((strategy, working));
                    break;
                }
                Err(Obstacle::Unfinished) => {}
                Err(_) if !unasked(strategy) => {}
                Err(obstacle) => isolation.refused.push((strategy, ground.explain(strategy, &obstacle))),
            }
        }
        isolation
    }

    fn only(strategy: Strategy, ground: &Ground<'_>) -> Result<Self, Failure> {
        let taken = ground.attempt(strategy, Care::Usual).map_err(|obstacle| {
            let explanation = ground.explain(strategy, &obstacle);
            let failure =
                Failure::new(format!("`{strategy}` does not work here: {}", explanation.cause)).of_flag(FLAG);
            match explanation.remedy() {
                Some(remedy) => failure.hint(remedy),
                None => failure.hint("`builder doctor` says what works here"),
            }
        })?;
        let (taken, refused) = (Some((strategy, taken)), Vec::new());
        Ok(Self { taken, refused, on_request: None, place: ground.place })
    }

    /// What the process is to become.
    pub(super) fn surroundings(&self) -> Surroundings {
        Surroundings::of(self.strategy())
    }

    /// What was taken.
    pub(super) fn strategy(&self) -> Option<Strategy> {
        self.taken.as_ref().map(|(strategy, _)| *strategy)
    }

    /// What runs the steps of the build whose temporary files are at `grounds`.
    pub(super) fn sandbox<'a>(&self, grounds: &'a Grounds, settings: &Settings) -> Box<dyn Sandbox + 'a> {
        let Some((strategy, working)) = &self.taken else { return Box::new(Nowhere) };
        match strategy {
            Strategy::MountNamespace | Strategy::UserNamespace => {
                Box::new(Isolated::new(PROGRAM, working.proc.unwrap_or(ProcView::Own)))
            }
            Strategy::Chroot => {
                let names = settings.limits.layers.names;
                Box::new(Chroot::new(PROGRAM, grounds.workspace.path()).within(names))
            }
            Strategy::InPlace => match &grounds.claim {
                Some(claim) => {
                    let names = settings.limits.layers.names;
                    Box::new(InPlace::new(PROGRAM, claim, &protected(settings)).within(names))
                }
                None => Box::new(Nowhere),
            },
            Strategy::SecondContainer => Box::new(Nowhere),
        }
    }

    /// Whether what `plan` wants can be done here.
    pub(super) fn check(&self, plan: &Plan, found: &FoundDockerfile) -> Result<(), Failure> {
        if self.taken.is_some() {
            return Ok(());
        }
        if let Some(step) = first(plan, |step| matches!(step, Step::Run(_))) {
            return Err(self.refusal("a RUN cannot be kept apart from the builder here").at(step, found));
        }
        match first(plan, Step::changes_files) {
            Some(step) if !own::may_give_files() => {
                let message = "files cannot be given the owners here that they have in an image, for which it takes root \
                               with its usual capabilities, or a user namespace";
                Err(self.refusal(message).at(step, found))
            }
            _ => Ok(()),
        }
    }

    fn refusal(&self, message: &str) -> Refused {
        let causes = self.refused.iter().map(|(strategy, explanation)| match explanation.remedy() {
            Some(remedy) => format!("{strategy}: {} ({remedy})", explanation.cause),
            None => format!("{strategy}: {}", explanation.cause),
        });
        let mut failure = Failure::new(message);
        failure.causes = causes.collect();
        Refused(failure.hint(match self.on_request {
            Some(strategy) => format!("--isolation={strategy} works, if the step may see what is in this container; `builder doctor` says more"),
            None => "what is in brackets would allow it; `builder doctor` says more".to_owned(),
        }))
    }

    /// The line that tells what was taken and why nothing stronger; none where there is nothing to tell.
    pub(super) fn line(&self) -> Option<String> {
        let (strategy, working) = self.taken.as_ref()?;
        // An ordinary user on a machine has nothing less than root has.
        let usual = self.place == Place::Machine && working.proc == Some(ProcView::Own);
        if *strategy == Strategy::MountNamespace || usual {
            return None;
        }
        Some(self.summary())
    }

    /// What was taken and why nothing stronger.
    pub(super) fn summary(&self) -> String {
        let mut line = "isolation: ".to_owned();
        match &self.taken {
            Some((strategy, working)) => {
                line.push_str(strategy.name());
                if working.proc == Some(ProcView::Shared) {
                    line.push_str(" with the /proc of the container");
                }
            }
            None => line.push_str("none"),
        }
        let reasons = self.refused.iter();
        let reasons: Vec<String> =
            reasons.map(|(strategy, explanation)| format!("{strategy}: {}", explanation.cause)).collect();
        if !reasons.is_empty() {
            let _ = write!(line, " ({}); `builder doctor` says more", reasons.join("; "));
        }
        line
    }
}

/// Where a build has its temporary files.
pub(super) struct Grounds {
    /// They go before the claim on the place where they are.
    pub(super) workspace: Arc<Workspace>,
    /// The root of the container, where steps run in it.
    claim: Option<Claim>,
}

impl Grounds {
    /// Those of a build in `store` that keeps its steps apart as `isolation` says.
    pub(super) fn prepare(isolation: &Isolation, store: &Store, janitor: &Janitor) -> Result<Self, Failure> {
        let in_place = isolation.strategy() == Some(Strategy::InPlace);
        let claim = in_place
            // Whoever had to be waited for was so when the root was repaired.
            .then(|| Claim::take(Path::new(ROOT), &|| {}))
            .transpose()
            .map_err(|e| Failure::from_error(&e))?;
        let temporary = claim.as_ref().map_or_else(|| store.temporary(), Claim::trees);
        let workspace = Workspace::create(&temporary, Some(janitor))
            .map_err(|error| Failure::from_error(&error).advised(store.root()))?;
        Ok(Self { workspace: Arc::new(workspace), claim })
    }

    /// What to tell the user before steps run in place.
    pub(super) fn warning(&self, settings: &Settings) -> Result<Option<String>, Failure> {
        let Some(claim) = &self.claim else { return Ok(None) };
        let seen = InPlace::new(PROGRAM, claim, &protected(settings)).seen_by_steps();
        Ok(Some(in_place::warning(&seen.map_err(|error| Failure::from_error(&error))?)))
    }
}

/// Gives the container its own root back, if a builder was killed while that was an image's.
pub(super) fn repair_root(note: &dyn Fn(&str)) -> Result<Option<&'static str>, Failure> {
    let waiting =
        || note("waiting for the end of a step, whose builder was killed, in the root of this container");
    match in_place::repair(Path::new(ROOT), &waiting).map_err(|error| Failure::from_error(&error))? {
        Repaired::Nothing => Ok(None),
        Repaired::Root => Ok(Some(
            "a builder that was killed had left an image's files in the root of this container; its own are back",
        )),
    }
}

/// What stays where it is in the root of the container: what the builder reads and writes while steps run, and the file of
/// its program. That is not needed, the supervisor being started from memory, but who wants to start a builder after this
/// one was killed needs it. The directory it is in is the image's.
fn protected(settings: &Settings) -> Vec<GuestPath> {
    let program = std::fs::read_link(PROGRAM).ok();
    let given = [&settings.store, &settings.context].into_iter().chain(&program);
    let named = [&settings.dockerfile, &settings.layout, &settings.archive, &settings.digest_file];
    let absolute = given.chain(named.into_iter().flatten()).filter_map(|path| std::path::absolute(path).ok());
    absolute.filter_map(|path| GuestPath::parse(path.as_os_str().as_bytes()).ok()).collect()
}

/// A failure that has no place yet.
struct Refused(Failure);

impl Refused {
    fn at(self, step: &PlannedStep, found: &FoundDockerfile) -> Failure {
        let excerpt = Excerpt::of(&found.path.display().to_string(), &found.content, step.span);
        Failure { excerpt: Some(excerpt), ..self.0 }
    }
}

/// Whether it is taken without being asked for. In the root of the container a step sees and changes what is in there: who
/// runs builder's own image wants that, where nothing else works, as with kaniko's; nobody else need expect it.
pub(super) fn unasked(strategy: Strategy) -> bool {
    strategy != Strategy::InPlace || is_own_image()
}

/// Whether `plan` has a RUN.
pub(super) fn runs(plan: &Plan) -> bool {
    first(plan, |step| matches!(step, Step::Run(_))).is_some()
}

fn first(plan: &Plan, wanted: impl Fn(&Step) -> bool) -> Option<&PlannedStep> {
    plan.stages.iter().flat_map(|stage| &stage.steps).find(|step| wanted(&step.step))
}

/// The sandbox of a build that has no RUN.
struct Nowhere;

impl Sandbox for Nowhere {
    fn run(
        &self,
        _: &Rootfs,
        _: &Process,
        _: &mut dyn FnMut(Stream, &[u8]),
        _: &Cancel,
    ) -> Result<Exit, SandboxError> {
        let source = io::ErrorKind::Unsupported.into();
        Err(SandboxError::Setup { step: "keep a process apart".to_owned(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::own::Identity;

    fn working(proc: Option<ProcView>) -> Working {
        let ids = ["0-65535", "0-65535"].map(str::to_owned);
        Working { proc, identity: Identity::Initial, ids, shortage: None }
    }

    fn isolation(strategy: Strategy, proc: Option<ProcView>, place: Place) -> Isolation {
        let cause = "no CAP_SYS_ADMIN".to_owned();
        let explanation = Explanation { cause, changes: Vec::new(), advice: None };
        let refused = vec![(Strategy::MountNamespace, explanation)];
        Isolation { taken: Some((strategy, working(proc))), refused, on_request: None, place }
    }

    #[test]
    fn the_words_are_the_strategies_names() {
        assert_eq!(Preference::parse("auto").unwrap(), Preference::Auto);
        assert_eq!(Preference::parse("in-place").unwrap(), Preference::Only(Strategy::InPlace));
        let error = Preference::parse("second-container").unwrap_err();
        assert_eq!(error.message, "--isolation: `second-container` is not in this version yet");
        let error = Preference::parse("docker").unwrap_err();
        assert_eq!(error.message, "--isolation: `docker` is no way to keep steps apart");
        assert!(error.hint.unwrap().starts_with("auto, mount-namespace, user-namespace, "));
    }

    #[test]
    fn a_line_says_what_was_taken_where_there_is_something_stronger() {
        use ProcView::{Own, Shared};
        for (strategy, proc, place, line) in [
            (Strategy::MountNamespace, Some(Own), Place::Pod, None),
            (Strategy::UserNamespace, Some(Own), Place::Machine, None),
            (Strategy::UserNamespace, Some(Own), Place::Pod, Some("isolation: user-namespace (")),
            (
                Strategy::UserNamespace,
                Some(Shared),
                Place::Machine,
                Some(
                    "isolation: user-namespace with the /proc of the container (mount-namespace: no CAP_SYS_ADMIN); ",
                ),
            ),
            (
                Strategy::Chroot,
                None,
                Place::Machine,
                Some("isolation: chroot (mount-namespace: no CAP_SYS_ADMIN); "),
            ),
        ] {
            let found = isolation(strategy, proc, place).line();
            assert_eq!(found.is_some(), line.is_some(), "{found:?}");
            assert!(found.unwrap_or_default().starts_with(line.unwrap_or_default()), "{strategy}");
        }
        let nothing = Isolation { taken: None, ..isolation(Strategy::Chroot, None, Place::Pod) };
        assert_eq!(nothing.line(), None);
        assert_eq!(nothing.surroundings(), Surroundings::Unchanged);
    }
}
