//! The temporary directory of one build, which goes with the build however that ends.
//!
//! Three things remove a workspace: dropping it; the [`Janitor`], a process that outlives a killed builder by a moment;
//! and [`sweep`] at the next start, should the janitor have been killed as well.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use rustix::rand::GetRandomFlags;
use rustix::time::Timespec;

use crate::rootfs::remove_tree;
use crate::sys;

use super::{lock, staged};

/// Workspaces are `build-` and sixteen hexadecimal digits; beside each lies its lock, with this ending.
const PREFIX: &str = "build-";
/// What takes the place of that where others have files as well.
const HIDDEN_PREFIX: &str = ".builder-extract-";
const LOCK: &str = ".lock";

/// A pipe takes messages of up to this many bytes in one piece (`PIPE_BUF`), so threads cannot mix theirs.
const LONGEST_MESSAGE: usize = 4096;

/// Why a workspace could not be made or used.
#[derive(Debug, thiserror::Error)]
pub enum WorkspaceError {
    /// A directory or lock in the store's temporary directory could not be made.
    #[error("cannot make the temporary directory `{path}`")]
    Create {
        /// Which.
        path: PathBuf,
        /// Why not.
        #[source]
        cause: io::Error,
    },
    /// The file system has no locks: nobody could tell a living workspace from a dead one.
    #[error("cannot lock `{path}`, to tell this process's temporary files from those of dead ones")]
    Lock {
        /// The lock file.
        path: PathBuf,
        /// Why not.
        #[source]
        cause: io::Error,
    },
    /// What dead builds left could not be looked at.
    #[error("cannot clear the temporary directory `{path}`")]
    Sweep {
        /// The store's temporary directory.
        path: PathBuf,
        /// Why not.
        #[source]
        cause: io::Error,
    },
    /// The process that cleans up could not be started.
    #[error("cannot start the process that removes temporary files after a crash")]
    Janitor(#[source] io::Error),
}

/// A directory below the store's temporary directory that belongs to one build. Everything in it is removed when the
/// value is dropped.
#[derive(Debug)]
pub struct Workspace {
    path: PathBuf,
    /// Held as long as the build lives; the kernel lets go of it however the process ends.
    _lock: OwnedFd,
    janitor: Option<Janitor>,
    next: AtomicU64,
}

impl Workspace {
    /// Makes a new workspace in `temporary`, which is made too if it is missing. `janitor`, if there is one, removes it
    /// should this process be killed.
    ///
    /// # Errors
    /// [`WorkspaceError::Create`] or [`WorkspaceError::Lock`].
    pub fn create(temporary: &Path, janitor: Option<&Janitor>) -> Result<Self, WorkspaceError> {
        let failed = |cause| WorkspaceError::Create { path: temporary.to_owned(), cause };
        std::fs::create_dir_all(temporary).map_err(failed)?;
        Self::create_as(PREFIX, temporary, janitor)
    }

    /// Makes a new workspace in `directory`, which is somebody's own, under a hidden name.
    ///
    /// # Errors
    /// [`WorkspaceError::Create`] or [`WorkspaceError::Lock`].
    pub fn create_hidden(directory: &Path, janitor: Option<&Janitor>) -> Result<Self, WorkspaceError> {
        Self::create_as(HIDDEN_PREFIX, directory, janitor)
    }

    fn create_as(prefix: &str, directory: &Path, janitor: Option<&Janitor>) -> Result<Self, WorkspaceError> {
        let failed = |path: &Path, cause| WorkspaceError::Create { path: path.to_owned(), cause };
        // The janitor's current directory is another.
        let directory = std::path::absolute(directory).map_err(|e| failed(directory, e))?;
        loop {
            let number = random().map_err(|e| failed(&directory, e))?;
            let path = directory.join(format!("{prefix}{number:016x}"));
            let Some(lock) = take_new_lock(&lock_of(&path))? else { continue };
            if let Some(janitor) = janitor {
                janitor.tell(b'+', &path);
            }
            let workspace = Self { path, _lock: lock, janitor: janitor.cloned(), next: AtomicU64::new(0) };
            rustix::fs::mkdir(&workspace.path, Mode::RWXU).map_err(|e| failed(&workspace.path, e.into()))?;
            inherit_nothing(&workspace.path).map_err(|e| failed(&workspace.path, e.into()))?;
            return Ok(workspace);
        }
    }

