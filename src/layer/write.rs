//! Writing a changeset as a layer in one pass: tar, digest, compression, output.
//!
//! As in BuildKit, names have no leading `/` or `./`, directories a slash at their end, and owners are numbers. Other than
//! BuildKit, which drops fractions of a second, modification times are kept to the nanosecond.

mod tree;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::apply::WHITEOUT_PREFIX;
use super::changes::is_reserved;
use super::compressor::Compressor;
use super::form::LayerForm;
use super::tar_writer::{Head, TarWriter};
use super::{Change, Changeset, LayerError, Limits, WriteProblem};
use crate::image::digest::DiffId;
use crate::limit::Limit;
use crate::rootfs::{
    Attribute, Escaped, FileId, FileKind, GuestPath, Metadata, Owner, Rootfs, Timestamp, Xattrs, metadata_at,
    metadata_of, xattrs_at, xattrs_of,
};

pub use tree::TreeArchive;

/// How a layer is written.
#[derive(Debug, Clone)]
pub struct WriteOptions {
    /// How the layer is compressed.
    pub form: LayerForm,
    /// How many threads compress. The bytes do not depend on it.
    pub threads: NonZeroUsize,
    /// Later modification times are lowered to this one.
    pub latest: Option<Timestamp>,
    /// The most bytes of all files, holes included: a hole of a terabyte takes no room, but an hour to write.
    pub bytes: Limit,
}

impl Default for WriteOptions {
    /// Gzip at level 6, one thread a processor, all times as they are, 64 GiB.
    fn default() -> Self {
        let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        Self { form: LayerForm::default(), threads, latest: None, bytes: Limits::WRITTEN }
    }
}

/// A layer that has been written.
#[derive(Debug, Clone, PartialEq)]
pub struct Written {
    /// The uncompressed bytes.
    pub diff_id: DiffId,
    /// Entries of the archive, extensions not counted.
    pub entries: u64,
}

/// Writes `changes`, whose content is in `from`, to `out` as a layer, with the default options. What the digest of the
/// compressed bytes is, `out` may find out.
///
/// The root itself and sockets have no entry. The second and every later name of a file is a hard link to the first.
/// Extended attributes are kept, except those of overlayfs and of security modules, which mean something else or nothing
/// on another machine. Memory: some blocks a thread, and a name for each file of several names.
///
/// # Errors
/// [`LayerError::Unwritable`] when a file is not there, changes while it is read, has a name that would be read as a
/// whiteout, or makes the layer too large; [`LayerError::Output`] when `out` fails. What was written so far is of no use.
pub fn write(changes: &Changeset, from: &Rootfs, out: &mut dyn Write) -> Result<Written, LayerError> {
    write_with(changes, from, out, &WriteOptions::default())
}

/// [`write()`] with all choices.
///
/// # Errors
/// As [`write()`].
pub fn write_with(
    changes: &Changeset,
    from: &Rootfs,
    out: &mut dyn Write,
    options: &WriteOptions,
) -> Result<Written, LayerError> {
    std::thread::scope(|scope| {
        let compressor =
            Compressor::new(out, options.form, options.threads, scope).map_err(LayerError::Output)?;
        let mut writer = LayerWriter::new(compressor, from, options.bytes);
        writer.latest = options.latest;
        for change in changes.iter() {
            match change {
                Change::Put(path) => writer.put(&path)?,
                Change::Remove(path) => writer.whiteout(&path)?,
            }
        }
        let (diff_id, entries, compressor) = writer.out.finish().map_err(LayerError::Output)?;
        compressor.finish().and_then(|out| out.flush()).map_err(LayerError::Output)?;
        Ok(Written { diff_id, entries })
    })
}

struct LayerWriter<'a, W> {
    out: TarWriter<W>,
    from: &'a Rootfs,
    /// What comes before the name of each entry.
    prefix: Vec<u8>,
    /// Later times are lowered to this one.
    latest: Option<Timestamp>,
    /// The time of all entries, if there is one.
    time: Option<Timestamp>,
    limit: Limit,
    /// Bytes of the files so far.
    bytes: u64,
    /// The directory of the last entry: the next one is mostly in it too.
    directory: Option<(GuestPath, OwnedFd)>,
    /// The first names of files with several names, by file system and number.
    first_names: BTreeMap<FileId, FirstName>,
    buffer: Vec<u8>,
}

