//! One walk through a tree that compares it with its index and brings that up to date.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::OFlags;

use super::fingerprint::{Fingerprint, Place, Seen};
use super::{Directory, Index, IndexError, Record};
use crate::layer::changes::{Collector, RootFacts, check_name, child_of, is_recordable, looks_the_same};
use crate::rootfs::visit::{Names, open_exact, visit};
use crate::rootfs::{FileKind, GuestPath, Metadata, Rootfs, Timestamp, metadata_at, set_times_at};

/// When an entry is believed to be unchanged without looking into it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// When statx(2) says the same as before, and the entry last changed before this time. Whatever changes an entry sets
    /// its `ctime` to the time it is done at, which nobody can choose; but a second change within one tick of the clock
    /// would leave no trace.
    UnchangedSince(Timestamp),
    /// When it looks the same: for a copy that was just made.
    Looks,
    /// Never.
    Nothing,
}

/// What came out of the walk.
#[derive(Debug, Default)]
pub struct Refreshed {
    /// What is other than before.
    pub changes: Collector,
    /// How many entries were looked at.
    pub visited: u64,
    /// How many files were read.
    pub opened: u64,
}

pub(super) fn build(root: &Rootfs, seen: &Seen, jobs: usize) -> Result<Index, IndexError> {
    Ok(run(Index::default(), root, Trust::Nothing, Changes::NotWanted, seen, jobs)?.0)
}

pub(super) fn follow(index: Index, root: &Rootfs, jobs: usize) -> Result<Index, IndexError> {
    Ok(run(index, root, Trust::Looks, Changes::NotWanted, &Seen::default(), jobs)?.0)
}

pub(super) fn refresh(
    index: Index,
    root: &Rootfs,
    trust: Trust,
    jobs: usize,
) -> Result<(Index, Refreshed), IndexError> {
    run(index, root, trust, Changes::Wanted, &Seen::default(), jobs)
}

/// Whether anybody wants to know what changed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Changes {
    Wanted,
    NotWanted,
}

/// What all threads share.
struct Walk<'a> {
    root: &'a Rootfs,
    trust: Trust,
    report: Changes,
    seen: &'a Seen,
    known: Mutex<Known>,
    /// Fingerprints of files with several names, each of which is read once.
    linked: Mutex<BTreeMap<u64, Fingerprint>>,
}

/// The directories of the index. Each is taken out while it is compared, and put back as it is now: there are never two
/// whole indexes.
struct Known {
    directories: Vec<Option<Box<Directory>>>,
    free: Vec<u32>,
}

/// What one thread has for itself.
struct Worker {
    changes: Collector,
    visited: u64,
    opened: u64,
    newest: Timestamp,
    buffer: Vec<u8>,
}

impl Worker {
    fn new() -> Self {
        Self {
            changes: Collector::default(),
            visited: 0,
            opened: 0,
            newest: Timestamp::default(),
            buffer: vec![0; 1 << 17],
        }
    }
}

/// A directory to go through.
struct Next {
    path: GuestPath,
    number: u32,
}

fn run(
    index: Index,
    root: &Rootfs,
    trust: Trust,
    report: Changes,
    seen: &Seen,
    jobs: usize,
) -> Result<(Index, Refreshed), IndexError> {
    let Index { root: old_root, mut directories, free, newest: _ } = index;
    if directories.is_empty() {
        directories.push(None);
    }
    let known = Mutex::new(Known { directories, free });
    let walk = Walk { root, trust, report, seen, known, linked: Mutex::default() };
    let mut first = Worker::new();
    let new_root = walk.root(&old_root, &mut first)?;
    let workers = std::iter::once(first).chain((1..jobs).map(|_| Worker::new())).collect();
    let begin = Next { path: GuestPath::root(), number: 0 };
    let workers = visit(begin, workers, |worker, next, found| walk.directory(worker, next, found))?;
    let Known { directories, free } = walk.known.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut index = Index { root: new_root, directories, free, newest: Timestamp::default() };
    let mut refreshed = Refreshed::default();
    for worker in workers {
        refreshed.changes.absorb(worker.changes);
        refreshed.visited += worker.visited;
        refreshed.opened += worker.opened;
        index.newest = index.newest.max(worker.newest);
    }
    Ok((index, refreshed))
}

