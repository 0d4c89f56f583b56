//! ADD of local files: archives are unpacked, everything else is copied.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};

use super::copy::{
    Attributes, Copied, Copier, CopyError, CopyRequest, Place, Selected, child, create, make_node,
    set_attributes, tried,
};
use crate::layer::Limits;
use crate::layer::decompress::decompress;
use crate::layer::tar::{Entry, EntryKind, Reader, TarError};
use crate::rootfs::{
    Escaped, FileKind, Follow, GuestPath, GuestPathError, Metadata, Owner, Rootfs, Timestamp, metadata_of,
    remove_tree,
};

/// Why something could not be added.
#[derive(Debug, thiserror::Error)]
pub enum AddError {
    /// As for COPY.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// An archive that is damaged.
    #[error("cannot unpack `{archive}`")]
    Archive {
        /// The file in the source tree.
        archive: GuestPath,
        /// What is wrong.
        #[source]
        source: TarError,
    },
    /// An entry whose name or link is no path.
    #[error("cannot unpack `{entry}` of `{archive}`")]
    Name {
        /// The file in the source tree.
        archive: GuestPath,
        /// The name of the entry.
        entry: Escaped,
        /// What is wrong with it.
        #[source]
        source: GuestPathError,
    },
    /// More than may be unpacked.
    #[error("`{archive}` has more than {limit} {what}")]
    TooLarge {
        /// The file in the source tree.
        archive: GuestPath,
        /// Entries or bytes.
        what: &'static str,
        /// How many there may be.
        limit: u64,
    },
}

/// Like [`copy`](super::copy::copy), but unpacks each source that is, or whose link leads to, a file which begins with a
/// tar header once decompressed (gzip, bzip2, xz, zstd), whatever its name. Entries keep their owners unless
/// [`CopyRequest::chown`] is set; [`CopyRequest::chmod`] does not apply to them. Their names stay below the destination,
/// which becomes a directory; links in it are followed inside `onto`.
///
/// # Errors
/// [`AddError`].
pub fn add(
    request: &CopyRequest<'_>,
    onto: &Rootfs,
    now: Timestamp,
    limits: &Limits,
) -> Result<Copied, AddError> {
    let mut copier = Copier::new(request, onto, now)?;
    for selected in copier.select()? {
        match &selected {
            Selected::Tree { path, metadata, .. } if metadata.kind == FileKind::File => {
                match Archive::open(request.from.root, path, limits)? {
                    Some(archive) => archive.unpack(&mut copier, limits)?,
                    None => copier.place(&selected)?,
                }
            }
            _ => copier.place(&selected)?,
        }
    }
    Ok(copier.finish()?)
}

/// An archive whose first entry is read.
struct Archive<'p> {
    path: &'p GuestPath,
    file: File,
    /// What the file was when it was opened.
    metadata: Metadata,
    reader: Reader<Box<dyn Read>>,
    first: Entry,
}

impl<'p> Archive<'p> {
    /// None if the file is no archive.
    fn open(root: &Rootfs, path: &'p GuestPath, limits: &Limits) -> Result<Option<Self>, CopyError> {
        let file = root.open_file(path, OFlags::RDONLY | OFlags::NOFOLLOW, 0).map_err(CopyError::Source)?;
        let file = File::from(file);
        let metadata = tried(metadata_of(&file), "read metadata of", path)?;
        if metadata.kind != FileKind::File {
            return Err(CopyError::Changed { path: path.clone() });
        }
        let again = tried(file.try_clone(), "open", path)?;
        let Ok(decompressed) = decompress(again) else { return Ok(None) };
        let mut reader = Reader::new(decompressed, limits.bytes);
        // Whatever is wrong with the first header, then this is no archive; a file that cannot be read cannot be copied.
        let Ok(Some(first)) = reader.next_entry() else { return Ok(None) };
        Ok(Some(Self { path, file, metadata, reader, first }))
    }

