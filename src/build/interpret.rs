//! One stage's instructions, turned into steps with everything expanded.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::checks::{Environment, HandedOn, Once, StageChecks};
use super::copy::Parents;
use super::error::{BuildError, BuildErrorKind};
use super::mount::{MountStep, Resolver};
use super::network::Networks;
use super::origin::Reader;
use super::remote::sort_sources;
use super::run_settings::{RunSettings, hostname};
use super::scope::{LARGEST_ENVIRONMENT, RunEnv, Scope, resembling};
use super::step::{
    Archives, CopyFrom, CopyStep, Exclude, Onto, PlannedStep, Row, RunStep, Step, WorkdirStep,
};
use crate::context::IgnoreRules;
use crate::dockerfile::created_by as history;
use crate::dockerfile::{
    Assignments, Command, Elsewhere, Escape, Expanded, Expansion, Finding, Health, HealthCheck, Instruction,
    Mode, Run, RunAction, Source, Span, Text, Transfer, TransferKind, expand, expand_body, expand_words,
    parse_ports, signal_number,
};
use crate::image::config::{Healthcheck, RunConfig};
use crate::rootfs::GuestPath;
use crate::text::without_credentials;

/// What the shell form is run with where SHELL does not say otherwise.
const DEFAULT_SHELL: [&str; 2] = ["/bin/sh", "-c"];

/// The most bytes of all history rows of a build: a RUN's row names every ARG before it, so a file of the largest size could
/// ask for gigabytes. It is as much as a config may have at all to be read again.
const MOST_HISTORY: usize = 8 << 20;

/// The most bytes that all steps may hold of what variables have made of here-documents and mounts, which no row shows: one
/// large variable could stand in each of very many.
const MOST_HELD: usize = 32 << 20;

/// What tells programs where the agent listens.
const AGENT_VARIABLE: &str = "SSH_AUTH_SOCK";

/// How many ports one instruction may expose: all of every protocol.
const MOST_PORTS: usize = 3 * 65536;

/// What a stage hands on to those that stand on it. A copy shares it: very many stages may stand on one.
#[derive(Debug, Clone)]
pub(super) struct Inherited {
    pub(super) scope: Scope,
    /// USER.
    pub(super) user: Arc<str>,
    /// WORKDIR, as the config has it.
    pub(super) working_dir: Arc<str>,
    /// SHELL.
    pub(super) shell: Option<Arc<[String]>>,
}

/// What the image says of itself besides what is [`Inherited`]. Nobody asks for that of a stage that the result does not
/// stand on.
#[derive(Debug, Clone, Default)]
pub(super) struct Described {
    pub(super) config: RunConfig,
    pub(super) author: Option<String>,
}

impl Described {
    /// With what the stage handed on: the config of its image.
    pub(super) fn finish(self, inherited: &Inherited) -> (RunConfig, Option<String>) {
        let Inherited { scope, user, working_dir, shell } = inherited;
        let config = RunConfig {
            env: scope.config_env(),
            user: user.to_string(),
            working_dir: working_dir.to_string(),
            shell: shell.as_ref().map(|shell| shell.to_vec()),
            ..self.config
        };
        (config, self.author)
    }
}

/// How much the steps take that were made so far, those of earlier stages included.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sizes {
    /// Bytes of the history rows.
    history: usize,
    /// Bytes of here-documents and mounts that were made of variables.
    held: usize,
}

/// A stage while its instructions are read.
pub(super) struct Interpreter<'a> {
    escape: Escape,
    inherited: Inherited,
    described: Described,
    /// WORKDIR as a path, when somebody has asked for it.
    workdir: Option<Arc<GuestPath>>,
    /// Whether this stage has a CMD: then ENTRYPOINT leaves it alone.
    has_cmd: bool,
    sizes: Sizes,
    checks: StageChecks<'a>,
    sources: Sources<'a>,
}

/// Where COPY, ADD and mounts find what they name, and what RUN may have.
#[derive(Clone, Copy)]
pub(super) struct Sources<'a> {
    /// What of the build context is hidden.
    pub(super) ignore: &'a IgnoreRules,
    /// Resolves `--from`, and `from` of mounts.
    pub(super) from: &'a dyn Fn(Reader, &Text) -> Result<CopyFrom, BuildErrorKind>,
    /// Which networks RUN may have.
    pub(super) networks: Networks,
    /// What else holds for every RUN.
    pub(super) run: &'a RunSettings,
    /// How many plans share the limits.
    pub(super) plans: NonZeroUsize,
}

