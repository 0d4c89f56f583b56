//! What process 1 mounts before it starts the command: the root, the kernel's file systems, a small /dev.
//!
//! Everything is mounted by descriptor: nothing in the image can lead a mount elsewhere. The lists are those of BuildKit
//! (`executor/oci`) and containerd (`pkg/oci`).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Dev, FileType, Mode, OFlags, ResolveFlags, major, makedev, minor};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags,
    UnmountFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen, mount_change, move_mount, open_tree,
};
use rustix::path::Arg;
use rustix::thread::UnshareFlags;

use super::attach;
use super::child::{Step, during};
use super::mount_table::MountTable;
use super::old_root;
use super::provided::{DEVICES, KERNEL, LINKS, PROVIDED, make_file, new_file, write_scripts};
use super::refusal::Act;
use super::{Network, ProcView, Process, Security};
use crate::rootfs::{IdMap, Owner, open_resolved};
use crate::sys::{self, MountReach};

pub(super) const NOSUID: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID;
pub(super) const NODEV: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NODEV;
const NOEXEC: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOEXEC;
pub(super) const RDONLY: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_RDONLY;
pub(super) const INERT: MountAttrFlags = NOSUID.union(NODEV).union(NOEXEC);

/// Paths that would tell too much about the machine, or hang it: files are covered by /dev/null, directories by nothing.
const MASKED: [&str; 11] = [
    "proc/acpi",
    "proc/asound",
    "proc/kcore",
    "proc/keys",
    "proc/latency_stats",
    "proc/timer_list",
    "proc/timer_stats",
    "proc/sched_debug",
    "proc/scsi",
    "sys/firmware",
    "sys/devices/virtual/powercap",
];

/// Parts of /proc that set up the machine.
const READ_ONLY: [&str; 5] = ["proc/bus", "proc/fs", "proc/irq", "proc/sys", "proc/sysrq-trigger"];

/// Bytes of /dev/shm, as under Docker.
const SHM_SIZE: u64 = 64 << 20;

/// Where in /dev the files to be bound elsewhere lie, until everything is mounted.
const STAGING: &str = ".builder";

/// Gives the sandbox a mount of its own for the directory `root`, so that neither its flags nor what is mounted in it are
/// seen by the builder. For the supervisor: it still is in the builder's mount namespace.
///
/// No device node of an image can be opened: those of /dev are bound from outside. A step has CAP_MKNOD, as under Docker,
/// but no device control group holds it off the machine's disks.
///
/// For a step that may do what the builder may, they are devices: a container's own rules hold for it as well.
pub(super) fn separate_root(root: OwnedFd, security: Security) -> Step<OwnedFd> {
    let copy = match clone_tree(root.as_fd(), "", MountReach::One) {
        Ok(copy) => copy,
        // Before Linux 6.15, a mount that is attached nowhere (as fsmount returns it) cannot be cloned; it can be
        // moved, once.
        Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => root,
        Err(error) => return during(Err(error), "clone the mount of the root"),
    };
    if security == Security::Confined {
        during(sys::restrict_mount(&copy, NODEV, MountReach::One), "restrict the mount of the root")?;
    }
    Ok(copy)
}

/// Moves this process into namespaces of its own and makes `root`, from [`separate_root`], its root, with everything
/// mounted that the process asks for; `clones` is from [`attach::clone_sources`]. With [`ProcView::Own`], the process must
/// be in a pid namespace of its own.
pub(super) fn enter(
    process: &Process,
    root: OwnedFd,
    clones: Vec<Option<OwnedFd>>,
    view: ProcView,
) -> Step<()> {
    let namespaces = UnshareFlags::NEWNS | UnshareFlags::NEWIPC | UnshareFlags::NEWUTS;
    during(sys::unshare(namespaces), "make mount, ipc and uts namespaces")?;
    // Hides the builder's place in the hierarchy; kernels without control groups have nothing to hide.
    let _ = sys::unshare(UnshareFlags::NEWCGROUP);
    during(rustix::system::sethostname(process.hostname.as_bytes()), "set the host name")?;
    // Modes are what the calls below say.
    rustix::process::umask(Mode::empty());
    let propagation = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    during(mount_change("/", propagation), "cut off the mounts of the machine")?;
    // On top of the old root, which exists everywhere; pivot_root(2) needs the new one to be a mount below it.
    let old = during(rustix::fs::open("/", PLACE, Mode::empty()), "open the old root")?;
    during(attach(&root, &old), "mount the root")?;

    let guest = Guest { root };
    // Before anything is mounted in the root: the builder looked at it in that state.
    let mut targets = Vec::new();
    for path in PROVIDED {
        targets.push((guest.file_to_cover(path)?, path));
    }
    let [proc, sys, dev] = KERNEL.map(|name| guest.directory(name));
    let (proc, sys, dev) = (proc?, sys?, dev?);
    match view {
        ProcView::Own => mount_proc(&proc)?,
        ProcView::Shared => during(share_proc(&proc), "bind `/proc`")?,
    }
    // What whoever may do all that the builder may do is not kept from.
    let (kernel, dev_attributes) = match process.security {
        Security::Confined => (RDONLY | INERT, NOSUID | NODEV),
        Security::Unconfined => (INERT, NOSUID),
    };
    during(mount_sys(&guest, &sys, process.network, kernel), "mount `/sys`")?;
    mount_cgroups(&guest, kernel);
    let staging = mount_dev(process, &dev, dev_attributes)?;
    if process.security == Security::Confined {
        guest.restrict()?;
    }
    for (target, path) in targets {
        during(bind(&staging, staged(path), RDONLY | INERT, &target), format!("bind `/{path}`"))?;
    }
    let ready = attach::prepare(process, clones, &staging)?;
    drop(staging);
    old_root::leave(&guest.root, "proc")?;
    remove_staging()?;
    attach::attach_all(ready)
}

