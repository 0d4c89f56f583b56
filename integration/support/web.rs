//! A web server on this machine with the files that ADD of a URL is tried with, and a git repository over smart HTTP.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::fake_registry::{Answer, Seen, Server};
use super::scratch;

/// When `hello.txt` was changed last.
pub(crate) const MODIFIED: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
/// The same in seconds since 1970.
pub(crate) const MODIFIED_SECONDS: i64 = 784_111_777;

/// The server; `repo.git` is removed with it.
pub(crate) struct Site {
    pub(crate) server: Server,
    repositories: TempDir,
}

impl Site {
    /// Starts it; none, and a word about it, if the machine has no git.
    pub(crate) fn start() -> Option<Self> {
        Self::start_with(|_| None)
    }

    /// Starts it with answers of one's own, which come first.
    pub(crate) fn start_with(own: impl Fn(&Seen) -> Option<Answer> + Send + Sync + 'static) -> Option<Self> {
        Self::serve(own, |_| ())
    }

    /// Starts one that knows only the first version of git's protocol, as old servers do.
    pub(crate) fn start_old() -> Option<Self> {
        let forget = |seen: &mut Seen| drop(seen.headers.remove("git-protocol"));
        Self::serve(|_| None, forget)
    }

    fn serve(
        own: impl Fn(&Seen) -> Option<Answer> + Send + Sync + 'static,
        change: impl Fn(&mut Seen) + Send + Sync + 'static,
    ) -> Option<Self> {
        if Command::new("git").arg("version").output().is_err() {
            eprintln!("skipped: git is not installed");
            return None;
        }
        let repositories = scratch();
        make_repository(repositories.path());
        let root = repositories.path().to_owned();
        let server = Server::start("127.0.0.1", move |seen| {
            own(seen).unwrap_or_else(|| {
                let mut seen = seen.clone();
                change(&mut seen);
                answer(&root, &seen)
            })
        });
        Some(Self { server, repositories })
    }

    /// The URL of `path`.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.server.address)
    }

    /// A directory beside `repo.git` for repositories of one's own.
    pub(crate) fn repositories(&self) -> &Path {
        self.repositories.path()
    }

    /// Runs git on the files that `repo.git` was made from.
    pub(crate) fn git(&self, arguments: &[&str]) -> String {
        git(&self.repositories.path().join("work"), arguments)
    }

    /// Makes the repository `inner.git`, which has one file `inside`; gives the directory that it was made from.
    pub(crate) fn add_inner(&self) -> PathBuf {
        let inner = self.repositories().join("inner");
        std::fs::create_dir(&inner).unwrap();
        git(&inner, &["init", "-q"]);
        std::fs::write(inner.join("inside"), "inside").unwrap();
        git(&inner, &["add", "-A"]);
        git(&inner, &["commit", "-q", "-m", "inner"]);
        git(self.repositories(), &["clone", "-q", "--bare", "inner", "inner.git"]);
        inner
    }

    /// Commits a file and brings `repo.git` up to date; gives the id of the commit.
    pub(crate) fn commit(&self, name: &str, content: &str) -> String {
        let work = self.repositories.path().join("work");
        std::fs::create_dir_all(work.join(name).parent().unwrap()).unwrap();
        std::fs::write(work.join(name), content).unwrap();
        self.git(&["add", "-A"]);
        self.git(&["commit", "-q", "-m", name]);
        self.git(&["push", "-q", "--tags", "../repo.git", "master"]);
        self.git(&["rev-parse", "HEAD"])
    }
}

