//! Overlay mounts: layers that were unpacked into one directory each, seen as one tree.
//!
//! Mounts are made *detached* (fsmount(2)): they are in no mount namespace, are used through their descriptor and are
//! gone with it. Kernel documentation: `filesystems/overlayfs.rst`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, OpenTreeFlags, UnmountFlags};

use crate::layer::Marks;
use crate::rootfs::{Rootfs, Timestamp, set_times_at};
use crate::sys;

use super::tree::Access;

/// Layers a kernel stacks (`OVL_MAX_STACK`), less one.
pub const MAX_LAYERS: usize = 499;

/// Why layers could not be mounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// More layers than overlayfs takes.
    #[error("{layers} layers, but overlayfs stacks no more than {MAX_LAYERS}")]
    TooManyLayers {
        /// How many there are.
        layers: usize,
    },
    /// The kernel refused.
    #[error("cannot mount {layers} layers with overlayfs: {action} failed")]
    Mount {
        /// The step that failed.
        action: &'static str,
        /// How many layers there are.
        layers: usize,
        /// What the kernel said.
        #[source]
        cause: io::Error,
    },
    /// A directory that the mount needs could not be made or opened.
    #[error("cannot use the directory `{path}`")]
    Directory {
        /// Which.
        path: PathBuf,
        /// Why not.
        #[source]
        cause: io::Error,
    },
}

/// Where an overlay keeps what is written to it.
#[derive(Debug, Clone, Copy)]
pub struct Upper<'a> {
    /// What is written.
    pub files: &'a Path,
    /// An empty directory of the same file system, for the kernel.
    pub work: &'a Path,
}

/// What an overlay mount copies when only the metadata of a file change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyUp {
    /// The file. All that layers need.
    Whole,
    /// Its metadata: the content stays in the layer below, without which such an upper directory is of no use. A mount
    /// with it as a layer needs this as well. Only where [`Marks::Trusted`] can be used, and for lower directories that
    /// nobody made to lead astray.
    Metadata,
}

/// Mounts `lowers` (bottom first, none to [`MAX_LAYERS`]) below `upper`, or read-only without one. `scratch` is a
/// directory of the workspace for what the mount needs beside them. Returns the root of the detached mount.
///
/// # Errors
/// [`MountError`].
pub fn overlay(lowers: &[&Path], upper: Option<Upper<'_>>, scratch: &Path) -> Result<OwnedFd, MountError> {
    overlay_with(lowers, upper, CopyUp::Whole, scratch)
}

/// Like [`overlay`], with a choice of what is copied up.
///
/// # Errors
/// [`MountError`], also where the kernel cannot copy metadata alone.
pub fn overlay_with(
    lowers: &[&Path],
    upper: Option<Upper<'_>>,
    copy_up: CopyUp,
    scratch: &Path,
) -> Result<OwnedFd, MountError> {
    mount(lowers, upper, scratch, Flavour { marks: Marks::usual(), copy_up }, by_new_calls)
}

/// What kind of overlay mount is made.
#[derive(Debug, Clone, Copy)]
struct Flavour {
    marks: Marks,
    copy_up: CopyUp,
}

type Calls = fn(&[&Path], Option<Upper<'_>>, Flavour) -> Result<Option<OwnedFd>, MountError>;

fn mount(
    lowers: &[&Path],
    upper: Option<Upper<'_>>,
    scratch: &Path,
    flavour: Flavour,
    new_calls: Calls,
) -> Result<OwnedFd, MountError> {
    if lowers.len() > MAX_LAYERS {
        return Err(MountError::TooManyLayers { layers: lowers.len() });
    }
    let mut stack: Vec<&Path> = lowers.iter().rev().copied().collect();
    // Without an upper directory overlayfs wants two lower ones.
    let empty = [scratch.join("empty-1"), scratch.join("empty-2")];
    let wanted: usize = if upper.is_some() { 1 } else { 2 };
    for empty in empty.iter().take(wanted.saturating_sub(stack.len())) {
        directory(empty)?;
        // It may become the root of a tree: its metadata depend on nothing.
        settle_empty(empty).map_err(|cause| MountError::Directory { path: empty.clone(), cause })?;
        stack.push(empty);
    }
    match new_calls(&stack, upper, flavour)? {
        Some(mount) => Ok(mount),
        None => by_mount(&stack, upper, scratch, flavour),
    }
}

/// Makes the directory `path` unless it is there.
fn directory(path: &Path) -> Result<(), MountError> {
    match rustix::fs::mkdir(path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(cause) => Err(MountError::Directory { path: path.to_owned(), cause: cause.into() }),
    }
}

fn settle_empty(path: &Path) -> io::Result<()> {
    rustix::fs::chmod(path, Mode::from_raw_mode(0o755))?;
    set_times_at(Rootfs::open(path)?.as_fd(), b".", Timestamp::default())
}

/// Options that the kernel need not know: without them it has not even the feature.
const OFF: [(&str, &str); 4] =
    [("index", "off"), ("xino", "off"), ("metacopy", "off"), ("redirect_dir", "off")];

/// What of [`OFF`] to say. With `userxattr`, which rules out the last two by itself, the kernel refuses to hear of
/// `redirect_dir=off` where it is built to follow redirects all the same (`CONFIG_OVERLAY_FS_REDIRECT_ALWAYS_FOLLOW`).
fn off(marks: Marks) -> &'static [(&'static str, &'static str)] {
    match marks {
        Marks::Trusted => &OFF,
        Marks::User => &OFF[..2],
    }
}