const PLACE: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// The root while the machine's own is still there.
struct Guest {
    root: OwnedFd,
}

impl Guest {
    /// A path below the root on which no symbolic link may lie.
    fn place(&self, path: impl Arg) -> rustix::io::Result<OwnedFd> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        path.into_with_c_str(|path| {
            open_resolved(self.root.as_fd(), path.to_bytes(), PLACE, Mode::empty(), resolve)
        })
    }

    /// The directory `name` of the root. The builder has made it if there was none.
    fn directory(&self, name: &str) -> Step<OwnedFd> {
        during(self.place(name), format!("find `/{name}`"))
    }

    /// The file that is to be covered, through links of the image. The builder has made it if there was none, and has seen
    /// to it that it is no directory.
    fn file_to_cover(&self, path: &str) -> Step<OwnedFd> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let target = open_resolved(self.root.as_fd(), path.as_bytes(), PLACE, Mode::empty(), resolve);
        during(target, format!("find `/{path}`"))
    }

    /// Covers [`MASKED`] paths and makes [`READ_ONLY`] ones read-only.
    fn restrict(&self) -> Step<()> {
        for path in MASKED {
            let Some(target) = during(existing(self.place(path)), format!("find `/{path}`"))? else {
                continue;
            };
            let stat = during(rustix::fs::fstat(&target), format!("find `/{path}`"))?;
            let masked = if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                new_mount("tmpfs", &[("mode", "755")], RDONLY | INERT)
                    .and_then(|mount| attach(&mount, &target))
            } else {
                bind(&self.root, "dev/null", NOSUID | NOEXEC, &target)
            };
            during(masked, format!("mask `/{path}`"))?;
        }
        for path in READ_ONLY {
            let Some(target) = during(existing(self.place(path)), format!("find `/{path}`"))? else {
                continue;
            };
            let bound = clone_tree(self.root.as_fd(), path, MountReach::Tree).and_then(|mount| {
                sys::restrict_mount(&mount, RDONLY, MountReach::Tree)?;
                attach(&mount, &target)
            });
            during(bound, format!("make `/{path}` read-only"))?;
        }
        Ok(())
    }
}