/// Of what a limit is a part, for an error.
pub(super) fn one_of(plans: NonZeroUsize) -> String {
    match plans.get() {
        1 => String::new(),
        plans => format!(" (each of {plans} platforms has its part of the limit: build fewer at once)"),
    }
}

impl<'a> Interpreter<'a> {
    /// Begins a stage on one, or on an image, that hands on `inherited` and is `described` so; the steps so far have `sizes`.
    pub(super) fn new(
        escape: Escape,
        inherited: Inherited,
        described: Described,
        sizes: Sizes,
        checks: StageChecks<'a>,
        sources: Sources<'a>,
    ) -> Self {
        Self { escape, inherited, described, workdir: None, has_cmd: false, sizes, checks, sources }
    }

    /// The end of the stage.
    pub(super) fn finish(self) -> (Inherited, Described, Sizes, HandedOn) {
        (self.inherited, self.described, self.sizes, self.checks.handed_on)
    }

    /// Reads one instruction; `shown` is its text for people.
    pub(super) fn instruction(
        &mut self,
        span: Span,
        shown: String,
        instruction: &Instruction,
    ) -> Result<PlannedStep, BuildError> {
        self.checks.begin(span, &shown);
        let (created_by, step) =
            self.interpret(span, instruction).map_err(|kind| BuildError::at(Some(span), kind))?;
        self.sizes.history += created_by.as_ref().map_or(0, String::len);
        self.check_size().map_err(|kind| BuildError::at(Some(span), kind))?;
        Ok(PlannedStep { span, instruction: shown, created_by, row: Row::Instruction, step })
    }

    fn check_size(&self) -> Result<(), BuildErrorKind> {
        if self.inherited.scope.is_too_large() {
            let message = format!(
                "ENV and ARG have more than {LARGEST_ENVIRONMENT} bytes together: no process can be given them"
            );
            return Err(BuildErrorKind::Invalid(message));
        }
        let plans = self.sources.plans;
        let (history, held) = (MOST_HISTORY / plans, MOST_HELD / plans);
        if self.sizes.history > history {
            let message = format!(
                "the image's history would have more than {history} bytes: every instruction is in it, each RUN with its ARGs{}",
                one_of(plans)
            );
            return Err(BuildErrorKind::Invalid(message));
        }
        if self.sizes.held > held {
            let message = format!(
                "here-documents and mounts have more than {held} bytes together when their variables are replaced{}",
                one_of(plans)
            );
            return Err(BuildErrorKind::Invalid(message));
        }
        Ok(())
    }

    fn interpret(
        &mut self,
        span: Span,
        instruction: &Instruction,
    ) -> Result<(Option<String>, Step), BuildErrorKind> {
        let created_by = match instruction {
            Instruction::From(_) => {
                return Err(BuildErrorKind::Invalid("FROM cannot be a trigger".to_owned()));
            }
            Instruction::Run(run) => return self.run(span, run).map(|(row, step)| (Some(row), step)),
            Instruction::Copy(transfer) => return self.transfer(span, TransferKind::Copy, transfer),
            Instruction::Add(transfer) => return self.transfer(span, TransferKind::Add, transfer),
            Instruction::Workdir(text) => return self.workdir(span, text),
            Instruction::Onbuild(text) => {
                self.described.config.on_build.push(text.to_string());
                return Ok((None, Step::Config));
            }
            Instruction::Env(assignments) => self.env(span, assignments)?,
            Instruction::Label(assignments) => self.label(span, assignments)?,
            Instruction::Arg(names) => self.arg(span, names)?,
            Instruction::User(text) => {
                self.inherited.user = self.expanded(span, text)?.to_string().into();
                format!("USER {}", self.inherited.user)
            }
            Instruction::Expose(words) => self.expose(words)?,
            Instruction::Volume(paths) => self.volume(span, paths)?,
            Instruction::Cmd(command) => self.cmd(command),
            Instruction::Entrypoint(command) => self.entrypoint(command),
            Instruction::Shell(words) => {
                self.inherited.shell = Some(strings(words).into());
                format!("SHELL {}", history::plain_list(words))
            }
            Instruction::StopSignal(text) => {
                let signal = self.expanded(span, text)?.to_string();
                signal_number(&signal)?;
                self.described.config.stop_signal = Some(signal.clone());
                format!("STOPSIGNAL {signal}")
            }
            Instruction::Healthcheck(check) => {
                self.checks.once(Once::Healthcheck);
                self.described.config.healthcheck = Some(healthcheck(check));
                history::healthcheck(check)
            }
            Instruction::Maintainer(text) => {
                self.described.author = Some(text.to_string());
                format!("MAINTAINER {text}")
            }
        };
        Ok((Some(created_by), Step::Config))
    }

