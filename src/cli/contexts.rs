//! `--build-context`: names for directories, images and stages, spelled as docker does.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::failure::Failure;
use super::hints::service_failure;
use super::outputs::hide_outputs;
use super::settings::Settings;
use crate::build::Plan;
use crate::build::clock::Clock;
use crate::build::epoch::EpochSource;
use crate::build::named_contexts::{Added, ContextValue, LayoutImageName, NamedContexts};
use crate::build::remote::Remote;
use crate::build::services::ServiceError;
use crate::build::step::UsedContext;
use crate::context::{Context, ContextError, GitSource, UrlSource};
use crate::image::digest::Digest;
use crate::image::platform::Platform;
use crate::image::reference::Reference;
use crate::rootfs::Rootfs;
use crate::sandbox::Cancel;
use crate::store::workspace::{Scratch, Workspace};
use crate::transfer::remote::Remotes;

/// The flag, for messages.
const FLAG: &str = "--build-context";

/// What may stand behind `=`.
const KINDS: &str = "a directory, a git repository, an http or https URL, `docker-image://NAME`, \
                     `oci-layout://DIR[:TAG][@DIGEST]` or `target:STAGE`";

/// What the file of a URL is called in its context, as under BuildKit.
const FILE: &[u8] = b"context";

/// What the flags say. Nothing has been opened.
#[derive(Debug, Default)]
pub(super) struct GivenContexts {
    /// The names and what they stand for.
    pub(super) names: NamedContexts,
    /// Where the files are of those that are files, by number.
    pub(super) files: BTreeMap<usize, GivenFiles>,
    /// What to warn about.
    pub(super) warnings: Vec<String>,
}

/// Where the files of a context are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum GivenFiles {
    /// In a directory of this machine.
    Directory(PathBuf),
    /// In a git repository.
    Git(GitSource),
    /// It is a single one, at a URL.
    Url(UrlSource),
}

impl GivenFiles {
    /// The directory of this machine.
    pub(super) fn directory(&self) -> Option<&Path> {
        match self {
            Self::Directory(path) => Some(path),
            Self::Git(_) | Self::Url(_) => None,
        }
    }
}

/// Directories that are open, by number.
pub(super) type OpenContexts = BTreeMap<usize, Context>;

/// Reads the flags; `host` is this machine.
pub(super) fn parse(flags: &[OsString], host: &Platform) -> Result<GivenContexts, Failure> {
    let mut given = GivenContexts::default();
    for flag in flags {
        let bytes = flag.as_bytes();
        let Some(at) = bytes.iter().position(|byte| *byte == b'=') else {
            let message = format!("`{}` is no build context: expected `NAME=VALUE`", flag.display());
            return Err(Failure::new(message).of_flag(FLAG).hint(format!("VALUE is {KINDS}")));
        };
        let (name, value) = (&bytes[..at], OsStr::from_bytes(&bytes[at + 1..]));
        let (value, files) = match read_value(value) {
            Ok(read) => read,
            Err(failure) => return Err(failure.of_flag(FLAG)),
        };
        let name = String::from_utf8_lossy(name);
        let Added { number, replaced } =
            given.names.add(&name, value, host).map_err(|error| Failure::from_error(&error).of_flag(FLAG))?;
        if let Some(first) = replaced {
            let spelled =
                if first == name { String::new() } else { format!(" (`{first}` is the same name)") };
            given.warnings.push(format!("{FLAG} {name} is given twice, the last one counts{spelled}"));
        }
        match files {
            Some(files) => given.files.insert(number, files),
            None => given.files.remove(&number),
        };
    }
    Ok(given)
}

