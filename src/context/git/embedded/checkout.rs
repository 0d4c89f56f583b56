//! The files of a tree, written as git writes them.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use gix_hash::ObjectId;
use gix_object::TreeRefIter;
use gix_object::tree::EntryKind;
use gix_validate::path::component;

use super::attributes::Attributes;
use super::pack::{Pack, Type};
use crate::context::git::{Exceeded, GitError, GitLimits, Needs};
use crate::context::git_source::Submodules;
use crate::rootfs::{GuestPath, Rootfs, RootfsError, set_mode_at};
use crate::text::line;

/// The longest target of a link, and the longest path, as Linux has them.
const LONGEST_PATH: u64 = 4096;
/// Rules of one directory, in bytes.
const LONGEST_ATTRIBUTES: u64 = 16 << 20;
/// How much of a name is shown.
const SHOWN_CHARACTERS: usize = 300;

/// A file, link or submodule that was written.
pub(super) struct Written {
    pub(super) path: Vec<u8>,
    pub(super) kind: EntryKind,
    pub(super) id: ObjectId,
}

/// Where the files of a commit come from and go to.
pub(super) struct Checkout<'a, 'p> {
    pub(super) pack: &'a mut Pack<'p>,
    pub(super) root: &'a Rootfs,
    pub(super) limits: GitLimits,
    pub(super) submodules: Submodules,
    pub(super) stopped: &'a dyn Fn() -> Result<(), GitError>,
    /// How many bytes there are already.
    pub(super) bytes: u64,
    /// What was written, if somebody wants to know.
    pub(super) written: Option<&'a mut Vec<Written>>,
}

/// A directory whose files are written, but not all of its directories.
struct Open {
    path: GuestPath,
    waiting: Vec<(Vec<u8>, ObjectId)>,
    has_rules: bool,
}

/// What is in progress.
struct State {
    rules: Attributes,
    entries: u64,
    /// Whether there is a list of submodules.
    names_submodules: bool,
}

impl Checkout<'_, '_> {
    /// Writes all files of the tree `id`.
    pub(super) fn write(mut self, id: &ObjectId) -> Result<(), GitError> {
        let mut state = State { rules: Attributes::new()?, entries: 0, names_submodules: false };
        let mut open = vec![self.enter(&mut state, GuestPath::root(), id)?];
        while let Some(last) = open.last_mut() {
            (self.stopped)()?;
            if let Some((name, id)) = last.waiting.pop() {
                let path = last.path.child(&name);
                if path.as_bytes().len() as u64 > LONGEST_PATH {
                    return Err(GitError::Corrupt(format!("paths of more than {LONGEST_PATH} bytes")));
                }
                let next = self.enter(&mut state, path, &id)?;
                open.push(next);
                continue;
            }
            if last.has_rules {
                state.rules.leave();
            }
            open.pop();
        }
        Ok(())
    }

    /// Writes what is in one directory, and makes the directories in it.
    fn enter(&mut self, state: &mut State, path: GuestPath, id: &ObjectId) -> Result<Open, GitError> {
        let hash = self.pack.hash();
        let tree = self.pack.object(id, Type::Tree)?;
        let directory = self.root.directory(&path)?;
        let entries = || TreeRefIter::from_bytes(&tree, hash);
        let mut has_rules = false;
        for entry in entries() {
            let entry = entry.map_err(|_| GitError::Corrupt(format!("a tree {id} that is none")))?;
            let is_file = matches!(entry.mode.kind(), EntryKind::Blob | EntryKind::BlobExecutable);
            if is_file && entry.filename == ".gitattributes" {
                let id = entry.oid.to_owned();
                if self.pack.size(&id, Type::Blob)? > LONGEST_ATTRIBUTES {
                    return Err(GitError::Corrupt(format!(
                        "more than {LONGEST_ATTRIBUTES} bytes of `.gitattributes`"
                    )));
                }
                let text = self.pack.object(&id, Type::Blob)?;
                state.rules.enter(Path::new(OsStr::from_bytes(path.relative())), &text)?;
                has_rules = true;
            }
            state.names_submodules |= is_file && path.is_root() && entry.filename == ".gitmodules";
        }
        let mut open = Open { path, waiting: Vec::new(), has_rules };
        for entry in entries() {
            let entry = entry.map_err(|_| GitError::Corrupt(format!("a tree {id} that is none")))?;
            state.entries += 1;
            if self.limits.entries.is_exceeded_by(state.entries) {
                return Err(GitError::Exceeded(Exceeded::Entries(self.limits.entries)));
            }
            (self.stopped)()?;
            let (kind, name) = (entry.mode.kind(), entry.filename);
            check_name(name, kind)?;
            let id = entry.oid.to_owned();
            self.entry(state, &mut open, &directory, kind, name, id)?;
        }
        Ok(open)
    }

