//! A Dockerfile with its context: made of parts that can be left out, and written to the disk.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::support::ground::ground;

/// A Dockerfile, its context, and what is said on the command line.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    /// What it was made from.
    pub(crate) seed: u64,
    /// Flags that all builders take: `--build-arg=A=1`, `--target=a`.
    pub(crate) flags: Vec<String>,
    /// `.dockerignore`.
    pub(crate) ignore: Option<String>,
    /// Lines before the first FROM.
    pub(crate) head: Vec<String>,
    /// Stages, the last one last.
    pub(crate) stages: Vec<Stage>,
    /// Files of the context, parents first.
    pub(crate) context: Vec<File>,
}

/// A FROM with what follows it.
#[derive(Debug, Clone)]
pub(crate) struct Stage {
    /// `FROM base AS name`.
    pub(crate) from: String,
    /// What follows.
    pub(crate) steps: Vec<Step>,
}

/// An instruction.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// One that is kept or left out as a whole, here-documents included.
    Whole(String),
    /// A RUN whose commands can be left out one by one.
    Run {
        /// `RUN --mount=… `, or an ONBUILD of it.
        prefix: String,
        /// How it is written.
        style: Style,
        /// Commands of a shell.
        commands: Vec<String>,
    },
}

/// How a RUN is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// `RUN a; b`.
    Line,
    /// With continuations.
    Lines,
    /// `RUN ["/bin/sh", "-c", "…"]`.
    List,
    /// `RUN <<EOF`.
    HereDocument,
    /// `RUN <<EOF`, with `#!` in the first line.
    Script,
}

/// A file of the context.
#[derive(Debug, Clone)]
pub(crate) struct File {
    /// Where, relative to the context.
    pub(crate) path: Vec<u8>,
    /// What.
    pub(crate) kind: Kind,
    /// Permission bits.
    pub(crate) mode: u32,
    /// Seconds since 1970 and billionths of one.
    pub(crate) time: (i64, i64),
    /// An attribute with a value.
    pub(crate) attribute: Option<(&'static str, &'static [u8])>,
}

/// What a file of the context is.
#[derive(Debug, Clone)]
pub(crate) enum Kind {
    /// A directory.
    Directory,
    /// A regular file with this in it.
    Regular(Vec<u8>),
    /// A symbolic link.
    Link(Vec<u8>),
    /// Another name of an earlier file.
    Same(Vec<u8>),
    /// A named pipe.
    Fifo,
}

/// A part of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// A stage.
    Stage(usize),
    /// A step of a stage.
    Step(usize, usize),
    /// A command of a RUN.
    Command(usize, usize, usize),
    /// A file of the context.
    File(usize),
    /// `.dockerignore`.
    Ignore,
    /// A flag.
    Flag(usize),
    /// A line before the first FROM.
    Head(usize),
}

impl Step {
    /// The instruction's name.
    pub(crate) fn kind(&self) -> &str {
        let text = match self {
            Self::Whole(text) => text,
            Self::Run { prefix, .. } => prefix,
        };
        text.split_whitespace().next().unwrap_or_default()
    }

    /// As it stands in the Dockerfile, with its last newline.
    fn text(&self) -> String {
        let (prefix, style, commands) = match self {
            Self::Whole(text) => return format!("{text}\n"),
            Self::Run { prefix, style, commands } => (prefix, style, commands),
        };
        let mut commands: Vec<&str> = commands.iter().map(String::as_str).collect();
        commands.push(":");
        match style {
            Style::Line => format!("{prefix}{}\n", commands.join("; ")),
            Style::Lines => format!("{prefix}{}\n", commands.join("; \\\n    ")),
            Style::List => {
                let list = serde_json::json!(["/bin/sh", "-c", commands.join("\n")]);
                format!("{prefix}{list}\n")
            }
            Style::HereDocument => format!("{prefix}<<EOF\n{}\nEOF\n", commands.join("\n")),
            Style::Script => format!("{prefix}<<\"EOF\"\n#!/bin/sh\n{}\nEOF\n", commands.join("\n")),
        }
    }
}

impl Program {
    /// The Dockerfile.
    pub(crate) fn dockerfile(&self) -> String {
        let lines = self.head.iter().map(|line| format!("{line}\n"));
        let stages = self.stages.iter().flat_map(|stage| {
            std::iter::once(format!("{}\n", stage.from)).chain(stage.steps.iter().map(Step::text))
        });
        let text: String = lines.chain(stages).collect();
        text.replace("BASE", &ground().name("busybox:latest"))
    }

    /// The step that the line of a Dockerfile, counted from 1, belongs to; nothing for a FROM.
    pub(crate) fn step_of_line(&self, line: usize) -> Option<Part> {
        let mut next = 1 + self.head.len();
        for (stage, has) in self.stages.iter().enumerate() {
            next += 1;
            for (step, text) in has.steps.iter().map(Step::text).enumerate() {
                let lines = text.matches('\n').count();
                if (next..next + lines).contains(&line) {
                    return Some(Part::Step(stage, step));
                }
                next += lines;
            }
        }
        None
    }

