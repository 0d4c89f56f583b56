//! What commands share that only talk to registries.

use std::sync::Arc;

use super::args::{RegistryArgs, ShownArgs};
use super::build::{client, watch};
use super::failure::Failure;
use super::limits::Limits;
use super::progress::{Colour, Display, Mode, Verbosity};
use super::settings::{self, Environment};
use super::stop::{AtOnce, Stop};
use crate::build::progress::Progress as _;
use crate::registry::{Client, ClientOptions};

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

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::args::{Command, CommandLine};

    #[test]
    fn insecure_is_for_reading_too() {
        for (flags, expected) in [
            (&[][..], (false, false)),
            (&["--insecure"], (true, true)),
            (&["--insecure-pull"], (true, false)),
        ] {
            let line = ["builder", "pull", "x"].iter().chain(flags);
            let Command::Pull(args) = CommandLine::try_parse_from(line).unwrap().command else { panic!() };
            let settings = TalkSettings::resolve(&args.registry, &args.shown, &Environment::of(&[])).unwrap();
            let insecure = &settings.client.insecure;
            assert_eq!((insecure.pull, insecure.push), expected, "{flags:?}");
        }
    }
}
