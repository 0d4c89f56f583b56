//! Counters of what was sent: what must be cheap is asserted by counting.

use std::sync::atomic::{AtomicU64, Ordering};

/// How many requests of each kind were sent. A redirect does not count again, a further try does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statistics {
    /// First contacts with a registry (`/v2/`).
    pub pings: u64,
    /// Manifests and indexes, read or asked for.
    pub manifests: u64,
    /// Blobs, read or asked for.
    pub blobs: u64,
    /// Everything that belongs to uploading a blob.
    pub uploads: u64,
    /// Manifests and indexes, sent.
    pub manifests_sent: u64,
    /// Tokens.
    pub tokens: u64,
}

/// What a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Ping,
    Manifest,
    Blob,
    Upload,
    ManifestSent,
    Token,
}

#[derive(Debug, Default)]
pub(super) struct Counters([AtomicU64; 6]);

impl Counters {
    pub(super) fn count(&self, kind: Kind) {
        self.0[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> Statistics {
        let read = |kind: Kind| self.0[kind as usize].load(Ordering::Relaxed);
        Statistics {
            pings: read(Kind::Ping),
            manifests: read(Kind::Manifest),
            blobs: read(Kind::Blob),
            uploads: read(Kind::Upload),
            manifests_sent: read(Kind::ManifestSent),
            tokens: read(Kind::Token),
        }
    }
}
