//! Directories that their owner may not write to: without privileges, they get their modes when everything is in them.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;

use crate::rootfs::{FileKind, GuestPath, Rootfs, RootfsError, set_mode_at};

/// What the owner needs in every directory as long as layers are applied.
const NEEDED: u32 = 0o700;

/// The modes that directories will have in the end, where those are less than the owner needs. The same value goes through
/// all layers of an image.
#[derive(Debug, Default)]
pub struct Restricted {
    /// By the number of the directory, as paths may lead elsewhere later.
    modes: BTreeMap<u64, (GuestPath, u32)>,
}

impl Restricted {
    /// The mode that a directory has for now if it is to have `mode` in the end.
    pub(super) fn for_now(mode: u32) -> u32 {
        mode | NEEDED
    }

    /// Whether nothing need be remembered of a directory that is given `mode`.
    pub(super) fn is_indifferent_to(&self, mode: u32) -> bool {
        self.modes.is_empty() && Self::for_now(mode) == mode
    }

    /// Remembers that the directory numbered `inode`, at `path` without links, is to have `mode`.
    pub(super) fn remember(&mut self, inode: u64, path: &GuestPath, mode: u32) {
        if Self::for_now(mode) == mode {
            self.modes.remove(&inode);
        } else {
            self.modes.insert(inode, (path.clone(), mode));
        }
    }

    /// Forgets the directory numbered `inode`: it was made anew, with a mode that the owner can work with.
    pub(super) fn forget(&mut self, inode: u64) {
        self.modes.remove(&inode);
    }

    /// Gives the directories of `root` their modes. Nothing can be put into them any more.
    ///
    /// # Errors
    /// When a directory cannot be found or its mode not be set.
    pub fn settle(self, root: &Rootfs) -> Result<(), RootfsError> {
        let mut directories: Vec<(GuestPath, u64, u32)> =
            self.modes.into_iter().map(|(inode, (path, mode))| (path, inode, mode)).collect();
        directories.sort();
        // From below: there is no way into a directory that nobody may enter.
        for (path, inode, mode) in directories.into_iter().rev() {
            let there = root.exact_metadata(&path)?;
            if there.is_some_and(|there| there.kind == FileKind::Directory && there.inode == inode) {
                let failed = |source: io::Error| RootfsError::Io {
                    action: "set the mode of",
                    path: path.clone(),
                    source,
                };
                let (parent, name) = root.parent(&path)?;
                set_mode_at(parent.as_fd(), &name, mode).map_err(failed)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::layer::Limits;
    use crate::layer::apply::{Application, Owners, Rules, Whiteouts};
    use crate::layer::test_support::{dir, dir_mode, file, path};
    use crate::rootfs::Follow;

    #[test]
    fn modes_are_given_at_the_end_to_the_directories_that_are_still_there() {
        let directory = tempfile::tempdir().unwrap();
        let root = Rootfs::open(directory.path()).unwrap();
        let mode = |name: &str| root.metadata(&path(name), Follow::No).unwrap().unwrap().mode;
        let mut restricted = Restricted::default();
        let first = [
            dir_mode("closed", 0o555),
            dir_mode("closed/inner", 0),
            file("closed/inner/file", b"x"),
            dir_mode("relaxed", 0o500),
            dir_mode("gone", 0o500),
            dir_mode("anew", 0o500),
            dir("plain"),
        ];
        let second = [
            dir_mode("relaxed", 0o750),
            file("gone", b"a file now"),
            file(".wh.anew", b""),
            file("closed/late", b"x"),
        ];
        let third = [dir_mode("anew", 0o700), dir_mode("plain", 0o511)];
        let rules = Rules { owners: Owners::Possible, ..Rules::layer(Whiteouts::Remove) };
        let limits = Limits::default();
        for layer in [first.concat(), second.concat(), third.concat()] {
            let mut tar = Cursor::new(layer);
            let application =
                Application { restricted: Some(&mut restricted), ..Application::new(rules.clone(), &limits) };
            application.run(&mut tar, &root).unwrap();
        }
        assert_eq!(mode("/closed") & 0o7777, 0o755);
        restricted.settle(&root).unwrap();
        for (name, expected) in [
            ("/closed", 0o555),
            ("/closed/late", 0o644),
            ("/relaxed", 0o750),
            ("/gone", 0o644),
            ("/anew", 0o700),
            ("/plain", 0o511),
        ] {
            assert_eq!(mode(name) & 0o7777, expected, "{name}");
        }
        // Whoever runs this may be kept out now.
        set_mode_at(root.as_fd(), b"closed", 0o755).unwrap();
        assert_eq!(mode("/closed/inner") & 0o7777, 0);
        set_mode_at(root.as_fd(), b"closed/inner", 0o755).unwrap();
    }
}
