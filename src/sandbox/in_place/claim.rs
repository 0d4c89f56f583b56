//! The builder's own directory in the container's root, and that there is one builder at a time.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::{Errno, retry_on_intr};

use super::error::InPlaceError;
use super::exchange::Exchange;
use super::identity::now;
use super::journal::{Journal, Phase};
use super::living;
use super::moving::act;
use super::own_root::Repaired;
use crate::rootfs::remove::enter;
use crate::rootfs::visit::Names;
use crate::rootfs::{GuestPath, Rootfs, Timestamp, keeping_mtime, metadata_of, remove_tree};
use crate::sandbox::Survivors;

/// The builder's own directory, in the container's root: only a rename within one mount is a matter of a moment, so this
/// can be nowhere else. It is there while steps run in place, belongs to no image, and nothing but the builder may use it.
pub const PRIVATE_DIRECTORY: &str = ".builder-in-place";

/// Where the container's own files are while a step runs.
pub(super) const ASIDE: &str = "aside";
/// A file of the container on its way.
pub(super) const COPY: &str = "copy";
/// What a step left that belongs nowhere; soon removed.
pub(super) const LEFT: &str = "left";
/// What may be the container's, but has no place any more because a step has moved it; no build removes it.
pub(super) const KEPT: &str = "kept";
/// What of a stage is out of the way of something that a step is to find.
const FURNITURE: &str = "furniture";
/// Where it is tried whether steps can run.
pub(super) const TRIAL: &str = "trial";
/// What is moved into the root for that, and back at once.
pub(super) const TRIAL_IN_ROOT: &str = ".builder-in-place-trial";
/// Held by the builder, as long as it lives.
const LOCK: &str = "lock";
/// Held by what runs a step, which may outlive a killed builder by a moment.
const STEP: &str = "step";

/// How long whoever ends a dead builder's step may take: ten seconds for its processes, and the rest for putting the
/// container's files back. Who holds the lock longer is no builder's.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a lock may be held that nobody should have.
const MOMENT: Duration = Duration::from_secs(2);
/// How often it is looked whether a lock is free: the kernel cannot wait for one and for the time.
const PAUSE: Duration = Duration::from_millis(10);
/// How often it is tried to take a root that another one has.
const ATTEMPTS: usize = 100;

/// A directory that is known by its descriptor, for those who take a path.
#[derive(Debug)]
pub(super) struct Furniture(OwnedFd);

impl Furniture {
    /// A path by which this process comes to this very directory, whatever a step has put in its place.
    pub(super) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}

/// A container's root that this builder alone exchanges for those of images. What is left of the builder's own directory
/// goes when it is dropped: after all trees.
#[derive(Debug)]
pub struct Claim {
    place: PathBuf,
    root: Rootfs,
    /// The same, for reading.
    directory: OwnedFd,
    private: OwnedFd,
    /// None for whoever ends what a dead builder had begun.
    _lock: Option<OwnedFd>,
    repaired: Repaired,
    /// Since when what is made is an image's or a step's.
    began: Timestamp,
    /// But for these times, when files of the container were copied.
    copied: Mutex<Vec<(Timestamp, Timestamp)>>,
}

/// Undoes what the builder of a step that has just ended in the root `root` can undo no more, because it was killed; `step`
/// is what it had given to be held until then. Does nothing if another builder has come already, which waits for `step`. So
/// a container is its own again at once, and whoever else is in it need not wait for the next builder.
pub(in crate::sandbox) fn take_over(root: &Path, step: OwnedFd) {
    let taken = (|| {
        let place = root.join(PRIVATE_DIRECTORY);
        let (root, directory) = open_root(root)?;
        let private = enter(directory.as_fd(), PRIVATE_DIRECTORY.as_bytes())?;
        // Let go at once: another builder is to wait for `step`, not to give up.
        drop(lock_file(private.as_fd(), LOCK, FlockOperation::NonBlockingLockExclusive)?);
        Ok::<_, io::Error>(Claim::begin(place, root, directory, private, None))
    })();
    // There is nobody to be told; what is left undone is up to the next builder.
    let _ = taken.map(|mut claim| claim.repair());
    drop(step);
}

/// Says to the next builder that has the root `root` what of a step lives there, whose builder was killed.
pub(in crate::sandbox) fn leave_to_next(root: &Path, survivors: &Survivors) {
    // There is nobody to be told.
    let _ = open_root(root).and_then(|(_, directory)| {
        let private = enter(directory.as_fd(), PRIVATE_DIRECTORY.as_bytes())?;
        living::write(private.as_fd(), survivors)
    });
}