    fn unpack(self, copier: &mut Copier<'_>, limits: &Limits) -> Result<(), AddError> {
        let Self { path, file, metadata, mut reader, first } = self;
        let damaged = |source| AddError::Archive { archive: path.clone(), source };
        let too_large = |what, limit| AddError::TooLarge { archive: path.clone(), what, limit };
        let top = copier.directory()?;
        let mut unpacking = Unpacking { archive: path, copier, top, directory: None };
        let (mut entries, mut bytes) = (0u64, 0u64);
        let mut next = Some(first);
        while let Some(entry) = next {
            entries += 1;
            bytes = bytes.saturating_add(entry.size);
            if entries > limits.entries {
                return Err(too_large("entries", limits.entries));
            }
            if bytes > limits.bytes {
                return Err(too_large("bytes", limits.bytes));
            }
            unpacking.entry(&entry, &mut reader)?;
            next = reader.next_entry().map_err(damaged)?;
        }
        // The check sum of a compressed archive comes behind its last entry.
        reader.drain().map_err(damaged)?;
        let after = tried(metadata_of(&file), "read metadata of", path)?;
        if (after.size, after.mtime) != (metadata.size, metadata.mtime) {
            return Err(CopyError::Changed { path: path.clone() }.into());
        }
        Ok(())
    }
}

struct Unpacking<'u, 'a> {
    archive: &'u GuestPath,
    copier: &'u mut Copier<'a>,
    top: GuestPath,
    /// The directory of the last entry: the next is mostly in the same.
    directory: Option<Rc<Directory>>,
}

struct Directory {
    /// As archives name it.
    path: GuestPath,
    /// Without links.
    real: GuestPath,
    open: OwnedFd,
}

impl Unpacking<'_, '_> {
    fn entry(&mut self, entry: &Entry, content: &mut Reader<Box<dyn Read>>) -> Result<(), AddError> {
        let path = self.below_top(&entry.path, &entry.path)?;
        // Like docker: what the archive says of its top does not concern the destination.
        if path == self.top {
            return Ok(());
        }
        let parent = path.parent().unwrap_or_else(GuestPath::root);
        let directory = self.directory(parent)?;
        let name = path.file_name().unwrap_or_default();
        let real = child(&directory.real, name)?;
        let to = Place { directory: &directory.open, name, path: &real };
        let existing = to.metadata()?.map(|metadata| metadata.kind);
        let merges = existing == Some(FileKind::Directory) && entry.kind == EntryKind::Directory;
        if existing.is_some() && !merges {
            tried(remove_tree(directory.open.as_fd(), name), "remove", &real)?;
            self.copier.forget_times(&real);
            self.directory = None;
        }
        if !merges {
            self.make(entry, content, &to)?;
        }
        self.set_attributes(entry, &to)
    }

    fn make(
        &mut self,
        entry: &Entry,
        content: &mut Reader<Box<dyn Read>>,
        to: &Place<'_>,
    ) -> Result<(), AddError> {
        let device = rustix::fs::makedev(entry.device.0, entry.device.1);
        match entry.kind {
            EntryKind::Directory => {
                tried(rustix::fs::mkdirat(to.directory, to.name, Mode::RWXU), "make directory", to.path)?;
            }
            EntryKind::File => self.write(content, to)?,
            EntryKind::Symlink => {
                tried(rustix::fs::symlinkat(&entry.link, to.directory, to.name), "make link", to.path)?;
            }
            EntryKind::HardLink => {
                let target = self.below_top(&entry.link, &entry.path)?;
                let (directory, name) = self.copier.onto.parent(&target).map_err(CopyError::Destination)?;
                let linked = rustix::fs::linkat(&directory, &name, to.directory, to.name, AtFlags::empty());
                tried(linked, "link", to.path)?;
            }
            EntryKind::Fifo => make_node(to, FileType::Fifo, 0)?,
            EntryKind::CharDevice => make_node(to, FileType::CharacterDevice, device)?,
            EntryKind::BlockDevice => make_node(to, FileType::BlockDevice, device)?,
        }
        if entry.kind != EntryKind::Directory {
            self.copier.done.files += 1;
            self.copier.done.bytes += entry.size;
        }
        Ok(())
    }

