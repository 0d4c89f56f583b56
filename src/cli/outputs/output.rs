//! One output of a build: what is written, where, and what the image is like.

use std::path::{Path, PathBuf};

use super::annotations::Annotations;
use crate::build::clock::Clock;
use crate::image::encoding::Encoding;
use crate::image::reference::Reference;
use crate::layer::form::{Converted, LayerForm, LayerRequest, Times};
use crate::rootfs::Others;
use crate::store::export::Readers;

/// Where a stream of bytes goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Dest {
    /// Into a file.
    File(PathBuf),
    /// To standard output.
    StandardOutput,
}

impl Dest {
    /// `-` and `/dev/stdout` are standard output.
    pub(super) fn of(path: &Path) -> Self {
        match path.to_str() {
            Some("-" | "/dev/stdout") => Self::StandardOutput,
            _ => Self::File(path.to_owned()),
        }
    }

    /// Whether somebody may read it while it is written: a pipe, a terminal.
    pub(super) fn is_read_meanwhile(&self) -> bool {
        match self {
            Self::File(path) => path.metadata().is_ok_and(|found| !found.is_file()),
            Self::StandardOutput => true,
        }
    }
}

/// What an image is like that is written somewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ImageForm {
    /// Whose types its documents have.
    pub(super) encoding: Encoding,
    /// How the layers of the build are stored.
    pub(super) layers: LayerForm,
    /// Whether those of the base are stored like that as well.
    pub(super) converted: Converted,
    /// What becomes of the times in the layers of the build.
    pub(super) times: Times,
    /// The latest time in config and history, and for [`Times::Lowered`]; none but the build's own if it is not given.
    pub(super) epoch: Option<i64>,
    /// What is said of it besides.
    pub(super) annotations: Annotations,
}

impl ImageForm {
    /// What its layers are to be like, where it is `clock` for the build.
    pub(super) fn layers(&self, clock: Clock) -> LayerRequest {
        let own = LayerRequest::own(self.layers, self.times, self.epoch.or(clock.epoch()));
        LayerRequest { converted: self.converted, ..own }
    }
}

/// Under which names an image is pushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PushedAs {
    /// By its tags.
    Tag,
    /// By its digest alone.
    Digest,
}

/// One thing that comes out of a build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Output {
    /// What asked for it, as messages call that.
    pub(super) flag: String,
    /// What it is.
    pub(super) kind: Kind,
}

/// What an output is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    /// An image in a registry.
    Push { names: Vec<Reference>, form: ImageForm, by: PushedAs },
    /// An image in the store; `by` is how `--push` pushes it.
    Stored { names: Vec<Reference>, form: ImageForm, by: PushedAs },
    /// An OCI layout.
    Layout { dest: PathBuf, readers: Readers, names: Vec<Reference>, form: ImageForm },
    /// An OCI layout in a tar archive.
    Archive { dest: Dest, readers: Readers, names: Vec<Reference>, form: ImageForm },
    /// The root file systems, in the order of the platforms, each in its own of the directories `trees` in `dest`; all in the
    /// only one of them where that is `dest` itself.
    Directory { dest: PathBuf, trees: Vec<PathBuf>, others: Others },
    /// The root file systems in a tar archive, in the order of the platforms, each in a directory of this name; all in none
    /// where there are no names.
    Tar { dest: Dest, below: Vec<String> },
}

impl Output {
    /// The file or directory that is written.
    pub(super) fn path(&self) -> Option<&Path> {
        match &self.kind {
            Kind::Push { .. } | Kind::Stored { .. } => None,
            Kind::Layout { dest, .. } | Kind::Directory { dest, .. } => Some(dest),
            Kind::Archive { dest, .. } | Kind::Tar { dest, .. } => match dest {
                Dest::File(path) => Some(path),
                Dest::StandardOutput => None,
            },
        }
    }

    /// The directories in [`Output::path`] that it has for platforms.
    pub(super) fn directories(&self) -> &[PathBuf] {
        match &self.kind {
            Kind::Directory { dest, trees, .. } if trees.first() != Some(dest) => trees,
            _ => &[],
        }
    }

    /// Whether the files of all platforms are in one directory.
    pub(super) fn merges(&self) -> bool {
        match &self.kind {
            Kind::Directory { .. } => self.directories().is_empty(),
            Kind::Tar { below, .. } => below.is_empty(),
            _ => false,
        }
    }

    /// Whether it goes to standard output.
    pub(super) fn is_streamed(&self) -> bool {
        let dest = match &self.kind {
            Kind::Archive { dest, .. } | Kind::Tar { dest, .. } => dest,
            _ => return false,
        };
        *dest == Dest::StandardOutput
    }

    /// The names of its image; none where it is not one.
    pub(super) fn names(&self) -> Option<&[Reference]> {
        match &self.kind {
            Kind::Push { names, .. }
            | Kind::Stored { names, .. }
            | Kind::Layout { names, .. }
            | Kind::Archive { names, .. } => Some(names),
            Kind::Directory { .. } | Kind::Tar { .. } => None,
        }
    }

    /// Whether its image has tags, or nothing but its digest.
    pub(super) fn named_by(&self) -> PushedAs {
        match self.kind {
            Kind::Push { by, .. } => by,
            _ => PushedAs::Tag,
        }
    }

    /// What its image is like; none where it is not one.
    pub(super) fn image(&self) -> Option<&ImageForm> {
        match &self.kind {
            Kind::Push { form, .. }
            | Kind::Stored { form, .. }
            | Kind::Layout { form, .. }
            | Kind::Archive { form, .. } => Some(form),
            Kind::Directory { .. } | Kind::Tar { .. } => None,
        }
    }
}
