//! Command lines that are none: what is wrong with them, said as all other errors are.

use std::error::Error as _;
use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::args::{Called, Command, OneDash};
use super::elsewhere;
use super::failure::Failure;
use super::progress::{Colour, escaped};
use crate::rootfs::Escaped;

/// Help goes to standard output and is no failure; everything else is one.
pub(super) fn usage(
    error: &clap::Error,
    arguments: &[OsString],
    called: &Called,
    colour: Colour,
) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // What it repeats of the command line may be from anywhere.
            let text: String =
                error.render().to_string().lines().map(|line| escaped(line.as_bytes()) + "\n").collect();
            let _ = std::io::stderr().write_all(text.as_bytes());
            ExitCode::FAILURE
        }
        _ => super::failed(&failure(error, arguments, called), colour),
    }
}

/// What is said of a command line that clap refuses.
fn failure(error: &clap::Error, arguments: &[OsString], called: &Called) -> Failure {
    let words = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => vec![word.clone()],
        Some(ContextValue::Strings(words)) => words.clone(),
        _ => Vec::new(),
    };
    let word = |kind| words(kind).into_iter().next();
    let invalid = word(ContextKind::InvalidArg);
    let help = called.help();
    match (error.kind(), invalid) {
        (ErrorKind::UnknownArgument, Some(word)) => match called.misplaced(arguments) {
            Some(failure) => failure,
            None if word.starts_with('-') => unknown_flag(&word, called),
            None => Failure::new(format!("`{word}` is one argument too many"))
                .hint(format!("`{help}` shows what `{}` takes", called.name())),
        },
        (ErrorKind::InvalidSubcommand, _) => {
            unknown_command(&word(ContextKind::InvalidSubcommand).unwrap_or_default(), called)
        }
        (ErrorKind::InvalidUtf8, _) => {
            let odd = arguments.iter().filter(|argument| argument.to_str().is_none());
            let odd: Vec<String> =
                odd.map(|argument| format!("`{}`", Escaped::new(argument.as_bytes()))).collect();
            Failure::new(format!("{} is not UTF-8, and is no path", odd.join(" or ")))
        }
        (ErrorKind::MissingRequiredArgument, _) => {
            let missing: Vec<String> =
                words(ContextKind::InvalidArg).iter().map(|word| quoted(word)).collect();
            let verb = if missing.len() == 1 { "is" } else { "are" };
            Failure::new(format!("`{}`: {} {verb} missing", called.name(), missing.join(" and ")))
                .hint(format!("`{help}` shows how it is called"))
        }
        (ErrorKind::ArgumentConflict, Some(flag)) => match words(ContextKind::PriorArg).first() {
            Some(other) if *other != flag => {
                Failure::new(format!("{} and {} cannot both be", quoted(&flag), quoted(other)))
                    .hint("leave out one of them")
            }
            _ => Failure::new("it is there twice, and can be once").of_flag(name(&flag)),
        },
        (ErrorKind::InvalidValue | ErrorKind::ValueValidation, Some(flag)) => {
            let value = word(ContextKind::InvalidValue).filter(|value| !value.is_empty());
            let because = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
            let Some(value) = value else {
                return Failure::new("there is no value behind it")
                    .of_flag(name(&flag))
                    .hint(format!("it is written {}", quoted(&flag)));
            };
            Failure::new(format!("`{value}` will not do{because}")).of_flag(name(&flag))
        }
        _ => {
            let text = error.render().to_string();
            let line = text.lines().next().unwrap_or_default();
            Failure::new(line.strip_prefix("error: ").unwrap_or(line))
                .hint(format!("`{help}` shows how it is called"))
        }
    }
}

/// A flag or an argument of clap's texts, without the brackets around its value.
fn quoted(argument: &str) -> String {
    format!(
        "`{}`",
        argument.trim_start_matches(['<', '[']).trim_end_matches(['>', ']', '.']).replace(" <", " ")
    )
}

/// The flag in one of clap's texts, such as `--jobs <NUMBER>`.
fn name(flag: &str) -> &str {
    flag.split([' ', '[', '=']).next().unwrap_or(flag)
}

/// What is said of a word that is no command.
fn unknown_command(word: &str, called: &Called) -> Failure {
    let failure = |words: &str| Failure::new(format!("unknown command `{words}`"));
    let told = match (called.words.as_str(), word) {
        ("", word) => {
            let hint =
                format!("`builder --help` lists the commands; a directory to build is written `./{word}`");
            return failure(word).hint(hint);
        }
        // Docker and podman make an index on this machine first.
        ("manifest", "create" | "add" | "annotate") => {
            "`builder manifest push from-args`, or `from-spec`, makes an index and pushes it in one step"
                .to_owned()
        }
        ("manifest push", _) => "what to push is said behind `from-spec`, or with the flags of `from-args`; \
             `builder manifest push --help` says more"
            .to_owned(),
        _ => format!("`{}` lists the commands that there are", called.help()),
    };
    failure(&format!("{} {word}", called.words)).hint(told)
}

