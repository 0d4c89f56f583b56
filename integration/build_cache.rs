//! Results that are remembered: what a step depends on, what is not done again, and what builds at the same time share.

mod keys;
mod linked;
mod lost;
mod reuse;
mod single;
mod together;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::ground::{Ground, ground};
use crate::support::oci::{LayoutImage, with_unpacked};
use crate::support::traces::{self, Running};
use crate::support::tree::{self, Times};
use crate::support::{Builder, Context, Finished, finish, scratch};

/// The steps that made a layer in a build, as they are shown: those that were done, or those that were found.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Steps {
    pub(super) done: Vec<String>,
    pub(super) found: Vec<String>,
}

impl Steps {
    pub(super) fn of(finished: &Finished) -> Self {
        let mut steps = Self { done: Vec::new(), found: Vec::new() };
        for line in finished.stderr.lines() {
            let (list, line) = match line.strip_prefix("CACHED ") {
                Some(line) => (&mut steps.found, line),
                None => (&mut steps.done, line),
            };
            let Some((tag, instruction)) = line.split_once("] ") else { continue };
            let written = instruction.trim_start_matches("ONBUILD ");
            let keyword = written.split(' ').next().unwrap_or_default().to_uppercase();
            if tag.starts_with('[') && ["RUN", "COPY", "ADD", "WORKDIR"].contains(&keyword.as_str()) {
                list.push(instruction.to_owned());
            }
        }
        steps
    }
}

/// A context that is built again and again in one store.
pub(super) struct Project {
    pub(super) ground: Ground,
    pub(super) builder: Builder,
    pub(super) context: Context,
    pub(super) out: TempDir,
}

impl Project {
    /// `BASE` in the Dockerfile is busybox.
    pub(super) fn new(dockerfile: &str) -> Self {
        let (builder, context) = (Builder::new(), Context::new(""));
        let project = Self { ground: ground(), builder, context, out: scratch() };
        project.dockerfile(dockerfile);
        project
    }

    pub(super) fn dockerfile(&self, text: &str) {
        self.context.write("Dockerfile", text.replace("BASE", &self.ground.name("busybox:latest")));
    }

    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.builder.command();
        command.args(["--no-push", "--custom-platform=linux/amd64", "-c"]).arg(self.context.path());
        command.args(arguments);
        command
    }

    #[track_caller]
    pub(super) fn build(&self, arguments: &[&str]) -> Finished {
        finish(&mut self.command(arguments)).success()
    }

    /// The steps of a build that were done.
    #[track_caller]
    pub(super) fn done(&self, arguments: &[&str]) -> Vec<String> {
        Steps::of(&self.build(arguments)).done
    }

    /// Builds into a new layout.
    #[track_caller]
    pub(super) fn layout(&self, name: &str, arguments: &[&str]) -> (Finished, PathBuf) {
        let layout = self.out.path().join(name);
        let arguments =
            [&["--custom-platform=linux/amd64", "-d", "r.example/app:latest"], arguments].concat();
        let finished = self.builder.layout(&self.context, &layout, &arguments).success();
        (finished, layout)
    }

    /// The records of results, each with its path.
    pub(super) fn results(&self) -> Vec<(PathBuf, Value)> {
        let directory = self.builder.store().join("cache/results");
        let read = |entry: fs::DirEntry| {
            let text = fs::read_to_string(entry.path()).expect("record");
            let (_, json) = text.split_once('\n').expect("a hash, then the record");
            (entry.path(), serde_json::from_str(json).expect("JSON"))
        };
        fs::read_dir(directory).expect("results").map(|entry| read(entry.expect("entry"))).collect()
    }

    /// The record of the result with so many layers, of which there must be one.
    #[track_caller]
    pub(super) fn result_with_layers(&self, count: usize) -> (PathBuf, Value) {
        let layers = |record: &Value| record["layers"].as_array().expect("layers").len();
        let mut found = self.results();
        found.retain(|(_, record)| layers(record) == count);
        assert_eq!(found.len(), 1, "results with {count} layers");
        found.remove(0)
    }
}

pub(super) fn sh(directory: &Path, script: &str) {
    finish(Command::new("sh").args(["-euc", script]).current_dir(directory)).success();
}

/// The content of a file of the image in a layout.
pub(super) fn file_in(layout: &Path, path: &str) -> String {
    let read = |root: &Path| fs::read_to_string(root.join(path)).expect("file of the image");
    with_unpacked(layout, "latest", read)
}

pub(super) const THREE: &str = "FROM BASE\nARG A=1\nRUN echo x >/x\nCOPY f /f\nRUN cat /f >/y\n";

pub(super) fn three() -> Project {
    let project = Project::new(THREE);
    project.context.write("f", "content");
    project.build(&[]);
    project
}

pub(super) const X: &str = "RUN echo x >/x";
pub(super) const F: &str = "COPY f /f";
pub(super) const Y: &str = "RUN cat /f >/y";
