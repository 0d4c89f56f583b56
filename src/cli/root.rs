//! The root of the container before a command looks at anything in it.

use std::path::Path;

use super::failure::Failure;
use super::stop::AtOnce;
use crate::sandbox::in_place::{OwnRootError, Repaired, find_foreign_root};

/// Makes sure that the files in `/` are the container's own, whatever a command wants of them and however it keeps steps
/// apart. A builder that was killed while a step ran in place may have left an image's: then they go, and there is
/// something to tell. What has to be waited for is told by `note`.
pub(super) fn ensure_own(at_once: &AtOnce, note: &dyn Fn(&str)) -> Result<Option<&'static str>, Failure> {
    ensure_own_at(Path::new("/"), at_once, note)
}

/// The same for `root`.
fn ensure_own_at(
    root: &Path,
    at_once: &AtOnce,
    note: &dyn Fn(&str),
) -> Result<Option<&'static str>, Failure> {
    let waiting =
        || note("waiting for the end of a step, whose builder was killed, in the root of this container");
    let foreign = find_foreign_root(root, &waiting).map_err(|error| failure_of(&error))?;
    let Some(foreign) = foreign else { return Ok(None) };
    // Half of it would be worse than none: no signal ends it.
    let repaired = at_once.undisturbed(|| foreign.give_back());
    match repaired.map_err(|error| failure_of(&error))? {
        Repaired::Nothing => Ok(None),
        Repaired::Root => Ok(Some(
            "a builder that was killed had left an image's files in the root of this container; its own are back",
        )),
    }
}

fn failure_of(error: &OwnRootError) -> Failure {
    Failure::from_error(error).hint(error.remedy())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use rustix::fs::{FlockOperation, flock};

    use super::*;
    use crate::sandbox::in_place::PRIVATE_DIRECTORY;

    /// Tells [`waits`] that it is a process of its own, and for what root.
    const ROOT: &str = "BUILDER_TEST_ROOT";

    /// Not a test of its own: the process that the test below starts.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "the way to tell a test that runs as a process of its own")]
    fn waits() {
        let Ok(root) = std::env::var(ROOT) else { return };
        let at_once = AtOnce::begin();
        let note = |_: &str| {
            println!("waiting");
            signal_hook::low_level::raise(signal_hook::consts::SIGTERM).unwrap();
            println!("not ended");
            // Nobody has to see how long it waits.
            panic!("a signal came");
        };
        let _ = ensure_own_at(Path::new(&root), &at_once, &note);
    }

    #[test]
    fn a_signal_ends_a_command_that_waits_for_a_step() {
        let root = tempfile::tempdir().unwrap();
        let private = root.path().join(PRIVATE_DIRECTORY);
        fs::create_dir_all(private.join("aside/usr")).unwrap();
        let step = fs::File::create(private.join("step")).unwrap();
        flock(&step, FlockOperation::LockExclusive).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["cli::root::tests::waits", "--exact", "--nocapture"]).env(ROOT, root.path());
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("waiting\n") && !said.contains("not ended"), "{output:?}");
        assert_eq!(output.status.code(), Some(143), "{output:?}");
    }
}
