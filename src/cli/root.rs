//! The root of the container before a command looks at anything in it.

use std::path::Path;

use super::failure::Failure;
use super::stop::AtOnce;
use crate::sandbox::in_place::{OwnRootError, Repaired, ensure_own_root};

/// Makes sure that the files in `/` are the container's own, whatever a command wants of them and however it keeps steps
/// apart. A builder that was killed while a step ran in place may have left an image's: then they go, and there is
/// something to tell.
pub(super) fn ensure_own(at_once: &AtOnce, note: &dyn Fn(&str)) -> Result<Option<&'static str>, Failure> {
    let waiting =
        || note("waiting for the end of a step, whose builder was killed, in the root of this container");
    // Half of it would be worse than none: no signal ends it.
    let repaired = at_once.undisturbed(|| ensure_own_root(Path::new("/"), &waiting));
    match repaired.map_err(|error| failure_of(&error))? {
        Repaired::Nothing => Ok(None),
        Repaired::Root => Ok(Some(
            "a builder that was killed had left an image's files in the root of this container; its own are back",
        )),
    }
}

fn failure_of(error: &OwnRootError) -> Failure {
    Failure::from_error(error).hint(error.remedy())
}
