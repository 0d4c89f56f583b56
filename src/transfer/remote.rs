//! What ADD takes from elsewhere: files of URLs by way of the store, git repositories in the workspace.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write as _};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use crate::build::progress::{Event, Progress, size as shown_size};
use crate::build::remote::{Remote, RemoteFiles};
use crate::build::services::ServiceError;
use crate::context::{
    Commit, Download, Downloaded, Git, GitLimits, GitSource, Pinned, Repository, Transport, UrlSource,
    Validators, download,
};
use crate::http;
use crate::image::descriptor::Descriptor;
use crate::image::digest::{Digest, Mismatch, VerifyingReader};
use crate::limit::Limit;
use crate::rootfs::{Rootfs, Timestamp, set_mode_at, set_times_at};
use crate::sandbox::{Cancel, Secret};
use crate::store::blobs::{BlobStore, BlobWriter};
use crate::store::workspace::Workspace;
use crate::store::{Store, StoreError};
use crate::text::without_credentials;

/// The kind of record of what was fetched from URLs.
const RECORDS: &str = "downloads";

/// A file is something else than it must be. BuildKit's words.
#[derive(Debug, thiserror::Error)]
#[error("digest mismatch: {actual} (expected: {expected})")]
struct WrongDigest {
    expected: Digest,
    actual: Digest,
}

/// What can be fetched, and with what.
pub struct Remotes<'a> {
    /// For URLs.
    pub client: &'a http::Client,
    /// For repositories.
    pub git: Git,
    /// Where files are kept, for later builds too.
    pub store: &'a Store,
    /// Where trees are kept, for this one.
    pub workspace: &'a Workspace,
    /// Among them those for hosts, by their names.
    pub secrets: &'a BTreeMap<String, Secret>,
    /// How large a file may be.
    pub limit: Limit,
    /// What a repository may take.
    pub git_limits: GitLimits,
    /// Who is told.
    pub progress: &'a dyn Progress,
    /// What this build knows already.
    pub known: Known,
}

/// What a build knows of each source. Who asks for one that somebody else asks for waits for that.
#[derive(Debug, Default)]
pub struct Known {
    files: Mutex<BTreeMap<WantedFile, Slot<Option<FetchedFile>>>>,
    repositories: Mutex<BTreeMap<GitSource, Slot<KnownRepository>>>,
    /// What branches and tags stand for: the same for all steps, even while somebody pushes.
    commits: Mutex<BTreeMap<Named, Slot<Option<Commit>>>>,
}

/// What is known, and a turn for whoever finds it out.
type Slot<T> = Arc<Mutex<T>>;

/// All that decides whether a file will do.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct WantedFile {
    url: UrlSource,
    checksum: Option<Digest>,
}

/// All that decides which commit is meant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Named {
    remote: String,
    reference: Option<String>,
    /// The commit that is fetched whatever the reference stands for.
    pinned: Option<String>,
}

#[derive(Debug, Default)]
struct KnownRepository {
    directory: Option<PathBuf>,
    commit: Option<Commit>,
    tree: Option<Rootfs>,
}

/// A file, as the server had it when it was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchedFile {
    /// Its content.
    pub digest: Digest,
    /// In bytes.
    pub size: u64,
    /// When it was changed last, in seconds since 1970, if the server says.
    pub modified: Option<i64>,
}

/// What is remembered of a URL.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    validators: Validators,
    digest: Digest,
    size: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RemoteFiles for Remotes<'_> {
    fn identify(&self, remote: &Remote, cancel: &Cancel) -> Result<Digest, ServiceError> {
        match remote {
            // It is this file, or there will be an error.
            Remote::File { url, checksum: Some(checksum) } => {
                Ok(identity(&("file", url.file_name(), checksum, None::<i64>)))
            }
            Remote::File { url, checksum: None } => {
                let file = self.file(url, None, cancel)?;
                Ok(identity(&("file", url.file_name(), file.digest, file.modified)))
            }
            Remote::Git(source) => Ok(git_identity(source, &self.commit(source, cancel)?)),
        }
    }

    fn fetch(&self, remote: &Remote, cancel: &Cancel) -> Result<Rootfs, ServiceError> {
        match remote {
            Remote::File { url, checksum } => {
                let file = self.file(url, checksum.as_ref(), cancel)?;
                self.place(&file, &url.file_name(), cancel).or_else(|error| {
                    // What the store had was damaged, and is gone by now. Anything else would only go wrong again.
                    let is_damaged = error.downcast_ref().is_some_and(StoreError::is_absent);
                    if is_damaged && self.ask(url, checksum.as_ref(), cancel)? == file {
                        self.place(&file, &url.file_name(), cancel)
                    } else {
                        Err(error)
                    }
                })
            }
            Remote::Git(source) => self.tree(source, cancel),
        }
    }
}

