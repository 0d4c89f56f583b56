//! How programs for other platforms would run here.

use super::report::{self, How};
use crate::image::platform::Platform;
use crate::sandbox::Presentation;
use crate::sandbox::emulation::{
    Choice, Emulation, Emulators, Handler, Host, MissingEmulation, OwnHandlers, Places, Registrations, Trial,
    choose, try_as_own_handler, try_out,
};

/// What images are usually made for.
const USUAL: [(&str, Option<&str>); 9] = [
    ("amd64", None),
    ("386", None),
    ("arm64", None),
    ("arm", Some("v7")),
    ("arm", Some("v6")),
    ("arm", Some("v5")),
    ("ppc64le", None),
    ("riscv64", None),
    ("s390x", None),
];

/// Looks for the usual platforms and those `asked` for, where `own` says whether a step can have handlers of its own, with
/// the emulators in these places.
pub(super) fn look(
    host: &Platform,
    asked: &[Platform],
    own: OwnHandlers,
    emulators: &Places,
) -> Vec<report::Platform> {
    let mut platforms: Vec<Platform> = Vec::new();
    let usual = USUAL.into_iter().map(|(architecture, variant)| Platform {
        os: "linux".to_owned(),
        architecture: architecture.to_owned(),
        variant: variant.map(str::to_owned),
        ..host.clone()
    });
    for platform in usual.chain(asked.iter().cloned()) {
        if !platforms.contains(&platform) {
            platforms.push(platform);
        }
    }
    let machine = Machine {
        host: Host::current().with_features(),
        registrations: Registrations::current(),
        emulators: Emulators::new(emulators.clone()),
        own,
    };
    let look = |platform: &Platform| report::Platform {
        asked: asked.contains(platform),
        ..machine.look_at(platform)
    };
    platforms.iter().map(look).collect()
}

/// What runs programs here.
struct Machine {
    host: Host,
    registrations: Registrations,
    emulators: Emulators,
    /// Whether a step has handlers of its own.
    own: OwnHandlers,
}

impl Machine {
    fn look_at(&self, platform: &Platform) -> report::Platform {
        let mut found = report::Platform {
            platform: platform.to_string(),
            asked: false,
            how: How::Missing,
            handler: None,
            emulator: None,
            warnings: Vec::new(),
            cause: None,
            advice: None,
        };
        if platform.os != "linux" {
            found.cause = Some(format!("programs for `{}` do not run on Linux", platform.os));
            return found;
        }
        let wanted = (platform.architecture.as_str(), platform.variant.as_deref());
        match choose(wanted, &self.host, &self.registrations, &self.emulators, self.own) {
            Ok((Choice::Machine(emulation), unusable)) => {
                self.by_machine(&mut found, emulation, platform);
                found.warnings.extend(unusable);
            }
            Ok((Choice::Own { found: emulator, instead }, _)) => {
                let passed_over: Vec<String> = emulator.passed_over.iter().map(ToString::to_string).collect();
                match try_as_own_handler(&emulator.emulator) {
                    Ok(()) => {
                        found.how = How::Own;
                        if let Emulation::Handler(handler) = instead {
                            found.handler = Some(handler.into());
                        }
                        let path = emulator.path.display().to_string();
                        found.emulator = Some(report::Emulator { path, cpu: emulator.cpu });
                    }
                    Err(cause) => {
                        self.by_machine(&mut found, instead, platform);
                        found.warnings.push(format!("`{}` is not taken: {cause}", emulator.path.display()));
                    }
                }
                found.warnings.extend(passed_over);
            }
            Err(missing) => self.by_machine(&mut found, Emulation::Missing(missing), platform),
        }
        found
    }

    /// Without a handler of the step's own.
    fn by_machine(&self, found: &mut report::Platform, emulation: Emulation, platform: &Platform) {
        match emulation {
            Emulation::Native(Presentation::Native) => found.how = How::Native,
            Emulation::Native(Presentation::ThirtyTwoBit) => found.how = How::Predecessor,
            Emulation::Handler(handler) => {
                found.how = How::Handler;
                found.warnings = handler.warnings();
                found.handler = Some(handler.into());
            }
            Emulation::Missing(missing) => {
                found.cause = Some(missing.reason());
                found.advice = Some(missing.hint());
            }
            // The list of handlers cannot be read here.
            Emulation::Unknown => match try_out(&platform.architecture) {
                Ok(Trial::Started) => found.how = How::Handler,
                Ok(trial) => {
                    let cause = match trial {
                        Trial::Unreachable => "the handler for them lacks flag F of binfmt_misc",
                        Trial::Started | Trial::Refused => {
                            "no handler for them is registered with binfmt_misc"
                        }
                    };
                    found.cause = Some(cause.to_owned());
                    found.advice = Some(MissingEmulation::advice(&platform.architecture, self.own));
                }
                Err(error) => {
                    found.how = How::Unknown;
                    found.cause = Some(format!("it cannot be tried here: {error}"));
                }
            },
        }
    }
}

impl From<Handler> for report::Handler {
    fn from(handler: Handler) -> Self {
        Self { name: handler.name, interpreter: handler.interpreter, flags: handler.flags }
    }
}
