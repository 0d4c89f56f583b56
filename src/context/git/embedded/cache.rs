//! The objects that were used last, for those that are made from them.

use std::collections::BTreeMap;
use std::rc::Rc;

/// How many bytes of objects are kept.
pub(super) const CACHE: u64 = 32 << 20;

/// The objects that were used last. The very last one is kept however large it is: others are made from it.
#[derive(Default)]
pub(super) struct Cache {
    /// By a number that grows with each use.
    used: BTreeMap<u64, (u32, Rc<Vec<u8>>)>,
    at: BTreeMap<u32, u64>,
    bytes: u64,
    clock: u64,
}

impl Cache {
    pub(super) fn get(&mut self, index: u32) -> Option<Rc<Vec<u8>>> {
        let (_, content) = self.used.remove(self.at.get(&index)?)?;
        self.clock += 1;
        self.at.insert(index, self.clock);
        self.used.insert(self.clock, (index, Rc::clone(&content)));
        Some(content)
    }

    pub(super) fn insert(&mut self, index: u32, content: Rc<Vec<u8>>) {
        if self.get(index).is_some() {
            return;
        }
        self.clock += 1;
        self.bytes += content.len() as u64;
        self.at.insert(index, self.clock);
        self.used.insert(self.clock, (index, content));
        while self.bytes > CACHE && self.used.len() > 1 {
            let Some((_, (oldest, content))) = self.used.pop_first() else { return };
            self.at.remove(&oldest);
            self.bytes -= content.len() as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_last_is_kept_as_far_as_it_fits() {
        let mut cache = Cache::default();
        for index in 0..10 {
            cache.insert(index, Rc::new(vec![0; 10 << 20]));
            assert!(cache.bytes <= CACHE);
        }
        assert!(cache.get(8).is_some() && cache.get(0).is_none());
        cache.insert(10, Rc::new(vec![0; 40 << 20]));
        assert!(cache.get(10).is_some() && cache.get(8).is_none());
        cache.insert(11, Rc::new(vec![0; 1]));
        assert_eq!((cache.bytes, cache.used.len(), cache.at.len()), (1, 1, 1));
    }
}