/// What is said of a long flag with one dash.
pub(super) fn of_one_dash(flag: &OneDash) -> Failure {
    let OneDash { written, rest } = flag;
    let or =
        rest.as_ref().map(|(short, rest)| format!("; as a value of `-{short}`, write `-{short} {rest}`"));
    Failure::new(format!("unknown flag `{written}`"))
        .hint(format!("a flag that is a word has two dashes: `-{written}`{}", or.unwrap_or_default()))
}

/// What is said of a flag that a command does not have.
fn unknown_flag(flag: &str, called: &Called) -> Failure {
    let of_build = matches!(called.words.as_str(), "build" | "plan");
    if let Some(instead) = elsewhere::instead(flag).filter(|_| of_build) {
        return Failure::new(format!("unknown flag `{flag}`")).hint(instead);
    }
    let near = called.near(flag);
    let near = near.map(|near| format!(" (did you mean `{near}`?)")).unwrap_or_default();
    Failure::new(format!("unknown flag `{flag}`{near}"))
        .hint(format!("`{}` lists the flags that there are", called.help()))
}

impl Called {
    /// What it is called by, for instance `builder pull`.
    fn name(&self) -> String {
        format!("builder {}", self.words).trim_end().to_owned()
    }

    /// The command line that shows its help.
    fn help(&self) -> String {
        format!("{} --help", self.name())
    }

    /// What is said where a command stands behind flags, which makes it the context of a build.
    fn misplaced(&self, arguments: &[OsString]) -> Option<Failure> {
        let command = self.behind_flags(arguments)?;
        // It is the context.
        if command.split(' ').next().is_some_and(|word| Path::new(word).exists()) {
            return None;
        }
        let message = format!("the command `{command}` stands behind flags, so this is a build");
        Some(Failure::new(message).hint(format!("the command comes first: `builder {command} FLAGS …`")))
    }

    /// The same for a build of a directory that is not there.
    pub(super) fn mistaken(&self, command: &Command, arguments: &[OsString]) -> Option<Failure> {
        let Command::Build(args) = command else { return None };
        let context = args.positional_context.as_deref()?.to_str()?;
        let command = self.behind_flags(arguments)?;
        if command == context { self.misplaced(arguments) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args;

    /// The error of a command line, and what it advises.
    fn said(line: &str) -> (String, String) {
        let words = std::iter::once("builder").chain(line.split(' ')).map(OsString::from).collect();
        let (arguments, placed) = args::with_command(words);
        let called = Called::by(&arguments, placed);
        let failure = match args::parse(&arguments) {
            Err(error) => failure(&error, &arguments, &called),
            Ok(read) => called.mistaken(&read.command, &arguments).expect(line),
        };
        (failure.message, failure.hint.unwrap_or_default())
    }

    #[test]
    fn what_is_wrong_with_a_command_line_is_said_in_our_words() {
        for (line, message, hint) in [
            ("frobnicate", "unknown command `frobnicate`", "`./frobnicate`"),
            ("manifest create x", "unknown command `manifest create`", "`builder manifest push from-args`"),
            ("manifest frob", "unknown command `manifest frob`", "`builder manifest --help`"),
            ("manifest push x.yaml", "unknown command `manifest push x.yaml`", "from-spec"),
            ("image frob", "unknown command `image frob`", "`builder image --help`"),
            ("doctor extra", "`extra` is one argument too many", "`builder doctor --help`"),
            ("pull --arch arm --arch arm64 x", "--arch: it is there twice, and can be once", ""),
            ("pull", "`builder pull`: `NAME` is missing", "`builder pull --help`"),
            ("image extract", "`builder image extract`: `LAYOUT` and `DIR` are missing", ""),
            (
                "manifest push from-args --platforms linux/amd64",
                "`builder manifest push from-args`: `--template TEMPLATE` and `--target NAME` are missing",
                "",
            ),
            ("build -c x y", "`--context DIR` and `CONTEXT` cannot both be", "leave out one"),
            ("build --jobs x .", "--jobs: `x` will not do: invalid digit found in string", ""),
            ("--insecure=x .", "--insecure: `x` will not do: expected true or false", ""),
            ("build --jobs", "--jobs: there is no value behind it", "`--jobs NUMBER`"),
            ("pull --raw x", "unknown flag `--raw`", "`builder pull --help`"),
        ] {
            let (found, advised) = said(line);
            assert_eq!(found, message, "{line}");
            assert!(advised.contains(hint), "{line}: {advised}");
        }
    }

    #[test]
    fn a_command_behind_flags_is_told_to_come_first() {
        for (line, command) in [
            ("--insecure pull x", "pull"),
            ("--insecure pull", "pull"),
            ("--insecure version", "version"),
            ("-v debug manifest inspect --raw x", "manifest inspect"),
            ("--custom-platform linux/arm pull x", "pull"),
        ] {
            let (message, hint) = said(line);
            assert!(
                message.starts_with(&format!("the command `{command}` stands behind flags")),
                "{message}"
            );
            assert_eq!(hint, format!("the command comes first: `builder {command} FLAGS …`"));
        }
        // It may be meant as something else.
        let (message, _) = said("--jobs x -t plan .");
        assert!(message.starts_with("--jobs: "), "{message}");
        let (message, _) = said("build . pull");
        assert_eq!(message, "`pull` is one argument too many");
    }
}
