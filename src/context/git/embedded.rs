//! Repositories without the `git` command: those behind http and https, by the `gix` crates. Whatever takes the command says so.

mod attributes;
mod cache;
mod checkout;
mod delta;
mod inflate;
mod kept;
mod pack;
mod remote;
mod transport;

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use gix_hash::ObjectId;
use gix_object::TagRef;
use gix_protocol::handshake::Ref;
use reqwest::header::HeaderValue;

use super::command::credentials;
use super::finish::{Finish, finish};
use super::{Commit, Exceeded, GitError, Needs, Repository, Tree, commit, listing, make_directory, writing};
use crate::context::git_source::{FileTimes, Transport};
use crate::rootfs::Rootfs;
use checkout::Checkout;
use kept::Kept;
use pack::{Pack, Type};
use remote::{History, Remote};
use transport::Shared;

/// How many tags of tags lead to a commit at most.
const MOST_TAGS: usize = 100;

/// A repository that is asked without the command.
pub(super) struct Embedded<'a> {
    repository: &'a Repository<'a>,
    /// Without credentials.
    url: String,
    authorization: Option<HeaderValue>,
    began: Instant,
}

impl<'a> Embedded<'a> {
    /// Nothing is asked yet.
    pub(super) fn of(repository: &'a Repository<'a>) -> Result<Self, GitError> {
        match repository.source.transport {
            Transport::Http | Transport::Https => {}
            Transport::Ssh => return Err(GitError::Missing(Needs::Ssh)),
            Transport::Git => return Err(GitError::Missing(Needs::GitProtocol)),
        }
        let (url, authorization) = credentials(repository)?;
        let authorization = authorization.map(|value| HeaderValue::from_bytes(&value));
        let mut authorization = authorization.transpose().map_err(|_| GitError::Secret)?;
        if let Some(value) = &mut authorization {
            value.set_sensitive(true);
        }
        Ok(Self { repository, url: url.into(), authorization, began: Instant::now() })
    }

    /// Fails when it is time to stop.
    fn stopped(&self) -> Result<(), GitError> {
        if (self.repository.stopped)() {
            return Err(GitError::Cancelled);
        }
        let most = self.repository.limits.seconds;
        if self.began.elapsed() > Duration::from_secs(most.value) {
            return Err(GitError::Exceeded(Exceeded::Seconds(most)));
        }
        Ok(())
    }

