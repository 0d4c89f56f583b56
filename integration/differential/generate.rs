//! Programs from seeds.

use super::commands::Names;
use super::program::{File, Kind, Program, Stage, Step, Style};
use super::random::Random;
use super::{commands, context, copies};

/// Which instructions and flags there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Language {
    /// All of BuildKit's.
    Whole,
    /// What older builders read as well: no here-documents, no `--link`, `--parents`, `--exclude`, nor devices that RUN makes.
    Older,
}

/// Makes one program.
pub(crate) struct Generator {
    pub(super) random: Random,
    pub(super) language: Language,
    seed: u64,
    pub(super) context: Vec<File>,
    /// Names of the stages so far, or their numbers.
    pub(super) earlier: Vec<String>,
    /// Whether files have several names.
    names: commands::Names,
    /// Paths that RUN has named.
    paths: commands::Paths,
    /// Whether the current stage has a shell.
    shell: bool,
}

const VARIABLES: &[&str] = &["A", "B", "C"];

/// The program of a seed.
pub(crate) fn program(seed: u64, language: Language) -> Program {
    let mut random = Random::of(seed);
    let names = if random.percent(25) { Names::Several } else { Names::One };
    let context = context::files(&mut random, names);
    let ignore = context::ignore(&mut random);
    let (earlier, paths) = (Vec::new(), commands::Paths::default());
    let mut generator = Generator { random, language, seed, context, earlier, names, paths, shell: true };
    let (head, flags) = generator.arguments();
    let stages = generator.stages();
    Program { seed, flags, ignore, head, stages, context: generator.context }
}

impl Generator {
    fn arguments(&mut self) -> (Vec<String>, Vec<String>) {
        let mut head = Vec::new();
        let mut flags = Vec::new();
        for name in VARIABLES {
            if self.random.percent(15) {
                head.push(format!("ARG {name}={}", self.random.pick(&["global", "", "/g"])));
            }
            if self.random.percent(15) {
                flags.push(format!(
                    "--build-arg={name}={}",
                    self.random.pick(&["given", "/given", "g g", ""])
                ));
            }
        }
        (head, flags)
    }

    fn stages(&mut self) -> Vec<Stage> {
        let count = self.random.pick(&[&1, &1, &2, &2, &3]);
        let mut stages: Vec<Stage> = Vec::new();
        for number in 0..*count {
            let last = number + 1 == *count;
            let parent = (number > 0 && self.random.percent(35)).then(|| self.random.below(number));
            let scratch = !last && self.random.percent(15) || self.random.percent(5);
            let from = match parent {
                Some(parent) if stages[parent].from.contains(" AS ") => format!("s{parent}"),
                _ if scratch => "scratch".to_owned(),
                _ => "BASE".to_owned(),
            };
            self.shell = match parent {
                Some(parent) => !is_on_scratch(&stages, parent),
                None => !scratch,
            } && from != "scratch";
            // A stage that another one is made from by name has one.
            let name = if last { "" } else { &format!(" AS s{number}") };
            let (least, most) = if last { (5, 10) } else { (2, 5) };
            let mut steps: Vec<Step> = (0..self.random.between(least, most)).map(|_| self.step()).collect();
            if !last && self.random.percent(25) {
                let trigger = self.trigger();
                steps.push(trigger);
            }
            stages.push(Stage { from: format!("FROM {from}{name}"), steps });
            self.earlier.push(if self.random.percent(70) {
                format!("s{number}")
            } else {
                number.to_string()
            });
        }
        stages
    }

    fn step(&mut self) -> Step {
        match self.random.below(20) {
            0..=6 if self.shell => self.run(),
            7..=12 => Step::Whole(self.copy("COPY")),
            13 | 14 => Step::Whole(self.copy("ADD")),
            15 | 16 => Step::Whole(self.workdir()),
            _ => Step::Whole(self.setting()),
        }
    }

    fn trigger(&mut self) -> Step {
        let step = self.step();
        match step {
            Step::Whole(text) => Step::Whole(format!("ONBUILD {text}")),
            Step::Run { prefix, commands, .. } => {
                Step::Run { prefix: format!("ONBUILD {prefix}"), style: Style::Line, commands }
            }
        }
    }

    fn run(&mut self) -> Step {
        const STYLES: &[Style] =
            &[Style::Line, Style::Line, Style::Lines, Style::List, Style::HereDocument, Style::Script];
        let styles = if self.language == Language::Older { 4 } else { STYLES.len() };
        let style = STYLES[self.random.below(styles)];
        let mut commands = commands::commands(&mut self.random, &mut self.paths, self.names);
        if self.language == Language::Older {
            commands.retain(|command| !command.starts_with("mknod"));
        }
        let mut flags = String::new();
        if self.random.percent(15) {
            let (mount, inside) = self.mount();
            flags = format!("--mount={mount} ");
            commands.insert(self.random.below(commands.len() + 1), inside);
        }
        if self.random.percent(10) {
            let name = self.random.pick(VARIABLES);
            commands.push(format!("echo \"${name}\" \"$PATH\" \"$HOME\" \"$(pwd)\" \"$(id)\" >/environment"));
        }
        Step::Run { prefix: format!("RUN {flags}"), style, commands }
    }

