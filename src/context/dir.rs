//! A build context that is a directory of this machine, with its Dockerfile and ignore rules.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use super::ignore::{self, IgnoreError, IgnoreRules};
use crate::limit::Limit;
use crate::rootfs::{Follow, GuestPath, Rootfs, RootfsError, metadata_of};

/// How large the files may be that say how a context is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContextLimits {
    /// Bytes of the Dockerfile.
    pub dockerfile: Limit,
    /// Bytes of the file of ignore rules.
    pub ignore_bytes: Limit,
    /// Its patterns.
    pub ignore_patterns: Limit,
}

impl ContextLimits {
    /// 4 MiB.
    pub const DOCKERFILE: Limit = Limit::new("dockerfile-bytes", 4 << 20);
}

impl Default for ContextLimits {
    fn default() -> Self {
        Self {
            dockerfile: Self::DOCKERFILE,
            ignore_bytes: ignore::BYTES_LIMIT,
            ignore_patterns: ignore::PATTERNS_LIMIT,
        }
    }
}

/// Why a context cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ContextError {
    /// No such directory.
    #[error("the build context `{}` does not exist", .0.display())]
    Missing(PathBuf),
    /// A file, for instance.
    #[error("the build context `{}` is not a directory", .0.display())]
    NotADirectory(PathBuf),
    /// The directory cannot be opened.
    #[error("cannot open the build context `{}`", path.display())]
    Open {
        /// The directory.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// Nothing was named, and the default names are not there.
    #[error("the build context has no `Dockerfile` in `{}`; name it with --dockerfile", .0.display())]
    NoDockerfile(PathBuf),
    /// The named Dockerfile is nowhere.
    #[error(
        "the Dockerfile `{}` does not exist, neither from the current directory nor in the build context `{}`",
        named.display(),
        context.display()
    )]
    DockerfileMissing {
        /// As it was named.
        named: PathBuf,
        /// The context.
        context: PathBuf,
    },
    /// A link that leaves the context, or points to nothing in it.
    #[error("`{}` is a symbolic link to something that is not in the build context", .0.display())]
    LinkOutside(PathBuf),
    /// A directory, FIFO, socket or device.
    #[error("`{}` is not a regular file", .0.display())]
    NotAFile(PathBuf),
    /// Too many bytes.
    #[error("`{}` is larger than {value} bytes; {limit}", path.display(), value = limit.value)]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit.
        limit: Limit,
    },
    /// A file cannot be read.
    #[error("cannot read `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// A file of the context cannot be read.
    #[error("cannot read `{}`", path.display())]
    ReadInside {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: RootfsError,
    },
    /// A stream that is an archive, where a Dockerfile was expected.
    #[error("{}: this is an archive, not a Dockerfile", .0.display())]
    Archive(PathBuf),
    /// Rules that cannot be followed.
    #[error("`{}` is not valid", path.display())]
    Ignore {
        /// The file of rules.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: IgnoreError,
    },
    /// Another directory has taken its place.
    #[error("the build context `{}` was replaced by another directory meanwhile", .0.display())]
    Replaced(PathBuf),
    /// A store or output that is the context itself.
    #[error("`{}`, where the build writes, is the build context itself; choose another directory", .0.display())]
    IsContext(PathBuf),
}

/// A Dockerfile as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundDockerfile {
    /// For messages: as it was named, or its path in the context.
    pub path: PathBuf,
    /// The content.
    pub content: Vec<u8>,
    pub(super) place: Place,
}

impl FoundDockerfile {
    /// The file that it was read from; none where it came as a stream.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        match self.place {
            Place::Inside(_) | Place::Outside(_) => Some(&self.path),
            Place::Stream => None,
        }
    }
}

/// Where a file is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// In the context: links are resolved inside it.
    Inside(GuestPath),
    /// Elsewhere: a path of the user, who may use links.
    Outside(PathBuf),
    /// Nowhere: it was handed over.
    Stream,
}

