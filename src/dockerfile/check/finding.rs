//! What a build check found: where, what is wrong, and what to write instead.

use std::fmt;

use super::super::history::quote;
use super::super::ports::{Protocol, parse_ports};
use super::super::{Span, Text, TransferKind};
use super::Rule;

/// A violation of a build check.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Warning {
    /// The lines of the instruction.
    pub span: Span,
    /// What is wrong there.
    pub finding: Finding,
}

impl Warning {
    /// Of `finding` at `span`.
    #[must_use]
    pub const fn new(span: Span, finding: Finding) -> Self {
        Self { span, finding }
    }

    /// The check.
    #[must_use]
    pub const fn rule(&self) -> Rule {
        self.finding.rule()
    }

    /// What is wrong, in BuildKit's words.
    #[must_use]
    pub fn detail(&self) -> String {
        self.finding.detail()
    }

    /// What to write instead.
    #[must_use]
    pub fn instead(&self) -> String {
        self.finding.instead()
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} (line {})", self.rule(), self.detail(), self.span.first_line)
    }
}

/// The case that most keywords of a file have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Majority {
    /// `from`
    Lower,
    /// `FROM`
    Upper,
}

/// Whether a variable is one of an ARG in front of the first FROM, which stages do not see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Elsewhere {
    /// It is.
    BeforeFrom,
    /// It is not.
    Nowhere,
}

/// What is wrong, with the names and words that it takes to say so. The variants stand in the order of [`Rule::ALL`].
///
/// No more than that is kept: a file can have very many of them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Finding {
    /// [`Rule::StageNameCasing`]
    StageNameCasing {
        /// As written.
        name: Text,
    },
    /// [`Rule::FromAsCasing`]
    FromAsCasing {
        /// FROM as written.
        from: Text,
        /// AS as written.
        written: Text,
    },
    /// [`Rule::NoEmptyContinuation`]
    NoEmptyContinuation,
    /// [`Rule::ConsistentInstructionCasing`]
    ConsistentInstructionCasing {
        /// As written.
        keyword: Text,
        /// What the others have.
        majority: Majority,
    },
    /// [`Rule::DuplicateStageName`]
    DuplicateStageName {
        /// In lower case.
        name: String,
    },
    /// [`Rule::ReservedStageName`]
    ReservedStageName {
        /// In lower case.
        name: String,
    },
    /// [`Rule::JsonArgsRecommended`]
    JsonArgsRecommended {
        /// CMD or ENTRYPOINT as written.
        keyword: Text,
        /// What is in shell form.
        command: Text,
    },
    /// [`Rule::MaintainerDeprecated`]
    MaintainerDeprecated {
        /// Who it names.
        maintainer: Text,
    },
    /// [`Rule::UndefinedArgInFrom`]
    UndefinedArgInFrom {
        /// Its name.
        name: String,
        /// The ARG that may have been meant.
        near: Option<String>,
    },
    /// [`Rule::WorkdirRelativePath`]
    WorkdirRelativePath {
        /// As expanded.
        path: Text,
    },
    /// [`Rule::UndefinedVar`]
    UndefinedVar {
        /// Its name.
        name: String,
        /// The variable that may have been meant.
        near: Option<String>,
        /// Where else it is defined.
        elsewhere: Elsewhere,
    },
    /// [`Rule::MultipleInstructionsDisallowed`]
    MultipleInstructionsDisallowed {
        /// The later one's, as written.
        keyword: Text,
        /// Where the later one begins.
        later: usize,
    },
    /// [`Rule::LegacyKeyValueFormat`]
    LegacyKeyValueFormat {
        /// ENV or LABEL as written.
        keyword: Text,
        /// The key.
        name: String,
    },
    /// [`Rule::InvalidBaseImagePlatform`]
    InvalidBaseImagePlatform {
        /// The base.
        image: String,
        /// What it is for.
        actual: String,
        /// What it should be for.
        expected: String,
    },
    /// [`Rule::RedundantTargetPlatform`]
    RedundantTargetPlatform {
        /// The value of `--platform` as written.
        platform: Text,
    },
    /// [`Rule::SecretsUsedInArgOrEnv`]
    SecretsUsedInArgOrEnv {
        /// `ARG` or `ENV`.
        keyword: &'static str,
        /// Of the variable.
        name: String,
    },
    /// [`Rule::InvalidDefaultArgInFrom`]
    InvalidDefaultArgInFrom {
        /// The base as written.
        image: Text,
    },
    /// [`Rule::FromPlatformFlagConstDisallowed`]
    FromPlatformFlagConstDisallowed {
        /// The value of `--platform`.
        platform: Text,
    },
    /// [`Rule::CopyIgnoredFile`]
    CopyIgnoredFile {
        /// COPY or ADD.
        kind: TransferKind,
        /// The source, cleaned.
        path: Text,
        /// The name of the file of rules.
        rules: String,
    },
    /// [`Rule::InvalidDefinitionDescription`]
    InvalidDefinitionDescription {
        /// `ARG` or `FROM`.
        keyword: &'static str,
        /// What the comment could begin with.
        example: String,
    },
    /// [`Rule::ExposeProtoCasing`]
    ExposeProtoCasing {
        /// The whole word.
        port: String,
    },
    /// [`Rule::ExposeInvalidFormat`]
    ExposeInvalidFormat {
        /// The whole word.
        port: String,
    },
}

