//! The content of a directory into another one.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use super::entry::{self, Place};
use super::filter::Filter;
use super::walk::{self, OPEN_LEVELS, Role, Visitor, open_directory, opened};
use super::{Copier, CopyError, child, tried};
use crate::rootfs::{FileId, FileKind, GuestPath, Metadata};

/// Merges the content of the directory `source`, as far as `filter` lets it through, into the directory `target`; both are
/// real paths. Metadata of the two is left alone, that of all directories below is taken over.
pub(super) fn copy(
    copier: &mut Copier<'_>,
    filter: &Filter<'_>,
    source: &GuestPath,
    target: &GuestPath,
) -> Result<(), CopyError> {
    let from = copier.request.from;
    let top = Target { path: target.clone(), open: None, origin: Origin::Found };
    let mut merging = Merging { copier, targets: vec![top], links: BTreeMap::new() };
    walk::walk(&from, filter, source, &mut merging)
}

struct Merging<'c, 'a> {
    copier: &'c mut Copier<'a>,
    /// The directories that are being filled, outermost first; never empty.
    targets: Vec<Target>,
    /// Where files with several names were copied to, by device and inode.
    links: BTreeMap<FileId, GuestPath>,
}

struct Target {
    path: GuestPath,
    open: Option<OwnedFd>,
    origin: Origin,
}

/// Whether a target was there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    Found,
    Made,
}

impl Merging<'_, '_> {
    /// The innermost target, and what `name` will be called in it.
    fn place(&mut self, name: &[u8]) -> Result<(&OwnedFd, GuestPath), CopyError> {
        let Some(target) = self.targets.last_mut() else {
            return Err(CopyError::NotADirectory { path: GuestPath::root() });
        };
        let path = child(&target.path, name)?;
        let directory =
            opened(&mut target.open, self.copier.onto, &target.path).map_err(CopyError::Destination)?;
        Ok((directory, path))
    }
}

impl Visitor for Merging<'_, '_> {
    fn enter(&mut self, from: &Place<'_>, _: &Metadata) -> Result<(), CopyError> {
        let onto = self.copier.onto;
        let (directory, path) = self.place(from.name)?;
        let to = Place { directory, name: from.name, path: &path };
        let origin = match to.metadata()? {
            None => {
                tried(to.entry(onto).make_directory(), "make directory", &path)?;
                Origin::Made
            }
            Some(metadata) if metadata.kind == FileKind::Directory => Origin::Found,
            Some(_) => return Err(CopyError::CannotCopyToNonDirectory { path }),
        };
        let open = Some(tried(open_directory(directory, from.name), "open", &path)?);
        if self.targets.len() > OPEN_LEVELS
            && let Some(above) = self.targets.last_mut()
        {
            above.open = None;
        }
        self.targets.push(Target { path, open, origin });
        Ok(())
    }

    fn file(&mut self, from: &Place<'_>, metadata: &Metadata) -> Result<(), CopyError> {
        let Some(target) = self.targets.last_mut() else { return Ok(()) };
        let path = child(&target.path, from.name)?;
        let directory =
            opened(&mut target.open, self.copier.onto, &target.path).map_err(CopyError::Destination)?;
        let to = Place { directory, name: from.name, path: &path };
        if metadata.kind == FileKind::File && metadata.links > 1 {
            let file = metadata.file();
            if let Some(first) = self.links.get(&file) {
                return link(self.copier, first, metadata, &to);
            }
            self.links.insert(file, path.clone());
        }
        entry::copy(self.copier, from, metadata, &to)
    }

    /// The target has all entries, so its own metadata holds from now on. Of a directory that the instruction does not ask
    /// for, BuildKit takes the time when something was put there, and nothing but the mode where it was there already.
    fn leave(&mut self, from: &Place<'_>, metadata: &Metadata, role: Role) -> Result<(), CopyError> {
        let target = self.targets.pop();
        let mut attributes = entry::attributes_of(self.copier, from, metadata);
        let onto = self.copier.onto;
        let now = self.copier.now;
        let (directory, path) = self.place(from.name)?;
        let to = onto.entry(directory, from.name);
        if role == Role::OnTheWay {
            attributes.mtime = now;
            if target.is_some_and(|target| target.origin == Origin::Found) {
                tried(to.set_mode(metadata.mode), "set the mode of", &path)?;
                return tried(to.set_times(now), "set the times of", &path);
            }
        }
        entry::set_attributes(&to, &attributes, &path)
    }
}

/// Another name for a file of this tree that was copied already.
fn link(
    copier: &mut Copier<'_>,
    first: &GuestPath,
    metadata: &Metadata,
    to: &Place<'_>,
) -> Result<(), CopyError> {
    entry::make_room(to)?;
    let (directory, name) = copier.onto.parent(first).map_err(CopyError::Destination)?;
    let first = copier.onto.entry(&directory, &name);
    tried(to.entry(copier.onto).make_link(&first), "link", to.path)?;
    copier.done.files += 1;
    copier.done.bytes += metadata.size;
    Ok(())
}
