//! Doing one step on the files of its stage.

use std::os::fd::AsFd as _;

use super::add::{AddError, add};
use super::bases::Purpose;
use super::clues::Watch;
use super::copy::{CopyError, CopyRequest, CopySource, OwnerPolicy, SourceTree, copy};
use super::emulated::Machine;
use super::error::BuildErrorKind;
use super::execute::{Executor, locked};
use super::mounted::Mounted;
use super::network::resolv_conf_without_network;
use super::progress::{Event, Place};
use super::redact::Redactor;
use super::run_settings::hosts;
use super::step::{Archives, CopyFrom, CopyStep, Onto, RunStep, StagePlan, Step, WorkdirStep};
use crate::dockerfile::Text;
use crate::limit::Limit;
use crate::rootfs::{
    GuestPath, Owner, ResolvedUser, Rootfs, Timestamp, UserError, numeric_chown, resolve_chown, resolve_user,
    set_times_at,
};
use crate::sandbox::{self, Exit, Network, Process, ResourceLimit, Runner, SandboxError, Script};
use crate::snapshot::{Recording, View};
use crate::store::room::Free;
use crate::store::unpacked::Chain;

/// Whether a step finds anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Below {
    /// The stage stands on `scratch` and has no step before this one.
    Nothing,
    /// It has files, if only those of an empty layer.
    Files,
}

