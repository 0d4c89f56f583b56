//! A `.git` that is kept: what git itself needs to go on with the files, and nothing else.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use gix_hash::{Hasher, Kind, ObjectId};

use super::checkout::Written;
use super::pack::Pack;
use crate::context::git::{Commit, GitError, writing};

/// Names of this length and more do not fit the field for it; it says that they are long.
const LONGEST_NAME: usize = 0xfff;
/// Places in a pack from here on stand in a table of their own.
const FAR: u64 = 1 << 31;

/// What is written down of a repository.
pub(super) struct Kept<'a> {
    /// The directory.
    pub(super) git: &'a Path,
    pub(super) url: &'a str,
    pub(super) commit: &'a Commit,
    /// Commits whose parents are not there.
    pub(super) shallow: &'a [ObjectId],
    pub(super) pack: &'a Pack<'a>,
    /// The file that the pack is in; it is moved.
    pub(super) pack_file: &'a Path,
}

impl Kept<'_> {
    /// Writes everything but the list of files.
    pub(super) fn write(&self) -> Result<(), GitError> {
        for name in ["objects", "objects/pack", "objects/info", "refs", "refs/heads", "refs/tags"] {
            let path = self.git.join(name);
            let made = fs::DirBuilder::new().mode(0o755).create(&path);
            made.map_err(writing(&path))?;
        }
        self.write_text("HEAD", &format!("{}\n", self.commit.id))?;
        self.write_text("config", &self.config())?;
        if !self.shallow.is_empty() {
            let mut lines: Vec<String> = self.shallow.iter().map(|id| format!("{id}\n")).collect();
            lines.sort_unstable();
            self.write_text("shallow", &lines.concat())?;
        }
        if let Some(reference) = &self.commit.reference {
            if gix_validate::reference::name(reference.as_str().into()).is_err() {
                return Err(GitError::Corrupt("a branch or tag whose name cannot be one".to_owned()));
            }
            // A file for each name would be a path that the server chose.
            let mut text = "# pack-refs with: peeled fully-peeled sorted \n".to_owned();
            match &self.commit.tag {
                Some(tag) => text += &format!("{tag} {reference}\n^{}\n", self.commit.id),
                None => text += &format!("{} {reference}\n", self.commit.id),
            }
            self.write_text("packed-refs", &text)?;
        }
        let name = self.git.join(format!("objects/pack/pack-{}", self.pack.checksum()));
        let index = name.with_extension("idx");
        self.write_index(&index).map_err(writing(&index))?;
        let pack = name.with_extension("pack");
        fs::rename(self.pack_file, &pack).map_err(writing(&pack))
    }

    fn config(&self) -> String {
        let (version, extension) = match self.pack.hash() {
            Kind::Sha256 => (1, "[extensions]\n\tobjectformat = sha256\n"),
            _ => (0, ""),
        };
        let url = self.url.replace('\\', "\\\\").replace('"', "\\\"");
        format!(
            "[core]\n\trepositoryformatversion = {version}\n\tfilemode = true\n\tbare = false\n{extension}\
             [remote \"origin\"]\n\turl = \"{url}\"\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n"
        )
    }

    fn write_text(&self, name: &str, text: &str) -> Result<(), GitError> {
        let path = self.git.join(name);
        fs::write(&path, text).map_err(writing(&path))
    }

    /// The index of the pack, in its second version (gitformat-pack(5)).
    fn write_index(&self, path: &Path) -> io::Result<()> {
        let mut file = Hashed::new(path, self.pack.hash())?;
        file.write_all(b"\xfftOc\0\0\0\x02")?;
        let listing = self.pack.listing();
        let mut smaller = [0_u32; 256];
        for (name, ..) in listing.clone() {
            smaller[usize::from(name[0])] += 1;
        }
        let mut sum = 0;
        for count in smaller {
            sum += count;
            file.write_all(&sum.to_be_bytes())?;
        }
        for (name, ..) in listing.clone() {
            file.write_all(name)?;
        }
        for (_, crc, _) in listing.clone() {
            file.write_all(&crc.to_be_bytes())?;
        }
        let mut far = Vec::new();
        for (.., offset) in listing {
            let shown = match u32::try_from(offset) {
                Ok(near) if offset < FAR => near,
                _ => {
                    far.push(offset);
                    FAR as u32 | (far.len() - 1) as u32
                }
            };
            file.write_all(&shown.to_be_bytes())?;
        }
        for offset in far {
            file.write_all(&offset.to_be_bytes())?;
        }
        file.write_all(self.pack.checksum().as_slice())?;
        file.finish()
    }

    /// The list of files, without the numbers and times of those here, as with the command.
    pub(super) fn write_list(&self, mut written: Vec<Written>) -> Result<(), GitError> {
        written.sort_unstable_by(|one, other| one.path.cmp(&other.path));
        let path = self.git.join("index");
        self.write_list_to(&path, &written).map_err(writing(&path))
    }

    fn write_list_to(&self, path: &Path, written: &[Written]) -> io::Result<()> {
        let mut file = Hashed::new(path, self.pack.hash())?;
        let count = u32::try_from(written.len()).map_err(io::Error::other)?;
        file.write_all(b"DIRC\0\0\0\x02")?;
        file.write_all(&count.to_be_bytes())?;
        for entry in written {
            let mut head = [0; 40];
            head[24..28].copy_from_slice(&u32::from(entry.kind as u16).to_be_bytes());
            file.write_all(&head)?;
            file.write_all(entry.id.as_slice())?;
            file.write_all(&(entry.path.len().min(LONGEST_NAME) as u16).to_be_bytes())?;
            file.write_all(&entry.path)?;
            let length = head.len() + entry.id.as_slice().len() + 2 + entry.path.len();
            file.write_all(&[0; 8][..8 - length % 8])?;
        }
        file.finish()
    }
}

/// A new file that ends with the hash of what is before.
struct Hashed {
    file: BufWriter<File>,
    hasher: Hasher,
}

impl Hashed {
    fn new(path: &Path, hash: Kind) -> io::Result<Self> {
        let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)?;
        Ok(Self { file: BufWriter::new(file), hasher: gix_hash::hasher(hash) })
    }

    fn finish(mut self) -> io::Result<()> {
        let hash = self.hasher.try_finalize().map_err(io::Error::other)?;
        self.file.write_all(hash.as_slice())?;
        self.file.flush()
    }
}

impl Write for Hashed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.hasher.update(bytes);
        self.file.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
