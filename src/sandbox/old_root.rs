//! From the machine's root to that of the step, for good.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{chdir, chroot, fchdir, pivot_root};

use super::child::{Step, during};
use super::mounts::attach;

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
        let step = "change the root by pivot_root(2), nor by chroot(2), which takes CAP_SYS_CHROOT,";
        during(chroot("."), step)?;
    }
    during(close_the_way_up(root, inner), "cover what lies above the root")
}

/// Detaches what else is mounted in the old root: volumes, the service account's token. All that is out of reach soon, but
/// the less there is the better. What came from another user namespace is locked to what it is mounted on, and stays.
fn detach_the_rest() -> io::Result<()> {
    for point in mount_points()?.iter().rev() {
        // The root of this process still is the old one, so this reaches nothing of the new.
        if point != b"/" {
            let _ = unmount(point.as_slice(), UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
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

/// Where something is mounted, as paths from the root of this process; in the order of their making.
pub(super) fn mount_points() -> io::Result<Vec<Vec<u8>>> {
    let mounts = std::fs::read("/proc/thread-self/mountinfo")?;
    let points =
        mounts.split(|byte| *byte == b'\n').filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    Ok(points.map(unescaped).collect())
}

/// A path of mountinfo (proc(5)), in which a backslash and three octal digits are a byte.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let escaped = after.get(..3).filter(|_| *first == b'\\');
        match escaped.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()) {
            Some(byte) => {
                path.push(byte);
                rest = &after[3..];
            }
            None => {
                path.push(*first);
                rest = after;
            }
        }
    }
    path
}