/// A directory from which COPY and ADD read. What is in it is not trusted: links never lead out of it.
#[derive(Debug)]
pub struct Context {
    root: Rootfs,
    path: PathBuf,
    ignore: IgnoreRules,
    limits: ContextLimits,
}

impl Context {
    /// Opens the directory `path`. No rules are read yet.
    ///
    /// # Errors
    /// When it is missing, no directory or not accessible.
    pub fn open_dir(path: &Path) -> Result<Self, ContextError> {
        let root = Rootfs::open(path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => ContextError::Missing(path.to_owned()),
            io::ErrorKind::NotADirectory => ContextError::NotADirectory(path.to_owned()),
            _ => ContextError::Open { path: path.to_owned(), source },
        })?;
        Ok(Self {
            root,
            path: path.to_owned(),
            ignore: IgnoreRules::default(),
            limits: ContextLimits::default(),
        })
    }

    /// Files that are this build's own, which messages say to be at `place`: nothing in them is ignored.
    #[must_use]
    pub fn of_files(root: Rootfs, place: PathBuf) -> Self {
        Self { root, path: place, ignore: IgnoreRules::default(), limits: ContextLimits::default() }
    }

    /// Sets other limits than the usual ones, before anything is read.
    #[must_use]
    pub fn within(self, limits: ContextLimits) -> Self {
        Self { limits, ..self }
    }

    /// Opens the directory anew, by its path, where this process has entered another mount namespace since: there is no
    /// other way to its mount in that.
    ///
    /// # Errors
    /// When the path does not lead to the same directory any more.
    pub fn reopen(&mut self) -> Result<(), ContextError> {
        let failed = |source| ContextError::Open { path: self.path.clone(), source };
        let root = Rootfs::open(&self.path).map_err(failed)?;
        let (before, now) = (metadata_of(&self.root).map_err(failed)?, metadata_of(&root).map_err(failed)?);
        if !now.same_file(&before) {
            return Err(ContextError::Replaced(self.path.clone()));
        }
        self.root = root;
        Ok(())
    }

    /// The files.
    #[must_use]
    pub fn root(&self) -> &Rootfs {
        &self.root
    }

    /// What of them COPY and ADD do not see.
    #[must_use]
    pub fn ignore(&self) -> &IgnoreRules {
        &self.ignore
    }

    /// The directory as it was named.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the Dockerfile. A name counts from the current directory if it is there (as for `docker build`), else from
    /// the context (as for kaniko); without one it is `Dockerfile` in the context. In place of a `Dockerfile` that is not
    /// there, `dockerfile` will do. Ignore rules do not apply to it.
    ///
    /// # Errors
    /// When there is none, or it is no regular file, too large or a link out of the context.
    pub fn read_dockerfile(&self, named: Option<&Path>) -> Result<FoundDockerfile, ContextError> {
        for (shown, place) in self.candidates(named) {
            if let Some(content) = self.read(&shown, &place, self.limits.dockerfile)? {
                return Ok(FoundDockerfile { path: shown, content, place });
            }
        }
        Err(match named {
            Some(named) => {
                ContextError::DockerfileMissing { named: named.to_owned(), context: self.path.clone() }
            }
            None => ContextError::NoDockerfile(self.path.clone()),
        })
    }

    fn candidates(&self, named: Option<&Path>) -> Vec<(PathBuf, Place)> {
        let inside = |name: &Path| {
            // `..` at the root leads to the root, which would be another file than the one that is named.
            let path = GuestPath::clamp(name.as_os_str().as_bytes()).ok().filter(|_| !climbs_out(name))?;
            Some((self.path.join(name), Place::Inside(path)))
        };
        let Some(named) = named else {
            return ["Dockerfile", "dockerfile"].iter().filter_map(|name| inside(Path::new(name))).collect();
        };
        let mut names = vec![named.to_owned()];
        if named.file_name().is_some_and(|name| name == "Dockerfile") {
            names.push(named.with_file_name("dockerfile"));
        }
        let mut candidates = Vec::new();
        for name in names {
            candidates.push((name.clone(), self.place_of(&name)));
            if name.is_relative() {
                candidates.extend(inside(&name));
            }
        }
        candidates
    }

    /// Where a path of the user is. Whatever comes behind the context in it belongs to the context, so that a link among
    /// it cannot lead out.
    fn place_of(&self, path: &Path) -> Place {
        let outside = Place::Outside(path.to_owned());
        let (Ok(absolute), Ok(context)) = (std::path::absolute(path), std::fs::metadata(&self.path)) else {
            return outside;
        };
        let is_context = |directory: &Path| {
            std::fs::metadata(directory)
                .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == (context.dev(), context.ino()))
        };
        for above in absolute.ancestors().skip(1) {
            let Ok(rest) = absolute.strip_prefix(above) else { continue };
            if rest.components().any(|component| component == Component::ParentDir) {
                break;
            }
            if is_context(above) {
                return GuestPath::clamp(rest.as_os_str().as_bytes()).map_or(outside, Place::Inside);
            }
        }
        outside
    }

    /// Reads the rules that apply to builds of `dockerfile`: those beside it, in `NAME.dockerignore`, even if that file
    /// is empty, else those of `.dockerignore` in the context. Without a Dockerfile, the latter.
    ///
    /// # Errors
    /// When the file is no regular file, too large or not valid.
    pub fn read_ignore_rules(&mut self, dockerfile: Option<&FoundDockerfile>) -> Result<(), ContextError> {
        let with_suffix = |name: &[u8]| [name, b".dockerignore"].concat();
        let beside = dockerfile.and_then(|dockerfile| {
            let shown = suffixed(&dockerfile.path);
            let place = match &dockerfile.place {
                Place::Inside(path) => Place::Inside(GuestPath::clamp(&with_suffix(path.as_bytes())).ok()?),
                Place::Outside(path) => Place::Outside(suffixed(path)),
                Place::Stream => return None,
            };
            Some((shown, place))
        });
        let general = GuestPath::root().child(b".dockerignore");
        let general = (self.path.join(".dockerignore"), Place::Inside(general));
        for (shown, place) in beside.into_iter().chain([general]) {
            if let Some(content) = self.read(&shown, &place, self.limits.ignore_bytes)? {
                let name = shown.file_name().unwrap_or_default().to_string_lossy().escape_debug().to_string();
                let ContextLimits { ignore_bytes, ignore_patterns, .. } = self.limits;
                let rules = IgnoreRules::parse_within(&content, ignore_bytes, ignore_patterns)
                    .map_err(|source| ContextError::Ignore { path: shown, source })?;
                self.ignore = rules.of_file(name, &self.ignore);
                return Ok(());
            }
        }
        Ok(())
    }

    /// Hides `path` and all below it from COPY and ADD, if it is in the context: the store, an output. It need not exist.
    ///
    /// # Errors
    /// When it is the context itself.
    pub fn exclude(&mut self, path: &Path) -> Result<(), ContextError> {
        let (Some(context), Some(path)) = (real_path(&self.path), real_path(path)) else { return Ok(()) };
        let Ok(rest) = path.strip_prefix(&context) else { return Ok(()) };
        if rest.as_os_str().is_empty() {
            return Err(ContextError::IsContext(path));
        }
        self.ignore.hide(rest.as_os_str().as_bytes());
        Ok(())
    }

    /// The content of a file; none if there is nothing.
    fn read(&self, shown: &Path, place: &Place, limit: Limit) -> Result<Option<Vec<u8>>, ContextError> {
        match place {
            Place::Outside(path) => read_outside(path, limit),
            Place::Stream => Ok(None),
            Place::Inside(path) => self.read_inside(shown, path, limit),
        }
    }

    fn read_inside(
        &self,
        shown: &Path,
        path: &GuestPath,
        limit: Limit,
    ) -> Result<Option<Vec<u8>>, ContextError> {
        match self.root.read_small_file(path, limit.value) {
            Ok(None) => match self.root.metadata(path, Follow::No) {
                Ok(Some(_)) => Err(ContextError::LinkOutside(shown.to_owned())),
                _ => Ok(None),
            },
            Ok(content) => Ok(content),
            Err(RootfsError::NotAFile { .. }) => Err(ContextError::NotAFile(shown.to_owned())),
            Err(RootfsError::TooLarge { .. }) => {
                Err(ContextError::TooLarge { path: shown.to_owned(), limit })
            }
            Err(source) => Err(ContextError::ReadInside { path: shown.to_owned(), source }),
        }
    }
}

