//! A tree handed over to a user: written into a directory of the machine as the caller's own files.
//!
//! The tree is an image's and not to be trusted, and neither is what is in the directory: no link in either is followed,
//! and nothing is written through a file that is there. Nothing gets more rights than the caller gave it: files are the
//! caller's, without set-user-ID and set-group-ID bits and without capabilities, which would count for another owner now,
//! and there are no devices.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::copy::{ContentCopy, Made, make_file};
use super::merged::{directory_of, first_with};
use super::metadata::{
    FileId, FileKind, Metadata, Timestamp, metadata_at, metadata_of, set_mode_at, set_times_at, set_xattr_at,
    xattrs_at,
};
use super::remove::remove_tree;
use super::visit::{Names, open_exact};
use super::{GuestPath, Rootfs};
use crate::limit::Limit;

/// Why a tree could not be written.
#[derive(Debug, thiserror::Error)]
pub enum DeliveryError {
    /// An entry cannot be read, or not be made.
    #[error("cannot {action} `{path}`")]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which entry, below the directory.
        path: GuestPath,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// A directory with something in it has the name of a file.
    #[error("`{path}` is a directory that is not empty, and something else in the image")]
    InTheWay {
        /// Which.
        path: GuestPath,
    },
    /// More files of several names than can be remembered.
    #[error("the names of hard links take more than {value} bytes; {0}", value = .0.value)]
    Links(Limit),
    /// It was stopped.
    #[error("writing was stopped")]
    Cancelled,
}

/// What becomes of entries of the directory that the tree does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Others {
    /// They stay.
    Kept,
    /// They are removed.
    Removed,
}

/// How a tree is written.
pub struct Delivery<'a> {
    /// The modification time of all entries; those of the tree if it is not given.
    pub time: Option<Timestamp>,
    /// What becomes of what is there.
    pub others: Others,
    /// The most bytes of names that are remembered, of files with several names.
    pub names: Limit,
    /// Says whether to stop; asked often.
    pub cancelled: &'a (dyn Fn() -> bool + Sync),
}

/// What was written, and what not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Delivered {
    /// Entries, the root not counted.
    pub entries: u64,
    /// Devices and sockets that were left out.
    pub nodes: u64,
    /// Files that lost a set-user-ID or set-group-ID bit.
    pub set_ids: u64,
    /// Extended attributes that were left out.
    pub attributes: u64,
}

/// Whether a directory was there before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fresh {
    Yes,
    /// With this mode, where another one is needed to write to it.
    No(Option<u32>),
}

/// A directory that has been begun.
struct Open {
    path: GuestPath,
    fresh: Fresh,
    /// Its directories that have not been begun, the next one last.
    below: Vec<Vec<u8>>,
}

impl Delivery<'_> {
    /// Writes everything that is in `trees`, their roots' own metadata aside, into the directory `to`. Of several, which can
    /// be one ([`merged`](super::merged)), one comes after the other. Each file appears whole, under its name, in place of
    /// what is there. Nobody may change the trees meanwhile.
    ///
    /// Memory grows by the names of the directories beside the way down and of files of several names.
    ///
    /// # Errors
    /// [`DeliveryError`]; `to` then holds a part, in which no directory has a mode that it should not have.
    pub fn write(&self, trees: &[&Rootfs], to: BorrowedFd<'_>) -> Result<Delivered, DeliveryError> {
        let mut done = Delivered::default();
        for number in 0..trees.len() {
            done = self.write_one(trees, number, to, done)?;
        }
        Ok(done)
    }

    fn write_one(
        &self,
        trees: &[&Rootfs],
        number: usize,
        to: BorrowedFd<'_>,
        done: Delivered,
    ) -> Result<Delivered, DeliveryError> {
        let mut writer = Writer {
            rules: self,
            trees,
            number,
            from: trees[number],
            to,
            content: ContentCopy::new(self.cancelled),
            buffer: Vec::new(),
            first: BTreeMap::new(),
            remembered: 0,
            temporary: 0,
            done,
        };
        let mut open = Vec::new();
        let written = writer.all(&mut open);
        if written.is_err() {
            for directory in open.iter().rev() {
                writer.leave(directory);
            }
        }
        written?;
        Ok(writer.done)
    }
}