    fn set_attributes(&mut self, entry: &Entry, to: &Place<'_>) -> Result<(), AddError> {
        let is_link = match entry.kind {
            EntryKind::Symlink => true,
            EntryKind::HardLink => to.metadata()?.is_some_and(|metadata| metadata.kind == FileKind::Symlink),
            _ => false,
        };
        let attributes = Attributes {
            owner: self.copier.request.chown.unwrap_or(entry.owner),
            mode: (!is_link).then_some(entry.mode),
            mtime: entry.mtime,
            xattrs: entry.xattrs.clone(),
        };
        set_attributes(to, &attributes)?;
        if entry.kind == EntryKind::Directory {
            self.copier.remember_time(to.path.clone(), entry.mtime);
        }
        Ok(())
    }

    /// The path that a name in the archive stands for: `..` and a leading slash do not lead above the destination.
    fn below_top(&self, name: &[u8], entry: &[u8]) -> Result<GuestPath, AddError> {
        let below = GuestPath::clamp(name).and_then(|clamped| self.top.join(clamped.relative()));
        below.map_err(|source| AddError::Name {
            archive: self.archive.clone(),
            entry: Escaped::new(entry),
            source,
        })
    }

    /// The directory `path`, made if it is missing.
    fn directory(&mut self, path: GuestPath) -> Result<Rc<Directory>, AddError> {
        if let Some(known) = self.directory.as_ref().filter(|known| known.path == path) {
            return Ok(Rc::clone(known));
        }
        self.copier.make_directories_with(&path, 0o755, Owner::ROOT)?;
        let onto = self.copier.onto;
        let real = onto.resolve(&path).map_err(CopyError::Destination)?;
        let open = onto.open_path(&real, Follow::No).map_err(CopyError::Destination)?;
        let directory = Rc::new(Directory { path, real, open });
        self.directory = Some(Rc::clone(&directory));
        Ok(directory)
    }

    fn write(&self, content: &mut Reader<Box<dyn Read>>, to: &Place<'_>) -> Result<(), AddError> {
        let mut file = create(to)?;
        let mut buffer = vec![0; 128 * 1024];
        loop {
            let count = content
                .read_content(&mut buffer)
                .map_err(|source| AddError::Archive { archive: self.archive.clone(), source })?;
            let written = match &buffer[..count] {
                [] => break,
                // Sparse files of the archive may be larger than any disk.
                zeros if zeros.iter().all(|byte| *byte == 0) => {
                    file.seek(SeekFrom::Current(count as i64)).map(drop)
                }
                bytes => file.write_all(bytes),
            };
            tried(written, "write", to.path)?;
        }
        let end = tried(file.stream_position(), "write", to.path)?;
        tried(file.set_len(end), "write", to.path)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    use super::super::copy::tests::{Ground, NOW};
    use super::*;

    fn fixture(ground: &Ground, archive: &str, name: &str) {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/archives").join(archive);
        ground.file(&format!("{name}="));
        std::fs::write(ground.context(name), std::fs::read(from).unwrap()).unwrap();
    }

    fn add_limited(ground: &Ground, instruction: &str, limits: &Limits) -> Result<Copied, AddError> {
        let result = std::cell::RefCell::new(None);
        let act = |request: &CopyRequest<'_>, onto: &Rootfs| {
            *result.borrow_mut() = Some(add(request, onto, NOW, limits));
            Ok(Copied::default())
        };
        ground.run(instruction, act).unwrap();
        result.into_inner().unwrap()
    }

    fn run(ground: &Ground, instruction: &str) -> Result<Copied, String> {
        let chain = |error: AddError| {
            let mut text = error.to_string();
            let mut source = std::error::Error::source(&error);
            while let Some(cause) = source {
                text = format!("{text}: {cause}");
                source = cause.source();
            }
            text
        };
        add_limited(ground, instruction, &Limits::default()).map_err(chain)
    }

    /// A tar archive of entries: name, kind, mode, content or link target.
    fn tar(entries: &[(&str, tar::EntryType, u32, &str)]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (name, kind, mode, content) in entries {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_mode(*mode);
            header.set_mtime(1_000_000_000);
            header.set_uid(3);
            header.set_gid(4);
            let file = *kind == tar::EntryType::Regular;
            if !file {
                header.as_gnu_mut().unwrap().linkname[..content.len()].copy_from_slice(content.as_bytes());
            }
            header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
            let content = if file { content.as_bytes() } else { b"" };
            header.set_size(content.len() as u64);
            header.set_cksum();
            builder.append(&header, content).unwrap();
        }
        builder.into_inner().unwrap()
    }

