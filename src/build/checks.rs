//! The build checks of what a Dockerfile means, made while it is planned: BuildKit makes them there too, so that they know
//! what variables hold and what a base brings. And planning for the sake of the checks alone.

use std::collections::BTreeSet;

use super::error::{BuildError, BuildErrorKind};
use super::plan::{CHECKS, PlanRequest, Planner};
use super::services::{ImageSource, ServiceError};
use crate::context::IgnoreRules;
use crate::dockerfile::{
    self, CheckDirective, Command, Dockerfile, Finding, HostPart, PairSyntax, ParseError, PortRange,
    ProtocolCase, Span, Text, TransferKind, Warning,
};
use crate::image::platform::{Platform, Requested};
use crate::image::reference::Reference;
use crate::rootfs::GuestPath;

/// What build checks say of a Dockerfile.
#[derive(Debug, Default)]
pub struct Checked {
    /// What they found, in the order of the lines.
    pub warnings: Vec<Warning>,
    /// Why it cannot be built: what comes behind the place has not been checked.
    pub error: Option<BuildError>,
    /// Bases that nobody could be asked for.
    pub unknown: Vec<UnknownBase>,
}

impl Checked {
    /// Whether all was looked at that there is: that findings are to be errors comes last.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.error.as_ref().is_none_or(|error| matches!(error.kind, BuildErrorKind::Checks(_)))
    }

    /// Adds what was found for another platform. The first error counts, unless it says no more than that there are findings.
    pub fn absorb(&mut self, other: Self) {
        let other_is_incomplete = !other.is_complete();
        // There may be very many of them: no second list of all is made, and none at all for the only platform.
        if self.warnings.is_empty() {
            self.warnings = other.warnings;
        } else {
            self.warnings.extend(other.warnings);
            self.warnings.sort_unstable();
            self.warnings.dedup();
        }
        self.error = match other.error {
            Some(error) if self.is_complete() && other_is_incomplete => Some(error),
            error => self.error.take().or(error),
        };
        let is_new = |base: &UnknownBase| {
            !self.unknown.iter().any(|known| (known.span, &known.image) == (base.span, &base.image))
        };
        let new: Vec<UnknownBase> = other.unknown.into_iter().filter(is_new).collect();
        self.unknown.extend(new);
    }
}

/// An image that could not be asked for. Without it one cannot tell which variables a stage has, which triggers run in it,
/// and whether it is for the right platform.
#[derive(Debug)]
pub struct UnknownBase {
    /// The lines of the instruction that names it.
    pub span: Span,
    /// Its name.
    pub image: Reference,
    /// Why not, in one line.
    pub reason: String,
}

/// Whether an error says only that nobody answered.
pub type Unanswered<'a> = &'a dyn Fn(&ServiceError) -> bool;

/// Checks all stages of `file`, or what the target of the request needs. Images are asked for; those of which `unanswered`
/// says that nobody answered are taken for images of which nothing is known.
#[must_use]
pub fn check(
    file: &Dockerfile,
    request: &PlanRequest,
    ignore: &IgnoreRules,
    source: &dyn ImageSource,
    unanswered: Unanswered<'_>,
) -> Checked {
    let mut planner = Planner::new(file, request, ignore, source);
    planner.bases = Bases::Wished(unanswered, Vec::new());
    let result = planner.plan(Extent::EveryStage);
    // What the plan has is what is left out here.
    let (warnings, error) = match result {
        Ok(plan) => (plan.warnings, None),
        Err(error) => {
            let (warnings, error) = planner.reported(error);
            (warnings, Some(error))
        }
    };
    let mut unknown = match planner.bases {
        Bases::Wished(_, unknown) => unknown,
        Bases::Required => Vec::new(),
    };
    unknown.sort_by_key(|base| base.span);
    Checked { warnings, error, unknown }
}

/// What is known of a file that is no Dockerfile: `warnings` is what was found before that was seen.
#[must_use]
pub fn of_unparsed(
    content: &[u8],
    request: &PlanRequest,
    error: ParseError,
    mut warnings: Vec<Warning>,
) -> Checked {
    let given = request.build_args.get(CHECKS).and_then(|text| CheckDirective::parse(text).ok());
    let directive = given.unwrap_or_else(|| dockerfile::check_directive(content));
    warnings.retain(|warning| directive.allows(warning.rule()));
    warnings.sort();
    Checked { warnings, error: Some(error.into()), unknown: Vec::new() }
}

/// Which stages are planned if no target is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// What the last one needs.
    LastStage,
    /// All.
    EveryStage,
}

