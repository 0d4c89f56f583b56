//! Repositories, checked out by the `git` command, which is given no more than it needs; without one, by the `gix` crates.

mod command;
mod commit;
mod complaint;
mod directories;
mod embedded;
mod finish;
mod limits;
mod listing;
mod submodules;
mod watch;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::git_source::{FileTimes, GitSource, Pinned, Submodules, is_commit};
use crate::http;
use crate::limit::Limit;
use crate::rootfs::{GuestPath, GuestPathError, Rootfs, RootfsError};
use command::Session;
use complaint::Cause;
use embedded::Embedded;
use finish::{Finish, finish};

pub use command::{Git, GitOptions};
pub use limits::GitLimits;

/// How much is shown of a line that git or a server says, and of a name in a repository, in characters.
const SHOWN_CHARACTERS: usize = 300;

/// What takes the `git` command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Needs {
    /// A repository that is reached by ssh.
    Ssh,
    /// A repository that is reached by git's own protocol.
    GitProtocol,
    /// A repository with others in it.
    Submodules,
    /// A file that is to be written in another encoding than UTF-8.
    Encoding(String),
}

impl fmt::Display for Needs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ssh => write!(f, "a repository that is reached by ssh"),
            Self::GitProtocol => write!(f, "a repository that is reached by `git://`"),
            Self::Submodules => {
                write!(f, "a repository with submodules (`?submodules=false` leaves them out)")
            }
            Self::Encoding(path) => write!(f, "the `working-tree-encoding` of `{path}`"),
        }
    }
}

/// What a repository takes too much of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exceeded {
    /// Room on disk, in bytes.
    Bytes(Limit),
    /// Files, links and directories.
    Entries(Limit),
    /// Memory, in bytes.
    Memory(Limit),
    /// Time.
    Seconds(Limit),
    /// Time in which nothing came.
    Idle(Limit),
    /// Repositories within it.
    Submodules(Limit),
    /// How deep those are.
    Nesting(Limit),
}

impl fmt::Display for Exceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (limit, what) = match self {
            Self::Bytes(limit) => (limit, "bytes on disk"),
            Self::Entries(limit) => (limit, "files, links and directories"),
            Self::Memory(limit) => (limit, "bytes of memory"),
            Self::Seconds(limit) => (limit, "seconds"),
            Self::Idle(limit) => {
                return write!(f, "nothing has come of the repository for {} seconds; {limit}", limit.value);
            }
            Self::Submodules(limit) => (limit, "submodules"),
            Self::Nesting(limit) => (limit, "submodules within each other"),
        };
        write!(f, "the repository takes more than {} {what}; {limit}", limit.value)
    }
}