/// The directory `root`, as a tree and to be read.
pub(super) fn open_root(root: &Path) -> io::Result<(Rootfs, OwnedFd)> {
    let tree = Rootfs::open(root)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(&tree, ".", flags, Mode::empty())?;
    Ok((tree, directory))
}

impl Claim {
    /// The trees of stages.
    pub(super) const TREES: &str = "trees";

    /// Takes the container's root, `/` in life. Repairs what a killed builder left there. Calls `waiting` if it has to wait
    /// until a killed builder's step has ended.
    ///
    /// # Errors
    /// [`InPlaceError::Busy`] if another builder has it, [`InPlaceError::Held`] or [`InPlaceError::Alive`] if that step does
    /// not end, and others where the root cannot be written to.
    pub fn take(root: &Path, waiting: &dyn Fn()) -> Result<Self, InPlaceError> {
        let mut claim = Self::take_as_it_is(root, waiting)?;
        claim.repair()?;
        Ok(claim)
    }

    /// The same, but what was left is only found by [`Claim::repair`].
    pub(super) fn take_as_it_is(root: &Path, waiting: &dyn Fn()) -> Result<Self, InPlaceError> {
        let place = root.join(PRIVATE_DIRECTORY);
        // A builder that ends takes the directory away, perhaps just now.
        for _ in 0..ATTEMPTS {
            let opened = open_root(root);
            let (tree, directory) =
                opened.map_err(|source| InPlaceError::Root { path: root.to_owned(), source })?;
            let private = keeping_mtime(&directory, || made(directory.as_fd(), PRIVATE_DIRECTORY));
            let private = missing_is_none(private.map(Some)).map_err(failed("make", &place))?;
            let Some(private) = private else { continue };
            let lock = match lock_file(private.as_fd(), LOCK, FlockOperation::NonBlockingLockExclusive) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // Who only tries whether steps can run here has it for moments.
                    std::thread::sleep(PAUSE);
                    continue;
                }
                result => missing_is_none(result).map_err(failed("lock", &place.join(LOCK)))?,
            };
            // Whoever still holds this is about to end what a killed builder had begun.
            let step = match lock_step(private.as_fd(), PATIENCE, waiting) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(InPlaceError::Held { lock: place.join(STEP) });
                }
                result => missing_is_none(result).map_err(failed("lock", &place.join(STEP)))?,
            };
            if let (Some(lock), Some(_)) = (lock, step) {
                let living = living::read(private.as_fd()).map_err(failed("read a file in", &place))?;
                if let Some(survivors) = living {
                    return Err(InPlaceError::Alive(survivors));
                }
                return Ok(Self::begin(place, tree, directory, private, Some(lock)));
            }
        }
        Err(InPlaceError::Busy { lock: place.join(LOCK) })
    }

    /// One from now on.
    fn begin(
        place: PathBuf,
        root: Rootfs,
        directory: OwnedFd,
        private: OwnedFd,
        lock: Option<OwnedFd>,
    ) -> Self {
        let (repaired, began, copied) = (Repaired::Nothing, now(), Mutex::default());
        Self { place, root, directory, private, _lock: lock, repaired, began, copied }
    }

    /// The directory for all trees of stages (to be the workspace's): those elsewhere cannot be exchanged. Nothing is in it
    /// at first.
    #[must_use]
    pub fn trees(&self) -> PathBuf {
        self.place.join(Self::TREES)
    }

    /// The same, open.
    pub(super) fn open_trees(&self) -> io::Result<OwnedFd> {
        Ok(enter(self.private(), Self::TREES.as_bytes())?)
    }

    /// What was found when it was taken.
    pub(super) fn repaired(&self) -> Repaired {
        self.repaired
    }

    /// The container's root.
    pub(super) fn root(&self) -> &Rootfs {
        &self.root
    }

    /// The container's root, open for reading.
    pub(super) fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// The builder's own directory.
    pub(super) fn private(&self) -> BorrowedFd<'_> {
        self.private.as_fd()
    }

    /// Its path in the container's root.
    pub(super) fn private_path() -> GuestPath {
        GuestPath::root().child(PRIVATE_DIRECTORY.as_bytes())
    }

    /// A descriptor to be held by whatever runs a step, until the last process of it has ended.
    pub(super) fn begin_step(&self) -> Result<OwnedFd, InPlaceError> {
        let path = self.place.join(STEP);
        // Nobody has had it since it was free, but, for a moment, what another thread was about to execute; and whoever a
        // step has left.
        match lock_step(self.private(), MOMENT, &|| {}) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(InPlaceError::Held { lock: path }),
            result => result
                .and_then(|lock| lock.ok_or_else(|| io::ErrorKind::NotFound.into()))
                .map_err(failed("lock", &path)),
        }
    }

    /// Notes that files of the container were copied from `began` until `ended`.
    pub(super) fn copied(&self, began: Timestamp, ended: Timestamp) {
        let mut copied = self.copied.lock().unwrap_or_else(PoisonError::into_inner);
        match copied.last_mut() {
            // One after the other.
            Some((_, last)) if *last == began => *last = ended,
            _ => copied.push((began, ended)),
        }
    }

    /// Whether what was made at `time` has come with an image or a step of this builder.
    pub(super) fn is_since(&self, time: Timestamp) -> bool {
        let copied = self.copied.lock().unwrap_or_else(PoisonError::into_inner);
        time >= self.began && !copied.iter().any(|(began, ended)| (*began..=*ended).contains(&time))
    }

    /// Moves the entry `name` of `directory` to where no build removes anything.
    pub(super) fn keep(&self, directory: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
        let kept = made(self.private(), KEPT)?;
        for number in 1.. {
            let number = number.to_string();
            match act(|| {
                rustix::fs::renameat_with(directory, name, &kept, number.as_str(), RenameFlags::NOREPLACE)
            }) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                result => return result,
            }
        }
        Ok(())
    }

    /// Where the entry `name` of the builder's own directory is.
    pub(super) fn path_of(&self, name: &str) -> PathBuf {
        self.place.join(name)
    }

    /// Makes a directory in the builder's own.
    pub(super) fn make(&self, name: &'static str) -> Result<OwnedFd, InPlaceError> {
        made(self.private(), name).map_err(failed("make", &self.place.join(name)))
    }

    /// A directory for what is out of a step's way.
    pub(super) fn furniture(&self) -> Result<Furniture, InPlaceError> {
        self.make(FURNITURE).map(Furniture)
    }

    /// An error of reading or writing the journal.
    pub(super) fn journal_failed(&self) -> impl FnOnce(io::Error) -> InPlaceError {
        let path = self.place.clone();
        move |source| InPlaceError::Private { action: "write the journal in", path, source }
    }

    /// Says to the next builder what of a step lives.
    pub(super) fn leave_to_next(&self, survivors: &Survivors) {
        // That something lives is the failure to report.
        let _ = living::write(self.private(), survivors);
    }

    /// Takes away what no builder has put into its own directory.
    fn clear(&self, strangers: Strangers) -> io::Result<()> {
        for name in Names::in_directory(self.private())?.iter().filter(|name| !is_known(name)) {
            match strangers {
                Strangers::Nobodys => remove_tree(self.private(), name)?,
                Strangers::Perhaps => self.keep(self.private(), name)?,
            }
        }
        Ok(())
    }

    /// Repairs what a killed builder has left.
    pub(super) fn repair(&mut self) -> Result<(), InPlaceError> {
        let holds_nothing = holds_nothing(self.private());
        let journal = match Journal::read(self.private.as_fd()) {
            // Whatever it is, there is nothing to be told of.
            Err(_) if holds_nothing => None,
            journal => {
                journal.map_err(|source| InPlaceError::Journal { path: self.place.clone(), source })?
            }
        };
        let mut strangers = Strangers::Nobodys;
        match journal {
            Some((journal, entries)) => {
                let phase = journal.phase();
                let exchange = Exchange::found(self, journal, entries)?;
                let was_away = phase == Phase::Exchanged || exchange.holds_something();
                exchange.end()?;
                if was_away {
                    (self.repaired, strangers) = (Repaired::Root, Strangers::Perhaps);
                }
            }
            None if holds_nothing || is_empty(self.private(), ASIDE) => {
                Journal::remove_all(self.private()).map_err(self.journal_failed())?;
            }
            None => return Err(InPlaceError::Lost { path: self.place.join(ASIDE) }),
        }
        // Of one that was killed in that moment.
        let root = self.directory();
        keeping_mtime(root, || {
            let _ = rustix::fs::unlinkat(root, TRIAL_IN_ROOT, AtFlags::REMOVEDIR);
            Ok(())
        })
        .map_err(failed("tidy up beside", &self.place))?;
        for name in [Self::TREES, LEFT, FURNITURE, COPY, TRIAL] {
            remove_tree(self.private(), name.as_bytes()).map_err(failed("remove", &self.place.join(name)))?;
        }
        self.clear(strangers).map_err(failed("tidy up", &self.place))?;
        living::remove(self.private()).map_err(failed("tidy up", &self.place))
    }
}

