//! What to do about what the system refused: full disks, limits of the process, file systems that only can be read.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::Resource;

use crate::build::copy::CopyError;
use crate::build::progress::size;
use crate::layer::EntryError;
use crate::store::StoreError;
use crate::store::export::ExportError;
use crate::store::room::Free;

/// With less room than this a disk may be why a step failed, though it did not say so.
const LITTLE_ROOM: Free = Free { bytes: 16 << 20, inodes: Some(64) };

/// The system's part in a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Trouble {
    /// A system call failed.
    Refused {
        /// How.
        errno: Errno,
        /// With what, where it was something else than the store.
        place: Option<PathBuf>,
        /// What was to be written.
        what: Unwritten,
    },
    /// A command of a step failed, who knows why. The disk had this left then: what the step wrote is gone by now.
    Step(Option<Free>),
    /// Something in the store was not what it had been.
    Damage,
}

/// What could not be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unwritten {
    /// Names and content, mostly.
    Files,
    /// Extended attributes, for which file systems have rooms of their own.
    Attributes,
}

impl Trouble {
    /// What the system refused, if that is behind `error`.
    pub(super) fn behind(error: &(dyn Error + 'static)) -> Option<Self> {
        let mut place = None;
        let mut what = Unwritten::Files;
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(ExportError::Io { path, .. }) = error.downcast_ref() {
                place = Some(path.clone());
            }
            if is_about_attributes(error) {
                what = Unwritten::Attributes;
            }
            match error.downcast_ref() {
                Some(StoreError::Corrupt(_)) => return Some(Self::Damage),
                // It says itself what to do.
                Some(StoreError::Unwritable { .. }) => return None,
                _ => {}
            }
            if let Some(errno) = error.downcast_ref::<io::Error>().and_then(Errno::from_io_error) {
                return Some(Self::Refused { errno, place, what });
            }
            next = error.source();
        }
        None
    }

    /// What to do about it; none where nothing more can be said than the message does.
    pub(super) fn advice(&self, store: &Path) -> Option<String> {
        let (errno, place, what) = match self {
            Self::Step(free) => return (*free).and_then(|free| advice_for_step(free, store)),
            Self::Damage => return Some("it has been removed: build again, and it is made anew".to_owned()),
            Self::Refused { errno, place, what } => (*errno, place.as_deref(), *what),
        };
        let (place, shown, otherwise) = match place {
            // What was made there may be gone again.
            Some(place) => {
                let there = place.ancestors().find(|path| path.exists()).unwrap_or(Path::new("."));
                (there, format!("`{}`", there.display()), "write elsewhere")
            }
            None => (store, format!("the store `{}`", store.display()), "choose another store with --store"),
        };
        Some(match errno {
            Errno::NOSPC if what == Unwritten::Attributes => format!(
                "the disk that holds {shown} has too little room{}, or its file system too little for the extended \
                 attributes of one file (ext4: a block): make room, or {otherwise}",
                room(place)
            ),
            Errno::NOSPC => format!(
                "the disk that holds {shown} has too little room{}: make room, or {otherwise}",
                room(place)
            ),
            Errno::DQUOT => {
                format!("the disk quota for {shown} is used up: have it raised, make room, or {otherwise}")
            }
            Errno::ROFS => format!("{shown} is on a file system that is mounted read-only: {otherwise}"),
            Errno::FBIG => format!(
                "files here may have no more than {}: raise the limit (`ulimit -f`)",
                limit(Resource::Fsize, size)
            ),
            Errno::MFILE => format!(
                "this process may have no more than {} files open: raise the limit (`ulimit -n`)",
                limit(Resource::Nofile, |count| count.to_string())
            ),
            Errno::NFILE => "the system has too many files open".to_owned(),
            Errno::AGAIN => {
                "there may be no more processes or threads: raise the limit (`ulimit -u`, or `pids` of the container)".to_owned()
            }
            Errno::NOMEM => "the system, or this container, has no memory left".to_owned(),
            Errno::IO => "a disk may be failing: see the kernel's log".to_owned(),
            _ => return None,
        })
    }
}