    /// Expands `text` and notes what was undefined.
    fn expanded(&mut self, span: Span, text: &Text) -> Result<Text, BuildErrorKind> {
        // As nearly everything is; it then shares the bytes with the Dockerfile.
        if !text.iter().any(|byte| matches!(byte, b'$' | b'\'' | b'"' | b'\\' | b'`')) {
            return Ok(text.clone());
        }
        let expanded = expand(text, self.escape, &|name| lookup(&self.inherited.scope, name))?;
        Ok(self.noted(span, expanded))
    }

    fn noted(&mut self, span: Span, expanded: Expanded) -> Text {
        self.note_undefined(span, &expanded.undefined);
        expanded.text
    }

    fn note_undefined(&mut self, span: Span, names: &[String]) {
        // An ARG without a value is no mistake: someone may give it one.
        let is_known = self.checks.handed_on.environment == Environment::Known;
        let scope = &self.inherited.scope;
        for name in names.iter().filter(|name| is_known && !scope.is_declared(name)) {
            let near = resembling(name, scope.names(), self.checks.count()).map(str::to_owned);
            let elsewhere = if scope.is_global(name) { Elsewhere::BeforeFrom } else { Elsewhere::Nowhere };
            let finding = Finding::UndefinedVar { name: name.clone(), near, elsewhere };
            self.checks.warn_at(span, finding);
        }
    }

    fn pairs(
        &mut self,
        span: Span,
        keyword: &str,
        written: &Assignments,
    ) -> Result<Vec<(String, String)>, BuildErrorKind> {
        let mut pairs = Vec::with_capacity(written.pairs.len());
        for (name, value) in &written.pairs {
            let name = self.expanded(span, name)?.to_string();
            if name.is_empty() {
                return Err(BuildErrorKind::Invalid(format!("{keyword} names can not be blank")));
            }
            self.checks.legacy(written.syntax, &name);
            pairs.push((name, self.expanded(span, value)?.to_string()));
        }
        Ok(pairs)
    }

    fn env(&mut self, span: Span, written: &Assignments) -> Result<String, BuildErrorKind> {
        let pairs = self.pairs(span, "ENV", written)?;
        for (name, value) in &pairs {
            self.checks.variable("ENV", name);
            self.inherited.scope.set_env(name, value);
        }
        Ok(history::assignments("ENV", &pairs))
    }

    fn label(&mut self, span: Span, written: &Assignments) -> Result<String, BuildErrorKind> {
        let pairs = self.pairs(span, "LABEL", written)?;
        self.described.config.labels.extend(pairs.iter().cloned());
        Ok(history::assignments("LABEL", &pairs))
    }

    fn arg(&mut self, span: Span, names: &[(Text, Option<Text>)]) -> Result<String, BuildErrorKind> {
        let mut row = "ARG".to_owned();
        for (name, default) in names {
            let name = name.to_string();
            self.checks.variable("ARG", &name);
            let default = match default {
                Some(default) if self.inherited.scope.build_arg(&name).is_none() => {
                    Some(self.expanded(span, default)?.to_string())
                }
                _ => None,
            };
            let value = self.inherited.scope.declare(&name, default);
            row.push(' ');
            row.push_str(&name);
            if let Some(value) = value {
                row.push('=');
                row.push_str(&value);
            }
        }
        Ok(row)
    }

    fn workdir(&mut self, span: Span, text: &Text) -> Result<(Option<String>, Step), BuildErrorKind> {
        let written = self.expanded(span, text)?;
        self.checks.workdir(&written);
        let directory = if written.is_empty() {
            self.workdir_text().to_owned()
        } else if written.starts_with(b"/") {
            written.to_string()
        } else {
            let previous = self.current_workdir()?;
            String::from_utf8_lossy(previous.join(&written)?.as_bytes()).into_owned()
        };
        let path = GuestPath::clamp(directory.as_bytes())?;
        let row = Some(format!("WORKDIR {directory}"));
        self.inherited.working_dir = directory.into();
        self.workdir = Some(Arc::new(path.clone()));
        if path.is_root() {
            return Ok((row, Step::Config));
        }
        let step = WorkdirStep { path, user: self.inherited.user.clone() };
        Ok((row, Step::Workdir(Box::new(step))))
    }

    fn workdir_text(&self) -> &str {
        if self.inherited.working_dir.is_empty() { "/" } else { &self.inherited.working_dir }
    }

