//! What becomes of overrides when something works in a plain directory.
//!
//! Files are known by their numbers there, so an override goes wherever its file goes, and to all its names.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::overrides::{changed, keeps_its_group};
use crate::layer::changes::Collector;
use crate::rootfs::visit::open_exact;
use crate::rootfs::{
    Caller, FileId, FileKind, GuestPath, Learned, Metadata, Override, Overrides, Rootfs, RootfsError,
    identified,
};

/// Which files the overrides of a tree are about, in their order; none for a path that is not there.
#[derive(Debug)]
pub struct Identities(Vec<Option<FileId>>);

impl Identities {
    /// Looks the files up.
    ///
    /// # Errors
    /// When one cannot be looked at.
    pub(super) fn of(overrides: &Overrides, root: &Rootfs) -> Result<Self, RootfsError> {
        let file = |(path, _)| Ok(look(root, path)?.map(|(_, file)| file));
        overrides.iter().map(file).collect::<Result<_, _>>().map(Self)
    }
}

/// What is at exactly `path`.
fn look(root: &Rootfs, path: &GuestPath) -> Result<Option<(Metadata, FileId)>, RootfsError> {
    let failed = |source| RootfsError::Io { action: "read metadata of", path: path.clone(), source };
    match open_exact(root.as_fd(), path, OFlags::PATH) {
        Ok(file) => identified(file).map(Some).map_err(failed),
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            _ => Err(failed(error)),
        },
    }
}

/// The overrides of the tree `root` after something worked in it: what is left of `overrides`, whose files were
/// `identities`, and what was `learned` while this program itself made entries. `changes` is what the disk shows to be
/// other than before; what else is other because its override is, is added.
///
/// # Errors
/// When an entry cannot be looked at.
pub(super) fn settled(
    overrides: &Arc<Overrides>,
    identities: &Identities,
    learned: Learned,
    root: &Rootfs,
    changes: &mut Collector,
) -> Result<Arc<Overrides>, RootfsError> {
    if overrides.is_empty() && learned.is_empty() {
        return Ok(Arc::clone(overrides));
    }
    let caller = Caller::current();
    let mut news = Learned::new();
    let mut by_file: BTreeMap<FileId, &Override> = BTreeMap::new();
    for ((path, held), before) in overrides.iter().zip(&identities.0) {
        let now = look(root, path)?;
        let kept = match (&now, before) {
            (Some((now, file)), Some(before)) if file == before => {
                held.is_of(now).then(|| held.settled(now, &caller)).flatten()
            }
            (Some((now, _)), _) if replaces(held, now) => held.settled(now, &caller),
            _ => None,
        };
        if let Some(before) = before {
            by_file.insert(*before, held);
        }
        if kept.as_ref() != Some(held) {
            news.insert(path.clone(), kept);
        }
    }
    // Other names, of files that were renamed or got one more: those are new, and so among the changes.
    let mut moved = Learned::new();
    for path in changes.put_paths() {
        if learned.contains_key(path) || by_file.is_empty() {
            continue;
        }
        if let Some((now, file)) = look(root, path)?
            && let Some(held) = by_file.get(&file)
            && held.is_of(&now)
        {
            moved.insert(path.clone(), held.settled(&now, &caller));
        }
    }
    news.extend(moved);
    news.extend(learned);
    for (path, held) in &news {
        let before = overrides.get(path);
        if before != held.as_ref()
            && let Some((now, _)) = look(root, path)?
        {
            if now.kind != FileKind::Directory && now.links > 1 {
                changes.linked(now.inode, path.clone(), None);
            } else {
                changes.put(path.clone());
            }
        }
    }
    Ok(changed(overrides, news))
}

/// Whether a new file at the place of one with the override `held` was certainly given that one's metadata.
fn replaces(held: &Override, now: &Metadata) -> bool {
    now.kind == FileKind::File && !held.is_device() && held.fits(now) && keeps_its_group(now.mode)
}