    const FILE: tar::EntryType = tar::EntryType::Regular;
    const DIRECTORY: tar::EntryType = tar::EntryType::Directory;
    const SYMLINK: tar::EntryType = tar::EntryType::Symlink;
    const LINK: tar::EntryType = tar::EntryType::Link;

    fn archive(ground: &Ground, name: &str, entries: &[(&str, tar::EntryType, u32, &str)]) {
        ground.file(&format!("{name}="));
        std::fs::write(ground.context(name), tar(entries)).unwrap();
    }

    #[test]
    fn archives_are_told_by_their_content_in_every_compression() {
        for (fixed, name) in [
            ("a.tar", "a.tar"),
            ("a.tgz", "a.tgz"),
            ("a.bz2", "a.bz2"),
            ("a.xz", "a.xz"),
            ("a.tzst", "a.tzst"),
            ("a.tgz", "n.bin"),
        ] {
            let Some(ground) = Ground::new() else { return };
            fixture(&ground, fixed, name);
            run(&ground, &format!("{name} /x/")).unwrap();
            ground.check(&[
                ("x", "d 755 0:0"),
                ("x/p", "d 700 30:40"),
                ("x/p/q", "f 4755 31:41"),
                ("x/s", "l 777 0:0 ->p/q"),
                ("x/imp", "d 755 0:0"),
                ("x/imp/lied", "f 644 0:0"),
                (&format!("x/{name}"), "-"),
            ]);
            for path in ["x/p", "x/p/q", "x/s", "x/imp/lied"] {
                assert_eq!(
                    std::fs::symlink_metadata(ground.root(path)).unwrap().mtime(),
                    1_000_000_000,
                    "{path}"
                );
            }
        }
    }

    #[test]
    fn everything_else_is_copied() {
        let Some(ground) = Ground::new() else { return };
        for name in ["empty.tar.gz", "zero.tar", "plain.gz", "a.tar.lz"] {
            fixture(&ground, name, name);
            run(&ground, &format!("{name} /x/")).unwrap();
            ground.check(&[(&format!("x/{name}"), "f 644 0:0")]);
            assert_eq!(
                std::fs::read(ground.root("x").join(name)).unwrap(),
                std::fs::read(ground.context(name)).unwrap()
            );
        }
        fixture(&ground, "a.tar", "d/a.tar");
        run(&ground, "d /y/").unwrap();
        ground.check(&[("y/a.tar", "f 644 0:0"), ("y/p", "-")]);
        for (name, content) in
            [("gz", &b"\x1f\x8b\x08broken"[..]), ("zst", b"\x28\xb5\x2f\xfd"), ("xz", b"\xfd7zXZ\0")]
        {
            ground.file(&format!("{name}="));
            std::fs::write(ground.context(name), content).unwrap();
            run(&ground, &format!("{name} /z/")).unwrap();
            assert_eq!(std::fs::read(ground.root("z").join(name)).unwrap(), content);
        }
    }

    #[test]
    fn links_and_wildcards_lead_to_archives_too() {
        let Some(ground) = Ground::new() else { return };
        fixture(&ground, "a.tar", "d/a.tar");
        ground.file("l->d/a.tar");
        run(&ground, "l /x").unwrap();
        run(&ground, "d/* /y").unwrap();
        ground.check(&[("x/p/q", "f 4755 31:41"), ("y/p/q", "f 4755 31:41")]);
    }

    #[test]
    fn chown_holds_for_every_entry_and_chmod_for_none() {
        let Some(ground) = Ground::new() else { return };
        fixture(&ground, "a.tar", "a.tar");
        run(&ground, "--chown=5:6 --chmod=777 a.tar /x/").unwrap();
        ground.check(&[
            ("x", "d 755 5:6"),
            ("x/p", "d 700 5:6"),
            ("x/p/q", "f 4755 5:6"),
            ("x/s", "l 777 5:6"),
            ("x/imp", "d 755 0:0"),
        ]);
    }