impl Finding {
    /// The check.
    #[must_use]
    pub const fn rule(&self) -> Rule {
        match self {
            Self::StageNameCasing { .. } => Rule::StageNameCasing,
            Self::FromAsCasing { .. } => Rule::FromAsCasing,
            Self::NoEmptyContinuation => Rule::NoEmptyContinuation,
            Self::ConsistentInstructionCasing { .. } => Rule::ConsistentInstructionCasing,
            Self::DuplicateStageName { .. } => Rule::DuplicateStageName,
            Self::ReservedStageName { .. } => Rule::ReservedStageName,
            Self::JsonArgsRecommended { .. } => Rule::JsonArgsRecommended,
            Self::MaintainerDeprecated { .. } => Rule::MaintainerDeprecated,
            Self::UndefinedArgInFrom { .. } => Rule::UndefinedArgInFrom,
            Self::WorkdirRelativePath { .. } => Rule::WorkdirRelativePath,
            Self::UndefinedVar { .. } => Rule::UndefinedVar,
            Self::MultipleInstructionsDisallowed { .. } => Rule::MultipleInstructionsDisallowed,
            Self::LegacyKeyValueFormat { .. } => Rule::LegacyKeyValueFormat,
            Self::InvalidBaseImagePlatform { .. } => Rule::InvalidBaseImagePlatform,
            Self::RedundantTargetPlatform { .. } => Rule::RedundantTargetPlatform,
            Self::SecretsUsedInArgOrEnv { .. } => Rule::SecretsUsedInArgOrEnv,
            Self::InvalidDefaultArgInFrom { .. } => Rule::InvalidDefaultArgInFrom,
            Self::FromPlatformFlagConstDisallowed { .. } => Rule::FromPlatformFlagConstDisallowed,
            Self::CopyIgnoredFile { .. } => Rule::CopyIgnoredFile,
            Self::InvalidDefinitionDescription { .. } => Rule::InvalidDefinitionDescription,
            Self::ExposeProtoCasing { .. } => Rule::ExposeProtoCasing,
            Self::ExposeInvalidFormat { .. } => Rule::ExposeInvalidFormat,
        }
    }

    /// What is wrong, in BuildKit's words: people search for them.
    fn detail(&self) -> String {
        match self {
            Self::StageNameCasing { name } => format!("Stage name '{name}' should be lowercase"),
            Self::FromAsCasing { from, written } => {
                format!("'{written}' and '{from}' keywords' casing do not match")
            }
            Self::NoEmptyContinuation => "Empty continuation line".to_owned(),
            Self::ConsistentInstructionCasing { keyword, majority } => {
                let majority = match majority {
                    Majority::Lower => "lowercase",
                    Majority::Upper => "uppercase",
                };
                format!("Command '{keyword}' should match the case of the command majority ({majority})")
            }
            Self::DuplicateStageName { name } => {
                format!("Duplicate stage name {}, stage names should be unique", quote(name.as_bytes()))
            }
            Self::ReservedStageName { name } => {
                format!(
                    "Stage name should not use the same name as reserved stage {}",
                    quote(name.as_bytes())
                )
            }
            Self::JsonArgsRecommended { keyword, .. } => format!(
                "JSON arguments recommended for {keyword} to prevent unintended behavior related to OS signals"
            ),
            Self::MaintainerDeprecated { .. } => {
                "Maintainer instruction is deprecated in favor of using label".to_owned()
            }
            Self::UndefinedArgInFrom { name, near } => {
                let near = near.as_ref().map_or_else(String::new, |near| format!(" (did you mean {near}?)"));
                format!("FROM argument '{name}' is not declared{near}")
            }
            Self::WorkdirRelativePath { path } => format!(
                "Relative workdir {} can have unexpected results if the base image changes",
                quote(path)
            ),
            Self::UndefinedVar { name, near, .. } => {
                let near = near.as_ref().map_or_else(String::new, |near| format!(" (did you mean ${near}?)"));
                format!("Usage of undefined variable '${name}'{near}")
            }
            Self::MultipleInstructionsDisallowed { keyword, .. } => format!(
                "Multiple {keyword} instructions should not be used in the same stage because only the last one will be used"
            ),
            Self::LegacyKeyValueFormat { keyword, .. } => format!(
                "\"{keyword} key=value\" should be used instead of legacy \"{keyword} key value\" format"
            ),
            Self::InvalidBaseImagePlatform { image, actual, expected } => format!(
                "Base image {image} was pulled with platform {}, expected {} for current build",
                quote(actual.as_bytes()),
                quote(expected.as_bytes())
            ),
            Self::RedundantTargetPlatform { platform } => format!(
                "Setting platform to predefined {platform} in FROM is redundant as this is the default behavior"
            ),
            Self::SecretsUsedInArgOrEnv { keyword, name } => format!(
                "Do not use ARG or ENV instructions for sensitive data ({keyword} {})",
                quote(name.as_bytes())
            ),
            Self::InvalidDefaultArgInFrom { image } => {
                format!("Default value for ARG {image} results in empty or invalid base image name")
            }
            Self::FromPlatformFlagConstDisallowed { platform } => {
                format!("FROM --platform flag should not use constant value {}", quote(platform))
            }
            Self::CopyIgnoredFile { kind, path, .. } => {
                let verb = match kind {
                    TransferKind::Copy => "Copy",
                    TransferKind::Add => "Add",
                };
                format!("Attempting to {verb} file {} that is excluded by .dockerignore", quote(path))
            }
            Self::InvalidDefinitionDescription { keyword, example } => {
                format!("Comment for {keyword} should follow the format: `# {example} <description>`")
            }
            Self::ExposeProtoCasing { port } => {
                format!("Defined protocol '{port}' in EXPOSE instruction should be lowercase")
            }
            Self::ExposeInvalidFormat { port } => format!(
                "EXPOSE instruction should not define an IP address or host-port mapping, found '{port}'"
            ),
        }
    }