/// Whose that is what no builder has put into its own directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Strangers {
    /// A step's or an image's.
    Nobodys,
    /// Perhaps the container's: a step had it, and nobody has looked since.
    Perhaps,
}

/// What is made in the builder's own directory, but for journals.
const KNOWN: [&str; 10] =
    [ASIDE, COPY, LEFT, KEPT, FURNITURE, TRIAL, LOCK, STEP, living::LIVING, Claim::TREES];

fn is_known(name: &[u8]) -> bool {
    KNOWN.iter().any(|known| known.as_bytes() == name) || Journal::has(name)
}

/// Whether nothing of the container can be in the builder's own directory `private`.
pub(super) fn holds_nothing(private: BorrowedFd<'_>) -> bool {
    is_empty(private, ASIDE) && Names::in_directory(private).is_ok_and(|names| names.iter().all(is_known))
}

/// Whether the directory `name` is empty, or missing.
pub(super) fn is_empty(parent: BorrowedFd<'_>, name: &str) -> bool {
    match enter(parent, name.as_bytes()) {
        Ok(directory) => Names::in_directory(directory.as_fd()).is_ok_and(|names| names.iter().len() == 0),
        Err(error) => error == Errno::NOENT,
    }
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> InPlaceError {
    let path = path.to_owned();
    move |source| InPlaceError::Private { action, path, source }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // As far as nothing is left in them. The lock file last: who waits for it finds that it is gone, and begins anew.
        for name in [ASIDE, LEFT, FURNITURE, Self::TREES] {
            let _ = rustix::fs::unlinkat(&self.private, name, AtFlags::REMOVEDIR);
        }
        // They are no directories unless a step has made them.
        let is_lock = |name: &[u8]| [STEP, LOCK].iter().any(|lock| lock.as_bytes() == name);
        if Names::in_directory(self.private()).is_ok_and(|names| names.iter().all(is_lock)) {
            for name in [STEP, LOCK] {
                let _ = remove_tree(self.private(), name.as_bytes());
            }
            let root = self.directory();
            let _ = keeping_mtime(root, || {
                Ok(rustix::fs::unlinkat(root, PRIVATE_DIRECTORY, AtFlags::REMOVEDIR)?)
            });
        }
    }
}