/// What stands behind `=`, and where its files are.
fn read_value(value: &OsStr) -> Result<(ContextValue, Option<GivenFiles>), Failure> {
    let text = value.to_string_lossy();
    if text.is_empty() {
        return Err(Failure::new("a build context has no value").hint(format!("it is {KINDS}")));
    }
    let directory = |bytes: &[u8]| {
        let path = PathBuf::from(OsStr::from_bytes(bytes));
        Ok((ContextValue::Files, Some(GivenFiles::Directory(path))))
    };
    if let Some(path) = value.as_bytes().strip_prefix(b"dir://") {
        return directory(path);
    }
    if let Some(name) = text.strip_prefix("docker-image://") {
        if name == "scratch" {
            return Ok((ContextValue::Scratch, None));
        }
        let reference: Reference = name.parse().map_err(|error| Failure::from_error(&error))?;
        return Ok((ContextValue::Image(reference), None));
    }
    if let Some(layout) = value.as_bytes().strip_prefix(b"oci-layout://") {
        let layout = layout_image(OsStr::from_bytes(layout), |path| path.is_dir())?;
        return Ok((ContextValue::Layout(layout), None));
    }
    if let Some(stage) = text.strip_prefix("target:") {
        return Ok((ContextValue::Stage(stage.to_owned()), None));
    }
    if let Some(git) = GitSource::parse_context(&text) {
        let git = git.map_err(|error| Failure::from_error(&error))?;
        return Ok((ContextValue::Files, Some(GivenFiles::Git(git))));
    }
    if let Some(url) = UrlSource::parse(&text) {
        return Ok((ContextValue::Files, Some(GivenFiles::Url(url))));
    }
    match text.split_once("://") {
        Some((kind, _)) if is_scheme(kind) => {
            let message = format!("`{kind}://` is no kind of build context");
            Err(Failure::new(message).hint(format!("there are {KINDS}")))
        }
        _ => directory(value.as_bytes()),
    }
}

/// Whether `text` may stand in front of `://` (RFC 3986).
fn is_scheme(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'.' | b'-'))
}

/// Takes `DIR[:TAG][@DIGEST]` apart. Directories may have colons in their names.
fn layout_image(text: &OsStr, is_directory: impl Fn(&Path) -> bool) -> Result<LayoutImageName, Failure> {
    let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
    let whole = text.as_bytes();
    let (rest, digest) = match whole.iter().rposition(|byte| *byte == b'@') {
        Some(at) if !is_directory(&path(whole)) => {
            let digest = String::from_utf8_lossy(&whole[at + 1..]);
            let digest: Digest = digest.parse().map_err(|error| Failure::from_error(&error))?;
            (&whole[..at], Some(digest))
        }
        _ => (whole, None),
    };
    let colon = rest.iter().rposition(|byte| *byte == b':');
    let (directory, tag) = match colon {
        Some(at) if !rest[at..].contains(&b'/') && !is_directory(&path(rest)) => {
            (&rest[..at], Some(String::from_utf8_lossy(&rest[at + 1..]).into_owned()))
        }
        _ => (rest, None),
    };
    if directory.is_empty() {
        let message = format!("`oci-layout://{}` names no directory", text.display());
        return Err(Failure::new(message).hint("for instance `oci-layout://out:latest`"));
    }
    // Where the current directory is another one it must still be found.
    let path = std::path::absolute(path(directory)).map_err(|error| {
        Failure::new(format!("cannot tell where `{}` is: {error}", path(directory).display()))
    })?;
    Ok(LayoutImageName { path, tag: tag.filter(|tag| !tag.is_empty()), digest })
}

/// Opens the directories, used or not: what is not there is a mistake, as for docker.
pub(super) fn open(settings: &Settings) -> Result<OpenContexts, Failure> {
    let open = |(number, directory): (&usize, &Path)| {
        let context = Context::open_dir(directory).map_err(|error| {
            let is_missing = matches!(error, ContextError::Missing(_));
            let failure = of_context(&error, settings, *number);
            let text = directory.to_string_lossy();
            match text.parse::<Reference>() {
                Ok(_) if is_missing && !directory.is_absolute() => {
                    failure.hint(format!("an image is written `docker-image://{text}`"))
                }
                _ => failure,
            }
        })?;
        Ok((*number, context.within(settings.limits.context)))
    };
    let directories = settings.context_files.iter();
    directories.filter_map(|(number, files)| Some((number, files.directory()?))).map(open).collect()
}

/// Opens them anew where this process has entered another mount namespace since.
pub(super) fn reopen(contexts: &mut OpenContexts, settings: &Settings) -> Result<(), Failure> {
    for (number, context) in contexts {
        context.reopen().map_err(|error| of_context(&error, settings, *number))?;
    }
    Ok(())
}

