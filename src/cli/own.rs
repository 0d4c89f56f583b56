//! Where commands that unpack and run things do that: in namespaces of their own.

use super::failure::Failure;
use super::isolation::{Isolation, Surroundings};
use crate::build::progress::{Event, Progress};
use crate::sandbox::own::{self, Own, OwnError, Wish};
use crate::sandbox::probe::{Place, Way};
use crate::store::janitor::Janitor;

/// What a command has after it entered its namespaces.
pub(super) struct Entered {
    /// Which ids there are.
    pub(super) own: Own,
    /// Removes what a killed command leaves.
    pub(super) janitor: Janitor,
}

/// Enters what `isolation` needs. To be called before any thread exists; tells what came of it.
pub(super) fn enter_for(isolation: &Isolation, progress: &dyn Progress) -> Result<Entered, Failure> {
    let surroundings = isolation.surroundings();
    let place = isolation.place();
    let entered = begin(surroundings.enter_users(), place, progress)?;
    surroundings.enter_mounts().map_err(|error| refused(&error, place))?;
    Ok(entered)
}

/// Enters namespaces of the process's own: for users, unless it is root, and for mounts. To be called before any thread
/// exists; tells what came of it.
pub(super) fn enter(wish: Wish, place: Place, progress: &dyn Progress) -> Result<Entered, Failure> {
    let entered = begin(own::enter(wish), place, progress)?;
    Surroundings::Mounts.enter_mounts().map_err(|error| refused(&error, place))?;
    Ok(entered)
}

fn begin(own: Result<Own, OwnError>, place: Place, progress: &dyn Progress) -> Result<Entered, Failure> {
    let own = own.map_err(|error| refused(&error, place))?;
    progress.tell(&Event::Detail(&own.detail));
    if let Some(shortage) = &own.shortage {
        progress.tell(&Event::Note(shortage));
    }
    // Where a step runs without a pid namespace, it sees this process and the janitor. Not before the ids are mapped: the
    // files of such a process in /proc belong to a root who may not exist in the namespace.
    crate::sys::refuse_tracing()
        .map_err(|error| Failure::new(format!("cannot keep steps from tracing this process: {error}")))?;
    // In this order: the janitor removes files of all ids there are, and must outlive the mounts.
    let janitor = Janitor::start().map_err(|error| Failure::from_error(&error))?;
    Ok(Entered { own, janitor })
}

fn refused(error: &OwnError, place: Place) -> Failure {
    let failure = Failure::from_error(error);
    match error.remedy(place) {
        Some(remedy) => failure.hint(remedy),
        None => failure,
    }
}

/// What to say when a command of a RUN failed that was kept apart in this `way`: it may have wanted another id than there
/// is, or /proc where there is none.
pub(super) fn hint_for_failed_step(own: &Own, way: Option<Way>) -> Option<String> {
    if own.ids.is_single() {
        let hint = "the step had one user and one group id, so changing to others fails; a user with ids in /etc/subuid and /etc/subgid has more";
        return Some(hint.to_owned());
    }
    way.is_some_and(|way| way.proc().is_none()).then(|| {
        "the step had no /proc, without which node, java, rustc, ps, /dev/stdin and bash's `<( )`, among others, do not work; `builder doctor` says what would give it one"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rootfs::IdMap;
    use crate::sandbox::ProcView;
    use crate::sandbox::own::Identity;

    #[test]
    fn a_step_that_failed_may_have_wanted_what_there_is_not() {
        let Ok(ids) = IdMap::of_this_process() else { return eprintln!("skipped: no /proc") };
        if ids.is_single() {
            return eprintln!("skipped: there is one user");
        }
        let own = Own { identity: Identity::Initial, ids, shortage: None, detail: String::new() };
        let namespaces = [ProcView::Own, ProcView::Shared].map(Way::Namespaces);
        for way in namespaces.into_iter().chain([Way::Chroot, Way::InPlace]) {
            let hint = hint_for_failed_step(&own, Some(way));
            assert_eq!(hint.is_some(), way == Way::Chroot, "{way:?}");
            assert!(hint.is_none_or(|hint| hint.contains("/proc")), "{way:?}");
        }
        assert_eq!(hint_for_failed_step(&own, None), None);
    }
}
