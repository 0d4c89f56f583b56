//! The directory into which things are put out of a step's way.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::rand::GetRandomFlags;

use crate::rootfs::remove_tree;

/// An empty directory that goes with the value, and all that is in it.
#[derive(Debug)]
pub(super) struct Aside {
    above: OwnedFd,
    /// Its name there.
    name: String,
    directory: OwnedFd,
    /// How many names were given out.
    names: u64,
}

const PLACE: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl Aside {
    /// Makes one in the directory `above`.
    pub(super) fn new(above: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let above = rustix::fs::openat(CWD, above, flags, Mode::empty())?;
        loop {
            let mut number = [0; 8];
            rustix::rand::getrandom(&mut number, GetRandomFlags::empty())?;
            let name = format!("step-{:016x}", u64::from_ne_bytes(number));
            match rustix::fs::mkdirat(&above, &name, Mode::RWXU) {
                Err(Errno::EXIST) => {}
                result => {
                    result?;
                    let directory = rustix::fs::openat(&above, &name, PLACE, Mode::empty())?;
                    return Ok(Self { above, name, directory, names: 0 });
                }
            }
        }
    }

    /// A name that nothing in it has.
    pub(super) fn new_name(&mut self) -> String {
        self.names += 1;
        self.names.to_string()
    }

    /// Makes the directory `name` in it, of the mode 0700, and opens it.
    pub(super) fn directory(&self, name: &str) -> io::Result<OwnedFd> {
        new_directory(self.directory.as_fd(), name)
    }

    /// Removes the entry `name` of `directory`, whatever it is: it is out of sight before anything in it is touched.
    pub(super) fn discard(&mut self, directory: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
        let gone = self.new_name();
        match rustix::fs::renameat(directory, name, &self.directory, &gone) {
            Err(Errno::NOENT) => Ok(()),
            result => {
                result?;
                remove_tree(self.directory.as_fd(), gone.as_bytes())
            }
        }
    }
}

/// Makes the directory `name` in `directory`, of the mode 0700, and opens it.
pub(super) fn new_directory(directory: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    rustix::fs::mkdirat(directory, name, Mode::RWXU)?;
    Ok(rustix::fs::openat(directory, name, PLACE, Mode::empty())?)
}

impl AsFd for Aside {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        // What cannot be removed now goes with the directory above.
        let _ = remove_tree(self.above.as_fd(), self.name.as_bytes());
    }
}
