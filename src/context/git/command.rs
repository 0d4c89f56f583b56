//! How the `git` command is run: with nothing of the machine's settings, and no way to ask anybody.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

use url::Url;

use super::complaint::{Cause, cause, complaint};
use super::watch::Watch;
use super::{Exceeded, GitError, GitLimits, Repository, writing};
use crate::children::{Bounds, Outcome, find_program, run_program};
use crate::context::git_source::Transport;
use crate::context::url::basic_authorization;
use crate::http::{Pem, Proxies, pem_bundle};
use crate::text::line;

/// How much of what git prints is kept, in bytes: a list of branches and tags that fit a name.
const LONGEST: u64 = 4 << 20;

/// What every call is told, whatever repository and machine would say. A repository is data: no program that it names runs.
const SETTINGS: [&str; 18] = [
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
    // Larger files are not held in memory: without it, a file of half a gigabyte would take as much, and twice that as a delta.
    "core.bigFileThreshold=64m",
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
    /// Looks at what git takes.
    pub(super) watch: Watch<'a>,
}

/// How git ended, where that was no success.
pub(super) struct Ended {
    /// Its exit code; none if it was killed.
    pub(super) status: Option<i32>,
    /// What its words mean.
    pub(super) cause: Cause,
    /// Its words, in one line.
    said: String,
}

impl Ended {
    /// The error, when it was to do `action`.
    pub(super) fn when(self, action: &str) -> GitError {
        GitError::Failed { action: action.to_owned(), said: self.said }
    }
}

impl<'a> Session<'a> {
    pub(super) fn open(repository: &'a Repository<'a>) -> Result<Self, GitError> {
        let options = &repository.git.options;
        let program = find_program(&options.path, "git").ok_or(GitError::Missing)?;
        let home = repository.directory.join("home");
        match rustix::fs::mkdir(&home, rustix::fs::Mode::RWXU) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(writing(&home)(error.into())),
        }
        let (url, secret) = credentials(repository)?;
        let watch = Watch::begin(repository.directory, repository.limits, repository.stopped);
        let session = Self { repository, program, home, url, secret, watch };
        if repository.source.transport == Transport::Https {
            let path = session.certificates();
            std::fs::write(&path, pem_bundle(&options.certificates)).map_err(writing(&path))?;
        }
        session.check_version()?;
        Ok(session)
    }

    /// The repository's address, without credentials but the user of ssh.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) fn limits(&self) -> GitLimits {
        self.repository.limits
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
            _ => Err(GitError::TooOld(line(said.as_bytes(), 300))),
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
        match self.try_in(place, arguments) {
            Ok(done) => done.map_err(|ended| ended.when(action)),
            Err(GitError::LongAnswer { most, .. }) => {
                Err(GitError::LongAnswer { action: action.to_owned(), most })
            }
            Err(error) => Err(error),
        }
    }

    /// Runs git likewise, where its failing may be an answer.
    pub(super) fn try_in(
        &self,
        place: Option<(&Path, &Path)>,
        arguments: &[&str],
    ) -> Result<Result<Vec<u8>, Ended>, GitError> {
        let mut command = Command::new(&self.program);
        command.env_clear().envs(self.environment()?).current_dir(&self.home);
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
        let memory = self.limits().memory;
        let Outcome { status, stdout, whole, stderr } = self.watch.over(|stopped| {
            let bounds = Bounds { kept: LONGEST, memory: Some(memory.value), stopped };
            run_program(&mut command, b"", &bounds)
        })?;
        if !status.success() {
            let cause = cause(&stderr);
            if cause == Cause::Memory {
                return Err(GitError::Exceeded(Exceeded::Memory(memory)));
            }
            return Ok(Err(Ended { status: status.code(), cause, said: complaint(&stderr, status) }));
        }
        if whole {
            Ok(Ok(stdout))
        } else {
            Err(GitError::LongAnswer { action: String::new(), most: LONGEST })
        }
    }

    /// All that git and what it starts find in their environment.
    fn environment(&self) -> Result<Vec<(OsString, OsString)>, GitError> {
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
        set("GIT_SSH_COMMAND", &self.ssh()?);
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
        Ok(all)
    }

    /// How ssh is run: it asks nobody. A host that it does not know yet is believed the first time.
    fn ssh(&self) -> Result<OsString, GitError> {
        let mut known = ssh_file(&self.home.join("known_hosts"))?;
        if let Some(of_user) = &self.repository.git.options.known_hosts {
            known.push(" ");
            known.push(ssh_file(of_user)?);
        }
        let mut command =
            OsString::from("ssh -F /dev/null -o BatchMode=yes -o StrictHostKeyChecking=accept-new");
        command.push(" -o ConnectTimeout=30 -o ServerAliveInterval=15 -o ");
        let option = [b"UserKnownHostsFile=", known.as_encoded_bytes()].concat();
        command.push(for_shell(&option));
        Ok(command)
    }
}