/// The hash of what makes up `value`.
fn identity(value: &impl Serialize) -> Digest {
    // There is nothing in it that JSON cannot say.
    Digest::of(&serde_json::to_vec(value).unwrap_or_default())
}

/// What decides about the files of a checkout: not where it is from, unless that is among them.
fn git_identity(source: &GitSource, commit: &Commit) -> Digest {
    let kept = source.keeps_git_directory().then(|| (source.remembered(), &commit.tag, &commit.reference));
    let words = (source.submodules.word(), source.times.word());
    identity(&("git", &commit.id, &source.subdirectory, words, kept))
}

impl Remotes<'_> {
    /// The file at `url`, which must be `checksum`: asked for once a build, and fetched only if it is not the one that the
    /// store has. It is in the store then.
    ///
    /// # Errors
    /// When it cannot be had, or is something else; when `cancel` is on.
    pub fn file(
        &self,
        url: &UrlSource,
        checksum: Option<&Digest>,
        cancel: &Cancel,
    ) -> Result<FetchedFile, ServiceError> {
        let slot = {
            let key = WantedFile { url: url.clone(), checksum: checksum.cloned() };
            Arc::clone(lock(&self.known.files).entry(key).or_default())
        };
        let mut slot = lock(&slot);
        if let Some(file) = &*slot {
            return Ok(file.clone());
        }
        let file = self.ask(url, checksum, cancel)?;
        *slot = Some(file.clone());
        Ok(file)
    }

    fn ask(
        &self,
        url: &UrlSource,
        checksum: Option<&Digest>,
        cancel: &Cancel,
    ) -> Result<FetchedFile, ServiceError> {
        let name = Digest::of(without_credentials(url.written()).as_bytes());
        let records = self.store.records(RECORDS);
        let record = records.get(&name).unwrap_or_else(|error| {
            self.tell(&error.to_string());
            None
        });
        let record: Option<Record> = record.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        // What is not there any more is no use.
        let record = record.filter(|record| self.blobs().contains(&blob(&record.digest, record.size)));
        if let (Some(checksum), Some(record)) = (checksum, &record)
            && record.digest == *checksum
        {
            let modified = record.validators.modified();
            return Ok(FetchedFile { digest: record.digest.clone(), size: record.size, modified });
        }
        let known = record.as_ref().filter(|_| checksum.is_none()).map(|record| &record.validators);
        match (self.download(url, known, cancel)?, &record) {
            (Downloaded::Unchanged, Some(Record { validators, digest, size })) => {
                self.tell(&format!("{}: not changed", url.shown()));
                Ok(FetchedFile { digest: digest.clone(), size: *size, modified: validators.modified() })
            }
            (Downloaded::Unchanged, None) => Err("the server says that nothing was changed".into()),
            (Downloaded::New { file, validators }, _) => {
                let size = file.size();
                let digest = finish(file, checksum)?;
                self.tell(&format!("{}: {}, {digest}", url.shown(), shown_size(size)));
                let modified = validators.modified();
                let record = Record { validators, digest: digest.clone(), size };
                if !record.validators.are_none() || checksum.is_some() {
                    let bytes = serde_json::to_vec(&record)?;
                    if let Err(error) = records.put(&name, &bytes) {
                        self.tell(&error.to_string());
                    }
                }
                Ok(FetchedFile { digest, size, modified })
            }
        }
    }

    fn download(
        &self,
        url: &UrlSource,
        known: Option<&Validators>,
        cancel: &Cancel,
    ) -> Result<Downloaded<BlobWriter>, ServiceError> {
        let authorization = self.url_authorization(url);
        let wanted =
            Download { source: url, authorization: authorization.as_deref(), known, limit: self.limit };
        let fetching = || self.progress.tell(&Event::Note(&format!("fetching {}", url.shown())));
        if known.is_none() {
            fetching();
        }
        let mut open = || {
            // The answer may as well be that nothing has changed.
            if known.is_some() {
                fetching();
            }
            self.blobs().writer().map_err(io::Error::other)
        };
        let tell = |line: &str| self.progress.tell(&Event::Note(line));
        let cancel = cancel.clone();
        let client = self.client.until(move || cancel.is_cancelled());
        Ok(download(&client, &wanted, &mut open, &tell)?)
    }

    /// As BuildKit has it: a token comes before a header.
    fn url_authorization(&self, url: &UrlSource) -> Option<Vec<u8>> {
        let host = url.host()?;
        let secret = |prefix: &str| self.secret(&format!("{prefix}{host}"));
        let token = secret("HTTP_AUTH_TOKEN_").map(|token| [b"Bearer ", &token[..]].concat());
        token.or_else(|| secret("HTTP_AUTH_HEADER_"))
    }

    /// A secret, without the line end that editors leave behind it.
    fn secret(&self, id: &str) -> Option<Vec<u8>> {
        self.secrets.get(id).map(|secret| secret.bytes().trim_ascii_end().to_vec())
    }

    /// Puts a file that is in the store into a directory of its own, under `name`: 0600, with the time of its last change.
    ///
    /// # Errors
    /// When there is no room, or the file in the store was damaged; when `cancel` is on.
    pub fn place(&self, file: &FetchedFile, name: &[u8], cancel: &Cancel) -> Result<Rootfs, ServiceError> {
        use std::os::fd::AsFd as _;
        let path = self.workspace.directory("download")?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(&path, flags, Mode::empty())?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let copy = rustix::fs::openat(&directory, name, flags, Mode::RUSR | Mode::WUSR)?;
        let blob = blob(&file.digest, file.size);
        let mut reader = self.blobs().reader(&blob)?;
        let damaged = |error| self.blobs().read_error(&file.digest, error);
        copy_unless(cancel, &mut reader, &mut File::from(copy), &damaged)?;
        set_mode_at(directory.as_fd(), name, 0o600)?;
        let modified = Timestamp { seconds: file.modified.unwrap_or(0), nanoseconds: 0 };
        set_times_at(directory.as_fd(), name, modified)?;
        Ok(Rootfs::open(&path)?)
    }

    /// The content of a file that was fetched.
    pub(super) fn stored(&self, file: &FetchedFile) -> Result<VerifyingReader<File>, StoreError> {
        self.blobs().reader(&blob(&file.digest, file.size))
    }

    fn blobs(&self) -> &BlobStore {
        self.store.blobs()
    }

    fn tell(&self, text: &str) {
        self.progress.tell(&Event::Detail(text));
    }

    fn known_repository(&self, source: &GitSource) -> Slot<KnownRepository> {
        // All that is different gives different files.
        Arc::clone(lock(&self.known.repositories).entry(source.clone()).or_default())
    }

    /// Which commit `source` stands for: asked for once a build.
    ///
    /// # Errors
    /// When the repository cannot be asked, or has nothing of the name.
    pub fn commit(&self, source: &GitSource, cancel: &Cancel) -> Result<Commit, ServiceError> {
        let known = self.known_repository(source);
        let mut known = lock(&known);
        self.commit_in(source, &mut known, cancel)
    }

    fn commit_in(
        &self,
        source: &GitSource,
        known: &mut KnownRepository,
        cancel: &Cancel,
    ) -> Result<Commit, ServiceError> {
        if let Some(commit) = &known.commit {
            return Ok(commit.clone());
        }
        let named = {
            let pinned = source.checksum.clone().filter(|_| source.pinned == Pinned::Yes);
            let key = Named { remote: source.remote.clone(), reference: source.reference.clone(), pinned };
            Arc::clone(lock(&self.known.commits).entry(key).or_default())
        };
        let mut named = lock(&named);
        let commit = match &*named {
            Some(commit) => commit.clone(),
            None => self.with_repository(source, known, cancel, |repository| Ok(repository.find()?))?,
        };
        *named = Some(commit.clone());
        drop(named);
        source.check_commit(&commit)?;
        self.tell(&format!("{}: commit {}", source.shown(), commit.id));
        known.commit = Some(commit.clone());
        Ok(commit)
    }

    /// The files of `source`: checked out once a build.
    ///
    /// # Errors
    /// When they cannot be had.
    pub fn tree(&self, source: &GitSource, cancel: &Cancel) -> Result<Rootfs, ServiceError> {
        let known = self.known_repository(source);
        let mut known = lock(&known);
        if let Some(tree) = &known.tree {
            return Ok(tree.try_clone()?);
        }
        let commit = self.commit_in(source, &mut known, cancel)?;
        self.progress.tell(&Event::Note(&format!("checking out {} of {}", commit.id, source.shown())));
        let tree = self
            .with_repository(source, &mut known, cancel, |repository| Ok(repository.check_out(&commit)?))?;
        let root = tree.root.try_clone()?;
        known.tree = Some(tree.root);
        Ok(root)
    }

    fn with_repository<T>(
        &self,
        source: &GitSource,
        known: &mut KnownRepository,
        cancel: &Cancel,
        act: impl FnOnce(&Repository<'_>) -> Result<T, ServiceError>,
    ) -> Result<T, ServiceError> {
        // What was stopped in the middle leaves a directory that nobody can begin in again.
        let directory = match known.directory.take() {
            Some(directory) => directory,
            None => self.workspace.directory("git")?,
        };
        let authorization = self.git_authorization(source);
        let made = act(&Repository {
            git: &self.git,
            source,
            authorization: authorization.as_deref(),
            directory: &directory,
            limits: self.git_limits,
            stopped: &|| cancel.is_cancelled(),
        })?;
        known.directory = Some(directory);
        Ok(made)
    }

    /// As BuildKit has it: what is for the host comes before what is for all, a header before a token.
    fn git_authorization(&self, source: &GitSource) -> Option<Vec<u8>> {
        if !matches!(source.transport, Transport::Http | Transport::Https) {
            return None;
        }
        let basic = |token: Vec<u8>| {
            let pair = [b"x-access-token:", &token[..]].concat();
            format!("basic {}", STANDARD.encode(pair)).into_bytes()
        };
        let header = |suffix: &str| self.secret(&format!("GIT_AUTH_HEADER{suffix}"));
        let token = |suffix: &str| self.secret(&format!("GIT_AUTH_TOKEN{suffix}")).map(basic);
        let of_host = format!(".{}", source.host());
        header(&of_host).or_else(|| token(&of_host)).or_else(|| header("")).or_else(|| token(""))
    }
}