    fn greet<'s>(
        &'s self,
        action: String,
        stopped: &'s dyn Fn() -> Result<(), GitError>,
    ) -> Result<Remote<'s>, GitError> {
        let limits = self.repository.limits;
        // What waits for the server ends then, too.
        let end = self.began.checked_add(Duration::from_secs(limits.seconds.value));
        let client = self.repository.client.until(move || end.is_some_and(|end| Instant::now() > end));
        let shared = Shared {
            client,
            authorization: self.authorization.clone(),
            stopped,
            action,
            left: Cell::new((0, Exceeded::Memory(limits.memory))),
            failure: RefCell::default(),
        };
        Remote::open(Rc::new(shared), &self.url, limits)
    }

    /// Asks what the reference of the source stands for.
    pub(super) fn find(&self) -> Result<Commit, GitError> {
        let source = self.repository.source;
        let stopped = || self.stopped();
        let mut remote = self.greet(format!("ask {} for its branches and tags", source.shown()), &stopped)?;
        let Some(reference) = &source.reference else {
            let said = as_listed(&remote.names(&["HEAD"])?);
            return listing::default_branch(&said).ok_or_else(|| GitError::NoDefault(source.shown()));
        };
        let names = listing::names(reference);
        let said = as_listed(&remote.names(&names.each_ref().map(String::as_str))?);
        listing::find(&said, reference).ok_or_else(|| source.no_reference(reference))
    }

    /// Checks out `commit`: the same files as the command would.
    pub(super) fn check_out(&self, commit: &Commit) -> Result<Tree, GitError> {
        let repository = self.repository;
        let stopped = || self.stopped();
        let tree = repository.directory.join("tree");
        make_directory(&tree)?;
        let fetched = self.fetch(commit, &stopped)?;
        let Fetched { mut pack, shallow, path: pack_file, size } = fetched;
        let id = parse(&commit.id)?;
        let content = pack.object(&id, Type::Commit)?;
        let top = commit::tree(&content).and_then(|id| ObjectId::from_hex(id).ok());
        let top = top.filter(|id| id.kind() == pack.hash());
        let top = top.ok_or_else(|| GitError::Corrupt(format!("a commit that is none: {}", commit.id)))?;
        let modified = match repository.source.times {
            FileTimes::Checkout => None,
            FileTimes::Commit => Some(commit.seconds(commit::time(&content))?),
        };
        let root = Rootfs::open(&tree).map_err(writing(&tree))?;
        let keeps = repository.source.keeps_git_directory();
        let mut written = Vec::new();
        Checkout {
            pack: &mut pack,
            root: &root,
            limits: repository.limits,
            submodules: repository.source.submodules,
            stopped: &stopped,
            bytes: size,
            written: keeps.then_some(&mut written),
            kept: 0,
        }
        .write(&top)?;
        if keeps {
            let git = tree.join(".git");
            make_directory(&git)?;
            let (url, shallow) = (&self.url, &shallow);
            let kept = Kept { git: &git, url, commit, shallow, pack: &pack, pack_file: &pack_file };
            kept.write()?;
            kept.write_list(written)?;
        } else {
            std::fs::remove_file(&pack_file).map_err(writing(&pack_file))?;
        }
        let git_directory = repository.source.git_directory;
        let entries = repository.limits.entries;
        finish(&root, &Finish { git_directory, modified, entries, stopped: repository.stopped })?;
        repository.subdirectory(root, &tree)
    }

    /// Fetches as little as the server allows: the one commit, if it does.
    fn fetch<'p>(
        &self,
        commit: &Commit,
        stopped: &'p dyn Fn() -> Result<(), GitError>,
    ) -> Result<Fetched<'p>, GitError> {
        let wanted = parse(commit.object())?;
        let action = format!("fetch {}", self.repository.source.shown());
        let mut remote = self.greet(action.clone(), stopped)?;
        let by_id = match self.receive(&mut remote, &[wanted], History::None, stopped) {
            // What the server refuses, it says; all else would fail again.
            Err(error @ GitError::Failed { .. }) => error,
            other => return self.with_commit(commit, other?),
        };
        // Not every server gives a commit by its id: then all that has names is fetched.
        let mut remote = self.greet(action, stopped)?;
        let mut all: Vec<ObjectId> = remote
            .names(&["refs/heads/", "refs/tags/"])?
            .iter()
            .filter_map(|name| match name {
                Ref::Peeled { full_ref_name: name, tag: id, .. }
                | Ref::Direct { full_ref_name: name, object: id }
                | Ref::Symbolic { full_ref_name: name, tag: None, object: id, .. }
                | Ref::Symbolic { full_ref_name: name, tag: Some(id), .. } => {
                    (name.starts_with(b"refs/heads/") || name.starts_with(b"refs/tags/")).then_some(*id)
                }
                Ref::Unborn { .. } => None,
            })
            .collect();
        all.sort_unstable();
        all.dedup();
        if all.is_empty() {
            return Err(by_id);
        }
        let fetched = self.receive(&mut remote, &all, History::Whole, stopped)?;
        if fetched.pack.kind(&wanted).is_none() {
            return Err(match &commit.reference {
                Some(reference) => {
                    GitError::Moved { reference: reference.clone(), commit: commit.id.clone() }
                }
                None => by_id,
            });
        }
        self.with_commit(commit, fetched)
    }

    fn receive<'p>(
        &self,
        remote: &mut Remote<'_>,
        wanted: &[ObjectId],
        history: History,
        stopped: &'p dyn Fn() -> Result<(), GitError>,
    ) -> Result<Fetched<'p>, GitError> {
        let path = self.repository.directory.join("pack");
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
        let file = file.map_err(writing(&path))?;
        let hash = remote.hash()?;
        let mut writer = BufWriter::with_capacity(1 << 20, &file);
        let shallow = remote.fetch(wanted, history, &mut writer)?;
        writer.flush().map_err(writing(&path))?;
        drop(writer);
        let size = file.metadata().map_err(writing(&path))?.len();
        let pack = Pack::read(file, hash, self.repository.limits.memory, stopped)?;
        Ok(Fetched { pack, shallow, path, size })
    }

    /// Whether what was asked for leads to the commit.
    fn with_commit<'p>(&self, commit: &Commit, mut fetched: Fetched<'p>) -> Result<Fetched<'p>, GitError> {
        let pack = &mut fetched.pack;
        let mut id = parse(commit.object())?;
        for _ in 0..MOST_TAGS {
            match pack.kind(&id) {
                Some(Type::Commit) if id == parse(&commit.id)? => return Ok(fetched),
                Some(Type::Tag) => {
                    let content = pack.object(&id, Type::Tag)?;
                    let tag = TagRef::from_bytes(&content, pack.hash());
                    id = tag.map_err(|_| GitError::Corrupt(format!("a tag {id} that is none")))?.target();
                }
                _ => break,
            }
        }
        Err(GitError::Corrupt(format!("something else than the commit {}", commit.id)))
    }
}

/// What a server has sent.
struct Fetched<'a> {
    pack: Pack<'a>,
    shallow: Vec<ObjectId>,
    /// The file of the pack, and how large it is in bytes.
    path: PathBuf,
    size: u64,
}

fn parse(id: &str) -> Result<ObjectId, GitError> {
    ObjectId::from_hex(id.to_ascii_lowercase().as_bytes()).map_err(|_| GitError::NoReference(id.to_owned()))
}

/// Names as `git ls-remote --symref` shows them.
fn as_listed(names: &[Ref]) -> Vec<u8> {
    let mut said = Vec::new();
    let mut line = |first: &dyn std::fmt::Display, name: &[u8], end: &str| {
        let written = write!(said, "{first}\t")
            .and_then(|()| said.write_all(name))
            .and_then(|()| said.write_all(end.as_bytes()));
        // Memory takes everything.
        drop::<io::Result<()>>(written);
    };
    for name in names {
        match name {
            Ref::Direct { full_ref_name, object } => line(object, full_ref_name, "\n"),
            Ref::Peeled { full_ref_name, tag, object } => {
                line(tag, full_ref_name, "\n");
                line(object, full_ref_name, "^{}\n");
            }
            Ref::Symbolic { full_ref_name, target, tag, object } => {
                line(&format_args!("ref: {target}"), full_ref_name, "\n");
                line(tag.as_ref().unwrap_or(object), full_ref_name, "\n");
                if tag.is_some() {
                    line(object, full_ref_name, "^{}\n");
                }
            }
            Ref::Unborn { .. } => {}
        }
    }
    said
}