    /// A mount, and a command that uses it.
    fn mount(&mut self) -> (String, String) {
        // Others leave directories behind where something was mounted: what commands use must not be among them.
        let known = if self.language == Language::Older { 2 } else { 6 };
        let at = self.random.pick(&["/m", "/m/n/o", "/tmp/m/n", "m", "/a", "/l/m"][..known]);
        let copies = format!("cp -a {at} /out 2>/dev/null");
        match self.random.below(4) {
            0 => (format!("type=tmpfs,target={at}"), format!("echo x >{at}/x; ls -a {at} >/out 2>&1")),
            1 => {
                let id = format!("seed-{}", self.seed);
                (
                    format!("type=cache,id={id},target={at}"),
                    format!("rm -rf {at}/*; echo x >{at}/x; {copies}"),
                )
            }
            2 if !self.earlier.is_empty() && self.language == Language::Whole => {
                // A number is no stage here.
                let number = self.random.below(self.earlier.len());
                (format!("from=s{number},target={at},rw"), format!("echo x >{at}/x; cp -a {at}/x /out"))
            }
            _ => (format!("type=bind,target={at}"), copies),
        }
    }

    fn workdir(&mut self) -> String {
        let places = [
            "/w",
            "/w/x",
            "x",
            "x/y",
            "../z",
            "/a/b",
            "/l/w",
            "/",
            "/w/",
            "/a//b/../c",
            "$A",
            "${B:-/w}/v",
            "./f",
        ];
        format!("WORKDIR {}", self.random.pick(&places))
    }

    /// What changes the config, or the values of variables.
    fn setting(&mut self) -> String {
        let number = self.random.below(100);
        let name = self.random.pick(VARIABLES);
        let value = self.value();
        match self.random.below(24) {
            0..=3 => format!("ENV {name}={value}"),
            4 => format!("ENV {name}={value} D=\"{number} $A\" E='$A'"),
            5 => format!("ENV {name} {number} and more"),
            6 | 7 => format!("ARG {name}={value}"),
            8 => format!("ARG {name}"),
            9 => format!("LABEL l{}={value}", self.random.below(3)),
            10 => format!("LABEL \"a b\"=\"{number}\" c=$B"),
            11 | 12 => format!(
                "USER {}",
                self.random.pick(&["user", "1000", "5:6", "root", "user:supp", "0", "user:ugrp", "$C"])
            ),
            13 => {
                format!("EXPOSE {}", self.random.pick(&["80", "443/udp 81", "8000-8003", "9/tcp", "5/sctp"]))
            }
            14 => format!("VOLUME {}", self.random.pick(&["/v", "[\"/v v\", \"/a\"]", "/a /b", "$A/v"])),
            15 => format!("STOPSIGNAL {}", self.random.pick(&["SIGTERM", "9", "INT"])),
            16 | 17 => format!("CMD {}", self.words()),
            18 | 19 => format!("ENTRYPOINT {}", self.words()),
            20 => "HEALTHCHECK --interval=5m --timeout=3s --retries=4 CMD test -e /a".to_owned(),
            21 => self.random.pick(&["HEALTHCHECK NONE", "HEALTHCHECK CMD [\"true\"]"]).to_owned(),
            22 if self.shell => {
                let shells = [
                    "[\"/bin/ash\", \"-c\"]",
                    "[\"/bin/sh\", \"-fc\"]",
                    "[\"/bin/busybox\", \"sh\", \"-c\"]",
                ];
                format!("SHELL {}", self.random.pick(&shells))
            }
            _ => format!("MAINTAINER number {number}"),
        }
    }

    fn value(&mut self) -> String {
        let name = self.random.pick(VARIABLES);
        let number = self.random.below(100);
        match self.random.below(if self.language == Language::Older { 8 } else { 14 }) {
            0 | 1 => number.to_string(),
            2 => format!("${name}"),
            3 => format!("${{{name}:-{number}}}"),
            4 => format!("${{{name}:+{number}}}"),
            5 => format!("\"{number} ${name}\""),
            6 => format!("'${name}'"),
            7 => "/w".to_owned(),
            8 => format!("${{{name}-none}}"),
            9 => format!("${{{name}+some}}"),
            10 => format!("${{{name}#*/}}"),
            11 => format!("${{{name}%%l*}}"),
            12 => format!("${{{name}//g/G}}"),
            _ => format!("a\\ {number}\\$"),
        }
    }

    fn words(&mut self) -> String {
        let number = self.random.below(100);
        match self.random.below(4) {
            0 => format!("[\"/bin/echo\", \"$A\", \"{number}\"]"),
            1 => "[]".to_owned(),
            2 => format!("[\"x\", {number}"),
            _ => format!("echo $A {number}"),
        }
    }

    /// Paths of the context: directories, or everything.
    pub(super) fn paths(&self, which: fn(&Kind) -> bool) -> Vec<String> {
        let files = self.context.iter().filter(|file| which(&file.kind));
        files.map(|file| String::from_utf8_lossy(&file.path).into_owned()).collect()
    }

    /// A COPY or ADD.
    fn copy(&mut self, instruction: &str) -> String {
        copies::copy(self, instruction)
    }
}

fn is_on_scratch(stages: &[Stage], of: usize) -> bool {
    let from = stages[of].from.split(' ').nth(1).unwrap_or_default();
    match from.strip_prefix('s').and_then(|number| number.parse().ok()) {
        Some(parent) => is_on_scratch(stages, parent),
        None => from == "scratch",
    }
}