/// The directory `name`, which is made if it is missing; no link and no mount.
fn made(parent: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    match rustix::fs::mkdirat(parent, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(enter(parent, name.as_bytes())?)
}

/// None also where the directory was removed.
fn missing_is_none<T>(result: io::Result<Option<T>>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result,
    }
}

/// Locks what says that a step is not over; calls `waiting` if it has to wait for that, at most for `patience`.
fn lock_step(
    directory: BorrowedFd<'_>,
    patience: Duration,
    waiting: &dyn Fn(),
) -> io::Result<Option<OwnedFd>> {
    let began = Instant::now();
    let mut is_told = false;
    loop {
        match lock_file(directory, STEP, FlockOperation::NonBlockingLockExclusive) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && began.elapsed() < patience => {
                if !std::mem::replace(&mut is_told, true) {
                    waiting();
                }
                std::thread::sleep(PAUSE);
            }
            result => return result,
        }
    }
}

/// Makes and locks a file; none if it was removed before it was locked.
fn lock_file(directory: BorrowedFd<'_>, name: &str, how: FlockOperation) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let open = || rustix::fs::openat(directory, name, flags, Mode::RUSR | Mode::WUSR);
    let file = match open() {
        // A step has put it there: nobody holds it.
        Err(Errno::ISDIR | Errno::LOOP) => {
            remove_tree(directory, name.as_bytes())?;
            open()?
        }
        file => file?,
    };
    retry_on_intr(|| rustix::fs::flock(&file, how))?;
    Ok((metadata_of(&file)?.links > 0).then_some(file))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_is_put_out_of_the_way_goes_where_no_step_has_put_a_link() {
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let claim = Claim::take(root.path(), &|| {}).unwrap();
        let furniture = claim.furniture().unwrap();
        let place = claim.path_of(FURNITURE);
        fs::rename(&place, claim.path_of("moved")).unwrap();
        rustix::fs::symlink(outside.path(), &place).unwrap();
        fs::write(furniture.path().join("file"), "").unwrap();
        assert!(claim.path_of("moved/file").exists());
        // Nor does the next go there.
        assert!(claim.furniture().is_err());
    }

    #[test]
    fn a_builder_that_ends_just_now_stops_none_that_begins() {
        let root = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        drop(Claim::take(root.path(), &|| {}).unwrap());
                    }
                });
            }
        });
        assert!(!root.path().join(PRIVATE_DIRECTORY).exists());
    }
}
