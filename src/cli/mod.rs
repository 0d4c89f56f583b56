//! The command line: flags, environment, progress, errors, exit codes.

mod advice;
mod args;
mod build;
mod check;
mod contexts;
mod doctor;
mod elsewhere;
mod extract;
mod failed_step;
mod failure;
mod hints;
mod isolation;
mod limits;
mod manifest;
mod open_files;
mod outputs;
mod own;
mod progress;
mod pull;
mod root;
mod run_settings;
mod secrets;
mod settings;
mod snapshotter;
mod sources;
mod ssh;
mod stop;
mod sweep;
mod talk;
mod usage;

use std::ffi::OsString;
use std::io::{IsTerminal as _, Write};
use std::process::ExitCode;

use args::{Called, Command, ImageCommand, ManifestCommand};
use check::Call;
use doctor::DoctorSettings;
use extract::ExtractSettings;
use failure::Failure;
use manifest::{InspectSettings, PushSettings};
use progress::{Colour, Lines, Verbosity};
use pull::PullSettings;
use settings::{Environment, Purpose, Settings};
use stop::AtOnce;

use crate::build::progress::{Event, Progress as _};
use crate::sys;
use crate::text::SafeJson;

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
    if args::asks_for_limits(&arguments) {
        return match print(&limits::help()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => failed(&failure, colour),
        };
    }
    let (arguments, placed) = args::with_command(arguments);
    let called = Called::by(&arguments, placed);
    if let Some(flag) = called.one_dash(&arguments) {
        return failed(&usage::of_one_dash(&flag), colour);
    }
    let line = match args::parse(&arguments) {
        Ok(line) => line,
        Err(error) => return usage::usage(&error, &arguments, &called, colour),
    };
    if let Some(failure) = called.mistaken(&line.command, &arguments) {
        return failed(&failure, colour);
    }
    match run(line.command, &environment, colour, &at_once) {
        Ok(code) => code,
        Err(failure) => failed(&failure, colour),
    }
}

/// Says why it failed.
fn failed(failure: &Failure, colour: Colour) -> ExitCode {
    // Nobody is left to tell when standard error is closed.
    let _ = std::io::stderr().write_all(failure.render(colour).as_bytes());
    ExitCode::from(failure.code)
}

fn run(
    command: Command,
    environment: &Environment,
    colour: Colour,
    at_once: &AtOnce,
) -> Result<ExitCode, Failure> {
    // All commands say there what came out, if nothing else.
    if sys::stdout_was_closed() {
        return Err(Failure::new("standard output is closed, and what is to be printed would be lost")
            .hint("send it to a file or program, or to /dev/null"));
    }
    if matches!(command, Command::Version) {
        print(&format!("builder {}\n", env!("CARGO_PKG_VERSION")))?;
        return Ok(ExitCode::SUCCESS);
    }
    // Before anything is looked at, settings included.
    let tell = |note: &str| Lines::to_stderr(Verbosity::Info, colour).tell(&Event::Note(note));
    if let Some(note) = root::ensure_own(at_once, &tell)? {
        tell(note);
    }
    match command {
        Command::Build(args) => {
            if let Call::Check(format, status) = Call::of(&args)? {
                let settings = Settings::resolve(&args, environment, Purpose::Plan);
                return check::check(settings, format, status, colour, at_once);
            }
            build::build(&Settings::resolve(&args, environment, Purpose::Build)?, colour, at_once)?;
        }
        Command::Plan(args) => {
            let settings = Settings::resolve(&args, environment, Purpose::Plan);
            if let Call::Check(format, status) = Call::of(&args)? {
                return check::check(settings, format, status, colour, at_once);
            }
            build::plan(&settings?, colour, at_once)?;
        }
        Command::Check(args) => {
            let Call::Check(format, status) = Call::of_check(&args)? else { return Ok(ExitCode::SUCCESS) };
            let settings = Settings::resolve(&args.build, environment, Purpose::Plan);
            return check::check(settings, format, status, colour, at_once);
        }
        Command::Image(args) => match args.command {
            ImageCommand::Extract(args) => {
                extract::extract(&ExtractSettings::resolve(&args, environment)?, colour, at_once)?;
            }
        },
        Command::Pull(args) => {
            pull::pull(&PullSettings::resolve(&args, environment)?, colour, at_once)?;
        }
        Command::Manifest(args) => match args.command {
            ManifestCommand::Push(args) => {
                manifest::push(&PushSettings::resolve(&args, environment)?, colour, at_once)?;
            }
            ManifestCommand::Inspect(args) => {
                manifest::inspect(&InspectSettings::resolve(&args, environment)?, colour, at_once)?;
            }
        },
        Command::Doctor(args) => {
            return doctor::doctor(&DoctorSettings::resolve(&args, environment)?, at_once);
        }
        Command::Version => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes data to standard output.
fn print(text: &str) -> Result<(), Failure> {
    print_with(|out| out.write_all(text.as_bytes()))
}

/// Writes JSON to standard output, over several lines.
fn print_json(document: &impl serde::Serialize) -> Result<(), Failure> {
    print_with(|out| {
        serde_json::to_writer_pretty(SafeJson(&mut *out), document)?;
        out.write_all(b"\n")
    })
}

/// Prints what `write` writes.
fn print_with(write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<(), Failure> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    write(&mut out)
        .and_then(|()| out.flush())
        .map_err(|error| Failure::new(format!("cannot write to standard output: {error}")))
}
