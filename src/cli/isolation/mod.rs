//! How a build keeps its steps apart: as it was told, or in the strongest way that works here.

mod grounds;
mod hidden;
mod surroundings;

use std::fmt::Write as _;
use std::path::Path;

pub(super) use grounds::Grounds;
pub(super) use surroundings::Surroundings;

use super::failure::{Excerpt, Failure};
use super::settings::Settings;
use super::snapshotter::word;
use crate::build::Plan;
use crate::build::step::{PlannedStep, Step};
use crate::context::FoundDockerfile;
use crate::sandbox::own;
use crate::sandbox::probe::{Care, Ground, Obstacle, Place, Way, Working, is_own_image, network_refusal};
use crate::sandbox::{Explanation, Filter, Network, ProcView, SandboxError, Strategy};
use crate::store::Store;
use crate::store::janitor::Janitor;
use crate::store::workspace::Workspace;

/// What becomes the supervisor of a step. Not the program's path: an upgrade meanwhile would put another program there.
pub(super) const PROGRAM: &str = "/proc/self/exe";

/// The flag, for messages.
pub(super) const FLAG: &str = "--isolation";

/// What the user wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Preference {
    /// The strongest that works.
    Auto,
    /// This, or no build.
    Only(Strategy),
}

impl Preference {
    /// Reads the value of `--isolation`, or of the variable `source`.
    pub(super) fn parse(source: &str, text: &str) -> Result<Self, Failure> {
        let mut words = vec![("auto", Self::Auto)];
        words.extend(Strategy::ALL.map(|strategy| (strategy.name(), Self::Only(strategy))));
        match word(source, "way to keep steps apart", text, &words)? {
            Self::Only(strategy @ Strategy::SecondContainer) => {
                Err(Failure::new(format!("`{strategy}` is not in this version yet")).of_flag(source))
            }
            preference => Ok(preference),
        }
    }
}

/// What was found out, and chosen.
pub(super) struct Isolation {
    /// None where nothing works: then there can be no RUN.
    chosen: Option<Chosen>,
    /// What was tried before and does not work, strongest first.
    refused: Vec<(Strategy, Explanation)>,
    /// What works, too, and is taken only by who asks for it.
    on_request: Option<Strategy>,
    place: Place,
}

/// What steps are kept apart by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chosen {
    pub(super) strategy: Strategy,
    pub(super) way: Way,
    filter: Filter,
}

impl Chosen {
    /// `strategy`, of which it was found out how it works.
    pub(super) fn new(strategy: Strategy, working: &Working) -> Self {
        Self { strategy, way: working.way, filter: working.filter }
    }
}

/// Whether a build takes a strategy by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice {
    /// Where it is the strongest that works.
    Automatic,
    /// If it is told to.
    OnRequest,
}

impl Choice {
    /// In the root of the container a step sees and changes what is in there: who runs builder's own image wants that,
    /// where nothing else works, as with kaniko's; nobody else need expect it.
    pub(super) fn of(strategy: Strategy) -> Self {
        match strategy {
            Strategy::InPlace if !is_own_image() => Self::OnRequest,
            Strategy::SecondContainer => Self::OnRequest,
            _ => Self::Automatic,
        }
    }
}

impl Isolation {
    /// Chooses what `settings` say, trying in the store's temporary directory. To be called before there is any other
    /// thread.
    pub(super) fn of_build(settings: &Settings, store: &Store) -> Result<Self, Failure> {
        let place = Place::find(settings.hints);
        // Whatever ends this process meanwhile, nothing is left.
        let janitor = Janitor::start().map_err(|error| Failure::from_error(&error))?;
        let temporary = Workspace::create(&store.temporary(), Some(&janitor))
            .map_err(|error| Failure::from_error(&error).advised(store.root()))?;
        let ground = Ground { program: Path::new(PROGRAM), directory: temporary.path(), place };
        match settings.isolation {
            Preference::Auto => Ok(Self::strongest(&ground)),
            Preference::Only(strategy) => Self::only(strategy, &ground),
        }
    }

