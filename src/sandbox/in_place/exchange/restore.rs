//! What a step has hidden, renamed or spoilt in the builder's own directory: known again by which file it is, not by name.
//!
//! Nothing of the container is removed here. What is found is the container's if it was aside and is that very file; what
//! nobody knows is removed only if all of it is younger than the claim, and so an image's or the step's; else it is kept.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};

use super::directory::Moved;
use super::{Exchange, READ};
use crate::rootfs::visit::{Names, open_exact};
use crate::rootfs::{GuestPath, metadata_at};
use crate::sandbox::in_place::claim::{ASIDE, Claim, KEPT, LEFT};
use crate::sandbox::in_place::identity::{Identity, bring_home, is_at};
use crate::sandbox::in_place::moving::act;
use crate::sandbox::in_place::troubles::Troubles;

/// How many entries are looked at to find what a step has moved: a step can make more, but not faster than it is seen that
/// something is missing.
const SEARCHED: usize = 200_000;

/// Something that is not where it was.
struct Missing<'a> {
    identity: &'a Identity,
    /// Where it was.
    parent: BorrowedFd<'a>,
    name: &'a [u8],
    path: GuestPath,
}

impl Missing<'_> {
    fn is_missing(&self) -> bool {
        !is_still(self.identity, self.parent, self.name)
    }
}

/// What of the builder's own directory is a step's none of its business, and was there when it began.
pub(super) struct Own(Vec<(Vec<u8>, Identity)>);

impl Own {
    /// What is there now.
    pub(super) fn of(private: BorrowedFd<'_>) -> std::io::Result<Self> {
        let names = Names::in_directory(private)?;
        let known = names.iter().map(|name| Ok((name.to_vec(), Identity::of(private, name)?)));
        Ok(Self(known.collect::<std::io::Result<_>>()?))
    }
}

