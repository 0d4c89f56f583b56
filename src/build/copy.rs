//! COPY: files of a context or another root, or here-documents, into a root, as BuildKit does.

mod content;
mod entry;
mod filter;
mod fingerprint;
mod select;
mod tree;
mod walk;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::AsFd;

use crate::context::IgnoreRules;
use crate::context::glob::GlobError;
use crate::dockerfile::{Mode, ModeTarget};
use crate::limit::Limit;
use crate::rootfs::{
    Escaped, FileKind, Follow, GuestPath, GuestPathError, Metadata, Owner, Rootfs, RootfsError, Timestamp,
    set_times_at,
};

use filter::Filter;

pub(super) use fingerprint::{Fingerprint, Names, Sources};
pub(super) use select::{Selected, find};

/// What one instruction copies, and to where.
#[derive(Debug, Clone)]
pub struct CopyRequest<'a> {
    /// In the order in which they are copied.
    pub sources: Vec<CopySource<'a>>,
    /// Where paths among the sources are looked up.
    pub from: SourceTree<'a>,
    /// As written, variables expanded: relative to `workdir`; empty is `workdir` itself; a `/`, `/.` or nothing but `.` at
    /// its end makes it a directory.
    pub destination: &'a [u8],
    /// The working directory of the instruction.
    pub workdir: &'a GuestPath,
    /// Overrides the owner of everything that is made.
    pub chown: Option<Owner>,
    /// Overrides, or changes, the mode of all that is copied except links. Directories that are made on the way there
    /// take its permission bits if these are given as a number.
    pub chmod: Option<&'a Mode>,
    /// What of each source that is a directory is left out: paths in it.
    pub exclude: Option<&'a IgnoreRules>,
    /// What becomes of the directories that a source's path leads through.
    pub parents: Parents,
}

/// What becomes of the directories that a source's path leads through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parents {
    /// The destination has none of them.
    Dropped,
    /// The destination has those behind the first `/./`, or all: `--parents`.
    Kept,
}

/// One thing to copy.
#[derive(Debug, Clone, Copy)]
pub enum CopySource<'a> {
    /// A path or wildcard pattern in the source tree, as written, variables expanded.
    Path(&'a [u8]),
    /// A path in the source tree that is no pattern, whatever characters it has.
    Exact(&'a GuestPath),
    /// A here-document: a new file.
    Inline {
        /// Its name where the destination is a directory.
        name: &'a [u8],
        /// All of it.
        content: &'a [u8],
    },
}

/// Where sources come from.
#[derive(Debug, Clone, Copy)]
pub struct SourceTree<'a> {
    /// The build context, or the root of a stage or image.
    pub root: &'a Rootfs,
    /// What of it does not exist.
    pub ignore: Option<&'a IgnoreRules>,
    /// Whose the copies are.
    pub owner: OwnerPolicy,
}

/// Whose a copy is, unless the instruction says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnerPolicy {
    /// 0:0, as for everything from a build context.
    Root,
    /// The owner in the source tree, as for `--from`.
    Keep,
}

/// How much was copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Copied {
    /// Entries other than directories.
    pub files: u64,
    /// Sizes of regular files; holes and each name of a file count.
    pub bytes: u64,
}

/// The rule that took a source away.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("excluded by `{file}` line {line}: `{pattern}`")]
pub struct Excluded {
    /// The name of the file of rules.
    pub file: String,
    /// Counts from 1.
    pub line: usize,
    /// The line.
    pub pattern: String,
}