    /// What to write instead.
    fn instead(&self) -> String {
        match self {
            Self::StageNameCasing { name } => format!("write `AS {}`", name.to_string_lossy().to_lowercase()),
            Self::FromAsCasing { from, .. } => {
                let lower = !from.iter().any(u8::is_ascii_uppercase);
                format!("write `{}`, as `{from}` is written", if lower { "as" } else { "AS" })
            }
            Self::NoEmptyContinuation => "remove the empty line, or begin it with `#`".to_owned(),
            Self::ConsistentInstructionCasing { keyword, majority } => {
                let keyword = keyword.to_string_lossy();
                let keyword = match majority {
                    Majority::Lower => keyword.to_lowercase(),
                    Majority::Upper => keyword.to_uppercase(),
                };
                format!("write `{keyword}`")
            }
            Self::DuplicateStageName { name } => format!(
                "give one of the stages another name: what comes later finds the last one that is called `{name}`"
            ),
            Self::ReservedStageName { name } => format!(
                "give the stage another name, for instance `{name}-stage`: `scratch` is the empty image, `context` the build context"
            ),
            Self::JsonArgsRecommended { keyword, command } => match json_list(command) {
                Some(list) => format!("write `{keyword} {list}`"),
                None => format!(
                    "write `{keyword} [\"program\", \"argument\"]`, with a script as program for what needs a shell; or say with SHELL that a shell is meant"
                ),
            },
            Self::MaintainerDeprecated { maintainer } => format!(
                "write `LABEL org.opencontainers.image.authors=\"{}\"`",
                shortened(&maintainer.to_string_lossy())
            ),
            Self::UndefinedArgInFrom { name, near } => match near {
                Some(near) => format!("write `${near}`, or declare `ARG {name}=VALUE` before the first FROM"),
                None => format!("declare it before the first FROM: `ARG {name}=VALUE`"),
            },
            Self::WorkdirRelativePath { path } => {
                let path = shortened(&path.to_string_lossy());
                format!("write the whole path, for instance `WORKDIR /{}`", path.trim_start_matches("./"))
            }
            Self::UndefinedVar { name, near, elsewhere } => undefined(name, near.as_deref(), *elsewhere),
            Self::MultipleInstructionsDisallowed { later, .. } => {
                format!("remove this one: the one in line {later} replaces it")
            }
            Self::LegacyKeyValueFormat { keyword, name } => format!(
                "write `{keyword} {}=VALUE`, with quotes around a value that has blanks",
                shortened(name)
            ),
            Self::InvalidBaseImagePlatform { expected, .. } => format!(
                "take an image that there is for {expected}, or name the platform that is meant: `FROM --platform=…`"
            ),
            Self::RedundantTargetPlatform { platform } => format!("leave out `--platform={platform}`"),
            Self::SecretsUsedInArgOrEnv { name, .. } => {
                let name = shortened(name);
                format!(
                    "give it to the step that needs it alone: `RUN --mount=type=secret,id={name},env={name} …`, and build with `--secret id={name},env={name}`"
                )
            }
            Self::InvalidDefaultArgInFrom { image } if !image.has_variables() => {
                "write the name of an image, or of an earlier stage in lower case".to_owned()
            }
            Self::InvalidDefaultArgInFrom { image } => format!(
                "give the ARGs in `{}` defaults that make it the name of an image, for instance `ARG TAG=latest`",
                shortened(&image.to_string_lossy())
            ),
            Self::FromPlatformFlagConstDisallowed { .. } => {
                "leave it out and build with `--platform`; for a stage that runs on the machine that builds, write `--platform=$BUILDPLATFORM`; one that is for a certain platform on purpose may have it in its name".to_owned()
            }
            Self::CopyIgnoredFile { path, rules, .. } if *path == "." => format!(
                "take the pattern that excludes all out of `{rules}`, or bring back at its end what is to be copied: `!name`"
            ),
            Self::CopyIgnoredFile { path, rules, .. } => {
                let path = shortened(&path.to_string_lossy());
                format!("add `!{}` at the end of `{rules}`, or copy something else", path.trim_start_matches('/'))
            }
            Self::InvalidDefinitionDescription { example, .. } => format!(
                "begin the comment with the name: `# {example} TEXT`; or put an empty line behind it if it describes something else"
            ),
            Self::ExposeProtoCasing { port } => format!("write `{}`", port.to_lowercase()),
            Self::ExposeInvalidFormat { port } => format!(
                "write `{}`; what it is published as is said when a container is started",
                port_alone(port)
            ),
        }
    }
}

