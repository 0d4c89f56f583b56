//! Images as one file: OCI layouts in an archive, and what `docker save` writes and `docker load` reads.

use std::io::{self, Write};
use std::path::Path;

use super::blobs::BlobStore;
use super::export::{Export, ExportError, Failure, Piece, Plan, Readers, blob_name};
use crate::image::digest::Digest;

/// The unit of a tar archive.
const BLOCK: u64 = 512;

/// Writes images into `out` as an archive; equal images give equal bytes. Layers stay compressed. `created` is the time for
/// the index, RFC 3339.
///
/// # Errors
/// [`ExportError`]; `place` is what `out` is called in it. Docker's archives take no index.
pub fn write(
    out: &mut dyn Write,
    place: &Path,
    readers: Readers,
    exports: &[Export<'_>],
    blobs: &BlobStore,
    created: &str,
    cancelled: &(dyn Fn() -> bool + Sync),
) -> Result<(), ExportError> {
    let plan = Plan::new(readers, exports, blobs, created, cancelled)?;
    write_plan(&plan, out).map_err(|failure| failure.at(place))
}

fn write_plan(plan: &Plan<'_>, out: &mut dyn Write) -> Result<(), Failure> {
    directory(out, "blobs/").map_err(Failure::Write)?;
    let mut algorithm = "";
    for (digest, piece) in &plan.blobs {
        if digest.algorithm().name() != algorithm {
            algorithm = digest.algorithm().name();
            directory(out, &format!("blobs/{algorithm}/")).map_err(Failure::Write)?;
        }
        file(plan, out, digest, piece)?;
    }
    let mut documents = plan.documents();
    documents.sort();
    for (name, bytes) in documents {
        let size = bytes.len() as u64;
        header(out, name, size, tar::EntryType::Regular)
            .and_then(|()| out.write_all(bytes))
            .and_then(|()| pad(out, size))
            .map_err(Failure::Write)?;
    }
    out.write_all(&[0; 2 * BLOCK as usize]).and_then(|()| out.flush()).map_err(Failure::Write)
}

fn file(plan: &Plan<'_>, out: &mut dyn Write, digest: &Digest, piece: &Piece<'_>) -> Result<(), Failure> {
    let size = piece.size();
    header(out, &blob_name(digest), size, tar::EntryType::Regular).map_err(Failure::Write)?;
    plan.write(digest, piece, out)?;
    pad(out, size).map_err(Failure::Write)
}

fn directory(out: &mut dyn Write, name: &str) -> io::Result<()> {
    header(out, name, 0, tar::EntryType::Directory)
}

/// Nothing in it depends on when, where and by whom the archive is written.
fn header(out: &mut dyn Write, name: &str, size: u64, kind: tar::EntryType) -> io::Result<()> {
    // Not USTAR, whose sizes end at 8 GiB.
    let mut header = tar::Header::new_gnu();
    let field = &mut header.as_old_mut().name;
    // The longest name has 147 characters: that of a SHA-512 blob.
    if name.len() >= field.len() {
        let mut long = tar::Header::new_gnu();
        long.set_path("././@LongLink")?;
        long.set_entry_type(tar::EntryType::GNULongName);
        long.set_size(name.len() as u64 + 1);
        long.set_mode(0o644);
        long.set_cksum();
        out.write_all(long.as_bytes())?;
        out.write_all(name.as_bytes())?;
        out.write_all(&[0])?;
        pad(out, name.len() as u64 + 1)?;
    }
    let length = name.len().min(field.len() - 1);
    field[..length].copy_from_slice(&name.as_bytes()[..length]);
    header.set_entry_type(kind);
    header.set_mode(if kind == tar::EntryType::Directory { 0o755 } else { 0o644 });
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(size);
    header.set_cksum();
    out.write_all(header.as_bytes())
}

fn pad(out: &mut dyn Write, size: u64) -> io::Result<()> {
    let rest = (BLOCK - size % BLOCK) % BLOCK;
    out.write_all(&[0; BLOCK as usize][..rest as usize])
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Read as _;

    use serde_json::{Value, json};

    use super::super::Store;
    use super::super::export::tests::{image, index, layer};
    use super::super::layout::Layout;
    use super::*;
    use crate::image::reference::Reference;
    use crate::store::export::Content;
    use crate::store::output::{Writing, appear};

    const CREATED: &str = "2024-01-01T00:00:00Z";

    fn write(
        dest: &Path,
        exports: &[Export<'_>],
        blobs: &BlobStore,
        created: &str,
    ) -> Result<(), ExportError> {
        let writing = Writing { cancelled: &|| false, waits: &|| () };
        appear(dest, &writing, |out| {
            super::write(out, dest, Readers::Docker, exports, blobs, created, writing.cancelled)
        })
    }

    fn store() -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("store")).unwrap();
        (dir, store)
    }

    #[test]
    fn an_archive_is_read_by_docker_and_as_a_layout() {
        let (dir, store) = store();
        let image = image(&store, "v7", &["a", "b", "a"]);
        let pinned = format!("localhost:5000/x:2@{}", image.config.digest);
        let names: [Reference; 3] = ["x:1", &pinned, "x:1"].map(|name| name.parse().unwrap());
        let dest = dir.path().join("out/x.tar");
        let export = [Export::new(Content::Image(&image), &names)];
        write(&dest, &export, store.blobs(), CREATED).unwrap();

        let unpacked = dir.path().join("unpacked");
        tar::Archive::new(fs::File::open(&dest).unwrap()).unpack(&unpacked).unwrap();
        Layout::open(&unpacked, &Default::default()).unwrap().verify().unwrap();
        let manifest: Value =
            serde_json::from_slice(&fs::read(unpacked.join("manifest.json")).unwrap()).unwrap();
        let (a, b) = (layer(&store, "a").blob.digest, layer(&store, "b").blob.digest);
        let layers = [blob_name(&a), blob_name(&b), blob_name(&a)];
        let tags = ["x:1", "localhost:5000/x:2"];
        assert_eq!(
            manifest,
            json!([{"Config": blob_name(&image.config.digest), "RepoTags": tags, "Layers": layers}])
        );

        let again = dir.path().join("again.tar");
        write(&again, &export, store.blobs(), CREATED).unwrap();
        assert_eq!(fs::read(&dest).unwrap(), fs::read(&again).unwrap());
        assert_eq!(fs::metadata(&dest).unwrap().len() % 512, 0);
        assert_eq!(fs::read_dir(dir.path().join("out")).unwrap().count(), 1);
    }

    #[test]
    fn a_failure_leaves_the_old_file() {
        let (dir, store) = store();
        let dest = dir.path().join("x.tar");
        fs::write(&dest, "old").unwrap();
        let image = image(&store, "v7", &["a"]);
        let blob = layer(&store, "a").blob;
        let path = store.root().join("blobs/sha256").join(blob.digest.hex());
        fs::remove_file(&path).unwrap();
        fs::write(&path, vec![0; usize::try_from(blob.size).unwrap()]).unwrap();
        let export = [Export::new(Content::Image(&image), &[])];
        assert!(matches!(write(&dest, &export, store.blobs(), CREATED), Err(ExportError::Store(_))));
        assert_eq!(fs::read(&dest).unwrap(), b"old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
        assert!(matches!(write(dir.path(), &[], store.blobs(), CREATED), Err(ExportError::Directory(_))));
    }

    #[test]
    fn an_index_is_refused() {
        let (dir, store) = store();
        let images = [image(&store, "v7", &["a"])];
        let index = index(&images);
        let export = [Export::new(Content::Index { index: &index, images: &images }, &[])];
        let error = write(&dir.path().join("x.tar"), &export, store.blobs(), CREATED).unwrap_err();
        assert!(matches!(error, ExportError::IndexInArchive));
    }

    #[test]
    fn a_fifo_is_written_to() {
        let (dir, store) = store();
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let image = image(&store, "v7", &["a"]);
        let read = std::thread::scope(|scope| {
            let reader = scope.spawn(|| fs::read(&fifo).unwrap());
            let export = [Export::new(Content::Image(&image), &[])];
            write(&fifo, &export, store.blobs(), CREATED).unwrap();
            reader.join().unwrap()
        });
        let mut archive = tar::Archive::new(&read[..]);
        assert_eq!(archive.entries().unwrap().count(), 2 + 3 + 3);
    }

    #[test]
    fn long_names_are_written_whole() {
        let digest: Digest = format!("sha512:{}", "a".repeat(128)).parse().unwrap();
        let mut out = Vec::new();
        header(&mut out, &blob_name(&digest), 3, tar::EntryType::Regular).unwrap();
        out.extend(b"abc");
        pad(&mut out, 3).unwrap();
        let mut archive = tar::Archive::new(&out[..]);
        let mut entry = archive.entries().unwrap().next().unwrap().unwrap();
        assert_eq!(entry.path_bytes(), blob_name(&digest).as_bytes());
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        assert_eq!(text, "abc");
    }
}
