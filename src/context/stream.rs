//! A Dockerfile that comes as a stream, from nowhere in particular.

use std::io::Read;
use std::path::Path;

use super::dir::{ContextError, FoundDockerfile, Place};
use crate::limit::Limit;

/// First bytes of compressed archives: gzip, zstd, bzip2, xz.
const SIGNATURES: [&[u8]; 4] = [b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ\0"];

/// Where archives of tar have its name.
const TAR_NAME: (usize, &[u8]) = (257, b"ustar");

impl FoundDockerfile {
    /// Reads a Dockerfile to the end of `stream`, which messages call `name`. No ignore rules are beside it.
    ///
    /// # Errors
    /// When it cannot be read, is larger than `limit`, or is an archive: those are build contexts.
    pub fn read_stream(name: &str, stream: impl Read, limit: Limit) -> Result<Self, ContextError> {
        let path = Path::new(name).to_owned();
        let mut content = Vec::new();
        let read = stream.take(limit.value.saturating_add(1)).read_to_end(&mut content);
        if let Err(source) = read {
            return Err(ContextError::Read { path, source });
        }
        // Before the size is judged: that of an archive is not what is wrong with it.
        if is_archive(&content) {
            return Err(ContextError::Archive(path));
        }
        if limit.is_exceeded_by(content.len() as u64) {
            return Err(ContextError::TooLarge { path, limit });
        }
        Ok(Self { path, content, place: Place::Stream })
    }
}

fn is_archive(content: &[u8]) -> bool {
    let (at, name) = TAR_NAME;
    SIGNATURES.iter().any(|signature| content.starts_with(signature))
        || content.get(at..).is_some_and(|rest| rest.starts_with(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Limit = Limit::new("dockerfile-bytes", 600);

    #[test]
    fn a_stream_is_a_dockerfile_of_bounded_size() {
        let read = |bytes: &[u8]| {
            FoundDockerfile::read_stream("standard input", bytes, LIMIT).map_err(|error| error.to_string())
        };
        let found = read(b"FROM scratch\n").unwrap();
        assert_eq!((found.content.as_slice(), found.file()), (&b"FROM scratch\n"[..], None));
        assert!(read(&[b'#'; 600]).is_ok() && read(b"").is_ok());
        let error = read(&[b'#'; 601]).unwrap_err();
        assert!(error.starts_with("`standard input` is larger than 600 bytes; raise it"), "{error}");
        let mut tar = vec![0; 700];
        tar[257..262].copy_from_slice(b"ustar");
        for archive in [&tar[..], b"\x1f\x8b\x08", b"BZh9", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd"] {
            assert!(read(archive).unwrap_err().contains("an archive, not a Dockerfile"));
        }
    }
}