/// Options without which metadata alone cannot be copied: the kernel wants both.
const METADATA: [(&str, &str); 2] = [("redirect_dir", "on"), ("metacopy", "on")];

/// fsopen(2) and its companions; none where the kernel cannot take layers one by one (before Linux 6.7).
fn by_new_calls(
    stack: &[&Path],
    upper: Option<Upper<'_>>,
    flavour: Flavour,
) -> Result<Option<OwnedFd>, MountError> {
    let failed = |action| {
        let layers = stack.len();
        move |cause: Errno| MountError::Mount { action, layers, cause: cause.into() }
    };
    let context = match rustix::mount::fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC) {
        Ok(context) => context,
        Err(Errno::NOSYS) => return Ok(None),
        Err(error) => return Err(failed("fsopen")(error)),
    };
    for (position, layer) in stack.iter().enumerate() {
        match set_directory(context.as_fd(), "lowerdir+", layer)? {
            Ok(()) => {}
            Err(Errno::INVAL | Errno::OPNOTSUPP) if position == 0 => return Ok(None),
            Err(error) => return Err(failed("lowerdir+")(error)),
        }
    }
    if let Some(upper) = upper {
        set_directory(context.as_fd(), "upperdir", upper.files)?.map_err(failed("upperdir"))?;
        set_directory(context.as_fd(), "workdir", upper.work)?.map_err(failed("workdir"))?;
        // The upper directory never outlives a crash: writing it out early would be for nothing. Since Linux 5.10.
        let _ = rustix::mount::fsconfig_set_flag(&context, "volatile");
    }
    for (key, value) in off(flavour.marks) {
        let _ = rustix::mount::fsconfig_set_string(&context, *key, *value);
    }
    if flavour.copy_up == CopyUp::Metadata {
        for (key, value) in METADATA {
            rustix::mount::fsconfig_set_string(&context, key, value).map_err(failed(key))?;
        }
    }
    if flavour.marks == Marks::User {
        rustix::mount::fsconfig_set_flag(&context, "userxattr").map_err(failed("userxattr"))?;
    }
    match rustix::mount::fsconfig_create(&context) {
        Ok(()) => {}
        // Before Linux 6.5 nobody looks at the options until now.
        Err(Errno::INVAL) => return Ok(None),
        Err(error) => return Err(failed("fsconfig")(error)),
    }
    let attributes =
        if upper.is_some() { MountAttrFlags::empty() } else { MountAttrFlags::MOUNT_ATTR_RDONLY };
    let mount = rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes);
    mount.map(Some).map_err(failed("fsmount"))
}

/// Gives the directory `path` to a mount that is being made: by descriptor (since Linux 6.13), else by name.
fn set_directory(
    context: BorrowedFd<'_>,
    key: &str,
    path: &Path,
) -> Result<rustix::io::Result<()>, MountError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(path, flags, Mode::empty())
        .map_err(|cause| MountError::Directory { path: path.to_owned(), cause: cause.into() })?;
    Ok(match rustix::mount::fsconfig_set_fd(context, key, &directory) {
        Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::BADF) => {
            // Strings have at most 255 bytes here; the name of a descriptor is always short.
            let name = format!("/proc/self/fd/{}", directory.as_raw_fd());
            rustix::mount::fsconfig_set_string(context, key, name)
        }
        result => result,
    })
}

