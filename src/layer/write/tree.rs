//! A whole tree as one tar archive, which is no layer: what `docker export` gives.

use std::io::Write;
use std::os::fd::AsFd as _;

use rustix::fs::OFlags;

use super::{Head, LayerWriter, WriteProblem, io_problem, unwritable};
use crate::layer::LayerError;
use crate::layer::changes::{child_of, is_recordable};
use crate::limit::Limit;
use crate::rootfs::merged::first_with;
use crate::rootfs::visit::{Names, open_exact};
use crate::rootfs::{FileKind, GuestPath, Owner, Rootfs, Timestamp, Xattrs, metadata_at};

/// How a tree is written.
pub struct TreeArchive<'a> {
    /// The modification time of all entries; those of the tree if it is not given.
    pub time: Option<Timestamp>,
    /// The most bytes of all files, holes included.
    pub bytes: Limit,
    /// Says whether to stop; asked often.
    pub cancelled: &'a (dyn Fn() -> bool + Sync),
}

impl TreeArchive<'_> {
    /// Writes everything in `trees` but their roots to `out`, each directory before what is in it, sorted by name. Of several,
    /// which can be one ([`merged`](crate::rootfs::merged)), one comes after the other, and a directory that several have is
    /// written once. Equal trees give equal bytes. What the disk does not hold of them is in the archive all the same;
    /// sockets are not. Returns the number of entries.
    ///
    /// Memory: the names of the directories on the way down, and one for each file of several names.
    ///
    /// # Errors
    /// As [`write()`](super::write()); what was written so far is of no use.
    pub fn write(&self, trees: &[&Rootfs], out: &mut dyn Write) -> Result<u64, LayerError> {
        let Some(first) = trees.first() else { return Ok(0) };
        let mut writer = LayerWriter::new(out, first, self.bytes);
        writer.time = self.time;
        for (number, from) in trees.iter().enumerate() {
            writer.go_on_with(from);
            self.put_tree(&mut writer, &trees[..number])?;
        }
        writer.end()
    }

    /// Writes several trees, each below a directory of this name. Returns the number of entries.
    ///
    /// # Errors
    /// As [`TreeArchive::write`].
    pub fn write_below(&self, trees: &[(String, &Rootfs)], out: &mut dyn Write) -> Result<u64, LayerError> {
        let Some((_, first)) = trees.first() else { return Ok(0) };
        let mut writer = LayerWriter::new(out, first, self.bytes);
        writer.time = self.time;
        for (name, from) in trees {
            writer.go_on_with(from);
            writer.prefix = format!("{name}/").into_bytes();
            let root = metadata_at(from.as_fd(), b".");
            let root = io_problem(root, "read metadata").map_err(unwritable(&GuestPath::root()))?;
            let head = Head {
                name: &writer.prefix,
                type_flag: b'5',
                mode: 0o755,
                owner: Owner::default(),
                size: 0,
                mtime: writer.time_of(&root),
                link: &[],
                device: (0, 0),
                xattrs: &Xattrs::new(),
            };
            writer.out.head(&head).map_err(LayerError::Output)?;
            self.put_tree(&mut writer, &[])?;
        }
        writer.end()
    }

    /// Writes the tree of the writer, but for directories that are in those `before` it.
    fn put_tree<W: Write>(
        &self,
        writer: &mut LayerWriter<'_, W>,
        before: &[&Rootfs],
    ) -> Result<(), LayerError> {
        let from = writer.from;
        let root = GuestPath::root();
        let mut open = vec![(names(from, &root)?, root)];
        while let Some((below, directory)) = open.last_mut() {
            let Some(name) = below.pop() else {
                open.pop();
                continue;
            };
            if (self.cancelled)() {
                return Err(LayerError::Output(std::io::ErrorKind::Interrupted.into()));
            }
            let path = child_of(directory, &name).map_err(|_| {
                unwritable(directory)(WriteProblem::Io { action: "name what is in", source: too_long() })
            })?;
            let parent = from.directory(directory)?;
            let metadata = io_problem(metadata_at(parent.as_fd(), &name), "read metadata");
            let metadata = from.reveal(&path, metadata.map_err(unwritable(&path))?);
            if !is_recordable(&metadata) {
                continue;
            }
            let is_directory = metadata.kind == FileKind::Directory;
            let earlier = if is_directory { first_with(before, &path) } else { Ok(None) };
            if io_problem(earlier, "open").map_err(unwritable(&path))?.is_none() {
                writer.put(&path)?;
            }
            if is_directory {
                open.push((names(from, &path)?, path));
            }
        }
        Ok(())
    }
}

fn too_long() -> std::io::Error {
    rustix::io::Errno::NAMETOOLONG.into()
}

