//! The mounts that a process asks for: sources cloned, targets found, the one put over the other.
//!
//! Sources come as descriptors, so that whoever changes names meanwhile changes nothing (CVE-2024-11218,
//! CVE-2024-23651). Targets are looked up when the process' root is the only one there is, and no process runs in it yet.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::Process;
use super::child::{Step, during};
use super::mount::{Bind, Content, Mount, PointKind, Rights, SecretFile, Writes};
use super::mounts::{INERT, NODEV, NOSUID, RDONLY, attach, clone_tree, new_mount};
use super::provided::make_file;
use super::stubs::make_point;
use super::wire::Report;
use crate::rootfs::{Follow, GuestPath, Owner, Rootfs, RootfsError};
use crate::sys::{self, MountReach};
use crate::text::chained;

/// A mount that is ready to be attached.
pub(super) struct Ready<'a> {
    target: &'a GuestPath,
    point: PointKind,
    mount: Made,
}

enum Made {
    /// It exists, attached nowhere.
    Detached(OwnedFd),
    /// It depends on what it covers.
    Tmpfs { size: Option<u64> },
}

/// Clones the sources of bind mounts, for the supervisor: it still is in the mount namespace that they were opened in.
/// Nothing where that is not possible.
pub(super) fn clone_sources(process: &Process) -> Step<Vec<Option<OwnedFd>>> {
    let clone = |mount: &Mount| match &mount.content {
        Content::Bind(bind) => match clone_tree(bind.source.as_fd(), "", MountReach::Tree) {
            Ok(clone) => Ok(Some(clone)),
            // Before Linux 6.15, of a mount that is attached nowhere no part can be cloned.
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => Ok(None),
            Err(error) => during(Err(error), format!("clone what is to be mounted at `{}`", mount.target)),
        },
        Content::Tmpfs { .. } | Content::Secret(_) => Ok(None),
    };
    process.mounts.iter().map(clone).collect()
}

/// Makes the mounts. Files and trees that must be somewhere for that are put into `staging`, a directory in memory that
/// goes before the process begins. `clones` is what [`clone_sources`] gave.
pub(super) fn prepare<'a>(
    process: &'a Process,
    clones: Vec<Option<OwnedFd>>,
    staging: &OwnedFd,
) -> Step<Vec<Ready<'a>>> {
    let mut ready = Vec::with_capacity(process.mounts.len());
    for (number, (mount, clone)) in process.mounts.iter().zip(clones).enumerate() {
        let target = &mount.target;
        let step = || format!("prepare what is to be mounted at `{target}`");
        let point = during(mount.content.point(), step())?;
        let mount = match &mount.content {
            Content::Tmpfs { size } => Made::Tmpfs { size: *size },
            Content::Secret(secret) => {
                Made::Detached(during(secret_file(secret, &format!("secret-{number}"), staging), step())?)
            }
            Content::Bind(bind) => {
                let clone = match clone {
                    Some(clone) => clone,
                    None => during(clone_here(bind, &format!("tree-{number}"), staging), step())?,
                };
                during(restrict(bind, &clone), step())?;
                Made::Detached(clone)
            }
        };
        ready.push(Ready { target, point, mount });
    }
    Ok(ready)
}

/// The file in memory, as a mount of its own.
fn secret_file(secret: &SecretFile, name: &str, staging: &OwnedFd) -> io::Result<OwnedFd> {
    make_file(staging, name.as_bytes(), secret.owner, secret.mode, secret.value.bytes())?;
    let mount = clone_tree(staging.as_fd(), name, MountReach::One)?;
    sys::restrict_mount(&mount, RDONLY | INERT, MountReach::One)?;
    Ok(mount)
}

/// Clones the source of a mount that the supervisor could not clone.
fn clone_here(bind: &Bind, name: &str, staging: &OwnedFd) -> io::Result<OwnedFd> {
    match clone_tree(bind.source.as_fd(), "", MountReach::Tree) {
        Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
            clone_attached(bind, name, staging)
        }
        // Another mount from the same tree has come before.
        result => result,
    }
}

