//! Going through all directories of a tree, with several threads.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use rustix::fs::{Dir, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::GuestPath;
use super::guest_path::MAX_PATH;

/// Does `work` for `first` and for everything that `work` adds to the list it is given, with one thread for each of
/// `workers`, which are returned. What was added last comes first: of a tree, what waits are the directories beside the
/// way down, not a whole level.
///
/// # Errors
/// The first failure of `work`, after which nothing more is begun.
pub(crate) fn visit<T: Send, W: Send, E: Send>(
    first: T,
    workers: Vec<W>,
    work: impl Fn(&mut W, T, &mut Vec<T>) -> Result<(), E> + Sync,
) -> Result<Vec<W>, E> {
    let queue = Queue {
        state: Mutex::new(State { waiting: vec![first], working: 0, failed: None }),
        news: Condvar::new(),
    };
    let run = |mut worker: W| {
        let mut found = Vec::new();
        while let Some(item) = queue.next() {
            let turn = Turn(&queue);
            let result = work(&mut worker, item, &mut found);
            queue.add(&mut found, result.err());
            drop(turn);
        }
        worker
    };
    let mut workers = workers.into_iter();
    let mine = workers.next();
    let done = std::thread::scope(|scope| {
        // Where there may be no more threads, those that there are do it all.
        let start = |worker| std::thread::Builder::new().spawn_scoped(scope, || run(worker)).ok();
        let others: Vec<_> = workers.filter_map(start).collect();
        let mut done: Vec<W> = mine.map(run).into_iter().collect();
        for other in others {
            match other.join() {
                Ok(worker) => done.push(worker),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        done
    });
    let state = queue.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    state.failed.map_or(Ok(done), Err)
}

/// How many threads are worth having for going through a tree.
pub(crate) fn jobs() -> usize {
    // More than a few wait for each other in the kernel.
    std::thread::available_parallelism().map_or(1, |cores| cores.get().min(16))
}

struct Queue<T, E> {
    state: Mutex<State<T, E>>,
    news: Condvar,
}

struct State<T, E> {
    waiting: Vec<T>,
    /// How many threads are at work, and may add something.
    working: usize,
    failed: Option<E>,
}

impl<T, E> Queue<T, E> {
    fn lock(&self) -> MutexGuard<'_, State<T, E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for something to do; none when there will be no more.
    fn next(&self) -> Option<T> {
        let mut state = self.lock();
        loop {
            if state.failed.is_some() {
                return None;
            }
            if let Some(item) = state.waiting.pop() {
                state.working += 1;
                return Some(item);
            }
            if state.working == 0 {
                return None;
            }
            state = self.news.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn add(&self, found: &mut Vec<T>, failed: Option<E>) {
        if found.is_empty() && failed.is_none() {
            return;
        }
        let mut state = self.lock();
        state.waiting.append(found);
        state.failed = state.failed.take().or(failed);
        drop(state);
        self.news.notify_all();
    }
}

/// The time a thread is at work, also if that ends in a panic: the others must not wait for it.
struct Turn<'a, T, E>(&'a Queue<T, E>);

impl<T, E> Drop for Turn<'_, T, E> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.working -= 1;
        let last = state.working == 0;
        drop(state);
        if last {
            self.0.news.notify_all();
        }
    }
}

/// Opens `path` of `tree`, no component of which may be a link or another file system. It may be longer than system
/// calls take.
///
/// # Errors
/// Those of openat2(2).
pub(crate) fn open_exact(tree: BorrowedFd<'_>, path: &GuestPath, flags: OFlags) -> io::Result<OwnedFd> {
    let mut rest = if path.is_root() { b"." } else { path.relative() };
    let mut above: Option<OwnedFd> = None;
    while rest.len() >= MAX_PATH {
        let Some(end) = rest[..MAX_PATH].iter().rposition(|byte| *byte == b'/') else { break };
        let from = above.as_ref().map_or(tree, AsFd::as_fd);
        above = Some(open_below(from, &rest[..end], OFlags::PATH | OFlags::DIRECTORY)?);
        rest = &rest[end + 1..];
    }
    open_below(above.as_ref().map_or(tree, AsFd::as_fd), rest, flags)
}

fn open_below(directory: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    loop {
        match rustix::fs::openat2(directory, path, flags, Mode::empty(), resolve) {
            Err(Errno::INTR | Errno::AGAIN) => {}
            result => return Ok(result?),
        }
    }
}

/// Names of entries of a directory, in two allocations however many there are.
#[derive(Debug, Default)]
pub(crate) struct Names {
    bytes: Vec<u8>,
    /// Beginning and end of each name.
    spans: Vec<(u32, u32)>,
}

impl Names {
    /// Those in `directory` but for `.` and `..`, sorted.
    ///
    /// # Errors
    /// Those of getdents64(2), and `EFBIG` for more than 4 GiB of names.
    pub(crate) fn in_directory(directory: BorrowedFd<'_>) -> io::Result<Self> {
        let mut names = Self::default();
        for entry in Dir::read_from(directory)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(name)?;
            }
        }
        let bytes = &names.bytes;
        names.spans.sort_unstable_by(|a, b| span(bytes, *a).cmp(span(bytes, *b)));
        Ok(names)
    }

    /// Adds a name, behind all others.
    ///
    /// # Errors
    /// `EFBIG` for more than 4 GiB of names.
    pub(crate) fn push(&mut self, name: &[u8]) -> io::Result<()> {
        let end = |bytes: &Vec<u8>| u32::try_from(bytes.len()).map_err(|_| io::Error::from(Errno::FBIG));
        let start = end(&self.bytes)?;
        self.bytes.extend_from_slice(name);
        self.spans.push((start, end(&self.bytes)?));
        Ok(())
    }

    /// One after the other.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.spans.iter().map(|place| span(&self.bytes, *place))
    }

    /// The same in the other order, for who takes one after the other away; [`Names::contain`] finds nothing then.
    pub(crate) fn reversed(mut self) -> Self {
        self.spans.reverse();
        self
    }

    /// Takes the last one away.
    pub(crate) fn pop(&mut self) -> Option<Vec<u8>> {
        self.spans.pop().map(|place| span(&self.bytes, place).to_vec())
    }

    /// Bytes of all of them together.
    pub(crate) fn total(&self) -> usize {
        self.bytes.len()
    }

    /// Whether `name` is one of them, if they are sorted.
    pub(crate) fn contain(&self, name: &[u8]) -> bool {
        self.spans.binary_search_by(|place| span(&self.bytes, *place).cmp(name)).is_ok()
    }
}

