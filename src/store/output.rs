//! Files that outputs are written to: those that appear whole, and pipes, where somebody may never read.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::export::ExportError;
use super::staged::{Parents, StagedFile};

/// How often somebody who waits for a pipe looks whether to stop.
const PAUSE: Duration = Duration::from_millis(50);

/// What a pipe that is called writable takes at once (PIPE_BUF).
const PIPE_BYTES: usize = 4096;

/// What goes on beside the writing.
#[derive(Clone, Copy)]
pub struct Writing<'a> {
    /// Says whether to stop; asked often.
    pub cancelled: &'a (dyn Fn() -> bool + Sync),
    /// Is told once of a pipe that nobody reads yet.
    pub waits: &'a dyn Fn(),
}

/// Has `write` write the file `dest`. It appears whole, in place of what was there; a pipe or terminal is written to
/// directly, as soon as there is somebody who reads it.
///
/// # Errors
/// Those of `write`, and [`ExportError`] of the file; `dest` is then as it was before.
pub fn appear<E: From<ExportError>>(
    dest: &Path,
    writing: &Writing<'_>,
    write: impl FnOnce(&mut dyn Write) -> Result<(), E>,
) -> Result<(), E> {
    let io_error = |action| move |source| ExportError::Io { action, path: dest.to_owned(), source };
    match fs::metadata(dest) {
        Ok(found) if found.is_dir() => return Err(ExportError::Directory(dest.to_owned()).into()),
        Ok(found) if !found.is_file() => {
            let file = open(dest, OpenOptions::new().write(true), writing)?;
            let mut file = BufWriter::new(Patient { to: file.as_fd(), writing });
            return noting(&mut file, write, &io_error("write"));
        }
        _ => {}
    }
    let parents = Parents::of(dest).map_err(io_error("make the directory of"))?;
    let mut file = BufWriter::new(StagedFile::beside(dest).map_err(io_error("make"))?);
    noting(&mut file, write, &io_error("write"))?;
    let file = file.into_inner().map_err(|error| io_error("write")(error.into_error()))?;
    file.publish(dest).map_err(io_error("write"))?;
    parents.keep();
    Ok(())
}

/// Has `write` write to standard output.
///
/// # Errors
/// Those of `write`, and [`ExportError`].
pub fn stream<E: From<ExportError>>(
    writing: &Writing<'_>,
    write: impl FnOnce(&mut dyn Write) -> Result<(), E>,
) -> Result<(), E> {
    let out = io::stdout().lock();
    let mut out = BufWriter::new(Patient { to: out.as_fd(), writing });
    noting(&mut out, write, &ExportError::StandardOutput)
}

/// Opens the file `dest` with these options. Where it is a pipe, it is waited for somebody who reads it.
///
/// # Errors
/// [`ExportError`].
pub fn open(dest: &Path, options: &OpenOptions, writing: &Writing<'_>) -> Result<File, ExportError> {
    let failed = |source| ExportError::Io { action: "open", path: dest.to_owned(), source };
    let is_pipe = fs::metadata(dest).is_ok_and(|found| found.file_type().is_fifo());
    if !is_pipe {
        return options.open(dest).map_err(failed);
    }
    let mut is_told = false;
    loop {
        // Waiting for the other end cannot be interrupted but by a signal.
        let opened = options.clone().custom_flags(libc::O_NONBLOCK).open(dest);
        match opened {
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => {}
            other => return other.map_err(failed),
        }
        if (writing.cancelled)() {
            return Err(ExportError::Cancelled);
        }
        if !std::mem::replace(&mut is_told, true) {
            (writing.waits)();
        }
        std::thread::sleep(PAUSE);
    }
}

/// What is written to that may take its time, and be told to stop meanwhile.
struct Patient<'a> {
    to: BorrowedFd<'a>,
    writing: &'a Writing<'a>,
}

