//! ADD of local files: archives are unpacked, everything else is copied.

use std::fs::File;
use std::io::Seek;

use rustix::fs::OFlags;

use super::copy::{Copied, Copier, CopyError, CopyRequest, Selected, tried};
use crate::layer::tar::Reader;
use crate::layer::{
    Application, Climbing, Formats, LayerError, Limits, Losses, Rules, Whiteouts, decompress,
};
use crate::rootfs::{FileKind, GuestPath, Rootfs, Timestamp, metadata_of};

/// Why something could not be added.
#[derive(Debug, thiserror::Error)]
pub enum AddError {
    /// As for COPY.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// An archive that is damaged, too large, or does not fit to what is there.
    #[error("cannot unpack `{archive}`")]
    Unpack {
        /// The file in the source tree.
        archive: GuestPath,
        /// Why.
        #[source]
        source: Box<LayerError>,
    },
}

/// What an instruction did.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Added {
    /// How much was copied. Of an archive, all entries and the bytes of the uncompressed archive count.
    pub copied: Copied,
    /// What of the archives could not be made or set here.
    pub losses: Losses,
}

/// Like [`copy`](super::copy::copy()), but unpacks each source that is, or whose link leads to, a file which begins with
/// a tar header once decompressed (gzip, bzip2, xz, zstd), whatever its name. Entries keep their owners unless
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
) -> Result<Added, AddError> {
    let mut copier = Copier::new(request, onto, now)?;
    let mut losses = Losses::default();
    for selected in copier.select()? {
        match &selected {
            Selected::Tree { path, metadata, .. } if metadata.kind == FileKind::File => {
                match open_archive(request.from.root, path, limits)? {
                    Some(file) => losses.append(unpack(&mut copier, path, file, limits)?),
                    None => copier.place(&selected)?,
                }
            }
            _ => copier.place(&selected)?,
        }
    }
    Ok(Added { copied: copier.finish()?, losses })
}

/// Opens `path`, if it is an archive: what starts with an entry is one, however it goes on.
fn open_archive(root: &Rootfs, path: &GuestPath, limits: &Limits) -> Result<Option<File>, CopyError> {
    let file = root.open_file(path, OFlags::RDONLY | OFlags::NOFOLLOW, 0).map_err(CopyError::Source)?;
    let mut file = File::from(file);
    if tried(metadata_of(&file), "read metadata of", path)?.kind != FileKind::File {
        return Err(CopyError::Changed { path: path.clone() });
    }
    let start = decompress(tried(file.try_clone(), "open", path)?, Formats::Archive, limits);
    // More than an entry with all its extensions takes.
    let most = limits.bytes.with(limits.extension.value.saturating_mul(16));
    let limits = Limits { bytes: most, ..*limits };
    let first = |start| Reader::new(start, &limits).next_entry().ok().flatten();
    // Whatever is wrong with the start, this is no archive; if the file cannot be read, copying it will tell.
    let entry = start.ok().and_then(first);
    tried(file.rewind(), "read", path)?;
    Ok(entry.map(|_| file))
}

