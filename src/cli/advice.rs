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
use crate::store::directory::DirectoryError;
use crate::store::export::ExportError;
use crate::store::extract::is_mount_point;
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
    /// An extended attribute: file systems have room of its own for these, and limits.
    Attribute,
}

impl Trouble {
    /// What the system refused, if that is behind `error`.
    pub(super) fn behind(error: &(dyn Error + 'static)) -> Option<Self> {
        let mut place = None;
        let mut what = Unwritten::Files;
        let mut next = Some(error);
        while let Some(error) = next {
            place = place_of(error).or(place);
            if is_about_attributes(error) {
                what = Unwritten::Attribute;
            }
            match error.downcast_ref() {
                Some(StoreError::Corrupt(_)) => return Some(Self::Damage),
                // It says itself what to do.
                Some(StoreError::Unwritable { .. } | StoreError::Unreadable { .. }) => return None,
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
            Self::Refused { errno, place, what } => (errno, place.as_deref(), *what),
        };
        let (place, shown, otherwise) = match place {
            // What was made there may be gone again.
            Some(place) => {
                let there = place.ancestors().find(|path| path.exists()).unwrap_or(Path::new("."));
                // `.` would say nothing in a log.
                let shown = std::path::absolute(there);
                let shown = shown.as_deref().unwrap_or(there).display();
                (there, format!("`{shown}`"), "write elsewhere")
            }
            None => (store, format!("the store `{}`", store.display()), "choose another store with --store"),
        };
        if what == Unwritten::Attribute
            && let Some(advice) = advice_for_attribute(*errno, Free::of(place), &shown, otherwise)
        {
            return Some(advice);
        }
        Some(match *errno {
            Errno::NOSPC => advice_for_full_disk(Free::of(place), &shown, otherwise),
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

/// What to do about a store that cannot be written to although nobody has used it yet. In a pod most often: its root is
/// read-only, or a volume belongs to root.
pub(super) fn advice_for_store(error: &StoreError, store: &Path) -> Option<String> {
    let StoreError::Unwritable { source, .. } = error else { return None };
    advice_for_unwritable(source.kind(), store)
}

/// The same, of the `kind` of an error.
pub(super) fn advice_for_unwritable(kind: io::ErrorKind, store: &Path) -> Option<String> {
    let on_volume = store.ancestors().any(|path| path.parent().is_some() && is_mount_point(path));
    if !on_volume {
        return Some(format!("in a pod, mount a volume at `{}` (an emptyDir will do)", store.display()));
    }
    (kind == io::ErrorKind::PermissionDenied)
        .then(|| "this user may not write there; in a pod, `fsGroup` gives volumes to its user".to_owned())
}

/// A step that failed on a disk that is as good as full most probably failed for that.
fn advice_for_step(free: Free, store: &Path) -> Option<String> {
    free.is_below(&LITTLE_ROOM).then(|| {
        format!(
            "the disk that holds the store `{}` had little room{}: make room, or choose another store with --store",
            store.display(),
            shown(free)
        )
    })
}

/// By now what filled the disk may have been removed, so how much room there is tells nothing. Few inodes still are few.
fn advice_for_full_disk(free: Option<Free>, shown: &str, otherwise: &str) -> String {
    let inodes = free.filter(|free| free.has_fewer_inodes(&LITTLE_ROOM)).and_then(|free| free.inodes);
    let lack = match inodes {
        Some(inodes) => format!("has too few inodes ({inodes} free now)"),
        None => "had too little room, or too few inodes (`df -i`)".to_owned(),
    };
    format!("the disk that holds {shown} {lack}: make room, or {otherwise}")
}

/// What a refused attribute means, where that differs from what the number means for files.
fn advice_for_attribute(errno: Errno, free: Option<Free>, shown: &str, otherwise: &str) -> Option<String> {
    Some(match errno {
        Errno::NOSPC if free.is_some_and(|free| free.is_below(&LITTLE_ROOM)) => return None,
        Errno::NOSPC => format!(
            "the file system that holds {shown} has no room for it beside the other attributes of the file, whatever the \
             disk has (ext4: one block for all of them): {otherwise}, on another file system"
        ),
        Errno::TOOBIG => "Linux takes values of at most 65536 bytes".to_owned(),
        Errno::RANGE => "Linux takes attributes with names of at most 255 bytes".to_owned(),
        Errno::INVAL => "name or value are not in the form that the kernel wants".to_owned(),
        _ => return None,
    })
}

/// Where something was to be written that is no matter of the store.
fn place_of(error: &(dyn Error + 'static)) -> Option<PathBuf> {
    match error.downcast_ref() {
        Some(ExportError::Io { path, .. }) => return Some(path.clone()),
        Some(ExportError::StandardOutput(_)) => {
            // A full one is a file.
            let file = std::fs::read_link("/proc/self/fd/1");
            return Some(file.unwrap_or_else(|_| PathBuf::from("/dev/stdout")));
        }
        _ => {}
    }
    match error.downcast_ref()? {
        DirectoryError::Io { path, .. }
        | DirectoryError::Entry { path, .. }
        | DirectoryError::Incomplete { path, .. }
        | DirectoryError::Others { path, .. } => Some(path.clone()),
        DirectoryError::NotADirectory(_) => None,
    }
}

fn is_about_attributes(error: &(dyn Error + 'static)) -> bool {
    matches!(error.downcast_ref(), Some(EntryError::Attribute { .. }))
        || matches!(error.downcast_ref(), Some(CopyError::Attribute { .. }))
}

/// For behind a sentence. Inodes are named where they are what is missing: `df` does not show them.
fn shown(free: Free) -> String {
    match free.inodes {
        Some(inodes) if free.has_fewer_inodes(&LITTLE_ROOM) => {
            format!(" ({} and {inodes} inodes free when it failed)", size(free.bytes))
        }
        _ => format!(" ({} free when it failed)", size(free.bytes)),
    }
}

fn limit(resource: Resource, shown: impl FnOnce(u64) -> String) -> String {
    rustix::process::getrlimit(resource).current.map_or_else(|| "some".to_owned(), shown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::LayerError;
    use crate::rootfs::{DeliveryError, Escaped, GuestPath};
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
        let attribute = |errno| LayerError::Entry {
            name: Escaped::new(b"x"),
            problem: EntryError::Attribute {
                key: Escaped::new(b"user.e"),
                size: 5000,
                source: refused(errno),
            },
        };
        for (error, words) in [
            (
                Box::new(entry("write the file")) as Box<dyn Error>,
                "the disk that holds the store `/` had too little room, or too few inodes",
            ),
            (Box::new(attribute(Errno::TOOBIG)), "at most 65536 bytes"),
            (Box::new(attribute(Errno::RANGE)), "at most 255 bytes"),
            (Box::new(attribute(Errno::INVAL)), "are not in the form"),
            (Box::new(attribute(Errno::DQUOT)), "disk quota for the store"),
            (
                Box::new(ExportError::Io {
                    action: "write",
                    path: "/tmp".into(),
                    source: refused(Errno::NOSPC),
                }),
                "holds `/tmp` had too little room",
            ),
            (
                Box::new(DirectoryError::Incomplete {
                    path: "/tmp".into(),
                    source: DeliveryError::Io {
                        action: "make",
                        path: GuestPath::root(),
                        source: refused(Errno::NOSPC),
                    },
                }),
                "holds `/tmp` had too little room",
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
        let of = |bytes, inodes| shown(Free { bytes, inodes });
        assert_eq!(of(2_000_000, Some(1_000_000)), " (2.0 MB free when it failed)");
        assert_eq!(of(2_000_000, Some(0)), " (2.0 MB and 0 inodes free when it failed)");
        assert_eq!(of(0, None), " (0 B free when it failed)");
        let advice =
            |inodes| advice_for_full_disk(Some(Free { bytes: 9, inodes }), "`/x`", "write elsewhere");
        assert!(advice(Some(3)).contains("has too few inodes (3 free now)"));
        for inodes in [None, Some(1_000_000)] {
            let advice = advice(inodes);
            assert!(!advice.contains("free now") && advice.contains("had too little room"), "{advice}");
        }
    }

    #[test]
    fn a_disk_with_room_is_not_full_because_it_takes_no_attribute() {
        let advice = |bytes| {
            let free = Some(Free { bytes, inodes: Some(1_000_000) });
            advice_for_attribute(Errno::NOSPC, free, "`/x`", "write elsewhere")
        };
        let enough = advice(60 << 30).unwrap();
        assert!(enough.contains("beside the other attributes") && !enough.contains("make room"), "{enough}");
        assert_eq!(advice(1 << 20), None);
    }
}