/// Why something could not be copied.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// A source that is not there, or not visible.
    #[error("\"{path}\": not found{}", DidYouMean(.near))]
    NotFound {
        /// The source as written.
        written: Escaped,
        /// The source from the root of the tree.
        path: Escaped,
        /// The rule that excludes it, if it exists.
        #[source]
        excluded: Option<Box<Excluded>>,
        /// A name in the same directory that resembles it.
        near: Option<Escaped>,
    },
    /// A directory where something else is.
    #[error("cannot copy to non-directory: {path}")]
    CannotCopyToNonDirectory {
        /// What is in the way.
        path: GuestPath,
    },
    /// A file where a directory is.
    #[error("cannot replace to directory {path} with file")]
    CannotReplaceDirectoryWithFile {
        /// What is in the way.
        path: GuestPath,
    },
    /// Something on the way to the destination.
    #[error("`{path}` is not a directory")]
    NotADirectory {
        /// The directory that was to be.
        path: GuestPath,
    },
    /// A path longer than Linux takes.
    #[error("`{path}` is nested too deeply: its path is longer than 4096 bytes")]
    TooDeep {
        /// The beginning of the path.
        path: Escaped,
    },
    /// A source or destination that is no path.
    #[error("`{written}` is not a usable path")]
    Path {
        /// As written.
        written: Escaped,
        /// What is wrong with it.
        #[source]
        source: GuestPathError,
    },
    /// A wildcard that is none.
    #[error("`{written}` is not a valid pattern")]
    Pattern {
        /// As written.
        written: Escaped,
        /// What is wrong with it.
        #[source]
        source: GlobError,
    },
    /// Somebody wrote to the source meanwhile.
    #[error("`{path}` changed while it was being copied")]
    Changed {
        /// The file in the source tree.
        path: GuestPath,
    },
    /// No layer may have so much in it.
    #[error("with `{path}`, the files to copy hold more than {value} bytes; {limit}", value = .limit.value)]
    TooLarge {
        /// The first file that is too much.
        path: GuestPath,
        /// What is allowed.
        limit: Limit,
    },
    /// Links that lead to each other.
    #[error("`{path}` is a loop of symbolic links, or leads through more than 40 of them")]
    LinkLoop {
        /// The path in the source tree that was followed.
        path: GuestPath,
    },
    /// The source tree could not be read.
    #[error("cannot read the source")]
    Source(#[source] RootfsError),
    /// The destination could not be read or written.
    #[error("cannot write the destination")]
    Destination(#[source] RootfsError),
    /// An extended attribute that there is no room for.
    #[error("cannot give `{path}` the extended attribute `{key}` ({size} bytes)")]
    Attribute {
        /// The copy.
        path: GuestPath,
        /// The attribute's name.
        key: Escaped,
        /// Bytes of its value.
        size: usize,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// A system call failed.
    #[error("cannot {action} `{path}`")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: GuestPath,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
}

struct DidYouMean<'a>(&'a Option<Escaped>);

impl fmt::Display for DidYouMean<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |near| write!(f, " (did you mean `{near}`?)"))
    }
}

/// Names what a system call was to do, for its error.
pub(super) fn tried<T, E: Into<io::Error>>(
    result: Result<T, E>,
    action: &'static str,
    path: &GuestPath,
) -> Result<T, CopyError> {
    result.map_err(|error| CopyError::Io { action, path: path.clone(), source: error.into() })
}

/// Copies everything that `request` names into `onto`. Directories that are made for it get `now` as their time of
/// modification, as do here-documents.
///
/// All sources are looked up before anything is written; a later failure leaves what was copied so far.
///
/// # Errors
/// [`CopyError`].
pub fn copy(request: &CopyRequest<'_>, onto: &Rootfs, now: Timestamp) -> Result<Copied, CopyError> {
    let mut copier = Copier::new(request, onto, now)?;
    for selected in copier.select()? {
        copier.place(&selected)?;
    }
    copier.finish()
}

/// One instruction at work.
pub(super) struct Copier<'a> {
    pub(super) request: &'a CopyRequest<'a>,
    pub(super) onto: &'a Rootfs,
    pub(super) now: Timestamp,
    destination: GuestPath,
    form: Form,
    pub(super) done: Copied,
    pub(super) buffer: Vec<u8>,
    /// What directories that got a new entry, or were the top of a source, shall have in the end. The kernel's clock is
    /// not ours.
    directory_times: BTreeMap<GuestPath, Timestamp>,
}