fn unpack(
    copier: &mut Copier<'_>,
    archive: &GuestPath,
    file: File,
    limits: &Limits,
) -> Result<Losses, AddError> {
    let rules = Rules {
        base: copier.directory()?,
        climbing: Climbing::Clamp,
        owner: copier.request.chown,
        ..Rules::layer(Whiteouts::Ordinary)
    };
    let before = tried(metadata_of(&file), "read metadata of", archive)?;
    let mut tar = tried(decompress(&file, Formats::Archive, limits), "read", archive)?;
    let applied = Application::new(rules, limits)
        .run(&mut tar, copier.onto)
        .map_err(|source| AddError::Unpack { archive: archive.clone(), source: Box::new(source) })?;
    drop(tar);
    let after = tried(metadata_of(&file), "read metadata of", archive)?;
    if (after.size, after.mtime) != (before.size, before.mtime) {
        return Err(CopyError::Changed { path: archive.clone() }.into());
    }
    copier.done.files += applied.entries;
    copier.done.bytes += applied.bytes;
    Ok(applied.losses)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    use super::super::copy::tests::{Ground, NOW};
    use super::*;
    use crate::text::chained;

    fn fixture(ground: &Ground, archive: &str, name: &str) {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/archives").join(archive);
        ground.file(&format!("{name}="));
        std::fs::write(ground.context(name), std::fs::read(from).unwrap()).unwrap();
    }

    fn add_limited(ground: &Ground, instruction: &str, limits: &Limits) -> Result<Added, AddError> {
        let result = std::cell::RefCell::new(None);
        let act = |request: &CopyRequest<'_>, onto: &Rootfs| {
            *result.borrow_mut() = Some(add(request, onto, NOW, limits));
            Ok(Copied::default())
        };
        ground.run(instruction, act).unwrap();
        result.into_inner().unwrap()
    }

    fn run(ground: &Ground, instruction: &str) -> Result<Added, String> {
        add_limited(ground, instruction, &Limits::default()).map_err(|error| chained(&error))
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
        assert!(error.contains("entry `hard`: a hard link to `/x/canary`, which does not exist"), "{error}");
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
                ("d/new", FILE, 0o640, "N"),
                ("gone/", DIRECTORY, 0o755, ""),
                ("gone/below/", DIRECTORY, 0o755, ""),
                ("gone", FILE, 0o644, "a file after all"),
                ("hard", LINK, 0o640, "d/new"),
            ],
        );
        assert_eq!(run(&ground, "a.tar /x").unwrap().copied.files, 7);
        ground.check(&[
            ("x", "d 755 0:0"),
            ("x/d", "d 750 3:4"),
            ("x/d/old", "f 644 0:0 =old"),
            ("x/d/new", "f 640 3:4 =N"),
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
        assert!(run(&ground, "below.tar /y").unwrap_err().ends_with("`/y/f` is not a directory"));
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
            (
                Limits { entries: Limits::ENTRIES.with(1), ..Limits::default() },
                "entry `g`: more than 1 entries",
            ),
            (Limits { bytes: Limits::BYTES.with(9000), ..Limits::default() }, "9000"),
            (Limits { bytes: Limits::BYTES.with(10_500), ..Limits::default() }, "10500"),
        ] {
            let error = chained(&add_limited(&ground, "a.tar /y", &limits).unwrap_err());
            assert!(error.starts_with("cannot unpack `/a.tar`: ") && error.contains(what), "{error}");
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
    fn sparse_files_of_gnu_tar_keep_their_holes() {
        use std::process::Command;
        let Some(ground) = Ground::new() else { return };
        let version = Command::new("tar").arg("--version").output();
        if !version.is_ok_and(|output| output.stdout.starts_with(b"tar (GNU tar)")) {
            eprintln!("skipped: needs GNU tar");
            return;
        }
        const SIZE: u64 = 8 << 20;
        let long = format!("d/{}", "l".repeat(200));
        // More pieces than the header of the old format and a block of a map can name.
        let many: Vec<u64> = (0..60).map(|n| n * 128 * 1024).collect();
        let files: [(&str, &[u64]); 4] =
            [("many", &many), (&long, &[0, SIZE - 3]), ("middle", &[1_000_000]), ("hole", &[])];
        for (name, at) in files {
            ground.file(&format!("{name}="));
            let file = File::create(ground.context(name)).unwrap();
            file.set_len(SIZE).unwrap();
            for offset in at {
                std::os::unix::fs::FileExt::write_all_at(&file, b"end", *offset).unwrap();
            }
        }
        for (number, format) in ["gnu", "posix0.0", "posix0.1", "posix1.0"].iter().enumerate() {
            let archive = ground.context("sparse.tar");
            let mut command = Command::new("tar");
            command.args(["--sparse", "--hole-detection=raw", "--file"]).arg(&archive).arg("--create");
            match format.strip_prefix("posix") {
                Some(version) => command.args(["--format=posix", "--sparse-version", version]),
                None => command.arg("--format=gnu"),
            };
            command.arg("--directory").arg(ground.context(".")).args(files.map(|(name, _)| name));
            assert!(command.status().unwrap().success(), "{format}");
            assert!(std::fs::metadata(&archive).unwrap().len() < SIZE, "{format}: not sparse");
            run(&ground, &format!("sparse.tar /{number}/")).unwrap();
            for (name, _) in files {
                let made = ground.root(&number.to_string()).join(name);
                let content = std::fs::read(&made).unwrap();
                assert!(content == std::fs::read(ground.context(name)).unwrap(), "{format}: {name}");
                assert!(std::fs::metadata(&made).unwrap().blocks() * 512 < SIZE / 4, "{format}: {name}");
            }
            let made = std::fs::read_dir(ground.root(&number.to_string())).unwrap().count();
            assert_eq!(made, files.len(), "{format}: made-up names too");
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
        let xattrs = ground.onto.xattrs(&GuestPath::clamp(b"x/f").unwrap()).unwrap();
        if xattrs.is_empty() {
            eprintln!("skipped: this file system stores no extended attributes");
            return;
        }
        assert_eq!(xattrs.get(&b"user.a"[..]).unwrap(), b"1");
        assert_eq!(xattrs.get(&b"security.capability"[..]).unwrap(), capability);
    }
}