fn undefined(name: &str, near: Option<&str>, elsewhere: Elsewhere) -> String {
    let name = shortened(name);
    match (elsewhere, near) {
        (Elsewhere::BeforeFrom, _) => {
            format!("repeat `ARG {name}` in this stage: the one before the first FROM is seen by FROM alone")
        }
        (Elsewhere::Nowhere, Some(near)) => {
            format!("write `${near}`, or define it before: `ARG {name}=VALUE`")
        }
        (Elsewhere::Nowhere, None) => format!(
            "define it before, in this stage: `ARG {name}=VALUE`, or `ENV {name}=VALUE` if containers need it too; `${{{name}:-}}` may be empty"
        ),
    }
}

/// `word` of EXPOSE without what it says of the host.
fn port_alone(word: &str) -> String {
    match parse_ports(word) {
        Ok(range) => {
            let ports = if range.first == range.last {
                range.first.to_string()
            } else {
                format!("{}-{}", range.first, range.last)
            };
            match range.protocol {
                Protocol::Tcp => ports,
                protocol => format!("{ports}/{protocol}"),
            }
        }
        Err(_) => "PORT".to_owned(),
    }
}

/// At most this many characters of a text are shown in what to write instead.
const LONGEST: usize = 100;

fn shortened(text: &str) -> String {
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The JSON list that a command in shell form means, if no shell is needed for it, and it is short.
fn json_list(command: &Text) -> Option<String> {
    let text = std::str::from_utf8(command).ok()?.trim();
    let plain = |c: char| c.is_ascii_alphanumeric() || " ./_-:=,@+%".contains(c);
    let is_plain = !text.is_empty() && text.len() <= LONGEST && text.chars().all(plain);
    // `a=b program` sets a variable, which takes a shell.
    let assigns = text.split(' ').next().is_some_and(|word| word.contains('='));
    // What the shell does itself is no program.
    let builtin = text.split(' ').any(|word| {
        matches!(word, "exec" | "cd" | "export" | "." | "source" | "set" | "if" | "while" | "for")
    });
    if !is_plain || assigns || builtin {
        return None;
    }
    let words: Vec<String> = text.split_whitespace().map(|word| format!("\"{word}\"")).collect();
    Some(format!("[{}]", words.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_needs_no_shell_is_shown_as_a_list() {
        for (command, list) in [
            ("node index.js", Some("[\"node\", \"index.js\"]")),
            ("/app  --port=80", Some("[\"/app\", \"--port=80\"]")),
            ("exec /app", None),
            ("A=1 /app", None),
            ("cd /x", None),
            ("/app $PORT", None),
            ("a && b", None),
            ("", None),
        ] {
            assert_eq!(json_list(&Text::from(command)).as_deref(), list, "{command}");
        }
    }

    #[test]
    fn what_to_write_instead_of_a_port_is_a_port() {
        for (word, port) in [
            ("127.0.0.1:80:80", "80"),
            ("[::1]:8080:8080/UDP", "8080/udp"),
            ("5000-5001:5000-5001", "5000-5001"),
        ] {
            assert_eq!(port_alone(word), port);
        }
    }
}
