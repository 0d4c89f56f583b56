//! Where outputs are written: what would be in the way is found before anything is built.

use std::ffi::OsString;
use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::Access;
use rustix::io::Errno;

use super::Outputs;
use super::output::Kind;
use super::publish::refuse_link;
use crate::cli::contexts::GivenFiles;
use crate::cli::failure::Failure;
use crate::cli::settings::Settings;
use crate::context::{Context, FoundDockerfile};
use crate::rootfs::Others;
use crate::sandbox::in_place::PRIVATE_DIRECTORY;
use crate::store::{is_of_kernel, layout};

/// What the build itself writes must not be part of its context: an image would hold the one before it. A directory for
/// the root file system is another matter: files in it may well be sources of the next build, as generated ones are.
pub(in crate::cli) fn hide_outputs(context: &mut Context, settings: &Settings) -> Result<(), Failure> {
    // Of a context that is the whole root.
    let private = Path::new("/").join(PRIVATE_DIRECTORY);
    let own = [settings.store.as_path(), &private];
    let written = places(&settings.outputs).filter(|place| !matches!(place.is, Is::Directory(_)));
    for path in own.into_iter().chain(written.map(|place| place.path)) {
        context.exclude(path).map_err(|error| Failure::from_error(&error))?;
    }
    Ok(())
}

/// What is written to a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Is {
    /// A layout.
    Layout,
    /// A file, in place of the one that is there.
    Replaced,
    /// A file that is written to.
    Overwritten,
    /// A root file system.
    Directory(Others),
}

/// One place, with what asks for it.
#[derive(Clone, Copy)]
struct Place<'a> {
    flag: &'a str,
    path: &'a Path,
    is: Is,
}

fn places(outputs: &Outputs) -> impl Iterator<Item = Place<'_>> {
    let written = outputs.list.iter().flat_map(|output| {
        let directories = output.directories();
        let is = match &output.kind {
            Kind::Layout { .. } => Is::Layout,
            Kind::Directory { others, .. } => Is::Directory(*others),
            _ => Is::Replaced,
        };
        let paths = output.path().into_iter().chain(directories.iter().map(PathBuf::as_path));
        paths.map(move |path| Place { flag: &output.flag, path, is })
    });
    let reports = outputs.reports.iter();
    written.chain(reports.map(|report| Place {
        flag: report.flag(),
        path: report.path(),
        is: Is::Overwritten,
    }))
}

/// That nothing is read or written where the files of a container are kept for the time of a step, and removed after it:
/// `named` are paths with their flags.
pub(in crate::cli) fn check_not_private<'a>(
    named: impl IntoIterator<Item = (&'a str, &'a Path)>,
) -> Result<(), Failure> {
    let private = Path::new("/").join(PRIVATE_DIRECTORY);
    for (flag, path) in named {
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        if absolute.starts_with(&private) || real(path).starts_with(&private) {
            let message = format!("`{}` is in `{}`", path.display(), private.display());
            return Err(Failure::new(message)
                .of_flag(flag)
                .hint("choose another place: that directory is builder's own, and goes with the build"));
        }
    }
    Ok(())
}

