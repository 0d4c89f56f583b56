//! From the machine's root to that of the step, for good.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{chdir, chroot, fchdir, pivot_root};

use super::child::{Step, during};
use super::mount_table::MountTable;
use super::mounts::attach;
use super::refusal::Act;

/// Makes `root`, a mount on top of `/`, the only root that there is for this process, which must have a mount namespace of
/// its own and one thread. It works in `/` afterwards. `inner` is a directory of the root.
pub(super) fn leave(root: &OwnedFd, inner: &str) -> Step<()> {
    during(fchdir(root), "enter the root")?;
    // The old root ends up on top of the new one, from where it is taken off: runc's way, without a directory for it.
    if pivot_root(".", ".").is_ok() {
        during(unmount(".", UnmountFlags::DETACH), "leave the old root")?;
    } else {
        // Filtered by seccomp where a container has CAP_SYS_ADMIN (EPERM under containerd, ENOSYS under CRI-O), and refused
        // by the kernel where the old root is that of an initramfs. What switch_root(8) does then is as good: nothing leads
        // to what is below a mount that covers it from its root on.
        during(detach_the_rest(), "read which mounts there are")?;
        during(chroot("."), Act::LeaveRoot.named("change the root by pivot_root(2), nor by chroot(2)"))?;
    }
    during(close_the_way_up(root, inner), "cover what lies above the root")
}