/// mount(2), whose options must fit into a page: layers go by the short names of links in `scratch`. The mount is made
/// there, a detached copy taken, and the mount undone.
fn by_mount(
    stack: &[&Path],
    upper: Option<Upper<'_>>,
    scratch: &Path,
    flavour: Flavour,
) -> Result<OwnedFd, MountError> {
    let unusable = |cause: Errno| MountError::Directory { path: scratch.to_owned(), cause: cause.into() };
    let names = scratch.join("names");
    directory(&names)?;
    let mut options = String::from("lowerdir=");
    let link = |path: &Path, name: &str| match rustix::fs::symlink(path, names.join(name)) {
        Ok(()) => Ok(()),
        Err(cause) => Err(unusable(cause)),
    };
    for (position, layer) in stack.iter().enumerate() {
        let name = format!("{position:x}");
        link(layer, &name)?;
        if position > 0 {
            options.push(':');
        }
        options.push_str(&name);
    }
    if let Some(upper) = upper {
        link(upper.files, "u")?;
        link(upper.work, "w")?;
        options.push_str(",upperdir=u,workdir=w");
    }
    if flavour.marks == Marks::User {
        options.push_str(",userxattr");
    }
    directory(&names.join("m"))?;
    // The kernel checks all options together, so they are tried from most to fewest.
    let off: Vec<String> = off(flavour.marks).iter().map(|(key, value)| format!(",{key}={value}")).collect();
    let volatile = if upper.is_some() { ",volatile" } else { "" };
    // The oldest of them is the last.
    let oldest = off.last().cloned().unwrap_or_default();
    let metadata: String = METADATA.iter().map(|(key, value)| format!(",{key}={value}")).collect();
    let tries = match flavour.copy_up {
        CopyUp::Whole => vec![format!("{}{volatile}", off.concat()), off.concat(), oldest, String::new()],
        CopyUp::Metadata => vec![format!("{metadata}{volatile}"), metadata],
    };
    let tries: Vec<String> = tries.iter().map(|more| format!("{options}{more}")).collect();
    let access = if upper.is_some() { Access::Write } else { Access::Read };
    // A current directory is needed, and only a thread of its own can have one without harm to the others.
    let mount = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, || mount_in(&names, &tries, access))?;
        thread.join().unwrap_or(Err(Errno::NOTRECOVERABLE.into()))
    });
    let mount = mount.map_err(|cause| MountError::Mount { action: "mount", layers: stack.len(), cause })?;
    let parent =
        rustix::fs::open(scratch, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(unusable)?;
    // Names left over would only be in the way of the next mount; the workspace takes them in the end.
    let _ = crate::rootfs::remove_tree(parent.as_fd(), b"names");
    Ok(mount)
}

fn mount_in(names: &Path, tries: &[String], access: Access) -> io::Result<OwnedFd> {
    sys::unshare_current_directory()?;
    rustix::process::chdir(names)?;
    let flags = match access {
        Access::Write => MountFlags::empty(),
        Access::Read => MountFlags::RDONLY,
    };
    let mut result = Err(Errno::INVAL);
    for options in tries {
        let options = std::ffi::CString::new(options.as_bytes())?;
        result = rustix::mount::mount("overlay", "m", "overlay", flags, options.as_c_str());
        if result != Err(Errno::INVAL) {
            break;
        }
    }
    result?;
    let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let detached = rustix::mount::open_tree(rustix::fs::CWD, "m", clone);
    rustix::mount::unmount("m", UnmountFlags::DETACH)?;
    Ok(detached?)
}

#[cfg(test)]
mod tests {
    use crate::rootfs::{Follow, GuestPath, remove_tree, xattrs_at};
    use crate::store::testing::can_mount;

    use super::*;

    fn no_new_calls(_: &[&Path], _: Option<Upper<'_>>, _: Flavour) -> Result<Option<OwnedFd>, MountError> {
        Ok(None)
    }

    const BOTH: [(&str, Calls); 2] = [("new calls", by_new_calls), ("mount(2)", no_new_calls)];

    fn whole(marks: Marks) -> Flavour {
        Flavour { marks, copy_up: CopyUp::Whole }
    }

    /// Every way to mount with every kind of marks that can be had here.
    fn ways() -> Vec<(String, Calls, Marks)> {
        let marks = [Marks::Trusted, Marks::User];
        let marks = marks.into_iter().filter(|marks| *marks == Marks::User || *marks == Marks::usual());
        marks
            .flat_map(|marks| BOTH.map(|(name, calls)| (format!("{name}, {}", marks.name()), calls, marks)))
            .collect()
    }

