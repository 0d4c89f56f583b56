//! A directory of the container's root that stays, and whose entries change places with those of an image's directory.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::Mode;

use super::failed;
use crate::rootfs::remove::enter;
use crate::rootfs::visit::Names;
use crate::rootfs::{FileKind, metadata_at};
use crate::sandbox::Cancel;
use crate::sandbox::in_place::claim::Claim;
use crate::sandbox::in_place::error::InPlaceError;
use crate::sandbox::in_place::face::Face;
use crate::sandbox::in_place::identity::{Identity, now};
use crate::sandbox::in_place::journal::{Entry, Phase};
use crate::sandbox::in_place::moving::{act, go_on, move_entry, move_lower};
use crate::sandbox::in_place::troubles::Troubles;

/// A directory that stays, and whose entries are exchanged.
pub(super) struct Directory {
    pub(super) entry: Entry,
    /// The position of the one that holds it.
    pub(super) parent: Option<usize>,
    /// In the container's root.
    pub(super) here: OwnedFd,
    /// Where the container's entries are meanwhile; none before any is.
    pub(super) aside: Option<OwnedFd>,
    pub(super) moved: Vec<Moved>,
    pub(super) tree: InTree,
    /// What the tree's directory is, if there is one, until a step may have made it something else.
    pub(super) shown: Option<Face>,
    /// Whether it is shown in the root.
    pub(super) is_shown: bool,
}

/// What a tree has in the place of a directory that stays.
#[derive(Debug)]
pub(super) enum InTree {
    /// A directory.
    Directory(OwnedFd),
    /// Nothing, yet: it is made when a step puts something there.
    Absent,
    /// A file or a link, there or above: what a step puts there is not the image's.
    Covered,
}

/// An entry of the container that is aside.
#[derive(Debug)]
pub(super) struct Moved {
    pub(super) name: Vec<u8>,
    /// None if nobody knows.
    pub(super) identity: Option<Identity>,
}

/// How much of what was aside is where and as it was, as far as it was to be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Home {
    All,
    NotAll,
}

impl Directory {
    /// Moves the container's entries into `aside`; what may be of lower layers is copied in the directory of `claim`.
    pub(super) fn put_aside(
        &mut self,
        aside: OwnedFd,
        claim: &Claim,
        cancel: &Cancel,
    ) -> Result<(), InPlaceError> {
        let Self { entry, here, moved, .. } = self;
        let aside = (*self.aside.insert(aside)).as_fd();
        for name in Names::in_directory(here.as_fd()).map_err(failed("list", &entry.path))?.iter() {
            if entry.keeps(name) {
                continue;
            }
            let put_aside = |error| failed("put aside", &entry.path.child(name))(error);
            go_on(cancel).map_err(put_aside)?;
            let (was, began) = (Identity::of(here.as_fd(), name).ok(), now());
            let done = move_lower(here.as_fd(), name, aside, claim.private(), cancel);
            let identity = Identity::of(aside, name).ok();
            if was.zip(identity).is_none_or(|(was, is)| !was.is_exactly(&is)) {
                claim.copied(began, now());
            }
            // Also what was moved in part.
            moved.push(Moved { name: name.to_vec(), identity });
            done.map_err(put_aside)?;
        }
        Ok(())
    }

    /// Moves the image's entries into the root, and shows its metadata.
    pub(super) fn bring_in(&mut self, cancel: &Cancel) -> Result<(), InPlaceError> {
        let Self { entry, here, tree, .. } = self;
        if let InTree::Directory(tree) = tree {
            for name in Names::in_directory(tree.as_fd()).map_err(failed("list", &entry.path))?.iter() {
                if !entry.keeps(name) {
                    go_on(cancel)
                        .and_then(|()| move_entry(tree.as_fd(), name, here.as_fd()))
                        .map_err(failed("bring in", &entry.path.child(name)))?;
                }
            }
        }
        if let Some(face) = &self.shown {
            act(|| face.give_to(here.as_fd())).map_err(failed("set metadata of", &entry.path))?;
            self.is_shown = true;
        }
        Ok(())
    }

