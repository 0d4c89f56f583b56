//! What to do about a step that could not run, or not to its end.

use rustix::io::Errno;

use super::in_place::InPlaceError;
use super::probe::{self, Place};
use super::refusal::{Act, errno_words};
use super::{SandboxError, Strategy};

impl SandboxError {
    /// Whether there would be no such failure without a handler of the step's own.
    #[must_use]
    pub fn is_of_own_handler(&self) -> bool {
        matches!(self, Self::Setup { step, .. } if step.act == Act::Handler)
    }

    /// What to do about it, in the words of `place`, where the step was kept apart by `strategy`; none where the message
    /// says it, or nobody knows.
    #[must_use]
    pub fn remedy(&self, strategy: Strategy, place: Place) -> Option<String> {
        match self {
            Self::Setup { step, .. } if step.act == Act::Handler => Some(
                "handlers in a user namespace take Linux 6.7, and a kernel and a profile that allow user namespaces; `builder doctor` says what runs programs for other platforms here"
                    .to_owned(),
            ),
            Self::Setup { step, source } => {
                let errno = Errno::from_io_error(source)?;
                let explanation = probe::explain_step(strategy, step, errno).at(place);
                let remedy = explanation.remedy()?;
                // The message has what the kernel said, and no more.
                let is_news = !explanation.cause.contains(&errno_words(errno));
                Some(if is_news { format!("{}; {remedy}", explanation.cause) } else { remedy })
            }
            Self::Lost(loss) => Some(loss.remedy().to_owned()),
            Self::InPlace(error) => of_root(error).map(str::to_owned),
            Self::Device { .. } => {
                let unprivileged = match place {
                    Place::Machine => "or build in a container",
                    Place::Pod => "or build in a pod without securityContext.privileged",
                    Place::Container => "or build in a container without --privileged",
                };
                Some(format!(
                    "remove the device from the image or the cache before, {unprivileged}, which has such rules"
                ))
            }
            // Those of a pod are given by its node.
            Self::UnknownId { file, .. } => {
                (place != Place::Pod).then(|| format!("more are given in {file}"))
            }
            Self::Spawn(source) => of_program(Errno::from_io_error(source)?).map(str::to_owned),
            _ => None,
        }
    }
}

/// Of limits and memory, whatever they are in the way of, knows who prints it.
fn of_program(errno: Errno) -> Option<&'static str> {
    let needs = "builder starts itself by way of /proc/self/exe: it needs /proc, and its own file where programs can be executed";
    matches!(errno, Errno::NOENT | Errno::ACCESS).then_some(needs)
}

fn of_root(error: &InPlaceError) -> Option<&'static str> {
    match error {
        InPlaceError::Root { .. } => Some("start a new container"),
        InPlaceError::Mounts(_) => Some("steps that run in place need /proc: mount -t proc proc /proc"),
        InPlaceError::Io { source, .. } | InPlaceError::Private { source, .. } if is_open_files(source) => {
            Some(
                "raise the limit of open files (`ulimit -n`): each directory that holds a mount takes three; builder puts the container's own files back, at the latest when it is started in this container again",
            )
        }
        InPlaceError::Io { .. } => Some(
            "builder puts the container's own files back, at the latest when it is started in this container again; if that fails, start a new container",
        ),
        _ => None,
    }
}

fn is_open_files(error: &std::io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::MFILE)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::rootfs::GuestPath;
    use crate::sandbox::Loss;

    #[test]
    fn what_can_be_done_about_a_step_that_could_not_run_is_said() {
        let setup = |act: Act, errno: Errno| SandboxError::Setup {
            step: act.named("try"),
            source: io::Error::from(errno),
        };
        let source = || io::Error::from(Errno::IO);
        let path = GuestPath::root;
        for (error, words) in [
            // What is to be done, after what is in the way.
            (setup(Act::NetworkNamespace, Errno::NOSPC), Some("max_net_namespaces`, or one of")),
            (setup(Act::NetworkNamespace, Errno::NOSPC), Some("reached; on the node, as root: sysctl")),
            (setup(Act::OpenDevice, Errno::ACCESS), Some("put the store on another volume")),
            (setup(Act::WriteRoot, Errno::ROFS), Some("readOnlyRootFilesystem: false")),
            // After a trial that had worked, no setting is to blame for what has no name.
            (setup(Act::Other, Errno::ACCESS), None),
            (setup(Act::Handler, Errno::PERM), Some("take Linux 6.7")),
            (SandboxError::Spawn(Errno::NOENT.into()), Some("it needs /proc")),
            (SandboxError::Spawn(Errno::AGAIN.into()), None),
            (SandboxError::Device { path: path() }, Some("without securityContext.privileged")),
            (SandboxError::Lost(Loss::Memory), Some("resources.limits.memory")),
            (SandboxError::Lost(Loss::Step), Some("whether the step signals")),
            (SandboxError::Lost(Loss::Outside), Some("dmesg")),
            (InPlaceError::Mounts(source()).into(), Some("mount -t proc")),
            (InPlaceError::Root { path: "/".into(), source: source() }.into(), Some("new container")),
            (
                InPlaceError::Io { action: "rename", path: path(), source: source() }.into(),
                Some("files back"),
            ),
            (
                InPlaceError::Io { action: "open", path: path(), source: io::Error::from(Errno::MFILE) }
                    .into(),
                Some("ulimit -n"),
            ),
            (InPlaceError::Damaged { paths: vec![path()], kept: None }.into(), None),
        ] {
            let remedy = error.remedy(Strategy::InPlace, Place::Pod);
            assert_eq!(remedy.is_some(), words.is_some(), "{error}: {remedy:?}");
            assert!(remedy.unwrap_or_default().contains(words.unwrap_or_default()), "{error}");
        }
    }
}