    fn current_workdir(&mut self) -> Result<Arc<GuestPath>, BuildErrorKind> {
        if let Some(path) = &self.workdir {
            return Ok(Arc::clone(path));
        }
        let path = Arc::new(GuestPath::clamp(self.workdir_text().as_bytes())?);
        Ok(Arc::clone(self.workdir.insert(path)))
    }

    fn expose(&mut self, words: &[Text]) -> Result<String, BuildErrorKind> {
        let mut ranges = Vec::new();
        for word in words {
            let expanded = expand_words(word, self.escape, &|name| lookup(&self.inherited.scope, name))?;
            for word in expanded.words.iter().filter(|word| !word.is_empty()) {
                let word = word.to_string_lossy();
                let range = parse_ports(&word)?;
                self.checks.port(&word, &range);
                ranges.push(range);
            }
        }
        if ranges.iter().map(crate::dockerfile::PortRange::count).sum::<usize>() > MOST_PORTS {
            return Err(BuildErrorKind::Invalid(format!("EXPOSE names more than {MOST_PORTS} ports")));
        }
        for name in ranges.iter().flat_map(crate::dockerfile::PortRange::names) {
            self.described.config.exposed_ports.insert(name, empty_object());
        }
        Ok(history::expose(&ranges))
    }

    fn volume(&mut self, span: Span, paths: &[Text]) -> Result<String, BuildErrorKind> {
        let mut expanded = Vec::with_capacity(paths.len());
        for path in paths {
            let path = self.expanded(span, path)?;
            if path.is_empty() {
                return Err(BuildErrorKind::Invalid(
                    "VOLUME specified can not be an empty string".to_owned(),
                ));
            }
            self.described.config.volumes.insert(path.to_string(), empty_object());
            expanded.push(path);
        }
        Ok(format!("VOLUME {}", history::plain_list(&expanded)))
    }

    fn shell(&self) -> Vec<String> {
        match &self.inherited.shell {
            Some(shell) => shell.to_vec(),
            None => DEFAULT_SHELL.map(str::to_owned).to_vec(),
        }
    }

    fn words(&self, command: &Command) -> Vec<String> {
        match command {
            Command::Exec(words) => strings(words),
            Command::Shell(text) => {
                let mut words = self.shell();
                words.push(text.to_string());
                words
            }
        }
    }

    fn cmd(&mut self, command: &Command) -> String {
        self.checks.once(Once::Cmd);
        self.checks.command(command, self.inherited.shell.as_deref());
        let words = self.words(command);
        let row = format!("CMD {}", history::quoted_list(&words));
        self.described.config.cmd = Some(words).filter(|words| !words.is_empty());
        self.described.config.args_escaped = true;
        self.has_cmd = true;
        row
    }

    fn entrypoint(&mut self, command: &Command) -> String {
        self.checks.once(Once::Entrypoint);
        self.checks.command(command, self.inherited.shell.as_deref());
        let words = self.words(command);
        let row = format!("ENTRYPOINT {}", history::quoted_list(&words));
        self.described.config.entrypoint = Some(words).filter(|words| !words.is_empty());
        if !self.has_cmd {
            self.described.config.cmd = None;
        }
        row
    }

    fn run(&mut self, span: Span, run: &Run) -> Result<(String, Step), BuildErrorKind> {
        if let Some(device) = run.devices.first() {
            return Err(BuildErrorKind::Device(device.name.to_string()));
        }
        let settings = self.sources.run;
        let security = settings.security(run.security)?;
        let hostname = hostname(self.inherited.scope.build_arg("BUILDKIT_SANDBOX_HOSTNAME"))?;
        let network = self.sources.networks.of(run.network)?;
        let (mounts, agent) = self.mounts(span, run)?;
        let with_shell = |last: &[u8]| {
            let mut args: Vec<Vec<u8>> = self.shell().into_iter().map(String::into_bytes).collect();
            args.push(last.to_vec());
            args
        };
        let (args, script) = match run.action() {
            RunAction::Exec(words) if words.is_empty() => {
                return Err(BuildErrorKind::Invalid(
                    "RUN needs a command: arguments are required".to_owned(),
                ));
            }
            RunAction::Exec(words) => (words.iter().map(|word| word.as_bytes().to_vec()).collect(), None),
            RunAction::Shell(text) => (with_shell(&text), None),
            RunAction::Script { name, content } => {
                let path = [b"/dev/pipes/".as_slice(), &name].concat();
                (with_shell(&path), Some((name, content)))
            }
        };
        let row = history::run(self.inherited.scope.history_args(), &args);
        let shown =
            args.iter().map(|arg| String::from_utf8_lossy(arg)).collect::<Vec<Cow<'_, str>>>().join(" ");
        let RunEnv { declared: env, proxies } = self.inherited.scope.run_env();
        let env = match agent {
            // As under BuildKit also where no agent is forwarded.
            Some(socket) => env.with(AGENT_VARIABLE, &String::from_utf8_lossy(socket.as_bytes())),
            None => env,
        };
        let step = RunStep {
            args,
            env,
            proxies,
            workdir: self.current_workdir()?,
            user: self.inherited.user.clone(),
            script,
            mounts,
            network,
            security,
            hostname,
            hosts: Arc::clone(&settings.hosts),
            shm_size: settings.shm_size,
            limits: Arc::clone(&settings.limits),
            shown,
        };
        Ok((row, Step::Run(Box::new(step))))
    }

