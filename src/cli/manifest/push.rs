//! `builder manifest push`.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::source::Source;
use crate::build::progress::{Event, Progress as _};
use crate::cli::args::{CombineArgs, ManifestPushArgs, ManifestPushCommand};
use crate::cli::build::open_store;
use crate::cli::failure::Failure;
use crate::cli::hints::service_failure;
use crate::cli::progress::Colour;
use crate::cli::settings::{self, Environment};
use crate::cli::snapshotter::word;
use crate::cli::stop::AtOnce;
use crate::cli::talk::{Talk, TalkSettings, naming};
use crate::image::assemble::{AssembleError, Entry, Tally, TooMany, assemble};
use crate::image::descriptor::{Descriptor, media_type};
use crate::image::document::Payload;
use crate::image::encoding::TypeNames;
use crate::image::json::Encoded;
use crate::image::platform::Platform;
use crate::image::reference::Reference;
use crate::registry::in_parallel;
use crate::spec::Member;
use crate::transfer::combine::{Found, Known, Sources};
use crate::transfer::{Asked, Images, Pull};

/// Images that are looked at at once.
const JOBS: usize = 4;

/// What to do about an image that is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Missing {
    Refused,
    LeftOut,
}

/// Everything that a push is told.
pub(in crate::cli) struct PushSettings {
    source: Source,
    types: TypeNames,
    missing: Missing,
    store: PathBuf,
    talk: TalkSettings,
}

impl PushSettings {
    /// Checks the flags, and what they name.
    pub(in crate::cli) fn resolve(
        args: &ManifestPushArgs,
        environment: &Environment,
    ) -> Result<Self, Failure> {
        let types = [("docker", TypeNames::Docker), ("oci", TypeNames::Oci)];
        let types = word("--type", "type of index", &args.kind, &types)?;
        let CombineArgs { ignore_missing, registry, store, shown } = match &args.command {
            ManifestPushCommand::FromSpec(args) => &args.common,
            ManifestPushCommand::FromArgs(args) => &args.common,
        };
        let talk = TalkSettings::resolve(registry, shown, environment)?;
        let source = match &args.command {
            ManifestPushCommand::FromSpec(args) => Source::of_file(args, talk.limits.spec)?,
            ManifestPushCommand::FromArgs(args) => Source::of_arguments(args)?,
        };
        if types == TypeNames::Docker && !source.spec.annotations.is_empty() {
            let failure = Failure::new("a manifest list of Docker's type has no annotations")
                .hint("`--type oci`, behind `push`, makes an index that has");
            let failure =
                if source.spec.annotations_at.is_none() { failure.of_flag("--annotations") } else { failure };
            return Err(source.at(source.spec.annotations_at, failure));
        }
        Ok(Self {
            source,
            types,
            missing: if *ignore_missing { Missing::LeftOut } else { Missing::Refused },
            store: settings::store(store.as_deref(), environment)?,
            talk,
        })
    }
}

/// Pushes, and prints the digest and the length of the index.
pub(in crate::cli) fn push(settings: &PushSettings, colour: Colour, at_once: &AtOnce) -> Result<(), Failure> {
    let index = settings.talk.talk(colour, at_once, |talk| {
        Push { settings, talk, known: Known::default(), tally: Tally::default() }.run()
    })?;
    crate::cli::print(&format!("Digest: {} {}\n", index.digest, index.bytes.len()))
}

/// At most this many names are in an error.
const MOST_NAMES: usize = 20;

/// What was looked for.
enum Sought {
    Found(Found),
    /// The registry does not have it, which is this failure where it must.
    Missing(Failure),
}

/// The platform that a member is to be for, if that was said.
fn platform_of(member: &Member) -> Option<Platform> {
    let platform = Platform::from(&member.platform).normalise();
    (!platform.os.is_empty() && !platform.architecture.is_empty()).then_some(platform)
}