    fn entry(
        &mut self,
        state: &mut State,
        open: &mut Open,
        directory: &OwnedFd,
        kind: EntryKind,
        name: &[u8],
        id: ObjectId,
    ) -> Result<(), GitError> {
        let path = open.path.child(name);
        let entry = self.root.entry(directory, name);
        let made = |result: std::io::Result<()>| {
            result.map_err(|source| RootfsError::Io { action: "make", path: path.clone(), source })
        };
        match kind {
            EntryKind::Tree => {
                made(entry.make_directory())?;
                open.waiting.push((name.to_vec(), id));
                return Ok(());
            }
            EntryKind::Commit => {
                if state.names_submodules && self.submodules == Submodules::Recursive {
                    return Err(GitError::Missing(Needs::Submodules));
                }
                made(entry.make_directory())?;
            }
            EntryKind::Link => {
                if self.pack.size(&id, Type::Blob)? >= LONGEST_PATH {
                    return Err(GitError::Corrupt(format!("a link of more than {LONGEST_PATH} bytes")));
                }
                let target = self.pack.object(&id, Type::Blob)?;
                self.count(target.len() as u64)?;
                made(entry.make_symlink(&target))?;
            }
            EntryKind::Blob | EntryKind::BlobExecutable => {
                let file = entry.make_file();
                let file = file.map_err(|source| RootfsError::Io { action: "make", path: path.clone(), source })?;
                self.fill(state, &path, File::from(file), &id)?;
                if kind == EntryKind::BlobExecutable {
                    made(set_mode_at(directory.as_fd(), name, 0o755))?;
                }
            }
        }
        if let Some(written) = &mut self.written {
            written.push(Written { path: path.relative().to_vec(), kind, id });
        }
        Ok(())
    }

    fn fill(&mut self, state: &mut State, path: &GuestPath, mut file: File, id: &ObjectId) -> Result<(), GitError> {
        let size = self.pack.size(id, Type::Blob)?;
        let conversion = state.rules.of(path.relative())?;
        if conversion.changes_nothing() {
            self.count(size)?;
            return self.pack.write(id, Type::Blob, &mut file);
        }
        // Stored, with its name in it, and with other ends of lines.
        if self.limits.memory.is_exceeded_by(size.saturating_mul(5)) {
            return Err(GitError::Exceeded(Exceeded::Memory(self.limits.memory)));
        }
        let content = self.pack.object(id, Type::Blob)?;
        let content = conversion.convert(&content, &id.to_string());
        self.count(content.len() as u64)?;
        file.write_all(&content).map_err(GitError::Pack)
    }

    fn count(&mut self, bytes: u64) -> Result<(), GitError> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.limits.bytes.is_exceeded_by(self.bytes) {
            return Err(GitError::Exceeded(Exceeded::Bytes(self.limits.bytes)));
        }
        Ok(())
    }
}

/// As git: neither `.git`, however it is written, nor a way out.
fn check_name(name: &[u8], kind: EntryKind) -> Result<(), GitError> {
    let options = component::Options { protect_windows: false, protect_hfs: false, protect_ntfs: true };
    let mode = (kind == EntryKind::Link).then_some(component::Mode::Symlink);
    match gix_validate::path::component(name.into(), mode, options) {
        Ok(_) if !name.contains(&0) => Ok(()),
        _ => Err(GitError::Corrupt(format!("a file by the name `{}`", line(name, SHOWN_CHARACTERS)))),
    }
}