/// What happens where an image is not to be had.
pub(super) enum Bases<'a> {
    /// Planning fails.
    Required,
    /// It goes on if nobody answered.
    Wished(Unanswered<'a>, Vec<UnknownBase>),
}

impl Bases<'_> {
    /// Whether nobody need be asked for `image`, since its registry has not answered before. What is called by its digest may
    /// be in the store.
    pub(super) fn are_unknown_at(&mut self, span: Span, image: &Reference) -> bool {
        let Self::Wished(_, unknown) = self else { return false };
        let silent = unknown.iter().find(|known| known.image.registry() == image.registry());
        let Some(silent) = silent.filter(|_| image.digest().is_none()) else { return false };
        let reason = silent.reason.clone();
        unknown.push(UnknownBase { span, image: image.clone(), reason });
        true
    }
}

/// Whether everything is known that variables of a stage may come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Environment {
    /// It is.
    #[default]
    Known,
    /// Its base is not.
    Unknown,
}

/// What a stage hands on to those that stand on it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct HandedOn {
    /// Whether there was a WORKDIR.
    workdir: Seen,
    /// What is known of its variables.
    pub(super) environment: Environment,
}

impl HandedOn {
    /// What a base of which nothing is known hands on.
    pub(super) const ON_UNKNOWN: Self = Self { workdir: Seen::No, environment: Environment::Unknown };
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Seen {
    #[default]
    No,
    Yes,
}

/// The instructions of which only the last one of a stage counts.
#[derive(Debug, Clone, Copy)]
pub(super) enum Once {
    Cmd,
    Entrypoint,
    Healthcheck,
}

/// The checks of a stage.
#[derive(Debug)]
pub(super) struct StageChecks<'a> {
    pub(super) handed_on: HandedOn,
    /// Where to put what they find.
    warnings: &'a mut BTreeSet<Warning>,
    /// Where the last CMD, ENTRYPOINT and HEALTHCHECK are.
    last: [Option<Span>; 3],
    /// The instruction at hand: its lines, and its keyword as written.
    span: Option<Span>,
    keyword: Text,
}

impl<'a> StageChecks<'a> {
    /// Of a stage that stands on one that hands this on.
    pub(super) fn of(handed_on: HandedOn, warnings: &'a mut BTreeSet<Warning>) -> Self {
        Self { handed_on, warnings, last: [None; 3], span: None, keyword: Text::default() }
    }

    /// How much has been found so far, in all stages.
    pub(super) fn count(&self) -> usize {
        self.warnings.len()
    }

    /// Turns to the next instruction, of which `shown` is the text.
    pub(super) fn begin(&mut self, span: Span, shown: &str) {
        self.span = Some(span);
        let mut words = shown.split_ascii_whitespace();
        let first = words.next().unwrap_or_default();
        // A trigger's own keyword is meant; ONBUILD itself is not checked.
        let keyword = if first.eq_ignore_ascii_case("ONBUILD") { words.next() } else { Some(first) };
        let keyword = keyword.unwrap_or_default();
        // What is found in many instructions shares the one text.
        if *self.keyword != *keyword.as_bytes() {
            self.keyword = Text::from(keyword);
        }
    }

    /// Notes what is wrong at `span`.
    pub(super) fn warn_at(&mut self, span: Span, finding: Finding) {
        self.warnings.insert(Warning::new(span, finding));
    }

    /// Notes what is wrong with the instruction at hand.
    fn warn(&mut self, finding: Finding) {
        if let Some(span) = self.span {
            self.warn_at(span, finding);
        }
    }

    /// The earlier of two is reported, since it is the one that is ignored.
    pub(super) fn once(&mut self, what: Once) {
        let Some(here) = self.span else { return };
        let earlier = match what {
            Once::Cmd => self.last[0].replace(here),
            Once::Entrypoint => self.last[1].replace(here),
            Once::Healthcheck => self.last[2].replace(here),
        };
        if let Some(earlier) = earlier {
            let (keyword, later) = (self.keyword.clone(), here.first_line);
            let finding = Finding::MultipleInstructionsDisallowed { keyword, later };
            self.warnings.insert(Warning::new(earlier, finding));
        }
    }

    /// CMD or ENTRYPOINT, where `shell` is what the image's config says of SHELL.
    pub(super) fn command(&mut self, command: &Command, shell: Option<&[String]>) {
        if let Command::Shell(command) = command
            && shell.is_none_or(<[String]>::is_empty)
        {
            let (keyword, command) = (self.keyword.clone(), command.clone());
            self.warn(Finding::JsonArgsRecommended { keyword, command });
        }
    }

