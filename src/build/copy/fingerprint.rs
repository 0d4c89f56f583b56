//! What COPY would take, as a hash: equal ones give equal copies, but for times.
//!
//! Counted are names, kinds, modes and content of files, targets of links, device numbers, which names are one file, and
//! the extended attributes that are copied; of a build context neither owners, which are not copied, nor the modes of
//! directories, as BuildKit has it: those depend on the umask of whoever checked the sources out. Times never count.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, Read as _};
use std::num::NonZeroUsize;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Scope;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::entry::{Place, travels};
use super::filter::Filter;
use super::walk::{Role, Visitor, walk};
use super::{CopyError, OwnerPolicy, Parents, Selected, SourceTree, select, tried};
use crate::build::clock::Clock;
use crate::context::IgnoreRules;
use crate::image::digest::{Algorithm, Digest, Digester};
use crate::limit::Limit;
use crate::rootfs::{FileId, FileKind, GuestPath, Metadata, Timestamp, Xattrs, metadata_of, xattrs_of};

/// A file that changed less than this many seconds before it was looked at may change once more without getting another
/// time: the clocks of file systems tick at intervals of some milliseconds, of a few of them seconds.
const RECENT: i64 = 2;
/// The most threads that read files.
const MOST_READERS: usize = 8;
/// What one thread gets at a time is complete with so many open files. Handing over each by itself takes longer than
/// reading it, if it is small.
const BATCH_FILES: usize = 16;
/// Or with so many bytes in files, or of targets of links and the like.
const BATCH_BYTES: u64 = 1 << 20;
/// Or with so many entries of any kind.
const BATCH_ENTRIES: usize = 256;
/// Batches that wait for a thread to read them, at most; with [`BATCH_FILES`] and [`MOST_READERS`] this bounds the open files.
const MOST_QUEUED: usize = 2;
/// Batches that wait for one in front of them, at most.
const MOST_WAITING: usize = 16;
/// Attributes of more bytes count by their hash: what waits must stay small.
const MOST_ATTRIBUTES: usize = 256;
/// How many bytes are read at a time.
const CHUNK: usize = 1 << 17;

/// What some sources stood for at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::build) struct Fingerprint {
    /// The hash of everything that decides what a copy of them is like.
    pub(in crate::build) content: Digest,
    /// The hash of what tells that nothing was written to them since, without reading them.
    witness: Digest,
    /// Of files that changed later than this, the witness has the content as well.
    recent: Timestamp,
}

/// What is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Depth {
    /// Everything.
    Content,
    /// Only what tells that files are the same as before.
    Witness,
}

/// How sources are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::build) enum Names {
    /// As COPY has them: with wildcards; files may keep the names they are found by.
    Patterns,
    /// As COPY with `--parents` has them: with wildcards; everything keeps its path.
    Whole,
    /// As mounts have them: as they are. What is found is seen as it is, under another name.
    Literal,
}

/// The sources of an instruction, as they are to be found in a tree.
#[derive(Clone, Copy)]
pub(in crate::build) struct Sources<'a> {
    /// Paths and patterns as written, in order.
    pub(in crate::build) written: &'a [&'a [u8]],
    /// What these are.
    pub(in crate::build) names: Names,
    /// What of those that are directories is left out.
    pub(in crate::build) exclude: Option<&'a IgnoreRules>,
    /// Where they are.
    pub(in crate::build) from: &'a SourceTree<'a>,
    /// The most bytes of all files, holes included, if they are to become a layer.
    pub(in crate::build) most: Option<Limit>,
    /// Says whether to stop; asked often, from several threads.
    pub(in crate::build) stopped: &'a (dyn Fn() -> bool + Sync),
}