    /// The step that a builder shows as this text, as far as its first line goes.
    pub(crate) fn step_of_text(&self, text: &str) -> Option<Part> {
        let shown = |step: &Step| {
            let first =
                step.text().lines().next().unwrap_or_default().trim_end_matches('\\').replace("ONBUILD ", "");
            // Lists are shown as words.
            let words = |text: &str| text.replace(['"', ',', '[', ']', '\\', ' '], "");
            words(text).starts_with(&words(&first))
        };
        let steps = self.stages.iter().enumerate().flat_map(|(stage, has)| {
            has.steps.iter().enumerate().map(move |(step, what)| (Part::Step(stage, step), what))
        });
        steps.filter(|(_, step)| shown(step)).map(|(part, _)| part).next()
    }

    /// The last ONBUILD, which is what fails if a FROM does.
    pub(crate) fn last_trigger(&self) -> Option<Part> {
        let steps = self.stages.iter().enumerate().flat_map(|(stage, has)| {
            has.steps.iter().enumerate().map(move |(step, what)| (Part::Step(stage, step), what))
        });
        steps.filter(|(_, what)| what.kind() == "ONBUILD").map(|(part, _)| part).next_back()
    }

    /// All parts, larger ones first.
    pub(crate) fn parts(&self) -> Vec<Part> {
        let mut parts: Vec<Part> = (0..self.stages.len()).map(Part::Stage).collect();
        let steps = |stage: usize| (0..self.stages[stage].steps.len()).map(move |step| (stage, step));
        let steps: Vec<(usize, usize)> = (0..self.stages.len()).flat_map(steps).collect();
        parts.extend(steps.iter().rev().map(|(stage, step)| Part::Step(*stage, *step)));
        parts.extend([Part::Ignore]);
        parts.extend((0..self.flags.len()).map(Part::Flag));
        parts.extend((0..self.head.len()).map(Part::Head));
        for (stage, step) in steps {
            if let Step::Run { commands, .. } = &self.stages[stage].steps[step] {
                parts.extend((0..commands.len()).rev().map(|command| Part::Command(stage, step, command)));
            }
        }
        parts.extend((0..self.context.len()).rev().map(Part::File));
        parts
    }

    /// The same without a part.
    pub(crate) fn without(&self, part: Part) -> Self {
        let mut less = self.clone();
        match part {
            Part::Stage(stage) => drop(less.stages.remove(stage)),
            Part::Step(stage, step) => drop(less.stages[stage].steps.remove(step)),
            Part::Command(stage, step, command) => {
                if let Step::Run { commands, .. } = &mut less.stages[stage].steps[step] {
                    commands.remove(command);
                }
            }
            Part::File(file) => drop(less.context.remove(file)),
            Part::Ignore => less.ignore = None,
            Part::Flag(flag) => drop(less.flags.remove(flag)),
            Part::Head(line) => drop(less.head.remove(line)),
        }
        less
    }

    /// Names of the instructions that there are.
    pub(crate) fn kinds(&self) -> std::collections::BTreeSet<&str> {
        self.stages.iter().flat_map(|stage| &stage.steps).map(Step::kind).collect()
    }

    /// Writes Dockerfile and context into a directory. Files whose parents were left out are left out too.
    pub(crate) fn write(&self, directory: &Path) {
        std::fs::create_dir_all(directory).expect("create directory");
        for file in &self.context {
            file.write(directory);
        }
        // Deepest first: what is made in a directory changes its time.
        for file in self.context.iter().rev() {
            file.finish(directory);
        }
        std::fs::write(directory.join("Dockerfile"), self.dockerfile()).expect("write file");
        if let Some(ignore) = &self.ignore {
            std::fs::write(directory.join(".dockerignore"), ignore).expect("write file");
        }
    }
}

impl File {
    fn place(&self, context: &Path) -> std::path::PathBuf {
        context.join(OsStr::from_bytes(&self.path))
    }

    fn write(&self, context: &Path) {
        let path = self.place(context);
        let made = match &self.kind {
            Kind::Directory => std::fs::create_dir(&path),
            Kind::Regular(content) => std::fs::write(&path, content),
            Kind::Link(target) => std::os::unix::fs::symlink(OsStr::from_bytes(target), &path),
            Kind::Same(other) => std::fs::hard_link(context.join(OsStr::from_bytes(other)), &path),
            Kind::Fifo => {
                let (here, kind) = (rustix::fs::CWD, rustix::fs::FileType::Fifo);
                rustix::fs::mknodat(here, &path, kind, 0o644.into(), 0).map_err(Into::into)
            }
        };
        // Its parent, or the file that it is another name of, was left out.
        drop(made);
    }

    fn finish(&self, context: &Path) {
        use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, XattrFlags, lsetxattr, utimensat};
        let path = self.place(context);
        if std::fs::symlink_metadata(&path).is_err() || matches!(self.kind, Kind::Same(_)) {
            return;
        }
        if let Some((name, value)) = self.attribute {
            lsetxattr(&path, name, value, XattrFlags::empty()).expect("extended attribute");
        }
        if !matches!(self.kind, Kind::Link(_)) {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(self.mode)).expect("chmod");
        }
        let time = Timespec { tv_sec: self.time.0, tv_nsec: self.time.1 };
        let times = Timestamps { last_access: time, last_modification: time };
        utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW).expect("time");
    }
}