/// The name by which a file with several is in the layer.
struct FirstName {
    path: GuestPath,
    /// How many other names it has that have not come yet: those outside the layer never do.
    to_come: u32,
}

fn unwritable(path: &GuestPath) -> impl Fn(WriteProblem) -> LayerError {
    let path = path.clone();
    move |problem| LayerError::Unwritable { path: path.clone(), problem }
}

fn io_problem<T, E: Into<io::Error>>(result: Result<T, E>, action: &'static str) -> Result<T, WriteProblem> {
    result.map_err(|error| WriteProblem::Io { action, source: error.into() })
}

/// Opens the regular file `name` of `at`, which must be the one that was `announced`.
fn open(at: BorrowedFd<'_>, name: &[u8], announced: &Metadata) -> Result<OwnedFd, WriteProblem> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = io_problem(rustix::fs::openat(at, name, flags, Mode::empty()), "open")?;
    let metadata = io_problem(metadata_of(&file), "read metadata")?;
    if metadata.kind == FileKind::File && metadata.same_file(announced) {
        Ok(file)
    } else {
        Err(WriteProblem::Changed)
    }
}

fn attributes_of_the_file(mut xattrs: Xattrs) -> Result<Xattrs, WriteProblem> {
    xattrs.retain(|key, _| Attribute::of(key) == Attribute::Image);
    match xattrs.keys().find(|key| key.contains(&b'=')) {
        Some(key) => Err(WriteProblem::Attribute(Escaped::new(key))),
        None => Ok(xattrs),
    }
}

impl<'a, W: Write> LayerWriter<'a, W> {
    /// One that keeps all times and writes no more than `limit` bytes of files.
    fn new(out: W, from: &'a Rootfs, limit: Limit) -> Self {
        Self {
            out: TarWriter::new(out),
            from,
            prefix: Vec::new(),
            latest: None,
            time: None,
            limit,
            bytes: 0,
            directory: None,
            first_names: BTreeMap::new(),
            buffer: vec![0; 1 << 17],
        }
    }

    /// Goes on with the entries of another tree.
    fn go_on_with(&mut self, from: &'a Rootfs) {
        self.from = from;
        self.directory = None;
        self.first_names.clear();
    }

    /// The name of an entry.
    fn name_of(&self, path: &GuestPath) -> Vec<u8> {
        [&self.prefix, path.relative()].concat()
    }

    /// Writes the end of the archive, and says how many entries it has.
    fn end(self) -> Result<u64, LayerError> {
        let (_, entries, mut out) = self.out.finish().map_err(LayerError::Output)?;
        out.flush().map_err(LayerError::Output)?;
        Ok(entries)
    }

    fn put(&mut self, path: &GuestPath) -> Result<(), LayerError> {
        if is_reserved(path) {
            return Err(unwritable(path)(WriteProblem::Reserved));
        }
        let Some((parent, name)) = path.parent().zip(path.file_name()) else { return Ok(()) };
        let directory = match self.directory.take() {
            Some((known, directory)) if known == parent => directory,
            _ => self.from.directory(&parent)?,
        };
        let result = self.put_from(path, directory.as_fd(), name);
        self.directory = Some((parent, directory));
        result
    }

