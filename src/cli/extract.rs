//! `builder image extract`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::advice::Trouble;
use super::args::ExtractArgs;
use super::failure::Failure;
use super::limits::Limits;
use super::own::{self, Entered};
use super::progress::{Colour, Lines, Verbosity};
use super::settings::{Environment, host_platform, requested_platform};
use super::snapshotter::word;
use super::stop::{AtOnce, Stop};
use crate::build::progress::{Event, Progress as _, size};
use crate::children::reap_orphans;
use crate::image::matching::{Asked, MatchMode, Unfit};
use crate::image::platform::Platform;
use crate::layer::Owners;
use crate::sandbox::own::{Identity, OwnError, Wish};
use crate::sandbox::probe::{Hints, Place};
use crate::sandbox::{Act, Attempt};
use crate::store::choice::{Choice, ChoiceError};
use crate::store::extract::{Destination, Extract, ExtractError, Way};
use crate::store::janitor::Janitor;
use crate::store::layout::Layout;
use crate::store::unpacked::Progress;

/// How layers become one tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Snapshotter {
    Native,
    Overlayfs,
}

/// Everything that an extraction is told.
pub(super) struct ExtractSettings {
    layout: PathBuf,
    name: Option<String>,
    directory: PathBuf,
    platform: Platform,
    asked: Asked,
    snapshotter: Snapshotter,
    limits: Limits,
    verbosity: Verbosity,
    hints: Hints,
}

impl ExtractSettings {
    /// Checks what can be checked without opening the layout.
    pub(super) fn resolve(args: &ExtractArgs, environment: &Environment) -> Result<Self, Failure> {
        let host = host_platform();
        let (platform, asked) = match &args.custom_platform {
            None => (host, Asked::ByDefault),
            Some(text) if text.contains(',') => {
                let message = format!("`{text}` names several platforms, and one image is extracted");
                return Err(Failure::new(message).of_flag("--custom-platform").hint("name one of them"));
            }
            Some(text) => (requested_platform(text, &host)?.normalised, Asked::Explicitly),
        };
        let words = [("native", Snapshotter::Native), ("overlayfs", Snapshotter::Overlayfs)];
        let snapshotter = word("--snapshotter", "snapshotter", &args.snapshotter, &words)?;
        let (layout, name) = layout_and_name(&args.layout, |path| path.is_dir());
        let name = match (name, &args.name) {
            (Some(name), Some(flag)) if name != *flag => {
                let message = format!("`{flag}` is not the name behind the layout, `{name}`");
                return Err(Failure::new(message).of_flag("--ref"));
            }
            (name, flag) => name.or_else(|| flag.clone()),
        };
        Ok(Self {
            layout,
            name,
            directory: args.directory.clone(),
            platform,
            asked,
            snapshotter,
            hints: environment.hints(),
            limits: Limits::resolve(environment.text("BUILDER_LIMITS").as_deref(), &args.limit)?,
            verbosity: args
                .verbosity
                .parse()
                .map_err(|message: String| Failure::new(message).of_flag("--verbosity"))?,
        })
    }
}

/// Takes `PATH`, `PATH:NAME`, `oci:PATH` or `oci:PATH:NAME` apart. A colon may be part of both: the first prefix that is a
/// directory is the path, and where none is, it ends at the first colon, as for skopeo.
fn layout_and_name(text: &OsStr, is_directory: impl Fn(&Path) -> bool) -> (PathBuf, Option<String>) {
    let whole = text.as_bytes();
    let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
    if is_directory(&path(whole)) {
        return (path(whole), None);
    }
    let rest = whole.strip_prefix(b"oci:").unwrap_or(whole);
    if is_directory(&path(rest)) {
        return (path(rest), None);
    }
    let mut colons = rest.iter().enumerate().filter(|(_, byte)| **byte == b':').map(|(at, _)| at).peekable();
    let first = colons.peek().copied();
    match colons.find(|at| is_directory(&path(&rest[..*at]))).or(first) {
        Some(at) => {
            let name = String::from_utf8_lossy(&rest[at + 1..]).into_owned();
            (path(&rest[..at]), Some(name).filter(|name| !name.is_empty()))
        }
        None => (path(rest), None),
    }
}

/// Makes the directory.
pub(super) fn extract(settings: &ExtractSettings, colour: Colour, at_once: &AtOnce) -> Result<(), Failure> {
    let progress = Arc::new(Lines::to_stderr(settings.verbosity, colour));
    let destination = Destination::new(&settings.directory).map_err(|error| Failure::from_error(&error))?;
    let layout = Layout::open(&settings.layout, &settings.limits.documents)
        .map_err(|error| Failure::from_error(&error))?;
    let choice = Choice {
        name: settings.name.as_deref(),
        platform: &settings.platform,
        asked: settings.asked,
        mode: MatchMode::Compatible,
    };
    let image = layout.choose(&choice).map_err(|error| choice_failure(&error))?;
    for note in &image.notes {
        progress.tell(&Event::Note(note));
    }
    let ground = Ground::enter(settings, &progress)?;
    let stop = Stop::new(at_once)?;
    stop.watch(|| ())?;
    reap_orphans();
    let tell = |news: Progress<'_>| match news {
        Progress::Found(_) | Progress::Read(..) => {}
        Progress::Started(blob) => {
            progress.tell(&Event::Detail(&format!("unpacking {} ({})", blob.digest, size(blob.size))));
        }
        Progress::Finished(blob, applied) => {
            progress.tell(&Event::Detail(&format!("unpacked {}: {} entries", blob.digest, applied.entries)));
        }
    };
    let extract = Extract {
        layout: &layout,
        image: &image,
        limits: &settings.limits.layers,
        owners: ground.owners,
        janitor: Some(&ground.janitor),
        progress: &tell,
        cancelled: &|| stop.cancel.is_cancelled(),
    };
    let result =
        extract.run(&destination, &ground.way).map_err(|error| extract_failure(&error, &destination));
    let done = result.map(|losses| {
        for sentence in losses.sentences() {
            progress.tell(&Event::Warning { rule: "extract", span: None, detail: &sentence });
        }
        let platform = Platform::from(&image.config).shown();
        let note = format!(
            "extracted {} ({platform}, {} layers) to {}",
            image.digest,
            image.manifest.layers.len(),
            settings.directory.display()
        );
        progress.tell(&Event::Note(&note));
    });
    stop.judge(done)
}

