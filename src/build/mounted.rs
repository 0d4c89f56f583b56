//! The mounts of one RUN, from what the plan says to what the sandbox takes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::bases::Purpose;
use super::context_view::{ContextViews, Shown};
use super::copy::{CopyError, OwnerPolicy, SourceTree, find};
use super::error::{BuildErrorKind, MOUNT};
use super::execute::Executor;
use super::mount::{BindStep, MountStep, SecretStep, SshStep};
use super::progress::Place;
use super::step::{CopyFrom, RunStep, StagePlan};
use crate::dockerfile::{Access, Need};
use crate::rootfs::{Follow, Rootfs};
use crate::sandbox::{Bind, Content, Forwarding, Mount, Rights, Secret, SecretFile, Writes};
use crate::snapshot::{Recording, View};
use crate::store::unpacked::Chain;
use crate::store::workspace::Scratch;

/// What a process gets, and what must be kept until it has ended.
#[derive(Default)]
pub(super) struct Mounted {
    /// In the order in which they are to be made.
    pub(super) mounts: Vec<Mount>,
    /// Secrets that are variables, each name once.
    pub(super) variables: Vec<(Vec<u8>, Secret)>,
    /// Held until the process has ended.
    trees: Vec<Tree>,
    context: Vec<Shown>,
    agents: Vec<(Forwarding, Scratch)>,
}

impl Mounted {
    /// What the process gets and nobody else may see.
    pub(super) fn secrets(&self) -> impl Iterator<Item = &Secret> {
        let files = self.mounts.iter().filter_map(|mount| match &mount.content {
            Content::Secret(file) => Some(&file.value),
            Content::Bind(_) | Content::Tmpfs { .. } => None,
        });
        files.chain(self.variables.iter().map(|(_, value)| value))
    }

    /// The process has ended well: what it wrote to mounts is removed.
    pub(super) fn end(self) {
        let Self { mounts, variables: _, trees, context, agents } = self;
        drop((mounts, context, agents));
        for tree in trees {
            if let Tree::Discarded(recording) = tree {
                recording.discard();
            }
        }
    }
}

/// The files of a stage or image.
enum Tree {
    View(View),
    /// A step on them that never becomes a layer: what it writes is discarded.
    Discarded(Box<dyn Recording>),
}

impl Tree {
    fn root(&self) -> &Rootfs {
        match self {
            Self::View(view) => view.root(),
            Self::Discarded(recording) => recording.root(),
        }
    }

    /// The root of the mount that holds them.
    fn mount(&self) -> BorrowedFd<'_> {
        match self {
            Self::View(view) => view.root().as_fd(),
            Self::Discarded(recording) => recording.mount(),
        }
    }
}