    /// Moves the entries `leaving` into the tree, and away what has no place there.
    pub(super) fn take_out(&self, leaving: &[&[u8]], troubles: &mut Troubles<'_>) {
        for name in leaving {
            let path = self.entry.path.child(name);
            if let InTree::Directory(tree) = &self.tree {
                match move_entry(self.here.as_fd(), name, tree.as_fd()) {
                    Ok(()) => continue,
                    Err(error) => troubles.note(Err(failed("bring out", &path)(error))),
                }
            }
            troubles.displace(self.here.as_fd(), name, &path);
        }
    }

    /// Moves the container's entries back to where they were; the exchange had come to `before` when that began.
    pub(super) fn put_back(&self, before: Phase, troubles: &mut Troubles<'_>) -> Home {
        let Self { entry, here, aside, moved, .. } = self;
        let mut home = Home::All;
        for Moved { name, identity } in moved {
            let Some(aside) = aside.as_ref().map(AsFd::as_fd) else { continue };
            let path = entry.path.child(name);
            let now = Identity::of(aside, name);
            if let (Err(_), None) = (&now, identity) {
                // It had not been moved at all.
                continue;
            }
            let is_ours = identity.is_none_or(|was| now.as_ref().is_ok_and(|now| was.is_that_of(now)));
            if !is_ours {
                troubles.damaged(&path);
            }
            // What a step has put in its place may be its content, changed.
            if now.is_err() {
                continue;
            }
            // After a step, what is still there is nobody's. Before one, it is the rest of a directory that was to be moved.
            if before == Phase::Exchanged && metadata_at(here.as_fd(), name).is_ok() {
                troubles.displace(here.as_fd(), name, &path);
            }
            if let Err(error) = move_entry(aside, name, here.as_fd()) {
                home = Home::NotAll;
                troubles.note(Err(failed("bring back", &path)(error)));
            }
        }
        if let Err(error) = act(|| entry.face.give_to(here.as_fd())) {
            home = Home::NotAll;
            troubles.note(Err(failed("set metadata of", &entry.path)(error)));
        }
        home
    }

    /// What the image's directory is to be now.
    pub(super) fn face(&self) -> Result<Option<Face>, InPlaceError> {
        if !self.is_shown {
            return Ok(self.shown.clone());
        }
        Face::of(&self.here).map(Some).map_err(failed("read metadata of", &self.entry.path))
    }

    /// Makes the directory in the tree, in the directory `above` of it.
    pub(super) fn make_in_tree(&mut self, above: BorrowedFd<'_>) -> Result<(), InPlaceError> {
        let name = self.entry.path.file_name().unwrap_or(b".");
        let made = act(|| rustix::fs::mkdirat(above, name, Mode::RWXU)).and_then(|()| {
            let directory = enter(above, name)?;
            Face::plain(self.entry.face.mtime).give_to(directory.as_fd())?;
            Ok(directory)
        });
        self.tree = InTree::Directory(made.map_err(failed("make in the image", &self.entry.path))?);
        Ok(())
    }
}

