//! Where commands that unpack and run things do that: in namespaces of their own.

use super::failure::Failure;
use super::isolation::{Isolation, Surroundings};
use crate::build::progress::{Event, Progress};
use crate::sandbox::own::{self, Own, OwnError, Wish};
use crate::sandbox::probe::Place;
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
        progress.tell(&Event::Note(&format!("note: {}", shortage.at(place))));
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