impl Write for Patient<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let pause = Timespec::try_from(PAUSE).map_err(io::Error::other)?;
        loop {
            if (self.writing.cancelled)() {
                return Err(io::Error::other("writing was stopped"));
            }
            let mut polled = [PollFd::new(&self.to, PollFlags::OUT)];
            match rustix::event::poll(&mut polled, Some(&pause)) {
                Ok(0) | Err(Errno::INTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
            match rustix::io::write(self.to, &bytes[..bytes.len().min(PIPE_BYTES)]) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                other => return Ok(other?),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Has `write` write to `out`. What it makes of an error of `out` may not tell where that was: `place` does.
fn noting<E: From<ExportError>>(
    out: &mut dyn Write,
    write: impl FnOnce(&mut dyn Write) -> Result<(), E>,
    place: &dyn Fn(io::Error) -> ExportError,
) -> Result<(), E> {
    let mut out = Noted { out, failed: None };
    let written = write(&mut out);
    let failed = out.failed.map(|errno| place(errno.into()));
    written.map_err(|error| failed.map_or(error, E::from))?;
    Ok(out.out.flush().map_err(place)?)
}

struct Noted<'a> {
    out: &'a mut dyn Write,
    failed: Option<Errno>,
}

impl Write for Noted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes);
        written.inspect_err(|error| self.failed = Errno::from_io_error(error))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush().inspect_err(|error| self.failed = Errno::from_io_error(error))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn fifo() -> (tempfile::TempDir, std::path::PathBuf) {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        (place, path)
    }

    /// Writes a mebibyte to `dest`, and is told to stop when that was asked for a few times.
    fn stopped(dest: &Path) -> (ExportError, u32) {
        let (asked, told) = (AtomicU32::new(0), AtomicU32::new(0));
        let writing = Writing {
            cancelled: &|| asked.fetch_add(1, Ordering::Relaxed) > 40,
            waits: &|| {
                told.fetch_add(1, Ordering::Relaxed);
            },
        };
        let written =
            appear(dest, &writing, |out| out.write_all(&[0; 1 << 20]).map_err(|_| ExportError::Cancelled));
        (written.unwrap_err(), told.load(Ordering::Relaxed))
    }

    #[test]
    fn a_pipe_that_nobody_reads_can_be_left_and_is_told_of_once() {
        let (_place, fifo) = fifo();
        assert!(matches!(stopped(&fifo), (ExportError::Cancelled, 1)));
        // Somebody has it open, and does not read.
        let _reader = File::options().read(true).write(true).open(&fifo).unwrap();
        assert!(matches!(stopped(&fifo), (ExportError::Cancelled, 0)));
    }

    #[test]
    fn of_a_file_that_could_not_be_written_no_directory_is_left() {
        let place = tempfile::tempdir().unwrap();
        let go_on = Writing { cancelled: &|| false, waits: &|| () };
        let dest = place.path().join("new/er/../deep/file");
        assert!(appear(&dest, &go_on, |_| Err(ExportError::Cancelled)).is_err());
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
        appear(&dest, &go_on, |_| Ok::<(), ExportError>(())).unwrap();
        assert!(place.path().join("new/deep/file").is_file());
    }

    #[test]
    fn a_full_disk_is_that_of_the_file_whatever_the_writer_says() {
        let go_on = Writing { cancelled: &|| false, waits: &|| () };
        let written = appear(Path::new("/dev/full"), &go_on, |out| {
            out.write_all(&[0; 1 << 20]).map_err(|_| ExportError::Cancelled)
        });
        let error = written.unwrap_err();
        assert!(
            matches!(&error, ExportError::Io { path, .. } if path == Path::new("/dev/full")),
            "{error:?}"
        );
        let silent = appear(Path::new("/dev/full"), &go_on, |_| Err(ExportError::Cancelled));
        assert!(matches!(silent, Err(ExportError::Cancelled)));
        // What is still in a buffer counts, too.
        let late = appear(Path::new("/dev/full"), &go_on, |out| {
            out.write_all(b"x").map_err(|_| ExportError::Cancelled)
        });
        assert!(matches!(late, Err(ExportError::Io { .. })));
    }
}
