//! A look at a directory of the context: what of it must not be seen, and whether the rest can be shown as it is.

use std::vec::IntoIter;

use rustix::fs::{AtFlags, FileType, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use super::ViewError;
use crate::context::IgnoreRules;
use crate::rootfs::guest_path::MAX_PATH;
use crate::rootfs::{Escaped, GuestPath, Owner, Rootfs, RootfsError, metadata_of};

/// What was found in a directory. Only what is seen counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Found {
    /// Entries that must not be seen; those in a hidden directory do not count.
    pub(super) hidden: u64,
    /// Entries, the directory itself included, that are not root's.
    pub(super) foreign: u64,
    /// Named pipes: who opens one talks to whoever opens it on the machine.
    pub(super) pipes: u64,
    /// Other mounts.
    pub(super) mounts: u64,
}

/// Who hears of what must not be seen.
pub(super) trait Hide {
    /// `path` of the context, with all that is below it. Parts of that may have been told before.
    fn hide(&mut self, path: &GuestPath);

    /// Nothing more of the directory `path` will be hidden. It is seen itself, and something below it is hidden.
    fn settle(&mut self, path: &GuestPath);
}

/// Looks at all that is below the directory `top` of the context `root`, a path without links, as far as `rules` let it
/// be seen.
///
/// Memory grows with the names in the directories above the current one, and no descriptor stays open.
pub(super) fn survey(
    root: &Rootfs,
    rules: &IgnoreRules,
    top: &GuestPath,
    hide: &mut dyn Hide,
) -> Result<Found, ViewError> {
    let mut survey = Survey { root, rules, found: Found::default(), levels: Vec::new(), hide };
    let directory = root.directory(top)?;
    let owner = metadata_of(&directory)
        .map_err(|source| RootfsError::Io { action: "look at", path: top.clone(), source })?
        .owner;
    // It is seen even if nothing in it is.
    survey.enter(top.clone(), owner, Sight::Seen)?;
    while let Some(level) = survey.levels.last_mut() {
        match level.entries.next() {
            Some(entry) => survey.entry(&entry)?,
            None => survey.leave(),
        }
    }
    Ok(survey.found)
}

struct Survey<'a> {
    root: &'a Rootfs,
    rules: &'a IgnoreRules,
    found: Found,
    levels: Vec<Level>,
    hide: &'a mut dyn Hide,
}

struct Level {
    path: GuestPath,
    owner: Owner,
    entries: IntoIter<Entry>,
    sight: Sight,
    /// Whether anything below it is hidden.
    thinned: bool,
}

/// Whether a directory is seen.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sight {
    Seen,
    /// It is ignored, and seen only if something in it is.
    Open,
}

struct Entry {
    name: Vec<u8>,
    kind: FileType,
    owner: Owner,
    /// Whether another mount begins there.
    mount: bool,
}

impl Survey<'_> {
    fn entry(&mut self, entry: &Entry) -> Result<(), ViewError> {
        let Some(level) = self.levels.last_mut() else { return Ok(()) };
        let path = level.path.child(&entry.name);
        if path.as_bytes().len() >= MAX_PATH {
            return Err(ViewError::TooDeep { path: Escaped::new(path.as_bytes()) });
        }
        let is_directory = entry.kind == FileType::Directory;
        let excluded = self.rules.excludes(path.relative());
        // A socket would lead to whoever listens on the machine; BuildKit's transfer leaves them out.
        let unwanted = entry.kind == FileType::Socket
            || (excluded && !(is_directory && self.rules.may_include_below(path.relative())));
        if unwanted {
            level.thinned = true;
            self.found.hidden += 1;
            self.hide.hide(&path);
            return Ok(());
        }
        self.found.mounts += u64::from(entry.mount);
        if is_directory {
            let sight = if excluded { Sight::Open } else { Sight::Seen };
            return self.enter(path, entry.owner, sight);
        }
        level.sight = Sight::Seen;
        self.found.pipes += u64::from(entry.kind == FileType::Fifo);
        self.count_owner(entry.owner);
        Ok(())
    }

    fn enter(&mut self, path: GuestPath, owner: Owner, sight: Sight) -> Result<(), ViewError> {
        let entries = entries(self.root, &path)?.into_iter();
        self.levels.push(Level { path, owner, entries, sight, thinned: false });
        Ok(())
    }

    fn leave(&mut self) {
        let Some(level) = self.levels.pop() else { return };
        let hidden = level.sight == Sight::Open;
        if let Some(above) = self.levels.last_mut() {
            above.thinned |= hidden || level.thinned;
            if !hidden {
                above.sight = Sight::Seen;
            }
        }
        if hidden {
            self.found.hidden += 1;
            self.hide.hide(&level.path);
            return;
        }
        self.count_owner(level.owner);
        if level.thinned {
            self.hide.settle(&level.path);
        }
    }

    fn count_owner(&mut self, owner: Owner) {
        self.found.foreign += u64::from(owner != Owner::ROOT);
    }
}

fn entries(root: &Rootfs, path: &GuestPath) -> Result<Vec<Entry>, ViewError> {
    let directory = Rootfs::from_fd(root.directory(path)?);
    let mut entries = Vec::new();
    for (name, _) in directory.read_dir(&GuestPath::root())? {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        let stat = match rustix::fs::statx(&directory, name.as_slice(), flags, StatxFlags::BASIC_STATS) {
            Ok(stat) => stat,
            // Somebody took it away: then there is nothing to see.
            Err(Errno::NOENT) => continue,
            Err(error) => {
                let path = path.child(&name);
                return Err(RootfsError::Io { action: "look at", path, source: error.into() }.into());
            }
        };
        entries.push(Entry {
            name,
            kind: FileType::from_raw_mode(u32::from(stat.stx_mode)),
            owner: Owner { uid: stat.stx_uid, gid: stat.stx_gid },
            mount: stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
        });
    }
    Ok(entries)
}