impl Sources<'_> {
    /// Looks at everything that a copy would take.
    ///
    /// # Errors
    /// [`CopyError`], as the copy would have it.
    pub(in crate::build) fn fingerprint(&self) -> Result<Fingerprint, CopyError> {
        let now = Clock::Machine.now();
        let recent = Timestamp { seconds: now.seconds - RECENT, ..now };
        let (content, witness) = self.look(Depth::Content, recent)?;
        Ok(Fingerprint { content, witness, recent })
    }

    /// Whether what was `before` still holds, so that whatever was copied meanwhile is what it says. That the content is the
    /// same again is not enough: it may have been another in between.
    ///
    /// # Errors
    /// [`CopyError`].
    pub(in crate::build) fn still_are(&self, before: &Fingerprint) -> Result<bool, CopyError> {
        let (_, witness) = self.look(Depth::Witness, before.recent)?;
        Ok(witness == before.witness)
    }

    fn look(&self, depth: Depth, recent: Timestamp) -> Result<(Digest, Digest), CopyError> {
        let mut selected = Vec::new();
        for written in self.written {
            match self.names {
                Names::Patterns => select::select(self.from, written, Parents::Dropped, &mut selected)?,
                Names::Whole => select::select(self.from, written, Parents::Kept, &mut selected)?,
                Names::Literal => selected.push(select::literal(self.from, written)?),
            }
        }
        std::thread::scope(|scope| {
            let mut look = Look::new(self, depth, recent, scope);
            for one in &selected {
                look.selected(one)?;
            }
            look.finish()
        })
    }
}

/// What is hashed of an entry besides its name and kind.
#[derive(Default)]
struct Facts {
    content: Vec<u8>,
    witness: Vec<u8>,
}

/// What is known of an entry.
enum Known {
    All(Facts),
    /// That it is a file, which is still to be read.
    File(File, GuestPath),
}

/// Entries that follow one another.
#[derive(Default)]
struct Batch {
    /// What both hashes have of each, and the rest.
    entries: Vec<(Vec<u8>, Known)>,
    files: usize,
    /// Of the files, which are to be read, and of all else, which is in memory.
    bytes: u64,
}

/// What a batch adds to both hashes.
type Read = Result<Facts, CopyError>;

/// A batch for another thread.
struct Job {
    batch: Batch,
    result: SyncSender<Read>,
}

struct Look<'scope, 'env> {
    sources: &'env Sources<'env>,
    depth: Depth,
    recent: Timestamp,
    scope: &'scope Scope<'scope, 'env>,
    jobs: SyncSender<Job>,
    queue: Arc<Mutex<Receiver<Job>>>,
    readers: usize,
    most_readers: usize,
    batch: Batch,
    waiting: VecDeque<Receiver<Read>>,
    content: Digester,
    witness: Digester,
    /// The size of all files so far.
    bytes: u64,
    /// The position of the first name of each file with several; of the tree that is being walked.
    links: BTreeMap<FileId, u64>,
    position: u64,
}

impl<'scope, 'env> Look<'scope, 'env> {
    fn new(
        sources: &'env Sources<'env>,
        depth: Depth,
        recent: Timestamp,
        scope: &'scope Scope<'scope, 'env>,
    ) -> Self {
        let (jobs, queue) = sync_channel(MOST_QUEUED);
        let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        Self {
            sources,
            depth,
            recent,
            scope,
            jobs,
            queue: Arc::new(Mutex::new(queue)),
            readers: 0,
            most_readers: processors.min(MOST_READERS),
            batch: Batch::default(),
            waiting: VecDeque::new(),
            content: Digester::new(Algorithm::Sha256),
            witness: Digester::new(Algorithm::Sha256),
            bytes: 0,
            links: BTreeMap::new(),
            position: 0,
        }
    }

    fn selected(&mut self, selected: &Selected<'_>) -> Result<(), CopyError> {
        let Selected::Tree { name, path, metadata, only } = selected else { return Ok(()) };
        // Of a directory only the content is copied, whatever its name; a file may get the name that it was found by.
        let head = head(b'>', if metadata.kind == FileKind::Directory { b"" } else { name });
        // A mount shows the directory itself as well.
        let seen = self.sources.names == Names::Literal && self.sources.from.owner == OwnerPolicy::Keep;
        let content = if seen { attributes(metadata, &Xattrs::new(), OwnerPolicy::Keep) } else { Vec::new() };
        self.add(head, Facts { content, witness: text(path.as_bytes()) })?;
        if metadata.kind == FileKind::Directory {
            self.links.clear();
            let filter = Filter::new(self.sources.from, path, self.sources.exclude, only.as_deref());
            return walk(self.sources.from, &filter, path, self);
        }
        let (directory, name) = self.sources.from.root.parent(path).map_err(CopyError::Source)?;
        self.entry(&Place { directory: &directory, name: &name, path }, b"", metadata)
    }

