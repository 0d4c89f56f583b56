//! Programs that keep credentials (docker-credential-helpers): `docker-credential-NAME get`.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use serde::Deserialize;

use super::credentials::Secret;
use crate::children;
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
    let program = find(&helpers.path, &format!("docker-credential-{name}")).ok_or(HelperError::Missing)?;
    let (success, output, complaint) = run(helpers, &program, server)?;
    if success {
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

fn find(path: &[PathBuf], program: &str) -> Option<PathBuf> {
    let candidates =
        path.iter().filter(|directory| directory.is_absolute()).map(|directory| directory.join(program));
    candidates.into_iter().find(|candidate| is_executable(candidate))
}

fn is_executable(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

fn run(helpers: &Helpers, program: &Path, server: &str) -> Result<(bool, Vec<u8>, Vec<u8>), HelperError> {
    let failed = |source| HelperError::Run { source };
    let mut command = Command::new(program);
    command
        .arg("get")
        .env_clear()
        .envs(helpers.environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    let mut child = children::spawn(&mut command).map_err(failed)?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    std::thread::scope(|scope| {
        // A helper that does not read its input is not waited for: the name fits into any pipe.
        if let Some(mut stdin) = stdin {
            let _ = writeln!(stdin, "{server}");
        }
        let thread = std::thread::Builder::new;
        let readers = thread()
            .spawn_scoped(scope, || read(stdout))
            .and_then(|output| Ok((output, thread().spawn_scoped(scope, || read(stderr))?)));
        let ended = readers.is_ok() && wait(&child, helpers.limit);
        // Whatever it left behind would keep the pipes open.
        end_group(&child);
        let status = child.wait().map_err(failed)?;
        let (output, complaint) = readers.map_err(failed)?;
        let output = output.join().unwrap_or_default();
        let complaint = complaint.join().unwrap_or_default();
        if ended { Ok((status.success(), output, complaint)) } else { Err(HelperError::Slow(helpers.limit)) }
    })
}

fn read(pipe: Option<impl Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        let _ = pipe.take(LONGEST).read_to_end(&mut bytes);
    }
    bytes
}

/// Waits until the helper has ended or time is up; says whether it was in time. It is not reaped here, so that its
/// process group keeps its number until [`end_group`] has used it.
fn wait(child: &Child, limit: Duration) -> bool {
    let end = Instant::now() + limit;
    let mut pause = Duration::from_millis(1);
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) else { return true };
    // An error here is found again by the caller, who waits once more.
    while matches!(waitid(WaitId::Pid(pid), options), Ok(None)) {
        if Instant::now() >= end {
            return false;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
    true
}

fn end_group(child: &Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // Usually nobody is left.
        let _ = kill_process_group(group, Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
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