/// What would be in the way of an output is found before anything is built.
pub(in crate::cli) fn check_outputs(settings: &Settings, found: &FoundDockerfile) -> Result<(), Failure> {
    let outputs = &settings.outputs;
    for output in &outputs.list {
        for directory in output.directories() {
            refuse_link(directory).map_err(|failure| failure.of_flag(&output.flag))?;
        }
    }
    for Place { flag, path, is } in places(outputs) {
        let failed = |message: String| Err(Failure::new(message).of_flag(flag));
        match is {
            Is::Layout => {
                layout::check(path).map_err(|error| Failure::from_error(&error).of_flag(flag))?;
            }
            Is::Replaced | Is::Overwritten if path.is_dir() => {
                return failed(format!("`{}` is a directory, expected the name of a file", path.display()));
            }
            Is::Directory(_) if path.exists() && !path.is_dir() => {
                return failed(format!("`{}` is not a directory", path.display()));
            }
            Is::Directory(_) if real(path) == Path::new("/") => {
                return failed("`/` is the root of this machine: the image would overwrite it".to_owned());
            }
            _ => {}
        }
        let written = if is == Is::Replaced { Written::Replaced } else { Written::There };
        if let Some(why) = obstacle(path, written) {
            let message = format!("`{}` cannot be written: {why}", path.display());
            return Err(Failure::new(message).of_flag(flag).hint("write it somewhere else"));
        }
    }
    let mut taken: Vec<Taken> = Vec::new();
    if let Some(file) = found.file() {
        let (place, file) = (real(file), identity(std::fs::metadata(file)));
        taken.push(Taken { place, file, is: None, who: "the Dockerfile".to_owned() });
    }
    if let Some(output) = outputs.list.iter().find(|output| output.is_streamed())
        && let Ok(place) = std::fs::read_link("/proc/self/fd/1")
    {
        let file = identity(std::fs::metadata("/proc/self/fd/1"));
        let who = format!("standard output, which gets that of `{}`", output.flag);
        taken.push(Taken { place, file, is: Some(Is::Overwritten), who });
    }
    let store = real(&settings.store);
    for Place { flag, path, is } in places(outputs) {
        let place = real(path);
        if place.starts_with(&store) {
            let message = format!("`{}` is in the store", path.display());
            return Err(Failure::new(message)
                .of_flag(flag)
                .hint("write it somewhere else: the store is builder's own"));
        }
        let found = std::fs::metadata(path);
        if found.as_ref().is_ok_and(|found| found.file_type().is_char_device()) {
            // It takes everything.
            continue;
        }
        let file = identity(found);
        if let Some(why) = taken.iter().find_map(|known| known.refuses(&place, file, is)) {
            return Err(Failure::new(format!("`{}` {why}", path.display())).of_flag(flag));
        }
        let who = format!("`{}` of `{flag}`", path.display());
        taken.push(Taken { place, file, is: Some(is), who });
    }
    check_removed(settings, found)
}

/// That `mode=delete` removes nothing that the build reads, or that another output writes.
fn check_removed(settings: &Settings, found: &FoundDockerfile) -> Result<(), Failure> {
    let here = std::path::absolute(".").ok();
    let read = [
        (settings.context.as_deref(), "the build context"),
        (found.file(), "the Dockerfile"),
        (Some(settings.store.as_path()), "the store"),
        (here.as_deref(), "the current directory"),
        (Some(Path::new("/proc/self/fd/1")), "what standard output is written to"),
        (Some(Path::new("/proc/self/fd/2")), "what standard error is written to"),
    ];
    let read = read.into_iter().filter_map(|(path, what)| Some((path?, what)));
    let read = read.chain(
        settings
            .context_files
            .values()
            .filter_map(GivenFiles::directory)
            .map(|path| (path, "a named context")),
    );
    let kept: Vec<(PathBuf, &str)> = read.map(|(path, what)| (real(path), what)).collect();
    for Place { flag, path, is } in places(&settings.outputs) {
        if is != Is::Directory(Others::Removed) {
            continue;
        }
        let emptied = real(path);
        // The directories of an output's platforms are its own, and two with one flag are refused by now.
        let others = places(&settings.outputs).filter(|other| other.flag != flag);
        let others = others.map(|other| (real(other.path), other.flag));
        if let Some((_, what)) =
            kept.iter().cloned().chain(others).find(|(kept, _)| kept.starts_with(&emptied))
        {
            let message = format!("`{}` has {what} in it, which mode=delete would remove", path.display());
            return Err(Failure::new(message).of_flag(flag).hint("name a directory for the files alone"));
        }
    }
    Ok(())
}

/// What becomes of an output that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Written {
    /// It is written to.
    There,
    /// Its directory gets another of its name.
    Replaced,
}

