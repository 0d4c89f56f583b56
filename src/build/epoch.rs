//! `SOURCE_DATE_EPOCH`: which time a build takes for the present, and where that is found.

use super::clock::Clock;
use super::error::{BuildError, BuildErrorKind};
use super::named_contexts::ContextValue;
use super::plan::Planner;
use super::remote::{Remote, RemoteStep};
use super::step::{CopyStep, Plan, StageBase, Step};
use crate::dockerfile::{Instruction, Located, Span};

/// The variable.
pub(super) const NAME: &str = "SOURCE_DATE_EPOCH";

/// Something elsewhere whose time is the epoch: when the commit was made, the file changed, or the newest file of the
/// archive. Planning does not ask for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EpochSource {
    /// The named context with this number among all.
    Files(usize),
    /// What the only ADD of a stage adds.
    Remote(Remote),
}

/// What the value of the variable means.
pub(super) enum Epoch {
    /// A time, or none.
    Clock(Clock),
    /// The time of something else.
    Source(EpochSource),
    /// The time of what the stage with this number adds.
    Stage(usize),
}

impl Planner<'_> {
    /// What the variable means: as a build argument, or as the default of a global ARG. As in BuildKit, `context` stands for
    /// the build context, and then names are tried, those of contexts before those of stages.
    pub(super) fn epoch(&self) -> Result<Epoch, BuildError> {
        let Some(text) = self.epoch_text() else { return Ok(Epoch::Clock(self.request.clock)) };
        if let Ok(seconds) = text.parse() {
            return Clock::fixed(seconds).map(Epoch::Clock).ok_or_else(|| self.no_epoch(text));
        }
        if text == "context" {
            // It is a directory of this machine, and has no time of its own.
            return Ok(Epoch::Clock(self.request.clock));
        }
        let contexts = &self.request.contexts;
        let stage = match contexts.find(text, &self.request.platform.normalised) {
            Some(number) => match &contexts.all()[number].value {
                ContextValue::Files => return Ok(Epoch::Source(EpochSource::Files(number))),
                ContextValue::Stage(stage) => stage,
                ContextValue::Scratch | ContextValue::Image(_) | ContextValue::Layout(_) => {
                    return Err(self.no_epoch(text));
                }
            },
            None => text,
        };
        let stage = self.file.stage_named(&stage.to_lowercase(), self.file.stages.len());
        stage.map(Epoch::Stage).ok_or_else(|| self.no_epoch(text))
    }

    fn epoch_text(&self) -> Option<&str> {
        let given = self.globals.build_arg(NAME).or_else(|| self.globals.lookup(NAME));
        given.filter(|text| !text.is_empty())
    }

    fn no_epoch(&self, text: &str) -> BuildError {
        BuildError::at(self.epoch_place(), BuildErrorKind::Epoch(text.to_owned()))
    }

    /// The lines of the ARG that sets it, if that is what does.
    fn epoch_place(&self) -> Option<Span> {
        let declares = |argument: &&Located<Instruction>| match &argument.value {
            Instruction::Arg(names) => names.iter().any(|(declared, _)| *declared == NAME),
            _ => false,
        };
        let given = self.globals.build_arg(NAME);
        let place = self.file.global_args.iter().find(declares).filter(|_| given.is_none());
        place.map(|argument| argument.span)
    }

    /// Whether the stage with number `index` is written as one that only adds something. Nothing of it is interpreted, and no
    /// base asked for, before that.
    pub(super) fn check_epoch_stage(&self, index: usize) -> Result<(), BuildError> {
        let stage = &self.file.stages[index];
        let is_add = |located: &&Located<Instruction>| matches!(&located.value, Instruction::Add(_));
        let others = stage.instructions.iter().filter(|located| !is_add(located));
        let only_args = others.into_iter().all(|located| matches!(located.value, Instruction::Arg(_)));
        let adds = stage.instructions.iter().filter(is_add).count();
        if self.froms[index].name == "scratch" && only_args && adds == 1 {
            Ok(())
        } else {
            Err(self.not_source_only(index))
        }
    }

    fn not_source_only(&self, index: usize) -> BuildError {
        let stage = &self.file.stages[index];
        let name = stage.name.clone().unwrap_or_else(|| index.to_string());
        BuildError::at(Some(stage.from.span), BuildErrorKind::EpochStage(name))
    }

    /// What the stage with number `index` adds; `plan` is that stage alone.
    pub(super) fn epoch_source(&self, index: usize, plan: &Plan) -> Result<EpochSource, BuildError> {
        let copies =
            plan.stages.last().filter(|stage| matches!(stage.base, StageBase::Scratch)).map(|stage| {
                stage.steps.iter().filter_map(|step| match &step.step {
                    Step::Copy(copy) => Some(copy),
                    _ => None,
                })
            });
        let copies: Vec<&CopyStep> = copies.into_iter().flatten().map(|copy| &**copy).collect();
        match copies[..] {
            [CopyStep { remotes, sources, inline, .. }] if sources.is_empty() && inline.is_empty() => {
                match &remotes[..] {
                    [RemoteStep { remote, .. }] => Ok(EpochSource::Remote(remote.clone())),
                    _ => Err(self.not_source_only(index)),
                }
            }
            _ => Err(self.not_source_only(index)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::services::{Base, ImageSource, ServiceError, Wanted};
    use crate::build::{PlanRequest, plan};
    use crate::context::IgnoreRules;
    use crate::image::manifest::Image;
    use crate::image::platform::{Platform, Requested};
    use crate::image::reference::Reference;
    use crate::sandbox::Cancel;
    use crate::store::unpacked::Chain;

    struct NoImages;

    impl ImageSource for NoImages {
        fn resolve(&self, _: &Reference, _: &Wanted) -> Result<Base, ServiceError> {
            Err("somebody asked for an image".into())
        }

        fn unpack(&self, _: &Image, _: &Cancel) -> Result<Chain, ServiceError> {
            Err("nothing is unpacked while planning".into())
        }
    }

    const STAGES: &str = "FROM scratch AS src\nARG V=1\nADD https://h.example/f-${V} /\n\
                          FROM scratch AS git\nADD https://h.example/x.git#v1 /\n\
                          FROM scratch AS two\nADD https://h.example/f /a\nADD https://h.example/f /b\n\
                          FROM scratch AS local\nADD f /\n\
                          FROM scratch AS several\nADD https://h.example/f https://h.example/g /\n\
                          FROM scratch AS config\nADD https://h.example/f /\nENV a=b\n\
                          FROM busybox AS based\nADD https://h.example/f /\n\
                          FROM scratch\nCOPY f /\n";

    fn planned(dockerfile: &str, epoch: Option<&str>) -> Result<Plan, String> {
        let host = Platform::new("linux", "amd64", None);
        let platform = Requested { asked: host.clone(), normalised: host.clone() };
        let mut request = PlanRequest::usual(platform, host.clone(), 100);
        let contexts = [
            ("files", ContextValue::Files),
            ("image", ContextValue::Image("busybox".parse().unwrap())),
            ("other", ContextValue::Stage("src".to_owned())),
            ("two", ContextValue::Files),
        ];
        for (name, value) in contexts {
            request.contexts.add(name, value, &host).unwrap();
        }
        request.build_args.extend(epoch.map(|epoch| (NAME.to_owned(), epoch.to_owned())));
        let file = crate::dockerfile::parse(dockerfile.as_bytes()).unwrap();
        plan(&file, &request, &IgnoreRules::default(), &NoImages).map_err(|error| error.to_string())
    }

    #[test]
    fn a_number_is_a_time_and_anything_else_a_name() {
        for (text, clock) in [
            ("100", Clock::Fixed(100)),
            ("-5", Clock::Fixed(-5)),
            ("4102444800", Clock::Fixed(4_102_444_800)),
            ("", Clock::Machine),
            ("context", Clock::Machine),
        ] {
            let plan = planned(STAGES, Some(text)).unwrap();
            assert_eq!((plan.clock, plan.epoch), (clock, None), "{text}");
        }
        for text in ["abc", "1.5", " 1", "1e3", "9223372036854775807", "99999999999999999999", "image"] {
            let error = planned(STAGES, Some(text)).unwrap_err();
            assert!(error.contains(&format!("invalid SOURCE_DATE_EPOCH: {text}")), "{error}");
        }
    }

    #[test]
    fn the_default_of_a_global_arg_counts_if_nothing_is_given() {
        let file = "ARG T=7\nARG SOURCE_DATE_EPOCH=1$T\nFROM scratch\nARG SOURCE_DATE_EPOCH=5\n";
        assert_eq!(planned(file, None).unwrap().clock, Clock::Fixed(17));
        assert_eq!(planned(file, Some("3")).unwrap().clock, Clock::Fixed(3));
        let error = planned("ARG SOURCE_DATE_EPOCH=x\nFROM scratch\n", None).unwrap_err();
        assert!(error.contains("invalid SOURCE_DATE_EPOCH: x"), "{error}");
    }

    #[test]
    fn the_only_thing_that_a_stage_adds_has_a_time() {
        let source =
            |text: &str| planned(STAGES, Some(text)).map(|plan| (plan.epoch.unwrap(), plan.stages.len()));
        let shown = |text: &str| match source(text).unwrap() {
            (EpochSource::Remote(remote), 1) => remote.shown(),
            other => panic!("{other:?}"),
        };
        assert_eq!(shown("src"), "https://h.example/f-1");
        assert_eq!(shown("SRC"), "https://h.example/f-1");
        assert_eq!(shown("other"), "https://h.example/f-1");
        assert_eq!(shown("git"), "https://h.example/x.git");
        // A context comes before a stage of its name.
        assert_eq!(source("two").unwrap().0, EpochSource::Files(3));
        assert_eq!(source("files").unwrap().0, EpochSource::Files(0));
        for name in ["local", "several", "config", "based"] {
            let error = source(name).unwrap_err();
            assert!(
                error.contains("SOURCE_DATE_EPOCH stage does not meet source-only requirements"),
                "{error}"
            );
        }
        let two =
            "FROM scratch AS double\nADD https://h.example/f /a\nADD https://h.example/f /b\nFROM scratch\n";
        assert!(planned(two, Some("double")).unwrap_err().contains("source-only requirements"));
    }
}
