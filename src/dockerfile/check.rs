//! Build checks: what is allowed, but probably a mistake.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::history::quote;
use super::instruction::{Command, Instruction, PairSyntax};
use super::lines::{Arguments, Statement};
use super::ports::{HostPart, ProtocolCase, parse_ports};
use super::text::split_once_blank;
use super::{Dockerfile, Located, Span, Stage, Text};

/// A build check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// A stage name has upper case.
    StageNameCasing,
    /// `FROM` and `AS` differ in case.
    FromAsCasing,
    /// An empty line inside a continued instruction.
    NoEmptyContinuation,
    /// An instruction's case differs from most others.
    ConsistentInstructionCasing,
    /// Two stages have the same name.
    DuplicateStageName,
    /// A stage is called `scratch` or `context`.
    ReservedStageName,
    /// CMD or ENTRYPOINT in shell form without SHELL.
    JsonArgsRecommended,
    /// MAINTAINER is used.
    MaintainerDeprecated,
    /// FROM uses a global argument that is not declared.
    UndefinedArgInFrom,
    /// A relative WORKDIR without an absolute one before.
    WorkdirRelativePath,
    /// A variable is used that is not defined.
    UndefinedVar,
    /// More than one CMD, ENTRYPOINT or HEALTHCHECK in a stage.
    MultipleInstructionsDisallowed,
    /// `ENV name value`.
    LegacyKeyValueFormat,
    /// A base image is of another platform than expected.
    InvalidBaseImagePlatform,
    /// `FROM --platform=$TARGETPLATFORM`, which is the default.
    RedundantTargetPlatform,
    /// The name of a variable sounds like a secret.
    SecretsUsedInArgOrEnv,
    /// The defaults of global arguments give no image name.
    InvalidDefaultArgInFrom,
    /// FROM with a constant platform.
    FromPlatformFlagConstDisallowed,
    /// A source of COPY or ADD is excluded by `.dockerignore`.
    CopyIgnoredFile,
    /// The comment above ARG or FROM does not begin with its name.
    InvalidDefinitionDescription,
    /// `EXPOSE 80/TCP`.
    ExposeProtoCasing,
    /// `EXPOSE` with an address or host port.
    ExposeInvalidFormat,
}

impl Rule {
    /// All of them.
    pub const ALL: [Self; 22] = [
        Self::StageNameCasing,
        Self::FromAsCasing,
        Self::NoEmptyContinuation,
        Self::ConsistentInstructionCasing,
        Self::DuplicateStageName,
        Self::ReservedStageName,
        Self::JsonArgsRecommended,
        Self::MaintainerDeprecated,
        Self::UndefinedArgInFrom,
        Self::WorkdirRelativePath,
        Self::UndefinedVar,
        Self::MultipleInstructionsDisallowed,
        Self::LegacyKeyValueFormat,
        Self::InvalidBaseImagePlatform,
        Self::RedundantTargetPlatform,
        Self::SecretsUsedInArgOrEnv,
        Self::InvalidDefaultArgInFrom,
        Self::FromPlatformFlagConstDisallowed,
        Self::CopyIgnoredFile,
        Self::InvalidDefinitionDescription,
        Self::ExposeProtoCasing,
        Self::ExposeInvalidFormat,
    ];