/// Those that `plan` uses, in its order: only now ignore rules are read, and what is elsewhere is fetched.
pub(super) fn used(
    plan: &Plan,
    contexts: &mut OpenContexts,
    settings: &Settings,
    remotes: &Remotes<'_>,
    cancel: &Cancel,
) -> Result<Vec<Context>, Failure> {
    let mut used = Vec::with_capacity(plan.contexts.len());
    for UsedContext { name, number } in &plan.contexts {
        let context = match (contexts.remove(number), settings.context_files.get(number)) {
            (Some(mut context), _) => {
                context.read_ignore_rules(None).map_err(|error| of_context(&error, settings, *number))?;
                let hidden = hide_outputs(&mut context, settings);
                hidden.map_err(|failure| failure.of_flag(&format!("{FLAG} {name}")))?;
                context
            }
            (None, Some(GivenFiles::Git(source))) => {
                let tree = remotes.tree(source, cancel);
                fetched(name, source.shown(), tree)?
            }
            (None, Some(GivenFiles::Url(url))) => {
                let file = remotes.file(url, None, cancel);
                let file = file.and_then(|file| remotes.place(&file, FILE, cancel));
                fetched(name, url.shown(), file)?
            }
            (None, _) => return Err(Failure::new(format!("the build context `{name}` is not open"))),
        };
        used.push(context);
    }
    Ok(used)
}

/// The time that `plan` takes for the present, asked for where it is that of something elsewhere.
pub(super) fn clock(
    plan: &Plan,
    settings: &Settings,
    remotes: &Remotes<'_>,
    cancel: &Cancel,
) -> Result<Clock, Failure> {
    let remote = match &plan.epoch {
        None => return Ok(plan.clock),
        Some(EpochSource::Remote(remote)) => remote.clone(),
        Some(EpochSource::Files(number)) => match settings.context_files.get(number) {
            Some(GivenFiles::Git(source)) => Remote::Git(source.clone()),
            Some(GivenFiles::Url(url)) => Remote::File { url: url.clone(), checksum: None },
            // A directory of this machine has no time of its own.
            Some(GivenFiles::Directory(_)) | None => return Ok(plan.clock),
        },
    };
    let changed = remotes.changed(&remote, &settings.limits.layers, cancel).map_err(|error| {
        let message = format!("SOURCE_DATE_EPOCH: cannot tell when `{}` was changed", remote.shown());
        service_failure(&*error).within(message)
    })?;
    Ok(changed.and_then(Clock::fixed).unwrap_or(plan.clock))
}

/// The context called `name`, whose files were fetched from `place`.
fn fetched(name: &str, place: String, files: Result<Rootfs, ServiceError>) -> Result<Context, Failure> {
    match files {
        Ok(root) => Ok(Context::of_files(root, PathBuf::from(place))),
        Err(error) => Err(service_failure(&*error).within(format!("{FLAG} {name}: cannot fetch `{place}`"))),
    }
}

/// A context without files, for who gives a Dockerfile alone, and what holds it.
pub(super) fn empty(workspace: &Workspace) -> Result<(Context, Scratch), Failure> {
    let scratch = workspace.scratch("context").map_err(|error| Failure::from_error(&error))?;
    let context = Context::open_dir(scratch.path()).map_err(|error| Failure::from_error(&error))?;
    Ok((context, scratch))
}