impl Executor<'_> {
    /// Does `step` in the tree of `recording`.
    pub(super) fn perform(
        &self,
        step: &Step,
        stage: &StagePlan,
        place: &Place,
        below: Below,
        recording: &dyn Recording,
    ) -> Result<(), BuildErrorKind> {
        match step {
            Step::Config => Ok(()),
            Step::Workdir(workdir) => {
                make_workdir(workdir, recording.root(), self.plan.clock.now(), self.services.limits.users)
            }
            Step::Copy(copy) => match copy.onto {
                Onto::Stage => self.copy(copy, stage, below, recording.root()),
                Onto::Nothing => self.copy_on_top(copy, stage, recording.root()),
            },
            Step::Run(run) => self.run(run, stage, place, recording),
        }
    }

    /// Copies to `onto`, where there is what `below` says.
    pub(super) fn copy(
        &self,
        step: &CopyStep,
        stage: &StagePlan,
        below: Below,
        onto: &Rootfs,
    ) -> Result<(), BuildErrorKind> {
        if step.remotes.is_empty() {
            self.copy_local(step, &step.sources, &step.inline, stage, (below, onto))
        } else {
            self.add_remotes(step, stage, below, onto)
        }
    }

    /// Copies some of what is in the tree that the step reads, and some of its here-documents.
    pub(super) fn copy_local(
        &self,
        step: &CopyStep,
        paths: &[Text],
        inline: &[(Text, Text)],
        stage: &StagePlan,
        target: (Below, &Rootfs),
    ) -> Result<(), BuildErrorKind> {
        let paths = paths.iter().map(|path| CopySource::Path(path));
        let inline = inline.iter().map(|(name, content)| CopySource::Inline { name, content });
        let sources: Vec<CopySource<'_>> = paths.chain(inline).collect();
        if sources.is_empty() && !step.remotes.is_empty() {
            return Ok(());
        }
        let view = self.view(&step.from, stage, Purpose::Step)?;
        let from = self.source_tree(&step.from, view.as_ref())?;
        self.copy_sources(step, sources, from, step.archives, target)
    }

    /// Copies `sources` in `from` as the step says.
    pub(super) fn copy_sources(
        &self,
        step: &CopyStep,
        sources: Vec<CopySource<'_>>,
        from: SourceTree<'_>,
        archives: Archives,
        (below, onto): (Below, &Rootfs),
    ) -> Result<(), BuildErrorKind> {
        let chown = step
            .chown
            .as_deref()
            .map(|text| chown(onto, text, below, self.services.limits.users))
            .transpose()?;
        let request = CopyRequest {
            sources,
            from,
            destination: &step.destination,
            workdir: &step.workdir,
            chown,
            chmod: step.chmod.as_ref(),
            exclude: step.excluded(),
            parents: step.parents,
        };
        let now = self.plan.clock.now();
        match archives {
            Archives::Keep => {
                copy(&request, onto, now).map(|_| ()).map_err(|error| self.not_copied(step, error))
            }
            Archives::Extract => {
                let added =
                    add(&request, onto, now, &self.services.limits.layers).map_err(|error| match error {
                        AddError::Copy(error) => self.not_copied(step, error),
                        error => error.into(),
                    })?;
                for sentence in added.losses.sentences() {
                    self.services.progress.tell(&Event::Note(&format!("ADD: {sentence}")));
                }
                Ok(())
            }
        }
    }

    /// Where COPY reads: in `view`, or else in the context that `from` means.
    pub(super) fn source_tree<'t>(
        &'t self,
        from: &CopyFrom,
        view: Option<&'t View>,
    ) -> Result<SourceTree<'t>, BuildErrorKind> {
        match (view, self.context_of(from)) {
            (Some(view), _) => Ok(SourceTree { root: view.root(), ignore: None, owner: OwnerPolicy::Keep }),
            (None, Some(context)) => Ok(SourceTree {
                root: context.root(),
                ignore: Some(context.ignore()),
                owner: OwnerPolicy::Root,
            }),
            (None, None) => Err(BuildErrorKind::Invalid(format!("{} is not open", self.place_of(from)))),
        }
    }

    /// Says where a source was looked for.
    pub(super) fn not_copied(&self, step: &CopyStep, error: CopyError) -> BuildErrorKind {
        let CopyError::NotFound { written, excluded, near, .. } = error else { return error.into() };
        let place = self.place_of(&step.from);
        BuildErrorKind::Source { keyword: step.kind.keyword(), written, place, excluded, near }
    }

    /// What files are read from, for people.
    pub(super) fn place_of(&self, from: &CopyFrom) -> String {
        match from {
            CopyFrom::Context => "the build context".to_owned(),
            CopyFrom::Named(position) => {
                format!("the build context `{}`", self.plan.contexts[*position].name)
            }
            CopyFrom::Scratch => "`scratch`, which is empty".to_owned(),
            CopyFrom::Stage(position) => format!("stage `{}`", self.plan.stages[*position].name),
            CopyFrom::Image(position) => {
                format!("image `{}`", self.plan.images[*position].reference.familiar())
            }
        }
    }

    /// The tree that COPY or a mount reads, unless it is a build context.
    pub(super) fn view(
        &self,
        from: &CopyFrom,
        stage: &StagePlan,
        purpose: Purpose,
    ) -> Result<Option<View>, BuildErrorKind> {
        match from {
            CopyFrom::Context | CopyFrom::Named(_) => Ok(None),
            from => {
                let chain = self.chain_read(from, stage, purpose)?;
                Ok(Some(self.services.snapshotter.view(&chain)?))
            }
        }
    }

    /// The layers of the tree that a step reads.
    pub(super) fn chain_read(
        &self,
        from: &CopyFrom,
        stage: &StagePlan,
        purpose: Purpose,
    ) -> Result<Chain, BuildErrorKind> {
        match from {
            CopyFrom::Context | CopyFrom::Named(_) | CopyFrom::Scratch => Ok(Chain::empty()),
            CopyFrom::Stage(position) => self.chain_of(*position, stage, purpose),
            CopyFrom::Image(position) => {
                let base = &self.plan.images[*position];
                let note =
                    format!("[{}] reading from {}@{}", stage.name, base.reference.familiar(), base.digest);
                self.services.progress.tell(&Event::Detail(&note));
                self.unpack(&base.image, &base.reference.to_string(), stage, purpose)
            }
        }
    }

    fn run(
        &self,
        step: &RunStep,
        stage: &StagePlan,
        place: &Place,
        recording: &dyn Recording,
    ) -> Result<(), BuildErrorKind> {
        let sandbox = self.services.sandbox.ok_or(BuildErrorKind::NoSandbox)?;
        let root = recording.root();
        let machine = self.machine(step, stage)?;
        let user = resolve_user(root, &step.user, self.services.limits.users)?;
        root.create_dirs(&step.workdir, 0o755, user.owner)?;
        let mounted = self.mounted(step, stage, place)?;
        let services = self.services;
        let mut process =
            process(step, user, &machine, &services.resolv_conf, services.open_files.as_ref(), &mounted);
        let progress = self.services.progress;
        let tell = |stream, bytes: &[u8]| progress.tell(&Event::Output { place, stream, bytes });
        let mut redactor = Redactor::new(mounted.secrets());
        let mut watch = Watch::default();
        let mut output = |stream, bytes: &[u8]| {
            watch.pass(stream, bytes);
            redactor.pass(stream, bytes, &mut |bytes| tell(stream, bytes));
        };
        // Those that see each other's processes could touch each other: one after the other, then.
        let is_apart = matches!(sandbox.view()?, sandbox::View::Own);
        let _alone = (!is_apart).then(|| locked(&self.alone));
        let mut result = sandbox.run(root, &process, &mut output, &self.cancel);
        if let Err(error) = &result
            && self.does_without(&machine, error)
        {
            process.runner = Runner::Handler;
            result = sandbox.run(root, &process, &mut output, &self.cancel);
        }
        redactor.finish(&mut |stream, bytes| tell(stream, bytes));
        progress.tell(&Event::OutputEnded { place });
        match result {
            Ok(Exit::Code(0)) => {
                drop(process);
                mounted.end();
                Ok(())
            }
            Ok(exit) => {
                // Before what the step wrote is removed.
                let free = Free::of(self.services.workspace.path());
                let (command, platform) = (step.shown.clone(), (*stage.wanted).clone());
                Err(BuildErrorKind::Process { command, platform, exit, free, clues: watch.found() })
            }
            Err(SandboxError::Cancelled { .. }) => Err(BuildErrorKind::Cancelled),
            Err(error) => Err(error.into()),
        }
    }
}