/// A member in a list of them.
fn named(member: &Member) -> String {
    let name = member.image.familiar();
    platform_of(member).map_or_else(|| format!("`{name}`"), |platform| format!("`{name}` for {platform}"))
}

struct Push<'a> {
    settings: &'a PushSettings,
    talk: &'a Talk,
    known: Known,
    tally: Tally,
}

impl Push<'_> {
    /// All members are known before anything is sent, and all are there before a tag is moved.
    fn run(&self) -> Result<Encoded, Failure> {
        let Self { settings, talk, .. } = self;
        let (source, spec) = (&settings.source, &settings.source.spec);
        for warning in &source.warnings {
            self.warn("flag", warning);
        }
        let found = in_parallel(&spec.members, JOBS, |member| self.find(member))?;
        if settings.missing == Missing::Refused {
            self.refuse_missing(&found)?;
        }
        let (mut images, mut attestations) = (Vec::new(), Vec::new());
        let (mut members, mut elsewhere, mut left_out) = (Vec::new(), Vec::new(), 0);
        for (member, found) in spec.members.iter().zip(found) {
            let Sought::Found(found) = found else {
                let name = member.image.familiar();
                self.warn("ignore-missing", &format!("`{name}` is not there, and left out"));
                left_out += 1;
                continue;
            };
            for note in &found.notes {
                self.warn("platform", note);
            }
            if spec.names.iter().all(|name| name.name() != member.image.name()) {
                let entries = found.images.iter().map(|entry| &entry.descriptor).chain(&found.attestations);
                elsewhere.extend(entries.cloned().map(|entry| (entry, &member.image)));
            }
            members.extend(found.images.iter().map(|_| member));
            images.extend(found.images);
            attestations.extend(found.attestations);
        }
        if images.is_empty() {
            return Err(if left_out == 0 {
                Failure::new("what is named are indexes without images: there is nothing to push")
            } else {
                let failure = Failure::new("no image is left: there is nothing to push");
                failure.hint("--ignore-missing leaves out what is not there")
            });
        }
        let mixture = self.mixture(&images);
        let index = assemble(settings.types, images, attestations, &spec.annotations)
            .map_err(|error| self.unassembled(&error, &members))?;
        mixture.iter().for_each(|text| self.note(text));
        let Some(target) = spec.names.first() else { return Err(Failure::new("the index has no name")) };
        self.bring(&elsewhere, target)?;
        for name in &spec.names {
            let put = || talk.client.put_manifest(name, settings.types.index(), &index);
            let named = naming((&talk.stop.cancel, &*talk.progress), "push", name, put);
            named.map_err(|error| service_failure(&error))?;
            self.note(&format!("pushed {}", name.with_digest(index.digest.clone()).familiar()));
        }
        Ok(index)
    }

    /// Fails if a member is not there, and names all that are not.
    fn refuse_missing(&self, sought: &[Sought]) -> Result<(), Failure> {
        let members = &self.settings.source.spec.members;
        let is_missing = |sought: &Sought| matches!(sought, Sought::Missing(_));
        let missing = members.iter().zip(sought).filter(|(_, sought)| is_missing(sought));
        let Some((first, Sought::Missing(failure))) = missing.clone().next() else { return Ok(()) };
        let count = missing.clone().count();
        let failure = if count == 1 {
            Failure { message: failure.message.clone(), causes: failure.causes.clone(), ..Failure::new("") }
        } else {
            let mut names: Vec<String> = missing.take(MOST_NAMES).map(|(member, _)| named(member)).collect();
            if count > MOST_NAMES {
                names.push(format!("{} more", count - MOST_NAMES));
            }
            Failure::new(format!("{count} of {} images are not there: {}", members.len(), names.join(", ")))
        };
        let hint = "has what builds it pushed it, under this very name? --ignore-missing leaves out what is not there";
        Err(self.settings.source.at(first.place, failure.hint(hint)))
    }

    /// What is said of a list of Docker's type that has OCI images, which manifest-tool makes of them, too.
    fn mixture(&self, images: &[Entry]) -> Option<String> {
        let is_oci = |entry: &&Entry| entry.descriptor.media_type == media_type::OCI_MANIFEST;
        let (count, all) = (images.iter().filter(is_oci).count(), images.len());
        (self.settings.types == TypeNames::Docker && count > 0).then(|| {
            format!(
                "a manifest list of Docker's type, in which {count} of {all} images are of OCI's; `push --type oci` makes an \
                 OCI index"
            )
        })
    }

    /// What a member brings in.
    fn find(&self, member: &Member) -> Result<Sought, Failure> {
        let Self { settings, talk, known, tally } = self;
        let at = |failure| settings.source.at(member.place, failure);
        let fetched = match talk.client.document(&member.image, Payload::Anything) {
            Ok(fetched) => fetched,
            Err(error) if error.is_not_found() => {
                let failure = service_failure(&error);
                return Ok(Sought::Missing(match platform_of(member) {
                    Some(platform) => failure.within(format!("there is no image for {platform}")),
                    None => failure,
                }));
            }
            Err(error) => return Err(at(service_failure(&error))),
        };
        let sources = Sources { client: &talk.client, limits: settings.talk.limits.documents, known, tally };
        let found = sources.find(&member.image, &member.platform, &fetched);
        found.map(Sought::Found).map_err(|error| {
            let message = format!("cannot take `{}` into an index", member.image.familiar());
            let failure = service_failure(&*error).within(message);
            at(if error.is::<TooMany>() {
                failure.hint("leave members out, or push several indexes: clients refuse larger ones")
            } else {
                failure
            })
        })
    }

    fn unassembled(&self, error: &AssembleError, members: &[&Member]) -> Failure {
        let (position, hint) = match error {
            AssembleError::Twice { position, first, second, .. } if first == second => {
                (Some(*position), Some("name it once"))
            }
            AssembleError::Twice { position, .. } => {
                (Some(*position), Some("clients would only ever take the first"))
            }
            AssembleError::NoPlatform { position, .. } => {
                (Some(*position), Some("say it in the specification, with `platform`"))
            }
            AssembleError::Size(_) | AssembleError::Encode(_) => (None, None),
        };
        let failure = Failure::from_error(error);
        let failure = Failure { hint: hint.map(str::to_owned), ..failure };
        let member = position.and_then(|position| members.get(position));
        self.settings.source.at(member.and_then(|member| member.place), failure)
    }

    /// Brings members of other repositories to that of the index. Only for these a store is needed.
    fn bring(&self, elsewhere: &[(Descriptor, &Reference)], target: &Reference) -> Result<(), Failure> {
        if elsewhere.is_empty() {
            return Ok(());
        }
        let Self { settings, talk, known, .. } = self;
        let store = open_store(&settings.store, &talk.progress)?;
        let images = Images {
            client: &talk.client,
            store: &store,
            progress: &*talk.progress,
            limits: settings.talk.limits.documents,
            pull: Pull::Always,
            unpacking: None,
            asked: Asked::default(),
        };
        let mut brought = BTreeSet::new();
        for (entry, from) in elsewhere {
            if !brought.insert((from.name(), &entry.digest)) {
                continue;
            }
            self.note(&format!("bringing {} of {} to {}", entry.digest, from.familiar(), target.name()));
            images.bring(entry, from, target, known).map_err(|error| {
                let message = format!("cannot bring `{}` to `{}`", from.familiar(), target.name());
                service_failure(&*error).within(message).advised(store.root())
            })?;
        }
        Ok(())
    }

    fn note(&self, text: &str) {
        self.talk.progress.tell(&Event::Note(text));
    }

    fn warn(&self, rule: &'static str, detail: &str) {
        self.talk.progress.tell(&Event::Warning { rule, span: None, detail });
    }
}