impl Executor<'_> {
    /// Opens all that `step` has mounted.
    ///
    /// # Errors
    /// When a source is not there, or a secret that must be there is not.
    pub(super) fn mounted(
        &self,
        step: &RunStep,
        stage: &StagePlan,
        place: &Place,
    ) -> Result<Mounted, BuildErrorKind> {
        let mut mounted = Mounted::default();
        let mut caches = Vec::new();
        for mount in &step.mounts {
            match mount {
                MountStep::Bind(bind) => self.bind(bind, stage, &mut mounted)?,
                MountStep::Cache(cache) => caches.push((mounted.mounts.len(), cache)),
                MountStep::Tmpfs(tmpfs) => {
                    let content = Content::Tmpfs { size: tmpfs.size };
                    mounted.mounts.push(Mount { target: tmpfs.target.clone(), content });
                }
                MountStep::Secret(secret) => self.secret(secret, &mut mounted)?,
                MountStep::Ssh(ssh) => self.agent(ssh, &mut mounted)?,
            }
        }
        // Last: while others wait for a cache, nothing is fetched or unpacked but what it begins with, and that only when it
        // is new: only whoever has it can know.
        let taken = self.cache_mounts(caches.iter().map(|(_, cache)| *cache), stage, place)?;
        for ((position, _), mount) in caches.iter().zip(taken).rev() {
            mounted.mounts.insert(*position, mount);
        }
        Ok(mounted)
    }

    fn bind(&self, bind: &BindStep, stage: &StagePlan, mounted: &mut Mounted) -> Result<(), BuildErrorKind> {
        let (tree, source, rights) = match self.views_of(&bind.from) {
            Some(views) => {
                let shown = self.of_context(bind, views)?;
                let (tree, source) = (Arc::clone(&shown.tree), Arc::clone(&shown.source));
                mounted.context.push(shown);
                (tree, source, Rights::Ignored)
            }
            None => {
                let chain = self.chain_read(&bind.from, stage, Purpose::Step)?;
                let (tree, source) = self.of_chain(bind, chain)?;
                let mount = tree.mount().try_clone_to_owned().map_err(BuildErrorKind::StepFiles)?;
                mounted.trees.push(tree);
                (Arc::new(mount), Arc::new(source), Rights::Honoured)
            }
        };
        let writes = writes(bind.access);
        let content = Content::Bind(Bind { tree, source, kept_at: None, writes, rights });
        mounted.mounts.push(Mount { target: bind.target.clone(), content });
        Ok(())
    }

    fn of_context(&self, bind: &BindStep, views: &ContextViews<'_>) -> Result<Shown, BuildErrorKind> {
        let from = self.source_tree(&bind.from, None)?;
        let (path, _) = find(&from, &bind.source).map_err(|error| self.not_mounted(&bind.from, error))?;
        Ok(views.show(&path, bind.access)?)
    }

    fn of_chain(&self, bind: &BindStep, chain: Chain) -> Result<(Tree, OwnedFd), BuildErrorKind> {
        let tree = match bind.access {
            Access::ReadOnly => Tree::View(self.services.snapshotter.view(&chain)?),
            Access::ReadWrite => Tree::Discarded(self.services.snapshotter.begin(chain)?),
        };
        let from = SourceTree { root: tree.root(), ignore: None, owner: OwnerPolicy::Keep };
        let (path, _) = find(&from, &bind.source).map_err(|error| self.not_mounted(&bind.from, error))?;
        let source = tree.root().open_path(&path, Follow::No)?;
        Ok((tree, source))
    }

    /// Says where a source was looked for.
    pub(super) fn not_mounted(&self, from: &CopyFrom, error: CopyError) -> BuildErrorKind {
        let CopyError::NotFound { written, excluded, near, .. } = error else { return error.into() };
        let place = self.place_of(from);
        BuildErrorKind::Source { keyword: MOUNT, written, place, excluded, near }
    }

    fn secret(&self, step: &SecretStep, mounted: &mut Mounted) -> Result<(), BuildErrorKind> {
        let known = self.services.secrets.get(&step.id);
        if known.is_none() && step.need == Need::Required {
            return Err(BuildErrorKind::SecretMissing(step.id.clone()));
        }
        if let Some(name) = &step.variable {
            // As BuildKit has it, a variable without a secret is there and empty.
            let value = known.cloned().unwrap_or_else(|| Secret::new(b""));
            mounted.variables.retain(|(other, _)| other != name.as_bytes());
            mounted.variables.push((name.clone().into_bytes(), value));
        }
        if let (Some(target), Some(value)) = (&step.target, known) {
            let file = SecretFile { value: value.clone(), mode: step.mode, owner: step.owner };
            mounted.mounts.push(Mount { target: target.clone(), content: Content::Secret(file) });
        }
        Ok(())
    }

    fn agent(&self, step: &SshStep, mounted: &mut Mounted) -> Result<(), BuildErrorKind> {
        let id = step.id.as_deref().unwrap_or(SshStep::DEFAULT);
        let Some(agent) = self.services.agents.get(id) else {
            return match step.need {
                Need::Required => Err(BuildErrorKind::AgentMissing(step.id.clone().unwrap_or_default())),
                Need::Optional => Ok(()),
            };
        };
        let failed = |source| BuildErrorKind::Agent { id: id.to_owned(), source };
        let place = self.services.workspace.scratch("agent")?;
        let forwarding =
            Forwarding::begin(agent.clone(), place.path(), step.owner, step.mode).map_err(failed)?;
        let content = forwarding.content().map_err(failed)?;
        mounted.mounts.push(Mount { target: step.target.clone(), content });
        mounted.agents.push((forwarding, place));
        Ok(())
    }
}

/// What `ro` and `rw` mean.
pub(super) fn writes(access: Access) -> Writes {
    match access {
        Access::ReadOnly => Writes::Refused,
        Access::ReadWrite => Writes::Allowed,
    }
}