fn span(bytes: &[u8], (start, end): (u32, u32)) -> &[u8] {
    &bytes[start as usize..end as usize]
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn everything_that_is_added_is_done_once() {
        for jobs in [1, 2, 7] {
            let workers = vec![Vec::new(); jobs];
            let done: Result<_, ()> = visit(1_u32, workers, |seen: &mut Vec<u32>, item, found| {
                seen.push(item);
                found.extend([item * 2, item * 2 + 1].into_iter().filter(|next| *next < 5_000));
                Ok(())
            });
            let mut seen: Vec<u32> = done.unwrap().concat();
            seen.sort_unstable();
            assert_eq!(seen, (1..5_000).collect::<Vec<_>>(), "{jobs}");
        }
    }

    #[test]
    fn a_failure_ends_it_and_a_panic_leaves_nobody_waiting() {
        let begun = AtomicUsize::new(0);
        let result = visit(0_u32, vec![(); 3], |(), item, found| {
            begun.fetch_add(1, Ordering::Relaxed);
            found.extend([item + 1, item + 1]);
            if item == 10 { Err("ten") } else { Ok(()) }
        });
        assert_eq!(result.unwrap_err(), "ten");
        assert!(begun.into_inner() < 2_000);
        let panic = std::panic::catch_unwind(|| {
            visit(0_u32, vec![(); 3], |(), item, found| {
                found.extend([item + 1]);
                assert!(item < 10, "ten");
                Ok::<_, ()>(())
            })
        });
        assert!(panic.is_err());
    }

    #[test]
    fn names_are_sorted_bytes() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["b", "a\n", "a", "\u{1b}"] {
            std::fs::write(directory.path().join(name), "").unwrap();
        }
        let opened = std::fs::File::open(directory.path()).unwrap();
        let names = Names::in_directory(opened.as_fd()).unwrap();
        assert_eq!(names.iter().collect::<Vec<_>>(), [&b"\x1b"[..], b"a", b"a\n", b"b"]);
        assert!(names.contain(b"a\n") && !names.contain(b"c"));
    }

    #[test]
    fn an_exact_path_has_no_links() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(directory.path().join("a/b")).unwrap();
        rustix::fs::symlink("a", directory.path().join("l")).unwrap();
        let tree = std::fs::File::open(directory.path()).unwrap();
        let open = |path: &[u8]| open_exact(tree.as_fd(), &GuestPath::clamp(path).unwrap(), OFlags::RDONLY);
        assert!(open(b"/").is_ok() && open(b"/a/b").is_ok());
        assert!(open(b"/l").is_err() && open(b"/l/b").is_err());
    }

    #[test]
    fn a_path_may_be_longer_than_system_calls_take() {
        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let tree = std::fs::File::open(directory.path()).unwrap();
        let mut current = tree.try_clone().unwrap();
        let mut path = GuestPath::root();
        let name = "x".repeat(200);
        for _ in 0..70 {
            rustix::fs::mkdirat(&current, name.as_str(), Mode::RWXU).unwrap();
            path = path.child(name.as_bytes());
            current = open_exact(tree.as_fd(), &path, OFlags::RDONLY).unwrap().into();
        }
        rustix::fs::symlinkat(".", &current, "l").unwrap();
        assert!(open_exact(tree.as_fd(), &path.child(b"l"), OFlags::RDONLY).is_err());
        super::super::remove_tree(tree.as_fd(), name.as_bytes()).unwrap();
    }
}
