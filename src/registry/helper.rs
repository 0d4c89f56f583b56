//! Programs that keep credentials (docker-credential-helpers): `docker-credential-NAME get`.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::credentials::Secret;
use crate::children::{Bounds, Outcome, find_program, run_program};
use crate::http::escape;

/// How credential helpers are found and run. Nothing is taken from this process's environment.
#[derive(Clone)]
pub struct Helpers {
    /// Where to look, in this order; relative directories are passed over.
    pub path: Vec<PathBuf>,
    /// Their whole environment.
    pub environment: Vec<(OsString, OsString)>,
    /// How long one may take.
    pub limit: Duration,
}

/// The environment may hold secrets.
impl fmt::Debug for Helpers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Helpers")
            .field("path", &self.path)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

impl Default for Helpers {
    fn default() -> Self {
        Self { path: Vec::new(), environment: Vec::new(), limit: Duration::from_secs(30) }
    }
}

/// Why a helper gave nothing.
#[derive(Debug, thiserror::Error)]
pub enum HelperError {
    /// The name in the configuration is a path, or worse.
    #[error("its name may hold only letters, digits, `.`, `-` and `_`")]
    Name,
    /// It is in none of the directories.
    #[error("it is not installed (not found in PATH)")]
    Missing,
    /// It could not be run.
    #[error("it cannot be run")]
    Run {
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It is still running.
    #[error("it did not answer within {} seconds", .0.as_secs())]
    Slow(Duration),
    /// It said no.
    #[error("{0}")]
    Failed(String),
    /// What it said is not what helpers say. Its output may be secret and is not shown.
    #[error("its answer is not JSON with `Username` and `Secret`")]
    Answer,
}

/// Longer answers are cut, and then no JSON.
const LONGEST: u64 = 64 * 1024;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    username: String,
    secret: String,
}

/// Asks the helper `name` for the credentials of `server`; `None` when it has none.
pub(super) fn get(
    helpers: &Helpers,
    name: &str,
    server: &str,
) -> Result<Option<(String, Secret)>, HelperError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if name.is_empty() || !name.chars().all(plain) {
        return Err(HelperError::Name);
    }
    let program =
        find_program(&helpers.path, &format!("docker-credential-{name}")).ok_or(HelperError::Missing)?;
    let Outcome { status, stdout: output, stderr: complaint, .. } = run(helpers, &program, server)?;
    if status.success() {
        let answer: Answer = serde_json::from_slice(&output).map_err(|_| HelperError::Answer)?;
        return Ok((!answer.secret.is_empty()).then(|| (answer.username, Secret::new(answer.secret))));
    }
    // Helpers complain on standard output; the exact sentence is part of their protocol.
    let said = String::from_utf8_lossy(if output.trim_ascii().is_empty() { &complaint } else { &output })
        .into_owned();
    let said = said.trim();
    if said.contains("credentials not found") {
        return Ok(None);
    }
    Err(HelperError::Failed(if said.is_empty() {
        "it failed without a word".to_owned()
    } else {
        escape(said)
    }))
}

fn run(helpers: &Helpers, program: &Path, server: &str) -> Result<Outcome, HelperError> {
    let mut command = Command::new(program);
    command.arg("get").env_clear().envs(helpers.environment.iter().map(|(name, value)| (name, value)));
    let end = Instant::now() + helpers.limit;
    let bounds = Bounds { kept: LONGEST, memory: None, stopped: &|_| Instant::now() >= end };
    let outcome = run_program(&mut command, format!("{server}\n").as_bytes(), &bounds);
    outcome.map_err(|source| HelperError::Run { source })?.ok_or(HelperError::Slow(helpers.limit))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt;

    use super::*;

    fn helpers(directory: &Path, script: &str) -> Helpers {
        let path = directory.join("docker-credential-test");
        let mut file = std::fs::OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o755)
            .open(path)
            .unwrap();
        file.write_all(format!("#!/bin/sh\n{script}\n").as_bytes()).unwrap();
        drop(file);
        let environment = vec![("GREETING".into(), "hello".into()), ("PATH".into(), "/usr/bin:/bin".into())];
        let path = vec![PathBuf::from("relative"), directory.to_owned()];
        Helpers { path, environment, limit: Duration::from_secs(10) }
    }

    #[test]
    fn a_helper_is_asked_on_its_standard_input_in_its_own_environment() {
        let directory = tempfile::tempdir().unwrap();
        let script = r#"read server; test "$1" = get && test -z "$HOME" || exit 1
            echo "{\"ServerURL\":\"$server\",\"Username\":\"$GREETING $server\",\"Secret\":\"s\"}""#;
        let found = get(&helpers(directory.path(), script), "test", "r.example:5000").unwrap().unwrap();
        assert_eq!((found.0.as_str(), found.1.reveal()), ("hello r.example:5000", "s"));
    }

    #[test]
    fn a_helper_that_has_nothing_differs_from_one_that_fails() {
        let directory = tempfile::tempdir().unwrap();
        let ask = |script: &str| get(&helpers(directory.path(), script), "test", "r");
        assert!(ask("echo credentials not found in native keychain; exit 1").unwrap().is_none());
        assert!(matches!(ask("echo locked >&2; exit 1"), Err(HelperError::Failed(said)) if said == "locked"));
        assert!(matches!(ask("echo secret"), Err(HelperError::Answer)));
        assert!(matches!(ask("exit 1"), Err(HelperError::Failed(_))));
    }

    #[test]
    fn a_helper_that_hangs_is_ended_with_its_children() {
        let directory = tempfile::tempdir().unwrap();
        let mut slow = helpers(directory.path(), "sleep 60 & sleep 60");
        slow.limit = Duration::from_millis(200);
        let started = Instant::now();
        assert!(matches!(get(&slow, "test", "r"), Err(HelperError::Slow(_))));
        assert!(started.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn a_name_is_no_path_and_a_missing_helper_is_said_to_be_missing() {
        let helpers = Helpers { path: vec!["/".into()], ..Helpers::default() };
        for name in ["../bin/sh", "", "a b", "a/b"] {
            assert!(matches!(get(&helpers, name, "r"), Err(HelperError::Name)), "{name}");
        }
        assert!(matches!(get(&helpers, "none", "r"), Err(HelperError::Missing)));
    }
}
