//! What a file system has left.

use std::path::Path;

/// What a file system has left for this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Free {
    /// Bytes.
    pub bytes: u64,
    /// Files; none where they are not counted.
    pub inodes: Option<u64>,
}

impl Free {
    /// That of the file system which `path` is on, or would be.
    #[must_use]
    pub fn of(path: &Path) -> Option<Self> {
        let nearest = path.ancestors().find_map(|path| rustix::fs::statvfs(path).ok())?;
        Some(Self {
            bytes: nearest.f_bavail.saturating_mul(nearest.f_frsize),
            inodes: (nearest.f_files > 0).then_some(nearest.f_favail),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_does_not_exist_yet_is_on_the_disk_of_the_nearest_directory_that_does() {
        assert!(Free::of(Path::new("/does/not/exist")).is_some());
    }
}