    /// The strongest that works, for who has not said.
    fn strongest(ground: &Ground<'_>) -> Self {
        let mut isolation = Self { chosen: None, refused: Vec::new(), on_request: None, place: ground.place };
        for strategy in Strategy::ALL {
            match (ground.attempt(strategy, Care::Usual), Choice::of(strategy)) {
                (Ok(working), Choice::Automatic) => {
                    isolation.chosen = Some(Chosen::new(strategy, &working));
                    break;
                }
                (Ok(_), Choice::OnRequest) => isolation.on_request = Some(strategy),
                (Err(Obstacle::Unfinished), _) | (Err(_), Choice::OnRequest) => {}
                (Err(obstacle), Choice::Automatic) => {
                    isolation.refused.push((strategy, ground.explain(strategy, &obstacle)));
                }
            }
        }
        isolation
    }

    fn only(strategy: Strategy, ground: &Ground<'_>) -> Result<Self, Failure> {
        let working = ground.attempt(strategy, Care::Usual).map_err(|obstacle| {
            let explanation = ground.explain(strategy, &obstacle);
            let failure =
                Failure::new(format!("`{strategy}` does not work here: {}", explanation.cause)).of_flag(FLAG);
            match explanation.remedy() {
                Some(remedy) => failure.hint(remedy),
                None => failure.hint("`builder doctor` says what works here"),
            }
        })?;
        let chosen = Some(Chosen::new(strategy, &working));
        Ok(Self { chosen, refused: Vec::new(), on_request: None, place: ground.place })
    }

    /// What the process is to become.
    pub(super) fn surroundings(&self) -> Surroundings {
        Surroundings::of(self.chosen)
    }

    /// What was chosen, and how it works.
    pub(super) fn chosen(&self) -> Option<Chosen> {
        self.chosen
    }

    /// What was chosen.
    pub(super) fn strategy(&self) -> Option<Strategy> {
        self.chosen.map(|chosen| chosen.strategy)
    }

    /// What steps are in.
    pub(super) fn way(&self) -> Option<Way> {
        self.chosen.map(|chosen| chosen.way)
    }

    /// What is around this process.
    pub(super) fn place(&self) -> Place {
        self.place
    }

    /// What to do about `error`, for which a step could not run.
    pub(super) fn remedy(&self, error: &SandboxError) -> Option<String> {
        error.remedy(self.strategy()?, self.place)
    }

