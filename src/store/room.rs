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

    /// Whether there is less of one of them than in `wanted`.
    #[must_use]
    pub fn is_below(&self, wanted: &Self) -> bool {
        self.bytes < wanted.bytes || self.has_fewer_inodes(wanted)
    }

    /// Whether there are fewer files left than in `wanted`, where they are counted.
    #[must_use]
    pub fn has_fewer_inodes(&self, wanted: &Self) -> bool {
        matches!((self.inodes, wanted.inodes), (Some(left), Some(wanted)) if left < wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_does_not_exist_yet_is_on_the_disk_of_the_nearest_directory_that_does() {
        assert!(Free::of(Path::new("/does/not/exist")).is_some());
    }

    #[test]
    fn too_little_of_either_is_too_little() {
        let wanted = Free { bytes: 10, inodes: Some(5) };
        for (bytes, inodes, below) in [
            (10, Some(5), false),
            (9, Some(5), true),
            (10, Some(4), true),
            (10, None, false),
            (9, None, true),
        ] {
            assert_eq!(Free { bytes, inodes }.is_below(&wanted), below, "{bytes} {inodes:?}");
        }
    }
}