    /// What is mounted, and the socket of the first agent.
    fn mounts(
        &mut self,
        span: Span,
        run: &Run,
    ) -> Result<(Vec<MountStep>, Option<GuestPath>), BuildErrorKind> {
        let workdir = self.current_workdir()?;
        let named = self.sources.from;
        let from = |name: &Text| named(Reader::Mount, name);
        let namespace =
            self.inherited.scope.build_arg("BUILDKIT_CACHE_MOUNT_NS").unwrap_or_default().to_owned();
        let mut expand = |text: &Text| self.expanded(span, text);
        let mut resolver =
            Resolver { expand: &mut expand, from: &from, workdir: &workdir, namespace: &namespace };
        let (mounts, agent) = resolver.resolve(&run.mounts)?;
        self.sizes.held += mounts.iter().map(MountStep::held).sum::<usize>();
        Ok((mounts, agent))
    }

    fn transfer(
        &mut self,
        span: Span,
        kind: TransferKind,
        written: &Transfer,
    ) -> Result<(Option<String>, Step), BuildErrorKind> {
        let mut expanded = written.clone();
        for source in &mut expanded.sources {
            match source {
                Source::Path(path) => *path = self.expanded(span, path)?,
                Source::Heredoc(heredoc) if heredoc.expansion == Expansion::Variables => {
                    let body = expand_body(&heredoc.content(), &|name| lookup(&self.inherited.scope, name))?;
                    heredoc.body = self.noted(span, body);
                    self.sizes.held += heredoc.body.len();
                }
                Source::Heredoc(heredoc) => heredoc.body = heredoc.content(),
            }
        }
        expanded.destination = self.expanded(span, &written.destination)?;
        expanded.chown = self.expanded_flag(span, written.chown.as_ref())?;
        expanded.chmod = self.expanded_flag(span, written.chmod.as_ref())?;
        expanded.checksum = self.expanded_flag(span, written.checksum.as_ref())?;
        let (sources, remotes) = sort_sources(kind, &expanded)?;
        if written.from.is_none() {
            self.checks.sources(kind, &sources, self.sources.ignore);
        }
        let from = match &written.from {
            None => CopyFrom::Context,
            Some(from) => (self.sources.from)(Reader::Copy, from)?,
        };
        let row = without_credentials(&history::transfer(kind, &expanded)).into_owned();
        let step = CopyStep {
            kind,
            archives: archives(kind, written),
            from,
            sources,
            remotes,
            inline: inline_files(&expanded),
            destination: expanded.destination.clone(),
            workdir: self.current_workdir()?,
            chown: expanded.chown.as_ref().map(Text::to_string),
            chmod: expanded.chmod.as_ref().map(|text| Mode::parse(&text.to_string_lossy())).transpose()?,
            exclude: exclude(kind, written)?,
            parents: if written.parents { Parents::Kept } else { Parents::Dropped },
            // As in BuildKit, which then copies as if it were not there.
            onto: if written.link && expanded.chmod.is_none() { Onto::Nothing } else { Onto::Stage },
        };
        Ok((Some(row), Step::Copy(Box::new(step))))
    }

    /// An empty value is as good as none.
    fn expanded_flag(&mut self, span: Span, value: Option<&Text>) -> Result<Option<Text>, BuildErrorKind> {
        match value {
            None => Ok(None),
            Some(value) => Ok(Some(self.expanded(span, value)?).filter(|value| !value.is_empty())),
        }
    }
}

fn lookup<'s>(scope: &'s Scope, name: &str) -> Option<Cow<'s, [u8]>> {
    scope.lookup(name).map(|value| Cow::Borrowed(value.as_bytes()))
}