/// Clones the source of a mount that is attached nowhere: in this namespace it can be attached for as long as it takes.
fn clone_attached(bind: &Bind, name: &str, staging: &OwnedFd) -> io::Result<OwnedFd> {
    rustix::fs::mkdirat(staging, name, Mode::RWXU)?;
    let place = rustix::fs::openat(staging, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    attach(&bind.tree, &place)?;
    clone_tree(bind.source.as_fd(), "", MountReach::Tree)
}

fn restrict(bind: &Bind, mount: &OwnedFd) -> io::Result<()> {
    let mut attributes = NODEV;
    if bind.writes == Writes::Refused {
        attributes |= RDONLY;
    }
    if bind.rights == Rights::Ignored {
        attributes |= NOSUID;
    }
    sys::restrict_mount(mount, attributes, MountReach::Tree)
}

/// Attaches the mounts one after the other, each where the ones before let its path lead. The root of this process must
/// be that of the command by now.
pub(super) fn attach_all(mounts: Vec<Ready<'_>>) -> Step<()> {
    if mounts.is_empty() {
        return Ok(());
    }
    let root = during(Rootfs::open("/".as_ref()), "open the root")?;
    for mount in mounts {
        attach_one(&root, &mount).map_err(|problem| Report::MountTarget {
            path: mount.target.clone(),
            problem: problem.to_string(),
        })?;
    }
    Ok(())
}

/// Why nothing can be mounted somewhere.
#[derive(Debug, thiserror::Error)]
pub(super) enum Problem {
    #[error("it leads to `{0}`, where the kernel's files are")]
    Kernel(GuestPath),
    #[error("it leads to the root directory")]
    Root,
    #[error("it is a directory, and what is to be mounted is none")]
    Directory,
    #[error("it is no directory, and what is to be mounted is one")]
    NotADirectory,
    // The cause in the same line: only the text goes to the builder.
    #[error("{}", chained(.0))]
    Rootfs(#[from] RootfsError),
    #[error("{0}")]
    Io(#[from] io::Error),
}

fn attach_one(root: &Rootfs, mount: &Ready<'_>) -> Result<(), Problem> {
    let place = root.resolve(mount.target)?;
    check_place(&place)?;
    // Where it is not in another mount, the builder has made what was missing.
    if root.metadata(&place, Follow::No)?.is_none() {
        root.create_dirs(&place.parent().unwrap_or_else(GuestPath::root), 0o755, Owner::ROOT)?;
        make_point(root, &place, mount.point)?;
    }
    let target = root.open_path(&place, Follow::No)?;
    let stat = rustix::fs::fstat(&target).map_err(io::Error::from)?;
    check_kind(mount.point, FileType::from_raw_mode(stat.st_mode))?;
    match &mount.mount {
        Made::Detached(made) => attach(made, &target)?,
        Made::Tmpfs { size } => attach(&tmpfs(*size, stat.st_mode)?, &target)?,
    }
    Ok(())
}

/// Whether something can be mounted at `place`, which leads over no link.
pub(super) fn check_place(place: &GuestPath) -> Result<(), Problem> {
    let mut components = place.components();
    match (components.next(), components.next()) {
        (None, _) => Err(Problem::Root),
        // As runc: what is mounted over parts of /proc could feign other rights. A new /dev would have no devices.
        (Some(b"proc"), _) | (Some(b"dev"), None) => Err(Problem::Kernel(place.clone())),
        _ => Ok(()),
    }
}

/// Whether what needs `point` can be mounted over something of this kind.
pub(super) fn check_kind(point: PointKind, covered: FileType) -> Result<(), Problem> {
    match (point, covered == FileType::Directory) {
        (PointKind::File, true) => Err(Problem::Directory),
        (PointKind::Directory { .. }, false) => Err(Problem::NotADirectory),
        _ => Ok(()),
    }
}

fn tmpfs(size: Option<u64>, covered_mode: u32) -> io::Result<OwnedFd> {
    let mode = format!("{:o}", covered_mode & 0o7777);
    let size = size.map(|size| size.to_string());
    let mut options = vec![("mode", mode.as_str())];
    options.extend(size.as_deref().map(|size| ("size", size)));
    new_mount("tmpfs", &options, NOSUID | NODEV)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::store::testing::can_mount;

    fn path(text: &str) -> GuestPath {
        GuestPath::clamp(text.as_bytes()).unwrap()
    }

    /// Kernels before 6.15 need this for every mount from a stage.
    #[test]
    fn a_part_of_a_mount_is_cloned_where_that_is_attached_for_a_moment() {
        if !can_mount() {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let place = |name: &str| {
            let path = directory.path().join(name);
            std::fs::create_dir(&path).unwrap();
            rustix::fs::open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap()
        };
        let staging = new_mount("tmpfs", &[], INERT).unwrap();
        attach(&staging, &place("staging")).unwrap();
        let tree = new_mount("tmpfs", &[], NODEV).unwrap();
        let files = Rootfs::from_fd(tree.try_clone().unwrap());
        files.create_dirs(&path("/a/b"), 0o755, Owner::ROOT).unwrap();
        make_file(&tree, b"a/b/file", Owner::ROOT, 0o644, b"content").unwrap();
        let tree = Arc::new(tree);
        let bind = |source: &str| Bind {
            tree: Arc::clone(&tree),
            source: Arc::new(files.open_path(&path(source), Follow::No).unwrap()),
            kept_at: None,
            writes: Writes::Refused,
            rights: Rights::Ignored,
        };
        let (directory_bind, file_bind) = (bind("/a"), bind("/a/b/file"));
        let first = clone_attached(&directory_bind, "tree-0", &staging).unwrap();
        let mounts = std::fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        assert!(mounts.contains("/staging/tree-0 "), "{mounts}");
        let second = clone_here(&file_bind, "tree-1", &staging).unwrap();
        for (bind, mount) in [(&directory_bind, &first), (&file_bind, &second)] {
            restrict(bind, mount).unwrap();
        }
        drop(staging);
        rustix::mount::unmount(directory.path().join("staging"), rustix::mount::UnmountFlags::DETACH)
            .unwrap();
        attach(&first, &place("first")).unwrap();
        let read = |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap();
        assert_eq!(read("first/b/file"), "content");
        std::fs::write(directory.path().join("second"), "").unwrap();
        let target = rustix::fs::open(directory.path().join("second"), OFlags::PATH, Mode::empty()).unwrap();
        attach(&second, &target).unwrap();
        assert_eq!(read("second"), "content");
        std::fs::write(directory.path().join("second"), "x").expect_err("a read-only mount");
        std::fs::write(directory.path().join("first/x"), "x").expect_err("a read-only mount");
    }
}
