//! Hearing what a layer makes while it is applied.

use std::io;
use std::os::fd::BorrowedFd;

use crate::layer::tar::Entry;

/// Hears what becomes of a layer's entries. Every method does nothing unless it is written.
pub trait Observer {
    /// More of the content of the file that is being made; [`Observer::made`] comes after the last of it.
    fn content(&mut self, bytes: &[u8]) {
        let _ = bytes;
    }

    /// An entry is there, with everything that it says. Not for hard links, whose file is there already, and not for
    /// what could not be made.
    ///
    /// # Errors
    /// When the entry cannot be looked at; that ends the layer.
    fn made(&mut self, made: &Made<'_>) -> io::Result<()> {
        let _ = made;
        Ok(())
    }
}

/// Nobody listens.
impl Observer for () {}

/// An entry of a layer and what was made for it.
#[derive(Debug, Clone, Copy)]
pub struct Made<'a> {
    /// The entry.
    pub entry: &'a Entry,
    /// Where it was made.
    pub directory: BorrowedFd<'a>,
    /// Its name there; `.` for the root.
    pub name: &'a [u8],
    /// The new file, if it is a regular one.
    pub file: Option<BorrowedFd<'a>>,
}