/// The names in a directory, the last first.
fn names(from: &Rootfs, path: &GuestPath) -> Result<Names, LayerError> {
    let directory = open_exact(from.as_fd(), path, OFlags::RDONLY | OFlags::DIRECTORY);
    let names = directory.and_then(|directory| Names::in_directory(directory.as_fd()));
    Ok(io_problem(names, "list").map_err(unwritable(path))?.reversed())
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the tests make and look at files of their own")]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::layer::Limits;
    use crate::layer::tar::Reader;

    fn archive(root: &Rootfs, time: Option<Timestamp>) -> Vec<u8> {
        let mut out = Vec::new();
        let archive = TreeArchive { time, bytes: Limits::WRITTEN, cancelled: &|| false };
        archive.write(&[root], &mut out).unwrap();
        out
    }

    #[test]
    fn of_several_trees_each_is_below_a_directory() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for place in [&one, &two] {
            std::fs::write(place.path().join("f"), "text").unwrap();
            std::fs::hard_link(place.path().join("f"), place.path().join("g")).unwrap();
        }
        let roots = [&one, &two].map(|place| Rootfs::open(place.path()).unwrap());
        let trees = [("linux_amd64".to_owned(), &roots[0]), ("linux_arm_v7".to_owned(), &roots[1])];
        let mut out = Vec::new();
        let archive = TreeArchive { time: None, bytes: Limits::WRITTEN, cancelled: &|| false };
        assert_eq!(archive.write_below(&trees, &mut out).unwrap(), 6);
        let mut reader = Reader::new(&out[..], &Limits::default());
        let mut told = Vec::new();
        while let Some(entry) = reader.next_entry().unwrap() {
            told.push(
                [entry.path, entry.link].map(|text| String::from_utf8(text.clone()).unwrap()).join(" "),
            );
        }
        let expected = ["linux_amd64", "linux_arm_v7"]
            .map(|name| [format!("{name}/ "), format!("{name}/f "), format!("{name}/g {name}/f")]);
        assert_eq!(told, expected.concat());
    }

    #[test]
    fn a_directory_of_several_trees_is_written_once() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for (place, names) in [(&one, ["d/e/1", "f"]), (&two, ["d/2", "d/e/2"])] {
            for name in names {
                let path = place.path().join(name);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, name).unwrap();
            }
        }
        let roots = [&one, &two].map(|place| Rootfs::open(place.path()).unwrap());
        let mut out = Vec::new();
        let archive = TreeArchive { time: None, bytes: Limits::WRITTEN, cancelled: &|| false };
        assert_eq!(archive.write(&[&roots[0], &roots[1]], &mut out).unwrap(), 6);
        let mut reader = Reader::new(&out[..], &Limits::default());
        let mut told = Vec::new();
        while let Some(entry) = reader.next_entry().unwrap() {
            told.push(String::from_utf8(entry.path.clone()).unwrap());
        }
        assert_eq!(told, ["d/", "d/e/", "d/e/1", "f", "d/2", "d/e/2"]);
    }

    #[test]
    fn a_tree_is_written_in_order_with_its_links_and_one_time() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        for directory in ["b/d", "a"] {
            std::fs::create_dir_all(at(directory)).unwrap();
        }
        std::fs::write(at("b/f"), "text").unwrap();
        std::fs::write(at("b.x"), "").unwrap();
        std::fs::hard_link(at("b/f"), at("c")).unwrap();
        symlink("/x", at("a/l")).unwrap();
        let root = Rootfs::open(place.path()).unwrap();
        let epoch = Timestamp { seconds: 100, nanoseconds: 0 };
        let bytes = archive(&root, Some(epoch));
        let mut reader = Reader::new(&bytes[..], &Limits::default());
        let mut rows = Vec::new();
        while let Some(entry) = reader.next_entry().unwrap() {
            assert_eq!(entry.mtime, epoch);
            rows.push(String::from_utf8(entry.path.clone()).unwrap());
        }
        assert_eq!(rows, ["a/", "a/l", "b/", "b/d/", "b/f", "b.x", "c"]);
        assert_eq!(bytes, archive(&root, Some(epoch)));
        assert_ne!(bytes, archive(&root, None));
        let mut archive = tar::Archive::new(&bytes[..]);
        let last = archive.entries().unwrap().map(Result::unwrap).last().unwrap();
        assert_eq!(last.link_name_bytes().unwrap(), &b"b/f"[..]);
    }

    #[test]
    fn it_stops_when_it_is_told() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("f"), "").unwrap();
        let root = Rootfs::open(place.path()).unwrap();
        let archive = TreeArchive { time: None, bytes: Limits::WRITTEN, cancelled: &|| true };
        assert!(archive.write(&[&root], &mut Vec::new()).is_err());
    }
}
