//! `builder manifest inspect`: manifest-tool's texts and keys.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;
use serde_json::ser::PrettyFormatter;
use serde_json::{Map, Value};

use crate::cli::args::InspectArgs;
use crate::cli::failure::Failure;
use crate::cli::hints::service_failure;
use crate::cli::progress::Colour;
use crate::cli::settings::Environment;
use crate::cli::stop::AtOnce;
use crate::cli::talk::{Talk, TalkSettings};
use crate::image::config::parse_platform;
use crate::image::descriptor::{Descriptor, media_type};
use crate::image::digest::Digest;
use crate::image::document::Payload;
use crate::image::index::{Index, parse_index};
use crate::image::manifest::Manifest;
use crate::image::platform::PlatformFields;
use crate::image::reference::Reference;
use crate::image::shown;
use crate::registry::{Fetched, in_parallel};
use crate::text::SafeJson;
use crate::transfer::combine::{Once, Place, parse_anything};

/// Manifests that are read at once.
const JOBS: usize = 4;

/// The most text about an index.
const MOST_TEXT: usize = 64 << 20;

/// What is said of the layers of images, by what entries of the index say to point to.
type LayerTexts = Once<Place, (usize, Arc<str>)>;

/// Where BuildKit says what a manifest in an index is about.
const REFERENCE_TYPE: &str = "vnd.docker.reference.type";

/// What to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Text,
    Raw,
    Expanded,
}

/// Everything that an inspection is told.
pub(in crate::cli) struct InspectSettings {
    /// As it was written.
    name: String,
    reference: Reference,
    form: Form,
    talk: TalkSettings,
}

impl InspectSettings {
    /// Checks the flags.
    pub(in crate::cli) fn resolve(args: &InspectArgs, environment: &Environment) -> Result<Self, Failure> {
        let reference = args.name.parse().map_err(|error| Failure::from_error(&error))?;
        if Reference::parse_repository(&args.name).is_ok() {
            let message = format!("`{}` has neither tag nor digest, and none is guessed here", args.name);
            return Err(Failure::new(message).hint(format!("for instance {}:latest", args.name)));
        }
        let form = match (args.raw, args.expand_config) {
            (false, false) => Form::Text,
            (true, false) => Form::Raw,
            (true, true) => Form::Expanded,
            (false, true) => {
                return Err(Failure::new("--expand-config: it says nothing without --raw"));
            }
        };
        let talk = TalkSettings::resolve(&args.registry, &args.shown, environment)?;
        Ok(Self { name: args.name.clone(), reference, form, talk })
    }
}

/// Prints what the registry has.
pub(in crate::cli) fn inspect(
    settings: &InspectSettings,
    colour: Colour,
    at_once: &AtOnce,
) -> Result<(), Failure> {
    let output = settings.talk.talk(colour, at_once, |talk| Inspection { settings, talk }.run())?;
    crate::cli::print_with(|out| output.iter().try_for_each(|part| out.write_all(part)))
}

struct Inspection<'a> {
    settings: &'a InspectSettings,
    talk: &'a Talk,
}

/// What the manifest of an image does not say itself, in manifest-tool's order.
#[derive(Serialize)]
struct About<'a> {
    name: &'a str,
    digest: &'a Digest,
    #[serde(skip_serializing_if = "str::is_empty")]
    os: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    architecture: &'a str,
}

/// The manifest with that.
#[derive(Serialize)]
struct RawImage<'a> {
    #[serde(flatten)]
    about: About<'a>,
    #[serde(flatten)]
    manifest: &'a Manifest,
}

/// The same with the config itself.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ExpandedImage<'a> {
    schema_version: u32,
    #[serde(flatten)]
    about: About<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    media_type: Option<&'a str>,
    config: Value,
    layers: &'a [Descriptor],
    #[serde(skip_serializing_if = "Option::is_none")]
    annotations: Option<&'a BTreeMap<String, String>>,
    #[serde(flatten)]
    other: &'a Map<String, Value>,
}

