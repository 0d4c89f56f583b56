//! How the `git` command is run: with nothing of the machine's settings, and no way to ask anybody.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

use url::Url;

use super::{GitError, Repository, writing};
use crate::children::{Outcome, find_program, run_program};
use crate::context::download::basic_authorization;
use crate::context::git_source::Transport;
use crate::http::{Pem, Proxies, pem_bundle};
use crate::text::{line, without_credentials};

/// How much of what git prints is kept, in bytes: a list of branches and tags that fit a name.
const LONGEST: u64 = 4 << 20;
/// How many lines of its complaints are shown, and how long.
const SHOWN_LINES: usize = 6;
const SHOWN_CHARACTERS: usize = 300;

/// What every call is told, whatever repository and machine would say. A repository is data: no program that it names runs.
const SETTINGS: [&str; 17] = [
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.logAllRefUpdates=false",
    "core.autocrlf=false",
    "core.fileMode=true",
    "core.askPass=",
    "credential.helper=",
    "init.defaultBranch=master",
    "advice.detachedHead=false",
    "fetch.recurseSubmodules=false",
    "submodule.recurse=false",
    "gc.auto=0",
    "maintenance.auto=false",
    // Files belong to whoever unpacked the store, which may be another user in a namespace.
    "safe.directory=*",
    "http.lowSpeedLimit=1000",
    "http.lowSpeedTime=60",
    "checkout.workers=1",
];

/// Transports that a repository, or a submodule of it, may be fetched by: neither files of this machine nor programs.
const PROTOCOLS: &str = "http:https:git:ssh";

/// The `git` of this machine, and what it may know of it.
#[derive(Clone, Default)]
pub struct GitOptions {
    /// Where it, and `ssh`, are looked for; relative directories are passed over.
    pub path: Vec<PathBuf>,
    /// The proxies.
    pub proxies: Proxies,
    /// Certificates to trust besides the bundled ones.
    pub certificates: Vec<Pem>,
    /// The socket of the agent that has the keys for ssh.
    pub agent: Option<PathBuf>,
    /// A file with hosts that ssh knows already.
    pub known_hosts: Option<PathBuf>,
}

/// Proxies can have passwords.
impl fmt::Debug for GitOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GitOptions").field("path", &self.path).finish_non_exhaustive()
    }
}

/// The `git` command; clones share what is known of it.
#[derive(Debug, Clone)]
pub struct Git {
    options: Arc<GitOptions>,
    version: Arc<OnceLock<String>>,
}

impl Git {
    /// One with these options. Nothing is looked for yet.
    #[must_use]
    pub fn new(options: GitOptions) -> Self {
        Self { options: Arc::new(options), version: Arc::default() }
    }
}

/// Calls about one repository.
pub(super) struct Session<'a> {
    repository: &'a Repository<'a>,
    program: PathBuf,
    home: PathBuf,
    /// Without credentials.
    url: String,
    /// Settings that nobody else may see.
    secret: Vec<(String, OsString)>,
}