    /// Where it is, absolutely.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a new empty directory (mode 0700) in it, called `purpose` and a number.
    ///
    /// # Errors
    /// [`WorkspaceError::Create`].
    pub fn directory(&self, purpose: &str) -> Result<PathBuf, WorkspaceError> {
        let path = self.path.join(format!("{purpose}-{}", self.next.fetch_add(1, Ordering::Relaxed)));
        match rustix::fs::mkdir(&path, Mode::RWXU) {
            Ok(()) => Ok(path),
            Err(cause) => Err(WorkspaceError::Create { path, cause: cause.into() }),
        }
    }

    /// Removes a directory of it before its time. What cannot be removed now goes with the workspace.
    pub fn remove(&self, directory: &Path) {
        if directory.starts_with(&self.path) && directory != self.path {
            let _ = remove(directory);
        }
    }

    /// Makes a new empty directory like [`Workspace::directory`], for a shorter time.
    ///
    /// # Errors
    /// [`WorkspaceError::Create`].
    pub fn scratch(&self, purpose: &str) -> Result<Scratch, WorkspaceError> {
        Ok(Scratch { path: self.directory(purpose)? })
    }
}

/// A directory of a workspace that is removed with this value. What cannot be removed then goes with the workspace.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Where it is, absolutely.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes an empty directory (mode 0700) in it.
    ///
    /// # Errors
    /// [`WorkspaceError::Create`].
    pub fn directory(&self, name: &str) -> Result<PathBuf, WorkspaceError> {
        let path = self.path.join(name);
        match rustix::fs::mkdir(&path, Mode::RWXU) {
            Ok(()) => Ok(path),
            Err(cause) => Err(WorkspaceError::Create { path, cause: cause.into() }),
        }
    }