/// Why a repository could not be checked out.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// There is no git, and this takes it.
    #[error("{0} takes the git command, which is not installed here (not found in PATH)")]
    Missing(Needs),
    /// It is too old to be told a secret in a way that nobody else sees.
    #[error("git is too old to be given a secret (`{0}`): version 2.31 or a later one is needed")]
    TooOld(String),
    /// It could not be started.
    #[error("git cannot be run")]
    Run(#[source] io::Error),
    /// It was started, and failed.
    #[error("cannot {action}: {said}")]
    Failed {
        /// What it was to do.
        action: String,
        /// What it said, in one line.
        said: String,
    },
    /// It said something that git does not say.
    #[error("git gave an answer that makes no sense, when it was to {0}")]
    Answer(String),
    /// There is no such branch or tag. BuildKit's words.
    #[error("repository does not contain ref {0}")]
    NoReference(String),
    /// There is none, and it is the beginning of the id of a commit.
    #[error(
        "repository does not contain ref {0}; where no branch or tag is named, a commit is by its whole id"
    )]
    PartOfCommit(String),
    /// The repository has no default branch.
    #[error("could not find default branch for repository: {0}")]
    NoDefault(String),
    /// The commit is another one than was asked for. BuildKit's words.
    #[error("expected checksum to match {expected}, got {actual}")]
    Checksum {
        /// What it should begin with.
        expected: String,
        /// What it is.
        actual: String,
    },
    /// The branch was changed in the middle of it.
    #[error("`{reference}` does not stand for the commit {commit} any more; try again")]
    Moved {
        /// The branch or tag.
        reference: String,
        /// What it stood for.
        commit: String,
    },
    /// A directory that the commit does not have.
    #[error("the repository has no directory `{directory}`")]
    Subdirectory {
        /// As it was given.
        directory: String,
        /// What the kernel said.
        #[source]
        source: RootfsError,
    },
    /// A directory that is no path.
    #[error("`{0}` is not a usable path")]
    Path(String, #[source] GuestPathError),
    /// A commit that was made when nothing can have been made, or nobody knows when.
    #[error("the commit {0} has no time between the years 1970 and 9999 that its files could get")]
    Time(String),
    /// A secret that cannot be a header. It is not shown.
    #[error("the secret for the `Authorization` header has characters that no header can have")]
    Secret,
    /// A file of the checkout.
    #[error(transparent)]
    Files(#[from] RootfsError),
    /// What git needs could not be written.
    #[error("cannot write `{}`", path.display())]
    Write {
        /// What.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// No answer, or half of one.
    #[error("cannot {action}")]
    Http {
        /// What was to be done.
        action: String,
        /// What went wrong.
        #[source]
        source: http::Failure,
    },
    /// What came is not what git servers send. What it is instead.
    #[error("the server of the repository sent {0}")]
    Corrupt(String),
    /// What came could not be kept.
    #[error("cannot write or read what was fetched")]
    Pack(#[source] io::Error),
    /// More than there may be.
    #[error("{0}")]
    Exceeded(Exceeded),
    /// More than is read of what git prints.
    #[error("git prints more than {most} bytes, when it is to {action}")]
    LongAnswer {
        /// What it was to do.
        action: String,
        /// How much is read.
        most: u64,
    },
    /// A path that ssh cannot be told.
    #[error("`{}` cannot be told to ssh: it has characters that mean something to it", .0.display())]
    SshPath(PathBuf),
    /// The build was told to stop.
    #[error("cancelled")]
    Cancelled,
}

/// What a reference stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// Its id.
    pub id: String,
    /// The id of the annotated tag that points to it.
    pub tag: Option<String>,
    /// The whole name of the branch or tag; none if a commit was named.
    pub reference: Option<String>,
}

impl Commit {
    /// What the reference stands for itself: the tag, or else the commit.
    fn object(&self) -> &str {
        self.tag.as_deref().unwrap_or(&self.id)
    }

    /// The time that its files get, where `said` is what git calls the time of the commit.
    fn seconds(&self, said: &[u8]) -> Result<i64, GitError> {
        commit::seconds(said).ok_or_else(|| GitError::Time(self.id.clone()))
    }
}

impl GitSource {
    /// Why there is nothing that `reference` stands for.
    fn no_reference(&self, reference: &str) -> GitError {
        let reference = reference.to_owned();
        // As under BuildKit, a commit that is named in the query is the reference where there is no other.
        if self.checksum.as_ref() == Some(&reference) {
            return GitError::PartOfCommit(reference);
        }
        GitError::NoReference(reference)
    }

    /// Whether `commit` is the one that is wanted.
    ///
    /// # Errors
    /// [`GitError::Checksum`].
    pub fn check_commit(&self, commit: &Commit) -> Result<(), GitError> {
        let Some(expected) = &self.checksum else { return Ok(()) };
        let fits = |id: &str| id.starts_with(&expected.to_ascii_lowercase());
        if fits(&commit.id) || commit.tag.as_deref().is_some_and(fits) {
            return Ok(());
        }
        let actual = match &commit.tag {
            Some(tag) => format!("{tag} or {}", commit.id),
            None => commit.id.clone(),
        };
        Err(GitError::Checksum { expected: expected.clone(), actual })
    }
}

/// A commit's files.
#[derive(Debug)]
pub struct Tree {
    /// The directory that was asked for.
    pub root: Rootfs,
    /// Its path, without links.
    pub path: PathBuf,
}

/// A repository, and with what it is asked for.
pub struct Repository<'a> {
    /// The program.
    pub git: &'a Git,
    /// What asks where there is no program.
    pub client: &'a http::Client,
    /// What is wanted.
    pub source: &'a GitSource,
    /// The `Authorization` header for it, if there is a secret.
    pub authorization: Option<&'a [u8]>,
    /// A directory of one's own, empty before the first use. It stays as long as the tree is needed.
    pub directory: &'a Path,
    /// What it may take.
    pub limits: GitLimits,
    /// Whether to stop; asked often.
    pub stopped: &'a dyn Fn() -> bool,
}

impl Repository<'_> {
    /// Asks which commit it is, and whether that is the one that is wanted. Nothing is fetched.
    ///
    /// # Errors
    /// [`GitError`].
    pub fn resolve(&self) -> Result<Commit, GitError> {
        let commit = self.find()?;
        self.source.check_commit(&commit)?;
        Ok(commit)
    }

    /// Asks which commit it is, whatever it should be. Nothing is fetched.
    ///
    /// # Errors
    /// [`GitError`].
    pub fn find(&self) -> Result<Commit, GitError> {
        let source = self.source;
        let named = |id: &str| Commit { id: id.to_owned(), tag: None, reference: None };
        match (&source.reference, &source.checksum, source.pinned) {
            (Some(reference), _, _) if is_commit(reference) => return Ok(named(reference)),
            (_, Some(checksum), Pinned::Yes) if is_commit(checksum) => return Ok(named(checksum)),
            _ => {}
        }
        let Some(session) = Session::open(self)? else { return Embedded::of(self)?.find() };
        let action = format!("ask {} for its branches and tags", source.shown());
        let Some(reference) = &source.reference else {
            let said = session.run(&action, &["ls-remote", "--symref", "--", session.url(), "HEAD"])?;
            return listing::default_branch(&said).ok_or_else(|| GitError::NoDefault(source.shown()));
        };
        let peeled = format!("{reference}^{{}}");
        let said = session.run(&action, &["ls-remote", "--", session.url(), reference, &peeled])?;
        listing::find(&said, reference).ok_or_else(|| source.no_reference(reference))
    }

    /// Checks out `commit`: files with the modes 0644 and 0755, directories 0755.
    ///
    /// # Errors
    /// [`GitError`].
    pub fn check_out(&self, commit: &Commit) -> Result<Tree, GitError> {
        let Some(session) = Session::open(self)? else { return Embedded::of(self)?.check_out(commit) };
        let source = self.source;
        let tree = self.directory.join("tree");
        make_directory(&tree)?;
        let keeps = source.keeps_git_directory();
        let repository = if keeps { tree.join(".git") } else { self.directory.join("git") };
        let inside = Inside { session: &session, repository: &repository, tree: &tree, source };
        inside.fetch(commit)?;
        inside.check_out(commit)?;
        let modified = match source.times {
            FileTimes::Checkout => None,
            FileTimes::Commit => Some(inside.time_of(commit)?),
        };
        if keeps {
            inside.tidy(commit)?;
        } else {
            remove(self.directory, "git")?;
        }
        // What came since the last look.
        session.watch.room()?;
        let root = Rootfs::open(&tree).map_err(writing(&tree))?;
        let wanted = Finish {
            git_directory: source.git_directory,
            modified,
            entries: self.limits.entries,
            stopped: self.stopped,
        };
        finish(&root, &wanted)?;
        self.subdirectory(root, &tree)
    }

    /// The directory that is wanted, with links resolved inside the checkout.
    fn subdirectory(&self, root: Rootfs, tree: &Path) -> Result<Tree, GitError> {
        use std::os::unix::ffi::OsStrExt as _;
        let Some(written) = &self.source.subdirectory else {
            return Ok(Tree { root, path: tree.to_owned() });
        };
        let path =
            GuestPath::clamp(written.as_bytes()).map_err(|source| GitError::Path(written.clone(), source))?;
        let missing = |source| GitError::Subdirectory { directory: written.clone(), source };
        let directory = root.directory(&path).map_err(missing)?;
        let real = root.resolve(&path).map_err(missing)?;
        let path = tree.join(std::ffi::OsStr::from_bytes(real.relative()));
        Ok(Tree { root: Rootfs::from_fd(directory), path })
    }
}

