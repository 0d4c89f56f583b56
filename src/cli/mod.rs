//! The command line: flags, environment, progress, errors, exit codes.

mod advice;
mod args;
mod build;
mod doctor;
mod extract;
mod failure;
mod hints;
mod isolation;
mod limits;
mod outputs;
mod own;
mod progress;
mod secrets;
mod settings;
mod snapshotter;
mod stop;
mod sweep;

use std::ffi::OsString;
use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use clap::Parser as _;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use args::{Command, CommandLine, ImageCommand};
use doctor::DoctorSettings;
use extract::ExtractSettings;
use failure::Failure;
use progress::Colour;
use settings::{Environment, Purpose, Settings};
use stop::AtOnce;

use crate::sys;

/// Runs the command line `arguments`, the program's name first, and gives the process's exit code: 0 done; a failing
/// RUN's own code; 129, 130 or 143 after SIGHUP, SIGINT or SIGTERM; 1 every other failure, usage included.
///
/// Call it before any thread exists: a build forks.
#[must_use]
pub fn main(arguments: Vec<OsString>) -> ExitCode {
    // Before they are unblocked: what came meanwhile counts.
    let at_once = AtOnce::begin();
    sys::settle_inherited_signals();
    let environment = Environment::read();
    let colour = if std::io::stderr().is_terminal() && !environment.forbids_colour() {
        Colour::Yes
    } else {
        Colour::No
    };
    let arguments = args::with_command(arguments);
    let command = args::command_of(&arguments);
    let line = match CommandLine::try_parse_from(&arguments) {
        Ok(line) => line,
        Err(error) => return usage(&error, command, colour),
    };
    let done = match line.command {
        Command::Build(args) => Settings::resolve(&args, &environment, Purpose::Build)
            .and_then(|settings| build::build(&settings, colour, &at_once)),
        Command::Plan(args) => Settings::resolve(&args, &environment, Purpose::Plan)
            .and_then(|settings| build::plan(&settings, colour, &at_once)),
        Command::Image(args) => match args.command {
            ImageCommand::Extract(args) => ExtractSettings::resolve(&args, &environment)
                .and_then(|settings| extract::extract(&settings, colour, &at_once)),
        },
        Command::Doctor(args) => {
            match DoctorSettings::resolve(&args, &environment)
                .and_then(|settings| doctor::doctor(&settings, &at_once))
            {
                Ok(code) => return code,
                Err(failure) => Err(failure),
            }
        }
        Command::Version => print(&format!("builder {}\n", env!("CARGO_PKG_VERSION"))),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // Nobody is left to tell when standard error is closed.
            let _ = std::io::stderr().write_all(failure.render(colour).as_bytes());
            ExitCode::from(failure.code)
        }
    }
}

/// Help goes to standard output and is no failure; everything else is one.
fn usage(error: &clap::Error, command: &str, colour: Colour) -> ExitCode {
    let word = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.clone()),
        _ => None,
    };
    let failure = match (error.kind(), word(ContextKind::InvalidArg), word(ContextKind::InvalidSubcommand)) {
        (ErrorKind::UnknownArgument, Some(flag), _) if flag.starts_with('-') => {
            let near = args::near_flag(&flag, command)
                .map(|near| format!(" (did you mean `{near}`?)"))
                .unwrap_or_default();
            Failure::new(format!("unknown flag `{flag}`{near}"))
                .hint(format!("`builder {command} --help` lists the flags that there are"))
        }
        (ErrorKind::InvalidSubcommand, _, Some(command)) => Failure::new(format!(
            "unknown command `{command}`"
        ))
        .hint(format!("`builder --help` lists the commands; a directory to build is written `./{command}`")),
        _ => {
            let _ = error.print();
            return match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
                _ => ExitCode::FAILURE,
            };
        }
    };
    let _ = std::io::stderr().write_all(failure.render(colour).as_bytes());
    ExitCode::from(failure.code)
}

/// Writes data to standard output.
fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| Failure::new(format!("cannot write to standard output: {error}")))
}