    fn path(text: &str) -> GuestPath {
        GuestPath::clamp(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_hundred_and_thirty_layers_below_a_long_path_are_one_tree() {
        if !can_mount() {
            return;
        }
        let temporary = tempfile::tempdir().unwrap();
        let store = temporary.path().join("x".repeat(200)).join("y".repeat(200));
        let layers: Vec<PathBuf> = (0..130).map(|number| store.join(number.to_string())).collect();
        for (number, layer) in layers.iter().enumerate() {
            std::fs::create_dir_all(layer).unwrap();
            std::fs::write(layer.join(format!("own-{number}")), "").unwrap();
            std::fs::write(layer.join("common"), number.to_string()).unwrap();
            std::fs::create_dir(layer.join("directory")).unwrap();
            std::fs::write(layer.join(format!("directory/own-{number}")), "").unwrap();
        }
        let lowers: Vec<&Path> = layers.iter().map(PathBuf::as_path).collect();
        for (position, (name, calls, marks)) in ways().into_iter().enumerate() {
            let [scratch, files, work] = ["s", "u", "w"].map(|end| store.join(format!("{end}{position}")));
            for directory in [&scratch, &files, &work] {
                std::fs::create_dir(directory).unwrap();
            }
            let view = Rootfs::from_fd(mount(&lowers, None, &scratch, whole(marks), calls).unwrap());
            assert_eq!(view.read_dir(&GuestPath::root()).unwrap().len(), 132, "{name}");
            assert_eq!(view.read_dir(&path("/directory")).unwrap().len(), 130, "{name}");
            assert_eq!(view.read_small_file(&path("/common"), 9).unwrap().unwrap(), b"129", "{name}");
            let create = OFlags::CREATE | OFlags::WRONLY;
            assert!(view.open_file(&path("/new"), create, 0o644).is_err(), "{name}");
            let upper = Upper { files: &files, work: &work };
            let tree = Rootfs::from_fd(mount(&lowers, Some(upper), &scratch, whole(marks), calls).unwrap());
            tree.open_file(&path("/new"), create, 0o644).unwrap();
            tree.remove(&path("/common")).unwrap();
            assert!(tree.metadata(&path("/common"), Follow::No).unwrap().is_none(), "{name}");
            assert_eq!(std::fs::read_dir(&files).unwrap().count(), 2, "{name}");
            // What hides the directory of the lower layers is kept, and believed, by these marks.
            remove_tree(tree.as_fd(), b"directory").unwrap();
            rustix::fs::mkdirat(&tree, "directory", Mode::RWXU).unwrap();
            assert_eq!(tree.read_dir(&path("/directory")).unwrap(), [], "{name}");
            let written = Rootfs::open(&files).unwrap();
            assert_eq!(
                xattrs_at(written.as_fd(), b"directory").unwrap().get(marks.opaque()).unwrap(),
                b"y",
                "{name}"
            );
            let stack: Vec<&Path> = lowers.iter().copied().chain([&*files]).collect();
            let again = Rootfs::from_fd(mount(&stack, None, &scratch, whole(marks), calls).unwrap());
            assert_eq!(again.read_dir(&path("/directory")).unwrap(), [], "{name}");
            assert!(view.metadata(&path("/common"), Follow::No).unwrap().is_some(), "{name}");
        }
        let mounts = std::fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        assert!(!mounts.contains(temporary.path().to_str().unwrap()));
    }

    #[test]
    fn as_many_layers_as_overlayfs_takes_are_mounted_every_way() {
        if !can_mount() {
            return;
        }
        let store = tempfile::tempdir().unwrap();
        let layers: Vec<PathBuf> =
            (0..MAX_LAYERS).map(|number| store.path().join(number.to_string())).collect();
        for (number, layer) in layers.iter().enumerate() {
            std::fs::create_dir_all(layer.join(format!("own-{number}"))).unwrap();
        }
        let lowers: Vec<&Path> = layers.iter().map(PathBuf::as_path).collect();
        for (position, (name, calls, marks)) in ways().into_iter().enumerate() {
            let [scratch, files, work] =
                ["s", "u", "w"].map(|end| store.path().join(format!("{end}{position}")));
            for directory in [&scratch, &files, &work] {
                std::fs::create_dir(directory).unwrap();
            }
            let upper = Upper { files: &files, work: &work };
            let tree = Rootfs::from_fd(mount(&lowers, Some(upper), &scratch, whole(marks), calls).unwrap());
            assert_eq!(tree.read_dir(&GuestPath::root()).unwrap().len(), MAX_LAYERS, "{name}");
        }
    }

    #[test]
    fn no_layers_are_an_empty_tree() {
        if !can_mount() {
            return;
        }
        let temporary = tempfile::tempdir().unwrap();
        for (name, calls, marks) in ways() {
            let view = Rootfs::from_fd(mount(&[], None, temporary.path(), whole(marks), calls).unwrap());
            assert_eq!(view.read_dir(&GuestPath::root()).unwrap(), [], "{name}");
        }
    }

    #[test]
    fn too_many_layers_are_refused_before_the_kernel_does() {
        let layer = Path::new("/");
        let error = overlay(&[layer; MAX_LAYERS + 1], None, layer).unwrap_err();
        assert_eq!(error.to_string(), "500 layers, but overlayfs stacks no more than 499");
    }
}
