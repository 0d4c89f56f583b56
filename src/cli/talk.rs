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
        Ok(Self {
            client: settings::client(registry, environment)?,
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
