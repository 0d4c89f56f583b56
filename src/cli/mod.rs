//! The command line: flags, environment, progress, errors, exit codes.

mod args;
mod build;
mod failure;
mod progress;
mod settings;

use std::ffi::OsString;
use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use clap::Parser as _;
use clap::error::ErrorKind;

use args::{Command, CommandLine};
use failure::Failure;
use progress::Colour;
use settings::{Environment, Purpose, Settings};

/// Runs the command line `arguments`, the program's name first, and gives the process's exit code: 0 done; a failing
/// RUN's own code; 130 or 143 after SIGINT or SIGTERM; 1 every other failure, usage included.
///
/// Call it before any thread exists: a build forks.
#[must_use]
pub fn main(arguments: Vec<OsString>) -> ExitCode {
    let environment = Environment::read();
    let colour = if std::io::stderr().is_terminal() && !environment.forbids_colour() {
        Colour::Yes
    } else {
        Colour::No
    };
    let line = match CommandLine::try_parse_from(args::with_command(arguments)) {
        Ok(line) => line,
        Err(error) => return usage(&error),
    };
    let done = match line.command {
        Command::Build(args) => Settings::resolve(&args, &environment, Purpose::Build)
            .and_then(|settings| build::build(&settings, colour)),
        Command::Plan(args) => Settings::resolve(&args, &environment, Purpose::Plan)
            .and_then(|settings| build::plan(&settings, colour)),
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
fn usage(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// Writes data to standard output.
fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| Failure::new(format!("cannot write to standard output: {error}")))
}
