//! Removing what killed builds left in the store, beside the build that finds it.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use super::failure::Failure;
use crate::build::progress::{Event, Progress};
use crate::sandbox::Cancel;
use crate::store::Store;
use crate::store::room::Free;
use crate::store::sweep;

/// With less room than this, what is left over goes before the build begins: it may be what fills the disk.
const LITTLE_ROOM: Free = Free { bytes: 2 << 30, inodes: Some(200_000) };

/// How often somebody who waits looks whether the build was told to stop.
const LOOK: Duration = Duration::from_millis(50);

/// The removal, which may take as long as a build: killed ones leave whole trees.
pub(super) struct Sweep {
    /// Ends when the removal has.
    done: Option<Receiver<()>>,
}

impl Sweep {
    /// Begins, and tells so if there is anything to remove.
    pub(super) fn begin(store: &Store, progress: &dyn Progress) -> Result<Self, Failure> {
        let temporary = store.temporary();
        let dead = sweep::dead(&temporary).map_err(|error| Failure::from_error(&error))?;
        if dead == 0 {
            return Ok(Self { done: None });
        }
        let builds = if dead == 1 { "a killed build".to_owned() } else { format!("{dead} killed builds") };
        progress.tell(&Event::Note(&format!("removing what {builds} left in the store")));
        let short = Free::of(&temporary).is_none_or(|free| free.is_below(&LITTLE_ROOM));
        let (sender, done) = channel();
        // What cannot be removed is tried again at the next start.
        let beside = temporary.clone();
        let sweep = move || {
            let _ = sweep::sweep(&beside);
            drop(sender);
        };
        if short || std::thread::Builder::new().spawn(sweep).is_err() {
            let _ = sweep::sweep(&temporary);
        }
        Ok(Self { done: Some(done) })
    }

    /// Waits for its end, unless `cancel` says to stop: then the next build goes on with it.
    pub(super) fn finish(self, cancel: &Cancel) {
        let Some(done) = self.done else { return };
        while !cancel.is_cancelled() && matches!(done.recv_timeout(LOOK), Err(RecvTimeoutError::Timeout)) {}
    }
}
