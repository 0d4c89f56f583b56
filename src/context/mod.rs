//! Where COPY and ADD read: the build context and its `.dockerignore`, files of URLs, git repositories.

mod candidates;
pub mod dir;
pub mod download;
pub mod git;
pub mod git_source;
pub mod glob;
pub mod ignore;
mod stream;
mod url;

pub use dir::{Context, ContextError, ContextLimits, FoundDockerfile};
pub use download::{DOWNLOAD_LIMIT, Download, DownloadError, Downloaded, UrlSource, Validators, download};
pub use git::{Commit, Git, GitError, GitLimits, GitOptions, Repository, Tree};
pub use git_source::{FileTimes, GitDirectory, GitSource, GitSourceError, Pinned, Submodules, Transport};
pub use ignore::{IgnoreError, IgnoreRules, Verdict};