    /// Leaves it to the workspace; gives the path.
    pub fn keep(mut self) -> PathBuf {
        std::mem::take(&mut self.path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = remove(&self.path);
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        // What cannot be removed now is tried again by the janitor and by the next sweep: the lock file tells.
        if remove(&self.path).is_ok() {
            let _ = rustix::fs::unlink(lock_of(&self.path));
            if let Some(janitor) = &self.janitor {
                janitor.tell(b'-', &self.path);
            }
        }
    }
}

/// Takes away the access control lists that a new directory has from the one it is in (acl(5)): all trees are made below
/// it, and would get entries that no layer and no step has asked for.
fn inherit_nothing(directory: &Path) -> rustix::io::Result<()> {
    for key in [c"system.posix_acl_default", c"system.posix_acl_access"] {
        match rustix::fs::lremovexattr(directory, key) {
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn lock_of(workspace: &Path) -> PathBuf {
    let mut path = workspace.as_os_str().to_owned();
    path.push(LOCK);
    path.into()
}

fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Makes and locks a lock file; none if the name is taken or a sweep took the file before it was locked.
fn take_new_lock(path: &Path) -> Result<Option<OwnedFd>, WorkspaceError> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    let lock = match rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR) {
        Ok(lock) => lock,
        Err(Errno::EXIST) => return Ok(None),
        Err(cause) => return Err(WorkspaceError::Create { path: path.to_owned(), cause: cause.into() }),
    };
    match lock::take(&lock) {
        Ok(true) => {}
        Ok(false) => return Ok(None),
        Err(cause) => {
            let _ = rustix::fs::unlink(path);
            return Err(WorkspaceError::Lock { path: path.to_owned(), cause });
        }
    }
    let links = rustix::fs::fstat(&lock).map_or(0, |stat| stat.st_nlink);
    Ok((links > 0).then_some(lock))
}

/// Removes the workspace directory `path`, whatever a build left there.
fn remove(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match rustix::fs::open(parent, flags, Mode::empty()) {
        Ok(parent) => remove_tree(parent.as_fd(), name.as_bytes()),
        Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// How many workspaces in `temporary` are of builds that are no more.
///
/// # Errors
/// [`WorkspaceError::Sweep`] when the directory cannot be read.
pub fn dead(temporary: &Path) -> Result<usize, WorkspaceError> {
    let found = workspaces(temporary)?;
    Ok(found
        .iter()
        .filter(|path| matches!(take_over(path), Ok(lock) if lock.is_some() || path.exists()))
        .count())
}

/// Removes the workspaces in `temporary` whose builds are no more. Those of living builds are left alone; so is what
/// cannot be removed, for instance because it belongs to another user. Returns how many were removed.
///
/// # Errors
/// [`WorkspaceError::Sweep`] when the directory cannot be read.
pub fn sweep(temporary: &Path) -> Result<usize, WorkspaceError> {
    Ok(workspaces(temporary)?.iter().filter(|path| sweep_one(path)).count())
}

/// The workspaces in `temporary`, living or dead.
fn workspaces(temporary: &Path) -> Result<BTreeSet<PathBuf>, WorkspaceError> {
    let failed = |cause| WorkspaceError::Sweep { path: temporary.to_owned(), cause };
    let entries = match std::fs::read_dir(temporary) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut found = BTreeSet::new();
    for entry in entries {
        let name = entry.map_err(failed)?.file_name();
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else { continue };
        found.insert(temporary.join(name.strip_suffix(LOCK).unwrap_or(name)));
    }
    Ok(found)
}

/// The lock of the workspace `path` if its build is no more; none inside if there is no lock.
///
/// # Errors
/// When the build lives, or nobody can tell.
fn take_over(path: &Path) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // The lock is made before the directory and removed after it: a directory without one is dead.
    let lock = match rustix::fs::open(lock_of(path), flags, Mode::empty()) {
        Ok(lock) => lock,
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    if lock::take(&lock)? { Ok(Some(lock)) } else { Err(io::ErrorKind::WouldBlock.into()) }
}

/// [`sweep`] for workspaces that were made by [`Workspace::create_hidden`]. What cannot be read or removed stays.
pub fn sweep_hidden(directory: &Path) {
    let is_workspace = |name: &str| {
        let number = name.strip_prefix(HIDDEN_PREFIX).map(|rest| rest.strip_suffix(LOCK).unwrap_or(rest));
        number.is_some_and(|number| number.len() == 16 && number.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if let Some(name) = name.to_str().filter(|name| is_workspace(name)) {
            sweep_one(&directory.join(name.strip_suffix(LOCK).unwrap_or(name)));
        }
    }
}

/// Whether the workspace `path` was dead and is gone now.
fn sweep_one(path: &Path) -> bool {
    let Ok(lock) = take_over(path) else { return false };
    let existed = rustix::fs::statat(rustix::fs::CWD, path, AtFlags::SYMLINK_NOFOLLOW).is_ok();
    if remove(path).is_err() {
        return false;
    }
    if lock.is_some() {
        let _ = rustix::fs::unlink(lock_of(path));
    }
    existed
}

/// A process that removes the workspaces of this one when it is killed, even by SIGKILL. It waits at the end of a pipe
/// for this process to end; when that happens in good order there is nothing left to do for it.
///
/// It is not a child of this process, has its own session, ignores the signals of the terminal and holds no descriptor
/// but its pipes, so nobody who waits for this process or its output waits for the janitor.
#[derive(Debug, Clone)]
pub struct Janitor(Arc<Lifeline>);

#[derive(Debug)]
struct Lifeline {
    /// Where the janitor hears what exists. Taken when the janitor shall end.
    orders: Option<File>,
    /// Ends when the janitor has ended.
    ended: OwnedFd,
}

impl Janitor {
    /// Starts it. To be called before there is any other thread and before the process changes its mount namespace: the
    /// janitor stays in the one it was started in.
    ///
    /// # Errors
    /// [`WorkspaceError::Janitor`].
    pub fn start() -> Result<Self, WorkspaceError> {
        let pipe =
            || rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|e| WorkspaceError::Janitor(e.into()));
        let (orders, told) = pipe()?;
        let (ended, alive) = pipe()?;
        sys::fork_detached([orders, alive], |[orders, alive]| {
            sys::ignore_ending_signals();
            let _ = rustix::thread::set_name(c"builder-janitor");
            clean_up_after(File::from(orders));
            // The kernel closes it, at the very end.
            std::mem::forget(alive);
        })
        .map_err(WorkspaceError::Janitor)?;
        Ok(Self(Arc::new(Lifeline { orders: Some(told.into()), ended })))
    }

    /// A janitor that was killed cannot be told, nor one for whom the path is too long: the next sweep does its work.
    fn tell(&self, sign: u8, path: &Path) {
        let message = [&[sign], path.as_os_str().as_bytes(), &[0]].concat();
        if message.len() <= LONGEST_MESSAGE
            && let Some(mut orders) = self.0.orders.as_ref()
        {
            let _ = orders.write_all(&message);
        }
    }
}

impl Drop for Lifeline {
    /// Waits until the janitor has ended: after an orderly end of the builder no process is left.
    fn drop(&mut self) {
        self.orders = None;
        let mut fds = [PollFd::new(&self.ended, PollFlags::IN)];
        let _ = rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 2, tv_nsec: 0 }));
    }
}

/// The janitor's life: hears which workspaces exist until the builder is no more, then removes them.
fn clean_up_after(mut orders: File) {
    let mut heard = Vec::new();
    let mut existing: Vec<PathBuf> = Vec::new();
    let mut buffer = [0; LONGEST_MESSAGE];
    loop {
        match orders.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => heard.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        }
        while let Some(end) = heard.iter().position(|byte| *byte == 0) {
            let message: Vec<u8> = heard.drain(..=end).collect();
            let Some((sign, path)) = message[..end].split_first() else { continue };
            let path = Path::new(OsStr::from_bytes(path));
            match sign {
                b'+' => existing.push(path.to_owned()),
                _ => existing.retain(|known| known != path),
            }
        }
    }
    let temporary: BTreeSet<PathBuf> =
        existing.iter().filter_map(|path| path.parent()).map(Path::to_owned).collect();
    // After an orderly end the builder waits for this process.
    if temporary.is_empty() {
        return;
    }
    for path in existing {
        // Processes of the build may still be dying, and writing until then.
        for _ in 0..50 {
            if remove(&path).is_ok() {
                let _ = rustix::fs::unlink(lock_of(&path));
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    // Blobs and records that were being written. The locks that mark those of living processes go when ours has ended for good.
    for _ in 0..3 {
        for directory in &temporary {
            let _ = staged::sweep(directory);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};
    use std::time::Instant;

    use super::*;

    /// Names the temporary directory to the process that [`lives_until_killed`] becomes.
    const DIRECTORY: &str = "BUILDER_TEST_WORKSPACE_IN";

    #[test]
    fn a_workspace_and_all_in_it_go_when_dropped() {
        let temporary = tempfile::tempdir().unwrap();
        let workspace = Workspace::create(&temporary.path().join("tmp"), None).unwrap();
        let first = workspace.directory("layer").unwrap();
        let second = workspace.directory("layer").unwrap();
        assert_ne!(first, second);
        std::fs::write(first.join("file"), "x").unwrap();
        let (kept, gone) = (workspace.scratch("short").unwrap(), workspace.scratch("short").unwrap());
        let paths = [kept.path().to_owned(), gone.path().to_owned()];
        gone.directory("a").unwrap();
        let kept = kept.keep();
        drop(gone);
        assert_eq!(paths.map(|path| path.exists()), [true, false]);
        workspace.remove(&kept);
        assert!(!kept.exists());
        workspace.remove(workspace.path());
        workspace.remove(temporary.path());
        assert_eq!(std::fs::read_dir(temporary.path().join("tmp")).unwrap().count(), 2);
        drop(workspace);
        assert_eq!(std::fs::read_dir(temporary.path().join("tmp")).unwrap().count(), 0);
    }

    #[test]
    fn a_workspace_inherits_no_access_control_list() {
        let temporary = tempfile::tempdir().unwrap();
        let list = crate::store::testing::access_list(5);
        let set = rustix::fs::lsetxattr(
            temporary.path(),
            "system.posix_acl_default",
            &list,
            rustix::fs::XattrFlags::empty(),
        );
        if set.is_err() {
            eprintln!("skipped: this file system has no ACLs");
            return;
        }
        let workspace = Workspace::create(temporary.path(), None).unwrap();
        let file = workspace.directory("step").unwrap().join("file");
        std::fs::write(&file, "").unwrap();
        for path in [workspace.path(), &file] {
            let names = rustix::fs::llistxattr(path, &mut [0; 1024][..]).unwrap();
            assert_eq!(names, 0, "{}", path.display());
        }
    }

    #[test]
    fn a_sweep_takes_the_dead_and_leaves_the_living_and_the_strangers() {
        let temporary = tempfile::tempdir().unwrap();
        let alive = Workspace::create(temporary.path(), None).unwrap();
        for dead in ["build-0000000000000001", "build-0000000000000002"] {
            std::fs::create_dir_all(temporary.path().join(dead).join("a/b")).unwrap();
        }
        std::fs::write(temporary.path().join("build-0000000000000002.lock"), "").unwrap();
        std::fs::write(temporary.path().join("build-0000000000000003.lock"), "").unwrap();
        std::fs::write(temporary.path().join("other"), "").unwrap();
        assert_eq!(dead(temporary.path()).unwrap(), 3);
        assert_eq!(sweep(temporary.path()).unwrap(), 2);
        assert_eq!(dead(temporary.path()).unwrap(), 0);
        assert!(alive.path().is_dir() && temporary.path().join("other").exists());
        assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 3);
        assert_eq!(sweep(&temporary.path().join("missing")).unwrap(), 0);
    }

    #[test]
    fn hidden_workspaces_are_swept_and_nothing_that_looks_like_one() {
        let home = tempfile::tempdir().unwrap();
        let alive = Workspace::create_hidden(home.path(), None).unwrap();
        let others = [".builder-extract-1", ".builder-extract-000000000000000g", "build-0000000000000001"];
        for name in others.into_iter().chain([".builder-extract-0000000000000001"]) {
            std::fs::create_dir_all(home.path().join(name).join("a")).unwrap();
        }
        sweep_hidden(home.path());
        assert!(alive.path().is_dir() && others.iter().all(|name| home.path().join(name).is_dir()));
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 5);
        sweep_hidden(&home.path().join("missing"));
    }

    /// Not a test of its own: the process that the tests below kill. Does nothing unless it is told a directory.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "the way to tell a test that runs as a process of its own")]
    fn lives_until_killed() {
        let Some(directory) = std::env::var_os(DIRECTORY) else { return };
        let janitor = Janitor::start().unwrap();
        let workspace = Workspace::create(Path::new(&directory), Some(&janitor)).unwrap();
        let gone = Workspace::create(Path::new(&directory), Some(&janitor)).unwrap();
        drop(gone);
        std::fs::create_dir_all(workspace.path().join("a/b/c")).unwrap();
        let mut output = std::io::stdout();
        writeln!(output, "\nworkspace {}", workspace.path().display()).unwrap();
        output.flush().unwrap();
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
    }

    /// The process above in a process group of its own, the path of its workspace and the reader of its output.
    fn start(directory: &Path) -> (Child, PathBuf, impl BufRead) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "store::workspace::tests::lives_until_killed", "--nocapture"])
            .env(DIRECTORY, directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.starts_with("workspace ") {
            line.clear();
            assert_ne!(lines.read_line(&mut line).unwrap(), 0, "the process ended too early");
        }
        let path = PathBuf::from(line.trim_start_matches("workspace ").trim_end());
        assert!(path.join("a/b/c").is_dir());
        (child, path, lines)
    }

    fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
        let start = Instant::now();
        while !holds() {
            assert!(start.elapsed() < Duration::from_secs(2), "{what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The janitor of `child`: the process of that name that holds a pipe which `child` holds too.
    fn janitor_of(child: &Child) -> rustix::process::Pid {
        let mut found = Vec::new();
        // It takes its name when it gets to run.
        wait_until("there is no janitor", || {
            found = janitors_of(child);
            !found.is_empty()
        });
        assert_eq!(found.len(), 1);
        rustix::process::Pid::from_raw(found[0].cast_signed()).unwrap()
    }

    fn janitors_of(child: &Child) -> Vec<u32> {
        let pipes = |process: u32| -> Vec<PathBuf> {
            let Ok(fds) = std::fs::read_dir(format!("/proc/{process}/fd")) else { return Vec::new() };
            let links = fds.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
            links.filter(|link| link.to_string_lossy().starts_with("pipe:")).collect()
        };
        let ours = pipes(child.id());
        let processes = std::fs::read_dir("/proc").unwrap();
        let processes = processes.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
        let named = |process: &u32| {
            std::fs::read_to_string(format!("/proc/{process}/comm"))
                .is_ok_and(|name| name == "builder-janitor\n")
        };
        processes
            .filter(named)
            .filter(|process| pipes(*process).iter().any(|pipe| ours.contains(pipe)))
            .collect()
    }

    /// Gone, or at least only waiting for init to take note of it.
    fn ended(process: rustix::process::Pid) -> bool {
        let state =
            std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).unwrap_or_default();
        state.is_empty() || state.contains(") Z ")
    }

    #[test]
    fn the_janitor_removes_the_workspace_of_a_killed_builder() {
        let temporary = tempfile::tempdir().unwrap();
        let (mut child, path, mut lines) = start(temporary.path());
        let janitor = janitor_of(&child);
        for signal in
            [rustix::process::Signal::TERM, rustix::process::Signal::INT, rustix::process::Signal::HUP]
        {
            rustix::process::kill_process(janitor, signal).unwrap();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // The end of the output comes at once: the janitor does not hold it open.
        assert_eq!(lines.read_line(&mut String::new()).unwrap(), 0);
        wait_until("the workspace is still there", || !path.exists());
        wait_until("the lock is still there", || {
            std::fs::read_dir(temporary.path()).unwrap().next().is_none()
        });
        wait_until("the janitor is still there", || ended(janitor));
    }

    #[test]
    fn after_an_orderly_end_neither_workspace_nor_janitor_is_left() {
        let temporary = tempfile::tempdir().unwrap();
        let (mut child, path, _lines) = start(temporary.path());
        let janitor = janitor_of(&child);
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
        assert!(!path.exists());
        wait_until("the janitor is still there", || ended(janitor));
    }

    #[test]
    fn what_neither_builder_nor_janitor_could_remove_is_swept_at_the_next_start() {
        let temporary = tempfile::tempdir().unwrap();
        let (mut child, path, _lines) = start(temporary.path());
        let janitor = janitor_of(&child);
        assert_eq!(sweep(temporary.path()).unwrap(), 0);
        rustix::process::kill_process(janitor, rustix::process::Signal::KILL).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(path.exists());
        assert_eq!(sweep(temporary.path()).unwrap(), 1);
        assert!(!path.exists());
    }
}
