//! Which of the builder's own files stay where they are while a step has the container's root.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::rootfs::GuestPath;

/// What the builder reads and writes while steps run, at `paths`, and the file of its program, which `program` links to.
/// That is not needed, the supervisor being started from memory, but who wants to start a builder after this one was killed
/// needs it. The directory it is in is the image's.
pub fn kept_in_place<'a>(program: &Path, paths: impl Iterator<Item = &'a Path>) -> Vec<GuestPath> {
    let program = std::fs::read_link(program).ok();
    let paths = paths.map(PathBuf::from).chain(program);
    let absolute = paths.filter_map(|path| std::path::absolute(path).ok());
    absolute.filter_map(|path| GuestPath::parse(path.as_os_str().as_bytes()).ok()).collect()
}