impl<'a> Session<'a> {
    /// None if there is no program.
    pub(super) fn open(repository: &'a Repository<'a>) -> Result<Option<Self>, GitError> {
        let options = &repository.git.options;
        let Some(program) = find_program(&options.path, "git") else { return Ok(None) };
        let home = repository.directory.join("home");
        match rustix::fs::mkdir(&home, rustix::fs::Mode::RWXU) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(writing(&home)(error.into())),
        }
        let (url, secret) = settings(repository)?;
        let session = Self { repository, program, home, url, secret };
        if repository.source.transport == Transport::Https {
            let path = session.certificates();
            std::fs::write(&path, pem_bundle(&options.certificates)).map_err(writing(&path))?;
        }
        session.check_version()?;
        Ok(Some(session))
    }

    /// The repository's address, without credentials but the user of ssh.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    fn certificates(&self) -> PathBuf {
        self.home.join("certificates.pem")
    }

    /// Settings come by the environment since 2.31; an older git would go on without them.
    fn check_version(&self) -> Result<(), GitError> {
        if self.secret.is_empty() {
            return Ok(());
        }
        let known = &self.repository.git.version;
        if known.get().is_none() {
            let said = self.run("tell its version", &["version"])?;
            let _ = known.set(String::from_utf8_lossy(&said).trim().to_owned());
        }
        let said = known.get().map_or("", String::as_str);
        let mut numbers = said.split(' ').nth(2).unwrap_or_default().split('.').map(str::parse::<u32>);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= (2, 31) => Ok(()),
            _ => Err(GitError::TooOld(line(said.as_bytes(), SHOWN_CHARACTERS))),
        }
    }

    pub(super) fn run(&self, action: &str, arguments: &[&str]) -> Result<Vec<u8>, GitError> {
        self.run_in(action, None, arguments)
    }

    /// Runs git; with `place`, on that repository and in the directory of its files. Gives what it prints.
    pub(super) fn run_in(
        &self,
        action: &str,
        place: Option<(&Path, &Path)>,
        arguments: &[&str],
    ) -> Result<Vec<u8>, GitError> {
        let mut command = Command::new(&self.program);
        command.env_clear().envs(self.environment()).current_dir(&self.home);
        for setting in SETTINGS {
            command.args(["-c", setting]);
        }
        if !self.secret.is_empty() {
            // git itself would go on sending it wherever the first answer leads.
            command.args(["-c", "http.followRedirects=false"]);
        }
        if let Some((repository, tree)) = place {
            command.arg("--git-dir").arg(repository).arg("--work-tree").arg(tree).current_dir(tree);
        }
        command.args(arguments);
        let outcome = run_program(&mut command, b"", LONGEST, self.repository.stopped);
        let Outcome { status, stdout, stderr } =
            outcome.map_err(GitError::Run)?.ok_or(GitError::Cancelled)?;
        if status.success() {
            return Ok(stdout);
        }
        Err(GitError::Failed { action: action.to_owned(), said: complaint(&stderr, status) })
    }

    /// All that git and what it starts find in their environment.
    fn environment(&self) -> Vec<(OsString, OsString)> {
        let options = &self.repository.git.options;
        let mut all: Vec<(OsString, OsString)> = Vec::new();
        let mut set = |name: &str, value: &OsStr| all.push((name.into(), value.to_owned()));
        let path = std::env::join_paths(options.path.iter().filter(|path| path.is_absolute()));
        set("PATH", &path.unwrap_or_default());
        set("HOME", self.home.as_os_str());
        set("LC_ALL", OsStr::new("C"));
        set("GIT_CONFIG_NOSYSTEM", OsStr::new("1"));
        set("GIT_CONFIG_GLOBAL", OsStr::new("/dev/null"));
        set("GIT_ATTR_NOSYSTEM", OsStr::new("1"));
        set("GIT_TERMINAL_PROMPT", OsStr::new("0"));
        set("GIT_ALLOW_PROTOCOL", OsStr::new(PROTOCOLS));
        set("GIT_SSH_COMMAND", &self.ssh());
        if self.repository.source.transport == Transport::Https {
            set("GIT_SSL_CAINFO", self.certificates().as_os_str());
        }
        for (name, value) in [("http_proxy", &options.proxies.http), ("https_proxy", &options.proxies.https)]
        {
            if let Some(value) = value {
                set(name, OsStr::new(value));
            }
        }
        let direct = format!("localhost,127.0.0.1,::1,{}", options.proxies.none);
        set("no_proxy", OsStr::new(&direct));
        if let Some(agent) = &options.agent {
            set("SSH_AUTH_SOCK", agent.as_os_str());
        }
        if !self.secret.is_empty() {
            set("GIT_CONFIG_COUNT", OsStr::new(&self.secret.len().to_string()));
            for (number, (key, value)) in self.secret.iter().enumerate() {
                set(&format!("GIT_CONFIG_KEY_{number}"), OsStr::new(key));
                set(&format!("GIT_CONFIG_VALUE_{number}"), value);
            }
        }
        all
    }

    /// How ssh is run: it asks nobody. A host that it does not know yet is believed the first time.
    fn ssh(&self) -> OsString {
        let mut command =
            OsString::from("ssh -F /dev/null -o BatchMode=yes -o StrictHostKeyChecking=accept-new");
        command.push(" -o ConnectTimeout=30 -o ServerAliveInterval=15 -o UserKnownHostsFile='");
        command.push(self.home.join("known_hosts"));
        if let Some(known) = &self.repository.git.options.known_hosts {
            command.push(" ");
            command.push(known);
        }
        command.push("'");
        command
    }
}