    /// Whether what `plan` wants can be done here.
    pub(super) fn check(&self, plan: &Plan, found: &FoundDockerfile) -> Result<(), Failure> {
        if let Some(strategy) = self.strategy() {
            let alone = |step: &Step| matches!(step, Step::Run(run) if run.network == Network::None);
            let (Some(step), Some(explanation)) = (first(plan, alone), network_refusal(strategy, self.place))
            else {
                return Ok(());
            };
            let message = format!("a RUN cannot have a network of its own here: {}", explanation.cause);
            let failure = Failure::new(message);
            let failure = match explanation.remedy() {
                Some(remedy) => failure.hint(remedy),
                None => failure,
            };
            return Err(Refused(failure).at(step, found));
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

    /// The line that tells what was chosen and why nothing stronger; none where there is nothing to tell.
    pub(super) fn line(&self) -> Option<String> {
        let Chosen { strategy, way, .. } = self.chosen?;
        // An ordinary user on a machine has nothing less than root has.
        let usual = self.place == Place::Machine && way == Way::Namespaces(ProcView::Own);
        if strategy == Strategy::MountNamespace || usual {
            return None;
        }
        Some(self.summary())
    }

    /// What to say where builder does not filter the system calls of steps.
    pub(super) fn unfiltered(&self) -> Option<&'static str> {
        match self.chosen?.filter {
            Filter::Builder => None,
            Filter::Container => {
                Some("system calls of RUN are filtered as those of builder are, and no further")
            }
            Filter::None => Some("system calls of RUN are not filtered"),
        }
    }

    /// What was chosen and why nothing stronger.
    pub(super) fn summary(&self) -> String {
        let mut line = "isolation: ".to_owned();
        match self.chosen {
            Some(Chosen { strategy, way, .. }) => {
                line.push_str(strategy.name());
                if way == Way::Namespaces(ProcView::Shared) {
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

/// A failure that has no place yet.
struct Refused(Failure);

impl Refused {
    fn at(self, step: &PlannedStep, found: &FoundDockerfile) -> Failure {
        let excerpt = Excerpt::of(&found.path.display().to_string(), &found.content, step.span);
        Failure { excerpt: Some(excerpt), ..self.0 }
    }
}

/// Whether `plan` has a RUN.
pub(super) fn runs(plan: &Plan) -> bool {
    first(plan, |step| matches!(step, Step::Run(_))).is_some()
}

fn first(plan: &Plan, wanted: impl Fn(&Step) -> bool) -> Option<&PlannedStep> {
    plan.stages.iter().flat_map(|stage| &stage.steps).find(|step| wanted(&step.step))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn isolation(strategy: Strategy, way: Way, place: Place) -> Isolation {
        let cause = "no CAP_SYS_ADMIN".to_owned();
        let explanation = Explanation { cause, manifest: Vec::new(), advice: None };
        let refused = vec![(Strategy::MountNamespace, explanation)];
        Isolation {
            chosen: Some(Chosen { strategy, way, filter: Filter::Builder }),
            refused,
            on_request: None,
            place,
        }
    }

    #[test]
    fn the_words_are_the_strategies_names() {
        assert_eq!(Preference::parse(FLAG, "auto").unwrap(), Preference::Auto);
        assert_eq!(Preference::parse(FLAG, "in-place").unwrap(), Preference::Only(Strategy::InPlace));
        let error = Preference::parse(FLAG, "second-container").unwrap_err();
        assert_eq!(error.message, "--isolation: `second-container` is not in this version yet");
        let error = Preference::parse("BUILDER_ISOLATION", "docker").unwrap_err();
        assert_eq!(error.message, "BUILDER_ISOLATION: `docker` is no way to keep steps apart");
        assert!(error.hint.unwrap().starts_with("auto, mount-namespace, user-namespace, "));
    }

    #[test]
    fn a_line_says_what_was_taken_where_there_is_something_stronger() {
        use ProcView::{Own, Shared};
        for (strategy, way, place, line) in [
            (Strategy::MountNamespace, Way::Namespaces(Own), Place::Pod, None),
            (Strategy::UserNamespace, Way::Namespaces(Own), Place::Machine, None),
            (Strategy::UserNamespace, Way::Namespaces(Own), Place::Pod, Some("isolation: user-namespace (")),
            (
                Strategy::UserNamespace,
                Way::Namespaces(Shared),
                Place::Machine,
                Some(
                    "isolation: user-namespace with the /proc of the container (mount-namespace: no CAP_SYS_ADMIN); ",
                ),
            ),
            (
                Strategy::Chroot,
                Way::Chroot,
                Place::Machine,
                Some("isolation: chroot (mount-namespace: no CAP_SYS_ADMIN); "),
            ),
        ] {
            let found = isolation(strategy, way, place).line();
            assert_eq!(found.is_some(), line.is_some(), "{found:?}");
            assert!(found.unwrap_or_default().starts_with(line.unwrap_or_default()), "{strategy}");
        }
        let nothing = Isolation { chosen: None, ..isolation(Strategy::Chroot, Way::Chroot, Place::Pod) };
        assert_eq!(nothing.line(), None);
        assert_eq!(nothing.surroundings(), Surroundings::Unchanged);
    }
}