/// One repository on disk with its files.
struct Inside<'a> {
    session: &'a Session<'a>,
    /// Where git keeps its own.
    repository: &'a Path,
    /// Where files are checked out.
    tree: &'a Path,
    source: &'a GitSource,
}

impl Inside<'_> {
    fn run(&self, action: &str, arguments: &[&str]) -> Result<Vec<u8>, GitError> {
        self.session.run_in(action, Some((self.repository, self.tree)), arguments)
    }

    /// Fetches as little as the server allows: the one commit, if it does.
    fn fetch(&self, commit: &Commit) -> Result<(), GitError> {
        let format = if commit.object().len() == 64 { "sha256" } else { "sha1" };
        let format = format!("--object-format={format}");
        let mut arguments = vec!["init", "-q", "--template="];
        if !self.source.keeps_git_directory() {
            arguments.push("--bare");
        }
        if commit.object().len() == 64 {
            // Old versions know neither the hash nor the option.
            arguments.push(&format);
        }
        // Told where the files are, git would write that down; they will be elsewhere.
        let place = if self.source.keeps_git_directory() { self.tree } else { self.repository };
        let place = place.to_string_lossy();
        arguments.extend(["--", &place]);
        self.session.run("make a repository", &arguments)?;
        let url = self.session.url();
        // Submodules with relative URLs are found by it.
        self.run("note where the repository is from", &["config", "remote.origin.url", url])?;
        let refspec = "+refs/heads/*:refs/remotes/origin/*";
        self.run("note what is fetched", &["config", "remote.origin.fetch", refspec])?;
        if let Some(reference) = &commit.reference {
            let refspec = format!("+{reference}:{reference}");
            match self.fetch_shallow(&refspec) {
                Ok(()) if self.has(commit)? && self.stands_for(reference, commit)? => return Ok(()),
                // Somebody pushed meanwhile: the commit itself may still be there to be had.
                Ok(()) => {}
                Err(error) => return Err(error),
            }
        }
        let by_id = self.fetch_shallow(commit.object());
        if !matches!(by_id, Ok(()) | Err(GitError::Failed { .. })) {
            return by_id;
        }
        if by_id.is_err() {
            // Not every server gives a commit by its id: then all that has names is fetched.
            self.run(&self.fetching(), &["fetch", "-q", "--progress", "--tags", "-u", "origin"])?;
        }
        if !self.has(commit)? {
            return Err(match (&commit.reference, by_id) {
                (Some(reference), _) => {
                    GitError::Moved { reference: reference.clone(), commit: commit.id.clone() }
                }
                (None, Err(error)) => error,
                (None, Ok(())) => GitError::NoReference(commit.id.clone()),
            });
        }
        match &commit.reference {
            Some(reference) => {
                let arguments = ["update-ref", "--no-deref", reference, commit.object()];
                self.run("set a branch", &arguments).map(|_| ())
            }
            None => Ok(()),
        }
    }

    fn fetching(&self) -> String {
        format!("fetch {}", self.source.shown())
    }

    /// Fetches without history; from a server that cannot do that, with it.
    fn fetch_shallow(&self, refspec: &str) -> Result<(), GitError> {
        let fetch = |depth: &[&str]| {
            let what = ["--no-tags", "-u", "--", "origin", refspec];
            let arguments = [&["fetch", "-q", "--progress"], depth, &what].concat();
            self.session.try_in(Some((self.repository, self.tree)), &arguments)
        };
        let mut fetched = fetch(&["--depth=1"])?;
        if fetched.as_ref().is_err_and(|ended| ended.cause == Cause::Shallow) {
            fetched = fetch(&[])?;
        }
        fetched.map(|_| ()).map_err(|ended| ended.when(&self.fetching()))
    }

    /// Whether the commit is there.
    fn has(&self, commit: &Commit) -> Result<bool, GitError> {
        let object = format!("{}^{{commit}}", commit.object());
        let arguments = ["rev-parse", "-q", "--verify", &object];
        let found = self.session.try_in(Some((self.repository, self.tree)), &arguments)?;
        Ok(found.is_ok_and(|said| said.trim_ascii() == commit.id.as_bytes()))
    }

    fn stands_for(&self, reference: &str, commit: &Commit) -> Result<bool, GitError> {
        let said = self.run("look for a commit", &["rev-parse", "--verify", reference])?;
        Ok(said.trim_ascii() == commit.object().as_bytes())
    }

    fn check_out(&self, commit: &Commit) -> Result<(), GitError> {
        let action = format!("check out {} of {}", commit.id, self.source.shown());
        self.run(&action, &["checkout", "-q", "--progress", "-f", "--detach", &commit.id])?;
        if self.source.submodules == Submodules::Recursive { self.check_out_submodules() } else { Ok(()) }
    }

    /// When the commit was made, in seconds since 1970.
    fn time_of(&self, commit: &Commit) -> Result<i64, GitError> {
        let action = "tell the time of a commit";
        let said = self.run(action, &["log", "-1", "--format=%ct", &commit.id])?;
        commit.seconds(said.trim_ascii())
    }

    /// Takes what the fetching has left out of a `.git` that is kept. The index is made anew, without the numbers and times
    /// of the files here: they will be others, and with them every checkout would give another layer.
    fn tidy(&self, commit: &Commit) -> Result<(), GitError> {
        for name in ["FETCH_HEAD", "ORIG_HEAD", "logs", "index"] {
            remove(self.repository, name)?;
        }
        self.run("make an index", &["read-tree", &commit.id]).map(|_| ())
    }
}

/// Makes an empty directory, whatever the umask.
fn make_directory(path: &Path) -> Result<(), GitError> {
    use rustix::fs::{AtFlags, CWD, Mode};
    let mode = Mode::from_raw_mode(0o755);
    rustix::fs::mkdir(path, mode)
        .and_then(|()| rustix::fs::chmodat(CWD, path, mode, AtFlags::empty()))
        .map_err(|error| writing(path)(error.into()))
}

/// Removes a directory or file of ours, if it is there.
fn remove(directory: &Path, name: &str) -> Result<(), GitError> {
    use rustix::fs::{Mode, OFlags};
    use std::os::fd::AsFd as _;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::open(directory, flags, Mode::empty()).map_err(io::Error::from);
    let removed = opened.and_then(|parent| crate::rootfs::remove_tree(parent.as_fd(), name.as_bytes()));
    removed.map_err(writing(directory))
}

fn writing(path: &Path) -> impl FnOnce(io::Error) -> GitError + '_ {
    move |source| GitError::Write { path: path.to_owned(), source }
}
