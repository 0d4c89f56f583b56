//! What to do about a step that could not run, or not to its end.

use rustix::io::Errno;

use super::in_place::InPlaceError;
use super::probe::{self, Place};
use super::{SandboxError, Strategy};

impl SandboxError {
    /// What to do about it, in the words of `place`, where the step was kept apart by `strategy`; none where the message
    /// says it, or nobody knows.
    #[must_use]
    pub fn remedy(&self, strategy: Strategy, place: Place) -> Option<String> {
        match self {
            Self::Setup { step, source } => {
                let errno = Errno::from_io_error(source)?;
                probe::explain_step(strategy, step, errno).at(place).remedy()
            }
            Self::Network(refusal) => refusal.at(place).remedy(),
            Self::Lost(loss) => Some(loss.remedy().to_owned()),
            Self::InPlace(error) => of_root(error).map(str::to_owned),
            _ => None,
        }
    }
}

fn of_root(error: &InPlaceError) -> Option<&'static str> {
    match error {
        InPlaceError::Root { .. } => Some("start a new container"),
        InPlaceError::Mounts(_) => Some("steps that run in place need /proc: mount -t proc proc /proc"),
        InPlaceError::Io { .. } => Some(
            "builder puts the container's own files back, at the latest when it is started in this container again; if that fails, start a new container",
        ),
        _ => None,
    }
}