fn existing(result: rustix::io::Result<OwnedFd>) -> rustix::io::Result<Option<OwnedFd>> {
    match result {
        Ok(place) => Ok(Some(place)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

fn mount_proc(target: &OwnedFd) -> Step<()> {
    let mounted = new_mount("proc", &[], INERT).and_then(|mount| attach(&mount, target));
    let hidden =
        mounted.as_ref().is_err_and(|error| error.raw_os_error() == Some(Errno::PERM.raw_os_error()));
    let step = match hidden {
        true => {
            "mount a `/proc` of its own (refused in a user namespace while parts of the machine's are hidden, as in containers)"
        }
        false => "mount `/proc`",
    };
    during(mounted, Act::NewProc.named(step))
}

/// The builder's /proc, with everything that covers parts of it: of a user namespace, the kernel wants all of that or
/// nothing.
fn share_proc(target: &OwnedFd) -> io::Result<()> {
    const PROC_SUPER_MAGIC: u64 = 0x9fa0;
    let mount = clone_tree(CWD, "/proc", MountReach::Tree)?;
    if rustix::fs::fstatfs(&mount)?.f_type as u64 != PROC_SUPER_MAGIC {
        return Err(Errno::NODEV.into());
    }
    sys::restrict_mount(&mount, INERT, MountReach::Tree)?;
    attach(&mount, target)
}

/// /sys of the network that the step uses.
fn mount_sys(
    guest: &Guest,
    target: &OwnedFd,
    network: Network,
    attributes: MountAttrFlags,
) -> io::Result<()> {
    match new_mount("sysfs", &[], attributes) {
        Ok(mount) => attach(&mount, target),
        // Allowed only to the owner of the network namespace; then the machine's own has to do.
        Err(error) if error.raw_os_error() == Some(Errno::PERM.raw_os_error()) => {
            let mount = clone_tree(CWD, "/sys", MountReach::Tree)?;
            sys::restrict_mount(&mount, attributes, MountReach::Tree)?;
            attach(&mount, target)?;
            cover_below_sys(guest)?;
            match existing(guest.place("sys/class/net"))? {
                // The interfaces of another network than that of the step.
                Some(target) if network == Network::None => {
                    attach(&new_mount("tmpfs", &[("mode", "755")], RDONLY | INERT)?, &target)
                }
                _ => Ok(()),
            }
        }
        Err(error) => Err(error),
    }
}

/// Covers what the machine has mounted in its /sys (control groups, debugfs and the like): of a user namespace, the
/// kernel wants all of the tree bound or nothing, but a new sysfs would have none of it.
fn cover_below_sys(guest: &Guest) -> io::Result<()> {
    let table = MountTable::current()?;
    let mut points: Vec<&[u8]> = table.points().collect();
    points.sort_unstable();
    let mut covered: Vec<&[u8]> = Vec::new();
    for point in points.iter().filter_map(|point| point.strip_prefix(b"/sys/")) {
        let inside = |above: &[u8]| {
            point.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
        };
        if covered.iter().any(|above| inside(above)) {
            continue;
        }
        let Some(target) = existing(guest.place([b"sys/", point].concat()))? else { continue };
        if FileType::from_raw_mode(rustix::fs::fstat(&target)?.st_mode) == FileType::Directory {
            attach(&new_mount("tmpfs", &[("mode", "755")], RDONLY | INERT)?, &target)?;
        }
        covered.push(point);
    }
    Ok(())
}

/// The control groups of the sandbox, where the machine uses version 2. Programs look there for limits; with an
/// empty directory they find none, so failure and version 1 do no harm.
fn mount_cgroups(guest: &Guest, attributes: MountAttrFlags) {
    const CGROUP2_MAGIC: u64 = 0x6367_7270;
    let version = rustix::fs::statfs("/sys/fs/cgroup").map(|stat| stat.f_type as u64);
    if version == Ok(CGROUP2_MAGIC)
        && let Ok(target) = guest.place("sys/fs/cgroup")
    {
        let _ = new_mount("cgroup2", &[], attributes).and_then(|mount| attach(&mount, &target));
    }
}

/// A /dev of six devices. Returns the staging directory, which holds the files to be bound elsewhere.
fn mount_dev(process: &Process, target: &OwnedFd, attributes: MountAttrFlags) -> Step<OwnedFd> {
    // Like the root, without usable device nodes: the six are bound. Scripts in it can be executed.
    let dev = during(new_mount("tmpfs", &[("mode", "755"), ("size", "65536k")], attributes), "mount `/dev`")?;
    during(attach(&dev, target), "mount `/dev`")?;
    let directory = |name: &str| {
        let step = format!("make `/dev/{name}`");
        during(rustix::fs::mkdirat(&dev, name, Mode::from_raw_mode(0o755)), step.as_str())?;
        during(rustix::fs::openat(&dev, name, PLACE | OFlags::NOFOLLOW, Mode::empty()), step)
    };
    let staging = during(new_mount("tmpfs", &[("mode", "755")], NOSUID), "mount the provided files")?;
    during(attach(&staging, &directory(STAGING)?), "mount the provided files")?;
    fill(process, &staging)?;

    for (name, major, minor) in DEVICES {
        let step = || format!("make `/dev/{name}`");
        let file = during(new_file(&dev, name.as_bytes(), 0o666), step())?;
        during(mount_device(&staging, name, makedev(major, minor), &file), step())?;
    }
    for (name, to) in LINKS {
        during(rustix::fs::symlinkat(to, &dev, name), format!("make `/dev/{name}`"))?;
    }
    let pts = [("newinstance", ""), ("ptmxmode", "0666"), ("mode", "0620"), ("gid", "5")];
    // Debian's group `tty`. A user namespace may lack it; then terminals have the group of who opens them.
    let has_tty = IdMap::of_this_process().is_ok_and(|ids| ids.groups().contain(5));
    let pts = if has_tty { &pts[..] } else { &pts[..3] };
    during(mount_at("devpts", pts, NOSUID | NOEXEC, &directory("pts")?), "mount `/dev/pts`")?;
    let size = process.shm_size.unwrap_or(SHM_SIZE).to_string();
    let shm = [("mode", "1777"), ("size", size.as_str())];
    during(mount_at("tmpfs", &shm, INERT, &directory("shm")?), "mount `/dev/shm`")?;
    match mount_at("mqueue", &[], INERT, &directory("mqueue")?) {
        // A kernel without message queues.
        Err(error) if error.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => {}
        result => during(result, "mount `/dev/mqueue`")?,
    }
    if !process.scripts.is_empty() {
        during(bind(&staging, "pipes", RDONLY | NOSUID | NODEV, &directory("pipes")?), "bind `/dev/pipes`")?;
    }
    Ok(staging)
}

/// Writes the provided files.
fn fill(process: &Process, staging: &OwnedFd) -> Step<()> {
    for (path, content) in PROVIDED.iter().zip([&process.resolv_conf, &process.hosts]) {
        let made = make_file(staging, staged(path).as_bytes(), Owner::ROOT, 0o644, content);
        during(made, format!("write `/{path}`"))?;
    }
    during(rustix::fs::mkdirat(staging, "pipes", Mode::from_raw_mode(0o755)), "make `/dev/pipes`")?;
    let pipes = rustix::fs::openat(staging, "pipes", PLACE | OFlags::NOFOLLOW, Mode::empty());
    Ok(write_scripts(&during(pipes, "make `/dev/pipes`")?, &process.scripts)?)
}

/// The name in [`STAGING`] of the file that is provided at `path`.
fn staged(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Binds a device over `target`: one made in `staging`, or the machine's own where none can be made.
fn mount_device(staging: &OwnedFd, name: &str, device: Dev, target: &OwnedFd) -> io::Result<()> {
    match rustix::fs::mknodat(staging, name, FileType::CharacterDevice, Mode::from_raw_mode(0o666), device) {
        Ok(()) => bind(staging, name, NOSUID | NOEXEC, target),
        Err(Errno::PERM) => {
            let mount = clone_tree(CWD, &format!("/dev/{name}"), MountReach::One)?;
            let stat = rustix::fs::fstat(&mount)?;
            let same = (major(stat.st_rdev), minor(stat.st_rdev)) == (major(device), minor(device));
            if FileType::from_raw_mode(stat.st_mode) != FileType::CharacterDevice || !same {
                return Err(Errno::NODEV.into());
            }
            // The machine's own node: whoever is root here may be its owner, and must not give it another mode. Devices are
            // written to all the same.
            sys::restrict_mount(&mount, RDONLY | NOSUID | NOEXEC, MountReach::One)?;
            attach(&mount, target)
        }
        Err(error) => Err(error.into()),
    }
}

/// A mount of a new file system of the type `kind`, attached nowhere.
pub(super) fn new_mount(
    kind: &str,
    options: &[(&str, &str)],
    attributes: MountAttrFlags,
) -> io::Result<OwnedFd> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    // What /proc/mounts shows in its first column.
    fsconfig_set_string(&context, "source", kind)?;
    for (key, value) in options {
        if value.is_empty() {
            rustix::mount::fsconfig_set_flag(&context, *key)?;
        } else {
            fsconfig_set_string(&context, *key, *value)?;
        }
    }
    fsconfig_create(&context)?;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

fn mount_at(
    kind: &str,
    options: &[(&str, &str)],
    attributes: MountAttrFlags,
    target: &OwnedFd,
) -> io::Result<()> {
    attach(&new_mount(kind, options, attributes)?, target)
}

/// Shows `path` below `from`, with `attributes`, at `target`.
fn bind(from: &OwnedFd, path: &str, attributes: MountAttrFlags, target: &OwnedFd) -> io::Result<()> {
    let mount = clone_tree(from.as_fd(), path, MountReach::One)?;
    sys::restrict_mount(&mount, attributes, MountReach::One)?;
    attach(&mount, target)
}

pub(super) fn clone_tree(from: BorrowedFd<'_>, path: &str, reach: MountReach) -> io::Result<OwnedFd> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    if reach == MountReach::Tree {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    Ok(open_tree(from, path, flags)?)
}

pub(super) fn attach(mount: &OwnedFd, target: &OwnedFd) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(mount, "", target, "", flags)?)
}

/// Takes away what held the provided files. The root of this process must be that of the command by now.
fn remove_staging() -> Step<()> {
    // All of /dev is ours, and nobody else is here yet: names are safe.
    let staging = format!("/dev/{STAGING}");
    during(rustix::mount::unmount(&staging, UnmountFlags::DETACH), "unmount the provided files")?;
    during(rustix::fs::rmdir(&staging), "remove the directory of the provided files")
}