    /// Adds an entry that is no directory; `called` is its name as far as that counts.
    fn entry(&mut self, place: &Place<'_>, called: &[u8], metadata: &Metadata) -> Result<(), CopyError> {
        let (tag, more) = match metadata.kind {
            FileKind::File => return self.file_entry(place, called, metadata),
            FileKind::Directory => (b'd', Vec::new()),
            FileKind::Symlink => {
                let target = rustix::fs::readlinkat(place.directory, place.name, Vec::new());
                (b'l', text(tried(target, "read link", place.path)?.as_bytes()))
            }
            FileKind::Fifo => (b'p', Vec::new()),
            FileKind::CharDevice => (b'c', metadata.rdev.to_le_bytes().to_vec()),
            FileKind::BlockDevice => (b'b', metadata.rdev.to_le_bytes().to_vec()),
            FileKind::Socket => (b's', Vec::new()),
        };
        let xattrs = place.xattrs(self.sources.from.root);
        let mut facts = self.facts(metadata, &xattrs);
        facts.content.extend_from_slice(&more);
        facts.witness.extend_from_slice(&more);
        self.add(head(tag, called), facts)
    }

    fn file_entry(&mut self, place: &Place<'_>, called: &[u8], metadata: &Metadata) -> Result<(), CopyError> {
        self.bytes = self.bytes.saturating_add(metadata.size);
        if let Some(limit) = self.sources.most.filter(|limit| limit.is_exceeded_by(self.bytes)) {
            return Err(CopyError::TooLarge { path: place.path.clone(), limit });
        }
        let head = head(b'f', called);
        if self.depth == Depth::Witness && metadata.ctime < self.recent {
            return self.add(head, Facts { content: Vec::new(), witness: witness(metadata) });
        }
        let changed = || CopyError::Changed { path: place.path.clone() };
        // By now it may be something else: a FIFO must not make us wait, a link must not lead elsewhere.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(place.directory, place.name, flags, Mode::empty()) {
            Err(Errno::LOOP | Errno::NOENT | Errno::NXIO | Errno::NODEV) => return Err(changed()),
            result => File::from(tried(result, "open", place.path)?),
        };
        self.batch.files += 1;
        self.batch.bytes = self.batch.bytes.saturating_add(metadata.size);
        self.batch.entries.push((head, Known::File(file, place.path.clone())));
        self.send_full_batch()
    }

    /// What counts of an entry besides its name and kind.
    fn facts(&self, metadata: &Metadata, xattrs: &Xattrs) -> Facts {
        Facts { content: attributes(metadata, xattrs, self.sources.from.owner), witness: witness(metadata) }
    }

    fn add(&mut self, head: Vec<u8>, facts: Facts) -> Result<(), CopyError> {
        if (self.sources.stopped)() {
            return Err(interrupted(&GuestPath::root()));
        }
        let bytes = head.len() + facts.content.len() + facts.witness.len();
        self.batch.bytes = self.batch.bytes.saturating_add(bytes as u64);
        self.batch.entries.push((head, Known::All(facts)));
        self.send_full_batch()
    }

    fn send_full_batch(&mut self) -> Result<(), CopyError> {
        let Batch { entries, files, bytes } = &self.batch;
        if *files < BATCH_FILES && *bytes < BATCH_BYTES && entries.len() < BATCH_ENTRIES {
            return Ok(());
        }
        let batch = std::mem::take(&mut self.batch);
        if self.waiting.len() >= MOST_WAITING {
            self.hash_next()?;
        }
        self.add_reader()?;
        let (result, read) = sync_channel(1);
        self.waiting.push_back(read);
        // There is always somebody who reads.
        self.jobs.send(Job { batch, result }).map_err(|_| interrupted(&GuestPath::root()))
    }

    /// One reader more, until there are enough: most instructions copy one file.
    fn add_reader(&mut self) -> Result<(), CopyError> {
        if self.readers == self.most_readers {
            return Ok(());
        }
        let queue = Arc::clone(&self.queue);
        let (sources, recent) = (self.sources, self.recent);
        let work = move || {
            let mut buffer = vec![0; CHUNK];
            loop {
                let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                let Ok(Job { batch, result }) = job else { return };
                // Who does not wait for it any more has failed already.
                let _ = result.send(batch.read(sources, recent, &mut buffer));
            }
        };
        match std::thread::Builder::new().spawn_scoped(self.scope, work) {
            Ok(_) => self.readers += 1,
            // Those that there are do the work.
            Err(_) if self.readers > 0 => self.most_readers = self.readers,
            Err(error) => return tried(Err(error), "start a thread to read", &GuestPath::root()),
        }
        Ok(())
    }

    /// Hashes the first of those that wait.
    fn hash_next(&mut self) -> Result<(), CopyError> {
        let Some(read) = self.waiting.pop_front() else { return Ok(()) };
        let facts = read.recv().map_err(|_| interrupted(&GuestPath::root()))??;
        self.hash(&facts);
        Ok(())
    }

    fn hash(&mut self, facts: &Facts) {
        self.content.update(&facts.content);
        self.witness.update(&facts.witness);
    }

    fn finish(mut self) -> Result<(Digest, Digest), CopyError> {
        while !self.waiting.is_empty() {
            self.hash_next()?;
        }
        let last = std::mem::take(&mut self.batch);
        let facts = last.read(self.sources, self.recent, &mut vec![0; CHUNK])?;
        self.hash(&facts);
        Ok((self.content.finish(), self.witness.finish()))
    }
}

