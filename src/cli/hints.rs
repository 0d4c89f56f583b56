//! What a user can do about the failures of a build.

use std::error::Error;

use super::advice::Trouble;
use super::failure::{Excerpt, Failure};
use super::settings::{EpochFrom, Settings};
use crate::build::{self, BuildError, BuildErrorKind};
use crate::context::{DownloadError, FoundDockerfile, GitError};
use crate::dockerfile::ExpandErrorKind;
use crate::image::matching::NO_IMAGE;
use crate::registry::TransferError;
use crate::sandbox::{Exit, SandboxError, StartProblem};
use crate::store::choice::ChoiceError;
use crate::store::layout::LayoutError;
use crate::store::mount::MAX_LAYERS;
use crate::transfer::{ImageProblem, Unhelped};

/// What runs the command line of a RUN, unless SHELL names something else.
const DEFAULT_SHELL: &[u8] = b"/bin/sh";

/// Adds the lines of the Dockerfile and what to do.
pub(super) fn build_failure(error: &BuildError, found: &FoundDockerfile, settings: &Settings) -> Failure {
    let mut failure = Failure::from_error(error);
    failure.excerpt =
        error.span.map(|span| Excerpt::of(&found.path.display().to_string(), &found.content, span));
    match &error.kind {
        BuildErrorKind::Process { exit, free, .. } => {
            failure.code = match exit {
                Exit::Code(code) => *code,
                Exit::Signal(_) => 255,
            };
            failure.trouble = Some(Trouble::Step(*free));
        }
        BuildErrorKind::Epoch(_) => {
            failure = failure.hint(
                "give seconds since 1970 as one number, or the name of a context or stage that has a time",
            );
            if error.span.is_none() {
                failure = failure.of_flag(match settings.epoch {
                    EpochFrom::Flag => "--build-arg",
                    EpochFrom::Environment => "environment variable SOURCE_DATE_EPOCH",
                });
            }
        }
        BuildErrorKind::TooManyLayers { most, .. } => {
            failure.hint = hint_for_layers(*most).map(str::to_owned);
        }
        BuildErrorKind::Target { .. } => failure = failure.of_flag("--target"),
        BuildErrorKind::ContextStage { .. } => failure = failure.of_flag("--build-context"),
        BuildErrorKind::SecretMissing(id) => {
            failure = failure
                .hint(format!("pass it with `--secret id={id},src=FILE` or `--secret id={id},env=NAME`"));
        }
        BuildErrorKind::Sandbox(SandboxError::Start(StartProblem::Missing { program }))
            if program == DEFAULT_SHELL =>
        {
            failure.hint = Some(
                "RUN and a command line needs a shell: take a base that has one, or write RUN [\"program\", \"argument\"]"
                    .to_owned(),
            );
        }
        BuildErrorKind::HostNetwork => {
            failure = failure.hint(
                "allow it with `--allow network.host`; a RUN that names no network has that of the machine, too",
            );
        }
        BuildErrorKind::InsecureRefused => {
            failure = failure.hint(
                "allow it with `--allow security.insecure`, if you trust the Dockerfile and its images",
            );
        }
        BuildErrorKind::Checks(_) => {
            failure = failure
                .hint("`builder check` shows each with its lines, and `# check=skip=RULE` leaves out a rule");
        }
        BuildErrorKind::Parse(error) => failure.hint = error.hint.clone().or(failure.hint),
        BuildErrorKind::Frontend(_) => {
            failure = failure.hint("if it is written in that language, remove the line that says otherwise");
        }
        BuildErrorKind::Expand(error) if matches!(error.kind, ExpandErrorKind::UnmatchedQuote(_)) => {
            failure = failure.hint(
                "in COPY, ADD and VOLUME quotes keep no blanks, a JSON list does; a quote that is meant is escaped",
            );
        }
        BuildErrorKind::Emulation { fix, .. } => failure.hint = Some(fix.clone()),
        BuildErrorKind::Image { source, .. } => failure.hint = hint_of(&**source).or(failure.hint),
        BuildErrorKind::Remote { source, .. } => {
            failure.hint = remote_hint(&**source).map(str::to_owned).or(failure.hint);
        }
        BuildErrorKind::Source { written, place, excluded, .. } => {
            failure.hint = source_hint(&written.to_string(), place, excluded.as_deref());
        }
        _ => {}
    }
    failure
}