impl Inspection<'_> {
    /// What is to be printed, in parts: of an index, as much as there may be in memory.
    fn run(&self) -> Result<Vec<Vec<u8>>, Failure> {
        let Self { settings, talk } = self;
        let fetched = talk
            .client
            .document(&settings.reference, Payload::Anything)
            .map_err(|error| service_failure(&error))?;
        if !media_type::is_index(&fetched.media_type) {
            return Ok(vec![self.image(&fetched)?]);
        }
        match settings.form {
            Form::Text => self.index(&fetched),
            Form::Raw => Ok(vec![fetched.bytes]),
            Form::Expanded => {
                let index = self.parse_index(&fetched)?;
                let entry = index.manifests.first().map(|entry| entry.digest.clone());
                let entry = entry.unwrap_or_else(|| fetched.digest.clone());
                let message = format!("`{}` is an index, which has no config", settings.name);
                Err(Failure::new(message).of_flag("--expand-config").hint(format!(
                    "name an image of it, for instance {}",
                    settings.reference.with_digest(entry).without_tag()
                )))
            }
        }
    }

    fn parse_index(&self, fetched: &Fetched) -> Result<Index, Failure> {
        let limits = &self.settings.talk.limits.documents;
        parse_index(&fetched.bytes, Some(&fetched.media_type), limits)
            .map_err(|error| self.unreadable(&error))
    }

    fn parse_manifest(&self, fetched: &Fetched) -> Result<Manifest, Failure> {
        let limits = &self.settings.talk.limits.documents;
        parse_anything(fetched, limits).map_err(|error| self.unreadable(&error))
    }

    fn unreadable(&self, error: &(dyn std::error::Error + 'static)) -> Failure {
        Failure::from_error(error).within(format!("cannot read `{}`", self.settings.name))
    }

    fn image(&self, fetched: &Fetched) -> Result<Vec<u8>, Failure> {
        let Self { settings, talk } = self;
        let limits = &settings.talk.limits.documents;
        let manifest = self.parse_manifest(fetched)?;
        let bytes = talk
            .client
            .small_blob(&settings.reference, &manifest.config, limits.config)
            .map_err(|error| service_failure(&error))?;
        // That of something else than an image need not be JSON.
        let platform = match parse_platform(&bytes, limits) {
            Err(error) if media_type::is_config(&manifest.config.media_type) => {
                return Err(self.unreadable(&error));
            }
            platform => platform.unwrap_or_default(),
        };
        let about = About {
            name: &settings.name,
            digest: &fetched.digest,
            os: &platform.os,
            architecture: &platform.architecture,
        };
        match settings.form {
            Form::Text => Ok(self.image_text(fetched, &manifest, &platform).into_bytes()),
            Form::Raw => pretty(&RawImage { about, manifest: &manifest }),
            Form::Expanded => pretty(&ExpandedImage {
                schema_version: manifest.schema_version,
                about,
                media_type: manifest.media_type.as_deref(),
                config: serde_json::from_slice(&bytes).map_err(|error| self.unreadable(&error))?,
                layers: &manifest.layers,
                annotations: manifest.annotations.as_ref(),
                other: &manifest.other,
            }),
        }
    }

    fn image_text(&self, fetched: &Fetched, manifest: &Manifest, platform: &PlatformFields) -> String {
        let mut text = String::new();
        let _ = writeln!(text, "Name: {} (Type: {})", self.settings.name, shown(&fetched.media_type));
        let _ = writeln!(text, "      Digest: {}", fetched.digest);
        let _ = writeln!(text, "        Size: {}", fetched.bytes.len());
        let _ = writeln!(text, "          OS: {}", shown(&platform.os));
        let _ = writeln!(text, "        Arch: {}", shown(&platform.architecture));
        if let Some(variant) = platform.variant.as_deref().filter(|variant| !variant.is_empty()) {
            let _ = writeln!(text, "     Variant: {}", shown(variant));
        }
        let _ = writeln!(text, "    # Layers: {}", manifest.layers.len());
        for (position, layer) in manifest.layers.iter().enumerate() {
            let _ = writeln!(text, "      layer {:02}: digest = {}", position + 1, layer.digest);
        }
        text
    }

    fn index(&self, fetched: &Fetched) -> Result<Vec<Vec<u8>>, Failure> {
        let entries = self.parse_index(fetched)?.manifests;
        let numbered: Vec<(usize, &Descriptor)> = entries.iter().enumerate().collect();
        let (layers, length) = (LayerTexts::default(), AtomicUsize::new(0));
        let texts = in_parallel(&numbered, JOBS, |(position, entry)| {
            let text = self.entry(position + 1, entry, &layers)?;
            // Every entry may name the same image with very many layers.
            if length.fetch_add(text.len(), Ordering::Relaxed) + text.len() > MOST_TEXT {
                let message =
                    format!("what `{}` has is more than {} MiB of text", self.settings.name, MOST_TEXT >> 20);
                return Err(Failure::new(message).hint("--raw prints the index alone"));
            }
            Ok(text)
        })?;
        let attestations = entries.iter().filter(|entry| is_attestation(entry)).count();
        let images = entries.len() - attestations;
        let plural = |count: usize| if count > 1 { "s" } else { "" };
        let mut text = String::new();
        let _ = writeln!(text, "Name:   {} (Type: {})", self.settings.name, shown(&fetched.media_type));
        let _ = writeln!(text, "Digest: {}", fetched.digest);
        let _ = writeln!(
            text,
            " * Contains {} manifest references ({images} image{}, {attestations} attestation{}):",
            entries.len(),
            plural(images),
            plural(attestations)
        );
        Ok(std::iter::once(text).chain(texts).map(String::into_bytes).collect())
    }

    /// What is said of an entry of an index, whose number is `n`.
    fn entry(&self, n: usize, entry: &Descriptor, layers: &LayerTexts) -> Result<String, Failure> {
        let mut text = String::new();
        let attestation = if is_attestation(entry) {
            format!(" ({REFERENCE_TYPE}=attestation-manifest)")
        } else {
            String::new()
        };
        let _ = writeln!(text, "[{n}]     Type: {}{attestation}", shown(&entry.media_type));
        let _ = writeln!(text, "[{n}]   Digest: {}", entry.digest);
        let _ = writeln!(text, "[{n}]   Length: {}", entry.size);
        if !media_type::is_manifest(&entry.media_type) {
            let _ = writeln!(text, "Unknown media type for further display: {}", shown(&entry.media_type));
            return Ok(text);
        }
        if is_attestation(entry) {
            let of = entry.annotation("vnd.docker.reference.digest").unwrap_or_default();
            let _ = writeln!(text, "[{n}]       >>> Attestation for digest: {}\n", shown(of));
            return Ok(text);
        }
        let _ = writeln!(text, "[{n}] Platform:");
        match &entry.platform {
            None => {
                let _ = writeln!(text, "[{n}]    -      (no platform specified)");
            }
            Some(platform) => platform_lines(&mut text, n, platform),
        }
        let place = Place::of(&self.settings.reference, entry);
        let (count, layers) = layers.get(place, || self.layers(entry), |_| true)?;
        let _ = writeln!(text, "[{n}] # Layers: {count}");
        // No more than is counted.
        text.reserve_exact(layers.len() + 1);
        text.push_str(&layers);
        text.push('\n');
        Ok(text)
    }

    /// How many layers an image of an index has, and what is said of them.
    fn layers(&self, entry: &Descriptor) -> Result<(usize, Arc<str>), Failure> {
        let fetched = self.talk.client.document_of(&self.settings.reference, entry, Payload::Anything);
        let manifest = self.parse_manifest(&fetched.map_err(|error| service_failure(&error))?)?;
        let mut text = String::new();
        for (position, layer) in manifest.layers.iter().enumerate() {
            let _ = writeln!(text, "     layer {:02}: digest = {}", position + 1, layer.digest);
            let _ = writeln!(text, "                 type = {}", shown(&layer.media_type));
        }
        Ok((manifest.layers.len(), text.into()))
    }
}

