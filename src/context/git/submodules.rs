//! Repositories within a repository: fetched one level after the other, so that they are counted before.

use std::collections::BTreeSet;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::command::Ended;
use super::{Exceeded, GitError, Inside, writing};
use crate::rootfs::{FileKind, GuestPath, Rootfs, metadata_at};

/// Where the paths of submodules stand.
const FILE: &str = ".gitmodules";

/// A repository whose submodules are to come.
struct Level {
    /// Where git keeps its own, or a file that says where.
    repository: PathBuf,
    tree: PathBuf,
    /// How deep its submodules are.
    depth: u64,
}

impl Inside<'_> {
    /// Checks out the submodules, and theirs.
    ///
    /// # Errors
    /// [`GitError`].
    pub(super) fn check_out_submodules(&self) -> Result<(), GitError> {
        let limits = self.session.limits();
        let action = format!("check out the submodules of {}", self.source.shown());
        let mut count = 0;
        let (repository, tree) = (self.repository.to_owned(), self.tree.to_owned());
        let mut waiting = vec![Level { repository, tree, depth: 1 }];
        while let Some(Level { repository, tree, depth }) = waiting.pop() {
            let paths = self.paths(&repository, &tree)?;
            if paths.is_empty() {
                continue;
            }
            count += paths.len() as u64;
            if limits.submodules.is_exceeded_by(count) {
                return Err(GitError::Exceeded(Exceeded::Submodules(limits.submodules)));
            }
            if limits.nesting.is_exceeded_by(depth) {
                return Err(GitError::Exceeded(Exceeded::Nesting(limits.nesting)));
            }
            let arguments = ["submodule", "-q", "update", "--init", "--progress", "--depth=1"];
            self.session.run_in(&action, Some((&repository, &tree)), &arguments)?;
            for path in paths {
                if let Some(tree) = checked_out(&tree, &path)? {
                    waiting.push(Level { repository: tree.join(".git"), tree, depth: depth + 1 });
                }
            }
        }
        Ok(())
    }

    /// The paths of the submodules of a repository, as its files say. Not all need be there.
    fn paths(&self, repository: &Path, tree: &Path) -> Result<BTreeSet<Vec<u8>>, GitError> {
        let file = tree.join(FILE);
        match std::fs::symlink_metadata(&file) {
            Ok(found) if found.is_file() => {}
            // As git does, which follows no link there.
            _ => return Ok(BTreeSet::new()),
        }
        let arguments = ["config", "-z", "-f", FILE, "--get-regexp", "^submodule\\..*\\.path$"];
        match self.session.try_in(Some((repository, tree)), &arguments)? {
            Ok(said) => {
                let values = said.split(|byte| *byte == 0).filter_map(|entry| {
                    let at = entry.iter().position(|byte| *byte == b'\n')?;
                    Some(entry[at + 1..].to_vec())
                });
                Ok(values.collect())
            }
            // None at all.
            Err(Ended { status: Some(1), .. }) => Ok(BTreeSet::new()),
            Err(ended) => Err(ended.when("list submodules")),
        }
    }
}

/// The files of the submodule at `path` of `tree`, if git has made them. What a path leads through is no link: git would
/// not have gone there either.
fn checked_out(tree: &Path, path: &[u8]) -> Result<Option<PathBuf>, GitError> {
    let Some(path) = GuestPath::parse(path).ok().filter(|path| !path.is_root()) else { return Ok(None) };
    let root = Rootfs::open(tree).map_err(writing(tree))?;
    let Ok(Some(directory)) = root.exact_directory(&path) else { return Ok(None) };
    // git puts a file there that says where its own directory is. Without it git would look above.
    let is_module = metadata_at(directory.as_fd(), b".git").is_ok_and(|found| found.kind == FileKind::File);
    Ok(is_module.then(|| tree.join(std::ffi::OsStr::from_bytes(path.relative()))))
}