    fn put_from(&mut self, path: &GuestPath, at: BorrowedFd<'_>, name: &[u8]) -> Result<(), LayerError> {
        let unwritable = unwritable(path);
        let metadata = match metadata_at(at, name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(unwritable(WriteProblem::Missing));
            }
            result => self.from.reveal(path, io_problem(result, "read metadata").map_err(&unwritable)?),
        };
        let mut entry_name = self.name_of(path);
        let mut link = Vec::new();
        let is_further_name =
            metadata.kind != FileKind::Directory && self.is_further_name(path, &metadata, &mut link);
        let file = match metadata.kind {
            FileKind::File if !is_further_name => Some(open(at, name, &metadata).map_err(&unwritable)?),
            _ => None,
        };
        let xattrs = match &file {
            Some(file) => xattrs_of(file),
            None => xattrs_at(at, name),
        };
        let mut xattrs = io_problem(xattrs, "read the extended attributes").map_err(&unwritable)?;
        self.from.reveal_xattrs(path, &mut xattrs);
        let xattrs = attributes_of_the_file(xattrs).map_err(&unwritable)?;
        let mut head = Head {
            name: &[],
            type_flag: b'0',
            mode: metadata.mode,
            owner: metadata.owner,
            size: 0,
            mtime: self.time_of(&metadata),
            link: &[],
            device: (0, 0),
            xattrs: &xattrs,
        };
        head.type_flag = match metadata.kind {
            FileKind::Socket => return Ok(()),
            _ if is_further_name => b'1',
            FileKind::Directory => {
                entry_name.push(b'/');
                b'5'
            }
            FileKind::File => {
                head.size = metadata.size;
                self.bytes = self.bytes.saturating_add(metadata.size);
                if self.limit.is_exceeded_by(self.bytes) {
                    return Err(unwritable(WriteProblem::TooLarge(self.limit)));
                }
                b'0'
            }
            FileKind::Symlink => {
                let target = rustix::fs::readlinkat(at, name, Vec::new());
                link = io_problem(target, "read the symbolic link").map_err(&unwritable)?.into_bytes();
                b'2'
            }
            FileKind::Fifo => b'6',
            FileKind::CharDevice => b'3',
            FileKind::BlockDevice => b'4',
        };
        if matches!(head.type_flag, b'3' | b'4') {
            head.device = (rustix::fs::major(metadata.rdev), rustix::fs::minor(metadata.rdev));
        }
        head.name = &entry_name;
        head.link = &link;
        self.out.head(&head).map_err(LayerError::Output)?;
        match file {
            Some(file) => self.content(&file, metadata.size, &unwritable),
            None => Ok(()),
        }
    }

    fn time_of(&self, metadata: &Metadata) -> Timestamp {
        let mtime = self.time.unwrap_or(metadata.mtime);
        self.latest.map_or(mtime, |latest| latest.min(mtime))
    }

    /// Whether another name of the file is in the layer already; then `link` becomes that.
    fn is_further_name(&mut self, path: &GuestPath, metadata: &Metadata, link: &mut Vec<u8>) -> bool {
        if metadata.links < 2 {
            return false;
        }
        let file = metadata.file();
        let Some(first) = self.first_names.get_mut(&file) else {
            self.first_names.insert(file, FirstName { path: path.clone(), to_come: metadata.links - 1 });
            return false;
        };
        *link = [&self.prefix, first.path.relative()].concat();
        first.to_come -= 1;
        if first.to_come == 0 {
            self.first_names.remove(&file);
        }
        true
    }

    /// Copies exactly the bytes that the header has announced.
    fn content(
        &mut self,
        file: &OwnedFd,
        size: u64,
        unwritable: &dyn Fn(WriteProblem) -> LayerError,
    ) -> Result<(), LayerError> {
        let mut left = size;
        loop {
            let count = match rustix::io::read(file, &mut self.buffer) {
                Err(Errno::INTR) => continue,
                result => io_problem(result, "read").map_err(unwritable)?,
            };
            // Reading goes on to the end, so that a file that has grown is noticed.
            if count as u64 > left || (count == 0 && left > 0) {
                return Err(unwritable(WriteProblem::Changed));
            }
            if count == 0 {
                break;
            }
            left -= count as u64;
            self.out.content(&self.buffer[..count]).map_err(LayerError::Output)?;
        }
        self.out.pad(size).map_err(LayerError::Output)
    }

    /// Writes the marker of a removed path: an empty file of nobody's, from 1970.
    fn whiteout(&mut self, path: &GuestPath) -> Result<(), LayerError> {
        let Some((parent, name)) = path.parent().zip(path.file_name()) else {
            return Err(unwritable(path)(WriteProblem::Missing));
        };
        if is_reserved(path) {
            return Err(unwritable(path)(WriteProblem::Reserved));
        }
        let marker = parent.child(&[WHITEOUT_PREFIX, name].concat());
        let head = Head {
            name: marker.relative(),
            type_flag: b'0',
            mode: 0,
            owner: Owner::ROOT,
            size: 0,
            mtime: self.latest.map_or(Timestamp::default(), |latest| latest.min(Timestamp::default())),
            link: &[],
            device: (0, 0),
            xattrs: &Xattrs::new(),
        };
        self.out.head(&head).map_err(LayerError::Output)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;
    use std::sync::Arc;

    use proptest::prelude::*;
    use rustix::fs::AtFlags;

    use super::super::test_support::{Header, apply, dir, dump, file, hard_link, header, is_root, path, pax};
    use super::super::{Limits, Whiteouts, decompress};
    use super::*;
    use crate::layer::Formats;
    use crate::layer::tar::{BLOCK, EntryKind, Reader};
    use crate::rootfs::testing::inside;
    use crate::rootfs::{DirectoryEntry, Overrides, set_times_at, set_xattr_at};

    fn tree() -> (tempfile::TempDir, Rootfs) {
        let directory = tempfile::tempdir().unwrap();
        let root = Rootfs::open(directory.path()).unwrap();
        (directory, root)
    }

    fn everything(root: &Rootfs) -> Changeset {
        let mut changes = Vec::new();
        let mut pending = vec![GuestPath::root()];
        while let Some(next) = pending.pop() {
            for (name, kind) in root.read_dir(&next).unwrap() {
                let child = next.child(&name);
                changes.push(Change::Put(child.clone()));
                if kind == FileKind::Directory {
                    pending.push(child);
                }
            }
        }
        changes.into_iter().collect()
    }

    fn options(threads: usize) -> WriteOptions {
        WriteOptions {
            form: LayerForm::default(),
            threads: NonZeroUsize::new(threads).unwrap(),
            latest: None,
            bytes: Limits::WRITTEN,
        }
    }

    fn written(changes: &Changeset, root: &Rootfs, options: &WriteOptions) -> (Written, Vec<u8>) {
        let mut blob = Vec::new();
        let written = write_with(changes, root, &mut blob, options).unwrap();
        let mut tar = Vec::new();
        io::Read::read_to_end(
            &mut decompress(blob.as_slice(), Formats::Layer, &Limits::default()).unwrap(),
            &mut tar,
        )
        .unwrap();
        assert_eq!(written.diff_id.0, crate::image::digest::Digest::of(&tar));
        (written, tar)
    }

    #[test]
    fn headers_are_ustar_where_everything_fits_and_pax_where_not() {
        let (_directory, root) = tree();
        let prefix = "p".repeat(120);
        let long = "n".repeat(150);
        root.create_dirs(&path(&prefix), 0o755, metadata_of(root.as_fd()).unwrap().owner).unwrap();
        let names =
            ["plain".to_owned(), format!("{prefix}/fits"), format!("{prefix}/{long}"), "é".to_owned()];
        for name in &names {
            let fd = root.open_file(&path(name), OFlags::CREATE | OFlags::WRONLY, 0o640).unwrap();
            rustix::io::write(&fd, b"content").unwrap();
            let (parent, base) = root.parent(&path(name)).unwrap();
            let seconds = if name == "plain" { 1_700_000_000 } else { 0 };
            set_times_at(parent.as_fd(), &base, Timestamp { seconds, nanoseconds: 0 }).unwrap();
        }
        set_times_at(root.as_fd(), prefix.as_bytes(), Timestamp { seconds: -1, nanoseconds: 5 }).unwrap();
        let (written, tar) = written(&everything(&root), &root, &options(1));
        assert_eq!(written.entries, 5);
        let flags: Vec<u8> =
            tar.chunks(512).filter(|block| &block[257..262] == b"ustar").map(|block| block[156]).collect();
        // The plain name, the directory (long with its slash, old), a name that fits, one that does not, one not ASCII.
        assert_eq!(flags, *b"0x50x0x0");
        let mut reader = Reader::new(tar.as_slice(), &Limits::default());
        let mut read = Vec::new();
        while let Some(entry) = reader.next_entry().unwrap() {
            read.push((String::from_utf8(entry.path).unwrap(), entry.mtime.seconds));
        }
        let expected = [
            (names[0].clone(), 1_700_000_000),
            (format!("{prefix}/"), -1),
            (names[1].clone(), 0),
            (names[2].clone(), 0),
            (names[3].clone(), 0),
        ];
        assert_eq!(read, expected);
    }

    #[test]
    fn removed_paths_are_empty_files_of_nobody() {
        let (_directory, root) = tree();
        let changes = Changeset::from_iter([Change::Remove(path("/a/b")), Change::Remove(path("/c"))]);
        let (_, tar) = written(&changes, &root, &options(1));
        let mut reader = Reader::new(tar.as_slice(), &Limits::default());
        for name in [&b"a/.wh.b"[..], b".wh.c"] {
            let entry = reader.next_entry().unwrap().unwrap();
            assert_eq!((entry.path.as_slice(), entry.kind, entry.mode), (name, EntryKind::File, 0));
            assert_eq!((entry.size, entry.owner, entry.mtime), (0, Owner::ROOT, Timestamp::default()));
        }
        assert!(reader.next_entry().unwrap().is_none());
        assert_eq!(tar.len(), 4 * BLOCK);
    }

    #[test]
    fn further_names_are_hard_links_and_sockets_and_the_root_are_left_out() {
        let (directory, root) = tree();
        std::fs::write(directory.path().join("b"), "x").unwrap();
        rustix::fs::linkat(root.as_fd(), "b", root.as_fd(), "a", AtFlags::empty()).unwrap();
        rustix::fs::linkat(root.as_fd(), "b", root.as_fd(), "c", AtFlags::empty()).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(directory.path().join("socket")).unwrap();
        let everything = everything(&root);
        let changes: Changeset = everything.iter().chain([Change::Put(GuestPath::root())]).collect();
        let (written, tar) = written(&changes, &root, &options(1));
        assert_eq!(written.entries, 3);
        let mut reader = Reader::new(tar.as_slice(), &Limits::default());
        for (name, link) in [(b"a", &b""[..]), (b"b", b"a"), (b"c", b"a")] {
            let entry = reader.next_entry().unwrap().unwrap();
            assert_eq!((entry.path.as_slice(), entry.link.as_slice()), (&name[..], link));
        }
    }

    #[test]
    fn what_cannot_be_a_layer_is_named() {
        let (directory, root) = tree();
        std::fs::create_dir(directory.path().join(".wh.dir")).unwrap();
        std::fs::write(directory.path().join(".wh.dir/x"), "x").unwrap();
        std::fs::write(directory.path().join("attribute"), "x").unwrap();
        set_xattr_at(root.as_fd(), b"attribute", b"user.a=b", b"").unwrap();
        for (change, message) in [
            (Change::Put(path("/.wh.dir")), "`/.wh.dir` cannot be part of a layer"),
            (Change::Remove(path("/a/.wh.b")), "`/a/.wh.b` cannot be part of a layer"),
            (Change::Put(path("/nothing")), "`/nothing` cannot be part of a layer"),
            (Change::Put(path("/attribute")), "`/attribute` cannot be part of a layer"),
        ] {
            let error = write(&Changeset::from_iter([change]), &root, &mut Vec::new()).unwrap_err();
            assert_eq!(error.to_string(), message);
        }
        assert!(
            write(&Changeset::from_iter([Change::Put(path("/.wh.dir/x"))]), &root, &mut Vec::new()).is_ok()
        );
    }

    #[test]
    fn a_file_that_changes_is_an_error() {
        // Files of /proc are longer than they say.
        let root = Rootfs::open(std::path::Path::new("/proc/self")).unwrap();
        let error =
            write(&Changeset::from_iter([Change::Put(path("/status"))]), &root, &mut Vec::new()).unwrap_err();
        assert!(matches!(error, LayerError::Unwritable { problem: WriteProblem::Changed, .. }), "{error:?}");
    }

    #[test]
    fn the_files_of_a_layer_have_a_limit_and_holes_count() {
        let (directory, root) = tree();
        for (name, size) in [("a", 1000), ("b", 1 << 40), ("c", 1001)] {
            std::fs::File::create(directory.path().join(name)).unwrap().set_len(size).unwrap();
        }
        rustix::fs::linkat(root.as_fd(), "a", root.as_fd(), "a2", AtFlags::empty()).unwrap();
        let options = WriteOptions { bytes: Limits::WRITTEN.with(2000), ..options(1) };
        let write = |names: &[&str]| {
            let changes = names.iter().map(|name| Change::Put(path(&format!("/{name}"))));
            write_with(&changes.collect(), &root, &mut Vec::new(), &options)
        };
        // Further names are not further files.
        write(&["a", "a2"]).unwrap();
        for names in [&["b"][..], &["a", "b"], &["a", "c"]] {
            let error = write(names).unwrap_err();
            let LayerError::Unwritable { path, problem } = error else { panic!("{error:?}") };
            assert_eq!(path.to_string(), format!("/{}", names[names.len() - 1]));
            assert_eq!(
                problem.to_string(),
                "the files of the layer hold more than 2000 bytes; raise it with `--limit new-layer-bytes=N`"
            );
        }
    }

    #[test]
    fn late_times_are_lowered_on_request() {
        let (directory, root) = tree();
        std::fs::write(directory.path().join("f"), "x").unwrap();
        let latest = Timestamp { seconds: 1_000, nanoseconds: 0 };
        let options = WriteOptions { latest: Some(latest), ..options(1) };
        let (_, tar) = written(&everything(&root), &root, &options);
        let mut reader = Reader::new(tar.as_slice(), &Limits::default());
        assert_eq!(reader.next_entry().unwrap().unwrap().mtime, latest);
    }

    #[derive(Debug, Clone)]
    struct Node {
        name: Vec<u8>,
        what: u8,
        mode: u32,
        uid: u32,
        gid: u32,
        seconds: i64,
        nanoseconds: u32,
        size: usize,
        attribute: Option<Vec<u8>>,
    }

    fn nodes() -> impl Strategy<Value = Vec<Node>> {
        let component = prop_oneof![
            "[a-c]".prop_map(String::into_bytes),
            "[a-z é]{1,3}".prop_map(String::into_bytes),
            (90usize..=255).prop_map(|length| vec![b'L'; length]),
            Just(b"\xff\n".to_vec()),
        ];
        let name = prop::collection::vec(component, 1..4).prop_map(|components| components.join(&b'/'));
        let ids = prop_oneof![0u32..3, 2_097_150..2_097_154u32, Just(u32::MAX - 1)];
        let seconds = prop_oneof![-3i64..3, 1_600_000_000i64..1_700_000_000];
        let nanoseconds = prop_oneof![Just(0u32), 0u32..1_000_000_000];
        let attribute = prop::option::of(prop::collection::vec(any::<u8>(), 0..40));
        let rest = (ids.clone(), ids, seconds, nanoseconds, 0usize..2000, attribute);
        let node = (name, 0u8..8, 0u32..0o10000, rest).prop_map(
            |(name, what, mode, (uid, gid, seconds, nanoseconds, size, attribute))| Node {
                name,
                what,
                mode,
                uid,
                gid,
                seconds,
                nanoseconds,
                size,
                attribute,
            },
        );
        prop::collection::vec(node, 0..12)
    }

    /// Makes what can be made; names that are taken are left as they are.
    fn plant(root: &Rootfs, nodes: &[Node]) {
        let mut made = Vec::new();
        for node in nodes {
            let path = GuestPath::clamp(&node.name).unwrap();
            let Some(parent) = path.parent() else { continue };
            if root.create_dirs(&parent, 0o755, Owner::ROOT).is_err() {
                continue;
            }
            let (at, name) = root.parent(&path).unwrap();
            let name = name.as_slice();
            let entry = root.entry(&at, name);
            let done = match node.what {
                0 | 1 => entry
                    .make_file()
                    .is_ok_and(|file| rustix::io::write(file, &vec![b'x'; node.size]).is_ok()),
                2 => entry.make_directory().is_ok(),
                3 => entry.make_symlink(&node.name.repeat(3)).is_ok(),
                4 => entry.make_node(FileKind::Fifo, 0).is_ok(),
                5 => entry.make_node(FileKind::CharDevice, rustix::fs::makedev(1, 3)).is_ok(),
                6 => entry.make_node(FileKind::BlockDevice, rustix::fs::makedev(300, 70_000)).is_ok(),
                _ => made.first().is_some_and(|(from, from_name, _): &(OwnedFd, Vec<u8>, Node)| {
                    entry.make_link(&root.entry(from, from_name)).is_ok()
                }),
            };
            // Times of directories come last. Further names have what the first one has.
            if done && !matches!(node.what, 2 | 7..) {
                describe(&entry, node);
            }
            if done {
                made.push((at, name.to_vec(), node.clone()));
            }
        }
        for (at, name, node) in made.iter().rev().filter(|(_, _, node)| node.what == 2) {
            describe(&root.entry(at, name), node);
        }
    }

    /// Gives an entry what `node` says, and looks whether it has it.
    fn describe(entry: &DirectoryEntry<'_>, node: &Node) {
        let owner = Owner { uid: node.uid, gid: node.gid };
        entry.set_owner(owner).unwrap();
        let is_link = entry.metadata().unwrap().kind == FileKind::Symlink;
        if !is_link {
            entry.set_mode(node.mode).unwrap();
        }
        if let Some(value) = &node.attribute {
            entry.set_xattr(b"trusted.test", value).unwrap();
        }
        entry.set_times(Timestamp { seconds: node.seconds, nanoseconds: node.nanoseconds }).unwrap();
        let after = entry.metadata().unwrap();
        assert_eq!((after.owner, is_link || after.mode == node.mode), (owner, true));
        assert_eq!(entry.xattrs().unwrap().get(&b"trusted.test"[..]), node.attribute.as_ref());
    }

    /// A layer of a random tree, applied, is the tree, and written again, the layer.
    fn check_round_trip(nodes: &[Node], tree: impl Fn() -> (tempfile::TempDir, Rootfs)) {
        let (_directory, root) = tree();
        plant(&root, nodes);
        let (_, tar) = written(&everything(&root), &root, &options(1));
        for whiteouts in [Whiteouts::Overlay, Whiteouts::Remove] {
            let (_directory, again) = tree();
            let applied = apply(&mut Cursor::new(&tar), &again, whiteouts, &Limits::default()).unwrap();
            assert!(applied.losses == Default::default() && applied.implied.is_empty());
            let (before, after) = (dump(&root), dump(&again));
            // The first line is the root, which has no entry.
            assert_eq!(&before[1..], &after[1..]);
            let (_, twice) = written(&everything(&again), &again, &options(2));
            assert!(tar == twice);
        }
    }

    fn tree_with_overrides() -> (tempfile::TempDir, Rootfs) {
        let (directory, root) = tree();
        (directory, root.holding(Arc::default(), Overrides::LIMIT))
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn applying_what_was_written_gives_the_tree_again(nodes in nodes()) {
            if is_root() {
                check_round_trip(&nodes, tree);
                check_round_trip(&nodes, tree_with_overrides);
            }
        }
    }

    /// [`check_round_trip`] on random trees, for a test that runs with less than root has.
    fn check_round_trips() {
        let config = ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() };
        proptest!(config, |(nodes in nodes())| check_round_trip(&nodes, tree_with_overrides));
    }

    #[test]
    fn in_a_user_namespace_it_gives_the_tree_again_too() {
        if inside!(SingleId) {
            check_round_trips();
        }
    }

    #[test]
    fn for_an_ordinary_user_it_gives_the_tree_again_too() {
        if inside!(OrdinaryUser) {
            check_round_trips();
        }
    }

    /// The digest of the layer that comes of one with all that only root may make, unpacked and written again.
    const RICH: &str = "sha256:776cc235d09ace09f69d958ba9cd4a1eed44c556a7c2af4bde6da3b731dc208b";

    fn check_rich_layer(tree: impl Fn() -> (tempfile::TempDir, Rootfs)) {
        let owned = |name: &str, flag, mode, (uid, gid): (u32, u32)| {
            let ids = [uid.to_string(), gid.to_string()];
            let records = [("uid", ids[0].as_bytes()), ("gid", ids[1].as_bytes())];
            [pax(&records), Header { mode, ..header(name, flag) }.bytes()].concat()
        };
        let with_attribute = |key: &str, value: &[u8], entry: Vec<u8>| {
            [pax(&[(&format!("SCHILY.xattr.{key}"), value)]), entry].concat()
        };
        let device = |name: &str, flag, device| Header { device, mode: 0o666, ..header(name, flag) }.bytes();
        let capability = b"\x01\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
        let list = b"\x02\0\0\0\x01\0\x06\0\xff\xff\xff\xff\x02\0\x04\0\xe9\x03\0\0\x04\0\x04\0\xff\xff\xff\xff\x10\0\x04\0\xff\xff\xff\xff\x20\0\x04\0\xff\xff\xff\xff";
        let mut entries = vec![
            owned("etc/", b'5', 0o755, (0, 0)),
            owned("etc/shadow", b'0', 0o640, (0, 42)),
            owned("dev/", b'5', 0o755, (0, 0)),
            device("dev/null", b'3', (1, 3)),
            device("dev/zero-zero", b'3', (0, 0)),
            device("dev/disk", b'4', (8, 70_000)),
            hard_link("dev/null-too", "dev/null"),
            owned("pipe", b'6', 0o622, (7, 8)),
            owned("unreadable", b'0', 0, (0, 0)),
            owned("closed/", b'5', 0o500, (1000, 1000)),
            owned("closed/setuid", b'0', 0o6755, (1000, 0)),
            hard_link("closed/setuid-too", "closed/setuid"),
            owned("closed/setgid/", b'5', 0o2775, (0, 50)),
            Header { link: b"nowhere".to_vec(), uid: 33, ..header("link", b'2') }.bytes(),
            with_attribute("security.capability", capability, file("capable", b"x")),
            with_attribute("trusted.t", b"\0=\n", file("trusted", b"x")),
            with_attribute(
                "system.posix_acl_access",
                list,
                Header { mode: 0o644, ..header("list", b'0') }.bytes(),
            ),
            with_attribute("user.u", b"u", dir("attribute/")),
            // What is replaced leaves nothing.
            owned("again", b'0', 0o640, (5, 5)),
            file("again", b""),
            owned("gone/", b'5', 0o711, (5, 5)),
            owned("gone/x", b'0', 0o711, (5, 5)),
            file("gone", b""),
        ];
        entries.extend((0..70).map(|id| owned(&format!("id{id}"), b'0', 0o600, (id * 1000, id * 1000))));
        let tar = entries.concat();
        for whiteouts in [Whiteouts::Overlay, Whiteouts::Remove] {
            let (_directory, root) = tree();
            let applied = apply(&mut Cursor::new(&tar), &root, whiteouts, &Limits::default()).unwrap();
            assert_eq!(applied.losses, Default::default());
            let (written, _) = written(&everything(&root), &root, &options(1));
            assert_eq!(written.diff_id.0.to_string(), RICH, "{:#?}", dump(&root));
        }
    }

    #[test]
    fn a_layer_is_the_same_whoever_unpacks_it() {
        if inside!(SingleId) || inside!(OrdinaryUser) || is_root() {
            check_rich_layer(tree_with_overrides);
        }
    }
}
