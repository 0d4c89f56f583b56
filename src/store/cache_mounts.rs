//! Directories that outlive builds and are in no image: what `RUN --mount=type=cache` shows.
//!
//! ```text
//! cache-mounts/IDS/HEX/N/lock   held by whoever uses the copy N of the cache HEX; its time is when it was last taken
//!                       /root   its files; not there if nobody has used it, or somebody was killed who had moved it away
//!                       /new    one that is being made
//! ```

use std::fs::DirBuilder;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;

use super::lock::{self, Sharing};
use super::unpacked::short;
use super::workspace::inherit_nothing;
use super::{Store, StoreError};
use crate::image::digest::Digest;
use crate::rootfs::{Caller, IdMap, Rootfs, remove_tree};

/// The directory of the store.
const DIRECTORY: &str = "cache-mounts";

/// The caches of a store that processes with the same user and group ids share.
#[derive(Debug)]
pub struct CacheMounts {
    directory: PathBuf,
}

/// How a cache is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Together with others who use it so, after those who are alone with it.
    Shared,
    /// Alone, after all others.
    Alone,
    /// Alone and at once: where the cache is in use, the first copy of it that is not.
    Free,
}

/// A cache that is in use as long as this value, or the descriptor of its lock, is there.
#[derive(Debug)]
pub struct CacheMount {
    root: Rootfs,
    copy: OwnedFd,
    lock: Arc<OwnedFd>,
}

impl CacheMount {
    /// The name of the files in [`CacheMount::home`].
    pub const NAME: &str = "root";

    /// Its files.
    #[must_use]
    pub fn root(&self) -> &Rootfs {
        &self.root
    }

    /// The directory that they are in. Who moves them away must be alone with the cache.
    #[must_use]
    pub fn home(&self) -> &OwnedFd {
        &self.copy
    }

    /// Who has this open uses the cache.
    #[must_use]
    pub fn lock(&self) -> &Arc<OwnedFd> {
        &self.lock
    }
}

impl CacheMounts {
    /// Those of processes with the ids `ids`: to others the same files belong to others.
    #[must_use]
    pub fn new(store: &Store, ids: &IdMap) -> Self {
        let name = short(format!("{}{}", ids.name(), Caller::current().name()));
        Self { directory: store.root().join(DIRECTORY).join(name) }
    }

    /// Takes the cache `id`. Where that takes waiting, `wait` is called again and again, until it breaks: then nothing is
    /// taken. A cache that is not there is made: `fill` gets an empty directory of root's with mode 0755.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be written to, and those of `fill`: then there is no cache.
    pub fn take<E: From<StoreError>>(
        &self,
        id: &Digest,
        turn: Turn,
        wait: &mut dyn FnMut() -> ControlFlow<()>,
        fill: &mut dyn FnMut(&Rootfs) -> Result<(), E>,
    ) -> Result<Option<CacheMount>, E> {
        let all = self.directory.join(id.hex());
        for number in 0_u32.. {
            let copy = Copy::open(&all.join(number.to_string()))?;
            loop {
                if let Some(taken) = copy.try_take(turn, fill)? {
                    return Ok(Some(taken));
                }
                if turn == Turn::Free {
                    break;
                }
                if wait().is_break() {
                    return Ok(None);
                }
            }
        }
        Ok(None)
    }
}

/// One copy of a cache.
struct Copy {
    path: PathBuf,
    directory: OwnedFd,
    lock: OwnedFd,
}

impl Copy {
    fn open(path: &Path) -> Result<Self, StoreError> {
        let made = DirBuilder::new().mode(0o700).recursive(true).create(path);
        made.map_err(StoreError::io("make", path))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(path, flags, Mode::empty());
        let directory = directory.map_err(|error| StoreError::io("open", path)(error.into()))?;
        let file = path.join("lock");
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
        let lock = rustix::fs::openat(&directory, "lock", flags, Mode::RUSR | Mode::WUSR);
        let lock = lock.map_err(|error| StoreError::io("open", &file)(error.into()))?;
        Ok(Self { path: path.to_owned(), directory, lock })
    }