/// Removes from `directory` all entries but those with the names `kept`.
///
/// # Errors
/// [`DeliveryError`]; some are removed by then.
pub fn remove_others(
    directory: BorrowedFd<'_>,
    kept: &[&[u8]],
    cancelled: &(dyn Fn() -> bool + Sync),
) -> Result<(), DeliveryError> {
    let path = GuestPath::root();
    let there = Names::in_directory(directory).map_err(failed("list", &path))?;
    remove(directory, &path, there.iter().filter(|name| !kept.contains(name)), cancelled)
}

fn remove<'n>(
    directory: BorrowedFd<'_>,
    path: &GuestPath,
    names: impl Iterator<Item = &'n [u8]>,
    cancelled: &(dyn Fn() -> bool + Sync),
) -> Result<(), DeliveryError> {
    for name in names {
        if cancelled() {
            return Err(DeliveryError::Cancelled);
        }
        remove_tree(directory, name).map_err(failed("remove", &path.child(name)))?;
    }
    Ok(())
}

fn failed<E: Into<io::Error>>(action: &'static str, path: &GuestPath) -> impl FnOnce(E) -> DeliveryError {
    move |error| DeliveryError::Io { action, path: path.clone(), source: error.into() }
}

struct Writer<'a> {
    rules: &'a Delivery<'a>,
    /// All that go to the same directory.
    trees: &'a [&'a Rootfs],
    /// Which of them is written.
    number: usize,
    from: &'a Rootfs,
    to: BorrowedFd<'a>,
    content: ContentCopy<'a>,
    buffer: Vec<u8>,
    /// The first names of files with several names.
    first: BTreeMap<FileId, GuestPath>,
    /// Bytes of those.
    remembered: u64,
    /// How many temporary names have been tried.
    temporary: u64,
    done: Delivered,
}

/// An entry of the tree, and where it is to be.
struct Entry<'a> {
    path: &'a GuestPath,
    name: &'a [u8],
    from: &'a OwnedFd,
    to: &'a OwnedFd,
    metadata: &'a Metadata,
}

