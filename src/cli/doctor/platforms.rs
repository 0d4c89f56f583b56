//! How programs for other platforms would run here.

use super::report::{self, How};
use crate::image::platform::Platform;
use crate::sandbox::Presentation;
use crate::sandbox::emulation::{
    Emulation, Host, MissingEmulation, Registrations, Trial, availability, try_out,
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

/// Looks for the usual platforms and those `asked` for.
pub(super) fn look(host: &Platform, asked: &[Platform]) -> Vec<report::Platform> {
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
    let (host, registrations) = (Host::current(), Registrations::current());
    let look = |platform: &Platform| report::Platform {
        asked: asked.contains(platform),
        ..look_at(platform, &host, &registrations)
    };
    platforms.iter().map(look).collect()
}

fn look_at(platform: &Platform, host: &Host, registrations: &Registrations) -> report::Platform {
    let mut found = report::Platform {
        platform: platform.to_string(),
        asked: false,
        how: How::Missing,
        handler: None,
        warnings: Vec::new(),
        cause: None,
        advice: None,
    };
    if platform.os != "linux" {
        found.cause = Some(format!("programs for `{}` do not run on Linux", platform.os));
        return found;
    }
    match availability(&platform.architecture, platform.variant.as_deref(), host, registrations) {
        Emulation::Native(Presentation::Native) => found.how = How::Native,
        Emulation::Native(Presentation::ThirtyTwoBit) => found.how = How::Predecessor,
        Emulation::Handler(handler) => {
            found.how = How::Handler;
            found.warnings = handler.warnings();
            found.handler = Some(report::Handler {
                name: handler.name,
                interpreter: handler.interpreter,
                flags: handler.flags,
            });
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
                    Trial::Started | Trial::Refused => "no handler for them is registered with binfmt_misc",
                };
                found.cause = Some(cause.to_owned());
                found.advice = Some(MissingEmulation::advice(&platform.architecture));
            }
            Err(error) => {
                found.how = How::Unknown;
                found.cause = Some(format!("it cannot be tried here: {error}"));
            }
        },
    }
    found
}