/// The address to ask, and what git is told of the credentials for it.
fn settings(repository: &Repository<'_>) -> Result<(String, Vec<(String, OsString)>), GitError> {
    let source = repository.source;
    if !matches!(source.transport, Transport::Http | Transport::Https) {
        return Ok((source.remote.clone(), Vec::new()));
    }
    let (url, value) = credentials(repository)?;
    let Some(value) = value else { return Ok((url.into(), Vec::new())) };
    // As BuildKit has it: a secret is for the repository, or for all of GitHub.
    let scope = match (repository.authorization, url.host_str()) {
        (Some(_), Some("github.com" | "www.github.com")) | (None, _) => {
            url.origin().ascii_serialization() + "/"
        }
        (Some(_), _) => url.to_string(),
    };
    let header = [b"Authorization: ", &value[..]].concat();
    let header = std::os::unix::ffi::OsStringExt::from_vec(header);
    Ok((url.into(), vec![(format!("http.{scope}.extraHeader"), header)]))
}

/// The http or https address of a repository without credentials, and the `Authorization` header for it.
pub(super) fn credentials(repository: &Repository<'_>) -> Result<(Url, Option<Vec<u8>>), GitError> {
    let source = repository.source;
    let mut url = Url::parse(&source.remote).map_err(|_| GitError::Failed {
        action: format!("fetch {}", source.shown()),
        said: "it is not a usable URL".to_owned(),
    })?;
    let from_url = basic_authorization(&url).map(String::into_bytes);
    let _ = url.set_username("");
    let _ = url.set_password(None);
    let value = repository.authorization.map(<[u8]>::to_vec).or(from_url);
    if value.iter().flatten().any(u8::is_ascii_control) {
        return Err(GitError::Secret);
    }
    Ok((url, value))
}

/// What git has to say of a failure, in one line and without secrets.
fn complaint(stderr: &[u8], status: std::process::ExitStatus) -> String {
    let text = String::from_utf8_lossy(stderr);
    let lines: Vec<&str> = text
        .split(['\n', '\r'])
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("hint:"))
        .collect();
    let first = lines.len().saturating_sub(SHOWN_LINES);
    let shown: Vec<String> = lines[first..]
        .iter()
        .map(|text| line(without_credentials(text).as_bytes(), SHOWN_CHARACTERS))
        .collect();
    if shown.is_empty() { format!("it ended with {status}") } else { shown.join("; ") }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::ExitStatus;

    use super::*;

    #[test]
    fn a_complaint_is_one_line_without_passwords_and_control_characters() {
        let status = ExitStatus::from_raw(128 << 8);
        let said = "remote: \u{1b}[31mno\nhint: try\nfatal: unable to access 'https://me:pw@h/x/': 403\n";
        assert_eq!(
            complaint(said.as_bytes(), status),
            "remote: \\u{1b}[31mno; fatal: unable to access 'https://xxxxx:xxxxx@h/x/': 403"
        );
        assert_eq!(complaint(b"\n", status), "it ended with exit status: 128");
        let many = "x\n".repeat(100);
        assert_eq!(complaint(many.as_bytes(), status), "x; x; x; x; x; x");
    }
}