/// The owner that `--chown` names. Where there are no files at all there is nothing to look a name up in.
fn chown(root: &Rootfs, text: &str, below: Below, most: Limit) -> Result<Owner, BuildErrorKind> {
    if below == Below::Nothing && numeric_chown(text)?.is_none() {
        let message = format!(
            "invalid user index: -1: --chown={text} is a name, and there are no files to look it up in, as on scratch and with --link; give numbers"
        );
        return Err(BuildErrorKind::Invalid(message));
    }
    Ok(resolve_chown(root, text, most)?)
}

/// Missing directories belong to USER; one that the image doesn't know is taken for root. What is made, and the
/// directory it is made in, has the time `now`.
fn make_workdir(
    step: &WorkdirStep,
    root: &Rootfs,
    now: Timestamp,
    most: Limit,
) -> Result<(), BuildErrorKind> {
    let owner = match resolve_user(root, &step.user, most) {
        Ok(user) => user.owner,
        Err(UserError::NoUser(_) | UserError::NoGroup(_)) => Owner::ROOT,
        Err(error) => return Err(error.into()),
    };
    let made = root.create_dirs(&step.path, 0o755, owner)?;
    for path in made.iter().rev() {
        let (directory, name) = root.parent(path)?;
        set_times_at(directory.as_fd(), &name, now).map_err(BuildErrorKind::StepFiles)?;
        set_times_at(directory.as_fd(), b".", now).map_err(BuildErrorKind::StepFiles)?;
    }
    Ok(())
}

fn process(
    step: &RunStep,
    user: ResolvedUser,
    machine: &Machine,
    resolv_conf: &[u8],
    open_files: Option<&ResourceLimit>,
    mounted: &Mounted,
) -> Process {
    let is_secret = |name: &str| mounted.variables.iter().any(|(secret, _)| secret == name.as_bytes());
    let declared = step.env.list();
    let mut env: Vec<(Vec<u8>, Vec<u8>)> = declared
        .iter()
        .chain(&step.proxies.list())
        .filter(|(name, _)| !is_secret(name))
        .map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
        .collect();
    if !declared.iter().any(|(name, _)| &**name == "HOME") && !is_secret("HOME") {
        env.push((b"HOME".to_vec(), user.home.clone()));
    }
    let usual = open_files.filter(|usual| !step.limits.iter().any(|limit| limit.name() == usual.name()));
    let scripts =
        step.script.iter().map(|(name, content)| Script { name: name.to_vec(), content: content.to_vec() });
    Process {
        args: step.args.clone(),
        env,
        secret_env: mounted.variables.clone(),
        cwd: GuestPath::clone(&step.workdir),
        user,
        hostname: step.hostname.clone(),
        hosts: hosts(&step.hostname, &step.hosts),
        resolv_conf: match step.network {
            Network::Shared => resolv_conf.to_vec(),
            Network::None => resolv_conf_without_network(resolv_conf),
        },
        scripts: scripts.collect(),
        mounts: mounted.mounts.clone(),
        presentation: machine.presentation,
        runner: machine.runner.clone(),
        network: step.network,
        security: step.security,
        shm_size: step.shm_size,
        limits: step.limits.iter().chain(usual).copied().collect(),
    }
}