/// Why nothing can be written to `path`, as far as that is known without trying.
fn obstacle(path: &Path, written: Written) -> Option<String> {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    // Of a link that is replaced, only where it is matters.
    let followed = absolute.ancestors().skip(usize::from(written == Written::Replaced));
    let error = followed.filter_map(|path| Some((path, path.metadata().err()?)));
    if let Some((link, error)) =
        error.filter(|(_, error)| Errno::from_io_error(error) == Some(Errno::LOOP)).last()
    {
        return Some(format!("`{}`: {error}", link.display()));
    }
    let is_file = absolute.is_file();
    if absolute.exists() && (written == Written::There || !is_file) {
        return access(&absolute, Access::WRITE_OK);
    }
    let directory = absolute.ancestors().skip(1).find(|directory| directory.exists())?;
    if !directory.is_dir() {
        return Some(format!("`{}` is not a directory", directory.display()));
    }
    if is_of_kernel(directory) {
        return Some(format!("`{}` has only what the kernel puts there", directory.display()));
    }
    access(directory, Access::WRITE_OK | Access::EXEC_OK)
}

fn access(path: &Path, wanted: Access) -> Option<String> {
    let error = rustix::fs::access(path, wanted).err()?;
    Some(format!("`{}`: {}", path.display(), std::io::Error::from(error)))
}

/// Where `path` really is: without links, `.` and `..`. What of it does not exist yet is taken as it would be made: a
/// directory that is missing has no links in it.
fn real(path: &Path) -> PathBuf {
    /// As many links as Linux follows.
    const MOST_LINKS: usize = 40;
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let parts = |path: &Path| -> Vec<OsString> {
        path.components().rev().map(|part| part.as_os_str().to_owned()).collect()
    };
    let (mut place, mut left, mut links) = (PathBuf::from("/"), parts(&absolute), 0);
    while let Some(part) = left.pop() {
        if part == ".." {
            place.pop();
            continue;
        }
        // The root takes the place of all before it.
        place.push(&part);
        if links < MOST_LINKS
            && let Ok(target) = std::fs::read_link(&place)
        {
            links += 1;
            place.pop();
            left.extend(parts(&target));
        }
    }
    place
}

/// What tells a file from others, however it is called; none for what is not there, and for what is no file.
fn identity(metadata: std::io::Result<Metadata>) -> Option<(u64, u64)> {
    let found = metadata.ok().filter(Metadata::is_file)?;
    Some((found.dev(), found.ino()))
}

/// Whether `path` is where nothing but what is written to `around` is to be. A layout is no worse for other files.
fn is_within(path: &Path, around: &Path, what: Is) -> bool {
    path.strip_prefix(around).is_ok_and(|below| match what {
        Is::Directory(_) => false,
        Is::Replaced | Is::Overwritten => true,
        Is::Layout => layout::is_own(below),
    })
}

/// What is taken already, with what takes it.
struct Taken {
    place: PathBuf,
    file: Option<(u64, u64)>,
    is: Option<Is>,
    /// As messages call it.
    who: String,
}