fn at(path: &GuestPath, name: &[u8]) -> impl FnOnce(io::Error) -> IndexError {
    let path = if name == b"." { path.clone() } else { path.child(name) };
    move |cause| IndexError::Read { path, cause }
}

/// A directory with what is known of it, and what is found.
struct Visited<'a> {
    path: &'a GuestPath,
    directory: &'a OwnedFd,
    /// Directories in it: their names, and the position of the record. Those that are new get their numbers together.
    below: Vec<(GuestPath, usize)>,
    names: Vec<u8>,
    records: Vec<Record>,
}

impl Walk<'_> {
    fn root(&self, old: &Record, worker: &mut Worker) -> Result<Record, IndexError> {
        let path = GuestPath::root();
        let metadata = metadata_at(self.root.as_fd(), b".").map_err(at(&path, b"."))?;
        let metadata = self.root.reveal(&path, metadata);
        let directory = self.root.as_fd();
        let place = Place { tree: self.root, parent: &path, directory, name: b".", metadata: &metadata };
        let fingerprint =
            place.fingerprint(None, &mut worker.buffer, &mut worker.opened).map_err(at(&path, b"."))?;
        let new = Record::new(&metadata, fingerprint);
        let facts = |of: &Record| RootFacts::new(&of.metadata(), of.fingerprint);
        if self.report == Changes::NotWanted {
            return Ok(new);
        }
        if facts(&new) != facts(old) {
            worker.changes.put(path);
            return Ok(new);
        }
        // The layer leaves the root out. Later steps see it as those do who unpack the layers.
        let mtime = old.metadata().mtime;
        if mtime == metadata.mtime {
            return Ok(new);
        }
        set_times_at(self.root.as_fd(), b".", mtime).map_err(at(&path, b"."))?;
        Ok(Record::new(&Metadata { mtime, ..metadata }, fingerprint))
    }

    fn directory(&self, worker: &mut Worker, next: Next, found: &mut Vec<Next>) -> Result<(), IndexError> {
        let Next { path, number } = next;
        let directory = open_exact(self.root.as_fd(), &path, OFlags::RDONLY | OFlags::DIRECTORY)
            .map_err(at(&path, b"."))?;
        let names = Names::in_directory(directory.as_fd()).map_err(at(&path, b"."))?;
        let old = self.known().directories[number as usize].take().unwrap_or_default();
        let mut before = old.entries().peekable();
        let mut visited = Visited {
            path: &path,
            directory: &directory,
            below: Vec::new(),
            names: Vec::with_capacity(names.total()),
            records: Vec::with_capacity(names.iter().len()),
        };
        for name in names.iter() {
            while let Some((gone, record)) = before.next_if(|(known, _)| *known < name) {
                self.gone(worker, &path, gone, record)?;
            }
            let record = before.next_if(|(known, _)| *known == name).map(|(_, record)| record);
            self.entry(worker, &mut visited, name, record)?;
        }
        for (gone, record) in before {
            self.gone(worker, &path, gone, record)?;
        }
        let Visited { below, names, mut records, .. } = visited;
        let mut known = self.known();
        for (path, position) in below {
            let record = &mut records[position];
            if record.directory == 0 {
                record.directory = known.new_number();
            }
            found.push(Next { path, number: record.directory });
        }
        let directory = Directory { names: names.into_boxed_slice(), records: records.into_boxed_slice() };
        known.directories[number as usize] = Some(Box::new(directory));
        Ok(())
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An entry that was there before.
    fn gone(
        &self,
        worker: &mut Worker,
        path: &GuestPath,
        name: &[u8],
        record: &Record,
    ) -> Result<(), IndexError> {
        if self.report == Changes::Wanted {
            worker.changes.remove(child_of(path, name)?);
        }
        self.forget(record);
        Ok(())
    }

    /// Forgets all that is below an entry that is no directory any more.
    fn forget(&self, record: &Record) {
        if record.kind() == FileKind::Directory {
            self.known().forget(record.directory);
        }
    }

    fn entry(
        &self,
        worker: &mut Worker,
        visited: &mut Visited<'_>,
        name: &[u8],
        before: Option<&Record>,
    ) -> Result<(), IndexError> {
        worker.visited += 1;
        let directory = visited.directory.as_fd();
        let metadata = metadata_at(directory, name).map_err(at(visited.path, name))?;
        let metadata = self.root.reveal_in(visited.path, name, metadata);
        if !is_recordable(&metadata) {
            return before.map_or(Ok(()), |record| self.gone(worker, visited.path, name, record));
        }
        let place = Place { tree: self.root, parent: visited.path, directory, name, metadata: &metadata };
        let found = self.compare(worker, &place, before).map_err(at(visited.path, name))?;
        let is_directory = metadata.kind == FileKind::Directory;
        let mut record = Record::new(&metadata, found.fingerprint);
        match before {
            Some(before) if is_directory && before.kind() == FileKind::Directory => {
                record.directory = before.directory;
            }
            Some(before) => self.forget(before),
            None => {}
        }
        if self.report == Changes::Wanted && found.verdict != Verdict::Untouched {
            let path = child_of(visited.path, name)?;
            let unchanged = found.verdict == Verdict::Same;
            if !is_directory || !unchanged {
                check_name(&path)?;
            }
            if !is_directory && metadata.links > 1 {
                let before = before.filter(|_| unchanged).map(|before| before.inode);
                worker.changes.linked(metadata.inode, path, before);
            } else if !unchanged {
                worker.changes.put(path);
            }
        }
        worker.newest = worker.newest.max(metadata.ctime);
        if is_directory {
            visited.below.push((child_of(visited.path, name)?, visited.records.len()));
        }
        visited.names.extend_from_slice(name);
        // Names that did not fit were refused when they were listed.
        record.name_end = visited.names.len() as u32;
        visited.records.push(record);
        Ok(())
    }

    fn compare(&self, worker: &mut Worker, place: &Place<'_>, before: Option<&Record>) -> io::Result<Found> {
        let metadata = place.metadata;
        if let Some(before) = before {
            let trusted = match self.trust {
                Trust::UnchangedSince(time) => before.matches(metadata) && before.ctime() < time,
                Trust::Looks => looks_the_same(metadata, &before.metadata()),
                Trust::Nothing => false,
            };
            if trusted {
                return Ok(Found { fingerprint: before.fingerprint, verdict: Verdict::Untouched });
            }
        }
        let fingerprint = self.fingerprint(worker, place)?;
        let same = |before: &Record| {
            before.fingerprint == fingerprint && looks_the_same(metadata, &before.metadata())
        };
        let verdict = if before.is_some_and(same) { Verdict::Same } else { Verdict::Changed };
        Ok(Found { fingerprint, verdict })
    }

    fn fingerprint(&self, worker: &mut Worker, place: &Place<'_>) -> io::Result<Fingerprint> {
        let Metadata { kind, links, inode, .. } = *place.metadata;
        let several = kind == FileKind::File && links > 1;
        let linked = || self.linked.lock().unwrap_or_else(PoisonError::into_inner);
        if several && let Some(known) = linked().get(&inode) {
            return Ok(*known);
        }
        let seen = self.seen.file(inode).filter(|_| kind == FileKind::File);
        let is_seen = seen.is_some();
        let fingerprint = place.fingerprint(seen, &mut worker.buffer, &mut worker.opened)?;
        if several && !is_seen {
            linked().insert(inode, fingerprint);
        }
        Ok(fingerprint)
    }
}

/// What comes out of looking at an entry.
struct Found {
    fingerprint: Fingerprint,
    verdict: Verdict,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// Nobody has touched it.
    Untouched,
    /// It may have been touched, but is what it was.
    Same,
    /// It is new, or other than it was.
    Changed,
}

impl Known {
    fn new_number(&mut self) -> u32 {
        if let Some(number) = self.free.pop() {
            return number;
        }
        self.directories.push(None);
        // More directories than this no file system has.
        (self.directories.len() - 1) as u32
    }

    /// Forgets a directory and all below it.
    fn forget(&mut self, number: u32) {
        let mut pending = vec![number];
        while let Some(number) = pending.pop() {
            if let Some(directory) = self.directories[number as usize].take() {
                let below = directory.records.iter().filter(|record| record.kind() == FileKind::Directory);
                pending.extend(below.map(|record| record.directory));
            }
            self.free.push(number);
        }
    }
}
