//! Whether the root of the container holds the container's own files, and their return if it does not.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use super::claim::{ASIDE, Claim, PRIVATE_DIRECTORY, is_empty, open_root};
use super::error::InPlaceError;
use super::journal::Journal;
use crate::rootfs::remove::enter;
use crate::sandbox::Survivors;

/// Whether the root had to be given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repaired {
    /// It was the container's own.
    Nothing,
    /// It was an image's, wholly or in part, and is the container's again.
    Root,
}

/// Why files of the container cannot be told from those of an image. Whoever meets this need not have asked for steps in
/// place.
#[derive(Debug, thiserror::Error)]
pub enum OwnRootError {
    /// A living builder has exchanged it.
    #[error(
        "the root of this container holds files of an image for the moment: another builder runs a step in it, and holds `{lock}`"
    )]
    InUse {
        /// Its lock.
        lock: PathBuf,
    },
    /// A dead builder has, for a step of which some lives.
    #[error("the root of this container holds files of an image, and a step in it is not over: {0}")]
    Alive(Survivors),
    /// A dead builder has, and nobody can undo it.
    #[error(
        "the root of this container holds files of an image, which a builder that was killed has left there, and the container's own cannot be put back"
    )]
    Irreparable(#[source] InPlaceError),
}

impl OwnRootError {
    /// What to do.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::InUse { .. } => "wait until that builder has ended, or use a container of your own",
            Self::Alive(_) => "wait until they have ended, or restart the container",
            Self::Irreparable(_) => "start a new container",
        }
    }
}

/// The root of a container that a killed builder has left to an image, wholly or in part. Nobody else has it.
#[derive(Debug)]
pub struct ForeignRoot(Claim);

/// Finds out whether the root of the container, `root`, is its own; to be called before anything is read there, whatever
/// for. Where there is nothing to be undone, none is given, nothing is changed, nor is it an error if this process could
/// not: what else a killed builder left is for the next that runs steps in place.
///
/// Calls `waiting` if it has to wait until a killed builder's step has ended. That may take half a minute, and may be
/// broken off.
///
/// Who may not look into the builder's own directory, an ordinary user, cannot find out, and is not stopped.
///
/// # Errors
/// When it is an image's and stays so.
pub fn find_foreign_root(root: &Path, waiting: &dyn Fn()) -> Result<Option<ForeignRoot>, OwnRootError> {
    if !is_foreign(root) {
        return Ok(None);
    }
    match Claim::take_as_it_is(root, waiting) {
        Ok(claim) => Ok(Some(ForeignRoot(claim))),
        // Its step may have ended meanwhile.
        Err(InPlaceError::Busy { .. }) if !is_foreign(root) => Ok(None),
        Err(InPlaceError::Busy { lock }) => Err(OwnRootError::InUse { lock }),
        Err(InPlaceError::Alive(survivors)) => Err(OwnRootError::Alive(survivors)),
        Err(error) => Err(OwnRootError::Irreparable(error)),
    }
}

impl ForeignRoot {
    /// Undoes what that builder left half done. It takes moments, and half of it would be worse than none.
    ///
    /// # Errors
    /// When the root is an image's and stays so.
    pub fn give_back(self) -> Result<Repaired, OwnRootError> {
        let Self(mut claim) = self;
        claim.repair().map_err(OwnRootError::Irreparable)?;
        Ok(claim.repaired())
    }
}

/// Whether files of the container may be aside.
fn is_foreign(root: &Path) -> bool {
    let private = open_root(root)
        .and_then(|(_, directory)| Ok(enter(directory.as_fd(), PRIVATE_DIRECTORY.as_bytes())?));
    // None, or somebody else's.
    let Ok(private) = private else { return false };
    !matches!(Journal::read(private.as_fd()), Ok(None)) || !is_empty(private.as_fd(), ASIDE)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::CommandExt as _;
    use std::process::Command;

    use super::*;

    /// Tells [`looks_as_an_ordinary_user`] where.
    const ROOT: &str = "BUILDER_TEST_OWN_ROOT";

    /// Not a test of its own: the process that the test below starts.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "the way to tell a test that runs as a process of its own")]
    fn looks_as_an_ordinary_user() {
        let Ok(root) = std::env::var(ROOT) else { return };
        let found = find_foreign_root(Path::new(&root), &|| {})
            .and_then(|found| found.map(ForeignRoot::give_back).transpose());
        println!("found {found:?}");
    }

    #[test]
    fn an_ordinary_user_who_cannot_find_out_is_not_stopped() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: it takes root to become an ordinary user");
            return;
        }
        let root = tempfile::tempdir().unwrap();
        let mode = |path: &Path, mode| {
            #[expect(clippy::disallowed_methods, reason = "tests prepare trees")]
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        mode(root.path(), 0o755);
        let private = root.path().join(PRIVATE_DIRECTORY);
        fs::create_dir_all(private.join(ASIDE).join("usr")).unwrap();
        // A copy that everybody can start.
        let program = root.path().join("test");
        fs::write(&program, fs::read("/proc/self/exe").unwrap()).unwrap();
        mode(&program, 0o755);
        let look = |user| {
            let test = "sandbox::in_place::own_root::tests::looks_as_an_ordinary_user";
            let mut command = Command::new(&program);
            command.args([test, "--exact", "--nocapture"]).env(ROOT, root.path()).current_dir("/");
            String::from_utf8(command.uid(user).output().unwrap().stdout).unwrap()
        };
        mode(&private, 0o700);
        assert!(look(65534).contains("found Ok(None)"), "{}", look(65534));
        assert!(look(0).contains("found Err(Irreparable(Lost"), "{}", look(0));
    }
}
