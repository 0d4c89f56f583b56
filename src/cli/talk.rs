//! What commands share that only talk to registries.

use std::sync::Arc;

use super::args::{RegistryArgs, ShownArgs};
use super::build::{client, watch};
use super::failure::Failure;
use super::limits::Limits;
use super::progress::{Colour, Display, Mode, Verbosity};
use super::settings::{self, Environment};
use super::stop::{AtOnce, Stop};
use crate::build::progress::{Event, Progress};
use crate::image::reference::Reference;
use crate::registry::{Client, ClientOptions};
use crate::sandbox::Cancel;

/// How registries are spoken to, and what is shown meanwhile.
pub(super) struct TalkSettings {
    client: ClientOptions,
    /// How much there may be of what is read.
    pub(super) limits: Limits,
    verbosity: Verbosity,
    progress: Mode,
}

impl TalkSettings {
    /// Checks the flags.
    pub(super) fn resolve(
        registry: &RegistryArgs,
        shown: &ShownArgs,
        environment: &Environment,
    ) -> Result<Self, Failure> {
        let mut client = settings::client(registry, environment)?;
        // Only a build has one registry to read from and another to push to.
        client.insecure.pull |= registry.insecure;
        Ok(Self {
            client,
            limits: settings::limits(shown, environment)?,
            verbosity: settings::verbosity(shown)?,
            progress: settings::progress(shown, environment)?,
        })
    }

    /// Has `body` talk, until it is done or a signal asks to stop.
    pub(super) fn talk<T>(
        &self,
        colour: Colour,
        at_once: &AtOnce,
        body: impl FnOnce(&Talk) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let progress = Arc::new(Display::to_stderr(self.progress, self.verbosity, colour)?);
        let client = client(&self.client, self.limits.documents, &progress)?;
        let stop = Stop::new(at_once)?;
        watch(&stop, &client)?;
        let talk = Talk { client, progress, stop };
        let result = body(&talk);
        talk.progress.end();
        talk.stop.judge(result)
    }
}

/// A conversation with registries.
pub(super) struct Talk {
    /// Who talks.
    pub(super) client: Arc<Client>,
    /// Who is told.
    pub(super) progress: Arc<Display>,
    /// Who may end it.
    pub(super) stop: Stop,
}

/// Has `put` give something in a registry its name. Where that is stopped on its way, nobody knows what the name stands for
/// now: it is said, with `rule` in front.
pub(super) fn naming<T, E>(
    (cancel, progress): (&Cancel, &dyn Progress),
    rule: &str,
    name: &Reference,
    put: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    let was_stopped = cancel.is_cancelled();
    let result = put();
    if result.is_err() && !was_stopped && cancel.is_cancelled() {
        let name = name.familiar();
        let detail = format!(
            "`{name}` may be the new image or still the old one: it was stopped while its name was pushed"
        );
        progress.tell(&Event::Warning { rule, span: None, detail: &detail });
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::{self, Command};

    #[test]
    fn insecure_is_for_reading_too() {
        for (flags, expected) in [
            (&[][..], (false, false)),
            (&["--insecure"], (true, true)),
            (&["--insecure-pull"], (true, false)),
        ] {
            let line = ["builder", "pull", "x"].iter().chain(flags);
            let Command::Pull(args) =
                args::parse(&line.map(std::ffi::OsString::from).collect::<Vec<_>>()).unwrap().command
            else {
                panic!()
            };
            let settings = TalkSettings::resolve(&args.registry, &args.shown, &Environment::of(&[])).unwrap();
            let insecure = &settings.client.insecure;
            assert_eq!((insecure.pull, insecure.push), expected, "{flags:?}");
        }
    }
}
