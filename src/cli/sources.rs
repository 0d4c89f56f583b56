//! What a build begins with: the contexts that are directories of this machine, and the Dockerfile.

use super::build::tell_checks;
use super::contexts::{self, OpenContexts};
use super::failure::Failure;
use super::hints::{build_failure, service_failure};
use super::outputs::hide_outputs;
use super::settings::{Given, GivenDockerfile, Settings};
use crate::build::checks::of_unparsed;
use crate::build::progress::{Event, Progress};
use crate::context::{Context, ContextError, Download, Downloaded, FoundDockerfile, IgnoreRules, download};
use crate::dockerfile::{self, Dockerfile};
use crate::http;

/// The directories, open.
pub(super) struct Places {
    /// None where there is only a Dockerfile.
    pub(super) context: Option<Context>,
    /// The directories among the named contexts.
    pub(super) named: OpenContexts,
}

/// A Dockerfile that has been read.
pub(super) struct Written {
    /// Its text.
    pub(super) found: FoundDockerfile,
    /// What it says.
    pub(super) file: Dockerfile,
}

impl Places {
    /// Opens them. No rules have been read.
    pub(super) fn open(settings: &Settings) -> Result<Self, Failure> {
        Ok(Self { context: open_context(settings)?, named: contexts::open(settings)? })
    }

    /// Opens them anew where this process has entered another mount namespace since.
    pub(super) fn reopen(&mut self, settings: &Settings) -> Result<(), Failure> {
        if let Some(context) = &mut self.context {
            context.reopen().map_err(|error| Failure::from_error(&error))?;
        }
        contexts::reopen(&mut self.named, settings)
    }

    /// What the build writes is no part of the build context.
    pub(super) fn hide_outputs(&mut self, settings: &Settings) -> Result<(), Failure> {
        self.context.as_mut().map_or(Ok(()), |context| hide_outputs(context, settings))
    }

    /// What of the build context does not exist.
    pub(super) fn ignore(&self) -> IgnoreRules {
        self.context.as_ref().map(|context| context.ignore().clone()).unwrap_or_default()
    }

    /// Reads and parses the Dockerfile, and reads the rules that come with it; none if it is to be fetched.
    pub(super) fn read(
        &mut self,
        settings: &Settings,
        progress: &dyn Progress,
    ) -> Result<Option<Written>, Failure> {
        self.find(settings)?.map(|found| Written::of(found, settings, progress)).transpose()
    }

    /// Reads the text of the Dockerfile and the rules that come with it; none if it is to be fetched.
    pub(super) fn find(&mut self, settings: &Settings) -> Result<Option<FoundDockerfile>, Failure> {
        let found = match (&settings.dockerfile, &self.context) {
            (GivenDockerfile::Url(_), _) => return Ok(None),
            (GivenDockerfile::Usual | GivenDockerfile::File(_), Some(context)) => {
                context.read_dockerfile(settings.dockerfile.file())
            }
            _ => {
                let limit = settings.limits.context.dockerfile;
                FoundDockerfile::read_stream("standard input", std::io::stdin().lock(), limit)
            }
        };
        let found = found.map_err(|error| dockerfile_failure(&error, settings))?;
        self.read_ignore_rules(found).map(Some)
    }

    /// Fetches and parses the Dockerfile, and reads the rules of the build context.
    pub(super) fn fetch(
        &mut self,
        settings: &Settings,
        client: &http::Client,
        progress: &dyn Progress,
    ) -> Result<Written, Failure> {
        let found = self.fetch_text(settings, client, progress)?;
        Written::of(found, settings, progress)
    }

    /// Fetches the text of the Dockerfile, and reads the rules of the build context.
    pub(super) fn fetch_text(
        &mut self,
        settings: &Settings,
        client: &http::Client,
        progress: &dyn Progress,
    ) -> Result<FoundDockerfile, Failure> {
        let GivenDockerfile::Url(url) = &settings.dockerfile else {
            return Err(Failure::new("there is no Dockerfile to fetch"));
        };
        let limit = settings.limits.context.dockerfile;
        let wanted = Download { source: url, authorization: None, known: None, limit };
        let tell = |line: &str| progress.tell(&Event::Note(line));
        progress.tell(&Event::Detail(&format!("fetching the Dockerfile from {}", url.shown())));
        let content = match download(client, &wanted, &mut || Ok(Vec::new()), &tell) {
            Ok(Downloaded::New { file, .. }) => file,
            // Nothing was said to be known.
            Ok(Downloaded::Unchanged) => Vec::new(),
            Err(error) => {
                let failure = service_failure(&error);
                let causes = std::iter::once(failure.message).chain(failure.causes).collect();
                let message = format!("--dockerfile: cannot fetch `{}`", url.shown());
                return Err(Failure { message, causes, ..failure });
            }
        };
        let found = FoundDockerfile::read_stream(&url.shown(), content.as_slice(), limit);
        let found = found.map_err(|error| dockerfile_failure(&error, settings))?;
        self.read_ignore_rules(found)
    }

    fn read_ignore_rules(&mut self, found: FoundDockerfile) -> Result<FoundDockerfile, Failure> {
        if let Some(context) = &mut self.context {
            context.read_ignore_rules(Some(&found)).map_err(|error| Failure::from_error(&error))?;
        }
        Ok(found)
    }
}

impl Written {
    /// Parses `found`. What build checks found is told where that fails.
    fn of(found: FoundDockerfile, settings: &Settings, progress: &dyn Progress) -> Result<Self, Failure> {
        let mut warnings = Vec::new();
        let limit = settings.limits.context.dockerfile;
        match dockerfile::parse_noting(&found.content, limit, &mut warnings) {
            Ok(file) => Ok(Self { found, file }),
            Err(error) => {
                let failure = build_failure(&error.clone().into(), &found, settings);
                let checked = of_unparsed(&found.content, &settings.request, error, warnings);
                tell_checks(&checked.warnings, progress);
                Err(failure)
            }
        }
    }
}

fn open_context(settings: &Settings) -> Result<Option<Context>, Failure> {
    let Some(directory) = &settings.context else { return Ok(None) };
    let context = Context::open_dir(directory)
        .map_err(|error| Failure::from_error(&error).of_flag("--context"))
        .map_err(|failure| match settings.context_given {
            Given::Yes => failure,
            Given::No => failure.hint("name the directory to build: `builder -t NAME DIRECTORY`"),
        })?;
    Ok(Some(context.within(settings.limits.context)))
}

fn dockerfile_failure(error: &ContextError, settings: &Settings) -> Failure {
    let failure = Failure::from_error(error);
    match (error, &settings.dockerfile) {
        (ContextError::Archive(_), _) => {
            failure.hint("archives as contexts are not supported yet: unpack it and name the directory")
        }
        (_, GivenDockerfile::Usual) => failure,
        _ => failure.of_flag("--dockerfile"),
    }
}