impl Taken {
    /// Why nothing else can be written at `place`, which is the file `file` by now if it exists.
    fn refuses(&self, place: &Path, file: Option<(u64, u64)>, is: Is) -> Option<String> {
        let who = &self.who;
        if self.place == place {
            return Some(format!("would overwrite {who}"));
        }
        if self.file.is_some() && self.file == file {
            return Some(format!("is another name of the same file, and would overwrite {who}"));
        }
        if is_within(place, &self.place, self.is?) {
            return Some(format!("is in what is written as {who}"));
        }
        // A layout is not written where there is something else already.
        let comes_late = is == Is::Layout && self.place.starts_with(place);
        (comes_late || is_within(&self.place, place, is))
            .then(|| format!("has {who} in it, and is no directory for other files"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a link of the test's own")]
    fn where_nothing_can_be_written_is_known_before() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("file");
        std::fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink("loop", place.path().join("loop")).unwrap();
        let looped = place.path().join("loop");
        let words = Some("loop`: Too many levels of symbolic links".to_owned());
        let begins_with =
            |found: Option<String>| found.map(|found| found[found.find("loop`").unwrap()..].to_owned());
        for (path, written) in [
            (&looped, Written::There),
            (&looped.join("x/y"), Written::There),
            (&looped.join("x"), Written::Replaced),
        ] {
            let found = begins_with(obstacle(path, written)).map(|found| found.replace(" (os error 40)", ""));
            assert_eq!(found, words, "{path:?} {written:?}");
        }
        for (path, words) in [
            (place.path().join("new/deep/name"), None),
            (file.clone(), None),
            (file.join("x"), Some("file` is not a directory")),
            ("/dev/null".into(), None),
            ("/dev/null/x".into(), Some("`/dev/null` is not a directory")),
            ("/proc/x/y".into(), Some("`/proc` has only what the kernel puts there")),
        ] {
            for written in [Written::There, Written::Replaced] {
                let found = obstacle(&path, written);
                assert_eq!(found.is_some(), words.is_some(), "{path:?} {found:?}");
                assert!(found.unwrap_or_default().contains(words.unwrap_or_default()), "{path:?}");
            }
        }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "links of the test's own")]
    fn one_place_is_one_however_it_is_written() {
        let ground = tempfile::tempdir().unwrap();
        let at = |name: &str| ground.path().join(name);
        std::fs::create_dir_all(at("dir/below")).unwrap();
        std::os::unix::fs::symlink("dir", at("link")).unwrap();
        std::os::unix::fs::symlink("dir/new", at("dangling")).unwrap();
        std::os::unix::fs::symlink("loop", at("loop")).unwrap();
        let plain = real(&at("dir/new"));
        for name in [
            "dir/./new",
            "dir/below/../new",
            "missing/../dir/new",
            "missing/../link/new",
            "link/new",
            "link/below/../new/",
            "dangling",
        ] {
            assert_eq!(real(&at(name)), plain, "{name}");
        }
        assert_ne!(real(&at("dir/other")), plain);
        assert!(real(&at("loop")).ends_with("loop"));

        std::fs::write(at("file"), "").unwrap();
        std::fs::hard_link(at("file"), at("also")).unwrap();
        let taken = |name: &str, is| Taken {
            place: real(&at(name)),
            file: identity(std::fs::metadata(at(name))),
            is,
            who: "x".to_owned(),
        };
        let directory = Is::Directory(Others::Kept);
        for (first, first_is, second, second_is, words) in [
            ("file", Is::Replaced, "file", Is::Overwritten, Some("would overwrite x")),
            ("file", Is::Replaced, "also", Is::Replaced, Some("another name of the same file")),
            ("file", Is::Replaced, "other", Is::Replaced, None),
            ("new", Is::Layout, "new/index.json", Is::Overwritten, Some("is in what is written as x")),
            ("new", Is::Layout, "new/digest", Is::Overwritten, None),
            ("new", Is::Layout, "new/x.tar", Is::Replaced, None),
            ("new/x.tar", Is::Replaced, "new", Is::Layout, Some("has x in it")),
            ("new/f", Is::Replaced, "new", Is::Replaced, Some("has x in it")),
            ("new", directory, "new/f", Is::Replaced, None),
            ("new/f", Is::Replaced, "new", directory, None),
        ] {
            let file = identity(std::fs::metadata(at(second)));
            let why = taken(first, Some(first_is)).refuses(&real(&at(second)), file, second_is);
            assert_eq!(why.is_some(), words.is_some(), "{first} {second} {why:?}");
            assert!(why.unwrap_or_default().contains(words.unwrap_or_default()));
        }
        // The Dockerfile is in a directory that has an output in it.
        assert_eq!(taken("dir", None).refuses(&real(&at("dir/new")), None, Is::Replaced), None);
    }
}