/// Runs git in `directory` as somebody whom nothing is known of; gives what it says.
pub(crate) fn git(directory: &Path, arguments: &[&str]) -> String {
    let output = Command::new("git")
        .args([
            "-c",
            "user.name=Test",
            "-c",
            "user.email=test@example.com",
            "-c",
            "protocol.file.allow=always",
        ])
        .args(["-c", "init.defaultBranch=master", "-c", "core.symlinks=true", "-c", "safe.directory=*"])
        .args(arguments)
        .current_dir(directory)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_AUTHOR_DATE", "1700000000 +0000")
        .env("GIT_COMMITTER_DATE", "1700000000 +0000")
        .output()
        .unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// `repo.git`: the tag `v1` has `a` (0755), `sub/b`, and the link `l` to `a`.
fn make_repository(root: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    let work = root.join("work");
    std::fs::create_dir_all(work.join("sub")).unwrap();
    git(&work, &["init", "-q"]);
    std::fs::write(work.join("a"), "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(work.join("a"), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(work.join("sub/b"), "b\n").unwrap();
    std::os::unix::fs::symlink("a", work.join("l")).unwrap();
    git(&work, &["add", "-A"]);
    git(&work, &["commit", "-q", "-m", "first"]);
    git(&work, &["tag", "v1"]);
    git(root, &["clone", "-q", "--bare", "work", "repo.git"]);
}

fn answer(root: &Path, seen: &Seen) -> Answer {
    let archive = |name: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/archives").join(name);
        Answer::new(200).body(std::fs::read(path).unwrap())
    };
    match seen.path.as_str() {
        "/hello.txt" if seen.header("if-none-match") == Some("\"hello\"") => Answer::new(304),
        "/hello.txt" => {
            Answer::new(200).with("Last-Modified", MODIFIED).with("ETag", "\"hello\"").body("hello")
        }
        "/nolm" => Answer::new(200).body("abc"),
        "/redir" => Answer::new(302).with("Location", "/hello.txt"),
        "/cd" => {
            Answer::new(200).with("Content-Disposition", "attachment; filename=\"other.txt\"").body("cd")
        }
        "/a.tar" => archive("a.tar"),
        "/a.tgz" => archive("a.tgz"),
        path if path.contains(".git/") => backend(root, seen),
        _ => Answer::new(404).body("there is no such thing"),
    }
}

/// git-http-backend(1), over CGI.
fn backend(root: &Path, seen: &Seen) -> Answer {
    let header = |name: &str| seen.header(name).unwrap_or_default();
    let mut child = Command::new("git")
        .args(["-c", "safe.directory=*", "http-backend"])
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("GIT_PROJECT_ROOT", root)
        .env("REQUEST_METHOD", &seen.method)
        .env("PATH_INFO", &seen.path)
        .env("QUERY_STRING", &seen.query)
        .env("CONTENT_TYPE", header("content-type"))
        .env("CONTENT_LENGTH", seen.body.len().to_string())
        .env("HTTP_CONTENT_ENCODING", header("content-encoding"))
        .env("HTTP_GIT_PROTOCOL", header("git-protocol"))
        .env("GIT_PROTOCOL", header("git-protocol"))
        .env("REMOTE_ADDR", "127.0.0.1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let body = seen.body.clone();
    let writer = std::thread::spawn(move || drop(stdin.write_all(&body)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let end = output.stdout.windows(4).position(|window| window == b"\r\n\r\n");
    let Some(end) = end else { return Answer::new(500) };
    let head = String::from_utf8_lossy(&output.stdout[..end]).into_owned();
    let pairs: Vec<(&str, &str)> = head.lines().filter_map(|line| line.split_once(": ")).collect();
    let status = pairs
        .iter()
        .find(|(name, _)| *name == "Status")
        .map_or(200, |(_, value)| value[..3].parse().unwrap());
    let with = |answer: Answer, (name, value): &(&str, &str)| answer.with(name, value);
    let answer = pairs.iter().filter(|(name, _)| *name != "Status").fold(Answer::new(status), with);
    answer.body(output.stdout[end + 4..].to_vec())
}

/// All files below `root` with mode and content, or target, sorted.
pub(crate) fn listing(root: &Path) -> Vec<String> {
    use std::os::unix::fs::PermissionsExt as _;
    let mut waiting = vec![PathBuf::new()];
    let mut lines = Vec::new();
    while let Some(path) = waiting.pop() {
        for entry in std::fs::read_dir(root.join(&path)).unwrap() {
            let entry = entry.unwrap();
            let path = path.join(entry.file_name());
            let metadata = entry.metadata().unwrap();
            let mode = metadata.permissions().mode() & 0o7777;
            let shown = path.display();
            if metadata.is_symlink() {
                lines.push(format!("{shown} -> {}", std::fs::read_link(entry.path()).unwrap().display()));
            } else if metadata.is_dir() {
                lines.push(format!("{shown}/ {mode:o}"));
                waiting.push(path);
            } else {
                let content = std::fs::read(entry.path()).unwrap();
                lines.push(format!("{shown} {mode:o} {}", String::from_utf8_lossy(&content).trim()));
            }
        }
    }
    lines.sort();
    lines
}