impl InTree {
    /// What the entry `name` of the tree's directory `parent` is.
    pub(super) fn of(parent: BorrowedFd<'_>, name: &[u8]) -> io::Result<Self> {
        match metadata_at(parent, name) {
            Ok(metadata) if metadata.kind == FileKind::Directory => Ok(Self::Directory(enter(parent, name)?)),
            Ok(_) => Ok(Self::Covered),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::Absent),
            Err(error) => Err(error),
        }
    }

    /// What is called `name` in what the tree has `above`.
    pub(super) fn below(above: &Self, name: &[u8]) -> io::Result<Self> {
        match above {
            Self::Directory(parent) => Self::of(parent.as_fd(), name),
            Self::Absent => Ok(Self::Absent),
            Self::Covered => Ok(Self::Covered),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::rootfs::{GuestPath, set_mode_at};

    /// A root with a claim, a tree, and the directory `/` of an exchange of which `stays` stays.
    fn with_directory(test: impl FnOnce(&Path, &Path, &Claim, Directory)) {
        let top = tempfile::tempdir().unwrap();
        let root = top.path();
        for name in ["stays/mine", "own", "both"] {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        let claim = Claim::take(root, &|| {}).unwrap();
        let tree = claim.trees().join("tree");
        for name in ["stays/theirs", "both/image", "image"] {
            fs::create_dir_all(tree.join(name)).unwrap();
        }
        let open = |path: &Path| OwnedFd::from(fs::File::open(path).unwrap());
        set_mode_at(open(&tree).as_fd(), b".", 0o751).unwrap();
        let points = [b"stays".as_slice(), b".builder-in-place"].map(|name| GuestPath::root().child(name));
        let entry = Entry::new(GuestPath::root(), &points, Face::of(open(root)).unwrap());
        let in_tree = open(&tree);
        let shown = Some(Face::of(&in_tree).unwrap());
        let directory = Directory {
            entry,
            parent: None,
            here: open(root),
            aside: None,
            moved: Vec::new(),
            tree: InTree::Directory(in_tree),
            shown,
            is_shown: false,
        };
        test(root, &tree, &claim, directory);
    }

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn entries_change_places_but_for_those_that_stay() {
        with_directory(|root, tree, claim, mut directory| {
            let cancel = Cancel::new().unwrap();
            let aside = claim.make("aside").unwrap();
            directory.put_aside(aside, claim, &cancel).unwrap();
            assert_eq!(names(root), [".builder-in-place", "stays"]);
            directory.bring_in(&cancel).unwrap();
            assert_eq!(names(root), [".builder-in-place", "both", "image", "stays"]);
            assert_eq!(names(&root.join("stays")), ["mine"]);
            assert_eq!(directory.face().unwrap().unwrap().mode, 0o751);
            let mut troubles = Troubles::new(claim);
            directory.take_out(&[b"both", b"image"], &mut troubles);
            assert_eq!(names(tree), ["both", "image", "stays"]);
            assert_eq!(directory.put_back(Phase::Exchanged, &mut troubles), Home::All);
            assert_eq!(names(root), [".builder-in-place", "both", "own", "stays"]);
            assert_eq!(Face::of(&directory.here).unwrap().mode, directory.entry.face.mode);
            troubles.end().unwrap();
        });
    }

    #[test]
    fn what_is_still_there_is_nobodys_after_a_step_and_the_rest_of_a_directory_before() {
        for (phase, left) in [(Phase::Exchanged, &["aside"][..]), (Phase::Apart, &["aside", "rest"])] {
            with_directory(|root, _, claim, mut directory| {
                let aside = claim.make("aside").unwrap();
                fs::create_dir(root.join("own/aside")).unwrap();
                directory.put_aside(aside, claim, &Cancel::new().unwrap()).unwrap();
                fs::create_dir_all(root.join("own/rest")).unwrap();
                let mut troubles = Troubles::new(claim);
                assert_eq!(directory.put_back(phase, &mut troubles), Home::All);
                assert_eq!(names(&root.join("own")), left, "{phase:?}");
                troubles.end().unwrap();
            });
        }
    }

    #[test]
    fn what_a_tree_has_in_the_place_of_a_directory_is_told_by_what_is_there() {
        let top = tempfile::tempdir().unwrap();
        fs::create_dir(top.path().join("directory")).unwrap();
        fs::write(top.path().join("file"), "").unwrap();
        rustix::fs::symlink("directory", top.path().join("link")).unwrap();
        let tree = fs::File::open(top.path()).unwrap();
        let of = |name: &str| InTree::of(tree.as_fd(), name.as_bytes()).unwrap();
        assert!(matches!(of("directory"), InTree::Directory(_)));
        assert!(matches!(of("missing"), InTree::Absent));
        for name in ["file", "link"] {
            assert!(matches!(of(name), InTree::Covered), "{name}");
            assert!(matches!(InTree::below(&of(name), b"x").unwrap(), InTree::Covered), "{name}");
        }
        assert!(matches!(InTree::below(&of("missing"), b"x").unwrap(), InTree::Absent));
        assert!(matches!(InTree::below(&of("directory"), b"x").unwrap(), InTree::Absent));
    }
}