fn strings(words: &[Text]) -> Vec<String> {
    words.iter().map(Text::to_string).collect()
}

fn empty_object() -> Value {
    Value::Object(Map::new())
}

fn healthcheck(check: &HealthCheck) -> Healthcheck {
    let test = strings(&check.test());
    match check {
        HealthCheck::None => Healthcheck { test, ..Healthcheck::default() },
        HealthCheck::Check(Health { interval, timeout, start_period, start_interval, retries, .. }) => {
            Healthcheck {
                test,
                interval: interval.nanoseconds(),
                timeout: timeout.nanoseconds(),
                start_period: start_period.nanoseconds(),
                start_interval: start_interval.nanoseconds(),
                retries: i64::from(*retries),
                other: Map::new(),
            }
        }
    }
}

fn archives(kind: TransferKind, written: &Transfer) -> Archives {
    match (kind, written.unpack) {
        (TransferKind::Add, None | Some(true)) => Archives::Extract,
        _ => Archives::Keep,
    }
}

/// Of two files with one name the later one counts.
fn inline_files(expanded: &Transfer) -> Vec<(Text, Text)> {
    let files: BTreeMap<&Text, &Text> =
        expanded.heredocs().map(|heredoc| (&heredoc.name, &heredoc.body)).collect();
    files.into_iter().map(|(name, body)| (name.clone(), body.clone())).collect()
}

/// Patterns are not expanded.
fn exclude(kind: TransferKind, written: &Transfer) -> Result<Exclude, BuildErrorKind> {
    let patterns = written.exclude.iter().map(|pattern| pattern.as_bytes());
    let rules = IgnoreRules::of_patterns(patterns)
        .map_err(|error| BuildErrorKind::Invalid(format!("{} --exclude: {error}", kind.keyword())))?;
    Ok(Exclude { patterns: written.exclude.clone(), rules })
}

#[cfg(test)]
mod tests {
    use super::super::plan::{PlanRequest, plan};
    use super::super::preview;
    use super::super::services::{Base, ImageSource, ServiceError, Wanted};

    use super::*;
    use crate::dockerfile;
    use crate::image::manifest::Image;

    use crate::image::platform::{Platform, Requested};
    use crate::image::reference::Reference;
    use crate::sandbox::Cancel;
    use crate::store::unpacked::Chain;

    /// No image is there.
    struct Nothing;

    impl ImageSource for Nothing {
        fn resolve(&self, _: &Reference, _: &Wanted) -> Result<Base, ServiceError> {
            Err("there is no such image".into())
        }

        fn unpack(&self, _: &Image, _: &Cancel) -> Result<Chain, ServiceError> {
            Err("nothing is unpacked while planning".into())
        }
    }

    fn planned(text: &str) -> Result<Value, BuildError> {
        let host = Platform::new("linux", "amd64", None);
        let platform = Requested::parse("linux/amd64", &host).unwrap();
        let request = PlanRequest {
            build_args: BTreeMap::from([("GIVEN".to_owned(), "given".to_owned())]),
            ..PlanRequest::usual(platform, host, 100)
        };
        let file = dockerfile::parse(text.as_bytes())?;
        plan(&file, &request, &IgnoreRules::default(), &Nothing).map(|plan| {
            let mut document = Vec::new();
            preview::write(std::slice::from_ref(&plan), &mut document).unwrap();
            serde_json::from_slice(&document).unwrap()
        })
    }

    /// Texts of history rows, `-` in front of those without a layer.
    fn rows(document: &Value) -> Vec<String> {
        let row = |row: &Value| {
            let sign = if row["empty_layer"] == true { "-" } else { "" };
            format!("{sign}{}", row["created_by"].as_str().unwrap_or_default())
        };
        document["image"]["history"].as_array().into_iter().flatten().map(row).collect()
    }