impl Writer<'_> {
    /// Writes everything. What is in `open` in the end is not complete.
    fn all(&mut self, open: &mut Vec<Open>) -> Result<(), DeliveryError> {
        open.push(Open { path: GuestPath::root(), fresh: Fresh::No(None), below: Vec::new() });
        self.fill_last(open)?;
        while let Some(last) = open.last_mut() {
            if let Some(name) = last.below.pop() {
                let path = last.path.child(&name);
                let fresh = self.begin(&last.path, &name).map_err(failed("make", &path))?;
                open.push(Open { path, fresh, below: Vec::new() });
                self.fill_last(open)?;
                continue;
            }
            if !last.path.is_root() {
                // Last: making entries changes the time, and may need rights that the directory is not to give.
                self.finish(&last.path).map_err(failed("set metadata of", &last.path))?;
            }
            open.pop();
        }
        Ok(())
    }

    fn fill_last(&mut self, open: &mut [Open]) -> Result<(), DeliveryError> {
        let Some(last) = open.last_mut() else { return Ok(()) };
        last.below = self.directory(&last.path, last.fresh)?;
        Ok(())
    }

    /// Of a directory that stays incomplete, what can be right is made right.
    fn leave(&self, directory: &Open) {
        let mode = match directory.fresh {
            Fresh::No(None) => return,
            Fresh::No(Some(mode)) => Ok(mode),
            Fresh::Yes => self.open_both(&directory.path).and_then(|(from, _)| {
                Ok(self.from.reveal(&directory.path, metadata_of(&from)?).mode & 0o1777)
            }),
        };
        // What went wrong before is what is told.
        if let (Ok(mode), Ok((_, to))) = (mode, self.open_both(&directory.path)) {
            let _ = set_mode_at(to.as_fd(), b".", mode);
        }
    }

    /// The directory `path` in both trees.
    fn open_both(&self, path: &GuestPath) -> io::Result<(OwnedFd, OwnedFd)> {
        let open = |tree: BorrowedFd<'_>| open_exact(tree, path, OFlags::RDONLY | OFlags::DIRECTORY);
        Ok((open(self.from.as_fd())?, open(self.to)?))
    }

    /// Makes the directory `name` in `parent`, or takes the one that is there.
    fn begin(&self, parent: &GuestPath, name: &[u8]) -> io::Result<Fresh> {
        let (from, to) = self.open_both(parent)?;
        let metadata = self.from.reveal(&parent.child(name), metadata_at(from.as_fd(), name)?);
        make_directory(to.as_fd(), name, metadata.mode)
    }

    /// Writes what is in the directory `path`, which exists in both trees, but its directories: those are returned, in the
    /// reverse of their order.
    fn directory(&mut self, path: &GuestPath, fresh: Fresh) -> Result<Vec<Vec<u8>>, DeliveryError> {
        let (from, to) = self.open_both(path).map_err(failed("open", path))?;
        let names = Names::in_directory(from.as_fd()).map_err(failed("list", path))?;
        if self.rules.others == Others::Removed && fresh != Fresh::Yes {
            let there = Names::in_directory(to.as_fd()).map_err(failed("list", path))?;
            let others = self.names_in_others(path).map_err(failed("list", path))?;
            let known = |name: &&[u8]| names.contain(name) || others.iter().any(|other| other.contain(name));
            remove(to.as_fd(), path, there.iter().filter(|name| !known(name)), self.rules.cancelled)?;
        }
        let mut below = Vec::new();
        for name in names.iter() {
            if (self.rules.cancelled)() {
                return Err(DeliveryError::Cancelled);
            }
            let path = path.child(name);
            let shown = metadata_at(from.as_fd(), name).map_err(failed("read metadata of", &path))?;
            let metadata = self.from.reveal(&path, shown);
            let entry = Entry { path: &path, name, from: &from, to: &to, metadata: &metadata };
            match metadata.kind {
                FileKind::Directory => {
                    below.push(name.to_vec());
                    if self.first_before(&path).map_err(failed("open", &path))?.is_some() {
                        continue;
                    }
                }
                FileKind::CharDevice | FileKind::BlockDevice | FileKind::Socket => {
                    self.done.nodes += 1;
                    continue;
                }
                FileKind::File | FileKind::Symlink | FileKind::Fifo => self.put(&entry, fresh)?,
            }
            self.done.entries += 1;
        }
        below.reverse();
        Ok(below)
    }

    /// What other trees have in the directory `path`.
    fn names_in_others(&self, path: &GuestPath) -> io::Result<Vec<Names>> {
        let others = self.trees.iter().enumerate().filter(|(number, _)| *number != self.number);
        let directories = others.filter_map(|(_, tree)| directory_of(tree, path).transpose());
        directories.map(|directory| Names::in_directory(directory?.as_fd())).collect()
    }

    /// The first tree before this one that has the directory `path`, with it.
    fn first_before(&self, path: &GuestPath) -> io::Result<Option<(&Rootfs, OwnedFd)>> {
        first_with(&self.trees[..self.number], path)
    }

    /// Makes an entry that is no directory, and gives it its name.
    fn put(&mut self, entry: &Entry<'_>, fresh: Fresh) -> Result<(), DeliveryError> {
        if fresh == Fresh::Yes {
            // Nobody has the name.
            return self.make(entry, entry.name);
        }
        let name = loop {
            let name = format!(".{}.builder-output", self.temporary).into_bytes();
            match self.make(entry, &name) {
                Err(DeliveryError::Io { source, .. })
                    if source.kind() == io::ErrorKind::AlreadyExists && self.temporary < 10_000 =>
                {
                    self.temporary += 1;
                }
                Err(error) => {
                    // What is wrong with it is known already.
                    let _ = rustix::fs::unlinkat(entry.to, &name[..], AtFlags::empty());
                    return Err(error);
                }
                Ok(()) => break name,
            }
        };
        self.rename(entry, &name).inspect_err(|_| {
            let _ = rustix::fs::unlinkat(entry.to, &name[..], AtFlags::empty());
        })
    }

    fn rename(&self, entry: &Entry<'_>, temporary: &[u8]) -> Result<(), DeliveryError> {
        let rename = || rustix::fs::renameat(entry.to, temporary, entry.to, entry.name);
        match rename() {
            Ok(()) => return Ok(()),
            Err(Errno::ISDIR | Errno::NOTEMPTY | Errno::EXIST) => {}
            Err(error) => return Err(failed("make", entry.path)(error)),
        }
        let removed = match self.rules.others {
            Others::Removed => remove_tree(entry.to.as_fd(), entry.name),
            Others::Kept => {
                rustix::fs::unlinkat(entry.to, entry.name, AtFlags::REMOVEDIR).map_err(io::Error::from)
            }
        };
        match removed.map_err(|error| (Errno::from_io_error(&error), error)) {
            Err((Some(Errno::NOTEMPTY | Errno::EXIST), _)) => {
                Err(DeliveryError::InTheWay { path: entry.path.clone() })
            }
            Err((_, error)) => Err(failed("remove", entry.path)(error)),
            Ok(()) => rename().map_err(failed("make", entry.path)),
        }
    }

    /// Makes the entry under `name`, where there must be nothing.
    fn make(&mut self, entry: &Entry<'_>, name: &[u8]) -> Result<(), DeliveryError> {
        if entry.metadata.links > 1 {
            if let Some(first) = self.first.get(&entry.metadata.file()) {
                return self.link(entry, first, name).map_err(failed("link", entry.path));
            }
            // What a path costs besides its bytes.
            self.remembered += entry.path.as_bytes().len() as u64 + 64;
            if self.rules.names.is_exceeded_by(self.remembered) {
                return Err(DeliveryError::Links(self.rules.names));
            }
        }
        match self.fill(entry, name) {
            Ok(Made::Stopped) => return Err(DeliveryError::Cancelled),
            Err(error) => return Err(failed("make", entry.path)(error)),
            Ok(Made::Whole) => {}
        }
        self.give(entry, name).map_err(failed("set metadata of", entry.path))?;
        if entry.metadata.links > 1 {
            self.first.insert(entry.metadata.file(), entry.path.clone());
        }
        Ok(())
    }

    fn fill(&mut self, entry: &Entry<'_>, name: &[u8]) -> io::Result<Made> {
        match entry.metadata.kind {
            FileKind::Symlink => {
                let target = rustix::fs::readlinkat(entry.from, entry.name, Vec::new())?;
                rustix::fs::symlinkat(target, entry.to, name)?;
            }
            FileKind::Fifo => {
                rustix::fs::mknodat(entry.to, name, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
            }
            _ => {
                let new = make_file(entry.to.as_fd(), name)?;
                if entry.metadata.size > 0 {
                    let flags = OFlags::RDONLY
                        | OFlags::NOFOLLOW
                        | OFlags::NONBLOCK
                        | OFlags::NOCTTY
                        | OFlags::CLOEXEC;
                    let old: File = rustix::fs::openat(entry.from, entry.name, flags, Mode::empty())?.into();
                    return self.content.copy(&mut self.buffer, &old, new, entry.metadata.size);
                }
            }
        }
        Ok(Made::Whole)
    }

    /// Gives a file that has been written one more name.
    fn link(&self, entry: &Entry<'_>, first: &GuestPath, name: &[u8]) -> io::Result<()> {
        let directory = first.parent().unwrap_or_else(GuestPath::root);
        let directory = open_exact(self.to, &directory, OFlags::PATH | OFlags::DIRECTORY)?;
        let old = first.file_name().ok_or(Errno::NOENT)?;
        Ok(rustix::fs::linkat(&directory, old, entry.to, name, AtFlags::empty())?)
    }

    /// Gives a new entry its metadata: the time last.
    fn give(&mut self, entry: &Entry<'_>, name: &[u8]) -> io::Result<()> {
        let Entry { metadata, to, .. } = entry;
        if metadata.kind != FileKind::Symlink {
            set_mode_at(to.as_fd(), name, metadata.mode & 0o1777)?;
            self.done.set_ids += u64::from(metadata.kind == FileKind::File && metadata.mode & 0o6000 != 0);
            self.attributes(entry.path, entry.from.as_fd(), entry.name, (to.as_fd(), name))?;
        }
        set_times_at(to.as_fd(), name, self.rules.time.unwrap_or(metadata.mtime))
    }

    /// Of extended attributes those that mean something to users alone.
    fn attributes(
        &mut self,
        path: &GuestPath,
        from: BorrowedFd<'_>,
        name: &[u8],
        to: (BorrowedFd<'_>, &[u8]),
    ) -> io::Result<()> {
        let mut xattrs = xattrs_at(from, name)?;
        self.from.reveal_xattrs(path, &mut xattrs);
        xattrs.retain(|key, _| super::Attribute::of(key) == super::Attribute::Image);
        for (key, value) in xattrs {
            let is_set = key.starts_with(b"user.") && set_xattr_at(to.0, to.1, &key, &value).is_ok();
            self.done.attributes += u64::from(!is_set);
        }
        Ok(())
    }

    /// Gives a directory that is complete its metadata.
    fn finish(&mut self, path: &GuestPath) -> io::Result<()> {
        let (from, to) = self.open_both(path)?;
        let metadata = match self.first_before(path)? {
            Some((tree, shared)) => tree.reveal(path, metadata_of(&shared)?),
            None => {
                self.attributes(path, from.as_fd(), b".", (to.as_fd(), b"."))?;
                self.from.reveal(path, metadata_of(&from)?)
            }
        };
        set_mode_at(to.as_fd(), b".", metadata.mode & 0o1777)?;
        set_times_at(to.as_fd(), b".", self.rules.time.unwrap_or(metadata.mtime))
    }
}

/// Makes a directory that is to have `mode`, or takes the one that is there. Anything else that has the name is removed.
fn make_directory(to: BorrowedFd<'_>, name: &[u8], mode: u32) -> io::Result<Fresh> {
    let make = || {
        rustix::fs::mkdirat(to, name, Mode::RWXU)?;
        // What is left when this process is killed is near to what it should be. Until it is complete nobody else writes to it.
        set_mode_at(to, name, mode & 0o755 | 0o700)
    };
    match rustix::fs::statat(to, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return make().map(|()| Fresh::Yes),
        Err(error) => return Err(error.into()),
        Ok(_) => {}
    }
    let there = metadata_at(to, name)?;
    if there.kind == FileKind::Directory {
        // Where a mode that is needed is refused, what follows says so better.
        let needs = there.mode & 0o700 != 0o700 && set_mode_at(to, name, there.mode | 0o700).is_ok();
        return Ok(Fresh::No(needs.then_some(there.mode)));
    }
    rustix::fs::unlinkat(to, name, AtFlags::empty())?;
    make().map(|()| Fresh::Yes)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the tests make and look at files of their own")]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
    use std::path::Path;

    use super::*;

    const NAMES: Limit = Limit::new("names", 1 << 20);

    fn deliver(from: &Path, to: &Path, time: Option<Timestamp>, others: Others) -> Result<Delivered, String> {
        let from = Rootfs::open(from).unwrap();
        let to = File::open(to).unwrap();
        let delivery = Delivery { time, others, names: NAMES, cancelled: &|| false };
        delivery.write(&[&from], to.as_fd()).map_err(|error| error.to_string())
    }

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// Two directories, and one beside them that nobody may touch.
    struct Ground {
        place: tempfile::TempDir,
    }

    impl Ground {
        fn new() -> Self {
            let place = tempfile::tempdir().unwrap();
            for name in ["image", "out", "victim"] {
                std::fs::create_dir(place.path().join(name)).unwrap();
            }
            std::fs::write(place.path().join("victim/f"), "mine").unwrap();
            Self { place }
        }

        fn at(&self, name: &str) -> std::path::PathBuf {
            self.place.path().join(name)
        }

        fn file(&self, name: &str, text: &str) {
            let path = self.at(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }

        fn deliver(&self, time: Option<Timestamp>, others: Others) -> Result<Delivered, String> {
            deliver(&self.at("image"), &self.at("out"), time, others)
        }

        fn victim_is_as_it_was(&self) {
            assert_eq!(names(&self.at("victim")), ["f"]);
            assert_eq!(std::fs::read_to_string(self.at("victim/f")).unwrap(), "mine");
        }
    }

    #[test]
    fn a_tree_becomes_files_of_the_caller_s() {
        let ground = Ground::new();
        ground.file("image/d/e/f", "text");
        std::fs::hard_link(ground.at("image/d/e/f"), ground.at("image/also")).unwrap();
        symlink("/nowhere", ground.at("image/link")).unwrap();
        ground.file("image/set", "id");
        let mode = |name: &str, mode| {
            std::fs::set_permissions(ground.at(name), std::fs::Permissions::from_mode(mode)).unwrap();
        };
        mode("image/set", 0o6755);
        mode("image/d/e", 0o500);
        let done = ground.deliver(None, Others::Kept).unwrap();
        assert_eq!(done, Delivered { entries: 6, set_ids: 1, ..Delivered::default() });
        let facts = |name: &str| std::fs::symlink_metadata(ground.at(name)).unwrap();
        assert_eq!(facts("out/set").mode() & 0o7777, 0o755);
        assert_eq!(facts("out/d/e").mode() & 0o7777, 0o500);
        assert_eq!(facts("out/also").ino(), facts("out/d/e/f").ino());
        assert_eq!(std::fs::read_link(ground.at("out/link")).unwrap(), Path::new("/nowhere"));
        for name in ["d", "d/e", "d/e/f", "link"] {
            let (old, new) = (facts(&format!("image/{name}")), facts(&format!("out/{name}")));
            assert_eq!((old.mtime(), old.mtime_nsec()), (new.mtime(), new.mtime_nsec()), "{name}");
        }
        // Once more, over what is there and cannot be written to.
        let again = ground.deliver(Some(Timestamp { seconds: 5, nanoseconds: 0 }), Others::Kept).unwrap();
        assert_eq!(again, done);
        for name in ["d", "d/e", "d/e/f", "link", "also", "set"] {
            assert_eq!(facts(&format!("out/{name}")).mtime(), 5, "{name}");
        }
        assert_eq!(names(&ground.at("out")), ["also", "d", "link", "set"]);
        mode("image/d/e", 0o700);
        mode("out/d/e", 0o700);
    }

    #[test]
    fn nothing_is_written_through_links_that_are_there() {
        let ground = Ground::new();
        ground.file("image/d/f", "hostile");
        ground.file("image/g", "hostile");
        ground.file("image/h", "hostile");
        symlink(ground.at("victim"), ground.at("out/d")).unwrap();
        symlink(ground.at("victim/f"), ground.at("out/g")).unwrap();
        std::fs::hard_link(ground.at("victim/f"), ground.at("out/h")).unwrap();
        ground.deliver(None, Others::Removed).unwrap();
        ground.victim_is_as_it_was();
        for name in ["out/d/f", "out/g", "out/h"] {
            assert_eq!(std::fs::read_to_string(ground.at(name)).unwrap(), "hostile");
        }
        // And none of the tree leads out of it.
        let ground = Ground::new();
        symlink(ground.at("victim"), ground.at("image/d")).unwrap();
        ground.file("out/d/f", "old");
        ground.deliver(None, Others::Removed).unwrap();
        ground.victim_is_as_it_was();
        assert!(ground.at("out/d").is_symlink());
    }

    #[test]
    fn what_else_is_there_stays_unless_it_is_to_go() {
        let ground = Ground::new();
        ground.file("image/d/f", "new");
        ground.file("image/was-directory", "");
        ground.file("out/d/own", "own");
        ground.file("out/d/f", "old");
        std::fs::create_dir(ground.at("out/was-directory")).unwrap();
        ground.deliver(None, Others::Kept).unwrap();
        assert_eq!(names(&ground.at("out/d")), ["f", "own"]);
        assert_eq!(std::fs::read_to_string(ground.at("out/d/f")).unwrap(), "new");
        assert!(ground.at("out/was-directory").is_file());
        std::fs::remove_file(ground.at("out/was-directory")).unwrap();
        ground.file("out/was-directory/own", "own");
        let error = ground.deliver(None, Others::Kept).unwrap_err();
        assert_eq!(
            error,
            "`/was-directory` is a directory that is not empty, and something else in the image"
        );
        assert_eq!(names(&ground.at("out")), ["d", "was-directory"]);
        symlink(ground.at("victim"), ground.at("out/other")).unwrap();
        ground.deliver(None, Others::Removed).unwrap();
        ground.victim_is_as_it_was();
        assert_eq!(names(&ground.at("out")), ["d", "was-directory"]);
        assert_eq!(names(&ground.at("out/d")), ["f"]);
    }

    #[test]
    fn trees_that_share_directories_become_one() {
        let ground = Ground::new();
        ground.file("image/d/one", "1");
        ground.file("image/d/e/one", "1");
        ground.file("second/d/two", "2");
        ground.file("second/d/e/two", "2");
        ground.file("second/own/f", "2");
        ground.file("out/d/old", "old");
        ground.file("out/old", "old");
        let mode = |name: &str, mode| {
            std::fs::set_permissions(ground.at(name), std::fs::Permissions::from_mode(mode)).unwrap();
        };
        mode("image/d/e", 0o500);
        mode("second/d/e", 0o711);
        let trees = ["image", "second"].map(|name| Rootfs::open(&ground.at(name)).unwrap());
        let to = File::open(ground.at("out")).unwrap();
        for others in [Others::Kept, Others::Removed] {
            let delivery = Delivery { time: None, others, names: NAMES, cancelled: &|| false };
            let done = delivery.write(&[&trees[0], &trees[1]], to.as_fd()).unwrap();
            assert_eq!(done, Delivered { entries: 8, ..Delivered::default() });
            let old: &[&str] = if others == Others::Kept { &["old"] } else { &[] };
            assert_eq!(names(&ground.at("out")), [&["d"], old, &["own"]].concat());
            assert_eq!(names(&ground.at("out/d")), [&["e"], old, &["one", "two"]].concat());
            assert_eq!(names(&ground.at("out/d/e")), ["one", "two"]);
            for name in ["d", "d/e"] {
                let facts = |tree: &str| std::fs::metadata(ground.at(tree).join(name)).unwrap();
                let (first, out) = (facts("image"), facts("out"));
                assert_eq!((first.mtime(), first.mtime_nsec()), (out.mtime(), out.mtime_nsec()), "{name}");
                assert_eq!(first.mode(), out.mode(), "{name}");
            }
        }
        mode("image/d/e", 0o700);
        mode("out/d/e", 0o700);
    }

    #[test]
    fn wherever_it_ends_no_directory_keeps_a_mode_that_it_had_while_it_was_written() {
        let modes = [("a", 0o755), ("a/b", 0o2775), ("kept", 0o711), ("z", 0o500)];
        for most in 0.. {
            let ground = Ground::new();
            for (name, mode) in modes {
                ground.file(&format!("image/{name}/f"), "text");
                let path = ground.at("image").join(name);
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
            }
            std::fs::create_dir(ground.at("out/kept")).unwrap();
            std::fs::set_permissions(ground.at("out/kept"), std::fs::Permissions::from_mode(0o511)).unwrap();
            let asked = std::sync::atomic::AtomicU32::new(0);
            let cancelled = || asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) >= most;
            let delivery = Delivery { time: None, others: Others::Kept, names: NAMES, cancelled: &cancelled };
            let from = Rootfs::open(&ground.at("image")).unwrap();
            let to = File::open(ground.at("out")).unwrap();
            let done = delivery.write(&[&from], to.as_fd());
            for (name, mode) in modes {
                let Ok(there) = std::fs::metadata(ground.at("out").join(name)) else { continue };
                let mode = mode & 0o1777;
                let found = there.mode() & 0o7777;
                assert!(found == mode || (name == "kept" && found == 0o511), "{most} {name} {found:o}");
            }
            if done.is_ok() {
                assert!(most > 8, "{most}");
                break;
            }
        }
    }

    #[test]
    fn devices_and_capabilities_are_left_out() {
        let ground = Ground::new();
        let null = rustix::fs::makedev(1, 3);
        let path = ground.at("image/null");
        let made = rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            FileType::CharacterDevice,
            Mode::from_raw_mode(0o666),
            null,
        );
        if let Err(error) = made {
            eprintln!("skipped: no devices: {error}");
            return;
        }
        ground.file("image/f", "");
        let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(ground.at("image/f"), "security.capability", &capability, flags).unwrap();
        let done = ground.deliver(None, Others::Kept).unwrap();
        assert_eq!(done, Delivered { entries: 1, nodes: 1, attributes: 1, ..Delivered::default() });
        assert_eq!(names(&ground.at("out")), ["f"]);
        let there = rustix::fs::getxattr(ground.at("out/f"), "security.capability", &mut [0_u8; 64]);
        assert!(there.is_err());
    }
}