fn of_context(error: &ContextError, settings: &Settings, number: usize) -> Failure {
    let names = settings.request.contexts.all();
    let name = names.get(number).map(|context| context.name.as_str()).unwrap_or_default();
    Failure::from_error(error).of_flag(&format!("{FLAG} {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(flags: &[&str]) -> Result<GivenContexts, Failure> {
        let flags: Vec<OsString> = flags.iter().map(OsString::from).collect();
        parse(&flags, &Platform::new("linux", "amd64", None))
    }

    #[test]
    fn what_stands_behind_a_name_is_told_by_how_it_begins() {
        let files = |path: &str| (ContextValue::Files, Some(GivenFiles::Directory(PathBuf::from(path))));
        let git = |text: &str| {
            let source = GitSource::parse_context(text).unwrap().unwrap();
            (ContextValue::Files, Some(GivenFiles::Git(source)))
        };
        let url = |text: &str| (ContextValue::Files, UrlSource::parse(text).map(GivenFiles::Url));
        let none = |value| (value, None);
        for (text, expected) in [
            ("src", files("src")),
            ("../a=b", files("../a=b")),
            ("dir:///work space", files("/work space")),
            ("a:b", files("a:b")),
            ("docker-image://scratch", none(ContextValue::Scratch)),
            ("docker-image://busybox", none(ContextValue::Image("busybox".parse().unwrap()))),
            ("https://h.example/x.git#main:sub", git("https://h.example/x.git#main:sub")),
            ("git@h.example:x", git("git@h.example:x")),
            ("github.com/a/b", git("github.com/a/b")),
            ("https://h.example/x.tar.gz", url("https://h.example/x.tar.gz")),
            ("http://h.example/", url("http://h.example/")),
            ("target:Base", none(ContextValue::Stage("Base".to_owned()))),
        ] {
            let given = parsed(&[&format!("n={text}")]).unwrap_or_else(|error| panic!("{text}: {error:?}"));
            let value = given.names.all()[0].value.clone();
            assert_eq!((value, given.files.get(&0).cloned()), expected, "{text}");
        }
    }

    #[test]
    fn a_wrong_flag_is_told_with_what_there_is() {
        for (text, message, hint) in [
            ("x", "`x` is no build context: expected `NAME=VALUE`", "VALUE is a directory"),
            ("=x", "a build context without a name", ""),
            ("n=", "a build context has no value", "it is a directory"),
            ("scratch=x", "`scratch` cannot be the name", ""),
            ("n=s3://bucket", "`s3://` is no kind of build context", "`docker-image://NAME`"),
            ("n=docker-image://A", "must be lower case", ""),
            ("n=docker-image://", "an image name is empty", ""),
            ("n=oci-layout://", "names no directory", "oci-layout://out"),
            ("n=oci-layout://x@sha256:1", "sha256", ""),
        ] {
            let failure = parsed(&[text]).unwrap_err();
            assert!(failure.message.starts_with("--build-context: "), "{text}: {}", failure.message);
            assert!(failure.message.contains(message), "{text}: {}", failure.message);
            let told = failure.hint.unwrap_or_default();
            assert!(told.contains(hint), "{text}: {told}");
        }
    }

    #[test]
    fn the_last_of_two_contexts_with_one_name_counts_whatever_they_are() {
        let again = "--build-context a is given twice, the last one counts";
        let twice = parsed(&["a=x", "a=docker-image://scratch", "b=z"]).unwrap();
        assert_eq!(twice.names.all()[0].value, ContextValue::Scratch);
        let files: Vec<usize> = twice.files.keys().copied().collect();
        assert_eq!((files, twice.warnings), (vec![1], vec![again.to_owned()]));
        let twice = parsed(&["a=docker-image://scratch", "docker.io/library/a:latest=y"]).unwrap();
        assert_eq!(twice.names.all()[0].value, ContextValue::Files);
        assert_eq!(twice.files.get(&0), Some(&GivenFiles::Directory(PathBuf::from("y"))));
        assert!(twice.warnings[0].ends_with("counts (`a` is the same name)"), "{:?}", twice.warnings);
    }

    #[test]
    fn a_layout_may_have_a_tag_and_a_digest() {
        let digest = format!("sha256:{}", "0".repeat(64));
        let directories = ["/l", "/a:b", "/x@y"].map(Path::new);
        for (text, path, tag, has_digest) in [
            ("/l", "/l", None, false),
            ("/l:v1", "/l", Some("v1"), false),
            ("/l:", "/l", None, false),
            ("/a:b", "/a:b", None, false),
            ("/a:b:v1", "/a:b", Some("v1"), false),
            ("/x@y", "/x@y", None, false),
            ("/missing:v1", "/missing", Some("v1"), false),
            ("/odd:name/dir", "/odd:name/dir", None, false),
            (&format!("/l@{digest}"), "/l", None, true),
            (&format!("/l:v1@{digest}"), "/l", Some("v1"), true),
        ] {
            let found = layout_image(OsStr::new(text), |path| directories.contains(&path)).unwrap();
            let expected = LayoutImageName {
                path: PathBuf::from(path),
                tag: tag.map(str::to_owned),
                digest: has_digest.then(|| digest.parse().unwrap()),
            };
            assert_eq!(found, expected, "{text}");
        }
    }
}