/// Where the layers are applied.
struct Ground {
    way: Way,
    owners: Owners,
    janitor: Janitor,
}

impl Ground {
    /// Overlayfs needs a mount namespace; without it, an ordinary user is better off in a user namespace, and does without
    /// where there is none. To be called before any thread exists.
    fn enter(settings: &ExtractSettings, progress: &Lines<std::io::Stderr>) -> Result<Self, Failure> {
        let is_root = rustix::process::geteuid().is_root();
        match settings.snapshotter {
            Snapshotter::Overlayfs => {
                // Whatever an ordinary user extracts shall be the user's own.
                let wish = if is_root { Wish::All } else { Wish::Single };
                let Entered { own, janitor } = own::enter(wish, Place::find(settings.hints), progress)?;
                let owners = owners_in(own.identity);
                Ok(Self { way: Way::Overlay(own.ids), owners, janitor })
            }
            Snapshotter::Native if is_root => Self::native(Owners::Possible),
            Snapshotter::Native => match crate::sandbox::own::enter(Wish::Single) {
                Ok(own) => {
                    progress.tell(&Event::Detail(&own.detail));
                    Self::native(owners_in(own.identity))
                }
                // Whatever comes after that leaves this process in a namespace without ids.
                Err(error @ OwnError::Refused { attempt: Attempt { act: Act::UserNamespace, .. }, .. }) => {
                    progress.tell(&Event::Detail(&format!("going on without: {error}")));
                    Self::native(Owners::Possible)
                }
                Err(error) => Err(Failure::from_error(&error)),
            },
        }
    }

    fn native(owners: Owners) -> Result<Self, Failure> {
        let janitor = Janitor::start().map_err(|error| Failure::from_error(&error))?;
        Ok(Self { way: Way::Native, owners, janitor })
    }
}

fn owners_in(identity: Identity) -> Owners {
    match identity {
        Identity::Initial | Identity::Ranges => Owners::Possible,
        Identity::Single => Owners::Mapped,
    }
}

fn choice_failure(error: &ChoiceError) -> Failure {
    let failure = Failure::from_error(error);
    match error {
        ChoiceError::Names(_) => failure.hint("choose one with `LAYOUT:NAME` or `--ref NAME`"),
        ChoiceError::NoPlatform { .. } => failure.hint("choose one of these with --platform"),
        ChoiceError::Unfit(Unfit::Other { .. } | Unfit::Variant { .. }) => {
            failure.hint("leave --platform out to extract it all the same")
        }
        _ => failure,
    }
}

fn extract_failure(error: &ExtractError, destination: &Destination) -> Failure {
    let mut failure = Failure::from_error(error);
    if let ExtractError::Mount(_) | ExtractError::Layers(_) = error {
        return failure.hint("`--snapshotter native` needs no overlayfs");
    }
    // No store has part in it.
    if let Some(Trouble::Refused { place, .. }) = &mut failure.trouble {
        place.get_or_insert_with(|| destination.path().to_owned());
    }
    failure.advised(destination.path())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::tests::args_of_extract;

    #[test]
    fn flags_are_refused_as_those_of_a_build_are() {
        for (flag, message) in [
            ("--custom-platform=linux/amd64,linux/arm64", "names several platforms"),
            ("--snapshotter=auto", "--snapshotter: `auto` is no snapshotter"),
        ] {
            let args = args_of_extract(&[flag, "out", "dir"]);
            let error = ExtractSettings::resolve(&args, &Environment::of(&[])).err().unwrap();
            assert!(error.message.contains(message), "{}", error.message);
        }
    }

    #[test]
    fn a_layout_and_a_name_are_told_apart_by_what_is_a_directory() {
        let directories = ["/l", "rel/a:b", "oci:odd"].map(Path::new);
        for (text, path, name) in [
            ("/l", "/l", None),
            ("/l:", "/l", None),
            ("/l:v1", "/l", Some("v1")),
            ("oci:/l", "/l", None),
            ("oci:/l:v1", "/l", Some("v1")),
            ("oci:/l:host:5000/a:v1", "/l", Some("host:5000/a:v1")),
            ("rel/a:b", "rel/a:b", None),
            ("rel/a:b:v1", "rel/a:b", Some("v1")),
            ("oci:rel/a:b:v1", "rel/a:b", Some("v1")),
            ("oci:odd", "oci:odd", None),
            ("missing", "missing", None),
            ("oci:missing:v1:x", "missing", Some("v1:x")),
        ] {
            let found = layout_and_name(OsStr::new(text), |path| directories.contains(&path));
            assert_eq!(found, (PathBuf::from(path), name.map(str::to_owned)), "{text}");
        }
    }
}