/// What a destination must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// A directory.
    Directory,
    /// A directory if one is there or a directory is copied, else the new name of a file.
    Any,
}

/// The destination that is `written` in an instruction with the working directory `workdir`, and what it must be.
pub(super) fn destination(workdir: &GuestPath, written: &[u8]) -> Result<(GuestPath, Form), CopyError> {
    let path =
        workdir.join(written).map_err(|source| CopyError::Path { written: Escaped::new(written), source })?;
    let is_directory = matches!(written, b"" | b".") || written.ends_with(b"/") || written.ends_with(b"/.");
    Ok((path, if is_directory { Form::Directory } else { Form::Any }))
}

impl<'a> Copier<'a> {
    pub(super) fn new(
        request: &'a CopyRequest<'a>,
        onto: &'a Rootfs,
        now: Timestamp,
    ) -> Result<Self, CopyError> {
        let (destination, form) = destination(request.workdir, request.destination)?;
        Ok(Self {
            request,
            onto,
            now,
            destination,
            form,
            done: Copied::default(),
            buffer: vec![0; 1 << 17],
            directory_times: BTreeMap::new(),
        })
    }

    /// Looks up all sources.
    pub(super) fn select(&self) -> Result<Vec<Selected<'a>>, CopyError> {
        let mut selected = Vec::new();
        for source in &self.request.sources {
            match *source {
                CopySource::Path(written) => {
                    select::select(&self.request.from, written, self.request.parents, &mut selected)?;
                }
                CopySource::Exact(path) => selected.push(select::exact(&self.request.from, path)?),
                CopySource::Inline { name, content } => selected.push(Selected::Inline { name, content }),
            }
        }
        Ok(selected)
    }

    /// Copies one source to the destination.
    pub(super) fn place(&mut self, selected: &Selected<'_>) -> Result<(), CopyError> {
        let above = match self.form {
            Form::Directory => self.destination.clone(),
            Form::Any => self.destination.parent().unwrap_or_else(GuestPath::root),
        };
        self.make_directories(&above)?;
        let target = self.onto.resolve(&self.destination).map_err(CopyError::Destination)?;
        let existing = self.onto.metadata(&target, Follow::No).map_err(CopyError::Destination)?;
        let existing = existing.map(|metadata| metadata.kind);
        if let Selected::Tree { path, metadata, only, .. } = selected
            && metadata.kind == FileKind::Directory
        {
            if existing.is_some_and(|kind| kind != FileKind::Directory) {
                return Err(CopyError::CannotCopyToNonDirectory { path: target });
            }
            let filter = Filter::new(&self.request.from, path, self.request.exclude, only.as_deref());
            return self.place_directory(path, metadata, &filter, target);
        }
        let target = match existing {
            Some(FileKind::Directory) => child(&target, selected.name())?,
            // Where it is the target of a dangling link, its directory may be missing.
            _ => {
                self.make_directories(&target.parent().unwrap_or_else(GuestPath::root))?;
                target
            }
        };
        self.place_file(selected, &target)?;
        self.directory_times.extend(target.parent().map(|parent| (parent, self.now)));
        Ok(())
    }

    fn place_directory(
        &mut self,
        source: &GuestPath,
        metadata: &Metadata,
        filter: &Filter<'_>,
        target: GuestPath,
    ) -> Result<(), CopyError> {
        self.make_directories(&target)?;
        tree::copy(self, filter, source, &target)?;
        // Mode and owner stay those of the destination, as in BuildKit; the time is taken over, unless the directory is but
        // where paths begin: what else is in there is none of the instruction's business. No layer tells the time of the root:
        // with layers that are remembered, or stacked, it would be another one than where the steps were just done.
        let unknown = source.is_root() && self.request.from.owner == OwnerPolicy::Keep;
        let time = match self.request.parents {
            Parents::Dropped if !unknown => metadata.mtime,
            Parents::Dropped | Parents::Kept => self.now,
        };
        self.directory_times.insert(target, time);
        Ok(())
    }

    fn place_file(&mut self, selected: &Selected<'_>, target: &GuestPath) -> Result<(), CopyError> {
        let (directory, name) = self.onto.parent(target).map_err(CopyError::Destination)?;
        let to = entry::Place { directory: &directory, name: &name, path: target };
        match selected {
            Selected::Tree { path, metadata, .. } => {
                let (directory, name) = self.request.from.root.parent(path).map_err(CopyError::Source)?;
                let from = entry::Place { directory: &directory, name: &name, path };
                entry::copy(self, &from, metadata, &to)
            }
            Selected::Inline { content, .. } => entry::write(self, content, &to),
        }
    }

    /// Makes the destination a directory, as the extraction of an archive needs it, where `--chmod` has no say; returns
    /// its real path.
    pub(super) fn directory(&mut self) -> Result<GuestPath, CopyError> {
        let destination = self.destination.clone();
        self.make_directories_with(&destination, 0o755, self.request.chown.unwrap_or(Owner::ROOT))?;
        self.onto.resolve(&destination).map_err(CopyError::Destination)
    }

    fn make_directories(&mut self, path: &GuestPath) -> Result<(), CopyError> {
        let mode = match self.request.chmod {
            Some(Mode::Octal(mode)) => mode & 0o777,
            Some(Mode::Symbolic(_)) | None => 0o755,
        };
        self.make_directories_with(path, mode, self.request.chown.unwrap_or(Owner::ROOT))
    }

    fn make_directories_with(&mut self, path: &GuestPath, mode: u32, owner: Owner) -> Result<(), CopyError> {
        let made = self.onto.create_dirs(path, mode, owner).map_err(|error| match error.kind() {
            io::ErrorKind::NotADirectory => CopyError::NotADirectory { path: path.clone() },
            _ => CopyError::Destination(error),
        })?;
        for path in made {
            self.directory_times.extend(path.parent().map(|parent| (parent, self.now)));
            self.directory_times.insert(path, self.now);
        }
        Ok(())
    }

    /// The owner of a copy of something that `owner` has.
    pub(super) fn owner_for(&self, owner: Owner) -> Owner {
        match (self.request.chown, self.request.from.owner) {
            (Some(chown), _) => chown,
            (None, OwnerPolicy::Root) => Owner::ROOT,
            (None, OwnerPolicy::Keep) => owner,
        }
    }

    /// The mode of a copy of something of this kind that has `mode`.
    pub(super) fn mode_for(&self, kind: FileKind, mode: u32) -> u32 {
        let target = match kind {
            FileKind::Directory => ModeTarget::Directory,
            _ => ModeTarget::File,
        };
        self.request.chmod.map_or(mode, |change| change.apply(target, mode))
    }

    /// Gives directories their times, now that nothing is added to them any more.
    pub(super) fn finish(self) -> Result<Copied, CopyError> {
        for (path, time) in &self.directory_times {
            let (directory, name) = self.onto.parent(path).map_err(CopyError::Destination)?;
            tried(set_times_at(directory.as_fd(), &name, *time), "set the times of", path)?;
        }
        Ok(self.done)
    }
}

/// The entry `name` of `directory`, if its path is one that Linux takes.
fn child(directory: &GuestPath, name: &[u8]) -> Result<GuestPath, CopyError> {
    let path = directory.child(name);
    if path.as_bytes().len() < crate::rootfs::guest_path::MAX_PATH {
        Ok(path)
    } else {
        Err(CopyError::TooDeep { path: Escaped::new(path.as_bytes()) })
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the tests prepare trees of their own on the host")]
pub(super) mod tests;