    /// The name, as `# check=skip=` takes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::StageNameCasing => "StageNameCasing",
            Self::FromAsCasing => "FromAsCasing",
            Self::NoEmptyContinuation => "NoEmptyContinuation",
            Self::ConsistentInstructionCasing => "ConsistentInstructionCasing",
            Self::DuplicateStageName => "DuplicateStageName",
            Self::ReservedStageName => "ReservedStageName",
            Self::JsonArgsRecommended => "JSONArgsRecommended",
            Self::MaintainerDeprecated => "MaintainerDeprecated",
            Self::UndefinedArgInFrom => "UndefinedArgInFrom",
            Self::WorkdirRelativePath => "WorkdirRelativePath",
            Self::UndefinedVar => "UndefinedVar",
            Self::MultipleInstructionsDisallowed => "MultipleInstructionsDisallowed",
            Self::LegacyKeyValueFormat => "LegacyKeyValueFormat",
            Self::InvalidBaseImagePlatform => "InvalidBaseImagePlatform",
            Self::RedundantTargetPlatform => "RedundantTargetPlatform",
            Self::SecretsUsedInArgOrEnv => "SecretsUsedInArgOrEnv",
            Self::InvalidDefaultArgInFrom => "InvalidDefaultArgInFrom",
            Self::FromPlatformFlagConstDisallowed => "FromPlatformFlagConstDisallowed",
            Self::CopyIgnoredFile => "CopyIgnoredFile",
            Self::InvalidDefinitionDescription => "InvalidDefinitionDescription",
            Self::ExposeProtoCasing => "ExposeProtoCasing",
            Self::ExposeInvalidFormat => "ExposeInvalidFormat",
        }
    }

    /// Whether it must be asked for with `# check=experimental=`.
    #[must_use]
    pub const fn is_experimental(self) -> bool {
        matches!(self, Self::InvalidDefinitionDescription)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A violation of a build check.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Warning {
    /// The first line of the instruction.
    pub line: usize,
    /// The check.
    pub rule: Rule,
    /// What is wrong there.
    pub detail: String,
    /// The stage, for what BuildKit reports only if the stage is built; `None` for what it always reports.
    pub stage: Option<usize>,
}

impl Warning {
    fn new(rule: Rule, span: Span, detail: String) -> Self {
        Self { line: span.first_line, rule, detail, stage: None }
    }

    fn in_stage(self, stage: usize) -> Self {
        Self { stage: Some(stage), ..self }
    }

    /// [`Rule::UndefinedVar`] of `name`; `near` is a variable that may have been meant.
    #[must_use]
    pub fn undefined_variable(span: Span, name: &str, near: Option<&str>) -> Self {
        let near = near.map_or_else(String::new, |near| format!(" (did you mean ${near}?)"));
        Self::new(Rule::UndefinedVar, span, format!("Usage of undefined variable '${name}'{near}"))
    }

    /// [`Rule::UndefinedArgInFrom`] of `name`; `near` is an argument that may have been meant.
    #[must_use]
    pub fn undefined_arg_in_from(span: Span, name: &str, near: Option<&str>) -> Self {
        let near = near.map_or_else(String::new, |near| format!(" (did you mean {near}?)"));
        Self::new(Rule::UndefinedArgInFrom, span, format!("FROM argument '{name}' is not declared{near}"))
    }

    /// [`Rule::InvalidDefaultArgInFrom`] of `image` as written.
    #[must_use]
    pub fn invalid_default_arg_in_from(span: Span, image: &Text) -> Self {
        let detail = format!("Default value for ARG {image} results in empty or invalid base image name");
        Self::new(Rule::InvalidDefaultArgInFrom, span, detail)
    }

    /// [`Rule::InvalidBaseImagePlatform`] of `image`.
    #[must_use]
    pub fn invalid_base_image_platform(span: Span, image: &str, actual: &str, expected: &str) -> Self {
        let (actual, expected) = (quote(actual.as_bytes()), quote(expected.as_bytes()));
        let detail = format!(
            "Base image {image} was pulled with platform {actual}, expected {expected} for current build"
        );
        Self::new(Rule::InvalidBaseImagePlatform, span, detail)
    }

    /// [`Rule::CopyIgnoredFile`] of `path`, a source of `keyword`.
    #[must_use]
    pub fn copy_ignored_file(span: Span, keyword: super::TransferKind, path: &Text) -> Self {
        let verb = match keyword {
            super::TransferKind::Copy => "Copy",
            super::TransferKind::Add => "Add",
        };
        let path = quote(path);
        let detail = format!("Attempting to {verb} file {path} that is excluded by .dockerignore");
        Self::new(Rule::CopyIgnoredFile, span, detail)
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} (line {})", self.rule, self.detail, self.line)
    }
}

/// How keywords are cased, over the whole file.
#[derive(Default)]
pub(super) struct Casing {
    keywords: Vec<(Text, Span)>,
}

impl Casing {
    pub(super) fn add(&mut self, keyword: &Text, span: Span) {
        self.keywords.push((keyword.clone(), span));
    }