    /// WORKDIR, with everything expanded. Only the first one is looked at: where it is absolute all others are.
    pub(super) fn workdir(&mut self, path: &Text) {
        if self.handed_on.workdir == Seen::No && !path.starts_with(b"/") {
            self.warn(Finding::WorkdirRelativePath { path: path.clone() });
        }
        self.handed_on.workdir = Seen::Yes;
    }

    /// The pairs of ENV and LABEL.
    pub(super) fn legacy(&mut self, syntax: PairSyntax, name: &str) {
        if syntax == PairSyntax::Legacy {
            let (keyword, name) = (self.keyword.clone(), name.to_owned());
            self.warn(Finding::LegacyKeyValueFormat { keyword, name });
        }
    }

    /// The name of a variable of `keyword`, ARG or ENV.
    pub(super) fn variable(&mut self, keyword: &'static str, name: &str) {
        const SECRET: [&str; 10] = [
            "apikey",
            "auth",
            "credential",
            "credentials",
            "key",
            "password",
            "pword",
            "passwd",
            "secret",
            "token",
        ];
        const HARMLESS: [&str; 3] = ["public", "file", "version"];
        let has = |words: &[&str]| {
            name.split('_').any(|part| words.iter().any(|word| word.eq_ignore_ascii_case(part)))
        };
        if has(&SECRET) && !has(&HARMLESS) {
            self.warn(Finding::SecretsUsedInArgOrEnv { keyword, name: name.to_owned() });
        }
    }

    /// A word of EXPOSE, and what it means.
    pub(super) fn port(&mut self, word: &str, range: &PortRange) {
        if range.protocol_case == ProtocolCase::Other {
            self.warn(Finding::ExposeProtoCasing { port: word.to_owned() });
        }
        if range.host == HostPart::Ignored {
            self.warn(Finding::ExposeInvalidFormat { port: word.to_owned() });
        }
    }

    /// The sources of COPY or ADD that are read from the build context.
    pub(super) fn sources(&mut self, kind: TransferKind, sources: &[Text], ignore: &IgnoreRules) {
        for source in sources {
            let Ok(path) = GuestPath::clamp(source) else { continue };
            if ignore.surely_excludes(path.relative()) {
                let shown = if path.is_root() { b".".as_slice() } else { path.relative() };
                let (path, rules) = (Text::from(shown), ignore.file_name().to_owned());
                self.warn(Finding::CopyIgnoredFile { kind, path, rules });
            }
        }
    }
}

/// What `--platform` of a FROM should not be: `written` gives `platform`, with `expansions` of variables, of which the only
/// one has the name `variable`.
pub(super) fn platform_of_from(
    written: &Text,
    platform: &Text,
    variables: &BTreeSet<String>,
    target: &str,
    stage: Option<&str>,
    host: &Platform,
) -> Option<Finding> {
    if variables.len() == 1 && variables.contains("TARGETPLATFORM") && *platform == *target {
        return Some(Finding::RedundantTargetPlatform { platform: written.clone() });
    }
    if !variables.is_empty() {
        return None;
    }
    // What is no platform is an error of the build, not of this check.
    let Platform { os, architecture, .. } =
        Requested::parse(&platform.to_string_lossy(), host).ok()?.normalised;
    // A stage that is named after its platform is meant to be for it.
    let stage = stage.unwrap_or_default();
    let is_named = stage.contains(os.as_str()) || stage.contains(architecture.as_str());
    (!is_named).then(|| Finding::FromPlatformFlagConstDisallowed { platform: platform.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_findings_are_errors_leaves_a_check_complete_and_hides_no_other_error() {
        let of = |kind| Checked { error: Some(BuildError::at(None, kind)), ..Checked::default() };
        let found = || of(BuildErrorKind::Checks(vec!["StageNameCasing"]));
        let other = || of(BuildErrorKind::Invalid("x".to_owned()));
        assert!(Checked::default().is_complete() && found().is_complete() && !other().is_complete());
        for (mut first, second, message) in [
            (found(), other(), "x"),
            (other(), found(), "x"),
            (Checked::default(), found(), "lint violation found for rules: StageNameCasing"),
            (found(), Checked::default(), "lint violation found for rules: StageNameCasing"),
        ] {
            first.absorb(second);
            assert_eq!(first.error.map(|error| error.to_string()).as_deref(), Some(message));
        }
    }
}
