//! `builder pull`.

use std::path::PathBuf;

use super::args::PullArgs;
use super::build::open_store;
use super::failure::Failure;
use super::hints::service_failure;
use super::progress::Colour;
use super::settings::{self, Environment, host_platform};
use super::stop::AtOnce;
use super::sweep::Sweep;
use super::talk::{Talk, TalkSettings};
use crate::build::progress::{Event, Progress as _};
use crate::build::services::Wanted;
use crate::image::digest::Digest;
use crate::image::reference::Reference;
use crate::transfer::{Asked, Images, Pull};

/// Everything that a pull is told.
pub(super) struct PullSettings {
    name: Reference,
    wanted: Wanted,
    store: PathBuf,
    warnings: Vec<String>,
    talk: TalkSettings,
}

impl PullSettings {
    /// Checks the flags.
    pub(super) fn resolve(args: &PullArgs, environment: &Environment) -> Result<Self, Failure> {
        let mut warnings = Vec::new();
        let (platforms, asked) = settings::platforms(&args.platform, &host_platform(), &mut warnings)?;
        Ok(Self {
            name: args.name.parse().map_err(|error| Failure::from_error(&error))?,
            wanted: Wanted {
                platform: platforms.only()?.normalised.clone(),
                asked,
                mode: settings::match_mode(&args.platform)?,
            },
            store: settings::store(args.store.as_deref(), environment)?,
            warnings,
            talk: TalkSettings::resolve(&args.registry, &args.shown, environment)?,
        })
    }
}

/// Pulls, and prints the digest of the manifest.
pub(super) fn pull(settings: &PullSettings, colour: Colour, at_once: &AtOnce) -> Result<(), Failure> {
    let digest = settings.talk.talk(colour, at_once, |talk| pull_with(settings, talk))?;
    super::print(&format!("{digest}\n"))
}

fn pull_with(settings: &PullSettings, talk: &Talk) -> Result<Digest, Failure> {
    let progress = &talk.progress;
    for warning in &settings.warnings {
        progress.tell(&Event::Warning { rule: "flag", span: None, detail: warning });
    }
    let store = open_store(&settings.store, progress)?;
    let sweep = Sweep::begin(&store, &**progress)?;
    let limits = settings.talk.limits.documents;
    let images = Images {
        client: &talk.client,
        store: &store,
        progress: &**progress,
        limits,
        pull: Pull::Always,
        unpacking: None,
        asked: Asked::default(),
    };
    let message = || format!("cannot pull `{}` for {}", settings.name.familiar(), settings.wanted.platform);
    let pulled = images
        .pull(&settings.name, &settings.wanted, &talk.stop.cancel)
        .map_err(|error| service_failure(&*error).within(message()).advised(store.root()))?;
    for note in &pulled.notes {
        progress.tell(&Event::Note(note));
    }
    if let Some(found) = &pulled.foreign {
        let wanted = &settings.wanted.platform;
        let detail = format!("`{}` is for {}, not for {wanted}", settings.name.familiar(), found.shown());
        progress.tell(&Event::Warning { rule: "platform", span: None, detail: &detail });
    }
    let named = store.catalog().set(&settings.name, &pulled.manifest);
    named.map_err(|error| Failure::from_error(&error).advised(store.root()))?;
    let digest = pulled.manifest.digest;
    let platform = pulled.platform.shown();
    progress.tell(&Event::Note(&format!("stored {} for {platform}: {digest}", settings.name.familiar())));
    sweep.finish(&talk.stop.cancel);
    Ok(digest)
}