    /// The copy, if it can be had now.
    fn try_take<E: From<StoreError>>(
        &self,
        turn: Turn,
        fill: &mut dyn FnMut(&Rootfs) -> Result<(), E>,
    ) -> Result<Option<CacheMount>, E> {
        let sharing = match turn {
            Turn::Shared => Sharing::Shared,
            Turn::Alone | Turn::Free => Sharing::Alone,
        };
        if !self.lock(sharing)? {
            return Ok(None);
        }
        if let Some(found) = self.find()? {
            return Ok(Some(self.taken(found)?));
        }
        // One at a time makes it.
        if sharing == Sharing::Shared && !self.lock(Sharing::Alone)? {
            self.unlock()?;
            return Ok(None);
        }
        if self.find()?.is_none() {
            self.make(fill)?;
        }
        // Between one lock and the other somebody else may have moved the files away: then once more.
        if sharing == Sharing::Shared && !self.lock(sharing)? {
            self.unlock()?;
            return Ok(None);
        }
        match self.find()? {
            Some(found) => Ok(Some(self.taken(found)?)),
            None => {
                self.unlock()?;
                Ok(None)
            }
        }
    }

    fn taken(&self, root: OwnedFd) -> Result<CacheMount, StoreError> {
        // Whoever makes room in the store wants to know when it was last used. That this cannot be written harms nobody.
        let now = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
        let _ = rustix::fs::futimens(&self.lock, &Timestamps { last_access: now, last_modification: now });
        let lock = self.lock.try_clone().map_err(StoreError::io("open", &self.path))?;
        let copy = self.directory.try_clone().map_err(StoreError::io("open", &self.path))?;
        Ok(CacheMount { root: Rootfs::from_fd(root), copy, lock: Arc::new(lock) })
    }

    fn lock(&self, sharing: Sharing) -> Result<bool, StoreError> {
        lock::try_take(&self.lock, sharing).map_err(StoreError::io("lock", &self.path))
    }

    fn unlock(&self) -> Result<(), StoreError> {
        lock::release(&self.lock).map_err(StoreError::io("unlock", &self.path))
    }

    fn find(&self) -> Result<Option<OwnedFd>, StoreError> {
        match open_at(&self.directory, CacheMount::NAME) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(StoreError::io("open", &self.path.join(CacheMount::NAME))(error.into())),
        }
    }

    /// Makes the files; others see nothing of them until they are complete.
    fn make<E: From<StoreError>>(&self, fill: &mut dyn FnMut(&Rootfs) -> Result<(), E>) -> Result<(), E> {
        const NEW: &str = "new";
        let path = self.path.join(NEW);
        let make = || {
            // What somebody left who was killed here.
            match remove_tree(self.directory.as_fd(), NEW.as_bytes()) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            inherit_nothing(&self.path)?;
            rustix::fs::mkdirat(&self.directory, NEW, Mode::RWXU)?;
            let new = open_at(&self.directory, NEW)?;
            // Whatever the umask was.
            let mode = Mode::from_raw_mode(0o755);
            rustix::fs::chmodat(&self.directory, NEW, mode, AtFlags::empty())?;
            Ok(new)
        };
        let new = make().map_err(StoreError::io("make", &path))?;
        if let Err(error) = fill(&Rootfs::from_fd(new)) {
            let _ = remove_tree(self.directory.as_fd(), NEW.as_bytes());
            return Err(error);
        }
        rustix::fs::renameat(&self.directory, NEW, &self.directory, CacheMount::NAME)
            .map_err(|error| StoreError::io("rename", &path)(error.into()))?;
        Ok(())
    }
}