/// Copies to the end. `damaged` says what it means that the source cannot be read.
fn copy_unless(
    cancel: &Cancel,
    from: &mut impl Read,
    to: &mut File,
    damaged: &dyn Fn(io::Error) -> StoreError,
) -> Result<(), ServiceError> {
    let mut buffer = vec![0; 128 << 10];
    loop {
        if cancel.is_cancelled() {
            return Err("cancelled".into());
        }
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => to.write_all(&buffer[..count])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(damaged(error).into()),
        }
    }
}

fn blob(digest: &Digest, size: u64) -> Descriptor {
    Descriptor::new("application/octet-stream", digest.clone(), size)
}

/// Makes what was fetched visible in the store, if it is what it must be.
fn finish(file: BlobWriter, checksum: Option<&Digest>) -> Result<Digest, ServiceError> {
    let Some(expected) = checksum else { return Ok(file.finish()?.0) };
    let size = file.size();
    match file.commit(expected, size) {
        Ok(()) => Ok(expected.clone()),
        Err(StoreError::Mismatch(Mismatch::Digest { expected, actual })) => {
            Err(WrongDigest { expected, actual }.into())
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_of_a_repository_is_found_again_by_later_versions() {
        let commit = Commit {
            id: "1".repeat(40),
            tag: Some("2".repeat(40)),
            reference: Some("refs/tags/v1".to_owned()),
        };
        let identity =
            |text: &str| git_identity(&GitSource::parse(text).unwrap().unwrap(), &commit).to_string();
        // What they are hashes of is what earlier versions have written down.
        for (text, written) in [
            (
                "https://me:pw@h/r.git#v1:sub",
                format!(r#"["git","{}","sub",["Recursive","Checkout"],null]"#, commit.id),
            ),
            (
                "https://me:pw@h/r.git?keep-git-dir=1&submodules=0&mtime=commit",
                format!(
                    r#"["git","{}",null,["Skip","Commit"],["https://xxxxx:xxxxx@h/r.git","{}","refs/tags/v1"]]"#,
                    commit.id,
                    "2".repeat(40)
                ),
            ),
        ] {
            assert_eq!(identity(text), Digest::of(written.as_bytes()).to_string(), "{text}");
        }
    }

    #[test]
    fn a_copy_ends_when_it_is_told_to_and_what_is_damaged_is_told_from_a_full_disk() {
        let damaged = |error: io::Error| StoreError::Missing(Digest::of(error.to_string().as_bytes()));
        let cancel = Cancel::new().unwrap();
        let (mut endless, mut file) = (io::repeat(0), tempfile::tempfile().unwrap());
        let mut asked = 0;
        let mut stopping = |buffer: &mut [u8]| {
            asked += 1;
            if asked == 3 {
                cancel.cancel("enough");
            }
            endless.read(buffer)
        };
        struct Source<'a>(&'a mut dyn FnMut(&mut [u8]) -> io::Result<usize>);
        impl Read for Source<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                (self.0)(buffer)
            }
        }
        let error = copy_unless(&cancel, &mut Source(&mut stopping), &mut file, &damaged).unwrap_err();
        assert_eq!((error.to_string().as_str(), asked), ("cancelled", 3));
        let cancel = Cancel::new().unwrap();
        let is_absent = |error: ServiceError| error.downcast_ref().is_some_and(StoreError::is_absent);
        let mut failing = |_: &mut [u8]| Err(io::Error::other("x"));
        let error = copy_unless(&cancel, &mut Source(&mut failing), &mut file, &damaged).unwrap_err();
        assert!(is_absent(error));
        let Ok(mut full) = File::options().write(true).open("/dev/full") else { return };
        let error = copy_unless(&cancel, &mut io::repeat(0), &mut full, &damaged).unwrap_err();
        assert!(!is_absent(error));
    }
}
