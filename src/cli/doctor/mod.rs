//! `builder doctor`: what is possible here, what is in the way of the rest, and what would change that.

mod platforms;
mod report;
mod store;
mod text;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::args::DoctorArgs;
use super::failure::Failure;
use super::isolation::{Choice, Chosen, PROGRAM};
use super::limits::Limits;
use super::settings::{
    Environment, ROOT_STORE, emulators, host_platform, isolation_preference, requested_platform,
    snapshotter_preference, store,
};
use super::snapshotter::word;
use super::stop::AtOnce;
use crate::image::platform::Platform;
use crate::rootfs::IdMap;
use crate::sandbox::emulation::{OwnHandlers, Places};
use crate::sandbox::own::may_give_files;
use crate::sandbox::probe::{Care, Ground, Hints, Place, Way};
use crate::sandbox::{Explanation, Strategy};
use report::{Isolation, Report, Tried};
use store::Site;

/// How it is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Text,
    Json,
}

/// Everything that it is told.
pub(super) struct DoctorSettings {
    format: Format,
    store: PathBuf,
    hints: Hints,
    /// Where else something can be tried, if not beside the store.
    temporary: PathBuf,
    host: Platform,
    platforms: Vec<Platform>,
    emulators: Places,
}

impl DoctorSettings {
    /// Checks what can be checked without looking.
    pub(super) fn resolve(args: &DoctorArgs, environment: &Environment) -> Result<Self, Failure> {
        let words = [("text", Format::Text), ("json", Format::Json)];
        let host = host_platform();
        let texts = args.custom_platform.iter().flat_map(|list| list.split(','));
        // What a build would be refused for.
        isolation_preference(None, environment)?;
        snapshotter_preference(None, environment)?;
        Limits::resolve(environment.text("BUILDER_LIMITS").as_deref(), &[])?;
        let asked = texts.map(|text| requested_platform(text, &host).map(|requested| requested.normalised));
        Ok(Self {
            format: word("--output", "format", &args.output, &words)?,
            // Who has no place for one is told so, and the rest, too.
            store: store(args.store.as_deref(), environment).unwrap_or_else(|_| ROOT_STORE.into()),
            hints: environment.hints(),
            temporary: environment.text("TMPDIR").map_or_else(|| PathBuf::from("/tmp"), PathBuf::from),
            platforms: asked.collect::<Result<_, _>>()?,
            emulators: emulators(args.emulator_dir.as_deref(), environment)?,
            host,
        })
    }
}

/// Looks, and prints what it found. The code is 0 where a build could have a RUN without being told more.
pub(super) fn doctor(settings: &DoctorSettings, at_once: &AtOnce) -> Result<ExitCode, Failure> {
    // As a build says it.
    IdMap::of_this_process().map_err(|error| {
        Failure::new(format!("cannot read which ids this process has: {error}; everything needs /proc"))
            .hint("mount -t proc proc /proc")
    })?;
    // What is made for the look goes before anybody is told.
    let report = at_once.after(|| look(settings))?;
    let possible = report.isolation.selected.is_some();
    match settings.format {
        Format::Text => super::print(&text::render(&report))?,
        Format::Json => super::print_json(&report)?,
    }
    Ok(if possible { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn look(settings: &DoctorSettings) -> Result<Report, Failure> {
    let place = Place::find(settings.hints);
    let site = Site::find(&settings.store, &settings.temporary)?;
    let (isolation, chosen) = isolation(place, &site);
    let own = match chosen.map(|chosen| chosen.way) {
        Some(Way::Namespaces(_)) => OwnHandlers::of_kernel(),
        _ => OwnHandlers::NoNamespace,
    };
    Ok(Report {
        place,
        user: rustix::process::geteuid().as_raw(),
        store: site.look(chosen, place),
        isolation,
        platforms: platforms::look(&settings.host, &settings.platforms, own, &settings.emulators),
    })
}

/// What works, and what a build would take of it.
fn isolation(place: Place, site: &Site) -> (Isolation, Option<Chosen>) {
    let mut chosen = None;
    let mut strategies = Vec::with_capacity(Strategy::ALL.len());
    for strategy in Strategy::ALL {
        // These need no place.
        let elsewhere = matches!(strategy, Strategy::SecondContainer | Strategy::InPlace);
        let tried = match site.directory().or(elsewhere.then_some(Path::new("/"))) {
            Some(directory) => {
                let ground = Ground { program: PROGRAM.as_ref(), directory, place };
                let result = ground.attempt(strategy, Care::Full);
                result.map_err(|obstacle| ground.explain(strategy, &obstacle))
            }
            None => Err(Explanation {
                cause: "not tried: there is no directory that can be written to".to_owned(),
                manifest: Vec::new(),
                advice: Some("give the store a volume (--store)".to_owned()),
            }),
        };
        if let (Ok(working), None, Choice::Automatic) = (&tried, chosen, Choice::of(strategy)) {
            chosen = Some(Chosen::new(strategy, working));
        }
        strategies.push(Tried::new(strategy, tried));
    }
    let selected = chosen.map(|chosen| chosen.strategy);
    let files = site.is_usable() && (selected.is_some() || may_give_files());
    (Isolation { selected, files, strategies }, chosen)
}