/// Detaches what else is mounted in the old root: volumes, the service account's token. All that is out of reach soon, but
/// the less there is the better. What came from another user namespace is locked to what it is mounted on, and stays.
fn detach_the_rest() -> io::Result<()> {
    for point in MountTable::current()?.points().rev() {
        // The root of this process still is the old one, so this reaches nothing of the new.
        if point != b"/" {
            let _ = unmount(point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        }
    }
    Ok(())
}

/// Tries what a step would try: to go up from the root with a directory that lies outside of a second chroot, which leads
/// to the root of the mount namespace. That is where `root` is put, unless it is there already; it is not when the builder
/// was started in a chroot.
fn close_the_way_up(root: &OwnedFd, inner: &str) -> rustix::io::Result<()> {
    match chroot(inner) {
        // What this process may not do, the step may not either; nor does the kernel let it make a user namespace to do it
        // in, unless its root is at the top.
        Err(Errno::PERM) => return Ok(()),
        result => result?,
    }
    fchdir(root)?;
    let start = place()?;
    let mut here = start;
    loop {
        chdir("..")?;
        let above = place()?;
        if above == here {
            break;
        }
        here = above;
    }
    if here != start {
        let top = rustix::fs::open(".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        attach(root, &top).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    }
    fchdir(root)?;
    chroot(".")?;
    chdir("/")
}

/// Where this process works: mount, device and inode, of which the mount is unknown before Linux 5.8.
fn place() -> rustix::io::Result<(u64, (u32, u32), u64)> {
    let stat = rustix::fs::statx(CWD, ".", AtFlags::empty(), StatxFlags::INO | StatxFlags::MNT_ID)?;
    Ok((stat.stx_mnt_id, (stat.stx_dev_major, stat.stx_dev_minor), stat.stx_ino))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::path::Path;

    use rustix::thread::CapabilitySet;

    use super::super::mounts::{INERT, clone_tree, new_mount};
    use super::super::refusal::{self, Facts};
    use super::super::wire::Report;
    use super::*;
    use crate::store::testing::can_mount;
    use crate::sys::{self, MountReach};

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Start {
        /// In the root of the machine.
        Machine,
        /// In a chroot whose root is a mount point.
        Chroot,
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Way {
        Pivot,
        /// As where pivot_root(2) is filtered.
        NoPivot,
    }

    fn place_at(path: &Path) -> OwnedFd {
        std::fs::create_dir_all(path).unwrap();
        rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap()
    }

    fn bind(from: &str, to: &Path) {
        attach(&clone_tree(CWD, from, MountReach::Tree).unwrap(), &place_at(to)).unwrap();
    }

    fn names_in_root() -> Vec<String> {
        let entries = std::fs::read_dir("/").unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// What is in the root after it was left for another, as someone finds it who tries to get out. In a thread of its own,
    /// whose mounts and root are its own. None where that cannot be had.
    fn leave_and_escape(start: Start, way: Way) -> Option<Vec<String>> {
        let directory = tempfile::tempdir().unwrap();
        let test = || {
            if !can_mount() {
                return None;
            }
            if start == Start::Chroot {
                bind(directory.path().to_str().unwrap(), directory.path());
                bind("/proc", &directory.path().join("proc"));
                chroot(directory.path()).unwrap();
                chdir("/").unwrap();
            }
            if way == Way::NoPivot {
                sys::refuse_call(libc::SYS_pivot_root, Errno::PERM).unwrap();
            }
            // A volume of the pod, with a blank in its name.
            let volume = match start {
                Start::Machine => directory.path().join("a volume"),
                Start::Chroot => "/a volume".into(),
            };
            let mount = new_mount("tmpfs", &[], INERT).unwrap();
            attach(&mount, &place_at(&volume)).unwrap();
            std::fs::write(volume.join("token"), "secret").unwrap();
            clone_tree(mount.as_fd(), "", MountReach::One).expect("it is attached");

            let root = new_mount("tmpfs", &[], INERT).unwrap();
            for name in ["proc", "jail"] {
                rustix::fs::mkdirat(&root, name, Mode::RWXU).unwrap();
            }
            attach(&root, &rustix::fs::open("/", OFlags::PATH, Mode::empty()).unwrap()).unwrap();
            leave(&root, "proc").unwrap();
            assert_eq!(names_in_root(), ["jail", "proc"], "{start:?} {way:?}");
            // Of a mount that is attached nowhere in this namespace there are no copies.
            clone_tree(mount.as_fd(), "", MountReach::One).expect_err("the volume is detached");

            let outside = rustix::fs::open("/", OFlags::PATH, Mode::empty()).unwrap();
            chroot("/jail").unwrap();
            fchdir(outside).unwrap();
            for _ in 0..64 {
                chdir("..").unwrap();
            }
            chroot(".").unwrap();
            Some(names_in_root())
        };
        let found = std::thread::scope(|scope| scope.spawn(test).join()).unwrap();
        assert!(Path::new("/proc/self/mountinfo").exists(), "the machine's mounts are as before");
        found
    }

    /// CAP_SYS_ADMIN without CAP_SYS_CHROOT, as a pod may have it, where the usual filter refuses pivot_root(2).
    #[test]
    fn who_lacks_chroot_and_may_not_pivot_is_told_so() {
        let test = || {
            if !can_mount() {
                return eprintln!("skipped: nothing can be mounted here");
            }
            let root = new_mount("tmpfs", &[], INERT).unwrap();
            rustix::fs::mkdirat(&root, "proc", Mode::RWXU).unwrap();
            attach(&root, &rustix::fs::open("/", OFlags::PATH, Mode::empty()).unwrap()).unwrap();
            sys::refuse_call(libc::SYS_pivot_root, Errno::PERM).unwrap();
            let mut sets = rustix::thread::capabilities(None).unwrap();
            sets.effective.remove(CapabilitySet::SYS_CHROOT);
            rustix::thread::set_capabilities(None, sets).unwrap();
            let Err(Report::Setup { step, errno }) = leave(&root, "proc") else { panic!("it worked") };
            let facts = Facts { capabilities: sets.effective, filtered: true, ..Facts::none() };
            let refusal = refusal::explain(&step, Errno::from_raw_os_error(errno), &facts);
            assert_eq!(refusal.cause, "no CAP_SYS_CHROOT", "{step:?} {errno}");
        };
        std::thread::scope(|scope| scope.spawn(test).join()).unwrap();
    }

    #[test]
    fn nothing_leads_back_to_the_old_root() {
        for start in [Start::Machine, Start::Chroot] {
            for way in [Way::Pivot, Way::NoPivot] {
                let Some(found) = leave_and_escape(start, way) else { return };
                assert_eq!(found, ["jail", "proc"], "{start:?} {way:?}");
            }
        }
    }
}
