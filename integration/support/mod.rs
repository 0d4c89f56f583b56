//! What integration tests share: runs of `builder` in fresh stores, build contexts, and other programs' verdicts.

pub(crate) mod fake_registry;
pub(crate) mod ground;
pub(crate) mod group;
pub(crate) mod oci;
pub(crate) mod pod;
pub(crate) mod process_one;
pub(crate) mod steps;
pub(crate) mod traces;
pub(crate) mod tree;
pub(crate) mod user;
pub(crate) mod web;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// A directory on the disk that holds `target`, removed on drop. Not in `/tmp`, which may be too small or of a kind
/// that overlayfs refuses.
pub(crate) fn scratch() -> TempDir {
    tempfile::Builder::new()
        .prefix("builder-")
        .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
        .expect("scratch directory")
}

/// `builder` with a store and a home directory of its own.
pub(crate) struct Builder {
    store: TempDir,
    home: TempDir,
    path: &'static str,
}

impl Builder {
    /// An empty store.
    pub(crate) fn new() -> Self {
        let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        Self { store: scratch(), home: scratch(), path }
    }

    /// One that finds no other programs.
    pub(crate) fn without_programs() -> Self {
        Self { path: "/nonexistent", ..Self::new() }
    }

    /// The store's directory.
    pub(crate) fn store(&self) -> &Path {
        self.store.path()
    }

    /// The program as a shell would start it, without the environment of whoever runs the tests.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_builder"));
        command
            .env_clear()
            .env("PATH", self.path)
            .env("HOME", self.home.path())
            .env("BUILDER_STORE", self.store())
            // To run all tests with the other one.
            .envs(std::env::var_os("BUILDER_SNAPSHOTTER").map(|value| ("BUILDER_SNAPSHOTTER", value)))
            .current_dir(self.home.path())
            .stdin(Stdio::null());
        command
    }

    /// Builds a context into a layout, without pushing.
    pub(crate) fn layout(&self, context: &Context, layout: &Path, arguments: &[&str]) -> Finished {
        let mut command = self.command();
        command.args(["--no-push", "--context"]).arg(context.path());
        command.arg("--oci-layout-path").arg(layout).args(arguments);
        finish(&mut command)
    }

    /// Runs it to its end.
    pub(crate) fn run<S: AsRef<std::ffi::OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Finished {
        finish(self.command().args(arguments))
    }
}

/// What a program left when it ended.
#[derive(Debug)]
pub(crate) struct Finished {
    /// The command line, for messages.
    pub(crate) command: String,
    /// Exit code; nothing if a signal ended it.
    pub(crate) code: Option<i32>,
    /// What it printed on stdout.
    pub(crate) stdout: String,
    /// What it printed on stderr.
    pub(crate) stderr: String,
}

impl Finished {
    /// Itself, if it ended well.
    #[track_caller]
    pub(crate) fn success(self) -> Self {
        self.exited(0)
    }

    /// Itself, if it ended with this code.
    #[track_caller]
    pub(crate) fn exited(self, code: i32) -> Self {
        let Self { command, code: got, stdout, stderr } = &self;
        assert_eq!(*got, Some(code), "exit code of {command}\n--- stdout\n{stdout}\n--- stderr\n{stderr}");
        self
    }

    /// Its stdout as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{}: {error}\n--- stdout\n{}", self.command, self.stdout))
    }

    /// Whether a line of stderr has all of these in it.
    pub(crate) fn says(&self, words: &[&str]) -> bool {
        self.stderr.lines().any(|line| words.iter().all(|word| line.contains(word)))
    }
}

/// Runs a program to its end and keeps what it printed.
pub(crate) fn finish(command: &mut Command) -> Finished {
    let shown = format!("{command:?}");
    let output = command.output().unwrap_or_else(|error| panic!("cannot start {shown}: {error}"));
    Finished {
        command: shown,
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// A build context.
pub(crate) struct Context(TempDir);

impl Context {
    /// One with this Dockerfile and nothing else.
    pub(crate) fn new(dockerfile: &str) -> Self {
        let context = Self(scratch());
        context.write("Dockerfile", dockerfile);
        context
    }

    /// Its directory.
    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes a file into it, directories as needed.
    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a file has a parent")).expect("create directory");
        std::fs::write(&path, content).expect("write file");
        path
    }
}