    /// Reports what differs from the majority; upper case wins a tie.
    pub(super) fn report(&self, warnings: &mut Vec<Warning>) {
        let count = |wanted: fn(&[u8]) -> bool| self.keywords.iter().filter(|(word, _)| wanted(word)).count();
        let lower = count(is_lower) > count(is_upper);
        let (fits, name): (fn(&[u8]) -> bool, _) =
            if lower { (is_lower, "lowercase") } else { (is_upper, "uppercase") };
        for (word, span) in self.keywords.iter().filter(|(word, _)| !fits(word)) {
            let detail = format!("Command '{word}' should match the case of the command majority ({name})");
            warnings.push(Warning::new(Rule::ConsistentInstructionCasing, *span, detail));
        }
    }
}

fn is_lower(word: &[u8]) -> bool {
    !word.iter().any(u8::is_ascii_uppercase)
}

fn is_upper(word: &[u8]) -> bool {
    !word.iter().any(u8::is_ascii_lowercase)
}

/// Checks how a statement is written, which its instruction does not tell any more.
pub(super) fn written(statement: &Statement, warnings: &mut Vec<Warning>) {
    if let Some(line) = statement.empty_continuation {
        let detail = "Empty continuation line".to_owned();
        warnings.push(Warning::new(Rule::NoEmptyContinuation, Span::line(line), detail));
    }
    let Arguments::Words(words) = &statement.arguments else { return };
    let keyword = &statement.keyword;
    if keyword.eq_ignore_ascii_case(b"ARG") {
        let name = |word: &Text| Text::from(word.split(|&b| b == b'=').next().unwrap_or_default());
        let names: Vec<Text> = words.iter().map(name).collect();
        description(statement, "ARG", &names, warnings);
    }
    if !keyword.eq_ignore_ascii_case(b"FROM") {
        return;
    }
    let [_, as_word, name] = words.as_slice() else { return };
    if !is_lower(name) {
        let detail = format!("Stage name '{name}' should be lowercase");
        warnings.push(Warning::new(Rule::StageNameCasing, statement.span, detail));
    }
    let matches = if is_lower(keyword) {
        is_lower(as_word)
    } else {
        // A keyword of mixed case is reported as such.
        !is_upper(keyword) || is_upper(as_word)
    };
    if !matches {
        let detail = format!("'{as_word}' and '{keyword}' keywords' casing do not match");
        warnings.push(Warning::new(Rule::FromAsCasing, statement.span, detail));
    }
    description(statement, "FROM", &[Text::from(name.to_ascii_lowercase())], warnings);
}

/// The comment right above ARG or FROM should begin with the name of what it describes.
fn description(statement: &Statement, keyword: &str, names: &[Text], warnings: &mut Vec<Warning>) {
    let (Some(comment), Some(first)) = (statement.comments.last(), names.first()) else { return };
    let word = comment.split(|&b| b == b' ').next().unwrap_or_default();
    if names.iter().any(|name| name.as_bytes() == word) {
        return;
    }
    let example = if names.len() > 1 { "<arg_key>".into() } else { first.to_string_lossy() };
    let detail = format!("Comment for {keyword} should follow the format: `# {example} <description>`");
    warnings.push(Warning::new(Rule::InvalidDefinitionDescription, statement.span, detail));
}

/// All violations that can be seen without building, in the order of their lines.
///
/// Whether a base image has a SHELL is not known here, so [`Rule::JsonArgsRecommended`] may be reported where it should not;
/// and what a variable holds is not known, so words with variables are not checked.
#[must_use]
pub fn check(dockerfile: &Dockerfile) -> Vec<Warning> {
    let mut warnings = dockerfile.warnings.clone();
    stage_names(&dockerfile.stages, &mut warnings);
    let mut inherited: BTreeMap<&[u8], Inherited> = BTreeMap::new();
    for (index, stage) in dockerfile.stages.iter().enumerate() {
        platform(&stage.from, &mut warnings);
        let base = inherited.get(stage.from.value.image.as_bytes()).cloned().unwrap_or_default();
        let mut state =
            StageChecks { index, inherited: base, last: Last::default(), warnings: &mut warnings };
        for instruction in &stage.instructions {
            state.instruction(instruction);
        }
        if let Some(name) = &stage.name {
            inherited.insert(name.as_bytes(), state.inherited);
        }
    }
    warnings.sort();
    warnings
}

