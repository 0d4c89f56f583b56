//! The build checks: their names and what BuildKit says of them in general.

use std::fmt;

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

/// What is known of a rule.
struct Description {
    name: &'static str,
    /// The last part of the address of its page; empty where there is no page.
    page: &'static str,
    text: &'static str,
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

    const fn description_of(self) -> Description {
        let (name, page, text) = match self {
            Self::StageNameCasing => {
                ("StageNameCasing", "stage-name-casing", "Stage names should be lowercase")
            }
            Self::FromAsCasing => (
                "FromAsCasing",
                "from-as-casing",
                "The 'as' keyword should match the case of the 'from' keyword",
            ),
            Self::NoEmptyContinuation => (
                "NoEmptyContinuation",
                "no-empty-continuation",
                "Empty continuation lines will become errors in a future release",
            ),
            Self::ConsistentInstructionCasing => (
                "ConsistentInstructionCasing",
                "consistent-instruction-casing",
                "All commands within the Dockerfile should use the same casing (either upper or lower)",
            ),
            Self::DuplicateStageName => {
                ("DuplicateStageName", "duplicate-stage-name", "Stage names should be unique")
            }
            Self::ReservedStageName => (
                "ReservedStageName",
                "reserved-stage-name",
                "Reserved words should not be used as stage names",
            ),
            Self::JsonArgsRecommended => (
                "JSONArgsRecommended",
                "json-args-recommended",
                "JSON arguments recommended for ENTRYPOINT/CMD to prevent unintended behavior related to OS signals",
            ),
            Self::MaintainerDeprecated => (
                "MaintainerDeprecated",
                "maintainer-deprecated",
                "The MAINTAINER instruction is deprecated, use a label instead to define an image author",
            ),
            Self::UndefinedArgInFrom => {
                ("UndefinedArgInFrom", "undefined-arg-in-from", "FROM command must use declared ARGs")
            }
            Self::WorkdirRelativePath => (
                "WorkdirRelativePath",
                "workdir-relative-path",
                "Relative workdir without an absolute workdir declared within the build can have unexpected results if the base image changes",
            ),
            Self::UndefinedVar => {
                ("UndefinedVar", "undefined-var", "Variables should be defined before their use")
            }
            Self::MultipleInstructionsDisallowed => (
                "MultipleInstructionsDisallowed",
                "multiple-instructions-disallowed",
                "Multiple instructions of the same type should not be used in the same stage",
            ),
            Self::LegacyKeyValueFormat => (
                "LegacyKeyValueFormat",
                "legacy-key-value-format",
                "Legacy key/value format with whitespace separator should not be used",
            ),
            Self::InvalidBaseImagePlatform => (
                "InvalidBaseImagePlatform",
                "",
                "Base image platform does not match expected target platform",
            ),
            Self::RedundantTargetPlatform => (
                "RedundantTargetPlatform",
                "redundant-target-platform",
                "Setting platform to predefined $TARGETPLATFORM in FROM is redundant as this is the default behavior",
            ),
            Self::SecretsUsedInArgOrEnv => (
                "SecretsUsedInArgOrEnv",
                "secrets-used-in-arg-or-env",
                "Sensitive data should not be used in the ARG or ENV commands",
            ),
            Self::InvalidDefaultArgInFrom => (
                "InvalidDefaultArgInFrom",
                "invalid-default-arg-in-from",
                "Default value for global ARG results in an empty or invalid base image name",
            ),
            Self::FromPlatformFlagConstDisallowed => (
                "FromPlatformFlagConstDisallowed",
                "from-platform-flag-const-disallowed",
                "FROM --platform flag should not use a constant value",
            ),
            Self::CopyIgnoredFile => (
                "CopyIgnoredFile",
                "copy-ignored-file",
                "Attempting to Copy file that is excluded by .dockerignore",
            ),
            Self::InvalidDefinitionDescription => (
                "InvalidDefinitionDescription",
                "invalid-definition-description",
                "Comment for build stage or argument should follow the format: `# <arg/stage name> <description>`. If this is not intended to be a description comment, add an empty line or comment between the instruction and the comment.",
            ),
            Self::ExposeProtoCasing => (
                "ExposeProtoCasing",
                "expose-proto-casing",
                "Protocol in EXPOSE instruction should be lowercase",
            ),
            Self::ExposeInvalidFormat => (
                "ExposeInvalidFormat",
                "expose-invalid-format",
                "IP address and host-port mapping should not be used in EXPOSE instruction. This will become an error in a future release",
            ),
        };
        Description { name, page, text }
    }

    /// The name, as `# check=skip=` takes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.description_of().name
    }

    /// What it is about, in BuildKit's words.
    #[must_use]
    pub const fn description(self) -> &'static str {
        self.description_of().text
    }

    /// Docker's page about it, if there is one.
    #[must_use]
    pub fn url(self) -> Option<String> {
        let page = self.description_of().page;
        (!page.is_empty()).then(|| format!("https://docs.docker.com/go/dockerfile/rule/{page}/"))
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn rules_have_the_names_that_directives_use_and_pages_of_their_own() {
        let names: BTreeSet<_> = Rule::ALL.iter().map(|rule| rule.name()).collect();
        assert_eq!(names.len(), 22);
        assert!(names.contains("JSONArgsRecommended"));
        let pages: BTreeSet<_> = Rule::ALL.iter().filter_map(|rule| rule.url()).collect();
        assert_eq!(pages.len(), 21);
        assert!(pages.contains("https://docs.docker.com/go/dockerfile/rule/json-args-recommended/"));
        assert!(Rule::InvalidBaseImagePlatform.url().is_none());
    }
}