    #[test]
    fn names_stay_below_the_destination() {
        let Some(ground) = Ground::new() else { return };
        fixture(&ground, "esc.tar", "esc.tar");
        fixture(&ground, "abs.tar", "abs.tar");
        run(&ground, "esc.tar abs.tar /x/y/").unwrap();
        ground.check(&[("x/y/esc", "f 644 0:0"), ("x/y/absf", "f 644 0:0"), ("x/esc", "-"), ("absf", "-")]);
        archive(
            &ground,
            "links.tar",
            &[
                ("up", SYMLINK, 0o777, "../../../../.."),
                ("up/canary", FILE, 0o644, "in the root"),
                ("hard", LINK, 0o644, "../../../../canary"),
            ],
        );
        let error = run(&ground, "links.tar /x/").unwrap_err();
        assert!(error.starts_with("cannot link `/x/hard`"), "{error}");
        ground.check(&[("canary", "f 644 3:4 =in the root"), ("x/up", "l 777 3:4 ->../../../../..")]);
    }

    #[test]
    fn existing_links_are_followed_inside_the_root() {
        let Some(ground) = Ground::new() else { return };
        ground.in_root("data/");
        ground.in_root("x/l->/data");
        ground.in_root("x/out->../../../../etc");
        archive(&ground, "a.tar", &[("l/f", FILE, 0o600, "F"), ("out/passwd", FILE, 0o644, "P")]);
        run(&ground, "a.tar /x").unwrap();
        ground.check(&[
            ("x/l", "l 777 0:0 ->/data"),
            ("data/f", "f 600 3:4 =F"),
            ("etc/passwd", "f 644 3:4 =P"),
        ]);
    }

    #[test]
    fn entries_replace_what_is_there() {
        let Some(ground) = Ground::new() else { return };
        ground.in_root("x/d/deep/file=old");
        ground.in_root("x/f=old");
        ground.in_root("x/link->/elsewhere");
        ground.in_root("elsewhere/keep=kept");
        for name in ["filedir.tar", "dirfile.tar", "name.tar"] {
            fixture(&ground, name, name);
        }
        archive(&ground, "link.tar", &[("link", DIRECTORY, 0o711, ""), ("link/new", FILE, 0o644, "N")]);
        run(&ground, "filedir.tar dirfile.tar link.tar /x/").unwrap();
        ground.check(&[
            ("x/d", "f 644 0:0"),
            ("x/f", "d 644 0:0"),
            ("x/f/k", "f 644 0:0"),
            ("x/link", "d 711 3:4"),
            ("x/link/new", "f 644 3:4 =N"),
            ("elsewhere/keep", "f 644 0:0 =kept"),
            ("elsewhere/new", "-"),
        ]);
        run(&ground, "name.tar /x/").unwrap();
        ground.check(&[("x/f", "f 644 5:5")]);
    }

    #[test]
    fn a_directory_merges_and_gets_the_time_of_its_entry() {
        let Some(ground) = Ground::new() else { return };
        ground.in_root("x/d/old=old");
        archive(
            &ground,
            "a.tar",
            &[
                ("./", DIRECTORY, 0o700, ""),
                ("d/", DIRECTORY, 0o750, ""),
                ("d/new", FILE, 0o644, "N"),
                ("gone/", DIRECTORY, 0o755, ""),
                ("gone/below/", DIRECTORY, 0o755, ""),
                ("gone", FILE, 0o644, "a file after all"),
                ("hard", LINK, 0o4711, "d/new"),
            ],
        );
        assert_eq!(run(&ground, "a.tar /x").unwrap().files, 3);
        ground.check(&[
            ("x", "d 755 0:0"),
            ("x/d", "d 750 3:4"),
            ("x/d/old", "f 644 0:0 =old"),
            ("x/d/new", "f 4711 3:4 =N"),
            ("x/gone", "f 644 3:4 =a file after all"),
        ]);
        assert_eq!(std::fs::metadata(ground.root("x/d")).unwrap().mtime(), 1_000_000_000);
        let inode = |name| std::fs::metadata(ground.root(name)).unwrap().ino();
        assert_eq!(inode("x/d/new"), inode("x/hard"));
    }

