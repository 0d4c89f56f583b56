//! Those who make an image of a program: this builder in its ways, and others.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::image::{self, Facts};
use super::planted::{self, Fault};
use super::program::Program;
use crate::support::{Builder, Finished, finish, scratch};

/// One who makes images.
pub(crate) enum Maker {
    /// This builder, with a store of its own, and with a fault if one is planted.
    Ours(Builder, Option<Fault>),
    /// A command of a shell: `$1` is the context, `$2` the OCI layout to make, what follows are flags such as
    /// `--build-arg=A=1`. `$SCRATCH` is a directory for what it wants to keep between builds.
    Other {
        /// The command.
        command: String,
        /// `$SCRATCH`.
        scratch: TempDir,
    },
}

/// What became of a program.
pub(crate) struct Made {
    /// Facts about the image, unless there is none.
    pub(crate) facts: Option<Facts>,
    /// What was said.
    pub(crate) finished: Finished,
}

/// Debian's buildah, each step in a layer of its own.
const BUILDAH: &str = "context=$1 layout=$2; shift 2; exec buildah --root \"$SCRATCH/root\" --runroot \"$SCRATCH/run\" \
    --storage-driver overlay build --quiet --tls-verify=false --isolation chroot --layers --no-cache --format docker \
    \"$@\" --tag \"oci:$layout:image\" \"$context\"";

impl Maker {
    /// This builder.
    pub(crate) fn ours() -> Self {
        Self::Ours(Builder::new(), None)
    }

    /// This builder, if it had a fault.
    pub(crate) fn with_fault(fault: Fault) -> Self {
        Self::Ours(Builder::new(), Some(fault))
    }

    /// The builder whose command `BUILDER_OTHER` is, else buildah; nothing if there is none.
    pub(crate) fn other() -> Option<Self> {
        let command = match std::env::var("BUILDER_OTHER") {
            Ok(command) => command,
            Err(_) if Command::new("buildah").arg("--version").output().is_ok() => BUILDAH.to_owned(),
            Err(_) => return None,
        };
        Some(Self::command(&command))
    }

    /// The builder with this command.
    pub(crate) fn command(command: &str) -> Self {
        Self::Other { command: command.to_owned(), scratch: scratch() }
    }

    /// Builds a program; `flags` are for this builder only.
    pub(crate) fn make(&self, program: &Program, flags: &[&str]) -> Made {
        let directory = scratch();
        let (context, layout) = (directory.path().join("context"), directory.path().join("layout"));
        program.write(&context);
        let mut command = match self {
            Self::Ours(builder, _) => ours(builder, &context, &layout, flags),
            Self::Other { command, scratch } => other(command, scratch.path(), &context, &layout),
        };
        let finished = finish(command.args(&program.flags));
        if let (Self::Ours(_, Some(fault)), Some(0)) = (self, finished.code) {
            planted::plant(&layout, *fault);
        }
        let facts = (finished.code == Some(0)).then(|| image::read(&layout));
        Made { facts, finished }
    }
}

fn ours(builder: &Builder, context: &Path, layout: &Path, flags: &[&str]) -> Command {
    let mut command = builder.command();
    command.args(["build", "--no-push", "--jobs=1"]).arg("--context").arg(context);
    command.arg("--oci-layout-path").arg(layout).args(flags);
    command
}

fn other(command: &str, scratch: &Path, context: &Path, layout: &Path) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", command, "sh"]).args([context, layout]).env("SCRATCH", scratch);
    shell
        .env("BUILDER", env!("CARGO_BIN_EXE_builder"))
        .env_remove("SSL_CERT_DIR")
        .env_remove("SSL_CERT_FILE");
    shell
}

impl Drop for Maker {
    fn drop(&mut self) {
        if let Self::Other { scratch, .. } = self {
            // Buildah leaves its storage mounted on itself.
            let mounted: PathBuf = scratch.path().join("root/overlay");
            if mounted.exists() {
                drop(Command::new("umount").arg("-l").arg(mounted).output());
            }
        }
    }
}