fn suffixed(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".dockerignore");
    PathBuf::from(name)
}

fn read_outside(path: &Path, limit: Limit) -> Result<Option<Vec<u8>>, ContextError> {
    let error = |source| ContextError::Read { path: path.to_owned(), source };
    // Opened before it is known to be a file: a FIFO must not make us wait.
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    let file = File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path);
    let file = match file {
        Ok(file) => file,
        Err(source) => {
            return match source.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Ok(None),
                _ if std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) => {
                    Err(ContextError::NotAFile(path.to_owned()))
                }
                _ => Err(error(source)),
            };
        }
    };
    if !file.metadata().map_err(error)?.is_file() {
        return Err(ContextError::NotAFile(path.to_owned()));
    }
    let mut content = Vec::new();
    file.take(limit.value.saturating_add(1)).read_to_end(&mut content).map_err(error)?;
    if limit.is_exceeded_by(content.len() as u64) {
        return Err(ContextError::TooLarge { path: path.to_owned(), limit });
    }
    Ok(Some(content))
}

/// Whether a relative path leads above the directory that it is relative to.
fn climbs_out(path: &Path) -> bool {
    let mut depth = 0_usize;
    for component in path.components() {
        match component {
            Component::ParentDir if depth == 0 => return true,
            Component::ParentDir => depth -= 1,
            Component::Normal(_) => depth += 1,
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    false
}

/// A path without links, as far as it exists.
#[expect(clippy::disallowed_methods, reason = "a path of the user, compared with another and never opened")]
fn real_path(path: &Path) -> Option<PathBuf> {
    let absolute = std::path::absolute(path).ok()?;
    for above in absolute.ancestors() {
        if let Ok(real) = std::fs::canonicalize(above) {
            let rest = absolute.strip_prefix(above).ok()?;
            return Some(if rest.as_os_str().is_empty() { real } else { real.join(rest) });
        }
    }
    None
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the tests prepare trees of their own on the host")]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new(files: &[(&str, &str)]) -> Self {
            let directory = tempfile::tempdir().unwrap();
            for (name, content) in files {
                let path = directory.path().join(name);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, content).unwrap();
            }
            Self(directory)
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn context(&self) -> Context {
            Context::open_dir(&self.path("ctx")).unwrap()
        }

        fn dockerfile(&self, named: Option<&str>) -> Result<String, String> {
            let named = named
                .map(|name| if name.starts_with("..") { self.path("ctx").join(name) } else { name.into() });
            let found = self.context().read_dockerfile(named.as_deref());
            found.map(|found| String::from_utf8(found.content).unwrap()).map_err(|error| error.to_string())
        }
    }

    #[test]
    fn a_context_is_an_existing_directory() {
        let tree = Tree::new(&[("file", "")]);
        let error = |name: &str| Context::open_dir(&tree.path(name)).unwrap_err().to_string();
        assert!(error("nope").ends_with("nope` does not exist"));
        assert!(error("file").ends_with("file` is not a directory"));
    }

    #[test]
    fn the_default_dockerfile_may_be_in_lower_case() {
        let tree = Tree::new(&[("ctx/dockerfile", "low")]);
        assert_eq!(tree.dockerfile(None).unwrap(), "low");
        assert_eq!(tree.dockerfile(Some(tree.path("ctx/Dockerfile").to_str().unwrap())).unwrap(), "low");
        assert!(tree.dockerfile(Some("Other")).is_err());
        std::fs::write(tree.path("ctx/Dockerfile"), "cap").unwrap();
        assert_eq!(tree.dockerfile(None).unwrap(), "cap");
        assert_eq!(tree.dockerfile(Some(tree.path("ctx/Dockerfile").to_str().unwrap())).unwrap(), "cap");
        let tree = Tree::new(&[("ctx/in/the-context/dockerfile", "below")]);
        assert_eq!(tree.dockerfile(Some("in/the-context/Dockerfile")).unwrap(), "below");
        let tree = Tree::new(&[("ctx/other", "")]);
        let error = tree.dockerfile(None).unwrap_err();
        assert!(
            error.contains("no `Dockerfile` in `") && error.ends_with("name it with --dockerfile"),
            "{error}"
        );
    }

    #[test]
    fn a_named_dockerfile_is_looked_for_outside_and_inside_the_context() {
        let tree = Tree::new(&[("ctx/sub/x", "inside"), ("other/y", "outside")]);
        assert_eq!(tree.dockerfile(Some("sub/x")).unwrap(), "inside");
        assert_eq!(tree.dockerfile(Some(tree.path("ctx/sub/x").to_str().unwrap())).unwrap(), "inside");
        assert_eq!(tree.dockerfile(Some(tree.path("other/y").to_str().unwrap())).unwrap(), "outside");
        assert_eq!(tree.dockerfile(Some("../other/y")).unwrap(), "outside");
        assert!(tree.dockerfile(Some("nope")).unwrap_err().contains("`nope` does not exist"));
    }

    #[test]
    fn a_dockerfile_above_the_context_is_not_the_one_in_it() {
        for (name, climbs) in
            [("a/../b", false), ("../b", true), ("a/../../b", true), ("./..", true), ("a/./b/../..", false)]
        {
            assert_eq!(climbs_out(Path::new(name)), climbs, "{name}");
        }
        let tree = Tree::new(&[("ctx/Dockerfile", "FROM scratch")]);
        let missing = "../../../../../../nowhere/../Dockerfile";
        assert!(tree.context().read_dockerfile(Some(Path::new(missing))).is_err(), "{missing}");
        assert!(tree.dockerfile(Some("x/../Dockerfile")).is_ok());
    }

    #[test]
    fn links_to_a_dockerfile_stay_in_the_context() {
        let tree = Tree::new(&[("ctx/sub/x", "inside"), ("secret", "secret"), ("dir/secret", "secret")]);
        symlink("sub/x", tree.path("ctx/Dockerfile")).unwrap();
        assert_eq!(tree.dockerfile(None).unwrap(), "inside");
        symlink(tree.path("secret"), tree.path("ctx/absolute")).unwrap();
        symlink("../secret", tree.path("ctx/relative")).unwrap();
        symlink("../dir", tree.path("ctx/dir")).unwrap();
        for name in ["absolute", "relative"] {
            for named in [name.to_owned(), tree.path("ctx").join(name).to_str().unwrap().to_owned()] {
                let error = tree.dockerfile(Some(&named)).unwrap_err();
                assert!(error.contains("not in the build context"), "{named}: {error}");
            }
        }
        let through = tree.path("ctx/dir/secret");
        assert!(tree.dockerfile(Some(through.to_str().unwrap())).is_err());
        symlink(tree.path("secret"), tree.path("mine")).unwrap();
        assert_eq!(tree.dockerfile(Some(tree.path("mine").to_str().unwrap())).unwrap(), "secret");
    }

    #[test]
    fn a_dockerfile_is_a_regular_file_of_bounded_size() {
        let tree = Tree::new(&[("ctx/sub/x", "")]);
        let fifo = |path: PathBuf| {
            let mode = rustix::fs::Mode::RUSR;
            rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        };
        fifo(tree.path("ctx/fifo"));
        fifo(tree.path("fifo"));
        let _socket = std::os::unix::net::UnixListener::bind(tree.path("socket")).unwrap();
        let large = File::create(tree.path("ctx/large")).unwrap();
        large.set_len(1 << 40).unwrap();
        symlink("ctx/large", tree.path("large")).unwrap();
        let outside = |name: &str| tree.path(name).to_str().unwrap().to_owned();
        for named in ["sub".to_owned(), "fifo".to_owned(), outside("fifo"), outside("ctx"), outside("socket")]
        {
            let error = tree.dockerfile(Some(&named)).unwrap_err();
            assert!(error.ends_with("is not a regular file"), "{named}: {error}");
        }
        for named in ["large".to_owned(), outside("large")] {
            let error = tree.dockerfile(Some(&named)).unwrap_err();
            assert!(
                error.contains("larger than 4194304 bytes; raise it with `--limit dockerfile-bytes=N`"),
                "{named}: {error}"
            );
        }
    }

    #[test]
    fn rules_beside_the_dockerfile_replace_the_general_ones() {
        let files = [
            ("ctx/.dockerignore", "x"),
            ("ctx/Dockerfile", ""),
            ("ctx/sub/Specific", ""),
            ("ctx/sub/Specific.dockerignore", ""),
            ("other/D", ""),
            ("other/D.dockerignore", "y"),
        ];
        let tree = Tree::new(&files);
        let excluded = |named: Option<&str>| {
            let mut context = tree.context();
            let named = named.map(|name| tree.path(name));
            let dockerfile = context.read_dockerfile(named.as_deref()).unwrap();
            context.read_ignore_rules(Some(&dockerfile)).unwrap();
            ["x", "y"].map(|path| context.ignore().excludes(path.as_bytes()))
        };
        assert_eq!(excluded(None), [true, false]);
        assert_eq!(excluded(Some("ctx/sub/Specific")), [false, false]);
        assert_eq!(excluded(Some("other/D")), [false, true]);
        let mut context = tree.context();
        let dockerfile = context.read_dockerfile(Some(&tree.path("other/D"))).unwrap();
        context.read_ignore_rules(Some(&dockerfile)).unwrap();
        assert_eq!(context.ignore().file_name(), "D.dockerignore");
        let mut context = tree.context();
        context.read_ignore_rules(None).unwrap();
        assert!(context.ignore().excludes(b"x"));
    }

    #[test]
    fn rules_that_are_not_valid_are_named_by_file_and_line() {
        let tree = Tree::new(&[("ctx/.dockerignore", "a\n[b\n")]);
        let error = tree.context().read_ignore_rules(None).unwrap_err();
        assert!(error.to_string().ends_with("ctx/.dockerignore` is not valid"), "{error}");
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert_eq!(source, "line 2: syntax error in pattern: `[b`");
        let tree = Tree::new(&[("ctx/.dockerignore/x", "")]);
        assert!(matches!(tree.context().read_ignore_rules(None), Err(ContextError::NotAFile(_))));
    }

    #[test]
    fn the_store_and_outputs_are_hidden() {
        let tree = Tree::new(&[("ctx/a/b", ""), ("elsewhere/x", ""), ("ctx/.dockerignore", "!a")]);
        symlink("ctx/a", tree.path("link")).unwrap();
        let mut context = tree.context();
        context.exclude(&tree.path("link/b")).unwrap();
        context.exclude(&tree.path("ctx/new/out.tar")).unwrap();
        context.exclude(&tree.path("elsewhere")).unwrap();
        context.read_ignore_rules(None).unwrap();
        let excluded = |path: &str| context.ignore().excludes(path.as_bytes());
        assert!(excluded("a/b") && excluded("new/out.tar"));
        assert!(!excluded("a") && !excluded("new") && !excluded("elsewhere"));
        assert!(matches!(tree.context().exclude(&tree.path("ctx/a/..")), Err(ContextError::IsContext(_))));
    }

    #[test]
    fn a_context_that_was_replaced_is_not_opened_anew() {
        let tree = Tree::new(&[("ctx/a", "")]);
        let mut context = tree.context();
        context.reopen().unwrap();
        std::fs::rename(tree.path("ctx"), tree.path("moved")).unwrap();
        std::fs::create_dir(tree.path("ctx")).unwrap();
        assert!(matches!(context.reopen(), Err(ContextError::Replaced(_))));
        std::fs::remove_dir(tree.path("ctx")).unwrap();
        assert!(matches!(context.reopen(), Err(ContextError::Open { .. })));
    }
}