fn stage_names(stages: &[Stage], warnings: &mut Vec<Warning>) {
    let mut seen = BTreeSet::new();
    for stage in stages {
        let Some(name) = &stage.name else { continue };
        let shown = quote(name.as_bytes());
        if matches!(name.as_str(), "scratch" | "context") {
            let detail = format!("Stage name should not use the same name as reserved stage {shown}");
            warnings.push(Warning::new(Rule::ReservedStageName, stage.from.span, detail));
        }
        if !seen.insert(name) {
            let detail = format!("Duplicate stage name {shown}, stage names should be unique");
            warnings.push(Warning::new(Rule::DuplicateStageName, stage.from.span, detail));
        }
    }
}

/// `--platform` of FROM should neither be the default nor a constant.
fn platform(from: &Located<super::From>, warnings: &mut Vec<Warning>) {
    let Some(platform) = &from.value.platform else { return };
    if matches!(platform.as_bytes(), b"$TARGETPLATFORM" | b"${TARGETPLATFORM}") {
        let detail = format!(
            "Setting platform to predefined {platform} in FROM is redundant as this is the default behavior"
        );
        warnings.push(Warning::new(Rule::RedundantTargetPlatform, from.span, detail));
    }
    if platform.has_variables() {
        return;
    }
    let text = platform.to_string_lossy();
    let parts: Vec<&str> = text.split('/').collect();
    let (system, architecture) = match parts[..] {
        [system, architecture] | [system, architecture, _] => (system, architecture),
        ["linux" | "windows" | "darwin" | "freebsd"] => (parts[0], ""),
        [architecture] => ("linux", architecture),
        _ => return,
    };
    let architecture = match architecture {
        "x86_64" | "x86-64" => "amd64",
        "aarch64" => "arm64",
        "armhf" | "armel" => "arm",
        "i386" => "386",
        other => other,
    };
    // A stage that is named after its platform is meant to be for it.
    let name = from.value.name.as_deref().unwrap_or_default();
    if text.is_empty() || name.contains(system) || name.contains(architecture) {
        return;
    }
    let detail = format!("FROM --platform flag should not use constant value {}", quote(platform));
    warnings.push(Warning::new(Rule::FromPlatformFlagConstDisallowed, from.span, detail));
}

/// What a stage hands on to those that begin with it.
#[derive(Clone, Default)]
struct Inherited {
    shell: bool,
    workdir: bool,
}

/// The instructions of which only the last one of a stage counts.
#[derive(Default)]
struct Last {
    cmd: Option<Span>,
    entrypoint: Option<Span>,
    healthcheck: Option<Span>,
}

struct StageChecks<'a> {
    index: usize,
    inherited: Inherited,
    last: Last,
    warnings: &'a mut Vec<Warning>,
}

