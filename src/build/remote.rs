//! ADD of what is elsewhere: files of URLs and git repositories.

use super::copy::{CopySource, OwnerPolicy, SourceTree};
use super::error::BuildErrorKind;
use super::execute::Executor;
use super::perform::Below;
use super::progress::Event;
use super::services::ServiceError;
use super::step::{Archives, CopyStep, StagePlan};
use crate::cache::CacheKey;
use crate::context::{GitDirectory, GitSource, UrlSource};
use crate::dockerfile::{Text, Transfer, TransferKind};
use crate::image::digest::{Digest, DigestError};
use crate::rootfs::{GuestPath, Rootfs};
use crate::sandbox::Cancel;

/// Something elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remote {
    /// A file.
    File {
        /// Where it is.
        url: UrlSource,
        /// What it must be.
        checksum: Option<Digest>,
    },
    /// Files of a commit.
    Git(GitSource),
}

impl Remote {
    /// For messages.
    #[must_use]
    pub fn shown(&self) -> String {
        match self {
            Self::File { url, .. } => url.shown(),
            Self::Git(source) => source.shown(),
        }
    }
}

/// Where ADD finds what is elsewhere. What a name stands for is found out once a build.
pub trait RemoteFiles: Sync {
    /// Finds out what it is now: equal identities stand for equal files. Fetches them only if there is no other way.
    ///
    /// # Errors
    /// When it is not there, or not what it must be; when `cancel` is on.
    fn identify(&self, remote: &Remote, cancel: &Cancel) -> Result<Digest, ServiceError>;

    /// The files, in a directory: a single one for a URL, else those of the commit.
    ///
    /// # Errors
    /// When they cannot be had; when `cancel` is on.
    fn fetch(&self, remote: &Remote, cancel: &Cancel) -> Result<Rootfs, ServiceError>;
}

/// A source of ADD that is elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteStep {
    /// How many sources of the instruction that are in the build context come before it.
    pub after: usize,
    /// Whether a file is extracted if it is an archive.
    pub archives: Archives,
    /// What it is.
    pub remote: Remote,
}

/// The sources of an instruction that are paths, and those that are elsewhere.
pub(super) fn sort_sources(
    kind: TransferKind,
    written: &Transfer,
) -> Result<(Vec<Text>, Vec<RemoteStep>), BuildErrorKind> {
    let checksum = written.checksum.as_ref().map(Text::to_string);
    if checksum.is_some() && written.paths().count() != 1 {
        return invalid("checksum can't be specified for multiple sources");
    }
    let mut paths = Vec::new();
    let mut remotes = Vec::new();
    for source in written.paths() {
        match remote(kind, source, written.keep_git_dir, checksum.as_deref())? {
            Some(remote) => {
                // Other than files of the context, a file of a URL is an archive only for who says so.
                let extract = written.unpack == Some(true) && matches!(remote, Remote::File { .. });
                let archives = if extract { Archives::Extract } else { Archives::Keep };
                remotes.push(RemoteStep { after: paths.len(), archives, remote });
            }
            None if checksum.is_some() => return invalid("checksum requires HTTP(S) or Git sources"),
            None => paths.push(source.clone()),
        }
    }
    Ok((paths, remotes))
}

fn invalid<T>(message: &str) -> Result<T, BuildErrorKind> {
    Err(BuildErrorKind::Invalid(message.to_owned()))
}

/// What a source means, if it is not a path.
fn remote(
    kind: TransferKind,
    source: &Text,
    keep_git_dir: Option<bool>,
    checksum: Option<&str>,
) -> Result<Option<Remote>, BuildErrorKind> {
    let Ok(text) = std::str::from_utf8(source) else { return Ok(None) };
    if let Some(parsed) = GitSource::parse(text) {
        let source = parsed?;
        if kind == TransferKind::Copy {
            return invalid("source can't be a git ref for COPY");
        }
        let git_directory =
            keep_git_dir.map(|keep| if keep { GitDirectory::Keep } else { GitDirectory::Remove });
        return Ok(Some(Remote::Git(source.with_flags(git_directory, checksum)?)));
    }
    let Some(url) = UrlSource::parse(text) else { return Ok(None) };
    if kind == TransferKind::Copy {
        return invalid("source can't be a URL for COPY");
    }
    let checksum = checksum.map(digest).transpose()?;
    Ok(Some(Remote::File { url, checksum }))
}

/// A digest; what is wrong with it is said in BuildKit's words.
fn digest(text: &str) -> Result<Digest, BuildErrorKind> {
    let parsed: Result<Digest, DigestError> = text.parse();
    parsed.map_err(|source| {
        let is_word = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let problem = match text.split_once(':') {
            Some(("sha256" | "sha512", hex)) if is_word(hex) && !matches!(hex.len(), 64 | 128) => {
                "invalid checksum digest length"
            }
            Some(("sha256" | "sha512", _)) => "invalid checksum digest format",
            Some((algorithm, hex)) if is_word(algorithm) && is_word(hex) => "unsupported digest algorithm",
            _ => "invalid checksum digest format",
        };
        BuildErrorKind::Invalid(format!("{problem}: {source}"))
    })
}

impl Executor<'_> {
    /// `parent` with what the sources that are elsewhere stand for now.
    pub(super) fn with_remotes(
        &self,
        parent: &CacheKey,
        step: &CopyStep,
    ) -> Result<CacheKey, BuildErrorKind> {
        let mut identities = Vec::new();
        for RemoteStep { remote, .. } in &step.remotes {
            self.services.progress.tell(&Event::Detail(&format!("asking for {}", remote.shown())));
            let identity = self.services.remote.identify(remote, &self.cancel);
            identities.push(identity.map_err(|source| self.not_fetched(remote, source))?);
        }
        Ok(super::key::with_remotes(parent, &identities))
    }

    fn not_fetched(&self, remote: &Remote, source: ServiceError) -> BuildErrorKind {
        match self.stop_if_cancelled() {
            Err(cancelled) => cancelled,
            Ok(()) => BuildErrorKind::Remote { remote: remote.shown(), source },
        }
    }

    /// Adds the sources of `step` one after the other, wherever they are: what comes later replaces what came before.
    pub(super) fn add_remotes(
        &self,
        step: &CopyStep,
        stage: &StagePlan,
        below: Below,
        onto: &Rootfs,
    ) -> Result<(), BuildErrorKind> {
        let mut from = 0;
        for source in &step.remotes {
            let local = &step.sources[from..source.after];
            self.copy_local(step, local, &[], stage, (below, onto))?;
            from = source.after;
            self.add_remote(step, source, below, onto)?;
        }
        self.copy_local(step, &step.sources[from..], &step.inline, stage, (below, onto))
    }

    fn add_remote(
        &self,
        step: &CopyStep,
        source: &RemoteStep,
        below: Below,
        onto: &Rootfs,
    ) -> Result<(), BuildErrorKind> {
        let shown = source.remote.shown();
        self.services.progress.tell(&Event::Detail(&format!("adding {shown}")));
        let fetched = self.services.remote.fetch(&source.remote, &self.cancel);
        let root = fetched.map_err(|error| self.not_fetched(&source.remote, error))?;
        let path = match &source.remote {
            Remote::File { url, .. } => GuestPath::root().child(&url.file_name()),
            Remote::Git(_) => GuestPath::root(),
        };
        let from = SourceTree { root: &root, ignore: None, owner: OwnerPolicy::Root };
        self.copy_sources(step, vec![CopySource::Exact(&path)], from, source.archives, (below, onto))
    }
}
