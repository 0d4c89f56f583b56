//! What another builder does otherwise, by name, with the side that is taken.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::compare::Difference;
use super::program::Program;

/// A difference that is meant.
pub(crate) struct Known {
    /// How it is called in `docs/differential.md`.
    pub(crate) name: &'static str,
    /// Whether it is what makes this difference between images of this program.
    pub(crate) explains: fn(&Program, &Difference) -> bool,
}

/// How often each was met.
#[derive(Default)]
pub(crate) struct Met(Mutex<BTreeMap<&'static str, u64>>);

impl Met {
    /// Differences that none of the known ones explains.
    pub(crate) fn unexplained(&self, program: &Program, differences: Vec<Difference>, known: &[Known]) -> Vec<Difference> {
        let explains = |difference: &Difference| {
            let Some(known) = known.iter().find(|known| (known.explains)(program, difference)) else { return false };
            *self.0.lock().expect("lock").entry(known.name).or_default() += 1;
            true
        };
        differences.into_iter().filter(|difference| !explains(difference)).collect()
    }

    /// Name and number of each, those that were never met too.
    pub(crate) fn counts(&self, known: &[Known]) -> Vec<(&'static str, u64)> {
        let met = self.0.lock().expect("lock");
        known.iter().map(|known| (known.name, met.get(known.name).copied().unwrap_or_default())).collect()
    }
}

/// Debian 12's buildah 1.28.
pub(crate) const BUILDAH: &[Known] = &[];
