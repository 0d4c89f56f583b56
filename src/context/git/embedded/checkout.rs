//! The files of a tree, written as git writes them.

use std::collections::BTreeSet;
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
use crate::context::git::{Exceeded, GitError, GitLimits, Needs, SHOWN_CHARACTERS};
use crate::context::git_source::Submodules;
use crate::rootfs::{GuestPath, Rootfs, RootfsError, set_mode_at};
use crate::text::line;

/// The longest target of a link, and the longest path, as Linux has them.
const LONGEST_PATH: u64 = 4096;
/// Rules of one directory, in bytes.
const LONGEST_ATTRIBUTES: u64 = 16 << 20;
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
    /// How many bytes of memory that takes, about.
    pub(super) kept: u64,
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
        let mut names = BTreeSet::new();
        for entry in entries() {
            let entry = entry.map_err(|_| GitError::Corrupt(format!("a tree {id} that is none")))?;
            state.entries += 1;
            if self.limits.entries.is_exceeded_by(state.entries) {
                return Err(GitError::Exceeded(Exceeded::Entries(self.limits.entries)));
            }
            (self.stopped)()?;
            let (kind, name) = (entry.mode.kind(), entry.filename);
            check_name(name, kind)?;
            if !names.insert(name) {
                let path = open.path.child(name);
                let shown = line(path.relative(), SHOWN_CHARACTERS);
                return Err(GitError::Corrupt(format!("a tree that has `{shown}` twice")));
            }
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
                let file =
                    file.map_err(|source| RootfsError::Io { action: "make", path: path.clone(), source })?;
                self.fill(state, &path, File::from(file), &id)?;
                if kind == EntryKind::BlobExecutable {
                    made(set_mode_at(directory.as_fd(), name, 0o755))?;
                }
            }
        }
        if let Some(written) = &mut self.written {
            // Each is kept, and once more in the index.
            self.kept += 3 * (path.relative().len() + size_of::<Written>()) as u64;
            if self.kept > self.limits.memory.value {
                return Err(GitError::Exceeded(Exceeded::Memory(self.limits.memory)));
            }
            written.push(Written { path: path.relative().to_vec(), kind, id });
        }
        Ok(())
    }

    fn fill(
        &mut self,
        state: &mut State,
        path: &GuestPath,
        mut file: File,
        id: &ObjectId,
    ) -> Result<(), GitError> {
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::context::git::embedded::pack::tests::{Stored, entry, pack, read};
    use crate::limit::Limit;

    /// A tree, and its name.
    fn tree(entries: &[(&str, &[u8], ObjectId)]) -> (Vec<u8>, ObjectId) {
        let mut content = Vec::new();
        for (mode, name, id) in entries {
            content.extend([mode.as_bytes(), b" ", name, b"\0", id.as_slice()].concat());
        }
        let id = gix_object::compute_hash(gix_hash::Kind::Sha1, gix_object::Kind::Tree, &content).unwrap();
        (content, id)
    }

    fn blob(content: &[u8]) -> ObjectId {
        gix_object::compute_hash(gix_hash::Kind::Sha1, gix_object::Kind::Blob, content).unwrap()
    }

    /// Writes the last of `trees`.
    fn write(trees: &[(Vec<u8>, ObjectId)], limits: GitLimits) -> Result<tempfile::TempDir, GitError> {
        let mut entries: Vec<Vec<u8>> =
            trees.iter().map(|(content, _)| entry(&Stored::Whole(2, content))).collect();
        entries.push(entry(&Stored::Whole(3, b"x")));
        let mut pack = read(&pack(&entries)).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let root = Rootfs::open(directory.path()).unwrap();
        let checkout = Checkout {
            pack: &mut pack,
            root: &root,
            limits,
            submodules: Submodules::Recursive,
            stopped: &|| Ok(()),
            bytes: 0,
            written: None,
            kept: 0,
        };
        checkout.write(&trees.last().unwrap().1).map(|()| directory)
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        let file = blob(b"x");
        let long = vec![b'n'; 256];
        for (mode, name) in [
            ("100644", &b".."[..]),
            ("40000", b".."),
            ("100644", b"."),
            ("100644", b""),
            ("100644", b"a/b"),
            ("100644", b"/etc"),
            ("40000", b".git"),
            ("100644", b".GIT"),
            ("120000", b".gIt"),
            ("100644", b"git~1"),
            ("100644", b".git "),
            ("120000", b".gitmodules"),
            ("100644", &long),
        ] {
            let found = write(&[tree(&[(mode, name, file)])], GitLimits::default());
            assert!(found.is_err(), "{mode} {}", String::from_utf8_lossy(name));
        }
        let good = write(
            &[tree(&[("100644", b".gitmodules", file), ("100644", b"...", file)])],
            GitLimits::default(),
        );
        assert_eq!(std::fs::read(good.unwrap().path().join("...")).unwrap(), b"x");
    }

    #[test]
    fn nothing_is_written_through_a_link_or_over_something() {
        let file = blob(b"x");
        let below = tree(&[("100644", b"owned", file)]);
        for entries in [
            [("120000", &b"a"[..], file), ("40000", b"a", below.1)],
            [("40000", b"a", below.1), ("120000", b"a", file)],
            [("100644", b"a", file), ("100644", b"a", file)],
        ] {
            let error = write(&[below.clone(), tree(&entries)], GitLimits::default()).err().unwrap();
            assert_eq!(error.to_string(), "the server of the repository sent a tree that has `a` twice");
        }
        let twice = tree(&[("100644", b"b\n", file), ("100644", b"b-", file), ("40000", b"b\n", below.1)]);
        let top = tree(&[("40000", b"a", twice.1)]);
        let error = write(&[below, twice, top], GitLimits::default()).err().unwrap();
        assert!(error.to_string().ends_with("a tree that has `a/b\\n` twice"), "{error}");
    }

    #[test]
    fn a_tree_of_trees_that_are_all_the_same_ends_at_the_limit() {
        let mut trees = vec![tree(&[("100644", b"f", blob(b"x"))])];
        for _ in 0..30 {
            let below = trees.last().unwrap().1;
            trees.push(tree(&[("40000", b"a", below), ("40000", b"b", below)]));
        }
        let limits = GitLimits { entries: Limit::new("git-entries", 1000), ..GitLimits::default() };
        let error = write(&trees, limits).err().unwrap().to_string();
        assert!(error.contains("--limit git-entries=N"), "{error}");
        let name = [b'n'; 200];
        let deep = (0..30).fold(vec![tree(&[])], |mut trees, _| {
            let below = trees.last().unwrap().1;
            trees.push(tree(&[("40000", &name, below)]));
            trees
        });
        let error = write(&deep, GitLimits::default()).err().unwrap().to_string();
        assert!(error.contains("paths of more than 4096 bytes"), "{error}");
    }

    #[test]
    fn what_is_no_tree_or_is_missing_is_an_error_and_the_end_can_come_at_any_time() {
        let nonsense = b"100644 a".to_vec();
        let id = gix_object::compute_hash(gix_hash::Kind::Sha1, gix_object::Kind::Tree, &nonsense).unwrap();
        assert!(write(&[(nonsense, id)], GitLimits::default()).is_err());
        let missing = write(&[tree(&[("100644", b"a", blob(b"other"))])], GitLimits::default());
        assert!(missing.err().unwrap().to_string().contains("no object"));
        let tree = tree(&[("100644", b"a", blob(b"x")), ("100644", b"b", blob(b"x"))]);
        let mut pack =
            read(&pack(&[entry(&Stored::Whole(2, &tree.0)), entry(&Stored::Whole(3, b"x"))])).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let root = Rootfs::open(directory.path()).unwrap();
        let asked = Cell::new(0);
        let stopped: &dyn Fn() -> Result<(), GitError> = &|| {
            asked.set(asked.get() + 1);
            if asked.get() > 1 { Err(GitError::Cancelled) } else { Ok(()) }
        };
        let checkout = Checkout {
            pack: &mut pack,
            root: &root,
            limits: GitLimits::default(),
            submodules: Submodules::Skip,
            stopped,
            bytes: 0,
            written: None,
            kept: 0,
        };
        assert!(matches!(checkout.write(&tree.1), Err(GitError::Cancelled)));
        assert!(directory.path().join("a").exists() && !directory.path().join("b").exists());
    }
}