    #[test]
    fn history_says_what_buildkit_says() {
        for (text, expected) in [
            // A RUN names what it sees, not what ARG said.
            ("ARG X=1\nENV X=2\nRUN x", vec!["-ARG X=1", "-ENV X=2", "RUN |1 X=2 /bin/sh -c x # buildkit"]),
            ("ENV X=2\nARG X\nRUN x", vec!["-ENV X=2", "-ARG X", "RUN |1 X=2 /bin/sh -c x # buildkit"]),
            (
                "ENV GIVEN=2\nARG GIVEN\nRUN x",
                vec!["-ENV GIVEN=2", "-ARG GIVEN=given", "RUN |1 GIVEN=given /bin/sh -c x # buildkit"],
            ),
            (
                "ARG X=1 Y\nARG X=2\nRUN [\"a\", \"b c\"]",
                vec!["-ARG X=1 Y", "-ARG X=2", "RUN |2 X=2 Y= a b c # buildkit"],
            ),
            (
                "ARG BUILDKIT_SBOM_SCAN_STAGE=true\nRUN x",
                vec![
                    "-ARG BUILDKIT_SBOM_SCAN_STAGE=true",
                    "RUN |1 BUILDKIT_SBOM_SCAN_STAGE=true /bin/sh -c x # buildkit",
                ],
            ),
            // An empty WORKDIR changes nothing, and it is shown as it is.
            ("WORKDIR /x/\nWORKDIR $none", vec!["WORKDIR /x/", "WORKDIR /x/"]),
            ("WORKDIR $none", vec!["-WORKDIR /"]),
            ("WORKDIR /a//b/../c/\nWORKDIR d//", vec!["WORKDIR /a//b/../c/", "WORKDIR /a/c/d"]),
            ("WORKDIR a\nWORKDIR ../..", vec!["WORKDIR /a", "-WORKDIR /"]),
            // Tabs go before it is seen that the body is a script.
            ("RUN <<-E\n\t#!/bin/sh\n\tE", vec!["RUN /bin/sh -c /dev/pipes/E # buildkit"]),
            ("RUN <<E\n\t#!/bin/sh\nE", vec!["RUN /bin/sh -c \t#!/bin/sh\n # buildkit"]),
            ("EXPOSE 443 53/UDP 80-81", vec!["-EXPOSE [443/tcp 53/udp 80/tcp 81/tcp]"]),
            ("ARG P='3 4/udp'\nEXPOSE $P", vec!["-ARG P=3 4/udp", "-EXPOSE [3/tcp 4/udp]"]),
            ("ARG \"A\"=1 $B=2", vec!["-ARG \"A\"=1 $B=2"]),
            ("ARG A=1 B=$A\nENV c=$B", vec!["-ARG A=1 B=1", "-ENV c=1"]),
            ("ENV a=1\nENV a=2 b=$a", vec!["-ENV a=1", "-ENV a=2 b=1"]),
            ("ONBUILD RUN x", vec![]),
            ("USER $none", vec!["-USER "]),
            ("COPY <<E a b/\nE", vec!["COPY a <<E b/ # buildkit"]),
        ] {
            let document =
                planned(&format!("FROM scratch\n{text}")).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(rows(&document), expected, "{text}");
        }
    }

    #[test]
    fn very_many_args_before_very_many_runs_are_refused_soon() {
        let args: String = (0..2_000).map(|number| format!("ARG a{number}={:0>1000}\n", 0)).collect();
        let stages = "FROM s\nRUN x\n".repeat(40);
        let error = planned(&format!("FROM scratch AS s\n{args}{stages}")).map(|_| ());
        assert!(error.is_ok(), "only the last stage is needed");
        let error = planned(&format!("FROM scratch AS s\n{args}{}", "RUN x\n".repeat(40))).unwrap_err();
        assert!(error.to_string().contains("the image's history would have more than"), "{error}");
        assert_eq!(error.span.map(|span| span.first_line), Some(2_001 + 4));
        // Without a RUN, the error does not speak of its ARGs alone.
        let (long, labels) = (format!("ARG x={:0>60000}\n", 0), "LABEL a=$x\n".repeat(600));
        let error = planned(&format!("FROM scratch\n{long}{labels}")).unwrap_err();
        assert!(error.to_string().contains("every instruction is in it"), "{error}");
    }

    #[test]
    fn one_large_variable_in_very_many_places_is_refused() {
        let big = vec!["x".repeat(60_000); 17].join("\\\n");
        for (instruction, message) in [
            ("COPY <<E /x\n$big\nE\n", "here-documents and mounts have more than 33554432 bytes together"),
            (
                "RUN --mount=type=cache,id=$big,target=/x y\n",
                "here-documents and mounts have more than 33554432",
            ),
        ] {
            let text = |times| format!("FROM scratch\nENV big={big}\n{}", instruction.repeat(times));
            assert!(planned(&text(30)).is_ok());
            let error = planned(&text(40)).unwrap_err();
            assert!(error.to_string().contains(message), "{error}");
            let lines = instruction.lines().count();
            assert_eq!(error.span.map(|span| span.first_line), Some(19 + 32 * lines), "{instruction}");
        }
    }