impl StageChecks<'_> {
    fn warn(&mut self, rule: Rule, span: Span, detail: String) {
        self.warnings.push(Warning::new(rule, span, detail).in_stage(self.index));
    }

    fn instruction(&mut self, located: &Located<Instruction>) {
        let span = located.span;
        let keyword = || Text::from(split_once_blank(&located.text).0);
        match &located.value {
            Instruction::Cmd(command) => {
                self.once(|last| &mut last.cmd, span, &keyword());
                self.shell_form(command, span, &keyword());
            }
            Instruction::Entrypoint(command) => {
                self.once(|last| &mut last.entrypoint, span, &keyword());
                self.shell_form(command, span, &keyword());
            }
            Instruction::Healthcheck(_) => self.once(|last| &mut last.healthcheck, span, &keyword()),
            Instruction::Shell(_) => self.inherited.shell = true,
            Instruction::Workdir(path) => self.workdir(path, span),
            Instruction::Maintainer(_) => {
                let detail = "Maintainer instruction is deprecated in favor of using label".to_owned();
                // Reported whether the stage is built or not.
                self.warnings.push(Warning::new(Rule::MaintainerDeprecated, span, detail));
            }
            Instruction::Env(env) => {
                self.legacy(env.syntax, span, &keyword());
                for (name, _) in &env.pairs {
                    self.secret("ENV", name, span);
                }
            }
            Instruction::Label(labels) => self.legacy(labels.syntax, span, &keyword()),
            Instruction::Arg(arguments) => {
                for (name, _) in arguments {
                    self.secret("ARG", name, span);
                }
            }
            Instruction::Expose(words) => {
                for word in words {
                    self.expose(word, span);
                }
            }
            _ => {}
        }
    }

    /// The earlier of two is reported, since it is the one that is ignored.
    fn once(&mut self, slot: fn(&mut Last) -> &mut Option<Span>, span: Span, keyword: &Text) {
        if let Some(earlier) = slot(&mut self.last).replace(span) {
            let detail = format!(
                "Multiple {keyword} instructions should not be used in the same stage because only the last one will be used"
            );
            self.warn(Rule::MultipleInstructionsDisallowed, earlier, detail);
        }
    }

    fn shell_form(&mut self, command: &Command, span: Span, keyword: &Text) {
        if matches!(command, Command::Shell(_)) && !self.inherited.shell {
            let detail = format!(
                "JSON arguments recommended for {keyword} to prevent unintended behavior related to OS signals"
            );
            self.warn(Rule::JsonArgsRecommended, span, detail);
        }
    }

    fn workdir(&mut self, path: &Text, span: Span) {
        let first = path.first().copied().unwrap_or_default();
        // Quotes go when the path is expanded; what a variable holds is not known.
        let relative = !matches!(first, b'/' | b'$' | b'\'' | b'"');
        if relative && !self.inherited.workdir {
            let detail = format!(
                "Relative workdir {} can have unexpected results if the base image changes",
                quote(path)
            );
            self.warn(Rule::WorkdirRelativePath, span, detail);
        }
        self.inherited.workdir = true;
    }

    fn legacy(&mut self, syntax: PairSyntax, span: Span, keyword: &Text) {
        if syntax == PairSyntax::Legacy {
            let detail = format!(
                "\"{keyword} key=value\" should be used instead of legacy \"{keyword} key value\" format"
            );
            self.warn(Rule::LegacyKeyValueFormat, span, detail);
        }
    }

    fn secret(&mut self, keyword: &str, name: &Text, span: Span) {
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
        let lower = name.to_string_lossy().to_lowercase();
        let has = |words: &[&str]| lower.split('_').any(|part| words.contains(&part));
        if has(&SECRET) && !has(&HARMLESS) {
            let name = quote(name);
            let detail = format!("Do not use ARG or ENV instructions for sensitive data ({keyword} {name})");
            self.warn(Rule::SecretsUsedInArgOrEnv, span, detail);
        }
    }

    fn expose(&mut self, word: &Text, span: Span) {
        if word.has_variables() {
            return;
        }
        // What is no port is an error of the build, not of this check.
        let Ok(range) = parse_ports(&word.to_string_lossy()) else { return };
        if range.protocol_case == ProtocolCase::Other {
            let detail = format!("Defined protocol '{word}' in EXPOSE instruction should be lowercase");
            self.warn(Rule::ExposeProtoCasing, span, detail);
        }
        if range.host == HostPart::Ignored {
            let detail = format!(
                "EXPOSE instruction should not define an IP address or host-port mapping, found '{word}'"
            );
            self.warn(Rule::ExposeInvalidFormat, span, detail);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    fn rules(file: &str) -> Vec<String> {
        let dockerfile = parse(file.as_bytes()).unwrap_or_else(|error| panic!("{file}: {error}"));
        check(&dockerfile).iter().map(|warning| format!("{}:{}", warning.line, warning.rule)).collect()
    }

    #[test]
    fn violations_have_rules_and_lines() {
        for (file, expected) in [
            ("FROM a AS B\n", vec!["1:StageNameCasing"]),
            ("FROM a as b\n", vec!["1:FromAsCasing"]),
            ("from a AS b\nrun x\n", vec!["1:FromAsCasing"]),
            ("From a as b\nRUN x", vec!["1:ConsistentInstructionCasing"]),
            ("FROM a\nENV a=1 \\\n\n\n b=2\nRUN x", vec!["5:NoEmptyContinuation"]),
            (
                "FROM a\nrun x\nRUN y\nCopy a b",
                vec!["2:ConsistentInstructionCasing", "4:ConsistentInstructionCasing"],
            ),
            ("from a\nrun x\nRUN y\n", vec!["3:ConsistentInstructionCasing"]),
            ("arg X\nFROM a\n", vec![]),
            ("FROM a AS b\nFROM a AS b\n", vec!["2:DuplicateStageName"]),
            ("FROM a AS scratch\nFROM a AS context\n", vec!["1:ReservedStageName", "2:ReservedStageName"]),
            (
                "FROM a\nCMD x\nENTRYPOINT y\nHEALTHCHECK CMD x",
                vec!["2:JSONArgsRecommended", "3:JSONArgsRecommended"],
            ),
            ("FROM a\nSHELL [\"a\"]\nCMD x\n", vec![]),
            ("FROM a AS b\nSHELL [\"a\"]\nFROM b\nCMD x\n", vec![]),
            ("FROM a\nMAINTAINER m", vec!["2:MaintainerDeprecated"]),
            ("FROM a\nWORKDIR b\nWORKDIR c", vec!["2:WorkdirRelativePath"]),
            ("FROM a\nWORKDIR /b\nWORKDIR c", vec![]),
            ("FROM a AS b\nWORKDIR /b\nFROM b\nWORKDIR c", vec![]),
            ("FROM a\nWORKDIR $x", vec![]),
            (
                "FROM a\nCMD [\"a\"]\nCMD [\"b\"]\nCMD [\"c\"]",
                vec!["2:MultipleInstructionsDisallowed", "3:MultipleInstructionsDisallowed"],
            ),
            ("FROM a\nCMD [\"a\"]\nFROM b\nCMD [\"b\"]", vec![]),
            ("FROM a\nENV k v\nLABEL k v", vec!["2:LegacyKeyValueFormat", "3:LegacyKeyValueFormat"]),
            ("FROM --platform=$TARGETPLATFORM a", vec!["1:RedundantTargetPlatform"]),
            ("FROM --platform=${BUILDPLATFORM} a", vec![]),
            ("FROM --platform=linux/arm64 a", vec!["1:FromPlatformFlagConstDisallowed"]),
            ("FROM --platform=linux/arm64 a AS x-arm64", vec![]),
            ("FROM --platform=linux/aarch64 a AS arm64", vec![]),
            (
                "FROM a\nENV API_TOKEN=x AUTH=y MONKEY=z\nARG PUBLIC_KEY=y\nARG KEY_FILE db_password",
                vec!["2:SecretsUsedInArgOrEnv", "2:SecretsUsedInArgOrEnv", "4:SecretsUsedInArgOrEnv"],
            ),
            ("FROM a\nEXPOSE 80/TCP 81 $x/TCP", vec!["2:ExposeProtoCasing"]),
            ("FROM a\nEXPOSE 1.2.3.4:80:80", vec!["2:ExposeInvalidFormat"]),
            ("# a text\nARG a\n# b\n\n# c text\nFROM x AS c", vec![]),
            (
                "# text\nARG a\n# text\nFROM x AS c",
                vec!["2:InvalidDefinitionDescription", "4:InvalidDefinitionDescription"],
            ),
            ("# text\n#\nARG a\n# text\n\nFROM x AS c", vec![]),
            ("# syntax=x\nFROM x AS c", vec![]),
        ] {
            assert_eq!(rules(file), expected, "{file}");
        }
    }

    #[test]
    fn rules_have_the_names_that_directives_use() {
        let names: BTreeSet<_> = Rule::ALL.iter().map(|rule| rule.name()).collect();
        assert_eq!(names.len(), 22);
        assert!(names.contains("JSONArgsRecommended"));
    }

    #[test]
    fn details_say_what_is_wrong() {
        let span = Span::line(3);
        assert_eq!(
            Warning::undefined_variable(span, "foo", Some("fo")).to_string(),
            "UndefinedVar: Usage of undefined variable '$foo' (did you mean $fo?) (line 3)"
        );
        let dockerfile = parse(b"FROM a\nENV API_TOKEN=x\n").unwrap();
        let warnings = check(&dockerfile);
        assert_eq!(
            warnings[0].detail,
            "Do not use ARG or ENV instructions for sensitive data (ENV \"API_TOKEN\")"
        );
        assert_eq!(warnings[0].stage, Some(0));
    }
}
