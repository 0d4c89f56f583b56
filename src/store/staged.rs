//! Files and directories that appear whole or not at all.
//!
//! They are made under a temporary name and renamed. Whoever makes one holds a lock on it, so that what a killed process
//! left can be told from what another one is still writing; no process ids, which differ between containers. Where outputs
//! go there may be no locks: then a temporary name that is there is somebody's, dead or alive, and another is taken.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use super::lock;

/// Behind every temporary name.
const SUFFIX: &str = ".builder";

/// How many names are tried.
const MOST: usize = 10_000;

/// Whether `name` is one of ours.
pub(super) fn is_staged(name: &OsStr) -> bool {
    name.as_encoded_bytes().ends_with(SUFFIX.as_bytes())
}

/// The first name in `dir` that nobody living has, with what `take` got for it.
fn claim(
    dir: &Path,
    prefix: &OsStr,
    take: impl Fn(&Path) -> io::Result<Option<File>>,
) -> io::Result<(PathBuf, File)> {
    for number in 0..MOST {
        let path = dir.join(name(prefix, number));
        if let Some(taken) = take(&path)? {
            return Ok((path, taken));
        }
    }
    Err(io::Error::new(io::ErrorKind::AlreadyExists, "too many temporary files or directories"))
}

/// A file that is being written.
#[derive(Debug)]
pub(super) struct StagedFile {
    file: File,
    path: PathBuf,
    published: bool,
}

impl StagedFile {
    /// A file that will become `target`.
    pub(super) fn beside(target: &Path) -> io::Result<Self> {
        let (dir, prefix) = place(target)?;
        Self::within(&dir, &prefix)
    }

    /// A file in `dir`, which must be on the file system of the target.
    pub(super) fn within(dir: &Path, prefix: &OsStr) -> io::Result<Self> {
        let (path, file) = claim(dir, prefix, claim_file)?;
        Ok(Self { file, path, published: false })
    }

    /// The file, for reading back.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Where it is meanwhile.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Takes away the right to write, from everybody.
    pub(super) fn protect(&self) -> io::Result<()> {
        self.file.set_permissions(fs::Permissions::from_mode(0o444))
    }

    /// Makes the file durable, then visible as `target`, in place of what is there.
    pub(super) fn publish(self, target: &Path) -> io::Result<()> {
        self.file.sync_all()?;
        self.publish_unsynced(target)?;
        sync_dir(parent(target))
    }

    /// Makes the file visible as `target`, in place of what is there; whether it is whole after the machine stopped is
    /// up to the file system.
    pub(super) fn publish_unsynced(mut self, target: &Path) -> io::Result<()> {
        fs::rename(&self.path, target)?;
        self.published = true;
        Ok(())
    }
}

impl Write for StagedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for StagedFile {
    fn drop(&mut self) {
        if !self.published {
            // Who drops it has an error to report already, and the next process collects it.
            drop(fs::remove_file(&self.path));
        }
    }
}

/// A directory that is being filled.
#[derive(Debug)]
pub(super) struct StagedDir {
    path: PathBuf,
    published: bool,
    _lock: File,
}

impl StagedDir {
    /// A directory that will become `target`, which must not exist.
    pub(super) fn beside(target: &Path) -> io::Result<Self> {
        let (dir, prefix) = place(target)?;
        Self::within(&dir, &prefix)
    }

