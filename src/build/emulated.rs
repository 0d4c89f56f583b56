//! By what the programs of a step run.

use std::sync::atomic::Ordering;

use super::error::BuildErrorKind;
use super::execute::{Executor, locked};
use super::progress::Event;
use super::step::{RunStep, StagePlan, Step};
use crate::image::platform::Platform;
use crate::sandbox::emulation::{self, Choice, Emulation, Found, OwnHandlers};
use crate::sandbox::{Presentation, Runner, SandboxError, Security};

/// What a step's process needs for its programs to run.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) presentation: Presentation,
    pub(super) runner: Runner,
    /// Whether they may run by the machine's handler as well.
    can_do_without: bool,
}

impl Executor<'_> {
    /// The CPU that a RUN finds, where that is not the machine's or the emulator's own choice.
    pub(super) fn cpu_of(&self, step: &Step, stage: &StagePlan) -> Option<&'static str> {
        let Step::Run(run) = step else { return None };
        // Most builds are for what the machine is: they need not look at it.
        if !has_model(stage) {
            return None;
        }
        match self.choose(run, stage) {
            Ok((Choice::Own { found, .. }, _)) => found.cpu,
            _ => None,
        }
    }

    /// How programs of `stage` run here; tells what has to be told of it.
    pub(super) fn machine(&self, step: &RunStep, stage: &StagePlan) -> Result<Machine, BuildErrorKind> {
        let platform = &stage.wanted;
        let (choice, unusable) = self.choose(step, stage).map_err(|missing| BuildErrorKind::Emulation {
            reason: missing.to_string(),
            fix: missing.hint(),
        })?;
        if let Some(unusable) = unusable {
            self.warn_once(&[unusable]);
        }
        match choice {
            Choice::Own { found: Found { path, cpu, emulator, passed_over }, instead } => {
                for note in passed_over.iter().map(ToString::to_string).filter(|note| self.is_new(note)) {
                    self.services.progress.tell(&Event::Note(&note));
                }
                let cpu = cpu.map(|cpu| format!(" as {cpu}")).unwrap_or_default();
                self.detail(&format!("programs for {platform} run under {}{cpu}", path.display()));
                Ok(Machine {
                    presentation: Presentation::Native,
                    runner: Runner::Own(emulator),
                    can_do_without: !matches!(instead, Emulation::Missing(_)),
                })
            }
            Choice::Machine(emulation) => Ok(self.by_machine(emulation, step, platform)),
        }
    }

    /// Whether a step of `stage` may have run under another CPU than its key says: the machine's handler was taken when that
    /// was known already. Nothing of it is remembered then, here or on it.
    pub(super) fn may_be_under_other_cpu(&self, stage: &StagePlan) -> bool {
        self.handlerless.load(Ordering::Relaxed) && has_model(stage)
    }

    /// Whether the process may run without the handler that could not be registered; then no other step tries it.
    pub(super) fn does_without(&self, machine: &Machine, error: &SandboxError) -> bool {
        let does = machine.can_do_without && error.is_of_own_handler();
        if does && !self.handlerless.swap(true, Ordering::Relaxed) {
            let note = format!(
                "{}; the machine's handler is taken, and what is done with it in the place of a certain CPU is not remembered",
                crate::text::chained(error)
            );
            self.services.progress.tell(&Event::Note(&note));
        }
        does
    }

    fn by_machine(&self, emulation: Emulation, step: &RunStep, platform: &Platform) -> Machine {
        let presentation = match &emulation {
            Emulation::Native(presentation) => *presentation,
            _ => Presentation::Native,
        };
        if let Emulation::Handler(handler) = &emulation {
            self.detail(&format!("programs for {platform} run under {}", handler.interpreter));
            self.warn_once(&handler.warnings());
        }
        let variant = platform.variant.as_deref();
        let is_emulated = !matches!(emulation, Emulation::Native(_));
        // What qemu plays unasked is no less than this one.
        let is_told = variant.is_some_and(|variant| variant != "v7");
        if is_emulated && is_told && emulation::cpu_of_variant(&platform.architecture, variant).is_some() {
            let why = match self.own_handlers(step) {
                OwnHandlers::Possible => "builder finds no static qemu of its own (--emulator-dir)",
                OwnHandlers::OldKernel => "more takes Linux 6.7",
                OwnHandlers::NoNamespace => "more takes a step in namespaces (--isolation)",
                OwnHandlers::AllRights => "with --security=insecure as root of the machine there is no more",
            };
            let note = format!(
                "note: a RUN for {platform} finds the CPU that the machine's handler plays, which may be a newer one: {why}"
            );
            if self.is_new(&note) {
                self.services.progress.tell(&Event::Note(&note));
            }
        }
        let runner = if is_emulated { Runner::Handler } else { Runner::Processor };
        Machine { presentation, runner, can_do_without: false }
    }

    fn choose(
        &self,
        step: &RunStep,
        stage: &StagePlan,
    ) -> Result<(Choice, Option<String>), emulation::MissingEmulation> {
        let look = || {
            let host = emulation::Host::current();
            let is_level = |stage: &StagePlan| stage.platform.variant.is_some();
            let host = if self.plan.stages.iter().any(is_level) { host.with_features() } else { host };
            (host, emulation::Registrations::current())
        };
        let (host, registrations) = self.host.get_or_init(look);
        // The processor itself has to run what is in the base; an emulator plays what it is all built for.
        let is_own = stage.platform.architecture == host.architecture;
        let platform = if is_own { &stage.platform } else { &stage.wanted };
        let platform = (platform.architecture.as_str(), platform.variant.as_deref());
        emulation::choose(platform, host, registrations, self.services.emulators, self.own_handlers(step))
    }

    /// Whether a step can have a handler of its own.
    fn own_handlers(&self, step: &RunStep) -> OwnHandlers {
        let Some(sandbox) = self.services.sandbox else { return OwnHandlers::NoNamespace };
        match sandbox.own_handlers() {
            // It did not work.
            OwnHandlers::Possible if self.handlerless.load(Ordering::Relaxed) => OwnHandlers::NoNamespace,
            OwnHandlers::Possible if step.security == Security::Unconfined && emulation::is_of_machine() => {
                OwnHandlers::AllRights
            }
            other => other,
        }
    }

    fn detail(&self, text: &str) {
        self.services.progress.tell(&Event::Detail(text));
    }

    fn warn_once(&self, warnings: &[String]) {
        for detail in warnings.iter().filter(|detail| self.is_new(detail)) {
            self.services.progress.tell(&Event::Warning { rule: "Emulation", span: None, detail });
        }
    }

    /// Whether `text` has not been told yet: once for a build is enough.
    fn is_new(&self, text: &str) -> bool {
        locked(&self.told_of_emulation).insert(text.to_owned())
    }
}

/// Whether a stage is for a variant that stands for a model of a CPU.
fn has_model(stage: &StagePlan) -> bool {
    let has_model = |platform: &Platform| {
        emulation::cpu_of_variant(&platform.architecture, platform.variant.as_deref()).is_some()
    };
    has_model(&stage.platform) || has_model(&stage.wanted)
}
