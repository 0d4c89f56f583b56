//! What may have been behind the failure of a RUN's command: something that there is not where it ran.

use crate::build::clues::Clues;
use crate::image::platform::Platform;
use crate::sandbox::Exit;
use crate::sandbox::own::Own;
use crate::sandbox::probe::{Place, Way};

/// Programs that do not work without /proc, and may not say so.
const NEED_PROC: [&str; 13] = [
    "node",
    "npm",
    "npx",
    "yarn",
    "java",
    "javac",
    "mvn",
    "gradle",
    "rustc",
    "cargo",
    "ps",
    "pgrep",
    "start-stop-daemon",
];

/// Programs that become another user.
const NEED_OTHERS: [&str; 6] = ["su", "sudo", "gosu", "su-exec", "runuser", "setpriv"];

/// A command that failed.
#[derive(Debug, Clone, Copy)]
pub(super) struct FailedStep<'a> {
    /// With its shell.
    pub(super) command: &'a str,
    /// What it was built for.
    pub(super) platform: &'a Platform,
    pub(super) exit: Exit,
    /// What its output spoke of.
    pub(super) clues: Clues,
}

impl FailedStep<'_> {
    /// What to say of it, if it was kept apart in this `way` by a process with what `own` has, at `place`.
    pub(super) fn hint(self, own: &Own, way: Option<Way>, place: Place) -> Option<String> {
        if self.has_met_unknown_instruction() {
            let place = match self.platform.variant {
                Some(_) => format!("{}", self.platform),
                None => format!("this machine's, which builds for {}", self.platform),
            };
            return Some(format!(
                "illegal instruction: the program needs a newer CPU than {place}; it, or the base image that it is from, was made for another platform"
            ));
        }
        if own.ids.is_single() && (self.clues.others || self.runs(&NEED_OTHERS)) {
            let remedy = match &own.shortage {
                Some(shortage) => shortage.remedy(place),
                None => "a user with ids in /etc/subuid and /etc/subgid has more".to_owned(),
            };
            return Some(format!(
                "the step had one user and one group id, so changing to others fails: {remedy}"
            ));
        }
        let without_proc = way.is_some_and(|way| way.proc().is_none());
        (without_proc && (self.clues.proc || self.runs(&NEED_PROC))).then(|| {
            "the step had no /proc, without which node, java, rustc, ps, /dev/stdin, /dev/stdout, /dev/stderr and bash's `<( )`, among others, do not work; `builder doctor` says what would give it one"
                .to_owned()
        })
    }

    /// Whether it, or what it started, ended by an instruction that the CPU does not know.
    fn has_met_unknown_instruction(self) -> bool {
        const SIGNAL: u8 = 4;
        let by_signal = self.exit == Exit::Signal(SIGNAL.into()) || self.exit == Exit::Code(128 + SIGNAL);
        by_signal || self.clues.instruction
    }

    /// Whether it may have been one of `programs` that failed, as far as the text tells; one that was not found was not.
    fn runs(self, programs: &[&str]) -> bool {
        let found = !matches!(self.exit, Exit::Code(126 | 127));
        let command = self.command.strip_prefix("/bin/sh -c ").unwrap_or(self.command);
        found
            && command.split([';', '&', '|', '(', '\n']).any(|command| {
                let program = command.split_whitespace().find(|word| !word.contains('='));
                program.and_then(|path| path.rsplit('/').next()).is_some_and(|name| programs.contains(&name))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rootfs::IdMap;
    use crate::sandbox::ProcView;
    use crate::sandbox::own::Identity;

    const NOTHING: Clues = Clues { proc: false, others: false, instruction: false };
    const SPOKEN: Clues = Clues { proc: true, others: true, instruction: false };

    #[test]
    fn a_step_that_failed_may_have_wanted_what_there_is_not() {
        let Ok(ids) = IdMap::of_this_process() else { return eprintln!("skipped: no /proc") };
        if ids.is_single() {
            return eprintln!("skipped: there is one user");
        }
        let own = Own { identity: Identity::Initial, ids, shortage: None, detail: String::new() };
        let hint = |command, code, clues, way| {
            let platform = &Platform::new("linux", "arm", Some("v5"));
            FailedStep { command, platform, exit: Exit::Code(code), clues }.hint(&own, way, Place::Pod)
        };
        let namespaces = [ProcView::Own, ProcView::Shared].map(Way::Namespaces);
        for way in namespaces.into_iter().chain([Way::Chroot, Way::InPlace]) {
            let hint = hint("/bin/sh -c cat </proc/stat", 1, SPOKEN, Some(way));
            assert_eq!(hint.is_some(), way == Way::Chroot, "{way:?}");
            assert!(hint.is_none_or(|hint| hint.contains("/dev/stderr")), "{way:?}");
        }
        assert_eq!(hint("node", 1, SPOKEN, None), None);
        for (command, code, expected) in [
            ("/bin/sh -c exit 42", 42, false),
            ("/bin/sh -c ./program", 132, true),
            ("/bin/sh -c cat /missing", 1, false),
            ("/bin/sh -c apt-get install node", 100, false),
            ("/bin/sh -c node main.js", 1, true),
            ("/bin/sh -c node main.js", 127, false),
            ("/usr/bin/node main.js", 1, true),
            ("/bin/sh -c cd x && A=b npm ci", 1, true),
        ] {
            let found = hint(command, code, NOTHING, Some(Way::Chroot));
            assert_eq!(found.is_some(), expected, "{command} {code}");
        }
    }
}