/// `text` as one word of a shell.
fn for_shell(text: &[u8]) -> OsString {
    let mut word = vec![b'\''];
    for byte in text {
        match byte {
            b'\'' => word.extend_from_slice(b"'\\''"),
            byte => word.push(*byte),
        }
    }
    word.push(b'\'');
    OsString::from_vec(word)
}

/// `path` as one of the files that an option of ssh names (ssh_config(5)): in quotes, since blanks part one from the next, and
/// with percent signs doubled, since they stand for other things.
fn ssh_file(path: &Path) -> Result<OsString, GitError> {
    let bytes = path.as_os_str().as_bytes();
    // Old versions know no way to write a quote. What stands in `${}` is taken from the environment, always.
    let has_variable = bytes.windows(2).any(|pair| pair == b"${");
    if has_variable || bytes.iter().any(|byte| matches!(byte, b'"' | b'\\') || byte.is_ascii_control()) {
        return Err(GitError::SshPath(path.to_owned()));
    }
    let doubled = bytes.iter().flat_map(|byte| std::iter::repeat_n(*byte, 1 + usize::from(*byte == b'%')));
    Ok(OsString::from_vec([b"\"", doubled.collect::<Vec<u8>>().as_slice(), b"\""].concat()))
}

/// The address to ask, and what git is told of the credentials for it.
fn credentials(repository: &Repository<'_>) -> Result<(String, Vec<(String, OsString)>), GitError> {
    let source = repository.source;
    let remote = &source.remote;
    if !matches!(source.transport, Transport::Http | Transport::Https) {
        return Ok((remote.clone(), Vec::new()));
    }
    let mut url = Url::parse(remote).map_err(|_| GitError::Failed {
        action: format!("fetch {}", source.shown()),
        said: "it is not a usable URL".to_owned(),
    })?;
    let from_url = basic_authorization(&url);
    let _ = url.set_username("");
    let _ = url.set_password(None);
    // As BuildKit has it: a secret is for the repository, or for all of GitHub.
    let scope = match (repository.authorization, url.host_str()) {
        (Some(_), Some("github.com" | "www.github.com")) | (None, _) => {
            url.origin().ascii_serialization() + "/"
        }
        (Some(_), _) => url.to_string(),
    };
    let value = match (repository.authorization, from_url) {
        (Some(value), _) => value.to_vec(),
        (None, Some(value)) => value.into_bytes(),
        (None, None) => return Ok((url.into(), Vec::new())),
    };
    if value.iter().any(|byte| byte.is_ascii_control()) {
        return Err(GitError::Secret);
    }
    let header = [b"Authorization: ", &value[..]].concat();
    let header = OsString::from_vec(header);
    Ok((url.into(), vec![(format!("http.{scope}.extraHeader"), header)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_reach_ssh_whatever_they_are_called() {
        let written = |path: &str| {
            let file = ssh_file(Path::new(path)).ok()?;
            Some(for_shell(&[b"x=", file.as_bytes()].concat()).into_string().unwrap())
        };
        assert_eq!(written("/a b/it's").as_deref(), Some(r#"'x="/a b/it'\''s"'"#));
        assert_eq!(written("/100%d").as_deref(), Some(r#"'x="/100%%d"'"#));
        assert_eq!(written("/$HOME").as_deref(), Some(r#"'x="/$HOME"'"#));
        for path in ["/a\"b", "/a\\b", "/${HOME}", "/a\nb"] {
            assert_eq!(written(path), None, "{path}");
        }
        // ssh itself reads them back.
        let path = "/it's a %h 100%";
        let line = format!("ssh -F /dev/null -G -o {} host", {
            let option = [b"UserKnownHostsFile=", ssh_file(Path::new(path)).unwrap().as_bytes()].concat();
            for_shell(&option).into_string().unwrap()
        });
        let Ok(output) = Command::new("sh").arg("-c").arg(&line).output() else { return };
        let said = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            eprintln!("skipped: ssh is not installed: {}", String::from_utf8_lossy(&output.stderr));
            return;
        }
        let found = said.lines().find_map(|line| line.strip_prefix("userknownhostsfile "));
        assert_eq!(found.map(|found| found.replace("%%", "%")).as_deref(), Some(path), "{said}");
    }
}