fn platform_lines(text: &mut String, n: usize, platform: &PlatformFields) {
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let features = platform.os_features.as_ref().filter(|features| !features.is_empty());
    let lines = [
        ("     OS", Some(platform.os.clone())),
        ("OS Vers", given(&platform.os_version)),
        // As Go prints a list.
        ("OS Feat", features.map(|features| format!("[{}]", features.join(" ")))),
        ("   Arch", Some(platform.architecture.clone())),
        ("Variant", given(&platform.variant)),
    ];
    for (name, value) in lines.iter().filter_map(|(name, value)| Some((name, value.as_ref()?))) {
        let _ = writeln!(text, "[{n}]    - {name}: {}", shown(value));
    }
}

fn is_attestation(entry: &Descriptor) -> bool {
    entry.annotation(REFERENCE_TYPE) == Some("attestation-manifest")
}

/// As Go indents JSON, with a line end.
fn pretty(value: &impl Serialize) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let mut serializer =
        serde_json::Serializer::with_formatter(SafeJson(&mut bytes), PrettyFormatter::with_indent(b"    "));
    value
        .serialize(&mut serializer)
        .map_err(|error| Failure::new(format!("cannot write this as JSON: {error}")))?;
    bytes.push(b'\n');
    Ok(bytes)
}
