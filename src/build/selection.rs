//! What a step takes from another tree: what COPY copies, or a mount shows.

use super::bases::Purpose;
use super::copy::{CopyError, Fingerprint, Names, Parents, Sources};
use super::error::BuildErrorKind;
use super::execute::Executor;
use super::mount::{BindStep, CacheStep, MountStep};
use super::step::{CopyFrom, CopyStep, Layering, StagePlan, Step};
use crate::context::IgnoreRules;
use crate::limit::Limit;
use crate::rootfs::GuestPath;

/// Files that a step takes from one tree.
pub(super) enum Selection<'s> {
    /// Those that COPY or ADD names.
    Copy(&'s CopyStep),
    /// The one that a mount shows, or that a cache begins with.
    Mount {
        /// Whose it is.
        from: &'s CopyFrom,
        /// Its path there.
        source: &'s GuestPath,
    },
}

impl<'s> Selection<'s> {
    /// All that `step` takes: one for COPY, one for each bind mount and each cache of RUN that begins with files, in order.
    pub(super) fn all(step: &'s Step) -> Vec<Self> {
        match step {
            Step::Copy(copy) if !copy.sources.is_empty() => vec![Self::Copy(copy)],
            Step::Run(run) => {
                let read = |mount: &'s MountStep| match mount {
                    MountStep::Bind(BindStep { from, source, .. })
                    | MountStep::Cache(CacheStep { seed: Some(from), source, .. }) => {
                        Some(Self::Mount { from, source })
                    }
                    MountStep::Cache(_) | MountStep::Tmpfs(_) | MountStep::Secret(_) | MountStep::Ssh(_) => {
                        None
                    }
                };
                run.mounts.iter().filter_map(read).collect()
            }
            Step::Config | Step::Workdir(_) | Step::Copy(_) => Vec::new(),
        }
    }

    /// Whose files they are.
    pub(super) fn from(&self) -> &'s CopyFrom {
        match self {
            Self::Copy(copy) => &copy.from,
            Self::Mount { from, .. } => from,
        }
    }

    fn written(&self) -> (Vec<&'s [u8]>, Names) {
        match self {
            Self::Copy(copy) => {
                let names = match copy.parents {
                    Parents::Dropped => Names::Patterns,
                    Parents::Kept => Names::Whole,
                };
                (copy.sources.iter().map(|source| source.as_bytes()).collect(), names)
            }
            Self::Mount { source, .. } => (vec![source.as_bytes()], Names::Literal),
        }
    }

    fn exclude(&self) -> Option<&'s IgnoreRules> {
        match self {
            Self::Copy(copy) => copy.excluded(),
            Self::Mount { .. } => None,
        }
    }
}

impl Executor<'_> {
    /// What `selection` stands for now.
    pub(super) fn fingerprint(
        &self,
        selection: &Selection<'_>,
        stage: &StagePlan,
    ) -> Result<Fingerprint, BuildErrorKind> {
        let view = self.view(selection.from(), stage, Purpose::Key)?;
        let from = self.source_tree(selection.from(), view.as_ref())?;
        let (written, names) = selection.written();
        let stopped = || self.cancel.is_cancelled();
        let (exclude, most) = (selection.exclude(), self.most(selection));
        let sources = Sources { written: &written, names, exclude, from: &from, most, stopped: &stopped };
        sources.fingerprint().map_err(|error: CopyError| match (self.stop_if_cancelled(), selection) {
            (Err(cancelled), _) => cancelled,
            (Ok(()), Selection::Copy(copy)) => self.not_copied(copy, error),
            (Ok(()), Selection::Mount { from, .. }) => self.not_mounted(from, error),
        })
    }

    /// The most bytes that `selection` may take: a hole of a terabyte takes no room, but an hour to read. Where a later step may
    /// remove what was copied before there is a layer, only the layer tells.
    fn most(&self, selection: &Selection<'_>) -> Option<Limit> {
        match selection {
            Selection::Copy(_) if self.plan.layering == Layering::OncePerStage => None,
            Selection::Copy(_) => Some(self.services.limits.layers.written),
            Selection::Mount { .. } => None,
        }
    }

    /// Whether what `selection` takes from a build context is as it was.
    pub(super) fn context_still_is(&self, selection: &Selection<'_>, before: &Fingerprint) -> bool {
        let Ok(from) = self.source_tree(selection.from(), None) else { return false };
        let (written, names) = selection.written();
        let stopped = || self.cancel.is_cancelled();
        let (exclude, most) = (selection.exclude(), self.most(selection));
        let sources = Sources { written: &written, names, exclude, from: &from, most, stopped: &stopped };
        sources.still_are(before).unwrap_or(false)
    }
}