impl Exchange<'_> {
    /// Finds what is missing of what was aside, and of the builder's own, and puts it back there; and takes out of the way
    /// what does not belong there.
    pub(super) fn restore(&self, own: &Own, troubles: &mut Troubles<'_>) {
        self.find(self.missing_aside(), troubles);
        for position in 0..self.directories.len() {
            self.bring_aside_home(position, troubles);
        }
        self.find(self.missing_own(own), troubles);
        let (private, path) = (self.claim.private(), Claim::private_path());
        let is_own = |name: &[u8]| {
            let own = own.0.iter().find(|(own, _)| own == name);
            own.is_some_and(|(_, was)| is_still(was, private, name))
                || [LEFT, KEPT].iter().any(|known| known.as_bytes() == name)
        };
        self.clear(private, &path, is_own, troubles);
        for directory in &self.directories {
            let Some(aside) = &directory.aside else { continue };
            let place = aside_of(&directory.entry.path);
            // What a step has put in the place of something may be its content, changed.
            let is_known = |name: &[u8]| {
                directory.entry.keeps(name) || directory.moved.iter().any(|moved| moved.name == name)
            };
            self.clear(aside.as_fd(), &place, is_known, troubles);
        }
    }

    /// What was aside and has gone from where it was.
    fn missing_aside(&self) -> Vec<Missing<'_>> {
        let aside = self.directories.iter().flat_map(|directory| {
            let moved = directory.aside.iter().flat_map(|aside| {
                directory.moved.iter().map(move |Moved { name, identity }| (aside.as_fd(), name, identity))
            });
            moved.filter_map(|(parent, name, identity)| {
                let path = directory.entry.path.child(name);
                Some(Missing { identity: identity.as_ref()?, parent, name, path })
            })
        });
        aside.filter(Missing::is_missing).collect()
    }

    /// What else was in the builder's own directory and is not there.
    fn missing_own<'a>(&'a self, own: &'a Own) -> Vec<Missing<'a>> {
        let (private, path) = (self.claim.private(), Claim::private_path());
        let own = own.0.iter().map(|(name, identity)| {
            let path = path.child(name);
            Missing { identity, parent: private, name, path }
        });
        own.filter(Missing::is_missing).collect()
    }

    fn find(&self, mut missing: Vec<Missing<'_>>, troubles: &mut Troubles<'_>) {
        for missing in &missing {
            troubles.damaged(&missing.path);
        }
        let mut searched = 0;
        // The second has the first in it.
        for top in [self.claim.private(), self.claim.directory()] {
            let mut waiting = VecDeque::from([GuestPath::root()]);
            while let Some(place) = waiting.pop_front().filter(|_| !missing.is_empty()) {
                let Ok(directory) = open_exact(top, &place, READ) else { continue };
                let Ok(names) = Names::in_directory(directory.as_fd()) else { continue };
                for name in names.iter() {
                    searched += 1;
                    if searched > SEARCHED {
                        return;
                    }
                    let Ok(found) = Identity::of(directory.as_fd(), name) else { continue };
                    let known = missing.iter().position(|missing| missing.identity.is_exactly(&found));
                    if let Some(Missing { parent, name: old, path, .. }) =
                        known.map(|at| missing.swap_remove(at))
                    {
                        self.put_by(parent, old, &path, troubles);
                        // If it fails, it is told, and nothing of it is removed.
                        let _ = act(|| rustix::fs::renameat(&directory, name, parent, old));
                    } else if found.is_directory() {
                        waiting.push_back(place.child(name));
                    }
                }
            }
        }
    }

    /// Puts the directory of what is aside where it was.
    fn bring_aside_home(&self, position: usize, troubles: &mut Troubles<'_>) {
        let directory = &self.directories[position];
        let above = match directory.parent {
            None => Some(self.claim.private()),
            Some(parent) => self.directories[parent].aside.as_ref().map(AsFd::as_fd),
        };
        let (Some(aside), Some(above)) = (&directory.aside, above) else { return };
        let name = directory.entry.path.file_name().unwrap_or(ASIDE.as_bytes());
        if !is_at(aside.as_fd(), above, name) {
            let path = aside_of(&directory.entry.path);
            troubles.damaged(&path);
            self.put_by(above, name, &path, troubles);
            // Where it was removed, so was what was in it.
            let _ = bring_home(aside.as_fd(), above, name);
        }
    }

    /// Takes away what `directory`, which is `path`, has besides what `is_known`.
    fn clear(
        &self,
        directory: BorrowedFd<'_>,
        path: &GuestPath,
        is_known: impl Fn(&[u8]) -> bool,
        troubles: &mut Troubles<'_>,
    ) {
        let names = Names::in_directory(directory).map_err(super::failed("list", path));
        let names = troubles.value(names).unwrap_or_default();
        for name in names.iter().filter(|name| !is_known(name)) {
            self.put_by(directory, name, &path.child(name), troubles);
        }
    }

    /// Takes away the entry `name` of `directory`, if there is one: it is removed if nothing of it can be the container's.
    fn put_by(&self, directory: BorrowedFd<'_>, name: &[u8], path: &GuestPath, troubles: &mut Troubles<'_>) {
        if metadata_at(directory, name).is_err() {
            return;
        }
        if self.is_nobodys(directory, name) {
            troubles.displace(directory, name, path);
        } else {
            troubles.damaged(path);
            troubles.keep(directory, name, path);
        }
    }

    /// Whether all of it has come with an image or a step of this builder.
    fn is_nobodys(&self, directory: BorrowedFd<'_>, name: &[u8]) -> bool {
        let young = |at: BorrowedFd<'_>, name: &[u8]| {
            let found = Identity::of(at, name).ok()?;
            found.birth().is_some_and(|time| self.claim.is_since(time)).then_some(found)
        };
        let Some(top) = young(directory, name) else { return false };
        let mut waiting = VecDeque::new();
        if top.is_directory() {
            waiting.push_back(GuestPath::root().child(name));
        }
        let mut searched = 0;
        while let Some(place) = waiting.pop_front() {
            let Ok(here) = open_exact(directory, &place, READ) else { return false };
            let Ok(names) = Names::in_directory(here.as_fd()) else { return false };
            for name in names.iter() {
                searched += 1;
                if searched > SEARCHED {
                    return false;
                }
                let Some(found) = young(here.as_fd(), name) else { return false };
                if found.is_directory() {
                    waiting.push_back(place.child(name));
                }
            }
        }
        true
    }
}

/// Where what is aside of the directory `path` is.
fn aside_of(path: &GuestPath) -> GuestPath {
    let aside = Claim::private_path().child(ASIDE.as_bytes());
    path.components().fold(aside, |place, name| place.child(name))
}

fn is_still(was: &Identity, parent: BorrowedFd<'_>, name: &[u8]) -> bool {
    Identity::of(parent, name).is_ok_and(|now| was.is_that_of(&now))
}