impl Batch {
    /// Reads the files. In order, so that of several errors the first is told.
    fn read(self, sources: &Sources<'_>, recent: Timestamp, buffer: &mut [u8]) -> Read {
        let mut all = Facts::default();
        for (head, known) in self.entries {
            let facts = match known {
                Known::All(facts) => facts,
                Known::File(file, path) => read(&file, &path, sources.from, recent, sources.stopped, buffer)?,
            };
            for (all, facts) in [(&mut all.content, facts.content), (&mut all.witness, facts.witness)] {
                all.extend_from_slice(&head);
                all.extend_from_slice(&text(&facts));
            }
        }
        Ok(all)
    }
}

impl Visitor for Look<'_, '_> {
    fn enter(&mut self, directory: &Place<'_>, metadata: &Metadata) -> Result<(), CopyError> {
        self.position += 1;
        let xattrs = directory.xattrs(self.sources.from.root);
        let content = match self.sources.from.owner {
            OwnerPolicy::Root => xattrs_text(&xattrs, OwnerPolicy::Root),
            OwnerPolicy::Keep => attributes(metadata, &xattrs, OwnerPolicy::Keep),
        };
        self.add(head(b'd', directory.name), Facts { content, witness: Vec::new() })
    }

    fn file(&mut self, file: &Place<'_>, metadata: &Metadata) -> Result<(), CopyError> {
        self.position += 1;
        if metadata.kind == FileKind::File && metadata.links > 1 {
            let known = metadata.file();
            if let Some(first) = self.links.get(&known) {
                let first = first.to_le_bytes().to_vec();
                return self.add(head(b'=', file.name), Facts { content: first.clone(), witness: first });
            }
            self.links.insert(known, self.position);
        }
        self.entry(file, file.name, metadata)
    }

    fn leave(&mut self, _: &Place<'_>, _: &Metadata, role: Role) -> Result<(), CopyError> {
        let tag = match role {
            Role::Copied => b'u',
            Role::OnTheWay => b'w',
        };
        self.add(head(tag, b""), Facts::default())
    }
}