    #[test]
    fn whiteouts_are_ordinary_names() {
        let Some(ground) = Ground::new() else { return };
        ground.in_root("x/d/g=kept");
        fixture(&ground, "wh.tar", "wh.tar");
        run(&ground, "wh.tar /x/").unwrap();
        ground.check(&[
            ("x/d/g", "f 644 0:0 =kept"),
            ("x/d/.wh.g", "f 644 0:0"),
            ("x/.wh..wh..opq", "f 644 0:0"),
            ("x/x", "f 644 0:0"),
        ]);
    }

    #[test]
    fn the_destination_is_a_directory() {
        let Some(ground) = Ground::new() else { return };
        ground.in_root("x=file");
        fixture(&ground, "a.tar", "a.tar");
        assert_eq!(run(&ground, "a.tar /x").unwrap_err(), "`/x` is not a directory");
        archive(&ground, "below.tar", &[("f", FILE, 0o644, ""), ("f/g", FILE, 0o644, "")]);
        assert_eq!(run(&ground, "below.tar /y").unwrap_err(), "`/y/f` is not a directory");
    }

    #[test]
    fn damaged_and_oversized_archives_are_errors() {
        let Some(ground) = Ground::new() else { return };
        let content = "x".repeat(5000);
        archive(&ground, "a.tar", &[("f", FILE, 0o644, &content), ("g", FILE, 0o644, &content)]);
        let whole = std::fs::read(ground.context("a.tar")).unwrap();
        for length in [600, 3000, 6000, 8000] {
            std::fs::write(ground.context("short.tar"), &whole[..length]).unwrap();
            let error = run(&ground, "short.tar /x").unwrap_err();
            assert!(error.starts_with("cannot unpack `/short.tar`: "), "{length}: {error}");
        }
        for (limits, what) in [
            (Limits { entries: 1, ..Limits::default() }, "`/a.tar` has more than 1 entries"),
            (Limits { bytes: 9000, ..Limits::default() }, "`/a.tar` has more than 9000 bytes"),
            (Limits { bytes: 10_500, ..Limits::default() }, "cannot unpack `/a.tar`"),
        ] {
            assert_eq!(add_limited(&ground, "a.tar /y", &limits).unwrap_err().to_string(), what);
        }
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&whole).unwrap();
        let mut compressed = gzip.finish().unwrap();
        let last = compressed.len() - 6;
        compressed[last] ^= 1;
        std::fs::write(ground.context("sum.tgz"), compressed).unwrap();
        assert!(run(&ground, "sum.tgz /z").unwrap_err().starts_with("cannot unpack `/sum.tgz`"));
    }

    #[test]
    fn zeros_are_content() {
        let Some(ground) = Ground::new() else { return };
        let zeros = "\0".repeat(300_000);
        for (name, content) in
            [("a", format!("{zeros}end")), ("b", format!("start{zeros}")), ("c", zeros.clone())]
        {
            archive(&ground, "a.tar", &[(name, FILE, 0o644, &content)]);
            run(&ground, "a.tar /x").unwrap();
            assert!(std::fs::read(ground.root("x").join(name)).unwrap() == content.as_bytes(), "{name}");
        }
    }

    #[test]
    fn extended_attributes_of_entries_are_set() {
        let Some(ground) = Ground::new() else { return };
        let capability = b"\x01\0\0\x02\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
        let mut builder = tar::Builder::new(Vec::new());
        let records = [("SCHILY.xattr.user.a", &b"1"[..]), ("SCHILY.xattr.security.capability", capability)];
        builder.append_pax_extensions(records).unwrap();
        let mut header = tar::Header::new_ustar();
        header.set_size(1);
        header.set_mode(0o755);
        builder.append_data(&mut header, "f", &b"F"[..]).unwrap();
        ground.file("a.tar=");
        std::fs::write(ground.context("a.tar"), builder.into_inner().unwrap()).unwrap();
        run(&ground, "a.tar /x").unwrap();
        let root = Rootfs::open(&ground.root("")).unwrap();
        let xattrs = root.xattrs(&GuestPath::clamp(b"x/f").unwrap()).unwrap();
        if xattrs.is_empty() {
            eprintln!("skipped: this file system stores no extended attributes");
            return;
        }
        assert_eq!(xattrs.get(&b"user.a"[..]).unwrap(), b"1");
        assert_eq!(xattrs.get(&b"security.capability"[..]).unwrap(), capability);
    }
}