/// A step that failed on a disk that is as good as full most probably failed for that.
fn advice_for_step(free: Free, store: &Path) -> Option<String> {
    free.is_below(&LITTLE_ROOM).then(|| {
        format!(
            "the disk that holds the store `{}` had little room{}: make room, or choose another store with --store",
            store.display(),
            shown(free, "when it failed")
        )
    })
}

fn is_about_attributes(error: &(dyn Error + 'static)) -> bool {
    let action = match (error.downcast_ref(), error.downcast_ref()) {
        (Some(EntryError::Io { action, .. }), _) | (_, Some(CopyError::Io { action, .. })) => action,
        _ => return false,
    };
    action.contains("attribute")
}

/// For behind a sentence. Inodes are named where they are what is missing: `df` does not show them.
fn shown(free: Free, when: &str) -> String {
    match free.inodes {
        Some(inodes) if free.has_fewer_inodes(&LITTLE_ROOM) => {
            format!(" ({} and {inodes} inodes free {when})", size(free.bytes))
        }
        _ => format!(" ({} free {when})", size(free.bytes)),
    }
}

fn room(path: &Path) -> String {
    Free::of(path).map(|free| shown(free, "now")).unwrap_or_default()
}

fn limit(resource: Resource, shown: impl FnOnce(u64) -> String) -> String {
    rustix::process::getrlimit(resource).current.map_or_else(|| "some".to_owned(), shown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::LayerError;
    use crate::rootfs::Escaped;
    use crate::store::unpacked::UnpackError;

    fn refused(errno: Errno) -> io::Error {
        errno.into()
    }

    #[test]
    fn what_the_system_refused_is_found_behind_any_error() {
        let entry = |action| LayerError::Entry {
            name: Escaped::new(b"x"),
            problem: EntryError::Io { action, source: refused(Errno::NOSPC) },
        };
        let store = Path::new("/");
        for (error, words) in [
            (
                Box::new(entry("write the file")) as Box<dyn Error>,
                "the disk that holds the store `/` has too little room (",
            ),
            (Box::new(entry("set an extended attribute")), "attributes of one file"),
            (
                Box::new(ExportError::Io {
                    action: "write",
                    path: "/tmp".into(),
                    source: refused(Errno::NOSPC),
                }),
                "holds `/tmp` has too little room",
            ),
            (
                Box::new(UnpackError::Directory { path: "/x".into(), cause: refused(Errno::DQUOT) }),
                "disk quota for the store",
            ),
            (Box::new(io::Error::other(LayerError::Output(refused(Errno::FBIG)))), "ulimit -f"),
            (Box::new(refused(Errno::MFILE)), "ulimit -n"),
        ] {
            let advice = Trouble::behind(&*error).and_then(|trouble| trouble.advice(store)).unwrap();
            assert!(advice.contains(words), "{advice}");
        }
        for silent in [
            Box::new(refused(Errno::NOENT)) as Box<dyn Error>,
            Box::new(io::Error::other("no system call")),
            Box::new(StoreError::Unwritable {
                action: "make",
                path: "/x".into(),
                source: refused(Errno::ROFS),
            }),
        ] {
            assert_eq!(Trouble::behind(&*silent).and_then(|trouble| trouble.advice(store)), None, "{silent}");
        }
    }

    #[test]
    fn inodes_are_named_where_they_are_short() {
        let shown = |bytes, inodes| shown(Free { bytes, inodes }, "now");
        assert_eq!(shown(2_000_000, Some(1_000_000)), " (2.0 MB free now)");
        assert_eq!(shown(2_000_000, Some(0)), " (2.0 MB and 0 inodes free now)");
        assert_eq!(shown(0, None), " (0 B free now)");
    }
}