/// Everything that counts of a file.
fn read(
    mut file: &File,
    path: &GuestPath,
    from: &SourceTree<'_>,
    recent: Timestamp,
    stopped: &(dyn Fn() -> bool + Sync),
    buffer: &mut [u8],
) -> Result<Facts, CopyError> {
    let metadata = tried(metadata_of(file), "read metadata of", path)?;
    if metadata.kind != FileKind::File {
        return Err(CopyError::Changed { path: path.clone() });
    }
    let metadata = from.root.reveal(path, metadata);
    let mut xattrs = xattrs_of(file).unwrap_or_default();
    from.root.reveal_xattrs(path, &mut xattrs);
    let mut digester = Digester::new(Algorithm::Sha256);
    loop {
        if stopped() {
            return Err(interrupted(path));
        }
        match file.read(buffer) {
            Ok(0) => break,
            Ok(count) => digester.update(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return tried(Err(error), "read", path),
        }
    }
    let digest = text(digester.finish().hex().as_bytes());
    let mut facts =
        Facts { content: attributes(&metadata, &xattrs, from.owner), witness: witness(&metadata) };
    facts.content.extend_from_slice(&digest);
    if metadata.ctime >= recent {
        facts.witness.extend_from_slice(&digest);
    }
    Ok(facts)
}

fn interrupted(path: &GuestPath) -> CopyError {
    let source = io::Error::other("interrupted");
    CopyError::Io { action: "read", path: path.clone(), source }
}

/// Bytes behind their length, so that what follows cannot be taken for a part of them.
fn text(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
}

fn head(tag: u8, name: &[u8]) -> Vec<u8> {
    [&[tag], text(name).as_slice()].concat()
}

/// Mode, owner where that is copied, and extended attributes.
fn attributes(metadata: &Metadata, xattrs: &Xattrs, owner: OwnerPolicy) -> Vec<u8> {
    // Links have no mode of their own.
    let mode = if metadata.kind == FileKind::Symlink { 0 } else { metadata.mode };
    let mut bytes = mode.to_le_bytes().to_vec();
    if owner == OwnerPolicy::Keep {
        bytes.extend_from_slice(&metadata.owner.uid.to_le_bytes());
        bytes.extend_from_slice(&metadata.owner.gid.to_le_bytes());
    }
    bytes.extend_from_slice(&xattrs_text(xattrs, owner));
    bytes
}

fn xattrs_text(xattrs: &Xattrs, from: OwnerPolicy) -> Vec<u8> {
    let copied = xattrs.iter().filter(|(key, _)| travels(key, from));
    let bytes: Vec<u8> = copied.flat_map(|(key, value)| [text(key), text(value)].concat()).collect();
    if bytes.len() <= MOST_ATTRIBUTES {
        return text(&bytes);
    }
    // No length is like this.
    [&u64::MAX.to_le_bytes(), Digest::of(&bytes).hex().as_bytes()].concat()
}

/// What changes, or stays, with the content of a file.
fn witness(metadata: &Metadata) -> Vec<u8> {
    let Metadata { device: (major, minor), inode, size, mtime, ctime, mode, .. } = metadata;
    let mut bytes = Vec::with_capacity(64);
    for number in [*inode, *size] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    for number in [*major, *minor, *mode, mtime.nanoseconds, ctime.nanoseconds] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    for number in [mtime.seconds, ctime.seconds] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::layer::Limits;
    use crate::rootfs::Rootfs;

    const GO_ON: &(dyn Fn() -> bool + Sync) = &|| false;

    /// A directory in which a shell has run `script`.
    fn tree(script: &str) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        run(&directory, script);
        directory
    }

    fn run(directory: &tempfile::TempDir, script: &str) {
        let shell = Command::new("sh").args(["-euc", script]).current_dir(directory.path()).status().unwrap();
        assert!(shell.success(), "{script}");
    }

    fn with<T>(
        directory: &tempfile::TempDir,
        rules: &str,
        owner: OwnerPolicy,
        written: &[&str],
        act: impl FnOnce(Sources<'_>) -> T,
    ) -> T {
        let root = Rootfs::open(directory.path()).unwrap();
        let rules = IgnoreRules::parse(rules.as_bytes()).unwrap();
        let from = SourceTree { root: &root, ignore: Some(&rules), owner };
        let written: Vec<&[u8]> = written.iter().map(|text| text.as_bytes()).collect();
        let (names, exclude) = (Names::Patterns, None);
        act(Sources { written: &written, names, exclude, from: &from, most: None, stopped: GO_ON })
    }

    fn content(directory: &tempfile::TempDir, owner: OwnerPolicy, written: &[&str]) -> Digest {
        with(directory, "ignored\nd/hidden*\nmostly\n!mostly/seen\n", owner, written, |sources| {
            sources.fingerprint().unwrap().content
        })
    }

    const TREE: &str = "mkdir -p d/sub d/empty mostly; echo a > d/a; echo b > d/sub/b; ln d/a d/sub/hard; ln -s a d/link
        mkfifo d/pipe; echo f > f; chmod 640 f; ln -s d/a to-a; echo s > mostly/seen; echo i > ignored; echo h > d/hidden
        find . -exec touch -h -d @1000 {} +";

    /// What is done to [`TREE`], and whether a copy from a context, and from an image, is another then.
    const CHANGES: &[(&str, bool, bool)] = &[
        ("true", false, false),
        ("touch d/a d f mostly/seen", false, false),
        ("chown -h 5:6 d/a f d d/link", false, true),
        ("chmod 700 d/sub", false, true),
        ("chmod 700 d", false, false),
        ("echo other > ignored; echo other > d/hidden; echo > d/hidden2", false, false),
        ("echo other > mostly/unseen", false, false),
        ("echo x > d/a", true, true),
        ("printf 'b' > d/sub/b", true, true),
        ("chmod +x d/a", true, true),
        ("chmod u+s f", true, true),
        ("mv d/a d/c; ln -sfn d/c to-a", true, true),
        ("mv d/sub d/sub2", true, true),
        ("mkdir d/more", true, true),
        ("rmdir d/empty", true, true),
        ("ln -sfn b d/link", true, true),
        ("rm d/link; cp d/a d/link", true, true),
        ("rm d/pipe; echo > d/pipe", true, true),
        ("rm d/sub/hard; cp -p d/a d/sub/hard", true, true),
        ("mv d/sub/b d/b", true, true),
        ("mv f g; ln -s g f", false, false),
        ("ln -sfn f to-a", true, true),
        ("echo more >> mostly/seen", true, true),
    ];

    #[test]
    fn everything_that_is_copied_counts_and_nothing_else() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root can give files to others");
            return;
        }
        let written = &["d", "f", "to-a", "mostly"];
        let before = [OwnerPolicy::Root, OwnerPolicy::Keep].map(|owner| content(&tree(TREE), owner, written));
        for (change, context, image) in CHANGES {
            let changed = tree(TREE);
            run(&changed, change);
            let after = [OwnerPolicy::Root, OwnerPolicy::Keep].map(|owner| content(&changed, owner, written));
            assert_eq!(after[0] != before[0], *context, "from a context: {change}");
            assert_eq!(after[1] != before[1], *image, "from an image: {change}");
        }
    }

    #[test]
    fn sources_count_by_what_they_stand_for() {
        let tree = tree("mkdir d e; echo 1 > d/a; echo 1 > e/a; echo 2 > d/b; echo 1 > a; echo 1 > c");
        let of = |written: &[&str]| content(&tree, OwnerPolicy::Root, written);
        assert_eq!(of(&["d/a"]), of(&["./d//a"]));
        assert_eq!(of(&["d/a"]), of(&["e/a"]));
        assert_eq!(of(&["d/*"]), of(&["d/a", "d/b"]));
        assert_eq!(of(&["none*"]), of(&[]));
        for (one, other) in [
            (&["a"][..], &["c"][..]),
            (&["d/a", "d/b"], &["d/b", "d/a"]),
            (&["d"], &["d/*"]),
            (&["d", "e"], &["d"]),
            (&["a", "a"], &["a"]),
        ] {
            assert_ne!(of(one), of(other), "{one:?} {other:?}");
        }
    }

    /// What `written` stands for where `exclude` is left out, by the rules of a context that ignores `ignored`.
    fn part(tree: &tempfile::TempDir, names: Names, exclude: &[&str], written: &[&str]) -> Fingerprint {
        let rules = IgnoreRules::of_patterns(exclude.iter().map(|text| text.as_bytes())).unwrap();
        with(tree, "ignored\n", OwnerPolicy::Root, written, |sources| {
            Sources { names, exclude: Some(&rules), ..sources }.fingerprint().unwrap()
        })
    }

    #[test]
    fn what_is_left_out_does_not_count() {
        let script = "mkdir -p d/s/t d/out; echo 1 > d/a; echo 2 > d/a.log; echo 3 > d/s/b.log; echo 4 > d/s/t/c; echo > d/out/x
            echo 5 > e.log; find . -exec touch -h -d @1000 {} +";
        let of = |tree: &tempfile::TempDir| {
            part(tree, Names::Patterns, &["**/*.log", "out", "!s/b.log"], &["d", "e.log"]).content
        };
        let before = of(&tree(script));
        for (change, counts) in [
            ("echo other > d/a.log; rm d/out/x; echo > d/out/y; echo > d/s/more.log", false),
            ("rm -r d/out", false),
            ("echo other > d/a", true),
            ("echo other > d/s/b.log", true),
            ("echo other > d/s/t/c", true),
            ("echo other > e.log", true),
            ("mkdir d/empty", true),
        ] {
            let changed = tree(script);
            run(&changed, change);
            assert_eq!(of(&changed) != before, counts, "{change}");
        }
        // Nor does it make a difference by what rule it is left out.
        let tree = tree(script);
        let other = part(&tree, Names::Patterns, &["*.log", "**/out", "s/*.l", "x"], &["d", "e.log"]);
        assert_eq!(other.content, before);
    }

    #[test]
    fn whole_paths_count_and_nothing_beside_them() {
        let script = "mkdir -p d/s/t e ignored; echo 1 > d/a; echo 2 > d/s/b; echo 3 > d/s/t/b; echo 2 > e/b; echo > ignored/b
            find . -exec touch -h -d @1000 {} +";
        let of = |tree: &tempfile::TempDir, written: &[&str]| part(tree, Names::Whole, &[], written).content;
        let before = of(&tree(script), &["d/s/b", "**/t"]);
        for (change, counts) in [
            ("echo other > d/a; echo other > e/b; echo other > ignored/b; mkdir d/s/u; chmod 700 d", false),
            ("echo other > d/s/b", true),
            ("chmod +x d/s/b", true),
            ("echo other > d/s/t/b", true),
            ("mkdir d/t", true),
            ("mv d/s/t d/t", true),
        ] {
            let changed = tree(script);
            run(&changed, change);
            assert_eq!(of(&changed, &["d/s/b", "**/t"]) != before, counts, "{change}");
        }
        let tree = tree(script);
        for (one, other, same) in [
            (&["d/s/b"][..], &["d/s/t/../b"][..], true),
            (&["**/t/b"], &["d/*/t/b"], true),
            (&["d/./s/b"], &["d/s/./b"], false),
            (&["d/s/./b"], &["e/./b"], true),
            (&["d/s/b"], &["e/b"], false),
            // The directory is on the way in one of them, and named in the other.
            (&["d/s/t/b"], &["d/s/t"], false),
        ] {
            assert_eq!(of(&tree, one) == of(&tree, other), same, "{one:?} {other:?}");
        }
        // What somebody writes beside what is copied is not noticed, what is copied is.
        let whole: (&[&[u8]], Names) = (&[b"d/./s/t"], Names::Whole);
        with(&tree, "", OwnerPolicy::Root, &[], |sources| {
            let sources = Sources { written: whole.0, names: whole.1, ..sources };
            let before = sources.fingerprint().unwrap();
            run(&tree, "echo other > d/s/b; echo > d/s/new");
            assert!(sources.still_are(&before).unwrap());
            run(&tree, "echo other > d/s/t/b");
            assert!(!sources.still_are(&before).unwrap());
        });
    }

    #[test]
    fn attributes_count_as_far_as_they_travel() {
        let tree = tree("echo > f; mkdir d; echo > d/f; mkdir d/d");
        let of = || content(&tree, OwnerPolicy::Root, &["f", "d"]);
        let set = |name: &str, key: &str, value: &[u8]| {
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(tree.path().join(name), key, value, flags)
        };
        let mut last = of();
        if set("f", "user.a", b"1").is_err() {
            eprintln!("skipped: this file system stores no extended attributes");
            return;
        }
        for (name, key, value) in
            [("f", "user.a", b"1"), ("f", "user.a", b"2"), ("d/f", "user.b", b"1"), ("d/d", "user.b", b"1")]
        {
            set(name, key, value).unwrap();
            let now = of();
            assert_ne!(now, last, "{name} {key}");
            last = now;
        }
        // Long ones count to their end.
        for end in [b"1", b"2"] {
            set("f", "user.long", &[vec![b'x'; MOST_ATTRIBUTES], end.to_vec()].concat()).unwrap();
            let now = of();
            assert_ne!(now, last);
            last = now;
        }
        if set("f", "trusted.overlay.opaque", b"y").is_ok() {
            assert_eq!(of(), last);
        }
    }

    #[test]
    fn the_order_of_large_and_small_files_is_that_of_names_whoever_reads_faster() {
        let script = "mkdir d; for i in $(seq 300); do echo $i > d/$i; done; head -c 30000000 /dev/zero > d/0; head -c 9000000 /dev/zero > d/200";
        let digests = [tree(script), tree(script)].map(|tree| content(&tree, OwnerPolicy::Root, &["d"]));
        assert_eq!(digests[0], digests[1]);
    }

    #[test]
    fn a_file_that_changes_after_it_was_read_is_noticed_even_within_one_tick() {
        let tree = tree("mkdir d; echo same > d/f; echo old > d/old; touch -d @1000 d/old");
        with(&tree, "", OwnerPolicy::Root, &["d"], |sources| {
            let before = sources.fingerprint().unwrap();
            assert!(sources.still_are(&before).unwrap());
            for (name, bytes) in [("d/f", "emas\n"), ("d/f", "same\n"), ("d/old", "new\n")] {
                let mut file = File::options().write(true).open(tree.path().join(name)).unwrap();
                std::io::Write::write_all(&mut file, bytes.as_bytes()).unwrap();
                assert!(!sources.still_are(&before).unwrap(), "{name} {bytes}");
            }
            let before = sources.fingerprint().unwrap();
            assert!(sources.still_are(&before).unwrap());
            run(&tree, "echo > d/new");
            assert!(!sources.still_are(&before).unwrap());
        });
    }

    #[test]
    fn of_recent_files_the_content_is_a_witness() {
        // Clocks of file systems may be too coarse to tell two changes apart; those of the machine that tests may not be.
        let tree = tree("mkdir d; echo > d/f");
        with(&tree, "", OwnerPolicy::Root, &["d"], |sources| {
            let [never, always] = [i64::MAX, 0].map(|seconds| Timestamp { seconds, nanoseconds: 0 });
            let look = |depth, recent| sources.look(depth, recent).unwrap();
            assert_eq!(look(Depth::Content, never).0, look(Depth::Content, always).0);
            for recent in [never, always] {
                assert_eq!(look(Depth::Content, recent).1, look(Depth::Witness, recent).1);
            }
            assert_ne!(look(Depth::Witness, never).1, look(Depth::Witness, always).1);
        });
    }

    #[test]
    fn no_more_is_read_than_a_layer_may_hold() {
        let tree = tree("mkdir d; echo > d/small; ln d/small d/second; truncate -s 1T d/hole");
        let names = |error: CopyError| match error {
            CopyError::TooLarge { path, limit } => (path.to_string(), limit.value),
            other => panic!("{other}"),
        };
        let most = |value| Some(Limits::WRITTEN.with(value));
        with(&tree, "", OwnerPolicy::Root, &["d"], |sources| {
            let hole = Sources { most: most(1 << 30), ..sources }.fingerprint().unwrap_err();
            assert_eq!(names(hole), ("/d/hole".to_owned(), 1 << 30));
        });
        run(&tree, "rm d/hole");
        with(&tree, "", OwnerPolicy::Root, &["d"], |sources| {
            Sources { most: most(1), ..sources }.fingerprint().unwrap();
        });
        with(&tree, "", OwnerPolicy::Root, &["d", "d/s*"], |sources| {
            assert!(Sources { most: most(2), ..sources }.fingerprint().is_err());
            Sources { most: most(3), ..sources }.fingerprint().unwrap();
        });
    }

    #[test]
    fn looking_stops_when_the_build_does() {
        let tree = tree("mkdir d; echo > d/f");
        let root = Rootfs::open(tree.path()).unwrap();
        let from = SourceTree { root: &root, ignore: None, owner: OwnerPolicy::Root };
        let (written, names): (&[&[u8]], _) = (&[b"d"], Names::Patterns);
        let sources = Sources { written, names, exclude: None, from: &from, most: None, stopped: &|| true };
        assert!(sources.fingerprint().unwrap_err().to_string().starts_with("cannot read"));
    }
}