    #[test]
    fn very_many_triggers_in_very_many_stages_are_refused() {
        let triggers = "ONBUILD ENV a=b\n".repeat(5_000);
        let text = |stages: usize| {
            let all: String = (0..stages).map(|number| format!("FROM s AS t{number}\n")).collect();
            let mounts: String =
                (0..stages).map(|number| format!("--mount=from=t{number},target=/{number} ")).collect();
            planned(&format!("FROM scratch AS s\n{triggers}{all}FROM scratch\nRUN {mounts} x\n"))
        };
        assert!(text(2).is_ok());
        let error = text(8).unwrap_err();
        assert!(error.to_string().contains("more than 40000 instructions together"), "{error}");
        assert_eq!(error.span.map(|span| span.first_line), Some(5_002 + 7));
    }

    #[test]
    fn warnings_name_what_nobody_can_give_a_value() {
        for (text, expected) in [
            ("FROM scratch\nENV a=$x", vec!["UndefinedVar 2"]),
            ("FROM scratch\nARG x\nENV a=$x", vec![]),
            ("FROM scratch AS s\nARG x\nFROM s\nENV a=$x", vec![]),
            ("ARG x\nFROM scratch\nENV a=$x", vec!["UndefinedVar 3"]),
            ("FROM scratch\nENV a=${x:-b}${x-b}${x:+b}", vec![]),
            ("FROM scratch\nARG a=$BUILDKIT_SBOM_SCAN_STAGE", vec![]),
            // The default of a global ARG is not looked at, only FROM is; and FROM in every stage.
            ("ARG a=$b\nFROM scratch", vec![]),
            ("ARG v\nFROM scratch$v", vec![]),
            ("FROM scratch$v", vec!["UndefinedArgInFrom 1"]),
            ("FROM scratch$v AS unused\nFROM scratch", vec!["UndefinedArgInFrom 1"]),
        ] {
            let document = planned(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            let row = |row: &Value| format!("{} {}", row["rule"].as_str().unwrap_or_default(), row["line"]);
            let found: Vec<String> = document["warnings"].as_array().into_iter().flatten().map(row).collect();
            assert_eq!(found, expected, "{text}");
        }
    }

    #[test]
    fn no_part_of_a_password_is_shown_of_an_instruction_that_is_cut() {
        for length in 60..160 {
            let text = format!("FROM scratch\nADD --chown={} https://me:secret@h/x /\n", "1".repeat(length));
            let shown =
                planned(&text.replace(&"1".repeat(length), &format!("{:0length$}", 1))).unwrap().to_string();
            assert!(!shown.contains("secret") && !shown.contains("https://me"), "{length}: {shown}");
        }
    }

    #[test]
    fn errors_name_the_line_and_what_to_do() {
        for (text, line, message) in [
            ("FROM $nope AS unused\nFROM scratch", 1, "base name ($nope) should not be blank"),
            (
                "FROM --platform=$nope scratch AS unused\nFROM scratch",
                1,
                "empty platform value from expression $nope",
            ),
            ("FROM --platform=a/b/c/d scratch AS unused\nFROM scratch", 1, "is not a platform"),
            ("FROM ${a AS unused\nFROM scratch", 1, "unsupported modifier"),
            (
                "FROM scratch AS unused\nCOPY --from=$a a b\nFROM scratch",
                2,
                "variable expansion is not supported for --from",
            ),
            ("FROM scratch AS unused\nCOPY --from=7 a b\nFROM scratch", 2, "invalid stage index 7"),
            ("FROM scratch\nCOPY --from=-1 a b", 2, "invalid stage index -1"),
            ("FROM scratch AS build\nFROM biuld", 2, "(did you mean the stage `build`?)"),
            (
                "FROM scratch\nCOPY --from=protos a b",
                2,
                "library/protos:latest` (no stage and no `--build-context` is called `protos`)",
            ),
            (
                "FROM build\nFROM scratch AS build\nFROM scratch\nCOPY --from=0 a b",
                1,
                "(the stage `build` is defined only later)",
            ),
            ("FROM scratch AS A\nFROM A", 2, "the stage is called `a`, write it like that"),
            ("ARG a=${b:?boom}\nFROM scratch", 1, "b: boom"),
            ("FROM scratch\nENV $none=1", 2, "ENV names can not be blank"),
        ] {
            let error = planned(text).expect_err(text);
            assert_eq!(error.span.map(|span| span.first_line), Some(line), "{text}");
            assert!(error.to_string().contains(message), "{text}\n{error}");
        }
    }
}
