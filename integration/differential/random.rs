//! Numbers that look random and are the same for the same seed on every machine.

/// SplitMix64: a counter, mixed.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    /// The numbers of a seed.
    pub(crate) fn of(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Less than `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).expect("less than a usize")
    }

    /// Between both, each of them included.
    pub(crate) fn between(&mut self, least: usize, most: usize) -> usize {
        least + self.below(most - least + 1)
    }

    /// True so many times in a hundred.
    pub(crate) fn percent(&mut self, of_hundred: usize) -> bool {
        self.below(100) < of_hundred
    }

    /// One of several.
    pub(crate) fn pick<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.below(of.len())]
    }

    /// The text so many times in a hundred, else nothing.
    pub(crate) fn sometimes<'a>(&mut self, of_hundred: usize, text: &'a str) -> &'a str {
        if self.percent(of_hundred) { text } else { "" }
    }
}