/// What to do where something elsewhere could not be had.
fn remote_hint(error: &(dyn Error + 'static)) -> Option<&'static str> {
    if let Some(DownloadError::Status(401 | 403)) = error.downcast_ref() {
        return Some("give a token for the server with `--secret id=HTTP_AUTH_TOKEN_HOST,env=NAME`");
    }
    match error.downcast_ref::<GitError>()? {
        GitError::Missing(_) => {
            Some("install git where builder runs, or ADD an archive of the files by its URL")
        }
        GitError::Failed { said, .. } if said.contains("publickey") => {
            Some("git gets keys from an agent alone: `--ssh default`")
        }
        GitError::Failed { said, .. }
            if said.contains("prompts disabled") || said.contains("Authentication failed") =>
        {
            Some("give a token for the repository with `--secret id=GIT_AUTH_TOKEN,env=NAME`")
        }
        _ => None,
    }
}

fn source_hint(written: &str, place: &str, excluded: Option<&build::copy::Excluded>) -> Option<String> {
    match excluded {
        Some(rule) => {
            Some(format!("add `!{written}` at the end of `{}` to have it in the context", rule.file))
        }
        None if place == "the build context" => {
            Some("sources are relative to the build context, not to the Dockerfile".to_owned())
        }
        None => None,
    }
}

fn hint_of(error: &(dyn std::error::Error + Send + Sync + 'static)) -> Option<String> {
    let error = Unhelped::behind(error);
    if let Some(transfer) = error.downcast_ref::<TransferError>() {
        return transfer.hint();
    }
    if let Some(problem) = error.downcast_ref::<ImageProblem>() {
        return image_hint(problem).map(str::to_owned);
    }
    if let Some(problem) = error.downcast_ref::<ChoiceError>() {
        return layout_hint(problem).map(str::to_owned);
    }
    None
}

fn hint_for_layers(most: usize) -> Option<&'static str> {
    (most == MAX_LAYERS).then_some("overlayfs stacks no more than that; --snapshotter=native takes more")
}

/// What to do where an index has only what is `available`, as [`available`](crate::image::matching::available) words it.
fn platform_hint(available: &str) -> Option<&'static str> {
    if available.contains('`') {
        // FROM may have named it, and then the flag changes nothing.
        Some(
            "name one of these, with --custom-platform or in the --platform of FROM, or see --platform-match",
        )
    } else if available == NO_IMAGE {
        None
    } else {
        Some("--platform-match=none takes the first image, whatever it is for")
    }
}

fn image_hint(problem: &ImageProblem) -> Option<&'static str> {
    match problem {
        ImageProblem::NoPlatform { available, .. } => platform_hint(available),
        ImageProblem::Unfit(_) => {
            Some("take another base, another --custom-platform, or --platform-match=none")
        }
        ImageProblem::Layers { most, .. } => hint_for_layers(*most),
        ImageProblem::MediaType(_) => None,
    }
}

fn layout_hint(problem: &ChoiceError) -> Option<&'static str> {
    match problem {
        ChoiceError::Names(_) | ChoiceError::Layout(LayoutError::NoSuchName { .. }) => {
            Some("choose one with `oci-layout://DIR:NAME`")
        }
        ChoiceError::NoPlatform { available, .. } => platform_hint(available),
        ChoiceError::Unfit(_) => {
            Some("take another base, another --custom-platform, or --platform-match=none")
        }
        _ => None,
    }
}

/// The failure of something that images come from or go to, with what to do.
pub(super) fn service_failure(error: &(dyn std::error::Error + Send + Sync + 'static)) -> Failure {
    let failure = Failure::from_error(error);
    match hint_of(error) {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_index_does_not_have_is_not_to_be_named() {
        for (available, expected) in [
            ("`linux/arm/v7`, one without platform", Some("name one of these")),
            ("one without platform", Some("--platform-match=none")),
            ("no image", None),
        ] {
            let hint = platform_hint(available);
            assert_eq!(hint.is_some(), expected.is_some(), "{available}");
            assert!(hint.unwrap_or_default().starts_with(expected.unwrap_or_default()), "{hint:?}");
        }
    }
}
