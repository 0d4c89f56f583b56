//! What another builder does otherwise, by name, with the side that is taken.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::compare::Difference;
use super::program::Program;

/// A difference that is meant.
pub(crate) struct Known {
    /// How it is called in `docs/differential.md`.
    pub(crate) name: &'static str,
    /// Whether it is what makes this difference between images of this program.
    pub(crate) explains: fn(&Program, &Difference) -> bool,
}

/// How often each was met.
#[derive(Default)]
pub(crate) struct Met(Mutex<BTreeMap<&'static str, u64>>);

impl Met {
    /// Differences that none of the known ones explains.
    pub(crate) fn unexplained(
        &self,
        program: &Program,
        differences: Vec<Difference>,
        known: &[Known],
    ) -> Vec<Difference> {
        let explains = |difference: &Difference| {
            let Some(known) = known.iter().find(|known| (known.explains)(program, difference)) else {
                return false;
            };
            *self.0.lock().expect("lock").entry(known.name).or_default() += 1;
            true
        };
        differences.into_iter().filter(|difference| !explains(difference)).collect()
    }

    /// The step that failed, if it is known why.
    pub(crate) fn refusal<'a>(&self, said: &'a str, known: &[(&'static str, &str)]) -> Option<&'a str> {
        let (_, rest) = said.rsplit_once("building at STEP \"")?;
        let (step, why) = rest.split_once("\": ")?;
        let (name, _) = known.iter().find(|(_, because)| why.contains(because))?;
        *self.0.lock().expect("lock").entry(name).or_default() += 1;
        Some(step)
    }

    /// Name and number of each, those that were never met too.
    pub(crate) fn counts(&self) -> Vec<(&'static str, u64)> {
        let met = self.0.lock().expect("lock");
        let names = BUILDAH.iter().map(|known| known.name).chain(REFUSED.iter().map(|(name, _)| *name));
        names.map(|name| (name, met.get(name).copied().unwrap_or_default())).collect()
    }
}

/// Debian 12's buildah 1.28.
pub(crate) const BUILDAH: &[Known] = &[
    Known {
        name: "stubs of mounts",
        // What RUN mounts is left behind as an empty file or directory, and what holds it has the time of the step.
        explains: |program, difference| {
            let stub = |path: &str| {
                ["/hostname", "/hosts", "/resolv.conf", "/run"].iter().any(|end| path.ends_with(end))
                    || targets(program).iter().any(|target| is_at_or_above(path, target))
            };
            there(difference).is_some_and(|path| stub(path) && difference.one == "-")
        },
    },
    Known {
        name: "times of directories",
        // A directory has the time of the step that wrote into it, not that of the copied one.
        explains: |_, difference| field(difference, "directory-time").is_some() && difference.other == "now",
    },
    Known {
        name: "set-user-id of the context",
        explains: |_, difference| {
            let bits = |text: &str| u32::from_str_radix(text, 8).unwrap_or_default();
            let (ours, theirs) = (bits(&difference.one), bits(&difference.other));
            field(difference, "mode").is_some() && ours & 0o777 == theirs && ours != theirs
        },
    },
    Known {
        name: "mode of created parents",
        explains: |program, difference| {
            let flagged = text(program).contains("--chmod=");
            field(difference, "mode").is_some() && flagged && difference.other == "0755"
        },
    },
    Known {
        name: "owner of WORKDIR",
        // Made for the user of the whole stage rather than the one before it.
        explains: |program, difference| {
            let text = text(program);
            field(difference, "owner").is_some() && text.contains("\nWORKDIR") && text.contains("\nUSER")
        },
    },
    Known {
        name: "WORKDIR that is not the last",
        // Made when a step first uses it; until then, a step may make something else there.
        explains: |program, difference| {
            let nothing = difference.one == "directory" && difference.other == "-";
            let (text, path) = (text(program), about(difference));
            let instead = || {
                let workdirs = text.lines().filter_map(|line| line.strip_prefix("WORKDIR /"));
                workdirs.into_iter().any(|workdir| is_at_or_above(path, &format!("/{workdir}")))
            };
            text.matches("WORKDIR").count() > 1 && (there(difference).is_some() && nothing || instead())
        },
    },
    Known {
        name: "directories of VOLUME",
        explains: |program, difference| {
            let made = difference.one == "-" && difference.other == "directory";
            let (text, path) = (text(program), about(difference));
            // Where there is a directory, a step finds it.
            let instead = || {
                let volumes = text.lines().filter(|line| line.contains("VOLUME "));
                let mut paths = volumes.flat_map(|line| line.split([' ', '"', ',', '[', ']']));
                paths.any(|volume| {
                    volume.starts_with('/') && (is_at_or_above(path, volume) || is_at_or_above(volume, path))
                })
            };
            there(difference).is_some() && made && text.contains("VOLUME ") || instead()
        },
    },
    Known {
        name: "ranges of EXPOSE",
        explains: |program, difference| {
            let text = text(program);
            let mut exposed = text.lines().filter(|line| line.contains("EXPOSE "));
            difference.place == "config ExposedPorts" && exposed.any(|line| line.contains('-'))
        },
    },
    Known {
        name: "destination that ends in /.",
        explains: |program, difference| {
            about(difference).starts_with("/c") && text(program).contains(" /c/.\n")
        },
    },
    Known {
        name: "several sources and no slash",
        // The destination becomes a directory.
        explains: |program, difference| {
            let (text, about) = (text(program), about(difference));
            let copies = text.lines().filter(|line| line.contains("COPY ") || line.contains("ADD "));
            let mut ends =
                copies.filter_map(|line| line.trim_end_matches(['"', ']']).rsplit([' ', '"', ',']).next());
            ends.any(|end| !end.ends_with('/') && is_at_or_above(end, about))
                && difference.place.starts_with("tree ")
        },
    },
    Known {
        name: "entries of an archive for what is there already",
        // An entry `.` and a hard link have a say in mode, owner and time of the destination or file; the time of a directory
        // is set at the end of the archive, on whatever has its name by then.
        explains: |program, difference| {
            let fields = ["mode", "owner", "time", "directory-time"];
            fields.iter().any(|name| field(difference, name).is_some()) && text(program).contains("t.tar")
        },
    },
    Known {
        name: "rows of ONBUILD",
        explains: |_, difference| {
            difference.place == "history" && difference.other.replace("ONBUILD ", "") == difference.one
        },
    },
    Known {
        name: "working directory of scratch",
        explains: |_, difference| {
            difference.place == "config WorkingDir" && difference.one == "\"/\"" && difference.other == "-"
        },
    },
    Known {
        name: "label of the builder",
        explains: |_, difference| {
            difference.place == "config Labels" && difference.other.contains("io.buildah.version")
        },
    },
    Known { name: "ArgsEscaped", explains: |_, difference| difference.place == "config ArgsEscaped" },
    Known {
        name: "fields that the OCI config lacks",
        explains: |_, difference| {
            let lost =
                ["config Healthcheck", "config Shell", "config OnBuild"].contains(&difference.place.as_str());
            lost && difference.other == "-"
        },
    },
    Known {
        name: "mounts of the context and .dockerignore",
        // All of the context is mounted, whatever `.dockerignore` says.
        explains: |program, difference| {
            let mounted = text(program).contains("--mount=type=bind");
            there(difference)
                .is_some_and(|path| path.starts_with("/out") && mounted && program.ignore.is_some())
        },
    },
];

/// Why buildah does not do a step.
pub(crate) const REFUSED: &[(&str, &str)] = &[
    ("wildcards that match nothing", "no such file or directory"),
    ("unknown names in --chown", "looking up UID/GID for"),
];

/// The path of a difference that is about this field.
fn field<'a>(difference: &'a Difference, name: &str) -> Option<&'a str> {
    difference.place.strip_prefix("tree ")?.strip_suffix(name)?.strip_suffix(' ')
}

/// The path that a difference is about, as far as it has no blank; a dash, which no path is, where it is about none.
fn about(difference: &Difference) -> &str {
    difference.place.strip_prefix("tree ").and_then(|place| place.split(' ').next()).unwrap_or("-")
}

/// The path that only one of both has.
fn there(difference: &Difference) -> Option<&str> {
    field(difference, "there")
}

fn is_at_or_above(path: &str, other: &str) -> bool {
    other.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn text(program: &Program) -> String {
    program.dockerfile()
}

/// Where RUN mounts something.
fn targets(program: &Program) -> Vec<String> {
    let text = text(program);
    let mounts = text.split("target=").skip(1);
    mounts.filter_map(|mount| mount.split([' ', ',']).next().map(str::to_owned)).collect()
}