    /// A directory in `dir`.
    pub(super) fn within(dir: &Path, prefix: &OsStr) -> io::Result<Self> {
        let (path, lock) = claim(dir, prefix, claim_dir)?;
        Ok(Self { path, published: false, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the directory visible as `target`.
    pub(super) fn publish(mut self, target: &Path) -> io::Result<()> {
        fs::rename(&self.path, target)?;
        self.published = true;
        sync_dir(parent(target))
    }
}

impl Drop for StagedDir {
    fn drop(&mut self) {
        if !self.published {
            drop(remove_content(&self.path));
            drop(fs::remove_dir(&self.path));
        }
    }
}

/// Removes the files that killed processes left in `dir`.
pub(super) fn sweep(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let path = dir.join(&name);
        if is_staged(&name) && take_over(&path, &file_options())?.is_some() {
            fs::remove_file(&path).or_else(absent)?;
        }
    }
    Ok(())
}

/// Makes the names in a directory durable. Some file systems cannot, and then it has to do without.
pub(super) fn sync_dir(path: &Path) -> io::Result<()> {
    match File::open(path)?.sync_all() {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        other => other,
    }
}

/// What is gone already need not be removed.
pub(super) fn absent(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

/// The directory in which `target` is.
pub(super) fn parent(target: &Path) -> &Path {
    target.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The directories on the way to an output. Those that were made for it go again, unless it is there in the end.
#[derive(Debug)]
pub(super) struct Parents {
    /// The deepest one first.
    made: Vec<PathBuf>,
}

impl Parents {
    /// Makes those that are missing on the way to `target`.
    pub(super) fn of(target: &Path) -> io::Result<Self> {
        let missing = |dir: &&Path| !dir.as_os_str().is_empty() && !dir.exists();
        let made = parent(target).ancestors().take_while(missing).map(Path::to_owned).collect();
        let parents = Self { made };
        fs::create_dir_all(parent(target))?;
        Ok(parents)
    }

    /// Leaves them there.
    pub(super) fn keep(mut self) {
        self.made.clear();
    }
}

impl Drop for Parents {
    fn drop(&mut self) {
        for dir in &self.made {
            // What others have put there meanwhile stays, and the directory with it.
            let _ = fs::remove_dir(dir);
        }
    }
}

fn place(target: &Path) -> io::Result<(PathBuf, OsString)> {
    let invalid = || io::Error::new(io::ErrorKind::InvalidInput, "not the name of a file");
    let mut prefix = OsString::from(".");
    prefix.push(target.file_name().ok_or_else(invalid)?);
    prefix.push(".");
    Ok((parent(target).to_owned(), prefix))
}

fn name(prefix: &OsStr, number: usize) -> OsString {
    let mut name = prefix.to_owned();
    name.push(format!("{number}{SUFFIX}"));
    name
}

fn file_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    options
}

fn dir_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_DIRECTORY);
    options
}

/// Makes `path`, in place of what nobody writes any more. Nothing where somebody does.
fn claim_file(path: &Path) -> io::Result<Option<File>> {
    if let Some(leftover) = take_over(path, &file_options())? {
        fs::remove_file(path).or_else(absent)?;
        drop(leftover);
    }
    match OpenOptions::new().read(true).write(true).create_new(true).open(path) {
        Ok(file) => Ok(made(path, file)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
        Err(error) => Err(error),
    }
}

fn claim_dir(path: &Path) -> io::Result<Option<File>> {
    match fs::create_dir(path) {
        Ok(()) => Ok(made(path, dir_options().open(path)?)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let leftover = take_over(path, &dir_options())?;
            if leftover.is_some() {
                remove_content(path)?;
            }
            Ok(leftover)
        }
        Err(error) => Err(error),
    }
}

/// Opens what a dead process of ours left. Nothing where its owner lives, or where it is not ours at all.
fn take_over(path: &Path, options: &OpenOptions) -> io::Result<Option<File>> {
    let file = match options.open(path) {
        Ok(file) => file,
        Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => return Err(error),
        Err(_) => return Ok(None),
    };
    let metadata = file.metadata()?;
    let single = metadata.is_dir() || (metadata.is_file() && metadata.nlink() == 1);
    let ours = single && metadata.uid() == rustix::process::geteuid().as_raw();
    Ok((ours && matches!(lock::take(&file), Ok(true)) && has_name(path, &file)).then_some(file))
}

/// Locks what this process has just made. Nothing where another has locked it in between: that takes it for a leftover.
fn made(path: &Path, file: File) -> Option<File> {
    let ours = match lock::take(&file) {
        Ok(taken) => taken && has_name(path, &file),
        Err(error) => lock::is_lacking(&error),
    };
    ours.then_some(file)
}

/// Whether `file` still has its name: its owner may just have published it.
fn has_name(path: &Path, file: &File) -> bool {
    let Ok((ours, there)) = file.metadata().and_then(|ours| Ok((ours, fs::symlink_metadata(path)?))) else {
        return false;
    };
    ours.ino() == there.ino() && ours.dev() == there.dev()
}

#[expect(clippy::disallowed_methods, reason = "a tree of our own making that is three levels deep")]
fn remove_content(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_not_there_before_it_is_published() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("x");
        let mut file = StagedFile::beside(&target).unwrap();
        file.write_all(b"whole").unwrap();
        assert_eq!(names(dir.path()), [".x.0.builder"]);
        let other = StagedFile::beside(&target).unwrap();
        assert_eq!(names(dir.path()), [".x.0.builder", ".x.1.builder"]);
        drop(other);
        file.publish(&target).unwrap();
        assert_eq!(names(dir.path()), ["x"]);
        assert_eq!(fs::read(&target).unwrap(), b"whole");
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "makes the traps")]
    fn leftovers_are_taken_over_and_what_is_not_ours_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("x");
        fs::write(dir.path().join(".x.0.builder"), "left over").unwrap();
        fs::write(dir.path().join("victim"), "precious").unwrap();
        std::os::unix::fs::symlink("victim", dir.path().join(".x.1.builder")).unwrap();
        fs::hard_link(dir.path().join("victim"), dir.path().join(".x.2.builder")).unwrap();
        let first = StagedFile::beside(&target).unwrap();
        let second = StagedFile::beside(&target).unwrap();
        assert!(first.path.ends_with(".x.0.builder") && second.path.ends_with(".x.3.builder"));
        assert_eq!(first.file().metadata().unwrap().len(), 0);
        assert_eq!(fs::read(dir.path().join("victim")).unwrap(), b"precious");
    }

    #[test]
    fn without_locks_outputs_are_written_and_what_others_may_write_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(".x.0.builder"), "somebody's").unwrap();
        fs::create_dir(dir.path().join(".d.0.builder")).unwrap();
        crate::store::testing::without_locks(|| {
            StagedFile::beside(&dir.path().join("x")).unwrap().publish(&dir.path().join("x")).unwrap();
            StagedDir::beside(&dir.path().join("d")).unwrap().publish(&dir.path().join("d")).unwrap();
            sweep(dir.path()).unwrap();
            assert_eq!(names(dir.path()), [".d.0.builder", ".x.0.builder", "d", "x"]);
        });
    }

    #[test]
    fn a_directory_is_cleared_of_leftovers_and_removed_unless_published() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("d");
        fs::create_dir_all(dir.path().join(".d.0.builder/a/b")).unwrap();
        let staged = StagedDir::beside(&target).unwrap();
        assert!(names(staged.path()).is_empty());
        drop(staged);
        assert!(names(dir.path()).is_empty());
        StagedDir::beside(&target).unwrap().publish(&target).unwrap();
        assert_eq!(names(dir.path()), ["d"]);
    }
}