fn open_at(directory: &OwnedFd, name: &str) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(directory, name, flags, Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Ground {
        _directory: tempfile::TempDir,
        store: Store,
        caches: CacheMounts,
    }

    fn ground() -> Ground {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        let caches = CacheMounts::new(&store, &IdMap::of_this_process().unwrap());
        Ground { _directory: directory, store, caches }
    }

    fn path_of(ground: &Ground, id: &str, copy: u32) -> PathBuf {
        ground.caches.directory.join(Digest::of(id.as_bytes()).hex()).join(copy.to_string())
    }

    /// The cache `id` if it can be had without waiting.
    fn take(ground: &Ground, id: &str, turn: Turn) -> Option<CacheMount> {
        let id = Digest::of(id.as_bytes());
        let mut wait = || ControlFlow::Break(());
        ground.caches.take(&id, turn, &mut wait, &mut |_| Ok::<_, StoreError>(())).unwrap()
    }

    /// The number of the copy, by its directory.
    fn copy_of(ground: &Ground, id: &str, taken: &CacheMount) -> u32 {
        let taken = rustix::fs::fstat(taken.home()).unwrap().st_ino;
        (0..9)
            .find(|copy| rustix::fs::stat(path_of(ground, id, *copy)).is_ok_and(|stat| stat.st_ino == taken))
            .unwrap()
    }

    #[test]
    fn a_cache_is_shared_or_one_s_own_or_another_copy() {
        use Turn::{Alone, Free, Shared};
        let ground = ground();
        for (held, wanted, copy) in [
            (Shared, Shared, Some(0)),
            (Shared, Alone, None),
            (Shared, Free, Some(1)),
            (Alone, Shared, None),
            (Alone, Alone, None),
            (Alone, Free, Some(1)),
            (Free, Free, Some(1)),
            (Free, Alone, None),
        ] {
            let holder = take(&ground, "x", held).unwrap();
            assert_eq!(copy_of(&ground, "x", &holder), 0);
            let taken = take(&ground, "x", wanted);
            assert_eq!(taken.map(|taken| copy_of(&ground, "x", &taken)), copy, "{held:?} {wanted:?}");
            assert!(take(&ground, "y", wanted).is_some(), "another cache");
        }
        assert!(take(&ground, "x", Alone).is_some(), "all have ended");
        assert_eq!(std::fs::read_dir(ground.store.root().join(DIRECTORY)).unwrap().count(), 1);
    }

    #[test]
    fn the_time_of_the_lock_is_when_the_cache_was_last_taken() {
        let ground = ground();
        let lock = path_of(&ground, "x", 0).join("lock");
        drop(take(&ground, "x", Turn::Shared).unwrap());
        let old = std::time::SystemTime::UNIX_EPOCH;
        std::fs::File::options().write(true).open(&lock).unwrap().set_modified(old).unwrap();
        drop(take(&ground, "y", Turn::Shared).unwrap());
        assert_eq!(std::fs::metadata(&lock).unwrap().modified().unwrap(), old, "another cache");
        drop(take(&ground, "x", Turn::Shared).unwrap());
        assert!(std::fs::metadata(&lock).unwrap().modified().unwrap() > old);
    }

    #[test]
    fn who_passes_the_lock_on_holds_the_cache() {
        let ground = ground();
        let lock = Arc::clone(take(&ground, "x", Turn::Alone).unwrap().lock());
        assert!(take(&ground, "x", Turn::Alone).is_none());
        drop(lock);
        assert!(take(&ground, "x", Turn::Alone).is_some());
    }

    #[test]
    fn it_is_filled_once_and_whole_or_not_at_all() {
        let ground = ground();
        let id = Digest::of(b"x");
        let fill = |content: &'static str, result: Result<(), ()>| {
            let mut wait = || panic!("nobody has it");
            let mut filled = false;
            let mut fill = |root: &Rootfs| {
                filled = true;
                let path = crate::rootfs::GuestPath::clamp(b"/f").unwrap();
                let flags = OFlags::CREATE | OFlags::WRONLY;
                let file = root.open_file(&path, flags, 0o644).unwrap();
                rustix::io::write(&file, content.as_bytes()).unwrap();
                result.map_err(|()| StoreError::Record(PathBuf::new()))
            };
            let taken = ground.caches.take(&id, Turn::Shared, &mut wait, &mut fill);
            (taken.is_ok(), filled)
        };
        let copy = path_of(&ground, "x", 0);
        assert_eq!(fill("first", Err(())), (false, true));
        assert!(!copy.join("root").exists() && !copy.join("new").exists());
        // Somebody was killed there.
        std::fs::create_dir_all(copy.join("new/half")).unwrap();
        assert_eq!(fill("second", Ok(())), (true, true));
        assert_eq!(fill("third", Ok(())), (true, false));
        assert_eq!(std::fs::read_to_string(copy.join("root/f")).unwrap(), "second");
        assert!(!copy.join("root/half").exists() && !copy.join("new").exists());
        // Somebody was killed who had moved it away.
        remove_tree(std::fs::File::open(&copy).unwrap().as_fd(), b"root").unwrap();
        assert_eq!(fill("fourth", Ok(())), (true, true));
        let mode =
            std::os::unix::fs::PermissionsExt::mode(&copy.join("root").metadata().unwrap().permissions());
        assert_eq!(mode & 0o7777, 0o755);
    }

    #[test]
    fn many_may_make_the_same_at_once() {
        let ground = ground();
        let id = Digest::of(b"x");
        let made = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for turn in [Turn::Shared, Turn::Alone].repeat(8) {
                let (caches, made, id) = (&ground.caches, &made, &id);
                scope.spawn(move || {
                    let mut wait = || {
                        std::thread::yield_now();
                        ControlFlow::Continue(())
                    };
                    let mut fill = |_: &Rootfs| {
                        made.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        Ok::<_, StoreError>(())
                    };
                    caches.take(id, turn, &mut wait, &mut fill).unwrap().unwrap();
                });
            }
        });
        assert_eq!(made.into_inner(), 1);
    }
}
